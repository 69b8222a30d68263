//! The programs and flows of the driver, as the control thread keeps them.
//!
//! Requests of the daemon come in; commands to the packet thread and changes of XDP go out. The
//! packet thread has the same programs and flows; before a program's first flow it has only the
//! program's number. An entry here is added after the packet thread has it and removed before, so
//! every entry here exists there too. Program numbers are the same in the packet thread and for the
//! daemon. The packet thread reuses a flow's number as soon as the flow is closed, so the daemon
//! gets a different number ([`Flows`]). The control thread does the slow work: it makes and drops
//! memory files, clears the pages of closed flows, attaches XDP with the first flow, and detaches
//! it [`XDP_IDLE_TIME`] (0.5 s) after the last flow is closed. (In the fallback mode the packet
//! socket is bound and unbound instead.) A call fails with a [`RegistryError`] if its request is
//! invalid or names an unknown program or flow, if the kernel or a limit refuses a step, or if the
//! packet thread refuses a command or has ended.

mod census;
mod flows;
mod queues;
mod redirected;
mod server;
mod tcp_reset;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use netnice_api::direct::Term;
use netnice_api::driver::{DriverFlow, FlowCounts, PacketThreadDoc, ThreadTimeDoc, TotalsDoc};
use netnice_core::sched::Wire;
use netnice_core::units::{Bytes, Nanos, Rate};
use netnice_kernel::direct::FrameMatch;
use netnice_kernel::process::PidFd;
use netnice_ring::driver::ProgramMemory;
use netnice_ring::layout::{Budget, FlowLocation};
use rustix::event::epoll;

use crate::commands::{
    Command, CommandSender, NotAttached, PacketThreadEnded, Report, Sums, UNEXPECTED_REPORT,
};
use crate::control::memory_files::{MemoryFiles, MemoryLimitExceeded};
use crate::datapath::ProgramNo;
use crate::demux::FlowNo;
use crate::frame::Mac;
use crate::link::{Ingress, LinkError};
use crate::path_counter::PathCounter;
use crate::setup::{self, SetupError};
use flows::Flows;

/// The registry; see the module.
pub(crate) struct Registry {
    commands: CommandSender,
    ingress: Ingress,
    /// In bit/s.
    rate: u64,
    programs: BTreeMap<u32, Program>,
    flows: Flows,
    /// Number of flows per match.
    matches: HashMap<FrameMatch, u32>,
    /// Since when no flow exists while XDP is still attached.
    idle_since: Option<Instant>,
    /// When the receive queues of the interface were checked.
    queues_checked: Instant,
    /// The epoll that waits for the ends of processes.
    epoll: OwnedFd,
    /// Number of requested discard patterns, repeated ones included.
    discards: u32,
    /// The redirected targets.
    redirected: redirected::Redirected,
    /// The memory files of programs, also of detached ones.
    files: MemoryFiles,
    /// The confinement of the process, as text.
    confinement: String,
    /// The packet thread; `None` until it is stated.
    packet_thread: Option<PacketThreadDoc>,
}

struct Program {
    pid: u32,
    uid: u32,
    pidfd: PidFd,
    budget: Budget,
    bytes: u64,
    secret: Option<String>,
    /// `Some` until the program's first flow. Until then the program may not have mapped its
    /// memory, and the packet thread does not have it.
    unmapped: Option<ProgramMemory>,
    /// The program's flows, by number.
    flows: BTreeSet<u32>,
}

struct OpenFlow {
    /// The flow's configuration, with all changes since it was opened.
    setup: DriverFlow,
    frame_match: FrameMatch,
    /// The flow's number in the packet thread.
    datapath_no: FlowNo,
    /// The flow's slot in the program's memory file.
    slot: u32,
}

/// Why a call failed. A request that failed has left the programs and flows as they were; after
/// [`RegistryError::Ended`] the driver ends, and its state is of no use.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The packet thread has ended: no call can succeed.
    #[error(transparent)]
    Ended(#[from] PacketThreadEnded),
    /// No attached program has this number.
    #[error("program {0} is not attached (any more)")]
    NoProgram(u32),
    /// No open flow has this number.
    #[error("flow {0} is not open (any more)")]
    NoFlow(u32),
    /// The pidfd is missing, invalid, or of a process that has ended.
    #[error("a call to attach must carry a pidfd of the program: {0}")]
    Pidfd(&'static str),
    /// No array of counts came with the request.
    #[error("a call to set the kernel path must carry a descriptor of its counts")]
    NoCounter,
    /// The memory file cannot be made or sealed.
    #[error(transparent)]
    Memory(#[from] netnice_ring::layout::SetupError),
    /// The user's memory limit is exceeded.
    #[error(transparent)]
    MemoryLimit(#[from] MemoryLimitExceeded),
    /// The memory file cannot be watched.
    #[error("cannot watch for the end of a memory file (inotify): {0}")]
    Unwatched(io::Error),
    /// The request is invalid.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The kernel refused a step on the interface.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// No map of redirects came with the request.
    #[error("a call to receive from a redirect pair must carry a descriptor of the map")]
    NoMap,
    /// The link's rate is out of range.
    #[error("a link cannot have a rate of {0} bit/s")]
    Rate(u64),
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The packet thread refused a command, for this reason.
    #[error("{0}")]
    Refused(String),
}

/// The identity of a program that attaches.
#[derive(Clone, Debug)]
pub(crate) struct ProgramIdentity {
    /// The program's process number.
    pub(crate) pid: u32,
    /// The user that its memory is charged to.
    pub(crate) uid: u32,
    /// Limit on the memory files of this user, in bytes.
    pub(crate) memory_limit: u64,
    /// The secret of the attachment, for the census.
    pub(crate) secret: Option<String>,
}

/// The result of attaching a program.
pub(crate) struct Attached {
    /// The program's number.
    pub(crate) program: u32,
    /// Memory file, doorbell to the driver, doorbell to the program.
    pub(crate) descriptors: Vec<OwnedFd>,
}

impl Registry {
    /// An empty registry on a link of `rate` bit/s.
    ///
    /// When a program's process ends, `epoll` becomes readable with the number
    /// [`Registry::PIDFDS`] plus the program's number.
    pub(crate) fn new(
        commands: CommandSender,
        ingress: Ingress,
        rate: u64,
        epoll: OwnedFd,
        files: MemoryFiles,
    ) -> Registry {
        Registry {
            commands,
            ingress,
            rate,
            programs: BTreeMap::new(),
            flows: Flows::default(),
            matches: HashMap::new(),
            idle_since: None,
            queues_checked: Instant::now(),
            epoll,
            discards: 0,
            redirected: redirected::Redirected::default(),
            files,
            confinement: String::new(),
            packet_thread: None,
        }
    }

    /// Sets the text on the confinement of the process, and the packet thread, for the census.
    pub(crate) fn describe_process(&mut self, confinement: String, thread: PacketThreadDoc) {
        (self.confinement, self.packet_thread) = (confinement, Some(thread));
    }

    /// Readable when a memory file has ended, which means that no reference to it is left; then
    /// call [`Registry::forget_ended`].
    pub(crate) fn ended_files(&self) -> BorrowedFd<'_> {
        self.files.fd()
    }

    /// Stops charging users for memory files that have ended.
    pub(crate) fn forget_ended(&mut self) {
        self.files.forget_ended();
    }

    /// Offset of programs in the numbers of the epoll; see [`Registry::new`].
    pub(crate) const PIDFDS: u64 = 1 << 32;

    /// Readable when [`Registry::poll_disconnected`] may return a program.
    pub(crate) fn wakeup_fd(&self) -> BorrowedFd<'_> {
        self.commands.wakeup_fd()
    }

    /// Detaches the next program that the packet thread disconnected for a protocol violation.
    /// Returns its number and the reason; `None` if there is none. Fails if the packet thread has
    /// ended.
    pub(crate) fn poll_disconnected(&mut self) -> Result<Option<(u32, String)>, RegistryError> {
        let Some(disconnected) = self.commands.poll_disconnected()? else {
            return Ok(None);
        };
        let program = disconnected.program.0;
        match self.detach(program) {
            // The program was detached before.
            Ok(()) | Err(RegistryError::NoProgram(_)) => {}
            Err(why) => return Err(why),
        }
        Ok(Some((program, disconnected.violation.to_string())))
    }

    /// The receive side of the interface.
    pub(crate) fn ingress(&self) -> &Ingress {
        &self.ingress
    }

    /// Whether no program is attached, and no target redirected.
    pub(crate) fn is_empty(&self) -> bool {
        self.programs.is_empty() && self.redirected.is_empty()
    }

    /// Changes the link's parameters, and the rate of the kernel's classes. Fails with
    /// [`RegistryError`], and then changes nothing.
    pub(crate) fn rewire(
        &mut self,
        wire: Wire,
        classes: Option<Rate>,
    ) -> Result<(), RegistryError> {
        self.execute(Command::Wire(wire, classes))?;
        self.rate = wire.rate.bits_per_second();
        Ok(())
    }

    /// Takes the counter of what the kernel's classes are given to send, at this place of an array.
    /// Fails if the array cannot be mapped, or the packet thread has ended.
    pub(crate) fn set_path_counter(
        &mut self,
        place: u32,
        array: Option<OwnedFd>,
    ) -> Result<(), RegistryError> {
        let array = array.ok_or(RegistryError::NoCounter)?;
        let counter = PathCounter::map(array.as_fd(), place)?;
        self.execute(Command::PathCounter(Box::new(counter)))
    }

    /// Attaches a program. The packet thread gets its memory with its first flow
    /// ([`Registry::hand_over_memory`]). Fails if the pidfd or the budget is invalid, the user's
    /// memory limit is exceeded, a system call fails, or the packet thread has ended.
    pub(crate) fn attach(
        &mut self,
        identity: &ProgramIdentity,
        budget: Budget,
        pidfd: Option<OwnedFd>,
    ) -> Result<Attached, RegistryError> {
        let pidfd = pidfd.ok_or(RegistryError::Pidfd("no descriptor came with it"))?;
        let verified =
            PidFd::verified(pidfd).ok_or(RegistryError::Pidfd("the descriptor is not a pidfd"))?;
        if !verified.is_alive() {
            return Err(RegistryError::Pidfd("its process has ended"));
        }
        let memory = ProgramMemory::create(budget)?;
        memory.set_partial_checksums(self.ingress.interface().is_virtual);
        let bytes = memory.bytes();
        self.files
            .admit(identity.uid, bytes, identity.memory_limit)?;
        let handles = memory.handles();
        let kept = self.files.keep(identity.uid, handles.memory, bytes);
        kept.map_err(RegistryError::Unwatched)?;
        let copies = [handles.memory, handles.to_driver, handles.to_program];
        let copies: Result<Vec<OwnedFd>, _> =
            copies.iter().map(BorrowedFd::try_clone_to_owned).collect();
        let descriptors = copies?;
        let program = match self.commands.send(Command::ReserveProgram)? {
            Report::ProgramReserved(program) => program.0,
            other => return Err(refusal(other)),
        };
        let data = epoll::EventData::new_u64(Registry::PIDFDS + u64::from(program));
        let added = epoll::add(&self.epoll, verified.as_fd(), data, epoll::EventFlags::IN);
        if let Err(why) = added {
            self.commands.detach(ProgramNo(program))?;
            return Err(io::Error::from(why).into());
        }
        let known = Program {
            pid: identity.pid,
            uid: identity.uid,
            pidfd: verified,
            budget,
            bytes,
            secret: identity.secret.clone(),
            unmapped: Some(memory),
            flows: BTreeSet::new(),
        };
        self.programs.insert(program, known);
        Ok(Attached {
            program,
            descriptors,
        })
    }

    /// Called with each flow that a program opens. Before its first flow the program has mapped its
    /// memory (R5): the mapping keeps the pages from now on, and the packet thread begins to poll
    /// the program.
    fn hand_over_memory(&mut self, program: u32) -> Result<(), RegistryError> {
        let known = self.programs.get_mut(&program);
        let known = known.ok_or(RegistryError::NoProgram(program))?;
        if let Some(memory) = &mut known.unmapped {
            memory.seal()?;
        }
        let Some(memory) = known.unmapped.take() else {
            return Ok(());
        };
        let memory = Box::new(memory);
        match self
            .commands
            .attach_reserved(ProgramNo(program), memory, known.uid)?
        {
            Ok(()) => Ok(()),
            Err(NotAttached { why, memory }) => {
                known.unmapped = memory.map(|memory| *memory);
                Err(RegistryError::Refused(why))
            }
        }
    }

    /// Whether the program's process has ended.
    pub(crate) fn has_ended(&self, program: u32) -> bool {
        let known = self.programs.get(&program);
        known.is_some_and(|known| !known.pidfd.is_alive())
    }

    /// Detaches a program and closes its flows. Fails if it is not attached, or the packet thread
    /// has ended.
    pub(crate) fn detach(&mut self, program: u32) -> Result<(), RegistryError> {
        let known = self.programs.remove(&program);
        let known = known.ok_or(RegistryError::NoProgram(program))?;
        // Other processes have the pidfd too, so closing it does not remove it from the epoll.
        let _ = epoll::delete(&self.epoll, known.pidfd.as_fd());
        let mut numbers = Vec::with_capacity(known.flows.len());
        for number in known.flows {
            if let Some(flow) = self.flows.remove(number) {
                self.remove_match(&flow.frame_match);
                match tcp_reset::has_list(&flow.setup) {
                    true => drop(self.close_in_datapath(&flow, Some(known.uid))?),
                    false => numbers.push(flow.datapath_no),
                }
            }
        }
        for some in numbers.chunks(CLOSED_PER_COMMAND) {
            self.execute(Command::CloseMany(some.to_vec()))?;
        }
        drop(self.commands.detach(ProgramNo(program))?);
        self.note_idle();
        Ok(())
    }

    /// Opens a flow: returns its number and its place in the program's memory. Fails if the program
    /// is not attached, the request is invalid, or the memory, the interface or the packet thread
    /// refuses it.
    pub(crate) fn open(&mut self, setup: DriverFlow) -> Result<(u32, FlowLocation), RegistryError> {
        let program = setup.program;
        if !self.programs.contains_key(&program) {
            return Err(RegistryError::NoProgram(program));
        }
        let interface = self.ingress.interface();
        let (parameters, frame_match) = setup::flow(&setup, interface.mac, interface.mtu)?;
        self.hand_over_memory(program)?;
        // Before the flow is open: until then the kernel gets its packets.
        self.ingress.start()?;
        self.idle_since = None;
        let opened = match self.commands.open(ProgramNo(program), parameters)? {
            Ok(opened) => opened,
            Err(why) => {
                self.note_idle();
                return Err(RegistryError::Refused(why));
            }
        };
        let flow = OpenFlow {
            setup,
            frame_match,
            datapath_no: opened.flow,
            slot: opened.location.slot,
        };
        if let Err(why) = self.add_match(&frame_match, opened.flow) {
            self.close_in_datapath(&flow, None)?;
            self.note_idle();
            return Err(why.into());
        }
        let number = self.flows.insert(flow);
        if let Some(known) = self.programs.get_mut(&program) {
            known.flows.insert(number);
        }
        Ok((number, opened.location))
    }

    /// Changes a flow's contract. `granted` is the granted contract if it differs from `contract`.
    /// Fails if the contract is invalid or refused, or the flow is not open.
    pub(crate) fn change(
        &mut self,
        flow: u32,
        contract: String,
        granted: Option<String>,
    ) -> Result<(), RegistryError> {
        let datapath_no = self.flow(flow)?.datapath_no;
        let (service, receive) = setup::service(&contract)?;
        self.execute(Command::Change(datapath_no, service, receive))?;
        if let Some(known) = self.flows.get_mut(flow) {
            (known.setup.contract, known.setup.granted) = (contract, granted);
        }
        Ok(())
    }

    /// Replaces all discard patterns. A frame that matches any pattern is discarded from now on.
    /// Fails if a pattern is invalid, or the packet thread ended.
    pub(crate) fn discard(&mut self, patterns: &[Vec<Term>]) -> Result<(), RegistryError> {
        let compiled = setup::discards(patterns)?;
        self.execute(Command::Discard(compiled))?;
        self.discards = patterns.len() as u32;
        Ok(())
    }

    /// Changes a flow's next hop, and its longest packet behind the Ethernet header to `mtu` bytes,
    /// or to the interface's MTU if that is less. Fails if the flow is not open, or the packet
    /// thread ended.
    pub(crate) fn readdress(
        &mut self,
        flow: u32,
        next_hop: Option<[u8; 6]>,
        mtu: u32,
    ) -> Result<(), RegistryError> {
        let datapath_no = self.flow(flow)?.datapath_no;
        self.send_addresses(datapath_no, next_hop, mtu)?;
        if let Some(known) = self.flows.get_mut(flow) {
            (known.setup.next_hop, known.setup.mtu) = (next_hop, mtu);
        }
        Ok(())
    }

    /// Closes a flow and returns its counters. With `reset`, resets its connections if it is one of
    /// TCP. Fails if it is not open, or the packet thread ended.
    pub(crate) fn close(&mut self, flow: u32, reset: bool) -> Result<FlowCounts, RegistryError> {
        let known = self.flows.remove(flow);
        let known = known.ok_or(RegistryError::NoFlow(flow))?;
        let program = self.programs.get_mut(&known.setup.program);
        let uid = program.map(|program| {
            program.flows.remove(&flow);
            program.uid
        });
        self.remove_match(&known.frame_match);
        let counts = self.close_in_datapath(&known, uid.filter(|_| reset))?;
        self.note_idle();
        Ok(counts.unwrap_or_default())
    }

    /// The sums over all flows. Fails if the packet thread has ended.
    pub(crate) fn totals(&mut self) -> Result<TotalsDoc, RegistryError> {
        let sums = self.sums()?;
        let totals = sums.totals;
        Ok(TotalsDoc {
            sent: totals.sent,
            sent_bytes: totals.sent_bytes,
            delivered: totals.delivered,
            delivered_bytes: totals.delivered_bytes,
            thread: Some(ThreadTimeDoc {
                at_ns: sums.at.0,
                processor_ns: sums.processor.0,
                waiting_ns: sums.time.waiting.0,
            }),
        })
    }

    /// Sets whether the link is up. Fails if the packet thread has ended.
    pub(crate) fn set_link(&mut self, is_up: bool) -> Result<(), RegistryError> {
        self.execute(Command::Link(is_up))
    }

    /// Sets whether the interface cuts long packets of TCP. Fails if the packet thread has ended.
    pub(crate) fn set_segmentation(&mut self, cuts: bool) -> Result<(), RegistryError> {
        self.execute(Command::Segmentation(cuts))
    }

    /// Takes over a new Ethernet address and MTU of the interface. After a failure the call tries
    /// to return to the former ones.
    pub(crate) fn update_interface(&mut self, mac: Mac, mtu: u32) -> Result<(), RegistryError> {
        let before = self.ingress.interface();
        let before = (before.mac, before.mtu);
        self.ingress.set_mac(mac)?;
        self.ingress.set_mtu(mtu);
        let done = self.readdress_all();
        if done.is_err() {
            self.ingress.set_mtu(before.1);
            let undone = self.ingress.set_mac(before.0).map_err(RegistryError::from);
            if let Err(why) = undone.and_then(|()| self.readdress_all()) {
                tracing::warn!(%why, "cannot return to the interface's former address and MTU");
            }
        }
        done
    }

    /// When [`Registry::handle_timeout`] is due; `None`: at no time.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let idle = self.idle_since.map(|since| since + XDP_IDLE_TIME);
        idle.into_iter().chain(self.queues_due()).min()
    }

    /// Detaches XDP if no flow has been open for [`XDP_IDLE_TIME`], and receives from new queues of
    /// the interface. Fails if the kernel refuses, or the packet thread has ended.
    pub(crate) fn handle_timeout(&mut self, now: Instant) -> Result<(), RegistryError> {
        let since = self.idle_since;
        if since.is_some_and(|since| since + XDP_IDLE_TIME <= now) {
            self.idle_since = None;
            self.ingress.stop()?;
        }
        self.follow_queues(now)
    }

    /// Detaches all programs and XDP, and ends the packet thread. Fails if the packet thread has
    /// ended before, or the kernel does not detach XDP.
    pub(crate) fn stop(&mut self) -> Result<(), RegistryError> {
        let programs: Vec<u32> = self.programs.keys().copied().collect();
        let emptied: Result<(), RegistryError> = programs
            .into_iter()
            .try_for_each(|program| self.detach(program));
        let detached = self.ingress.stop();
        let stopped = self.commands.send(Command::Stop);
        emptied?;
        detached?;
        stopped?;
        Ok(())
    }

    fn flow(&self, number: u32) -> Result<&OpenFlow, RegistryError> {
        let known = self.flows.get(number);
        known.ok_or(RegistryError::NoFlow(number))
    }

    fn sums(&mut self) -> Result<Sums, RegistryError> {
        match self.commands.send(Command::Sums)? {
            Report::Sums(sums) => Ok(*sums),
            other => Err(refusal(other)),
        }
    }

    fn execute(&mut self, command: Command) -> Result<(), RegistryError> {
        match self.commands.send(command)? {
            Report::Done => Ok(()),
            other => Err(refusal(other)),
        }
    }

    /// Sends the interface's address, and all flows' addresses and longest frames, to the packet
    /// thread. A failure leaves some flows changed.
    fn readdress_all(&mut self) -> Result<(), RegistryError> {
        self.execute(Command::Mac(self.ingress.interface().mac))?;
        let flows = self.flows.iter().map(|(_, known)| {
            let setup = &known.setup;
            (known.datapath_no, setup.next_hop, setup.mtu)
        });
        let flows: Vec<_> = flows.collect();
        flows
            .into_iter()
            .try_for_each(|(datapath_no, next_hop, mtu)| {
                self.send_addresses(datapath_no, next_hop, mtu)
            })
    }

    /// Sends a flow's addresses and longest frame to the packet thread.
    fn send_addresses(
        &mut self,
        datapath_no: FlowNo,
        next_hop: Option<[u8; 6]>,
        mtu: u32,
    ) -> Result<(), RegistryError> {
        let interface = self.ingress.interface();
        let longest = setup::longest(mtu, interface.mtu);
        let next_hop = next_hop.map(Mac);
        self.execute(Command::Readdress(
            datapath_no,
            interface.mac,
            next_hop,
            longest,
        ))
    }

    /// Closes a flow in the packet thread, and clears its pages for reuse. With the user of its
    /// program in `reset`, resets its connections, too.
    fn close_in_datapath(
        &mut self,
        flow: &OpenFlow,
        reset: Option<u32>,
    ) -> Result<Option<FlowCounts>, RegistryError> {
        let command = Command::Close(flow.datapath_no, reset.is_some());
        let Report::Closed(Some(closed)) = self.commands.send(command)? else {
            return Ok(None);
        };
        if let Some(retired) = closed.retired {
            if let Some(uid) = reset {
                self.reset_listed(uid, &flow.setup, &retired)?;
            }
            let program = ProgramNo(flow.setup.program);
            self.execute(Command::Reuse(program, retired.clear()))?;
        }
        Ok(Some(setup::counts(&closed.counters)))
    }

    fn add_match(&mut self, frame_match: &FrameMatch, flow: FlowNo) -> Result<(), LinkError> {
        let count = self.matches.entry(*frame_match).or_insert(0);
        if *count == 0 {
            // A group may have several flows.
            let of_one_flow = match frame_match {
                FrameMatch::Endpoints { local, .. } => !local.0.is_multicast(),
                FrameMatch::Syn { .. } => true,
                FrameMatch::Protocol { .. } | FrameMatch::EtherType(_) => false,
            };
            let done = self
                .ingress
                .add_match(frame_match, of_one_flow.then_some(flow));
            if done.is_err() {
                self.matches.remove(frame_match);
                return done;
            }
        }
        *count += 1;
        Ok(())
    }

    fn remove_match(&mut self, frame_match: &FrameMatch) {
        let Some(count) = self.matches.get_mut(frame_match) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            self.matches.remove(frame_match);
            if let Err(why) = self.ingress.remove_match(frame_match) {
                tracing::warn!(%why, "packets of a closed flow still come to the driver");
            }
        }
    }

    fn note_idle(&mut self) {
        if self.flows.is_empty() && self.ingress.is_receiving() && self.idle_since.is_none() {
            self.idle_since = Some(Instant::now());
        }
    }
}

/// The link's parameters for the scheduler. Fails with [`RegistryError::Rate`] if `rate` (bit/s) is
/// out of range.
pub(crate) fn wire(rate: u64, overhead: u64) -> Result<Wire, RegistryError> {
    let mut wire = Wire::new(Rate::new(rate).ok_or(RegistryError::Rate(rate))?);
    wire.overhead = Bytes(overhead);
    wire.ahead = Nanos(netnice_api::driver::SEND_AHEAD_NS);
    wire.longest = Bytes(setup::longest(crate::link::MAX_MTU, u32::MAX) as u64);
    Ok(wire)
}

fn refusal(report: Report) -> RegistryError {
    match report {
        Report::Failed(why) => RegistryError::Refused(why),
        _ => RegistryError::Refused(UNEXPECTED_REPORT.to_owned()),
    }
}

/// How long XDP stays attached without a flow, so that the next flow need not wait for XDP.
const XDP_IDLE_TIME: Duration = Duration::from_millis(500);
/// Flows that one command closes.
const CLOSED_PER_COMMAND: usize = 8;

#[cfg(test)]
mod tests;

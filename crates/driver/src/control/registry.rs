//! The programs and flows of the driver, as the control thread keeps them.
//!
//! Calls of the daemon come in; commands to the packet thread and changes of XDP go out. The packet
//! thread keeps the same programs and flows and gets each change first, so every entry here exists
//! there too. Program numbers are the same in the packet thread and for the daemon. The packet
//! thread reuses a flow's number as soon as the flow is closed, so the daemon gets a different
//! number ([`Flows`]). The control thread does the slow work: it makes and drops memory files,
//! clears the pages of closed flows, attaches XDP with the first flow, and detaches it some time
//! after the last. A call fails with a [`RegistryError`].

mod flows;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use netnice_api::direct::Term;
use netnice_api::driver::{
    CensusDoc, DriverFlow, DriverFlowDoc, FlowCounts, ProgramDoc, SpentDoc, TotalsDoc,
    UserMemoryDoc,
};
use netnice_core::sched::Wire;
use netnice_core::units::{Bytes, Nanos, Rate};
use netnice_kernel::direct::Claim;
use netnice_kernel::process::PidFd;
use netnice_ring::driver::Client;
use netnice_ring::layout::{Budget, Place};
use rustix::event::epoll;

use crate::control::files::{Files, TooMuch};
use crate::demux::{Discard, FlowNo};
use crate::frame::Mac;
use crate::link::{Ear, LinkError};
use crate::orders::{Ended, Order, Orders, Report, Sums};
use crate::setup::{self, SetupError};
use crate::turn::ProgramNo;
use flows::Flows;

/// The registry; see the module.
pub struct Registry {
    orders: Orders,
    ear: Ear,
    /// In bit/s.
    rate: u64,
    programs: BTreeMap<u32, Program>,
    flows: Flows,
    /// Number of flows per claim.
    claims: HashMap<Claim, u32>,
    /// Since when no flow exists while XDP is still attached.
    quiet_since: Option<Instant>,
    /// The epoll that waits for the ends of processes.
    watched: OwnedFd,
    /// Number of discard patterns.
    discards: u32,
    /// The memory files of programs, also of detached ones.
    files: Files,
    /// The confinement of the process, as text.
    confined: String,
}

struct Program {
    pid: u32,
    uid: u32,
    life: PidFd,
    bytes: u64,
    /// `Some` until the program's first flow. Until then the program may not have mapped its
    /// memory, and the packet thread does not have it.
    unmapped: Option<Client>,
    /// The program's flows, by number.
    flows: BTreeSet<u32>,
}

struct Flow {
    /// The flow's configuration, with all changes since it was opened.
    setup: DriverFlow,
    claim: Claim,
    /// The flow's number in the packet thread.
    place: FlowNo,
}

/// Why a call failed. The failed call has changed nothing; after [`RegistryError::Ended`] the driver
/// ends, and its state is of no use.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The packet thread has ended: no call can succeed.
    #[error(transparent)]
    Ended(#[from] Ended),
    /// No such program.
    #[error("program {0} is not attached (any more)")]
    NoProgram(u32),
    /// No such flow.
    #[error("flow {0} is not open (any more)")]
    NoFlow(u32),
    /// The pidfd is missing, invalid, or of a process that has ended.
    #[error("attach needs a pidfd of the program beside it, and {0}")]
    Pidfd(&'static str),
    /// The memory file cannot be made or sealed.
    #[error(transparent)]
    Memory(#[from] netnice_ring::layout::SetupError),
    /// The user's memory limit is exceeded.
    #[error(transparent)]
    TooMuch(#[from] TooMuch),
    /// The memory file cannot be watched.
    #[error("cannot watch for the end of a memory file (inotify): {0}")]
    Unwatched(io::Error),
    /// The request is invalid.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The interface refused.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The link's rate is out of range.
    #[error("a rate of {0} bit/s is none that a link has")]
    Rate(u64),
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The packet thread refused.
    #[error("{0}")]
    Refused(String),
}

/// The identity of a program that attaches.
#[derive(Clone, Copy, Debug)]
pub struct Guest {
    /// Its process.
    pub pid: u32,
    /// The user that its memory is charged to.
    pub uid: u32,
    /// Limit on the memory files of this user, in bytes.
    pub most: u64,
}

/// The result of attaching a program.
pub struct Attached {
    /// The program's number.
    pub program: u32,
    /// Memory file, doorbell to the driver, doorbell to the program.
    pub descriptors: Vec<OwnedFd>,
}

impl Registry {
    /// An empty registry on a link of `rate` bit/s.
    ///
    /// When a program's process ends, the epoll `watched` becomes readable with the number
    /// [`Registry::LIVES`] plus the program's number.
    pub fn new(orders: Orders, ear: Ear, rate: u64, watched: OwnedFd, files: Files) -> Registry {
        Registry {
            orders,
            ear,
            rate,
            programs: BTreeMap::new(),
            flows: Flows::default(),
            claims: HashMap::new(),
            quiet_since: None,
            watched,
            discards: 0,
            files,
            confined: String::new(),
        }
    }

    /// Sets the text on the confinement of the process.
    pub fn confined(&mut self, how: String) {
        self.confined = how;
    }

    /// Readable when a memory file has ended; then call [`Registry::forget_gone`].
    pub fn gone(&self) -> BorrowedFd<'_> {
        self.files.fd()
    }

    /// Stops charging users for memory files that have ended.
    pub fn forget_gone(&mut self) {
        self.files.forget_gone();
    }

    /// Offset of programs in the numbers of the epoll; see [`Registry::new`].
    pub const LIVES: u64 = 1 << 32;

    /// Readable when [`Registry::poll_expelled`] may return a program.
    pub fn told(&self) -> BorrowedFd<'_> {
        self.orders.told()
    }

    /// The next program that the packet thread disconnected for a protocol violation, with the
    /// reason. The program is detached.
    pub fn poll_expelled(&mut self) -> Result<Option<(u32, String)>, RegistryError> {
        let Some(expelled) = self.orders.poll_expelled()? else {
            return Ok(None);
        };
        let program = expelled.program.0;
        match self.detach(program) {
            // The program was detached before.
            Ok(()) | Err(RegistryError::NoProgram(_)) => {}
            Err(why) => return Err(why),
        }
        Ok(Some((program, expelled.breach.to_string())))
    }

    /// The receive side of the interface.
    pub fn ear(&self) -> &Ear {
        &self.ear
    }

    /// Whether no program is attached.
    pub fn is_empty(&self) -> bool {
        self.programs.is_empty()
    }

    /// Changes the link's rate (bit/s) and its overhead per packet (bytes).
    pub fn rewire(&mut self, rate: u64, overhead: u64) -> Result<(), RegistryError> {
        let wire = wire(rate, overhead)?;
        self.done(Order::Wire(wire))?;
        self.rate = rate;
        Ok(())
    }

    /// Attaches a program. The packet thread gets its memory with its first flow
    /// ([`Registry::begin`]).
    pub fn attach(
        &mut self,
        guest: &Guest,
        budget: Budget,
        pidfd: Option<OwnedFd>,
    ) -> Result<Attached, RegistryError> {
        let pidfd = pidfd.ok_or(RegistryError::Pidfd("none came"))?;
        let life = PidFd::verified(pidfd).ok_or(RegistryError::Pidfd("this is none"))?;
        if !life.lives() {
            return Err(RegistryError::Pidfd("that process has ended"));
        }
        let client = Client::create(budget)?;
        let bytes = client.bytes();
        self.files.admit(guest.uid, bytes, guest.most)?;
        let handles = client.handles();
        let kept = self.files.keep(guest.uid, handles.memory, bytes);
        kept.map_err(RegistryError::Unwatched)?;
        let copies = [handles.memory, handles.to_driver, handles.to_program];
        let copies: Result<Vec<OwnedFd>, _> =
            copies.iter().map(BorrowedFd::try_clone_to_owned).collect();
        let descriptors = copies?;
        let program = match self.orders.give(Order::Expect)? {
            Report::Expected(program) => program.0,
            other => return Err(refusal(other)),
        };
        let data = epoll::EventData::new_u64(Registry::LIVES + u64::from(program));
        let watched = epoll::add(&self.watched, life.as_fd(), data, epoll::EventFlags::IN);
        if let Err(why) = watched {
            self.orders.detach(ProgramNo(program))?;
            return Err(io::Error::from(why).into());
        }
        let known = Program {
            pid: guest.pid,
            uid: guest.uid,
            life,
            bytes,
            unmapped: Some(client),
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
    fn begin(&mut self, program: u32) -> Result<(), RegistryError> {
        let known = self.programs.get_mut(&program);
        let known = known.ok_or(RegistryError::NoProgram(program))?;
        if let Some(client) = &mut known.unmapped {
            client.seal()?;
        }
        let Some(client) = known.unmapped.take() else {
            return Ok(());
        };
        match self
            .orders
            .attach_as(ProgramNo(program), client, known.uid)?
        {
            Ok(()) => Ok(()),
            Err(why) => Err(RegistryError::Refused(why)),
        }
    }

    /// Whether the program's process has ended.
    pub fn has_ended(&self, program: u32) -> bool {
        let known = self.programs.get(&program);
        known.is_some_and(|known| !known.life.lives())
    }

    /// Detaches a program and closes its flows.
    pub fn detach(&mut self, program: u32) -> Result<(), RegistryError> {
        let known = self.programs.remove(&program);
        let known = known.ok_or(RegistryError::NoProgram(program))?;
        // Other processes have the pidfd too, so closing it does not remove it from the epoll.
        let _ = epoll::delete(&self.watched, known.life.as_fd());
        let mut places = Vec::with_capacity(known.flows.len());
        for number in known.flows {
            if let Some(flow) = self.flows.remove(number) {
                self.release(&flow.claim);
                places.push(flow.place);
            }
        }
        for some in places.chunks(SHED_AT_ONCE) {
            self.done(Order::Shed(some.to_vec()))?;
        }
        drop(self.orders.detach(ProgramNo(program))?);
        self.grow_quiet();
        Ok(())
    }

    /// Opens a flow: returns its number and its place in the program's memory.
    pub fn open(&mut self, asked: DriverFlow) -> Result<(u32, Place), RegistryError> {
        let program = asked.program;
        if !self.programs.contains_key(&program) {
            return Err(RegistryError::NoProgram(program));
        }
        let interface = self.ear.interface();
        let (open, claim) = setup::flow(&asked, interface.mac, interface.mtu)?;
        self.begin(program)?;
        // Before the flow is open: until then the kernel gets its packets.
        self.ear.listen()?;
        self.quiet_since = None;
        let opened = match self.orders.open(ProgramNo(program), open)? {
            Ok(opened) => opened,
            Err(why) => {
                self.grow_quiet();
                return Err(RegistryError::Refused(why));
            }
        };
        if let Err(why) = self.claim(&claim, opened.flow) {
            self.close_there(program, opened.flow)?;
            self.grow_quiet();
            return Err(why.into());
        }
        let number = self.flows.insert(Flow {
            setup: asked,
            claim,
            place: opened.flow,
        });
        if let Some(known) = self.programs.get_mut(&program) {
            known.flows.insert(number);
        }
        Ok((number, opened.place))
    }

    /// Changes a flow's contract. `granted` is the granted contract if it differs from `contract`.
    pub fn change(
        &mut self,
        flow: u32,
        contract: String,
        granted: Option<String>,
    ) -> Result<(), RegistryError> {
        let place = self.flow(flow)?.place;
        let service = setup::service(&contract)?;
        self.done(Order::Change(place, service))?;
        if let Some(known) = self.flows.get_mut(flow) {
            (known.setup.contract, known.setup.granted) = (contract, granted);
        }
        Ok(())
    }

    /// Replaces all discard patterns. A frame that matches any pattern is discarded from now on.
    pub fn discard(&mut self, patterns: &[Vec<Term>]) -> Result<(), RegistryError> {
        let compiled = setup::discards(patterns)?;
        self.done(Order::Discard(compiled))?;
        self.discards = patterns.len() as u32;
        Ok(())
    }

    /// Changes a flow's next hop and its longest packet.
    pub fn readdress(
        &mut self,
        flow: u32,
        next_hop: Option<[u8; 6]>,
        mtu: u32,
    ) -> Result<(), RegistryError> {
        let place = self.flow(flow)?.place;
        self.address(place, next_hop, mtu)?;
        if let Some(known) = self.flows.get_mut(flow) {
            (known.setup.next_hop, known.setup.mtu) = (next_hop, mtu);
        }
        Ok(())
    }

    /// Closes a flow and returns its counters.
    pub fn close(&mut self, flow: u32) -> Result<FlowCounts, RegistryError> {
        let known = self.flows.remove(flow);
        let known = known.ok_or(RegistryError::NoFlow(flow))?;
        let program = known.setup.program;
        if let Some(program) = self.programs.get_mut(&program) {
            program.flows.remove(&flow);
        }
        self.release(&known.claim);
        let counts = self.close_there(program, known.place)?;
        self.grow_quiet();
        Ok(counts.unwrap_or_default())
    }

    /// All programs and flows, with their counters.
    pub fn census(&mut self) -> Result<CensusDoc, RegistryError> {
        let sums = self.sums()?;
        let discarded = Discard::ALL.iter().zip(sums.received.discarded);
        let discarded = discarded.map(|(why, count)| (why.name().to_owned(), count));
        let others = [
            ("unclaimed", sums.received.unclaimed),
            ("missed", sums.link.missed),
            ("strange", sums.link.strange),
        ];
        let others = others.map(|(why, count)| (why.to_owned(), count));
        let programs = self.programs.iter();
        let mut census = CensusDoc {
            iface: self.ear.interface().name.clone(),
            mode: self.ear.mode().name().to_owned(),
            rate: self.rate,
            why_not_native: self.ear.why_not_native().map(LinkError::to_string),
            programs: programs
                .map(|(number, known)| ProgramDoc {
                    program: *number,
                    pid: known.pid,
                    bytes: known.bytes,
                })
                .collect(),
            flows: Vec::with_capacity(self.flows.iter().len()),
            spent: SpentDoc {
                receiving_ns: sums.spent.receiving.0,
                sending_ns: sums.spent.sending.0,
                waiting_ns: sums.spent.waiting.0,
            },
            frames: sums.frames.map(setup::frames),
            unasked: sums.spent.unasked,
            awake: sums.awake,
            confined: self.confined.clone(),
            memory: self
                .files
                .users()
                .map(|(uid, has)| UserMemoryDoc {
                    uid,
                    files: has.files,
                    bytes: has.bytes,
                })
                .collect(),
            discards: self.discards,
            discarded: discarded
                .chain(others)
                .filter(|(_, count)| *count > 0)
                .collect(),
        };
        let all: Vec<(u32, &Flow)> = self.flows.iter().collect();
        for some in all.chunks(COUNTED_AT_ONCE) {
            let places = some.iter().map(|(_, known)| known.place).collect();
            let Report::Counts(counted) = self.orders.give(Order::Counts(places))? else {
                continue;
            };
            // One result per flow, in the same order.
            for ((number, known), counted) in some.iter().zip(counted) {
                let Some((counters, chunks)) = counted else {
                    continue;
                };
                census.flows.push(DriverFlowDoc {
                    flow: *number,
                    setup: known.setup.clone(),
                    counts: setup::counts(&counters),
                    held: chunks.in_use,
                });
            }
        }
        Ok(census)
    }

    /// The sums over all flows.
    pub fn totals(&mut self) -> Result<TotalsDoc, RegistryError> {
        let totals = self.sums()?.totals;
        Ok(TotalsDoc {
            sent: totals.sent,
            sent_bytes: totals.sent_bytes,
            delivered: totals.delivered,
            delivered_bytes: totals.delivered_bytes,
        })
    }

    /// Sets whether the link is up.
    pub fn link(&mut self, is_up: bool) -> Result<(), RegistryError> {
        self.done(Order::Link(is_up))
    }

    /// Takes over a new Ethernet address and MTU of the interface.
    pub fn reshape(&mut self, mac: Mac, mtu: u32) -> Result<(), RegistryError> {
        let before = self.ear.interface();
        let before = (before.mac, before.mtu);
        self.ear.moved(mac)?;
        self.ear.resized(mtu);
        let done = self.address_all();
        if done.is_err() {
            self.ear.resized(before.1);
            let undone = self.ear.moved(before.0).map_err(RegistryError::from);
            if let Err(why) = undone.and_then(|()| self.address_all()) {
                tracing::warn!(%why, "cannot return to the interface's former address and MTU");
            }
        }
        done
    }

    /// When [`Registry::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        Some(self.quiet_since? + QUIET)
    }

    /// Detaches XDP if no flow has been open for [`QUIET`].
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), RegistryError> {
        if self.poll_timeout().is_some_and(|at| at <= now) {
            self.quiet_since = None;
            self.ear.deafen()?;
        }
        Ok(())
    }

    /// Detaches all programs and XDP, and ends the packet thread.
    pub fn stop(&mut self) -> Result<(), RegistryError> {
        let programs: Vec<u32> = self.programs.keys().copied().collect();
        let gone: Result<(), RegistryError> = programs
            .into_iter()
            .try_for_each(|program| self.detach(program));
        let deaf = self.ear.deafen();
        let stopped = self.orders.give(Order::Stop);
        gone?;
        deaf?;
        stopped?;
        Ok(())
    }

    fn flow(&self, number: u32) -> Result<&Flow, RegistryError> {
        let known = self.flows.get(number);
        known.ok_or(RegistryError::NoFlow(number))
    }

    fn sums(&mut self) -> Result<Sums, RegistryError> {
        match self.orders.give(Order::Sums)? {
            Report::Sums(sums) => Ok(*sums),
            other => Err(refusal(other)),
        }
    }

    fn done(&mut self, order: Order) -> Result<(), RegistryError> {
        match self.orders.give(order)? {
            Report::Done => Ok(()),
            other => Err(refusal(other)),
        }
    }

    /// Sends the interface's address, and all flows' addresses and longest frames, to the packet
    /// thread. A failure leaves some flows changed.
    fn address_all(&mut self) -> Result<(), RegistryError> {
        self.done(Order::Mac(self.ear.interface().mac))?;
        let flows = self.flows.iter().map(|(_, known)| {
            let setup = &known.setup;
            (known.place, setup.next_hop, setup.mtu)
        });
        let flows: Vec<_> = flows.collect();
        flows
            .into_iter()
            .try_for_each(|(place, next_hop, mtu)| self.address(place, next_hop, mtu))
    }

    /// Sends a flow's addresses and longest frame to the packet thread.
    fn address(
        &mut self,
        place: FlowNo,
        next_hop: Option<[u8; 6]>,
        mtu: u32,
    ) -> Result<(), RegistryError> {
        let interface = self.ear.interface();
        let longest = setup::longest(mtu, interface.mtu);
        let next_hop = next_hop.map(Mac);
        self.done(Order::Readdress(place, interface.mac, next_hop, longest))
    }

    /// Closes a flow in the packet thread, and clears its pages for reuse.
    fn close_there(
        &mut self,
        program: u32,
        place: FlowNo,
    ) -> Result<Option<FlowCounts>, RegistryError> {
        let Report::Closed(Some(closed)) = self.orders.give(Order::Close(place))? else {
            return Ok(None);
        };
        if let Some(retired) = closed.retired {
            self.done(Order::Reuse(ProgramNo(program), retired.clear()))?;
        }
        Ok(Some(setup::counts(&closed.counters)))
    }

    fn claim(&mut self, claim: &Claim, flow: FlowNo) -> Result<(), LinkError> {
        let count = self.claims.entry(*claim).or_insert(0);
        if *count == 0 {
            // A group may have several flows.
            let is_its_own = matches!(claim, Claim::Ends { local, .. } if !local.0.is_multicast());
            let done = self.ear.claim(claim, is_its_own.then_some(flow));
            if done.is_err() {
                self.claims.remove(claim);
                return done;
            }
        }
        *count += 1;
        Ok(())
    }

    fn release(&mut self, claim: &Claim) {
        let Some(count) = self.claims.get_mut(claim) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            self.claims.remove(claim);
            if let Err(why) = self.ear.release(claim) {
                tracing::warn!(%why, "packets of a closed flow still come to the driver");
            }
        }
    }

    fn grow_quiet(&mut self) {
        if self.flows.is_empty() && self.ear.listens() && self.quiet_since.is_none() {
            self.quiet_since = Some(Instant::now());
        }
    }
}

/// The link's parameters for the scheduler. Fails with [`RegistryError::Rate`] if `rate` (bit/s) is
/// out of range.
pub fn wire(rate: u64, overhead: u64) -> Result<Wire, RegistryError> {
    let mut wire = Wire::new(Rate::new(rate).ok_or(RegistryError::Rate(rate))?);
    wire.overhead = Bytes(overhead);
    wire.ahead = Nanos(netnice_api::driver::AHEAD_NS);
    wire.longest = Bytes(setup::longest(crate::link::MAX_MTU, u32::MAX) as u64);
    Ok(wire)
}

fn refusal(report: Report) -> RegistryError {
    match report {
        Report::Failed(why) => RegistryError::Refused(why),
        _ => RegistryError::Refused("the packet thread answered something else".to_owned()),
    }
}

/// How long XDP stays attached without a flow, so that the next flow need not wait for XDP.
const QUIET: Duration = Duration::from_millis(500);
/// Flows whose counters are copied by one command: some microseconds.
const COUNTED_AT_ONCE: usize = 16;
/// Flows that one command closes.
const SHED_AT_ONCE: usize = 8;

#[cfg(test)]
mod tests;

//! Which programs and flows there are, as the control thread knows them, and how they come and go.
//!
//! The packet thread has the same ones; it is told first, so that what stands here is there. Programs have one number with it and with
//! the daemon; a flow's place there is another's as soon as it is closed, so the daemon is told a number of its own ([`Flows`]). What
//! takes long is done here and not there: a program's memory is made and dropped, pages of closed flows are given back, XDP is
//! attached with the first flow and detached some time after the last.

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

/// What the driver has.
pub struct Registry {
    orders: Orders,
    ear: Ear,
    /// In bit/s.
    rate: u64,
    programs: BTreeMap<u32, Program>,
    flows: Flows,
    /// How many flows there are for each.
    claims: HashMap<Claim, u32>,
    /// Since when there is no flow, while XDP is still attached.
    quiet_since: Option<Instant>,
    /// Where the ends of processes are waited for.
    watched: OwnedFd,
    /// How many patterns are thrown away.
    discards: u32,
    /// The memory that programs have, and had.
    files: Files,
    /// How the process is confined.
    confined: String,
}

struct Program {
    pid: u32,
    uid: u32,
    life: PidFd,
    bytes: u64,
    /// Until its first flow: the program may not have mapped its memory, and the packet thread does not have it.
    unmapped: Option<Client>,
    /// By their numbers.
    flows: BTreeSet<u32>,
}

struct Flow {
    /// As it was opened, and changed since.
    setup: DriverFlow,
    claim: Claim,
    /// What the packet thread knows it by.
    place: FlowNo,
}

/// Why something cannot be done. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The packet thread is gone: nothing can be done any more.
    #[error(transparent)]
    Ended(#[from] Ended),
    /// No such program.
    #[error("program {0} is not attached (any more)")]
    NoProgram(u32),
    /// No such flow.
    #[error("flow {0} is not open (any more)")]
    NoFlow(u32),
    /// The process whose flows they would be.
    #[error("attach needs a pidfd of the program beside it, and {0}")]
    Pidfd(&'static str),
    /// Its memory.
    #[error(transparent)]
    Memory(#[from] netnice_ring::layout::SetupError),
    /// More memory than its user may have.
    #[error(transparent)]
    TooMuch(#[from] TooMuch),
    /// Its memory cannot be counted.
    #[error("cannot watch for the end of a memory file (inotify): {0}")]
    Unwatched(io::Error),
    /// What is asked makes no sense.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The interface.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The link's rate.
    #[error("a rate of {0} bit/s is none that a link has")]
    Rate(u64),
    /// The kernel refused something.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Said by the packet thread.
    #[error("{0}")]
    Refused(String),
}

/// Who a program is.
#[derive(Clone, Copy, Debug)]
pub struct Guest {
    /// Its process.
    pub pid: u32,
    /// Whose memory it counts as.
    pub uid: u32,
    /// Bytes of memory files that this user may have.
    pub most: u64,
}

/// A program that is attached: what it gets.
pub struct Attached {
    /// Its number.
    pub program: u32,
    /// Memory file, doorbell to the driver, doorbell to the program.
    pub descriptors: Vec<OwnedFd>,
}

impl Registry {
    /// Nothing yet.
    ///
    /// The end of a program's process makes the epoll descriptor readable, with [`Registry::LIVES`] and the program's
    /// number.
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

    /// How the process is confined.
    pub fn confined(&mut self, how: String) {
        self.confined = how;
    }

    /// Readable when a memory file is gone: [`Registry::forget_gone`].
    pub fn gone(&self) -> BorrowedFd<'_> {
        self.files.fd()
    }

    /// Memory files that are gone do not count for their users any more.
    pub fn forget_gone(&mut self) {
        self.files.forget_gone();
    }

    /// See [`Registry::new`].
    pub const LIVES: u64 = 1 << 32;

    /// Readable when there may be a program to [`Registry::poll_expelled`].
    pub fn told(&self) -> BorrowedFd<'_> {
        self.orders.told()
    }

    /// A program that was expelled, and why. It is detached.
    pub fn poll_expelled(&mut self) -> Result<Option<(u32, String)>, RegistryError> {
        let Some(expelled) = self.orders.poll_expelled()? else {
            return Ok(None);
        };
        let program = expelled.program.0;
        match self.detach(program) {
            // It is gone already.
            Ok(()) | Err(RegistryError::NoProgram(_)) => {}
            Err(why) => return Err(why),
        }
        Ok(Some((program, expelled.breach.to_string())))
    }

    /// What comes from the interface.
    pub fn ear(&self) -> &Ear {
        &self.ear
    }

    /// Whether there is nobody.
    pub fn is_empty(&self) -> bool {
        self.programs.is_empty()
    }

    /// Another rate of the link.
    pub fn rewire(&mut self, rate: u64, overhead: u64) -> Result<(), RegistryError> {
        let wire = wire(rate, overhead)?;
        self.done(Order::Wire(wire))?;
        self.rate = rate;
        Ok(())
    }

    /// Another program. The packet thread gets its memory with its first flow ([`Registry::begin`]).
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

    /// A program that asks for a flow has mapped its memory (R5): from now on that keeps its pages, and the packet thread looks at it.
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

    /// A program ends, and its flows.
    pub fn detach(&mut self, program: u32) -> Result<(), RegistryError> {
        let known = self.programs.remove(&program);
        let known = known.ok_or(RegistryError::NoProgram(program))?;
        // Others have the pidfd too, so it does not go by being closed.
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

    /// Another flow: its number, and where it lies.
    pub fn open(&mut self, asked: DriverFlow) -> Result<(u32, Place), RegistryError> {
        let program = asked.program;
        if !self.programs.contains_key(&program) {
            return Err(RegistryError::NoProgram(program));
        }
        let interface = self.ear.interface();
        let (open, claim) = setup::flow(&asked, interface.mac, interface.mtu)?;
        self.begin(program)?;
        // Before it is open: its packets pass to the kernel until then.
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

    /// Another contract for a flow, and what was granted where that is not the same.
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

    /// What fits one of these is discarded from now on, and nothing else.
    pub fn discard(&mut self, patterns: &[Vec<Term>]) -> Result<(), RegistryError> {
        let compiled = setup::discards(patterns)?;
        self.done(Order::Discard(compiled))?;
        self.discards = patterns.len() as u32;
        Ok(())
    }

    /// A flow's frames go to another station, or may be of another length.
    pub fn readdress(
        &mut self,
        flow: u32,
        next_hop: Option<[u8; 6]>,
        mtu: u32,
    ) -> Result<(), RegistryError> {
        let known = self.flows.get_mut(flow);
        let known = known.ok_or(RegistryError::NoFlow(flow))?;
        (known.setup.next_hop, known.setup.mtu) = (next_hop, mtu);
        self.address(flow)
    }

    /// A flow ends.
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
            // One for each, in their order.
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

    /// What all flows have done together.
    pub fn totals(&mut self) -> Result<TotalsDoc, RegistryError> {
        let totals = self.sums()?.totals;
        Ok(TotalsDoc {
            sent: totals.sent,
            sent_bytes: totals.sent_bytes,
            delivered: totals.delivered,
            delivered_bytes: totals.delivered_bytes,
        })
    }

    /// The link is up, or is not.
    pub fn link(&mut self, is_up: bool) -> Result<(), RegistryError> {
        self.done(Order::Link(is_up))
    }

    /// The interface has another address, or its packets may be of another length.
    pub fn reshape(&mut self, mac: Mac, mtu: u32) -> Result<(), RegistryError> {
        self.ear.moved(mac)?;
        self.ear.resized(mtu);
        self.done(Order::Mac(mac))?;
        let flows: Vec<u32> = self.flows.iter().map(|(number, _)| number).collect();
        flows.into_iter().try_for_each(|flow| self.address(flow))
    }

    /// When there is something to do again without anybody asking.
    pub fn poll_timeout(&self) -> Option<Instant> {
        Some(self.quiet_since? + QUIET)
    }

    /// Takes XDP off if no flow has been there for a while.
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), RegistryError> {
        if self.poll_timeout().is_some_and(|at| at <= now) {
            self.quiet_since = None;
            self.ear.deafen()?;
        }
        Ok(())
    }

    /// All end: flows, programs, XDP, the packet thread.
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

    /// Tells the packet thread a flow's addresses and length.
    fn address(&mut self, flow: u32) -> Result<(), RegistryError> {
        let known = self.flow(flow)?;
        let interface = self.ear.interface();
        let longest = setup::longest(known.setup.mtu, interface.mtu);
        let next_hop = known.setup.next_hop.map(Mac);
        self.done(Order::Readdress(
            known.place,
            interface.mac,
            next_hop,
            longest,
        ))
    }

    /// Closes a flow with the packet thread, and lets its pages be used again.
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

/// The link, for the scheduler.
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

/// So long XDP stays without a flow: one that follows another need not wait for it to come back.
const QUIET: Duration = Duration::from_millis(500);
/// Flows whose counters are copied in one go: some microseconds.
const COUNTED_AT_ONCE: usize = 16;
/// Flows that are closed in one go.
const SHED_AT_ONCE: usize = 8;

#[cfg(test)]
mod tests;

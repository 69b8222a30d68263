//! The datapath: rings → schedule → copy and check → transmit; and received frames → flow → charge
//! → copy.
//!
//! A [`Turn`] owns everything between the programs' rings and the NIC. Its result depends only on
//! these and on the time that the caller passes: it does not sleep and reads no clock, so tests run
//! it without a NIC.
//!
//! ```text
//!  notices ─▶ head of a flow ─▶ scheduler ─▶ departing head ─▶ NIC's frame ─▶ template ─▶ sent
//!                   ▲               │                                            └────▶ forbidden
//!                   └─ next record ─┘
//! ```
//! - The scheduler holds one record of each flow, its head; the others stay in the ring.
//! - The head is copied when it leaves, and the copy is checked.
//! - A record returns with its status in the same iteration. A forbidden record has used its time
//!   on the link, at its own flow's expense.
//! - A program that violates the ring protocol is disconnected with all its flows: none of its
//!   memory is read afterwards. [`Turn::poll_expelled`] returns the program and the violation. The
//!   caller closes the flows and detaches the program, since there may be many flows.
//! - A chosen packet leaves a moment later, or much later if the thread was stopped in between. The
//!   caller reports the time by [`Turn::left`], so that the next packet does not follow too soon.
//! - Work is bounded: [`BATCH`] packets and [`NEWS`] flows per iteration. A record that can never
//!   be sent (too long) waits for its time on the link as a forbidden one does, so a program cannot
//!   have more of them read than it may send.
//! - With tens of thousands of flows, memory latency would take nearly all of the time. So the next
//!   flows and packets are known in advance, and their memory is prefetched.

mod calls;
mod flow;
mod programs;
mod receive;
mod results;

use netnice_core::contract::Slice;
use netnice_core::prefetch;
use netnice_core::sched::{
    Class, Departure, FlowId, Packet, Scheduler, SchedulerError, Service, Wire,
};
use netnice_core::units::{Bytes, Instant, Nanos};
use netnice_ring::driver::{Cleared, Loss, Prepared, ProgramMemory, Reserved, Taken, Unprepared};
use netnice_ring::layout::{FlowLocation, Shape};
use netnice_ring::ledger::Balance;
use netnice_ring::record::{Record, Status};
use netnice_ring::violation::ProtocolViolation;

use calls::Calls;
pub use flow::{Counters, LATENESS, Open, Opened};
use flow::{Flow, Handed, UNMOVED};
pub use programs::ProgramNo;
use programs::{Program, Programs};
pub use results::{Card, Closed, Expelled, Next, OpenError, Totals};

use crate::bells::Bells;
use crate::demux::{Demux, FlowNo, Match, Reassembly, Refused, Verdict};
use crate::frame::Mac;
use crate::share::pool::{Crowd, Pool};
use crate::share::{Cost, Share};
use crate::template::Template;

/// The datapath between rings and NIC. See the module.
pub struct Turn {
    scheduler: Scheduler,
    programs: Programs,
    bells: Bells,
    flows: Vec<Option<Flow>>,
    demux: Demux,
    cost: Cost,
    pool: Pool,
    /// A receiving flow runs low on its receive budget; reset by [`Turn::charge`].
    short: bool,
    /// Flows that cannot pay for received packets, with the end of that time.
    shut: Vec<(FlowNo, Instant)>,
    /// Flows whose rings moved in this iteration.
    touched: Vec<u32>,
    /// Programs to notify.
    to_ring: Vec<ProgramNo>,
    /// Flows with news.
    news: Vec<u32>,
    /// How many of `news` were handled.
    looked: usize,
    /// Packets that leave in this iteration, in order.
    departures: Vec<Leaves>,
    broken: Vec<(ProgramNo, ProtocolViolation)>,
    /// Programs whose doorbells to ignore, with the end of that time.
    muted: Vec<(ProgramNo, Instant)>,
    expelled: Vec<Expelled>,
    /// Frames handed to the NIC and not yet completed, oldest first, for flows that track departure
    /// times: (flow, bytes). If the NIC never completes all, all but the last [`HELD`] count as
    /// sent.
    leaving: Vec<(FlowId, u64)>,
    /// The latest time for all of `leaving` to leave without a violated contract.
    leaves: Instant,
    /// Packets are returned unsent while this is false.
    link_is_up: bool,
    totals: Totals,
}

/// A packet that leaves in this iteration.
struct Leaves {
    departure: Departure,
    head: Record,
    /// When the scheduler got it.
    since: Instant,
}

impl Turn {
    /// A datapath without programs, for a link with these parameters and this address.
    pub fn new(wire: Wire, mac: Mac) -> Result<Turn, SchedulerError> {
        Ok(Turn {
            scheduler: Scheduler::with_capacity(wire, UNMOVED)?,
            programs: Programs::default(),
            bells: Bells::default(),
            flows: Vec::with_capacity(UNMOVED),
            demux: Demux::new(mac),
            cost: Cost::default(),
            pool: Pool::default(),
            short: false,
            shut: Vec::new(),
            touched: Vec::new(),
            to_ring: Vec::new(),
            news: Vec::new(),
            looked: 0,
            departures: Vec::with_capacity(BATCH),
            broken: Vec::new(),
            muted: Vec::new(),
            expelled: Vec::new(),
            leaving: Vec::with_capacity(BATCH),
            leaves: Instant(0),
            link_is_up: true,
            totals: Totals::default(),
        })
    }

    /// Sets the doorbell writer for programs that attach later.
    pub fn ring_by(&mut self, bells: Bells) {
        self.bells = bells;
    }

    /// Reserves a number for a program whose memory is not ready.
    pub fn expect(&mut self) -> ProgramNo {
        self.programs.reserve()
    }

    /// Attaches a program with this memory.
    pub fn attach(&mut self, client: ProgramMemory) -> ProgramNo {
        let number = self.expect();
        self.attach_as(number, client, 0);
        number
    }

    /// Attaches the program with this reserved number, for the user `uid`. False if the number is
    /// not reserved (any more).
    pub fn attach_as(&mut self, number: ProgramNo, client: ProgramMemory, uid: u32) -> bool {
        let program = Program {
            bell: self.bells.bell(client.notifier(), uid),
            client,
            slots: Vec::new(),
            receivers: Crowd::default(),
            calls: Calls::default(),
            rang: false,
            echoes: false,
            news: false,
            expelled: false,
        };
        self.programs.insert(number, program)
    }

    /// A program's memory and doorbells.
    pub fn client(&mut self, program: ProgramNo) -> Option<&mut ProgramMemory> {
        let known = self.programs.get_mut(program)?;
        Some(&mut known.client)
    }

    /// Detaches a program and closes its flows. Returns its memory, which takes long to drop.
    pub fn detach(&mut self, program: ProgramNo, now: Instant) -> Option<ProgramMemory> {
        let theirs: Vec<FlowNo> = self.flows_of(program).collect();
        for flow in theirs {
            self.close(flow, now);
        }
        let mut known = self.programs.remove(program)?;
        // The notification lets the program see that its flows have ended.
        self.bells.ring(&mut known.bell);
        Some(known.client)
    }

    /// Adds an overbooked slice of the link; its members share it by class and contract.
    pub fn insert_server(
        &mut self,
        slice: Slice,
        classes: &[Class],
        now: Instant,
    ) -> Result<FlowId, SchedulerError> {
        self.scheduler.insert_server(slice, classes, now)
    }

    /// Opens a flow of a program. A failure leaves nothing behind.
    pub fn open(
        &mut self,
        program: ProgramNo,
        open: &Open,
        now: Instant,
    ) -> Result<Opened, OpenError> {
        let room = self.reserve(program, open.shape)?;
        self.open_in(program, open, room.prepare(), now)
    }

    /// First step of opening a flow: reserves a place in the program's memory.
    /// [`Reserved::prepare`] follows; it takes long and must not run in the packet thread.
    /// [`Turn::open_in`] completes.
    pub fn reserve(&mut self, program: ProgramNo, shape: Shape) -> Result<Reserved, OpenError> {
        let known = self.programs.get_mut(program);
        let known = known.filter(|known| !known.expelled);
        let known = known.ok_or(OpenError::Gone(program))?;
        Ok(known.client.reserve(shape)?)
    }

    /// Last step of opening a flow. A failure releases the place.
    pub fn open_in(
        &mut self,
        program: ProgramNo,
        open: &Open,
        room: Result<Prepared, Unprepared>,
        now: Instant,
    ) -> Result<Opened, OpenError> {
        self.open_by(program, open, room, now, |scheduler| {
            scheduler.insert(open.service, now)
        })
    }

    /// Opens a flow in a class of an overbooked slice; its contract must be a cell contract.
    pub fn open_member(
        &mut self,
        program: ProgramNo,
        open: &Open,
        (server, class): (FlowId, usize),
        now: Instant,
    ) -> Result<Opened, OpenError> {
        let room = self.reserve(program, open.shape)?.prepare();
        self.open_by(program, open, room, now, |scheduler| match open.service {
            Service::Cell(cell) => scheduler.insert_member(server, class, cell, now),
            _ => Err(SchedulerError::WrongKind(server)),
        })
    }

    fn open_by(
        &mut self,
        program: ProgramNo,
        open: &Open,
        room: Result<Prepared, Unprepared>,
        now: Instant,
        insert: impl FnOnce(&mut Scheduler) -> Result<FlowId, SchedulerError>,
    ) -> Result<Opened, OpenError> {
        let known = self.programs.get_mut(program);
        let known = known.ok_or(OpenError::Gone(program))?;
        let room = match room {
            Ok(room) => room,
            Err(Unprepared { location, why }) => {
                known.client.vacate(location);
                return Err(why.into());
            }
        };
        let place = room.location();
        let ready = match (known.expelled, Template::new(&open.sender)) {
            (true, _) => Err(OpenError::Gone(program)),
            (false, template) => template.map_err(OpenError::from),
        };
        let ready = ready.and_then(|template| Ok((template, insert(&mut self.scheduler)?)));
        let (template, id) = match ready {
            Ok(ready) => ready,
            Err(why) => {
                known.client.vacate(place);
                return Err(why);
            }
        };
        let ring = known.client.open_at(room);
        let number = id.index();
        let slot = place.slot as usize;
        if known.slots.len() <= slot {
            known.slots.resize(slot + 1, None);
        }
        known.slots[slot] = Some(number as u32);
        if self.flows.len() <= number {
            self.flows.resize_with(number + 1, || None);
        }
        let tolerance = open.service.tolerance();
        let share = open.share.map(|share| self.pool.member(share));
        let mut flow = Flow::new(id, program, ring, template, tolerance, share);
        flow.fits(self.scheduler.longest(id));
        self.flows[number] = Some(flow);
        let flow = FlowNo(number as u32);
        match self.claim(flow, open) {
            Ok(()) => Ok(Opened { flow, place }),
            Err(why) => {
                let closed = self.close(flow, now);
                if let Some(retired) = closed.and_then(|closed| closed.retired) {
                    self.reuse(program, retired.clear());
                }
                Err(why.into())
            }
        }
    }

    fn claim(&mut self, flow: FlowNo, open: &Open) -> Result<(), Refused> {
        self.demux.insert(flow, open.reassembly)?;
        open.matches
            .iter()
            .try_for_each(|what| self.demux.claim(flow, what))
    }

    /// Closes a flow and drops its unsent packets.
    pub fn close(&mut self, flow: FlowNo, now: Instant) -> Option<Closed> {
        let known = self.flows.get_mut(flow.0 as usize)?.take()?;
        let received = self.demux.remove(flow);
        // The flow exists, so the scheduler has it.
        let _ = self.scheduler.remove(known.id, now);
        let program = self.programs.get_mut(known.program);
        let retired = program.map(|program| {
            program.slots[known.ring.slot() as usize] = None;
            program.client.retire(known.ring)
        });
        Some(Closed {
            counters: known.counters.beside(received),
            retired,
        })
    }

    /// Releases the place of a closed flow for reuse.
    pub fn reuse(&mut self, program: ProgramNo, cleared: Cleared) {
        if let Some(client) = self.client(program) {
            client.reuse(cleared);
        }
    }

    /// Sets a flow's source address, next hop and longest frame. Without a next hop, packets of a
    /// flow that does not set its own come back unsent.
    pub fn readdress(&mut self, flow: FlowNo, mac: Mac, next_hop: Option<Mac>, longest: usize) {
        if let Some(Some(flow)) = self.flows.get_mut(flow.0 as usize) {
            flow.readdress(mac, next_hop, longest);
        }
    }

    /// Sets the link's Ethernet address.
    pub fn set_mac(&mut self, mac: Mac) {
        self.demux.set_mac(mac);
    }

    /// Sets whether the link is up. While it is down, packets come back unsent, at the pace of
    /// their contracts.
    pub fn set_link(&mut self, is_up: bool) {
        self.link_is_up = is_up;
    }

    /// The sums over all flows.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Changes a flow's contract.
    pub fn change(
        &mut self,
        flow: FlowNo,
        service: Service,
        now: Instant,
    ) -> Result<(), SchedulerError> {
        let Some(Some(known)) = self.flows.get_mut(flow.0 as usize) else {
            return Ok(());
        };
        self.scheduler.change(known.id, service, now)?;
        known.tolerance = service.tolerance();
        known.fits(self.scheduler.longest(known.id));
        Ok(())
    }

    /// Changes the link's parameters.
    pub fn rewire(&mut self, wire: Wire) -> Result<(), SchedulerError> {
        self.scheduler.set_wire(wire)
    }

    /// A flow's counters.
    pub fn counters(&self, flow: FlowNo) -> Option<Counters> {
        let known = self.flows.get(flow.0 as usize)?.as_ref()?;
        Some(known.counters.beside(self.demux.counters_of(flow)))
    }

    /// How many chunks of a flow the driver holds, and how many its program.
    pub fn balance(&self, flow: FlowNo) -> Option<Balance> {
        let known = self.flows.get(flow.0 as usize)?.as_ref()?;
        Some(known.ring.balance())
    }

    /// The classifier of received frames.
    pub fn demux(&mut self) -> &mut Demux {
        &mut self.demux
    }

    /// Whether [`Turn::poll_expelled`] would return a program.
    pub fn has_expelled(&self) -> bool {
        !self.expelled.is_empty()
    }

    /// The next program that violated the protocol, with the violation.
    pub fn poll_expelled(&mut self) -> Option<Expelled> {
        self.expelled.pop()
    }

    /// Reads the programs' submissions and sends due packets, at most [`BATCH`]. The caller then
    /// flushes the NIC, calls [`Turn::left`], and calls [`Turn::publish`], which notifies programs
    /// and takes long.
    pub fn transmit(&mut self, card: &mut impl Card, now: Instant) -> Next {
        if self.leaving.len() > 2 * HELD {
            self.have_left(self.leaving.len() - HELD, now);
        }
        self.look(now);
        let room = match self.link_is_up {
            true => card.room(),
            false => BATCH,
        };
        for _ in 0..room.min(BATCH) {
            if !self.choose(now) {
                break;
            }
        }
        self.send(card, now);
        self.show();
        match self.scheduler.poll_timeout() {
            _ if self.looked < self.news.len() => Next::Again,
            Some(at) if at <= now && room == 0 => Next::Full,
            Some(at) if at <= now => Next::Again,
            Some(at) => Next::Wait(at),
            None => Next::Idle,
        }
    }

    /// The NIC has sent all frames; `at` returns the time. If that is later than a contract
    /// tolerates, its flow continues from then and not from the planned time. True if a packet with
    /// a departure time was among them.
    #[inline]
    pub fn left(&mut self, at: impl FnOnce() -> Instant) -> bool {
        if self.leaving.is_empty() {
            return false;
        }
        self.have_left(self.leaving.len(), at());
        true
    }

    /// The first `count` packets of `leaving` have left by `at`.
    #[inline]
    fn have_left(&mut self, count: usize, at: Instant) {
        if at > self.leaves {
            self.delayed(count, at);
        }
        self.leaving.drain(..count);
    }

    #[cold]
    fn delayed(&mut self, count: usize, at: Instant) {
        let left = &mut self.leaving[..count];
        left.sort_unstable_by_key(|(flow, _)| flow.index());
        for of_one in left.chunk_by(|one, next| one.0 == next.0) {
            let bytes = Bytes(of_one.iter().map(|(_, bytes)| bytes).sum());
            // A flow that was closed meanwhile sends nothing more.
            let _ = self.scheduler.handle_late_departure(of_one[0].0, bytes, at);
        }
    }

    /// Publishes moved ring indices, while they are in the cache: after the flush, with many flows,
    /// all of them would come from memory again.
    fn show(&mut self) {
        while let Some(number) = self.touched.pop() {
            if let Some(Some(flow)) = self.flows.get_mut(number as usize)
                && flow.publish()
                && let Some(program) = self.programs.get_mut(flow.program)
            {
                if flow.brought() {
                    program.calls.brought();
                }
                if !std::mem::replace(&mut program.news, true) {
                    self.to_ring.push(flow.program);
                }
            }
        }
    }

    /// Publishes moved ring indices, notifies programs that sleep, and disconnects those that
    /// violated the protocol. Call this after sending and receiving.
    pub fn publish(&mut self) {
        self.show();
        // Once per program: checking whether a program sleeps takes longer than publishing.
        while let Some(number) = self.to_ring.pop() {
            if let Some(program) = self.programs.get_mut(number) {
                program.news = false;
                self.bells.ring(&mut program.bell);
            }
        }
        while let Some((program, breach)) = self.broken.pop() {
            let known = self.programs.get_mut(program);
            let Some(known) = known.filter(|known| !known.expelled) else {
                continue;
            };
            known.expelled = true;
            known.client.mark_disconnected(&breach);
            self.bells.strike(&mut known.bell);
            for number in known.slots.iter().flatten() {
                if let Some(Some(flow)) = self.flows.get_mut(*number as usize) {
                    flow.silence();
                }
            }
            self.expelled.push(Expelled { program, breach });
        }
    }

    /// The attached programs.
    pub fn programs(&self) -> impl Iterator<Item = ProgramNo> {
        self.programs.numbers()
    }

    /// How many packets of flows that track departure times are not known to have left.
    #[cfg(test)]
    pub(crate) fn under_way(&self) -> usize {
        self.leaving.len()
    }

    /// Panics if the state contradicts itself. For tests; linear in everything.
    pub fn invariants(&self) {
        self.scheduler.invariants();
        self.demux.invariants();
        for (number, flow) in self.flows.iter().enumerate() {
            let Some(flow) = flow else { continue };
            flow.invariants();
            let program = self.programs.get(flow.program);
            let slots = &program.expect("a flow has its program").slots;
            assert_eq!(
                slots[flow.ring.slot() as usize],
                Some(number as u32),
                "its slot"
            );
        }
    }

    /// Finds a head for each flow with news and without a head.
    fn look(&mut self, now: Instant) {
        if self.looked == self.news.len() {
            self.looked = 0;
            self.ask(now);
        }
        let news = std::mem::take(&mut self.news);
        let until = news.len().min(self.looked + NEWS);
        for at in self.looked..until {
            if let Some(Some(flow)) =
                ahead(&news, at, NEAR).and_then(|number| self.flows.get(number))
            {
                flow.ring.prefetch();
            }
            if let Some(flow) = ahead(&news, at, FAR).and_then(|number| self.flows.get(number)) {
                prefetch::whole(flow);
            }
            let number = news[at];
            let Some(Some(flow)) = self.flows.get_mut(number as usize) else {
                continue;
            };
            if flow.head.is_some() || flow.is_silent() {
                continue;
            }
            if flow.touch() {
                self.touched.push(number);
            }
            if let Err(breach) = flow.find_head(&mut self.scheduler, now) {
                self.broken.push((flow.program, breach));
            }
        }
        (self.news, self.looked) = (news, until);
    }

    /// Collects the flows with news.
    fn ask(&mut self, now: Instant) {
        let Turn { news, programs, .. } = self;
        news.clear();
        for program in programs.iter().filter(|program| program.is_heard(now)) {
            program.client.take_notices(|slot| {
                news.extend(program.slots.get(slot as usize).copied().flatten());
            });
        }
    }

    /// Chooses the next departing head, and makes the record behind it the new head. False if no
    /// head is due.
    fn choose(&mut self, now: Instant) -> bool {
        let Turn {
            scheduler,
            flows,
            touched,
            broken,
            departures,
            ..
        } = self;
        let mut behind = None;
        let departure = scheduler.poll(now, |id: FlowId| {
            let slot = flows.get_mut(id.index())?;
            prefetch::whole(slot);
            let flow = slot.as_mut()?;
            if flow.is_silent() {
                return None;
            }
            match flow.next_record() {
                Ok(record) => behind = record,
                Err(breach) => broken.push((flow.program, breach)),
            }
            // The record arrived while the one before it waited, at an unknown time: its message
            // must not count as later than that.
            behind
                .as_ref()
                .map(|record| flow.packet(record, Instant(0)))
        });
        let Some(departure) = departure else {
            return false;
        };
        let number = departure.flow.index();
        let Some(Some(flow)) = flows.get_mut(number) else {
            return true;
        };
        if flow.is_silent() {
            flow.head = None;
            return true;
        }
        flow.ring.prefetch();
        if flow.touch() {
            touched.push(number as u32);
        }
        if let Some(head) = flow.follow(behind) {
            flow.ring.prefetch_read(&head);
            let since = std::mem::replace(&mut flow.since, now);
            departures.push(Leaves {
                departure,
                head,
                since,
            });
        }
        true
    }

    /// Sends the chosen packets.
    fn send(&mut self, card: &mut impl Card, now: Instant) {
        for Leaves {
            departure,
            head,
            since,
        } in self.departures.drain(..)
        {
            let Some(Some(flow)) = self.flows.get_mut(departure.flow.index()) else {
                continue;
            };
            let bytes = head.bytes() as u64;
            if flow.send(
                head,
                since,
                self.link_is_up.then_some(&mut *card),
                &departure,
            ) {
                self.totals.sent += 1;
                self.totals.sent_bytes += bytes;
                if let Some(by) = flow.leaves_by(departure.eligible, now) {
                    self.leaves = match self.leaving.is_empty() {
                        true => by,
                        false => by.min(self.leaves),
                    };
                    // The scheduler's length: a short packet counts as the shortest.
                    self.leaving.push((departure.flow, departure.length.0));
                }
            }
        }
    }

    fn flows_of(&self, program: ProgramNo) -> impl Iterator<Item = FlowNo> {
        let slots = self.programs.get(program).map(|program| &program.slots);
        slots
            .into_iter()
            .flatten()
            .flatten()
            .map(|number| FlowNo(*number))
    }
}

/// The flow `places` entries ahead.
fn ahead(flows: &[u32], at: usize, places: usize) -> Option<usize> {
    flows.get(at + places).map(|number| *number as usize)
}

/// No NIC holds more frames at once.
pub const HELD: usize = 2048;
/// How far ahead a flow's rings are prefetched, and how far the flow, which has their addresses.
const NEAR: usize = 4;
const FAR: usize = 8;
/// Most packets per iteration. Between iterations the kernel's memory falls out of the cache: with
/// twice the kernel's batch a packet takes 10 % less time, with four times no less than that, and
/// all other flows would wait longer.
pub const BATCH: usize = 64;
/// Most flows with news per iteration. Later iterations handle the others.
pub const NEWS: usize = 128;

#[cfg(test)]
mod tests;

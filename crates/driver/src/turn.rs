//! The driver's turn: rings → schedule → copy and check → transmit; and received frames → flow → charge → copy.
//!
//! A [`Turn`] owns everything between the programs' rings and the card, and is a function of these and of the time that the caller
//! passes: it sleeps nowhere and asks no clock, so tests drive it without a card.
//!
//! ```text
//!  notices ─▶ the head of a flow without one ─▶ scheduler ─▶ the head that leaves ─▶ the card's frame ─▶ template ─▶ sent
//!                        ▲                          │                                                      └──────▶ forbidden
//!                        └── what stands behind it ─┘
//! ```
//! - Of each flow one record is known to the scheduler, its head; the others stay in the ring.
//! - The head is copied when it leaves, and judged in the copy.
//! - A record comes back with what became of it, in the same turn. What was forbidden has used its time on the link all the
//!   same: it is the flow's own loss.
//! - A program that breaks a rule of the ring is expelled with all its flows: from then on nothing of it is looked at.
//!   [`Turn::poll_expelled`] says which, and why; to close its flows and detach it is left to the caller, since it may have many.
//! - What is decided to leave now leaves a moment later, and if the caller was stopped in between, much later. [`Turn::left`] says when
//!   it did, so that what comes after it does not follow too soon.
//! - Work is bounded: [`BATCH`] packets a turn, and [`NEWS`] flows that are looked at. A record that can never be sent (it is too long) waits
//!   for its time on the link as one that is forbidden does, so a program has no more of them looked at than it may send.
//! - With tens of thousands of flows nearly all of the time would be waiting for memory. So which flows are looked at next, and which
//!   packets leave in this turn, is known before it is done, and what it takes is fetched.

mod calls;
mod flow;
mod programs;
mod receive;

use netnice_core::contract::Slice;
use netnice_core::prefetch;
use netnice_core::sched::{Class, Departure, FlowId, Misuse, Packet, Scheduler, Service, Wire};
use netnice_core::units::{Bytes, Instant, Nanos};
use netnice_ring::breach::Breach;
use netnice_ring::driver::{Cleared, Client, Loss, Prepared, Reserved, Retired, Taken, Unprepared};
use netnice_ring::layout::{Place, SetupError, Shape};
use netnice_ring::ledger::Balance;
use netnice_ring::record::{Record, Status};

use calls::Calls;
pub use flow::{Counters, LATENESS, Open, Opened};
use flow::{Flow, Handed, UNMOVED};
pub use programs::ProgramNo;
use programs::Programs;

use crate::bells::{Bell, Bells};
use crate::demux::{Demux, FlowNo, Match, Reassembly, Refused, Verdict};
use crate::frame::Mac;
use crate::share::pool::{Crowd, Pool};
use crate::share::{Cost, Share};
use crate::template::{BadSender, Checked, Forbidden, Template};

/// Where packets leave: an interface, or what a test has in its place.
pub trait Card {
    /// How many frames it takes now.
    fn room(&mut self) -> usize;

    /// One frame: `write` fills it, and what it returns is sent. Nothing if there is no room.
    fn send<F>(&mut self, write: F) -> Option<Result<(), Forbidden>>
    where
        F: for<'a> FnOnce(&'a mut [u8]) -> Result<Checked<'a>, Forbidden>;
}

/// Why a flow cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No such program.
    #[error("program {} is gone", .0.0)]
    Gone(ProgramNo),
    /// Its memory.
    #[error(transparent)]
    Memory(#[from] SetupError),
    /// Its contract.
    #[error(transparent)]
    Contract(#[from] Misuse),
    /// What it is to send.
    #[error(transparent)]
    Sender(#[from] BadSender),
    /// What it is to receive.
    #[error(transparent)]
    Match(#[from] Refused),
}

/// What the caller does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// There may be more to do at once.
    Again,
    /// The same, but the card has no room for it now.
    Full,
    /// Nothing until then, unless a program submits something.
    Wait(Instant),
    /// Nothing until a program submits something.
    Idle,
}

impl Next {
    /// The same, but the card has not taken all that it was given, and is to be asked again then.
    #[must_use]
    pub fn or_full(self, then: Instant) -> Next {
        match self {
            Next::Again => Next::Again,
            Next::Wait(at) if at <= then => Next::Wait(at),
            Next::Full | Next::Wait(_) | Next::Idle => Next::Full,
        }
    }
}

/// The driver between rings and card. See the module.
pub struct Turn {
    scheduler: Scheduler,
    programs: Programs,
    bells: Bells,
    flows: Vec<Option<Flow>>,
    demux: Demux,
    cost: Cost,
    pool: Pool,
    /// A flow that received has little left of its share, since somebody asked.
    short: bool,
    /// Flows that can pay for nothing until then.
    shut: Vec<(FlowNo, Instant)>,
    /// Flows whose rings moved in this turn.
    touched: Vec<u32>,
    /// Programs that are to be rung.
    to_ring: Vec<ProgramNo>,
    /// Flows that are to be looked at.
    news: Vec<u32>,
    /// How many of them were.
    looked: usize,
    /// What leaves in this turn, in order.
    departures: Vec<Leaves>,
    broken: Vec<(ProgramNo, Breach)>,
    /// Whose doorbells are not to be heard until then.
    muted: Vec<(ProgramNo, Instant)>,
    expelled: Vec<Expelled>,
    /// What was given to the card and has not left as far as is known, of flows that care, in order: whose, and how many bytes. A card
    /// that is never done with all is believed about all but the last [`HELD`].
    leaving: Vec<(FlowId, u64)>,
    /// By when all of it must have left for no contract to be broken by the delay.
    leaves: Instant,
    /// Packets go nowhere while it is false.
    link_is_up: bool,
    totals: Totals,
}

/// What all flows have done together, those that are closed too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Packets that were handed to the card.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Packets that programs got.
    pub delivered: u64,
    /// Their bytes.
    pub delivered_bytes: u64,
}

/// A flow that was closed.
pub struct Closed {
    /// What was counted of it.
    pub counters: Counters,
    /// Its pages, if its program is still there. They are its program's again by [`Turn::reuse`].
    pub retired: Option<Retired>,
}

/// A program that broke a rule. It is there, deaf and mute, until it is detached.
#[derive(Clone, Copy, Debug)]
pub struct Expelled {
    /// Which.
    pub program: ProgramNo,
    /// The rule, and how.
    pub breach: Breach,
}

/// A packet that leaves in this turn.
struct Leaves {
    departure: Departure,
    head: Record,
    /// When the scheduler was told of it.
    since: Instant,
}

/// A program, and which of its slots is which flow.
struct Program {
    client: Client,
    bell: Bell,
    slots: Vec<Option<u32>>,
    /// Flows of it that received something lately.
    receivers: Crowd,
    /// Those for nothing.
    calls: Calls,
    /// It has rung once, so its doorbell is full from then on.
    rang: bool,
    /// The next ring of it may be an old one.
    echoes: bool,
    /// It is to be rung at the end of the turn.
    news: bool,
    /// It broke a rule.
    expelled: bool,
}

impl Turn {
    /// A turn without programs, for a link of this rate and address.
    pub fn new(wire: Wire, mac: Mac) -> Result<Turn, Misuse> {
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

    /// Rings so from now on, for programs that come later.
    pub fn ring_by(&mut self, bells: Bells) {
        self.bells = bells;
    }

    /// A number for a program whose memory may not be touched yet.
    pub fn expect(&mut self) -> ProgramNo {
        self.programs.reserve()
    }

    /// Another program, whose memory this is.
    pub fn attach(&mut self, client: Client) -> ProgramNo {
        let number = self.expect();
        self.attach_as(number, client, 0);
        number
    }

    /// The program that was expected by this number, of this user. False if it is not expected (any more).
    pub fn attach_as(&mut self, number: ProgramNo, client: Client, uid: u32) -> bool {
        let program = Program {
            bell: self.bells.bell(client.ringer(), uid),
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
    pub fn client(&mut self, program: ProgramNo) -> Option<&mut Client> {
        let known = self.programs.get_mut(program)?;
        Some(&mut known.client)
    }

    /// A program ends, and with it its flows. To drop what is left of it takes long, and is the caller's to do.
    pub fn detach(&mut self, program: ProgramNo, now: Instant) -> Option<Client> {
        let theirs: Vec<FlowNo> = self.flows_of(program).collect();
        for flow in theirs {
            self.close(flow, now);
        }
        let mut known = self.programs.remove(program)?;
        // It sees that its flows have ended.
        self.bells.ring(&mut known.bell);
        Some(known.client)
    }

    /// An overbooked slice of the link, whose members share it by class and contract.
    pub fn insert_server(
        &mut self,
        slice: Slice,
        classes: &[Class],
        now: Instant,
    ) -> Result<FlowId, Misuse> {
        self.scheduler.insert_server(slice, classes, now)
    }

    /// A flow of a program. Nothing is left of it where this fails.
    pub fn open(
        &mut self,
        program: ProgramNo,
        open: &Open,
        now: Instant,
    ) -> Result<Opened, OpenError> {
        let room = self.reserve(program, open.shape)?;
        self.open_in(program, open, room.prepare(), now)
    }

    /// The first part of it: a place in the program's memory. To [`Reserved::prepare`] it takes long, and is not for the thread
    /// that sends; [`Turn::open_in`] follows.
    pub fn reserve(&mut self, program: ProgramNo, shape: Shape) -> Result<Reserved, OpenError> {
        let known = self.programs.get_mut(program);
        let known = known.filter(|known| !known.expelled);
        let known = known.ok_or(OpenError::Gone(program))?;
        Ok(known.client.reserve(shape)?)
    }

    /// The last part of it. The place is free again where this fails.
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

    /// A flow in a class of an overbooked slice; its contract is a cell's.
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
            _ => Err(Misuse::OtherKind(server)),
        })
    }

    fn open_by(
        &mut self,
        program: ProgramNo,
        open: &Open,
        room: Result<Prepared, Unprepared>,
        now: Instant,
        insert: impl FnOnce(&mut Scheduler) -> Result<FlowId, Misuse>,
    ) -> Result<Opened, OpenError> {
        let known = self.programs.get_mut(program);
        let known = known.ok_or(OpenError::Gone(program))?;
        let room = match room {
            Ok(room) => room,
            Err(Unprepared { place, why }) => {
                known.client.vacate(place);
                return Err(why.into());
            }
        };
        let place = room.place();
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

    /// A flow ends; what it has not sent is not sent.
    pub fn close(&mut self, flow: FlowNo, now: Instant) -> Option<Closed> {
        let known = self.flows.get_mut(flow.0 as usize)?.take()?;
        let received = self.demux.remove(flow);
        // It is there, so the scheduler knows it.
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

    /// The place of a closed flow may be another's.
    pub fn reuse(&mut self, program: ProgramNo, cleared: Cleared) {
        if let Some(client) = self.client(program) {
            client.reuse(cleared);
        }
    }

    /// Frames of a flow go to another station (none: to nobody), come from another one, or may be of another length.
    pub fn readdress(&mut self, flow: FlowNo, mac: Mac, next_hop: Option<Mac>, longest: usize) {
        if let Some(Some(flow)) = self.flows.get_mut(flow.0 as usize) {
            flow.readdress(mac, next_hop, longest);
        }
    }

    /// The link has another address.
    pub fn set_mac(&mut self, mac: Mac) {
        self.demux.set_mac(mac);
    }

    /// Whether the link is up. While it is not, packets come back unsent, at the pace of their contracts.
    pub fn set_link(&mut self, is_up: bool) {
        self.link_is_up = is_up;
    }

    /// What all flows have done together.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Another contract for a flow.
    pub fn change(&mut self, flow: FlowNo, service: Service, now: Instant) -> Result<(), Misuse> {
        let Some(Some(known)) = self.flows.get_mut(flow.0 as usize) else {
            return Ok(());
        };
        self.scheduler.change(known.id, service, now)?;
        known.tolerance = service.tolerance();
        known.fits(self.scheduler.longest(known.id));
        Ok(())
    }

    /// Another rate of the link.
    pub fn rewire(&mut self, wire: Wire) -> Result<(), Misuse> {
        self.scheduler.rewire(wire)
    }

    /// What was counted of a flow.
    pub fn counters(&self, flow: FlowNo) -> Option<Counters> {
        let known = self.flows.get(flow.0 as usize)?.as_ref()?;
        Some(known.counters.beside(self.demux.counters_of(flow)))
    }

    /// How many chunks of a flow the driver has, and how many its program.
    pub fn balance(&self, flow: FlowNo) -> Option<Balance> {
        let known = self.flows.get(flow.0 as usize)?.as_ref()?;
        Some(known.ring.balance())
    }

    /// The table of who receives what.
    pub fn demux(&mut self) -> &mut Demux {
        &mut self.demux
    }

    /// Whether there is somebody to [`Turn::poll_expelled`].
    pub fn has_expelled(&self) -> bool {
        !self.expelled.is_empty()
    }

    /// A program that was expelled, and the rule that it broke.
    pub fn poll_expelled(&mut self) -> Option<Expelled> {
        self.expelled.pop()
    }

    /// Looks at what the programs submitted, and gives the card what is due: at most [`BATCH`] packets. The caller flushes the card,
    /// calls [`Turn::left`], and then [`Turn::publish`], which wakes programs: that takes long.
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

    /// The card has sent all that it was given, and `at` says when. Where that was later than a contract tolerates, its flow goes on from
    /// then, and not from when it was to leave. True if there was a packet that was to leave at a moment.
    #[inline]
    pub fn left(&mut self, at: impl FnOnce() -> Instant) -> bool {
        if self.leaving.is_empty() {
            return false;
        }
        self.have_left(self.leaving.len(), at());
        true
    }

    /// The first of those that are leaving have left by then.
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
            // A flow that is closed meanwhile sends nothing more.
            let _ = self.scheduler.delayed(of_one[0].0, bytes, at);
        }
    }

    /// Shows the programs what moved. While it is at hand: behind the flush, of many flows, all of it would come from memory once more.
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

    /// Shows the programs what moved, wakes those that sleep, and expels those that broke a rule: after sending and receiving.
    pub fn publish(&mut self) {
        self.show();
        // Once for each program: to look whether it sleeps takes longer than to publish.
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
            known.client.condemn(&breach);
            self.bells.strike(&mut known.bell);
            for number in known.slots.iter().flatten() {
                if let Some(Some(flow)) = self.flows.get_mut(*number as usize) {
                    flow.silence();
                }
            }
            self.expelled.push(Expelled { program, breach });
        }
    }

    /// The programs.
    pub fn programs(&self) -> impl Iterator<Item = ProgramNo> {
        self.programs.numbers()
    }

    /// How many packets of flows that care are not known to have left.
    #[cfg(test)]
    pub(crate) fn under_way(&self) -> usize {
        self.leaving.len()
    }

    /// Panics if it contradicts itself. For tests; linear in everything.
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

    /// Flows that have something new and had no head: their heads become known.
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
                flow.ring.soon();
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

    /// Which flows are to be looked at.
    fn ask(&mut self, now: Instant) {
        let Turn { news, programs, .. } = self;
        news.clear();
        for program in programs.iter().filter(|program| program.is_heard(now)) {
            program.client.take_notices(|slot| {
                news.extend(program.slots.get(slot as usize).copied().flatten());
            });
        }
    }

    /// Takes the head whose turn it is, and puts what stands behind it in its place. False if it is nobody's turn.
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
            // It came while the one before it waited, nobody saw when: its message may not count as later than that.
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
        flow.ring.soon();
        if flow.touch() {
            touched.push(number as u32);
        }
        if let Some(head) = flow.follow(behind) {
            flow.ring.soon_read(&head);
            let since = std::mem::replace(&mut flow.since, now);
            departures.push(Leaves {
                departure,
                head,
                since,
            });
        }
        true
    }

    /// Sends what was chosen.
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
                    // As the scheduler was told: what is short counts as the shortest packet.
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

/// The one that comes so many places after this one.
fn ahead(flows: &[u32], at: usize, places: usize) -> Option<usize> {
    flows.get(at + places).map(|number| *number as usize)
}

/// No card holds more frames than this at once.
pub const HELD: usize = 2048;
/// How far ahead a flow's rings are fetched, and how far it is itself, which says where they are.
const NEAR: usize = 4;
const FAR: usize = 8;
/// How many packets leave in one turn, where so many are due. After a turn the kernel's own memory has to be fetched again: with twice
/// what it sends at once a packet takes it 10 % less time, with four times no less, and all others would wait longer.
pub const BATCH: usize = 64;
/// How many flows that have something new are looked at in one turn. The others' notices stay, or what was taken of them does.
pub const NEWS: usize = 128;

#[cfg(test)]
mod tests;

//! The vocabulary of the scheduler's tests.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

pub(super) use netnice_cases::cases;

use crate::contract::{self, Bucket, Sustained, Weight};
use crate::sched::{Departure, FlowId, Packet, Scheduler, Service, Turn, Wire};
use crate::units::{Bytes, Instant, Nanos, Rate};

pub(super) fn mbit(rate: u64) -> Rate {
    Rate::new(rate * 1_000_000).unwrap()
}

pub(super) fn weight(weight: u16) -> Weight {
    Weight::new(weight).unwrap()
}

pub(super) fn cell(pcr: Rate, cdvt: Nanos) -> contract::Cell {
    contract::Cell::new(pcr, cdvt, None).unwrap()
}

pub(super) fn bucket(
    pcr: Rate,
    cdvt: Nanos,
    scr: Rate,
    mbs: u64,
    bucket: Bucket,
) -> contract::Cell {
    let sustained = Sustained {
        scr,
        mbs: Bytes(mbs),
        bucket,
    };
    contract::Cell::new(pcr, cdvt, Some(sustained)).unwrap()
}

pub(super) fn slice(slice: Nanos, period: Nanos, extra: bool) -> Service {
    Service::Slice {
        slice: contract::Slice::new(slice, period, extra).unwrap(),
        weight: Weight::default(),
    }
}

pub(super) fn ms(millis: u64) -> Nanos {
    Nanos::from_millis(millis)
}

pub(super) fn us(micros: u64) -> Nanos {
    Nanos::from_micros(micros)
}

/// Where a flow's packets come from.
#[derive(Clone, Debug)]
enum Source {
    /// What was offered.
    Queue(VecDeque<Packet>),
    /// Always one more of this length.
    Greedy(u64),
}

/// A link in virtual time. Where it is `careful` its invariants are looked at whatever is done to it.
pub(super) struct World {
    pub(super) link: Scheduler,
    pub(super) now: u64,
    sources: Vec<Source>,
    pub(super) sent: Vec<Departure>,
    /// Packets that were put in a queue, and that are in one.
    pub(super) offered: usize,
    /// Look at all invariants after each step (linear in everything).
    pub(super) careful: bool,
}

impl World {
    pub(super) fn new(wire: Wire) -> World {
        World {
            link: Scheduler::new(wire).unwrap(),
            now: 0,
            sources: Vec::new(),
            sent: Vec::new(),
            offered: 0,
            careful: false,
        }
    }

    pub(super) fn flow(&mut self, service: Service) -> FlowId {
        let flow = self.link.insert(service, Instant(self.now)).unwrap();
        self.note(flow)
    }

    /// A flow that the link has; its queue is empty.
    pub(super) fn note(&mut self, flow: FlowId) -> FlowId {
        if flow.index() == self.sources.len() {
            self.sources.push(Source::Queue(VecDeque::new()));
        }
        self.sources[flow.index()] = Source::Queue(VecDeque::new());
        flow
    }

    /// A packet comes now.
    pub(super) fn offer(&mut self, flow: FlowId, packet: Packet) {
        self.offered += 1;
        let Source::Queue(queue) = &mut self.sources[flow.index()] else {
            panic!("{flow} is greedy");
        };
        queue.push_back(packet);
        if queue.len() == 1 {
            let now = Instant(self.now);
            self.link.handle_head(flow, packet, now).unwrap();
        }
        self.look();
    }

    /// From now on the flow always has a packet of this length.
    pub(super) fn greedy(&mut self, flow: FlowId, length: u64) {
        self.sources[flow.index()] = Source::Greedy(length);
        let packet = Packet::new(Bytes(length));
        self.link
            .handle_head(flow, packet, Instant(self.now))
            .unwrap();
        self.look();
    }

    /// The flow has nothing more to send.
    pub(super) fn quiet(&mut self, flow: FlowId) -> usize {
        let left = self.queued(flow);
        self.sources[flow.index()] = Source::Queue(VecDeque::new());
        self.link.withdraw(flow, Instant(self.now)).unwrap();
        self.look();
        left
    }

    pub(super) fn queued(&self, flow: FlowId) -> usize {
        match &self.sources[flow.index()] {
            Source::Queue(queue) => queue.len(),
            Source::Greedy(_) => 0,
        }
    }

    /// One packet, if there is one now.
    pub(super) fn poll(&mut self) -> Option<Departure> {
        let sources = &mut self.sources;
        let departure =
            self.link
                .poll(Instant(self.now), |flow| match &mut sources[flow.index()] {
                    Source::Greedy(length) => Some(Packet::new(Bytes(*length))),
                    Source::Queue(queue) => {
                        queue.pop_front();
                        queue.front().copied()
                    }
                });
        self.look();
        departure
    }

    /// Time goes on to `until`; what leaves meanwhile is noted.
    pub(super) fn run(&mut self, until: u64) {
        loop {
            while let Some(departure) = self.poll() {
                self.sent.push(departure);
            }
            let Some(next) = self.link.poll_timeout() else {
                break;
            };
            if next.0 > until {
                break;
            }
            self.now = next.0;
        }
        self.now = self.now.max(until);
    }

    /// What a flow sent.
    pub(super) fn sent_by(&self, flow: FlowId) -> impl Iterator<Item = &Departure> {
        self.sent.iter().filter(move |one| one.flow == flow)
    }

    /// How much time of the link a flow got.
    pub(super) fn time_of(&self, flow: FlowId) -> u64 {
        self.sent_by(flow).map(|one| one.end.0 - one.start.0).sum()
    }

    /// How many bytes a flow sent.
    pub(super) fn bytes_of(&self, flow: FlowId) -> u64 {
        self.sent_by(flow).map(|one| one.length.0).sum()
    }

    /// Packets that left later than they had to.
    pub(super) fn misses(&self) -> usize {
        let late = |one: &&Departure| match one.turn {
            Turn::Guaranteed { deadline } | Turn::Shared { deadline } => one.end > deadline,
            Turn::LeftOver | Turn::Early => false,
        };
        self.sent.iter().filter(late).count()
    }

    fn look(&self) {
        if self.careful {
            self.link.invariants();
        }
    }
}

//! Helpers of the scheduler's tests: a link in virtual time, with queues and sources of packets.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

pub(super) use netnice_cases::cases;

use crate::contract::{self, Bucket, Sustained, Weight};
use crate::sched::{Departure, FlowId, Packet, Scheduler, ServedAs, Service, Wire};
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

/// The source of a flow's packets.
#[derive(Clone, Debug)]
enum Source {
    /// The packets that were offered.
    Queue(VecDeque<Packet>),
    /// An endless supply of packets of this length.
    Greedy(u64),
}

/// A link in virtual time, with the sources of its flows.
pub(super) struct Simulation {
    pub(super) link: Scheduler,
    pub(super) now: u64,
    sources: Vec<Source>,
    pub(super) sent: Vec<Departure>,
    /// Number of packets that were offered.
    pub(super) offered: usize,
    /// Whether all invariants are checked after each step (linear in everything).
    pub(super) checks_invariants: bool,
}

impl Simulation {
    pub(super) fn new(wire: Wire) -> Simulation {
        Simulation {
            link: Scheduler::new(wire).unwrap(),
            now: 0,
            sources: Vec::new(),
            sent: Vec::new(),
            offered: 0,
            checks_invariants: false,
        }
    }

    pub(super) fn flow(&mut self, service: Service) -> FlowId {
        let flow = self.link.insert(service, Instant(self.now)).unwrap();
        self.register(flow)
    }

    /// Registers a flow of the link, with an empty queue.
    pub(super) fn register(&mut self, flow: FlowId) -> FlowId {
        if flow.index() == self.sources.len() {
            self.sources.push(Source::Queue(VecDeque::new()));
        }
        self.sources[flow.index()] = Source::Queue(VecDeque::new());
        flow
    }

    /// Offers a packet that arrives now.
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
        self.check();
    }

    /// Gives the flow an endless supply of packets of this length.
    pub(super) fn greedy(&mut self, flow: FlowId, length: u64) {
        self.sources[flow.index()] = Source::Greedy(length);
        let packet = Packet::new(Bytes(length));
        self.link
            .handle_head(flow, packet, Instant(self.now))
            .unwrap();
        self.check();
    }

    /// Ends the flow's supply of packets. Returns the number of packets that were queued.
    pub(super) fn stop(&mut self, flow: FlowId) -> usize {
        let left = self.queued(flow);
        self.sources[flow.index()] = Source::Queue(VecDeque::new());
        self.link.withdraw(flow, Instant(self.now)).unwrap();
        self.check();
        left
    }

    pub(super) fn queued(&self, flow: FlowId) -> usize {
        match &self.sources[flow.index()] {
            Source::Queue(queue) => queue.len(),
            Source::Greedy(_) => 0,
        }
    }

    /// Sends one packet, if one may leave now.
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
        self.check();
        departure
    }

    /// Advances the time to `until`, and records the departures.
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

    /// The departures of a flow.
    pub(super) fn sent_by(&self, flow: FlowId) -> impl Iterator<Item = &Departure> {
        self.sent.iter().filter(move |one| one.flow == flow)
    }

    /// The time of the link that a flow used.
    pub(super) fn time_of(&self, flow: FlowId) -> u64 {
        self.sent_by(flow).map(|one| one.end.0 - one.start.0).sum()
    }

    /// The bytes that a flow sent.
    pub(super) fn bytes_of(&self, flow: FlowId) -> u64 {
        self.sent_by(flow).map(|one| one.length.0).sum()
    }

    /// Number of packets that left after their deadline.
    pub(super) fn misses(&self) -> usize {
        let late = |one: &&Departure| match one.served_as {
            ServedAs::Guaranteed { deadline } | ServedAs::Shared { deadline } => one.end > deadline,
            ServedAs::LeftOver | ServedAs::Early => false,
        };
        self.sent.iter().filter(late).count()
    }

    fn check(&self) {
        if self.checks_invariants {
            self.link.invariants();
        }
    }
}

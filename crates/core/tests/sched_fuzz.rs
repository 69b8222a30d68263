//! A scheduler conserves packets under all operations: in = out + flushed + queued, each flow's
//! packets in order, and every waiting packet is served.
//!
//! A scenario is a hundred thousand random operations on one link: flows of every kind (servers and
//! their members, limits) come, change and go; packets arrive and are flushed; time advances,
//! stands, jumps and goes back; the link gets another rate and longest packet. It begins at 0, at a
//! random time, or just before the end of time. The short form runs with every test. Ten million
//! operations are `cargo test --release -p netnice-core --test sched_fuzz -- --ignored`, part of
//! `cargo xtask long`. The message of a failure names the scenario's seed.

use std::collections::VecDeque;

use netnice_cases::cases;
use netnice_core::contract::{self, Bucket, MessageRate, Sustained, Weight};
use netnice_core::sched::{
    Class, FlowId, Guarantee, Next, Packet, Scheduler, SchedulerError, Service,
};
use netnice_core::sched::{Departure, END_OF_TIME, EarlyOrder, Wire};
use netnice_core::units::{Bytes, Instant, Nanos, Rate};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % end
    }

    fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    /// A number of any order of magnitude up to `digits` binary digits.
    fn any_size(&mut self, digits: u64) -> u64 {
        let digits = 1 + self.below(digits);
        1 + self.below(1 << digits)
    }

    fn rate(&mut self) -> Rate {
        Rate::new(999 + self.any_size(39)).expect("1 kbit/s to 1 Tbit/s")
    }

    fn cell(&mut self) -> contract::Cell {
        let (pcr, cdvt) = (self.rate(), Nanos(self.any_size(34)));
        let bucket = [Bucket::Single, Bucket::Dual][self.below(2) as usize];
        let sustained = Sustained {
            scr: pcr.portion(1 + self.below(99), 100).unwrap_or(pcr),
            mbs: Bytes(LONGEST / 2 + self.any_size(20)),
            bucket,
        };
        let sustained = (!self.one_in(3)).then_some(sustained);
        contract::Cell::new(pcr, cdvt, sustained).expect("a cell contract")
    }

    fn slice(&mut self) -> contract::Slice {
        let period = self.any_size(32).max(1000);
        let part = (period / 1000 * (1 + self.below(999))).max(1);
        let extra = self.one_in(2);
        contract::Slice::new(Nanos(part), Nanos(period), extra).expect("a slice")
    }

    fn channel(&mut self) -> contract::Channel {
        let rmax = MessageRate::new(1 + self.below(100_000) as u32).expect("a rate");
        let bmax = 1 + self.below(8) as u32;
        let deadline = Nanos(self.any_size(36));
        let channel = contract::Channel::new(Bytes(4000), rmax, bmax, deadline).expect("a channel");
        let processing = Nanos(self.below(deadline.0)).min(contract::Channel::MAX_PROCESSING);
        let channel = channel
            .with_processing(processing)
            .expect("below the deadline");
        match self.one_in(2) {
            true => channel.with_overload(contract::Overload::BestEffort),
            false => channel,
        }
    }

    fn service(&mut self) -> Service {
        let weight = Weight::new(1 + self.below(1000) as u16).expect("a weight");
        let max = (self.rate(), Nanos(self.any_size(33)));
        let guarantee = match self.below(4) {
            0 => Guarantee::Cell(self.cell()),
            1 => Guarantee::Channel(self.channel()),
            2 => Guarantee::Slice {
                slice: self.slice(),
                weight,
            },
            _ => {
                return Service::Share {
                    min: self.one_in(2).then(|| self.rate()),
                    max: self.one_in(2).then_some(max),
                    weight,
                };
            }
        };
        match self.one_in(3) {
            true => Service::Limited { guarantee, max },
            false => guarantee.into(),
        }
    }
}

/// The queue of a flow at its owner.
#[derive(Default)]
struct Queue {
    /// The number and the length of each packet.
    packets: VecDeque<(u64, u64)>,
    kind: QueueKind,
    /// The longest packet that its contract allows, and the least value that one of its contracts
    /// or the link had.
    longest: u64,
    least: u64,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum QueueKind {
    #[default]
    Removed,
    Free,
    Server,
    Member,
}

struct Scenario {
    random: Random,
    link: Scheduler,
    now: u64,
    queues: Vec<Queue>,
    /// The flows that exist.
    flows: Vec<FlowId>,
    /// The longest packet of the link.
    longest: u64,
    offered: u64,
    sent: u64,
    flushed: u64,
}

/// The end of time.
const LAST: u64 = END_OF_TIME.0;

impl Scenario {
    fn new(seed: u64) -> Scenario {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let wire = Wire {
            overhead: Bytes(24),
            ahead: Nanos([0, random.any_size(17)][random.below(2) as usize]),
            horizon: Nanos([0, random.any_size(26)][random.below(2) as usize]),
            early: ORDERS[random.below(2) as usize],
            longest: Bytes(LONGEST),
            ..Wire::new(random.rate())
        };
        let now = match seed % 4 {
            0 => LAST - random.any_size(45),
            1 => random.any_size(62),
            _ => 0,
        };
        Scenario {
            link: Scheduler::new(wire).expect("a link"),
            random,
            now,
            queues: Vec::new(),
            flows: Vec::new(),
            longest: LONGEST,
            offered: 0,
            sent: 0,
            flushed: 0,
        }
    }

    fn run(&mut self, operations: u64, check_each: u64) {
        for number in 0..operations {
            self.step();
            if number % check_each == 0 {
                self.check();
            }
        }
        self.check();
    }

    fn check(&self) {
        self.link.invariants();
        let queued: usize = self.queues.iter().map(|queue| queue.packets.len()).sum();
        assert_eq!(self.offered, self.sent + self.flushed + queued as u64);
        // Near the end of time a waiting flow may never be served again.
        if self.link.poll_timeout().is_none() && self.now < LAST / 2 {
            assert_eq!(
                queued, 0,
                "packets are queued and the scheduler waits for nothing"
            );
        }
    }

    fn step(&mut self) {
        let now = Instant(self.now);
        match self.random.below(100) {
            0..3 if self.flows.len() < MAX_FLOWS => {
                let service = self.random.service();
                let flow = self.link.insert(service, now).expect("room");
                self.register(flow, QueueKind::Free, longest(&service));
            }
            3 if self.flows.len() < MAX_FLOWS => self.insert_server_or_member(now),
            4 | 5 => self.with_one(Scenario::remove),
            6..10 => self.with_one(Scenario::change),
            10..45 => self.with_one(Scenario::offer),
            45..48 => self.with_one(Scenario::flush),
            48 => self.set_wire(),
            49 => self.now = self.now.saturating_sub(self.random.any_size(20)),
            50..60 => self.now = self.now.saturating_add(self.random.any_size(30)),
            _ => self.poll(),
        }
    }

    fn register(&mut self, flow: FlowId, kind: QueueKind, longest: u64) {
        if flow.index() == self.queues.len() {
            self.queues.push(Queue::default());
        }
        let queue = &mut self.queues[flow.index()];
        assert!(queue.kind == QueueKind::Removed, "{flow} exists twice");
        let least = longest.min(self.longest);
        (queue.kind, queue.longest, queue.least) = (kind, longest, least);
        self.flows.push(flow);
    }

    fn with_one(&mut self, what: fn(&mut Scenario, FlowId)) {
        if !self.flows.is_empty() {
            let which = self.random.below(self.flows.len() as u64) as usize;
            what(self, self.flows[which]);
        }
    }

    /// Inserts a server, or a member of a server.
    fn insert_server_or_member(&mut self, now: Instant) {
        let is_server = |flow: &&FlowId| self.queues[flow.index()].kind == QueueKind::Server;
        let servers: Vec<FlowId> = self.flows.iter().filter(is_server).copied().collect();
        if servers.len() < 4 {
            let (slice, count) = (self.random.slice(), 1 + self.random.below(8));
            let mut class = || Class {
                min: self.random.one_in(8).then(|| self.random.rate()),
            };
            let classes: Vec<Class> = (0..count).map(|_| class()).collect();
            match self.link.insert_server(slice, &classes, now) {
                Ok(flow) => self.register(flow, QueueKind::Server, LONGEST),
                Err(error) => assert!(is_right_refusal(error, &slice), "{error}"),
            }
            return;
        }
        let server = servers[self.random.below(4) as usize];
        let (class, cell) = (self.random.below(8) as usize, self.random.cell());
        match self.link.insert_member(server, class, cell, now) {
            Ok(flow) => self.register(flow, QueueKind::Member, longest(&Service::Cell(cell))),
            Err(error) => assert_eq!(error, SchedulerError::NoClass { server, class }),
        }
    }

    fn remove(&mut self, flow: FlowId) {
        self.flush(flow);
        match self.link.remove(flow, Instant(self.now)) {
            Ok(()) => {
                self.queues[flow.index()].kind = QueueKind::Removed;
                self.flows.retain(|one| *one != flow);
                let again = self.link.withdraw(flow, Instant(self.now));
                assert_eq!(again, Err(SchedulerError::UnknownFlow(flow)));
            }
            Err(SchedulerError::HasMembers { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }

    fn change(&mut self, flow: FlowId) {
        let service = match self.queues[flow.index()].kind {
            QueueKind::Server => Service::Slice {
                slice: self.random.slice(),
                weight: Weight::default(),
            },
            QueueKind::Member => Service::Cell(self.random.cell()),
            _ => self.random.service(),
        };
        let changed = self.link.change(flow, service, Instant(self.now));
        if let (Err(error), Service::Slice { slice, .. }) = (changed, &service)
            && self.queues[flow.index()].kind == QueueKind::Server
        {
            return assert!(is_right_refusal(error, slice), "{error}");
        }
        changed.expect("a contract of the same kind");
        let queue = &mut self.queues[flow.index()];
        queue.longest = longest(&service);
        queue.least = queue.least.min(queue.longest);
    }

    fn offer(&mut self, flow: FlowId) {
        if self.queues[flow.index()].kind == QueueKind::Server {
            let refused = self
                .link
                .handle_head(flow, Packet::new(Bytes(1)), Instant(self.now));
            return assert_eq!(refused, Err(SchedulerError::IsServer(flow)));
        }
        for _ in 0..=self.random.below(3) {
            let length = 1 + self.random.below(LONGEST);
            let queue = &mut self.queues[flow.index()];
            if queue.packets.is_empty() {
                let packet = packet((self.offered + 1, length), self.now);
                let most = queue.longest.min(self.longest);
                match self.link.handle_head(flow, packet, Instant(self.now)) {
                    Ok(()) => assert!(length <= most, "{length} of {most}"),
                    Err(SchedulerError::TooLong { longest, .. }) if longest.0 < length => {
                        assert_eq!(longest.0, most);
                        continue;
                    }
                    Err(other) => panic!("the queue was empty: {other}"),
                }
            }
            self.offered += 1;
            queue.packets.push_back((self.offered, length));
        }
    }

    fn flush(&mut self, flow: FlowId) {
        let queue = &mut self.queues[flow.index()];
        let had_head = self.link.withdraw(flow, Instant(self.now));
        assert_eq!(had_head, Ok(!queue.packets.is_empty()), "{flow}");
        self.flushed += queue.packets.len() as u64;
        queue.packets.clear();
    }

    fn set_wire(&mut self) {
        let wire = Wire {
            overhead: Bytes(self.random.below(64)),
            ahead: Nanos(self.random.any_size(17)),
            horizon: Nanos([0, self.random.any_size(26)][self.random.below(2) as usize]),
            early: ORDERS[self.random.below(2) as usize],
            longest: Bytes(LONGEST - self.random.below(LONGEST / 4)),
            ..Wire::new(self.random.rate())
        };
        self.link.set_wire(wire).expect("a link");
        self.longest = wire.longest.0;
        // A waiting packet may be longer than the link now carries.
        for queue in &mut self.queues {
            queue.least = queue.least.min(self.longest);
        }
    }

    /// Sends a few packets, or advances the time to the next one.
    fn poll(&mut self) {
        for _ in 0..=self.random.below(4) {
            let (queues, now) = (&self.queues, self.now);
            let mut calls = 0;
            let next = self.link.next(Instant(now), |flow| {
                calls += 1;
                queues[flow.index()]
                    .packets
                    .get(1)
                    .map(|one| packet(*one, now))
            });
            match next {
                Next::Send(departure) => {
                    assert_eq!(calls, 1, "one call for each departure");
                    self.leave(&departure);
                }
                Next::Wait(at) => {
                    // Behind the end of time, time stands still.
                    assert!(
                        calls == 0 && at.0 >= now.min(LAST),
                        "{at:?} is before {now}"
                    );
                    self.now = at.0.max(now);
                }
                Next::Idle => assert_eq!(calls, 0),
            }
        }
    }

    fn leave(&mut self, departure: &Departure) {
        let queue = &mut self.queues[departure.flow.index()];
        assert!(
            queue.kind != QueueKind::Removed,
            "{departure:?} of a removed flow"
        );
        let (_, length) = queue
            .packets
            .pop_front()
            .expect("a packet that was offered");
        // A changed contract, or a changed link, may have a shorter longest packet.
        let least = length.min(queue.least);
        assert!(
            (least..=length).contains(&departure.length.0),
            "{departure:?} of {length}"
        );
        assert!(departure.start <= departure.end && departure.start.0 >= self.now.min(LAST));
        self.sent += 1;
    }
}

/// Whether the refusal of a server's slice is right.
fn is_right_refusal(error: SchedulerError, slice: &contract::Slice) -> bool {
    match error {
        SchedulerError::ServerExtra => slice.extra(),
        SchedulerError::MinimumsAboveSlice { promised, slice } => promised > slice,
        _ => false,
    }
}

/// The longest packet that a service allows on the link.
fn longest(service: &Service) -> u64 {
    let (Service::Cell(cell)
    | Service::Limited {
        guarantee: Guarantee::Cell(cell),
        ..
    }) = service
    else {
        return LONGEST;
    };
    cell.sustained().map_or(LONGEST, |s| s.mbs.0.min(LONGEST))
}

/// A packet. Every third one begins a message; only channels use that.
fn packet((number, length): (u64, u64), now: u64) -> Packet {
    match number % 3 {
        0 => Packet::first(Bytes(length), Instant(now)),
        _ => Packet::new(Bytes(length)),
    }
}

/// Runs the scenarios of these seeds. Returns the number of offered and of sent packets.
fn run_scenarios(seeds: core::ops::Range<u64>, operations: u64, check_each: u64) -> (u64, u64) {
    let (mut offered, mut sent) = (0, 0);
    for seed in seeds {
        let mut scenario = Scenario::new(seed);
        let run = std::panic::AssertUnwindSafe(|| scenario.run(operations, check_each));
        if let Err(reason) = std::panic::catch_unwind(run) {
            eprintln!("scenario of seed {seed}, at {}", scenario.now);
            std::panic::resume_unwind(reason);
        }
        offered += scenario.offered;
        sent += scenario.sent;
    }
    // Scenarios in which hardly any packet leaves would prove nothing.
    assert!(sent * 4 > offered, "{sent} of {offered}");
    (offered, sent)
}

const LONGEST: u64 = 1514;
const ORDERS: [EarlyOrder; 2] = [EarlyOrder::AfterLeftOver, EarlyOrder::BeforeLeftOver];

/// The largest number of flows at once.
const MAX_FLOWS: usize = 300;

proptest! {
    #![proptest_config(ProptestConfig {
        // The seed of a failure is stored beside this file, because the default finds the folder by
        // a library above it, and there is none.
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource(
            "proptest-regressions",
        ))),
        ..cases(4)
    })]

    /// Scenarios of new seeds. `make fuzz` runs them for the requested time.
    #[test]
    #[cfg_attr(miri, ignore = "minutes")]
    fn packets_are_conserved_in_any_scenario(seed in 1..u64::MAX, operations in 500_u64..5_000) {
        Scenario::new(seed).run(operations, 23);
    }
}

#[test]
fn packets_are_conserved() {
    let (seeds, operations) = if cfg!(miri) {
        (0..2, 150)
    } else {
        (0..8, 6_000)
    };
    run_scenarios(seeds, operations, 25);
}

/// Shorter scenarios, with a check after each operation.
#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn invariants_hold_after_every_operation() {
    run_scenarios(8..12, 600, 1);
}

#[test]
#[ignore = "ten million operations"]
fn packets_are_conserved_for_ten_million_operations() {
    let (offered, sent) = run_scenarios(1000..1100, 100_000, 20);
    println!("{offered} packets came, {sent} left");
}

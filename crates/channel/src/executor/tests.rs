use std::num::NonZeroU32;

use netnice_core::admission::timing::Processor;
use netnice_core::contract::{Channel, Contract, Overload, Weight};
use netnice_core::sched::{EarlyOrder, Packet};
use netnice_core::units::{Bytes, Instant, Nanos};

use super::*;
use crate::{ChannelClass, Checksum, Encryption, Stage, WhenFull};

mod random;
mod receiving;
mod simulation;

type TestExecutor = Executor<Vec<u8>, Vec<u8>>;

/// Keeps what is submitted. With `room` it has so many buffers.
#[derive(Default)]
struct Kept {
    buffer: Vec<u8>,
    packets: Vec<(OutgoingPacket, Vec<u8>)>,
    room: Option<usize>,
}

impl Transmit for Kept {
    fn buffer(&mut self, _: HandlerId, length: usize) -> Option<&mut [u8]> {
        if self.room == Some(0) {
            return None;
        }
        self.buffer.resize(length, 0);
        Some(&mut self.buffer)
    }

    fn submit(&mut self, packet: OutgoingPacket) {
        self.room = self.room.map(|room| room - 1);
        self.packets.push((packet, self.buffer.clone()));
    }
}

impl Kept {
    /// Handler, message and part of the last packet.
    fn last(&self) -> (HandlerId, u64, u16) {
        let (packet, _) = self.packets.last().expect("a packet");
        (packet.handler, packet.message, packet.part)
    }
}

/// Each packet takes 10 us; 100 bytes of payload in a packet, four packets in a block.
fn settings() -> ExecutorSettings {
    ExecutorSettings {
        processor: Processor {
            switch: Nanos(0),
            cache_miss: Nanos(0),
            first: Nanos::from_micros(10),
            later: Nanos::from_micros(10),
            link_scheduling: Nanos(0),
            block: NonZeroU32::new(4).expect("above zero"),
            largest: Bytes(PacketHeader::LENGTH as u64 + 100),
            leftover: Nanos(0),
        },
        waking: Nanos(0),
        horizon: Nanos(0),
        early: EarlyOrder::default(),
    }
}

fn executor(horizon: Nanos) -> TestExecutor {
    Executor::new(ExecutorSettings {
        horizon,
        ..settings()
    })
    .expect("an executor")
}

fn channel(text: &str) -> Channel {
    let contract: Contract = format!("channel {text}").parse().expect("a contract");
    contract.channel().expect("a channel")
}

fn id(number: u8) -> ChannelId {
    ChannelId([number; 16])
}

fn real_time(number: u8, text: &str) -> ChannelOptions {
    ChannelOptions::new(id(number), ChannelClass::RealTime(channel(text)))
}

fn best_effort(number: u8, when_full: WhenFull) -> ChannelOptions {
    let class = ChannelClass::BestEffort {
        weight: Weight::default(),
        mmax: Bytes(10_000),
        queue: 2,
        when_full,
    };
    ChannelOptions::new(id(number), class)
}

fn us(micros: u64) -> Instant {
    Instant(micros * 1_000)
}

/// Runs packets until a step does not, with the time standing still. Returns that step.
fn run(executor: &mut TestExecutor, now: Instant, kept: &mut Kept) -> Step {
    loop {
        match executor.step(now, kept) {
            Step::Ran(_) => {}
            other => return other,
        }
    }
}

/// Runs packets until none is left, with the time of the next one. Returns the last time.
fn finish(executor: &mut TestExecutor, now: Instant, kept: &mut Kept) -> Instant {
    match run(executor, now, kept) {
        Step::Wait(at) => finish(executor, at, kept),
        _ => now,
    }
}

#[test]
fn a_message_becomes_packets_with_headers_and_its_deadline() {
    let mut all = executor(Nanos(0));
    let options = real_time(
        1,
        "mmax=250B,rmax=100/s,bmax=2,deadline=20ms,processing=5ms",
    );
    let sender = all.open_sender(options, us(0)).expect("opens");
    assert_eq!(all.state(sender, us(0)), Ok(HandlerState::NoMessage));
    let body: Vec<u8> = (0..250).map(|at| at as u8).collect();
    let accepted = all.send(sender, body.clone(), us(7)).expect("accepted");
    assert_eq!(
        accepted,
        Accepted {
            message: 0,
            logical: us(7),
            deadline: Some(us(20_007)),
        }
    );
    assert_eq!(all.state(sender, us(7)), Ok(HandlerState::Ready));
    let mut kept = Kept::default();
    let first = all.step(us(7), &mut kept);
    assert!(matches!(first, Step::Ran(ran) if ran.handler == sender && ran.begins && !ran.ends));
    assert_eq!(all.state(sender, us(17)), Ok(HandlerState::Running));
    all.step(us(17), &mut kept);
    let last = all.step(us(27), &mut kept);
    assert!(matches!(last, Step::Ran(ran) if !ran.begins && ran.ends));
    assert_eq!(all.step(us(37), &mut kept), Step::Idle);
    for (part, (packet, bytes)) in kept.packets.iter().enumerate() {
        let part = part as u16;
        assert_eq!((packet.part, packet.count, packet.message), (part, 3, 0));
        assert_eq!((packet.logical, packet.deadline), (us(7), Some(us(20_007))));
        let header = PacketHeader::decode(bytes).expect("a header");
        assert_eq!(
            (header.channel, header.part, header.count),
            (id(1), part, 3)
        );
        let begin = 100 * usize::from(part);
        assert_eq!(
            bytes[PacketHeader::LENGTH..],
            body[begin..250.min(begin + 100)]
        );
    }
    let counts = all.counts(sender).expect("open");
    assert_eq!((counts.messages, counts.packets), (1, 3));
}

/// Paper RTC, section 3.1: a handler yields after P packets if a higher one waits, not before.
#[test]
fn a_handler_yields_after_a_block_to_an_earlier_deadline() {
    let mut all = executor(Nanos(0));
    let long = real_time(1, "mmax=1kB,rmax=10/s,bmax=1,deadline=90ms,processing=50ms");
    let short = real_time(2, "mmax=200B,rmax=10/s,bmax=1,deadline=9ms,processing=5ms");
    let long = all.open_sender(long, us(0)).expect("opens");
    let short = all.open_sender(short, us(0)).expect("opens");
    let bulk = all
        .open_sender(best_effort(3, WhenFull::Wait), us(0))
        .expect("opens");
    let mut kept = Kept::default();
    all.send(bulk, vec![0; 700], us(0)).expect("accepted");
    all.step(us(0), &mut kept);
    all.send(long, vec![0; 1_000], us(1)).expect("accepted");
    let mut order = vec![kept.last().0];
    for step in 1..=18 {
        if step == 5 {
            // In the middle of the first block of the long message.
            all.send(short, vec![0; 200], us(50)).expect("accepted");
        }
        assert!(matches!(all.step(us(10 * step), &mut kept), Step::Ran(_)));
        order.push(kept.last().0);
    }
    let runs = [(bulk, 4), (long, 4), (short, 2), (long, 6), (bulk, 3)];
    let wanted = runs
        .iter()
        .flat_map(|(handler, count)| vec![*handler; *count]);
    assert_eq!(order, wanted.collect::<Vec<HandlerId>>());
}

#[test]
fn an_early_message_is_suspended_and_within_the_horizon_comes_last() {
    let text = "mmax=100B,rmax=100/s,bmax=3,deadline=20ms,processing=5ms";
    for horizon in [Nanos(0), Nanos::from_millis(15)] {
        let mut all = executor(horizon);
        let sender = all.open_sender(real_time(1, text), us(0)).expect("opens");
        let bulk = best_effort(2, WhenFull::Wait);
        let bulk = all.open_sender(bulk, us(0)).expect("opens");
        let mut kept = Kept::default();
        for _ in 0..3 {
            all.send(sender, vec![1; 100], us(0)).expect("accepted");
        }
        all.send(bulk, vec![2; 100], us(0)).expect("accepted");
        let step = run(&mut all, us(0), &mut kept);
        let order: Vec<HandlerId> = kept.packets.iter().map(|(one, _)| one.handler).collect();
        match horizon {
            Nanos(0) => assert_eq!(order, [sender, bulk]),
            // The message of 10 ms is early, after best effort; that of 20 ms is beyond the
            // horizon.
            _ => assert_eq!(order, [sender, bulk, sender]),
        }
        let logical = if horizon == Nanos(0) { 10_000 } else { 20_000 };
        let state = all.state(sender, us(0));
        assert_eq!(state, Ok(HandlerState::EarlyUntil(us(logical))));
        let from = logical - horizon.0 / 1_000;
        let Step::Wait(at) = step else {
            panic!("{step:?}")
        };
        // A wait is rounded up by the scheduler.
        assert!(
            (from..=from + from / 32 + 1).contains(&at.0.div_ceil(1_000)),
            "{at:?}"
        );
        run(&mut all, at, &mut kept);
        let (packet, _) = kept.packets.last().expect("a packet");
        assert_eq!(packet.logical, us(logical));
    }
}

/// Paper RTC, section 5.3: early messages before best effort, yet a due one before the early one.
#[test]
fn early_messages_displace_best_effort_if_they_come_before_it() {
    let text = "mmax=100B,rmax=100/s,bmax=3,deadline=20ms,processing=5ms";
    let mut all: TestExecutor = Executor::new(ExecutorSettings {
        horizon: Nanos::from_millis(15),
        early: EarlyOrder::BeforeLeftOver,
        ..settings()
    })
    .expect("an executor");
    let early = all.open_sender(real_time(1, text), us(0)).expect("opens");
    let bulk = best_effort(2, WhenFull::Wait);
    let bulk = all.open_sender(bulk, us(0)).expect("opens");
    let due = all.open_sender(real_time(3, text), us(0)).expect("opens");
    let mut kept = Kept::default();
    for _ in 0..3 {
        all.send(early, vec![1; 100], us(0)).expect("accepted");
    }
    all.send(bulk, vec![2; 100], us(0)).expect("accepted");
    all.send(due, vec![3; 100], us(0)).expect("accepted");
    run(&mut all, us(0), &mut kept);
    let order: Vec<HandlerId> = kept.packets.iter().map(|(one, _)| one.handler).collect();
    // Of the early messages, that of 10 ms is within the horizon and that of 20 ms is not.
    assert_eq!(order, [early, due, early, bulk]);
}

#[test]
fn a_handler_waits_for_packet_buffers() {
    let mut all = executor(Nanos(0));
    // Two messages of three packets; within 15 ms at most two are in processing or on the link.
    let options = real_time(
        1,
        "mmax=250B,rmax=100/s,bmax=2,deadline=15ms,processing=5ms",
    );
    let sender = all.open_sender(options, us(0)).expect("opens");
    let mut kept = Kept::default();
    let mut now = 0;
    for _ in 0..3 {
        all.send(sender, vec![0; 250], us(now)).expect("accepted");
        run(&mut all, us(now), &mut kept);
        now += 10_000;
    }
    assert_eq!(kept.packets.len(), 6);
    assert_eq!(all.state(sender, us(now)), Ok(HandlerState::NoBuffer));
    all.handle_sent(sender, 1, us(now)).expect("open");
    assert_eq!(run(&mut all, us(now), &mut kept), Step::Idle);
    assert_eq!((kept.packets.len(), kept.last()), (7, (sender, 2, 0)));
    // More packets than were submitted make no further buffers.
    all.handle_sent(sender, u64::MAX, us(now)).expect("open");
    run(&mut all, us(now), &mut kept);
    assert_eq!((kept.packets.len(), kept.last()), (9, (sender, 2, 2)));
    for _ in 0..2 {
        now += 10_000;
        all.send(sender, vec![0; 250], us(now)).expect("accepted");
        run(&mut all, us(now), &mut kept);
    }
    assert_eq!(kept.packets.len(), 12 + 1);
}

#[test]
fn a_block_ends_after_four_packets_and_with_its_message() {
    let mut all = executor(Nanos(0));
    let options = real_time(1, "mmax=1kB,rmax=100/s,bmax=2,deadline=20ms,processing=5ms");
    let sender = all.open_sender(options, us(0)).expect("opens");
    all.send(sender, vec![0; 1_000], us(0)).expect("accepted");
    let mut kept = Kept::default();
    let mut last_of_blocks = Vec::new();
    while let Step::Ran(ran) = all.step(us(0), &mut kept) {
        if ran.ends_block {
            last_of_blocks.push((kept.last().2, ran.ends));
        }
    }
    assert_eq!(last_of_blocks, [(3, false), (7, false), (9, true)]);
}

/// A program whose ring is smaller than the handler's packet buffers.
#[test]
fn a_handler_without_a_place_for_its_packet_goes_on_where_it_was() {
    let mut all = executor(Nanos(0));
    let options = real_time(1, "mmax=1kB,rmax=100/s,bmax=2,deadline=20ms,processing=5ms");
    let sender = all.open_sender(options, us(0)).expect("opens");
    all.send(sender, vec![0; 1_000], us(0)).expect("accepted");
    let mut kept = Kept {
        room: Some(6),
        ..Kept::default()
    };
    assert_eq!(run(&mut all, us(0), &mut kept), Step::Idle);
    assert_eq!(all.state(sender, us(0)), Ok(HandlerState::NoBuffer));
    for room in [Some(1), None] {
        kept.room = room;
        all.handle_sent(sender, 1, us(10)).expect("open");
        // What is left counts as further messages, which come later.
        finish(&mut all, us(10), &mut kept);
    }
    let parts: Vec<u16> = kept.packets.iter().map(|(packet, _)| packet.part).collect();
    assert_eq!(parts, (0..10).collect::<Vec<u16>>());
    assert_eq!(all.messages_waiting(sender), Ok(0));
}

#[test]
fn overload_policies_decide_on_messages_beyond_the_contract() {
    let text = "mmax=100B,rmax=100/s,bmax=2,deadline=20ms,processing=5ms";
    // Bmax, and none more within the 5 ms of processing.
    let most = 2;
    let answers = |policy: Overload| {
        let mut all = executor(Nanos(0));
        let options = real_time(1, &format!("{text},overload={}", policy.word()));
        let sender = all.open_sender(options, us(0)).expect("opens");
        let mut send = || {
            all.send(sender, vec![0; 100], us(0))
                .map_err(|error| error.reason)
        };
        let answers: Vec<_> = (0..9).map(|_| send()).collect();
        (answers, all.counts(sender).expect("open").dropped)
    };
    let (block, _) = answers(Overload::Block);
    assert!(block[1].is_ok());
    assert_eq!(block[2], Err(SendRefusal::WaitForRoom { most }));
    let (space, _) = answers(Overload::Space);
    assert_eq!(space[1], Err(SendRefusal::WaitUntil(us(10_000))));
    let (drop, dropped) = answers(Overload::Drop);
    assert_eq!((drop[2], dropped), (Err(SendRefusal::Dropped { most }), 7));
    for policy in [Overload::Decay, Overload::BestEffort] {
        let (all, _) = answers(policy);
        let most = 8;
        assert!(all[7].is_ok());
        assert_eq!(all[8], Err(SendRefusal::WaitForRoom { most }));
    }
    let (decay, _) = answers(Overload::Decay);
    assert_eq!(decay[7].map(|one| one.logical), Ok(us(70_000)));
}

#[test]
fn best_effort_has_a_bounded_queue_and_waits_or_drops() {
    for (when_full, wanted) in [
        (WhenFull::Wait, SendRefusal::WaitForRoom { most: 2 }),
        (WhenFull::Drop, SendRefusal::Dropped { most: 2 }),
    ] {
        let mut all = executor(Nanos(0));
        let bulk = best_effort(1, when_full);
        let bulk = all.open_sender(bulk, us(0)).expect("opens");
        for _ in 0..2 {
            let accepted = all.send(bulk, vec![0; 10], us(0)).expect("accepted");
            assert_eq!(accepted.deadline, None);
        }
        let refused = all.send(bulk, vec![5; 10], us(0)).expect_err("full");
        assert_eq!((refused.reason, refused.body), (wanted, vec![5; 10]));
        let dropped = all.counts(bulk).expect("open").dropped;
        assert_eq!(dropped, u64::from(when_full == WhenFull::Drop));
        let mut kept = Kept::default();
        run(&mut all, us(0), &mut kept);
        assert!(all.send(bulk, vec![0; 10], us(0)).is_ok());
    }
}

/// Paper RTC, section 3.1: a message above Mmax stretches the spacing, and the deadlines of its
/// additional packets are later in proportion.
#[test]
fn a_message_above_mmax_counts_as_several() {
    let text = "mmax=400B,rmax=100/s,bmax=2,deadline=20ms,processing=5ms";
    let mut all = executor(Nanos(0));
    let sender = all.open_sender(real_time(1, text), us(0)).expect("opens");
    let refused = all.send(sender, vec![0; 401], us(0)).expect_err("too long");
    assert_eq!(
        refused.reason.to_string(),
        "a message of 401B is longer than the 400B that the channel accepts"
    );
    let options = ChannelOptions {
        longest: Some(Bytes(1_000)),
        ..real_time(2, text)
    };
    let sender = all.open_sender(options, us(0)).expect("opens");
    all.send(sender, vec![0; 1_000], us(0)).expect("accepted");
    let next = all.send(sender, vec![0; 10], us(0)).expect("accepted");
    assert_eq!(next.logical, us(30_000));
    let mut kept = Kept::default();
    let mut times = Vec::new();
    let mut now = us(0);
    loop {
        match all.step(now, &mut kept) {
            Step::Ran(_) => {
                times.push(now.0.div_ceil(1_000_000));
                all.handle_sent(sender, 1, now).expect("open");
            }
            Step::Wait(at) => now = at,
            Step::Idle => break,
        }
    }
    // Four packets at once, four 10 ms later, two 20 ms later, and the next message. A wait is
    // rounded up.
    let rounded: Vec<u64> = times.iter().map(|ms| ms / 10 * 10).collect();
    assert_eq!(rounded, [0, 0, 0, 0, 10, 10, 10, 10, 20, 20, 30]);
}

#[test]
fn a_closed_handler_is_gone_and_its_number_is_no_other_ones() {
    let mut all = executor(Nanos(0));
    let text = "mmax=1kB,rmax=100/s,bmax=2,deadline=20ms,processing=5ms";
    let first = all.open_sender(real_time(1, text), us(0)).expect("opens");
    let again = all.open_sender(real_time(1, text), us(0));
    assert_eq!(again, Err(OpenError::Exists(id(1))));
    all.send(first, vec![0; 1_000], us(0)).expect("accepted");
    let mut kept = Kept::default();
    all.step(us(0), &mut kept);
    // In the middle of a block.
    all.close(first, us(1)).expect("open");
    assert_eq!(all.step(us(1), &mut kept), Step::Idle);
    let second = all.open_sender(real_time(1, text), us(2)).expect("opens");
    assert_ne!(first, second);
    let gone = all.send(first, vec![0], us(3)).expect_err("closed");
    assert_eq!(gone.reason, SendRefusal::NoSender);
    assert_eq!(all.close(first, us(3)), Err(NoHandler));
    assert_eq!(all.handle_sent(first, 1, us(3)), Err(NoHandler));
    assert_eq!(all.counts(first), Err(NoHandler));
    all.send(second, vec![0; 100], us(3)).expect("accepted");
    run(&mut all, us(3), &mut kept);
    assert_eq!(kept.last(), (second, 0, 0));
}

#[test]
fn options_that_cannot_be_kept_are_refused_with_the_reason() {
    let mut all = executor(Nanos(0));
    let mut refused = |options: ChannelOptions| {
        let error = all.open_sender(options, us(0)).expect_err("refused");
        error.to_string()
    };
    let text = "mmax=1kB,rmax=100/s,bmax=2,deadline=20ms,processing=15ms";
    let bulk = |mmax: u64, queue: u32| {
        let class = ChannelClass::BestEffort {
            weight: Weight::default(),
            mmax: Bytes(mmax),
            queue,
            when_full: WhenFull::Wait,
        };
        ChannelOptions::new(id(1), class)
    };
    assert_eq!(
        refused(real_time(
            1,
            "mmax=16777217B,rmax=1/s,bmax=1,deadline=1s,processing=1ms"
        )),
        "mmax of a channel's messages is 1B to 16MiB, not 16777217B"
    );
    assert!(refused(bulk(0, 1)).ends_with("not 0B"));
    assert!(refused(bulk(1, 0)).contains("at least one message"));
    assert_eq!(
        refused(real_time(1, "mmax=1kB,rmax=1/s,bmax=1,deadline=20ms")),
        "the channel has no part of its deadline for processing: add processing=T below 20ms"
    );
    assert_eq!(
        refused(ChannelOptions {
            queue: Some(2),
            ..real_time(1, text)
        }),
        "a queue of 2 messages is too short: this contract needs 3"
    );
    assert_eq!(
        refused(ChannelOptions {
            longest: Some(Bytes(999)),
            ..real_time(1, text)
        }),
        "the longest accepted message is 1000B (mmax) to 16MiB, not 999B"
    );
    let many = ChannelOptions {
        longest: Some(Bytes(6_553_600)),
        ..real_time(1, text)
    };
    assert_eq!(
        refused(many),
        "a message of 6400KiB in parts of 100B has more than 65535 parts"
    );
    let heavy = ChannelOptions {
        stages: vec![Box::new(Checksum::new(Nanos::from_millis(3)))],
        ..real_time(1, text)
    };
    assert_eq!(
        refused(heavy),
        "a block of 4 packets takes 12.04ms: above 0, at most 10ms"
    );
    let small = ExecutorSettings {
        processor: Processor {
            largest: Bytes(36),
            ..settings().processor
        },
        ..settings()
    };
    let mut all: TestExecutor = Executor::new(small).expect("an executor");
    let options = ChannelOptions {
        stages: vec![Box::new(Checksum::new(Nanos(0)))],
        ..real_time(1, text)
    };
    assert_eq!(
        all.open_sender(options, us(0))
            .expect_err("refused")
            .to_string(),
        "a packet of 36B has no room for a payload behind 36B of header and stages"
    );
}

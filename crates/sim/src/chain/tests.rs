use core::num::NonZeroU32;

use proptest::prelude::*;

use netnice_core::admission::timing::{Processor, Stops};
use netnice_core::contract::{Channel, MessageRate, Slice};
use netnice_core::sched::Wire;
use netnice_core::units::{Bytes, Nanos, Rate};

use super::report::logical_arrivals;
use super::*;

fn us(time: u64) -> Nanos {
    Nanos::from_micros(time)
}

fn ms(time: u64) -> Nanos {
    Nanos::from_millis(time)
}

/// A link on which a packet of at most 1250 bytes takes 100 us.
fn station() -> Station {
    Station::new(Wire {
        longest: Bytes(1250),
        ..Wire::new(Rate::new(100_000_000).expect("a rate"))
    })
}

fn contract(mmax: u64, rmax: u32, bmax: u32, deadline: Nanos) -> Channel {
    let rmax = MessageRate::new(rmax).expect("a rate");
    Channel::new(Bytes(mmax), rmax, bmax, deadline).expect("a channel")
}

/// A channel over the stations 0, 1 and so on, with these bounds and endless room.
fn routed(contract: Channel, bounds: &[Nanos], messages: &[(Nanos, u64)]) -> RoutedChannel {
    let hop = |(station, bound): (usize, &Nanos)| Hop {
        station,
        processing: Nanos(0),
        bound: *bound,
        room: usize::MAX,
    };
    RoutedChannel {
        contract,
        hops: bounds.iter().enumerate().map(hop).collect(),
        messages: messages
            .iter()
            .map(|(at, size)| (*at, Bytes(*size)))
            .collect(),
    }
}

fn run(stations: Vec<Station>, channels: Vec<RoutedChannel>) -> ChainReport {
    let chain = Chain {
        stations,
        channels,
        seed: 1,
    };
    chain.run(ms(1_000)).expect("a valid chain")
}

/// Two packets of 100 us on each of two links, one behind the other: the relay waits for the whole
/// message. The delay of the cables does not count against the deadline.
#[test]
fn a_relay_passes_a_message_when_it_is_complete() {
    let mut stations = vec![station(), station()];
    stations[0].cable.delay = us(300);
    stations[1].cable.delay = us(500);
    let channel = contract(2500, 10, 1, ms(10));
    let sent = routed(channel, &[ms(5), ms(5)], &[(Nanos(0), 2500)]);
    let report = run(stations.clone(), vec![sent.clone()]);
    assert_eq!((report.missed(), report.channels[0].delivered), (0, 1));
    let least = i64::try_from(ms(10).0 - us(400).0).expect("small");
    assert_eq!(report.channels[0].least_laxity, Some(least));
    let hop = &report.channels[0].hops[1];
    assert_eq!(
        (hop.passed, hop.most_messages, hop.most_bytes),
        (1, 1, 2500)
    );
    // A relay with smaller packets cuts the message anew.
    stations[1].wire.longest = Bytes(1000);
    let report = run(stations, vec![sent]);
    assert_eq!(report.channels[0].least_laxity, Some(least));
}

/// A message that comes while the sender stands still leaves when it goes on, and its deadline
/// counts from its arrival.
#[test]
fn a_standstill_delays_what_comes_in_it() {
    let mut stopped = station();
    let allowance = Stops::new(ms(5), ms(100)).expect("an allowance");
    let times = [(us(500), us(5_000))];
    stopped.standstills = Some(Standstills::new(allowance, &times).expect("inside"));
    let messages = [(ms(1), 1250), (ms(11), 1250)];
    let sent = |deadline| routed(contract(1250, 100, 1, deadline), &[deadline], &messages);
    let report = run(vec![stopped.clone()], vec![sent(ms(5))]);
    let least = i64::try_from(us(900).0).expect("small");
    assert_eq!(report.channels[0].least_laxity, Some(least));
    // The packet ends 4.1 ms behind its arrival.
    let report = run(vec![stopped], vec![sent(us(4_099))]);
    assert_eq!((report.missed(), report.missed_at_hops()), (1, 1));
}

/// After a stop that no allowance covers, the next hop spaces what comes at once. Served at the
/// rate of its source a channel is late for ever; served an eighth faster it catches up in nine
/// times what it is behind.
#[test]
fn a_channel_that_is_served_faster_catches_up_after_a_stop() {
    let mut stopped = station();
    let allowance = Stops::new(ms(50), ms(2_000)).expect("an allowance");
    stopped.standstills = Some(Standstills::new(allowance, &[(ms(50), ms(80))]).expect("inside"));
    // The source sends 400 messages per second.
    let messages: Vec<(Nanos, u64)> = (0..390).map(|n| (us(2_500 * n), 1250)).collect();
    let late = |rmax| {
        let sent = routed(contract(1250, rmax, 1, ms(4)), &[ms(2); 2], &messages);
        run(vec![stopped.clone(), station()], vec![sent]).missed()
    };
    // All that come after the stop has begun.
    assert!((365..=370).contains(&late(400)), "{}", late(400));
    // 9 times 30 ms, at 400 per second.
    assert!((95..=115).contains(&late(450)), "{}", late(450));
}

/// A message of which a packet is lost ends at the next relay. Every message is counted once.
#[test]
fn an_incomplete_message_ends_at_the_relay() {
    let mut stations = vec![station(), station(), station()];
    stations[0].cable.loss = 100_000;
    stations[1].cable.loss = 100_000;
    let channel = contract(5000, 200, 1, ms(30));
    let messages: Vec<(Nanos, u64)> = (0..150).map(|number| (ms(5 * number), 5000)).collect();
    let mut sent = routed(channel, &[ms(10); 3], &messages);
    let rooms = Chain::rooms(&stations, &channel, &sent.hops);
    for (hop, room) in sent.hops.iter_mut().zip(rooms) {
        hop.room = room;
    }
    let report = run(stations, vec![sent]);
    let channel = &report.channels[0];
    assert_eq!(
        (channel.missed, report.missed_at_hops(), report.no_room()),
        (0, 0, 0)
    );
    assert_eq!(channel.delivered + channel.incomplete, 150);
    // Four packets each: 66 % of the messages pass a cable, and of those 66 % the next one.
    assert!((50..=82).contains(&channel.delivered), "{report}");
    let ended: Vec<u64> = channel.hops.iter().map(|hop| hop.incomplete).collect();
    assert_eq!(ended[0], 0);
    assert!(ended[1] > 20 && ended[2] > 10, "{ended:?}");
    // Only what arrives complete is passed on. Some messages lose packets on the last cable alone.
    assert_eq!(channel.hops[1].passed + ended[1], 150);
    assert_eq!(channel.hops[2].passed + ended[2], channel.hops[1].passed);
    assert_eq!(channel.hops[2].passed, channel.delivered);
}

/// A source that sends more than its contract allows loses messages at its own station. What it
/// gets in is spaced there, so nothing behind it is late.
#[test]
fn a_flood_of_messages_ends_at_its_source() {
    let stations = vec![station(), station()];
    let mut ledger = PathLedger::new(&stations, 4);
    let flood: Vec<(Nanos, Bytes)> = (0..800).map(|n| (us(100 * n), Bytes(10_000))).collect();
    let polite: Vec<(Nanos, Bytes)> = (0..80).map(|n| (ms(n), Bytes(1_000))).collect();
    let mut channels = Vec::new();
    for (asked, messages) in [
        (contract(10_000, 50, 2, ms(20)), flood),
        (contract(1_000, 1_000, 1, ms(2)), polite),
    ] {
        let reserved = ledger.reserve(&asked, &[0, 1]).expect("it fits");
        channels.push(RoutedChannel {
            contract: asked,
            hops: reserved.hops,
            messages,
        });
    }
    let report = run(stations, channels);
    assert_eq!(
        (report.missed(), report.missed_at_hops()),
        (0, 0),
        "{report}"
    );
    let [flood, polite] = &report.channels[..] else {
        panic!("two channels")
    };
    assert_eq!((polite.delivered, polite.refused), (80, 0));
    assert_eq!(flood.delivered + flood.refused, 800);
    assert_eq!(flood.no_room, 0);
    // 80 ms at 50 messages a second, and two at once.
    assert!((4..=7).contains(&flood.delivered), "{report}");
}

/// The best deadline that a refusal names is granted at once. A hundredth less is refused, and a
/// refusal leaves nothing held.
#[test]
fn the_best_deadline_of_a_path_is_granted() {
    let mut stations = vec![station(), station(), station()];
    stations[1].flood = Some(Bytes(1250));
    let costs = Processor {
        switch: us(5),
        cache_miss: us(5),
        first: us(30),
        later: us(20),
        link_scheduling: us(2),
        block: NonZeroU32::new(4).expect("above zero"),
        largest: Bytes(1250),
        leftover: Nanos(0),
    };
    stations[2].processor = Some(StationProcessor {
        costs,
        time: HandlerTime::Reserved {
            slice: Slice::new(ms(1), ms(2), false).expect("a slice"),
            phase: Nanos(0),
        },
    });
    let mut ledger = PathLedger::new(&stations, 8);
    ledger
        .reserve(&contract(5_000, 100, 1, ms(20)), &[2, 0])
        .expect("it fits");
    let with = |deadline| contract(10_000, 50, 2, deadline);
    let least = match ledger.reserve(&with(us(1)), &[0, 1, 2]) {
        Err(PathRefusal::TooLong(too_long)) => too_long.least,
        other => panic!("{other:?}"),
    };
    let shorter = Nanos(least.0 - least.0 / 100);
    let refused = ledger.reserve(&with(shorter), &[0, 1, 2]);
    assert!(
        matches!(refused, Err(PathRefusal::TooLong(_))),
        "{refused:?}"
    );
    let reserved = ledger.reserve(&with(least), &[0, 1, 2]).expect("the least");
    assert_eq!(reserved.refused, []);
    let sum: u64 = reserved.hops.iter().map(|hop| hop.bound.0).sum();
    assert_eq!(sum, least.0);
    assert_eq!(reserved.hops[0].processing, Nanos(0));
    assert!(reserved.hops[2].processing > Nanos(0));
    // More than the link: the refusal names the hop.
    let all = contract(60_000, 240, 1, ms(100));
    let refusal = ledger.reserve(&all, &[1, 0]).expect_err("119 %");
    let text = refusal.to_string();
    assert!(
        text.starts_with("hop 0 refuses: all promises together need 119.2"),
        "{text}"
    );
}

#[test]
fn an_invalid_path_is_refused_with_its_reason() {
    let mut ledger = PathLedger::new(&[station(), station()], 2);
    let channel = contract(1_000, 10, 1, ms(10));
    let mut refusal = |path: &[usize]| match ledger.reserve(&channel, path) {
        Ok(_) => String::new(),
        Err(refusal) => refusal.to_string(),
    };
    assert_eq!(refusal(&[]), "the path passes no station: 1 at least");
    assert_eq!(
        refusal(&[1, 0, 1]),
        "the path passes station 1 twice: once at most"
    );
    assert_eq!(
        refusal(&[0, 2]),
        "the path passes station 2: there are 2, counted from 0"
    );
    assert_eq!(
        (refusal(&[0, 1]), refusal(&[1])),
        (String::new(), String::new())
    );
    assert_eq!(
        refusal(&[0, 1]),
        "station 1 has 2 channels: no more are allowed"
    );
    // Nothing is held by the refusals.
    assert_eq!(refusal(&[0]), "");
}

/// With a horizon of 5 us, a message of 100 us is in the way of one of 80 us that is due within 270
/// us if its own deadline is more than 265 us, and up to 270 us it has to be sent within the same
/// time, too: 80 us + 2 * 100 us > 270 us. So the hop keeps its least bound of about 210 us, and
/// all messages are in time. (The scheduler's rounding takes 12 us of both deadlines.)
#[test]
fn a_hop_with_a_horizon_can_refuse_to_be_relaxed() {
    for (horizon, refused) in [(us(0), 0), (us(5), 1)] {
        let mut stations = vec![station()];
        stations[0].wire.horizon = horizon;
        let mut ledger = PathLedger::new(&stations, 4);
        let mut channels = Vec::new();
        for asked in [
            contract(1_000, 10, 1, us(282)),
            contract(1_250, 10, 1, us(280)),
        ] {
            let reserved = ledger.reserve(&asked, &[0]).expect("it fits");
            let is_last = !channels.is_empty();
            assert_eq!(reserved.refused.len(), if is_last { refused } else { 0 });
            let whole = reserved.hops[0].bound == asked.deadline();
            assert_eq!(whole, reserved.refused.is_empty());
            channels.push(RoutedChannel {
                contract: asked,
                hops: reserved.hops,
                messages: (0..9).map(|n| (ms(100 * n), asked.mmax())).collect(),
            });
        }
        let report = run(stations, channels);
        assert_eq!((report.missed(), report.missed_at_hops()), (0, 0));
    }
}

/// Room as in theorem 7: at the source Bmax and a message for each 1/Rmax of the bound; at a relay
/// what the bounds of two hops, the jitter and the horizon between them bring together.
#[test]
fn the_room_of_a_hop_counts_what_can_be_there_at_once() {
    let mut stations = vec![station(), station()];
    let channel = contract(1_000, 100, 3, ms(70));
    let hops = routed(channel, &[ms(25), ms(39)], &[]).hops;
    assert_eq!(Chain::rooms(&stations, &channel, &hops), [5, 7]);
    stations[0].cable.jitter = us(5_999);
    assert_eq!(Chain::rooms(&stations, &channel, &hops), [5, 7]);
    stations[0].cable.jitter = us(5_500);
    stations[0].wire.horizon = us(500);
    assert_eq!(Chain::rooms(&stations, &channel, &hops), [5, 8]);
    stations[0].cable.loss = 1;
    assert_eq!(Chain::rooms(&stations, &channel, &hops), [5, 9]);
}

/// A valid chain of two stations, and the costs of a processor.
fn valid() -> (Chain, Processor) {
    let channel = contract(1_000, 100, 1, ms(10));
    let chain = Chain {
        stations: vec![station(), station()],
        channels: vec![routed(channel, &[ms(5), ms(5)], &[(ms(1), 1_000)])],
        seed: 1,
    };
    let costs = Processor {
        switch: us(50),
        cache_miss: us(50),
        first: us(10),
        later: us(10),
        link_scheduling: us(1),
        block: NonZeroU32::MIN,
        largest: Bytes(1_250),
        leftover: Nanos(0),
    };
    (chain, costs)
}

type Change = fn(&mut Chain, Processor);

/// Panics unless each change of a valid chain is refused with its reason.
fn refused_with_reasons(cases: &[(Change, &str)]) {
    let (valid, costs) = valid();
    assert!(valid.run(ms(10)).is_ok());
    for (change, text) in cases {
        let mut chain = valid.clone();
        change(&mut chain, costs);
        let error = chain.run(ms(10)).expect_err(text);
        assert_eq!(error.to_string(), *text);
    }
}

#[test]
fn an_invalid_channel_is_refused_with_its_reason() {
    refused_with_reasons(&[
        (
            |c, _| c.channels[0].hops.clear(),
            "channel 0 passes no station: 1 at least",
        ),
        (
            |c, _| c.channels[0].hops[1].station = 2,
            "hop 1 of channel 0 is station 2: the chain has 2",
        ),
        (
            |c, _| c.channels[0].hops[1].station = 0,
            "channel 0 passes station 0 twice: once at most",
        ),
        (
            |c, _| c.channels[0].hops[0].processing = ms(1),
            "hop 0 of channel 0 has 1ms for processing: above 0s at a station with a processor, \
             and 0s at others",
        ),
        (
            |c, _| c.channels[0].hops[0].bound = ms(6),
            "the hops of channel 0 have 11ms together, more than its deadline 10ms",
        ),
        (
            |c, _| c.channels[0].messages.push((ms(2), Bytes(1_001))),
            "channel 0 has a message of 1001B: 1B to its mmax 1000B",
        ),
        (
            |c, _| c.channels[0].messages.push((us(10), Bytes(1))),
            "channel 0 has a message at 10us behind one at 1ms: sort them by time",
        ),
    ]);
}

#[test]
fn an_invalid_station_is_refused_with_its_reason() {
    refused_with_reasons(&[
        (
            |c, _| c.stations[1].cable.loss = 1_000_000,
            "the cable of station 1 loses 1000000 of 1000000 packets: 999999 at most",
        ),
        (
            |c, _| c.stations[1].wire.longest = Bytes(0),
            "station 1 cuts a message of 1000B into packets of 0B: 1 to 65535",
        ),
        (
            |c, costs| {
                let costs = Processor {
                    leftover: ms(11),
                    ..costs
                };
                let time = HandlerTime::Whole;
                c.stations[1].processor = Some(StationProcessor { costs, time });
            },
            "a block of 1 packets takes 11ms at station 1: above 0s, at most 10ms",
        ),
        (
            |c, costs| {
                let slice = Slice::new(us(100), ms(1), false).expect("a slice");
                let time = HandlerTime::Reserved {
                    slice,
                    phase: Nanos(0),
                };
                c.stations[1].processor = Some(StationProcessor { costs, time });
            },
            "station 1 reserves 100us of its processor, of which 100us are lost",
        ),
    ]);
}

proptest! {
    /// Logical arrivals, from the definition: the largest of the own arrival and, for every message
    /// before, its arrival and 1/Rmax for each message since.
    #[test]
    fn logical_arrivals_are_those_of_the_definition(
        gaps in prop::collection::vec((0_u64..30, any::<bool>()), 0..40),
        spacing in 1_u64..20,
    ) {
        let mut now = 0;
        let arrivals: Vec<Option<u64>> = gaps
            .iter()
            .map(|(gap, is_accepted)| {
                now += gap;
                is_accepted.then_some(now)
            })
            .collect();
        let accepted: Vec<u64> = arrivals.iter().flatten().copied().collect();
        let by_definition = (0..accepted.len()).map(|n| {
            let since = |m: usize| accepted[m] + (n - m) as u64 * spacing;
            (0..=n).map(since).max().expect("one at least")
        });
        let logical = logical_arrivals(&arrivals, spacing);
        let of_accepted = logical.iter().zip(&arrivals).filter(|(_, at)| at.is_some());
        let of_accepted: Vec<u64> = of_accepted.map(|(logical, _)| *logical).collect();
        prop_assert_eq!(of_accepted, by_definition.collect::<Vec<u64>>());
    }
}

//! The bound against traffic that the curves allow, at a port that is simulated packet by packet.

use alloc::string::ToString as _;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;

/// The rate at which a byte takes a whole number of ns, so that the simulation is exact.
const RATE: u64 = 80_000_000;
const NANOS_PER_BYTE: u64 = 100;

fn port(longest: u64) -> SwitchPort {
    SwitchPort {
        rate: Rate::new(RATE).expect("a rate"),
        longest: Bytes(longest),
    }
}

fn channel(message: u64, rmax: u32, bmax: u32, before: u64) -> EnteringChannel {
    EnteringChannel {
        message: Bytes(message),
        rmax: MessageRate::new(rmax).expect("a rate"),
        bmax,
        before: Nanos(before),
    }
}

/// The messages of a channel: its bound S, and for each the time of its logical arrival at the
/// source and the time at which it enters the port, in order of both.
#[derive(Clone, Debug)]
struct Entering {
    channel: EnteringChannel,
    /// Which part of S each message has taken, in thousandths; the list is repeated.
    taken: Vec<u64>,
    /// What each message has beyond the shortest distance from the one before, in ns.
    pauses: Vec<u64>,
}

impl Entering {
    /// When the messages enter: a burst of B arrives at the source at 0, and then as Rmax allows.
    /// A message has a logical arrival of its own, 1/R behind the one before, and leaves the hosts
    /// before the port between its arrival at the source and S behind its logical arrival.
    fn times(&self) -> Vec<u64> {
        let apart = 1_000_000_000_u64.div_ceil(u64::from(self.channel.rmax.get()));
        let mut logical = 0;
        let mut times = Vec::new();
        for number in 0..MESSAGES {
            if number > 0 {
                logical += apart + self.pauses[number as usize % self.pauses.len()];
            }
            let early = u64::from(self.channel.bmax - 1) * apart;
            let arrives = logical.saturating_sub(early);
            let latest = logical + self.channel.before.0;
            let part = self.taken[number as usize % self.taken.len()];
            let enters = arrives + (latest - arrives) * part / 1_000;
            // The hosts keep the order of a channel's messages.
            times.push(enters.max(times.last().copied().unwrap_or(0)));
        }
        times
    }
}

/// Messages of each channel.
const MESSAGES: u64 = 40;

/// The longest time at the port: messages are packets of at most 1,000 bytes, and another packet
/// begins just before each time at which the port was idle.
fn simulated(longest: u64, channels: &[Entering]) -> u64 {
    let mut packets = Vec::new();
    for entering in channels {
        for at in entering.times() {
            let mut left = entering.channel.message.0;
            while left > 0 {
                let length = left.min(1_000);
                packets.push((at, length));
                left -= length;
            }
        }
    }
    packets.sort_by_key(|(at, _)| *at);
    let (mut free, mut worst) = (0, 0);
    for (at, length) in packets {
        if free <= at {
            free = at + longest * NANOS_PER_BYTE;
        }
        free += length * NANOS_PER_BYTE;
        worst = worst.max(free - at);
    }
    worst
}

/// The formula of the documentation in fractions of floating point, from the curves: the largest
/// horizontal distance is where one of them bends.
fn naive(port: &SwitchPort, channels: &[EnteringChannel]) -> f64 {
    let rate = port.rate.bits_per_second() as f64 / 8e9;
    let arrived = |after: f64| -> f64 {
        let one = |one: &EnteringChannel| {
            let rmax = f64::from(one.rmax.get()) / 1e9;
            one.message.0 as f64 * (f64::from(one.bmax) + rmax * (after + one.before.0 as f64))
        };
        channels.iter().map(one).sum()
    };
    // When the service curve has reached what had arrived by `after`.
    let served = |bytes: f64| (port.longest.0 as f64 + bytes) / rate;
    let distances = [0.0, 1e3, 1e6, 1e9].map(|after| served(arrived(after)) - after);
    distances.into_iter().fold(0.0, f64::max)
}

fn entering() -> impl Strategy<Value = Entering> {
    let contract = (64_u64..5_000, 1_u32..300, 1_u32..5, 0_u64..40_000_000);
    let taken = prop_oneof![
        // A first message as late as it may be, and the others as soon as they may: a burst.
        Just(Vec::from([1_000, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
        prop::collection::vec(0_u64..=1_000, 1..20),
    ];
    let pauses = prop_oneof![
        Just(Vec::from([0])),
        prop::collection::vec(0_u64..10_000_000, 1..5)
    ];
    (contract, taken, pauses).prop_map(|((message, rmax, bmax, before), taken, pauses)| Entering {
        channel: channel(message, rmax, bmax, before),
        taken,
        pauses,
    })
}

proptest! {
    #[test]
    fn no_allowed_traffic_waits_longer_than_the_bound(
        longest in 64_u64..1_600,
        channels in prop::collection::vec(entering(), 1..8),
    ) {
        let contracts = channels.iter().map(|one| one.channel);
        if let Ok(bound) = port(longest).delay(contracts) {
            let waited = simulated(longest, &channels);
            prop_assert!(waited <= bound.0, "{waited} > {bound:?}");
        }
    }

    #[test]
    fn the_bound_is_the_naive_formula_rounded_up(
        longest in 0_u64..70_000,
        rate in 1_000_000_u64..100_000_000_000,
        channels in prop::collection::vec(entering(), 0..20),
    ) {
        let port = SwitchPort {
            rate: Rate::new(rate).expect("a rate"),
            longest: Bytes(longest),
        };
        let contracts: Vec<EnteringChannel> = channels.iter().map(|one| one.channel).collect();
        let needed: f64 = contracts
            .iter()
            .map(|one| one.message.0 as f64 * 8.0 * f64::from(one.rmax.get()))
            .sum();
        match port.delay(contracts.iter().copied()) {
            Ok(bound) => {
                prop_assert!(needed <= rate as f64);
                let naive = naive(&port, &contracts);
                // The integers are exact; the fractions have 53 bits.
                let tolerance = 1.0 + naive * 1e-12;
                prop_assert!((bound.0 as f64 - naive).abs() <= tolerance, "{bound:?}, {naive}");
            }
            Err(overloaded) => {
                prop_assert!(needed > rate as f64);
                prop_assert_eq!(overloaded.needed.0 as f64, needed);
            }
        }
    }
}

#[test]
fn some_allowed_traffic_waits_as_long_as_the_bound() {
    // Both bursts enter behind a packet of others that has just begun.
    let channels = [(1_000, 100, 3), (2_500, 20, 2)].map(|(message, rmax, bmax)| Entering {
        channel: channel(message, rmax, bmax, 0),
        taken: Vec::from([0]),
        pauses: Vec::from([0]),
    });
    let bound = port(1_500).delay(channels.iter().map(|one| one.channel));
    // (1,500 + 3 · 1,000 + 2 · 2,500) bytes.
    assert_eq!(bound, Ok(Nanos(9_500 * NANOS_PER_BYTE)));
    assert_eq!(simulated(1_500, &channels), 9_500 * NANOS_PER_BYTE);
    // Hosts that delay the first message until the next ones have come make a longer burst: 1 + 3
    // messages enter at 30 ms.
    let late = Entering {
        channel: channel(1_000, 100, 1, 30_000_000),
        taken: Vec::from([1_000, 0, 0, 0, 0, 0, 0, 0]),
        pauses: Vec::from([0]),
    };
    assert_eq!(
        simulated(1_500, core::slice::from_ref(&late)),
        5_500 * NANOS_PER_BYTE
    );
    let bound = port(1_500).delay([late.channel]);
    assert_eq!(bound, Ok(Nanos(5_500 * NANOS_PER_BYTE)));
}

#[test]
fn the_bound_is_rounded_up_and_saturates() {
    let odd = SwitchPort {
        rate: Rate::new(3_000_000_000).expect("a rate"),
        longest: Bytes(1),
    };
    // 8 bits take 2.67 ns.
    assert_eq!(odd.delay([]), Ok(Nanos(3)));
    let longest = EnteringChannel {
        before: Nanos(u64::MAX),
        ..channel(125, 1, u32::MAX, 0)
    };
    let slow = SwitchPort {
        rate: Rate::MIN,
        ..odd
    };
    assert_eq!(slow.delay([longest]), Ok(Nanos(u64::MAX)));
    let huge = channel(u64::MAX, 1_000_000, u32::MAX, u64::MAX);
    let overloaded = odd.delay([huge; 9]).expect_err("it is too much");
    assert_eq!(overloaded.needed, Amount(u64::MAX));
}

#[test]
fn channels_may_use_the_whole_rate_and_no_more() {
    // 1,000 bytes, 10,000 times a second: 80 Mbit/s.
    let whole = channel(1_000, 10_000, 1, 0);
    assert_eq!(port(0).delay([whole]), Ok(Nanos(1_000 * NANOS_PER_BYTE)));
    let error = port(0).delay([whole, channel(1, 1, 1, 0)]);
    let error = error.expect_err("a byte more");
    assert_eq!(
        error.to_string(),
        "the channels would need 80.001 Mbit/s (10 MB/s) together, more than the port's 80 Mbit/s \
         (10 MB/s)"
    );
}

//! Properties of networks: whatever happens, afterwards the ledgers have exactly the established
//! channels.

use netnice_cases::cases;
use proptest::prelude::*;

use super::network::{Faults, Network, State, Told, name};
use super::*;

/// What happens to a network.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A program opens a channel from one host to another: Mmax in bytes, messages a second and
    /// the deadline in microseconds.
    Open(usize, usize, u64, u32, u64),
    /// A program ends the channel that was opened as the given one, at its source or sink.
    Close(usize, bool),
    Cut(usize),
    /// A new connection replaces the one from this host to the next.
    Replace(usize),
    Crash(usize),
    Stop(usize),
    Resume(usize),
    /// A program of this host asks for the reports of the channel that was opened as the given one.
    Explain(usize, usize),
    /// Microseconds pass.
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let open = (
        0_usize..5,
        0_usize..5,
        1_u64..20_000,
        1_u32..200,
        200_u64..60_000,
    );
    let wait = prop_oneof![
        4 => 1_u64..3_000,
        3 => 1_u64..60_000,
        2 => 1_u64..6_000_000,
        2 => 13_000_000_u64..20_000_000,
    ];
    let step = prop_oneof![
        6 => open.prop_map(|(from, to, mmax, rmax, d)| Step::Open(from, to, mmax, rmax, d)),
        2 => (0_usize..30, any::<bool>()).prop_map(|(which, sink)| Step::Close(which, sink)),
        1 => (0_usize..5).prop_map(Step::Cut),
        1 => (0_usize..5).prop_map(Step::Replace),
        1 => (0_usize..5).prop_map(Step::Crash),
        1 => (0_usize..5).prop_map(Step::Stop),
        2 => (0_usize..5).prop_map(Step::Resume),
        3 => (0_usize..5, 0_usize..30).prop_map(|(at, which)| Step::Explain(at, which)),
        8 => wait.prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 1..60)
}

fn faults() -> impl Strategy<Value = Faults> {
    let few = prop_oneof![3 => Just(0_u64), 1 => 0_u64..200];
    (few.clone(), few.clone(), few, 1_u64..40).prop_map(|(lost, not_held, not_relaxed, delay)| {
        Faults {
            lost,
            not_held,
            not_relaxed,
            delay: millis(delay),
        }
    })
}

fn channel_number(number: usize) -> ChannelId {
    ChannelId((number as u128 + 1).to_be_bytes())
}

fn asked(number: usize, to: usize, (mmax, rmax): (u64, u32), deadline: Nanos) -> Open {
    let rate = MessageRate::new(rmax).expect("a rate");
    Open {
        channel: channel_number(number),
        service: ServiceName::new("camera").expect("a service"),
        sink: name(to),
        sink_address: address(name(to).as_str()),
        packet: PACKET,
        contract: Channel::new(Bytes(mmax), rate, 2, deadline).expect("a contract"),
    }
}

/// Plays the steps; returns the number of channels that were opened.
fn play(network: &mut Network, steps: &[Step]) {
    let count = network.hosts.len();
    let mut opened = Vec::new();
    for step in steps {
        match *step {
            Step::Open(from, to, mmax, rmax, deadline) => {
                let (from, to) = (from % count, to % count);
                let deadline = Nanos::from_micros(deadline);
                network.open(from, asked(opened.len(), to, (mmax, rmax), deadline));
                opened.push((from, to));
            }
            Step::Close(which, at_sink) => {
                if let Some((from, to)) = opened.get(which) {
                    network.close(if at_sink { *to } else { *from }, channel_number(which));
                }
            }
            Step::Cut(at) if at + 1 < count => network.cut(at),
            Step::Replace(at) if at + 1 < count => network.replace(at),
            Step::Cut(_) | Step::Replace(_) => {}
            Step::Crash(at) => network.crash(at % count),
            Step::Stop(at) => network.stop(at % count),
            Step::Resume(at) => network.resume(at % count),
            Step::Explain(at, which) => {
                network.explain(at % count, channel_number(which));
            }
            Step::Wait(micros) => network.run(Nanos::from_micros(micros)),
        }
    }
}

proptest! {
    #![proptest_config(cases(256))]

    /// Whatever was opened, closed, lost, cut, crashed and stopped: 25 s after the last fault every
    /// ledger has exactly the established channels, all hosts of a channel agree on bounds that sum
    /// to the deadline, every program was told once how its channel began and ended, and every
    /// question was answered once. (The
    /// network checks that no hold is older than 5 s without being confirmed, that no channel is
    /// older than 15 s without a refresh of each neighbour, and that no relaxation fails.)
    #[test]
    fn after_quiet_time_the_ledgers_are_the_established_channels(
        count in 1_usize..=5,
        faults in faults(),
        seed in any::<u64>(),
        steps in steps(),
    ) {
        let mut network = Network::new(count, faults, seed);
        play(&mut network, &steps);
        network.faults = Faults { delay: faults.delay, ..Faults::default() };
        (0..count).for_each(|at| network.resume(at));
        network.run(Nanos::from_secs(25));
        network.check_quiet();
        // And what is there lasts.
        let established = network.established();
        network.run(Nanos::from_secs(60));
        network.check_quiet();
        prop_assert_eq!(network.established(), established);
    }

    /// Hosts that follow the protocol never disconnect each other, also if programs of several
    /// hosts use few identifiers again and again, and connections break and hosts crash and stop.
    /// (So no host can make two others disconnect each other by what it asks of them.)
    #[test]
    fn hosts_that_follow_the_protocol_never_disconnect_each_other(
        count in 2_usize..=5,
        faults in faults(),
        seed in any::<u64>(),
        steps in steps(),
        reused in prop::collection::vec((0_usize..3, 0_usize..5, 0_usize..5, 1_u64..90, any::<bool>()), 1..60),
    ) {
        let faults = Faults { lost: 0, ..faults };
        let mut network = Network::new(count, faults, seed);
        for (step, (number, from, to, deadline, closes)) in steps.iter().cycle().zip(reused) {
            let (from, to) = (from % count, to % count);
            if closes {
                network.close(from, channel_number(number));
            }
            network.open(from, asked(number, to, (500, 10), millis(deadline)));
            if let Step::Explain(at, which) = step {
                network.explain(at % count, channel_number(which % 3));
            } else if !matches!(step, Step::Open(..) | Step::Close(..)) {
                play(&mut network, std::slice::from_ref(step));
            }
            prop_assert!(network.violations.is_empty(), "{:?}", network.violations);
        }
        network.faults = Faults { delay: faults.delay, ..Faults::default() };
        (0..count).for_each(|at| network.resume(at));
        network.run(Nanos::from_secs(25));
        network.check_ledgers();
        prop_assert!(network.violations.is_empty(), "{:?}", network.violations);
    }

    /// Without faults every channel is established or refused, and the best deadline of a refusal
    /// is granted if it is asked for at once. 1 % less is refused, with the same best deadline.
    #[test]
    fn the_best_deadline_of_a_refusal_is_granted_and_a_shorter_one_is_not(
        count in 1_usize..=5,
        seed in any::<u64>(),
        others in prop::collection::vec((0_usize..5, 0_usize..5, 1_u64..9_000, 1_u32..60), 0..8),
        (from, to, mmax, rmax) in (0_usize..5, 0_usize..5, 1_u64..9_000, 1_u32..60),
    ) {
        let faults = Faults { delay: millis(3), ..Faults::default() };
        let mut network = Network::new(count, faults, seed);
        let mut number = 0;
        let mut ask = |network: &mut Network, (from, to), size, deadline| {
            network.open(from, asked(number, to, size, deadline));
            network.run(millis(500));
            let told = network.hosts[from].told[&channel_number(number)].clone();
            number += 1;
            told
        };
        for (from, to, mmax, rmax) in others {
            let way = (from % count, to % count);
            ask(&mut network, way, (mmax, rmax), millis(90));
        }
        let (way, size) = ((from % count, to % count), (mmax, rmax));
        let refused = |told: &[Told]| match told {
            [Told::Refused(refusal)] => refusal.best_deadline_ns,
            other => panic!("{other:?}"),
        };
        let best = refused(&ask(&mut network, way, size, Nanos(1)));
        // Without a best deadline, the links are full.
        if let Some(best) = best {
            let shorter = Nanos(best - best.div_ceil(100));
            prop_assert_eq!(refused(&ask(&mut network, way, size, shorter)), Some(best));
            let told = ask(&mut network, way, size, Nanos(best));
            let is_open = told.iter().any(|one| matches!(one, Told::Opened(_)));
            prop_assert!(is_open, "{:?}", told);
        }
        network.run(Nanos::from_secs(30));
        network.check_quiet();
    }
}

/// A network with a channel along all hosts, `count` times.
fn with_channels(hosts: usize, count: usize) -> Network {
    let faults = Faults {
        delay: millis(2),
        ..Faults::default()
    };
    let mut network = Network::new(hosts, faults, 7);
    for number in 0..count {
        network.open(0, asked(number, hosts - 1, (500, 10), millis(60)));
    }
    network.run(Nanos::from_secs(20));
    network.check_quiet();
    assert_eq!(network.established(), count);
    network
}

#[test]
fn what_was_held_is_free_2_s_after_a_crash_and_16_s_after_a_stop() {
    for stops in [false, true] {
        for dead in 0..4 {
            let mut network = with_channels(4, 5);
            let free_after = match stops {
                true => {
                    network.stop(dead);
                    Nanos::from_secs(16)
                }
                false => {
                    network.crash(dead);
                    Nanos::from_secs(2)
                }
            };
            network.run(free_after);
            for (at, host) in network.hosts.iter().enumerate() {
                let is_free = host.ledger.is_empty();
                assert!(is_free || host.state == State::Stopped, "h{at} of h{dead}");
            }
            // A stopped host that continues is told, and frees what it has.
            network.resume(dead);
            network.run(millis(100));
            assert!(network.hosts.iter().all(|host| host.ledger.is_empty()));
            network.check_quiet();
        }
    }
}

#[test]
fn a_stop_of_less_than_10_s_ends_no_channel() {
    let mut network = with_channels(4, 5);
    for at in 0..4 {
        network.stop(at);
        network.run(millis(9_500));
        network.resume(at);
        network.run(Nanos::from_secs(30));
    }
    network.check_quiet();
    assert_eq!(network.established(), 5);
}

#[test]
fn a_thousand_channels_pass_a_relay_and_their_refresh_is_below_10_kb_a_second() {
    // The bounds come from the test, because the links of the network are full earlier.
    let mut relay = Machine::beside("r", &["a", "b"]);
    let channel = |number: usize| channel_number(number);
    for number in 0..1_000 {
        let Open {
            service,
            sink,
            sink_address,
            contract,
            packet,
            ..
        } = request(1, "b", millis(30));
        let (channel, hops) = (channel(number), hops(&[("a", 4)]));
        let establish = Establish {
            channel,
            attempt: 0,
            service,
            sink,
            sink_address,
            contract,
            packet,
            from: address("a"),
            to: peer_of("a"),
            hops,
        };
        relay.receive("a", Message::Establish(establish));
        relay.held(number as u64, 5, Some("b"));
        let hops = super::hops(&[("a", 9), ("r", 10), ("b", 11)]);
        relay.receive(
            "b",
            Message::Established(Established {
                channel,
                attempt: number as u64,
                port: port("b"),
                hops,
            }),
        );
        relay.relaxed(number as u64);
        relay.wait(millis(3));
    }
    let actions = relay.wait(REFRESH);
    let mut bytes: BTreeMap<HostName, usize> = BTreeMap::new();
    for action in actions {
        if let Action::Send { neighbour, message } = action {
            let frame = crate::message::encode(&message).expect("short enough");
            *bytes.entry(neighbour).or_default() += frame.len();
        }
    }
    for (neighbour, bytes) in &bytes {
        assert!(
            *bytes > 32_000 && *bytes < 50_000,
            "{neighbour}: {bytes} bytes in 5 s"
        );
    }
    assert_eq!(bytes.len(), 2);
    assert_eq!(relay.count(), 1_000);
}

/// Prints the memory of a relay for each of 7,900 channels, and the time of a set-up.
#[test]
#[ignore = "figures of this machine; run it alone and with --release"]
fn figures_of_memory_and_time_of_a_relay() {
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
        let pages = statm.split(' ').nth(1).expect("a field");
        pages.parse::<usize>().expect("a number") * 4_096
    };
    let quota = Quota {
        channels: 8_000,
        in_progress: 8_000,
        opens_per_second: 1_000_000,
        mmax: Bytes(1 << 20),
        rate: Amount(u64::MAX),
        burst: Bytes(u64::MAX),
    };
    let policy = Policy {
        neighbour: quota,
        ..Policy::default()
    };
    let mut relay = Machine::with("relay.example.org", policy);
    relay.connect("source.example.org");
    relay.connect("sink.example.org");
    let way = [
        "source.example.org",
        "relay.example.org",
        "sink.example.org",
    ];
    let (before, begin) = (resident(), std::time::Instant::now());
    let count = 7_900;
    for number in 0..count {
        let Open {
            service,
            sink,
            sink_address,
            contract,
            packet,
            ..
        } = request(1, way[2], millis(30));
        let channel = channel_number(number);
        let establish = Establish {
            channel,
            attempt: 0,
            service,
            sink,
            sink_address,
            contract,
            packet,
            from: address("a"),
            to: peer_of("a"),
            hops: hops(&[(way[0], 4)]),
        };
        relay.receive(way[0], Message::Establish(establish));
        relay.held(number as u64, 5, Some(way[2]));
        let hops = hops(&[(way[0], 9), (way[1], 10), (way[2], 11)]);
        relay.receive(
            way[2],
            Message::Established(Established {
                channel,
                attempt: number as u64,
                port: port("b"),
                hops,
            }),
        );
        relay.relaxed(number as u64);
    }
    let time = begin.elapsed() / count as u32;
    let memory = (resident() - before) / count;
    assert_eq!(relay.count(), count);
    println!("{memory} bytes and {time:?} for each of {count} channels");
}

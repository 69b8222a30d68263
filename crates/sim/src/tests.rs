use core::num::NonZeroU32;

use netnice_core::admission::timing::Processor;
use netnice_core::contract::Contract;
use netnice_core::sched::{EarlyOrder, Wire};
use netnice_core::units::{Bytes, Instant, Nanos, Rate};

use crate::adapter::{Adapter, Connection};
use crate::{EarlyProcessing, Report, SentPacket, SimFlow, Simulation, Source};

mod invalid;
mod proofs;

/// A link of `mbit` Mbit/s for packets of 1500 bytes.
pub(crate) fn link(mbit: u64) -> Simulation {
    let rate = Rate::new(mbit * 1_000_000).expect("a rate");
    Simulation::new(Wire {
        longest: Bytes(1500),
        ..Wire::new(rate)
    })
}

pub(crate) fn greedy(size: u64) -> Source {
    Source::Greedy { size: Bytes(size) }
}

pub(crate) fn flow(name: &str, contract: &str, source: Source) -> SimFlow {
    SimFlow::new(name, contract, source).expect("a contract")
}

fn run_for(sim: &Simulation, seconds: u64) -> (Report, Vec<SentPacket>) {
    let mut sent = Vec::new();
    let report = sim.run(Nanos::from_secs(seconds), |one| sent.push(*one));
    (report.expect("a valid simulation"), sent)
}

/// 1500 bytes take 1.2 ms at 10 Mbit/s (NTCP, figure 4).
#[test]
fn a_slice_is_exactly_its_packets_in_every_period() {
    let count = |slice: &str| {
        let mut sim = link(10);
        sim.flows
            .push(flow("tcp", &format!("slice {slice}/50ms"), greedy(1500)));
        let (_, sent) = run_for(&sim, 10);
        let mut periods = vec![0_u32; 200];
        for one in sent {
            periods[(one.start.0 / 50_000_000) as usize] += 1;
        }
        periods
    };
    assert_eq!(count("2.4ms"), vec![2; 200]);
    let odd = count("3ms");
    assert!(
        odd.iter().all(|packets| (2..=3).contains(packets)),
        "{odd:?}"
    );
    assert_eq!(odd.iter().sum::<u32>(), 500);
}

#[test]
fn the_left_over_is_shared_by_weight_and_no_packet_is_lost() {
    let mut sim = link(100);
    sim.flows = vec![
        flow("one", "weight 100", greedy(1500)),
        flow("three", "weight 300", greedy(700)),
        flow(
            "some",
            "min 10mbit",
            Source::Constant {
                size: Bytes(1250),
                every: Nanos::from_millis(1),
            },
        ),
    ];
    let (report, _) = run_for(&sim, 4);
    let rate = |name| report.flow(name).expect("there").bytes as f64 * 8.0 / 4.0 / 1e6;
    assert!((rate("one") * 3.0 - rate("three")).abs() < 0.1, "{report}");
    assert!((rate("some") - 10.0).abs() < 0.01, "{report}");
    assert!(report.busy >= Nanos(3_999_000_000), "{report}");
    for flow in &report.flows {
        assert_eq!(flow.dropped, 0);
    }
    let some = report.flow("some").expect("there");
    assert!(some.packets + some.waiting == some.offered, "{report}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let mut sim = link(10);
    let mean = Nanos::from_millis(2);
    sim.flows = vec![
        flow(
            "a",
            "",
            Source::Poisson {
                size: Bytes(1000),
                mean,
            },
        ),
        flow(
            "b",
            "",
            Source::OnOff {
                size: Bytes(1000),
                every: mean,
                on: mean,
                off: mean,
            },
        ),
    ];
    let (first, _) = run_for(&sim, 2);
    let (again, _) = run_for(&sim, 2);
    assert_eq!(first, again);
    sim.seed = 2;
    assert_ne!(first, run_for(&sim, 2).0);
    let poisson = first.flow("a").expect("there");
    assert!((900..1100).contains(&poisson.offered), "{first}");
}

#[test]
fn queue_limits_and_stop_times_are_kept() {
    let mut sim = link(1);
    let mut short = flow(
        "short",
        "",
        Source::Bursts {
            size: Bytes(1000),
            count: 5,
            every: Nanos::from_secs(1),
        },
    );
    short.queue = 3;
    let late = flow(
        "late",
        "up 100kbit",
        Source::Trace(vec![(Nanos(0), Bytes(500)), (Nanos(9), Bytes(700))]),
    );
    sim.flows = vec![
        short,
        late.from(Nanos::from_millis(500))
            .until(Nanos::from_millis(501)),
    ];
    let (report, sent) = run_for(&sim, 2);
    let short = report.flow("short").expect("there");
    assert_eq!(
        (short.offered, short.dropped, short.packets),
        (15, 6, 6 + 1),
        "{report}"
    );
    let late = report.flow("late").expect("there");
    assert_eq!((late.offered, late.packets), (2, 1), "{report}");
    assert!(sent.windows(2).all(|pair| pair[0].end <= pair[1].start));
}

/// A message of two packets arrives each 12 ms. It takes 24 ms on the link, and 18 ms in the
/// processor.
#[test]
fn a_queue_limits_messages_of_several_packets() {
    let processor = r#"
        [processor]
        switch = "0s"
        cache-miss = "0s"
        first = "9ms"
        later = "9ms"
        link-scheduling = "0s"
        block = 1
        largest = "1500B"
    "#;
    for (processor, dropped) in [("", 500), (processor, 333)] {
        let text = format!(
            r#"
            duration = "12s"
            [link]
            rate = "1mbit"
            overhead = "0B"
            longest = "1500B"
            {processor}
            [[flow]]
            name = "a"
            queue = 2
            source = {{ kind = "constant", size = "3kB", every = "12ms" }}
            "#
        );
        let scenario: crate::scenario::Scenario = text.parse().expect("a scenario");
        let (report, _) = run_for(&scenario.simulation, 12);
        let one = report.flow("a").expect("there");
        assert!(one.dropped.abs_diff(dropped) <= 3, "{report}");
    }
}

#[test]
fn an_overbooked_slice_is_shared_by_class_and_proportion() {
    let text = r#"
        duration = "2s"
        [link]
        rate = "100mbit"
        [server]
        slice = "10ms/10ms"
        classes = ["none", "none", "5mbit"]
        [[flow]]
        name = "high"
        class = 0
        contract = "cell pcr=20mbit,cdvt=1ms"
        source = { kind = "greedy", size = "500B" }
        [[flow]]
        name = "half"
        class = 1
        contract = "cell pcr=50mbit,cdvt=1ms"
        source = { kind = "greedy", size = "500B" }
        [[flow]]
        name = "all"
        class = 1
        contract = "cell pcr=100mbit,cdvt=1ms"
        source = { kind = "greedy", size = "500B" }
        [[flow]]
        name = "low"
        class = 2
        contract = "cell pcr=100mbit,cdvt=1ms"
        source = { kind = "greedy", size = "500B" }
    "#;
    let scenario: crate::scenario::Scenario = text.parse().expect("a scenario");
    let report = scenario
        .simulation
        .run(scenario.duration, |_| ())
        .expect("a valid simulation");
    for (name, wanted) in [("high", 20.0), ("half", 25.0), ("all", 50.0), ("low", 5.0)] {
        let rate = report.flow(name).expect("there").bytes as f64 * 4e-6;
        assert!(
            (rate / wanted - 1.0).abs() < 0.02,
            "{name}: {rate}\n{report}"
        );
    }
}

/// A processor may handle the later messages of a burst before their logical arrivals, after best
/// effort or before it. In each case the link holds them until then.
#[test]
fn early_processing_displaces_best_effort_only_if_it_comes_first() {
    let found = [
        (0, EarlyOrder::AfterLeftOver),
        (100, EarlyOrder::AfterLeftOver),
        (100, EarlyOrder::BeforeLeftOver),
    ]
    .map(|(horizon, order)| {
        let us = Nanos::from_micros;
        let mut world = link(10);
        world.processor = Some(Processor {
            switch: us(0),
            cache_miss: us(0),
            first: us(1_000),
            later: us(1_000),
            link_scheduling: us(0),
            block: NonZeroU32::MIN,
            largest: Bytes(1_000),
            leftover: us(0),
        });
        let horizon = Nanos::from_millis(horizon);
        world.early = EarlyProcessing { horizon, order };
        let burst = Source::Trace(vec![(Nanos(0), Bytes(3_000)); 3]);
        let contract = "channel mmax=3kB,rmax=50/s,bmax=3,deadline=15ms";
        world.flows = vec![
            flow("burst", contract, burst),
            flow("bulk", "", greedy(1_000)),
        ];
        let (mut starts, mut bulk) = (Vec::new(), 0);
        let report = world
            .run(Nanos::from_millis(50), |sent| match sent.flow {
                0 => starts.push(sent.start.0 / 1_000_000),
                _ => bulk += u64::from(sent.start < Instant(9_500_000)),
            })
            .expect("a valid simulation");
        assert_eq!((report.missed(), report.flows[0].messages), (0, 3));
        let logical = [0, 0, 0, 20, 20, 20, 40, 40, 40];
        assert!(
            std::iter::zip(&starts, logical).all(|(start, from)| *start >= from),
            "{starts:?}"
        );
        bulk
    });
    // In 9 ms the processor handles 3 packets of the first message, and 6 of best effort unless the
    // other two messages come first.
    assert_eq!(found, [6, 6, 0]);
}

/// Two connections on a bus of 1 Gbit/s, which is faster than the link. A transfer begins after up
/// to 8 us, the time of about three cells on the link.
fn adapter(unit: u32, window: u32) -> Adapter {
    let rate = Rate::new(149_760_000).expect("a rate");
    let contract: Contract = "cell pcr=40mbit,cdvt=100us".parse().expect("a contract");
    let connection = Connection {
        contract: contract.cell().expect("a cell contract"),
        pdus: 5,
        cells: 103,
        start: Nanos(1_000),
    };
    Adapter {
        wire: Wire {
            longest: Bytes(53),
            ..Wire::new(rate)
        },
        bus: Rate::new(1_000_000_000).expect("a rate"),
        access: (Nanos(100), Nanos(8_000)),
        unit,
        window,
        connections: vec![connection; 2],
        seed: 3,
    }
}

#[test]
fn cells_are_fetched_in_time_within_the_window() {
    for (unit, window) in [(4, 16), (8, 24), (103, 206)] {
        let found = adapter(unit, window)
            .run(Nanos::from_secs(1))
            .expect("a valid simulation");
        assert_eq!((found.sent, found.reported), (2 * 5 * 103, 2), "{found:?}");
        assert_eq!(
            (found.underruns, found.violations),
            (0, 0),
            "unit {unit}: {found:?}"
        );
        assert!(found.most_buffered <= window, "{found:?}");
        let per_pdu = 103_u64.div_ceil(u64::from(unit));
        assert_eq!(found.transfers, 2 * 5 * per_pdu, "{found:?}");
    }
}

/// Underruns happen if the window is too small or the bus too slow.
#[test]
fn too_small_a_window_or_bus_causes_underruns() {
    let found = adapter(1, 1)
        .run(Nanos::from_secs(1))
        .expect("a valid simulation");
    assert_eq!(found.sent, 2 * 5 * 103);
    assert!(found.underruns > 100, "{found:?}");
    let slow = Adapter {
        bus: Rate::new(50_000_000).expect("a rate"),
        ..adapter(8, 24)
    };
    assert!(
        slow.run(Nanos::from_secs(1))
            .expect("a valid simulation")
            .underruns
            > 100
    );
}

#[test]
fn an_adapter_whose_transfers_carry_no_cell_is_refused() {
    let none = Adapter {
        access: (Nanos(0), Nanos(0)),
        ..adapter(0, 16)
    };
    let error = none.run(Nanos::from_secs(1)).expect_err("no unit");
    assert_eq!(
        error.to_string(),
        "the adapter fetches 0 cells per transfer (`unit`): 1 at least"
    );
}

#[test]
fn an_invalid_scenario_is_refused_with_its_key() {
    let error = |text: &str| match text.parse::<crate::scenario::Scenario>() {
        Ok(_) => panic!("{text} was read"),
        Err(error) => error.to_string(),
    };
    let link = "duration = '1s'\n[link]\nrate = '10mbit'\n";
    assert!(error("duration = '1s'").contains("link"));
    assert!(error("duration = '1s'\n[link]\nrate = '10mbps'").starts_with("link.rate: "));
    assert!(error(&format!("{link}speed = 1")).contains("speed"));
    let one = |rest: &str| format!("{link}[[flow]]\nname = 'a'\n{rest}\n");
    let source = "source = { kind = 'greedy', size = '1kB' }";
    assert!(error(&one("source = { kind = 'loud' }")).contains("loud"));
    assert!(
        error(&one(&format!("contract = 'slice 2s/1s'\n{source}")))
            .contains("longer than its period")
    );
    let bursts = "source = { kind = 'bursts', size = '1kB', count = 1, every = '1s' }";
    let channel = "contract = 'channel mmax=1kB,rmax=1/s,bmax=1,deadline=1s'";
    let unknown = one(&format!("{channel}\n{bursts}\noverload = 'weep'"));
    assert!(error(&unknown).contains("weep"));
    let twice = format!("{}[[flow]]\nname = 'a'\n{source}", one(source));
    assert!(error(&twice).contains("two flows are named `a`"));
}

#[test]
fn the_example_scenarios_keep_their_promises() {
    let run = |text: &str| {
        let scenario: crate::scenario::Scenario = text.parse().expect("a scenario");
        let report = scenario
            .simulation
            .run(scenario.duration, |_| ())
            .expect("a valid simulation");
        assert_eq!((report.missed(), report.violations()), (0, 0), "{report}");
        report
    };
    let found = run(include_str!("../scenarios/slices.toml"));
    let packets = |name| found.flow(name).map_or(0, |flow| flow.packets);
    assert_eq!(packets("video"), 2 * 40);
    // 5 Mbit/s for two seconds, and a burst of 5 ms.
    assert!((832..=837).contains(&packets("backup")), "{found}");
    assert!(packets("download") > 500, "{found}");
    let found = run(include_str!("../scenarios/channels.toml"));
    let camera = found.flow("camera").expect("it is there");
    assert!(camera.messages >= 146, "{found}");
    assert!(
        found.flow("control").is_some_and(|one| one.messages > 1000),
        "{found}"
    );
}

/// Every message is sent, dropped or still waits; how many of each depends on the policy (see the
/// scenario file).
#[test]
fn messages_beyond_the_contract_follow_the_overload_policy() {
    let text = include_str!("../scenarios/overload.toml");
    let scenario: crate::scenario::Scenario = text.parse().expect("a scenario");
    let report = scenario
        .simulation
        .run(scenario.duration, |_| ())
        .expect("a valid simulation");
    assert_eq!((report.missed(), report.violations()), (0, 0), "{report}");
    let flow = |name: &str| report.flow(name).expect("it is there").clone();
    for one in &report.flows {
        let outcomes = one.packets + one.dropped + one.waiting;
        assert_eq!(one.offered, outcomes, "{report}");
        // 4 s of 100 messages each.
        assert!(one.packets <= 400, "{report}");
    }
    let [blocked, decaying, spaced, dropping] =
        ["blocked", "decaying", "spaced", "dropping"].map(flow);
    // Six messages in 50 ms are one more than the contract allows; messages that are not dropped
    // all wait.
    for one in [&blocked, &decaying, &spaced] {
        assert_eq!((one.offered, one.dropped), (480, 0), "{report}");
        assert!(one.packets >= 399, "{report}");
    }
    // Room for three of each six; the contract would allow five.
    assert_eq!((dropping.packets, dropping.dropped), (240, 240), "{report}");
    assert_eq!((decaying.held, dropping.held), (0, 0), "{report}");
    // Only a few messages at the beginning are admitted when they arrive.
    assert!(
        blocked.held >= 470 && spaced.held >= blocked.held,
        "{report}"
    );
    let conforming = flow("conforming");
    assert_eq!((conforming.packets, conforming.held), (240, 0), "{report}");
}

/// Behind a processor the gate counts the messages that wait for processing.
#[test]
fn behind_a_processor_the_gate_counts_the_queue_before_it() {
    let text = include_str!("../scenarios/overload.toml").replace(
        "[[flow]]\nname = \"blocked\"",
        r#"[processor]
switch = "5us"
cache-miss = "9us"
first = "42us"
later = "17us"
link-scheduling = "16us"
block = 4
largest = "1500B"

[[flow]]
name = "blocked""#,
    );
    let scenario: crate::scenario::Scenario = text.parse().expect("a scenario");
    assert!(scenario.simulation.processor.is_some());
    let report = scenario
        .simulation
        .run(scenario.duration, |_| ())
        .expect("a valid simulation");
    for name in ["blocked", "decaying", "spaced", "dropping", "conforming"] {
        let one = report.flow(name).expect("it is there");
        assert_eq!(one.missed, 0, "{report}");
        // At most one message is between the queues.
        let outcomes = one.packets + one.dropped + one.waiting;
        assert!((outcomes..=outcomes + 1).contains(&one.offered), "{report}");
    }
    let dropping = report.flow("dropping").expect("it is there");
    assert_eq!((dropping.packets, dropping.dropped), (240, 240), "{report}");
    let blocked = report.flow("blocked").expect("it is there");
    assert!(blocked.packets >= 399 && blocked.held > 0, "{report}");
}

//! Tests of invalid simulations, and of contracts behind a processor.

use netnice_core::units::{Bytes, Nanos};

use super::{flow, greedy, link};
use crate::scenario::Scenario;
use crate::{Report, Source};

fn run_text(text: &str) -> Report {
    let scenario: Scenario = text.parse().expect("a scenario");
    let report = scenario.simulation.run(scenario.duration, |_| ());
    report.expect("a valid simulation")
}

fn refused(text: &str) -> String {
    match text.parse::<Scenario>() {
        Ok(_) => panic!("{text} was read"),
        Err(error) => error.to_string(),
    }
}

/// Two channels and a greedy flow behind a processor; the greedy flow has this contract.
fn channels(contract: &str) -> String {
    let bulk = format!("name = \"bulk\"\ncontract = \"{contract}\"");
    include_str!("../../scenarios/channels.toml").replace("name = \"bulk\"", &bulk)
}

fn one(flow: &str) -> String {
    format!("duration = '1s'\n[link]\nrate = '10mbit'\n[[flow]]\nname = 'a'\n{flow}\n")
}

const GREEDY: &str = "source = { kind = 'greedy', size = '1kB' }";

/// Regression: a rate once applied to the processor too, where a byte is a nanosecond: 1 Mbit/s
/// became 17 kbit/s, and MBS was 30 us.
#[test]
fn contracts_apply_to_the_link_behind_a_processor() {
    for (contract, rate) in [
        ("up 1mbit burst 10ms", 1e6),
        ("cell pcr=20mbit,cdvt=5ms,scr=5mbit,mbs=30kB", 5e6),
        ("slice 1ms/10ms", 10e6),
    ] {
        let report = run_text(&channels(contract));
        assert_eq!((report.missed(), report.violations()), (0, 0), "{report}");
        let bulk = report.flow("bulk").expect("it is there");
        let got = bulk.bytes as f64 * 8.0 / 5.0;
        assert!(
            (got / rate - 1.0).abs() < 0.03,
            "{contract}: {got}\n{report}"
        );
    }
    let limited = "channel mmax=1500B,rmax=100/s,bmax=2,deadline=20ms up 2mbit burst 9ms";
    let each = "kind = \"constant\", every = \"10ms\"";
    let report = run_text(&channels(limited).replace("kind = \"greedy\"", each));
    assert_eq!(report.missed(), 0, "{report}");
    let packets = report.flow("bulk").map_or(0, |bulk| bulk.packets);
    assert!((485..=515).contains(&packets), "{report}");
}

#[test]
fn a_block_that_takes_too_long_is_refused() {
    let slow = channels("").replace("later = \"17us\"", "later = \"4ms\"");
    assert_eq!(
        refused(&slow),
        "`camera`: the processor takes 12.134ms for a block of 4 packets of it, and is not \
         interrupted meanwhile: 10ms at most"
    );
    // Any number of packets of any size. Regression: their product once overflowed.
    let whole = channels("").replace("block = 4", "block = 16777216");
    let report = run_text(&whole.replace("largest = \"1500B\"", "largest = \"1TiB\""));
    assert_eq!(report.missed(), 0, "{report}");
    let nothing = channels("").replace("largest = \"1500B\"", "largest = \"0B\"");
    assert!(refused(&nothing).contains("packets of 0B"));
    let costs = ["5us", "9us", "42us", "17us", "16us"];
    let idle = costs.iter().fold(channels(""), |text, cost| {
        text.replace(&format!(" = \"{cost}\""), " = \"0s\"")
    });
    assert!(refused(&idle).contains("takes no time"));
}

#[test]
fn a_source_that_never_ends_is_refused() {
    for (source, wrong) in [
        (
            "{ kind = 'greedy', size = '0B' }",
            "`a` has messages of 0B: 1B to 1GiB",
        ),
        (
            "{ kind = 'trace', packets = [['0s', '1kB'], ['1ms', '0B']] }",
            "`a` has messages of 0B: 1B to 1GiB",
        ),
        (
            "{ kind = 'greedy', size = '1TiB' }",
            "of 1024GiB: 1B to 1GiB",
        ),
        (
            "{ kind = 'poisson', size = '1kB', mean = '0s' }",
            "`a` has 0s from one message to the next (`mean`): 1ns at least",
        ),
        (
            "{ kind = 'constant', size = '1kB', every = '0s' }",
            "(`every`)",
        ),
        (
            "{ kind = 'on-off', size = '1kB', every = '0s', on = '1s', off = '1s' }",
            "(`every`)",
        ),
        (
            "{ kind = 'bursts', size = '1kB', count = 2, every = '0s' }",
            "(`every`)",
        ),
        (
            "{ kind = 'bursts', size = '1kB', count = 0, every = '1s' }",
            "`a` has 0 messages in a burst: 1 to 1000000",
        ),
        (
            "{ kind = 'bursts', size = '1kB', count = 4294967295, every = '1s' }",
            "1 to 1000000",
        ),
    ] {
        let error = refused(&one(&format!("source = {source}")));
        assert!(error.contains(wrong), "{source}: {error}");
    }
    // A simulation that is built in code is checked too.
    let mut sim = link(10);
    let mean = Nanos(0);
    let size = Bytes(100);
    sim.flows = vec![flow("a", "", Source::Poisson { size, mean })];
    let error = sim.run(Nanos::from_secs(1), |_| ()).map(|_| ());
    assert!(error.is_err_and(|error| error.to_string().contains("`mean`")));
}

#[test]
fn a_server_has_a_slice_and_nothing_else() {
    let server = |slice: &str| {
        one(&format!(
            "class = 0\ncontract = 'cell pcr=1mbit,cdvt=1ms'\n{GREEDY}\n\
             [server]\nslice = '{slice}'\nclasses = ['none']"
        ))
    };
    assert!(server("5ms/10ms").parse::<Scenario>().is_ok());
    for wrong in [
        "5ms/10ms up 1mbit",
        "5ms/10ms extra",
        "5ms/10ms weight 3",
        "",
        "none",
        "20ms/10ms",
    ] {
        let error = refused(&server(wrong));
        assert!(error.starts_with("server.slice"), "{wrong}: {error}");
    }
}

#[test]
fn clauses_without_effect_are_refused() {
    for clause in [
        "priority 1",
        "down 1mbit",
        "on eth0",
        "cpu 1ms/10ms",
        "min-down 1mbit",
    ] {
        let error = refused(&one(&format!("contract = '{clause}'\n{GREEDY}")));
        let word = clause.split(' ').next().unwrap_or_default();
        assert!(
            error.contains(&format!("`a`: `{word}` has no effect")),
            "{error}"
        );
    }
}

/// Each reason has its own message.
#[test]
fn misplaced_classes_and_policies_are_refused() {
    let cell = "contract = 'cell pcr=1mbit,cdvt=1ms'";
    let server = "[server]\nslice = '5ms/10ms'\nclasses = ['none', 'none']";
    let class = |class: usize, rest: &str| one(&format!("class = {class}\n{rest}"));
    assert_eq!(
        refused(&class(0, &format!("{cell}\n{GREEDY}"))),
        "`a` has a class: that needs a [server]"
    );
    assert_eq!(
        refused(&class(2, &format!("{cell}\n{GREEDY}\n{server}"))),
        "`a` has class 2 of the server, which has 2, counted from 0"
    );
    for other in [
        "contract = 'min 1mbit'",
        "contract = 'cell pcr=1mbit,cdvt=1ms up 1mbit'",
    ] {
        assert_eq!(
            refused(&class(0, &format!("{other}\n{GREEDY}\n{server}"))),
            "`a` has a class: its contract must be a cell contract, and nothing else"
        );
    }
    let behind = channels("cell pcr=1mbit,cdvt=1ms").replace("queue = 64", "class = 0") + server;
    assert_eq!(
        refused(&behind),
        "`bulk` has a class: a server is on the link, with no [processor] before it"
    );
    let policy = |rest: &str| refused(&one(&format!("overload = 'drop'\n{rest}")));
    let bursts = "source = { kind = 'bursts', size = '1kB', count = 1, every = '1s' }";
    let channel = "contract = 'channel mmax=1kB,rmax=1/s,bmax=1,deadline=1s'";
    assert!(policy(bursts).ends_with("that needs a channel contract"));
    assert!(policy(&format!("{channel}\n{GREEDY}")).contains("its source is greedy"));
    assert!(
        policy(&format!("{channel}\n{bursts}\nqueue = 3"))
            .contains("a `queue` of 3: name only one")
    );
}

/// Regression: a trace was once copied for each of its packets, and a million packets took hours.
#[test]
fn a_long_trace_is_simulated_quickly() {
    let mut sim = link(1000);
    let all = (0..200_000).map(|n| (Nanos(n * 1_000), Bytes(64)));
    sim.flows = vec![flow("trace", "", Source::Trace(all.collect()))];
    sim.flows
        .push(flow("bulk", "", greedy(1500)).until(Nanos(1)));
    let report = sim
        .run(Nanos::from_millis(300), |_| ())
        .expect("a valid simulation");
    assert_eq!(report.flow("trace").map(|one| one.packets), Some(200_000));
}

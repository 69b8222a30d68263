mod cells;
mod processors;

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use proptest::option;
use proptest::prelude::*;

use super::{
    Bucket, Cell, Change, Channel, Clause, Contract, Delegate, Direction, Dscp, IfName,
    MessageRate, Overload, Priority, ProcessorTime, ReceiveShare, Schedule, Setting, Slice,
    Sustained, TrafficQuota, Unsupported, Weight, Yield, target_support,
};
use crate::units::{Bytes, Nanos, Rate};

fn change(text: &str) -> Change {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn contract(text: &str) -> Contract {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

#[test]
fn every_clause_parses_and_prints() {
    let cases = [
        ("limits", "up 4mbit down 1mbit", ""),
        ("both", "both 2mbit", ""),
        (
            "guarantees on a link",
            "min 60mbit min-down 10mbit on eth0",
            "",
        ),
        ("sharing", "weight 200 priority 1", ""),
        ("burst", "up 4mbit burst 5ms", ""),
        ("a code point", "up 4mbit dscp AF21", ""),
        ("a code point by number", "dscp 46", "dscp EF"),
        ("a code point without a name", "dscp 63", ""),
        ("best effort", "dscp 0", "dscp CS0"),
        ("yield", "up 4mbit dscp CS1 yield on", ""),
        ("yield cleared", "yield none", ""),
        ("a budget", "up 20mbit min 10mbit delegate ann", ""),
        ("a budget by number", "min-down 1mbit delegate 1000", ""),
        ("a delegation cleared", "delegate none", ""),
        ("a quota", "quota 20GB/month,then=1mbit", ""),
        (
            "a quota with hours",
            "quota 64MiB/hour when mon-fri@08:00-18:00",
            "",
        ),
        ("hours", "up 4mbit when mon-fri@08:00-18:00", ""),
        ("a slice", "slice 2.4ms/50ms extra", ""),
        ("a slice alone", "slice 2.4ms/50ms", ""),
        ("cpu", "cpu 2ms/10ms cpu-extra", ""),
        ("a peak", "cell pcr=10mbit,cdvt=100us", ""),
        (
            "a dual bucket",
            "cell pcr=10mbit,cdvt=100us,scr=2mbit,mbs=64KiB,bucket=dual",
            "",
        ),
        (
            "single is the bucket unless named",
            "cell pcr=10mbit,cdvt=100us,scr=2mbit,mbs=64KiB",
            "cell pcr=10mbit,cdvt=100us,scr=2mbit,mbs=64KiB,bucket=single",
        ),
        (
            "a channel",
            "channel mmax=60KiB,rmax=30/s,bmax=4,deadline=20ms",
            "",
        ),
        (
            "another order",
            "down 1Mbit/s up 4000kbit",
            "up 4mbit down 1mbit",
        ),
        (
            "extra before its slice",
            "extra slice 1ms/2ms",
            "slice 1ms/2ms extra",
        ),
        ("none and its twin", "up 0 down none", "up none down none"),
        (
            "all can be cleared",
            "on none weight none burst none cell none",
            "on none weight none burst none cell none",
        ),
        (
            "white space",
            "  up\t4mbit \n down 1mbit ",
            "up 4mbit down 1mbit",
        ),
    ];
    for (why, text, written) in cases {
        let written = if written.is_empty() { text } else { written };
        assert_eq!(change(text).to_string(), written, "{why}");
        assert_eq!(change(written), change(text), "{why}");
    }
}

/// Checks that each text (reason, text, part of the error) is refused on one line.
fn check_errors(cases: &[(&str, &str, &str)]) {
    for (why, text, expected) in cases {
        let error = text.parse::<Change>().expect_err(why).to_string();
        assert!(error.contains(expected), "{why}: {error}");
        assert!(!error.contains('\n'), "{why}: {error}");
    }
}

#[test]
fn missing_unknown_and_repeated_words_are_refused_with_the_reason() {
    let long = "up 4mbit ".repeat(500);
    check_errors(&[
        ("empty", "", "no clause is given"),
        ("only space", " \n", "no clause is given"),
        ("unknown", "rate 4mbit", "`rate` is not a clause"),
        ("no value", "up", "up needs a value"),
        ("twice", "up 4mbit up 5mbit", "up is named twice"),
        ("twice, cleared", "up 4mbit up none", "up is named twice"),
        (
            "extra twice",
            "slice 1ms/2ms extra extra",
            "slice is named twice",
        ),
        ("extra alone", "extra", "extra belongs to slice"),
        (
            "extra of none",
            "slice none extra",
            "extra belongs to slice",
        ),
        (
            "cpu-extra alone",
            "up 4mbit cpu-extra",
            "cpu-extra belongs to cpu",
        ),
        (
            "long",
            &long,
            "the contract is 4500 bytes long, more than 4096",
        ),
    ]);
}

#[test]
fn contradicting_clauses_are_refused_with_both_values() {
    check_errors(&[
        (
            "min above max",
            "min 5mbit up 4mbit",
            "min 5 Mbit/s (625 kB/s) is above up 4 Mbit/s",
        ),
        (
            "min-down above max",
            "min-down 5mbit down 4mbit",
            "min-down 5 Mbit/s",
        ),
        (
            "min above both",
            "min 5mbit both 4mbit",
            "is above both 4 Mbit/s",
        ),
        (
            "mins above both",
            "min 3mbit min-down 2mbit both 4mbit",
            "min plus min-down 5 Mbit/s",
        ),
        (
            "both and up",
            "both 4mbit up 4mbit",
            "both 4 Mbit/s (500 kB/s) and up 4 Mbit/s",
        ),
        (
            "both and down",
            "both 4mbit down 4mbit",
            "set the other to none",
        ),
        (
            "yield and weight",
            "yield on weight 7",
            "yield and weight cannot hold together",
        ),
        ("yield and min", "up 4mbit yield on min 1mbit", "`min none`"),
        (
            "yield and a link",
            "yield on on eth0",
            "yield and on cannot",
        ),
        (
            "slice and min",
            "slice 1ms/2ms min 1mbit",
            "slice and min both reserve",
        ),
    ]);
}

#[test]
fn invalid_values_are_refused_with_the_allowed_ones() {
    check_errors(&[
        ("a bad rate", "up 10mbps", "up: `10mbps` is not a rate"),
        ("a bare rate", "up 10", "up: `10` is not a rate"),
        ("zero period", "slice 1ms/0ms", "the period is zero"),
        ("zero slice", "slice 0ms/1ms", "the slice is zero"),
        (
            "slice above period",
            "slice 3ms/2ms",
            "the slice 3ms is longer than its period 2ms",
        ),
        (
            "long period",
            "slice 3ms/11s",
            "the period 11s is longer than 10s",
        ),
        ("no slash", "slice 3ms", "slice: `3ms` is not a slice"),
        ("cpu's slice", "cpu 3ms/2ms", "longer than its period"),
        (
            "zero burst",
            "burst 0ms",
            "the burst 0s is not allowed: write 1us to 10s",
        ),
        ("long burst", "burst 11s", "the burst 11s is not allowed"),
        (
            "weight 0",
            "weight 0",
            "weight: `0` is not allowed: write a whole number from 1 to 1000",
        ),
        ("weight 1001", "weight 1001", "from 1 to 1000"),
        (
            "dscp 64",
            "dscp 64",
            "dscp: `64` is not allowed: write a name",
        ),
        ("dscp a word", "dscp gold", "a number from 0 to 63, or none"),
        (
            "yield yes",
            "yield yes",
            "yield: `yes` is not allowed: write on or none",
        ),
        ("no dscp", "dscp", "dscp needs a value"),
        ("weight a word", "weight heavy", "from 1 to 1000"),
        ("priority 8", "priority 8", "from 0 (first) to 7"),
        ("priority -1", "priority -1", "from 0 (first) to 7"),
        (
            "a bad interface",
            "on eth/0",
            "`eth/0` is not the name of an interface",
        ),
        (
            "a long interface",
            "on abcdefghijklmnop",
            "is not the name of an interface",
        ),
    ]);
}

#[test]
fn invalid_parts_of_cell_are_refused_with_the_reason() {
    check_errors(&[
        (
            "pcr below scr",
            "cell pcr=1mbit,cdvt=1ms,scr=2mbit,mbs=1KiB",
            "pcr 1 Mbit/s (125 kB/s) is below scr",
        ),
        ("no cdvt", "cell pcr=1mbit", "cell: missing `cdvt`"),
        (
            "scr without mbs",
            "cell pcr=1mbit,cdvt=1ms,scr=1mbit",
            "cell: missing `mbs`",
        ),
        (
            "mbs without scr",
            "cell pcr=1mbit,cdvt=1ms,mbs=1KiB",
            "cell: unknown part `mbs`",
        ),
        (
            "bucket without scr",
            "cell pcr=1mbit,cdvt=1ms,bucket=dual",
            "unknown part `bucket`",
        ),
        (
            "a third bucket",
            "cell pcr=1mbit,cdvt=1ms,scr=1mbit,mbs=1KiB,bucket=triple",
            "unknown bucket `triple`",
        ),
        (
            "a part twice",
            "cell pcr=1mbit,pcr=1mbit,cdvt=1ms",
            "cell: twice `pcr`",
        ),
        ("no value", "cell pcr", "cell: no value in `pcr`"),
        (
            "zero burst size",
            "cell pcr=1mbit,cdvt=1ms,scr=1mbit,mbs=0",
            "cell: mbs is zero",
        ),
    ]);
}

#[test]
fn invalid_parts_of_channel_are_refused_with_the_reason() {
    check_errors(&[
        (
            "a sixth policy",
            "channel mmax=1KiB,rmax=1/s,bmax=1,deadline=1ms,overload=weep",
            "unknown overload policy `weep`",
        ),
        (
            "processing of the whole deadline",
            "channel mmax=1KiB,rmax=1/s,bmax=1,deadline=1ms,processing=1ms",
            "processing=1ms is not allowed with deadline=1ms: it must be below the deadline",
        ),
        (
            "processing above its limit",
            "channel mmax=1KiB,rmax=1/s,bmax=1,deadline=9s,processing=5s",
            "below the deadline and at most 4s",
        ),
        (
            "zero message",
            "channel mmax=0,rmax=30/s,bmax=4,deadline=20ms",
            "channel: mmax is zero",
        ),
        (
            "zero messages",
            "channel mmax=1,rmax=0/s,bmax=4,deadline=20ms",
            "rmax as 1/s to 1000000/s",
        ),
        (
            "no per second",
            "channel mmax=1,rmax=30,bmax=4,deadline=20ms",
            "rmax as 1/s",
        ),
        (
            "zero deadline",
            "channel mmax=1,rmax=30/s,bmax=4,deadline=0ms",
            "deadline is zero",
        ),
        (
            "negative bmax",
            "channel mmax=1,rmax=30/s,bmax=-4,deadline=1ms",
            "bmax as a whole number",
        ),
    ]);
}

#[test]
fn a_change_replaces_the_clauses_that_it_names() {
    let cases = [
        ("up stays", "up 4mbit", "down 1mbit", "up 4mbit down 1mbit"),
        ("up is replaced", "up 4mbit", "up 2mbit", "up 2mbit"),
        (
            "up is taken away",
            "up 4mbit down 1mbit",
            "up none",
            "down 1mbit",
        ),
        ("the last one too", "up 4mbit", "up 0", "none"),
        (
            "from one kind to the other",
            "up 4mbit",
            "up none both 2mbit",
            "both 2mbit",
        ),
        (
            "from min to slice",
            "min 4mbit",
            "min none slice 1ms/2ms",
            "slice 1ms/2ms",
        ),
        (
            "a new slice loses its extra",
            "slice 1ms/2ms extra",
            "slice 1ms/3ms",
            "slice 1ms/3ms",
        ),
    ];
    for (why, before, text, result) in cases {
        let after = contract(before).apply(&change(text)).expect(why);
        assert_eq!(after.to_string(), result, "{why}");
    }
}

#[test]
fn a_change_that_contradicts_the_contract_is_refused() {
    let cases = [
        (
            "up 4mbit",
            "both 2mbit",
            "both 2 Mbit/s (250 kB/s) and up 4 Mbit/s",
        ),
        ("up 4mbit", "min 5mbit", "min 5 Mbit/s"),
        ("min 5mbit", "up 4mbit", "is above up 4 Mbit/s"),
        ("min 5mbit", "slice 1ms/2ms", "slice and min"),
    ];
    for (before, text, expected) in cases {
        let error = contract(before)
            .apply(&change(text))
            .expect_err(text)
            .to_string();
        assert!(error.contains(expected), "{before} + {text}: {error}");
    }
    let nothing = Contract::default().apply(&Change::default());
    assert!(nothing.is_err(), "an empty change is no change");
}

#[test]
fn a_whole_contract_clears_nothing() {
    assert_eq!("none".parse(), Ok(Contract::default()));
    assert_eq!(Contract::default().to_string(), "none");
    let error = "up 4mbit down none"
        .parse::<Contract>()
        .expect_err("cleared")
        .to_string();
    assert!(error.starts_with("down none:"), "{error}");
}

#[test]
fn an_unprivileged_user_may_set_limits_only() {
    for text in [
        "up 4mbit",
        "down none",
        "both 2mbit burst 1ms",
        "dscp CS1",
        "yield on",
    ] {
        assert_eq!(change(text).needs_privilege(), None, "{text}");
    }
    for (text, clause) in [
        ("up 4mbit min 1mbit", Clause::Min),
        ("min-down 1mbit", Clause::MinDown),
        ("on eth0", Clause::On),
        ("weight 1", Clause::Weight),
        ("priority none", Clause::Priority),
        ("delegate ann", Clause::Delegate),
        ("slice 1ms/2ms", Clause::Slice),
        ("cpu 1ms/2ms", Clause::Cpu),
        ("cell none", Clause::Cell),
        ("channel none", Clause::Channel),
        ("receive none", Clause::Receive),
    ] {
        assert_eq!(change(text).needs_privilege(), Some(clause), "{text}");
        let in_budget = (!clause.is_share()).then_some(clause);
        assert_eq!(
            change(text).needs_privilege_in_budget(),
            in_budget,
            "{text}"
        );
    }
}

#[test]
fn minimums_are_delegated_to_a_user_by_name_or_number() {
    let budget = contract("up 20mbit min 10mbit delegate ann");
    assert_eq!(budget.delegate().map(Delegate::as_str), Some("ann"));
    assert_eq!(budget.delegate().and_then(Delegate::uid), None);
    let stored = budget.apply(&Change::default().with_delegate(1000));
    let stored = stored.expect("a budget");
    assert_eq!(stored.delegate().and_then(Delegate::uid), Some(1000));
    assert_eq!(stored.to_string(), "up 20mbit min 10mbit delegate 1000");
    assert!(stored.check_delegate().is_ok());
    let left = stored.apply(&change("min none")).expect("a limit");
    assert_eq!(left.delegate(), None, "there is nothing to divide");
    let error = left.check_delegate().expect_err("nothing to divide");
    assert!(error.to_string().contains("needs a minimum"), "{error}");
    assert_eq!(stored.without_guarantees(), contract("up 20mbit"));
    for name in ["", "a b", "-ann", "ann/x", "4294967296"] {
        assert!(name.parse::<Delegate>().is_err(), "{name}");
    }
}

#[test]
fn a_target_can_have_all_but_classes_channels_and_receive_shares() {
    assert_eq!(
        target_support(&contract("up 4mbit min 1mbit weight 7")),
        Ok(())
    );
    assert_eq!(target_support(&contract("slice 1ms/2ms extra")), Ok(()));
    assert_eq!(target_support(&contract("cell pcr=1mbit,cdvt=1ms")), Ok(()));
    let class = target_support(&contract("cell pcr=1mbit,cdvt=1ms,class=2"));
    assert_eq!(class, Err(Unsupported::Class));
    for text in ["channel mmax=1,rmax=1/s,bmax=1,deadline=1ms", "receive 25%"] {
        let (clause, _) = text.split_once(' ').expect("two words");
        let expected = format!("{clause} is not supported yet: needs the direct path");
        let error = target_support(&contract(text)).expect_err(text);
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn a_slice_is_served_as_its_rate_with_a_burst_of_one_slice() {
    let link = Rate::new(100_000_000).unwrap();
    let share = Rate::new(4_800_000).unwrap();
    let alone = contract("slice 2.4ms/50ms burst 1ms");
    assert_eq!(alone.link_min(Direction::Up, link), Some(Some(share)));
    assert_eq!(alone.link_min(Direction::Down, link), None);
    assert_eq!(alone.link_max(Direction::Up, link), Some(share));
    assert_eq!(alone.link_burst(Direction::Up), Nanos::from_micros(2_400));
    assert_eq!(alone.link_burst(Direction::Down), Nanos::from_millis(1));
    let extra = contract("slice 2.4ms/50ms extra");
    assert_eq!(extra.link_max(Direction::Up, link), None);
    let tiny = contract("slice 1ns/10s");
    assert_eq!(tiny.link_min(Direction::Up, link), Some(None));
    let min = contract("min 60mbit");
    assert_eq!(
        min.link_min(Direction::Up, link),
        Some(Rate::new(60_000_000))
    );
    assert_eq!(min.link_burst(Direction::Up), Contract::DEFAULT_BURST);
}

#[test]
fn without_guarantees_the_limits_remain() {
    let all = contract("up 4mbit min 1mbit min-down 1mbit weight 7 burst 1ms");
    assert_eq!(
        all.without_guarantees().to_string(),
        "up 4mbit weight 7 burst 1ms"
    );
    assert!(!all.without_guarantees().is_guaranteed());
}

fn rates() -> impl Strategy<Value = Rate> {
    (1_000..=Rate::MAX.bits_per_second()).prop_map(|bits| Rate::new(bits).unwrap())
}

fn slices() -> impl Strategy<Value = Slice> {
    (1..10_000_000_000_u64, 0.0..1.0_f64, any::<bool>()).prop_map(|(period, part, extra)| {
        let slice = ((period as f64 * part) as u64).clamp(1, period);
        Slice::new(Nanos(slice), Nanos(period), extra).unwrap()
    })
}

fn processor_times() -> impl Strategy<Value = ProcessorTime> {
    let auto = any::<bool>().prop_map(|extra| ProcessorTime::Auto { extra });
    prop_oneof![slices().prop_map(ProcessorTime::Slice), auto]
}

fn cells() -> impl Strategy<Value = Cell> {
    let sustained = (rates(), 1..=Bytes::MAX.0, any::<bool>());
    (rates(), 0..=Nanos::MAX.0, option::of(sustained)).prop_map(|(pcr, cdvt, sustained)| {
        let sustained = sustained.map(|(scr, mbs, dual)| Sustained {
            scr: scr.min(pcr),
            mbs: Bytes(mbs),
            bucket: if dual { Bucket::Dual } else { Bucket::Single },
        });
        Cell::new(pcr, Nanos(cdvt), sustained).unwrap()
    })
}

fn channels() -> impl Strategy<Value = Channel> {
    let parts = (
        1..=Bytes::MAX.0,
        1..=1_000_000_u32,
        1..u32::MAX,
        1..=Nanos::MAX.0,
        any::<u64>(),
        prop::sample::select(Overload::ALL.to_vec()),
    );
    parts.prop_map(|(mmax, rmax, bmax, deadline, processing, overload)| {
        let rmax = MessageRate::new(rmax).unwrap();
        let channel = Channel::new(Bytes(mmax), rmax, bmax, Nanos(deadline)).unwrap();
        let most = deadline.min(Channel::MAX_PROCESSING.0 + 1);
        let channel = channel.with_processing(Nanos(processing % most)).unwrap();
        channel.with_overload(overload)
    })
}

fn schedules() -> impl Strategy<Value = Schedule> {
    let text = "(mon-fri|sat,sun)@08:00-1[0-9]:30(;sun@22:00-06:00)?(@UTC|@Europe/Berlin)?";
    text.prop_map(|text| text.parse().unwrap())
}

fn quotas() -> impl Strategy<Value = TrafficQuota> {
    let text = "[1-9]G(i)?B/(hour|week|month)(,then=[1-9]mbit)?(,count=up)?(,zone=Europe/Berlin)?";
    text.prop_map(|text| super::traffic_quota::read(&text).unwrap())
}

fn settings<T: Clone + core::fmt::Debug>(
    values: impl Strategy<Value = T>,
) -> impl Strategy<Value = Option<Setting<T>>> {
    option::of(prop_oneof![
        4 => values.prop_map(Setting::Set),
        1 => Just(Setting::Clear),
    ])
}

/// Changes of all kinds, including invalid ones.
fn changes() -> impl Strategy<Value = Change> {
    let limits = (settings(rates()), settings(rates()), settings(rates()));
    let guarantees = (
        settings(rates()),
        settings(rates()),
        settings("[a-z]{1,10}[0-9]{1,5}".prop_map(|name| name.parse::<IfName>().unwrap())),
    );
    let sharing = (
        settings((1..=1000_u16).prop_map(|w| Weight::new(w).unwrap())),
        settings((0..=7_u8).prop_map(|p| Priority::new(p).unwrap())),
        settings((1_000..=10_000_000_000_u64).prop_map(Nanos)),
        settings((0..64_u8).prop_map(|number| Dscp::new(number).unwrap())),
        settings(Just(Yield)),
        settings(
            "[a-z_][a-z0-9_-]{0,20}".prop_filter_map("not none", |name| {
                name.parse().ok().filter(|_| name != "none")
            }),
        ),
    );
    let others = (
        settings(slices()),
        settings(processor_times()),
        settings(cells()),
        settings(channels()),
        settings(schedules()),
        settings(quotas()),
        settings((1..=10_000_u32).prop_map(|part| ReceiveShare::new(part).unwrap())),
    );
    (limits, guarantees, sharing, others).prop_map(|(limits, guarantees, sharing, others)| Change {
        up: limits.0,
        down: limits.1,
        both: limits.2,
        min: guarantees.0,
        min_down: guarantees.1,
        on: guarantees.2,
        weight: sharing.0,
        priority: sharing.1,
        burst: sharing.2,
        dscp: sharing.3,
        yields: sharing.4,
        delegate: sharing.5,
        slice: others.0,
        cpu: others.1,
        cell: others.2,
        channel: others.3,
        receive: others.6,
        quota: others.5,
        when: others.4,
    })
}

proptest! {
    #[test]
    fn a_consistent_change_round_trips_and_others_do_not_parse(change in changes()) {
        let text = change.to_string();
        match Contract::default().apply(&change) {
            Ok(contract) => {
                prop_assert_eq!(text.parse(), Ok(change), "{}", text);
                prop_assert_eq!(contract.to_string().parse(), Ok(contract));
            }
            Err(_) => prop_assert!(text.parse::<Change>().is_err(), "{}", text),
        }
    }

    #[test]
    fn no_contract_contradicts_itself(steps in proptest::collection::vec(changes(), 1..6)) {
        let mut contract = Contract::default();
        for step in steps {
            contract = contract.apply(&step).unwrap_or(contract);
        }
        let one_way = contract.up().or(contract.down());
        prop_assert!(contract.both().is_none() || one_way.is_none());
        for direction in Direction::ALL {
            if let (Some(min), Some(max)) = (contract.min(direction), contract.limit(direction)) {
                prop_assert!(min <= max);
            }
        }
        prop_assert!(contract.slice().is_none() || contract.min(Direction::Up).is_none());
        prop_assert!(!contract.yields() || !contract.is_guaranteed());
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in any::<String>()) {
        let _ = text.parse::<Change>().map_err(|e| e.to_string());
    }

    #[test]
    fn no_sequence_of_words_makes_the_parser_panic(words in proptest::collection::vec(
        "(up|down|both|min|min-down|on|weight|priority|burst|dscp|yield|delegate|slice|extra|cpu|cpu-extra|cell|channel\
          |quota|1GB/day|when|mon|08:00-18:00|none|0|4mbit|9mbit|5ms|1ms/2ms|eth0|7|pcr=4mbit,cdvt=1ms|mmax=1,rmax=1/s)", 0..12)
    ) {
        let text = words.join(" ");
        if let Ok(change) = text.parse::<Change>() {
            prop_assert_eq!(change.to_string().parse(), Ok(change));
        }
    }
}

#[test]
fn each_clause_maps_to_its_word_and_back() {
    let all: Vec<Clause> = change(
        "up none down none both none min none min-down none on none weight none priority none \
         burst none dscp none yield none delegate none slice none cpu none cell none channel none quota none when none",
    )
    .clauses();
    assert_eq!(all.len(), 18);
    for clause in all {
        assert_eq!(Clause::from_word(clause.word()), Some(clause));
        assert_eq!(format!("{clause}"), clause.word());
    }
    assert_eq!(Clause::from_word("extra"), None);
}

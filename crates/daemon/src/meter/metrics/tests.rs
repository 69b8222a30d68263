//! Tests of the metrics page: its samples, help texts and types; and of the address that serves it.

use netnice_api::{
    BudgetDoc, BudgetPartDoc, ProcessorStatusDoc, ProcessorTimeDoc, QuotaDoc, SliceDoc, UserDoc,
    UsersDoc, WatchDoc, Watched, WatchedLink,
};
use netnice_core::meter::{DirectionCounters, Meter};

use super::http::{Address, AddressError};
use super::{Tally, page};

/// A page with one target, one link and one user.
fn example() -> String {
    let flow = DirectionCounters {
        offered_packets: 10,
        offered_bytes: 10_000,
        sent_packets: 7,
        sent_bytes: 7_000,
        dropped_packets: 1,
        dropped_bytes: 1_000,
        queued_packets: 2,
        queued_bytes: 2_000,
        queue_delay_ns: 4_500_000,
        held_back: 3,
    };
    let meter = Meter {
        up: flow,
        down: DirectionCounters::default(),
    };
    let doc = WatchDoc {
        at_ns: 1,
        processors_at_ns: 1,
        links: vec![WatchedLink {
            link: "eth0".into(),
            up: Some(100),
            up_held: 60,
            ..WatchedLink::default()
        }],
        targets: vec![Watched {
            target: "app:/opt/a \"b\"\\c".into(),
            up: Some(4_000_000),
            min: Some(1_000_000),
            degraded: vec!["why".into()],
            processor_time: Some(ProcessorTimeDoc {
                reserved: SliceDoc {
                    slice_ns: 2_000_000,
                    period_ns: 8_000_000,
                    extra: false,
                },
                status: Some(ProcessorStatusDoc {
                    way: "exact".into(),
                    threads: 1,
                    used_ns: 1_500_000_000,
                    exhausted: 3,
                    missed: 4,
                    parts: vec![],
                    ..ProcessorStatusDoc::default()
                }),
                ..ProcessorTimeDoc::default()
            }),
            ..Watched::default()
        }],
    };
    let tally = Tally {
        grants: 5,
        refusals: 6,
        repairs: 7,
    };
    let users = UsersDoc {
        version: 1,
        quotas: vec![QuotaDoc {
            quota: "targets".into(),
            unit: "count".into(),
            limit: 1_024,
        }],
        users: vec![UserDoc {
            uid: 1000,
            name: "ann".into(),
            used: [("targets".to_owned(), 3)].into(),
            waiting: 2,
        }],
        budgets: vec![BudgetDoc {
            target: "user:1000".into(),
            uid: 1000,
            up: Some(BudgetPartDoc {
                min: 10,
                used: 6,
                left: 4,
            }),
            ..BudgetDoc::default()
        }],
    };
    page(&doc, &[meter], &users, &tally)
}

#[test]
fn the_page_has_every_amount() {
    let page = example();
    let target = r#"target="app:/opt/a \"b\"\\c""#;
    for line in [
        "netnice_quota_limit{quota=\"targets\",unit=\"count\"} 1024",
        "netnice_quota_used{user=\"1000\",quota=\"targets\"} 3",
        "netnice_waiting_requests{user=\"1000\"} 2",
        "# HELP netnice_offered_bytes_total bytes that reached the limiter, in layer-2 bytes, by \
         target and direction; the sum of what was sent, was dropped and is queued",
        "# TYPE netnice_offered_bytes_total counter",
        &format!("netnice_offered_bytes_total{{{target},direction=\"up\"}} 10000"),
        &format!("netnice_sent_bytes_total{{{target},direction=\"up\"}} 7000"),
        &format!("netnice_dropped_bytes_total{{{target},direction=\"up\"}} 1000"),
        "# TYPE netnice_queued_bytes gauge",
        &format!("netnice_queued_bytes{{{target},direction=\"up\"}} 2000"),
        "# TYPE netnice_queue_delay_seconds gauge",
        &format!("netnice_queue_delay_seconds{{{target},direction=\"up\"}} 0.0045"),
        &format!("netnice_held_back_total{{{target},direction=\"down\"}} 0"),
        &format!("netnice_limit_bits_per_second{{{target},clause=\"up\"}} 4000000"),
        &format!("netnice_minimum_bits_per_second{{{target},direction=\"up\"}} 1000000"),
        &format!("netnice_degraded{{{target}}} 1"),
        "netnice_link_capacity_bits_per_second{link=\"eth0\",direction=\"up\"} 100",
        "netnice_link_promised_bits_per_second{link=\"eth0\",direction=\"up\"} 60",
        &format!("netnice_processor_reserved_ratio{{{target}}} 0.25"),
        &format!("netnice_processor_exact{{{target}}} 1"),
        &format!("netnice_processor_threads{{{target}}} 1"),
        &format!("netnice_processor_used_seconds_total{{{target}}} 1.5"),
        &format!("netnice_processor_exhausted_periods_total{{{target}}} 3"),
        &format!("netnice_processor_missed_periods_total{{{target}}} 4"),
        "netnice_targets 1",
        "netnice_budget_bits_per_second{target=\"user:1000\",direction=\"up\"} 10",
        "netnice_budget_used_bits_per_second{target=\"user:1000\",direction=\"up\"} 6",
        "# HELP netnice_grants_total requests set and run carried out since netniced was started",
        "netnice_grants_total 5",
        "netnice_refusals_total 6",
        "netnice_repairs_total 7",
    ] {
        assert!(
            page.lines().any(|l| l == line),
            "no line {line:?} in\n{page}"
        );
    }
}

#[test]
fn every_amount_has_a_help_text_and_a_type() {
    let page = example();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap_or_default();
        for kind in ["HELP", "TYPE"] {
            assert!(
                page.contains(&format!("# {kind} {name} ")),
                "no {kind} of {name}"
            );
        }
    }
}

#[test]
fn an_address_beyond_loopback_needs_permission() {
    for (text, meant) in [
        ("9469", "127.0.0.1:9469"),
        (":9469", "127.0.0.1:9469"),
        ("127.0.0.1:80", "127.0.0.1:80"),
        ("[::1]:80", "[::1]:80"),
        ("[::ffff:127.0.0.1]:80", "[::ffff:127.0.0.1]:80"),
    ] {
        let address: Address = text.parse().expect(text);
        assert_eq!(address.0, meant.parse().expect(meant));
        assert_eq!(address.check(false), Ok(address));
    }
    for text in ["0.0.0.0:80", "[::]:80", "192.0.2.1:80", "[2001:db8::1]:80"] {
        let address: Address = text.parse().expect(text);
        assert_eq!(address.check(false), Err(AddressError::Open(address.0)));
        assert_eq!(address.check(true), Ok(address));
    }
    for text in [
        "",
        "here",
        "localhost:80",
        "127.0.0.1",
        "127.0.0.1:99999",
        "-1",
    ] {
        assert_eq!(
            text.parse::<Address>(),
            Err(AddressError::NoAddress(text.into()))
        );
    }
}

use netnice_core::contract::{Contract, Direction};
use netnice_core::link::{Capacity, CapacitySource, Link};
use netnice_core::meter::{COUNTERS, DirectionCounters, Meter};
use netnice_core::units::{Amount, Bytes, Nanos, Rate};
use serde_json::json;

use super::{
    ContractDoc, CountersDoc, FlowDoc, LinkDoc, ProcessorStatusDoc, ProcessorTimeDoc, ShowDoc,
    SliceDoc, TargetDoc, ThreadPartDoc, UnconfirmedDoc,
};

#[test]
fn the_document_has_the_documented_fields() {
    let contract: Contract = "up 4mbit min 1mbit on eth0 burst 5ms"
        .parse()
        .expect("a contract");
    let mbit = |n: u64| Capacity {
        rate: Rate::new(n * 1_000_000).expect("a rate"),
        source: CapacitySource::Operator,
    };
    let link = Link {
        name: "eth0".parse().expect("a name"),
        up: Some(mbit(100)),
        down: None,
        overhead: Bytes(24),
        horizon: Nanos(0),
    };
    let doc = ShowDoc {
        version: ShowDoc::VERSION,
        links: vec![LinkDoc::new(&link, [Amount(1_000_000), Amount(0)])],
        targets: vec![TargetDoc {
            target: "pid:7".into(),
            contract: ContractDoc::from(&contract),
            effective: ContractDoc::from(&contract),
            ..TargetDoc::default()
        }],
        direct: vec![FlowDoc {
            flow: "flow:3".into(),
            link: "eth0".into(),
            mode: "native".into(),
            pid: 7,
            program: "blast".into(),
            endpoint: "udp 10.0.0.1:5000 > 10.0.0.2:6000".into(),
            mtu: 1500,
            ..FlowDoc::default()
        }],
        ..ShowDoc::default()
    };
    let asked = json!({"up": 4_000_000, "min": 1_000_000, "on": "eth0", "burst_ns": 5_000_000});
    let none = json!({"at_ns": 0, "up": {}, "down": {}});
    let expected = json!({
        "version": 1,
        "links": [{
            "link": "eth0",
            "up": {
                "rate": 100_000_000, "source": "operator", "usable": 100_000_000, "held": 1_000_000,
            },
            "down": null,
            "overhead": 24,
            "installed": false,
            "degraded": [],
            "counters": none,
        }],
        "targets": [{
            "target": "pid:7",
            "contract": asked,
            "effective": asked,
            "installed": null,
            "degraded": [],
            "counters": none,
        }],
        "direct": [{
            "flow": "flow:3",
            "link": "eth0",
            "mode": "native",
            "pid": 7,
            "program": "blast",
            "uid": 0,
            "speaks": "udp 10.0.0.1:5000 > 10.0.0.2:6000",
            "contract": {},
            "mtu": 1500,
            "degraded": [],
            "counters": {
                "at_ns": 0, "sent": 0, "sent_bytes": 0, "forbidden": 0, "too_long": 0, "no_link": 0,
                "received": 0, "delivered": 0, "delivered_bytes": 0, "no_buffer": 0, "too_short": 0,
                "over_share": 0, "out_of_order": 0, "receiving_ns": 0,
                "lateness": [], "waited_sum": 0, "waited_most": 0,
            },
        }],
    });
    assert_eq!(serde_json::to_value(&doc).expect("JSON"), expected);
    let back: ShowDoc = serde_json::from_value(expected).expect("decoded");
    assert_eq!(back, doc);
}

#[test]
fn what_waits_and_the_namespace_are_in_the_document_if_there_are_any() {
    let doc = ShowDoc {
        version: ShowDoc::VERSION,
        unconfirmed: vec![UnconfirmedDoc {
            number: 3,
            uid: 1000,
            what: vec!["pid:7".into()],
            left_ns: 5,
        }],
        network_namespace: Some(4_026_531_840),
        ..ShowDoc::default()
    };
    let expected = json!({
        "version": 1,
        "links": [],
        "targets": [],
        "direct": [],
        "unconfirmed": [{"number": 3, "uid": 1000, "what": ["pid:7"], "left_ns": 5}],
        "network_namespace": 4_026_531_840_u64,
    });
    assert_eq!(serde_json::to_value(&doc).expect("JSON"), expected);
    let back: ShowDoc = serde_json::from_value(expected).expect("decoded");
    assert_eq!(back, doc);
}

#[test]
fn every_clause_is_in_the_document() {
    let text = "up 4mbit down 1mbit min-down 1mbit on eth0 weight 7 priority 1 burst 5ms \
                cpu 2ms/10ms cpu-extra cell pcr=4mbit,cdvt=1us,scr=1mbit,mbs=1KiB,bucket=dual \
                channel mmax=1KiB,rmax=30/s,bmax=4,deadline=20ms";
    let contract: Contract = text.parse().expect("a contract");
    let doc = serde_json::to_value(ContractDoc::from(&contract)).expect("JSON");
    let expected = json!({
        "up": 4_000_000, "down": 1_000_000, "min_down": 1_000_000, "on": "eth0",
        "weight": 7, "priority": 1, "burst_ns": 5_000_000,
        "cpu": {"slice_ns": 2_000_000, "period_ns": 10_000_000, "extra": true},
        "cell": {
            "pcr": 4_000_000, "cdvt_ns": 1000, "scr": 1_000_000, "mbs": 1024, "bucket": "dual",
        },
        "channel": {"mmax": 1024, "rmax": 30, "bmax": 4, "deadline_ns": 20_000_000,
                    "processing_ns": 0, "overload": "block"},
    });
    assert_eq!(doc, expected);
    let other: Contract = "min 1mbit".parse().expect("a contract");
    let doc = serde_json::to_value(ContractDoc::from(&other)).expect("JSON");
    assert_eq!(doc, json!({"min": 1_000_000}));
    let other: Contract = "both 2mbit slice 1ms/2ms".parse().expect("a contract");
    let doc = serde_json::to_value(ContractDoc::from(&other)).expect("JSON");
    let slice = json!({"slice_ns": 1_000_000, "period_ns": 2_000_000, "extra": false});
    assert_eq!(doc, json!({"both": 2_000_000, "slice": slice}));
}

#[test]
fn reserved_processor_time_is_in_the_document_with_how_it_is_kept() {
    let doc = TargetDoc {
        processor_time: Some(ProcessorTimeDoc {
            reserved: SliceDoc {
                slice_ns: 2_000_000,
                period_ns: 10_000_000,
                extra: false,
            },
            processors: vec![1],
            status: Some(ProcessorStatusDoc {
                parts: vec![ThreadPartDoc {
                    thread: 8,
                    time_ns: 1_000_000,
                }],
                way: "exact".into(),
                reason: "one thread".into(),
                threads: 1,
                used_ns: 7,
                exhausted: 2,
                missed: 0,
            }),
            needed: Some(SliceDoc {
                slice_ns: 3_000_000,
                period_ns: 10_000_000,
                extra: false,
            }),
            short: Some("no room".into()),
        }),
        ..TargetDoc::default()
    };
    let json = serde_json::to_value(&doc).expect("JSON");
    let expected = json!({
        "reserved": {"slice_ns": 2_000_000, "period_ns": 10_000_000, "extra": false},
        "processors": [1],
        "status": {"way": "exact", "reason": "one thread", "threads": 1, "used_ns": 7,
                   "exhausted": 2, "missed": 0, "parts": [{"thread": 8, "time_ns": 1_000_000}]},
        "needed": {"slice_ns": 3_000_000, "period_ns": 10_000_000, "extra": false},
        "short": "no room",
    });
    assert_eq!(json["processor_time"], expected);
    let back: TargetDoc = serde_json::from_value(json).expect("decoded");
    assert_eq!(back, doc);
    let none = serde_json::to_value(TargetDoc::default()).expect("JSON");
    assert_eq!(none.get("processor_time"), None);
}

#[test]
fn counters_have_the_names_of_the_meter() {
    let meter = Meter {
        up: DirectionCounters {
            sent_bytes: 7,
            offered_bytes: 7,
            ..DirectionCounters::default()
        },
        down: DirectionCounters::default(),
    };
    let doc = CountersDoc::new(5, &meter);
    assert_eq!(doc.get(Direction::Up, "sent_bytes"), 7);
    assert_eq!(doc.get(Direction::Down, "sent_bytes"), 0);
    assert_eq!(doc.get(Direction::Up, "no such counter"), 0);
    assert_eq!(doc.up.len(), COUNTERS.len());
}

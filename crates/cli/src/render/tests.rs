use netnice_api::driver::FlowCounts;
use netnice_api::{
    CapacityDoc, ContractDoc, CountersDoc, DoctorItem, DoctorReport, Done, Explained,
    FlowCountersDoc, FlowDoc, InstalledDoc, LinkDoc, LogLine, LogLines, ProcessorStatusDoc,
    ProcessorTimeDoc, Response, ScheduleDoc, ShowDoc, SliceDoc, Status, TargetDoc, Traffic,
    TrafficQuotaDoc, WatchDoc, Watched, WatchedLink,
};
use netnice_core::contract::{Contract, Direction};
use netnice_core::units::Amount;
use proptest::prelude::*;

use super::{Style, json, managed_links, rate_table, reports, single_target, text};

const PLAIN: Style = Style { bold: false };

/// A target whose contract is in force.
fn target(name: &str, contract: &str) -> TargetDoc {
    let contract: Contract = contract.parse().expect("a contract");
    TargetDoc {
        target: name.into(),
        contract: ContractDoc::from(&contract),
        effective: ContractDoc::from(&contract),
        installed: Some(InstalledDoc::default()),
        ..TargetDoc::default()
    }
}

fn capacity(rate: u64, usable: u64, held: u64) -> Option<CapacityDoc> {
    Some(CapacityDoc {
        rate,
        source: "operator".into(),
        usable,
        held,
        ..CapacityDoc::default()
    })
}

/// The state as `top` gets it.
fn watched(doc: &ShowDoc) -> WatchDoc {
    let target = |target: &TargetDoc| {
        let moving = |direction| Traffic {
            rate: target.counters.rate(direction).unwrap_or_default().0,
            wait_ns: target.counters.get(direction, "queue_delay_ns"),
            ..Traffic::default()
        };
        let limits = &target.effective;
        Watched {
            target: target.target.clone(),
            up: limits.up,
            down: limits.down,
            both: limits.both,
            min: limits.min,
            min_down: limits.min_down,
            sends: moving(Direction::Up),
            receives: moving(Direction::Down),
            degraded: target.degraded.clone(),
            processor_time: target.processor_time.clone(),
            ..Watched::default()
        }
    };
    let link = |link: &LinkDoc| WatchedLink {
        link: link.link.clone(),
        degraded: link.degraded.clone(),
        ..WatchedLink::default()
    };
    WatchDoc {
        at_ns: 1,
        links: doc.links.iter().map(link).collect(),
        targets: doc.targets.iter().map(target).collect(),
        ..WatchDoc::default()
    }
}

fn shown(doc: ShowDoc) -> String {
    text(&Response::Shown(doc), &PLAIN)
}

#[test]
fn links_and_targets_are_tables() {
    let mut video = target(
        "unit:video.service",
        "min 60mbit up 90mbit down 4194304bit on eth0 weight 200",
    );
    video.counters = CountersDoc::default().with_rates(Amount(61_234_567), Amount(0));
    let mut pid = target("pid:1234", "both 4mbit");
    pid.counters = CountersDoc::default().with_rates(Amount(3_000_000), Amount(1_000_000));
    let mut late = target("user:ann", "up 9mbit min 1mbit");
    late.effective.up = Some(4_000_000);
    late.installed = None;
    late.degraded = vec![
        "eth0 carries 50 Mbit/s now, which is less than the 61 Mbit/s that are promised on it"
            .into(),
    ];
    let doc = ShowDoc {
        version: 1,
        links: vec![LinkDoc {
            link: "eth0".into(),
            up: capacity(100_000_000, 100_000_000, 60_000_000),
            down: capacity(50_000_000, 48_500_000, 0),
            overhead: 24,
            installed: true,
            counters: CountersDoc::default().with_rates(Amount(72_100_000), Amount(1_500)),
            ..LinkDoc::default()
        }],
        targets: vec![pid, video, late],
        ..ShowDoc::default()
    };
    let expected = "\
LINK  DIR   CAPACITY                 PROMISED                 NOW
eth0  up    100 Mbit/s (12.5 MB/s)   60 Mbit/s (7.5 MB/s)     72.1 Mbit/s
      down  50 Mbit/s (6.25 MB/s)    0 bit/s (0 B/s)          1.5 kbit/s
  up given by the operator, down given by the operator (48.5 Mbit/s of it can be
    promised), 24 bytes are added to each packet

TARGET              DIR   LIMIT                         GUARANTEE  NOW
pid:1234            both  4 Mbit/s (500 kB/s)           -          4 Mbit/s
unit:video.service  up    90 Mbit/s (11.25 MB/s)        60 Mbit/s  61.234 Mbit/s
                    down  4.194 Mbit/s (524.288 kB/s)   -          0 bit/s
  on eth0, weight 200
user:ann            up    4 Mbit/s (500 kB/s)           1 Mbit/s   -
  asked: up 9 Mbit/s (1.125 MB/s)
  not installed
  degraded: eth0 carries 50 Mbit/s now, which is less than the 61 Mbit/s that
    are promised on it";
    let text = shown(doc);
    let squeeze = |text: &str| -> Vec<String> {
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        text.lines().map(words).collect()
    };
    assert_eq!(squeeze(&text), squeeze(expected), "\n{text}");
    assert_columns_line_up(&text, "NOW", &["72.1", "1.5 kbit/s"]);
    assert_fits(&text);
}

/// Asserts that the cells of a column begin where its heading begins.
fn assert_columns_line_up(text: &str, heading: &str, cells: &[&str]) {
    let at = text.lines().find_map(|line| line.find(heading));
    for cell in cells {
        let found = text.lines().find_map(|line| line.find(cell));
        assert_eq!(found, at, "{cell} under {heading}:\n{text}");
    }
}

fn assert_fits(text: &str) {
    for line in text.lines() {
        assert!(
            line.chars().count() <= 80,
            "{} columns: {line}",
            line.chars().count()
        );
        assert_eq!(line.trim_end(), line, "nothing at the end of a line");
    }
}

#[test]
fn an_empty_state_and_an_empty_log_have_a_text() {
    assert_eq!(
        single_target(&ShowDoc::default(), "pid:7", &PLAIN),
        "nothing is limited or guaranteed for pid:7"
    );
    assert_eq!(
        shown(ShowDoc::default()),
        "no target is limited or guaranteed"
    );
    let none = Response::Log(LogLines::default());
    assert_eq!(text(&none, &PLAIN), "no event");
}

#[test]
fn a_long_name_has_a_line_of_its_own() {
    let name = format!("cgroup:/{}", "deep/".repeat(30).trim_end_matches('/'));
    let doc = ShowDoc {
        targets: vec![target(&name, "up 4mbit")],
        direct: Vec::new(),
        ..ShowDoc::default()
    };
    let text = shown(doc);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[1], name);
    assert!(lines[2].trim_start().starts_with("up"), "{text}");
}

#[test]
fn the_answer_to_a_change_shows_every_rate_in_both_forms() {
    let done = |done| text(&Response::Done(done), &PLAIN);
    let cases = [
        (
            "the user's own claim is in force",
            Done {
                target: Some("pid:7".into()),
                contract: Some("up 4mbit burst 5ms".into()),
                effective: Some("up 4mbit burst 5ms".into()),
                ..Done::default()
            },
            "pid:7  up 4 Mbit/s (500 kB/s), burst 5ms",
        ),
        (
            "another user's claim is in force",
            Done {
                target: Some("pid:7".into()),
                contract: Some("up 9mbit".into()),
                effective: Some("up 4mbit".into()),
                messages: vec!["root's limit is smaller".into()],
                ..Done::default()
            },
            "pid:7  up 9 Mbit/s (1.125 MB/s)\n  holds: up 4 Mbit/s (500 kB/s)\nroot's limit is smaller",
        ),
        (
            "the daemon chose a link",
            Done {
                target: Some("pid:7".into()),
                contract: Some("min 1mbit".into()),
                effective: Some("min 1mbit on eth0".into()),
                ..Done::default()
            },
            "pid:7  min 1 Mbit/s (125 kB/s), on eth0",
        ),
        (
            "a dry run",
            Done {
                target: Some("pid:7".into()),
                contract: Some("min 1mbit on eth0 weight 7".into()),
                plan: Some(vec!["add class 1:7".into()]),
                ..Done::default()
            },
            "pid:7  min 1 Mbit/s (125 kB/s), on eth0 weight 7\nwould be done:\n  add class 1:7",
        ),
        (
            "to be confirmed",
            Done {
                target: Some("pid:7".into()),
                contract: Some("none".into()),
                confirm: Some(3),
                ..Done::default()
            },
            "pid:7  no contract\nundone unless confirmed in time: netnice confirm 3",
        ),
        (
            "a dry run of nothing",
            Done {
                plan: Some(vec![]),
                ..Done::default()
            },
            "nothing would be changed",
        ),
        ("an empty answer", Done::default(), "done"),
    ];
    for (why, answer, expected) in cases {
        assert_eq!(done(answer), expected, "{why}");
    }
}

#[test]
fn the_doctor_begins_every_line_with_the_status() {
    let item = |name: &str, status, detail: &str, hint: Option<&str>| DoctorItem {
        name: name.into(),
        status,
        detail: detail.into(),
        hint: hint.map(Into::into),
    };
    let report = DoctorReport {
        items: vec![
            item("kernel", Status::Good, "6.18", None),
            item(
                "fq_codel",
                Status::Fallback,
                "not in this kernel; each target has a sparse and a bulk queue instead, which hold a ping as short",
                Some("modprobe sch_fq_codel"),
            ),
            item("btf", Status::Missing, "no /sys/kernel/btf/vmlinux", None),
        ],
    };
    let text = text(&Response::Doctor(report), &PLAIN);
    assert_eq!(
        text,
        "\
good     kernel    6.18
instead  fq_codel  not in this kernel; each target has a sparse and a bulk queue
                   instead, which hold a ping as short
                   try: modprobe sch_fq_codel
missing  btf       no /sys/kernel/btf/vmlinux
1 good, 1 replaced, 1 missing"
    );
    assert_fits(&text);
}

#[test]
fn each_line_of_the_log_begins_with_its_time() {
    let cases = [
        (0, "1970-01-01 00:00:00Z"),
        (951_782_400, "2000-02-29 00:00:00Z"),
        (951_868_799, "2000-02-29 23:59:59Z"),
        (951_868_800, "2000-03-01 00:00:00Z"),
        (1_795_219_200, "2026-11-21 00:00:00Z"),
        (4_107_542_400, "2100-03-01 00:00:00Z"),
        (1_735_689_599, "2024-12-31 23:59:59Z"),
    ];
    for (seconds, expected) in cases {
        assert_eq!(reports::utc(seconds * 1_000_000_000), expected);
    }
    let log = LogLines {
        lines: vec![LogLine {
            at_ns: 951_782_400_000_000_000,
            text: "granted pid:7".into(),
        }],
    };
    assert_eq!(
        text(&Response::Log(log), &PLAIN),
        "2000-02-29 00:00:00Z  granted pid:7"
    );
}

#[test]
fn a_target_without_a_limit_says_so() {
    let doc = ShowDoc {
        targets: vec![target("pid:7", "burst 10ms"), target("pid:8", "weight 3")],
        ..ShowDoc::default()
    };
    let text = text(&Response::Shown(doc), &PLAIN);
    assert_eq!(text.matches("none").count(), 2, "{text}");
    let note = "a burst has no effect without a limit";
    assert_eq!(text.matches(note).count(), 1, "{text}");
    assert_fits(&text);
}

#[test]
fn a_traffic_quota_is_shown_with_what_is_left_and_what_comes_next() {
    let quota = |used: u64, then| TrafficQuotaDoc {
        quota: "20GB/month".into(),
        bytes: 20_000_000_000,
        used,
        left: 20_000_000_000 - used,
        ends: "Tue 2026-12-01 00:00 CET".into(),
        spent: used == 20_000_000_000,
        then,
        ..TrafficQuotaDoc::default()
    };
    for (used, then, expected) in [
        (
            0,
            None,
            "0 B used, 20.00 GB left; then nothing, until Tue 2026-12-01 00:00 CET",
        ),
        (
            1_234_567_890,
            Some(1_000_000),
            "1.23 GB used, 18.77 GB left; then 1 Mbit/s (125 kB/s), until",
        ),
        (
            20_000_000_000,
            None,
            "20.00 GB used, 0 B left; nothing passes until",
        ),
        (
            20_000_000_000,
            Some(1_000_000),
            "0 B left; 1 Mbit/s (125 kB/s) until",
        ),
    ] {
        let doc = ShowDoc {
            targets: vec![TargetDoc {
                quotas: vec![quota(used, then)],
                ..target("unit:a.service", "quota 20GB/month")
            }],
            ..ShowDoc::default()
        };
        let text = text(&Response::Shown(doc), &PLAIN);
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains("quota 20GB/month: "), "{text}");
        assert!(flat.contains(expected), "{text}");
        assert!(!flat.contains("not installed"), "{text}");
        assert_fits(&text);
    }
}

#[test]
fn a_claim_with_a_schedule_is_shown_with_its_next_change() {
    let schedule = |active, next: Option<&str>| ScheduleDoc {
        contract: "up 4mbit".into(),
        when: "mon-fri@08:00-18:00@Europe/Berlin".into(),
        active,
        next: next.map(Into::into),
        ..ScheduleDoc::default()
    };
    let doc = |active, next| ShowDoc {
        targets: vec![TargetDoc {
            effective: match active {
                true => target("pid:7", "up 4mbit").effective,
                false => ContractDoc::default(),
            },
            installed: active.then(InstalledDoc::default),
            schedules: vec![schedule(active, next)],
            ..target("pid:7", "up 4mbit")
        }],
        ..ShowDoc::default()
    };
    for (active, next, expected) in [
        (true, Some("Tue 18:00 CET"), "in force until Tue 18:00 CET"),
        (true, None, "in force"),
        (false, Some("Tue 08:00 CET"), "next from Tue 08:00 CET"),
        (false, None, "not in force"),
    ] {
        let text = text(&Response::Shown(doc(active, next)), &PLAIN);
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let hours = "up 4 Mbit/s (500 kB/s) in mon-fri 08:00-18:00 Europe/Berlin: ";
        assert!(flat.ends_with(&format!("{hours}{expected}")), "{text}");
        assert!(
            !flat.contains("asked:") && !flat.contains("not installed"),
            "{text}"
        );
        assert_fits(&text);
    }
}

#[test]
fn the_state_of_another_network_namespace_is_called_so() {
    use std::os::unix::fs::MetadataExt;
    let own = std::fs::metadata("/proc/self/ns/net")
        .expect("a namespace")
        .ino();
    let shown = |namespace| {
        let doc = ShowDoc {
            network_namespace: namespace,
            ..ShowDoc::default()
        };
        let texts = [
            managed_links(&doc, &PLAIN),
            single_target(&doc, "pid:7", &PLAIN),
            text(&Response::Shown(doc), &PLAIN),
        ];
        texts.iter().for_each(|text| assert_fits(text));
        texts
            .iter()
            .all(|text| text.contains("another network namespace"))
    };
    assert!(shown(Some(own + 1)));
    assert!(!shown(Some(own)) && !shown(None));
}

#[test]
fn the_rate_table_is_sorted_by_rate() {
    let mut slow = target("pid:1", "up 4mbit");
    slow.counters = CountersDoc::default().with_rates(Amount(1_000), Amount(0));
    let mut fast = target("pid:2", "up 9mbit down 9mbit");
    fast.counters = CountersDoc::default().with_rates(Amount(1_000), Amount(5_000_000));
    fast.counters.up.insert("queue_delay_ns".into(), 12_345_678);
    let idle = target("pid:3", "weight 7");
    let doc = ShowDoc {
        targets: vec![slow, idle, fast],
        direct: Vec::new(),
        ..ShowDoc::default()
    };
    let text = rate_table(&watched(&doc), &PLAIN);
    let first: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(
        first,
        ["TARGET", "pid:2", "down", "pid:1", "pid:3"],
        "{text}"
    );
    assert!(text.contains("12.3 ms"), "{text}");
    assert_fits(&text);
}

#[test]
fn the_rate_table_has_the_processor_time_of_a_target() {
    let mut render = target("pid:1", "up 4mbit cpu 2ms/10ms");
    render.processor_time = Some(ProcessorTimeDoc {
        reserved: SliceDoc {
            slice_ns: 2_000_000,
            period_ns: 10_000_000,
            extra: false,
        },
        status: Some(ProcessorStatusDoc {
            way: "exact".to_owned(),
            used_ns: 1_500_000_000,
            ..ProcessorStatusDoc::default()
        }),
        ..ProcessorTimeDoc::default()
    });
    let doc = ShowDoc {
        targets: vec![render],
        ..ShowDoc::default()
    };
    let text = rate_table(&watched(&doc), &PLAIN);
    assert!(
        text.contains("cpu 2ms/10ms by a deadline; used 1.500s"),
        "{text}"
    );
}

/// A target with `both` has all its counts under `up`.
#[test]
fn one_direction_of_a_target_with_both_has_no_rate() {
    let mut backup = target("pid:1", "both 8mbit min 1mbit on eth0");
    backup.counters = CountersDoc::default().with_rates(Amount(3_000_000), Amount(0));
    let doc = ShowDoc {
        targets: vec![backup],
        direct: Vec::new(),
        ..ShowDoc::default()
    };
    let rows = |text: String| -> Vec<String> {
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        text.lines().skip(1).map(words).take(2).collect()
    };
    assert_eq!(
        rows(shown(doc.clone())),
        [
            "pid:1 both 8 Mbit/s (1 MB/s) - 3 Mbit/s",
            "up - 1 Mbit/s (125 kB/s) -",
        ]
    );
    assert_eq!(
        rows(rate_table(&watched(&doc), &PLAIN)),
        [
            "pid:1 both 3 Mbit/s (375 kB/s) 8 Mbit/s (1 MB/s) 0.0 ms 0",
            "up - - - -",
        ]
    );
}

#[test]
fn only_headings_are_bold_and_only_if_the_style_allows_it() {
    let doc = ShowDoc {
        targets: vec![target("pid:7", "up 4mbit")],
        direct: Vec::new(),
        ..ShowDoc::default()
    };
    let bold = text(&Response::Shown(doc.clone()), &Style { bold: true });
    assert!(bold.starts_with("\x1b[1mTARGET"), "{bold:?}");
    assert_eq!(bold.matches("\x1b[1m").count(), 1);
    assert!(!shown(doc).contains('\x1b'));
}

#[test]
fn control_characters_of_the_daemons_answers_are_not_printed() {
    let evil = "a\x1b[2Jb\r";
    let mut doc = target("pid:7", "up 4mbit");
    doc.target = evil.into();
    doc.degraded = vec![evil.into()];
    let shown = shown(ShowDoc {
        targets: vec![doc],
        direct: Vec::new(),
        ..ShowDoc::default()
    });
    let explained = text(
        &Response::Explained(Explained {
            lines: vec![evil.into()],
        }),
        &PLAIN,
    );
    let failed = text(&Response::failed(evil), &PLAIN);
    for text in [shown, explained, failed] {
        assert!(!text.contains(['\x1b', '\r']), "{text:?}");
    }
}

#[test]
fn json_is_the_document_itself_and_a_refusal_is_under_its_name() {
    let doc = ShowDoc {
        version: 1,
        ..ShowDoc::default()
    };
    let back: ShowDoc = serde_json::from_str(&json(&Response::Shown(doc.clone()))).expect("JSON");
    assert_eq!(back, doc);
    let refused: serde_json::Value =
        serde_json::from_str(&json(&Response::not_admitted("too much"))).expect("JSON");
    assert_eq!(refused["refused"]["by"], "admission");
    assert_eq!(refused["refused"]["text"], "too much");
}

/// Documents with arbitrary content.
fn documents() -> impl Strategy<Value = ShowDoc> {
    let rate = proptest::option::of(1_000..1_000_000_000_000_u64);
    let contract = (rate.clone(), rate.clone(), rate.clone(), rate.clone(), rate).prop_map(
        |(up, down, both, min, min_down)| ContractDoc {
            up,
            down,
            both,
            min,
            min_down,
            on: Some("abcdefghijklmno".into()),
            weight: Some(1000),
            burst_ns: Some(1),
            ..ContractDoc::default()
        },
    );
    let target = (
        "[a-z:/.]{1,60}",
        contract,
        [0..1_u64 << 50, 0..1_u64 << 50],
        "[a-z0-9 ]{0,200}",
    )
        .prop_map(|(target, contract, [up, down], why)| TargetDoc {
            target,
            contract: contract.clone(),
            effective: contract,
            counters: CountersDoc::default().with_rates(Amount(up), Amount(down)),
            degraded: vec![why],
            ..TargetDoc::default()
        });
    let link = (
        "[a-z0-9]{1,15}",
        [0..1_u64 << 50, 0..1_u64 << 50, 0..1_u64 << 50],
    )
        .prop_map(|(link, [rate, usable, held])| LinkDoc {
            link,
            up: capacity(rate, usable, held),
            down: capacity(held, rate, usable),
            counters: CountersDoc::default().with_rates(Amount(rate), Amount(held)),
            ..LinkDoc::default()
        });
    let targets = proptest::collection::vec(target, 0..6);
    let links = proptest::collection::vec(link, 0..3);
    (links, targets).prop_map(|(links, targets)| ShowDoc {
        version: 1,
        links,
        targets,
        ..ShowDoc::default()
    })
}

proptest! {
    #[test]
    fn everything_fits_80_columns(doc in documents()) {
        for text in [rate_table(&watched(&doc), &PLAIN), shown(doc.clone())] {
            for line in text.lines() {
                prop_assert!(line.chars().count() <= 80, "{} columns: {line}\n{text}", line.chars().count());
                prop_assert_eq!(line.trim_end(), line);
            }
        }
    }
}

#[test]
fn flows_of_the_direct_path_are_a_table_of_their_own() {
    let contract: Contract = "cell pcr=10mbit,cdvt=100us".parse().expect("a contract");
    let flow = FlowDoc {
        flow: "flow:7".into(),
        link: "eth0".into(),
        mode: "native".into(),
        pid: 1234,
        program: "blast".into(),
        endpoint: "udp 10.0.0.1:5000 > 10.0.0.2:6000".into(),
        contract: ContractDoc::from(&contract),
        mtu: 1500,
        degraded: vec!["eth0 has 40 Mbit/s for direct flows now".into()],
        counters: FlowCountersDoc {
            at_ns: 1,
            counts: FlowCounts {
                sent: 1_000_000,
                received: 20,
                no_buffer: 3,
                too_long: 4,
                ..FlowCounts::default()
            },
        },
        ..FlowDoc::default()
    };
    let alone = ShowDoc {
        direct: vec![flow.clone()],
        ..ShowDoc::default()
    };
    let text = single_target(&alone, "flow:7", &PLAIN);
    assert!(
        text.contains("1234 blast") && !text.contains("nothing is"),
        "{text}"
    );
    let plain = FlowDoc {
        flow: "flow:8".into(),
        contract: ContractDoc::default(),
        degraded: Vec::new(),
        counters: FlowCountersDoc::default(),
        ..flow.clone()
    };
    let doc = ShowDoc {
        direct: vec![flow, plain],
        ..ShowDoc::default()
    };
    let expected = "\
no target is limited or guaranteed

FLOW    LINK  PROGRAM     SENT     RECEIVED  LOST
flow:7  eth0  1234 blast  1000000  20        7
  udp 10.0.0.1:5000 > 10.0.0.2:6000: cell pcr 10 Mbit/s (1.25 MB/s), cdvt 100us
  degraded: eth0 has 40 Mbit/s for direct flows now
flow:8  eth0  1234 blast  0        0         0
  udp 10.0.0.1:5000 > 10.0.0.2:6000: best effort";
    assert_eq!(shown(doc), expected);
}

use std::ffi::OsString;

use netnice_api::{
    Clear, ClearWhat, Confirm, Explain, LinkChange, Log, Reload, Request, Set, Show,
};
use netnice_core::units::Nanos;
use proptest::prelude::*;

use super::{BadUsage, Verb, command, parse};

/// Parses a command line of words that contain no space.
fn verb(line: &str) -> Result<Verb, BadUsage> {
    let words = std::iter::once("netnice").chain(line.split(' ').filter(|w| !w.is_empty()));
    parse(words.map(OsString::from).collect()).map(|command| command.verb)
}

fn request(line: &str) -> (Option<u32>, Request) {
    match verb(line) {
        Ok(Verb::Request(request)) => (None, request),
        Ok(Verb::ProcessRequest(pid, request)) => (Some(pid), request),
        other => panic!("{line}: {other:?}"),
    }
}

/// A case: its name, the command line, the pid of the process that the request is about, and the
/// request.
type RequestCase = (&'static str, &'static str, Option<u32>, Request);

fn assert_requests(cases: impl IntoIterator<Item = RequestCase>) {
    for (name, line, pid, expected) in cases {
        assert_eq!(request(line), (pid, expected), "{name}: {line}");
    }
}

/// Asserts that each command line is refused. A case is its name, the command line, and a part of
/// the error text.
fn assert_refused<'a>(cases: impl IntoIterator<Item = (&'a str, &'a str, &'a str)>) {
    for (name, line, part) in cases {
        let error = verb(line).expect_err(name).to_string();
        assert!(error.contains(part), "{name}: {line}: {error}");
    }
}

fn set(target: &str, change: &str) -> Set {
    Set {
        target: target.into(),
        change: Some(change.into()),
        ..Set::default()
    }
}

#[test]
fn the_description_of_the_command_line_is_consistent() {
    command().debug_assert();
}

#[test]
fn the_help_of_a_verb_names_only_options_that_it_accepts() {
    let mut command = command();
    for (verb, named, refused) in [
        ("run", "--cpu-extra", &["--channel", "--receive"][..]),
        ("set", "--cpu-extra", &["--channel", "--receive"]),
        (
            "check",
            "--cell",
            &["--min", "--slice", "--cpu", "--receive"],
        ),
    ] {
        let verb = command.find_subcommand_mut(verb).expect(verb);
        let help = verb.render_help().to_string();
        assert!(help.contains(named), "{help}");
        for option in refused {
            assert!(!help.contains(option), "{option}: {help}");
        }
    }
}

#[test]
fn set_becomes_a_request() {
    assert_requests([
        (
            "a limit",
            "set unit:nginx --up 4Mbit/s",
            None,
            Request::Set(set("unit:nginx.service", "up 4mbit")),
        ),
        (
            "a process, by its pidfd",
            "set 7 --up 4mbit --down 200kB/s",
            Some(7),
            Request::Set(set("pid:7", "up 4mbit down 1600kbit")),
        ),
        (
            "options before the target",
            "set --both 2mbit pid:7",
            Some(7),
            Request::Set(set("pid:7", "both 2mbit")),
        ),
        (
            "lifting",
            "set 7 --up none --down 0",
            Some(7),
            Request::Set(set("pid:7", "up none down none")),
        ),
        (
            "every option",
            "set 7 --up 9mbit --down 9mbit --min 1mbit --min-down 1mbit --on eth0 --weight 200 --priority 1 --burst 5ms",
            Some(7),
            Request::Set(set(
                "pid:7",
                "up 9mbit down 9mbit min 1mbit min-down 1mbit on eth0 weight 200 priority 1 burst 5ms",
            )),
        ),
        (
            "a slice",
            "set 7 --slice 2.4ms/50ms --extra",
            Some(7),
            Request::Set(set("pid:7", "slice 2.4ms/50ms extra")),
        ),
        (
            "an unsupported clause, which the daemon refuses",
            "set 7 --cpu 2ms/10ms --cpu-extra",
            Some(7),
            Request::Set(set("pid:7", "cpu 2ms/10ms cpu-extra")),
        ),
        (
            "a cell",
            "set 7 --cell pcr=10mbit,cdvt=100us",
            Some(7),
            Request::Set(set("pid:7", "cell pcr=10mbit,cdvt=100us")),
        ),
        (
            "options of every change",
            "set 7 --up 4mbit --only --dry-run --for 1h --confirm 30s",
            Some(7),
            Request::Set(Set {
                only: true,
                dry_run: true,
                for_ns: Some(3_600_000_000_000),
                confirm_ns: Some(30_000_000_000),
                ..set("pid:7", "up 4mbit")
            }),
        ),
    ]);
}

#[test]
fn hours_a_code_point_and_yield_become_requests() {
    assert_requests([
        (
            "a code point, and to yield",
            "set 7 --dscp af21 --yield",
            Some(7),
            Request::Set(set("pid:7", "dscp AF21 yield on")),
        ),
        (
            "to yield no more",
            "set 7 --yield=none --up 9mbit",
            Some(7),
            Request::Set(set("pid:7", "up 9mbit yield none")),
        ),
        (
            "a quota",
            "set 7 --quota 20GB/month,then=1mbit",
            Some(7),
            Request::Set(set("pid:7", "quota 20GB/month,then=1mbit")),
        ),
        (
            "hours",
            "set 7 --up 4mbit --when mon-fri@08:00-18:00@Europe/Berlin",
            Some(7),
            Request::Set(set(
                "pid:7",
                "up 4mbit when mon-fri@08:00-18:00@Europe/Berlin",
            )),
        ),
    ]);
}

#[test]
fn the_short_forms_become_requests() {
    assert_requests([
        (
            "the paper's form",
            "7 128Kbyte/sec",
            Some(7),
            Request::Set(Set {
                short: true,
                ..set("pid:7", "both 1048576bit")
            }),
        ),
        (
            "the paper's form lifts",
            "7 none",
            Some(7),
            Request::Set(Set {
                short: true,
                ..set("pid:7", "both none")
            }),
        ),
        (
            "the short form of other targets",
            "user:ann 4mbit --dry-run",
            None,
            Request::Set(Set {
                short: true,
                dry_run: true,
                ..set("user:ann", "both 4mbit")
            }),
        ),
        (
            "the short form shows",
            "7",
            None,
            Request::Show(Show {
                target: Some("pid:7".into()),
            }),
        ),
    ]);
}

#[test]
fn show_explain_and_clear_become_requests() {
    assert_requests([
        (
            "explain",
            "explain 7",
            None,
            Request::Explain(Explain {
                target: "pid:7".into(),
            }),
        ),
        (
            "show all",
            "show",
            None,
            Request::Show(Show { target: None }),
        ),
        (
            "show one",
            "show unit:nginx",
            None,
            Request::Show(Show {
                target: Some("unit:nginx.service".into()),
            }),
        ),
        (
            "clear one",
            "clear 7 --dry-run",
            None,
            Request::Clear(Clear {
                what: ClearWhat::Target("pid:7".into()),
                dry_run: true,
                confirm_ns: None,
                for_ns: None,
                until: None,
            }),
        ),
        (
            "clear all for a time",
            "clear --all --for 10min",
            None,
            Request::Clear(Clear {
                what: ClearWhat::All,
                dry_run: false,
                confirm_ns: None,
                for_ns: Some(600_000_000_000),
                until: None,
            }),
        ),
    ]);
}

#[test]
fn link_becomes_a_request() {
    assert_requests([
        (
            "a link",
            "link eth0 --rate 100mbit --down-rate 50Mbit/s --overhead 24",
            None,
            Request::Link(Box::new(LinkChange {
                iface: "eth0".into(),
                rate: Some("100mbit".into()),
                down_rate: Some("50mbit".into()),
                overhead: Some(24),
                ..LinkChange::default()
            })),
        ),
        (
            "a link at its driver's speed",
            "link eth0",
            None,
            Request::Link(Box::new(LinkChange {
                iface: "eth0".into(),
                ..LinkChange::default()
            })),
        ),
        (
            "a class",
            "link eth0 --class 1 --min 5Mbit/s --overbook --server 20ms/50ms",
            None,
            Request::Link(Box::new(LinkChange {
                iface: "eth0".into(),
                server: Some("20ms/50ms".into()),
                class: Some(netnice_api::LinkClassChange {
                    number: 1,
                    min: Some("5mbit".into()),
                    overbook: Some(true),
                }),
                ..LinkChange::default()
            })),
        ),
        (
            "no class",
            "link eth0 --class 1 --min none",
            None,
            Request::Link(Box::new(LinkChange {
                iface: "eth0".into(),
                class: Some(netnice_api::LinkClassChange {
                    number: 1,
                    min: Some("none".into()),
                    overbook: None,
                }),
                ..LinkChange::default()
            })),
        ),
        (
            "one direction less",
            "link eth0 --down-rate none",
            None,
            Request::Link(Box::new(LinkChange {
                iface: "eth0".into(),
                down_rate: Some("none".into()),
                ..LinkChange::default()
            })),
        ),
        (
            "a link given back",
            "link eth0 --unmanage",
            None,
            Request::Link(Box::new(LinkChange {
                iface: "eth0".into(),
                unmanage: true,
                ..LinkChange::default()
            })),
        ),
    ]);
}

#[test]
fn log_confirm_and_reload_become_requests() {
    assert_requests([
        (
            "the log",
            "log --since 1h -n 5",
            None,
            Request::Log(Log {
                since_ns: Some(3_600_000_000_000),
                lines: Some(5),
            }),
        ),
        (
            "confirm",
            "confirm 3",
            None,
            Request::Confirm(Confirm { id: 3 }),
        ),
        ("reload", "reload", None, Request::Reload(Reload {})),
    ]);
}

#[test]
fn run_passes_the_command_on_unchanged() {
    let cases = [
        (
            "plain",
            "run --up 4mbit curl -s --json x",
            "up 4mbit",
            None,
            vec!["curl", "-s", "--json", "x"],
        ),
        (
            "behind dashes",
            "run --up 4mbit -- curl --up 1",
            "up 4mbit",
            None,
            vec!["curl", "--up", "1"],
        ),
        (
            "by name",
            "run --name b --down 1mbit rsync",
            "down 1mbit",
            Some("name:b"),
            vec!["rsync"],
        ),
    ];
    for (why, line, change, name, words) in cases {
        let Ok(Verb::Run(run)) = verb(line) else {
            panic!("{why}: {line}");
        };
        assert_eq!(run.set.change.as_deref(), Some(change), "{why}");
        assert_eq!(
            run.name.map(|name| name.to_string()).as_deref(),
            name,
            "{why}"
        );
        assert_eq!(run.command, words, "{why}");
    }
    let Ok(Verb::Run(run)) = verb("run --name b -q rsync --name c") else {
        panic!("joining needs no contract");
    };
    assert!(run.set.change.is_none() && run.quiet);
    assert_eq!(run.command, ["rsync", "--name", "c"]);
}

#[test]
fn every_verb_takes_the_global_options() {
    let words = ["netnice", "show", "--json", "--runtime-dir", "/x"];
    let command = parse(words.map(OsString::from).to_vec()).expect("good");
    assert!(command.json);
    assert_eq!(
        command.runtime_dir.path(),
        "/x".as_ref() as &std::path::Path
    );
    assert!(matches!(verb(""), Ok(Verb::Own)));
    assert!(matches!(verb("link"), Ok(Verb::Links)));
    assert!(matches!(verb("doctor --json"), Ok(Verb::Doctor)));
    let stops = verb("doctor --stops 60s");
    assert!(matches!(stops, Ok(Verb::MeasureStops(time)) if time == Nanos::from_secs(60)));
    let Ok(Verb::Top(top)) = verb("top -d 500ms -n 3") else {
        panic!("top");
    };
    assert_eq!((top.interval.0, top.rounds), (500_000_000, Some(3)));
}

#[test]
fn an_invalid_contract_is_refused_with_its_reason() {
    assert_refused([
        ("no contract", "set 7", "no clause is given"),
        ("nothing to run under", "run ls", "no clause is given"),
        ("mbps", "7 10mbps", "write 10mbit (bits) or 10MB/s (bytes)"),
        ("a bare rate", "7 10", "it has no unit"),
        ("a negative rate", "7 -5mbit", "cannot be negative"),
        (
            "a negative option",
            "set 7 --up -5mbit",
            "cannot be negative",
        ),
        ("an exponent", "set 7 --up 1e99gbit", "without an exponent"),
        (
            "an option for a value",
            "set 7 --up --down",
            "`--down` is not a rate",
        ),
        (
            "a contradiction",
            "set 7 --up 1mbit --min 2mbit",
            "min 2 Mbit/s (250 kB/s) is above up",
        ),
        (
            "both kinds",
            "set 7 --both 1mbit --up 1mbit",
            "cannot hold together",
        ),
        (
            "extra of nothing",
            "set 7 --up 1mbit --extra",
            "extra belongs to slice",
        ),
        (
            "a clause inside a value",
            "set 7 --on eth0/up",
            "is not the name of an interface",
        ),
    ]);
}

#[test]
fn a_malformed_command_line_is_refused_with_its_reason() {
    assert_refused([
        ("no command to run", "run --up 4mbit", "CMD"),
        (
            "an option twice",
            "set 7 --up 1mbit --up 2mbit",
            "cannot be used multiple times",
        ),
        (
            "an unknown option",
            "set 7 --upp 1mbit",
            "unexpected argument '--upp'",
        ),
        ("a misspelt verb", "sett 7", "it is not a command"),
        (
            "a misspelt verb with options",
            "sett --up 1mbit",
            "it is not a command",
        ),
        (
            "options without a verb",
            "7 --up 1mbit",
            "netnice set TARGET --up R",
        ),
        (
            "a verb behind a target",
            "7 show",
            "the target must follow the command",
        ),
        ("three words", "7 4mbit 9", "unexpected argument '9'"),
        ("pid zero", "0 4mbit", "`0` is not a process id"),
        (
            "only of a unit",
            "set unit:x --up 1mbit --only",
            "--only needs a process",
        ),
        (
            "a bad name",
            "run --name a/b ls",
            "`a/b` is not a name for name",
        ),
    ]);
}

#[test]
fn options_of_changes_are_refused_without_a_change_and_with_invalid_times() {
    assert_refused([
        (
            "dry reading",
            "show --dry-run",
            "--dry-run has no meaning with show",
        ),
        (
            "reading for a time",
            "7 --for 1h",
            "--for has no meaning with netnice TARGET",
        ),
        (
            "links to be confirmed",
            "link --confirm 1s",
            "--confirm has no meaning with link without",
        ),
        ("for no time", "set 7 --up 1mbit --for 0s", "a time of zero"),
        (
            "for a bare time",
            "set 7 --up 1mbit --for 10",
            "--for: `10` is not a time: it has no unit",
        ),
        (
            "a negative time",
            "set 7 --up 1mbit --confirm -1s",
            "--confirm: `-1s` is not a time",
        ),
    ]);
}

#[test]
fn invalid_options_of_the_other_verbs_are_refused_with_their_reason() {
    assert_refused([
        (
            "a rate of no link",
            "link --rate 1mbit",
            "the interface is missing",
        ),
        ("a bad link", "link a/b", "is not the name of an interface"),
        (
            "a bare link rate",
            "link eth0 --rate 100",
            "--rate: `100` is not a rate",
        ),
        (
            "a long horizon",
            "link eth0 --horizon 2s",
            "--horizon: 2s is out of range: write 0s to 1s",
        ),
        (
            "a short measurement",
            "doctor --stops 10ms",
            "--stops: 10ms is out of range: write 1s to 1h",
        ),
        (
            "much overhead",
            "link eth0 --overhead 1KiB",
            "--overhead: 1024 bytes is out of range: write 0 to 512 bytes",
        ),
        (
            "changed and given back",
            "link eth0 --rate 1mbit --unmanage",
            "cannot be used with",
        ),
        ("all and one", "clear --all 7", "cannot be used with"),
        ("no rate", "at-rate curl -O x", "no word is a rate"),
        ("no command", "at-rate @4mbit", "no command follows @4mbit"),
        ("an ambiguous rate", "at-rate curl @10mbps", "@10mbps: "),
        (
            "too fast",
            "top -d 1ms",
            "--interval: 1ms is out of range: write 100ms to 1h",
        ),
        ("no rounds", "top -n 0", "0 is not in 1.."),
        ("a bad number", "confirm x", "invalid value 'x'"),
        (
            "an unknown option of a verb",
            "link eth0 --colour x",
            "unexpected argument '--colour'",
        ),
    ]);
}

#[test]
fn a_value_cannot_contain_another_clause() {
    let words = ["netnice", "set", "7", "--on", "eth0 min 9gbit"];
    let error = parse(words.map(OsString::from).to_vec()).expect_err("a space");
    assert!(
        error
            .to_string()
            .contains("is not the name of an interface"),
        "{error}"
    );
    let words = ["netnice", "set", "7", "--up", "4 Mbit/s"];
    let good = parse(words.map(OsString::from).to_vec()).expect("as it is shown");
    let Verb::ProcessRequest(7, Request::Set(parsed)) = good.verb else {
        panic!("{good:?}");
    };
    assert_eq!(parsed, set("pid:7", "up 4mbit"));
}

proptest! {
    #[test]
    fn parsing_any_command_line_does_not_panic(words in proptest::collection::vec(
        "(set|run|show|clear|link|top|log|--up|--both|--min|--on|--json|--all|--for|--extra|--|7|pid:7\
          |unit:x|4mbit|none|1ms/2ms|-5mbit|\\PC{0,6})", 0..8)
    ) {
        let words = std::iter::once(OsString::from("netnice"))
            .chain(words.into_iter().map(OsString::from));
        let _ = parse(words.collect()).map_err(|bad| bad.to_string());
    }
}

#[test]
fn share_divides_among_targets_by_weight() {
    let words =
        "share @512Kbyte/sec unit:ftp 12 --per user --weight unit:ftp=300 --no-lend --for 1h";
    let Ok(Verb::Share(share)) = verb(words) else {
        panic!("not parsed");
    };
    let crate::share::Share { request, dry_run } = *share;
    assert!(!dry_run && !request.lend);
    assert_eq!(request.total.bits_per_second(), 512 * 1024 * 8);
    let targets: Vec<String> = request.targets.iter().map(ToString::to_string).collect();
    assert_eq!(targets, ["unit:ftp.service", "pid:12"]);
    assert_eq!(request.per, netnice_share::manager::Per::User);
    assert_eq!(request.weights.len(), 1);
    assert_eq!(request.for_, Some(std::time::Duration::from_secs(3600)));
    for (line, part) in [
        ("share 512 12", "no unit"),
        ("share 1mbit 12 --weight 12=1001", "1 to 1000"),
        ("share 1mbit 12 --weight 12", "1 to 1000"),
        (
            "share 1mbit 12 --weight user:no-such-user=2",
            "no such user",
        ),
        ("share 1mbit 12 --confirm 3s", "--confirm"),
        ("share 1mbit 12 --until-exit", "--until-exit"),
    ] {
        let bad = verb(line).expect_err(line).to_string();
        assert!(bad.contains(part), "{line}: {bad}");
    }
}

#[test]
fn all_programs_are_shown_on_demand() {
    assert!(matches!(verb("show --all"), Ok(Verb::ShowAll)));
    assert!(matches!(verb("top --targets"), Ok(Verb::Top(top)) if top.targets));
    assert!(matches!(verb("top"), Ok(Verb::Top(top)) if !top.targets));
    for line in [
        "show --all pid:7",
        "show --all --users",
        "show --all --history",
    ] {
        let error = verb(line).expect_err(line).to_string();
        assert!(error.contains("cannot be used with"), "{line}: {error}");
    }
}

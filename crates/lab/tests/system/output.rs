//! Tests the output of `show` for people and programs, of `explain`, `doctor` and `log`, dry runs
//! and confirmations (`--confirm`) of changes, the paper's short command lines, and many targets.

use std::os::unix::fs::MetadataExt;

use crate::users::{ANN, process_of};
use netnice_lab::experiment::bench::pause;
use netnice_lab::process::{EVENT_TIMEOUT, Proc};
use netnice_lab::testbed::{TestBed, becomes_true};
use netnice_lab::traffic::{self, Tcp};
use netnice_lab::world::Cgroup;
use serde_json::{Value, json};

pub(crate) fn parse_json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("no JSON ({e}): {text}"))
}

#[test]
fn show_prints_text_for_people_and_json_for_programs() {
    let bed = TestBed::new().expect("a test bed");
    let sleeper = bed.sleeper();
    let name = format!("pid:{}", sleeper.pid());
    let own = std::fs::metadata(bed.world.client().ns.path()).expect("a namespace");
    let own = own.ino();
    assert_eq!(
        bed.shown(),
        json!({
            "version": 1, "links": [], "targets": [], "direct": [], "network_namespace": own,
        })
    );
    bed.run_ok("link eth0 --rate 100mbit --down-rate 50mbit --overhead 24");
    bed.run_ok(&format!(
        "set {name} --up 80mbit --down 512Kbyte/s --min 60mbit --weight 200 --burst 10ms"
    ));
    let shown = bed.netnice.show().expect("a show");
    let link = &shown["links"][0];
    let capacity = |direction: &str| {
        let capacity = &link[direction];
        let of = |key: &str| capacity[key].as_u64();
        (
            of("rate"),
            of("usable"),
            of("held"),
            capacity["source"].as_str(),
        )
    };
    let mega = |m: u64| Some(m * 1_000_000);
    assert_eq!(
        capacity("up"),
        (mega(100), mega(100), mega(60), Some("operator"))
    );
    assert_eq!(
        capacity("down"),
        (mega(50), Some(48_500_000), Some(0), Some("operator"))
    );
    assert_eq!(link["overhead"], 24);
    let target = &shown["targets"][0];
    assert_eq!(target["target"], name.as_str());
    let asked = json!({
        "up": 80_000_000, "down": 4_194_304, "min": 60_000_000, "on": "eth0", "weight": 200,
        "burst_ns": 10_000_000,
    });
    for (key, value) in asked.as_object().expect("an object") {
        if key != "on" {
            assert_eq!(&target["contract"][key], value, "{key} of {target}");
        }
        assert_eq!(&target["effective"][key], value, "{key} of {target}");
    }
    assert_eq!(target["contract"]["set_by"]["up"], 0, "{target}");
    assert_eq!(target["installed"]["path"], "kernel", "{target}");
    assert_eq!(target["installed"]["up"], 80_000_000, "{target}");
    assert_eq!(target["installed"]["min"], 60_000_000, "{target}");
    let leaf = target["installed"]["leaf"].as_str();
    assert!(
        leaf.is_some_and(|leaf| ["fq_codel", "sparse+bulk"].contains(&leaf)),
        "{target}"
    );
    assert_eq!(target["degraded"], json!([]), "{target}");
    assert!(target["counters"]["at_ns"].is_u64(), "{target}");
    // The text has both forms of every rate.
    let text = bed.run_ok("show").stdout;
    for word in [
        "eth0",
        &name,
        "80 Mbit/s (10 MB/s)",
        "524.288 kB/s",
        "60 Mbit/s",
    ] {
        assert!(text.contains(word), "nothing of {word}: {text}");
    }
    let one = bed.run_ok(&format!("show {name} --json")).stdout;
    assert_eq!(parse_json(&one)["targets"][0]["target"], name.as_str());
}

#[test]
fn changing_values_are_under_counters_and_add_up() {
    let bed = TestBed::new().expect("a test bed");
    let to = bed.sink(5001).expect("a sink");
    let flows = Tcp::connect(to, 4).source();
    let program = traffic::start_now(bed.world.client(), &flows).expect("a program");
    let name = format!("pid:{}", program.pid());
    bed.run_ok(&format!("set {name} --up 4mbit"));
    let counters = || bed.target(&name)["counters"]["up"].clone();
    let sent = || counters()["sent_bytes"].as_u64().expect("a number");
    let first = sent();
    assert!(becomes_true(|| sent() >= first + 200_000), "{}", counters());
    // Connections that are new when the limit comes need a moment to reach it.
    let held_back = || counters()["held_back"].as_u64().expect("a number");
    assert!(becomes_true(|| held_back() > 0), "{}", counters());
    let up = counters();
    let of = |key: &str| up[key].as_u64().expect("a number");
    for unit in ["bytes", "packets"] {
        let [offered, sent, dropped, queued] =
            ["offered", "sent", "dropped", "queued"].map(|what| of(&format!("{what}_{unit}")));
        assert_eq!(offered, sent + dropped + queued, "{unit}: {up}");
    }
    let rate = || bed.target(&name)["counters"]["up_rate"].as_u64();
    // A sender on a busy machine may send half of its limit.
    let near = |rate: Option<u64>| rate.is_some_and(|r| (2_000_000..=4_120_000).contains(&r));
    assert!(becomes_true(|| near(rate())), "{:?}", rate());
    let before = bed.shown();
    assert!(becomes_true(|| sent() > of("sent_bytes")));
    assert_eq!(before, bed.shown(), "something moves beside the counters");
    let top = bed.run_ok("top -n 2 -d 500ms").stdout;
    assert!(
        top.matches(&name).count() == 2 && top.contains("4 Mbit/s"),
        "{top}"
    );
    let one = parse_json(&bed.run_ok("top -n 1 --json").stdout);
    assert_eq!(one["targets"][0]["target"], name.as_str());
}

#[test]
fn a_rate_raised_across_the_segmentation_threshold_stays_set() {
    let bed = TestBed::new().expect("a test bed");
    let sleeper = bed.sleeper();
    let name = format!("pid:{}", sleeper.pid());
    // Below 500 Mbit/s long packets are segmented before the queue, so all parameters of a class
    // change.
    bed.run_ok(&format!("set {name} --up 20mbit"));
    bed.run_ok(&format!("set {name} --up 1gbit"));
    let lines = || bed.run_ok("log").stdout.lines().count();
    let before = lines();
    // The daemon audits everything each second: a fault is repaired and logged at the first or the
    // second audit.
    pause(3.5);
    let log = bed.run_ok("log").stdout;
    assert_eq!(lines(), before, "something was said meanwhile: {log}");
    assert!(!log.contains("restoring it"), "{log}");
    let shown = bed.target(&name);
    assert_eq!(shown["degraded"], json!([]), "{shown}");
    assert_eq!(shown["effective"]["up"], 1_000_000_000, "{shown}");
}

#[test]
fn explain_describes_contract_members_path_and_exceptions_of_a_target() {
    let bed = TestBed::new().expect("a test bed");
    let slice = Cgroup::create("told.slice").expect("a slice");
    let sleeper = bed.sleeper();
    slice.add_process(sleeper.pid()).expect("it moves");
    let name = format!("pid:{}", sleeper.pid());
    let group = format!("cgroup:{}", slice.path());
    bed.run_ok("link eth0 --rate 100mbit");
    bed.run_ok(&format!("set {group} --up 20mbit"));
    bed.run_ok(&format!("set {name} --up 4mbit --slice 1ms/50ms"));
    let told = bed.run_ok(&format!("explain {name}")).stdout;
    let wanted = [
        ("who asked", "root"),
        ("what holds", "4 Mbit/s (500 kB/s)"),
        ("what is around it", group.as_str()),
        ("how it is found", "eBPF"),
        ("where it passes", "nn0"),
        ("its part of the link", "eth0"),
        ("how a slice is served", "2 Mbit/s"),
        ("what is not held", "ICMP"),
        ("nor", "AF_PACKET"),
        ("nor", "SYN-ACK"),
        ("nor", "RST"),
        ("nor", "TIME_WAIT"),
        ("nor", "fragments"),
        ("nor", "MPTCP"),
        ("nor", "shared"),
        ("nor", "filter"),
    ];
    for (what, word) in wanted {
        assert!(told.contains(word), "{what} ({word}) is not told: {told}");
    }
    let lines = parse_json(&bed.run_ok(&format!("explain {name} --json")).stdout);
    assert!(
        lines["lines"].as_array().is_some_and(|l| l.len() > 5),
        "{lines}"
    );
    // For a process in another target `explain` names that target; for a free process it says so.
    slice.add_process(sleeper.pid()).expect("it is there");
    let other = bed.sleeper();
    let told = bed.run_ok(&format!("explain pid:{}", other.pid())).stdout;
    assert!(told.contains("nothing"), "{told}");
    slice.add_process(other.pid()).expect("it moves");
    let told = bed.run_ok(&format!("explain pid:{}", other.pid())).stdout;
    assert!(told.contains(&group), "{told}");
}

#[test]
fn doctor_reports_kernel_features_with_and_without_a_daemon() {
    let mut bed = TestBed::new().expect("a test bed");
    let sleeper = bed.sleeper();
    bed.run_ok(&format!("set pid:{} --up 4mbit", sleeper.pid()));
    let with = parse_json(&bed.run_ok("doctor --json").stdout);
    bed.run_ok("clear --all");
    bed.netnice.stop_daemon();
    let without = parse_json(&bed.run_ok("doctor --json").stdout);
    for report in [&with, &without] {
        let items = report["items"].as_array().expect("a list");
        let find = |word: &str| {
            let found = items.iter().find(|item| item["name"] == word);
            found.unwrap_or_else(|| panic!("nothing of {word}: {report}"))
        };
        for word in [
            "kernel",
            "cgroup2",
            "attachment",
            "HTB",
            "veth",
            "fq_codel",
            "MPTCP",
        ] {
            let item = find(word);
            let status = item["status"].as_str().expect("a status");
            assert!(["good", "fallback", "missing"].contains(&status), "{item}");
            assert!(
                item["detail"].as_str().is_some_and(|d| !d.is_empty()),
                "{item}"
            );
        }
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a kernel");
        let kernel = find("kernel")["detail"].as_str().expect("words");
        assert!(kernel.contains(release.trim()), "{kernel}");
        let attachment = find("attachment")["detail"].as_str().expect("words");
        assert!(
            attachment.contains("tcx") || attachment.contains("clsact"),
            "{attachment}"
        );
    }
    bed.netnice.start_daemon().expect("it starts");
    let text = bed.run_ok("doctor").stdout;
    assert!(text.contains("good") && text.contains("HTB"), "{text}");
}

#[test]
fn a_dry_run_shows_a_change_and_does_not_make_it() {
    let bed = TestBed::new().expect("a test bed");
    let sleeper = bed.sleeper();
    let name = format!("pid:{}", sleeper.pid());
    let ns = &bed.world.client().ns;
    let kernel_and_state = || {
        let links = ns.ip("-o link").expect("ip");
        (links, ns.tc("qdisc show").expect("tc"), bed.shown())
    };
    let empty = kernel_and_state();
    for line in [
        "link eth0 --rate 100mbit --dry-run".to_owned(),
        format!("set {name} --up 4mbit --dry-run"),
    ] {
        let said = bed.run_ok(&line).stdout;
        assert!(said.contains("would be done"), "`{line}`: {said}");
        assert_eq!(empty, kernel_and_state(), "`{line}` did something");
    }
    bed.run_ok("link eth0 --rate 100mbit");
    bed.run_ok(&format!("set {name} --up 4mbit"));
    let full = kernel_and_state();
    for line in [
        format!("set {name} --up 8mbit --dry-run"),
        format!("clear {name} --dry-run"),
        "clear --all --dry-run".to_owned(),
        "link eth0 --unmanage --dry-run".to_owned(),
    ] {
        let said = bed.run_ok(&line).stdout;
        let first = !line.starts_with("clear") || said.starts_with("would be done");
        assert!(first && said.contains("would be done"), "`{line}`: {said}");
        assert_eq!(full, kernel_and_state(), "`{line}` did something");
    }
    let plan = parse_json(
        &bed.run_ok(&format!("set {name} --up 8mbit --dry-run --json"))
            .stdout,
    );
    assert!(plan.to_string().contains("plan"), "{plan}");
    // A change that would be refused is also refused in a dry run.
    bed.run_with_status(&format!("set {name} --up none --min 200mbit --dry-run"), 3);
}

#[test]
fn a_dry_run_lists_the_changes_by_target() {
    let bed = TestBed::new().expect("a test bed");
    let program = bed.sleeper();
    let pid = program.pid();
    bed.run_ok(&format!("set {pid} --up 4mbit"));
    let plan = |line: &str| bed.run_ok(&format!("{line} --dry-run")).stdout;
    let said = plan(&format!("set {pid} --up 8mbit"));
    let change = format!("pid:{pid} (asked by root): up 4mbit -> up 8mbit");
    assert!(said.contains(&change), "{said}");
    let said = plan("clear --all");
    let change = format!("pid:{pid} (asked by root): up 4mbit -> no contract");
    assert!(said.contains(&change), "{said}");
    let said = plan("link eth0 --rate 100mbit");
    assert!(said.contains("eth0 is managed"), "{said}");
    assert!(!said.contains("class"), "steps of the kernel path: {said}");
}

#[test]
fn clear_and_confirm_alone_list_what_there_is() {
    let bed = TestBed::new().expect("a test bed");
    let said = bed.run_with_status("clear", 2).stderr;
    assert!(said.contains("nothing is set"), "{said}");
    let said = bed.run_with_status("confirm", 2).stderr;
    assert!(said.contains("no change"), "{said}");
    let program = bed.sleeper();
    let pid = program.pid();
    bed.run_ok(&format!("set {pid} --up 4mbit --confirm 5min"));
    let said = bed.run_with_status("clear", 2).stderr;
    assert!(
        said.contains(&format!("pid:{pid}")) && said.contains("up 4 Mbit/s"),
        "{said}"
    );
    let said = bed.run_with_status("confirm", 2).stderr;
    assert!(
        said.contains(&format!("netnice confirm 1: pid:{pid}")),
        "{said}"
    );
    bed.run_ok("confirm 1");
    let said = bed.run_with_status("confirm", 2).stderr;
    assert!(said.contains("no change"), "{said}");
}

#[test]
fn a_process_of_another_network_namespace_is_refused() {
    let bed = TestBed::new().expect("a test bed");
    let elsewhere = &bed.world.server().ns;
    let mut command = elsewhere.command("sleep");
    command.arg("600");
    let process = Proc::start(command).expect("a process");
    let pid = process.pid();
    let before = bed.shown();
    for line in [format!("set {pid} --up 4mbit"), format!("{pid} 4mbit")] {
        let said = bed.run_with_status(&line, 3).stderr;
        assert!(said.contains("another network namespace"), "{said}");
    }
    assert_eq!(bed.shown(), before);
    let said = bed.run_ok(&format!("explain {pid}")).stdout;
    assert!(said.contains("another network namespace"), "{said}");
    // This process is in neither namespace, but its descendant is here.
    let _here = bed.sleeper();
    let said = bed
        .run_ok(&format!("set {} --up 4mbit", std::process::id()))
        .stdout;
    assert!(said.contains("is in another network namespace"), "{said}");
    bed.run_ok(&format!("clear {}", std::process::id()));
    // Typed there: a command is not started without its limit, and `show` says whose state it is.
    let runtime = bed.netnice.runtime().display().to_string();
    let netnice = netnice_lab::process::binary("netnice").expect("the program");
    let typed = |words: &[&str]| {
        let mut command = elsewhere.command(&netnice);
        command.args(["--runtime-dir", &runtime]).args(words);
        let output = command.output().expect("it runs");
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.code(),
            String::from_utf8_lossy(&text).into_owned(),
        )
    };
    let (status, said) = typed(&["run", "--up", "4mbit", "echo", "started"]);
    assert_eq!(status, Some(3), "{said}");
    assert!(!said.contains("started\n"), "{said}");
    let (status, said) = typed(&["show"]);
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("another network namespace"), "{said}");
    let here = bed.run_ok("show").stdout;
    assert!(!here.contains("another network namespace"), "{here}");
}

#[test]
fn explain_tells_of_sockets_from_before_a_process_came_into_a_limited_group() {
    let bed = TestBed::new().expect("a test bed");
    let group = Cgroup::create("moved").expect("a group");
    bed.run_ok(&format!("set cgroup:{} --up 4mbit", group.path()));
    let sink = bed.sink(5001).expect("a sink");
    let source = Tcp::connect(sink, 1).source();
    let program = traffic::start_now(bed.world.client(), &source).expect("a program");
    group.add_process(program.pid()).expect("it moves");
    let explain = || bed.run_ok(&format!("explain {}", program.pid())).stdout;
    let told = || explain().contains("open sockets: they were created in another");
    assert!(becomes_true(told), "{}", explain());
    let of_group = bed
        .run_ok(&format!("explain cgroup:{}", group.path()))
        .stdout;
    assert!(!of_group.contains("open sockets:"), "{of_group}");
}

/// Times for confirmation in seconds.
const TIMES: [u32; 3] = [1, 4, 16];

#[test]
fn a_confirmed_change_stays_and_an_unconfirmed_one_is_undone() {
    let bed = TestBed::new().expect("a test bed");
    let sleeper = bed.sleeper();
    let name = format!("pid:{}", sleeper.pid());
    let up = || bed.target(&name)["contract"]["up"].clone();
    bed.run_ok(&format!("set {name} --up 4mbit"));
    // A slow machine needs more than a second to confirm and to check: then a longer time is tried.
    let mut id = 0;
    let confirmed = |seconds: &u32| {
        let line = format!("set {name} --up 8mbit --confirm {seconds}s --json");
        id = parse_json(&bed.run_ok(&line).stdout)["confirm"]
            .as_u64()
            .expect("a number to confirm");
        let line = ["confirm".to_owned(), id.to_string()];
        let answer = bed.netnice.run(&line.each_ref().map(String::as_str));
        answer.expect("it runs").status == 0
    };
    assert!(TIMES.iter().any(confirmed), "nothing can be confirmed");
    let managed = |seconds: &u32| {
        bed.run_ok(&format!("link eth0 --rate 100mbit --confirm {seconds}s"));
        bed.shown()["links"][0]["link"] == "eth0"
    };
    assert!(TIMES.iter().any(managed), "{}", bed.shown());
    assert!(
        becomes_true(|| bed.shown()["links"] == json!([])),
        "a link that was not confirmed stays: {}",
        bed.shown()
    );
    assert_eq!(up(), 8_000_000, "what was confirmed has gone");
    bed.run_with_status(&format!("confirm {id}"), 1);
    // Clearing can also require a confirmation.
    let cleared = |seconds: &u32| {
        bed.run_ok(&format!("clear --all --confirm {seconds}s"));
        up() == Value::Null
    };
    assert!(TIMES.iter().any(cleared), "{}", bed.shown());
    assert!(
        becomes_true(|| up() == 8_000_000),
        "cleared without confirmation"
    );
}

#[test]
fn the_log_keeps_grants_and_refusals() {
    let bed = TestBed::new().expect("a test bed");
    let sleeper = bed.sleeper();
    let name = format!("pid:{}", sleeper.pid());
    bed.run_ok(&format!("set {name} --up 4mbit"));
    bed.run_with_status(&format!("set {name} --min 1mbit"), 3);
    bed.run_ok(&format!("clear {name}"));
    let log = bed.run_ok("log").stdout;
    for word in [name.as_str(), "4mbit", "refused", "clear"] {
        assert!(log.contains(word), "nothing of {word}: {log}");
    }
    let last = bed.run_ok("log -n 1").stdout;
    assert_eq!(last.trim().lines().count(), 1, "{last}");
    let lines = parse_json(&bed.run_ok("log --since 1h --json").stdout);
    let lines = lines["lines"].as_array().expect("a list");
    assert!(
        lines.len() >= 3 && lines.iter().all(|l| l["at_ns"].is_u64()),
        "{lines:?}"
    );
}

#[test]
fn the_papers_short_forms_set_and_show() {
    let bed = TestBed::new().expect("a test bed");
    let sleeper = bed.sleeper();
    let pid = sleeper.pid();
    let name = format!("pid:{pid}");
    bed.run_ok(&format!("{pid} 128Kbyte/sec"));
    assert_eq!(bed.target(&name)["contract"]["both"], 1_048_576);
    let shown = bed.run_ok(&format!("{pid}")).stdout;
    assert!(shown.contains("131.072 kB/s"), "{shown}");
    bed.run_ok(&format!("{pid} none"));
    assert!(bed.target(&name).is_null());
    // Without arguments `netnice` shows the limit of the calling shell.
    let netnice = netnice_lab::process::binary("netnice").expect("it is built");
    let script = format!("echo ready; read go; exec {} --json", netnice.display());
    let mut command = bed.world.client().ns.command("sh");
    command.args(["-c", &script]);
    command.env("NETNICE_RUNTIME_DIR", bed.netnice.runtime());
    let mut shell = Proc::start(command).expect("a shell");
    let within = EVENT_TIMEOUT;
    shell.next_line(within).expect("ready");
    bed.run_ok(&format!("{} 4mbit", shell.pid()));
    let own = format!("pid:{}", shell.pid());
    shell.write_line("go").expect("it listens");
    let shown = parse_json(&shell.remaining_lines(within).join("\n"));
    assert_eq!(shown["targets"][0]["target"], own.as_str(), "{shown}");
}

#[test]
fn two_hundred_targets_are_set_one_by_one() {
    let bed = TestBed::new().expect("a test bed");
    let mut command = bed.world.client().ns.command("sh");
    command.args([
        "-c",
        "i=0; while [ $i -lt 200 ]; do sleep 600 & echo $!; i=$((i+1)); done; wait",
    ]);
    let mut sleepers = Proc::start(command).expect("sleepers");
    let within = EVENT_TIMEOUT;
    for _ in 0..200 {
        let pid = sleepers.next_line(within).expect("a number");
        bed.run_ok(&format!("set pid:{pid} --up 2mbit --down 3mbit"));
    }
    let held = bed.netnice.show().expect("a show");
    assert_eq!(held["targets"].as_array().map(Vec::len), Some(200));
    // The experiment `scale`, which runs alone, judges the duration of each change.
    let memory = bed.netnice.daemon_memory().expect("it lives");
    assert!(memory < 64 << 20, "{memory} bytes");
    drop(sleepers);
    let empty = || bed.shown()["targets"] == json!([]);
    assert!(becomes_true(empty), "targets outlive their processes");
}

#[test]
fn explain_has_one_row_for_each_class_that_packets_pass() {
    let bed = TestBed::new().expect("a test bed");
    let process = process_of(&bed, ANN);
    let (user, pid) = (format!("user:{ANN}"), format!("pid:{}", process.pid()));
    // The directions of the rows, and whether the class is of a target around it.
    let rows = |target: &str| -> Vec<(String, bool)> {
        let page = bed.run_ok(&format!("explain {target}")).stdout;
        let words: Vec<&str> = page.split_whitespace().collect();
        let page = words.join(" ");
        let row = |row: &str| {
            let what = row.split(" class ").next().unwrap_or_default();
            let (row, _) = row.split_once(')').unwrap_or((row, ""));
            (what.to_owned(), row.contains("of a target around it"))
        };
        page.split("passes ").skip(1).map(row).collect()
    };
    let row = |what: &str, of_outer| (what.to_owned(), of_outer);
    bed.run_ok(&format!("set {user} --up 8mbit"));
    bed.run_ok(&format!("set {pid} --down 4mbit"));
    let expected = [row("what is sent:", true), row("what is received:", false)];
    assert_eq!(rows(&pid), expected);
    let sleeper = bed.sleeper();
    let together = format!("pid:{}", sleeper.pid());
    bed.run_ok(&format!("set {together} --both 8mbit"));
    assert_eq!(rows(&together), [row("what is sent and received:", false)]);
}

//! Tests of the list of all programs in `netnice top` and `netnice show --all`: programs without a
//! limit have their rates, no byte of a short-lived program is lost, a user sees the programs of
//! that user and keeps the counting on for a part of an hour, and nothing is counted while no
//! client asks.

use std::time::Instant;

use netnice_api::{Client, ProgramsDoc, Request, Response, RuntimeDir};
use netnice_lab::experiment::bench;
use netnice_lab::process::{EVENT_TIMEOUT, Proc};
use netnice_lab::sys;
use netnice_lab::terminal::Terminal;
use netnice_lab::testbed::{TestBed, becomes_true};
use netnice_lab::traffic::many_programs::{BriefPrograms, BriefTraffic, Drain, SteadyPrograms};
use netnice_lab::traffic::{self, Tcp, Udp};
use netnice_lab::wire::Tap;
use serde_json::Value;

use crate::users::{ANN, BOB, NOBODY, as_user, run_as, traffic_as};

/// The traffic of programs, from the bed's daemon.
fn ask(bed: &TestBed) -> ProgramsDoc {
    let mut client = Client::connect(&RuntimeDir::choose(
        Some(bed.netnice.runtime().into()),
        None,
    ))
    .expect("a daemon");
    let request = Request::Programs(netnice_api::Programs {
        within_ns: 0,
        keep_ns: 8_000_000_000,
    });
    match client.call(&request, None).expect("an answer") {
        Response::Programs(doc) => doc,
        other => panic!("{other:?}"),
    }
}

/// As [`ask`], from a reading after `before`: the daemon reads seldom if a reading takes long.
fn ask_after(bed: &TestBed, before: &ProgramsDoc) -> ProgramsDoc {
    let until = Instant::now() + 2 * EVENT_TIMEOUT;
    loop {
        let doc = ask(bed);
        if doc.at_ns > before.at_ns {
            return doc;
        }
        assert!(Instant::now() < until, "no reading after {before:?}");
        bench::pause(0.1);
    }
}

/// Bytes that the client has sent on all interfaces but lo.
fn sent(bed: &TestBed) -> u64 {
    let mut command = bed.world.client().ns.command("cat");
    let output = command.arg("/proc/net/dev").output().expect("cat");
    let text = String::from_utf8(output.stdout).expect("text");
    let interfaces = text.lines().filter_map(|line| line.split_once(':'));
    interfaces
        .filter(|(name, _)| name.trim() != "lo")
        .map(|(_, counts)| {
            let sent = counts.split_whitespace().nth(8).expect("the bytes sent");
            sent.parse::<u64>().expect("a number")
        })
        .sum()
}

/// The number of eBPF objects that the daemon holds.
fn ebpf_objects(bed: &TestBed) -> usize {
    let daemon = bed.netnice.pid().expect("a daemon");
    let folder = std::fs::read_dir(format!("/proc/{daemon}/fd")).expect("its descriptors");
    let links = folder
        .flatten()
        .filter_map(|entry| std::fs::read_link(entry.path()).ok());
    links
        .filter(|link| link.to_string_lossy().contains("bpf"))
        .count()
}

#[test]
fn a_program_without_a_limit_has_its_rate_and_is_counted_only_while_a_client_asks() {
    let bed = TestBed::new().expect("a test bed");
    let to = bed.sink(5001).expect("a sink");
    // The connections are older than the counting.
    let flows = Tcp::connect(to, 2).source().rate(20_000_000);
    let program = traffic::start_now(bed.world.client(), &flows).expect("a program");
    bench::pause(0.5);
    assert_eq!(ebpf_objects(&bed), 0, "no client asks");
    let begun = ask(&bed);
    assert!(ebpf_objects(&bed) > 0);
    bench::pause(0.6);
    let own = |doc: &ProgramsDoc| {
        let found = doc.list.iter().find(|it| it.pid == program.pid());
        found.cloned().unwrap_or_else(|| panic!("not in {doc:?}"))
    };
    // The rate by the list and that by the device's counters, each over its own seconds: a slow
    // machine takes long for a reading. A busy machine may stop one between the bytes and the
    // clock.
    let device = || (sys::now_ns(), sent(&bed));
    let rate = |(from, before): (u64, u64), (to, after): (u64, u64)| {
        (after - before) as f64 * 8e9 / (to - from) as f64
    };
    let mut start = ask_after(&bed, &begun);
    let mut error = f64::MAX;
    for _ in 0..4 {
        let from = device();
        bench::pause(3.0);
        let end = ask_after(&bed, &start);
        let wire = rate(from, device());
        let at = |doc: &ProgramsDoc| (doc.at_ns, own(doc).up_bytes);
        let counted = rate(at(&start), at(&end));
        println!("counted {counted:.0} of {wire:.0} bit/s");
        error = (counted / wire - 1.0).abs();
        start = end;
        if error < 0.05 {
            break;
        }
    }
    assert!(error < 0.05, "off by {:.1} %", error * 100.0);
    let second = own(&start);
    assert_eq!(second.connections, 2);
    assert_eq!((second.command.as_str(), second.uid), ("netnice-lab", 0));
    let text = bed.run_ok("show --all").stdout;
    let row = text.lines().find(|line| line.starts_with("netnice-lab"));
    assert!(row.is_some_and(|row| row.contains("Mbit/s")), "{text}");
    let json: Value = serde_json::from_str(&bed.run_ok("show --all --json").stdout).expect("JSON");
    let rate = json["programs"]["list"][0]["up_rate"].as_u64();
    let ideal = 20_000_000.0 * 1514.0 / 1448.0;
    let rate = rate.unwrap_or_else(|| panic!("no rate in {json}")) as f64;
    assert!((rate / ideal - 1.0).abs() < 0.15, "{rate} of {ideal} bit/s");
    assert!(
        becomes_true(|| ebpf_objects(&bed) == 0),
        "no client asks any more"
    );
}

#[test]
fn programs_that_live_for_milliseconds_lose_no_bytes_of_the_sum() {
    const PROGRAMS: u64 = 300;
    let bed = TestBed::new().expect("a test bed");
    let to = bed.sink(5001).expect("a sink");
    let begun = ask(&bed);
    let before = sent(&bed);
    let first = begun.total.up_bytes;
    let mut command = bed.world.client().ns.command("perl");
    command.args(["-MIO::Socket::INET", "-e", SHORT_PROGRAMS]);
    command.args([to.to_string(), PROGRAMS.to_string()]);
    let mut parent = Proc::start(command).expect("programs");
    for round in 0.. {
        let line = parent.next_line(EVENT_TIMEOUT);
        ask(&bed);
        if line.expect("a line").trim() == "done" {
            break;
        }
        assert!(round < 100, "the programs do not end");
    }
    // A program has ended for good when its sockets have been idle for a second.
    let mut doc = begun;
    for _ in 0..30 {
        doc = ask_after(&bed, &doc);
        if doc.ended.programs >= PROGRAMS {
            break;
        }
    }
    let (counted, wire) = (doc.total.up_bytes - first, sent(&bed) - before);
    println!("counted {counted} of {wire} bytes");
    // The kernel itself answers for connections that are closed, without a socket.
    assert!(
        counted >= PROGRAMS * 10_000 && counted <= wire,
        "{counted} of {wire} bytes"
    );
    assert!(counted * 100 >= wire * 98, "{counted} of {wire} bytes");
    assert!(doc.ended.programs >= PROGRAMS, "{doc:?}");
    assert!(doc.ended.up_bytes >= PROGRAMS * 10_000, "{doc:?}");
    assert_eq!(doc.overflow.up_bytes, 0, "{doc:?}");
}

/// Children that each send 10,000 bytes on a connection and end, 10 at a time. Prints a line for
/// each ten, and `done`.
const SHORT_PROGRAMS: &str = r#"
    my ($to, $count) = @ARGV;
    $| = 1;
    for my $n (1 .. $count) {
        if (!fork) {
            my $socket = IO::Socket::INET->new($to) or die "$to: $!";
            my $much = 'x' x 10000;
            my $at = 0;
            $at += syswrite $socket, $much, 10000 - $at, $at while $at < 10000;
            exit;
        }
        next if $n % 10;
        1 while wait > 0;
        print "$n\n";
    }
    print "done\n";
"#;

#[test]
fn a_user_sees_the_own_programs_and_a_sum_of_the_others() {
    let bed = TestBed::new().expect("a test bed");
    let (one, other) = (
        bed.sink(5001).expect("a sink"),
        bed.sink(5002).expect("a sink"),
    );
    let lab = bed.copy_for_all("netnice-lab").expect("a copy");
    let netnice = bed.copy_for_all("netnice").expect("a copy");
    let flows = |to| Tcp::connect(to, 1).source().rate(8_000_000);
    let roots = traffic::start_now(bed.world.client(), &flows(one)).expect("a program");
    let own = traffic_as(&bed, NOBODY, &lab, &flows(other)).expect("a program");
    let show = || {
        let mut command = as_user(&bed, NOBODY);
        command.arg(&netnice).args(["show", "--all", "--json"]);
        let output = command.output().expect("netnice");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let doc = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{output:?}"));
        (text, doc)
    };
    let until = Instant::now() + EVENT_TIMEOUT;
    let (text, doc): (String, Value) = loop {
        let (text, doc): (String, Value) = show();
        let others = doc["programs"]["others"]["up_bytes"].as_u64();
        if others.is_some_and(|bytes| bytes > 100_000) {
            break (text, doc);
        }
        assert!(Instant::now() < until, "{doc}");
    };
    let programs = &doc["programs"];
    let list = programs["list"].as_array().expect("a list");
    assert!(!list.is_empty(), "{programs}");
    assert!(list.iter().all(|it| it["uid"] == NOBODY), "{programs}");
    assert!(list.iter().any(|it| it["pid"] == own.pid()), "{programs}");
    assert!(
        !text.contains(&format!("\"pid\": {},", roots.pid())),
        "{programs}"
    );
}

#[test]
fn a_program_in_the_list_is_limited_by_a_key() {
    let bed = TestBed::new().expect("a test bed");
    let to = bed.sink(5001).expect("a sink");
    let flows = Tcp::connect(to, 1).source().rate(20_000_000);
    let program = traffic::start_now(bed.world.client(), &flows).expect("a program");
    let name = format!("pid:{}", program.pid());
    let mut command = bed.netnice.command(&["top"]);
    command.env("LC_ALL", "C.UTF-8");
    let mut top = Terminal::start(command, 80, 24).expect("a terminal");
    let row = |text: &str| {
        let row = text.lines().find(|line| line.contains(&name));
        row.is_some_and(|row| row.contains("root") && row.contains('M'))
    };
    let await_text = |top: &Terminal, what: &str| {
        let shown = top.wait_for(what, EVENT_TIMEOUT, |text| text.contains(what));
        shown.unwrap_or_else(|error| panic!("{error:#}"));
    };
    top.wait_for("the program's row", EVENT_TIMEOUT, row)
        .unwrap_or_else(|error| panic!("{error:#}"));
    println!("{}", top.text());
    top.type_keys("/pid:\r").expect("typed");
    await_text(&top, &format!("> {name}"));
    top.type_keys("\r").expect("typed");
    await_text(&top, "10.77.0.2:5001");
    top.type_keys("u4mbit\r").expect("typed");
    await_text(&top, "1 target ");
    assert_eq!(bed.effective_up(&name), 4_000_000);
    top.type_keys("a").expect("typed");
    await_text(&top, "1 target  1 moving");
    println!("{}", top.text());
    top.type_keys("q").expect("typed");
    assert!(top.wait(EVENT_TIMEOUT).expect("an end").success());
}

#[test]
fn udp_sockets_have_rates_and_hosts_have_sums() {
    let bed = TestBed::new().expect("a test bed");
    let flow = Udp::source(bed.client(4000), bed.server(5001)).rate(4_000_000);
    let program = traffic::start_now(bed.world.client(), &flow).expect("a program");
    let mut command = bed.netnice.command(&["top"]);
    command.env("LC_ALL", "C.UTF-8");
    let mut top = Terminal::start(command, 200, 50).expect("a terminal");
    let await_line = |top: &Terminal, words: &[&str]| {
        let is_shown = |text: &str| {
            let mut lines = text.lines();
            lines.any(|line| words.iter().all(|word| line.contains(word)))
        };
        let shown = top.wait_for(&format!("{words:?}"), EVENT_TIMEOUT, is_shown);
        shown.unwrap_or_else(|error| panic!("{error:#}"));
    };
    let name = format!("pid:{}", program.pid());
    await_line(&top, &[&name, "root", "M"]);
    top.type_keys("/pid:\r\r").expect("typed");
    // The rate is some megabits a second, whatever the machine does meanwhile.
    await_line(
        &top,
        &["udp  up ", "M  down", "10.77.0.1:4000 > 10.77.0.2:5001"],
    );
    top.type_keys("n").expect("typed");
    await_line(&top, &["M  down", "10.77.0.2  1 connection"]);
    top.type_keys("N").expect("typed");
    await_line(&top, &["ALL REMOTE HOSTS"]);
    await_line(&top, &["M  down", "10.77.0.2  1 connection"]);
    println!("{}", top.text());
    top.type_keys("Nq").expect("typed");
    assert!(top.wait(EVENT_TIMEOUT).expect("an end").success());
}

#[test]
fn a_user_whose_requests_never_end_does_not_keep_the_counting_on() {
    let bed = TestBed::new().expect("a test bed");
    std::fs::write(bed.netnice.policy(), "[quotas]\ncounting-time = \"10s\"\n").expect("a policy");
    bed.run_ok("reload");
    // Each command counts for three seconds after its last request.
    let refused = (0..20).find_map(|_| {
        let shown = run_as(&bed, ANN, "show --all");
        (shown.status != 0).then_some(shown)
    });
    let refused = refused.expect("the time is used up");
    assert_eq!(refused.status, 3, "{refused:?}");
    let policy = bed.netnice.policy().display().to_string();
    for part in ["quota of 10s", "`counting-time`", &policy, "next hour"] {
        assert!(refused.stderr.contains(part), "{part}: {refused:?}");
    }
    let polls = || run_as(&bed, ANN, "show --all").status;
    assert!(
        becomes_true(|| polls() == 3 && ebpf_objects(&bed) == 0),
        "a refused request counts nothing"
    );
    let users = run_as(&bed, ANN, "show --users --json").stdout;
    let users: Value = serde_json::from_str(&users).expect("JSON");
    let used = users["users"][0]["used"]["counting-time"].as_u64();
    assert!(
        used.is_some_and(|used| (7_000_000_000..=10_000_000_000).contains(&used)),
        "{users}"
    );
    // The screen says so, and goes on with the targets.
    let mut command = as_user(&bed, ANN);
    command.arg(bed.copy_for_all("netnice").expect("a copy"));
    command.arg("top").env("LC_ALL", "C.UTF-8");
    let mut top = Terminal::start(command, 80, 24).expect("a terminal");
    top.wait_for("the reason", EVENT_TIMEOUT, |text| {
        text.contains("counting-time") && text.contains("0 targets")
    })
    .unwrap_or_else(|error| panic!("{error:#}"));
    top.type_keys("q").expect("typed");
    assert!(top.wait(EVENT_TIMEOUT).expect("an end").success());
    // Each user has a quota of their own, and root has none.
    assert_eq!(run_as(&bed, BOB, "show --all").status, 0);
    for _ in 0..2 {
        bed.run_ok("show --all");
    }
}

#[test]
fn each_of_many_programs_has_its_bytes() {
    const PROGRAMS: u16 = 60;
    let bed = TestBed::new().expect("a test bed");
    let to = bed.server(5001);
    let _drain = Drain::start(bed.world.server(), to).expect("a drain");
    let programs =
        SteadyPrograms::start(bed.world.client(), to, PROGRAMS, 7).expect("the programs");
    let server = &bed.world.server().ns;
    let mut worst = 0.0;
    // A busy machine may stop the daemon between a reading and its time stamp.
    for _ in 0..4 {
        let begun = ask(&bed);
        let tap = Tap::start(server, "eth0").expect("a tap");
        let first = ask_after(&bed, &begun);
        let mut second = ask_after(&bed, &first);
        while second.at_ns < first.at_ns + 3_000_000_000 {
            second = ask_after(&bed, &second);
        }
        let record = tap.stop(server).expect("a record");
        let seen = programs.seen(&record, first.at_ns, second.at_ns);
        assert_eq!(seen.len(), usize::from(PROGRAMS), "{seen:?}");
        let errors = seen.iter().map(|(pid, seen)| {
            let sent = |doc: &ProgramsDoc| {
                let program = doc.list.iter().find(|program| program.pid == *pid);
                program.map_or(0, |program| program.up_bytes)
            };
            (sent(&second) - sent(&first)).abs_diff(*seen) as f64 / *seen as f64
        });
        worst = errors.fold(0.0, f64::max);
        println!("worst error {:.2} %", worst * 100.0);
        if worst <= 0.05 {
            return;
        }
    }
    panic!("a program is off by {:.2} %", worst * 100.0);
}

#[test]
fn sockets_of_ended_programs_leave_their_bytes_in_the_sum() {
    const PROGRAMS: u32 = 200;
    const EACH: u32 = 50;
    let bed = TestBed::new().expect("a test bed");
    let (host, to) = (bed.world.client(), bed.server(5001));
    let traffic = BriefTraffic::Datagrams(EACH);
    let mut programs = BriefPrograms::new(host, to, traffic).expect("a parent");
    let begun = ask(&bed);
    let before = sent(&bed);
    for _ in 0..PROGRAMS / 20 {
        programs.start(20).expect("programs");
        ask(&bed);
    }
    programs.finish().expect("they end");
    let mut doc = begun.clone();
    for _ in 0..30 {
        doc = ask_after(&bed, &doc);
        if doc.ended.programs >= u64::from(PROGRAMS) {
            break;
        }
    }
    assert!(doc.ended.programs >= u64::from(PROGRAMS), "{doc:?}");
    let counted = doc.total.up_bytes - begun.total.up_bytes;
    let (least, most) = (
        u64::from(PROGRAMS * EACH) * (BriefPrograms::DATAGRAM + 42),
        sent(&bed) - before,
    );
    println!("counted {counted}: at least {least}, at most {most}");
    // The device does not count the few packets that it drops.
    assert!(counted >= least && counted * 100 <= most * 101);
}

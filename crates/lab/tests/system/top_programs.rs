//! Tests of the list of all programs in `netnice top` and `netnice show --all`: programs without a
//! limit have their rates, no byte of a short-lived program is lost, a user sees the programs of
//! that user, and nothing is counted while no client asks.

use netnice_api::{Client, ProgramsDoc, Request, Response, RuntimeDir};
use netnice_lab::experiment::bench;
use netnice_lab::process::{EVENT_TIMEOUT, Proc};
use netnice_lab::terminal::Terminal;
use netnice_lab::testbed::{TestBed, becomes_true};
use netnice_lab::traffic::{self, Tcp};
use serde_json::Value;

use crate::users::{NOBODY, as_user, traffic_as};

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
    let mut doc = ask(bed);
    for _ in 0..100 {
        if doc.at_ns > before.at_ns {
            return doc;
        }
        bench::pause(0.1);
        doc = ask(bed);
    }
    panic!("no reading after {before:?}")
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
    let start = ask_after(&bed, &begun);
    let (before, first) = (sent(&bed), own(&start));
    bench::pause(3.0);
    let doc = ask_after(&bed, &start);
    let after = sent(&bed);
    let second = own(&doc);
    let (counted, wire) = (second.up_bytes - first.up_bytes, after - before);
    println!("counted {counted} of {wire} bytes");
    let error = counted.abs_diff(wire) as f64 / wire as f64;
    assert!(error < 0.05, "{counted} of {wire} bytes");
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
    let mut command = as_user(&bed, NOBODY);
    command.arg(netnice).args(["show", "--all", "--json"]);
    let output = command.output().expect("netnice");
    let text = String::from_utf8_lossy(&output.stdout);
    let doc: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{output:?}"));
    let programs = &doc["programs"];
    let list = programs["list"].as_array().expect("a list");
    assert!(!list.is_empty(), "{programs}");
    assert!(list.iter().all(|it| it["uid"] == NOBODY), "{programs}");
    assert!(list.iter().any(|it| it["pid"] == own.pid()), "{programs}");
    assert!(
        programs["others"]["up_bytes"].as_u64().unwrap_or(0) > 100_000,
        "{programs}"
    );
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

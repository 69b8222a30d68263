//! Tests bad input: it must get one clear error that names the invalid part, and change nothing.
//! Clients that send garbage or keep connections open must not delay others.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

use netnice_lab::process::{EVENT_TIMEOUT, Proc};
use netnice_lab::sys;
use netnice_lab::testbed::{TestBed, becomes_true};
use serde_json::json;

use crate::output::parse_json;
use crate::users::{ANN, as_user};

/// The case, the command line (P is a process with a limit of 50 Mbit/s), the exit status, and the
/// parts of the message.
type Case = (&'static str, &'static str, i32, &'static [&'static str]);

/// Invalid command lines, and changes that contradict the present contract of P: exit status 2.
const BAD_USAGE: &[Case] = &[
    (
        "a rate as tc reads it",
        "set P --up 10mbps",
        2,
        &["10mbps", "10mbit", "10MB/s"],
    ),
    (
        "the same in the short form",
        "P 10mbps",
        2,
        &["10mbps", "10mbit", "10MB/s"],
    ),
    ("no unit", "set P --up 10", 2, &["`10`", "unit"]),
    ("no unit, short", "P 10", 2, &["`10`", "unit"]),
    (
        "a negative rate",
        "set P --up -5mbit",
        2,
        &["-5mbit", "negative"],
    ),
    (
        "a negative rate, short",
        "P -5mbit",
        2,
        &["-5mbit", "negative"],
    ),
    ("an absurd rate", "set P --up 1e99gbit", 2, &["1e99gbit"]),
    (
        "too fast",
        "set P --up 99999999gbit",
        2,
        &["99999999gbit", "too large"],
    ),
    ("too slow", "set P --up 1bit", 2, &["1bit", "1kbit"]),
    ("no number", "set P --up fast", 2, &["fast", "number"]),
    ("no value", "set P --up", 2, &["--up"]),
    (
        "hours that never come",
        "set P --up 1mbit --when mon-fri@08:00-08:00",
        2,
        &["08:00-08:00", "never comes"],
    ),
    (
        "no such zone",
        "set P --up 1mbit --when mon-fri@Europe/Berlni",
        2,
        &["Europe/Berlni", "time zone database"],
    ),
    (
        "a minimum with hours",
        "set P --min 1mbit --when mon-fri",
        2,
        &["min cannot have a schedule"],
    ),
    ("no contract", "set P", 2, &["up", "down", "min"]),
    ("no target", "set", 2, &["TARGET"]),
    ("no verb", "P --up 1mbit", 2, &["netnice set"]),
    ("no such verb", "frobnicate --up 1mbit", 2, &["frobnicate"]),
    (
        "a minimum above its maximum",
        "set P --min 60mbit --up 40mbit",
        2,
        &["60 Mbit/s", "40 Mbit/s"],
    ),
    (
        "a minimum above the maximum there is",
        "set P --min 60mbit",
        2,
        &["60 Mbit/s", "50 Mbit/s"],
    ),
    (
        "both kinds of limit",
        "set P --both 1mbit",
        2,
        &["both", "up 50 Mbit/s"],
    ),
    (
        "a code point that is none",
        "set P --dscp gold",
        2,
        &["`gold`", "AF21", "0 to 63"],
    ),
    (
        "a code point above 63",
        "set P --dscp 64",
        2,
        &["`64`", "0 to 63"],
    ),
    (
        "yielding in part",
        "set P --yield=maybe",
        2,
        &["`maybe`", "on or none"],
    ),
    (
        "yielding and a weight",
        "set P --yield --weight 7",
        2,
        &["yield and weight", "`weight none`"],
    ),
    (
        "a weight of nothing",
        "set P --weight 0",
        2,
        &["weight", "1", "1000"],
    ),
    (
        "a weight of too much",
        "set P --weight 1001",
        2,
        &["1001", "1000"],
    ),
    ("no such priority", "set P --priority 8", 2, &["8", "7"]),
    ("no burst at all", "set P --burst 0ms", 2, &["burst", "1us"]),
    (
        "a burst of hours",
        "set P --burst 10h",
        2,
        &["burst", "10s"],
    ),
    (
        "more slice than period",
        "set P --slice 60ms/50ms",
        2,
        &["60ms", "50ms"],
    ),
    (
        "half a slice",
        "set P --slice 1ms",
        2,
        &["1ms", "2.4ms/50ms"],
    ),
    (
        "two reservations",
        "set P --min 1mbit --slice 1ms/50ms",
        2,
        &["slice", "min"],
    ),
    (
        "a name that is too long",
        "set P --min 1mbit --on a-name-that-is-too-long",
        2,
        &["a-name-that-is-too-long", "15"],
    ),
    (
        "half a cell contract",
        "set P --cell pcr=10mbit",
        2,
        &["cdvt"],
    ),
    (
        "no process has this number",
        "set pid:0 --up 1mbit",
        2,
        &["0", "4194304"],
    ),
    (
        "nor this",
        "set pid:99999999999 --up 1mbit",
        2,
        &["99999999999"],
    ),
    (
        "a unit without a name",
        "set unit: --up 1mbit",
        2,
        &["unit"],
    ),
    (
        "no such kind",
        "set planet:mars --up 1mbit",
        2,
        &["planet:mars", "pid:1234"],
    ),
    (
        "a path that climbs",
        "set cgroup:/a/../b --up 1mbit",
        2,
        &["/a/../b", ".."],
    ),
    (
        "a program without its folder",
        "set app:rsync --up 1mbit",
        2,
        &["rsync", "/"],
    ),
    (
        "only, of a name",
        "set name:x --only --up 1mbit",
        2,
        &["--only"],
    ),
    ("no time", "set P --up 1mbit --for 0s", 2, &["zero"]),
    (
        "not a time",
        "set P --up 1mbit --for soon",
        2,
        &["--for", "soon"],
    ),
    (
        "a time in years",
        "set P --up 1mbit --confirm 1000y",
        2,
        &["--confirm", "1000y"],
    ),
    ("nothing to run", "run --up 1mbit", 2, &["CMD"]),
    (
        "a run without a contract",
        "run -- true",
        2,
        &["up", "down", "min"],
    ),
    (
        "a dry run of looking",
        "show --dry-run",
        2,
        &["--dry-run", "show"],
    ),
    (
        "yesterday",
        "log --since yesterday",
        2,
        &["--since", "yesterday"],
    ),
    (
        "a table each nanosecond",
        "top --interval 1ns",
        2,
        &["--interval", "100ms"],
    ),
    ("all and one", "clear --all P", 2, &["--all"]),
    ("neither all nor one", "clear", 2, &["--all", "eth0"]),
    (
        "no link rate",
        "link eth0 --rate 0",
        2,
        &["eth0", "--unmanage"],
    ),
    (
        "no link rate at all",
        "link eth0 --rate fast",
        2,
        &["--rate", "fast"],
    ),
    (
        "overhead beyond reason",
        "link eth0 --overhead 10000",
        2,
        &["--overhead", "10000", "512"],
    ),
    (
        "given back at a rate",
        "link eth0 --unmanage --rate 1mbit",
        2,
        &["--unmanage", "--rate"],
    ),
];

/// Valid requests for things that do not exist or are not implemented (1), or that do not fit (3).
const REFUSED: &[Case] = &[
    (
        "an unknown process",
        "set pid:4194303 --up 1mbit",
        1,
        &["4194303"],
    ),
    ("showing it", "show pid:4194303", 1, &["4194303"]),
    ("clearing it", "clear pid:4194303", 1, &["pid:4194303"]),
    ("explaining it", "explain pid:4194303", 1, &["4194303"]),
    (
        "an unknown unit",
        "set unit:nobody-has-this.service --up 1mbit",
        1,
        &["nobody-has-this.service"],
    ),
    (
        "an unknown control group",
        "set cgroup:/nobody/made/this --up 1mbit",
        1,
        &["/nobody/made/this"],
    ),
    (
        "an unknown user",
        "set user:nobody-is-called-this --up 1mbit",
        1,
        &["nobody-is-called-this"],
    ),
    (
        "an unknown name",
        "set name:nobody --up 1mbit",
        1,
        &["name:nobody", "netnice run"],
    ),
    (
        "an unknown program",
        "set app:/no/such/program --up 1mbit",
        1,
        &["/no/such/program"],
    ),
    (
        "a folder for a program",
        "set app:/tmp --up 1mbit",
        1,
        &["/tmp", "not a file"],
    ),
    (
        "a text for a program",
        "set app:/etc/passwd --up 1mbit",
        1,
        &["/etc/passwd", "execute"],
    ),
    (
        "a container",
        "set container:web --up 1mbit",
        1,
        &["no container is called web", "Docker", "Podman"],
    ),
    (
        "a cell contract in a class",
        "set P --cell pcr=10mbit,cdvt=100us,class=1",
        1,
        &["class=", "flows"],
    ),
    (
        "a channel",
        "set P --channel mmax=60KiB,rmax=30/s,bmax=4,deadline=20ms",
        1,
        &["channel", "not supported yet"],
    ),
    (
        "a slice of a processor in too long a period",
        "set P --cpu 2s/5s",
        2,
        &["cpu", "5s", "1s"],
    ),
    (
        "an unknown interface",
        "link nosuch0 --rate 10mbit",
        1,
        &["nosuch0"],
    ),
    (
        "a guarantee on one",
        "set P --min 1mbit --on nosuch0",
        3,
        &["nosuch0", "eth0"],
    ),
    (
        "a link given back that is none",
        "link lo --unmanage",
        3,
        &["lo", "eth0"],
    ),
    ("a confirmation of nothing", "confirm 99", 1, &["99"]),
];

#[test]
fn bad_input_gets_one_clear_error_and_changes_nothing() {
    let bed = TestBed::new().expect("a test bed");
    let process = bed.sleeper();
    bed.run_ok("link eth0 --rate 100mbit");
    let name = format!("pid:{}", process.pid());
    bed.run_ok(&format!("set {name} --up 50mbit"));
    let before = bed.shown();
    let mut faults = Vec::new();
    for (what, typed, status, words) in BAD_USAGE.iter().chain(REFUSED) {
        let typed: Vec<&str> = typed
            .split(' ')
            .map(|word| if word == "P" { name.as_str() } else { word })
            .collect();
        let answer = bed.netnice.run(&typed).expect("netnice can be started");
        let mut fault =
            |text: String| faults.push(format!("{what}: `{}`: {text}", answer.command_line));
        if answer.status != *status {
            fault(format!("ended with {}, not {status}", answer.status));
        }
        for word in words.iter().filter(|word| !answer.stderr.contains(*word)) {
            fault(format!("says nothing of `{word}`: {}", answer.stderr));
        }
        let paragraphs = answer.stderr.trim().split("\n\n").count();
        if paragraphs > 3 || answer.stderr.contains("os error") {
            fault(format!("is no clear error: {}", answer.stderr));
        }
        if !answer.stdout.is_empty() {
            fault(format!("prints an error as an answer: {}", answer.stdout));
        }
        if bed.shown() != before {
            fault("changed something".to_owned());
        }
    }
    assert!(
        faults.is_empty(),
        "{} faults:\n{}",
        faults.len(),
        faults.join("\n")
    );
}

#[test]
fn a_refused_command_line_is_json_if_json_is_asked_for() {
    let bed = TestBed::new().expect("a test bed");
    for line in [
        "set --json",
        "show nonsense --json",
        "clear --json",
        "confirm --json",
    ] {
        let answer = bed.run_with_status(line, 2);
        let doc = parse_json(&answer.stdout);
        let failed = &doc["failed"];
        assert_eq!(failed["bad_usage"], true, "`{line}`: {doc}");
        assert!(failed["text"].is_string(), "`{line}`: {doc}");
        assert!(!answer.stderr.is_empty(), "`{line}`");
    }
}

#[test]
fn a_runtime_folder_that_does_not_exist_is_not_made_by_who_only_reads() {
    let bed = TestBed::new().expect("a test bed");
    let folder = bed.world.folder().join("nosuch");
    let name = folder.display().to_string();
    for verb in [
        "show",
        "link",
        "explain 1",
        "log",
        "top",
        "confirm 1",
        "clear --all",
    ] {
        let line = format!("--runtime-dir {name} {verb}");
        let said = bed.run_with_status(&line, 4).stderr;
        assert!(said.contains(&name), "`{line}`: {said}");
        assert!(!folder.exists(), "`{line}` made it");
    }
}

#[test]
fn a_script_as_an_app_target_is_refused_with_the_reason() {
    let bed = TestBed::new().expect("a test bed");
    let script = bed.world.folder().join("backup");
    std::fs::write(&script, "#!/bin/sh\nsleep 1\n").expect("a script");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, mode).expect("a mode");
    let line = format!("set app:{} --up 1mbit", script.display());
    let said = bed.run_with_status(&line, 1).stderr;
    assert!(
        said.contains("script") && said.contains("netnice run"),
        "{said}"
    );
}

#[test]
fn without_a_daemon_root_starts_one_and_others_see_the_command() {
    let mut bed = TestBed::new().expect("a test bed");
    bed.netnice.stop_daemon();
    let copy = bed.copy_for_all("netnice").expect("a copy");
    let mut command = as_user(&bed, ANN);
    command.arg(copy).args(["show"]);
    let output = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("netniced"), "{said}");
    // For root the daemon is started, and stays when the command has ended.
    bed.run_ok("show");
    let lock = std::fs::read_to_string(bed.netnice.runtime().join("lock")).expect("its number");
    let pid: u32 = lock.trim().parse().expect("its number");
    assert!(sys::is_alive(pid), "{pid} does not serve");
    sys::kill(pid as i32, libc::SIGTERM).expect("it can be ended");
    assert!(becomes_true(|| !sys::is_alive(pid)), "{pid} does not end");
    bed.netnice.start_daemon().expect("it starts");
}

#[test]
fn a_process_that_ends_during_a_request_leaves_nothing() {
    let bed = TestBed::new().expect("a test bed");
    for i in 0..12u32 {
        let mut command = bed.world.client().ns.command("sh");
        command.args(["-c", "sleep 0.0$0", &format!("{}", i % 4)]);
        let process = Proc::start(command).expect("a process");
        let answer = bed
            .netnice
            .run(&["set", &format!("pid:{}", process.pid()), "--up", "4mbit"])
            .expect("it answers");
        assert!((0..=1).contains(&answer.status), "{answer:?}");
        if answer.status == 1 {
            let number = process.pid().to_string();
            assert!(answer.stderr.contains(&number), "{answer:?}");
        }
    }
    let empty = || bed.shown()["targets"] == json!([]);
    assert!(becomes_true(empty), "{}", bed.shown());
}

/// A frame of the socket's protocol: four bytes of length, big-endian, and the JSON text.
fn framed(text: &[u8]) -> Vec<u8> {
    let mut frame = (text.len() as u32).to_be_bytes().to_vec();
    frame.extend(text);
    frame
}

/// The daemon's answer to some bytes, after which it must close the connection.
fn exchange(socket: &std::path::Path, bytes: &[u8]) -> String {
    let mut guest = UnixStream::connect(socket).expect("the socket is open to all");
    guest
        .set_write_timeout(Some(EVENT_TIMEOUT))
        .expect("a time");
    guest.set_read_timeout(Some(EVENT_TIMEOUT)).expect("a time");
    // The daemon may close the connection before it has read everything.
    let _ = guest.write_all(bytes);
    let mut said = Vec::new();
    let mut buffer = [0u8; 4096];
    loop {
        match guest.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => said.extend(&buffer[..n]),
            // It closed the connection before it had read everything.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
            Err(error) => panic!("it does not hang up after {said:?}: {error}"),
        }
    }
    String::from_utf8_lossy(&said).into_owned()
}

#[test]
fn garbage_on_the_socket_gets_an_answer_and_changes_nothing() {
    let bed = TestBed::new().expect("a test bed");
    let process = bed.sleeper();
    bed.run_ok(&format!("set pid:{} --up 4mbit", process.pid()));
    let before = bed.shown();
    let socket = bed.netnice.runtime().join("netnice.sock");
    let mut large = (1u32 << 20).to_be_bytes().to_vec();
    large.resize((1 << 20) + 4, b' ');
    let cases: [(&str, Vec<u8>); 8] = [
        ("a length of four gigabytes", vec![0xff; 64]),
        (
            "a web browser",
            b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        ),
        ("no JSON", framed(b"\x00\x01\x02\xfe\xff")),
        ("half of it", framed(b"{\"set\": {\"target\":")),
        ("a list", framed(b"[]")),
        (
            "an unknown request",
            framed(b"{\"version\":1,\"request\":{\"reboot\":{}}}"),
        ),
        ("an endless nest", framed("[".repeat(60_000).as_bytes())),
        ("a megabyte", large),
    ];
    for (what, bytes) in &cases {
        let said = exchange(&socket, bytes);
        assert!(said.contains("failed"), "{what} is answered with {said:?}");
        assert_eq!(before, bed.shown(), "{what} changed something");
    }
    // A request that is not completed gets an error, and the connection is closed.
    let said = exchange(&socket, &[0, 0, 0]);
    assert!(said.contains("failed"), "{said:?}");
}

#[test]
fn a_thousand_idle_connections_prevent_no_request() {
    let bed = TestBed::new().expect("a test bed");
    let process = bed.sleeper();
    let socket = bed.netnice.runtime().join("netnice.sock");
    sys::raise_file_limit().expect("descriptors");
    // Above its bound the daemon may close some, but it must not stop accepting.
    let guests: Vec<UnixStream> = (0..1000)
        .map(|_| UnixStream::connect(&socket).expect("the socket is open to all"))
        .collect();
    // If there is no answer the test never ends. The experiment `scale` judges the duration of a
    // `set`.
    bed.run_ok(&format!("set pid:{} --up 4mbit", process.pid()));
    drop(guests);
    bed.run_ok("show");
    let memory = bed.netnice.daemon_memory().expect("it lives");
    assert!(memory < 64 << 20, "{memory} bytes");
}

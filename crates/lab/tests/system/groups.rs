//! Tests targets other than single processes: units and slices, executables, users. Limits of
//! containing targets apply too. If targets overlap otherwise, the more specific one applies.

use std::process::Command;

use netnice_lab::experiment::bench::{R4M, Rate, wait_until};
use netnice_lab::process;
use netnice_lab::sys;
use netnice_lab::testbed::{TestBed, becomes_true, skip};
use netnice_lab::traffic::{self, Program, Running, Tcp, Udp};
use netnice_lab::wire::{self, WireFlow};
use netnice_lab::world::Cgroup;

use crate::users::{ANN, BOB, setpriv, traffic_as};

const R2M: Rate = rate("2mbit", 2_000_000);
const R6M: Rate = rate("6mbit", 6_000_000);
const R12M: Rate = rate("12mbit", 12_000_000);

const fn rate(text: &'static str, bits: u64) -> Rate {
    Rate { text, bits }
}

/// Starts a program that enters a cgroup before it makes a socket.
fn inside(bed: &TestBed, group: &Cgroup, program: &impl Program) -> Running {
    let procs = group.procs();
    let procs = procs.to_str().expect("a plain path");
    let enter = "echo 0 > \"$0\" && exec \"$@\"";
    traffic::start_through(
        bed.world.client(),
        &["sh", "-c", enter, procs],
        None,
        program,
    )
    .expect("a program in the group")
}

/// A slice, and a unit in it with a name that only this run has.
fn make_unit(what: &str) -> (Cgroup, Cgroup) {
    let slice = Cgroup::create("work.slice").expect("a slice");
    let name = format!("nn{}-{what}.service", std::process::id());
    let unit = slice.below(&name).expect("a unit");
    (slice, unit)
}

fn to_port(port: u16) -> impl Fn(&WireFlow) -> bool + Copy {
    move |flow| wire::inbound(flow) && flow.target.1 == port
}

#[test]
fn a_unit_is_limited_with_its_present_and_later_processes() {
    let bed = TestBed::new().expect("a test bed");
    let to = bed.sink(5001).expect("a sink");
    let (_slice, unit) = make_unit("web");
    let _old = inside(&bed, &unit, &Tcp::connect(to, 2).source());
    bed.run_ok(&format!("set unit:{} --up 4mbit", unit.name()));
    bed.await_limited(
        || bed.sent_rate(0.5, 1.5).expect("a rate"),
        R4M,
        "what ran already",
    );
    let flood = Udp::source(bed.client(6001), to).rate(8_000_000);
    let _new = inside(&bed, &unit, &flood);
    bed.await_limited(
        || bed.sent_rate(0.5, 1.5).expect("a rate"),
        R4M,
        "with what came later",
    );
}

#[test]
fn open_mptcp_sockets_are_limited_by_their_cgroup() {
    let bed = TestBed::new().expect("a test bed");
    for host in [bed.world.client(), bed.world.server()] {
        if host.ns.sysctl("net/mptcp/enabled", "1").is_err() {
            return skip("this kernel has no MPTCP");
        }
    }
    let server = bed.world.server();
    let (up, down) = (bed.server(5001), bed.client(5002));
    let sink = Tcp::listen(up).sink().mptcp();
    let _sink = traffic::start_now(server, &sink).expect("a sink");
    let (_slice, unit) = make_unit("mptcp");
    let _client = inside(&bed, &unit, &Tcp::connect(up, 2).source().mptcp());
    let _listener = inside(&bed, &unit, &Tcp::listen(down).source().mptcp());
    let ask = Tcp::connect(down, 2).sink().mptcp();
    let _before = traffic::start_now(server, &ask).expect("a server");
    bed.run_ok(&format!("set unit:{} --up 4mbit", unit.name()));
    let _after = traffic::start_now(server, &ask).expect("a server");
    bed.await_limited(
        || bed.sent_rate(0.5, 1.5).expect("a rate"),
        R4M,
        "MPTCP, connected and accepted",
    );
}

#[test]
fn sockets_of_a_unit_that_only_receive_are_limited() {
    let bed = TestBed::new().expect("a test bed");
    let (_slice, unit) = make_unit("receiver");
    let at = bed.client(5001);
    let datagrams = inside(&bed, &unit, &Udp::sink(at));
    let flood = Udp::source(bed.server(6001), at).rate(8_000_000);
    let _flood = traffic::start_now(bed.world.server(), &flood).expect("a flood");
    bed.run_ok(&format!("set unit:{} --down 4mbit", unit.name()));
    let from = sys::now_ns() + 500_000_000;
    let until = from + 1_500_000_000;
    // A report has a sample every 10 ms, and one that ends after the window.
    wait_until(until + 100_000_000);
    let report = datagrams.stop().expect("it reports");
    let got = report.received_rate(from, until);
    bed.assert_limited(got.expect("samples span it"), R4M, "datagrams");
}

#[test]
fn a_process_in_a_unit_in_a_slice_is_limited_by_all_three() {
    let bed = TestBed::new().expect("a test bed");
    let ports = [5001, 5002, 5003];
    let [a, b, c] = ports.map(|port| bed.sink(port).expect("a sink"));
    let (slice, unit) = make_unit("nested");
    let flows = |to| Tcp::connect(to, 2).source();
    let process = inside(&bed, &unit, &flows(a));
    let in_unit = inside(&bed, &unit, &flows(b));
    let in_slice = inside(&bed, &slice, &flows(c));
    // From the inside out, so that the outer targets find the inner ones.
    bed.run_ok(&format!("set pid:{} --up 2mbit", process.pid()));
    bed.run_ok(&format!("set unit:{} --up 6mbit", unit.name()));
    bed.run_ok(&format!("set cgroup:{} --up 12mbit", slice.path()));
    let (record, from, until) = bed.record_with_rate(6e6, 0.7, 1.5).expect("a record");
    let [a, b, c] = ports.map(|port| record.rate(to_port(port), from, until));
    bed.assert_limited(a, R2M, "the process");
    bed.assert_limited(a + b, R6M, "the unit");
    bed.assert_limited(a + b + c, R12M, "the slice");
    let shown = bed.target(&format!("pid:{}", process.pid()));
    assert_eq!(shown["effective"]["up"], 2_000_000, "{shown}");
    // An outer limit that is lowered below an inner one applies to it too, and `show` has the lower
    // one.
    bed.run_ok(&format!("set cgroup:{} --up 1mbit", slice.path()));
    let shown = bed.target(&format!("pid:{}", process.pid()));
    assert_eq!(shown["effective"]["up"], 1_000_000, "{shown}");
    bed.run_ok(&format!("clear cgroup:{}", slice.path()));
    bed.run_ok(&format!("clear unit:{}", unit.name()));
    bed.await_unlimited((0.3, 0.5), R6M, "what was in the unit and in the slice");
    // Programs without a limit would overflow the meter's ring.
    drop((in_unit, in_slice));
    let mine = bed.sent_rate_of(0.5, 1.5, to_port(5001));
    bed.assert_limited(mine.expect("a rate"), R2M, "the process, left alone");
}

#[test]
fn of_overlapping_targets_the_more_specific_applies_and_explain_shows_it() {
    let bed = TestBed::new().expect("a test bed");
    let to = bed.sink(5001).expect("a sink");
    let (_slice, unit) = make_unit("crossing");
    let copy = bed
        .copy_for_all("netnice-lab")
        .expect("a program for users");
    let flows = Tcp::connect(to, 4).source();
    let procs = unit.procs();
    let enter = format!(
        "echo 0 > {} && exec {} \"$0\" \"$@\"",
        procs.display(),
        setpriv(ANN).join(" ")
    );
    let program = traffic::start_through(
        bed.world.client(),
        &["sh", "-c", &enter],
        Some(&copy),
        &flows,
    )
    .expect("a program of Ann's in the unit");
    let pid = format!("pid:{}", program.pid());
    let user = format!("user:{ANN}");
    let unit = format!("unit:{}", unit.name());
    let app = format!("app:{}", copy.display());
    // Each limit is larger than the one before, so it is only reached if its target takes
    // precedence.
    for (target, limit) in [(&user, R2M), (&unit, R4M), (&app, R6M)] {
        bed.run_ok(&format!("set {target} --up {}", limit.text));
        bed.await_limited(|| bed.sent_rate(0.7, 1.5).expect("a rate"), limit, target);
        let said = bed.run_ok(&format!("explain {pid}")).stdout;
        assert!(
            said.contains(target.as_str()),
            "`explain {pid}` does not name {target}: {said}"
        );
    }
    // A process target is inside its executable's target.
    bed.run_ok(&format!("set {pid} --up 4mbit"));
    bed.await_limited(
        || bed.sent_rate(0.5, 1.5).expect("a rate"),
        R4M,
        "the process",
    );
    let said = bed.run_ok(&format!("explain {user}")).stdout;
    for wins in ["pid", "app", "unit"] {
        assert!(
            said.contains(wins),
            "`explain {user}` does not say that {wins} wins: {said}"
        );
    }
}

#[test]
fn present_and_later_processes_of_an_executable_are_limited_and_no_others() {
    let bed = TestBed::new().expect("a test bed");
    let (to, other) = (
        bed.sink(5001).expect("a sink"),
        bed.sink(5002).expect("a sink"),
    );
    let copy = bed.copy_for_all("netnice-lab").expect("a copy");
    let client = bed.world.client();
    let run =
        |program: &Tcp| traffic::start_through(client, &[], Some(&copy), program).expect("it runs");
    let flows = Tcp::connect(to, 2).source();
    let _old = run(&flows);
    bed.run_ok(&format!("set app:{} --up 4mbit", copy.display()));
    let _new = run(&flows);
    let free = Tcp::connect(other, 1).source().rate(12_000_000);
    let _free = traffic::start_now(client, &free).expect("another program");
    let (record, from, until) = bed.record_with_rate(10e6, 0.7, 1.5).expect("a record");
    bed.assert_limited(
        record.rate(to_port(5001), from, until),
        R4M,
        "the executable",
    );
    bed.assert_unlimited(record.rate(to_port(5002), from, until), R4M, "another");
}

/// A program in an overlay of two file systems, as in a container's image: its upper layer has a
/// device of its own. `None`, with the test marked as skipped, if the kernel has no overlays.
fn in_overlay(bed: &TestBed) -> Option<std::path::PathBuf> {
    let copy = bed.copy_for_all("netnice-lab").expect("a copy");
    let folder = bed.world.folder();
    let part = |name: &str| {
        let part = folder.join(name);
        std::fs::create_dir_all(&part).expect("a folder");
        part.display().to_string()
    };
    let (lower, layer, merged) = (part("lower"), part("layer"), part("merged"));
    std::fs::rename(copy, folder.join("lower/program")).expect("the same file system");
    let mount = |words: &[&str]| process::run(Command::new("mount").args(words));
    // The world unmounts everything below its folder.
    mount(&["-t", "tmpfs", "none", &layer]).expect("a file system of its own");
    let (upper, work) = (part("layer/upper"), part("layer/work"));
    let layers = format!("lowerdir={lower},upperdir={upper},workdir={work}");
    if let Err(error) = mount(&["-t", "overlay", "none", "-o", &layers, &merged]) {
        skip(format_args!("this kernel mounts no overlay: {error}"));
        return None;
    }
    Some(folder.join("merged/program"))
}

#[test]
fn an_executable_of_an_overlay_is_recognised() {
    let bed = TestBed::new().expect("a test bed");
    let Some(program) = in_overlay(&bed) else {
        return;
    };
    let to = bed.sink(5001).expect("a sink");
    let flows = Tcp::connect(to, 2).source().rate(12_000_000);
    let run =
        || traffic::start_through(bed.world.client(), &[], Some(&program), &flows).expect("it");
    let old = run();
    bed.run_ok(&format!("set app:{} --up 4mbit", program.display()));
    bed.await_limited(
        || bed.sent_rate(0.5, 1.5).expect("a rate"),
        R4M,
        "what ran already",
    );
    drop(old);
    let _new = run();
    bed.await_limited(
        || bed.sent_rate(0.5, 1.5).expect("a rate"),
        R4M,
        "what came later",
    );
}

#[test]
fn present_and_later_processes_of_a_user_are_limited_and_no_others() {
    let bed = TestBed::new().expect("a test bed");
    let (to, other) = (
        bed.sink(5001).expect("a sink"),
        bed.sink(5002).expect("a sink"),
    );
    let copy = bed.copy_for_all("netnice-lab").expect("a copy");
    let flows = Tcp::connect(to, 2).source();
    let _old = traffic_as(&bed, ANN, &copy, &flows).expect("a program of the user");
    bed.run_ok(&format!("set user:{ANN} --up 4mbit"));
    let _new = traffic_as(&bed, ANN, &copy, &flows).expect("a program of the user");
    let free = Tcp::connect(other, 1).source().rate(12_000_000);
    let _free = traffic_as(&bed, BOB, &copy, &free).expect("a program of the other user");
    let (record, from, until) = bed.record_with_rate(10e6, 0.7, 1.5).expect("a record");
    bed.assert_limited(record.rate(to_port(5001), from, until), R4M, "Ann");
    bed.assert_unlimited(record.rate(to_port(5002), from, until), R4M, "Bob");
}

#[test]
fn a_recreated_unit_is_limited_again() {
    let bed = TestBed::new().expect("a test bed");
    let to = bed.sink(5001).expect("a sink");
    let (_slice, unit) = make_unit("again");
    let target = format!("unit:{}", unit.name());
    let flows = Tcp::connect(to, 2).source();
    let first = inside(&bed, &unit, &flows);
    bed.run_ok(&format!("set {target} --up 4mbit"));
    drop(first);
    unit.recreate().expect("the unit again");
    assert!(!bed.target(&target).is_null(), "a unit stays until cleared");
    let _second = inside(&bed, &unit, &flows);
    let held = || {
        let shown = bed.target(&target);
        shown["degraded"] == serde_json::json!([])
    };
    assert!(becomes_true(held), "{}", bed.target(&target));
    bed.await_limited(
        || bed.sent_rate(0.7, 1.5).expect("a rate"),
        R4M,
        "the unit made anew",
    );
}

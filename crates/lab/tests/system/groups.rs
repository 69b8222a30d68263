//! Targets other than single processes: units and slices, executables, users, names. Limits of
//! containing targets apply too; of overlapping targets the more specific one applies.

use std::process::Command;

use netnice_lab::desk::{Desk, skip, soon};
use netnice_lab::experiment::bench::{R4M, Rate, wait_until};
use netnice_lab::process;
use netnice_lab::sys;
use netnice_lab::traffic::{self, Program, Running, Tcp, Udp};
use netnice_lab::wire::{self, Flow};
use netnice_lab::world::Cgroup;

use crate::people::{ANN, BOB, setpriv, traffic_as};

const R2M: Rate = rate("2mbit", 2_000_000);
const R6M: Rate = rate("6mbit", 6_000_000);
const R12M: Rate = rate("12mbit", 12_000_000);

const fn rate(text: &'static str, bits: u64) -> Rate {
    Rate { text, bits }
}

/// Starts a program that enters a cgroup before it makes a socket.
fn inside(desk: &Desk, group: &Cgroup, program: &impl Program) -> Running {
    let procs = group.procs();
    let procs = procs.to_str().expect("a plain path");
    let enter = "echo 0 > \"$0\" && exec \"$@\"";
    traffic::eager_behind(
        desk.world.client(),
        &["sh", "-c", enter, procs],
        None,
        program,
    )
    .expect("a program in the group")
}

/// A slice, and a unit in it with a name that only this run has.
fn unit(what: &str) -> (Cgroup, Cgroup) {
    let slice = Cgroup::create("work.slice").expect("a slice");
    let name = format!("nn{}-{what}.service", std::process::id());
    let unit = slice.below(&name).expect("a unit");
    (slice, unit)
}

fn to_port(port: u16) -> impl Fn(&Flow) -> bool + Copy {
    move |flow| wire::inbound(flow) && flow.target.1 == port
}

#[test]
fn a_unit_is_held_with_what_runs_in_it_and_what_comes_later() {
    let desk = Desk::new().expect("a desk");
    let to = desk.sink(5001).expect("a sink");
    let (_slice, unit) = unit("web");
    let _old = inside(&desk, &unit, &Tcp::connect(to, 2).source());
    desk.types(&format!("set unit:{} --up 4mbit", unit.name()));
    desk.keeps(
        || desk.sent(0.5, 1.5).expect("a rate"),
        R4M,
        "what ran already",
    );
    let flood = Udp::source(desk.client(6001), to).rate(8_000_000);
    let _new = inside(&desk, &unit, &flood);
    desk.keeps(
        || desk.sent(0.5, 1.5).expect("a rate"),
        R4M,
        "with what came later",
    );
}

#[test]
fn mptcp_sockets_from_before_are_held_by_their_control_group() {
    let desk = Desk::new().expect("a desk");
    for host in [desk.world.client(), desk.world.server()] {
        if host.ns.sysctl("net/mptcp/enabled", "1").is_err() {
            return skip("this kernel has no MPTCP");
        }
    }
    let server = desk.world.server();
    let (up, down) = (desk.server(5001), desk.client(5002));
    let sink = Tcp::listen(up).sink().mptcp();
    let _sink = traffic::eager(server, &sink).expect("a sink");
    let (_slice, unit) = unit("mptcp");
    let _client = inside(&desk, &unit, &Tcp::connect(up, 2).source().mptcp());
    let _listener = inside(&desk, &unit, &Tcp::listen(down).source().mptcp());
    let ask = Tcp::connect(down, 2).sink().mptcp();
    let _before = traffic::eager(server, &ask).expect("who downloads");
    desk.types(&format!("set unit:{} --up 4mbit", unit.name()));
    let _after = traffic::eager(server, &ask).expect("who downloads");
    desk.keeps(
        || desk.sent(0.5, 1.5).expect("a rate"),
        R4M,
        "MPTCP, connected and accepted",
    );
}

#[test]
fn sockets_of_a_unit_that_only_receive_are_held() {
    let desk = Desk::new().expect("a desk");
    let (_slice, unit) = unit("receiver");
    let at = desk.client(5001);
    let datagrams = inside(&desk, &unit, &Udp::sink(at));
    let flood = Udp::source(desk.server(6001), at).rate(8_000_000);
    let _flood = traffic::eager(desk.world.server(), &flood).expect("a flood");
    desk.types(&format!("set unit:{} --down 4mbit", unit.name()));
    let from = sys::now_ns() + 500_000_000;
    let until = from + 1_500_000_000;
    // A report has a sample every 10 ms, and one that ends after the window.
    wait_until(until + 100_000_000);
    let report = datagrams.stop().expect("it reports");
    let got = report.received_rate(from, until);
    desk.held(got.expect("samples span it"), R4M, "datagrams");
}

#[test]
fn a_process_in_a_unit_in_a_slice_is_held_by_all_three() {
    let desk = Desk::new().expect("a desk");
    let ports = [5001, 5002, 5003];
    let [a, b, c] = ports.map(|port| desk.sink(port).expect("a sink"));
    let (slice, unit) = unit("nested");
    let flows = |to| Tcp::connect(to, 2).source();
    let process = inside(&desk, &unit, &flows(a));
    let in_unit = inside(&desk, &unit, &flows(b));
    let in_slice = inside(&desk, &slice, &flows(c));
    // From the inside out, so that the outer targets find the inner ones.
    desk.types(&format!("set pid:{} --up 2mbit", process.pid()));
    desk.types(&format!("set unit:{} --up 6mbit", unit.name()));
    desk.types(&format!("set cgroup:{} --up 12mbit", slice.path()));
    let (record, from, until) = desk.record_of(6e6, 0.7, 1.5).expect("a record");
    let [a, b, c] = ports.map(|port| record.rate(to_port(port), from, until));
    desk.held(a, R2M, "the process");
    desk.held(a + b, R6M, "the unit");
    desk.held(a + b + c, R12M, "the slice");
    let shown = desk.target(&format!("pid:{}", process.pid()));
    assert_eq!(shown["effective"]["up"], 2_000_000, "{shown}");
    // An outer limit that is lowered below an inner one applies to it too, and `show` has the lower
    // one.
    desk.types(&format!("set cgroup:{} --up 1mbit", slice.path()));
    let shown = desk.target(&format!("pid:{}", process.pid()));
    assert_eq!(shown["effective"]["up"], 1_000_000, "{shown}");
    desk.types(&format!("clear cgroup:{}", slice.path()));
    desk.types(&format!("clear unit:{}", unit.name()));
    desk.freed((0.3, 0.5), R6M, "what was in the unit and in the slice");
    // Programs without a limit would overflow the meter's ring.
    drop((in_unit, in_slice));
    let mine = desk.sent_by(0.5, 1.5, to_port(5001));
    desk.held(mine.expect("a rate"), R2M, "the process, left alone");
}

#[test]
fn where_targets_cross_the_more_specific_wins_and_explain_says_so() {
    let desk = Desk::new().expect("a desk");
    let to = desk.sink(5001).expect("a sink");
    let (_slice, unit) = unit("crossing");
    let copy = desk
        .copy_for_all("netnice-lab")
        .expect("a program for users");
    let flows = Tcp::connect(to, 4).source();
    let procs = unit.procs();
    let enter = format!(
        "echo 0 > {} && exec {} \"$0\" \"$@\"",
        procs.display(),
        setpriv(ANN).join(" ")
    );
    let program = traffic::eager_behind(
        desk.world.client(),
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
        desk.types(&format!("set {target} --up {}", limit.text));
        desk.keeps(|| desk.sent(0.7, 1.5).expect("a rate"), limit, target);
        let said = desk.types(&format!("explain {pid}")).stdout;
        assert!(
            said.contains(target.as_str()),
            "`explain {pid}` does not name {target}: {said}"
        );
    }
    // A process target is inside its executable's target.
    desk.types(&format!("set {pid} --up 4mbit"));
    desk.keeps(|| desk.sent(0.5, 1.5).expect("a rate"), R4M, "the process");
    let said = desk.types(&format!("explain {user}")).stdout;
    for wins in ["pid", "app", "unit"] {
        assert!(
            said.contains(wins),
            "`explain {user}` does not say that {wins} wins: {said}"
        );
    }
}

#[test]
fn what_runs_an_executable_is_held_old_and_new_and_nothing_else() {
    let desk = Desk::new().expect("a desk");
    let (to, other) = (
        desk.sink(5001).expect("a sink"),
        desk.sink(5002).expect("a sink"),
    );
    let copy = desk.copy_for_all("netnice-lab").expect("a copy");
    let client = desk.world.client();
    let run =
        |program: &Tcp| traffic::eager_behind(client, &[], Some(&copy), program).expect("it runs");
    let flows = Tcp::connect(to, 2).source();
    let _old = run(&flows);
    desk.types(&format!("set app:{} --up 4mbit", copy.display()));
    let _new = run(&flows);
    let free = Tcp::connect(other, 1).source().rate(12_000_000);
    let _free = traffic::eager(client, &free).expect("another program");
    let (record, from, until) = desk.record_of(10e6, 0.7, 1.5).expect("a record");
    desk.held(
        record.rate(to_port(5001), from, until),
        R4M,
        "the executable",
    );
    desk.free(record.rate(to_port(5002), from, until), R4M, "another");
}

/// A program in an overlay of two file systems, as in a container's image: its upper layer has a
/// device of its own. `None`, with the test marked as skipped, if the kernel has no overlays.
fn in_overlay(desk: &Desk) -> Option<std::path::PathBuf> {
    let copy = desk.copy_for_all("netnice-lab").expect("a copy");
    let folder = desk.world.folder();
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
fn an_executable_of_an_overlay_is_known_again() {
    let desk = Desk::new().expect("a desk");
    let Some(program) = in_overlay(&desk) else {
        return;
    };
    let to = desk.sink(5001).expect("a sink");
    let flows = Tcp::connect(to, 2).source().rate(12_000_000);
    let run =
        || traffic::eager_behind(desk.world.client(), &[], Some(&program), &flows).expect("it");
    let old = run();
    desk.types(&format!("set app:{} --up 4mbit", program.display()));
    desk.keeps(
        || desk.sent(0.5, 1.5).expect("a rate"),
        R4M,
        "what ran already",
    );
    drop(old);
    let _new = run();
    desk.keeps(
        || desk.sent(0.5, 1.5).expect("a rate"),
        R4M,
        "what came later",
    );
}

#[test]
fn what_a_user_runs_is_held_old_and_new_and_nobody_elses() {
    let desk = Desk::new().expect("a desk");
    let (to, other) = (
        desk.sink(5001).expect("a sink"),
        desk.sink(5002).expect("a sink"),
    );
    let copy = desk.copy_for_all("netnice-lab").expect("a copy");
    let flows = Tcp::connect(to, 2).source();
    let _old = traffic_as(&desk, ANN, &copy, &flows).expect("a program of the user");
    desk.types(&format!("set user:{ANN} --up 4mbit"));
    let _new = traffic_as(&desk, ANN, &copy, &flows).expect("a program of the user");
    let free = Tcp::connect(other, 1).source().rate(12_000_000);
    let _free = traffic_as(&desk, BOB, &copy, &free).expect("a program of the other user");
    let (record, from, until) = desk.record_of(10e6, 0.7, 1.5).expect("a record");
    desk.held(record.rate(to_port(5001), from, until), R4M, "Ann");
    desk.free(record.rate(to_port(5002), from, until), R4M, "Bob");
}

#[test]
fn a_unit_that_is_made_anew_is_bound_again() {
    let desk = Desk::new().expect("a desk");
    let to = desk.sink(5001).expect("a sink");
    let (_slice, unit) = unit("again");
    let target = format!("unit:{}", unit.name());
    let flows = Tcp::connect(to, 2).source();
    let first = inside(&desk, &unit, &flows);
    desk.types(&format!("set {target} --up 4mbit"));
    drop(first);
    unit.make_anew().expect("the unit again");
    assert!(
        !desk.target(&target).is_null(),
        "a unit stays until cleared"
    );
    let _second = inside(&desk, &unit, &flows);
    let held = || {
        let shown = desk.target(&target);
        shown["degraded"] == serde_json::json!([])
    };
    assert!(soon(held), "{}", desk.target(&target));
    desk.keeps(
        || desk.sent(0.7, 1.5).expect("a rate"),
        R4M,
        "the unit made anew",
    );
}

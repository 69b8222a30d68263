//! Tests all kinds of programs: children, grandchildren, exec, Go, MPTCP, listeners. A program and
//! its descendants share one limit, which applies to no other process.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use netnice_lab::experiment::bench::{MBIT, R4M, R20M, Rate, wait_until};
use netnice_lab::process::{self, EVENT_TIMEOUT, Proc};
use netnice_lab::stats;
use netnice_lab::sys;
use netnice_lab::testbed::{TestBed, becomes_true, skip};
use netnice_lab::traffic::{self, ParentProcess, RunOptions, Tcp, Udp};
use netnice_lab::wire::{self, Tap, WireFlow};

const R12M: Rate = Rate {
    text: "12mbit",
    bits: 12_000_000,
};
const R2M: Rate = Rate {
    text: "2mbit",
    bits: 2_000_000,
};
const R200M: Rate = Rate {
    text: "200mbit",
    bits: 200_000_000,
};

/// Number of children started at once: enough that some start while others send, few enough for an
/// emulated machine, which needs a tenth of a second for each.
const CHILDREN: u32 = 40;
const SECOND: u64 = 1_000_000_000;
const HALF: u64 = SECOND / 2;

/// Starts a command that executes a traffic program, and waits until its sockets are open.
fn start_until_ready(command: Command) -> Proc {
    let mut program = Proc::start(command).expect("a program");
    let ready = program.next_json("ready", EVENT_TIMEOUT);
    ready.expect("it is ready");
    program
}

/// The command line of a traffic program that starts at once and ends after 60 s, for a shell.
fn shell_words(program: &impl traffic::Program) -> String {
    let lab = process::binary("netnice-lab").expect("the lab is built");
    let mut words = vec![lab.display().to_string(), "traffic".into()];
    words.extend(program.args());
    // A program in the background of a shell has no input; it ends with its process group.
    words.extend(["--for-ms".into(), "60000".into()]);
    words.join(" ")
}

fn shell(bed: &TestBed, script: &str) -> Proc {
    let mut command = bed.world.client().ns.command("sh");
    command.args(["-c", script]);
    Proc::start(command).expect("a shell")
}

#[test]
fn present_and_later_children_share_one_limit_with_their_parent() {
    let bed = TestBed::new().expect("a test bed");
    let to = bed.sink(5001).expect("a sink");
    let mut parent = ParentProcess::start(bed.world.client()).expect("a parent");
    let flows = Tcp::connect(to, 2).source();
    parent
        .traffic(&flows, RunOptions::at_once())
        .expect("a child");
    bed.run_ok(&format!("set pid:{} --up 4mbit", parent.pid()));
    bed.await_limited(
        || bed.sent_rate(0.5, 1.5).expect("a rate"),
        R4M,
        "a child from before",
    );
    let flood = Udp::source(bed.client(6001), to).rate(8_000_000);
    parent
        .traffic(&flows, RunOptions::at_once())
        .expect("a child");
    parent
        .traffic(&flood, RunOptions::at_once())
        .expect("a child");
    bed.await_limited(
        || bed.sent_rate(0.5, 1.5).expect("a rate"),
        R4M,
        "with children from after",
    );
}

#[test]
fn with_only_present_descendants_stay_unlimited_and_later_ones_are_limited() {
    let bed = TestBed::new().expect("a test bed");
    let to = bed.sink(5001).expect("a sink");
    let mut parent = ParentProcess::start(bed.world.client()).expect("a parent");
    let paced = Tcp::connect(to, 1).source().rate(12_000_000);
    let old = parent
        .traffic(&paced, RunOptions::at_once())
        .expect("a child");
    bed.run_ok(&format!("set pid:{} --up 4mbit --only", parent.pid()));
    bed.await_unlimited((0.3, 0.7), R4M, "a child from before");
    parent.stop(old).expect("it reports");
    parent
        .traffic(&paced, RunOptions::at_once())
        .expect("a child");
    bed.await_limited(
        || bed.sent_rate(0.5, 1.5).expect("a rate"),
        R4M,
        "a child from after",
    );
}

#[test]
fn grandchildren_after_exec_share_the_limit_too() {
    let bed = TestBed::with_offloads().expect("a test bed");
    let to = bed.sink(5001).expect("a sink");
    let words = shell_words(&Tcp::connect(to, 2).source());
    // The shell starts a shell, which starts one program and executes another.
    let script = format!("echo ready; read go; sh -c '{words} & exec {words}' & wait");
    let mut parent = shell(&bed, &script);
    parent.next_line(EVENT_TIMEOUT).expect("ready");
    bed.run_ok(&format!("set pid:{} --up 4mbit", parent.pid()));
    parent.write_line("go").expect("it listens");
    bed.await_limited(
        || bed.sent_rate(0.7, 1.5).expect("a rate"),
        R4M,
        "grandchildren",
    );
}

#[test]
fn many_children_at_once_keep_the_limit() {
    let bed = TestBed::new().expect("a test bed");
    let to = bed.sink(5001).expect("a sink");
    let words = shell_words(&Tcp::connect(to, 1).source());
    let script = format!(
        "echo ready; read go; i=0; while [ $i -lt {CHILDREN} ]; do {words} & i=$((i+1)); done; wait"
    );
    let mut parent = shell(&bed, &script);
    parent.next_line(EVENT_TIMEOUT).expect("ready");
    bed.run_ok(&format!("set pid:{} --up 4mbit", parent.pid()));
    let server = &bed.world.server().ns;
    let tap = Tap::start(server, "eth0").expect("a tap");
    parent.write_line("go").expect("it listens");
    // A child reports when its connection is open; the last one starts long after the first began
    // to send.
    for child in 0..CHILDREN {
        let ready = parent.next_json("ready", EVENT_TIMEOUT);
        ready.unwrap_or_else(|error| panic!("child {child}: {error:#}"));
    }
    let born = sys::now_ns();
    wait_until(born + SECOND);
    let record = tap.stop(server).expect("a record");
    record.validate().expect("a valid record");
    // The measurement starts with the first packet: children that start under load are limited from
    // the start. A child without a limit would send as much in some milliseconds as all may in half
    // a second. Packets without payload open connections.
    let first = record.first_of(wire::inbound).expect("something was sent");
    let bins = record.bins(wire::inbound, first, born + SECOND, HALF);
    let most = stats::greatest(&bins);
    // The burst of 5 ms is 1 % of half a second. The experiment `accuracy` judges how even the rate
    // is within a second.
    let share = most / R4M.bits as f64;
    assert!(
        share > 0.0 && share <= 1.10,
        "{:.2} Mbit/s in 4, in the worst half second",
        most / MBIT
    );
}

#[test]
fn a_program_run_by_netnice_is_limited_and_its_status_is_returned() {
    let bed = TestBed::new().expect("a test bed");
    let to = bed.sink(5001).expect("a sink");
    let words = shell_words(&Tcp::connect(to, 2).source());
    let mut command = bed
        .netnice
        .command(&["run", "--up", "4mbit", "--quiet", "--"]);
    command.args(words.split(' '));
    let running = start_until_ready(command);
    bed.await_limited(
        || bed.sent_rate(0.7, 1.5).expect("a rate"),
        R4M,
        "what netnice runs",
    );
    drop(running);
    for (script, status) in [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 128 + 15)] {
        let answer = bed
            .netnice
            .run(&["run", "--up", "4mbit", "--", "sh", "-c", script]);
        assert_eq!(answer.expect("it runs").status, status, "{script}");
    }
    bed.run_with_status("run --up 4mbit -- /nowhere/at/all", 127);
    bed.run_with_status("run --up 4mbit -- /etc/passwd", 126);
    // Their targets end with them.
    let targets = || bed.netnice.show().expect("a show")["targets"].clone();
    assert!(
        becomes_true(|| targets() == serde_json::json!([])),
        "{}",
        targets()
    );
}

#[test]
fn programs_of_one_name_share_one_limit() {
    let bed = TestBed::new().expect("a test bed");
    let to = bed.sink(5001).expect("a sink");
    let words = shell_words(&Tcp::connect(to, 2).source());
    let mut running = Vec::new();
    for _ in 0..3 {
        let args = [
            "run", "--name", "crawlers", "--up", "4mbit", "--quiet", "--",
        ];
        let mut command = bed.netnice.command(&args);
        command.args(words.split(' '));
        running.push(start_until_ready(command));
    }
    bed.await_limited(
        || bed.sent_rate(0.7, 1.5).expect("a rate"),
        R4M,
        "three crawlers",
    );
    bed.run_ok("set name:crawlers --up 2mbit");
    bed.await_limited(
        || bed.sent_rate(0.5, 1.5).expect("a rate"),
        R2M,
        "three crawlers, lowered",
    );
}

#[test]
fn present_and_later_accepted_connections_belong_to_their_listener() {
    let bed = TestBed::new().expect("a test bed");
    let at = bed.client(5001);
    let server =
        traffic::start_now(bed.world.client(), &Tcp::listen(at).source()).expect("a server");
    let ask = || {
        let sink = Tcp::connect(at, 2).sink();
        traffic::start_now(bed.world.server(), &sink).expect("a server")
    };
    let _before = ask();
    bed.run_ok(&format!("set pid:{} --up 4mbit", server.pid()));
    bed.await_limited(
        || bed.sent_rate(0.5, 1.5).expect("a rate"),
        R4M,
        "accepted before",
    );
    let _after = ask();
    bed.await_limited(
        || bed.sent_rate(0.5, 1.5).expect("a rate"),
        R4M,
        "and accepted after",
    );
}

#[test]
fn other_programs_are_not_limited() {
    let bed = TestBed::with_offloads().expect("a test bed");
    let (to, other) = (
        bed.sink(5001).expect("a sink"),
        bed.sink(5002).expect("a sink"),
    );
    let client = bed.world.client();
    let program = traffic::start_now(client, &Tcp::connect(to, 4).source()).expect("a program");
    bed.run_ok(&format!("set pid:{} --up 4mbit", program.pid()));
    let free = Tcp::connect(other, 1).source().rate(12_000_000);
    let _free = traffic::start_now(client, &free).expect("another program");
    let mut beside = 0.0;
    let limited = || {
        let (record, from, until) = bed.record_with_rate(10e6, 0.7, 1.5).expect("a record");
        let of = |port: u16| {
            let of = move |f: &netnice_lab::wire::WireFlow| f.inbound && f.target.1 == port;
            record.rate(of, from, until)
        };
        beside = of(5002);
        of(5001)
    };
    bed.await_limited(limited, R4M, "the limited one");
    bed.assert_unlimited(beside, R4M, "the other one");
}

#[test]
fn loopback_is_limited_too() {
    let bed = TestBed::with_offloads().expect("a test bed");
    let client = bed.world.client();
    let mut programs = Vec::new();
    let mut ports = 5001..;
    for side in ["--up", "--down"] {
        for host in ["127.0.0.1", "[::1]"] {
            let port = ports.next().expect("a port");
            let at = format!("{host}:{port}").parse().expect("an address");
            let sink = traffic::start_now(client, &Tcp::listen(at).sink()).expect("a sink");
            let source =
                traffic::start_now(client, &Tcp::connect(at, 2).source()).expect("a source");
            let limited = if side == "--up" { &source } else { &sink };
            bed.run_ok(&format!("set pid:{} {side} 20mbit", limited.pid()));
            programs.push((side, at, [source, sink]));
        }
    }
    // The sent packets are judged, not the bytes that programs read: packets are as large as lo's
    // MTU, and a lost one delays those after it. (On a managed link a tap sees arriving packets
    // twice, before and after the receive stage.)
    let record = || {
        let tap = Tap::start(&client.ns, "lo").expect("a tap");
        // A packet of lo has 64 KiB: one packet is 0.9 % of the bytes in three seconds.
        let from = sys::now_ns() + SECOND;
        let until = from + 3 * SECOND;
        wait_until(until + SECOND / 20);
        let record = tap.stop(&client.ns).expect("a record");
        record.validate().expect("a valid record");
        (record, from, until)
    };
    let judge = |when: &str| {
        let (record, from, until) = record();
        for (side, at, _) in &programs {
            let at: &SocketAddr = at;
            let data = |flow: &WireFlow| wire::outbound(flow) && flow.target.1 == at.port();
            let rate = record.rate(data, from, until);
            bed.assert_limited(rate, R20M, &format!("{side} at {at}, {when}"));
        }
    };
    judge("by itself");
    // On a managed link arriving packets pass a second stage.
    bed.run_ok("link lo --rate 1gbit --down-rate 1gbit");
    judge("on a managed link");
    // The link's rate holds too, for the packets of all programs together.
    bed.run_ok(&format!("link lo --rate {}", R200M.text));
    let at = "127.0.0.1:5005".parse().expect("an address");
    let _sink = traffic::start_now(client, &Tcp::listen(at).sink()).expect("a sink");
    let _source = traffic::start_now(client, &Tcp::connect(at, 4).source()).expect("a source");
    let (record, from, until) = record();
    let all = record.rate(wire::outbound, from, until);
    bed.assert_limited(all, R200M, "the link itself");
}

#[test]
fn receiving_is_limited_for_tcp_and_udp() {
    let bed = TestBed::new().expect("a test bed");
    let from = bed.source(5001).expect("a source");
    let client = bed.world.client();
    // It starts to read only under the limit: before, it would be as fast as the machine, and TCP
    // needs long to reduce its rate to 4 Mbit/s.
    let mut sink =
        traffic::start_waiting(client, &Tcp::connect(from, 4).sink()).expect("a program");
    bed.run_ok(&format!("set pid:{} --down 4mbit", sink.pid()));
    sink.go().expect("it goes");
    let at = bed.client(5002);
    let datagrams = traffic::start_now(client, &Udp::sink(at)).expect("a program");
    bed.run_ok(&format!("set pid:{} --down 4mbit", datagrams.pid()));
    let flood = Udp::source(bed.server(5003), at).rate(8_000_000);
    let _flood = traffic::start_now(bed.world.server(), &flood).expect("a flood");
    let (all, from, to) = bed.received_rate(1.5, 1.5).expect("a rate");
    // A report has a sample every 10 ms, and one that ends after the window.
    wait_until(to + SECOND / 10);
    let got = datagrams.stop().expect("it reports");
    let rate = got.received_rate(from, to).expect("samples");
    bed.assert_limited(rate, R4M, "UDP");
    bed.assert_limited(all - rate, R4M, "TCP");
}

#[test]
fn the_whole_host_by_pid_1_and_a_lower_limit_inside() {
    let bed = TestBed::new().expect("a test bed");
    let (to, other) = (
        bed.sink(5001).expect("a sink"),
        bed.sink(5002).expect("a sink"),
    );
    let client = bed.world.client();
    let _all = traffic::start_now(client, &Tcp::connect(to, 4).source()).expect("a program");
    let inner = traffic::start_now(client, &Tcp::connect(other, 4).source()).expect("a program");
    bed.run_ok("1 12mbit");
    bed.run_ok(&format!("set pid:{} --both 4mbit", inner.pid()));
    let (record, from, until) = bed.record_with_rate(6e6, 1.0, 1.5).expect("a record");
    let both = |port: Option<u16>| {
        // The limit includes received packets: acknowledgements here.
        let of = move |f: &netnice_lab::wire::WireFlow| port.is_none_or(|p| f.has_port(p));
        record.rate(of, from, until)
    };
    bed.assert_limited(both(None), R12M, "the whole host");
    bed.assert_limited(both(Some(5002)), R4M, "the lower limit inside");
}

/// The Go program, built into the folder of a world. `cargo xtask setup` installs the compiler.
fn build_go_program(bed: &TestBed) -> PathBuf {
    let source = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/system/programs/flows.go"
    );
    let out = bed.world.folder().join("flows");
    let mut build = Command::new("go");
    build.arg("build").arg("-o").arg(&out).arg(source);
    build
        .env("CGO_ENABLED", "0")
        .env("GO111MODULE", "off")
        .env("GOFLAGS", "");
    process::run(&mut build).expect("the Go program builds");
    out
}

#[test]
fn a_static_go_program_is_limited_as_client_and_as_server() {
    let bed = TestBed::new().expect("a test bed");
    let go_program = build_go_program(&bed);
    let to = bed.sink(5001).expect("a sink");
    let ns = &bed.world.client().ns;
    let go = |args: &[&str]| {
        let mut command = ns.command(&go_program);
        command.args(args);
        let mut program = Proc::start(command).expect("the Go program");
        program
            .next_json("ready", EVENT_TIMEOUT)
            .expect("it is ready");
        program
    };
    let sender = go(&["send", &to.to_string(), "4"]);
    bed.run_ok(&format!("set pid:{} --up 4mbit", sender.pid()));
    bed.await_limited(
        || bed.sent_rate(0.5, 1.5).expect("a rate"),
        R4M,
        "a Go client",
    );
    drop(sender);
    let at = bed.client(5002);
    let server = go(&["serve", &at.to_string()]);
    bed.run_ok(&format!("set pid:{} --up 4mbit", server.pid()));
    let sink = Tcp::connect(at, 4).sink();
    let _sink = traffic::start_now(bed.world.server(), &sink).expect("a server");
    // The kernel still sends data in the ended client's sockets, so only the server's port is
    // measured.
    let rate = bed.sent_rate_of(0.7, 1.5, |f| f.source.1 == at.port());
    bed.assert_limited(rate.expect("a rate"), R4M, "a Go server");
}

#[test]
fn new_mptcp_sockets_are_limited_and_open_ones_are_reported() {
    let bed = TestBed::new().expect("a test bed");
    for host in [bed.world.client(), bed.world.server()] {
        if host.ns.sysctl("net/mptcp/enabled", "1").is_err() {
            return skip("this kernel has no MPTCP");
        }
    }
    let (to, at) = (bed.server(5001), bed.client(5002));
    let server = bed.world.server();
    let listen = Tcp::listen(to).sink().mptcp();
    let _sink = traffic::start_now(server, &listen).expect("a sink");
    let mut parent = ParentProcess::start(bed.world.client()).expect("a parent");
    // The kernel makes their connections without a visible owner: only their unit or cgroup limits
    // them (`tests/system/groups.rs`).
    let idle = Tcp::connect(to, 2).sink().mptcp();
    parent
        .traffic(&idle, RunOptions::at_once())
        .expect("a child from before");
    let answer = bed.run_ok(&format!("set pid:{} --up 4mbit", parent.pid()));
    assert!(answer.stdout.contains("MPTCP"), "{answer:?}");
    let told = bed.run_ok(&format!("explain pid:{}", parent.pid())).stdout;
    assert!(told.contains("MPTCP"), "{told}");
    let flows = Tcp::connect(to, 2).source().mptcp();
    parent
        .traffic(&flows, RunOptions::at_once())
        .expect("a child");
    bed.await_limited(
        || bed.sent_rate(0.7, 1.5).expect("a rate"),
        R4M,
        "connected",
    );
    let listener = Tcp::listen(at).source().mptcp();
    parent
        .traffic(&listener, RunOptions::at_once())
        .expect("a child");
    let ask = Tcp::connect(at, 2).sink().mptcp();
    let _ask = traffic::start_now(server, &ask).expect("a server");
    bed.await_limited(
        || bed.sent_rate(0.7, 1.5).expect("a rate"),
        R4M,
        "and accepted",
    );
}

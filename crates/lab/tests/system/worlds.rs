//! Tests of the lab itself: worlds are made, carry traffic at the right rate, and leave nothing
//! behind after their end, also after a panic or a signal. Needs root.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use netnice_lab::process::{self, EVENT_TIMEOUT};
use netnice_lab::testbed::becomes_true;
use netnice_lab::traffic::{self, Echo, Probe, RunOptions, Tcp, Udp, real_programs};
use netnice_lab::wire::{self, Tap, Transport};
use netnice_lab::world::{
    self, Cable, Family, Offloads, Pair, PeerOptions, Routed, Snapshot, World, htb,
};

use crate::users::ANN;

fn at(world: &World, host: &str, family: Family, port: u16) -> SocketAddr {
    SocketAddr::new(world.host(host).address(family), port)
}

/// Fails unless `got` is at most the fraction `over` above `want`, and at least half of it: a
/// sender on a busy or emulated machine sends less than it may. (The experiment `accuracy` with
/// `--subject htb` judges the lab's own accuracy.)
fn assert_near(got: f64, want: f64, over: f64, what: &str) {
    assert!(
        (0.5..=1.0 + over).contains(&(got / want)),
        "{what}: {got:.0}, wanted {want:.0} and at most {over} of it more"
    );
}

/// Pings of one measurement.
const PINGS: u32 = 10;

fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// Bulk TCP through HTB by hand: the tap, the sink and the device must agree, and the rate must be
/// right.
fn check_rate_through_htb(family: Family, offloads: Offloads) {
    let world = World::pair(Pair {
        offloads,
        ..Pair::default()
    })
    .expect("a world");
    let (client, server) = (world.client(), world.server());
    // Room for three packets with segmentation offload: the rate is not reached if the queue runs
    // empty.
    htb::limit(&client.ns, "eth0", 20_000_000, htb::Leaf::Bytes(200_000)).expect("htb");
    let to = at(&world, "server", family, 5001);
    let sink = traffic::start_now(server, &Tcp::listen(to).sink()).expect("sink");
    let mut source = traffic::start_waiting(client, &Tcp::connect(to, 2).source()).expect("source");
    let tap = Tap::start(&server.ns, "eth0").expect("tap");
    let start = source.go().expect("go") + 500_000_000;
    pause(2100);
    let got = sink.stop().expect("the sink reports");
    drop(source);
    // The tap and the device are read one after the other, so nothing may arrive meanwhile.
    let arrived = || server.ns.counters("eth0").expect("counters").rx_bytes;
    let is_quiet = || {
        let before = arrived();
        pause(100);
        arrived() == before
    };
    assert!(becomes_true(is_quiet), "packets still arrive");
    let record = tap.stop(&server.ns).expect("record");
    let end = start + 1_500_000_000;
    record.validate().expect("a valid record");
    assert_near(
        record.rate(wire::inbound, start, end),
        20e6,
        0.03,
        "the tap's rate",
    );
    let by_sink = got.received_rate(start, end).expect("samples span it");
    assert_near(by_sink, 20e6, 0.03, "the sink's rate");
    if offloads == Offloads::Off {
        let off = record.against_device();
        assert!(
            off.abs() < 0.005,
            "the tap is {off} from the device's counters"
        );
    }
    let flows = record.flows();
    assert_eq!(flows[0].0.transport, Transport::Tcp);
    assert_eq!(flows[0].0.target.1, 5001);
    assert_eq!(flows[0].0.source.0.is_ipv6(), family == Family::V6);
}

#[test]
fn rates_are_measured_right_on_v4_without_offloads() {
    check_rate_through_htb(Family::V4, Offloads::Off);
}

#[test]
fn rates_are_measured_right_on_v6_with_offloads() {
    check_rate_through_htb(Family::V6, Offloads::On);
}

#[test]
fn a_switched_world_limits_its_cables_both_ways() {
    let world = World::switched(&[
        Cable::rated("client", 4_000_000, 50),
        Cable::free("server"),
        Cable::free("other"),
    ])
    .expect("a world");
    let (client, server) = (world.client(), world.server());
    let tap = Tap::start(&client.ns, "eth0").expect("tap");
    let up = at(&world, "server", Family::V4, 5001);
    let down = at(&world, "client", Family::V4, 5002);
    let _sink = traffic::start_now(server, &Udp::sink(up)).expect("sink");
    let own = traffic::start_now(client, &Udp::sink(down)).expect("sink");
    let from = at(&world, "server", Family::V4, 5003);
    let flood = Udp::source(from, down).rate(12_000_000);
    let _flood = traffic::start_now(world.server(), &flood).expect("flood");
    let probe = Probe::udp(
        at(&world, "other", Family::V6, 7),
        Duration::from_millis(20),
    );
    let _echo = traffic::start_now(
        world.host("other"),
        &Echo::listen(at(&world, "other", Family::V6, 7)),
    )
    .expect("echo");
    let probe = traffic::start_now(client, &probe).expect("probe");
    let start = netnice_lab::sys::now_ns() + 500_000_000;
    pause(2100);
    let record = tap.stop(&client.ns).expect("record");
    let rate = record.rate(wire::inbound, start, start + 1_500_000_000);
    assert_near(rate, 4e6, 0.03, "the cable's rate");
    let got = own.stop().expect("the sink reports");
    assert!(got.received > 0);
    // The probe's packets wait in the cable's queue of 50 ms. A busy machine adds to that; a time
    // ten times as long would mean a wrong queue.
    let probe = probe.stop().expect("the probe reports");
    let times: Vec<f64> = probe.round_trips.iter().map(|t| t.1 as f64 / 1e6).collect();
    let median = netnice_lab::stats::median(&times);
    assert!(
        (25.0..500.0).contains(&median),
        "{median} ms in a queue of 50 ms"
    );
}

/// The shortest round trip in milliseconds, of several pings. The address is that by which the
/// first host reaches the second one.
fn shortest_round_trip(world: &World, from: &str, to: &str, family: Family) -> f64 {
    let address = world.address_of(to, from, family);
    let every = Duration::from_millis(20);
    let mut pings =
        real_programs::ping(world.host(from), address, every, PINGS).expect("ping starts");
    let lines = pings.remaining_lines(EVENT_TIMEOUT);
    let times = real_programs::Pings::parse(lines.iter().map(String::as_str)).times();
    assert_eq!(times.len(), PINGS as usize, "{from} to {to}: {lines:?}");
    times.into_iter().fold(f64::INFINITY, f64::min)
}

/// A TCP connection from one host to another carries bytes there and back.
fn check_tcp(world: &World, from: &str, to: &str, family: Family) {
    let address = SocketAddr::new(world.address_of(to, from, family), 7);
    let echo = traffic::start_now(world.host(to), &Echo::listen(address)).expect("echo");
    let probe = Probe::tcp(address, Duration::from_millis(20));
    let probe = traffic::start_now(world.host(from), &probe).expect("probe");
    pause(500);
    let got = probe.stop().expect("the probe reports");
    assert!(!got.round_trips.is_empty(), "{from} to {to}: no answer");
    drop(echo);
}

fn forwards(host: &world::Host) -> [String; 2] {
    let keys = ["ipv4/ip_forward", "ipv6/conf/all/forwarding"];
    keys.map(|key| {
        let path = format!("/proc/sys/net/{key}");
        let text = host.ns.enter(|| Ok(std::fs::read_to_string(&path)?));
        text.expect("a sysctl").trim().to_owned()
    })
}

#[test]
fn a_routed_world_forwards_over_cables_that_take_time() {
    let ms = Duration::from_millis;
    let world = World::routed(Routed {
        client: ms(5),
        server: ms(15),
        other: Duration::ZERO,
    })
    .expect("a world");
    for family in [Family::V4, Family::V6] {
        // Twice the cables' delays, and what a busy machine adds. The wrong cables would give less,
        // or a multiple.
        for (from, to, least) in [
            ("client", "server", 40.0),
            ("other", "server", 30.0),
            ("client", "router", 10.0),
            ("router", "other", 0.0),
        ] {
            let time = shortest_round_trip(&world, from, to, family);
            assert!(
                (least..least + 30.0).contains(&time),
                "{from} to {to}, {family:?}: {time} ms, not {least} ms"
            );
        }
        check_tcp(&world, "client", "server", family);
        check_tcp(&world, "server", "other", family);
    }
    let router = world.host("router");
    assert_eq!(forwards(router), ["1", "1"]);
    for name in ["client", "server", "other"] {
        assert_eq!(forwards(world.host(name)), ["0", "0"], "{name}");
    }
    router.ns.sysctl("net/ipv4/ip_forward", "0").expect("off");
    let to = world.address_of("server", "client", Family::V4);
    let mut pings = real_programs::ping(world.client(), to, ms(20), 3).expect("ping");
    let lines = pings.remaining_lines(EVENT_TIMEOUT);
    let pings = real_programs::Pings::parse(lines.iter().map(String::as_str));
    assert!(
        pings.times().is_empty(),
        "another way leads past the router: {lines:?}"
    );
}

#[test]
fn every_host_of_a_routed_world_has_a_netnice_of_its_own() {
    let world = World::routed(Routed::default()).expect("a world");
    let names = ["client", "router", "server", "other"];
    let all = names.map(|name| world.netnice(name).expect("a daemon"));
    for device in ["eth0", "eth1", "eth2"] {
        all[1]
            .run_line(&format!("link {device} --rate 100mbit"))
            .expect("managed");
    }
    all[0].run_line("link eth0 --rate 10mbit").expect("managed");
    let links = all.each_ref().map(|netnice| {
        let shown = netnice.show().expect("shown");
        shown["links"].as_array().map_or(0, Vec::len)
    });
    assert_eq!(links, [1, 3, 0, 0]);
    check_tcp(&world, "client", "server", Family::V4);
    let address = |to, from| world.address_of(to, from, Family::V4).to_string();
    assert_eq!(address("router", "server"), "10.77.1.2");
    assert_eq!(address("router", "other"), "10.77.2.2");
    assert_eq!(address("server", "other"), "10.77.1.1");
}

#[test]
fn the_peer_of_a_host_can_be_stopped_killed_and_started_again() {
    let world = World::routed(Routed::default()).expect("a world");
    let _daemons = ["client", "router"].map(|name| world.netnice(name).expect("a daemon"));
    let mut peer = world
        .peer("client", &PeerOptions::default())
        .expect("a peer");
    let as_ann = PeerOptions {
        user: Some(ANN),
        ..PeerOptions::default()
    };
    let router = world.peer("router", &as_ann).expect("a peer");
    let router_pid = router.pid().expect("it runs");
    let status = std::fs::read_to_string(format!("/proc/{router_pid}/status")).expect("a process");
    let users = format!("Uid:\t{ANN}\t{ANN}\t{ANN}\t{ANN}\n");
    assert!(status.contains(&users), "{status}");

    let pid = peer.pid().expect("it runs");
    peer.stop().expect("stopped");
    assert_eq!(netnice_lab::sys::state(pid), Some('T'));
    peer.cont().expect("continued");
    assert!(becomes_true(|| netnice_lab::sys::state(pid) != Some('T')));
    peer.kill();
    assert!(!peer.is_running() && !netnice_lab::sys::is_alive(pid));
    assert!(std::os::unix::net::UnixStream::connect(peer.socket()).is_err());
    peer.stop().expect_err("a program that does not run");
    peer.restart().expect("started again");
    assert!(peer.is_running() && peer.pid() != Some(pid));
    peer.terminate();
    assert!(!peer.is_running());
    drop(router);
    assert!(!netnice_lab::sys::is_alive(router_pid));
}

#[test]
fn hosts_of_other_worlds_do_not_forward() {
    let pair = World::pair(Pair::default()).expect("a world");
    let switched = World::switched(&[Cable::free("client"), Cable::free("server")]);
    for world in [&pair, &switched.expect("a world")] {
        assert_eq!(forwards(world.client()), ["0", "0"]);
        assert_eq!(forwards(world.server()), ["0", "0"]);
    }
}

#[test]
fn a_parent_process_starts_children_that_ping_and_send() {
    let world = World::pair(Pair::default()).expect("a world");
    let to = at(&world, "server", Family::V4, 5001);
    let sink = traffic::start_now(world.server(), &Tcp::listen(to).sink()).expect("sink");
    let mut parent = traffic::ParentProcess::start(world.client()).expect("a parent");
    let options = RunOptions::at_once();
    let source = Tcp::connect(to, 4).source().rate(8_000_000);
    let sender = parent.traffic(&source, options).expect("a sender");
    let words = real_programs::ping_words(to.ip(), Duration::from_millis(10), 20);
    let ping = parent.run(&words).expect("a ping");
    let lines = parent
        .child_lines(ping, EVENT_TIMEOUT)
        .expect("the ping ends");
    let pings = real_programs::Pings::parse(lines.iter().map(String::as_str));
    assert_eq!((pings.answers.len(), pings.sent), (20, Some(20)));
    pause(800);
    let report = parent.stop(sender).expect("the sender reports");
    let rate = report.sent as f64 * 8e9 / (report.ended_ns - report.started_ns) as f64;
    assert_near(rate, 8e6, 0.05, "the paced sender");
    assert!(sink.stop().expect("the sink reports").received > 0);
    let parent = std::fs::read_to_string(format!("/proc/{}/status", ping)).is_err();
    assert!(parent, "the ping is gone");
}

#[test]
fn a_probe_over_tcp_counts_round_trips() {
    let world = World::pair(Pair::default()).expect("a world");
    let echo_at = at(&world, "server", Family::V6, 7);
    let _echo = traffic::start_now(world.server(), &Echo::listen(echo_at)).expect("echo");
    let probe = Probe::tcp(echo_at, Duration::from_millis(5));
    let probe = traffic::start_now(world.client(), &probe).expect("probe");
    pause(500);
    let got = probe.stop().expect("the probe reports");
    // The probe sends a hundred requests, on a busy machine fewer.
    assert!(
        got.round_trips.len() > 10,
        "{} answers",
        got.round_trips.len()
    );
}

#[test]
fn real_programs_run_in_a_world() {
    let world = World::pair(Pair::default()).expect("a world");
    let (client, server) = (world.client(), world.server());
    htb::limit(&client.ns, "eth0", 20_000_000, htb::Leaf::Bytes(60_000)).expect("htb");
    let to = at(&world, "server", Family::V4, 5201);
    let _server = real_programs::iperf_server(server, to.port()).expect("iperf3 -s");
    let iperf = real_programs::Iperf {
        to,
        flows: 2,
        seconds: 2,
        congestion: "cubic",
        reverse: false,
    };
    let report = iperf
        .start(client)
        .and_then(|client| real_programs::IperfReport::of(client, EVENT_TIMEOUT))
        .expect("iperf3 -c");
    assert_eq!(report.goodputs.len(), 2, "{report:?}");
    assert!(!report.round_trips.is_empty(), "{report:?}");
    let goodput = report.goodput();
    assert_near(goodput * 1514.0 / 1448.0, 20e6, 0.05, "iperf3's goodput");
    let web = SocketAddr::new(to.ip(), 80);
    let nginx = real_programs::nginx(server, web, world.folder(), 1 << 20).expect("nginx");
    let _web = nginx.expect("cargo xtask setup installs nginx");
    let mut curl = real_programs::curl(client, web).expect("curl");
    let line = curl.next_line(EVENT_TIMEOUT).expect("curl reports");
    assert!(line.starts_with("1048576 "), "{line}");
}

#[test]
fn nothing_is_left_after_a_panic() {
    let caught = std::panic::catch_unwind(|| {
        let world = World::pair(Pair::default()).expect("a world");
        let to = at(&world, "server", Family::V4, 5001);
        let sink = traffic::start_now(world.server(), &Tcp::listen(to).sink()).expect("sink");
        let facts = (
            sink.pid(),
            world.client().ns.path(),
            world.folder().to_owned(),
        );
        std::panic::panic_any(facts);
    });
    let facts = caught.expect_err("it panicked");
    let (pid, path, folder) = facts
        .downcast_ref::<(u32, std::path::PathBuf, std::path::PathBuf)>()
        .expect("the facts");
    assert!(!netnice_lab::sys::is_alive(*pid) && !path.exists() && !folder.exists());
}

#[test]
fn nothing_is_left_after_a_signal_or_sigkill() {
    for (signal, swept_by_next_run) in [(libc::SIGTERM, false), (libc::SIGKILL, true)] {
        let lab = process::binary("netnice-lab").expect("the lab is built");
        let mut command = process::own_group(&lab);
        command.args(["world", "--seconds", "60"]);
        let mut run = process::Proc::start(command).expect("a world in another process");
        let line = run
            .next_json("inside", EVENT_TIMEOUT)
            .expect("it says ready");
        let (pid, inside) = (run.pid(), line["inside"].as_u64().expect("a pid") as u32);
        let left = |name: &str| {
            std::fs::read_dir(name)
                .expect("a folder")
                .flatten()
                .any(|e| {
                    e.file_name()
                        .to_string_lossy()
                        .starts_with(&format!("nn-{pid}-"))
                })
        };
        assert!(left("/run/netns") && netnice_lab::sys::is_alive(inside));
        netnice_lab::sys::kill(pid as i32, signal).expect("a signal");
        run.wait(EVENT_TIMEOUT).expect("it ends");
        if swept_by_next_run {
            assert!(left("/run/netns"), "SIGKILL cannot be caught");
            process::run(Command::new(&lab).arg("list")).expect("another run");
        }
        let temp = std::env::temp_dir();
        assert!(!left("/run/netns") && !left(&temp.display().to_string()));
        assert!(
            !netnice_lab::sys::is_alive(inside),
            "the process inside lives on"
        );
    }
}

#[test]
fn a_snapshot_shows_added_and_removed_objects() {
    world::begin().expect("begin");
    let world = World::pair(Pair::default()).expect("a world");
    let before = Snapshot::take(&world).expect("a picture");
    let ns = &world.client().ns;
    ns.tc("qdisc add dev eth0 clsact").expect("clsact");
    ns.tc("filter add dev eth0 egress protocol ip u32 match u32 0 0 flowid 1:1")
        .expect("a filter");
    ns.ip("link add nn0 type veth peer name nn1")
        .expect("a link");
    ns.sysctl("net/ipv4/ip_forward", "1").expect("a sysctl");
    std::fs::write(world.folder().join("left"), "x").expect("a file");
    let lines = before.difference(&Snapshot::take(&world).expect("a picture"));
    for wanted in [
        "\"kind\":\"clsact\"",
        "filters: eth0 egress",
        "links: nn0",
        "ip_forward = 1",
        "files: left",
    ] {
        assert!(
            lines
                .iter()
                .any(|l| l.starts_with("+ ") && l.contains(wanted)),
            "{wanted}: {lines:#?}"
        );
    }
    ns.tc("qdisc del dev eth0 clsact").expect("clsact");
    ns.ip("link del nn0").expect("a link");
    ns.sysctl("net/ipv4/ip_forward", "0").expect("a sysctl");
    std::fs::remove_file(world.folder().join("left")).expect("a file");
    // eBPF programs and maps are those of the whole machine: other runs may have changed them.
    let ours = || {
        let mut lines = before.difference(&Snapshot::take(&world).expect("a picture"));
        lines.retain(|line| !line.contains(": id "));
        lines
    };
    assert!(becomes_true(|| ours().is_empty()), "{:#?}", ours());
}

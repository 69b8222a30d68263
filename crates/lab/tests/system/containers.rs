//! Tests limits, minimums, weights and code points of containers. The containers are made by hand
//! as engines make them: a cgroup named after the id, a network namespace, and a veth pair that
//! connects it to the host, routed or as the port of a bridge. A record of the name is in Docker's
//! format and folder.

use std::fs;
use std::sync::atomic::{AtomicU16, Ordering};

use netnice_lab::experiment::bench::{R4M, Rate, pause, wait_until};
use netnice_lab::sys;
use netnice_lab::testbed::{TestBed, becomes_true, skip};
use netnice_lab::traffic::{self, Program, Running, Tcp, Udp};
use netnice_lab::wire::{self, Tap};
use netnice_lab::world::{Cgroup, Host, Netns, Port};
use serde_json::Value;

use crate::dscp::marks;
use crate::units::assert_limited_from_first_packet;

const R8M: Rate = Rate {
    text: "8mbit",
    bits: 8_000_000,
};

/// How the veth pair is connected to the host's network.
#[derive(Clone, Copy, PartialEq)]
enum Connection {
    Routed,
    Bridged,
}

/// The parts of a container that exist while it does not run.
struct Container {
    _slice: Cgroup,
    group: Cgroup,
    connection: Connection,
    number: u16,
}

impl Container {
    /// Makes a container called `web` in Docker's records.
    fn new(bed: &TestBed, connection: Connection) -> Container {
        // Engines name the cgroup after the id, which is unique on a machine.
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let id = format!("{:04x}{number:04x}", std::process::id() as u16).repeat(8);
        let slice = Cgroup::create("box.slice").expect("a slice");
        let group = slice.below(&format!("docker-{id}.scope")).expect("a group");
        let record = bed.netnice.docker().join("containers").join(&id);
        fs::create_dir_all(&record).expect("a folder");
        let text = format!(r#"{{"ID":"{id}","Name":"/web","State":{{"Running":true}}}}"#);
        fs::write(record.join("config.v2.json"), text).expect("a record");
        let (client, server) = (&bed.world.client().ns, &bed.world.server().ns);
        client
            .sysctl("net/ipv4/ip_forward", "1")
            .expect("forwarding");
        server
            .ip("route add 10.88.0.0/24 via 10.77.0.1")
            .expect("a route");
        if connection == Connection::Bridged {
            client.ip("link add br0 type bridge").expect("a bridge");
            client
                .ip("addr add 10.88.0.1/24 dev br0")
                .expect("an address");
            client.ip("link set br0 up").expect("it is up");
        }
        Container {
            _slice: slice,
            group,
            connection,
            number,
        }
    }

    /// Makes its network, as an engine does before it starts the program.
    fn make_network(&self, bed: &TestBed) -> Host {
        let client = &bed.world.client().ns;
        let ns = Netns::create(&format!("box{}", self.number)).expect("a namespace");
        let name = ns.name();
        client
            .ip(&format!(
                "link add vbox type veth peer name eth0 netns {name}"
            ))
            .expect("a pair");
        match self.connection {
            Connection::Routed => client.ip("addr add 10.88.0.1/24 dev vbox"),
            Connection::Bridged => client.ip("link set vbox master br0"),
        }
        .expect("it is joined");
        client.ip("link set vbox up").expect("it is up");
        ns.ip("addr add 10.88.0.2/24 dev eth0").expect("an address");
        ns.ip("link set eth0 up").expect("it is up");
        ns.ip("route add default via 10.88.0.1").expect("a route");
        let ports = vec![Port {
            device: "eth0".to_owned(),
            v4: "10.88.0.2".parse().expect("v4"),
            v6: "fd88::2".parse().expect("v6"),
        }];
        let name = "box".to_owned();
        Host { name, ns, ports }
    }

    /// Runs a program in the container.
    fn run(&self, network: &Host, program: &impl Program) -> Running {
        let procs = self.group.procs();
        let procs = procs.to_str().expect("a plain path");
        let words = ["sh", "-c", "echo 0 > \"$0\" && exec \"$@\"", procs];
        traffic::start_through(network, &words, None, program).expect("a program inside")
    }
}

/// The rate in bit/s that the container receives, over 1.5 s that begin `settle` seconds from now.
fn received_rate(network: &Host, settle: f64) -> f64 {
    pause(settle);
    let before = network.ns.delivered().expect("counts");
    pause(1.5);
    let after = network.ns.delivered().expect("counts");
    (after.wire - before.wire) as f64 * 8e9 / (after.at_ns - before.at_ns) as f64
}

/// The limits up, down and both apply to TCP in a running container, and each packet counts once.
fn check_limited(connection: Connection) {
    let bed = TestBed::new().expect("a test bed");
    let container = Container::new(&bed, connection);
    let network = container.make_network(&bed);
    let (up, down) = (
        bed.sink(5001).expect("a sink"),
        bed.source(5002).expect("a source"),
    );
    let _sends = container.run(&network, &Tcp::connect(up, 3).source());
    bed.run_ok("set container:web --up 4mbit --down 8mbit");
    let said = bed.run_ok("explain container:web").stdout;
    assert!(said.contains("vbox"), "{said}");
    let sent = |bed: &TestBed| {
        let counters = bed.target("container:web")["counters"].clone();
        let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{counters}"));
        (
            number(&counters["at_ns"]),
            number(&counters["up"]["sent_bytes"]),
        )
    };
    pause(0.5);
    // What is counted is judged over the same seconds as what arrived.
    let mut counted = 0.0;
    let measure = || {
        let (from, before) = sent(&bed);
        let arrived = bed.sent_rate(0.0, 1.5).expect("a rate");
        let (to, after) = sent(&bed);
        counted = (after - before) as f64 * 8e9 / (to - from) as f64;
        arrived
    };
    bed.await_limited(measure, R4M, "what it sends");
    bed.assert_limited(counted, R4M, "what is counted, once");
    let _receives = container.run(&network, &Tcp::connect(down, 3).sink());
    bed.await_limited(|| received_rate(&network, 1.5), R8M, "what it receives");
    bed.run_ok("set container:web --up none --down none --both 4mbit");
    pause(1.0);
    let sum = || {
        let tap = Tap::start(&bed.world.server().ns, "eth0").expect("a meter");
        let from = sys::now_ns();
        let arrived = received_rate(&network, 0.0);
        let to = sys::now_ns();
        let record = tap.stop(&bed.world.server().ns).expect("a record");
        record.validate().expect("a valid record");
        arrived + record.rate(wire::inbound, from, to)
    };
    bed.await_limited(sum, R4M, "both in sum");
    bed.run_ok("clear container:web");
    bed.await_unlimited((0.1, 0.5), R4M, "a container without a limit");
}

#[test]
fn a_container_behind_a_route_is_limited_both_ways() {
    check_limited(Connection::Routed);
}

#[test]
fn a_container_behind_a_bridge_is_limited_both_ways() {
    check_limited(Connection::Bridged);
}

#[test]
fn a_container_restarted_five_times_is_limited_from_its_first_packet() {
    check_restarts(5);
}

#[test]
#[ignore = "many restarts; part of make test-long"]
fn a_container_restarted_twenty_times_is_limited_from_its_first_packet() {
    check_restarts(20);
}

/// Starts a container with a flood `times` times, each time with the same id and a new network.
fn check_restarts(times: u16) {
    let bed = TestBed::new().expect("a test bed");
    let container = Container::new(&bed, Connection::Bridged);
    let to = bed.sink(5001).expect("a sink");
    bed.run_ok("set container:web --up 4mbit");
    let server = &bed.world.server().ns;
    let tap = Tap::start(server, "eth0").expect("a meter");
    let arrived = || server.counters("eth0").expect("counters").rx_bytes;
    let ports = 6000..6000 + times;
    for port in ports.clone() {
        container.group.recreate().expect("the group again");
        let network = container.make_network(&bed);
        // An engine takes a tenth of a second or more between making the interfaces and starting
        // the program.
        pause(ENGINE_SECONDS);
        let from = std::net::SocketAddr::from(([10, 88, 0, 2], port));
        let before = arrived();
        let _flood = container.run(&network, &Udp::source(from, to).rate(200_000_000));
        assert!(becomes_true(|| arrived() > before), "it sends nothing");
        wait_until(sys::now_ns() + WINDOW + WINDOW / 4);
        // A namespace is removed some time after its last process, but the interface's name is
        // needed at once.
        let _ = bed.world.client().ns.ip("link del vbox");
    }
    let record = tap.stop(server).expect("a record");
    record.validate().expect("a valid record");
    assert_limited_from_first_packet(&record, ports, MAX_FIRST_BYTES);
}

#[test]
fn a_container_in_the_hosts_network_is_limited_by_its_cgroup_and_exceptions_are_shown() {
    let bed = TestBed::new().expect("a test bed");
    let to = bed.sink(5001).expect("a sink");
    let answer = bed.run_with_status("set container:web --up 4mbit", 1);
    assert!(
        answer.stderr.contains("no container is called web"),
        "{}",
        answer.stderr
    );
    let container = Container::new(&bed, Connection::Routed);
    let answer = bed.run_with_status("set container:web --min 1mbit --on eth0", 3);
    assert!(
        answer.stderr.contains("eth0 is not a managed link"),
        "{}",
        answer.stderr
    );
    let host = bed.world.client();
    let inside = container.run(host, &Tcp::connect(to, 2).source());
    bed.run_ok("set container:web --up 4mbit");
    bed.await_limited(
        || bed.sent_rate(0.5, 1.5).expect("a rate"),
        R4M,
        "a container in the host's network",
    );
    let said = bed.run_ok("explain container:web").stdout;
    assert!(said.contains("own network: sockets"), "{said}");
    drop(inside);
    // A network without a veth pair, as slirp4netns makes.
    let ns = Netns::create("lonely").expect("a namespace");
    let (name, ports) = ("lonely".to_owned(), Vec::new());
    let lonely = Host { name, ns, ports };
    let nowhere = Udp::sink("127.0.0.1:5003".parse().expect("an address"));
    let _lonely = container.run(&lonely, &nowhere);
    let said = || {
        let shown = bed.target("container:web");
        let degraded = shown["degraded"][0].as_str();
        degraded.is_some_and(|d| d.contains("nothing of it is held"))
    };
    assert!(becomes_true(said), "{}", bed.target("container:web"));
}

/// How the addresses of a container's packets appear on the link.
#[derive(Clone, Copy, PartialEq)]
enum Addresses {
    Own,
    /// The host's, as engines do by default.
    Translated,
}

/// Lets the host translate the addresses of containers. Fails without nft, or if the kernel has no
/// address translation.
fn translate_addresses(host: &Netns) -> anyhow::Result<()> {
    for words in [
        "add table ip nat",
        "add chain ip nat post { type nat hook postrouting priority 100 ; }",
        "add rule ip nat post ip saddr 10.88.0.0/24 oifname eth0 masquerade",
    ] {
        host.run("nft", words)?;
    }
    Ok(())
}

/// A container with one flow beside the host with eight: the container's minimum is kept in both
/// directions, and its weight counts once the minimum is gone.
fn check_guaranteed(connection: Connection, addresses: Addresses) {
    let bed = TestBed::new().expect("a test bed");
    let container = Container::new(&bed, connection);
    let network = container.make_network(&bed);
    if addresses == Addresses::Translated
        && let Err(error) = translate_addresses(&bed.world.client().ns)
    {
        return skip(format!("no address translation here: {error:#}"));
    }
    bed.run_ok("link eth0 --rate 10mbit --down-rate 10mbit");
    check_sending(&bed, &container, &network);
    check_receiving(&bed, &container, &network);
}

/// Checks a minimum and a weight of what the container sends.
fn check_sending(bed: &TestBed, container: &Container, network: &Host) {
    let (own, other) = (
        bed.sink(5001).expect("a sink"),
        bed.sink(5003).expect("a sink"),
    );
    let host = bed.world.client();
    let _own = container.run(network, &Tcp::connect(own, 1).source());
    let _others = traffic::start_now(host, &Tcp::connect(other, 8).source()).expect("flows");
    bed.run_ok("set container:web --min 6mbit --on eth0");
    let shares = |record: &wire::Record, from: u64, until: u64| {
        let rate = |port: u16| record.rate(|flow| flow.inbound && flow.has_port(port), from, until);
        (rate(5001), rate(5001) + rate(5003))
    };
    // Of what the link carried in the same seconds, as in the tests of guarantees.
    let kept = |part: f64| {
        let had = bed.record_until(1.0, 1.5, |record, from, until| {
            let (own, all) = shares(record, from, until);
            all >= 0.5 * LINK && own >= 0.95 * part * all
        });
        let (record, from, until) = had.expect("a record");
        let (own, all) = shares(&record, from, until);
        assert!(
            (0.5..=1.03).contains(&(all / LINK)) && own >= 0.95 * part * all,
            "{own:.0} of {all:.0} bit/s, with a part of {part}"
        );
        own / all
    };
    kept(0.6);
    // One flow of the container in place of a ninth of the link.
    bed.run_ok("set container:web --min none --weight 300");
    let weighed = kept(0.65);
    assert!(
        weighed <= 0.85,
        "{weighed:.2} for a weight of three quarters"
    );
}

/// Checks a minimum of what the container receives, and that it ends with the contract.
fn check_receiving(bed: &TestBed, container: &Container, network: &Host) {
    let (own, other) = (
        bed.source(5002).expect("a source"),
        bed.source(5004).expect("a source"),
    );
    let host = bed.world.client();
    let _own = container.run(network, &Tcp::connect(own, 1).sink());
    let _others = traffic::start_now(host, &Tcp::connect(other, 8).sink()).expect("flows");
    bed.run_ok("set container:web --weight none --min-down 6mbit --on eth0");
    let received = || {
        let counters = bed.target("container:web")["counters"].clone();
        counters["down_rate"].as_u64().unwrap_or_default() as f64
    };
    let reached = becomes_true(|| {
        pause(1.0);
        received() >= 0.95 * 0.6 * 0.97 * LINK
    });
    assert!(
        reached,
        "receives {:.0} bit/s with a minimum of 6 Mbit/s",
        received()
    );
    let said = bed.run_ok("explain container:web").stdout;
    assert!(said.contains("receive stage of eth0"), "{said}");
    bed.run_ok("clear container:web");
    // Its packets are in the class of the rest again.
    let ninth = || {
        let (record, from, until) = bed.record(0.5, 1.5).expect("a record");
        let rate =
            |port: u16| record.rate(|flow| !flow.inbound && flow.has_port(port), from, until);
        rate(5002) / (rate(5002) + rate(5004))
    };
    assert!(
        becomes_true(|| ninth() < 0.4),
        "{:.2} without a contract",
        ninth()
    );
}

#[test]
fn a_routed_container_has_its_minimum_and_weight() {
    check_guaranteed(Connection::Routed, Addresses::Own);
}

#[test]
fn a_container_behind_a_bridge_has_its_minimum_and_weight() {
    check_guaranteed(Connection::Bridged, Addresses::Own);
}

#[test]
fn a_container_behind_address_translation_has_its_minimum_and_weight() {
    check_guaranteed(Connection::Bridged, Addresses::Translated);
}

#[test]
fn what_a_container_sends_and_forwards_carries_its_code_point() {
    let bed = TestBed::new().expect("a test bed");
    let container = Container::new(&bed, Connection::Bridged);
    let network = container.make_network(&bed);
    let to = bed.sink(5001).expect("a sink");
    let flow = Tcp::connect(to, 1).source().rate(5_000_000);
    let _sends = container.run(&network, &flow);
    // Packets that the container forwards for a network behind it: their sender is not in its
    // control group.
    let inner = Netns::create(&format!("inner{}", container.number)).expect("a namespace");
    let name = inner.name();
    let box_ns = &network.ns;
    box_ns
        .ip(&format!(
            "link add in0 type veth peer name eth0 netns {name}"
        ))
        .expect("a pair");
    for (ns, line) in [
        (box_ns, "addr add 10.99.0.1/24 dev in0"),
        (box_ns, "link set in0 up"),
        (&inner, "addr add 10.99.0.2/24 dev eth0"),
        (&inner, "link set eth0 up"),
        (&inner, "route add default via 10.99.0.1"),
        (
            &bed.world.client().ns,
            "route add 10.99.0.0/24 via 10.88.0.2",
        ),
        (
            &bed.world.server().ns,
            "route add 10.99.0.0/24 via 10.77.0.1",
        ),
    ] {
        ns.ip(line).expect(line);
    }
    box_ns
        .sysctl("net/ipv4/ip_forward", "1")
        .expect("forwarding");
    let (name, ports) = ("inner".to_owned(), Vec::new());
    let behind = Host {
        name,
        ns: inner,
        ports,
    };
    let from = "10.99.0.2:6001".parse().expect("an address");
    let forwarded = bed.sink(5002).expect("a sink");
    let flow = Udp::source(from, forwarded).rate(1_000_000);
    let _forwards = traffic::start_now(&behind, &flow).expect("a program behind");
    let seen = |port: u16| -> Vec<(u8, bool)> {
        let marks = marks(&bed, move |flow| flow.target.1 == port);
        marks
            .iter()
            .map(|mark| (mark.dscp, mark.valid_checksum))
            .collect()
    };
    let assert_seen = |dscp: u8| {
        for port in [5001, 5002] {
            let reached = becomes_true(|| seen(port) == [(dscp, true)]);
            assert!(reached, "port {port}: {:?}, not {dscp}", seen(port));
        }
    };
    assert_seen(0);
    bed.run_ok("set container:web --dscp AF11");
    assert_seen(10);
    bed.run_ok("set container:web --up 4mbit");
    assert_seen(10);
    bed.run_ok("clear container:web");
    assert_seen(0);
}

/// Rate in bit/s of the link of the tests of minimums.
const LINK: f64 = 10e6;
/// Minimum time that an engine needs, in seconds.
const ENGINE_SECONDS: f64 = 0.1;
/// Measured time after a flood's first packet, in ns.
const WINDOW: u64 = 200_000_000;
/// The most bytes that a limit of 4 Mbit/s passes in 200 ms: its burst of 5 ms, packets that a busy
/// host delivers 50 ms late, and two packets more. A flood without a limit sends as much in the
/// first 6 ms.
const MAX_FIRST_BYTES: u64 = 4_000_000 / 8 * (200 + 5 + 50) / 1000 + 2 * 1514;

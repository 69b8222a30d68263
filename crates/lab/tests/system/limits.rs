//! Tests that a limit holds on every path of a program: over two interfaces and lo together, over
//! IPv6, and through a tunnel, and that forty nested limits stay inside a small one. A change of
//! the limit applies at once. Inside a limit, sparse flows do not wait for bulk flows, and a
//! program that sends more than its limit is slowed.

use std::net::{SocketAddr, UdpSocket};
use std::ops::RangeInclusive;
use std::time::Duration;

use netnice_lab::experiment::bench::{R4M, R20M, Rate, at, pause, wait_until};
use netnice_lab::process::EVENT_TIMEOUT;
use netnice_lab::stats;
use netnice_lab::sys;
use netnice_lab::testbed::{TestBed, becomes_true, skip};
use netnice_lab::traffic::real_programs::{Pings, ping_words};
use netnice_lab::traffic::{self, ParentProcess, RunOptions, Tcp, Udp};
use netnice_lab::wire::{self, Tap, WireFlow};
use netnice_lab::world::{Family as Internet, Offloads, Pair, Tunnel};

const SECOND: u64 = 1_000_000_000;
const R1M: Rate = rate("1mbit", 1_000_000);
const R12M: Rate = rate("12mbit", 12_000_000);

const fn rate(text: &'static str, bits: u64) -> Rate {
    Rate { text, bits }
}

#[test]
fn two_interfaces_and_loopback_keep_one_limit_in_sum() {
    let bed = TestBed::with(Pair {
        cables: 2,
        ..Pair::default()
    })
    .expect("a test bed");
    let (client, server) = (bed.world.client(), bed.world.server());
    let far = |port: usize| SocketAddr::new(server.ports[port].v4.into(), 5001);
    let here: SocketAddr = "127.0.0.1:5001".parse().expect("an address");
    let mut sinks = Vec::new();
    for (host, to) in [(server, far(0)), (server, far(1)), (client, here)] {
        sinks.push(traffic::start_now(host, &Tcp::listen(to).sink()).expect("a sink"));
    }
    let mut program = ParentProcess::start(client).expect("a program");
    for to in [far(0), far(1), here] {
        let flows = Tcp::connect(to, 2).source();
        program
            .traffic(&flows, RunOptions::at_once())
            .expect("a child");
    }
    bed.run_ok(&format!("set pid:{} --up 20mbit", program.pid()));
    // The packets that pass are judged, not the bytes that programs read: a lost packet delays
    // those after it.
    let places = [
        (&server.ns, "eth0"),
        (&server.ns, "eth1"),
        (&client.ns, "lo"),
    ];
    let taps = places.map(|(ns, device)| (ns, Tap::start(ns, device).expect("a tap")));
    let from = sys::now_ns() + SECOND;
    let until = from + 2 * SECOND;
    wait_until(until + SECOND / 20);
    let rates = taps.map(|(ns, tap)| {
        let record = tap.stop(ns).expect("a record");
        record.validate().expect("a valid record");
        let data = |flow: &WireFlow| wire::inbound(flow) && flow.target.1 == 5001;
        record.rate(data, from, until)
    });
    bed.assert_limited(rates.iter().sum(), R20M, &format!("the sum of {rates:.0?}"));
    // Connections from before the limit have packets of 64 KiB on lo. The cables' queue is empty
    // before their turn, which is as long, is over: they get a third.
    let bytes = || places.map(|(ns, device)| ns.counters(device).expect("counters").rx_bytes);
    assert_share("on lo, of lo and two cables", 0.25..=0.75, || {
        let before = bytes();
        pause(4.0);
        let after = bytes();
        let [first, second, lo] = [0, 1, 2].map(|place| (after[place] - before[place]) as f64);
        lo / (first + second + lo)
    });
}

/// Asserts that a share is in a range, in one of three measurements: other load on the machine can
/// stop one of the programs.
fn assert_share(what: &str, range: RangeInclusive<f64>, share: impl Fn() -> f64) {
    let shares = [(); 3].map(|()| share());
    let fits = shares.iter().any(|share| range.contains(share));
    assert!(fits, "{what}: {shares:.3?}, not in {range:?}");
}

#[test]
fn lo_and_a_cable_share_one_limit_evenly() {
    let bed = TestBed::with_offloads().expect("a test bed");
    let (client, server) = (bed.world.client(), bed.world.server());
    let far = at(server, Internet::V4, 5001);
    let here: SocketAddr = "[::1]:5001".parse().expect("an address");
    let _sinks = [(server, far), (client, here)]
        .map(|(host, to)| traffic::start_now(host, &Tcp::listen(to).sink()).expect("a sink"));
    let mut program = ParentProcess::start(client).expect("a program");
    bed.run_ok(&format!("set pid:{} --up 8mbit", program.pid()));
    let missing = || [client, server].map(|host| host.ns.out_of_order().expect("a count"));
    let before = missing();
    for to in [far, here] {
        let flow = Tcp::connect(to, 1).source();
        program
            .traffic(&flow, RunOptions::at_once())
            .expect("a child");
    }
    let places = [(&server.ns, "eth0"), (&client.ns, "lo")];
    assert_share("on lo, of lo and a cable", 0.4..=0.6, || {
        let bytes = || places.map(|(ns, device)| ns.counters(device).expect("counters").rx_bytes);
        let before = bytes();
        pause(2.0);
        let after = bytes();
        let [cable, lo] = [0, 1].map(|place| (after[place] - before[place]) as f64);
        lo / (cable + lo)
    });
    assert_eq!(missing(), before, "segments after a missing one");
    // Segments of lo are as short as those of cables: none waits for one of 64 KiB. (How many TCP
    // sends again is not judged: it sends some again if the machine stops it for long.)
    let open = client.ns.run("ss", "-Htin state established dport = :5001");
    let open = open.expect("ss");
    let longest = open
        .split_whitespace()
        .filter_map(|word| word.strip_prefix("mss:"));
    let longest: Vec<u32> = longest.map(|mss| mss.parse().expect("a number")).collect();
    assert_eq!(longest.len(), 2, "{open}");
    assert!(longest.iter().all(|mss| *mss <= 1_460), "{open}");
}

/// What a limit set of a connection (its window, its pacing) ends with the limit.
#[test]
fn a_connection_is_fast_again_when_its_limit_ends() {
    let bed = TestBed::with_offloads().expect("a test bed");
    let (client, server) = (bed.world.client(), bed.world.server());
    let to = at(server, Internet::V4, 5001);
    let _sink = traffic::start_now(server, &Tcp::listen(to).sink()).expect("a sink");
    let fast = || {
        let bytes = || server.ns.counters("eth0").expect("counters").rx_bytes;
        becomes_true(|| {
            let before = bytes();
            pause(0.5);
            bytes() - before > 10_000_000
        })
    };
    // While another limit is in force, raised, and with the last limit.
    let other = ParentProcess::start(client).expect("a program");
    bed.run_ok(&format!("set pid:{} --up 1mbit", other.pid()));
    for end in ["clear pid:PID", "set pid:PID --up 1gbit", "clear --all"] {
        let mut program = ParentProcess::start(client).expect("a program");
        let pid = program.pid();
        bed.run_ok(&format!("set pid:{pid} --up 1mbit"));
        // Sixteen flows are paced.
        let flows = Tcp::connect(to, 16).source();
        program
            .traffic(&flows, RunOptions::at_once())
            .expect("a child");
        let rate = bed.sent_rate(1.0, 2.0).expect("a rate");
        assert!(rate < 1_500_000.0, "limited to 1 Mbit/s: {rate:.0}");
        bed.run_ok(&end.replace("PID", &pid.to_string()));
        assert!(fast(), "slow after `{end}`");
    }
}

#[test]
fn over_ipv6_a_limit_holds_in_both_directions() {
    let bed = TestBed::new().expect("a test bed");
    let (client, server) = (bed.world.client(), bed.world.server());
    let (up, down) = (
        at(server, Internet::V6, 5001),
        at(server, Internet::V6, 5002),
    );
    let _sinks = [
        traffic::start_now(server, &Tcp::listen(up).sink()).expect("a sink"),
        traffic::start_now(server, &Udp::sink(up)).expect("a sink"),
    ];
    let _source = traffic::start_now(server, &Tcp::listen(down).source()).expect("a source");
    let mut program = ParentProcess::start(client).expect("a program");
    let flood = Udp::source(at(client, Internet::V6, 6001), up).rate(8_000_000);
    for sends in [&Tcp::connect(up, 2).source(), &Tcp::connect(up, 1).source()] {
        program
            .traffic(sends, RunOptions::at_once())
            .expect("a child");
    }
    program
        .traffic(&flood, RunOptions::at_once())
        .expect("a child");
    bed.run_ok(&format!("set pid:{} --up 4mbit", program.pid()));
    let (record, from, until) = bed.record(0.7, 1.5).expect("a record");
    let sent = |f: &wire::WireFlow| wire::inbound(f) && f.source.0.is_ipv6() && f.target.1 == 5001;
    bed.assert_limited(record.rate(sent, from, until), R4M, "sent over IPv6");
    // Acknowledgements of the sender would count as received.
    drop(program);
    let receives = Tcp::connect(down, 4).sink();
    let mut receiver = traffic::start_waiting(client, &receives).expect("another program");
    bed.run_ok(&format!("set pid:{} --down 4mbit", receiver.pid()));
    receiver.go().expect("it goes");
    let (rate, ..) = bed.received_rate(1.5, 1.5).expect("a rate");
    bed.assert_limited(rate, R4M, "received over IPv6");
}

#[test]
fn a_tunnel_without_a_layer_2_is_limited_both_ways() {
    let bed = TestBed::new().expect("a test bed");
    let (client, server) = (bed.world.client(), bed.world.server());
    let Some(tunnel) = Tunnel::between(client, server).expect("a tunnel") else {
        return skip("this kernel has no tun devices");
    };
    let far = |port| SocketAddr::new(Tunnel::SECOND.into(), port);
    let _sink = traffic::start_now(server, &Tcp::listen(far(5001)).sink()).expect("a sink");
    let _source = traffic::start_now(server, &Tcp::listen(far(5002)).source()).expect("a source");
    let sends = Tcp::connect(far(5001), 2).source();
    let sender = traffic::start_now(client, &sends).expect("a program");
    bed.run_ok(&format!("set pid:{} --up 4mbit", sender.pid()));
    pause(0.7);
    let (from, before) = (sys::now_ns(), tunnel.carried());
    pause(1.5);
    let (until, after) = (sys::now_ns(), tunnel.carried());
    let sent = (after[0] - before[0]) as f64 * 8e9 / (until - from) as f64;
    bed.assert_limited(sent, R4M, "sent through the tunnel");
    // Acknowledgements of the sender would count as received.
    drop(sender);
    let receives = Tcp::connect(far(5002), 2).sink();
    let mut receiver = traffic::start_waiting(client, &receives).expect("another program");
    bed.run_ok(&format!("set pid:{} --down 4mbit", receiver.pid()));
    receiver.go().expect("it goes");
    let (rate, ..) = bed.received_rate(1.5, 1.5).expect("a rate");
    bed.assert_limited(rate, R4M, "received through the tunnel");
}

#[test]
fn a_limit_is_lowered_raised_and_lifted_under_traffic() {
    let bed = TestBed::with_offloads().expect("a test bed");
    let to = bed.sink(5001).expect("a sink");
    let flows = Tcp::connect(to, 4).source();
    let program = traffic::start_now(bed.world.client(), &flows).expect("a program");
    let pid = program.pid();
    bed.run_ok(&format!("set pid:{pid} --up 12mbit"));
    bed.await_limited(
        || bed.sent_rate(0.7, 1.5).expect("a rate"),
        R12M,
        "at first",
    );
    bed.run_ok(&format!("set {pid} --up 4mbit"));
    bed.await_limited(|| bed.sent_rate(0.5, 1.5).expect("a rate"), R4M, "lowered");
    bed.run_ok(&format!("set {pid} --up 12mbit"));
    bed.await_limited(|| bed.sent_rate(0.7, 1.5).expect("a rate"), R12M, "raised");
    bed.run_ok(&format!("set {pid} --up none"));
    bed.await_unlimited((0.1, 0.5), R12M, "lifted");
}

#[test]
fn a_ping_does_not_wait_behind_the_bulk_of_its_own_program() {
    for offloads in [Offloads::Off, Offloads::On] {
        let bed = TestBed::with(Pair {
            offloads,
            ..Pair::default()
        })
        .expect("a test bed");
        let to = bed.sink(5001).expect("a sink");
        let mut program = ParentProcess::start(bed.world.client()).expect("a program");
        bed.run_ok(&format!("set pid:{} --up 4mbit", program.pid()));
        let flows = Tcp::connect(to, 8).source();
        program
            .traffic(&flows, RunOptions::at_once())
            .expect("a child");
        pause(1.0);
        let words = ping_words(to.ip(), Duration::from_millis(20), 50);
        let ping = program.run(&words).expect("a ping");
        let lines = program.child_lines(ping, EVENT_TIMEOUT).expect("it ends");
        let pings = Pings::parse(lines.iter().map(String::as_str));
        // Behind all bulk packets in one queue a ping takes a second (HTB's default queue: 996 ms
        // with 8 flows). On a busy or emulated machine the round trip alone takes some time. The
        // experiment `latency` judges the promise of 5 ms.
        let times = pings.times();
        let median = stats::median(&times);
        assert!(
            median <= 300.0 && times.len() >= 45,
            "offloads {offloads:?}: median {median:.2} ms, {} of 50 answered",
            times.len()
        );
    }
}

#[test]
fn uploads_inside_a_limit_lose_no_packet_and_none_overtakes_another() {
    for offloads in [Offloads::Off, Offloads::On] {
        let bed = TestBed::with(Pair {
            offloads,
            ..Pair::default()
        })
        .expect("a test bed");
        let to = bed.sink(5001).expect("a sink");
        let flows = Tcp::connect(to, 4).source();
        let mut program = traffic::start_waiting(bed.world.client(), &flows).expect("a program");
        bed.run_ok(&format!("set pid:{} --up 4mbit", program.pid()));
        let server = &bed.world.server().ns;
        let before = server.out_of_order().expect("a count");
        program.go().expect("it goes");
        let (record, from, until) = bed.record_with_rate(2e6, 0.5, 3.0).expect("a record");
        let early = server.out_of_order().expect("a count") - before;
        assert_eq!(
            early, 0,
            "offloads {offloads:?}: segments after a missing one"
        );
        bed.assert_limited(record.rate(wire::inbound, from, until), R4M, "four flows");
    }
}

#[test]
fn tcp_beside_a_flood_of_the_same_program_keeps_a_part_of_the_limit() {
    let bed = TestBed::new().expect("a test bed");
    let to = bed.sink(5001).expect("a sink");
    let mut program = ParentProcess::start(bed.world.client()).expect("a program");
    bed.run_ok(&format!("set pid:{} --up 8mbit", program.pid()));
    let flood = Udp::source(bed.client(6001), at(bed.world.server(), Internet::V4, 5002));
    let flows = Tcp::connect(to, 2).source();
    program
        .traffic(&flood, RunOptions::at_once())
        .expect("a child");
    program
        .traffic(&flows, RunOptions::at_once())
        .expect("a child");
    let (record, from, until) = bed.record_with_rate(4e6, 1.0, 2.0).expect("a record");
    let all = record.rate(wire::inbound, from, until);
    let tcp = record.rate(|f| wire::inbound(f) && f.target.1 == 5001, from, until);
    // Each has a queue of its own, with equal parts. In one queue the flood leaves TCP an eighth.
    assert!(
        tcp >= all / 3.0,
        "TCP has {:.2} of {:.2} Mbit/s",
        tcp / 1e6,
        all / 1e6
    );
}

#[test]
fn datagrams_from_ever_new_senders_do_not_fill_the_queue_of_a_limit() {
    const DATAGRAM: [u8; 1400] = [0; 1400];
    let bed = TestBed::new().expect("a test bed");
    let to = bed.client(5001);
    let program = traffic::start_now(bed.world.client(), &Udp::sink(to)).expect("a program");
    bed.run_ok(&format!("set pid:{} --down 1mbit", program.pid()));
    let flood = || {
        for _ in 0..2_000 {
            // Each socket has a port of its own, so each datagram is a flow.
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.send_to(&DATAGRAM, to)?;
        }
        Ok(())
    };
    bed.world.server().ns.enter(flood).expect("it sends");
    let shown = bed.target(&format!("pid:{}", program.pid()));
    let counts = &shown["counters"]["down"];
    let queued = counts["queued_bytes"].as_u64().expect("a count");
    // Without a bound on all flows together, most of the 2.9 MB would wait, for 23 s.
    assert!(queued < 200_000, "{queued} bytes wait: {counts}");
    let dropped = counts["dropped_packets"].as_u64().expect("a count");
    assert!(dropped > 100, "{counts}");
}

#[test]
fn forty_nested_limits_stay_inside_a_small_one() {
    let bed = TestBed::new().expect("a test bed");
    let to = bed.sink(5001).expect("a sink");
    let mut program = ParentProcess::start(bed.world.client()).expect("a program");
    bed.run_ok(&format!("set pid:{} --up 1mbit", program.pid()));
    for child in 0..40 {
        let sends = Udp::source(bed.client(6000 + child), to);
        let sends = sends.size(200).rate(64_000);
        let pid = program
            .traffic(&sends, RunOptions::at_once())
            .expect("a child");
        bed.run_ok(&format!("set pid:{pid} --up 64kbit"));
    }
    // Each limit begins with a burst of its own, which is compensated before this.
    bed.await_limited(
        || bed.sent_rate(1.0, 1.5).expect("a rate"),
        R1M,
        "forty in one",
    );
}

#[test]
fn a_flood_above_its_limit_is_slowed() {
    let bed = TestBed::new().expect("a test bed");
    let to = bed.sink(5001).expect("a sink");
    let flood = Udp::source(bed.client(6001), to);
    let mut program = traffic::start_waiting(bed.world.client(), &flood).expect("a program");
    bed.run_ok(&format!("set pid:{} --up 20mbit", program.pid()));
    let server = &bed.world.server().ns;
    let tap = Tap::start(server, "eth0").expect("a tap");
    let arrived = || server.counters("eth0").expect("counters").rx_packets;
    let before = arrived();
    program.go().expect("it goes");
    assert!(
        becomes_true(|| arrived() >= before + 1000),
        "{} packets passed in a minute",
        arrived() - before
    );
    let report = program.stop().expect("it reports");
    let record = tap.stop(server).expect("a record");
    let passed = record
        .totals(|f| wire::inbound(f) && f.target.1 == 5001)
        .packets as f64;
    // Without back-pressure a flood makes a hundred times as many sends as packets pass. Some
    // hundred packets in the socket and in the queue are sent and have not passed. The experiment
    // `burning` judges 1.5 sends for each packet, and the flood's processor time.
    let sends = report.sends as f64 / passed;
    assert!(sends <= 2.0, "{sends:.2} sends for each packet that passed");
}

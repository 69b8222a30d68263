//! A limit holds wherever a program talks: over two interfaces and lo together, over IPv6, through a
//! tunnel; it changes at once; and inside it nobody waits long and no processor burns.

use std::net::SocketAddr;
use std::time::Duration;

use netnice_lab::desk::Desk;
use netnice_lab::experiment::bench::{R4M, R20M, at, functional, pause};
use netnice_lab::stats;
use netnice_lab::sys;
use netnice_lab::traffic::clients::{Pings, ping_words};
use netnice_lab::traffic::{self, Family, Life, Tcp, Udp};
use netnice_lab::wire::{self, Flow, Tap};
use netnice_lab::world::{Family as Internet, Offloads, Pair, Tunnel};

const SECOND: u64 = 1_000_000_000;

fn eager() -> Life {
    Life {
        eager: true,
        ..Life::default()
    }
}

#[test]
fn two_interfaces_and_loopback_keep_one_limit_in_sum() {
    let desk = Desk::with(Pair {
        cables: 2,
        ..Pair::default()
    })
    .expect("a desk");
    let (client, server) = (desk.world.client(), desk.world.server());
    let far = |port: usize| SocketAddr::new(server.ports[port].v4.into(), 5001);
    let here: SocketAddr = "127.0.0.1:5001".parse().expect("an address");
    let mut sinks = Vec::new();
    for (host, to) in [(server, far(0)), (server, far(1)), (client, here)] {
        sinks.push(traffic::eager(host, &Tcp::listen(to).sink()).expect("a sink"));
    }
    let mut program = Family::start(client).expect("a program");
    for to in [far(0), far(1), here] {
        let flows = Tcp::connect(to, 2).source();
        program.traffic(&flows, eager()).expect("a child");
    }
    desk.types(&format!("set pid:{} --up 20mbit", program.pid()));
    // What passes is judged, not what programs read: a lost packet holds up those after it.
    let places = [
        (&server.ns, "eth0"),
        (&server.ns, "eth1"),
        (&client.ns, "lo"),
    ];
    let taps = places.map(|(ns, device)| (ns, Tap::start(ns, device).expect("a tap")));
    let from = sys::now_ns() + 2 * SECOND;
    pause(5.1);
    let rates = taps.map(|(ns, tap)| {
        let record = tap.stop(ns).expect("a record");
        record.sound().expect("sound");
        let data = |flow: &Flow| wire::inbound(flow) && flow.target.1 == 5001;
        record.rate(data, from, from + 3 * SECOND)
    });
    drop(sinks);
    desk.held(rates.iter().sum(), R20M, &format!("the sum of {rates:.0?}"));
    // A packet of lo is 45 times as long as one of a cable, and its flows take as much more of the one queue.
    let least = if functional() { 0.002 } else { 0.005 };
    for rate in &rates {
        assert!(*rate > least * R20M.bits as f64, "one starves: {rates:.0?}");
    }
}

#[test]
fn over_ipv6_a_limit_holds_in_both_directions() {
    let desk = Desk::new().expect("a desk");
    let (client, server) = (desk.world.client(), desk.world.server());
    let (up, down) = (
        at(server, Internet::V6, 5001),
        at(server, Internet::V6, 5002),
    );
    let _sinks = [
        traffic::eager(server, &Tcp::listen(up).sink()).expect("a sink"),
        traffic::eager(server, &Udp::sink(up)).expect("a sink"),
    ];
    let _source = traffic::eager(server, &Tcp::listen(down).source()).expect("a source");
    let mut program = Family::start(client).expect("a program");
    let flood = Udp::source(at(client, Internet::V6, 6001), up).rate(20_000_000);
    for sends in [&Tcp::connect(up, 2).source(), &Tcp::connect(up, 1).source()] {
        program.traffic(sends, eager()).expect("a child");
    }
    program.traffic(&flood, eager()).expect("a child");
    let receives = Tcp::connect(down, 4).sink();
    let receiver = traffic::eager(client, &receives).expect("another program");
    desk.types(&format!("set pid:{} --up 4mbit", program.pid()));
    desk.types(&format!("set pid:{} --down 20mbit", receiver.pid()));
    let (record, from, until) = desk.record(2.0, 2.0).expect("a record");
    let sent = |f: &wire::Flow| wire::inbound(f) && f.source.0.is_ipv6() && f.target.1 == 5001;
    desk.held(record.rate(sent, from, until), R4M, "sent over IPv6");
    // The acknowledgements of what is sent arrive too, and weigh half a percent.
    let (rate, ..) = desk.arrives(0.0, 2.0).expect("a rate");
    desk.held(rate, R20M, "received over IPv6");
}

#[test]
fn a_tunnel_without_a_layer_2_is_limited_both_ways() {
    let desk = Desk::new().expect("a desk");
    let (client, server) = (desk.world.client(), desk.world.server());
    let Some(tunnel) = Tunnel::between(client, server).expect("a tunnel") else {
        eprintln!("this kernel has no tun devices: they are not tested");
        return;
    };
    let far = |port| SocketAddr::new(Tunnel::SECOND.into(), port);
    let _sink = traffic::eager(server, &Tcp::listen(far(5001)).sink()).expect("a sink");
    let _source = traffic::eager(server, &Tcp::listen(far(5002)).source()).expect("a source");
    let sends = Tcp::connect(far(5001), 2).source();
    let sender = traffic::eager(client, &sends).expect("a program");
    desk.types(&format!("set pid:{} --up 4mbit", sender.pid()));
    pause(1.5);
    let (from, before) = (sys::now_ns(), tunnel.carried());
    pause(2.0);
    let (until, after) = (sys::now_ns(), tunnel.carried());
    let sent = (after[0] - before[0]) as f64 * 8e9 / (until - from) as f64;
    desk.held(sent, R4M, "sent through the tunnel");
    let receives = Tcp::connect(far(5002), 2).sink();
    let receiver = traffic::eager(client, &receives).expect("another program");
    desk.types(&format!("set pid:{} --down 20mbit", receiver.pid()));
    drop(sender);
    let (rate, ..) = desk.arrives(1.0, 2.0).expect("a rate");
    desk.held(rate, R20M, "received through the tunnel");
}

#[test]
fn a_limit_is_lowered_raised_and_lifted_under_way() {
    let desk = Desk::with_offloads().expect("a desk");
    let to = desk.sink(5001).expect("a sink");
    let flows = Tcp::connect(to, 4).source();
    let program = traffic::eager(desk.world.client(), &flows).expect("a program");
    let pid = program.pid();
    desk.types(&format!("set pid:{pid} --up 20mbit"));
    desk.held(desk.sent(1.5, 1.0).expect("a rate"), R20M, "at first");
    desk.types(&format!("set {pid} --up 4mbit"));
    desk.held(desk.sent(1.0, 2.0).expect("a rate"), R4M, "lowered");
    desk.types(&format!("set {pid} --up 20mbit"));
    desk.held(desk.sent(2.0, 1.5).expect("a rate"), R20M, "raised");
    desk.types(&format!("set {pid} --up none"));
    desk.freed((1.0, 1.0), R20M, "lifted");
}

#[test]
fn a_ping_does_not_wait_behind_the_bulk_of_its_own_program() {
    for offloads in [Offloads::Off, Offloads::On] {
        let desk = Desk::with(Pair {
            offloads,
            ..Pair::default()
        })
        .expect("a desk");
        let to = desk.sink(5001).expect("a sink");
        let mut program = Family::start(desk.world.client()).expect("a program");
        desk.types(&format!("set pid:{} --up 4mbit", program.pid()));
        let flows = Tcp::connect(to, 8).source();
        program.traffic(&flows, eager()).expect("a child");
        pause(2.0);
        let words = ping_words(to.ip(), Duration::from_millis(20), 150);
        let ping = program.run(&words).expect("a ping");
        let lines = program
            .child_lines(ping, Duration::from_secs(20))
            .expect("it ends");
        let pings = Pings::parse(lines.iter().map(String::as_str));
        let mean = stats::mean(&pings.times());
        // On an emulated processor a round trip alone takes a while.
        let most = if functional() { 100.0 } else { 5.0 };
        assert!(
            mean <= most && pings.lost() < 0.05,
            "offloads {offloads:?}: mean {mean:.2} ms, lost {:.1} %",
            pings.lost() * 100.0
        );
    }
}

#[test]
fn forty_nested_limits_stay_inside_a_small_one() {
    let desk = Desk::new().expect("a desk");
    let to = desk.sink(5001).expect("a sink");
    let mut program = Family::start(desk.world.client()).expect("a program");
    desk.types(&format!("set pid:{} --up 256kbit", program.pid()));
    for child in 0..40 {
        let sends = Udp::source(desk.client(6000 + child), to);
        let sends = sends.size(200).rate(32_000);
        let pid = program.traffic(&sends, eager()).expect("a child");
        desk.types(&format!("set pid:{pid} --up 64kbit"));
    }
    let small = netnice_lab::experiment::bench::Rate {
        text: "256kbit",
        bits: 256_000,
    };
    // Each begins with a burst of its own, which is paid back before this.
    desk.held(desk.sent(4.0, 4.0).expect("a rate"), small, "forty in one");
}

#[test]
fn a_flood_above_its_limit_is_slowed_and_burns_nothing() {
    let desk = Desk::new().expect("a desk");
    let to = desk.sink(5001).expect("a sink");
    let flood = Udp::source(desk.client(6001), to);
    let mut program = traffic::ready(desk.world.client(), &flood).expect("a program");
    desk.types(&format!("set pid:{} --up 20mbit", program.pid()));
    let tap = Tap::start(&desk.world.server().ns, "eth0").expect("a tap");
    program.go().expect("it goes");
    pause(2.0);
    let report = program.stop().expect("it reports");
    let record = tap.stop(&desk.world.server().ns).expect("a record");
    let passed = record
        .totals(|f| wire::inbound(f) && f.target.1 == 5001)
        .packets as f64;
    assert!(passed > 500.0, "{passed} packets passed in two seconds");
    let sends = report.sends as f64 / passed;
    assert!(sends <= 2.0, "{sends:.2} sends for each packet that passed");
    let share = report.cpu_share();
    let most = if functional() { 0.9 } else { 0.2 };
    assert!(share <= most, "{:.0} % of a processor", share * 100.0);
}

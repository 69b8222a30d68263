//! What is promised of a link is kept, whatever the others do; what nobody uses is used by the
//! others; and what does not fit is refused with the reason. (How exactly: `tests/promises.rs`.)

use std::net::SocketAddr;
use std::time::Duration;

use netnice_lab::desk::Desk;
use netnice_lab::experiment::bench::{functional, pause, wait_until};
use netnice_lab::stats;
use netnice_lab::sys;
use netnice_lab::traffic::{self, Family, Life, Running, Tcp, Udp, clients};
use netnice_lab::wire::{self, Flow, Tap};
use netnice_lab::world::{Cable, Family as Internet, Pair, World};
use serde_json::Value;

/// The link of these tests, slow enough for an emulated machine: A has 12, B 4, and C nothing.
const LINK: f64 = 20e6;
const PORTS: [u16; 3] = [5001, 5002, 5003];
const MS: u64 = 1_000_000;

/// How far under its minimum a program may be found: a test shares the machine with others, and an emulated one often
/// cannot send what was promised.
fn least(min: f64) -> f64 {
    min * if functional() { 0.05 } else { 0.95 }
}

fn of(program: usize) -> impl Fn(&Flow) -> bool + Copy {
    move |flow| wire::inbound(flow) && flow.target.1 == PORTS[program]
}

/// A with one flow, B with four, and C that floods with UDP and eight flows.
struct Mix {
    desk: Desk,
    a: Running,
    b: Running,
    _c: Family,
}

fn mix() -> Mix {
    let desk = Desk::new().expect("a desk");
    let to = PORTS.map(|port| desk.sink(port).expect("a sink"));
    let client = desk.world.client();
    desk.types("link eth0 --rate 20mbit");
    let a = traffic::eager(client, &Tcp::connect(to[0], 1).source()).expect("A");
    let b = traffic::eager(client, &Tcp::connect(to[1], 4).source()).expect("B");
    let mut c = Family::start(client).expect("C");
    let life = Life {
        eager: true,
        ..Life::default()
    };
    let flood = Udp::source(desk.client(6003), to[2]).rate(100_000_000);
    c.traffic(&Tcp::connect(to[2], 8).source(), life)
        .expect("C's flows");
    c.traffic(&flood, life).expect("C's flood");
    desk.types(&format!("set pid:{} --min 12mbit", a.pid()));
    desk.types(&format!("set pid:{} --min 4mbit", b.pid()));
    Mix { desk, a, b, _c: c }
}

#[test]
fn minimums_hold_against_a_flood_and_an_idle_one_is_used_by_the_others() {
    let mix = mix();
    let server = &mix.desk.world.server().ns;
    pause(2.0);
    let tap = Tap::start(server, "eth0").expect("a tap");
    let from = sys::now_ns();
    wait_until(from + 2000 * MS);
    // Stopped, A is alive and holds its minimum, but asks for nothing.
    sys::kill(mix.a.pid() as i32, libc::SIGSTOP).expect("a signal");
    wait_until(from + 5000 * MS);
    sys::kill(mix.a.pid() as i32, libc::SIGCONT).expect("a signal");
    let record = tap.stop(server).expect("a record");
    record.sound().expect("sound");
    for (program, name, min) in [(0, "A", 12e6), (1, "B", 4e6)] {
        let got = record.rate(of(program), from, from + 2000 * MS);
        assert!(
            got >= least(min),
            "{name}: {got:.0} bit/s of its minimum of {min}"
        );
    }
    let total = record.rate(wire::inbound, from, from + 2000 * MS);
    assert!(total >= least(LINK), "{total:.0} bit/s on a link of {LINK}");
    assert!(
        total <= LINK * if functional() { 2.0 } else { 1.03 },
        "{total:.0} bit/s"
    );
    // What A's socket had taken in is still sent; its silence begins with its last packet.
    let mut silent = from + 5000 * MS;
    while silent > from + 2000 * MS && record.bytes(of(0), silent - 10 * MS, silent) == 0 {
        silent -= 10 * MS;
    }
    assert!(
        silent + 600 * MS < from + 5000 * MS,
        "A was silent too short a time to judge"
    );
    let total = record.rate(wire::inbound, silent + 200 * MS, from + 5000 * MS);
    assert!(
        total >= least(LINK),
        "{total:.0} bit/s while A is silent: its share lies idle"
    );
    let shown = mix.desk.target(&format!("pid:{}", mix.b.pid()));
    assert_eq!(shown["degraded"], serde_json::json!([]), "{shown}");
    assert_eq!(shown["effective"]["min"], 4_000_000, "{shown}");
}

#[test]
fn what_is_left_over_is_shared_by_weight_however_many_flows() {
    let desk = Desk::new().expect("a desk");
    let client = desk.world.client();
    desk.types("link eth0 --rate 20mbit");
    let mut programs = Vec::new();
    for (port, flows, weight) in [(5001, 1, 300), (5002, 16, 100)] {
        let to = desk.sink(port).expect("a sink");
        let flows = Tcp::connect(to, flows).source();
        let program = traffic::eager(client, &flows).expect("a program");
        desk.types(&format!("set pid:{} --weight {weight}", program.pid()));
        programs.push(program);
    }
    let (record, from, until) = desk.record(2.0, 3.0).expect("a record");
    let [a, b] = [of(0), of(1)].map(|of| record.rate(of, from, until));
    let share = a / (a + b);
    let bounds = if functional() {
        0.5..=0.95
    } else {
        0.70..=0.80
    };
    assert!(
        bounds.contains(&share),
        "{:.0} % for a weight of three quarters",
        share * 100.0
    );
}

#[test]
fn a_ping_on_a_small_link_waits_for_nobody_while_a_large_one_is_busy() {
    let desk = Desk::with(Pair {
        cables: 2,
        ..Pair::default()
    })
    .expect("a desk");
    let (client, server) = (desk.world.client(), desk.world.server());
    desk.types("link eth0 --rate 200mbit");
    desk.types("link eth1 --rate 4mbit");
    let mut busy = Vec::new();
    for port in [0, 1] {
        let to = SocketAddr::new(server.ports[port].v4.into(), 5001);
        busy.push(traffic::eager(server, &Tcp::listen(to).sink()).expect("a sink"));
        busy.push(traffic::eager(client, &Tcp::connect(to, 8).source()).expect("a program"));
    }
    pause(2.0);
    let to = server.ports[1].v4.into();
    let ping = clients::ping(client, to, Duration::from_millis(20), 150).expect("a ping");
    pause(3.5);
    let pings = clients::ping_end(ping);
    let mean = stats::mean(&pings.times());
    let most = if functional() { 100.0 } else { 5.0 };
    assert!(
        mean <= most && pings.lost() < 0.05,
        "mean {mean:.2} ms, lost {:.1} %",
        pings.lost() * 100.0
    );
}

#[test]
fn a_ceiling_and_a_minimum_of_one_program_hold_together() {
    let mix = mix();
    let pid = mix.a.pid();
    mix.desk
        .types(&format!("set pid:{pid} --min 8mbit --up 10mbit"));
    let (record, from, until) = mix.desk.record(1.5, 2.0).expect("a record");
    let got = record.rate(of(0), from, until);
    assert!(got >= least(8e6), "{got:.0} bit/s of a minimum of 8 Mbit/s");
    let most = 10e6 * if functional() { 2.0 } else { 1.03 };
    assert!(got <= most, "{got:.0} bit/s in a limit of 10 Mbit/s");
}

#[test]
fn a_minimum_of_what_is_received_holds_on_a_full_cable() {
    netnice_lab::world::begin().expect("a clean start");
    let world = World::switched(&[
        Cable::rated("client", LINK as u64, 20),
        Cable::free("server"),
    ])
    .expect("a world");
    let netnice = world.netnice("client").expect("a daemon");
    let (client, server) = (world.client(), world.server());
    netnice
        .type_line("link eth0 --rate 20mbit --down-rate 20mbit")
        .expect("a link");
    let mut sources = Vec::new();
    let mut sinks = Vec::new();
    for (port, flows) in [(5001, 1), (5002, 8)] {
        let to = SocketAddr::new(server.address(Internet::V4), port);
        sources.push(traffic::eager(server, &Tcp::listen(to).source()).expect("a source"));
        sinks.push(traffic::eager(client, &Tcp::connect(to, flows).sink()).expect("a sink"));
    }
    let line = format!("set pid:{} --min-down 12mbit", sinks[0].pid());
    netnice.type_line(&line).expect("it fits");
    let from = sys::now_ns() + 2500 * MS;
    wait_until(from + 2100 * MS);
    let mut rates = Vec::new();
    for sink in sinks {
        let report = sink.stop().expect("it reports");
        let rate = report.received_rate(from, from + 2000 * MS);
        rates.push(rate.expect("samples span it"));
    }
    let total: f64 = rates.iter().sum();
    assert!(
        rates[0] >= least(12e6),
        "{rates:.0?} for a minimum of 12 Mbit/s"
    );
    let most = LINK * 0.97 * if functional() { 2.0 } else { 1.03 };
    assert!(
        (least(LINK * 0.97)..=most).contains(&total),
        "{total:.0} bit/s in all"
    );
}

/// Everything that tc and ip tell of the client, without what counts.
fn picture(desk: &Desk) -> Vec<String> {
    let ns = &desk.world.client().ns;
    let mut lines = Vec::new();
    let mut ask = |program: &str, words: &str| {
        let text = ns.run(program, words).expect("it answers");
        lines.extend(text.lines().map(str::to_owned));
    };
    ask("tc", "qdisc show");
    ask("ip", "-o link");
    for device in ["eth0", "nn0"] {
        ask("tc", &format!("class show dev {device}"));
        for hook in ["ingress", "egress"] {
            ask("tc", &format!("filter show dev {device} {hook}"));
        }
    }
    lines
}

#[test]
fn a_refusal_changes_nothing_in_show_nor_in_the_kernel() {
    let desk = Desk::new().expect("a desk");
    let (a, b) = (desk.sleeper(), desk.sleeper());
    desk.types("link eth0 --rate 100mbit --down-rate 100mbit");
    let holder = format!("pid:{}", a.pid());
    desk.types(&format!("set {holder} --min 60mbit --up 80mbit"));
    // Who carries nothing gives up its part of what is left over: let that happen first.
    std::thread::sleep(std::time::Duration::from_secs(1));
    let before = (
        desk.netnice.show_standing().expect("a show"),
        picture(&desk),
    );
    let said = desk.answers(&format!("set pid:{} --min 50mbit --up 90mbit", b.pid()), 3);
    let after = (
        desk.netnice.show_standing().expect("a show"),
        picture(&desk),
    );
    assert_eq!(before, after);
    for word in [
        "eth0",
        "100 Mbit/s",
        "operator",
        &holder,
        "60 Mbit/s",
        "40 Mbit/s",
    ] {
        assert!(
            said.stderr.contains(word),
            "nothing of {word}: {}",
            said.stderr
        );
    }
    // The largest that would fit fits.
    desk.types(&format!("set pid:{} --min 40mbit --up 90mbit", b.pid()));
}

#[test]
fn where_the_driver_tells_the_rate_a_refusal_says_so() {
    let desk = Desk::new().expect("a desk");
    let a = desk.sleeper();
    desk.types("link eth0");
    let shown = desk.netnice.show().expect("a show");
    let up = &shown["links"][0]["up"];
    assert_eq!(up["source"], "driver", "{shown}");
    let rate = up["rate"].as_u64().expect("a rate in bit/s");
    let line = format!("set pid:{} --min {}bit", a.pid(), rate + 1_000_000);
    let said = desk.answers(&line, 3).stderr;
    assert!(said.contains("driver"), "{said}");
    let nothing: Value = serde_json::json!([]);
    assert_eq!(
        desk.netnice.show().expect("a show")["targets"],
        nothing,
        "something is held after a refusal"
    );
}

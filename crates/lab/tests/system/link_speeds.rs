//! Tests links whose rate changes under load: the speed that the interface's driver reports, and
//! the rate of a request. Guarantees that still fit are kept, the targets of the others are named,
//! and all guarantees are in force again when the rate comes back.
//!
//! The cable with a driver's speed is a tunnel: the kernel's tun driver reports the speed that
//! `ethtool -s` has set. A veth pair always reports 10 Gbit/s.

use std::net::SocketAddr;

use netnice_lab::experiment::bench::pause;
use netnice_lab::sys;
use netnice_lab::testbed::{TestBed, becomes_true, skip};
use netnice_lab::traffic::{self, Running, Udp};
use netnice_lab::world::{Host, Tunnel};

/// The speeds of the cable, in Mbit/s: slow enough for an emulated machine. At the slow one, only A
/// fits.
const FAST: u64 = 10;
const SLOW: u64 = 4;
/// The minimums of A and of B, which asks later, in Mbit/s. C has none.
const MINIMUMS: [u64; 2] = [3, 5];
const PORTS: [u16; 3] = [5001, 5002, 5003];

fn set_speed(host: &Host, mbit: u64) {
    let set = format!("-s tun0 speed {mbit} duplex full autoneg off");
    host.ns.run("ethtool", &set).expect("a speed");
}

/// A window of time, and the IP bytes per second that the cable carried in it, as bit/s.
struct Window {
    from: u64,
    until: u64,
    carried: f64,
}

/// Waits a second, in which a change is to be followed, and measures the next one and a half.
fn window(tunnel: &Tunnel) -> Window {
    pause(1.0);
    let (from, before) = (sys::now_ns(), tunnel.carried()[0]);
    pause(1.5);
    let (until, after) = (sys::now_ns(), tunnel.carried()[0]);
    let carried = (after - before) as f64 * 8e9 / (until - from) as f64;
    Window {
        from,
        until,
        carried,
    }
}

/// The sending rate of a link in Mbit/s, as `show` has it.
fn rate_of(bed: &TestBed, link: &str) -> Option<u64> {
    let shown = bed.shown();
    let links = shown["links"].as_array()?;
    let found = links.iter().find(|one| one["link"] == link)?;
    Some(found["up"]["rate"].as_u64()? / 1_000_000)
}

fn is_degraded(bed: &TestBed, target: &str) -> bool {
    let target = bed.target(target);
    let reasons = target["degraded"].as_array().expect("held");
    !reasons.is_empty()
}

/// Starts a flood of 30 Mbit/s to each port of the far end.
fn floods(client: &Host, from: [SocketAddr; 3], to: [SocketAddr; 3]) -> Vec<Running> {
    let flood = |n: usize| {
        let flood = Udp::source(from[n], to[n]).rate(30_000_000);
        traffic::start_now(client, &flood).expect("a flood")
    };
    (0..3).map(flood).collect()
}

#[test]
fn a_drivers_speed_is_followed_under_load_and_who_fits_loses_nothing() {
    let bed = TestBed::new().expect("a test bed");
    let (client, server) = (bed.world.client(), bed.world.server());
    let Some(tunnel) = Tunnel::between(client, server).expect("a tunnel") else {
        return skip("this kernel has no tun devices");
    };
    set_speed(client, FAST);
    let shown = bed.run_ok("link tun0").stdout;
    assert!(shown.contains("reported by the driver"), "{shown}");
    let to = PORTS.map(|port| SocketAddr::new(Tunnel::SECOND.into(), port));
    let from = PORTS.map(|port| SocketAddr::new(Tunnel::FIRST.into(), port + 1000));
    let sink = |to: &SocketAddr| traffic::start_now(server, &Udp::sink(*to)).expect("a sink");
    let sinks: Vec<Running> = to.iter().map(sink).collect();
    let floods = floods(client, from, to);
    let [a, b] = [0, 1].map(|n: usize| format!("pid:{}", floods[n].pid()));
    bed.run_ok(&format!("set {a} --min {}mbit --on tun0", MINIMUMS[0]));
    bed.run_ok(&format!("set {b} --min {}mbit --on tun0", MINIMUMS[1]));
    let before = bed.shown();
    let mut windows = vec![window(&tunnel)];
    set_speed(client, SLOW);
    let followed = || rate_of(&bed, "tun0") == Some(SLOW);
    assert!(becomes_true(followed), "the speed is not followed");
    windows.push(window(&tunnel));
    assert!(!is_degraded(&bed, &a) && is_degraded(&bed, &b));
    let log = bed.run_ok("log").stdout;
    assert!(log.contains(&format!("{b} (asked by root) loses")), "{log}");
    assert!(
        !log.contains(&format!("{a} (asked by root) loses")),
        "{log}"
    );
    set_speed(client, FAST);
    let restored = || bed.shown() == before;
    assert!(becomes_true(restored), "not as before: {}", bed.shown());
    windows.push(window(&tunnel));
    // The sinks take samples behind the end of the last window.
    pause(0.5);
    drop(floods);
    let reports: Vec<_> = sinks
        .into_iter()
        .map(|sink| sink.stop().expect("a report"))
        .collect();
    let kept: [&[usize]; 3] = [&[0, 1], &[0], &[0, 1]];
    for ((window, kept), speed) in windows.iter().zip(kept).zip([FAST, SLOW, FAST]) {
        let used = window.carried / (speed * 1_000_000) as f64;
        assert!(
            (0.5..=1.03).contains(&used),
            "{used} of {speed} Mbit/s are used"
        );
        for n in kept {
            let got = reports[*n].received_rate(window.from, window.until);
            let got = got.expect("samples");
            // A busy machine may carry less than the speed; the minimum is then the same share.
            let share = MINIMUMS[*n] as f64 / speed as f64;
            assert!(
                got >= 0.95 * share * window.carried,
                "program {n} gets {got:.0} of {:.0} bit/s at {speed} Mbit/s",
                window.carried
            );
        }
    }
}

#[test]
fn a_link_without_a_carrier_keeps_its_speed_and_promises() {
    let bed = TestBed::new().expect("a test bed");
    let (client, server) = (bed.world.client(), bed.world.server());
    let Some(_tunnel) = Tunnel::between(client, server).expect("a tunnel") else {
        return skip("this kernel has no tun devices");
    };
    set_speed(client, FAST);
    bed.run_ok("link tun0");
    let program = bed.sleeper();
    bed.run_ok(&format!("set pid:{} --min 8mbit --on tun0", program.pid()));
    let before = bed.shown();
    client
        .ns
        .ip("link set tun0 carrier off")
        .expect("a cable without a signal");
    pause(1.5);
    assert_eq!(rate_of(&bed, "tun0"), Some(FAST));
    assert_eq!(bed.shown()["targets"], before["targets"]);
    // The signal comes back at another speed, as after autonegotiation.
    set_speed(client, SLOW);
    client.ns.ip("link set tun0 carrier on").expect("a signal");
    let target = format!("pid:{}", program.pid());
    assert!(becomes_true(|| is_degraded(&bed, &target)), "not followed");
    set_speed(client, FAST);
    let restored = || bed.shown() == before;
    assert!(becomes_true(restored), "not as before: {}", bed.shown());
}

#[test]
fn a_rate_below_the_promises_degrades_the_targets_that_the_dry_run_names() {
    let bed = TestBed::new().expect("a test bed");
    bed.run_ok("link eth0 --rate 10mbit");
    let (a, b) = (bed.sleeper(), bed.sleeper());
    let [a, b] = [a.pid(), b.pid()].map(|pid| format!("pid:{pid}"));
    bed.run_ok(&format!("set {a} --min 3mbit --up 9mbit"));
    bed.run_ok(&format!("set {b} --min 5mbit --up 9mbit"));
    let before = bed.shown();
    let plan = bed.run_ok("link eth0 --rate 4mbit --dry-run").stdout;
    let line = format!("{b} (asked by root): up 9mbit min 5mbit on eth0 -> up 9mbit on eth0");
    assert!(plan.contains(&line), "{plan}");
    assert!(!plan.contains(&format!("{a} (asked")), "{plan}");
    assert_eq!(bed.shown(), before, "a dry run changes nothing");
    let told = bed.run_ok("link eth0 --rate 4mbit").stdout;
    assert!(
        told.contains(&format!("{b} (asked by root) loses min 5mbit on eth0")),
        "{told}"
    );
    assert!(!is_degraded(&bed, &a) && is_degraded(&bed, &b));
    // The limit stays in force.
    assert_eq!(bed.effective_up(&b), 9_000_000);
    let shown = bed.run_ok("show").stdout;
    assert!(shown.contains("not in force"), "{shown}");
    let told = bed.run_ok("link eth0 --rate 10mbit").stdout;
    assert!(
        told.contains(&format!("{b} (asked by root) has min 5mbit on eth0 again")),
        "{told}"
    );
    assert_eq!(bed.shown(), before);
}

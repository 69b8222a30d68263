//! Tests kinds of interfaces and packets: a limit applies once over interfaces that share a wire,
//! for packets with any headers, and while other interfaces come and go.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use netnice_lab::experiment::bench::{R4M, Rate, at, pause, wait_until};
use netnice_lab::sys;
use netnice_lab::testbed::{TestBed, becomes_true, skip};
use netnice_lab::traffic::{self, Running, Tcp, Udp};
use netnice_lab::wire::{self, WireFlow};
use netnice_lab::world::{Family as Internet, Netns};

const SECOND: u64 = 1_000_000_000;
const R8M: Rate = Rate {
    text: "8mbit",
    bits: 8_000_000,
};

/// The highest rate in bit/s of a sink over a second and a half, in three seconds that begin
/// `settle` seconds from now: a busy or emulated machine may starve the sender for a while.
fn receive_rate(sink: Running, settle: f64) -> f64 {
    let from = sys::now_ns() + (settle * 1e9) as u64;
    // A report has a sample every 10 ms, and one that ends after the window.
    wait_until(from + 3 * SECOND + SECOND / 10);
    let report = sink.stop().expect("it reports");
    let windows = (0..=6).map(|step| {
        let from = from + step * SECOND / 4;
        let rate = report.received_rate(from, from + SECOND * 3 / 2);
        rate.expect("samples span it")
    });
    windows.fold(0.0, f64::max)
}

#[test]
fn a_receive_limit_is_not_escaped_by_ipv6_destination_options() {
    let bed = TestBed::new().expect("a test bed");
    let (client, server) = (bed.world.client(), bed.world.server());
    let to = at(client, Internet::V6, 5001);
    let sink = traffic::start_now(client, &Udp::sink(to)).expect("a sink");
    bed.run_ok(&format!("set pid:{} --down 4mbit", sink.pid()));
    // With the option the packets are a little longer than counted for a datagram.
    let flood = Udp::source(at(server, Internet::V6, 6001), to);
    let flood = flood.size(1400).rate(8_000_000).option();
    let _flood = traffic::start_now(server, &flood).expect("a flood");
    bed.assert_limited(receive_rate(sink, 0.5), R4M, "datagrams with an option");
}

/// The MAC address of a device.
fn mac_address(ns: &Netns, device: &str) -> [u8; 6] {
    let text = ns.ip(&format!("-o link show {device}")).expect("ip");
    let mut words = text.split_whitespace();
    words.find(|word| *word == "link/ether").expect("Ethernet");
    let bytes = words.next().expect("an address").split(':');
    let bytes: Vec<u8> = bytes
        .map(|byte| u8::from_str_radix(byte, 16).expect("a byte"))
        .collect();
    bytes.try_into().expect("six bytes")
}

/// A UDP datagram from the server to the client in a frame with a tag of VLAN 0, priority 5.
fn priority_tagged_frame(bed: &TestBed, payload: usize) -> Vec<u8> {
    let (client, server) = (bed.world.client(), bed.world.server());
    let mut frame = Vec::new();
    frame.extend(mac_address(&client.ns, "eth0"));
    frame.extend(mac_address(&server.ns, "eth0"));
    frame.extend([0x81, 0x00, 5 << 5, 0, 0x08, 0x00]);
    let begin = frame.len();
    let length = |header: usize| ((header + payload) as u16).to_be_bytes();
    frame.extend([0x45, 0]);
    frame.extend(length(28));
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    frame.extend(server.ports[0].v4.octets());
    frame.extend(client.ports[0].v4.octets());
    let words = frame[begin..].chunks_exact(2);
    let sum: u32 = words
        .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
        .sum();
    let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
    frame[begin + 10..begin + 12].copy_from_slice(&sum.to_be_bytes());
    for port in [6001u16, 5001] {
        frame.extend(port.to_be_bytes());
    }
    frame.extend(length(8));
    frame.extend([0, 0]); // no checksum
    frame.resize(frame.len() + payload, 0);
    frame
}

#[test]
fn a_receive_limit_is_not_escaped_by_a_priority_tag() {
    let bed = TestBed::new().expect("a test bed");
    let to = bed.client(5001);
    let sink = traffic::start_now(bed.world.client(), &Udp::sink(to)).expect("a sink");
    bed.run_ok(&format!("set pid:{} --down 4mbit", sink.pid()));
    let frame = priority_tagged_frame(&bed, 1400);
    let server = &bed.world.server().ns;
    let socket = server.enter(|| Ok(sys::open_raw_socket("eth0")?));
    let socket = socket.expect("a packet socket");
    let done = AtomicBool::new(false);
    let got = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                for _ in 0..2 {
                    // A full device drops the frame, as a cable would.
                    let _ = (&socket).write(&frame);
                }
                pause(0.001);
            }
        });
        let got = receive_rate(sink, 0.5);
        done.store(true, Relaxed);
        got
    });
    bed.assert_limited(got, R4M, "frames with a priority tag");
}

/// Makes a macvlan on the client's cable, with 10.78.0.1 for the server's 10.78.0.2. Returns
/// `false`, with the test marked as skipped, if the kernel has none.
fn add_macvlan(bed: &TestBed, mode: &str) -> bool {
    let (client, server) = (&bed.world.client().ns, &bed.world.server().ns);
    let line = format!("link add link eth0 name mv0 type macvlan mode {mode}");
    if client.ip(&line).is_err() {
        skip("this kernel has no macvlan");
        return false;
    }
    client
        .run("ethtool", "-K mv0 tso off gso off gro off")
        .expect("ethtool");
    for (ns, device, last) in [(client, "mv0", 1), (server, "eth0", 2)] {
        ns.ip(&format!("addr add 10.78.0.{last}/24 dev {device}"))
            .expect("an address");
    }
    client.ip("link set mv0 up").expect("up");
    true
}

#[test]
fn packets_received_by_a_macvlan_are_counted_once() {
    check_macvlan_receiving("bridge");
}

#[test]
fn packets_received_by_a_macvlan_with_the_lower_links_address_are_counted_once() {
    check_macvlan_receiving("passthru");
}

fn check_macvlan_receiving(mode: &str) {
    let bed = TestBed::new().expect("a test bed");
    if !add_macvlan(&bed, mode) {
        return;
    }
    let far: SocketAddr = "10.78.0.2:5001".parse().expect("an address");
    let _source =
        traffic::start_now(bed.world.server(), &Tcp::listen(far).source()).expect("a source");
    let sink = Tcp::connect(far, 2).sink();
    let mut sink = traffic::start_waiting(bed.world.client(), &sink).expect("a program");
    bed.run_ok(&format!("set pid:{} --down 8mbit", sink.pid()));
    sink.go().expect("it goes");
    let (rate, ..) = bed.received_rate(1.5, 1.5).expect("a rate");
    bed.assert_limited(rate, R8M, "received through a macvlan");
}

#[test]
fn rcu_grace_periods_are_shortened_only_during_a_change() {
    let mut bed = TestBed::new().expect("a test bed");
    let setting = std::path::Path::new("/sys/kernel/rcu_expedited");
    let note = bed.netnice.runtime().join("rcu-expedited");
    let are_long = || {
        let text = std::fs::read_to_string(setting).expect("it can be read");
        text.trim() == "0" && !note.exists()
    };
    let ns = &bed.world.client().ns;
    for n in 0..20 {
        ns.ip(&format!("link add a{n} type veth peer name b{n}"))
            .expect("a pair");
    }
    let program = bed.sleeper();
    bed.run_ok(&format!("set pid:{} --up 4mbit", program.pid()));
    assert!(becomes_true(are_long), "after the first limit");
    bed.run_ok("clear --all");
    assert!(becomes_true(are_long), "after the last one");
    // The leftovers of a daemon that was killed during the change.
    bed.netnice.kill_daemon();
    std::fs::write(&note, []).expect("a note");
    std::fs::write(setting, "1").expect("root may");
    bed.netnice.start_daemon().expect("it starts again");
    assert!(becomes_true(are_long), "after a death");
}

#[test]
fn packets_sent_by_a_macvlan_are_counted_once_and_its_lower_link_keeps_its_classes() {
    let bed = TestBed::new().expect("a test bed");
    if !add_macvlan(&bed, "bridge") {
        return;
    }
    let far: SocketAddr = "10.78.0.2:5001".parse().expect("an address");
    let _sink = traffic::start_now(bed.world.server(), &Tcp::listen(far).sink()).expect("a sink");
    let sends = Tcp::connect(far, 2).source().rate(20_000_000);
    let program = traffic::start_now(bed.world.client(), &sends).expect("a program");
    let target = format!("pid:{}", program.pid());
    bed.run_ok(&format!("set {target} --up 8mbit"));
    let counted = || {
        let up = bed.target(&target)["counters"]["up"].clone();
        up["sent_bytes"].as_u64().expect("a number")
    };
    // Bytes that had arrived before and after the counters were read.
    let around = || {
        let arrived = || {
            let counters = bed.world.server().ns.counters("eth0");
            counters.expect("counters").rx_bytes
        };
        (arrived(), counted(), arrived())
    };
    let from = around();
    bed.await_limited(
        || bed.sent_rate(0.7, 1.5).expect("a rate"),
        R8M,
        "sent through a macvlan",
    );
    let to = around();
    let counted = to.1 - from.1;
    let (least, most) = (to.0 - from.2, to.2 - from.0);
    // Counted twice, it would be twice as much. The queued packets in between are few.
    assert!(
        counted as f64 > 0.9 * least as f64 && (counted as f64) < 1.1 * most as f64,
        "{counted} bytes were counted where {least} to {most} arrived"
    );
    // The lower link classifies the packets too, although another interface saw them first.
    bed.run_ok(&format!("set {target} --up none"));
    bed.run_ok("link eth0 --rate 8mbit");
    let to = bed.sink(5002).expect("a sink");
    let flood = Udp::source(bed.client(6002), to).rate(20_000_000);
    let _flood = traffic::start_now(bed.world.client(), &flood).expect("a flood");
    bed.run_ok(&format!("set {target} --min 6mbit"));
    let (record, from, until) = bed.record(0.7, 1.5).expect("a record");
    let mine = |flow: &WireFlow| wire::inbound(flow) && flow.target.1 == 5001;
    let rate = record.rate(mine, from, until);
    let carried = record.rate(wire::inbound, from, until);
    // Relative to what the link carried in the same seconds, which a busy or emulated machine may
    // reduce. Without its minimum the program would have a half. The experiment `guarantees` judges
    // 1 %; here the machine is shared with other tests.
    assert!(
        carried >= 4e6 && rate >= 0.95 * 6.0 / 8.0 * carried,
        "{rate:.0} of {carried:.0} bit/s with a minimum of 6 Mbit/s on a link of 8"
    );
}

/// Makes and removes veth pairs, as starting and ending containers do; returns how often.
fn add_and_remove_interfaces(ns: &Netns, until: &AtomicBool) -> u32 {
    let mut times = 0;
    while !until.load(Relaxed) {
        for i in 0..4 {
            ns.ip(&format!("link add name va{i} up type veth peer name vb{i}"))
                .expect("a pair");
        }
        for i in 0..4 {
            ns.ip(&format!("link del va{i}")).expect("it was there");
        }
        times += 1;
    }
    times
}

#[test]
fn every_change_is_made_while_interfaces_come_and_go() {
    change_beside_interfaces(6);
}

/// The bug behind this test made 4 of 60 changes fail.
#[test]
#[ignore = "takes a minute; part of make test-long"]
fn sixty_changes_are_made_while_interfaces_come_and_go() {
    change_beside_interfaces(20);
}

/// Makes three changes in each round.
fn change_beside_interfaces(rounds: usize) {
    let bed = TestBed::new().expect("a test bed");
    let to = bed.sink(5001).expect("a sink");
    let flows = Tcp::connect(to, 2).source().rate(12_000_000);
    let program = traffic::start_now(bed.world.client(), &flows).expect("a program");
    let target = format!("pid:{}", program.pid());
    let done = AtomicBool::new(false);
    let times = std::thread::scope(|scope| {
        let comes = scope.spawn(|| add_and_remove_interfaces(&bed.world.client().ns, &done));
        // The rounds go from no target to some and back: everything is attached and detached each
        // time.
        let changes = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..rounds {
                bed.run_ok(&format!("set {target} --up 4mbit"));
                bed.run_ok(&format!("set {target} --up 8mbit --down 8mbit"));
                bed.run_ok(&format!("clear {target}"));
            }
            bed.run_ok(&format!("set {target} --up 4mbit"));
        }));
        done.store(true, Relaxed);
        let times = comes.join().expect("interfaces come and go");
        if let Err(panic) = changes {
            std::panic::resume_unwind(panic);
        }
        times
    });
    assert!(times >= 3, "interfaces came and went {times} times only");
    bed.await_limited(
        || bed.sent_rate(0.7, 1.5).expect("a rate"),
        R4M,
        "after all that",
    );
    let shown = bed.target(&target);
    assert_eq!(shown["degraded"], serde_json::json!([]), "{shown}");
}

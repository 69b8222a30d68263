//! Tests the part of the driver's time for received packets that a flow has for certain (`receive
//! P%`): against floods to other flows, and as programs ask for it through the daemon.

use std::thread;
use std::time::Duration;

use netnice_core::units::Nanos;
use netnice_driver::link::Mode;
use netnice_driver::receive_budget::ReceiveBudget;
use netnice_lab::direct::{DriverSetup, wire};
use netnice_lab::experiment::bench::at;
use netnice_lab::testbed::TestBed;
use netnice_lab::traffic::{self, Direct, Running, Udp};
use netnice_lab::world::{Family, Pair, World};

const PORTS: [u16; 3] = [6001, 6002, 6003];

/// All flows together may have 0.5 % of the driver's time, far less than the floods need.
const TIME: u32 = 5_000;
const FLOODED: Duration = Duration::from_secs(3);

/// Three flows of three programs are flooded alike. One has 60 % for certain, so the others divide
/// 40 %.
#[test]
fn a_flow_has_its_certain_part_of_the_time_beside_floods() {
    let world = World::pair(Pair::default()).expect("a world");
    let wire = wire(1_000_000_000, Nanos(0)).expect("a link");
    let mut setup = DriverSetup::new(&world, wire, Mode::Native).expect("a driver");
    let budget = ReceiveBudget::new(TIME, Nanos::from_millis(1));
    let receivers = PORTS.map(|port| {
        let share = if port == PORTS[0] { 600_000 } else { 0 };
        let receiver = setup.add_receiver(&world, port, Some(budget.with_share(share)));
        let receiver = receiver.expect("a flow");
        receiver.start(|_| Duration::ZERO).expect("a receiver")
    });
    let driver = setup.start(None).expect("it starts");
    let server = world.server();
    let floods = PORTS.map(|port| {
        let to = at(world.client(), Family::V4, port);
        let flood = Udp::source(at(server, Family::V4, port), to).size(22);
        traffic::start_now(server, &flood).expect("a flood")
    });
    thread::sleep(FLOODED);
    let got = receivers
        .each_ref()
        .map(|receiver| receiver.received() as f64);
    for flood in floods {
        flood.stop().expect("it ends");
    }
    let mut ended = driver.end().expect("it ends");
    let counters = PORTS.map(|port| ended.counters(port).expect("counters"));
    println!("{got:?} packets, {counters:?}");
    assert!(got.iter().all(|got| *got > 0.0), "{got:?}");
    // The contract is about time: a packet that wakes the driver takes several times as much as one
    // that comes with others. The others get somewhat more than the rest, since so small budgets
    // are often overdrawn by the look-up of one frame.
    let time = counters.map(|counters| counters.receiving as f64);
    let certain = FLOODED.as_nanos() as f64 * f64::from(TIME) / 1e6 * 0.6;
    assert!(time[0] >= 0.9 * certain, "{time:?} of {certain} ns");
    for other in [1, 2] {
        assert!(counters[other].over_budget > 0, "it was not flooded");
        assert!(time[0] >= 1.25 * time[other], "{time:?} ns");
    }
}

fn sink(bed: &TestBed, port: u16, contract: &str) -> Result<Running, String> {
    let client = bed.world.client();
    let sink = Direct::sink(at(client, Family::V4, port));
    let sink = sink.by(bed.netnice.runtime()).contract(contract);
    // For packets of 0.8 s, if the program does not run for so long.
    let sink = sink.buffers(1_024);
    traffic::start_now(client, &sink).map_err(|error| format!("{error:#}"))
}

/// Parts are granted up to 80 %, shown, refused beyond, and free again when their flow ends. A flow
/// with a part gets its packets.
#[test]
fn a_program_asks_for_a_part_and_gets_its_packets() {
    let bed = TestBed::new().expect("a test bed");
    let device = bed.world.client().port().device.clone();
    bed.run_ok(&format!("link {device} --rate 100mbit"));
    let certain = sink(&bed, PORTS[0], "receive 50%").expect("it fits");
    let refused = sink(&bed, PORTS[1], "receive 31%").map(|_| ());
    let said = refused.expect_err("too much");
    for part in [
        "receive 31%",
        "flows would have 81% of the driver's time for received packets",
        "would fit   at most 30%",
    ] {
        assert!(said.contains(part), "{said}");
    }
    let other = sink(&bed, PORTS[1], "receive 30%").expect("it fits");
    assert!(bed.run_ok("flow ls").stdout.contains("receive 50%"));
    let server = bed.world.server();
    let to = at(bed.world.client(), Family::V4, PORTS[0]);
    let source = Udp::source(at(server, Family::V4, PORTS[0]), to).rate(10_000_000);
    let source = traffic::start_now(server, &source.size(1000).count(1_000));
    let source = source.expect("a source");
    thread::sleep(FLOODED);
    let sent = source.stop().expect("it ends").sent;
    thread::sleep(Duration::from_millis(200));
    let got = certain.stop().expect("it ends").received;
    other.stop().expect("it ends");
    assert!(sent > 100_000, "{sent}");
    // A source that is stopped before its end may have sent one more than it counted.
    let all = sent..=(sent + 1_000).min(1_000_000);
    assert!(all.contains(&got), "{got} of {sent} bytes");
    let after = sink(&bed, PORTS[2], "receive 80%").expect("the others have ended");
    after.stop().expect("it ends");
}

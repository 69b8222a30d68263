//! Tests hostile input to the driver: malformed frames, and a flood to one flow whose program keeps
//! reading. The driver must count them, and other flows must get all of their frames that reach the
//! driver.

use std::fs::File;
use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use netnice_core::units::Nanos;
use netnice_driver::link::Mode;
use netnice_driver::receive_budget::ReceiveBudget;
use netnice_lab::direct::{DriverSetup, EndedDriver, RunningReceiver, SINK, SenderProgram, wire};
use netnice_lab::experiment::bench::at;
use netnice_lab::sys;
use netnice_lab::traffic::{self, Udp};
use netnice_lab::wire::Tap;
use netnice_lab::world::{self, Family, Pair, World};
use netnice_sim::Random;

const LINK: u64 = 1_000_000_000;
const GOOD: u16 = 6001;
const VICTIM: u16 = 6002;
const SENDER: u16 = 5000;

/// The receive share that the daemon gives each flow, in millionths.
const RECEIVE_BUDGET: u32 = 500_000;
/// Packets of 1500 bytes in a millisecond at 1 Gbit/s.
const BURST: u64 = 82;

/// A random index below `length`.
fn below(random: &mut Random, length: usize) -> usize {
    random.below(length as u64) as usize
}

/// A datagram from the server to the victim, with right lengths and checksum.
fn datagram(mac_addresses: &[u8; 12], payload: usize, id: u16) -> Vec<u8> {
    let mut frame = mac_addresses.to_vec();
    let length = (28 + payload) as u16;
    frame.extend([0x08, 0x00, 0x45, 0]);
    frame.extend(length.to_be_bytes());
    frame.extend(id.to_be_bytes());
    frame.extend([0, 0, 64, 17, 0, 0, 10, 77, 0, 2, 10, 77, 0, 1]);
    frame.extend(VICTIM.to_be_bytes());
    frame.extend(VICTIM.to_be_bytes());
    frame.extend((length - 20).to_be_bytes());
    frame.extend([0, 0]);
    frame.resize(frame.len() + payload, 0x55);
    set_checksum(&mut frame);
    frame
}

fn set_checksum(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let words = frame[14..34].chunks_exact(2);
    let sum: u32 = words
        .map(|two| u32::from(u16::from_be_bytes([two[0], two[1]])))
        .sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !((sum + (sum >> 16)) as u16);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
}

/// One of eight kinds of bad frames; `true` if the kernel treats it as a VLAN frame.
fn malformed_frame(mac_addresses: &[u8; 12], random: &mut Random) -> (Vec<u8>, bool) {
    let size = below(random, 200);
    let mut frame = datagram(mac_addresses, size, random.draw() as u16 & 63);
    match below(random, 8) {
        // Truncated anywhere after the Ethernet header.
        0 => frame.truncate(14 + below(random, frame.len() - 14)),
        // A VLAN tag.
        1 => {
            let tag = [0x81, 0, random.draw() as u8 & 0xf, random.draw() as u8];
            frame.splice(12..12, tag);
            return (frame, true);
        }
        // IP options of any length, present or not.
        2 => {
            frame[14] = 0x40 | (random.draw() as u8 & 0xf);
            set_checksum(&mut frame);
        }
        // Fragments that overlap, are too long or too many, of few datagrams.
        3 => {
            let part = random.draw() as u16 & 0x3fff;
            frame[20..22].copy_from_slice(&part.to_be_bytes());
            set_checksum(&mut frame);
        }
        // A wrong checksum, or a wrong length.
        4 => {
            let at = 16 + below(random, 10);
            frame[at] ^= 1 << below(random, 8);
        }
        5 => {
            let at = 38 + below(random, 2);
            frame[at] = random.draw() as u8;
        }
        // IPv6 with a random chain of extension headers.
        6 => {
            frame[12..14].copy_from_slice(&[0x86, 0xdd]);
            frame[14] = 0x60;
            for byte in &mut frame[18..] {
                *byte = [0, 43, 44, 60, 17, 1, 8][below(random, 7)];
            }
        }
        // Random bytes.
        _ => {
            for byte in &mut frame[12..] {
                *byte = random.draw() as u8;
            }
        }
    }
    if frame.len() > 37 && frame[36..38] == GOOD.to_be_bytes() {
        frame[36] ^= 1;
    }
    (frame, false)
}

/// Starts the good flow's packets from the server's kernel.
fn start_good_sender(world: &World, count: u64) -> Result<traffic::Running> {
    let (client, server) = (world.client(), world.server());
    let from = at(server, Family::V4, GOOD);
    let udp = Udp::source(from, at(client, Family::V4, GOOD)).rate(10_000_000);
    traffic::start_now(server, &udp.size(958).count(count))
}

/// Waits until the good flow got everything, or until nothing more comes, and ends its sender. The
/// sender must have sent all packets.
fn await_all(sender: traffic::Running, receiver: &RunningReceiver, count: u64) -> Result<()> {
    let (mut before, mut since) = (receiver.received(), Instant::now());
    while receiver.received() < count && since.elapsed() < IDLE_TIME {
        thread::sleep(Duration::from_millis(20));
        if receiver.received() != before {
            (before, since) = (receiver.received(), Instant::now());
        }
    }
    let sent = sender.stop()?;
    ensure!(
        sent.sends == count && sent.refused.is_empty(),
        "{} of {count} were sent: {:?}",
        sent.sends,
        sent.refused
    );
    Ok(())
}

/// Fails unless the good flow got all of its frames that reached the driver, and at least `least`.
///
/// If a flood fills the NIC's rings (a stop of 5 ms is enough on a busy machine), frames are lost
/// there before they are classified, and not all NICs count them.
fn check_no_loss(
    receiver: &RunningReceiver,
    ended_driver: &mut EndedDriver,
    least: u64,
) -> Result<()> {
    let counters = ended_driver.counters(GOOD)?;
    ensure!(
        counters.received == counters.delivered
            && receiver.received() == counters.delivered
            && receiver.received() >= least,
        "the good flow got {} of at least {least}: {counters:?}, {:?}",
        receiver.received(),
        ended_driver.event_loop().link().counters()
    );
    Ok(())
}

/// One in this many frames of the good flow must reach the driver beside a flood: see
/// [`check_no_loss`].
const MAX_LOST_BESIDE_FLOOD: u64 = 10;
/// A receiver that got nothing for this time gets nothing more.
const IDLE_TIME: Duration = Duration::from_secs(5);

fn mac_addresses(world: &World) -> Result<[u8; 12]> {
    let mac = |host: &world::Host| {
        let shown = host.ns.ip("-br link show eth0")?;
        let word = shown
            .split_whitespace()
            .nth(2)
            .context("no address")?
            .to_owned();
        let bytes: Result<Vec<u8>, _> = word
            .split(':')
            .map(|two| u8::from_str_radix(two, 16))
            .collect();
        anyhow::Ok(bytes?)
    };
    let both = [mac(world.client())?, mac(world.server())?].concat();
    both.try_into().ok().context("two addresses")
}

/// Sends bad frames beside a good flow.
fn send_malformed(mode: Mode, frames: u64) -> Result<()> {
    let world = World::pair(Pair::default())?;
    let mut setup = DriverSetup::new(&world, wire(LINK, Nanos(0))?, mode)?;
    let good = setup.add_receiver(&world, GOOD, None)?;
    let victim = setup.add_receiver(&world, VICTIM, None)?;
    let (good, victim) = (
        good.start(|_| Duration::ZERO)?,
        victim.start(|_| Duration::ZERO)?,
    );
    let running_driver = setup.start(None)?;
    let mac_addresses = mac_addresses(&world)?;
    let server = world.server();
    let mut raw_socket: File = server.ns.enter(|| Ok(sys::open_raw_socket("eth0")?))?;
    let count = (frames / 500).max(200);
    // A kernel socket holds the flow's port, as the daemon does. Otherwise the kernel, which sees
    // every frame in fallback mode, would send ICMP errors.
    let client = world.client();
    let _held = traffic::start_now(client, &Udp::sink(at(client, Family::V4, GOOD)))?;
    let sender = start_good_sender(&world, count)?;
    let (mut random, mut tagged, mut refused) = (Random::new(1), 0, 0);
    for number in 0..frames {
        let (frame, is_tagged) = malformed_frame(&mac_addresses, &mut random);
        match raw_socket.write(&frame) {
            Ok(_) => tagged += u64::from(is_tagged),
            // The frame is longer than the device accepts.
            Err(_) => refused += 1,
        }
        // The receiver's buffers are enough for some thousand frames, so the driver must get time
        // to run.
        if number % 256 == 255 {
            thread::sleep(Duration::from_micros(200));
        }
    }
    await_all(sender, &good, count)?;
    thread::sleep(Duration::from_millis(300));
    let mut ended_driver = running_driver.end()?;
    check_no_loss(&good, &mut ended_driver, count)?;
    let link = ended_driver.event_loop().link().counters();
    let looked = ended_driver.event_loop().datapath().demux().counters();
    ended_driver.event_loop().datapath().invariants();
    println!(
        "{mode:?}: {frames} bad frames, {refused} refused by the device: {link:?}, {looked:?}"
    );
    ensure!(link.missed == 0, "{} frames were missed", link.missed);
    ensure!(looked.received == link.received, "every frame is counted");
    let counted: u64 = looked.discarded.iter().sum();
    ensure!(counted + looked.held > 0, "none was found bad");
    if mode == Mode::Fallback {
        // The driver receives every frame except those of VLANs, and some of the kernel's own
        // (ARP).
        let most = frames - refused - tagged + count;
        let own = looked.received.checked_sub(most);
        ensure!(
            own.is_some_and(|own| own < 100),
            "{} of {most} frames came",
            looked.received
        );
    }
    drop(victim);
    Ok(())
}

/// The results of a run with or without a flood.
struct Run {
    /// Packets per second of the sender.
    rate: f64,
    /// Shares of a processor: the driver's thread in total, the same without its waiting for
    /// departures, and its time for received frames.
    driver: f64,
    work: f64,
    receiving: f64,
    /// Shares of a processor charged to the two flows.
    good: f64,
    victim: f64,
    /// Frames received for the victim, and frames dropped because its share was used up.
    came: u64,
    cut: u64,
}

/// Runs a flood or none. With a flood, one in `part` frames of the good flow must reach it, without
/// a flood all.
fn flood(seconds: u64, flooded: bool, leeway: &Leeway) -> Result<Run> {
    let world = World::pair(Pair::default())?;
    let mut setup = DriverSetup::new(&world, wire(LINK, Nanos(0))?, Mode::Native)?;
    let good = setup.add_receiver(&world, GOOD, None)?;
    let share = ReceiveBudget::new(leeway.share, Nanos::from_millis(1));
    let victim = setup.add_receiver(&world, VICTIM, Some(share))?;
    let sender: SenderProgram = setup.add_sender(SENDER, "cell pcr=20mbit,cdvt=500us")?;
    let (good, victim) = (
        good.start(|_| Duration::ZERO)?,
        victim.start(|_| Duration::ZERO)?,
    );
    let tap = Tap::start(&world.server().ns, "eth0")?;
    let running_driver = setup.start(None)?;
    let running_sender = sender.start()?;
    let (client, server) = (world.client(), world.server());
    let from = at(server, Family::V4, VICTIM);
    let storm = Udp::source(from, at(client, Family::V4, VICTIM)).size(22);
    let storm = flooded
        .then(|| traffic::start_now(server, &storm))
        .transpose()?;
    let count = seconds * 1250;
    let sender = start_good_sender(&world, count)?;
    let begin = sys::now_ns();
    await_all(sender, &good, count)?;
    let end = sys::now_ns();
    if let Some(storm) = storm {
        storm.stop()?;
    }
    thread::sleep(Duration::from_millis(100));
    let life = sys::now_ns() - running_driver.began;
    let mut ended_driver = running_driver.end()?;
    running_sender.end()?;
    let least = if flooded { count / leeway.part } else { count };
    check_no_loss(&good, &mut ended_driver, least)?;
    let record = tap.stop(&world.server().ns)?;
    let is_ours = |flow: &netnice_lab::wire::WireFlow| {
        flow.inbound && flow.source.1 == SENDER && flow.target.1 == SINK
    };
    let (from, to) = (
        begin + 200_000_000,
        end.min(begin + seconds * 1_000_000_000),
    );
    let of_life = |nanos: u64| nanos as f64 / life as f64;
    let counters = ended_driver.counters(VICTIM)?;
    let spent = ended_driver.event_loop().time_accounting();
    let driver = of_life(ended_driver.worked.as_nanos() as u64);
    let run = Run {
        rate: record.rate(is_ours, from, to) / 12_000.0,
        driver,
        work: driver - of_life(spent.waiting.0),
        receiving: of_life(spent.receiving.0),
        good: of_life(ended_driver.counters(GOOD)?.receiving),
        victim: of_life(counters.receiving),
        came: counters.received,
        cut: counters.over_budget,
    };
    println!(
        "flooded {flooded}: sender {:.1} packets/s; of a processor the driver took {:.2} %, {:.2} without waiting for departures, \
         {:.2} for what came in: {:.2} charged to the good flow, {:.2} to the victim, which got {} of {} packets, {} of them cut; {spent:?}",
        run.rate,
        run.driver * 100.0,
        run.work * 100.0,
        run.receiving * 100.0,
        run.good * 100.0,
        run.victim * 100.0,
        victim.received(),
        run.came,
        counters.over_budget,
    );
    Ok(run)
}

/// The bounds of a run, and the share of the flooded flow.
struct Leeway {
    /// The flooded flow's share of the driver's time, in millionths.
    share: u32,
    /// One in this many frames of the good flow must reach it beside the flood. The others may be
    /// lost in the NIC's rings if the machine stops the driver for milliseconds.
    part: u64,
    /// The largest relative loss of the sender's rate.
    rate: f64,
    /// The most processor time that the flood takes beyond its share; `None` on a busy machine.
    processor: Option<f64>,
    /// The largest relative difference of the charged time from the time for received frames.
    charged: f64,
}

fn flooded(seconds: u64, leeway: &Leeway) -> Result<()> {
    let alone = flood(seconds, false, leeway)?;
    let beside = flood(seconds, true, leeway)?;
    let off = beside.rate / alone.rate - 1.0;
    ensure!(
        off >= -leeway.rate,
        "the sender has {:+.2} % of its rate",
        off * 100.0
    );
    ensure!(
        beside.cut > 0,
        "{} packets are no flood: they did not use up its share",
        beside.came
    );
    let (took, share) = (beside.work - alone.work, f64::from(leeway.share) / 1e6);
    println!(
        "the flood of {:.0} k packets/s takes {:.2} % of a processor in the driver; its share is {:.1} %",
        beside.came as f64 / seconds as f64 / 1e3,
        took * 100.0,
        share * 100.0
    );
    // The saved share, and the check that found the share used up.
    ensure!(
        beside.victim <= share + 0.002,
        "{:.4} of a processor was charged, for a share of {share:.3}",
        beside.victim
    );
    for run in [&alone, &beside] {
        let charged = run.good + run.victim;
        ensure!(
            (charged / run.receiving - 1.0).abs() < leeway.charged,
            "{:.4} of a processor for what came in, and {charged:.4} was charged",
            run.receiving
        );
    }
    ensure!(
        leeway.processor.is_none_or(|more| took <= share + more),
        "{took:.4} of a processor for a share of {share:.3}"
    );
    Ok(())
}

/// Bursts of one millisecond at 1 Gbit/s to a flow with the daemon's share, with a pause in
/// between.
fn send_bursts(count: u64, pause: Duration) -> Result<()> {
    let world = World::pair(Pair::default())?;
    let mut setup = DriverSetup::new(&world, wire(LINK, Nanos(0))?, Mode::Native)?;
    let half = ReceiveBudget::new(RECEIVE_BUDGET, Nanos::from_millis(1));
    let receiver = setup.add_receiver(&world, VICTIM, Some(half))?;
    let receiver = receiver.start(|_| Duration::ZERO)?;
    let running_driver = setup.start(None)?;
    let mac_addresses = mac_addresses(&world)?;
    let mut raw_socket: File = (world.server().ns).enter(|| Ok(sys::open_raw_socket("eth0")?))?;
    let mut took = Duration::ZERO;
    for burst in 0..count {
        let begin = Instant::now();
        for number in 0..BURST {
            let frame = datagram(&mac_addresses, 1472, (burst * BURST + number) as u16);
            raw_socket.write_all(&frame)?;
        }
        took += begin.elapsed();
        thread::sleep(pause);
    }
    thread::sleep(Duration::from_millis(100));
    let life = sys::now_ns() - running_driver.began;
    let mut ended_driver = running_driver.end()?;
    let counters = ended_driver.counters(VICTIM)?;
    println!(
        "{count} bursts of {BURST} packets, {:?} each; they were charged {:.2} % of a processor: {counters:?}, {:?}",
        took / count as u32,
        counters.receiving as f64 / life as f64 * 100.0,
        ended_driver.event_loop().time_accounting(),
    );
    ensure!(
        counters.received == count * BURST,
        "{} came",
        counters.received
    );
    ensure!(
        counters.over_budget == 0,
        "{} were cut",
        counters.over_budget
    );
    // A program that waits for a processor may have no buffers left; it must have read all
    // delivered packets.
    ensure!(
        receiver.received() == counters.delivered && counters.delivered > 0,
        "{} were read",
        receiver.received()
    );
    Ok(())
}

#[test]
fn a_burst_of_a_millisecond_is_not_cut() {
    world::begin().expect("a clean machine");
    send_bursts(50, Duration::from_millis(10)).unwrap_or_else(|e| panic!("{e:#}"));
}

/// Several flows with the daemon's share are flooded at once, beside one that is not.
fn flood_several(victims: u16, seconds: u64) -> Result<()> {
    let world = World::pair(Pair::default())?;
    let (client, server) = (world.client(), world.server());
    let mut setup = DriverSetup::new(&world, wire(LINK, Nanos(0))?, Mode::Native)?;
    let share = || Some(ReceiveBudget::new(RECEIVE_BUDGET, Nanos::from_millis(1)));
    let good = setup.add_receiver(&world, GOOD, share())?;
    let ports: Vec<u16> = (VICTIM..VICTIM + victims).collect();
    let mut receivers = Vec::new();
    for port in &ports {
        let victim = setup.add_receiver(&world, *port, share())?;
        receivers.push(victim.start(|_| Duration::ZERO)?);
    }
    let good = good.start(|_| Duration::ZERO)?;
    let running_driver = setup.start(None)?;
    let storms: Result<Vec<_>> = ports
        .iter()
        .map(|port| {
            let from = at(server, Family::V4, *port);
            let storm = Udp::source(from, at(client, Family::V4, *port)).size(22);
            traffic::start_now(server, &storm)
        })
        .collect();
    let storms = storms?;
    let count = seconds * 1250;
    let sender = start_good_sender(&world, count)?;
    await_all(sender, &good, count)?;
    for storm in storms {
        storm.stop()?;
    }
    let life = sys::now_ns() - running_driver.began;
    let mut ended_driver = running_driver.end()?;
    let of_life = |nanos: u64| nanos as f64 / life as f64;
    let (mut charged, mut came) = (0.0, 0);
    for port in &ports {
        let counters = ended_driver.counters(*port)?;
        charged += of_life(counters.receiving);
        came += counters.received;
    }
    let link = ended_driver.event_loop().link().counters();
    println!(
        "{victims} floods, {came} packets, were charged {:.2} % of a processor, of {:.2} % for what came in; the driver took {:.2} %; {link:?}",
        charged * 100.0,
        of_life(ended_driver.event_loop().time_accounting().receiving.0) * 100.0,
        of_life(ended_driver.worked.as_nanos() as u64) * 100.0,
    );
    check_no_loss(&good, &mut ended_driver, count / MAX_LOST_BESIDE_FLOOD)?;
    let most = f64::from(RECEIVE_BUDGET) / 1e6;
    ensure!(
        charged <= most + 0.02,
        "{charged:.4} of a processor was charged, and all have {most:.1}"
    );
    Ok(())
}

#[test]
fn several_flooded_flows_get_no_more_time_than_one() {
    world::begin().expect("a clean machine");
    for victims in [2, 8] {
        flood_several(victims, 1).unwrap_or_else(|e| panic!("{victims}: {e:#}"));
    }
}

#[test]
fn malformed_frames_are_counted_and_disturb_no_flow() {
    world::begin().expect("a clean machine");
    for mode in [Mode::Native, Mode::Fallback] {
        send_malformed(mode, 40_000).unwrap_or_else(|e| panic!("{mode:?}: {e:#}"));
    }
}

#[test]
#[ignore = "a million frames in each mode"]
fn a_million_malformed_frames_disturb_no_flow() {
    world::begin().expect("a clean machine");
    for mode in [Mode::Native, Mode::Fallback] {
        send_malformed(mode, 1_000_000).unwrap_or_else(|e| panic!("{mode:?}: {e:#}"));
    }
}

#[test]
fn a_flood_is_charged_to_the_flooded_flow() {
    world::begin().expect("a clean machine");
    // The driver's time and the flood's rate depend on the machine's other load: the long form
    // judges them. Here the flood must not starve the sender, and any machine's flood uses up the
    // share.
    let leeway = Leeway {
        share: 10_000,
        part: MAX_LOST_BESIDE_FLOOD,
        rate: 0.5,
        processor: None,
        charged: 0.5,
    };
    flooded(2, &leeway).unwrap_or_else(|e| panic!("{e:#}"));
}

#[test]
#[ignore = "judges one percent, on a quiet machine"]
fn a_flood_is_charged_to_the_flooded_flow_within_a_percent() {
    world::begin().expect("a clean machine");
    let leeway = Leeway {
        share: 100_000,
        part: 1,
        rate: 0.01,
        processor: Some(0.02),
        charged: 0.1,
    };
    flooded(15, &leeway).unwrap_or_else(|e| panic!("{e:#}"));
}

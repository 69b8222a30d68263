//! Tests flows whose route moves between two links while their programs send: the flows go on,
//! under their numbers and contracts, and the receiver counts what was lost, late, doubled or
//! reordered.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use netnice_lab::process::EVENT_TIMEOUT;
use netnice_lab::traffic::{self, Direct};

use super::resume::Program;
use super::{FAR, FlowBed, await_some};

/// What the contract of the source permits, in bit/s, and the bytes of its payloads. The source
/// always has packets that wait, so each move takes some along.
const RATE: u64 = 12_000_000;
const SIZE: u32 = 1000;
/// The longest time without a packet, and of lost packets, at a move.
const LONGEST_GAP: Duration = Duration::from_secs(1);

impl FlowBed {
    /// Waits until the only flow is open on a link; returns its number.
    fn await_flow_on(&self, link: usize) -> Result<String> {
        let iface = format!("eth{link}");
        await_some(&format!("the flow is on {iface}"), || {
            let flows = self.flows()?;
            ensure!(flows.len() == 1, "one flow, in every moment: {flows:?}");
            let flow = &flows[0];
            let is_there = flow["link"] == iface.as_str() && flow["state"] == "open";
            Ok(is_there.then(|| flow["flow"].as_str().unwrap_or_default().to_owned()))
        })
    }
}

/// The numbers of the datagrams that arrived at the far host, each with its time.
struct Receiver {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<(u64, Instant)>>>,
}

impl Receiver {
    fn start(flow_bed: &FlowBed) -> Result<Receiver> {
        let server = &flow_bed.world.server().ns;
        let socket = server.enter(|| Ok(UdpSocket::bind(FAR)?))?;
        socket.set_read_timeout(Some(Duration::from_millis(100)))?;
        let stop = Arc::<AtomicBool>::default();
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let (mut arrived, mut bytes) = (Vec::new(), [0; 2000]);
            while !stopped.load(Ordering::Relaxed) {
                if let Ok(length) = socket.recv(&mut bytes) {
                    let number = bytes[..length].first_chunk().context("no number")?;
                    arrived.push((u64::from_be_bytes(*number), Instant::now()));
                }
            }
            Ok(arrived)
        });
        Ok(Receiver { stop, thread })
    }

    fn stop(self) -> Result<Vec<(u64, Instant)>> {
        self.stop.store(true, Ordering::Relaxed);
        let end = self.thread.join();
        end.map_err(|_| anyhow!("the receiver panicked"))?
    }
}

/// Checks what arrived: in order, nothing twice, and at no point a longer gap than allowed.
fn check_arrived(arrived: &[(u64, Instant)]) -> Result<()> {
    let packets_in_gap = RATE * LONGEST_GAP.as_secs() / (u64::from(SIZE) * 8);
    let (mut lost, mut longest) = (0, Duration::ZERO);
    for pair in arrived.windows(2) {
        let ((one, at), (next, then)) = (pair[0], pair[1]);
        ensure!(next > one, "{next} after {one}: doubled or out of order");
        let (missing, gap) = (next - one - 1, then - at);
        ensure!(missing <= packets_in_gap, "{missing} lost after {one}");
        ensure!(gap <= LONGEST_GAP, "nothing for {gap:?} after {one}");
        lost += missing;
        longest = longest.max(gap);
    }
    println!(
        "{} packets arrived, {lost} lost, longest gap {longest:?}",
        arrived.len()
    );
    Ok(())
}

/// Moves the route so many times under traffic.
fn check_moves(moves: usize) -> Result<()> {
    let flow_bed = FlowBed::with_two_links()?;
    let receiver = Receiver::start(&flow_bed)?;
    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let source = Direct::source(any, FAR)
        .on("eth0")
        .contract("min 9mbit up 12mbit")
        .size(SIZE)
        .by(flow_bed.netnice.runtime());
    let program = traffic::start_now(flow_bed.world.client(), &source)?;
    let number = flow_bed.await_flow_on(0)?;
    let mut slowest = Duration::ZERO;
    for k in 1..=moves {
        let link = k % 2;
        let began = Instant::now();
        flow_bed.route_over(link)?;
        let moved = flow_bed.await_flow_on(link)?;
        slowest = slowest.max(began.elapsed());
        ensure!(moved == number, "{number} became {moved}");
        let flow = &flow_bed.flows()?[0];
        ensure!(flow["contract"]["min"] == 9_000_000, "{flow}");
        ensure!(flow["counters"]["forbidden"] == 0, "{flow}");
        // The link carries the packets of a moment, and the old one has nothing left of it.
        std::thread::sleep(Duration::from_millis(200));
        let old = format!("eth{}", (k + 1) % 2);
        let told = flow_bed
            .netnice
            .run(&["explain", &format!("direct:{old}")])?;
        ensure!(
            told.status != 0 || told.stdout.contains("0 flows"),
            "{old}: {}",
            told.stdout
        );
    }
    let report = program.stop()?;
    let arrived = receiver.stop()?;
    println!("{moves} moves, the slowest in {slowest:?}");
    ensure!(report.refused.is_empty(), "{:?}", report.refused);
    ensure!(!arrived.is_empty(), "nothing arrived");
    check_arrived(&arrived)
}

#[test]
fn a_flow_follows_its_route_to_the_other_link_and_back() -> Result<()> {
    check_moves(10)
}

#[test]
#[ignore = "takes a minute"]
fn a_flow_follows_its_route_100_times() -> Result<()> {
    check_moves(100)
}

/// A link that goes down takes its route along, if the kernel has another route.
#[test]
fn a_flow_leaves_a_link_that_is_down() -> Result<()> {
    let flow_bed = FlowBed::with_two_links()?;
    let client = &flow_bed.world.client().ns;
    client.ip("route add 10.99.0.1/32 via 10.77.1.2 dev eth1 metric 100")?;
    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let source = Direct::source(any, FAR).on("eth0").contract("up 1mbit");
    let program = source.rate(500_000).by(flow_bed.netnice.runtime());
    let _program = traffic::start_now(flow_bed.world.client(), &program)?;
    let number = flow_bed.await_flow_on(0)?;
    client.ip("link set eth0 down")?;
    ensure!(flow_bed.await_flow_on(1)? == number);
    let receiver = Receiver::start(&flow_bed)?;
    std::thread::sleep(Duration::from_millis(500));
    ensure!(receiver.stop()?.len() > 5, "it sends there");
    Ok(())
}

/// A C program that does not look at notifications sees no error.
#[test]
fn a_program_in_c_sends_on_whichever_link_the_route_leads_over() -> Result<()> {
    let flow_bed = FlowBed::with_two_links()?;
    let receiver = Receiver::start(&flow_bed)?;
    let mut program = Program::start_to(&flow_bed, FAR.ip(), Some("eth0"))?;
    program.run("open 9")?;
    for link in [0, 1, 0] {
        flow_bed.route_over(link)?;
        let until = Instant::now() + EVENT_TIMEOUT;
        loop {
            ensure!(program.run("send 5")? == 5, "on eth{link}");
            let on = &flow_bed.flows()?[0]["link"];
            if *on == format!("eth{link}").as_str() {
                break;
            }
            ensure!(Instant::now() < until, "still on {on}");
            std::thread::sleep(Duration::from_millis(20));
        }
        ensure!(program.run("send 20")? == 20, "on eth{link}");
    }
    ensure!(receiver.stop()?.len() >= 60, "they arrive");
    Ok(())
}

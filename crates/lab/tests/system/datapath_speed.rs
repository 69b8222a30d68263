//! Measures the speed of the driver's datapath alone, in one thread and without a daemon, in both
//! directions, compared with the bare link in the same run, and its cost by part. The tests are
//! ignored because they need a quiet machine. The experiment `direct-speed` measures all parts
//! together.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use etherparse::PacketBuilder;
use netnice_core::contract::{Cell, Slice, Weight};
use netnice_core::sched::{Service, Wire};
use netnice_core::units::{self, Nanos, Rate};
use netnice_driver::datapath::{Datapath, FlowParameters, FrameSink};
use netnice_driver::demux::{Match, Reassembly};
use netnice_driver::frame::Mac;
use netnice_driver::link::{Ingress, Link};
use netnice_driver::protocol::Transport;
use netnice_driver::template::{Checked, Forbidden, Sender, Sends, Template};
use netnice_kernel::direct::FrameMatch;
use netnice_lab::experiment::speed::{PEER, bare, open_link};
use netnice_lab::stats::median;
use netnice_lab::world::{self, Pair, World};
use netnice_ring::driver::ProgramMemory;
use netnice_ring::layout::{Budget, Shape};
use netnice_ring::program::{Attachment, Piece, ProgramRings};

const LENGTH: usize = 1500;
/// Largest number of flows of one program.
const EACH: usize = 4096;

/// The load of a run: flows, records of each flow in a round, and rounds.
#[derive(Clone, Copy)]
struct Load {
    flows: usize,
    records: usize,
    rounds: usize,
}

const FEW: Load = Load {
    flows: 64,
    records: 250,
    rounds: 12,
};
const MANY: Load = Load {
    flows: 65_536,
    records: 1,
    rounds: 8,
};

/// A mix of contracts of every kind; all flows are backlogged.
fn service(k: usize, flows: usize) -> Result<Service> {
    let weight = Weight::default();
    let rate = |bits: u64| Rate::new(bits * 64 / flows as u64).context("a rate");
    Ok(match k % 4 {
        0 => Service::best_effort(weight),
        1 => Service::Slice {
            slice: Slice::new(Nanos::from_micros(100), Nanos::from_millis(10), true)?,
            weight,
        },
        // So fast that the contract does not bound a round.
        2 => Service::Cell(Cell::new(
            rate(60_000_000_000)?,
            Nanos::from_millis(1),
            None,
        )?),
        _ => Service::Share {
            min: Some(rate(500_000_000)?),
            max: None,
            weight,
        },
    })
}

/// The local endpoint of a flow: more than 60,000 flows need a second address.
fn end(k: usize) -> ([u8; 4], u16) {
    let host = if k < 60_000 { 1 } else { 3 };
    ([10, 77, 0, host], 1000 + (k % 60_000) as u16)
}

struct Programs {
    turn: Datapath,
    flows: Vec<ProgramRings>,
    headers: Vec<Vec<u8>>,
    _attachments: Vec<Attachment>,
    load: Load,
    begin: Instant,
}

impl Programs {
    fn new(own: Mac, load: Load) -> Result<Programs> {
        let mut wire = Wire::new(Rate::new(1_000_000_000_000).context("a rate")?);
        wire.ahead = Nanos::from_micros(20);
        let shape = Shape {
            chunk_bytes: 2048,
            chunks: load.records as u32 + 1,
            transmit_entries: (2 * load.records as u32 + 2).next_power_of_two().max(16),
            receive_entries: 16,
        };
        let mut programs = Programs {
            turn: Datapath::new(wire, own)?,
            flows: Vec::new(),
            headers: Vec::new(),
            _attachments: Vec::new(),
            load,
            begin: Instant::now(),
        };
        for first in (0..load.flows).step_by(EACH) {
            let flows = EACH.min(load.flows - first);
            let client = ProgramMemory::create(Budget {
                flows: flows as u32,
                bytes: shape.plan()?.bytes() * flows as u64,
            })?;
            let attachment = client.handles().attach()?;
            let program = programs.turn.attach(client);
            for k in first..first + flows {
                let (host, port) = end(k);
                let open = FlowParameters {
                    shape,
                    service: service(k, load.flows)?,
                    sender: sender(own, PEER, (host, port), ([10, 77, 0, 2], 9)),
                    matches: Vec::new(),
                    reassembly: Reassembly::Complete,
                    receive_budget: None,
                };
                let opened = programs.turn.open(program, &open, units::Instant(0))?;
                programs.flows.push(attachment.flow(opened.location)?);
                let frame = datagram(own, PEER, (host, port), ([10, 77, 0, 2], 9))?;
                programs.headers.push(frame[..42].to_vec());
            }
            programs._attachments.push(attachment);
        }
        let took = programs.begin.elapsed();
        println!(
            "{} flows set up in {:.0} ms",
            load.flows,
            took.as_secs_f64() * 1e3
        );
        Ok(programs)
    }

    /// Fills every ring.
    fn fill(&mut self) -> Result<()> {
        for (flow, header) in self.flows.iter_mut().zip(&self.headers) {
            while let Some(record) = flow.reclaim()? {
                ensure!(record.status().0 == 0, "{:?}", record.status());
                flow.free_all(&record)?;
            }
            for _ in 0..self.load.records {
                let chunk = flow.chunk().context("a chunk")?;
                let bytes = flow.bytes_mut(chunk)?;
                bytes[..42].copy_from_slice(header);
                bytes[42..LENGTH].fill(0x55);
                let length = LENGTH as u32;
                flow.submit(
                    &[Piece {
                        chunk,
                        start: 0,
                        length,
                    }],
                    false,
                )?;
            }
            flow.publish();
        }
        Ok(())
    }

    fn count(&self) -> u64 {
        (self.load.flows * self.load.records) as u64
    }

    /// Sends all records in the rings; returns packets per second.
    fn drain(&mut self, link: &mut Link) -> Result<f64> {
        let (before, wanted) = (link.sent(), self.count());
        let begin = Instant::now();
        while link.sent() - before < wanted {
            let now = units::Instant(self.begin.elapsed().as_nanos() as u64);
            self.turn.transmit(link, now);
            link.flush()?;
            self.turn
                .all_sent(|| units::Instant(self.begin.elapsed().as_nanos() as u64));
            self.turn.publish();
            ensure!(
                begin.elapsed() < Duration::from_secs(5),
                "{:?}",
                link.counters()
            );
        }
        Ok(wanted as f64 / begin.elapsed().as_secs_f64())
    }

    /// Sends all records to a stub instead of a link; returns ns per packet.
    fn drain_into(&mut self, card: &mut Stub) -> Result<f64> {
        (card.sent, card.frame) = (0, vec![0; 2048]);
        let wanted = self.count();
        let begin = Instant::now();
        while card.sent < wanted {
            let now = units::Instant(self.begin.elapsed().as_nanos() as u64);
            self.turn.transmit(card, now);
            self.turn.all_sent(|| now);
            self.turn.publish();
            ensure!(begin.elapsed() < Duration::from_secs(5), "{}", card.sent);
        }
        Ok(begin.elapsed().as_nanos() as f64 / wanted as f64)
    }
}

/// Replaces a link: copies and checks the packets, or only counts them.
struct Stub {
    copies: bool,
    sent: u64,
    frame: Vec<u8>,
}

impl FrameSink for Stub {
    fn room(&mut self) -> usize {
        32
    }

    fn send<F>(&mut self, write: F) -> Option<Result<(), Forbidden>>
    where
        F: for<'a> FnOnce(&'a mut [u8]) -> Result<Checked<'a>, Forbidden>,
    {
        self.sent += 1;
        Some(match self.copies {
            true => write(&mut self.frame).map(|_| ()),
            false => Ok(()),
        })
    }
}

fn sender(own: Mac, next: Mac, from: ([u8; 4], u16), to: ([u8; 4], u16)) -> Sender {
    Sender {
        mac: own,
        next_hop: Some(next),
        longest: 1514,
        sends: Sends::Ports {
            transport: Transport::Udp,
            local: from.into(),
            remote: Some(to.into()),
        },
    }
}

fn datagram(own: Mac, next: Mac, from: ([u8; 4], u16), to: ([u8; 4], u16)) -> Result<Vec<u8>> {
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(own.0, next.0)
        .ipv4(from.0, to.0, 64)
        .udp(from.1, to.1)
        .write(&mut frame, &[0; LENGTH - 42])?;
    Ok(frame)
}

/// The frequency of the first processor in cycles per ns, as /proc/cpuinfo reports it ("cpu MHz");
/// NaN if it does not.
fn clock() -> f64 {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("cpu MHz"));
    let word = line.and_then(|line| line.split(':').nth(1));
    word.and_then(|word| word.trim().parse::<f64>().ok())
        .map_or(f64::NAN, |mhz| mhz / 1e3)
}

/// The datapath's speed as a share of the bare link's.
fn compare(load: Load) -> Result<f64> {
    let world = World::pair(Pair::default())?;
    let (mut link, _ingress) = open_link(world.client())?;
    let mut programs = Programs::new(link.interface().mac, load)?;
    let (mut alone, mut with) = (Vec::new(), Vec::new());
    for _ in 0..load.rounds {
        alone.push(bare(&mut link, load.flows * load.records)?);
        programs.fill()?;
        with.push(programs.drain(&mut link)?);
    }
    let (mut copying, mut counting) = (Vec::new(), Vec::new());
    for (copies, times) in [(true, &mut copying), (false, &mut counting)] {
        let (sent, frame) = (0, Vec::new());
        let mut stub = Stub {
            copies,
            sent,
            frame,
        };
        for _ in 0..load.rounds {
            programs.fill()?;
            times.push(programs.drain_into(&mut stub)?);
        }
    }
    let (alone, with) = (median(&alone), median(&with));
    let (copying, counting, clock) = (median(&copying), median(&counting), clock());
    println!(
        "{} flows: bare {:.0} k packets/s, with contracts, copy and check {:.0} k: {:.3}",
        load.flows,
        alone / 1e3,
        with / 1e3,
        with / alone
    );
    println!(
        "  the driver adds {:.0} ns a packet to the bare link",
        1e9 / with - 1e9 / alone
    );
    let stages = [
        ("rings and schedule", counting),
        ("copy and check", copying - counting),
        ("the link beside them", 1e9 / with - copying),
        ("the link alone", 1e9 / alone),
    ];
    for (name, ns) in stages {
        println!("  {name}: {ns:.0} ns, {:.0} cycles a packet", ns * clock);
    }
    Ok(with / alone)
}

/// Sends to 64 flows at the other end of the cable, as fast as the link permits.
fn storm(link: &mut Link, to: Mac, stop: &AtomicBool) -> Result<()> {
    let own = link.interface().mac;
    let mut flows = Vec::new();
    for k in 0..FEW.flows {
        let (from, to_end) = (([10, 77, 0, 2], 9), end(k));
        let template = Template::new(&sender(own, to, from, to_end))?;
        flows.push((template, datagram(own, to, from, to_end)?));
    }
    while !stop.load(Ordering::Relaxed) {
        for half in flows.chunks(32) {
            for (template, frame) in half {
                // If the queue is full, the next flush makes room.
                let _ = link.send(|room| {
                    room[..LENGTH].copy_from_slice(frame);
                    template.check(&mut room[..LENGTH])
                });
            }
            link.flush()?;
        }
    }
    Ok(())
}

/// Receives for 300 ms, with `each` for each frame and `after` after each batch; returns packets
/// per second, and ns of work per packet.
fn receive(
    link: &mut Link,
    mut each: impl FnMut(&[u8]),
    mut after: impl FnMut() -> Result<()>,
) -> Result<(f64, f64)> {
    let (begin, mut count, mut work) = (Instant::now(), 0, Duration::ZERO);
    while begin.elapsed() < Duration::from_millis(300) {
        let before = Instant::now();
        let came = link.receive(64, |frame, _| {
            each(frame);
            1
        });
        if came > 0 {
            after()?;
            work += before.elapsed();
            count += came;
        }
    }
    let missed = link.counters().missed;
    ensure!(
        count > 1000,
        "only {count} frames came, {missed} were missed"
    );
    let rate = count as f64 / begin.elapsed().as_secs_f64();
    Ok((rate, work.as_nanos() as f64 / count as f64))
}

/// 64 flows that receive, in a program's memory.
struct Receivers {
    turn: Datapath,
    flows: Vec<ProgramRings>,
    _attachment: Attachment,
}

impl Receivers {
    fn new(own: Mac, ingress: &mut Ingress) -> Result<Receivers> {
        let shape = Shape {
            chunk_bytes: 2048,
            chunks: 128,
            transmit_entries: 16,
            receive_entries: 256,
        };
        let mut turn = Datapath::new(Wire::new(Rate::new(1_000_000_000).context("a rate")?), own)?;
        let client = ProgramMemory::create(Budget {
            flows: FEW.flows as u32,
            bytes: shape.plan()?.bytes() * FEW.flows as u64,
        })?;
        let attachment = client.handles().attach()?;
        let program = turn.attach(client);
        let mut flows = Vec::new();
        for k in 0..FEW.flows {
            let (transport, local) = (Transport::Udp, end(k).into());
            let open = FlowParameters {
                shape,
                service: Service::best_effort(Weight::default()),
                sender: sender(own, PEER, end(k), ([10, 77, 0, 2], 9)),
                matches: vec![Match::Port { transport, local }],
                reassembly: Reassembly::Complete,
                receive_budget: None,
            };
            let opened = turn.open(program, &open, units::Instant(0))?;
            flows.push(attachment.flow(opened.location)?);
            let (host, port) = end(k);
            let ends = FrameMatch::Endpoints {
                protocol: 17,
                local: (host.into(), port),
                remote: None,
            };
            ingress.add_match(&ends, Some(opened.flow))?;
        }
        Ok(Receivers {
            turn,
            flows,
            _attachment: attachment,
        })
    }

    /// The programs' part: takes the received records and primes all buffers again.
    fn recycle(flows: &mut [ProgramRings]) -> Result<()> {
        for flow in flows {
            while let Some(record) = flow.receive()? {
                flow.free_all(&record)?;
            }
            while let Some(chunk) = flow.chunk() {
                let (start, length) = (0, 2048);
                let whole = Piece {
                    chunk,
                    start,
                    length,
                };
                if flow.prime(&[whole]).is_err() {
                    flow.free(chunk)?;
                    break;
                }
            }
            flow.publish();
        }
        Ok(())
    }
}

fn compare_receive() -> Result<f64> {
    let world = World::pair(Pair::default())?;
    let (client, server) = (world.client(), world.server());
    let ((mut link, mut ingress), (mut far, _ingress)) = (open_link(client)?, open_link(server)?);
    let own = link.interface().mac;
    let mut receivers = Receivers::new(own, &mut ingress)?;
    client.ns.enter(|| Ok(ingress.start()?))?;
    Receivers::recycle(&mut receivers.flows)?;
    let stop = AtomicBool::new(false);
    let (mut alone, mut with) = (Vec::new(), Vec::new());
    thread::scope(|scope| {
        let sending = scope.spawn(|| storm(&mut far, own, &stop));
        let mut measure = || {
            for _ in 0..FEW.rounds {
                let mut touched = 0_u64;
                let first = |frame: &[u8]| touched += u64::from(frame[0]);
                alone.push(receive(&mut link, first, || Ok(()))?);
                let Receivers { turn, flows, .. } = &mut receivers;
                let turn = std::cell::RefCell::new(turn);
                let mut batches = 0;
                let after = || {
                    turn.borrow_mut().publish();
                    batches += 1;
                    match batches % 32 {
                        0 => Receivers::recycle(flows),
                        _ => Ok(()),
                    }
                };
                let each = |frame: &[u8]| turn.borrow_mut().receive(frame, units::Instant(0));
                with.push(receive(&mut link, each, after)?);
            }
            anyhow::Ok(())
        };
        let done = measure();
        stop.store(true, Ordering::Relaxed);
        sending
            .join()
            .map_err(|_| anyhow!("the sender panicked"))??;
        done
    })?;
    let (mut delivered, mut lost) = (0, 0);
    for k in 0..FEW.flows as u32 {
        let counters = receivers.turn.counters(netnice_driver::demux::FlowNo(k));
        let counters = counters.context("a flow")?;
        (delivered, lost) = (delivered + counters.delivered, lost + counters.no_buffer);
    }
    ensure!(
        delivered > 10 * lost,
        "{lost} of {delivered} found no buffer"
    );
    let rates = |all: &[(f64, f64)]| median(&all.iter().map(|one| one.0).collect::<Vec<_>>());
    let works = |all: &[(f64, f64)]| median(&all.iter().map(|one| one.1).collect::<Vec<_>>());
    println!(
        "receiving: bare {:.0} k packets/s, to 64 flows {:.0} k: {:.3}; work {:.0} and {:.0} ns ({:.0} and {:.0} cycles) a packet",
        rates(&alone) / 1e3,
        rates(&with) / 1e3,
        rates(&with) / rates(&alone),
        works(&alone),
        works(&with),
        works(&alone) * clock(),
        works(&with) * clock()
    );
    Ok(rates(&with) / rates(&alone))
}

#[test]
#[ignore = "wants a quiet machine"]
fn the_datapath_sends_at_least_065_of_the_bare_link() {
    world::begin().expect("a clean machine");
    let ratio = compare(FEW).expect("a comparison");
    assert!(ratio >= 0.65, "{ratio:.3} of the bare link");
}

#[test]
#[ignore = "wants a quiet machine"]
fn the_datapath_with_65536_flows_sends_at_least_half_of_the_bare_link() {
    world::begin().expect("a clean machine");
    let ratio = compare(MANY).expect("a comparison");
    assert!(ratio >= 0.5, "{ratio:.3} of the bare link");
}

#[test]
#[ignore = "wants a quiet machine"]
fn the_datapath_receives_at_least_07_of_the_bare_link() {
    world::begin().expect("a clean machine");
    let ratio = compare_receive().expect("a comparison");
    assert!(ratio >= 0.7, "{ratio:.3} of the bare link");
}

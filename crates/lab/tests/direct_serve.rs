//! The smallest whole path on real packets: programs with slices send UDP through the driver, and what arrives is
//! measured on the far end of the cable.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use etherparse::PacketBuilder;
use netnice_core::contract::{Slice, Weight};
use netnice_core::sched::{Service, Wire};
use netnice_core::units::{Nanos, Rate};
use netnice_driver::demux::Reassembly;
use netnice_driver::link::{Link, Mode};
use netnice_driver::protocol::Transport;
use netnice_driver::serve::{Server, monotonic, pace};
use netnice_driver::template::{Sender, Sends};
use netnice_driver::turn::{Open, Turn};
use netnice_lab::experiment::bench::{at, functional};
use netnice_lab::wire::Tap;
use netnice_lab::world::{self, Family, Host, Pair, World};
use netnice_ring::driver::Client;
use netnice_ring::layout::{Budget, Shape};
use netnice_ring::program::{Attachment, Flow, Piece};

const SLICES: [u64; 6] = [4, 8, 12, 16, 20, 24];
const LENGTH: usize = 1500;
const RUN: Duration = Duration::from_millis(2_600);

/// A program: its hold on its memory, its flow, and the datagram that it sends again and again.
struct Talker {
    attachment: Attachment,
    flow: Flow,
    frame: Vec<u8>,
}

impl Talker {
    /// Sends as fast as it can, until it is told to stop.
    fn flood(mut self, stop: &AtomicBool) -> Result<()> {
        while !stop.load(Ordering::Relaxed) {
            while let Some(record) = self.flow.reclaim()? {
                ensure!(record.status().0 == 0, "{:?}", record.status());
                self.flow.free_all(&record)?;
            }
            while let Some(chunk) = self.flow.chunk() {
                self.flow.bytes_mut(chunk)?[..LENGTH].copy_from_slice(&self.frame);
                let length = LENGTH as u32;
                let piece = Piece {
                    chunk,
                    start: 0,
                    length,
                };
                if self.flow.submit(&[piece], false).is_err() {
                    self.flow.free(chunk)?;
                    break;
                }
            }
            if self.flow.publish() {
                self.attachment.ring();
            }
            self.attachment.wait(Some(Duration::from_millis(20)))?;
        }
        Ok(())
    }
}

fn open(host: &Host, mode: Mode) -> Result<Link> {
    host.ns
        .enter(|| Ok(Link::open(&host.port().device, Some(mode))?.0))
}

fn talker(turn: &mut Turn, world: &World, ms: u64, own: &Link, next: &Link) -> Result<Talker> {
    let port = 5000 + ms as u16;
    let (local, remote) = (
        at(world.client(), Family::V4, port),
        at(world.server(), Family::V4, 9),
    );
    let (mac, next_hop) = (own.interface().mac, next.interface().mac);
    let client = Client::create(Budget {
        flows: 1,
        bytes: 1 << 20,
    })?;
    let attachment = client.handles().attach()?;
    let program = turn.attach(client);
    let period = Nanos::from_millis(100);
    let open = Open {
        shape: Shape {
            chunk_bytes: 2048,
            chunks: 128,
            transmit_entries: 256,
            receive_entries: 16,
        },
        service: Service::Slice {
            slice: Slice::new(Nanos::from_millis(ms), period, false)?,
            weight: Weight::default(),
        },
        sender: Sender {
            mac,
            next_hop: Some(next_hop),
            longest: 1514,
            sends: Sends::Ports {
                transport: Transport::Udp,
                local,
                remote: Some(remote),
            },
        },
        matches: Vec::new(),
        reassembly: Reassembly::Complete,
        share: None,
    };
    let opened = turn.open(program, &open, monotonic())?;
    let flow = attachment.flow(opened.place)?;
    let (from, to) = (world.client().port().v4, world.server().port().v4);
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(mac.0, next_hop.0)
        .ipv4(from.octets(), to.octets(), 64)
        .udp(port, 9)
        .write(&mut frame, &[0; LENGTH - 42])?;
    Ok(Talker {
        attachment,
        flow,
        frame,
    })
}

fn slices(mode: Mode) -> Result<()> {
    let world = World::pair(Pair::default())?;
    let (link, far) = (
        open(world.client(), mode)?,
        open(world.server(), Mode::Fallback)?,
    );
    let rate = Rate::new(100_000_000).context("a rate")?;
    let mut turn = Turn::new(Wire::new(rate), link.interface().mac)?;
    let talkers: Result<Vec<Talker>> = SLICES
        .iter()
        .map(|ms| talker(&mut turn, &world, *ms, &link, &far))
        .collect();
    let mut server = Server::new(turn, link)?;
    let tap = Tap::start(&world.server().ns, &world.server().port().device)?;
    let stop = AtomicBool::new(false);
    let done: Result<()> = thread::scope(|scope| {
        let floods: Vec<_> = talkers?
            .into_iter()
            .map(|talker| scope.spawn(|| talker.flood(&stop)))
            .collect();
        let driver = scope.spawn(|| -> Result<()> {
            pace(None)?;
            let until = monotonic().0 + RUN.as_nanos() as u64;
            while monotonic().0 < until {
                server.round(Nanos::from_millis(10));
            }
            stop.store(true, Ordering::Relaxed);
            Ok(())
        });
        let broken = |_| anyhow!("a thread panicked");
        driver.join().map_err(broken)??;
        for flood in floods {
            flood.join().map_err(broken)??;
        }
        Ok(())
    });
    done?;
    let record = tap.stop(&world.server().ns)?;
    record.sound()?;
    let is_its = |port: u16| move |flow: &netnice_lab::wire::Flow| flow.source.1 == port;
    let first = record.first_of(is_its(5004)).context("nothing arrived")?;
    let (from, to) = (first + 200_000_000, first + 2_200_000_000);
    // A processor that is emulated cannot keep up with all six, but none gets more than its own.
    let short = if functional() { 1.0 } else { 0.03 };
    for ms in SLICES {
        let rate = record.rate(is_its(5000 + ms as u16), from, to) / 1e6;
        let off = rate / ms as f64 - 1.0;
        println!(
            "{mode:?}: slice {ms} ms of 100: {rate:.3} Mbit/s, {:+.2} %",
            off * 100.0
        );
        ensure!(
            rate > 0.0 && (-short..=0.03).contains(&off),
            "{ms} ms of 100: {rate:.3} Mbit/s"
        );
    }
    println!("{mode:?}: {:?}", server.spent());
    Ok(())
}

#[test]
fn six_programs_each_get_their_slice() {
    world::begin().expect("a clean machine");
    slices(Mode::Native).unwrap_or_else(|e| panic!("native: {e:#}"));
}

#[test]
fn also_where_there_is_no_af_xdp() {
    world::begin().expect("a clean machine");
    slices(Mode::Fallback).unwrap_or_else(|e| panic!("fallback: {e:#}"));
}

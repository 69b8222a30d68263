//! How fast the driver's turn sends, beside the bare link in the same run. Ignored: it wants a quiet machine.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use etherparse::PacketBuilder;
use netnice_core::contract::{Cell, Slice, Weight};
use netnice_core::sched::{Service, Wire};
use netnice_core::units::{self, Nanos, Rate};
use netnice_driver::demux::Reassembly;
use netnice_driver::frame::Mac;
use netnice_driver::link::{Link, Mode};
use netnice_driver::protocol::{EtherType, Transport};
use netnice_driver::template::{Sender, Sends, Template};
use netnice_driver::turn::{Open, Turn};
use netnice_lab::world::{self, Pair, World};
use netnice_ring::driver::Client;
use netnice_ring::layout::{Budget, Shape};
use netnice_ring::program::{Attachment, Flow, Piece};

const FLOWS: usize = 64;
const RECORDS: usize = 250;
const ROUNDS: usize = 12;
const LENGTH: usize = 1500;
const PEER: Mac = Mac([2, 0, 0, 0, 0, 9]);

/// Packets per second of the link alone, 32 at a time: nothing is copied but 14 bytes.
fn bare(link: &mut Link) -> Result<f64> {
    let own = link.interface().mac;
    let template = Template::new(&Sender {
        mac: own,
        next_hop: None,
        longest: 1514,
        sends: Sends::EtherType(EtherType::new(0x88b5)?),
    })?;
    let mut header = [0; 14];
    header[..6].copy_from_slice(&PEER.0);
    header[6..12].copy_from_slice(&own.0);
    header[12..].copy_from_slice(&[0x88, 0xb5]);
    let count = FLOWS * RECORDS;
    let begin = Instant::now();
    for _ in 0..count / 32 {
        for _ in 0..32 {
            let done = link.send(|frame| {
                frame[..14].copy_from_slice(&header);
                template.check(&mut frame[..LENGTH])
            });
            ensure!(done.context("room")?.is_ok());
        }
        link.flush()?;
    }
    Ok((count / 32 * 32) as f64 / begin.elapsed().as_secs_f64())
}

/// Contracts of every kind, all of them more than they can get.
fn service(k: usize) -> Result<Service> {
    let weight = Weight::default();
    let rate = |bits| Rate::new(bits).context("a rate");
    Ok(match k % 4 {
        0 => Service::best_effort(weight),
        1 => Service::Slice {
            slice: Slice::new(Nanos::from_micros(100), Nanos::from_millis(10), true)?,
            weight,
        },
        2 => Service::Cell(Cell::new(
            rate(1_500_000_000)?,
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

struct Programs {
    turn: Turn,
    flows: Vec<Flow>,
    frames: Vec<Vec<u8>>,
    _attachment: Attachment,
    begin: Instant,
}

impl Programs {
    fn new(own: Mac) -> Result<Programs> {
        let mut wire = Wire::new(Rate::new(100_000_000_000).context("a rate")?);
        wire.ahead = Nanos::from_micros(20);
        let mut turn = Turn::new(wire, own)?;
        let client = Client::create(Budget {
            flows: FLOWS as u32,
            bytes: (FLOWS * RECORDS * 2048 * 2) as u64,
        })?;
        let attachment = client.handles().attach()?;
        let program = turn.attach(client);
        let (mut flows, mut frames) = (Vec::new(), Vec::new());
        for k in 0..FLOWS {
            let port = 5000 + k as u16;
            let open = Open {
                shape: Shape {
                    chunk_bytes: 2048,
                    chunks: 256,
                    transmit_entries: 512,
                    receive_entries: 16,
                },
                service: service(k)?,
                sender: Sender {
                    mac: own,
                    next_hop: Some(PEER),
                    longest: 1514,
                    sends: Sends::Ports {
                        transport: Transport::Udp,
                        local: ([10, 77, 0, 1], port).into(),
                        remote: Some(([10, 77, 0, 2], 9).into()),
                    },
                },
                matches: Vec::new(),
                reassembly: Reassembly::Complete,
                share: None,
            };
            let opened = turn.open(program, &open, units::Instant(0))?;
            flows.push(attachment.flow(opened.place)?);
            let mut frame = Vec::new();
            PacketBuilder::ethernet2(own.0, PEER.0)
                .ipv4([10, 77, 0, 1], [10, 77, 0, 2], 64)
                .udp(port, 9)
                .write(&mut frame, &[0; LENGTH - 42])?;
            frames.push(frame);
        }
        Ok(Programs {
            turn,
            flows,
            frames,
            _attachment: attachment,
            begin: Instant::now(),
        })
    }

    /// Every ring is full again.
    fn fill(&mut self) -> Result<()> {
        for (flow, frame) in self.flows.iter_mut().zip(&self.frames) {
            while let Some(record) = flow.reclaim()? {
                ensure!(record.status().0 == 0, "{:?}", record.status());
                flow.free_all(&record)?;
            }
            for _ in 0..RECORDS {
                let chunk = flow.chunk().context("a chunk")?;
                flow.bytes_mut(chunk)?[..LENGTH].copy_from_slice(frame);
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

    /// Sends all that is in the rings; packets per second.
    fn drain(&mut self, link: &mut Link) -> Result<f64> {
        let before = link.sent();
        let wanted = (FLOWS * RECORDS) as u64;
        let begin = Instant::now();
        while link.sent() - before < wanted {
            let now = units::Instant(self.begin.elapsed().as_nanos() as u64);
            self.turn.transmit(link, now);
            link.flush()?;
            ensure!(
                begin.elapsed() < Duration::from_secs(5),
                "{:?}",
                link.counters()
            );
        }
        Ok(wanted as f64 / begin.elapsed().as_secs_f64())
    }
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn compare() -> Result<f64> {
    let world = World::pair(Pair::default())?;
    let client = world.client();
    let (mut link, _ear) = client
        .ns
        .enter(|| Ok(Link::open(&client.port().device, Some(Mode::Native))?))?;
    let mut programs = Programs::new(link.interface().mac)?;
    let (mut alone, mut with) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        alone.push(bare(&mut link)?);
        programs.fill()?;
        with.push(programs.drain(&mut link)?);
    }
    let (alone, with) = (median(alone), median(with));
    println!(
        "bare {:.0} k packets/s, {FLOWS} flows with contracts, copy and check {:.0} k: {:.3}",
        alone / 1e3,
        with / 1e3,
        with / alone
    );
    Ok(with / alone)
}

#[test]
#[ignore = "wants a quiet machine"]
fn the_turn_sends_at_least_065_of_what_the_bare_link_does() {
    world::begin().expect("a clean machine");
    let ratio = compare().expect("a comparison");
    assert!(ratio >= 0.65, "{ratio:.3} of the bare link");
}

//! Programs that break the rules of `docs/reference/ring.md`, and come back when they are expelled.
//!
//! A [`Rogue`] knows that page and nothing else: it writes its memory as bytes, at the page's offsets, so it shares no code
//! with the ring. A [`Prison`] is a thread beside the driver's, as the control thread of `netnice-driver`: it lets rogues in, and
//! says by which rule they were expelled.

use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use netnice_driver::orders::Orders;
use netnice_driver::turn::{Open, ProgramNo};
use netnice_ring::driver::Client;
use netnice_ring::layout::{Budget, Place};

use crate::direct::shared::Shared;
use crate::process::PATIENCE;
use crate::sys;

/// What can be broken so that the driver sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crime {
    /// A producer index goes back.
    ProducerBack,
    /// A producer index runs ahead of the ring.
    ProducerPast,
    /// A consumer index goes back.
    ConsumerBack,
    /// A consumer index passes what was produced.
    ConsumerPast,
    /// A record of no pairs.
    NoPairs,
    /// A record of more pairs than there can be.
    ManyPairs,
    /// A record of which a part is shown.
    HalfRecord,
    /// A stamp that is not the program's to write.
    Stamp,
    /// Bits of the note that mean nothing.
    Note,
    /// The reserved word of a pair.
    Reserved,
    /// A base that is no multiple of 8.
    Unaligned,
    /// A pair of no bytes.
    Empty,
    /// A pair outside of the data area.
    Foreign,
    /// A pair whose end wraps around.
    Wrapping,
    /// A pair across the end of a chunk.
    Crossing,
    /// A chunk that the driver has already.
    Twice,
}

impl Crime {
    /// All of them.
    pub const ALL: [Crime; 16] = [
        Crime::ProducerBack,
        Crime::ProducerPast,
        Crime::ConsumerBack,
        Crime::ConsumerPast,
        Crime::NoPairs,
        Crime::ManyPairs,
        Crime::HalfRecord,
        Crime::Stamp,
        Crime::Note,
        Crime::Reserved,
        Crime::Unaligned,
        Crime::Empty,
        Crime::Foreign,
        Crime::Wrapping,
        Crime::Crossing,
        Crime::Twice,
    ];

    /// The number of the rule in `docs/reference/ring.md`.
    pub fn must(self) -> u32 {
        match self {
            Crime::ProducerBack => 20,
            Crime::ProducerPast => 21,
            Crime::ConsumerBack => 22,
            Crime::ConsumerPast => 23,
            Crime::NoPairs | Crime::ManyPairs => 30,
            Crime::HalfRecord => 31,
            Crime::Stamp | Crime::Note | Crime::Reserved => 32,
            Crime::Unaligned => 40,
            Crime::Empty => 41,
            Crime::Foreign | Crime::Wrapping => 42,
            Crime::Crossing => 43,
            Crime::Twice => 44,
        }
    }
}

/// A program with one flow that writes what it likes.
pub struct Rogue {
    memory: Arc<Shared>,
    file: File,
    bell: File,
    place: Place,
    /// A packet that its flow may send.
    frame: Vec<u8>,
    /// The submit ring's producer index, and the reclaim ring's consumer index.
    ends: (u32, u32),
}

/// What a driver's thread passes to a rogue.
struct Inmate {
    memory: Arc<Shared>,
    file: OwnedFd,
    bell: OwnedFd,
    place: Place,
}

/// The door of one rogue into the driver.
pub struct Cell {
    enter: Sender<()>,
    entered: Receiver<Result<Inmate>>,
    expelled: Receiver<u32>,
    frame: Vec<u8>,
}

/// The other side of the doors.
pub struct Prison {
    doors: Vec<Door>,
}

struct Door {
    open: Open,
    asked: Receiver<()>,
    enter: Sender<Result<Inmate>>,
    expelled: Sender<u32>,
    present: Option<ProgramNo>,
}

impl Prison {
    /// With a cell for each flow that is described, and a packet that it may send.
    pub fn new(flows: Vec<(Open, Vec<u8>)>) -> (Prison, Vec<Cell>) {
        let pair = |(open, frame): (Open, Vec<u8>)| {
            let (enter, asked) = mpsc::channel();
            let (let_in, entered) = mpsc::channel();
            let (tell, expelled) = mpsc::channel();
            let door = Door {
                open,
                asked,
                enter: let_in,
                expelled: tell,
                present: None,
            };
            let cell = Cell {
                enter,
                entered,
                expelled,
                frame,
            };
            (door, cell)
        };
        let (doors, cells) = flows.into_iter().map(pair).unzip();
        (Prison { doors }, cells)
    }

    /// Lets rogues in and out as long as somebody has a cell.
    pub fn guard(mut self, mut orders: Orders) -> Result<()> {
        while !self.doors.is_empty() {
            while let Some(expelled) = orders.poll_expelled()? {
                orders.detach(expelled.program)?;
                let of = |door: &&mut Door| door.present == Some(expelled.program);
                if let Some(door) = self.doors.iter_mut().find(of) {
                    door.present = None;
                    // A rogue that is gone does not want to know.
                    let _ = door.expelled.send(expelled.breach.must());
                }
            }
            self.doors.retain_mut(|door| match door.asked.try_recv() {
                Ok(()) => {
                    let entered = door.let_in(&mut orders);
                    door.enter.send(entered).is_ok()
                }
                Err(TryRecvError::Empty) => true,
                Err(TryRecvError::Disconnected) => false,
            });
            // Who asks rings no bell.
            sys::readable(orders.told().as_raw_fd(), 1);
        }
        Ok(())
    }
}

impl Door {
    fn let_in(&mut self, orders: &mut Orders) -> Result<Inmate> {
        if let Some(before) = self.present.take() {
            orders.detach(before)?;
        }
        let mut client = Client::create(Budget {
            flows: 1,
            bytes: self.open.shape.plan()?.bytes(),
        })?;
        let copy = |fd: BorrowedFd| fd.try_clone_to_owned();
        let (memory, bell) = (client.handles().memory, client.handles().to_driver);
        let (file, bell) = (copy(memory)?, copy(bell)?);
        // As the rogue does before it asks for a flow.
        let file = File::from(file);
        let memory = Arc::new(Shared::map(&file)?);
        client.seal()?;
        let program = orders.attach(client)?.map_err(anyhow::Error::msg)?;
        self.present = Some(program);
        let opened = orders.open(program, self.open.clone())?;
        let opened = opened.map_err(anyhow::Error::msg)?;
        Ok(Inmate {
            memory,
            file: file.into(),
            bell,
            place: opened.place,
        })
    }
}

impl Cell {
    /// A new life.
    pub fn enter(&self) -> Result<Rogue> {
        while self.expelled.try_recv().is_ok() {}
        self.enter.send(()).context("the driver is gone")?;
        let inmate = self.entered.recv().context("the driver is gone")??;
        Ok(Rogue {
            memory: inmate.memory,
            file: inmate.file.into(),
            bell: inmate.bell.into(),
            place: inmate.place,
            frame: self.frame.clone(),
            ends: (0, 0),
        })
    }

    /// By which rule it was expelled.
    pub fn verdict(&self) -> Result<u32> {
        let said = self.expelled.recv_timeout(PATIENCE);
        said.context("the driver did not expel a program that broke a rule")
    }

    /// Whether it was expelled already.
    pub fn was_expelled(&self) -> Option<u32> {
        self.expelled.try_recv().ok()
    }

    /// One life of a criminal: some records that are right, and then the crime. The driver must name the rule.
    pub fn commit(&self, crime: Crime) -> Result<()> {
        let mut rogue = self.enter()?;
        rogue.commit(crime)?;
        let must = self.verdict().with_context(|| format!("{crime:?}"))?;
        ensure!(
            must == crime.must(),
            "{crime:?}: expelled by R{must}, not R{}",
            crime.must()
        );
        Ok(())
    }
}

impl Rogue {
    /// Some records that are right, and then the crime.
    pub fn commit(&mut self, crime: Crime) -> Result<()> {
        match crime {
            Crime::ConsumerBack => return self.collect_wrongly(u32::MAX),
            Crime::ConsumerPast => return self.collect_wrongly(1_000_000),
            _ => {}
        }
        for chunk in 0..GOOD {
            self.good(chunk)?;
        }
        self.show()?;
        self.await_sent()?;
        let (pair, length) = (|base, length| (base, length, 0), self.frame.len() as u32);
        let chunk = u64::from(self.place.shape.chunk_bytes);
        let area = self.place.shape.area_bytes();
        match crime {
            Crime::ProducerBack => self.ends.0 -= 1,
            Crime::ProducerPast => self.ends.0 += self.place.shape.transmit_entries + 1,
            Crime::ConsumerBack | Crime::ConsumerPast => {}
            Crime::NoPairs => self.record((0, 0, 0), &[pair(0, length)])?,
            Crime::ManyPairs => self.record((9, 0, 0), &[pair(0, length)])?,
            Crime::HalfRecord => self.record((2, 0, 0), &[pair(0, length)])?,
            Crime::Stamp => self.record((1, 0, 1), &[pair(0, length)])?,
            Crime::Note => self.record((1, 2, 0), &[pair(0, length)])?,
            Crime::Reserved => self.record((1, 0, 0), &[(0, length, 1)])?,
            Crime::Unaligned => self.record((1, 0, 0), &[pair(4, length)])?,
            Crime::Empty => self.record((1, 0, 0), &[pair(0, 0)])?,
            Crime::Foreign => self.record((1, 0, 0), &[pair(area, length)])?,
            Crime::Wrapping => self.record((1, 0, 0), &[pair(u64::MAX - 7, length)])?,
            Crime::Crossing => self.record((1, 0, 0), &[pair(chunk - 8, 16)])?,
            Crime::Twice => {
                self.record((1, 0, 0), &[pair(0, length)])?;
                self.record((1, 0, 0), &[pair(0, length)])?;
            }
        }
        self.show()
    }

    /// A consumer index that cannot be. The driver looks at it when it needs to know what room there is: when the ring was full
    /// once.
    fn collect_wrongly(&mut self, index: u32) -> Result<()> {
        self.ends.1 = index;
        for _ in 0..self.place.shape.transmit_entries {
            for chunk in 0..GOOD {
                self.good(chunk)?;
            }
            self.show()?;
            let until = Instant::now() + Duration::from_millis(100);
            while self.read(RECLAIM_PRODUCER)? != self.ends.0 {
                if Instant::now() > until {
                    return Ok(());
                }
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        Ok(())
    }

    /// A record that is right, of a chunk that is its own.
    pub fn good(&mut self, chunk: u64) -> Result<()> {
        let base = chunk * u64::from(self.place.shape.chunk_bytes);
        self.write(self.place.shape.plan()?.area() + base, &self.frame.clone())?;
        self.record((1, 0, 0), &[(base, self.frame.len() as u32, 0)])
    }

    /// A record of a head (count, note, stamp) and pairs (base, length, reserved).
    fn record(&mut self, head: (u32, u32, u64), pairs: &[(u64, u32, u32)]) -> Result<()> {
        let mut entries = vec![[0; 16]; 1];
        entries[0][..4].copy_from_slice(&head.0.to_ne_bytes());
        entries[0][4..8].copy_from_slice(&head.1.to_ne_bytes());
        entries[0][8..].copy_from_slice(&head.2.to_ne_bytes());
        for (base, length, reserved) in pairs {
            let mut entry = [0; 16];
            entry[..8].copy_from_slice(&base.to_ne_bytes());
            entry[8..12].copy_from_slice(&length.to_ne_bytes());
            entry[12..].copy_from_slice(&reserved.to_ne_bytes());
            entries.push(entry);
        }
        let count = self.place.shape.transmit_entries;
        for entry in entries {
            let at = ENTRIES + u64::from(self.ends.0 % count) * 16;
            self.write(at, &entry)?;
            self.ends.0 = self.ends.0.wrapping_add(1);
        }
        Ok(())
    }

    /// Shows both indices, raises the notice, and rings.
    pub fn show(&mut self) -> Result<()> {
        self.write(SUBMIT_PRODUCER, &self.ends.0.to_ne_bytes())?;
        self.write(RECLAIM_CONSUMER, &self.ends.1.to_ne_bytes())?;
        let slot = self.place.slot;
        let word = TO_DRIVER + u64::from(slot / 64) * 8;
        self.memory
            .write(word, &(1_u64 << (slot % 64)).to_ne_bytes())?;
        self.ring()
    }

    /// Rings, asked or not.
    pub fn ring(&self) -> Result<()> {
        match std::io::Write::write(&mut &self.bell, &1_u64.to_ne_bytes()) {
            Ok(_) => Ok(()),
            // Nobody took the rings before: it is loud enough.
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => Ok(()),
            Err(e) => Err(e).context("cannot ring"),
        }
    }

    /// Rings as the rules want it, though there is nothing to say: takes the flag first. False if the driver does not sleep.
    pub fn answer(&self) -> Result<bool> {
        let flag: [u8; 4] = self.memory.read(DRIVER_SLEEPS)?;
        let sleeps = flag != [0; 4];
        if sleeps {
            self.memory.write(DRIVER_SLEEPS, &[0; 4])?;
            self.ring()?;
        }
        Ok(sleeps)
    }

    /// Sets notices of flows in which nothing is new.
    pub fn notify(&self) -> Result<()> {
        self.memory.write(TO_DRIVER, &[0xff; 8])
    }

    /// Collects what came back, so that the chunks are its own again. True if something did.
    pub fn collect(&mut self) -> Result<bool> {
        let there = self.read(RECLAIM_PRODUCER)?;
        let moved = there != self.ends.1;
        self.ends.1 = there;
        Ok(moved)
    }

    /// Waits until all that was shown came back.
    pub fn await_sent(&mut self) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        while self.read(RECLAIM_PRODUCER)? != self.ends.0 {
            if Instant::now() > until {
                bail!("records that are right do not come back");
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        self.collect()?;
        self.show()
    }

    /// Overwrites some bytes of a chunk, whoever has it.
    pub fn scratch(&self, chunk: u64, at: u64, bytes: &[u8]) -> Result<()> {
        let base = chunk * u64::from(self.place.shape.chunk_bytes);
        self.write(self.place.shape.plan()?.area() + base + at, bytes)
    }

    /// Overwrites what only the driver may write: the label of the flow, and the driver's own indices.
    pub fn deface(&self, with: u32) -> Result<()> {
        for at in (0..0x40).step_by(4).chain((0x180..0x280).step_by(0x40)) {
            self.write(at, &with.to_ne_bytes())?;
        }
        Ok(())
    }

    /// Its memory file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The same, as it maps it.
    pub fn memory(&self) -> &Shared {
        &self.memory
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.memory.write(self.place.offset + at, bytes)
    }

    fn read(&self, at: u64) -> Result<u32> {
        let bytes = self.memory.read(self.place.offset + at)?;
        Ok(u32::from_ne_bytes(bytes))
    }
}

/// Records that are right, before a crime.
const GOOD: u64 = 4;
/// Offsets of `docs/reference/ring.md`, in the file and in a flow's region.
const DRIVER_SLEEPS: u64 = 0x40;
const TO_DRIVER: u64 = 0x200;
const SUBMIT_PRODUCER: u64 = 0x080;
const RECLAIM_CONSUMER: u64 = 0x0c0;
const RECLAIM_PRODUCER: u64 = 0x1c0;
const ENTRIES: u64 = 0x280;

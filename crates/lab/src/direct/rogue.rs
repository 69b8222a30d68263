//! Programs that break the rules of `docs/reference/ring.md`, and attach again after they are
//! disconnected.
//!
//! A [`Rogue`] writes its memory as bytes, at the offsets of that page, so it shares no code with
//! the ring. A [`Prison`] is a thread that does the work of `netnice-driver`'s control thread: it
//! attaches rogues, and reports the rule for which the driver disconnected them.

use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use netnice_driver::commands::CommandSender;
use netnice_driver::datapath::{FlowParameters, ProgramNo};
use netnice_ring::driver::Client;
use netnice_ring::layout::{Budget, Place};

use crate::direct::shared::Shared;
use crate::process::PATIENCE;
use crate::sys;

/// The protocol violations that the driver can detect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crime {
    /// A producer index decreases.
    ProducerBack,
    /// A producer index is more than the ring's size ahead.
    ProducerPast,
    /// A consumer index decreases.
    ConsumerBack,
    /// A consumer index is ahead of the producer index.
    ConsumerPast,
    /// A record without pairs.
    NoPairs,
    /// A record with more pairs than allowed.
    ManyPairs,
    /// A record that is published in part.
    HalfRecord,
    /// A stamp that the program must not write.
    Stamp,
    /// Undefined bits of the note.
    Note,
    /// The reserved word of a pair is not zero.
    Reserved,
    /// A base that is not a multiple of 8.
    Unaligned,
    /// A pair of zero bytes.
    Empty,
    /// A pair outside the data area.
    Foreign,
    /// A pair whose end wraps around.
    Wrapping,
    /// A pair across the end of a chunk.
    Crossing,
    /// A chunk that the driver already has.
    Twice,
}

impl Crime {
    /// All violations.
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

    /// The number of the violated rule in `docs/reference/ring.md`.
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

/// A program with one flow that writes arbitrary bytes.
pub struct Rogue {
    memory: Arc<Shared>,
    file: File,
    bell: File,
    place: Place,
    /// A frame that its flow may send.
    frame: Vec<u8>,
    /// The submit ring's producer index, and the reclaim ring's consumer index.
    ends: (u32, u32),
}

/// The memory and doorbell that [`Prison`] passes to a new rogue.
struct Inmate {
    memory: Arc<Shared>,
    file: OwnedFd,
    bell: OwnedFd,
    place: Place,
}

/// The interface through which one rogue attaches to the driver.
pub struct Cell {
    enter: Sender<()>,
    entered: Receiver<Result<Inmate>>,
    expelled: Receiver<u32>,
    frame: Vec<u8>,
}

/// The control thread's side of all cells.
pub struct Prison {
    doors: Vec<Door>,
}

struct Door {
    open: FlowParameters,
    asked: Receiver<()>,
    enter: Sender<Result<Inmate>>,
    expelled: Sender<u32>,
    present: Option<ProgramNo>,
}

impl Prison {
    /// Makes a cell for each flow description and a frame that the flow may send.
    pub fn new(flows: Vec<(FlowParameters, Vec<u8>)>) -> (Prison, Vec<Cell>) {
        let pair = |(open, frame): (FlowParameters, Vec<u8>)| {
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

    /// Attaches and detaches rogues until all cells are dropped. Fails if the driver is gone.
    pub fn guard(mut self, mut orders: CommandSender) -> Result<()> {
        while !self.doors.is_empty() {
            while let Some(expelled) = orders.poll_disconnected()? {
                orders.detach(expelled.program)?;
                let of = |door: &&mut Door| door.present == Some(expelled.program);
                if let Some(door) = self.doors.iter_mut().find(of) {
                    door.present = None;
                    // The rogue may be gone already.
                    let _ = door.expelled.send(expelled.violation.must());
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
            // Requests through the channels do not wake this thread, so it polls every millisecond.
            sys::readable(orders.wakeup_fd().as_raw_fd(), 1);
        }
        Ok(())
    }
}

impl Door {
    fn let_in(&mut self, orders: &mut CommandSender) -> Result<Inmate> {
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
        // A program maps its memory before it requests a flow; sealing comes after it.
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
            place: opened.location,
        })
    }
}

impl Cell {
    /// Attaches a new rogue; an attached one is detached first.
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

    /// Waits until the driver disconnected the rogue; returns the number of the violated rule.
    pub fn verdict(&self) -> Result<u32> {
        let said = self.expelled.recv_timeout(PATIENCE);
        said.context("the driver did not expel a program that broke a rule")
    }

    /// The number of the violated rule, if the driver has disconnected the rogue.
    pub fn was_expelled(&self) -> Option<u32> {
        self.expelled.try_recv().ok()
    }

    /// Attaches a rogue that sends some valid records and then commits the violation. Fails unless
    /// the driver reports the right rule.
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
    /// Sends some valid records and then commits the violation.
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

    /// Writes an invalid consumer index. The driver reads this index only if it needs the free
    /// space, which is after the ring was full once, hence the valid records.
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

    /// Writes a valid record of a chunk that belongs to the program.
    pub fn good(&mut self, chunk: u64) -> Result<()> {
        let base = chunk * u64::from(self.place.shape.chunk_bytes);
        self.write(self.place.shape.plan()?.area() + base, &self.frame.clone())?;
        self.record((1, 0, 0), &[(base, self.frame.len() as u32, 0)])
    }

    /// Writes a record: its head (count, note, stamp) and its pairs (base, length, reserved).
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

    /// Publishes both indices, sets the notice, and rings the doorbell.
    pub fn show(&mut self) -> Result<()> {
        self.write(SUBMIT_PRODUCER, &self.ends.0.to_ne_bytes())?;
        self.write(RECLAIM_CONSUMER, &self.ends.1.to_ne_bytes())?;
        let slot = self.place.slot;
        let word = TO_DRIVER + u64::from(slot / 64) * 8;
        self.memory
            .write(word, &(1_u64 << (slot % 64)).to_ne_bytes())?;
        self.ring()
    }

    /// Rings the doorbell even if the driver does not sleep.
    pub fn ring(&self) -> Result<()> {
        match std::io::Write::write(&mut &self.bell, &1_u64.to_ne_bytes()) {
            Ok(_) => Ok(()),
            // The counter is full because the driver did not read it; the doorbell is readable
            // anyway.
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => Ok(()),
            Err(e) => Err(e).context("cannot ring"),
        }
    }

    /// Rings as the rules require, without new records: clears the driver's sleep flag first.
    /// Returns `false` if the driver does not sleep.
    pub fn answer(&self) -> Result<bool> {
        let flag: [u8; 4] = self.memory.read(DRIVER_SLEEPS)?;
        let sleeps = flag != [0; 4];
        if sleeps {
            self.memory.write(DRIVER_SLEEPS, &[0; 4])?;
            self.ring()?;
        }
        Ok(sleeps)
    }

    /// Sets notices of flows without anything new.
    pub fn notify(&self) -> Result<()> {
        self.memory.write(TO_DRIVER, &[0xff; 8])
    }

    /// Reclaims all returned records, so that the program owns their chunks again. Returns whether
    /// there were any.
    pub fn collect(&mut self) -> Result<bool> {
        let there = self.read(RECLAIM_PRODUCER)?;
        let moved = there != self.ends.1;
        self.ends.1 = there;
        Ok(moved)
    }

    /// Waits until all published records came back.
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

    /// Overwrites bytes of a chunk, whether the driver has it or not.
    pub fn scratch(&self, chunk: u64, at: u64, bytes: &[u8]) -> Result<()> {
        let base = chunk * u64::from(self.place.shape.chunk_bytes);
        self.write(self.place.shape.plan()?.area() + base + at, bytes)
    }

    /// Overwrites memory that only the driver may write: the label of the flow, and the driver's
    /// own indices.
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

    /// The mapping of the memory file.
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

/// Number of valid records before a violation.
const GOOD: u64 = 4;
/// Offsets from `docs/reference/ring.md`, in the file and in a flow's region.
const DRIVER_SLEEPS: u64 = 0x40;
const TO_DRIVER: u64 = 0x200;
const SUBMIT_PRODUCER: u64 = 0x080;
const RECLAIM_CONSUMER: u64 = 0x0c0;
const RECLAIM_PRODUCER: u64 = 0x1c0;
const ENTRIES: u64 = 0x280;

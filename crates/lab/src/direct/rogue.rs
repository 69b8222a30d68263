//! Programs that violate the rules of `docs/reference/ring.md` on purpose, and attach again after
//! the driver has disconnected them.
//!
//! A [`Rogue`] writes rings and indices as bytes, at the offsets in that document, so no check of
//! the ring library prevents a violation. A [`Supervisor`] takes the part of `netnice-driver`'s
//! control thread: it attaches a rogue to the driver when the rogue's [`RogueHandle`] requests
//! this. If the driver disconnects the rogue, the supervisor passes the number of the violated rule
//! to the handle.
//!
//! [`RogueHandle::commit`] fails if the driver does not return the valid records before it, or does
//! not disconnect the rogue for the right rule. Accesses fail if they are outside the memory file.
//! An attachment fails if the memory cannot be made or the driver refuses it. All requests fail if
//! the driver or the supervisor has ended.

use std::fs::File;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use netnice_driver::commands::CommandSender;
use netnice_driver::datapath::{FlowParameters, ProgramNo};
use netnice_ring::driver::ProgramMemory;
use netnice_ring::layout::{Budget, FlowLocation};

use crate::direct::shared::Shared;
use crate::process::EVENT_TIMEOUT;
use crate::sys;

/// A kind of protocol violation that the driver detects and for which it disconnects the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Violation {
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
    /// A record whose head says 9 pairs; 8 are allowed.
    ManyPairs,
    /// A record that is published only in part.
    HalfRecord,
    /// The stamp of a submitted record is not zero.
    Stamp,
    /// An undefined bit of the note is set.
    Note,
    /// The reserved word of a pair is not zero.
    Reserved,
    /// A base that is not a multiple of 8.
    Unaligned,
    /// A pair of zero bytes.
    Empty,
    /// A pair behind the end of the data area.
    Foreign,
    /// A pair whose end overflows 64 bits.
    Wrapping,
    /// A pair across the end of a chunk.
    Crossing,
    /// A chunk in two records, so the driver already has it at the second one.
    Twice,
}

impl Violation {
    /// All violations.
    pub const ALL: [Violation; 16] = [
        Violation::ProducerBack,
        Violation::ProducerPast,
        Violation::ConsumerBack,
        Violation::ConsumerPast,
        Violation::NoPairs,
        Violation::ManyPairs,
        Violation::HalfRecord,
        Violation::Stamp,
        Violation::Note,
        Violation::Reserved,
        Violation::Unaligned,
        Violation::Empty,
        Violation::Foreign,
        Violation::Wrapping,
        Violation::Crossing,
        Violation::Twice,
    ];

    /// The number of the rule in `docs/reference/ring.md` that this violation breaks: 20 means R20.
    pub fn rule(self) -> u32 {
        match self {
            Violation::ProducerBack => 20,
            Violation::ProducerPast => 21,
            Violation::ConsumerBack => 22,
            Violation::ConsumerPast => 23,
            Violation::NoPairs | Violation::ManyPairs => 30,
            Violation::HalfRecord => 31,
            Violation::Stamp | Violation::Note | Violation::Reserved => 32,
            Violation::Unaligned => 40,
            Violation::Empty => 41,
            Violation::Foreign | Violation::Wrapping => 42,
            Violation::Crossing => 43,
            Violation::Twice => 44,
        }
    }
}

/// A program with one flow that writes arbitrary bytes into its memory.
pub struct Rogue {
    memory: Arc<Shared>,
    file: File,
    doorbell: File,
    place: FlowLocation,
    /// A frame that its flow may send.
    frame: Vec<u8>,
    /// The submit ring's producer index, and the reclaim ring's consumer index.
    indices: (u32, u32),
}

/// The memory and doorbell that [`Supervisor`] passes to a new rogue.
struct AttachedMemory {
    memory: Arc<Shared>,
    file: OwnedFd,
    doorbell: OwnedFd,
    place: FlowLocation,
}

/// The interface through which one rogue attaches to the driver.
pub struct RogueHandle {
    requests: Sender<()>,
    attached: Receiver<Result<AttachedMemory>>,
    violated_rules: Receiver<u32>,
    frame: Vec<u8>,
}

/// Attaches and detaches rogues, as the control thread of a driver does. It has the other ends of
/// all [`RogueHandle`]s.
pub struct Supervisor {
    slots: Vec<RogueSlot>,
}

/// The supervisor's end of a [`RogueHandle`].
struct RogueSlot {
    open: FlowParameters,
    requests: Receiver<()>,
    attached: Sender<Result<AttachedMemory>>,
    violated_rules: Sender<u32>,
    present: Option<ProgramNo>,
}

impl Supervisor {
    /// Makes a supervisor of rogues with one flow each, and a handle for each rogue. A rogue is
    /// given by the parameters of its flow and a frame that the flow may send.
    pub fn new(flows: Vec<(FlowParameters, Vec<u8>)>) -> (Supervisor, Vec<RogueHandle>) {
        let pair = |(open, frame): (FlowParameters, Vec<u8>)| {
            let (request, requests) = mpsc::channel();
            let (attach, attached) = mpsc::channel();
            let (report_rule, violated_rules) = mpsc::channel();
            let slot = RogueSlot {
                open,
                requests,
                attached: attach,
                violated_rules: report_rule,
                present: None,
            };
            let handle = RogueHandle {
                requests: request,
                attached,
                violated_rules,
                frame,
            };
            (slot, handle)
        };
        let (slots, handles) = flows.into_iter().map(pair).unzip();
        (Supervisor { slots }, handles)
    }

    /// Attaches and detaches rogues until all handles are dropped. Fails if the driver has ended.
    pub fn run(mut self, mut commands: CommandSender) -> Result<()> {
        while !self.slots.is_empty() {
            while let Some(disconnected) = commands.poll_disconnected()? {
                commands.detach(disconnected.program)?;
                let of = |slot: &&mut RogueSlot| slot.present == Some(disconnected.program);
                if let Some(slot) = self.slots.iter_mut().find(of) {
                    slot.present = None;
                    // The rogue may have ended already.
                    let _ = slot
                        .violated_rules
                        .send(disconnected.violation.rule_number());
                }
            }
            self.slots
                .retain_mut(|slot| match slot.requests.try_recv() {
                    Ok(()) => {
                        let attached = slot.attach(&mut commands);
                        slot.attached.send(attached).is_ok()
                    }
                    Err(TryRecvError::Empty) => true,
                    Err(TryRecvError::Disconnected) => false,
                });
            // Requests through the channels do not wake this thread, so it polls every millisecond.
            sys::readable(commands.wakeup_fd(), Duration::from_millis(1));
        }
        Ok(())
    }
}

impl RogueSlot {
    fn attach(&mut self, commands: &mut CommandSender) -> Result<AttachedMemory> {
        if let Some(before) = self.present.take() {
            commands.detach(before)?;
        }
        let mut client = ProgramMemory::create(Budget {
            flows: 1,
            bytes: self.open.shape.plan()?.bytes(),
        })?;
        let copy = |fd: BorrowedFd| fd.try_clone_to_owned();
        let (memory, doorbell) = (client.handles().memory, client.handles().to_driver);
        let (file, doorbell) = (copy(memory)?, copy(doorbell)?);
        // A program maps its memory before it requests a flow; sealing comes after it.
        let file = File::from(file);
        let memory = Arc::new(Shared::map(&file)?);
        client.seal()?;
        let program = commands.attach(client)?.map_err(anyhow::Error::msg)?;
        self.present = Some(program);
        let opened = commands.open(program, self.open.clone())?;
        let opened = opened.map_err(anyhow::Error::msg)?;
        Ok(AttachedMemory {
            memory,
            file: file.into(),
            doorbell,
            place: opened.location,
        })
    }
}

impl RogueHandle {
    /// Attaches a new rogue; if the handle has an attached one, that one is detached first. Fails
    /// if the supervisor or the driver has ended, if the memory cannot be made or mapped, or if the
    /// driver refuses the program or its flow.
    pub fn attach(&self) -> Result<Rogue> {
        while self.violated_rules.try_recv().is_ok() {}
        self.requests.send(()).context("the driver has ended")?;
        let attached = self.attached.recv().context("the driver has ended")??;
        Ok(Rogue {
            memory: attached.memory,
            file: attached.file.into(),
            doorbell: attached.doorbell.into(),
            place: attached.place,
            frame: self.frame.clone(),
            indices: (0, 0),
        })
    }

    /// Waits until the driver has disconnected the rogue; returns the number of the violated rule.
    /// Fails after [`EVENT_TIMEOUT`], or if the supervisor has ended.
    pub(crate) fn await_disconnect(&self) -> Result<u32> {
        let rule = self.violated_rules.recv_timeout(EVENT_TIMEOUT);
        rule.context("the driver did not disconnect a program that violated a rule")
    }

    /// The number of the rule for which the driver disconnected the rogue. `None` if the driver did
    /// not disconnect it, or if an earlier call returned the number.
    pub fn violated_rule(&self) -> Option<u32> {
        self.violated_rules.try_recv().ok()
    }

    /// Attaches a rogue that commits the violation as [`Rogue::commit`] does. Fails unless the
    /// driver then disconnects the rogue for the right rule.
    pub fn commit(&self, violation: Violation) -> Result<()> {
        let mut rogue = self.attach()?;
        rogue.commit(violation)?;
        let rule = self
            .await_disconnect()
            .with_context(|| format!("{violation:?}"))?;
        ensure!(
            rule == violation.rule(),
            "{violation:?}: the driver names rule R{rule}, not R{}",
            violation.rule()
        );
        Ok(())
    }
}

impl Rogue {
    /// Commits the violation: after some valid records, or, for an invalid consumer index, together
    /// with valid records. Fails if the driver does not return the valid records.
    pub(crate) fn commit(&mut self, violation: Violation) -> Result<()> {
        match violation {
            Violation::ConsumerBack => return self.write_invalid_consumer(u32::MAX),
            Violation::ConsumerPast => return self.write_invalid_consumer(1_000_000),
            _ => {}
        }
        for chunk in 0..VALID_RECORDS {
            self.write_valid_record(chunk)?;
        }
        self.publish()?;
        self.await_sent()?;
        let (pair, length) = (|base, length| (base, length, 0), self.frame.len() as u32);
        let chunk = u64::from(self.place.shape.chunk_bytes);
        let area = self.place.shape.area_bytes();
        match violation {
            Violation::ProducerBack => self.indices.0 -= 1,
            Violation::ProducerPast => self.indices.0 += self.place.shape.transmit_entries + 1,
            Violation::ConsumerBack | Violation::ConsumerPast => {}
            Violation::NoPairs => self.record((0, 0, 0), &[pair(0, length)])?,
            Violation::ManyPairs => self.record((9, 0, 0), &[pair(0, length)])?,
            Violation::HalfRecord => self.record((2, 0, 0), &[pair(0, length)])?,
            Violation::Stamp => self.record((1, 0, 1), &[pair(0, length)])?,
            Violation::Note => self.record((1, 8, 0), &[pair(0, length)])?,
            Violation::Reserved => self.record((1, 0, 0), &[(0, length, 1)])?,
            Violation::Unaligned => self.record((1, 0, 0), &[pair(4, length)])?,
            Violation::Empty => self.record((1, 0, 0), &[pair(0, 0)])?,
            Violation::Foreign => self.record((1, 0, 0), &[pair(area, length)])?,
            Violation::Wrapping => self.record((1, 0, 0), &[pair(u64::MAX - 7, length)])?,
            Violation::Crossing => self.record((1, 0, 0), &[pair(chunk - 8, 16)])?,
            Violation::Twice => {
                self.record((1, 0, 0), &[pair(0, length)])?;
                self.record((1, 0, 0), &[pair(0, length)])?;
            }
        }
        self.publish()
    }

    /// Writes an invalid consumer index. The driver reads this index only when it needs free space
    /// in the ring, which it does once it has returned as many entries as the ring has. So the
    /// rogue submits valid records until the driver returns no more.
    fn write_invalid_consumer(&mut self, index: u32) -> Result<()> {
        self.indices.1 = index;
        for _ in 0..self.place.shape.transmit_entries {
            for chunk in 0..VALID_RECORDS {
                self.write_valid_record(chunk)?;
            }
            self.publish()?;
            let until = Instant::now() + Duration::from_millis(100);
            while self.read(RECLAIM_PRODUCER)? != self.indices.0 {
                if Instant::now() > until {
                    return Ok(());
                }
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        Ok(())
    }

    /// Writes a valid record of the chunk with this number, without publishing the record. The
    /// program must have the chunk. The record holds the rogue's frame. Fails if the chunk or the
    /// ring is not inside the memory file.
    pub fn write_valid_record(&mut self, chunk: u64) -> Result<()> {
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
            let at = ENTRIES + u64::from(self.indices.0 % count) * 16;
            self.write(at, &entry)?;
            self.indices.0 = self.indices.0.wrapping_add(1);
        }
        Ok(())
    }

    /// Publishes the submit ring's producer index and the reclaim ring's consumer index, sets the
    /// notice of the flow, and writes the driver's doorbell. Fails if the indices are not inside
    /// the memory file, or if the doorbell cannot be written.
    pub fn publish(&mut self) -> Result<()> {
        self.write(SUBMIT_PRODUCER, &self.indices.0.to_ne_bytes())?;
        self.write(RECLAIM_CONSUMER, &self.indices.1.to_ne_bytes())?;
        let slot = self.place.slot;
        let word = TO_DRIVER + u64::from(slot / 64) * 8;
        self.memory
            .write(word, &(1_u64 << (slot % 64)).to_ne_bytes())?;
        self.write_doorbell()
    }

    /// Writes the driver's doorbell even if the driver does not sleep. Fails if the write fails for
    /// another reason than a full counter.
    pub fn write_doorbell(&self) -> Result<()> {
        match std::io::Write::write(&mut &self.doorbell, &1_u64.to_ne_bytes()) {
            Ok(_) => Ok(()),
            // The counter is full because the driver did not read it; the doorbell is readable
            // anyway.
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => Ok(()),
            Err(e) => Err(e).context("cannot write the doorbell"),
        }
    }

    /// Notifies the driver as the rules require, without new records: clears the driver's sleeping
    /// flag first. Returns `false`, without a notification, if the driver does not sleep. Fails as
    /// [`Rogue::publish`] does.
    pub fn wake_driver(&self) -> Result<bool> {
        let flag: [u8; 4] = self.memory.read(DRIVER_SLEEPS)?;
        let sleeps = flag != [0; 4];
        if sleeps {
            self.memory.write(DRIVER_SLEEPS, &[0; 4])?;
            self.write_doorbell()?;
        }
        Ok(sleeps)
    }

    /// Sets the notices of the first 64 flow slots, although no flow has new records. Fails if the
    /// notices are not inside the memory file.
    pub fn set_false_notices(&self) -> Result<()> {
        self.memory.write(TO_DRIVER, &[0xff; 8])
    }

    /// Reclaims all returned records, so that the program has their chunks again; the next
    /// [`Rogue::publish`] publishes this. Returns whether there were any. Fails if the index is not
    /// inside the memory file.
    pub fn reclaim(&mut self) -> Result<bool> {
        let there = self.read(RECLAIM_PRODUCER)?;
        let moved = there != self.indices.1;
        self.indices.1 = there;
        Ok(moved)
    }

    /// Waits until the driver has returned all published records, and reclaims them. Fails after
    /// [`EVENT_TIMEOUT`], and as [`Rogue::publish`] does.
    pub fn await_sent(&mut self) -> Result<()> {
        let until = Instant::now() + EVENT_TIMEOUT;
        while self.read(RECLAIM_PRODUCER)? != self.indices.0 {
            if Instant::now() > until {
                bail!("the driver does not return valid records");
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        self.reclaim()?;
        self.publish()
    }

    /// Overwrites bytes of a chunk from its offset `at` (in bytes) on, whether the driver has the
    /// chunk or not. Fails if the range is not inside the memory file.
    pub fn overwrite_chunk(&self, chunk: u64, at: u64, bytes: &[u8]) -> Result<()> {
        let base = chunk * u64::from(self.place.shape.chunk_bytes);
        self.write(self.place.shape.plan()?.area() + base + at, bytes)
    }

    /// Fills all chunks with a fixed byte, except the first `used` bytes of each. `used` is in
    /// bytes, at most the size of a chunk. Fails if the chunks are not inside the memory file.
    pub fn fill_canary(&self, used: u64) -> Result<()> {
        let (at, shape) = (self.place.shape.plan()?.area(), self.place.shape);
        for chunk in 0..u64::from(shape.chunks) {
            let from = chunk * u64::from(shape.chunk_bytes) + used;
            let bytes = vec![CANARY; (u64::from(shape.chunk_bytes) - used) as usize];
            self.write(at + from, &bytes)?;
        }
        Ok(())
    }

    /// Fails if a byte that [`Rogue::fill_canary`] wrote has changed, or if the chunks are not
    /// inside the memory file. `used` is the number of bytes at the start of each chunk that are
    /// not checked, the same as for `fill_canary`; it must be a multiple of 64.
    pub fn check_canary(&self, used: u64) -> Result<()> {
        let (at, shape) = (self.place.shape.plan()?.area(), self.place.shape);
        for chunk in 0..u64::from(shape.chunks) {
            let base = chunk * u64::from(shape.chunk_bytes);
            for from in (used..u64::from(shape.chunk_bytes)).step_by(64) {
                let bytes: [u8; 64] = self.memory.read(self.place.offset + at + base + from)?;
                ensure!(
                    bytes == [CANARY; 64],
                    "the driver wrote into chunk {chunk} behind byte {from}: {bytes:02x?}"
                );
            }
        }
        Ok(())
    }

    /// Writes the 32-bit word `with` repeatedly over those parts of the flow's region that only the
    /// driver may write: the description of the flow (the first 64 bytes), and the first word of
    /// each of the driver's own indices. Fails if the region is not inside the memory file.
    pub fn overwrite_driver_memory(&self, with: u32) -> Result<()> {
        for at in (0..0x40).step_by(4).chain((0x180..0x280).step_by(0x40)) {
            self.write(at, &with.to_ne_bytes())?;
        }
        Ok(())
    }

    /// The memory file of the program.
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
const VALID_RECORDS: u64 = 4;
/// The byte of [`Rogue::fill_canary`].
const CANARY: u8 = 0xc5;
/// Offsets from `docs/reference/ring.md`, in the file and in a flow's region.
const DRIVER_SLEEPS: u64 = 0x40;
const TO_DRIVER: u64 = 0x200;
const SUBMIT_PRODUCER: u64 = 0x080;
const RECLAIM_CONSUMER: u64 = 0x0c0;
const RECLAIM_PRODUCER: u64 = 0x1c0;
const ENTRIES: u64 = 0x280;

//! Tests the driver's side against a hostile program, with scenarios that are decoded from bytes.
//!
//! A scenario is a sequence of steps of both sides on one flow, and of writes of any value to its
//! indices and entries. [`outcome_of`] runs one and returns how it ends. It panics if the driver's
//! side accepts a record outside the data area or with a chunk of another record, writes a byte
//! outside the record that it fills, miscounts its chunks, or cannot give back a record that it
//! took. The tests and the fuzz target `ring` of `fuzz/` call the same function.

use super::{BothSides, piece};
use crate::driver::{DriverRings, Taken};
use crate::layout::{Ring, Shape};
use crate::record::{Record, Status};
use crate::violation::ProtocolViolation;

/// The shape of the flow in all scenarios.
pub(super) const SHAPE: Shape = Shape {
    chunk_bytes: 64,
    chunks: 12,
    transmit_entries: 16,
    receive_entries: 16,
};

/// A step of the program or of the driver. `which` chooses one of the records that the driver
/// holds.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Submit { pieces: usize, length: u32 },
    Prime { pieces: usize },
    ProgramPublish,
    Reclaim,
    Receive,
    Take,
    TakeEmpty,
    GiveBack { which: usize },
    Deliver { which: usize, length: usize },
    DriverPublish,
}

/// A write of the hostile program: an index of a ring, or the two words of an entry.
#[derive(Clone, Debug)]
pub(super) enum Corruption {
    Producer(Ring, u32),
    Consumer(Ring, u32),
    Entry(Ring, u32, [u64; 2]),
    Nothing,
}

/// Checks the properties that every accepted record must have, whatever the ring contained.
fn check_record(record: &Record, driver: &DriverRings, held: &[Record]) {
    let chunk = |base: u32| base / SHAPE.chunk_bytes;
    let mut seen = Vec::new();
    for pair in record.pairs() {
        assert!(pair.length >= 1 && pair.base % 8 == 0);
        let end = u64::from(pair.base) + u64::from(pair.length);
        assert!(end <= SHAPE.area_bytes());
        assert_eq!(chunk(pair.base), chunk((end - 1) as u32));
        seen.push(chunk(pair.base));
    }
    let others = held.iter().flat_map(|record| record.pairs());
    seen.extend(others.map(|pair| chunk(pair.base)));
    let all = seen.len();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), all, "a chunk belongs to two records");
    assert_eq!(driver.balance().in_use as usize, all);
}

/// Checks that a write of `length` bytes into a record changed no byte of the data area outside the
/// beginning of the record.
fn check_written(record: &Record, length: usize, before: &[u8], after: &[u8]) {
    let mut expected = before.to_vec();
    let mut left = length;
    for pair in record.pairs() {
        let from = pair.base as usize;
        let part = from..from + left.min(pair.length as usize);
        left -= part.len();
        expected[part.clone()].copy_from_slice(&after[part]);
    }
    assert_eq!(left, 0, "the record is shorter than the packet");
    assert!(expected == after, "a byte outside the record changed");
}

/// A scenario on one flow, and the records and packets that are in flight in it.
pub(super) struct Scenario {
    pub(super) both: BothSides,
    /// The records of the transmit channel (`full`) and of the receive channel (`empty`) that the
    /// driver holds.
    full: Vec<Record>,
    empty: Vec<Record>,
    /// Submitted packets that the driver has not taken: the value of every byte, and the length.
    sent: std::collections::VecDeque<(u8, usize)>,
    delivered: std::collections::VecDeque<(u8, usize)>,
    number: u8,
    check_packets: bool,
    /// The rule of docs/reference/ring.md that the program broke.
    broken_rule: Option<u32>,
}

impl Scenario {
    /// A scenario whose indices begin at `start`. With `check_packets` the content of packets is
    /// compared too.
    pub(super) fn new(start: u32, check_packets: bool) -> Scenario {
        Scenario {
            both: BothSides::new(SHAPE, start),
            full: Vec::new(),
            empty: Vec::new(),
            sent: Default::default(),
            delivered: Default::default(),
            number: 0,
            check_packets,
            broken_rule: None,
        }
    }

    /// Runs one step. False if a side broke a rule: the scenario ends.
    pub(super) fn step(&mut self, step: &Step) -> bool {
        match *step {
            Step::Submit { pieces, length } => self.hand_over(pieces, Some(length)),
            Step::Prime { pieces } => self.hand_over(pieces, None),
            Step::ProgramPublish => {
                self.both.program.publish();
                true
            }
            Step::Reclaim => match self.both.program.reclaim() {
                Ok(Some(record)) => self.both.program.free_all(&record).is_ok(),
                other => other.is_ok(),
            },
            Step::Receive => self.receive(),
            Step::Take => self.take(),
            Step::TakeEmpty => match self.both.driver.take_empty() {
                Ok(Taken::Record(record)) => {
                    self.check(&record);
                    self.empty.push(record);
                    true
                }
                other => self.record_violation(other),
            },
            Step::GiveBack { which } if !self.full.is_empty() => {
                let record = self.full.swap_remove(which % self.full.len());
                self.both.driver.give_back(&record, Status::DONE, 1);
                true
            }
            Step::Deliver { which, length } if !self.empty.is_empty() => {
                let record = self.empty.swap_remove(which % self.empty.len());
                let length = length.min(record.bytes());
                self.number = self.number.wrapping_add(1);
                let bytes = vec![self.number; length];
                let before = self.both.data_area();
                assert_eq!(self.both.driver.write(&record, 0, &bytes), length);
                check_written(&record, length, &before, &self.both.data_area());
                self.both.driver.deliver(record, length, Status::DONE, 1);
                self.delivered.push_back((self.number, length));
                true
            }
            Step::GiveBack { .. } | Step::Deliver { .. } => true,
            Step::DriverPublish => {
                self.both.driver.publish();
                true
            }
        }
    }

    fn check(&self, record: &Record) {
        let held: Vec<Record> = self.full.iter().chain(&self.empty).cloned().collect();
        check_record(record, &self.both.driver, &held);
    }

    fn hand_over(&mut self, pieces: usize, fill: Option<u32>) -> bool {
        let program = &mut self.both.program;
        let mut chunks = Vec::new();
        while chunks.len() < pieces
            && let Some(chunk) = program.chunk()
        {
            chunks.push(chunk);
        }
        let length = fill.unwrap_or(SHAPE.chunk_bytes);
        let pieces: Vec<_> = chunks
            .iter()
            .map(|chunk| piece(*chunk, 0, length))
            .collect();
        let done = match fill {
            Some(_) => {
                self.number = self.number.wrapping_add(1);
                for chunk in &chunks {
                    program.bytes_mut(*chunk).expect("held").fill(self.number);
                }
                program.submit(&pieces, false)
            }
            None => program.prime(&pieces),
        };
        if done.is_err() {
            for chunk in chunks {
                program.free(chunk).expect("held");
            }
        } else if fill.is_some() {
            self.sent
                .push_back((self.number, pieces.len() * length as usize));
        }
        !matches!(done, Err(crate::program::RecordError::Flow(_)))
    }

    fn take(&mut self) -> bool {
        match self.both.driver.take() {
            Ok(Taken::Record(record)) => {
                self.check(&record);
                let bytes = self.both.read(&record);
                if self.check_packets {
                    let (byte, length) = self.sent.pop_front().expect("the packet was submitted");
                    assert_eq!(bytes, vec![byte; length]);
                }
                self.full.push(record);
                true
            }
            other => self.record_violation(other),
        }
    }

    /// Stores the number of the rule that the driver found broken. True if it found none.
    fn record_violation(&mut self, taken: Result<Taken, ProtocolViolation>) -> bool {
        self.broken_rule = taken.err().map(|violation| violation.rule_number());
        self.broken_rule.is_none()
    }

    fn receive(&mut self) -> bool {
        match self.both.program.receive() {
            Ok(Some(record)) => {
                if self.check_packets {
                    let (byte, length) = self
                        .delivered
                        .pop_front()
                        .expect("the packet was delivered");
                    assert_eq!(record.bytes(), length);
                    for pair in record.pairs() {
                        let piece = self.both.program.piece(pair);
                        let bytes = self.both.program.bytes(piece.chunk).expect("held");
                        assert!(
                            bytes[..piece.length as usize]
                                .iter()
                                .all(|seen| *seen == byte)
                        );
                    }
                }
                self.both.program.free_all(&record).is_ok()
            }
            other => other.is_ok(),
        }
    }

    /// Writes what a hostile program writes.
    pub(super) fn corrupt(&mut self, corruption: &Corruption) {
        match *corruption {
            Corruption::Producer(ring, index) => self.both.set_producer(ring, index),
            Corruption::Consumer(ring, index) => self.both.set_consumer(ring, index),
            Corruption::Entry(ring, at, words) => self.both.set_entry(ring, at, words),
            Corruption::Nothing => {}
        }
    }

    /// Ends the scenario. The driver must always be able to give back the records that it holds.
    pub(super) fn end(mut self) {
        for record in self.full.drain(..) {
            self.both.driver.give_back(&record, Status::DONE, 0);
        }
        for record in self.empty.drain(..) {
            self.both.driver.deliver(record, 0, Status::UNUSED, 0);
        }
        self.both.driver.publish();
        self.both.invariants();
        assert_eq!(self.both.driver.balance().in_use, 0);
    }
}

/// The first index of all rings: indices wrap after 21 entries.
pub(super) const START: u32 = u32::MAX - 20;

/// The bytes that encode a scenario. The scenario ends where the bytes end.
struct Script<'a>(std::slice::Iter<'a, u8>);

impl Script<'_> {
    fn byte(&mut self) -> Option<u8> {
        self.0.next().copied()
    }

    /// A number below 0xf0 in one byte, or any number in nine bytes.
    fn number(&mut self) -> Option<u64> {
        let first = self.byte()?;
        if first < 0xf0 {
            return Some(first.into());
        }
        let bytes: Option<Vec<u8>> = (0..8).map(|_| self.byte()).collect();
        Some(u64::from_le_bytes(bytes?.try_into().ok()?))
    }

    fn ring(&mut self) -> Option<Ring> {
        Some(Ring::ALL[usize::from(self.byte()? % 4)])
    }

    /// An index near `start`, or any index.
    fn index(&mut self, start: u32) -> Option<u32> {
        Some(start.wrapping_add(self.number()? as u32).wrapping_sub(2))
    }

    fn next(&mut self, start: u32) -> Option<(Corruption, Step)> {
        let kind = self.byte()? % 14;
        let corruption = match kind {
            10 => Corruption::Producer(self.ring()?, self.index(start)?),
            11 => Corruption::Consumer(self.ring()?, self.index(start)?),
            12 => Corruption::Entry(
                self.ring()?,
                u32::from(self.byte()? % 16),
                [self.number()?, self.number()?],
            ),
            // As 12, but the base is a multiple of the chunk size, like most bases.
            13 => Corruption::Entry(
                self.ring()?,
                u32::from(self.byte()? % 16),
                [
                    self.number()?.wrapping_mul(u64::from(SHAPE.chunk_bytes)),
                    self.number()?,
                ],
            ),
            _ => Corruption::Nothing,
        };
        let step = match kind {
            0 => Step::Submit {
                pieces: 1 + usize::from(self.byte()? % 8),
                length: 1 + u32::from(self.byte()? % 64),
            },
            1 => Step::Prime {
                pieces: 1 + usize::from(self.byte()? % 8),
            },
            2 => Step::ProgramPublish,
            3 => Step::Reclaim,
            4 => Step::Receive,
            5 => Step::TakeEmpty,
            6 => Step::GiveBack {
                which: self.byte()?.into(),
            },
            7 => Step::Deliver {
                which: self.byte()?.into(),
                length: self.number()? as usize,
            },
            8 => Step::DriverPublish,
            _ => Step::Take,
        };
        Some((corruption, step))
    }
}

/// Runs the scenario that `bytes` encode, and returns how it ends: the rule of
/// docs/reference/ring.md that the program breaks (`r31`), `program` if the program's side finds
/// its own rings corrupted, or `whole` if the scenario runs to its last step.
///
/// # Panics
/// If the driver's side breaks one of the properties in the documentation of this module.
pub fn outcome_of(bytes: &[u8]) -> String {
    let mut script = Script(bytes.iter());
    let start = if script.byte().is_some_and(|byte| byte % 2 == 1) {
        START
    } else {
        0
    };
    let mut scenario = Scenario::new(start, false);
    let mut continues = true;
    while continues && let Some((corruption, step)) = script.next(start) {
        scenario.corrupt(&corruption);
        continues = scenario.step(&step);
        scenario.both.driver.invariants();
    }
    let end = match (continues, scenario.broken_rule) {
        (true, _) => "whole".to_owned(),
        (false, Some(number)) => format!("r{number}"),
        // The program's side found its own rings corrupted.
        (false, None) => "program".to_owned(),
    };
    scenario.end();
    end
}

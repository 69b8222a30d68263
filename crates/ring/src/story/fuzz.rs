//! The driver's side against a program that writes what it likes into its memory.
//!
//! A story is a run of steps on one flow: honest ones of both sides, and a hand that writes indices and entries
//! (near what is right, far from it, or anything at all) in between. Whatever happens,
//!
//! - no call panics, and each does bounded work;
//! - a record that is accepted lies inside the data area, in chunks that nobody else has;
//! - the ledger balances, and a record that was taken can be given back, always;
//! - with honest steps alone there is no breach, and every packet arrives as it was sent.

mod script;

use netnice_cases::cases;
use proptest::prelude::*;

use super::{Both, piece};
use crate::breach::Breach;
use crate::driver::{Flow, Taken};
use crate::layout::{Ring, Shape};
use crate::record::{Record, Status};

const SHAPE: Shape = Shape {
    chunk_bytes: 64,
    chunks: 12,
    transmit_entries: 16,
    receive_entries: 16,
};

#[derive(Clone, Debug)]
enum Step {
    Submit { pieces: usize, length: u32 },
    Prime { pieces: usize },
    ProgramShows,
    Reclaim,
    Receive,
    Take,
    TakeEmpty,
    GiveBack { which: usize },
    Deliver { which: usize, length: usize },
    DriverShows,
}

#[derive(Clone, Debug)]
enum Poke {
    Producer(Ring, u32),
    Consumer(Ring, u32),
    Entry(Ring, u32, [u64; 2]),
    Nothing,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1usize..=8, 1u32..=64).prop_map(|(pieces, length)| Step::Submit { pieces, length }),
        4 => (1usize..=8).prop_map(|pieces| Step::Prime { pieces }),
        4 => Just(Step::ProgramShows),
        3 => Just(Step::Reclaim),
        3 => Just(Step::Receive),
        4 => Just(Step::Take),
        4 => Just(Step::TakeEmpty),
        3 => any::<usize>().prop_map(|which| Step::GiveBack { which }),
        3 => (any::<usize>(), 0usize..600).prop_map(|(which, length)| Step::Deliver { which, length }),
        4 => Just(Step::DriverShows),
    ]
}

fn ring() -> impl Strategy<Value = Ring> {
    prop::sample::select(&Ring::ALL[..])
}

/// Numbers near 0, near every power of two, and any.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        0u64..40,
        (0u32..64, 0u64..5).prop_map(|(bit, off)| (1u64 << bit).wrapping_add(off).wrapping_sub(2)),
        any::<u64>(),
    ]
}

fn entry() -> impl Strategy<Value = [u64; 2]> {
    let base = prop_oneof![4 => (0u64..14).prop_map(|chunk| 64 * chunk), 1 => number()];
    prop_oneof![
        // A head with a count that may be.
        3 => (1u64..9).prop_map(|count| [count, 0]),
        // A pair that may be.
        3 => (base, prop_oneof![4 => 0u64..66, 1 => number()]).prop_map(|(base, length)| [base, length]),
        1 => [number(), number()],
    ]
}

fn poke(start: u32) -> impl Strategy<Value = Poke> {
    let index = move || {
        prop_oneof![
            4 => (0u32..40).prop_map(move |off| start.wrapping_add(off).wrapping_sub(2)),
            1 => any::<u32>(),
        ]
    };
    prop_oneof![
        6 => (ring(), 0u32..16, entry()).prop_map(|(ring, at, words)| Poke::Entry(ring, at, words)),
        2 => (ring(), index()).prop_map(|(ring, index)| Poke::Producer(ring, index)),
        2 => (ring(), index()).prop_map(|(ring, index)| Poke::Consumer(ring, index)),
        6 => Just(Poke::Nothing),
    ]
}

/// What a record that was accepted must be, whatever lay in the ring.
fn judge_again(record: &Record, driver: &Flow, held: &[Record]) {
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
    assert_eq!(seen.len(), all, "a chunk in two hands");
    assert_eq!(driver.balance().in_use as usize, all);
}

/// The story of one flow; true if it came to its end without a breach.
struct Story {
    both: Both,
    /// What the driver holds, of each channel.
    full: Vec<Record>,
    empty: Vec<Record>,
    /// What was submitted and has not been taken: the first byte of each, and the length.
    sent: std::collections::VecDeque<(u8, usize)>,
    delivered: std::collections::VecDeque<(u8, usize)>,
    number: u8,
    honest: bool,
    /// The MUST of docs/ring.md that the program broke.
    broken: Option<u32>,
}

impl Story {
    fn new(start: u32, honest: bool) -> Story {
        Story {
            both: Both::new(SHAPE, start),
            full: Vec::new(),
            empty: Vec::new(),
            sent: Default::default(),
            delivered: Default::default(),
            number: 0,
            honest,
            broken: None,
        }
    }

    /// False if somebody broke a rule: the story is over.
    fn step(&mut self, step: &Step) -> bool {
        match *step {
            Step::Submit { pieces, length } => self.hand_over(pieces, Some(length)),
            Step::Prime { pieces } => self.hand_over(pieces, None),
            Step::ProgramShows => {
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
                    self.judge(&record);
                    self.empty.push(record);
                    true
                }
                other => self.goes_on(other),
            },
            Step::GiveBack { which } if !self.full.is_empty() => {
                let record = self.full.swap_remove(which % self.full.len());
                self.both.driver.give_back(record, Status::DONE, 1);
                true
            }
            Step::Deliver { which, length } if !self.empty.is_empty() => {
                let record = self.empty.swap_remove(which % self.empty.len());
                let length = length.min(record.bytes());
                self.number = self.number.wrapping_add(1);
                let bytes = vec![self.number; length];
                assert_eq!(self.both.driver.write(&record, 0, &bytes), length);
                self.both.driver.deliver(record, length, Status::DONE, 1);
                self.delivered.push_back((self.number, length));
                true
            }
            Step::GiveBack { .. } | Step::Deliver { .. } => true,
            Step::DriverShows => {
                self.both.driver.publish();
                true
            }
        }
    }

    fn judge(&self, record: &Record) {
        let held: Vec<Record> = self.full.iter().chain(&self.empty).cloned().collect();
        judge_again(record, &self.both.driver, &held);
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
        let parts: Vec<_> = chunks
            .iter()
            .map(|chunk| piece(*chunk, 0, length))
            .collect();
        let done = match fill {
            Some(_) => {
                self.number = self.number.wrapping_add(1);
                for chunk in &chunks {
                    program.bytes_mut(*chunk).expect("held").fill(self.number);
                }
                program.submit(&parts, false)
            }
            None => program.prime(&parts),
        };
        if done.is_err() {
            for chunk in chunks {
                program.free(chunk).expect("held");
            }
        } else if fill.is_some() {
            self.sent
                .push_back((self.number, parts.len() * length as usize));
        }
        !matches!(done, Err(crate::program::Refused::Fault(_)))
    }

    fn take(&mut self) -> bool {
        match self.both.driver.take() {
            Ok(Taken::Record(record)) => {
                self.judge(&record);
                let bytes = self.both.read(&record);
                if self.honest {
                    let (byte, length) = self.sent.pop_front().expect("somebody submitted it");
                    assert_eq!(bytes, vec![byte; length]);
                }
                self.full.push(record);
                true
            }
            other => self.goes_on(other),
        }
    }

    /// Whether the driver found nothing wrong.
    fn goes_on(&mut self, taken: Result<Taken, Breach>) -> bool {
        self.broken = taken.err().map(|breach| breach.must());
        self.broken.is_none()
    }

    fn receive(&mut self) -> bool {
        match self.both.program.receive() {
            Ok(Some(record)) => {
                if self.honest {
                    let (byte, length) = self.delivered.pop_front().expect("somebody delivered it");
                    assert_eq!(record.bytes(), length);
                    for pair in record.pairs() {
                        let part = self.both.program.piece(pair);
                        let bytes = self.both.program.bytes(part.chunk).expect("held");
                        assert!(
                            bytes[..part.length as usize]
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

    fn poke(&mut self, poke: &Poke) {
        match *poke {
            Poke::Producer(ring, index) => self.both.set_producer(ring, index),
            Poke::Consumer(ring, index) => self.both.set_consumer(ring, index),
            Poke::Entry(ring, at, words) => self.both.set_entry(ring, at, words),
            Poke::Nothing => {}
        }
    }

    /// The driver can always let go.
    fn end(mut self) {
        for record in self.full.drain(..) {
            self.both.driver.give_back(record, Status::DONE, 0);
        }
        for record in self.empty.drain(..) {
            self.both.driver.deliver(record, 0, Status::UNUSED, 0);
        }
        self.both.driver.publish();
        self.both.invariants();
        assert_eq!(self.both.driver.balance().in_use, 0);
    }
}

const START: u32 = u32::MAX - 20;
/// The longest story.
const STEPS: usize = if cfg!(miri) { 12 } else { 200 };

proptest! {
    #![proptest_config(cases(100))]

    #[test]
    fn honest_sides_break_nothing_and_lose_nothing(steps in prop::collection::vec(step(), 0..STEPS)) {
        let mut story = Story::new(START, true);
        for step in &steps {
            prop_assert!(story.step(step), "{:?}", step);
            story.both.invariants();
        }
        story.end();
    }

    #[test]
    fn whatever_a_program_writes(steps in prop::collection::vec((poke(START), step()), 0..STEPS)) {
        let mut story = Story::new(START, false);
        for (poke, step) in &steps {
            story.poke(poke);
            let goes_on = story.step(step);
            story.both.driver.invariants();
            if !goes_on {
                break;
            }
        }
        story.end();
    }

    /// Any memory at all: every word of the rings and indices is drawn.
    #[test]
    fn any_state_of_the_rings(
        entries in prop::collection::vec(entry(), 64),
        indices in prop::array::uniform8(number()),
        calls in 1usize..20,
    ) {
        let mut story = Story::new(0, false);
        for (place, words) in (0..).zip(&entries) {
            story.both.set_entry(Ring::ALL[place as usize / 16], place % 16, *words);
        }
        for (place, index) in indices.iter().enumerate() {
            // Mostly such as could be.
            let index = *index as u32 % if place % 3 == 0 { u32::MAX } else { 40 };
            match place {
                0..4 => story.both.set_producer(Ring::ALL[place], index),
                _ => story.both.set_consumer(Ring::ALL[place - 4], index),
            }
        }
        for _ in 0..calls {
            if !story.step(&Step::Take) || !story.step(&Step::TakeEmpty) {
                break;
            }
            story.both.driver.invariants();
        }
        story.end();
    }
}

//! Stories told by bytes. Those in `corpus` are told with every test, each in a file named after how it
//! ends: with the MUST of docs/ring.md that it breaks, or whole. The property tells stories near them.

use netnice_cases::Corpus;
use proptest::prelude::*;

use super::*;

/// Bytes that say what happens next, and with what; nothing happens behind their end.
struct Script<'a>(std::slice::Iter<'a, u8>);

impl Script<'_> {
    fn byte(&mut self) -> Option<u8> {
        self.0.next().copied()
    }

    /// Small in one byte, or any in nine.
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

    /// Near the start, or anywhere.
    fn index(&mut self, start: u32) -> Option<u32> {
        Some(start.wrapping_add(self.number()? as u32).wrapping_sub(2))
    }

    fn next(&mut self, start: u32) -> Option<(Poke, Step)> {
        let kind = self.byte()? % 14;
        let poke = match kind {
            10 => Poke::Producer(self.ring()?, self.index(start)?),
            11 => Poke::Consumer(self.ring()?, self.index(start)?),
            12 => Poke::Entry(
                self.ring()?,
                u32::from(self.byte()? % 16),
                [self.number()?, self.number()?],
            ),
            // The same in chunks, as bases mostly are.
            13 => Poke::Entry(
                self.ring()?,
                u32::from(self.byte()? % 16),
                [
                    self.number()?.wrapping_mul(u64::from(SHAPE.chunk_bytes)),
                    self.number()?,
                ],
            ),
            _ => Poke::Nothing,
        };
        let step = match kind {
            0 => Step::Submit {
                pieces: 1 + usize::from(self.byte()? % 8),
                length: 1 + u32::from(self.byte()? % 64),
            },
            1 => Step::Prime {
                pieces: 1 + usize::from(self.byte()? % 8),
            },
            2 => Step::ProgramShows,
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
            8 => Step::DriverShows,
            _ => Step::Take,
        };
        Some((poke, step))
    }
}

/// Tells a story, and how it ended.
fn told(bytes: &[u8]) -> String {
    let mut script = Script(bytes.iter());
    let start = if script.byte().is_some_and(|byte| byte % 2 == 1) {
        START
    } else {
        0
    };
    let mut story = Story::new(start, false);
    let mut goes_on = true;
    while goes_on && let Some((poke, step)) = script.next(start) {
        story.poke(&poke);
        goes_on = story.step(&step);
        story.both.driver.invariants();
    }
    let end = match (goes_on, story.broken) {
        (true, _) => "whole".to_owned(),
        (false, Some(must)) => format!("r{must}"),
        // The program found its own rings spoilt.
        (false, None) => "program".to_owned(),
    };
    story.end();
    end
}

fn corpus() -> Corpus {
    Corpus::of(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"))
}

#[test]
#[cfg_attr(miri, ignore = "reads files")]
fn stories_that_are_kept_end_as_they_did() {
    corpus().replay(told, &ENDS);
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    #[cfg_attr(miri, ignore = "reads files")]
    fn stories_near_those_that_are_kept(bytes in corpus().near()) {
        told(&bytes);
    }
}

/// Every rule that a program can break, and what else a story ends with.
const ENDS: [&str; 14] = [
    "r20", "r21", "r22", "r23", "r30", "r31", "r32", "r40", "r41", "r42", "r43", "r44", "whole",
    "program",
];

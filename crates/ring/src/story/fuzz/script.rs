//! Stories told by bytes. Those in `corpus` are told with every test, each in a file named after how it
//! ends: with the MUST of docs/ring.md that it breaks, or whole. The property tells stories near them.

use std::path::PathBuf;

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

/// What is kept: how each ends, and its bytes.
fn corpus() -> Vec<(String, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let files = std::fs::read_dir(folder).expect("the corpus is there");
    let mut all: Vec<_> = files
        .map(|file| {
            let path = file.expect("read").path();
            let name = path.file_stem().expect("a name").to_string_lossy();
            let end = name.split('-').next().unwrap_or_default().to_owned();
            (end, std::fs::read(&path).expect("read"))
        })
        .collect();
    all.sort();
    all
}

#[test]
#[cfg_attr(miri, ignore = "reads files")]
fn stories_that_are_kept_end_as_they_did() {
    let mut ends = std::collections::BTreeSet::new();
    for (end, bytes) in corpus() {
        assert_eq!(told(&bytes), end, "{bytes:?}");
        ends.insert(end);
    }
    // Every rule that a program can break, once at least.
    for must in [20, 21, 22, 23, 30, 31, 32, 40, 41, 42, 43, 44] {
        assert!(ends.contains(&format!("r{must}")), "R{must}: {ends:?}");
    }
    assert!(
        ends.contains("whole") && ends.contains("program"),
        "{ends:?}"
    );
}

/// One of those that are kept, with some bytes changed, put in or taken out.
fn near() -> impl Strategy<Value = Vec<u8>> {
    let change = (any::<prop::sample::Index>(), any::<u8>(), 0..3_u8);
    let kept: Vec<Vec<u8>> = corpus().into_iter().map(|(_, bytes)| bytes).collect();
    let changes = prop::collection::vec(change, 0..8);
    (prop::sample::select(kept), changes).prop_map(|(mut bytes, changes)| {
        for (at, byte, how) in changes {
            let at = at.index(bytes.len().max(1));
            match how {
                0 if at < bytes.len() => bytes[at] = byte,
                1 if at < bytes.len() => drop(bytes.remove(at)),
                _ => bytes.insert(at, byte),
            }
        }
        bytes
    })
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    #[cfg_attr(miri, ignore = "reads files")]
    fn stories_near_those_that_are_kept(bytes in near()) {
        told(&bytes);
    }
}

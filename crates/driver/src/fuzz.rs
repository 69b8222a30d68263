//! How many cases a property is tried with, the frames that it is tried on, and the inputs that are kept.
//!
//! What a stranger can send is judged from bytes. In `corpus/TARGET` are inputs that are judged again with every test, each in a
//! file named after what comes of it (`checksum-2.bin`); a property tries what is near them. What it finds is kept there as one more.

use std::path::PathBuf;

use proptest::prelude::*;

/// So many, or as many as `make fuzz` asks for.
pub(crate) fn cases(usual: u32) -> ProptestConfig {
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => ProptestConfig::default(),
        None => ProptestConfig::with_cases(usual),
    }
}

/// What a wrong frame was made from a right one by.
#[derive(Clone, Debug)]
pub(crate) enum Damage {
    /// One byte has another value.
    Byte(prop::sample::Index, u8),
    /// It ends early.
    Cut(prop::sample::Index),
    /// Something follows it.
    Tail(Vec<u8>),
}

impl Damage {
    /// Mostly in the headers, where it matters.
    pub(crate) fn any() -> impl Strategy<Value = Damage> {
        prop_oneof![
            8 => (any::<prop::sample::Index>(), any::<u8>()).prop_map(|(at, to)| Damage::Byte(at, to)),
            1 => any::<prop::sample::Index>().prop_map(Damage::Cut),
            1 => prop::collection::vec(any::<u8>(), 1..40).prop_map(Damage::Tail),
        ]
    }

    pub(crate) fn strike(&self, frame: &mut Vec<u8>) {
        match self {
            Damage::Byte(..) | Damage::Cut(_) if frame.is_empty() => {}
            Damage::Byte(at, to) => {
                let headers = frame.len().min(HEADERS);
                frame[at.index(headers)] = *to;
            }
            Damage::Cut(at) => frame.truncate(at.index(frame.len())),
            Damage::Tail(tail) => frame.extend(tail),
        }
    }
}

/// What is kept for a target: what comes of each, and its bytes.
pub(crate) fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let files = std::fs::read_dir(folder.join("corpus").join(target)).expect("it is there");
    let mut all: Vec<_> = files
        .map(|file| {
            let path = file.expect("read").path();
            let name = path.file_stem().expect("a name").to_string_lossy();
            let (outcome, _) = name.rsplit_once('-').expect("an outcome and a number");
            (outcome.to_owned(), std::fs::read(&path).expect("read"))
        })
        .collect();
    all.sort();
    all
}

/// Judges all that is kept for a target; panics unless that comes of it which came of it when it was kept, and each of these
/// outcomes is there.
pub(crate) fn replay(target: &str, judged: impl Fn(&[u8]) -> String, outcomes: &[&str]) {
    let kept = corpus(target);
    for (outcome, bytes) in &kept {
        assert_eq!(judged(bytes), *outcome, "{target}: {bytes:02x?}");
    }
    for wanted in outcomes {
        assert!(
            kept.iter().any(|(outcome, _)| outcome == wanted),
            "{target}: {wanted}"
        );
    }
}

/// One of those that are kept, with some bytes changed, put in or taken out.
pub(crate) fn near(target: &str) -> impl Strategy<Value = Vec<u8>> + use<> {
    let kept: Vec<Vec<u8>> = corpus(target).into_iter().map(|(_, bytes)| bytes).collect();
    let change = (any::<prop::sample::Index>(), any::<u8>(), 0..4_u8);
    let changes = prop::collection::vec(change, 0..6);
    (prop::sample::select(kept), changes).prop_map(|(mut bytes, changes)| {
        for (at, byte, how) in changes {
            let at = at.index(bytes.len().max(1));
            match how {
                0 | 1 if at < bytes.len() => bytes[at] = byte,
                2 if at < bytes.len() => drop(bytes.remove(at)),
                _ => bytes.insert(at, byte),
            }
        }
        bytes
    })
}

const HEADERS: usize = 70;

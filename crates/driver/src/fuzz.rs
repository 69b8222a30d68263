//! Frames that went wrong on their way.

use proptest::prelude::*;

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

const HEADERS: usize = 70;

//! Changes to well-formed frames, for property tests: a byte is set, the end is cut off, or bytes
//! are appended. No function fails.

use proptest::prelude::*;

/// One change to a well-formed frame.
#[derive(Clone, Debug)]
pub(crate) enum Damage {
    /// Sets one byte to a value.
    Byte(prop::sample::Index, u8),
    /// Cuts the frame's end off.
    Cut(prop::sample::Index),
    /// Appends bytes.
    Tail(Vec<u8>),
}

impl Damage {
    /// Any damage; changes of bytes hit the headers.
    pub(crate) fn any() -> impl Strategy<Value = Damage> {
        prop_oneof![
            8 => (any::<prop::sample::Index>(), any::<u8>())
                .prop_map(|(at, to)| Damage::Byte(at, to)),
            1 => any::<prop::sample::Index>().prop_map(Damage::Cut),
            1 => prop::collection::vec(any::<u8>(), 1..40).prop_map(Damage::Tail),
        ]
    }

    /// Changes `frame`. An empty frame can only be appended to.
    pub(crate) fn apply(&self, frame: &mut Vec<u8>) {
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

/// Number of bytes at the start of a frame that [`Damage::Byte`] can hit.
const HEADERS: usize = 70;

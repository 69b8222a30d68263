//! The division of a message into parts, one for each packet: [`Parts`]. All parts but the last
//! have the same length, so the number of a part gives its place in the message
//! (docs/reference/channels.md, C7 to C9).

use std::ops::Range;

/// The parts of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    /// Bytes of the message.
    length: usize,
    /// Bytes of each part but the last; above zero.
    size: usize,
    count: u16,
}

impl Parts {
    /// The parts of a message of `length` bytes, `size` bytes each. An empty message has one empty
    /// part. `None` if `size` is 0, or if there are more than 65,535 parts.
    pub(crate) fn of(length: usize, size: usize) -> Option<Parts> {
        let count = length.checked_div(size)? + usize::from(!length.is_multiple_of(size));
        let count = u16::try_from(count.max(1)).ok()?;
        Some(Parts {
            length,
            size,
            count,
        })
    }

    /// Number of parts; above zero.
    pub(crate) fn count(&self) -> u16 {
        self.count
    }

    /// The place of a part in the message; empty beyond the last part.
    pub(crate) fn range(&self, part: u16) -> Range<usize> {
        let begin = usize::from(part).saturating_mul(self.size).min(self.length);
        begin..begin.saturating_add(self.size).min(self.length)
    }
}

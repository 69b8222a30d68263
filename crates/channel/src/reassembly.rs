//! Reassembly of a channel's messages from parts that arrive in any order, several times or not at
//! all. [`Reassembly::accept`] takes a part, and returns a message with its last part. It fails
//! with [`PartRefusal`].
//!
//! Messages are delivered in the order of their numbers. When one is complete, incomplete messages
//! with lower numbers are abandoned: their late parts would be of no use on a channel with
//! deadlines. A bounded number of messages is incomplete at any time; a part of a further, newer
//! message abandons the oldest. So the memory is at most that of one message of the greatest length
//! more than this number, whatever arrives, and a message takes memory only where its parts have
//! been written. The memory of an abandoned message is used again, so a peer that begins messages
//! and completes none causes no work for memory.

use std::collections::VecDeque;

use super::parts::Parts;

/// The incomplete messages of a channel.
#[derive(Debug)]
pub struct Reassembly {
    /// Bytes of each part but the last of its message.
    size: usize,
    /// Bytes of the longest message.
    longest: usize,
    /// The largest number of incomplete messages; above zero.
    most: usize,
    /// Messages below this number are over.
    next: u64,
    /// Whether the message with the number `u64::MAX` is over.
    is_over: bool,
    /// The incomplete messages, by number.
    incomplete: VecDeque<IncompleteMessage>,
    /// The memory of abandoned messages, and of those that are not needed any more, with their old
    /// bytes; at most [`MOST_SPARE`], and one more than there can be further incomplete
    /// messages. The longest is last.
    spare: Vec<Vec<u8>>,
    abandoned: u64,
    abandoned_parts: u64,
}

#[derive(Debug)]
struct IncompleteMessage {
    number: u64,
    count: u16,
    /// Bytes of the last part; `None` if it is missing.
    last: Option<usize>,
    missing: u16,
    /// A bit for each part that has arrived.
    arrived: Vec<u64>,
    /// At least as long as the message can be. Where no part has been written, the bytes have no
    /// meaning.
    body: Vec<u8>,
}

/// The reason why a part is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartRefusal {
    /// The part has arrived before.
    #[error("the part has arrived before")]
    Duplicate,
    /// A message with this or a higher number is complete, or too many newer ones are incomplete.
    #[error("the message is over")]
    Over,
    /// The number of parts says that the message is longer than allowed.
    #[error("the message has {count} parts, and the longest message has {most}")]
    TooManyParts {
        /// Parts of the message.
        count: u16,
        /// Parts of the longest message.
        most: u16,
    },
    /// Another part of the same message has another number of parts.
    #[error("the message has {known} parts by an earlier part, and {count} by this one")]
    OtherCount {
        /// The number of parts by an earlier part.
        known: u16,
        /// The number of parts by this part.
        count: u16,
    },
    /// The part has another length than its place in the message requires.
    #[error("a part of {length} bytes where the message has one of {least} to {most}")]
    Length {
        /// Bytes of the part.
        length: usize,
        /// The least allowed length.
        least: usize,
        /// The greatest allowed length.
        most: usize,
    },
}

impl Reassembly {
    /// Reassembly of messages of at most `longest` bytes in parts of `size` bytes, with at most
    /// `most` incomplete messages. `None` if `size` or `most` is 0, or if the longest message has
    /// more than 65,535 parts.
    pub fn new(size: usize, longest: usize, most: usize) -> Option<Reassembly> {
        Parts::of(longest, size)?;
        (most > 0).then(|| Reassembly {
            size,
            longest,
            most,
            next: 0,
            is_over: false,
            incomplete: VecDeque::new(),
            spare: Vec::new(),
            abandoned: 0,
            abandoned_parts: 0,
        })
    }

    /// Takes part `part` of `count` parts of a message. Returns the message if it is complete now.
    ///
    /// # Errors
    /// [`PartRefusal`] if the part is not accepted. Nothing has changed then, except that a part of
    /// a further message can have abandoned the oldest one.
    pub fn accept(
        &mut self,
        number: u64,
        (part, count): (u16, u16),
        payload: &[u8],
    ) -> Result<Option<Vec<u8>>, PartRefusal> {
        self.check(number, (part, count), payload.len())?;
        let found = self.incomplete.binary_search_by_key(&number, |m| m.number);
        let at = match found {
            Ok(at) => at,
            Err(at) => self.begin(at, number, count)?,
        };
        let message = &mut self.incomplete[at];
        if message.count != count {
            let known = message.count;
            return Err(PartRefusal::OtherCount { known, count });
        }
        let (word, bit) = (usize::from(part / 64), 1_u64 << (part % 64));
        if message.arrived[word] & bit != 0 {
            return Err(PartRefusal::Duplicate);
        }
        message.arrived[word] |= bit;
        message.missing -= 1;
        let begin = usize::from(part) * self.size;
        message.body[begin..begin + payload.len()].copy_from_slice(payload);
        if part + 1 == count {
            message.last = Some(payload.len());
        }
        if message.missing > 0 {
            return Ok(None);
        }
        Ok(self.complete(at))
    }

    /// Takes the memory of a message for one of the next ones. Of more than can be kept, the
    /// longest are. The old bytes are never shown: a message is returned only when all of its parts
    /// have been written.
    pub fn reuse(&mut self, mut message: Vec<u8>) {
        // The last part of a message can be shorter than that of the next one.
        let parts = message.len().div_ceil(self.size);
        message.resize((parts * self.size).min(self.longest), 0);
        let at = self
            .spare
            .partition_point(|kept| kept.len() < message.len());
        self.spare.insert(at, message);
        self.free_spare();
    }

    /// Frees the memory of the shortest messages, beyond what is kept.
    fn free_spare(&mut self) {
        let most = (self.most + 1 - self.incomplete.len()).min(MOST_SPARE);
        let more = self.spare.len().saturating_sub(most);
        self.spare.drain(..more);
    }

    /// Number of messages that were abandoned although a part of them had arrived.
    pub fn abandoned(&self) -> u64 {
        self.abandoned
    }

    /// Number of parts of abandoned messages.
    pub fn abandoned_parts(&self) -> u64 {
        self.abandoned_parts
    }

    /// Number of parts of incomplete messages.
    pub fn held_parts(&self) -> u64 {
        let held = |message: &IncompleteMessage| u64::from(message.count - message.missing);
        self.incomplete.iter().map(held).sum()
    }

    /// Bytes of memory for parts, whether or not they have been written.
    pub fn memory(&self) -> usize {
        let bytes = |message: &IncompleteMessage| message.body.capacity();
        let spare = self.spare.iter().map(Vec::capacity).sum::<usize>();
        self.incomplete.iter().map(bytes).sum::<usize>() + spare
    }

    /// Number of incomplete messages.
    pub(crate) fn incomplete(&self) -> usize {
        self.incomplete.len()
    }

    /// Checks what does not depend on other parts.
    fn check(
        &self,
        number: u64,
        (part, count): (u16, u16),
        length: usize,
    ) -> Result<(), PartRefusal> {
        if number < self.next || self.is_over {
            return Err(PartRefusal::Over);
        }
        let most = Parts::of(self.longest, self.size).map_or(1, |parts| parts.count());
        if count > most || part >= count {
            return Err(PartRefusal::TooManyParts { count, most });
        }
        let begin = usize::from(part) * self.size;
        let (least, most) = match part + 1 == count {
            true if count == 1 => (0, self.size.min(self.longest)),
            true => (1, self.size.min(self.longest - begin)),
            false => (self.size, self.size),
        };
        match (least..=most).contains(&length) {
            true => Ok(()),
            false => Err(PartRefusal::Length {
                length,
                least,
                most,
            }),
        }
    }

    /// Makes place for a message at the place `at`, and returns the place that it has then.
    fn begin(&mut self, at: usize, number: u64, count: u16) -> Result<usize, PartRefusal> {
        let mut at = at;
        if self.incomplete.len() >= self.most {
            if at == 0 {
                return Err(PartRefusal::Over);
            }
            self.abandon_first();
            at -= 1;
        }
        let length = (usize::from(count) * self.size).min(self.longest);
        let fits = self.spare.iter().position(|spare| spare.len() >= length);
        let spare = fits.map(|at| self.spare.remove(at));
        let message = IncompleteMessage {
            number,
            count,
            last: None,
            missing: count,
            arrived: vec![0; usize::from(count).div_ceil(64)],
            // The kernel gives zeroed pages when they are first written.
            body: spare.unwrap_or_else(|| vec![0; length]),
        };
        self.incomplete.insert(at, message);
        self.free_spare();
        Ok(at)
    }

    /// Removes the complete message at a place, and the older ones.
    fn complete(&mut self, at: usize) -> Option<Vec<u8>> {
        for _ in 0..at {
            self.abandon_first();
        }
        let message = self.incomplete.pop_front()?;
        match message.number.checked_add(1) {
            Some(next) => self.next = next,
            None => self.is_over = true,
        }
        let mut body = message.body;
        body.truncate(usize::from(message.count - 1) * self.size + message.last.unwrap_or(0));
        // The memory of an abandoned message can be much longer than this message.
        body.shrink_to(2 * body.len());
        Some(body)
    }

    /// Abandons the message with the lowest number. Its memory is spare.
    fn abandon_first(&mut self) {
        if let Some(message) = self.incomplete.pop_front() {
            self.abandoned += 1;
            self.abandoned_parts += u64::from(message.count - message.missing);
            self.reuse(message.body);
        }
    }
}

/// The memory of how many messages is kept for the next ones. The program reads a message while its
/// handler collects the next one, and can be one behind.
const MOST_SPARE: usize = 2;

#[cfg(test)]
mod tests;

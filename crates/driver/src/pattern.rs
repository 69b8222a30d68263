//! Matches packets by offset, mask and value.
//!
//! A flow of a protocol without built-in support describes its packets by a list of [`Term`]s, for
//! example: the two bytes at offset 4, under a mask, have a value. Descriptions of frames to
//! discard have the same form. The paper VERT compiles such descriptions (section 3.2) and flattens
//! the tree of their comparisons (4.3). Here a list is compiled once into a [`Pattern`] of at most
//! [`MAX_WORDS`] (4) masked words of eight bytes, or refused with [`BadPattern`].
//!
//! A table ([`Patterns`]) keeps all patterns over the same bits (one *shape*) in one hash table. So
//! finding the pattern of a packet takes one look-up per shape, at most [`MAX_SHAPES`] (8), however
//! many patterns there are. If a packet matches several patterns, the one with the most bits is
//! found. Among shapes with equally many bits, the one whose first compared byte lies later comes
//! first. The order of insertion does not matter.

use std::collections::HashMap;

use foldhash::quality::RandomState;
use netnice_api::direct::{PATTERN_REACH, PATTERN_SHAPES, PATTERN_WORDS};

/// Compares `width` bytes from an offset on, under a mask, with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Term {
    /// Offset of the first byte, from an origin that depends on the use of the pattern.
    pub(crate) offset: u16,
    /// Number of bytes: 1, 2, 4 or 8, most significant first.
    pub(crate) width: u8,
    /// The bits that are compared.
    pub(crate) mask: u64,
    /// Value of the compared bits.
    pub(crate) value: u64,
}

/// The bytes that a packet must have, compiled from a list of terms: words of eight bytes under a
/// mask, and their values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pattern {
    shape: Shape,
    values: [u64; MAX_WORDS],
}

/// Why a pattern is refused: its terms are invalid, or the table of patterns cannot take it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPattern {
    /// The width is not 1, 2, 4 or 8. Holds the width.
    #[error("a term of a pattern compares 1, 2, 4 or 8 bytes, not {0}")]
    Width(u8),
    /// The term ends beyond [`MAX_REACH`].
    #[error("a term of a pattern ends at byte {end}; patterns cover the first {MAX_REACH} bytes")]
    Reach {
        /// Where the term ends.
        end: usize,
    },
    /// The value has bits outside the mask, or the mask has bits outside the compared bytes.
    #[error(
        "value {value:#x} has bits outside mask {mask:#x}, or the mask has bits outside {width} \
         byte(s)"
    )]
    Value {
        /// The value.
        value: u64,
        /// The mask.
        mask: u64,
        /// The number of bytes.
        width: u8,
    },
    /// Two terms require different values of one bit. Holds the offset of its byte.
    #[error("two terms of the pattern contradict each other at byte {0}")]
    Contradiction(usize),
    /// The compared bytes need more than [`MAX_WORDS`] words of eight bytes. Holds the number.
    #[error(
        "the terms of the pattern lie in {0} separate words of 8 bytes; the limit is {MAX_WORDS}"
    )]
    Words(usize),
    /// The same pattern is in the table already.
    #[error("a flow has this pattern already")]
    Taken,
    /// The table has [`MAX_SHAPES`] other shapes already.
    #[error(
        "there are patterns over {MAX_SHAPES} different sets of bits already; this is the limit"
    )]
    Shapes,
}

impl Pattern {
    /// Compiles a description. Without terms the pattern matches every packet. Fails if a term is
    /// invalid, if two terms contradict each other, or if the pattern would have too many words.
    pub(crate) fn new(terms: &[Term]) -> Result<Pattern, BadPattern> {
        let mut mask = [0; MAX_REACH];
        let mut value = [0; MAX_REACH];
        for term in terms {
            term.set_bits(&mut mask, &mut value)?;
        }
        Pattern::of(&mask, &value)
    }

    /// Whether a packet matches.
    #[cfg(test)]
    pub(crate) fn matches(&self, bytes: &[u8]) -> bool {
        self.shape.of(bytes) == Some(self.values)
    }

    /// Collects the bits in words of eight bytes, each word from the next set bit's byte on.
    fn of(mask: &[u8; MAX_REACH], value: &[u8; MAX_REACH]) -> Result<Pattern, BadPattern> {
        let mut pattern = Pattern {
            shape: Shape::default(),
            values: [0; MAX_WORDS],
        };
        let mut at = 0;
        let mut count = 0;
        while let Some(skip) = mask[at..].iter().position(|byte| *byte != 0) {
            let begin = at + skip;
            if count < MAX_WORDS {
                let word = word_at(mask, begin);
                pattern.shape.words[count] = (begin as u16, word);
                pattern.values[count] = word_at(value, begin);
                pattern.shape.bits += word.count_ones();
            }
            count += 1;
            at = (begin + WORD).min(MAX_REACH);
        }
        let last = mask.iter().rposition(|byte| *byte != 0);
        pattern.shape.reach = last.map_or(0, |last| last as u16 + 1);
        match count > MAX_WORDS {
            true => Err(BadPattern::Words(count)),
            false => Ok(pattern),
        }
    }
}

impl Term {
    /// Writes the term's bits to their places.
    fn set_bits(
        &self,
        mask: &mut [u8; MAX_REACH],
        value: &mut [u8; MAX_REACH],
    ) -> Result<(), BadPattern> {
        let width = usize::from(self.width);
        if ![1, 2, 4, 8].contains(&width) {
            return Err(BadPattern::Width(self.width));
        }
        let begin = usize::from(self.offset);
        let end = begin + width;
        if end > MAX_REACH {
            return Err(BadPattern::Reach { end });
        }
        let all = u64::MAX >> (64 - 8 * width);
        if self.mask & !all != 0 || self.value & !self.mask != 0 {
            return Err(BadPattern::Value {
                value: self.value,
                mask: self.mask,
                width: self.width,
            });
        }
        let masks = &self.mask.to_be_bytes()[8 - width..];
        let values = &self.value.to_be_bytes()[8 - width..];
        for (position, (new, wanted)) in (begin..end).zip(masks.iter().zip(values)) {
            if (value[position] ^ wanted) & mask[position] & new != 0 {
                return Err(BadPattern::Contradiction(position));
            }
            mask[position] |= new;
            value[position] |= wanted;
        }
        Ok(())
    }
}

/// The bits that a pattern compares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Shape {
    /// Number of bits.
    bits: u32,
    /// Offset and mask of each word; the mask of an unused word is 0.
    words: [(u16, u64); MAX_WORDS],
    /// Least length of a packet.
    reach: u16,
}

impl Shape {
    /// These bits of a packet, if it is long enough.
    #[inline]
    fn of(&self, bytes: &[u8]) -> Option<[u64; MAX_WORDS]> {
        if bytes.len() < usize::from(self.reach) {
            return None;
        }
        Some(self.words.map(|(at, mask)| match mask {
            0 => 0,
            mask => word_at(bytes, usize::from(at)) & mask,
        }))
    }
}

/// A table of patterns. Each has a meaning, for example the flow that gets the packets.
#[derive(Clone, Debug)]
pub(crate) struct Patterns<T> {
    /// Sorted, the shape with the most bits first.
    shapes: Vec<(Shape, Table<T>)>,
}

/// The patterns of one shape, by their values.
type Table<T> = HashMap<[u64; MAX_WORDS], T, RandomState>;

impl<T> Default for Patterns<T> {
    fn default() -> Patterns<T> {
        Patterns { shapes: Vec::new() }
    }
}

impl<T> Patterns<T> {
    /// Adds a pattern. Fails with [`BadPattern::Taken`] if the table has the pattern already, or
    /// with [`BadPattern::Shapes`] if the table has [`MAX_SHAPES`] other shapes.
    pub(crate) fn insert(&mut self, pattern: &Pattern, meaning: T) -> Result<(), BadPattern> {
        let position = self.position(&pattern.shape);
        let position = match position {
            Ok(position) => position,
            Err(_) if self.shapes.len() == MAX_SHAPES => return Err(BadPattern::Shapes),
            Err(position) => {
                self.shapes
                    .insert(position, (pattern.shape, HashMap::default()));
                position
            }
        };
        let table = &mut self.shapes[position].1;
        if table.contains_key(&pattern.values) {
            return Err(BadPattern::Taken);
        }
        table.insert(pattern.values, meaning);
        Ok(())
    }

    /// Removes a pattern and returns its meaning; `None` if the table does not have it.
    pub(crate) fn remove(&mut self, pattern: &Pattern) -> Option<T> {
        let position = self.position(&pattern.shape).ok()?;
        let meaning = self.shapes[position].1.remove(&pattern.values);
        if self.shapes[position].1.is_empty() {
            self.shapes.remove(position);
        }
        meaning
    }

    /// The meaning of the pattern with the most bits that the packet matches; `None` if it matches
    /// none.
    #[inline]
    pub(crate) fn find(&self, bytes: &[u8]) -> Option<&T> {
        self.shapes
            .iter()
            .find_map(|(shape, table)| table.get(&shape.of(bytes)?))
    }

    /// Whether there is no pattern.
    pub(crate) fn is_empty(&self) -> bool {
        self.shapes.is_empty()
    }

    fn position(&self, shape: &Shape) -> Result<usize, usize> {
        self.shapes.binary_search_by(|(other, _)| shape.cmp(other))
    }
}

/// Eight bytes from an offset on, filled with zeros beyond the end.
#[inline]
fn word_at(bytes: &[u8], at: usize) -> u64 {
    match bytes.get(at..).and_then(|rest| rest.first_chunk()) {
        Some(word) => u64::from_be_bytes(*word),
        None => {
            let rest = bytes.get(at..).unwrap_or_default();
            let mut word = [0; WORD];
            word[..rest.len()].copy_from_slice(rest);
            u64::from_be_bytes(word)
        }
    }
}

/// Number of bytes that patterns can compare, from their origin on.
pub(crate) const MAX_REACH: usize = PATTERN_REACH as usize;
/// Largest number of words of a pattern: enough for two IPv6 addresses.
pub(crate) const MAX_WORDS: usize = PATTERN_WORDS as usize;
/// Largest number of shapes in one table, and so of look-ups for one packet.
pub(crate) const MAX_SHAPES: usize = PATTERN_SHAPES as usize;
const WORD: usize = 8;

#[cfg(test)]
mod tests;

//! Packets described by what stands where: offset, mask and value.
//!
//! For protocols that no built-in code knows a flow says which packets are its own by a list of [`Term`]s ("the two bytes at 4, under
//! this mask, are that"). VERT 4.3 lets such descriptions be compiled and flattens the tree of comparisons that several of
//! them make; here a list becomes a few masked words of eight bytes, once, and [`Patterns`] keeps all patterns that look at the same
//! bits (one *shape*) in one hash table. So finding the pattern of a packet takes as many look-ups as there are
//! shapes, at most [`MAX_SHAPES`], however many patterns there are.
//!
//! Of several patterns that a packet fits the one wins that fixes the most bits; between two shapes of as many bits,
//! the one that looks at the later bytes. The order in which they were told does not matter.

use std::collections::HashMap;

use foldhash::quality::RandomState;
use netnice_api::direct::{PATTERN_REACH, PATTERN_SHAPES, PATTERN_WORDS};

/// So many bytes from an offset on, under a mask, have a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// Where the bytes begin. What it counts from is said where patterns are used.
    pub offset: u16,
    /// How many: 1, 2, 4 or 8, most significant first.
    pub width: u8,
    /// Which bits count.
    pub mask: u64,
    /// What they are.
    pub value: u64,
}

/// A description, compiled.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pattern {
    shape: Shape,
    values: [u64; MAX_WORDS],
}

/// A description that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPattern {
    /// A width.
    #[error("a term looks at 1, 2, 4 or 8 bytes, not at {0}")]
    Width(u8),
    /// A term that looks too far.
    #[error("a term ends at byte {end}; patterns look at the first {MAX_REACH}")]
    Reach {
        /// Where it ends.
        end: usize,
    },
    /// A value or a mask that does not go into the bytes or the mask.
    #[error("value {value:#x} under mask {mask:#x} can never be in {width} byte(s)")]
    Value {
        /// The value.
        value: u64,
        /// The mask.
        mask: u64,
        /// In so many bytes.
        width: u8,
    },
    /// Two terms want different values of one bit.
    #[error("two terms contradict each other at byte {0}")]
    Contradiction(usize),
    /// Terms that lie too far apart.
    #[error("the terms lie in {0} separate words of 8 bytes; at most {MAX_WORDS}")]
    Words(usize),
    /// The same packets belong to somebody already.
    #[error("this pattern is taken")]
    Taken,
    /// Too many ways of looking at a packet.
    #[error("patterns that look at {MAX_SHAPES} different sets of bits are there already")]
    Shapes,
}

impl Pattern {
    /// Compiles a description. Without terms it fits every packet.
    pub fn new(terms: &[Term]) -> Result<Pattern, BadPattern> {
        let mut mask = [0; MAX_REACH];
        let mut value = [0; MAX_REACH];
        for term in terms {
            term.spread(&mut mask, &mut value)?;
        }
        Pattern::of(&mask, &value)
    }

    /// Whether a packet fits.
    pub fn fits(&self, bytes: &[u8]) -> bool {
        self.shape.of(bytes) == Some(self.values)
    }

    /// Takes the bits eight bytes at a time, each word where the next bit is.
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
    /// Puts its bits where they are looked for.
    fn spread(
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
        let room = u64::MAX >> (64 - 8 * width);
        if self.mask & !room != 0 || self.value & !self.mask != 0 {
            return Err(BadPattern::Value {
                value: self.value,
                mask: self.mask,
                width: self.width,
            });
        }
        let masks = &self.mask.to_be_bytes()[8 - width..];
        let values = &self.value.to_be_bytes()[8 - width..];
        for (place, (new, wanted)) in (begin..end).zip(masks.iter().zip(values)) {
            if (value[place] ^ wanted) & mask[place] & new != 0 {
                return Err(BadPattern::Contradiction(place));
            }
            mask[place] |= new;
            value[place] |= wanted;
        }
        Ok(())
    }
}

/// Which bits a pattern looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Shape {
    /// How many.
    bits: u32,
    /// Where each word begins, and its bits; those that are not used have none.
    words: [(u16, u64); MAX_WORDS],
    /// How long a packet must be.
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

/// Patterns, each with what it means.
#[derive(Clone, Debug)]
pub struct Patterns<T> {
    /// The one with the most bits first.
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
    /// One more pattern.
    pub fn insert(&mut self, pattern: &Pattern, meaning: T) -> Result<(), BadPattern> {
        let place = self.place(&pattern.shape);
        let place = match place {
            Ok(place) => place,
            Err(_) if self.shapes.len() == MAX_SHAPES => return Err(BadPattern::Shapes),
            Err(place) => {
                self.shapes
                    .insert(place, (pattern.shape, HashMap::default()));
                place
            }
        };
        let table = &mut self.shapes[place].1;
        if table.contains_key(&pattern.values) {
            return Err(BadPattern::Taken);
        }
        table.insert(pattern.values, meaning);
        Ok(())
    }

    /// One less; what it meant.
    pub fn remove(&mut self, pattern: &Pattern) -> Option<T> {
        let place = self.place(&pattern.shape).ok()?;
        let meaning = self.shapes[place].1.remove(&pattern.values);
        if self.shapes[place].1.is_empty() {
            self.shapes.remove(place);
        }
        meaning
    }

    /// What the pattern means that a packet fits best.
    #[inline]
    pub fn find(&self, bytes: &[u8]) -> Option<&T> {
        self.shapes
            .iter()
            .find_map(|(shape, table)| table.get(&shape.of(bytes)?))
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.shapes.is_empty()
    }

    fn place(&self, shape: &Shape) -> Result<usize, usize> {
        self.shapes.binary_search_by(|(other, _)| shape.cmp(other))
    }
}

/// Eight bytes from a place on, as if zeros came behind the last.
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

/// How far patterns look: behind the headers of whatever is inside of a packet's first header.
pub const MAX_REACH: usize = PATTERN_REACH as usize;
/// Enough for two IPv6 addresses.
pub const MAX_WORDS: usize = PATTERN_WORDS as usize;
/// How many look-ups a packet may cost.
pub const MAX_SHAPES: usize = PATTERN_SHAPES as usize;
const WORD: usize = 8;

#[cfg(test)]
mod tests;

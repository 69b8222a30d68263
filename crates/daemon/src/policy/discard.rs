//! Parses the discard patterns of a link: descriptions of frames that `netnice-driver` drops before
//! it classifies them to a flow. A pattern becomes a list of [`Term`]s, one for each compared byte.
//! An invalid pattern or set is a [`DiscardError`].
//!
//! `12=0800 23=11 36=0035` is a pattern of three words. It matches if the two bytes at 12 are 0800,
//! the byte at 23 is 11, and the two bytes at 36 are 0035. Offsets count from the first byte of the
//! Ethernet header, bytes are hexadecimal. `23=10/f0` compares only the bits of the mask f0.
//!
//! A driver supports a bounded set of patterns. A set that is too large is refused here, where its
//! line in the policy file is known. A word names at most [`MAX_TERM_BYTES`] bytes (8), all in the
//! first [`PATTERN_REACH`] of the frame (128). A pattern has at most [`PATTERN_WORDS`] words (4). A
//! link has at most [`MAX_PATTERNS`] patterns (64), which compare at most [`PATTERN_SHAPES`]
//! different sets of bits (8).

use std::collections::{BTreeMap, BTreeSet};

use netnice_api::direct::{PATTERN_REACH, PATTERN_SHAPES, PATTERN_WORDS, Term};
use toml::Spanned;

use super::{PolicyError, Reader};

impl Reader<'_> {
    /// The discard patterns of a link.
    ///
    /// # Errors
    /// [`PolicyError`] with the line of an invalid pattern, or of a set that is too large.
    pub(super) fn discard(&self, texts: &[Spanned<String>]) -> Result<Vec<Vec<Term>>, PolicyError> {
        let at = |text: &Spanned<String>| text.span().start;
        let patterns = texts.iter().map(|text| {
            let pattern = pattern(text.get_ref());
            pattern.map_err(|error| self.fault(at(text), error))
        });
        let patterns: Vec<Vec<Term>> = patterns.collect::<Result<_, _>>()?;
        let whole = texts.first().map_or(0, at);
        check_set(&patterns).map_err(|error| self.fault(whole, error))?;
        Ok(patterns)
    }
}

/// Why a pattern is invalid.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum DiscardError {
    /// A word of the pattern does not have the form OFFSET=HEX or OFFSET=HEX/MASK, or its offset is
    /// no number below 65,536.
    #[error(
        "`{0}` is not a term of a discard pattern; write OFFSET=HEX or OFFSET=HEX/MASK, as in \
         12=0800 or 23=10/f0"
    )]
    Term(String),
    /// Value or mask are not hexadecimal bytes, or have no bytes, too many, or different numbers of
    /// them.
    #[error("`{0}`: value and mask are hexadecimal, both of the same 1 to 8 bytes")]
    Bytes(String),
    /// The value has bits outside its mask.
    #[error("`{0}`: the value has bits outside the mask, so no frame matches")]
    Hidden(String),
    /// A word names bytes beyond those of a frame that patterns can match.
    #[error("`{term}` ends at byte {end}: patterns can match the first {PATTERN_REACH}")]
    Reach {
        /// The word.
        term: String,
        /// The offset after its last byte.
        end: usize,
    },
    /// Two words contradict each other in a bit of the byte at this offset.
    #[error("two terms contradict each other at byte {0}")]
    Contradiction(u16),
    /// The pattern has no word, or the masks of all its words are 0.
    #[error("a discard pattern without a bit to match would discard everything")]
    Empty,
    /// The pattern has too many words; contains their number.
    #[error("{0} terms in one pattern; {PATTERN_WORDS} are allowed")]
    TooManyTerms(usize),
    /// The link has too many patterns; contains their number.
    #[error("{0} discard patterns for one link; {MAX_PATTERNS} are allowed")]
    Patterns(usize),
    /// The patterns compare too many different sets of bits; contains their number.
    #[error("the patterns of one link have {0} different masks; {PATTERN_SHAPES} are allowed")]
    Shapes(usize),
}

/// Parses one pattern to a term for each byte with a bit to compare, in the order of offsets.
///
/// # Errors
/// If a word is invalid, two words contradict each other, or there are too many words or no bit to
/// compare.
pub(super) fn pattern(text: &str) -> Result<Vec<Term>, DiscardError> {
    let terms: Vec<&str> = text.split_whitespace().collect();
    if terms.len() > usize::from(PATTERN_WORDS) {
        return Err(DiscardError::TooManyTerms(terms.len()));
    }
    let mut bytes: BTreeMap<u16, Term> = BTreeMap::new();
    for text in terms {
        for term in bytes_of(text)? {
            let known = bytes.entry(term.offset).or_insert(Term {
                mask: 0,
                value: 0,
                ..term
            });
            if (known.value ^ term.value) & known.mask & term.mask != 0 {
                return Err(DiscardError::Contradiction(term.offset));
            }
            known.mask |= term.mask;
            known.value |= term.value;
        }
    }
    bytes.retain(|_, term| term.mask != 0);
    match bytes.is_empty() {
        true => Err(DiscardError::Empty),
        false => Ok(bytes.into_values().collect()),
    }
}

/// Checks that a driver supports these patterns together.
///
/// # Errors
/// If there are too many patterns, or too many different sets of compared bits.
pub(super) fn check_set(patterns: &[Vec<Term>]) -> Result<(), DiscardError> {
    if patterns.len() > MAX_PATTERNS {
        return Err(DiscardError::Patterns(patterns.len()));
    }
    let shape = |pattern: &Vec<Term>| -> Vec<(u16, u8)> {
        let bits = pattern.iter().map(|term| (term.offset, term.mask));
        bits.collect()
    };
    let shapes: BTreeSet<Vec<(u16, u8)>> = patterns.iter().map(shape).collect();
    match shapes.len() > usize::from(PATTERN_SHAPES) {
        true => Err(DiscardError::Shapes(shapes.len())),
        false => Ok(()),
    }
}

/// Parses a word into one term for each of its bytes.
fn bytes_of(text: &str) -> Result<Vec<Term>, DiscardError> {
    let no_term = || DiscardError::Term(text.to_owned());
    let no_bytes = || DiscardError::Bytes(text.to_owned());
    let (offset, rest) = text.split_once('=').ok_or_else(no_term)?;
    let offset: u16 = offset.parse().map_err(|_| no_term())?;
    let (value, mask) = match rest.split_once('/') {
        Some((value, mask)) => (hexadecimal(value), hexadecimal(mask)),
        None => (hexadecimal(rest), hexadecimal(&"f".repeat(rest.len()))),
    };
    let (value, mask) = value.zip(mask).ok_or_else(no_bytes)?;
    if value.len() != mask.len() || !(1..=MAX_TERM_BYTES).contains(&value.len()) {
        return Err(no_bytes());
    }
    let end = usize::from(offset) + value.len();
    if end > usize::from(PATTERN_REACH) {
        let term = text.to_owned();
        return Err(DiscardError::Reach { term, end });
    }
    if value
        .iter()
        .zip(&mask)
        .any(|(value, mask)| value & !mask != 0)
    {
        return Err(DiscardError::Hidden(text.to_owned()));
    }
    let terms = (offset..).zip(value.into_iter().zip(mask));
    let terms = terms.map(|(offset, (value, mask))| Term {
        offset,
        mask,
        value,
    });
    Ok(terms.collect())
}

fn hexadecimal(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let pairs = (0..text.len()).step_by(2);
    let bytes = pairs.map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok());
    bytes.collect()
}

/// Largest number of bytes of one word. A driver compares 8 bytes at a time, at most
/// [`PATTERN_WORDS`] times for a pattern.
const MAX_TERM_BYTES: usize = 8;
/// Largest number of patterns of a link.
const MAX_PATTERNS: usize = 64;

#[cfg(test)]
mod tests {
    use netnice_api::driver::{DriverCall, DriverRequest};
    use netnice_api::encode_driver_call;

    use super::*;

    #[test]
    fn a_pattern_becomes_one_term_for_each_byte() {
        let term = |offset, mask, value| Term {
            offset,
            mask,
            value,
        };
        let read = pattern("12=0800 23=10/f0 12=08").expect("a pattern");
        let expected = [
            term(12, 0xff, 0x08),
            term(13, 0xff, 0x00),
            term(23, 0xf0, 0x10),
        ];
        assert_eq!(read, expected);
        assert_eq!(
            pattern("120=0011223344556677").map(|read| read.len()),
            Ok(8)
        );
    }

    #[test]
    fn an_invalid_pattern_is_refused_with_the_reason() {
        let table = [
            ("port 53", "`port` is not a term"),
            ("x=08", "OFFSET=HEX"),
            ("70000=08", "not a term"),
            ("12=", "1 to 8 bytes"),
            ("12=080", "1 to 8 bytes"),
            ("12=zz", "1 to 8 bytes"),
            ("12=é9", "1 to 8 bytes"),
            ("12=0800/ff", "the same"),
            ("0=001122334455667788", "1 to 8 bytes"),
            ("12=18/f0", "no frame matches"),
            ("121=0011223344556677", "ends at byte 129"),
            ("12=08 11=0009", "contradict each other at byte 12"),
            ("", "would discard everything"),
            ("12=00/00", "would discard everything"),
            ("1=00 2=00 3=00 4=00 5=00", "5 terms"),
        ];
        for (text, why) in table {
            let refusal = pattern(text).expect_err(text).to_string();
            assert!(refusal.contains(why), "{text}: {refusal}");
        }
        let at = |offset: usize| pattern(&format!("{offset}=00")).expect("a pattern");
        let alike = vec![at(0); 65];
        assert_eq!(check_set(&alike), Err(DiscardError::Patterns(65)));
        let others: Vec<_> = (0..9).map(at).collect();
        assert_eq!(check_set(&others), Err(DiscardError::Shapes(9)));
        assert_eq!(check_set(&others[1..]), Ok(()));
    }

    /// A driver gets all patterns of a link in one call.
    #[test]
    fn the_largest_set_of_patterns_fits_in_one_call() {
        let longest = [96, 104, 112, 120].map(|offset| format!("{offset}=ffffffffffffffff"));
        let longest = pattern(&longest.join(" ")).expect("a pattern");
        let patterns = vec![longest; MAX_PATTERNS];
        assert_eq!(check_set(&patterns), Ok(()));
        let ask = DriverRequest::Discard { patterns };
        let call = encode_driver_call(&DriverCall {
            id: u64::MAX,
            request: ask,
        });
        assert!(call.is_ok(), "{}", call.expect_err("it is not"));
    }
}

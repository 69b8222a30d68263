//! [`Dscp`], the code point of packets (RFC 2474): its range, its names and its text. A number
//! above 63 gives `None`. A text that is neither a name nor such a number does not parse; its error
//! has no content, because the caller names the clause and the range.

use core::fmt;
use core::str::FromStr;

/// A differentiated services code point (DSCP): the upper six bits of the IPv4 field `tos` and of
/// the IPv6 field `traffic class`. 0 is best effort. The lower two bits are ECN (RFC 3168) and are
/// no part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dscp(u8);

impl Dscp {
    /// The default of IP, best effort: class selector 0 (RFC 2474 4.1).
    pub const BEST_EFFORT: Dscp = Dscp(0);
    /// Lower effort (RFC 8622): less than best effort.
    pub const LOWER_EFFORT: Dscp = Dscp(1);
    /// Class selector 1, which many networks treat as lower effort (RFC 4594 4.10).
    pub const CS1: Dscp = Dscp(8);

    /// The code point, or `None` above 63.
    pub fn new(number: u8) -> Option<Dscp> {
        (number < 64).then_some(Dscp(number))
    }

    /// The code point as a number, 0 to 63.
    pub fn get(self) -> u8 {
        self.0
    }
}

/// The text is neither a name of a code point nor a number from 0 to 63.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a code point: write a name such as EF, AF21, CS1 or LE, or a number from 0 to 63")]
pub struct NotADscp;

impl FromStr for Dscp {
    type Err = NotADscp;

    /// Parses a name, in upper or lower case, or a decimal number. `BE` and `DF` are names of 0.
    fn from_str(text: &str) -> Result<Dscp, NotADscp> {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let found = match is_number {
            true => text.parse().ok().and_then(Dscp::new),
            false => NAMES
                .iter()
                .find(|(name, _)| name.eq_ignore_ascii_case(text))
                .map(|(_, number)| Dscp(*number)),
        };
        found.ok_or(NotADscp)
    }
}

impl fmt::Display for Dscp {
    /// Writes the name, or the number of a code point without a name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(_, number)| *number == self.0) {
            Some((name, _)) => f.pad(name),
            None => write!(f, "{}", self.0),
        }
    }
}

/// The names of the code points (the IANA registry "Differentiated Services Field Codepoints").
/// `Display` writes the first name of a number.
const NAMES: [(&str, u8); 25] = [
    ("CS0", 0),
    ("BE", 0),
    ("DF", 0),
    ("LE", 1),
    ("CS1", 8),
    ("AF11", 10),
    ("AF12", 12),
    ("AF13", 14),
    ("CS2", 16),
    ("AF21", 18),
    ("AF22", 20),
    ("AF23", 22),
    ("CS3", 24),
    ("AF31", 26),
    ("AF32", 28),
    ("AF33", 30),
    ("CS4", 32),
    ("AF41", 34),
    ("AF42", 36),
    ("AF43", 38),
    ("CS5", 40),
    ("VOICE-ADMIT", 44),
    ("EF", 46),
    ("CS6", 48),
    ("CS7", 56),
];

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn each_code_point_prints_as_text_that_parses_to_it() {
        for number in 0..64 {
            let dscp = Dscp::new(number).expect("in range");
            assert_eq!(dscp.to_string().parse(), Ok(dscp));
            assert_eq!(number.to_string().parse(), Ok(dscp));
        }
        assert_eq!(Dscp::new(64), None);
    }

    #[test]
    fn names_have_the_numbers_of_their_definitions() {
        for class in 1..=4_u8 {
            for drop in 1..=3_u8 {
                let name = alloc::format!("AF{class}{drop}");
                assert_eq!(name.parse(), Ok(Dscp(8 * class + 2 * drop)), "RFC 2597 6");
            }
        }
        for class in 0..8_u8 {
            let name = alloc::format!("cs{class}");
            assert_eq!(name.parse(), Ok(Dscp(8 * class)), "RFC 2474 4.2.2");
        }
        for (name, number) in [("EF", 46), ("ef", 46), ("LE", 1), ("BE", 0), ("df", 0)] {
            assert_eq!(name.parse(), Ok(Dscp(number)), "{name}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "", "64", "256", "-1", "+1", "AF14", "AF51", "CS8", "0x2e", "EF ",
        ] {
            assert_eq!(text.parse::<Dscp>(), Err(NotADscp), "{text}");
        }
    }
}

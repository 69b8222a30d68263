//! [`ReceiveShare`], the part of a driver's time for received packets that a flow has for certain:
//! its range and its text. A part outside the range gives `None`, and a text that is not such a
//! part does not parse; its error has no content, because the caller names the clause and the
//! range.

use core::fmt;
use core::str::FromStr;

/// A part of the driver's time for received packets (paper VERT, section 3.5: the time for the copy
/// of a received packet is the receiver's), from 0.01 % to 100 %.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReceiveShare(u32);

impl ReceiveShare {
    /// The part in hundredths of a percent; `None` unless it is from 1 to 10,000.
    pub fn new(hundredths_of_percent: u32) -> Option<ReceiveShare> {
        (1..=WHOLE)
            .contains(&hundredths_of_percent)
            .then_some(ReceiveShare(hundredths_of_percent))
    }

    /// The part of so many millionths; `None` unless it is a whole number of hundredths of a
    /// percent in the range.
    pub fn of_millionths(millionths: u32) -> Option<ReceiveShare> {
        let whole = millionths.is_multiple_of(100);
        whole.then(|| ReceiveShare::new(millionths / 100)).flatten()
    }

    /// The part in millionths.
    pub fn millionths(self) -> u32 {
        self.0 * 100
    }
}

/// The text is not a part from 0.01 % to 100 %.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a part: write a percentage from 0.01% to 100%")]
pub struct NotAReceiveShare;

impl FromStr for ReceiveShare {
    type Err = NotAReceiveShare;

    /// Parses a percentage with up to two decimals, such as `25%` or `2.5%`.
    fn from_str(text: &str) -> Result<ReceiveShare, NotAReceiveShare> {
        let number = text.strip_suffix('%').ok_or(NotAReceiveShare)?;
        let (whole, decimals) = number.split_once('.').unwrap_or((number, "0"));
        let digits = |text: &str, most: usize| {
            let good = (1..=most).contains(&text.len());
            (good && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse::<u32>())
        };
        let (Some(Ok(whole)), Some(Ok(decimal))) = (digits(whole, 3), digits(decimals, 2)) else {
            return Err(NotAReceiveShare);
        };
        let decimal = if decimals.len() == 1 {
            decimal * 10
        } else {
            decimal
        };
        ReceiveShare::new(whole * 100 + decimal).ok_or(NotAReceiveShare)
    }
}

impl fmt::Display for ReceiveShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 / 100, self.0 % 100) {
            (whole, 0) => write!(f, "{whole}%"),
            (whole, part) if part % 10 == 0 => write!(f, "{whole}.{}%", part / 10),
            (whole, part) => write!(f, "{whole}.{part:02}%"),
        }
    }
}

/// Hundredths of a percent in the whole.
const WHOLE: u32 = 10_000;

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn each_part_prints_as_text_that_parses_to_it() {
        for part in 1..=WHOLE {
            let share = ReceiveShare::new(part).expect("in range");
            assert_eq!(share.to_string().parse(), Ok(share));
        }
        assert_eq!("2.5%".parse(), Ok(ReceiveShare(250)));
        assert_eq!("2.50%".parse(), Ok(ReceiveShare(250)));
        assert_eq!("007%".parse(), Ok(ReceiveShare(700)));
        let share = ReceiveShare(250);
        assert_eq!(ReceiveShare::of_millionths(share.millionths()), Some(share));
        assert_eq!(ReceiveShare::of_millionths(25_001), None);
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "", "%", "25", "0%", "0.00%", "100.01%", "101%", "-1%", "+1%", "1.%", ".5%", "1.234%",
            "1 %", "1%%", "0001%", "1e1%", "١%",
        ] {
            assert_eq!(
                text.parse::<ReceiveShare>(),
                Err(NotAReceiveShare),
                "{text}"
            );
        }
    }
}

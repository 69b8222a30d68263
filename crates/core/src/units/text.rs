//! Parsing of quantities as people type them. Text comes in; a [`Rate`], [`Bytes`], [`Nanos`] or a
//! [`UnitError`] goes out. A fraction of the base unit (bit/s, byte, ns) is dropped. A value
//! outside the range of its type is an error: 1 kbit/s to 1 Tbit/s, up to 1 TiB, or up to 366 days.
//!
//! ```text
//! quantity = digits [ "." digits ] [ spaces ] unit
//! rate     bit kbit mbit gbit tbit (1000)  kibit mibit gibit (1024)     any case, "/s" optional
//!          B kB MB GB TB (1000)            KiB MiB GiB TiB (1024)       "/s" required
//!          byte Kbyte Mbyte Gbyte (1024, as in the paper NICE)          any case, "/s" required
//! size     a bare number, or the byte units above without "/s"
//! time     ns us µs ms s min h d                                      a unit is required
//! "/s" may be written "/sec", "byte" may be written "bytes", and the time "s" may be written "sec"
//! ```
//!
//! A frequent error with bandwidth tools is a factor of eight. `mbps` is bytes to `tc` and bits to
//! people, `Mb` can mean bits or bytes, and tools give a bare number different units. The parser
//! refuses these forms for a rate, and the error names the alternatives. The parser avoids a factor
//! of 1.024 in the same way: it refuses `KB` and accepts `kB` and `KiB`.

use alloc::string::{String, ToString};
use core::fmt;
use core::str::FromStr;

use super::{Bytes, Nanos, Rate};
use crate::Escaped;

/// The kind of quantity that a text was parsed as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuantityKind {
    /// A [`Rate`].
    Rate,
    /// A number of [`Bytes`].
    Size,
    /// A length of time, [`Nanos`].
    Time,
    /// An amount of data: [`Bytes`] with a unit, up to [`Bytes::MAX_AMOUNT`].
    Amount,
}

/// The error of a text that is not a valid quantity. Its `Display` is one line with the text and
/// the fault. Depending on the fault, the line also has the allowed range, or what to write
/// instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} is not {kind}: {fault}", Escaped(.input))]
pub struct UnitError {
    /// The kind that the text was parsed as.
    pub kind: QuantityKind,
    /// The text as the caller passed it.
    pub input: String,
    /// The fault in the text.
    pub fault: UnitFault,
}

/// The fault in the text of a quantity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnitFault {
    /// The text does not start with a number, or the number is malformed (`1.`, `.5`, `1.2.3`).
    NoNumber,
    /// The number has a minus sign. Holds the allowed range.
    Negative(Range),
    /// The number has an exponent, which is not accepted. Holds the allowed range.
    Exponent(Range),
    /// The number has no unit. The string says what to write instead.
    BareNumber(String),
    /// The unit is ambiguous or incomplete, or it is a size's unit in place of a rate's. The string
    /// says what to write instead.
    Hint(String),
    /// The unit is unknown. The string holds examples of valid quantities.
    UnknownUnit(&'static str),
    /// The quantity is below the smallest allowed one. Holds the allowed range.
    TooSmall(Range),
    /// The quantity is above the largest allowed one. Holds the allowed range.
    TooLarge(Range),
}

/// The allowed range of a kind of quantity. `Display` prints it: `from 1kbit to 1tbit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range(QuantityKind);

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            QuantityKind::Rate => write!(f, "from {} to 1tbit", Rate::MIN.compact()),
            QuantityKind::Size => write!(f, "from 0 to {}", Bytes::MAX),
            QuantityKind::Time => write!(f, "from 0s to {}", Nanos::MAX),
            QuantityKind::Amount => write!(f, "from 1B to {}", Bytes::MAX_AMOUNT.amount_text()),
        }
    }
}

impl fmt::Display for QuantityKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QuantityKind::Rate => "a rate",
            QuantityKind::Size => "a number of bytes",
            QuantityKind::Time => "a time",
            QuantityKind::Amount => "an amount of data",
        })
    }
}

impl fmt::Display for UnitFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnitFault::NoNumber => f.write_str("it must start with a number"),
            UnitFault::Negative(range) => write!(f, "it cannot be negative (allowed: {range})"),
            UnitFault::Exponent(range) => {
                write!(f, "write it without an exponent (allowed: {range})")
            }
            UnitFault::BareNumber(hint) => write!(f, "it has no unit; {hint}"),
            UnitFault::Hint(hint) => f.write_str(hint),
            UnitFault::UnknownUnit(examples) => write!(f, "unknown unit; write {examples}"),
            UnitFault::TooSmall(range) => write!(f, "too small (allowed: {range})"),
            UnitFault::TooLarge(range) => write!(f, "too large (allowed: {range})"),
        }
    }
}

impl FromStr for Rate {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Rate, UnitError> {
        let refuse = |fault| error(QuantityKind::Rate, text, fault);
        let (number, unit) = Decimal::read(QuantityKind::Rate, text)?;
        if unit.is_empty() {
            let n = text.trim();
            return Err(refuse(UnitFault::BareNumber(alloc::format!(
                "write {n}kbit or {n}mbit (bits) or {n}kB/s (bytes)"
            ))));
        }
        let bits = rate_unit(number.written, unit).map_err(refuse)?;
        let value = number
            .times(bits)
            .filter(|v| *v <= u128::from(Rate::MAX.bits_per_second()))
            .ok_or_else(|| refuse(UnitFault::TooLarge(Range(QuantityKind::Rate))))?;
        u64::try_from(value)
            .ok()
            .and_then(Rate::new)
            .ok_or_else(|| refuse(UnitFault::TooSmall(Range(QuantityKind::Rate))))
    }
}

impl FromStr for Bytes {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Bytes, UnitError> {
        let refuse = |fault| error(QuantityKind::Size, text, fault);
        let (number, unit) = Decimal::read(QuantityKind::Size, text)?;
        let size = match unit {
            "" => 1,
            _ => byte_unit(unit)
                .ok_or_else(|| refuse(ambiguous(QuantityKind::Size, number.written, unit)))?,
        };
        number
            .times(size)
            .and_then(|v| u64::try_from(v).ok())
            .filter(|v| *v <= Bytes::MAX.0)
            .map(Bytes)
            .ok_or_else(|| refuse(UnitFault::TooLarge(Range(QuantityKind::Size))))
    }
}

impl Bytes {
    /// The largest amount of data that [`Bytes::parse_amount`] accepts: 1000 TB.
    pub const MAX_AMOUNT: Bytes = Bytes(1_000_000_000_000_000);

    /// Parses an amount of data: a number with a byte unit, as for a size, but the unit is
    /// required, zero is refused, and the largest amount is [`Bytes::MAX_AMOUNT`].
    ///
    /// # Errors
    /// [`UnitError`] with the text and the fault in it.
    pub fn parse_amount(text: &str) -> Result<Bytes, UnitError> {
        let kind = QuantityKind::Amount;
        let refuse = |fault| error(kind, text, fault);
        let (number, unit) = Decimal::read(kind, text)?;
        if unit.is_empty() {
            let n = text.trim();
            let hint = alloc::format!("write {n}MB or {n}GB");
            return Err(refuse(UnitFault::BareNumber(hint)));
        }
        let size = byte_unit(unit).ok_or_else(|| refuse(ambiguous(kind, number.written, unit)))?;
        let amount = number.times(size).and_then(|v| u64::try_from(v).ok());
        match amount {
            Some(0) => Err(refuse(UnitFault::TooSmall(Range(kind)))),
            Some(bytes) if bytes <= Bytes::MAX_AMOUNT.0 => Ok(Bytes(bytes)),
            _ => Err(refuse(UnitFault::TooLarge(Range(kind)))),
        }
    }

    /// The exact amount with the unit, decimal or binary, that gives the smallest whole number:
    /// `20GB`, `64KiB`. [`Bytes::parse_amount`] parses it back.
    pub fn amount_text(self) -> String {
        let units = [
            (1_u64 << 40, "TiB"),
            (1_000_000_000_000, "TB"),
            (1 << 30, "GiB"),
            (1_000_000_000, "GB"),
            (1 << 20, "MiB"),
            (1_000_000, "MB"),
            (1 << 10, "KiB"),
            (1_000, "kB"),
        ];
        // From the largest unit to the smallest.
        let exact = |(size, _): &(u64, &str)| self.0 >= *size && self.0.is_multiple_of(*size);
        let (size, unit) = units.into_iter().find(exact).unwrap_or((1, "B"));
        alloc::format!("{}{unit}", self.0 / size)
    }
}

impl FromStr for Nanos {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Nanos, UnitError> {
        let refuse = |fault| error(QuantityKind::Time, text, fault);
        let (number, unit) = Decimal::read(QuantityKind::Time, text)?;
        let size = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" | "sec" => 1_000_000_000,
            "min" => 60 * 1_000_000_000,
            "h" => 3_600 * 1_000_000_000,
            "d" => 24 * 3_600 * 1_000_000_000,
            "" => {
                let n = text.trim();
                let hint = alloc::format!("write {n}ms or {n}s");
                return Err(refuse(UnitFault::BareNumber(hint)));
            }
            _ => {
                return Err(refuse(UnitFault::UnknownUnit(
                    "5ms, 100us, 2.4ms, 30s, 10min or 1h",
                )));
            }
        };
        number
            .times(size)
            .and_then(|v| u64::try_from(v).ok())
            .filter(|v| *v <= Nanos::MAX.0)
            .map(Nanos)
            .ok_or_else(|| refuse(UnitFault::TooLarge(Range(QuantityKind::Time))))
    }
}

/// A decimal number: `digits / 10^places`.
struct Decimal<'a> {
    /// All digits as one number; `None` if they do not fit.
    digits: Option<u128>,
    places: u32,
    /// The number as typed, for hints.
    written: &'a str,
}

impl<'a> Decimal<'a> {
    /// Splits a text into its number and its unit.
    fn read(kind: QuantityKind, text: &'a str) -> Result<(Decimal<'a>, &'a str), UnitError> {
        let refuse = |fault| error(kind, text, fault);
        let body = text.trim();
        if body.starts_with('-') {
            return Err(refuse(UnitFault::Negative(Range(kind))));
        }
        let end = body
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(body.len());
        let (written, unit) = body.split_at(end);
        let (whole, fraction) = written.split_once('.').unwrap_or((written, "0"));
        if whole.is_empty() || fraction.is_empty() || fraction.contains('.') {
            return Err(refuse(UnitFault::NoNumber));
        }
        if is_exponent(unit) {
            return Err(refuse(UnitFault::Exponent(Range(kind))));
        }
        let fraction = &fraction[..fraction.len().min(MAX_DECIMALS)];
        let digits = whole
            .bytes()
            .chain(fraction.bytes())
            .try_fold(0_u128, |sum, digit| {
                sum.checked_mul(10)?.checked_add(u128::from(digit - b'0'))
            });
        let places = fraction.len() as u32;
        let number = Decimal {
            digits,
            places,
            written,
        };
        Ok((number, unit.trim_start()))
    }

    /// The number times `unit`, rounded down; `None` if it does not fit.
    fn times(&self, unit: u64) -> Option<u128> {
        Some(self.digits?.checked_mul(u128::from(unit))? / 10_u128.pow(self.places))
    }
}

/// Whether `unit`, the text after the digits, starts with an exponent: `e99`, `E-3`.
fn is_exponent(unit: &str) -> bool {
    unit.strip_prefix(['e', 'E']).is_some_and(|rest| {
        rest.strip_prefix(['+', '-'])
            .unwrap_or(rest)
            .starts_with(|c: char| c.is_ascii_digit())
    })
}

/// Bits per second in one unit of a rate.
fn rate_unit(number: &str, unit: &str) -> Result<u64, UnitFault> {
    let lower = unit.to_ascii_lowercase();
    if let Some(p @ ("" | "k" | "m" | "g" | "t")) = lower.strip_suffix("bps") {
        return Err(UnitFault::Hint(alloc::format!(
            "{p}bps is read as bits by people and as bytes by tc; write {number}{p}bit (bits) or \
             {number}{}B/s (bytes)",
            si_prefix(p)
        )));
    }
    let (stem, per_second) = match unit.strip_suffix("/s").or(unit.strip_suffix("/sec")) {
        Some(stem) => (stem, true),
        None => (unit, false),
    };
    let bits = match stem.to_ascii_lowercase().as_str() {
        "bit" => 1,
        "kbit" => 1_000,
        "mbit" => 1_000_000,
        "gbit" => 1_000_000_000,
        "tbit" => 1_000_000_000_000,
        "kibit" => 1 << 10,
        "mibit" => 1 << 20,
        "gibit" => 1 << 30,
        _ => 0,
    };
    if bits != 0 {
        return Ok(bits);
    }
    let Some(bytes) = byte_unit(stem) else {
        return Err(ambiguous(QuantityKind::Rate, number, stem));
    };
    if !per_second {
        return Err(UnitFault::Hint(alloc::format!(
            "{stem} is an amount; write {number}{stem}/s"
        )));
    }
    Ok(bytes * 8)
}

/// Bytes in one unit of a size; `None` if the unit is unknown or ambiguous.
fn byte_unit(unit: &str) -> Option<u64> {
    let exact = match unit {
        "B" => 1,
        "kB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        "KiB" | "kiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => 0,
    };
    if exact != 0 {
        return Some(exact);
    }
    let lower = unit.to_ascii_lowercase();
    match lower.strip_suffix('s').unwrap_or(&lower) {
        "byte" => Some(1),
        "kbyte" => Some(1 << 10),
        "mbyte" => Some(1 << 20),
        "gbyte" => Some(1 << 30),
        _ => None,
    }
}

/// The fault for a unit that is ambiguous or unknown.
fn ambiguous(kind: QuantityKind, number: &str, unit: &str) -> UnitFault {
    let (bits, examples, per) = match kind {
        QuantityKind::Rate => (true, RATE_EXAMPLES, "/s"),
        _ => (false, SIZE_EXAMPLES, ""),
    };
    let lower = unit.to_ascii_lowercase();
    let prefix = lower.trim_end_matches('b');
    let upper = si_prefix(prefix);
    let instead = if bits {
        alloc::format!("write {number}{prefix}bit (bits) or {number}{upper}B/s (bytes)")
    } else {
        alloc::format!("write {number}{upper}B")
    };
    UnitFault::Hint(match lower.as_str() {
        _ if unit == "KB" => alloc::format!(
            "KB can mean 1000 or 1024 bytes; \
             write {number}kB{per} (1000) or {number}KiB{per} (1024)"
        ),
        "b" | "kb" | "mb" | "gb" | "tb" => {
            alloc::format!("{unit} can mean bits or bytes; {instead}")
        }
        "k" | "m" | "g" | "t" => alloc::format!("{unit} is a prefix without a unit; {instead}"),
        _ => return UnitFault::UnknownUnit(examples),
    })
}

/// The prefix of a byte unit in its usual case: `k`, but `M` and `G`.
fn si_prefix(lower: &str) -> String {
    match lower {
        "k" => String::from("k"),
        other => other.to_ascii_uppercase(),
    }
}

fn error(kind: QuantityKind, input: &str, fault: UnitFault) -> UnitError {
    UnitError {
        kind,
        input: input.to_string(),
        fault,
    }
}

const RATE_EXAMPLES: &str = "4mbit, 500kbit, 1.5gbit, 200kB/s, 2MiB/s or 128Kbyte/sec";
const SIZE_EXAMPLES: &str = "1500, 1500B, 64kB or 64KiB";

/// The number of decimals that count. All digits behind these together are worth less than a
/// ten-thousandth of the base unit, even in the largest unit (days). The parser drops them, as it
/// drops every fraction of the base unit.
const MAX_DECIMALS: usize = 18;

//! Quantities: rates, numbers of bytes, lengths of time and points in time.
//!
//! All of them are integers in one base unit: [`Rate`] and [`Amount`] in bit/s, [`Bytes`] in bytes,
//! [`Nanos`] and [`Instant`] in nanoseconds. The rates of a contract count the layer 2 bytes of
//! packets, without preamble, checksum and inter-frame gap.
//!
//! # The one rounding rule
//! **Amounts are rounded down, and waiting times are rounded up.** A rate from text (`1.3MiB/s` is
//! 10905190 bit/s: the decimal arithmetic is exact, and the fraction 0.4 is dropped), credit
//! ([`Rate::bytes_in`]) and shares ([`Rate::portion`]) are rounded down. The time that bytes take
//! ([`Rate::time_for`]) is rounded up. So rounding never makes the sum of promises exceed a
//! capacity, and never makes a packet leave before its time.
//!
//! # Text
//! [`core::str::FromStr`] parses a [`Rate`], [`Bytes`] or [`Nanos`] and fails with [`UnitError`];
//! `units/text.rs` holds the grammar. `Display` of a rate is for people. It shows two forms with at
//! most three decimals, rounded down: `4 Mbit/s (500 kB/s)`. `{:#}` shows the first form only, with
//! all decimals. [`Rate::compact`] is for machines and for contract text: it is exact and parses
//! back to the same rate. `Display` of [`Bytes`] and [`Nanos`] is exact too, and values up to
//! [`Bytes::MAX`] and [`Nanos::MAX`] parse back.

mod text;

use alloc::format;
use alloc::string::String;
use core::fmt;
use core::num::NonZeroU64;

pub use text::{QuantityKind, UnitError, UnitFault};

/// A rate in bits per second, from [`Rate::MIN`] to [`Rate::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(NonZeroU64);

impl Rate {
    /// 1 kbit/s. A full packet of 1,514 bytes takes 12.1 s at this rate. At a lower rate traffic
    /// practically stops, and the kernel's token buckets would overflow in their computations of
    /// bursts and queues.
    pub const MIN: Rate = Rate(NonZeroU64::new(1_000).unwrap());

    /// 1 Tbit/s. The sum of 65,536 such rates fits in 64 bits.
    pub const MAX: Rate = Rate(NonZeroU64::new(1_000_000_000_000).unwrap());

    /// The rate of `bits_per_second`, or `None` outside [`Rate::MIN`] to [`Rate::MAX`].
    pub fn new(bits_per_second: u64) -> Option<Rate> {
        let rate = Rate(NonZeroU64::new(bits_per_second)?);
        (Rate::MIN <= rate && rate <= Rate::MAX).then_some(rate)
    }

    /// The rate in bits per second.
    pub fn bits_per_second(self) -> u64 {
        self.0.get()
    }

    /// Whole bytes per second, rounded down. The kernel's token buckets take a rate in this unit.
    pub fn bytes_per_second(self) -> u64 {
        self.0.get() / 8
    }

    /// The time that `bytes` take at this rate, rounded up. Saturates at `u64::MAX` nanoseconds.
    pub fn time_for(self, bytes: Bytes) -> Nanos {
        let bits = u128::from(bytes.0) * 8;
        let nanos = (bits * NANOS_PER_SECOND).div_ceil(u128::from(self.0.get()));
        Nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// The bytes that this rate carries in `time`, rounded down. Saturates at `u64::MAX` bytes.
    pub fn bytes_in(self, time: Nanos) -> Bytes {
        let bits = u128::from(self.0.get()) * u128::from(time.0) / NANOS_PER_SECOND;
        Bytes(u64::try_from(bits / 8).unwrap_or(u64::MAX))
    }

    /// `numerator / denominator` of this rate, rounded down. `None` if the result is outside
    /// [`Rate::MIN`] to [`Rate::MAX`], or if the denominator is zero.
    pub fn portion(self, numerator: u64, denominator: u64) -> Option<Rate> {
        let bits = (u128::from(self.0.get()) * u128::from(numerator))
            .checked_div(u128::from(denominator))?;
        Rate::new(u64::try_from(bits).ok()?)
    }

    /// The exact text for contracts and state files: `4mbit`, `4194304bit`. It parses back to the
    /// same rate.
    pub fn compact(self) -> String {
        let bits = self.0.get();
        let (size, unit) = COMPACT
            .into_iter()
            .find(|(size, _)| bits.is_multiple_of(*size))
            .unwrap_or((1, "bit"));
        format!("{}{unit}", bits / size)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Amount::from(*self), f)
    }
}

/// A sum or a difference of rates, in bit/s. Unlike a [`Rate`] it may be zero, or above
/// [`Rate::MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Amount(pub u64);

impl Amount {
    /// The amount as a rate, or `None` outside [`Rate::MIN`] to [`Rate::MAX`].
    pub fn as_rate(self) -> Option<Rate> {
        Rate::new(self.0)
    }

    /// `self - other`, or zero if `other` is larger.
    pub fn less(self, other: Amount) -> Amount {
        Amount(self.0.saturating_sub(other.0))
    }

    /// `self + other`. Saturates.
    pub fn plus(self, other: Amount) -> Amount {
        Amount(self.0.saturating_add(other.0))
    }
}

impl Amount {
    /// The first of the two forms of `Display`: `4.194 Mbit/s`.
    pub fn bits_text(self) -> String {
        scaled(self.0, 1, "bit/s")
    }

    /// The second of the two forms of `Display`: `524.288 kB/s`.
    pub fn bytes_text(self) -> String {
        scaled(self.0, 8, "B/s")
    }

    /// The smallest amount not below this one that the first form of `Display` shows exactly;
    /// `u64::MAX` if there is none. A message that says "at least" needs it, because a number that
    /// is rounded down would be too small.
    pub fn rounded_up_for_display(self) -> Amount {
        let (size, _) = prefix(self.0);
        let step = (size / 1000).max(1);
        Amount(self.0.checked_next_multiple_of(step).unwrap_or(u64::MAX))
    }
}

impl From<Rate> for Amount {
    fn from(rate: Rate) -> Amount {
        Amount(rate.bits_per_second())
    }
}

impl core::iter::Sum for Amount {
    fn sum<I: Iterator<Item = Amount>>(amounts: I) -> Amount {
        amounts.fold(Amount(0), Amount::plus)
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            let (size, prefix) = prefix(self.0);
            return f.pad(&decimal(self.0, size.ilog10(), &format!(" {prefix}bit/s")));
        }
        f.pad(&format!("{} ({})", self.bits_text(), self.bytes_text()))
    }
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

impl Bytes {
    /// 1 TiB, the largest number of bytes that text may name.
    pub const MAX: Bytes = Bytes(1 << 40);
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (size, unit) = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")]
            .into_iter()
            .find(|(size, _)| self.0 >= *size && self.0.is_multiple_of(*size))
            .unwrap_or((1, "B"));
        f.pad(&format!("{}{unit}", self.0 / size))
    }
}

/// A length of time in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// 366 days, the longest time that text may name.
    pub const MAX: Nanos = Nanos::from_secs(366 * 24 * 60 * 60);

    /// A length of `seconds`. Saturates.
    pub const fn from_secs(seconds: u64) -> Nanos {
        Nanos(seconds.saturating_mul(1_000_000_000))
    }

    /// A length of `millis` milliseconds. Saturates.
    pub const fn from_millis(millis: u64) -> Nanos {
        Nanos(millis.saturating_mul(1_000_000))
    }

    /// A length of `micros` microseconds. Saturates.
    pub const fn from_micros(micros: u64) -> Nanos {
        Nanos(micros.saturating_mul(1_000))
    }
}

impl From<Nanos> for core::time::Duration {
    fn from(nanos: Nanos) -> core::time::Duration {
        core::time::Duration::from_nanos(nanos.0)
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const HOUR: u64 = 3_600_000_000_000;
        const MINUTE: u64 = 60_000_000_000;
        let whole = |size: u64| self.0 >= size && self.0.is_multiple_of(size);
        let text = match self.0 {
            0 => String::from("0s"),
            _ if whole(HOUR) => format!("{}h", self.0 / HOUR),
            _ if whole(MINUTE) => format!("{}min", self.0 / MINUTE),
            1_000_000_000.. => decimal(self.0, 9, "s"),
            1_000_000.. => decimal(self.0, 6, "ms"),
            1_000.. => decimal(self.0, 3, "us"),
            _ => decimal(self.0, 0, "ns"),
        };
        f.pad(&text)
    }
}

/// A point on the caller's monotonic clock, in nanoseconds since a start that the caller chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub u64);

impl Instant {
    /// The instant `wait` later. Saturates at `u64::MAX` nanoseconds.
    pub fn after(self, wait: Nanos) -> Instant {
        Instant(self.0.saturating_add(wait.0))
    }

    /// The time from `earlier` to `self`, or zero if `earlier` is not earlier.
    pub fn since(self, earlier: Instant) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}

/// `value / parts` of a unit, rounded down to at most three decimals, with the largest SI prefix
/// that leaves a nonzero digit before the point. Below 1000 units there is no prefix.
fn scaled(value: u64, parts: u64, unit: &str) -> String {
    let (size, prefix) = prefix(value / parts);
    let thousandths = u128::from(value) * 1000 / u128::from(parts) / u128::from(size);
    let thousandths = u64::try_from(thousandths).unwrap_or(u64::MAX);
    decimal(thousandths, 3, &format!(" {prefix}{unit}"))
}

/// The largest SI prefix whose size is at most `value`, with that size; `""` and 1 below 1000.
fn prefix(value: u64) -> (u64, &'static str) {
    let prefixes = [
        (1_000_000_000_000, "T"),
        (1_000_000_000, "G"),
        (1_000_000, "M"),
        (1_000, "k"),
    ];
    let fits = prefixes.into_iter().find(|(size, _)| value >= *size);
    fits.unwrap_or((1, ""))
}

/// `value / 10^places` written exactly, without trailing zeros.
fn decimal(value: u64, places: u32, unit: &str) -> String {
    let size = 10_u64.pow(places);
    let rest = value % size;
    if rest == 0 {
        return format!("{}{unit}", value / size);
    }
    let fraction = format!("{rest:0width$}", width = places as usize);
    format!("{}.{}{unit}", value / size, fraction.trim_end_matches('0'))
}

/// Units of [`Rate::compact`], largest first.
const COMPACT: [(u64, &str); 3] = [
    (1_000_000_000, "gbit"),
    (1_000_000, "mbit"),
    (1_000, "kbit"),
];

const NANOS_PER_SECOND: u128 = 1_000_000_000;

#[cfg(test)]
mod tests;

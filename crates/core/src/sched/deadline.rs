//! Encoding of a relative deadline, the time between eligible time and deadline, in the 12 bits
//! that an entry of a calendar has for it. No function fails.
//!
//! The encoding is a floating-point number, rounded down: steps of 64 ns below 8,192 ns, eight
//! binary digits above. So the coded deadline is at most 1/128 shorter than the exact one, or 63 ns
//! if that is more, and never longer. A deadline above 4.8 hours counts as 4.8 hours. When the flow
//! is eligible, the due calendar rounds its deadline down once more. [`effective_bound`] contains
//! both roundings, for tests and for users of the library.
//!
//! Admission subtracts both by `Resolution::SCHEDULER` of `admission::timing::link`; its 1/113 and
//! 576 ns must change with `DIGITS` and `UNIT`. Bursts of limits and the CDVT of members of an
//! overbooked server are stored in this code too. A cell contract outside servers keeps its CDVT to
//! the nanosecond, at most 4.3 s; only the deadline in an entry of its flow is rounded.

use crate::units::Nanos;

/// The shortest delay bound that the scheduler may use in place of `bound`, as long as no waiting
/// packet has missed its deadline. The bound that the scheduler uses lies between the result and
/// `bound`. A bound above 4.8 hours counts as 4.8 hours.
///
/// The difference contains two roundings: to at most 1/128 less, or 63 ns if that is more, for the
/// entry of a flow that waits; and to 1/1024 of the bound less, or 512 ns if that is more, when the
/// flow is eligible.
pub fn effective_bound(bound: Nanos) -> Nanos {
    let coded = decode(encode(bound.0));
    Nanos(coded.saturating_sub((coded >> 10).max(512)))
}

/// The code of a number of nanoseconds, rounded down. More than 4.8 hours count as 4.8 hours.
#[inline(always)]
pub(super) fn encode(nanos: u64) -> u32 {
    let units = nanos >> UNIT;
    if units < 1 << DIGITS {
        return units as u32;
    }
    let exponent = units.ilog2() - DIGITS;
    let code = (exponent + 1) << DIGITS | (units >> exponent) as u32 & ((1 << DIGITS) - 1);
    code.min(LONGEST)
}

/// The nanoseconds of a code.
#[inline(always)]
pub(super) fn decode(code: u32) -> u64 {
    let mantissa = u64::from(code & ((1 << DIGITS) - 1));
    let units = match code >> DIGITS {
        0 => mantissa,
        exponent => (mantissa | 1 << DIGITS) << (exponent - 1),
    };
    units << UNIT
}

/// Not a deadline: the flow is queued again when the entry falls due.
pub(super) const REQUEUE: u32 = (1 << 12) - 1;

/// Not a deadline: a member of a server, which becomes eligible when the entry falls due.
pub(super) const MEMBER: u32 = REQUEUE - 1;

/// The code of the longest bound.
const LONGEST: u32 = MEMBER - 1;

/// Binary logarithm of the smallest step, in ns.
const UNIT: u32 = 6;

/// Binary digits behind the leading one.
const DIGITS: u32 = 7;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_coded_bound_is_at_most_one_part_in_128_shorter(
            nanos in prop_oneof![0_u64..1 << 20, 0_u64..1 << 43],
        ) {
            let back = decode(encode(nanos));
            prop_assert!(back <= nanos);
            prop_assert!(nanos - back <= (nanos >> DIGITS).max((1 << UNIT) - 1));
            prop_assert_eq!(encode(back), encode(nanos));
        }

        #[test]
        fn longer_bounds_have_greater_codes(a in 0_u64..1 << 43, b in 0_u64..1 << 43) {
            prop_assert_eq!(encode(a.min(b)).cmp(&encode(a.max(b))).is_le(), true);
        }
    }

    #[test]
    fn every_code_decodes_and_encodes_to_itself() {
        for code in 0..=LONGEST {
            assert_eq!(encode(decode(code)), code);
        }
        assert_eq!(encode(u64::MAX), LONGEST);
        assert_eq!(effective_bound(Nanos(100)), Nanos(0));
        assert_eq!(effective_bound(Nanos(100_000)).0, 99_840 - 512);
    }
}

//! Divides the deadline of a message among the hosts on its way: [`share_slack`]. It fails with
//! [`PathTooLong`].
//!
//! Each hop first holds the shortest bound that it can keep. What the deadline has beyond the sum
//! of these bounds is slack. A hop that holds more than its shortest bound leaves more room for
//! channels that come later, so the slack goes back to the hops in equal parts (paper RTC, section
//! 2, the reverse phase of establishment).

use alloc::vec::Vec;

use crate::units::Nanos;

/// The shortest bounds of all hops together are longer than the deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathTooLong {
    /// The sum of the shortest bounds: the best deadline on this path.
    pub least: Nanos,
    /// The deadline that was asked for.
    pub deadline: Nanos,
}

impl core::fmt::Display for PathTooLong {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (least, deadline) = (self.least, self.deadline);
        write!(
            f,
            "the hops need {least} together, more than the deadline of {deadline}"
        )
    }
}

impl core::error::Error for PathTooLong {}

/// The bounds of all hops, from their shortest bounds: each one gets an equal part of the slack, so
/// they sum to the deadline. What cannot be divided, less than a nanosecond for each hop, goes to
/// the first ones. Without hops the result is empty.
///
/// # Errors
/// [`PathTooLong`] if the shortest bounds exceed the deadline.
pub fn share_slack(least: &[Nanos], deadline: Nanos) -> Result<Vec<Nanos>, PathTooLong> {
    let sum = least
        .iter()
        .fold(0_u64, |sum, bound| sum.saturating_add(bound.0));
    let too_long = PathTooLong {
        least: Nanos(sum),
        deadline,
    };
    let slack = deadline.0.checked_sub(sum).ok_or(too_long)?;
    let hops = least.len() as u64;
    let part = slack.checked_div(hops).unwrap_or(0);
    let rest = slack.checked_rem(hops).unwrap_or(0);
    let bounds = least.iter().zip(0..).map(|(bound, hop)| {
        let more = part + u64::from(hop < rest);
        Nanos(bound.0 + more)
    });
    Ok(bounds.collect())
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString as _;

    use super::*;

    #[test]
    fn the_slack_is_shared_in_equal_parts_and_the_bounds_sum_to_the_deadline() {
        let share = |least: &[u64], deadline| {
            let least: Vec<Nanos> = least.iter().copied().map(Nanos).collect();
            share_slack(&least, Nanos(deadline))
                .map(|bounds| bounds.iter().map(|bound| bound.0).collect::<Vec<u64>>())
        };
        assert_eq!(share(&[10, 20, 30], 90), Ok([20, 30, 40].to_vec()));
        assert_eq!(share(&[10, 20, 30], 62), Ok([11, 21, 30].to_vec()));
        assert_eq!(share(&[10, 20], 30), Ok([10, 20].to_vec()));
        assert_eq!(share(&[], 30), Ok(Vec::new()));
        let too_long = |least, deadline| PathTooLong {
            least: Nanos(least),
            deadline: Nanos(deadline),
        };
        assert_eq!(share(&[10, 20], 29), Err(too_long(30, 29)));
        // A sum beyond all numbers does not wrap.
        let huge = share(&[u64::MAX, u64::MAX], 5);
        assert_eq!(huge, Err(too_long(u64::MAX, 5)));
        let text = too_long(30_000_000, 20_000_000).to_string();
        assert_eq!(
            text,
            "the hops need 30ms together, more than the deadline of 20ms"
        );
    }
}

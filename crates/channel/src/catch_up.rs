//! Lets a channel over several hosts be in time again after a stop of one of them
//! (docs/reference/contracts.md, *After a stop*): handlers and links serve it a little faster than
//! Rmax ([`MessageRate::with_spare`]), and there is room for what comes at once then
//! ([`most_behind`]). Nothing here fails.

use netnice_core::contract::{Channel, MessageRate};
use netnice_core::units::Nanos;
use netnice_stack::StackError;

/// How far a channel over several hosts may be behind after a stop of one of them, without a loss:
/// twice its deadline, and at most a second.
pub fn most_behind(channel: &Channel) -> Nanos {
    let twice = Nanos(channel.deadline().0.saturating_mul(2));
    twice.min(Nanos::from_secs(1))
}

/// How many messages a channel sends at a rate within a time.
pub fn messages_within(time: Nanos, rate: MessageRate) -> u64 {
    let messages = u128::from(time.0) * u128::from(rate.get()) / NANOS_PER_SECOND;
    u64::try_from(messages).unwrap_or(u64::MAX)
}

/// The refusal to hold the promise of a link for a channel of this Rmax, with a sentence that
/// explains the higher rate in it.
pub fn explain_spare(refusal: StackError, rmax: MessageRate) -> StackError {
    match refusal {
        StackError::Refused { by, text } => StackError::Refused {
            by,
            text: format!(
                "{text} (a link serves a channel of rmax={rmax} as {}, so that it catches up \
                 after a stop)",
                rmax.with_spare()
            ),
        },
        other => other,
    }
}

const NANOS_PER_SECOND: u128 = 1_000_000_000;

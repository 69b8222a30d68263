//! The output port of a switch before a receiver ([`SwitchPort`]): how long the packets of all
//! channels that leave through it can wait there. [`SwitchPort::delay`] fails with [`Overloaded`]
//! if the channels need more than the port's rate.
//!
//! The switch sends the packets of channels before all others, in the order in which they arrive.
//! One packet of others can be on the wire already. So the port offers all channels together a
//! rate-latency service curve (Le Boudec and Thiran, Network Calculus, proposition 1.3.4). The
//! packets of a channel that enter are bounded by a token bucket ([`EnteringChannel`]), and the
//! delay of the sum is at most the horizontal deviation of the two curves (theorem 1.4.2):
//!
//! ```text
//! (L + Σ Mᵢ (Bᵢ + Rᵢ Sᵢ)) / C,  if Σ Mᵢ Rᵢ ≤ C
//! ```
//! docs/reference/contracts.md (theorem 8) has the proof. The result is exact, rounded up to whole
//! nanoseconds.

use core::fmt;

use crate::contract::MessageRate;
use crate::units::{Amount, Bytes, Nanos, Rate};

/// An output port that sends packets of channels with strict priority, first in first out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchPort {
    /// C: the rate at which the port sends.
    pub rate: Rate,
    /// L: the longest other packet, as the wire carries it.
    pub longest: Bytes,
}

/// A channel whose packets enter a port.
///
/// In any interval of the length t the port receives at most M (B + R (t + S)) bytes of it: the
/// packets of a message enter within S after the message has arrived at the source, or after the
/// time that is 1/R later than that of the message before, whichever is later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnteringChannel {
    /// M: the longest message, all its packets as the wire carries them.
    pub message: Bytes,
    /// R: messages per second.
    pub rmax: MessageRate,
    /// B: messages that may arrive at the source at once.
    pub bmax: u32,
    /// S: the sum of the bounds of the hosts before the port.
    pub before: Nanos,
}

/// The channels together need more than the rate of the port, so that no bound exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overloaded {
    /// What the channels need in the long run, Σ M R.
    pub needed: Amount,
    /// The rate of the port.
    pub rate: Rate,
}

impl fmt::Display for Overloaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Rounded down, it could look like the rate.
        let (needed, rate) = (self.needed.rounded_up_for_display(), self.rate);
        write!(
            f,
            "the channels would need {needed} together, more than the port's {rate}"
        )
    }
}

impl core::error::Error for Overloaded {}

impl SwitchPort {
    /// The longest time that a packet of these channels waits at the port until its last bit is on
    /// the wire, counted from its last bit's arrival at the switch. Without channels it is the time
    /// of one other packet. Saturates.
    ///
    /// # Errors
    /// [`Overloaded`] if the channels need more than the port's rate in the long run.
    pub fn delay(
        &self,
        channels: impl IntoIterator<Item = EnteringChannel>,
    ) -> Result<Nanos, Overloaded> {
        // Both sums are exact. Bursts are in bytes · 10⁻⁹, because R S is messages · 10⁻⁹.
        let (mut rates, mut bursts) = (0_u128, 0_u128);
        for channel in channels {
            let message = u128::from(channel.message.0);
            let rmax = u128::from(channel.rmax.get());
            rates = rates.saturating_add(message * 8 * rmax);
            let messages =
                u128::from(channel.bmax) * NANOS_PER_SECOND + rmax * u128::from(channel.before.0);
            bursts = bursts.saturating_add(message.saturating_mul(messages));
        }
        let rate = self.rate.bits_per_second();
        if rates > u128::from(rate) {
            return Err(Overloaded {
                needed: Amount(u64::try_from(rates).unwrap_or(u64::MAX)),
                rate: self.rate,
            });
        }
        let longest = u128::from(self.longest.0) * NANOS_PER_SECOND;
        let bits = bursts.saturating_add(longest).saturating_mul(8);
        let nanos = bits.div_ceil(u128::from(rate));
        Ok(Nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }
}

const NANOS_PER_SECOND: u128 = 1_000_000_000;

#[cfg(test)]
mod tests;

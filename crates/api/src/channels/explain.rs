//! How long the hops of a channel keep its messages: [`HopCounts`], which each hop counts by its
//! own clock, and [`ExplainedChannel`], which has those of all hops. The types are plain data.

use serde::{Deserialize, Serialize};

use super::RemoteContract;

/// What a hop did with the messages of a channel since the channel was established there.
///
/// The laxity of a message at a hop is the time that was left of the hop's bound when the message
/// left; it is negative if the hop kept the message for longer. docs/reference/peer.md says from
/// when to when each hop counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HopCounts {
    /// Messages that left the hop: the sum of `laxities`.
    pub messages: u64,
    /// Of these, messages that the hop kept for longer than its bound: the first two of `laxities`.
    pub late: u64,
    /// Of the late ones, messages for which recorded stops of the hop's thread took at least as
    /// long as the message was late.
    pub excused: u64,
    /// Messages that the hop did not pass on: packets of them did not arrive or did not leave, or
    /// there was no room.
    pub lost: u64,
    /// The least laxity in nanoseconds; absent before the first message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub least_laxity_ns: Option<i64>,
    /// Messages by laxity: late by more than the bound, late by less, and on time by the number of
    /// whole eighths of the bound that were left, 0 to 7. More than the bound counts as 7.
    pub laxities: [u64; LAXITIES],
    /// Stops of the hop's thread since it started; absent if the hop does not record them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stops: Option<HopStops>,
}

/// Stretches of time in which the machine did not let a thread run that had work to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HopStops {
    /// Number of stops.
    pub number: u64,
    /// Sum of their lengths, in nanoseconds.
    pub total_ns: u64,
    /// The length of the longest one, in nanoseconds.
    pub longest_ns: u64,
}

impl HopCounts {
    /// What contradicts itself in the counts; `None` if nothing does.
    pub fn fault(&self) -> Option<&'static str> {
        let sum = |counts: &[u64]| {
            let mut counts = counts.iter();
            counts.try_fold(0_u64, |sum, count| sum.checked_add(*count))
        };
        if sum(&self.laxities) != Some(self.messages) {
            return Some("the numbers of laxities do not sum to the messages");
        }
        if sum(&self.laxities[..LATE]) != Some(self.late) {
            return Some("the first two numbers of laxities do not sum to the late messages");
        }
        if self.excused > self.late {
            return Some("more messages are excused than late");
        }
        if self.least_laxity_ns.is_none() && self.messages > 0 {
            return Some("the least laxity is absent");
        }
        let of_stops = self.stops.filter(|stops| stops.longest_ns > stops.total_ns);
        of_stops.map(|_| "the longest stop is longer than all stops")
    }
}

/// [`FromProgram::Explain`](super::FromProgram::Explain).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExplainChannel {
    /// The first digits of the identifier, 1 to 32.
    pub channel: String,
}

/// [`ToProgram::Count`](super::ToProgram::Count).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountHop {
    /// The number of the question, for the reply.
    pub number: u64,
    /// The identifier.
    pub channel: String,
}

/// [`FromProgram::Counted`](super::FromProgram::Counted).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CountedHop {
    /// The number of the question.
    pub number: u64,
    /// What the end did; absent if the channel is not open there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<HopCounts>,
}

/// [`ToProgram::Explained`](super::ToProgram::Explained).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedChannel {
    /// The first 8 digits of the identifier.
    pub channel: String,
    /// The host that was asked.
    pub host: String,
    /// The service at the sink.
    pub service: String,
    /// The host of the sink.
    pub sink: String,
    /// The contract.
    pub contract: RemoteContract,
    /// All hosts, the source first.
    pub hops: Vec<ExplainedHop>,
}

/// A host of an explained channel. It has `counts` or `fault`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedHop {
    /// The host.
    pub host: String,
    /// How long it may keep a message, in nanoseconds.
    pub bound_ns: u64,
    /// What it did, as it says itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<HopCounts>,
    /// Why its counts are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// [`ToProgram::NotExplained`](super::ToProgram::NotExplained).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotExplained {
    /// The digits of the question.
    pub channel: String,
    /// Why.
    pub reason: String,
    /// True if the user may not ask for this channel.
    pub is_forbidden: bool,
}

/// The number of classes of laxity.
pub const LAXITIES: usize = LATE + 8;

/// The classes of late messages.
const LATE: usize = 2;

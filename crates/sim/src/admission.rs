//! The sender of a channel and the admission of its messages: an [`AdmissionQueue`] applies the
//! channel's overload policy to messages beyond the contract (paper RTC, section 3.1;
//! [`netnice_core::sched::MessageGate`]). The result for a message is an [`Admission`]. No call
//! fails.
//!
//! A sender that has to wait holds its messages back, in order, until the first of them is admitted
//! or dropped.

use std::collections::VecDeque;

use netnice_core::contract::Channel;
use netnice_core::sched::{GateDecision, Guarantee, MessageGate, Overload, Service};
use netnice_core::units::{Bytes, Instant, Nanos};

/// The gate of one channel, and the messages that the sender holds back.
#[derive(Debug)]
pub(crate) struct AdmissionQueue {
    gate: MessageGate,
    held_back: VecDeque<Bytes>,
}

/// The decision on the first message that the sender holds back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Admitted, with this logical arrival.
    Admitted { size: Bytes, arrival: u64 },
    /// Dropped; the sender is informed.
    Dropped,
    /// To be offered again at this time.
    RetryAt(u64),
    /// There is no message, or the sender waits for room.
    Wait,
}

impl AdmissionQueue {
    /// A queue without messages, for a channel whose overload policy is `policy`.
    pub(crate) fn new(channel: &Channel, policy: Overload) -> AdmissionQueue {
        AdmissionQueue {
            gate: MessageGate::new(channel, policy),
            held_back: VecDeque::new(),
        }
    }

    /// Adds a message of the sender. Returns whether it can be offered now, with no message before
    /// it.
    pub(crate) fn offer(&mut self, size: Bytes) -> bool {
        self.held_back.push_back(size);
        self.held_back.len() == 1
    }

    /// Offers the first held-back message to the gate.
    pub(crate) fn next(&mut self, now: u64) -> Admission {
        let Some(size) = self.held_back.front().copied() else {
            return Admission::Wait;
        };
        let admission = match self.gate.handle_message(size, Instant(now)) {
            GateDecision::Queued { arrival } => {
                let arrival = arrival.0;
                Admission::Admitted { size, arrival }
            }
            GateDecision::Dropped => Admission::Dropped,
            GateDecision::WaitUntil(at) => return Admission::RetryAt(at.0),
            GateDecision::WaitForRoom => return Admission::Wait,
        };
        self.held_back.pop_front();
        admission
    }

    /// A message has left the queue. Returns whether a sender that waits for room may offer again.
    pub(crate) fn handle_sent(&mut self) -> bool {
        self.gate.handle_sent() && !self.held_back.is_empty()
    }

    /// Number of messages that the sender holds back.
    pub(crate) fn held_back(&self) -> usize {
        self.held_back.len()
    }

    /// The sender ends: drops the messages that it holds back.
    pub(crate) fn close(&mut self) {
        self.held_back.clear();
    }
}

/// The service of a flow on the link. A channel has the flow's overload policy. Behind a processor
/// the pieces of its messages come late by up to the part of the deadline for processing
/// (`processing`, or the whole deadline).
pub(crate) fn link_service(
    service: Service,
    overload: Option<Overload>,
    behind_processor: bool,
    processing: Option<Nanos>,
) -> Service {
    let on_link = |channel: Channel| {
        let channel = channel.with_overload(overload.unwrap_or(channel.overload()));
        let whole = Nanos(channel.deadline().0 - 1).min(Channel::MAX_PROCESSING);
        let processing = processing.unwrap_or(whole).min(whole);
        match behind_processor {
            true => channel.with_processing(processing).unwrap_or(channel),
            false => channel,
        }
    };
    match service {
        Service::Channel(channel) => Service::Channel(on_link(channel)),
        Service::Limited {
            guarantee: Guarantee::Channel(channel),
            max,
        } => Service::Limited {
            guarantee: Guarantee::Channel(on_link(channel)),
            max,
        },
        service => service,
    }
}

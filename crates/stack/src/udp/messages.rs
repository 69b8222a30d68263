//! The messages of a real-time channel at the program's side: the gate by the contract's overload
//! policy ([`netnice_core::sched::MessageGate`]), Mmax, and the counts ([`MessageCounts`]).
//!
//! A message is refused with [`StackError::WouldBlock`] if the policy makes it wait, with
//! [`StackError::MessageDropped`] if the policy drops it, and with [`StackError::MessageTooLong`]
//! if it is longer than Mmax. The gate serves the program that uses it and protects nobody: the
//! driver keeps the contract whatever a program submits.
//!
//! A message waits from the call that queues its first packet until the driver has returned the
//! last one that was queued.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use netnice_core::contract::{Channel, Contract, Overload};
use netnice_core::sched::{GateDecision, MessageGate};
use netnice_core::units;
use netnice_ring::MessagePart;

use crate::clock::monotonic_ns;
use crate::error::StackError;

/// Numbers of messages of a real-time channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageCounts {
    /// Messages that were queued.
    pub queued: u64,
    /// Of these, messages with packets that the driver has not returned.
    pub waiting: u64,
    /// Messages that the overload policy made wait before they were queued or given up.
    pub held_back: u64,
    /// Messages that the overload policy dropped.
    pub dropped: u64,
}

/// The messages of a flow; see the module. Without a `channel` contract nothing is refused.
#[derive(Default)]
pub(super) struct Messages {
    gate: Option<(Channel, MessageGate)>,
    /// The number of the last packet of each waiting message, oldest first, and whether the gate
    /// counts the message as waiting.
    waiting: VecDeque<(u64, bool)>,
    /// Bytes of the frames of the message that was queued last.
    bytes: u64,
    counts: MessageCounts,
    /// The message that is offered next has been held back already.
    is_held_back: bool,
    /// When the message that is offered next can be queued, if the policy spaces messages.
    retry_at: Option<Instant>,
    /// When the message that is offered next arrived, if the program has set it, in ns of
    /// `CLOCK_MONOTONIC`.
    arrival: Option<u64>,
}

/// A packet that the messages of its flow admit. Nothing has changed until it is queued.
pub(super) struct AdmittedPacket {
    /// How the record belongs to its message.
    pub(super) part: MessagePart,
    /// Bytes of the message with the packet.
    bytes: u64,
    /// The gate after the message, if the packet begins one.
    begins: Option<Option<MessageGate>>,
}

impl Messages {
    /// The messages of a flow with this contract.
    pub(super) fn new(contract: &str) -> Messages {
        let mut messages = Messages::default();
        messages.set_contract(contract);
        messages
    }

    /// Takes over another contract. Messages that wait keep their places.
    pub(super) fn set_contract(&mut self, contract: &str) {
        let contract = contract.parse::<Contract>().ok();
        let channel = contract.and_then(|contract| contract.channel());
        self.gate = channel.map(|channel| match &self.gate {
            Some((_, gate)) => (channel, gate.changed(&channel, channel.overload())),
            None => (channel, MessageGate::new(&channel, channel.overload())),
        });
        self.retry_at = None;
    }

    /// The longest message in bytes; `None` without a channel.
    pub(super) fn longest(&self) -> Option<u64> {
        self.gate.as_ref().map(|(channel, _)| channel.mmax().0)
    }

    pub(super) fn set_arrival(&mut self, arrival: Option<u64>) {
        self.arrival = arrival;
    }

    /// When the message that was refused last can be queued, if only time has to pass.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Whether the policy decides on messages by what the driver has returned.
    pub(super) fn needs_returns(&self) -> bool {
        let policy = self.gate.as_ref().map(|(channel, _)| channel.overload());
        matches!(
            policy,
            Some(Overload::Block | Overload::Space | Overload::Drop)
        )
    }

    pub(super) fn counts(&self) -> MessageCounts {
        MessageCounts {
            waiting: self.waiting.len() as u64,
            ..self.counts
        }
    }

    /// Fails if a message of so many bytes is longer than the contract permits.
    #[inline]
    pub(super) fn fits(&self, bytes: u64) -> Result<(), StackError> {
        match self.longest() {
            Some(mmax) if bytes > mmax => Err(StackError::MessageTooLong { bytes, mmax }),
            _ => Ok(()),
        }
    }

    /// Decides on a packet with a frame of so many bytes. Fails if the message would be too long,
    /// or if it begins a message that is refused.
    #[inline]
    pub(super) fn admit(
        &mut self,
        frame: u64,
        continues: bool,
    ) -> Result<AdmittedPacket, StackError> {
        let before = if continues { self.bytes } else { 0 };
        let bytes = before.saturating_add(frame);
        self.fits(bytes)?;
        if continues {
            return Ok(AdmittedPacket {
                part: MessagePart::Continues,
                bytes,
                begins: None,
            });
        }
        let Some((channel, gate)) = &self.gate else {
            return Ok(AdmittedPacket {
                part: MessagePart::Begins,
                bytes,
                begins: Some(None),
            });
        };
        let (bmax, now) = (channel.bmax(), monotonic_ns());
        let mut gate = *gate;
        match gate.handle_message(units::Bytes(frame), units::Instant(now)) {
            GateDecision::Queued { .. } => Ok(AdmittedPacket {
                part: MessagePart::Arrived(self.arrival.unwrap_or(now)),
                bytes,
                begins: Some(Some(gate)),
            }),
            GateDecision::WaitUntil(at) => {
                let left = Duration::from_nanos(at.0.saturating_sub(now));
                self.hold_back(Instant::now().checked_add(left));
                Err(StackError::WouldBlock)
            }
            GateDecision::WaitForRoom => {
                self.hold_back(None);
                Err(StackError::WouldBlock)
            }
            GateDecision::Dropped => {
                self.counts.dropped += 1;
                self.arrival = None;
                Err(StackError::MessageDropped { bmax })
            }
        }
    }

    /// An admitted packet was queued and has this number.
    #[inline]
    pub(super) fn queued(&mut self, packet: AdmittedPacket, number: u64) {
        self.bytes = packet.bytes;
        let Some(begun) = packet.begins else {
            match self.waiting.back_mut() {
                Some((last, _)) => *last = number,
                None if self.gate.is_some() => self.waiting.push_back((number, false)),
                None => {}
            }
            return;
        };
        if let (Some(after), Some((_, gate))) = (begun, &mut self.gate) {
            *gate = after;
            self.waiting.push_back((number, true));
            self.counts.queued += 1;
            (self.is_held_back, self.retry_at, self.arrival) = (false, None, None);
        }
    }

    /// The driver has returned so many packets since the flow was opened.
    #[inline]
    pub(super) fn returned(&mut self, packets: u64) {
        while let Some((last, is_counted)) = self.waiting.front().copied()
            && last < packets
        {
            self.waiting.pop_front();
            if let (true, Some((_, gate))) = (is_counted, &mut self.gate) {
                gate.handle_sent();
            }
        }
    }

    fn hold_back(&mut self, retry_at: Option<Instant>) {
        self.retry_at = retry_at;
        if !std::mem::replace(&mut self.is_held_back, true) {
            self.counts.held_back += 1;
        }
    }
}

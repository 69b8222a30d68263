//! Limits on flows with a guarantee: cells, slices, channels. A limit (`max` of
//! [`Service::Limited`](super::Service::Limited)) is a rate r and a burst.
//!
//! ```text
//! max r   not before TATm - burst; sent at t: TATm = max(t, TATm) + length / r
//! ```
//! TATm is the theoretical arrival time of the limit, as in the GCRA.
//!
//! **The limit comes before the guarantee.** For the guarantee, the next packet arrives when the
//! limit permits the packet, at a queue that was empty until then. So a packet is eligible when
//! both permit it. The promises to other flows stay valid, because a flow under a limit only offers
//! less. A slice follows its rule for a packet that arrives at the empty queue (`sched::slice`). A
//! cell gets no credit for the wait. A message keeps its logical arrival and its deadline, like a
//! message whose processing took long; admission counts the part of the deadline that the limit may
//! use up (`admission::timing`, `Promise::Limited`). If the limit permits a message only after its
//! deadline, the message counts as arrived at that time, so that it is not sent before messages
//! that can be in time.
//!
//! Every departure counts against the limit: guaranteed, left-over and early. No function of this
//! module fails.
//!
//! The state of a share contains its limit (`sched::share`). For the other services the limits are
//! in a separate list, with 24 bytes for each flow number up to the last one that has had a limit.
//! The test for a limit reads one bit of a word that is read anyway.

use alloc::vec::Vec;

use super::Scheduler;
use super::channel::Reading;
use super::deadline;
use super::flow::{Flag, ServiceState};
use super::pace::{Moment, Pace};
use super::service::Packet;
use crate::units::{Nanos, Rate};

/// The state of a flow's limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct LimitState {
    /// 1 / max.
    pace: Pace,
    /// Nanoseconds of TATm as a [`Moment`].
    at: u64,
    part: u16,
    /// The burst as a code of `deadline`, rounded down.
    burst: u16,
}

/// The limits of flows, by flow number. The list grows to the last flow that gets a limit, and
/// never shrinks.
pub(super) type Limits = Vec<Option<LimitState>>;

const _: () = assert!(size_of::<Option<LimitState>>() == 24);

impl LimitState {
    fn new((rate, burst): (Rate, Nanos), used: Moment) -> LimitState {
        LimitState {
            pace: Pace::of(rate),
            at: used.nanos,
            part: used.part,
            // Below 2^12.
            burst: deadline::encode(burst.0) as u16,
        }
    }

    fn tat(&self) -> Moment {
        Moment {
            nanos: self.at,
            part: self.part,
        }
    }
}

/// The time from which a limit permits the next packet.
#[inline(always)]
pub(super) fn allowed_from(tat: Moment, burst: u16) -> u64 {
    tat.nanos.saturating_sub(deadline::decode(u32::from(burst)))
}

/// TATm after a packet of this length left at `at`.
#[inline(always)]
pub(super) fn after(tat: Moment, at: u64, pace: Pace, length: u32) -> Moment {
    tat.max(Moment::at(at)).saturating_plus(pace.span(length))
}

impl Scheduler {
    /// Sets a flow's limit, with `used` as its TATm, or removes it.
    pub(super) fn set_limit(&mut self, id: u32, max: Option<(Rate, Nanos)>, used: Moment) {
        let flow = &mut self.flows[id as usize];
        let Some(max) = max else {
            return flow.clear(Flag::Limited);
        };
        flow.set(Flag::Limited);
        let length = self.limits.len().max(id as usize + 1);
        self.limits.resize(length, None);
        self.limits[id as usize] = Some(LimitState::new(max, used));
    }

    /// TATm of a flow's limit; 0 if it has none.
    pub(super) fn used(&self, id: u32) -> Moment {
        let flow = &self.flows[id as usize];
        match (&flow.service, self.limit(id)) {
            (ServiceState::Share(share), _) => share.used(),
            (_, Some(limit)) => limit.tat(),
            (_, None) => Moment::at(0),
        }
    }

    /// A flow with a limit has a new head. For the flow's contract the head arrives now, or when
    /// the limit permits it.
    #[cold]
    pub(super) fn arrive_at_limit(&mut self, id: u32, packet: Packet, was_empty: bool) {
        let (now, allowed_from) = (self.now, self.allowed_from(id));
        let reading = self.reading();
        let begins = packet.message.map(|arrived| arrived.0);
        let length = packet.length.0;
        match &mut self.flows[id as usize].service {
            ServiceState::Channel(channel) if allowed_from > now => {
                channel.arrive_at(begins, length, (reading, allowed_from), was_empty)
            }
            service if allowed_from > now => {
                service.wake(packet, Reading::new(allowed_from, allowed_from));
            }
            service if was_empty => service.wake(packet, reading),
            ServiceState::Cell(cell) => cell.wake(allowed_from),
            ServiceState::Channel(channel) => channel.continue_or_begin(begins, length),
            _ => {}
        }
    }

    /// Whether the limit of a flow permits no packet yet. If so, inserts the flow into the sleepers
    /// until the limit permits one.
    #[cold]
    pub(super) fn hold_at_limit(&mut self, id: u32) -> bool {
        let allowed_from = self.allowed_from(id);
        let is_held = allowed_from > self.now;
        if is_held {
            self.cancel(id);
            self.sleep_then_requeue(id, allowed_from);
        }
        is_held
    }

    /// The time from which the limit of a flow permits the next packet; 0 if the flow has no limit
    /// in `limits`.
    #[cold]
    pub(super) fn allowed_from(&self, id: u32) -> u64 {
        self.limit(id)
            .map_or(0, |limit| allowed_from(limit.tat(), limit.burst))
    }

    /// A packet of a flow with a limit left.
    #[cold]
    pub(super) fn charge_limit(&mut self, id: u32, at: u64, length: u32) {
        if let Some(Some(limit)) = self.limits.get_mut(id as usize) {
            let tat = after(limit.tat(), at, limit.pace, length);
            (limit.at, limit.part) = (tat.nanos, tat.part);
        }
    }

    fn limit(&self, id: u32) -> Option<&LimitState> {
        let flow = &self.flows[id as usize];
        let limit = self.limits.get(id as usize)?.as_ref();
        limit.filter(|_| flow.is(Flag::Limited))
    }
}

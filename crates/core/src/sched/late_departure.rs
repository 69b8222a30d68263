//! Corrects the scheduler's state after a packet left later than the scheduler decided, or did not
//! leave at all.
//!
//! **Late.** Between [`Scheduler::poll`] and the wire the sender may be stopped, for example by the
//! hypervisor. A policer of a cell contract counts from the arrival of a packet, so the policer's
//! theoretical arrival time may then be ahead of the scheduler's by more than CDVT, and the next
//! packet would violate the contract. The correction moves the scheduler's theoretical arrival time
//! on until the policer's is ahead by exactly CDVT. So the flow loses no rate that it could have
//! kept. The call fails only for an unknown flow.
//!
//! **Not at all.** The sender may find out that it must not send a packet after the scheduler has
//! chosen it. Then the packet's time on the link goes to the next packets, of whatever flow. The
//! packet stays charged to its own flow.

use super::flow::{MAX_LENGTH, ServiceState};
use super::pace::Moment;
use super::service::{FlowId, SchedulerError, Service};
use super::{Departure, Flag, Scheduler};
use crate::units::{Bytes, Instant, Nanos};

impl Scheduler {
    /// Reports that the last packets of a flow, with `bytes` bytes together (at most 2^24 - 1),
    /// left no earlier than `at`. The report changes flows with a cell contract only: the state of
    /// other services depends on the times that [`Scheduler::poll`] decided, whenever the packets
    /// leave. A delay of at most [`Service::tolerance`] need not be reported.
    ///
    /// # Errors
    /// [`SchedulerError::UnknownFlow`] if the flow does not exist.
    pub fn handle_late_departure(
        &mut self,
        flow: FlowId,
        bytes: Bytes,
        at: Instant,
    ) -> Result<(), SchedulerError> {
        self.advance(at);
        let bytes = bytes.0.min(u64::from(MAX_LENGTH)) as u32;
        let state = self.flow_mut(flow)?;
        let moved = match &mut state.service {
            ServiceState::Cell(cell) => cell.late_departure(at.0, bytes),
            ServiceState::Member(member) => member.late_departure(at.0, bytes),
            _ => false,
        };
        if moved && state.is(Flag::HasHead) {
            self.requeue(flow.0);
        }
        Ok(())
    }

    /// Reports that a packet that [`Scheduler::poll`] chose is not sent, and gives its time on the
    /// link to the next packets. Its own flow has used that time: its contract and its share of the
    /// left-over are charged as for a packet that was sent. A report later than the next change of
    /// the link's rate gives back the time at the former rate.
    pub fn handle_unsent(&mut self, departure: &Departure) {
        let (start, end) = (departure.start.0, departure.end.0);
        let busy = self.wire.busy_until.nanos;
        let until = match busy == end {
            true => start,
            // Rounded up: the time of the packets behind it is not shortened.
            false => busy.saturating_sub(end.saturating_sub(start)) + 1,
        };
        self.wire.set_busy_until(Moment::at(until));
    }
}

impl Service {
    /// The longest delay of a departure that needs no call of [`Scheduler::handle_late_departure`]:
    /// CDVT less one nanosecond, because the scheduler stores parts of a nanosecond. The delay
    /// counts from [`Departure::eligible`](super::Departure::eligible), or from
    /// [`Departure::start`](super::Departure::start) if that is later than `eligible` by CDVT or
    /// more. For services without a cell contract the result is `u64::MAX` nanoseconds.
    pub fn tolerance(&self) -> Nanos {
        match self.parts().0 {
            Service::Cell(cell) => Nanos(cell.cdvt().0.saturating_sub(1)),
            _ => Nanos(u64::MAX),
        }
    }
}

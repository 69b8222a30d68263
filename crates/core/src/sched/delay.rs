//! What was stopped on its way: a packet that was given its time, and left later.
//!
//! Between [`Scheduler::poll`] and the wire the sender may be stopped, by the machine below it for instance. Of a cell
//! contract a policer counts from when a packet came: its theoretical arrival time may then be ahead of ours by more than
//! CDVT, and what we send next would be early. So ours is moved on until it is ahead by CDVT and no more, and the
//! flow loses no rate that it could have kept.

use super::flow::{Kind, MAX_LENGTH};
use super::service::{FlowId, Misuse, Service};
use super::{Flag, Scheduler};
use crate::units::{Bytes, Instant, Nanos};

impl Scheduler {
    /// The last packets of a flow, so many bytes together, left no earlier than `at`. For cell contracts; others count from when
    /// they were served. A delay below [`Service::tolerance`] need not be told.
    pub fn delayed(&mut self, flow: FlowId, bytes: Bytes, at: Instant) -> Result<(), Misuse> {
        self.advance(at);
        let bytes = bytes.0.min(u64::from(MAX_LENGTH)) as u32;
        let state = self.known(flow)?;
        let moved = match &mut state.kind {
            Kind::Cell(cell) => cell.delayed(at.0, bytes),
            Kind::Member(member) => member.delayed(at.0, bytes),
            _ => false,
        };
        if moved && state.is(Flag::Waiting) {
            self.place_anew(flow.0);
        }
        Ok(())
    }
}

impl Service {
    /// How much later than its [`Departure::eligible`](super::Departure::eligible) a packet may leave without a word of it; or
    /// than its [`Departure::start`](super::Departure::start), if that is so late already. (CDVT less the nanosecond that is kept in
    /// parts.)
    pub fn tolerance(&self) -> Nanos {
        match self.parts().0 {
            Service::Cell(cell) => Nanos(cell.cdvt().0.saturating_sub(1)),
            _ => Nanos(u64::MAX),
        }
    }
}

//! The types that the datapath exchanges with its caller: the output for packets ([`FrameSink`]),
//! the time of the next iteration ([`Next`]), and the results of opening a flow, closing a flow and
//! a protocol violation. [`OpenError`] lists why a flow cannot be opened.

use netnice_core::sched::SchedulerError;
use netnice_core::units::Instant;
use netnice_ring::driver::Retired;
use netnice_ring::layout::SetupError;
use netnice_ring::violation::ProtocolViolation;

use super::{FlowCounters, ProgramNo};
use crate::demux::MatchError;
use crate::template::{BadSender, Checked, Forbidden, SegmentRun};

/// The output for packets: an interface, or a fake.
pub trait FrameSink {
    /// How many frames can be sent now.
    fn room(&mut self) -> usize;

    /// Sends one frame: `write` fills it, and the bytes that `write` returns are sent. `None`
    /// without room; `Some(Err)` if `write` fails, and nothing is sent.
    fn send<F>(&mut self, write: F) -> Option<Result<(), Forbidden>>
    where
        F: for<'a> FnOnce(&'a mut [u8]) -> Result<Checked<'a>, Forbidden>;

    /// As [`FrameSink::send`], for a segment of TCP that may leave in one packet of at most `most`
    /// bytes with others of its connection. 0: by itself.
    fn send_segment<F>(&mut self, most: usize, write: F) -> Option<Result<(), Forbidden>>
    where
        F: for<'a> FnOnce(&'a mut [u8]) -> Result<Checked<'a>, Forbidden>,
    {
        let _ = most;
        self.send(write)
    }

    /// Sends segments of TCP that may leave in one packet of at most `most` bytes, also with others
    /// of their connection. 0: each by itself. Without room for all of them it sends the first
    /// ones, and returns false. The payloads are read until [`FrameSink::release`].
    fn send_run(&mut self, most: usize, run: &SegmentRun<'_>) -> bool {
        let _ = most;
        send_cut(self, run)
    }

    /// Whether segments can leave joined in one packet.
    fn joins(&self) -> bool {
        false
    }

    /// Reads no payload of [`FrameSink::send_run`] any more: programs get their memory back.
    fn release(&mut self) {}
}

/// Sends each segment of a run as a frame of its own. False if there was no room for all.
pub(crate) fn send_cut(sink: &mut (impl FrameSink + ?Sized), run: &SegmentRun<'_>) -> bool {
    let mut all = true;
    run.cut(|segment| {
        let length = segment.bytes().len();
        all = all
            && sink
                .send(|frame| Ok(segment.copied_to(&mut frame[..length])))
                .is_some();
    });
    all
}

/// Why a flow cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No such program, or it was disconnected.
    #[error("program {} is gone", .0.0)]
    Gone(ProgramNo),
    /// The flow's shape is invalid, or the program's memory has no slot, no gap or no pages for it.
    #[error(transparent)]
    Memory(#[from] SetupError),
    /// The scheduler refuses the flow, for example its contract.
    #[error(transparent)]
    Contract(#[from] SchedulerError),
    /// The contract names a class, and the link has no server.
    #[error("the link has no classes, so no flow can be in class {0}")]
    NoServer(u8),
    /// The flow's sender is invalid.
    #[error(transparent)]
    Sender(#[from] BadSender),
    /// The flow's matches are invalid or taken.
    #[error(transparent)]
    Match(#[from] MatchError),
}

/// The time at which the caller must run the next iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// At once: there may be more work.
    Again,
    /// When the NIC has room again.
    Full,
    /// At this time, or when a program submits something.
    Wait(Instant),
    /// When a program submits something.
    Idle,
}

impl Next {
    /// Adjusts for a NIC that has not taken all frames and is tried again at `then`.
    #[must_use]
    pub(crate) fn or_full(self, then: Instant) -> Next {
        match self {
            Next::Again => Next::Again,
            Next::Wait(at) if at <= then => Next::Wait(at),
            Next::Full | Next::Wait(_) | Next::Idle => Next::Full,
        }
    }
}

/// Sums over all flows, also closed ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Packets handed to the NIC.
    pub(crate) sent: u64,
    /// Bytes of these packets.
    pub(crate) sent_bytes: u64,
    /// Packets delivered to programs.
    pub(crate) delivered: u64,
    /// Bytes of these packets.
    pub(crate) delivered_bytes: u64,
}

/// The result of closing a flow.
pub(crate) struct Closed {
    /// The flow's counters.
    pub(crate) counters: FlowCounters,
    /// The flow's region; `None` if the program was detached. After [`Retired::clear`],
    /// [`Datapath::reuse`](super::Datapath::reuse) returns the region to the program's memory.
    pub(crate) retired: Option<Retired>,
}

/// A program that violated the ring protocol. It is ignored until it is detached.
#[derive(Clone, Copy, Debug)]
pub struct Disconnected {
    /// The program.
    pub program: ProgramNo,
    /// The violation.
    pub violation: ProtocolViolation,
}

//! How many packets of a flow may wait in its submit ring ([`QueueLimit`]).
//!
//! Few: [`LEAST_QUEUED`], or what the flow was served in the last 2 ms, whichever is more. The rest
//! waits in the program, so the newest decision, for example a retransmission, leaves first (paper
//! NTCP). If a program does not get the processor for so long, the ring runs empty although the
//! program had more to send, and a part of its slice of the link is lost. Then the time is doubled,
//! up to 64 ms, and it becomes shorter again while that does not happen.
//!
//! Only answers to connection requests do not wait: many requests can come at the same time, and an
//! answer that cannot be queued is lost.

use std::time::Duration;

use netnice_tcp::time::Instant;

/// The limit of one flow. See the module.
#[derive(Debug)]
pub(super) struct QueueLimit {
    most: u32,
    least: u32,
    /// Number of buffers for sending.
    buffers: u32,
    /// Packets that left since `counted_from`.
    served: u32,
    counted_from: Instant,
    /// As many packets may wait as were served in such a time.
    window: Duration,
    /// When the window changed last.
    changed_at: Instant,
    /// Nothing was queued since [`QueueLimit::note_full`].
    was_full: bool,
}

impl QueueLimit {
    /// The limit of a flow with so many buffers for sending.
    pub(super) fn new(buffers: u32) -> QueueLimit {
        QueueLimit {
            most: LEAST_QUEUED,
            least: LEAST_QUEUED,
            buffers: buffers.max(LEAST_QUEUED),
            served: 0,
            counted_from: Instant::ZERO,
            window: LEAST_WINDOW,
            changed_at: Instant::ZERO,
            was_full: false,
        }
    }

    /// All packets may wait.
    pub(super) fn all(buffers: u32) -> QueueLimit {
        QueueLimit {
            most: buffers,
            least: buffers,
            ..QueueLimit::new(buffers)
        }
    }

    /// The largest number of packets that may wait.
    pub(super) fn most(&self) -> u32 {
        self.most
    }

    /// The ring holds as many packets as may wait, and another one could leave now.
    pub(super) fn note_full(&mut self) {
        self.was_full = true;
    }

    /// A packet is queued behind so many.
    pub(super) fn queues(&mut self, queued: u32) {
        if queued == 0 && self.was_full {
            self.window = (self.window * 2).min(MOST_WINDOW);
            self.changed_at = self.counted_from;
            self.most = self.most.saturating_mul(2).clamp(self.least, self.buffers);
        }
        self.was_full = false;
    }

    /// Packets have left at this time.
    pub(super) fn count_service(&mut self, packets: u32, at: Instant) {
        self.served += packets;
        let passed = at.since(self.counted_from);
        if passed < self.window {
            return;
        }
        let in_window = u128::from(self.served) * self.window.as_nanos() / passed.as_nanos().max(1);
        let in_window = u32::try_from(in_window).unwrap_or(u32::MAX);
        self.most = in_window.clamp(self.least, self.buffers);
        self.served = 0;
        self.counted_from = at;
        if self.window > LEAST_WINDOW && at.since(self.changed_at) >= STABLE {
            self.window = (self.window * 7 / 8).max(LEAST_WINDOW);
            self.changed_at = at;
        }
    }
}

/// Packets that may always wait.
const LEAST_QUEUED: u32 = 4;
/// Beyond that, what the flow was served in such a time, or in a longer one.
const LEAST_WINDOW: Duration = Duration::from_millis(2);
/// More than a program with a reservation of 2 ms of a processor in 20 ms is without one (36 ms).
const MOST_WINDOW: Duration = Duration::from_millis(64);
/// After such a time in which the ring did not run empty, the window becomes shorter.
const STABLE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    /// A flow of a packet a millisecond, whose program runs for a moment in each `period` ms, and
    /// always has more to send. Returns the packets that were sent.
    fn run(limit: &mut QueueLimit, from: u64, millis: u64, period: u64) -> u32 {
        let (mut queued, mut sent) = (0, 0);
        for now in from..from + millis {
            let at = Instant::from_nanos(now * 1_000_000);
            if queued > 0 {
                queued -= 1;
                sent += 1;
                limit.count_service(1, at);
            }
            if now % period == 0 {
                while queued < limit.most() {
                    limit.queues(queued);
                    queued += 1;
                }
                limit.note_full();
            }
        }
        sent
    }

    #[test]
    fn a_program_that_runs_all_the_time_queues_little() {
        let mut limit = QueueLimit::new(256);
        assert!(run(&mut limit, 0, 5_000, 1) >= 4_990);
        assert_eq!(limit.most(), LEAST_QUEUED);
    }

    #[test]
    fn a_program_that_runs_seldom_loses_nothing_for_long() {
        for period in [10, 20, 40] {
            let mut limit = QueueLimit::new(256);
            run(&mut limit, 0, 2_000, period);
            let sent = run(&mut limit, 2_000, 2_000, period);
            assert!(sent >= 1_900, "{period} ms: {sent}");
            // It becomes as before when it runs all the time again.
            run(&mut limit, 4_000, 60_000, 1);
            assert_eq!(limit.most(), LEAST_QUEUED, "{period} ms");
        }
    }

    #[test]
    fn a_ring_that_runs_empty_because_nothing_is_to_be_sent_changes_nothing() {
        let mut limit = QueueLimit::new(256);
        for now in 1..1_000_u64 {
            for queued in 0..4 {
                limit.queues(queued);
            }
            limit.count_service(4, Instant::from_nanos(now * 10_000_000));
        }
        assert_eq!((limit.most(), limit.window), (LEAST_QUEUED, LEAST_WINDOW));
    }

    #[test]
    fn a_limit_stays_within_the_buffers() {
        let mut limit = QueueLimit::new(16);
        run(&mut limit, 0, 10_000, 50);
        assert_eq!(limit.most(), 16);
        assert_eq!(QueueLimit::all(16).most(), 16);
        assert_eq!(QueueLimit::new(2).most(), LEAST_QUEUED);
    }
}

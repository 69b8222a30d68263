//! Records the stops of the packet thread ([`netnice_core::stops`]): counts them, and passes each
//! to a queue if another thread asked for it. No call blocks, allocates or fails. If the queue is
//! full, a stop is counted and not passed on.

use netnice_core::stops::{Stop, StopCounts};
use netnice_core::units::Nanos;
use rtrb::{Consumer, Producer, RingBuffer};

/// The counts and the queue.
#[derive(Default)]
pub(super) struct StopLog {
    counts: StopCounts,
    queue: Option<Producer<Stop>>,
}

impl StopLog {
    /// Passes each later stop to the returned queue of [`QUEUE_LENGTH`] places.
    pub(super) fn pass_on(&mut self) -> Consumer<Stop> {
        let (queue, stops) = RingBuffer::new(QUEUE_LENGTH);
        self.queue = Some(queue);
        stops
    }

    /// Records a stop, if there was one.
    #[inline]
    pub(super) fn record(&mut self, stop: Option<Stop>) {
        if let Some(stop) = stop {
            self.add(stop);
        }
    }

    #[cold]
    fn add(&mut self, stop: Stop) {
        self.counts.add(&stop);
        if let Some(queue) = &mut self.queue {
            let _ = queue.push(stop);
        }
    }

    /// The counts so far.
    pub(super) fn counts(&self) -> StopCounts {
        self.counts
    }
}

/// How long a stretch of work may take that handles so many frames, in ns. A frame takes some
/// hundreds of ns in most cases, and up to 2 µs if the kernel delivers it to a socket of the same
/// host during the call that sends it.
pub(super) fn explained(frames: u64) -> Nanos {
    Nanos(ITERATION.saturating_add(frames.saturating_mul(FRAME)))
}

/// Time of a stretch of work without frames, in ns.
const ITERATION: u64 = 10_000;
/// Time of a frame, in ns.
const FRAME: u64 = 2_000;
/// Places in the queue: at most 20,000 stops a second, read five times a second.
const QUEUE_LENGTH: usize = 4096;

#[cfg(test)]
mod tests {
    use netnice_core::stops::{self, StopKind};
    use netnice_core::units::Instant;

    use super::*;

    #[test]
    fn a_stop_is_counted_even_if_the_queue_is_full() {
        let mut log = StopLog::default();
        let stop = stops::woken(Instant(0), Instant(30_000));
        log.record(None);
        log.record(stop);
        let mut queue = log.pass_on();
        for _ in 0..QUEUE_LENGTH + 5 {
            log.record(stop);
        }
        let passed = std::iter::from_fn(|| queue.pop().ok());
        assert_eq!(passed.count(), QUEUE_LENGTH);
        let recorded = QUEUE_LENGTH as u64 + 6;
        assert_eq!(log.counts().by_kind[StopKind::Late as usize], recorded);
        assert_eq!(log.counts().number(), recorded);
    }

    #[test]
    fn frames_explain_time() {
        assert!(explained(64) > explained(1));
        assert_eq!(explained(u64::MAX), Nanos(u64::MAX));
    }
}

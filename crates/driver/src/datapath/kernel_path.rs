//! The kernel path's part of the link ([`KernelPath`]): from what the kernel's classes were given
//! to send, it computes what they have sent, which the scheduler charges to the link. So the driver
//! sends on the whole link while the kernel path is idle, and on the rest while it is not. No
//! function fails, and none reads a clock.
//!
//! The eBPF program on the interface counts packets before the classes queue them
//! (`crates/kernel/bpf/path.h`). The classes send them at their rate, and drop what exceeds their
//! queues. The model of that is one queue of [`QUEUE`] bytes, or of a tenth of a second at the
//! classes' rate if that is more, which is served at this rate. What the classes send at once after
//! a pause (their bucket) counts as sent over a longer time. Admission counts it in addition
//! (docs/reference/contracts.md, "The kernel path beside deadlines").

use netnice_core::units::{Bytes, Instant, Rate};

/// What the kernel's classes of a link were given to send since they exist. Both numbers wrap
/// around.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathCount {
    /// Bytes, with the headers of each packet of segmentation offload.
    pub bytes: u64,
    /// Packets; each segment counts.
    pub packets: u64,
}

/// The kernel path beside a driver.
#[derive(Clone, Copy, Debug)]
pub(super) struct KernelPath {
    /// The rate of the classes; `None`: they send nothing.
    rate: Option<Rate>,
    /// Bytes that the wire adds to each packet.
    overhead: u64,
    counted: Option<PathCount>,
    /// Bytes in the queue.
    queued: u64,
    /// The queue was served until then.
    served_until: Instant,
    /// Parts of a byte that were served too little, in bits times nanoseconds.
    remainder: u64,
}

impl KernelPath {
    /// A kernel path that sends nothing.
    pub(super) fn new() -> KernelPath {
        KernelPath {
            rate: None,
            overhead: 0,
            counted: None,
            queued: 0,
            served_until: Instant(0),
            remainder: 0,
        }
    }

    /// Sets the rate of the classes, and the overhead of each packet.
    pub(super) fn set_rate(&mut self, rate: Option<Rate>, overhead: Bytes) {
        (self.rate, self.overhead) = (rate, overhead.0);
    }

    /// Takes the present count. Returns the wire bytes that the classes have sent since the last
    /// call, and the time of that call. A first count is the basis of the next ones.
    pub(super) fn sent(&mut self, count: PathCount, now: Instant) -> (Bytes, Instant) {
        let since = self.served_until;
        self.served_until = now.max(since);
        let Some(before) = self.counted.replace(count) else {
            return (Bytes(0), since);
        };
        let Some(rate) = self.rate else {
            self.queued = 0;
            return (Bytes(0), since);
        };
        let bits = rate.bits_per_second();
        let packets = count.packets.wrapping_sub(before.packets);
        let overhead = packets.saturating_mul(self.overhead);
        let bytes = count.bytes.wrapping_sub(before.bytes);
        let limit = QUEUE.max(bits / 8 / QUEUES_PER_SECOND);
        let given = bytes.saturating_add(overhead);
        self.queued = self.queued.saturating_add(given).min(limit);
        if self.queued == 0 {
            self.remainder = 0;
            return (Bytes(0), since);
        }
        let passed = now.0.saturating_sub(since.0).min(SECOND);
        let allowed = u128::from(bits) * u128::from(passed) + u128::from(self.remainder);
        let whole = (allowed / BYTE) as u64;
        let sent = whole.min(self.queued);
        self.queued -= sent;
        self.remainder = match self.queued {
            0 => 0,
            _ => (allowed % BYTE) as u64,
        };
        (Bytes(sent), since)
    }
}

/// Bytes of the queue: eight segments of 64 KiB.
const QUEUE: u64 = 524_288;
/// The queue holds at least what the classes send in a tenth of a second.
const QUEUES_PER_SECOND: u64 = 10;
const SECOND: u64 = 1_000_000_000;
/// A byte in bits times nanoseconds of a second.
const BYTE: u128 = 8 * SECOND as u128;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn path(mbit: u64, overhead: u64) -> KernelPath {
        let mut path = KernelPath::new();
        path.set_rate(Rate::new(mbit * 1_000_000), Bytes(overhead));
        path.sent(PathCount::default(), Instant(0));
        path
    }

    fn count(bytes: u64, packets: u64) -> PathCount {
        PathCount { bytes, packets }
    }

    #[test]
    fn packets_are_sent_at_the_rate_of_the_classes() {
        let mut path = path(80, 0);
        // 10 bytes a microsecond.
        let given = count(1_500, 1);
        assert_eq!(path.sent(given, Instant(100_000)).0, Bytes(1_000));
        assert_eq!(path.sent(given, Instant(120_000)).0, Bytes(200));
        let (rest, since) = path.sent(given, Instant(1_000_000));
        assert_eq!((rest, since), (Bytes(300), Instant(120_000)));
        assert_eq!(path.sent(given, Instant(2_000_000)).0, Bytes(0));
    }

    #[test]
    fn the_overhead_of_each_packet_counts() {
        let mut path = path(80, 24);
        assert_eq!(path.sent(count(100, 2), Instant(1_000_000)).0, Bytes(148));
    }

    #[test]
    fn what_the_classes_drop_is_not_charged() {
        let mut path = path(8, 0);
        path.sent(count(100_000_000, 70_000), Instant(1));
        let (sent, _) = path.sent(count(100_000_000, 70_000), Instant(10_000_000_000));
        assert!(sent.0 <= QUEUE, "{sent:?}");
    }

    #[test]
    fn a_count_of_another_counter_is_bounded() {
        let mut path = path(80, 24);
        path.sent(count(5_000, 5), Instant(1_000));
        // The counter begins anew.
        let (sent, _) = path.sent(count(0, 0), Instant(1_000_000));
        assert!(sent.0 <= 10_000, "{sent:?}");
    }

    proptest! {
        /// Never more than the rate, and without drops all of it in the end.
        #[test]
        fn the_sum_is_what_was_given(
            steps in proptest::collection::vec((0u64..20_000, 1u64..2_000_000), 1..200),
        ) {
            let mut path = path(100, 0);
            let (mut given, mut sent, mut now) = (0, 0, 0);
            for (bytes, step) in steps {
                now += step;
                given += bytes.min(step / 100);
                let (part, _) = path.sent(count(given, 1), Instant(now));
                sent += part.0;
                prop_assert!(sent <= given && sent * 8 * 10 <= now, "{sent} of {given} at {now}");
            }
            sent += path.sent(count(given, 1), Instant(now + SECOND)).0.0;
            prop_assert_eq!(sent, given);
        }
    }
}

//! A model of a video player. The received bytes over time come in, and the seconds in which the
//! video stood still go out ([`stall_time`]). No call fails.
//!
//! The player starts when its buffer has one second of video, stops when the buffer is empty, and
//! starts again at one second. The buffer may hold any amount more. The demo reports this time
//! because a viewer notices that the video stands still, and does not notice a lower mean rate.

use crate::traffic::Report;

/// The seconds within `window` in which a video of `bits` bit/s (on the wire) stood still. The
/// stream began at `began`. All times are wall clock in ns.
///
/// The result has the resolution of the samples in `video.series`: if the video stands still at a
/// sample inside the window, the whole time since the sample before counts. The time after the last
/// sample does not count. The video stands still until its first start, too.
pub fn stall_time(video: &Report, began: u64, bits: u64, window: (u64, u64)) -> f64 {
    let mut played = 0.0;
    let mut playing = false;
    let mut stalled = 0.0;
    let mut last = began;
    for &(at, _, wire, _) in &video.series {
        let passed = at.saturating_sub(last) as f64 / 1e9;
        let held = wire as f64 * 8.0 / bits as f64 - played;
        if playing && held >= passed {
            played += passed;
        } else if playing {
            // The buffer ran empty within this step.
            playing = false;
            played += held.max(0.0);
        }
        if !playing {
            if window.0 <= at && at < window.1 {
                stalled += passed;
            }
            playing = held >= BUFFER;
        }
        last = at;
    }
    stalled
}

/// Seconds of video in the buffer before it plays.
const BUFFER: f64 = 1.0;

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream that receives `rate(second)` times the required rate, sampled every 10 ms for 20 s.
    fn stream(rate: impl Fn(f64) -> f64) -> Report {
        let mut wire = 0.0;
        let series = (0..2000)
            .map(|i| {
                wire += rate(i as f64 / 100.0) * 10_000.0;
                (i * 10_000_000, 0, wire as u64, 0)
            })
            .collect();
        Report {
            series,
            ..Report::default()
        }
    }

    /// 10,000 bytes each 10 ms are 8 Mbit/s.
    fn stalled(rate: impl Fn(f64) -> f64, window: (u64, u64)) -> f64 {
        stall_time(
            &stream(rate),
            0,
            8_000_000,
            (window.0 * SECOND, window.1 * SECOND),
        )
    }

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_stream_that_arrives_in_time_never_stalls() {
        assert_eq!(stalled(|_| 1.0, (2, 20)), 0.0);
        // It stands still only in the first second, while the buffer fills.
        let start = stalled(|_| 1.0, (0, 20));
        assert!((0.98..1.02).contains(&start), "{start}");
    }

    #[test]
    fn a_stream_at_half_its_rate_stalls_half_the_time() {
        let got = stalled(|_| 0.5, (4, 20));
        assert!((6.5..9.5).contains(&got), "{got} of 16 s");
    }

    #[test]
    fn an_interruption_shorter_than_the_buffer_causes_no_stall() {
        let gap = |t: f64| if (5.0..5.8).contains(&t) { 0.0 } else { 1.05 };
        assert_eq!(stalled(gap, (2, 20)), 0.0);
        let long = |t: f64| if (5.0..8.0).contains(&t) { 0.0 } else { 1.05 };
        let got = stalled(long, (2, 20));
        assert!((2.0..3.2).contains(&got), "{got}");
    }
}

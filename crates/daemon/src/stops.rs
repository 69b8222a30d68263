//! The report of `netniced --stops TIME`: how long and how often the machine stopped a real-time
//! thread, and the value of the policy's key `stops` that covers what was seen. Fails if the kernel
//! refuses the thread's priority.

use std::io;

use netnice_core::admission::timing::Stops;
use netnice_core::stops::{SHORTEST, Stop};
use netnice_core::units::Nanos;
use netnice_kernel::stops;

/// Measures for this long and returns the report as text.
///
/// # Errors
/// If a real-time thread cannot be started: it needs root.
pub fn measure_stops(duration: Nanos) -> io::Result<String> {
    Ok(report(&stops::measure(duration)?, duration))
}

fn report(stops: &[Stop], duration: Nanos) -> String {
    let mut text = format!("stops of a real-time thread of at least {SHORTEST}, in {duration}\n");
    let mut least = SHORTEST;
    for most in BOUNDS.into_iter().chain([Nanos(u64::MAX)]) {
        let within = stops
            .iter()
            .filter(|s| s.length >= least && s.length < most);
        let (count, sum) = within.fold((0, 0), |(count, sum), stop| {
            (count + 1, sum + stop.length.0)
        });
        let range = match most {
            Nanos(u64::MAX) => format!("{least} and longer"),
            most => format!("{least} to {most}"),
        };
        text.push_str(&format!("  {range:<18} {count:>8}  {}\n", Nanos(sum)));
        least = most;
    }
    match value(stops) {
        None => text.push_str("no stops were seen: the policy needs no key `stops`\n"),
        Some(Ok(value)) => text.push_str(&format!(
            "for the policy, from what was seen in this time:\n  stops = \"{value}\"\n"
        )),
        Some(Err(error)) => text.push_str(&format!("no deadline can be promised here: {error}\n")),
    }
    text
}

/// The value for the policy: the most that was taken in any [`PERIOD`], rounded up to [`STEP`].
/// `None` without stops. Fails if nothing is left.
fn value(seen: &[Stop]) -> Option<Result<Stops, netnice_core::admission::timing::BadStops>> {
    let most = stops::most_within(seen, PERIOD);
    let rounded = Nanos(most.0.div_ceil(STEP) * STEP);
    (most.0 > 0).then(|| Stops::new(rounded, PERIOD))
}

/// The bounds of the rows of the report.
const BOUNDS: [Nanos; 8] = [
    Nanos(50_000),
    Nanos(100_000),
    Nanos(200_000),
    Nanos(500_000),
    Nanos(1_000_000),
    Nanos(2_000_000),
    Nanos(5_000_000),
    Nanos(10_000_000),
];
/// The period of the value.
const PERIOD: Nanos = Nanos::from_millis(100);
/// The value is rounded up to a multiple of this, in ns.
const STEP: u64 = 100_000;

#[cfg(test)]
mod tests {
    use netnice_core::stops::StopKind;
    use netnice_core::units::Instant;

    use super::*;

    #[test]
    fn the_report_names_the_value_for_the_policy() {
        let stop = |start, length| Stop {
            start: Instant(start),
            length: Nanos(length),
            kind: StopKind::Still,
        };
        let seen = [
            stop(0, 30_000),
            stop(50_000_000, 1_100_000),
            stop(99_000_000, 420_000),
            stop(900_000_000, 60_000),
        ];
        let text = report(&seen, Nanos::from_secs(1));
        assert!(text.contains("stops = \"1.6ms/100ms\""), "{text}");
        let row = "  20us to 50us              1  30us\n";
        assert!(text.contains(row), "{text}");
        let text = report(&[], Nanos::from_secs(1));
        assert!(text.contains("no stops were seen"), "{text}");
        let text = report(&[stop(0, 150_000_000)], Nanos::from_secs(1));
        assert!(text.contains("no deadline can be promised here"), "{text}");
    }
}

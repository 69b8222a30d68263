//! The periods of the calendar for traffic quotas: the hour, day, week or month that contains an
//! instant ([`period`]). Instants are nanoseconds since 1970 (UTC); nothing here reads a clock.
//!
//! Days, weeks and months begin at 00:00 of the zone's clock. If a change of daylight saving skips
//! 00:00, the day begins at the end of the skipped time; if it repeats 00:00, with the first one.
//! Hours begin when the clock shows minute 0, and a repeated hour is a period of its own. A zone
//! that is not in the database counts as UTC. [`period`] is `None` for an instant that the calendar
//! does not have; nothing fails.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SpanRound, Timestamp, ToSpan, Unit};
use netnice_core::contract::QuotaPeriod;

use super::{instant, nanoseconds, zone_named};

/// A period of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Period {
    /// Its first instant.
    pub start_ns: u64,
    /// The first instant after it.
    pub end_ns: u64,
}

/// The period that contains an instant, in a named zone or the host's own.
pub(crate) fn period(kind: QuotaPeriod, zone: Option<&str>, now_ns: u64) -> Option<Period> {
    let zone = zone_named(zone).unwrap_or(TimeZone::UTC);
    let now = instant(now_ns)?;
    let local = zone.to_datetime(now);
    let (start, end) = match kind {
        QuotaPeriod::Hour => {
            let begin = local.date().at(local.hour(), 0, 0, 0);
            let since = local.since(begin).ok()?;
            let since = since.round(SpanRound::new().largest(Unit::Hour)).ok()?;
            let start = now.checked_sub(since).ok()?;
            (start, start.checked_add(1.hour()).ok()?)
        }
        QuotaPeriod::Day => {
            let day = local.date();
            days(
                &zone,
                now,
                day.at(0, 0, 0, 0),
                day.tomorrow().ok()?.at(0, 0, 0, 0),
            )?
        }
        QuotaPeriod::Week => {
            let past = i64::from(local.weekday().to_monday_zero_offset());
            let monday = local.date().checked_sub(past.days()).ok()?;
            let next = monday.checked_add(1.week()).ok()?;
            days(&zone, now, monday.at(0, 0, 0, 0), next.at(0, 0, 0, 0))?
        }
        QuotaPeriod::Month => {
            let first = local.date().first_of_month();
            let next = first.checked_add(1.month()).ok()?;
            days(&zone, now, first.at(0, 0, 0, 0), next.at(0, 0, 0, 0))?
        }
    };
    Some(Period {
        start_ns: nanoseconds(start)?,
        end_ns: nanoseconds(end)?,
    })
}

/// The instants of a first and a last midnight. The last one is after `now`: if clocks went back
/// over it, the second one.
fn days(
    zone: &TimeZone,
    now: Timestamp,
    first: DateTime,
    last: DateTime,
) -> Option<(Timestamp, Timestamp)> {
    let start = zone.to_ambiguous_timestamp(first).compatible().ok()?;
    let end = zone.to_ambiguous_timestamp(last);
    let end = match end.compatible().ok()? {
        end if end > now => end,
        _ => zone.to_ambiguous_timestamp(last).later().ok()?,
    };
    Some((start, end))
}

//! Schedules on the calendar: whether a [`Schedule`] is active at an instant, and when that changes
//! next ([`phase`]). Instants are nanoseconds since 1970 (UTC). Nothing here reads a clock.
//!
//! A schedule is written in local time. The zone is looked up in the host's time zone database
//! (`/usr/share/zoneinfo`, read again at most every 5 minutes), and if the host has none, in the
//! one that the crate `jiff` brings along. Local time is a function of the instant, so there is
//! always an answer: a time of day that a change of daylight saving skips does not come on that
//! day, and one that it repeats comes twice. A window that begins in skipped time begins at the end
//! of it.
//!
//! ```text
//!  sun 02:15-02:45, Europe/Berlin     when clocks go forward (02:00 -> 03:00): not at all
//!                                     when they go back (03:00 -> 02:00): twice for 30 minutes
//!  sun 01:00-02:30                    forward: 60 minutes; back: 01:00 to 02:30, and once more
//!                                     02:00 to 02:30
//! ```
//!
//! [`check_zone`] fails if the zone is not in the database. If a zone is removed from the database
//! later, its schedules are active at all times: a limit that was asked for holds.

pub(crate) mod periods;

use std::collections::BTreeSet;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, Offset, TimeZone};
use netnice_core::contract::{Clause, Contract, Schedule};

/// Whether a schedule is active, and until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Phase {
    /// True if the schedule is active.
    pub active: bool,
    /// The instant of the next change; `None` if there is none within [`HORIZON_DAYS`], or if the
    /// zone is unknown.
    pub next_ns: Option<u64>,
    /// The instant for which this was computed.
    pub at_ns: u64,
}

impl Phase {
    /// True if this phase may be over at `now_ns`: a change was due, or the clock was set back. A
    /// phase is computed anew after [`LONGEST_USE_NS`], because the time zone database may change.
    pub(crate) fn may_be_over(&self, now_ns: u64) -> bool {
        let last = self.at_ns.saturating_add(LONGEST_USE_NS);
        let end = self.next_ns.map_or(last, |next| next.min(last));
        now_ns < self.at_ns || now_ns >= end
    }
}

/// The phase of a schedule at an instant.
pub(crate) fn phase(schedule: &Schedule, now_ns: u64) -> Phase {
    let phase = |active, next_ns| Phase {
        active,
        next_ns,
        at_ns: now_ns,
    };
    let (Some(zone), Some(now)) = (zone_of(schedule), instant(now_ns)) else {
        return phase(true, None);
    };
    let active = is_active(schedule, &zone, now);
    let next = next_change(schedule, &zone, now, active);
    phase(active, next.and_then(nanoseconds))
}

/// Checks that the zones of a contract, of its schedule and its quota, are in the time zone
/// database.
///
/// # Errors
/// A text that names the zone that is not.
pub(crate) fn check_zone(contract: &Contract) -> Result<(), String> {
    let when = contract.when().and_then(Schedule::zone);
    let quota = contract.quota().and_then(|quota| quota.zone.as_deref());
    check_named(Clause::When, when)?;
    check_named(Clause::Quota, quota)
}

fn check_named(clause: Clause, zone: Option<&str>) -> Result<(), String> {
    match (zone_named(zone), zone) {
        (None, Some(zone)) => Err(format!(
            "{clause}: {zone} is not in the time zone database of this host; write a name like \
             Europe/Berlin or UTC (timedatectl list-timezones lists them)"
        )),
        _ => Ok(()),
    }
}

/// An instant in the zone of a schedule, for people: `Tue 2026-11-24 18:00 CET`. An instant that
/// the calendar does not have gives its number.
pub(crate) fn local_text(schedule: &Schedule, at_ns: u64) -> String {
    text_in_zone(schedule.zone(), at_ns)
}

/// As [`local_text`], in a named zone or the host's own.
pub(crate) fn text_in_zone(zone: Option<&str>, at_ns: u64) -> String {
    match (zone_named(zone), instant(at_ns)) {
        (Some(zone), Some(at)) => {
            let local = at.to_zoned_datetime(zone);
            local.strftime("%a %Y-%m-%d %H:%M %Z").to_string()
        }
        _ => format!("{at_ns} ns"),
    }
}

/// The zone of a schedule: the named one, or the host's own (UTC if it cannot be found out). `None`
/// if the named one is not in the database.
fn zone_of(schedule: &Schedule) -> Option<TimeZone> {
    zone_named(schedule.zone())
}

/// The named zone, or the host's own, as [`zone_of`].
fn zone_named(name: Option<&str>) -> Option<TimeZone> {
    match name {
        Some(name) => TimeZone::get(name).ok(),
        None => Some(TimeZone::try_system().unwrap_or(TimeZone::UTC)),
    }
}

fn is_active(schedule: &Schedule, zone: &TimeZone, at: Timestamp) -> bool {
    let local = zone.to_datetime(at);
    let weekday = local.weekday().to_monday_zero_offset();
    let minute = i16::from(local.hour()) * 60 + i16::from(local.minute());
    // Both are never negative.
    schedule.is_active(weekday.unsigned_abs(), minute.unsigned_abs())
}

/// The first instant after `now` at which the schedule changes. It changes only at its boundaries
/// and at changes of the zone's offset, and days are tried in order, so most calls end with the
/// first day.
fn next_change(
    schedule: &Schedule,
    zone: &TimeZone,
    now: Timestamp,
    active: bool,
) -> Option<Timestamp> {
    let boundaries = schedule.boundaries();
    // The local date of an offset change differs from that before by at most a day.
    let mut date = zone.to_datetime(now).date().yesterday().ok()?;
    let mut offset_changes = zone.following(now).map(|change| change.timestamp());
    let mut offset_change = offset_changes.next();
    let mut waiting: BTreeSet<Timestamp> = BTreeSet::new();
    for _ in 0..HORIZON_DAYS {
        for minute in &boundaries {
            let (hour, minute) = ((minute / 60) as i8, (minute % 60) as i8);
            waiting.extend(instants(zone, date.at(hour, minute, 0, 0)));
        }
        // Instants of later days are after this one, as no offset is longer than a day.
        let complete = zone.to_timestamp(date.at(0, 0, 0, 0)).ok()?;
        while let Some(change) = offset_change.filter(|change| *change <= complete) {
            waiting.insert(change);
            offset_change = offset_changes.next();
        }
        while let Some(at) = waiting.first().copied().filter(|at| *at <= complete) {
            waiting.remove(&at);
            if at > now && is_active(schedule, zone, at) != active {
                return Some(at);
            }
        }
        date = date.tomorrow().ok()?;
    }
    None
}

/// The instants at which a zone's clocks show a time: two in repeated time, none in skipped time.
fn instants(zone: &TimeZone, local: DateTime) -> impl Iterator<Item = Timestamp> {
    let offsets: [Option<Offset>; 2] = match zone.to_ambiguous_timestamp(local).offset() {
        AmbiguousOffset::Unambiguous { offset } => [Some(offset), None],
        AmbiguousOffset::Gap { .. } => [None, None],
        AmbiguousOffset::Fold { before, after } => [Some(before), Some(after)],
    };
    let offsets = offsets.into_iter().flatten();
    offsets.filter_map(move |offset| offset.to_timestamp(local).ok())
}

/// `None` if the calendar does not have the instant.
fn instant(at_ns: u64) -> Option<Timestamp> {
    Timestamp::from_nanosecond(i128::from(at_ns)).ok()
}

/// `None` before 1970 and after 2554.
fn nanoseconds(at: Timestamp) -> Option<u64> {
    u64::try_from(at.as_nanosecond()).ok()
}

/// Days in which the next change is looked for: two weeks, because a change of daylight saving can
/// skip the only window of a week.
const HORIZON_DAYS: u32 = 17;
/// How long a phase is used before it is computed anew: an hour.
const LONGEST_USE_NS: u64 = 3_600_000_000_000;

#[cfg(test)]
mod tests;

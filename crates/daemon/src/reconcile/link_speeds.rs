//! Follows the speeds of managed links whose rate was taken from the interface's driver.
//!
//! The speeds are read each half a second ([`READ_PERIOD`]), because not every driver reports a
//! change, and after each change of interfaces. If a speed has changed, it becomes the rate of the
//! link. If the promises on the link do not fit any more, targets become degraded
//! ([`crate::ledger::Ledger::set_capacity`]); they are admitted again when the speed comes back. An
//! interface that reports no speed, for example without a carrier, keeps the last one. A rate that
//! the operator gave is never changed. Errors go to the journal, once as long as they stay the
//! same.

use netnice_core::contract::Direction;
use netnice_core::link::{Capacity, CapacitySource, Link};
use netnice_core::units::{Nanos, Rate};

use super::Reconciler;
use super::preview::guarantee_changes;
use crate::clock::Now;
use crate::error::RequestError;
use crate::host::Host;
use crate::ledger::{Ledger, ManagedLink, describe_link};

impl<H: Host> Reconciler<H> {
    /// Follows the speeds of links if the last reading is half a second ago. The caller calls it
    /// every 200 ms while there are managed links.
    pub(crate) fn follow_speeds_when_due(&mut self, now: Now) {
        if now.monotonic >= self.speeds_due {
            self.follow_speeds(now);
        }
    }

    /// Reads the speeds of links, and puts changed ones into force.
    pub(crate) fn follow_speeds(&mut self, now: Now) {
        self.speeds_due = now.monotonic.after(READ_PERIOD);
        let links = self.books.ledger.links();
        let links: Vec<ManagedLink> = links.filter(|l| l.follows_driver()).cloned().collect();
        let mut result = Ok(());
        for managed in links {
            result = result.and(self.follow_speed(managed, now));
        }
        self.journal
            .log_result(now, "following the speed of a link", result);
    }

    fn follow_speed(&mut self, managed: ManagedLink, now: Now) -> Result<(), RequestError> {
        let name = managed.link.name.clone();
        let speed = match self.host.speed(name.as_str()) {
            Ok(Some(speed)) => speed,
            Ok(None) => return Ok(()),
            Err(error) => {
                // `show` reports an interface that is gone.
                tracing::debug!(%error, "the speed of {name} stays");
                return Ok(());
            }
        };
        let link = with_speed(&managed.link, speed);
        if link == managed.link {
            return Ok(());
        }
        let text = format!(
            "the speed of {name} has changed: {}; before: {}",
            describe_link(&link),
            describe_link(&managed.link)
        );
        let before = self.books.ledger.clone();
        let mut draft = self.unrequested_draft();
        draft.ledger.set_capacity(ManagedLink { link, ..managed });
        self.install(draft)?;
        self.journal.note(now, text);
        self.note_guarantees(&before, now);
        Ok(())
    }

    /// Logs which guarantees are not in force any more, and which are again, compared with
    /// `before`. Returns the same messages, at most [`MAX_LISTED`] and their number beyond that.
    pub(crate) fn note_guarantees(&mut self, before: &Ledger, now: Now) -> Vec<String> {
        let changes = guarantee_changes(before, &self.books.ledger);
        let more = changes.len().saturating_sub(MAX_LISTED);
        let mut lines = Vec::new();
        for change in changes.into_iter().take(MAX_LISTED) {
            match change.lost {
                true => self.journal.warn(now, change.text.clone()),
                false => self.journal.note(now, change.text.clone()),
            }
            lines.push(change.text);
        }
        if more > 0 {
            let text = format!("and {more} more, see netnice show");
            self.journal.warn(now, text.clone());
            lines.push(text);
        }
        lines
    }
}

/// A link with this speed in each direction whose rate the driver reports.
fn with_speed(link: &Link, speed: Rate) -> Link {
    let follow = |capacity: Option<Capacity>| {
        capacity.map(|capacity| match capacity.source {
            CapacitySource::Driver => Capacity {
                rate: speed,
                ..capacity
            },
            CapacitySource::Operator | CapacitySource::Estimate(_) => capacity,
        })
    };
    let followed = Link {
        up: follow(link.up),
        down: follow(link.down),
        ..link.clone()
    };
    // A direction in which nothing can be promised any more would have no class.
    match Direction::ALL
        .iter()
        .all(|d| link.usable(*d).is_some() == followed.usable(*d).is_some())
    {
        true => followed,
        false => link.clone(),
    }
}

/// How often the speeds are read. With the time to put a change into force, a change is followed
/// within a second.
const READ_PERIOD: Nanos = Nanos::from_millis(400);
/// Largest number of guarantees that are named after one change.
const MAX_LISTED: usize = 50;

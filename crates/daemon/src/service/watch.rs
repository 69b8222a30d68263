//! What moves, told in few words to those who ask again and again; and the connections of one target.
//!
//! Counts are read at most as often as they are asked for anew: who asks once a second is told what the second's own
//! reading found, so that looking costs no second one.

use std::collections::BTreeMap;

use netnice_api::{
    Connection, ConnectionsDoc, Found, LinkDoc, Moving, Watch, WatchDoc, Watched, WatchedLink,
};
use netnice_core::admission::TargetId;
use netnice_core::contract::Direction;
use netnice_core::meter::Meter;
use netnice_core::target::Target;
use netnice_core::units::Nanos;
use netnice_kernel::connections;

use super::Clerk;
use super::finder::made_of;
use crate::clock::Now;
use crate::denied::Denied;
use crate::host::{Host, Interface};
use crate::ledger::{Body, Held, Managed};
use crate::meter::metrics;
use crate::meter::metrics::serve::Page;
use crate::peer::Peer;

impl<H: Host> Clerk<H> {
    pub(super) fn watch(&mut self, asked: &Watch, now: Now) -> Result<WatchDoc, Denied> {
        let (doc, _) = self.watch_all(Nanos(asked.within_ns), now)?;
        Ok(doc)
    }

    /// What moves, and all that was counted of each target in the same reading.
    fn watch_all(&mut self, within: Nanos, now: Now) -> Result<(WatchDoc, Vec<Meter>), Denied> {
        if self.rates.read_within(within, now.monotonic).is_none() {
            self.measure(now)?;
        }
        let read_at = self.rates.read_within(Nanos(u64::MAX), now.monotonic);
        let interfaces = self.host.interfaces()?;
        let mut held: Vec<&Held> = self.ledger.held().collect();
        held.sort_by_cached_key(|held| held.entry.target.to_string());
        let places: BTreeMap<TargetId, usize> = held
            .iter()
            .enumerate()
            .map(|(place, held)| (held.entry.id, place))
            .collect();
        let target = |held: &&Held| Watched {
            inside: held.entry.parent.and_then(|id| places.get(&id).copied()),
            ..self.watched(held, &interfaces, now)
        };
        let links = self.ledger.links();
        let meters = held.iter().map(|held| self.rates.meter(held.id)).collect();
        let doc = WatchDoc {
            at_ns: read_at.unwrap_or(now.monotonic).0,
            links: links
                .map(|link| self.watched_link(link, &interfaces))
                .collect(),
            targets: held.iter().map(target).collect(),
        };
        Ok((doc, meters))
    }

    /// The page for Prometheus: of counts that are at most half a second old, and made anew only as often.
    pub fn metrics(&mut self, now: Now) -> Page {
        if let Some((at, page)) = &self.page
            && now.monotonic.since(*at) < FRESH
        {
            return page.clone();
        }
        let page: Page = match self.watch_all(FRESH, now) {
            Ok((doc, meters)) => metrics::page(&doc, &meters, &self.tally).into(),
            Err(denied) => {
                self.journal.judge(now, "metrics", Err(denied));
                metrics::page(&WatchDoc::default(), &[], &self.tally).into()
            }
        };
        self.page = Some((now.monotonic, page.clone()));
        page
    }

    fn watched(&self, held: &Held, interfaces: &[Interface], now: Now) -> Watched {
        let effective = held.effective(&self.ledger);
        let bits = |rate: netnice_core::units::Rate| rate.bits_per_second();
        let paces = self.rates.pace(held.id, now.monotonic).unwrap_or_default();
        let meter = self.rates.meter(held.id);
        let [sends, receives] = Direction::ALL.map(|direction| {
            let pace = paces[direction as usize];
            Moving {
                rate: pace.rate.0,
                wait_ns: meter.flow(direction).queue_delay_ns,
                drops: pace.drops,
                held: pace.held,
            }
        });
        Watched {
            target: held.entry.target.to_string(),
            inside: None,
            up: effective.up().map(bits),
            down: effective.down().map(bits),
            both: effective.both().map(bits),
            min: effective.min(Direction::Up).map(bits),
            min_down: effective.min(Direction::Down).map(bits),
            sends,
            receives,
            degraded: self.target_faults(held, interfaces),
        }
    }

    fn watched_link(&self, managed: &Managed, interfaces: &[Interface]) -> WatchedLink {
        let doc = LinkDoc::new(&managed.link, self.ledger.promised(&managed.link));
        WatchedLink {
            link: doc.link,
            up: doc.up.as_ref().map(|capacity| capacity.rate),
            down: doc.down.as_ref().map(|capacity| capacity.rate),
            up_held: doc.up.map_or(0, |capacity| capacity.held),
            down_held: doc.down.map_or(0, |capacity| capacity.held),
            degraded: self.link_faults(managed, interfaces),
        }
    }

    /// The connections of a target, as far as the peer may know them.
    pub(super) fn connections(
        &mut self,
        peer: &Peer,
        target: &str,
        now: Now,
    ) -> Result<ConnectionsDoc, Denied> {
        let target: Target = target.parse()?;
        let held = match target {
            Target::Pid(pid) => self.of_process(&target, pid.get())?.into_iter().next(),
            _ => Some(self.lookup(&target)?.clone()),
        };
        let held = held.ok_or_else(|| {
            Denied::Failed(format!(
                "nothing is set for {target}; `netnice show` lists what is"
            ))
        })?;
        let of = match made_of(&held.body, &held.entry.target) {
            Some(Found::Processes(_) | Found::App(_)) => {
                Some(Found::Processes(self.members_of(&held)?))
            }
            other => other,
        };
        let all = match &of {
            Some(of) => self.host.connections(of)?,
            None => Vec::new(),
        };
        let (mut told, hidden): (Vec<_>, Vec<_>) = all
            .into_iter()
            .partition(|connection| peer.privileged || connection.uid == peer.uid);
        let passed = |c: &connections::Connection| {
            c.sent.unwrap_or(0).saturating_add(c.received.unwrap_or(0))
        };
        told.sort_by_key(|c| (std::cmp::Reverse(passed(c)), c.inode));
        let more = told.len().saturating_sub(MOST_TOLD);
        told.truncate(MOST_TOLD);
        Ok(ConnectionsDoc {
            target: held.entry.target.to_string(),
            at_ns: now.monotonic.0,
            connections: told.into_iter().map(in_words).collect(),
            more: more as u64,
            of_others: hidden.len() as u64,
        })
    }

    /// All processes of a target that is known by its processes.
    fn members_of(&mut self, held: &Held) -> Result<Vec<u32>, Denied> {
        let by_descent = matches!(held.body, Body::Processes { .. });
        let members = self.host.members()?.into_iter();
        let of = |(own, app): (u32, u32)| if by_descent { own } else { app };
        let theirs = members.filter(|(_, membership)| of(*membership) == held.id);
        Ok(theirs.map(|(pid, _)| pid).collect())
    }
}

fn in_words(connection: connections::Connection) -> Connection {
    Connection {
        inode: connection.inode,
        protocol: connection.protocol.to_owned(),
        local: connection.local.to_string(),
        peer: connection.peer.map(|peer| peer.to_string()),
        state: connection.state.map(ToOwned::to_owned),
        sent: connection.sent,
        received: connection.received,
    }
}

/// More connections than fit any screen help nobody; those that moved least are left out.
const MOST_TOLD: usize = 200;
/// A page of metrics is as good as new for so long.
const FRESH: Nanos = Nanos::from_millis(500);

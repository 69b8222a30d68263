//! Sharing what is left over on managed links among those that use it.
//!
//! The plan assures each busy target its weight's part of what was promised to nobody. Who is busy is seen here, from
//! what the classes at the top of each link's tree carried since the last look. A daemon that is gone leaves the parts
//! as they are; minimums do not depend on them.

use std::collections::BTreeMap;

use netnice_core::units::Instant;

use super::{Kernel, stages};
use crate::{error::KernelError, plan, tc};

/// What was seen at the last look.
#[derive(Debug, Default)]
pub(super) struct Shares {
    at: Option<Instant>,
    /// Bytes of each class at the top of a tree: by link, direction and slot.
    bytes: BTreeMap<(String, usize, u16), u64>,
}

impl Kernel {
    /// Looks who is busy on the managed links, and gives out the parts anew where that has changed. To be called a few
    /// times a second while a link is managed; tells whether anything changed.
    pub fn balance(&mut self, now: Instant) -> Result<bool, KernelError> {
        let links: Vec<String> = self.installed.links.keys().cloned().collect();
        if links.is_empty() {
            return Ok(false);
        }
        let passed = self.shares.at.map(|at| now.since(at).0);
        let mut quiet = self.quiet.clone();
        quiet.retain(|name, _| links.contains(name));
        let mut bytes = BTreeMap::new();
        for name in links {
            for dir in 0..2 {
                for (slot, carried, ceil) in self.carried(&name, dir)? {
                    let key = (name.clone(), dir, slot);
                    if let (Some(before), Some(passed)) = (self.shares.bytes.get(&key), passed) {
                        let rate = u128::from(carried.saturating_sub(*before)) * 1_000_000_000
                            / u128::from(passed.max(1));
                        let set = &mut quiet.entry(name.clone()).or_default()[dir];
                        if rate * QUIET_BELOW < u128::from(ceil) {
                            set.insert(slot);
                        } else if rate * BUSY_ABOVE > u128::from(ceil) {
                            set.remove(&slot);
                        }
                    }
                    bytes.insert(key, carried);
                }
            }
        }
        self.shares = Shares {
            at: Some(now),
            bytes,
        };
        if quiet == self.quiet {
            return Ok(false);
        }
        self.quiet = quiet;
        let desired = self.desired.clone();
        self.apply(&desired).map(|()| true)
    }

    /// Slot, bytes and ceiling of each node at the top of one tree.
    fn carried(&mut self, link: &str, dir: usize) -> Result<Vec<(u16, u64, u64)>, KernelError> {
        let place = [
            self.stages
                .up
                .get(link)
                .map(|index| (*index, stages::LINK_MAJOR)),
            self.stages
                .down
                .get(link)
                .map(|pair| (pair.near, stages::DOWN_MAJOR)),
        ][dir];
        let Some((ifindex, major)) = place else {
            return Ok(Vec::new());
        };
        let classes = tc::classes(&mut self.route, ifindex)?;
        Ok(classes
            .into_iter()
            .filter(|c| c.id.major() == major && plan::is_top(c.parent.minor()))
            .filter_map(|c| Some((plan::slot_of(c.id.minor()), c.counts.bytes, c.htb?.ceil)))
            .collect())
    }
}

/// Under half a percent of the link nobody needs a part of it; above one percent it does.
const QUIET_BELOW: u128 = 200;
const BUSY_ABOVE: u128 = 100;

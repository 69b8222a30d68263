//! Traffic quotas in the maps of the eBPF programs: [`Kernel::set_quotas`] sets how many bytes may
//! pass for each, and [`Kernel::quotas`] reads how many have. Both fail if a map cannot be read or
//! written.
//!
//! The programs only add to a count, and the daemon only replaces a limit, which names the count at
//! which the period began. So a new period loses no packet and counts none twice. The counts
//! outlive the daemon with the maps. When the last target goes and the maps with it, the last
//! counts stay in memory until they are read.

use std::collections::BTreeMap;

use super::{Kernel, entries, loaded};
use crate::abi;
use crate::error::KernelError;
use crate::retry::RemoveEntry;

/// The largest number of quotas.
pub const MAX_QUOTAS: usize = abi::MAX_QUOTAS as usize;
/// The largest number of quotas that hold one packet.
pub const MOST_QUOTAS: usize = abi::QUOTAS_AROUND as usize;

/// What may pass in a period of a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaEntry {
    /// The begin of the period, in nanoseconds since 1970.
    pub start_ns: u64,
    /// The count of bytes at which the period began, modulo 2^64.
    pub base: u64,
    /// The count of refused packets at which the period began, modulo 2^64.
    pub refused_base: u64,
    /// The bytes that may pass in the period; `None`: any number, which is counted.
    pub limit: Option<u64>,
    /// Whether sent packets count.
    pub up: bool,
    /// Whether received packets count.
    pub down: bool,
}

/// A quota and what was counted for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaState {
    /// What may pass.
    pub entry: QuotaEntry,
    /// Wire bytes that have passed since the kernel counts for it.
    pub bytes: u64,
    /// Packets that did not fit since then.
    pub refused: u64,
    /// False if the kernel has stopped counting for it, because no target was left.
    pub live: bool,
}

/// The quotas: what is desired, what the map has, and the last counts of a removed map.
#[derive(Debug, Default)]
pub(super) struct Quotas {
    desired: BTreeMap<u64, QuotaEntry>,
    written: BTreeMap<u64, QuotaEntry>,
    last: BTreeMap<u64, QuotaState>,
}

impl Kernel {
    /// Sets the quotas, by key. A count begins at 0 when its key is new, and is removed with the
    /// key. If nothing is in force, the quotas take effect with the first target.
    ///
    /// # Errors
    /// If a map cannot be written. Then some quotas may be the new ones and some the old ones.
    pub fn set_quotas(&mut self, quotas: &BTreeMap<u64, QuotaEntry>) -> Result<(), KernelError> {
        self.quotas.desired.clone_from(quotas);
        match self.programs.is_some() {
            true => self.write_quotas(),
            false => Ok(()),
        }
    }

    /// The quotas in the maps with their counts, and until the next target is set those whose maps
    /// were removed since.
    ///
    /// # Errors
    /// If a map cannot be read.
    pub fn quotas(&mut self) -> Result<BTreeMap<u64, QuotaState>, KernelError> {
        if self.programs.is_none() {
            return Ok(self.quotas.last.clone());
        }
        if self.quotas.written.is_empty() {
            return Ok(BTreeMap::new());
        }
        let programs = loaded(&mut self.programs)?;
        let map = programs.hash::<u64, abi::QuotaCount>("quota_counts")?;
        let mut states = BTreeMap::new();
        // Their number is bounded, and each key is read by itself: a walk over a map that others
        // change can miss entries.
        for (key, entry) in &self.quotas.written {
            let count = match map.get(key, 0) {
                Ok(count) => count,
                Err(aya::maps::MapError::KeyNotFound) => abi::QuotaCount::default(),
                Err(error) => return Err(KernelError::bpf("read the count of a quota", error)),
            };
            let state = QuotaState {
                entry: *entry,
                bytes: count.bytes,
                refused: count.refused,
                live: true,
            };
            states.insert(*key, state);
        }
        Ok(states)
    }

    /// Writes the desired quotas to the maps: counts before limits, so that no packet finds a limit
    /// without a count.
    pub(super) fn write_quotas(&mut self) -> Result<(), KernelError> {
        self.quotas.last.clear();
        let Quotas {
            desired, written, ..
        } = &mut self.quotas;
        if desired == written {
            return Ok(());
        }
        let programs = loaded(&mut self.programs)?;
        let mut counts = programs.hash::<u64, abi::QuotaCount>("quota_counts")?;
        for key in desired.keys().filter(|key| !written.contains_key(key)) {
            counts
                .insert(key, abi::QuotaCount::default(), 0)
                .map_err(|error| KernelError::bpf("make the count of a quota", error))?;
        }
        let mut limits = programs.hash::<u64, abi::QuotaLimit>("quota_limits")?;
        for (key, entry) in &*desired {
            if written.get(key) != Some(entry) {
                limits
                    .insert(key, limit_of(entry), 0)
                    .map_err(|error| KernelError::bpf("write the limit of a quota", error))?;
                written.insert(*key, *entry);
            }
        }
        let gone: Vec<u64> = written
            .keys()
            .filter(|key| !desired.contains_key(key))
            .copied()
            .collect();
        for key in &gone {
            limits.remove_entry(key)?;
        }
        let mut counts = programs.hash::<u64, abi::QuotaCount>("quota_counts")?;
        for key in &gone {
            counts.remove_entry(key)?;
            written.remove(key);
        }
        Ok(())
    }

    /// Reads the quotas that an earlier daemon has left in the maps.
    pub(super) fn adopt_quotas(&mut self) -> Result<(), KernelError> {
        let map = loaded(&mut self.programs)?.hash::<u64, abi::QuotaLimit>("quota_limits")?;
        let limits: BTreeMap<u64, abi::QuotaLimit> = entries(map.iter(), "quota_limits")?;
        let found = limits.iter().map(|(key, limit)| (*key, entry_of(limit)));
        self.quotas.written = found.collect();
        self.quotas.desired = self.quotas.written.clone();
        Ok(())
    }

    /// Keeps the counts in memory before the maps are removed. A failure is logged.
    pub(super) fn keep_quota_counts(&mut self) {
        if self.programs.is_none() {
            return;
        }
        match self.quotas() {
            Ok(states) => {
                // If the same quotas are made anew, they continue: their counts begin at 0 again.
                for (key, entry) in &mut self.quotas.desired {
                    if let Some(state) = states.get(key) {
                        entry.base = state.entry.base.wrapping_sub(state.bytes);
                        let refused = state.entry.refused_base;
                        entry.refused_base = refused.wrapping_sub(state.refused);
                    }
                }
                let ended = |state| QuotaState {
                    live: false,
                    ..state
                };
                self.quotas.last = states
                    .into_iter()
                    .map(|(key, it)| (key, ended(it)))
                    .collect();
            }
            Err(error) => tracing::warn!(%error, "the last counts of quotas are lost"),
        }
        self.quotas.written.clear();
    }
}

/// The keys in an array of the length that the eBPF programs read; 0 in the places after the last
/// key. Keys beyond [`MOST_QUOTAS`] are left out.
pub(super) fn padded(keys: &[u64]) -> [u64; MOST_QUOTAS] {
    let mut list = [0; MOST_QUOTAS];
    for (to, key) in list.iter_mut().zip(keys) {
        *to = *key;
    }
    list
}

fn limit_of(entry: &QuotaEntry) -> abi::QuotaLimit {
    abi::QuotaLimit {
        start: entry.start_ns,
        base: entry.base,
        limit: entry.limit.unwrap_or(u64::MAX),
        refused_base: entry.refused_base,
        directions: u32::from(entry.up) | u32::from(entry.down) << 1,
        pad: 0,
    }
}

fn entry_of(limit: &abi::QuotaLimit) -> QuotaEntry {
    QuotaEntry {
        start_ns: limit.start,
        base: limit.base,
        refused_base: limit.refused_base,
        limit: (limit.limit != u64::MAX).then_some(limit.limit),
        up: limit.directions & 1 != 0,
        down: limit.directions & 2 != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_read_back_as_it_was_written() {
        for (limit, up, down) in [
            (None, true, true),
            (Some(5), true, false),
            (Some(0), false, true),
        ] {
            let entry = QuotaEntry {
                start_ns: 1 << 60,
                base: u64::MAX - 3,
                refused_base: 9,
                limit,
                up,
                down,
            };
            assert_eq!(entry_of(&limit_of(&entry)), entry);
        }
    }

    #[test]
    fn a_list_of_keys_ends_with_zeros_and_has_a_bound() {
        assert_eq!(padded(&[]), [0; MOST_QUOTAS]);
        assert_eq!(padded(&[7, 8])[..3], [7, 8, 0]);
        let many: Vec<u64> = (1..=20).collect();
        assert_eq!(padded(&many)[MOST_QUOTAS - 1], MOST_QUOTAS as u64);
    }
}

//! Finds the targets that have long packets on lo, and gives the leaves around them turns of that
//! length ([`Kernel::adapt_turns`]; the reason is in the documentation of [`crate::plan`]). Fails
//! with [`KernelError`] if the counts cannot be read or the classes cannot be changed.

use std::collections::BTreeSet;

use super::{Kernel, loaded};
use crate::{abi, error::KernelError, plan, process::monotonic, tc::Handle};

impl Kernel {
    /// Adapts the turns of the leaves of limits to the packets of lo. To be called about once a
    /// second. Returns whether a turn changed.
    ///
    /// # Errors
    /// If a count cannot be read, or [`Kernel::apply`] fails.
    pub fn adapt_turns(&mut self) -> Result<bool, KernelError> {
        if self.stages.cap.is_none() || self.programs.is_none() {
            return Ok(false);
        }
        let programs = loaded(&mut self.programs)?;
        let count = programs.count(abi::COUNT_LOCAL)?;
        let (before, last) = &self.on_lo;
        if count == *last && before.is_empty() {
            return Ok(false);
        }
        let windows = programs.read_all::<abi::WindowKey, abi::Window>("windows")?;
        let now = (monotonic().0 / 1_000_000) as u32;
        let on_lo = slots_on_lo(&windows, now);
        let changed = on_lo != *before;
        self.on_lo = (on_lo, count);
        if changed {
            let desired = self.desired.clone();
            self.apply(&desired)?;
        }
        Ok(changed)
    }
}

/// The slots whose local leaves had a packet in the last [`KEPT_MS`] before `now`, in ms on the
/// programs' clock.
fn slots_on_lo(windows: &[(abi::WindowKey, abi::Window)], now: u32) -> BTreeSet<u16> {
    let is_recent = |w: &abi::Window| w.local_ms != 0 && now.wrapping_sub(w.local_ms) < KEPT_MS;
    let of_limits = windows
        .iter()
        .filter(|(key, w)| key.link == 0 && is_recent(w));
    of_limits
        .map(|(key, _)| plan::slot_of(Handle(key.leaf).minor()))
        .collect()
}

/// How long turns stay long after the last packet, in ms.
const KEPT_MS: u32 = 5_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_recent_packets_of_limits_count() {
        let window = |minor, link, local_ms| {
            let leaf = Handle::new(super::super::stages::CAP_MAJOR, minor).0;
            let window = abi::Window {
                local_ms,
                ..abi::Window::default()
            };
            (abi::WindowKey { leaf, link }, window)
        };
        // Five classes for sending and four for receiving in each slot, from 9 on.
        let windows = [
            window(11, 0, 999_001),
            window(25, 0, 995_001),
            window(29, 0, 995_000),
            window(38, 2, 999_001),
            window(47, 0, 0),
        ];
        assert_eq!(slots_on_lo(&windows, 1_000_000), BTreeSet::from([1, 2]));
        assert_eq!(
            slots_on_lo(&[window(11, 0, u32::MAX)], 3_000),
            BTreeSet::from([1]),
            "the clock of 32 bits wraps"
        );
    }
}

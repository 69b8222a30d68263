//! Makes the control groups of reservations. With version 2 of control groups this lets groups of
//! others pass the controller `cpu` on, which ends with the reservations that need it.

use netnice_kernel::processor::groups::is_around;

use super::{Keeper, Wanted};
use crate::error::RequestError;
use crate::host::{ProcessorHost, ProcessorTime};

impl Keeper {
    /// Makes the group of a target with processes, where they are.
    pub(super) fn open_group<H: ProcessorTime + ProcessorHost>(
        &mut self,
        host: &mut H,
        wanted: &Wanted,
    ) -> Result<(), RequestError> {
        let id = wanted.id;
        let first = wanted.processes.first();
        let (Some(kept), Some(first)) = (self.kept.get_mut(&id), first) else {
            return Ok(());
        };
        if host.threads(&kept.group).is_empty() {
            // All processes have ended, and these may have started elsewhere.
            let home = host.home(*first)?;
            if home != kept.group.home {
                host.remove_group(&kept.group)?;
                kept.group.home = home;
                self.save()?;
            }
        }
        let group = self.kept[&id].group.clone();
        let lacking = host.lacking_cpu(&group);
        if !lacking.is_empty() {
            self.passing_cpu.extend(lacking);
            self.save()?;
        }
        if host.open_group(&group)?
            && let Some(kept) = self.kept.get_mut(&id)
        {
            kept.set = None;
        }
        Ok(())
    }

    /// Restores the groups of others that pass `cpu` on for no reservation any more.
    pub(super) fn restore_passing<H: ProcessorTime>(&mut self, host: &mut H) {
        let kept: Vec<&str> = self
            .kept
            .values()
            .map(|kept| kept.group.home.cpu.as_str())
            .collect();
        let is_used = |path: &&String| kept.iter().any(|home| is_around(path, home));
        let passing = self.passing_cpu.iter();
        let unused: Vec<String> = passing.filter(|path| !is_used(path)).cloned().collect();
        // Innermost first: a group in another one comes after it in the order.
        for path in unused.iter().rev() {
            let restored = host.stop_passing_on(path);
            self.note(restored);
            self.passing_cpu.remove(path);
        }
    }
}

//! Reservations of the drivers' packet threads, while any target has its time exactly. If a driver
//! cannot have one, no target has: the driver would be late behind it. A driver whose use grows has
//! what it asks for as far as the kernel admits it. The calls fail with the reason, or if the
//! kernel refuses to take a reservation away.

use netnice_core::contract::Slice;

use super::Keeper;
use super::kept::Kept;
use crate::error::RequestError;
use crate::host::ProcessorTime;
use crate::host::processor_time::{DriverBefore, NotExact};

/// A driver's packet thread, and what is to be reserved for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DriverThread {
    /// The driver's name: `driver-eth0`.
    pub name: String,
    /// The thread.
    pub thread: u32,
    /// What it asks for, from what it used lately.
    pub slice: Slice,
    /// What it needs at least for that use.
    pub least: Slice,
}

/// A reservation of a driver in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeptDriver {
    /// The driver's name.
    pub name: String,
    /// What it has.
    pub slice: Slice,
    /// What it had before.
    pub before: DriverBefore,
}

impl Keeper {
    /// Sets the drivers that run now.
    pub(crate) fn set_drivers(&mut self, drivers: Vec<DriverThread>) {
        self.drivers = drivers;
    }

    /// Gives each driver its reservation.
    ///
    /// # Errors
    /// The reason why one of them cannot have it.
    pub(super) fn reserve_drivers<H: ProcessorTime>(&mut self, host: &mut H) -> Result<(), String> {
        let mut changed = false;
        for driver in self.drivers.clone() {
            let kept = self.kept_drivers.get(&driver.thread);
            if kept.is_some_and(|kept| suffices(&kept.slice, &driver.slice)) {
                continue;
            }
            match reserve(host, &driver, kept.map(|kept| kept.slice)) {
                Ok(None) => {}
                Ok(Some((slice, before))) => {
                    let before = kept.map_or(before, |kept| kept.before.clone());
                    let kept = KeptDriver {
                        name: driver.name,
                        slice,
                        before,
                    };
                    self.kept_drivers.insert(driver.thread, kept);
                    changed = true;
                }
                Err(NotExact::Busy) => {
                    let (budget, period) = (driver.least.slice(), driver.least.period());
                    return Err(format!(
                        "the kernel admits no more for SCHED_DEADLINE, and {} needs {budget} in \
                         every {period} beside it",
                        driver.name
                    ));
                }
                Err(NotExact::Refused(why)) => return Err(why),
            }
        }
        match changed {
            true => self.save().map_err(|error| error.to_string()),
            false => Ok(()),
        }
    }

    /// Follows what the drivers need while a target has its time exactly, and takes their
    /// reservations away when none has.
    ///
    /// # Errors
    /// If a driver cannot have what it needs now, or the kernel refuses.
    pub(super) fn settle_drivers<H: ProcessorTime>(
        &mut self,
        host: &mut H,
    ) -> Result<(), RequestError> {
        let has_deadline = |kept: &Kept| kept.deadlines().next().is_some();
        if self.kept.values().any(has_deadline) {
            let kept = self.kept_drivers.iter();
            let ended = kept.filter(|(thread, _)| host.process_of(**thread).is_none());
            for thread in ended.map(|(thread, _)| *thread).collect::<Vec<u32>>() {
                if let Some(driver) = self.kept_drivers.remove(&thread) {
                    host.release_driver(&driver.name, thread, &driver.before)?;
                }
            }
            return self.reserve_drivers(host).map_err(RequestError::Failed);
        }
        if self.kept_drivers.is_empty() {
            return Ok(());
        }
        let kept = std::mem::take(&mut self.kept_drivers);
        let released: Vec<_> = kept
            .iter()
            .map(|(thread, driver)| host.release_driver(&driver.name, *thread, &driver.before))
            .collect();
        self.save()?;
        released.into_iter().collect()
    }
}

/// Gives a driver what it asks for. If the kernel does not admit that, it keeps what it `has`
/// (`None` is returned) or gets the least, whichever is more. Returns what it has then, and what it
/// had before.
fn reserve<H: ProcessorTime>(
    host: &mut H,
    driver: &DriverThread,
    has: Option<Slice>,
) -> Result<Option<(Slice, DriverBefore)>, NotExact> {
    let mut give = |slice: Slice| {
        let (budget, period) = (slice.slice(), slice.period());
        let before = host.reserve_driver(&driver.name, driver.thread, budget, period)?;
        Ok(Some((slice, before)))
    };
    match give(driver.slice) {
        Err(NotExact::Busy) if has.is_some_and(|has| has.slice() >= driver.least.slice()) => {
            Ok(None)
        }
        Err(NotExact::Busy) => give(driver.least),
        given => given,
    }
}

/// True if what a driver has is enough for what it needs, and not more than twice as much.
fn suffices(has: &Slice, needs: &Slice) -> bool {
    has.period() == needs.period()
        && has.slice() >= needs.slice()
        && has.slice().0 <= needs.slice().0.saturating_mul(2)
}

//! Passes what drivers need of the processors from the flows to the service. Nothing here fails.

use super::Daemon;
use crate::flows::driver_reservation::driver_reservation;
use crate::processors::DriverThread;

impl Daemon {
    /// Passes on which drivers run, and what each needs while a target has its processor time
    /// exactly.
    pub(super) fn follow_drivers(&mut self) {
        let threads = self.flows.driver_threads().into_iter();
        let drivers = threads.map(|driver| DriverThread {
            name: format!("driver-{}", driver.link),
            thread: driver.thread,
            slice: driver_reservation(driver.used_ppm),
        });
        self.service.set_driver_threads(drivers.collect());
    }
}

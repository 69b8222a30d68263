//! Passes what drivers and flows need of the processors from the flows to the service. Nothing here
//! fails.

use netnice_api::Request;
use netnice_core::contract::Change;

use super::Daemon;
use crate::clock::Now;
use crate::flows::driver_reservation::{driver_reservation, least_reservation};
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
            least: least_reservation(driver.used_ppm),
        });
        self.service.set_driver_threads(drivers.collect());
    }

    /// Passes on the flows that send, if a target follows them.
    pub(super) fn follow_flows(&mut self, now: Now) {
        if self.service.follows_flows() {
            let flows = self.flows.sending_flows();
            self.service.follow_sending(flows, now);
        }
    }
}

/// True if a request may reserve processor time.
pub(super) fn may_reserve(request: &Request) -> bool {
    match request {
        Request::Set(set) => {
            // Without a change a process joins a target, whose reservation may begin with it.
            let change = set.change.as_deref().map(str::parse::<Change>);
            change.is_none_or(|change| change.is_ok_and(|change| change.cpu.is_some()))
        }
        Request::Reload(_) => true,
        _ => false,
    }
}

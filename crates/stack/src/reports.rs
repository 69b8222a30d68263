//! What routers and hosts reported about the packets of a flow ([`Reports`]): the error that the
//! program has not taken yet, and the path MTUs to single hosts on a flow to any host. No function
//! fails.
//!
//! A path MTU to a host holds for [`PATH_MTU_LIFETIME`] (10 minutes) after the last report of it
//! (RFC 1191, RFC 8201). On a flow with one remote host the daemon does the same, and changes the
//! MTU of the flow.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use netnice_api::direct::Undelivered;

/// The reports about a flow.
#[derive(Default)]
pub(crate) struct Reports {
    /// True while `state` holds an error.
    has_error: AtomicBool,
    /// True once a path MTU was reported.
    has_path_mtus: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The latest error that was not taken.
    error: Option<Undelivered>,
    /// The path MTU to a host in bytes, and the time of its end.
    path_mtus: HashMap<IpAddr, (u32, Instant)>,
}

impl Reports {
    /// Adds a report. An earlier error that was not taken is lost.
    pub(crate) fn add(&self, report: Undelivered, now: Instant) {
        let mut state = self.lock();
        state.error = Some(report);
        if let Some(mtu) = report.mtu {
            let path_mtus = &mut state.path_mtus;
            if path_mtus.len() >= MAX_HOSTS {
                path_mtus.retain(|_, (_, until)| *until > now);
            }
            if path_mtus.len() >= MAX_HOSTS {
                path_mtus.clear();
            }
            path_mtus.insert(report.to.ip(), (mtu, now + PATH_MTU_LIFETIME));
            self.has_path_mtus.store(true, Ordering::Release);
        }
        self.has_error.store(true, Ordering::Release);
    }

    /// Removes and returns the latest error.
    #[inline]
    pub(crate) fn take(&self) -> Option<Undelivered> {
        if !self.has_error.load(Ordering::Acquire) {
            return None;
        }
        let mut state = self.lock();
        self.has_error.store(false, Ordering::Release);
        state.error.take()
    }

    /// The path MTU to a host whose route has the MTU `route`, both in bytes.
    #[inline]
    pub(crate) fn mtu_to(&self, host: IpAddr, route: u32) -> u32 {
        match self.has_path_mtus.load(Ordering::Acquire) {
            true => self.known_mtu(host, route, Instant::now()),
            false => route,
        }
    }

    fn known_mtu(&self, host: IpAddr, route: u32, now: Instant) -> u32 {
        match self.lock().path_mtus.get(&host) {
            Some((mtu, until)) if *until > now => route.min(*mtu),
            _ => route,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The time for which a reported path MTU holds (RFC 1191, section 6.3; RFC 8201, section 4).
const PATH_MTU_LIFETIME: Duration = Duration::from_secs(600);
/// Largest number of hosts whose path MTU a flow stores.
const MAX_HOSTS: usize = 1024;

#[cfg(test)]
mod tests;

//! Samples the bytes that a host's IP layer receives behind its limits, every 10 ms.
//! [`Arrivals::stop`] returns these bytes, as on the wire, over wall-clock time. A start fails if
//! the thread cannot start. The thread may fail to enter the namespace, or to read its counters;
//! `stop` returns this failure.
//!
//! The bytes that a program reads are a poor measure of a receive limit: after a lost packet the
//! program gets nothing for one round trip and then everything at once, while its host receives at
//! an even rate. The counters of the host's IP layer do not have this error.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::Result;

use super::netns::{Netns, delivered_here};
use crate::stats::Cumulative;
use crate::worker::Worker;

/// A running meter of the IP layer's received bytes in one namespace.
pub(crate) struct Arrivals(Worker<Cumulative>);

impl Arrivals {
    /// Starts sampling `ns`. Fails if the thread cannot start.
    pub(crate) fn start(ns: &Netns) -> Result<Arrivals> {
        let handle = ns.handle();
        let worker = Worker::start("arrivals", move |stopped| {
            handle.enter_thread()?;
            let mut record = Cumulative::default();
            loop {
                let last = stopped.load(Relaxed);
                let now = delivered_here()?;
                record.push(now.at_ns, now.wire);
                if last {
                    return Ok(record);
                }
                std::thread::sleep(STEP);
            }
        })?;
        Ok(Arrivals(worker))
    }

    /// Ends the meter and returns wire bytes over wall-clock time. Fails if the thread could not
    /// enter the namespace or read its counters, or if it panicked.
    pub(crate) fn stop(self) -> Result<Cumulative> {
        self.0.stop()
    }
}

/// Time between samples; at 4 Mbit/s this is three packets.
const STEP: Duration = Duration::from_millis(10);

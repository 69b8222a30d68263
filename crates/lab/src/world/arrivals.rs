//! Samples what a host's IP layer receives behind its limits.
//!
//! The bytes that a program reads are a poor measure of a receive limit: after a lost packet the
//! program gets nothing for one round trip and then everything at once, while its host receives at
//! an even rate. The counters of the host's IP layer do not have this error.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Result, anyhow};

use super::netns::{Netns, delivered_here};
use crate::stats::Cumulative;

/// A running meter of the IP layer's received bytes in one namespace.
pub struct Arrivals {
    stop: Arc<AtomicBool>,
    reader: Option<JoinHandle<Result<Cumulative>>>,
}

impl Arrivals {
    /// Starts sampling `ns`.
    pub fn start(ns: &Netns) -> Result<Arrivals> {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, handle) = (stop.clone(), ns.handle());
        let reader = std::thread::Builder::new()
            .name("arrivals".into())
            .spawn(move || {
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
        Ok(Arrivals {
            stop,
            reader: Some(reader),
        })
    }

    /// Ends the meter and returns wire bytes over wall-clock time.
    pub fn stop(mut self) -> Result<Cumulative> {
        self.stop.store(true, Relaxed);
        let reader = self.reader.take().expect("stopped once");
        reader
            .join()
            .map_err(|_| anyhow!("the thread that samples arrivals panicked"))?
    }
}

impl Drop for Arrivals {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

/// Time between samples; at 4 Mbit/s this is three packets.
const STEP: Duration = Duration::from_millis(10);

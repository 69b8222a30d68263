//! Samples every 50 ms how much arrives at the other end of the cable, and judges whether root's
//! limit was in force all the time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use netnice_lab::sys;
use netnice_lab::world::NetnsHandle;

use super::{ROOT_LIMIT, SECOND, WINDOW};

/// Samples the bytes that arrive at the other end of the cable.
pub(super) struct LimitWatch {
    samples: Arc<Mutex<Vec<Option<Sample>>>>,
    is_active: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Bytes that have arrived, read between two times.
#[derive(Clone, Copy)]
struct Sample {
    from_ns: u64,
    to_ns: u64,
    bytes: u64,
}

impl LimitWatch {
    pub(super) fn new(handle: NetnsHandle) -> LimitWatch {
        let samples: Arc<Mutex<Vec<Option<Sample>>>> = Arc::default();
        let (is_active, over): (Arc<AtomicBool>, Arc<AtomicBool>) =
            (Arc::default(), Arc::default());
        let (into, active, ended) = (samples.clone(), is_active.clone(), over.clone());
        let thread = std::thread::spawn(move || {
            handle.enter_thread().expect("the namespace is there");
            while !ended.load(Ordering::Relaxed) {
                let sample = active.load(Ordering::Relaxed).then(sample);
                into.lock().expect("no panic").push(sample);
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        LimitWatch {
            samples,
            is_active,
            over,
            thread: Some(thread),
        }
    }

    /// From this call on the limit must be kept.
    pub(super) fn begin(&self) {
        self.is_active.store(true, Ordering::Relaxed);
    }

    /// From this call on the limit need not be kept.
    pub(super) fn pause(&self) {
        if self.is_active.swap(false, Ordering::Relaxed) {
            self.samples.lock().expect("no panic").push(None);
        }
    }

    /// The windows in which more arrived than the limit allows. A window has 250 ms, so a limit
    /// that is off for a tenth of a second is visible. Packets that a busy host delivers late add
    /// to the next window, so the bound of a window is wide; the bound of the whole time is 3 %.
    pub(super) fn faults(&self) -> Vec<String> {
        let samples = self.samples.lock().expect("no panic");
        let mut faults = Vec::new();
        for span in samples.split(Option::is_none) {
            let span: Vec<Sample> = span.iter().flatten().copied().collect();
            for (at, first) in span.iter().enumerate() {
                let rest = &span[at..];
                let Some(last) = rest.iter().find(|s| s.from_ns >= first.to_ns + WINDOW) else {
                    break;
                };
                let share = share(first, last);
                if share > 1.4 {
                    faults.push(format!("{:.0} % of the limit in 250 ms", share * 100.0));
                }
            }
            if let [first, .., last] = span.as_slice()
                && last.from_ns > first.to_ns + 5 * SECOND
                && share(first, last) > 1.03
            {
                let over = share(first, last) * 100.0;
                faults.push(format!("{over:.1} % of the limit all the while"));
            }
        }
        faults
    }
}

impl Drop for LimitWatch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The lowest possible rate between two samples, as a share of root's limit.
fn share(first: &Sample, last: &Sample) -> f64 {
    let bits = (last.bytes - first.bytes) as f64 * 8.0;
    bits / (last.to_ns - first.from_ns) as f64 * 1e9 / ROOT_LIMIT.1 as f64
}

fn sample() -> Sample {
    let from_ns = sys::now_ns();
    let text = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
    let to_ns = sys::now_ns();
    let line = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("eth0:"));
    let bytes = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    Sample {
        from_ns,
        to_ns,
        bytes: bytes.expect("the device counts"),
    }
}

//! Runs a closure in a thread. The guard of the thread, [`Worker`], sets a flag at which the
//! closure must return. [`Worker::stop`] returns the closure's result, and fails if the closure
//! failed or panicked. [`Worker::start`] fails if the thread cannot start.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow};

/// A thread that runs until [`Worker::stop`]. Dropping this value stops the thread, waits for it
/// and discards the result.
pub(crate) struct Worker<T> {
    name: &'static str,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<T>>>,
}

impl<T: Send + 'static> Worker<T> {
    /// Runs `work` in a thread of this name. `work` gets a flag, and must return soon after the
    /// flag is set. Fails if the thread cannot start.
    pub(crate) fn start(
        name: &'static str,
        work: impl FnOnce(&AtomicBool) -> Result<T> + Send + 'static,
    ) -> Result<Worker<T>> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || work(&stopped))
            .with_context(|| format!("cannot start the thread `{name}`"))?;
        Ok(Worker {
            name,
            stop,
            thread: Some(thread),
        })
    }

    /// Stops the thread and returns the result of its work. Fails if the work failed or panicked.
    pub(crate) fn stop(mut self) -> Result<T> {
        self.stop.store(true, Relaxed);
        let thread = self.thread.take().context("a thread is stopped once")?;
        let done = thread.join();
        done.map_err(|_| anyhow!("the thread `{}` panicked", self.name))?
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

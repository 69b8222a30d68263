//! Probes the features of the kernel for `netnice doctor`.
//!
//! A probe loads the eBPF programs and tries queues, which takes a tenth of a second and more. So
//! it runs in a thread of its own, and the requests that need its result wait outside the event
//! loop. At most one probe runs at a time; all requests that arrive meanwhile wait for the same
//! one. They fail if the thread cannot be started.

use std::thread;

use netnice_api::Response;
use netnice_kernel::probe::{self, Finding};
use tokio::sync::mpsc;

use crate::server::PendingRequest;

/// The probe that runs, and the requests that wait for it.
pub(super) struct Probes {
    waiting: Vec<PendingRequest>,
    is_running: bool,
    done: mpsc::Sender<Vec<Finding>>,
}

impl Probes {
    /// Starts without a probe; the receiver gets the findings of each probe.
    pub(super) fn new() -> (Probes, mpsc::Receiver<Vec<Finding>>) {
        let (done, findings) = mpsc::channel(1);
        let probes = Probes {
            waiting: Vec::new(),
            is_running: false,
            done,
        };
        (probes, findings)
    }

    /// Keeps a request until the findings are there, and starts a probe unless one runs.
    pub(super) fn submit(&mut self, pending: PendingRequest) {
        if !self.is_running {
            let done = self.done.clone();
            let started = thread::Builder::new()
                .name("probe".to_owned())
                // The receiver is dropped while the daemon stops.
                .spawn(move || drop(done.blocking_send(probe::probe())));
            if let Err(error) = started {
                let text = format!("cannot probe the kernel: {error}; try again later");
                // The send fails if the peer has closed its connection.
                let _ = pending.reply.send(Response::failed(text).into());
                return;
            }
            self.is_running = true;
        }
        self.waiting.push(pending);
    }

    /// The requests that waited for the findings that were received.
    pub(super) fn take_waiting(&mut self) -> Vec<PendingRequest> {
        self.is_running = false;
        std::mem::take(&mut self.waiting)
    }
}

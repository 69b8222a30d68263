//! Follows the number of receive queues of the interface. The sockets of queues that the interface
//! can get were opened at the start; each second, while frames are received, the control thread
//! binds those whose queues exist now. A queue that cannot be used is logged once, and its frames
//! pass to the kernel.
//!
//! Drivers of interfaces need not run an attached XDP program on a queue that is added later (veth
//! does not), so XDP is attached anew. Frames that arrive meanwhile, for some tens of milliseconds,
//! pass to the kernel.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::{Registry, RegistryError};
use crate::commands::Command;

impl Registry {
    /// When the queues are to be checked; `None` if the interface can get no further ones, or
    /// nothing is received.
    pub(super) fn queues_due(&self) -> Option<Instant> {
        let checks = self.ingress.is_receiving() && self.ingress.has_spare_queues();
        checks.then_some(self.queues_checked + CHECK_INTERVAL)
    }

    /// Receives from the queues that the interface has got. Fails if the packet thread has ended,
    /// or if the kernel does not attach XDP anew.
    pub(super) fn follow_queues(&mut self, now: Instant) -> Result<(), RegistryError> {
        if self.queues_due().is_none_or(|due| due > now) {
            return Ok(());
        }
        self.queues_checked = now;
        if self.add_queues()? {
            self.ingress.stop()?;
            self.ingress.start()?;
        }
        Ok(())
    }

    /// Adds the queues that the interface has got. True if there are any. Fails if the packet
    /// thread has ended.
    fn add_queues(&mut self) -> Result<bool, RegistryError> {
        let mut any = false;
        loop {
            let (number, queue) = match self.ingress.next_queue() {
                Ok(Some(found)) => found,
                Ok(None) => return Ok(any),
                Err(why) => {
                    tracing::debug!(%why, "a new receive queue cannot be used");
                    return Ok(any);
                }
            };
            let socket = queue.fd().try_clone()?;
            // The queue has empty frames before the first frame is directed to it.
            match self.execute(Command::AddQueue(Box::new(queue))) {
                Ok(()) => {}
                Err(ended @ RegistryError::Ended(_)) => return Err(ended),
                Err(why) => {
                    tracing::warn!(number, %why, "a new receive queue cannot be used");
                    continue;
                }
            }
            match self.ingress.open_queue(number, socket.as_fd()) {
                Ok(()) => {
                    any = true;
                    tracing::info!(number, "receives from a new queue of the interface");
                }
                Err(why) => tracing::warn!(number, %why, "a new receive queue cannot be used"),
            }
        }
    }
}

/// Interval between two checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

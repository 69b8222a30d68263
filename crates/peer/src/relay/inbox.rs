//! The commands to a thread that sleeps on descriptors: [`inbox`] makes the two ends, and fails if
//! the system has no descriptor left.
//!
//! The sender adds a command and then writes to an eventfd; the receiver clears the eventfd and
//! then takes all commands. The eventfd stays readable until it is cleared, so no command is left
//! in a sleep: one that is added after the receiver has looked makes the next sleep end at once.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::event::{EventfdFlags, eventfd};

/// The end that adds commands.
#[derive(Debug)]
pub(super) struct Outbox<T> {
    commands: Sender<T>,
    ready: Arc<OwnedFd>,
}

/// The end that takes commands. Its descriptor is readable if there are any.
#[derive(Debug)]
pub(super) struct Inbox<T> {
    commands: Receiver<T>,
    ready: Arc<OwnedFd>,
}

/// Both ends.
pub(super) fn inbox<T>() -> io::Result<(Outbox<T>, Inbox<T>)> {
    let ready = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let ready = Arc::new(ready);
    let (sender, receiver) = channel();
    let outbox = Outbox {
        commands: sender,
        ready: ready.clone(),
    };
    let inbox = Inbox {
        commands: receiver,
        ready,
    };
    Ok((outbox, inbox))
}

impl<T> Outbox<T> {
    /// Adds a command. If the thread has ended, the command is returned.
    pub(super) fn send(&self, command: T) -> Result<(), T> {
        self.commands.send(command).map_err(|error| error.0)?;
        // The write fails only if the counter is full, and then the descriptor is readable.
        let _ = rustix::io::write(&*self.ready, &1_u64.to_ne_bytes());
        Ok(())
    }
}

impl<T> Inbox<T> {
    /// Call this after a sleep, and before [`Inbox::next`].
    pub(super) fn clear(&self) {
        // The read fails only if the counter is 0.
        let _ = rustix::io::read(&*self.ready, &mut [0; 8]);
    }

    /// The oldest command.
    pub(super) fn next(&self) -> Option<T> {
        self.commands.try_recv().ok()
    }
}

impl<T> AsFd for Inbox<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

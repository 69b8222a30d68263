//! Sleeping in a program's own event loop with few system calls ([`Sleeper`]).
//!
//! The doorbell of an attachment is an epoll descriptor, in which the driver's eventfd is watched
//! edge-triggered. A sleeper has it watch two more: the daemon's messages, and a descriptor of the
//! program. So one call of epoll_wait(2) waits for all three, and consumes the driver's
//! notification.
//!
//! ```text
//! epoll_wait ── doorbell ─┬─ eventfd of the driver   (edge-triggered)
//!                         ├─ messages of the daemon
//!                         └─ descriptor of the program
//! ```

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::program::Program;
use crate::readable::wait_readable;

/// A thread that sleeps until the driver, the daemon or another thread of the program has done
/// something. A program has at most one, and no other thread of it may wait in a blocking call.
/// While it exists, [`Program::as_fd`] is also readable when the descriptor of the program is.
pub struct Sleeper {
    program: Program,
    also: OwnedFd,
}

impl Sleeper {
    /// Sleeps also until `also` is readable.
    ///
    /// # Errors
    /// If the program has a sleeper already, or a system call fails.
    pub fn new(program: &Program, also: BorrowedFd<'_>) -> io::Result<Sleeper> {
        let also = also.try_clone_to_owned()?;
        if let Some(messages) = program.messages_fd() {
            // It fails if another sleeper has added them.
            watch(program.doorbell(), messages, MESSAGES)?;
        }
        let program = program.clone();
        let sleeper = Sleeper { program, also };
        watch(sleeper.program.doorbell(), sleeper.also.as_fd(), ALSO)?;
        Ok(sleeper)
    }

    /// Sleeps until one of the three has something, at most for `longest`. It may end earlier.
    /// [`Program::arm`] must have returned true. The result is for [`Program::poll_woken`].
    ///
    /// # Errors
    /// If the system call fails.
    pub fn sleep(&self, longest: Option<Duration>) -> io::Result<bool> {
        if self.program.has_other_attachments() {
            let fds = [self.program.as_fd(), self.also.as_fd()];
            return wait_readable(fds, longest).map(|[program, _]| program);
        }
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(ALSO),
        }; 3];
        // A time that is too long for the kernel is no limit.
        let longest = longest.and_then(|longest| Timespec::try_from(longest).ok());
        match epoll::wait(self.program.doorbell(), &mut events[..], longest.as_ref()) {
            Ok(ready) => {
                let mut ready = events.iter().take(ready);
                Ok(ready.any(|event| event.data.u64() == MESSAGES))
            }
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let doorbell = self.program.doorbell();
        // The descriptor may not have been added.
        let _ = epoll::delete(doorbell, &self.also);
        let _ = (self.program.messages_fd()).map(|messages| epoll::delete(doorbell, messages));
    }
}

fn watch(doorbell: BorrowedFd<'_>, fd: BorrowedFd<'_>, data: u64) -> io::Result<()> {
    let data = epoll::EventData::new_u64(data);
    Ok(epoll::add(doorbell, fd, data, epoll::EventFlags::IN)?)
}

/// Names of the descriptors in events. That of the driver's eventfd is 0.
const MESSAGES: u64 = 1;
const ALSO: u64 = 2;

//! Waits until descriptors are readable.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Waits until one of the descriptors is readable, at most for `longest` (`None`: without a limit).
/// Returns which are readable; none after an interruption. Fails if the system call fails.
pub(crate) fn wait_readable<const N: usize>(
    fds: [BorrowedFd<'_>; N],
    longest: Option<Duration>,
) -> io::Result<[bool; N]> {
    let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    // A time that is too long for the kernel is no limit.
    let longest = longest.and_then(|longest| Timespec::try_from(longest).ok());
    match poll(&mut fds, longest.as_ref()) {
        Ok(_) => Ok(fds.map(|fd| !fd.revents().is_empty())),
        Err(Errno::INTR) => Ok([false; N]),
        Err(error) => Err(error.into()),
    }
}

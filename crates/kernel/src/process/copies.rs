//! Takes copies of other processes' sockets, and closes them without ever blocking the caller.
//!
//! The process that closes the last copy of a TCP socket with unsent data waits as long as the
//! owner set (SO_LINGER). A copy in this process becomes the last one if the owner ends or closes
//! the socket meanwhile. The kernel skips this wait for a thread that ends (`PF_EXITING`:
//! inet_release in net/ipv4/af_inet.c). So a thread with its own descriptor table takes the copies,
//! and only the end of that thread closes them.
//!
//! ```text
//! with_own_descriptors(|own| ..)   a thread with a copy of this descriptor table
//!   → own.take(process, number)   a socket of another process
//!   → the thread ends: the kernel closes its table
//! ```
//! `with_own_descriptors` fails if the thread cannot start or cannot get a descriptor table of its
//! own. `take` fails if pidfd_getfd(2) does, for example without the right to trace the process; it
//! returns `None` if the descriptor is closed or the process has ended.

use std::{
    io,
    marker::PhantomData,
    os::fd::{AsFd, BorrowedFd, IntoRawFd, RawFd},
    panic, thread,
};

use rustix::io::Errno;
use rustix::net::{AddressFamily, Protocol, sockopt};
use rustix::process::{PidfdGetfdFlags, pidfd_getfd};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::{PidFd, socket_namespace};

/// The most copies that one thread should take: each stays open until the thread ends.
pub(crate) const MAX_COPIES: usize = 128;

/// Runs a function in a thread that may take sockets, and returns its result. A descriptor opened
/// there is not valid outside.
///
/// # Errors
/// The thread cannot be started, or it cannot have a descriptor table of its own.
pub(crate) fn with_own_descriptors<T: Send>(
    what: impl FnOnce(&OwnDescriptors) -> T + Send,
) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .name("sockets".to_owned())
            .spawn_scoped(scope, || {
                // SAFETY: both tables have the same descriptors, so all open ones stay open. A
                // descriptor that is opened in this thread cannot leave it: `OwnDescriptors`.
                unsafe { unshare_unsafe(UnshareFlags::FILES) }?;
                Ok(what(&OwnDescriptors(PhantomData)))
            })?;
        thread
            .join()
            .unwrap_or_else(|panic| panic::resume_unwind(panic))
    })
}

/// Proof that the calling thread has its own descriptor table. It cannot leave the thread.
#[derive(Debug)]
pub(crate) struct OwnDescriptors(PhantomData<*const ()>);

impl OwnDescriptors {
    /// Copies a socket, or another descriptor, of a process. Returns `None` if the descriptor is
    /// closed or the process has ended.
    ///
    /// # Errors
    /// The error of pidfd_getfd(2), for example EPERM without the right to trace the process.
    pub(crate) fn take<'a>(
        &'a self,
        process: &PidFd,
        number: RawFd,
    ) -> io::Result<Option<SocketCopy<'a>>> {
        let copy = match pidfd_getfd(process, number, PidfdGetfdFlags::empty()) {
            Ok(copy) => copy,
            Err(Errno::BADF | Errno::SRCH) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // SAFETY: the descriptor is not closed before this thread ends, and the copy does not
        // outlive `self`, which stays in this thread.
        let fd = unsafe { BorrowedFd::borrow_raw(copy.into_raw_fd()) };
        Ok(Some(SocketCopy(fd)))
    }
}

/// A copy of a socket of another process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SocketCopy<'a>(BorrowedFd<'a>);

impl AsFd for SocketCopy<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0
    }
}

/// The properties of a socket that matter for ownership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SocketFacts {
    /// The cookie of the socket's network namespace.
    pub netns_cookie: u64,
    /// Whether the socket accepts connections.
    pub listens: bool,
    /// `IPPROTO_*`; `None` for 0.
    pub protocol: Option<Protocol>,
    /// The user id of the socket's creator.
    pub uid: u32,
    /// The socket's inode number.
    pub inode: u64,
}

impl SocketFacts {
    /// Reads the properties of an IPv4 or IPv6 socket. Returns `None` for every other descriptor,
    /// and if a property cannot be read.
    pub(crate) fn of(socket: BorrowedFd<'_>) -> Option<SocketFacts> {
        let family = sockopt::socket_domain(socket).ok()?;
        if ![AddressFamily::INET, AddressFamily::INET6].contains(&family) {
            return None;
        }
        let stat = rustix::fs::fstat(socket).ok()?;
        Some(SocketFacts {
            netns_cookie: socket_namespace(socket).ok()?,
            listens: sockopt::socket_acceptconn(socket).ok()?,
            protocol: sockopt::socket_protocol(socket).ok()?,
            uid: stat.st_uid,
            inode: stat.st_ino,
        })
    }
}

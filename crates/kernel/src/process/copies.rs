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

use std::{
    io,
    marker::PhantomData,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    panic, thread,
};

use super::{PidFd, SO_NETNS_COOKIE, socket_option};

/// The most copies that one thread should take: each stays open until the thread ends.
pub(crate) const MAX_COPIES: usize = 128;

/// Runs a function in a thread that may take sockets. A descriptor opened there is not valid
/// outside.
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
                // SAFETY: no pointers. Both tables have the same descriptors, so all open ones stay
                // open.
                if unsafe { libc::unshare(libc::CLONE_FILES) } < 0 {
                    return Err(io::Error::last_os_error());
                }
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
        let process = process.as_fd().as_raw_fd();
        // SAFETY: no pointers.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process, number, 0) };
        if fd < 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::EBADF | libc::ESRCH) => Ok(None),
                _ => Err(error),
            };
        }
        // SAFETY: the descriptor stays open until this thread ends, and the copy does not outlive
        // `self`, which stays in this thread.
        let fd = unsafe { BorrowedFd::borrow_raw(fd as RawFd) };
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
    /// The cookie of its network namespace.
    pub netns_cookie: u64,
    /// Whether it accepts connections.
    pub listens: bool,
    /// `IPPROTO_*`.
    pub protocol: i32,
    /// The user id of its creator.
    pub uid: u32,
    /// Its inode number.
    pub inode: u64,
}

impl SocketFacts {
    /// Reads the properties of a socket. Returns `None` for other descriptors and other address
    /// families.
    pub(crate) fn of(socket: BorrowedFd<'_>) -> Option<SocketFacts> {
        let domain = socket_option::<i32>(socket, libc::SO_DOMAIN)?;
        if domain != libc::AF_INET && domain != libc::AF_INET6 {
            return None;
        }
        // SAFETY: zeros are a valid value of this plain structure.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the structure outlives the call.
        let done = unsafe { libc::fstat(socket.as_raw_fd(), &mut stat) };
        (done == 0).then_some(())?;
        Some(SocketFacts {
            netns_cookie: socket_option(socket, SO_NETNS_COOKIE)?,
            listens: socket_option::<i32>(socket, libc::SO_ACCEPTCONN)? != 0,
            protocol: socket_option(socket, libc::SO_PROTOCOL)?,
            uid: stat.st_uid,
            inode: stat.st_ino,
        })
    }
}

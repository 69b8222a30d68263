//! Copies of other processes' sockets, which nobody waits for to be closed.
//!
//! Who closes the last copy of a TCP socket with unsent data waits as long as its owner said (SO_LINGER), and a copy of
//! ours is the last one if the owner ends or closes meanwhile. A thread that ends waits for none (`PF_EXITING`: inet_release
//! in net/ipv4/af_inet.c). So copies are taken by a thread with a table of descriptors of its own, and closed by nothing
//! but its end.
//!
//! ```text
//! apart(|here| ..)   a thread, its table a copy of ours
//!   → here.take(process, number)   a socket of another process
//!   → the thread ends: the kernel closes its table
//! ```

use std::{
    io,
    marker::PhantomData,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    panic, thread,
};

use super::{PidFd, SO_NETNS_COOKIE, option};

/// How many copies one thread should take: each is open until it ends.
pub const AT_ONCE: usize = 128;

/// Runs something in a thread in which sockets can be taken. A descriptor that is opened there means nothing outside.
pub fn apart<T: Send>(what: impl FnOnce(&Apart) -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .name("sockets".to_owned())
            .spawn_scoped(scope, || {
                // SAFETY: no pointers. Both tables have the same descriptors, so all that is open stays so.
                if unsafe { libc::unshare(libc::CLONE_FILES) } < 0 {
                    return Err(io::Error::last_os_error());
                }
                Ok(what(&Apart(PhantomData)))
            })?;
        thread
            .join()
            .unwrap_or_else(|panic| panic::resume_unwind(panic))
    })
}

/// That the calling thread has a table of its own. It stays there.
#[derive(Debug)]
pub struct Apart(PhantomData<*const ()>);

impl Apart {
    /// A copy of a socket, or of another descriptor, of a process; none if it is closed, or the process has ended.
    pub fn take<'a>(
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
        // SAFETY: it is open until this thread ends, and the copy does not outlive `self`, which stays in this thread.
        let fd = unsafe { BorrowedFd::borrow_raw(fd as RawFd) };
        Ok(Some(SocketCopy(fd)))
    }
}

/// A copy of a socket of another process.
#[derive(Clone, Copy, Debug)]
pub struct SocketCopy<'a>(BorrowedFd<'a>);

impl AsFd for SocketCopy<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0
    }
}

/// What a socket is, as far as ownership goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketFacts {
    /// The namespace that it belongs to.
    pub netns_cookie: u64,
    /// Whether it accepts connections.
    pub listens: bool,
    /// `IPPROTO_*`.
    pub protocol: i32,
    /// Who made it.
    pub uid: u32,
    /// Its number.
    pub inode: u64,
}

impl SocketFacts {
    /// Reads what a socket is; none for what is no socket of the internet families.
    pub fn of(socket: BorrowedFd<'_>) -> Option<SocketFacts> {
        let domain = option::<i32>(socket, libc::SO_DOMAIN)?;
        if domain != libc::AF_INET && domain != libc::AF_INET6 {
            return None;
        }
        // SAFETY: all bits zero are a value of this plain structure.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the structure outlives the call.
        let done = unsafe { libc::fstat(socket.as_raw_fd(), &mut stat) };
        (done == 0).then_some(())?;
        Some(SocketFacts {
            netns_cookie: option(socket, SO_NETNS_COOKIE)?,
            listens: option::<i32>(socket, libc::SO_ACCEPTCONN)? != 0,
            protocol: option(socket, libc::SO_PROTOCOL)?,
            uid: stat.st_uid,
            inode: stat.st_ino,
        })
    }
}

//! Processes: who descends from whom, and which sockets they hold.
//!
//! A process names itself as it likes, in any bytes, and its user's control groups and mounts too. So what /proc says is
//! read as bytes, and what is no text in it is replaced. What cannot be read is taken for alive: only what /proc does not
//! have any more is gone.
//!
//! A process is meant by its pidfd; a bare number may be somebody else's by the time it is used. So whoever names one
//! opens the pidfd first, reads /proc by number, and checks at the end that the pidfd still lives: then all that was
//! read was read of that process.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    path::Path,
};

use crate::again::insist;

pub mod copies;
#[cfg(test)]
mod tests;

/// A handle on a process that cannot come to mean another one.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl PidFd {
    /// Opens the process of this number, whoever that is now.
    pub fn open(pid: u32) -> io::Result<Self> {
        // SAFETY: no pointers; the descriptor that comes back is ours alone.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: checked above to be a descriptor, which nobody else owns.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd as i32) }))
    }

    /// The same, if there is a process of this number.
    pub fn open_if_there(pid: u32) -> io::Result<Option<Self>> {
        match Self::open(pid) {
            Ok(handle) => Ok(Some(handle)),
            Err(error) => match error.raw_os_error() {
                // There is none; or the number is of a thread that does not lead its process.
                Some(libc::ESRCH | libc::EINVAL | libc::ENOENT) => Ok(None),
                _ => Err(error),
            },
        }
    }

    /// Opens the process that has this number and was started then, if there is one. Since two processes of one number
    /// differ in their start, it is the one that was meant.
    pub fn of(pid: u32, started_at: u64) -> io::Result<Option<Self>> {
        let Some(handle) = Self::open_if_there(pid)? else {
            return Ok(None);
        };
        let same = started(pid) == Some(started_at);
        // What was read was read of this process if it lives still.
        Ok((same && handle.lives()).then_some(handle))
    }

    /// Its descriptor.
    pub fn into_fd(self) -> OwnedFd {
        self.0
    }

    /// Takes a descriptor, if it is a pidfd; tells whose.
    pub fn received(fd: OwnedFd) -> Option<(Self, u32)> {
        let info = read_text(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok()?;
        let pid = info
            .lines()
            .find_map(|l| l.strip_prefix("Pid:"))?
            .trim()
            .parse()
            .ok()?;
        Some((Self(fd), pid))
    }

    /// The same without asking whose, for a process that can open no file: that it can be waited for, or is no child of ours, shows
    /// that it is a pidfd.
    pub fn verified(fd: OwnedFd) -> Option<Self> {
        // SAFETY: all bits zero are a value of this plain structure.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let how = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        let number = fd.as_raw_fd() as libc::id_t;
        // SAFETY: the structure outlives the call.
        let done = unsafe { libc::waitid(libc::P_PIDFD, number, &mut info, how) };
        let is_one = done == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::ECHILD);
        is_one.then_some(Self(fd))
    }

    /// Whether the process still lives (a zombie does not).
    pub fn lives(&self) -> bool {
        let mut poll = libc::pollfd {
            fd: self.0.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one valid pollfd, no waiting. A pidfd becomes readable when its process ends.
        unsafe { libc::poll(&mut poll, 1, 0) == 0 }
    }

    /// Another handle of the same process.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }
}

impl AsFd for PidFd {
    /// Readable when the process has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What /proc says of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Its real user.
    pub uid: u32,
    /// Whether it is its real user's alone: its effective, saved and file system user are the same, and that user may look
    /// into it (`PR_SET_DUMPABLE`). A set-user-id program is not.
    pub dumpable: bool,
    /// Its command name, as it can be shown: what is no text, or controls a terminal, is replaced by U+FFFD.
    pub name: String,
}

/// A file of /proc as text. What is no text in it is replaced by U+FFFD, which none of its fields but names can hold.
pub(crate) fn read_text(path: impl AsRef<Path>) -> io::Result<String> {
    let bytes = insist(|| fs::read(path.as_ref()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether an error of /proc says that the process or thread is gone.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

/// Whether it is an error of a process that has ended, or of one that may not be looked at.
pub(crate) fn is_closed(error: &io::Error) -> bool {
    is_gone(error) || error.kind() == io::ErrorKind::PermissionDenied
}

/// Reads what /proc says of a process.
pub fn facts(pid: u32) -> Option<Facts> {
    let status = read_text(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| {
        status
            .split('\n')
            .find_map(|l| l.strip_prefix(name))
            .map(str::trim)
    };
    // Real, effective, saved, and of the file system.
    let uids = field("Uid:")?.split_whitespace();
    let uids: Vec<u32> = uids.filter_map(|u| u.parse().ok()).collect();
    let uid = *uids.first()?;
    // The kernel gives the entries of a process that must not be looked into to root.
    let owner = fs::metadata(format!("/proc/{pid}/fd")).ok()?.uid();
    Some(Facts {
        uid,
        dumpable: uids.iter().all(|other| *other == uid) && owner == uid,
        name: field("Name:")?.replace(char::is_control, "\u{fffd}"),
    })
}

/// The thread group that a number names (it may be a thread's).
pub fn thread_group(pid: u32) -> Option<u32> {
    let status = read_text(format!("/proc/{pid}/status")).ok()?;
    status
        .split('\n')
        .find_map(|l| l.strip_prefix("Tgid:"))?
        .trim()
        .parse()
        .ok()
}

/// Whether any thread of a process has not begun to end. One that is on its way out is still there for a while, but its
/// end may have been told already. What cannot be read, but is there, goes on.
pub fn goes_on(pid: u32) -> bool {
    let threads = match read_folder(format!("/proc/{pid}/task")) {
        Ok(threads) => threads,
        Err(error) => return !is_gone(&error),
    };
    threads
        .iter()
        .any(|thread| match read_text(thread.path().join("stat")) {
            Ok(stat) => thread_flags(&stat).is_none_or(|flags| flags & PF_EXITING == 0),
            Err(error) => !is_gone(&error),
        })
}

/// The flags of a thread, out of its stat line: the seventh field behind the name, which may hold anything.
fn thread_flags(stat: &str) -> Option<u32> {
    let fields = stat.rsplit_once(')')?.1;
    fields.split_whitespace().nth(6)?.parse().ok()
}

/// The kernel's flag of a thread that has begun to end (include/linux/sched.h).
const PF_EXITING: u32 = 0x4;

/// All processes.
pub fn all() -> Vec<u32> {
    folder("/proc")
        .iter()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// What is in a folder of /proc; nothing of a process that has ended.
fn folder(path: impl AsRef<Path>) -> Vec<fs::DirEntry> {
    read_folder(path).unwrap_or_default()
}

fn read_folder(path: impl AsRef<Path>) -> io::Result<Vec<fs::DirEntry>> {
    insist(|| fs::read_dir(path.as_ref())?.collect())
}

/// A process and its living descendants, parents first.
pub fn family(pid: u32) -> Vec<u32> {
    if fs::metadata(format!("/proc/self/task/{}/children", std::process::id())).is_ok() {
        return family_by(pid, children);
    }
    let mut below: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for child in all() {
        if let Some(parent) = parent(child) {
            below.entry(parent).or_default().push(child);
        }
    }
    family_by(pid, |p| below.get(&p).cloned().unwrap_or_default())
}

fn family_by(pid: u32, children: impl Fn(u32) -> Vec<u32>) -> Vec<u32> {
    let mut found = vec![pid];
    let mut known: BTreeSet<u32> = found.iter().copied().collect();
    let mut at = 0;
    while let Some(&here) = found.get(at) {
        found.extend(children(here).into_iter().filter(|c| known.insert(*c)));
        at += 1;
    }
    found
}

fn children(pid: u32) -> Vec<u32> {
    folder(format!("/proc/{pid}/task"))
        .into_iter()
        .filter_map(|task| insist(|| fs::read_to_string(task.path().join("children"))).ok())
        .flat_map(|text| {
            text.split_whitespace()
                .filter_map(|c| c.parse().ok())
                .collect::<Vec<u32>>()
        })
        .collect()
}

/// The parent of a process.
pub fn parent(pid: u32) -> Option<u32> {
    let stat = read_text(format!("/proc/{pid}/stat")).ok()?;
    // The command name may hold anything; it ends at the last bracket.
    stat.rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(1)?
        .parse()
        .ok()
}

/// When a process was started, in clock ticks since boot: with its number, what it is for ever.
pub fn started(pid: u32) -> Option<u64> {
    let stat = read_text(format!("/proc/{pid}/stat")).ok()?;
    // Field 22; the second field, the command name, ends at the last bracket.
    stat.rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(19)?
        .parse()
        .ok()
}

/// What tells this run of the machine from all others.
pub fn boot() -> io::Result<String> {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned())
}

/// The sockets of a process: descriptor and inode.
pub fn sockets(pid: u32) -> Vec<(i32, u64)> {
    let descriptors = folder(format!("/proc/{pid}/fd"));
    descriptors.iter().filter_map(socket_at).collect()
}

/// Descriptor and inode, if a descriptor in /proc is a socket.
pub fn socket_at(entry: &fs::DirEntry) -> Option<(i32, u64)> {
    let number = entry.file_name().to_str()?.parse().ok()?;
    let link = insist(|| fs::read_link(entry.path())).ok()?;
    let inode = link.to_str()?.strip_prefix("socket:[")?;
    Some((number, inode.strip_suffix(']')?.parse().ok()?))
}

/// The cookie of a socket: a number that no other socket ever has.
pub fn cookie(socket: BorrowedFd<'_>) -> Option<u64> {
    option(socket, libc::SO_COOKIE)
}

/// The network namespace of a process, by its inode.
pub fn namespace(pid: u32) -> Option<u64> {
    let link = fs::metadata(format!("/proc/{pid}/ns/net")).ok()?;
    Some(link.ino())
}

/// The network namespace of the calling thread, by its inode.
pub fn own_namespace() -> Option<u64> {
    let link = fs::metadata("/proc/thread-self/ns/net").ok()?;
    Some(link.ino())
}

/// The cookie of the network namespace that the calling thread is in.
pub fn netns_cookie() -> io::Result<u64> {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0")
        .or_else(|_| std::net::UdpSocket::bind("[::]:0"))?;
    option(std::os::fd::AsFd::as_fd(&socket), SO_NETNS_COOKIE).ok_or_else(io::Error::last_os_error)
}

fn option<T: Default>(socket: BorrowedFd<'_>, name: i32) -> Option<T> {
    let mut value = T::default();
    let mut size = size_of::<T>() as libc::socklen_t;
    // SAFETY: the buffer is as large as `size` says; the callers ask with plain integers of the option's size.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            (&raw mut value).cast(),
            &mut size,
        )
    };
    (done == 0).then_some(value)
}

/// Since Linux 5.14.
const SO_NETNS_COOKIE: i32 = 71;

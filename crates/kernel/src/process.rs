//! Identifies processes ([`PidFd`], [`start_time`]) and reads their properties, descendants,
//! sockets and namespaces from /proc.
//!
//! Users can put any bytes into names of processes, cgroups and mounts. So this module reads names
//! as bytes and replaces what is not valid text. A process whose entry in /proc exists and cannot
//! be read counts as running (`is_running`), and as one without properties, sockets and children.
//! Most functions return `None` or an empty list for a process that has ended. Opening or
//! duplicating a pidfd fails with the error of the system call, [`boot_id`] if its file cannot be
//! read, and [`netns_cookie`] before Linux 5.14 or if no UDP socket can be made.
//!
//! A pidfd identifies a process for ever, while a process id may be reused before it is used. So a
//! caller opens the pidfd first, reads /proc by the id, and then checks that the process of the
//! pidfd still lives. Then all values belong to that process.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::fs::{FileExt, MetadataExt},
    },
    path::Path,
};

use netnice_core::units::{Instant, Nanos};
use procfs_core::FromRead;
use procfs_core::process::{Stat, StatFlags};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};
use rustix::time::{ClockId, clock_gettime};

use crate::retry::with_retries;

pub(crate) mod copies;
#[cfg(test)]
mod tests;

/// A handle of a process that never refers to another one.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl PidFd {
    /// Opens the process that has this id now.
    ///
    /// # Errors
    /// The error of pidfd_open(2), for example `ESRCH` if there is no such process.
    pub fn open(pid: u32) -> io::Result<Self> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(Errno::INVAL)?;
        Ok(Self(pidfd_open(pid, PidfdFlags::empty())?))
    }

    /// As [`PidFd::open`], but returns `None` if no process has this id. Fails with any other error
    /// of pidfd_open(2).
    pub(crate) fn open_if_there(pid: u32) -> io::Result<Option<Self>> {
        match Self::open(pid) {
            Ok(handle) => Ok(Some(handle)),
            Err(error) => match Errno::from_io_error(&error) {
                // No such process, or the id is of a thread that is not its group's leader.
                Some(Errno::SRCH | Errno::INVAL | Errno::NOENT) => Ok(None),
                _ => Err(error),
            },
        }
    }

    /// Opens the process with this id and start time (see [`start_time`]); `None` if it has ended.
    /// Two processes with one id differ in their start time, so this identifies the process.
    ///
    /// # Errors
    /// The error of pidfd_open(2).
    pub fn of(pid: u32, started_at: u64) -> io::Result<Option<Self>> {
        let Some(handle) = Self::open_if_there(pid)? else {
            return Ok(None);
        };
        let same = start_time(pid) == Some(started_at);
        // What was read belongs to this process if it still lives.
        Ok((same && handle.is_alive()).then_some(handle))
    }

    /// Converts the handle into its pidfd, for example to pass it to another process.
    pub fn into_fd(self) -> OwnedFd {
        self.0
    }

    /// Takes over a descriptor that another process sent, if it is a pidfd. Returns the handle and
    /// the process id in this process's PID namespace, or 0 if the process is not visible there.
    /// `None` if the descriptor is not a pidfd, or the process has been reaped.
    pub fn from_received(fd: OwnedFd) -> Option<(Self, u32)> {
        let info = read_text(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok()?;
        let pid = info
            .lines()
            .find_map(|l| l.strip_prefix("Pid:"))?
            .trim()
            .parse()
            .ok()?;
        Some((Self(fd), pid))
    }

    /// As [`PidFd::from_received`] without the process id, for a process that cannot open files.
    /// `None` if the descriptor is not a pidfd. waitid(2) succeeds or fails with ECHILD only if the
    /// descriptor is a pidfd.
    pub fn verified(fd: OwnedFd) -> Option<Self> {
        let how = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let done = waitid(WaitId::PidFd(fd.as_fd()), how);
        matches!(done, Ok(_) | Err(Errno::CHILD)).then_some(Self(fd))
    }

    /// Whether the process still lives. A zombie does not.
    pub fn is_alive(&self) -> bool {
        // A pidfd becomes readable when its process ends.
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&Timespec::default())) == Ok(0)
    }

    /// A duplicate of the pidfd.
    ///
    /// # Errors
    /// If this process has as many open descriptors as it may have.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }
}

impl AsFd for PidFd {
    /// The descriptor becomes readable when the process ends.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Properties of a process from /proc.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The process's real user id.
    pub uid: u32,
    /// Whether only the real user of the process controls it: the effective, saved and file system
    /// user ids are the same as the real one, and that user may inspect the process
    /// (`PR_SET_DUMPABLE`). This is false for a set-user-id program.
    pub dumpable: bool,
    /// The command name for display: invalid text and control characters are replaced by U+FFFD.
    pub name: String,
}

/// Reads a file of /proc as text. Invalid text is replaced by U+FFFD, which can occur in names
/// only. Fails if the file cannot be read in three tries.
pub(crate) fn read_text(path: impl AsRef<Path>) -> io::Result<String> {
    let bytes = with_retries(|| fs::read(path.as_ref()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether an error of /proc means that the process or thread has ended.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || Errno::from_io_error(error) == Some(Errno::SRCH)
}

/// Whether an error of /proc means that the process has ended or may not be inspected.
pub(crate) fn is_ended_or_denied(error: &io::Error) -> bool {
    is_gone(error) || error.kind() == io::ErrorKind::PermissionDenied
}

/// Reads the properties of a process. Returns `None` if they cannot be read, for example because it
/// has ended.
pub fn facts(pid: u32) -> Option<Facts> {
    let status = read_text(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| {
        status
            .split('\n')
            .find_map(|l| l.strip_prefix(name))
            .map(str::trim)
    };
    // Real, effective, saved and file system user id.
    let uids = field("Uid:")?.split_whitespace();
    let uids: Vec<u32> = uids.filter_map(|u| u.parse().ok()).collect();
    let uid = *uids.first()?;
    // Root owns the /proc entries of a process that may not be inspected.
    let owner = fs::metadata(format!("/proc/{pid}/fd")).ok()?.uid();
    Some(Facts {
        uid,
        dumpable: uids.iter().all(|other| *other == uid) && owner == uid,
        name: field("Name:")?.replace(char::is_control, "\u{fffd}"),
    })
}

/// The process id (thread group) to which a process or thread id belongs. `None` if the thread has
/// ended or cannot be read.
pub fn thread_group(pid: u32) -> Option<u32> {
    let status = read_text(format!("/proc/{pid}/status")).ok()?;
    status
        .split('\n')
        .find_map(|l| l.strip_prefix("Tgid:"))?
        .trim()
        .parse()
        .ok()
}

/// The threads of a process; none if it has ended.
pub fn threads(pid: u32) -> Vec<u32> {
    let threads = folder(format!("/proc/{pid}/task"));
    let numbers = threads.iter().map(|thread| thread.file_name());
    numbers
        .filter_map(|name| name.to_str()?.parse().ok())
        .collect()
}

/// True if a process is a thread of the kernel. False if it has ended.
pub fn is_kernel_thread(pid: u32) -> bool {
    let stat = read_stat(format!("/proc/{pid}")).ok().flatten();
    stat.is_some_and(|stat| stat.flags & StatFlags::PF_KTHREAD.bits() != 0)
}

/// The id, in this PID namespace, of the thread of process `pid` that has the id `own_id` in the
/// process's own PID namespace. `None` if the process has no such thread, has ended or cannot be
/// read.
pub fn thread(pid: u32, own_id: u32) -> Option<u32> {
    folder(format!("/proc/{pid}/task"))
        .into_iter()
        .find_map(|task| {
            let status = read_text(task.path().join("status")).ok()?;
            let ids = status.split('\n').find_map(|l| l.strip_prefix("NSpid:"))?;
            // From this namespace to the thread's own.
            let mut ids = ids.split_whitespace().map(str::parse::<u32>);
            let outer = ids.next()?.ok()?;
            let inner = ids.next_back().map_or(Some(outer), Result::ok)?;
            (inner == own_id).then_some(outer)
        })
}

/// Whether any thread of a process has not begun to end. An ending process remains in /proc for a
/// while, but its exit event may be past. A process that exists and cannot be read counts as
/// running.
pub(crate) fn is_running(pid: u32) -> bool {
    let threads = match read_folder(format!("/proc/{pid}/task")) {
        Ok(threads) => threads,
        Err(error) => return !is_gone(&error),
    };
    threads.iter().any(|thread| match read_stat(thread.path()) {
        Ok(stat) => stat.is_none_or(|stat| stat.flags & PF_EXITING == 0),
        Err(error) => !is_gone(&error),
    })
}

/// Reads `stat` in the folder of a process or thread (proc_pid_stat(5)). Returns `None` if the file
/// cannot be parsed.
///
/// # Errors
/// If the file cannot be read.
fn read_stat(folder: impl AsRef<Path>) -> io::Result<Option<Stat>> {
    let bytes = with_retries(|| fs::read(folder.as_ref().join("stat")))?;
    Ok(Stat::from_read(bytes.as_slice()).ok())
}

/// The kernel's flag of a thread that has begun to end (include/linux/sched.h).
const PF_EXITING: u32 = StatFlags::PF_EXITING.bits();

/// The ids of all processes in this PID namespace; empty if /proc cannot be read.
pub fn all() -> Vec<u32> {
    folder("/proc")
        .iter()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// The present time of CLOCK_MONOTONIC: time since boot without time in suspend.
pub fn monotonic() -> Instant {
    let time = clock_gettime(ClockId::Monotonic);
    Instant(time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs())
}

/// How long the calling thread has waited for a processor since it started, although it could run
/// (the second figure of `/proc/thread-self/schedstat`). 0 if the kernel does not count it
/// (CONFIG_SCHED_INFO).
pub fn run_delay() -> Nanos {
    thread_local! {
        /// The open file is that of the thread that opened it. The daemon reads it with each event,
        /// and opening it takes longer than reading it.
        static FIGURES: Option<fs::File> = fs::File::open("/proc/thread-self/schedstat").ok();
    }
    let mut bytes = [0; 64];
    let read = FIGURES.with(|file| file.as_ref()?.read_at(&mut bytes, 0).ok());
    let figures = read.and_then(|read| str::from_utf8(&bytes[..read]).ok());
    let waited = figures.and_then(|text| text.split_ascii_whitespace().nth(1));
    Nanos(waited.and_then(|text| text.parse().ok()).unwrap_or(0))
}

/// True if a process has this command name, without the facts of [`facts`]. False if it has ended.
pub fn has_command(pid: u32, name: &str) -> bool {
    fs::read(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim_ascii_end() == name.as_bytes())
}

/// The entries of a folder of /proc; empty if the process has ended.
fn folder(path: impl AsRef<Path>) -> Vec<fs::DirEntry> {
    read_folder(path).unwrap_or_default()
}

fn read_folder(path: impl AsRef<Path>) -> io::Result<Vec<fs::DirEntry>> {
    with_retries(|| fs::read_dir(path.as_ref())?.collect())
}

/// The ids of a process and its living descendants, parents first. The id of the process itself is
/// always the first one, even if the process has ended.
pub fn with_descendants(pid: u32) -> Vec<u32> {
    if fs::metadata(format!("/proc/self/task/{}/children", std::process::id())).is_ok() {
        return descendants_by(pid, children);
    }
    let mut below: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for child in all() {
        if let Some(parent) = parent(child) {
            below.entry(parent).or_default().push(child);
        }
    }
    descendants_by(pid, |p| below.get(&p).cloned().unwrap_or_default())
}

fn descendants_by(pid: u32, children: impl Fn(u32) -> Vec<u32>) -> Vec<u32> {
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
        .filter_map(|task| with_retries(|| fs::read_to_string(task.path().join("children"))).ok())
        .flat_map(|text| {
            text.split_whitespace()
                .filter_map(|c| c.parse().ok())
                .collect::<Vec<u32>>()
        })
        .collect()
}

/// The process id of a process's parent. `None` if the process has ended or cannot be read.
pub fn parent(pid: u32) -> Option<u32> {
    let stat = read_stat(format!("/proc/{pid}")).ok()??;
    u32::try_from(stat.ppid).ok()
}

/// The processor time that all threads of a process have used since its start, also those that have
/// ended (clock_getcpuclockid(3)). `None` if the process has ended.
pub fn processor_time(pid: u32) -> Option<Nanos> {
    let pid = libc::pid_t::try_from(pid)
        .ok()
        .filter(|pid| (1..=MOST_PID).contains(pid))?;
    let mut clock = 0;
    // SAFETY: the call writes one number, which outlives it.
    if unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) } != 0 {
        return None;
    }
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes the structure, which outlives it.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return None;
    }
    let (seconds, rest) = (u64::try_from(time.tv_sec), u64::try_from(time.tv_nsec));
    Some(Nanos(
        seconds.ok()?.saturating_mul(1_000_000_000) + rest.ok()?,
    ))
}

/// The start time of a process, in clock ticks since boot. Together with its id it identifies the
/// process for ever. `None` if the process has ended or cannot be read.
pub fn start_time(pid: u32) -> Option<u64> {
    let stat = read_stat(format!("/proc/{pid}")).ok()??;
    Some(stat.starttime)
}

/// The random identifier that the kernel chose at this boot of the machine.
///
/// # Errors
/// If `/proc/sys/kernel/random/boot_id` cannot be read.
pub fn boot_id() -> io::Result<String> {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned())
}

/// The sockets of a process: descriptor number and socket inode. Empty if the process has ended or
/// its descriptors cannot be read.
pub fn sockets(pid: u32) -> Vec<(i32, u64)> {
    let descriptors = folder(format!("/proc/{pid}/fd"));
    descriptors.iter().filter_map(socket_at).collect()
}

/// The descriptor number and inode of an entry in /proc/PID/fd; `None` if it is no socket, or is
/// closed.
pub(crate) fn socket_at(entry: &fs::DirEntry) -> Option<(i32, u64)> {
    let number = entry.file_name().to_str()?.parse().ok()?;
    let link = with_retries(|| fs::read_link(entry.path())).ok()?;
    let inode = link.to_str()?.strip_prefix("socket:[")?;
    Some((number, inode.strip_suffix(']')?.parse().ok()?))
}

/// The cookie of a socket (`SO_COOKIE`): a number that no other socket ever has. `None` if the
/// descriptor is not a socket.
pub(crate) fn cookie(socket: BorrowedFd<'_>) -> Option<u64> {
    rustix::net::sockopt::socket_cookie(socket).ok()
}

/// The inode number of a process's network namespace, which identifies the namespace while it
/// exists. `None` if the process has ended or may not be inspected.
pub fn namespace(pid: u32) -> Option<u64> {
    let link = fs::metadata(format!("/proc/{pid}/ns/net")).ok()?;
    Some(link.ino())
}

/// The inode number of the calling thread's network namespace, to compare with [`namespace`].
/// `None` if /proc is not mounted.
pub fn own_namespace() -> Option<u64> {
    let link = fs::metadata("/proc/thread-self/ns/net").ok()?;
    Some(link.ino())
}

/// The cookie of the calling thread's network namespace (`SO_NETNS_COOKIE`), by which eBPF programs
/// recognise the namespace.
///
/// # Errors
/// If no UDP socket can be bound, or the kernel is older than Linux 5.14.
pub fn netns_cookie() -> io::Result<u64> {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0")
        .or_else(|_| std::net::UdpSocket::bind("[::]:0"))?;
    socket_namespace(socket.as_fd())
}

/// The cookie of a socket's network namespace (`SO_NETNS_COOKIE`, which rustix does not have).
fn socket_namespace(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut cookie = 0_u64;
    let mut size = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the buffer has `size` bytes.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &mut size,
        )
    };
    match done {
        0 => Ok(cookie),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The socket option of the namespace's cookie, since Linux 5.14.
const SO_NETNS_COOKIE: i32 = 71;
/// The largest process id of any Linux (PID_MAX_LIMIT). Larger numbers have no clock of their own.
const MOST_PID: libc::pid_t = 1 << 22;

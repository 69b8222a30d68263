//! Processes: who descends from whom, what they execute, and which sockets they hold.
//!
//! A process is meant by its pidfd; a bare number may be somebody else's by the time it is used. So whoever names one
//! opens the pidfd first, reads /proc by number, and checks at the end that the pidfd still lives: then all that was
//! read was read of that process.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, Read},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
};

use crate::abi::AppKey;

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

    /// Opens the process that has this number and was started then, if there is one. Since two processes of one number
    /// differ in their start, it is the one that was meant.
    pub fn of(pid: u32, started_at: u64) -> io::Result<Option<Self>> {
        let handle = match Self::open(pid) {
            Ok(handle) => handle,
            // There is none; or the number is of a thread that does not lead its process.
            Err(error) => {
                return match error.raw_os_error() {
                    Some(libc::ESRCH | libc::EINVAL | libc::ENOENT) => Ok(None),
                    _ => Err(error),
                };
            }
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
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok()?;
        let pid = info
            .lines()
            .find_map(|l| l.strip_prefix("Pid:"))?
            .trim()
            .parse()
            .ok()?;
        Some((Self(fd), pid))
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

    /// A copy of a descriptor of that process.
    pub fn take(&self, number: i32) -> io::Result<OwnedFd> {
        // SAFETY: no pointers; the descriptor that comes back is ours alone.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, self.0.as_raw_fd(), number, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: checked above to be a descriptor, which nobody else owns.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
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
    /// Whether users other than root may look into it (`PR_SET_DUMPABLE`).
    pub dumpable: bool,
    /// Its command name.
    pub name: String,
}

/// Reads what /proc says of a process.
pub fn facts(pid: u32) -> Option<Facts> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name: &str| {
        status
            .lines()
            .find_map(|l| l.strip_prefix(name))
            .map(str::trim)
    };
    let mut uids = field("Uid:")?
        .split_whitespace()
        .filter_map(|u| u.parse::<u32>().ok());
    let (uid, effective) = (uids.next()?, uids.next()?);
    // The kernel gives the entries of a process that must not be looked into to root.
    let owner = fs::metadata(format!("/proc/{pid}/fd")).ok()?.uid();
    Some(Facts {
        uid,
        dumpable: owner == effective,
        name: field("Name:")?.to_owned(),
    })
}

/// The thread group that a number names (it may be a thread's).
pub fn thread_group(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status
        .lines()
        .find_map(|l| l.strip_prefix("Tgid:"))?
        .trim()
        .parse()
        .ok()
}

/// Whether any thread of a process has not begun to end. One that is on its way out is still there for a while, but its
/// end may have been told already.
pub fn goes_on(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return false;
    };
    threads.flatten().any(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        thread_flags(&stat).is_some_and(|flags| flags & PF_EXITING == 0)
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
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse().ok())
        .collect()
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
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    tasks
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("children")).ok())
        .flat_map(|text| {
            text.split_whitespace()
                .filter_map(|c| c.parse().ok())
                .collect::<Vec<u32>>()
        })
        .collect()
}

/// The parent of a process.
pub fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
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
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
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

/// The executable of a process, as the eBPF programs know executables.
pub fn executable(pid: u32) -> Option<AppKey> {
    let mounts = [format!("/proc/{pid}/mountinfo"), OWN_MOUNTS.into()];
    app_key(&format!("/proc/{pid}/exe"), &mounts).ok()
}

/// An executable file, as the eBPF programs know executables. What can never be what a process executes is refused: a
/// folder, a file that may not be executed, and a script, of which the kernel tells the interpreter.
pub fn app(path: &str) -> io::Result<AppKey> {
    let refused = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    let metadata = fs::metadata(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::new(error.kind(), "there is no such file"),
        _ => error,
    })?;
    if !metadata.is_file() {
        return refused("it is not a file");
    }
    if metadata.mode() & 0o111 == 0 {
        return refused("nobody may execute it");
    }
    let mut head = Vec::new();
    fs::File::open(path)?.take(2).read_to_end(&mut head)?;
    if head == b"#!" {
        return refused(
            "it is a script, and what runs is its interpreter; `netnice run` or name: can hold it",
        );
    }
    app_key(path, &[OWN_MOUNTS.into()])
}

/// The programs see the inode's own number and its file system's device. stat(2) tells others where a file system
/// makes devices up (btrfs for each subvolume, overlayfs for each layer); what /proc tells of an open file and of its
/// mount is what the programs see.
fn app_key(path: &str, mounts: &[String]) -> io::Result<AppKey> {
    let file = fs::File::options()
        .read(true)
        .custom_flags(libc::O_PATH)
        .open(path)?;
    let metadata = file.metadata()?;
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))?;
    let field = |name: &str| {
        info.lines()
            .find_map(|l| l.strip_prefix(name)?.trim().parse().ok())
    };
    let mount: Option<u64> = field("mnt_id:");
    let device = mounts.iter().find_map(|table| device_of(mount?, table));
    let (major, minor) =
        device.unwrap_or_else(|| (libc::major(metadata.dev()), libc::minor(metadata.dev())));
    Ok(AppKey {
        inode: field("ino:").unwrap_or_else(|| metadata.ino()),
        dev: major << 20 | minor,
        pad: 0,
    })
}

/// The device of the file system behind a mount; from proc(5): id, parent, major:minor, …
fn device_of(mount: u64, table: &str) -> Option<(u32, u32)> {
    let text = fs::read_to_string(table).ok()?;
    text.lines().find_map(|line| {
        let mut words = line.split(' ');
        if words.next()?.parse() != Ok(mount) {
            return None;
        }
        let (major, minor) = words.nth(1)?.split_once(':')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    })
}

/// The sockets of a process: descriptor and inode.
pub fn sockets(pid: u32) -> Vec<(i32, u64)> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.parse().ok()?;
            let link = fs::read_link(entry.path()).ok()?;
            let inode = link
                .to_str()?
                .strip_prefix("socket:[")?
                .strip_suffix(']')?
                .parse()
                .ok()?;
            Some((number, inode))
        })
        .collect()
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
}

/// Reads what a socket is; none for sockets that are not of the internet families.
pub fn socket_facts(socket: BorrowedFd<'_>) -> Option<SocketFacts> {
    let domain = option::<i32>(socket, libc::SO_DOMAIN)?;
    if domain != libc::AF_INET && domain != libc::AF_INET6 {
        return None;
    }
    Some(SocketFacts {
        netns_cookie: option(socket, SO_NETNS_COOKIE)?,
        listens: option::<i32>(socket, libc::SO_ACCEPTCONN)? != 0,
        protocol: option(socket, libc::SO_PROTOCOL)?,
        uid: fs::metadata(format!("/proc/self/fd/{}", socket.as_raw_fd()))
            .ok()?
            .uid(),
    })
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

const OWN_MOUNTS: &str = "/proc/self/mountinfo";
/// Since Linux 5.14.
const SO_NETNS_COOKIE: i32 = 71;

//! Identifies executables: the file at a path, and the file that a process runs. The result is an
//! `AppKey`: inode and device, as the eBPF programs see them.
//!
//! A path comes from an untrusted user, and its file may be of any type and change at any moment.
//! So the path is opened once with `O_PATH`, without opening the file itself, and all queries use
//! that descriptor. Thus a FIFO, a device or a terminal is never opened. Only a regular file is
//! opened for reading, through the descriptor and without blocking.
//!
//! A lookup for an unprivileged user runs with that user's rights ([`lookup_as`]), so it reveals no
//! file that the user cannot see. A file system may block for a long time (FUSE, NFS, an
//! automount), so a lookup needs a thread that may block. `Executables` runs the lookups for root
//! on such a thread, and waits for a result for at most [`LOOKUP_TIMEOUT`] (1 s); after that it
//! returns the last result for the path, or fails if there is none. While four such threads are
//! blocked, it does so at once.
//!
//! A lookup fails if the file cannot be found or read, if no process can execute it (a folder, a
//! file without execute permission, a script), or if the thread cannot be started or cannot take
//! the user's rights. [`of_process`] returns `None` for a process without a readable executable.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read},
    os::{
        fd::AsRawFd,
        unix::fs::{MetadataExt, OpenOptionsExt},
    },
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use rustix::fs::OFlags;
use rustix::process::Gid;

use crate::{abi::AppKey, confine::drop_capabilities, process::read_text};

#[cfg(test)]
mod tests;

/// The rights of a user, for [`lookup_as`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rights {
    /// The user id.
    pub uid: u32,
    /// The user's groups, the primary group first.
    pub groups: Vec<u32>,
}

/// Finds the executable file at a path, in the form that the eBPF programs use. It may block on a
/// file system without limit.
///
/// # Errors
/// The file cannot be read, or a process can never execute it: a folder, a file without execute
/// permission, or a script (the kernel then executes the interpreter).
pub(crate) fn lookup(path: &str) -> io::Result<AppKey> {
    let refused = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    let file = open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::new(error.kind(), "there is no such file"),
        _ => error,
    })?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return refused("it is not a file");
    }
    if metadata.mode() & 0o111 == 0 {
        return refused("its permissions let no user execute it");
    }
    let mut head = Vec::new();
    // This opens the same file, whatever is at the path now. A file that may be executed but not
    // read is not a script.
    let opened = fs::File::options()
        .read(true)
        .custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed())
        .open(format!("/proc/thread-self/fd/{}", file.as_raw_fd()));
    match opened {
        Ok(opened) => drop(opened.take(2).read_to_end(&mut head)?),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
        Err(error) => return Err(error),
    }
    if head == b"#!" {
        return refused(
            "it is a script, which its interpreter runs; limit it with `netnice run` or by name:",
        );
    }
    key_of(&file, &[OWN_MOUNTS.into()])
}

/// Finds the executable file at a path, with the rights of one user only. May block on a file
/// system without limit. The calling thread keeps these rights, so it must serve no other purpose.
///
/// # Errors
/// If the thread cannot take the rights, if the file cannot be read, or if a process can never
/// execute it: it is a folder, has no execute permission, or is a script. A file that the user may
/// not see gives the same error as a missing one.
pub fn lookup_as(path: &str, rights: &Rights) -> io::Result<AppKey> {
    take_rights(rights)?;
    lookup(path).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => error,
        kind => io::Error::new(kind, "there is no such file, or it is not yours to see"),
    })
}

/// Gives the calling thread the rights of a user, permanently.
fn take_rights(rights: &Rights) -> io::Result<()> {
    let gid = rights.groups.first().copied().unwrap_or(u32::MAX);
    let groups: Vec<Gid> = rights.groups.iter().copied().map(Gid::from_raw).collect();
    rustix::thread::set_thread_groups(&groups)?;
    // rustix has neither setfsgid(2) nor setfsuid(2).
    let unchanged = libc::c_long::from(u32::MAX);
    for (call, id) in [(libc::SYS_setfsgid, gid), (libc::SYS_setfsuid, rights.uid)] {
        // These calls return the previous value and never an error, so the value is read back.
        // SAFETY: no pointers.
        unsafe { libc::syscall(call, id) };
        // SAFETY: no pointers; this value is not an id and changes nothing.
        let now = unsafe { libc::syscall(call, unchanged) };
        if now as u32 != id {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
    }
    // The remaining capabilities would still allow access to other processes in /proc.
    drop_capabilities()
}

/// Looks up the executables that root names, on a thread that may block on a file system.
#[derive(Debug, Default)]
pub(crate) struct Executables {
    worker: Option<Worker>,
    /// A value whose reference count is the number of worker threads plus one.
    workers: Arc<()>,
    /// The result of the last successful lookup of each path.
    known: BTreeMap<String, AppKey>,
}

#[derive(Debug)]
struct Worker {
    paths: mpsc::Sender<String>,
    found: mpsc::Receiver<io::Result<AppKey>>,
}

impl Executables {
    /// As [`lookup`], within [`LOOKUP_TIMEOUT`]. While a file system does not reply, returns the
    /// last result for the path.
    ///
    /// # Errors
    /// Those of [`lookup`]; the error of the start of a thread; [`timed_out`] if the file system
    /// does not reply and no earlier result exists.
    pub(crate) fn lookup(&mut self, path: &str) -> io::Result<AppKey> {
        let worker = match self.worker.take() {
            Some(worker) => Some(worker),
            None => self.start()?,
        };
        let found = worker.and_then(|worker| {
            worker.paths.send(path.to_owned()).ok()?;
            let found = worker.found.recv_timeout(LOOKUP_TIMEOUT).ok()?;
            self.worker = Some(worker);
            Some(found)
        });
        match found {
            Some(Ok(key)) => {
                self.known.insert(path.to_owned(), key);
                Ok(key)
            }
            Some(Err(error)) => {
                self.known.remove(path);
                Err(error)
            }
            None => self.known.get(path).copied().ok_or_else(timed_out),
        }
    }

    /// Starts a worker. Returns `None` if too many are blocked.
    fn start(&self) -> io::Result<Option<Worker>> {
        if Arc::strong_count(&self.workers) > MAX_WORKERS {
            return Ok(None);
        }
        let workers = Arc::clone(&self.workers);
        let (paths, requested) = mpsc::channel::<String>();
        let (results, found) = mpsc::channel();
        thread::Builder::new()
            .name("executables".into())
            .spawn(move || {
                let _worker = workers;
                for path in requested {
                    if results.send(lookup(&path)).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Some(Worker { paths, found }))
    }
}

/// The error for a path whose file system does not reply.
pub fn timed_out() -> io::Error {
    io::Error::new(
        io::ErrorKind::TimedOut,
        format!("its file system did not answer within {LOOKUP_TIMEOUT:?}"),
    )
}

/// The executable of a process, in the form that the eBPF programs use. `None` if the process has
/// ended, has no executable (a kernel thread), or may not be inspected.
pub fn of_process(pid: u32) -> Option<AppKey> {
    let mounts = [format!("/proc/{pid}/mountinfo"), OWN_MOUNTS.into()];
    key_of(&open(&format!("/proc/{pid}/exe")).ok()?, &mounts).ok()
}

/// Opens a path without opening the file itself.
fn open(path: &str) -> io::Result<fs::File> {
    fs::File::options()
        .read(true)
        .custom_flags(OFlags::PATH.bits().cast_signed())
        .open(path)
}

/// The inode and device as the eBPF programs see them: the inode's own number and its file system's
/// device. stat(2) returns other values where a file system makes up devices (btrfs for each
/// subvolume, overlayfs for each layer). The values in /proc for an open file and its mount are the
/// ones that the programs see.
fn key_of(file: &fs::File, mounts: &[String]) -> io::Result<AppKey> {
    let info = read_text(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))?;
    let field = |name: &str| {
        info.lines()
            .find_map(|l| l.strip_prefix(name)?.trim().parse().ok())
    };
    let mount: Option<u64> = field("mnt_id:");
    let device = mounts.iter().find_map(|table| device_of(mount?, table));
    // Read only if needed: a file system may be slow to reply.
    let (inode, (major, minor)) = match (field("ino:"), device) {
        (Some(inode), Some(device)) => (inode, device),
        (inode, device) => {
            let metadata = file.metadata()?;
            let dev = metadata.dev();
            let made_up = (rustix::fs::major(dev), rustix::fs::minor(dev));
            (
                inode.unwrap_or_else(|| metadata.ino()),
                device.unwrap_or(made_up),
            )
        }
    };
    Ok(AppKey {
        inode,
        dev: major << 20 | minor,
        pad: 0,
    })
}

/// The device of a mount's file system; fields in proc(5): id, parent, major:minor, …
fn device_of(mount: u64, table: &str) -> Option<(u32, u32)> {
    let text = read_text(table).ok()?;
    text.lines().find_map(|line| {
        let mut words = line.split(' ');
        if words.next()?.parse() != Ok(mount) {
            return None;
        }
        let (major, minor) = words.nth(1)?.split_once(':')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    })
}

/// The longest wait for a file system in a lookup.
pub const LOOKUP_TIMEOUT: Duration = Duration::from_secs(1);
/// The largest number of worker threads, counting those that a file system blocks.
const MAX_WORKERS: usize = 4;
const OWN_MOUNTS: &str = "/proc/self/mountinfo";

//! Executables: which file is meant by a path, and which one a process runs.
//!
//! A path is somebody's words, and what stands there may be anything and change at any moment. So it is opened once,
//! without opening the file itself (`O_PATH`), and all is asked of that descriptor: a FIFO, a device or a terminal is never
//! opened. Only what is known to be a regular file is opened to be read, through the descriptor, without waiting.
//!
//! What a plain user asks for is looked at with that user's rights ([`look_as`]), so nobody learns of a file that they cannot
//! see. And a file system may not answer for long (FUSE, NFS, an automount): looking is for a thread that may wait.
//! [`Executables`] has one, and gives up on it after [`PATIENCE`].

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

use crate::{abi::AppKey, process::read_text};

#[cfg(test)]
mod tests;

/// Whose rights a path is looked at with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rights {
    /// The user.
    pub uid: u32,
    /// The user's groups, the first one first.
    pub groups: Vec<u32>,
}

/// An executable file, as the eBPF programs know executables. What can never be what a process executes is refused: a
/// folder, a file that may not be executed, and a script, of which the kernel tells the interpreter.
///
/// It may wait for a file system without end.
pub fn look(path: &str) -> io::Result<AppKey> {
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
        return refused("nobody may execute it");
    }
    let mut head = Vec::new();
    // The same file whatever stands at the path now. One that may be executed and not read is no script.
    let opened = fs::File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(format!("/proc/thread-self/fd/{}", file.as_raw_fd()));
    match opened {
        Ok(opened) => drop(opened.take(2).read_to_end(&mut head)?),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
        Err(error) => return Err(error),
    }
    if head == b"#!" {
        return refused(
            "it is a script, and what runs is its interpreter; `netnice run` or name: can hold it",
        );
    }
    key_of(&file, &[OWN_MOUNTS.into()])
}

/// As [`look`], with the rights of a user and no others. What that user may not see is no other than what is not there. To be
/// called on a thread that is for this alone: it keeps these rights.
pub fn look_as(path: &str, rights: &Rights) -> io::Result<AppKey> {
    take_rights(rights)?;
    look(path).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => error,
        kind => io::Error::new(kind, "there is no such file, or it is not yours to see"),
    })
}

/// Gives the calling thread the rights of a user, for good.
fn take_rights(rights: &Rights) -> io::Result<()> {
    let groups = &rights.groups;
    let gid = groups.first().copied().unwrap_or(u32::MAX);
    // By the system calls themselves: the C library's setgroups changes all threads.
    // SAFETY: the list is as long as is said, and outlives the call.
    let done = unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    let unchanged = libc::c_long::from(u32::MAX);
    for (call, id) in [(libc::SYS_setfsgid, gid), (libc::SYS_setfsuid, rights.uid)] {
        // They tell the value of before, never an error; so it is asked for again.
        // SAFETY: no pointers.
        unsafe { libc::syscall(call, id) };
        // SAFETY: no pointers; this value is no id and changes nothing.
        let now = unsafe { libc::syscall(call, unchanged) };
        if now as u32 != id {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
    }
    // What is left would still let it look into /proc of others.
    let head = [CAPABILITY_VERSION, 0];
    let none = [0_u32; 6];
    // SAFETY: the version says that the head is two numbers and the sets are six; both outlive the call.
    let done = unsafe { libc::syscall(libc::SYS_capset, head.as_ptr(), none.as_ptr()) };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The executables that root names, looked at by a thread that may wait for a file system.
#[derive(Debug, Default)]
pub struct Executables {
    worker: Option<Worker>,
    /// As many are there as threads wait.
    waiting: Arc<()>,
    /// What stood at each path when it could be looked at last.
    known: BTreeMap<String, AppKey>,
}

#[derive(Debug)]
struct Worker {
    paths: mpsc::Sender<String>,
    found: mpsc::Receiver<io::Result<AppKey>>,
}

impl Executables {
    /// As [`look`], within [`PATIENCE`]. While a file system does not answer, what stood at the path before is taken to stand
    /// there still.
    pub fn look(&mut self, path: &str) -> io::Result<AppKey> {
        let worker = match self.worker.take() {
            Some(worker) => Some(worker),
            None => self.start()?,
        };
        let found = worker.and_then(|worker| {
            worker.paths.send(path.to_owned()).ok()?;
            let found = worker.found.recv_timeout(PATIENCE).ok()?;
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
            None => self.known.get(path).copied().ok_or_else(late),
        }
    }

    /// A new worker; none while too many wait.
    fn start(&self) -> io::Result<Option<Worker>> {
        if Arc::strong_count(&self.waiting) > MOST_WAITING {
            return Ok(None);
        }
        let waiting = Arc::clone(&self.waiting);
        let (paths, asked) = mpsc::channel::<String>();
        let (answer, found) = mpsc::channel();
        thread::Builder::new()
            .name("executables".into())
            .spawn(move || {
                let _waiting = waiting;
                for path in asked {
                    if answer.send(look(&path)).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Some(Worker { paths, found }))
    }
}

/// The error of a path whose file system does not answer.
pub fn late() -> io::Error {
    io::Error::new(
        io::ErrorKind::TimedOut,
        format!("its file system did not answer within {PATIENCE:?}"),
    )
}

/// The executable of a process, as the eBPF programs know executables.
pub fn of_process(pid: u32) -> Option<AppKey> {
    let mounts = [format!("/proc/{pid}/mountinfo"), OWN_MOUNTS.into()];
    key_of(&open(&format!("/proc/{pid}/exe")).ok()?, &mounts).ok()
}

/// Opens a path without opening what stands there.
fn open(path: &str) -> io::Result<fs::File> {
    fs::File::options()
        .read(true)
        .custom_flags(libc::O_PATH)
        .open(path)
}

/// The programs see the inode's own number and its file system's device. stat(2) tells others where a file system
/// makes devices up (btrfs for each subvolume, overlayfs for each layer); what /proc tells of an open file and of its
/// mount is what the programs see.
fn key_of(file: &fs::File, mounts: &[String]) -> io::Result<AppKey> {
    let info = read_text(format!("/proc/self/fdinfo/{}", file.as_raw_fd()))?;
    let field = |name: &str| {
        info.lines()
            .find_map(|l| l.strip_prefix(name)?.trim().parse().ok())
    };
    let mount: Option<u64> = field("mnt_id:");
    let device = mounts.iter().find_map(|table| device_of(mount?, table));
    // Asked only where it is needed: a file system may be slow to answer.
    let (inode, (major, minor)) = match (field("ino:"), device) {
        (Some(inode), Some(device)) => (inode, device),
        (inode, device) => {
            let metadata = file.metadata()?;
            let made_up = (libc::major(metadata.dev()), libc::minor(metadata.dev()));
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

/// The device of the file system behind a mount; from proc(5): id, parent, major:minor, …
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

/// How long a file system may take.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// Threads that wait at a time.
const MOST_WAITING: usize = 4;
const OWN_MOUNTS: &str = "/proc/self/mountinfo";
/// linux/capability.h, `_LINUX_CAPABILITY_VERSION_3`.
const CAPABILITY_VERSION: u32 = 0x2008_0522;

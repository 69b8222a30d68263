//! Identifies processes by a pidfd ([`open`]) or by pid and start time ([`exit_of`]), and finds the
//! shell or script that started the `netnice` command ([`invoking_process`]). Opening fails with a
//! [`CommandError`] if there is no such process, if the number is that of a thread, or if the
//! kernel refuses. The other functions return `None` if /proc does not show the process.

use std::os::fd::OwnedFd;

use netnice_api::Until;
use procfs_core::{FromRead, process::Stat};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, pidfd_open};

use crate::error::CommandError;

/// Opens a pidfd of a process. The pidfd refers to the same process even after the pid is reused.
/// Fails if there is no such process, if `pid` is that of a thread, or if the kernel refuses.
pub(crate) fn open(pid: u32) -> Result<OwnedFd, CommandError> {
    let raw = i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw)
        .ok_or(CommandError::NoProcess(pid))?;
    pidfd_open(raw, PidfdFlags::empty()).map_err(|errno| match (errno, thread_group(pid)) {
        (Errno::INVAL | Errno::NOENT, Some(group)) if group != pid => {
            CommandError::Thread(pid, Some(group))
        }
        (Errno::SRCH | Errno::NOENT, _) => CommandError::NoProcess(pid),
        (Errno::INVAL, _) => CommandError::Thread(pid, None),
        (errno, _) => CommandError::Process {
            pid,
            source: errno.into(),
        },
    })
}

/// The pid of the process that a thread belongs to.
fn thread_group(thread: u32) -> Option<u32> {
    let status = std::fs::read(format!("/proc/{thread}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok()
}

/// The exit of this process; `None` if its `/proc` entry cannot be read.
pub(crate) fn own_exit() -> Option<Until> {
    exit_of(std::process::id())
}

/// The exit of a process: its pid and start time; `None` if /proc does not show the process.
pub(crate) fn exit_of(pid: u32) -> Option<Until> {
    let started = stat(pid)?.starttime;
    Some(Until { pid, started })
}

/// The pid of the process that runs netnice, a shell or a script: the nearest ancestor that is not
/// one of [`USER_SWITCHERS`]. `None` if the nearest [`MAX_SWITCHERS`] ancestors are all among them,
/// or if an ancestor cannot be read.
pub(crate) fn invoking_process() -> Option<u32> {
    let mut pid = rustix::process::getppid()?.as_raw_nonzero().get() as u32;
    for _ in 0..MAX_SWITCHERS {
        let stat = stat(pid)?;
        if !USER_SWITCHERS.contains(&stat.comm.as_str()) {
            return Some(pid);
        }
        pid = u32::try_from(stat.ppid).ok()?;
    }
    None
}

/// Reads `/proc/PID/stat` (proc_pid_stat(5)); `None` if there is no such process.
fn stat(pid: u32) -> Option<Stat> {
    Stat::from_file(format!("/proc/{pid}/stat")).ok()
}

/// Programs that run another program as another user and end together with it.
const USER_SWITCHERS: [&str; 6] = ["sudo", "doas", "su", "pkexec", "run0", "setpriv"];
/// Largest number of [`USER_SWITCHERS`] in a row; sudo may be its own parent.
const MAX_SWITCHERS: usize = 8;

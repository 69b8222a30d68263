//! Finds the processes that the arguments `which` and `who` of `netnice_get` and `netnice_set`
//! denote ([`Subject`]), as those of getpriority(2). Fails if there are none, if `which` is not
//! PRIO_PROCESS, PRIO_PGRP or PRIO_USER, or if /proc cannot be read.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use libc::{c_int, id_t};
use procfs_core::{FromRead, process::Stat};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::error::CallError;

/// A process and its pidfd, which stays valid when the kernel reuses the number.
pub(crate) struct Process {
    /// Process number.
    pub pid: u32,
    fd: OwnedFd,
}

/// The processes that a call is about.
pub(crate) enum Subject {
    /// One process.
    Process(Process),
    /// A process group: its number and its present members.
    Group(u32, Vec<Process>),
    /// A user with at least one process.
    User(u32),
}

impl Subject {
    /// Finds the processes. `who` 0 means the calling process, its group or its real user. Fails
    /// with EINVAL for another `which`, with ESRCH if there are none, and if /proc cannot be read.
    pub(crate) fn find(which: c_int, who: id_t) -> Result<Subject, CallError> {
        match which {
            PROCESS if who == 0 => Process::open(std::process::id()).map(Subject::Process),
            PROCESS => Process::open(who).map(Subject::Process),
            PGRP => {
                let own = || {
                    rustix::process::getpgrp()
                        .as_raw_nonzero()
                        .get()
                        .unsigned_abs()
                };
                Subject::group(if who == 0 { own() } else { who })
            }
            USER if who == 0 => Ok(Subject::User(rustix::process::getuid().as_raw())),
            USER => match processes()?.any(|pid| user_of(pid) == Some(who)) {
                true => Ok(Subject::User(who)),
                false => Err(CallError::NoSuchProcess),
            },
            _ => Err(CallError::Invalid),
        }
    }

    fn group(number: u32) -> Result<Subject, CallError> {
        let mut members = Vec::new();
        for pid in processes()?.filter(|pid| group_of(*pid) == Some(number)) {
            match Process::open(pid) {
                Ok(process) => members.push(process),
                // The process ended after the scan.
                Err(CallError::NoSuchProcess) => {}
                Err(other) => return Err(other),
            }
        }
        match members.is_empty() {
            true => Err(CallError::NoSuchProcess),
            false => Ok(Subject::Group(number, members)),
        }
    }
}

impl Process {
    /// Opens a process. The number of a thread means its process, as in setpriority(2). Fails if
    /// there is none, or if the kernel refuses a pidfd.
    fn open(number: u32) -> Result<Process, CallError> {
        match pidfd(number) {
            // Linux returns these errors for a thread that is not the leader of its process.
            Err(Errno::INVAL | Errno::NOENT) => {
                let pid = leader(number).ok_or(CallError::NoSuchProcess)?;
                Ok(Process {
                    pid,
                    fd: pidfd(pid)?,
                })
            }
            other => Ok(Process {
                pid: number,
                fd: other?,
            }),
        }
    }

    /// The process group of the process; `None` if the process has ended.
    pub(crate) fn group(&self) -> Option<u32> {
        group_of(self.pid)
    }

    /// True if the process has ended.
    pub(crate) fn ended(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        matches!(
            rustix::event::poll(&mut fds, Some(&Timespec::default())),
            Ok(1..)
        )
    }
}

impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn pidfd(number: u32) -> Result<OwnedFd, Errno> {
    let pid = i32::try_from(number).ok().and_then(Pid::from_raw);
    pidfd_open(pid.ok_or(Errno::SRCH)?, PidfdFlags::empty())
}

/// All processes that the caller can see.
fn processes() -> Result<impl Iterator<Item = u32>, CallError> {
    let folder = std::fs::read_dir("/proc");
    let folder =
        folder.map_err(|error| CallError::System(error.raw_os_error().unwrap_or(libc::EIO)))?;
    Ok(folder.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()))
}

/// The process group of a process (proc_pid_stat(5), field 5).
fn group_of(pid: u32) -> Option<u32> {
    let stat = Stat::from_file(format!("/proc/{pid}/stat")).ok()?;
    u32::try_from(stat.pgrp).ok()
}

/// The real user of a process, which setpriority(2) compares too.
fn user_of(pid: u32) -> Option<u32> {
    status(pid, "Uid:")
}

/// The process of a thread.
fn leader(thread: u32) -> Option<u32> {
    status(thread, "Tgid:")
}

/// The first number after a key of proc_pid_status(5).
fn status(pid: u32, key: &str) -> Option<u32> {
    let status = std::fs::read(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The values of PRIO_PROCESS, PRIO_PGRP and PRIO_USER.
const PROCESS: c_int = 0;
const PGRP: c_int = 1;
const USER: c_int = 2;

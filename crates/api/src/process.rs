//! Identifies a process permanently, by its number and its start time ([`Process`]).
//!
//! A process number alone may belong to another process when the daemon uses it. The kernel reuses
//! a number only after all others, and records the start time of each process. So two processes
//! with the same number differ in their start time. A client with a pidfd reads number and start
//! time, and then checks by the pidfd that the process is alive. The daemon opens a pidfd of the
//! number, and compares the start time. So the daemon receives no file descriptor of a client;
//! closing such a descriptor could block the daemon for as long as the client chooses.
//!
//! [`Process::of`] and [`Process::namespace`] fail if `/proc` cannot be read; the former also if
//! the process has ended, or if the descriptor is no pidfd.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;

use procfs_core::{FromRead, process::Stat};
use rustix::event::{PollFd, PollFlags, Timespec};
use serde::{Deserialize, Serialize};

/// A process, as a request identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// Process number.
    pub pid: u32,
    /// Start time in clock ticks since boot (proc_pid_stat(5), field 22).
    pub started: u64,
    /// The PID namespace in which `pid` is valid: the inode of the client's /proc/self/ns/pid.
    pub namespace: u64,
}

impl Process {
    /// The process of a pidfd.
    ///
    /// # Errors
    /// `NotFound` if the process has ended or is not visible in the caller's `/proc`, or if `/proc`
    /// is not mounted; other kinds if the descriptor is not a pidfd, or if a system call fails.
    pub fn of(pidfd: BorrowedFd<'_>) -> io::Result<Process> {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
        let line = info.lines().find_map(|line| line.strip_prefix("Pid:"));
        let line = line.ok_or_else(|| io::Error::other("the file descriptor is no pidfd"))?;
        // -1 after the process was reaped.
        let pid: u32 = line.trim().parse().map_err(|_| gone())?;
        let stat = Stat::from_file(format!("/proc/{pid}/stat")).map_err(|_| gone())?;
        let mut readable = [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)];
        if rustix::event::poll(&mut readable, Some(&Timespec::default()))? > 0 {
            return Err(gone());
        }
        Ok(Process {
            pid,
            started: stat.starttime,
            namespace: Process::namespace()?,
        })
    }

    /// The PID namespace of the caller: the inode of /proc/self/ns/pid.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn namespace() -> io::Result<u64> {
        Ok(fs::metadata("/proc/self/ns/pid")?.ino())
    }
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the process has ended")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_living_process_is_identified_and_an_ended_one_is_not_found() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("sleep");
        let raw = rustix::process::Pid::from_child(&child);
        let pidfd = rustix::process::pidfd_open(raw, rustix::process::PidfdFlags::empty());
        let pidfd = pidfd.expect("a pidfd");
        let named = Process::of(pidfd.as_fd()).expect("it lives");
        assert_eq!(named.pid, child.id());
        assert!(named.started > 0);
        assert_eq!(named, Process::of(pidfd.as_fd()).expect("it lives"));
        child.kill().expect("killed");
        child.wait().expect("gone");
        let error = Process::of(pidfd.as_fd()).expect_err("it is gone");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        let file = fs::File::open("/dev/null").expect("a file");
        assert!(Process::of(file.as_fd()).is_err(), "no pidfd");
    }
}

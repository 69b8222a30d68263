//! A process by its number and its start, which together mean it for ever.
//!
//! A number alone may belong to another process by the time it is used. The kernel gives a number again only after
//! all others, and it notes when each process was started; so two processes with one number differ in their start. A
//! client that holds a pidfd reads both while the pidfd says that the process lives. The daemon opens the number,
//! compares the start, and from then on holds a pidfd of its own: no file descriptor of a client reaches it, whose
//! last close could block for as long as the client likes.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;

use rustix::event::{PollFd, PollFlags, Timespec};
use serde::{Deserialize, Serialize};

/// A process that a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// When it was started, in clock ticks since boot (proc_pid_stat(5), field 22).
    pub started: u64,
    /// The namespace in which `pid` is its number, by the inode of /proc/self/ns/pid of the client.
    pub namespace: u64,
}

impl Process {
    /// The process that a pidfd means.
    ///
    /// # Errors
    /// `NotFound` if the process has ended and its parent has been told; other kinds if `/proc` cannot be read.
    pub fn of(pidfd: BorrowedFd<'_>) -> io::Result<Process> {
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
        let line = info.lines().find_map(|line| line.strip_prefix("Pid:"));
        let line = line.ok_or_else(|| io::Error::other("the file descriptor is no pidfd"))?;
        // It is -1 once the process is gone.
        let pid: u32 = line.trim().parse().map_err(|_| gone())?;
        // The command name is any bytes.
        let stat = fs::read(format!("/proc/{pid}/stat")).map_err(|_| gone())?;
        let stat = String::from_utf8_lossy(&stat);
        // Field 22; the second field, the command name, ends at the last bracket.
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        let started = fields
            .split_whitespace()
            .nth(19)
            .and_then(|f| f.parse().ok());
        let mut readable = [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)];
        if rustix::event::poll(&mut readable, Some(&Timespec::default()))? > 0 {
            return Err(gone());
        }
        Ok(Process {
            pid,
            started: started.ok_or_else(gone)?,
            namespace: Process::namespace()?,
        })
    }

    /// The namespace of process numbers that the caller is in, as [`Process::namespace`](field@Process::namespace) has it.
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
    fn a_living_process_is_named_and_one_that_ended_is_not() {
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

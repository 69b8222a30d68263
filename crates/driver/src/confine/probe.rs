//! Makes the system calls that an attacker inside a thread would try first. A test, and the
//! driver's option `--self-check`, thus show that the calls fail. [`probe`] itself does not fail:
//! the error of a call is part of its text.

use std::io;

use rustix::fs::{Mode, OFlags};

/// Tries to open a file, to signal the parent process (with signal 0, which has no effect), to
/// trace it, to fork and to map executable memory. Returns the outcome of each (`done`, `EPERM` or
/// another error number) as text.
pub(crate) fn probe() -> String {
    let parent = rustix::process::getppid();
    let opened = rustix::fs::open("/etc/hostname", OFlags::RDONLY, Mode::empty());
    let signalled = parent.map_or(Ok(()), rustix::process::test_kill_process);
    let number = parent.map_or(1, |parent| parent.as_raw_pid());
    // SAFETY: the call passes no memory. PTRACE_SEIZE does not stop the process, and the kernel
    // releases it when this process ends.
    let traced = unsafe { libc::ptrace(libc::PTRACE_SEIZE, number, 0, 0) };
    let traced = error_of(traced);
    // SAFETY: the child only exits.
    let forked = unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::_exit(0);
        }
        error_of(child.into())
    };
    let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice, which no code uses.
    let mapped = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(std::ptr::null_mut(), 4096, all, flags, -1, 0)
    };
    let mapped = error_of(mapped as i64);
    let system = |done: rustix::io::Result<()>| done.err().map(io::Error::from);
    let outcomes = [
        ("open", system(opened.map(drop))),
        ("kill", system(signalled)),
        ("ptrace", traced),
        ("fork", forked),
        ("mmap", mapped),
    ];
    let outcomes =
        outcomes.map(
            |(what, error)| match error.and_then(|error| error.raw_os_error()) {
                None => format!("{what} done"),
                Some(libc::EPERM) => format!("{what} EPERM"),
                Some(number) => format!("{what} error {number}"),
            },
        );
    outcomes.join(", ")
}

fn error_of(done: i64) -> Option<io::Error> {
    (done == -1).then(io::Error::last_os_error)
}

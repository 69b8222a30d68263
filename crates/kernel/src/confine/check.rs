//! Tries the operations that a confined process must not be able to do, from inside the process,
//! and returns the result of each ([`attempts`]). Nothing here fails: the error of an operation is
//! its result.

use std::io;

/// The result of one operation that [`attempts`] tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The operation's name.
    pub what: &'static str,
    /// The error number; `None` if the operation succeeded.
    pub errno: Option<i32>,
}

/// Tries system calls that the filter of [`super::confine`] does not allow and that an attacker
/// would use: on files that every user may read, and on the process `parent`. Returns the result of
/// each. If a call succeeds, its descriptor or mapping stays open, so the calling process must end
/// afterwards.
pub fn attempts(parent: u32) -> Vec<Attempt> {
    let attempts = OPERATIONS.iter().map(|(what, operation)| {
        let result = operation(parent as libc::c_int);
        let error = io::Error::last_os_error().raw_os_error();
        Attempt {
            what,
            errno: error.filter(|_| result < 0),
        }
    });
    attempts.collect()
}

/// A name and an operation. The operation's argument is the process id to try it on.
type Operation = (&'static str, fn(libc::c_int) -> libc::c_long);

const NULL: *mut libc::c_void = std::ptr::null_mut();

/// The operations, in the order in which they are tried.
const OPERATIONS: &[Operation] = &[
    ("open /", |_| open(c"/")),
    ("open .", |_| open(c".")),
    ("open /etc/passwd", |_| open(c"/etc/passwd")),
    // SAFETY: the string ends with a zero byte.
    ("make a folder", |_| unsafe {
        libc::syscall(libc::SYS_mkdirat, libc::AT_FDCWD, c"x".as_ptr(), 0o700)
    }),
    // SAFETY: no pointers.
    ("kill", |to| unsafe { libc::syscall(libc::SYS_kill, to, 0) }),
    // SAFETY: no pointers.
    ("kill a thread", |to| unsafe {
        libc::syscall(libc::SYS_tgkill, to, to, 0)
    }),
    // SAFETY: no pointers.
    ("open a pidfd", |to| unsafe {
        libc::syscall(libc::SYS_pidfd_open, to, 0)
    }),
    // SAFETY: no pointers.
    ("take a descriptor", |_| unsafe {
        libc::syscall(libc::SYS_pidfd_getfd, 0, 0, 0)
    }),
    // SAFETY: PTRACE_SEIZE requires null.
    ("trace", |to| unsafe {
        libc::syscall(libc::SYS_ptrace, libc::PTRACE_SEIZE, to, NULL, NULL)
    }),
    // SAFETY: the lists are empty.
    ("read memory", |to| unsafe {
        libc::syscall(libc::SYS_process_vm_readv, to, NULL, 0, NULL, 0, 0)
    }),
    // SAFETY: no pointers.
    ("make a socket", |_| unsafe {
        libc::syscall(libc::SYS_socket, libc::AF_UNIX, libc::SOCK_STREAM, 0)
    }),
    // SAFETY: the path is no program, so the call fails with any other arguments.
    ("start a program", |_| unsafe {
        libc::syscall(libc::SYS_execve, c"/".as_ptr(), NULL, NULL)
    }),
    // SAFETY: the child ends at once and changes nothing.
    ("fork", |_| unsafe {
        let child = libc::syscall(libc::SYS_clone, libc::SIGCHLD, NULL, NULL, NULL, NULL);
        if child == 0 {
            libc::_exit(0);
        }
        child
    }),
    // SAFETY: the memory is new and unused.
    ("make memory executable", |_| unsafe {
        let may = libc::PROT_READ | libc::PROT_EXEC;
        let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::syscall(libc::SYS_mmap, NULL, 4096, may, private, -1, 0)
    }),
    // SAFETY: no pointers.
    ("become root", |_| unsafe {
        libc::syscall(libc::SYS_setresuid, 0, 0, 0)
    }),
    // SAFETY: no pointers.
    ("make a user namespace", |_| unsafe {
        libc::syscall(libc::SYS_unshare, libc::CLONE_NEWUSER)
    }),
    // SAFETY: the kernel refuses attributes at null.
    ("load an eBPF program", |_| unsafe {
        libc::syscall(libc::SYS_bpf, 5, NULL, 0)
    }),
];

fn open(path: &std::ffi::CStr) -> libc::c_long {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: the string ends with a zero byte.
    unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) }
}

//! Describes one system call at its entry: its name, whether it changes anything outside of its
//! process, and whether a test may make it fail. A table classifies the system calls that the
//! daemon makes; all others count as internal to the process. Reading or changing a thread's
//! registers fails if ptrace fails, and on other processors than x86-64.

use std::fmt;
use std::path::PathBuf;

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::ptrace;
use nix::unistd::Pid;

/// A system call at its entry.
#[derive(Clone, Debug)]
pub struct Call {
    process: Pid,
    thread: Pid,
    number: i64,
    arguments: [u64; 3],
}

/// The effect of a system call outside of the process that makes it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// The call always changes something.
    Changes,
    /// The call changes something, depending on its arguments.
    Depends,
    /// The call changes nothing outside of the process, and a test may make it fail.
    Reads,
    /// The call concerns the process alone: memory, threads, clocks, signals, waiting. netnice does
    /// not depend on such a call, or the standard library ends the process if the call fails.
    Internal,
}

use Effect::{Changes, Depends, Reads};

impl Call {
    /// Whether the call may change something that outlasts the process. It makes no difference at
    /// which point between two such calls the process is killed, so tests kill it only before such
    /// calls.
    pub fn changes_host(&self) -> bool {
        match self.effect() {
            Changes => true,
            Depends => self.changes_with_these_arguments(),
            Reads | Effect::Internal => false,
        }
    }

    /// Whether a test may make the call fail. It may not if the call concerns the process alone,
    /// closes a descriptor, or reads or writes a standard stream (the log is one), an eventfd or an
    /// epoll descriptor. The daemon cannot handle a failure of these.
    pub fn can_be_failed(&self) -> bool {
        match self.number {
            libc::SYS_close => false,
            libc::SYS_write | libc::SYS_writev | libc::SYS_read => !self.is_own_channel(),
            _ => self.effect() != Effect::Internal,
        }
    }

    /// The descriptor that the call reads from; `None` if the call is not read(2).
    pub fn reads_from(&self) -> Option<u64> {
        (self.number == libc::SYS_read).then_some(self.arguments[0])
    }

    fn effect(&self) -> Effect {
        let known = TABLE.iter().find(|(number, ..)| *number == self.number);
        known.map_or(Effect::Internal, |(_, _, effect)| *effect)
    }

    fn changes_with_these_arguments(&self) -> bool {
        let [first, second, third] = self.arguments;
        match self.number {
            libc::SYS_bpf => !BPF_WITHOUT_LASTING_EFFECT.contains(&first),
            libc::SYS_openat => third & CREATE_FLAGS != 0,
            libc::SYS_open => second & CREATE_FLAGS != 0,
            // Closing the last descriptor of a link detaches its program.
            libc::SYS_close => self
                .descriptor(first)
                .is_some_and(|file| file.to_string_lossy().starts_with("anon_inode:bpf")),
            libc::SYS_write | libc::SYS_writev => !self.is_own_channel(),
            libc::SYS_sendto => !self.is_netlink_query(second),
            _ => true,
        }
    }

    /// Whether a netlink request only reads: it has the flags of a dump, or its kind is a GET.
    fn is_netlink_query(&self, message: u64) -> bool {
        let Ok(word) = ptrace::read(self.thread, (message + 4) as ptrace::AddressType) else {
            return false;
        };
        let (kind, flags) = (word as u16, (word >> 16) as u16);
        let is_route = kind >= RTM_BASE && flags & !NLM_F_KNOWN == 0;
        is_route && (flags & NLM_F_DUMP == NLM_F_DUMP || kind % 4 == RTM_GET)
    }

    /// Whether the call uses a standard stream, or an eventfd or epoll descriptor of the process's
    /// own event loop.
    fn is_own_channel(&self) -> bool {
        let [first, ..] = self.arguments;
        first <= 2
            || self
                .descriptor(first)
                .is_some_and(|file| file.to_string_lossy().starts_with("anon_inode:[event"))
    }

    fn descriptor(&self, number: u64) -> Option<PathBuf> {
        std::fs::read_link(format!("/proc/{}/fd/{number}", self.process)).ok()
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = TABLE.iter().find(|(number, ..)| *number == self.number);
        let [first, second, third] = self.arguments;
        match known {
            Some((_, name, _)) => write!(f, "{name}({first:#x}, {second:#x}, {third:#x})"),
            None => write!(f, "system call {}", self.number),
        }?;
        match self.descriptor(first) {
            Some(file) if self.number != libc::SYS_bpf => write!(f, " of {}", file.display()),
            _ => Ok(()),
        }
    }
}

/// Whether a thread that is stopped at a system call is at its entry, not at its exit. Fails if
/// ptrace fails.
pub(super) fn is_entry(thread: Pid) -> Result<bool> {
    let info = ptrace::syscall_info(thread)
        .context("cannot read whether a thread is at the entry of a call")?;
    Ok(info.op == libc::PTRACE_SYSCALL_INFO_ENTRY)
}

/// The call at whose entry a thread is stopped. Fails if ptrace fails.
#[cfg(target_arch = "x86_64")]
pub(super) fn at_entry(process: Pid, thread: Pid) -> Result<Call> {
    let registers = ptrace::getregs(thread).context("cannot read the registers of a thread")?;
    Ok(Call {
        process,
        thread,
        number: registers.orig_rax as i64,
        arguments: [registers.rdi, registers.rsi, registers.rdx],
    })
}

/// Makes a thread that is stopped at the entry of a system call skip the call. Fails if ptrace
/// fails.
#[cfg(target_arch = "x86_64")]
pub(super) fn skip(thread: Pid) -> Result<()> {
    let mut registers = ptrace::getregs(thread).context("cannot read the registers of a thread")?;
    registers.orig_rax = u64::MAX;
    ptrace::setregs(thread, registers).context("cannot write the registers of a thread")
}

/// Replaces the result of a system call by the error `errno`. The thread must be stopped at the
/// exit of the call. Fails if ptrace fails.
#[cfg(target_arch = "x86_64")]
pub(super) fn set_error(thread: Pid, errno: Errno) -> Result<()> {
    let mut registers = ptrace::getregs(thread).context("cannot read the registers of a thread")?;
    registers.rax = (-i64::from(errno as i32)) as u64;
    ptrace::setregs(thread, registers).context("cannot write the registers of a thread")
}

#[cfg(not(target_arch = "x86_64"))]
mod elsewhere {
    use super::*;

    pub(in super::super) fn at_entry(_: Pid, _: Pid) -> Result<Call> {
        anyhow::bail!("the tracer supports x86-64 only")
    }

    pub(in super::super) fn skip(_: Pid) -> Result<()> {
        anyhow::bail!("the tracer supports x86-64 only")
    }

    pub(in super::super) fn set_error(_: Pid, _: Errno) -> Result<()> {
        anyhow::bail!("the tracer supports x86-64 only")
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) use elsewhere::{at_entry, set_error, skip};

macro_rules! table {
    ($($number:ident $effect:ident),* $(,)?) => {
        &[$((libc::$number, stringify!($number), Effect::$effect)),*]
    };
}

/// The effects of system calls. A call that is not in the table counts as internal to the process,
/// and no test kills the process before it or makes it fail. If the daemon begins to use another
/// call with an effect outside of the process, the call must be added here.
#[cfg(target_arch = "x86_64")]
const TABLE: &[(i64, &str, Effect)] = table![
    // Files.
    SYS_open Depends,
    SYS_openat Depends,
    SYS_creat Changes,
    SYS_write Depends,
    SYS_writev Depends,
    SYS_pwrite64 Changes,
    SYS_close Depends,
    SYS_rename Changes,
    SYS_renameat Changes,
    SYS_renameat2 Changes,
    SYS_link Changes,
    SYS_linkat Changes,
    SYS_symlink Changes,
    SYS_symlinkat Changes,
    SYS_unlink Changes,
    SYS_unlinkat Changes,
    SYS_mkdir Changes,
    SYS_mkdirat Changes,
    SYS_rmdir Changes,
    SYS_mknod Changes,
    SYS_mknodat Changes,
    SYS_mount Changes,
    SYS_umount2 Changes,
    SYS_truncate Changes,
    SYS_ftruncate Changes,
    SYS_chmod Changes,
    SYS_fchmod Changes,
    SYS_fchmodat Changes,
    SYS_chown Changes,
    SYS_fchown Changes,
    SYS_fchownat Changes,
    SYS_flock Changes,
    // These change nothing for other processes, which also read what is not on the disk yet.
    SYS_fsync Reads,
    SYS_fdatasync Reads,
    SYS_read Reads,
    SYS_pread64 Reads,
    SYS_readv Reads,
    SYS_getdents64 Reads,
    SYS_readlink Reads,
    SYS_readlinkat Reads,
    SYS_stat Reads,
    SYS_lstat Reads,
    SYS_fstat Reads,
    SYS_newfstatat Reads,
    SYS_statx Reads,
    SYS_statfs Reads,
    SYS_fstatfs Reads,
    SYS_access Reads,
    SYS_faccessat Reads,
    SYS_faccessat2 Reads,
    SYS_inotify_init1 Reads,
    SYS_inotify_add_watch Reads,
    SYS_name_to_handle_at Reads,
    // Sockets.
    SYS_socket Reads,
    SYS_connect Changes,
    SYS_accept4 Reads,
    SYS_bind Changes,
    SYS_listen Changes,
    SYS_sendto Depends,
    SYS_sendmsg Changes,
    SYS_sendmmsg Changes,
    SYS_recvfrom Reads,
    SYS_recvmsg Reads,
    SYS_getsockopt Reads,
    SYS_setsockopt Reads,
    SYS_getsockname Reads,
    SYS_ioctl Changes,
    // Other processes.
    SYS_kill Changes,
    SYS_tgkill Internal,
    SYS_pidfd_open Reads,
    SYS_pidfd_send_signal Changes,
    SYS_pidfd_getfd Reads,
    SYS_fork Changes,
    SYS_vfork Changes,
    SYS_clone Changes,
    SYS_clone3 Changes,
    SYS_setns Reads,
    SYS_unshare Reads,
    // The kernel's tables.
    SYS_bpf Depends,
    SYS_perf_event_open Reads,
    SYS_fcntl Internal,
    SYS_epoll_ctl Reads,
    SYS_eventfd2 Reads,
    SYS_memfd_create Reads,
];

#[cfg(not(target_arch = "x86_64"))]
const TABLE: &[(i64, &str, Effect)] = table![];

/// Commands of bpf(2) without an effect after the process ends: a descriptor holds the objects that
/// they make, or they only read. The numbers are those of `enum bpf_cmd` in linux/bpf.h.
const BPF_WITHOUT_LASTING_EFFECT: &[u64] = &[
    0, // map create
    1, // map look up
    4, // map get next key
    5, // prog load
    7, // obj get
    10, 11, 12, 13, 14, 15, 16, // test run, ids, information, query
    18, 19, 20, 23, // BTF load, by number, task query, BTF next number
    24, // map look up, many
    30, 31, 32, 33, // link by number, next number, statistics, iterator
];
const CREATE_FLAGS: u64 = (libc::O_CREAT | libc::O_TRUNC) as u64;
/// rtnetlink (linux/rtnetlink.h): the first kind of message, and the remainder modulo 4 of the GET
/// kinds.
const RTM_BASE: u16 = 16;
const RTM_GET: u16 = 2;
const NLM_F_DUMP: u16 = 0x300;
/// All flags that a request may have.
const NLM_F_KNOWN: u16 = 0x0f07;

//! The system calls that a thread of each [`Role`] may make, some with limits on an argument. After
//! `filter`, all other calls of the thread fail with EPERM. `filter` fails if the kernel refuses
//! the filter.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Width, SeccompCmpOp as Is,
    SeccompCondition as Where, SeccompFilter, SeccompRule,
};

/// The work of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Sends and receives packets.
    Packets,
    /// Writes doorbells.
    Doorbells,
    /// Serves the daemon.
    Control,
}

/// Restricts this thread to the system calls of its work, by seccomp. Fails if the kernel refuses
/// the filter.
pub(super) fn filter(role: Role) -> io::Result<()> {
    let program = program(role).map_err(io::Error::other)?;
    seccompiler::apply_filter(&program).map_err(io::Error::other)
}

fn program(role: Role) -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    let own: &[i64] = match role {
        Role::Packets => PACKET_THREAD,
        Role::Doorbells => &[],
        Role::Control => CONTROL_THREAD,
    };
    for number in ALL_THREADS.iter().chain(own) {
        rules.insert(*number, Vec::new());
    }
    // No executable memory.
    let plain = Where::new(2, Width::Dword, Is::MaskedEq(libc::PROT_EXEC as u64), 0)?;
    for number in [libc::SYS_mmap, libc::SYS_mprotect] {
        rules.insert(number, vec![SeccompRule::new(vec![plain.clone()])?]);
    }
    if role == Role::Control {
        for (number, argument, allowed) in [
            (libc::SYS_bpf, 0, BPF_COMMANDS),
            (libc::SYS_socket, 0, SOCKET_FAMILIES),
            (libc::SYS_ioctl, 1, IOCTL_REQUESTS),
        ] {
            let rule = |value: &u64| {
                SeccompRule::new(vec![Where::new(argument, Width::Dword, Is::Eq, *value)?])
            };
            let allowed: Result<Vec<_>, _> = allowed.iter().map(rule).collect();
            rules.insert(number, allowed?);
        }
    }
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Errno(libc::EPERM as u32),
        SeccompAction::Allow,
        std::env::consts::ARCH.try_into()?,
    )?;
    filter.try_into()
}

/// Memory, time, synchronisation, doorbells, identity, the log, the end.
const ALL_THREADS: &[i64] = &[
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_close,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_read,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_yield,
    libc::SYS_sigaltstack,
    libc::SYS_write,
    libc::SYS_writev,
];

/// Sending and receiving frames, sleeping, and reading a thread's scheduling class.
const PACKET_THREAD: &[i64] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_getsockopt,
    libc::SYS_recvmmsg,
    libc::SYS_sched_getattr,
    libc::SYS_sendmmsg,
    libc::SYS_sendto,
];

/// The daemon's socket, programs' memory files and doorbells, pidfds, the interface, the removal of
/// the socket and the lock.
const CONTROL_THREAD: &[i64] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_ftruncate,
    libc::SYS_getsockopt,
    libc::SYS_inotify_add_watch,
    libc::SYS_memfd_create,
    libc::SYS_newfstatat,
    libc::SYS_pipe2,
    libc::SYS_ppoll,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_shutdown,
    libc::SYS_uname,
    libc::SYS_unlinkat,
    libc::SYS_vmsplice,
    libc::SYS_waitid,
];

/// bpf(2): look up, write and delete a map entry; query an object; attach, replace and detach a
/// loaded program.
const BPF_COMMANDS: &[u64] = &[1, 2, 3, 15, 28, 29, 34];
/// Socket families for queries of the interface's state.
const SOCKET_FAMILIES: &[u64] = &[libc::AF_INET as u64];
const IOCTL_REQUESTS: &[u64] = &[
    libc::FIONBIO,
    libc::SIOCETHTOOL,
    libc::SIOCGIFFLAGS,
    libc::SIOCGIFHWADDR,
    libc::SIOCGIFINDEX,
    libc::SIOCGIFMTU,
];

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::process::Command;

    use netnice_kernel::process::PidFd;

    use super::*;
    use crate::link::{Interface, LinkError};

    #[test]
    fn a_confined_thread_cannot_open_signal_trace_fork_or_map_code() {
        for role in [Role::Packets, Role::Doorbells, Role::Control] {
            let outcomes = std::thread::spawn(move || {
                rustix::thread::set_no_new_privs(true).unwrap();
                filter(role).unwrap();
                super::super::probe()
            });
            assert_eq!(
                outcomes.join().unwrap(),
                "open EPERM, kill EPERM, ptrace EPERM, fork EPERM, mmap EPERM",
                "{role:?}"
            );
        }
    }
    #[test]
    fn a_confined_control_thread_reads_interfaces_and_watches_processes() {
        let own = PidFd::open(std::process::id()).unwrap();
        let mut child = Command::new("true").spawn().unwrap();
        let ended = PidFd::open(child.id()).unwrap();
        child.wait().unwrap();
        let work = move || {
            rustix::thread::set_no_new_privs(true).unwrap();
            filter(Role::Control).unwrap();
            // Only the answers to both requests, index and address, lead to this error.
            let lo = Interface::read("lo").unwrap_err();
            assert!(matches!(lo, LinkError::NotEthernet(_)), "{lo}");
            let none = Interface::read("a name of 16 let").unwrap_err();
            assert!(matches!(none, LinkError::NoInterface(_)), "{none}");
            let sent = own.as_fd().try_clone_to_owned().unwrap();
            assert!(PidFd::verified(sent).is_some_and(|process| process.is_alive()));
            assert!(!ended.is_alive());
            let (read, _write) = std::io::pipe().unwrap();
            assert!(PidFd::verified(read.into()).is_none());
        };
        std::thread::spawn(work).join().unwrap();
    }
}

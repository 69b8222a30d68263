//! The system calls of a confined process: those that a loop over connections needs, and those that
//! the C library and Rust's threads make by themselves. [`rules`] returns them for the filter, some
//! with a condition on an argument. It fails if `seccompiler` refuses a condition.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, SeccompCmpArgLen as Length, SeccompCmpOp as Is, SeccompCondition as Condition,
    SeccompRule,
};

/// The list, with the conditions on arguments. No entry opens a file, makes a socket other than an
/// accepted connection, starts a program, signals or traces a process, or makes memory executable.
/// Fails if `seccompiler` refuses a condition.
pub(super) fn rules() -> Result<BTreeMap<i64, Vec<SeccompRule>>, BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = WITH_ANY_ARGUMENTS
        .iter()
        .map(|call| (*call, Vec::new()))
        .collect();
    let not_executable = Is::MaskedEq(libc::PROT_EXEC as u64);
    let a_thread = (libc::CLONE_THREAD | libc::CLONE_VM) as u64;
    let with = [
        (libc::SYS_mmap, 2, not_executable.clone(), 0),
        (libc::SYS_mprotect, 2, not_executable, 0),
        (libc::SYS_clone, 0, Is::MaskedEq(a_thread), a_thread),
        (libc::SYS_ioctl, 1, Is::Eq, libc::FIONREAD),
        (libc::SYS_prctl, 0, Is::Eq, libc::PR_SET_NAME as u64),
    ];
    for (call, argument, is, value) in with {
        let condition = Condition::new(argument, Length::Dword, is, value)?;
        rules.insert(call, vec![SeccompRule::new(vec![condition])?]);
    }
    Ok(rules)
}

/// Calls that are allowed with any arguments.
const WITH_ANY_ARGUMENTS: &[i64] = &[
    // Connections.
    libc::SYS_accept4,
    libc::SYS_recvmsg,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    // Waiting.
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_ppoll,
    libc::SYS_futex,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_sched_yield,
    libc::SYS_restart_syscall,
    // Memory.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    // Start and end of threads. The other filter checks clone3.
    libc::SYS_clone3,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_exit,
    libc::SYS_exit_group,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
];

//! The scheduling policy of a thread (sched(7)): reads it, gives the thread SCHED_DEADLINE, and
//! takes it away again. All functions fail with the error of the system call; ESRCH: the thread has
//! ended.

use std::{fs, io};

use netnice_core::units::Nanos;
use rustix::io::Errno;
use rustix::process::{getpid, getsid, setpriority_process};
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

use super::ProcessorSet;
use crate::process::read_text;

/// A scheduling policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// SCHED_OTHER: that of nearly all threads.
    Other,
    /// SCHED_BATCH, SCHED_IDLE or one that is not known here, by its number.
    Number(u32),
    /// SCHED_FIFO, with the priority from 1 to 99.
    Fifo(u32),
    /// SCHED_RR, with the priority from 1 to 99.
    RoundRobin(u32),
    /// SCHED_DEADLINE.
    Deadline(Deadline),
}

impl std::fmt::Display for Policy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Policy::Other => f.write_str("SCHED_OTHER"),
            Policy::Number(3) => f.write_str("SCHED_BATCH"),
            Policy::Number(5) => f.write_str("SCHED_IDLE"),
            Policy::Number(number) => write!(f, "scheduling policy {number}"),
            Policy::Fifo(priority) => write!(f, "SCHED_FIFO with priority {priority}"),
            Policy::RoundRobin(priority) => write!(f, "SCHED_RR with priority {priority}"),
            Policy::Deadline(Deadline { budget, period, .. }) => {
                write!(f, "SCHED_DEADLINE {budget}/{period}")
            }
        }
    }
}

/// A reservation by SCHED_DEADLINE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// The processor time in each period.
    pub budget: Nanos,
    /// The period.
    pub period: Nanos,
    /// The thread also uses processor time that no thread with SCHED_DEADLINE uses, up to what the
    /// kernel leaves to other threads (SCHED_FLAG_RECLAIM). Other reservations lose nothing by
    /// that, but threads without one do.
    pub reclaims: bool,
}

impl Deadline {
    /// `budget` in each `period`, and no more.
    pub fn exactly(budget: Nanos, period: Nanos) -> Deadline {
        Deadline {
            budget,
            period,
            reclaims: false,
        }
    }
}

/// The policy of a thread; 0 stands for the calling one.
pub fn policy(thread: u32) -> io::Result<Policy> {
    let found = read(thread)?;
    Ok(match found.sched_policy as i32 {
        libc::SCHED_OTHER => Policy::Other,
        libc::SCHED_FIFO => Policy::Fifo(found.sched_priority),
        libc::SCHED_RR => Policy::RoundRobin(found.sched_priority),
        libc::SCHED_DEADLINE => Policy::Deadline(Deadline {
            budget: Nanos(found.sched_runtime),
            period: Nanos(found.sched_period),
            reclaims: found.sched_flags & libc::SCHED_FLAG_RECLAIM as u64 != 0,
        }),
        _ => Policy::Number(found.sched_policy),
    })
}

fn read(thread: u32) -> io::Result<libc::sched_attr> {
    let mut found = attributes();
    // SAFETY: the kernel writes at most `size_of::<libc::sched_attr>()` bytes to the structure,
    // which lives until the call returns.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_getattr,
            thread,
            &raw mut found,
            size_of::<libc::sched_attr>(),
            0,
        )
    };
    match result {
        0 => Ok(found),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Gives a thread SCHED_DEADLINE. Threads and children that it makes have SCHED_OTHER.
///
/// # Errors
/// EBUSY: the kernel admits no more. EPERM: CAP_SYS_NICE is missing, or the thread may not run on
/// all processors. EINVAL: the budget or the period is beyond the kernel's limits.
pub fn set_deadline(thread: u32, reserved: Deadline) -> io::Result<()> {
    let Deadline { budget, period, .. } = reserved;
    let reclaims = match reserved.reclaims {
        true => libc::SCHED_FLAG_RECLAIM,
        false => 0,
    };
    set(
        thread,
        libc::sched_attr {
            sched_policy: libc::SCHED_DEADLINE as u32,
            sched_flags: (libc::SCHED_FLAG_RESET_ON_FORK | reclaims) as u64,
            sched_runtime: budget.0,
            sched_deadline: period.0,
            sched_period: period.0,
            ..attributes()
        },
    )
}

/// Gives a thread SCHED_OTHER. It keeps the nice value that it had before SCHED_DEADLINE.
pub fn set_other(thread: u32) -> io::Result<()> {
    let nice = nice(thread)?;
    replace(
        thread,
        libc::sched_attr {
            sched_policy: libc::SCHED_OTHER as u32,
            sched_nice: nice,
            ..attributes()
        },
    )
}

/// Gives a thread a policy that it had before, if that was SCHED_OTHER or SCHED_FIFO.
pub fn restore(thread: u32, former: Policy) -> io::Result<()> {
    match former {
        Policy::Other => set_other(thread),
        Policy::Fifo(priority) => set_fifo(thread, priority),
        _ => Ok(()),
    }
}

/// Gives a thread SCHED_FIFO with a priority from 1 to 99.
pub fn set_fifo(thread: u32, priority: u32) -> io::Result<()> {
    replace(
        thread,
        libc::sched_attr {
            sched_policy: libc::SCHED_FIFO as u32,
            sched_priority: priority,
            ..attributes()
        },
    )
}

/// Gives a thread another policy than SCHED_DEADLINE. If it has that, it first has the least
/// budget. The reason is an error of the kernel (seen on Linux 6.18): when a sleeping thread loses
/// SCHED_DEADLINE, its time still counts as held, so the kernel admits less. It counts anew only
/// when a cpuset changes, or when `sched_rt_runtime_us` is read. A thread that is confined to some
/// processors cannot have another budget.
fn replace(thread: u32, attributes: libc::sched_attr) -> io::Result<()> {
    let former = read(thread)?;
    let has_least = former.sched_policy == libc::SCHED_DEADLINE as u32
        && set_deadline(thread, LEAST_TIME).is_ok();
    let replaced = set(thread, attributes);
    if replaced.is_err() && has_least {
        // The thread keeps what it had. If it has ended, there is nothing to keep.
        let _ = set(thread, former);
    }
    replaced
}

/// The least budget of SCHED_DEADLINE, 2^10 ns, in a period below the longest, which is 2^22 us by
/// default. This counts as no time at all.
const LEAST_TIME: Deadline = Deadline {
    budget: Nanos(1 << 10),
    period: Nanos::from_secs(4),
    reclaims: false,
};

/// Sets the nice value, -20 to 19, of the calling thread and of the threads and processes that it
/// makes later. If the calling process leads its session, also that of the session's autogroup, if
/// the kernel has autogroups: without it, nice values count within a session only (sched(7)).
///
/// # Errors
/// EPERM or EACCES: the value is lower than before, and CAP_SYS_NICE is missing.
pub fn set_own_nice(nice: i32) -> io::Result<()> {
    setpriority_process(None, nice)?;
    let leads = getsid(None)? == getpid();
    match leads.then(|| fs::write("/proc/self/autogroup", nice.to_string())) {
        Some(Err(error)) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Gives threads with the nice value 0 that of another thread: the kernel gives the value 0 to what
/// a thread starts while it has SCHED_DEADLINE. Threads that have ended are left out.
pub fn inherit_nice(from: u32, threads: &[u32]) -> io::Result<()> {
    let nice = nice(from)?;
    for thread in threads.iter().filter(|thread| **thread != from) {
        if matches!(self::nice(*thread), Ok(0)) && nice != 0 {
            match setpriority_process(Some(pid(*thread)?), nice) {
                Err(Errno::SRCH) => {}
                set => set?,
            }
        }
    }
    Ok(())
}

/// The nice value of a thread, also while it has another policy than SCHED_OTHER.
fn nice(thread: u32) -> io::Result<i32> {
    let text = read_text(format!("/proc/{thread}/stat"))?;
    let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields);
    // The 19th field; the third one comes first here.
    let nice = fields.split_ascii_whitespace().nth(16);
    nice.and_then(|nice| nice.parse().ok())
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The processors that a thread chose to run on (its affinity), within those of its cpuset.
pub fn affinity(thread: u32) -> io::Result<ProcessorSet> {
    let set = sched_getaffinity(Some(pid(thread)?))?;
    let all = 0..CpuSet::MAX_CPU;
    Ok(all
        .filter(|cpu| set.is_set(*cpu))
        .map(|cpu| cpu as u32)
        .collect())
}

/// Sets the processors that a thread may run on.
pub fn set_affinity(thread: u32, processors: &ProcessorSet) -> io::Result<()> {
    let mut set = CpuSet::new();
    for processor in processors {
        set.set(*processor as usize);
    }
    Ok(sched_setaffinity(Some(pid(thread)?), &set)?)
}

fn pid(thread: u32) -> io::Result<Pid> {
    let number = i32::try_from(thread).ok();
    Ok(number.and_then(Pid::from_raw).ok_or(Errno::SRCH)?)
}

fn set(thread: u32, attributes: libc::sched_attr) -> io::Result<()> {
    // SAFETY: the kernel only reads the structure, which lives until the call returns; its first
    // field is its size.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, thread, &raw const attributes, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// An argument of sched_getattr(2) and sched_setattr(2), for which rustix has no call: all fields
/// are 0 but the size.
fn attributes() -> libc::sched_attr {
    // SAFETY: all bits zero are a value of this plain structure.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    attributes.size = size_of::<libc::sched_attr>() as u32;
    attributes
}

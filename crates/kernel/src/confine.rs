//! [`confine`] confines the calling process: the process gives up what it does not need before it
//! reads untrusted input. The front process uses it.
//!
//! ```text
//!   limits ─> empty root ─> empty bounding ─> another ─> no capability ─> system calls filtered
//!             folder        set               user
//! ```
//! After [`confine`] the process can use its open descriptors, its memory, and the system calls of
//! one list. It cannot open files, start programs, signal or trace processes, or make sockets
//! except by accepting connections. If the machine does not allow the empty root folder, the empty
//! bounding set or the other user (a container without the capability, for example), [`Confined`]
//! reports that. If any other step fails, [`confine`] fails. Threads that start later are confined
//! too.
//!
//! The order matters. The root folder and the bounding set need capabilities, which the change of
//! the user removes. When the user changes, the kernel clears the parent-death signal and resets
//! "dumpable", so the process sets both after that. [`attempts`] tests the confinement from inside.

mod calls;
mod check;

use std::ffi::CString;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, chroot};
use std::{env, process};

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Gid, Resource, Rlimit, Signal, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, SeccompRule};

pub use check::{Attempt, attempts};

/// The restrictions of a process, as [`confine`] applies them.
#[derive(Clone, Debug)]
pub struct Confinement {
    /// The name of the first thread. The kernel cuts it to 15 bytes.
    pub name: &'static str,
    /// The user id and the group id that the process takes.
    pub user: (u32, u32),
    /// The largest number of open descriptors.
    pub descriptors: u64,
    /// The largest size of the data memory in bytes (`RLIMIT_DATA`).
    pub memory: u64,
}

/// Which of the optional steps of [`confine`] succeeded. A machine may not allow them; without them
/// the process is still confined by the other steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Confined {
    /// Whether the root folder is an empty folder.
    pub empty_root: bool,
    /// Whether the process runs as the given user, and in the given group only.
    pub other_user: bool,
    /// Whether the capability bounding set is empty, so that the process can never regain a
    /// capability.
    pub bounded: bool,
}

/// Confines the calling process, which must have one thread. For the empty root folder, the process
/// makes a folder in its working folder and removes its name.
///
/// # Errors
/// If a step other than those in [`Confined`] fails: for example, capabilities cannot be given up,
/// system calls cannot be filtered, or a limit cannot be set. The process must not continue then.
pub fn confine(to: &Confinement) -> io::Result<Confined> {
    rustix::thread::set_name(&CString::new(to.name)?)?;
    lower_limit(Resource::Core, 0)?;
    lower_limit(Resource::Memlock, 0)?;
    lower_limit(Resource::Nofile, to.descriptors)?;
    lower_limit(Resource::Data, to.memory)?;
    let mut confined = Confined {
        empty_root: empty_root().is_ok(),
        ..Confined::default()
    };
    // Each capability of the kernel; the kernel refuses the first number above them.
    let drop_one = |number: u32| {
        let one = CapabilitySet::from_bits_retain(1 << number);
        rustix::thread::remove_capability_from_bounding_set(one)
    };
    confined.bounded = drop_one(0).is_ok() && (1..64).all(|n| is_dropped_or_unknown(drop_one(n)));
    confined.other_user = become_user(to.user).is_ok();
    drop_capabilities()?;
    rustix::thread::set_no_new_privs(true)?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    for filter in filters()? {
        seccompiler::apply_filter(&filter).map_err(io::Error::other)?;
    }
    Ok(confined)
}

/// Closes all descriptors with the number `first` or above, which a parent process left open by
/// mistake. No object of this process may own one of them.
///
/// # Errors
/// The error of close_range(2), for example ENOSYS before Linux 5.9.
pub fn close_from(first: u32) -> io::Result<()> {
    // rustix has no close_range(2).
    // SAFETY: no pointers. The caller owns none of these descriptors through another object.
    match unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether the capability was dropped, or no capability has this number.
fn is_dropped_or_unknown(dropped: Result<(), Errno>) -> bool {
    matches!(dropped, Ok(()) | Err(Errno::INVAL))
}

/// Lowers the hard limit of a resource and sets the soft limit to it. A hard limit that is already
/// lower stays.
fn lower_limit(which: Resource, most: u64) -> io::Result<()> {
    let had = rustix::process::getrlimit(which).maximum;
    let most = Some(had.map_or(most, |had| had.min(most)));
    let wanted = Rlimit {
        current: most,
        maximum: most,
    };
    Ok(rustix::process::setrlimit(which, wanted)?)
}

/// Makes an empty folder the root. The function makes the folder in the working folder, enters it,
/// and removes its name, so it stays empty.
fn empty_root() -> io::Result<()> {
    let own = format!("front.{}", process::id());
    DirBuilder::new().mode(0o500).create(&own)?;
    let entered = env::set_current_dir(&own);
    let path = match entered {
        Ok(()) => format!("../{own}"),
        Err(_) => own,
    };
    fs::remove_dir(path)?;
    entered?;
    chroot(".")?;
    env::set_current_dir("/")
}

/// Changes the user and the group of the calling thread, which is the only one of its process.
fn become_user((uid, gid): (u32, u32)) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    rustix::thread::set_thread_groups(&[])?;
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    Ok(rustix::thread::set_thread_res_uid(uid, uid, uid)?)
}

/// Gives up all capabilities of the calling thread, also those that remain if the user could not be
/// changed. Fails with the kernel's error.
pub(crate) fn drop_capabilities() -> io::Result<()> {
    // The ambient set (Linux 4.3) is part of the permitted set, so it becomes empty too.
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    Ok(rustix::thread::set_capabilities(None, none)?)
}

/// Two filters; the stricter result applies. A call that is not in the list fails with EPERM.
/// clone3(2) fails with ENOSYS: its flags are in memory, which a filter cannot read, and the C
/// library then uses clone(2).
fn filters() -> io::Result<[BpfProgram; 2]> {
    let compile = |rules, otherwise, listed| -> io::Result<BpfProgram> {
        let arch = std::env::consts::ARCH
            .try_into()
            .map_err(io::Error::other)?;
        let filter =
            SeccompFilter::new(rules, otherwise, listed, arch).map_err(io::Error::other)?;
        BpfProgram::try_from(filter).map_err(io::Error::other)
    };
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let absent = SeccompAction::Errno(libc::ENOSYS as u32);
    let clone3 = [(libc::SYS_clone3, Vec::<SeccompRule>::new())];
    let listed = calls::rules().map_err(io::Error::other)?;
    Ok([
        compile(clone3.into(), SeccompAction::Allow, absent)?,
        compile(listed, refuse, SeccompAction::Allow)?,
    ])
}

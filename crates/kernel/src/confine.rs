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
use std::io;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, SeccompRule};

pub use check::{Attempt, attempts};

/// The restrictions of a process, as [`confine`] applies them.
#[derive(Clone, Debug)]
pub struct Confinement {
    /// The name of its first thread. The kernel cuts it to 15 bytes.
    pub name: &'static str,
    /// The user id and the group id that it takes.
    pub user: (u32, u32),
    /// The largest number of open descriptors.
    pub descriptors: u64,
    /// The largest size of its data memory in bytes (`RLIMIT_DATA`).
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
/// Fails if capabilities cannot be given up, or system calls cannot be filtered, or a limit cannot
/// be set. The process must not continue then.
pub fn confine(to: &Confinement) -> io::Result<Confined> {
    prctl(libc::PR_SET_NAME, c_string(to.name)?.as_ptr() as u64)?;
    lower_limit(libc::RLIMIT_CORE, 0)?;
    lower_limit(libc::RLIMIT_MEMLOCK, 0)?;
    lower_limit(libc::RLIMIT_NOFILE, to.descriptors)?;
    lower_limit(libc::RLIMIT_DATA, to.memory)?;
    let mut confined = Confined {
        empty_root: empty_root().is_ok(),
        ..Confined::default()
    };
    // Each capability of the kernel; the kernel refuses the first number above them.
    let drop_one = |number: u64| prctl(libc::PR_CAPBSET_DROP, number);
    confined.bounded = drop_one(0).is_ok() && (1..64).all(|n| is_dropped_or_unknown(drop_one(n)));
    confined.other_user = become_user(to.user).is_ok();
    drop_capabilities()?;
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1)?;
    prctl(libc::PR_SET_DUMPABLE, 0)?;
    prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as u64)?;
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
    // SAFETY: no pointers. The caller owns none of these descriptors through another object.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) };
    check_result(done as i32)
}

/// Whether the capability was dropped, or no capability has this number.
fn is_dropped_or_unknown(dropped: io::Result<()>) -> bool {
    match dropped {
        Ok(()) => true,
        Err(error) => error.raw_os_error() == Some(libc::EINVAL),
    }
}

fn c_string(text: &str) -> io::Result<CString> {
    CString::new(text).map_err(io::Error::other)
}

/// Lowers a resource limit. A limit that is already lower stays.
fn lower_limit(which: libc::__rlimit_resource_t, most: u64) -> io::Result<()> {
    let mut had = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the buffer is an rlimit.
    check_result(unsafe { libc::getrlimit(which, &mut had) })?;
    let most = most.min(had.rlim_max);
    let wanted = libc::rlimit {
        rlim_cur: most,
        rlim_max: most,
    };
    // SAFETY: as above.
    check_result(unsafe { libc::setrlimit(which, &wanted) })
}

/// Makes an empty folder the root. The function makes the folder in the working folder, enters it,
/// and removes its name, so it stays empty.
fn empty_root() -> io::Result<()> {
    let own = c_string(&format!("front.{}", std::process::id()))?;
    // SAFETY: the strings end with a zero byte.
    unsafe {
        check_result(libc::mkdir(own.as_ptr(), 0o500))?;
        let entered = check_result(libc::chdir(own.as_ptr()));
        let above = c_string(&format!("../front.{}", std::process::id()))?;
        let path = if entered.is_ok() { &above } else { &own };
        check_result(libc::rmdir(path.as_ptr()))?;
        entered?;
        check_result(libc::chroot(c".".as_ptr()))?;
        check_result(libc::chdir(c"/".as_ptr()))
    }
}

fn become_user((uid, gid): (u32, u32)) -> io::Result<()> {
    // SAFETY: the only pointer is that of the empty list.
    unsafe {
        check_result(libc::setgroups(0, std::ptr::null()))?;
        check_result(libc::setresgid(gid, gid, gid))?;
        check_result(libc::setresuid(uid, uid, uid))
    }
}

/// Gives up all capabilities, also those that remain if the user could not be changed.
fn drop_capabilities() -> io::Result<()> {
    // capset(2), version 3: a header of two words, and two records of three words.
    let mut header = [0x2008_0522_u32, 0];
    let mut sets = [0_u32; 6];
    // SAFETY: the buffers have the sizes of version 3.
    let done = unsafe { libc::syscall(libc::SYS_capset, header.as_mut_ptr(), sets.as_mut_ptr()) };
    check_result(done as i32)?;
    // The ambient set (Linux 4.3) is part of the permitted set, so it is empty already.
    Ok(())
}

fn prctl(what: libc::c_int, value: u64) -> io::Result<()> {
    // SAFETY: the callers pass numbers, and in one case a string that ends with a zero byte.
    check_result(unsafe { libc::prctl(what, value, 0_u64, 0_u64, 0_u64) })
}

fn check_result(done: libc::c_int) -> io::Result<()> {
    match done {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
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

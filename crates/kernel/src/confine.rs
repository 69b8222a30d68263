//! Confinement: a process of ours gives up what it does not need before it reads a byte of a stranger.
//!
//! ```text
//!   limits ──> an empty root folder ──> no capability ──> another user ──> system calls filtered
//! ```
//! After [`confine`] the process has what it holds: its open descriptors, its memory, and the system calls of its list.
//! It opens nothing, makes no socket, starts no program, and signals and traces nobody. Each step is tried; one
//! that the machine does not allow (a container without the capability, say) is reported in [`Confined`], except for
//! the filter: without it, [`confine`] fails. Threads that are started later inherit everything.
//!
//! The order matters. The root folder and the bounding set need capabilities, which the change of the user takes away.
//! The kernel clears the signal for the parent's death and sets "dumpable" anew when the user changes, so both come after it.

mod calls;
mod trial;

use std::ffi::CString;
use std::io;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, SeccompRule};

pub use trial::{Trial, trials};

/// What a process is confined to.
#[derive(Clone, Debug)]
pub struct Confinement {
    /// The name of its first thread.
    pub name: &'static str,
    /// The user and the group that it becomes.
    pub user: (u32, u32),
    /// How many descriptors it may have.
    pub descriptors: u64,
    /// How many bytes of memory of its own.
    pub memory: u64,
}

/// What of it is in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Confined {
    /// Its root folder is empty.
    pub empty_root: bool,
    /// It is another user than root, in no group but that user's.
    pub other_user: bool,
    /// It can never have a capability again: the bounding set is empty.
    pub bounded: bool,
}

/// Confines the calling process, which must have one thread.
///
/// # Errors
/// Where capabilities cannot be given up or system calls cannot be filtered. The process must not go on then.
pub fn confine(to: &Confinement) -> io::Result<Confined> {
    prctl(libc::PR_SET_NAME, name(to.name)?.as_ptr() as u64)?;
    limit(libc::RLIMIT_CORE, 0)?;
    limit(libc::RLIMIT_MEMLOCK, 0)?;
    limit(libc::RLIMIT_NOFILE, to.descriptors)?;
    limit(libc::RLIMIT_DATA, to.memory)?;
    let mut confined = Confined {
        empty_root: empty_root().is_ok(),
        ..Confined::default()
    };
    // Each capability that the kernel knows; it refuses the first number above them.
    let drop_one = |number: u64| prctl(libc::PR_CAPBSET_DROP, number);
    confined.bounded = drop_one(0).is_ok() && (1..64).all(|n| is_beyond(drop_one(n)));
    confined.other_user = become_user(to.user).is_ok();
    no_capabilities()?;
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1)?;
    prctl(libc::PR_SET_DUMPABLE, 0)?;
    prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as u64)?;
    for filter in filters()? {
        seccompiler::apply_filter(&filter).map_err(io::Error::other)?;
    }
    Ok(confined)
}

/// Closes all descriptors from `first` on: those that a parent let slip.
pub fn close_from(first: u32) -> io::Result<()> {
    // SAFETY: no pointers. The caller says that it owns none of them.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) };
    ok(done as i32)
}

/// Whether a capability was dropped, or there is none of this number.
fn is_beyond(dropped: io::Result<()>) -> bool {
    match dropped {
        Ok(()) => true,
        Err(error) => error.raw_os_error() == Some(libc::EINVAL),
    }
}

fn name(name: &str) -> io::Result<CString> {
    CString::new(name).map_err(io::Error::other)
}

/// Lowers a limit; one that is lower already stays.
fn limit(which: libc::__rlimit_resource_t, most: u64) -> io::Result<()> {
    let mut had = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the buffer is an rlimit.
    ok(unsafe { libc::getrlimit(which, &mut had) })?;
    let most = most.min(had.rlim_max);
    let wanted = libc::rlimit {
        rlim_cur: most,
        rlim_max: most,
    };
    // SAFETY: as above.
    ok(unsafe { libc::setrlimit(which, &wanted) })
}

/// Makes an unnamed folder in the working folder the root: it is made, entered and removed, so nothing can ever be
/// in it.
fn empty_root() -> io::Result<()> {
    let own = name(&format!("front.{}", std::process::id()))?;
    // SAFETY: strings that end with a zero.
    unsafe {
        ok(libc::mkdir(own.as_ptr(), 0o500))?;
        let entered = ok(libc::chdir(own.as_ptr()));
        let above = name(&format!("../front.{}", std::process::id()))?;
        let path = if entered.is_ok() { &above } else { &own };
        ok(libc::rmdir(path.as_ptr()))?;
        entered?;
        ok(libc::chroot(c".".as_ptr()))?;
        ok(libc::chdir(c"/".as_ptr()))
    }
}

fn become_user((uid, gid): (u32, u32)) -> io::Result<()> {
    // SAFETY: no pointers but the empty list.
    unsafe {
        ok(libc::setgroups(0, std::ptr::null()))?;
        ok(libc::setresgid(gid, gid, gid))?;
        ok(libc::setresuid(uid, uid, uid))
    }
}

/// Gives up all capabilities, also those that stay where the user could not be changed.
fn no_capabilities() -> io::Result<()> {
    // capset(2), version 3: a header of two words, and two records of three.
    let mut header = [0x2008_0522_u32, 0];
    let mut sets = [0_u32; 6];
    // SAFETY: the buffers have the sizes of version 3.
    let done = unsafe { libc::syscall(libc::SYS_capset, header.as_mut_ptr(), sets.as_mut_ptr()) };
    ok(done as i32)?;
    // Kernels have had the ambient set since 4.3; it is part of what is permitted, and so empty already.
    Ok(())
}

fn prctl(what: libc::c_int, value: u64) -> io::Result<()> {
    // SAFETY: the callers pass numbers, and once a string that ends with a zero.
    ok(unsafe { libc::prctl(what, value, 0_u64, 0_u64, 0_u64) })
}

fn ok(done: libc::c_int) -> io::Result<()> {
    match done {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Two filters, of which the stricter answer counts. What is not in the list fails with EPERM. clone3(2) fails with
/// ENOSYS: its flags are in memory, where a filter cannot look, and the C library then uses clone(2).
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
    let listed = calls::listed().map_err(io::Error::other)?;
    Ok([
        compile(clone3.into(), SeccompAction::Allow, absent)?,
        compile(listed, refuse, SeccompAction::Allow)?,
    ])
}

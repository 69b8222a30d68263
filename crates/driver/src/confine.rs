//! Confines the driver process: few rights during set-up, and only the system calls of its work
//! afterwards.
//!
//! The driver shares memory with untrusted programs. The confinement limits the damage by an
//! attacker inside the driver. It is the same for every start as root: by the daemon, by a unit or
//! by hand.
//! ```text
//!   root ─▶ resource limits, the folder of drivers, /dev/cpu_dma_latency
//!     │  become_driver: the drivers' own user, the SETUP capabilities, none can be regained
//!     ▼
//!   driver ─▶ lock, socket, interface, AF_XDP, eBPF, SCHED_FIFO
//!     │  drop_rights, in each thread: no capabilities, only the system calls of its work
//!     ▼
//!   packets · doorbells · control (the threads)
//! ```
//! Afterwards no thread can open a file, signal or trace a process, make a process, or make memory
//! executable; such calls fail with EPERM. If the kernel refuses a step of the confinement, the
//! driver continues, and [`Confinement`] names the step. Only [`folder`] fails: if the folder
//! cannot be made or set up, or belongs to another user.
//!
//! Later work needs no further right: the eBPF program is loaded, and attaching it takes its
//! descriptor; lock and socket are in a folder of the drivers' user; memory files are locked within
//! a limit that was lifted (where it could not be lifted, the threads keep CAP_IPC_LOCK).

mod probe;
mod syscalls;

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use rustix::process::{DumpableBehavior, Gid, Resource, Rlimit, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};

pub(crate) use probe::probe;
pub(crate) use syscalls::Role;

/// The result of confining the driver process. The reply to a `census` request contains its text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Confinement {
    /// The user of the process.
    pub(crate) user: String,
    /// Threads keep CAP_IPC_LOCK, since the limit on locked memory could not be lifted.
    pub(crate) keeps_ipc_lock: bool,
    /// Steps of the confinement that failed, as text for people.
    pub(crate) failed_steps: Vec<String>,
}

impl Confinement {
    /// The confinement in one line.
    pub(crate) fn text(&self) -> String {
        let rights = match self.keeps_ipc_lock {
            false => "no capability",
            true => "no capability but CAP_IPC_LOCK",
        };
        let failed = match self.failed_steps.is_empty() {
            true => String::new(),
            false => format!("; failed: {}", self.failed_steps.join(", ")),
        };
        let user = &self.user;
        format!("user {user}, {rights}, few system calls in each thread{failed}")
    }

    /// Records a step that failed; does nothing for a step that succeeded.
    pub(crate) fn record<T>(&mut self, what: &str, done: io::Result<T>) {
        if let Err(why) = done {
            tracing::warn!(%why, "cannot confine the driver fully: {what}");
            self.failed_steps.push(format!("{what} ({why})"));
        }
    }
}

/// A user and its group.
struct User {
    uid: u32,
    gid: u32,
    name: String,
}

impl User {
    /// The user `netnice-driver`, or `nobody` if there is none.
    fn own() -> User {
        let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
        User::in_passwd(&users).unwrap_or(User {
            uid: NOBODY,
            gid: NOBODY,
            name: NOBODY.to_string(),
        })
    }

    fn in_passwd(users: &str) -> Option<User> {
        users.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next().filter(|name| *name == USER_NAME)?;
            let mut numbers = fields.skip(1).map(str::parse);
            let (uid, gid) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
            Some(User {
                uid,
                gid,
                name: format!("{name} ({uid})"),
            })
        })
    }
}

/// Makes the folder of the drivers' locks and sockets, with access for the drivers' user only.
///
/// # Errors
/// If the folder cannot be made, its mode cannot be set, or the path exists and is no folder of
/// this process's user or of the drivers' user.
pub(crate) fn folder(path: &Path) -> io::Result<()> {
    let user = User::own();
    if let Err(why) = fs::create_dir(path)
        && why.kind() != io::ErrorKind::AlreadyExists
    {
        return Err(why);
    }
    let metadata = fs::symlink_metadata(path)?;
    let own = rustix::process::geteuid();
    if !metadata.is_dir() || ![own.as_raw(), user.uid].contains(&metadata.uid()) {
        return Err(io::Error::other(format!(
            "it is not a folder that belongs to user {} or {}",
            own.as_raw(),
            user.name
        )));
    }
    if own.is_root() {
        // Without CAP_CHOWN this fails and the folder stays root's.
        let _ = chown(path, Some(user.uid), Some(user.gid));
    }
    fs::set_permissions(path, Permissions::from_mode(0o700))
}

/// Switches to the drivers' user with the capabilities that set-up needs, for this thread and the
/// threads that it starts. A process that is not root's keeps its user. The result names the steps
/// that failed.
pub(crate) fn become_driver() -> Confinement {
    let mut confinement = Confinement::default();
    let root = rustix::process::geteuid().is_root();
    // First: this needs CAP_SYS_RESOURCE, which the process gives up below.
    let lifted = rustix::process::setrlimit(Resource::Memlock, UNLIMITED);
    let has = rustix::thread::capabilities(None);
    let has = has.map_or(CapabilitySet::empty(), |sets| sets.permitted);
    if root {
        // Before CAP_SETPCAP is gone. The kernel refuses numbers that are no capability.
        for number in 0..CAPABILITIES {
            if let Some(one) = CapabilitySet::from_bits(1 << number) {
                let _ = rustix::thread::remove_capability_from_bounding_set(one);
            }
        }
        let user = User::own();
        confinement.record("another user", switch_user(&user));
        confinement.user = match rustix::process::geteuid().as_raw() {
            uid if uid == user.uid => user.name,
            uid => uid.to_string(),
        };
    } else {
        confinement.user = rustix::process::geteuid().as_raw().to_string();
    }
    let setup = has & SETUP;
    confinement.record("fewer capabilities", keep_capabilities(setup));
    confinement.record(
        "no_new_privs",
        rustix::thread::set_no_new_privs(true).map_err(io::Error::from),
    );
    let hidden = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
    confinement.record("not dumpable", hidden.map_err(io::Error::from));
    confinement.keeps_ipc_lock = lifted.is_err() && setup.contains(CapabilitySet::IPC_LOCK);
    confinement
}

fn switch_user(user: &User) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    rustix::thread::set_keep_capabilities(true)?;
    rustix::thread::set_thread_groups(&[])?;
    // This affects only this thread and the threads that it starts. No other thread exists yet.
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    rustix::thread::set_keep_capabilities(false)?;
    Ok(())
}

/// Gives up the rights that this thread does not need for its work.
///
/// # Errors
/// If a right cannot be given up; the thread can continue with it.
pub(crate) fn drop_rights(role: Role) -> io::Result<()> {
    // The thread locks the memory that it allocates. Without a lifted limit this needs
    // CAP_IPC_LOCK.
    let limit = rustix::process::getrlimit(Resource::Memlock);
    let kept = match limit.current {
        None => CapabilitySet::empty(),
        Some(_) => CapabilitySet::IPC_LOCK,
    };
    let has = rustix::thread::capabilities(None)?.permitted;
    keep_capabilities(has & kept)?;
    syscalls::filter(role)
}

fn keep_capabilities(kept: CapabilitySet) -> io::Result<()> {
    Ok(rustix::thread::set_capabilities(
        None,
        CapabilitySets {
            effective: kept,
            permitted: kept,
            inheritable: CapabilitySet::empty(),
        },
    )?)
}

/// Capabilities for set-up: raw and AF_XDP sockets, the interface, eBPF (the verifier accepts
/// pointers only with CAP_PERFMON), SCHED_FIFO, locked memory.
const SETUP: CapabilitySet = CapabilitySet::NET_RAW
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::SYS_NICE)
    .union(CapabilitySet::IPC_LOCK);
const UNLIMITED: Rlimit = Rlimit {
    current: None,
    maximum: None,
};
/// Linux has 41 capabilities, and no capability has a number above 63.
const CAPABILITIES: u32 = 64;
const USER_NAME: &str = "netnice-driver";
const NOBODY: u32 = 65_534;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_user_is_found_in_passwd_by_its_name() {
        let users = "root:x:0:0:root:/root:/bin/sh\nnetnice-driver2:x:7:7::/:\n\
                     netnice-driver:x:998:997::/nonexistent:/usr/sbin/nologin\n";
        let user = User::in_passwd(users).unwrap();
        assert_eq!((user.uid, user.gid), (998, 997));
        assert_eq!(user.name, "netnice-driver (998)");
        assert!(User::in_passwd("netnice-driver:x:many:997::/:\n").is_none());
        assert!(User::in_passwd("").is_none());
    }
}

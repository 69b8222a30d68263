//! What the driver may do: little while it sets up, and nothing but its work afterwards.
//!
//! It shares memory with strangers, so whoever takes it over shall find nothing to go on with. That holds however it is started, by the
//! daemon, by a unit or by hand.
//! ```text
//!   root ─▶ resource limits, the folder of drivers, /dev/cpu_dma_latency
//!     │  [`become_driver`]: a user of its own, SETUP capabilities, no way back to others
//!     ▼
//!   driver ─▶ lock, socket, interface, AF_XDP, eBPF, SCHED_FIFO
//!     │  [`settle`], in each thread: no capabilities, the calls that its work consists of
//!     ▼
//!   packets · bells · control
//! ```
//! Afterwards no thread can open a file, signal or trace a process, make a process, or make memory executable; such calls fail with EPERM.
//! What is needed later needs no right any more: the eBPF program is loaded, and to attach it takes its descriptor; a memory file is locked
//! in memory within a limit that was lifted; lock and socket are in a folder of the driver's own user.

mod calls;
mod tried;

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use rustix::process::{DumpableBehavior, Gid, Resource, Rlimit, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};

pub use calls::Role;
pub use tried::tried;

/// How far the driver is confined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Confinement {
    /// The user that it runs as.
    pub user: String,
    /// Threads keep CAP_IPC_LOCK, since the limit on locked memory could not be lifted.
    pub locks: bool,
    /// What could not be had, for people.
    pub lacks: Vec<String>,
}

impl Confinement {
    /// In one line.
    pub fn text(&self) -> String {
        let rights = match self.locks {
            false => "no capability",
            true => "no capability but CAP_IPC_LOCK",
        };
        let lacks = match self.lacks.is_empty() {
            true => String::new(),
            false => format!("; but not: {}", self.lacks.join(", ")),
        };
        let user = &self.user;
        format!("user {user}, {rights}, few system calls in each thread{lacks}")
    }

    /// Something could not be had.
    pub fn lack<T>(&mut self, what: &str, done: io::Result<T>) {
        if let Err(why) = done {
            tracing::warn!(%why, "{what} cannot be had");
            self.lacks.push(format!("{what} ({why})"));
        }
    }
}

/// A user, and its group.
struct User {
    uid: u32,
    gid: u32,
    name: String,
}

impl User {
    /// The driver's own, else the one that has nothing.
    fn own() -> User {
        let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
        User::found(&users).unwrap_or(User {
            uid: NOBODY,
            gid: NOBODY,
            name: NOBODY.to_string(),
        })
    }

    fn found(users: &str) -> Option<User> {
        users.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next().filter(|name| *name == NAME)?;
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

/// The folder in which drivers have their locks and sockets: it is theirs, and nobody else's to write to or to look into.
///
/// # Errors
/// If it cannot be made, or is no folder of root's or of the driver's.
pub fn folder(path: &Path) -> io::Result<()> {
    let user = User::own();
    if let Err(why) = fs::create_dir(path)
        && why.kind() != io::ErrorKind::AlreadyExists
    {
        return Err(why);
    }
    let there = fs::symlink_metadata(path)?;
    let own = rustix::process::geteuid();
    if !there.is_dir() || ![own.as_raw(), user.uid].contains(&there.uid()) {
        return Err(io::Error::other(format!(
            "it is no folder of user {} or {}",
            own.as_raw(),
            user.name
        )));
    }
    if own.is_root() {
        // Without the right to it stays root's, as the process does.
        let _ = chown(path, Some(user.uid), Some(user.gid));
    }
    fs::set_permissions(path, Permissions::from_mode(0o700))
}

/// Goes on as a user of its own with the rights that set-up takes, in all that this thread and those that it makes do. A process
/// that is not root's keeps its user.
pub fn become_driver() -> Confinement {
    let mut confinement = Confinement::default();
    let root = rustix::process::geteuid().is_root();
    // The limit is the user's, and the next one has less right to lift it.
    let lifted = rustix::process::setrlimit(Resource::Memlock, UNLIMITED);
    let has = rustix::thread::capabilities(None);
    let has = has.map_or(CapabilitySet::empty(), |sets| sets.permitted);
    if root {
        // Before CAP_SETPCAP is gone. What it does not have it need not give up.
        for number in 0..CAPABILITIES {
            if let Some(one) = CapabilitySet::from_bits(1 << number) {
                let _ = rustix::thread::remove_capability_from_bounding_set(one);
            }
        }
        let user = User::own();
        confinement.lack("another user", another_user(&user));
        confinement.user = match rustix::process::geteuid().as_raw() {
            uid if uid == user.uid => user.name,
            uid => uid.to_string(),
        };
    } else {
        confinement.user = rustix::process::geteuid().as_raw().to_string();
    }
    let setup = has & SETUP;
    confinement.lack("fewer capabilities", keep_capabilities(setup));
    confinement.lack(
        "no_new_privs",
        rustix::thread::set_no_new_privs(true).map_err(io::Error::from),
    );
    let hidden = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
    confinement.lack("not dumpable", hidden.map_err(io::Error::from));
    confinement.locks = lifted.is_err() && setup.contains(CapabilitySet::IPC_LOCK);
    confinement
}

fn another_user(user: &User) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    rustix::thread::set_keep_capabilities(true)?;
    rustix::thread::set_thread_groups(&[])?;
    // Of this thread alone, and of those that it makes: there is no other yet.
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    rustix::thread::set_keep_capabilities(false)?;
    Ok(())
}

/// Gives up what this thread does not need for its work from now on.
///
/// # Errors
/// What cannot be given up; the thread goes on with it.
pub fn settle(role: Role) -> io::Result<()> {
    // Memory that it allocates is locked: without the limit lifted that takes the right to.
    let limit = rustix::process::getrlimit(Resource::Memlock);
    let kept = match limit.current {
        None => CapabilitySet::empty(),
        Some(_) => CapabilitySet::IPC_LOCK,
    };
    let has = rustix::thread::capabilities(None)?.permitted;
    keep_capabilities(has & kept)?;
    calls::filter(role)
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

/// What set-up takes: raw and AF_XDP sockets, the interface, eBPF (the verifier believes in pointers only with CAP_PERFMON), SCHED_FIFO,
/// memory that stays.
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
/// Linux has 41 of them, and none has a number above 63.
const CAPABILITIES: u32 = 64;
const NAME: &str = "netnice-driver";
const NOBODY: u32 = 65_534;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_own_user_is_found_by_its_name() {
        let users = "root:x:0:0:root:/root:/bin/sh\nnetnice-driver2:x:7:7::/:\n\
                     netnice-driver:x:998:997::/nonexistent:/usr/sbin/nologin\n";
        let user = User::found(users).unwrap();
        assert_eq!((user.uid, user.gid), (998, 997));
        assert_eq!(user.name, "netnice-driver (998)");
        assert!(User::found("netnice-driver:x:many:997::/:\n").is_none());
        assert!(User::found("").is_none());
    }
}

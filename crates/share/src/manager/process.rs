//! Reads which processes a target has ([`Processes`]), and their parents, children, users, names
//! and whether they listen, from /proc, pidfds and the cgroup tree. Changes nothing. What cannot be
//! read, for example because a process has ended, is left out; no error is reported.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use netnice_api::Found;
use rustix::net::sockopt;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// Access to processes; tests have a fake.
pub(super) trait Processes {
    /// The processes of a target. For [`Found::Processes`] only the named processes,
    /// without their descendants.
    fn members(&self, of: &Found) -> Vec<u32>;
    /// The parent of a process; `None` if the process has ended.
    fn parent(&self, pid: u32) -> Option<u32>;
    /// The children of a process; none if it has ended.
    fn children(&self, pid: u32) -> Vec<u32>;
    /// True if a process has a socket that listens for connections from the network. False if the
    /// caller may not read its descriptors.
    fn listens(&self, pid: u32) -> bool;
    /// The id of the real user of a process; `None` if the process has ended.
    fn user(&self, pid: u32) -> Option<u32>;
    /// The command name of a process; `None` if the process has ended.
    fn name(&self, pid: u32) -> Option<String>;
}

/// The processes of this machine.
pub(super) struct ProcFs;

impl Processes for ProcFs {
    fn members(&self, of: &Found) -> Vec<u32> {
        match of {
            Found::Processes(named) => named.clone(),
            Found::Cgroup(path) => {
                let folder = cgroup_root().map(|root| root.join(path.trim_start_matches('/')));
                folder.map_or_else(Vec::new, |folder| cgroup_pids(&folder))
            }
            Found::App(path) => {
                let Some(file) = file_id(Path::new(path)) else {
                    return Vec::new();
                };
                let runs = |pid: &u32| file_id(&proc_path(*pid, "exe")) == Some(file);
                all_pids().into_iter().filter(runs).collect()
            }
            Found::User(uid) => {
                let theirs = |pid: &u32| self.user(*pid) == Some(*uid);
                all_pids().into_iter().filter(theirs).collect()
            }
        }
    }

    fn parent(&self, pid: u32) -> Option<u32> {
        status_number(pid, "PPid:")
    }

    fn children(&self, pid: u32) -> Vec<u32> {
        let Ok(threads) = fs::read_dir(proc_path(pid, "task")) else {
            return Vec::new();
        };
        let mut children = Vec::new();
        for thread in threads.flatten() {
            let Ok(text) = fs::read_to_string(thread.path().join("children")) else {
                // The kernel does not list children (no CONFIG_PROC_CHILDREN), or the thread has
                // just ended.
                return all_pids()
                    .into_iter()
                    .filter(|p| self.parent(*p) == Some(pid))
                    .collect();
            };
            children.extend(
                text.split_whitespace()
                    .filter_map(|word| word.parse::<u32>().ok()),
            );
        }
        children
    }

    fn listens(&self, pid: u32) -> bool {
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let Some(Ok(process)) = raw.map(|raw| pidfd_open(raw, PidfdFlags::empty())) else {
            return false;
        };
        let Ok(entries) = fs::read_dir(proc_path(pid, "fd")) else {
            return false;
        };
        entries.flatten().any(|one| {
            let is_socket = fs::read_link(one.path())
                .is_ok_and(|link| link.to_string_lossy().starts_with("socket:["));
            let number = one.file_name().to_string_lossy().parse();
            let (true, Ok(number)) = (is_socket, number) else {
                return false;
            };
            pidfd_getfd(process.as_fd(), number, PidfdGetfdFlags::empty())
                .is_ok_and(|socket| is_listener(socket.as_fd()))
        })
    }

    fn user(&self, pid: u32) -> Option<u32> {
        status_number(pid, "Uid:")
    }

    fn name(&self, pid: u32) -> Option<String> {
        let name = read_text(&proc_path(pid, "comm"))?;
        Some(name.trim_end().to_string())
    }
}

/// True if a socket listens for connections from the network.
fn is_listener(socket: std::os::fd::BorrowedFd<'_>) -> bool {
    use rustix::net::AddressFamily;
    let family = sockopt::socket_domain(socket);
    let internet = matches!(family, Ok(AddressFamily::INET | AddressFamily::INET6));
    internet && sockopt::socket_acceptconn(socket).unwrap_or(false)
}

/// A file of /proc as text. Names in it need not be valid UTF-8.
fn read_text(path: &Path) -> Option<String> {
    let bytes = fs::read(path).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn proc_path(pid: u32, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/{name}"))
}

/// The first number in a line of /proc/PID/status.
fn status_number(pid: u32, name: &str) -> Option<u32> {
    let status = read_text(&proc_path(pid, "status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

fn all_pids() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// Device and inode of the file at a path.
fn file_id(path: &Path) -> Option<(u64, u64)> {
    let file = fs::metadata(path).ok()?;
    Some((file.dev(), file.ino()))
}

/// The mount point of the cgroup2 tree: the fifth field of the line with that type in
/// proc_pid_mountinfo(5).
fn cgroup_root() -> Option<PathBuf> {
    let mounts = read_text(Path::new("/proc/self/mountinfo"))?;
    mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let is_ours = right.split(' ').next()? == "cgroup2";
        let mount = left.split(' ').nth(4)?;
        is_ours.then(|| PathBuf::from(mount))
    })
}

/// The processes of a cgroup and of all cgroups below it.
fn cgroup_pids(folder: &Path) -> Vec<u32> {
    let listed = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    let mut found: Vec<u32> = listed
        .lines()
        .filter_map(|line| line.parse().ok())
        .collect();
    for below in fs::read_dir(folder).into_iter().flatten().flatten() {
        if below.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(cgroup_pids(&below.path()));
        }
    }
    found
}

//! Finds and removes all objects that one process of the lab has made, by name alone.
//!
//! All names begin with `nn-<pid>-`: namespaces under /run/netns, folders in the temporary folder,
//! cgroups at the root of the cgroup v2 tree. The same code therefore serves a start (names of dead
//! processes), a signal (this process's names) and a guard (one name).
//!
//! The order matters. First the daemons are requested to clear. Then, for each namespace, its
//! processes are killed and the namespace is removed (with its links, queues and filters). Then the
//! folders are removed, after everything mounted below them is unmounted: a bpffs in a runtime
//! folder has the last references to pinned programs. Cgroups come last.
//!
//! [`begin`] fails if its thread cannot start, and the lock of the machine's settings if the folder
//! of namespaces cannot be opened or locked. What cannot be removed stays, without an error.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::fs::FlockOperation;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::{process, sys};

/// Removes the objects of dead processes, and starts a thread that waits for SIGINT, SIGTERM and
/// SIGHUP. At the first of them the thread removes all objects of this process and ends the process
/// with the status 128 + the signal's number. Call it first; further calls do nothing. Fails if the
/// thread cannot start; the next call tries again. An object that cannot be removed is no failure.
pub fn begin() -> Result<()> {
    static BEGUN: Mutex<bool> = Mutex::new(false);
    begin_unless(&BEGUN, begin_once)
}

/// Calls `begin` unless `begun` is set, and sets `begun` if the call succeeds.
fn begin_unless(begun: &Mutex<bool>, begin: impl FnOnce() -> Result<()>) -> Result<()> {
    let mut begun = begun.lock().unwrap_or_else(PoisonError::into_inner);
    if !*begun {
        begin()?;
        *begun = true;
    }
    Ok(())
}

fn begin_once() -> Result<()> {
    // The signal may go to any thread: a test program has threads that are older than this one.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot wait for signals")?;
    std::thread::Builder::new()
        .name("reaper".into())
        .spawn(move || {
            if let Some(signal) = signals.forever().next() {
                eprintln!("netnice-lab: signal {signal}, cleaning up");
                sweep(std::process::id());
                // Another thread may be about to restore a setting of the machine: its lock is free
                // when it has done so.
                let _lock = lock_machine_settings();
                std::process::exit(128 + signal);
            }
        })
        .context("cannot start the reaper thread")?;
    for pid in owners() {
        if pid != std::process::id() && !sys::is_alive(pid) {
            sweep(pid);
        }
    }
    Ok(())
}

/// Waits until no thread and no process of the lab is changing a setting of the whole machine. None
/// can begin to while the returned file is open. Fails if the folder of namespaces cannot be opened
/// or locked.
pub(super) fn lock_machine_settings() -> Result<File> {
    let lock = File::open(NETNS)?;
    rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
    Ok(lock)
}

/// Removes everything that process `pid` has made.
pub(crate) fn sweep(pid: u32) {
    let prefix = format!("nn-{pid}-");
    let own = |name: &String| name.starts_with(&prefix);
    for folder in names_in(&std::env::temp_dir()).iter().filter(|n| own(n)) {
        ask_to_clear(&std::env::temp_dir().join(folder));
    }
    for name in names_in(Path::new(NETNS)).iter().filter(|n| own(n)) {
        remove_netns(name);
    }
    for folder in names_in(&std::env::temp_dir()).iter().filter(|n| own(n)) {
        remove_folder(&std::env::temp_dir().join(folder));
    }
    if let Some(root) = cgroup_root() {
        for name in names_in(&root).iter().filter(|n| own(n)) {
            remove_cgroup(&root.join(name));
        }
    }
}

/// Every process that owns an object in the places that [`sweep`] searches.
fn owners() -> Vec<u32> {
    let mut places = vec![PathBuf::from(NETNS), std::env::temp_dir()];
    places.extend(cgroup_root());
    let mut pids: Vec<u32> = places
        .iter()
        .flat_map(|place| names_in(place))
        .filter_map(|name| {
            let (pid, _) = name.strip_prefix("nn-")?.split_once('-')?;
            pid.parse().ok()
        })
        .collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

/// Runs `netnice clear --all` for the daemons with runtime folders in `folder`.
fn ask_to_clear(folder: &Path) {
    let Ok(netnice) = process::binary("netnice") else {
        return;
    };
    for runtime in names_in(folder) {
        let runtime = folder.join(runtime);
        if !runtime.is_dir() || !runtime.join(SOCKET).exists() {
            continue;
        }
        let child = Command::new(&netnice)
            .arg("--runtime-dir")
            .arg(&runtime)
            .args(["clear", "--all"])
            .env("NETNICE_RUNTIME_DIR", &runtime)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut child) = child else { continue };
        let until = Instant::now() + CLEANUP_TIMEOUT;
        while matches!(child.try_wait(), Ok(None)) {
            if Instant::now() > until {
                let _ = child.kill();
                let _ = child.wait();
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Kills every process inside the namespace except this one, and removes the namespace; does
/// nothing if the name does not exist.
pub(crate) fn remove_netns(name: &str) {
    let path = netns_path(name);
    if !path.exists() {
        return;
    }
    let until = Instant::now() + CLEANUP_TIMEOUT;
    loop {
        let pids = pids_in(&path);
        if pids.is_empty() || Instant::now() > until {
            break;
        }
        for pid in pids {
            let _ = sys::kill(pid as i32, libc::SIGKILL);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    if let Err(e) = process::run(Command::new("ip").args(["netns", "delete", name]))
        && path.exists()
    {
        eprintln!("netnice-lab: {e:#}");
    }
}

/// The processes in the network namespace at `path`, except this process.
pub(crate) fn pids_in(path: &Path) -> Vec<u32> {
    let Ok(wanted) = fs::metadata(path) else {
        return Vec::new();
    };
    names_in(Path::new("/proc"))
        .iter()
        .filter_map(|name| name.parse::<u32>().ok())
        .filter(|pid| *pid != std::process::id())
        .filter(|pid| {
            fs::metadata(format!("/proc/{pid}/ns/net"))
                .is_ok_and(|m| m.ino() == wanted.ino() && m.dev() == wanted.dev())
        })
        .collect()
}

/// Unmounts everything below `folder`, and removes the folder.
pub(crate) fn remove_folder(folder: &Path) {
    for mount in mounts_below(folder) {
        let _ = process::run(Command::new("umount").arg("-l").arg(&mount));
    }
    match fs::remove_dir_all(folder) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            eprintln!("netnice-lab: cannot remove {}: {e}", folder.display());
        }
        _ => {}
    }
}

/// Kills the processes of a cgroup and of those below it, and removes these cgroups.
pub(crate) fn remove_cgroup(path: &Path) {
    for name in names_in(path) {
        let below = path.join(name);
        if below.is_dir() {
            remove_cgroup(&below);
        }
    }
    let until = Instant::now() + CLEANUP_TIMEOUT;
    while fs::remove_dir(path).is_err() && path.exists() && Instant::now() < until {
        for pid in fs::read_to_string(path.join("cgroup.procs"))
            .unwrap_or_default()
            .lines()
            .filter_map(|l| l.parse().ok())
        {
            let _ = sys::kill(pid, libc::SIGKILL);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The mount point of the cgroup v2 tree; `None` if it is not mounted.
pub(crate) fn cgroup_root() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let (at, kind) = (fields.nth(1)?, fields.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(at))
    })
}

/// Mount points at or below `folder`, deepest first.
pub(crate) fn mounts_below(folder: &Path) -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mut found: Vec<PathBuf> = mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(1).map(PathBuf::from))
        .filter(|at| at.starts_with(folder))
        .collect();
    found.sort_by_key(|at| std::cmp::Reverse(at.components().count()));
    found
}

/// The path of a named namespace.
pub(crate) fn netns_path(name: &str) -> PathBuf {
    Path::new(NETNS).join(name)
}

fn names_in(folder: &Path) -> Vec<String> {
    fs::read_dir(folder).map_or_else(
        |_| Vec::new(),
        |entries| {
            entries
                .filter_map(|e| Some(e.ok()?.file_name().to_string_lossy().into_owned()))
                .collect()
        },
    )
}

/// The folder in which iproute2 keeps named namespaces.
pub(super) const NETNS: &str = "/run/netns";
/// The daemon's socket inside its runtime folder.
const SOCKET: &str = "netnice.sock";
/// Time limit for a daemon to clear and for processes to end.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn a_failed_begin_is_tried_again_and_a_successful_one_is_not() {
        let begun = Mutex::new(false);
        for _ in 0..2 {
            assert!(begin_unless(&begun, || bail!("no thread")).is_err());
        }
        begin_unless(&begun, || Ok(())).expect("it succeeds");
        begin_unless(&begun, || bail!("called again")).expect("it is not called");
    }
}

//! Makes cgroups in the cgroup v2 tree, as a service manager makes them for slices and units, and
//! removes them. Making one fails without that tree, without root, or if there is one of that name.
//! Moving a process fails if there is no such process or if the kernel refuses the move. What
//! cannot be removed stays, without an error.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

use super::cleanup;

/// A cgroup. Dropping this value kills every process in it and in the cgroups below, and removes
/// them all.
pub struct Cgroup {
    folder: PathBuf,
    path: String,
}

impl Cgroup {
    /// Makes `nn-<pid>-<number>-<name>` at the top of the cgroup v2 tree. Fails without that tree
    /// or without root.
    pub fn create(name: &str) -> Result<Cgroup> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = cleanup::cgroup_root().context("no cgroup v2 tree is mounted")?;
        let name = format!("nn-{}-{number}-{name}", std::process::id());
        Cgroup::make(&root, &format!("/{name}"))
    }

    /// Makes a cgroup of this name below this one. Fails if there is one, or without root.
    pub fn below(&self, name: &str) -> Result<Cgroup> {
        let root = self.root();
        Cgroup::make(&root, &format!("{}/{name}", self.path))
    }

    fn make(root: &Path, path: &str) -> Result<Cgroup> {
        let folder = root.join(path.trim_start_matches('/'));
        fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(Cgroup {
            folder,
            path: path.to_owned(),
        })
    }

    /// Kills the processes of the cgroup and of those below it, removes these cgroups, and makes
    /// one of the same name, which has another id in the kernel. Fails if it cannot be made.
    pub fn recreate(&self) -> Result<()> {
        cleanup::remove_cgroup(&self.folder);
        fs::create_dir(&self.folder)
            .with_context(|| format!("cannot make {} anew", self.folder.display()))
    }

    /// The path of the cgroup below the root of the tree, as in `cgroup:/…`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The last part of the path, as in `unit:…`.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// Moves a process into the cgroup. The process's open sockets stay in the cgroup in which they
    /// were made. Fails if there is no such process, or if the kernel refuses the move.
    pub fn add_process(&self, pid: u32) -> Result<()> {
        fs::write(self.procs(), pid.to_string())
            .with_context(|| format!("cannot move process {pid} into {}", self.path))
    }

    /// The file `cgroup.procs`. A process that writes `0` to it enters the cgroup before it makes
    /// sockets.
    pub fn procs(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }

    fn root(&self) -> PathBuf {
        let depth = self.path.trim_matches('/').split('/').count();
        let mut root = self.folder.clone();
        for _ in 0..depth {
            root.pop();
        }
        root
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        cleanup::remove_cgroup(&self.folder);
    }
}

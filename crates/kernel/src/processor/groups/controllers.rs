//! The controller `cpu` of version 2 of control groups: a group has it only if all groups around it
//! pass it on. A group that does divides its processors among the groups in it, by their weights.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::{Groups, Home, Place, below};
use crate::error::KernelError;
use crate::process::read_text;

impl Groups {
    /// The groups that do not pass the controller `cpu` on, and must for a group of processes of
    /// this home: their paths, outermost first. None with version 1.
    pub fn lacking(&self, home: &Home) -> Vec<String> {
        let Place::Two { root } = &self.place else {
            return Vec::new();
        };
        let mut path = PathBuf::from("/");
        let parts = home.cpu.split('/').filter(|part| !part.is_empty());
        let mut around = vec![path.clone()];
        around.extend(parts.map(|part| {
            path.push(part);
            path.clone()
        }));
        let paths = around.iter().filter_map(|path| path.to_str());
        let lacking = paths.filter(|path| !passes_on(&below(root, path)));
        lacking.map(str::to_owned).collect()
    }

    /// Lets a group of [`Groups::lacking`] no longer pass `cpu` on. No effect if a group in it has
    /// a weight or a quota, or passes `cpu` on itself: then somebody else uses the controller by
    /// now. No effect with version 1, or if the group is gone.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn stop_passing_on(&self, path: &str) -> Result<(), KernelError> {
        let Place::Two { root } = &self.place else {
            return Ok(());
        };
        let folder = below(root, path);
        let inner = fs::read_dir(&folder).into_iter().flatten().flatten();
        if inner
            .map(|entry| entry.path())
            .any(|inner| uses_cpu(&inner))
            || !passes_on(&folder)
        {
            return Ok(());
        }
        let file = folder.join(SUBTREE);
        match fs::write(&file, "-cpu") {
            // A group in it passes `cpu` on since a moment.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) => Ok(()),
            written => written.map_err(KernelError::file("disable the controller cpu in", file)),
        }
    }
}

/// True if a group contains a group, or is the same: both by their paths.
pub fn is_around(path: &str, inner: &str) -> bool {
    Path::new(inner).starts_with(path)
}

/// True if a group of version 2 passes the controller `cpu` on to the groups in it, or is gone.
fn passes_on(folder: &Path) -> bool {
    match read_text(folder.join(SUBTREE)) {
        Ok(text) => text.split_whitespace().any(|one| one == "cpu"),
        Err(_) => true,
    }
}

/// Lets a group of version 2 pass the controller `cpu` on.
pub(super) fn pass_on(folder: &Path) -> Result<(), KernelError> {
    let file = folder.join(SUBTREE);
    fs::write(&file, "+cpu").map_err(KernelError::file("enable the controller cpu in", file))
}

/// True if a group of version 2 has another weight or quota than a new one, or passes `cpu` on.
fn uses_cpu(folder: &Path) -> bool {
    let differs = |file: &str, usual: &str| {
        read_text(folder.join(file)).is_ok_and(|text| !text.trim().starts_with(usual))
    };
    let weight = read_text(folder.join("cpu.weight"));
    weight.is_ok_and(|text| text.trim() != "100")
        || differs("cpu.max", "max")
        || differs("cpu.idle", "0")
        || (folder.join(SUBTREE).exists() && passes_on(folder))
}

/// The file of version 2 with the controllers that a group passes on.
const SUBTREE: &str = "cgroup.subtree_control";

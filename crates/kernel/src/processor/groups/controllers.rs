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

/// What a group is certain of, by the weights of the groups beside it and around it.
#[derive(Clone, Debug, PartialEq)]
pub struct CertainShare {
    /// The part of each processor that the group has at least if all of those are busy. Threads
    /// beside these groups are not counted.
    pub part: f64,
    /// The group with the smallest part at its level, its weight, and that of all groups with
    /// processes at that level, itself included.
    pub narrowest: (String, u64, u64),
}

impl Groups {
    /// What a group of netnice's own is certain of; `None` if it does not exist.
    pub fn certain_share(&self, name: &str, home: &Home) -> Option<CertainShare> {
        let group = self.group(name, home);
        let (root, file) = match &self.place {
            Place::One { cpu, .. } => (cpu, "cpu.shares"),
            Place::Two { root } => (root, "cpu.weight"),
        };
        let weight = |folder: &Path| -> Option<u64> {
            read_text(folder.join(file)).ok()?.trim().parse().ok()
        };
        let (mut part, mut narrowest) = (1.0, None);
        let around = group.cpu.ancestors();
        for folder in around.take_while(|folder| *folder != root.as_path()) {
            // A group without the controller is no part of the division.
            let (Some(own), Some(outer)) = (weight(folder), folder.parent()) else {
                continue;
            };
            let inner = fs::read_dir(outer).into_iter().flatten().flatten();
            let others = inner
                .map(|entry| entry.path())
                .filter(|beside| beside != folder && has_processes(beside));
            let sum = own + others.filter_map(|beside| weight(&beside)).sum::<u64>();
            let here = own as f64 / sum.max(1) as f64;
            part *= here;
            if narrowest.as_ref().is_none_or(|(least, _)| here < *least) {
                let path = folder.strip_prefix(root).unwrap_or(folder);
                narrowest = Some((here, (format!("/{}", path.display()), own, sum)));
            }
        }
        let (_, narrowest) = narrowest?;
        Some(CertainShare { part, narrowest })
    }
}

/// True if a group has processes, as far as that can be seen: version 1 shows only its own.
fn has_processes(folder: &Path) -> bool {
    match read_text(folder.join("cgroup.events")) {
        Ok(events) => events.lines().any(|line| line == "populated 1"),
        Err(_) => read_text(folder.join("tasks")).is_ok_and(|tasks| !tasks.is_empty()),
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

//! Control groups (version 2): where they are mounted, their ids, and the paths of units.

use std::{
    collections::BTreeSet,
    ffi::CString,
    fs,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use crate::{abi, error::KernelError};

/// Where the unified hierarchy is mounted.
pub fn root() -> Result<PathBuf, KernelError> {
    let path = "/proc/self/mountinfo";
    let mounts =
        fs::read_to_string(path).map_err(KernelError::file("find the cgroup2 mount", path))?;
    mounts
        .lines()
        .find_map(mount_of_cgroup2)
        .ok_or(KernelError::Missing {
            what: "cgroup2 mount",
            hint: "mount it: `mount -t cgroup2 none /sys/fs/cgroup`",
        })
}

/// `36 35 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw` → the fifth field.
fn mount_of_cgroup2(line: &str) -> Option<PathBuf> {
    let (left, right) = line.split_once(" - ")?;
    if right.split(' ').next()? != "cgroup2" {
        return None;
    }
    left.split(' ')
        .nth(4)
        .map(|mount| PathBuf::from(mount.replace("\\040", " ")))
}

/// A cgroup, found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    /// Its path below the root, `/` for the root itself.
    pub path: String,
    /// The kernel's id of it; another one when it is made anew under the same path.
    pub id: u64,
    /// Where it is in the file system.
    pub folder: PathBuf,
}

/// Finds a cgroup by its path below the root (a path that names the mount itself is understood too).
pub fn find(path: &str) -> Result<Cgroup, KernelError> {
    let root = root()?;
    let relative = path
        .strip_prefix(root.to_str().unwrap_or_default())
        .unwrap_or(path)
        .trim_matches('/');
    let folder = root.join(relative);
    let gone = || KernelError::NoCgroup(path.into(), root.display().to_string());
    let metadata = fs::metadata(&folder).map_err(|_| gone())?;
    if !metadata.is_dir() {
        return Err(gone());
    }
    let level = relative.split('/').filter(|part| !part.is_empty()).count();
    if level as u32 > abi::MAX_CGROUP_LEVELS {
        return Err(KernelError::CgroupTooDeep {
            path: path.into(),
            depth: level,
            most: abi::MAX_CGROUP_LEVELS,
        });
    }
    // In cgroup2 the inode number is the id that the kernel compares packets' cgroups with.
    Ok(Cgroup {
        path: format!("/{relative}"),
        id: metadata.ino(),
        folder,
    })
}

/// The names of all cgroups that could be units of the system manager: below nothing but slices.
pub fn units() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut slices: Vec<PathBuf> = root().into_iter().collect();
    while let Some(slice) = slices.pop() {
        for entry in fs::read_dir(slice).into_iter().flatten().flatten() {
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let name = entry.file_name().into_string().unwrap_or_default();
            if !is_folder || !name.contains('.') {
                continue;
            }
            if name.ends_with(".slice") {
                slices.push(entry.path());
            }
            names.insert(name);
        }
    }
    names
}

/// The processes of a cgroup and of all below it.
pub fn processes(group: &Cgroup) -> Vec<u32> {
    let mut found = Vec::new();
    let mut folders = vec![group.folder.clone()];
    while let Some(folder) = folders.pop() {
        // What is removed meanwhile has no processes any more.
        let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
        found.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
        let Ok(entries) = fs::read_dir(&folder) else {
            continue;
        };
        let below = entries
            .flatten()
            .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
        folders.extend(below.map(|entry| entry.path()));
    }
    found
}

/// Finds the cgroup of a systemd unit: the folder of this name, wherever slices put it.
pub fn find_unit(unit: &str) -> Result<Cgroup, KernelError> {
    let root = root()?;
    let mut level = vec![root.clone()];
    // Breadth first: a system unit before one of the same name inside a container.
    for _ in 0..abi::MAX_CGROUP_LEVELS {
        let mut below = Vec::new();
        for folder in &level {
            let Ok(entries) = fs::read_dir(folder) else {
                continue;
            };
            for entry in entries
                .flatten()
                .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()))
            {
                if entry.file_name() == unit {
                    let path = entry.path();
                    let relative = path.strip_prefix(&root).unwrap_or(&path);
                    return find(&format!("/{}", relative.display()));
                }
                below.push(entry.path());
            }
        }
        if below.is_empty() {
            break;
        }
        level = below;
    }
    Err(KernelError::NoUnit(unit.into()))
}

/// Finds the cgroup of a container by what its engine calls it: the id, or what it begins with. Docker, Podman and others
/// name the group `docker-<id>.scope`, `libpod-<id>.scope` and the like, or just `<id>`.
pub fn find_container(id: &str) -> Option<Cgroup> {
    let root = root().ok()?;
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let name = entry.file_name().into_string().unwrap_or_default();
            let path = entry.path();
            if container_id(&name).is_some_and(|whole| whole.starts_with(id)) {
                let relative = path.strip_prefix(&root).unwrap_or(&path);
                return find(&format!("/{}", relative.display())).ok();
            }
            folders.push(path);
        }
    }
    None
}

/// The id of the container that a cgroup of this name is of.
fn container_id(name: &str) -> Option<&str> {
    let name = name.strip_suffix(".scope").unwrap_or(name);
    let prefix = ENGINES.iter().find_map(|engine| name.strip_prefix(engine));
    let id = prefix.unwrap_or(name);
    let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    (id.len() == CONTAINER_ID && id.bytes().all(hex)).then_some(id)
}

/// Path of the cgroup that a process is in.
pub fn of_process(pid: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    text.lines()
        .find_map(|line| line.strip_prefix("0::"))
        .map(str::to_owned)
}

/// What engines begin the name of a container's cgroup with.
const ENGINES: [&str; 4] = ["docker-", "libpod-", "cri-containerd-", "crio-"];
/// Digits of a container's id.
const CONTAINER_ID: usize = 64;

/// The magic number of the file system that a path is on.
pub(crate) fn filesystem(path: &Path) -> Option<i64> {
    let path = c_path(path);
    let mut found = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the path is terminated, the buffer is of the right type, and is read only when the call filled it.
    unsafe {
        (libc::statfs(path.as_ptr(), found.as_mut_ptr()) == 0).then(|| found.assume_init().f_type)
    }
}

/// A path as C wants it. A path with a zero inside names nothing, as the empty one.
pub(crate) fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_containers_group_is_known_by_its_name() {
        let id = "0123456789abcdef".repeat(4);
        for name in [
            format!("docker-{id}.scope"),
            format!("libpod-{id}.scope"),
            format!("libpod-{id}"),
            id.clone(),
        ] {
            assert_eq!(container_id(&name), Some(id.as_str()), "{name}");
        }
        for name in [
            format!("libpod-conmon-{id}.scope"),
            format!("docker-{}.scope", &id[1..]),
            format!("docker-{}.scope", id.replace('0', "g")),
            "docker.service".to_owned(),
        ] {
            assert_eq!(container_id(&name), None, "{name}");
        }
    }
}

//! Control groups (version 2): where they are mounted, their ids, and the paths of units and containers.
//!
//! A name of a unit or a container stands for what root's own service manager or engine has made. Users get parts of the
//! hierarchy to make groups in as they like (`user@1000.service`), and so do containers; a group there can be called
//! anything, and is never found by a name. It is named by its path.

use std::{
    collections::BTreeSet,
    ffi::{CString, OsStr},
    fs,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use crate::{abi, error::KernelError, process::read_text};

/// Where the unified hierarchy is mounted.
pub fn root() -> Result<PathBuf, KernelError> {
    let path = "/proc/self/mountinfo";
    let mounts = read_text(path).map_err(KernelError::file("find the cgroup2 mount", path))?;
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

/// The names of all cgroups that could be units of the system manager: below nothing but slices of root's.
pub fn units() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut slices: Vec<PathBuf> = root().into_iter().collect();
    while let Some(slice) = slices.pop() {
        for folder in folders(&slice) {
            if is_slice(&folder) {
                slices.push(folder.clone());
            }
            let name = folder.file_name().and_then(OsStr::to_str);
            names.extend(name.filter(|name| name.contains('.')).map(str::to_owned));
        }
    }
    names
}

/// Whether a cgroup is a slice that root has and others cannot change.
fn is_slice(folder: &Path) -> bool {
    let name = folder.file_name().unwrap_or_default();
    name.as_bytes().ends_with(b".slice") && is_roots(folder)
}

/// Whether root alone makes groups in a cgroup.
fn is_roots(folder: &Path) -> bool {
    fs::symlink_metadata(folder).is_ok_and(|about| about.uid() == 0 && about.mode() & 0o022 == 0)
}

/// The cgroups right below one; none of one that is gone.
fn folders(of: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(of).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.map(|entry| entry.path())
}

/// A cgroup that was found at a path of the file system.
fn at(root: &Path, folder: &Path) -> Result<Cgroup, KernelError> {
    let relative = folder.strip_prefix(root).unwrap_or(folder);
    find(&format!("/{}", relative.display()))
}

/// The processes of a cgroup and of all below it.
pub fn processes(group: &Cgroup) -> Vec<u32> {
    let mut found = Vec::new();
    let mut stack = vec![group.folder.clone()];
    while let Some(folder) = stack.pop() {
        // What is removed meanwhile has no processes any more.
        let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
        found.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
        stack.extend(folders(&folder));
    }
    found
}

/// Finds the cgroup of a unit of the system manager: the folder of this name in nothing but slices.
pub fn find_unit(unit: &str) -> Result<Cgroup, KernelError> {
    let root = root()?;
    let mut slices = vec![root.clone()];
    while let Some(slice) = slices.pop() {
        for folder in folders(&slice) {
            if folder.file_name().is_some_and(|name| name == unit) {
                return at(&root, &folder);
            }
            if is_slice(&folder) {
                slices.push(folder);
            }
        }
    }
    Err(KernelError::NoUnit(unit.into()))
}

/// Finds the cgroup of a container by what its engine calls it: the id, or what it begins with. Docker, Podman and others
/// name the group `docker-<id>.scope`, `libpod-<id>.scope` and the like, or just `<id>`. It is looked for where root's engine
/// puts it: not in what belongs to a user, nor inside another container.
pub fn find_container(id: &str) -> Option<Cgroup> {
    let root = root().ok()?;
    let mut stack = vec![root.clone()];
    while let Some(above) = stack.pop() {
        for folder in folders(&above) {
            let name = folder.file_name().unwrap_or_default().to_string_lossy();
            match container_id(&name) {
                Some(whole) if whole.starts_with(id) => return at(&root, &folder).ok(),
                Some(_) => {}
                None if is_roots(&folder) => stack.push(folder),
                None => {}
            }
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

/// Path of the cgroup that a process is in. A user may call a group by what is no text; the path of a group around that one
/// is still what the text begins with.
pub fn of_process(pid: u32) -> Option<String> {
    let text = read_text(format!("/proc/{pid}/cgroup")).ok()?;
    text.split('\n')
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

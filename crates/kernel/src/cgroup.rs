//! Finds control groups (version 2) by their path, by the name of a unit or by the id of a
//! container, and lists their processes. A lookup by path or unit fails with [`KernelError`] if
//! there is no such cgroup, if the cgroup lies more than 24 levels deep, or if the hierarchy is not
//! mounted; a lookup by container then returns `None`. The lists are empty for a cgroup that cannot
//! be read.
//!
//! The name of a unit or a container stands for a cgroup that root's service manager or container
//! engine made. Users and containers control parts of the hierarchy (`user@1000.service`) and can
//! give any name to a cgroup there. So a lookup by name never returns a cgroup that lies in such a
//! part; only a lookup by path ([`find`]) does.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

use crate::{abi, error::KernelError, process::read_text};

/// The mount point of the unified hierarchy (cgroup2).
///
/// # Errors
/// If the hierarchy is not mounted, or the mounts cannot be read.
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

/// A cgroup that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    /// The cgroup's path below the root; `/` for the root itself.
    pub path: String,
    /// The kernel's id of the cgroup. A cgroup made again at the same path has another id.
    pub id: u64,
    /// The cgroup's folder in the file system.
    pub folder: PathBuf,
}

/// Finds a cgroup by its path below the root. A path that includes the mount point is accepted too.
///
/// # Errors
/// If there is no such cgroup, if it lies more than 24 levels deep (`MAX_CGROUP_LEVELS` of
/// `bpf/abi.h`), or if the hierarchy is not mounted.
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
            max: abi::MAX_CGROUP_LEVELS,
        });
    }
    // In cgroup2 the inode number is the id that the kernel compares with packets' cgroups.
    Ok(Cgroup {
        path: format!("/{relative}"),
        id: metadata.ino(),
        folder,
    })
}

/// The names of all cgroups that can be units of the system manager: their names contain a dot, and
/// only slices of root are above them. Empty if the hierarchy is not mounted.
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

/// Whether a cgroup is a slice that only root can change.
fn is_slice(folder: &Path) -> bool {
    let name = folder.file_name().unwrap_or_default();
    name.as_bytes().ends_with(b".slice") && only_root_can_write(folder)
}

/// Whether only root can make cgroups in this one.
fn only_root_can_write(folder: &Path) -> bool {
    fs::symlink_metadata(folder)
        .is_ok_and(|metadata| metadata.uid() == 0 && metadata.mode() & 0o022 == 0)
}

/// The cgroups directly below this one; empty if it was removed.
fn folders(of: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(of).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.map(|entry| entry.path())
}

/// The cgroup of this folder.
fn from_folder(root: &Path, folder: &Path) -> Result<Cgroup, KernelError> {
    let relative = folder.strip_prefix(root).unwrap_or(folder);
    find(&format!("/{}", relative.display()))
}

/// The ids of a cgroup and of the cgroups below it. A cgroup that was removed has none.
pub fn ids(group: &Cgroup) -> BTreeSet<u64> {
    let mut ids = BTreeSet::new();
    let mut stack = vec![group.folder.clone()];
    while let Some(folder) = stack.pop() {
        ids.extend(fs::symlink_metadata(&folder).map(|metadata| metadata.ino()));
        stack.extend(folders(&folder));
    }
    ids
}

/// The process ids of all processes of a cgroup and of the cgroups below it. A cgroup that cannot
/// be read (it was removed, or is threaded) counts as empty.
pub fn processes(group: &Cgroup) -> Vec<u32> {
    let mut found = Vec::new();
    let mut stack = vec![group.folder.clone()];
    while let Some(folder) = stack.pop() {
        // A cgroup that is removed meanwhile has no processes.
        let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
        found.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
        stack.extend(folders(&folder));
    }
    found
}

/// Finds the cgroup of a unit of the system manager: the folder of this name that has only slices
/// above it.
///
/// # Errors
/// If there is no such cgroup, or [`find`] fails for its path.
pub fn find_unit(unit: &str) -> Result<Cgroup, KernelError> {
    let root = root()?;
    let mut slices = vec![root.clone()];
    while let Some(slice) = slices.pop() {
        for folder in folders(&slice) {
            if folder.file_name().is_some_and(|name| name == unit) {
                return from_folder(&root, &folder);
            }
            if is_slice(&folder) {
                slices.push(folder);
            }
        }
    }
    Err(KernelError::NoUnit(unit.into()))
}

/// Finds the cgroup of a container by its id or the first digits of the id. Docker, Podman and
/// others name the cgroup `docker-<id>.scope`, `libpod-<id>.scope` and the like, or just `<id>`.
/// The search covers the places where root's engine makes it: no cgroups of users, and not inside
/// other containers. If several ids begin with these digits, returns any one of the cgroups. `None`
/// if there is no such cgroup, it lies more than 24 levels deep, or the hierarchy is not mounted.
pub fn find_container(id: &str) -> Option<Cgroup> {
    let root = root().ok()?;
    let mut stack = vec![root.clone()];
    while let Some(above) = stack.pop() {
        for folder in folders(&above) {
            let name = folder.file_name().unwrap_or_default().to_string_lossy();
            match container_id(&name) {
                Some(full_id) if full_id.starts_with(id) => {
                    return from_folder(&root, &folder).ok();
                }
                Some(_) => {}
                None if only_root_can_write(&folder) => stack.push(folder),
                None => {}
            }
        }
    }
    None
}

/// The container id in the name of a cgroup.
fn container_id(name: &str) -> Option<&str> {
    let name = name.strip_suffix(".scope").unwrap_or(name);
    let prefix = ENGINES.iter().find_map(|engine| name.strip_prefix(engine));
    let id = prefix.unwrap_or(name);
    let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    (id.len() == CONTAINER_ID && id.bytes().all(hex)).then_some(id)
}

/// The path of a process's cgroup, as in [`Cgroup::path`]. `None` if the process has ended or its
/// cgroup cannot be read. A user may give a cgroup a name that is not valid text. Its bytes are
/// replaced; the path of the cgroups above it stays correct.
pub fn of_process(pid: u32) -> Option<String> {
    let text = read_text(format!("/proc/{pid}/cgroup")).ok()?;
    text.split('\n')
        .find_map(|line| line.strip_prefix("0::"))
        .map(str::to_owned)
}

/// What root's service manager or container engine made a cgroup for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Group {
    /// A unit of the system manager, by its name.
    Unit(String),
    /// A container, by the first 12 digits of its id.
    Container(String),
}

/// The unit or the container to which the cgroup at this path belongs: as for [`find_unit`] and
/// [`find_container`], parts of the hierarchy that users or containers control do not count.
/// `None` if the path has neither.
pub fn group_of(path: &str) -> Option<Group> {
    for name in path.split('/') {
        if let Some(id) = container_id(name) {
            return Some(Group::Container(id.chars().take(SHORT_ID).collect()));
        }
        if name.contains('.') && !name.ends_with(".slice") {
            return Some(Group::Unit(name.to_owned()));
        }
    }
    None
}

/// Prefixes that container engines put before the id in the name of a container's cgroup.
const ENGINES: [&str; 4] = ["docker-", "libpod-", "cri-containerd-", "crio-"];
/// Number of digits of a container's id.
const CONTAINER_ID: usize = 64;
/// Number of digits of the short form of such an id.
const SHORT_ID: usize = 12;

/// The magic number of the file system of a path. `None` if statfs(2) fails, for example because
/// the path does not exist.
pub(crate) fn filesystem(path: &Path) -> Option<i64> {
    Some(rustix::fs::statfs(path).ok()?.f_type)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_id_is_found_in_the_name_of_its_cgroup() {
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

    #[test]
    fn a_path_belongs_to_the_unit_or_container_that_root_made() {
        let id = "0123456789abcdef".repeat(4);
        let unit = |name: &str| Some(Group::Unit(name.into()));
        let container = Some(Group::Container("0123456789ab".into()));
        for (path, expected) in [
            ("/".to_owned(), None),
            ("/backup".to_owned(), None),
            (
                "/system.slice/nginx.service".to_owned(),
                unit("nginx.service"),
            ),
            (
                "/user.slice/user-1000.slice/session-3.scope".to_owned(),
                unit("session-3.scope"),
            ),
            (
                "/user.slice/user-7.slice/user@7.service/app.slice/x.scope".to_owned(),
                unit("user@7.service"),
            ),
            (
                format!("/system.slice/docker-{id}.scope/x.service"),
                container.clone(),
            ),
            (format!("/docker/{id}"), container),
            // A user may give any name to a cgroup below the manager of that user.
            (
                format!("/user.slice/user-7.slice/user@7.service/docker-{id}.scope"),
                unit("user@7.service"),
            ),
        ] {
            assert_eq!(group_of(&path), expected, "{path}");
        }
    }
}

//! Control groups of netnice's own that keep reservations of processor time ([`Groups`]).
//!
//! With version 1 of control groups, the groups lie at the top of the hierarchies `cpu` and
//! `cpuacct`, and at the top of `cpuset` if a thread is confined there. With version 2 a group lies
//! below the group in which the processes are, and is threaded, so that they stay in their unit; at
//! the root it is an ordinary one. For that the groups around it must pass the controller `cpu` on
//! ([`Groups::lacking`]), which divides processors among the groups beside them too.
//!
//! Names begin with `netnice-` and a key of the daemon, so several daemons can live on one machine.
//! A process that is moved here has a [`Home`], to which it is given back. Methods that change
//! something fail with [`KernelError`], which names the file.

mod controllers;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use netnice_core::units::Nanos;
use rustix::fs::StatVfsMountFlags;
use rustix::io::Errno;

use controllers::pass_on;
pub use controllers::{CertainShare, is_around};

use super::ProcessorSet;
use super::policy::{self, Deadline};
use crate::error::KernelError;
use crate::process::read_text;

/// Where the groups of a daemon lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Groups {
    place: Place,
    key: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// Mount points of version 1. `cpu` and `cpuacct` may be the same.
    One {
        cpu: PathBuf,
        cpuacct: PathBuf,
        cpuset: Option<PathBuf>,
    },
    /// The mount point of version 2.
    Two { root: PathBuf },
}

/// The groups in which a process was, by the controller. With version 2 all are the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Home {
    /// The path in the hierarchy of `cpu`.
    pub cpu: String,
    /// The path in the hierarchy of `cpuacct`.
    pub cpuacct: String,
    /// The path in the hierarchy of `cpuset`.
    pub cpuset: String,
}

/// A group of netnice's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    place: Place,
    cpu: PathBuf,
    cpuacct: PathBuf,
    cpuset: Option<PathBuf>,
}

/// The processor time that a group has used, and how its quota limited it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupUsage {
    /// Processor time since the group was made.
    pub used: Nanos,
    /// Periods of the quota in which the group ran.
    pub periods: u64,
    /// Periods of the quota in which the group had used it up.
    pub exhausted: u64,
}

impl Groups {
    /// Finds the controllers. `key` distinguishes the daemon from others on the machine.
    ///
    /// # Errors
    /// If the kernel has no controller `cpu`, or it is not mounted.
    pub fn find(key: &str) -> Result<Groups, KernelError> {
        let path = "/proc/self/mountinfo";
        let mounts = read_text(path).map_err(KernelError::file("find the controllers", path))?;
        let place = place_in(&mounts).ok_or(KernelError::Missing {
            what: "control group controller of processor time (cpu) in reach",
            hint: "mount it: `mount -t cgroup2 none /sys/fs/cgroup`, or with version 1 `mount -t \
                   cgroup -o cpu none /sys/fs/cgroup/cpu`",
        })?;
        Ok(Groups {
            place,
            key: key.to_owned(),
        })
    }

    /// The version of the control groups, 1 or 2.
    pub fn version(&self) -> u32 {
        match self.place {
            Place::One { .. } => 1,
            Place::Two { .. } => 2,
        }
    }

    /// The version and where groups are made, for people.
    pub fn place_text(&self) -> String {
        match &self.place {
            Place::One { cpu, .. } => format!("control groups of version 1 in {}", cpu.display()),
            Place::Two { root } => format!(
                "control groups of version 2 below {}, each in the group of its processes",
                root.display()
            ),
        }
    }

    /// A mount point of the control groups that cannot be written to; `None`: all can.
    pub fn read_only(&self) -> Option<PathBuf> {
        let mounts = match &self.place {
            Place::One { cpu, cpuacct, .. } => vec![cpu, cpuacct],
            Place::Two { root } => vec![root],
        };
        let is_read_only = |mount: &&&PathBuf| {
            let found = rustix::fs::statvfs(mount.as_path());
            found.is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::RDONLY))
        };
        mounts
            .iter()
            .find(is_read_only)
            .map(|mount| (*mount).clone())
    }

    /// True if groups of version 1 have a real-time budget of their own (RT_GROUP_SCHED), which a
    /// new group has not: then threads in it cannot have a real-time priority.
    pub fn has_real_time_budget(&self) -> bool {
        match &self.place {
            Place::One { cpu, .. } => cpu.join("cpu.rt_runtime_us").exists(),
            Place::Two { .. } => false,
        }
    }

    /// The groups in which a process is.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn home(&self, pid: u32) -> Result<Home, KernelError> {
        let path = format!("/proc/{pid}/cgroup");
        let text = read_text(&path).map_err(KernelError::file("find the groups of", path))?;
        let own = format!("/netnice-{}-", self.key);
        let of = |controller: &str| {
            let lines = text.lines().filter_map(|line| {
                let (_, rest) = line.split_once(':')?;
                rest.split_once(':')
            });
            let mut lines = lines.filter(|(controllers, _)| match self.place {
                Place::One { .. } => controllers.split(',').any(|one| one == controller),
                Place::Two { .. } => controllers.is_empty(),
            });
            let path = lines.next().map_or("/", |(_, path)| path);
            // A process in a group of netnice's own belongs to the group around that.
            let outer = path.find(&own).map_or(path, |at| &path[..at]);
            if outer.is_empty() { "/" } else { outer }.to_owned()
        };
        Ok(Home {
            cpu: of("cpu"),
            cpuacct: of("cpuacct"),
            cpuset: of("cpuset"),
        })
    }

    /// Why processes of this home cannot get a reservation: a group around them is frozen or has a
    /// quota, which they would leave. `None`: they can.
    pub fn obstacle(&self, pid: u32, home: &Home) -> Option<String> {
        let frozen = || {
            let text = read_text(format!("/proc/{pid}/cgroup")).unwrap_or_default();
            text.lines().any(|line| {
                let mut parts = line.splitn(3, ':').skip(1);
                let (controllers, path) = (parts.next(), parts.next().unwrap_or_default());
                match controllers {
                    Some("") => is_frozen(
                        crate::cgroup::root().ok(),
                        path,
                        "cgroup.events",
                        "frozen 1",
                    ),
                    Some("freezer") => is_frozen(freezer_mount(), path, "freezer.state", "FROZEN"),
                    _ => false,
                }
            })
        };
        if frozen() {
            return Some("its control group is frozen".to_owned());
        }
        if home.cpu.starts_with("/..") {
            return Some("its control group lies outside of those that netnice can see".to_owned());
        }
        let (root, file) = match &self.place {
            Place::One { cpu, .. } => (cpu, "cpu.cfs_quota_us"),
            Place::Two { root } => (root, "cpu.max"),
        };
        let folder = below(root, &home.cpu);
        let around = folder
            .ancestors()
            .take_while(|folder| folder.starts_with(root));
        for folder in around {
            let text = read_text(folder.join(file)).unwrap_or_default();
            let text = text.trim();
            if !text.is_empty() && text != "-1" && !text.starts_with("max") {
                let file = folder.join(file);
                return Some(format!(
                    "its control group has a quota ({} is {text})",
                    file.display()
                ));
            }
        }
        None
    }

    /// Makes the group with this name for processes of this home. An existing one is taken over.
    /// With version 2 the groups of [`Groups::lacking`] pass `cpu` on afterwards. Returns true if
    /// the group is new, or may be half made by an earlier call.
    ///
    /// # Errors
    /// If the kernel refuses the group: with version 2 it does if the processes' group contains
    /// other groups with processes, or (RT_GROUP_SCHED) a thread has a real-time priority.
    pub fn open(&self, name: &str, home: &Home) -> Result<bool, KernelError> {
        let group = self.group(name, home);
        let lacking = self.lacking(home);
        let is_new = !group.exists() || !lacking.is_empty();
        if let Place::Two { root } = &self.place {
            let outer = below(root, &home.cpu);
            let (around, own): (Vec<PathBuf>, Vec<PathBuf>) = lacking
                .iter()
                .map(|path| below(root, path))
                .partition(|folder| *folder != outer);
            around.iter().try_for_each(|folder| pass_on(folder))?;
            make(&group.cpu)?;
            // The root of the hierarchy has no such file, and takes ordinary groups only.
            let file = group.cpu.join(TYPE);
            if outer.join(TYPE).exists() && read_text(&file).is_ok_and(|is| !is_threaded(&is)) {
                let threaded = fs::write(&file, "threaded");
                threaded.map_err(KernelError::file("make threaded", file))?;
            }
            // A group with processes can pass `cpu` on only to threaded groups.
            own.iter().try_for_each(|folder| pass_on(folder))?;
            return Ok(is_new);
        }
        make(&group.cpu)?;
        if group.cpuacct != group.cpu {
            make(&group.cpuacct)?;
        }
        Ok(is_new)
    }

    /// The group with this name, which may not exist.
    pub fn group(&self, name: &str, home: &Home) -> Group {
        let name = format!("netnice-{}-{name}", self.key);
        match &self.place {
            Place::One {
                cpu,
                cpuacct,
                cpuset,
            } => Group {
                place: self.place.clone(),
                cpu: cpu.join(&name),
                cpuacct: cpuacct.join(&name),
                cpuset: cpuset.as_ref().map(|cpuset| cpuset.join(&name)),
            },
            Place::Two { root } => {
                let folder = below(root, &home.cpu).join(&name);
                Group {
                    place: self.place.clone(),
                    cpu: folder.clone(),
                    cpuacct: folder,
                    cpuset: None,
                }
            }
        }
    }
}

impl Group {
    /// The threads in the group; none if it does not exist.
    pub fn threads(&self) -> Vec<u32> {
        let file = match self.place {
            Place::One { .. } => "tasks",
            Place::Two { .. } => "cgroup.threads",
        };
        let text = read_text(self.cpu.join(file)).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// True if the group exists.
    pub fn exists(&self) -> bool {
        self.cpu.is_dir()
    }

    /// Moves a process with all its threads into the group. No effect if it has ended.
    ///
    /// # Errors
    /// If the kernel refuses: with version 1 it can refuse a thread with a real-time priority.
    pub fn take(&self, pid: u32) -> Result<(), KernelError> {
        let pid = pid.to_string();
        move_to(&self.cpu.join("cgroup.procs"), &pid)?;
        if self.cpuacct != self.cpu {
            move_to(&self.cpuacct.join("cgroup.procs"), &pid)?;
        }
        Ok(())
    }

    /// Moves a process back to its home, or to the root if its home is gone. No effect if it has
    /// ended.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn give_back(&self, pid: u32, home: &Home) -> Result<(), KernelError> {
        let pid = pid.to_string();
        let back = |root: &Path, path: &str| {
            let there = Some(below(root, path)).filter(|folder| folder.is_dir());
            let folder = there.unwrap_or_else(|| root.to_owned());
            move_to(&folder.join("cgroup.procs"), &pid)
        };
        match &self.place {
            Place::One {
                cpu,
                cpuacct,
                cpuset,
            } => {
                back(cpu, &home.cpu)?;
                if cpuacct != cpu {
                    back(cpuacct, &home.cpuacct)?;
                }
                match (cpuset, &self.cpuset) {
                    (Some(cpuset), Some(own)) if own.is_dir() => back(cpuset, &home.cpuset),
                    _ => Ok(()),
                }
            }
            Place::Two { root } => back(root, &home.cpu),
        }
    }

    /// Sets the group's weight beside other groups and threads, from 2 to [`MOST_WEIGHT`]. A thread
    /// of nice value 0 has [`NORMAL_WEIGHT`]. Version 2 has a coarser scale, which ends at 102,400.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn set_weight(&self, weight: u32) -> Result<(), KernelError> {
        let weight = weight.clamp(2, MOST_WEIGHT);
        match self.place {
            Place::One { .. } => write(&self.cpu.join("cpu.shares"), &weight.to_string()),
            Place::Two { .. } => {
                let weight = (u64::from(weight) * 100).div_ceil(u64::from(NORMAL_WEIGHT));
                let text = weight.clamp(1, 10_000).to_string();
                write(&self.cpu.join("cpu.weight"), &text)
            }
        }
    }

    /// Sets the highest processor time in each period; `None`: no bound. The period is from 1 ms to
    /// 1 s, and the budget at least 1 ms.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn set_quota(&self, quota: Option<(Nanos, Nanos)>) -> Result<(), KernelError> {
        let micros = |time: Nanos| time.0 / 1_000;
        match (&self.place, quota) {
            (Place::One { .. }, None) => write(&self.cpu.join("cpu.cfs_quota_us"), "-1"),
            (Place::One { .. }, Some((budget, period))) => {
                // The kernel refuses a quota of more than all processors in between, and 1 ms is
                // never more.
                write(&self.cpu.join("cpu.cfs_quota_us"), "1000")?;
                let period = micros(period).to_string();
                write(&self.cpu.join("cpu.cfs_period_us"), &period)?;
                let budget = micros(budget).to_string();
                write(&self.cpu.join("cpu.cfs_quota_us"), &budget)
            }
            (Place::Two { .. }, None) => write(&self.cpu.join("cpu.max"), "max 100000"),
            (Place::Two { .. }, Some((budget, period))) => {
                let text = format!("{} {}", micros(budget), micros(period));
                write(&self.cpu.join("cpu.max"), &text)
            }
        }
    }

    /// What the group has used; zero if it does not exist.
    pub fn usage(&self) -> GroupUsage {
        let text = read_text(self.cpu.join("cpu.stat")).unwrap_or_default();
        let field = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(' '));
            let found = lines.find(|(key, _)| *key == name);
            found.and_then(|(_, value)| value.parse::<u64>().ok())
        };
        let used = match self.place {
            Place::One { .. } => read_text(self.cpuacct.join("cpuacct.usage"))
                .ok()
                .and_then(|text| text.trim().parse().ok()),
            Place::Two { .. } => field("usage_usec").map(|micros| micros.saturating_mul(1_000)),
        };
        GroupUsage {
            used: Nanos(used.unwrap_or(0)),
            periods: field("nr_periods").unwrap_or(0),
            exhausted: field("nr_throttled").unwrap_or(0),
        }
    }

    /// Gives a thread SCHED_DEADLINE. The kernel does so only for threads that may run on all
    /// processors. So the affinity of a thread that may not is lifted, and if `confined`, or if its
    /// cpuset permits no more, a cpuset of the group takes its place. Returns the former affinity
    /// in that case.
    ///
    /// # Errors
    /// As [`policy::set_deadline`], and if the thread would have to be confined and there is no
    /// controller `cpuset`. Then the thread is as before.
    pub fn reserve(
        &self,
        thread: u32,
        reserved: Deadline,
        online: &ProcessorSet,
        confined: bool,
    ) -> io::Result<Option<ProcessorSet>> {
        let before = policy::affinity(thread)?;
        if before == *online {
            return policy::set_deadline(thread, reserved).map(|()| None);
        }
        let former = policy::policy(thread)?;
        let reserve = || -> io::Result<()> {
            if !confined {
                policy::set_affinity(thread, online)?;
                if policy::affinity(thread)? == *online {
                    return policy::set_deadline(thread, reserved);
                }
            }
            self.confine(thread, &before, || {
                policy::set_affinity(thread, online)?;
                policy::set_deadline(thread, reserved)
            })
        };
        if let Err(error) = reserve() {
            let _ = policy::restore(thread, former);
            let _ = policy::set_affinity(thread, &before);
            return Err(error);
        }
        Ok(Some(before))
    }

    /// Moves a thread into the root's cpuset, calls `there`, and moves the thread into a cpuset of
    /// the group, with these processors.
    fn confine(
        &self,
        thread: u32,
        processors: &ProcessorSet,
        there: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let (Some(folder), Place::One { cpuset, .. }) = (&self.cpuset, &self.place) else {
            let reason = "it may not run on all processors, and a thread of control groups of \
                          version 2 cannot be confined otherwise";
            return Err(io::Error::new(io::ErrorKind::Unsupported, reason));
        };
        let root = cpuset.as_deref().unwrap_or(folder);
        let memory = fs::read_to_string(root.join("cpuset.mems"))?;
        fs::create_dir_all(folder)?;
        fs::write(folder.join("cpuset.cpus"), list(processors))?;
        fs::write(folder.join("cpuset.mems"), memory.trim())?;
        let home = self.cpuset_of(thread);
        fs::write(root.join("tasks"), thread.to_string())?;
        let moved = there().and_then(|()| fs::write(folder.join("tasks"), thread.to_string()));
        if moved.is_err() {
            let _ = fs::write(home.join("tasks"), thread.to_string());
        }
        moved
    }

    /// The cpuset's folder of a thread; the root's if it cannot be read.
    fn cpuset_of(&self, thread: u32) -> PathBuf {
        let Place::One {
            cpuset: Some(root), ..
        } = &self.place
        else {
            return PathBuf::new();
        };
        let text = read_text(format!("/proc/{thread}/cgroup")).unwrap_or_default();
        let path = text.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let is_cpuset = parts.next()?.split(',').any(|one| one == "cpuset");
            parts.next().filter(|_| is_cpuset)
        });
        below(root, path.unwrap_or("/"))
    }

    /// Moves a single thread that was confined back to its cpuset, and removes the one of the
    /// group. No effect if it was not confined, or has ended.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn release_from_cpuset(&self, thread: u32, home: &Home) -> Result<(), KernelError> {
        let (
            Some(own),
            Place::One {
                cpuset: Some(root), ..
            },
        ) = (&self.cpuset, &self.place)
        else {
            return Ok(());
        };
        if !own.is_dir() {
            return Ok(());
        }
        let there = Some(below(root, &home.cpuset)).filter(|folder| folder.is_dir());
        let folder = there.unwrap_or_else(|| root.clone());
        move_to(&folder.join("tasks"), &thread.to_string())?;
        match fs::remove_dir(own) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(KernelError::file("remove the group", own)(error))
            }
            _ => Ok(()),
        }
    }

    /// Removes the group, which must be empty.
    ///
    /// # Errors
    /// If the group is not empty.
    pub fn remove(&self) -> Result<(), KernelError> {
        let mut folders = vec![&self.cpu];
        if self.cpuacct != self.cpu {
            folders.push(&self.cpuacct);
        }
        folders.extend(&self.cpuset);
        for folder in folders {
            match fs::remove_dir(folder) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(KernelError::file("remove the group", folder)(error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The hierarchies in the lines of mountinfo(5). Version 1 comes first: a controller is in one
/// hierarchy only, and the one of version 2 may be mounted beside it without controllers.
fn place_in(mounts: &str) -> Option<Place> {
    let of = |controller: &str| mount_of(mounts, controller);
    if let (Some(cpu), Some(cpuacct)) = (of("cpu"), of("cpuacct")) {
        let cpuset = of("cpuset");
        return Some(Place::One {
            cpu,
            cpuacct,
            cpuset,
        });
    }
    let mut unified = entries(mounts).filter(|(kind, _, _)| *kind == "cgroup2");
    let root = unified.next().map(|(_, _, at)| at)?;
    let controllers = read_text(root.join("cgroup.controllers")).ok()?;
    let has_cpu = controllers.split_whitespace().any(|one| one == "cpu");
    has_cpu.then_some(Place::Two { root })
}

/// The mount point of the controller `freezer` of version 1.
fn freezer_mount() -> Option<PathBuf> {
    mount_of(&read_text("/proc/self/mountinfo").ok()?, "freezer")
}

/// The mount point of a controller of version 1 in the lines of mountinfo(5).
fn mount_of(mounts: &str, controller: &str) -> Option<PathBuf> {
    let mut found = entries(mounts).filter(|(kind, options, _)| {
        *kind == "cgroup" && options.split(',').any(|option| option == controller)
    });
    found.next().map(|(_, _, at)| at)
}

/// The mounts in the lines of mountinfo(5): kind, options of the file system, and place. A mount of
/// a part of a hierarchy is left out, since it has other paths than /proc says.
fn entries(mounts: &str) -> impl Iterator<Item = (&str, &str, PathBuf)> {
    mounts.lines().filter_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut fields = left.split(' ');
        let (root, at) = (fields.nth(3)?, fields.next()?);
        let mut kind = right.split(' ');
        let (kind, options) = (kind.next()?, kind.nth(1)?);
        (root == "/").then(|| (kind, options, PathBuf::from(at.replace("\\040", " "))))
    })
}

/// True if a file of a group says that the group is frozen.
fn is_frozen(root: Option<PathBuf>, path: &str, file: &str, word: &str) -> bool {
    let Some(root) = root else {
        return false;
    };
    let text = read_text(below(&root, path).join(file)).unwrap_or_default();
    text.lines().any(|line| line == word)
}

/// The folder of a group by its path in /proc.
fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}

/// A set in the kernel's form, such as `0,2,3`.
fn list(processors: &ProcessorSet) -> String {
    let numbers: Vec<String> = processors.iter().map(u32::to_string).collect();
    numbers.join(",")
}

fn make(folder: &Path) -> Result<(), KernelError> {
    match fs::create_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(KernelError::file("make the group", folder)(error))
        }
        _ => Ok(()),
    }
}

fn write(file: &Path, text: &str) -> Result<(), KernelError> {
    fs::write(file, text).map_err(KernelError::file("write", file))
}

/// True if this is the type of a threaded group.
fn is_threaded(kind: &str) -> bool {
    kind.trim() == "threaded"
}

/// Moves a process; one that has ended is ignored.
fn move_to(file: &Path, pid: &str) -> Result<(), KernelError> {
    match fs::write(file, pid) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::SRCH) => Ok(()),
        moved => moved.map_err(KernelError::file("move a process", file)),
    }
}

/// The file of version 2 with the kind of a group.
const TYPE: &str = "cgroup.type";
/// The largest weight of a group (`MAX_SHARES`).
pub const MOST_WEIGHT: u32 = 262_144;
/// The weight of a thread of nice value 0, and of a group that nobody gave another one.
pub const NORMAL_WEIGHT: u32 = 1_024;

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "\
30 24 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset
33 30 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
";

    #[test]
    fn controllers_of_version_1_are_found_mounted_together_or_apart() {
        let together = place_in(ONE);
        let cpu = PathBuf::from("/sys/fs/cgroup/cpu,cpuacct");
        let cpuset = Some(PathBuf::from("/sys/fs/cgroup/cpuset"));
        let expected = Place::One {
            cpuacct: cpu.clone(),
            cpu,
            cpuset,
        };
        assert_eq!(together, Some(expected));
        let apart = "31 30 0:27 / /c rw - cgroup cgroup rw,cpu\n\
                     31 30 0:27 / /a rw - cgroup cgroup rw,cpuacct\n";
        let expected = Place::One {
            cpu: "/c".into(),
            cpuacct: "/a".into(),
            cpuset: None,
        };
        assert_eq!(place_in(apart), Some(expected));
    }

    #[test]
    fn a_mounted_part_of_a_hierarchy_is_not_used() {
        let part = "31 30 0:27 /a/b /c rw - cgroup cgroup rw,cpu,cpuacct\n";
        assert_eq!(place_in(part), None);
    }

    #[test]
    fn the_own_process_is_in_some_group() {
        let Ok(groups) = Groups::find("test") else {
            return;
        };
        let home = groups.home(std::process::id()).expect("a living process");
        assert!(home.cpu.starts_with('/'), "{home:?}");
        let group = groups.group("7", &home);
        assert!(group.cpu.ends_with("netnice-test-7"), "{group:?}");
        assert_eq!(group.threads(), Vec::<u32>::new(), "it does not exist");
    }

    #[test]
    fn processors_are_listed_in_the_kernels_form() {
        assert_eq!(list(&ProcessorSet::from([3, 0, 12])), "0,3,12");
    }
}

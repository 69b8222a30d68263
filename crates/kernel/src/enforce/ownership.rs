//! Binds processes, executables, cgroups and users to targets, in the maps of the eBPF programs,
//! and tags the open sockets of new members. A call fails with [`KernelError`] if the programs are
//! not loaded, if a map cannot be read or changed, if an executable cannot be found, if a cgroup's
//! program cannot be attached, or if sockets cannot be visited.

use std::collections::{BTreeMap, BTreeSet};

use aya::maps::{HashMap, MapData};

use super::{Kernel, entries, loaded};
use crate::{
    abi::{self, GroupName, Proc},
    cgroup::{self, Cgroup},
    error::KernelError,
    executable, process,
    retry::{RemoveEntry, look_up, with_retries},
};

/// One of the two memberships that a process can have at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    /// In a target defined by pid, by run or by name.
    Process,
    /// In a target defined by executable.
    App,
}

impl Membership {
    /// The number of the target in this membership of `process`; 0 if there is none.
    pub(super) fn of(self, process: &Proc) -> u32 {
        match self {
            Membership::Process => process.process,
            Membership::App => process.app,
        }
    }
}

/// The result of making processes members of a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adoption {
    /// Number of processes that became or already were members of the target.
    pub processes: usize,
    /// Number of open sockets whose owner was recorded, in a tag or under their cookie.
    pub sockets: usize,
    /// Number of listeners left untagged because processes outside the target accept on them too.
    pub shared_listeners: usize,
    /// Number of open MPTCP sockets. The kernel hides their subflows, so their cgroup determines
    /// the target.
    pub hidden_mptcp: usize,
    /// Number of those of `sockets` that have no room for a tag: their owner is recorded under
    /// their cookies.
    pub by_cookie: usize,
    /// Whether sockets are left for [`Kernel::continue_survey`].
    pub unfinished: bool,
    /// Number of sockets that the target does not apply to: they have no room for a tag, and the
    /// table of such sockets is full.
    pub untracked: usize,
}

impl Adoption {
    /// Adds the numbers of another result, for other processes of the same target.
    pub fn add(&mut self, other: &Self) {
        self.processes += other.processes;
        self.sockets += other.sockets;
        self.shared_listeners += other.shared_listeners;
        self.hidden_mptcp += other.hidden_mptcp;
        self.by_cookie += other.by_cookie;
        self.untracked += other.untracked;
        self.unfinished |= other.unfinished;
    }
}

/// Children of members that could not become members at their fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissedForks {
    /// Number of these children.
    pub children: u64,
    /// Number of them and their descendants that were found and are members now.
    pub found: usize,
}

impl Kernel {
    /// Makes a process and, unless `only`, its living descendants members of a target, and tags
    /// their open sockets. Descendants that are members of a target in `keep` stay there, and their
    /// own descendants become members of it.
    ///
    /// Children inherit the membership in the kernel once their parent is a member. To find the
    /// children of earlier forks, the search is repeated until it finds no new process, at most 16
    /// times.
    ///
    /// # Errors
    /// If the programs are not loaded, the table of members is full or cannot be read, or the
    /// sockets cannot be visited or tagged.
    pub fn adopt(
        &mut self,
        target: u32,
        root: u32,
        only: bool,
        keep: &BTreeSet<u32>,
    ) -> Result<Adoption, KernelError> {
        let members = self.add_members(target, root, only, keep, Membership::Process)?;
        self.tag_new_members(&members, Membership::Process, 1)
    }

    /// Tags the open sockets of new members, by target.
    fn tag_new_members(
        &mut self,
        members: &BTreeMap<u32, BTreeSet<u32>>,
        which: Membership,
        more_passes: u32,
    ) -> Result<Adoption, KernelError> {
        let mut total = Adoption::default();
        for (target, members) in members {
            total.processes += members.len();
            total.add(&self.tag_sockets(members, *target, which, more_passes)?);
        }
        Ok(total)
    }

    /// Returns the new members by target.
    fn add_members(
        &mut self,
        target: u32,
        root: u32,
        only: bool,
        keep: &BTreeSet<u32>,
        which: Membership,
    ) -> Result<BTreeMap<u32, BTreeSet<u32>>, KernelError> {
        let mut members = BTreeMap::new();
        for _ in 0..MAX_SEARCHES {
            let processes = if only {
                vec![root]
            } else {
                process::with_descendants(root)
            };
            let programs = loaded(&mut self.programs)?;
            let mut procs = programs.hash::<u32, Proc>("procs")?;
            let mut added = 0;
            // The kept targets of processes; parents come before their children.
            let mut kept: BTreeMap<u32, u32> = BTreeMap::new();
            for pid in processes {
                let old = look_up(|| procs.get(&pid, 0))?.unwrap_or_default();
                if pid != root && keep.contains(&old.process) {
                    kept.insert(pid, old.process);
                    continue;
                }
                let inherited = match kept.is_empty() {
                    true => None,
                    false => process::parent(pid).and_then(|parent| kept.get(&parent).copied()),
                };
                if let Some(inherited) = inherited {
                    kept.insert(pid, inherited);
                }
                let target = inherited.unwrap_or(target);
                let mut new = old;
                match which {
                    Membership::Process => new.process = target,
                    Membership::App => new.app = target,
                }
                if new != old {
                    procs
                        .insert(pid, new, 0)
                        .map_err(|e| KernelError::bpf(format!("make process {pid} a member"), e))?;
                }
                added += usize::from(members.insert(pid, target).is_none());
            }
            if added == 0 {
                break;
            }
        }
        // A process may have ended before its entry was made. Such an entry would stay and apply to
        // the next process with this id.
        let ended: Vec<u32> = members
            .keys()
            .filter(|p| {
                process::thread_group(**p).is_some_and(|of| of != **p) || !process::is_running(**p)
            })
            .copied()
            .collect();
        self.remove_processes(&ended)?;
        let mut by_target: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for (pid, target) in members {
            if !ended.contains(&pid) {
                by_target.entry(target).or_default().insert(pid);
            }
        }
        Ok(by_target)
    }

    fn remove_processes(&mut self, of: &[u32]) -> Result<(), KernelError> {
        let mut procs = loaded(&mut self.programs)?.hash::<u32, Proc>("procs")?;
        for pid in of {
            procs.remove_entry(pid)?;
        }
        Ok(())
    }

    /// The members of process and executable targets, by process id. Empty if the programs are not
    /// loaded.
    ///
    /// # Errors
    /// If the table of members cannot be read.
    pub fn members(&mut self) -> Result<BTreeMap<u32, Proc>, KernelError> {
        match &self.programs {
            Some(programs) => Ok(programs
                .read_all::<u32, Proc>("procs")?
                .into_iter()
                .collect()),
            None => Ok(BTreeMap::new()),
        }
    }

    /// The memberships of one process; all zero if it has none, the programs are not loaded, or the
    /// table of members cannot be read.
    pub fn membership(&mut self, pid: u32) -> Proc {
        let Some(programs) = &mut self.programs else {
            return Proc::default();
        };
        let Ok(map) = programs.hash::<u32, Proc>("procs") else {
            return Proc::default();
        };
        let found = look_up(|| map.get(&pid, 0));
        found.ok().flatten().unwrap_or_default()
    }

    /// Makes the children that did not fit into the table of members at their fork members of their
    /// parents' targets, and tags their open sockets. Call this once a second. Returns `None` if
    /// the eBPF programs counted no such child since the last call.
    ///
    /// # Errors
    /// If the table of members is still full or cannot be read, or the sockets cannot be visited.
    /// After a failure of the table the next call repeats the search.
    pub fn adopt_missed_forks(&mut self) -> Result<Option<MissedForks>, KernelError> {
        let Some(programs) = &mut self.programs else {
            return Ok(None);
        };
        let counted = programs.count(abi::COUNT_MISSED_FORKS)?;
        if counted == self.missed_forks {
            return Ok(None);
        }
        let mut members = self.members()?;
        let mut found: BTreeMap<Proc, BTreeSet<u32>> = BTreeMap::new();
        let mut procs = loaded(&mut self.programs)?.hash::<u32, Proc>("procs")?;
        for _ in 0..MAX_SEARCHES {
            let before = members.len();
            for pid in process::all() {
                let parents = process::parent(pid).and_then(|parent| members.get(&parent).copied());
                let Some(membership) = parents.filter(|_| !members.contains_key(&pid)) else {
                    continue;
                };
                // A failure keeps the children found so far; the next call finds the rest.
                procs
                    .insert(pid, membership, 0)
                    .map_err(|e| KernelError::bpf(format!("make process {pid} a member"), e))?;
                members.insert(pid, membership);
                found.entry(membership).or_default().insert(pid);
            }
            if members.len() == before {
                break;
            }
        }
        for (membership, pids) in &found {
            for (target, which) in [
                (membership.process, Membership::Process),
                (membership.app, Membership::App),
            ] {
                if target != 0 {
                    self.tag_sockets(pids, target, which, 0)?;
                }
            }
        }
        let children = counted.saturating_sub(self.missed_forks);
        self.missed_forks = counted;
        Ok(Some(MissedForks {
            children,
            found: found.values().map(BTreeSet::len).sum(),
        }))
    }

    /// Removes the entries of processes that ended while no eBPF program was attached that could
    /// remove the entries. Returns their number.
    ///
    /// # Errors
    /// If the table of members cannot be read or changed.
    pub fn remove_ended(&mut self) -> Result<usize, KernelError> {
        let ended: Vec<u32> = self
            .members()?
            .into_keys()
            .filter(|p| !process::is_running(*p))
            .collect();
        if !ended.is_empty() {
            self.remove_processes(&ended)?;
        }
        Ok(ended.len())
    }

    /// Releases the members of the targets in `outer`, which maps each target to the target around
    /// it (`None`: no target). `which` selects the membership. A member and its sockets pass to its
    /// target in `by_descent`; without one there, to the nearest target around the former one that
    /// is not released itself. If there is none either, the member passes to no target, and its
    /// sockets keep the tag of the former target, which takes effect while that target exists. Adds
    /// each released process and its former target to `released`, also if the call fails. The
    /// search is repeated, at most 16 times, until it finds no member, because a child may be
    /// forked in between.
    ///
    /// # Errors
    /// If the table of members cannot be read or changed, or the sockets cannot be visited.
    pub fn release(
        &mut self,
        outer: &BTreeMap<u32, Option<u32>>,
        by_descent: &BTreeMap<u32, u32>,
        which: Membership,
        released: &mut BTreeMap<u32, u32>,
    ) -> Result<(), KernelError> {
        let mut moved: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for _ in 0..MAX_SEARCHES {
            let mut found = false;
            for (pid, entry) in self.members()? {
                let target = which.of(&entry);
                if !outer.contains_key(&target) {
                    continue;
                }
                let inherited = by_descent.get(&pid).copied();
                let new_target = inherited.or_else(|| remaining_outer(outer, target));
                if self.reassign(pid, new_target.unwrap_or(0), which)? {
                    found = true;
                    released.insert(pid, target);
                    if let Some(new_target) = new_target {
                        moved.entry(new_target).or_default().insert(pid);
                    }
                }
            }
            if !found {
                break;
            }
        }
        for (new_target, members) in moved {
            self.tag_sockets(&members, new_target, which, 0)?;
        }
        Ok(())
    }

    /// Changes the target of a process, if it is still a member. `new_target` 0: no target. Returns
    /// whether the process was a member.
    fn reassign(
        &mut self,
        pid: u32,
        new_target: u32,
        which: Membership,
    ) -> Result<bool, KernelError> {
        let mut procs = loaded(&mut self.programs)?.hash::<u32, Proc>("procs")?;
        // Read again: the process may have ended or executed another file.
        let Some(mut entry) = look_up(|| procs.get(&pid, 0))? else {
            return Ok(false);
        };
        match which {
            Membership::Process => entry.process = new_target,
            Membership::App => entry.app = new_target,
        }
        if entry == Proc::default() {
            procs.remove_entry(&pid)?;
        } else {
            with_retries(|| procs.insert(pid, entry, 0)).map_err(|e| {
                KernelError::bpf(format!("make process {pid} a member of another target"), e)
            })?;
        }
        Ok(true)
    }

    /// The map key of the executable at a path, which is looked up with root's rights.
    ///
    /// # Errors
    /// If there is no such file, if it cannot be read, if no process can ever execute it, if the
    /// thread of lookups cannot be started, or if its file system does not reply within
    /// [`executable::LOOKUP_TIMEOUT`] and the path was not looked up before.
    pub fn executable_key(&mut self, path: &str) -> Result<abi::AppKey, KernelError> {
        let found = self.executables.lookup(path);
        found.map_err(KernelError::file("find the executable", path))
    }

    /// Makes an executable a target. The processes that run it now become members, with their
    /// descendants; in future, those that execute it, with their new children.
    ///
    /// # Errors
    /// As [`Kernel::executable_key`] and [`Kernel::adopt`], and if the map of executables refuses
    /// the entry.
    pub fn bind_app(&mut self, target: u32, path: &str) -> Result<Adoption, KernelError> {
        let key = self.executable_key(path)?;
        let programs = loaded(&mut self.programs)?;
        programs
            .hash::<abi::AppKey, u32>("apps")?
            .insert(key, target, 0)
            .map_err(|e| KernelError::bpf(format!("bind executable {path}"), e))?;
        let mut total = Adoption::default();
        for pid in process::all()
            .into_iter()
            .filter(|pid| executable::of_process(*pid) == Some(key))
        {
            let members =
                self.add_members(target, pid, false, &BTreeSet::new(), Membership::App)?;
            total.add(&self.tag_new_members(&members, Membership::App, 0)?);
        }
        Ok(total)
    }

    /// Ends a target defined by executable: processes that execute the file in future do not become
    /// members, and the present members pass to no target. Their sockets keep the target's tag,
    /// which takes effect while the target exists.
    ///
    /// # Errors
    /// If the programs are not loaded, or a map cannot be read or changed.
    pub fn unbind_app(&mut self, target: u32) -> Result<(), KernelError> {
        let mut apps = loaded(&mut self.programs)?.hash::<abi::AppKey, u32>("apps")?;
        let all: Vec<(abi::AppKey, u32)> = entries(apps.iter(), "apps")?;
        for (key, _) in all.iter().filter(|(_, of)| *of == target) {
            apps.remove_entry(key)?;
        }
        let outer = BTreeMap::from([(target, None)]);
        let by_descent = BTreeMap::new();
        self.release(&outer, &by_descent, Membership::App, &mut BTreeMap::new())
    }

    /// Makes a cgroup and all cgroups below it a target. Earlier cgroups of the target no longer
    /// exist, but their data may still be in send queues. So the latest eight of them stay bound to
    /// the target.
    ///
    /// # Errors
    /// If the programs are not loaded, a map cannot be changed, or the cgroup's program cannot be
    /// attached.
    pub fn bind_cgroup(&mut self, target: u32, group: &Cgroup) -> Result<(), KernelError> {
        let programs = loaded(&mut self.programs)?;
        let mut map = programs.hash::<u64, u32>("cgroups")?;
        map.insert(group.id, target, 0)
            .map_err(|e| KernelError::bpf(format!("bind cgroup {}", group.path), e))?;
        let mut before = ids_of(&map, target);
        before.retain(|id| *id != group.id);
        let surplus = before.len().saturating_sub(MAX_FORMER_CGROUPS);
        for id in &before[..surplus] {
            map.remove_entry(id)?;
        }
        for id in before {
            programs.detach_cgroup(id);
        }
        programs.attach_cgroup(group.id, &group.folder)?;
        self.invalidate_cached_cgroups()
    }

    /// Unbinds all cgroups of a target, the present one and earlier ones.
    ///
    /// # Errors
    /// If the programs are not loaded, or a map refuses the change.
    pub fn unbind_cgroup(&mut self, target: u32) -> Result<(), KernelError> {
        let programs = loaded(&mut self.programs)?;
        let mut map = programs.hash::<u64, u32>("cgroups")?;
        let ids = ids_of(&map, target);
        for id in &ids {
            map.remove_entry(id)?;
        }
        for id in ids {
            programs.detach_cgroup(id);
        }
        self.invalidate_cached_cgroups()
    }

    /// Registers cgroups that belong to a target from their creation. A name is a path, or the last
    /// component alone for a cgroup that has only slices above it; a name of 256 bytes or more is
    /// skipped. Earlier registrations that are not in `names` are removed. No effect if the
    /// programs are not loaded.
    ///
    /// # Errors
    /// If a map cannot be read or changed.
    pub fn expect_groups(&mut self, names: &BTreeMap<String, u32>) -> Result<(), KernelError> {
        let Some(programs) = &mut self.programs else {
            return Ok(());
        };
        let mut map = programs.hash::<GroupName, u32>("expected_groups")?;
        let wanted: BTreeMap<GroupName, u32> = names
            .iter()
            .filter_map(|(name, target)| Some((group_name(name)?, *target)))
            .collect();
        let present: BTreeMap<GroupName, u32> = entries(map.iter(), "expected_groups")?;
        if wanted == present {
            return Ok(());
        }
        for name in present.keys().filter(|name| !wanted.contains_key(name)) {
            map.remove_entry(name)?;
        }
        for (name, target) in &wanted {
            if present.get(name) != Some(target) {
                map.insert(name, target, 0)
                    .map_err(|e| KernelError::bpf("register an expected cgroup", e))?;
            }
        }
        self.invalidate_cached_cgroups()
    }

    /// Invalidates the cgroup target that each socket has cached.
    fn invalidate_cached_cgroups(&mut self) -> Result<(), KernelError> {
        let programs = loaded(&mut self.programs)?;
        let bound = programs
            .hash::<u64, u32>("cgroups")?
            .keys()
            .next()
            .is_some();
        let expected = programs
            .hash::<GroupName, u32>("expected_groups")?
            .keys()
            .next()
            .is_some();
        let mut settings = programs.settings()?;
        settings.generation += 1;
        settings.cgroups = u32::from(bound || expected);
        programs.set_settings(settings)
    }

    /// Makes a user a target, and records the user of those open sockets of the user's processes
    /// that have no owner.
    ///
    /// # Errors
    /// If the programs are not loaded, a map refuses an entry, or the sockets cannot be visited.
    pub fn bind_user(&mut self, target: u32, uid: u32) -> Result<Adoption, KernelError> {
        let programs = loaded(&mut self.programs)?;
        let mut users = programs.hash::<u32, u32>("users")?;
        users
            .insert(uid, target, 0)
            .map_err(|e| KernelError::bpf(format!("bind user {uid}"), e))?;
        let all: Vec<u32> = entries(users.keys(), "users")?;
        let count = all.len() as u32;
        let mut settings = programs.settings()?;
        settings.users = count;
        programs.set_settings(settings)?;
        // The tag gives the owner of sockets that receive before they send.
        let theirs: BTreeSet<u32> = process::all()
            .into_iter()
            .filter(|p| process::facts(*p).is_some_and(|f| f.uid == uid))
            .collect();
        let mut found = self.record_users(&theirs)?;
        found.processes = theirs.len();
        Ok(found)
    }

    /// Ends a target defined by user: removes its user from the map in which the eBPF programs look
    /// up the target of a socket's user.
    ///
    /// # Errors
    /// If the programs are not loaded, or a map refuses the change.
    pub fn unbind_user(&mut self, target: u32) -> Result<(), KernelError> {
        let programs = loaded(&mut self.programs)?;
        let mut users = programs.hash::<u32, u32>("users")?;
        let all: Vec<(u32, u32)> = entries(users.iter(), "users")?;
        let (theirs, others): (Vec<_>, Vec<_>) = all.iter().partition(|(_, of)| *of == target);
        for (uid, _) in theirs {
            users.remove_entry(&uid)?;
        }
        let count = others.len() as u32;
        let mut settings = programs.settings()?;
        settings.users = count;
        programs.set_settings(settings)
    }

    /// The path of a process's cgroup, as in [`Cgroup::path`]. `None` if the process has ended or
    /// its cgroup cannot be read.
    pub fn cgroup_of(pid: u32) -> Option<String> {
        cgroup::of_process(pid)
    }
}

/// The cgroups of a target, the oldest first (the kernel assigns ids in order).
fn ids_of(map: &HashMap<&mut MapData, u64, u32>, target: u32) -> Vec<u64> {
    let own = map.iter().flatten().filter(|(_, of)| *of == target);
    let mut ids: Vec<u64> = own.map(|(id, _)| id).collect();
    ids.sort_unstable();
    ids
}

/// A path or name in the form that the eBPF program compares. `None` if it is too long.
fn group_name(text: &str) -> Option<GroupName> {
    let mut bytes = [0; abi::MAX_GROUP_NAME as usize];
    // The last byte stays zero.
    let room = bytes.len() - 1;
    bytes[..room]
        .get_mut(..text.len())?
        .copy_from_slice(text.as_bytes());
    let mut name = GroupName::default();
    for (word, bytes) in name.text.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_ne_bytes(*bytes.first_chunk()?);
    }
    Some(name)
}

/// The target that inherits the members of this one; targets around this one may end in the same
/// call.
fn remaining_outer(outer: &BTreeMap<u32, Option<u32>>, target: u32) -> Option<u32> {
    let mut new_target = Some(target);
    for _ in 0..=outer.len() {
        match new_target.and_then(|new_target| outer.get(&new_target)) {
            Some(next) => new_target = *next,
            None => return new_target,
        }
    }
    None // a cycle, which the ledger excludes
}

/// The largest number of earlier cgroups that stay bound to a target. Data in the send buffers of
/// an ended program is gone after a minute, and few units restart more often than this in a minute.
const MAX_FORMER_CGROUPS: usize = 8;
/// The most searches for new members. A process tree that grows faster is a fork bomb; by then its
/// new members inherit.
const MAX_SEARCHES: usize = 16;

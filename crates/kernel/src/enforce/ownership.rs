//! Which processes, executables, cgroups and users a target is made of.

use std::collections::{BTreeMap, BTreeSet};

use aya::maps::{HashMap, MapData};

use super::{Kernel, entries, loaded};
use crate::{
    abi::{self, GroupName, Proc},
    again::{Forget, insist, look_up},
    cgroup::{self, Cgroup},
    error::KernelError,
    executable, process,
};

/// Which of the two memberships of a process is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    /// In a target made by pid, by run or by name.
    Own,
    /// In a target made by executable.
    App,
}

impl Membership {
    pub(super) fn of(self, process: &Proc) -> u32 {
        match self {
            Membership::Own => process.own,
            Membership::App => process.app,
        }
    }
}

/// What was found when processes were taken into a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Adoption {
    /// Processes that are members now.
    pub processes: usize,
    /// Sockets that were open already and were tagged.
    pub sockets: usize,
    /// Listeners that were left alone because processes outside the target accept on them too.
    pub shared_listeners: usize,
    /// MPTCP sockets that were open already: the kernel hides their subflows, their cgroup decides.
    pub hidden_mptcp: usize,
    /// Of the tagged sockets those that have no room for a tag: they are found by their number.
    pub strays: usize,
    /// There are more sockets to be looked at ([`Kernel::look_on`]).
    pub goes_on: bool,
    /// Sockets that are not held: they have no room for a tag, and the table of such sockets is full.
    pub unheld: usize,
}

impl Adoption {
    /// Adds what was found of other processes.
    pub fn add(&mut self, other: &Self) {
        self.processes += other.processes;
        self.sockets += other.sockets;
        self.shared_listeners += other.shared_listeners;
        self.hidden_mptcp += other.hidden_mptcp;
        self.strays += other.strays;
        self.unheld += other.unheld;
        self.goes_on |= other.goes_on;
    }
}

/// Children of members that were not members when they were born.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// How many.
    pub children: u64,
    /// How many of them, and of their children, were found and are members now.
    pub found: usize,
}

impl Kernel {
    /// Takes a process (and, unless `only`, its living descendants) into a target, with the sockets they have open.
    /// Descendants that are members of another target made inside this family keep that one: it nests.
    ///
    /// Children that are born meanwhile inherit in the kernel as soon as their parent is a member; whoever slipped
    /// through before is found by looking again until nobody new appears.
    pub fn adopt(
        &mut self,
        target: u32,
        root: u32,
        only: bool,
        keep: &BTreeSet<u32>,
    ) -> Result<Adoption, KernelError> {
        let members = self.enter(target, root, only, keep, Membership::Own)?;
        let mut total = Adoption {
            processes: members.len(),
            ..Adoption::default()
        };
        total.add(&self.tag_sockets_twice(&members, target, Membership::Own)?);
        Ok(total)
    }

    fn enter(
        &mut self,
        target: u32,
        root: u32,
        only: bool,
        keep: &BTreeSet<u32>,
        which: Membership,
    ) -> Result<BTreeSet<u32>, KernelError> {
        let mut members = BTreeSet::new();
        for _ in 0..MOST_LOOKS {
            let family = if only {
                vec![root]
            } else {
                process::family(root)
            };
            let programs = loaded(&mut self.programs)?;
            let mut procs = programs.hash::<u32, Proc>("procs")?;
            let mut news = 0;
            for pid in family {
                let old = look_up(|| procs.get(&pid, 0))?.unwrap_or_default();
                let mut new = old;
                match which {
                    Membership::Own if pid != root && keep.contains(&old.own) => continue,
                    Membership::Own => new.own = target,
                    Membership::App => new.app = target,
                }
                if new != old {
                    procs
                        .insert(pid, new, 0)
                        .map_err(|e| KernelError::bpf(format!("make process {pid} a member"), e))?;
                }
                news += usize::from(members.insert(pid));
            }
            if news == 0 {
                break;
            }
        }
        // An entry of a process whose end was told before it was entered would stay, and hit whoever gets its number.
        let dead: Vec<u32> = members
            .iter()
            .filter(|p| {
                process::thread_group(**p).is_some_and(|of| of != **p) || !process::goes_on(**p)
            })
            .copied()
            .collect();
        members.retain(|pid| !dead.contains(pid));
        self.drop_entries(&dead)?;
        Ok(members)
    }

    fn drop_entries(&mut self, of: &[u32]) -> Result<(), KernelError> {
        let mut procs = loaded(&mut self.programs)?.hash::<u32, Proc>("procs")?;
        for pid in of {
            procs.forget(pid)?;
        }
        Ok(())
    }

    /// Members of process targets: target of each process.
    pub fn members(&mut self) -> Result<BTreeMap<u32, Proc>, KernelError> {
        match &self.programs {
            Some(programs) => Ok(programs.all::<u32, Proc>("procs")?.into_iter().collect()),
            None => Ok(BTreeMap::new()),
        }
    }

    /// The membership of one process.
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

    /// Makes members of the children for which there was no room in the table of members when they were born, with the
    /// sockets that they have. To be called each second.
    pub fn find_lost(&mut self) -> Result<Option<Lost>, KernelError> {
        let Some(programs) = &mut self.programs else {
            return Ok(None);
        };
        let counted = programs.count(abi::COUNT_LOST_FORKS)?;
        if counted == self.lost {
            return Ok(None);
        }
        let mut members = self.members()?;
        let mut found: BTreeMap<Proc, BTreeSet<u32>> = BTreeMap::new();
        let mut procs = loaded(&mut self.programs)?.hash::<u32, Proc>("procs")?;
        for _ in 0..MOST_LOOKS {
            let before = members.len();
            for pid in process::all() {
                let parents = process::parent(pid).and_then(|parent| members.get(&parent).copied());
                let Some(membership) = parents.filter(|_| !members.contains_key(&pid)) else {
                    continue;
                };
                // What was found so far is kept; the rest is looked for again in a second.
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
                (membership.own, Membership::Own),
                (membership.app, Membership::App),
            ] {
                if target != 0 {
                    self.tag_sockets(pids, target, which)?;
                }
            }
        }
        let children = counted.saturating_sub(self.lost);
        self.lost = counted;
        Ok(Some(Lost {
            children,
            found: found.values().map(BTreeSet::len).sum(),
        }))
    }

    /// Drops entries of processes that are gone (their exit was missed while no program was attached).
    pub fn forget_dead(&mut self) -> Result<usize, KernelError> {
        let dead: Vec<u32> = self
            .members()?
            .into_keys()
            .filter(|p| !process::goes_on(*p))
            .collect();
        if !dead.is_empty() {
            self.drop_entries(&dead)?;
        }
        Ok(dead.len())
    }

    /// Ends process targets, all in one look at who is a member: members and their sockets pass to the target around
    /// their own, or to nobody. Adds to `released` who was a member of which, also if it fails. Looks again until nobody is,
    /// for a child may be born in between.
    pub fn release(
        &mut self,
        heirs: &BTreeMap<u32, Option<u32>>,
        which: Membership,
        released: &mut BTreeMap<u32, u32>,
    ) -> Result<(), KernelError> {
        let mut inherited: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for _ in 0..MOST_LOOKS {
            let mut found = false;
            for (pid, entry) in self.members()? {
                let target = which.of(&entry);
                if !heirs.contains_key(&target) {
                    continue;
                }
                let heir = last_heir(heirs, target);
                if self.pass_on(pid, heir.unwrap_or(0), which)? {
                    found = true;
                    released.insert(pid, target);
                    if let Some(heir) = heir {
                        inherited.entry(heir).or_default().insert(pid);
                    }
                }
            }
            if !found {
                break;
            }
        }
        for (heir, members) in inherited {
            self.tag_sockets(&members, heir, which)?;
        }
        Ok(())
    }

    /// Makes a process a member of another target, if it still is one at all. 0: of none.
    fn pass_on(&mut self, pid: u32, heir: u32, which: Membership) -> Result<bool, KernelError> {
        let mut procs = loaded(&mut self.programs)?.hash::<u32, Proc>("procs")?;
        // Read anew: it may have ended since, or begun to run something else.
        let Some(mut entry) = look_up(|| procs.get(&pid, 0))? else {
            return Ok(false);
        };
        match which {
            Membership::Own => entry.own = heir,
            Membership::App => entry.app = heir,
        }
        if entry == Proc::default() {
            procs.forget(&pid)?;
        } else {
            insist(|| procs.insert(pid, entry, 0)).map_err(|e| {
                KernelError::bpf(format!("make process {pid} a member of another target"), e)
            })?;
        }
        Ok(true)
    }

    /// The executable at a path, looked at with root's rights.
    pub fn app(&mut self, path: &str) -> Result<abi::AppKey, KernelError> {
        let found = self.executables.look(path);
        found.map_err(KernelError::file("find the executable", path))
    }

    /// Makes an executable a target: what runs it now, and what will.
    pub fn bind_app(&mut self, target: u32, path: &str) -> Result<Adoption, KernelError> {
        let key = self.app(path)?;
        let programs = loaded(&mut self.programs)?;
        programs
            .hash::<abi::AppKey, u32>("apps")?
            .insert(key, target, 0)
            .map_err(|e| KernelError::bpf(format!("bind {path}"), e))?;
        let mut total = Adoption::default();
        for pid in process::all()
            .into_iter()
            .filter(|pid| executable::of_process(*pid) == Some(key))
        {
            let members = self.enter(target, pid, false, &BTreeSet::new(), Membership::App)?;
            total.add(&self.tag_sockets(&members, target, Membership::App)?);
            total.processes += members.len();
        }
        Ok(total)
    }

    /// Whether an executable is bound to a target; false also when another file now stands at its path.
    pub fn is_app_bound(&mut self, target: u32, path: &str) -> bool {
        let (Ok(key), Some(programs)) = (self.app(path), &mut self.programs) else {
            return false;
        };
        programs
            .hash::<abi::AppKey, u32>("apps")
            .is_ok_and(|map| map.get(&key, 0).is_ok_and(|t| t == target))
    }

    /// Ends a target made by executable.
    pub fn unbind_app(&mut self, target: u32) -> Result<(), KernelError> {
        let mut apps = loaded(&mut self.programs)?.hash::<abi::AppKey, u32>("apps")?;
        let all: Vec<(abi::AppKey, u32)> = entries(apps.iter(), "apps")?;
        for (key, _) in all.iter().filter(|(_, of)| *of == target) {
            apps.forget(key)?;
        }
        let heirs = BTreeMap::from([(target, None)]);
        self.release(&heirs, Membership::App, &mut BTreeMap::new())
    }

    /// Makes a cgroup, with all below it, a target. Groups that the target had before are gone from the file system, but
    /// not what is still being sent of them: they stay the target's, the latest few.
    pub fn bind_cgroup(&mut self, target: u32, group: &Cgroup) -> Result<(), KernelError> {
        let programs = loaded(&mut self.programs)?;
        let mut map = programs.hash::<u64, u32>("cgroups")?;
        map.insert(group.id, target, 0)
            .map_err(|e| KernelError::bpf(format!("bind cgroup {}", group.path), e))?;
        let mut before = ids_of(&map, target);
        before.retain(|id| *id != group.id);
        let surplus = before.len().saturating_sub(MOST_FORMER_GROUPS);
        for id in &before[..surplus] {
            map.forget(id)?;
        }
        for id in before {
            programs.forget_cgroup(id);
        }
        programs.watch_cgroup(group.id, &group.folder)?;
        self.renew_cgroups()
    }

    /// Ends a target's hold on its cgroup, and on those that it had before.
    pub fn unbind_cgroup(&mut self, target: u32) -> Result<(), KernelError> {
        let programs = loaded(&mut self.programs)?;
        let mut map = programs.hash::<u64, u32>("cgroups")?;
        let ids = ids_of(&map, target);
        for id in &ids {
            map.forget(id)?;
        }
        for id in ids {
            programs.forget_cgroup(id);
        }
        self.renew_cgroups()
    }

    /// Tells the kernel which cgroups, when they are made, are whose from the start: by path, or by the last name alone
    /// for one below nothing but slices. What it was told before and is not named here it forgets.
    pub fn await_cgroups(&mut self, names: &BTreeMap<String, u32>) -> Result<(), KernelError> {
        let Some(programs) = &mut self.programs else {
            return Ok(());
        };
        let mut map = programs.hash::<GroupName, u32>("awaited")?;
        let wanted: BTreeMap<GroupName, u32> = names
            .iter()
            .filter_map(|(name, target)| Some((group_name(name)?, *target)))
            .collect();
        let told: BTreeMap<GroupName, u32> = entries(map.iter(), "awaited")?;
        if wanted == told {
            return Ok(());
        }
        for name in told.keys().filter(|name| !wanted.contains_key(name)) {
            map.forget(name)?;
        }
        for (name, target) in &wanted {
            if told.get(name) != Some(target) {
                map.insert(name, target, 0)
                    .map_err(|e| KernelError::bpf("wait for a cgroup", e))?;
            }
        }
        self.renew_cgroups()
    }

    /// Makes every socket look its cgroup up anew.
    fn renew_cgroups(&mut self) -> Result<(), KernelError> {
        let programs = loaded(&mut self.programs)?;
        let there = programs
            .hash::<u64, u32>("cgroups")?
            .keys()
            .next()
            .is_some();
        let awaited = programs
            .hash::<GroupName, u32>("awaited")?
            .keys()
            .next()
            .is_some();
        let mut settings = programs.settings()?;
        settings.generation += 1;
        settings.cgroups = u32::from(there || awaited);
        programs.set_settings(settings)
    }

    /// Makes a user a target; tags the sockets that the user's processes have open.
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
        // So that what they receive is known before they first send.
        let theirs: BTreeSet<u32> = process::all()
            .into_iter()
            .filter(|p| process::facts(*p).is_some_and(|f| f.uid == uid))
            .collect();
        let mut found = self.note_users(&theirs)?;
        found.processes = theirs.len();
        Ok(found)
    }

    /// Ends a user target.
    pub fn unbind_user(&mut self, target: u32) -> Result<(), KernelError> {
        let programs = loaded(&mut self.programs)?;
        let mut users = programs.hash::<u32, u32>("users")?;
        let all: Vec<(u32, u32)> = entries(users.iter(), "users")?;
        let (theirs, others): (Vec<_>, Vec<_>) = all.iter().partition(|(_, of)| *of == target);
        for (uid, _) in theirs {
            users.forget(&uid)?;
        }
        let count = others.len() as u32;
        let mut settings = programs.settings()?;
        settings.users = count;
        programs.set_settings(settings)
    }

    /// The cgroup of a process, for finding the targets around it.
    pub fn cgroup_of(pid: u32) -> Option<String> {
        cgroup::of_process(pid)
    }
}

/// The cgroups of a target, the eldest first (ids are given out in order).
fn ids_of(map: &HashMap<&mut MapData, u64, u32>, target: u32) -> Vec<u64> {
    let own = map.iter().flatten().filter(|(_, of)| *of == target);
    let mut ids: Vec<u64> = own.map(|(id, _)| id).collect();
    ids.sort_unstable();
    ids
}

/// A path or a name as the kernel compares it; none that it could not.
fn group_name(text: &str) -> Option<GroupName> {
    let mut bytes = [0; abi::MAX_GROUP_NAME as usize];
    // One zero stays at the end.
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

/// The target that what is a member of this one falls to, where those around it may end too.
fn last_heir(heirs: &BTreeMap<u32, Option<u32>>, target: u32) -> Option<u32> {
    let mut heir = Some(target);
    for _ in 0..=heirs.len() {
        match heir.and_then(|heir| heirs.get(&heir)) {
            Some(next) => heir = *next,
            None => return heir,
        }
    }
    None // they contain one another, which the ledger rules out
}

/// Data that an ended program left in its send buffers is gone after a minute; few units are restarted more often.
const MOST_FORMER_GROUPS: usize = 8;
/// A family that grows faster than this many looks is a fork bomb; its new members inherit by then.
const MOST_LOOKS: usize = 16;

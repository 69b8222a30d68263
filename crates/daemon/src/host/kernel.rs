//! The Linux kernel as a [`super::Host`]: implements [`Inventory`], [`Enforcer`] and, in `meter`,
//! [`super::Meter`] with the crate `netnice_kernel`, and converts that crate's errors to
//! [`RequestError`]. A method fails if the named object does not exist, or if the kernel refuses;
//! taking the exit ring also fails if nothing is in force or the ring was taken before.

mod meter;
mod processor_time;

use std::collections::{BTreeMap, BTreeSet};

use netnice_api::Found;
use netnice_core::units::{Instant, Rate};
use netnice_kernel::cgroup::{self, Cgroup};
use netnice_kernel::connections::{self, Connection};
use netnice_kernel::enforce::{
    Adoption, ContainerPlacement, Exits, Kernel, Membership, Recovered, TargetClass,
};
use netnice_kernel::netlink::NetlinkClient;
use netnice_kernel::plan::{Desired, LeafQdisc};
use netnice_kernel::{KernelError, device, ethtool, executable, process};

use super::{Act, Enforcer, Interface, Inventory, LookupRights, Members, Process};
use crate::error::RequestError;
use crate::host::containers::Engines;
use crate::ledger::{AppKey, CgroupRef, ProcessId, TargetPlace};
use crate::{name_files, name_service};

/// The kernel of this machine, in the daemon's network namespace.
pub(crate) struct KernelHost {
    pub(super) kernel: Kernel,
    route: NetlinkClient,
    engines: Engines,
    lookup_rights: LookupRights,
    /// Distinguishes the groups of this daemon from those of others on the machine.
    processor_key: String,
    /// The threads that have SCHED_DEADLINE from this daemon or one before it.
    reserved: BTreeSet<u32>,
}

impl KernelHost {
    /// Wraps an opened kernel, and opens a netlink socket of its own. `processor_key` distinguishes
    /// the control groups of this daemon from those of others on the machine.
    ///
    /// # Errors
    /// If the kernel refuses the socket.
    pub(crate) fn new(
        kernel: Kernel,
        engines: Engines,
        processor_key: String,
    ) -> Result<KernelHost, KernelError> {
        Ok(KernelHost {
            kernel,
            engines,
            lookup_rights: LookupRights::default(),
            processor_key,
            reserved: BTreeSet::new(),
            route: NetlinkClient::open()?,
        })
    }

    /// The port ids of the netlink sockets with which this host makes changes.
    ///
    /// # Errors
    /// If the kernel does not return the address of a socket.
    pub(crate) fn netlink_ports(&self) -> Result<Vec<u32>, KernelError> {
        Ok(vec![self.kernel.netlink_port()?, self.route.port_number()?])
    }

    /// The exit ring.
    ///
    /// # Errors
    /// If nothing is in force, or the ring was taken since something came into force.
    pub(crate) fn take_exits(&mut self) -> Result<Exits, KernelError> {
        self.kernel.take_exits()
    }

    /// Carries out an act: returns how far it came, and the act that undoes that.
    ///
    /// # Errors
    /// If it could not be started; then there is nothing to undo.
    fn carry_out(
        &mut self,
        act: &Act,
    ) -> Result<(Result<Adoption, KernelError>, Act), RequestError> {
        let nothing = |()| Adoption::default();
        Ok(match act {
            Act::Adopt {
                id,
                pid,
                only,
                keep,
            } => {
                let number = |id: u32| (id != 0).then_some(id);
                let outer = number(self.kernel.membership(*pid).process).filter(|own| own != id);
                let found = self.kernel.adopt(*id, *pid, *only, keep);
                (found, Act::release(*id, outer))
            }
            Act::Readopt { members } => {
                let done = members.iter().try_for_each(|(pid, id)| {
                    let adopted = self.kernel.adopt(*id, *pid, true, &BTreeSet::new());
                    adopted.map(drop)
                });
                (done.map(nothing), Act::release_again(members))
            }
            Act::Release {
                outer_targets,
                by_descent,
            } => {
                let mut members = BTreeMap::new();
                let done = self.kernel.release(
                    outer_targets,
                    by_descent,
                    Membership::Process,
                    &mut members,
                );
                (done.map(nothing), Act::Readopt { members })
            }
            Act::BindApp { id, path } => {
                let (id, path) = (*id, path.clone());
                let found = self.kernel.bind_app(id, &path);
                (found, Act::UnbindApp { id, path })
            }
            Act::UnbindApp { id, path } => {
                let done = self.if_enforcing(|kernel| kernel.unbind_app(*id));
                let (id, path) = (*id, path.clone());
                (done.map(nothing), Act::BindApp { id, path })
            }
            Act::BindCgroup { id, bound } => {
                let group = self.find_group(bound)?;
                let done = self.kernel.bind_cgroup(*id, &group);
                let (id, bound) = (*id, Some(bound.clone()));
                (done.map(nothing), Act::UnbindCgroup { id, bound })
            }
            Act::UnbindCgroup { id, bound } => {
                let done = self.if_enforcing(|kernel| kernel.unbind_cgroup(*id));
                let id = *id;
                let undo = match bound.clone() {
                    Some(bound) => Act::BindCgroup { id, bound },
                    None => Act::UnbindCgroup { id, bound: None },
                };
                (done.map(nothing), undo)
            }
            Act::BindUser { id, uid } => {
                let (id, uid) = (*id, *uid);
                (self.kernel.bind_user(id, uid), Act::UnbindUser { id, uid })
            }
            Act::UnbindUser { id, uid } => {
                let done = self.if_enforcing(|kernel| kernel.unbind_user(*id));
                let (id, uid) = (*id, *uid);
                (done.map(nothing), Act::BindUser { id, uid })
            }
        })
    }

    /// Runs `act` if anything is in force.
    fn if_enforcing(
        &mut self,
        act: impl FnOnce(&mut Kernel) -> Result<(), KernelError>,
    ) -> Result<(), KernelError> {
        match self.kernel.is_enforcing() {
            true => act(&mut self.kernel),
            false => Ok(()),
        }
    }

    fn find_group(&mut self, bound: &CgroupRef) -> Result<Cgroup, RequestError> {
        Ok(cgroup::find(&bound.path)?)
    }
}

impl Inventory for KernelHost {
    fn process(&mut self, pid: u32) -> Option<Process> {
        let facts = process::facts(pid)?;
        Some(Process {
            root: ProcessId {
                pid,
                started: process::start_time(pid)?,
            },
            uid: facts.uid,
            dumpable: facts.dumpable,
            name: facts.name,
            in_own_network: process::namespace(pid)
                .zip(process::own_namespace())
                .map(|(its, own)| its == own),
        })
    }

    fn processes_named(&mut self, command: &str) -> Vec<Process> {
        let processes = process::all().into_iter();
        let processes = processes.filter(|pid| process::has_command(*pid, command));
        let processes = processes.filter_map(|pid| self.process(pid));
        processes
            .filter(|process| process.name == command)
            .collect()
    }

    fn network_namespace(&mut self) -> Option<u64> {
        process::own_namespace()
    }

    fn place(&mut self, pid: u32) -> TargetPlace {
        let membership = self.kernel.membership(pid);
        let number = |id: u32| (id != 0).then_some(id);
        TargetPlace {
            own: number(membership.process),
            app: number(membership.app),
            cgroup: Kernel::cgroup_of(pid),
            uid: process::facts(pid).map(|facts| facts.uid),
        }
    }

    fn family(&mut self, pid: u32) -> BTreeSet<u32> {
        process::with_descendants(pid).into_iter().collect()
    }

    fn parent(&mut self, pid: u32) -> Option<u32> {
        process::parent(pid)
    }

    fn running(&mut self, app: AppKey) -> BTreeSet<u32> {
        let runs = |pid: &u32| {
            executable::of_process(*pid)
                .is_some_and(|key| key.inode == app.inode && key.dev == app.dev)
        };
        let running = process::all().into_iter().filter(runs);
        running.flat_map(process::with_descendants).collect()
    }

    fn membership(&mut self, pid: u32) -> (u32, u32) {
        let membership = self.kernel.membership(pid);
        (membership.process, membership.app)
    }

    fn members(&mut self) -> Result<Members, RequestError> {
        let members = self.kernel.members()?.into_iter();
        Ok(members.map(|(pid, p)| (pid, (p.process, p.app))).collect())
    }

    fn app(&mut self, path: &str) -> Result<AppKey, RequestError> {
        let nothing = |why: &str| {
            RequestError::Failed(format!(
                "there is no program at {path} to be limited: {why}"
            ))
        };
        match &self.lookup_rights {
            LookupRights::AsRoot => {}
            LookupRights::AsUser(seen, found) if seen == path => {
                return found.clone().map_err(|why| nothing(&why));
            }
            LookupRights::AsUser(..) | LookupRights::NamedUser(..) | LookupRights::NoLookup => {
                return Err(nothing("it was not looked up"));
            }
        }
        let key = self
            .kernel
            .executable_key(path)
            .map_err(|error| match &error {
                KernelError::File { source, .. } => nothing(&source.to_string()),
                error => nothing(&error.to_string()),
            })?;
        Ok(AppKey {
            inode: key.inode,
            dev: key.dev,
        })
    }

    fn cgroup(&mut self, path: &str) -> Result<CgroupRef, RequestError> {
        let found = cgroup::find(path)?;
        Ok(CgroupRef {
            path: found.path,
            id: found.id,
        })
    }

    fn unit(&mut self, name: &str) -> Result<CgroupRef, RequestError> {
        let found = cgroup::find_unit(name)?;
        Ok(CgroupRef {
            path: found.path,
            id: found.id,
        })
    }

    fn container(&mut self, name: &str) -> Result<CgroupRef, RequestError> {
        let ids = self.engines.ids_of(name);
        let found = ids.iter().find_map(|id| cgroup::find_container(id));
        let Some(found) = found else {
            return Err(RequestError::Failed(match ids.first() {
                Some(id) => {
                    format!("container {name} ({id:.12}) does not run: it has no control group")
                }
                None => format!(
                    "no container is called {name}: neither Docker ({}) nor Podman ({}) has a \
                     record of it",
                    self.engines.docker.display(),
                    self.engines.podman.display()
                ),
            }));
        };
        Ok(CgroupRef {
            path: found.path,
            id: found.id,
        })
    }

    fn running_units(&mut self) -> BTreeSet<String> {
        cgroup::units()
    }

    fn user(&mut self, name: &str) -> Result<u32, RequestError> {
        if let Some(uid) = name_files::number_of_user(name) {
            return Ok(uid);
        }
        let found = match &self.lookup_rights {
            LookupRights::AsRoot => {
                let found = name_service::user(name).map_err(|error| {
                    RequestError::Failed(format!("cannot look up user {name}: {error}"))
                })?;
                found.map(|user| user.uid.as_raw())
            }
            LookupRights::NamedUser(seen, uid) if seen == name => *uid,
            _ => None,
        };
        found.ok_or_else(|| KernelError::NoUser(name.to_owned()).into())
    }

    fn interfaces(&mut self) -> Result<Vec<Interface>, RequestError> {
        let devices = device::list(&mut self.route).map_err(KernelError::from)?;
        let interfaces = devices.into_iter().map(|device| Interface {
            name: device.name,
            index: device.index,
            up: device.up,
        });
        Ok(interfaces.collect())
    }

    fn speed(&mut self, interface: &str) -> Result<Option<Rate>, RequestError> {
        ethtool::speed(interface).map_err(|error| {
            RequestError::Failed(format!(
                "cannot read the speed of {interface} from its driver: {error}"
            ))
        })
    }

    fn connections(&mut self, of: Option<&Found>) -> Result<Vec<Connection>, RequestError> {
        let mut all = connections::list_all()?;
        let pids = match of {
            None => return Ok(all),
            Some(Found::User(uid)) => {
                all.retain(|connection| connection.uid == *uid);
                return Ok(all);
            }
            Some(Found::Processes(pids)) => pids.clone(),
            Some(Found::App(path)) => {
                let key = self.app(path)?;
                self.running(key).into_iter().collect()
            }
            Some(Found::Cgroup(path)) => cgroup::processes(&cgroup::find(path)?),
        };
        let sockets = pids.into_iter().flat_map(process::sockets);
        let theirs: BTreeSet<u64> = sockets.map(|(_, inode)| inode).collect();
        all.retain(|connection| theirs.contains(&connection.inode));
        Ok(all)
    }

    fn group_ids(&mut self, path: &str) -> BTreeSet<u64> {
        cgroup::find(path).map_or_else(|_| BTreeSet::new(), |group| cgroup::ids(&group))
    }

    fn set_lookup_rights(&mut self, rights: LookupRights) {
        self.lookup_rights = rights;
    }
}

impl Enforcer for KernelHost {
    fn apply(&mut self, desired: &Desired) -> Result<(), RequestError> {
        let interfaces = self.interfaces()?;
        let mut desired = desired.clone();
        // A managed link without its interface is installed when the interface returns.
        desired
            .links
            .retain(|link| interfaces.iter().any(|i| i.name == link.name));
        Ok(self.kernel.apply(&desired)?)
    }

    fn act(&mut self, act: &Act) -> Result<(Adoption, Act), RequestError> {
        let (done, undo) = self.carry_out(act)?;
        match done {
            Ok(found) => Ok((found, undo)),
            Err(error) => {
                // Once: a failed undo is not undone.
                let rolled_back = self.carry_out(&undo);
                if let Err(again) = rolled_back.and_then(|(done, _)| Ok(done?)) {
                    tracing::error!(%again, "a step that failed cannot be undone");
                }
                Err(error.into())
            }
        }
    }

    fn unfinished_surveys(&self) -> usize {
        self.kernel.unfinished_surveys()
    }

    fn continue_survey(&mut self) -> Result<Option<Adoption>, RequestError> {
        Ok(self.kernel.continue_survey()?)
    }

    fn maintain_tables(&mut self) -> Result<Vec<String>, RequestError> {
        self.kernel.remove_closed_cookies()?;
        self.kernel.adapt_turns()?;
        let lost = self.kernel.adopt_missed_forks()?;
        Ok(lost
            .map(|lost| {
                format!(
                    "the table of members had no room for {} children of limited processes when \
                     they were forked; {} were found and are members now",
                    lost.children, lost.found
                )
            })
            .into_iter()
            .collect())
    }

    fn expect_groups(&mut self, names: &BTreeMap<String, u32>) -> Result<(), RequestError> {
        Ok(self.kernel.expect_groups(names)?)
    }

    fn place_containers(
        &mut self,
        groups: &BTreeMap<u32, Option<String>>,
    ) -> Result<BTreeMap<u32, ContainerPlacement>, RequestError> {
        Ok(self.kernel.place_containers(groups)?)
    }

    fn balance(&mut self, now: Instant) -> Result<(), RequestError> {
        self.kernel.balance(now)?;
        Ok(())
    }

    fn reconcile(&mut self) -> Result<(), RequestError> {
        Ok(self.kernel.reconcile()?)
    }

    fn audit(&mut self, anew: bool) -> Result<Vec<String>, RequestError> {
        Ok(self.kernel.audit(anew)?)
    }

    fn forget_dead(&mut self) -> Result<(), RequestError> {
        self.kernel.remove_ended()?;
        Ok(())
    }

    fn recovered(&mut self) -> Result<Recovered, RequestError> {
        Ok(self.kernel.recovered()?)
    }

    fn is_enforcing(&self) -> bool {
        self.kernel.is_enforcing()
    }

    fn serves(&self, link: &str, index: u32) -> bool {
        self.kernel.serves(link, index)
    }

    fn link_leaf(&self) -> &'static str {
        match self.kernel.leaf_qdisc() {
            LeafQdisc::FqCodel => "fq_codel",
            LeafQdisc::Fifo => "sparse+bulk",
        }
    }

    fn attached(&self) -> Vec<String> {
        self.kernel.attached_interfaces()
    }

    fn attachment(&self) -> &'static str {
        self.kernel.attachment()
    }

    fn target_classes(&self, id: u32) -> Vec<TargetClass> {
        self.kernel.target_classes(id)
    }
}

//! Makes the kernel's state equal to a desired state ([`Kernel`]), and reads back counts and
//! faults. Nothing here decides about a contract.
//!
//! [`Kernel::apply`] takes the complete desired state and carries out the difference to the
//! installed state. If a change fails twice, `apply` returns the error and restores the state
//! before the change as far as it can. The order matters: classes are made before the map entries
//! that send packets to them, and removed after these entries. All calls that use the kernel fail
//! with [`KernelError`] if the kernel refuses a request, or if the state of an earlier daemon
//! cannot be read.
//!
//! While nothing is in force, nothing is loaded: no program, no map, no interface of netnice.
//!
//! ```text
//!             apply(something)                  apply(nothing)
//!   idle ──────────────────────────▶ enforcing ────────────────▶ idle
//!                                      │  ▲
//!            the daemon ends, and the  │  │  a new daemon: Kernel::open takes over the pinned
//!            kernel keeps enforcing    ▼  │  programs and maps, the classes and the interfaces
//! ```

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fs,
    io::Read,
    path::{Path, PathBuf},
};

use crate::{
    abi,
    device::{self, Device},
    error::KernelError,
    executable::Executables,
    netlink::NetlinkClient,
    plan::{self, Desired, LeafQdisc, Plan},
    process,
    programs::Programs,
    rcu::ShortGracePeriods,
    retry::RemoveEntry,
};

mod balance;
mod containers;
mod cookie_owners;
mod events;
mod interfaces;
mod ownership;
mod queues;
mod recovered;
mod redirects;
mod roots;
mod sample;
mod sockets;
mod stages;
mod target_classes;
mod traffic_quotas;
mod turns;

pub use crate::abi::PathCount;
pub use containers::ContainerPlacement;
pub use events::{Exit, Exits};
pub use interfaces::{MAX_INTERFACES, PathCounter};
pub use ownership::{Adoption, Membership, MissedForks};
pub use recovered::{Recovered, RecoveredLimit};
pub use redirects::{
    MAX_REDIRECTS, REDIRECT_BUCKETS, REDIRECT_OVERHEAD, Redirect, RedirectFlow, Redirects,
};
pub(crate) use roots::PACER_MAJOR;
pub use sample::{DirectionCounts, Sample, TargetCounts};
pub(crate) use stages::LINK_MAJOR;
pub use target_classes::TargetClass;
pub use traffic_quotas::{MAX_QUOTAS, MOST_QUOTAS, QuotaEntry, QuotaState};

/// The kernel state of netnice in one network namespace.
pub struct Kernel {
    runtime: PathBuf,
    netlink: NetlinkClient,
    cookie: u64,
    leaf_qdisc: LeafQdisc,
    programs: Option<Programs>,
    installed: Plan,
    desired: Desired,
    /// A copy of the targets' entries in the maps: reading a map of thousands back takes longer
    /// than a change may.
    written: BTreeMap<u32, abi::Target>,
    idle_nodes: plan::IdleNodes,
    /// The slots of the targets whose local leaves carry packets, and [`abi::COUNT_LOCAL`] when
    /// they were last read.
    on_lo: (BTreeSet<u16>, u64),
    last_counts: balance::LastCounts,
    stages: stages::Stages,
    interfaces: BTreeMap<u32, interfaces::Attached>,
    /// Ids of the targets that are containers.
    containers: BTreeSet<u32>,
    executables: Executables,
    was_reset: bool,
    /// Number of calls of [`Kernel::remove_closed_cookies`].
    cookie_checks: u32,
    /// Number of children that could not be made members, at the last search for them.
    missed_forks: u64,
    /// The classes at their last listing.
    listed: sample::ListedClasses,
    /// Processes whose open sockets are still to be tagged.
    surveys: VecDeque<sockets::Survey>,
    /// The traffic quotas, desired and written.
    quotas: traffic_quotas::Quotas,
}

impl Kernel {
    /// Opens the kernel state for this runtime folder, in the network namespace of the calling
    /// thread. Adopts what an earlier daemon left in force. If that daemon's maps have another
    /// layout or are incomplete, removes everything instead.
    ///
    /// # Errors
    /// If the kernel refuses a request, or the files or maps of the earlier daemon cannot be read.
    pub fn open(runtime: &Path, leaf_qdisc: LeafQdisc) -> Result<Self, KernelError> {
        let mut kernel = Self {
            runtime: runtime.to_owned(),
            netlink: NetlinkClient::open()?,
            cookie: process::netns_cookie().map_err(KernelError::file(
                "read the network namespace's cookie",
                "socket",
            ))?,
            leaf_qdisc,
            programs: None,
            installed: Plan::default(),
            desired: Desired::default(),
            written: BTreeMap::new(),
            idle_nodes: plan::IdleNodes::new(),
            on_lo: (BTreeSet::new(), 0),
            last_counts: balance::LastCounts::default(),
            stages: stages::Stages::default(),
            interfaces: BTreeMap::new(),
            containers: BTreeSet::new(),
            executables: Executables::default(),
            was_reset: false,
            cookie_checks: 0,
            missed_forks: 0,
            listed: sample::ListedClasses::new(),
            surveys: VecDeque::new(),
            quotas: traffic_quotas::Quotas::default(),
        };
        ShortGracePeriods::restore_after_crash(runtime);
        if !Programs::are_pinned(runtime)? {
            return Ok(kernel);
        }
        let layout = Programs::layout(runtime)?;
        if layout.as_deref() != Some(abi::LAYOUT) {
            kernel.was_reset = layout.is_some();
            kernel.reset()?;
        } else {
            let mut programs = Programs::load(runtime)?;
            let map = programs.hash::<u32, abi::Target>("targets")?;
            kernel.written = entries(map.iter(), "targets")?;
            let containers = programs.hash::<u32, u32>("containers")?;
            kernel.containers = entries(containers.keys(), "containers")?;
            kernel.programs = Some(programs);
            kernel.adopt_quotas()?;
            kernel.adopt_stages()?;
            kernel.adopt_interfaces()?;
            kernel.tag_remaining_sockets()?;
        }
        Ok(kernel)
    }

    /// Removes state that cannot be continued: of a daemon with another layout of the maps, or of a
    /// daemon that was killed while it loaded or unloaded. The daemon installs the contracts again
    /// from the state file.
    fn reset(&mut self) -> Result<(), KernelError> {
        let devices = device::list(&mut self.netlink)?;
        self.find_stages(&devices)?;
        Programs::remove_all(&self.runtime, &mut self.netlink, &devices);
        self.remove_stages(&devices)?;
        self.restore_loopback_settings();
        self.installed = Plan::default();
        Ok(())
    }

    /// Whether [`Kernel::open`] removed state because its maps had another layout.
    pub fn was_reset(&self) -> bool {
        self.was_reset
    }

    /// Whether the programs are loaded: something is in force, or an earlier daemon's state was
    /// adopted.
    pub fn is_enforcing(&self) -> bool {
        self.programs.is_some()
    }

    /// Whether the classes of a desired link are on the interface of this index. False for a link
    /// that is not desired, and between a change of its interface and [`Kernel::reconcile`].
    pub fn serves(&self, link: &str, index: u32) -> bool {
        let desired = self.desired.links.iter().find(|one| one.name == link);
        desired.is_some_and(|desired| {
            let up = desired.up.is_none() || self.stages.up.get(link) == Some(&index);
            up && (desired.down.is_none() || self.stages.down.contains_key(link))
        })
    }

    /// The queueing discipline of the leaves of links.
    pub fn leaf_qdisc(&self) -> LeafQdisc {
        self.leaf_qdisc
    }

    /// How the programs are attached to interfaces: `tcx`, `clsact`, or `nothing` if none are
    /// loaded.
    pub fn attachment(&self) -> &'static str {
        match &self.programs {
            Some(p) if p.uses_tcx() => "tcx",
            Some(_) => "clsact",
            None => "nothing",
        }
    }

    /// Makes the kernel's state equal to the desired state. If that fails, also at a second try,
    /// restores the state before it as far as possible.
    ///
    /// # Errors
    /// The error of the change, also after the state was restored.
    pub fn apply(&mut self, desired: &Desired) -> Result<(), KernelError> {
        let before = self.desired.clone();
        let mut result = self.install(desired);
        // Another program may have changed the state from which the difference was computed.
        if result.is_err() && self.programs.is_some() && self.refresh_installed().is_ok() {
            result = self.install(desired);
        }
        if result.is_err() {
            // The steps before the failure took effect; the difference back is computed from there.
            if self.programs.is_some()
                && let Err(error) = self.refresh_installed()
            {
                tracing::debug!(%error, "cannot read back the state after a failed change");
            }
            if let Err(error) = self.install(&before) {
                tracing::error!(%error, "cannot restore the state before the failed change");
            }
        }
        result
    }

    fn install(&mut self, desired: &Desired) -> Result<(), KernelError> {
        self.listed.clear();
        let desired = Desired {
            leaf_qdisc: self.leaf_qdisc,
            ..desired.clone()
        };
        if desired.targets.is_empty() && desired.links.is_empty() {
            return self.tear_down();
        }
        if self.programs.is_none() {
            // Nothing of the loaded state is in force yet.
            let loaded = Programs::load(&self.runtime);
            self.programs = Some(loaded.inspect_err(|_| Programs::remove_pins(&self.runtime))?);
        }
        let devices = device::list(&mut self.netlink)?;
        let desired = Desired {
            longest_packet: longest_packet(&devices),
            loopback: loopback(&devices),
            on_lo: self.on_lo.0.clone(),
            ..desired
        };
        let plan = plan::plan(&desired, &self.idle_nodes);
        self.prepare_stages(&plan, &devices)?;
        let removals = self.add_classes(&plan)?;
        self.write_quotas()?;
        self.write_targets(&plan, &desired)?;
        self.attach_interfaces(&plan, &devices)?;
        self.write_settings(&desired)?;
        self.remove_classes(removals)?;
        self.drop_stages(&plan, &devices)?;
        self.installed = plan;
        self.desired = desired;
        Ok(())
    }

    fn tear_down(&mut self) -> Result<(), KernelError> {
        if let Some(programs) = &mut self.programs {
            programs.set_settings(abi::Settings::default())?;
        }
        let devices = device::list(&mut self.netlink)?;
        let short_grace_periods =
            ShortGracePeriods::for_batch(&self.runtime, self.interfaces.len());
        self.detach_interfaces(&devices);
        drop(short_grace_periods);
        // No packet passes the programs any more, so these counts are the last.
        self.keep_quota_counts();
        self.remove_stages(&devices)?;
        if let Some(programs) = self.programs.take() {
            programs.unload();
        }
        self.installed = Plan::default();
        self.desired = Desired::default();
        self.written.clear();
        self.containers.clear();
        self.missed_forks = 0;
        Ok(())
    }

    /// Writes the targets' map entries: the queues of their packets and their code points.
    fn write_targets(&mut self, plan: &Plan, desired: &Desired) -> Result<(), KernelError> {
        let wanted: BTreeMap<u32, abi::Target> = desired
            .targets
            .iter()
            .map(|t| {
                let cap = plan.leaves.get(&t.id).copied().unwrap_or_default().cap;
                let cap = cap.map(|pair| stages::leaf(stages::CAP_MAJOR, pair));
                (
                    t.id,
                    abi::Target {
                        counters: t.id,
                        dscp: t
                            .dscp
                            .map_or(0, |dscp| abi::DSCP_SET | u32::from(dscp.get())),
                        quotas: traffic_quotas::padded(&t.quotas),
                        cap,
                    },
                )
            })
            .collect();
        let programs = loaded(&mut self.programs)?;
        let mut map = programs.hash::<u32, abi::Target>("targets")?;
        for (id, target) in &wanted {
            if self.written.get(id) != Some(target) {
                map.insert(id, target, 0)
                    .map_err(|e| KernelError::bpf(format!("write target {id}"), e))?;
                self.written.insert(*id, *target);
            }
        }
        let gone: Vec<u32> = self
            .written
            .keys()
            .filter(|id| !wanted.contains_key(id))
            .copied()
            .collect();
        for id in &gone {
            map.remove_entry(id)?;
            self.written.remove(id);
        }
        let mut counters = programs.counters()?;
        for id in gone {
            for dir in [abi::DIR_UP, abi::DIR_DOWN] {
                counters.remove_entry(&abi::CounterKey { target: id, dir })?;
            }
        }
        Ok(())
    }

    fn write_settings(&mut self, desired: &Desired) -> Result<(), KernelError> {
        let cap_stage = self.stages.cap.map_or(0, |pair| pair.near);
        let programs = loaded(&mut self.programs)?;
        let old = programs.settings()?;
        let settings = abi::Settings {
            netns_cookie: self.cookie,
            cap_stage,
            targets: desired.targets.len() as u32,
            links: desired.links.len() as u32,
            key: match old.key {
                [0, 0] => random()?,
                key => key,
            },
            ..old
        };
        if settings != old {
            programs.set_settings(settings)?;
        }
        Ok(())
    }
}

/// Collects all entries of a map. A read error fails the whole, so that a part is never taken for
/// the whole.
fn entries<T, C: FromIterator<T>>(
    entries: impl Iterator<Item = Result<T, aya::maps::MapError>>,
    map: &str,
) -> Result<C, KernelError> {
    let all: Result<C, _> = entries.collect();
    all.map_err(|error| KernelError::bpf(format!("read map {map}"), error))
}

fn loaded(programs: &mut Option<Programs>) -> Result<&mut Programs, KernelError> {
    programs.as_mut().ok_or_else(|| KernelError::Bpf {
        what: "use the eBPF programs".into(),
        reason: "none are loaded, because nothing is in force".into(),
    })
}

/// Unpredictable random numbers.
fn random<const N: usize>() -> Result<[u32; N], KernelError> {
    let mut random =
        fs::File::open(RANDOM).map_err(KernelError::file("read random numbers", RANDOM))?;
    let mut numbers = [0; N];
    for number in &mut numbers {
        let mut bytes = [0; 4];
        random
            .read_exact(&mut bytes)
            .map_err(KernelError::file("read random numbers", RANDOM))?;
        *number = u32::from_ne_bytes(bytes);
    }
    Ok(numbers)
}

const RANDOM: &str = "/dev/urandom";

/// The longest packet in bytes, including its header and a VLAN tag, of any interface but lo on
/// which packets of this namespace's sockets first appear; 0 without such an interface.
fn longest_packet(devices: &[Device]) -> u32 {
    let own = devices
        .iter()
        .filter(|d| d.carries_own_packets() && !d.is_loopback());
    own.map(|d| d.mtu.saturating_add(18))
        .max()
        .unwrap_or_default()
}

/// The name of the loopback interface.
fn loopback(devices: &[Device]) -> Option<String> {
    let found = devices.iter().find(|device| device.is_loopback());
    found.map(|device| device.name.clone())
}

fn find_device<'a>(devices: &'a [Device], name: &str) -> Option<&'a Device> {
    devices.iter().find(|d| d.name == name)
}

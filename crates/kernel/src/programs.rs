//! Loads, attaches and pins the eBPF programs and maps ([`Programs`]), and gives access to the
//! maps. A call fails with [`KernelError`] if the kernel lacks BTF or refuses a step, or if a file
//! of the runtime folder cannot be used; removals only log a failure or ignore it.
//!
//! The maps and the links of the programs are pinned in a bpffs inside the runtime folder, so that
//! the kernel continues to enforce if the daemon dies. A new daemon loads its own programs onto the
//! maps that it finds there, attaches them, and only then releases the old programs. On interfaces
//! the replacement is atomic: two programs at once would send a packet through the stage twice.
//! Elsewhere both run for a moment, which is harmless because a second tag changes nothing.
//!
//! With tcx (Linux 6.6), the programs are put before all others on an interface when they are
//! attached. On an older kernel they are clsact filters with the lowest free preference from 1 to
//! 16, and run after the filters of others that have a lower one.

use std::{
    fs,
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
};

use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, HashMap, Map, MapData, PerCpuHashMap, RingBuf, SkStorage},
    programs::{
        BtfTracePoint, CgroupAttachMode, CgroupSkb, CgroupSkbAttachType, CgroupSock,
        CgroupSockAddr, Iter, LinkOrder, SchedClassifier, SockOps, TcAttachType,
        links::{FdLink, Link, LinkError, PinnedLink},
        tc::{NlOptions, SchedClassifierLink, TcAttachOptions, TcHandle},
    },
};

use crate::{
    abi,
    bpf::{self, detach_pinned},
    cgroup,
    device::Device,
    error::KernelError,
    netlink::NetlinkClient,
    retry::{self, with_retries},
    tc,
};

use loading::{SOCK_ADDR, TAKE_BACK, TRACEPOINTS, TUNE, kernel_types, load_programs, load_tcp};
use pins::{MAPS, layout_file, made_clsact, mount, remove_pins};

pub(crate) use loading::test_load;

mod loading;
mod pins;

/// The loaded programs and their maps.
pub(crate) struct Programs {
    ebpf: Ebpf,
    folder: PathBuf,
    tcx: bool,
}

/// A place on an interface where a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hook {
    /// Packets that leave by an interface.
    Egress,
    /// Packets that arrive by an interface.
    Ingress,
    /// Packets that leave a stage at its far end.
    StageExit,
}

impl Programs {
    /// Loads the programs onto the maps of this runtime folder, which are made if they are missing.
    /// Attaches the programs that track ownership. [`Programs::attach`] attaches the others, one
    /// interface at a time. Fails if the bpffs, a map or a program cannot be made, a program cannot
    /// be attached, or the file `layout` cannot be read or written.
    pub(crate) fn load(runtime: &Path) -> Result<Self, KernelError> {
        let folder = runtime.join(FOLDER);
        mount(&folder)?;
        let pins: Vec<PathBuf> = MAPS.iter().map(|name| folder.join(name)).collect();
        let mut loader = EbpfLoader::new();
        for (name, pin) in MAPS.iter().zip(&pins) {
            loader.map_pin_path(name, pin.as_path());
        }
        loader.map_max_entries("procs", max_members());
        let mut ebpf = loader
            .load(OBJECT)
            .map_err(|e| KernelError::bpf("load the eBPF programs", e))?;
        let types = kernel_types()?;
        load_programs(&mut ebpf, &types)?;
        let mut programs = Self {
            ebpf,
            folder,
            tcx: has_tcx(),
        };
        programs.attach_trackers()?;
        // If the kernel refuses them, limits hold too, but queues in them are longer.
        match load_tcp(&mut programs.ebpf, &types) {
            Ok(()) => programs.attach_tcp()?,
            Err(error) => tracing::warn!(%error, "TCP connections are not tuned to limits"),
        }
        // Written last and only if absent: the file's presence means that everything is pinned.
        if Self::layout(runtime)?.as_deref() != Some(abi::LAYOUT) {
            let layout = layout_file(&programs.folder);
            fs::write(&layout, abi::LAYOUT)
                .map_err(KernelError::file("write the layout of the maps", layout))?;
        }
        Ok(programs)
    }

    /// Whether the folder of the pins exists: an earlier daemon left programs, or a part of them.
    /// Fails if the folder cannot be examined.
    pub(crate) fn are_pinned(runtime: &Path) -> Result<bool, KernelError> {
        let folder = runtime.join(FOLDER);
        let exists = folder.try_exists();
        exists.map_err(KernelError::file("look for pinned programs", folder))
    }

    /// The layout of the maps that an earlier daemon left. `None` if the daemon had not loaded all
    /// of them, or had begun to remove them.
    ///
    /// # Errors
    /// The file exists and cannot be read. Then neither case may be assumed.
    pub(crate) fn layout(runtime: &Path) -> Result<Option<String>, KernelError> {
        let file = layout_file(&runtime.join(FOLDER));
        match fs::read(&file) {
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(KernelError::file("read the layout of the maps", file)(
                error,
            )),
        }
    }

    /// Removes what programs of another daemon left: links, filters, maps, the bpffs.
    pub(crate) fn remove_all(runtime: &Path, netlink: &mut NetlinkClient, devices: &[Device]) {
        let folder = runtime.join(FOLDER);
        if !has_tcx() {
            for device in devices {
                for hook in Hook::ALL {
                    remove_filters(&folder, netlink, device.index, &device.name, hook);
                }
            }
        }
        remove_pins(&folder);
    }

    /// Removes the pins of a runtime folder that has nothing in force.
    pub(crate) fn remove_pins(runtime: &Path) {
        remove_pins(&runtime.join(FOLDER));
    }

    /// Whether the programs are attached with tcx (else with clsact).
    pub(crate) fn uses_tcx(&self) -> bool {
        self.tcx
    }

    fn attach_trackers(&mut self) -> Result<(), KernelError> {
        for (name, _) in TRACEPOINTS {
            let what = || format!("attach {name}");
            let program: &mut BtfTracePoint = self.program(name)?;
            let id = program.attach().map_err(|e| KernelError::bpf(what(), e))?;
            let link = program
                .take_link(id)
                .map_err(|e| KernelError::bpf(what(), e))?;
            self.pin(Ok(link.into()), name)?;
        }
        let root = cgroup::root()?;
        let root =
            fs::File::open(&root).map_err(KernelError::file("open the cgroup root", root))?;
        let mode = CgroupAttachMode::Single; // with links, this mode too allows several programs
        let program: &mut CgroupSock = self.program("on_sock_create")?;
        let what = |name: &str| format!("attach {name} to the root cgroup");
        let id = program
            .attach(&root, mode)
            .map_err(|e| KernelError::bpf(what("on_sock_create"), e))?;
        let link = program
            .take_link(id)
            .map_err(|e| KernelError::bpf(what("on_sock_create"), e))?;
        self.pin(link.try_into(), "on_sock_create")?;
        for name in SOCK_ADDR {
            let program: &mut CgroupSockAddr = self.program(name)?;
            let id = program
                .attach(&root, mode)
                .map_err(|e| KernelError::bpf(what(name), e))?;
            let link = program
                .take_link(id)
                .map_err(|e| KernelError::bpf(what(name), e))?;
            self.pin(link.try_into(), name)?;
        }
        Ok(())
    }

    /// Attaches the program that tunes TCP connections, and pins the one that takes its settings
    /// back, first. Fails if the kernel refuses a link or its pin.
    fn attach_tcp(&mut self) -> Result<(), KernelError> {
        let what = |name: &str| format!("attach {name}");
        let program: &mut Iter = self.program(TAKE_BACK)?;
        let link = program
            .attach()
            .and_then(|id| program.take_link(id))
            .map_err(|e| KernelError::bpf(what(TAKE_BACK), e))?;
        self.pin(link.try_into(), TAKE_BACK)?;
        let root = cgroup::root()?;
        let root =
            fs::File::open(&root).map_err(KernelError::file("open the cgroup root", root))?;
        let program: &mut SockOps = self.program(TUNE)?;
        let link = program
            .attach(&root, CgroupAttachMode::Single)
            .and_then(|id| program.take_link(id))
            .map_err(|e| KernelError::bpf(what(TUNE), e))?;
        self.pin(link.try_into(), TUNE)
    }

    fn program<'a, P>(&'a mut self, name: &str) -> Result<&'a mut P, KernelError>
    where
        &'a mut P: TryFrom<&'a mut aya::programs::Program, Error = aya::programs::ProgramError>,
    {
        program(&mut self.ebpf, name)
    }

    /// Pins a link in place of the link of the same name, which thereby ends. One of the two is
    /// pinned at any time: the kernel ends unpinned links when the daemon is killed.
    fn pin(&self, link: Result<FdLink, LinkError>, name: &str) -> Result<(), KernelError> {
        let path = self.link_path(name);
        let new = self.folder.join(format!("new_{name}"));
        let link = link.map_err(|e| KernelError::bpf(format!("get the link of {name}"), e))?;
        retry::remove_file(&new); // left by a daemon that was killed here
        link.pin(&new)
            .map_err(|e| KernelError::bpf(format!("pin {}", new.display()), e))?;
        fs::rename(&new, &path).map_err(|source| {
            retry::remove_file(&new);
            KernelError::file("replace the pin", path)(source)
        })
    }

    fn link_path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("link_{name}"))
    }

    /// Attaches a program to an interface, or replaces the program that an earlier daemon attached.
    /// Returns the preference of the clsact filter, or `None` with tcx. Fails if the kernel refuses
    /// the program, its pin or its filter, or if no preference is free.
    pub(crate) fn attach(
        &mut self,
        netlink: &mut NetlinkClient,
        index: u32,
        name: &str,
        hook: Hook,
    ) -> Result<Option<u16>, KernelError> {
        if self.tcx {
            self.attach_tcx(index, name, hook).map(|()| None)
        } else {
            self.attach_clsact(netlink, index, name, hook).map(Some)
        }
    }

    fn attach_tcx(&mut self, index: u32, name: &str, hook: Hook) -> Result<(), KernelError> {
        let key = hook.key(index);
        let path = self.link_path(&key);
        let what = || format!("attach a program to {name}");
        let program: &mut SchedClassifier = self.program(hook.program())?;
        if let Ok(old) = PinnedLink::from_pin(&path) {
            let replaced = SchedClassifierLink::try_from(FdLink::from(old))
                .map_err(|e| KernelError::bpf(what(), e))
                .and_then(|link| {
                    program
                        .attach_to_link(link)
                        .map_err(|e| KernelError::bpf(what(), e))
                });
            if let Ok(id) = replaced {
                // The pin stays; only this handle is dropped.
                let link = program
                    .take_link(id)
                    .map_err(|e| KernelError::bpf(what(), e))?;
                drop(FdLink::try_from(link));
                return Ok(());
            }
            retry::remove_file(&path); // the pin is of a removed interface whose index was reused
        }
        let options = TcAttachOptions::TcxOrder(LinkOrder::first());
        let id = program
            .attach_with_options(name, hook.direction(), options)
            .map_err(|e| KernelError::bpf(what(), e))?;
        let link = program
            .take_link(id)
            .map_err(|e| KernelError::bpf(what(), e))?;
        self.pin(link.try_into(), &key)
    }

    fn attach_clsact(
        &mut self,
        netlink: &mut NetlinkClient,
        index: u32,
        name: &str,
        hook: Hook,
    ) -> Result<u16, KernelError> {
        if tc::ensure_clsact(netlink, index)? {
            let _ = fs::File::create(made_clsact(&self.folder, index));
        }
        let what = || format!("attach a program to clsact of {name}");
        let program: &mut SchedClassifier = self.program(hook.program())?;
        for priority in 1..=MAX_PREFERENCE {
            let options = TcAttachOptions::Netlink(NlOptions {
                priority,
                handle: FILTER_HANDLE,
                classid: None,
            });
            let id = match program.attach_with_options(name, hook.direction(), options) {
                Ok(id) => id,
                // A filter of an earlier daemon: replace it in place.
                Err(_)
                    if tc::has_filter(
                        netlink,
                        index,
                        hook.is_egress(),
                        priority,
                        FILTER_HANDLE_NUMBER,
                    )? =>
                {
                    let old =
                        filter(name, hook, priority).map_err(|e| KernelError::bpf(what(), e))?;
                    program
                        .attach_to_link(old)
                        .map_err(|e| KernelError::bpf(what(), e))?
                }
                Err(error) if priority == MAX_PREFERENCE => {
                    return Err(KernelError::bpf(what(), error));
                }
                Err(_) => continue, // another kind of filter has this preference
            };
            // Forgotten deliberately: a clsact link detaches when it is dropped.
            let link = program
                .take_link(id)
                .map_err(|e| KernelError::bpf(what(), e))?;
            std::mem::forget(link);
            return Ok(priority);
        }
        Err(KernelError::Bpf {
            what: what(),
            reason: "no preference is free".into(),
        })
    }

    /// Whether netnice's program is still attached to an interface. Fails if the interface does not
    /// exist, or the kernel does not list its programs or filters.
    pub(crate) fn is_attached(
        &mut self,
        netlink: &mut NetlinkClient,
        index: u32,
        name: &str,
        hook: Hook,
    ) -> Result<bool, KernelError> {
        if !self.tcx {
            for priority in 1..=MAX_PREFERENCE {
                if tc::has_filter(
                    netlink,
                    index,
                    hook.is_egress(),
                    priority,
                    FILTER_HANDLE_NUMBER,
                )? {
                    return Ok(true);
                }
            }
            return Ok(false);
        }
        let what = |e| KernelError::bpf(format!("look for the program on {name}"), e);
        let program: &mut SchedClassifier = self.program(hook.program())?;
        let ours = program.info().map_err(what)?.id();
        let (_, attached) = SchedClassifier::query_tcx(name, hook.direction()).map_err(what)?;
        Ok(attached.iter().any(|p| p.id() == ours))
    }

    /// Detaches a program from an interface, if it is attached.
    pub(crate) fn detach(
        &mut self,
        netlink: &mut NetlinkClient,
        index: u32,
        name: &str,
        hook: Hook,
    ) {
        let pin = self.link_path(&hook.key(index));
        if self.tcx {
            // Removing the pin alone detaches the program some time later, and attaching it again
            // before then fails.
            let _ = detach_pinned(&pin);
        }
        retry::remove_file(pin);
        if !self.tcx {
            remove_filters(&self.folder, netlink, index, name, hook);
        }
    }

    /// Attaches a program to the receive path of a cgroup. The program records the cgroup target of
    /// sockets that only receive. Fails if the cgroup's folder cannot be opened, or the kernel
    /// refuses the program or its pin.
    pub(crate) fn attach_cgroup(&mut self, id: u64, path: &Path) -> Result<(), KernelError> {
        let file = fs::File::open(path).map_err(KernelError::file("open the cgroup", path))?;
        let what = || format!("attach a program to cgroup {}", path.display());
        let program: &mut CgroupSkb = self.program("on_cgroup_receive")?;
        let link = program
            .attach(
                &file,
                CgroupSkbAttachType::Ingress,
                CgroupAttachMode::Single,
            )
            .and_then(|id| program.take_link(id))
            .map_err(|e| KernelError::bpf(what(), e))?;
        self.pin(link.try_into(), &format!("cgroup_{id}"))
    }

    /// Detaches the receive program of a cgroup.
    pub(crate) fn detach_cgroup(&mut self, id: u64) {
        retry::remove_file(self.link_path(&format!("cgroup_{id}")));
    }

    /// Removes the pins of an interface that is gone.
    pub(crate) fn remove_interface_pins(&mut self, index: u32) {
        for hook in Hook::ALL {
            retry::remove_file(self.link_path(&hook.key(index)));
        }
        retry::remove_file(made_clsact(&self.folder, index));
    }

    /// Removes everything from the kernel: links, maps, programs, the bpffs.
    pub(crate) fn unload(self) {
        let folder = self.folder.clone();
        drop(self);
        remove_pins(&folder);
    }

    fn map(&mut self, name: &str) -> Result<&mut Map, KernelError> {
        let map = self.ebpf.map_mut(name);
        map.ok_or_else(|| missing_from_object(name))
    }

    /// The map of what the classes of managed links were given, an array of [`abi::PathCount`] for
    /// mmap(2).
    pub(crate) const PATH_COUNTS: &'static str = "path_counts";
    /// The map of redirected targets, an array of [`abi::Redirect`] for mmap(2).
    pub(crate) const REDIRECTS: &'static str = "redirects";

    /// An array by its name. Fails if the eBPF object has no such array.
    pub(crate) fn array(&self, name: &str) -> Result<&MapData, KernelError> {
        match self.ebpf.map(name) {
            Some(Map::Array(array)) => Ok(array),
            _ => Err(missing_from_object(name)),
        }
    }

    /// A hash map by its name, with the types of its keys and values. Fails if the eBPF object has
    /// no hash map of this name with keys and values of these sizes.
    pub(crate) fn hash<K: aya::Pod, V: aya::Pod>(
        &mut self,
        name: &str,
    ) -> Result<HashMap<&mut MapData, K, V>, KernelError> {
        let map = self.map(name)?;
        HashMap::try_from(map).map_err(|e| KernelError::bpf(format!("open map {name}"), e))
    }

    /// All entries of a hash map. Fails if the eBPF object has no hash map of this name with keys
    /// and values of these sizes, or if the map cannot be read in three tries.
    pub(crate) fn read_all<K: aya::Pod + Default, V: aya::Pod + Default>(
        &self,
        name: &str,
    ) -> Result<Vec<(K, V)>, KernelError> {
        let Some(found @ (Map::HashMap(map) | Map::LruHashMap(map))) = self.ebpf.map(name) else {
            return Err(missing_from_object(name));
        };
        // Fails if the keys or values differ in size from these types.
        HashMap::<_, K, V>::try_from(found)
            .map_err(|e| KernelError::bpf(format!("open map {name}"), e))?;
        let read = with_retries(|| bpf::read_all(map.fd().as_fd(), 1));
        let read = read.map_err(|e| KernelError::bpf(format!("read map {name}"), e))?;
        Ok(read
            .into_iter()
            .map(|(key, values)| (key, values[0]))
            .collect())
    }

    /// The map with the counters of offered packets. Fails if the eBPF object has no such map.
    pub(crate) fn counters(
        &mut self,
    ) -> Result<PerCpuHashMap<&mut MapData, abi::CounterKey, abi::Counter>, KernelError> {
        let map = self.map("counters")?;
        PerCpuHashMap::try_from(map).map_err(|e| KernelError::bpf("open map counters", e))
    }

    /// The values of all counters of offered packets, one for each processor. Fails if the map is
    /// missing or cannot be read in three tries, or if the number of processors is unknown.
    pub(crate) fn counter_values(
        &self,
    ) -> Result<Vec<(abi::CounterKey, Vec<abi::Counter>)>, KernelError> {
        let Some(found @ Map::PerCpuHashMap(map)) = self.ebpf.map("counters") else {
            return Err(missing_from_object("counters"));
        };
        PerCpuHashMap::<_, abi::CounterKey, abi::Counter>::try_from(found)
            .map_err(|e| KernelError::bpf("open map counters", e))?;
        let processors =
            aya::util::nr_cpus().map_err(|(_, e)| KernelError::bpf("count processors", e))?;
        with_retries(|| bpf::read_all(map.fd().as_fd(), processors))
            .map_err(|e| KernelError::bpf("read the counters", e))
    }

    /// Writes the settings of the programs. Fails if the map is missing or refuses the value.
    pub(crate) fn set_settings(&mut self, settings: abi::Settings) -> Result<(), KernelError> {
        self.settings_map()?
            .set(0, settings, 0)
            .map_err(|e| KernelError::bpf("write the settings", e))
    }

    /// The settings of the programs. Fails if the map is missing or cannot be read.
    pub(crate) fn settings(&mut self) -> Result<abi::Settings, KernelError> {
        self.settings_map()?
            .get(&0, 0)
            .map_err(|e| KernelError::bpf("read the settings", e))
    }

    fn settings_map(&mut self) -> Result<Array<&mut MapData, abi::Settings>, KernelError> {
        let map = self.map("settings")?;
        Array::try_from(map).map_err(|e| KernelError::bpf("open map settings", e))
    }

    /// A count of the programs, by its `COUNT_*` index. Fails if the map is missing or has no such
    /// index.
    pub(crate) fn count(&mut self, which: u32) -> Result<u64, KernelError> {
        self.counts()?
            .get(&which, 0)
            .map_err(|e| KernelError::bpf("read a count", e))
    }

    /// Sets a count, by its `COUNT_*` index. Fails if the map is missing or has no such index.
    pub(crate) fn set_count(&mut self, which: u32, to: u64) -> Result<(), KernelError> {
        self.counts()?
            .set(which, to, 0)
            .map_err(|e| KernelError::bpf("set a count", e))
    }

    fn counts(&mut self) -> Result<Array<&mut MapData, u64>, KernelError> {
        let map = self.map("counts")?;
        Array::try_from(map).map_err(|e| KernelError::bpf("open map counts", e))
    }

    /// The socket storage with the owners of sockets. Fails if the eBPF object has no such map.
    pub(crate) fn socket_owners(
        &mut self,
    ) -> Result<SkStorage<&mut MapData, abi::SockOwner>, KernelError> {
        let map = self.map("sock_owners")?;
        SkStorage::try_from(map).map_err(|e| KernelError::bpf("open map sock_owners", e))
    }

    /// The ring buffer of exit events. Can be taken once. Fails if it was taken before.
    pub(crate) fn take_events(&mut self) -> Result<RingBuf<MapData>, KernelError> {
        let map = self
            .ebpf
            .take_map("events")
            .ok_or_else(|| missing_from_object("events"))?;
        RingBuf::try_from(map).map_err(|e| KernelError::bpf("open map events", e))
    }
}

impl Hook {
    const ALL: [Hook; 3] = [Hook::Egress, Hook::Ingress, Hook::StageExit];

    fn program(self) -> &'static str {
        match self {
            Self::Egress => "on_egress",
            Self::Ingress => "on_ingress",
            Self::StageExit => "on_stage_exit",
        }
    }

    fn direction(self) -> TcAttachType {
        match self {
            Self::Egress => TcAttachType::Egress,
            Self::Ingress | Self::StageExit => TcAttachType::Ingress,
        }
    }

    fn is_egress(self) -> bool {
        self == Self::Egress
    }

    /// The hook's name in messages and pins.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Egress => "egress",
            Self::Ingress => "ingress",
            Self::StageExit => "exit",
        }
    }

    fn key(self, index: u32) -> String {
        format!("if{index}_{}", self.name())
    }
}

/// Removes netnice's filters from an interface's clsact, and the clsact if netnice made it.
fn remove_filters(folder: &Path, netlink: &mut NetlinkClient, index: u32, name: &str, hook: Hook) {
    for priority in 1..=MAX_PREFERENCE {
        let ours = tc::has_filter(
            netlink,
            index,
            hook.is_egress(),
            priority,
            FILTER_HANDLE_NUMBER,
        );
        if ours.unwrap_or(false)
            && let Ok(link) = filter(name, hook, priority)
        {
            let _ = link.detach();
        }
    }
    let made = made_clsact(folder, index);
    if retry::with_retries(|| made.try_exists()).unwrap_or(false)
        && tc::has_no_filters(netlink, index).unwrap_or(false)
    {
        let _ = tc::remove_clsact(netlink, index);
        retry::remove_file(made);
    }
}

/// Netnice's filter of this preference, as a link. Dropping the link removes the filter.
fn filter(name: &str, hook: Hook, priority: u16) -> std::io::Result<SchedClassifierLink> {
    SchedClassifierLink::attached(name, hook.direction(), priority, FILTER_HANDLE, None)
}

fn program<'a, P>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut P, KernelError>
where
    &'a mut P: TryFrom<&'a mut aya::programs::Program, Error = aya::programs::ProgramError>,
{
    let program = ebpf
        .program_mut(name)
        .ok_or_else(|| missing_from_object(name))?;
    program
        .try_into()
        .map_err(|e| KernelError::bpf(format!("use program {name}"), e))
}

fn missing_from_object(name: &str) -> KernelError {
    KernelError::Bpf {
        what: format!("find {name}"),
        reason: "the compiled eBPF object does not contain it".into(),
    }
}

/// The size of the table of member processes: as many as can run (the smaller of `pid_max` and
/// `threads-max`, but from 262,144 to 4,194,304), so that no user can fill it. Both limits can be
/// raised later; the programs then count the children that did not fit.
fn max_members() -> u32 {
    let limit = |name: &str| {
        let text = fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok()?;
        text.trim().parse::<u32>().ok()
    };
    let most = limit("pid_max").into_iter().chain(limit("threads-max"));
    most.min()
        .unwrap_or_default()
        .clamp(abi::MAX_PROCESSES, PID_MAX_LIMIT)
}

/// Whether this kernel has tcx (Linux 6.6).
pub(crate) fn has_tcx() -> bool {
    aya::util::KernelVersion::current().is_ok_and(|v| v >= aya::util::KernelVersion::new(6, 6, 0))
}

/// A socket of any process, to be tagged.
pub(crate) struct SocketRef<'a>(pub BorrowedFd<'a>);

impl std::os::fd::AsRawFd for SocketRef<'_> {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// The largest `pid_max` of Linux.
const PID_MAX_LIMIT: u32 = 1 << 22;
/// The name of the folder of pins in the runtime folder.
pub(crate) const FOLDER: &str = "bpf";
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/netnice.bpf.o"));
const FILTER_HANDLE_NUMBER: u32 = 0x6e6e;
const FILTER_HANDLE: TcHandle = TcHandle::new(0, FILTER_HANDLE_NUMBER as u16);
/// The highest preference that is tried.
const MAX_PREFERENCE: u16 = 16;

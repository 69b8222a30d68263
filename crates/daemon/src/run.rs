//! Runs the daemon ([`run`]): starts its parts, serves until SIGTERM or SIGINT, and stops. Reports
//! the features of this kernel without a daemon ([`examine`]).
//!
//! ```text
//!   lock the runtime folder ─> read the state file ─> adopt what the kernel has in force
//!                           ─> read the policy ─> listen ─> serve ─> SIGTERM, SIGINT: stop
//! ```
//!
//! Stopping lifts no limit: the kernel keeps enforcing, and the next daemon adopts the kernel's
//! state. SIGHUP makes the daemon read the policy again. If adopting or reading the policy fails,
//! the journal has the error, and the daemon continues. If another step fails, the daemon ends with
//! a [`RunError`].

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use netnice_api::{DoctorReport, RuntimeDir};
use netnice_kernel::enforce::Kernel;
use netnice_kernel::processor::policy;
use netnice_kernel::{probe, process};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use tokio::task::LocalSet;

use crate::clock::Now;
pub use crate::event_loop::RunError;
use crate::event_loop::{self, During, Settings};
use crate::host::containers::Engines;
use crate::host::kernel::KernelHost;
use crate::meter::metrics::http::Address;
use crate::name_service;
use crate::peer;
use crate::policy::units;
use crate::processors::ProcessorStore;
use crate::reconcile::SavedState;
use crate::runtime::LockedFolder;
use crate::service::Service;
use crate::service::doctor::item;
use crate::state::{CostsStore, StateError, Store, UsageStore};

/// The options that the daemon is started with.
#[derive(Clone, Debug)]
pub struct Options {
    /// The runtime folder.
    pub runtime: RuntimeDir,
    /// The policy file.
    pub policy: PathBuf,
    /// The address to serve metrics at; `None`: no metrics.
    pub metrics: Option<Address>,
    /// Docker's data folder; `None`: as Docker's own configuration says.
    pub docker_root: Option<PathBuf>,
    /// Podman's storage; `None`: as Podman's own configuration says.
    pub podman_root: Option<PathBuf>,
    /// Clients may send descriptors, as on kernels before 6.16, which cannot refuse them. For
    /// tests.
    pub take_descriptors: bool,
    /// Drivers that are started write their stops to files in the runtime folder.
    pub write_stops: bool,
    /// The options that a killed daemon of this folder had apply instead of these.
    pub resume: bool,
}

/// The options that the runtime folder keeps for the daemon that follows a killed one.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptOptions {
    policy: PathBuf,
    metrics: Option<SocketAddr>,
    docker_root: Option<PathBuf>,
    podman_root: Option<PathBuf>,
}

impl Options {
    /// These options with what the runtime folder keeps of a killed daemon, if this one resumes it.
    fn resumed(&self, kept: Option<&str>) -> Options {
        let kept = kept.filter(|_| self.resume);
        let kept = kept.and_then(|text| serde_json::from_str::<KeptOptions>(text).ok());
        match kept {
            None => self.clone(),
            Some(kept) => Options {
                policy: kept.policy,
                metrics: kept.metrics.map(Address),
                docker_root: kept.docker_root,
                podman_root: kept.podman_root,
                ..self.clone()
            },
        }
    }

    /// The text that the runtime folder keeps; `None` if a path is no valid UTF-8 or has no
    /// absolute form.
    fn kept(&self) -> Option<String> {
        let absolute = |path: &PathBuf| std::path::absolute(path).ok();
        let kept = KeptOptions {
            policy: absolute(&self.policy)?,
            metrics: self.metrics.map(|Address(address)| address),
            docker_root: self.docker_root.as_ref().and_then(absolute),
            podman_root: self.podman_root.as_ref().and_then(absolute),
        };
        serde_json::to_string(&kept).ok()
    }

    fn engines(&self) -> Engines {
        let installed = Engines::installed();
        Engines {
            docker: self.docker_root.clone().unwrap_or(installed.docker),
            podman: self.podman_root.clone().unwrap_or(installed.podman),
        }
    }
}

/// Runs the daemon until SIGTERM or SIGINT.
///
/// # Errors
/// If another daemon uses the runtime folder, or others than root and the user of this process can
/// change it. If the state file cannot be read, is of a newer version or of another network
/// namespace, or is damaged and cannot be renamed. If netlink, the kernel path or another resource
/// cannot be opened, or a source of events fails.
pub fn run(options: &Options) -> Result<(), RunError> {
    // The first connections need it; the name service may be asked, and answers later.
    let _ = peer::privileged_group();
    let folder = options.runtime.path();
    let runtime = LockedFolder::take(folder).during("take the runtime folder")?;
    let options = &options.resumed(runtime.left_options().as_deref());
    // Connections, maps and programs need descriptors. If the limit cannot be raised, the daemon
    // accepts fewer connections.
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    let _ = setrlimit(Resource::Nofile, raised);
    // It follows promises in time also beside programs that use all processors.
    if let Err(error) = policy::set_own_nice(NICE) {
        tracing::info!(%error, "the daemon's priority is not raised");
    }
    let boot = process::boot_id().during("read the boot id")?;
    let namespace = process::netns_cookie().during("read the cookie of the network namespace")?;
    let store = Store::new(folder, &boot, namespace);
    let saved = read_state(&store)?;
    let kernel = Kernel::open(folder, probe::leaf_qdisc()).during("open the kernel path")?;
    let swept = kernel.was_reset();
    let usage = UsageStore::new(folder, &boot);
    let host = KernelHost::new(kernel, options.engines(), processor_key(folder));
    let host = host.during("open the kernel path")?;
    let mut service = Service::new(host, Some(store));
    if swept {
        service.warn(
            Now::read(),
            "the state in force was of another version of netniced: it is installed again",
        );
    }
    service.set_usage_store(usage);
    service.set_processor_store(ProcessorStore::new(folder, &boot), Now::read());
    service.set_costs_store(CostsStore::new(folder), Now::read());
    service.start(saved, Now::read());
    service.set_unit_path(units::search_path());
    service.load_policy(&options.policy, Now::read());
    let executor = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .during("start the executor")?;
    let settings = Settings {
        runtime: &options.runtime,
        policy: &options.policy,
        metrics: options.metrics,
        take_descriptors: options.take_descriptors,
        write_stops: options.write_stops,
        resumed: options.resume,
    };
    let serving = || {
        name_service::begin_to_serve();
        // A daemon that cannot serve leaves no options for the next one.
        if let Err(error) = runtime.write_options(options.kept().as_deref()) {
            tracing::warn!(%error, "cannot write the file with the options");
        }
    };
    LocalSet::new().block_on(&executor, event_loop::run(&settings, service, serving))?;
    runtime.release();
    Ok(())
}

/// Reports which features this kernel has, and which of them would be used. Needs no running
/// daemon.
pub fn examine() -> DoctorReport {
    let found = probe::probe();
    let items = found.iter().map(item);
    DoctorReport {
        items: items.chain(crate::flows::doctor::examine()).collect(),
    }
}

/// The key of the daemon's control groups: the number of its runtime folder.
fn processor_key(folder: &Path) -> String {
    fs::metadata(folder).map_or("0".to_owned(), |found| format!("{:x}", found.ino()))
}

/// Reads the state file. A damaged file is renamed and not used, so that a person can inspect it.
///
/// # Errors
/// If the file cannot be read, is of a newer version or of another network namespace, or is damaged
/// and cannot be renamed.
fn read_state(store: &Store) -> Result<SavedState, RunError> {
    let error = match store.load() {
        Ok(None) => return Ok(SavedState::None),
        Ok(Some(state)) => return Ok(SavedState::Complete(Box::new(state))),
        Err(error) => error,
    };
    match error {
        StateError::Damaged { .. } => {
            let aside = store
                .rename_damaged()
                .during("rename the damaged state file")?;
            Ok(SavedState::Lost(format!(
                "{error}; it is kept as {}",
                aside.display()
            )))
        }
        other => Err(other).during("read the state"),
    }
}

/// The nice value of the daemon. Its weight is nine times that of an ordinary program, and a small
/// part of that of a group whose time is promised.
const NICE: i32 = -10;

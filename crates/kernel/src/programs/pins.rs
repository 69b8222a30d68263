//! Makes and removes the files of the eBPF programs in the runtime folder: the bpffs with the pins,
//! and beside it `layout` (the layout of the pinned maps) and `clsact-INDEX` (netnice made the
//! clsact of the interface with this index). The pins keep programs and maps in force while no
//! daemon runs. Making them can fail with [`KernelError`]; a failed removal is not an error.

use std::path::{Path, PathBuf};
use std::{fs, io};

use aya::programs::iter::IterLink;
use aya::programs::links::{FdLink, PinnedLink};
use rustix::mount::{MountFlags, UnmountFlags};

use super::loading::{TAKE_BACK, TUNE};
use crate::bpf::detach_pinned;
use crate::cgroup;
use crate::error::KernelError;
use crate::retry::{self, with_retries};

/// Mounts a bpffs for the pins, unless it is mounted. Fails if the folder cannot be made, or the
/// kernel refuses the mount.
pub(super) fn mount(folder: &Path) -> Result<(), KernelError> {
    fs::create_dir_all(folder)
        .map_err(KernelError::file("create the folder of the pins", folder))?;
    if cgroup::filesystem(folder) == Some(BPF_FS_MAGIC) {
        return Ok(());
    }
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("bpf", folder, "bpf", flags, c"mode=0700")
        .map_err(|error| KernelError::file("mount a bpffs for the pins", folder)(error.into()))
}

/// Removes all pins of a runtime folder, and the bpffs.
pub(super) fn remove_pins(folder: &Path) {
    // Removed first: without this file, what remains after an interruption counts as incomplete.
    retry::remove_file(layout_file(folder));
    take_back_tcp(folder);
    if let Ok(entries) = fs::read_dir(folder) {
        for entry in entries.flatten() {
            retry::remove_file(entry.path());
        }
    }
    // The folder may have no mount.
    let _ = with_retries(|| {
        rustix::mount::unmount(folder, UnmountFlags::DETACH).map_err(io::Error::from)
    });
    let _ = with_retries(|| fs::remove_dir(folder));
}

/// Ends the tuning of TCP connections, and takes back what was set of them.
fn take_back_tcp(folder: &Path) {
    let tune = folder.join(format!("link_{TUNE}"));
    let _ = detach_pinned(&tune);
    retry::remove_file(tune);
    let Ok(pinned) = PinnedLink::from_pin(folder.join(format!("link_{TAKE_BACK}"))) else {
        return; // never attached
    };
    let taken_back = IterLink::try_from(FdLink::from(pinned))
        .and_then(IterLink::into_file)
        .map_err(io::Error::other)
        .and_then(|mut connections| io::copy(&mut connections, &mut io::sink()));
    if let Err(error) = taken_back {
        tracing::warn!(%error, "TCP connections keep what a limit set");
    }
}

/// The file whose presence marks an interface's clsact as made by netnice.
pub(super) fn made_clsact(folder: &Path, index: u32) -> PathBuf {
    folder.with_file_name(format!("clsact-{index}"))
}

/// The file that holds the layout of the pinned maps.
pub(super) fn layout_file(folder: &Path) -> PathBuf {
    folder.with_file_name("layout")
}

const BPF_FS_MAGIC: i64 = 0xcafe4a11;
/// The pinned maps.
pub(super) const MAPS: [&str; 27] = [
    "settings",
    "ports",
    "procs",
    "targets",
    "quota_limits",
    "quota_counts",
    "apps",
    "cgroups",
    "expected_groups",
    "users",
    "containers",
    "container_flows",
    "container_veths",
    "ifaces",
    "slots",
    "links",
    "counters",
    "flows",
    "windows",
    "sock_owners",
    "sock_cgroups",
    "tcp_tunings",
    "cookie_owners",
    "cookie_cgroups",
    "counts",
    "path_counts",
    "events",
];

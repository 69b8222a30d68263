//! Makes and removes the files of the eBPF programs in the runtime folder: the bpffs with the pins,
//! and beside it `layout` (the layout of the pinned maps) and `clsact-INDEX` (netnice made the
//! clsact of the interface with this index). The pins keep programs and maps in force while no
//! daemon runs. Making them can fail with [`KernelError`]; a failed removal is not an error.

use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::mount::{MountFlags, UnmountFlags};

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

/// The file whose presence marks an interface's clsact as made by netnice.
pub(super) fn made_clsact(folder: &Path, index: u32) -> PathBuf {
    folder.with_file_name(format!("clsact-{index}"))
}

/// The file that holds the layout of the pinned maps.
pub(super) fn layout_file(folder: &Path) -> PathBuf {
    folder.with_file_name("layout")
}

const BPF_FS_MAGIC: i64 = 0xcafe4a11;

//! Makes and removes the files of the eBPF programs in the runtime folder: the bpffs with the pins,
//! and beside it `layout` (the layout of the pinned maps) and `clsact-INDEX` (netnice made the
//! clsact of the interface with this index). The pins keep programs and maps in force while no
//! daemon runs. Making them can fail with [`KernelError`]; a failed removal is only logged.

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::cgroup;
use crate::error::KernelError;
use crate::retry::{self, with_retries};

/// Mounts a bpffs for the pins, unless it is mounted.
pub(super) fn mount(folder: &Path) -> Result<(), KernelError> {
    fs::create_dir_all(folder)
        .map_err(KernelError::file("create the folder of the pins", folder))?;
    if cgroup::filesystem(folder) == Some(BPF_FS_MAGIC) {
        return Ok(());
    }
    let target = cgroup::c_path(folder);
    // SAFETY: the strings are terminated and outlive the call.
    let done = unsafe {
        libc::mount(
            c"bpf".as_ptr(),
            target.as_ptr(),
            c"bpf".as_ptr(),
            libc::MS_NOSUID | libc::MS_NODEV,
            c"mode=0700".as_ptr().cast(),
        )
    };
    if done != 0 {
        return Err(KernelError::file("mount a bpffs for the pins", folder)(
            std::io::Error::last_os_error(),
        ));
    }
    Ok(())
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
    let target = cgroup::c_path(folder);
    // SAFETY: the string is terminated and outlives the call.
    let unmount = || match unsafe { libc::umount2(target.as_ptr(), libc::MNT_DETACH) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    // The folder may have no mount.
    let _ = with_retries(unmount);
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

//! Detaching a pinned eBPF link at once.
//!
//! When the pin of a link is removed, the kernel detaches the link after an RCU grace period, from a work queue: on a
//! busy machine that takes hundreds of milliseconds. Until then the program still runs, and attaching it again fails
//! with EEXIST. `BPF_LINK_DETACH` (bpf(2), Linux 5.9) detaches the link before it returns. aya has no call for it.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use crate::cgroup;

/// Detaches the link that is pinned at this path. The pin stays, and keeps a link that is attached to nothing.
///
/// # Errors
/// ENOENT if nothing is pinned there; EOPNOTSUPP if the kernel cannot detach this kind of link.
pub fn detach_pinned(path: &Path) -> io::Result<()> {
    let path = cgroup::c_path(path);
    let object = ObjectAttributes {
        pathname: path.as_ptr() as u64,
        ..ObjectAttributes::default()
    };
    let fd = bpf(BPF_OBJ_GET, &object)?;
    // SAFETY: the kernel just returned this descriptor, and nothing else owns it.
    let link = unsafe { OwnedFd::from_raw_fd(fd) };
    let detach = DetachAttributes {
        link_fd: link.as_raw_fd() as u32,
    };
    bpf(BPF_LINK_DETACH, &detach).map(drop)
}

fn bpf<T>(command: libc::c_long, attributes: &T) -> io::Result<i32> {
    // SAFETY: the attributes are a live `repr(C)` struct without padding, of which the kernel reads as many bytes as it
    // is told; the path that they may point to is terminated and outlives the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_ref(attributes),
            size_of::<T>(),
        )
    };
    match done {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result as i32),
    }
}

/// The part of `union bpf_attr` that BPF_OBJ_GET reads (include/uapi/linux/bpf.h).
#[repr(C)]
#[derive(Default)]
struct ObjectAttributes {
    pathname: u64,
    bpf_fd: u32,
    file_flags: u32,
}

/// The part that BPF_LINK_DETACH reads.
#[repr(C)]
struct DetachAttributes {
    link_fd: u32,
}

const BPF_OBJ_GET: libc::c_long = 7;
const BPF_LINK_DETACH: libc::c_long = 34;

//! Makes three calls of bpf(2) that aya does not offer. All fail with the error of bpf(2).
//!
//! - [`detach_pinned`] detaches a pinned link before it returns (`BPF_LINK_DETACH`, Linux 5.9). If
//!   only the pin of a link is removed, the kernel detaches the link after an RCU grace period,
//!   from a work queue. On a busy machine that takes hundreds of milliseconds. Until then the
//!   program still runs, and attaching it again fails with EEXIST.
//! - [`read_all`] reads a whole map in a few calls (`BPF_MAP_LOOKUP_BATCH`, Linux 5.6). Reading
//!   single entries takes two calls for each entry.
//! - [`take`] removes an entry of a hash map and returns its last value
//!   (`BPF_MAP_LOOKUP_AND_DELETE_ELEM`, Linux 5.14). Between a reading and a separate removal the
//!   programs could add to the value.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Detaches the link that is pinned at this path. The pin stays and refers to a link that is
/// attached to nothing.
///
/// # Errors
/// The error of bpf(2), for example ENOENT if nothing is pinned there, and EOPNOTSUPP if the kernel
/// cannot detach this kind of link.
pub(crate) fn detach_pinned(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut object = ObjectAttributes {
        pathname: path.as_ptr() as u64,
        ..ObjectAttributes::default()
    };
    let fd = bpf(BPF_OBJ_GET, &mut object)?;
    // SAFETY: the kernel just returned this descriptor, and nothing else owns it.
    let link = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut detach = DetachAttributes {
        link_fd: link.as_raw_fd() as u32,
    };
    bpf(BPF_LINK_DETACH, &mut detach).map(drop)
}

/// Reads all entries of a hash map. For a per-CPU map, each entry has `copies` values, one for each
/// processor; for other maps `copies` is 1. An entry that is made or removed during the call may be
/// present or absent.
///
/// `K` and `V` are the map's key and value; the caller has checked them. If `copies` is above 1,
/// the size of `V` is a multiple of eight.
///
/// # Errors
/// The error of bpf(2).
pub(crate) fn read_all<K: aya::Pod + Default, V: aya::Pod + Default>(
    map: BorrowedFd<'_>,
    copies: usize,
) -> io::Result<Vec<(K, Vec<V>)>> {
    let (mut batch_size, mut from, mut all) = (FIRST_BATCH, None::<u32>, Vec::new());
    loop {
        let mut keys = vec![K::default(); batch_size];
        let mut values = vec![V::default(); batch_size * copies];
        let mut next = 0_u32;
        let mut batch = BatchAttributes {
            in_batch: from
                .as_ref()
                .map_or(0, |from| std::ptr::from_ref(from) as u64),
            out_batch: std::ptr::from_mut(&mut next) as u64,
            keys: keys.as_mut_ptr() as u64,
            values: values.as_mut_ptr() as u64,
            count: batch_size as u32,
            map_fd: map.as_raw_fd() as u32,
            ..BatchAttributes::default()
        };
        let done = bpf(BPF_MAP_LOOKUP_BATCH, &mut batch);
        let is_last = match done {
            Ok(_) => false,
            Err(error) => match error.raw_os_error() {
                Some(libc::ENOENT) => true,
                Some(libc::EINTR) => continue,
                // The batch is smaller than one chain of the hash.
                Some(libc::ENOSPC) if batch_size < MAX_BATCH => {
                    batch_size *= 2;
                    continue;
                }
                _ => return Err(error),
            },
        };
        let read = keys.into_iter().zip(values.chunks_exact(copies));
        let read = read.take(batch.count as usize);
        all.extend(read.map(|(key, values)| (key, values.to_vec())));
        if is_last {
            return Ok(all);
        }
        from = Some(next);
    }
}

/// Removes an entry of a hash map, and returns its value; `None` if there is no such entry.
///
/// `K` and `V` are the map's key and value; the caller has checked them.
///
/// # Errors
/// The error of bpf(2).
pub(crate) fn take<K: aya::Pod, V: aya::Pod + Default>(
    map: BorrowedFd<'_>,
    key: &K,
) -> io::Result<Option<V>> {
    let mut value = V::default();
    let mut element = ElementAttributes {
        map_fd: map.as_raw_fd() as u32,
        key: std::ptr::from_ref(key) as u64,
        value: std::ptr::from_mut(&mut value) as u64,
        ..ElementAttributes::default()
    };
    match bpf(BPF_MAP_LOOKUP_AND_DELETE_ELEM, &mut element) {
        Ok(_) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn bpf<T>(command: libc::c_long, attributes: &mut T) -> io::Result<i32> {
    // SAFETY: the attributes are a live `repr(C)` struct without padding. The kernel reads and
    // writes as many bytes of it as the size argument says. The pointers in it refer to buffers of
    // the sizes that the kernel expects, and the buffers outlive the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_mut(attributes),
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

/// The part of `union bpf_attr` that BPF_LINK_DETACH reads.
#[repr(C)]
struct DetachAttributes {
    link_fd: u32,
}

/// The part of `union bpf_attr` that BPF_MAP_LOOKUP_BATCH reads and writes (`count`: entries read).
#[repr(C)]
#[derive(Default)]
struct BatchAttributes {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// The part of `union bpf_attr` that BPF_MAP_LOOKUP_AND_DELETE_ELEM reads.
#[repr(C)]
#[derive(Default)]
struct ElementAttributes {
    map_fd: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Entries per call at first.
const FIRST_BATCH: usize = 1024;
/// The most entries per call.
const MAX_BATCH: usize = 1 << 20;
const BPF_MAP_LOOKUP_BATCH: libc::c_long = 24;
const BPF_OBJ_GET: libc::c_long = 7;
const BPF_MAP_LOOKUP_AND_DELETE_ELEM: libc::c_long = 21;
const BPF_LINK_DETACH: libc::c_long = 34;

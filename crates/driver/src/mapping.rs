//! Memory mappings ([`Mapping`]): private memory, and memory that a descriptor shares with the
//! kernel. A mapping is unmapped on drop. Making one fails with the error of mmap(2).

use std::ffi::c_void;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// A memory mapping.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) start: NonNull<u8>,
    pub(crate) length: usize,
}

// SAFETY: one owner uses the memory, and it is not bound to a thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps private memory for reading and writing, and allocates its pages.
    pub(crate) fn anonymous(length: usize) -> io::Result<Mapping> {
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), length, protection, flags)? };
        Mapping::of(start, length)
    }

    /// Maps memory that a descriptor shares with the kernel, from `offset` on.
    ///
    /// # Safety
    /// `more` must not ask for a fixed address.
    pub(crate) unsafe fn shared(
        length: usize,
        protection: ProtFlags,
        more: MapFlags,
        (fd, offset): (BorrowedFd<'_>, u64),
    ) -> io::Result<Mapping> {
        let flags = MapFlags::SHARED | more;
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
        let start = unsafe { mmap(ptr::null_mut(), length, protection, flags, fd, offset)? };
        Mapping::of(start, length)
    }

    fn of(start: *mut c_void, length: usize) -> io::Result<Mapping> {
        match NonNull::new(start.cast::<u8>()) {
            Some(start) => Ok(Mapping { start, length }),
            None => Err(io::ErrorKind::OutOfMemory.into()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping, and no borrow of it is left.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}

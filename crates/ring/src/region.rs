//! Memory files and their mappings. This module maps memory, and copies bytes out of and into
//! memory that another process writes at the same time. No other module of the crate does either. A
//! function fails with [`SetupError`] when a system call fails, or when the file does not have the
//! required seals. An access outside the region panics.
//!
//! Every `unsafe` block in this module relies on these rules:
//!
//! 1. A [`Region`] stays mapped at one address with one length from its construction to its drop.
//!    The file behind it cannot shrink: the driver seals it before it passes the file on, and a
//!    program refuses a file that is not sealed. After the second seal ([`MemoryFile::seal`]) no
//!    process can remove pages from the file. The driver adds that seal before its packet thread
//!    touches the memory.
//! 2. Every access takes an offset and a length and checks both against the region.
//! 3. Words that both sides use are accessed only as atomics (`words`). The bytes of chunks are
//!    accessed by [`Region::copy_out`] and [`Region::copy_in`], which create no reference to them.
//!    Only the program creates references into chunks, and only into chunks that its ledger states
//!    as held. [`Region::put_page`] passes pages to the kernel as references that no code reads.
//! 4. A copy can be torn if the other side writes at the same time. The copy consists of bytes,
//!    every bit pattern of a byte is valid, and the caller validates the copy.

use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{Ordering, fence};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::layout::{PAGE, SetupError};

/// A memory file whose size is fixed by seals.
///
/// The driver seals it in two steps. The seal against holes (`F_SEAL_FUTURE_WRITE`) also forbids
/// new writable mappings, and the program must create one first:
/// ```text
/// create: SHRINK, GROW ─▶ the program maps the file ─▶ seal: FUTURE_WRITE, SEAL
///                                                     ─▶ the packet thread may touch it
/// ```
/// Existing mappings stay writable. Without the second seal another process could punch a hole. The
/// next thread that touches the page would then wait for that process, even while that process is
/// not scheduled (`shmem_fault` and `shmem_fallocate` in Linux).
#[derive(Debug)]
pub(crate) struct MemoryFile {
    fd: OwnedFd,
    bytes: u64,
}

impl MemoryFile {
    /// Creates a memory file of `bytes` zeros without pages, and seals it against resizing. Fails
    /// if a system call fails.
    pub(crate) fn create(bytes: u64) -> Result<MemoryFile, SetupError> {
        let plain = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // NOEXEC_SEAL: no process may execute the file, and no process can make it executable.
        // Linux before 6.3 rejects the flag.
        let fd = match rustix::fs::memfd_create(NAME, plain | MemfdFlags::NOEXEC_SEAL) {
            Err(Errno::INVAL) => rustix::fs::memfd_create(NAME, plain),
            other => other,
        };
        let fd = fd.map_err(system("cannot create a memory file"))?;
        rustix::fs::ftruncate(&fd, bytes)
            .map_err(system("cannot set the size of the memory file"))?;
        rustix::fs::fcntl_add_seals(&fd, SIZE_SEALS)
            .map_err(system("cannot seal the memory file"))?;
        Ok(MemoryFile { fd, bytes })
    }

    /// Seals the file against holes, new writable mappings and further seals. A second call
    /// succeeds.
    ///
    /// # Errors
    /// If the program added other seals that make this impossible, or a system call fails.
    pub(crate) fn seal(&self) -> Result<(), SetupError> {
        match rustix::fs::fcntl_add_seals(&self.fd, FINAL_SEALS) {
            Ok(()) => return Ok(()),
            Err(Errno::PERM) => {}
            Err(other) => return Err(system("cannot seal the memory file")(other)),
        }
        let seals = rustix::fs::fcntl_get_seals(&self.fd)
            .map_err(system("cannot read the seals of the memory file"))?;
        match seals.contains(SIZE_SEALS | FINAL_SEALS) {
            true => Ok(()),
            false => Err(SetupError::OtherSeals {
                // Only the seals that this crate requires.
                seen: (seals & (SIZE_SEALS | FINAL_SEALS)).bits(),
                wanted: (SIZE_SEALS | FINAL_SEALS).bits(),
            }),
        }
    }

    /// Takes a memory file from the driver and checks that it is sealed against resizing. Fails if
    /// it is not sealed, or a system call fails.
    pub(crate) fn receive(fd: OwnedFd) -> Result<MemoryFile, SetupError> {
        let seals = rustix::fs::fcntl_get_seals(&fd)
            .map_err(system("cannot read the seals of the memory file"))?;
        if !seals.contains(SIZE_SEALS) {
            return Err(SetupError::NotMemoryFile {
                what: "its set of seals",
                seen: seals.bits().into(),
                wanted: SIZE_SEALS.bits().into(),
            });
        }
        let stat =
            rustix::fs::fstat(&fd).map_err(system("cannot read the size of the memory file"))?;
        let bytes = u64::try_from(stat.st_size).unwrap_or(0);
        Ok(MemoryFile { fd, bytes })
    }

    /// The length of the memory file in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The descriptor of the memory file.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Maps the whole file, readable and writable. A file of 2 MiB or more begins at a multiple of
    /// that, as huge pages require. Fails if the kernel refuses, or the file is larger than the
    /// address space.
    pub(crate) fn map(&self) -> Result<Region, SetupError> {
        let length = usize::try_from(self.bytes).map_err(|_| SetupError::System {
            what: "cannot map the memory file",
            error: std::io::ErrorKind::OutOfMemory.into(),
        })?;
        let refused = system("cannot map the memory file");
        let base = match self.bytes {
            // SAFETY: at an address that the kernel chooses, the mapping replaces no memory.
            ..HUGE_PAGE => unsafe { self.map_at(null_mut(), MapFlags::empty()) },
            _ => reserve_aligned(length).and_then(|at| {
                // SAFETY: the mapping replaces the addresses that were just reserved.
                unsafe { self.map_at(at, MapFlags::FIXED) }
            }),
        };
        let base = NonNull::new(base.map_err(refused)?.cast());
        Ok(Region {
            base: base.expect("a mapping is not at address 0"),
            length,
            backing: Backing::File,
        })
    }

    /// Maps the whole file.
    ///
    /// # Safety
    /// With `MapFlags::FIXED`, `at` must begin memory of the file's length that no code uses.
    unsafe fn map_at(&self, at: *mut c_void, how: MapFlags) -> Result<*mut c_void, Errno> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let how = how | MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: the caller grants the memory that a fixed mapping replaces; any other replaces
        // none.
        unsafe { rustix::mm::mmap(at, self.bytes as usize, access, how, &self.fd, 0) }
    }
}

/// Reserves `length` bytes of addresses from a multiple of [`HUGE_PAGE`] on.
fn reserve_aligned(length: usize) -> Result<*mut c_void, Errno> {
    let (huge, length) = (HUGE_PAGE as usize, length.next_multiple_of(PAGE as usize));
    let whole = length.checked_add(huge).ok_or(Errno::NOMEM)?;
    let how = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address that the kernel chooses. The parts that are unmapped
    // again belong to it.
    unsafe {
        let begin = rustix::mm::mmap_anonymous(null_mut(), whole, ProtFlags::empty(), how)?;
        let skipped = begin.align_offset(huge);
        let aligned = begin.byte_add(skipped);
        for (at, bytes) in [(begin, skipped), (aligned.byte_add(length), huge - skipped)] {
            if bytes > 0 {
                rustix::mm::munmap(at, bytes)?;
            }
        }
        Ok(aligned)
    }
}

/// The mapping of a whole memory file.
#[derive(Debug)]
pub(crate) struct Region {
    base: NonNull<u8>,
    length: usize,
    backing: Backing,
}

#[derive(Debug)]
enum Backing {
    File,
    /// Memory of this process alone, for tests: Miri has no files, and the address sanitizer sees
    /// the bounds of heap memory (`fuzz/`).
    #[cfg(any(test, fuzzing))]
    Heap,
}

// SAFETY: the memory is accessed as atomics or by copies (rule 3); moving or sharing the handle
// changes nothing.
unsafe impl Send for Region {}
// SAFETY: as for Send.
unsafe impl Sync for Region {}

impl Region {
    /// Allocates memory of this process alone, filled with zeros.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn private(bytes: u64) -> Region {
        let length = bytes as usize;
        // SAFETY: the size of the layout is not 0.
        let base = unsafe { std::alloc::alloc_zeroed(Region::heap_layout(length)) };
        Region {
            base: NonNull::new(base).expect("memory for a test"),
            length,
            backing: Backing::Heap,
        }
    }

    #[cfg(any(test, fuzzing))]
    fn heap_layout(length: usize) -> std::alloc::Layout {
        assert!(length > 0);
        std::alloc::Layout::from_size_align(length, PAGE as usize).expect("a layout")
    }

    /// The length of the mapping in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.length as u64
    }

    /// The address of `length` bytes at `offset`, aligned to `align`.
    ///
    /// # Panics
    /// If the range is not inside the region or not aligned. The caller validates foreign values
    /// first.
    #[inline]
    pub(crate) fn at(&self, offset: u64, length: u64, align: u64) -> NonNull<u8> {
        let end = offset.checked_add(length);
        assert!(
            end.is_some_and(|end| end <= self.length as u64) && offset.is_multiple_of(align),
            "{length} bytes at {offset} of a region of {}",
            self.length
        );
        // SAFETY: the offset is at most the length of the mapping, as checked above.
        unsafe { self.base.add(offset as usize) }
    }

    /// Prefetches `length` bytes at `offset` into the second cache: for bytes that are read some
    /// packets later, and would displace others in the first.
    #[inline]
    pub(crate) fn prefetch(&self, offset: u64, length: u32) {
        let from = self.at(offset, length.into(), 1).as_ptr();
        for line in (0..length as usize).step_by(CACHE_LINE) {
            prefetch::<false>(from.wrapping_add(line));
        }
    }

    /// Copies bytes out of the region. The other side may write them at the same time: validate the
    /// copy (rule 4).
    #[inline]
    pub(crate) fn copy_out(&self, offset: u64, into: &mut [u8]) {
        let from = self.at(offset, into.len() as u64, 1);
        // SAFETY: both ranges have that many bytes, and a private slice does not overlap the
        // mapping.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into.as_mut_ptr(), into.len()) }
    }

    /// Copies `bytes` into the region.
    #[inline]
    pub(crate) fn copy_in(&self, offset: u64, bytes: &[u8]) {
        let to = self.at(offset, bytes.len() as u64, 1);
        // SAFETY: both ranges have that many bytes, and a private slice does not overlap the
        // mapping.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) }
    }

    /// Allocates the pages of a range and faults them in for writing (`MADV_POPULATE_WRITE`). Later
    /// accesses do not wait for memory. `offset` is a multiple of [`PAGE`].
    ///
    /// # Errors
    /// If the system call fails, for example because there is not enough memory.
    pub(crate) fn populate(&self, offset: u64, bytes: u64) -> Result<(), SetupError> {
        let begin = self.at(offset, bytes, PAGE);
        match self.backing {
            Backing::File => {
                // SAFETY: the range is inside the mapping, and populating it changes no byte.
                let done = unsafe {
                    rustix::mm::madvise(
                        begin.as_ptr().cast(),
                        bytes as usize,
                        rustix::mm::Advice::LinuxPopulateWrite,
                    )
                };
                done.map_err(system("no memory for the pages of the memory file"))
            }
            #[cfg(any(test, fuzzing))]
            Backing::Heap => Ok(()),
        }
    }

    /// Makes the 2 MiB at `offset`, a multiple of [`HUGE_PAGE`], a huge page, and returns true, or
    /// allocates only its first page if the kernel refuses. The bytes stay. Fails if there is no
    /// memory for the first page.
    pub(crate) fn make_huge(&self, offset: u64) -> Result<bool, SetupError> {
        // Without a page table the kernel refuses.
        self.populate(offset, PAGE)?;
        match self.backing {
            Backing::File => {
                let begin = self.at(offset, HUGE_PAGE, PAGE);
                // SAFETY: the range is inside the mapping, and collapsing it changes no byte.
                let done = unsafe {
                    let (begin, length) = (begin.as_ptr().cast(), HUGE_PAGE as usize);
                    libc::madvise(begin, length, libc::MADV_COLLAPSE)
                };
                Ok(done == 0)
            }
            #[cfg(any(test, fuzzing))]
            Backing::Heap => Ok(false),
        }
    }

    /// Puts the page at `offset` into a pipe, which then has a reference to it. False if the pipe
    /// is full.
    pub(crate) fn put_page(&self, offset: u64, into: &OwnedFd) -> Result<bool, SetupError> {
        let page = self.at(offset, PAGE, PAGE);
        // SAFETY: the page is inside the mapping. No code reads it through this reference, which
        // ends with the call, or through the pipe. Concurrent writes to the page therefore do no
        // harm.
        let done = unsafe {
            let page = std::slice::from_raw_parts(page.as_ptr(), PAGE as usize);
            let pieces = [rustix::pipe::IoSliceRaw::from_slice(page)];
            rustix::pipe::vmsplice(into, &pieces, rustix::pipe::SpliceFlags::NONBLOCK)
        };
        match done {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(error) => Err(system("cannot hold a page of the memory file")(error)),
        }
    }

    /// Writes zeros over a range.
    pub(crate) fn clear(&self, offset: u64, bytes: u64) {
        let begin = self.at(offset, bytes, 1);
        // SAFETY: the range is inside the mapping; the bytes are written as `copy_in` writes them.
        unsafe { std::ptr::write_bytes(begin.as_ptr(), 0, bytes as usize) }
        // This function does not read the zeros, so the fence keeps the compiler from removing or
        // delaying the writes: the region must be zero before another flow gets it.
        fence(Ordering::SeqCst);
    }

    /// The bytes of a range.
    ///
    /// # Safety
    /// No thread or process may write the bytes while the reference lives. The bytes must belong to
    /// a chunk that is held according to the program's ledger, and the caller's borrow must keep it
    /// held. The driver does not access chunks that it was not given.
    pub(crate) unsafe fn bytes_of(&self, offset: u64, length: usize) -> &[u8] {
        let at = self.at(offset, length as u64, 1);
        // SAFETY: the range is inside the mapping, which `self` keeps; the caller excludes writers.
        unsafe { std::slice::from_raw_parts(at.as_ptr(), length) }
    }

    /// The bytes of a range, for writing.
    ///
    /// # Safety
    /// As for [`Region::bytes_of`]. In addition no other thread or process may read the bytes.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn bytes_of_mut(&self, offset: u64, length: usize) -> &mut [u8] {
        let at = self.at(offset, length as u64, 1);
        // SAFETY: the range is inside the mapping, which `self` keeps; the caller excludes all
        // others.
        unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), length) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        match self.backing {
            // SAFETY: the mapping was made with this address and length. Everything that refers to
            // it keeps the region alive, so no reference is left. Unmapping a whole mapping cannot
            // fail.
            Backing::File => unsafe {
                let _ = rustix::mm::munmap(self.base.as_ptr().cast(), self.length);
            },
            // SAFETY: the memory was allocated with the same layout.
            #[cfg(any(test, fuzzing))]
            Backing::Heap => unsafe {
                std::alloc::dealloc(self.base.as_ptr(), Region::heap_layout(self.length));
            },
        }
    }
}

/// Converts the errno of a failed system call to an error that names its purpose.
pub(crate) fn system(what: &'static str) -> impl Fn(Errno) -> SetupError {
    move |error| SetupError::System {
        what,
        error: error.into(),
    }
}

/// Bytes of a huge page. A huge page starts at a multiple of this number.
pub(crate) const HUGE_PAGE: u64 = 2 << 20;
/// Bytes of a cache line.
const CACHE_LINE: usize = 64;
const NAME: &str = "netnice-ring";
/// Seals from the creation of the file on.
const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
/// Seals from the time the program has mapped the file. Linux before 5.1 has no `FUTURE_WRITE`.
const FINAL_SEALS: SealFlags = SealFlags::FUTURE_WRITE.union(SealFlags::SEAL);

/// Prefetches the cache line that contains `at`, into the first cache or only into the second. A
/// driver with many flows waits for memory most of its time, and the next flows are known in
/// advance. A prefetch changes no value.
#[inline(always)]
pub(crate) fn prefetch<const FIRST: bool>(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        // SAFETY: the instruction needs SSE, which is part of x86-64. It takes any address and
        // never faults.
        unsafe {
            match FIRST {
                true => _mm_prefetch::<_MM_HINT_T0>(at.cast()),
                false => _mm_prefetch::<_MM_HINT_T1>(at.cast()),
            }
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = at;
}

#[cfg(test)]
mod tests;

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
//!    as held. [`Region::pin_pages`] passes pages to the kernel as references that no code reads.
//! 4. A copy can be torn if the other side writes at the same time. The copy consists of bytes,
//!    every bit pattern of a byte is valid, and the caller validates the copy.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::pipe::PipeFlags;

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

    /// Maps the whole file, readable and writable. Fails if the kernel refuses, or the file is
    /// larger than the address space.
    pub(crate) fn map(&self) -> Result<Region, SetupError> {
        let length = usize::try_from(self.bytes).map_err(|_| SetupError::System {
            what: "cannot map the memory file",
            error: std::io::ErrorKind::OutOfMemory.into(),
        })?;
        // SAFETY: a new mapping at an address that the kernel chooses replaces no memory of this
        // process.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                &self.fd,
                0,
            )
        };
        let base = base.map_err(system("cannot map the memory file"))?;
        let base = NonNull::new(base.cast()).expect("a mapping is not at address 0");
        Ok(Region {
            base,
            length,
            backing: Backing::File,
        })
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

    /// Prefetches `length` bytes at `offset`.
    #[inline]
    pub(crate) fn prefetch(&self, offset: u64, length: u32) {
        let from = self.at(offset, length.into(), 1).as_ptr();
        for line in (0..length as usize).step_by(CACHE_LINE) {
            prefetch(from.wrapping_add(line));
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

    /// Prevents the kernel from collapsing small pages into huge pages (`MADV_COLLAPSE`), which any
    /// process with a mapping can request. A collapse unmaps the pages from all mappings while it
    /// runs. The kernel does not collapse a range in which a page has an extra reference. So this
    /// function puts the first page of each whole 2 MiB of the file into pipes that are never read.
    /// Each pipe gets as many slots as the kernel grants: without CAP_SYS_RESOURCE 256 by default
    /// (512 MiB of file). The returned descriptors keep the references.
    ///
    /// # Errors
    /// If a system call fails, or if the kernel's limits on pipes are so low that [`MAX_PIPES`]
    /// pipes do not suffice. No page has an extra reference then.
    pub(crate) fn pin_pages(&self) -> Result<Vec<OwnedFd>, SetupError> {
        let count = self.length / HUGE_PAGE;
        let (mut pipes, mut pinned) = (Vec::new(), 0);
        while pinned < count {
            if pipes.len() == MAX_PIPES {
                let what = "cannot hold the pages of the memory file in pipes: raise \
                            fs.pipe-max-size and fs.pipe-user-pages-soft";
                return Err(system(what)(Errno::MFILE));
            }
            let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
            let (kept, into) =
                rustix::pipe::pipe_with(flags).map_err(system("cannot create a pipe"))?;
            set_slots(&into, count - pinned);
            while pinned < count && self.pin_page(pinned * HUGE_PAGE, &into)? {
                pinned += 1;
            }
            pipes.push(kept);
        }
        Ok(pipes)
    }

    /// Puts the page at `offset` into a pipe. False if the pipe is full.
    fn pin_page(&self, offset: usize, into: &OwnedFd) -> Result<bool, SetupError> {
        let page = self.at(offset as u64, PAGE, PAGE);
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

/// Gives a pipe `wanted` slots, rounded up to a power of two, or the half of that, and so on, until
/// the kernel grants the number. It always grants the number that the pipe has.
fn set_slots(pipe: &OwnedFd, wanted: usize) {
    let mut slots = wanted.next_power_of_two();
    while rustix::pipe::fcntl_setpipe_size(pipe, slots * PAGE as usize).is_err() && slots > 1 {
        slots /= 2;
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
const HUGE_PAGE: usize = 2 << 20;
/// Largest number of pipes that keep references to pages of one file: enough for
/// [`MAX_BYTES`](crate::layout::MAX_BYTES) with 256 slots each.
const MAX_PIPES: usize = 128;
/// Bytes of a cache line.
const CACHE_LINE: usize = 64;
const NAME: &str = "netnice-ring";
/// Seals from the creation of the file on.
const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
/// Seals from the time the program has mapped the file. Linux before 5.1 has no `FUTURE_WRITE`.
const FINAL_SEALS: SealFlags = SealFlags::FUTURE_WRITE.union(SealFlags::SEAL);

/// Prefetches the cache line of `at`; no effect except on x86-64. With many flows the driver waits
/// for memory most of its time, and the next flows are known in advance. A prefetch changes no
/// value.
#[inline(always)]
pub(crate) fn prefetch(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the instruction needs SSE, which is part of x86-64. It takes any address and
        // never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = at;
}

#[cfg(test)]
mod tests;

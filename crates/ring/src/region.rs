//! Memory files and their mappings: the one place that maps memory, and that copies bytes out of and into what
//! another process writes at the same time.
//!
//! Rules of this room, on which every `unsafe` block here rests:
//!
//! 1. A [`Region`] is mapped from its making to its drop, at one address and with one length. The file behind it
//!    cannot shrink: the driver seals it before anybody else has it, and a program refuses one that is not sealed.
//!    Nor can pages be taken out of it once it is [`MemoryFile::seal`]ed for the second time, which the driver does
//!    before its packet thread touches it.
//! 2. Every way in takes an offset and a length and checks both against the region.
//! 3. Words that both sides use are reached as atomics alone (`words`), bytes of chunks by [`Region::copy_out`] and
//!    [`Region::copy_in`], which make no reference to them. Only the program gets references into chunks, and only
//!    into those that its ledger says are its own.
//! 4. What is copied out may be torn, if the other side writes meanwhile. It is bytes, every pattern of which is
//!    valid, and whoever judges them judges the copy.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::pipe::PipeFlags;

use crate::layout::{PAGE, SetupError};
use crate::words::soon;

/// A memory file that cannot change its size any more.
///
/// It is sealed in two steps, since a seal against holes (`F_SEAL_FUTURE_WRITE`) is one against new writable mappings
/// too, and the program has to make one:
/// ```text
///   create: SHRINK, GROW ──▶ the program maps it ──▶ seal: FUTURE_WRITE, SEAL ──▶ the packet thread may touch it
/// ```
/// Mappings that were there before go on writing. A hole would have the next who touches the page wait for whoever
/// punches it, for as long as that process gets no processor (`shmem_fault` and `shmem_fallocate` in Linux).
#[derive(Debug)]
pub(crate) struct MemoryFile {
    fd: OwnedFd,
    bytes: u64,
}

impl MemoryFile {
    /// Makes one, empty, and sealed against another size.
    pub(crate) fn create(bytes: u64) -> Result<MemoryFile, SetupError> {
        let plain = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Nobody shall run what a program wrote there; Linux before 6.3 does not know the flag.
        let fd = match rustix::fs::memfd_create(NAME, plain | MemfdFlags::NOEXEC_SEAL) {
            Err(Errno::INVAL) => rustix::fs::memfd_create(NAME, plain),
            other => other,
        };
        let fd = fd.map_err(system("cannot make a memory file"))?;
        rustix::fs::ftruncate(&fd, bytes).map_err(system("cannot size the memory file"))?;
        rustix::fs::fcntl_add_seals(&fd, SIZE).map_err(system("cannot seal the memory file"))?;
        Ok(MemoryFile { fd, bytes })
    }

    /// Seals it against holes, new writable mappings and other seals. Once more is no error.
    ///
    /// # Errors
    /// If the program has sealed it in another way, so that this cannot be done any more.
    pub(crate) fn seal(&self) -> Result<(), SetupError> {
        match rustix::fs::fcntl_add_seals(&self.fd, KEPT) {
            Ok(()) => return Ok(()),
            Err(Errno::PERM) => {}
            Err(other) => return Err(system("cannot seal the memory file")(other)),
        }
        let seals = rustix::fs::fcntl_get_seals(&self.fd)
            .map_err(system("the memory file cannot say how it is sealed"))?;
        match seals.contains(SIZE | KEPT) {
            true => Ok(()),
            false => Err(SetupError::OtherSeals {
                // Of those that matter.
                seen: (seals & (SIZE | KEPT)).bits(),
                wanted: (SIZE | KEPT).bits(),
            }),
        }
    }

    /// Takes one that came from the driver.
    pub(crate) fn receive(fd: OwnedFd) -> Result<MemoryFile, SetupError> {
        let seals = rustix::fs::fcntl_get_seals(&fd)
            .map_err(system("the memory file cannot say how it is sealed"))?;
        if !seals.contains(SIZE) {
            return Err(SetupError::NotOurs {
                what: "its set of seals",
                seen: seals.bits().into(),
                wanted: SIZE.bits().into(),
            });
        }
        let stat = rustix::fs::fstat(&fd).map_err(system("cannot size the memory file"))?;
        let bytes = u64::try_from(stat.st_size).unwrap_or(0);
        Ok(MemoryFile { fd, bytes })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn map(&self) -> Result<Region, SetupError> {
        let length = usize::try_from(self.bytes).map_err(|_| SetupError::System {
            what: "cannot map the memory file",
            error: std::io::ErrorKind::OutOfMemory.into(),
        })?;
        // SAFETY: a fresh mapping at an address that the kernel chooses, so no memory of ours is replaced.
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
            of: Of::File,
        })
    }
}

/// A mapping.
#[derive(Debug)]
pub(crate) struct Region {
    base: NonNull<u8>,
    length: usize,
    of: Of,
}

#[derive(Debug)]
enum Of {
    File,
    /// Memory of this process alone, for tests: where there are no files (Miri), and where the address sanitizer sees its ends (`fuzz/`).
    #[cfg(any(test, fuzzing))]
    Heap,
}

// SAFETY: the memory is reached as atomics or by copies (rule 3); moving or sharing the handle changes nothing.
unsafe impl Send for Region {}
// SAFETY: likewise.
unsafe impl Sync for Region {}

impl Region {
    /// Memory of this process alone, all zeros.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn private(bytes: u64) -> Region {
        let length = bytes as usize;
        // SAFETY: the layout has a size that is not 0.
        let base = unsafe { std::alloc::alloc_zeroed(Region::heap_layout(length)) };
        Region {
            base: NonNull::new(base).expect("memory for a test"),
            length,
            of: Of::Heap,
        }
    }

    #[cfg(any(test, fuzzing))]
    fn heap_layout(length: usize) -> std::alloc::Layout {
        assert!(length > 0);
        std::alloc::Layout::from_size_align(length, PAGE as usize).expect("a layout")
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.length as u64
    }

    /// The address of `length` bytes at `offset`, aligned to `align`.
    ///
    /// # Panics
    /// If they are not inside the region, or not aligned: whoever calls checked what came from outside before.
    #[inline]
    pub(crate) fn at(&self, offset: u64, length: u64, align: u64) -> NonNull<u8> {
        let end = offset.checked_add(length);
        assert!(
            end.is_some_and(|end| end <= self.length as u64) && offset.is_multiple_of(align),
            "{length} bytes at {offset} of a region of {}",
            self.length
        );
        // SAFETY: the offset is at most the length of the mapping, checked above.
        unsafe { self.base.add(offset as usize) }
    }

    /// So many bytes at `offset` are read soon.
    #[inline]
    pub(crate) fn soon(&self, offset: u64, length: u32) {
        let from = self.at(offset, length.into(), 1).as_ptr();
        for line in (0..length as usize).step_by(LINE) {
            soon(from.wrapping_add(line));
        }
    }

    /// Copies bytes out. They may change meanwhile: judge the copy (rule 4).
    #[inline]
    pub(crate) fn copy_out(&self, offset: u64, into: &mut [u8]) {
        let from = self.at(offset, into.len() as u64, 1);
        // SAFETY: both have that many bytes, and a private slice does not overlap the mapping.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into.as_mut_ptr(), into.len()) }
    }

    /// Copies bytes in.
    #[inline]
    pub(crate) fn copy_in(&self, offset: u64, bytes: &[u8]) {
        let to = self.at(offset, bytes.len() as u64, 1);
        // SAFETY: both have that many bytes, and a private slice does not overlap the mapping.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) }
    }

    /// Makes the pages of a range be there, each written to by this process at least once as far as the kernel knows: no
    /// access to them waits for memory from now on. `offset` is a multiple of a page.
    ///
    /// # Errors
    /// If there is no memory for them.
    pub(crate) fn populate(&self, offset: u64, bytes: u64) -> Result<(), SetupError> {
        let begin = self.at(offset, bytes, PAGE);
        match self.of {
            Of::File => {
                // SAFETY: the range is inside of the mapping, and to populate it changes no byte of it.
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
            Of::Heap => Ok(()),
        }
    }

    /// Keeps the kernel from making large pages of small ones, which takes these away from all mappings meanwhile, on behalf of
    /// whoever asks for it (`MADV_COLLAPSE`): it leaves alone what somebody holds a page of. So one page of each 2 MiB of
    /// the file is held in a pipe that nobody reads, as far as pipes go (512 MiB). What comes back holds them.
    ///
    /// # Errors
    /// If there is no pipe.
    pub(crate) fn hold(&self) -> Result<OwnedFd, SetupError> {
        let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
        let (held, into) = rustix::pipe::pipe_with(flags).map_err(system("cannot make a pipe"))?;
        let count = self.length / LARGE;
        // It has 16 places, and gets no more than the kernel lets it have.
        let _ = rustix::pipe::fcntl_setpipe_size(&into, (count * PAGE as usize).max(PAGE as usize));
        for number in 0..count {
            let page = self.at((number * LARGE) as u64, PAGE, PAGE);
            // SAFETY: the page is inside of the mapping. Nobody reads it by this reference, which ends with the call, nor through
            // the pipe; so that others write to it is no matter.
            let done = unsafe {
                let page = std::slice::from_raw_parts(page.as_ptr(), PAGE as usize);
                let pieces = [rustix::pipe::IoSliceRaw::from_slice(page)];
                rustix::pipe::vmsplice(&into, &pieces, rustix::pipe::SpliceFlags::NONBLOCK)
            };
            if done.is_err() {
                break;
            }
        }
        Ok(held)
    }

    /// Writes zeros over a range.
    pub(crate) fn clear(&self, offset: u64, bytes: u64) {
        let begin = self.at(offset, bytes, 1);
        // SAFETY: so many bytes are inside of the mapping; they are written as `copy_in` writes them.
        unsafe { std::ptr::write_bytes(begin.as_ptr(), 0, bytes as usize) }
        // To the compiler nobody reads them here; they must be there before the place is another flow's.
        fence(Ordering::SeqCst);
    }

    /// The bytes themselves.
    ///
    /// # Safety
    /// Nobody may write them while the reference lives: they are of a chunk that the program's ledger holds, the
    /// caller's borrow keeps it held, and the driver does not touch what it was not given.
    pub(crate) unsafe fn bytes_of(&self, offset: u64, length: usize) -> &[u8] {
        let at = self.at(offset, length as u64, 1);
        // SAFETY: inside the mapping, which `self` keeps; the caller answers for writers.
        unsafe { std::slice::from_raw_parts(at.as_ptr(), length) }
    }

    /// The bytes themselves, to write.
    ///
    /// # Safety
    /// As [`Region::bytes_of`], and nobody else may read them either.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn bytes_of_mut(&self, offset: u64, length: usize) -> &mut [u8] {
        let at = self.at(offset, length as u64, 1);
        // SAFETY: inside the mapping, which `self` keeps; the caller answers for everybody else.
        unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), length) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        match self.of {
            // SAFETY: the mapping was made with this address and length, and nothing refers to it any more: all
            // that does holds the region alive. That it cannot fail for a whole mapping leaves nothing to say.
            Of::File => unsafe {
                let _ = rustix::mm::munmap(self.base.as_ptr().cast(), self.length);
            },
            // SAFETY: allocated with the same layout.
            #[cfg(any(test, fuzzing))]
            Of::Heap => unsafe {
                std::alloc::dealloc(self.base.as_ptr(), Region::heap_layout(self.length));
            },
        }
    }
}

/// Names a failed system call.
pub(crate) fn system(what: &'static str) -> impl Fn(Errno) -> SetupError {
    move |error| SetupError::System {
        what,
        error: error.into(),
    }
}

/// Bytes of a large page, which begins at a multiple of them.
const LARGE: usize = 2 << 20;
/// Bytes that the processor fetches at a time.
const LINE: usize = 64;
const NAME: &str = "netnice-ring";
/// From the begin on.
const SIZE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
/// From when the program has mapped it. In Linux before 5.1 there is none against holes.
const KEPT: SealFlags = SealFlags::FUTURE_WRITE.union(SealFlags::SEAL);

#[cfg(test)]
mod tests;

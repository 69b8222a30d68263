//! Allocates the pages of a memory file before a thread that must not wait touches them, and keeps
//! them as they are. A call fails with [`SetupError`] if there is not enough memory, or if a system
//! call fails.
//!
//! **Huge pages.** A packet of a program with much memory costs the driver several misses of the
//! processor's address cache (TLB). So each whole 2 MiB of the file (an *extent*) becomes one huge
//! page, if the kernel grants it, when a flow first needs a page of it. This takes 1 to 2 ms, and
//! all 2 MiB of memory even if the flow needs less. The kernel refuses it before Linux 6.1, where
//! huge pages are switched off for the process, and when memory is fragmented. Pages then stay
//! small.
//!
//! **References.** Any process with a mapping can request huge pages too (`MADV_COLLAPSE`), which
//! unmaps the pages of all mappings while it lasts. The kernel does not collapse a range in which a
//! page has an extra reference. So the first page of each extent is put into a pipe that is never
//! read, before any thread that must not wait touches the extent.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;
use rustix::pipe::PipeFlags;

use crate::layout::{PAGE, SetupError};
use crate::region::{HUGE_PAGE, Region, system};

/// The pages of a memory file, as one mapping sees them.
pub(crate) struct FilePages {
    region: Arc<Region>,
    /// No thread that must not wait locks this.
    extents: Mutex<Extents>,
}

/// The whole extents of a file.
struct Extents {
    /// Whether the first page of each has an extra reference.
    is_held: Vec<bool>,
    holders: Holders,
}

/// Pipes with references to pages.
#[derive(Default)]
struct Holders {
    /// The reading ends, which keep the references.
    pipes: Vec<OwnedFd>,
    /// The writing end of the last pipe.
    into: Option<OwnedFd>,
}

impl FilePages {
    /// The pages of the file that `region` maps.
    pub(crate) fn new(region: &Arc<Region>) -> FilePages {
        let whole = region.bytes() / HUGE_PAGE;
        FilePages {
            region: region.clone(),
            extents: Mutex::new(Extents {
                is_held: vec![false; whole as usize],
                holders: Holders::default(),
            }),
        }
    }

    /// The mapping.
    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Allocates the pages of a range and faults them in for writing, so that later accesses do not
    /// wait for memory, and makes the extents that it touches huge pages. `offset` is a multiple of
    /// [`PAGE`].
    pub(crate) fn prepare(&self, offset: u64, bytes: u64) -> Result<(), SetupError> {
        let mut extents = self.extents.lock().unwrap_or_else(PoisonError::into_inner);
        let Extents { is_held, holders } = &mut *extents;
        let touched = offset / HUGE_PAGE..(offset + bytes).div_ceil(HUGE_PAGE);
        for number in touched {
            let Some(is_held) = is_held.get_mut(number as usize).filter(|held| !**held) else {
                continue;
            };
            let left = (self.region.bytes() / HUGE_PAGE - number) as usize;
            self.region.make_huge(number * HUGE_PAGE)?;
            holders.hold(&self.region, number * HUGE_PAGE, left)?;
            *is_held = true;
        }
        drop(extents);
        self.region.populate(offset, bytes)
    }
}

impl Holders {
    /// Takes a reference to the page at `offset`. A new pipe gets `slots` slots, or as many as the
    /// kernel grants: without CAP_SYS_RESOURCE 256 by default (512 MiB of file). Fails if a system
    /// call fails, or if the kernel's limits on pipes are so low that [`MAX_PIPES`] pipes do not
    /// suffice.
    fn hold(&mut self, region: &Region, offset: u64, slots: usize) -> Result<(), SetupError> {
        loop {
            if let Some(into) = &self.into
                && region.put_page(offset, into)?
            {
                return Ok(());
            }
            if self.pipes.len() == MAX_PIPES {
                let what = "cannot hold the pages of the memory file in pipes: raise \
                            fs.pipe-max-size and fs.pipe-user-pages-soft";
                return Err(system(what)(Errno::MFILE));
            }
            let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
            let (kept, into) =
                rustix::pipe::pipe_with(flags).map_err(system("cannot create a pipe"))?;
            set_slots(&into, slots);
            self.pipes.push(kept);
            self.into = Some(into);
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

/// Largest number of pipes that keep references to pages of one file: enough for
/// [`MAX_BYTES`](crate::layout::MAX_BYTES) with 256 slots each.
const MAX_PIPES: usize = 128;

#[cfg(test)]
mod tests;

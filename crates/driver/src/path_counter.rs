//! Reads what the kernel's classes of the link were given to send ([`PathCounter`]), from memory
//! shared with the eBPF program that counts it. Making a counter fails with an error of
//! [`io::Error`]: if the place is outside the array, or with that of mmap(2). Reading cannot fail.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use netnice_kernel::enforce::{MAX_INTERFACES, PathCount as SharedCount};
use rustix::mm::{MapFlags, ProtFlags};

use crate::datapath::PathCount;
use crate::mapping::Mapping;

/// The count of one link in the array.
#[derive(Debug)]
pub struct PathCounter {
    /// The counts of all links.
    counts: Mapping,
    /// The place of this link.
    place: usize,
}

/// Layout of `struct path_count`.
#[repr(C)]
struct Count {
    bytes: AtomicU64,
    packets: AtomicU64,
}

const _: () = assert!(size_of::<Count>() == size_of::<SharedCount>());

impl PathCounter {
    /// Maps the count at this place of the array.
    ///
    /// # Errors
    /// If the array has no such place, or the descriptor cannot be mapped.
    pub fn map(array: BorrowedFd<'_>, place: u32) -> io::Result<PathCounter> {
        if place as usize >= MAX_INTERFACES {
            let why =
                format!("the array of counts has {MAX_INTERFACES} places, and {place} is none");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let length = MAX_INTERFACES * size_of::<Count>();
        let (protection, more) = (ProtFlags::READ, MapFlags::POPULATE);
        // SAFETY: a new mapping of the array, without a fixed address.
        let counts = unsafe { Mapping::shared(length, protection, more, (array, 0))? };
        let place = place as usize;
        Ok(PathCounter { counts, place })
    }

    /// The present count. The two numbers are read one after the other, so one may be newer by the
    /// packets of a moment.
    #[inline]
    pub fn count(&self) -> PathCount {
        // SAFETY: the mapping begins at a page and has room for MAX_INTERFACES counts; both sides
        // access them by atomic words only.
        let count = unsafe { &*self.counts.start.as_ptr().cast::<Count>().add(self.place) };
        PathCount {
            bytes: count.bytes.load(Ordering::Relaxed),
            packets: count.packets.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    fn array() -> File {
        let file = File::from(memfd_create("counts", MemfdFlags::CLOEXEC).expect("a file"));
        file.set_len(65_536).expect("its length");
        file
    }

    #[test]
    fn the_count_of_its_own_place_is_read() {
        let array = array();
        for place in [0_u32, 1, 255, 256, 4_095] {
            let counter = PathCounter::map(array.as_fd(), place).expect("a mapping");
            assert_eq!(counter.count(), PathCount::default());
            let wanted = PathCount {
                bytes: u64::from(place) + 7,
                packets: 3,
            };
            let at = u64::from(place) * 16;
            for (number, at) in [(wanted.bytes, at), (wanted.packets, at + 8)] {
                array
                    .write_all_at(&number.to_ne_bytes(), at)
                    .expect("a write");
            }
            assert_eq!(counter.count(), wanted);
        }
    }

    #[test]
    fn a_place_outside_of_the_array_is_refused() {
        let error = PathCounter::map(array().as_fd(), 4_096).expect_err("no place");
        assert!(error.to_string().contains("4096"), "{error}");
    }
}

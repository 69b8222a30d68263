//! The header of a memory file as atomics ([`Header`]): its sizes, the sleeping flags and the
//! notices. Both sides use it. A call panics if the header is not inside the region.

use std::mem::offset_of;
use std::sync::Arc;

use crate::doorbell::{Notices, SleepFlag};
use crate::layout::{
    ACCEPTS_ARRIVALS, Budget, FileHeader, MAGIC, NOTICE_WORDS, PARTIAL_CHECKSUMS, VERSION,
};
use crate::region::Region;
use crate::words::{Ordering, Word, Words};

/// The header of a memory file, as atomics.
pub(crate) struct Header<'a> {
    region: &'a Arc<Region>,
}

impl<'a> Header<'a> {
    /// The header at the start of `region`, which must be a whole memory file.
    pub(crate) fn new(region: &'a Arc<Region>) -> Header<'a> {
        Header { region }
    }

    /// Writes the header of a new memory file: its length in bytes and its number of flows, and the
    /// version last.
    pub(crate) fn write(&self, budget: &Budget, bytes: u64) {
        self.double(offset_of!(FileHeader, magic))[0].store(MAGIC, Ordering::Relaxed);
        self.double(offset_of!(FileHeader, bytes))[0].store(bytes, Ordering::Relaxed);
        self.word(offset_of!(FileHeader, flows))
            .store(budget.flows, Ordering::Relaxed);
        self.word(offset_of!(FileHeader, accepts))
            .store(ACCEPTS_ARRIVALS, Ordering::Relaxed);
        self.word(offset_of!(FileHeader, version))
            .store(VERSION, Ordering::Release);
    }

    /// Magic, version, bytes and flows, as read from shared memory.
    pub(crate) fn read(&self) -> (u64, u32, u64, u32) {
        let version = self.word(offset_of!(FileHeader, version));
        (
            self.double(offset_of!(FileHeader, magic))[0].load(Ordering::Relaxed),
            version.load(Ordering::Acquire),
            self.double(offset_of!(FileHeader, bytes))[0].load(Ordering::Relaxed),
            self.word(offset_of!(FileHeader, flows))
                .load(Ordering::Relaxed),
        )
    }

    /// Whether the driver accepts arrival times of messages.
    pub(crate) fn accepts_arrivals(&self) -> bool {
        let accepts = self.word(offset_of!(FileHeader, accepts));
        accepts.load(Ordering::Relaxed) & ACCEPTS_ARRIVALS != 0
    }

    /// Sets whether partial checksums that arrive on the interface are right.
    pub(crate) fn set_partial_checksums(&self, are_right: bool) {
        let accepts = self.word(offset_of!(FileHeader, accepts));
        let bit = if are_right { PARTIAL_CHECKSUMS } else { 0 };
        accepts.store(ACCEPTS_ARRIVALS | bit, Ordering::Relaxed);
    }

    /// Whether partial checksums that arrive on the interface are right.
    pub(crate) fn partial_checksums(&self) -> bool {
        let accepts = self.word(offset_of!(FileHeader, accepts));
        accepts.load(Ordering::Relaxed) & PARTIAL_CHECKSUMS != 0
    }

    /// The field `ended`: 0, or the number of the broken rule.
    pub(crate) fn ended(&self) -> Word {
        self.word(offset_of!(FileHeader, ended))
    }

    /// The flag of a sleeping driver.
    pub(crate) fn driver_sleeps(&self) -> SleepFlag {
        SleepFlag {
            flag: self.word(offset_of!(FileHeader, driver_sleeps)),
        }
    }

    /// The flag of a sleeping program.
    pub(crate) fn program_sleeps(&self) -> SleepFlag {
        SleepFlag {
            flag: self.word(offset_of!(FileHeader, program_sleeps)),
        }
    }

    /// The first `words` words of the notices to the driver.
    pub(crate) fn to_driver(&self, words: usize) -> Notices {
        self.notices(offset_of!(FileHeader, to_driver), words)
    }

    /// The first `words` words of the notices to the program.
    pub(crate) fn to_program(&self, words: usize) -> Notices {
        self.notices(offset_of!(FileHeader, to_program), words)
    }

    fn notices(&self, at: usize, words: usize) -> Notices {
        Notices {
            words: Words::new(self.region, field(at), words.min(NOTICE_WORDS)),
        }
    }

    fn word(&self, at: usize) -> Word {
        Word::new(self.region, field(at))
    }

    fn double(&self, at: usize) -> Words {
        Words::new(self.region, field(at), 1)
    }
}

/// The offset of a field, from [`std::mem::offset_of`], as a number of the type of offsets.
pub(crate) const fn field(at: usize) -> u64 {
    at as u64
}

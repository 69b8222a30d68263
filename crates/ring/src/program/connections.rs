//! What a program tells the driver about its connections of TCP (`docs/reference/tcp-flows.md`). No
//! function fails.

use super::{Chunk, ProgramRings};
use crate::connections::{ConnectionList, ENTRY_BYTES, MAX_ENTRIES, over_word};
use crate::words::Ordering;

impl ProgramRings {
    /// Says whether the flow's connection of TCP is over: then the driver does not reset it when
    /// the flow ends without the program having closed it.
    pub fn set_connection_over(&self, is_over: bool) {
        let word = over_word(&self.region, &self.location);
        word.store(is_over.into(), Ordering::Release);
    }

    /// Makes a list of `entries` connections of TCP, whose peers the driver resets if the flow ends
    /// without the program having closed it. The list takes free chunks, which the program holds
    /// from now on. Call it before any chunk is taken, because the chunks must follow each other:
    /// `None` if they do not, or too few are free. A later list replaces an earlier one.
    pub fn list_connections(&mut self, entries: u32) -> Option<ConnectionList> {
        let entries = entries.min(MAX_ENTRIES);
        let bytes = u64::from(entries) * ENTRY_BYTES;
        let count = bytes.div_ceil(self.location.shape.chunk_bytes.into()) as usize;
        let taken: Vec<Chunk> = (0..count).map_while(|_| self.chunk()).collect();
        let follow = taken.windows(2).all(|two| two[1].0 == two[0].0 + 1);
        match taken.first() {
            Some(first) if taken.len() == count && follow => {
                let place = (self.offset(*first), entries);
                let area = self.area;
                Some(ConnectionList::new(
                    &self.region,
                    &self.location,
                    area,
                    place,
                ))
            }
            _ => {
                for chunk in taken {
                    self.pool.give_number(chunk.0);
                }
                None
            }
        }
    }

    /// The mapping of the memory file.
    #[cfg(test)]
    pub(crate) fn region_for_tests(&self) -> &std::sync::Arc<crate::region::Region> {
        &self.region
    }
}

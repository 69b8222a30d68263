//! Reserves regions of a memory file for flows, so that no two flows of one attachment use the same
//! region. A reservation fails if another flow uses a part of the region.

use std::sync::{Arc, Mutex, PoisonError};

use crate::layout::SetupError;

/// The start and the end of the regions that flows use. No two of them overlap.
pub(super) type UsedRegions = Arc<Mutex<Vec<(u64, u64)>>>;

/// The reservation of a region by a flow. It ends when it is dropped.
pub(crate) struct Reservation {
    used: UsedRegions,
    begin: u64,
}

impl Reservation {
    pub(super) fn take(
        used: &UsedRegions,
        begin: u64,
        end: u64,
    ) -> Result<Reservation, SetupError> {
        let mut all = used.lock().unwrap_or_else(PoisonError::into_inner);
        if all.iter().any(|(from, to)| *from < end && begin < *to) {
            return Err(SetupError::InUse { offset: begin });
        }
        all.push((begin, end));
        Ok(Reservation {
            used: used.clone(),
            begin,
        })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut all = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(from, _)| *from != self.begin);
    }
}

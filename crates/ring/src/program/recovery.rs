//! Takes records back that the driver has not taken, from a flow that was withdrawn (section 7 of
//! `docs/reference/ring.md`).

use super::{Chunk, ProgramRings, RecordError};

impl ProgramRings {
    /// Takes back a chunk that was handed over to be sent and that no returned record named. The
    /// caller then holds it. Call it only after the daemon has said that the driver withdrew the
    /// flow, and after all returned records were reclaimed: the driver does not read such a chunk
    /// any more. The chunk of an empty record must not be taken back, because the driver can still
    /// write into it.
    ///
    /// # Errors
    /// If the driver was not given the chunk.
    pub fn take_unsent(&mut self, chunk: Chunk) -> Result<(), RecordError> {
        let is_given = self.pool.is_number_in_use(chunk.0) && self.given.release(chunk.0);
        is_given.then_some(()).ok_or(RecordError::NotHeld(chunk))
    }
}

#[cfg(test)]
mod tests;

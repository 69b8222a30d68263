//! Hands over records of segments of a TCP connection (`docs/reference/ring.md`, section 5).

use super::{Piece, ProgramRings, RecordError};
use crate::layout::Ring;
use crate::record::SEGMENTS;
use crate::words::Ordering;

impl ProgramRings {
    /// Hands over a record of segments of one TCP connection that follow each other. Each piece has
    /// the room of a whole frame: only the first one's headers are used, without the checksum of
    /// TCP, and of the others the payload behind the same number of bytes. All but the last have
    /// equal lengths, and the last is not longer. The headers are those of the first segment,
    /// except PSH and FIN, which are those of the last. Only after [`ProgramRings::joins`] was true
    /// once: earlier drivers disconnect the program.
    ///
    /// # Errors
    /// As [`ProgramRings::submit`].
    #[inline]
    pub fn submit_segments(&mut self, pieces: &[Piece]) -> Result<(), RecordError> {
        let (pairs, count) = self.validate(pieces)?;
        self.hand_over(Ring::Submit, &pairs[..count], (SEGMENTS, 0))
    }

    /// True while segments of the flow can leave in long packets: records of segments take less
    /// time then ([`ProgramRings::submit_segments`]). They are sent in any case.
    #[inline]
    pub fn joins(&self) -> bool {
        self.joins.load(Ordering::Relaxed) == 1
    }
}

//! Allocates the regions of flows in a memory file. A region is taken from the first *gap* (run of
//! free bytes) that is large enough; without one, the allocation fails. When a region is given
//! back, adjacent gaps are joined.

use crate::layout::SetupError;

/// Free runs of bytes, sorted by offset. No two of them are adjacent.
pub(crate) struct Gaps {
    runs: Vec<Run>,
    total: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    at: u64,
    bytes: u64,
}

impl Gaps {
    /// An allocator with one free run.
    pub(crate) fn new(at: u64, bytes: u64) -> Gaps {
        Gaps {
            runs: vec![Run { at, bytes }],
            total: bytes,
        }
    }

    /// Takes `bytes` bytes from the first run that has them, and returns their offset. Returns
    /// `None` if no run is large enough.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<u64> {
        let found = self.runs.iter().position(|run| run.bytes >= bytes)?;
        let run = &mut self.runs[found];
        let at = run.at;
        run.at += bytes;
        run.bytes -= bytes;
        if run.bytes == 0 {
            self.runs.remove(found);
        }
        Some(at)
    }

    /// Gives back bytes that were taken.
    ///
    /// # Panics
    /// If the bytes overlap a free run.
    pub(crate) fn give(&mut self, at: u64, bytes: u64) {
        let after = self.runs.partition_point(|run| run.at < at);
        self.runs.insert(after, Run { at, bytes });
        self.join(after);
        if after > 0 {
            self.join(after - 1);
        }
    }

    /// The error for a request of `wanted` bytes that no run satisfies.
    pub(crate) fn refusal(&self, wanted: u64) -> SetupError {
        let bytes = self.runs.iter().map(|run| run.bytes);
        SetupError::NoRoom {
            wanted,
            total: self.total,
            free: bytes.clone().sum(),
            gap: bytes.max().unwrap_or(0),
        }
    }

    /// Joins a run with the next one if they are adjacent.
    fn join(&mut self, index: usize) {
        let Some(&next) = self.runs.get(index + 1) else {
            return;
        };
        let run = &mut self.runs[index];
        assert!(run.at + run.bytes <= next.at, "given back what was free");
        if run.at + run.bytes == next.at {
            run.bytes += next.bytes;
            self.runs.remove(index + 1);
        }
    }
}

#[cfg(test)]
mod tests;

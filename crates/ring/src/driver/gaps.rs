//! The parts of a memory file that no region takes: first fit, neighbours joined when one is given back.

use crate::layout::SetupError;

/// Runs of free bytes, by where they begin, no two of them touching.
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
    /// One run.
    pub(crate) fn new(at: u64, bytes: u64) -> Gaps {
        Gaps {
            runs: vec![Run { at, bytes }],
            total: bytes,
        }
    }

    /// Takes so many bytes, from the first run that has them.
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

    /// Gives back what was taken.
    pub(crate) fn give(&mut self, at: u64, bytes: u64) {
        let after = self.runs.partition_point(|run| run.at < at);
        self.runs.insert(after, Run { at, bytes });
        self.join(after);
        if after > 0 {
            self.join(after - 1);
        }
    }

    /// Why so many bytes could not be taken.
    pub(crate) fn refusal(&self, wanted: u64) -> SetupError {
        let bytes = self.runs.iter().map(|run| run.bytes);
        SetupError::NoRoom {
            wanted,
            total: self.total,
            free: bytes.clone().sum(),
            gap: bytes.max().unwrap_or(0),
        }
    }

    /// Joins a run with the one behind it, if they touch.
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

//! Congestion avoidance of Reno (RFC 5681).

/// State of congestion avoidance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reno {
    /// Acknowledged bytes times MSS that did not yet give a whole byte of window.
    remainder: u64,
}

impl Reno {
    /// The growth of the window for `acked` bytes: one MSS per window of acknowledged bytes
    /// (RFC 5681, section 3.1, equation 3, with byte counting).
    pub(super) fn growth(&mut self, acked: u32, window: u32, mss: u32) -> u32 {
        let window = u64::from(window);
        // After a reduction of the window the remainder is still less than a byte.
        let remainder = self.remainder.min(window - 1);
        let scaled = u64::from(acked) * u64::from(mss) + remainder;
        self.remainder = scaled % window;
        // Byte counting gives at most one MSS per ACK outside slow start (RFC 3465, section 2.1).
        u32::try_from(scaled / window).map_or(mss, |growth| growth.min(mss))
    }

    /// The slow start threshold after a loss with `flight` unacknowledged bytes (RFC 5681,
    /// section 3.1, equation 4). The caller applies the lower limit of 2 MSS.
    ///
    /// Equation 4 gives an upper limit. After a timeout `flight` still contains the segments that
    /// were lost and can exceed the window; then the threshold is half of the window.
    pub(super) fn reduced(flight: u32, window: u32) -> u32 {
        flight.min(window) / 2
    }
}

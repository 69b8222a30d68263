//! A connection whose caller exchanges all of its buffers, because it goes on in another place.

use std::time::Duration;

use super::Connection;
use crate::buffer::{Handle, Slice};

impl Connection {
    /// The parts of buffers that hold what was written and is not acknowledged. Several parts can
    /// lie in one buffer.
    pub fn written_parts(&self) -> impl Iterator<Item = Slice> {
        self.sender.queue.payloads()
    }

    /// The parts of buffers that hold what was received and is not consumed: those that can be
    /// read, then those behind gaps. Each lies in a buffer of its own.
    pub fn received_parts(&self) -> impl Iterator<Item = Slice> {
        self.receiver.parts().chain(self.receiver.early_parts())
    }

    /// Replaces the buffer of each written and received part by the one that `rename` returns for
    /// it. The new one must hold the same bytes at the same offsets.
    pub fn rename_buffers(&mut self, mut rename: impl FnMut(Handle) -> Handle) {
        self.sender.queue.rename_buffers(&mut rename);
        self.receiver.rename_buffers(&mut rename);
    }

    /// Sets the largest window that the connection advertises from now on, in bytes; at most what
    /// the window scale of the handshake can express. What was promised before stays promised.
    pub fn set_largest_window(&mut self, bytes: u32) {
        let unit = 1_u64 << self.own_scale;
        let most = u64::from(u16::MAX) * unit;
        let bytes = u32::try_from(most).map_or(bytes, |most| bytes.min(most));
        self.own_config().largest_window = bytes;
    }

    /// Sets how long the connection will wait in TIME_WAIT. One that waits already is not changed.
    pub fn set_time_wait(&mut self, time: Duration) {
        self.own_config().time_wait = time;
    }
}

//! The bytes of a packet that arrived ([`PacketBytes`]), in memory that the next packet of the same
//! thread uses again. So a packet needs no malloc(3) and free(3). Nothing here fails.

use std::cell::RefCell;

/// A copy of a packet.
pub(in crate::handler_thread) struct PacketBytes(Vec<u8>);

impl PacketBytes {
    pub(super) fn copy_of(packet: &[u8]) -> PacketBytes {
        let spare = SPARE.with_borrow_mut(Vec::pop);
        let mut bytes = spare.unwrap_or_default();
        bytes.extend_from_slice(packet);
        PacketBytes(bytes)
    }
}

impl Drop for PacketBytes {
    fn drop(&mut self) {
        let mut bytes = std::mem::take(&mut self.0);
        bytes.clear();
        // No thread-local memory is left when the thread ends.
        let _ = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < MOST_SPARE {
                spare.push(bytes);
            }
        });
    }
}

impl AsRef<[u8]> for PacketBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl AsMut<[u8]> for PacketBytes {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

thread_local! {
    /// Memory of packets that were processed, without bytes.
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// The largest number of packets whose memory is kept: a few more than are read at once.
const MOST_SPARE: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_without_the_bytes_of_the_packet_before() {
        let first = PacketBytes::copy_of(b"a long packet");
        let memory = first.0.as_ptr();
        drop(first);
        let second = PacketBytes::copy_of(b"short");
        assert_eq!(second.as_ref(), b"short");
        assert_eq!(second.0.as_ptr(), memory);
        // The memory of the second packet is in use.
        let third = PacketBytes::copy_of(b"third");
        assert_ne!(third.0.as_ptr(), memory);
        assert_eq!(second.as_ref(), b"short");
    }

    #[test]
    fn the_memory_that_is_kept_is_bounded() {
        let packets: Vec<PacketBytes> = (0..100).map(|_| PacketBytes::copy_of(b"one")).collect();
        drop(packets);
        assert_eq!(SPARE.with_borrow(Vec::len), MOST_SPARE);
    }
}

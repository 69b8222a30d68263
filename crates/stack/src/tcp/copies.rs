//! Payload of a connection that does not lie in buffers of its flow ([`Copies`]).
//!
//! A connection that moves to a flow of its own takes along copies of what its peer has not
//! acknowledged and of what its program has not read. A copy has the handle of no buffer, and lives
//! until the connection releases it.

use std::collections::HashMap;

use netnice_tcp::buffer::{Handle, Slice};

/// The copies of one connection. See the module.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// By the number in the handle.
    parts: HashMap<u32, Vec<u8>>,
    last: u32,
}

impl Copies {
    /// True if the handle is that of a copy, not that of a buffer.
    pub(super) fn holds(handle: Handle) -> bool {
        handle.0 & COPY != 0
    }

    /// Adds a copy.
    pub(super) fn add(&mut self, bytes: Vec<u8>) -> Handle {
        self.last = (self.last + 1) & !COPY;
        self.parts.insert(self.last, bytes);
        Handle(COPY | self.last)
    }

    /// The bytes of a part; none if there is no such copy.
    pub(super) fn bytes(&self, part: Slice) -> &[u8] {
        let bytes = self.parts.get(&(part.handle.0 & !COPY));
        let bytes = bytes.and_then(|bytes| bytes.get(part.offset as usize..part.end() as usize));
        bytes.unwrap_or_default()
    }

    /// Adds bytes behind the end of a part, which is the last one of its copy.
    pub(super) fn append(&mut self, to: Slice, more: &[u8]) {
        if let Some(bytes) = self.parts.get_mut(&(to.handle.0 & !COPY)) {
            bytes.truncate(to.end() as usize);
            bytes.extend_from_slice(more);
        }
    }

    /// Removes a copy, and returns its bytes.
    pub(super) fn remove(&mut self, handle: Handle) -> Vec<u8> {
        let part = self.parts.remove(&(handle.0 & !COPY));
        part.unwrap_or_default()
    }

    /// Number of copies.
    pub(super) fn len(&self) -> u32 {
        // A connection has at most as many as there are handles.
        self.parts.len() as u32
    }
}

/// Buffers have smaller numbers.
const COPY: u32 = 1 << 31;

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(handle: Handle, offset: u32, length: u32) -> Slice {
        Slice {
            handle,
            offset,
            length,
        }
    }

    #[test]
    fn a_copy_is_read_in_parts_extended_and_removed() {
        let mut copies = Copies::default();
        let first = copies.add(b"0123456789".to_vec());
        let second = copies.add(b"other".to_vec());
        assert!(Copies::holds(first) && Copies::holds(second) && first != second);
        assert!(!Copies::holds(Handle(65_535)));
        assert_eq!(copies.bytes(slice(first, 2, 3)), b"234");
        copies.append(slice(first, 2, 3), b"more");
        assert_eq!(copies.bytes(slice(first, 2, 7)), b"234more");
        assert_eq!(copies.bytes(slice(first, 2, 8)), b"", "too long");
        assert_eq!(copies.remove(second), b"other");
        assert_eq!(copies.bytes(slice(second, 0, 1)), b"");
        assert_eq!(copies.len(), 1);
    }
}

//! Payload of a connection that does not lie in buffers of its flow ([`Copies`]).
//!
//! A connection that moves to a flow of its own takes along what its peer has not acknowledged and
//! what its program has not read, as copies. A copy has the handle of no buffer, and lives until the
//! connection releases it. Payload that the driver is sending at that moment cannot be read: its
//! copy is *absent* until the driver has returned the buffer.

use std::collections::HashMap;

use netnice_tcp::buffer::{Handle, Slice};

/// The copies of one connection. See the module.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// By the number in the handle; `None`: absent.
    parts: HashMap<u32, Option<Vec<u8>>>,
    /// No number is used twice, so what is filled late cannot be taken for another copy.
    last: u32,
}

impl Copies {
    /// True if the handle is that of a copy, not that of a buffer.
    pub(super) fn holds(handle: Handle) -> bool {
        handle.0 & COPY != 0
    }

    /// Adds a copy, or an absent one.
    pub(super) fn add(&mut self, bytes: Option<Vec<u8>>) -> Handle {
        self.last += 1;
        self.parts.insert(self.last, bytes);
        Handle(COPY | self.last)
    }

    /// Adds the bytes of an absent copy. No effect if the connection has released it.
    pub(super) fn fill(&mut self, handle: Handle, bytes: Vec<u8>) {
        if let Some(part) = self.parts.get_mut(&(handle.0 & !COPY)) {
            part.get_or_insert(bytes);
        }
    }

    /// The bytes of a part; `None` if the copy is absent.
    pub(super) fn bytes(&self, part: Slice) -> Option<&[u8]> {
        let bytes = self.parts.get(&(part.handle.0 & !COPY))?.as_ref()?;
        bytes.get(part.offset as usize..part.end() as usize)
    }

    /// Adds bytes behind the end of a part, which is the last one of its copy.
    pub(super) fn append(&mut self, to: Slice, more: &[u8]) {
        if let Some(Some(bytes)) = self.parts.get_mut(&(to.handle.0 & !COPY)) {
            bytes.truncate(to.end() as usize);
            bytes.extend_from_slice(more);
        }
    }

    /// Removes a copy, and returns its bytes.
    pub(super) fn remove(&mut self, handle: Handle) -> Vec<u8> {
        let part = self.parts.remove(&(handle.0 & !COPY)).flatten();
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
    fn a_copy_is_filled_late_read_in_parts_and_extended() {
        let mut copies = Copies::default();
        let first = copies.add(Some(b"0123456789".to_vec()));
        let second = copies.add(None);
        assert!(Copies::holds(first) && Copies::holds(second) && first != second);
        assert!(!Copies::holds(Handle(65_535)));
        assert_eq!(copies.bytes(slice(first, 2, 3)), Some(&b"234"[..]));
        assert_eq!(copies.bytes(slice(second, 0, 1)), None, "absent");
        copies.fill(second, b"late".to_vec());
        assert_eq!(copies.bytes(slice(second, 1, 3)), Some(&b"ate"[..]));
        // What is there already stays, and what was released does not come back.
        copies.fill(first, b"other".to_vec());
        copies.append(slice(first, 2, 3), b"more");
        assert_eq!(copies.bytes(slice(first, 2, 7)), Some(&b"234more"[..]));
        assert_eq!(copies.bytes(slice(first, 2, 8)), None, "too long");
        assert_eq!(copies.remove(second), b"late");
        copies.fill(second, b"late".to_vec());
        let third = copies.add(None);
        assert_ne!(third, second);
        assert_eq!((copies.bytes(slice(third, 0, 1)), copies.len()), (None, 2));
    }
}

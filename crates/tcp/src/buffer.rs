//! Names of the caller's buffers.

/// The name of a buffer of the caller, for example the number of a chunk. The state machine stores
/// and returns it, and never looks into the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(pub u32);

/// A part of a buffer's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The buffer.
    pub handle: Handle,
    /// Where the part begins, in bytes from the beginning of the buffer's payload.
    pub offset: u32,
    /// Length of the part in bytes.
    pub length: u32,
}

impl Slice {
    /// The first byte behind the part, from the beginning of the buffer's payload.
    pub const fn end(self) -> u32 {
        self.offset + self.length
    }
}

//! Frames of messages on a byte stream: a length in four bytes, big-endian, then that many bytes.
//! [`encode`] makes a frame, and a [`Decoder`] extracts the messages from received bytes. Both fail
//! with a [`FrameError`] for an empty message and for one that is longer than the caller's limit.
//!
//! [`Decoder`] is a state machine over untrusted bytes without I/O. It reserves no memory for bytes
//! that a length only announces, and refuses a length above its limit as soon as the four bytes are
//! complete. After a refusal it refuses everything, because it cannot find the start of the next
//! frame.

/// Longest request of a client to the daemon, in bytes of JSON.
pub const LONGEST_REQUEST: usize = 64 * 1024;

/// Longest request of the daemon to a driver, in bytes of JSON: the discard patterns of a link take
/// up to 80 KiB.
pub const LONGEST_DRIVER_CALL: usize = 1024 * 1024;

/// Longest response of the daemon to a client, in bytes of JSON.
pub const LONGEST_RESPONSE: usize = 16 * 1024 * 1024;

/// Longest message of a driver to the daemon, in bytes of JSON: a census of 65,536 flows at about
/// 800 bytes.
pub const LONGEST_DRIVER_MESSAGE: usize = 64 * 1024 * 1024;

/// Why a message cannot be framed, or received bytes are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The length is above the limit.
    #[error("a message has {length} bytes; at most {limit} are allowed")]
    TooLong {
        /// The length of the message, or the one that a received frame announces, in bytes.
        length: usize,
        /// The limit, in bytes.
        limit: usize,
    },
    /// The message has no bytes.
    #[error("a message is empty")]
    Empty,
}

/// The frame of one message: its length, then `body`.
///
/// # Errors
/// If the message is empty or longer than `limit`.
pub fn encode(body: &[u8], limit: usize) -> Result<Vec<u8>, FrameError> {
    let length = check(body.len(), limit)?;
    let mut frame = Vec::with_capacity(HEADER + body.len());
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(body);
    Ok(frame)
}

/// Extracts messages from bytes as they arrive.
#[derive(Debug)]
pub struct Decoder {
    limit: usize,
    bytes: Vec<u8>,
    refused: Option<FrameError>,
}

impl Decoder {
    /// A decoder for messages of at most `limit` bytes.
    pub fn new(limit: usize) -> Decoder {
        Decoder {
            limit,
            bytes: Vec::new(),
            refused: None,
        }
    }

    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.refused.is_none() {
            self.bytes.extend_from_slice(bytes);
        }
    }

    /// Removes and returns the next whole message, without its length; `None` if no message is
    /// complete. Call it after each [`Decoder::push`] until it returns `None`; the decoder then
    /// holds less than one message.
    ///
    /// # Errors
    /// If a frame is empty or announces more than the limit. All later calls return the same error.
    pub fn poll(&mut self) -> Result<Option<Vec<u8>>, FrameError> {
        if let Some(refused) = self.refused {
            return Err(refused);
        }
        let Some((header, rest)) = self.bytes.split_first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let announced = u32::from_be_bytes(*header) as usize;
        if let Err(error) = check(announced, self.limit) {
            self.refused = Some(error);
            self.bytes = Vec::new();
            return Err(error);
        }
        if rest.len() < announced {
            return Ok(None);
        }
        let body = rest[..announced].to_vec();
        self.bytes.drain(..HEADER + announced);
        Ok(Some(body))
    }

    /// True if the decoder holds bytes. After [`Decoder::poll`] has returned `None`, these are the
    /// first part of a message, which an end of the stream would truncate.
    pub fn has_partial_message(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// Number of bytes that the decoder holds.
    pub fn buffered(&self) -> usize {
        self.bytes.len()
    }
}

/// The length field of a message of `length` bytes. Fails if that is 0 or above `limit`.
fn check(length: usize, limit: usize) -> Result<u32, FrameError> {
    match u32::try_from(length) {
        Ok(0) => Err(FrameError::Empty),
        Ok(written) if length <= limit => Ok(written),
        _ => Err(FrameError::TooLong { length, limit }),
    }
}

/// Bytes of the length field.
const HEADER: usize = 4;

#[cfg(test)]
mod tests;

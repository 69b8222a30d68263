//! Messages on a byte stream: a length in four bytes, big-endian, then so many bytes.
//!
//! Reading is from anybody, so it is a pure state machine over whatever bytes come
//! ([`Decoder`]): it keeps no more than it was sent, refuses a length above its limit as soon as
//! the four bytes are there, and once refused stays refused, because the place of the next frame
//! is no longer known.

/// The longest request, in bytes of JSON.
pub const LONGEST_REQUEST: usize = 64 * 1024;

/// The longest that the daemon asks of a driver, in bytes of JSON: discard patterns of a link take up to 80 KiB.
pub const LONGEST_CALL: usize = 1024 * 1024;

/// The longest response, in bytes of JSON: 65,536 targets at about 250 bytes.
pub const LONGEST_RESPONSE: usize = 16 * 1024 * 1024;

/// The longest that a driver says, in bytes of JSON: a census of 65,536 flows at about 800 bytes.
pub const LONGEST_WORD: usize = 64 * 1024 * 1024;

/// Why bytes are no frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The length is above the limit.
    #[error("a message of {length} bytes is longer than the {limit} allowed")]
    TooLong {
        /// The length that was announced.
        length: usize,
        /// The limit.
        limit: usize,
    },
    /// A message of no bytes.
    #[error("an empty message")]
    Empty,
}

/// The frame of one message.
pub fn encode(body: &[u8], limit: usize) -> Result<Vec<u8>, FrameError> {
    let length = check(body.len(), limit)?;
    let mut frame = Vec::with_capacity(HEADER + body.len());
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(body);
    Ok(frame)
}

/// Takes frames out of bytes as they come.
#[derive(Debug)]
pub struct Decoder {
    limit: usize,
    bytes: Vec<u8>,
    refused: Option<FrameError>,
}

impl Decoder {
    /// A decoder of messages no longer than `limit`.
    pub fn new(limit: usize) -> Decoder {
        Decoder {
            limit,
            bytes: Vec::new(),
            refused: None,
        }
    }

    /// Takes in bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.refused.is_none() {
            self.bytes.extend_from_slice(bytes);
        }
    }

    /// The next whole message, if there is one. Whoever pushes should poll until there is none:
    /// what is inside is then less than one message.
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

    /// Whether part of a message is inside: an end of the stream here cuts a message.
    pub fn is_inside(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// How many bytes are kept.
    pub fn kept(&self) -> usize {
        self.bytes.len()
    }
}

/// The length as it is written, if it is allowed.
fn check(length: usize, limit: usize) -> Result<u32, FrameError> {
    match u32::try_from(length) {
        Ok(0) => Err(FrameError::Empty),
        Ok(written) if length <= limit => Ok(written),
        _ => Err(FrameError::TooLong { length, limit }),
    }
}

/// Bytes of the length.
const HEADER: usize = 4;

#[cfg(test)]
mod tests;

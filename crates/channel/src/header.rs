//! The header of a channel's packet: [`PacketHeader`]. [`PacketHeader::decode`] fails with
//! [`HeaderError`]. The format is specified in docs/reference/channels.md (C1 to C6).
//!
//! ```text
//!  0       1       2       4       6       8                16                           32
//!  version  zero    part    count   zero    message          channel                      payload
//! ```
//! Numbers are in network byte order.

use std::fmt;
use std::io;
use std::str::FromStr;

/// The global identifier of a channel. It is random, so channels of different hosts have different
/// ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelId(pub [u8; 16]);

impl fmt::Display for ChannelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A text is no identifier of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a channel is 32 lower-case hexadecimal digits")]
pub struct BadChannelId;

impl FromStr for ChannelId {
    type Err = BadChannelId;

    fn from_str(text: &str) -> Result<ChannelId, BadChannelId> {
        let digits = text.as_bytes().try_into().ok();
        digits.and_then(ChannelId::of_digits).ok_or(BadChannelId)
    }
}

impl ChannelId {
    /// Number of hexadecimal digits of an identifier.
    pub const DIGITS: usize = 32;

    /// The identifier of lower-case hexadecimal digits; `None` for other characters.
    pub fn of_digits(digits: &[u8; ChannelId::DIGITS]) -> Option<ChannelId> {
        let value = |digit: u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        let mut bytes = [0; ChannelId::DIGITS / 2];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = value(pair[0])? << 4 | value(pair[1])?;
        }
        Some(ChannelId(bytes))
    }

    /// A random identifier (rule C4 of docs/reference/channels.md).
    ///
    /// # Errors
    /// If the kernel gives no random numbers.
    pub fn random() -> io::Result<ChannelId> {
        let mut bytes = [0; 16];
        let generator = ring::rand::SystemRandom::new();
        let filled = ring::rand::SecureRandom::fill(&generator, &mut bytes);
        filled.map_err(|_| io::Error::other("the kernel gives no random numbers"))?;
        Ok(ChannelId(bytes))
    }
}

/// The header of a packet, which is one part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketHeader {
    /// The channel.
    pub channel: ChannelId,
    /// Number of the message in its channel, from 0 on. It never repeats.
    pub message: u64,
    /// Number of the part in its message, from 0 on; below `count`.
    pub part: u16,
    /// Number of parts of the message; above zero.
    pub count: u16,
}

/// The reason why bytes are no packet of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The packet is shorter than a header.
    #[error("a packet of {length} bytes is shorter than a channel's header of {LENGTH}")]
    Short {
        /// Length of the packet.
        length: usize,
    },
    /// The packet has another version.
    #[error("the packet has version {0} of the channel's format, not {VERSION}")]
    Version(u8),
    /// A field that must be zero is not.
    #[error("a reserved field of the channel's header is not zero")]
    Reserved,
    /// The part does not exist in a message with that number of parts.
    #[error("part {part} of a message of {count} parts, counted from 0, does not exist")]
    Part {
        /// The part.
        part: u16,
        /// The number of parts.
        count: u16,
    },
}

impl PacketHeader {
    /// Length of a header in bytes.
    pub const LENGTH: usize = LENGTH;

    /// The header as bytes.
    pub fn encode(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        bytes[0] = VERSION;
        bytes[2..4].copy_from_slice(&self.part.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.count.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.message.to_be_bytes());
        bytes[16..32].copy_from_slice(&self.channel.0);
        bytes
    }

    /// The header at the beginning of a packet.
    ///
    /// # Errors
    /// [`HeaderError`] if the packet does not begin with a valid header.
    pub fn decode(packet: &[u8]) -> Result<PacketHeader, HeaderError> {
        let length = packet.len();
        let bytes: &[u8; LENGTH] = packet.first_chunk().ok_or(HeaderError::Short { length })?;
        let number = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        if bytes[0] != VERSION {
            return Err(HeaderError::Version(bytes[0]));
        }
        if bytes[1] != 0 || number(6) != 0 {
            return Err(HeaderError::Reserved);
        }
        let (part, count) = (number(2), number(4));
        if part >= count {
            return Err(HeaderError::Part { part, count });
        }
        let (mut message, mut channel) = ([0; 8], [0; 16]);
        message.copy_from_slice(&bytes[8..16]);
        channel.copy_from_slice(&bytes[16..]);
        Ok(PacketHeader {
            channel: ChannelId(channel),
            message: u64::from_be_bytes(message),
            part,
            count,
        })
    }
}

/// Length of a header in bytes.
const LENGTH: usize = 32;

/// The version of the format.
const VERSION: u8 = 1;

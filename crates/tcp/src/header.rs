//! The header of a segment: parsed from bytes, and written to bytes.
//!
//! [`Header::parse`] reads the fixed part (RFC 9293, section 3.1) and the options that a connection
//! uses: maximum segment size, window scale, SACK permitted, SACK (RFC 2018) and timestamps
//! (RFC 7323). It skips unknown options. A malformed list of options makes the header invalid, so a
//! damaged segment that passes its checksum has no effect. The checksum is not looked at: it covers
//! the addresses and the payload, which only the caller has.
//!
//! [`Header::write`] writes the same fields, with options padded to a multiple of four bytes. SACK
//! blocks that do not fit into 40 bytes of options are left out from the end
//! ([`Header::MAX_LENGTH`]).

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

/// A sequence number on the wire. Sequence numbers wrap at 2^32, so they have no order; inside a
/// connection positions in the stream are 64-bit numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seq(pub u32);

impl Seq {
    /// The sequence number `count` after this one.
    pub const fn add(self, count: u32) -> Seq {
        Seq(self.0.wrapping_add(count))
    }

    /// How far this number is after `other`: negative if it is before.
    pub const fn distance_from(self, other: Seq) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The control bits of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u8);

impl Flags {
    /// No more data from the sender.
    pub const FIN: Flags = Flags(0x01);
    /// Synchronise sequence numbers.
    pub const SYN: Flags = Flags(0x02);
    /// Reset the connection.
    pub const RST: Flags = Flags(0x04);
    /// Push.
    pub const PSH: Flags = Flags(0x08);
    /// The acknowledgement number is valid.
    pub const ACK: Flags = Flags(0x10);
    /// The urgent pointer is valid.
    pub const URG: Flags = Flags(0x20);
    /// Echo of a congestion mark (RFC 3168).
    pub const ECE: Flags = Flags(0x40);
    /// The congestion window was reduced (RFC 3168).
    pub const CWR: Flags = Flags(0x80);

    /// No bit.
    pub const NONE: Flags = Flags(0);

    /// True if all bits of `other` are set.
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Flags {
    type Output = Flags;

    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

impl BitOrAssign for Flags {
    fn bitor_assign(&mut self, other: Flags) {
        self.0 |= other.0;
    }
}

/// The timestamps option (RFC 7323, section 3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamps {
    /// The sender's clock when it made the segment.
    pub value: u32,
    /// The value that the sender received last; 0 in a segment without an acknowledgement.
    pub echo: u32,
}

/// A SACK block: the sequence numbers from `left` up to, not including, `right`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SackBlock {
    /// The first sequence number of the block.
    pub left: Seq,
    /// The first sequence number behind the block.
    pub right: Seq,
}

/// The SACK blocks of one segment, at most four.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SackBlocks {
    blocks: [SackBlock; 4],
    count: u8,
}

impl SackBlocks {
    /// Adds a block. Does nothing if there are four.
    pub fn push(&mut self, block: SackBlock) {
        if let Some(place) = self.blocks.get_mut(usize::from(self.count)) {
            *place = block;
            self.count += 1;
        }
    }

    /// The blocks, in the order of the option.
    pub fn as_slice(&self) -> &[SackBlock] {
        &self.blocks[..usize::from(self.count)]
    }

    fn truncate(&mut self, count: usize) {
        self.count = self.count.min(u8::try_from(count).unwrap_or(4));
    }
}

/// The options of a segment that a connection uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Largest payload of a segment that the sender accepts, in bytes. Only in a SYN.
    pub mss: Option<u16>,
    /// Binary logarithm of the unit of the sender's window fields, as received: a value above 14
    /// counts as 14 (RFC 7323, section 2.3). Only in a SYN.
    pub window_scale: Option<u8>,
    /// The sender understands SACK. Only in a SYN.
    pub sack_permitted: bool,
    /// The timestamps.
    pub timestamps: Option<Timestamps>,
    /// The SACK blocks.
    pub sack: SackBlocks,
    /// Bytes of padding to be written before the other options: a multiple of 4. [`Header::parse`]
    /// does not report padding.
    pub padding: u8,
}

/// The header of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Port of the sender.
    pub source: u16,
    /// Port of the receiver.
    pub destination: u16,
    /// Sequence number of the first byte of the payload, or of the SYN.
    pub seq: Seq,
    /// The next sequence number that the sender expects. Valid if [`Flags::ACK`] is set.
    pub ack: Seq,
    /// The control bits.
    pub flags: Flags,
    /// The window field, not scaled.
    pub window: u16,
    /// The urgent pointer.
    pub urgent: u16,
    /// The options.
    pub options: Options,
}

/// Why bytes are not the header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// There are fewer bytes than a header has.
    #[error("{0} bytes, and a TCP header has 20 at least")]
    Short(usize),
    /// The data offset is below 20 bytes or behind the end of the segment.
    #[error("a data offset of {offset} bytes, where 20 to {most} are possible")]
    DataOffset {
        /// The data offset in bytes.
        offset: usize,
        /// The smaller of 60 and the length of the segment.
        most: usize,
    },
    /// An option ends behind the header, or has a length that its kind does not allow.
    #[error("an invalid option of kind {0}")]
    Option(u8),
}

impl Header {
    /// Length of the fixed part, in bytes.
    pub const FIXED: usize = 20;
    /// Length of the longest header, in bytes.
    pub const MAX_LENGTH: usize = 60;

    /// Reads the header at the beginning of a segment. Returns it, and the offset of the payload.
    ///
    /// # Errors
    /// If the segment is too short for the header, or an option is malformed.
    pub fn parse(segment: &[u8]) -> Result<(Header, usize), HeaderError> {
        let Some(fixed) = segment.first_chunk::<{ Header::FIXED }>() else {
            return Err(HeaderError::Short(segment.len()));
        };
        let be16 = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
        let be32 = |at: usize| u32::from(be16(at)) << 16 | u32::from(be16(at + 2));
        let offset = usize::from(fixed[12] >> 4) * 4;
        if offset < Header::FIXED || offset > segment.len() {
            let most = segment.len().min(Header::MAX_LENGTH);
            return Err(HeaderError::DataOffset { offset, most });
        }
        let header = Header {
            source: be16(0),
            destination: be16(2),
            seq: Seq(be32(4)),
            ack: Seq(be32(8)),
            flags: Flags(fixed[13]),
            window: be16(14),
            urgent: be16(18),
            options: Options::parse(&segment[Header::FIXED..offset])?,
        };
        Ok((header, offset))
    }

    /// Length of the header in bytes, with all options that [`Header::write`] writes.
    pub fn length(&self) -> usize {
        Header::FIXED + self.options.length()
    }

    /// Writes the header, with a checksum of 0, and returns its length in bytes.
    ///
    /// # Panics
    /// If `bytes` is shorter than [`Header::length`].
    pub fn write(&self, bytes: &mut [u8]) -> usize {
        let length = self.length();
        let bytes = &mut bytes[..length];
        bytes[0..2].copy_from_slice(&self.source.to_be_bytes());
        bytes[2..4].copy_from_slice(&self.destination.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.seq.0.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.ack.0.to_be_bytes());
        // At most 60, so the number of words fits into four bits.
        bytes[12] = ((length / 4) as u8) << 4;
        bytes[13] = self.flags.0;
        bytes[14..16].copy_from_slice(&self.window.to_be_bytes());
        bytes[16..18].fill(0);
        bytes[18..20].copy_from_slice(&self.urgent.to_be_bytes());
        self.options.write(&mut bytes[Header::FIXED..]);
        length
    }
}

impl Options {
    /// Length of the timestamps option with its padding, in bytes.
    pub const TIMESTAMPS_LENGTH: usize = 12;

    fn parse(mut bytes: &[u8]) -> Result<Options, HeaderError> {
        let mut options = Options::default();
        while let Some((&kind, rest)) = bytes.split_first() {
            match kind {
                END => break,
                PAD => {
                    bytes = rest;
                    continue;
                }
                _ => {}
            }
            let invalid = HeaderError::Option(kind);
            let length = usize::from(*rest.first().ok_or(invalid)?);
            if length < 2 || length > bytes.len() {
                return Err(invalid);
            }
            let value = &bytes[2..length];
            match (kind, value) {
                (MSS, &[high, low]) => options.mss = Some(u16::from_be_bytes([high, low])),
                (WINDOW_SCALE, &[shift]) => options.window_scale = Some(shift.min(14)),
                (SACK_PERMITTED, []) => options.sack_permitted = true,
                (TIMESTAMPS, &[a, b, c, d, e, f, g, h]) => {
                    options.timestamps = Some(Timestamps {
                        value: u32::from_be_bytes([a, b, c, d]),
                        echo: u32::from_be_bytes([e, f, g, h]),
                    });
                }
                (SACK, blocks) if !blocks.is_empty() && blocks.len() % 8 == 0 => {
                    for block in blocks.chunks_exact(8) {
                        let be32 = |at: usize| {
                            u32::from_be_bytes([
                                block[at],
                                block[at + 1],
                                block[at + 2],
                                block[at + 3],
                            ])
                        };
                        options.sack.push(SackBlock {
                            left: Seq(be32(0)),
                            right: Seq(be32(4)),
                        });
                    }
                }
                (MSS | WINDOW_SCALE | SACK_PERMITTED | TIMESTAMPS | SACK, _) => {
                    return Err(invalid);
                }
                _ => {}
            }
            bytes = &bytes[length..];
        }
        Ok(options)
    }

    /// Number of SACK blocks that fit beside the other options.
    fn blocks_that_fit(&self) -> usize {
        let room = Header::MAX_LENGTH - Header::FIXED - self.without_sack();
        (room.saturating_sub(4) / 8).min(self.sack.as_slice().len())
    }

    fn without_sack(&self) -> usize {
        let timestamps = if self.timestamps.is_some() {
            Options::TIMESTAMPS_LENGTH
        } else {
            0
        };
        let mss = if self.mss.is_some() { 4 } else { 0 };
        let scale = if self.window_scale.is_some() { 4 } else { 0 };
        let permitted = if self.sack_permitted { 4 } else { 0 };
        timestamps + mss + scale + permitted + usize::from(self.padding)
    }

    /// Length of the options with padding, in bytes.
    pub fn length(&self) -> usize {
        self.without_sack()
            + match self.blocks_that_fit() {
                0 => 0,
                blocks => 4 + 8 * blocks,
            }
    }

    /// Every option is preceded by as much padding as makes its length a multiple of four.
    fn write(&self, mut to: &mut [u8]) {
        let mut put = |bytes: &[u8]| {
            let (place, rest) = std::mem::take(&mut to).split_at_mut(bytes.len());
            place.copy_from_slice(bytes);
            to = rest;
        };
        for _ in 0..self.padding {
            put(&[PAD]);
        }
        if let Some(mss) = self.mss {
            put(&[MSS, 4]);
            put(&mss.to_be_bytes());
        }
        if let Some(shift) = self.window_scale {
            put(&[PAD, WINDOW_SCALE, 3, shift]);
        }
        if self.sack_permitted {
            put(&[PAD, PAD, SACK_PERMITTED, 2]);
        }
        if let Some(Timestamps { value, echo }) = self.timestamps {
            put(&[PAD, PAD, TIMESTAMPS, 10]);
            put(&value.to_be_bytes());
            put(&echo.to_be_bytes());
        }
        let mut sack = self.sack;
        sack.truncate(self.blocks_that_fit());
        let blocks = sack.as_slice();
        if !blocks.is_empty() {
            // At most four blocks, so the length fits into a byte.
            put(&[PAD, PAD, SACK, 2 + 8 * blocks.len() as u8]);
            for block in blocks {
                put(&block.left.0.to_be_bytes());
                put(&block.right.0.to_be_bytes());
            }
        }
    }
}

const END: u8 = 0;
const PAD: u8 = 1;
const MSS: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;

#[cfg(test)]
mod tests;

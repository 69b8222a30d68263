//! Segments: their fields, read from bytes and written to bytes. The code is independent of that of
//! a TCP under test, so a fault of a TCP's own reader and writer shows.

use std::fmt;

/// The control bits of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u8);

impl Flags {
    pub(crate) const SYN: u8 = 2;
    pub(crate) const RST: u8 = 4;
    pub(crate) const PSH: u8 = 8;
    pub(crate) const ACK: u8 = 16;

    /// The flags that the letters name; `None` if a letter is unknown or repeated.
    pub(crate) fn parse(letters: &str) -> Option<Flags> {
        if letters == "-" {
            return Some(Flags(0));
        }
        let mut flags = 0;
        for letter in letters.chars() {
            let bit = 1 << LETTERS.find(letter)?;
            if flags & bit != 0 {
                return None;
            }
            flags |= bit;
        }
        Some(Flags(flags))
    }

    pub(crate) fn has(self, bits: u8) -> bool {
        self.0 & bits == bits
    }

    pub(crate) fn without(self, bits: u8) -> Flags {
        Flags(self.0 & !bits)
    }
}

impl fmt::Display for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("-");
        }
        // As people write them: SYN first, ACK last.
        for letter in "SFRPUECA".chars() {
            if LETTERS
                .find(letter)
                .is_some_and(|bit| self.0 >> bit & 1 == 1)
            {
                write!(f, "{letter}")?;
            }
        }
        Ok(())
    }
}

/// The letter of each bit, from the lowest.
const LETTERS: &str = "FSRPAUEC";

/// A segment, with absolute sequence numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// The sender's port.
    pub source: u16,
    /// The receiver's port.
    pub destination: u16,
    /// The sequence number.
    pub seq: u32,
    /// The acknowledgement number.
    pub ack: u32,
    /// The control bits.
    pub flags: Flags,
    /// The window field, not scaled.
    pub window: u16,
    /// The urgent pointer.
    pub urgent: u16,
    /// Maximum segment size.
    pub mss: Option<u16>,
    /// Window scale.
    pub scale: Option<u8>,
    /// SACK permitted.
    pub sack_permitted: bool,
    /// Timestamp value and echo.
    pub timestamps: Option<(u32, u32)>,
    /// SACK blocks, left and right edges.
    pub sack: Vec<(u32, u32)>,
    /// The payload.
    pub payload: Vec<u8>,
}

impl Segment {
    /// The header and the payload, with a checksum of 0.
    ///
    /// # Panics
    /// If the options are longer than 40 bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut options = Vec::new();
        if let Some(mss) = self.mss {
            options.extend([2, 4]);
            options.extend(mss.to_be_bytes());
        }
        if self.sack_permitted {
            options.extend([4, 2]);
        }
        if let Some((value, echo)) = self.timestamps {
            options.extend([8, 10]);
            options.extend(value.to_be_bytes());
            options.extend(echo.to_be_bytes());
        }
        if let Some(scale) = self.scale {
            options.extend([3, 3, scale]);
        }
        if !self.sack.is_empty() {
            // At most four blocks fit.
            options.extend([5, 2 + 8 * self.sack.len() as u8]);
            for (left, right) in &self.sack {
                options.extend(left.to_be_bytes());
                options.extend(right.to_be_bytes());
            }
        }
        while options.len() % 4 != 0 {
            options.push(1);
        }
        assert!(options.len() <= 40, "{} bytes of options", options.len());
        let mut bytes = Vec::new();
        bytes.extend(self.source.to_be_bytes());
        bytes.extend(self.destination.to_be_bytes());
        bytes.extend(self.seq.to_be_bytes());
        bytes.extend(self.ack.to_be_bytes());
        // At most 15 words.
        bytes.push(((5 + options.len() / 4) as u8) << 4);
        bytes.push(self.flags.0);
        bytes.extend(self.window.to_be_bytes());
        bytes.extend([0, 0]);
        bytes.extend(self.urgent.to_be_bytes());
        bytes.extend(options);
        bytes.extend(&self.payload);
        bytes
    }

    /// Reads a segment; `None` if it is malformed.
    pub fn parse(bytes: &[u8]) -> Option<Segment> {
        let be16 = |at: usize| Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        let length = usize::from(bytes.get(12)? >> 4) * 4;
        let mut segment = Segment {
            source: be16(0)?,
            destination: be16(2)?,
            seq: be32(bytes, 4)?,
            ack: be32(bytes, 8)?,
            flags: Flags(bytes[13]),
            window: be16(14)?,
            urgent: be16(18)?,
            payload: bytes.get(length..)?.to_vec(),
            ..Segment::default()
        };
        let mut rest = bytes.get(20..length)?;
        while let Some(&kind) = rest.first() {
            match kind {
                0 => break,
                1 => rest = &rest[1..],
                _ => {
                    let length = usize::from(*rest.get(1)?);
                    segment.option(kind, rest.get(2..length)?)?;
                    rest = &rest[length..];
                }
            }
        }
        Some(segment)
    }

    fn option(&mut self, kind: u8, value: &[u8]) -> Option<()> {
        match (kind, value) {
            (2, &[high, low]) => self.mss = Some(u16::from_be_bytes([high, low])),
            (3, &[scale]) => self.scale = Some(scale),
            (4, []) => self.sack_permitted = true,
            (8, value) => self.timestamps = Some((be32(value, 0)?, be32(value, 4)?)),
            (5, value) => {
                for block in value.chunks(8) {
                    self.sack.push((be32(block, 0)?, be32(block, 4)?));
                }
            }
            _ => {}
        }
        Some(())
    }
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

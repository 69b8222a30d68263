//! The Internet checksum (RFC 1071): the complement of the one's complement sum of 16-bit words.
//! [`Sum`] adds up the parts of a packet and returns the value of the checksum field. It never
//! fails.

/// A sum that is not yet folded to 16 bits. Every part that is added before another part must have
/// an even number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum(u64);

impl Sum {
    /// Adds bytes. An odd byte at the end is padded with a zero byte.
    #[inline]
    pub(crate) fn add(self, bytes: &[u8]) -> Sum {
        // RFC 1071, 2(B): the sum of words in the machine's byte order is the same sum with its
        // bytes swapped. A packet is too short for the 64 bits to overflow.
        let (words, rest) = bytes.as_chunks::<4>();
        let mut sum = self.0;
        for word in words {
            sum += u64::from(u32::from_ne_bytes(*word));
        }
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        Sum(sum + u64::from(u32::from_ne_bytes(last)))
    }

    /// Adds one 16-bit word.
    #[inline]
    pub(crate) fn word(self, word: u16) -> Sum {
        Sum(self.0 + u64::from(u16::from_ne_bytes(word.to_be_bytes())))
    }

    /// The value of the checksum field.
    #[inline]
    pub(crate) fn checksum(self) -> u16 {
        !self.folded()
    }

    /// The sum, folded to 16 bits.
    #[inline]
    pub(crate) fn folded(self) -> u16 {
        let mut sum = self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        u16::from_be_bytes((sum as u16).to_ne_bytes())
    }

    /// True if the sum of bytes that include their checksum field is valid.
    #[inline]
    pub(crate) fn is_valid(self) -> bool {
        self.checksum() == 0
    }
}

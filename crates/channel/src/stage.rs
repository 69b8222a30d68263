//! Stages: processing of a packet's payload before it leaves and after it arrives
//! (docs/reference/channels.md, C14 to C18). Two are built in: [`Checksum`] detects corrupted
//! packets, and [`Encryption`] hides a packet and detects forged ones. A program can have its own.
//! [`Stage::open`] fails with [`StageError`].
//!
//! A stage works in the packet's own buffer, on the processor time of the channel's handler.
//! [`Stage::cost`] states that time, so that admission counts it.

use netnice_core::units::Nanos;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};

use super::header::{ChannelId, PacketHeader};

/// Processing of the payload of each packet of a channel. Both ends of a channel have the same
/// stages; the receiver opens them in the reverse order.
pub trait Stage: Send {
    /// Bytes by which the stage makes each packet longer.
    fn overhead(&self) -> usize;

    /// The processor time that a packet of the greatest length takes. The charge of the handler and
    /// the admission of its channel count with it.
    fn cost(&self) -> Nanos;

    /// Processes the payload of a packet that will leave: the first `length` bytes of `buffer`.
    /// Behind them are [`Stage::overhead`] bytes, which become part of the payload.
    fn seal(&mut self, header: &PacketHeader, buffer: &mut [u8], length: usize);

    /// Reverses [`Stage::seal`] on a payload that arrived, and returns its length without the
    /// overhead.
    ///
    /// # Errors
    /// [`StageError`] if the payload is not what a sender with this stage made of a packet with
    /// this header.
    fn open(&mut self, header: &PacketHeader, payload: &mut [u8]) -> Result<usize, StageError>;
}

/// A packet that a stage did not accept: it is corrupted, forged, or from a sender with other
/// stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a stage of the channel does not accept the packet: it is corrupted or forged")]
pub struct StageError;

/// A CRC-32C of header and payload (RFC 3720, appendix B.4), behind the payload in network byte
/// order. It detects corruption by chance, not forgery.
#[derive(Clone, Copy, Debug)]
pub struct Checksum {
    cost: Nanos,
}

impl Checksum {
    /// The stage, with its processor time for a packet of the greatest length.
    pub fn new(cost: Nanos) -> Checksum {
        Checksum { cost }
    }

    fn of(header: &PacketHeader, payload: &[u8]) -> [u8; CHECKSUM] {
        crc32c::crc32c_append(crc32c::crc32c(&header.encode()), payload).to_be_bytes()
    }
}

impl Stage for Checksum {
    fn overhead(&self) -> usize {
        CHECKSUM
    }

    fn cost(&self) -> Nanos {
        self.cost
    }

    fn seal(&mut self, header: &PacketHeader, buffer: &mut [u8], length: usize) {
        let (payload, rest) = buffer.split_at_mut(length);
        rest[..CHECKSUM].copy_from_slice(&Checksum::of(header, payload));
    }

    fn open(&mut self, header: &PacketHeader, payload: &mut [u8]) -> Result<usize, StageError> {
        let length = payload.len().checked_sub(CHECKSUM).ok_or(StageError)?;
        let (payload, sum) = payload.split_at(length);
        match Checksum::of(header, payload) == sum {
            true => Ok(length),
            false => Err(StageError),
        }
    }
}

/// ChaCha20-Poly1305 (RFC 8439) of the payload, with the header as associated data. The nonce is
/// the number of the message, the number of the part, and two zero bytes, so a key is for one
/// channel in one direction only.
#[derive(Debug)]
pub struct Encryption {
    key: LessSafeKey,
    cost: Nanos,
}

impl Encryption {
    /// The stage with its processor time for a packet of the greatest length. No other channel, no
    /// other direction and no earlier or later opening of the channel may have the key: a nonce
    /// that repeats reveals the payload and lets others forge packets.
    pub fn new(key: &[u8; 32], cost: Nanos) -> Encryption {
        let key = UnboundKey::new(&CHACHA20_POLY1305, key);
        Encryption {
            // The only condition is the length of the key.
            key: LessSafeKey::new(key.expect("a key of 32 bytes")),
            cost,
        }
    }

    /// The stage with a key that is derived from a secret and the identifier of the channel
    /// (HKDF-SHA256, RFC 5869). All channels of two parties can have one secret, because an
    /// identifier is never used twice.
    pub fn of_channel(secret: &[u8; 32], channel: ChannelId, cost: Nanos) -> Encryption {
        let extracted = Salt::new(HKDF_SHA256, DERIVATION).extract(secret);
        let mut key = [0; 32];
        let filled = extracted
            .expand(&[&channel.0], HKDF_SHA256)
            .and_then(|okm| okm.fill(&mut key));
        // The only condition is the length of the key.
        filled.expect("a key of 32 bytes");
        Encryption::new(&key, cost)
    }

    fn nonce(header: &PacketHeader) -> Nonce {
        let mut nonce = [0; NONCE_LEN];
        nonce[..8].copy_from_slice(&header.message.to_be_bytes());
        nonce[8..10].copy_from_slice(&header.part.to_be_bytes());
        Nonce::assume_unique_for_key(nonce)
    }
}

impl Stage for Encryption {
    fn overhead(&self) -> usize {
        TAG
    }

    fn cost(&self) -> Nanos {
        self.cost
    }

    fn seal(&mut self, header: &PacketHeader, buffer: &mut [u8], length: usize) {
        let (payload, rest) = buffer.split_at_mut(length);
        let (nonce, data) = (Encryption::nonce(header), Aad::from(header.encode()));
        let tag = self.key.seal_in_place_separate_tag(nonce, data, payload);
        // It fails for payloads of 256 GiB only.
        let tag = tag.expect("a packet's payload");
        rest[..TAG].copy_from_slice(tag.as_ref());
    }

    fn open(&mut self, header: &PacketHeader, payload: &mut [u8]) -> Result<usize, StageError> {
        let (nonce, data) = (Encryption::nonce(header), Aad::from(header.encode()));
        let opened = self.key.open_in_place(nonce, data, payload);
        opened.map(|payload| payload.len()).map_err(|_| StageError)
    }
}

/// Bytes of a checksum.
const CHECKSUM: usize = 4;

/// The salt of the derivation of keys: they are not those of another use of the secret.
const DERIVATION: &[u8] = b"netnice channel 1";

/// Bytes of the tag that encryption adds.
const TAG: usize = 16;

#[cfg(test)]
mod tests;

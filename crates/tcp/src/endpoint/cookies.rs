//! Initial sequence numbers, and SYN cookies: a SYN that is answered without memory.
//!
//! An initial sequence number is a clock plus a keyed hash of both addresses (RFC 6528, section 3):
//! a host that does not know the key cannot predict it, and a later connection of the same
//! addresses begins behind an earlier one, also after the program has started again with the same
//! key.
//!
//! A cookie is an initial sequence number that stands for the SYN (RFC 4987, section 3.6). Its
//! first byte has the minute and the index of the MSS, the other three are a keyed hash of the
//! addresses, the peer's sequence number, and that byte. What the SYN offered besides is kept in
//! the timestamp of the answer, which the peer returns: its low bits have the window scale and
//! whether SACK was offered. A peer without timestamps gets neither.

use std::hash::Hasher;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use siphasher::sip::SipHasher24;

use super::bare;
use crate::config::Config;
use crate::connection::{Connection, Identity, Transmit};
use crate::header::{Flags, Header, Options, Seq, Timestamps};
use crate::time::Instant;

/// The secret of an endpoint.
#[derive(Debug)]
pub(super) struct Cookies {
    key: [u8; 16],
}

/// What a hash is for, so that no hash can be used for another purpose.
#[derive(Clone, Copy)]
enum Purpose {
    Sequence = 1,
    Timestamp = 2,
    Cookie = 3,
}

impl Cookies {
    pub(super) fn new(key: [u8; 16]) -> Cookies {
        Cookies { key }
    }

    /// The initial sequence number of a new connection.
    pub(super) fn initial_seq(&self, now: Instant, local: SocketAddr, remote: SocketAddr) -> Seq {
        // RFC 6528, section 3: a clock of 250 kHz, which wraps.
        let clock = (now.as_nanos() / CLOCK_TICK.as_nanos() as u64) as u32;
        Seq(clock.wrapping_add(self.hash(Purpose::Sequence, local, remote, 0)))
    }

    /// What is added to the clock of timestamps, for each pair of addresses.
    pub(super) fn timestamp_offset(&self, local: SocketAddr, remote: SocketAddr) -> u32 {
        self.hash(Purpose::Timestamp, local, remote, 0)
    }

    /// The answer to a SYN.
    pub(super) fn answer(
        &self,
        now: Instant,
        local: SocketAddr,
        remote: SocketAddr,
        syn: &Header,
        config: &Config,
    ) -> Transmit {
        let offered = syn.options.mss.unwrap_or(MSS_TABLE[0]);
        let index = MSS_TABLE
            .iter()
            .rposition(|mss| *mss <= offered)
            .unwrap_or(0);
        // The table has eight entries.
        let first = minute(now) << 3 | index as u8;
        let seq = self.cookie(local, remote, syn.seq, first);
        let timestamps = syn.options.timestamps.filter(|_| config.timestamps);
        let mut options = Options {
            mss: Some(u16::try_from(config.mss).unwrap_or(u16::MAX)),
            ..Options::default()
        };
        if let Some(peer) = timestamps {
            let scale = syn.options.window_scale.filter(|_| config.window_scaling);
            let sack = syn.options.sack_permitted && config.sack;
            options.window_scale = scale.map(|_| config.window_scale());
            options.sack_permitted = sack;
            let kept = u32::from(scale.unwrap_or(NO_SCALE)) | u32::from(sack) << 4;
            let clock = (now.as_millis() as u32).wrapping_add(self.timestamp_offset(local, remote));
            options.timestamps = Some(Timestamps {
                value: at_most(clock, kept),
                echo: peer.value,
            });
        }
        let room = config.room.min(config.largest_window);
        bare(Header {
            source: local.port(),
            destination: remote.port(),
            seq,
            ack: syn.seq.add(1),
            flags: Flags::SYN | Flags::ACK,
            window: u16::try_from(room).unwrap_or(u16::MAX),
            urgent: 0,
            options,
        })
    }

    /// The connection that an acknowledgement of a cookie opens; `None` if it acknowledges none of
    /// the last two minutes.
    pub(super) fn open(
        &self,
        now: Instant,
        local: SocketAddr,
        remote: SocketAddr,
        header: &Header,
        config: &Arc<Config>,
    ) -> Option<Connection> {
        let cookie = header.ack.add(u32::MAX);
        let peer_seq = header.seq.add(u32::MAX);
        let first = (cookie.0 >> 24) as u8;
        let age = minute(now).wrapping_sub(first >> 3) & MINUTES;
        if age >= LONGEST_AGE || self.cookie(local, remote, peer_seq, first) != cookie {
            return None;
        }
        let mut options = Options {
            mss: Some(MSS_TABLE[usize::from(first & 7)]),
            ..Options::default()
        };
        if let Some(timestamps) = header.options.timestamps {
            let kept = timestamps.echo;
            // The kept bits are below 16.
            let scale = (kept & 15) as u8;
            options.window_scale = (scale != NO_SCALE).then_some(scale);
            options.sack_permitted = kept & 16 != 0;
            options.timestamps = Some(timestamps);
        }
        let syn = Header {
            seq: peer_seq,
            flags: Flags::SYN,
            window: header.window,
            options,
            ..*header
        };
        let identity = Identity {
            local_port: local.port(),
            remote_port: remote.port(),
            initial_seq: cookie,
            timestamp_offset: self.timestamp_offset(local, remote),
        };
        let mut connection = Connection::accept(now, identity, config.clone(), &syn);
        // Its SYN has left before.
        if let Some(token) = connection.poll_transmit(now).and_then(|syn| syn.token) {
            connection.handle_departure(token, now);
        }
        Some(connection)
    }

    fn cookie(&self, local: SocketAddr, remote: SocketAddr, peer_seq: Seq, first: u8) -> Seq {
        let salt = u64::from(peer_seq.0) << 8 | u64::from(first);
        let hash = self.hash(Purpose::Cookie, local, remote, salt);
        Seq(u32::from(first) << 24 | hash & 0x00ff_ffff)
    }

    fn hash(&self, purpose: Purpose, local: SocketAddr, remote: SocketAddr, salt: u64) -> u32 {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        hasher.write_u8(purpose as u8);
        for address in [local, remote] {
            match address.ip() {
                IpAddr::V4(ip) => hasher.write(&ip.octets()),
                IpAddr::V6(ip) => hasher.write(&ip.octets()),
            }
            hasher.write_u16(address.port());
        }
        hasher.write_u64(salt);
        // The lower half of the hash.
        hasher.finish() as u32
    }
}

/// The present minute, in five bits.
fn minute(now: Instant) -> u8 {
    (now.as_nanos() / 60_000_000_000) as u8 & MINUTES
}

/// The latest clock value that is not later than `clock` and has `bits` as its five low bits.
fn at_most(clock: u32, bits: u32) -> u32 {
    let value = clock & !31 | bits;
    match value > clock {
        true => value.wrapping_sub(32),
        false => value,
    }
}

/// RFC 6528, section 3: 4 µs.
const CLOCK_TICK: Duration = Duration::from_micros(4);
/// The values that a cookie can keep; as common MTUs have them.
const MSS_TABLE: [u16; 8] = [536, 1220, 1280, 1360, 1400, 1440, 1460, 8940];
/// A window scale is 14 at most.
const NO_SCALE: u8 = 15;
/// The minutes that five bits count.
const MINUTES: u8 = 31;
/// A cookie is valid in its minute and the next.
const LONGEST_AGE: u8 = 2;

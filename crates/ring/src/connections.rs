//! What a program writes into a flow's memory about its connections of TCP, and what the driver
//! reads of it when the flow ends without its program having closed it.
//!
//! - A word says that the connection of the flow is over: the driver then sends no reset for it.
//! - The program of a server keeps a list of its open connections ([`ConnectionList`]) in chunks of
//!   its own, which it never hands over. The driver reads the list once, after it has closed the
//!   flow ([`read`]), and resets the peers that it names.
//!
//! An entry has four words: the address in network byte order (two words; IPv4 fills the first four
//! bytes, and the others are 0), then port and Ethernet address in network byte order, then the
//! sequence number in the low half of the last word. An entry with port 0 is free.
//!
//! No function fails. The reader treats all words as hostile: the list lies inside the data area,
//! or it has no entries, and the bytes of an entry can be any.

use std::mem::offset_of;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::layout::{ALIGN, FlowHeader, FlowLocation, LastProgramLine};
use crate::region::Region;
use crate::words::{Ordering, Word, Words};

/// An entry of a list of connections, as the program wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedConnection {
    /// The peer's address in network byte order. IPv4 has the first four bytes.
    pub address: [u8; 16],
    /// The peer's port; not 0.
    pub port: u16,
    /// The Ethernet address to which segments for the peer are sent.
    pub next_hop: [u8; 6],
    /// The sequence number behind the highest that was sent to the peer.
    pub sequence: u32,
}

/// The program's list of the open connections of a flow.
pub struct ConnectionList {
    words: Words,
}

impl ConnectionList {
    /// A list of `entries` free entries in chunks that the program keeps, at `offset` of the data
    /// area. Tells the driver where it is.
    pub(crate) fn new(
        region: &Arc<Region>,
        location: &FlowLocation,
        area: u64,
        (offset, entries): (u64, u32),
    ) -> ConnectionList {
        let words = Words::new(region, area + offset, entries as usize * ENTRY_WORDS);
        let line = line_of(location);
        let at = line + offset_of!(LastProgramLine, list) as u64;
        Words::new(region, at, 1)[0].store(offset, Ordering::Relaxed);
        let at = line + offset_of!(LastProgramLine, list_entries) as u64;
        Word::new(region, at).store(entries, Ordering::Release);
        ConnectionList { words }
    }

    /// Number of entries.
    pub fn entries(&self) -> u32 {
        (self.words.len() / ENTRY_WORDS) as u32
    }

    /// Writes an entry: an open connection to the peer `remote`. `sequence` is the number behind
    /// the highest that was sent to it. No effect if the list has no such entry.
    pub fn set(&self, entry: u32, remote: SocketAddr, next_hop: [u8; 6], sequence: u32) {
        let Some(words) = self.entry(entry) else {
            return;
        };
        let mut address = [0; 16];
        match remote.ip() {
            IpAddr::V4(v4) => address[..4].copy_from_slice(&v4.octets()),
            IpAddr::V6(v6) => address = v6.octets(),
        }
        let [first, second] = halves(address);
        // The entry is free until it is whole.
        words[2].store(0, Ordering::Release);
        words[0].store(first, Ordering::Release);
        words[1].store(second, Ordering::Release);
        words[3].store(sequence.into(), Ordering::Release);
        let [p0, p1] = remote.port().to_be_bytes();
        let [m0, m1, m2, m3, m4, m5] = next_hop;
        let peer = u64::from_ne_bytes([p0, p1, m0, m1, m2, m3, m4, m5]);
        words[2].store(peer, Ordering::Release);
    }

    /// Changes the sequence number of an entry. No effect if the list has no such entry.
    #[inline]
    pub fn set_sequence(&self, entry: u32, sequence: u32) {
        if let Some(words) = self.entry(entry) {
            words[3].store(sequence.into(), Ordering::Release);
        }
    }

    /// Frees an entry. No effect if the list has no such entry.
    pub fn clear(&self, entry: u32) {
        if let Some(words) = self.entry(entry) {
            words[2].store(0, Ordering::Release);
        }
    }

    fn entry(&self, entry: u32) -> Option<&[crate::words::AtomicU64]> {
        let begin = entry as usize * ENTRY_WORDS;
        self.words.get(begin..begin + ENTRY_WORDS)
    }
}

/// The entries of the list of a flow's connections that are not free; `area` is the offset of the
/// flow's data area in the memory file. Empty without a list, and if the list does not lie inside
/// the data area or has more than [`MAX_ENTRIES`] entries.
pub(crate) fn read(
    region: &Arc<Region>,
    location: &FlowLocation,
    area: u64,
) -> Vec<ListedConnection> {
    let line = line_of(location);
    let at = line + offset_of!(LastProgramLine, list_entries) as u64;
    let entries = Word::new(region, at).load(Ordering::Acquire);
    let at = line + offset_of!(LastProgramLine, list) as u64;
    let offset = Words::new(region, at, 1)[0].load(Ordering::Relaxed);
    let end = offset.checked_add(u64::from(entries) * ENTRY_BYTES);
    let fits = end.is_some_and(|end| end <= location.shape.area_bytes());
    if entries == 0 || entries > MAX_ENTRIES || !fits || !offset.is_multiple_of(ALIGN) {
        return Vec::new();
    }
    let words = Words::new(region, area + offset, entries as usize * ENTRY_WORDS);
    let listed = words.chunks_exact(ENTRY_WORDS).filter_map(|entry| {
        let [p0, p1, next_hop @ ..] = entry[2].load(Ordering::Acquire).to_ne_bytes();
        let port = u16::from_be_bytes([p0, p1]);
        let mut address = [0; 16];
        address[..8].copy_from_slice(&entry[0].load(Ordering::Relaxed).to_ne_bytes());
        address[8..].copy_from_slice(&entry[1].load(Ordering::Relaxed).to_ne_bytes());
        (port != 0).then_some(ListedConnection {
            address,
            port,
            next_hop,
            // The high half is not used.
            sequence: entry[3].load(Ordering::Relaxed) as u32,
        })
    });
    listed.collect()
}

/// The word of a flow in which its program says that the flow's connection is over.
pub(crate) fn over_word(region: &Arc<Region>, location: &FlowLocation) -> Word {
    let at = line_of(location) + offset_of!(LastProgramLine, is_over) as u64;
    Word::new(region, at)
}

/// Offset in the memory file of the line of the flow's header that holds these words.
fn line_of(location: &FlowLocation) -> u64 {
    location.offset + offset_of!(FlowHeader, deliver_consumer) as u64
}

fn halves(address: [u8; 16]) -> [u64; 2] {
    let value = u128::from_be_bytes(address);
    // The bytes of each half stay in network byte order.
    [((value >> 64) as u64).to_be(), (value as u64).to_be()]
}

/// Bytes of an entry.
pub const ENTRY_BYTES: u64 = 32;
/// Largest number of entries of a list.
pub const MAX_ENTRIES: u32 = 65_536;
const ENTRY_WORDS: usize = ENTRY_BYTES as usize / 8;

#[cfg(test)]
mod tests;

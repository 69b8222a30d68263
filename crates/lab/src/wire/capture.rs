//! Writes the packets that a tap kept to a pcap file, with nanosecond timestamps. Of each packet
//! only the first bytes, which the tap has, are written (at most 128, see `wire::ring`), with the
//! packet's length on the wire. Every call fails if the file cannot be written.
//!
//! pcap-file 2 does not replace this module: it saves ten lines and needs seven more crates, with
//! older versions of syn and thiserror. The serializer of pcap-parser needs the futures crates.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};

use super::parse::Packet;

/// A pcap file that is being written.
pub struct Capture {
    file: BufWriter<File>,
}

impl Capture {
    /// Creates the file and writes its header. Fails if the file cannot be written.
    pub fn create(path: &Path) -> Result<Capture> {
        let file = File::create(path)
            .with_context(|| format!("cannot write the capture {}", path.display()))?;
        let mut capture = Capture {
            file: BufWriter::new(file),
        };
        // Version 2.4, no time zone, no timestamp accuracy.
        let (major, minor) = (2_u16, 4_u16);
        capture.words(&[NANOSECONDS, u32::from(minor) << 16 | u32::from(major), 0, 0])?;
        capture.words(&[LONGEST, ETHERNET])?;
        Ok(capture)
    }

    /// Appends a packet; `head` are its first bytes. Fails if the file cannot be written.
    pub fn packet(&mut self, packet: &Packet, head: &[u8]) -> Result<()> {
        let (seconds, nanos) = (packet.at_ns / SECOND, packet.at_ns % SECOND);
        let (kept, length) = (head.len() as u32, packet.wire as u32);
        self.words(&[seconds as u32, nanos as u32, kept.min(length), length])?;
        let kept = kept.min(length) as usize;
        Ok(self.file.write_all(&head[..kept])?)
    }

    /// Writes everything that is buffered. Fails if the file cannot be written.
    pub fn end(&mut self) -> Result<()> {
        self.file.flush().context("cannot write the capture")
    }

    /// Writes words little-endian; readers detect the byte order by the magic number.
    fn words(&mut self, words: &[u32]) -> Result<()> {
        for word in words {
            self.file.write_all(&word.to_le_bytes())?;
        }
        Ok(())
    }
}

/// The magic number of a pcap file with nanosecond timestamps.
const NANOSECONDS: u32 = 0xa1b2_3c4d;
const LONGEST: u32 = 1 << 16;
/// LINKTYPE_ETHERNET.
const ETHERNET: u32 = 1;
const SECOND: u64 = 1_000_000_000;

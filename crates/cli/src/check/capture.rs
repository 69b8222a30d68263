//! Reads packets from a capture file: pcap in micro- or nanoseconds, or pcapng, both in either byte
//! order.
//!
//! Input is a byte stream; output is one [`Packet`] after another. The crate `pcap-parser` splits
//! the file into blocks. This module computes the times itself, because `pcap-parser` 0.17 supports
//! no resolution that is a power of two, and reads the time offset of a big-endian section in the
//! wrong byte order. The module does not trust the file. It refuses a block of more than 16 MiB
//! ([`LONGEST_BLOCK`]), which bounds the memory. It fails with a [`CaptureError`] if the stream
//! cannot be read, if the content is invalid, or if a packet has no time or is in an obsolete
//! block. The error has the number of the packet if the fault is in one.

use std::io::{self, Read};
use std::ops::ControlFlow;

use pcap_parser::pcapng::{Block, EnhancedPacketBlock, InterfaceDescriptionBlock, OptionCode};
use pcap_parser::{LegacyPcapBlock, Linktype, PcapBlockOwned, PcapError, PcapHeader};

/// A packet of a capture.
#[derive(Debug)]
pub(super) struct Packet<'a> {
    /// Time in nanoseconds since 1970.
    pub at: u64,
    /// Length on the wire in bytes.
    pub length: u32,
    /// Link type of the capture.
    pub link: Linktype,
    /// The captured bytes: `length` or fewer.
    pub data: &'a [u8],
}

/// Why a capture cannot be read to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CaptureError {
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// The file is no capture.
    #[error("is no capture: it begins neither like pcap nor like pcapng")]
    NoCapture,
    /// The file ends inside a block. Holds the number of packets before.
    #[error("ends in the middle of a block, {0} packets into it: it is cut off or damaged")]
    CutOff(u64),
    /// A block is malformed. Holds the number of packets before.
    #[error("is damaged after packet {0}")]
    Damaged(u64),
    /// A block is longer than [`LONGEST_BLOCK`]. Holds the number of packets before.
    #[error("has a block of more than 16 MiB after packet {0}: it is damaged")]
    LongBlock(u64),
    /// A packet belongs to an interface that the file does not describe.
    #[error("has packet {number} from interface {interface}, which it does not describe")]
    NoInterface {
        /// The packet's number in the file.
        number: u64,
        /// The interface's number.
        interface: u32,
    },
    /// A simple packet block, which has no time. Holds the packet's number.
    #[error("has packet {0} in a simple packet block, which contains no time")]
    NoTime(u64),
    /// A packet block, the form before the enhanced packet block. Holds the packet's number.
    #[error(
        "has packet {0} in an obsolete packet block: convert the file with \
         `editcap -F pcapng OLD NEW`"
    )]
    ObsoleteBlock(u64),
    /// A packet's time is invalid.
    #[error("has packet {number} with an invalid time: {what}")]
    Time {
        /// The packet's number in the file.
        number: u64,
        /// Why the time is invalid.
        what: &'static str,
    },
    /// A packet has more captured bytes than its length.
    #[error("has packet {number} with {captured} bytes captured of {length}: it is damaged")]
    Length {
        /// The packet's number in the file.
        number: u64,
        /// Captured bytes.
        captured: u32,
        /// Bytes on the wire.
        length: u32,
    },
}

/// Reads the packets of a capture in file order, and passes each to `each`, until `each` breaks.
/// Fails if the stream cannot be read, and with the first fault in the file.
pub(super) fn read<R: Read + Send>(
    source: R,
    each: impl FnMut(Packet<'_>) -> ControlFlow<()>,
) -> Result<(), CaptureError> {
    let mut source = FillReader::new(source);
    let end = read_blocks(&mut source, each);
    // The parser treats a read error as the end of the file.
    match source.error {
        Some(error) => Err(CaptureError::Io(error)),
        None => end,
    }
}

fn read_blocks(
    source: &mut (impl Read + Send),
    mut each: impl FnMut(Packet<'_>) -> ControlFlow<()>,
) -> Result<(), CaptureError> {
    let mut file = FileState::default();
    let mut reader = match pcap_parser::create_reader(FIRST_BUFFER, source) {
        Ok(reader) => reader,
        Err(PcapError::Incomplete(_)) => return Err(CaptureError::CutOff(0)),
        Err(_) => return Err(CaptureError::NoCapture),
    };
    loop {
        let have = reader.data().len();
        match reader.next() {
            Ok((length, block)) => {
                if let Some(packet) = file.packet(&block)?
                    && each(packet).is_break()
                {
                    return Ok(());
                }
                reader.consume(length);
                continue;
            }
            Err(PcapError::Eof) => return Ok(()),
            Err(PcapError::UnexpectedEof | PcapError::Incomplete(_)) => {}
            Err(PcapError::BufferTooSmall) => {}
            Err(_) => return Err(CaptureError::Damaged(file.packets)),
        }
        // The buffer does not hold the whole block.
        let refilled = reader.refill().is_ok();
        if !refilled || reader.reader_exhausted() {
            return match have {
                0 => Ok(()),
                _ => Err(CaptureError::CutOff(file.packets)),
            };
        }
        if reader.data().len() == have {
            let more = have.saturating_mul(2).max(FIRST_BUFFER);
            if more > LONGEST_BLOCK || !reader.grow(more) {
                return Err(CaptureError::LongBlock(file.packets));
            }
        }
    }
}

/// What the blocks of the file that were read so far define for the following ones.
#[derive(Default)]
struct FileState {
    /// For pcap: units of time per second, and the link type.
    header: Option<(u64, Linktype)>,
    /// For pcapng: the interfaces of the section.
    interfaces: Vec<Interface>,
    big_endian: bool,
    /// Packets so far, with the current one.
    packets: u64,
}

#[derive(Clone, Copy)]
struct Interface {
    link: Linktype,
    /// Units of time per second; `None` if a unit is shorter than 10^-19 s or 2^-64 s.
    resolution: Option<u128>,
    /// Seconds to add to each time.
    offset: i64,
}

impl FileState {
    fn packet<'a>(
        &mut self,
        block: &'a PcapBlockOwned<'a>,
    ) -> Result<Option<Packet<'a>>, CaptureError> {
        match block {
            PcapBlockOwned::LegacyHeader(header) => self.header = Some(parse_header(header)),
            PcapBlockOwned::Legacy(record) => return self.record(record).map(Some),
            PcapBlockOwned::NG(Block::SectionHeader(section)) => {
                self.big_endian = section.big_endian();
                self.interfaces.clear();
            }
            PcapBlockOwned::NG(Block::InterfaceDescription(described)) => {
                self.interfaces
                    .push(parse_interface(described, self.big_endian));
            }
            PcapBlockOwned::NG(Block::EnhancedPacket(packet)) => {
                return self.enhanced(packet).map(Some);
            }
            PcapBlockOwned::NG(Block::SimplePacket(_)) => {
                return Err(CaptureError::NoTime(self.packets + 1));
            }
            PcapBlockOwned::NG(Block::Unknown(other)) if is_obsolete_packet(other.block_type) => {
                return Err(CaptureError::ObsoleteBlock(self.packets + 1));
            }
            PcapBlockOwned::NG(_) => {}
        }
        Ok(None)
    }

    fn record<'a>(&mut self, record: &'a LegacyPcapBlock<'a>) -> Result<Packet<'a>, CaptureError> {
        self.packets += 1;
        let number = self.packets;
        let (units, link) = self.header.ok_or(CaptureError::Damaged(number - 1))?;
        let fraction = u64::from(record.ts_usec);
        if fraction >= units {
            let what = "its fraction of a second is a second or more";
            return Err(CaptureError::Time { number, what });
        }
        let (captured, length) = (record.caplen, record.origlen);
        self.check_lengths(captured, length)?;
        Ok(Packet {
            at: u64::from(record.ts_sec) * NANOS_PER_SECOND + fraction * (NANOS_PER_SECOND / units),
            length,
            link,
            data: record.data,
        })
    }

    fn enhanced<'a>(
        &mut self,
        packet: &'a EnhancedPacketBlock<'a>,
    ) -> Result<Packet<'a>, CaptureError> {
        self.packets += 1;
        let number = self.packets;
        let known = usize::try_from(packet.if_id)
            .ok()
            .and_then(|at| self.interfaces.get(at));
        let interface = *known.ok_or(CaptureError::NoInterface {
            number,
            interface: packet.if_id,
        })?;
        let stamp = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
        let at = interface
            .nanos(stamp)
            .map_err(|what| CaptureError::Time { number, what })?;
        let (captured, length) = (packet.caplen, packet.origlen);
        self.check_lengths(captured, length)?;
        let data = usize::try_from(captured)
            .ok()
            .and_then(|captured| packet.data.get(..captured))
            .ok_or(CaptureError::Damaged(number - 1))?;
        Ok(Packet {
            at,
            length,
            link: interface.link,
            data,
        })
    }

    fn check_lengths(&self, captured: u32, length: u32) -> Result<(), CaptureError> {
        match captured <= length {
            true => Ok(()),
            false => Err(CaptureError::Length {
                number: self.packets,
                captured,
                length,
            }),
        }
    }
}

impl Interface {
    /// Converts a time stamp to nanoseconds since 1970, rounded down.
    fn nanos(&self, stamp: u64) -> Result<u64, &'static str> {
        let resolution = self
            .resolution
            .ok_or("the resolution of its interface is finer than 10^-19 s or 2^-64 s")?;
        let since = u128::from(stamp) * u128::from(NANOS_PER_SECOND) / resolution;
        let since = i128::try_from(since).unwrap_or(i128::MAX);
        let offset = i128::from(self.offset) * i128::from(NANOS_PER_SECOND);
        u64::try_from(since.saturating_add(offset)).map_err(|_| "it is not between 1970 and 2554")
    }
}

fn parse_header(header: &PcapHeader) -> (u64, Linktype) {
    let units = match header.is_nanosecond_precision() {
        true => NANOS_PER_SECOND,
        false => 1_000_000,
    };
    // The upper bits show whether the packets contain a frame check sequence.
    (units, Linktype(header.network.0 & 0xffff))
}

fn parse_interface(described: &InterfaceDescriptionBlock<'_>, big_endian: bool) -> Interface {
    let value = |code: OptionCode| {
        let option = described.options.iter().find(|option| option.code == code);
        option.and_then(|option| option.as_bytes().ok())
    };
    let resolution = match value(OptionCode::IfTsresol).and_then(|bytes| bytes.first()) {
        None => Some(1_000_000),
        Some(power @ 0..=19) => Some(10_u128.pow(u32::from(*power))),
        Some(power @ 0x80..=0xc0) => Some(1_u128 << (power & 0x7f)),
        Some(_) => None,
    };
    let offset = value(OptionCode::IfTsoffset)
        .and_then(|bytes| <[u8; 8]>::try_from(bytes).ok())
        .map_or(0, |bytes| match big_endian {
            true => i64::from_be_bytes(bytes),
            false => i64::from_le_bytes(bytes),
        });
    Interface {
        link: described.linktype,
        resolution,
        offset,
    }
}

/// The parser reads the block type as little-endian, whatever the byte order of the section is.
fn is_obsolete_packet(block_type: u32) -> bool {
    block_type == OBSOLETE_PACKET || block_type.swap_bytes() == OBSOLETE_PACKET
}

/// A source that fills each buffer completely unless the input ends (a pipe returns what it has),
/// and keeps a read error.
struct FillReader<R> {
    source: R,
    error: Option<io::Error>,
}

impl<R> FillReader<R> {
    fn new(source: R) -> FillReader<R> {
        FillReader {
            source,
            error: None,
        }
    }
}

impl<R: Read> Read for FillReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.source.read(&mut buffer[filled..]) {
                Ok(0) => break,
                Ok(more) => filled += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.error = Some(error);
                    break;
                }
            }
        }
        Ok(filled)
    }
}

/// First size of the buffer, as in std's `BufReader`; the buffer grows for a longer block.
const FIRST_BUFFER: usize = 1 << 13;

/// The longest block that is read. Capture programs stop at packets of 256 KiB; Wireshark reads
/// blocks up to 16 MiB.
const LONGEST_BLOCK: usize = 1 << 24;

/// Type of the packet block, from the drafts of pcapng before 2009.
const OBSOLETE_PACKET: u32 = 2;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// The parser itself returns no such blocks.
    #[test]
    fn a_damaged_packet_is_not_counted_among_those_before() {
        let record = LegacyPcapBlock {
            ts_sec: 0,
            ts_usec: 0,
            caplen: 0,
            origlen: 0,
            data: &[],
        };
        let enhanced = EnhancedPacketBlock {
            block_type: 6,
            block_len1: 32,
            if_id: 0,
            ts_high: 0,
            ts_low: 0,
            caplen: 60,
            origlen: 60,
            data: &[],
            options: Vec::new(),
            block_len2: 32,
        };
        let blocks = [
            PcapBlockOwned::Legacy(record),
            PcapBlockOwned::NG(Block::EnhancedPacket(enhanced)),
        ];
        for block in blocks {
            let mut file = FileState {
                packets: 3,
                ..FileState::default()
            };
            file.interfaces.push(Interface {
                link: Linktype::ETHERNET,
                resolution: Some(1),
                offset: 0,
            });
            let error = file.packet(&block).err();
            assert!(matches!(error, Some(CaptureError::Damaged(3))), "{error:?}");
        }
    }
}

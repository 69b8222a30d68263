//! Tests of reading captures and of the verdict on them. The tests write the captures byte by byte,
//! as draft-ietf-opsawg-pcap and draft-ietf-opsawg-pcapng specify.

use std::io::{self, Cursor, Read};
use std::ops::ControlFlow;
use std::path::PathBuf;

use netnice_core::contract::Contract;
use netnice_core::policer::Policer;
use netnice_core::units::Nanos;
use pcap_parser::Linktype;
use proptest::prelude::*;

use super::capture::{self, CaptureError};
use super::flow::Flow;
use super::{Check, CheckFault, Verdict, check_packets};

/// A capture under construction, in either byte order.
#[derive(Clone)]
struct Writer {
    bytes: Vec<u8>,
    big: bool,
}

impl Writer {
    fn u16(&mut self, value: u16) -> &mut Writer {
        let bytes = if self.big {
            value.to_be_bytes()
        } else {
            value.to_le_bytes()
        };
        self.raw(&bytes)
    }

    fn u32(&mut self, value: u32) -> &mut Writer {
        let bytes = if self.big {
            value.to_be_bytes()
        } else {
            value.to_le_bytes()
        };
        self.raw(&bytes)
    }

    fn raw(&mut self, bytes: &[u8]) -> &mut Writer {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// The header of a pcap file; the magic number gives the resolution of times.
    fn pcap(big: bool, magic: u32) -> Writer {
        let mut file = Writer {
            bytes: Vec::new(),
            big,
        };
        file.u32(magic)
            .u16(2)
            .u16(4)
            .u32(0)
            .u32(0)
            .u32(65_535)
            .u32(1);
        file
    }

    /// A record: time in seconds and its fraction, length on the wire, captured bytes.
    fn record(&mut self, at: (u32, u32), length: u32, data: &[u8]) -> &mut Writer {
        self.u32(at.0)
            .u32(at.1)
            .u32(data.len() as u32)
            .u32(length)
            .raw(data)
    }

    /// A pcapng block around its content.
    fn block(&mut self, kind: u32, content: impl FnOnce(&mut Writer)) -> &mut Writer {
        let mut inner = Writer {
            bytes: Vec::new(),
            big: self.big,
        };
        content(&mut inner);
        inner.bytes.resize(inner.bytes.len().next_multiple_of(4), 0);
        let length = inner.bytes.len() as u32 + 12;
        self.u32(kind).u32(length).raw(&inner.bytes).u32(length)
    }

    fn option(&mut self, code: u16, value: &[u8]) -> &mut Writer {
        self.u16(code).u16(value.len() as u16).raw(value);
        let padded = self.bytes.len().next_multiple_of(4);
        self.bytes.resize(padded, 0);
        self
    }

    fn pcapng(big: bool) -> Writer {
        let mut file = Writer {
            bytes: Vec::new(),
            big,
        };
        file.section();
        file
    }

    fn section(&mut self) -> &mut Writer {
        self.block(0x0a0d_0d0a, |w| {
            w.u32(0x1a2b_3c4d)
                .u16(1)
                .u16(0)
                .raw(&u64::MAX.to_ne_bytes());
        })
    }

    /// An interface, with options for resolution and offset if given.
    fn interface(&mut self, link: u16, resolution: Option<u8>, offset: Option<i64>) -> &mut Writer {
        self.block(1, |w| {
            w.u16(link).u16(0).u32(0);
            if let Some(resolution) = resolution {
                w.option(9, &[resolution]);
            }
            if let Some(offset) = offset {
                let bytes = if w.big {
                    offset.to_be_bytes()
                } else {
                    offset.to_le_bytes()
                };
                w.option(14, &bytes);
            }
            w.option(0, &[]);
        })
    }

    fn enhanced(&mut self, interface: u32, stamp: u64, length: u32, data: &[u8]) -> &mut Writer {
        self.block(6, |w| {
            w.u32(interface).u32((stamp >> 32) as u32).u32(stamp as u32);
            w.u32(data.len() as u32).u32(length).raw(data);
        })
    }
}

/// The time and length of each packet.
fn packets(bytes: &[u8]) -> Result<Vec<(u64, u32)>, CaptureError> {
    let mut found = Vec::new();
    capture::read(Cursor::new(bytes), |packet| {
        found.push((packet.at, packet.length));
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

fn error_text(bytes: &[u8]) -> String {
    match packets(bytes) {
        Ok(found) => panic!("read without error: {found:?}"),
        Err(error) => error.to_string(),
    }
}

fn check(contract: &str, flow: Option<&str>) -> Check {
    let contract: Contract = contract.parse().expect("a contract");
    Check {
        file: PathBuf::from("capture.pcap"),
        police: Policer::contract(&contract).expect("a checkable contract"),
        contract,
        flow: flow.map(|text| text.parse().expect("a flow")),
        tolerance: Nanos(0),
        gap: None,
    }
}

fn verdict(contract: &str, flow: Option<&str>, bytes: &[u8]) -> Result<Verdict, CheckFault> {
    check_packets(check(contract, flow), Cursor::new(bytes))
}

/// An Ethernet frame with IPv4 and UDP; only the fields that the code reads are set.
fn udp(from: [u8; 4], to: [u8; 4], ports: (u16, u16)) -> Vec<u8> {
    let mut bytes = vec![0; 12];
    bytes.extend([0x08, 0x00, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 17, 0, 0]);
    bytes.extend(from.into_iter().chain(to));
    bytes.extend(
        ports
            .0
            .to_be_bytes()
            .into_iter()
            .chain(ports.1.to_be_bytes()),
    );
    bytes.extend([0, 20, 0, 0]);
    bytes
}

#[test]
fn pcap_is_read_in_both_byte_orders_and_both_resolutions() {
    for big in [false, true] {
        let mut micro = Writer::pcap(big, 0xa1b2_c3d4);
        micro
            .record((1, 999_999), 1514, &[0; 60])
            .record((2, 0), 60, &[]);
        let expected = vec![(1_999_999_000, 1514), (2_000_000_000, 60)];
        assert_eq!(packets(&micro.bytes).expect("read"), expected);
        let mut nano = Writer::pcap(big, 0xa1b2_3c4d);
        nano.record((1, 999_999_999), 1514, &[0; 60]);
        assert_eq!(packets(&nano.bytes).expect("read"), [(1_999_999_999, 1514)]);
    }
}

#[test]
fn pcapng_times_are_read_in_every_resolution_with_their_offset() {
    for big in [false, true] {
        let at = |resolution, offset, stamp| {
            let mut file = Writer::pcapng(big);
            file.interface(1, resolution, offset)
                .enhanced(0, stamp, 1514, &[0; 61]);
            packets(&file.bytes).map(|found| found[0].0)
        };
        assert_eq!(at(None, None, 1_000_001).expect("read"), 1_000_001_000);
        assert_eq!(at(Some(9), None, 1 << 40).expect("read"), 1 << 40);
        assert_eq!(at(Some(3), Some(7), 5).expect("read"), 7_005_000_000);
        assert_eq!(at(Some(6), Some(-1), 1_500_000).expect("read"), 500_000_000);
        assert_eq!(at(Some(12), None, 1_999).expect("read"), 1);
        // A power of two: 2^-10 s, and the finest resolution.
        assert_eq!(at(Some(0x8a), None, 512).expect("read"), 500_000_000);
        assert_eq!(at(Some(0xc0), None, u64::MAX).expect("read"), 999_999_999);
        assert_eq!(at(Some(0), None, 3).expect("read"), 3_000_000_000);
        let error = |resolution, offset, stamp| {
            at(resolution, offset, stamp)
                .expect_err("no time")
                .to_string()
        };
        assert!(error(Some(20), None, 1).contains("packet 1 with an invalid time"));
        assert!(error(Some(0xc1), None, 1).contains("resolution"));
        assert!(error(Some(6), Some(-2), 1_500_000).contains("not between 1970 and 2554"));
        assert!(error(Some(0), None, u64::MAX).contains("not between 1970 and 2554"));
        assert!(error(Some(0), Some(i64::MAX), u64::MAX).contains("not between 1970 and 2554"));
    }
}

#[test]
fn a_new_section_has_interfaces_and_a_byte_order_of_its_own() {
    let mut file = Writer::pcapng(false);
    file.interface(1, Some(9), None).interface(1, Some(6), None);
    file.enhanced(1, 7, 60, &[])
        .enhanced(0, 7_001, 60, &[1, 2, 3]);
    file.block(0x0bad, |w| {
        w.u32(1);
    });
    file.big = true;
    file.section()
        .interface(1, Some(3), None)
        .enhanced(0, 1, 61, &[]);
    let expected = vec![(7_000, 60), (7_001, 60), (1_000_000, 61)];
    assert_eq!(packets(&file.bytes).expect("read"), expected);
    file.enhanced(1, 2, 60, &[]);
    assert_eq!(
        error_text(&file.bytes),
        "has packet 4 from interface 1, which it does not describe"
    );
}

#[test]
fn each_kind_of_damage_has_an_error_text() {
    assert!(error_text(b"").starts_with("is no capture"));
    assert!(
        error_text(b"#!/bin/sh\necho this is a script, not a capture\n")
            .starts_with("is no capture")
    );
    let fresh = || Writer::pcap(false, 0xa1b2_c3d4);
    assert!(
        error_text(&fresh().bytes[..20]).starts_with("ends in the middle of a block, 0 packets")
    );
    let whole = fresh()
        .record((1, 0), 60, &[0; 60])
        .record((2, 0), 60, &[0; 60])
        .bytes
        .clone();
    assert!(
        error_text(&whole[..whole.len() - 1])
            .starts_with("ends in the middle of a block, 1 packets")
    );
    let record_error =
        |at, length, data: &[u8]| error_text(&fresh().record(at, length, data).bytes);
    assert!(record_error((1, 1_000_000), 60, &[0; 60]).contains("packet 1 with an invalid time"));
    assert!(record_error((1, 0), 59, &[0; 60]).contains("packet 1 with 60 bytes captured of 59"));
    // The reader neither waits nor allocates memory for a record that claims 4 GiB.
    let mut greedy = fresh();
    greedy
        .u32(1)
        .u32(0)
        .u32(u32::MAX)
        .u32(u32::MAX)
        .bytes
        .resize(40 << 20, 0);
    assert!(error_text(&greedy.bytes).contains("more than 16 MiB after packet 0"));
    let ng = || {
        let mut file = Writer::pcapng(false);
        file.interface(1, None, None);
        file
    };
    let simple = ng()
        .block(3, |w| {
            w.u32(60).raw(&[0; 60]);
        })
        .bytes
        .clone();
    assert!(error_text(&simple).contains("packet 1 in a simple packet block"));
    let old = ng()
        .block(2, |w| {
            w.raw(&[0; 20]);
        })
        .bytes
        .clone();
    assert!(error_text(&old).contains("obsolete packet block"));
    // A block whose two lengths differ.
    let mut torn = ng().enhanced(0, 1, 60, &[0; 60]).bytes.clone();
    let last = torn.len() - 1;
    torn[last] ^= 1;
    assert!(error_text(&torn).contains("is damaged after packet"));
}

/// A source that returns one byte at a time, reports interruptions, and may fail.
struct Slow<'a> {
    rest: &'a [u8],
    calls: u32,
    fails: bool,
}

impl Read for Slow<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.calls += 1;
        match (self.calls.is_multiple_of(3), self.rest.split_first()) {
            (true, _) => Err(io::ErrorKind::Interrupted.into()),
            (false, Some((first, rest))) => {
                buffer[0] = *first;
                self.rest = rest;
                Ok(1)
            }
            (false, None) if self.fails => Err(io::Error::other("the disk failed")),
            (false, None) => Ok(0),
        }
    }
}

#[test]
fn a_slow_pipe_is_read_completely_and_a_read_error_is_reported() {
    let mut file = Writer::pcapng(true);
    file.interface(1, None, None).enhanced(0, 1, 60, &[0; 60]);
    let read = |fails| {
        let mut count = 0;
        let slow = Slow {
            rest: &file.bytes,
            calls: 0,
            fails,
        };
        capture::read(slow, |_| {
            count += 1;
            ControlFlow::Continue(())
        })
        .map(|()| count)
    };
    assert_eq!(read(false).expect("read"), 1);
    let error = read(true).expect_err("broken").to_string();
    assert_eq!(error, "cannot be read: the disk failed");
}

/// Packets of 1000 bytes with 60 captured bytes; one each millisecond is 8 Mbit/s.
fn steady(gaps: &[u32]) -> Writer {
    let mut file = Writer::pcap(false, 0xa1b2_3c4d);
    let mut at = 1_000;
    for gap in gaps {
        at += gap;
        file.record(
            (7, at),
            1000,
            &udp([10, 0, 0, 1], [10, 0, 0, 2], (5000, 6000)),
        );
    }
    file
}

#[test]
fn the_length_on_the_wire_is_checked_and_not_the_captured_length() {
    let file = steady(&[0, 1_000_000, 1_000_000]);
    let fine = verdict("cell pcr=8mbit,cdvt=0s", None, &file.bytes).expect("a verdict");
    assert_eq!((fine.checked, fine.violations, fine.bytes), (3, 0, 3000));
    assert_eq!(
        fine.text(),
        "capture.pcap: conforms\n  contract  cell pcr=8mbit,cdvt=0s\n  \
         checked   3 of 3 packets, 3000 bytes, in 0.002000000 s"
    );
    let slower = verdict("cell pcr=7999kbit,cdvt=0s", None, &file.bytes).expect("a verdict");
    assert_eq!(slower.violations, 1);
}

#[test]
fn the_verdict_names_the_first_violation_and_its_size() {
    let file = steady(&[0, 1_000_000, 999_000, 1_001_000, 10]);
    let found = verdict("cell pcr=8mbit,cdvt=0s", None, &file.bytes).expect("a verdict");
    assert_eq!(found.violations, 2);
    assert_eq!(
        found.text(),
        "capture.pcap: does not conform\n  contract  cell pcr=8mbit,cdvt=0s\n  \
         first     packet 3, 1000B long, is 1us too early for pcr 8 Mbit/s (1 MB/s) with cdvt 0s\n            \
         0.001999000 s after the first packet\n  \
         in all    2 of 5 packets do not conform\n  \
         checked   5 of 5 packets, 5000 bytes, in 0.003000010 s"
    );
    let doc = serde_json::to_value(found.doc()).expect("JSON");
    assert_eq!(doc["conforms"], false);
    assert_eq!(doc["first"]["number"], 3);
    assert_eq!(doc["first"]["early_by_ns"], 1000);
}

#[test]
fn only_packets_of_the_given_flow_are_checked() {
    let mut file = Writer::pcap(false, 0xa1b2_3c4d);
    for n in 0..4 {
        let at = n * 1_000_000;
        file.record(
            (7, at),
            1000,
            &udp([10, 0, 0, 1], [10, 0, 0, 2], (5000, 6000)),
        );
        file.record(
            (7, at),
            1000,
            &udp([10, 0, 0, 3], [10, 0, 0, 2], (5000, 6001)),
        );
    }
    let count = |flow| {
        let found = verdict("cell pcr=8mbit,cdvt=0s", flow, &file.bytes);
        found
            .map(|found| (found.checked, found.violations))
            .map_err(|fault| fault.to_string())
    };
    assert_eq!(count(None), Ok((8, 4)));
    assert_eq!(
        count(Some("udp from 10.0.0.1:5000 to 10.0.0.2:6000")),
        Ok((4, 0))
    );
    assert_eq!(count(Some("to :6001")), Ok((4, 0)));
    assert_eq!(count(Some("from 10.0.0.3")), Ok((4, 0)));
    assert_eq!(count(Some("udp")), Ok((8, 4)));
    let none = "has no packet of tcp to 10.0.0.2:6000 among its 8 packets".to_string();
    assert_eq!(count(Some("tcp to 10.0.0.2:6000")), Err(none));
    let empty = Writer::pcap(false, 0xa1b2_c3d4);
    let fault = verdict("up 8mbit", None, &empty.bytes).expect_err("nothing to check");
    assert_eq!(fault.to_string(), "has no packet to check");
}

/// A fragment of a datagram of 3,000 bytes behind the IP header: its bytes from `offset` on.
fn fragment(number: u16, offset: u16, bytes: u16, is_last: bool) -> Vec<u8> {
    let mut packet = udp([10, 0, 0, 1], [10, 0, 0, 2], (5000, 6000));
    packet[16..18].copy_from_slice(&(bytes + 20).to_be_bytes());
    packet[18..20].copy_from_slice(&number.to_be_bytes());
    let more = if is_last { 0 } else { 0x2000 };
    let field = (offset / 8) | more;
    packet[20..22].copy_from_slice(&field.to_be_bytes());
    if offset > 0 {
        // These bytes are no ports.
        packet[34..38].fill(0x77);
    }
    packet
}

const CHANNEL: &str = "channel mmax=3034B,rmax=100/s,bmax=1,deadline=5ms";

#[test]
fn fragments_of_a_datagram_are_one_message_of_a_channel() {
    let mut file = Writer::pcap(false, 0xa1b2_3c4d);
    for n in 0..5_u16 {
        let at = u32::from(n) * 10_000_000;
        for (behind, offset, bytes) in [(0, 0, 1480), (100, 1480, 1480), (200, 2960, 40)] {
            let data = fragment(n, offset, bytes, offset == 2960);
            file.record((7, at + behind), u32::from(bytes) + 34, &data);
        }
        // A packet of another flow.
        let other = udp([10, 0, 0, 3], [10, 0, 0, 2], (5000, 6001));
        file.record((7, at + 300), 1000, &other);
    }
    for flow in ["from 10.0.0.1", "udp to 10.0.0.2:6000"] {
        let found = verdict(CHANNEL, Some(flow), &file.bytes).expect("a verdict");
        assert_eq!(
            (found.messages, found.checked, found.violations),
            (Some(5), 15, 0)
        );
        assert!(
            found.text().contains("15 of 20 packets, "),
            "{}",
            found.text()
        );
        assert!(
            found.text().ends_with("which are 5 messages"),
            "{}",
            found.text()
        );
    }
    // The length is that of one packet with the whole datagram.
    let short = CHANNEL.replace("3034", "3033");
    let found = verdict(&short, Some("from 10.0.0.1"), &file.bytes).expect("a verdict");
    assert_eq!(found.violations, 5);
    let text = found.text();
    let first = "message 1, 3034B long, is longer than mmax 3033B";
    assert!(text.contains(first), "{text}");
    assert!(text.contains("5 of 5 messages do not conform"), "{text}");
}

#[test]
fn a_datagram_without_one_of_its_fragments_is_a_message() {
    let mut file = Writer::pcap(false, 0xa1b2_3c4d);
    file.record((7, 0), 1514, &fragment(1, 0, 1480, false));
    // Two interleaved datagrams.
    file.record((7, 10_000_000), 1514, &fragment(2, 0, 1480, false));
    file.record((7, 20_000_000), 1514, &fragment(3, 0, 1480, false));
    file.record((7, 20_100_000), 74, &fragment(2, 1480, 40, true));
    file.record((7, 20_200_000), 74, &fragment(3, 1480, 40, true));
    file.record((90, 0), 74, &fragment(4, 0, 40, true));
    let found = verdict(CHANNEL, None, &file.bytes).expect("a verdict");
    assert_eq!((found.messages, found.violations), (Some(4), 0));
    let faster = CHANNEL.replace("100/s", "50/s");
    let found = verdict(&faster, None, &file.bytes).expect("a verdict");
    let first = found.first.expect("too early");
    assert_eq!((first.number, first.violation.number), (2, 2));
}

#[test]
fn with_a_gap_packets_that_follow_closely_are_one_message() {
    // Messages of three packets 1 ms apart, with 10 ms from the last packet of one to the first of
    // the next.
    let (ms, tens) = (1_000_000, 10_000_000);
    let file = steady(&[0, ms, ms, tens, ms, ms, tens, ms, ms]);
    let counts = |gap: Option<u64>| {
        let check = Check {
            gap: gap.map(Nanos::from_millis),
            ..check(&CHANNEL.replace("100/s", "84/s"), None)
        };
        let found = check_packets(check, Cursor::new(&file.bytes)).expect("a verdict");
        (found.messages, found.violations)
    };
    assert_eq!(counts(Some(2)), (Some(3), 0));
    // As single packets: 1 ms is too early, and 10 ms is measured from the last packet, not the
    // first.
    assert_eq!(counts(None), (Some(9), 6));
    assert_eq!(counts(Some(11)), (Some(1), 0));
}

#[test]
fn a_flow_matches_its_packets_on_every_supported_link_type() {
    let ethernet = udp([10, 0, 0, 1], [10, 0, 0, 2], (5000, 6000));
    let ip = &ethernet[14..];
    let behind = |header: &[u8]| [header, ip].concat();
    let tagged = [&ethernet[..12], &[0x81, 0, 0, 5], &ethernet[12..]].concat();
    let sll = behind(&[[0; 14].as_slice(), &[8, 0]].concat());
    let sll2 = behind(&[[8_u8, 0].as_slice(), &[0; 18]].concat());
    let flow: Flow = "udp from 10.0.0.1:5000".parse().expect("a flow");
    let other: Flow = "udp from 10.0.0.1:5001".parse().expect("a flow");
    for (link, data) in [
        (1, ethernet.clone()),
        (1, tagged),
        (101, ip.to_vec()),
        (228, ip.to_vec()),
        (0, behind(&[2, 0, 0, 0])),
        (113, sll),
        (276, sll2),
    ] {
        assert_eq!(
            flow.matches(Linktype(link), &data),
            Ok(true),
            "link type {link}"
        );
        assert_eq!(
            other.matches(Linktype(link), &data),
            Ok(false),
            "link type {link}"
        );
    }
    let error = flow
        .matches(Linktype(127), ip)
        .expect_err("radiotap")
        .to_string();
    assert!(error.contains("link type 127"), "{error}");
}

#[test]
fn a_flow_parses_from_the_text_that_it_prints() {
    for text in [
        "tcp from 10.0.0.1:80 to [fd00::2]:6000",
        "udp to :53",
        "packets from ::1",
    ] {
        let flow: Flow = text.trim_start_matches("packets ").parse().expect("a flow");
        assert_eq!(
            flow.to_string().trim_start_matches("packets "),
            text.trim_start_matches("packets ")
        );
    }
    for text in [
        "",
        "icmp",
        "from",
        "to 10.0.0.1:99999",
        "from 10.0.0.1 from 10.0.0.2",
        "10.0.0.1",
        "tcp udp",
    ] {
        assert!(text.parse::<Flow>().is_err(), "{text:?}");
    }
}

#[test]
fn the_verdict_notes_packets_captured_before_segmentation() {
    let mut file = Writer::pcap(false, 0xa1b2_c3d4);
    file.record((1, 0), 65_226, &[0; 60])
        .record((0, 999_999), 60, &[]);
    let found = verdict("up 1gbit burst 10ms", None, &file.bytes).expect("a verdict");
    assert!(
        found.text().contains("packets of up to 65226 bytes"),
        "{}",
        found.text()
    );
    assert!(
        found
            .text()
            .contains("1 packets are earlier than the one before"),
        "{}",
        found.text()
    );
}

/// Complete files to damage.
fn files() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for big in [false, true] {
        let packet = udp([10, 0, 0, 1], [10, 0, 0, 2], (5000, 6000));
        let mut pcap = Writer::pcap(big, 0xa1b2_c3d4);
        pcap.record((1, 0), 1514, &packet)
            .record((1, 5), 60, &packet);
        let mut ng = Writer::pcapng(big);
        ng.interface(1, Some(9), Some(5))
            .interface(101, Some(0x94), None);
        ng.enhanced(0, 1, 1514, &packet)
            .enhanced(1, 1 << 33, 60, &packet[14..]);
        ng.block(5, |w| {
            w.u32(0).u32(0).u32(0);
        });
        all.extend([pcap.bytes, ng.bytes]);
    }
    all
}

#[test]
fn a_file_cut_anywhere_gives_the_packets_before_the_cut_and_no_others() {
    for whole in files() {
        let expected = packets(&whole).expect("read");
        assert_eq!(expected.len(), 2);
        for cut in 0..whole.len() {
            let mut found = Vec::new();
            let end = capture::read(Cursor::new(&whole[..cut]), |packet| {
                found.push((packet.at, packet.length));
                ControlFlow::Continue(())
            });
            assert!(expected.starts_with(&found), "cut at {cut}");
            // If the cut file reads without error, the cut was between two blocks, and one more
            // byte is an error.
            if end.is_ok() {
                assert!(packets(&whole[..cut + 1]).is_err(), "cut at {cut}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// For any damage: reading ends, does not panic, and returns no packet that the file does not
    /// contain.
    #[test]
    fn reading_a_damaged_file_ends(
        which in 0_usize..4,
        hits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        tail in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let mut file = files().swap_remove(which);
        for (at, value) in hits {
            let at = at.index(file.len());
            file[at] = value;
        }
        file.extend(tail);
        let most = file.len() / 16;
        let flow = Some("udp from 10.0.0.1");
        let found = verdict("cell pcr=8mbit,cdvt=0s,scr=1mbit,mbs=9000B", flow, &file);
        if let Ok(found) = found {
            prop_assert!(found.packets <= most as u64);
            prop_assert!(!found.text().is_empty());
        }
    }

    #[test]
    fn random_bytes_are_no_capture(garbage in prop::collection::vec(any::<u8>(), 0..200)) {
        let magic = garbage.get(..4).map(|four| [four[0], four[1], four[2], four[3]]);
        prop_assume!(!MAGIC.iter().any(|known| magic == Some(known.to_le_bytes()) || magic == Some(known.to_be_bytes())));
        prop_assert!(packets(&garbage).is_err());
    }
}

const MAGIC: [u32; 4] = [0xa1b2_c3d4, 0xa1b2_3c4d, 0xa1b2_cd34, 0x0a0d_0d0a];

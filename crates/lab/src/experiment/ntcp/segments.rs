//! Records the sequence numbers of a TCP connection at the receiving host ([`Watch`]), and draws
//! them as the paper's figure 4 does: the packets, the highest sequence number that the receiver
//! has acknowledged, and the window that it offers.
//!
//! A start and an end fail as those of a [`Tap`] do; an end also fails if the opening of the
//! connection was not seen, because its segments say how the window is scaled.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};

use crate::plot::{Chart, Series, palette};
use crate::wire::{Packet, Tap, Transport};
use crate::world::Netns;

/// A running record of one connection. It must start before the connection is opened.
pub(super) struct Watch {
    tap: Tap,
    seen: Arc<Mutex<Vec<Segment>>>,
}

/// The fields of a TCP header that are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Segment {
    /// Wall-clock time in ns.
    at_ns: u64,
    /// Whether the receiving host got it; otherwise the receiving host sent it.
    inbound: bool,
    sequence: u32,
    acknowledged: u32,
    window: u16,
    /// The shift of the window in a segment that opens the connection.
    scale: Option<u8>,
    /// Payload in bytes.
    payload: u32,
}

impl Watch {
    /// Starts at the receiving host, for the sender's port `port`.
    pub(super) fn start(ns: &Netns, device: &str, port: u16) -> Result<Watch> {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&seen);
        let tap = Tap::start_watching(ns, device, move |packet, head| {
            let flow = &packet.flow;
            let sender = if flow.inbound {
                flow.source
            } else {
                flow.target
            };
            if flow.transport == Transport::Tcp
                && sender.1 == port
                && let Some(segment) = segment(packet, head)
            {
                let mut all = into.lock().unwrap_or_else(PoisonError::into_inner);
                all.push(segment);
            }
        })?;
        Ok(Watch { tap, seen })
    }

    /// Ends the record, and returns the part of it from `from` to `until` (wall clock, ns).
    pub(super) fn end(self, ns: &Netns, from: u64, until: u64) -> Result<Sequences> {
        self.tap.stop(ns)?.validate()?;
        let all = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        Sequences::between(&all, from, until).context("the opening of the connection was not seen")
    }
}

/// A part of a connection: times in s from the begin of the part, and bytes after the highest
/// sequence number that was acknowledged before it.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Sequences {
    /// Each packet with payload, and the sequence number after it.
    sent: Vec<(f64, f64)>,
    /// Each acknowledgement, and the highest sequence number that it acknowledges.
    acknowledged: Vec<(f64, f64)>,
    /// Each acknowledgement, and the highest sequence number that the receiver permits with it.
    permitted: Vec<(f64, f64)>,
}

impl Sequences {
    /// The segments from `from` to `until`. `None` if the receiver's opening segment is missing.
    fn between(all: &[Segment], from: u64, until: u64) -> Option<Sequences> {
        let mut opening = all.iter().filter(|one| !one.inbound);
        let scale = opening.find_map(|one| one.scale)?;
        let mut before = all.iter().filter(|one| !one.inbound && one.at_ns < from);
        let origin = before.next_back().map(|one| one.acknowledged)?;
        let mut part = Sequences::default();
        for one in all.iter().filter(|one| (from..until).contains(&one.at_ns)) {
            let at = (one.at_ns - from) as f64 / 1e9;
            // Sequence numbers wrap; the part is much shorter than half of their range.
            let since = |number: u32| f64::from(number.wrapping_sub(origin).cast_signed());
            if !one.inbound {
                let acknowledged = since(one.acknowledged);
                let window = f64::from(u32::from(one.window) << scale);
                part.acknowledged.push((at, acknowledged));
                part.permitted.push((at, acknowledged + window));
            } else if one.payload > 0 {
                let end = one.sequence.wrapping_add(one.payload);
                part.sent.push((at, since(end)));
            }
        }
        Some(part)
    }

    /// Bytes that the receiver's window permitted beyond the highest one sent, at the least.
    pub(super) fn least_unused_window(&self) -> f64 {
        let permitted = |at: f64| {
            let before = self.permitted.iter().filter(|(when, _)| *when <= at);
            before.map(|(_, end)| *end).reduce(f64::max)
        };
        let unused = self.sent.iter();
        let unused = unused.filter_map(|(at, end)| Some(permitted(*at)? - end));
        unused.fold(f64::INFINITY, f64::min)
    }

    /// The least time from an acknowledgement to a packet that follows a silence of at least
    /// `silence` s, in s. Infinite if there is no such packet.
    pub(super) fn least_since_acknowledgement(&self, silence: f64) -> f64 {
        let pairs = self.sent.windows(2);
        let firsts = pairs.filter(|pair| pair[1].0 - pair[0].0 >= silence);
        let since = firsts.filter_map(|pair| {
            let before = self.acknowledged.iter().rev();
            let last = before.map(|(at, _)| *at).find(|at| *at <= pair[1].0)?;
            Some(pair[1].0 - last)
        });
        since.fold(f64::INFINITY, f64::min)
    }

    /// Draws the part, in kB.
    pub(super) fn draw(&self, title: &str) -> String {
        let kilobytes = |points: &[(f64, f64)]| -> Vec<(f64, f64)> {
            points
                .iter()
                .map(|(at, bytes)| (*at, bytes / 1e3))
                .collect()
        };
        let [sent, acknowledged, permitted] =
            [&self.sent, &self.acknowledged, &self.permitted].map(|points| kilobytes(points));
        let highest =
            |points: &[(f64, f64)]| points.iter().map(|point| point.1).fold(1.0, f64::max);
        // A window that is much larger would press the packets against the axis.
        let top = highest(&permitted).min(4.0 * highest(&sent)) * 1.05;
        let name = match highest(&permitted) > top {
            true => "window offered by the receiver (beyond the chart)",
            false => "window offered by the receiver",
        };
        Chart::new(title, "time, s", "sequence number, kB")
            .with(Series::new(name, palette::GREEN, steps(&permitted)).thin())
            .with(Series::new("packets", palette::BLUE, sent).dots())
            .with(Series::new("acknowledged", palette::RED, steps(&acknowledged)).dashed())
            .y_range(0.0, top)
            .svg()
    }
}

/// A line through points that keeps each value until the next one.
fn steps(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let between = points
        .windows(2)
        .flat_map(|pair| [pair[0], (pair[1].0, pair[0].1)]);
    between.chain(points.last().copied()).collect()
}

/// The TCP header of a packet over IPv4; `None` if `head` is too short for it.
fn segment(packet: &Packet, head: &[u8]) -> Option<Segment> {
    let internet = head.get(ETHERNET..)?;
    let header = usize::from(internet.first()? & 15) * 4;
    let length = u16::from_be_bytes([*internet.get(2)?, *internet.get(3)?]);
    let tcp = internet.get(header..)?;
    let word = |at: usize| -> Option<u32> {
        Some(u32::from_be_bytes(tcp.get(at..at + 4)?.try_into().ok()?))
    };
    let offset = usize::from(*tcp.get(12)? >> 4) * 4;
    let opens = *tcp.get(13)? & SYN != 0;
    Some(Segment {
        at_ns: packet.at_ns,
        inbound: packet.flow.inbound,
        sequence: word(4)?,
        acknowledged: word(8)?,
        window: u16::from_be_bytes([*tcp.get(14)?, *tcp.get(15)?]),
        scale: opens.then(|| scale(tcp.get(20..offset).unwrap_or(&[]))),
        payload: u32::from(length).saturating_sub((header + offset) as u32),
    })
}

/// The window scale among TCP's options (RFC 7323, 2.2); 0 if it is absent.
fn scale(mut options: &[u8]) -> u8 {
    while let Some((&kind, rest)) = options.split_first() {
        options = match (kind, rest.first()) {
            (0, _) | (_, None) => break,
            (1, _) => rest,
            (3, Some(3)) => return rest.get(1).copied().unwrap_or(0).min(14),
            (_, Some(&length)) => match options.get(usize::from(length.max(2))..) {
                Some(rest) => rest,
                None => break,
            },
        };
    }
    0
}

/// Bytes of the Ethernet header.
const ETHERNET: usize = 14;
/// The flag of a segment that opens a connection.
const SYN: u8 = 2;

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::wire::WireFlow;

    fn packet(at_ns: u64, inbound: bool) -> Packet {
        let at = |port| (Ipv4Addr::LOCALHOST.into(), port);
        Packet {
            at_ns,
            flow: WireFlow {
                inbound,
                transport: Transport::Tcp,
                source: at(1),
                target: at(2),
            },
            wire: 0,
            segments: 1,
        }
    }

    /// The headers of a segment over IPv4.
    fn head(numbers: [u32; 2], flags: u8, window: u16, options: &[u8], payload: u16) -> Vec<u8> {
        let offset = 20 + options.len();
        let mut head = vec![0; ETHERNET];
        head.extend([0x45, 0]);
        head.extend((20 + offset as u16 + payload).to_be_bytes());
        head.extend([0; 16]);
        head.extend([0; 4]);
        head.extend(numbers.iter().flat_map(|number| number.to_be_bytes()));
        head.extend([(offset as u8 / 4) << 4, flags]);
        head.extend(window.to_be_bytes());
        head.extend([0; 4]);
        head.extend(options);
        head
    }

    #[test]
    fn a_connection_is_read_from_its_headers_across_the_end_of_the_numbers() {
        let last = u32::MAX - 999;
        let options = [2, 4, 5, 180, 1, 3, 3, 7];
        let all = [
            (10, false, head([0, last], SYN | 16, 9, &options, 0)),
            (1_000, true, head([last, 1], 16, 0, &[], 1434)),
            (
                2_000,
                true,
                head([last.wrapping_add(1434), 1], 16, 0, &[], 1434),
            ),
            (
                3_000,
                false,
                head([1, last.wrapping_add(2868)], 16, 64, &[], 0),
            ),
            (9_000, true, head([0, 0], 16, 0, &[], 1434)),
        ];
        let segments = all
            .iter()
            .map(|(at, inbound, head)| segment(&packet(*at, *inbound), head).expect("a segment"));
        let segments: Vec<Segment> = segments.collect();
        let part = Sequences::between(&segments, 500, 5_000).expect("the opening");
        assert_eq!(part.sent.len(), 2);
        assert_eq!([part.sent[0].1, part.sent[1].1], [1434.0, 2868.0]);
        assert_eq!(part.acknowledged[0].1, 2868.0);
        assert_eq!(part.permitted[0].1, 2868.0 + 64.0 * 128.0);
        assert_eq!(part.least_since_acknowledgement(0.0), f64::INFINITY);
        assert_eq!(Sequences::between(&segments[1..], 500, 5_000), None);
        assert!(part.draw("a part").contains("acknowledged"));
    }

    #[test]
    fn options_without_a_scale_or_cut_short_give_none() {
        assert_eq!(scale(&[]), 0);
        assert_eq!(scale(&[2, 4, 5, 180, 4, 2, 0]), 0);
        assert_eq!(scale(&[2, 40, 5]), 0);
        assert_eq!(scale(&[8]), 0);
        assert_eq!(scale(&[1, 1, 3, 3, 9]), 9);
    }
}

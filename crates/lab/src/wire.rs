//! Measures the packets that pass a device: a [`Tap`] counts them per flow in bins of 1 ms, and
//! [`Record`] returns the counts and rates.
//!
//! A [`Tap`] is a packet socket with a ring, read by a thread of the lab, on a device in any
//! namespace. Usually the device is at the far end of the cable, where neither netnice nor the
//! program under test can influence it. The kernel stamps each packet, so a late reader does not
//! change the times. If the ring overflows, packets are missing and [`Record::validate`] fails.
//!
//! **Wire length** is layer 2 without preamble and gap: 14 + the IP length. A packet that is not
//! segmented yet (offloads on) counts as the segments that it will become: the ring reports the
//! segment size, and each segment but the first costs its headers again. Device byte counters do
//! not do this and are up to 4.4 % too low.
//!
//! [`Record::rate`] rounds the ends of its window down to whole bins.
//!
//! [`Tap::start_capturing`] also keeps single packets, those of chosen flows, with the time of
//! their arrival at the device. It writes their headers to a capture file for `netnice check`.
//!
//! A start fails without the device or the right to open a packet socket, or if the capture file
//! cannot be written. [`Tap::stop`] fails if the device is gone, or if the rest of the capture file
//! cannot be written.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::worker::Worker;
use crate::world::Netns;
use crate::world::netns::DeviceCounters;

mod capture;
mod parse;
mod ring;

pub use parse::{Packet, Transport, WireFlow};

/// A running meter. Dropping it ends the meter and discards the record.
pub struct Tap {
    reader: Worker<Record>,
    start: TapStart,
}

/// The device and its counters at the start, for the comparison at the end.
struct TapStart {
    before: DeviceCounters,
    device: String,
}

impl Tap {
    /// Starts a meter on `device` in `ns`. Fails without the device or the right to open a packet
    /// socket, or if its thread cannot start.
    pub fn start(ns: &Netns, device: &str) -> Result<Tap> {
        let ring = ns.enter(|| ring::Ring::open(device))?;
        Tap::read(ns, device, ring, |_, _| Ok(()))
    }

    /// Starts a meter that also keeps the packets of the flows that `of` accepts, for
    /// [`Record::times`] and in the capture file `file`. Fails as [`Tap::start`] does, or if the
    /// file cannot be written.
    pub fn start_capturing(
        ns: &Netns,
        device: &str,
        file: &Path,
        of: impl Fn(&WireFlow) -> bool + Send + 'static,
    ) -> Result<Tap> {
        let ring = Tap::stamping_ring(ns, device)?;
        let mut capture = capture::Capture::create(file)?;
        Tap::read(ns, device, ring, move |record, seen| match seen {
            Some((packet, head)) if of(&packet.flow) => {
                record.packets.push(*packet);
                capture.packet(packet, head)
            }
            Some(_) => Ok(()),
            None => capture.end(),
        })
    }

    /// Starts a meter that also passes each packet with its first bytes (at most 128, from the
    /// Ethernet header on) to `each`, in the thread of the meter. Fails as [`Tap::start`] does.
    pub fn start_watching(
        ns: &Netns,
        device: &str,
        mut each: impl FnMut(&Packet, &[u8]) + Send + 'static,
    ) -> Result<Tap> {
        let ring = Tap::stamping_ring(ns, device)?;
        Tap::read(ns, device, ring, move |_, seen| {
            if let Some((packet, head)) = seen {
                each(packet, head);
            }
            Ok(())
        })
    }

    /// A ring whose packets are stamped when the device receives them.
    fn stamping_ring(ns: &Netns, device: &str) -> Result<ring::Ring> {
        ns.enter(|| {
            let ring = ring::Ring::open(device)?;
            ring.stamp_at_arrival()?;
            Ok(ring)
        })
    }

    /// Reads the ring in a thread. `each` gets every packet, and `None` once at the end.
    fn read(
        ns: &Netns,
        device: &str,
        mut ring: ring::Ring,
        mut each: impl FnMut(&mut Record, Option<(&Packet, &[u8])>) -> Result<()> + Send + 'static,
    ) -> Result<Tap> {
        let before = ns.counters(device)?;
        let reader = Worker::start("tap", move |stopped| {
            let (mut record, mut done) = (Record::default(), Ok(()));
            // The thread polls every millisecond and is not woken for packets. The ring holds at
            // least 0.4 s of full frames at 1 Gbit/s ([`ring`]).
            loop {
                let last = stopped.load(Relaxed);
                let count = ring.drain(|packet, head| {
                    record.add(packet);
                    if done.is_ok() {
                        done = each(&mut record, Some((packet, head)));
                    }
                });
                match (last, count) {
                    (true, _) => break,
                    (false, 0) => std::thread::sleep(Duration::from_millis(1)),
                    (false, _) => {}
                }
            }
            done?;
            each(&mut record, None)?;
            record.lost = ring.lost()?;
            Ok(record)
        })?;
        Ok(Tap {
            reader,
            start: TapStart {
                before,
                device: device.to_owned(),
            },
        })
    }

    /// Ends the meter and returns its record. `ns` must be the namespace that it was started in.
    /// Fails if the device is gone, if the capture file could not be written, or if the number of
    /// lost packets cannot be read. Lost packets are no failure here: see [`Record::validate`].
    pub fn stop(self, ns: &Netns) -> Result<Record> {
        let after = ns.counters(&self.start.device)?;
        let mut record = self.reader.stop()?;
        let before = self.start.before;
        record.device = Some(DeviceCounters {
            rx_bytes: after.rx_bytes - before.rx_bytes,
            rx_packets: after.rx_packets - before.rx_packets,
            tx_bytes: after.tx_bytes - before.tx_bytes,
            tx_packets: after.tx_packets - before.tx_packets,
        });
        Ok(record)
    }
}

/// The counts of the packets that a tap recorded, per flow and millisecond, and the kept packets.
#[derive(Debug, Default)]
pub struct Record {
    flows: HashMap<WireFlow, FlowRecord>,
    /// The bin number (ms since 1970) of the first packet.
    first: Option<u64>,
    last: u64,
    lost: u64,
    bytes_in: u64,
    bytes_out: u64,
    device: Option<DeviceCounters>,
    packets: Vec<Packet>,
}

/// Counts of one flow's packets.
#[derive(Debug, Default, Clone)]
struct FlowRecord {
    /// Wire bytes in each millisecond with a packet, ascending: the number of the millisecond since
    /// the record's first packet, and the bytes. So tens of thousands of slow flows take little
    /// memory.
    bins: Vec<(u32, u32)>,
    bytes: u64,
    packets: u64,
}

/// The sums over the packets of one or more flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Wire bytes.
    pub bytes: u64,
    /// Number of packets on the wire. A packet that was not segmented yet counts as its segments.
    pub packets: u64,
}

impl Record {
    fn add(&mut self, packet: &Packet) {
        let bin = packet.at_ns / BIN_NS;
        let first = *self.first.get_or_insert(bin);
        // Timestamps of two processors may be out of order by less than a bin.
        let index = bin.saturating_sub(first) as u32;
        self.last = self.last.max(bin);
        if packet.flow.inbound {
            self.bytes_in += packet.wire;
        } else {
            self.bytes_out += packet.wire;
        }
        let flow = self.flows.entry(packet.flow).or_default();
        let at = match flow.bins.last() {
            Some((last, _)) if *last >= index => flow.bins.partition_point(|(at, _)| *at < index),
            _ => flow.bins.len(),
        };
        match flow.bins.get_mut(at) {
            Some((at, bytes)) if *at == index => *bytes += packet.wire as u32,
            _ => flow.bins.insert(at, (index, packet.wire as u32)),
        }
        flow.bytes += packet.wire;
        flow.packets += packet.segments;
    }

    /// Fails if the ring overflowed, because then packets are missing from the record.
    pub fn validate(&self) -> Result<&Record> {
        if self.lost > 0 {
            bail!(
                "the meter lost {} packets (the machine is too busy for this measurement): run it \
                 again with less beside it",
                self.lost
            );
        }
        Ok(self)
    }

    /// The kept packets, in the order in which the tap read them.
    pub(crate) fn packets(&self) -> &[Packet] {
        &self.packets
    }

    /// Times at which the kept packets of the flows that `of` accepts passed (wall clock, ns).
    /// Empty if the tap was not started by [`Tap::start_capturing`].
    pub fn times(&self, of: impl Fn(&WireFlow) -> bool) -> Vec<u64> {
        let mine = self.packets.iter().filter(|packet| of(&packet.flow));
        mine.map(|packet| packet.at_ns).collect()
    }

    /// Relative difference of this record's bytes from the device's own counters: 0.01 means 1 %
    /// more bytes in the record. The value is only meaningful with offloads off and without traffic
    /// at the start and the end of the record.
    pub fn against_device(&self) -> f64 {
        let Some(device) = self.device else {
            return f64::NAN;
        };
        let counted = (device.rx_bytes + device.tx_bytes) as f64;
        ((self.bytes_in + self.bytes_out) as f64 - counted) / counted.max(1.0)
    }

    /// All flows with their totals, most bytes first.
    pub fn flows(&self) -> Vec<(WireFlow, Totals)> {
        let mut all: Vec<(WireFlow, Totals)> = self
            .flows
            .iter()
            .map(|(flow, r)| {
                let totals = Totals {
                    bytes: r.bytes,
                    packets: r.packets,
                };
                (*flow, totals)
            })
            .collect();
        all.sort_by_key(|(_, t)| std::cmp::Reverse(t.bytes));
        all
    }

    /// Totals of the flows that `of` accepts.
    pub fn totals(&self, of: impl Fn(&WireFlow) -> bool) -> Totals {
        self.flows
            .iter()
            .filter(|(flow, _)| of(flow))
            .fold(Totals::default(), |sum, (_, r)| Totals {
                bytes: sum.bytes + r.bytes,
                packets: sum.packets + r.packets,
            })
    }

    /// Wire bytes of the flows that `of` accepts, from `from_ns` to `to_ns` (wall clock, ns). Both
    /// times are rounded down to whole bins of 1 ms.
    pub fn bytes(&self, of: impl Fn(&WireFlow) -> bool, from_ns: u64, to_ns: u64) -> u64 {
        let Some(first) = self.first else { return 0 };
        let index = |ns: u64| (ns / BIN_NS).saturating_sub(first);
        let (from, to) = (index(from_ns), index(to_ns));
        self.flows
            .iter()
            .filter(|(flow, _)| of(flow))
            .map(|(_, r)| {
                let before = |end: u64| r.bins.partition_point(|(at, _)| u64::from(*at) < end);
                let part = r.bins.get(before(from)..before(to)).unwrap_or(&[]);
                part.iter().map(|(_, bytes)| u64::from(*bytes)).sum::<u64>()
            })
            .sum()
    }

    /// Time of the first packet of the flows that `of` accepts (wall clock, ns, rounded down to 1
    /// ms); `None` without a packet.
    pub fn first_of(&self, of: impl Fn(&WireFlow) -> bool) -> Option<u64> {
        let first = self.first?;
        let flows = self.flows.iter().filter(|(flow, _)| of(flow));
        let bins = flows.filter_map(|(_, r)| r.bins.first().map(|(at, _)| *at));
        Some((first + u64::from(bins.min()?)) * BIN_NS)
    }

    /// Mean rate in bit/s of the flows that `of` accepts, from `from_ns` to `to_ns` (wall clock,
    /// ns). Both times are rounded down to whole bins of 1 ms.
    pub fn rate(&self, of: impl Fn(&WireFlow) -> bool, from_ns: u64, to_ns: u64) -> f64 {
        // The summed window has whole bins, so the divisor has whole bins too.
        let span = (to_ns / BIN_NS - from_ns / BIN_NS) * BIN_NS;
        self.bytes(of, from_ns, to_ns) as f64 * 8e9 / span.max(1) as f64
    }

    /// Rates in bit/s in consecutive intervals of `width_ns` from `from_ns` on. An incomplete last
    /// interval is omitted.
    pub fn bins(
        &self,
        of: impl Fn(&WireFlow) -> bool + Copy,
        from_ns: u64,
        to_ns: u64,
        width_ns: u64,
    ) -> Vec<f64> {
        (0..to_ns.saturating_sub(from_ns) / width_ns)
            .map(|i| {
                let at = from_ns + i * width_ns;
                self.rate(of, at, at + width_ns)
            })
            .collect()
    }
}

/// Width of a bin in ns.
const BIN_NS: u64 = 1_000_000;

/// True for a flow of IP whose packets the tap's device received.
pub fn inbound(flow: &WireFlow) -> bool {
    flow.inbound && flow.transport != Transport::NotIp
}

/// True for a flow of IP whose packets the tap's device sent.
pub fn outbound(flow: &WireFlow) -> bool {
    !flow.inbound && flow.transport != Transport::NotIp
}

impl WireFlow {
    /// True when either end of the flow has this port.
    pub fn has_port(&self, port: u16) -> bool {
        self.source.1 == port || self.target.1 == port
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    /// A packet of 100 bytes from this port, so many milliseconds after a fixed time.
    fn packet(port: u16, ms: u64) -> Packet {
        let at = IpAddr::V4(Ipv4Addr::LOCALHOST);
        Packet {
            at_ns: (1_000 + ms) * BIN_NS + 7,
            flow: WireFlow {
                inbound: true,
                transport: Transport::Udp,
                source: (at, port),
                target: (at, 9),
            },
            wire: 100,
            segments: 1,
        }
    }

    #[test]
    fn bytes_are_those_of_the_milliseconds_in_the_window() {
        let mut record = Record::default();
        // The fourth packet comes out of order.
        for (port, ms) in [(1, 5), (1, 5), (1, 8), (1, 7), (2, 6), (1, 4_000)] {
            record.add(&packet(port, ms));
        }
        let of = |port: u16| move |flow: &WireFlow| flow.source.1 == port;
        let bytes = |port, from: u64, to: u64| {
            record.bytes(of(port), (1_000 + from) * BIN_NS, (1_000 + to) * BIN_NS)
        };
        assert_eq!(bytes(1, 0, 5), 0);
        assert_eq!(bytes(1, 0, 6), 200);
        assert_eq!(bytes(1, 6, 8), 100);
        assert_eq!(bytes(1, 8, 4_000), 100);
        assert_eq!(bytes(1, 0, 9_000), 500);
        assert_eq!(bytes(2, 0, 9_000), 100);
        assert_eq!(bytes(1, 9, 8), 0);
        assert_eq!(record.first_of(of(2)), Some(1_006 * BIN_NS));
        assert_eq!(record.first_of(of(3)), None);
    }
}

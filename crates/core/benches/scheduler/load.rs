//! The work that the scheduler benchmark measures. Functions that return a closure prepare the
//! flows; a call of the closure does the measured work.

use std::hint::black_box;

use netnice_core::contract::{self, Bucket, Sustained, Weight};
use netnice_core::sched::{Pacer, Packet, Scheduler, Service, Wire};
use netnice_core::units::{Bytes, Instant, Nanos, Rate};

/// The contracts of the flows on a link.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mix {
    /// All flows have a cell contract with a dual bucket.
    Cells,
    /// Of 16 flows, 12 have a dual bucket, 2 a slice, 1 a minimum, and 1 is best effort.
    All,
}

/// The length of all packets in bytes.
pub const LENGTH: u64 = 500;

/// A small random number generator (xorshift64*).
pub struct Random(pub u64);

impl Random {
    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % end
    }
}

/// A dual bucket with a sustained rate of `bits` per second. With `random` the rate is 25 to 174 %
/// of that, and the peak rate and MBS are random too.
pub fn dual(bits: u64, random: Option<&mut Random>) -> contract::Cell {
    let (share, times, packets) = match random {
        None => (100, 4, 10),
        Some(random) => (
            random.below(150) + 25,
            random.below(8) + 2,
            random.below(30) + 2,
        ),
    };
    let scr = Rate::new((bits * share / 100).max(1000)).unwrap();
    let pcr = Rate::new(scr.bits_per_second() * times).unwrap();
    let sustained = Sustained {
        scr,
        mbs: Bytes(LENGTH * packets),
        bucket: Bucket::Dual,
    };
    contract::Cell::new(pcr, Nanos::from_millis(2), Some(sustained)).unwrap()
}

/// The sum of the rates of the flows of one link, in bit/s.
pub const TOTAL: u64 = 10_000_000_000;

/// Prepares a [`Pacer`] with `flows` backlogged flows of about [`TOTAL`] bit/s together, with
/// identical contracts if `same`. The closure takes the number of packets to shape.
pub fn pacer(flows: usize, same: bool) -> impl FnMut(u32) {
    let mut random = Random(7);
    let mut pacer = Pacer::new();
    for _ in 0..flows {
        let contract = dual(TOTAL / flows as u64, (!same).then_some(&mut random));
        let flow = pacer.insert(contract).unwrap();
        pacer.handle_head(flow, Bytes(LENGTH), Instant(0)).unwrap();
    }
    let mut now = Instant(0);
    move |packets| {
        let mut left = packets;
        while left > 0 {
            match pacer.poll(now, |_| Some(Bytes(LENGTH))) {
                Some(sent) => {
                    black_box(sent);
                    left -= 1;
                }
                None => now = pacer.poll_timeout().unwrap(),
            }
        }
    }
}

/// Prepares a [`Pacer`] with `flows` backlogged flows of 8 kbit/s with a CDVT of 100 us. At this
/// rate the calendar's rounding is coarser than the CDVT, so the pacer examines each flow a second
/// time shortly before its eligible time; all flows are due at the same instant. The closure takes
/// the number of calls of [`Pacer::poll`].
pub fn exact(flows: usize) -> impl FnMut(u32) {
    let (rate, cdvt) = (Rate::new(8_000).unwrap(), Nanos::from_micros(100));
    let contract = contract::Cell::new(rate, cdvt, None).unwrap();
    let mut pacer = Pacer::new();
    for _ in 0..flows {
        let flow = pacer.insert(contract).unwrap();
        pacer.handle_head(flow, Bytes(LENGTH), Instant(0)).unwrap();
    }
    let mut now = Instant(0);
    move |calls| {
        for _ in 0..calls {
            match pacer.poll(now, |_| Some(Bytes(LENGTH))) {
                Some(sent) => {
                    black_box(sent);
                }
                None => now = pacer.poll_timeout().unwrap(),
            }
        }
    }
}

/// Prepares a link with [`filled`]. The closure takes the number of packets to send. If no packet
/// is due, it sets its clock to the time of the next one.
pub fn link(flows: usize, same: bool, mix: Mix, percent: u64) -> impl FnMut(u32) {
    let mut link = filled(flows, same, mix, percent);
    let mut now = Instant(0);
    move |packets| {
        let mut left = packets;
        while left > 0 {
            match link.poll(now, |_| Some(Packet::new(Bytes(LENGTH)))) {
                Some(sent) => {
                    black_box(sent);
                    left -= 1;
                }
                None => now = link.poll_timeout().unwrap(),
            }
        }
    }
}

/// Memory of a link in bytes per flow, first with all flows idle, then with all flows backlogged.
/// The memory of a link without flows is not included.
pub fn memory(flows: usize) -> (f64, f64) {
    let mut link = Scheduler::new(wire()).unwrap();
    let fixed = link.memory();
    let mut random = Random(9);
    let contracts: Vec<_> = (0..flows)
        .map(|_| dual(TOTAL / flows as u64, Some(&mut random)))
        .collect();
    let ids: Vec<_> = contracts
        .iter()
        .map(|one| link.insert(Service::Cell(*one), Instant(0)).unwrap())
        .collect();
    let idle = (link.memory() - fixed) as f64 / flows as f64;
    for id in ids {
        link.handle_head(id, Packet::new(Bytes(LENGTH)), Instant(0))
            .unwrap();
    }
    let mut now = Instant(0);
    for _ in 0..flows * 3 {
        while link
            .poll(now, |_| Some(Packet::new(Bytes(LENGTH))))
            .is_none()
        {
            now = link.poll_timeout().unwrap();
        }
    }
    (idle, (link.memory() - fixed) as f64 / flows as f64)
}

/// A link of 10 Gbit/s with a driver that takes batches of 10 us (25 packets).
pub fn wire() -> Wire {
    Wire {
        ahead: Nanos::from_micros(10),
        ..Wire::new(Rate::new(TOTAL).unwrap())
    }
}

/// A link with `flows` flows, each with one packet. Their rates add up to about `percent` of the
/// link's rate. The cell contracts are identical if `same`.
pub fn filled(flows: usize, same: bool, mix: Mix, percent: u64) -> Scheduler {
    let mut random = Random(11);
    let mut link = Scheduler::new(wire()).unwrap();
    let bits = TOTAL / flows as u64 * percent / 100;
    for index in 0..flows {
        let service = match (mix, index % 16) {
            (Mix::All, 3 | 11) => slice(bits),
            (Mix::All, 6) => Service::Share {
                min: Some(Rate::new(bits.max(1000)).unwrap()),
                max: None,
                weight: Weight::default(),
            },
            (Mix::All, 14) => Service::best_effort(Weight::new(1 + (index % 1000) as u16).unwrap()),
            _ => Service::Cell(dual(bits, (!same).then_some(&mut random))),
        };
        let flow = link.insert(service, Instant(0)).unwrap();
        let packet = Packet::new(Bytes(LENGTH));
        link.handle_head(flow, packet, Instant(0)).unwrap();
    }
    link
}

/// A slice that gives `bits` per second of the link, four packets in a period.
fn slice(bits: u64) -> Service {
    let period = LENGTH * 8 * 4 * 1_000_000_000 / bits;
    let part = (u128::from(period) * u128::from(bits) / u128::from(TOTAL)) as u64;
    let (part, period) = (Nanos(part.max(1)), Nanos(period.clamp(1, 10_000_000_000)));
    Service::Slice {
        slice: contract::Slice::new(part.min(period), period, false).unwrap(),
        weight: Weight::default(),
    }
}

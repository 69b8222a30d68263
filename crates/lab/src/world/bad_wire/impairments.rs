//! What a bad wire does to the frames of one direction ([`OneWay`]). Frames and times come in,
//! frames and times go out, and the random numbers come from a seed: the same frames at the same
//! times give the same result. No call fails.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use netnice_sim::Random;

/// What happens to the frames of one direction. The default: nothing.
#[derive(Clone, Debug, Default)]
pub struct Impairments {
    /// Bits per second of whole frames; `None`: unlimited.
    pub rate: Option<u64>,
    /// With a rate: bytes that may wait, beyond the frame that is being sent.
    pub queue: usize,
    /// The time for which every frame is on its way, after the rate.
    pub delay: Duration,
    /// The share of frames that are lost, each by itself, from 0 to 1.
    pub loss: f64,
    /// Losses in bursts.
    pub bursts: Option<LossBursts>,
    /// The share of frames that are delayed by `reorder_by` in addition, so that later ones pass.
    pub reorder: f64,
    /// How long these frames are delayed in addition.
    pub reorder_by: Duration,
    /// The share of frames that arrive twice.
    pub duplicate: f64,
    /// The share of frames in which one bit behind the Ethernet header is inverted.
    pub damage: f64,
    /// The seed of the random numbers.
    pub seed: u64,
}

/// Bursts of losses (Gilbert's model): a burst begins before a frame with one probability, and ends
/// before a frame with another; all frames in it are lost.
#[derive(Clone, Copy, Debug)]
pub struct LossBursts {
    /// The probability with which a frame begins a burst.
    pub begin: f64,
    /// The probability with which a frame ends one.
    pub end: f64,
}

/// What happened to the frames of one direction. `offered + duplicated` is the sum of `delivered`,
/// `lost`, `dropped` and those that are on their way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireCounts {
    /// Frames that came.
    pub offered: u64,
    /// Additional frames, of those that arrive twice.
    pub duplicated: u64,
    /// Frames that were lost on the wire.
    pub lost: u64,
    /// Frames that found the queue full.
    pub dropped: u64,
    /// Frames that were damaged: one bit was inverted.
    pub damaged: u64,
    /// Frames that left the wire.
    pub delivered: u64,
}

/// One direction of a bad wire.
pub struct OneWay {
    impairments: Impairments,
    random: Random,
    in_burst: bool,
    /// When the last frame has been sent at the rate, in ns.
    free_at: u64,
    on_the_way: BinaryHeap<Reverse<Frame>>,
    /// Number of the next frame: frames of one time leave in this order.
    number: u64,
    counts: WireCounts,
}

/// A frame on its way. Frames compare by their time, then by their number.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Frame {
    at: u64,
    number: u64,
    bytes: Vec<u8>,
}

impl OneWay {
    /// A wire without frames.
    pub fn new(impairments: Impairments) -> OneWay {
        OneWay {
            random: Random::new(impairments.seed),
            impairments,
            in_burst: false,
            free_at: 0,
            on_the_way: BinaryHeap::new(),
            number: 0,
            counts: WireCounts::default(),
        }
    }

    /// Takes a frame at the time `now`, in ns.
    pub fn offer(&mut self, frame: &[u8], now: u64) {
        self.counts.offered += 1;
        let Some(sent) = self.queue(frame.len() as u64, now) else {
            self.counts.dropped += 1;
            return;
        };
        if self.is_lost() {
            self.counts.lost += 1;
            return;
        }
        let mut bytes = frame.to_vec();
        if self.happens(self.impairments.damage) && bytes.len() > ETHERNET {
            let bit = self.random.below(8 * (bytes.len() - ETHERNET) as u64);
            bytes[ETHERNET + bit as usize / 8] ^= 1 << (bit % 8);
            self.counts.damaged += 1;
        }
        let mut at = sent + self.impairments.delay.as_nanos() as u64;
        if self.happens(self.impairments.reorder) {
            at += self.impairments.reorder_by.as_nanos() as u64;
        }
        if self.happens(self.impairments.duplicate) {
            self.counts.duplicated += 1;
            self.push(bytes.clone(), at);
        }
        self.push(bytes, at);
    }

    /// A frame that has arrived by `now`; `None` if there is none.
    pub fn poll(&mut self, now: u64) -> Option<Vec<u8>> {
        if self.next_departure()? > now {
            return None;
        }
        self.counts.delivered += 1;
        self.on_the_way.pop().map(|Reverse(frame)| frame.bytes)
    }

    /// When the next frame arrives, in ns; `None` without frames.
    pub fn next_departure(&self) -> Option<u64> {
        self.on_the_way.peek().map(|Reverse(frame)| frame.at)
    }

    /// What happened so far.
    pub fn counts(&self) -> WireCounts {
        self.counts
    }

    /// When a frame that comes now has been sent at the rate; `None` if the queue is full.
    fn queue(&mut self, bytes: u64, now: u64) -> Option<u64> {
        let Some(rate) = self.impairments.rate else {
            return Some(now);
        };
        let waiting = u128::from(self.free_at.saturating_sub(now)) * u128::from(rate) / NS_BITS;
        if waiting > self.impairments.queue as u128 {
            return None;
        }
        let time = u128::from(bytes) * NS_BITS / u128::from(rate.max(1));
        self.free_at = self.free_at.max(now) + time as u64;
        Some(self.free_at)
    }

    fn is_lost(&mut self) -> bool {
        if let Some(LossBursts { begin, end }) = self.impairments.bursts {
            let changes = if self.in_burst { end } else { begin };
            self.in_burst ^= self.happens(changes);
        }
        self.happens(self.impairments.loss) || self.in_burst
    }

    /// Draws a number in any case, so that one probability does not change the other events.
    fn happens(&mut self, probability: f64) -> bool {
        let drawn = (self.random.draw() >> 11) as f64 / (1_u64 << 53) as f64;
        drawn < probability
    }

    fn push(&mut self, bytes: Vec<u8>, at: u64) {
        let number = self.number;
        self.number += 1;
        self.on_the_way.push(Reverse(Frame { at, number, bytes }));
    }
}

/// Bytes of the Ethernet header. Its addresses are never damaged: a real receiver would not see
/// such a frame at all.
const ETHERNET: usize = 14;
/// A time in ns times a rate in bit/s, for each byte.
const NS_BITS: u128 = 8_000_000_000;

#[cfg(test)]
mod tests;

//! Random numbers that are the same on every machine: SplitMix64 (Steele, Lea, Flood: *Fast
//! splittable pseudorandom number generators*, OOPSLA 2014). The generator is implemented here
//! because those of libraries may change, and the results of simulations with them. A seed comes
//! in, and a stream of numbers goes out; no call fails. Exponentially distributed times also depend
//! on the machine's natural logarithm, which may differ in the last bit.

/// A stream of random numbers that a seed determines.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number, uniform over all 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from a range, ends included. If the width of the range is no power of two, the
    /// distribution deviates from uniform by less than one part in 2^64 / width.
    pub fn within(&mut self, range: core::ops::RangeInclusive<u64>) -> u64 {
        let (low, high) = range.into_inner();
        match high.saturating_sub(low).checked_add(1) {
            Some(width) => low + ((u128::from(self.draw()) * u128::from(width)) >> 64) as u64,
            None => self.draw(),
        }
    }

    /// A number from 0 to below `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.within(0..=bound.saturating_sub(1))
    }

    /// An exponentially distributed time with this mean, in the unit of the mean.
    pub(crate) fn exponential(&mut self, mean: u64) -> u64 {
        // In (0, 1], with 53 bits.
        let even = ((self.draw() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        (-even.ln() * mean as f64) as u64
    }

    /// Another stream, whose seed is the next number of this one.
    pub fn split(&mut self) -> Random {
        Random(self.draw())
    }
}

//! The bucket of a key: its ring, its width, and the rounding of the key.

/// A bucket of a ring, and the bucket's key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::sched) struct Spot {
    /// The rounded key; for times, when the bucket falls due.
    pub(in crate::sched) key: u64,
    /// Ring and bucket.
    pub(super) slot: u32,
}

impl Spot {
    #[inline(always)]
    pub(super) fn ring(self) -> usize {
        self.slot() / BUCKETS
    }

    #[inline(always)]
    pub(super) fn slot(self) -> usize {
        self.slot as usize % (RINGS * BUCKETS)
    }
}

/// Width, rounding and ring for keys at a distance: bits 0 to 5 are the binary logarithm of a
/// bucket's width, bits 6 to 11 that of the rounding, bits 14 to 16 the ring.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape<const QUANTUM: u32>(u32);

impl<const QUANTUM: u32> Shape<QUANTUM> {
    /// Shapes by the binary logarithm of the distance. For a distance that is too long the rounding
    /// is less than the bucket, so that no bucket fits it.
    pub(super) const OF: [Shape<QUANTUM>; 64] = {
        let mut shapes = [Shape(63); 64];
        let mut log = 0;
        while log < QUANTUM + LONGEST {
            let bits = (log + 1).saturating_sub(QUANTUM);
            let ring = bits.saturating_sub(SPAN).div_ceil(STEP);
            let digits = bits.saturating_sub(DIGITS + 1) + QUANTUM;
            shapes[log as usize] = Shape((QUANTUM + STEP * ring) | (digits << 6) | (ring << 14));
            log += 1;
        }
        shapes
    };

    /// Keys that are rounded to a ring's buckets.
    #[inline(always)]
    pub(super) const fn of_ring(ring: usize) -> Shape<QUANTUM> {
        let shift = QUANTUM + STEP * ring as u32;
        Shape(shift | shift << 6 | (ring as u32) << 14)
    }

    /// Binary logarithm of a bucket's width.
    #[inline(always)]
    pub(super) fn shift(self) -> u32 {
        self.0 % 64
    }

    /// Binary logarithm of the rounding of keys.
    #[inline(always)]
    pub(super) fn digits(self) -> u32 {
        self.0 / 64 % 64
    }

    /// The bucket of a key that is rounded already.
    #[inline(always)]
    pub(super) fn spot(self, key: u64) -> Spot {
        let bucket = (key >> self.shift()) as u32 % BUCKETS as u32;
        let slot = bucket | self.0 & ((RINGS - 1) * BUCKETS) as u32;
        Spot { key, slot }
    }
}

pub(super) const RINGS: usize = 8;
pub(super) const BUCKETS: usize = 1 << 14;
pub(super) const WORDS: usize = BUCKETS / 64;
pub(super) const GROUPS: usize = WORDS / 64;

/// The bits of the first ring in `groups`.
pub(super) const RING: u32 = (1 << GROUPS) - 1;

/// Binary logarithm of the number of buckets that a ring uses ahead of now. It is half of them, so
/// that overdue keys and far keys do not meet.
pub(super) const SPAN: u32 = 13;

/// Binary logarithm of the ratio of widths between neighbouring rings. With `SPAN` it leaves every
/// distance at least ten binary digits.
const STEP: u32 = 3;

/// Binary logarithm of the shortest distance, in quanta, that is too long for every ring.
pub(super) const LONGEST: u32 = SPAN + STEP * (RINGS as u32 - 1);

/// Number of binary digits to which a distance is rounded.
const DIGITS: u32 = 10;

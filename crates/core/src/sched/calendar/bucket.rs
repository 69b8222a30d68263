//! Computes the bucket of a calendar for a key (a time, or a start tag). [`super`] describes the
//! levels.
//!
//! The distance of the key from now gives a [`Shape`]: the level, the width of its buckets, and the
//! unit to which the key is rounded. The caller rounds the key; [`Shape::bucket`] takes the rounded
//! key and returns its [`BucketRef`]. No function fails.

/// A bucket, and the rounded key of the entries in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::sched) struct BucketRef {
    /// The rounded key. If keys are times, the bucket falls due at this time.
    pub(in crate::sched) key: u64,
    /// The index of the bucket in its level (bits 0 to 13), and the level (bits 14 to 16).
    pub(super) slot: u32,
}

impl BucketRef {
    /// The level of the bucket, 0 to 7.
    #[inline(always)]
    pub(super) fn level(self) -> usize {
        self.slot() / BUCKETS
    }

    /// The number of the bucket among the buckets of all levels.
    #[inline(always)]
    pub(super) fn slot(self) -> usize {
        self.slot as usize % (LEVELS * BUCKETS)
    }
}

/// Bucket width, rounding unit and level for keys at one distance from now. Bits 0 to 5 are the
/// binary logarithm of a bucket's width, bits 6 to 11 that of the rounding unit, bits 14 to 16 the
/// level.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape<const QUANTUM: u32>(u32);

impl<const QUANTUM: u32> Shape<QUANTUM> {
    /// The shape for each binary logarithm of the distance. For a distance beyond all levels the
    /// rounding unit is smaller than the bucket, so that no bucket fits the key.
    pub(super) const OF: [Shape<QUANTUM>; 64] = {
        let mut shapes = [Shape(63); 64];
        let mut log = 0;
        while log < QUANTUM + LONGEST {
            let bits = (log + 1).saturating_sub(QUANTUM);
            let level = bits.saturating_sub(SPAN).div_ceil(STEP);
            let digits = bits.saturating_sub(DIGITS + 1) + QUANTUM;
            shapes[log as usize] = Shape((QUANTUM + STEP * level) | (digits << 6) | (level << 14));
            log += 1;
        }
        shapes
    };

    /// The shape of keys that are rounded to the bucket width of a level.
    #[inline(always)]
    pub(super) const fn of_level(level: usize) -> Shape<QUANTUM> {
        let shift = QUANTUM + STEP * level as u32;
        Shape(shift | shift << 6 | (level as u32) << 14)
    }

    /// Binary logarithm of a bucket's width.
    #[inline(always)]
    pub(super) fn shift(self) -> u32 {
        self.0 % 64
    }

    /// Binary logarithm of the unit to which keys are rounded.
    #[inline(always)]
    pub(super) fn digits(self) -> u32 {
        self.0 / 64 % 64
    }

    /// The bucket of a key that is rounded already.
    #[inline(always)]
    pub(super) fn bucket(self, key: u64) -> BucketRef {
        let index = (key >> self.shift()) as u32 % BUCKETS as u32;
        let slot = index | self.0 & ((LEVELS - 1) * BUCKETS) as u32;
        BucketRef { key, slot }
    }
}

/// Number of levels of a calendar.
pub(super) const LEVELS: usize = 8;
/// Number of buckets of a level.
pub(super) const BUCKETS: usize = 1 << 14;
/// Number of 64-bit words with one bit for each bucket of a level.
pub(super) const WORDS: usize = BUCKETS / 64;
/// Number of 64-bit words with one bit for each of these words.
pub(super) const GROUPS: usize = WORDS / 64;

/// The bits of the first level in `groups`.
pub(super) const LEVEL_MASK: u32 = (1 << GROUPS) - 1;

/// Binary logarithm of the number of buckets that a level uses ahead of now. It is half of them, so
/// that overdue keys and far keys do not meet.
pub(super) const SPAN: u32 = 13;

/// Binary logarithm of the ratio of widths between neighbouring levels. With `SPAN` it leaves every
/// distance at least ten binary digits.
const STEP: u32 = 3;

/// Binary logarithm of the shortest distance, in quanta, that is too long for every level.
pub(super) const LONGEST: u32 = SPAN + STEP * (LEVELS as u32 - 1);

/// A distance is at least 2^DIGITS times its rounding unit, unless the unit is one quantum.
const DIGITS: u32 = 10;

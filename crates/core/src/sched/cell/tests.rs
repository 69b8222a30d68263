//! Compares the cell shaper with the rule of the paper CELL in exact fractions.

use netnice_cases::cases;
use proptest::prelude::*;

use super::*;
use crate::contract::Sustained;
use crate::units::{Bytes, Nanos, Rate};

/// Time as a fraction of nanoseconds with one denominator: PCR times SCR.
struct Naive {
    pcr: i128,
    scr: i128,
    cdvt: i128,
    mbs: i128,
    dual: bool,
    peak: i128,
    bucket: i128,
    refill: bool,
}

const SECOND: i128 = 1_000_000_000;

impl Naive {
    fn unit(&self) -> i128 {
        self.pcr * self.scr
    }

    fn wake(&mut self, now: i128) {
        self.peak = self.peak.max(now * self.unit());
        self.bucket = self.bucket.max(now * self.unit());
    }

    /// The time at which the bucket has enough for a packet.
    fn enough(&self, length: i128) -> i128 {
        // BT = (MBS - length) (1/SCR - 1/PCR).
        let tolerance = (self.mbs - length) * 8 * SECOND * (self.pcr - self.scr);
        self.bucket - tolerance
    }

    fn eligible(&mut self, length: i128) -> i128 {
        let enough = self.enough(length);
        // A bucket that lacks less than 100 ns of its next packet counts as having enough.
        self.refill = self.dual && (self.refill || enough > self.peak + 100 * self.unit());
        self.peak
            .max(if self.refill { self.bucket } else { enough })
    }

    /// A packet that was eligible at `eligible` left at `at`, in the same unit.
    fn sent(&mut self, eligible: i128, at: i128, length: i128) {
        let (at, cdvt) = (at * self.unit(), self.cdvt * self.unit());
        let since = if at < eligible + cdvt { eligible } else { at };
        self.peak = self.peak.max(since) + length * 8 * SECOND * self.scr;
        self.bucket = self.bucket.max(since) + length * 8 * SECOND * self.pcr;
        self.refill = false;
    }
}

proptest! {
    #![proptest_config(cases(256))]

    /// No packet is early. It is late by no more than the roundings: a nanosecond for the result,
    /// and 2^-16 ns for each packet.
    #[test]
    fn the_shaper_follows_the_papers_rule(
        pcr in 1_000_000_u64..10_000_000_000,
        percent in 1_u64..=100,
        mbs in 1500_u64..100_000,
        cdvt in 0_u64..1_000_000,
        dual in any::<bool>(),
        steps in prop::collection::vec((64_u32..1500, 0_u64..3, 0_u64..500_000), 1..200),
    ) {
        let rate = Rate::new(pcr).unwrap();
        let scr = rate.portion(percent, 100).unwrap();
        let bucket = if dual { Bucket::Dual } else { Bucket::Single };
        let sustained = Sustained { scr, mbs: Bytes(mbs), bucket };
        let contract = contract::Cell::new(rate, Nanos(cdvt), Some(sustained)).unwrap();
        let mut ours = CellState::new(&contract);
        let mut naive = Naive {
            pcr: i128::from(pcr),
            scr: i128::from(scr.bits_per_second()),
            cdvt: i128::from(cdvt),
            mbs: i128::from(mbs),
            dual,
            peak: 0,
            bucket: 0,
            refill: false,
        };
        let mut now = 0_u64;
        for (length, verb, amount) in steps {
            if verb == 0 {
                // Silence: the queue was empty.
                now += amount;
                ours.wake(now);
                naive.wake(i128::from(now));
            }
            // If rounding decides whether the bucket lacks something, the two may differ.
            let lacks = naive.enough(i128::from(length)) - naive.peak - 100 * naive.unit();
            prop_assume!(lacks.abs() > naive.unit() * 3);
            let (eligible, deadline) = ours.plan(length);
            let exact = naive.eligible(i128::from(length));
            prop_assert_eq!(ours.refill, naive.refill);
            let unit = naive.unit();
            prop_assert!(
                i128::from(eligible) * unit >= exact,
                "{} before {}",
                eligible,
                exact / unit,
            );
            prop_assert!(
                (i128::from(eligible) - 3) * unit <= exact,
                "{} for {}",
                eligible,
                exact / unit,
            );
            prop_assert_eq!(deadline, eligible + cdvt);
            // Contention makes it late, within CDVT or beyond.
            let late = if verb == 1 { amount / 10 } else { 0 };
            let at = now.max(eligible) + late;
            // If rounding decides whether it is beyond, the two may differ.
            let beyond = (i128::from(at) - i128::from(cdvt)) * unit - exact;
            prop_assume!(beyond.abs() > unit * 4);
            now = at;
            ours.sent(at, length);
            naive.sent(exact, i128::from(at), i128::from(length));
        }
    }
}

use netnice_cases::cases;
use proptest::prelude::*;

use super::*;

#[test]
fn adjacent_gaps_are_joined() {
    let mut gaps = Gaps::new(4096, 40_960);
    let taken: Vec<u64> = (0..5).map(|_| gaps.take(8192).unwrap()).collect();
    assert_eq!(taken, [4096, 12_288, 20_480, 28_672, 36_864]);
    assert_eq!(gaps.take(4096), None);
    gaps.give(taken[1], 8192);
    gaps.give(taken[3], 8192);
    assert_eq!(
        gaps.refusal(16_384).to_string(),
        "no room for a region of 16384 bytes: of 40960 bytes 16384 are free, the largest gap has 8192"
    );
    gaps.give(taken[2], 8192);
    assert_eq!(gaps.take(24_576), Some(12_288));
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn taken_runs_never_overlap_and_no_byte_is_lost(
        moves in prop::collection::vec((any::<bool>(), 1u64..9), 1..100),
    ) {
        let mut gaps = Gaps::new(1, 64);
        let mut taken: Vec<(u64, u64)> = Vec::new();
        for (take, number) in moves {
            if take {
                if let Some(at) = gaps.take(number) {
                    prop_assert!(at >= 1 && at + number <= 65);
                    let apart = |(from, bytes): &(u64, u64)| {
                        at + number <= *from || from + bytes <= at
                    };
                    prop_assert!(taken.iter().all(apart));
                    taken.push((at, number));
                }
            } else if !taken.is_empty() {
                let (at, bytes) = taken.swap_remove(number as usize % taken.len());
                gaps.give(at, bytes);
            }
        }
        for (at, bytes) in taken {
            gaps.give(at, bytes);
        }
        prop_assert_eq!(&gaps.runs, &vec![Run { at: 1, bytes: 64 }]);
    }
}

use netnice_cases::cases;
use proptest::prelude::*;

use super::*;

#[test]
fn a_frame_is_taken_once_and_given_back_once() {
    let mut pool = Pool::new(3, 2048);
    assert_eq!(pool.take(), Some(0));
    assert_eq!(pool.take(), Some(2048));
    let balance = |in_use, free| Balance {
        in_use,
        free,
        total: 3,
    };
    assert_eq!(pool.balance(), balance(2, 1));
    // Any address inside a frame names it: receive rings return such addresses.
    assert_eq!(pool.give(2048 + 256), Ok(()));
    assert_eq!(pool.give(2048), Err(PoolError::NotInUse { address: 2048 }));
    assert_eq!(
        pool.give(6144),
        Err(PoolError::OutsidePool {
            address: 6144,
            bytes: 6144
        })
    );
    assert_eq!(
        pool.give(u64::MAX).unwrap_err().to_string(),
        "address 0xffffffffffffffff is outside the pool of 6144 bytes"
    );
    assert_eq!(pool.balance(), balance(1, 2));
    // The frame that is still in the cache.
    assert_eq!(pool.take(), Some(2048));
    assert_eq!(pool.take(), Some(4096));
    assert_eq!(pool.take(), None);
    pool.invariants();
}

proptest! {
    #![proptest_config(cases(200))]

    /// Compares the pool with a list of the frames that are in use.
    #[test]
    fn in_use_plus_free_is_always_the_total(
        frames in 1u32..200,
        moves in prop::collection::vec((any::<bool>(), any::<u64>()), 0..400),
    ) {
        let mut pool = Pool::new(frames, 64);
        let mut in_use_frames: Vec<u64> = Vec::new();
        for (take, number) in moves {
            if take {
                let frame = pool.take();
                prop_assert_eq!(frame.is_some(), in_use_frames.len() < frames as usize);
                prop_assert!(frame.is_none_or(|frame| !in_use_frames.contains(&frame)));
                in_use_frames.extend(frame);
            } else {
                let address = number % (64 * 250);
                let held = in_use_frames.iter().position(|frame| frame / 64 == address / 64);
                prop_assert_eq!(pool.give(address).is_ok(), held.is_some());
                if let Some(held) = held {
                    in_use_frames.swap_remove(held);
                }
            }
            let Balance { in_use, free, total } = pool.balance();
            prop_assert_eq!((in_use as usize, in_use + free), (in_use_frames.len(), total));
        }
        pool.invariants();
    }
}

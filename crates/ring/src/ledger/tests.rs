use netnice_cases::cases;
use proptest::prelude::*;

use super::*;

#[test]
fn a_frame_goes_out_once_and_comes_back_once() {
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
    assert_eq!(pool.give(2048), Err(PoolError::NotOut { address: 2048 }));
    assert_eq!(
        pool.give(6144),
        Err(PoolError::Foreign {
            address: 6144,
            bytes: 6144
        })
    );
    assert_eq!(
        pool.give(u64::MAX).unwrap_err().to_string(),
        "address 0xffffffffffffffff is in no frame: they have 6144 bytes together"
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

    /// Compares the pool with a list of the frames that are out.
    #[test]
    fn in_use_and_free_are_the_total(
        frames in 1u32..200,
        moves in prop::collection::vec((any::<bool>(), any::<u64>()), 0..400),
    ) {
        let mut pool = Pool::new(frames, 64);
        let mut out: Vec<u64> = Vec::new();
        for (take, number) in moves {
            if take {
                let frame = pool.take();
                prop_assert_eq!(frame.is_some(), out.len() < frames as usize);
                prop_assert!(frame.is_none_or(|frame| !out.contains(&frame)));
                out.extend(frame);
            } else {
                let address = number % (64 * 250);
                let held = out.iter().position(|frame| frame / 64 == address / 64);
                prop_assert_eq!(pool.give(address).is_ok(), held.is_some());
                if let Some(held) = held {
                    out.swap_remove(held);
                }
            }
            let Balance { in_use, free, total } = pool.balance();
            prop_assert_eq!((in_use as usize, in_use + free), (out.len(), total));
        }
        pool.invariants();
    }
}

use netnice_cases::cases;
use proptest::prelude::*;

use super::*;

#[test]
fn a_frame_moves_only_from_its_present_holder() {
    let mut frames = Frames::new(2, 2048);
    let one = frames.take().unwrap();
    let unexpected = |address, expected| Err(UnexpectedFrame { address, expected });
    let transfer = Frames::transfer;
    assert_eq!(
        transfer(&mut frames, one, Holder::Sending, Holder::Free),
        unexpected(one, Holder::Sending)
    );
    assert_eq!(
        transfer(&mut frames, one + 5, Holder::Driver, Holder::Sending),
        Ok(one)
    );
    assert_eq!(
        transfer(&mut frames, one, Holder::Driver, Holder::Free),
        unexpected(one, Holder::Driver)
    );
    assert_eq!(
        transfer(&mut frames, 4096, Holder::Sending, Holder::Free),
        unexpected(4096, Holder::Sending)
    );
    assert_eq!(
        transfer(&mut frames, one, Holder::Sending, Holder::Free),
        Ok(one)
    );
    assert_eq!(
        transfer(&mut frames, one, Holder::Free, Holder::Driver),
        unexpected(one, Holder::Free)
    );
    frames.invariants();
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn counts_of_holders_equal_those_of_a_naive_model(
        steps in prop::collection::vec(
            (any::<bool>(), 0..20_000_u64, 0..4_u8, 0..4_u8), 0..200),
    ) {
        let mut frames = Frames::new(8, 2048);
        let holders = [Holder::Free, Holder::Driver, Holder::Filling, Holder::Sending];
        let mut naive = [Holder::Free; 8];
        for (take, address, from, to) in steps {
            let (from, to) = (holders[usize::from(from)], holders[usize::from(to)]);
            if take {
                let taken = frames.take();
                prop_assert_eq!(taken.is_some(), naive.contains(&Holder::Free));
                if let Some(address) = taken {
                    naive[address as usize / 2048] = Holder::Driver;
                }
            } else {
                let place = address as usize / 2048;
                let right = from != Holder::Free && naive.get(place) == Some(&from);
                prop_assert_eq!(frames.transfer(address, from, to).is_ok(), right);
                if right {
                    naive[place] = to;
                }
            }
            frames.invariants();
            for holder in holders {
                let count = naive.iter().filter(|one| **one == holder).count();
                prop_assert_eq!(frames.count(holder) as usize, count);
            }
        }
    }
}

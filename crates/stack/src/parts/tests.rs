use netnice_cases::cases;
use proptest::prelude::*;

use super::*;

fn part(id: u32, offset: usize, more: bool) -> Part {
    let of = Name {
        from: "10.78.0.1".parse().unwrap(),
        to: "10.78.0.2".parse().unwrap(),
        id,
    };
    Part {
        of,
        offset: offset as u32,
        more,
        bytes: 0..0,
    }
}

/// Bytes of a datagram whose values depend on their position.
fn bytes(from: usize, to: usize) -> Vec<u8> {
    (from..to).map(|at| at as u8 ^ (at >> 8) as u8).collect()
}

#[test]
fn parts_in_order_and_out_of_it() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [2, 0, 1]] {
        let mut parts = Parts::default();
        let mut whole = None;
        for (count, which) in order.into_iter().enumerate() {
            let (from, to) = [(0, 16), (16, 24), (24, 27)][which];
            whole = parts.add(&part(7, from, which < 2), &bytes(from, to), 1);
            assert_eq!(whole.is_some(), count == 2);
        }
        assert_eq!(whole.unwrap(), bytes(0, 27));
        assert!(parts.open.is_empty());
    }
}

#[test]
fn what_contradicts_itself_is_given_up() {
    // Each tuple is a second fragment of a datagram whose bytes 8 to 16 have arrived.
    for (from, to, more) in [
        (0, 9, true),
        (0, 16, true),
        (12, 20, false),
        (8, 24, true),
        (8, 12, false),
        (65_528, 65_552, true),
        (24, 24, true),
        (0, 8, false),
    ] {
        let mut parts = Parts::default();
        assert!(parts.add(&part(1, 8, true), &bytes(8, 16), 1).is_none());
        assert!(
            parts
                .add(&part(1, from, more), &bytes(from, to), 1)
                .is_none()
        );
        assert_eq!(parts.given_up(), 2, "{from} to {to}");
        assert!(parts.open.is_empty());
    }
    // A duplicate fragment counts once.
    let mut parts = Parts::default();
    for _ in 0..2 {
        assert!(parts.add(&part(1, 8, true), &bytes(8, 16), 1).is_none());
    }
    assert!(parts.add(&part(1, 16, false), &bytes(16, 17), 1).is_none());
    let whole = parts.add(&part(1, 0, true), &bytes(0, 8), 1);
    assert_eq!(whole.unwrap(), bytes(0, 17));
}

#[test]
fn what_does_not_become_whole_makes_room() {
    let mut parts = Parts::default();
    for id in 0..100 {
        assert!(parts.add(&part(id, 0, true), &bytes(0, 8), 1).is_none());
    }
    assert_eq!(
        (parts.open.len(), parts.given_up()),
        (OPEN, 100 - OPEN as u64)
    );
    // The newest datagram can still become complete.
    assert!(parts.add(&part(99, 8, false), &bytes(8, 9), 2).is_some());
    // The older datagrams have expired.
    let late = 2 + LIFETIME;
    assert!(parts.add(&part(98, 8, false), &bytes(8, 9), late).is_none());
    assert_eq!((parts.open.len(), parts.given_up()), (1, 99));
}

proptest! {
    /// A datagram arrives unchanged in any order and with any cut, with duplicates and with
    /// fragments of other datagrams.
    #[test]
    fn any_cut_in_any_order(
        length in 1usize..3000,
        cuts in prop::collection::vec(1usize..60, 1..30),
        keys in prop::collection::vec(any::<u32>(), 32),
        copies in any::<u32>(),
    ) {
        let mut ends: Vec<usize> = Vec::new();
        let mut at = 0;
        for cut in cuts {
            at += cut * 8;
            if at < length {
                ends.push(at);
            }
        }
        ends.push(length);
        let mut all: Vec<(u32, usize, usize)> = Vec::new();
        let mut from = 0;
        for (index, to) in ends.into_iter().enumerate() {
            all.push((keys[index], from, to));
            from = to;
        }
        all.sort_unstable();
        let mut parts = Parts::default();
        let mut whole = None;
        for (index, (_, from, to)) in all.iter().enumerate() {
            prop_assert!(whole.is_none());
            let other = parts.add(&part(2, 8 * index, true), &[1; 8], 1);
            prop_assert!(other.is_none());
            let last = *to == length;
            if copies >> index & 1 == 1 && index + 1 < all.len() {
                let copy = parts.add(&part(1, *from, !last), &bytes(*from, *to), 1);
                prop_assert!(copy.is_none());
            }
            whole = parts.add(&part(1, *from, !last), &bytes(*from, *to), 1);
        }
        prop_assert_eq!(whole.unwrap(), bytes(0, length));
    }
}

proptest! {
    // Each case takes megabytes.
    #![proptest_config(cases(16))]

    /// No fragment causes a panic or exceeds the memory limits.
    #[test]
    fn any_parts_at_all(
        all in prop::collection::vec((0u32..40, 0u32..65_536, any::<bool>(), 0usize..3000), 0..200),
    ) {
        let mut parts = Parts::default();
        for (now, (id, offset, more, length)) in all.into_iter().enumerate() {
            let part = Part { offset: offset & !7, ..part(id, 0, more) };
            let whole = parts.add(&part, &vec![0; length], now as u64);
            prop_assert!(whole.is_none_or(|whole| whole.len() <= LONGEST));
            prop_assert!(parts.open.len() <= OPEN);
            prop_assert!(parts.open.iter().all(|open| open.bytes.len() <= LONGEST));
        }
    }
}

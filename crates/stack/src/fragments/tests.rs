use netnice_cases::cases;
use proptest::prelude::*;

use super::*;

fn fragment(id: u32, offset: usize, more: bool) -> Fragment {
    let key = FragmentKey {
        from: "10.78.0.1".parse().unwrap(),
        to: "10.78.0.2".parse().unwrap(),
        id,
    };
    Fragment {
        key,
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
fn fragments_in_any_order_make_the_datagram() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [2, 0, 1]] {
        let mut reassembly = Reassembly::default();
        let mut whole = None;
        for (count, which) in order.into_iter().enumerate() {
            let (from, to) = [(0, 16), (16, 24), (24, 27)][which];
            whole = reassembly.add(&fragment(7, from, which < 2), &bytes(from, to), 1);
            assert_eq!(whole.is_some(), count == 2);
        }
        assert_eq!(whole.unwrap(), bytes(0, 27));
        assert!(reassembly.incomplete.is_empty());
    }
}

#[test]
fn fragments_that_contradict_each_other_are_discarded() {
    // Each tuple is a second fragment of a datagram whose bytes 8 to 16 have arrived.
    for (from, to, more) in [
        (0, 16, true),
        (12, 20, false),
        (8, 24, true),
        (8, 12, false),
        (8, 16, false),
        (0, 8, false),
    ] {
        let mut reassembly = Reassembly::default();
        assert!(
            reassembly
                .add(&fragment(1, 8, true), &bytes(8, 16), 1)
                .is_none()
        );
        assert!(
            reassembly
                .add(&fragment(1, from, more), &bytes(from, to), 1)
                .is_none()
        );
        assert_eq!(reassembly.discarded(), 2, "{from} to {to}");
        assert!(reassembly.incomplete.is_empty());
    }
    // A duplicate fragment counts once.
    let mut reassembly = Reassembly::default();
    for _ in 0..2 {
        assert!(
            reassembly
                .add(&fragment(1, 8, true), &bytes(8, 16), 1)
                .is_none()
        );
    }
    assert!(
        reassembly
            .add(&fragment(1, 16, false), &bytes(16, 17), 1)
            .is_none()
    );
    let whole = reassembly.add(&fragment(1, 0, true), &bytes(0, 8), 1);
    assert_eq!(whole.unwrap(), bytes(0, 17));
}

/// A copy with other bytes overlaps. Otherwise a sender could choose which one a program reads.
#[test]
fn a_copy_with_other_bytes_is_no_duplicate() {
    let mut reassembly = Reassembly::default();
    let part = fragment(1, 8, true);
    assert!(reassembly.add(&part, &bytes(8, 16), 1).is_none());
    assert!(reassembly.add(&part, &bytes(16, 24), 1).is_none());
    assert_eq!(reassembly.discarded(), 2);
    assert!(reassembly.incomplete.is_empty());
}

#[test]
fn a_second_end_of_the_datagram_is_a_contradiction() {
    // The last fragment, and then another last one, or the same one with more to follow.
    for (from, to, more) in [(16, 24, false), (16, 24, true), (8, 16, true)] {
        let mut reassembly = Reassembly::default();
        let last = fragment(1, 8, false);
        assert!(reassembly.add(&last, &bytes(8, 16), 1).is_none());
        let other = reassembly.add(&fragment(1, from, more), &bytes(from, to), 1);
        assert!(other.is_none());
        assert_eq!(reassembly.discarded(), 2, "{from} to {to}");
        assert!(reassembly.incomplete.is_empty());
    }
}

/// RFC 8200, section 4.5, discards "that fragment".
#[test]
fn a_malformed_fragment_is_discarded_alone() {
    for (from, to, more) in [
        (0, 7, true),
        (24, 24, true),
        (24, 24, false),
        (65_528, 65_552, true),
        // Without the header, 65,515 bytes are the most in IPv4.
        (65_512, 65_516, false),
    ] {
        let mut reassembly = Reassembly::default();
        let last = fragment(1, 8, false);
        assert!(reassembly.add(&last, &bytes(8, 16), 1).is_none());
        // One of the same datagram, and one of a datagram of which nothing else has arrived.
        for id in [1, 2] {
            let malformed = reassembly.add(&fragment(id, from, more), &bytes(from, to), 1);
            assert!(malformed.is_none());
        }
        assert_eq!(reassembly.discarded(), 2, "{from} to {to}");
        let whole = reassembly.add(&fragment(1, 0, true), &bytes(0, 8), 1);
        assert_eq!(whole.unwrap(), bytes(0, 16));
        assert!(reassembly.incomplete.is_empty());
    }
}

#[test]
fn the_oldest_and_expired_incomplete_datagrams_are_discarded() {
    let mut reassembly = Reassembly::default();
    for id in 0..100 {
        assert!(
            reassembly
                .add(&fragment(id, 0, true), &bytes(0, 8), 1)
                .is_none()
        );
    }
    assert_eq!(
        (reassembly.incomplete.len(), reassembly.discarded()),
        (MAX_INCOMPLETE, 100 - MAX_INCOMPLETE as u64)
    );
    // The newest datagram can still become complete.
    assert!(
        reassembly
            .add(&fragment(99, 8, false), &bytes(8, 9), 2)
            .is_some()
    );
    // The older datagrams have expired.
    let late = 2 + LIFETIME;
    assert!(
        reassembly
            .add(&fragment(98, 8, false), &bytes(8, 9), late)
            .is_none()
    );
    assert_eq!(
        (reassembly.incomplete.len(), reassembly.discarded()),
        (1, 99)
    );
}

proptest! {
    /// A datagram arrives unchanged in any order and with any cut, with duplicates and with
    /// fragments of other datagrams.
    #[test]
    fn any_fragmentation_in_any_order_makes_the_datagram(
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
        let mut reassembly = Reassembly::default();
        let mut whole = None;
        for (index, (_, from, to)) in all.iter().enumerate() {
            prop_assert!(whole.is_none());
            let other = reassembly.add(&fragment(2, 8 * index, true), &[1; 8], 1);
            prop_assert!(other.is_none());
            let last = *to == length;
            if copies >> index & 1 == 1 && index + 1 < all.len() {
                let copy = reassembly.add(&fragment(1, *from, !last), &bytes(*from, *to), 1);
                prop_assert!(copy.is_none());
            }
            whole = reassembly.add(&fragment(1, *from, !last), &bytes(*from, *to), 1);
        }
        prop_assert_eq!(whole.unwrap(), bytes(0, length));
    }
}

proptest! {
    // Each case takes megabytes.
    #![proptest_config(cases(16))]

    /// No fragment causes a panic or exceeds the memory limits.
    #[test]
    fn any_fragments_keep_the_memory_limits(
        all in prop::collection::vec((0u32..40, 0u32..65_536, any::<bool>(), 0usize..3000), 0..200),
    ) {
        let mut reassembly = Reassembly::default();
        for (now, (id, offset, more, length)) in all.into_iter().enumerate() {
            let fragment = Fragment { offset: offset & !7, ..fragment(id, 0, more) };
            let whole = reassembly.add(&fragment, &vec![0; length], now as u64);
            prop_assert!(whole.is_none_or(|whole| whole.len() <= MAX_DATAGRAM));
            prop_assert!(reassembly.incomplete.len() <= MAX_INCOMPLETE);
            let mut kept = reassembly.incomplete.iter();
            prop_assert!(kept.all(|datagram| datagram.bytes.len() <= MAX_DATAGRAM));
        }
    }
}

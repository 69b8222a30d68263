use netnice_cases::cases;
use proptest::prelude::*;

use super::*;

fn term(offset: u16, width: u8, mask: u64, value: u64) -> Term {
    Term {
        offset,
        width,
        mask,
        value,
    }
}

/// The definition, bit by bit.
fn fits(terms: &[Term], bytes: &[u8]) -> bool {
    terms.iter().all(|term| {
        let begin = usize::from(term.offset);
        let Some(window) = bytes.get(begin..begin + usize::from(term.width)) else {
            // Bytes whose bits are not compared may be missing.
            return (0..term.width).all(|k| {
                let shift = 8 * (term.width - 1 - k);
                let (mask, value) = ((term.mask >> shift) as u8, (term.value >> shift) as u8);
                match bytes.get(begin + usize::from(k)) {
                    Some(byte) => byte & mask == value,
                    None => mask == 0,
                }
            });
        };
        let number = window
            .iter()
            .fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
        number & term.mask == term.value
    })
}

#[test]
fn an_invalid_description_is_refused_with_its_reason() {
    let bad = |terms: &[Term]| Pattern::new(terms).unwrap_err();
    assert_eq!(bad(&[term(0, 3, 0, 0)]), BadPattern::Width(3));
    assert_eq!(bad(&[term(121, 8, 1, 1)]), BadPattern::Reach { end: 129 });
    let value = |mask, value| BadPattern::Value {
        value,
        mask,
        width: 1,
    };
    assert_eq!(bad(&[term(0, 1, 0x1ff, 1)]), value(0x1ff, 1));
    assert_eq!(bad(&[term(0, 1, 0xf0, 1)]), value(0xf0, 1));
    let two = [term(0, 2, 0xffff, 0x0800), term(1, 1, 0xff, 1)];
    assert_eq!(bad(&two), BadPattern::Contradiction(1));
    let far: Vec<Term> = (0..5).map(|k| term(20 * k, 1, 1, 1)).collect();
    assert_eq!(bad(&far), BadPattern::Words(5));
    assert!(Pattern::new(&far[..4]).is_ok());
}

#[test]
fn the_pattern_with_the_most_bits_wins_in_any_order() {
    let all = Pattern::new(&[]).unwrap();
    let some = Pattern::new(&[term(0, 2, 0xffff, 0x0102)]).unwrap();
    let most = Pattern::new(&[term(0, 2, 0xffff, 0x0102), term(4, 1, 0xff, 9)]).unwrap();
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
        let mut patterns = Patterns::default();
        for k in order {
            patterns.insert([&all, &some, &most][k], k).unwrap();
        }
        assert_eq!(patterns.find(&[1, 2, 3, 4, 9]), Some(&2));
        assert_eq!(patterns.find(&[1, 2, 3, 4]), Some(&1));
        assert_eq!(patterns.find(&[1]), Some(&0));
        assert_eq!(patterns.insert(&some, 7), Err(BadPattern::Taken));
        assert_eq!(patterns.remove(&most), Some(2));
        assert_eq!(patterns.find(&[1, 2, 3, 4, 9]), Some(&1));
    }
}

#[test]
fn ten_thousand_values_of_one_shape_take_one_look_up() {
    let mut patterns = Patterns::default();
    for k in 0..10_000_u64 {
        let pattern = Pattern::new(&[term(3, 4, 0xffff_ffff, k)]).unwrap();
        patterns.insert(&pattern, k).unwrap();
    }
    assert_eq!(patterns.shapes.len(), 1);
    let mut packet = [0; 7];
    packet[3..].copy_from_slice(&7777_u32.to_be_bytes());
    assert_eq!(patterns.find(&packet), Some(&7777));
    // The most shapes, and one more.
    for k in 1..MAX_SHAPES as u64 {
        let pattern = Pattern::new(&[term(0, 2, 1 << k, 0)]).unwrap();
        patterns.insert(&pattern, k).unwrap();
    }
    let one_more = Pattern::new(&[term(9, 1, 1, 1)]).unwrap();
    assert_eq!(patterns.insert(&one_more, 0), Err(BadPattern::Shapes));
}

fn any_term() -> impl Strategy<Value = Term> {
    let width = prop::sample::select(vec![1_u8, 2, 4, 8]);
    (0..12_u16, width, any::<u64>(), any::<u64>()).prop_map(|(offset, width, mask, value)| {
        let room = u64::MAX >> (64 - 8 * width);
        // Few bits, so that some packets match.
        let mask = mask & mask.rotate_left(7) & 0x1111_1111_1111_1111 & room;
        term(offset, width, mask, value & mask)
    })
}

proptest! {
    #![proptest_config(cases(2000))]

    #[test]
    fn patterns_match_as_their_definition_says(
        descriptions in prop::collection::vec(prop::collection::vec(any_term(), 0..3), 0..8),
        packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..24), 1..20),
    ) {
        let mut patterns = Patterns::default();
        let mut inserted = Vec::new();
        for (k, terms) in descriptions.iter().enumerate() {
            let Ok(pattern) = Pattern::new(terms) else { continue };
            if patterns.insert(&pattern, k).is_ok() {
                inserted.push((k, pattern));
            }
        }
        for packet in &packets {
            let fitting = inserted.iter().filter(|(k, _)| fits(&descriptions[*k], packet));
            let best = fitting.max_by_key(|(_, pattern)| pattern.shape).map(|(k, _)| k);
            prop_assert_eq!(patterns.find(packet), best);
            for (k, pattern) in &inserted {
                prop_assert_eq!(pattern.matches(packet), fits(&descriptions[*k], packet));
            }
        }
        for (k, pattern) in &inserted {
            prop_assert_eq!(patterns.remove(pattern), Some(*k));
        }
        prop_assert!(patterns.is_empty());
    }
}

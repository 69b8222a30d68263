//! Tests of the classes of a link: what fits, against the scheduler's own factors and a naive
//! formula.

use alloc::string::ToString;

use proptest::prelude::*;

use super::*;

fn mbit(rate: u64) -> Rate {
    Rate::new(rate * 1_000_000).unwrap()
}

fn link(rate: u64) -> ServerLink {
    ServerLink {
        rate: mbit(rate),
        overhead: Bytes(0),
        shortest: Bytes(42),
    }
}

fn set(number: u8, min: Option<u64>, overbook: Option<bool>) -> ClassesChange {
    let min = min.map(|min| match min {
        0 => Setting::Clear,
        min => Setting::Set(mbit(min)),
    });
    ClassesChange {
        server: None,
        class: Some((number, ClassChange::Set { min, overbook })),
    }
}

fn remove(number: u8) -> ClassesChange {
    ClassesChange {
        server: None,
        class: Some((number, ClassChange::Remove)),
    }
}

fn server(slice: u64, period: u64) -> ClassesChange {
    let slice = Slice::new(Nanos::from_millis(slice), Nanos::from_millis(period), false);
    ClassesChange {
        server: Some(Setting::Set(slice.unwrap())),
        class: None,
    }
}

fn classes(changes: &[ClassesChange]) -> LinkClasses {
    let none = LinkClasses::default();
    let apply = |classes: LinkClasses, change| classes.apply(change).unwrap();
    changes.iter().fold(none, apply)
}

#[test]
fn the_server_is_as_large_as_the_minimums_unless_it_is_named() {
    let two = classes(&[set(0, Some(20), None), set(3, Some(10), Some(true))]);
    let slice = two.slice(&link(100)).unwrap().unwrap();
    assert_eq!((slice.slice(), slice.period()), (Nanos(6_000_000), PERIOD));
    let named = two.apply(&server(40, 100)).unwrap();
    assert_eq!(named.slice(&link(100)).unwrap(), named.named_server());
    let text = "server 40ms/100ms, class 0 min 20 Mbit/s, class 3 min 10 Mbit/s overbooked";
    assert_eq!(named.to_string(), text);
    // Without a class nothing is left of the server.
    let none = named.apply(&remove(0)).unwrap().apply(&remove(3)).unwrap();
    assert_eq!(none, LinkClasses::default());
    assert_eq!(none.slice(&link(100)), Ok(None));
}

#[test]
fn what_does_not_fit_is_named() {
    let text =
        |result: Result<_, ClassError>| result.map(|_: LinkClasses| ()).unwrap_err().to_string();
    let one = classes(&[set(2, Some(20), None)]);
    assert_eq!(
        text(one.apply(&remove(1))),
        "class 1 does not exist: the link has class 2"
    );
    assert_eq!(
        text(LinkClasses::default().apply(&server(1, 10))),
        "a server needs a class: name one with --class N"
    );
    assert_eq!(
        text(one.apply(&set(8, None, None))),
        "a link has the classes 0 (first) to 7, not 8"
    );
    let slice = |classes: &LinkClasses| classes.slice(&link(100)).unwrap_err().to_string();
    let small = one.apply(&server(1, 10)).unwrap();
    assert_eq!(
        slice(&small),
        "the minimums of the classes are 20 Mbit/s (2.5 MB/s) together, above the 10 Mbit/s (1.25 \
         MB/s) of the server (1ms/10ms)"
    );
    let large = classes(&[set(0, Some(60), None), set(1, Some(50), None)]);
    assert!(slice(&large).contains("of the link"));
    let empty = classes(&[set(0, None, None)]);
    assert_eq!(empty.slice(&link(100)), Err(ClassError::NothingToDivide));
    let mut members = [0; CLASSES];
    members[2] = 21_000_000;
    let fault = one.check_members(&members, &link(100)).unwrap_err();
    assert_eq!(
        fault.to_string(),
        "the contracts in class 2 are 21 Mbit/s (2.625 MB/s) together, above the 20 Mbit/s (2.5 \
         MB/s) that the class has beside the others, and it is not overbooked: --class 2 \
         --overbook lets its members share"
    );
    let more = one.apply(&set(2, None, Some(true))).unwrap();
    assert_eq!(more.check_members(&members, &link(100)), Ok(()));
}

/// What the wire adds to each frame is counted for frames of the smallest length.
#[test]
fn the_overhead_of_the_wire_counts() {
    let with_overhead = ServerLink {
        overhead: Bytes(42),
        ..link(100)
    };
    let one = classes(&[set(0, Some(50), None)]);
    let slice = one.slice(&with_overhead).unwrap().unwrap();
    assert_eq!(slice.slice(), PERIOD);
    let more = classes(&[set(0, Some(51), None)]);
    assert!(more.slice(&with_overhead).is_err());
}

proptest! {
    #![proptest_config(netnice_cases::cases(256))]

    /// The members of a class that is not overbooked have their contracts whatever the members of
    /// the other classes want. The test tries every choice of active classes.
    #[test]
    fn members_of_a_class_that_is_not_overbooked_have_their_rates(
        minimums in prop::array::uniform8(0_u64..20),
        exist in prop::array::uniform8(any::<bool>()),
        overbook in prop::array::uniform8(any::<bool>()),
        wanted in prop::array::uniform8(0_u64..60),
        total in 1_u64..100,
    ) {
        let mut all = LinkClasses::default();
        for number in 0..CLASSES {
            if exist[number] {
                let change = set(number as u8, Some(minimums[number]), Some(overbook[number]));
                all = all.apply(&change).unwrap();
            }
        }
        prop_assume!(!all.is_empty());
        let all = all.apply(&server(total, 100)).unwrap();
        let members: [u64; CLASSES] = core::array::from_fn(|n| match exist[n] {
            true => wanted[n] * 1_000_000,
            false => 0,
        });
        let least = |n: usize| if exist[n] { minimums[n] * 1_000_000 } else { 0 };
        let promised: u64 = (0..CLASSES).map(least).sum();
        let server = total * 1_000_000;
        let admitted = all.check_members(&members, &link(100));
        prop_assert_eq!(promised > server, all.slice(&link(100)).is_err());
        prop_assume!(promised <= server);
        let mut fits = true;
        for active in 0_u32..256 {
            let rates = |n: usize| if active >> n & 1 == 1 { members[n] } else { 0 };
            // A class takes what the classes before it and the minimums of later ones leave.
            let mut taken = 0;
            for n in 0..CLASSES {
                let owed: u64 = (n + 1..CLASSES).map(least).sum();
                let has = server.saturating_sub(taken + owed).max(least(n));
                fits &= overbook[n] || !exist[n] || rates(n) <= has;
                taken += rates(n).min(has);
            }
        }
        prop_assert_eq!(admitted.is_ok(), fits, "{:?}", admitted);
    }
}

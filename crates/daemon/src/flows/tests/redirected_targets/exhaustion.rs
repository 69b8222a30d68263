//! Tests with more targets than there are places, and with many quick changes.

use super::*;

#[test]
fn the_257th_target_stays_with_the_classes() {
    let mut fixture = Fixture::new();
    fixture.spawn(100..357);
    for pid in 100..357 {
        assert_done(&fixture.set(pid, "cell pcr=50kbit,cdvt=1s"));
    }
    assert_eq!(fixture.redirects().len(), 256);
    let places: BTreeSet<u16> = fixture.redirects().into_values().collect();
    assert_eq!(places.len(), 256);
    assert!(fixture.explained("pid:356").contains("all 256 places"));
    fixture.withdraw(100);
    assert!(
        fixture
            .explained("pid:356")
            .contains("the driver of eth0 keeps")
    );
}

#[test]
fn five_hundred_quick_changes_leave_nothing() {
    let mut fixture = Fixture::new();
    for n in 0..500 {
        fixture.driver_answers = n % 3 != 0;
        let answers = std::mem::replace(&mut fixture.driver_answers, false);
        if answers {
            fixture.answer_pending();
        }
        let contract = CONTRACTS[n % CONTRACTS.len()];
        assert_done(&fixture.set(7, contract));
        if n % 5 == 0 {
            assert_done(&fixture.withdraw(7));
        }
        if n % 7 == 0 {
            fixture.answer_pending();
        }
    }
    fixture.answer_pending();
    fixture.set(7, "up 1mbit");
    fixture.withdraw(7);
    fixture.answer_pending();
    fixture.assert_nothing_is_left();
    assert_eq!(fixture.rate_promised(), 0);
}

//! Tests of the reservations of drivers.

use super::*;

#[test]
fn drivers_have_reservations_while_a_target_has_its_time_exactly() {
    let (mut machine, mut keeper) = (machine(), Keeper::default());
    let slice =
        |us| Slice::new(Nanos::from_micros(us), Nanos::from_millis(1), false).expect("valid");
    let driver = |budget_us| DriverThread {
        name: "driver-eth0".to_owned(),
        thread: 500,
        slice: slice(budget_us),
        least: slice(100),
    };
    let budget = |machine: &FakeMachine| {
        let kept = machine.processor.drivers.get(&500);
        kept.map(|(budget, _)| budget.0 / 1_000)
    };
    keeper.set_drivers(vec![driver(200)]);
    keeper
        .follow(&mut machine, &[wanted(1, (2, 10, true), &[10])])
        .expect("granted");
    assert_eq!(budget(&machine), None, "the group's way does not need it");
    keeper
        .follow(&mut machine, &[wanted(1, (2, 10, false), &[10])])
        .expect("granted");
    assert_eq!(
        (exact(&machine), budget(&machine)),
        (vec![(10, 2)], Some(200))
    );
    for (needs, has) in [(150, 200), (300, 300), (140, 140)] {
        keeper.set_drivers(vec![driver(needs)]);
        after(&mut keeper, &mut machine, 100);
        assert_eq!(budget(&machine), Some(has), "needs {needs}");
    }
    // The kernel admits 250 us: what a driver has stays until it needs more than that at least.
    machine.processor.most_of_driver = Some(Nanos::from_micros(250));
    for (needs, least, has) in [(400, 130, 140), (400, 160, 160), (250, 200, 250)] {
        keeper.set_drivers(vec![DriverThread {
            least: slice(least),
            ..driver(needs)
        }]);
        after(&mut keeper, &mut machine, 100);
        assert_eq!(
            budget(&machine),
            Some(has),
            "needs {needs}, at least {least}"
        );
        assert_eq!(exact(&machine), [(10, 2)]);
    }
    keeper.follow(&mut machine, &[]).expect("ends");
    assert_eq!(budget(&machine), None);
    assert!(keeper.is_idle());
}

/// Regression: a driver that asked for more than the kernel admits had a part of it, or nothing.
#[test]
fn a_driver_gets_the_least_if_the_kernel_admits_no_more() {
    let (mut machine, mut keeper) = (machine(), Keeper::default());
    let us = |us| Slice::new(Nanos::from_micros(us), Nanos::from_millis(1), false).expect("valid");
    machine.processor.most_of_driver = Some(Nanos::from_micros(250));
    for (least, is_exact) in [(260, false), (240, true)] {
        keeper.set_drivers(vec![DriverThread {
            name: "driver-eth0".to_owned(),
            thread: 500,
            slice: us(400),
            least: us(least),
        }]);
        keeper
            .follow(&mut machine, &[wanted(1, (2, 10, false), &[10])])
            .expect("granted");
        assert_eq!(exact(&machine).len(), usize::from(is_exact));
        let reason = keeper.status(1).expect("in force").reason;
        assert_eq!(
            reason.contains("driver-eth0 needs 260us"),
            !is_exact,
            "{reason}"
        );
        keeper.follow(&mut machine, &[]).expect("ends");
    }
}

#[test]
fn without_a_reservation_of_the_driver_no_time_is_exact() {
    let (mut machine, mut keeper) = (machine(), Keeper::default());
    machine.processor.no_driver = true;
    keeper.set_drivers(vec![DriverThread {
        name: "driver-eth0".to_owned(),
        thread: 500,
        slice: Slice::new(Nanos::from_micros(200), Nanos::from_millis(1), false).expect("a slice"),
        least: Slice::new(Nanos::from_micros(100), Nanos::from_millis(1), false).expect("a slice"),
    }]);
    keeper
        .follow(&mut machine, &[wanted(1, (2, 10, false), &[10])])
        .expect("granted");
    assert_eq!(exact(&machine), []);
    let status = keeper.status(1).expect("in force");
    assert_eq!(
        (status.way, status.reason.as_str()),
        (Way::Group, "the driver has none")
    );
}

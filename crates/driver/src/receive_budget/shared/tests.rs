use super::*;

/// Each flow belongs to a program and is sent a packet of 1 µs in the given interval in µs, for a
/// quarter of a second. Returns each flow's part of the driver's time.
fn parts_used(flows: &[(usize, u64)]) -> Vec<f64> {
    parts_used_with(flows, 0)
}

/// As [`parts_used`], if the first flow has a certain part of the shared budget, in millionths.
fn parts_used_with(flows: &[(usize, u64)], share: u32) -> Vec<f64> {
    let mut shared = SharedBudget::default();
    let programs = flows.iter().map(|(program, _)| program + 1).max();
    let mut programs = vec![ActiveSet::default(); programs.unwrap_or(0)];
    let budget = ReceiveBudget::new(500_000, Nanos::from_millis(1));
    let mut members: Vec<FlowBudget> = flows.iter().map(|_| shared.add_flow(budget)).collect();
    shared.set_share(&mut members[0], share);
    let mut got = vec![0; flows.len()];
    for now in 0..LONG {
        for (number, (program, each)) in flows.iter().enumerate() {
            if now % each != 0 {
                continue;
            }
            let among = (&mut shared, &mut programs[*program]);
            let price = (Nanos(0), Nanos(1_000));
            let admitted = members[number].admit(among, price, (0, Instant(now * 1_000)));
            got[number] += u64::from(admitted.is_ok());
        }
    }
    got.iter().map(|got| *got as f64 / LONG as f64).collect()
}

/// In µs.
const LONG: u64 = 250_000;

#[test]
fn one_flooded_flow_gets_its_own_budget() {
    let got = parts_used(&[(0, 1)]);
    assert!((0.499..=0.506).contains(&got[0]), "{got:?}");
}

#[test]
fn flooded_flows_together_get_the_budget_of_one() {
    for count in [2, 8, 40] {
        let floods: Vec<(usize, u64)> = (0..count).map(|k| (k, 1)).collect();
        let got = parts_used(&floods);
        let sum: f64 = got.iter().sum();
        assert!((0.499..=0.54).contains(&sum), "{count}: {sum}");
        let fair = sum / count as f64;
        let is_fair = |got: &f64| (0.5..=1.5).contains(&(got / fair));
        assert!(got.iter().all(is_fair), "{count}: {got:?}");
    }
}

#[test]
fn a_flow_that_uses_less_than_its_part_loses_nothing() {
    // One packet in 200 µs beside eight floods.
    let mut flows: Vec<(usize, u64)> = (0..8).map(|k| (k, 1)).collect();
    flows.push((8, 200));
    let got = parts_used(&flows);
    assert_eq!(got[8], 0.005, "{got:?}");
}

#[test]
fn a_program_with_many_flows_gets_no_more_than_one_with_few() {
    let mut flows: Vec<(usize, u64)> = (0..63).map(|_| (0, 1)).collect();
    flows.extend([(1, 1), (2, 1_000)]);
    let got = parts_used(&flows);
    let many: f64 = got[..63].iter().sum();
    assert!((0.15..=0.4).contains(&many), "{many}");
    assert!((0.1..=0.35).contains(&got[63]), "{got:?}");
    assert_eq!(got[64], 0.001, "{got:?}");
}

#[test]
fn a_flow_has_its_certain_part_beside_any_number_of_floods() {
    for others in [1, 8, 40] {
        let mut flows = vec![(0, 1)];
        flows.extend((1..=others).map(|program| (program, 1)));
        let got = parts_used_with(&flows, 300_000);
        // 30 % of half of the time.
        assert!(got[0] >= 0.149, "{others}: {got:?}");
        let sum: f64 = got.iter().sum();
        assert!((0.499..=0.54).contains(&sum), "{others}: {sum}");
        let fair = (sum - got[0]) / others as f64;
        let is_fair = |got: &f64| (0.5..=1.5).contains(&(got / fair));
        assert!(got[1..].iter().all(is_fair), "{others}: {got:?}");
    }
}

#[test]
fn others_use_a_certain_part_while_its_flow_does_not() {
    let got = parts_used_with(&[(0, 1_000), (1, 1), (2, 1)], 600_000);
    assert_eq!(got[0], 0.001, "{got:?}");
    assert!((0.49..=0.53).contains(&(got[1] + got[2])), "{got:?}");
    // Alone it may use all of the time for receiving.
    let alone = parts_used_with(&[(0, 1)], 100_000);
    assert!((0.499..=0.506).contains(&alone[0]), "{alone:?}");
}

#[test]
fn a_certain_part_ends_with_its_flow() {
    let mut shared = SharedBudget::default();
    let budget = ReceiveBudget::new(500_000, Nanos::from_millis(1));
    let mut flows = [250_000, 100_000].map(|share| shared.add_flow(budget.with_share(share)));
    assert_eq!(shared.reserved, 350_000);
    shared.set_share(&mut flows[0], 0);
    shared.remove_flow(&flows[0]);
    assert_eq!(shared.reserved, 100_000);
    shared.remove_flow(&flows[1]);
    assert_eq!(shared.reserved, 0);
}

#[test]
fn the_bursts_of_many_flows_are_bounded_together() {
    let mut shared = SharedBudget::default();
    let mut program = ActiveSet::default();
    let budget = ReceiveBudget::new(500_000, Nanos::from_millis(1));
    shared.add_flow(budget);
    shared.begin(Nanos(10_000));
    let mut members: Vec<FlowBudget> = (0..4096).map(|_| shared.add_flow(budget)).collect();
    let mut got = 0;
    let now = Instant(1_000_000_000);
    for member in &mut members {
        let mut admit = || {
            member.admit(
                (&mut shared, &mut program),
                (Nanos(0), Nanos(1_000)),
                (0, now),
            )
        };
        got += (0..1000).take_while(|_| admit().is_ok()).count();
    }
    // Out of 4 s for flows that are alone: the shared budget's millisecond, and the least burst of
    // each.
    assert!(got <= 1_000 + 7_000 + 4096 * 20, "{got} us");
}

#[test]
fn a_flow_among_many_can_pay_for_a_packet_that_wakes_the_driver() {
    // One packet in 8 ms beside 40 floods. It takes 80 us: 1 %, of the 1.2 % that it may have.
    let (lone_packet, lookup, delivery) = (Nanos(80_000), Nanos(79_000), Nanos(1_000));
    let mut shared = SharedBudget::default();
    let mut programs = [ActiveSet::default(); 41];
    let budget = ReceiveBudget::new(500_000, Nanos::from_millis(1));
    let mut members = [(); 41].map(|()| shared.add_flow(budget));
    for now in 0..LONG {
        let at = Instant(now * 1_000);
        shared.begin(lone_packet);
        for flood in 0..40 {
            let among = (&mut shared, &mut programs[flood]);
            let _ = members[flood].admit(among, (Nanos(0), Nanos(1_000)), (0, at));
        }
        if now % 8_000 == 7_999 {
            let admitted = members[40].admit(
                (&mut shared, &mut programs[40]),
                (lookup, delivery),
                (0, at),
            );
            assert_eq!(admitted, Ok(()), "after {now} us");
        }
    }
}

#[test]
fn one_flow_of_a_million_is_suspended_only_until_the_shared_budget_is_full() {
    let mut shared = SharedBudget::default();
    let mut programs = vec![ActiveSet::default(); 1_000];
    let budget = ReceiveBudget::new(500_000, Nanos::from_millis(1));
    let mut now = Instant(1_000_000_000);
    let price = (Nanos(100), Nanos(900));
    // All programs receive something, the first one by a thousand flows.
    let mut members: Vec<FlowBudget> = (0..2_000).map(|_| shared.add_flow(budget)).collect();
    shared.begin(Nanos(10_000));
    for (number, member) in members.iter_mut().enumerate() {
        let program = &mut programs[number.saturating_sub(1_000)];
        let _ = member.admit((&mut shared, program), price, (0, now));
    }
    let first = &mut members[0];
    let until = loop {
        match first.admit((&mut shared, &mut programs[0]), price, (0, now)) {
            Ok(()) => now.0 += 1,
            Err(until) => break until,
        }
    };
    let wait = until.0 - now.0;
    assert!((1_900_000..=4_000_000).contains(&wait), "{wait}");
    // No other flow has received meanwhile.
    let again = first.admit((&mut shared, &mut programs[0]), price, (0, until));
    assert_eq!(again, Ok(()));
    // Its part of the shared budget is small, and not zero.
    assert!(first.part.part > 0);
}

/// One flow that is sent a packet of 1 µs each µs and has sent `sent(now)` packets, now in µs.
/// Returns its part of the driver's time.
fn lent(part: u32, sent: impl Fn(u64) -> u64, active: impl Fn(u64) -> usize) -> f64 {
    let mut shared = SharedBudget::default();
    let budget = |part| ReceiveBudget::new(part, Nanos::from_millis(1));
    shared.add_flow(budget(500_000));
    let mut flow = shared.add_flow(budget(part));
    let (mut program, mut periods) = (ActiveSet::default(), [0; 2]);
    let mut got = 0;
    for micros in 0..LONG {
        let now = Instant(micros * 1_000);
        for period in &mut periods[..active(micros)] {
            shared.count_active(period, now);
        }
        let price = (Nanos(0), Nanos(1_000));
        let among = (&mut shared, &mut program);
        got += u64::from(flow.admit(among, price, (sent(micros), now)).is_ok());
    }
    got as f64 / LONG as f64
}

#[test]
fn a_flow_that_answers_may_use_time_that_nobody_else_wants() {
    let got = lent(500_000, |micros| micros / 100, |_| 1);
    assert!((0.72..=0.76).contains(&got), "{got}");
}

#[test]
fn nothing_is_lent_to_a_flood_nor_beside_others() {
    let half = 0.495..=0.52;
    let flooded = lent(500_000, |_| 0, |_| 1);
    assert!(half.contains(&flooded), "{flooded}");
    let beside = lent(500_000, |micros| micros / 100, |_| 2);
    assert!(half.contains(&beside), "{beside}");
    let small = lent(20_000, |micros| micros / 100, |_| 1);
    assert!((0.019..=0.03).contains(&small), "{small}");
    // Another program is active in the second half of the time only.
    let active = |micros| if micros < LONG / 2 { 1 } else { 2 };
    let changing = lent(500_000, |micros| micros / 100, active);
    assert!((0.60..=0.65).contains(&changing), "{changing}");
}

//! Tests that a held deadline is the shortest that fits, and that a flow with a longer one always
//! fits; and the time that a hold takes beside many promises.

use std::time::Instant as Clock;

use netnice_core::admission::timing::Stops;
use proptest::prelude::*;

use super::*;
use crate::flows::admission::MAX_SEARCHED;
use crate::flows::holds::shortest::least;
use crate::flows::promises::LinkPromises;

#[test]
fn the_search_finds_the_least_value_up_to_the_precision() {
    for (below, highest) in [
        (0, 1),
        (0, 900),
        (0, 3_600_000_000_000),
        (700_000, 2_000_000_000),
    ] {
        for exact in [1, 950, 1_001, 30_000, 700_100, 1_999_999, 1_000_000_007] {
            let mut tests = 0;
            let found = least(below, highest, |value| {
                tests += 1;
                (value >= exact).then_some(value)
            });
            assert!(tests <= 16, "{tests} tests");
            match exact <= highest {
                false => assert_eq!(found, None),
                true => {
                    let (found, exact) = (found.expect("it fits"), exact.max(below + 1));
                    assert!(exact <= found, "{exact} {found}");
                    assert!(found - exact <= (found / 256).max(1_000), "{exact} {found}");
                }
            }
        }
    }
}

/// Contracts of flows beside a hold.
fn beside() -> impl Strategy<Value = String> {
    let channel = (
        40_u64..60_000,
        1_u32..200,
        1_u32..4,
        1_u64..400,
        any::<bool>(),
    );
    let channel = channel.prop_map(|(mmax, rmax, bmax, deadline, processes)| {
        let processing = match processes {
            true => ",processing=500us",
            false => "",
        };
        format!("channel mmax={mmax}B,rmax={rmax}/s,bmax={bmax},deadline={deadline}ms{processing}")
    });
    let cell = (1_u64..9_000, 1_u64..100);
    let cell = cell.prop_map(|(pcr, cdvt)| format!("cell pcr={pcr}kbit,cdvt={cdvt}ms"));
    let slice = (1_u64..10, 20_u64..100);
    let slice = slice.prop_map(|(slice, period)| format!("slice {slice}ms/{period}ms"));
    let min = (1_u64..20_000).prop_map(|min| format!("min {min}kbit"));
    prop_oneof![4 => channel, 2 => cell, 1 => slice, 2 => min]
}

/// The contract that is held, without its deadline, and how many times longer than the held one the
/// flow's deadline is, in thousandths.
fn held_channel() -> impl Strategy<Value = (String, u64)> {
    let channel = (40_u64..60_000, 1_u32..100, 1_u32..4, 0_u64..3);
    let text = channel.prop_map(|(mmax, rmax, bmax, processing)| {
        let processing = match processing {
            0 => String::new(),
            ms => format!(",processing={ms}ms"),
        };
        format!("channel mmax={mmax}B,rmax={rmax}/s,bmax={bmax},deadline=2s{processing}")
    });
    (text, prop_oneof![1_000_u64..1_020, 1_000_u64..1_000_000])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_flow_with_a_longer_deadline_than_the_held_one_is_never_refused(
        contracts in prop::collection::vec(beside(), 0..7),
        holds in prop::collection::vec(held_channel(), 1..4),
        mbit in 20_u64..1_000,
        stops in prop::option::of(1_u64..40),
    ) {
        let mut fixture = Fixture::new();
        if let Some(stops) = stops {
            let stops = format!("stops = \"{stops}00us/100ms\"");
            fixture.load_policy("held", &stops);
            let expected: Option<Stops> = stops[9..stops.len() - 1].parse().ok();
            prop_assert_eq!(fixture.service.stops(), expected);
        }
        fixture.relink(&format!("{mbit}mbit"));
        let client = fixture.attached_client(&Peer::ROOT, 7);
        for contract in &contracts {
            // Some do not fit.
            fixture.open(&client, "10.0.0.3:7000", contract);
        }
        let held: Vec<(PromiseHeld, u64)> = holds
            .iter()
            .filter_map(|(contract, times)| {
                match fixture.ask_hold(&client, HOST, contract) {
                    Response::Direct(DirectReply::Held(held)) => Some((held, *times)),
                    _ => None,
                }
            })
            .collect();
        for (held, times) in held {
            let shortest = deadline_of(&held.contract).0;
            let longer = (shortest / 1_000 * times).max(shortest + times - 1_000);
            let contract = match longer == shortest {
                true => held.contract.clone(),
                false => with_deadline(&held.contract, longer),
            };
            let response = fixture.open_with(&client, held.hold, &contract);
            prop_assert!(is_open(&response), "{} {contract}: {response:?}", held.contract);
            let state = &fixture.flows.link_states[&eth0()];
            let capacity = state.capacity.expect("known");
            let kept = fixture.flows.promised_to_flows(&eth0());
            let carried = capacity.carries(state.need.expect("known"), &kept);
            prop_assert!(carried.is_ok(), "{carried:?}");
        }
        prop_assert!(fixture.holds().is_empty());
    }
}

/// A link of 1 Gbit/s with so many channels, all different.
fn with_channels(count: u32) -> (Fixture, TestClient) {
    let mut fixture = Fixture::new();
    fixture.relink("1gbit");
    let client = fixture.client(&Peer::ROOT, 7);
    fixture.attach(&client, count + 10);
    for number in 0..count {
        let contract = format!(
            "channel mmax={}B,rmax=1/s,bmax=1,deadline={}us",
            200 + number % 700,
            2_000_000 + 7 * number
        );
        let to = format!("10.0.0.3:{}", 1 + number);
        fixture.opened(&client, &to, &contract);
    }
    (fixture, client)
}

#[test]
fn a_hold_beside_many_promises_is_a_promise_that_the_exact_test_grants() {
    let (mut fixture, client) = with_channels(MAX_SEARCHED as u32 + 30);
    let before = fixture.flows.link_states[&eth0()].need;
    let small = "channel mmax=1500B,rmax=10/s,bmax=1,deadline=1s";
    let held = fixture.held(&client, small);
    let shortest = deadline_of(&held.contract);
    assert!(shortest < Nanos(10_000_000), "{shortest}");
    let state = &fixture.flows.link_states[&eth0()];
    let (capacity, need) = (state.capacity.expect("known"), state.need.expect("known"));
    let kept = fixture.flows.promised_to_flows(&eth0());
    assert_eq!(kept.len(), MAX_SEARCHED + 31);
    assert!(capacity.carries(need, &kept).is_ok() && Some(need) > before);
    let longer = with_deadline(&held.contract, 1_500_000_000);
    assert!(is_open(&fixture.open_with(&client, held.hold, &longer)));
    let held = fixture.held(&client, CHANNEL);
    fixture.release(&client, held.hold);
    let after = fixture.flows.link_states[&eth0()].need;
    assert_eq!(before, after, "holds leave the rate as it was");
}

#[test]
fn shortest_deadlines_are_held_beside_each_other_whatever_the_number_of_flows() {
    // With the 33rd flow, a packet may wait for one packet more.
    for count in [20, 28, 32, 60] {
        let (mut fixture, client) = with_channels(count);
        let holds = (0..8).map(|_| fixture.held(&client, CHANNEL));
        let deadlines: Vec<Nanos> = holds.map(|held| deadline_of(&held.contract)).collect();
        assert!(deadlines.is_sorted(), "{count}: {deadlines:?}");
    }
}

#[test]
#[ignore = "figures: prints times"]
fn figures_of_the_time_of_a_hold() {
    for count in [10, 500, 1_000, 10_000] {
        let (mut fixture, client) = with_channels(count);
        let mut times: Vec<(u128, u128, u128)> = Vec::new();
        let mut deadline = Nanos(0);
        for _ in 0..20 {
            let begin = Clock::now();
            let held = fixture.held(&client, CHANNEL);
            let at_hold = begin.elapsed().as_micros();
            deadline = deadline_of(&held.contract);
            let begin = Clock::now();
            let longer = with_deadline(&held.contract, 1_500_000_000);
            let opened = fixture.open_with(&client, held.hold, &longer);
            let at_open = begin.elapsed().as_micros();
            let Response::Direct(DirectReply::Opened(opened)) = opened else {
                panic!("{opened:?}");
            };
            let begin = Clock::now();
            fixture.close(&client, opened.flow);
            times.push((at_hold, at_open, begin.elapsed().as_micros()));
        }
        times.sort_unstable();
        let (least, median, most) = (times[0], times[10], times[19]);
        println!(
            "{count} channels: deadline {deadline}; hold, open, close in us: {least:?} least, \
             {median:?} median, {most:?} most"
        );
    }
}

use proptest::prelude::*;

use super::*;
use crate::contract::{Channel, MessageRate};
use crate::units::Nanos;

/// 100 messages of 1,000 bytes per second, 3 at once.
fn gate(policy: Overload) -> MessageGate {
    let rmax = MessageRate::new(100).unwrap();
    let channel = Channel::new(Bytes(1000), rmax, 3, Nanos::from_millis(5)).unwrap();
    MessageGate::new(&channel, policy)
}

fn queued(arrival: u64) -> GateDecision {
    GateDecision::Queued {
        arrival: Instant(arrival),
    }
}

const SPACING: u64 = 10_000_000;

#[test]
fn an_allowed_burst_is_queued_under_every_policy_except_space() {
    for policy in [Overload::Block, Overload::Decay, Overload::Drop] {
        let mut gate = gate(policy);
        for k in 0..3 {
            let arrival = 7 + k * SPACING;
            let verdict = gate.handle_message(Bytes(1000), Instant(7));
            assert_eq!(verdict, queued(arrival));
        }
        assert_eq!(gate.waiting(), 3);
    }
}

/// The scheduler decides on logical arrivals: the gate admits every message as it arrives.
#[test]
fn the_gate_of_best_effort_admits_all() {
    let mut gate = gate(Overload::BestEffort);
    for arrival in 0..10 {
        let verdict = gate.handle_message(Bytes(1000), Instant(arrival));
        assert_eq!(verdict, queued(arrival));
    }
    assert_eq!((gate.waiting(), gate.dropped()), (10, 0));
}

#[test]
fn a_message_beyond_bmax_is_handled_by_the_policy() {
    let fourth = |policy| {
        let mut gate = gate(policy);
        for _ in 0..3 {
            gate.handle_message(Bytes(1000), Instant(0));
        }
        (gate.handle_message(Bytes(1000), Instant(0)), gate)
    };
    let (verdict, mut gate) = fourth(Overload::Block);
    assert_eq!(verdict, GateDecision::WaitForRoom);
    assert!(gate.handle_sent());
    let fourth_is = queued(3 * SPACING);
    assert_eq!(gate.handle_message(Bytes(1000), Instant(0)), fourth_is);
    let (verdict, gate) = fourth(Overload::Drop);
    assert_eq!(
        (verdict, gate.dropped(), gate.waiting()),
        (GateDecision::Dropped, 1, 3)
    );
    let (verdict, gate) = fourth(Overload::Decay);
    assert_eq!((verdict, gate.waiting()), (queued(3 * SPACING), 4));
}

#[test]
fn the_space_policy_enforces_the_spacing() {
    let mut gate = gate(Overload::Space);
    assert_eq!(gate.handle_message(Bytes(1), Instant(5)), queued(5));
    let next = Instant(10_000_005);
    assert_eq!(
        gate.handle_message(Bytes(1), Instant(6)),
        GateDecision::WaitUntil(next)
    );
    assert_eq!(gate.handle_message(Bytes(1), next), queued(next.0));
}

#[test]
fn a_long_message_counts_as_several() {
    let mut gate = gate(Overload::Space);
    let long = gate.handle_message(Bytes(2001), Instant(0));
    assert_eq!(long, queued(0));
    let next = GateDecision::WaitUntil(Instant(30_000_000));
    assert_eq!(gate.handle_message(Bytes(1), Instant(1)), next);
}

proptest! {
    /// The queue never holds more than Bmax, except with `Decay`. Every message gets one verdict.
    #[test]
    fn every_message_gets_one_decision(
        kind in 0_usize..4,
        steps in prop::collection::vec((any::<bool>(), 1_u64..5000, 0_u64..20_000_000), 0..200),
    ) {
        let policy = [Overload::Block, Overload::Decay, Overload::Space, Overload::Drop][kind];
        let mut gate = gate(policy);
        let (mut now, mut inside, mut sent, mut dropped) = (0, 0_u32, 0_u32, 0);
        let mut next = 0;
        for (offer, length, time) in steps {
            now += time;
            if offer {
                match gate.handle_message(Bytes(length), Instant(now)) {
                    GateDecision::Queued { arrival } => {
                        prop_assert!(arrival.0 >= now.max(next));
                        next = arrival.0 + length.div_ceil(1000) * SPACING;
                        inside += 1;
                    }
                    GateDecision::Dropped => dropped += 1,
                    GateDecision::WaitForRoom => prop_assert!(gate.waiting() == 3),
                    GateDecision::WaitUntil(at) => {
                        prop_assert!(at.0 > now && policy == Overload::Space);
                    }
                }
            } else if inside > sent {
                sent += 1;
                gate.handle_sent();
            }
            prop_assert_eq!(gate.waiting(), inside - sent);
            prop_assert_eq!(gate.dropped(), dropped);
            prop_assert!(gate.waiting() <= 3 || policy == Overload::Decay);
        }
    }
}

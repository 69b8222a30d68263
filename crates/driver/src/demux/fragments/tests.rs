use netnice_cases::cases;
use proptest::prelude::*;

use super::super::{Demux, FlowNo, Match, MatchError, Verdict};
use super::*;
use crate::frame::Mac;
use crate::protocol::Transport;
use crate::test_frames::{OWN, endpoint, udp};

fn add(
    demux: &mut Demux,
    flow: u32,
    reassembly: Reassembly,
    what: Match,
) -> Result<(), MatchError> {
    if demux.counters_of(FlowNo(flow)).is_none() {
        demux.insert(FlowNo(flow), reassembly)?;
    }
    demux.add_match(FlowNo(flow), &what)
}

fn port(local: &str) -> Match {
    Match::Port {
        transport: Transport::Udp,
        local: endpoint(local),
    }
}

/// Flow 0 takes every fragment to port 53. Flow 1 takes fragments to port 54 in order only.
fn two() -> Demux {
    let mut demux = Demux::new(OWN);
    add(&mut demux, 0, Reassembly::Complete, port("10.0.0.1:53")).unwrap();
    add(&mut demux, 1, Reassembly::InOrder, port("10.0.0.1:54")).unwrap();
    demux
}

fn parts(to: &str, id: u16) -> Vec<Vec<u8>> {
    let datagram = udp("10.0.0.9:1", to).received().id(id);
    datagram.data(&[id as u8; 100]).fragments(32)
}

/// (flow, fragment), in order of delivery.
#[derive(Default)]
struct Log(Vec<(u32, Vec<u8>)>);

impl Log {
    fn record(&mut self, verdict: Verdict<'_>, frame: &[u8]) {
        let flows = match &verdict {
            Verdict::One { flow, .. } => std::slice::from_ref(flow),
            Verdict::Several { flows, .. } => flows,
            _ => &[],
        };
        self.0
            .extend(flows.iter().map(|flow| (flow.0, frame.to_vec())));
    }

    fn handle(&mut self, demux: &mut Demux, frame: &[u8], now: u64) {
        self.record(demux.handle(frame, Instant(now)), frame);
        while let Some((bytes, verdict)) = demux.poll_released() {
            self.record(verdict, &bytes);
        }
        demux.invariants();
    }

    fn of(&self, flow: u32) -> Vec<Vec<u8>> {
        let its = self.0.iter().filter(|(to, _)| *to == flow);
        its.map(|(_, frame)| frame.clone()).collect()
    }
}

#[test]
fn a_flow_gets_every_fragment_in_any_order() {
    let mut demux = two();
    let mut log = Log::default();
    let parts = parts("10.0.0.1:53", 7);
    for k in [3, 1, 0, 2] {
        log.handle(&mut demux, &parts[k], 0);
    }
    let expected: Vec<_> = [0, 3, 1, 2].map(|k: usize| parts[k].clone()).into();
    assert_eq!(log.of(0), expected);
}

#[test]
fn a_flow_in_order_gets_only_the_fragments_before_a_gap() {
    let mut demux = two();
    let mut log = Log::default();
    let parts = parts("10.0.0.1:54", 7);
    for k in [0, 1, 3, 2] {
        log.handle(&mut demux, &parts[k], 0);
    }
    assert_eq!(log.of(1), parts[..2].to_vec());
    assert_eq!(demux.counters_of(FlowNo(1)).unwrap().out_of_order, 2);
    assert_eq!(demux.counters().discarded[Discard::OutOfOrder as usize], 2);
}

#[test]
fn fragments_of_an_unclaimed_datagram_are_unclaimed() {
    let mut demux = two();
    for part in parts("10.0.0.1:99", 7) {
        assert_eq!(demux.handle(&part, Instant(0)), Verdict::Unclaimed);
    }
    // Also if the fragments arrived in another order, though late.
    let mut log = Log::default();
    for part in parts("10.0.0.1:99", 8).iter().rev() {
        log.handle(&mut demux, part, 0);
    }
    assert!(log.0.is_empty());
    assert_eq!(demux.counters().unclaimed, 8);
}

#[test]
fn a_first_fragment_that_names_another_flow_is_discarded() {
    let mut demux = two();
    let mut log = Log::default();
    let good = parts("10.0.0.1:53", 7);
    let bad = parts("10.0.0.1:54", 7);
    log.handle(&mut demux, &good[0], 0);
    let verdict = demux.handle(&bad[0], Instant(0));
    assert_eq!(verdict, Verdict::Discarded(Discard::Conflict));
    for part in &good[1..] {
        log.handle(&mut demux, part, 0);
    }
    assert_eq!((log.of(0), log.of(1)), (good, Vec::new()));
}

/// Eight bytes of this fragment's datagram, from byte `offset` on, marked as the last fragment.
fn last(part: &[u8], offset: u16) -> Vec<u8> {
    let mut part = part[..14 + 20 + 8].to_vec();
    part[16..18].copy_from_slice(&28_u16.to_be_bytes());
    part[20..22].copy_from_slice(&(offset / 8).to_be_bytes());
    crate::test_frames::mend_checksum(&mut part);
    part
}

#[test]
fn a_forged_last_fragment_does_not_release_a_datagram() {
    // In order, or overlapping bytes that have arrived.
    for end in [8, 32] {
        let mut demux = two();
        let mut log = Log::default();
        let good = parts("10.0.0.1:53", 7);
        let bad = parts("10.0.0.1:54", 7);
        log.handle(&mut demux, &good[0], 0);
        let tiny = last(&good[1], end);
        log.handle(&mut demux, &tiny, 0);
        let verdict = demux.handle(&bad[0], Instant(1));
        assert_eq!(verdict, Verdict::Discarded(Discard::Conflict), "{end}");
        for part in &good[1..] {
            log.handle(&mut demux, part, LIFETIME - 1);
        }
        let all = [&good[..1], &[tiny], &good[1..]].concat();
        assert_eq!((log.of(0), log.of(1)), (all, Vec::new()), "{end}");
        // After `LIFETIME` another flow can get the identification.
        log.handle(&mut demux, &bad[0], LIFETIME);
        assert_eq!(log.of(1), bad[..1]);
    }
}

#[test]
fn an_identification_that_its_owner_reuses_starts_in_order() {
    let mut demux = two();
    let mut log = Log::default();
    let parts = parts("10.0.0.1:54", 7);
    for _ in 0..3 {
        for part in &parts {
            log.handle(&mut demux, part, 0);
        }
    }
    assert_eq!(log.of(1), [&parts[..], &parts, &parts].concat());
}

#[test]
fn a_first_fragment_too_short_for_its_ports_is_discarded() {
    let mut demux = two();
    let mut tiny = parts("10.0.0.1:53", 7)[0].clone();
    // A fragment that is not the last has at least eight bytes; TCP's header is longer.
    tiny.truncate(14 + 20 + 8);
    tiny[16..18].copy_from_slice(&28_u16.to_be_bytes());
    tiny[23] = 6;
    crate::test_frames::mend_checksum(&mut tiny);
    let verdict = demux.handle(&tiny, Instant(0));
    assert_eq!(verdict, Verdict::Discarded(Discard::Transport));
}

#[test]
fn fragments_are_dropped_after_their_lifetime_and_above_the_limits() {
    let mut demux = two();
    let part = parts("10.0.0.1:53", 7)[1].clone();
    assert_eq!(demux.handle(&part, Instant(0)), Verdict::Held);
    demux.handle(&parts("10.0.0.1:53", 8)[0], Instant(LIFETIME));
    assert_eq!(demux.counters().discarded[Discard::Forgotten as usize], 1);
    // Waiting datagrams do not drop known ones, and do not exceed their own limit.
    let known = parts("10.0.0.1:53", 9);
    let mut log = Log::default();
    log.handle(&mut demux, &known[0], LIFETIME);
    for id in 0..3 * MAX_WAITING as u16 {
        log.handle(&mut demux, &parts("10.0.0.1:53", 1000 + id)[1], LIFETIME);
    }
    assert_eq!(demux.counters().held, MAX_WAITING as u64);
    log.handle(&mut demux, &known[1], LIFETIME);
    assert_eq!(log.of(0).len(), 2);
    // Known datagrams of one flow do not drop those of another.
    for id in 0..3 * MAX_KNOWN_PER_OWNER as u16 {
        log.handle(&mut demux, &parts("10.0.0.1:54", 5000 + id)[0], LIFETIME);
    }
    log.handle(&mut demux, &known[2], LIFETIME);
    assert_eq!(log.of(0).len(), 3);
}

#[test]
fn removing_a_flow_removes_its_datagrams() {
    let mut demux = two();
    let parts = parts("10.0.0.1:53", 7);
    demux.handle(&parts[0], Instant(0));
    demux.remove(FlowNo(0)).unwrap();
    demux.insert(FlowNo(0), Reassembly::Complete).unwrap();
    // The flow's number is reused by a new flow, which gets no fragment of the old one.
    assert_eq!(demux.handle(&parts[1], Instant(0)), Verdict::Held);
    demux.invariants();
}

#[test]
fn members_of_a_group_may_differ_in_reassembly() {
    let mut demux = Demux::new(OWN);
    let group = || Match::Group {
        transport: Transport::Udp,
        group: endpoint("224.1.1.1:53"),
    };
    add(&mut demux, 0, Reassembly::InOrder, group()).unwrap();
    add(&mut demux, 1, Reassembly::Complete, group()).unwrap();
    let mut datagram = udp("10.0.0.9:1", "224.1.1.1:53").data(&[5; 100]);
    datagram.macs.1 = Mac([1, 0, 0x5e, 1, 1, 1]);
    let parts = datagram.fragments(32);
    let mut log = Log::default();
    for k in [0, 2, 1, 3] {
        log.handle(&mut demux, &parts[k], 0);
    }
    assert_eq!(log.of(0), parts[..1].to_vec());
    assert_eq!(log.of(1).len(), 4);
    assert_eq!(demux.counters_of(FlowNo(0)).unwrap().out_of_order, 3);
}

proptest! {
    #![proptest_config(cases(300))]

    /// Datagrams of several flows, with fragments shuffled and some twice. A flow that takes all
    /// fragments gets exactly its own; a flow that takes them in order gets those in order; no flow
    /// gets another flow's.
    #[test]
    fn fragments_go_to_the_flow_of_their_datagram(
        datagrams in prop::collection::vec((0..3_usize, 1..200_usize, any::<bool>()), 1..12),
        order in prop::collection::vec(any::<u16>(), 200),
        shuffled in any::<bool>(),
        twice in any::<bool>(),
    ) {
        let mut demux = two();
        add(&mut demux, 0, Reassembly::Complete, port("[fd00::1]:53")).unwrap();
        add(&mut demux, 1, Reassembly::InOrder, port("[fd00::1]:54")).unwrap();
        let mut frames = Vec::new();
        for (id, (flow, length, is_v6)) in datagrams.iter().enumerate() {
            let (from, host) = match is_v6 {
                false => ("10.0.0.9:1", "10.0.0.1"),
                true => ("[fd00::9]:1", "[fd00::1]"),
            };
            let to = format!("{host}:{}", 53 + flow);
            let datagram = udp(from, &to).received().id(id as u16).data(&vec![id as u8; *length]);
            let parts = datagram.fragments(24);
            frames.extend(parts.into_iter().enumerate().map(|(k, part)| (*flow, id, k, part)));
        }
        if shuffled {
            let key: Vec<u16> = (0..frames.len()).map(|k| order[k % order.len()]).collect();
            let mut places: Vec<usize> = (0..frames.len()).collect();
            places.sort_by_key(|k| key[*k]);
            frames = places.iter().map(|k| frames[*k].clone()).collect();
        }
        let mut log = Log::default();
        for (k, (_, _, _, frame)) in frames.iter().enumerate() {
            log.handle(&mut demux, frame, k as u64);
            if twice && k % 5 == 0 {
                log.handle(&mut demux, frame, k as u64);
            }
        }
        let sorted = |mut all: Vec<Vec<u8>>| { all.sort(); all };
        let of = |flow: usize| -> Vec<Vec<u8>> {
            frames.iter().filter(|one| one.0 == flow).map(|one| one.3.clone()).collect()
        };
        if !twice {
            prop_assert_eq!(sorted(log.of(0)), sorted(of(0)));
            let mut in_order = Vec::new();
            for id in 0..datagrams.len() {
                let its = frames.iter().filter(|one| one.0 == 1 && one.1 == id);
                let prefix = its.enumerate().take_while(|(k, one)| *k == one.2);
                in_order.extend(prefix.map(|(_, one)| one.3.clone()));
            }
            prop_assert_eq!(sorted(log.of(1)), sorted(in_order));
            prop_assert_eq!(demux.counters().held, 0);
        }
        let is_its = |(flow, frame): &(u32, Vec<u8>)| of(*flow as usize).contains(frame);
        prop_assert!(log.0.iter().all(is_its));
    }
}

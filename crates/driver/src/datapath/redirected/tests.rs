//! Frames of redirected targets through the datapath, with a map of redirects of their own.

use netnice_core::contract::Contract;
use netnice_core::policer::{Observation, Policer};
use netnice_core::sched::Wire;
use netnice_core::units::Rate;
use proptest::prelude::*;

use super::*;
use crate::template::Forbidden;

/// Frames that have left, with the time of the call.
#[derive(Default)]
struct Sent {
    now: Instant,
    frames: Vec<(Instant, Vec<u8>)>,
}

impl FrameSink for Sent {
    fn room(&mut self) -> usize {
        64
    }

    fn send<F>(&mut self, write: F) -> Option<Result<(), Forbidden>>
    where
        F: for<'a> FnOnce(&'a mut [u8]) -> Result<Checked<'a>, Forbidden>,
    {
        let mut frame = [0; 2048];
        let written = write(&mut frame).map(|checked| checked.bytes().to_vec());
        Some(written.map(|bytes| self.frames.push((self.now, bytes))))
    }
}

struct Rig {
    datapath: Datapath,
    sent: Sent,
    now: Instant,
}

const MAC: Mac = Mac([2, 0, 0, 0, 0, 7]);
const MBIT: u64 = 1_000_000;

impl Rig {
    fn new(link: u64) -> Rig {
        let wire = Wire::new(Rate::new(link).expect("a rate"));
        let mut datapath = Datapath::new(wire, MAC).expect("a datapath");
        datapath.set_redirect_map(RedirectMap::fake(), Instant(0));
        Rig {
            datapath,
            sent: Sent::default(),
            now: Instant(1_000_000_000),
        }
    }

    fn open(&mut self, place: u32, contract: &str, hold: u64) -> Result<(), RedirectError> {
        let contract: Contract = contract.parse().expect("a contract");
        let service = Service::of(&contract).expect("a service");
        self.datapath
            .open_redirect(place, service, Nanos(hold), self.now)
    }

    /// A frame enters the redirect pair and arrives at the driver.
    fn arrive(&mut self, place: u16, bucket: u16, length: usize, number: u32) {
        let mut frame = vec![0; length];
        let [high, low] = place.to_be_bytes();
        let [upper, lower] = bucket.to_be_bytes();
        frame[6..12].copy_from_slice(&[2, high, low, upper, lower, 0]);
        frame[14..18].copy_from_slice(&number.to_be_bytes());
        let map = self.datapath.redirected.map.as_ref().expect("a map");
        map.enter(usize::from(place), usize::from(bucket), length);
        self.datapath.receive_redirected(&frame, self.now);
    }

    /// Runs until this time has passed.
    fn run(&mut self, time: u64) {
        let until = self.now.0 + time;
        loop {
            self.sent.now = self.now;
            let next = self.datapath.transmit(&mut self.sent, self.now);
            let now = self.now;
            self.datapath.all_sent(|| now);
            let at = match next {
                Next::Again | Next::Full => self.now.0 + 1_000,
                Next::Wait(at) => at.0.max(self.now.0 + 1),
                Next::Idle => until,
            };
            if at >= until {
                self.now = Instant(until);
                return;
            }
            self.now = Instant(at);
        }
    }

    fn map(&self, place: usize, bucket: usize) -> (u64, [u32; 4]) {
        let map = self.datapath.redirected.map.as_ref().expect("a map");
        map.state(place, bucket)
    }

    fn numbers(&self) -> Vec<u32> {
        let frames = self.sent.frames.iter();
        let number =
            |frame: &Vec<u8>| u32::from_be_bytes([frame[14], frame[15], frame[16], frame[17]]);
        frames.map(|(_, frame)| number(frame)).collect()
    }
}

#[test]
fn frames_leave_in_order_by_their_cell_with_the_link_s_address() {
    let mut rig = Rig::new(100 * MBIT);
    rig.open(3, "cell pcr=10mbit,cdvt=200us", 0).expect("open");
    for number in 0..100 {
        rig.arrive(3, 5, 1514, number);
    }
    rig.run(200_000_000);
    assert_eq!(rig.numbers(), (0..100).collect::<Vec<u32>>());
    let contract: Contract = "cell pcr=10mbit,cdvt=200us".parse().expect("a contract");
    let mut policer = Policer::contract(&contract).expect("a policer");
    for (at, frame) in &rig.sent.frames {
        assert_eq!(&frame[6..12], &MAC.0, "its source");
        let length = Bytes(frame.len() as u64);
        let verdict = policer.handle(Observation { at: *at, length });
        assert!(verdict.is_ok(), "{verdict:?}");
    }
    let (first, last) = (rig.sent.frames[0].0, rig.sent.frames[99].0);
    let ideal = 99 * 1514 * 8 * 100;
    let took = last.0 - first.0;
    assert!(took.abs_diff(ideal) < 400_000, "{took} of {ideal}");
    assert_eq!(rig.map(3, 5).1[..2], [0, 0], "nothing waits");
    let counters = rig.datapath.redirected_counters(3).expect("open");
    assert_eq!((counters.sent.sent, counters.dropped), (100, 0));
}

#[test]
fn a_new_target_waits_for_its_hold_and_a_changed_one_does_not() {
    let mut rig = Rig::new(100 * MBIT);
    rig.open(0, "slice 5ms/10ms", 30_000_000).expect("open");
    rig.arrive(0, 1, 1000, 0);
    let begin = rig.now;
    rig.run(100_000_000);
    let first = rig.sent.frames[0].0.0 - begin.0;
    assert!((30_000_000..31_000_000).contains(&first), "{first}");
    rig.open(0, "min 1mbit", 30_000_000).expect("changed");
    rig.arrive(0, 1, 1000, 1);
    let begin = rig.now;
    rig.run(20_000_000);
    let second = rig.sent.frames[1].0.0 - begin.0;
    assert!(second < 1_000_000, "{second}");
}

#[test]
fn the_end_of_a_place_loses_nothing_and_keeps_the_order() {
    let mut rig = Rig::new(100 * MBIT);
    rig.open(7, "cell pcr=1mbit,cdvt=200us", 0).expect("open");
    for number in 0..20 {
        rig.arrive(7, 9, 1514, number);
    }
    rig.run(1_000_000);
    assert!(rig.sent.frames.len() < 3, "the cell holds them");
    let counters = rig.datapath.close_redirect(7, rig.now).expect("open");
    assert!(counters.waiting >= 17, "{counters:?}");
    assert_eq!(rig.map(7, 9).0, 0, "not alive");
    // On its way when the place was closed.
    rig.arrive(7, 9, 1514, 20);
    rig.run(10_000_000);
    assert_eq!(rig.numbers(), (0..=20).collect::<Vec<u32>>());
    let again = rig.datapath.close_redirect(7, rig.now);
    assert_eq!(again.expect_err("closed"), RedirectError::NotOpen(7));
}

#[test]
fn lost_frames_count_until_the_place_is_idle() {
    let mut rig = Rig::new(100 * MBIT);
    rig.open(1, "min 10mbit", 0).expect("open");
    let map = rig.datapath.redirected.map.as_ref().expect("a map");
    map.enter(1, 2, 1514);
    rig.arrive(1, 2, 1514, 0);
    rig.run(10_000_000);
    assert_eq!(rig.map(1, 2).1[..2], [1514 + 128; 2], "the lost one counts");
    rig.run(200_000_000);
    rig.datapath.renew_redirects(rig.now);
    let (alive, words) = rig.map(1, 2);
    assert_eq!(words[..2], [0, 0]);
    assert!(alive > rig.now.0, "alive");
}

#[test]
fn invalid_places_and_contracts_are_refused() {
    let wire = Wire::new(Rate::new(MBIT).expect("a rate"));
    let mut without = Datapath::new(wire, MAC).expect("a datapath");
    let service = Service::best_effort(Weight::default());
    let refused = without.open_redirect(0, service, Nanos(0), Instant(0));
    assert_eq!(refused.expect_err("no map"), RedirectError::NoMap);
    let mut rig = Rig::new(MBIT);
    let refused = rig.open(256, "min 1kbit", 0).expect_err("no place");
    assert_eq!(refused, RedirectError::NoPlace(256));
    // A frame shorter than a header, and one for a place that never was.
    rig.datapath.receive_redirected(&[0; 11], rig.now);
    rig.arrive(255, 1023, 60, 1);
    rig.run(10_000_000);
    assert_eq!(rig.numbers(), [1], "best effort");
}

#[test]
fn frames_that_do_not_fit_are_dropped_and_counted() {
    let mut rig = Rig::new(100 * MBIT);
    rig.open(0, "cell pcr=8mbit,cdvt=1ms,scr=1mbit,mbs=1000B", 0)
        .expect("open");
    rig.arrive(0, 0, 1514, 0);
    rig.arrive(0, 0, 900, 1);
    rig.datapath.set_link(false);
    rig.run(50_000_000);
    rig.datapath.set_link(true);
    rig.arrive(0, 0, 900, 2);
    rig.run(50_000_000);
    assert_eq!(rig.numbers(), [2]);
    let counters = rig.datapath.redirected_counters(0).expect("open");
    assert_eq!((counters.sent.sent, counters.dropped), (1, 2));
    assert_eq!(rig.map(0, 0).1[..2], [0, 0]);
}

proptest! {
    /// In = sent + dropped + waiting at every step, in the map and in the counters; the flows of a
    /// target keep their order; no target takes a frame of another.
    #[test]
    fn nothing_is_lost_whatever_opens_and_closes(
        steps in proptest::collection::vec((0u8..6, 0u16..3, 0u16..4, 60usize..1514), 1..200),
    ) {
        let mut rig = Rig::new(20 * MBIT);
        let contracts = ["cell pcr=2mbit,cdvt=1ms", "slice 2ms/10ms extra", "min 1mbit", "slice 1ms/20ms"];
        // Frames of a place that is opened again do not wait for those from before.
        let (mut flows, mut generations) = (Vec::new(), [0; 3]);
        for (what, place, bucket, length) in steps {
            match what {
                0..=2 => {
                    rig.arrive(place, bucket, length, flows.len() as u32);
                    flows.push((place, bucket, generations[usize::from(place)]));
                }
                3 => {
                    let contract = contracts[usize::from(bucket)];
                    let is_open = rig.datapath.redirected_counters(place.into()).is_some();
                    generations[usize::from(place)] += i32::from(!is_open);
                    rig.open(place.into(), contract, length as u64 * 1_000).expect("open");
                }
                4 => drop(rig.datapath.close_redirect(place.into(), rig.now)),
                _ => rig.run(length as u64 * 10_000),
            }
            rig.datapath.renew_redirects(rig.now);
            rig.datapath.invariants();
        }
        rig.run(20_000_000_000);
        let mut numbers = rig.numbers();
        let mut last = std::collections::BTreeMap::new();
        for number in &numbers {
            let flow = flows[*number as usize];
            prop_assert!(last.insert(flow, *number).is_none_or(|before| before < *number));
        }
        numbers.sort_unstable();
        prop_assert_eq!(numbers, (0..flows.len() as u32).collect::<Vec<u32>>());
    }
}

#[test]
fn redirected_targets_count_as_one_more_program() {
    let mut rig = Rig::new(1_000_000_000);
    rig.now = Instant(10_000_000);
    let (period, mut program) = (2, 0);
    let budget = &mut rig.datapath.shared_budget;
    budget.count_active(&mut program, rig.now);
    assert!(budget.is_alone(period));
    rig.datapath.receive_redirected(&[0; 11], rig.now);
    assert!(!rig.datapath.shared_budget.is_alone(period));
}

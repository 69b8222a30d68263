//! Tests of parts of a reservation: what fits, what ends a part, and that a program gets no more
//! than its reservation, whatever it does.

use proptest::prelude::*;

use super::super::parts::{MOST_CHANGES, MOST_PARTS, PERIODS_OF_CHANGE};
use super::*;

const PERIOD: Nanos = Nanos::from_millis(10);

/// A machine and a keeper with 6 ms in every 10 ms for process 10 with the threads 10, 110 and 111.
fn divided() -> (FakeMachine, Keeper) {
    let mut machine = machine();
    let threads = BTreeSet::from([110, 111]);
    machine.processor.more_threads.insert(10, threads);
    let mut keeper = Keeper {
        now: Instant(1_000_000_000),
        ..Keeper::default()
    };
    keeper
        .follow(&mut machine, &[wanted(1, (6, 10, false), &[10])])
        .expect("granted");
    (machine, keeper)
}

fn give(
    keeper: &mut Keeper,
    machine: &mut FakeMachine,
    thread: u32,
    time_ms: u64,
) -> Result<(), String> {
    let given = keeper.give_part(machine, (1, "pid:10"), thread, Nanos::from_millis(time_ms));
    given.map_err(|error| error.to_string())
}

fn wait(keeper: &mut Keeper, time: Nanos) {
    keeper.now = keeper.now.after(time);
}

fn parts(keeper: &Keeper) -> Vec<(u32, u64)> {
    let status = keeper.status(1).expect("in force");
    let parts = status.parts.into_iter();
    parts
        .map(|(thread, time)| (thread, time.0 / 1_000_000))
        .collect()
}

#[test]
fn named_threads_have_their_part_and_the_others_share_the_rest() {
    let (mut machine, mut keeper) = divided();
    let before = machine.processor.clone();
    give(&mut keeper, &mut machine, 110, 2).expect("it fits");
    give(&mut keeper, &mut machine, 111, 3).expect("it fits");
    assert_eq!(exact(&machine), [(110, 2), (111, 3)]);
    assert_eq!(quota_of(&machine, "1"), Some((1, 10)));
    let status = keeper.status(1).expect("in force");
    assert_eq!(status.way, Way::Group);
    assert!(
        status.reason.contains("2 of its threads"),
        "{}",
        status.reason
    );
    assert_eq!(parts(&keeper), [(110, 2), (111, 3)]);
    // In place, also the whole.
    give(&mut keeper, &mut machine, 111, 4).expect("it fits");
    assert_eq!(exact(&machine), [(110, 2), (111, 4)]);
    assert_eq!(quota_of(&machine, "1"), Some((1, 1_000)));
    after(&mut keeper, &mut machine, 100);
    keeper.take_part(&mut machine, 1, 110).expect("taken");
    assert_eq!(exact(&machine), [(111, 4)]);
    assert_eq!(quota_of(&machine, "1"), Some((2, 10)));
    keeper.take_part(&mut machine, 1, 10).expect("it has none");
    keeper.take_part(&mut machine, 1, 111).expect("taken");
    assert_eq!(machine.processor, before);
}

#[test]
fn a_part_that_does_not_fit_is_refused_with_the_holders_and_changes_nothing() {
    let (mut machine, mut keeper) = divided();
    give(&mut keeper, &mut machine, 110, 2).expect("it fits");
    give(&mut keeper, &mut machine, 111, 1).expect("it fits");
    machine.processor.own_policies.insert(10);
    // Somebody else gave it SCHED_DEADLINE.
    let foreign = (Nanos(1), Nanos(10));
    machine
        .processor
        .more_threads
        .entry(10)
        .or_default()
        .insert(112);
    machine.processor.exact.insert(112, foreign);
    let before = (machine.processor.clone(), parts(&keeper));
    let whole = "refused: 4ms for thread 10: pid:10 has cpu 6ms/10ms, of which thread 110 has 2ms, \
                 thread 111 has 1ms; at most 3ms would fit";
    for (thread, time, text) in [
        (10, 4, whole),
        (110, 6, "thread 111 has 1ms; at most 5ms would fit"),
        (10, 0, "at least 10us in a period, not 0"),
        (10, u64::MAX / 1_000_000, "at most 3ms"),
        (10, 1, "it keeps its policy"),
        (112, 1, "SCHED_DEADLINE 1ns/10ns by another program"),
        (99, 1, "thread 99 has ended"),
    ] {
        let refused = give(&mut keeper, &mut machine, thread, time).expect_err(text);
        assert!(refused.contains(text), "{refused}");
        assert_eq!(
            (machine.processor.clone(), parts(&keeper)),
            before,
            "{text}"
        );
    }
    machine.processor.busy = true;
    for (thread, time) in [(110, 3), (111, 2)] {
        let refused = give(&mut keeper, &mut machine, thread, time).expect_err("busy");
        assert!(refused.contains("somebody else"), "{refused}");
    }
    machine.processor.busy = false;
    assert_eq!(parts(&keeper)[0], (110, 2));
}

#[test]
fn a_reservation_with_extra_or_for_nobody_is_not_divided() {
    let (mut machine, mut keeper) = divided();
    let extra = wanted(1, (6, 10, true), &[10]);
    keeper.follow(&mut machine, &[extra]).expect("changed");
    let refused = give(&mut keeper, &mut machine, 110, 2).expect_err("extra");
    assert!(refused.contains("cpu-extra"), "{refused}");
    assert_eq!(keeper.group_of_thread(&mut machine, 12), None);
    assert_eq!(
        keeper.group_of_thread(&mut machine, 111),
        Some((1, vec![10]))
    );
}

#[test]
fn the_only_thread_gives_up_the_whole_for_a_part() {
    let (mut machine, mut keeper) = (machine(), Keeper::default());
    keeper
        .follow(&mut machine, &[wanted(1, (6, 10, false), &[10])])
        .expect("granted");
    assert_eq!(exact(&machine), [(10, 6)]);
    give(&mut keeper, &mut machine, 10, 2).expect("it fits");
    assert_eq!(
        (exact(&machine), quota_of(&machine, "1")),
        (vec![(10, 2)], Some((4, 10)))
    );
    keeper.take_part(&mut machine, 1, 10).expect("taken");
    assert_eq!(exact(&machine), []);
    after(&mut keeper, &mut machine, 1_000);
    assert_eq!(exact(&machine), [(10, 6)]);
    machine.processor.own_policies.insert(10);
    give(&mut keeper, &mut machine, 10, 2).expect_err("a policy of its own");
    assert_eq!((exact(&machine), parts(&keeper)), (vec![], vec![]));
    assert_eq!(quota_of(&machine, "1"), Some((6, 10)));
}

#[test]
fn parts_follow_what_their_threads_do() {
    let (mut machine, mut keeper) = divided();
    let after_step = |change: fn(&mut FakeMachine)| {
        let (mut machine, mut keeper) = divided();
        give(&mut keeper, &mut machine, 110, 2).expect("it fits");
        give(&mut keeper, &mut machine, 111, 3).expect("it fits");
        change(&mut machine);
        after(&mut keeper, &mut machine, 100);
        let quota = quota_of(&machine, "1").expect("a quota").0;
        (parts(&keeper), exact(&machine), quota)
    };
    let one = || (vec![(111, 3)], vec![(111, 3)], 3);
    let ended = after_step(|machine| {
        let threads = machine.processor.more_threads.get_mut(&10);
        threads.expect("threads").remove(&110);
    });
    assert_eq!(ended, one());
    // Another thread has the id now. It has the ordinary policy, as the kernel's would.
    let reused = after_step(|machine| {
        machine.processor.starts.insert(110, 77);
        machine.processor.exact.remove(&110);
    });
    assert_eq!(reused, one());
    let demoted = after_step(|machine| {
        machine.processor.exact.remove(&110);
    });
    assert_eq!(demoted, one());
    // By execve(2) the thread 110 becomes the thread 10, and the others end.
    let executed = after_step(|machine| {
        machine.processor.more_threads.clear();
        let budget = machine.processor.exact.remove(&110).expect("a part");
        machine.processor.exact.clear();
        machine.processor.exact.insert(10, budget);
    });
    assert_eq!(executed, (vec![], vec![], 6));
    give(&mut keeper, &mut machine, 10, 1).expect("it fits");
    give(&mut keeper, &mut machine, 110, 2).expect("it fits");
    machine.processor.more_threads.clear();
    let budget = machine.processor.exact.remove(&110).expect("a part");
    machine.processor.exact.insert(10, budget);
    after(&mut keeper, &mut machine, 100);
    assert_eq!((parts(&keeper), exact(&machine)), (vec![], vec![]));
}

#[test]
fn a_change_of_the_reservation_ends_the_parts_without_room() {
    for (slice, left) in [
        ((5, 10, false), vec![(111, 2), (110, 3)]),
        ((4, 10, false), vec![(111, 2)]),
        ((1, 10, false), vec![]),
        ((12, 20, false), vec![]),
        ((6, 10, true), vec![]),
    ] {
        let (mut machine, mut keeper) = divided();
        give(&mut keeper, &mut machine, 111, 2).expect("it fits");
        give(&mut keeper, &mut machine, 110, 3).expect("it fits");
        keeper
            .follow(&mut machine, &[wanted(1, slice, &[10])])
            .expect("changed");
        assert_eq!(parts(&keeper), left, "{slice:?}");
        assert_eq!(exact(&machine).len(), left.len(), "{slice:?}");
    }
    // A change that fails leaves them.
    let (mut machine, mut keeper) = divided();
    give(&mut keeper, &mut machine, 111, 6).expect("it fits");
    let before = machine.processor.clone();
    machine.processor.unfit.insert(11);
    let change = [
        wanted(1, (2, 10, false), &[10]),
        wanted(2, (1, 10, false), &[11]),
    ];
    keeper.follow(&mut machine, &change).expect_err("unfit");
    machine.processor.unfit.clear();
    assert_eq!(machine.processor, before);
    assert_eq!(parts(&keeper), [(111, 6)]);
}

#[test]
fn the_end_of_a_reservation_ends_its_parts_also_after_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = || ProcessorStore::new(folder.path(), "boot");
    let mut machine = machine();
    machine
        .processor
        .more_threads
        .insert(10, BTreeSet::from([110]));
    let before = machine.processor.clone();
    let reserved = [wanted(1, (6, 10, false), &[10])];
    let mut keeper = Keeper::resume(store()).expect("no file");
    keeper.follow(&mut machine, &reserved).expect("granted");
    give(&mut keeper, &mut machine, 110, 2).expect("it fits");
    give(&mut keeper, &mut machine, 10, 3).expect("it fits");
    let in_force = machine.processor.clone();
    let mut next = Keeper::resume(store()).expect("a file");
    assert_eq!(next.exact_threads().collect::<Vec<u32>>(), [110, 10]);
    next.follow(&mut machine, &reserved).expect("continues");
    after(&mut next, &mut machine, 100);
    assert_eq!(machine.processor, in_force);
    assert_eq!(parts(&next), [(110, 2), (10, 3)]);
    next.follow(&mut machine, &[]).expect("ends");
    assert_eq!(machine.processor, before);
    assert!(next.is_idle());
}

#[test]
fn drivers_have_reservations_while_a_thread_has_a_part() {
    let (mut machine, mut keeper) = divided();
    keeper.set_drivers(vec![DriverThread {
        name: "driver-eth0".to_owned(),
        thread: 500,
        slice: Slice::new(Nanos::from_micros(200), Nanos::from_millis(1), false).expect("a slice"),
        least: Slice::new(Nanos::from_micros(100), Nanos::from_millis(1), false).expect("a slice"),
    }]);
    machine.processor.no_driver = true;
    let refused = give(&mut keeper, &mut machine, 110, 2).expect_err("no driver");
    assert!(refused.contains("the driver has none"), "{refused}");
    assert_eq!((exact(&machine), parts(&keeper)), (vec![], vec![]));
    machine.processor.no_driver = false;
    give(&mut keeper, &mut machine, 110, 2).expect("it fits");
    assert!(machine.processor.drivers.contains_key(&500));
    after(&mut keeper, &mut machine, 100);
    assert!(machine.processor.drivers.contains_key(&500));
    keeper.take_part(&mut machine, 1, 110).expect("taken");
    after(&mut keeper, &mut machine, 100);
    assert!(machine.processor.drivers.is_empty());
}

/// A thread begins with a whole budget, so parts that are handed on would be more than the
/// reservation.
#[test]
fn a_part_that_ended_is_given_again_one_period_later() {
    let (mut machine, mut keeper) = divided();
    give(&mut keeper, &mut machine, 110, 5).expect("it fits");
    keeper.take_part(&mut machine, 1, 110).expect("taken");
    for thread in [110, 111] {
        let refused = give(&mut keeper, &mut machine, thread, 5).expect_err("too early");
        assert!(
            refused.contains("5ms are of parts that ended less than 10ms ago; at most 1ms"),
            "{refused}"
        );
    }
    give(&mut keeper, &mut machine, 111, 1).expect("it fits");
    wait(&mut keeper, PERIOD);
    give(&mut keeper, &mut machine, 111, 5).expect("a period later");
    // Threads that end are the same.
    machine.processor.more_threads.insert(10, [110].into());
    machine.processor.exact.clear();
    give(&mut keeper, &mut machine, 110, 5).expect_err("too early");
}

#[test]
fn parts_change_only_so_often_and_only_so_many_threads_have_one() {
    let (mut machine, mut keeper) = divided();
    let threads: BTreeSet<u32> = (100..=100 + MOST_PARTS as u32).collect();
    machine.processor.more_threads.insert(10, threads.clone());
    let tiny = Nanos::from_micros(10);
    let cost = Nanos(PERIOD.0 * PERIODS_OF_CHANGE);
    let mut give = |keeper: &mut Keeper, thread| {
        let given = keeper.give_part(&mut machine, (1, "pid:10"), thread, tiny);
        given.map_err(|error| error.to_string())
    };
    let mut given = 0;
    for thread in threads {
        if given == MOST_PARTS {
            let refused = give(&mut keeper, thread).expect_err("one too many");
            assert!(refused.contains("64 threads of pid:10"), "{refused}");
            return;
        }
        if given >= MOST_CHANGES as usize {
            let refused = give(&mut keeper, thread).expect_err("too often");
            assert!(refused.contains("try again in 200ms"), "{refused}");
            wait(&mut keeper, cost);
        }
        give(&mut keeper, thread).expect("it fits");
        given += 1;
    }
    panic!("{given} parts are given");
}

/// What a hostile program can do between two steps of the keeper.
#[derive(Clone, Debug)]
enum Deed {
    Give(u32, u64),
    Take(u32),
    End(u32),
    Execute(u32),
    Wait(u64),
    Step,
    Resize(u64),
}

fn deed() -> impl Strategy<Value = Deed> {
    let thread = || prop_oneof![Just(10_u32), 110_u32..116];
    prop_oneof![
        5 => (thread(), 0_u64..8).prop_map(|(thread, time)| Deed::Give(thread, time)),
        2 => thread().prop_map(Deed::Take),
        2 => (110_u32..116).prop_map(Deed::End),
        1 => (110_u32..116).prop_map(Deed::Execute),
        2 => (0_u64..300).prop_map(Deed::Wait),
        1 => Just(Deed::Step),
        1 => (1_u64..9).prop_map(Deed::Resize),
    ]
}

proptest! {
    /// The budgets that began in any period sum to no more than the reservation, and what the
    /// threads have is what the books say.
    #[test]
    fn no_deeds_of_a_program_exceed_its_reservation(
        deeds in proptest::collection::vec(deed(), 1..60)
    ) {
        let (mut machine, mut keeper) = divided();
        machine.processor.more_threads.insert(10, (110..116).collect());
        let mut whole = 6;
        for deed in deeds {
            match deed {
                Deed::Give(thread, time) => {
                    let had = exact(&machine);
                    let _ = give(&mut keeper, &mut machine, thread, time);
                    let given: u64 = exact(&machine).iter().map(|(_, time)| time).sum();
                    let begun = exact(&machine).len() > had.len();
                    let cooling: u64 = keeper.kept[&1].cooling.iter().map(|(time, _)| time.0).sum();
                    prop_assert!(!begun || given + cooling / 1_000_000 <= whole);
                }
                Deed::Take(thread) => keeper.take_part(&mut machine, 1, thread).expect("taken"),
                Deed::End(thread) => {
                    // It ends, and another one starts, perhaps with its id.
                    machine.processor.exact.remove(&thread);
                    *machine.processor.starts.entry(thread).or_insert(1) += 1;
                }
                Deed::Execute(thread) => {
                    let policy = machine.processor.exact.remove(&thread);
                    machine.processor.more_threads.clear();
                    machine.processor.exact.clear();
                    machine.processor.exact.extend(policy.map(|policy| (10, policy)));
                    let step = keeper.take_part(&mut machine, 1, 99);
                    step.expect("a look at the threads");
                    let threads: BTreeSet<u32> = (110..116).collect();
                    machine.processor.more_threads.insert(10, threads.clone());
                    for thread in threads {
                        *machine.processor.starts.entry(thread).or_insert(1) += 1;
                    }
                }
                Deed::Wait(millis) => wait(&mut keeper, Nanos::from_millis(millis)),
                Deed::Step => after(&mut keeper, &mut machine, 100),
                Deed::Resize(slice) => {
                    whole = slice;
                    let change = wanted(1, (slice, 10, false), &[10]);
                    keeper.follow(&mut machine, &[change]).expect("changed");
                }
            }
            let held: u64 = parts(&keeper).iter().map(|(_, time)| time).sum();
            prop_assert!(held <= whole, "{held} of {whole}");
        }
        after(&mut keeper, &mut machine, 100);
        let mut held = parts(&keeper);
        held.sort_unstable();
        prop_assert_eq!(held, exact(&machine));
        keeper.follow(&mut machine, &[]).expect("ends");
        prop_assert_eq!(exact(&machine), []);
    }
}

//! Tests of the keeper on the tests' machine: the way of each reservation as threads come and go,
//! what is left after each kind of end, and changes that fail.

mod drivers;
mod parts;

use netnice_kernel::processor::groups::{CertainShare, Home, MOST_WEIGHT};

use super::*;
use crate::host::fake::FakeMachine;

/// A machine with processes 10, 11 and 12 of different homes.
fn machine() -> FakeMachine {
    let mut machine = FakeMachine::default();
    // 500 is a driver.
    machine.spawn(500, 0);
    for pid in [10, 11, 12] {
        machine.spawn(pid, 0);
        let home = Home {
            cpu: format!("/before/{pid}"),
            ..Home::default()
        };
        machine.processor.homes.insert(pid, home);
    }
    machine
}

fn wanted(id: u32, text: (u64, u64, bool), processes: &[u32]) -> Wanted {
    let (slice, period, extra) = text;
    let (slice, period) = (Nanos::from_millis(slice), Nanos::from_millis(period));
    Wanted {
        id,
        slice: Slice::new(slice, period, extra).expect("a slice"),
        weight: 100,
        processors: ProcessorSet::new(),
        processes: processes.iter().copied().collect(),
        all: true,
        requested: true,
    }
}

/// The budget of each thread with an exact reservation, in ms.
fn exact(machine: &FakeMachine) -> Vec<(u32, u64)> {
    let threads = machine.processor.exact.iter();
    threads
        .map(|(thread, (budget, _))| (*thread, budget.0 / 1_000_000))
        .collect()
}

fn quota_of(machine: &FakeMachine, name: &str) -> Option<(u64, u64)> {
    let (budget, period) = machine.processor.groups[name].quota?;
    Some((budget.0 / 1_000_000, period.0 / 1_000_000))
}

fn after(keeper: &mut Keeper, machine: &mut FakeMachine, millis: u64) {
    keeper.now = keeper.now.after(Nanos::from_millis(millis));
    keeper.step(machine);
}

#[test]
fn one_thread_has_its_time_exactly_and_several_have_it_as_a_group() {
    let (mut machine, mut keeper) = (machine(), Keeper::default());
    keeper
        .follow(&mut machine, &[wanted(1, (2, 10, false), &[10])])
        .expect("granted");
    assert_eq!(exact(&machine), [(10, 2)]);
    assert_eq!(keeper.status(1).expect("in force").way, Way::Exact);
    // What it starts has little until the next step.
    assert_eq!(quota_of(&machine, "1"), Some((1, 100)));
    machine
        .processor
        .more_threads
        .insert(10, BTreeSet::from([110]));
    after(&mut keeper, &mut machine, 100);
    assert_eq!(exact(&machine), []);
    assert_eq!(quota_of(&machine, "1"), Some((2, 10)));
    let status = keeper.status(1).expect("in force");
    assert_eq!((status.way, status.threads), (Way::Group, 2));
    assert!(status.reason.contains("2 threads"), "{}", status.reason);
    // One thread again: not at once, since programs may start threads again and again.
    machine.processor.more_threads.clear();
    after(&mut keeper, &mut machine, 100);
    assert_eq!(exact(&machine), []);
    after(&mut keeper, &mut machine, 1_000);
    assert_eq!(exact(&machine), [(10, 2)]);
}

#[test]
fn a_thread_that_gives_up_its_deadline_is_kept_by_the_group_for_a_while() {
    let (mut machine, mut keeper) = (machine(), Keeper::default());
    keeper
        .follow(&mut machine, &[wanted(1, (2, 10, false), &[10])])
        .expect("granted");
    machine.processor.exact.clear();
    after(&mut keeper, &mut machine, 100);
    assert_eq!(exact(&machine), []);
    assert_eq!(quota_of(&machine, "1"), Some((2, 10)));
    after(&mut keeper, &mut machine, 1_000);
    assert_eq!(exact(&machine), [(10, 2)]);
}

#[test]
fn extra_is_kept_by_a_group_without_a_quota() {
    let (mut machine, mut keeper) = (machine(), Keeper::default());
    keeper
        .follow(&mut machine, &[wanted(1, (2, 10, true), &[10])])
        .expect("granted");
    assert_eq!(exact(&machine), []);
    assert_eq!(quota_of(&machine, "1"), None);
    assert_eq!(machine.processor.groups["1"].weight, MOST_WEIGHT);
}

#[test]
fn a_kernel_that_admits_no_more_makes_it_a_group_and_says_why() {
    let (mut machine, mut keeper) = (machine(), Keeper::default());
    machine.processor.busy = true;
    keeper
        .follow(&mut machine, &[wanted(1, (2, 10, false), &[10])])
        .expect("granted");
    let status = keeper.status(1).expect("in force");
    assert_eq!(status.way, Way::Group);
    assert!(status.reason.contains("somebody else"), "{}", status.reason);
    assert_eq!(quota_of(&machine, "1"), Some((2, 10)));
    machine.processor.busy = false;
    after(&mut keeper, &mut machine, 2_000);
    assert_eq!(exact(&machine), [(10, 2)]);
}

#[test]
fn the_end_of_a_reservation_leaves_nothing_and_returns_each_process_home() {
    let (mut machine, mut keeper) = (machine(), Keeper::default());
    let before = machine.processor.clone();
    let both = [
        wanted(1, (2, 10, false), &[10]),
        wanted(2, (1, 10, true), &[11, 12]),
    ];
    keeper.follow(&mut machine, &both).expect("granted");
    assert_ne!(machine.processor, before);
    keeper.follow(&mut machine, &both[1..]).expect("one ends");
    assert_eq!(exact(&machine), []);
    assert!(!machine.processor.groups.contains_key("1"));
    keeper.follow(&mut machine, &[]).expect("all end");
    assert_eq!(machine.processor, before);
    assert!(keeper.is_idle());
}

#[test]
fn a_child_goes_home_where_its_target_was() {
    let (mut machine, mut keeper) = (machine(), Keeper::default());
    keeper
        .follow(&mut machine, &[wanted(1, (2, 10, false), &[10])])
        .expect("granted");
    machine.fork(10, 20);
    machine.processor.inside.insert(20, "1".to_owned());
    after(&mut keeper, &mut machine, 100);
    keeper.follow(&mut machine, &[]).expect("ends");
    assert_eq!(machine.processor.homes[&20].cpu, "/before/10");
}

#[test]
fn a_changed_slice_holds_at_once() {
    let (mut machine, mut keeper) = (machine(), Keeper::default());
    keeper
        .follow(&mut machine, &[wanted(1, (2, 10, false), &[10])])
        .expect("granted");
    keeper
        .follow(&mut machine, &[wanted(1, (3, 10, false), &[10])])
        .expect("changed");
    assert_eq!(exact(&machine), [(10, 3)]);
    keeper
        .follow(&mut machine, &[wanted(1, (3, 10, true), &[10])])
        .expect("changed");
    assert_eq!((exact(&machine), quota_of(&machine, "1")), (vec![], None));
}

#[test]
fn a_failed_change_changes_nothing_at_every_step() {
    let first = wanted(1, (2, 10, false), &[10]);
    for step in 0.. {
        let (mut machine, mut keeper) = (machine(), Keeper::default());
        keeper
            .follow(&mut machine, std::slice::from_ref(&first))
            .expect("granted");
        let before = machine.processor.clone();
        machine.fails_in = Some(step);
        let change = [
            wanted(1, (4, 10, false), &[10]),
            wanted(2, (1, 10, false), &[11, 12]),
        ];
        let followed = keeper.follow(&mut machine, &change);
        if machine.fails_in.take().is_some() {
            followed.expect("no step failed");
            assert!(step > 1, "steps were made to fail");
            return;
        }
        followed.expect_err("a step failed");
        assert_eq!(machine.processor, before, "step {step}");
        assert_eq!(keeper.kept.len(), 1);
    }
}

#[test]
fn an_unfit_process_is_refused_first_and_left_out_later() {
    let (mut machine, mut keeper) = (machine(), Keeper::default());
    machine.processor.unfit.insert(11);
    let before = machine.processor.clone();
    let both = wanted(1, (2, 10, false), &[10, 11]);
    let refused = keeper.follow(&mut machine, std::slice::from_ref(&both));
    assert!(
        refused
            .expect_err("unfit")
            .to_string()
            .contains("process 11")
    );
    assert_eq!(machine.processor, before);
    keeper
        .follow(&mut machine, &[wanted(1, (2, 10, false), &[10])])
        .expect("granted");
    keeper
        .follow(&mut machine, &[both])
        .expect("the other one stays outside");
    assert_eq!(machine.processor.inside.get(&11), None);
}

#[test]
fn a_name_without_processes_begins_with_the_first_one() {
    let (mut machine, mut keeper) = (machine(), Keeper::default());
    keeper
        .follow(&mut machine, &[wanted(1, (2, 10, false), &[])])
        .expect("granted");
    assert!(keeper.is_idle());
    keeper
        .follow(&mut machine, &[wanted(1, (2, 10, false), &[12])])
        .expect("granted");
    assert_eq!(exact(&machine), [(12, 2)]);
}

#[test]
fn time_that_was_waited_for_and_not_given_is_counted() {
    let (mut machine, mut keeper) = (machine(), Keeper::default());
    keeper
        .follow(&mut machine, &[wanted(1, (5, 10, true), &[10])])
        .expect("granted");
    after(&mut keeper, &mut machine, 100);
    for _ in 0..10 {
        machine.processor.waited.entry(10).or_default().0 += 90_000_000;
        let group = machine.processor.groups.get_mut("1").expect("a group");
        group.used.0 += 10_000_000;
        let busy = machine.processor.busy_time.entry(0).or_default();
        busy.0 += 100_000_000;
        after(&mut keeper, &mut machine, 100);
    }
    let status = keeper.status(1).expect("in force");
    // The first step is the reference. Of 450 ms it got 90, and 5 % of each step are the kernel's
    // inaccuracy.
    assert_eq!(status.missed, 315 / 5);
    assert_eq!(status.used, Nanos::from_millis(100));
}

#[test]
fn a_reservation_that_other_groups_outweigh_is_shown_as_not_kept() {
    let (mut machine, mut keeper) = (machine(), Keeper::default());
    machine.processor.certain = Some(CertainShare {
        part: 0.33,
        narrowest: ("/system.slice".to_owned(), 100, 300),
    });
    keeper
        .follow(&mut machine, &[wanted(1, (5, 10, true), &[10])])
        .expect("granted");
    let mut play = |used_ms: u64, steps: usize| {
        for _ in 0..steps {
            machine.processor.waited.entry(10).or_default().0 += (100 - used_ms) * 1_000_000;
            let group = machine.processor.groups.get_mut("1").expect("a group");
            group.used.0 += used_ms * 1_000_000;
            machine.processor.busy_time.entry(0).or_default().0 += 100_000_000;
            after(&mut keeper, &mut machine, 100);
        }
        keeper.status(1).expect("in force").shortfall
    };
    assert_eq!(play(50, 30), None);
    // A second of too little is no fault yet, but it lasts.
    assert_eq!(play(33, 5), None);
    let why = play(33, 40).expect("a fault");
    for word in [
        "less than 5ms/10ms",
        "/system.slice has 100 of the weights 300",
    ] {
        assert!(why.contains(word), "{word}: {why}");
    }
    assert_eq!(play(60, 40), None);
}

#[test]
fn the_next_daemon_continues_and_ends_what_is_not_wanted() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = || ProcessorStore::new(folder.path(), "boot");
    let mut machine = machine();
    let before = machine.processor.clone();
    let mut keeper = Keeper::resume(store()).expect("no file");
    let both = [
        wanted(1, (2, 10, false), &[10]),
        wanted(2, (1, 10, true), &[11]),
    ];
    keeper.follow(&mut machine, &both).expect("granted");
    let in_force = machine.processor.clone();
    drop(keeper);
    let mut next = Keeper::resume(store()).expect("a file");
    next.follow(&mut machine, &both).expect("continues");
    assert_eq!(machine.processor, in_force);
    drop(next);
    let mut last = Keeper::resume(store()).expect("a file");
    last.follow(&mut machine, &[]).expect("ends");
    assert_eq!(machine.processor, before);
    assert!(!folder.path().join("processors.json").exists());
    assert!(Keeper::resume(ProcessorStore::new(folder.path(), "other")).is_ok());
}

#[test]
fn a_damaged_file_is_refused_by_its_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("processors.json");
    for text in [
        "",
        "{}",
        "{\"version\": 9, \"boot\": \"boot\", \"reservations\": [], \"drivers\": []}",
    ] {
        std::fs::write(&path, text).expect("written");
        let error = Keeper::resume(ProcessorStore::new(folder.path(), "boot"));
        let error = error.expect_err("damaged").to_string();
        assert!(error.contains("processors.json"), "{error}");
    }
}

#[test]
fn a_user_cannot_keep_root_from_reserving_for_a_unit() {
    let (mut machine, mut keeper) = (machine(), Keeper::default());
    machine.processor.unfit.insert(11);
    let unit = Wanted {
        all: false,
        ..wanted(1, (2, 10, false), &[10, 11])
    };
    keeper
        .follow(&mut machine, &[unit])
        .expect("the other process has it");
    assert_eq!(
        machine.processor.inside.get(&10).map(String::as_str),
        Some("1")
    );
    assert_eq!(machine.processor.inside.get(&11), None);
}

#[test]
fn a_reservation_that_cannot_be_kept_does_not_fail_the_request_for_another() {
    let (mut machine, mut keeper) = (machine(), Keeper::default());
    machine.processor.unfit.insert(11);
    let old = Wanted {
        requested: false,
        ..wanted(1, (2, 10, false), &[11])
    };
    let both = [old, wanted(2, (2, 10, false), &[10])];
    keeper
        .follow(&mut machine, &both)
        .expect("the other one is granted");
    assert_eq!(exact(&machine), [(10, 2)]);
    assert_eq!(keeper.kept.len(), 1);
}

#[test]
fn groups_of_others_pass_cpu_on_as_long_as_a_reservation_needs_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = || ProcessorStore::new(folder.path(), "boot");
    let (mut machine, mut keeper) = (machine(), Keeper::resume(store()).expect("no file"));
    machine.processor.lacking = ["/before", "/before/10", "/before/11", "/elsewhere"]
        .map(str::to_owned)
        .into();
    let passing = |machine: &FakeMachine| -> Vec<String> {
        machine.processor.passing.iter().cloned().collect()
    };
    let both = [
        wanted(1, (2, 10, false), &[10]),
        wanted(2, (1, 10, true), &[11]),
    ];
    keeper.follow(&mut machine, &both).expect("granted");
    assert_eq!(passing(&machine), ["/before", "/before/10", "/before/11"]);
    drop(keeper);
    let mut next = Keeper::resume(store()).expect("a file");
    next.follow(&mut machine, &both[1..]).expect("one ends");
    assert_eq!(passing(&machine), ["/before", "/before/11"]);
    next.follow(&mut machine, &[]).expect("ends");
    assert_eq!(passing(&machine), Vec::<String>::new());
}

#[test]
fn a_target_whose_processes_start_elsewhere_has_its_group_there() {
    let (mut machine, mut keeper) = (machine(), Keeper::default());
    keeper
        .follow(&mut machine, &[wanted(1, (2, 10, false), &[10])])
        .expect("granted");
    machine.exit(10);
    // The service manager removes the group with its own; the name without processes stays.
    keeper
        .follow(&mut machine, &[wanted(1, (2, 10, false), &[])])
        .expect("without processes");
    assert_eq!(keeper.status(1).expect("in force").threads, 0);
    machine.processor.groups.clear();
    machine.processor.exact.clear();
    after(&mut keeper, &mut machine, 100);
    assert_eq!(machine.processor.groups, BTreeMap::new());
    keeper
        .follow(&mut machine, &[wanted(1, (2, 10, false), &[11])])
        .expect("again");
    assert_eq!(keeper.kept[&1].group.home.cpu, "/before/11");
    assert_eq!(machine.processor.groups["1"].weight, MOST_WEIGHT);
}

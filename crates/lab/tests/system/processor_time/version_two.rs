//! Reservations of processor time with version 2 of control groups: a program stays in its unit,
//! and the groups of others are afterwards as they were. The cgroups are made by hand, as systemd
//! makes them. The tests are skipped where version 2 has no controller `cpu`.

use std::fs;
use std::path::{Path, PathBuf};

use netnice_lab::processor_time::Load;
use netnice_lab::testbed::{TestBed, becomes_true, skip};
use netnice_lab::traffic::{Carnage, RunningCarnage};
use netnice_lab::world::Cgroup;

use super::{assert_kept, assert_restored, own_groups, refused, scheduling, start};

/// A slice with two units, one of which has processes.
struct Slice {
    slice: Cgroup,
    unit: Cgroup,
    other: Cgroup,
}

impl Slice {
    /// `None` if version 2 has no controller `cpu` here.
    fn make() -> Option<Slice> {
        let slice = Cgroup::create("time.slice").expect("a slice");
        let name = slice.name().replace('.', "-");
        let unit = slice.below(&format!("{name}-a.service")).expect("a unit");
        let other = slice.below(&format!("{name}-b.service")).expect("a unit");
        let made = Slice { slice, unit, other };
        let controllers = fs::read_to_string(made.root().join("cgroup.controllers"));
        let controllers = controllers.expect("version 2");
        if controllers.split_whitespace().any(|one| one == "cpu") {
            return Some(made);
        }
        skip("version 2 of control groups has no controller cpu here");
        None
    }

    fn root(&self) -> PathBuf {
        let folder = folder(&self.slice);
        folder.parent().expect("a slice at the root").to_owned()
    }

    /// What the groups of others pass on, and of which type they are.
    fn state(&self) -> Vec<String> {
        let read = |folder: &Path, file: &str| {
            fs::read_to_string(folder.join(file)).unwrap_or_else(|_| "none".to_owned())
        };
        let of = |folder: PathBuf| {
            let passed = read(&folder, "cgroup.subtree_control");
            let weight = read(&folder, "cpu.weight");
            format!("{}: {passed}, {weight}", read(&folder, "cgroup.type"))
        };
        let groups = [&self.slice, &self.unit, &self.other].map(folder);
        groups.into_iter().chain([self.root()]).map(of).collect()
    }

    fn run(&self, bed: &TestBed) -> RunningCarnage {
        let program = start(bed, &Carnage::new(2, 1));
        for pid in program.pids() {
            self.unit.add_process(pid).expect("a process of the unit");
        }
        program
    }
}

/// A load in a slice of its own. Directly in the root group each of its threads would count as much
/// as a slice, and the ones of nice -20 as hundreds of slices.
struct BesideSlice {
    // Ended before its group is removed.
    _load: Load,
    _slice: Cgroup,
}

impl BesideSlice {
    fn start(bed: &TestBed) -> BesideSlice {
        let slice = Cgroup::create("load.slice").expect("a slice");
        let load = Load::start(bed.world.client()).expect("a load");
        for pid in load.pids() {
            slice.add_process(pid).expect("a process of the load");
        }
        BesideSlice {
            _load: load,
            _slice: slice,
        }
    }
}

fn folder(group: &Cgroup) -> PathBuf {
    let procs = group.procs();
    procs.parent().expect("a folder").to_owned()
}

/// The groups of netnice's own are in that of the unit, which stays the processes' one; and all is
/// afterwards as before, also if the daemon has been replaced.
#[test]
fn a_unit_of_version_2_stays_as_it_is() {
    let mut bed = TestBed::new().expect("a test bed");
    let Some(groups) = Slice::make() else {
        return;
    };
    let program = groups.run(&bed);
    let pid = program.pid();
    let (before, policies) = (groups.state(), scheduling(pid));
    let target = format!("unit:{}", groups.unit.name());
    bed.run_ok(&format!("set {target} --cpu 30ms/100ms"));
    let own = own_groups(pid);
    let unit = folder(&groups.unit);
    assert!(own.iter().all(|own| own.starts_with(&unit)), "{own:?}");
    assert!(!own.is_empty(), "{:?}", scheduling(pid));
    let members = fs::read_to_string(groups.unit.procs()).expect("the unit's processes");
    for pid in program.pids() {
        let pid = pid.to_string();
        assert!(members.lines().any(|line| line == pid), "{pid}: {members}");
    }
    let load = BesideSlice::start(&bed);
    assert_kept(&program, 0.3, "in a unit");
    drop(load);
    bed.netnice.kill_daemon();
    bed.netnice.start_daemon().expect("a daemon");
    bed.run_ok(&format!("clear {target}"));
    assert_restored(pid, &policies, &own, "after clear");
    assert_eq!(groups.state(), before);
    // A target within another unit: each group is there as long as it is needed.
    let second = start(&bed, &Carnage::new(2, 0));
    groups.other.add_process(second.pid()).expect("a process");
    bed.run_ok(&format!("set {target} --cpu 30ms/100ms"));
    bed.run_ok(&format!("set pid:{} --cpu 20ms/100ms", second.pid()));
    bed.run_ok(&format!("clear {target}"));
    assert!(!own_groups(second.pid()).is_empty(), "it lost its group");
    assert_ne!(groups.state(), before, "nothing passes cpu on");
    bed.run_ok(&format!("clear pid:{}", second.pid()));
    assert_eq!(groups.state(), before);
}

/// A controller that another program uses since the reservation began stays.
#[test]
fn a_controller_that_others_use_by_now_stays() {
    let bed = TestBed::new().expect("a test bed");
    let Some(groups) = Slice::make() else {
        return;
    };
    let program = groups.run(&bed);
    let target = format!("pid:{}", program.pid());
    bed.run_ok(&format!("set {target} --cpu 30ms/100ms"));
    let weight = folder(&groups.other).join("cpu.weight");
    fs::write(&weight, "50").expect("a weight of another unit");
    bed.run_ok(&format!("clear {target}"));
    let left = fs::read_to_string(&weight).expect("the weight of another unit");
    assert_eq!(left.trim(), "50");
}

/// A unit that stops takes its groups with it; the reservation is there again with its next
/// processes.
#[test]
fn a_restarted_unit_of_version_2_has_its_reservation() {
    let bed = TestBed::new().expect("a test bed");
    let Some(groups) = Slice::make() else {
        return;
    };
    let before = groups.state();
    let first = groups.run(&bed);
    let target = format!("unit:{}", groups.unit.name());
    bed.run_ok(&format!("set {target} --cpu 30ms/100ms"));
    drop(first);
    groups.unit.recreate().expect("the unit again");
    let second = groups.run(&bed);
    let is_inside = becomes_true(|| second.pids().iter().all(|pid| !own_groups(*pid).is_empty()));
    assert!(is_inside, "{:?}", scheduling(second.pid()));
    let load = BesideSlice::start(&bed);
    assert_kept(&second, 0.3, "after a restart");
    drop(load);
    bed.run_ok(&format!("clear {target}"));
    assert_eq!(groups.state(), before);
}

/// With version 2 a reservation is kept within one group: a program whose group contains others
/// with processes has none, and nothing is changed.
#[test]
fn a_group_that_contains_others_with_processes_is_refused() {
    let bed = TestBed::new().expect("a test bed");
    let Some(groups) = Slice::make() else {
        return;
    };
    let (outer, inner) = (bed.sleeper(), bed.sleeper());
    groups.unit.add_process(outer.pid()).expect("a process");
    let below = groups.unit.below("inner").expect("a group");
    below.add_process(inner.pid()).expect("a process");
    let before = (groups.state(), scheduling(outer.pid()));
    let line = format!("set pid:{} --cpu 1ms/10ms", outer.pid());
    refused(&bed, &line, 1, &["threaded"]);
    assert_eq!((groups.state(), scheduling(outer.pid())), before);
}

/// A slice whose weight is too low for the reservation: the target is shown as degraded, with the
/// slice, until the weight suffices.
#[test]
fn a_share_that_other_slices_take_is_shown() {
    let bed = TestBed::new().expect("a test bed");
    let Some(groups) = Slice::make() else {
        return;
    };
    let heavy = Cgroup::create("heavy.slice").expect("a slice");
    let load = start(&bed, &Carnage::new(4, 0));
    heavy.add_process(load.pid()).expect("a process");
    let program = groups.run(&bed);
    let target = format!("unit:{}", groups.unit.name());
    bed.run_ok(&format!("set {target} --cpu 60ms/100ms"));
    let weigh = |slice: &Cgroup, weight: &str| {
        fs::write(folder(slice).join("cpu.weight"), weight).expect("a weight");
    };
    let faults = || bed.target(&target)["degraded"].to_string();
    weigh(&heavy, "10000");
    weigh(&groups.slice, "1");
    let is_shown = becomes_true(|| {
        let faults = faults();
        faults.contains("not kept") && faults.contains(groups.slice.name())
    });
    assert!(is_shown, "{}", faults());
    weigh(&heavy, "100");
    weigh(&groups.slice, "100");
    assert!(becomes_true(|| faults() == "[]"), "{}", faults());
    assert_kept(&program, 0.6, "with equal weights");
    bed.run_ok(&format!("clear {target}"));
}

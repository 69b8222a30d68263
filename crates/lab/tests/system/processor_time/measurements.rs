//! The exact figures of reservations of processor time, beside programs that use all processors.
//! They take minutes and want a machine on which nothing else runs.

use std::fs;
use std::time::Duration;

use netnice_lab::processor_time::{Load, Meter, Usage};
use netnice_lab::testbed::TestBed;
use netnice_lab::traffic::{Carnage, RunningCarnage};

use super::{VersionOne, assert_restored, own_groups, scheduling};

/// Measures several carnages for so many seconds, from the second second on.
fn measure(carnages: &[&RunningCarnage], seconds: u64) -> Vec<Usage> {
    std::thread::sleep(Duration::from_secs(1));
    let sets = carnages.iter().map(|one| one.pids()).collect();
    let meter = Meter::start(sets, TENTH).expect("a meter");
    std::thread::sleep(Duration::from_secs(seconds));
    meter.stop().expect("a measurement")
}

/// The least and the largest part of a processor in a second.
fn extremes(usage: &Usage) -> (f64, f64) {
    let shares = usage.shares(SECOND);
    assert!(!shares.is_empty(), "{usage:?}");
    let least = shares.iter().copied().fold(f64::MAX, f64::min);
    (least, shares.iter().copied().fold(0.0, f64::max))
}

fn assert_within(usage: &Usage, part: f64, tolerance: f64, has_extra: bool, what: &str) {
    let (least, most) = extremes(usage);
    println!(
        "{what}: {:.4} of a processor in the mean, {least:.4} to {most:.4} in a second",
        usage.share()
    );
    assert!(
        least >= part * (1.0 - tolerance),
        "{what}: {least:.4}, not {part}"
    );
    assert!(
        has_extra || most <= part * (1.0 + tolerance),
        "{what}: {most:.4}, not {part}"
    );
}

/// 2 ms in 10 ms beside the load: each second 99 to 101 % of that, and each tenth of a second no
/// further off than a tick of the kernel, because the kernel stops a thread at a tick.
#[test]
#[ignore = "judges one percent, on a quiet machine"]
fn an_exact_reservation_is_kept_to_the_percent() {
    let bed = TestBed::new().expect("a test bed");
    let carnage = Carnage::new(1, 0).start(bed.world.client(), None);
    let carnage = carnage.expect("a carnage");
    let pid = carnage.pid();
    bed.run_ok(&format!("set pid:{pid} --cpu 2ms/10ms"));
    let _load = Load::start(bed.world.client()).expect("a load");
    let usage = measure(&[&carnage], 30).remove(0);
    let excesses = usage.excesses(TENTH, 0.2);
    let farthest = excesses
        .iter()
        .fold(0.0_f64, |most, one| most.max(one.abs()))
        / 1e6;
    println!("a tenth of a second is up to {farthest:.2} ms off");
    assert_within(&usage, 0.2, 0.01, false, "2ms/10ms");
    assert!(farthest <= TICK_MS, "{farthest:.2} ms off");
}

/// Programs of several threads with children: within 3 % on one processor and 5 % on all, from the
/// second second on; no less with extra.
#[test]
#[ignore = "takes some minutes, on a quiet machine"]
fn a_group_gets_its_reservation_in_each_second() {
    let bed = TestBed::new().expect("a test bed");
    let _load = Load::start(bed.world.client()).expect("a load");
    for processor in [Some(0), None] {
        let tolerance = if processor.is_some() { 0.03 } else { 0.05 };
        for threads in [1, 4, 16] {
            let carnage = Carnage::new(threads, 2).start(bed.world.client(), processor);
            let carnage = carnage.expect("a carnage");
            let pid = carnage.pid();
            for (percent, has_extra) in [(20, false), (60, false), (20, true), (60, true)] {
                let extra = if has_extra { " --cpu-extra" } else { "" };
                bed.run_ok(&format!("clear pid:{pid}"));
                bed.run_ok(&format!("set pid:{pid} --cpu {percent}ms/100ms{extra}"));
                let usage = measure(&[&carnage], 5).remove(0);
                let what = format!("{threads} threads on {processor:?}, {percent} %{extra}");
                let part = f64::from(percent) / 100.0;
                assert_within(&usage, part, tolerance, has_extra, &what);
            }
        }
    }
}

/// Two programs with extra have what they reserve, and share the rest by their weights.
#[test]
#[ignore = "judges five percent, on a quiet machine"]
fn what_is_not_reserved_is_shared_by_weight() {
    let bed = TestBed::new().expect("a test bed");
    let [a, b] = [(); 2].map(|()| {
        let carnage = Carnage::new(2, 0).start(bed.world.client(), Some(0));
        carnage.expect("a carnage")
    });
    for (weight, ratio) in [(100, 1.0), (300, 3.0)] {
        let set = |carnage: &RunningCarnage, weight: u32| {
            let pid = carnage.pid();
            bed.run_ok(&format!(
                "set pid:{pid} --cpu 20ms/100ms --cpu-extra --weight {weight}"
            ));
        };
        set(&a, 100);
        set(&b, weight);
        let usages = measure(&[&a, &b], 10);
        let rest = [0, 1].map(|number| usages[number].share() - 0.2);
        println!("weights 100 and {weight}: {rest:.4?} of a processor above the reservations");
        let got = rest[1] / rest[0];
        assert!((got / ratio - 1.0).abs() <= 0.05, "{got:.3}, not {ratio}");
    }
}

/// Control groups and sessions that come and go do not take what is reserved.
#[test]
#[ignore = "takes a minute, on a quiet machine"]
fn groups_that_come_and_go_take_nothing() {
    let bed = TestBed::new().expect("a test bed");
    let client = bed.world.client();
    for processor in [Some(0), None] {
        let carnage = Carnage::new(4, 0).start(client, processor);
        let carnage = carnage.expect("a carnage");
        bed.run_ok(&format!("set pid:{} --cpu 60ms/100ms", carnage.pid()));
        std::thread::sleep(SECOND);
        let meter = Meter::start(vec![carnage.pids()], TENTH).expect("a meter");
        for number in 0..6 {
            // Sessions are autogroups.
            let others = (0..4).map(|_| {
                let other = Carnage::new(2, 0).nice(-5 * number).session();
                other.start(client, None).expect("a carnage")
            });
            let others: Vec<RunningCarnage> = others.collect();
            let groups = others[2..].iter();
            let groups = groups.filter_map(|other| VersionOne::make("cpu", other.pid()));
            let groups: Vec<VersionOne> = groups.collect();
            for group in &groups {
                fs::write(group.folder.join("cpu.shares"), "4096").expect("a weight");
            }
            std::thread::sleep(SECOND * 2);
        }
        let usage = meter.stop().expect("a measurement").remove(0);
        let tolerance = if processor.is_some() { 0.03 } else { 0.05 };
        assert_within(
            &usage,
            0.6,
            tolerance,
            false,
            "beside groups that come and go",
        );
    }
}

/// A thousand reservations and their ends change nothing, and cost the daemon no memory.
#[test]
#[ignore = "a thousand loops"]
fn a_thousand_loops_are_flat() {
    let bed = TestBed::new().expect("a test bed");
    let carnages = [Carnage::new(1, 0), Carnage::new(2, 1)];
    let carnages = carnages.map(|one| {
        let carnage = one.nice(2).start(bed.world.client(), None);
        carnage.expect("a carnage")
    });
    let before = carnages.each_ref().map(|one| scheduling(one.pid()));
    let daemon = bed.netnice.pid().expect("a daemon");
    let files = || {
        fs::read_dir(format!("/proc/{daemon}/fd"))
            .expect("a daemon")
            .count()
    };
    let mut at_first = None;
    // Two loops in each.
    for number in 0..500 {
        for (carnage, before) in carnages.iter().zip(&before) {
            let pid = carnage.pid();
            bed.run_ok(&format!("set pid:{pid} --cpu 2ms/10ms"));
            let groups = own_groups(pid);
            bed.run_ok(&format!("clear pid:{pid}"));
            assert_restored(pid, before, &groups, "after clear");
        }
        if number == 50 {
            at_first = Some((bed.netnice.daemon_memory().expect("a daemon"), files()));
        }
    }
    let (memory, open) = at_first.expect("a hundred loops");
    let now = bed.netnice.daemon_memory().expect("a daemon");
    println!(
        "{memory} bytes of memory and {open} files, then {now} and {}",
        files()
    );
    assert!(now <= memory + MEMORY_NOISE, "{memory} bytes, then {now}");
    assert!(files() <= open + 2, "{open} files, then {}", files());
}

const SECOND: Duration = Duration::from_secs(1);
const TENTH: Duration = Duration::from_millis(100);
/// The time between two ticks of a kernel with CONFIG_HZ=250.
const TICK_MS: f64 = 4.0;
/// What the daemon's memory may grow by without a leak.
const MEMORY_NOISE: u64 = 1 << 20;

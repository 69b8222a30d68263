//! Tests reservations of processor time (`--cpu`): they are kept beside programs that use all
//! processors, refused if they do not fit, and leave nothing behind.
//!
//! The figures here leave room for a busy machine, in the direction in which a busy machine can
//! err: a program gets at least about half of its reservation, where it would have a few percent of
//! that without it, and never more than a tenth above it. [`measurements`] has the exact ones.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use netnice_core::units::Nanos;
use netnice_kernel::processor::policy::{self, Deadline};
use netnice_lab::process::{EVENT_TIMEOUT, Proc, own_group};
use netnice_lab::processor_time::{self, Load};
use netnice_lab::testbed::{TestBed, becomes_true};
use netnice_lab::traffic::{Carnage, RunningCarnage};
use netnice_lab::world::CommandOutput;

use crate::users::{ANN, process_of, run_as};

mod container;
mod drivers;
mod measurements;
mod parts;
mod version_two;

fn start(bed: &TestBed, carnage: &Carnage) -> RunningCarnage {
    let client = bed.world.client();
    carnage.start(client, None).expect("a carnage")
}

/// The part of one processor that a carnage gets over a second.
fn share(carnage: &RunningCarnage) -> f64 {
    let (span, every) = (Duration::from_secs(1), Duration::from_millis(100));
    let usage = processor_time::measure(&carnage.pids(), span, every);
    usage.expect("a measurement").share()
}

/// Asserts that a carnage soon gets about `part` of one processor.
fn assert_kept(carnage: &RunningCarnage, part: f64, what: &str) {
    let until = Instant::now() + EVENT_TIMEOUT;
    loop {
        let got = share(carnage);
        if (0.55 * part..=1.1 * part).contains(&got) {
            return;
        }
        assert!(
            Instant::now() < until,
            "{what}: {got:.3} of a processor, not {part}"
        );
    }
}

/// The threads of a process, in order.
fn threads(pid: u32) -> Vec<u32> {
    let names = fs::read_dir(format!("/proc/{pid}/task")).expect("a process");
    let names = names.map(|one| one.expect("a thread").file_name());
    let numbers = names.map(|name| name.to_str().and_then(|name| name.parse().ok()));
    let mut numbers: Vec<u32> = numbers.map(|number| number.expect("a number")).collect();
    numbers.sort_unstable();
    numbers
}

/// How the kernel schedules a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Scheduling {
    thread: u32,
    /// A number of linux/sched.h.
    policy: u32,
    nice: String,
    priority: String,
    processors: String,
    groups: BTreeSet<String>,
}

/// How the kernel schedules the threads of a process.
fn scheduling(pid: u32) -> Vec<Scheduling> {
    let of = |thread: u32| {
        let file = |name: &str| {
            let path = format!("/proc/{pid}/task/{thread}/{name}");
            fs::read_to_string(path).expect("a thread")
        };
        let stat = file("stat");
        // Fields 3 and later of proc_pid_stat(5) follow the name.
        let (_, fields) = stat.rsplit_once(") ").expect("a name in brackets");
        let fields: Vec<&str> = fields.split(' ').collect();
        let status = file("status");
        let mut lines = status.lines();
        let allowed = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        Scheduling {
            thread,
            policy: fields[41 - 3].trim().parse().expect("a policy"),
            nice: fields[19 - 3].to_owned(),
            priority: fields[40 - 3].to_owned(),
            processors: allowed.expect("the processors").trim().to_owned(),
            groups: file("cgroup").lines().map(str::to_owned).collect(),
        }
    };
    threads(pid).into_iter().map(of).collect()
}

/// The folders of the control groups of netnice's own in which the threads of a process are.
fn own_groups(pid: u32) -> BTreeSet<PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts").expect("the mounts");
    let mount_of = |controller: &str| {
        let lines = mounts
            .lines()
            .map(|line| line.split(' ').collect::<Vec<_>>());
        let mut lines = lines.filter(|fields| match fields[2] {
            "cgroup2" => controller.is_empty(),
            "cgroup" => fields[3].split(',').any(|option| option == controller),
            _ => false,
        });
        lines.next().map(|fields| PathBuf::from(fields[1]))
    };
    let all = scheduling(pid).into_iter().flat_map(|thread| thread.groups);
    let own = all.filter(|line| line.contains("/netnice-"));
    let folders = own.map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let controllers = fields.next().expect("controllers");
        let path = fields.next().expect("a path");
        let controller = controllers.split(',').next().unwrap_or_default();
        let mount = mount_of(controller).expect("a mounted controller");
        mount.join(path.trim_start_matches('/'))
    });
    folders.collect()
}

/// Asserts that the threads of a process are soon scheduled as before, and that these groups are
/// gone.
fn assert_restored(pid: u32, before: &[Scheduling], groups: &BTreeSet<PathBuf>, what: &str) {
    let restored =
        becomes_true(|| scheduling(pid) == before && groups.iter().all(|folder| !folder.exists()));
    let left: Vec<_> = groups.iter().filter(|folder| folder.exists()).collect();
    assert!(
        restored,
        "{what}: {:?}, not {before:?}; left: {left:?}",
        scheduling(pid)
    );
}

/// Runs a command line that must fail with this status, print all of `words`, and change nothing.
fn refused(bed: &TestBed, line: &str, status: i32, words: &[&str]) -> CommandOutput {
    let before = bed.shown();
    let answer = bed.run_with_status(line, status);
    for word in words {
        let said = &answer.stderr;
        assert!(said.contains(word), "`{line}` lacks `{word}`: {said}");
    }
    assert_eq!(before, bed.shown(), "`{line}` changed something");
    answer
}

/// A process outside netnice that has a part of a processor by SCHED_DEADLINE. The kernel frees
/// what another thread had only some time after its end, so the start is repeated until it
/// succeeds.
fn foreign(budget_ms: u32) -> Proc {
    let budget = (budget_ms * 1_000_000).to_string();
    let until = Instant::now() + EVENT_TIMEOUT;
    loop {
        let mut command = own_group("chrt");
        command.args(["-d", "--sched-runtime", &budget, "--sched-deadline"]);
        command.args(["100000000", "--sched-period", "100000000", "0"]);
        command.args(["sh", "-c", "echo here; exec sleep 600"]);
        let mut process = Proc::start(command).expect("chrt");
        match process.next_line(EVENT_TIMEOUT) {
            Ok(_) => return process,
            Err(error) => assert!(Instant::now() < until, "{error:#}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The meter and the load themselves, with a reservation by hand: the kernel keeps it beside the
/// load.
#[test]
fn a_carnage_beside_the_load_gets_what_chrt_reserves() {
    let bed = TestBed::new().expect("a test bed");
    let load = Load::start(bed.world.client()).expect("a load");
    let mut carnage = start(&bed, &Carnage::new(1, 0));
    let pid = carnage.pid().to_string();
    let chrt = Command::new("chrt")
        .args([
            "-d",
            "--sched-runtime",
            "20000000",
            "--sched-deadline",
            "100000000",
        ])
        .args(["--sched-period", "100000000", "-p", "0", &pid])
        .status();
    assert!(chrt.expect("chrt").success());
    assert_eq!(scheduling(carnage.pid())[0].policy, DEADLINE);
    assert_kept(&carnage, 0.2, "chrt");
    let spun = load.spun().expect("a load");
    let measured = carnage.processor_time().expect("a time");
    let reported = carnage.reported_time().expect("a time");
    assert!(reported >= measured, "{reported} before {measured}");
    let last = carnage.stop().expect("a report");
    assert!(last >= reported, "{last} before {reported}");
    assert!(load.spun().expect("a load") > spun, "the load stands still");
}

/// A program with a thread and no extra gets SCHED_DEADLINE; with a second thread it gets a group;
/// its children count too. Each is kept beside the load, and no more is given.
#[test]
fn a_reservation_is_kept_whatever_threads_come() {
    let bed = TestBed::new().expect("a test bed");
    let mut carnage = start(&bed, &Carnage::new(1, 0).nice(5));
    let pid = carnage.pid();
    let before = scheduling(pid);
    bed.run_ok(&format!("set pid:{pid} --cpu 3ms/10ms"));
    let is_exact = becomes_true(|| scheduling(pid)[0].policy == DEADLINE);
    assert!(is_exact, "{:?}", scheduling(pid));
    let explained = bed.run_ok(&format!("explain pid:{pid}")).stdout;
    assert!(explained.contains("SCHED_DEADLINE"), "{explained}");
    // Each load begins after the requests: netnice itself hardly runs beside it.
    let load = Load::start(bed.world.client()).expect("a load");
    assert_kept(&carnage, 0.3, "one thread");

    carnage.start_thread().expect("a thread");
    let is_grouped = becomes_true(|| {
        let all = scheduling(pid);
        all.len() == 2 && all.iter().all(|thread| thread.policy != DEADLINE)
    });
    assert!(is_grouped, "{:?}", scheduling(pid));
    assert_kept(&carnage, 0.3, "two threads");
    let groups = own_groups(pid);
    assert!(!groups.is_empty(), "{:?}", scheduling(pid));
    let second = scheduling(pid)[1].clone();
    drop(load);
    bed.run_ok(&format!("clear pid:{pid}"));
    let before = [
        before[0].clone(),
        Scheduling {
            thread: second.thread,
            ..before[0].clone()
        },
    ];
    assert_restored(pid, &before, &groups, "after clear");

    let family = start(&bed, &Carnage::new(2, 2));
    bed.run_ok(&format!("set pid:{} --cpu 40ms/100ms", family.pid()));
    let load = Load::start(bed.world.client()).expect("a load");
    assert_kept(&family, 0.4, "threads and children");
    // Less than it had, and with extra no less than its part.
    drop(load);
    bed.run_ok(&format!("set pid:{} --cpu 20ms/100ms", family.pid()));
    let _load = Load::start(bed.world.client()).expect("a load");
    assert_kept(&family, 0.2, "a smaller reservation");
}

/// A command that netnice starts with a reservation has it from its begin on, with its children.
#[test]
fn a_command_is_started_with_a_reservation() {
    let bed = TestBed::new().expect("a test bed");
    let words = ["run", "--cpu", "30ms/100ms", "--", "sh", "-c", SHELL];
    let mut shell = Proc::start(bed.netnice.command(&words)).expect("netnice run");
    let line = shell.next_line(EVENT_TIMEOUT).expect("the ids");
    // After the request: beside this load an ordinary program such as netnice hardly runs.
    let _load = Load::start(bed.world.client()).expect("a load");
    let pids = line.split(' ').map(|pid| pid.parse().expect("an id"));
    let pids: Vec<u32> = pids.collect();
    let kept = becomes_true(|| {
        let (span, every) = (Duration::from_secs(1), Duration::from_millis(100));
        let usage = processor_time::measure(&pids, span, every).expect("a measurement");
        (0.15..=0.33).contains(&usage.share())
    });
    assert!(kept, "{:?}", scheduling(pids[0]));
}

/// Two children that count, and their parent that waits.
const SHELL: &str = "(while :; do :; done) & a=$!; (while :; do :; done) & echo $a $!; wait";

/// What is left is refused to no one; more is, with those that have the rest and what would fit.
#[test]
fn a_refusal_names_holders_and_what_would_fit() {
    let bed = TestBed::new().expect("a test bed");
    let [a, b, c] = [(); 3].map(|()| bed.sleeper());
    let set = |of: &Proc, cpu: &str| format!("set pid:{} --cpu {cpu}", of.pid());
    bed.run_ok(&set(&a, "80ms/100ms"));
    bed.run_ok(&set(&b, "70ms/100ms"));
    let holders = [&a, &b].map(|held| format!("pid:{}", held.pid()));
    let words = ["processor", &holders[0], &holders[1], "ms"];
    let answer = refused(&bed, &set(&c, "60ms/100ms"), 3, &words);
    let fitting = answer.stderr.split([' ', '`', ',', ':', '\n']);
    let mut fitting = fitting.filter(|word| word.ends_with("/100ms") && *word != "60ms/100ms");
    let fitting = fitting.next_back();
    let fitting = fitting.unwrap_or_else(|| panic!("nothing that fits: {}", answer.stderr));
    bed.run_ok(&set(&c, fitting));
    bed.run_ok(&format!("clear pid:{}", a.pid()));
    bed.run_ok(&set(&c, "60ms/100ms"));
}

/// Each of 64 clients at the same time wants 5 % of a processor. As many get it as fit, and what is
/// refused changes nothing.
#[test]
fn many_clients_at_once_get_no_more_than_there_is() {
    let bed = TestBed::new().expect("a test bed");
    let sleepers: Vec<Proc> = (0..64).map(|_| bed.sleeper()).collect();
    let ask = |sleeper: &Proc| {
        let target = format!("pid:{}", sleeper.pid());
        let words = ["set", &target, "--cpu", "5ms/100ms"];
        let mut command = bed.netnice.command(&words);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().expect("a client")
    };
    let clients: Vec<_> = sleepers.iter().map(ask).collect();
    let status = |mut client: Child| client.wait().expect("an answer").code();
    let answers: Vec<Option<i32>> = clients.into_iter().map(status).collect();
    let with = |wanted: i32| {
        answers
            .iter()
            .filter(|status| **status == Some(wanted))
            .count()
    };
    let granted = with(0);
    assert_eq!(granted + with(3), 64, "{answers:?}");
    let another = bed.sleeper();
    let line = format!("set pid:{} --cpu 5ms/100ms", another.pid());
    let answer = refused(&bed, &line, 3, &["can be promised"]).stderr;
    let percent = answer.split(" % can be promised").next();
    let percent = percent.and_then(|text| text.split(' ').next_back()?.parse().ok());
    let percent: f64 = percent.unwrap_or_else(|| panic!("{answer}"));
    assert_eq!(granted, (percent / 5.0 + 0.01) as usize, "{answer}");
    let shown = bed.shown();
    let targets = shown["targets"].as_array().expect("targets");
    assert_eq!(targets.len(), granted);
    for sleeper in sleepers {
        let (pid, policies) = (sleeper.pid(), scheduling(sleeper.pid()));
        let name = format!("pid:{pid}");
        let has = targets.iter().any(|one| one["target"] == name.as_str());
        assert_eq!(has, !own_groups(pid).is_empty(), "{name}: {policies:?}");
    }
}

/// A thread outside netnice that has SCHED_DEADLINE takes its part, and is named.
#[test]
fn a_foreign_reservation_is_named() {
    let bed = TestBed::new().expect("a test bed");
    let sleeper = bed.sleeper();
    let line = format!("set pid:{} --cpu 60ms/100ms", sleeper.pid());
    let others = [80, 70].map(foreign);
    let names = others.each_ref().map(|other| other.pid().to_string());
    refused(&bed, &line, 3, &["sleep", &names[0], &names[1]]);
    drop(others);
    bed.run_ok(&line);
}

/// While the daemon is away the reservation goes on; a new daemon takes it over, and clear restores
/// everything. The same for a daemon that was stopped, and for one thread and several.
#[test]
fn a_reservation_outlives_the_daemon_and_leaves_nothing() {
    let mut bed = TestBed::new().expect("a test bed");
    let one = start(&bed, &Carnage::new(1, 0).nice(3));
    let many = start(&bed, &Carnage::new(2, 1));
    let pids = [one.pid(), many.pid()];
    let before = pids.map(scheduling);
    bed.run_ok(&format!("set pid:{} --cpu 2ms/10ms", pids[0]));
    bed.run_ok(&format!("set pid:{} --cpu 30ms/100ms", pids[1]));
    // netniced is an ordinary program: beside the load its start would take a minute.
    let kept = |bed: &TestBed, when: &str| {
        let load = Load::start(bed.world.client()).expect("a load");
        assert_kept(&one, 0.2, &format!("one thread {when}"));
        assert_kept(&many, 0.3, &format!("several {when}"));
        drop(load);
    };
    kept(&bed, "under a daemon");
    let groups = pids.map(own_groups);
    for is_killed in [true, false] {
        if is_killed {
            bed.netnice.kill_daemon();
        } else {
            bed.netnice.stop_daemon();
        }
        kept(&bed, "without a daemon");
        bed.netnice.start_daemon().expect("a daemon");
        kept(&bed, "under a new daemon");
    }
    for ((pid, before), groups) in pids.into_iter().zip(&before).zip(&groups) {
        bed.run_ok(&format!("clear pid:{pid}"));
        assert_restored(pid, before, groups, "after clear");
    }
}

/// A program that has ended holds nothing: its groups are gone and its part is free.
#[test]
fn the_reservation_of_an_ended_program_is_free() {
    let bed = TestBed::new().expect("a test bed");
    let many = start(&bed, &Carnage::new(2, 1));
    let (pid, before) = (many.pid(), bed.shown());
    bed.run_ok(&format!("set pid:{pid} --cpu 80ms/100ms"));
    let grouped = becomes_true(|| !own_groups(pid).is_empty());
    assert!(grouped, "{:?}", scheduling(pid));
    let groups = own_groups(pid);
    drop(many);
    let gone =
        becomes_true(|| groups.iter().all(|folder| !folder.exists()) && bed.shown() == before);
    assert!(gone, "{:?}: {groups:?}", bed.shown());
    let [a, b] = [(); 2].map(|()| bed.sleeper());
    for sleeper in [&a, &b] {
        bed.run_ok(&format!("set pid:{} --cpu 80ms/100ms", sleeper.pid()));
    }
}

/// Regression: Linux 6.18 goes on counting the time of a sleeping thread that loses SCHED_DEADLINE.
#[test]
fn a_sleeping_thread_gives_all_of_its_time_back() {
    let bed = TestBed::new().expect("a test bed");
    let sleeper = bed.sleeper();
    let thread = sleeper.pid();
    let stat = || fs::read_to_string(format!("/proc/{thread}/stat")).expect("a process");
    assert!(becomes_true(|| stat().contains("(sleep) S ")), "{}", stat());
    // All together would be three processors for each processor.
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
    for round in 0..60 * processors {
        let time = Deadline::exactly(Nanos::from_micros(500), Nanos::from_millis(10));
        let set = policy::set_deadline(thread, time);
        set.unwrap_or_else(|error| panic!("round {round}: {error}"));
        policy::set_other(thread).expect("another policy");
    }
    assert_eq!(scheduling(thread)[0].policy, 0);
}

/// A plain user may not reserve processor time for its own process, and not through a name either.
#[test]
fn a_plain_user_may_not_reserve() {
    let bed = TestBed::new().expect("a test bed");
    let process = process_of(&bed, ANN);
    let (pid, before) = (process.pid(), bed.shown());
    for line in [
        format!("set pid:{pid} --cpu 1ms/10ms"),
        format!("set pid:{pid} --up 4mbit --cpu 1ms/10ms --cpu-extra"),
    ] {
        let answer = run_as(&bed, ANN, &line);
        assert_ne!(answer.status, 0, "`{line}`: {}", answer.stdout);
        assert!(answer.stderr.contains("cpu"), "{}", answer.stderr);
        assert!(answer.stderr.contains("root"), "{}", answer.stderr);
    }
    assert_eq!(bed.shown(), before);
    let policies: Vec<u32> = scheduling(pid).iter().map(|one| one.policy).collect();
    assert_eq!(policies, [0]);
}

/// Each bad request gets one clear error, and nothing is changed.
#[test]
fn bad_requests_change_nothing() {
    let bed = TestBed::new().expect("a test bed");
    let sleeper = bed.sleeper();
    let pid = sleeper.pid();
    let before = scheduling(pid);
    let set = |pid: u32, cpu: &str| format!("set pid:{pid} --cpu {cpu}");
    refused(&bed, &set(pid, "11ms/10ms"), 2, &["11ms", "10ms"]);
    refused(&bed, &set(pid, "0ms/10ms"), 2, &["zero"]);
    refused(&bed, &set(pid, "10ms"), 2, &["10ms"]);
    refused(
        &bed,
        &format!("set pid:{pid} --cpu-extra"),
        2,
        &["cpu-extra"],
    );
    // Beyond the kernel's limits.
    refused(&bed, &set(pid, "10us/50us"), 2, &["50us", "100us"]);
    refused(&bed, &set(pid, "500ns/10ms"), 2, &["500ns", "10us"]);
    refused(&bed, &set(pid, "1ms/10s"), 2, &["10s", "1s"]);
    // Less than the kernel's smallest quota.
    refused(&bed, &set(pid, "100us/1s"), 2, &["100us/1s", "1 ms"]);
    // kthreadd. It is in no namespace of a test, which is said first.
    refused(&bed, &set(2, "1ms/10ms"), 3, &["process 2 (kthreadd)"]);
    assert_eq!(scheduling(pid), before);

    let deadline: &[&str] = &[
        "-d",
        "--sched-runtime=1000000",
        "--sched-deadline=100000000",
        "--sched-period=100000000",
    ];
    for (policy, word) in [(deadline, "SCHED_DEADLINE"), (&["-f"], "SCHED_FIFO")] {
        let own = bed.sleeper();
        let priority = if word == "SCHED_FIFO" { "7" } else { "0" };
        let mut chrt = Command::new("chrt");
        chrt.args(policy).args(["-p", priority]);
        let done = chrt.arg(own.pid().to_string()).status();
        assert!(done.expect("chrt").success());
        let before = scheduling(own.pid());
        refused(&bed, &set(own.pid(), "1ms/10ms"), 3, &[word]);
        assert_eq!(scheduling(own.pid()), before);
    }

    let mut ended = bed.sleeper();
    ended.kill();
    let gone = ended.pid();
    let answer = bed.netnice.run_line(&set(gone, "1ms/10ms"));
    let answer = format!("{:#}", answer.expect_err("it has ended"));
    assert!(answer.contains(&gone.to_string()), "{answer}");
}

/// A group with a quota, and one that is frozen, would hold the program in spite of netnice.
#[test]
fn a_program_in_a_bounded_or_frozen_group_is_refused() {
    let bed = TestBed::new().expect("a test bed");
    let sleeper = bed.sleeper();
    let pid = sleeper.pid();
    let line = format!("set pid:{pid} --cpu 1ms/10ms");
    let cases = [
        ("cpu", "cpu.cfs_quota_us", "10000", "quota"),
        ("freezer", "freezer.state", "FROZEN", "frozen"),
    ];
    for (controller, file, value, word) in cases {
        let Some(group) = VersionOne::make(controller, pid) else {
            return netnice_lab::testbed::skip("no control groups of version 1");
        };
        fs::write(group.folder.join(file), value).expect("a group of this controller");
        let before = scheduling(pid);
        refused(&bed, &line, 3, &[word]);
        assert_eq!(scheduling(pid), before);
    }
    bed.run_ok(&line);
}

/// A group of version 1 with one process. The process is given back to the root when it is dropped.
struct VersionOne {
    folder: PathBuf,
    root: PathBuf,
    pid: u32,
}

impl VersionOne {
    /// `None` if the controller is not mounted with version 1.
    fn make(controller: &str, pid: u32) -> Option<VersionOne> {
        let root = PathBuf::from("/sys/fs/cgroup").join(controller);
        root.join("cgroup.clone_children").exists().then_some(())?;
        let folder = root.join(format!("nn-{}-{pid}", std::process::id()));
        fs::create_dir(&folder).expect("a group");
        fs::write(folder.join("cgroup.procs"), pid.to_string()).expect("a process");
        Some(VersionOne { folder, root, pid })
    }
}

impl Drop for VersionOne {
    fn drop(&mut self) {
        let _ = fs::write(self.folder.join("freezer.state"), "THAWED");
        let _ = fs::write(self.root.join("cgroup.procs"), self.pid.to_string());
        let _ = fs::remove_dir(&self.folder);
    }
}

/// A policy of linux/sched.h: SCHED_DEADLINE.
const DEADLINE: u32 = 6;

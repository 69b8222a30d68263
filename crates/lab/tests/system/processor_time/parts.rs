//! Tests parts of a reservation: a program divides its processor time among threads that it names.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use netnice_api::{Client, Request, Reserve, Response, RuntimeDir};
use netnice_lab::process::{self, EVENT_TIMEOUT, Proc};
use netnice_lab::processor_time::Load;
use netnice_lab::storm::pidfd;
use netnice_lab::testbed::{TestBed, becomes_true, skip};
use netnice_lab::traffic::Carnage;

use super::{DEADLINE, assert_restored, own_groups, scheduling, start, threads};
use crate::c_compiler::{Link, compile, install};
use crate::users::{ANN, setpriv};

/// What the daemon answers if the process `pid` asks for `time_ms` for a thread, or gives its part
/// back.
fn reserve(bed: &TestBed, (pid, thread): (u32, u32), time_ms: Option<u64>) -> Response {
    let dir = RuntimeDir::choose(Some(bed.netnice.runtime().to_owned()), None);
    let request = Request::Reserve(Reserve {
        thread,
        time_ns: time_ms.map(|time| time * 1_000_000),
    });
    let process = pidfd(pid).expect("it lives");
    let mut client = Client::connect(&dir).expect("a daemon");
    let response = client.call(&request, Some(process.as_fd()));
    response.expect("a response")
}

fn granted(response: Response) {
    assert!(matches!(response, Response::Done(_)), "{response:?}");
}

fn refused(response: Response, words: &str) {
    let text = match response {
        Response::Refused(refused) => refused.text,
        Response::Failed(failed) => failed.text,
        other => panic!("{other:?}"),
    };
    assert!(text.contains(words), "{text}");
}

/// Processor time that a thread has used, in ns.
fn used(pid: u32, thread: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{thread}/schedstat"));
    let text = text.expect("a thread");
    let used = text.split(' ').next().expect("a number");
    used.parse().expect("a number")
}

/// The part of a processor that each thread of a process has in the next two seconds.
fn shares(pid: u32) -> Vec<f64> {
    let threads = threads(pid);
    let sample = || -> Vec<(Instant, u64)> {
        let samples = threads.iter();
        samples
            .map(|thread| (Instant::now(), used(pid, *thread)))
            .collect()
    };
    let before = sample();
    std::thread::sleep(Duration::from_secs(2));
    let share = |((then, before), (now, after)): ((Instant, u64), (Instant, u64))| {
        (after - before) as f64 / (now - then).as_nanos() as f64
    };
    before.into_iter().zip(sample()).map(share).collect()
}

/// Asserts that the three threads of a process soon get 2 ms and 3 ms of every 10 ms to 3 %, and no
/// more than the rest of 6 ms.
fn assert_divided(pid: u32, what: &str) {
    let until = Instant::now() + EVENT_TIMEOUT;
    loop {
        let got = shares(pid);
        println!("{what}: {got:.4?} of a processor");
        let is_exact = |got: f64, part: f64| (0.97 * part..=1.03 * part).contains(&got);
        if is_exact(got[1], 0.2) && is_exact(got[2], 0.3) && got[0] <= 0.11 {
            return;
        }
        assert!(Instant::now() < until, "{what}: {got:?}");
    }
}

/// Two threads of a program have their parts exactly beside the load, and the third one no more
/// than the rest. The daemon's end changes nothing, and clear puts all policies back.
#[test]
fn a_program_divides_its_time_among_its_threads() {
    let mut bed = TestBed::new().expect("a test bed");
    let carnage = start(&bed, &Carnage::new(3, 0).nice(2));
    let pid = carnage.pid();
    let before = scheduling(pid);
    let [first, a, b] = threads(pid)[..] else {
        panic!("{before:?}");
    };
    refused(
        reserve(&bed, (pid, a), Some(2)),
        "no processor time is reserved",
    );
    bed.run_ok(&format!("set pid:{pid} --cpu 6ms/10ms"));
    granted(reserve(&bed, (pid, a), Some(2)));
    granted(reserve(&bed, (pid, b), Some(3)));
    let policies = || -> Vec<u32> { scheduling(pid).iter().map(|one| one.policy).collect() };
    assert_eq!(policies(), [0, DEADLINE, DEADLINE]);
    refused(
        reserve(&bed, (pid, first), Some(2)),
        "at most 1ms would fit",
    );
    // A thread of another process, and threads that there are not.
    let other = bed.sleeper();
    refused(
        reserve(&bed, (pid, other.pid()), Some(1)),
        "not a thread of process",
    );
    refused(
        reserve(&bed, (other.pid(), a), Some(1)),
        "not a thread of process",
    );
    refused(
        reserve(&bed, (pid, u32::MAX), Some(1)),
        "not a thread of process",
    );
    let explained = bed.run_ok(&format!("explain pid:{pid}")).stdout;
    for line in [format!("{a}: 2ms exactly"), format!("{b}: 3ms exactly")] {
        assert!(explained.contains(&line), "{explained}");
    }
    // netniced is an ordinary program: beside the load its start would take a minute.
    let divided = |bed: &TestBed, when: &str| {
        let load = Load::start(bed.world.client()).expect("a load");
        assert_divided(pid, when);
        drop(load);
    };
    divided(&bed, "under a daemon");
    bed.netnice.kill_daemon();
    divided(&bed, "without a daemon");
    bed.netnice.start_daemon().expect("a daemon");
    divided(&bed, "under a new daemon");
    granted(reserve(&bed, (pid, b), None));
    assert_eq!(policies(), [0, DEADLINE, 0]);
    let groups = own_groups(pid);
    bed.run_ok(&format!("clear pid:{pid}"));
    assert_restored(pid, &before, &groups, "after clear");
}

/// Threads that are confined to a processor can have parts: a cpuset of the group keeps them there.
/// Afterwards they may run where they might before.
#[test]
fn confined_threads_have_parts_and_stay_confined() {
    if !Path::new("/sys/fs/cgroup/cpuset/tasks").exists() {
        return skip("no cpuset of version 1");
    }
    let bed = TestBed::new().expect("a test bed");
    let carnage = Carnage::new(3, 0).start(bed.world.client(), Some(0));
    let carnage = carnage.expect("a carnage");
    let pid = carnage.pid();
    let before = scheduling(pid);
    let all = threads(pid);
    bed.run_ok(&format!("set pid:{pid} --cpu 6ms/10ms"));
    granted(reserve(&bed, (pid, all[1]), Some(2)));
    granted(reserve(&bed, (pid, all[2]), Some(3)));
    refused(
        reserve(&bed, (pid, all[2]), Some(1)),
        "give its part back first",
    );
    let now = scheduling(pid);
    let shown: Vec<(u32, &str)> = now
        .iter()
        .map(|one| (one.policy, one.processors.as_str()))
        .collect();
    assert_eq!(shown, [(0, "0"), (DEADLINE, "0"), (DEADLINE, "0")]);
    assert_divided(pid, "on one processor");
    let groups = own_groups(pid);
    bed.run_ok(&format!("clear pid:{pid}"));
    assert_restored(pid, &before, &groups, "after clear");
}

/// A thread with a part that executes another program becomes the first thread of its process. It
/// loses its part then, so it cannot have another one beside it.
#[test]
fn a_part_does_not_survive_execve() {
    let bed = TestBed::new().expect("a test bed");
    let mut command = bed.world.client().ns.command("python3");
    command.args(["-c", EXECUTES]);
    let mut python = Proc::start(command).expect("python3");
    let pid = python.pid();
    let thread = python.next_line(EVENT_TIMEOUT).expect("a thread");
    let thread = thread.trim().parse().expect("a number");
    bed.run_ok(&format!("set pid:{pid} --cpu 6ms/10ms"));
    granted(reserve(&bed, (pid, thread), Some(5)));
    assert_eq!(scheduling(pid)[1].policy, DEADLINE);
    python.write_line("go").expect("it reads");
    // It has two threads again, and neither the first one nor the new one has the part.
    assert_eq!(
        python.next_line(EVENT_TIMEOUT).expect("a program").trim(),
        "new"
    );
    let policies = || -> Vec<u32> { scheduling(pid).iter().map(|one| one.policy).collect() };
    assert!(
        becomes_true(|| policies() == [0, 0]),
        "{:?}",
        scheduling(pid)
    );
    let explained = bed.run_ok(&format!("explain pid:{pid}")).stdout;
    assert!(!explained.contains("5ms exactly"), "{explained}");
    bed.run_ok(&format!("clear pid:{pid}"));
    assert_eq!(policies(), [0, 0]);
}

/// Its second thread prints its id, waits for a line and executes a program of two threads.
const EXECUTES: &str = "\
import os, sys, threading, time
NEW = '''import threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
print('new', flush=True)
time.sleep(600)'''
def work():
    print(threading.get_native_id(), flush=True)
    sys.stdin.readline()
    os.execv(sys.executable, [sys.executable, '-c', NEW])
threading.Thread(target=work).start()
time.sleep(600)
";

/// The example in C: by root for itself, and by a plain user with what root reserved.
#[test]
fn a_c_program_reserves_and_divides_its_own_time() {
    let bed = TestBed::new().expect("a test bed");
    let root = bed.world.folder().join("usr");
    install(&root);
    let divide = root.join("divide");
    compile(&root, "examples/divide.c", &divide, Link::Static);
    let program = divide.to_str().expect("a path");
    let runtime = bed.netnice.runtime().to_owned();
    let run = |words: &[&str]| {
        let mut command = bed.world.client().ns.command(words[0]);
        command
            .args(&words[1..])
            .env("NETNICE_RUNTIME_DIR", &runtime);
        process::run(&mut command)
    };
    let judge = |output: String| {
        let mut lines: Vec<&str> = output.lines().collect();
        lines.sort_unstable();
        println!("{lines:?}");
        let shares: Vec<(&str, f64)> = lines
            .iter()
            .map(|line| line.split_once(' ').expect("two words"))
            .map(|(time, share)| (time, share.parse().expect("a number")))
            .collect();
        assert_eq!([shares[0].0, shares[1].0], ["2000000", "3000000"]);
        for ((_, got), part) in shares.into_iter().zip([0.2, 0.3]) {
            assert!(
                (0.55 * part..=1.1 * part).contains(&got),
                "{got}, not {part}"
            );
        }
    };
    judge(run(&[program, "6ms/10ms", "2000000", "3000000"]).expect("it runs"));
    let refused = run(&[program, "6ms/10ms", "2000000", "5000000"]);
    let refused = format!("{:#}", refused.expect_err("too much"));
    assert!(refused.contains("would fit"), "{refused}");

    let words = setpriv(ANN);
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    words.extend([program, "-", "2000000", "3000000"]);
    let refused = run(&words).expect_err("nothing is reserved");
    assert!(format!("{refused:#}").contains("no processor time is reserved"));
    let mut line = vec!["run", "--cpu", "6ms/10ms", "--"];
    line.extend(&words);
    let output = process::run(&mut bed.netnice.command(&line)).expect("it runs");
    judge(output);
}

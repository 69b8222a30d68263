//! The daemon is killed at random times, while clients change things without a pause.
//!
//! Answered changes must be in force afterwards; a change without a response may be in force or
//! not; root's limit must always be in force.

use std::os::fd::AsFd;
use std::sync::Mutex;
use std::time::Duration;

use netnice_api::{ClearWhat, Client, Response, RuntimeDir};
use netnice_lab::storm::seed;
use netnice_sim::Random;
use serde_json::Value;

use super::{Bench, Operation, clear, dir, pidfd, set};

/// The requested limit of a client: a rate in bit/s, or none.
type Asked = Option<u64>;

/// The possible limits of a client's process: the last answered one, and the ones without a
/// response.
#[derive(Clone, Debug, Default)]
struct May(Vec<Asked>);

/// Changes the limit of one process repeatedly until the daemon is gone.
fn change(dir: &RuntimeDir, pid: u32, may: &Mutex<May>, mut random: Random) {
    let Ok(mut client) = Client::connect(dir) else {
        return;
    };
    loop {
        let last = may.lock().expect("no panic").0[0];
        let next = match (last, random.below(4)) {
            (Some(_), 0) => None,
            _ => Some(1_000_000 + random.below(9_000_000)),
        };
        may.lock().expect("no panic").0.push(next);
        let answer = match next {
            Some(rate) => {
                let pidfd = pidfd(pid);
                client.call(&set(pid, &format!("up {rate}bit")), Some(pidfd.as_fd()))
            }
            None => client.call(&clear(ClearWhat::Target(format!("pid:{pid}"))), None),
        };
        let mut may = may.lock().expect("no panic");
        match answer {
            Ok(Response::Done(_)) => may.0 = vec![next],
            Ok(other) => panic!("{next:?} of {pid}: {other:?}"),
            Err(_) => return,
        }
    }
}

fn deaths(count: u32) {
    let mut random = Random::new(seed("random deaths"));
    let mut bench = Bench::new();
    // Only root's limit exists.
    bench.prepare(Operation::Set);
    let processes = [(); CLIENTS].map(|()| bench.bed.sleeper());
    let may = [(); CLIENTS].map(|()| Mutex::new(May(vec![None])));
    let mut faults = Vec::new();
    for death in 0..count {
        let pid = bench.bed.netnice.pid().expect("the daemon runs");
        let moment = Duration::from_micros(random.below(150_000));
        std::thread::scope(|scope| {
            for (process, may) in processes.iter().zip(&may) {
                let (dir, pid) = (dir(&bench.bed.netnice), process.pid());
                let random = random.split();
                scope.spawn(move || change(&dir, pid, may, random));
            }
            std::thread::sleep(moment);
            netnice_lab::sys::kill(pid as i32, libc::SIGKILL).expect("it runs");
        });
        let mut found = bench.missing();
        bench.bed.netnice.kill_daemon();
        bench.bed.netnice.start_daemon().expect("another daemon");
        found.extend(bench.missing());
        let shown = bench.shown();
        for (process, may) in processes.iter().zip(&may) {
            let name = bench.target(process.pid());
            let targets = shown["targets"].as_array().expect("a list");
            let held = targets.iter().find(|t| t["target"] == name.as_str());
            let up = held.map(|target| target["contract"]["up"].as_u64().unwrap_or_default());
            let installed = held.map_or(&Value::Null, |target| &target["installed"]["up"]);
            let mut may = may.lock().expect("no panic");
            if !may.0.contains(&up) || installed.as_u64() != up {
                found.push(format!(
                    "{name} has {up:?}, in the kernel {installed}; asked was {may:?}"
                ));
            }
            may.0 = vec![up];
        }
        if !found.is_empty() {
            faults.push(format!("death {death}, after {moment:?}: {found:?}"));
        }
    }
    drop(processes);
    bench.finish(faults);
}

#[test]
fn ten_random_kills_under_load_lose_no_answered_change() {
    deaths(10);
}

#[test]
#[ignore = "long: a thousand deaths"]
fn a_thousand_random_kills_under_load_lose_no_answered_change() {
    deaths(1000);
}

/// Number of concurrent clients.
const CLIENTS: usize = 4;

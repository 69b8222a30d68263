//! Tests a daemon that is killed at random times, while clients change limits without a pause.
//!
//! Answered changes must be in force afterwards; a change without a response may be in force or
//! not; root's limit must always be in force.

use std::os::fd::AsFd;
use std::sync::Mutex;
use std::time::Duration;

use netnice_api::{ClearWhat, Client, Response, RuntimeDir};
use netnice_lab::storm::{clear_request, pidfd, seed, set_request};
use netnice_sim::Random;
use serde_json::Value;

use super::{FaultBed, Operation, dir};

/// The requested limit of a client: a rate in bit/s, or none.
type Limit = Option<u64>;

/// The possible limits of a client's process: the last answered one, and the ones without a
/// response.
#[derive(Clone, Debug, Default)]
struct PossibleLimits(Vec<Limit>);

/// Changes the limit of one process repeatedly until the daemon is gone.
fn change_repeatedly(
    dir: &RuntimeDir,
    pid: u32,
    possible: &Mutex<PossibleLimits>,
    mut random: Random,
) {
    let Ok(mut client) = Client::connect(dir) else {
        return;
    };
    loop {
        let last = possible.lock().expect("no panic").0[0];
        let next = match (last, random.below(4)) {
            (Some(_), 0) => None,
            _ => Some(1_000_000 + random.below(9_000_000)),
        };
        possible.lock().expect("no panic").0.push(next);
        let answer = match next {
            Some(rate) => {
                let pidfd = pidfd(pid).expect("it lives");
                client.call(
                    &set_request(pid, &format!("up {rate}bit")),
                    Some(pidfd.as_fd()),
                )
            }
            None => client.call(
                &clear_request(ClearWhat::Target(format!("pid:{pid}"))),
                None,
            ),
        };
        let mut possible = possible.lock().expect("no panic");
        match answer {
            Ok(Response::Done(_)) => possible.0 = vec![next],
            Ok(other) => panic!("{next:?} of {pid}: {other:?}"),
            Err(_) => return,
        }
    }
}

fn kill_at_random(count: u32) {
    let mut random = Random::new(seed("random kills"));
    let mut fault_bed = FaultBed::new();
    // Only root's limit exists.
    fault_bed.prepare(Operation::Set);
    let processes = [(); CLIENTS].map(|()| fault_bed.bed.sleeper());
    let possible = [(); CLIENTS].map(|()| Mutex::new(PossibleLimits(vec![None])));
    let mut faults = Vec::new();
    for kill in 0..count {
        let pid = fault_bed.bed.netnice.pid().expect("the daemon runs");
        let moment = Duration::from_micros(random.below(150_000));
        std::thread::scope(|scope| {
            for (process, possible) in processes.iter().zip(&possible) {
                let (dir, pid) = (dir(&fault_bed.bed.netnice), process.pid());
                let random = random.split();
                scope.spawn(move || change_repeatedly(&dir, pid, possible, random));
            }
            std::thread::sleep(moment);
            netnice_lab::sys::kill(pid as i32, libc::SIGKILL).expect("it runs");
        });
        let mut found = fault_bed.missing_of_root_limit();
        fault_bed.bed.netnice.kill_daemon();
        fault_bed
            .bed
            .netnice
            .start_daemon()
            .expect("another daemon");
        found.extend(fault_bed.missing_of_root_limit());
        let shown = fault_bed.shown();
        for (process, possible) in processes.iter().zip(&possible) {
            let name = fault_bed.target(process.pid());
            let targets = shown["targets"].as_array().expect("a list");
            let held = targets.iter().find(|t| t["target"] == name.as_str());
            let up = held.map(|target| target["contract"]["up"].as_u64().unwrap_or_default());
            let installed = held.map_or(&Value::Null, |target| &target["installed"]["up"]);
            let mut possible = possible.lock().expect("no panic");
            if !possible.0.contains(&up) || installed.as_u64() != up {
                found.push(format!(
                    "{name} has {up:?}, in the kernel {installed}; asked was {possible:?}"
                ));
            }
            possible.0 = vec![up];
        }
        if !found.is_empty() {
            faults.push(format!("kill {kill}, after {moment:?}: {found:?}"));
        }
    }
    drop(processes);
    fault_bed.finish(faults);
}

#[test]
fn ten_random_kills_under_load_lose_no_answered_change() {
    kill_at_random(10);
}

#[test]
#[ignore = "long: a thousand kills"]
fn a_thousand_random_kills_under_load_lose_no_answered_change() {
    kill_at_random(1000);
}

/// Number of concurrent clients.
const CLIENTS: usize = 4;

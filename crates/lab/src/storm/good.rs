//! A good user during a storm: a program that repeats four permitted requests, 5 ms apart: ping,
//! set a limit, show it, clear it. The program connects anew for each request, checks the response,
//! and measures the time from the start of the connection to the response. After `--for-ms` it
//! prints the number of requests, the median, the 99th percentile and the maximum of these times in
//! microseconds, and up to five wrong responses. The program fails if it cannot start the process
//! that it limits. A wrong or missing response of the daemon is no failure of the program.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::Result;
use netnice_api::{ClearWhat, Client, Ping, Request, Response, Show};
use netnice_sim::Random;

use super::hostile::sleeper;
use super::{Common, clear_request, pidfd, set_request};

/// The arguments of `netnice-lab storm good`.
#[derive(Debug, Clone, clap::Args)]
pub struct GoodArgs {
    #[command(flatten)]
    common: Common,
}

/// Runs the program. Fails if the process to limit cannot be started or ended.
pub(crate) fn main(args: &GoodArgs) -> Result<()> {
    let dir = args.common.dir();
    let mut random = Random::new(args.common.seed);
    let mut own = sleeper()?;
    let pid = own.id();
    let handle = pidfd(pid)?;
    let target = format!("pid:{pid}");
    println!("{}", serde_json::json!({"ready": std::process::id()}));
    let until = Instant::now() + args.common.duration();
    let (mut took, mut failures): (Vec<u64>, Vec<String>) = Default::default();
    while Instant::now() < until {
        let rate = 1 + random.below(900);
        let change = format!("up {rate}mbit");
        let show = Request::Show(Show {
            target: Some(target.clone()),
        });
        let clear = clear_request(ClearWhat::Target(target.clone()));
        let round = [
            Request::Ping(Ping {}),
            set_request(pid, &change),
            show,
            clear,
        ];
        for request in round {
            let begun = Instant::now();
            let named = matches!(request, Request::Set(_)).then(|| handle.as_fd());
            let answer = Client::connect(&dir).and_then(|mut client| client.call(&request, named));
            took.push(begun.elapsed().as_micros() as u64);
            let as_expected = match (&request, &answer) {
                (Request::Ping(_), Ok(Response::Pong(_))) => true,
                (Request::Set(_), Ok(Response::Done(done))) => {
                    done.contract.as_deref() == Some(change.as_str())
                }
                (Request::Show(_), Ok(Response::Shown(doc))) => {
                    let up = doc.targets.first().and_then(|found| found.contract.up);
                    up == Some(rate * 1_000_000)
                }
                (Request::Clear(_), Ok(Response::Done(_))) => true,
                _ => false,
            };
            if !as_expected && failures.len() < MAX_FAILURES {
                failures.push(format!("{request:?}: {answer:?}"));
            }
            std::thread::sleep(PAUSE);
        }
    }
    own.kill()?;
    own.wait()?;
    took.sort_unstable();
    let part = |hundredths: usize| took.get(took.len() * hundredths / 100).copied();
    let report = serde_json::json!({
        "requests": took.len(), "p50_us": part(50), "p99_us": part(99), "worst_us": took.last(),
        "failures": failures,
    });
    println!("{report}");
    Ok(())
}

/// Time between two requests.
const PAUSE: Duration = Duration::from_millis(5);
const MAX_FAILURES: usize = 5;

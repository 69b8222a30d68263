//! Programs for tests of a daemon with several users: a hostile user that tries random attacks
//! ([`hostile`]), a good user whose requests are timed ([`good`]), clients that change limits as
//! fast as they can and record each change ([`client`]), and a process whose connections block when
//! they are closed ([`lingering`]).
//!
//! Each program is a hidden subcommand of `netnice-lab`; [`main`] runs it. The first three print a
//! JSON object when they are ready, and one with their results, each on a line. A test starts them
//! with the uid of the user. A program fails if it cannot start a process or make a connection that
//! it needs; its module names the other causes. [`pidfd`] fails if there is no such process.

pub mod attacks;
pub mod client;
pub mod good;
pub mod hostile;
pub mod lingering;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use netnice_api::{Clear, ClearWhat, Request, RuntimeDir, Set};

/// The programs of a storm, as subcommands of `netnice-lab storm`.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum Program {
    /// Tries attacks at random.
    Hostile(hostile::HostileArgs),
    /// Makes permitted requests and measures the response times.
    Good(good::GoodArgs),
    /// Changes limits as fast as possible, and then one by one on command.
    Client(client::ClientArgs),
    /// Keeps connections whose close blocks, until it is killed.
    Lingering(lingering::LingeringArgs),
}

/// Arguments of several programs: the daemon's folder, the duration and the random seed.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Common {
    /// The daemon's folder.
    #[arg(long)]
    runtime_dir: PathBuf,
    /// Duration in milliseconds.
    #[arg(long, default_value_t = 0)]
    for_ms: u64,
    /// Random seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Common {
    fn dir(&self) -> RuntimeDir {
        RuntimeDir::choose(Some(self.runtime_dir.clone()), None)
    }

    fn duration(&self) -> Duration {
        Duration::from_millis(self.for_ms)
    }
}

/// Runs a program of a storm to its end. Fails as that program does; a wrong response of the daemon
/// is no failure, but part of the results.
pub fn main(program: &Program) -> Result<()> {
    match program {
        Program::Hostile(args) => hostile::main(args),
        Program::Good(args) => good::main(args),
        Program::Client(args) => client::main(args),
        Program::Lingering(args) => lingering::main(args),
    }
}

/// The random seed of a test: `NETNICE_SEED` if it is a number, else the clock. Prints the seed
/// with the name `what` of the test, so that a run can be repeated.
pub fn seed(what: &str) -> u64 {
    let given = std::env::var("NETNICE_SEED").ok();
    let seed = given.and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(crate::sys::now_ns);
    println!("{what}: NETNICE_SEED={seed}");
    seed
}

/// A request to change the contract of a process; `change` is text such as `up 4mbit`.
pub fn set_request(pid: u32, change: &str) -> Request {
    Request::Set(Set {
        target: format!("pid:{pid}"),
        change: Some(change.to_owned()),
        ..Set::default()
    })
}

/// A request to clear targets, for an unlimited time and without a confirmation.
pub fn clear_request(what: ClearWhat) -> Request {
    Request::Clear(Clear {
        what,
        dry_run: false,
        confirm_ns: None,
        for_ns: None,
        until: None,
    })
}

/// A pidfd of a process that lives, or that ended and was not waited for yet. Fails for any other
/// number, or if this process has too many open files.
pub fn pidfd(pid: u32) -> std::io::Result<std::os::fd::OwnedFd> {
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    let number = Pid::from_raw(pid as i32);
    let number = number.ok_or_else(|| std::io::Error::other("no process has the number 0"))?;
    Ok(pidfd_open(number, PidfdFlags::empty())?)
}

//! The words that experiments are written in: limits, directions, and who holds them.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, bail};
use serde::Serialize;

use crate::sys;
use crate::world::{Answer, Family, Host, Netnice, World, htb};

/// What holds the limits in an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Subject {
    /// netnice.
    Netnice,
    /// HTB by hand on the device, with its default queue: for comparison and calibration.
    Htb,
}

/// A rate as typed and as meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Rate {
    /// As a person types it.
    pub text: &'static str,
    /// In bit/s.
    pub bits: u64,
}

/// The rates of the promises.
pub const R64K: Rate = rate("64kbit", 64_000);
/// The paper's: K is 1024.
pub const R512K: Rate = rate("512Kbyte/s", 4_194_304);
/// 4 Mbit/s.
pub const R4M: Rate = rate("4mbit", 4_000_000);
/// 20 Mbit/s.
pub const R20M: Rate = rate("20mbit", 20_000_000);
/// 100 Mbit/s.
pub const R100M: Rate = rate("100mbit", 100_000_000);
/// 1 Gbit/s.
pub const R1G: Rate = rate("1gbit", 1_000_000_000);

const fn rate(text: &'static str, bits: u64) -> Rate {
    Rate { text, bits }
}

/// The directions that a limit can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// What the program sends.
    Up,
    /// What it receives.
    Down,
    /// The sum of both.
    Both,
}

impl Direction {
    /// The option that sets it.
    pub fn option(self) -> &'static str {
        match self {
            Direction::Up => "--up",
            Direction::Down => "--down",
            Direction::Both => "--both",
        }
    }
}

/// Holds limits on the client of a world.
pub enum Limiter {
    /// A netnice of its own.
    Netnice(Netnice),
    /// HTB on the client's devices: the whole host is one program.
    Htb,
}

impl Limiter {
    /// Makes the world's client ready to hold limits.
    pub fn start(world: &World, subject: Subject) -> Result<Limiter> {
        Ok(match subject {
            Subject::Netnice => Limiter::Netnice(world.netnice("client")?),
            Subject::Htb => Limiter::Htb,
        })
    }

    /// Sets a limit on the process `pid` and its children; returns when it was typed and when the
    /// command had ended.
    pub fn set(
        &self,
        world: &World,
        pid: u32,
        direction: Direction,
        rate: Rate,
    ) -> Result<(u64, u64)> {
        match self {
            Limiter::Netnice(netnice) => {
                let line = format!("set pid:{pid} {} {}", direction.option(), rate.text);
                Ok(netnice.type_line(&line)?.at)
            }
            Limiter::Htb => {
                if direction != Direction::Up {
                    bail!("HTB by hand holds only what leaves a device: run this with netnice");
                }
                let typed = sys::now_ns();
                let ns = &world.client().ns;
                if htb::change(ns, "eth0", rate.bits).is_err() {
                    htb::limit(ns, "eth0", rate.bits, htb::Leaf::Default)?;
                }
                Ok((typed, sys::now_ns()))
            }
        }
    }
}

/// Fails with one clear sentence where an experiment makes sense for netnice alone.
pub fn netnice_only(subject: Subject) -> Result<()> {
    if subject != Subject::Netnice {
        bail!("this experiment has no counterpart in HTB by hand: run it with --subject netnice");
    }
    Ok(())
}

/// Types a line and keeps it for the record.
pub fn typed(netnice: &Netnice, line: &str, log: &mut Vec<String>) -> Result<Answer> {
    log.push(format!("netnice {line}"));
    netnice.type_line(line)
}

/// An address of a host.
pub fn at(host: &Host, family: Family, port: u16) -> SocketAddr {
    SocketAddr::new(host.address(family), port)
}

/// Sleeps.
pub fn pause(seconds: f64) {
    std::thread::sleep(Duration::from_secs_f64(seconds));
}

/// Sleeps until a moment of the wall clock.
pub fn wait_until(ns: u64) {
    std::thread::sleep(Duration::from_nanos(ns.saturating_sub(sys::now_ns())));
}

/// Seconds as the wall clock counts.
pub const SECOND: u64 = 1_000_000_000;
/// Milliseconds likewise.
pub const MS: u64 = 1_000_000;
/// Bits per second in a megabit.
pub const MBIT: f64 = 1e6;

//! Definitions that experiments share: the limiter under test (netnice, or HTB set up by hand), its
//! directions, common rates, addresses, and waits until a time. A limiter fails to start if its
//! daemon does, and a limit fails to be set if a command fails or HTB cannot limit the direction.
//! [`netnice_only`] fails for another subject, and [`run_logged`] if the command fails.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use crate::sys;
use crate::world::{CommandOutput, Family, Host, Netnice, World, htb};

/// The limiter under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Subject {
    /// netnice.
    Netnice,
    /// HTB that the experiment sets up on the device, with HTB's default queue: for comparison and
    /// calibration.
    Htb,
}

/// A rate, as text for the command line and as a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Rate {
    /// The text for the command line.
    pub text: &'static str,
    /// The number, in bit/s.
    pub bits: u64,
}

/// 64 kbit/s.
pub(crate) const R64K: Rate = rate("64kbit", 64_000);
/// 512 Kbyte/s, the paper's rate: K is 1024.
pub const R512K: Rate = rate("512Kbyte/s", 4_194_304);
/// 4 Mbit/s.
pub const R4M: Rate = rate("4mbit", 4_000_000);
/// 20 Mbit/s.
pub const R20M: Rate = rate("20mbit", 20_000_000);
/// 100 Mbit/s.
pub(crate) const R100M: Rate = rate("100mbit", 100_000_000);
/// 1 Gbit/s.
pub(crate) const R1G: Rate = rate("1gbit", 1_000_000_000);

const fn rate(text: &'static str, bits: u64) -> Rate {
    Rate { text, bits }
}

/// The directions of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Direction {
    /// Sending.
    Up,
    /// Receiving.
    Down,
    /// The sum of both.
    Both,
}

impl Direction {
    /// The option of `netnice set` for this direction.
    pub(crate) fn option(self) -> &'static str {
        match self {
            Direction::Up => "--up",
            Direction::Down => "--down",
            Direction::Both => "--both",
        }
    }
}

/// A limiter on the client of a world.
pub(crate) enum Limiter {
    /// netnice with a daemon of its own.
    Netnice(Netnice),
    /// HTB on the client's `eth0`: it limits the whole host, as if the host were one program.
    Htb,
}

impl Limiter {
    /// Starts the limiter on the world's client. HTB is set up by the first [`Limiter::set`]. Fails
    /// if the daemon does not start.
    pub(crate) fn start(world: &World, subject: Subject) -> Result<Limiter> {
        Ok(match subject {
            Subject::Netnice => Limiter::Netnice(world.netnice("client")?),
            Subject::Htb => Limiter::Htb,
        })
    }

    /// Sets a limit: netnice limits the process `pid` and its children, HTB the whole host. Returns
    /// the start and the end of the command (wall clock, ns). Fails if a command fails, and with
    /// HTB for directions other than `Up`.
    pub(crate) fn set(
        &self,
        world: &World,
        pid: u32,
        direction: Direction,
        rate: Rate,
    ) -> Result<(u64, u64)> {
        match self {
            Limiter::Netnice(netnice) => {
                let line = format!("set pid:{pid} {} {}", direction.option(), rate.text);
                Ok(netnice.run_line(&line)?.at)
            }
            Limiter::Htb => {
                if direction != Direction::Up {
                    bail!("HTB limits only what leaves a device: run this with --subject netnice");
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

/// Fails with a message for the user if the subject is not netnice.
pub(crate) fn netnice_only(subject: Subject) -> Result<()> {
    if subject != Subject::Netnice {
        bail!("this experiment cannot measure HTB in place of netnice: omit --subject");
    }
    Ok(())
}

/// Runs `netnice LINE` and adds the command line to `log`. Fails unless the exit status is 0.
pub(crate) fn run_logged(
    netnice: &Netnice,
    line: &str,
    log: &mut Vec<String>,
) -> Result<CommandOutput> {
    log.push(format!("netnice {line}"));
    netnice.run_line(line)
}

/// The address of the first device of `host` in this family, with the transport port `port`.
pub fn at(host: &Host, family: Family, port: u16) -> SocketAddr {
    SocketAddr::new(host.address(family), port)
}

/// Sleeps for `seconds`.
pub fn pause(seconds: f64) {
    std::thread::sleep(Duration::from_secs_f64(seconds));
}

/// Sleeps until a wall-clock time in ns; returns at once if that time has passed.
pub fn wait_until(ns: u64) {
    std::thread::sleep(Duration::from_nanos(ns.saturating_sub(sys::now_ns())));
}

/// A second in ns.
pub const SECOND: u64 = 1_000_000_000;
/// A millisecond in ns.
pub(crate) const MS: u64 = 1_000_000;
/// 1 Mbit/s in bit/s.
pub const MBIT: f64 = 1e6;

//! `netnice doctor --measure`: finds out how much of a processor a program needs to send at a rate
//! on this machine (paper NTCP, figure 7), and gives it to the daemon, which keeps it for `cpu
//! auto`.
//!
//! A second netniced, a driver and a program that sends run in network namespaces of their own
//! ([`world`]), all on one processor beside a program that always runs. For each rate, by
//! bisection, the least reservation of processor time that carries the slice of the link is a point
//! of a line. Its slope is the time for a packet, and its value at 0 the time that is used without
//! packets.
//!
//! ```text
//! netnice doctor --measure
//!   └─ unshare ─ netnice measure-costs measure        (a network and mount namespace)
//!                  ├─ netniced ─ netnice-driver        one processor
//!                  ├─ netnice measure-costs send
//!                  ├─ netnice measure-costs spin
//!                  └─ unshare ─ netnice measure-costs receive   (the other host)
//! ```
//!
//! Everything ends with the command, also if it is killed. Fails with a [`CommandError`] if the
//! user is not root, no daemon answers, a program is missing or fails, or the machine does not
//! carry two of the rates.

mod parts;
mod world;

use std::fs;
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use netnice_api::{
    Clear, ClearWhat, Client, Exit, PacketCostDoc, PacketCostsDoc, Request, Response, RuntimeDir,
    Set,
};

use crate::error::CommandError;
use crate::{daemon, output, process};
pub(crate) use parts::{Part, run};
use world::{Sender, World};

/// Measures, prints what was found, and gives it to the daemon. Fails for the reasons in the
/// module's documentation.
pub(crate) fn measure(dir: &RuntimeDir, json: bool) -> Result<Exit, CommandError> {
    if !rustix::process::geteuid().is_root() {
        return Err(failed("only root can measure what a packet costs"));
    }
    // Nothing is measured in vain.
    drop(daemon::connect(dir)?);
    if !json {
        eprintln!("netnice: measuring what a packet costs takes about two minutes");
    }
    let folder = PathBuf::from(format!("/run/netnice-measure-{}", std::process::id()));
    fs::create_dir_all(&folder)
        .map_err(|error| CommandError::io(folder.display().to_string(), error))?;
    let measured = measure_in(&folder);
    // Nothing is mounted there any more: the namespaces have ended.
    let _ = fs::remove_dir_all(&folder);
    let text = measured?;
    let costs: PacketCostsDoc = serde_json::from_str(&text)
        .map_err(|error| CommandError::io("the measurement", error.into()))?;
    let response = daemon::connect(dir)?.call(&Request::KeepCosts(costs), None)?;
    match json {
        true => output::print_text(&(text.trim_end().to_owned() + "\n"))?,
        false => {
            for (name, line) in [("udp", &costs.udp), ("tcp", &costs.tcp)] {
                output::print_text(&described(name, line))?;
            }
            output::print_response(&response, json)?;
        }
    }
    Ok(Exit::from(&response))
}

/// Runs the measurement in namespaces of its own, and returns what it prints.
fn measure_in(folder: &Path) -> Result<String, CommandError> {
    let here = std::env::current_exe().map_err(|error| CommandError::io("this program", error))?;
    let mut command = world::bound_command("unshare");
    command.args(["--net", "--mount", "--propagation", "private"]);
    command.arg(here).args(["measure-costs", "measure"]);
    command.arg("--runtime-dir").arg(folder.join("run"));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command
        .spawn()
        .map_err(|error| CommandError::io("setpriv", error))?;
    let mut text = String::new();
    let read = child
        .stdout
        .take()
        .map(|mut out| out.read_to_string(&mut text));
    let status = child.wait();
    read.transpose()
        .map_err(|error| CommandError::io("the measurement", error))?;
    match status.is_ok_and(|status| status.success()) {
        true => Ok(text),
        false => Err(failed("the measurement has failed, see above")),
    }
}

/// A line for people.
fn described(protocol: &str, line: &PacketCostDoc) -> String {
    // bits a second / bits a packet × ps a packet
    let gigabit = 1e9 / FULL_BITS * line.packet_ps as f64 / 1e12;
    format!(
        "{protocol}: {:.2} us of processor time for a packet of 1500 bytes, {:.1} % of a processor \
         for 1 Gbit/s, and {:.1} % at any rate\n",
        line.packet_ps as f64 / 1e6,
        gigabit * 100.0,
        line.idle_ppb as f64 / 1e7,
    )
}

/// Measures in the namespaces of this process, and prints the result as JSON.
fn measure_here(dir: &RuntimeDir) -> Result<(), CommandError> {
    let world = World::new(dir)?;
    let udp = line(&world, "udp")?;
    let tcp = line(&world, "tcp")?;
    let text = serde_json::to_string(&PacketCostsDoc { udp, tcp })
        .map_err(|error| CommandError::io("the result", error.into()))?;
    output::print_text(&(text + "\n"))
}

/// The line of a protocol.
fn line(world: &World, protocol: &str) -> Result<PacketCostDoc, CommandError> {
    let mut points = Vec::new();
    for slice in SLICES_US {
        let search = Search {
            sender: world.sender(protocol, &format!("slice {slice}us/1ms"))?,
            client: Client::connect(world.dir())?,
        };
        // At 1 Gbit/s a microsecond is 1,000 bits.
        match search.point(slice as f64 * 1e6 / FULL_BITS)? {
            Some(point) => points.push(point),
            None => break,
        }
    }
    if points.len() < 2 {
        return Err(failed(&format!(
            "this machine does not carry slices of {} and {} us in 1 ms of a link of 1 Gbit/s by \
             {protocol}",
            SLICES_US[0], SLICES_US[1]
        )));
    }
    let (idle, packet) = through(&points);
    Ok(PacketCostDoc {
        idle_ppb: (idle.min(MOST_IDLE) * 1e9) as u64,
        packet_ps: (packet * 1e12).ceil() as u64,
    })
}

/// The search for the least part of a processor that carries a rate.
struct Search {
    sender: Sender,
    client: Client,
}

impl Search {
    /// Packets a second, and the least part that carries [`ENOUGH`] of them: the largest that
    /// [`SEARCHES`] find, because a packet does not always cost the same on a machine. `None` if
    /// [`MOST_PART`] does not carry about the `wanted` ones, or no smaller part carries them. (The
    /// headers of a packet count for its slice too.)
    fn point(mut self, wanted: f64) -> Result<Option<(f64, f64)>, CommandError> {
        self.reserve(MOST_PART)?;
        let (mut rates, mut uses) = (Vec::new(), Vec::new());
        for _ in 0..SEARCHES {
            let (rate, used) = self.count()?;
            rates.push(rate);
            uses.push(used);
        }
        let (carried, used) = (median(rates), median(uses));
        if carried < 0.9 * wanted {
            return Ok(None);
        }
        let parts = parts(used);
        let mut found = Vec::new();
        for _ in 0..SEARCHES {
            let first = first_enough(&parts, |part| self.carries(part, ENOUGH * carried))?;
            found.extend(first.map(|index| parts[index]));
        }
        // The next sender needs the room.
        let clear = Clear {
            what: ClearWhat::Target(format!("pid:{}", self.sender.pid())),
            dry_run: false,
            confirm_ns: None,
            for_ns: None,
            until: None,
        };
        self.client.call(&Request::Clear(clear), None)?;
        Ok((found.len() == SEARCHES).then(|| (carried, found.into_iter().fold(0.0, f64::max))))
    }

    /// True if a part carries so many packets a second, in two of three tries: others may disturb.
    fn carries(&mut self, part: f64, packets: f64) -> Result<bool, CommandError> {
        self.reserve(part)?;
        let first = self.count()?.0 >= packets;
        let second = self.count()?.0 >= packets;
        Ok(match first == second {
            true => first,
            false => self.count()?.0 >= packets,
        })
    }

    /// Reserves a part of the processor for the sender.
    fn reserve(&mut self, part: f64) -> Result<(), CommandError> {
        let pid = self.sender.pid();
        let process = process::open(pid)?;
        let set = Set {
            target: format!("pid:{pid}"),
            change: Some(format!("cpu {}ns/10ms", (part * 1e7) as u64)),
            ..Set::default()
        };
        let response = self
            .client
            .call(&Request::Set(set), Some(process.as_fd()))?;
        if !matches!(response, Response::Done(_)) {
            output::print_response(&response, false)?;
            return Err(failed("no processor time can be reserved here"));
        }
        thread::sleep(SETTLES);
        Ok(())
    }

    /// How many packets a second the sender sends now, and what part of a processor it uses.
    fn count(&mut self) -> Result<(f64, f64), CommandError> {
        let (began, before) = (Instant::now(), self.sender.count()?);
        thread::sleep(MEASURED);
        let (took, after) = (began.elapsed().as_secs_f64(), self.sender.count()?);
        let packets = after.packets.saturating_sub(before.packets) as f64 / took;
        let used = after.used_ns.saturating_sub(before.used_ns) as f64 / 1e9 / took;
        Ok((packets, used))
    }
}

/// The parts of a processor that are tried for a sender that used so much when it had plenty: with
/// little, it does more at a time, and needs less.
fn parts(used: f64) -> Vec<f64> {
    let least = (used * 0.6).max(LEAST_PART);
    let all = std::iter::successors(Some(least), |part| Some(part * 1.07));
    all.take_while(|part| *part < (used * 2.0).clamp(2.0 * LEAST_PART, MOST_PART))
        .collect()
}

/// The index of the first part that is enough, by bisection; `None` if none is. Fails as
/// `is_enough`.
fn first_enough<E>(
    parts: &[f64],
    mut is_enough: impl FnMut(f64) -> Result<bool, E>,
) -> Result<Option<usize>, E> {
    let (mut first, mut end) = (0, parts.len());
    while first < end {
        let middle = usize::midpoint(first, end);
        match is_enough(parts[middle])? {
            true => end = middle,
            false => first = middle + 1,
        }
    }
    Ok((first < parts.len()).then_some(first))
}

/// The middle one of some values.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The line through points by least squares: its value at 0 (not below 0) and its slope.
fn through(points: &[(f64, f64)]) -> (f64, f64) {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let rise: f64 = points
        .iter()
        .map(|point| (point.0 - x) * (point.1 - y))
        .sum();
    let run: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    let slope = rise / run;
    let at_zero = y - slope * x;
    // A line below 0 there, or one that falls, would promise too little time.
    match at_zero < 0.0 || slope.is_nan() || slope <= 0.0 {
        true => (0.0, y / x),
        false => (at_zero, slope),
    }
}

fn failed(text: &str) -> CommandError {
    CommandError::Measurement(text.to_owned())
}

/// The slices in 1 ms, in us. At much more, the driver needs most of the processor.
const SLICES_US: [u64; 3] = [50, 150, 300];
/// Bits of a full packet.
const FULL_BITS: f64 = 12_000.0;
/// The largest part of a processor that is tried.
const MOST_PART: f64 = 0.6;
/// The smallest share that the kernel keeps.
const LEAST_PART: f64 = 0.001;
/// A sender needs no larger part of a processor without packets; more is a disturbance.
const MOST_IDLE: f64 = 0.1;
/// A part that carries so much of the packets counts as enough.
const ENOUGH: f64 = 0.998;
/// Number of searches for each rate.
const SEARCHES: usize = 3;
/// The time until a changed reservation shows in the rate.
const SETTLES: Duration = Duration::from_millis(300);
const MEASURED: Duration = Duration::from_millis(600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_part_is_found_in_few_steps() {
        for used in [0.0, 0.001, 0.01, 0.2, 0.59, 0.9] {
            let parts = parts(used);
            for wanted in [0.0, used * 0.7, used, used * 1.9, 1.0] {
                let mut steps = 0;
                let found = first_enough(&parts, |part| {
                    steps += 1;
                    Ok::<bool, ()>(part >= wanted)
                });
                let expected = parts.iter().position(|part| *part >= wanted);
                assert_eq!(found, Ok(expected), "{wanted} of {used}");
                assert!(steps <= 5, "{wanted} of {used}: {steps} steps");
            }
        }
    }

    #[test]
    fn parts_are_around_what_was_used() {
        for used in [0.002, 0.01, 0.2] {
            let parts = parts(used);
            assert!(parts[0] <= used * 0.61 && parts[parts.len() - 1] > used * 1.8);
            assert!(parts.windows(2).all(|two| two[1] < two[0] * 1.08));
        }
        assert!(parts(0.0)[0] >= LEAST_PART);
        assert!(parts(0.9).iter().all(|part| *part < MOST_PART));
    }

    #[test]
    fn a_line_is_found_and_is_not_below_zero() {
        let (at_zero, slope) = through(&[(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]);
        assert!((at_zero - 1.0).abs() < 1e-9 && (slope - 2.0).abs() < 1e-9);
        let (at_zero, slope) = through(&[(1.0, 1.0), (2.0, 3.0)]);
        assert!(at_zero == 0.0 && (slope - 4.0 / 3.0).abs() < 1e-9);
        let (at_zero, slope) = through(&[(1.0, 3.0), (2.0, 1.0)]);
        assert!(at_zero == 0.0 && (slope - 4.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn a_line_is_described_by_a_full_packet() {
        let line = PacketCostDoc {
            idle_ppb: 5_000_000,
            packet_ps: 1_200_000,
        };
        let text = described("udp", &line);
        assert_eq!(
            text,
            "udp: 1.20 us of processor time for a packet of 1500 bytes, 10.0 % of a processor for 1 \
             Gbit/s, and 0.5 % at any rate\n"
        );
    }
}

//! Tests real programs with the daemon and the driver while the programs are disturbed: at random
//! times they are stopped for a while, are killed, end while they send, fork, or execute another
//! program. A good flow beside them must keep its rate. At the end no flow, descriptor or mapping
//! of dead programs may be left, and all frames of the driver must be accounted for.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use netnice_lab::process::EVENT_TIMEOUT;
use netnice_lab::stats;
use netnice_lab::sys;
use netnice_lab::testbed::{TestBed, becomes_true};
use netnice_lab::traffic::{self, Direct, Echo, Running, Unruly};
use netnice_lab::wire::{Record, Tap};
use netnice_lab::world;

use super::{Bounds, CONTRACTS, Contracts, GOOD, LOOSE, SLOW, TIGHT, lateness};

/// Contract of the long form: like that beside the rogues, but with a tolerance for a busy machine;
/// here 14 bytes of Ethernet count too.
const TOLERANT: Contracts = Contracts {
    good: "cell pcr=20mbit,cdvt=5ms",
    spacing: 605_600.0,
    tolerance: 5_000_000.0,
    ..CONTRACTS
};

/// Events of a program.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// SIGSTOP, and SIGCONT after a while.
    Stopped,
    /// SIGKILL.
    Killed,
    /// The program ends by itself, with queued packets.
    Exits,
    /// The program forks a child, which ends at once.
    Forks,
    /// The program forks a child that uses the same rings. The child writes invalid values into the
    /// rings when both are disconnected.
    SharingChild,
    /// The program forks a child that holds all its descriptors, and ends. The child then
    /// writes into the memory.
    OrphanedChild,
    /// The program executes another program, which inherits all descriptors.
    Exec,
}

const EVENTS: [Event; 7] = [
    Event::Stopped,
    Event::Killed,
    Event::Exits,
    Event::Forks,
    Event::SharingChild,
    Event::OrphanedChild,
    Event::Exec,
];

/// The state of a program.
enum State {
    Running,
    /// Stopped until this time.
    Stopped(Instant),
    /// The program is killed at this time.
    ToBeKilled(Instant),
}

struct DisturbedProgram {
    program: Running,
    state: State,
}

/// The eight running programs and their predecessors.
struct DisturbedPrograms<'a> {
    bed: &'a TestBed,
    programs: Vec<DisturbedProgram>,
    /// Killed programs whose children may live.
    killed: Vec<Running>,
    /// The port of the next program.
    port: u16,
    random: u64,
    /// The events that are left before all are drawn again.
    events_left: Vec<Event>,
    happened: [u32; EVENTS.len()],
}

impl DisturbedPrograms<'_> {
    fn new(bed: &TestBed, seed: u64) -> Result<DisturbedPrograms<'_>> {
        let mut disturbed = DisturbedPrograms {
            bed,
            programs: Vec::new(),
            killed: Vec::new(),
            port: GOOD + 1,
            random: seed,
            events_left: Vec::new(),
            happened: [0; EVENTS.len()],
        };
        for _ in 0..8 {
            let one = disturbed.start_program()?;
            disturbed.programs.push(one);
        }
        Ok(disturbed)
    }

    fn start_program(&mut self) -> Result<DisturbedProgram> {
        let (from, to) = (self.bed.client(self.port), self.bed.server(ECHO));
        self.port += 1;
        let unruly = Unruly::new(from, to, self.bed.netnice.runtime());
        Ok(DisturbedProgram {
            program: traffic::start_now(self.bed.world.client(), &unruly)?,
            state: State::Running,
        })
    }

    /// A random number below `bound`.
    fn random_below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % bound
    }

    fn random_time(&mut self, from: u64, to: u64) -> Instant {
        Instant::now() + Duration::from_millis(from + self.random_below(to - from))
    }

    /// Kills a program (not its children) and starts another in its place.
    fn replace(&mut self, index: usize) -> Result<()> {
        // It may have been disconnected and have ended.
        let _ = sys::kill(self.programs[index].program.pid() as i32, libc::SIGKILL);
        let next = self.start_program()?;
        let dead = std::mem::replace(&mut self.programs[index], next);
        self.killed.push(dead.program);
        // The children of the oldest dead programs are ended too; otherwise there would be
        // hundreds.
        if self.killed.len() > MAX_KILLED {
            self.killed.remove(0);
        }
        Ok(())
    }

    fn draw_event(&mut self) -> Event {
        if self.events_left.is_empty() {
            self.events_left = EVENTS.to_vec();
        }
        let at = self.random_below(self.events_left.len() as u64) as usize;
        self.events_left.swap_remove(at)
    }

    fn apply(&mut self, index: usize, event: Event) -> Result<()> {
        self.happened[event as usize] += 1;
        let one = &mut self.programs[index].program;
        let (pid, proc) = (one.pid() as i32, &mut one.proc);
        let word = match event {
            Event::Stopped => {
                sys::kill(pid, libc::SIGSTOP)?;
                let until = self.random_time(50, 300);
                self.programs[index].state = State::Stopped(until);
                return Ok(());
            }
            Event::Killed => return self.replace(index),
            Event::Forks => return proc.write_line("fork"),
            Event::Exits => "exit",
            Event::SharingChild => "twin",
            Event::OrphanedChild => "orphan",
            Event::Exec => "exec",
        };
        proc.write_line(word)?;
        let until = self.random_time(20, 120);
        self.programs[index].state = State::ToBeKilled(until);
        Ok(())
    }

    /// Resumes or kills the programs whose time has come, or all if `all`.
    fn resume_or_kill_due(&mut self, all: bool) -> Result<()> {
        let now = Instant::now();
        for index in 0..self.programs.len() {
            match self.programs[index].state {
                State::Stopped(until) if all || now >= until => {
                    sys::kill(self.programs[index].program.pid() as i32, libc::SIGCONT)?;
                    self.programs[index].state = State::Running;
                }
                State::ToBeKilled(until) if all || now >= until => self.replace(index)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Applies a random event to one program every few milliseconds, for `seconds`. On a slow
    /// machine it goes on until each event has occurred, for at most [`EVENT_TIMEOUT`] more.
    fn apply_random_events(&mut self, seconds: f64) -> Result<()> {
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        let latest = end + EVENT_TIMEOUT;
        let all = |happened: &[u32]| happened.iter().all(|count| *count > 0);
        while Instant::now() < end || (!all(&self.happened) && Instant::now() < latest) {
            self.resume_or_kill_due(false)?;
            let index = self.random_below(8) as usize;
            let event = self.draw_event();
            match (&self.programs[index].state, event) {
                // A stopped program can be killed too.
                (State::Running, _) | (State::Stopped(_), Event::Killed) => {
                    self.apply(index, event)?
                }
                _ => self.events_left.push(event),
            }
            let pause = 5 + self.random_below(20);
            std::thread::sleep(Duration::from_millis(pause));
        }
        self.resume_or_kill_due(true)
    }

    /// Fails unless `show` has exactly the flows of the living programs.
    fn check_shown_flows(&self, good: u32) -> Result<()> {
        let living = self.programs.iter().map(|one| one.program.pid());
        let living: BTreeSet<u64> = living.chain([good]).map(u64::from).collect();
        let shown = || -> Result<Vec<u64>> {
            let shown = self.bed.netnice.show()?;
            let flows = shown["direct"].as_array().cloned().unwrap_or_default();
            flows
                .iter()
                .map(|flow| flow["pid"].as_u64().context("a pid"))
                .collect()
        };
        let right = || {
            shown().is_ok_and(|pids| {
                pids.len() == living.len() && pids.into_iter().collect::<BTreeSet<_>>() == living
            })
        };
        ensure!(
            becomes_true(right),
            "these live: {living:?}; these have flows: {:?}",
            shown()?
        );
        Ok(())
    }
}

/// Resources that a process holds for other programs.
#[derive(Debug, PartialEq, Eq)]
struct Resources {
    descriptors: usize,
    memories: usize,
}

impl Resources {
    fn of(pid: u32) -> Result<Resources> {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
        Ok(Resources {
            descriptors: std::fs::read_dir(format!("/proc/{pid}/fd"))?.count(),
            memories: maps.lines().filter(|line| line.contains("/memfd:")).count(),
        })
    }
}

fn driver(bed: &TestBed) -> Result<u32> {
    bed.world.client().ns.driver().context("a driver")
}

/// Packets per second of the good flow, and the p99 of its lateness in us.
fn measured(record: &Record, (from, to): (u64, u64), contracts: &Contracts) -> Result<(f64, f64)> {
    let mut times = record.times(|flow| flow.source.1 == GOOD);
    times.retain(|at| (from..to).contains(at));
    ensure!(times.len() > 10, "{} packets", times.len());
    let span = times[times.len() - 1] - times[0];
    let rate = (times.len() - 1) as f64 * 1e9 / span as f64;
    Ok((rate, stats::percentile(&lateness(&times, contracts), 99.0)))
}

fn run_beside_random_events(
    calm: f64,
    seconds: f64,
    contracts: &Contracts,
    bounds: &Bounds,
) -> Result<()> {
    let bed = TestBed::new()?;
    let (client, server) = (bed.world.client(), bed.world.server());
    let device = &client.port().device;
    bed.run_ok(&format!("link {device} --rate 50mbit"));
    let _echo = traffic::start_now(server, &Echo::listen(bed.server(ECHO)))?;
    let (own, far) = (bed.client(GOOD), bed.server(SINK));
    let good = Direct::source(own, far).contract(contracts.good);
    // The good program has real-time priority too; otherwise it would be late itself because it
    // shares its processor.
    let first = ["chrt", "--rr", "1"];
    let good = traffic::start_through(client, &first, None, &good.by(bed.netnice.runtime()))?;
    let (driver_pid, daemon) = (driver(&bed)?, bed.netnice.pid().context("a daemon")?);
    let before = [Resources::of(driver_pid)?, Resources::of(daemon)?];

    let mut disturbed = DisturbedPrograms::new(&bed, SEED)?;
    let file = bed.world.folder().join("good.pcap");
    let tap = Tap::start_capturing(&server.ns, &server.port().device, &file, |flow| {
        flow.inbound && flow.source.1 == GOOD
    })?;
    std::thread::sleep(Duration::from_millis(300));
    let began = sys::now_ns();
    std::thread::sleep(Duration::from_secs_f64(calm));
    let begins = sys::now_ns();
    disturbed.apply_random_events(seconds)?;
    let ended = sys::now_ns();
    let record = tap.stop(&server.ns)?;
    record.validate()?;
    disturbed.check_shown_flows(good.pid())?;
    ensure!(driver(&bed)? == driver_pid, "the driver is another one");

    let calm = measured(&record, (began, begins), contracts)?;
    let rough = measured(&record, (begins, ended), contracts)?;
    println!(
        "seed {SEED:#x}: {:?} x {EVENTS:?}; the good flow beside eight undisturbed programs: {:.1} \
         packets/s, p99 of lateness {:.1} us; beside disturbed ones: {:.1}, {:.1} us",
        disturbed.happened, calm.0, calm.1, rough.0, rough.1
    );
    ensure!(
        disturbed.happened.iter().all(|count| *count > 0),
        "an event did not occur: {:?}",
        disturbed.happened
    );
    let share = rough.0 / (1e9 / contracts.spacing) - 1.0;
    ensure!(
        bounds.rate.contains(&share),
        "{:+.2} % of its rate",
        share * 100.0
    );
    ensure!(
        bounds.later.is_none_or(|times| rough.1 <= calm.1 * times),
        "p99 {:.1} us, undisturbed {:.1}",
        rough.1,
        calm.1
    );

    // The eight programs and all children end too; then only the initial resources may be held.
    drop(disturbed);
    let held = || [driver_pid, daemon].map(Resources::of);
    let as_before = || {
        held()
            .into_iter()
            .zip(&before)
            .all(|(now, before)| now.is_ok_and(|now| now == *before))
    };
    ensure!(
        becomes_true(as_before),
        "driver and daemon held {before:?}, and now {:?}",
        held()
    );
    let told = bed.run_ok(&format!("explain direct:{device}")).stdout;
    ensure!(!told.contains("strange"), "the frames' ledger: {told}");
    let report = good.stop()?;
    ensure!(report.refused.is_empty(), "{:?}", report.refused);
    Ok(())
}

#[test]
fn programs_that_stop_fork_and_end_at_random_disturb_no_other() {
    world::begin().expect("a clean machine");
    run_beside_random_events(0.5, 2.0, &SLOW, &LOOSE).unwrap_or_else(|e| panic!("{e:#}"));
}

#[test]
#[ignore = "a minute, on a quiet machine"]
fn a_minute_of_random_events_disturbs_no_other_program() {
    world::begin().expect("a clean machine");
    run_beside_random_events(20.0, 60.0, &TOLERANT, &TIGHT).unwrap_or_else(|e| panic!("{e:#}"));
}

/// Number of dead programs whose children are kept.
const MAX_KILLED: usize = 12;
/// The port of the echo server, and the destination port of the good flow.
const ECHO: u16 = 4000;
const SINK: u16 = 4001;
const SEED: u64 = 0x5eed_0005_0b05_e7ed;

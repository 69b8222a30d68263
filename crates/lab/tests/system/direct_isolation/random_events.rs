//! Real programs with the daemon and the driver. At random times they are stopped for a while,
//! killed, end while they send, fork, or execute another program. A good flow beside them must keep
//! its rate. At the end no flow, descriptor or mapping of dead programs may be left, and all frames
//! of the driver must be accounted for.

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
const PATIENT: Contracts = Contracts {
    good: "cell pcr=20mbit,cdvt=5ms",
    spacing: 605_600.0,
    tolerance: 5_000_000.0,
    ..CONTRACTS
};

/// Events of a program.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// SIGSTOP, and SIGCONT after a while.
    Stopped,
    /// SIGKILL.
    Killed,
    /// It ends by itself, with queued packets.
    Exits,
    /// It forks a child, which ends at once.
    Forks,
    /// It forks a child that uses the same rings, and writes invalid values into them when both are
    /// disconnected.
    Twin,
    /// It forks a child that holds all its descriptors and outlives it. Then the child writes into
    /// the memory.
    Orphan,
    /// It executes another program, which inherits its descriptors.
    Exec,
}

const FATES: [Fate; 7] = [
    Fate::Stopped,
    Fate::Killed,
    Fate::Exits,
    Fate::Forks,
    Fate::Twin,
    Fate::Orphan,
    Fate::Exec,
];

/// The state of a program.
enum State {
    Well,
    /// Stopped until this time.
    Stopped(Instant),
    /// It is killed at this time.
    Doomed(Instant),
}

struct Beset {
    program: Running,
    state: State,
}

/// The eight running programs and their predecessors.
struct Crowd<'a> {
    bed: &'a TestBed,
    eight: Vec<Beset>,
    /// Killed programs whose children may live.
    graves: Vec<Running>,
    /// The port of the next program.
    port: u16,
    random: u64,
    /// The events that are left before all are drawn again.
    deck: Vec<Fate>,
    happened: [u32; FATES.len()],
}

impl Crowd<'_> {
    fn new(bed: &TestBed, seed: u64) -> Result<Crowd<'_>> {
        let mut crowd = Crowd {
            bed,
            eight: Vec::new(),
            graves: Vec::new(),
            port: GOOD + 1,
            random: seed,
            deck: Vec::new(),
            happened: [0; FATES.len()],
        };
        for _ in 0..8 {
            let one = crowd.born()?;
            crowd.eight.push(one);
        }
        Ok(crowd)
    }

    fn born(&mut self) -> Result<Beset> {
        let (from, to) = (self.bed.client(self.port), self.bed.server(ECHO));
        self.port += 1;
        let unruly = Unruly::new(from, to, self.bed.netnice.runtime());
        Ok(Beset {
            program: traffic::start_now(self.bed.world.client(), &unruly)?,
            state: State::Well,
        })
    }

    /// A random number below `bound`.
    fn any(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % bound
    }

    fn after(&mut self, from: u64, to: u64) -> Instant {
        Instant::now() + Duration::from_millis(from + self.any(to - from))
    }

    /// Kills a program (not its children) and starts another in its place.
    fn replace(&mut self, who: usize) -> Result<()> {
        // It may have been disconnected and have ended.
        let _ = sys::kill(self.eight[who].program.pid() as i32, libc::SIGKILL);
        let next = self.born()?;
        let dead = std::mem::replace(&mut self.eight[who], next);
        self.graves.push(dead.program);
        // The children of the oldest dead programs are ended too; otherwise there would be
        // hundreds.
        if self.graves.len() > GRAVES {
            self.graves.remove(0);
        }
        Ok(())
    }

    fn next_fate(&mut self) -> Fate {
        if self.deck.is_empty() {
            self.deck = FATES.to_vec();
        }
        let at = self.any(self.deck.len() as u64) as usize;
        self.deck.swap_remove(at)
    }

    fn befalls(&mut self, who: usize, fate: Fate) -> Result<()> {
        self.happened[fate as usize] += 1;
        let one = &mut self.eight[who].program;
        let (pid, proc) = (one.pid() as i32, &mut one.proc);
        let word = match fate {
            Fate::Stopped => {
                sys::kill(pid, libc::SIGSTOP)?;
                let until = self.after(50, 300);
                self.eight[who].state = State::Stopped(until);
                return Ok(());
            }
            Fate::Killed => return self.replace(who),
            Fate::Forks => return proc.write_line("fork"),
            Fate::Exits => "exit",
            Fate::Twin => "twin",
            Fate::Orphan => "orphan",
            Fate::Exec => "exec",
        };
        proc.write_line(word)?;
        let until = self.after(20, 120);
        self.eight[who].state = State::Doomed(until);
        Ok(())
    }

    /// Resumes or kills the programs whose time has come, or all if `all`.
    fn due(&mut self, all: bool) -> Result<()> {
        let now = Instant::now();
        for who in 0..self.eight.len() {
            match self.eight[who].state {
                State::Stopped(until) if all || now >= until => {
                    sys::kill(self.eight[who].program.pid() as i32, libc::SIGCONT)?;
                    self.eight[who].state = State::Well;
                }
                State::Doomed(until) if all || now >= until => self.replace(who)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Applies a random event to one program every few milliseconds, for `seconds`. On a slow
    /// machine it goes on until each event has occurred, for at most [`EVENT_TIMEOUT`] more.
    fn suffers(&mut self, seconds: f64) -> Result<()> {
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        let latest = end + EVENT_TIMEOUT;
        let all = |happened: &[u32]| happened.iter().all(|count| *count > 0);
        while Instant::now() < end || (!all(&self.happened) && Instant::now() < latest) {
            self.due(false)?;
            let who = self.any(8) as usize;
            let fate = self.next_fate();
            match (&self.eight[who].state, fate) {
                // A stopped program can be killed too.
                (State::Well, _) | (State::Stopped(_), Fate::Killed) => self.befalls(who, fate)?,
                _ => self.deck.push(fate),
            }
            let pause = 5 + self.any(20);
            std::thread::sleep(Duration::from_millis(pause));
        }
        self.due(true)
    }

    /// Fails unless `show` has exactly the flows of the living programs.
    fn shown(&self, good: u32) -> Result<()> {
        let living = self.eight.iter().map(|one| one.program.pid());
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
struct Holds {
    descriptors: usize,
    memories: usize,
}

impl Holds {
    fn of(pid: u32) -> Result<Holds> {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
        Ok(Holds {
            descriptors: std::fs::read_dir(format!("/proc/{pid}/fd"))?.count(),
            memories: maps.lines().filter(|line| line.contains("/memfd:")).count(),
        })
    }
}

/// The driver's process, by its name.
fn driver(bed: &TestBed) -> Result<u32> {
    let named = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/comm"))
            .is_ok_and(|name| name.trim() == "netnice-driver")
    };
    let pids = bed.world.client().ns.pids();
    pids.into_iter().find(named).context("a driver")
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

fn beset(calm: f64, seconds: f64, contracts: &Contracts, bounds: &Bounds) -> Result<()> {
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
    let (driver_is, daemon) = (driver(&bed)?, bed.netnice.pid().context("a daemon")?);
    let before = [Holds::of(driver_is)?, Holds::of(daemon)?];

    let mut crowd = Crowd::new(&bed, SEED)?;
    let file = bed.world.folder().join("good.pcap");
    let tap = Tap::start_capturing(&server.ns, &server.port().device, &file, |flow| {
        flow.inbound && flow.source.1 == GOOD
    })?;
    std::thread::sleep(Duration::from_millis(300));
    let began = sys::now_ns();
    std::thread::sleep(Duration::from_secs_f64(calm));
    let begins = sys::now_ns();
    crowd.suffers(seconds)?;
    let ended = sys::now_ns();
    let record = tap.stop(&server.ns)?;
    record.validate()?;
    crowd.shown(good.pid())?;
    ensure!(driver(&bed)? == driver_is, "the driver is another one");

    let calm = measured(&record, (began, begins), contracts)?;
    let rough = measured(&record, (begins, ended), contracts)?;
    println!(
        "seed {SEED:#x}: {:?} x {FATES:?}; the good flow beside eight that live in peace: {:.1} packets/s, p99 of \
         lateness {:.1} us; beside these: {:.1}, {:.1} us",
        crowd.happened, calm.0, calm.1, rough.0, rough.1
    );
    ensure!(
        crowd.happened.iter().all(|count| *count > 0),
        "something happened to nobody: {:?}",
        crowd.happened
    );
    let share = rough.0 / (1e9 / contracts.spacing) - 1.0;
    ensure!(
        bounds.rate.contains(&share),
        "{:+.2} % of its rate",
        share * 100.0
    );
    ensure!(
        bounds.later.is_none_or(|times| rough.1 <= calm.1 * times),
        "p99 {:.1} us, in peace {:.1}",
        rough.1,
        calm.1
    );

    // The eight programs and all children end too; then only the initial resources may be held.
    drop(crowd);
    let held = || [driver_is, daemon].map(Holds::of);
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
    beset(0.5, 2.0, &SLOW, &LOOSE).unwrap_or_else(|e| panic!("{e:#}"));
}

#[test]
#[ignore = "a minute, on a quiet machine"]
fn a_minute_of_random_events_disturbs_no_other_program() {
    world::begin().expect("a clean machine");
    beset(20.0, 60.0, &PATIENT, &TIGHT).unwrap_or_else(|e| panic!("{e:#}"));
}

/// Number of dead programs whose children are kept.
const GRAVES: usize = 12;
/// The port of the echo server, and the destination port of the good flow.
const ECHO: u16 = 4000;
const SINK: u16 = 4001;
const SEED: u64 = 0x5eed_0005_0b05_e7ed;

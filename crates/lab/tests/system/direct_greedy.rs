//! Tests programs of a plain user that try to exhaust the driver's resources: its time, its memory,
//! and the sleep of its packet thread. Beside each of them a flow with a contract must keep its
//! rate and lose nothing. One test checks the rights of the driver process.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use netnice_api::driver::DriverFlowDoc;
use netnice_lab::sys;
use netnice_lab::world::{self, Pair, World};
use netnice_ring::program::Piece;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

use crate::driver_client::{Caller, Driver, Program, close, flow, udp, wait_for};
use crate::users::{ANN, BOB};

/// The user of the greedy programs.
const GREEDY_USER: u32 = ANN;
const GOOD: u16 = 5000;
const BAD: u16 = 5001;
const PEER: u16 = 6000;

/// A driver, and a program whose flow must keep its contract.
struct Rig {
    world: World,
    driver: Driver,
    daemon: Caller,
    good: Program,
    number: u32,
}

/// How long an attack is judged, and the least share of its rate that the good flow must keep on
/// average over that time.
#[derive(Clone, Copy)]
struct Bounds {
    /// Seconds of a window.
    seconds: f64,
    /// Largest number of windows, one after another. The next one is measured only if the average
    /// so far is too low: a busy or emulated machine takes the processor from the driver for a
    /// second or two, and an attack that succeeds takes it for as long as it lasts.
    windows: u32,
    keeps: f64,
}

/// For a machine with other load.
const SHORT: Bounds = Bounds {
    seconds: 2.0,
    windows: 5,
    keeps: 0.5,
};
/// For a quiet machine.
const LONG: Bounds = Bounds {
    seconds: 20.0,
    windows: 1,
    keeps: 0.99,
};

/// The good flow and the driver's processor time during an attack.
struct Measured {
    /// Sent packets as a share of what the contract allows.
    kept: f64,
    /// Processor time as a share of a processor.
    worked: f64,
}

fn rig() -> Result<Rig> {
    let world = World::pair(Pair::default())?;
    let driver = Driver::start(&world, "--stay")?;
    let mut daemon = driver.call()?;
    let mut good = Program::attach(&mut daemon, 1, 1 << 20)?;
    let mut asked = flow(&world, &good, GOOD, Some(PEER))?;
    asked.contract = "cell pcr=2mbit,cdvt=10ms".to_owned();
    let number = good.open(&mut daemon, asked)?;
    Ok(Rig {
        world,
        driver,
        daemon,
        good,
        number,
    })
}

fn flow_of(daemon: &mut Caller, number: u32) -> Result<DriverFlowDoc> {
    let flows = daemon.census()?.flows;
    let found = flows.into_iter().find(|flow| flow.flow == number);
    found.with_context(|| format!("flow {number} is gone"))
}

/// Measures the good flow and the driver from now on, until the flow has what it must keep or the
/// last window is over. Fails if a packet of the flow is lost.
fn measure(driver: &Driver, daemon: &mut Caller, number: u32, bounds: Bounds) -> Result<Measured> {
    let (before, worked) = (
        flow_of(daemon, number)?.counts,
        sys::cpu_seconds(driver.pid())?,
    );
    let begin = Instant::now();
    let mut windows = 0..bounds.windows;
    loop {
        windows.next();
        thread::sleep(Duration::from_secs_f64(bounds.seconds));
        let (after, work) = (
            flow_of(daemon, number)?.counts,
            sys::cpu_seconds(driver.pid())?,
        );
        let seconds = begin.elapsed().as_secs_f64();
        let lost = after.forbidden + after.too_long + after.no_link;
        ensure!(lost == 0, "the good flow lost {lost}: {after:?}");
        let bits = (after.sent_bytes - before.sent_bytes) as f64 * 8.0;
        let measured = Measured {
            kept: bits / seconds / 2e6,
            worked: (work - worked) / seconds,
        };
        if windows.is_empty() || measured.kept >= bounds.keeps {
            return Ok(measured);
        }
    }
}

impl Rig {
    /// A program of GREEDY_USER with a flow of this contract.
    fn attach_greedy(&mut self, contract: &str) -> Result<(Program, u32)> {
        let mut greedy = Program::attach_of(&mut self.daemon, (GREEDY_USER, None), 1, 1 << 20)?;
        let mut asked = flow(&self.world, &greedy, BAD, Some(PEER))?;
        asked.contract = contract.to_owned();
        let number = greedy.open(&mut self.daemon, asked)?;
        Ok((greedy, number))
    }

    /// The good flow sends while `attack` runs in threads of its own, until `attack` is told to
    /// stop.
    fn measure_beside(
        &mut self,
        bounds: Bounds,
        attack: impl FnOnce(&AtomicBool) -> Result<()> + Send,
    ) -> Result<Measured> {
        let frame = udp(&self.world, GOOD, PEER, &[7; 958])?;
        let (stop, over) = (AtomicBool::new(false), AtomicBool::new(false));
        let Rig {
            driver,
            daemon,
            good,
            number,
            ..
        } = self;
        let seen = thread::scope(|scope| {
            let attacking = scope.spawn(|| attack(&over));
            let sending = scope.spawn(|| good.flood(&frame, &stop));
            thread::sleep(Duration::from_millis(300));
            let measured = measure(driver, daemon, *number, bounds);
            stop.store(true, Ordering::Relaxed);
            over.store(true, Ordering::Relaxed);
            for thread in [attacking, sending] {
                thread.join().map_err(|_| anyhow!("it panicked"))??;
            }
            measured
        })?;
        println!(
            "the good flow kept {:.4} of its rate, the driver used {:.3} of a processor",
            seen.kept, seen.worked
        );
        ensure!(seen.kept >= bounds.keeps, "it kept {:.4}", seen.kept);
        ensure!(self.driver.is_running(), "the driver is gone");
        Ok(seen)
    }
}

/// Spins until it is told to stop.
fn spin_until(stop: &AtomicBool) -> Result<()> {
    sys::become_user(GREEDY_USER)?;
    while !stop.load(Ordering::Relaxed) {
        std::hint::spin_loop();
    }
    Ok(())
}

/// Tries to remove pages of the memory file from a thread that rarely runs, so that a driver
/// waiting for it would wait long.
fn check_holes(bounds: Bounds) -> Result<()> {
    let mut rig = rig()?;
    let (mut greedy, _) = rig.attach_greedy("up 1mbit")?;
    let frame = udp(&rig.world, BAD, PEER, &[1; 100])?;
    let length = greedy.file().metadata()?.len();
    let (file, memory) = (greedy.file().try_clone()?, greedy.memory());
    let (punched, removed) = thread::scope(|scope| {
        let punch = scope.spawn(|| {
            sys::become_user(GREEDY_USER)?;
            anyhow::Ok((
                sys::punch_hole(&file, 0, length),
                memory.remove(0, length as usize),
            ))
        });
        punch.join().map_err(|_| anyhow!("it panicked"))?
    })?;
    println!("punch: {punched:?}, remove: {removed:?}");
    let processors = thread::available_parallelism()?.get();
    rig.measure_beside(bounds, |stop| {
        thread::scope(|scope| {
            let mut all = Vec::new();
            for _ in 0..2 * processors {
                all.push(scope.spawn(|| spin_until(stop)));
            }
            all.push(scope.spawn(|| {
                sys::become_user(GREEDY_USER)?;
                sys::set_idle_priority()?;
                while !stop.load(Ordering::Relaxed) {
                    let _ = sys::punch_hole(&file, 0, length);
                }
                Ok(())
            }));
            greedy.flood(&frame, stop)?;
            for one in all {
                one.join().map_err(|_| anyhow!("it panicked"))??;
            }
            Ok(())
        })
    })?;
    let refused = |done: std::io::Result<()>| done.err().and_then(|why| why.raw_os_error());
    ensure!(refused(punched) == Some(1), "a hole can be punched");
    ensure!(refused(removed) == Some(1), "pages can be removed");
    Ok(())
}

/// Keeps the memory files of detached programs.
fn check_kept_memory() -> Result<()> {
    const MOST: u64 = 8 << 20;
    const EACH: u64 = 2 << 20;
    let mut rig = rig()?;
    let greedy = (GREEDY_USER, Some(MOST));
    let mut kept: Vec<File> = Vec::new();
    let refusal = loop {
        let program = match Program::attach_of(&mut rig.daemon, greedy, 1, EACH) {
            Ok(program) => program,
            Err(why) => break why.to_string(),
        };
        kept.push(program.file().try_clone()?);
        program.end(&mut rig.daemon)?;
        ensure!(
            kept.len() as u64 * EACH <= MOST,
            "{} files of {EACH} bytes are kept",
            kept.len()
        );
    };
    println!("{refusal}");
    let said = format!("ring bytes of user {GREEDY_USER}: 8 MiB at most, ");
    ensure!(refusal.contains(&said), "{refusal}");
    ensure!(
        refusal.contains("in use by 3 files that still exist"),
        "{refusal}"
    );
    let told = rig.daemon.census()?.memory;
    let hers = told.iter().find(|user| user.uid == GREEDY_USER);
    ensure!(hers.is_some_and(|user| user.files == 3), "{told:?}");
    // Others still get memory, and GREEDY_USER gets memory again when the files are closed.
    Program::attach_of(&mut rig.daemon, (BOB, Some(MOST)), 1, EACH)?.end(&mut rig.daemon)?;
    drop(kept);
    wait_for("the files are gone", || {
        let told = rig.daemon.census()?.memory;
        Ok(told.iter().all(|user| user.uid != GREEDY_USER))
    })?;
    Program::attach_of(&mut rig.daemon, greedy, 1, EACH)?.end(&mut rig.daemon)
}

/// Submits records that are longer than any packet, as fast as they are returned.
fn check_long_records(bounds: Bounds) -> Result<()> {
    let mut rig = rig()?;
    let (mut greedy, number) = rig.attach_greedy("up 1kbit")?;
    let seen = rig.measure_beside(bounds, |stop| {
        sys::become_user(GREEDY_USER)?;
        while !stop.load(Ordering::Relaxed) {
            let flow = greedy.flow()?;
            while let Some(record) = flow.reclaim()? {
                flow.free_all(&record)?;
            }
            while let (Some(first), Some(second)) = (flow.chunk(), flow.chunk()) {
                let whole = |chunk| Piece {
                    chunk,
                    start: 0,
                    length: 2048,
                };
                if flow.submit(&[whole(first), whole(second)], false).is_err() {
                    flow.free(first)?;
                    flow.free(second)?;
                    break;
                }
            }
            flow.publish();
            greedy.attachment.notify();
        }
        Ok(())
    })?;
    let counts = flow_of(&mut rig.daemon, number)?.counts;
    println!("{} records were too long", counts.too_long);
    // One at once, and one every 12 s.
    ensure!(counts.too_long <= 8, "{counts:?}");
    ensure!(seen.worked < 0.6, "of a processor: {:.2}", seen.worked);
    Ok(())
}

/// Makes many descriptors watch both doorbells, and sends one packet at a time, so that the
/// doorbells are written often.
fn check_watched_doorbells(bounds: Bounds) -> Result<()> {
    let mut rig = rig()?;
    let (mut greedy, number) = rig.attach_greedy("up 1mbit")?;
    let most = sys::raise_file_limit()?;
    let count = (most.saturating_sub(1000)).min(20_000) as usize;
    let frame = udp(&rig.world, BAD, PEER, &[1; 100])?;
    let to_driver = greedy.doorbell().try_clone()?;
    let to_program = greedy.attachment.doorbell().try_clone_to_owned()?;
    let began = thread::scope(|scope| {
        let all = scope.spawn(|| {
            sys::become_user(GREEDY_USER)?;
            let watch = || {
                let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
                let no_data = epoll::EventData::new_u64(0);
                epoll::add(&epoll, &to_driver, no_data, epoll::EventFlags::IN)?;
                Ok(epoll)
            };
            let all: rustix::io::Result<Vec<OwnedFd>> = (0..count).map(|_| watch()).collect();
            Ok::<_, anyhow::Error>(all?)
        });
        all.join().map_err(|_| anyhow!("it panicked"))?
    })?;
    let seen = rig.measure_beside(bounds, |stop| {
        thread::scope(|scope| {
            let waits = scope.spawn(|| {
                sys::become_user(GREEDY_USER)?;
                while !stop.load(Ordering::Relaxed) {
                    let mut all = vec![PollFd::new(&to_program, PollFlags::PRI); count];
                    let within = Timespec {
                        tv_sec: 0,
                        tv_nsec: 100_000_000,
                    };
                    poll(&mut all, Some(&within))?;
                }
                anyhow::Ok(())
            });
            // One packet at a time, so that the driver sleeps in between and its doorbell is
            // written.
            while !stop.load(Ordering::Relaxed) {
                // If there is no free chunk, earlier packets are still being sent.
                let _ = greedy.send(&frame);
                greedy.attachment.wait(Some(Duration::from_millis(1)))?;
            }
            waits.join().map_err(|_| anyhow!("it panicked"))?
        })
    })?;
    let counts = flow_of(&mut rig.daemon, number)?.counts;
    println!("{} watchers, {} packets of hers", began.len(), counts.sent);
    // The driver still serves the program and writes its doorbell.
    ensure!(counts.sent > 10, "{counts:?}");
    ensure!(seen.worked < 0.6, "of a processor: {:.2}", seen.worked);
    Ok(())
}

/// Each thread of a driver tries forbidden system calls after its setup.
fn check_confinement() -> Result<()> {
    let world = World::pair(Pair::default())?;
    for mode in ["native", "generic", "fallback"] {
        let options = format!("--stay --self-check --mode {mode}");
        let mut driver = Driver::start(&world, &options)?;
        let mut daemon = driver.call()?;
        let confined = daemon.census()?.confinement;
        println!("{mode}: {confined}");
        ensure!(confined.contains("no capability"), "{confined}");
        ensure!(!confined.contains("failed"), "{confined}");
        let pid = driver.pid();
        let mut threads = 0;
        for entry in std::fs::read_dir(format!("/proc/{pid}/task"))? {
            let status = std::fs::read_to_string(entry?.path().join("status"))?;
            let line = |name: &str| {
                let found = status.lines().find_map(|line| line.strip_prefix(name));
                found.map(str::trim).unwrap_or_default()
            };
            println!("{} {} {}", line("Name:"), line("Uid:"), line("CapEff:"));
            ensure!(!line("Uid:").split_whitespace().any(|uid| uid == "0"));
            // CAP_IPC_LOCK remains if the limit on locked memory cannot be raised.
            let rights = u64::from_str_radix(line("CapEff:"), 16)?;
            ensure!(rights & !(1 << 14) == 0, "{rights:#x}");
            ensure!(line("Seccomp:") == "2" && line("NoNewPrivs:") == "1");
            threads += 1;
        }
        ensure!(threads == 3, "{threads}");
        // Attaching, opening, closing and ending need no capability.
        let mut program = Program::attach(&mut daemon, 1, 1 << 20)?;
        let asked = flow(&world, &program, GOOD, Some(PEER))?;
        let number = program.open(&mut daemon, asked)?;
        daemon.ask(close(number))?;
        program.end(&mut daemon)?;
        let ended = driver.terminate()?;
        ensure!(ended.success(), "{ended}");
        ensure!(driver.files().is_empty(), "{:?}", driver.files());
        let said = driver.take_stderr();
        let tried: Vec<&str> = said
            .lines()
            .filter(|line| line.contains("tried="))
            .collect();
        ensure!(tried.len() == 3, "{said}");
        for line in tried {
            println!("{line}");
            let refused = "open EPERM, kill EPERM, ptrace EPERM, fork EPERM, mmap EPERM";
            ensure!(line.contains(refused), "{line}");
        }
    }
    Ok(())
}

#[test]
fn holes_in_memory_are_refused_and_delay_no_flow() {
    world::begin().expect("a clean machine");
    check_holes(SHORT).unwrap_or_else(|e| panic!("{e:?}"));
}

#[test]
fn memory_counts_for_its_user_until_it_is_freed() {
    world::begin().expect("a clean machine");
    check_kept_memory().unwrap_or_else(|e| panic!("{e:?}"));
}

#[test]
fn too_long_records_cost_the_driver_no_time() {
    world::begin().expect("a clean machine");
    check_long_records(SHORT).unwrap_or_else(|e| panic!("{e:?}"));
}

#[test]
fn doorbells_with_many_waiters_delay_no_flow() {
    world::begin().expect("a clean machine");
    check_watched_doorbells(SHORT).unwrap_or_else(|e| panic!("{e:?}"));
}

#[test]
fn no_thread_of_a_driver_can_open_signal_or_trace_anything() {
    world::begin().expect("a clean machine");
    check_confinement().unwrap_or_else(|e| panic!("{e:?}"));
}

#[test]
#[ignore = "rates to the percent"]
fn the_good_flow_keeps_its_rate_beside_each_greedy_program() {
    world::begin().expect("a clean machine");
    check_holes(LONG).unwrap_or_else(|e| panic!("holes: {e:?}"));
    check_long_records(LONG).unwrap_or_else(|e| panic!("long records: {e:?}"));
    check_watched_doorbells(LONG).unwrap_or_else(|e| panic!("watched doorbells: {e:?}"));
}

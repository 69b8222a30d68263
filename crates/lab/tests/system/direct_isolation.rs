//! Tests programs that violate the ring's protocol beside a program that does not: the driver must
//! name the violated rule and go on, and the good flow must not be affected. No packet that a
//! template forbids may be sent: a checker that does not use templates reads a capture at the
//! receiver.

mod random_events;

use std::io::Read;
use std::ops::RangeInclusive;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use netnice_core::contract::Contract;
use netnice_core::sched::Service;
use netnice_core::units::Nanos;
use netnice_driver::event_loop::TimeAccounting;
use netnice_driver::link::Mode;
use netnice_lab::direct::rogue::{Rogue, RogueHandle, Supervisor, Violation};
use netnice_lab::direct::{DriverSetup, SHORT, SINK, SenderProgram, wire};
use netnice_lab::stats;
use netnice_lab::sys;
use netnice_lab::wire::Tap;
use netnice_lab::world::{self, Pair, World};
use netnice_sim::Random;

const GOOD: u16 = 5000;

/// The contracts of the flows.
struct Contracts {
    /// The good flow: its contract, the time between packets of 1500 bytes in ns, and its tolerance
    /// in ns.
    good: &'static str,
    spacing: f64,
    tolerance: f64,
    /// The contract of each of the eight others.
    others: &'static str,
}

/// Contracts of the long forms.
const CONTRACTS: Contracts = Contracts {
    good: "cell pcr=20mbit,cdvt=500us",
    spacing: 600_000.0,
    tolerance: 500_000.0,
    others: "up 20mbit",
};

/// Contracts that a busy or emulated machine can keep.
const SLOW: Contracts = Contracts {
    good: "cell pcr=1mbit,cdvt=10ms",
    spacing: 12_000_000.0,
    tolerance: 10_000_000.0,
    others: "up 1mbit",
};

/// The bounds of a good flow beside bad ones.
struct Bounds {
    /// The relative deviation of the good flow's rate from its contract's.
    rate: RangeInclusive<f64>,
    /// The most that p99 of the good flow's lateness may grow, as a factor.
    later: Option<f64>,
}

/// Lateness and processor time depend on the machine's other load: the long forms judge them. A
/// flow that is stopped for half the time has less than half its rate.
const LOOSE: Bounds = Bounds {
    rate: -0.5..=0.03,
    later: None,
};

/// Bounds of the long forms, for a quiet machine.
const TIGHT: Bounds = Bounds {
    rate: -0.01..=0.01,
    later: Some(2.0),
};

const LINK: u64 = 1_000_000_000;
/// Frame size of the flow whose bytes are flipped, small so that many packets are queued.
const SMALL: usize = 100;

/// The results of a run.
struct Measured {
    /// The good flow: packets per second, and the p99 of its lateness in us.
    rate: f64,
    late: f64,
    disconnected: u64,
    flips: u64,
    forbidden_frames: u64,
    /// Frames of all programs but the good one.
    others: u64,
    frames: u64,
}

/// The violations of each of the first six programs.
fn violations(program: usize) -> Vec<Violation> {
    let by_rule = [
        vec![20, 21],
        vec![22, 23],
        vec![30, 31],
        vec![32],
        vec![40, 41, 42, 43],
        vec![44],
    ];
    let all = Violation::ALL.into_iter();
    all.filter(|violation| by_rule[program].contains(&violation.rule()))
        .collect()
}

fn violate_rules(handle: &RogueHandle, violations: &[Violation], stop: &AtomicBool) -> Result<u64> {
    let mut count = 0;
    for violation in violations.iter().cycle() {
        if stop.load(Ordering::Relaxed) && count >= violations.len() as u64 {
            break;
        }
        handle.commit(*violation)?;
        count += 1;
    }
    Ok(count)
}

/// Flips bytes of queued packets, most of them in the headers. The rest of the data area must stay
/// as it is.
fn flip_bytes(handle: &RogueHandle, stop: &AtomicBool, flips: &AtomicU64) -> Result<u64> {
    let mut rogue = handle.attach()?;
    let mut random = Random::new(1);
    let chunks = u64::from(SHORT.chunks);
    let used = (SMALL as u64).next_multiple_of(64);
    rogue.fill_canary(used)?;
    while !stop.load(Ordering::Relaxed) {
        for chunk in 0..chunks {
            rogue.write_valid_record(chunk)?;
        }
        rogue.publish()?;
        let begin = Instant::now();
        let mut count = 0;
        // Until the driver has sent all packets: it owns the chunks until then.
        while begin.elapsed() < Duration::from_millis(2) || !rogue.reclaim()? {
            for _ in 0..64 {
                let word = random.draw();
                let at = if word & 7 == 0 {
                    word >> 8 & 63
                } else {
                    (word >> 8) % 42
                };
                rogue.overwrite_chunk(word >> 32 & (chunks - 1), at, &[(word >> 16) as u8])?;
                count += 1;
            }
            if begin.elapsed() > Duration::from_secs(5) {
                break;
            }
        }
        flips.fetch_add(count, Ordering::Relaxed);
        rogue.await_sent()?;
        rogue.check_canary(used)?;
        ensure!(
            handle.violated_rule().is_none(),
            "flipped bytes violate no rule"
        );
    }
    Ok(0)
}

/// Writes the doorbell all the time, overwrites the part of its memory that only the driver may
/// write, and tries to punch holes into its memory file and to truncate it. Fails if the file can
/// be truncated or loses a page. Returns how often the program attached.
fn damage_memory(handle: &RogueHandle, stop: &AtomicBool) -> Result<u64> {
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        let rogue = handle.attach()?;
        ensure!(rogue.file().set_len(0).is_err(), "the file can be cut");
        for number in 0..2_000_u32 {
            rogue.write_doorbell()?;
            if number % 100 == 0 {
                rogue.overwrite_driver_memory(number.wrapping_mul(0x0101_0101))?;
            }
        }
        ensure!(!punch_hole(rogue.file())?, "a hole can be punched");
        ensure!(
            rogue.memory().remove(0, 4096).is_err(),
            "a page can be removed"
        );
        for _ in 0..2_000 {
            rogue.write_doorbell()?;
        }
        count += 1;
    }
    Ok(count)
}

/// Tries to punch a hole over a whole file; returns whether that worked.
fn punch_hole(file: &std::fs::File) -> Result<bool> {
    let hole = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let length = file.metadata()?.len();
    let done = std::process::Command::new("fallocate")
        .args(["--punch-hole", "--keep-size", "--offset", "0", "--length"])
        .args([&length.to_string(), &hole])
        .output()?;
    Ok(done.status.success())
}

/// Runs the good flow beside eight others, which are good or rogues.
fn run(seconds: f64, rogues: bool, contracts: &Contracts) -> Result<Measured> {
    let world = World::pair(Pair::default())?;
    // Only the driver may send packets to the receiver.
    for host in [world.client(), world.server()] {
        host.ns.sysctl("net/ipv6/conf/all/disable_ipv6", "1")?;
    }
    let mut setup = DriverSetup::new(&world, wire(LINK, Nanos(0))?, Mode::Native)?;
    world.client().ns.ip("link set eth0 arp off")?;
    let good = setup.add_sender(GOOD, contracts.good)?;
    let file = world.folder().join("wire.pcap");
    let server = world.server();
    let tap = Tap::start_capturing(&server.ns, &server.port().device, &file, |flow| {
        flow.inbound
    })?;
    let (disconnected, flips) = match rogues {
        false => {
            run_beside_good(setup, good, seconds, contracts)?;
            (0, 0)
        }
        true => run_beside_rogues(setup, good, seconds, contracts)?,
    };
    let record = tap.stop(&server.ns)?;
    record.validate()?;
    let times = record.times(|flow| flow.source.1 == GOOD && flow.target.1 == SINK);
    ensure!(times.len() > 10, "{} packets of the good flow", times.len());
    let good = times.len() as u64;
    // The first tenth is left out, because the threads start in it.
    let times = &times[times.len() / 10..];
    let (first, last) = (times[0], times[times.len() - 1]);
    let (frames, forbidden) = check_capture(&file, GOOD..=GOOD + 8)?;
    Ok(Measured {
        rate: (times.len() - 1) as f64 * 1e9 / (last - first) as f64,
        late: stats::percentile(&lateness(times, contracts), 99.0),
        disconnected,
        flips,
        forbidden_frames: forbidden,
        others: frames - good,
        frames,
    })
}

/// Runs the good flow beside eight other good ones.
fn run_beside_good(
    mut setup: DriverSetup,
    good: SenderProgram,
    seconds: f64,
    contracts: &Contracts,
) -> Result<()> {
    let others: Result<Vec<SenderProgram>> = (1..=8)
        .map(|n| setup.add_sender(GOOD + n, contracts.others))
        .collect();
    let running_driver = setup.start(None)?;
    let running_senders: Result<Vec<_>> = others?
        .into_iter()
        .chain([good])
        .map(SenderProgram::start)
        .collect();
    thread::sleep(Duration::from_secs_f64(seconds));
    let ended_driver = running_driver.end()?;
    for one in running_senders? {
        one.end()?;
    }
    drop(ended_driver);
    Ok(())
}

/// Runs the good flow beside six programs that violate rules, one that flips bytes of its packets,
/// and one that damages its memory. Returns how often the driver disconnected a program, and the
/// number of flips.
fn run_beside_rogues(
    setup: DriverSetup,
    good: SenderProgram,
    seconds: f64,
    contracts: &Contracts,
) -> Result<(u64, u64)> {
    let service = Service::of(&contracts.others.parse::<Contract>()?)?;
    let flows: Result<Vec<_>> = (1..=8)
        .map(|n| {
            let length = if n == 7 { SMALL } else { 1500 };
            Ok((
                setup.open(GOOD + n, service, SHORT),
                setup.frame(GOOD + n, length)?,
            ))
        })
        .collect();
    let (supervisor, handles) = Supervisor::new(flows?);
    let (running_driver, orders) = setup.start_with_commands(None)?;
    let running_sender = good.start()?;
    let (stop, flips) = (AtomicBool::new(false), AtomicU64::new(0));
    let counts: Result<Vec<u64>> = thread::scope(|scope| {
        let (stop, flips) = (&stop, &flips);
        let supervising = scope.spawn(move || supervisor.run(orders));
        let threads: Vec<_> = handles
            .into_iter()
            .enumerate()
            .map(|(number, handle)| {
                scope.spawn(move || match number {
                    6 => flip_bytes(&handle, stop, flips),
                    7 => damage_memory(&handle, stop).map(|_| 0),
                    _ => violate_rules(&handle, &violations(number), stop),
                })
            })
            .collect();
        thread::sleep(Duration::from_secs_f64(seconds));
        stop.store(true, Ordering::Relaxed);
        let done = threads
            .into_iter()
            .map(|one| one.join().map_err(|_| anyhow!("a rogue panicked"))?);
        let done = done.collect();
        supervising
            .join()
            .map_err(|_| anyhow!("the supervisor panicked"))??;
        done
    });
    let mut ended_driver = running_driver.end()?;
    ended_driver.event_loop().datapath().invariants();
    running_sender.end()?;
    Ok((counts?.iter().sum(), flips.into_inner()))
}

/// Runs a program that sends nothing and repeats `call`, for `lasting`; returns the driver's time
/// accounting and its run time in seconds.
fn measure_calls(
    lasting: Duration,
    call: impl Fn(&Rogue) -> Result<()>,
) -> Result<(TimeAccounting, f64)> {
    let world = World::pair(Pair::default())?;
    let setup = DriverSetup::new(&world, wire(LINK, Nanos(0))?, Mode::Native)?;
    let service = Service::of(&SLOW.others.parse::<Contract>()?)?;
    let flow = (setup.open(GOOD, service, SHORT), setup.frame(GOOD, SMALL)?);
    let (supervisor, handles) = Supervisor::new(vec![flow]);
    let (running_driver, orders) = setup.start_with_commands(None)?;
    thread::scope(|scope| {
        let supervising = scope.spawn(move || supervisor.run(orders));
        for handle in handles {
            let (rogue, begin) = (handle.attach()?, Instant::now());
            while begin.elapsed() < lasting {
                call(&rogue)?;
            }
        }
        supervising
            .join()
            .map_err(|_| anyhow!("the supervisor panicked"))?
    })?;
    let run_time = (sys::now_ns() - running_driver.began) as f64 / 1e9;
    let mut ended_driver = running_driver.end()?;
    Ok((ended_driver.event_loop().time_accounting(), run_time))
}

#[test]
fn needless_doorbells_wake_the_driver_rarely() {
    world::begin().expect("a clean machine");
    let (spent, run_time) =
        measure_calls(Duration::from_secs(1), Rogue::write_doorbell).expect("it can be measured");
    println!("{spent:?} in {run_time:.1} s");
    // The driver reads the doorbell once in each period in which it listens to it.
    assert!(spent.unasked > 20, "{spent:?}");
    // Wake-ups for the supervisor's commands add to these.
    assert!((spent.sleeps as f64) < 400.0 * run_time, "{spent:?}");
}

#[test]
fn doorbells_after_clearing_the_sleep_flag_wake_the_driver_rarely() {
    world::begin().expect("a clean machine");
    let answered = AtomicU64::new(0);
    let spent = measure_calls(Duration::from_secs(1), |rogue| {
        if rogue.wake_driver()? {
            answered.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    });
    let (spent, run_time) = spent.expect("it can be measured");
    let answered = answered.into_inner();
    println!("it was found asleep {answered} times: {spent:?}");
    assert!(answered >= 16, "{answered}");
    assert!((spent.sleeps as f64) < 500.0 * run_time, "{spent:?}");
}

#[test]
fn false_notices_do_not_keep_the_driver_awake() {
    world::begin().expect("a clean machine");
    let (spent, run_time) = measure_calls(Duration::from_secs(1), Rogue::set_false_notices)
        .expect("it can be measured");
    println!("{spent:?} in {run_time:.1} s");
    assert!(spent.sleeps > 0, "{spent:?}");
    assert!((spent.iterations as f64) < 1_000.0 * run_time, "{spent:?}");
}

/// Lateness of each packet relative to the contract's allowed time (GCRA), in us. A packet that is
/// later than the tolerance shifts all that follow, which does not make them late; its cost shows
/// in the rate.
fn lateness(times: &[u64], contracts: &Contracts) -> Vec<f64> {
    let (mut from, mut due) = (Vec::with_capacity(times.len()), times[0] as f64);
    for at in times {
        let at = *at as f64;
        from.push(at - due);
        due = due.max(at - contracts.tolerance) + contracts.spacing;
    }
    // The first packets may be late themselves, and all packets need time to reach the receiver.
    let least = stats::least(&from);
    from.into_iter().map(|late| (late - least) / 1e3).collect()
}

/// The independent checker: the number of frames in a capture, and of those that none of the flows
/// may send.
fn check_capture(file: &Path, ports: RangeInclusive<u16>) -> Result<(u64, u64)> {
    let mut bytes = Vec::new();
    std::fs::File::open(file)?.read_to_end(&mut bytes)?;
    let word = |at: usize| {
        u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]) as usize
    };
    let (mut at, mut frames, mut wrong) = (24, 0, 0);
    let (mut stations, mut example) = (None, None);
    while at + 16 <= bytes.len() {
        let (kept, length) = (word(at + 8), word(at + 12));
        let frame = &bytes[at + 16..at + 16 + kept];
        frames += 1;
        // The first frame sets the two MAC addresses; all others must have the same ones.
        let these = frame.get(..12).context("a frame without addresses")?;
        let same = *stations.get_or_insert(these) == these;
        if !same || !is_allowed(frame, length, &ports) {
            wrong += 1;
            example.get_or_insert(frame);
        }
        at += 16 + kept;
    }
    if let Some(frame) = example {
        println!("forbidden: {frame:02x?}");
    }
    Ok((frames, wrong))
}

fn is_allowed(frame: &[u8], length: usize, ports: &RangeInclusive<u16>) -> bool {
    let half = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    if frame.len() < 42 || frame[12..15] != [0x08, 0x00, 0x45] {
        return false;
    }
    let sum: u32 = (14..34).step_by(2).map(|at| u32::from(half(at))).sum();
    let lengths = usize::from(half(16)) == length - 14 && usize::from(half(38)) == length - 34;
    let whole = half(20) & 0x3fff == 0;
    let hosts = frame[26..34] == [10, 77, 0, 1, 10, 77, 0, 2];
    let checksum = (sum & 0xffff) + (sum >> 16);
    lengths
        && whole
        && hosts
        && frame[22] > 0
        && frame[23] == 17
        && checksum.is_multiple_of(0xffff)
        && ports.contains(&half(34))
        && half(36) == SINK
}

/// Measures the good flow beside good flows once, and beside rogues `rounds` times, for `seconds`
/// each; judges every round. Returns the number of flipped bytes.
fn check_isolation(
    (seconds, rounds): (f64, u32),
    contracts: &Contracts,
    bounds: &Bounds,
) -> Result<u64> {
    let alone = run(seconds, false, contracts)?;
    println!(
        "beside eight good flows: {:.1} packets/s, p99 of lateness {:.1} us",
        alone.rate, alone.late
    );
    ensure!(
        alone.forbidden_frames == 0,
        "the checker finds forbidden frames of good flows"
    );
    let mut flips = 0;
    for _ in 0..rounds {
        let beside = run(seconds, true, contracts)?;
        check_round(&alone, &beside, contracts, bounds)?;
        flips += beside.flips;
    }
    Ok(flips)
}

fn check_round(
    alone: &Measured,
    beside: &Measured,
    contracts: &Contracts,
    bounds: &Bounds,
) -> Result<()> {
    println!(
        "beside eight rogues: {:.1} packets/s, {:.1} us; {} disconnected, {} bytes flipped, {} \
         frames left, {} of them forbidden",
        beside.rate,
        beside.late,
        beside.disconnected,
        beside.flips,
        beside.frames,
        beside.forbidden_frames
    );
    ensure!(
        beside.forbidden_frames == 0,
        "{} forbidden frames left",
        beside.forbidden_frames
    );
    ensure!(
        beside.disconnected >= Violation::ALL.len() as u64,
        "only {} were disconnected",
        beside.disconnected
    );
    ensure!(
        beside.others > 50,
        "only {} frames left beside the good flow's",
        beside.others
    );
    let off = beside.rate / (1e9 / contracts.spacing) - 1.0;
    ensure!(
        bounds.rate.contains(&off),
        "the good flow has {:+.2} % of its rate",
        off * 100.0
    );
    ensure!(
        bounds
            .later
            .is_none_or(|times| beside.late <= alone.late * times),
        "p99 of the good flow's lateness: {:.1} us beside good flows, {:.1} beside rogues",
        alone.late,
        beside.late
    );
    Ok(())
}

#[test]
fn rogues_are_disconnected_by_the_violated_rule_and_send_nothing_forbidden() {
    world::begin().expect("a clean machine");
    let flips = check_isolation((2.0, 1), &SLOW, &LOOSE).unwrap_or_else(|e| panic!("{e:#}"));
    assert!(flips > 1000, "{flips} bytes flipped");
}

#[test]
#[ignore = "a hundred million flips in ten minutes, on a quiet machine"]
fn a_hundred_million_flips_and_all_violations_disturb_no_flow() {
    world::begin().expect("a clean machine");
    let flips = check_isolation((40.0, 15), &CONTRACTS, &TIGHT).unwrap_or_else(|e| panic!("{e:#}"));
    assert!(flips >= 100_000_000, "{flips} bytes flipped");
}

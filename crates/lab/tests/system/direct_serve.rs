//! Tests the smallest complete path on real packets: programs with slices send UDP through the
//! driver, and the packets are measured at the far end of the cable. Another test checks that the
//! driver keeps processors awake while a flow with a cell contract sends, and only then.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::driver_client::{Driver, Program, flow, udp, wait_for};
use anyhow::{Context, Result, anyhow, ensure};
use netnice_core::units::Nanos;
use netnice_driver::link::Mode;
use netnice_lab::direct::{DriverSetup, SINK, SenderProgram, wire};
use netnice_lab::testbed::skip;
use netnice_lab::wire::Tap;
use netnice_lab::world::{self, Pair, World};

const SLICES: [u64; 6] = [4, 8, 12, 16, 20, 24];
/// Rate in bit/s, low enough for an emulated machine.
const LINK: u64 = 20_000_000;
/// Period of the slices in ms.
const PERIOD: u64 = 100;
/// The window in which bytes are counted.
const WINDOW_NS: u64 = 1_200_000_000;
const DEVICE: &str = "/dev/cpu_dma_latency";
/// Wake-up latency in microseconds that a driver requests, and the kernel's default.
const NO_SLEEP: i32 = 0;
const NO_REQUEST: i32 = 2_000_000_000;

/// Most runs of [`check_slices`]. The next one is made only if a program has too little so far.
const RUNS: u32 = 3;

/// Checks that each program gets its slices, in all runs together: at most 3 % more, and one slice
/// more for each window, which can begin or end within one. A busy or emulated machine takes the
/// processor from the driver, and the slices of that time are lost for all: so the programs get
/// half of their slices on average, and each gets at least half of that average. The experiment
/// `vert-fig5a` judges exact slices.
fn check_slices(mode: Mode) -> Result<()> {
    let mut sent = [0.0; SLICES.len()];
    for run in 1..=RUNS {
        let windows = f64::from(run);
        let periods = windows * WINDOW_NS as f64 / 1e6 / PERIOD as f64;
        let mut parts = Vec::new();
        for ((ms, sum), bytes) in SLICES.iter().zip(&mut sent).zip(send_in_slices(mode)?) {
            let slice = (LINK / 8 * ms) as f64 / 1e3;
            *sum += bytes;
            let text = format!(
                "{mode:?}: {ms} ms of {PERIOD}: {sum} bytes in {periods} periods, each of which \
                 has {slice}"
            );
            println!("{text}");
            ensure!(*sum <= slice * (periods * 1.03 + windows), "{text}");
            parts.push(*sum / (slice * periods));
        }
        let mean = parts.iter().sum::<f64>() / parts.len() as f64;
        let has_enough = |part: &f64| *part >= 0.5 * mean;
        if mean >= 0.5 && parts.iter().all(has_enough) {
            return Ok(());
        }
        ensure!(run < RUNS, "{mode:?}: parts of the slices: {parts:?}");
    }
    Ok(())
}

/// Runs a program for each slice, and returns the bytes of each in [`WINDOW_NS`].
fn send_in_slices(mode: Mode) -> Result<Vec<f64>> {
    let world = World::pair(Pair::default())?;
    let mut setup = DriverSetup::new(&world, wire(LINK, Nanos(0))?, mode)?;
    let senders: Result<Vec<SenderProgram>> = SLICES
        .iter()
        .map(|ms| setup.add_sender(5000 + *ms as u16, &format!("slice {ms}ms/{PERIOD}ms")))
        .collect();
    let tap = Tap::start(&world.server().ns, &world.server().port().device)?;
    let running_driver = setup.start(None)?;
    let running_senders: Result<Vec<_>> = senders?.into_iter().map(SenderProgram::start).collect();
    // The window begins 0.2 s after the first packet.
    thread::sleep(Duration::from_millis(1_700));
    let mut ended_driver = running_driver.end()?;
    for one in running_senders? {
        one.end()?;
    }
    let record = tap.stop(&world.server().ns)?;
    record.validate()?;
    let is_its = |port: u16| move |flow: &netnice_lab::wire::WireFlow| flow.source.1 == port;
    let first = record.first_of(is_its(5004)).context("nothing arrived")?;
    let from = first + 200_000_000;
    let bytes_of = |ms| record.bytes(is_its(5000 + ms as u16), from, from + WINDOW_NS) as f64;
    println!(
        "{mode:?}: {:?}",
        ended_driver.event_loop().time_accounting()
    );
    Ok(SLICES.map(bytes_of).to_vec())
}

/// A driver with a file mounted over `/dev/cpu_dma_latency`, in a mount namespace of its own. The
/// file records each number that this driver writes, independent of other requests to the kernel.
struct Asking {
    driver: Driver,
    file: PathBuf,
}

impl Asking {
    fn start(world: &World) -> Result<Asking> {
        let file = world.folder().join("latency");
        std::fs::write(&file, [])?;
        // The mount must not propagate to other namespaces. In a chroot the root is no mount point,
        // so the first command may fail.
        let script = format!(
            "mount --make-rslave / 2>/dev/null; mount --bind \"$0\" {DEVICE} && exec \"$@\""
        );
        let words = "unshare --mount --propagation unchanged sh -c".split(' ');
        let words = words.map(str::to_owned).chain([script]);
        let words: Vec<String> = words.chain([file.display().to_string()]).collect();
        let driver = Driver::start_through(world, &words, "--stay")?;
        Ok(Asking { driver, file })
    }

    /// The requested latencies so far, in microseconds.
    fn asked(&self) -> Result<Vec<i32>> {
        let bytes = std::fs::read(&self.file)?;
        let (numbers, rest) = bytes.as_chunks::<4>();
        ensure!(rest.is_empty(), "{bytes:?}");
        Ok(numbers.iter().map(|one| i32::from_ne_bytes(*one)).collect())
    }
}

/// Runs a program that floods its flow under a contract, until `enough` accepts the driver's
/// requests and the number of packets that arrived. Returns all requests of the driver once the
/// program is quiet and `rests` accepts them.
fn asked(
    contract: &str,
    enough: impl Fn(&[i32], u64) -> bool,
    rests: impl Fn(&[i32]) -> bool,
) -> Result<Vec<i32>> {
    let world = World::pair(Pair::default())?;
    let asking = Asking::start(&world)?;
    let mut daemon = asking.driver.call()?;
    let mut program = Program::attach(&mut daemon, 1, 4 << 20)?;
    let mut flow = flow(&world, &program, 5000, Some(SINK))?;
    flow.contract = contract.to_owned();
    program.open(&mut daemon, flow)?;
    let frame = udp(&world, 5000, SINK, &[7; 1400])?;
    let arrived = || anyhow::Ok(world.server().ns.counters("eth0")?.rx_packets);
    let (before, stop) = (arrived()?, AtomicBool::new(false));
    thread::scope(|scope| {
        let sender = scope.spawn(|| program.flood(&frame, &stop));
        let came = wait_for("what its driver asks for", || {
            Ok(enough(&asking.asked()?, arrived()? - before))
        });
        stop.store(true, Ordering::Relaxed);
        let done = sender.join().map_err(|_| anyhow!("it panicked"))?;
        came.and(done)
    })?;
    wait_for("what it asks for at rest", || Ok(rests(&asking.asked()?)))?;
    asking.asked()
}

#[test]
fn processors_stay_awake_while_a_cell_flow_sends() {
    world::begin().expect("a clean machine");
    if !Path::new(DEVICE).exists() {
        return skip(format!("{DEVICE}: this kernel keeps no processors awake"));
    }
    // Awake while packets are sent, and the default before and after.
    let cell = asked(
        "cell pcr=10mbit,cdvt=500us",
        |asked, arrived| arrived >= 20 && asked.contains(&NO_SLEEP),
        |asked| asked.last() == Some(&NO_REQUEST),
    );
    let cell = cell.expect("a cell flow");
    assert_eq!(cell[..2], [NO_REQUEST, NO_SLEEP], "{cell:?}");
    // A slice has no departure times.
    let slice = asked("slice 10ms/100ms", |_, arrived| arrived >= 200, |_| true);
    assert_eq!(slice.expect("a slice"), [NO_REQUEST]);
}

#[test]
fn six_programs_each_get_their_slice() {
    world::begin().expect("a clean machine");
    check_slices(Mode::Native).unwrap_or_else(|e| panic!("native: {e:#}"));
}

#[test]
fn six_programs_each_get_their_slice_without_af_xdp() {
    world::begin().expect("a clean machine");
    check_slices(Mode::Fallback).unwrap_or_else(|e| panic!("fallback: {e:#}"));
}

//! Tests TCP on the direct path over a wire that loses, delays, reorders, duplicates and damages
//! packets: every byte must arrive right, the goodput must be that of the kernel's TCP, and beside
//! a connection of the kernel each must have its part. The long forms are ignored.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use netnice_lab::experiment::bench::at;
use netnice_lab::process::EVENT_TIMEOUT;
use netnice_lab::stats::median;
use netnice_lab::testbed::{TestBed, await_some};
use netnice_lab::traffic::direct_tcp::first_wrong;
use netnice_lab::traffic::{self, DirectTcp, RunOptions, Running, Tcp};
use netnice_lab::world::bad_wire::Impairments;
use netnice_lab::world::{self, Family, Host, World};

/// Two hosts on a bad wire, with a managed link at the client.
fn bed(impairments: [Impairments; 2]) -> Result<TestBed> {
    world::begin()?;
    let bed = {
        // One at a time: many that start together would wait for each other.
        static STARTING: Mutex<()> = Mutex::new(());
        let _one = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        let bed = TestBed::of(World::bad_wire(impairments)?)?;
        let device = &bed.world.client().port().device;
        bed.run_ok(&format!("link {device} --rate 1gbit"));
        bed
    };
    // The wire may lose the question for the next hop, which the kernel asks again.
    let closed = at(bed.world.server(), Family::V4, 7199);
    await_some("an answer of the server", || {
        let ask = || Ok(TcpStream::connect_timeout(&closed, Duration::from_secs(5))?);
        let error = bed.world.client().ns.enter(ask).err();
        let refused = error.is_some_and(|error| format!("{error:#}").contains("refused"));
        Ok(refused.then_some(()))
    })?;
    Ok(bed)
}

/// What became of a transfer whose bytes were right.
#[derive(Debug)]
enum Outcome {
    /// Every byte arrived, after this time.
    Arrived(Duration),
    /// The program saw an error.
    Failed(String),
}

/// A program with its own TCP sends the pattern to a socket of the kernel. Fails if a byte is
/// wrong, or if not every byte arrives and the program sees no error.
fn transfer(
    (client, server): (&Host, &Host),
    runtime: &Path,
    port: u16,
    bytes: u64,
) -> Result<Outcome> {
    let to = at(server, Family::V4, port);
    let listener = server.ns.enter(|| Ok(TcpListener::bind(to)?))?;
    let program = DirectTcp::connect(to, runtime).source(bytes);
    // The user timeout decides, not the program.
    let program = program.with(&[
        "--connect-s",
        "50",
        "--finish-s",
        "36000",
        "--buffers",
        "256",
    ]);
    let options = RunOptions {
        sample: Duration::from_secs(60),
        ..RunOptions::at_once()
    };
    let began = Instant::now();
    let mut ours = match traffic::start(client, &program, options) {
        Ok(ours) => ours,
        // The kernel may have taken the connection; the handshake was not complete here.
        Err(error) if format!("{error:#}").contains("cannot connect") => {
            return Ok(Outcome::Failed(format!("{error:#}")));
        }
        Err(error) => return Err(error),
    };
    match receive(&listener, &mut ours, bytes)? {
        None => {
            let took = began.elapsed();
            let report = ours.stop()?;
            ensure!(report.refused.is_empty(), "{:?}", report.refused);
            Ok(Outcome::Arrived(took))
        }
        Some(position) => {
            let report = ours.stop()?;
            let why = format!("{:?} after {position} bytes", report.refused);
            ensure!(
                !report.refused.is_empty(),
                "the program saw no error: {why}"
            );
            Ok(Outcome::Failed(why))
        }
    }
}

/// Receives `bytes` of the pattern from the next connection. Returns their number if the connection
/// ends before. Fails if a byte is wrong, or if nothing happens for [`PATIENCE`].
fn receive(listener: &TcpListener, sender: &mut Running, bytes: u64) -> Result<Option<u64>> {
    listener.set_nonblocking(true)?;
    let (mut last, mut position) = (Instant::now(), 0);
    let mut socket: Option<TcpStream> = None;
    let mut block = vec![0; 64 << 10];
    while position < bytes {
        let read = match &mut socket {
            Some(socket) => socket.read(&mut block),
            None => match listener.accept() {
                Ok((accepted, _)) => {
                    accepted.set_nonblocking(false)?;
                    accepted.set_read_timeout(Some(LOOK))?;
                    socket = Some(accepted);
                    continue;
                }
                Err(error) => {
                    std::thread::sleep(LOOK.min(Duration::from_millis(100)));
                    Err(error)
                }
            },
        };
        match read {
            Ok(0) => return Ok(Some(position)),
            Ok(read) => {
                let wrong = first_wrong(&block[..read], position);
                ensure!(wrong.is_none(), "a wrong byte at {wrong:?}");
                position += read as u64;
                last = Instant::now();
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if sender.await_closed(Duration::ZERO).is_ok() {
                    return Ok(Some(position));
                }
                let silent = last.elapsed();
                ensure!(
                    silent < PATIENCE,
                    "{position} bytes, then none for {silent:?}"
                );
            }
            Err(_) => return Ok(Some(position)),
        }
    }
    Ok(None)
}

/// The impairments of a world with this number, of both directions; none is worse than `worst`.
fn drawn(number: u64, worst: &Impairments) -> [Impairments; 2] {
    // Each value takes all its steps, and not in step with the others.
    let part = |factor: u64, steps: u64| (number * factor % steps) as f64 / (steps - 1) as f64;
    let one = |seed| Impairments {
        delay: worst.delay.mul_f64(part(3, 5)),
        loss: worst.loss * part(7, 10),
        damage: worst.damage * part(1, 2),
        duplicate: worst.duplicate * part(2, 3),
        reorder: worst.reorder * part(3, 4),
        reorder_by: worst.reorder_by,
        seed,
        ..Impairments::default()
    };
    [one(2 * number + 1), one(2 * number + 2)]
}

/// In a bad world `count` transfers of `bytes` at the same time.
fn transfers_in(impairments: [Impairments; 2], count: u16, bytes: u64) -> Result<Vec<Outcome>> {
    let bed = bed(impairments)?;
    let hosts = (bed.world.client(), bed.world.server());
    let runtime = bed.netnice.runtime();
    std::thread::scope(|scope| {
        let ports = 7200..7200 + count;
        let one = |port: u16| scope.spawn(move || transfer(hosts, runtime, port, bytes));
        let all: Vec<_> = ports.map(one).collect();
        all.into_iter()
            .map(|one| one.join().expect("no panic"))
            .collect()
    })
}

/// Transfers in many bad worlds.
#[derive(Clone, Copy)]
struct Trial {
    worlds: u64,
    /// Worlds that exist at the same time.
    at_once: usize,
    /// Transfers in each world.
    count: u16,
    bytes: u64,
}

impl Trial {
    /// Runs the transfers: each arrives, or fails with an error. Returns the number of those that
    /// arrived.
    fn run(self, worst: &Impairments) -> Result<u64> {
        let (next, arrived) = (AtomicU64::new(0), AtomicU64::new(0));
        let faults = Mutex::new(Vec::new());
        let one = |number: u64| {
            let impairments = drawn(number, worst);
            let what = format!("{:?}", impairments[0]);
            match transfers_in(impairments, self.count, self.bytes) {
                Ok(outcomes) => {
                    arrived.fetch_add(summary(number, &outcomes, &what), Relaxed);
                }
                Err(error) => {
                    println!("world {number}: {error:#}: {what}");
                    let mut faults = faults.lock().unwrap_or_else(PoisonError::into_inner);
                    faults.push(format!("world {number}: {error:#}: {what}"));
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..self.at_once {
                scope.spawn(|| {
                    loop {
                        match next.fetch_add(1, Relaxed) {
                            number if number < self.worlds => one(number),
                            _ => break,
                        }
                    }
                });
            }
        });
        let faults = faults.into_inner().unwrap_or_else(PoisonError::into_inner);
        ensure!(faults.is_empty(), "{}", faults.join("\n"));
        Ok(arrived.into_inner())
    }
}

/// Prints what became of a world's transfers. Returns the number of those that arrived.
fn summary(number: u64, outcomes: &[Outcome], what: &str) -> u64 {
    let mut times: Vec<Duration> = Vec::new();
    for outcome in outcomes {
        match outcome {
            Outcome::Arrived(took) => times.push(*took),
            Outcome::Failed(why) => println!("world {number}: {why}"),
        }
    }
    let all = outcomes.len();
    let slowest = times.iter().max();
    println!(
        "world {number}: {} of {all} arrived, the slowest in {slowest:.1?}: {what}",
        times.len()
    );
    times.len() as u64
}

#[test]
fn transfers_over_bad_wires_arrive() -> Result<()> {
    let worst = Impairments {
        delay: Duration::from_millis(10),
        loss: 0.05,
        damage: 0.01,
        duplicate: 0.02,
        reorder: 0.03,
        reorder_by: Duration::from_millis(5),
        ..Impairments::default()
    };
    let trial = Trial {
        worlds: 4,
        at_once: 1,
        count: 3,
        bytes: 200_000,
    };
    let arrived = trial.run(&worst)?;
    ensure!(arrived == 12, "{arrived} arrived");
    Ok(())
}

/// At the worst, of three packets or acknowledgements one is lost.
fn worst() -> Impairments {
    Impairments {
        delay: Duration::from_millis(50),
        loss: 0.3,
        damage: 0.02,
        duplicate: 0.05,
        reorder: 0.1,
        reorder_by: Duration::from_millis(20),
        ..Impairments::default()
    }
}

#[test]
#[ignore = "takes ten minutes"]
fn a_hundred_transfers_over_very_bad_wires_arrive_or_fail() -> Result<()> {
    let trial = Trial {
        worlds: 20,
        at_once: 20,
        count: 5,
        bytes: 500_000,
    };
    println!("{} of 100 arrived", trial.run(&worst())?);
    Ok(())
}

#[test]
#[ignore = "takes hours"]
fn a_thousand_transfers_of_ten_mebibytes_arrive_or_fail() -> Result<()> {
    let trial = Trial {
        worlds: 100,
        at_once: 100,
        count: 10,
        bytes: 10 << 20,
    };
    println!("{} of 1,000 arrived", trial.run(&worst())?);
    Ok(())
}

/// Which TCP sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sender {
    Ours,
    Kernel,
}

/// A connection whose sender has always something to send.
struct Backlogged<'a> {
    _sender: Running,
    received: &'a AtomicU64,
}

impl Backlogged<'_> {
    /// Goodput in Mbit/s over this time.
    fn rate(&self, during: Duration) -> f64 {
        let (began, before) = (Instant::now(), self.received.load(Relaxed));
        std::thread::sleep(during);
        let bytes = self.received.load(Relaxed) - before;
        bytes as f64 * 8e-6 / began.elapsed().as_secs_f64()
    }
}

/// Starts a sender at the client, and a socket of the kernel at the server that counts into
/// `received`.
fn backlogged<'a>(
    bed: &TestBed,
    sender: Sender,
    port: u16,
    received: &'a AtomicU64,
    scope: &'a std::thread::Scope<'a, '_>,
) -> Result<Backlogged<'a>> {
    let to: SocketAddr = at(bed.world.server(), Family::V4, port);
    let listener = bed.world.server().ns.enter(|| Ok(TcpListener::bind(to)?))?;
    let client = bed.world.client();
    let running = match sender {
        Sender::Ours => {
            let program = DirectTcp::connect(to, bed.netnice.runtime()).endless_source();
            traffic::start_now(client, &program)?
        }
        Sender::Kernel => traffic::start_now(client, &Tcp::connect(to, 1).source())?,
    };
    let (mut socket, _) = listener.accept()?;
    socket.set_read_timeout(Some(EVENT_TIMEOUT))?;
    scope.spawn(move || {
        let mut block = vec![0; 256 << 10];
        while let Ok(read @ 1..) = socket.read(&mut block) {
            received.fetch_add(read as u64, Relaxed);
        }
    });
    Ok(Backlogged {
        _sender: running,
        received,
    })
}

/// The kernel's congestion control must be cubic, which the numbers are compared with.
fn check_cubic(bed: &TestBed) -> Result<()> {
    let key = "/proc/sys/net/ipv4/tcp_congestion_control";
    let name = bed.world.client().ns.run("cat", key)?;
    ensure!(name.trim() == "cubic", "{name}");
    Ok(())
}

#[test]
#[ignore = "judges rates; takes ten minutes"]
fn goodput_with_losses_beside_the_kernels() -> Result<()> {
    let mut bad = Vec::new();
    for loss in [0.001, 0.01, 0.03] {
        let way = |loss, seed| Impairments {
            delay: Duration::from_millis(10),
            loss,
            seed,
            ..Impairments::default()
        };
        let bed = bed([way(loss, 5), way(0.0, 6)])?;
        check_cubic(&bed)?;
        let mut rates = [Vec::new(), Vec::new()];
        for round in 0..4 {
            for (rates, sender) in rates.iter_mut().zip([Sender::Ours, Sender::Kernel]) {
                let received = AtomicU64::new(0);
                let port = 7300 + round * 2 + u16::from(sender == Sender::Kernel);
                std::thread::scope(|scope| -> Result<()> {
                    let flow = backlogged(&bed, sender, port, &received, scope)?;
                    std::thread::sleep(Duration::from_secs(2));
                    rates.push(flow.rate(Duration::from_secs(20)));
                    Ok(())
                })?;
            }
        }
        let [ours, kernel] = rates.map(|rates| (median(&rates), rates));
        let ratio = ours.0 / kernel.0;
        println!("loss {loss}, 20 ms: {ratio:.3} of the kernel's; {ours:.2?}, {kernel:.2?} Mbit/s");
        if ratio < 0.9 {
            bad.push((loss, ratio));
        }
    }
    ensure!(bad.is_empty(), "{bad:?}");
    Ok(())
}

#[test]
#[ignore = "judges rates; takes minutes"]
fn a_bottleneck_is_shared_with_the_kernels_cubic() -> Result<()> {
    let way = |seed| Impairments {
        rate: Some(50_000_000),
        // The product of rate and delay.
        queue: 125_000,
        delay: Duration::from_millis(10),
        seed,
        ..Impairments::default()
    };
    let bed = bed([way(5), way(6)])?;
    check_cubic(&bed)?;
    let mut shares = Vec::new();
    for round in 0..3 {
        let counts = [AtomicU64::new(0), AtomicU64::new(0)];
        std::thread::scope(|scope| -> Result<()> {
            let port = 7400 + round * 2;
            let mut senders = [Sender::Ours, Sender::Kernel];
            // Either begins.
            senders.rotate_left(usize::from(round % 2));
            let start =
                |at: usize| backlogged(&bed, senders[at], port + at as u16, &counts[at], scope);
            let _first = start(0)?;
            std::thread::sleep(Duration::from_secs(1));
            let _second = start(1)?;
            std::thread::sleep(Duration::from_secs(5));
            let before = [0, 1].map(|at| counts[at].load(Relaxed));
            std::thread::sleep(Duration::from_secs(40));
            let bytes = [0, 1].map(|at| (counts[at].load(Relaxed) - before[at]) as f64);
            let ours = bytes[usize::from(senders[0] != Sender::Ours)];
            let share = ours / (bytes[0] + bytes[1]);
            println!(
                "{:?} first: this TCP has {share:.3} of {:.2} Mbit/s",
                senders[0],
                (bytes[0] + bytes[1]) * 8e-6 / 40.0
            );
            shares.push(share);
            Ok(())
        })?;
    }
    let share = median(&shares);
    ensure!((0.35..=0.65).contains(&share), "{shares:?}");
    Ok(())
}

/// A sender that gets no acknowledgement ends after 5 minutes. The receiver may have got the last
/// bytes nearly so long before the sender got the last acknowledgement.
const PATIENCE: Duration = Duration::from_secs(630);
/// Time between two looks at the sender.
const LOOK: Duration = Duration::from_secs(1);

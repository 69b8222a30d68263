//! Tests TCP on the direct path over a wire that loses, delays, reorders, duplicates and damages
//! packets: every byte must arrive right, the goodput must be that of the kernel's TCP, and beside
//! a connection of the kernel each must have its part. The long forms are ignored.

use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use netnice_lab::experiment::bench::at;
use netnice_lab::process::EVENT_TIMEOUT;
use netnice_lab::stats::median;
use netnice_lab::testbed::{TestBed, await_some};
use netnice_lab::traffic::direct_tcp::first_wrong;
use netnice_lab::traffic::{self, DirectTcp, Running, Tcp};
use netnice_lab::world::bad_wire::Impairments;
use netnice_lab::world::{self, Family, Host, World};

/// Two hosts on a bad wire, with a managed link at the client.
fn bed(impairments: [Impairments; 2]) -> Result<TestBed> {
    world::begin()?;
    let bed = TestBed::of(World::bad_wire(impairments)?)?;
    let device = &bed.world.client().port().device;
    bed.run_ok(&format!("link {device} --rate 1gbit"));
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

/// A program with its own TCP sends the pattern to a socket of the kernel. Returns the time that it
/// took; `None` if the connection failed and the program said so.
fn transfer(
    (client, server): (&Host, &Host),
    runtime: &Path,
    port: u16,
    bytes: u64,
    patience: Duration,
) -> Result<Option<Duration>> {
    let to = at(server, Family::V4, port);
    let listener = server.ns.enter(|| Ok(TcpListener::bind(to)?))?;
    let program = DirectTcp::connect(to, runtime).source(bytes);
    let began = Instant::now();
    let ours = traffic::start_now(client, &program)?;
    let (mut socket, _) = listener.accept()?;
    socket.set_read_timeout(Some(patience))?;
    let mut position = 0;
    let mut block = vec![0; 64 << 10];
    while position < bytes {
        let read = match socket.read(&mut block) {
            Ok(read) if read > 0 => read,
            ended => {
                let report = ours.stop()?;
                ensure!(
                    !report.refused.is_empty(),
                    "{ended:?} after {position} bytes, and the program saw no error"
                );
                println!("port {port}: {position} bytes, then {:?}", report.refused);
                return Ok(None);
            }
        };
        let wrong = first_wrong(&block[..read], position);
        ensure!(wrong.is_none(), "a wrong byte at {wrong:?}");
        position += read as u64;
    }
    ensure!(position == bytes, "{position} of {bytes} bytes");
    let took = began.elapsed();
    let report = ours.stop()?;
    ensure!(report.refused.is_empty(), "{:?}", report.refused);
    Ok(Some(took))
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

/// In each of `worlds` bad worlds `count` transfers of `bytes` at the same time: each arrives, or
/// fails with an error. Returns the number of those that arrived.
fn transfers(worlds: u64, count: u16, bytes: u64, worst: &Impairments) -> Result<u64> {
    // The user timeout of the program is 5 minutes.
    let patience = Duration::from_secs(330);
    let mut arrived = 0;
    for number in 0..worlds {
        let impairments = drawn(number, worst);
        let what = format!("{:?}", impairments[0]);
        let bed = bed(impairments).with_context(|| what.clone())?;
        let hosts = (bed.world.client(), bed.world.server());
        let runtime = bed.netnice.runtime();
        let one = |port: u16| transfer(hosts, runtime, port, bytes, patience);
        let results: Result<Vec<_>> = std::thread::scope(|scope| {
            let ports = 7200..7200 + count;
            let all: Vec<_> = ports.map(|port| scope.spawn(move || one(port))).collect();
            all.into_iter()
                .map(|one| one.join().expect("no panic"))
                .collect()
        });
        let results = results.with_context(|| what.clone())?;
        let times: Vec<Duration> = results.into_iter().flatten().collect();
        println!(
            "{} of {count} arrived, the slowest in {:?}: {what}",
            times.len(),
            times.iter().max()
        );
        arrived += times.len() as u64;
    }
    Ok(arrived)
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
    let arrived = transfers(4, 3, 200_000, &worst)?;
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
    let arrived = transfers(20, 5, 500_000, &worst())?;
    println!("{arrived} of 100 arrived");
    Ok(())
}

#[test]
#[ignore = "takes many hours"]
fn a_thousand_transfers_of_ten_mebibytes_arrive_or_fail() -> Result<()> {
    let arrived = transfers(100, 10, 10 << 20, &worst())?;
    println!("{arrived} of 1,000 arrived");
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

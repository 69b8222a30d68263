//! Two traffic programs: an echo server for TCP and UDP ([`echo`]), and a probe that sends small
//! messages to an echo server at fixed intervals and measures the round trips ([`probe`]). At its
//! end each prints a [`super::Report`]; the probe's has the round trips, the server's no counts.
//! The server fails if it cannot listen, the probe if it cannot open or connect its socket.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::run::{RunArgs, Tally, run_until_end};
use crate::sys;

/// The arguments of `netnice-lab traffic echo`.
#[derive(Debug, Clone, clap::Args)]
pub struct EchoArgs {
    /// Where to listen, TCP and UDP.
    #[arg(long)]
    listen: SocketAddr,
    #[command(flatten)]
    run: RunArgs,
}

/// The arguments of `netnice-lab traffic probe`.
#[derive(Debug, Clone, clap::Args)]
pub struct ProbeArgs {
    /// The echo server.
    #[arg(long)]
    connect: SocketAddr,
    /// The transport protocol.
    #[arg(long, value_enum)]
    protocol: Protocol,
    /// Microseconds between two probes.
    #[arg(long, default_value_t = 100_000)]
    every_us: u64,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Protocol {
    Tcp,
    Udp,
}

/// Time of a request: by the monotonic clock, and by the wall clock.
type RequestTime = (Instant, u64);

/// Runs the echo server until `stop`, and ends the process. Returns only if it cannot listen at the
/// address, over TCP and UDP.
pub fn echo(args: &EchoArgs) -> Result<()> {
    let at = args.listen;
    let listener = TcpListener::bind(at).with_context(|| format!("cannot listen at {at}"))?;
    let datagrams = UdpSocket::bind(at).with_context(|| format!("cannot bind to {at}"))?;
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            std::thread::spawn(move || echo_stream(connection));
        }
    });
    std::thread::spawn(move || {
        let mut buffer = [0u8; 2048];
        loop {
            if let Ok((n, from)) = datagrams.recv_from(&mut buffer) {
                let _ = datagrams.send_to(&buffer[..n], from);
            }
        }
    });
    run_until_end(&args.run, &Arc::new(Tally::default()), || 0)
}

fn echo_stream(mut connection: TcpStream) {
    let _ = connection.set_nodelay(true);
    let mut buffer = [0u8; 2048];
    while let Ok(n) = connection.read(&mut buffer) {
        if n == 0 || connection.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
}

/// Runs the probe until `stop`, and ends the process; a request does not wait for the reply to the
/// one before. Returns only if it cannot open or connect its socket.
pub fn probe(args: &ProbeArgs) -> Result<()> {
    let tally = Arc::new(Tally::default());
    let every = Duration::from_micros(args.every_us);
    match args.protocol {
        Protocol::Tcp => probe_tcp(args.connect, every, &tally)?,
        Protocol::Udp => probe_udp(args.connect, every, &tally)?,
    }
    run_until_end(&args.run, &tally, || 0)
}

/// The n-th byte received is the reply to the n-th byte sent.
fn probe_tcp(to: SocketAddr, every: Duration, tally: &Arc<Tally>) -> Result<()> {
    let mut out = TcpStream::connect(to).with_context(|| format!("cannot connect to {to}"))?;
    out.set_nodelay(true)?;
    let mut back = out.try_clone()?;
    let asked: Arc<Mutex<VecDeque<RequestTime>>> = Arc::default();
    let (queue, sender) = (asked.clone(), tally.clone());
    std::thread::spawn(move || {
        at_intervals(every, &sender, |_| {
            let mut queue = queue.lock().expect("no thread panics with it");
            queue.push_back((Instant::now(), sys::now_ns()));
            drop(queue);
            out.write_all(&[0]).is_ok()
        });
    });
    let receiver = tally.clone();
    std::thread::spawn(move || {
        let mut buffer = [0u8; 256];
        while let Ok(n) = back.read(&mut buffer) {
            let now = Instant::now();
            if n == 0 {
                break;
            }
            for _ in 0..n {
                record_round_trip(
                    asked.lock().expect("no thread panics with it").pop_front(),
                    now,
                    &receiver,
                );
            }
        }
    });
    Ok(())
}

fn probe_udp(to: SocketAddr, every: Duration, tally: &Arc<Tally>) -> Result<()> {
    let any: SocketAddr = if to.is_ipv6() {
        "[::]:0".parse()?
    } else {
        "0.0.0.0:0".parse()?
    };
    let socket = Arc::new(UdpSocket::bind(any)?);
    socket.connect(to)?;
    let asked: Arc<Mutex<Vec<Option<RequestTime>>>> = Arc::default();
    let (queue, out, sender) = (asked.clone(), socket.clone(), tally.clone());
    std::thread::spawn(move || {
        at_intervals(every, &sender, |i| {
            let mut queue = queue.lock().expect("no thread panics with it");
            queue.push(Some((Instant::now(), sys::now_ns())));
            drop(queue);
            sender.lost.fetch_add(1, Relaxed);
            let _ = out.send(&i.to_be_bytes());
            true
        });
    });
    let receiver = tally.clone();
    std::thread::spawn(move || {
        let mut buffer = [0u8; 8];
        loop {
            let Ok(8) = socket.recv(&mut buffer) else {
                continue;
            };
            let now = Instant::now();
            let at = u64::from_be_bytes(buffer) as usize;
            let mut asked = asked.lock().expect("no thread panics with it");
            if let Some(question) = asked.get_mut(at).and_then(Option::take) {
                receiver.lost.fetch_sub(1, Relaxed);
                record_round_trip(Some(question), now, &receiver);
            }
        }
    });
    Ok(())
}

/// Calls `ask` at fixed intervals until it returns `false`.
fn at_intervals(every: Duration, tally: &Tally, mut ask: impl FnMut(u64) -> bool) {
    tally.await_go();
    let mut due = Instant::now();
    for i in 0.. {
        tally.sends.fetch_add(1, Relaxed);
        if !ask(i) {
            return;
        }
        due += every;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}

fn record_round_trip(question: Option<RequestTime>, now: Instant, tally: &Tally) {
    if let Some((asked, at_ns)) = question {
        let took = now.saturating_duration_since(asked).as_nanos() as u64;
        let mut all = tally.round_trips.lock().expect("no thread panics with it");
        all.push((at_ns, took));
    }
}

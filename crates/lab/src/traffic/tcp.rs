//! The TCP program of the traffic generator. It connects a number of times or listens, and on every
//! connection it writes, reads, or both: as fast as possible or at a given rate. At its end it
//! prints a [`super::Report`]. It fails for invalid arguments, if the limit of open files cannot be
//! raised, or if a socket cannot be opened, bound or connected.

use std::io::Write;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use socket2::{Domain, Protocol, Socket, Type};

use super::run::{RunArgs, Tally, frame_overhead, run_until_end};
use crate::sys;

/// The arguments of `netnice-lab traffic tcp`.
#[derive(Debug, Clone, clap::Args)]
pub struct TcpArgs {
    /// Connect to this address.
    #[arg(long, required_unless_present = "listen", conflicts_with = "listen")]
    connect: Option<SocketAddr>,
    /// Listen at this address and serve every connection.
    #[arg(long)]
    listen: Option<SocketAddr>,
    /// Write on every connection.
    #[arg(long)]
    source: bool,
    /// Read on every connection.
    #[arg(long)]
    sink: bool,
    /// Connections to make.
    #[arg(long, default_value_t = 1)]
    flows: u32,
    /// Congestion control.
    #[arg(long, default_value = "cubic")]
    congestion: String,
    /// Payload bits per second to write, over all flows; without it as fast as it goes.
    #[arg(long)]
    rate: Option<u64>,
    /// Use MPTCP sockets.
    #[arg(long)]
    mptcp: bool,
    #[command(flatten)]
    run: RunArgs,
}

/// Runs the program, and ends the process. Returns only for invalid arguments, if the limit of open
/// files cannot be raised, or if a socket cannot be opened, bound or connected.
pub fn main(args: &TcpArgs) -> Result<()> {
    if !args.source && !args.sink {
        bail!("a tcp program needs --source, --sink or both");
    }
    sys::raise_file_limit()?;
    let tally = Arc::new(Tally::default());
    let open: Arc<Mutex<Vec<Arc<Socket>>>> = Arc::default();
    if let Some(at) = args.listen {
        let listener = socket(args, at)?;
        listener.set_reuse_address(true)?;
        listener
            .bind(&at.into())
            .with_context(|| format!("cannot bind to {at}"))?;
        listener.listen(1024)?;
        let (args, tally, open) = (args.clone(), tally.clone(), open.clone());
        std::thread::spawn(move || {
            while let Ok((connection, _)) = listener.accept() {
                // TCP connections inherit the listener's setting, but MPTCP connections do not.
                let _ = connection.set_tcp_congestion(args.congestion.as_bytes());
                let _ = serve(connection, &args, &tally, &open);
            }
        });
    } else if let Some(to) = args.connect {
        for _ in 0..args.flows {
            let connection = socket(args, to)?;
            connect_with_retries(&connection, to)?;
            serve(connection, args, &tally, &open)?;
        }
    }
    let header = args
        .listen
        .or(args.connect)
        .map_or(0, |a| frame_overhead(a.is_ipv6()))
        + 32;
    run_until_end(&args.run, &tally, || received_on_wire(&open, header))
}

/// Received wire bytes: the payload and the headers of every segment, duplicates included, because
/// they passed the limit too. TCP counts segments, not their bytes; in bulk they are full. On
/// loopback they are not full, and nothing is sent twice there, so the payload in order is used.
///
/// 32 bytes of TCP header: the kernel's default, with timestamps.
fn received_on_wire(open: &Mutex<Vec<Arc<Socket>>>, header: u64) -> u64 {
    let open = open.lock().expect("no thread panics with it");
    open.iter()
        .filter_map(|socket| sys::tcp_info(&**socket).ok())
        .map(|info| {
            // The largest segment is fixed for a connection; the receiver's estimate of the segment
            // size is not.
            let segment = info.segment_in.saturating_sub(TIMESTAMPS);
            let full = u64::from(info.data_segs_in) * u64::from(segment);
            let bulk = info.data_segs_in >= 10 && info.segment_in <= LARGEST_ON_A_WIRE;
            let payload = if bulk {
                full.max(info.bytes_received)
            } else {
                info.bytes_received
            };
            payload + u64::from(info.segs_in) * header
        })
        .sum()
}

fn socket(args: &TcpArgs, family: SocketAddr) -> Result<Socket> {
    let protocol = if args.mptcp {
        Protocol::MPTCP
    } else {
        Protocol::TCP
    };
    let socket = Socket::new(Domain::for_address(family), Type::STREAM, Some(protocol))?;
    socket
        .set_tcp_congestion(args.congestion.as_bytes())
        .with_context(|| {
            format!(
                "the kernel does not let us use congestion control {} (see \
             net.ipv4.tcp_available_congestion_control)",
                args.congestion
            )
        })?;
    // The connection is reset at the end, so that closing does not wait for data that a slow limit
    // has left in the buffers.
    socket.set_linger(Some(Duration::ZERO))?;
    Ok(socket)
}

/// Connects, and retries for 5 s: a peer that is starting may not listen yet.
fn connect_with_retries(connection: &Socket, to: SocketAddr) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        match connection.connect(&to.into()) {
            Ok(()) => return Ok(()),
            Err(e) if Instant::now() > until => {
                return Err(e).with_context(|| format!("cannot connect to {to}"));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn serve(
    connection: Socket,
    args: &TcpArgs,
    tally: &Arc<Tally>,
    open: &Mutex<Vec<Arc<Socket>>>,
) -> Result<()> {
    let connection = Arc::new(connection);
    open.lock()
        .expect("no thread panics with it")
        .push(connection.clone());
    if args.sink {
        let (socket, tally) = (connection.clone(), tally.clone());
        std::thread::Builder::new()
            .stack_size(STACK)
            .spawn(move || read(&socket, &tally))?;
    }
    if args.source {
        let rate = args.rate.map(|bits| bits / u64::from(args.flows));
        let tally = tally.clone();
        std::thread::Builder::new()
            .stack_size(STACK)
            .spawn(move || match rate {
                Some(bits) => write_paced(&connection, &tally, bits),
                None => write_bulk(&connection, &tally),
            })?;
    }
    Ok(())
}

/// Reads and discards. With MSG_TRUNC TCP drops the bytes without copying them, which leaves the
/// processor to the program under test.
fn read(socket: &Socket, tally: &Tally) {
    let mut nowhere: Vec<MaybeUninit<u8>> = vec![MaybeUninit::uninit(); 1 << 20];
    while let Ok(n) = socket.recv_with_flags(&mut nowhere, libc::MSG_TRUNC) {
        if n == 0 {
            break;
        }
        tally.received.fetch_add(n as u64, Relaxed);
    }
}

fn write_bulk(mut socket: &Socket, tally: &Tally) {
    tally.await_go();
    let block = vec![0u8; 64 << 10];
    while let Ok(n) = socket.write(&block) {
        tally.sent.fetch_add(n as u64, Relaxed);
        tally.sends.fetch_add(1, Relaxed);
    }
}

/// Writes one full segment whenever it is due, and catches up on late ones, as a live source with a
/// buffer does.
fn write_paced(mut socket: &Socket, tally: &Tally, bits: u64) {
    tally.await_go();
    let _ = socket.set_tcp_nodelay(true);
    let block = vec![0u8; 1448];
    let started = Instant::now();
    let mut written = 0u64;
    loop {
        let due = (started.elapsed().as_nanos() as u64 as f64 * bits as f64 / 8e9) as u64;
        if written + block.len() as u64 > due {
            let missing = written + block.len() as u64 - due;
            std::thread::sleep(Duration::from_nanos(
                (missing as f64 * 8e9 / bits as f64) as u64,
            ));
            continue;
        }
        if socket.write_all(&block).is_err() {
            return;
        }
        written += block.len() as u64;
        tally.sent.fetch_add(block.len() as u64, Relaxed);
        tally.sends.fetch_add(1, Relaxed);
    }
}

/// Bytes of the timestamps option in every segment.
const TIMESTAMPS: u32 = 12;
/// The size of a jumbo frame; a larger segment never crossed a cable.
const LARGEST_ON_A_WIRE: u32 = 9000;
/// Stack size of the threads, which need little.
const STACK: usize = 256 << 10;

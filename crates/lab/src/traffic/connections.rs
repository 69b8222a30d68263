//! Three traffic programs for a server with many connections. A server ([`serve`]), by TCP of the
//! direct path or of the kernel, writes one byte on each connection and closes it, or holds all
//! connections idle. A client ([`open`]) opens connections of the kernel's TCP from several threads
//! at once, and closes each after its byte, or holds them. A sender ([`flood`]) sends SYNs from
//! forged addresses as fast as the kernel takes them.
//!
//! Arguments come in, and JSON lines go out on standard output. The server reads commands, one a
//! line: `stats` prints a [`ServerStats`], `release` closes the held connections and then prints it
//! too. All programs end with standard input. They fail if their sockets or flows cannot be opened.

use std::collections::BTreeMap;
use std::io::{BufRead, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use etherparse::{PacketBuilder, TcpOptionElement};
use netnice_stack::tcp::{ListenOptions, Listener, ListenerUsage};
use netnice_stack::udp::Buffers;
use netnice_stack::{Program, RuntimeDir};
use serde::{Deserialize, Serialize};

use super::fetch::end_with_input;
use crate::sys;

/// The arguments of `netnice-lab traffic serve-connections`.
#[derive(Debug, Clone, clap::Args)]
pub struct ServeArgs {
    /// Where to listen.
    #[arg(long)]
    listen: SocketAddr,
    /// Use a socket of the kernel.
    #[arg(long)]
    kernel: bool,
    /// Hold the connections, in place of writing a byte and closing each.
    #[arg(long)]
    hold: bool,
    /// Connections that may wait to be accepted.
    #[arg(long, default_value_t = 1024)]
    backlog: usize,
    /// Buffers each way.
    #[arg(long, default_value_t = 1024)]
    buffers: u32,
    /// Milliseconds that a connection stays in TIME_WAIT.
    #[arg(long, default_value_t = 60_000)]
    time_wait_ms: u64,
    /// The daemon's folder.
    #[arg(long)]
    runtime_dir: Option<PathBuf>,
}

/// The arguments of `netnice-lab traffic open-connections`.
#[derive(Debug, Clone, clap::Args)]
pub struct OpenArgs {
    /// The server.
    #[arg(long)]
    connect: SocketAddr,
    /// Connections to open.
    #[arg(long)]
    count: u64,
    /// Threads that open them, each one after the other.
    #[arg(long, default_value_t = 16)]
    threads: u64,
    /// Hold the connections until the end of standard input.
    #[arg(long)]
    hold: bool,
    /// A connection that takes longer counts as failed.
    #[arg(long, default_value_t = 30_000)]
    timeout_ms: u64,
}

/// The arguments of `netnice-lab traffic syn-flood`.
#[derive(Debug, Clone, clap::Args)]
pub struct FloodArgs {
    /// The victim.
    #[arg(long)]
    to: SocketAddrV4,
    /// The device to send by.
    #[arg(long)]
    device: String,
    /// Ethernet addresses of the sender and of the victim, as 12 hexadecimal digits.
    #[arg(long)]
    from_mac: String,
    #[arg(long)]
    to_mac: String,
}

/// What a server has done and uses.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ServerStats {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections that failed before they were served.
    pub failed: u64,
    /// Resident memory in bytes, without memory that is shared with others.
    pub resident: u64,
    /// Processor time in ns.
    pub processor_ns: u64,
    /// Open file descriptors.
    pub descriptors: u64,
    /// Of a listener on the direct path: connections, those in TIME_WAIT that the program has
    /// closed, and buffers in use.
    pub usage: Option<(u64, u64, u64)>,
}

/// What a client has seen.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Opened {
    /// Connections that were served.
    pub opened: u64,
    /// The others, by their errors.
    pub failed: BTreeMap<String, u64>,
    /// The time that all took together, in s.
    pub seconds: f64,
    /// The longest time of one that was served, in s.
    pub slowest: f64,
    /// Number that took more than a second.
    pub slow: u64,
}

/// A listener of either TCP.
enum AnyListener {
    Direct(Listener),
    Kernel(TcpListener),
}

/// What the threads of a server share.
struct Server {
    listener: AnyListener,
    /// Held connections, to be dropped.
    held: Mutex<Vec<Box<dyn Send>>>,
    accepted: AtomicU64,
    failed: AtomicU64,
}

/// Runs the server. Returns only if it cannot listen, or its statistics cannot be read.
pub fn serve(args: &ServeArgs) -> Result<()> {
    sys::raise_file_limit()?;
    let server = Arc::new(Server {
        listener: AnyListener::open(args)?,
        held: Mutex::default(),
        accepted: AtomicU64::new(0),
        failed: AtomicU64::new(0),
    });
    let (accepting, hold) = (server.clone(), args.hold);
    std::thread::spawn(move || accepting.accept(hold));
    println!("{}", serde_json::json!({"ready": true}));
    for line in std::io::stdin().lock().lines() {
        if line? == "release" {
            server.held().clear();
        }
        println!("{}", serde_json::json!({"stats": server.stats()?}));
    }
    std::process::exit(0)
}

impl AnyListener {
    fn open(args: &ServeArgs) -> Result<AnyListener> {
        if args.kernel {
            let listener = TcpListener::bind(args.listen).context("cannot listen")?;
            // Listening again changes the backlog.
            let backlog = i32::try_from(args.backlog).unwrap_or(i32::MAX);
            rustix::net::listen(&listener, backlog)?;
            return Ok(AnyListener::Kernel(listener));
        }
        let options = ListenOptions::at(args.listen);
        let options = ListenOptions {
            buffers: Buffers {
                bytes: 2048,
                sending: args.buffers,
                receiving: args.buffers,
            },
            backlog: args.backlog,
            config: netnice_stack::tcp::Config {
                time_wait: Duration::from_millis(args.time_wait_ms),
                ..options.config
            },
            ..options
        };
        let dir = RuntimeDir::choose(
            args.runtime_dir.clone(),
            std::env::var_os(RuntimeDir::VARIABLE),
        );
        let program = Program::attach(&dir, None, 2, options.region_bytes()?);
        let program = program.context("cannot attach to the direct path")?;
        let listener = program.listen(&options).context("cannot listen")?;
        Ok(AnyListener::Direct(listener))
    }

    fn usage(&self) -> Option<ListenerUsage> {
        match self {
            AnyListener::Direct(listener) => Some(listener.usage()),
            AnyListener::Kernel(_) => None,
        }
    }
}

impl Server {
    /// Accepts connections without end.
    fn accept(&self, hold: bool) {
        loop {
            let served = match &self.listener {
                AnyListener::Direct(listener) => self.accept_direct(listener, hold),
                AnyListener::Kernel(listener) => self.accept_kernel(listener, hold),
            };
            match served {
                Ok(()) => self.accepted.fetch_add(1, Relaxed),
                Err(_) => self.failed.fetch_add(1, Relaxed),
            };
        }
    }

    fn accept_direct(&self, listener: &Listener, hold: bool) -> Result<()> {
        let stream = listener.accept(None)?;
        match hold {
            true => self.held().push(Box::new(stream)),
            false => drop(stream.write(&[BYTE], None)?),
        }
        Ok(())
    }

    fn accept_kernel(&self, listener: &TcpListener, hold: bool) -> Result<()> {
        let (mut stream, _) = listener.accept()?;
        match hold {
            true => self.held().push(Box::new(stream)),
            false => stream.write_all(&[BYTE])?,
        }
        Ok(())
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Vec<Box<dyn Send>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stats(&self) -> Result<ServerStats> {
        let (user, system) = sys::cpu_time();
        let usage = self.listener.usage();
        Ok(ServerStats {
            accepted: self.accepted.load(Relaxed),
            failed: self.failed.load(Relaxed),
            resident: resident(std::process::id())?,
            processor_ns: (user + system).as_nanos() as u64,
            descriptors: std::fs::read_dir("/proc/self/fd")?.count() as u64,
            usage: usage.map(|usage| {
                let ListenerUsage {
                    connections,
                    waiting,
                    buffers,
                } = usage;
                (connections as u64, waiting as u64, u64::from(buffers))
            }),
        })
    }
}

/// Resident memory of a process in bytes, without memory that is shared with others. Fails if there
/// is no such process.
pub fn resident(pid: u32) -> Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let kibibytes = kibibytes.context("a status without RssAnon")?;
    Ok(kibibytes.parse::<u64>()? << 10)
}

/// Opens the connections, and prints an [`Opened`].
pub fn open(args: &OpenArgs) -> Result<()> {
    sys::raise_file_limit()?;
    let left = AtomicU64::new(args.count);
    let began = Instant::now();
    let results = std::thread::scope(|scope| {
        let work = || open_some(args, &left);
        let threads: Vec<_> = (0..args.threads).map(|_| scope.spawn(work)).collect();
        let joined = threads.into_iter();
        joined
            .map(|one| one.join().expect("no thread panics"))
            .collect::<Vec<_>>()
    });
    let mut all = Opened {
        opened: 0,
        failed: BTreeMap::new(),
        seconds: began.elapsed().as_secs_f64(),
        slowest: 0.0,
        slow: 0,
    };
    for (one, _) in &results {
        all.opened += one.opened;
        all.slow += one.slow;
        all.slowest = all.slowest.max(one.slowest);
        for (why, count) in &one.failed {
            *all.failed.entry(why.clone()).or_default() += count;
        }
    }
    println!("{}", serde_json::json!({"opened": all}));
    if args.hold {
        let _ = std::io::stdin().lock().read_line(&mut String::new());
    }
    Ok(())
}

/// Opens connections until none is left to be opened. Returns those that are held.
fn open_some(args: &OpenArgs, left: &AtomicU64) -> (Opened, Vec<TcpStream>) {
    let mut held = Vec::new();
    let mut all = Opened {
        opened: 0,
        failed: BTreeMap::new(),
        seconds: 0.0,
        slowest: 0.0,
        slow: 0,
    };
    let limit = Duration::from_millis(args.timeout_ms);
    let take = |left: u64| left.checked_sub(1);
    while left.fetch_update(Relaxed, Relaxed, take).is_ok() {
        let began = Instant::now();
        let opened = TcpStream::connect_timeout(&args.connect, limit).and_then(|mut stream| {
            if args.hold {
                held.push(stream);
                return Ok(());
            }
            stream.set_read_timeout(Some(limit))?;
            let mut read = Vec::new();
            stream.read_to_end(&mut read)?;
            match read[..] == [BYTE] {
                true => Ok(()),
                false => Err(std::io::Error::other("not the byte")),
            }
        });
        let took = began.elapsed().as_secs_f64();
        match opened {
            Ok(()) => {
                all.opened += 1;
                all.slow += u64::from(took > 1.0);
                all.slowest = all.slowest.max(took);
            }
            Err(error) => *all.failed.entry(error.to_string()).or_default() += 1,
        }
    }
    (all, held)
}

/// Sends SYNs until the end of standard input, and then ends the process. Every second it prints
/// `{"sent": …}`, the number so far. Fails if there is no such device, or an Ethernet address is
/// invalid.
pub fn flood(args: &FloodArgs) -> Result<()> {
    let mut socket = sys::open_raw_socket(&args.device)?;
    let (from, to) = (mac(&args.from_mac)?, mac(&args.to_mac)?);
    println!("{}", serde_json::json!({"ready": true}));
    end_with_input();
    let mut frames = Vec::new();
    let (mut sent, mut printed) = (0_u64, Instant::now());
    let mut state = 1_u64;
    loop {
        for _ in 0..256 {
            // Knuth's multiplier for 64 bits.
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            forge(&mut frames, (from, to), args.to, state)?;
            match socket.write(&frames) {
                Ok(_) => sent += 1,
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(error) => return Err(error).context("cannot send"),
            }
        }
        if printed.elapsed() >= Duration::from_secs(1) {
            println!("{}", serde_json::json!({"sent": sent}));
            printed = Instant::now();
        }
    }
}

/// A SYN as Linux sends it, from an address and a port that depend on a random number.
fn forge(
    frame: &mut Vec<u8>,
    (from, to): ([u8; 6], [u8; 6]),
    victim: SocketAddrV4,
    random: u64,
) -> Result<()> {
    let bytes = random.to_be_bytes();
    let source = Ipv4Addr::new(10, 99, bytes[0], bytes[1]);
    let port = u16::from_be_bytes([bytes[2], bytes[3]]) | 1024;
    let seq = (random >> 7) as u32;
    frame.clear();
    PacketBuilder::ethernet2(from, to)
        .ipv4(source.octets(), victim.ip().octets(), 64)
        .tcp(port, victim.port(), seq, 64_240)
        .syn()
        .options(&[
            TcpOptionElement::MaximumSegmentSize(1460),
            TcpOptionElement::SelectiveAcknowledgementPermitted,
            TcpOptionElement::Timestamp(seq, 0),
            TcpOptionElement::Noop,
            TcpOptionElement::WindowScale(7),
        ])?
        .write(frame, &[])?;
    Ok(())
}

fn mac(text: &str) -> Result<[u8; 6]> {
    let number = u64::from_str_radix(text, 16).context("no Ethernet address")?;
    let bytes = number.to_be_bytes();
    Ok([bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7]])
}

/// What the server writes.
const BYTE: u8 = b'!';

//! The program `netnice-lab traffic direct-tcp`: TCP on the direct path. It connects a number of
//! times or listens, and on every connection it writes a pattern, reads and compares it, or sends
//! back what it reads. A listener can promote connections to flows of their own, while their other
//! threads read and write; for each, `{"promoted": peer}` is printed.
//!
//! The bytes of a connection are a pattern in both directions ([`fill`], [`first_wrong`]), so
//! either end can be the kernel's. A wrong byte counts as refused, by its position. A connection
//! that fails is counted as refused by its error, and prints `{"closed": reason}`. The report has
//! the number of segments that the connections of `--connect` sent again. The program fails if it
//! cannot attach to a driver, or its flows cannot be opened.

use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, LazyLock, Weak};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use netnice_stack::tcp::{Algorithm, Config, ListenOptions, PromoteOptions, Stream, TcpOptions};
use netnice_stack::udp::Buffers;
use netnice_stack::{Program, RuntimeDir, StackError};
use tokio::io::AsyncWriteExt;

use super::run::{RunArgs, Tally, run_until_end};
use super::words;
use crate::sys::burn;

/// The arguments of `netnice-lab traffic direct-tcp`.
#[derive(Debug, Clone, clap::Args)]
pub struct DirectTcpArgs {
    /// Connect to this address.
    #[arg(long, required_unless_present = "listen", conflicts_with = "listen")]
    connect: Option<SocketAddr>,
    /// Listen at this address and serve every connection.
    #[arg(long)]
    listen: Option<SocketAddr>,
    /// The local endpoint of a connection; without it the daemon chooses it.
    #[arg(long, requires = "connect")]
    local: Option<SocketAddr>,
    /// Connections to make.
    #[arg(long, default_value_t = 1)]
    flows: u32,
    /// The contract; without it best effort.
    #[arg(long)]
    contract: Option<String>,
    /// The interface; without it the only one that is managed.
    #[arg(long)]
    iface: Option<String>,
    /// The daemon's folder.
    #[arg(long)]
    runtime_dir: Option<PathBuf>,
    /// Write the pattern on every connection.
    #[arg(long)]
    source: bool,
    /// Read the pattern on every connection.
    #[arg(long)]
    sink: bool,
    /// Send back what comes.
    #[arg(long, conflicts_with_all = ["source", "sink"])]
    echo: bool,
    /// Echo with tokio's traits.
    #[arg(long, requires = "echo")]
    tokio: bool,
    /// Bytes to write on each connection; then it is shut down. Without it there is no end.
    #[arg(long, default_value_t = u64::MAX, hide_default_value = true)]
    count: u64,
    /// Bytes in one write.
    #[arg(long, default_value_t = 65_536)]
    chunk: usize,
    /// Use so much processor time before each write, in microseconds.
    #[arg(long, default_value_t = 0)]
    work_us: u64,
    /// Buffers each way.
    #[arg(long, default_value_t = 512)]
    buffers: u32,
    /// Use Reno in place of CUBIC.
    #[arg(long)]
    reno: bool,
    /// Seconds for each handshake.
    #[arg(long, default_value_t = 10)]
    connect_s: u64,
    /// Seconds for the peer to acknowledge the last bytes of a connection.
    #[arg(long, default_value_t = 60)]
    finish_s: u64,
    /// Connections of a listener that may wait to be accepted.
    #[arg(long, default_value_t = 128)]
    backlog: usize,
    /// Promote accepted connections: each gets a flow of its own with this contract.
    #[arg(long, requires = "listen")]
    promote: Option<String>,
    /// Promote a connection when it has received and sent so many bytes in all.
    #[arg(long, default_value_t = 0)]
    promote_after: u64,
    /// Promote each N-th connection, for this N.
    #[arg(long, default_value_t = 1)]
    promote_every: u64,
    /// Exit after this time in microseconds, whatever other threads do.
    #[arg(long)]
    exit_us: Option<u64>,
    /// Execute `sleep` after this time in microseconds.
    #[arg(long)]
    exec_us: Option<u64>,
    #[command(flatten)]
    run: RunArgs,
}

impl DirectTcpArgs {
    fn each_way(&self) -> Buffers {
        Buffers {
            bytes: 2048,
            sending: self.buffers,
            receiving: self.buffers,
        }
    }
}

/// A TCP process on the direct path: see the module.
#[derive(Debug, Clone)]
pub struct DirectTcp {
    pub(super) args: Vec<String>,
}

impl DirectTcp {
    /// Connects to a listener, by the daemon of this runtime folder.
    pub fn connect(to: SocketAddr, runtime: &std::path::Path) -> DirectTcp {
        DirectTcp::new(&["--connect", &to.to_string()], runtime)
    }

    /// Listens, and serves every connection.
    pub fn listen(at: SocketAddr, runtime: &std::path::Path) -> DirectTcp {
        DirectTcp::new(&["--listen", &at.to_string()], runtime)
    }

    fn new(options: &[&str], runtime: &std::path::Path) -> DirectTcp {
        let mut args = words(&["direct-tcp"]);
        args.extend(words(options));
        DirectTcp { args }.with(&["--runtime-dir", &runtime.display().to_string()])
    }

    /// Writes `bytes` of the pattern, and shuts down.
    pub fn source(self, bytes: u64) -> DirectTcp {
        self.with(&["--source", "--count", &bytes.to_string()])
    }

    /// Writes the pattern without end.
    pub fn endless_source(self) -> DirectTcp {
        self.with(&["--source"])
    }

    /// Reads the pattern.
    pub fn sink(self) -> DirectTcp {
        self.with(&["--sink"])
    }

    /// Sends back what comes.
    pub fn echo(self) -> DirectTcp {
        self.with(&["--echo"])
    }

    /// The contract of the flow; the default is best effort.
    pub fn contract(self, contract: &str) -> DirectTcp {
        self.with(&["--contract", contract])
    }

    /// The local endpoint; the default is one that the daemon chooses.
    pub fn local(self, at: SocketAddr) -> DirectTcp {
        self.with(&["--local", &at.to_string()])
    }

    /// Further options of the program.
    pub fn with(mut self, more: &[&str]) -> DirectTcp {
        self.args.extend(words(more));
        self
    }
}

/// The pattern, twice: copying and comparing it takes little of a sender's or receiver's time.
static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let once = (0..PERIOD).map(|position| (position.wrapping_mul(2_654_435_761) >> 13) as u8);
    let once: Vec<u8> = once.collect();
    once.repeat(2)
});

/// The pattern from `position` on: at most `length` bytes, and at least 1 if `length` is.
fn pattern(position: u64, length: usize) -> &'static [u8] {
    let begin = (position % PERIOD) as usize;
    &PATTERN[begin..begin + length.min(PERIOD as usize)]
}

/// Runs the program, and ends the process. Returns only if it fails: if its options are invalid, if
/// it cannot attach to a driver, or if its flows cannot be opened.
pub fn main(args: &DirectTcpArgs) -> Result<()> {
    if !args.source && !args.sink && !args.echo {
        bail!("a direct-tcp program needs --source, --sink, both, or --echo");
    }
    let dir = RuntimeDir::choose(
        args.runtime_dir.clone(),
        std::env::var_os(RuntimeDir::VARIABLE),
    );
    let buffers = args.each_way();
    let config = |config: Config| Config {
        algorithm: if args.reno {
            Algorithm::Reno
        } else {
            Algorithm::Cubic
        },
        ..config
    };
    end_at_moment(args);
    let tally = Arc::new(Tally::default());
    if let Some(at) = args.listen {
        let options = ListenOptions {
            contract: args.contract.clone(),
            buffers,
            backlog: args.backlog,
            ..ListenOptions::at(at)
        };
        let options = ListenOptions {
            config: config(options.config),
            ..options
        };
        let promoted = match args.promote {
            Some(_) => MOST_PROMOTED,
            None => 0,
        };
        let bytes = options.region_bytes()? + u64::from(promoted) * buffers.region_bytes()?;
        let program = Program::attach(&dir, args.iface.as_deref(), 2 + promoted, bytes)
            .context("cannot attach to the direct path")?;
        let listener = program.listen(&options).context("cannot listen")?;
        *tally.at_end.lock().expect("no thread panics with it") = Some(Box::new(|_| await_ends()));
        let (args, tally) = (args.clone(), tally.clone());
        std::thread::spawn(move || {
            for number in 0_u64.. {
                match listener.accept(None) {
                    Ok(stream) => {
                        let mut args = args.clone();
                        args.promote = args
                            .promote
                            .filter(|_| number.is_multiple_of(args.promote_every));
                        drop(serve(stream, &args, &tally));
                    }
                    Err(error) => return report(&tally, &error),
                }
            }
        });
    } else if let Some(to) = args.connect {
        let options = TcpOptions {
            contract: args.contract.clone(),
            buffers,
            ..TcpOptions::to(to)
        };
        let options = TcpOptions {
            config: config(options.config),
            local: args.local.unwrap_or(options.local),
            ..options
        };
        let bytes = buffers.region_bytes()? * u64::from(args.flows);
        let program = Program::attach(&dir, args.iface.as_deref(), args.flows, bytes)
            .context("cannot attach to the direct path")?;
        let mut served = Vec::new();
        for _ in 0..args.flows {
            let stream = program.connect(&options, Some(Duration::from_secs(args.connect_s)));
            served.push(serve(stream.context("cannot connect")?, args, &tally));
        }
        *tally.at_end.lock().expect("no thread panics with it") = Some(Box::new(move |report| {
            let open = served.iter().filter_map(Weak::upgrade);
            let info = open.filter_map(|served| served.stream.info().ok());
            report.retransmitted = info.map(|info| info.counters.retransmitted).sum();
        }));
    }
    run_until_end(&args.run, &tally, || 0)
}

/// Connections of [`echo`] whose peer has ended them, and has not acknowledged everything.
static ENDING: AtomicU32 = AtomicU32::new(0);

/// Waits up to a second for the peers that have ended their connections to acknowledge the rest: a
/// connection whose program ends before gets a reset.
fn await_ends() {
    let until = Instant::now() + Duration::from_secs(1);
    while ENDING.load(Relaxed) > 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Starts a thread that ends the program, or executes another one, at the moment that the arguments
/// name.
fn end_at_moment(args: &DirectTcpArgs) {
    let (exit, exec) = (args.exit_us, args.exec_us);
    if let Some(after) = exit.or(exec) {
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(after));
            if exec.is_some() {
                // It returns only if it fails.
                let error = std::process::Command::new("sleep").arg("1000").exec();
                eprintln!("cannot execute sleep: {error}");
            }
            std::process::exit(0);
        });
    }
}

/// What the threads of a connection share.
struct Served {
    stream: Stream,
    args: DirectTcpArgs,
    tally: Arc<Tally>,
    /// Everything was written and acknowledged, or nothing is to be written.
    has_written: AtomicBool,
}

/// Starts the threads of a connection. The last of them to end closes it.
fn serve(stream: Stream, args: &DirectTcpArgs, tally: &Arc<Tally>) -> Weak<Served> {
    if args.tokio {
        let (args, tally) = (args.clone(), tally.clone());
        std::thread::spawn(move || {
            if let Err(error) = echo_by_tokio(stream, &args, &tally) {
                tally.count_refused(&error.to_string());
            }
        });
        return Weak::new();
    }
    let served = Arc::new(Served {
        stream,
        args: args.clone(),
        tally: tally.clone(),
        has_written: AtomicBool::new(!args.source),
    });
    let start = |work: fn(&Served) -> Result<(), StackError>| {
        let served = served.clone();
        std::thread::spawn(move || {
            if let Err(error) = work(&served) {
                report(&served.tally, &error);
            }
        });
    };
    if args.echo {
        start(echo);
    }
    if args.promote.is_some() {
        start(|served| promote(&served.stream, &served.args));
    }
    if args.source {
        start(|served| {
            let written = write(&served.stream, &served.args, &served.tally);
            served.has_written.store(true, Relaxed);
            written
        });
    }
    if args.sink {
        start(read);
    }
    Arc::downgrade(&served)
}

/// Promotes a connection when it has received and sent enough.
fn promote(stream: &Stream, args: &DirectTcpArgs) -> Result<(), StackError> {
    let done = || {
        let counters = stream.info()?.counters;
        Ok::<_, StackError>(counters.bytes_received + counters.bytes_acknowledged)
    };
    while done()? < args.promote_after {
        std::thread::sleep(Duration::from_millis(1));
    }
    stream.promote(&PromoteOptions {
        contract: args.promote.clone(),
        buffers: args.each_way(),
    })?;
    println!(
        "{}",
        serde_json::json!({"promoted": stream.peer().to_string()})
    );
    Ok(())
}

fn report(tally: &Tally, error: &StackError) {
    tally.count_refused(&error.to_string());
    println!("{}", serde_json::json!({"closed": error.to_string()}));
}

fn write(stream: &Stream, args: &DirectTcpArgs, tally: &Tally) -> Result<(), StackError> {
    tally.await_go();
    let mut position = 0;
    let mut bytes = vec![0; args.chunk];
    while position < args.count {
        let length = (args.count - position).min(bytes.len() as u64) as usize;
        if args.work_us > 0 {
            burn(Duration::from_micros(args.work_us));
        }
        fill(&mut bytes[..length], position);
        let written = stream.write(&bytes[..length], None)?;
        tally.sends.fetch_add(1, Relaxed);
        tally.sent.fetch_add(written as u64, Relaxed);
        position += written as u64;
    }
    stream.finish(Some(Duration::from_secs(args.finish_s)))
}

/// Writes the pattern from `position` on.
pub fn fill(bytes: &mut [u8], mut position: u64) {
    for part in bytes.chunks_mut(PERIOD as usize) {
        part.copy_from_slice(pattern(position, part.len()));
        position += part.len() as u64;
    }
}

/// The position of the first byte that is not the pattern's; `None` if all are.
pub fn first_wrong(bytes: &[u8], mut position: u64) -> Option<u64> {
    for part in bytes.chunks(PERIOD as usize) {
        let right = pattern(position, part.len());
        if part != right {
            let wrong = part.iter().zip(right).position(|(one, other)| one != other);
            return wrong.map(|at| position + at as u64);
        }
        position += part.len() as u64;
    }
    None
}

/// Reads up to the end. The last bytes count only when the connection has written too, so that a
/// program which ends after so many received bytes has done both.
fn read(served: &Served) -> Result<(), StackError> {
    let Served {
        stream,
        args,
        tally,
        has_written,
    } = served;
    let mut position = 0;
    let mut held = 0;
    let mut bytes = vec![0; args.chunk];
    loop {
        let read = stream.read(&mut bytes, None)?;
        if read == 0 {
            while !has_written.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
            tally.received.fetch_add(held, Relaxed);
            return Ok(());
        }
        if let Some(at) = first_wrong(&bytes[..read], position) {
            tally.count_refused(&format!("a wrong byte at {at}"));
        }
        position += read as u64;
        tally
            .received
            .fetch_add(std::mem::replace(&mut held, read as u64), Relaxed);
    }
}

fn echo(served: &Served) -> Result<(), StackError> {
    let Served {
        stream,
        args,
        tally,
        ..
    } = served;
    stream.set_no_delay(true);
    let mut bytes = vec![0; args.chunk];
    loop {
        let read = stream.read(&mut bytes, None)?;
        if read == 0 {
            ENDING.fetch_add(1, Relaxed);
            let finished = stream.finish(Some(Duration::from_secs(args.finish_s)));
            ENDING.fetch_sub(1, Relaxed);
            return finished;
        }
        tally.received.fetch_add(read as u64, Relaxed);
        let mut rest = &bytes[..read];
        while !rest.is_empty() {
            let written = stream.write(rest, None)?;
            tally.sent.fetch_add(written as u64, Relaxed);
            rest = &rest[written..];
        }
    }
}

/// The same with the traits of tokio. A promoted connection is promoted before.
fn echo_by_tokio(stream: Stream, args: &DirectTcpArgs, tally: &Tally) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    stream.set_no_delay(true);
    if args.promote.is_some() {
        promote(&stream, args).map_err(std::io::Error::other)?;
    }
    runtime.block_on(async {
        let (mut reader, mut writer) = tokio::io::split(stream);
        let copied = tokio::io::copy(&mut reader, &mut writer).await?;
        tally.received.fetch_add(copied, Relaxed);
        tally.sent.fetch_add(copied, Relaxed);
        writer.shutdown().await
    })
}

/// Length of the pattern, a prime: no power of two hides behind it.
const PERIOD: u64 = 65_537;
/// Connections that can be promoted at the same time.
const MOST_PROMOTED: u32 = 16;

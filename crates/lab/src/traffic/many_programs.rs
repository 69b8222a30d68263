//! Many programs at once: [`SteadyPrograms`], each with several connections and a steady rate, and
//! [`BriefPrograms`], which send a little and end. Each program is a process of its own with its
//! own sockets; perl forks them, because a thousand starts of a larger program in a second would
//! measure the starts.
//!
//! [`Drain`] is the other end: it accepts every connection at a port and reads what comes.
//!
//! Starts fail if perl cannot be executed or prints nothing for 60 s, and a drain if its port is
//! taken. [`BriefPrograms::start`] fails if the parent process has ended.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::{Context, Result};
use socket2::Socket;

use crate::process::{EVENT_TIMEOUT, Proc};
use crate::sys;
use crate::wire::{Record, WireFlow};
use crate::worker::Worker;
use crate::world::Host;

/// A thread that accepts every connection at a port, and reads what arrives 20 times a second.
pub struct Drain {
    _thread: Worker<()>,
}

impl Drain {
    /// Listens at `at` on `host`. Fails if the address is taken, or if the limit of open files
    /// cannot be raised.
    pub fn start(host: &Host, at: SocketAddr) -> Result<Drain> {
        sys::raise_file_limit()?;
        let listener = host.ns.enter(|| {
            let listener = TcpListener::bind(at).with_context(|| format!("cannot bind to {at}"))?;
            rustix::net::listen(&listener, BACKLOG)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        })?;
        let thread = Worker::start("drain", move |stopped| {
            let mut open: Vec<Socket> = Vec::new();
            let mut nowhere = vec![MaybeUninit::uninit(); 1 << 20];
            while !stopped.load(Relaxed) {
                while let Ok((connection, _)) = listener.accept() {
                    connection.set_nonblocking(true)?;
                    open.push(connection.into());
                }
                open.retain(|socket| is_open(socket, &mut nowhere));
                std::thread::sleep(PAUSE);
            }
            Ok(())
        })?;
        Ok(Drain { _thread: thread })
    }
}

/// Reads what has arrived; false if the other end has closed the connection.
fn is_open(socket: &Socket, nowhere: &mut [MaybeUninit<u8>]) -> bool {
    // With MSG_TRUNC TCP drops the bytes without copying them.
    match socket.recv_with_flags(nowhere, libc::MSG_TRUNC) {
        Ok(0) => false,
        Ok(_) => true,
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    }
}

/// Programs that send at steady rates. Dropping them ends them.
pub struct SteadyPrograms {
    _parent: Proc,
    /// By process id: the number of each.
    pids: BTreeMap<u32, u16>,
}

impl SteadyPrograms {
    /// Starts `programs` programs on `host`, at most 2,000, with `connections` connections each, at
    /// most 10, to `to`. Twenty times a second, program `n` writes `1 + n % 3` segments, each to
    /// the next of its connections. Returns when all are connected. Fails if a program does not
    /// start or connect.
    pub fn start(
        host: &Host,
        to: SocketAddr,
        programs: u16,
        connections: u16,
    ) -> Result<SteadyPrograms> {
        let mut command = host.ns.command("perl");
        command.args(["-e", STEADY, &to.ip().to_string(), &to.port().to_string()]);
        command.args([FIRST_PORT, programs, connections].map(|number| number.to_string()));
        let mut parent = Proc::start(command)?;
        let mut pids = BTreeMap::new();
        for _ in 0..programs {
            let line = parent.next_line(EVENT_TIMEOUT)?;
            let (number, pid) = line.split_once(' ').context("two numbers are printed")?;
            pids.insert(pid.trim().parse()?, number.parse()?);
        }
        Ok(SteadyPrograms {
            _parent: parent,
            pids,
        })
    }

    /// The process ids of the programs, in ascending order.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.pids.keys().copied()
    }

    /// By process id: what a tap at the other end counted of each program between two times of the
    /// monotonic clock, in ns, as the daemon reports them.
    pub fn seen(&self, record: &Record, from_ns: u64, to_ns: u64) -> BTreeMap<u32, u64> {
        // The tap's times are those of the wall clock.
        let ahead = sys::now_ns() - netnice_kernel::process::monotonic().0;
        let mut seen = BTreeMap::new();
        for (flow, _) in record.flows() {
            if let Some(pid) = self.of_flow(&flow) {
                let bytes = record.bytes(|one| *one == flow, from_ns + ahead, to_ns + ahead);
                *seen.entry(pid).or_default() += bytes;
            }
        }
        seen
    }

    /// The program that has the other end of a flow that a tap's device received; `None` for other
    /// flows.
    fn of_flow(&self, flow: &WireFlow) -> Option<u32> {
        let number = flow.source.1.checked_sub(FIRST_PORT)? / PORTS_EACH;
        let mut found = self.pids.iter().filter(|_| flow.inbound);
        let found = found.find(|(_, of)| **of == number);
        found.map(|(pid, _)| *pid)
    }
}

/// What a brief program sends before it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BriefTraffic {
    /// This number of datagrams with [`BriefPrograms::DATAGRAM`] bytes, each on a socket of its
    /// own.
    Datagrams(u32),
    /// A connection with [`BriefPrograms::STREAM`] bytes.
    Stream,
}

/// A parent process that starts programs which send a little and end. Dropping it ends them.
pub struct BriefPrograms {
    parent: Proc,
}

impl BriefPrograms {
    /// Bytes of payload of a datagram.
    pub const DATAGRAM: u64 = 400;
    /// Bytes that a connection carries.
    pub const STREAM: u64 = 8_000;

    /// Starts the parent, which starts no program yet. Fails if perl cannot be executed.
    pub fn new(host: &Host, to: SocketAddr, traffic: BriefTraffic) -> Result<BriefPrograms> {
        let mut command = host.ns.command("perl");
        command.args(["-e", BRIEF, &to.ip().to_string(), &to.port().to_string()]);
        let (datagrams, bytes) = match traffic {
            BriefTraffic::Datagrams(count) => (u64::from(count), BriefPrograms::DATAGRAM),
            BriefTraffic::Stream => (0, BriefPrograms::STREAM),
        };
        command.args([datagrams.to_string(), bytes.to_string()]);
        let parent = Proc::start(command)?;
        Ok(BriefPrograms { parent })
    }

    /// Starts this many programs. Fails if the parent has ended.
    pub fn start(&mut self, programs: u32) -> Result<()> {
        self.parent.write_line(&programs.to_string())
    }

    /// Waits until all have ended. Fails after a minute, or if a program could not send.
    pub fn finish(mut self) -> Result<()> {
        self.parent.write_line("0")?;
        self.parent.next_line(EVENT_TIMEOUT)?;
        Ok(())
    }
}

/// Program `n` has the local ports from `FIRST_PORT + n * PORTS_EACH` on.
const FIRST_PORT: u16 = 10_000;
const PORTS_EACH: u16 = 10;
/// The longest queue of connections that wait to be accepted.
const BACKLOG: i32 = 4096;
/// The pause between two looks at all connections.
const PAUSE: Duration = Duration::from_millis(50);

/// Prints `NUMBER PID` for each program, when it is connected.
const STEADY: &str = r#"
    use Socket;
    my ($ip, $port, $first, $programs, $connections) = @ARGV;
    my $to = pack_sockaddr_in($port, inet_aton($ip));
    $| = 1;
    for my $n (0 .. $programs - 1) {
        next if fork;
        my @open;
        for my $i (0 .. $connections - 1) {
            socket(my $socket, PF_INET, SOCK_STREAM, 6) or die "socket: $!";
            setsockopt($socket, SOL_SOCKET, SO_REUSEADDR, 1);
            setsockopt($socket, 6, 1, 1);
            bind($socket, pack_sockaddr_in($first + 10 * $n + $i, INADDR_ANY)) or die "bind: $!";
            connect($socket, $to) or die "connect: $!";
            push @open, $socket;
        }
        syswrite STDOUT, "$n $$\n";
        my ($block, $next) = ('x' x 1448, 0);
        for (1 .. 12000) {
            for (0 .. $n % 3) {
                syswrite $open[$next++ % @open], $block;
            }
            select undef, undef, undef, 0.05;
        }
        exit;
    }
    1 while wait > 0;
"#;

/// Reads numbers of programs; 0: waits until all have ended, and prints a line.
const BRIEF: &str = r#"
    use Socket;
    my ($ip, $port, $datagrams, $bytes) = @ARGV;
    my $to = pack_sockaddr_in($port, inet_aton($ip));
    my $block = 'x' x $bytes;
    $SIG{CHLD} = 'IGNORE';
    $| = 1;
    while (<STDIN>) {
        last if $_ == 0;
        for (1 .. $_) {
            next if fork;
            my @open;
            for (1 .. $datagrams) {
                socket(my $socket, PF_INET, SOCK_DGRAM, 0) or die "socket: $!";
                defined(send($socket, $block, 0, $to)) or die "send: $!";
                push @open, $socket;
            }
            if (!$datagrams) {
                socket(my $socket, PF_INET, SOCK_STREAM, 6) or die "socket: $!";
                connect($socket, $to) or die "connect: $!";
                my $at = 0;
                $at += syswrite $socket, $block, $bytes - $at, $at while $at < $bytes;
            }
            exit;
        }
    }
    1 while wait > 0;
    print "done\n";
"#;

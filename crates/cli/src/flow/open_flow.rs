//! `netnice flow open`: opens a UDP flow, sends standard input as datagrams, and writes the
//! payloads that arrive to standard output, as `nc -u` does with a socket.
//!
//! ```text
//!  standard input ─ one read ─▶ payload ─▶ flow ─▶ driver       flow ─▶ standard output
//!       │ end
//!       ▼
//!  the driver has sent everything ─▶ nothing has arrived for the time of --wait ─▶ closed
//! ```
//! Standard input is read only when the flow has a free buffer, so a slow contract slows the reader
//! down and loses nothing. With [`Remote::Listen`] the first datagram that arrives selects the
//! remote endpoint; datagrams of other senders are dropped and counted.
//!
//! A signal (SIGINT, SIGTERM, SIGHUP) closes the flow, and this process then ends by the signal; a
//! second one ends it at once. Fails with a [`CommandError`] if the host has no address, the daemon
//! cannot be reached, the daemon does not grant the flow, the flow ends, or input or output fails.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use netnice_api::{Exit, RuntimeDir};
use netnice_stack::udp::{Buffers, UdpOptions};
use netnice_stack::{FlowNotification, Program, Socket, StackError, Status};
use rustix::event::{PollFd, PollFlags, Timespec};
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

use crate::daemon;
use crate::error::CommandError;
use crate::output::write_bytes;
use crate::render::printable;

/// The options of `netnice flow open`.
#[derive(Debug)]
pub(crate) struct Open {
    /// The remote endpoint.
    pub remote: Remote,
    /// The local endpoint; `None`: the daemon chooses it.
    pub local: Option<SocketAddr>,
    /// The link; `None`: the only managed one.
    pub iface: Option<String>,
    /// The contract as text; `None`: best effort.
    pub contract: Option<String>,
    /// The time without a datagram after which the flow is closed, once standard input has ended.
    pub wait: Duration,
    /// True: print nothing about the flow itself.
    pub quiet: bool,
}

/// The remote endpoint of a flow.
#[derive(Debug)]
pub(crate) enum Remote {
    /// This host and port: `HOST:PORT`.
    To(String),
    /// The sender of the first datagram that arrives at this local endpoint.
    Listen(SocketAddr),
}

/// Opens the flow, and passes datagrams until the end.
///
/// # Errors
/// For the reasons in the module's documentation.
pub(crate) fn execute(dir: &RuntimeDir, open: &Open) -> Result<Exit, CommandError> {
    let options = options(open)?;
    // Starts the daemon if none runs.
    drop(daemon::connect(dir)?);
    let signals = Signals::register().map_err(|error| CommandError::io("signals", error))?;
    let (program, socket) = open_flow(dir, open, options)?;
    if !open.quiet {
        announce(&program, &socket);
    }
    let mut pipe = Pipe {
        program,
        socket,
        signals,
        quiet: open.quiet,
        waits_for_sender: matches!(open.remote, Remote::Listen(_)),
        to: None,
        unsent: Vec::new(),
        input_ended: false,
        last_event: Instant::now(),
        tally: Tally::default(),
    };
    let signal = pipe.run(open.wait)?;
    let Pipe { socket, tally, .. } = pipe;
    // The driver no longer sends what waits in the rings.
    drop(socket);
    let complete = tally.report();
    if let Some(signal) = signal {
        // Ends this process as the signal does without a handler.
        let _ = low_level::emulate_default_handler(signal);
    }
    Ok(match complete {
        true => Exit::Done,
        false => Exit::Error,
    })
}

/// The parameters of the flow. Fails if the host has no address.
fn options(open: &Open) -> Result<UdpOptions, CommandError> {
    let mut options = match &open.remote {
        Remote::To(host) => UdpOptions::to(resolve(host, open.local)?),
        Remote::Listen(at) => UdpOptions::at(*at),
    };
    if let Some(local) = open.local {
        options.local = match (local.ip().is_unspecified(), options.local.is_ipv6()) {
            (true, true) => SocketAddr::new(IpAddr::from(Ipv6Addr::UNSPECIFIED), local.port()),
            _ => local,
        };
    }
    options.contract.clone_from(&open.contract);
    Ok(options)
}

/// The first address of `HOST:PORT`, of the family of the local address if that is specified.
fn resolve(host: &str, local: Option<SocketAddr>) -> Result<SocketAddr, CommandError> {
    let what = || {
        format!(
            "--udp: `{}` is no HOST:PORT with an address",
            printable(host)
        )
    };
    let found = host.to_socket_addrs();
    let found: Vec<SocketAddr> = found
        .map_err(|error| CommandError::io(what(), error))?
        .collect();
    let local = local.filter(|local| !local.ip().is_unspecified());
    let fits = |to: &&SocketAddr| local.is_none_or(|local| local.is_ipv4() == to.is_ipv4());
    let first = found.iter().find(fits).or(found.first()).copied();
    first.ok_or_else(|| CommandError::io(what(), io::ErrorKind::NotFound.into()))
}

/// Attaches and opens the flow, with buffers for the MTU of the path.
fn open_flow(
    dir: &RuntimeDir,
    open: &Open,
    options: UdpOptions,
) -> Result<(Program, Socket), CommandError> {
    let mut buffers = Buffers::default();
    loop {
        let bytes = buffers.region_bytes().map_err(StackError::from)?;
        let program = Program::attach(dir, open.iface.as_deref(), 1, bytes)?;
        let options = UdpOptions {
            buffers,
            ..options.clone()
        };
        match program.open_udp(&options) {
            Err(StackError::SmallBuffers { chunk, packet }) if packet > chunk as usize => {
                let bytes = u32::try_from(packet.next_power_of_two());
                buffers.bytes = bytes.unwrap_or(u32::MAX);
            }
            other => return Ok((program, other?)),
        }
    }
}

fn announce(program: &Program, socket: &Socket) {
    let number = socket.id().unwrap_or_default();
    let link = printable(program.iface().unwrap_or_default());
    let local = socket.local();
    let remote = match socket.remote() {
        Some(remote) => format!("{local} > {remote}"),
        None => format!("{local}, for the first sender"),
    };
    let contract = match socket.contract() {
        "" | "none" => "best effort".to_string(),
        contract => printable(contract),
    };
    eprintln!("netnice: flow:{number} on {link}: udp {remote}: {contract}");
}

/// An open flow between standard input and standard output.
struct Pipe {
    program: Program,
    socket: Socket,
    signals: Signals,
    quiet: bool,
    /// True until a first datagram has named the remote endpoint.
    waits_for_sender: bool,
    /// The destination, on a flow to any host.
    to: Option<SocketAddr>,
    /// What was read from standard input and is not queued yet.
    unsent: Vec<u8>,
    input_ended: bool,
    /// When the last datagram arrived, or the driver returned the last packet.
    last_event: Instant,
    tally: Tally,
}

impl Pipe {
    /// Passes datagrams until the end. Returns the signal that ended it, if one did.
    fn run(&mut self, wait: Duration) -> Result<Option<i32>, CommandError> {
        let mut payload = vec![0; usize::from(u16::MAX)];
        loop {
            if let Some(signal) = self.signals.taken() {
                return Ok(Some(signal));
            }
            self.receive(&mut payload)?;
            self.send()?;
            self.collect()?;
            let all_sent = self.unsent.is_empty() && self.socket.under_way() == 0;
            let mut longest = LONGEST_SLEEP;
            if self.input_ended && all_sent {
                let left = wait.saturating_sub(self.last_event.elapsed());
                if left.is_zero() {
                    return Ok(None);
                }
                longest = longest.min(left);
            }
            let reads = !self.input_ended && self.unsent.is_empty() && !self.waits_for_sender;
            if self.sleep(reads, longest)? {
                self.read_input(&mut payload)?;
            }
            self.print_notifications();
        }
    }

    /// Writes the payloads that have arrived to standard output.
    fn receive(&mut self, payload: &mut [u8]) -> Result<(), CommandError> {
        loop {
            let received = match self.socket.try_recv(payload) {
                Ok(received) => received,
                Err(StackError::WouldBlock) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            if self.waits_for_sender {
                self.waits_for_sender = false;
                self.to = Some(received.from);
                if !self.quiet {
                    eprintln!("netnice: datagrams come from {}", received.from);
                }
            }
            if self.to.is_some_and(|sender| sender != received.from) {
                self.tally.other_senders += 1;
                continue;
            }
            self.last_event = Instant::now();
            write_bytes(&payload[..received.bytes])?;
        }
    }

    /// Queues what was read, as far as buffers are free.
    fn send(&mut self) -> Result<(), StackError> {
        let mut longest = self.socket.longest();
        while !self.unsent.is_empty() {
            // After the end of the flow no byte fits; the call then fails with the reason.
            let length = self.unsent.len().min(longest.max(1));
            let payload = &self.unsent[..length];
            let sent = match self.to {
                None => self.socket.try_send(payload),
                Some(to) => self.socket.try_send_to(payload, to),
            };
            match sent {
                Ok(_) => drop(self.unsent.drain(..length)),
                Err(StackError::WouldBlock) => return Ok(()),
                Err(StackError::UnknownNextHop(host)) => {
                    self.program.next_hop(host)?;
                }
                // The path MTU is smaller than that of the link.
                Err(StackError::TooLong { longest: fits, .. }) if (1..length).contains(&fits) => {
                    longest = fits;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Counts the packets that the driver has returned.
    fn collect(&mut self) -> Result<(), StackError> {
        loop {
            match self.socket.outcome() {
                Ok(Some(outcome)) => {
                    self.last_event = Instant::now();
                    self.tally.count(outcome.status);
                }
                Ok(None) | Err(StackError::WouldBlock) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Sleeps until there is something to do. True if standard input can be read.
    fn sleep(&self, reads: bool, longest: Duration) -> Result<bool, CommandError> {
        let timeout = match self.program.arm() {
            true => longest,
            false => Duration::ZERO,
        };
        let timeout = Timespec {
            tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let input = rustix::stdio::stdin();
        let mut fds = vec![
            PollFd::new(&self.program, PollFlags::IN),
            PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
        ];
        if reads {
            fds.push(PollFd::from_borrowed_fd(input, PollFlags::IN));
        }
        let woken = rustix::event::poll(&mut fds, Some(&timeout));
        let readable = fds.get(2).is_some_and(|input| !input.revents().is_empty());
        self.program.poll(|_| {});
        match woken {
            Ok(_) => Ok(readable),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(CommandError::io("poll", error.into())),
        }
    }

    /// Reads at most one payload from standard input.
    fn read_input(&mut self, payload: &mut [u8]) -> Result<(), CommandError> {
        let longest = self.socket.longest().clamp(1, payload.len());
        match rustix::io::read(rustix::stdio::stdin(), &mut payload[..longest]) {
            Ok(0) => {
                self.input_ended = true;
                self.last_event = Instant::now();
            }
            Ok(read) => self.unsent.extend_from_slice(&payload[..read]),
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            Err(error) => return Err(CommandError::io("standard input", error.into())),
        }
        Ok(())
    }

    fn print_notifications(&self) {
        while let Some(notification) = self.program.next_notification() {
            let text = match notification {
                FlowNotification::Link { up: false } => "the link is down".to_string(),
                FlowNotification::Link { up: true } => "the link is up".to_string(),
                FlowNotification::NextHop { mac: None, .. } => {
                    "the next hop does not answer".to_string()
                }
                FlowNotification::Degraded { why, .. } if why.is_empty() => {
                    "the contract is kept again".to_string()
                }
                FlowNotification::Degraded { why, .. } => format!("degraded: {}", printable(&why)),
                FlowNotification::Moving { to, .. } => {
                    format!(
                        "the route leads over {} now, and the flow moves there",
                        printable(&to)
                    )
                }
                FlowNotification::Undelivered { report, .. } => {
                    StackError::Undelivered(report).to_string()
                }
                _ => continue,
            };
            if !self.quiet {
                eprintln!("netnice: {text}");
            }
        }
    }
}

/// What happened to the datagrams.
#[derive(Default)]
struct Tally {
    no_link: u64,
    too_long: u64,
    refused: u64,
    other_senders: u64,
}

impl Tally {
    fn count(&mut self, status: Status) {
        match status {
            Status::DONE => {}
            Status::NO_LINK => self.no_link += 1,
            Status::TOO_LONG => self.too_long += 1,
            _ => self.refused += 1,
        }
    }

    /// Prints what was not sent, and what was dropped. True if everything was sent.
    fn report(&self) -> bool {
        let all = [
            (
                self.no_link,
                "were not sent: the link is down, or the next hop does not answer",
            ),
            (
                self.too_long,
                "were not sent: longer than the path or the contract permits",
            ),
            (self.refused, "were not sent: the driver refused them"),
        ];
        for (count, what) in all.iter().filter(|(count, _)| *count > 0) {
            eprintln!("netnice: {count} datagrams {what}");
        }
        if self.other_senders > 0 {
            let count = self.other_senders;
            eprintln!("netnice: {count} datagrams of other senders were dropped");
        }
        all.iter().all(|(count, _)| *count == 0)
    }
}

/// The signals that end the command.
struct Signals {
    /// Readable after a signal.
    woken: UnixStream,
    /// The last signal; 0 before the first one.
    last: Arc<AtomicUsize>,
}

impl Signals {
    /// Sets the handlers. Fails if a system call fails.
    fn register() -> io::Result<Signals> {
        let (woken, notify) = UnixStream::pair()?;
        let last = Arc::new(AtomicUsize::new(0));
        let again = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // The handlers run in this order: only a second signal finds `again` set.
            flag::register_conditional_shutdown(signal, 128 + signal, again.clone())?;
            flag::register(signal, again.clone())?;
            flag::register_usize(signal, last.clone(), signal.unsigned_abs() as usize)?;
            low_level::pipe::register(signal, notify.try_clone()?)?;
        }
        Ok(Signals { woken, last })
    }

    /// The signal that has arrived; `None` if none has.
    fn taken(&self) -> Option<i32> {
        let signal = self.last.load(Ordering::Acquire);
        i32::try_from(signal).ok().filter(|signal| *signal != 0)
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }
}

/// The longest sleep. A flow that was closed shows so in the ring at once, and the daemon's reason
/// may arrive later.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

//! The program `netnice-lab traffic bare-tcp`: netnice's TCP in one thread on the bare card,
//! without daemon, driver process, rings and contracts. A yardstick for what these cost. It sends
//! to a socket of the kernel, over IPv4, and reads only acknowledgements.
//!
//! Segments leave by AF_XDP one by one, or joined into long packets (`--joined`), by the same code
//! as in netnice-driver ([`Link`]). Checksums of received segments are not read. The program fails
//! if the interface cannot be opened, or if the connection is not open within 10 s.

use std::collections::VecDeque;
use std::net::{SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant as Clock};

use anyhow::{Context, Result, ensure};
use netnice_driver::frame::Mac;
use netnice_driver::link::{Link, Mode};
use netnice_driver::protocol::Transport;
use netnice_driver::template::{Sender, Sends, Template};
use netnice_kernel::direct::FrameMatch;
use netnice_tcp::buffer::Handle;
use netnice_tcp::config::Config;
use netnice_tcp::connection::{State, Transmit};
use netnice_tcp::endpoint::{ConnectionId, Endpoint};
use netnice_tcp::header::Header;
use netnice_tcp::time::Instant;

use super::run::{RunArgs, Tally, run_until_end};
use super::words;

/// The arguments of `netnice-lab traffic bare-tcp`.
#[derive(Debug, Clone, clap::Args)]
pub struct BareTcpArgs {
    /// The interface.
    #[arg(long)]
    iface: String,
    /// The local endpoint.
    #[arg(long)]
    local: SocketAddrV4,
    /// The listening socket.
    #[arg(long)]
    connect: SocketAddrV4,
    /// The Ethernet address of the next hop, as 12 hexadecimal digits.
    #[arg(long)]
    next_hop: String,
    /// Join segments into long packets.
    #[arg(long)]
    joined: bool,
    #[command(flatten)]
    run: RunArgs,
}

/// A process of this program: see the module.
#[derive(Debug, Clone)]
pub struct BareTcp {
    pub(super) args: Vec<String>,
}

impl BareTcp {
    /// Sends by this interface from one endpoint to another, whose host has that Ethernet address.
    pub fn new(iface: &str, (local, remote): (SocketAddr, SocketAddr), next_hop: Mac) -> BareTcp {
        let next_hop = next_hop.to_string().replace(':', "");
        let (local, remote) = (local.to_string(), remote.to_string());
        let options = ["--iface", iface, "--local", &local, "--connect", &remote];
        let mut args = words(&["bare-tcp"]);
        args.extend(words(&options));
        args.extend(words(&["--next-hop", &next_hop]));
        BareTcp { args }
    }

    /// Joins segments into long packets.
    pub fn joined(mut self) -> BareTcp {
        self.args.push("--joined".into());
        self
    }
}

/// Runs the sender until its end. Returns only if it cannot begin.
pub fn run(args: &BareTcpArgs) -> Result<()> {
    let mut sender = Bare::open(args)?;
    sender.open_connection()?;
    let tally = Arc::new(Tally::default());
    let counts = tally.clone();
    std::thread::spawn(move || {
        counts.await_go();
        loop {
            let sent = sender.work(true);
            counts.sent.fetch_add(sent, Relaxed);
        }
    });
    run_until_end(&args.run, &tally, || 0)
}

/// A connection with its buffers and its interface.
struct Bare {
    link: Link,
    _ingress: netnice_driver::link::Ingress,
    template: Template,
    endpoint: Endpoint,
    id: ConnectionId,
    remote: SocketAddr,
    /// Headers of Ethernet and IP.
    head: Vec<u8>,
    buffers: Vec<Box<[u8]>>,
    free: Vec<u32>,
    /// Longest packet of joined segments; 0: each leaves alone.
    most: usize,
    /// No segment leaves before.
    next: Instant,
    began: Clock,
}

impl Bare {
    fn open(args: &BareTcpArgs) -> Result<Bare> {
        let (mut link, mut ingress) = Link::open(&args.iface, Some(Mode::Native))?;
        ensure!(
            !args.joined || netnice_driver::datapath::FrameSink::joins(&link),
            "{} does not cut long packets",
            args.iface
        );
        let (local, remote) = (SocketAddr::V4(args.local), SocketAddr::V4(args.connect));
        ingress.start()?;
        let claim = FrameMatch::Endpoints {
            protocol: 6,
            local: (local.ip(), local.port()),
            remote: Some((remote.ip(), remote.port())),
        };
        ingress.add_match(&claim, None)?;
        let next_hop = u64::from_str_radix(&args.next_hop, 16).context("an Ethernet address")?;
        let [_, _, next_hop @ ..] = next_hop.to_be_bytes();
        let mac = link.interface().mac;
        let longest = 14 + link.interface().mtu as usize;
        let template = Template::new(&Sender {
            mac,
            next_hop: Some(Mac(next_hop)),
            longest,
            sends: Sends::Ports {
                transport: Transport::Tcp,
                local,
                remote: Some(remote),
            },
        })?;
        let mut head = Vec::new();
        etherparse::PacketBuilder::ethernet2(mac.0, next_hop)
            .ipv4(args.local.ip().octets(), args.connect.ip().octets(), 64)
            .tcp(local.port(), remote.port(), 0, 0)
            .write(&mut head, &[])?;
        head.truncate(TCP_AT);
        head[20] = 0x40;
        let began = Clock::now();
        let mut endpoint = Endpoint::new(local, [7; 16]);
        let config = Config {
            mss: (longest - TCP_AT - 20) as u32,
            ..Config::default()
        };
        let id = endpoint.connect(Instant::from_nanos(1), remote, config);
        link.flush()?;
        Ok(Bare {
            link,
            _ingress: ingress,
            template,
            endpoint,
            id: id.context("a connection of the same ends")?,
            remote,
            head,
            buffers: (0..BUFFERS).map(|_| vec![0xa5; 2048].into()).collect(),
            free: (0..BUFFERS).collect(),
            most: if args.joined { 65_535 } else { 0 },
            next: Instant::ZERO,
            began,
        })
    }

    /// Waits until the handshake is complete.
    fn open_connection(&mut self) -> Result<()> {
        let until = Clock::now() + Duration::from_secs(10);
        let is_open = |bare: &Bare| {
            let connection = bare.endpoint.connection(bare.id);
            connection.is_some_and(|connection| connection.state() == State::Established)
        };
        while !is_open(self) {
            ensure!(Clock::now() < until, "{} does not answer", self.remote);
            self.work(false);
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    /// Does everything that can be done now. Returns the bytes that were written.
    fn work(&mut self, writes: bool) -> u64 {
        let now = Instant::from_nanos(self.began.elapsed().as_nanos() as u64 + 1);
        let mut received: VecDeque<Header> = VecDeque::new();
        self.link.receive(64, |frame, _| {
            let segment = frame.get(TCP_AT..).unwrap_or_default();
            received.extend(Header::parse(segment).ok().map(|(header, _)| header));
            1
        });
        for header in received {
            self.endpoint
                .handle_segment(now, self.remote, &header, None, false);
        }
        self.endpoint.handle_timeout(now);
        while let Some(handle) = self.endpoint.poll_released() {
            self.free.push(handle.0);
        }
        let written = if writes { self.write() } else { 0 };
        // Segments that are to be joined gather.
        let gathers = self.most > 0 && now < self.next;
        self.next = match gathers {
            true => self.next,
            false => now + GATHER,
        };
        // Asking for room flushes what has gathered.
        let room = match gathers {
            true => 0,
            false => netnice_driver::datapath::FrameSink::room(&mut self.link),
        };
        for _ in 0..room {
            let Some((_, _, transmit)) = self.endpoint.poll_transmit(now) else {
                break;
            };
            self.send(&transmit);
            if let Some(token) = transmit.token {
                self.endpoint.handle_departures(self.id, &[token], now);
            }
        }
        // A busy interface is tried again in the next round.
        let _ = self.link.flush();
        written
    }

    /// Fills buffers, as long as some are free.
    fn write(&mut self) -> u64 {
        let (buffers, free) = (&mut self.buffers, &mut self.free);
        let filled = self.endpoint.update(self.id, |connection| {
            let mss = connection.mss();
            let mut filled = 0;
            while let Some(buffer) = free.pop() {
                // What a program does that writes: a copy.
                buffers[buffer as usize][..mss as usize].copy_from_slice(&PATTERN[..mss as usize]);
                if connection.write(Handle(buffer), mss).is_err() {
                    free.push(buffer);
                    break;
                }
                filled += u64::from(mss);
            }
            filled
        });
        filled.unwrap_or(0)
    }

    fn send(&mut self, transmit: &Transmit) {
        let payload = transmit.payload.map(|own| {
            let range = own.offset as usize..(own.offset + own.length) as usize;
            &self.buffers[own.handle.0 as usize][range]
        });
        let payload = payload.unwrap_or_default();
        let (template, head, header) = (&self.template, &self.head, &transmit.header);
        // A segment that the template refuses would be a fault of this program.
        let sent = self.link.send_segment(self.most, |frame| {
            let end = TCP_AT + header.length();
            let total = end + payload.len();
            frame[..TCP_AT].copy_from_slice(head);
            header.write(&mut frame[TCP_AT..end]);
            frame[end..total].copy_from_slice(payload);
            finish(&mut frame[..total]);
            template.check(&mut frame[..total])
        });
        debug_assert!(!matches!(sent, Some(Err(_))), "{sent:?}");
    }
}

/// Writes the length of IPv4, and both checksums.
fn finish(frame: &mut [u8]) {
    let put = |frame: &mut [u8], at: usize, value: u16| {
        frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
    };
    let length = frame.len();
    put(frame, 16, (length - 14) as u16);
    put(frame, 24, 0);
    let sum = fold(sum_of(&frame[14..TCP_AT]));
    put(frame, 24, !sum);
    put(frame, TCP_AT + 16, 0);
    let pseudo = sum_of(&frame[26..TCP_AT]) + 6 + (length - TCP_AT) as u64;
    let sum = fold(pseudo + sum_of(&frame[TCP_AT..]));
    put(frame, TCP_AT + 16, !sum);
}

/// The sum of the bytes as numbers of 32 bits, which folds to that of 16 bits (RFC 1071).
fn sum_of(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    let word = |word: &[u8; 4]| u64::from(u32::from_be_bytes(*word));
    words.iter().map(word).sum::<u64>() + word(&last)
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Offset of the header of TCP.
const TCP_AT: usize = 34;
const BUFFERS: u32 = 2048;
/// About the time of a packet of 64 KiB.
const GATHER: Duration = Duration::from_micros(20);
static PATTERN: [u8; 2048] = [0x5a; 2048];

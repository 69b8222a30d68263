//! This kernel as the TCP under test of a script.
//!
//! ```text
//!   namespace "tested"                          namespace "wire"
//!   program's sockets ── kernel's TCP ── eth0 ══ eth0 ── packet socket ── interpreter
//!   10.99.0.1                                         10.99.0.2, known to no kernel
//! ```
//! The second namespace has no address, so its kernel answers nothing. The first one's sysctls and
//! socket options are those of the script's `connection:` line.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use netnice_lab::sys;
use netnice_lab::world::Netns;
use netnice_scripts::{
    Action, Error, Icmp, Options, Peer, Segment, Sent, State, Tolerance, pattern_bytes,
};
use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};

/// The kernel's TCP, its program and its wire.
pub struct Kernel {
    start: Instant,
    options: Options,
    tested: Netns,
    /// Keeps the namespace.
    _wire: Netns,
    frames: File,
    listener: Option<Socket>,
    socket: Option<Socket>,
    local_port: u16,
    wrote: u32,
    read: u32,
    /// The last error of the socket, which the kernel reports once.
    error: Error,
}

impl Kernel {
    /// Makes the namespaces. Fails without root, iproute2 or ethtool.
    pub fn new(options: &Options) -> Result<Kernel> {
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let tested = Netns::create(&format!("tested{number}"))?;
        let wire = Netns::create(&format!("wire{number}"))?;
        let (own, other) = (tested.name(), wire.name());
        tested.ip(&format!(
            "link add name eth0 netns {own} type veth peer name eth0 netns {other}"
        ))?;
        tested.run("ethtool", "-K eth0 tso off gso off gro off tx off")?;
        wire.run("ethtool", "-K eth0 tso off gso off gro off tx off")?;
        let mtu = u32::from(options.mss) + 40;
        tested.ip(&format!("link set eth0 address {} mtu {mtu}", mac(OWN_MAC)))?;
        wire.ip(&format!("link set eth0 address {} up", mac(OTHER_MAC)))?;
        tested.ip("link set eth0 up")?;
        tested.ip(&format!("addr add {OWN}/24 dev eth0"))?;
        let other_mac = mac(OTHER_MAC);
        tested.ip(&format!(
            "neigh add {OTHER} lladdr {other_mac} dev eth0 nud permanent"
        ))?;
        set_sysctls(&tested, options)?;
        let frames = wire.enter(|| Ok(sys::open_frame_socket("eth0")?))?;
        let until = Instant::now() + Duration::from_secs(5);
        while tested.ip("link show eth0")?.contains("NO-CARRIER") && Instant::now() < until {
            thread::sleep(Duration::from_millis(10));
        }
        Ok(Kernel {
            start: Instant::now(),
            options: options.clone(),
            tested,
            _wire: wire,
            frames,
            listener: None,
            socket: None,
            local_port: LISTENER_PORT,
            wrote: 0,
            read: 0,
            error: Error::None,
        })
    }

    fn new_socket(&self) -> Result<Socket> {
        self.tested.enter(|| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
            let options = &self.options;
            socket.set_nonblocking(true)?;
            socket.set_tcp_nodelay(options.no_delay)?;
            let algorithm = if options.reno { "reno" } else { "cubic" };
            socket.set_tcp_congestion(algorithm.as_bytes())?;
            // Urgent data is read in line.
            socket.set_out_of_band_inline(true)?;
            if options.window < SMALL_WINDOW {
                socket.set_recv_buffer_size(options.window as usize)?;
            }
            if let Some(keepalive) = options.keepalive {
                let parameters = TcpKeepalive::new()
                    .with_time(keepalive.idle)
                    .with_interval(keepalive.interval)
                    .with_retries(keepalive.probes);
                socket.set_tcp_keepalive(&parameters)?;
            }
            socket.set_tcp_user_timeout(options.user_timeout.or(options.connect_timeout))?;
            Ok(socket)
        })
    }

    fn connect(&mut self) -> Result<()> {
        let socket = self.new_socket()?;
        socket.bind(&SockAddr::from(SocketAddrV4::new(OWN, 0)))?;
        match socket.connect(&SockAddr::from(SocketAddrV4::new(OTHER, OTHER_PORT))) {
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            result => result?,
        }
        let address = socket.local_addr()?.as_socket_ipv4();
        self.local_port = address.context("an IPv4 socket")?.port();
        self.socket = Some(socket);
        Ok(())
    }

    fn listen(&mut self) -> Result<()> {
        let socket = self.new_socket()?;
        socket.bind(&SockAddr::from(SocketAddrV4::new(OWN, LISTENER_PORT)))?;
        socket.listen(8)?;
        self.listener = Some(socket);
        Ok(())
    }

    fn accept(&mut self) -> Result<()> {
        settle();
        let listener = self.listener.take().context("no listener")?;
        let (socket, _) = listener.accept().context("no connection to accept")?;
        socket.set_nonblocking(true)?;
        self.socket = Some(socket);
        Ok(())
    }

    fn socket(&self) -> Result<&Socket> {
        self.socket.as_ref().context("no socket")
    }

    fn write(&mut self, length: u32) -> Result<()> {
        let bytes = pattern_bytes(self.wrote, length);
        let sent = self.socket()?.send(&bytes)?;
        anyhow::ensure!(sent == bytes.len(), "the kernel takes {sent} bytes");
        self.wrote += length;
        Ok(())
    }

    fn read(&mut self, length: u32) -> Result<()> {
        settle();
        let mut bytes = vec![0; length as usize];
        let mut count = 0;
        // A call ends at urgent data.
        while count < bytes.len() {
            count += match (&mut self.socket()?).read(&mut bytes[count..]) {
                Ok(more @ 1..) => more,
                result => anyhow::bail!("only {count} bytes can be read: {result:?}"),
            };
        }
        let expected = pattern_bytes(self.read, length);
        anyhow::ensure!(bytes == expected, "wrong bytes behind {}", self.read);
        self.read += length;
        Ok(())
    }

    /// The number of bytes that can be read; `None` at the end of the stream.
    fn readable(&self) -> Result<Option<usize>> {
        settle();
        let mut bytes = vec![MaybeUninit::uninit(); 1 << 20];
        match self.socket()?.peek(&mut bytes) {
            Ok(0) => Ok(None),
            Ok(count) => Ok(Some(count)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Some(0)),
            Err(error) => Err(error.into()),
        }
    }

    fn do_action(&mut self, action: &Action) -> Result<()> {
        match action {
            Action::Connect => self.connect()?,
            Action::Listen => self.listen()?,
            Action::Accept => self.accept()?,
            Action::Write(length) => self.write(*length)?,
            Action::WriteFails => match self.socket()?.send(&[0]) {
                Err(error) if error.kind() != ErrorKind::WouldBlock => {}
                result => anyhow::bail!("the write returns {result:?}"),
            },
            Action::Read(length) => self.read(*length)?,
            Action::Readable(expected) => {
                let readable = self.readable()?.unwrap_or(0);
                anyhow::ensure!(
                    readable == *expected as usize,
                    "{readable} bytes can be read"
                );
            }
            Action::ReadEnd => {
                let readable = self.readable()?;
                anyhow::ensure!(readable.is_none(), "the stream goes on: {readable:?}");
            }
            Action::Shutdown => self.socket()?.shutdown(std::net::Shutdown::Write)?,
            Action::Close => drop(self.socket.take().context("no socket")?),
            Action::Abort => {
                let socket = self.socket.take().context("no socket")?;
                socket.set_linger(Some(Duration::ZERO))?;
                self.error = Error::Aborted;
            }
            Action::NoDelay(on) => self.socket()?.set_tcp_nodelay(*on)?,
        }
        Ok(())
    }

    fn send_packet(&mut self, protocol: u8, tos: u8, payload: &[u8]) {
        let mut frame = [&OWN_MAC[..], &OTHER_MAC[..], &IPV4].concat();
        frame.extend(ip_header(OTHER, OWN, protocol, tos, payload.len()));
        frame.extend(payload);
        // A script is not worth more than its error: the segment is then missing.
        let _ = self.frames.write(&frame);
    }
}

impl Peer for Kernel {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn deliver(&mut self, segment: &Segment, marked: bool) {
        let mut bytes = segment.to_bytes();
        let mut pseudo = [OTHER.octets(), OWN.octets()].concat();
        pseudo.extend([0, TCP]);
        pseudo.extend((bytes.len() as u16).to_be_bytes());
        let sum = checksum(&[&pseudo, &bytes]);
        bytes[16..18].copy_from_slice(&sum);
        let tos = if marked { CONGESTION_EXPERIENCED } else { 0 };
        self.send_packet(TCP, tos, &bytes);
    }

    fn report(&mut self, icmp: Icmp, quoted: &Segment) {
        let (code, mtu) = match icmp {
            Icmp::Unreachable => (1, 0),
            Icmp::TooBig(mtu) => (4, mtu),
        };
        let mut message = vec![3, code, 0, 0, 0, 0];
        message.extend(mtu.to_be_bytes());
        message.extend(ip_header(OWN, OTHER, TCP, 0, 1000));
        message.extend(&quoted.to_bytes()[..8]);
        let sum = checksum(&[&message]);
        message[2..4].copy_from_slice(&sum);
        self.send_packet(ICMP, 0, &message);
    }

    fn next_sent(&mut self, until: Duration) -> Option<Sent> {
        loop {
            let left = until.saturating_sub(self.now());
            if !sys::readable(&self.frames, left) {
                if self.now() >= until {
                    return None;
                }
                continue;
            }
            let at = self.now();
            let mut frame = [0; 65_536];
            let length = self.frames.read(&mut frame).unwrap_or(0);
            if let Some(sent) = parse_frame(&frame[..length], at) {
                return Some(sent);
            }
        }
    }

    fn act(&mut self, action: &Action) -> Result<(), String> {
        self.do_action(action).map_err(|error| format!("{error:#}"))
    }

    fn state(&mut self) -> State {
        settle();
        let table = self
            .tested
            .enter(|| Ok(std::fs::read_to_string("/proc/thread-self/net/tcp")?))
            .unwrap_or_default();
        let mut listens = false;
        for line in table.lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let is_own = words[1].ends_with(&format!(":{:04X}", self.local_port));
            match (is_own, state_of(words[3])) {
                (true, Some(State::Listen)) => listens = true,
                (true, Some(state)) => return state,
                _ => {}
            }
        }
        if listens {
            State::Listen
        } else {
            State::Closed
        }
    }

    fn error(&mut self) -> Error {
        settle();
        let taken = self
            .socket
            .as_ref()
            .and_then(|socket| socket.take_error().ok()?);
        if let Some(error) = taken {
            self.error = match error.raw_os_error() {
                Some(libc::ECONNREFUSED) => Error::Refused,
                Some(libc::ETIMEDOUT) => Error::TimedOut,
                Some(libc::EHOSTUNREACH | libc::ENETUNREACH) => Error::Unreachable,
                _ => Error::Reset,
            };
        }
        self.error
    }

    fn tolerance(&self, wait: Duration) -> Tolerance {
        // Timers count in ticks of up to 4 ms, and begin with a measured round trip.
        Tolerance {
            early: Duration::from_millis(6) + wait / 50,
            late: Duration::from_millis(40) + wait / 15,
        }
    }

    fn ports(&self) -> (u16, u16) {
        (OTHER_PORT, self.local_port)
    }
}

fn set_sysctls(tested: &Netns, options: &Options) -> Result<()> {
    let flag = |on: bool| if on { "1" } else { "0" };
    let seconds = options.fin_wait_2.map_or(60, |time| time.as_secs());
    for (key, value) in [
        ("tcp_sack", flag(options.sack)),
        ("tcp_timestamps", flag(options.timestamps)),
        ("tcp_window_scaling", flag(options.scale.is_some())),
        ("tcp_ecn", flag(options.ecn)),
        ("tcp_fin_timeout", &seconds.to_string()),
        // RFC 6298 doubles from the first timeout on.
        ("tcp_syn_linear_timeouts", "0"),
        ("tcp_rfc1337", "1"),
        ("tcp_rmem", "4096 131072 6291456"),
    ] {
        tested.sysctl(&format!("net/ipv4/{key}"), value)?;
    }
    Ok(())
}

/// The kernel's numbers of states (include/net/tcp_states.h).
fn state_of(number: &str) -> Option<State> {
    Some(match u8::from_str_radix(number, 16).ok()? {
        1 => State::Established,
        2 => State::SynSent,
        3 | 12 => State::SynReceived,
        4 => State::FinWait1,
        5 => State::FinWait2,
        6 => State::TimeWait,
        7 => State::Closed,
        8 => State::CloseWait,
        9 => State::LastAck,
        10 => State::Listen,
        11 => State::Closing,
        _ => return None,
    })
}

/// Waits until the kernel has handled what was delivered.
fn settle() {
    thread::sleep(Duration::from_millis(2));
}

/// A frame that the kernel has sent, if it has a segment.
fn parse_frame(frame: &[u8], at: Duration) -> Option<Sent> {
    let packet = frame.get(14..)?;
    let header = usize::from(packet.first()? & 15) * 4;
    let length = usize::from(u16::from_be_bytes([*packet.get(2)?, *packet.get(3)?]));
    let is_tcp = frame[12..14] == IPV4 && *packet.get(9)? == TCP && frame[6..12] == OWN_MAC;
    is_tcp.then_some(())?;
    Some(Sent {
        at,
        segment: Segment::parse(packet.get(header..length)?)?,
        ecn_capable: packet[1] & CONGESTION_EXPERIENCED == ECT_0,
    })
}

fn ip_header(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, tos: u8, payload: usize) -> Vec<u8> {
    let mut header = vec![0x45, tos];
    header.extend((20 + payload as u16).to_be_bytes());
    header.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
    header.extend(from.octets());
    header.extend(to.octets());
    let sum = checksum(&[&header]);
    header[10..12].copy_from_slice(&sum);
    header
}

/// The checksum of RFC 1071. Every part but the last has an even length.
fn checksum(parts: &[&[u8]]) -> [u8; 2] {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let sum: u32 = words
        .map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)))
        .sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    // Folded to 16 bits.
    (!sum as u16).to_be_bytes()
}

fn mac(bytes: [u8; 6]) -> String {
    bytes.map(|byte| format!("{byte:02x}")).join(":")
}

static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

const OWN: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);
const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const OTHER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const LISTENER_PORT: u16 = 2000;
const OTHER_PORT: u16 = 3000;
const IPV4: [u8; 2] = [8, 0];
const TCP: u8 = 6;
const ICMP: u8 = 1;
/// The two bits of RFC 3168 in the IP header.
const CONGESTION_EXPERIENCED: u8 = 3;
const ECT_0: u8 = 2;
/// A script with a smaller window needs a smaller receive buffer.
const SMALL_WINDOW: u32 = 20_000;

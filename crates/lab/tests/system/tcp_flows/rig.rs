//! A client with a daemon and a program that sends and receives segments by hand, and a server
//! whose kernel is the peer.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use netnice_lab::experiment::bench::at;
use netnice_lab::process::{EVENT_TIMEOUT, Proc};
use netnice_lab::testbed::TestBed;
use netnice_lab::traffic::Commanded;
use netnice_lab::traffic::segments::{bytes_of, text_of};
use netnice_lab::wire::Tap;
use netnice_lab::world::{Family, Host};
use serde_json::Value;

use crate::users::command_as;

/// The flags of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flags(u8);

impl Flags {
    pub(super) const SYN: Flags = Flags(0x02);
    pub(super) const RST: Flags = Flags(0x04);
    pub(super) const ACK: Flags = Flags(0x10);
    pub(super) const SYN_ACK: Flags = Flags(0x12);
    pub(super) const FIN_ACK: Flags = Flags(0x11);

    /// True if all flags of `other` are set.
    pub(super) fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// The flags that matter here: ECN and PSH are dropped.
    fn of(byte: u8) -> Flags {
        Flags(byte & 0x17)
    }
}

/// A received segment.
#[derive(Debug)]
pub(super) struct Segment {
    macs: ([u8; 6], [u8; 6]),
    from: SocketAddr,
    to: SocketAddr,
    pub(super) flags: Flags,
    pub(super) sequence: u32,
    pub(super) acknowledged: u32,
    pub(super) payload: Vec<u8>,
}

impl Segment {
    fn parse(frame: &[u8]) -> Result<Segment> {
        let packet = SlicedPacket::from_ethernet(frame)?;
        let Some(TransportSlice::Tcp(tcp)) = &packet.transport else {
            bail!("no segment: {packet:?}");
        };
        let (from, to): (IpAddr, IpAddr) = match packet.net.as_ref() {
            Some(NetSlice::Ipv4(v4)) => {
                let header = v4.header();
                (
                    header.source_addr().into(),
                    header.destination_addr().into(),
                )
            }
            Some(NetSlice::Ipv6(v6)) => {
                let header = v6.header();
                (
                    header.source_addr().into(),
                    header.destination_addr().into(),
                )
            }
            _ => bail!("no packet of IP"),
        };
        let mac = |at: usize| Ok::<_, anyhow::Error>(<[u8; 6]>::try_from(&frame[at..at + 6])?);
        Ok(Segment {
            macs: (mac(6)?, mac(0)?),
            from: (from, tcp.source_port()).into(),
            to: (to, tcp.destination_port()).into(),
            flags: Flags::of(tcp.slice()[13]),
            sequence: tcp.sequence_number(),
            acknowledged: tcp.acknowledgment_number(),
            payload: tcp.payload().to_vec(),
        })
    }
}

/// This end of a connection that is made by hand.
pub(super) struct Connection {
    macs: ([u8; 6], [u8; 6]),
    ends: (SocketAddr, SocketAddr),
    /// The next sequence number to send, and the next one that is expected.
    pub(super) sequence: u32,
    pub(super) acknowledged: u32,
}

impl Connection {
    pub(super) fn new(
        own: ([u8; 6], SocketAddr),
        peer: ([u8; 6], SocketAddr),
        sequence: u32,
    ) -> Connection {
        Connection {
            macs: (own.0, peer.0),
            ends: (own.1, peer.1),
            sequence,
            acknowledged: 0,
        }
    }

    /// The end that answers a request.
    pub(super) fn answering(request: &Segment, sequence: u32) -> Connection {
        Connection {
            macs: (request.macs.1, request.macs.0),
            ends: (request.to, request.from),
            sequence,
            acknowledged: request.sequence.wrapping_add(1),
        }
    }

    /// A frame with the present numbers.
    pub(super) fn frame(&self, flags: Flags, payload: &[u8]) -> Result<Vec<u8>> {
        let builder = PacketBuilder::ethernet2(self.macs.0, self.macs.1);
        let builder = match (self.ends.0.ip(), self.ends.1.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => builder.ipv4(from.octets(), to.octets(), 64),
            (IpAddr::V6(from), IpAddr::V6(to)) => builder.ipv6(from.octets(), to.octets(), 64),
            _ => bail!("two families"),
        };
        let (from, to) = (self.ends.0.port(), self.ends.1.port());
        let mut builder = builder.tcp(from, to, self.sequence, 65_000);
        if flags.has(Flags::ACK) {
            builder = builder.ack(self.acknowledged);
        }
        if flags.has(Flags::SYN) {
            builder = builder.syn();
        }
        if flags.has(Flags(0x01)) {
            builder = builder.fin();
        }
        let mut frame = Vec::with_capacity(builder.size(payload.len()));
        builder.write(&mut frame, payload)?;
        Ok(frame)
    }
}

/// A capture of the segments of one port, on the server's device.
pub(crate) struct Capture {
    tap: Tap,
    file: PathBuf,
}

impl Capture {
    /// Captures the segments that `host` sends from or to a port, or receives. `folder` gets the
    /// file.
    pub(crate) fn start(host: &Host, folder: &Path, port: u16) -> Result<Capture> {
        let file = folder.join("segments.pcap");
        let device = &host.port().device;
        let tap = Tap::start_capturing(&host.ns, device, &file, move |flow| flow.has_port(port))?;
        Ok(Capture { tap, file })
    }

    /// Ends the capture. Fails if it is not complete, has no connection, or has a kernel's reset.
    pub(crate) fn end_without_reset(self, host: &Host) -> Result<()> {
        let all = self.end(host)?;
        ensure!(all.len() > 8, "{} segments", all.len());
        let is_reset = |(_, head): &(usize, &Vec<u8>)| is_reset_of_kernel(head);
        let resets: Vec<_> = all.iter().enumerate().filter(is_reset).collect();
        ensure!(
            resets.is_empty(),
            "resets among {} segments: {resets:02x?}",
            all.len()
        );
        Ok(())
    }

    /// Ends the capture, and returns how many segments with RST it has, of any sender. Fails if it
    /// is not complete, or has no connection.
    pub(crate) fn end_counting_resets(self, host: &Host) -> Result<usize> {
        let all = self.end(host)?;
        ensure!(all.len() > 8, "{} segments", all.len());
        let is_reset = |head: &&Vec<u8>| Flags::of(segment_of(head)[13]).has(Flags::RST);
        Ok(all.iter().filter(is_reset).count())
    }

    /// Ends the capture and returns the first bytes of each segment.
    fn end(self, host: &Host) -> Result<Vec<Vec<u8>>> {
        self.tap.stop(&host.ns)?.validate()?;
        let bytes = std::fs::read(&self.file)?;
        let mut rest = bytes.get(24..).context("the header of the file")?;
        let mut all = Vec::new();
        while rest.len() >= 16 {
            let length = u32::from_le_bytes(rest[8..12].try_into()?) as usize;
            all.push(rest[16..16 + length].to_vec());
            rest = &rest[16 + length..];
        }
        Ok(all)
    }
}

/// The segment in a frame whose IP header has no options.
fn segment_of(head: &[u8]) -> &[u8] {
    match head[12..14] {
        [0x08, 0x00] => &head[34..],
        _ => &head[54..],
    }
}

/// A kernel answers a segment by a reset without ACK, and a connection request by one with the
/// sequence number 0 (RFC 9293, section 3.5.2). The driver resets a connection by one that has
/// neither, when its program ends. (It resets those of a listener by one without ACK, as a kernel
/// does; no program ends during these captures while its peers are connected.)
fn is_reset_of_kernel(head: &[u8]) -> bool {
    let segment = segment_of(head);
    let flags = Flags::of(segment[13]);
    flags.has(Flags::RST) && (!flags.has(Flags::ACK) || segment[4..8] == [0; 4])
}

/// The bed; see the module.
pub(super) struct TcpBed {
    program: Option<Commanded>,
    _driver: Option<Proc>,
    copy: PathBuf,
    bed: TestBed,
}

impl TcpBed {
    /// A bed whose driver reaches the link in this mode, or in the best one. In a given mode all
    /// devices have their default offloads.
    pub(super) fn new(mode: Option<&str>) -> Result<TcpBed> {
        let bed = match mode {
            None => TestBed::new()?,
            Some(_) => TestBed::with_offloads()?,
        };
        bed.run_ok("link eth0 --rate 100mbit");
        let start = |mode| bed.start_driver("eth0", "100mbit", mode);
        let driver = mode.map(start).transpose()?;
        Ok(TcpBed {
            program: None,
            _driver: driver,
            copy: bed.copy_for_all("netnice-lab")?,
            bed,
        })
    }

    pub(super) fn client(&self) -> &Host {
        self.bed.world.client()
    }

    pub(super) fn server(&self) -> &Host {
        self.bed.world.server()
    }

    pub(super) fn runtime(&self) -> &Path {
        self.bed.netnice.runtime()
    }

    /// An endpoint of the client.
    pub(super) fn own(&self, family: Family, port: u16) -> SocketAddr {
        at(self.client(), family, port)
    }

    /// An endpoint of the server.
    pub(super) fn peer(&self, family: Family, port: u16) -> SocketAddr {
        at(self.server(), family, port)
    }

    /// Starts the program of the bed, in place of the earlier one.
    pub(super) fn start_program(&mut self) -> Result<()> {
        self.program = None;
        self.program = Some(self.another_program()?);
        Ok(())
    }

    /// The program of the bed.
    pub(super) fn program(&mut self) -> Result<&mut Commanded> {
        self.program.as_mut().context("no program was started")
    }

    /// Another program of root.
    pub(super) fn another_program(&self) -> Result<Commanded> {
        Commanded::segments(self.client(), ("eth0", self.runtime()), None)
    }

    /// A program of a user.
    pub(super) fn program_of(&self, uid: u32) -> Result<Commanded> {
        let through = (command_as(self.client(), uid), self.copy.as_path());
        Commanded::segments(self.client(), ("eth0", self.runtime()), Some(through))
    }

    /// Gives the program a command, and returns its answer.
    pub(super) fn ask(&mut self, line: &str) -> Result<Value> {
        self.program()?.ask(line, EVENT_TIMEOUT)
    }

    pub(super) fn send(&mut self, place: usize, frame: &[u8]) -> Result<()> {
        let line = format!("send {place} {}", text_of(frame));
        self.ask(&line).map(drop)
    }

    /// The next segment of a flow.
    pub(super) fn recv(&mut self, place: usize) -> Result<Segment> {
        let milliseconds = EVENT_TIMEOUT.as_millis() as u64;
        let next = self.try_recv(place, milliseconds)?;
        next.with_context(|| format!("flow {place}: no segment has arrived"))
    }

    /// The next segment of a flow, if one arrives in this time.
    pub(super) fn try_recv(&mut self, place: usize, milliseconds: u64) -> Result<Option<Segment>> {
        let line = format!("recv {place} {milliseconds}");
        let within = EVENT_TIMEOUT + Duration::from_secs(5);
        let answer = self.program()?.ask(&line, within)?;
        let frame = answer["frame"].as_str().map(bytes_of).transpose()?;
        frame.map(|frame| Segment::parse(&frame)).transpose()
    }

    /// Connects a socket of the server's kernel to a port of the client.
    pub(super) fn connect_from_server(
        &self,
        family: Family,
        port: u16,
    ) -> JoinHandle<Result<TcpStream>> {
        let (to, ns) = (self.own(family, port), self.server().ns.handle());
        std::thread::spawn(move || {
            ns.enter_thread()?;
            Ok(TcpStream::connect_timeout(&to, EVENT_TIMEOUT)?)
        })
    }

    /// Captures the segments of a port of the client.
    pub(super) fn capture(&self, port: u16) -> Result<Capture> {
        Capture::start(self.server(), self.bed.world.folder(), port)
    }

    /// Runs `netnice LINE`, and returns what it prints.
    pub(super) fn run_line(&self, line: &str) -> Result<String> {
        Ok(self.bed.netnice.run_line(line)?.ok()?.stdout)
    }

    /// The flows, as `netnice show` has them.
    pub(super) fn shown(&self) -> Result<Value> {
        Ok(self.bed.netnice.show()?["direct"].clone())
    }

    /// Kills the daemon and starts another one.
    pub(super) fn restart_daemon(&mut self) -> Result<()> {
        self.bed.netnice.kill_daemon();
        self.bed.netnice.start_daemon()
    }
}

/// An ICMP message "fragmentation needed" with this MTU that quotes a segment of 1500 bytes.
pub(super) fn too_long(
    from: SocketAddr,
    to: SocketAddr,
    sequence: u32,
    mtu: u16,
) -> Result<Vec<u8>> {
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (from.ip(), to.ip()) else {
        bail!("IPv4 only");
    };
    let mut message = vec![3, 4, 0, 0, 0, 0];
    message.extend(mtu.to_be_bytes());
    message.extend([0x45, 0, 0x05, 0xdc, 0, 0, 0x40, 0, 64, 6, 0, 0]);
    message.extend(source.octets());
    message.extend(destination.octets());
    message.extend(from.port().to_be_bytes());
    message.extend(to.port().to_be_bytes());
    message.extend(sequence.to_be_bytes());
    let words = message.chunks(2);
    let mut sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    message[2..4].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    Ok(message)
}

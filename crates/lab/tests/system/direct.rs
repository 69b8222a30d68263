//! Tests the driver's link on real packets: the link receives the registered packets and no others,
//! the packets that it sends arrive, every frame of its memory is accounted for, and XDP is
//! detached when the link is closed.

use std::io::Write;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use etherparse::{
    EtherType, Ethernet2Header, IpFragOffset, IpNumber, Ipv4Header, PacketBuilder, UdpHeader,
};
use netnice_core::units;
use netnice_driver::demux::{Demux, FlowNo, Match, Reassembly, Verdict};
use netnice_driver::frame::Mac;
use netnice_driver::frames::Holder;
use netnice_driver::link::{Ingress, Link, Mode};
use netnice_driver::protocol::Transport;
use netnice_driver::template::{Sender, Sends, Template};
use netnice_kernel::direct::FrameMatch;
use netnice_lab::experiment::bench::at;
use netnice_lab::process::EVENT_TIMEOUT;
use netnice_lab::sys;
use netnice_lab::world::{self, Family, Host, Pair, World};

const DIRECT: u16 = 5000;
const KERNEL: u16 = 5001;
const COUNT: usize = 200;

fn socket(host: &Host, family: Family, port: u16) -> Result<UdpSocket> {
    let socket = host
        .ns
        .enter(|| Ok(UdpSocket::bind(at(host, family, port))?))?;
    socket.set_read_timeout(Some(EVENT_TIMEOUT))?;
    Ok(socket)
}

fn open_link(host: &Host, mode: Mode) -> Result<(Link, Ingress)> {
    host.ns
        .enter(|| Ok(Link::open(&host.port().device, Some(mode))?))
}

fn mac(host: &Host) -> Result<Mac> {
    Ok(open_link(host, Mode::Fallback)?.0.interface().mac)
}

/// A classifier with one flow, which receives packets to the direct port.
fn demux(link: &Link, local: SocketAddr, group: Option<SocketAddr>) -> Result<Demux> {
    let transport = Transport::Udp;
    let mut demux = Demux::new(link.interface().mac);
    demux.insert(FlowNo(0), Reassembly::Complete)?;
    demux.add_match(FlowNo(0), &Match::Port { transport, local })?;
    if let Some(group) = group {
        demux.add_match(FlowNo(0), &Match::Group { transport, group })?;
    }
    Ok(demux)
}

/// Receives frames of the flow, until there are `count` or [`EVENT_TIMEOUT`] is over.
fn receive_frames(link: &mut Link, demux: &mut Demux, count: usize) -> Vec<Vec<u8>> {
    let (mut frames, until) = (Vec::new(), Instant::now() + EVENT_TIMEOUT);
    while frames.len() < count && Instant::now() < until {
        link.receive(64, |frame, _| {
            let verdict = demux.handle(frame, units::Instant(0));
            if let Verdict::One { end, .. } | Verdict::Several { end, .. } = verdict {
                frames.push(frame[..end].to_vec());
            }
            1
        });
    }
    frames
}

fn claim(local: SocketAddr) -> FrameMatch {
    FrameMatch::Endpoints {
        protocol: 17,
        local: (local.ip(), local.port()),
        remote: None,
    }
}

fn check_frames(link: &mut Link) -> Result<()> {
    let told = link.tally();
    if let Some(frames) = link.frames() {
        frames.invariants();
        let (free, filling) = (frames.count(Holder::Free), frames.count(Holder::Filling));
        ensure!(free + filling == frames.total(), "{frames:?}");
        ensure!(told == Some(frames.tally()), "{told:?}");
    }
    ensure!(link.counters().unexpected == 0, "{:?}", link.counters());
    Ok(())
}

fn has_xdp(host: &Host) -> Result<bool> {
    let shown = host
        .ns
        .ip(&format!("-d link show {}", host.port().device))?;
    Ok(shown.contains("prog/xdp"))
}

fn check_receiving(mode: Mode, family: Family) -> Result<()> {
    let world = World::pair(Pair::default())?;
    let (client, server) = (world.client(), world.server());
    let local = at(client, family, DIRECT);
    let (sender, kernels) = (
        socket(server, family, 7000)?,
        socket(client, family, KERNEL)?,
    );
    // A kernel socket holds the port, as for every direct flow.
    let _held = socket(client, family, DIRECT)?;
    let (mut link, mut ingress) = open_link(client, mode)?;
    let mut demux = demux(&link, local, None)?;
    ingress.add_match(&claim(local), Some(FlowNo(0)))?;
    ensure!(!has_xdp(client)?, "before the ingress starts");
    let elsewhere = ingress.start();
    ensure!(elsewhere.is_err(), "from another namespace");
    client.ns.enter(|| Ok(ingress.start()?))?;
    let mode_now = ingress.mode();
    ensure!(
        mode_now == mode,
        "{mode_now:?}: {:?}",
        ingress.why_not_native()
    );
    ensure!(
        has_xdp(client)? == (mode != Mode::Fallback),
        "while the ingress runs"
    );
    let mut buffer = [0; 100];
    for k in 0..COUNT {
        sender.send_to(format!("{k}").as_bytes(), local)?;
        // Packets for the kernel pass meanwhile.
        sender.send_to(b"kernel", at(client, family, KERNEL))?;
        ensure!(kernels.recv(&mut buffer)? == 6);
    }
    let frames = receive_frames(&mut link, &mut demux, COUNT);
    let headers = if family == Family::V4 { 42 } else { 62 };
    let told: Vec<_> = frames.iter().map(|frame| &frame[headers..]).collect();
    let sent: Vec<_> = (0..COUNT).map(|k| k.to_string()).collect();
    ensure!(
        told == sent.iter().map(String::as_bytes).collect::<Vec<_>>(),
        "{told:?}"
    );
    sender.send_to(&[9; 4000], local)?;
    ensure!(
        receive_frames(&mut link, &mut demux, 3).len() == 3,
        "parts of a datagram"
    );
    ensure!(
        mode == Mode::Fallback || demux.counters().unclaimed == 0,
        "what is not registered"
    );
    demux.invariants();
    // While the flow is suspended, its frames and fragments are dropped and counted; in fallback
    // mode they are received.
    link.suspend(FlowNo(0), units::Instant(u64::MAX));
    for _ in 0..3 {
        sender.send_to(&[9; 4000], local)?;
    }
    sender.send_to(b"kernel", at(client, family, KERNEL))?;
    ensure!(kernels.recv(&mut buffer)? == 6);
    link.suspend(FlowNo(0), units::Instant(0));
    sender.send_to(b"open", local)?;
    let (come, dropped) = match mode {
        Mode::Fallback => (10, 0),
        _ => (1, 9),
    };
    ensure!(
        receive_frames(&mut link, &mut demux, come).len() == come,
        "suspended"
    );
    let counted = link.dropped(FlowNo(0));
    ensure!(counted == dropped, "{counted} were counted");
    check_frames(&mut link)?;
    ingress.remove_match(&claim(local))?;
    ingress.stop()?;
    ensure!(!has_xdp(client)?, "after the ingress has stopped");
    client.ns.enter(|| Ok(ingress.start()?))?;
    drop((link, ingress));
    ensure!(!has_xdp(client)?, "when the link is gone");
    // The queue can be opened again.
    drop(open_link(client, mode)?);
    Ok(())
}

fn check_sending(mode: Mode) -> Result<()> {
    let world = World::pair(Pair::default())?;
    let (client, server) = (world.client(), world.server());
    let receiver = socket(server, Family::V4, 6000)?;
    let (mut link, _ear) = open_link(client, mode)?;
    let (own, next_hop) = (link.interface().mac, mac(server)?);
    let (local, remote) = (at(client, Family::V4, DIRECT), at(server, Family::V4, 6000));
    let template = Template::new(&Sender {
        mac: own,
        next_hop: Some(next_hop),
        longest: 1514,
        sends: Sends::Ports {
            transport: Transport::Udp,
            local,
            remote: Some(remote),
        },
    })?;
    let (from, to) = (client.port().v4.octets(), server.port().v4.octets());
    let mut buffer = [0; 2000];
    for k in 0..10 * COUNT {
        // Every third packet is forged: it has another source port.
        let port = DIRECT + u16::from(k % 3 == 2);
        let text = format!("{k:01000}");
        let mut frame = Vec::new();
        PacketBuilder::ethernet2(own.0, next_hop.0)
            .ipv4(from, to, 64)
            .udp(port, 6000)
            .write(&mut frame, text.as_bytes())?;
        let done = link.send(|room| {
            room[..frame.len()].copy_from_slice(&frame);
            template.check(&mut room[..frame.len()])
        });
        ensure!(done.context("room")?.is_ok() == (k % 3 != 2));
        if k % 7 == 6 {
            link.flush()?;
        }
        if k % 3 != 2 {
            link.flush()?;
            let length = receiver.recv(&mut buffer)?;
            ensure!(&buffer[..length] == text.as_bytes(), "datagram {k}");
        }
    }
    link.flush()?;
    let right = (0..10 * COUNT).filter(|k| k % 3 != 2).count();
    ensure!(
        link.counters().sent == right as u64,
        "{:?}",
        link.counters()
    );
    check_frames(&mut link)?;
    // A link that is down returns an error, and works when it is up again.
    client.ns.ip("link set eth0 down")?;
    let frame = [0; 60];
    let raw = Template::new(&Sender {
        mac: own,
        next_hop: None,
        longest: 1514,
        sends: Sends::EtherType(netnice_driver::protocol::EtherType::new(0x88b5)?),
    })?;
    let mut frame = frame;
    frame[..6].copy_from_slice(&next_hop.0);
    frame[6..12].copy_from_slice(&own.0);
    frame[12..14].copy_from_slice(&[0x88, 0xb5]);
    let done = link.send(|room| {
        room[..60].copy_from_slice(&frame);
        raw.check(&mut room[..60])
    });
    ensure!(done.context("room")?.is_ok());
    let down = link.flush().err().context("the link is down")?;
    ensure!(down.raw_os_error() == Some(libc::ENETDOWN), "{down}");
    client.ns.ip("link set eth0 up")?;
    let until = Instant::now() + EVENT_TIMEOUT;
    while link.flush().is_err() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
    link.flush()?;
    check_frames(&mut link)
}

/// Frames of one flow that arrive in several receive queues.
fn check_queues(mode: Mode) -> Result<()> {
    let world = World::pair(Pair::default())?;
    let (client, server) = (world.client(), world.server());
    for host in [client, server] {
        let device = &host.port().device;
        host.ns.run("ethtool", &format!("-L {device} rx 2 tx 2"))?;
    }
    let local = at(client, Family::V4, DIRECT);
    let _held = socket(client, Family::V4, DIRECT)?;
    let (mut link, mut ingress) = open_link(client, mode)?;
    let mut demux = demux(&link, local, None)?;
    ingress.add_match(&claim(local), Some(FlowNo(0)))?;
    client.ns.enter(|| Ok(ingress.start()?))?;
    // Each connection maps to one queue.
    let senders: Result<Vec<_>> = (0..32)
        .map(|k| socket(server, Family::V4, 7000 + k))
        .collect();
    let senders = senders?;
    let mut told = Vec::new();
    for round in 0..8 * COUNT / senders.len() {
        let before = told.len();
        for (k, sender) in senders.iter().enumerate() {
            sender.send_to(format!("{round} {k}").as_bytes(), local)?;
        }
        ensure!(sys::readable(link.fd(), EVENT_TIMEOUT), "round {round}");
        told.extend(receive_frames(&mut link, &mut demux, senders.len()));
        let come = told.len() - before;
        ensure!(come == senders.len(), "{come} frames in round {round}");
    }
    if mode == Mode::Native {
        let device = &client.port().device;
        let shown = client.ns.run("ethtool", &format!("-S {device}"))?;
        let of = |queue: u32| {
            let name = format!("rx_queue_{queue}_xdp_packets:");
            let line = shown
                .lines()
                .find_map(|line| line.trim().strip_prefix(&name));
            let count: u64 = line.context("a counter of the queue")?.trim().parse()?;
            anyhow::Ok(count)
        };
        let each = [of(0)?, of(1)?];
        ensure!(each.iter().all(|count| *count > 100), "{each:?}");
    }
    ensure!(link.counters().missed == 0, "{:?}", link.counters());
    check_frames(&mut link)
}

#[test]
fn the_driver_receives_from_all_queues() {
    world::begin().expect("a clean machine");
    for mode in [Mode::Native, Mode::Generic, Mode::Fallback] {
        check_queues(mode).unwrap_or_else(|e| panic!("{mode:?}: {e:#}"));
    }
}

/// Devices whose number of queues ethtool does not report. A tap device has room for 256 queues,
/// and one queue for each descriptor attached to it.
fn check_missing_queues() -> Result<()> {
    let world = World::pair(Pair::default())?;
    let ns = &world.client().ns;
    ns.ip("tuntap add dev tap0 mode tap multi_queue")?;
    ns.ip("link set tap0 up")?;
    let (mut link, _ear) = ns.enter(|| Ok(Link::open("tap0", Some(Mode::Generic))?))?;
    // No descriptor is attached, so there is only the first queue, with a whole ring of frames.
    let frames = link.tally().context("frames")?;
    ensure!(frames.filling == 2048, "{frames:?}");
    check_frames(&mut link)?;
    let several = |count: u32| {
        let queues = format!("numrxqueues {count} numtxqueues {count}");
        ns.ip(&format!("link add name all{count} {queues} type bridge"))?;
        let name = format!("all{count}");
        anyhow::Ok(ns.enter(|| Ok(Link::open(&name, Some(Mode::Generic))))?)
    };
    let (mut link, _ear) = several(3)??;
    let frames = link.tally().context("frames")?;
    ensure!(frames.filling == 3 * 2048, "{frames:?}");
    let why = several(65)?.err().context("too many queues")?.to_string();
    ensure!(why.contains("more than 64 receive queues"), "{why}");
    Ok(())
}

#[test]
fn missing_queues_get_no_frames() {
    world::begin().expect("a clean machine");
    check_missing_queues().unwrap_or_else(|e| panic!("{e:#}"));
}

/// A frame from the server to the client with a fragment of a UDP datagram of 1000 bytes to `port`:
/// at most 504 of its bytes, from byte `begins` on, which is 0 or 504.
fn fragment(world: &World, id: u16, port: u16, begins: usize) -> Result<Vec<u8>> {
    let (client, server) = (world.client(), world.server());
    let udp = UdpHeader {
        source_port: 7000,
        destination_port: port,
        length: 1000,
        checksum: 0,
    };
    let mut whole = udp.to_bytes().to_vec();
    whole.resize(1000, id as u8);
    let part = &whole[begins..(begins + 504).min(1000)];
    let ethernet = Ethernet2Header {
        source: mac(server)?.0,
        destination: mac(client)?.0,
        ether_type: EtherType::IPV4,
    };
    let (from, to) = (server.port().v4.octets(), client.port().v4.octets());
    let mut ip = Ipv4Header::new(part.len() as u16, 64, IpNumber::UDP, from, to)?;
    ip.identification = id;
    ip.dont_fragment = false;
    ip.more_fragments = begins == 0;
    ip.fragment_offset = IpFragOffset::try_new((begins / 8) as u16)?;
    ip.header_checksum = ip.calc_header_checksum();
    Ok([&ethernet.to_bytes()[..], &ip.to_bytes(), part].concat())
}

/// First fragments with forged ids: the other fragments are classified as without them.
fn check_fragments(mode: Mode) -> Result<()> {
    let world = World::pair(Pair::default())?;
    let (client, server) = (world.client(), world.server());
    let kernels = socket(client, Family::V4, KERNEL)?;
    let (mut link, mut ingress) = open_link(client, mode)?;
    let local = at(client, Family::V4, DIRECT);
    let mut demux = demux(&link, local, None)?;
    ingress.add_match(&claim(local), Some(FlowNo(0)))?;
    // A suspended flow, which would lose fragments that were classified as its own.
    ingress.add_match(&claim(at(client, Family::V4, DIRECT + 2)), Some(FlowNo(1)))?;
    client.ns.enter(|| Ok(ingress.start()?))?;
    link.suspend(FlowNo(1), units::Instant(u64::MAX));
    let mut raw_socket = server.ns.enter(|| Ok(sys::open_raw_socket("eth0")?))?;
    for (id, port, begins) in [
        (77, DIRECT, 0),
        (77, DIRECT + 2, 0),
        (77, DIRECT, 504),
        (78, KERNEL, 0),
        (78, DIRECT, 0),
        (78, KERNEL, 504),
    ] {
        raw_socket.write_all(&fragment(&world, id, port, begins)?)?;
    }
    let mut buffer = [0; 2000];
    let length = kernels.recv(&mut buffer).context("the kernel's datagram")?;
    ensure!(length == 992 && buffer[..length].iter().all(|byte| *byte == 78));
    let frames = receive_frames(&mut link, &mut demux, 3);
    let ours = [(77, DIRECT, 0), (77, DIRECT, 504), (78, DIRECT, 0)];
    let ours = ours.map(|(id, port, begins)| fragment(&world, id, port, begins));
    let ours: Result<Vec<_>> = ours.into_iter().collect();
    ensure!(frames == ours?, "{} frames came", frames.len());
    ensure!(link.dropped(FlowNo(1)) == 1, "the other first part");
    check_frames(&mut link)
}

#[test]
fn a_flow_cannot_attract_fragments_of_other_flows() {
    world::begin().expect("a clean machine");
    for mode in [Mode::Native, Mode::Generic] {
        check_fragments(mode).unwrap_or_else(|e| panic!("{mode:?}: {e:#}"));
    }
}

#[test]
fn the_driver_receives_registered_packets_only() {
    world::begin().expect("a clean machine");
    for mode in [Mode::Native, Mode::Generic, Mode::Fallback] {
        for family in [Family::V4, Family::V6] {
            check_receiving(mode, family).unwrap_or_else(|e| panic!("{mode:?} {family:?}: {e:#}"));
        }
    }
}

#[test]
fn sent_packets_arrive_and_forged_ones_do_not() {
    world::begin().expect("a clean machine");
    for mode in [Mode::Native, Mode::Fallback] {
        check_sending(mode).unwrap_or_else(|e| panic!("{mode:?}: {e:#}"));
    }
}

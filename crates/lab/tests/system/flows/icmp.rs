//! Tests that ICMP errors reach the flows that they quote, that the path MTU follows a router with
//! a smaller link, and that forged errors are bounded.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use netnice_lab::experiment::bench::at;
use netnice_lab::process::{EVENT_TIMEOUT, Proc};
use netnice_lab::world::{Family, Netns};
use socket2::{Domain, Protocol, Socket, Type};

use super::{FlowBed, await_some};

/// Starts `netnice flow open LINE`.
fn start(flow_bed: &FlowBed, line: &str) -> Result<Proc> {
    let words = ["flow", "open", "-w", "60s"];
    let words = words.into_iter().chain(line.split_whitespace());
    Proc::start(flow_bed.netnice.command(&words.collect::<Vec<_>>()))
}

/// The MTU of the flow with this remote port, as `netnice show` has it.
fn mtu_of(flow_bed: &FlowBed, port: u16) -> Result<Option<u64>> {
    let end = format!(":{port}");
    let flows = flow_bed.flows()?;
    let flow = flows.iter().find(|flow| {
        flow["speaks"]
            .as_str()
            .is_some_and(|text| text.ends_with(&end))
    });
    Ok(flow.and_then(|flow| flow["mtu"].as_u64()))
}

/// A host behind the server, over a link with a smaller MTU. The server is its router.
struct FarHost {
    ns: Netns,
    v4: Ipv4Addr,
    v6: IpAddr,
}

impl FarHost {
    fn new(flow_bed: &FlowBed, mtu: u32) -> Result<FarHost> {
        let (client, server) = (flow_bed.world.client(), flow_bed.world.server());
        let ns = Netns::create("far")?;
        server
            .ns
            .ip("link add name far0 type veth peer name far1")?;
        server
            .ns
            .ip(&format!("link set dev far1 netns {}", ns.name()))?;
        for (host, device, last) in [(&server.ns, "far0", 1), (&ns, "far1", 2)] {
            host.ip(&format!("link set dev {device} mtu {mtu} up"))?;
            host.ip(&format!("address add 10.99.0.{last}/24 dev {device}"))?;
            host.ip(&format!("address add fd99::{last}/64 dev {device} nodad"))?;
        }
        ns.ip("route add default via 10.99.0.1")?;
        ns.ip("-6 route add default via fd99::1")?;
        server.ns.sysctl("net/ipv4/ip_forward", "1")?;
        server.ns.sysctl("net/ipv6/conf/all/forwarding", "1")?;
        let router = server.port();
        client
            .ns
            .ip(&format!("route add 10.99.0.0/24 via {}", router.v4))?;
        client
            .ns
            .ip(&format!("-6 route add fd99::/64 via {}", router.v6))?;
        Ok(FarHost {
            ns,
            v4: Ipv4Addr::new(10, 99, 0, 2),
            v6: "fd99::2".parse()?,
        })
    }

    fn socket(&self, family: Family) -> Result<(UdpSocket, SocketAddr)> {
        let host = match family {
            Family::V4 => self.v4.into(),
            Family::V6 => self.v6,
        };
        let own = SocketAddr::new(host, 7000);
        let socket = self.ns.enter(|| Ok(UdpSocket::bind(own)?))?;
        socket.set_read_timeout(Some(Duration::from_millis(500)))?;
        Ok((socket, own))
    }
}

#[test]
fn the_path_mtu_follows_a_router_with_a_smaller_link() -> Result<()> {
    const MTU: u32 = 1300;
    let flow_bed = FlowBed::new()?;
    let far = FarHost::new(&flow_bed, MTU)?;
    for (family, headers) in [(Family::V4, 28), (Family::V6, 48)] {
        let (socket, to) = far.socket(family)?;
        let mut flow = start(&flow_bed, &format!("--udp {to}"))?;
        let line = "m".repeat(1400);
        // The first datagram is as long as the own link carries. The router drops it and reports
        // its MTU; datagrams of later lines arrive.
        let mut longest = 0;
        let until = std::time::Instant::now() + EVENT_TIMEOUT;
        while longest == 0 {
            ensure!(
                std::time::Instant::now() < until,
                "{family:?}: nothing arrives"
            );
            flow.write_line(&line)?;
            await_some("the path MTU is known", || {
                Ok((mtu_of(&flow_bed, 7000)? == Some(MTU.into())).then_some(()))
            })?;
            flow.write_line(&line)?;
            longest = socket.recv(&mut [0; 2000]).unwrap_or(0);
        }
        ensure!(longest == MTU as usize - headers, "{family:?}: {longest}");
        flow.kill();
        let told = flow.take_stderr();
        ensure!(told.contains("longer than the path MTU"), "{told}");
        await_some("the flow is closed", || {
            Ok(flow_bed.flows()?.is_empty().then_some(()))
        })?;
    }
    Ok(())
}

#[test]
fn a_closed_port_is_reported_to_its_flow_alone() -> Result<()> {
    let flow_bed = FlowBed::new()?;
    let server = flow_bed.world.server();
    for family in [Family::V4, Family::V6] {
        let (closed, open) = (at(server, family, 7100), at(server, family, 7101));
        let socket = server.ns.enter(|| Ok(UdpSocket::bind(open)?))?;
        socket.set_read_timeout(Some(EVENT_TIMEOUT))?;
        let mut refused = start(&flow_bed, &format!("--udp {closed}"))?;
        let mut heard = start(&flow_bed, &format!("--udp {open}"))?;
        refused.write_line("nobody listens")?;
        heard.write_line("somebody listens")?;
        let length = socket.recv(&mut [0; 100])?;
        ensure!(length == "somebody listens\n".len(), "{length}");
        let told = await_text(&mut refused, "has no socket at the port")?;
        ensure!(told.contains(&closed.to_string()), "{told}");
        heard.kill();
        let told = heard.take_stderr();
        ensure!(!told.contains("no socket"), "{told}");
    }
    Ok(())
}

/// Waits until a process has written `part` to standard error, and returns what it wrote.
fn await_text(process: &mut Proc, part: &str) -> Result<String> {
    let until = std::time::Instant::now() + EVENT_TIMEOUT;
    let mut told = String::new();
    while !told.contains(part) {
        ensure!(std::time::Instant::now() < until, "{part}: {told}");
        std::thread::sleep(super::POLL_INTERVAL);
        told += &process.take_stderr();
    }
    Ok(told)
}

/// An ICMP message "fragmentation needed" with this MTU that quotes a UDP packet of 1500 bytes.
fn forged(from: SocketAddr, to: SocketAddr, mtu: u16) -> Result<Vec<u8>> {
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (from.ip(), to.ip()) else {
        anyhow::bail!("IPv4 only");
    };
    let mut message = vec![3, 4, 0, 0, 0, 0];
    message.extend(mtu.to_be_bytes());
    message.extend([0x45, 0, 0x05, 0xdc, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    message.extend(source.octets());
    message.extend(destination.octets());
    message.extend(from.port().to_be_bytes());
    message.extend(to.port().to_be_bytes());
    message.extend([0; 4]);
    let words = message
        .chunks(2)
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    message[2..4].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    Ok(message)
}

#[test]
fn forged_errors_are_bounded_and_change_no_other_flow() -> Result<()> {
    let flow_bed = FlowBed::new()?;
    let server = flow_bed.world.server();
    let [attacked, other] = [7200, 7201].map(|port| at(server, Family::V4, port));
    let own = flow_bed.client_endpoint(5000);
    let mut flow = start(&flow_bed, &format!("--udp {attacked} --local {own}"))?;
    let _beside = start(&flow_bed, &format!("--udp {other}"))?;
    await_some("both are open", || {
        Ok((flow_bed.flows()?.len() == 2).then_some(()))
    })?;
    let raw = server.ns.enter(|| {
        Ok(Socket::new(
            Domain::IPV4,
            Type::RAW,
            Some(Protocol::ICMPV4),
        )?)
    })?;
    let send = |message: &[u8]| -> Result<()> {
        raw.send_to(message, &SocketAddr::new(own.ip(), 0).into())?;
        Ok(())
    };
    // Packets that no flow has sent.
    let no_flow = SocketAddr::new(own.ip(), 5001);
    send(&forged(no_flow, attacked, 600)?)?;
    send(&forged(own, SocketAddr::new(attacked.ip(), 7202), 600)?)?;
    // A packet of the flow, with an MTU that no path of IPv4 needs: the smallest holds.
    send(&forged(own, attacked, 68)?)?;
    await_some("the MTU is the smallest", || {
        Ok((mtu_of(&flow_bed, 7200)? == Some(576)).then_some(()))
    })?;
    ensure!(
        mtu_of(&flow_bed, 7201)? == Some(1500),
        "the other flow has its own"
    );
    // A flood of them: the daemon answers, and the program is told a part of them.
    let flood = forged(own, attacked, 68)?;
    for _ in 0..20_000 {
        send(&flood)?;
    }
    flow_bed.netnice.run_line("show")?.ok()?;
    ensure!(mtu_of(&flow_bed, 7200)? == Some(576));
    // The flow continues, with datagrams that fit.
    let socket = server.ns.enter(|| Ok(UdpSocket::bind(attacked)?))?;
    socket.set_read_timeout(Some(EVENT_TIMEOUT))?;
    flow.write_line(&"x".repeat(1400))?;
    let length = socket.recv(&mut [0; 2000]).context("no datagram")?;
    ensure!(length == 576 - 28, "{length}");
    Ok(())
}

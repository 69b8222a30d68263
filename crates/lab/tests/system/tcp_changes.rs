//! Tests connections of TCP on the direct path while the network changes below them: another
//! gateway, another Ethernet address of the peer, another MTU, an address that is removed and added
//! again, a route over another link. Data passes in both directions meanwhile; afterwards it goes
//! on, or the program gets one error with the reason.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::{Result, ensure};
use netnice_lab::experiment::bench::at;
use netnice_lab::process::EVENT_TIMEOUT;
use netnice_lab::testbed::{TestBed, await_some};
use netnice_lab::traffic::{self, DirectTcp, Running};
use netnice_lab::world::{Family, Pair};

/// An address of the server that is reached through a gateway.
const FAR: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
/// More than the buffers of both ends hold: so much passes only if it is acknowledged.
const PROGRESS: u64 = 16 << 20;

/// A client with two managed links to the server, and a connection that carries data.
struct ChangeBed {
    bed: TestBed,
    program: Running,
    /// Bytes that the peer has received and sent.
    passed: Arc<[AtomicU64; 2]>,
    /// Which directions carry data.
    directions: &'static [usize],
}

fn bed() -> Result<TestBed> {
    let bed = TestBed::with(Pair {
        cables: 2,
        ..Pair::default()
    })?;
    bed.run_ok("link eth0 --rate 1gbit");
    bed.run_ok("link eth1 --rate 1gbit");
    let server = &bed.world.server().ns;
    server.ip(&format!("addr add {FAR}/32 dev lo"))?;
    // A host that gets another Ethernet address says so, as routers do.
    server.sysctl("net/ipv4/conf/all/arp_notify", "1")?;
    route(&bed, "10.77.0.2 dev eth0")?;
    Ok(bed)
}

/// Routes the far address through a gateway.
fn route(bed: &TestBed, through: &str) -> Result<()> {
    let line = format!("route replace {FAR}/32 via {through}");
    bed.world.client().ns.ip(&line).map(drop)
}

/// Carries data over a socket of the kernel in these directions.
fn carry(stream: TcpStream, directions: &[usize], passed: &Arc<[AtomicU64; 2]>) -> Result<()> {
    let (mut reader, mut writer) = (stream.try_clone()?, stream);
    let (read, written) = (passed.clone(), passed.clone());
    std::thread::spawn(move || {
        let mut bytes = vec![0; 65_536];
        while let Ok(count @ 1..) = reader.read(&mut bytes) {
            read[0].fetch_add(count as u64, Relaxed);
        }
    });
    if !directions.contains(&1) {
        return Ok(());
    }
    std::thread::spawn(move || {
        let mut bytes = vec![0; 65_536];
        let mut position = 0;
        loop {
            netnice_lab::traffic::direct_tcp::fill(&mut bytes, position);
            let Ok(count) = writer.write(&bytes) else {
                return;
            };
            position += count as u64;
            written[1].fetch_add(count as u64, Relaxed);
        }
    });
    Ok(())
}

impl ChangeBed {
    /// A connection that the program opens to the far address.
    fn client(port: u16) -> Result<ChangeBed> {
        let bed = bed()?;
        let to = SocketAddr::new(IpAddr::V4(FAR), port);
        let listener = bed.world.server().ns.enter(|| Ok(TcpListener::bind(to)?))?;
        let program = DirectTcp::connect(to, bed.netnice.runtime());
        let program = program.endless_source().sink().with(&["--iface", "eth0"]);
        let program = traffic::start_now(bed.world.client(), &program)?;
        let (stream, _) = listener.accept()?;
        ChangeBed::with(bed, program, stream, &[0, 1])
    }

    /// A connection of the kernel that the program accepts. Without `both`, only the program sends.
    fn listener(port: u16, both: bool) -> Result<ChangeBed> {
        let bed = bed()?;
        let own = at(bed.world.client(), Family::V4, port);
        let program = DirectTcp::listen(own, bed.netnice.runtime()).endless_source();
        let program = match both {
            true => program.sink(),
            false => program,
        };
        let program = program.with(&["--iface", "eth0"]);
        let program = traffic::start_now(bed.world.client(), &program)?;
        let connect = || Ok(TcpStream::connect_timeout(&own, EVENT_TIMEOUT)?);
        let stream = bed.world.server().ns.enter(connect)?;
        let directions: &[usize] = if both { &[0, 1] } else { &[0] };
        ChangeBed::with(bed, program, stream, directions)
    }

    fn with(
        bed: TestBed,
        program: Running,
        stream: TcpStream,
        directions: &'static [usize],
    ) -> Result<ChangeBed> {
        let passed = Arc::default();
        carry(stream, directions, &passed)?;
        let bed = ChangeBed {
            bed,
            program,
            passed,
            directions,
        };
        bed.goes_on("at first")?;
        Ok(bed)
    }

    /// Waits until much data has passed in each direction.
    fn goes_on(&self, after: &str) -> Result<()> {
        for &direction in self.directions {
            let passed = || self.passed[direction].load(Relaxed);
            let until = passed() + PROGRESS;
            let what = format!("{after}: data in direction {direction}");
            await_some(&what, || Ok((passed() >= until).then_some(())))?;
        }
        Ok(())
    }

    fn client_ip(&self, line: &str) -> Result<()> {
        self.bed.world.client().ns.ip(line).map(drop)
    }

    fn server_ip(&self, line: &str) -> Result<()> {
        self.bed.world.server().ns.ip(line).map(drop)
    }

    /// The server's device at the first cable.
    fn device(&self) -> &str {
        &self.bed.world.server().port().device
    }

    /// Ends the program. No connection has failed, and no byte was wrong.
    fn end(self) -> Result<()> {
        let report = self.program.stop()?;
        ensure!(report.refused.is_empty(), "{:?}", report.refused);
        Ok(())
    }

    fn change_gateway(&self) -> Result<()> {
        let device = self.device();
        self.server_ip(&format!("addr add 10.77.0.3/24 dev {device}"))?;
        route(&self.bed, "10.77.0.3 dev eth0")?;
        self.goes_on("through another gateway")?;
        self.server_ip(&format!("addr del 10.77.0.3/24 dev {device}"))?;
        route(&self.bed, "10.77.0.2 dev eth0")?;
        self.goes_on("through the first gateway again")
    }

    fn change_mac(&self) -> Result<()> {
        for last in [8, 9] {
            let device = self.device();
            self.server_ip(&format!(
                "link set dev {device} address 02:00:00:00:77:0{last}"
            ))?;
            self.goes_on("with another Ethernet address")?;
        }
        Ok(())
    }

    fn change_mtu(&self) -> Result<()> {
        for mtu in [1300, 1500] {
            self.server_ip(&format!("link set dev {} mtu {mtu}", self.device()))?;
            self.client_ip(&format!("link set dev eth0 mtu {mtu}"))?;
            self.goes_on(&format!("with an MTU of {mtu}"))?;
        }
        Ok(())
    }

    fn remove_address(&self) -> Result<()> {
        let own = self.bed.world.client().port().v4;
        self.client_ip(&format!("addr del {own}/24 dev eth0"))?;
        // The daemon checks the routes 50 ms after a change.
        std::thread::sleep(Duration::from_millis(300));
        self.client_ip(&format!("addr add {own}/24 dev eth0"))?;
        route(&self.bed, "10.77.0.2 dev eth0")?;
        self.goes_on("with the address again")
    }
}

#[test]
fn a_client_goes_on_while_the_network_changes() -> Result<()> {
    let bed = ChangeBed::client(7401)?;
    bed.change_gateway()?;
    bed.change_mac()?;
    bed.change_mtu()?;
    bed.remove_address()?;
    bed.end()
}

#[test]
fn a_listener_goes_on_while_the_network_changes() -> Result<()> {
    let bed = ChangeBed::listener(7402, true)?;
    bed.change_mac()?;
    bed.change_mtu()?;
    bed.remove_address()?;
    // Its segments go where those of the peer come from, whatever the routes say.
    bed.client_ip("route replace 10.77.0.2/32 dev eth1")?;
    bed.goes_on("with a route over the other link")?;
    bed.end()
}

/// The peer gets another Ethernet address while its link is down. It sends nothing until it gets
/// something, so no segment shows the new address.
#[test]
fn a_listener_finds_a_silent_peer_at_its_new_ethernet_address() -> Result<()> {
    let bed = ChangeBed::listener(7403, false)?;
    let device = bed.device().to_owned();
    bed.server_ip(&format!("link set dev {device} down"))?;
    // Nothing is on its way any more.
    std::thread::sleep(Duration::from_millis(300));
    bed.server_ip(&format!("link set dev {device} address 02:00:00:00:77:08"))?;
    bed.server_ip(&format!("link set dev {device} up"))?;
    bed.goes_on("with another Ethernet address")?;
    bed.end()
}

#[test]
fn a_client_whose_route_leads_over_another_link_ends_with_one_error() -> Result<()> {
    let bed = ChangeBed::client(7404)?;
    route(&bed.bed, "10.77.1.2 dev eth1")?;
    await_some("no flow", || {
        let shown = bed.bed.shown();
        let none = shown["direct"].as_array().is_none_or(Vec::is_empty);
        Ok(none.then_some(()))
    })?;
    let report = bed.program.stop()?;
    // Each of the two directions fails, with the same error.
    let reasons: Vec<&String> = report.refused.keys().collect();
    ensure!(reasons.len() == 1, "{reasons:?}");
    ensure!(reasons[0].contains("closed"), "{reasons:?}");
    Ok(())
}

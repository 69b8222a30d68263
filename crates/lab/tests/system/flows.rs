//! Tests flows of the direct path at the daemon: ports, guarantees, and the time for which a flow
//! exists, with the real programs, daemon, driver and kernel.

mod channels;
mod events;
mod holds;
mod icmp;
mod moves;
mod policy;
mod queues;
mod resume;
mod shell;

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context, Result};
use netnice_lab::experiment::bench::at;
use netnice_lab::testbed::await_some;
use netnice_lab::traffic::{self, Direct, Running};
use netnice_lab::world::{Family, Netnice, Pair, World};
use serde_json::Value;

/// A client with a daemon and a managed link of 100 Mbit/s.
struct FlowBed {
    netnice: Netnice,
    world: World,
}

impl FlowBed {
    fn new() -> Result<FlowBed> {
        let world = World::pair(Pair::default())?;
        let netnice = world.netnice("client")?;
        netnice.run_line("link eth0 --rate 100mbit")?;
        Ok(FlowBed { netnice, world })
    }

    /// A client with two managed links to the server. The route of [`FAR`] leads over the first.
    fn with_two_links() -> Result<FlowBed> {
        let world = World::pair(Pair {
            cables: 2,
            ..Pair::default()
        })?;
        let netnice = world.netnice("client")?;
        netnice.run_line("link eth0 --rate 100mbit")?;
        netnice.run_line("link eth1 --rate 100mbit")?;
        world.server().ns.ip("addr add 10.99.0.1/32 dev lo")?;
        let flow_bed = FlowBed { netnice, world };
        flow_bed.route_over(0)?;
        Ok(flow_bed)
    }

    /// Moves the route of [`FAR`] to a link.
    fn route_over(&self, link: usize) -> Result<()> {
        let route = format!("route replace 10.99.0.1/32 via 10.77.{link}.2 dev eth{link}");
        self.world.client().ns.ip(&route).map(drop)
    }

    fn client_endpoint(&self, port: u16) -> SocketAddr {
        at(self.world.client(), Family::V4, port)
    }

    fn source(&self, port: u16, contract: &str) -> Result<Running> {
        let to = at(self.world.server(), Family::V4, 9);
        let program = Direct::source(self.client_endpoint(port), to).contract(contract);
        traffic::start_waiting(self.world.client(), &program.by(self.netnice.runtime()))
    }

    fn flows(&self) -> Result<Vec<Value>> {
        let shown = self.netnice.show()?;
        Ok(shown["direct"].as_array().cloned().unwrap_or_default())
    }

    /// Binds a socket of the kernel in the client's namespace.
    fn bind(&self, at: SocketAddr) -> Result<std::io::Result<UdpSocket>> {
        self.world.client().ns.enter(|| Ok(UdpSocket::bind(at)))
    }
}

/// An address of the server that can be reached over both links.
const FAR: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(10, 99, 0, 1)), 9);

/// Parses a rate of tc into bit/s.
fn bits(rate: &str) -> Result<u64> {
    let scales = [
        ("Gbit", 1_000_000_000),
        ("Mbit", 1_000_000),
        ("Kbit", 1_000),
        ("bit", 1),
    ];
    let read = scales.iter().find_map(|(unit, scale)| {
        let number: u64 = rate.strip_suffix(unit)?.parse().ok()?;
        Some(number * scale)
    });
    read.with_context(|| format!("{rate} is no rate of tc"))
}

#[test]
fn flows_and_sockets_exclude_each_other_from_a_port() -> Result<()> {
    let flow_bed = FlowBed::new()?;
    let program = flow_bed.source(5000, "up 10mbit")?;
    let clash = flow_bed
        .bind(flow_bed.client_endpoint(5000))?
        .expect_err("a flow has it");
    assert_eq!(clash.kind(), ErrorKind::AddrInUse);
    let [flow] = &flow_bed.flows()?[..] else {
        panic!("{:?}", flow_bed.flows());
    };
    assert_eq!(flow["pid"], program.pid());
    assert_eq!(flow["contract"]["up"], 10_000_000);
    let mode = flow["mode"].as_str().expect("a mode").to_owned();
    let number = flow["flow"].as_str().expect("a number").to_owned();
    let told = flow_bed
        .netnice
        .run_line(&format!("explain {number}"))?
        .stdout;
    for word in ["up 10mbit", "sent", "received", &mode] {
        assert!(told.contains(word), "{word}: {told}");
    }
    let told = flow_bed
        .netnice
        .run_line(&format!("explain pid:{}", program.pid()))?;
    assert!(told.stdout.contains(&number), "{}", told.stdout);
    let socket = flow_bed
        .bind(flow_bed.client_endpoint(5001))?
        .expect("it is free");
    let clash = flow_bed
        .source(5001, "up 1mbit")
        .err()
        .expect("a socket has it");
    let clash = format!("{clash:#}");
    assert!(clash.contains("a socket of this host has it"), "{clash}");
    drop(socket);
    drop(program);
    await_some("the port is free", || {
        Ok(flow_bed.bind(flow_bed.client_endpoint(5000))?.ok())
    })?;
    assert!(flow_bed.flows()?.is_empty());
    Ok(())
}

#[test]
fn both_paths_share_the_capacity_of_one_link() -> Result<()> {
    let flow_bed = FlowBed::new()?;
    let program = flow_bed.source(5000, "min 60mbit")?;
    let much = flow_bed.source(5001, "min 50mbit").err().expect("too much");
    let much = format!("{much:#}");
    for word in ["100 Mbit/s", "min 60mbit", "would fit"] {
        assert!(much.contains(word), "{word}: {much}");
    }
    let pid = program.pid().to_string();
    let target = format!("pid:{pid}");
    let set = flow_bed.netnice.run(&["set", &target, "--min", "50mbit"])?;
    assert_eq!(set.status, 3, "{}", set.stderr);
    assert!(set.stderr.contains("direct:eth0"), "{}", set.stderr);
    let unmanage = flow_bed.netnice.run(&["link", "eth0", "--unmanage"])?;
    assert_eq!(unmanage.status, 3, "{}", unmanage.stderr);
    // The classes have the link's rate less the driver's.
    let classes = || -> Result<u64> {
        let classes = flow_bed.world.client().ns.tc("class show dev eth0")?;
        let top = classes.lines().find(|line| line.contains(" root "));
        let mut words = top.context("a class at the top")?.split(' ');
        let rate = words.by_ref().skip_while(|word| *word != "rate").nth(1);
        bits(rate.context("a rate")?)
    };
    let beside = classes()?;
    assert!((1..=40_000_000).contains(&beside), "{beside}");
    let told = flow_bed.netnice.run_line("explain direct:eth0")?.stdout;
    for word in ["of the link", "for what was sent", " free, "] {
        assert!(told.contains(word), "{word}: {told}");
    }
    drop(program);
    await_some("all of it is the classes' again", || {
        Ok((classes()? > 99_000_000).then_some(()))
    })
}

#[test]
fn flows_outlive_the_daemon_and_end_with_their_program() -> Result<()> {
    let mut flow_bed = FlowBed::new()?;
    let program = flow_bed.source(5000, "min 30mbit")?;
    let before = flow_bed.flows()?;
    flow_bed.netnice.kill_daemon();
    flow_bed.netnice.start_daemon()?;
    let after = await_some("the flow is known again", || {
        let flows = flow_bed.flows()?;
        Ok((!flows.is_empty()).then_some(flows))
    })?;
    for field in ["flow", "pid", "speaks", "contract", "station", "degraded"] {
        assert_eq!(before[0][field], after[0][field], "{field}");
    }
    let clash = flow_bed
        .bind(flow_bed.client_endpoint(5000))?
        .expect_err("it is held again");
    assert_eq!(clash.kind(), ErrorKind::AddrInUse);
    let target = format!("pid:{}", program.pid());
    let much = flow_bed.netnice.run(&["set", &target, "--min", "80mbit"])?;
    assert_eq!(much.status, 3, "{}", much.stderr);
    assert!(much.stderr.contains("direct:eth0"), "{}", much.stderr);
    drop(program);
    await_some("the flow ends", || {
        Ok(flow_bed.flows()?.is_empty().then_some(()))
    })?;
    await_some("the port is free", || {
        Ok(flow_bed.bind(flow_bed.client_endpoint(5000))?.ok())
    })?;
    Ok(())
}

#[test]
fn flows_follow_changes_of_next_hop_and_mtu() -> Result<()> {
    let flow_bed = FlowBed::new()?;
    let _program = flow_bed.source(5000, "up 10mbit")?;
    let server = flow_bed.world.server();
    let device = &server.port().device;
    let known = server.ns.ip(&format!("-o link show dev {device}"))?;
    let first = flow_bed.flows()?[0]["station"].clone();
    let first = first.as_str().expect("a next hop").to_owned();
    assert!(known.contains(&first), "{first} is not of {known}");
    let other = "02:00:00:00:77:07";
    let station = server.port().v4;
    let client = &flow_bed.world.client().ns;
    client.ip(&format!(
        "neigh replace {station} lladdr {other} dev eth0 nud reachable"
    ))?;
    await_some("the next hop is another", || {
        Ok((flow_bed.flows()?[0]["station"] == other).then_some(()))
    })?;
    client.ip("link set dev eth0 mtu 1400")?;
    await_some("the MTU is another", || {
        Ok((flow_bed.flows()?[0]["mtu"] == 1400).then_some(()))
    })
}

/// The administrator has set the address of a next hop. It stays in use, although nobody answers
/// there.
#[test]
fn a_fixed_next_hop_stays() -> Result<()> {
    let flow_bed = FlowBed::new()?;
    let fixed = "02:00:00:00:77:07";
    let station = flow_bed.world.server().port().v4;
    let client = &flow_bed.world.client().ns;
    client.ip(&format!(
        "neigh replace {station} lladdr {fixed} dev eth0 nud permanent"
    ))?;
    let _program = flow_bed.source(5000, "up 10mbit")?;
    assert_eq!(flow_bed.flows()?[0]["station"], fixed);
    // The daemon confirms the use of a next hop within a second of its start, and each 5 s.
    std::thread::sleep(Duration::from_secs(7));
    let entry = client.ip(&format!("neigh show to {station}"))?;
    assert!(entry.contains("PERMANENT"), "{entry}");
    assert_eq!(flow_bed.flows()?[0]["station"], fixed);
    Ok(())
}

#[test]
fn clearing_all_leaves_no_driver() -> Result<()> {
    let flow_bed = FlowBed::new()?;
    let program = flow_bed.source(5000, "up 10mbit")?;
    let socket = flow_bed.netnice.runtime().join("drivers/eth0.sock");
    assert!(socket.exists());
    flow_bed.netnice.run_line("clear --all")?;
    await_some("the driver ends", || Ok((!socket.exists()).then_some(())))?;
    drop(program);
    Ok(())
}

/// Interval between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

//! Tests that a flow receives from the queues that its interface gets while it is open.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use netnice_lab::testbed::skip;
use netnice_lab::traffic::{self, Direct};
use netnice_lab::world::Family;

use super::{FlowBed, at};

/// Senders at the server. The kernel distributes their packets over its queues by their ports.
const SENDERS: u64 = 32;

/// Sends one datagram from each of many ports in turn, for 0.5 s. Returns how many were sent.
fn send_from_many(flow_bed: &FlowBed, port: u16) -> Result<u64> {
    let to = flow_bed.client_endpoint(port);
    let from = at(flow_bed.world.server(), Family::V4, 0);
    let sockets: Result<Vec<UdpSocket>> = flow_bed
        .world
        .server()
        .ns
        .enter(|| (0..SENDERS).map(|_| Ok(UdpSocket::bind(from)?)).collect());
    let (sockets, begin, mut sent) = (sockets?, Instant::now(), 0);
    while begin.elapsed() < Duration::from_millis(500) {
        for socket in &sockets {
            socket.send_to(&[0; 100], to)?;
            sent += 1;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(sent)
}

/// The packets that the driver has received for the flow.
fn received(flow_bed: &FlowBed) -> Result<u64> {
    let flows = flow_bed.flows()?;
    let number = flows.first().context("a flow")?["flow"].as_str();
    let told = flow_bed
        .netnice
        .run_line(&format!("explain {}", number.context("a number")?))?
        .stdout;
    let mut lines = told.lines().map(str::trim);
    let line = lines.find_map(|line| line.strip_prefix("received"));
    let count = line.context("a count")?.split_whitespace().next();
    Ok(count.context("a number")?.parse()?)
}

#[test]
fn a_flow_receives_from_queues_that_the_interface_gets_later() -> Result<()> {
    let flow_bed = FlowBed::new()?;
    let (client, server) = (flow_bed.world.client(), flow_bed.world.server());
    let (device, peer) = (&client.port().device, &server.port().device);
    let queues = |count: u32| {
        client
            .ns
            .run("ethtool", &format!("-L {device} rx {count}"))?;
        server.ns.run("ethtool", &format!("-L {peer} tx {count}"))
    };
    if queues(2).is_err() {
        skip("the kernel makes pairs of interfaces with one queue here");
        return Ok(());
    }
    server.ns.run("ethtool", &format!("-L {peer} tx 1"))?;
    client.ns.run("ethtool", &format!("-L {device} rx 1"))?;
    let sink = Direct::sink(flow_bed.client_endpoint(5000)).by(flow_bed.netnice.runtime());
    let sink = traffic::start_now(client, &sink)?;
    let sent = send_from_many(&flow_bed, 5000)?;
    ensure!(received(&flow_bed)? == sent, "by one queue");
    queues(2)?;
    // The driver looks for new queues each second.
    let until = Instant::now() + netnice_lab::process::EVENT_TIMEOUT;
    loop {
        let before = received(&flow_bed)?;
        let sent = send_from_many(&flow_bed, 5000)?;
        let got = received(&flow_bed)? - before;
        if got == sent {
            break;
        }
        ensure!(Instant::now() < until, "{got} of {sent} by two queues");
    }
    let report = sink.stop()?;
    ensure!(report.refused.is_empty(), "{:?}", report.refused);
    Ok(())
}

//! Tests of the policy's settings for direct flows, on real packets: with `discard`, drivers
//! discard received frames that match a pattern; with `direct_users = false`, only privileged users
//! may open flows.

use std::net::UdpSocket;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use netnice_lab::experiment::bench::at;
use netnice_lab::process::EVENT_TIMEOUT;
use netnice_lab::testbed::TestBed;
use netnice_lab::traffic::{self, Direct};
use netnice_lab::world::Family;

use super::{FlowBed, await_some};
use crate::users::{ANN, traffic_as};

/// Frames from the port `UNWANTED` are discarded, those from `WANTED` are not.
const UNWANTED: u16 = 7001;
const WANTED: u16 = 7000;
const COUNT: u64 = 200;

/// Writes and loads a policy.
fn load_policy(flow_bed: &FlowBed, lines: &str) -> Result<()> {
    let path = flow_bed.world.folder().join("client.policy.toml");
    let link = "[[link]]\nname = \"eth0\"\nrate = \"100mbit\"\n";
    std::fs::write(path, format!("{link}{lines}"))?;
    flow_bed.netnice.run_line("reload")?;
    Ok(())
}

/// A UDP socket of the kernel on the server, bound to `port`.
fn sender(flow_bed: &FlowBed, port: u16) -> Result<UdpSocket> {
    let server = flow_bed.world.server();
    let own = at(server, Family::V4, port);
    server.ns.enter(|| Ok(UdpSocket::bind(own)?))
}

#[test]
fn frames_that_match_a_discard_pattern_reach_no_flow_and_are_counted() -> Result<()> {
    let flow_bed = FlowBed::new()?;
    // IPv4, UDP, from port 7001.
    load_policy(&flow_bed, "discard = [\"12=0800 23=11 34=1b59\"]\n")?;
    let sink = Direct::sink(flow_bed.client_endpoint(5000));
    let sink = sink.by(flow_bed.netnice.runtime());
    let sink = traffic::start_now(flow_bed.world.client(), &sink)?;
    let (wanted, unwanted) = (sender(&flow_bed, WANTED)?, sender(&flow_bed, UNWANTED)?);
    let send = |from: &UdpSocket| from.send_to(&[7; 100], flow_bed.client_endpoint(5000));
    let counted = |what: &str, count: u64| {
        await_some(what, || {
            let flow = flow_bed.flows()?;
            let counters = &flow.first().context("a flow")?["counters"];
            let got = counters["delivered"].as_u64();
            ensure!(got <= Some(count), "{counters}");
            Ok((got == Some(count) && counters["received"] == count).then_some(()))
        })
    };
    let discarded = |count: u64| {
        let row = format!("{count} received frames: pattern");
        await_some(&row, || {
            let page = flow_bed.netnice.run_line("explain direct:eth0")?.stdout;
            Ok(page.contains(&row).then_some(()))
        })
    };
    for _ in 0..COUNT {
        send(&wanted)?;
        send(&unwanted)?;
        std::thread::sleep(Duration::from_micros(200));
    }
    counted("what is wanted is delivered", COUNT)?;
    discarded(COUNT)?;
    // The driver does not discard frames for the kernel.
    let socket = flow_bed.bind(flow_bed.client_endpoint(5001))??;
    socket.set_read_timeout(Some(EVENT_TIMEOUT))?;
    unwanted.send_to(b"to the kernel", flow_bed.client_endpoint(5001))?;
    let length = socket.recv(&mut [0; 100])?;
    ensure!(length == b"to the kernel".len());
    // An invalid pattern changes nothing.
    let wrong = load_policy(&flow_bed, "discard = [\"port 7001\"]\n").expect_err("no pattern");
    let wrong = format!("{wrong:#}");
    ensure!(
        wrong.contains("policy.toml:4") && wrong.contains("`port` is not a term"),
        "{wrong}"
    );
    send(&unwanted)?;
    discarded(COUNT + 1)?;
    // The pattern is removed; the driver stops discarding soon afterwards.
    load_policy(&flow_bed, "")?;
    await_some("nothing is discarded", || {
        send(&unwanted)?;
        let delivered = &flow_bed.flows()?[0]["counters"]["delivered"];
        Ok((delivered.as_u64() > Some(COUNT)).then_some(()))
    })?;
    sink.stop()?;
    Ok(())
}

#[test]
fn a_policy_excludes_users_but_not_root_from_the_direct_path() -> Result<()> {
    let bed = TestBed::new()?;
    let (client, runtime) = (bed.world.client(), bed.netnice.runtime());
    let copy = bed.copy_for_all("netnice-lab")?;
    let sink = |port: u16| Direct::sink(at(client, Family::V4, port)).by(runtime);
    let by_ann = |port: u16| traffic_as(&bed, ANN, &copy, &sink(port));
    bed.run_ok("link eth0 --rate 100mbit");
    let before = by_ann(5000)?;
    let path = bed.world.folder().join("client.policy.toml");
    std::fs::write(path, "direct_users = false\n")?;
    bed.run_ok("reload");
    let refused = by_ann(5001).err().context("the user is refused")?;
    let refused = format!("{refused:#}");
    ensure!(refused.contains("direct_users = false"), "{refused}");
    let roots = traffic::start_now(client, &sink(5001))?;
    let flows = bed.netnice.show()?["direct"].as_array().map(Vec::len);
    ensure!(flows == Some(2), "what is open stays: {flows:?}");
    before.stop()?;
    roots.stop()?;
    Ok(())
}

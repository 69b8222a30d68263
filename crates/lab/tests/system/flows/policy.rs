//! Direct flows in the policy: users that it excludes, and frames that drivers discard, on real
//! packets.

use std::net::UdpSocket;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use netnice_lab::experiment::bench::at;
use netnice_lab::process::EVENT_TIMEOUT;
use netnice_lab::testbed::TestBed;
use netnice_lab::traffic::{self, Direct};
use netnice_lab::world::Family;

use super::{Stage, await_it};
use crate::users::{ANN, traffic_as};

/// Frames from the port `UNWANTED` are discarded, those from `WANTED` are not.
const UNWANTED: u16 = 7001;
const WANTED: u16 = 7000;
const COUNT: u64 = 200;

/// Writes and loads a policy.
fn obey(stage: &Stage, lines: &str) -> Result<()> {
    let path = stage.world.folder().join("client.policy.toml");
    let link = "[[link]]\nname = \"eth0\"\nrate = \"100mbit\"\n";
    std::fs::write(path, format!("{link}{lines}"))?;
    stage.netnice.run_line("reload")?;
    Ok(())
}

/// A socket of the kernel on the server.
fn sender(stage: &Stage, port: u16) -> Result<UdpSocket> {
    let server = stage.world.server();
    let own = at(server, Family::V4, port);
    server.ns.enter(|| Ok(UdpSocket::bind(own)?))
}

#[test]
fn frames_that_match_a_discard_pattern_reach_no_flow_and_are_counted() -> Result<()> {
    let stage = Stage::new()?;
    // IPv4, UDP, from port 7001.
    obey(&stage, "discard = [\"12=0800 23=11 34=1b59\"]\n")?;
    let sink = Direct::sink(stage.own(5000));
    let sink = sink.by(stage.netnice.runtime());
    let sink = traffic::start_now(stage.world.client(), &sink)?;
    let (wanted, unwanted) = (sender(&stage, WANTED)?, sender(&stage, UNWANTED)?);
    let send = |from: &UdpSocket| from.send_to(&[7; 100], stage.own(5000));
    let counted = |what: &str, count: u64| {
        await_it(what, || {
            let flow = stage.flows()?;
            let counters = &flow.first().context("a flow")?["counters"];
            let got = counters["delivered"].as_u64();
            ensure!(got <= Some(count), "{counters}");
            Ok((got == Some(count) && counters["received"] == count).then_some(()))
        })
    };
    let thrown_away = |count: u64| {
        let row = format!("{count} received frames: pattern");
        await_it(&row, || {
            let told = stage.netnice.run_line("explain direct:eth0")?.stdout;
            Ok(told.contains(&row).then_some(()))
        })
    };
    for _ in 0..COUNT {
        send(&wanted)?;
        send(&unwanted)?;
        std::thread::sleep(Duration::from_micros(200));
    }
    counted("what is wanted is delivered", COUNT)?;
    thrown_away(COUNT)?;
    // The driver does not discard frames for the kernel.
    let socket = stage.bind(stage.own(5001))??;
    socket.set_read_timeout(Some(EVENT_TIMEOUT))?;
    unwanted.send_to(b"to the kernel", stage.own(5001))?;
    let length = socket.recv(&mut [0; 100])?;
    ensure!(length == b"to the kernel".len());
    // An invalid pattern changes nothing.
    let wrong = obey(&stage, "discard = [\"port 7001\"]\n").expect_err("no pattern");
    let wrong = format!("{wrong:#}");
    ensure!(
        wrong.contains("policy.toml:4") && wrong.contains("`port` is no term"),
        "{wrong}"
    );
    send(&unwanted)?;
    thrown_away(COUNT + 1)?;
    // The pattern is removed; the driver stops discarding soon afterwards.
    obey(&stage, "")?;
    await_it("nothing is thrown away", || {
        send(&unwanted)?;
        let delivered = &stage.flows()?[0]["counters"]["delivered"];
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
    let refused = by_ann(5001).err().context("she is kept off")?;
    let refused = format!("{refused:#}");
    ensure!(refused.contains("direct_users = false"), "{refused}");
    let roots = traffic::start_now(client, &sink(5001))?;
    let flows = bed.netnice.show()?["direct"].as_array().map(Vec::len);
    ensure!(flows == Some(2), "what is open stays: {flows:?}");
    before.stop()?;
    roots.stop()?;
    Ok(())
}

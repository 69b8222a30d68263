//! Tests held promises with a real daemon and driver: a hold has the shortest deadline, a flow that
//! is opened with it carries messages, and a hold that is not used ends, in time and with its
//! program.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use netnice_core::contract::Contract;
use netnice_core::units::Nanos;
use netnice_lab::experiment::bench::at;
use netnice_lab::traffic::{self, Commanded, Udp};
use netnice_lab::world::Family;

use super::FlowBed;

/// The longest deadline is of no interest; the contract fits beside itself many times with it.
const HOLD: &str = "hold channel mmax=1500B,rmax=100/s,bmax=1,deadline=1s";
const LASTS: Duration = Duration::from_secs(5);

impl FlowBed {
    fn holder(&self, port: u16) -> Result<Commanded> {
        let to = at(self.world.server(), Family::V4, 9);
        let ends = (self.client_endpoint(port), to);
        Commanded::holds(self.world.client(), self.netnice.runtime(), ends)
    }
}

/// Holds a promise, and returns the contract and its deadline.
fn hold(program: &mut Commanded) -> Result<(String, Nanos)> {
    let held = program.run(HOLD, "contract")?;
    let text = held["contract"].as_str().context("a contract")?.to_owned();
    let contract: Contract = text.parse()?;
    let channel = contract.channel().context("a channel")?;
    Ok((text, channel.deadline()))
}

/// Holds a promise with at most this deadline and releases it, as soon as that is possible; returns
/// the time until then.
fn await_deadline(program: &mut Commanded, most: Nanos, within: Duration) -> Result<Duration> {
    let begin = Instant::now();
    loop {
        let (_, deadline) = hold(program)?;
        program.run("release", "released")?;
        if deadline <= most {
            return Ok(begin.elapsed());
        }
        let elapsed = begin.elapsed();
        ensure!(
            elapsed < within,
            "{deadline} after {elapsed:?}, expected {most}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_held_promise_is_the_shortest_until_a_flow_takes_its_place() -> Result<()> {
    let flow_bed = FlowBed::new()?;
    let to = at(flow_bed.world.server(), Family::V4, 9);
    let sink = traffic::start_now(flow_bed.world.server(), &Udp::sink(to))?;
    let (mut holder, mut other) = (flow_bed.holder(5000)?, flow_bed.holder(5001)?);
    let route = holder.run("route", "iface")?;
    assert_eq!(route["iface"], "eth0");
    assert_eq!(route["via"], to.ip().to_string());
    assert_eq!(route["from"], flow_bed.client_endpoint(1).ip().to_string());
    let (held, shortest) = hold(&mut holder)?;
    // A packet of 1,514 bytes takes 121 us on this link.
    assert!(
        (Nanos(242_000)..Nanos(2_000_000)).contains(&shortest),
        "{shortest}"
    );
    let (_, beside) = hold(&mut other)?;
    assert!(beside > shortest, "{beside} beside {shortest}");
    other.run("release", "released")?;
    // Beside it there is room for one packet, and not for two.
    let twice = held.replace("mmax=1500B", "mmax=3000B");
    let refused = other.run(&format!("open {twice}"), "refused")?;
    let text = refused["refused"].as_str().context("a text")?;
    assert!(text.contains(&format!("hold:1  {held}")), "{text}");
    // The flow has the deadline that was held, though nothing else has room beside it.
    let opened = holder.run(&format!("open {held}"), "open")?;
    assert_eq!(opened["open"], held.as_str());
    let sent = holder.run("send 20", "sent")?;
    assert_eq!(sent["sent"], 20);
    let received = sink.stop()?.received;
    ensure!(
        received == 20_000,
        "{received} bytes of 20 messages of 1,000 arrived"
    );
    // Asked at once, an ordinary flow gets the same deadline.
    drop(holder);
    await_deadline(&mut other, shortest, Duration::from_secs(2))?;
    other.run(&format!("open {held}"), "open")?;
    Ok(())
}

#[test]
fn a_hold_that_is_not_used_ends_after_5_seconds_and_with_its_program() -> Result<()> {
    let flow_bed = FlowBed::new()?;
    let (mut holder, mut other) = (flow_bed.holder(5000)?, flow_bed.holder(5001)?);
    let begin = Instant::now();
    let (_, shortest) = hold(&mut holder)?;
    await_deadline(&mut other, shortest, 2 * LASTS)?;
    let lasted = begin.elapsed();
    assert!(lasted >= LASTS, "it ended after {lasted:?}");
    assert!(lasted < LASTS + Duration::from_secs(1), "{lasted:?}");
    hold(&mut holder)?;
    drop(holder);
    await_deadline(&mut other, shortest, Duration::from_secs(2))?;
    // Nothing is divided any more.
    assert!(flow_bed.flows()?.is_empty());
    Ok(())
}

//! rtc-scale: 1,000 channels from a client over a router to a server, through what is shipped:
//! netniced and netnice-driver on three hosts, their netnice-peer, and programs that use it.
//!
//! One program opens the channels, eight at a time; another one accepts them. The checks: how many
//! are established in a second, how long one takes (of 99 in 100), and what the netnice-peer of two
//! hosts send each other afterwards, when no message passes, to keep the channels. The bytes are
//! those of the devices at both ends of the cable between client and router, with all headers. The
//! memory of a channel at the router is what its netnice-peer and its netniced have more than
//! before, for each channel.
//!
//! The function adds its checks and the measured values to an [`Outcome`]. It fails if the subject
//! is not netnice, if a channel is refused, or if a step of the measurement fails.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};

use super::super::simulated::netnice_only;
use super::hosts::Hosts;
use crate::experiment::{Bound, Context, Outcome};
use crate::process::EVENT_TIMEOUT;
use crate::traffic::{ManyChannels, OpenedChannels};

/// Opens the channels. Fails as the module says.
pub fn scale(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context)?;
    outcome.paper = json!("the paper has three channels");
    let count = if context.quick { 200 } else { 1_000 };
    let hosts = Hosts::new("1gbit")?;
    let runtime = hosts.netnices[2].runtime();
    let sink = ManyChannels::sink(hosts.world.host("server"), runtime, "many", count)?;
    // The first channel starts what all channels use.
    drop(hosts.open_many(1)?);
    std::thread::sleep(Duration::from_secs(1));
    let before = hosts.memory()?;
    context.say(format!("{count} channels"));
    let (source, opened) = hosts.open_many(count)?;
    judge(outcome, &opened);
    let after = hosts.memory()?.saturating_sub(before);
    let what = "memory of a channel at the router, bytes";
    outcome.ours(what, after / count as u64);
    // What follows the set-up is over.
    std::thread::sleep(Duration::from_secs(2));
    hosts.watch(
        outcome,
        Duration::from_secs(if context.quick { 10 } else { 30 }),
    )?;
    let begin = Instant::now();
    drop(source);
    let mut left = 1;
    while left > 0 && begin.elapsed() < EVENT_TIMEOUT {
        std::thread::sleep(Duration::from_millis(50));
        left = hosts.promised()?;
    }
    let what = "channels that are still promised after their end";
    outcome.check(what, left as f64, "channels", Bound::AtMost(0.0));
    let what = "time until all were free again, ms";
    outcome.ours(what, begin.elapsed().as_millis() as u64);
    drop(sink);
    outcome.note(format!(
        "netniced, netnice-driver and netnice-peer on three hosts in one machine, links of 1 \
         Gbit/s; each channel: {CONTRACT}; {AT_ONCE} set-ups at a time by one program"
    ));
    Ok(())
}

/// Checks how fast channels were set up.
fn judge(outcome: &mut Outcome, opened: &OpenedChannels) {
    let mut took = opened.took_ns.clone();
    took.sort_unstable();
    let part = |part: f64| took[((took.len() - 1) as f64 * part) as usize] as f64 / 1e6;
    let rate = took.len() as f64 / (opened.lasted_ns as f64 / 1e9);
    let what = "rate of set-ups of channels";
    outcome.check(what, rate, "channels/s", Bound::AtLeast(100.0));
    let what = "time to set up a channel, 99th percentile";
    outcome.check(what, part(0.99), "ms", Bound::AtMost(200.0));
    let what = "time to set up a channel";
    let times = json!({"median, ms": part(0.5), "longest, ms": part(1.0)});
    outcome.ours(what, times);
}

impl Hosts {
    /// Opens so many channels from the client to the server.
    fn open_many(&self, count: usize) -> Result<(ManyChannels, OpenedChannels)> {
        let client = self.world.host("client");
        let to = ("many@server", CONTRACT);
        let runtime = self.netnices[0].runtime();
        ManyChannels::source(client, runtime, to, (count, AT_ONCE), EVENT_TIMEOUT * 2)
    }

    /// The memory of netnice-peer and netniced at the router, in bytes.
    fn memory(&self) -> Result<u64> {
        Ok(self.peers[1].memory()? + self.netnices[1].daemon_memory()?)
    }

    /// The number of flows with a channel on all hosts.
    fn promised(&self) -> Result<usize> {
        let mut promised = 0;
        for netnice in &self.netnices {
            let shown = netnice.show()?;
            let flows = shown["flows"].as_array().cloned().unwrap_or_default();
            let has_channel = |flow: &&Value| !flow["contract"]["channel"].is_null();
            promised += flows.iter().filter(has_channel).count();
        }
        Ok(promised)
    }

    /// Checks what client and router send each other to keep the channels.
    fn watch(&self, outcome: &mut Outcome, lasts: Duration) -> Result<()> {
        let client = self.world.host("client");
        let begin = Instant::now();
        let before = client.ns.counters("eth0")?;
        std::thread::sleep(lasts);
        let now = client.ns.counters("eth0")?;
        let seconds = begin.elapsed().as_secs_f64();
        for (what, bytes) in [
            ("from client to router", now.tx_bytes - before.tx_bytes),
            ("from router to client", now.rx_bytes - before.rx_bytes),
        ] {
            let rate = bytes as f64 / seconds / 1e3;
            let what = format!("traffic to keep the channels, {what}");
            outcome.check(what, rate, "kB/s", Bound::AtMost(10.0));
        }
        Ok(())
    }
}

const CONTRACT: &str = "channel mmax=500B,rmax=1/s,bmax=1,deadline=2s";
/// How many channels are asked for at a time.
const AT_ONCE: usize = 8;

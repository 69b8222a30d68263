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

use super::super::simulated::netnice_only;
use crate::experiment::{Bound, Context, Outcome};
use crate::process::EVENT_TIMEOUT;
use crate::traffic::ManyChannels;
use crate::world::{Netnice, Peer, PeerOptions, Routed, World};

/// Opens the channels. Fails as the module says.
pub fn scale(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context)?;
    outcome.paper = serde_json::json!("the paper has three channels");
    let count = if context.quick { 200 } else { 1_000 };
    let world = World::routed(Routed::default())?;
    let mut netnices: Vec<Netnice> = Vec::new();
    let mut peers: Vec<Peer> = Vec::new();
    for (host, links) in [
        ("client", &["eth0"][..]),
        ("router", &["eth0", "eth1"]),
        ("server", &["eth0"]),
    ] {
        let netnice = world.netnice(host)?;
        for link in links {
            netnice
                .run_line(&format!("link {link} --rate 1gbit"))?
                .ok()?;
        }
        netnices.push(netnice);
        peers.push(world.peer(host, &PeerOptions::default())?);
    }
    let [client, server] = ["client", "server"].map(|name| world.host(name));
    let memory = || -> Result<u64> { Ok(peers[1].memory()? + netnices[1].daemon_memory()?) };
    let sink = ManyChannels::sink(server, netnices[2].runtime(), "many", count)?;
    // The first channel starts what all channels use.
    let one = ManyChannels::source(
        client,
        netnices[0].runtime(),
        ("many@server", CONTRACT),
        (1, 1),
        EVENT_TIMEOUT,
    )?;
    drop(one);
    std::thread::sleep(Duration::from_secs(1));
    let before = memory()?;
    context.say(format!("{count} channels"));
    let (source, opened) = ManyChannels::source(
        client,
        netnices[0].runtime(),
        ("many@server", CONTRACT),
        (count, AT_ONCE),
        EVENT_TIMEOUT * 2,
    )?;
    let mut took = opened.took_ns.clone();
    took.sort_unstable();
    let part = |part: f64| took[((took.len() - 1) as f64 * part) as usize] as f64 / 1e6;
    let rate = took.len() as f64 / (opened.lasted_ns as f64 / 1e9);
    outcome.check(
        "channels set up in a second",
        rate,
        "",
        Bound::AtLeast(100.0),
    );
    outcome.check(
        "time to set one up, of 99 %",
        part(0.99),
        "ms",
        Bound::AtMost(200.0),
    );
    outcome.ours(
        "time to set one up, ms: median, most",
        (part(0.5), part(1.0)),
    );
    let after = memory()?.saturating_sub(before);
    outcome.ours(
        "memory of a channel at the router, bytes",
        after / count as u64,
    );
    // What follows the set-up is over.
    std::thread::sleep(Duration::from_secs(2));
    let lasts = Duration::from_secs(if context.quick { 10 } else { 30 });
    let begin = Instant::now();
    let counters = client.ns.counters("eth0")?;
    std::thread::sleep(lasts);
    let now = client.ns.counters("eth0")?;
    let seconds = begin.elapsed().as_secs_f64();
    for (what, bytes) in [
        ("from client to router", now.tx_bytes - counters.tx_bytes),
        ("from router to client", now.rx_bytes - counters.rx_bytes),
    ] {
        let rate = bytes as f64 / seconds / 1e3;
        let what = format!("to keep the channels, {what}");
        outcome.check(what, rate, "kB/s", Bound::AtMost(10.0));
    }
    let begin = Instant::now();
    drop(source);
    let promised = |netnice: &Netnice| -> Result<usize> {
        let shown = netnice.show()?;
        let flows = shown["flows"].as_array().cloned().unwrap_or_default();
        let has_channel = |flow: &&serde_json::Value| !flow["contract"]["channel"].is_null();
        Ok(flows.iter().filter(has_channel).count())
    };
    let mut left = 1;
    while left > 0 && begin.elapsed() < EVENT_TIMEOUT {
        std::thread::sleep(Duration::from_millis(50));
        left = 0;
        for netnice in &netnices {
            left += promised(netnice)?;
        }
    }
    outcome.check(
        "promises left after the end",
        left as f64,
        "",
        Bound::AtMost(0.0),
    );
    outcome.ours(
        "all free again after, ms",
        begin.elapsed().as_millis() as u64,
    );
    drop(sink);
    outcome.note(format!(
        "netniced, netnice-driver and netnice-peer on three hosts in one machine, links of 1 Gbit/s; \
         each channel: {CONTRACT}; {AT_ONCE} set-ups at a time by one program"
    ));
    Ok(())
}

const CONTRACT: &str = "channel mmax=500B,rmax=1/s,bmax=1,deadline=2s";
/// How many channels are asked for at a time.
const AT_ONCE: usize = 8;

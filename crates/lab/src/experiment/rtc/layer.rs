//! rtc-layer: what a packet of a channel costs its programs more than a datagram of the same length
//! over plain UDP of `netnice-stack`, through what is shipped: netniced and netnice-driver on two
//! hosts. No stage processes the packets. Both sinks copy all bytes that arrive.
//!
//! Both ways send all the time, with packets of 1,452 bytes, over a link of [`RATE`], one after the
//! other, several times. Counted is the processor time of the thread that sends or receives: that
//! of the handlers, and that which calls the socket. A message of the channel has 48 packets, so
//! what its program does for a message (it fills and reads the bytes in threads of its own) is not
//! counted. The packets are those of the device. The cost is the median of the pairs.
//!
//! The function adds its checks and the measured values to an [`Outcome`]. It fails if the subject
//! is not netnice, or if a step of the measurement fails.

use std::time::Duration;

use anyhow::{Context as _, Result};
use netnice_channel::PacketHeader;
use netnice_channel::network::{BLOCK, PACKET};
use serde_json::json;

use super::super::simulated::netnice_only;
use super::packets::Hosts;
use crate::experiment::{Bound, Context, Outcome};
use crate::stats::median;
use crate::sys;
use crate::traffic::{self, ChannelPlan, Direct, Messages, PlannedChannel, RunOptions, SendPlan};

/// Measures both ways. Fails as the module says.
pub fn layer(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context)?;
    outcome.paper = json!("the paper has one protocol stack");
    let hosts = Hosts::new(RATE)?;
    let (pairs, lasts) = match context.quick {
        true => (1, Duration::from_secs(2)),
        false => (5, Duration::from_secs(5)),
    };
    let mut rows = Vec::new();
    for pair in 0..pairs {
        context.say(format!("pair {}", pair + 1));
        rows.push((plain(&hosts, lasts)?, over_channel(&hosts, lasts)?));
    }
    for (what, of) in [
        ("source", Cost::source as fn(&Cost) -> f64),
        ("sink", Cost::sink),
    ] {
        let values = |choose: fn(&(Cost, Cost)) -> &Cost| -> Vec<f64> {
            rows.iter().map(|row| of(choose(row)).round()).collect()
        };
        let (plain, channel) = (values(|row| &row.0), values(|row| &row.1));
        let more = std::iter::zip(&plain, &channel).map(|(plain, channel)| channel - plain);
        let more = median(&more.collect::<Vec<_>>());
        outcome.ours(
            &format!("{what}, plain UDP: processor time of a packet, ns"),
            plain,
        );
        outcome.ours(
            &format!("{what}, channel: processor time of a packet, ns"),
            channel,
        );
        let what = format!(
            "{what}: processor time of a packet of a channel above that of a plain datagram"
        );
        outcome.check(what, more, "ns", Bound::AtMost(300.0));
    }
    hosts.note(outcome, "no reservation")
}

/// What the packets of some seconds cost.
struct Cost {
    packets: f64,
    /// Processor time of the thread that sends, and of the one that receives, in ns.
    source_ns: f64,
    sink_ns: f64,
}

impl Cost {
    fn source(&self) -> f64 {
        self.source_ns / self.packets
    }

    fn sink(&self) -> f64 {
        self.sink_ns / self.packets
    }

    /// Measures what the threads with these names do from [`LEAD`] on.
    fn measure(hosts: &Hosts, [source, sink]: [(u32, &str); 2], lasts: Duration) -> Result<Cost> {
        let now = || -> Result<[u64; 3]> {
            let [(client, ..), _] = hosts.ends();
            let packets = client.ns.counters("eth0")?.tx_packets;
            let spent = [source, sink].map(|(pid, name)| sys::time_of_threads(pid, Some(name)));
            let [source, sink] = spent;
            Ok([packets, source?, sink?])
        };
        std::thread::sleep(LEAD);
        let before = now()?;
        std::thread::sleep(lasts);
        let after = now()?;
        let more = |at: usize| (after[at] - before[at]) as f64;
        Ok(Cost {
            packets: more(0).max(1.0),
            source_ns: more(1),
            sink_ns: more(2),
        })
    }
}

/// Datagrams of the length of a channel's packets.
fn plain(hosts: &Hosts, lasts: Duration) -> Result<Cost> {
    let [(client, ours, from), (server, theirs, to)] = hosts.ends();
    let sink = Direct::sink(to)
        .by(theirs.runtime())
        .buffers(BUFFERS)
        .copy_all();
    let sink = traffic::start(server, &sink, RunOptions::at_once())?;
    let source = Direct::source(from, to).by(ours.runtime());
    let source = source.size(PACKET.0 as u32).buffers(BUFFERS);
    let source = traffic::start(client, &source, RunOptions::at_once())?;
    Cost::measure(hosts, [(source.pid(), "flow"), (sink.pid(), "flow")], lasts)
}

/// Messages of one channel of best effort that always has something to send.
fn over_channel(hosts: &Hosts, lasts: Duration) -> Result<Cost> {
    let plan = ChannelPlan {
        largest: PACKET.0,
        block: BLOCK.get(),
        horizon_ns: 0,
        early_before_best_effort: false,
        computes_ns: (0, 0),
        switch_ns: 0,
        reservation: None,
        records_stops: false,
        channels: vec![PlannedChannel {
            contract: String::new(),
            best_effort: (MESSAGE as u64, 8),
            stages: Vec::new(),
        }],
    };
    let mut ends = hosts.start(&plan)?;
    let (source, sink) = (ends.source.pid(), ends.sink.pid());
    let greedy = Messages {
        size: MESSAGE,
        count: 1,
        every_ns: 1,
        first_ns: 0,
        waits: true,
    };
    let sends = SendPlan {
        lasts_ns: (lasts + 2 * LEAD).as_nanos() as u64,
        channels: vec![greedy],
    };
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| ends.source.run(&sends));
        let cost = Cost::measure(hosts, [(source, "handlers"), (sink, "handlers")], lasts);
        sender.join().expect("no panic").context("the source")?;
        cost
    })
}

/// The rate of the link: some 34,000 packets a second.
const RATE: &str = "400mbit";
/// From the start of the traffic to the first look.
const LEAD: Duration = Duration::from_millis(500);
/// A message of 48 packets.
const MESSAGE: usize = 48 * (PACKET.0 as usize - PacketHeader::LENGTH);
/// Buffers of a plain flow.
const BUFFERS: u32 = 256;

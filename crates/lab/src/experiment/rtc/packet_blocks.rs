//! Paper RTC, section 3.3: the number P of packets between two preemption points, and the size of a
//! packet. A larger P makes a handler switch less often, and makes an earlier deadline wait longer.
//! A larger packet shares the costs of a packet among more bytes, and holds the link for longer.
//!
//! For each P and for each size, admission says how many identical channels fit beside best effort
//! ([`granted`]), and four channels of best effort that always have something to send say how much
//! the handlers process. Both are found for two kinds of costs:
//!
//! - *The paper's* (table 1). For P, a stage computes for the paper's time for each packet, and for
//!   the time of a switch when the packet before was another channel's. Sizes up to 16 KiB, which
//!   direct flows do not carry, are simulated: the transmission of a packet takes 40 us and 50 ns
//!   for each byte.
//! - *This machine's*: measured ([`costs::measure`]), with encryption, on a tenth of a processor.
//!
//! The rule chooses the value with the most channels among those that have 95 % of the best
//! throughput; among equals the smaller one. The defaults of netnice ([`BLOCK`], [`PACKET`]) must
//! have 95 % of the best throughput on this machine, and 95 % of the channels of the chosen value.
//! `link_call` compares two places of the link's scheduler.

use std::cmp::Reverse;
use std::num::NonZeroU32;

use anyhow::{Context as _, Result, ensure};
use netnice_channel::network::{BLOCK, PACKET};
use netnice_channel::{
    ChannelClass, ChannelId, ChannelOptions, Encryption, End, ExecutorSettings, WhenFull, costs,
};
use netnice_core::admission::timing::{
    HandlerWork, Handlers, Processor, Promise, Transmitter, Work,
};
use netnice_core::contract::{Channel, Slice, Weight};
use netnice_core::sched::Wire;
use netnice_core::units::{Bytes, Nanos};
use netnice_sim::{SimFlow, Simulation, Source};
use serde_json::json;

use super::super::simulated::netnice_only;
use super::packets::Hosts;
use super::{channel, link_call, processor, wire};
use crate::experiment::{Bound, Context, Outcome};
use crate::plot::{Chart, Series, palette};
use crate::stats::median;
use crate::traffic::{ChannelPlan, Messages, PlannedChannel, SendPlan};

/// A value of P or a size, with what it brings.
#[derive(Clone, Copy, Debug)]
struct Row {
    /// Packets of a block, or bytes of a packet.
    value: u32,
    /// Number of channels that admission grants.
    channels: u32,
    /// Payload of best effort, in kB/s.
    rate: f64,
}

/// Finds both curves for both kinds of costs, and checks the defaults. Fails if the subject is not
/// netnice, or if a step of a measurement or of the simulation fails.
pub fn packet_blocks(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context)?;
    outcome.paper = json!(
        "P for the most admitted channels, and the packet size for the least transmission time, \
         both at reasonable throughput; table 1 has P = 4 and 4 KiB"
    );
    let hosts = Hosts::new("1gbit")?;
    let paper = rows(
        context,
        &hosts,
        (
            "blocks of so many packets, the paper's costs",
            &PAPER_BLOCKS,
        ),
        (paper_plan, &|block| {
            paper_channels(block, processor().largest)
        }),
    )?;
    report(outcome, &PAPER_P, &paper)?;
    compare_with_table_1(outcome, &PAPER_P, &paper, processor().block.get())?;
    // The costs of a packet do not depend on P.
    let costs = MachineCosts::measure(PACKET)?;
    let ours = rows(
        context,
        &hosts,
        ("blocks of so many packets", &BLOCKS),
        (|block| machine_plan(block, PACKET), &|block| {
            costs.channels(block)
        }),
    )?;
    report(outcome, &OWN_P, &ours)?;
    judge(outcome, &OWN_P, &ours, BLOCK.get())?;
    let sizes = PAPER_SIZES.into_iter().map(paper_size);
    let sizes = sizes.collect::<Result<Vec<Row>>>()?;
    report(outcome, &PAPER_SIZE, &sizes)?;
    let of_paper = processor().largest.0 as u32;
    compare_with_table_1(outcome, &PAPER_SIZE, &sizes, of_paper)?;
    let own = rows(
        context,
        &hosts,
        ("packets of so many bytes", &SIZES),
        (
            |size| machine_plan(BLOCK.get(), Bytes(size.into())),
            &|size| MachineCosts::measure(Bytes(size.into()))?.channels(BLOCK.get()),
        ),
    )?;
    report(outcome, &OWN_SIZE, &own)?;
    judge(outcome, &OWN_SIZE, &own, PACKET.0 as u32)?;
    link_call::compare(context, outcome)?;
    hosts.note(
        outcome,
        "7 ms, or 1 ms on this machine's costs, of every 10 ms",
    )?;
    plot(context, outcome, [&paper, &ours, &sizes, &own])
}

/// One of the four measurements: what is varied, and at what costs.
struct Sweep {
    /// Its key among the values.
    name: &'static str,
    /// The quantity that is varied, with its unit: a column and an axis.
    varied: &'static str,
    /// The title of its chart.
    title: &'static str,
    /// Bytes of a packet, or `None` if that is what varies.
    packet: Option<u64>,
    /// The share of a processor that the handlers have.
    share: f64,
}

impl Sweep {
    /// A value with its name and unit.
    fn value(&self, value: u32) -> String {
        match self.packet {
            Some(_) => format!("P = {value}"),
            None => format!("packet size of {value} bytes"),
        }
    }
}

const PAPER_P: Sweep = Sweep {
    name: "P at the paper's costs (channels: packets of 4,096 bytes; throughput: packets of 1,452 \
           bytes that take the paper's time each, on 7 ms of every 10 ms)",
    varied: "P, packets between preemption points",
    title: "Channels and throughput against P: the paper's costs",
    packet: Some(PACKET.0),
    share: 0.7,
};

const OWN_P: Sweep = Sweep {
    name: "P at the costs of this machine (packets of 1,452 bytes, encrypted, on 1 ms of every 10 ms)",
    title: "Channels and throughput against P: costs of this machine",
    share: 0.1,
    ..PAPER_P
};

const PAPER_SIZE: Sweep = Sweep {
    name: "packet size at the paper's costs (simulated; P = 4, a whole processor)",
    varied: "packet size, bytes",
    title: "Channels and throughput against packet size: the paper's costs (simulated)",
    packet: None,
    share: 1.0,
};

const OWN_SIZE: Sweep = Sweep {
    name: "packet size at the costs of this machine (P = 4, encrypted, on 1 ms of every 10 ms)",
    title: "Channels and throughput against packet size: costs of this machine",
    share: 0.1,
    ..PAPER_SIZE
};

/// Draws the four sweeps, and the paper's transmission time.
fn plot(
    context: &Context,
    outcome: &mut Outcome,
    [paper, ours, sizes, own]: [&[Row]; 4],
) -> Result<()> {
    let of_paper = processor();
    let (block, size) = (of_paper.block.get(), of_paper.largest.0 as u32);
    outcome.note(
        "packet sizes: 1,452 bytes is the default, the longest payload of UDP that an MTU of 1,500 \
         lets through over IPv6 as well; 1,472 bytes is the longest over IPv4 and does not fit IPv6",
    );
    for (name, sweep, rows, marked) in [
        ("rtc-p-paper", PAPER_P, paper, (block, "table 1")),
        ("rtc-p-blocks", OWN_P, ours, (BLOCK.get(), "default")),
        ("rtc-p-paper-sizes", PAPER_SIZE, sizes, (size, "table 1")),
        ("rtc-p-sizes", OWN_SIZE, own, (PACKET.0 as u32, "default")),
    ] {
        outcome.plot(context, name, || chart(&sweep, rows, marked))?;
    }
    let wire = wire()?;
    outcome.plot(context, "rtc-p-transmission", || {
        let time = |size: &u32| (f64::from(*size), transmission_us(&wire, *size));
        let title = "Transmission time of a packet by the paper's model (section 3.3)";
        let points = PAPER_SIZES.iter().map(time).collect();
        Chart::new(title, "packet size, bytes", "transmission time, µs")
            .with(Series::new(
                "40 µs + 50 ns for each byte",
                palette::BLUE,
                points,
            ))
            .moment(f64::from(size), "table 1: 4,096 bytes")
            .svg()
    })
}

/// The paper's transmission time of a packet, in us.
fn transmission_us(wire: &Wire, size: u32) -> f64 {
    let bytes = wire.overhead.0 + u64::from(size);
    wire.rate.time_for(Bytes(bytes)).0 as f64 / 1e3
}

/// The number of channels that admission grants for a value.
type Granted<'a> = &'a dyn Fn(u32) -> Result<u32>;

/// What each value brings. All are measured in [`ROUNDS`] rounds, one after the other, and the
/// median of each counts.
fn rows(
    context: &Context,
    hosts: &Hosts,
    (what, values): (&str, &[u32]),
    (plan, granted): (fn(u32) -> ChannelPlan, Granted<'_>),
) -> Result<Vec<Row>> {
    let mut seen: Vec<(Vec<f64>, Vec<f64>)> = vec![Default::default(); values.len()];
    for round in 0..ROUNDS {
        context.say(format!("{what}: round {} of {ROUNDS}", round + 1));
        for (value, (channels, rates)) in values.iter().zip(&mut seen) {
            channels.push(granted(*value)?.into());
            rates.push(throughput(context, hosts, &plan(*value))?);
        }
    }
    let row = |(value, (channels, rates)): (&u32, (Vec<f64>, Vec<f64>))| Row {
        value: *value,
        channels: median(&channels) as u32,
        rate: median(&rates),
    };
    Ok(values.iter().zip(seen).map(row).collect())
}

/// The value that the rule chooses. `None` of no rows.
fn choose(rows: &[Row]) -> Option<Row> {
    let best = best(rows);
    let reasonable = rows.iter().filter(|row| row.rate >= REASONABLE * best);
    reasonable
        .max_by_key(|row| (row.channels, Reverse(row.value)))
        .copied()
}

/// The best rate of rows.
fn best(rows: &[Row]) -> f64 {
    rows.iter().map(|row| row.rate).fold(0.0, f64::max)
}

/// Adds the rows, and the value that the rule chooses.
fn report(outcome: &mut Outcome, sweep: &Sweep, rows: &[Row]) -> Result<()> {
    let chosen = choose(rows).context("no value was measured")?.value;
    let (best, wire) = (best(rows), wire()?);
    let row = |row: &Row| {
        let size = sweep.packet.unwrap_or(row.value.into());
        let mut columns = json!({
            sweep.varied: row.value,
            "channels admitted": row.channels,
            "throughput of best effort, kB/s": row.rate.round(),
            "throughput, % of the best": row.rate / best * 100.0,
            "reserved processor time for each byte sent, ns": 1e6 * sweep.share / row.rate,
            "reserved processor time for each packet sent, µs": 1e3 * sweep.share * size as f64 / row.rate,
        });
        if sweep.packet.is_none() && sweep.share == 1.0 {
            let time = transmission_us(&wire, row.value);
            columns["transmission time of a packet (paper's model), µs"] = time.into();
            columns["link's throughput at that, MB/s"] = (f64::from(row.value) / time).into();
        }
        columns["chosen by the rule"] = (row.value == chosen).into();
        columns
    };
    outcome.ours(sweep.name, rows.iter().map(row).collect::<Vec<_>>());
    Ok(())
}

/// Says how the choice at the paper's costs differs from the paper's. Fails if the paper's value is
/// not among the rows.
fn compare_with_table_1(
    outcome: &mut Outcome,
    sweep: &Sweep,
    rows: &[Row],
    of_paper: u32,
) -> Result<()> {
    let chosen = choose(rows).context("no value was measured")?;
    let theirs = rows.iter().find(|row| row.value == of_paper);
    let theirs = theirs.context("the paper's value is not among the rows")?;
    let part = |row: &Row| row.rate / best(rows) * 100.0;
    outcome.note(format!(
        "at the paper's costs our rule chooses {} ({} channels, {:.1} % of the best throughput); table \
         1 of the paper has {} ({} channels, {:.1} %). The rule takes at least {:.0} % of the best \
         throughput as reasonable; the paper gives no number. The contract of the channels that are \
         counted is ours: {PAPER_CHANNEL}",
        sweep.value(chosen.value),
        chosen.channels,
        part(&chosen),
        sweep.value(of_paper),
        theirs.channels,
        part(theirs),
        REASONABLE * 100.0,
    ));
    Ok(())
}

/// Checks a default against what the rule chooses. Fails if the default is not among the rows.
fn judge(outcome: &mut Outcome, sweep: &Sweep, rows: &[Row], default: u32) -> Result<()> {
    let chosen = choose(rows).context("no value was measured")?;
    let ours = rows.iter().find(|row| row.value == default);
    let default = sweep.value(default);
    let ours = ours.with_context(|| format!("{default} is not among the values"))?;
    let rate = ours.rate / best(rows) * 100.0;
    let text = format!("default {default}: throughput, compared with the best of all values");
    outcome.check(text, rate, "%", Bound::AtLeast(REASONABLE * 100.0));
    let channels = f64::from(ours.channels) / f64::from(chosen.channels) * 100.0;
    let text = format!(
        "default {default}: channels admitted, compared with the chosen {}",
        sweep.value(chosen.value)
    );
    outcome.check(text, channels, "%", Bound::AtLeast(REASONABLE * 100.0));
    Ok(())
}

/// A chart of the channels and of the throughput, each in % of the greatest of all values, with a
/// mark at one value. The values are evenly spaced.
fn chart(sweep: &Sweep, rows: &[Row], (marked, word): (u32, &str)) -> String {
    let most = rows.iter().map(|row| row.channels).max();
    let (most, fastest) = (most.unwrap_or(1).max(1), best(rows));
    let points = |value: &dyn Fn(&Row) -> f64| -> Vec<(f64, f64)> {
        let rows = rows.iter().enumerate();
        rows.map(|(at, row)| (at as f64, value(row) * 100.0))
            .collect()
    };
    let channels = points(&|row| f64::from(row.channels) / f64::from(most));
    let rates = points(&|row| row.rate / fastest);
    let y = "% of the greatest of all values";
    let mut chart = Chart::new(sweep.title, sweep.varied, y)
        .with(Series::new("channels admitted", palette::BLUE, channels).dots())
        .with(Series::new("throughput of best effort", palette::ORANGE, rates).dots())
        .level(REASONABLE * 100.0, "95 %")
        .x_range(-0.5, rows.len() as f64 - 0.5)
        .y_range(0.0, 115.0);
    for (at, row) in rows.iter().enumerate() {
        chart = chart.x_name(at as f64, row.value.to_string());
        if row.value == marked {
            chart = chart.moment(at as f64, format!("{word}: {marked}"));
        }
    }
    chart.svg()
}

/// Number of identical channels that admission grants one after another on a reservation. Each
/// handler gets the shortest part of the deadline that it can keep, and the link the rest.
/// `handler` has the channel as the link has it.
fn granted(
    handlers: &Handlers,
    reservation: &Slice,
    link: &Transmitter,
    handler: &HandlerWork,
) -> Result<u32> {
    let (mut work, mut sent) = (Vec::new(), Vec::new());
    let whole = handler.channel;
    let with = |deadline| Channel::new(whole.mmax(), whole.rmax(), whole.bmax(), deadline);
    while let Ok(divided) = handlers.divide(reservation, &work, link, &sent, handler) {
        work.push(Work::Handler(HandlerWork {
            channel: with(divided.processor)?,
            ..*handler
        }));
        sent.push(Promise::Channel(with(divided.link)?));
        ensure!(
            work.len() < MOST,
            "admission grants {MOST} channels and more"
        );
    }
    Ok(work.len() as u32)
}

/// The paper's processor with blocks of `block` packets of `size`, beside messages of best effort.
fn paper_processor(block: u32, size: Bytes) -> Result<Processor> {
    let block = NonZeroU32::new(block).context("a block of no packet")?;
    let costs = Processor {
        block,
        largest: size,
        ..processor()
    };
    let packets = costs.packets(BULK).min(block.get().into());
    Ok(Processor {
        leftover: costs.processing(packets, true),
        ..costs
    })
}

fn paper_channels(block: u32, size: Bytes) -> Result<u32> {
    let costs = paper_processor(block, size)?;
    let wire = Wire {
        longest: size,
        ..wire()?
    };
    let channel = channel(PAPER_CHANNEL)?;
    let whole = Slice::new(Nanos::from_secs(1), Nanos::from_secs(1), false)?;
    let handler = HandlerWork {
        channel,
        packets: costs.packets(channel.mmax()),
        each: Nanos(0),
    };
    let link = Transmitter::of(&wire, size, MOST as u32);
    granted(&Handlers::new(costs), &whole, &link, &handler)
}

/// A packet size with the paper's costs: channels, and best effort in the simulator.
fn paper_size(size: u32) -> Result<Row> {
    let bytes = Bytes(size.into());
    let block = processor().block.get();
    let mut world = Simulation {
        processor: Some(paper_processor(block, bytes)?),
        ..Simulation::new(Wire {
            longest: bytes,
            ..wire()?
        })
    };
    let source = Source::Greedy { size: BULK };
    world.flows.push(SimFlow::new("best effort", "", source)?);
    let until = Nanos::from_secs(4);
    let found = world.run(until, |_| ())?;
    Ok(Row {
        value: size,
        channels: paper_channels(block, bytes)?,
        rate: super::rate(&found.flows[0], &found),
    })
}

/// The costs of this machine for packets of one size.
struct MachineCosts {
    packets: ExecutorSettings,
    encryption: Nanos,
}

impl MachineCosts {
    fn measure(size: Bytes) -> Result<MachineCosts> {
        let encryption = || costs::of_stage(&mut Encryption::new(&[0; 32], Nanos(0)), size);
        let mut own = MachineCosts {
            packets: costs::measure(size, BLOCK)?,
            encryption: encryption(),
        };
        // What runs beside can only make a measurement longer.
        for _ in 1..MEASUREMENTS {
            let again = costs::measure(size, BLOCK)?;
            own.packets.waking = own.packets.waking.min(again.waking);
            let (least, again) = (&mut own.packets.processor, again.processor);
            least.switch = least.switch.min(again.switch);
            least.cache_miss = least.cache_miss.min(again.cache_miss);
            least.first = least.first.min(again.first);
            least.later = least.later.min(again.later);
            own.encryption = own.encryption.min(encryption());
        }
        Ok(own)
    }

    /// Channels on a tenth of a processor with blocks of `block` packets.
    fn channels(&self, block: u32) -> Result<u32> {
        let block = NonZeroU32::new(block).context("a block of no packet")?;
        let mut settings = self.packets;
        settings.processor.block = block;
        let tenth = Slice::new(Nanos::from_millis(1), Nanos::from_millis(10), false)?;
        channels_of(&settings, self.encryption, &tenth)
    }
}

/// Channels of [`MACHINE_CHANNEL`] on a reservation, with a stage of this cost, beside best effort
/// with the same stage, over a link of 1 Gbit/s.
pub(super) fn channels_of(
    settings: &ExecutorSettings,
    stage: Nanos,
    reservation: &Slice,
) -> Result<u32> {
    let options = |class| {
        let mut options = ChannelOptions::new(ChannelId([1; 16]), class);
        options
            .stages
            .push(Box::new(Encryption::new(&[0; 32], stage)));
        options
    };
    let bulk = options(ChannelClass::BestEffort {
        weight: Weight::default(),
        mmax: BULK,
        queue: 1,
        when_full: WhenFull::Wait,
    });
    let asked = options(ChannelClass::RealTime(channel(MACHINE_CHANNEL)?));
    let Some(Work::Handler(handler)) = asked.work(settings, End::Source)? else {
        anyhow::bail!("a channel without a handler");
    };
    let on_link = asked.on_link(settings)?.context("a real-time channel")?;
    let mmax = Bytes(on_link.mmax().0 + handler.packets * FRAME_HEADERS);
    let longest = Bytes(settings.processor.largest.0 + FRAME_HEADERS);
    let wire = Wire {
        longest,
        ..Wire::new("1gbit".parse()?)
    };
    let handlers = settings.handlers(bulk.longest_block(settings, End::Source)?);
    let link = Transmitter::of(&wire, longest, MOST as u32);
    let channel = Channel::new(mmax, on_link.rmax(), on_link.bmax(), on_link.deadline())?;
    granted(
        &handlers,
        reservation,
        &link,
        &HandlerWork { channel, ..handler },
    )
}

/// Payload of four channels of best effort that always have something to send, in kB/s.
fn throughput(context: &Context, hosts: &Hosts, plan: &ChannelPlan) -> Result<f64> {
    let lasts_ns = if context.quick { 300 } else { 2_000 } * 1_000_000_u64;
    let mut ends = hosts.start(plan)?;
    let greedy = Messages {
        size: BULK.0 as usize,
        count: 1,
        every_ns: 1,
        first_ns: 0,
        waits: true,
    };
    let channels = vec![greedy; plan.channels.len()];
    let (sent, _) = ends.source.run(&SendPlan { lasts_ns, channels })?;
    let bytes: u64 = sent.iter().map(|channel| channel.bytes).sum();
    Ok(bytes as f64 / 1e3 / (lasts_ns as f64 / 1e9))
}

/// Four channels of best effort with blocks of `block` packets of at most `size`.
fn plan(block: u32, size: Bytes, stage: Option<&str>) -> ChannelPlan {
    let channel = PlannedChannel {
        contract: String::new(),
        best_effort: (BULK.0, 4),
        stages: stage.map(str::to_owned).into_iter().collect(),
    };
    ChannelPlan {
        largest: size.0,
        block,
        horizon_ns: 0,
        early_before_best_effort: false,
        computes_ns: (0, 0),
        switch_ns: 0,
        reservation: None,
        records_stops: false,
        channels: vec![channel; 4],
    }
}

/// The costs of the paper's table 1 in a stage, on 7 ms of every 10 ms.
fn paper_plan(block: u32) -> ChannelPlan {
    let costs = processor();
    let of_packet = |own: Nanos| own.0 + costs.link_scheduling.0;
    ChannelPlan {
        computes_ns: (of_packet(costs.first), of_packet(costs.later)),
        switch_ns: costs.switch.0 + costs.cache_miss.0,
        reservation: Some(("8ms/10ms".to_owned(), 7_000_000)),
        ..plan(block, PACKET, None)
    }
}

/// Encryption, on a tenth of a processor. The program's other threads have four tenths.
fn machine_plan(block: u32, size: Bytes) -> ChannelPlan {
    ChannelPlan {
        reservation: Some(("5ms/10ms".to_owned(), 1_000_000)),
        ..plan(block, size, Some("encryption"))
    }
}

/// Rounds of measurements.
const ROUNDS: usize = 3;
/// The part of the best throughput that is reasonable.
const REASONABLE: f64 = 0.95;
/// Packets between two preemption points.
const BLOCKS: [u32; 6] = [1, 2, 4, 8, 16, 32];
/// The same with the paper's costs: 32 of these packets take longer than a block may.
const PAPER_BLOCKS: [u32; 5] = [1, 2, 4, 8, 16];
/// Bytes of packets in the simulator.
const PAPER_SIZES: [u32; 6] = [512, 1_024, 2_048, 4_096, 8_192, 16_384];
/// Bytes of packets of direct flows. The last is the longest that an MTU of 1,500 lets through.
const SIZES: [u32; 6] = [128, 256, 512, 1_024, 1_452, 1_472];
/// A message of best effort.
const BULK: Bytes = Bytes(65_536);
/// The channel that is asked for again and again, with the paper's costs and with this machine's.
const PAPER_CHANNEL: &str = "channel mmax=8KiB,rmax=20/s,bmax=1,deadline=30ms";
const MACHINE_CHANNEL: &str = "channel mmax=8KiB,rmax=10/s,bmax=1,deadline=60ms,processing=30ms";
/// More channels than fit.
const MOST: usize = 1_000;
/// How often the costs of this machine are measured. The lowest values count.
const MEASUREMENTS: u32 = 3;
/// Bytes of the headers before a payload: Ethernet, IPv4 and UDP.
const FRAME_HEADERS: u64 = 42;

#[cfg(test)]
mod tests {
    use super::*;

    fn row(value: u32, channels: u32, rate: f64) -> Row {
        Row {
            value,
            channels,
            rate,
        }
    }

    #[test]
    fn the_rule_takes_the_most_channels_at_reasonable_throughput() {
        let rows = [
            row(1, 30, 80.0),
            row(2, 20, 95.0),
            row(4, 20, 99.0),
            row(8, 10, 100.0),
        ];
        assert_eq!(choose(&rows).map(|row| row.value), Some(2));
        assert_eq!(choose(&rows[..1]).map(|row| row.value), Some(1));
        assert!(choose(&[]).is_none());
    }

    /// Longer blocks and larger packets delay an earlier deadline for longer, and small packets
    /// cost more time for the same bytes.
    #[test]
    fn with_the_papers_costs_fewer_channels_fit_beside_longer_blocks() {
        let fit = |block, size| paper_channels(block, Bytes(size)).expect("valid");
        let [one, four, sixteen] = [1, 4, 16].map(|block| fit(block, 4_096));
        assert!(
            one >= four && four > sixteen && sixteen > 0,
            "{one} {four} {sixteen}"
        );
        assert!(fit(4, 512) < fit(4, 2_048));
    }

    #[test]
    fn a_default_that_the_rows_lack_is_an_error() {
        let mut outcome = crate::experiment::find("rtc-p")
            .expect("registered")
            .outcome(crate::experiment::Subject::Netnice);
        let rows = [row(1, 30, 96.0), row(2, 20, 100.0)];
        judge(&mut outcome, &OWN_P, &rows, 2).expect("among the rows");
        let holds: Vec<bool> = outcome.checks.iter().map(|check| check.holds).collect();
        assert_eq!(holds, [true, false]);
        assert!(judge(&mut outcome, &OWN_P, &rows, 4).is_err());
        compare_with_table_1(&mut outcome, &PAPER_P, &rows, 1).expect("among the rows");
        assert!(outcome.notes[0].contains("our rule chooses P = 1 (30 channels, 96.0 %"));
    }

    #[test]
    fn a_packet_of_the_paper_takes_40_us_and_50_ns_for_each_byte() {
        let time = transmission_us(&wire().expect("valid"), 4_096);
        assert!((time - 244.8).abs() < 1e-9, "{time}");
        let rows = [row(1, 30, 96.0), row(4, 20, 100.0)];
        let svg = chart(&PAPER_P, &rows, (4, "table 1"));
        assert!(svg.contains("table 1: 4") && svg.contains(">95 %<"));
    }
}

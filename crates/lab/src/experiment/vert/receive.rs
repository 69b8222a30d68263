//! Repeats figure 7 of the paper VERT on real packets: two programs receive through the driver; the
//! second becomes slower and slower, and must lose more packets in the last third of the run than
//! in the first. The first must not lose a packet. Every sent packet must have been received or be
//! counted as lost, and the kernel must lose none before the driver. Fails if the senders' kernel
//! refused to send a packet.
//!
//! Each function adds its checks and the measured values to an [`Outcome`]. It fails if the subject
//! is not netnice, if a step of the measurement fails, or if a plot cannot be written.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use netnice_core::units::Nanos;
use serde_json::json;

use super::super::bench::{at, netnice_only, pause};
use super::super::driver_world::{DriverWorld, note_mode};
use super::super::{Bound, Context, Outcome};
use crate::direct::{EndedDriver, RunningReceiver};
use crate::plot::{Chart, Series, palette};
use crate::traffic::{self, Udp};
use crate::world::Family;

/// Samples over time: seconds, and packets received and lost by each consumer.
struct Samples {
    counts: Vec<(f64, [(u64, u64); 2])>,
}

/// Figure 7: two consumers receive 40 and 45 Mbit/s of UDP from the kernel of another host. After
/// every 20,000 packets (2,000 in the quick form) the second consumer works longer on each packet.
/// Fails if the subject is not netnice, and as
/// [`Experiment::run`](crate::experiment::Experiment::run) does.
pub fn figure7(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    // Packets in a step. The second sender sends seven steps, and the first sends for the same
    // time.
    let step = if context.quick { 2_000 } else { 20_000 };
    let counts = [7 * step * 40 / 45, 7 * step];
    let DriverWorld { world, mut setup } = DriverWorld::new(1_000_000_000, Nanos(0))?;
    let (client, server) = (world.client(), world.server());
    let ports = [6001, 6002];
    let first = setup
        .add_receiver(&world, ports[0], None)?
        .start(|_| Duration::ZERO)?;
    let second = setup
        .add_receiver(&world, ports[1], None)?
        .start(move |number| WORK * (number / step) as u32)?;
    let mode = setup.mode();
    let running_driver = setup.start(None)?;
    note_mode(outcome, mode, &running_driver);
    let mut senders = Vec::new();
    for (number, (port, rate)) in ports.into_iter().zip(RATES).enumerate() {
        let from = at(server, Family::V4, port);
        let udp = Udp::source(from, at(client, Family::V4, port)).rate(rate);
        senders.push(traffic::start_waiting(
            server,
            &udp.size(1458).count(counts[number]),
        )?);
    }
    for sender in &mut senders {
        sender.go()?;
    }
    let seen = Samples::watch([&first, &second], counts);
    let mut sent = Vec::new();
    for sender in senders {
        let report = sender.stop()?;
        ensure!(
            report.refused.is_empty(),
            "the sender's kernel refused: {:?}",
            report.refused
        );
        sent.push(report.sends);
    }
    let mut ended_driver = running_driver.end()?;
    let link = ended_driver.event_loop().link().counters();
    outcome.paper = json!("the second one's losses rise, the first is unperturbed");
    check_losses(outcome, &mut ended_driver, [&first, &second], &sent, ports)?;
    let missed = link.missed as f64;
    outcome.check(
        "frames that the kernel lost before the driver",
        missed,
        "",
        Bound::AtMost(0.0),
    );
    seen.check(outcome);
    first.end()?;
    second.end()?;
    outcome.plot(context, "vert-fig7", || seen.chart())
}

/// Checks that each packet was received or counted as lost, and that only the second consumer
/// loses packets.
fn check_losses(
    outcome: &mut Outcome,
    ended_driver: &mut EndedDriver,
    receivers: [&RunningReceiver; 2],
    sent: &[u64],
    ports: [u16; 2],
) -> Result<()> {
    let mut losses = Vec::new();
    for (number, receiver) in receivers.into_iter().enumerate() {
        let counters = ended_driver.counters(ports[number])?;
        let lost = counters.no_buffer + counters.too_short + counters.over_budget;
        outcome.ours(
            &format!("consumer {}", number + 1),
            json!({
                "sent": sent[number], "received": receiver.received(), "lost": lost,
                "lost, as the program reads": receiver.lost(),
            }),
        );
        let apart = sent[number].abs_diff(receiver.received() + lost);
        let what = format!(
            "consumer {}: sent, less received and counted as lost",
            number + 1
        );
        outcome.check(what, apart as f64, "packets", Bound::AtMost(0.0));
        losses.push(lost as f64);
    }
    let what = "the first consumer loses";
    outcome.check(what, losses[0], "packets", Bound::AtMost(0.0));
    let what = "the second consumer loses";
    outcome.check(what, losses[1], "packets", Bound::AtLeast(1.0));
    Ok(())
}

impl Samples {
    /// Samples every quarter of a second until all packets are received or lost, or until the
    /// counts no longer change.
    fn watch(receivers: [&RunningReceiver; 2], counts: [u64; 2]) -> Samples {
        let begin = Instant::now();
        let mut seen = vec![(0.0, [(0, 0); 2])];
        loop {
            pause(0.25);
            let now = receivers.map(|one| (one.received(), one.lost()));
            let over = now
                .iter()
                .zip(counts)
                .all(|((got, lost), sent)| got + lost >= sent);
            let before = seen.last().map(|(_, before)| *before);
            seen.push((begin.elapsed().as_secs_f64(), now));
            // Or until nothing changes: the sums then show the missing packets.
            if over || (before == Some(now) && now[0].0 > 0) {
                return Samples { counts: seen };
            }
        }
    }

    /// The share in percent that a consumer lost, in every quarter of a second.
    fn losses(&self, of: usize) -> Vec<(f64, f64)> {
        let pairs = self.counts.windows(2);
        let part = |pair: &[(f64, [(u64, u64); 2])]| {
            let ((_, before), (at, after)) = (pair[0], pair[1]);
            let got = after[of].0 - before[of].0;
            let lost = after[of].1 - before[of].1;
            (at, lost as f64 / (got + lost).max(1) as f64 * 100.0)
        };
        pairs.map(part).collect()
    }

    fn check(&self, outcome: &mut Outcome) {
        let all = self.losses(1);
        let third = all.len() / 3;
        let mean = |part: &[(f64, f64)]| {
            part.iter().map(|(_, lost)| lost).sum::<f64>() / part.len().max(1) as f64
        };
        let (early, late) = (mean(&all[..third]), mean(&all[all.len() - third..]));
        outcome.ours(
            "consumer 2 loses, %, in the first and the last third",
            [early, late],
        );
        outcome.check(
            "consumer 2 loses more in the last third than in the first, by",
            late - early,
            "%",
            Bound::AtLeast(5.0),
        );
    }

    fn chart(&self) -> String {
        let mut chart = Chart::new("VERT, figure 7", "time, s", "packets in a second");
        for of in [0, 1] {
            let pairs = self.counts.windows(2);
            let rate = pairs.map(|pair| {
                let got = pair[1].1[of].0 - pair[0].1[of].0;
                (pair[1].0, got as f64 / (pair[1].0 - pair[0].0))
            });
            let colour = palette::SERIES[1 + of];
            chart = chart.with(Series::new(
                format!("consumer {} receives", of + 1),
                colour,
                rate.collect(),
            ));
        }
        let pairs = self.counts.windows(2);
        let lost = pairs.map(|pair| {
            let lost = pair[1].1[1].1 - pair[0].1[1].1;
            (pair[1].0, lost as f64 / (pair[1].0 - pair[0].0))
        });
        chart
            .with(Series::new(
                "consumer 2 loses",
                palette::RED,
                lost.collect(),
            ))
            .svg()
    }
}

/// Rates of both senders, in bit/s.
const RATES: [u64; 2] = [40_000_000, 45_000_000];
/// Increase of the second consumer's work on a packet in each step. At 45 Mbit/s a packet comes
/// every 267 us.
const WORK: Duration = Duration::from_micros(80);

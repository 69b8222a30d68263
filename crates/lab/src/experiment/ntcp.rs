//! Repeats figure 4 of the paper NTCP (Voigt, Ahlgren: Scheduling TCP in the Nemesis operating
//! system) in the simulator: how many packets a backlogged sender gets in each period of its slice.
//! [`real`] repeats this figure, the table of rates and figure 5 on real packets, [`raw`] the
//! comparison of speed with the kernel's TCP, and [`processor_time`] figures 6 and 7 and table 1,
//! where programs reserve processor time too. [`packet_costs`] judges `cpu auto`.
//!
//! Each function adds its checks and the measured values to an [`Outcome`]. It fails if the subject
//! is not netnice, if a step of the simulation fails, or if a plot cannot be written.

pub mod packet_costs;
pub mod processor_time;
pub mod raw;
pub mod real;
mod segments;
mod testbed;

use anyhow::Result;
use netnice_core::units::Nanos;
use netnice_sim::SentPacket;
use serde_json::json;

use super::simulated::{bins, greedy, link, ms, netnice_only, simulate};
use super::{Bound, Context, Outcome};
use crate::plot::{Chart, Series, palette};

/// Figure 4: on a link of 10 Mbit/s, where a packet of 1500 bytes takes 1.2 ms, a slice of 2.4 ms
/// in 50 ms must give exactly 2 packets in 99 % of the periods. The slice of 3 ms in the paper's
/// footnote must give 2 or 3 in every period, and 2.5 on average. Fails if the subject is not
/// netnice, and as [`Experiment::run`](crate::experiment::Experiment::run) does.
pub fn figure4_simulated(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context)?;
    let seconds = if context.quick { 10 } else { 1000 };
    let (end, periods) = (ms(seconds * 1000), seconds * 20);
    outcome.paper = json!([
        {"slice": "2.4 ms of 50 ms", "packets in a period": "2, then silence"},
        {"slice": "3 ms of 50 ms", "packets in a period": "2 or 3, \"2.5\""},
    ]);
    let sent = backlogged("2.4ms", end)?;
    let even = bins(&sent, 0, ms(0), end, ms(50));
    let exact = even.iter().filter(|packets| **packets == 2).count();
    let share = exact as f64 / periods as f64 * 100.0;
    let what = "slice 2.4 ms: periods with exactly 2 packets";
    outcome.check(what, share, "%", Bound::AtLeast(99.0));
    let odd = bins(&backlogged("3ms", end)?, 0, ms(0), end, ms(50));
    let others = odd
        .iter()
        .filter(|packets| !(2..=3).contains(*packets))
        .count();
    let what = "slice 3 ms: periods with neither 2 nor 3 packets";
    outcome.check(what, others as f64, "periods", Bound::AtMost(0.0));
    let mean = |counts: &[u32]| counts.iter().sum::<u32>() as f64 / periods as f64;
    let bound = Bound::Near {
        aim: 2.5,
        share: 0.008,
    };
    let what = "slice 3 ms: packets in a period, mean";
    outcome.check(what, mean(&odd), "packets", bound);
    let row = |slice: &str, counts: &[u32]| {
        json!({
            "slice": slice, "periods": counts.len(),
            "packets in a period, mean": mean(counts),
            "least": counts.iter().min(), "most": counts.iter().max(),
        })
    };
    let rows = [row("2.4 ms of 50 ms", &even), row("3 ms of 50 ms", &odd)];
    outcome.ours("packets in each period", rows);
    outcome.note("Simulated: the scheduler alone, with a sender that always has a packet to send.");
    outcome.plot(context, "ntcp-fig4-sim", || {
        let first = sent.iter().take_while(|one| one.start.0 < ms(1000).0);
        let points = (1..)
            .zip(first)
            .map(|(number, one)| (one.end.0 as f64 / 1e9, f64::from(number) * 1.5));
        let title = "Packets of a slice of 2.4 ms in 50 ms, 10 Mbit/s (simulated)";
        Chart::new(title, "time, s", "sent, kB with all headers")
            .with(Series::new("packets", palette::BLUE, points.collect()).dots())
            .without_legend()
            .svg()
    })
}

/// The packets of a backlogged sender with this slice in 50 ms.
fn backlogged(slice: &str, until: Nanos) -> Result<Vec<SentPacket>> {
    let mut world = link("10mbit", 1500)?;
    let contract = format!("slice {slice}/50ms");
    world.flows.push(greedy("tcp", &contract, 1500)?);
    Ok(simulate(&world, until)?.1)
}

//! Random mixes of senders, each with a slice of the link and `cpu auto`, admitted until one is
//! refused, beside carnage. The costs are those that `netnice doctor --measure` finds at the
//! beginning. Each sender must send at least 99 % of its slice. With 80 % of the processor time
//! that `cpu auto` chose, at least one of each mix must not, so that the costs have no slack.
//!
//! The link has 400 Mbit/s: at more, the driver needs the whole processor, comes before all, and
//! netniced, which is there too, does not answer any more.
//!
//! [`mixes`] adds its checks and the measured values to an [`Outcome`]. It fails if the subject is
//! not netnice, if the machine has one processor, or if a step of the measurement fails.

use anyhow::{Context as _, Result, ensure};
use netnice_sim::Random;
use serde_json::{Value, json};

use super::super::bench::{MBIT, netnice_only, pause};
use super::super::{Bound, Context, Outcome};
use super::testbed::{OneProcessor, Sender};
use crate::sys;

/// A sender of a mix.
struct Member {
    sender: Sender,
    /// Its slice in 2 ms of a link of 400 Mbit/s, in us: 5 times its rate in Mbit/s.
    slice: u64,
    /// The reserved time and its period, in ns.
    reserved: (u64, u64),
}

/// See the module.
pub fn mixes(context: &Context, outcome: &mut Outcome) -> Result<()> {
    netnice_only(context.subject)?;
    let (count, seconds) = if context.quick { (2, 2.0) } else { (20, 3.0) };
    let bed = OneProcessor::new("400mbit")?;
    let costs = bed.netnice.run_line("doctor --measure --json")?.stdout;
    context.say(costs.trim());
    let measured: Value = serde_json::from_str(costs.trim()).unwrap_or_else(|_| json!(costs));
    outcome.ours("costs that `netnice doctor --measure` found", measured);
    let mut random = Random::new(SEED);
    let (mut lowest, mut tight, mut table) = (f64::MAX, 0, Vec::new());
    for number in 0..count {
        let members = admitted(&bed, &mut random)?;
        ensure!(!members.is_empty(), "not even one sender was admitted");
        let carnage = bed.carnage(4, 0)?;
        let with_auto = measure(seconds);
        for member in &members {
            let (time, period) = member.reserved;
            let less = time * 4 / 5;
            bed.reserve(member.sender.pid(), &format!("{less}ns/{period}ns"))?;
        }
        let with_less = measure(seconds);
        drop(carnage);
        let mut rows = Vec::new();
        for member in members {
            let slice = member.slice / 5;
            let [auto, less] = carried(member, [with_auto, with_less])?;
            rows.push((slice, auto, less));
        }
        context.say(format!(
            "mix {number}: (Mbit/s, part with auto, with 80 %) {rows:.3?}"
        ));
        for (slice, auto, less) in &rows {
            table.push(json!({
                "mix": number + 1,
                "slice of the link, Mbit/s": slice,
                "sent of it with cpu auto, %": auto * 100.0,
                "sent with 80 % of that processor time, %": less * 100.0,
            }));
        }
        let least = rows.iter().map(|row| row.1).fold(f64::MAX, f64::min);
        lowest = lowest.min(least);
        tight += u32::from(rows.iter().any(|row| row.2 < 0.99));
    }
    outcome.ours("senders of each mix", table);
    let what = "part of a sender's slice that was sent with cpu auto: least of all senders";
    outcome.check(what, lowest * 100.0, "%", Bound::AtLeast(99.0));
    let what = "control: mixes in which 80 % of that processor time do not suffice for all senders";
    let part = f64::from(tight) / f64::from(count) * 100.0;
    outcome.check(what, part, "%", Bound::AtLeast(100.0));
    Ok(())
}

/// Starts senders with random slices until one is refused, at most [`MOST`].
fn admitted(bed: &OneProcessor, random: &mut Random) -> Result<Vec<Member>> {
    let mut members: Vec<Member> = Vec::new();
    for number in 0..MOST {
        let slice = 80 + random.below(420);
        let Ok(sender) = bed.sender(number, &format!("slice {slice}us/2ms"), 0) else {
            break;
        };
        let pid = sender.pid();
        if bed.try_to_reserve(pid, "auto")?.is_some() {
            break;
        }
        let shown = bed.netnice.show()?;
        let targets = shown["targets"].as_array().context("the targets")?;
        let name = format!("pid:{pid}");
        let target = targets.iter().find(|one| one["target"] == name.as_str());
        let time = &target.context("the target")?["processor_time"]["reserved"];
        let nanos = |key: &str| time[key].as_u64().context("its time");
        members.push(Member {
            sender,
            slice,
            reserved: (nanos("slice_ns")?, nanos("period_ns")?),
        });
    }
    Ok(members)
}

/// Lets the senders send. Returns begin and end (wall clock, ns), without the time in which rates
/// settle.
fn measure(seconds: f64) -> (u64, u64) {
    pause(SETTLE);
    let from = sys::now_ns();
    pause(seconds);
    let until = sys::now_ns();
    // The receivers take a further sample.
    pause(0.1);
    (from, until)
}

/// Ends a sender. Returns the parts of its slice that it sent in these times.
fn carried(member: Member, spans: [(u64, u64); 2]) -> Result<[f64; 2]> {
    let Sender { running, sink, .. } = member.sender;
    let sent = running.stop()?;
    ensure!(sent.refused.is_empty(), "{:?}", sent.refused);
    let received = sink.stop()?.received_payload();
    let allowed = member.slice as f64 / 5.0 * MBIT * PAYLOAD_PART;
    let mut parts = [0.0; 2];
    for (part, (from, until)) in parts.iter_mut().zip(spans) {
        let rate = received
            .rate(from, until)
            .context("the receiver's samples")?;
        *part = rate / allowed;
    }
    Ok(parts)
}

/// Payload of a frame of 1500 bytes: 1434.
const PAYLOAD_PART: f64 = 1434.0 / 1500.0;
const MOST: u16 = 12;
const SETTLE: f64 = 1.5;
const SEED: u64 = 19;

//! Tests of real-time channels at the daemon, on real packets: what each overload policy does with
//! messages beyond the contract, and which message the late pieces of a stopped program belong to.
//!
//! The times that are judged are those at which the driver sent a packet. The bounds are large
//! parts of the spacing of messages, which is 250 ms and more.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use netnice_lab::experiment::bench::at;
use netnice_lab::process::EVENT_TIMEOUT;
use netnice_lab::sys;
use netnice_lab::traffic::{self, Commanded, MessageShape, Udp};
use netnice_lab::world::Family;
use serde_json::Value;

use super::FlowBed;

const MS: u64 = 1_000_000;
const ONE_PACKET: MessageShape = MessageShape {
    parts: 1,
    size: 1400,
};

impl FlowBed {
    fn messages(&self, port: u16, contract: &str, shape: MessageShape) -> Result<Commanded> {
        let to = at(self.world.server(), Family::V4, 9);
        let ends = (self.client_endpoint(port), to);
        let (client, runtime) = (self.world.client(), self.netnice.runtime());
        Commanded::messages(client, runtime, ends, contract, shape)
    }
}

fn number(answer: &Value, name: &str) -> Result<u64> {
    let number = answer[name].as_u64();
    number.with_context(|| format!("{answer} has no number {name}"))
}

/// Waits for all packets, which must have been sent, and returns the times.
fn sent_at(source: &mut Commanded) -> Result<Vec<u64>> {
    let outcomes = source.run("outcomes", "stamp_ns")?;
    let numbers = |name: &str| -> Vec<u64> {
        let all = outcomes[name].as_array().into_iter().flatten();
        all.filter_map(Value::as_u64).collect()
    };
    ensure!(
        numbers("status").iter().all(|status| *status == 0),
        "{outcomes}"
    );
    Ok(numbers("stamp_ns"))
}

/// Ten messages at once with Bmax 3 and Rmax 4/s: what the call says, what is counted, and what
/// leaves when. Whatever the policy, the driver keeps the contract.
#[test]
fn messages_beyond_the_contract_follow_the_overload_policy() -> Result<()> {
    const SPACING: u64 = 250 * MS;
    const OFFERED: u64 = 10;
    let flow_bed = FlowBed::new()?;
    let to = at(flow_bed.world.server(), Family::V4, 9);
    let sink = traffic::start_now(flow_bed.world.server(), &Udp::sink(to))?;
    let mut all = 0;
    for (port, policy) in (5000..).zip(["", "block", "decay", "space", "drop", "best-effort"]) {
        let mut contract = "channel mmax=1500B,rmax=4/s,bmax=3,deadline=50ms".to_owned();
        if !policy.is_empty() {
            contract += &format!(",overload={policy}");
        }
        let mut source = flow_bed.messages(port, &contract, ONE_PACKET)?;
        let flows = flow_bed.flows()?;
        let shown = flows.iter().find(|flow| flow["pid"] == source.pid());
        let shown = &shown.context("a flow")?["contract"]["channel"]["overload"];
        let policy = if policy.is_empty() { "block" } else { policy };
        assert_eq!(shown, policy);
        let tried = source.run(&format!("try {OFFERED}"), "dropped")?;
        let (sent, held_back) = (number(&tried, "sent")?, number(&tried, "held_back")?);
        let dropped = number(&tried, "dropped")?;
        assert_eq!(sent + held_back + dropped, OFFERED, "{policy}: {tried}");
        // Logical arrivals during the calls.
        let arrived = 1 + number(&tried, "took_ns")? / SPACING;
        let expected = match policy {
            "block" | "drop" => 3..=3 + arrived,
            "space" => 1..=arrived,
            _ => OFFERED..=OFFERED,
        };
        assert!(
            expected.contains(&sent),
            "{policy}: {tried}, not {expected:?}"
        );
        assert_eq!(dropped > 0, policy == "drop", "{policy}: {tried}");
        let times = sent_at(&mut source)?;
        assert_eq!(times.len() as u64, sent, "{policy}");
        let (first, last) = (times[0], times[times.len() - 1]);
        if policy == "best-effort" {
            let took = last - first;
            assert!(took < (OFFERED - 1) * SPACING / 2, "{policy}: {took} ns");
        } else {
            for (number, time) in (0..).zip(&times) {
                let earliest = (first + number * SPACING).saturating_sub(SPACING / 4);
                assert!(*time >= earliest, "{policy}: message {number} of {times:?}");
            }
        }
        all += sent;
        if policy == "block" || policy == "space" {
            // A call that waits sends all of them.
            let done = source.run("send 3", "took_ns")?;
            assert_eq!(number(&done, "sent")?, 3, "{policy}");
            all += 3;
            sent_at(&mut source)?;
        }
    }
    let got = sink.stop()?;
    assert_eq!(got.received, all * u64::from(ONE_PACKET.size));
    Ok(())
}

/// Sends the signal to the program.
fn signal(source: &Commanded, signal: i32) -> Result<()> {
    Ok(sys::kill(source.pid() as i32, signal)?)
}

/// Sends a third of a message, stops the program for a third of a second, and sends the rest and
/// then another message. Returns the times at which the rest was queued, and at which packets left;
/// `None` if the program was not awake again in time.
fn stopped_in_a_message(source: &mut Commanded) -> Result<Option<(u64, Vec<u64>)>> {
    source.run("begin 4", "queued_ns")?;
    signal(source, libc::SIGSTOP)?;
    let command = source.command("continue 8");
    std::thread::sleep(Duration::from_millis(333));
    signal(source, libc::SIGCONT)?;
    command?;
    let queued = number(&source.answer("queued_ns", EVENT_TIMEOUT)?, "queued_ns")?;
    source.run("begin 1", "queued_ns")?;
    let times = sent_at(source)?;
    let in_time = queued < times[0] + 600 * MS;
    Ok(in_time.then_some((queued, times)))
}

#[test]
fn late_pieces_belong_to_their_message() -> Result<()> {
    const SPACING: u64 = 1_000 * MS;
    let flow_bed = FlowBed::new()?;
    let channel = "channel mmax=18000B,rmax=1/s,bmax=3";
    for (port, deadline, keeps) in [
        (5100, "deadline=20ms", false),
        (5200, "deadline=900ms,processing=800ms", true),
    ] {
        let mut run = None;
        for attempt in 0..5 {
            let contract = format!("{channel},{deadline}");
            let mut source = flow_bed.messages(port + attempt, &contract, ONE_PACKET)?;
            run = stopped_in_a_message(&mut source)?;
            if run.is_some() {
                break;
            }
        }
        let (queued, times) = run.context("the program was never awake in time")?;
        assert_eq!(times.len(), 13);
        let (first, rest, next) = (times[0], times[11], times[12]);
        // A message of its own would leave a second after the first packet.
        assert!(
            rest < first + SPACING * 3 / 4,
            "{deadline}: {rest} after {first}"
        );
        assert!(
            next >= first + SPACING * 9 / 10,
            "{deadline}: {next} after {first}"
        );
        // Within the processing the message keeps its times, and so does the next message.
        // Otherwise they move as much as the pieces are late.
        let moved = next >= queued + SPACING * 9 / 10;
        assert_eq!(moved, !keeps, "{deadline}: {next} after {queued}");
    }
    Ok(())
}

#[test]
fn invalid_parts_of_a_channel_are_one_clear_error() -> Result<()> {
    let flow_bed = FlowBed::new()?;
    let channel = "channel mmax=1500B,rmax=4/s,bmax=3,deadline=50ms";
    for (part, words) in [
        (
            "overload=weep",
            ["unknown overload policy `weep`", "best-effort"],
        ),
        ("processing=50ms", ["processing=50ms", "below the deadline"]),
        ("processing=5s", ["processing=5s", "at most 4s"]),
        (
            "processing=49990us",
            ["does not fit", "a deadline of at least"],
        ),
    ] {
        let contract = format!("{channel},{part}");
        let error = flow_bed.messages(5000, &contract, ONE_PACKET).err();
        let error = format!("{:#}", error.context(part.to_owned())?);
        for word in words {
            assert!(error.contains(word), "{word}: {error}");
        }
    }
    assert!(flow_bed.flows()?.is_empty());
    Ok(())
}

//! What each flow of a run did ([`FlowResult`]), on packets or simulated, and the tables of
//! contracts and results that the experiments show. People read these tables without the code, so
//! each column names its quantity and unit; 1 kB is 1,000 bytes. Only [`contracts`] and
//! [`deadlines`] fail, if a text is not the contract of a channel.

use anyhow::Result;
use netnice_core::units::Nanos;
use serde_json::{Value, json};

use super::{NAMES, channel};
use crate::alibi::Verdict;
use crate::experiment::{Bound, Outcome};

/// What one flow did in a run.
#[derive(Clone, Debug)]
pub(super) struct FlowResult {
    pub name: &'static str,
    /// kB/s that left.
    pub throughput: f64,
    /// Messages that were offered.
    pub offered: u64,
    /// Messages that found no room, but for those that were sent too soon.
    pub dropped: u64,
    /// Messages after their deadline. `None` for best effort, as are the laxities.
    pub late: Option<u64>,
    /// In ms.
    pub least_laxity: Option<f64>,
    /// In ms.
    pub mean_laxity: Option<f64>,
    /// What only a run on packets has.
    pub on_packets: Option<OnPackets>,
}

/// Counts of a run on packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct OnPackets {
    /// Messages that came sooner after those before than the contract permits, and found no room.
    /// `None` for best effort, which has no contract.
    pub too_soon: Option<u64>,
    /// Messages that the sink had.
    pub received: u64,
    /// The longest time by which the program offered a message late, in ms.
    pub offered_late: f64,
}

impl FlowResult {
    /// All messages that were not accepted.
    pub(super) fn not_accepted(&self) -> u64 {
        let too_soon = self.on_packets.and_then(|one| one.too_soon);
        self.dropped + too_soon.unwrap_or(0)
    }

    fn columns(&self) -> Value {
        let mut columns = json!({
            "flow": self.name,
            "throughput, kB/s": self.throughput.round(),
            "offered, messages": self.offered,
            "late, messages": self.late,
            "least laxity, ms": self.least_laxity,
            "mean laxity, ms": self.mean_laxity,
        });
        let dropped = match self.on_packets {
            None => json!({"dropped, messages": self.dropped}),
            Some(counts) => json!({
                "dropped by netnice, messages": self.dropped,
                "refused because sent too soon, messages": counts.too_soon,
                "received by the sink, messages": counts.received,
                "offered late at most, ms": counts.offered_late,
            }),
        };
        extend(&mut columns, dropped);
        columns
    }
}

/// A table with a row for each flow of each run. The members of a run's object come first.
pub(super) fn table(runs: impl IntoIterator<Item = (Value, Vec<FlowResult>)>) -> Value {
    let rows = |(of_run, flows): (Value, Vec<FlowResult>)| {
        let row = move |flow: FlowResult| {
            let mut row = of_run.clone();
            extend(&mut row, flow.columns());
            row
        };
        flows.into_iter().map(row)
    };
    runs.into_iter().flat_map(rows).collect()
}

/// Adds the members of an object to another one.
fn extend(object: &mut Value, more: Value) {
    if let (Value::Object(object), Value::Object(more)) = (object, more) {
        object.extend(more);
    }
}

/// A table of the channels' contracts. `handlers` has the part of each deadline that is for the
/// processing; `None` for the one in the contracts.
pub(super) fn contracts(texts: &[&str; 3], handlers: Option<&[Nanos; 3]>) -> Result<Value> {
    let row = |(number, text): (usize, &&str)| -> Result<Value> {
        let channel = channel(text)?;
        let kind = match channel.bmax() {
            1 => "periodic",
            _ => "bursts",
        };
        let handler = handlers.map_or(channel.processing(), |parts| parts[number]);
        let rate = channel.mmax().0 as f64 * f64::from(channel.rmax().get()) / 1e3;
        Ok(json!({
            "channel": format!("{} ({kind})", NAMES[number]),
            "message size Mmax, bytes": channel.mmax().0,
            "Rmax, messages/s": channel.rmax().get(),
            "Bmax, messages in a burst": channel.bmax(),
            "Mmax × Rmax, kB/s": rate.round(),
            "deadline, ms": ms(channel.deadline()),
            "of it for the handler, ms": ms(handler),
        }))
    };
    texts.iter().enumerate().map(row).collect()
}

/// The deadlines of channels, in ms. Fails as the module says.
pub(super) fn deadlines(texts: [&str; 3]) -> Result<[f64; 3]> {
    let of = |text| anyhow::Ok(ms(channel(text)?.deadline()));
    let [first, second, third] = texts.map(of);
    Ok([first?, second?, third?])
}

fn ms(time: Nanos) -> f64 {
    time.0 as f64 / 1e6
}

/// Checks that no message was late that no recorded stop excuses, and that at most one in 1,000 was
/// late with an excuse.
pub(super) fn check_late(outcome: &mut Outcome, what: &str, verdict: Verdict, messages: usize) {
    let text = format!("{what}, not excused by a stop");
    let unexcused = verdict.unexcused as f64;
    outcome.check(text, unexcused, "messages", Bound::AtMost(0.0));
    let text = format!("{what}, excused by a stop, of every 1,000");
    let excused = verdict.excused as f64 * 1_000.0 / messages.max(1) as f64;
    outcome.check(text, excused, "messages", Bound::AtMost(1.0));
}

/// Late messages among all of the channels.
pub(super) fn late(verdict: Verdict, messages: usize) -> Value {
    json!({
        "messages of all channels": messages,
        "late, not excused by a stop": verdict.unexcused,
        "late, excused by a stop": verdict.excused,
    })
}

/// A row of a table of late messages.
pub(super) fn late_row(case: &str, verdict: Verdict, messages: usize) -> Value {
    let mut row = json!({"case": case});
    extend(&mut row, late(verdict, messages));
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(late: Option<u64>) -> FlowResult {
        FlowResult {
            name: "channel 0",
            throughput: 921.6,
            offered: 600,
            dropped: 1,
            late,
            least_laxity: None,
            mean_laxity: None,
            on_packets: Some(OnPackets {
                too_soon: late.map(|_| 2),
                received: 597,
                offered_late: 0.5,
            }),
        }
    }

    #[test]
    fn each_flow_of_each_run_is_a_row_with_the_same_columns() {
        let run = |load: u64| (json!({"load, kB/s": load}), vec![flow(Some(0)), flow(None)]);
        let rows = table([run(200), run(400)]);
        let rows = rows.as_array().expect("a table");
        assert_eq!(rows.len(), 4);
        let columns = |row: &Value| -> Vec<String> {
            row.as_object().expect("a row").keys().cloned().collect()
        };
        assert!(rows.iter().all(|row| columns(row) == columns(&rows[0])));
        assert_eq!(rows[3]["load, kB/s"], 400);
        assert_eq!(rows[0]["refused because sent too soon, messages"], 2);
        assert_eq!(
            (flow(Some(0)).not_accepted(), flow(None).not_accepted()),
            (3, 1)
        );
    }

    #[test]
    fn the_table_of_contracts_has_their_numbers() {
        let texts = super::super::CHANNELS;
        let table = contracts(&texts, None).expect("contracts of channels");
        assert_eq!(table[0]["message size Mmax, bytes"], 61_440);
        assert_eq!(table[2]["deadline, ms"], 20.0);
        assert_eq!(deadlines(texts).ok(), Some([40.0, 30.0, 20.0]));
        assert!(contracts(&["", "", ""], None).is_err());
    }

    #[test]
    fn one_message_in_1000_may_be_late_with_an_excuse() {
        let holds = |excused, messages| {
            let mut outcome = crate::experiment::find("rtc-fig5")
                .expect("registered")
                .outcome(crate::experiment::Subject::Netnice);
            let verdict = Verdict {
                unexcused: 0,
                excused,
            };
            check_late(&mut outcome, "messages late", verdict, messages);
            outcome.checks.iter().all(|check| check.holds)
        };
        assert!(holds(2, 2_000) && holds(0, 0));
        assert!(!holds(3, 2_000));
    }
}

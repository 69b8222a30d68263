//! The result of a simulation: counts for each flow ([`FlowReport`]), and for the link
//! ([`Report`]). `Display` prints a table with one line for each flow, and the share of the time
//! for which the link was busy. The column `laxity, ms` has the least laxity (the time from a
//! message's departure to its deadline), and the column `early` has the number of packets that
//! violated the contract. Nothing here fails.

use std::fmt;

use netnice_core::policer::Violation;
use netnice_core::units::{Instant, Nanos};

/// The result for one flow.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FlowReport {
    /// Name of the flow.
    pub name: String,
    /// Messages that the source made. A greedy source counts as one message.
    pub offered: u64,
    /// Of these, messages that were dropped because the queue was full, or by the overload policy.
    pub dropped: u64,
    /// Messages that the sender held back at their arrival, because the overload policy did not
    /// admit them yet.
    pub held: u64,
    /// Packets that left.
    pub packets: u64,
    /// Bytes of these packets, without what the wire adds.
    pub bytes: u64,
    /// Messages of a channel that left completely; 0 for other contracts.
    pub messages: u64,
    /// Messages of a channel that left after their deadline, or had not left at the end although
    /// their deadline was over.
    pub missed: u64,
    /// The least laxity of a message, in ns: the time from its departure to its deadline, negative
    /// if it was late. `None` if no message of a channel left.
    pub least_laxity: Option<i64>,
    /// The sum of all laxities, in ns.
    pub laxities: i128,
    /// Packets that violated the contract; 0 if the flow has no policer.
    pub violations: u64,
    /// The first violation; `None` if there was none.
    pub first_violation: Option<Violation>,
    /// Messages that still wait at the end, with those that the sender holds back. If more packets
    /// than messages wait for the link, the number of packets counts.
    pub waiting: u64,
}

impl FlowReport {
    /// The mean laxity of the messages, in ns; `None` if no message of a channel left.
    pub fn mean_laxity(&self) -> Option<f64> {
        (self.messages > 0).then(|| self.laxities as f64 / self.messages as f64)
    }

    /// Counts a message of a channel that left at `at`. Both times are in ns.
    pub(crate) fn left(&mut self, at: u64, deadline: u64) {
        let laxity = i64::try_from(i128::from(deadline) - i128::from(at)).unwrap_or(i64::MAX);
        self.messages += 1;
        self.missed += u64::from(laxity < 0);
        self.laxities += i128::from(laxity);
        self.least_laxity = Some(self.least_laxity.map_or(laxity, |least| least.min(laxity)));
    }
}

/// The results for all flows.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The results of the flows, in the order of the simulation.
    pub flows: Vec<FlowReport>,
    /// The simulated time.
    pub until: Instant,
    /// Part of the simulated time for which the link was busy.
    pub busy: Nanos,
}

impl Report {
    /// The number of messages that missed their deadlines, over all flows.
    pub fn missed(&self) -> u64 {
        self.flows.iter().map(|flow| flow.missed).sum()
    }

    /// Packets that violated their contract, over all flows.
    pub fn violations(&self) -> u64 {
        self.flows.iter().map(|flow| flow.violations).sum()
    }

    /// The result of the flow with this name; `None` if there is none.
    pub fn flow(&self, name: &str) -> Option<&FlowReport> {
        self.flows.iter().find(|flow| flow.name == name)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widest = self.flows.iter().map(|flow| flow.name.chars().count());
        let width = widest.max().unwrap_or(0).max(4);
        let seconds = self.until.0 as f64 / 1e9;
        writeln!(
            f,
            "{:width$}  {:>9}  {:>8}  {:>8}  {:>9}  {:>10}  {:>6}  {:>11}  {:>8}",
            "flow",
            "offered",
            "held",
            "dropped",
            "packets",
            "Mbit/s",
            "missed",
            "laxity, ms",
            "early"
        )?;
        for flow in &self.flows {
            let rate = flow.bytes as f64 * 8.0 / 1e6 / seconds.max(1e-9);
            let laxity = match flow.least_laxity {
                Some(least) => format!("{:.3}", least as f64 / 1e6),
                None => "-".to_string(),
            };
            writeln!(
                f,
                "{:width$}  {:>9}  {:>8}  {:>8}  {:>9}  {rate:>10.3}  {:>6}  {laxity:>11}  {:>8}",
                flow.name,
                flow.offered,
                flow.held,
                flow.dropped,
                flow.packets,
                flow.missed,
                flow.violations,
            )?;
        }
        let busy = self.busy.0 as f64 / 1e7 / seconds.max(1e-9);
        writeln!(f, "link busy {busy:.2} % of {seconds} s")
    }
}

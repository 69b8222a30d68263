//! The connections of one target, with their rates between two responses of the daemon. The daemon
//! gives byte counts; this module computes the rates. No function fails; a rate is `None` if one of
//! the two byte counts is missing.

use std::collections::BTreeMap;

use netnice_api::{Connection, ConnectionsDoc};

/// Bytes that each connection has sent and received so far, by the inode of its socket.
type ByteCounts = BTreeMap<u64, [Option<u64>; 2]>;

/// The connections of one target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ConnectionList {
    /// The connections, highest rate first.
    pub lines: Vec<Line>,
    /// Number of further connections, which the response does not list.
    pub more: u64,
    /// Number of connections of other users, which this user may not see.
    pub of_others: u64,
    counts: ByteCounts,
    at_ns: u64,
}

/// One connection with its rates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// The daemon's data about the connection.
    pub connection: Connection,
    /// Sent and received rate in bit/s; `None` without two byte counts.
    pub rates: [Option<u64>; 2],
}

impl ConnectionList {
    /// Computes the rates from a response, and from the list of the response before.
    pub(super) fn new(doc: ConnectionsDoc, before: Option<&ConnectionList>) -> ConnectionList {
        let rates = |connection: &Connection| -> [Option<u64>; 2] {
            let Some(before) = before.filter(|before| before.at_ns < doc.at_ns) else {
                return [None; 2];
            };
            let Some(then) = before.counts.get(&connection.inode) else {
                return [None; 2];
            };
            let time = u128::from(doc.at_ns - before.at_ns);
            let rate = |then: Option<u64>, now: Option<u64>| {
                let bits = u128::from(now?.checked_sub(then?)?) * 8 * 1_000_000_000;
                u64::try_from(bits / time).ok()
            };
            [
                rate(then[0], connection.sent),
                rate(then[1], connection.received),
            ]
        };
        let counts = |c: &Connection| (c.inode, [c.sent, c.received]);
        let mut lines: Vec<Line> = doc
            .connections
            .iter()
            .map(|connection| Line {
                rates: rates(connection),
                connection: connection.clone(),
            })
            .collect();
        let total_rate = |line: &Line| {
            line.rates
                .iter()
                .flatten()
                .fold(0, |sum: u64, rate| sum.saturating_add(*rate))
        };
        lines.sort_by_key(|line| std::cmp::Reverse(total_rate(line)));
        ConnectionList {
            lines,
            more: doc.more,
            of_others: doc.of_others,
            counts: doc.connections.iter().map(counts).collect(),
            at_ns: doc.at_ns,
        }
    }
}

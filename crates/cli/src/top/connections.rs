//! The connections of one target, with their rates between two responses of the daemon, and the
//! sums of each remote host. The daemon gives byte counts; this module computes the rates. No
//! function fails; a rate is `None` if one of the two byte counts is missing.

use std::cmp::Reverse;
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
    /// Its rates; `None` without two byte counts.
    pub rates: Rates,
}

/// Sent and received rate in bit/s.
pub(super) type Rates = [Option<u64>; 2];

/// The connections to one remote host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Host {
    /// Its address.
    pub address: String,
    /// Number of connections.
    pub connections: u64,
    /// The sums of the rates that are known; `None` if none is.
    pub rates: Rates,
}

impl ConnectionList {
    /// Computes the rates from a response, and from the list of the response before.
    pub(super) fn new(doc: ConnectionsDoc, before: Option<&ConnectionList>) -> ConnectionList {
        let rates = |connection: &Connection| -> Rates {
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
        lines.sort_by_key(|line| Reverse(sum(line.rates)));
        ConnectionList {
            lines,
            more: doc.more,
            of_others: doc.of_others,
            counts: doc.connections.iter().map(counts).collect(),
            at_ns: doc.at_ns,
        }
    }

    /// The remote hosts of the listed connections, highest rate first, then most connections.
    pub(super) fn hosts(&self) -> Vec<Host> {
        let mut hosts: BTreeMap<&str, Host> = BTreeMap::new();
        for line in &self.lines {
            let Some(address) = line.connection.peer.as_deref().map(address) else {
                continue;
            };
            let host = hosts.entry(address).or_insert_with(|| Host {
                address: address.to_string(),
                connections: 0,
                rates: [None; 2],
            });
            host.connections += 1;
            for (sum, rate) in host.rates.iter_mut().zip(line.rates) {
                *sum = match (*sum, rate) {
                    (Some(sum), Some(rate)) => Some(sum.saturating_add(rate)),
                    (sum, rate) => sum.or(rate),
                };
            }
        }
        let mut hosts: Vec<Host> = hosts.into_values().collect();
        hosts.sort_by_key(|host| Reverse((sum(host.rates), host.connections)));
        hosts
    }
}

/// The address in a text of address and port; an address of IPv6 is in brackets there.
fn address(end: &str) -> &str {
    let address = end.rsplit_once(':').map_or(end, |(address, _)| address);
    address.trim_start_matches('[').trim_end_matches(']')
}

fn sum(rates: Rates) -> u64 {
    let rates = rates.into_iter().flatten();
    rates.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(inode: u64, peer: Option<&str>, sent: u64) -> Connection {
        Connection {
            inode,
            protocol: "tcp".into(),
            local: "10.0.0.2:40000".into(),
            peer: peer.map(str::to_string),
            state: None,
            sent: Some(sent),
            received: None,
        }
    }

    fn doc(at_ns: u64, sent: u64) -> ConnectionsDoc {
        ConnectionsDoc {
            at_ns,
            connections: vec![
                connection(1, Some("10.0.0.9:443"), sent),
                connection(2, Some("[fd77::2]:443"), 3 * sent),
                connection(3, Some("10.0.0.9:80"), sent),
                connection(4, None, 0),
            ],
            ..ConnectionsDoc::default()
        }
    }

    #[test]
    fn connections_to_one_host_are_one_sum() {
        let first = ConnectionList::new(doc(1, 0), None);
        let texts = |list: &ConnectionList| -> Vec<String> {
            let hosts = list.hosts().into_iter();
            hosts
                .map(|host| format!("{} {} {:?}", host.address, host.connections, host.rates))
                .collect()
        };
        assert_eq!(
            texts(&first),
            ["10.0.0.9 2 [None, None]", "fd77::2 1 [None, None]"]
        );
        let second = ConnectionList::new(doc(1_000_000_001, 100), Some(&first));
        assert_eq!(
            texts(&second),
            [
                "fd77::2 1 [Some(2400), None]",
                "10.0.0.9 2 [Some(1600), None]"
            ]
        );
    }
}

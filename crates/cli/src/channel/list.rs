//! `netnice channel ls`: the channels, neighbours and services that the netnice-peer of this host
//! has, as tables or JSON.

use netnice_api::channels::{ChannelList, HopDoc, ListedChannel, ListedNeighbour, ListedPort};
use netnice_api::{Exit, RuntimeDir};
use netnice_channel::network;
use netnice_core::units::{Bytes, Nanos};

use crate::error::CommandError;
use crate::output::print_text;
use crate::render::printable;

/// Prints the list.
pub(super) fn execute(dir: &RuntimeDir, json: bool) -> Result<Exit, CommandError> {
    let list = network::list(dir)?;
    match json {
        true => print_text(&serde_json::to_string_pretty(&list).unwrap_or_default())?,
        false => print_text(&text(&list))?,
    }
    Ok(Exit::Done)
}

/// Prints the list without the channels.
pub(crate) fn neighbours(dir: &RuntimeDir, json: bool) -> Result<Exit, CommandError> {
    let mut list = network::list(dir)?;
    list.channels.clear();
    match json {
        true => print_text(&serde_json::to_string_pretty(&list).unwrap_or_default())?,
        false => print_text(&host_lines(&list).join("\n"))?,
    }
    Ok(Exit::Done)
}

/// The host with its services and neighbours.
fn host_lines(list: &ChannelList) -> Vec<String> {
    let mut lines = vec![format!("host        {}", printable(&list.host))];
    for (at, service) in list.services.iter().enumerate() {
        let word = if at == 0 { "services" } else { "" };
        lines.push(format!("{word:<11} {}", printable(service)));
    }
    for (at, neighbour) in list.neighbours.iter().enumerate() {
        let word = if at == 0 { "neighbours" } else { "" };
        lines.push(format!("{word:<11} {}", neighbour_text(neighbour)));
    }
    for (at, port) in list.ports.iter().enumerate() {
        let word = if at == 0 { "ports" } else { "" };
        lines.push(format!("{word:<11} {}", port_text(port)));
    }
    if let Some(last) = &list.last_refusal {
        let refused = list.refused_connections;
        let last = printable(last);
        lines.push(format!(
            "refused     {refused} connections, the last one: {last}"
        ));
    }
    lines
}

/// The list as tables.
fn text(list: &ChannelList) -> String {
    let mut lines = host_lines(list);
    if list.channels.is_empty() {
        lines.push("no channels".to_owned());
        return lines.join("\n");
    }
    let heads = ["CHANNEL", "PART", "TO", "CONTRACT", "WAY"];
    let mut rows = vec![heads.map(str::to_owned)];
    rows.extend(list.channels.iter().map(row));
    lines.extend(aligned(&rows));
    lines.join("\n")
}

/// Rows as lines, with aligned columns.
pub(super) fn aligned<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> Vec<String> {
    let widths: [usize; COLUMNS] = std::array::from_fn(|column| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.max().unwrap_or(0)
    });
    let line = |row: &[String; COLUMNS]| {
        let cells = row.iter().zip(&widths);
        let cells: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        cells.join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

fn neighbour_text(neighbour: &ListedNeighbour) -> String {
    let host = printable(&neighbour.host);
    match (neighbour.clock_ahead_ns, neighbour.clock_error_ns) {
        (Some(ahead), Some(error)) => {
            let sign = if ahead < 0 { "-" } else { "" };
            let (ahead, error) = (Nanos(ahead.unsigned_abs()), Nanos(error));
            let source = match neighbour.clock_source.as_deref() {
                Some("kernel") => ", by the kernels' clocks",
                Some("round-trips") => ", by round trips",
                _ => "",
            };
            format!("{host} (clock {sign}{ahead} ± {error}{source})")
        }
        _ => host,
    }
}

/// The port before an interface, and what enters by it.
fn port_text(port: &ListedPort) -> String {
    let iface = printable(&port.interface);
    let before = port.before.as_deref().map_or("unguarded".into(), printable);
    let many = match port.channels {
        1 => "1 channel".to_owned(),
        count => format!("{count} channels"),
    };
    let mut text = format!("{iface} {before}, {many}");
    if let Some(delay) = port.delay_ns {
        text.push_str(&format!(", delayed by at most {}", Nanos(delay)));
    }
    // Channels that are older than the declaration.
    if port.before.is_some() && port.unguarded > 0 {
        text.push_str(&format!(", {} of them unguarded", port.unguarded));
    }
    text
}

fn row(channel: &ListedChannel) -> [String; 5] {
    let contract = &channel.contract;
    let terms = format!(
        "mmax={},rmax={}/s,bmax={},deadline={}",
        Bytes(contract.mmax),
        contract.rmax,
        contract.bmax,
        Nanos(contract.deadline_ns)
    );
    let hop = |hop: &HopDoc| {
        let mark = super::mark(hop.unguarded.as_deref());
        format!("{} {}{mark}", printable(&hop.host), Nanos(hop.bound_ns))
    };
    let hops: Vec<String> = channel.hops.iter().map(hop).collect();
    let mut way = match hops.is_empty() {
        true => "not established".to_owned(),
        false => hops.join(", "),
    };
    if let Some(relayed) = &channel.relayed {
        way.push_str(&format!(
            "; {} passed on, {} incomplete, {} dropped, {} packets not sent",
            relayed.messages, relayed.incomplete, relayed.dropped, relayed.unsent
        ));
    }
    [
        printable(&channel.channel),
        channel.part.clone(),
        printable(&format!("{}@{}", channel.service, channel.sink)),
        terms,
        way,
    ]
}

#[cfg(test)]
mod tests {
    use netnice_api::channels::{RelayedDoc, RemoteContract};

    use super::*;

    #[test]
    fn a_list_has_a_row_for_each_channel_and_no_control_characters() {
        let mut list = ChannelList {
            host: "router".to_owned(),
            services: vec!["camera".to_owned()],
            ..ChannelList::default()
        };
        assert_eq!(
            text(&list),
            "host        router\nservices    camera\nno channels"
        );
        list.neighbours.push(ListedNeighbour {
            host: "a\u{1b}[31m".to_owned(),
            clock_ahead_ns: Some(-1_500_000),
            clock_error_ns: Some(20_000),
            clock_source: Some("round-trips".to_owned()),
        });
        list.channels.push(ListedChannel {
            channel: "0011aabb".to_owned(),
            service: "camera".to_owned(),
            sink: "recorder".to_owned(),
            contract: RemoteContract {
                mmax: 65_536,
                rmax: 50,
                bmax: 2,
                deadline_ns: 20_000_000,
                packet: 1_400,
            },
            part: "relay".to_owned(),
            previous: Some("a".to_owned()),
            next: Some("recorder".to_owned()),
            hops: vec![HopDoc {
                host: "a".to_owned(),
                bound_ns: 7_000_000,
                unguarded: None,
            }],
            relayed: Some(RelayedDoc {
                messages: 9,
                ..RelayedDoc::default()
            }),
        });
        let text = text(&list);
        assert!(!text.contains('\u{1b}'), "{text}");
        assert!(
            text.contains("clock -1.5ms ± 20us, by round trips)"),
            "{text}"
        );
        assert!(text.contains("camera@recorder"), "{text}");
        assert!(text.contains("a 7ms; 9 passed on"), "{text}");
    }

    #[test]
    fn ports_and_hosts_that_are_not_guarded_are_named() {
        let port = |before: Option<&str>, channels, unguarded, delay_ns| ListedPort {
            interface: "eth0".to_owned(),
            before: before.map(str::to_owned),
            channels,
            unguarded,
            delay_ns,
        };
        let text = |one| port_text(&one);
        assert_eq!(text(port(None, 2, 2, None)), "eth0 unguarded, 2 channels");
        assert_eq!(
            text(port(Some("cable"), 1, 0, None)),
            "eth0 cable, 1 channel"
        );
        assert_eq!(
            text(port(Some("priority=1ms"), 3, 1, Some(400_000))),
            "eth0 priority=1ms, 3 channels, delayed by at most 400us, 1 of them unguarded"
        );
        let mut list = ChannelList {
            host: "recorder".to_owned(),
            ports: vec![port(None, 1, 1, None)],
            ..ChannelList::default()
        };
        let lines = host_lines(&list);
        assert_eq!(lines[1], "ports       eth0 unguarded, 1 channel");
        list.neighbours.push(ListedNeighbour {
            host: "a".to_owned(),
            clock_ahead_ns: Some(7),
            clock_error_ns: Some(3),
            clock_source: Some("kernel".to_owned()),
        });
        let lines = host_lines(&list);
        assert_eq!(
            lines[1],
            "neighbours  a (clock 7ns ± 3ns, by the kernels' clocks)"
        );
        assert_eq!(super::super::mark(Some("eth0")), " (unguarded: eth0)");
    }
}

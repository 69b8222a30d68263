//! Formats flows of the direct path as tables, for `show` and `flow ls`. Documents of the daemon
//! come in, text goes out. No function fails.

use netnice_api::driver::FlowCounts;
use netnice_api::{ContractDoc, FlowDoc, ShowDoc};

use super::Style;
use super::printable;
use super::show::{contract_line, other_network};
use super::table::{Cell, Table};

/// Formats flows for `show`.
pub(super) fn flows(flows: &[FlowDoc], style: &Style) -> String {
    let mut table = Table::new(&["FLOW", "LINK", "PROGRAM", "SENT", "RECEIVED", "LOST"]);
    for flow in flows {
        let counts = &flow.counters.counts;
        let lost: u64 = unsent(counts).iter().chain(&missed(counts)).sum();
        table.row(vec![
            Cell::new(printable(&flow.flow)),
            Cell::new(printable(&flow.link)),
            Cell::new(format!("{} {}", flow.pid, printable(&flow.program))),
            Cell::new(counts.sent.to_string()),
            Cell::new(counts.received.to_string()),
            Cell::new(lost.to_string()),
        ]);
        notes(flow, &mut table);
    }
    table.render(style)
}

/// Formats the flows of a document for `flow ls`, with their users and states.
pub(crate) fn flow_list(doc: &ShowDoc, style: &Style) -> String {
    let mut table = Table::new(&[
        "FLOW", "LINK", "STATE", "PROGRAM", "USER", "SENT", "UNSENT", "RECEIVED", "LOST",
    ]);
    for flow in &doc.direct {
        let counts = &flow.counters.counts;
        let user = flow.user.strip_prefix("user ").unwrap_or(&flow.user);
        table.row(vec![
            Cell::new(printable(&flow.flow)),
            Cell::new(printable(&flow.link)),
            Cell::new(printable(&flow.state)),
            Cell::new(format!("{} {}", flow.pid, printable(&flow.program))),
            Cell::new(printable(user)),
            Cell::new(counts.sent.to_string()),
            Cell::new(unsent(counts).iter().sum::<u64>().to_string()),
            Cell::new(counts.received.to_string()),
            Cell::new(missed(counts).iter().sum::<u64>().to_string()),
        ]);
        notes(flow, &mut table);
    }
    let shown = match doc.direct.is_empty() {
        true => "no flow is open".to_string(),
        false => table.render(style),
    };
    let parts = other_network(doc).into_iter().chain([shown]);
    parts.collect::<Vec<_>>().join("\n\n")
}

/// Adds the endpoint, the contract and faults of a flow.
fn notes(flow: &FlowDoc, table: &mut Table) {
    let contract = contract_line(&ContractDoc {
        // The link has a column.
        on: None,
        ..flow.contract.clone()
    });
    table.note(&format!("{}: {contract}", printable(&flow.endpoint)));
    for why in &flow.degraded {
        table.note(&format!("degraded: {}", printable(why)));
    }
}

/// Packets that were not sent.
fn unsent(counts: &FlowCounts) -> [u64; 3] {
    [counts.forbidden, counts.too_long, counts.no_link]
}

/// Packets that arrived and were not delivered.
fn missed(counts: &FlowCounts) -> [u64; 4] {
    [
        counts.no_buffer,
        counts.buffer_too_short,
        counts.over_share,
        counts.out_of_order,
    ]
}

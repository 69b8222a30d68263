//! Formats contracts of responses as text: limits and minimums in both forms (`up 4 Mbit/s (500
//! kB/s)`), other clauses as the user types them or in words. No function fails.

use netnice_api::ContractDoc;
use netnice_core::contract::{Change, Contract, Direction, Dscp, ReceiveShare};
use netnice_core::units::{Amount, Nanos};

use crate::render::printable;

/// Formats the user's own claim, and the contract in force if it differs. A link that the daemon
/// chose for a guarantee is no difference; the claim is then shown with its link. The second text
/// is `None` if there is no contract in force, or if it does not differ.
pub(super) fn claim_and_effective(
    claim: Option<&str>,
    effective: Option<&str>,
) -> (String, Option<String>) {
    let parse = |text: Option<&str>| text.and_then(|text| text.parse::<Contract>().ok());
    if let (Some(claim), Some(effective)) = (parse(claim), parse(effective))
        && let Some(link) = effective.on()
        && claim.with_link(link.clone()) == effective
    {
        return (format_contract(&effective), None);
    }
    let claim = claim.map(format_text).unwrap_or_default();
    let effective = effective.map(format_text);
    let effective = effective.filter(|effective| *effective != claim);
    (claim, effective)
}

/// Formats contract text with each rate in both forms. Text from a newer daemon that does not parse
/// stays as it is.
fn format_text(text: &str) -> String {
    match text.parse::<Contract>() {
        Ok(contract) if contract.is_empty() => "no contract".to_string(),
        Ok(contract) => format_contract(&contract),
        Err(_) => printable(text),
    }
}

fn format_contract(contract: &Contract) -> String {
    let rates = [
        ("up", contract.up()),
        ("down", contract.down()),
        ("both", contract.both()),
        ("min", contract.min(Direction::Up)),
        ("min-down", contract.min(Direction::Down)),
    ];
    let rates = rates
        .into_iter()
        .filter_map(|(word, rate)| Some(format!("{word} {}", rate?)));
    // The other clauses have no second form, so they keep the form of the grammar.
    let rest = Change {
        up: None,
        down: None,
        both: None,
        min: None,
        min_down: None,
        ..contract.as_change()
    };
    let rest = (!rest.is_empty()).then(|| rest.to_string());
    rates.chain(rest).collect::<Vec<_>>().join(", ")
}

/// The clauses that are neither a limit nor a guarantee by rate, each as a text.
pub(super) fn sharing(doc: &ContractDoc) -> Vec<String> {
    let mut clauses = Vec::new();
    if let Some(slice) = &doc.slice {
        let extra = if slice.extra { " extra" } else { "" };
        let (slice, period) = (Nanos(slice.slice_ns), Nanos(slice.period_ns));
        clauses.push(format!("slice {slice}/{period}{extra}"));
    }
    clauses.extend(
        doc.on
            .as_ref()
            .map(|link| format!("on {}", printable(link))),
    );
    clauses.extend(doc.weight.map(|weight| format!("weight {weight}")));
    clauses.extend(doc.priority.map(|priority| format!("priority {priority}")));
    clauses.extend(doc.burst_ns.map(|burst| format!("burst {}", Nanos(burst))));
    let dscp = doc.dscp.and_then(Dscp::new);
    clauses.extend(dscp.map(|dscp| format!("dscp {dscp}")));
    clauses.extend(doc.yields.then(|| "yields".to_owned()));
    clauses.extend(doc.delegate.map(|uid| format!("delegate {uid}")));
    if let Some(cpu) = &doc.cpu {
        let (slice, period) = (Nanos(cpu.slice_ns), Nanos(cpu.period_ns));
        let extra = if cpu.extra { " cpu-extra" } else { "" };
        clauses.push(format!("cpu {slice}/{period}{extra}"));
    }
    if let Some(extra) = doc.cpu_auto {
        let extra = if extra { " cpu-extra" } else { "" };
        clauses.push(format!("cpu auto{extra}"));
    }
    if let Some(cell) = &doc.cell {
        clauses.push(format!("cell pcr {}", Amount(cell.pcr)));
        clauses.push(format!("cdvt {}", Nanos(cell.cdvt_ns)));
        clauses.extend(cell.scr.map(|scr| format!("scr {}", Amount(scr))));
        clauses.extend(cell.mbs.map(|mbs| format!("mbs {mbs} bytes")));
    }
    if let Some(channel) = &doc.channel {
        let (rmax, bmax) = (channel.rmax, channel.bmax);
        clauses.push(format!(
            "channel of {rmax} messages/s of {} bytes",
            channel.mmax
        ));
        clauses.push(format!("{bmax} in a burst"));
    }
    let receive = doc.receive.and_then(ReceiveShare::of_millionths);
    let deadline = doc
        .channel
        .as_ref()
        .map(|channel| Nanos(channel.deadline_ns));
    clauses.extend(deadline.map(|deadline| format!("deadline {deadline}")));
    clauses.extend(receive.map(|share| format!("receive {share}")));
    clauses
}

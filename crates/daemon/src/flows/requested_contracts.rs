//! The contracts that programs request for their flows: which clauses a flow can have, which of
//! them the user may request, and what a flow has whose program requests nothing. Each check fails
//! with the reason.

use netnice_api::direct::Endpoint;
use netnice_core::contract::{Change, Clause, Contract, IfName, Setting, Weight};
use netnice_core::sched::Service;

use super::budgets;
use crate::authority;
use crate::error::RequestError;
use crate::peer::Peer;

/// The contract of a flow whose program requests none: best effort. Everybody can send connection
/// requests as fast as a link carries them, so the answers have a small part of the link while
/// other flows use it.
pub(super) fn contract_without_request(endpoint: &Endpoint, requested: Option<&str>) -> Contract {
    match (endpoint, requested) {
        (Endpoint::TcpSyn { .. }, None | Some("none")) => {
            let change = Change {
                weight: Weight::new(REQUESTS_WEIGHT).map(Setting::Set),
                ..Change::default()
            };
            // A weight contradicts nothing.
            Contract::default().apply(&change).unwrap_or_default()
        }
        _ => Contract::default(),
    }
}

/// The contract after a change, if this peer may request it for a flow. `has_channels` is true if
/// the policy lets the peer have channels, `has_budget` if a budget of the peer contains the
/// program.
pub(super) fn contract(
    peer: &Peer,
    before: &Contract,
    change: Option<&str>,
    has_channels: bool,
    has_budget: &mut dyn FnMut() -> bool,
) -> Result<Contract, RequestError> {
    let Some(text) = change.filter(|text| *text != "none") else {
        return Ok(before.clone());
    };
    let change: Change = text.parse()?;
    if authority::may_request_for_flow(peer, &change, has_channels).is_err() {
        let clauses = change.clauses().into_iter();
        let others = clauses.filter(|clause| !has_channels || *clause != Clause::Channel);
        budgets::may_request(peer, &others.collect::<Vec<_>>(), has_budget())?;
    }
    let after = before.apply(&change)?;
    let clauses = after.as_change().clauses();
    let foreign = clauses.into_iter().find(|clause| {
        matches!(
            clause,
            Clause::Down
                | Clause::Both
                | Clause::MinDown
                | Clause::Priority
                | Clause::Dscp
                | Clause::Yield
                | Clause::Cpu
                | Clause::Delegate
                | Clause::Quota
                | Clause::When
        )
    });
    if let Some(clause) = foreign {
        return Err(RequestError::BadUsage(format!(
            "{clause} is not for direct flows: up, burst, min, slice, cell, channel, receive and \
             weight are; what a flow receives is bounded by its buffers and its receive share"
        )));
    }
    Service::of(&after).map_err(|error| RequestError::BadUsage(error.to_string()))?;
    Ok(after)
}

/// Checks that a contract names no link other than its program's.
pub(super) fn check_link(contract: &Contract, link: &IfName) -> Result<(), RequestError> {
    match contract.on() {
        Some(other) if other != link => Err(RequestError::BadUsage(format!(
            "this program attached to {link}: its flows cannot be promised anything on {other}"
        ))),
        _ => Ok(()),
    }
}

/// Checks that a changed contract is in the same class as before, or in none as before.
pub(super) fn check_class(before: &Contract, after: &Contract) -> Result<(), RequestError> {
    let class = |contract: &Contract| contract.cell().and_then(|cell| cell.class());
    match class(before) == class(after) {
        true => Ok(()),
        false => Err(RequestError::BadUsage(
            "an open flow cannot enter or leave a class, or change it: close it and open it again"
                .to_owned(),
        )),
    }
}

/// The weight of the flow of connection requests; other flows have 100. Beside one other flow it
/// has 2 % of the link, which is 23,000 answers a second on a link of 1 Gbit/s.
const REQUESTS_WEIGHT: u16 = 2;

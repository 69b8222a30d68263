//! The rows of a contract on a page of `explain`: its clauses as text, and its schedules. Nothing
//! here fails.

use netnice_core::contract::{Change, Clause, Contract, Direction};
use netnice_core::units::Rate;

use crate::ledger::HeldTarget;
use crate::page::Page;
use crate::schedule;

/// A row for each claim with a schedule: whether it holds now, and until when.
pub(super) fn schedule_rows(held: &HeldTarget, page: &mut Page) {
    for (claim, when, phase) in held.scheduled() {
        let holds = match phase.active {
            true => "holds now",
            false => "does not hold now",
        };
        let next = phase.next_ns.map(|at| schedule::local_text(when, at));
        let next = next.map_or(String::new(), |next| format!(", until {next}"));
        let asked = claim.contract.without_schedule();
        page.row("schedule", &format!("{asked} {holds}{next}"));
    }
}

/// A contract as text: limits and minimums with their units, then the other clauses.
pub(super) fn format_contract(contract: &Contract) -> String {
    let rate = |word: &str, rate: Option<Rate>| rate.map(|rate| format!("{word} {rate}"));
    let mut parts: Vec<String> = [
        rate("up", contract.up()),
        rate("down", contract.down()),
        rate("both", contract.both()),
        rate("min", contract.min(Direction::Up)),
        rate("min-down", contract.min(Direction::Down)),
    ]
    .into_iter()
    .flatten()
    .collect();
    let rest = contract.as_change();
    let rates = [
        Clause::Up,
        Clause::Down,
        Clause::Both,
        Clause::Min,
        Clause::MinDown,
    ];
    if rest.clauses().iter().any(|clause| !rates.contains(clause)) {
        let without = Change {
            up: None,
            down: None,
            both: None,
            min: None,
            min_down: None,
            ..rest
        };
        parts.push(without.to_string());
    }
    match parts.is_empty() {
        true => "nothing of its own".to_owned(),
        false => parts.join(", "),
    }
}

//! Formats how budgets are divided. No function fails.

use netnice_api::{BudgetDoc, BudgetPartDoc};
use netnice_core::units::Amount;

use super::Style;
use super::printable;
use super::table::{Cell, Table};

/// The lines about a budget below its target.
pub(super) fn notes(budget: &BudgetDoc) -> Vec<String> {
    let part = |(word, part): (&str, &BudgetPartDoc)| {
        format!(
            "{word}: {} of {} promised to programs, {} left",
            Amount(part.used).bits_text(),
            Amount(part.min).bits_text(),
            Amount(part.left).bits_text()
        )
    };
    let parts: Vec<String> = directions(budget).map(part).collect();
    let user = printable(&budget.user);
    vec![format!("budget of {user}, {}", parts.join("; "))]
}

/// A table of budgets.
pub(super) fn table(budgets: &[BudgetDoc], style: &Style) -> String {
    let mut table = Table::new(&["BUDGET", "OF", "LINK", "DIR", "MINIMUM", "USED", "LEFT"]);
    for budget in budgets {
        let mut first = [&budget.target, &budget.user, &budget.link].map(|text| printable(text));
        for (word, part) in directions(budget) {
            let [target, user, link] = std::mem::take(&mut first);
            let rate = |bits: u64| Cell::new(Amount(bits).bits_text());
            table.row(vec![
                Cell::new(target),
                Cell::new(user),
                Cell::new(link),
                Cell::new(word),
                rate(part.min),
                rate(part.used),
                rate(part.left),
            ]);
        }
    }
    table.render(style)
}

fn directions(budget: &BudgetDoc) -> impl Iterator<Item = (&'static str, &BudgetPartDoc)> {
    let both = [("up", &budget.up), ("down", &budget.down)];
    both.into_iter()
        .filter_map(|(word, part)| Some((word, part.as_ref()?)))
}

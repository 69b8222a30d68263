//! Formats quotas and usage per user: first the quotas, then each user's amounts. No function
//! fails.

use netnice_api::{QuotaDoc, UsersDoc};
use netnice_core::units::{Bytes, Nanos};

use super::printable;
use super::table::{Cell, Table};
use super::{Style, budgets};

/// Formats the quotas, and how much of them each user uses.
pub(super) fn users(doc: &UsersDoc, style: &Style) -> String {
    let mut table = Table::new(&["USER", "QUOTA", "USED", "OF"]);
    let mut name = "each".to_string();
    for quota in &doc.quotas {
        table.row(row(&mut name, quota, None));
    }
    for user in &doc.users {
        let mut name = printable(&user.name);
        for quota in &doc.quotas {
            let used = user.used.get(&quota.quota).copied().unwrap_or(0);
            if used > 0 {
                table.row(row(&mut name, quota, Some(used)));
            }
        }
        if user.waiting > 0 {
            table.note(&format!(
                "{} requests of {} wait: the user has exceeded service-time",
                user.waiting,
                printable(&user.name)
            ));
        }
    }
    match doc.budgets.is_empty() {
        true => table.render(style),
        false => [table.render(style), budgets::table(&doc.budgets, style)].join("\n\n"),
    }
}

/// Formats a row; only the user's first row has the name.
fn row(name: &mut String, quota: &QuotaDoc, used: Option<u64>) -> Vec<Cell> {
    let amount = |amount: u64| match quota.unit.as_str() {
        "bytes" => Bytes(amount).to_string(),
        "ns" => Nanos(amount).to_string(),
        _ => amount.to_string(),
    };
    vec![
        Cell::new(std::mem::take(name)),
        Cell::new(printable(&quota.quota)),
        Cell::new(used.map(amount).unwrap_or_default()),
        Cell::new(amount(quota.limit)),
    ]
}

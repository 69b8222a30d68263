//! Traffic quotas for people and programs: the entries of `show`, `top` and the metrics, and the
//! rows of `explain`. What is used is as of the last second. Nothing here fails.

use netnice_api::TrafficQuotaDoc;
use netnice_core::units::Bytes;

use super::view::View;
use crate::ledger::HeldTarget;
use crate::page::Page;
use crate::peer::POLICY;
use crate::schedule;
use crate::user_names::user_name;

impl<H> View<'_, H> {
    /// The traffic quotas of the claims on a target.
    pub(super) fn traffic_quotas(&self, held: &HeldTarget) -> Vec<TrafficQuotaDoc> {
        let docs = held.claims.quotas().filter_map(|(claim, quota)| {
            let usage = self.books.usage.of(held, quota)?;
            let uid = match claim.by == POLICY {
                true => 0,
                false => claim.by.uid,
            };
            Some(TrafficQuotaDoc {
                uid,
                quota: quota.to_string(),
                bytes: quota.amount.0,
                used: usage.used,
                left: quota.amount.0.saturating_sub(usage.used),
                refused: usage.refused,
                start_ns: usage.period.start_ns,
                end_ns: usage.period.end_ns,
                ends: schedule::text_in_zone(quota.zone.as_deref(), usage.period.end_ns),
                spent: usage.is_spent(quota),
                then: quota.then.map(|rate| rate.bits_per_second()),
            })
        });
        docs.collect()
    }

    /// A row for each traffic quota of a target and of the targets around it.
    pub(super) fn quota_rows(&self, held: &HeldTarget, page: &mut Page) {
        let around = self.ledger().around(held.entry.id);
        let chain = std::iter::once(held).chain(around);
        for (depth, holder) in chain.enumerate() {
            for doc in self.traffic_quotas(holder) {
                let of = match depth {
                    0 => String::new(),
                    _ => format!(" of {}", holder.entry.target),
                };
                let left = Bytes(doc.left).amount_text();
                let then = match (doc.spent, doc.then) {
                    (false, _) => format!("{left} left until {}", doc.ends),
                    (true, None) => format!(
                        "used up, nothing passes until {}: a packet of TCP is refused to its \
                         sender, which tries again ever more seldom; other packets are dropped; \
                         {} packets did not fit",
                        doc.ends, doc.refused
                    ),
                    (true, Some(_)) => format!("used up, its rate holds until {}", doc.ends),
                };
                let who = user_name(doc.uid);
                page.row("quota", &format!("{}{of} by {who}: {then}", doc.quota));
            }
        }
    }
}

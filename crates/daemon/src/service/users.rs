//! `netnice show --users`: the quotas, and what each user has of the resources with quotas. For a
//! member of the group `netnice` these are only the connections; root has none. An unprivileged
//! peer gets only its own amounts. Making the document cannot fail.

use std::collections::BTreeMap;

use netnice_api::{BudgetDoc, QuotaDoc, UserDoc, UsersDoc};

use super::{Service, budgets};
use crate::host::Host;
use crate::name_files;
use crate::peer::Peer;
use crate::quotas::{Quota, Quotas, Unit};
use crate::reconcile::UserAmounts;

/// The amounts of users, by uid and quota, in the quota's unit.
pub(crate) type Used = BTreeMap<u32, BTreeMap<Quota, u64>>;

impl<H: Host> Service<H> {
    /// The quotas in force.
    pub(crate) fn quotas(&self) -> &Quotas {
        &self.rules.policy.quotas
    }

    /// The budgets in force that a peer may see.
    pub(crate) fn budgets(&self, peer: &Peer) -> Vec<BudgetDoc> {
        let ledger = self.ledger();
        let all = ledger.budgets();
        all.filter_map(|held| budgets::document(ledger, held))
            .filter(|budget| peer.privileged || peer.uid == budget.uid)
            .collect()
    }

    /// The users' amounts on the books and in the journal. The event loop adds those of
    /// connections, flows and service time.
    pub(crate) fn used(&self) -> Used {
        let mut used = Used::new();
        let books = &self.reconciler.books;
        for uid in books.users() {
            let has = UserAmounts::of(&books.ledger, &books.rollbacks, uid);
            used.entry(uid).or_default().extend(has.amounts());
        }
        for (uid, lines) in self.reconciler.journal.of_users() {
            let has = used.entry(uid).or_default();
            has.insert(Quota::LogLines, lines);
        }
        used
    }
}

/// The document with the amounts that a peer may see. `waiting` is the number of waiting requests,
/// by uid.
pub(crate) fn users_doc(
    quotas: &Quotas,
    used: &Used,
    waiting: &BTreeMap<u32, u64>,
    peer: &Peer,
) -> UsersDoc {
    let may_see = |uid: u32| peer.privileged || peer.uid == uid;
    let users = used.iter().filter(|(uid, _)| may_see(**uid));
    UsersDoc {
        version: UsersDoc::VERSION,
        quotas: Quota::ALL.map(|quota| in_force(quotas, quota)).to_vec(),
        users: users
            .map(|(uid, used)| UserDoc {
                uid: *uid,
                name: name_files::name_of_user(*uid).unwrap_or_else(|| uid.to_string()),
                used: used
                    .iter()
                    .map(|(quota, amount)| (quota.describe().key.to_owned(), *amount))
                    .collect(),
                waiting: waiting.get(uid).copied().unwrap_or(0),
            })
            .collect(),
        budgets: Vec::new(),
    }
}

fn in_force(quotas: &Quotas, quota: Quota) -> QuotaDoc {
    let about = quota.describe();
    QuotaDoc {
        quota: about.key.to_owned(),
        unit: match about.unit {
            Unit::Count => "count",
            Unit::Bytes => "bytes",
            Unit::Time => "ns",
        }
        .to_owned(),
        limit: quotas.limit(quota),
    }
}

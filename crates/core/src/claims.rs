//! Claims: the requests of several users for one target, and the contract that results from them.
//!
//! A [`Claim`] is everything that one user, identified by user id, has asked of one target.
//! [`Claims`] holds the claims of all users and their effective contract:
//!
//! - **limits** (`up`, `down`, `both`, `burst`): the smallest of all claims holds. As with nice(1),
//!   a user can tighten a limit of another user but not loosen it. A limit without a burst of its
//!   own counts with the default burst.
//! - **all other clauses** come from privileged claims only (root and the group `netnice`). If two
//!   of them name the same clause, the claim that was changed latest decides.
//! - **privileged before unprivileged**: an unprivileged claim that contradicts the privileged ones
//!   is *set aside*. So is one that contradicts an older unprivileged claim that counts, unless its
//!   own user is the one who asks: then the request is refused. A claim that is set aside stays
//!   stored and does not count. It counts again when no claim contradicts it. So an unprivileged
//!   claim never causes the refusal of a privileged request.
//!
//! Users can change or clear their own claims at any time. Only root can clear the claims of other
//! users, by clause or all at once.
//!
//! `Claims` is a value. A change returns new claims or a [`ClaimError`], and the old claims stay as
//! they were. The [`Claims::effective`] contract never contradicts itself.

use alloc::vec::Vec;

use crate::contract::{Change, Clause, Contract, ContractError, Direction, Setting};
use crate::units::Nanos;

/// A user who makes a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Claimant {
    /// The user id.
    pub uid: u32,
    /// Whether the user may reserve: root, or a member of the group `netnice`.
    pub privileged: bool,
}

impl Claimant {
    /// The super user.
    pub const ROOT: Claimant = Claimant {
        uid: 0,
        privileged: true,
    };
}

/// The requests of one user for one target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The user, with the privilege at the time of the claim. A user who has left the group since
    /// keeps the granted clauses and cannot ask for more.
    pub by: Claimant,
    /// Number of the claim's latest change. Among the claims of one target, a higher number is a
    /// later change.
    pub order: u64,
    /// The clauses that the user asks for.
    pub contract: Contract,
}

/// All claims on one target, and the contract that results from them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// By order, latest last; one per user.
    claims: Vec<Claim>,
    /// Users whose claims are set aside.
    aside: Vec<u32>,
    effective: Contract,
}

impl Claims {
    /// Restores stored claims.
    ///
    /// # Errors
    /// [`ClaimError::TwoOfOneUser`] if two claims have the same user id. [`ClaimError::Conflict`]
    /// if the privileged claims contradict each other.
    pub fn restore(claims: Vec<Claim>) -> Result<Claims, ClaimError> {
        let mut claims = claims;
        claims.sort_by_key(|claim| claim.order);
        for (n, claim) in claims.iter().enumerate() {
            if claims[..n].iter().any(|c| c.by.uid == claim.by.uid) {
                return Err(ClaimError::TwoOfOneUser(claim.by.uid));
            }
        }
        Claims::resolve(claims, None)
    }

    /// The claims in the order of their latest change, the earliest first.
    pub fn iter(&self) -> impl Iterator<Item = &Claim> {
        self.claims.iter()
    }

    /// Whether there is no claim.
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    /// The contract that results from the claims.
    pub fn effective(&self) -> &Contract {
        &self.effective
    }

    /// The user ids whose claims are set aside, because they contradict claims that count.
    pub fn set_aside(&self) -> &[u32] {
        &self.aside
    }

    /// The contract that would result from the privileged claims alone.
    pub fn of_privileged(&self) -> Contract {
        let privileged = self.claims.iter().filter(|claim| claim.by.privileged);
        let all = Claims {
            claims: privileged.cloned().collect(),
            ..Claims::default()
        };
        // This does not fail: unprivileged claims add limits only, and claims that agree with more
        // limits also agree without them.
        all.combined_contract().unwrap_or_default()
    }

    /// The user id whose claim decides a clause; `None` if the effective contract does not name it.
    pub fn set_by(&self, clause: Clause) -> Option<u32> {
        fn uid_of<T>(deciding: Option<(&Claim, T)>) -> Option<u32> {
            deciding.map(|(claim, _)| claim.by.uid)
        }
        match clause {
            Clause::Up => uid_of(self.smallest(Contract::up)),
            Clause::Down => uid_of(self.smallest(Contract::down)),
            Clause::Both => uid_of(self.smallest(Contract::both)),
            Clause::Burst => {
                self.effective.burst()?;
                uid_of(self.smallest(burst_of))
            }
            _ => uid_of(self.latest(|contract| names_clause(contract, clause).then_some(()))),
        }
    }

    /// The claims after user `by` has asked for a change. If root clears a clause, the clause is
    /// cleared in the claims of all users.
    ///
    /// # Errors
    /// [`ClaimError`] if the change names no clause, if it needs a privilege that `by` lacks, if it
    /// clears a clause that only other users have named, or if it contradicts the user's own claim
    /// or the other claims that count.
    pub fn apply(&self, by: Claimant, change: &Change) -> Result<Claims, ClaimError> {
        if !by.privileged
            && let Some(clause) = change.needs_privilege()
        {
            return Err(ClaimError::NeedsPrivilege(clause));
        }
        let mut claims = self.claims.clone();
        let own = claims.iter().position(|claim| claim.by.uid == by.uid);
        let own = own.map(|at| claims.remove(at));
        let old = own.as_ref().map(|claim| &claim.contract);
        self.check_clearing(by, old, change)?;
        if by.uid == 0 {
            clear_everywhere(&mut claims, change)?;
        }
        let contract = old.cloned().unwrap_or_default().apply(change)?;
        let was_privileged = own.as_ref().is_some_and(|claim| claim.by.privileged);
        claims.push(Claim {
            by: Claimant {
                uid: by.uid,
                privileged: by.privileged || was_privileged,
            },
            order: self.claims.last().map_or(0, |claim| claim.order + 1),
            contract,
        });
        claims.retain(|claim| !claim.contract.is_empty());
        Claims::resolve(claims, Some(by))
    }

    /// The claims without the claim of `by`. If `by` is root, all claims are removed.
    ///
    /// # Errors
    /// [`ClaimError::NothingYours`] if `by` has no claim.
    pub fn clear(&self, by: Claimant) -> Result<Claims, ClaimError> {
        if by.uid == 0 {
            return Ok(Claims::default());
        }
        let mut claims = self.claims.clone();
        claims.retain(|claim| claim.by.uid != by.uid);
        if claims.len() == self.claims.len() {
            return Err(ClaimError::NothingYours(self.users()));
        }
        Claims::resolve(claims, Some(by))
    }

    /// The users with a claim.
    fn users(&self) -> Vec<u32> {
        self.claims.iter().map(|claim| claim.by.uid).collect()
    }

    /// Fails if the change clears a clause that only other users have named.
    fn check_clearing(
        &self,
        by: Claimant,
        own: Option<&Contract>,
        change: &Change,
    ) -> Result<(), ClaimError> {
        for clause in change.cleared() {
            if by.uid == 0 || own.is_some_and(|own| names_clause(own, clause)) {
                continue;
            }
            let holder = self
                .claims
                .iter()
                .find(|claim| names_clause(&claim.contract, clause));
            if let Some(holder) = holder {
                return Err(ClaimError::NotYours {
                    clause,
                    holder: holder.by.uid,
                });
            }
        }
        Ok(())
    }

    /// Computes the effective contract of `claims`. `requester` is the user who changed them. If
    /// the claims contradict each other, unprivileged claims are set aside, except that of
    /// `requester`: it is refused.
    fn resolve(claims: Vec<Claim>, requester: Option<Claimant>) -> Result<Claims, ClaimError> {
        let mut all = Claims {
            claims,
            ..Claims::default()
        };
        let conflict = |all: &Claims, error| {
            let mut others = all.users();
            others.retain(|uid| requester.is_none_or(|requester| *uid != requester.uid));
            ClaimError::Conflict { error, others }
        };
        if let Ok(effective) = all.combined_contract() {
            all.effective = effective;
            return Ok(all);
        }
        let unprivileged = all.claims.iter().filter(|claim| !claim.by.privileged);
        let users: Vec<u32> = unprivileged.map(|claim| claim.by.uid).collect();
        all.aside.clone_from(&users);
        let own = all.combined_contract();
        all.effective = own.map_err(|error| conflict(&all, error))?;
        for uid in users {
            all.aside.retain(|aside| *aside != uid);
            match all.combined_contract() {
                Ok(effective) => all.effective = effective,
                Err(error) if requester.is_some_and(|requester| requester.uid == uid) => {
                    return Err(conflict(&all, error));
                }
                Err(_) => all.aside.push(uid),
            }
        }
        Ok(all)
    }

    /// The contract that results from the claims that are not set aside.
    fn combined_contract(&self) -> Result<Contract, ContractError> {
        let change = self.combined_clauses();
        match change.is_empty() {
            true => Ok(Contract::default()),
            false => Contract::default().apply(&change),
        }
    }

    /// The claims that are not set aside.
    fn counting(&self) -> impl DoubleEndedIterator<Item = &Claim> {
        let counts = |claim: &&Claim| !self.aside.contains(&claim.by.uid);
        self.claims.iter().filter(counts)
    }

    /// The clauses that result from the claims that are not set aside.
    fn combined_clauses(&self) -> Change {
        fn set<T>(deciding: Option<(&Claim, T)>) -> Option<Setting<T>> {
            deciding.map(|(_, value)| Setting::Set(value))
        }
        let named = self
            .counting()
            .any(|claim| claim.contract.burst().is_some());
        Change {
            up: set(self.smallest(Contract::up)),
            down: set(self.smallest(Contract::down)),
            both: set(self.smallest(Contract::both)),
            burst: named.then(|| set(self.smallest(burst_of))).flatten(),
            min: set(self.latest(|c| c.min(Direction::Up))),
            min_down: set(self.latest(|c| c.min(Direction::Down))),
            on: set(self.latest(|c| c.on().cloned())),
            weight: set(self.latest(Contract::weight)),
            priority: set(self.latest(Contract::priority)),
            slice: set(self.latest(Contract::slice)),
            cpu: set(self.latest(Contract::cpu)),
            cell: set(self.latest(Contract::cell)),
            channel: set(self.latest(Contract::channel)),
        }
    }

    /// The claim with the smallest value of a clause; of equal ones, the claim that was changed
    /// earliest.
    fn smallest<T: Ord>(&self, read: impl Fn(&Contract) -> Option<T>) -> Option<(&Claim, T)> {
        self.counting()
            .filter_map(|claim| Some((claim, read(&claim.contract)?)))
            .min_by(|(_, a), (_, b)| a.cmp(b))
    }

    /// The privileged claim that names a clause and was changed latest.
    fn latest<T>(&self, read: impl Fn(&Contract) -> Option<T>) -> Option<(&Claim, T)> {
        self.counting()
            .rev()
            .filter(|claim| claim.by.privileged)
            .find_map(|claim| Some((claim, read(&claim.contract)?)))
    }
}

/// The error of a change to claims, or of restoring them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// The user's own claim would contradict itself.
    #[error(transparent)]
    Contract(#[from] ContractError),
    /// The claim would contradict the claims of other users.
    #[error(
        "{error} (conflicts with the claims of {} on this target; root can clear them)",
        Users(others)
    )]
    Conflict {
        /// The contradiction.
        error: ContractError,
        /// The user ids of all other users with a claim on this target.
        others: Vec<u32>,
    },
    /// Only root and the group `netnice` may use the clause, and the user is neither.
    #[error("{0} is for root and the group netnice; up, down, both and burst are for all")]
    NeedsPrivilege(Clause),
    /// The change clears a clause that another user has set, and this user has not.
    #[error("{clause} was set by {user}: only {user} or root can clear it; you can set a smaller \
             limit",
            user = Users(&[*holder]))]
    NotYours {
        /// The clause.
        clause: Clause,
        /// The user id of the first claim that sets it.
        holder: u32,
    },
    /// The user has no claim on this target. Holds the user ids that have one.
    #[error("you have no claim on this target{}", OthersHold(.0))]
    NothingYours(Vec<u32>),
    /// Two stored claims have the same user id, which this variant holds.
    #[error("two claims of user {0} on one target")]
    TwoOfOneUser(u32),
}

/// Users in a message: `root`, `user 1000`.
struct Users<'a>(&'a [u32]);

impl core::fmt::Display for Users<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        for (n, uid) in self.0.iter().enumerate() {
            if n > 0 {
                f.write_str(", ")?;
            }
            match uid {
                0 => f.write_str("root")?,
                uid => write!(f, "user {uid}")?,
            }
        }
        Ok(())
    }
}

/// The users with claims in a message, or nothing if there are none.
struct OthersHold<'a>(&'a [u32]);

impl core::fmt::Display for OthersHold<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.0 {
            [] => Ok(()),
            users => write!(
                f,
                "; claims of {} can be cleared by their owners and root",
                Users(users)
            ),
        }
    }
}

/// Whether a contract names a clause.
fn names_clause(contract: &Contract, clause: Clause) -> bool {
    contract.as_change().clauses().contains(&clause)
}

/// Clears the clauses that a change clears in every claim.
fn clear_everywhere(claims: &mut [Claim], change: &Change) -> Result<(), ClaimError> {
    let clearing = change.only_clears();
    if clearing.is_empty() {
        return Ok(());
    }
    for claim in claims {
        claim.contract = claim.contract.apply(&clearing)?;
    }
    Ok(())
}

/// The burst of a claim's limits: the named one, else the default if the claim has a limit.
fn burst_of(contract: &Contract) -> Option<Nanos> {
    let implied = contract.is_limited().then_some(Contract::DEFAULT_BURST);
    contract.burst().or(implied)
}

#[cfg(test)]
mod tests;

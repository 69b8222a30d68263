//! Claims: the requests of several users for one target, and the contract that results from them.
//!
//! A [`Claim`] is everything that one user, identified by user id, has asked of one target.
//! [`Claims`] holds the claims of all users and their effective contract:
//!
//! - **limits** (`up`, `down`, `both`, `burst`): the smallest of all claims that count holds. As
//!   with nice(1), a user can tighten a limit of another user but not loosen it. A limit without a
//!   burst of its own counts with the default burst.
//! - **the code point** (`dscp`): the privileged claim that names one and was changed latest
//!   decides; if there is none, the other claim that names one and was changed latest.
//! - **quotas** (`quota`): those of all claims that count hold, each with its own amount and
//!   period. The effective contract shows one of them.
//! - **`yield`**: one claim that counts and names it is enough.
//! - **all other clauses** come from *privileged* claims (root and the group `netnice`). If two of
//!   them name the same clause, the claim that was changed latest decides.
//! - **shares** (`min`, `min-down`, `on`, `weight`, `priority`) may also come from an unprivileged
//!   claim, if no privileged claim that counts names the same clause. Only
//!   [`Claims::apply_in_budget`] makes such a claim; the caller checks that a budget of the user
//!   contains the target.
//! - **schedules** (`when`): each claim has its own, which is not part of the effective contract.
//!   The effective contract has the clauses of all claims, whatever the time, and is what admission
//!   checks: so nothing that a schedule brings into force later can fail to fit. A schedule brings
//!   only limits, weights and priorities, and fewer limits always fit. [`Claims::in_force`] leaves
//!   out claims whose schedule is not active.
//! - **privileged before unprivileged**: an unprivileged claim that contradicts the privileged
//!   claims, or an older unprivileged claim that counts, is *set aside*: it stays stored and does
//!   not count. It counts again when no claim that counts contradicts it. So an unprivileged claim
//!   never causes the refusal of a privileged request. A request is refused if it would set aside
//!   the claim of the user who makes it.
//!
//! Users can change their own claims as far as these rules permit, and clear them at any time. If
//! the privileged claims contradict each other after a clear, because an older value of a clause
//! holds again, each one that contradicts an older privileged claim is set aside too. Only root can
//! clear the claims of other users, by clause or all at once.
//!
//! `Claims` is a value. A change returns new claims, and the old claims stay as they were. A change
//! fails with a [`ClaimError`] if it names no clause, if the user may not make it, if the user has
//! nothing to clear, if it contradicts claims that must stay in force, or if two claims have one
//! user id. The clauses of the [`Claims::effective`] contract never contradict each other.

use alloc::vec::Vec;

use crate::contract::{
    Change, Clause, Contract, ContractError, Direction, Dscp, Setting, TrafficQuota, Yield,
};
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
    /// The user. The claim is privileged if the user was privileged at one of its changes. A user
    /// who has left the group since keeps the granted clauses and can change only limits.
    pub by: Claimant,
    /// Number of the claim's latest change. Among the claims of one target, a higher number is a
    /// later change. Numbers saturate; of claims with the same number, the later one in
    /// [`Claims::iter`] was changed later.
    pub order: u64,
    /// The clauses that the user asks for.
    pub contract: Contract,
}

/// All claims on one target, and the contract that results from them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// By [`Claim::order`], latest last; at most one for each user.
    claims: Vec<Claim>,
    /// Users whose claims are set aside.
    aside: Vec<u32>,
    effective: Contract,
}

impl Claims {
    /// The given claims, for example from the state file, with the contract that results from them.
    /// Claims with the same [`Claim::order`] keep their sequence.
    ///
    /// # Errors
    /// [`ClaimError::TwoOfOneUser`] if two claims have the same user id.
    pub fn restore(claims: Vec<Claim>) -> Result<Claims, ClaimError> {
        Ok(resolve(sorted(claims)?).0)
    }

    /// The given claims in place of these.
    ///
    /// # Errors
    /// [`ClaimError::TwoOfOneUser`] if two claims have the same user id. [`ClaimError::Conflict`]
    /// if a privileged claim that is not set aside now would be set aside.
    pub fn replace(&self, claims: Vec<Claim>) -> Result<Claims, ClaimError> {
        self.check_set_aside(resolve(sorted(claims)?), None)
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

    /// The contract that would result from the privileged claims that count, without the others.
    pub fn of_privileged(&self) -> Contract {
        self.of(|claim| claim.by.privileged)
    }

    /// The contract that results from the claims that count, without those of the users in
    /// `dormant`, whose schedules are not active, and if `privileged` without the unprivileged
    /// ones.
    pub fn in_force(&self, dormant: &[u32], privileged: bool) -> Contract {
        self.of(|claim| (claim.by.privileged || !privileged) && !dormant.contains(&claim.by.uid))
    }

    /// The contract that results from those claims that count for which `keep` is true. All
    /// guarantees must be among them.
    fn of(&self, keep: impl Fn(&Claim) -> bool) -> Contract {
        let kept = self.claims.iter().filter(|claim| keep(claim));
        let all = Claims {
            claims: kept.cloned().collect(),
            aside: self.aside.clone(),
            ..Claims::default()
        };
        // This does not fail: clauses that agree with more limits, shares, code points and `yield`
        // also agree without them.
        all.combined_contract().unwrap_or_default()
    }

    /// The contract that results from the claims, without the shares of unprivileged users.
    pub fn without_users_shares(&self) -> Contract {
        let change = self.combined_clauses(false);
        // This does not fail: clauses that agree with shares also agree without them.
        Contract::default().apply(&change).unwrap_or_default()
    }

    /// The share clauses of the effective contract that an unprivileged claim decides, with the
    /// user id; `None` if there are none.
    pub fn users_shares(&self) -> Option<(u32, Vec<Clause>)> {
        let of_users = |clause: &Clause| {
            let uid = self.set_by(*clause)?;
            let mut claims = self.claims.iter();
            let by = claims.find(|claim| claim.by.uid == uid)?.by;
            (!by.privileged).then_some(uid)
        };
        let named = self.effective.as_change().clauses().into_iter();
        let shares: Vec<(Clause, u32)> = named
            .filter(|clause| clause.is_share())
            .filter_map(|clause| Some((clause, of_users(&clause)?)))
            .collect();
        let uid = shares.first()?.1;
        Some((uid, shares.into_iter().map(|(clause, _)| clause).collect()))
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
            Clause::When => None,
            Clause::Burst => {
                self.effective.burst()?;
                uid_of(self.smallest(burst_of))
            }
            Clause::Dscp => uid_of(self.marking()),
            Clause::Quota => uid_of(self.shown_quota()),
            Clause::Yield => uid_of(self.yielding()),
            _ if clause.is_share() => {
                uid_of(self.sharing(|contract| names_clause(contract, clause).then_some(())))
            }
            _ => uid_of(self.latest(|contract| names_clause(contract, clause).then_some(()))),
        }
    }

    /// The claims after user `by` has asked for a change. If root clears a clause, the clause is
    /// cleared in the claims of all users.
    ///
    /// # Errors
    /// [`ClaimError`] if the change names no clause, if it needs a privilege that `by` lacks, if
    /// `by` is not root and clears a clause that only other users have named, if the user's own
    /// claim would contradict itself, or if the change would set aside this claim or a privileged
    /// claim that counts now.
    pub fn apply(&self, by: Claimant, change: &Change) -> Result<Claims, ClaimError> {
        match change.needs_privilege() {
            Some(clause) if !by.privileged => Err(ClaimError::NeedsPrivilege(clause)),
            _ => self.apply_in_budget(by, change),
        }
    }

    /// As [`Claims::apply`], for a target inside a budget of `by`: the change may also name shares.
    ///
    /// # Errors
    /// As [`Claims::apply`].
    pub fn apply_in_budget(&self, by: Claimant, change: &Change) -> Result<Claims, ClaimError> {
        if !by.privileged
            && let Some(clause) = change.needs_privilege_in_budget()
        {
            return Err(ClaimError::NeedsPrivilege(clause));
        }
        let mut claims = self.claims.clone();
        let own = claims.iter().position(|claim| claim.by.uid == by.uid);
        let own = own.map(|at| claims.remove(at));
        // The shares of a privileged claim count as such, also after the user has left the group.
        if own
            .as_ref()
            .is_some_and(|own| own.by.privileged && !by.privileged)
            && let Some(clause) = change.needs_privilege()
        {
            return Err(ClaimError::NeedsPrivilege(clause));
        }
        let old = own.as_ref().map(|claim| &claim.contract);
        self.check_clearing(by, old, change)?;
        if by.uid == 0 {
            clear_everywhere(&mut claims, change)?;
        }
        let contract = old.cloned().unwrap_or_default().apply(change)?;
        let contract = contract.with_useful_schedule(change)?;
        contract.check_delegate()?;
        let was_privileged = own.as_ref().is_some_and(|claim| claim.by.privileged);
        claims.push(Claim {
            by: Claimant {
                uid: by.uid,
                privileged: by.privileged || was_privileged,
            },
            order: self
                .claims
                .last()
                .map_or(0, |claim| claim.order.saturating_add(1)),
            contract,
        });
        claims.retain(|claim| !claim.contract.is_empty());
        self.check_set_aside(resolve(claims), Some(by))
    }

    /// The claims without the claim of `by`. If `by` is root, all claims are removed. If privileged
    /// claims contradict each other then, the later ones are set aside.
    ///
    /// # Errors
    /// [`ClaimError::NothingYours`] if `by` is not root and has no claim.
    pub fn clear(&self, by: Claimant) -> Result<Claims, ClaimError> {
        if by.uid == 0 {
            return Ok(Claims::default());
        }
        let mut claims = self.claims.clone();
        claims.retain(|claim| claim.by.uid != by.uid);
        if claims.len() == self.claims.len() {
            return Err(ClaimError::NothingYours(self.users()));
        }
        Ok(resolve(claims).0)
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

    /// Returns the new claims that [`resolve`] has computed. Fails if they set aside the claim of
    /// `requester`, or a privileged claim that is not set aside now.
    fn check_set_aside(
        &self,
        (new, set_aside): (Claims, Vec<(Claimant, ContractError)>),
        requester: Option<Claimant>,
    ) -> Result<Claims, ClaimError> {
        let is_requester = |uid: u32| requester.is_some_and(|by| by.uid == uid);
        let refused = set_aside.into_iter().find(|(by, _)| {
            is_requester(by.uid) || (by.privileged && !self.aside.contains(&by.uid))
        });
        match refused {
            None => Ok(new),
            Some((_, error)) => {
                let mut others = new.users();
                others.retain(|uid| !is_requester(*uid));
                Err(ClaimError::Conflict { error, others })
            }
        }
    }

    /// The contract that results from the claims that are not set aside.
    fn combined_contract(&self) -> Result<Contract, ContractError> {
        let change = self.combined_clauses(true);
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

    /// The clauses that result from the claims that are not set aside; without the shares of
    /// unprivileged users if `users_shares` is false.
    fn combined_clauses(&self, users_shares: bool) -> Change {
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
            min: set(self.share(users_shares, |c| c.min(Direction::Up))),
            min_down: set(self.share(users_shares, |c| c.min(Direction::Down))),
            on: set(self.share(users_shares, |c| c.on().cloned())),
            weight: set(self.share(users_shares, Contract::weight)),
            priority: set(self.share(users_shares, Contract::priority)),
            dscp: set(self.marking()),
            yields: set(self.yielding()),
            delegate: set(self.latest(|c| c.delegate().cloned())),
            slice: set(self.latest(Contract::slice)),
            cpu: set(self.latest(Contract::cpu)),
            cell: set(self.latest(Contract::cell)),
            channel: set(self.latest(Contract::channel)),
            receive: set(self.latest(Contract::receive)),
            quota: set(self.shown_quota()),
            when: None,
        }
    }

    /// The claim with the smallest value of a clause; of equal ones, the claim that was changed
    /// earliest.
    fn smallest<T: Ord>(&self, read: impl Fn(&Contract) -> Option<T>) -> Option<(&Claim, T)> {
        self.counting()
            .filter_map(|claim| Some((claim, read(&claim.contract)?)))
            .min_by(|(_, a), (_, b)| a.cmp(b))
    }

    /// The claim that decides the code point, with the code point.
    fn marking(&self) -> Option<(&Claim, Dscp)> {
        let of_users = || {
            let mut latest_first = self.counting().rev();
            latest_first.find_map(|claim| Some((claim, claim.contract.dscp()?)))
        };
        self.latest(Contract::dscp).or_else(of_users)
    }

    /// The claims that count and have a quota, with it.
    pub fn quotas(&self) -> impl Iterator<Item = (&Claim, &TrafficQuota)> {
        let counting = self.counting();
        counting.filter_map(|claim| Some((claim, claim.contract.quota()?)))
    }

    /// The claim whose quota the effective contract shows.
    fn shown_quota(&self) -> Option<(&Claim, TrafficQuota)> {
        let shown = self.quotas().min_by(|(_, a), (_, b)| a.display_order(b));
        shown.map(|(claim, quota)| (claim, quota.clone()))
    }

    /// The first claim that yields.
    fn yielding(&self) -> Option<(&Claim, Yield)> {
        let mut claims = self.counting();
        let found = claims.find(|claim| claim.contract.yields());
        found.map(|claim| (claim, Yield))
    }

    /// The claim that decides a share, with its value; only a privileged one if `of_users` is
    /// false.
    fn share<T>(
        &self,
        of_users: bool,
        read: impl Fn(&Contract) -> Option<T>,
    ) -> Option<(&Claim, T)> {
        match of_users {
            true => self.sharing(read),
            false => self.latest(read),
        }
    }

    /// The claim that decides a share, with its value.
    fn sharing<T>(&self, read: impl Fn(&Contract) -> Option<T>) -> Option<(&Claim, T)> {
        let of_users = || {
            let mut latest_first = self.counting().rev();
            latest_first.find_map(|claim| Some((claim, read(&claim.contract)?)))
        };
        self.latest(&read).or_else(of_users)
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
    #[error(
        "{0} is for root and the group netnice; up, down, both, burst, dscp, yield, quota and \
             when are for all"
    )]
    NeedsPrivilege(Clause),
    /// The change clears a clause that another user has set, and this user has not.
    #[error("{clause} was set by {user}: only {user} or root can clear it; you can set a smaller \
             limit",
            user = Users(&[*holder]))]
    NotYours {
        /// The clause.
        clause: Clause,
        /// The user id of the first claim that sets the clause.
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

/// The claims by [`Claim::order`]. Fails if two of them have the same user id.
fn sorted(mut claims: Vec<Claim>) -> Result<Vec<Claim>, ClaimError> {
    claims.sort_by_key(|claim| claim.order);
    for (n, claim) in claims.iter().enumerate() {
        if claims[..n].iter().any(|c| c.by.uid == claim.by.uid) {
            return Err(ClaimError::TwoOfOneUser(claim.by.uid));
        }
    }
    Ok(claims)
}

/// Computes which of the claims count, and their effective contract. If they contradict each other,
/// unprivileged claims are set aside; if the privileged claims contradict each other, some of these
/// too. Of two contradicting claims of one kind the older counts. The second result has each user
/// whose claim is set aside, with the contradiction.
fn resolve(claims: Vec<Claim>) -> (Claims, Vec<(Claimant, ContractError)>) {
    let mut all = Claims {
        claims,
        ..Claims::default()
    };
    let mut set_aside = Vec::new();
    if let Ok(effective) = all.combined_contract() {
        all.effective = effective;
        return (all, set_aside);
    }
    let users = all.claims.iter().map(|claim| claim.by);
    let (privileged, mut rest): (Vec<Claimant>, Vec<_>) = users.partition(|by| by.privileged);
    all.aside = rest.iter().map(|by| by.uid).collect();
    match all.combined_contract() {
        Ok(effective) => all.effective = effective,
        Err(_) => {
            all.aside = all.users();
            rest = privileged.into_iter().chain(rest).collect();
        }
    }
    for by in rest {
        all.aside.retain(|aside| *aside != by.uid);
        match all.combined_contract() {
            Ok(effective) => all.effective = effective,
            Err(error) => {
                all.aside.push(by.uid);
                set_aside.push((by, error));
            }
        }
    }
    (all, set_aside)
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
        let left = claim.contract.apply(&clearing)?;
        claim.contract = left.with_useful_schedule(&clearing)?;
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

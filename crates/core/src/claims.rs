//! What holds when several people ask something of one target.
//!
//! A limit belongs to who set it, by user id. A [`Claim`] is all that one user has asked of one
//! target; [`Claims`] are those of all users, and what follows from them:
//!
//! - **limits** (`up`, `down`, `both`, `burst`): the smallest of all claims holds, as with
//!   nice(1) a user can tighten but not loosen what somebody else has set. A limit without a
//!   burst of its own counts with the default burst.
//! - **everything else** comes from privileged claims (root and the group `netnice`) only; where
//!   two of them name the same clause, the claim that was changed latest wins;
//! - **privileged before unprivileged**: where a user's claim contradicts what root and the group
//!   ask, it is *set aside*: it stays on the books, does not count, and counts again by itself
//!   once nothing contradicts it. So no user's claim refuses what root asks.
//!
//! One's own claim may be raised or taken back at any time. Another's may not, unless by root,
//! who may take back anything, clause by clause or all at once.
//!
//! `Claims` are a value: a change gives new claims or an error, and an error leaves the old ones
//! as they were. Their [`Claims::effective`] contract is always consistent.

use alloc::vec::Vec;

use crate::contract::{Change, Clause, Contract, ContractError, Direction, Setting};
use crate::units::Nanos;

/// Who asks.
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

/// What one user has asked of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Who asked. The privilege is that of when the claim was made: a user who has left the
    /// group since keeps what was granted, but cannot ask for more.
    pub by: Claimant,
    /// When the claim was changed last, compared with the others of this target.
    pub order: u64,
    /// What was asked.
    pub contract: Contract,
}

/// All that is asked of one target, by whom, and what follows from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// By order, latest last; one per user.
    claims: Vec<Claim>,
    /// Users whose claims are set aside.
    aside: Vec<u32>,
    effective: Contract,
}

impl Claims {
    /// Claims as they were written down earlier.
    pub fn restore(claims: Vec<Claim>) -> Result<Claims, ClaimError> {
        let mut claims = claims;
        claims.sort_by_key(|claim| claim.order);
        for (n, claim) in claims.iter().enumerate() {
            if claims[..n].iter().any(|c| c.by.uid == claim.by.uid) {
                return Err(ClaimError::TwoOfOneUser(claim.by.uid));
            }
        }
        Claims::of(claims, None)
    }

    /// The claims, the one that was changed latest at the end.
    pub fn iter(&self) -> impl Iterator<Item = &Claim> {
        self.claims.iter()
    }

    /// Whether nobody asks anything.
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    /// What holds.
    pub fn effective(&self) -> &Contract {
        &self.effective
    }

    /// The users whose claims do not count now, for they contradict what root and the group ask.
    pub fn set_aside(&self) -> &[u32] {
        &self.aside
    }

    /// What root and the group ask, without what users without privilege ask.
    pub fn of_privileged(&self) -> Contract {
        let privileged = self.claims.iter().filter(|claim| claim.by.privileged);
        let all = Claims {
            claims: privileged.cloned().collect(),
            ..Claims::default()
        };
        // A burst alone, whose limit is a user's, asks nothing.
        all.consequence().unwrap_or_default()
    }

    /// Whose claim decides a clause of the effective contract, if the clause is named there.
    pub fn set_by(&self, clause: Clause) -> Option<u32> {
        fn who<T>(deciding: Option<(&Claim, T)>) -> Option<u32> {
            deciding.map(|(claim, _)| claim.by.uid)
        }
        match clause {
            Clause::Up => who(self.smallest(Contract::up)),
            Clause::Down => who(self.smallest(Contract::down)),
            Clause::Both => who(self.smallest(Contract::both)),
            Clause::Burst => {
                self.effective.burst()?;
                who(self.smallest(burst_of))
            }
            _ => who(self.latest(|contract| names(contract, clause).then_some(()))),
        }
    }

    /// The claims after `by` has asked for a change. Root's clearing of a clause clears it in
    /// the claims of all.
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
        self.may_clear(by, old, change)?;
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
        Claims::of(claims, Some(by))
    }

    /// The claims after `by` has taken back what is theirs; of root, everything.
    pub fn clear(&self, by: Claimant) -> Result<Claims, ClaimError> {
        if by.uid == 0 {
            return Ok(Claims::default());
        }
        let mut claims = self.claims.clone();
        claims.retain(|claim| claim.by.uid != by.uid);
        if claims.len() == self.claims.len() {
            return Err(ClaimError::NothingYours(self.users()));
        }
        Claims::of(claims, Some(by))
    }

    /// The users who ask something.
    fn users(&self) -> Vec<u32> {
        self.claims.iter().map(|claim| claim.by.uid).collect()
    }

    /// Refuses to clear a clause that only others have named.
    fn may_clear(
        &self,
        by: Claimant,
        own: Option<&Contract>,
        change: &Change,
    ) -> Result<(), ClaimError> {
        for clause in change.cleared() {
            if by.uid == 0 || own.is_some_and(|own| names(own, clause)) {
                continue;
            }
            let holder = self
                .claims
                .iter()
                .find(|claim| names(&claim.contract, clause));
            if let Some(holder) = holder {
                return Err(ClaimError::NotYours {
                    clause,
                    holder: holder.by.uid,
                });
            }
        }
        Ok(())
    }

    /// Claims with what follows from them; `asking` is who changed them. Where they contradict each
    /// other, claims without privilege are set aside; that of who asks is refused instead.
    fn of(claims: Vec<Claim>, asking: Option<Claimant>) -> Result<Claims, ClaimError> {
        let mut all = Claims {
            claims,
            ..Claims::default()
        };
        let conflict = |all: &Claims, error| {
            let mut others = all.users();
            others.retain(|uid| asking.is_none_or(|asking| *uid != asking.uid));
            ClaimError::Conflict { error, others }
        };
        if let Ok(effective) = all.consequence() {
            all.effective = effective;
            return Ok(all);
        }
        let unprivileged = all.claims.iter().filter(|claim| !claim.by.privileged);
        let users: Vec<u32> = unprivileged.map(|claim| claim.by.uid).collect();
        all.aside.clone_from(&users);
        let own = all.consequence();
        all.effective = own.map_err(|error| conflict(&all, error))?;
        for uid in users {
            all.aside.retain(|aside| *aside != uid);
            match all.consequence() {
                Ok(effective) => all.effective = effective,
                Err(error) if asking.is_some_and(|asking| asking.uid == uid) => {
                    return Err(conflict(&all, error));
                }
                Err(_) => all.aside.push(uid),
            }
        }
        Ok(all)
    }

    /// What follows from the claims that count.
    fn consequence(&self) -> Result<Contract, ContractError> {
        let change = self.combined();
        match change.is_empty() {
            true => Ok(Contract::default()),
            false => Contract::default().apply(&change),
        }
    }

    /// The claims that count.
    fn counting(&self) -> impl DoubleEndedIterator<Item = &Claim> {
        let counts = |claim: &&Claim| !self.aside.contains(&claim.by.uid);
        self.claims.iter().filter(counts)
    }

    /// The clauses that hold.
    fn combined(&self) -> Change {
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

    /// The claim with the smallest value of a clause, the earliest of equals.
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

/// Why a claim cannot be changed so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// The asker's own claim would contradict itself.
    #[error(transparent)]
    Contract(#[from] ContractError),
    /// The claim would contradict those of other users.
    #[error(
        "{error} (with what {} asked of this target; root may clear it)",
        Users(others)
    )]
    Conflict {
        /// The contradiction.
        error: ContractError,
        /// The other users who ask something.
        others: Vec<u32>,
    },
    /// A clause that only root and the group `netnice` may name.
    #[error("{0} is for root and the group netnice; up, down, both and burst are for all")]
    NeedsPrivilege(Clause),
    /// A clause that somebody else has set.
    #[error("{clause} was set by {}, who (or root) may take it back; you may set a smaller limit",
            Users(&[*holder]))]
    NotYours {
        /// The clause.
        clause: Clause,
        /// Who set it.
        holder: u32,
    },
    /// Nothing on this target is the asker's.
    #[error("nothing on this target was set by you{}", OthersHold(.0))]
    NothingYours(Vec<u32>),
    /// Two claims of the same user in what was written down.
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

/// Who holds it, if anybody does.
struct OthersHold<'a>(&'a [u32]);

impl core::fmt::Display for OthersHold<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.0 {
            [] => Ok(()),
            users => write!(
                f,
                ", but by {}, who (or root) may take it back",
                Users(users)
            ),
        }
    }
}

/// Whether a contract names a clause.
fn names(contract: &Contract, clause: Clause) -> bool {
    contract.as_change().clauses().contains(&clause)
}

/// Takes the clauses that a change clears out of every claim.
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

/// The burst that a claim's limits imply: as named, else the default if there is a limit.
fn burst_of(contract: &Contract) -> Option<Nanos> {
    let implied = contract.is_limited().then_some(Contract::DEFAULT_BURST);
    contract.burst().or(implied)
}

#[cfg(test)]
mod tests;

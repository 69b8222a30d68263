//! The clause `yield`: its value, and the clauses that contradict it. Only the check fails, with
//! [`ContractError::YieldAndShare`].

use super::{Clause, Contract, ContractError};

/// The value of the clause `yield`: the target uses only bandwidth that no other traffic uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Yield;

impl Yield {
    /// The text of the value.
    pub const TEXT: &'static str = "on";
}

impl Contract {
    /// Whether the target uses only bandwidth of managed links that no other traffic uses.
    pub fn yields(&self) -> bool {
        self.yields.is_some()
    }

    /// Fails if the contract has `yield` and a clause that asks for a part of a link.
    pub(super) fn check_yield(&self) -> Result<(), ContractError> {
        if !self.yields() {
            return Ok(());
        }
        let part_of_link = |clause: &Clause| {
            matches!(
                clause,
                Clause::Min
                    | Clause::MinDown
                    | Clause::On
                    | Clause::Weight
                    | Clause::Priority
                    | Clause::Slice
                    | Clause::Cell
            )
        };
        match self.as_change().clauses().into_iter().find(part_of_link) {
            Some(clause) => Err(ContractError::YieldAndShare(clause)),
            None => Ok(()),
        }
    }
}

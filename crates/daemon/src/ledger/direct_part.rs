//! The direct path's part of a link, beside the targets of the kernel path.
//!
//! A link is split: the kernel's classes divide one part, the driver process the other; together
//! they are the link. The ledger holds only the sum that the driver's flows need
//! ([`DirectPart::need`]); for admission it is one more promise, held by `direct:LINK`.
//! [`crate::flows`] holds the promise of each flow.

use netnice_core::admission::{TargetEntry, TargetId};
use netnice_core::contract::{Change, Contract, IfName};
use netnice_core::target::Target;
use netnice_core::units::{Amount, Rate};

use super::Ledger;

/// The direct path's part of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DirectPart {
    /// The smallest rate that keeps all promises to its flows.
    pub need: Rate,
    /// The number of flows.
    pub flows: u32,
    /// The rate left for the kernel's classes.
    pub tree: Rate,
}

impl Ledger {
    /// The direct path's part of a link, if it has flows there.
    pub(crate) fn part(&self, link: &IfName) -> Option<&DirectPart> {
        self.parts.get(link)
    }

    /// Replaces the direct path's part of a link, and returns the former one.
    pub(crate) fn set_part(
        &mut self,
        link: &IfName,
        part: Option<DirectPart>,
    ) -> Option<DirectPart> {
        match part {
            Some(part) => self.parts.insert(link.clone(), part),
            None => self.parts.remove(link),
        }
    }

    /// The parts as entries, for admission.
    pub(super) fn part_entries(&self) -> impl Iterator<Item = TargetEntry> {
        self.parts.iter().zip(0..).filter_map(|((link, part), n)| {
            // Slots of targets end far below.
            let id = TargetId::new(u16::MAX - n)?;
            let change: Change = format!("min {} on {link}", exactly(part.need))
                .parse()
                .ok()?;
            Some(TargetEntry {
                id,
                target: Target::Direct(link.clone()),
                parent: None,
                contract: Contract::default().apply(&change).ok()?,
            })
        })
    }

    /// The rate that the direct path needs of a link.
    pub(super) fn needed(&self, link: &IfName) -> Amount {
        self.parts
            .get(link)
            .map_or(Amount(0), |part| part.need.into())
    }
}

/// A rate in the grammar of contracts, without rounding.
pub(crate) fn exactly(rate: Rate) -> String {
    format!("{}bit", rate.bits_per_second())
}

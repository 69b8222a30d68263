//! What the direct path has of a link, beside the targets of the kernel path.
//!
//! A link is split: the classes of the kernel share out one part, the driver process the other, and both parts together are the
//! link. Of the driver's part the ledger knows what its flows need together ([`Part::need`]); for admission that is one promise
//! more, held by `direct:LINK`. Which flow is promised what is [`crate::flows`]'s to know.

use netnice_core::admission::{Entry, TargetId};
use netnice_core::contract::{Change, Contract, IfName};
use netnice_core::target::Target;
use netnice_core::units::{Amount, Rate};

use super::Ledger;

/// What the direct path has of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// The least rate with which all that is promised to its flows can be kept.
    pub need: Rate,
    /// How many flows there are.
    pub flows: u32,
    /// What is left for the classes of the kernel meanwhile.
    pub tree: Rate,
}

impl Ledger {
    /// What the direct path has of a link, if it has flows there.
    pub(crate) fn part(&self, link: &IfName) -> Option<&Part> {
        self.parts.get(link)
    }

    /// Says what it has from now on; tells what it had.
    pub(crate) fn set_part(&mut self, link: &IfName, part: Option<Part>) -> Option<Part> {
        match part {
            Some(part) => self.parts.insert(link.clone(), part),
            None => self.parts.remove(link),
        }
    }

    /// The parts as admission wants them.
    pub(super) fn part_entries(&self) -> impl Iterator<Item = Entry> {
        self.parts.iter().zip(0..).filter_map(|((link, part), n)| {
            // Slots of targets end far below.
            let id = TargetId::new(u16::MAX - n)?;
            let change: Change = format!("min {} on {link}", exactly(part.need))
                .parse()
                .ok()?;
            Some(Entry {
                id,
                target: Target::Direct(link.clone()),
                parent: None,
                contract: Contract::default().apply(&change).ok()?,
            })
        })
    }

    /// What the direct path needs of a link.
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

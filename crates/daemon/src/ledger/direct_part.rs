//! Stores the direct path's part of each link, beside the targets of the kernel path. Nothing here
//! can fail.
//!
//! The driver process sends at one part of a link's rate, the kernel's classes at the rest.
//! [`crate::flows`] stores the promise to each flow. The ledger stores for each link the rate that
//! the driver needs to keep all of these promises ([`DirectPart::need`]), the number of flows, and
//! the present rate of the kernel's classes. For admission the needed rate is one more promise, to
//! the target `direct:LINK`.

use netnice_core::admission::{TargetEntry, TargetId};
use netnice_core::contract::{Change, Contract, Direction, IfName};
use netnice_core::target::Target;
use netnice_core::units::{Amount, Nanos, Rate};

use super::Ledger;

/// The direct path's part of a link, in the sending direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DirectPart {
    /// The rate that keeps all promises to its flows, as [`crate::flows`] has computed it.
    pub need: Rate,
    /// The number of flows on the link. Without flows, `need` is what the server of the link needs.
    pub flows: u32,
    /// The present rate of the kernel's classes; above the link's rate while there are no flows.
    pub tree: Rate,
    /// The bucket of the filter above the kernel's classes, as time at their rate, while a flow has
    /// a deadline; else `None`.
    pub bucket: Option<Nanos>,
}

impl Ledger {
    /// The direct path's part of a link; `None` if the direct path has no flow there.
    pub(crate) fn direct_part(&self, link: &IfName) -> Option<&DirectPart> {
        self.parts.get(link)
    }

    /// Replaces the direct path's part of a link (`None`: it has no flow there), and returns the
    /// former one.
    pub(crate) fn set_direct_part(
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
        let parts = self.parts.iter().zip(0..);
        parts.filter_map(|((link, part), n)| {
            let need = self.without_targets(link, part.need);
            entry(link, Rate::new(need.0).unwrap_or(Rate::MIN), n)
        })
    }

    /// What the direct path needs of a link without what is promised to targets: what flows have of
    /// budgets is promised to the budgets, and redirected targets have promises of their own.
    fn without_targets(&self, link: &IfName, need: Rate) -> Amount {
        let need = Amount::from(need).less(self.flows_in_budgets(link));
        need.less(self.redirected_on(link))
    }

    /// The part of one link as an entry, with the smallest rate that the direct path has while it
    /// has a flow: promises to targets come before promises to flows. `None` if the direct path has
    /// no flow there, or the link is not managed for sending.
    pub(super) fn least_part_entry(&self, link: &IfName) -> Option<TargetEntry> {
        let part = self.parts.get(link)?;
        let rate = self.link(link.as_str())?.link.usable(Direction::Up)?;
        let least = rate.portion(1, FLOWS_DIVISOR).unwrap_or(Rate::MIN);
        let need = Rate::new(self.without_targets(link, part.need).0);
        entry(link, need.unwrap_or(Rate::MIN).min(least), 0)
    }

    /// The rate that the direct path needs of a link beside the promises to targets; 0 if it has no
    /// part there.
    pub(super) fn needed(&self, link: &IfName) -> Amount {
        let part = self.parts.get(link);
        part.map_or(Amount(0), |part| self.without_targets(link, part.need))
    }
}

/// The entry of a link's part. `n` distinguishes the parts of several links.
fn entry(link: &IfName, need: Rate, n: u16) -> Option<TargetEntry> {
    // The slots of targets end far below these ids, at `netnice_kernel::plan::MAX_SLOT`.
    let id = TargetId::new(u16::MAX - n)?;
    let change: Change = format!("min {} on {link}", exactly(need)).parse().ok()?;
    Some(TargetEntry {
        id,
        target: Target::Direct(link.clone()),
        parent: None,
        contract: Contract::default().apply(&change).ok()?,
    })
}

/// The smallest part of a link for the direct path, as one part of this many, while it has a flow
/// there.
pub(crate) const FLOWS_DIVISOR: u64 = 100;

/// A rate in the grammar of contracts, in bit/s without rounding: `4000000bit`.
pub(crate) fn exactly(rate: Rate) -> String {
    format!("{}bit", rate.bits_per_second())
}

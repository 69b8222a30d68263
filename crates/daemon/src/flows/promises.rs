//! [`Promises`], the interface from the flow manager to the policy, the ledger, the kernel's
//! classes, the processes of the machine and the journal. The service implements it. A method that
//! returns a `Result` fails if the policy does not allow the request, or if the kernel refuses.
//!
//! For the ledger, the promises to all flows of a link are one [`DirectPart`], beside the promises
//! to targets of the kernel path, so that the two paths do not promise the same rate. Only
//! [`crate::flows`] has the promise of each flow.

use std::collections::{BTreeMap, BTreeSet};

use netnice_api::direct::Term;
use netnice_api::driver::CodePointsDoc;
use netnice_core::admission::TargetId;
use netnice_core::admission::timing::Stops;
use netnice_core::contract::{IfName, Slice};
use netnice_core::link::Link;
use netnice_core::link::classes::LinkClasses;
use netnice_core::units::{Amount, Instant, Nanos};
use netnice_kernel::enforce::{PathCounter, Redirects};

use crate::clock::Now;
use crate::error::RequestError;
use crate::host::Process;
use crate::journal::Journal;
use crate::ledger::Ledger;
use crate::ledger::direct_part::DirectPart;
use crate::ledger::redirects::{RedirectPlace, RedirectableTarget};
use crate::peer::Peer;
use crate::quotas::Quotas;

/// What is promised on the links by a ledger: the one in force, or that of a draft.
pub(crate) trait LinkPromises {
    /// The managed link of this name; `None` if it is not managed.
    fn link(&self, name: &IfName) -> Option<Link>;
    /// The sending rates that the kernel's classes of a link keep for targets: for each target, and
    /// the total. Redirected targets are not among them.
    fn promised_to_targets(&self, link: &Link) -> (Vec<(String, Amount)>, Amount);
    /// The policy's setting `stops`: what the machine takes from a driver's packet thread.
    fn stops(&self) -> Option<Stops>;
    /// The name of the target with this id; `None` if no held target has it.
    fn name_of(&self, target: u32) -> Option<String>;
}

/// What a ledger promises on the links.
pub(crate) struct LedgerPromises<'a> {
    /// The ledger.
    pub ledger: &'a Ledger,
    /// The policy's setting `stops`.
    pub stops: Option<Stops>,
}

impl LinkPromises for LedgerPromises<'_> {
    fn link(&self, name: &IfName) -> Option<Link> {
        let managed = self.ledger.link(name.as_str())?;
        Some(managed.link.clone())
    }

    fn promised_to_targets(&self, link: &Link) -> (Vec<(String, Amount)>, Amount) {
        let [together, _] = self.ledger.promised_to_targets(link);
        let each = self.ledger.promised_to_each(link);
        // What flows have of a budget is not kept for targets.
        let elsewhere = [
            self.ledger.flows_in_budgets(&link.name),
            self.ledger.promised_to_redirected(link),
        ];
        (each.collect(), together.less(elsewhere.into_iter().sum()))
    }

    fn stops(&self) -> Option<Stops> {
        self.stops
    }

    fn name_of(&self, target: u32) -> Option<String> {
        let held = self.ledger.by_id(target)?;
        Some(held.entry.target.to_string())
    }
}

/// A request to change a target, as far as it is prepared.
pub(crate) struct TargetDraft<'a> {
    /// The ledger in force.
    pub present: &'a Ledger,
    /// The ledger as the request would leave it.
    pub draft: &'a Ledger,
    /// The target of the request.
    pub slot: TargetId,
    /// The policy's setting `stops`.
    pub stops: Option<Stops>,
}

/// What will serve the packets that a target sends, once a request is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServedBy {
    /// The kernel's classes, or nothing; also if that is not known for sure.
    Classes,
    /// The driver of the target's link, which is asked at once.
    Driver,
}

/// Checks a request to change a target before it is installed.
///
/// # Errors
/// If the driver of the target's link cannot keep what the request asks.
pub(crate) type TargetCheck<'a> =
    dyn FnMut(&TargetDraft<'_>) -> Result<ServedBy, RequestError> + 'a;

/// The longest time for which the reply to a request that sets a target waits until the driver
/// serves the target, and for which the target has no class, or a class without a ceiling.
pub(crate) const LONGEST_WAIT: Nanos = Nanos::from_secs(3);

/// What the flow manager reads and changes in the rest of the daemon.
pub(crate) trait Promises: LinkPromises {
    /// Checks that the policy allows a peer to have flows.
    ///
    /// # Errors
    /// If it does not. While no policy is known, only privileged peers may have flows.
    fn may_use(&self, peer: &Peer) -> Result<(), RequestError>;
    /// True if the policy lets a peer have channels for its flows (`channel_users`). Privileged
    /// peers may have them in any case.
    fn may_have_channels(&self, peer: &Peer) -> bool;
    /// The quotas, from the policy.
    fn quotas(&self) -> &Quotas;
    /// The policy's setting `direct_awake`: true if drivers keep processors awake while packets of
    /// `cell` contracts are sent.
    fn keeps_awake(&self) -> bool;
    /// The code points that drivers write, from the policy; `None` while no policy is known.
    fn code_points(&self) -> Option<CodePointsDoc>;
    /// True while a reservation of processor time is in force.
    fn reserves_processors(&self) -> bool;
    /// The discard patterns of a link, from the policy; `None` while no policy is known.
    fn discards(&self, link: &IfName) -> Option<&[Vec<Term>]>;
    /// The process with this pid; `None` if there is none.
    fn process(&mut self, pid: u32) -> Option<Process>;
    /// Checks that no traffic quota holds a process: flows would pass by it uncounted.
    ///
    /// # Errors
    /// If one does. Names the target.
    fn check_unmetered(&mut self, _pid: u32) -> Result<(), RequestError> {
        Ok(())
    }
    /// The processor time that the target of a process has for certain; `None` if there is no such
    /// target.
    fn processor_slice(&mut self, pid: u32) -> Option<Slice>;
    /// The managed links.
    fn links(&self) -> Vec<IfName>;
    /// The classes of a managed link; none if the link is not managed or has none.
    fn classes(&self, link: &IfName) -> LinkClasses;
    /// The flows' part of a link; `None` if it has none.
    fn direct_part(&self, link: &IfName) -> Option<DirectPart>;
    /// Sets the flows' part of a link, and gives the rest to the kernel's classes. The part is not
    /// in the state file: the next daemon asks the drivers.
    ///
    /// # Errors
    /// If the kernel refuses the classes; then nothing has changed.
    fn set_direct_part(
        &mut self,
        link: &IfName,
        part: Option<DirectPart>,
    ) -> Result<(), RequestError>;
    /// The budget from which the flows of a user's process may have minimums on a link: its id, and
    /// the rate in it that is not promised to targets. `None` if there is none.
    fn budget_of(&mut self, pid: u32, uid: u32, link: &IfName) -> Option<(u32, Amount)>;
    /// Sets the sums of the minimums that flows on a link have of budgets, by the budget's id. They
    /// are not in the state file.
    fn set_flow_minimums(&mut self, link: &IfName, sums: BTreeMap<u32, Amount>);
    /// Bytes that the kernel's classes of a link had sent when they were read last, which is every
    /// 200 ms; `None` if unknown.
    fn sent_by_classes(&self, link: &IfName) -> Option<u64>;
    /// The time in which the kernel's classes of a link send what they have queued of the target
    /// with this id; without a class of its own or of a target around it, what they have queued of
    /// traffic without a target.
    ///
    /// # Errors
    /// If the classes cannot be read.
    fn drain_time(&mut self, _link: &IfName, _id: u32) -> Result<Nanos, RequestError> {
        Ok(Nanos(0))
    }
    /// The counter of what the kernel's classes of a link are given to send; `None` if the link is
    /// not managed for sending.
    ///
    /// # Errors
    /// If the counter cannot be read.
    fn path_counter(&self, link: &IfName) -> Result<Option<PathCounter>, RequestError>;
    /// The targets that the drivers of their links can serve, those with cell contracts and slices
    /// first; with minimums only on the links of `minimums_on`.
    fn redirectable(&self, minimums_on: &BTreeSet<IfName>) -> Vec<RedirectableTarget>;
    /// The places of redirected targets.
    fn redirects(&self) -> &BTreeMap<u16, RedirectPlace>;
    /// Replaces the places of redirected targets, and puts them into force.
    ///
    /// # Errors
    /// If the kernel refuses them; then the former places stay.
    fn set_redirects(&mut self, places: BTreeMap<u16, RedirectPlace>) -> Result<(), RequestError>;
    /// The targets that have no class until their driver serves them, by id, with the time at which
    /// they get one in any case.
    fn awaiting(&self) -> &BTreeMap<u32, Instant>;
    /// Replaces the targets that have no class until their driver serves them, and gives the others
    /// their classes.
    ///
    /// # Errors
    /// If the kernel refuses the classes; then the former targets stay.
    fn set_awaiting(&mut self, targets: BTreeMap<u32, Instant>) -> Result<(), RequestError>;
    /// The redirect pair of a link, and the map of redirects; `None` if the link has no pair.
    ///
    /// # Errors
    /// If they cannot be read.
    fn redirect_pair(&self, link: &IfName) -> Result<Option<Redirects>, RequestError>;
    /// Admits degraded targets again, as far as they fit: flows have released rate.
    fn heal(&mut self, now: Now);
    /// The journal.
    fn journal(&mut self) -> &mut Journal;
}

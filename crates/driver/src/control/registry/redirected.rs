//! The redirected targets: receives from the redirect pair of the link, and opens and closes places
//! in the map of redirects. A target keeps its place until the daemon ends it, so that the next
//! daemon finds it in the census. Calls fail with [`RegistryError`].

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

use netnice_api::driver::RedirectedDoc;
use netnice_core::units::Nanos;

use super::{Registry, RegistryError, refusal};
use crate::commands::{Command, RedirectCommand, Report};
use crate::redirect_map::RedirectMap;
use crate::setup;

/// The redirected targets.
#[derive(Default)]
pub(super) struct Redirected {
    /// By place in the map.
    targets: BTreeMap<u32, Target>,
}

struct Target {
    /// The daemon's number.
    number: u32,
    contract: String,
}

impl Redirected {
    /// Whether no target is redirected.
    pub(super) fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }
}

impl Registry {
    /// Receives from the far end of a redirect pair, the interface `far`, in place of an earlier
    /// one; its targets are ended. Fails if there is no such interface, the map cannot be mapped,
    /// or the kernel refuses a step.
    pub(in crate::control) fn receive_redirected(
        &mut self,
        far: &str,
        map: Option<OwnedFd>,
    ) -> Result<(), RegistryError> {
        let map = RedirectMap::map(map.ok_or(RegistryError::NoMap)?.as_fd())?;
        let (index, queue) = self.ingress.redirect_queue(far)?;
        let socket = queue.fd().try_clone()?;
        // The queue has empty frames before the first frame is directed to it.
        self.execute(Command::Redirects(Box::new((queue, map))))?;
        self.redirected.targets.clear();
        Ok(self.ingress.open_redirected(index, socket.as_fd())?)
    }

    /// Schedules the packets of the target at a place by a contract, or changes the contract. Fails
    /// if the contract or the place is invalid, or the scheduler refuses the contract.
    pub(in crate::control) fn redirect(
        &mut self,
        place: u32,
        target: u32,
        contract: String,
        hold: Nanos,
    ) -> Result<(), RegistryError> {
        let (service, _) = setup::service(&contract)?;
        self.execute(Command::Redirected(RedirectCommand::Open(
            place, service, hold,
        )))?;
        let known = Target {
            number: target,
            contract,
        };
        self.redirected.targets.insert(place, known);
        Ok(())
    }

    /// Ends a place. Fails if it is not open, or the packet thread has ended.
    pub(in crate::control) fn end_redirect(&mut self, place: u32) -> Result<(), RegistryError> {
        self.execute(Command::Redirected(RedirectCommand::Close(place)))?;
        self.redirected.targets.remove(&place);
        Ok(())
    }

    /// The redirected targets with their counters. Fails if the packet thread has ended.
    pub(super) fn redirected_targets(&mut self) -> Result<Vec<RedirectedDoc>, RegistryError> {
        if self.redirected.is_empty() {
            return Ok(Vec::new());
        }
        let places: Vec<u32> = self.redirected.targets.keys().copied().collect();
        let counted = match self
            .commands
            .send(Command::Redirected(RedirectCommand::Count(places)))?
        {
            Report::RedirectCounts(counted) => counted,
            other => return Err(refusal(other)),
        };
        let targets = self.redirected.targets.iter().zip(counted);
        let docs = targets.filter_map(|((place, target), counted)| {
            let counted = counted?;
            let sent = setup::counts(&counted.sent);
            Some(RedirectedDoc {
                place: *place,
                target: target.number,
                contract: target.contract.clone(),
                sent: sent.sent,
                sent_bytes: sent.sent_bytes,
                dropped: counted.dropped,
                refused: counted.refused,
                waiting: counted.waiting,
                waiting_bytes: counted.waiting_bytes,
                lateness: sent.lateness,
            })
        });
        Ok(docs.collect())
    }
}

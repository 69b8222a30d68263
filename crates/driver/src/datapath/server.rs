//! The overbooked server of a [`Datapath`]: a slice of the link that its members share, by class
//! and contract (`netnice_core::sched` serves them). Contracts name its classes
//! (`cell …,class=N`).
//!
//! A call fails if the scheduler refuses the server or the member, if a removed server has members,
//! or if a contract names a class and there is no server.

use netnice_core::contract::{CLASSES, Slice};
use netnice_core::sched::{Class, FlowId, Scheduler, SchedulerError, Service};
use netnice_core::units::Instant;

use super::{Datapath, OpenError};

/// The server whose classes contracts name.
pub struct ServerParameters {
    /// The slice; `None`: the members share what is left over.
    pub slice: Option<Slice>,
    /// The classes.
    pub classes: [Class; CLASSES],
}

impl Datapath {
    /// Sets the server whose classes contracts name (`class=N`): adds it, changes its slice and its
    /// minimums, or removes it. Fails if the scheduler refuses it, or a removed server has members.
    pub fn set_server(
        &mut self,
        wanted: Option<&ServerParameters>,
        now: Instant,
    ) -> Result<(), SchedulerError> {
        match (self.server, wanted) {
            (None, None) => {}
            (None, Some(ServerParameters { slice, classes })) => {
                self.server = Some(self.scheduler.insert_server(*slice, classes, now)?);
            }
            (Some(server), Some(ServerParameters { slice, classes })) => {
                self.scheduler.set_server(server, *slice, classes, now)?;
            }
            (Some(server), None) => {
                self.scheduler.remove(server, now)?;
                self.server = None;
            }
        }
        Ok(())
    }
}

/// Inserts a flow, into a class of the server if its contract names one.
pub(super) fn insert(
    scheduler: &mut Scheduler,
    server: Option<FlowId>,
    service: Service,
    now: Instant,
) -> Result<FlowId, OpenError> {
    let inserted = match (service, service.class(), server) {
        (Service::Cell(cell), Some(class), Some(server)) => {
            scheduler.insert_member(server, class.into(), cell, now)
        }
        (_, Some(class), None) => return Err(OpenError::NoServer(class)),
        (service, ..) => scheduler.insert(service, now),
    };
    Ok(inserted?)
}

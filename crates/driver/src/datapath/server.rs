//! The overbooked servers of a [`Datapath`]: slices of the link that their members share, by class
//! and contract (`netnice_core::sched` serves them). The driver process has at most one, whose
//! classes contracts name (`cell …,class=N`). Library users add others.
//!
//! A call fails if the scheduler refuses the server or the member, if a removed server has members,
//! or if a contract names a class and there is no server.

use netnice_core::contract::{CLASSES, Slice};
use netnice_core::sched::{Class, FlowId, Scheduler, SchedulerError, Service};
use netnice_core::units::Instant;

use super::{Datapath, FlowParameters, OpenError, OpenedFlow, ProgramNo};

/// The server whose classes contracts name.
pub(crate) struct ServerParameters {
    /// The slice; `None`: the members share what is left over.
    pub(crate) slice: Option<Slice>,
    /// The classes.
    pub(crate) classes: [Class; CLASSES],
}

impl Datapath {
    /// Sets the server whose classes contracts name (`class=N`): adds it, changes its slice and its
    /// minimums, or removes it. Fails if the scheduler refuses it, or a removed server has members.
    pub(crate) fn set_server(
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

    /// Adds an overbooked slice of the link, whose members share it by class and contract. Returns
    /// the server that [`Datapath::open_member`] takes. Fails if the scheduler refuses the slice.
    pub fn insert_server(
        &mut self,
        slice: Slice,
        classes: &[Class],
        now: Instant,
    ) -> Result<FlowId, SchedulerError> {
        self.scheduler.insert_server(slice, classes, now)
    }

    /// As [`Datapath::open`], in a class of an overbooked slice. Also needs a cell contract.
    pub fn open_member(
        &mut self,
        program: ProgramNo,
        parameters: &FlowParameters,
        (server, class): (FlowId, usize),
        now: Instant,
    ) -> Result<OpenedFlow, OpenError> {
        let prepared = self.reserve_flow(program, parameters.shape)?.prepare();
        self.open_with(
            program,
            parameters,
            prepared,
            now,
            |scheduler| match parameters.service {
                Service::Cell(cell) => Ok(scheduler.insert_member(server, class, cell, now)?),
                _ => Err(SchedulerError::WrongKind(server).into()),
            },
        )
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

//! The open flows, by numbers that are not reused soon.
//!
//! The packet thread identifies a flow by its index in tables. It reuses the index as soon as the
//! flow is closed. The daemon may send a request for a flow before it receives the event that the
//! flow's program has ended. So the daemon gets a different number, which is reused only after 2^32
//! further flows; a late request then finds no flow. No function fails.

use std::collections::BTreeMap;

use netnice_api::driver::CodePointsDoc;

use super::{OpenFlow, Registry, RegistryError};
use crate::code_points::CodePoints;
use crate::commands::Command;
use crate::setup::SetupError;

/// The open flows; see the module.
#[derive(Default)]
pub(super) struct Flows {
    open: BTreeMap<u32, OpenFlow>,
    /// The next flow's number, unless it is in use.
    next: u32,
    /// The code points of their packets.
    code_points: CodePoints,
    /// The limit of the packet thread's time awake, in parts of a million, if it was ever set.
    awake_limit_ppm: Option<u32>,
}

impl Registry {
    /// Sets the code points of sent packets. Fails if one is above 63, or the packet thread ended.
    pub(crate) fn set_code_points(&mut self, doc: &CodePointsDoc) -> Result<(), RegistryError> {
        let code_points = CodePoints::new(doc).map_err(SetupError::from)?;
        self.execute(Command::CodePoints(code_points))?;
        self.flows.code_points = code_points;
        Ok(())
    }

    /// Limits the packet thread's time awake ([`Command::AwakeLimit`]). Fails if the packet thread
    /// ended.
    pub(crate) fn set_awake_limit(&mut self, most_ppm: u32) -> Result<(), RegistryError> {
        self.execute(Command::AwakeLimit(most_ppm))?;
        self.flows.awake_limit_ppm = Some(most_ppm);
        Ok(())
    }

    /// Stops sending for a flow ([`crate::datapath::Datapath::withdraw`]). Fails if the flow is not
    /// open, or the packet thread ended.
    pub(crate) fn withdraw(&mut self, flow: u32) -> Result<(), RegistryError> {
        let datapath_no = self.flow(flow)?.datapath_no;
        self.execute(Command::Withdraw(datapath_no))
    }
}

impl Flows {
    /// The code points of their packets, as a message.
    pub(super) fn code_points(&self) -> CodePointsDoc {
        self.code_points.doc()
    }

    /// The limit of the packet thread's time awake.
    pub(super) fn awake_limit_ppm(&self) -> u32 {
        self.awake_limit_ppm.unwrap_or(WHOLE)
    }

    /// Adds a flow and returns its number.
    pub(crate) fn insert(&mut self, flow: OpenFlow) -> u32 {
        while self.open.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let number = self.next;
        self.next = number.wrapping_add(1);
        self.open.insert(number, flow);
        number
    }

    /// Removes and returns a flow; `None` if it is not open. Its number is not reused soon.
    pub(crate) fn remove(&mut self, number: u32) -> Option<OpenFlow> {
        self.open.remove(&number)
    }

    /// The flow with this number; `None` if it is not open.
    pub(crate) fn get(&self, number: u32) -> Option<&OpenFlow> {
        self.open.get(&number)
    }

    /// The flow with this number, to change it; `None` if it is not open.
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut OpenFlow> {
        self.open.get_mut(&number)
    }

    /// All flows, by number.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (u32, &OpenFlow)> {
        self.open.iter().map(|(number, flow)| (*number, flow))
    }

    /// Whether no flow is open.
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Sets the number of the next flow, unless it is in use.
    #[cfg(test)]
    pub(crate) fn begin_at(&mut self, number: u32) {
        self.next = number;
    }
}

/// No limit, in parts of a million.
const WHOLE: u32 = 1_000_000;

//! The link's overbooked server, whose classes the contracts of flows name.

use netnice_api::driver::ServerDoc;

use super::{Registry, RegistryError};
use crate::commands::Command;
use crate::setup;

impl Registry {
    /// Sets the link's server, or removes it. Fails if the request is invalid, the scheduler
    /// refuses it, or a server to remove has members.
    pub(in crate::control) fn set_server(
        &mut self,
        server: Option<&ServerDoc>,
    ) -> Result<(), RegistryError> {
        let server = server.map(setup::server).transpose()?;
        self.execute(Command::Classes(server.map(Box::new)))
    }
}

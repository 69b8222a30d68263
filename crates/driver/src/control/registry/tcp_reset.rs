//! Reads which connections of TCP a closed flow had, and has the packet thread reset them. A call
//! fails if the packet thread has ended.

use netnice_api::direct::Endpoint;
use netnice_api::driver::DriverFlow;
use netnice_ring::driver::Retired;

use super::{Registry, RegistryError};
use crate::commands::Command;
use crate::datapath::ListedResets;
use crate::setup;
use crate::template::Template;

/// True if the program of the flow can list connections in the memory of the flow.
pub(super) fn has_list(setup: &DriverFlow) -> bool {
    matches!(setup.endpoint, Endpoint::TcpListener { .. })
}

impl Registry {
    /// Resets the connections that the program of a closed flow has listed. `uid` is its user.
    pub(super) fn reset_listed(
        &mut self,
        uid: u32,
        setup: &DriverFlow,
        retired: &Retired,
    ) -> Result<(), RegistryError> {
        if !has_list(setup) {
            return Ok(());
        }
        let interface = self.ingress.interface();
        // Neither fails: the flow was open with the same parameters.
        let Ok((parameters, _)) = setup::flow(setup, interface.mac, interface.mtu) else {
            return Ok(());
        };
        let Ok(template) = Template::new(&parameters.sender) else {
            return Ok(());
        };
        for part in retired.connections().chunks(LISTED_PER_COMMAND) {
            let listed = Box::new(ListedResets {
                uid,
                template: template.clone(),
                connections: part.to_vec(),
            });
            self.execute(Command::ResetListed(listed))?;
        }
        Ok(())
    }
}

/// Connections in one command. The packet thread frees their memory, some 9 KiB.
const LISTED_PER_COMMAND: usize = 256;

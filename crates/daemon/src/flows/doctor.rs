//! Reports about the direct path for `netnice doctor`. No function fails.

use netnice_api::DoctorItem;

use super::network::Network;
use super::promises::Promises;
use super::{Flows, messages};

impl<N: Network> Flows<N> {
    /// Reports what this machine and each managed link offer the direct path, and what is in use.
    pub(crate) fn doctor(&mut self, promises: &impl Promises) -> Vec<DoctorItem> {
        let mut items = vec![
            messages::program_item(&super::driver::program()),
            messages::af_xdp_item(self.network.af_xdp()),
        ];
        for link in promises.links() {
            let state = self.link_states.get(&link).filter(|state| state.connected);
            let used = state.map(|state| {
                let programs = messages::plural(state.programs.len(), "program");
                let flows = messages::plural(state.flow_count as usize, "flow");
                let mode = messages::mode(&state.mode, state.why_not_native.as_deref());
                format!("{flows} of {programs}; {mode}")
            });
            if let Some(card) = self.network.nic_features(link.as_str()) {
                items.push(messages::nic_item(link.as_str(), &card, used));
            }
        }
        items
    }
}

/// Reports what this machine offers the direct path, without a running daemon.
pub(crate) fn examine() -> [DoctorItem; 2] {
    let af_xdp = netnice_kernel::nic::has_af_xdp().map_err(|error| error.to_string());
    [
        messages::program_item(&super::driver::program()),
        messages::af_xdp_item(af_xdp),
    ]
}

//! The response to [`netnice_api::Request::Find`], which `netnice share` sends: what a target
//! consists of on this machine, whether it is held or not. Fails if it does not exist.

use netnice_api::Found;

use super::view::View;
use crate::error::RequestError;
use crate::host::Inventory;

impl<H: Inventory> View<'_, H> {
    /// The processes, executable, control group or user of a target. Fails if they do not exist, or
    /// if a name is not held.
    pub(super) fn find(&mut self, target: &str) -> Result<Found, RequestError> {
        self.finder().find(target)
    }
}

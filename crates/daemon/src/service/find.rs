//! The response to [`netnice_api::Request::Find`], which `netnice share` sends: what a target
//! consists of on this machine, whether the target is held or not. Fails if the text is not a
//! target, or if the target does not exist; a name exists only if it is held.

use netnice_api::Found;

use super::view::View;
use crate::error::RequestError;
use crate::host::Inventory;

impl<H: Inventory> View<'_, H> {
    /// The processes, executable, control group or user of a target.
    ///
    /// # Errors
    /// If `target` is not the text of a target, the object does not exist, or a name is not held.
    pub(super) fn find(&mut self, target: &str) -> Result<Found, RequestError> {
        self.finder().find(target)
    }
}

//! `netnice find`: what a target is made of, whether or not it is held.

use netnice_api::Found;

use super::view::View;
use crate::denied::Denied;
use crate::host::Inventory;

impl<H: Inventory> View<'_, H> {
    /// What a target is made of.
    pub(super) fn find(&mut self, target: &str) -> Result<Found, Denied> {
        self.finder().find(target)
    }
}

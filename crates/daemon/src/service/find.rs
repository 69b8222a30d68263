//! `netnice find`: what a target consists of, held or not.

use netnice_api::Found;

use super::view::View;
use crate::error::RequestError;
use crate::host::Inventory;

impl<H: Inventory> View<'_, H> {
    /// What a target consists of.
    pub(super) fn find(&mut self, target: &str) -> Result<Found, RequestError> {
        self.finder().find(target)
    }
}

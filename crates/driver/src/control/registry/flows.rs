//! The flows that are open, by numbers of which none soon comes twice.
//!
//! The packet thread knows a flow by its place in tables, which another flow has at once when it is closed. What the daemon says of
//! one may have been said before it heard that its program is gone; so it is told another number, and such a word means
//! nobody then, until 2^32 others came.

use std::collections::BTreeMap;

use super::Flow;

/// See the module.
#[derive(Default)]
pub(super) struct Flows {
    open: BTreeMap<u32, Flow>,
    /// The next one's number, if nobody has it.
    next: u32,
}

impl Flows {
    /// Another one: its number.
    pub fn insert(&mut self, flow: Flow) -> u32 {
        while self.open.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let number = self.next;
        self.next = number.wrapping_add(1);
        self.open.insert(number, flow);
        number
    }

    /// One that is gone from now on.
    pub fn remove(&mut self, number: u32) -> Option<Flow> {
        self.open.remove(&number)
    }

    pub fn get(&self, number: u32) -> Option<&Flow> {
        self.open.get(&number)
    }

    pub fn get_mut(&mut self, number: u32) -> Option<&mut Flow> {
        self.open.get_mut(&number)
    }

    /// All, by number.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (u32, &Flow)> {
        self.open.iter().map(|(number, flow)| (*number, flow))
    }

    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// The next one has this number, if nobody has it.
    #[cfg(test)]
    pub fn begin_at(&mut self, number: u32) {
        self.next = number;
    }
}

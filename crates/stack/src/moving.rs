//! The attachments of a program beside its first one, and the slots of flows that have moved
//! ([`MovedFlows`]).
//!
//! A flow whose route moves goes to another link, whose driver has other memory. The program then
//! has an attachment for each link, with an index: 0 is the first one, and the others are kept in
//! the order in which flows moved to them. They stay until the program's last handle is gone, so
//! that a route can move often.
//!
//! A driver numbers the flows in its memory file by slots, and so another driver gives a moved flow
//! another slot, and a new flow of the first driver can get the slot of one that has moved. A
//! program identifies its flows by slots. So a flow is *shown* under the slot that it had when it
//! was opened, and a new flow whose slot is in use like that is shown under a number from
//! [`MAX_FLOWS`] on.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use netnice_ring::layout::MAX_FLOWS;

use crate::error::StackError;

/// The place of a flow: the index of the attachment, and the slot there.
pub(crate) type Place = (usize, u32);

/// The other attachments (`A`), and the slots that differ; see the module.
pub(crate) struct MovedFlows<A> {
    /// False until a flow has moved.
    some: AtomicBool,
    others: Mutex<Vec<(String, Arc<A>)>>,
    slots: Mutex<ShownSlots>,
}

#[derive(Default)]
struct ShownSlots {
    /// The shown slot of each flow that is not shown under its own slot at its first attachment.
    at: HashMap<Place, u32>,
    /// These shown slots.
    in_use: HashSet<u32>,
}

impl<A> Default for MovedFlows<A> {
    fn default() -> MovedFlows<A> {
        MovedFlows {
            some: AtomicBool::new(false),
            others: Mutex::default(),
            slots: Mutex::default(),
        }
    }
}

impl<A> MovedFlows<A> {
    /// The other attachments, by index.
    pub(crate) fn others(&self) -> Vec<Arc<A>> {
        if !self.some.load(Ordering::Acquire) {
            return Vec::new();
        }
        let others = lock(&self.others);
        others.iter().map(|(_, shared)| shared.clone()).collect()
    }

    /// The attachment to an interface, with its index. Calls `attach` if there is none, or if
    /// `has_ended` says that it has ended.
    ///
    /// # Errors
    /// If `attach` fails.
    pub(crate) fn attachment_to(
        &self,
        iface: &str,
        has_ended: impl FnOnce(&A) -> bool,
        attach: impl FnOnce() -> Result<A, StackError>,
    ) -> Result<(usize, Arc<A>), StackError> {
        let mut others = lock(&self.others);
        let known = others.iter().position(|(name, _)| name == iface);
        if let Some(index) = known
            && !has_ended(&others[index].1)
        {
            return Ok((index + 1, others[index].1.clone()));
        }
        let shared = Arc::new(attach()?);
        let entry = (iface.to_string(), shared.clone());
        let index = match known {
            Some(index) => {
                others[index] = entry;
                // The flows of the ended attachment have ended.
                lock(&self.slots).forget(index + 1);
                index
            }
            None => {
                others.push(entry);
                others.len() - 1
            }
        };
        self.some.store(true, Ordering::Release);
        Ok((index + 1, shared))
    }

    /// Under which slot a new flow at this slot of the first attachment is shown.
    pub(crate) fn show_new(&self, slot: u32) -> u32 {
        match self.some.load(Ordering::Acquire) {
            true => lock(&self.slots).show_new(slot),
            false => slot,
        }
    }

    /// Under which slot the flow at a place is shown. `None` if it is shown under its own slot, or
    /// if no moved flow is there.
    pub(crate) fn shown(&self, index: usize, slot: u32) -> Option<u32> {
        match self.some.load(Ordering::Acquire) {
            true => lock(&self.slots).at.get(&(index, slot)).copied(),
            false => None,
        }
    }

    /// A flow that is shown as `shown` has moved.
    pub(crate) fn moved(&self, shown: u32, from: Place, to: Place) {
        let mut slots = lock(&self.slots);
        slots.remove(shown, from);
        slots.insert(shown, to);
    }

    /// A flow that is shown as `shown` is closed.
    pub(crate) fn closed(&self, shown: u32, place: Place) {
        if self.some.load(Ordering::Acquire) {
            lock(&self.slots).remove(shown, place);
        }
    }
}

impl ShownSlots {
    fn show_new(&mut self, slot: u32) -> u32 {
        if !self.in_use.contains(&slot) {
            return slot;
        }
        // As many numbers are in use as there are moved flows, so one is free.
        let free = (MAX_FLOWS..u32::MAX).find(|number| !self.in_use.contains(number));
        let shown = free.unwrap_or(slot);
        self.insert(shown, (0, slot));
        shown
    }

    fn insert(&mut self, shown: u32, place: Place) {
        if place != (0, shown) {
            self.at.insert(place, shown);
            self.in_use.insert(shown);
        }
    }

    fn remove(&mut self, shown: u32, place: Place) {
        if self.at.get(&place) == Some(&shown) {
            self.at.remove(&place);
            self.in_use.remove(&shown);
        }
    }

    /// Removes the flows of an attachment.
    fn forget(&mut self, index: usize) {
        let ShownSlots { at, in_use } = self;
        at.retain(|(of, _), shown| {
            let stays = *of != index;
            if !stays {
                in_use.remove(shown);
            }
            stays
        });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;

//! The open flows of a program ([`Flows`]), with the state of each that the daemon can change
//! ([`FlowStatus`]). No function fails.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use netnice_api::direct::{FlowNotification, FlowState};

use crate::reports::Reports;

/// The flows of a program, with the state that notifications change.
#[derive(Default)]
pub(crate) struct Flows {
    open: Mutex<HashMap<u32, (u32, Arc<FlowStatus>)>>,
    /// Why all flows ended.
    end: OnceLock<String>,
    /// Slots of the flows that notifications named.
    notified: Mutex<Vec<u32>>,
}

/// The state of a flow that the daemon can change.
#[derive(Default)]
pub(crate) struct FlowStatus {
    /// The daemon's number of the flow, which a later daemon may change.
    number: AtomicU32,
    /// The path MTU to the remote endpoint, or the link's MTU on a flow to any host or a group, in
    /// bytes; 0 after the daemon has reported the end of the flow.
    mtu: AtomicU32,
    end: OnceLock<String>,
    /// True while `target` is set.
    moves: AtomicBool,
    /// The interface to which the program is to take the flow.
    target: Mutex<Option<String>>,
    /// Why the flow could not be taken there.
    obstacle: Mutex<String>,
    /// What routers and hosts reported (ICMP).
    pub(crate) reports: Reports,
}

impl Flows {
    /// Adds a flow.
    pub(crate) fn insert(&self, flow: u32, slot: u32, status: Arc<FlowStatus>) {
        status.number.store(flow, Ordering::Relaxed);
        self.lock().insert(flow, (slot, status));
    }

    /// Removes a flow. No effect if the flow is not in the table.
    pub(crate) fn remove(&self, flow: u32) {
        self.lock().remove(&flow);
    }

    /// Why all flows ended; `None` while they have not.
    pub(crate) fn end_reason(&self) -> Option<&str> {
        self.end.get().map(String::as_str)
    }

    /// The slots of the flows that notifications named since the last call.
    pub(crate) fn take_notified(&self) -> Vec<u32> {
        let mut notified = lock(&self.notified);
        std::mem::take(&mut notified)
    }

    /// Adds a flow to those that notifications named.
    pub(crate) fn notify(&self, slot: u32) {
        lock(&self.notified).push(slot);
    }

    /// Applies a notification to the flows that it names.
    pub(super) fn apply(&self, notification: &FlowNotification) {
        let open = self.lock();
        let mut slots = Vec::new();
        match notification {
            FlowNotification::Mtu { flow, mtu } => {
                if let Some((slot, status)) = open.get(flow) {
                    status.set_mtu(*mtu);
                    slots.push(*slot);
                }
            }
            FlowNotification::Undelivered { flow, report } => {
                if let Some((slot, status)) = open.get(flow) {
                    status.reports.add(*report, Instant::now());
                    slots.push(*slot);
                }
            }
            FlowNotification::Closed { flow, why } => {
                if let Some((slot, status)) = open.get(flow) {
                    status.set_ended(why);
                    slots.push(*slot);
                }
            }
            FlowNotification::Moving { flow, to } => {
                if let Some((slot, status)) = open.get(flow) {
                    status.offer_move(to.clone());
                    slots.push(*slot);
                }
            }
            FlowNotification::Ended { why } => {
                // The first reason stays.
                let _ = self.end.set(why.clone());
                for (slot, status) in open.values() {
                    status.set_ended(why);
                    slots.push(*slot);
                }
            }
            FlowNotification::Link { .. }
            | FlowNotification::NextHop { .. }
            | FlowNotification::Degraded { .. } => {}
        }
        let mut notified = lock(&self.notified);
        notified.append(&mut slots);
    }

    /// Applies the list of all flows that the daemon has, after a time without a connection.
    /// Appends what has changed to `notifications`. Returns the numbers of flows that the program
    /// does not know.
    pub(super) fn resynchronize(
        &self,
        listed: &[FlowState],
        notifications: &mut Vec<FlowNotification>,
    ) -> Vec<u32> {
        let mut unknown = Vec::new();
        let mut open = self.lock();
        let mut by_slot: HashMap<u32, (u32, Arc<FlowStatus>)> = open
            .drain()
            .map(|(number, (slot, status))| (slot, (number, status)))
            .collect();
        for state in listed {
            let Some((_, status)) = by_slot.remove(&state.slot) else {
                unknown.push(state.flow);
                continue;
            };
            let (flow, mtu) = (state.flow, state.mtu);
            status.number.store(flow, Ordering::Relaxed);
            if status.mtu() != mtu {
                notifications.push(FlowNotification::Mtu { flow, mtu });
            }
            if !state.degraded.is_empty() {
                let why = state.degraded.clone();
                notifications.push(FlowNotification::Degraded { flow, why });
            }
            open.insert(flow, (state.slot, status));
        }
        for (slot, (flow, status)) in by_slot {
            let why = "closed while there was no connection to the daemon".to_string();
            notifications.push(FlowNotification::Closed { flow, why });
            // A number of the earlier daemon may be that of another flow now.
            match open.entry(flow) {
                Entry::Vacant(vacant) => drop(vacant.insert((slot, status))),
                Entry::Occupied(_) => status.set_ended("its number belongs to another flow"),
            }
        }
        drop(open);
        for notification in notifications.iter() {
            self.apply(notification);
        }
        unknown
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, (u32, Arc<FlowStatus>)>> {
        lock(&self.open)
    }
}

impl FlowStatus {
    /// The status of an open flow whose next hop carries `mtu` bytes.
    pub(crate) fn new(mtu: u32) -> Arc<FlowStatus> {
        let status = FlowStatus::default();
        status.set_mtu(mtu);
        Arc::new(status)
    }

    /// The daemon's number of the flow.
    pub(crate) fn number(&self) -> u32 {
        self.number.load(Ordering::Relaxed)
    }

    /// The path MTU to the remote endpoint, or the link's MTU on a flow to any host or a group, in
    /// bytes; 0 after the daemon has reported the end of the flow.
    #[inline]
    pub(crate) fn mtu(&self) -> u32 {
        self.mtu.load(Ordering::Relaxed)
    }

    /// Why the flow ended, with the daemon's words; `None` while no reason has arrived.
    pub(crate) fn end_reason(&self) -> Option<&str> {
        self.end.get().map(String::as_str)
    }

    /// True if the program is to take the flow to another interface.
    #[inline]
    pub(crate) fn moves(&self) -> bool {
        self.moves.load(Ordering::Acquire)
    }

    /// Sets the interface to which the program is to take the flow.
    pub(crate) fn offer_move(&self, to: String) {
        *lock(&self.target) = Some(to);
        self.moves.store(true, Ordering::Release);
    }

    /// Removes and returns the interface to which the program is to take the flow.
    pub(crate) fn take_move(&self) -> Option<String> {
        self.moves.store(false, Ordering::Release);
        lock(&self.target).take()
    }

    /// Stores why the flow could not be taken to another interface. The reason of the flow's end
    /// contains it.
    pub(crate) fn set_obstacle(&self, why: String) {
        *lock(&self.obstacle) = why;
    }

    pub(crate) fn set_mtu(&self, mtu: u32) {
        if self.end.get().is_none() {
            self.mtu.store(mtu, Ordering::Relaxed);
        }
    }

    pub(crate) fn set_ended(&self, why: &str) {
        let obstacle = lock(&self.obstacle);
        let _ = self.end.set(match obstacle.is_empty() {
            true => why.to_string(),
            false => format!("{why} ({obstacle})"),
        });
        self.mtu.store(0, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

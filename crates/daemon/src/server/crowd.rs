//! How many connections there are, of whom, and which has been idle longest.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use tokio::sync::Notify;

use super::{Limits, MOST_OF_ALL, MOST_OF_ROOT};

/// All connections.
pub(super) struct Crowd {
    limits: Limits,
    seats: BTreeMap<u64, Taken>,
    next: u64,
    /// Counts up with every change of idleness: the smallest is the longest ago.
    moment: u64,
}

struct Taken {
    uid: u32,
    /// When it became idle; none while a request is under way.
    idle_since: Option<u64>,
    /// Told when the connection has to go; it is out of the crowd already.
    leave: Rc<Notify>,
}

impl Crowd {
    /// Of nobody yet.
    pub(super) fn new(limits: Limits) -> Crowd {
        Crowd {
            limits,
            seats: BTreeMap::new(),
            next: 0,
            moment: 0,
        }
    }

    /// Makes room for one connection of a user; false if all of theirs are busy.
    fn make_room_for(&mut self, uid: u32) -> bool {
        let most = match uid {
            0 => MOST_OF_ROOT,
            _ => self.limits.connections(),
        };
        let theirs = self.seats.values().filter(|t| t.uid == uid).count();
        if theirs >= most {
            return self.dismiss(|taken| taken.uid == uid);
        }
        self.seats.len() < MOST_OF_ALL || self.make_room()
    }

    /// Sends away the connection that has been idle longest; false if none is idle.
    pub(super) fn make_room(&mut self) -> bool {
        self.dismiss(|_| true)
    }

    fn dismiss(&mut self, which: impl Fn(&Taken) -> bool) -> bool {
        let idle = self.seats.iter().filter(|(_, taken)| which(taken));
        let longest = idle
            .filter_map(|(number, taken)| Some((taken.idle_since?, *number)))
            .min();
        let Some((_, number)) = longest else {
            return false;
        };
        if let Some(taken) = self.seats.remove(&number) {
            taken.leave.notify_one();
        }
        true
    }
}

/// A connection's place in the crowd; given back when it is dropped.
pub(super) struct Seat {
    crowd: Rc<RefCell<Crowd>>,
    number: u64,
    leave: Rc<Notify>,
}

impl Seat {
    /// Takes a place for a connection of a user, if there is one.
    pub(super) fn take(crowd: &Rc<RefCell<Crowd>>, uid: u32) -> Option<Seat> {
        let mut inner = crowd.borrow_mut();
        if !inner.make_room_for(uid) {
            return None;
        }
        let number = inner.next;
        inner.next += 1;
        inner.moment += 1;
        let leave = Rc::new(Notify::new());
        let taken = Taken {
            uid,
            idle_since: Some(inner.moment),
            leave: leave.clone(),
        };
        inner.seats.insert(number, taken);
        Some(Seat {
            crowd: crowd.clone(),
            number,
            leave,
        })
    }

    /// A request has begun.
    pub(super) fn busy(&self) {
        if let Some(taken) = self.crowd.borrow_mut().seats.get_mut(&self.number) {
            taken.idle_since = None;
        }
    }

    /// A request has been answered.
    pub(super) fn idle(&self) {
        let mut crowd = self.crowd.borrow_mut();
        crowd.moment += 1;
        let moment = crowd.moment;
        if let Some(taken) = crowd.seats.get_mut(&self.number) {
            taken.idle_since = Some(moment);
        }
    }

    /// Waits until the connection has to go.
    pub(super) async fn sent_away(&self) {
        self.leave.notified().await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.crowd.borrow_mut().seats.remove(&self.number);
    }
}

//! Whose request is the next: users in turn, one request each, and root every second time.
//!
//! A user with many connections has as many turns as a user with one. Root's requests do not wait for those of others
//! but for one, and others get half of the turns however much root asks. A user's own requests stay in their order. How
//! many may wait here is up to the front, which holds back what a user asks beyond some; a front that does not is none.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

use tokio::sync::{Notify, mpsc};

use super::Ask;

/// Requests that wait.
#[derive(Default)]
pub(super) struct Turns {
    waiting: RefCell<Waiting<Ask>>,
    came: Notify,
}

impl Turns {
    /// Lets a request wait; false if there are too many, so that the front cannot be what it should be.
    pub fn push(&self, ask: Ask) -> bool {
        let pushed = self.waiting.borrow_mut().push(ask.peer.uid, ask);
        self.came.notify_one();
        pushed
    }

    /// Hands requests on, each when there is room for it, until nobody takes them any more.
    pub async fn feed(&self, clerk: &mpsc::Sender<Ask>) {
        while let Ok(room) = clerk.reserve().await {
            let ask = loop {
                let next = self.waiting.borrow_mut().next();
                match next {
                    Some(ask) => break ask,
                    None => {
                        tokio::select! {
                            () = self.came.notified() => {}
                            () = clerk.closed() => return,
                        }
                    }
                }
            };
            room.send(ask);
        }
    }
}

/// What waits, by user.
struct Waiting<T> {
    root: VecDeque<T>,
    others: BTreeMap<u32, VecDeque<T>>,
    /// Users with something that waits, the next one first.
    rotation: VecDeque<u32>,
    /// The last turn was root's.
    root_was: bool,
    count: usize,
}

impl<T> Default for Waiting<T> {
    fn default() -> Waiting<T> {
        Waiting {
            root: VecDeque::new(),
            others: BTreeMap::new(),
            rotation: VecDeque::new(),
            root_was: false,
            count: 0,
        }
    }
}

impl<T> Waiting<T> {
    fn push(&mut self, uid: u32, what: T) -> bool {
        if self.count >= MOST {
            return false;
        }
        self.count += 1;
        if uid == 0 {
            self.root.push_back(what);
            return true;
        }
        let theirs = self.others.entry(uid).or_default();
        if theirs.is_empty() {
            self.rotation.push_back(uid);
        }
        theirs.push_back(what);
        true
    }

    fn next(&mut self) -> Option<T> {
        let others_first = self.root_was && !self.rotation.is_empty();
        self.root_was = !others_first && !self.root.is_empty();
        let next = match self.root_was {
            true => self.root.pop_front(),
            false => self.next_of_others(),
        };
        self.count -= usize::from(next.is_some());
        next
    }

    fn next_of_others(&mut self) -> Option<T> {
        let uid = self.rotation.pop_front()?;
        let theirs = self.others.get_mut(&uid)?;
        let next = theirs.pop_front();
        match theirs.is_empty() {
            true => drop(self.others.remove(&uid)),
            false => self.rotation.push_back(uid),
        }
        next
    }
}

/// More than the front lets through: 8 for each of 512 users, and 64 of root.
const MOST: usize = 8192;

#[cfg(test)]
mod tests {
    use super::*;

    fn order(mut waiting: Waiting<&'static str>) -> Vec<&'static str> {
        std::iter::from_fn(|| waiting.next()).collect()
    }

    #[test]
    fn users_take_turns_and_root_has_every_second_one() {
        let mut waiting = Waiting::default();
        for what in ["a1", "a2", "a3", "a4"] {
            waiting.push(1, what);
        }
        waiting.push(2, "b1");
        for what in ["r1", "r2", "r3"] {
            waiting.push(0, what);
        }
        waiting.push(3, "c1");
        let turns = ["r1", "a1", "r2", "b1", "r3", "c1", "a2", "a3", "a4"];
        assert_eq!(order(waiting), turns);
    }

    #[test]
    fn a_newcomer_waits_for_one_of_each_user_at_most() {
        let mut waiting = Waiting::default();
        for n in 0..1000 {
            waiting.push(7, "flood");
            assert_eq!(waiting.count, n + 1);
        }
        assert_eq!(waiting.next(), Some("flood"));
        waiting.push(8, "ping");
        let next = [waiting.next(), waiting.next()];
        assert!(next.contains(&Some("ping")), "{next:?}");
        assert_eq!(waiting.count, 998 + 1 - 1);
    }

    #[test]
    fn there_is_an_end() {
        let mut waiting = Waiting::default();
        assert!((0..MOST).all(|_| waiting.push(7, "flood")));
        assert!(!waiting.push(8, "one more"));
    }
}

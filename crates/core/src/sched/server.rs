//! Overbooked servers (paper CELL, section 4.5): overload inside one slice does not affect flows
//! outside it.
//!
//! A server is one admitted slice. Its members are flows with cell contracts, and share what the
//! slice gives: each is in a class, classes have static priorities, and inside a class the members
//! share in proportion to their contracted rates (the sustained rate, else the peak rate). A member
//! is *ready* if it has an eligible packet. A class is ready if one of its members is.
//!
//! ```text
//! the slice may send ──▶ the first ready class that has less than its minimum,
//!                        else the first ready class
//!                          └──▶ its ready member with the least start tag (`sched::fair`;
//!                               the weight is the contracted rate)
//! ```
//! # The factor of a class
//! R is the sum of the contracted rates of the active members of a class (members with a packet). A
//! is the rate available to the class: the server's rate, less what the classes above take, less
//! what the minimums of the classes below need, but at least the minimum of the class, and at least
//! 1/64 of the server's rate. While R > A, the members are shaped as if their rates were smaller by
//! the *factor* R / A. R changes when a member becomes active, or idle again. A new factor takes
//! effect for each member when the member is shaped next.
//!
//! # The minimum of a class
//! Each class with a minimum has a clock: the time from which the minimum requires a packet. Once
//! that time has passed, the class is served before all classes that have no minimum or whose time
//! has not passed. A packet that the class sends meanwhile advances the clock by length / minimum;
//! its other packets do not. So the class gets its minimum, and in addition what its priority
//! gives. No function of this module fails.
//!
//! # Without a slice
//! A server can be without a slice for a time ([`Scheduler::set_server`]): its promise does not fit
//! the link. Then its members share the left-over as one flow of weight 100, by the same classes
//! and shaped to their contracts, and A is the rate of the link.
//!
//! # Use
//! The driver process has one server if its link has classes. Library users, `netnice-sim`
//! (scenarios with a `[server]`) and the cell experiments of `netnice-lab` use servers too.
//!
//! [`Scheduler::set_server`]: super::Scheduler::set_server

use alloc::vec::Vec;

use super::calendar::Pool;
use super::fair::FairQueue;
use super::member::{ClassId, MemberState};
use super::pace::{Moment, Pace};
use crate::units::Rate;

/// A class of a server. The first class has the highest priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Class {
    /// The smallest rate that the class gets while its members have packets and their contracts
    /// allow that rate; `None` for no minimum.
    pub min: Option<Rate>,
}

/// The largest number of classes of a server.
pub const MAX_CLASSES: usize = 8;

/// The classes of an overbooked slice.
#[derive(Debug)]
pub(super) struct OverbookedServer {
    /// The flow that holds the slice.
    pub(super) flow: u32,
    classes: Vec<ClassState>,
    /// The rate of the slice, in bit/s.
    rate: u64,
    /// Number of members, with and without a packet.
    pub(super) members: u32,
}

#[derive(Debug)]
struct ClassState {
    fair: FairQueue,
    /// Number of ready members. Each has an entry in `fair`.
    ready: u32,
    /// Contracted rates of the members with a packet, bit/s.
    active: u64,
    min: Option<Pace>,
    min_rate: u64,
    /// The time from which the class's minimum requires a packet.
    owed_at: Moment,
    /// 2^16 R / A, at least 2^16.
    factor: u64,
}

impl OverbookedServer {
    /// A server whose slice gives `rate` bit/s.
    pub(super) fn new(flow: u32, name: u8, classes: &[Class], rate: u64) -> OverbookedServer {
        let state = |class: &Class| ClassState {
            fair: FairQueue::new(name),
            ready: 0,
            active: 0,
            min: class.min.map(Pace::of),
            min_rate: class.min.map_or(0, Rate::bits_per_second),
            owed_at: Moment::at(0),
            factor: ONE,
        };
        OverbookedServer {
            flow,
            classes: classes.iter().map(state).collect(),
            rate,
            members: 0,
        }
    }

    /// The number of classes.
    pub(super) fn classes(&self) -> usize {
        self.classes.len()
    }

    /// Bytes of the server's classes.
    pub(super) fn memory(&self) -> usize {
        let each = |class: &ClassState| size_of::<ClassState>() + class.fair.memory();
        self.classes.iter().map(each).sum()
    }

    /// The sum of the minimums of the classes, in bit/s.
    pub(super) fn promised(&self) -> u64 {
        self.classes.iter().map(|class| class.min_rate).sum()
    }

    /// Changes the rate of the slice.
    pub(super) fn set_rate(&mut self, rate: u64) {
        self.rate = rate;
        self.update_factors();
    }

    /// Changes the minimums of the classes. `classes` has one entry for each class.
    pub(super) fn set_minimums(&mut self, classes: &[Class], now: u64) {
        for (state, class) in self.classes.iter_mut().zip(classes) {
            if state.min.is_none() {
                // The minimum counts from now on.
                state.owed_at = state.owed_at.max(Moment::at(now));
            }
            state.min = class.min.map(Pace::of);
            state.min_rate = class.min.map_or(0, Rate::bits_per_second);
        }
        self.update_factors();
    }

    /// Whether any member is eligible.
    #[inline(always)]
    pub(super) fn is_ready(&self) -> bool {
        self.classes.iter().any(|class| class.ready > 0)
    }

    /// Adds the contracted rate of a member to the sum of its class (`active`: the member got a
    /// packet), or subtracts it (the member has no packet left).
    pub(super) fn set_active(&mut self, member: &MemberState, active: bool) {
        let Some(class) = self.classes.get_mut(member.class_id().class()) else {
            return;
        };
        class.active = match active {
            true => class.active.saturating_add(member.rate()),
            false => class.active.saturating_sub(member.rate()),
        };
        self.update_factors();
    }

    /// The overbooking factor of a class: 2^16 R / A.
    #[inline(always)]
    pub(super) fn factor(&self, class_id: ClassId) -> u64 {
        self.classes
            .get(class_id.class())
            .map_or(ONE, |class| class.factor)
    }

    /// The start tag in its class of a member whose last packet ended at `tag`.
    #[inline(always)]
    pub(super) fn start(&self, class_id: ClassId, tag: u64) -> u64 {
        self.classes
            .get(class_id.class())
            .map_or(tag, |class| class.fair.start(tag))
    }

    /// A member becomes eligible. `entry` is its flow number and start tag; `None` if the member
    /// has an entry in its class already.
    #[inline(always)]
    pub(super) fn join(
        &mut self,
        pool: &mut Pool,
        class_id: ClassId,
        entry: Option<(u32, u64)>,
        now: u64,
        longest: u32,
    ) {
        let Some(class) = self.classes.get_mut(class_id.class()) else {
            return;
        };
        if class.ready == 0
            && let Some(pace) = class.min
        {
            // Two packets of credit, so that the class gets all of its minimum although its members
            // are shaped.
            let credit = pace.span(longest).ceil().saturating_mul(2);
            let least = Moment::at(now.saturating_sub(credit));
            class.owed_at = class.owed_at.max(least);
        }
        class.ready += 1;
        if let Some((id, start)) = entry {
            class.fair.join(pool, id, start);
        }
    }

    /// Gives a ready member a new entry in place of a stale one.
    pub(super) fn requeue(&mut self, pool: &mut Pool, class_id: ClassId, id: u32, start: u64) {
        if let Some(class) = self.classes.get_mut(class_id.class()) {
            class.fair.join(pool, id, start);
        }
    }

    /// Takes any entry of any class; `None` if there are none.
    pub(super) fn drain(&mut self, pool: &mut Pool) -> Option<u32> {
        let mut classes = self.classes.iter_mut();
        classes.find_map(|class| class.fair.take(pool, |_| ()))
    }

    /// A member is no longer eligible and was not served.
    pub(super) fn leave(&mut self, class_id: ClassId) {
        if let Some(class) = self.classes.get_mut(class_id.class()) {
            class.ready -= 1;
        }
    }

    /// Takes the next entry, from the class that is served next; `None` if there are no entries.
    /// The entry may be stale.
    #[inline(always)]
    pub(super) fn take(
        &mut self,
        pool: &mut Pool,
        now: u64,
        prefetch_flow: impl Fn(u32),
    ) -> Option<u32> {
        let owed = |class: &ClassState| class.min.is_some() && class.owed_at.nanos <= now;
        let ready = |class: &&mut ClassState| class.ready > 0;
        let mut classes = self.classes.iter_mut().filter(ready);
        let first = classes.next()?;
        let class = match owed(first) {
            true => first,
            false => classes.find(|class| owed(class)).unwrap_or(first),
        };
        class.fair.take(pool, prefetch_flow)
    }

    /// A member whose entry was taken has been served `length` bytes.
    #[inline(always)]
    pub(super) fn served(&mut self, member: &MemberState, length: u32, now: u64) {
        let Some(class) = self.classes.get_mut(member.class_id().class()) else {
            return;
        };
        class.ready -= 1;
        class.fair.served(member.tag);
        if let Some(pace) = class.min
            && class.owed_at.nanos <= now
        {
            class.owed_at = class.owed_at.saturating_plus(pace.span(length));
        }
    }

    /// Ends the busy period of a class, if the class has no entries left.
    #[inline(always)]
    pub(super) fn settle(&mut self, class_id: ClassId) {
        if let Some(class) = self.classes.get_mut(class_id.class()) {
            class.fair.settle();
        }
    }

    /// Panics if the state is inconsistent. Returns the number of entries.
    pub(super) fn invariants(&self, pool: &Pool) -> usize {
        let each = self.classes.iter().map(|class| {
            let entries = class.fair.invariants(pool);
            assert!(class.ready as usize <= entries, "ready without an entry");
            assert!(class.factor >= ONE);
            entries
        });
        each.sum()
    }

    /// Computes the factors of all classes.
    fn update_factors(&mut self) {
        let owed = |class: &ClassState| class.min_rate.min(class.active);
        let below: u64 = self.classes.iter().map(owed).sum();
        let (mut above, mut below) = (0_u64, below);
        for class in &mut self.classes {
            below -= owed(class);
            let rest = self.rate.saturating_sub(above).saturating_sub(below);
            let can_have = rest
                .max(class.min_rate)
                .max(self.rate / STARVED_PART)
                .max(1);
            let factor = (u128::from(class.active) << 16) / u128::from(can_have);
            class.factor = u64::try_from(factor).unwrap_or(u64::MAX).max(ONE);
            above = above.saturating_add(class.active.min(can_have));
        }
    }
}

/// The rate available to a class counts as at least the server's rate divided by this number. So
/// the members of a class that gets no rate wait for a bounded time, and can send soon after the
/// overload ends.
const STARVED_PART: u64 = 64;

/// The factor without overload.
const ONE: u64 = 1 << 16;

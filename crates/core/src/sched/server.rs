//! Overbooked servers (paper CELL, section 4.5): deliberate overload that harms nobody outside.
//!
//! A server is one admitted slice. What is inside it shares what the slice gives: classes of
//! static priority, and in each class proportional sharing of what the class gets.
//!
//! ```text
//! slice ──▶ a class that has less than its minimum, else the first class that is ready
//!             └──▶ the member of the least start tag (weight: its contracted rate)
//! ```
//! # The factor of a class
//! R is what the active members of a class (those with a packet) have contracted together, A
//! what the class can have: what the server carries less what the classes above take and what
//! the classes below are owed at least, but not less than its own minimum. While R > A, members
//! are shaped with parameters that are R / A longer. R changes when a member wakes or sleeps,
//! and counts for each member when it is shaped next.
//!
//! # The minimum of a class
//! A clock that advances by length / minimum for each packet that the class is served *because*
//! it is behind; so it gets its minimum on top of nothing, and priority beside it.

use alloc::vec::Vec;

use super::calendar::Pool;
use super::fair::Fair;
use super::member::{Home, Member};
use super::pace::{Moment, Pace};
use crate::units::Rate;

/// A class of a server, first is highest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Class {
    /// What the class gets at least while it has something to send, so that it never starves.
    pub min: Option<Rate>,
}

/// Classes a server may have.
pub const MAX_CLASSES: usize = 8;

/// What is inside an overbooked slice.
#[derive(Debug)]
pub(super) struct Server {
    /// The flow whose slice it is.
    pub(super) flow: u32,
    classes: Vec<Inside>,
    /// What the slice gives, in bit/s.
    rate: u64,
    /// Members, waiting or not.
    pub(super) members: u32,
}

#[derive(Debug)]
struct Inside {
    fair: Fair,
    /// Members that are eligible (entries of `fair` that are not old).
    ready: u32,
    /// Contracted rates of the members with a packet, bit/s.
    active: u64,
    min: Option<Pace>,
    min_rate: u64,
    /// When the class is owed a packet by its minimum.
    owed_at: Moment,
    /// 2^16 R / A, at least 2^16.
    factor: u64,
}

impl Server {
    /// A server whose slice gives `rate` bit/s.
    pub(super) fn new(flow: u32, name: u8, classes: &[Class], rate: u64) -> Server {
        let inside = |class: &Class| Inside {
            fair: Fair::new(name),
            ready: 0,
            active: 0,
            min: class.min.map(Pace::of),
            min_rate: class.min.map_or(0, Rate::bits_per_second),
            owed_at: Moment::at(0),
            factor: ONE,
        };
        Server {
            flow,
            classes: classes.iter().map(inside).collect(),
            rate,
            members: 0,
        }
    }

    /// How many classes there are.
    pub(super) fn classes(&self) -> usize {
        self.classes.len()
    }

    /// Bytes of its classes.
    pub(super) fn memory(&self) -> usize {
        let each = |class: &Inside| size_of::<Inside>() + class.fair.memory();
        self.classes.iter().map(each).sum()
    }

    /// What the classes are promised together, in bit/s.
    pub(super) fn promised(&self) -> u64 {
        self.classes.iter().map(|class| class.min_rate).sum()
    }

    /// The slice gives another rate now.
    pub(super) fn set_rate(&mut self, rate: u64) {
        self.rate = rate;
        self.refactor();
    }

    /// Whether any member is eligible.
    #[inline(always)]
    pub(super) fn is_ready(&self) -> bool {
        self.classes.iter().any(|class| class.ready > 0)
    }

    /// A member has a packet now, or has none any more.
    pub(super) fn set_active(&mut self, member: &Member, active: bool) {
        let Some(class) = self.classes.get_mut(member.home().class()) else {
            return;
        };
        class.active = match active {
            true => class.active.saturating_add(member.rate()),
            false => class.active.saturating_sub(member.rate()),
        };
        self.refactor();
    }

    /// By how much a class is overbooked: 2^16 R / A.
    #[inline(always)]
    pub(super) fn factor(&self, home: Home) -> u64 {
        self.classes
            .get(home.class())
            .map_or(ONE, |class| class.factor)
    }

    /// Where a member starts in its class whose last packet ended at `tag`.
    #[inline(always)]
    pub(super) fn start(&self, home: Home, tag: u64) -> u64 {
        self.classes
            .get(home.class())
            .map_or(tag, |class| class.fair.start(tag))
    }

    /// A member is eligible. It has an entry already, or gets one at this start tag.
    #[inline(always)]
    pub(super) fn join(
        &mut self,
        pool: &mut Pool,
        home: Home,
        entry: Option<(u32, u64)>,
        now: u64,
        longest: u32,
    ) {
        let Some(class) = self.classes.get_mut(home.class()) else {
            return;
        };
        if class.ready == 0
            && let Some(pace) = class.min
        {
            // Two packets of credit, so that shaping inside costs the minimum nothing.
            let credit = pace.span(longest).ceil().saturating_mul(2);
            let least = Moment::at(now.saturating_sub(credit));
            class.owed_at = class.owed_at.max(least);
        }
        class.ready += 1;
        if let Some((id, start)) = entry {
            class.fair.join(pool, id, start);
        }
    }

    /// A ready member whose entry was old gets another.
    pub(super) fn join_again(&mut self, pool: &mut Pool, home: Home, id: u32, start: u64) {
        if let Some(class) = self.classes.get_mut(home.class()) {
            class.fair.join(pool, id, start);
        }
    }

    /// Takes any entry of any class.
    pub(super) fn drain(&mut self, pool: &mut Pool) -> Option<u32> {
        let mut classes = self.classes.iter_mut();
        classes.find_map(|class| class.fair.take(pool, |_| ()))
    }

    /// A member is not eligible any more, without having been served.
    pub(super) fn leave(&mut self, home: Home) {
        if let Some(class) = self.classes.get_mut(home.class()) {
            class.ready -= 1;
        }
    }

    /// Whose turn it is: an entry of some class, which may be old.
    #[inline(always)]
    pub(super) fn take(&mut self, pool: &mut Pool, now: u64, ahead: impl Fn(u32)) -> Option<u32> {
        let owed = |class: &Inside| class.min.is_some() && class.owed_at.nanos <= now;
        let ready = |class: &&mut Inside| class.ready > 0;
        let mut classes = self.classes.iter_mut().filter(ready);
        let first = classes.next()?;
        let class = match owed(first) {
            true => first,
            false => classes.find(|class| owed(class)).unwrap_or(first),
        };
        class.fair.take(pool, ahead)
    }

    /// A member that was taken has been served `length` bytes.
    #[inline(always)]
    pub(super) fn served(&mut self, member: &Member, length: u32, now: u64) {
        let Some(class) = self.classes.get_mut(member.home().class()) else {
            return;
        };
        class.ready -= 1;
        class.fair.served(member.tag);
        if let Some(pace) = class.min
            && class.owed_at.nanos <= now
        {
            class.owed_at = class.owed_at.after(pace.span(length));
        }
    }

    /// The end of a busy period of a class, if it is one.
    #[inline(always)]
    pub(super) fn settle(&mut self, home: Home) {
        if let Some(class) = self.classes.get_mut(home.class()) {
            class.fair.settle();
        }
    }

    /// Panics if anything is wrong; how many entries there are.
    pub(super) fn invariants(&self, pool: &Pool) -> usize {
        let each = self.classes.iter().map(|class| {
            let entries = class.fair.invariants(pool);
            assert!(class.ready as usize <= entries, "ready without an entry");
            assert!(class.factor >= ONE);
            entries
        });
        each.sum()
    }

    /// The factors of all classes anew.
    fn refactor(&mut self) {
        let owed = |class: &Inside| class.min_rate.min(class.active);
        let below: u64 = self.classes.iter().map(owed).sum();
        let (mut above, mut below) = (0_u64, below);
        for class in &mut self.classes {
            below -= owed(class);
            let rest = self.rate.saturating_sub(above).saturating_sub(below);
            let can_have = rest.max(class.min_rate).max(self.rate / STARVED).max(1);
            let factor = (u128::from(class.active) << 16) / u128::from(can_have);
            class.factor = u64::try_from(factor).unwrap_or(u64::MAX).max(ONE);
            above = above.saturating_add(class.active.min(can_have));
        }
    }
}

/// A class that is left nothing is shaped as if it had this part of the server: its members wait
/// for their turn rather than for hours, and are there when the overload ends.
const STARVED: u64 = 64;

/// No overload.
const ONE: u64 = 1 << 16;

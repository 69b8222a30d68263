//! The classes of a link: an overbooked server (paper CELL, section 4.5) that an administrator
//! gives the link, as it is asked for, checked and shown. [`crate::sched`] serves it.
//!
//! A link has at most one server. The server is one promise: a slice of the link. It has up to
//! eight classes, 0 to 7; the first has the highest priority. Flows with `cell …,class=N` are the
//! members of class N and share what the server gives the class, in proportion to their contracts.
//!
//! ```text
//! slice    as named, else the smallest one in 20 ms that gives the minimums of the classes
//! minimum  the class has it whatever the classes above want; all minimums fit into the slice
//! overbook the contracts of the class may sum to more than the class has
//! ```
//! # What a class has
//! Let all members have packets all the time. A class has the server's rate, less what the classes
//! above take (their contracts, but not more than they have), less the minimums of the classes
//! below, and at least its own minimum. It is the rate A of [`crate::sched`]. The contracts of a
//! class that is not overbooked sum to at most this rate ([`LinkClasses::check_members`]), so each
//! of its members has its rate whenever it wants it.
//!
//! # Rates
//! The slice is time on the link, and a rate counts the bytes of frames. What the wire adds to each
//! frame takes time too. So all rates count as if all frames had the smallest length
//! ([`ServerLink`]), as the minimums of flows do.
//!
//! A function fails with [`ClassError`] if a class does not exist, or if the classes, their server
//! and their members do not fit together. It changes nothing then.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::contract::{CLASSES, Setting, Slice};
use crate::units::{Amount, Bytes, Nanos, Rate};

/// A class of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LinkClass {
    /// The rate that the class has whatever the other classes want; `None`: it has none.
    pub min: Option<Rate>,
    /// The contracts of its members may sum to more than the class has.
    pub overbook: bool,
}

/// The classes of a link and the slice that they divide. Without a class there is no server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LinkClasses {
    server: Option<Slice>,
    classes: [Option<LinkClass>; CLASSES],
}

/// A change of the classes of a link. What it does not name stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassesChange {
    /// The slice of the server; [`Setting::Clear`]: the smallest one for the minimums.
    pub server: Option<Setting<Slice>>,
    /// A class with its number.
    pub class: Option<(u8, ClassChange)>,
}

/// A change of one class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClassChange {
    /// Adds the class, or changes it.
    Set {
        /// The minimum; [`Setting::Clear`]: none.
        min: Option<Setting<Rate>>,
        /// Whether the class may be overbooked.
        overbook: Option<bool>,
    },
    /// Removes the class.
    Remove,
}

/// The link of a server, as far as the size of the server depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLink {
    /// The link's sending rate.
    pub rate: Rate,
    /// Bytes that the wire adds to each frame.
    pub overhead: Bytes,
    /// The smallest frame; above zero.
    pub shortest: Bytes,
}

/// Why classes, their server and their members do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClassError {
    /// The number is above 7.
    #[error("a link has the classes 0 (first) to 7, not {0}")]
    Number(u64),
    /// The class does not exist.
    #[error("class {class} does not exist: {known}")]
    NoClass {
        /// The class.
        class: u8,
        /// The classes that exist, as a sentence.
        known: String,
    },
    /// A slice is named for a server, and there is no class.
    #[error("a server needs a class: name one with --class N")]
    ServerWithoutClass,
    /// The server has `extra`.
    #[error("a server has its slice and nothing of the left-over: leave out extra")]
    Extra,
    /// There are classes, but neither a minimum nor a slice.
    #[error(
        "the classes have nothing to divide: name a minimum (--class N --min R) or the server's \
         slice of the link (--server 20ms/50ms)"
    )]
    NothingToDivide,
    /// The minimums exceed the server, or without a named slice the link.
    #[error("the minimums of the classes are {promised} together, above the {gives} of {of}")]
    MinimumsAboveServer {
        /// The sum of the minimums.
        promised: Amount,
        /// The rate of the server or the link.
        gives: Amount,
        /// The server or the link, in words.
        of: String,
    },
    /// The contracts of a class that is not overbooked exceed what the class has.
    #[error(
        "the contracts in class {class} are {wanted} together, above the {has} that the class has \
         beside the others, and it is not overbooked: --class {class} --overbook lets its members \
         share"
    )]
    MembersAboveClass {
        /// The class.
        class: u8,
        /// The sum of the contracts.
        wanted: Amount,
        /// The rate that the class has.
        has: Amount,
    },
}

impl LinkClasses {
    /// Whether there is no class, and so no server.
    pub fn is_empty(&self) -> bool {
        self.classes.iter().all(Option::is_none)
    }

    /// The slice of the server that is named; `None` if it follows from the minimums.
    pub fn named_server(&self) -> Option<Slice> {
        self.server
    }

    /// The classes that exist, with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u8, LinkClass)> {
        let numbered = (0..).zip(&self.classes);
        numbered.filter_map(|(number, class)| Some((number, (*class)?)))
    }

    /// A class.
    ///
    /// # Errors
    /// [`ClassError::NoClass`] if there is none with this number.
    pub fn class(&self, number: u8) -> Result<LinkClass, ClassError> {
        let class = self.classes.get(usize::from(number)).copied().flatten();
        class.ok_or_else(|| ClassError::NoClass {
            class: number,
            known: self.known(),
        })
    }

    /// The classes after a change.
    ///
    /// # Errors
    /// [`ClassError::Number`], [`ClassError::NoClass`] if a class that does not exist is removed,
    /// [`ClassError::ServerWithoutClass`], [`ClassError::Extra`].
    pub fn apply(&self, change: &ClassesChange) -> Result<LinkClasses, ClassError> {
        let mut changed = *self;
        match change.server {
            Some(Setting::Set(slice)) if slice.extra() => return Err(ClassError::Extra),
            Some(Setting::Set(slice)) => changed.server = Some(slice),
            Some(Setting::Clear) => changed.server = None,
            None => {}
        }
        if let Some((number, class)) = &change.class {
            let place = changed.classes.get_mut(usize::from(*number));
            let place = place.ok_or(ClassError::Number(u64::from(*number)))?;
            match class {
                ClassChange::Set { min, overbook } => {
                    let class = place.get_or_insert_default();
                    match min {
                        Some(Setting::Set(rate)) => class.min = Some(*rate),
                        Some(Setting::Clear) => class.min = None,
                        None => {}
                    }
                    class.overbook = overbook.unwrap_or(class.overbook);
                }
                ClassChange::Remove => {
                    self.class(*number)?;
                    *place = None;
                }
            }
        }
        if changed.is_empty() {
            let named = matches!(change.server, Some(Setting::Set(_)));
            if named {
                return Err(ClassError::ServerWithoutClass);
            }
            changed.server = None;
        }
        Ok(changed)
    }

    /// The slice of the server on a link; `None` without a class. All minimums fit into it.
    ///
    /// # Errors
    /// [`ClassError::NothingToDivide`] or [`ClassError::MinimumsAboveServer`].
    pub fn slice(&self, link: &ServerLink) -> Result<Option<Slice>, ClassError> {
        if self.is_empty() {
            return Ok(None);
        }
        let promised = self.promised();
        let exceeds = |gives: u64, of: String| ClassError::MinimumsAboveServer {
            promised,
            gives: Amount(gives),
            of,
        };
        if let Some(slice) = self.server {
            let gives = link.gives(&slice);
            let of = || alloc::format!("the server ({}/{})", slice.slice(), slice.period());
            return match promised.0 > gives {
                true => Err(exceeds(gives, of())),
                false => Ok(Some(slice)),
            };
        }
        if promised.0 == 0 {
            return Err(ClassError::NothingToDivide);
        }
        let whole = link.usable(link.rate.bits_per_second());
        let slice = link.slice_for(promised).ok_or_else(|| {
            let of = String::from("the link");
            exceeds(whole, of)
        })?;
        Ok(Some(slice))
    }

    /// Checks that the members of each class that is not overbooked have their contracts.
    /// `members` are the sums of the contracts of each class, in bit/s.
    ///
    /// # Errors
    /// As [`LinkClasses::slice`], and [`ClassError::NoClass`] or [`ClassError::MembersAboveClass`].
    pub fn check_members(
        &self,
        members: &[u64; CLASSES],
        link: &ServerLink,
    ) -> Result<(), ClassError> {
        let server = self.slice(link)?.map_or(0, |slice| link.gives(&slice));
        let (mut above, mut below) = (0_u64, self.promised().0);
        for (number, wanted) in (0..).zip(members) {
            let wanted = *wanted;
            if wanted > 0 {
                self.class(number)?;
            }
            let class = self.classes[usize::from(number)].unwrap_or_default();
            let least = class.min.map_or(0, Rate::bits_per_second);
            below = below.saturating_sub(least);
            let rest = server.saturating_sub(above).saturating_sub(below);
            let has = rest.max(least);
            if !class.overbook && wanted > has {
                return Err(ClassError::MembersAboveClass {
                    class: number,
                    wanted: Amount(wanted),
                    has: Amount(has),
                });
            }
            above = above.saturating_add(wanted.min(has));
        }
        Ok(())
    }

    /// The minimum of each class for the scheduler, which has all eight.
    pub fn minimums(&self) -> [Option<Rate>; CLASSES] {
        self.classes.map(|class| class.and_then(|class| class.min))
    }

    /// The sum of the minimums.
    pub fn promised(&self) -> Amount {
        let minimums = self.iter().filter_map(|(_, class)| class.min);
        minimums.map(Amount::from).sum()
    }

    fn known(&self) -> String {
        let numbers: Vec<String> = self.iter().map(|(n, _)| alloc::format!("{n}")).collect();
        match numbers.len() {
            0 => String::from("the link has no classes; netnice link IFACE --class N adds one"),
            1 => alloc::format!("the link has class {}", numbers.concat()),
            _ => alloc::format!("the link has the classes {}", numbers.join(", ")),
        }
    }
}

impl ServerLink {
    /// The rate of frames that a slice gives, if all of them have the smallest length; in bit/s,
    /// rounded down.
    pub fn gives(&self, slice: &Slice) -> u64 {
        let rate = u128::from(self.rate.bits_per_second()) * u128::from(slice.slice().0);
        // A slice is not longer than its period.
        self.usable((rate / u128::from(slice.period().0)) as u64)
    }

    /// The part of a rate of the wire that frames of the smallest length have.
    fn usable(&self, bits: u64) -> u64 {
        let shortest = u128::from(self.shortest.0.max(1));
        let on_wire = shortest + u128::from(self.overhead.0);
        (u128::from(bits) * shortest / on_wire) as u64
    }

    /// The smallest slice in [`PERIOD`] that gives a rate; `None` if the link does not.
    fn slice_for(&self, rate: Amount) -> Option<Slice> {
        let shortest = u128::from(self.shortest.0.max(1));
        let on_wire =
            (u128::from(rate.0) * (shortest + u128::from(self.overhead.0))).div_ceil(shortest);
        let link = u128::from(self.rate.bits_per_second());
        let time = (on_wire * u128::from(PERIOD.0)).div_ceil(link);
        Slice::new(Nanos(u64::try_from(time).ok()?), PERIOD, false).ok()
    }
}

/// The classes for people: `server 20ms/50ms, class 0 min 20 Mbit/s, class 1 overbooked`.
impl fmt::Display for LinkClasses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if let Some(slice) = self.server {
            parts.push(alloc::format!(
                "server {}/{}",
                slice.slice(),
                slice.period()
            ));
        }
        for (number, class) in self.iter() {
            let mut text = alloc::format!("class {number}");
            if let Some(min) = class.min {
                text.push_str(&alloc::format!(" min {min:#}"));
            }
            if class.overbook {
                text.push_str(" overbooked");
            }
            parts.push(text);
        }
        match parts.is_empty() {
            true => f.write_str("no classes"),
            false => f.write_str(&parts.join(", ")),
        }
    }
}

/// Period of a server whose slice is not named: short enough for a person not to notice the gaps,
/// and at 1 Mbit/s still longer than the time of a full frame.
const PERIOD: Nanos = Nanos::from_millis(20);

#[cfg(test)]
mod tests;

//! Admission of processor time. [`Processors::admit`] decides on one more [`Reservation`] and fails
//! with [`ProcessorRefusal`].
//!
//! A reservation is a time S in every period P of one processor, on the processors of a set. Its
//! *share* is S/P. The kernel admits a part of each processor
//! ([`Processors::admitted_ppm`]), and the rest is for programs without a reservation.
//!
//! # Condition
//! For every union X of sets of reservations: the shares of the reservations whose set lies inside
//! X sum to at most |X| times the admitted part, where |X| is the number of processors in X that
//! are online. This is Hall's condition. It is necessary, and it is sufficient to divide the shares
//! among the processors such that none has more than its admitted part.
//!
//! [`Processors::admit`] checks the unions that contain the set of the request and that sets
//! connect with it (two sets are connected if they have a common processor). So a set that has
//! become too full elsewhere, because a processor went offline, does not block the request. With
//! more than [`MOST_SETS`] connected sets that do not lie inside the requested one, the number of
//! unions is bounded: the requested set, its union with each other set, and the union of all. That
//! condition is necessary only.
//!
//! Sums are exact: all shares are counted in one unit, which divides all periods. If the smallest
//! such unit is below 10^-18 of a processor, shares are rounded up to 10^-18.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use super::timing::most;
use crate::contract::Slice;
use crate::units::Nanos;

/// Numbers of processors, as Linux counts them.
pub type ProcessorSet = BTreeSet<u32>;

/// Processor time that is reserved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The name of the holder, for people: a target, or a program outside netnice. It has no
    /// control characters.
    pub holder: String,
    /// The time in every period; on several processors together it is still the time of one.
    pub slice: Slice,
    /// The processors on which the holder may run. An empty set, or a set of which no processor is
    /// online, stands for all that are online, as in the kernel.
    pub processors: ProcessorSet,
}

/// The processors of a host, and what programs outside netnice have reserved of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Processors {
    /// The processors that are online.
    pub online: ProcessorSet,
    /// The part of each processor that the kernel admits as reservations, in millionths.
    pub admitted_ppm: u32,
    /// The reservations of programs outside netnice, and those of drivers.
    pub others: Vec<Reservation>,
}

impl Processors {
    /// Decides whether a reservation fits beside those in `held` and [`Processors::others`]. `held`
    /// must not contain an earlier reservation that this one replaces.
    ///
    /// # Errors
    /// [`ProcessorRefusal`] if not, with the union of sets in which the least is left.
    pub fn admit(
        &self,
        held: &[Reservation],
        asked: &Reservation,
    ) -> Result<(), Box<ProcessorRefusal>> {
        let all: Vec<&Reservation> = self.others.iter().chain(held).collect();
        let unit = Unit::of(all.iter().copied().chain([asked]));
        let mut sums: BTreeMap<ProcessorSet, u128> = BTreeMap::new();
        for one in &all {
            *sums.entry(self.present(one)).or_default() += unit.share(&one.slice);
        }
        let requested = unit.share(&asked.slice);
        let own = self.present(asked);
        let left = |union: &ProcessorSet| {
            let inside = sums.iter().filter(|(set, _)| set.is_subset(union));
            let held: u128 = inside.map(|(_, share)| *share).sum();
            unit.left(self.capacity_ppm(union), held)
        };
        let unions = unions(&own, &sums).into_iter();
        let fullest = unions.map(|union| (left(&union), union)).min_by(|a, b| {
            let key = |one: &(u128, ProcessorSet)| (one.0, one.1.len());
            key(a).cmp(&key(b))
        });
        let Some((left, union)) = fullest.filter(|(left, _)| requested * MILLION > *left) else {
            return Ok(());
        };
        let mut holders: Vec<Reservation> = all
            .into_iter()
            .filter(|one| self.present(one).is_subset(&union))
            .cloned()
            .collect();
        holders.sort_by_key(|one| core::cmp::Reverse(unit.share(&one.slice)));
        Err(Box::new(ProcessorRefusal {
            capacity_ppm: self.capacity_ppm(&union),
            admitted_ppm: self.admitted_ppm,
            held_ppm: unit.ppm(holders.iter().map(|one| unit.share(&one.slice)).sum()),
            largest: unit.largest(left, asked.slice.period()),
            processors: union,
            asked: asked.clone(),
            holders,
        }))
    }

    /// Whether the kernel's scheduler of deadlines (SCHED_DEADLINE, which is global EDF) gives each
    /// of these reservations its time by the end of every period, also on several processors. If
    /// not, it gives them their time with a bounded delay. [`Processors::others`] count too.
    ///
    /// On one processor the shares must sum to at most 1. On M processors, they must sum to at most
    /// M − (M − 1) times the largest share (Goossens, Funk, Baruah, *Priority-driven scheduling of
    /// periodic task systems on multiprocessors*, Real-Time Systems 25, 2003), which is sufficient
    /// if all may run on the same processors. For sets that differ and have a common processor the
    /// answer is `false`.
    pub fn keeps_deadlines(&self, exact: &[Reservation]) -> bool {
        let all: Vec<&Reservation> = self.others.iter().chain(exact).collect();
        let unit = Unit::of(all.iter().copied());
        exact.iter().all(|one| {
            let own = self.present(one);
            let near = || {
                all.iter()
                    .filter(|near| !self.present(near).is_disjoint(&own))
            };
            let share = |near: &&Reservation| unit.share(&near.slice);
            let sum: u128 = near().map(share).sum();
            let largest = near().map(share).max().unwrap_or(0);
            let count = own.len() as u128;
            let same = near().all(|near| self.present(near) == own);
            same && count > 0 && sum + (count - 1) * largest <= count * unit.0
        })
    }

    /// The longest reservation, in whole microseconds, that has the period, the processors and the
    /// holder of `like`, fits beside those in `exact` ([`Processors::admit`]), and leaves each of
    /// them and itself its time by the end of every period ([`Processors::keeps_deadlines`]).
    /// `None` if not even [`Slice::LEAST_CPU`] does. On M processors this is the bound M − (M − 1)
    /// times the largest share on the sum of the shares.
    pub fn longest_exact(&self, exact: &[Reservation], like: &Reservation) -> Option<Slice> {
        let (period, extra) = (like.slice.period(), like.slice.extra());
        let of = |us: u64| Slice::new(Nanos::from_micros(us), period, extra).ok();
        let fits = |us: u64| {
            let asked = of(us).map(|slice| Reservation {
                slice,
                ..like.clone()
            });
            asked.is_some_and(|asked| {
                let is_admitted = self.admit(exact, &asked).is_ok();
                let all: Vec<Reservation> = exact.iter().cloned().chain([asked]).collect();
                is_admitted && self.keeps_deadlines(&all)
            })
        };
        // A shorter reservation than one that fits also fits: both the sum of the shares and the
        // largest share only fall.
        most(Slice::LEAST_CPU.0 / 1_000..=period.0 / 1_000, fits).and_then(of)
    }

    /// The processors on which a reservation's holder can run now.
    fn present(&self, of: &Reservation) -> ProcessorSet {
        let present: ProcessorSet = of.processors.intersection(&self.online).copied().collect();
        match present.is_empty() {
            true => self.online.clone(),
            false => present,
        }
    }

    /// What can be promised of online processors, in millionths of one processor.
    fn capacity_ppm(&self, of: &ProcessorSet) -> u64 {
        of.len() as u64 * u64::from(self.admitted_ppm)
    }
}

/// The reason why a reservation of processor time does not fit. `Display` is for the user who
/// asked: the first line names the request, and the following lines give the numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessorRefusal {
    /// The requested reservation.
    pub asked: Reservation,
    /// The processors of which too little is left.
    pub processors: ProcessorSet,
    /// What the kernel admits of each processor, in millionths.
    pub admitted_ppm: u32,
    /// What can be promised of [`ProcessorRefusal::processors`], in millionths of one processor.
    pub capacity_ppm: u64,
    /// The sum of the shares of the holders, in millionths of one processor, rounded up.
    pub held_ppm: u64,
    /// The reservations on these processors, the largest share first.
    pub holders: Vec<Reservation>,
    /// The longest time in the requested period that would fit, in whole microseconds; `None` if it
    /// is less than [`Slice::LEAST_CPU`].
    pub largest: Option<Nanos>,
}

impl core::error::Error for ProcessorRefusal {}

impl fmt::Display for ProcessorRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (slice, period) = (self.asked.slice.slice(), self.asked.slice.period());
        write!(
            f,
            "refused: {}: {slice} in every {period} of a processor do not fit",
            self.asked.holder
        )?;
        let (list, capacity) = (processor_list(&self.processors), percent(self.capacity_ppm));
        let promised = match self.processors.len() {
            1 => format!("processor {list}, of which {capacity} can be promised"),
            _ => format!(
                "processors {list}, of which {capacity} can be promised ({} of each)",
                percent(self.admitted_ppm.into())
            ),
        };
        super::refusal::row(f, "on", &promised)?;
        let width = self.holders.iter().map(|one| one.holder.chars().count());
        let width = width.max().unwrap_or(0);
        if self.holders.is_empty() {
            super::refusal::row(f, "held", "none")?;
        }
        for (n, Reservation { holder, slice, .. }) in self.holders.iter().enumerate() {
            let label = if n == 0 { "held" } else { "" };
            let share = percent(share_ppm(slice));
            let time = format!("{}/{}", slice.slice(), slice.period());
            super::refusal::row(f, label, &format!("{holder:<width$}  {time}  {share}"))?;
        }
        let asked = share_ppm(&self.asked.slice);
        let sum = format!(
            "{} + {} = {} > {capacity}",
            percent(asked),
            percent(self.held_ppm),
            percent(asked + self.held_ppm)
        );
        super::refusal::row(f, "but", &sum)?;
        match self.largest {
            Some(largest) => {
                super::refusal::row(f, "would fit", &format!("at most {largest}/{period}"))
            }
            None => super::refusal::row(f, "would fit", "nothing"),
        }
    }
}

/// Numbers of processors as text, in the form of the kernel: `0-3,8`. Empty for the empty set.
pub fn processor_list(processors: &ProcessorSet) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in processors {
        match ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*number) => *last = *number,
            _ => ranges.push((*number, *number)),
        }
    }
    let text = |(first, last): (u32, u32)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    let texts: Vec<String> = ranges.into_iter().map(text).collect();
    texts.join(",")
}

/// The share of a slice in millionths of a processor, rounded up; at most 1,000,000.
pub fn share_ppm(slice: &Slice) -> u64 {
    let slices = u128::from(slice.slice().0) * MILLION;
    slices.div_ceil(slice.period().0.into()) as u64
}

/// Millionths as a percentage, exactly: `12.5 %`.
pub fn percent(ppm: u64) -> String {
    let (whole, rest) = (ppm / 10_000, ppm % 10_000);
    let decimals = format!("{rest:04}");
    match decimals.trim_end_matches('0') {
        "" => format!("{whole} %"),
        decimals => format!("{whole}.{decimals} %"),
    }
}

/// The number of units in one processor.
struct Unit(u128);

impl Unit {
    /// The least common multiple of the periods; [`FINEST`] if it is larger than that.
    fn of<'a>(all: impl Iterator<Item = &'a Reservation>) -> Unit {
        let periods: BTreeSet<u128> = all.map(|one| one.slice.period().0.into()).collect();
        let multiple = |of: u128, period: &u128| {
            let least = of / greatest_divisor(of, *period) * period;
            (least <= FINEST).then_some(least)
        };
        Unit(periods.iter().try_fold(1, multiple).unwrap_or(FINEST))
    }

    /// The share of a slice in this unit, rounded up.
    fn share(&self, slice: &Slice) -> u128 {
        (u128::from(slice.slice().0) * self.0).div_ceil(slice.period().0.into())
    }

    /// What is left of a capacity beside a sum of shares, in millionths of the unit; 0 if the sum
    /// exceeds it.
    fn left(&self, capacity_ppm: u64, held: u128) -> u128 {
        (u128::from(capacity_ppm) * self.0).saturating_sub(held * MILLION)
    }

    /// The longest time in a period that fits into `left` (millionths of the unit) of one
    /// processor, in whole microseconds; `None` if it is less than [`Slice::LEAST_CPU`].
    fn largest(&self, left: u128, period: Nanos) -> Option<Nanos> {
        let left = left.min(self.0 * MILLION);
        let nanos = left * u128::from(period.0) / (self.0 * MILLION);
        let whole = Nanos(nanos as u64 / 1_000 * 1_000);
        (whole >= Slice::LEAST_CPU).then_some(whole)
    }

    /// A sum of shares in millionths of a processor, rounded up.
    fn ppm(&self, sum: u128) -> u64 {
        (sum * MILLION).div_ceil(self.0) as u64
    }
}

/// The unions of sets to check for a request whose set is `own`.
fn unions(own: &ProcessorSet, sums: &BTreeMap<ProcessorSet, u128>) -> BTreeSet<ProcessorSet> {
    let mut all = own.clone();
    let mut connected: Vec<&ProcessorSet> = Vec::new();
    let mut waiting: Vec<&ProcessorSet> = sums.keys().filter(|set| !set.is_subset(own)).collect();
    loop {
        let (near, far): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|set| !set.is_disjoint(&all));
        if near.is_empty() {
            break;
        }
        for set in near {
            all.extend(set);
            connected.push(set);
        }
        waiting = far;
    }
    let mut unions = BTreeSet::from([own.clone()]);
    if connected.len() > MOST_SETS {
        unions.extend(connected.iter().map(|set| *set | own));
        unions.insert(all);
        return unions;
    }
    for set in connected {
        let with: Vec<ProcessorSet> = unions.iter().map(|union| union | set).collect();
        unions.extend(with);
    }
    unions
}

/// Euclid's algorithm.
fn greatest_divisor(mut a: u128, mut b: u128) -> u128 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The largest number of sets of which every union is checked.
const MOST_SETS: usize = 16;

/// The finest unit of a share, as parts of a processor.
const FINEST: u128 = 1_000_000_000_000_000_000;

const MILLION: u128 = 1_000_000;

#[cfg(test)]
mod tests;

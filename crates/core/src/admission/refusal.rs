//! Refusals: why a request is refused. The parent module makes a [`Refusal`] from a [`Reason`], and
//! `Display` prints it as text for the user. If an amount is too large or too small, the reason has
//! the sums behind it and the amount that would fit, if there is one. Nothing in this module fails.

use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use super::TargetId;
use crate::contract::{Direction, IfName, Slice};
use crate::link::{Capacity, Link};
use crate::target::Target;
use crate::units::{Amount, Nanos, Rate};

/// A refused request. `Display` is for the user who asked: the first line names the request and the
/// reason, and the following lines, if there are any, give the numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(Box<(Subject, Reason)>);

impl Refusal {
    /// The refusal of a request about a target.
    pub(super) fn of_target(target: &Target, reason: Reason) -> Refusal {
        Refusal(Box::new((Subject::Target(target.clone()), reason)))
    }

    /// The refusal of a request about a link.
    pub(super) fn of_link(link: &IfName, reason: Reason) -> Refusal {
        Refusal(Box::new((Subject::Link(link.clone()), reason)))
    }

    /// The target or the link that the request is about.
    pub fn subject(&self) -> &Subject {
        &self.0.0
    }

    /// Whether the target has no valid position in the forest, independent of the amounts in its
    /// contract.
    pub(super) fn has_no_position(&self) -> bool {
        matches!(
            self.reason(),
            Reason::TooDeep { .. }
                | Reason::Mixed { .. }
                | Reason::UnknownParent(_)
                | Reason::Cycle
        )
    }

    /// The reason of the refusal.
    pub fn reason(&self) -> &Reason {
        &self.0.1
    }
}

impl core::error::Error for Refusal {}

/// The target or the link that a refused request is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The request is about the contract of this target.
    Target(Target),
    /// The request is about the capacity or the management of this link.
    Link(IfName),
}

/// The reason of a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The request has a guarantee, and no link is managed.
    NoLink,
    /// The request yields, and no link is managed.
    NoLinkToYieldOn,
    /// The request has a guarantee and names no link, and several links are managed. Holds the
    /// managed links.
    WhichLink(Vec<IfName>),
    /// The named link is not managed.
    NotManaged {
        /// The link.
        link: IfName,
        /// The managed links.
        managed: Vec<IfName>,
    },
    /// The request has a guarantee in a direction in which the link can promise nothing: the
    /// direction is not managed, or 97 % of its receiving rate is below [`Rate::MIN`].
    NoRate {
        /// The link.
        link: IfName,
        /// The direction.
        direction: Direction,
    },
    /// The slice's share of the link is below [`Rate::MIN`].
    SliceTooSmall {
        /// The link.
        link: IfName,
        /// The rate that the link can promise.
        usable: Rate,
        /// The slice.
        slice: Slice,
    },
    /// With the requested guarantee, or limit, a sum of guarantees exceeds a bound.
    DoesNotFit(Box<Shortfall>),
    /// With the new capacity of a link, a sum of guarantees exceeds a bound.
    LinkTooSlow(Box<CapacityShortfall>),
    /// The request would end the management of the link or of one direction (or leave too little to
    /// promise in it), where guarantees are held.
    StillHeld {
        /// The guarantees.
        holders: Vec<Holder>,
    },
    /// The chain of targets is longer than [`super::MAX_DEPTH`].
    TooDeep {
        /// The chain from the outermost target to the requested one.
        chain: Vec<Target>,
        /// Length of the chain, including the targets below the requested one, without targets
        /// whose contract is empty.
        depth: usize,
    },
    /// One chain has `both` and one-way limits.
    Mixed {
        /// The target with `both`.
        both: Target,
        /// The target with a limit on one direction.
        one_way: Target,
    },
    /// The parent of the target is not among the entries in force. Holds the parent.
    UnknownParent(TargetId),
    /// The target would contain itself.
    Cycle,
}

/// The origin of an upper bound on a sum of guarantees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The rate that the link can promise.
    Link,
    /// The minimum of a target, or its slice as a rate, for the targets inside it.
    Min(Target),
    /// A limit of a target. Holds the target and the clause: `up`, `down` or `both`.
    Limit(Target, &'static str),
}

/// A target whose guarantee counts against a bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The target.
    pub target: Target,
    /// The link of the guarantee.
    pub link: IfName,
    /// The direction of the guarantee.
    pub direction: Direction,
    /// The guaranteed rate.
    pub amount: Amount,
}

/// The reason why a new capacity of a link is too small or too large: a sum of guarantees exceeds a
/// bound. The bound or the sum depends on the capacity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapacityShortfall {
    /// The direction in which the guarantees do not fit.
    pub direction: Direction,
    /// The origin of the bound that the guarantees exceed.
    pub bound: Bound,
    /// The value of that bound.
    pub most: Rate,
    /// The sum of the guarantees that count against the bound; above `most`.
    pub held: Amount,
    /// The targets with these guarantees.
    pub holders: Vec<Holder>,
    /// True if the capacity is too large: the guarantees contain slices, which grow with it, and
    /// the bound does not. False if it is too small.
    pub too_large: bool,
    /// The capacity nearest to the new one with which all guarantees in this direction would fit:
    /// the largest if the new one is too large, else the smallest. `None` if there is none.
    pub nearest: Option<Rate>,
}

/// The reason why a request for a target does not fit: a sum of guarantees exceeds a bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortfall {
    /// The link of the guarantee.
    pub link: IfName,
    /// The direction of the guarantee.
    pub direction: Direction,
    /// The link's capacity in that direction, and its source; `None` if the direction is not
    /// managed.
    pub capacity: Option<Capacity>,
    /// The rate that the link can promise in that direction; `None` if it can promise nothing
    /// there.
    pub usable: Option<Rate>,
    /// The requested guarantee. `None` if the fault is not its size: a limit is too small, or a
    /// guarantee is too small for the targets inside.
    pub requested: Option<Rate>,
    /// The slice of the requested contract; `None` if it has none, or if the direction is down.
    pub slice: Option<Slice>,
    /// The origin of the bound that the guarantees exceed.
    pub bound: Bound,
    /// The value of that bound.
    pub most: Rate,
    /// The sum of the guarantees that count against the bound, without the requested one.
    pub held: Amount,
    /// The targets with the guarantees in that sum.
    pub holders: Vec<Holder>,
    /// The largest guarantee that the bound allows. If it is below [`Rate::MIN`] or `least`, no
    /// guarantee fits. Zero if [`Shortfall::requested`] is `None`.
    pub largest: Amount,
    /// The sum of the guarantees of the target's members on this link in this direction. The
    /// target's own guarantee there cannot be less.
    pub least: Amount,
}

impl Shortfall {
    /// The largest guarantee that would fit. `None` if no guarantee would, or if the size of the
    /// guarantee is not the fault ([`Shortfall::requested`] is `None`).
    pub fn largest(&self) -> Option<Rate> {
        let enough = self.largest >= self.least;
        self.largest
            .as_rate()
            .filter(|_| self.requested.is_some() && enough)
    }

    /// The largest slice of the requested period that would fit. `None` if no slice was requested,
    /// or if [`Shortfall::largest`] is `None`.
    pub fn largest_slice(&self) -> Option<Nanos> {
        let (slice, usable) = (self.slice?, self.usable?);
        let largest = u128::from(self.largest()?.bits_per_second());
        let nanos = largest * u128::from(slice.period().0) / u128::from(usable.bits_per_second());
        u64::try_from(nanos).ok().map(Nanos)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subject = match self.subject() {
            Subject::Target(target) => target.to_string(),
            Subject::Link(link) => link.to_string(),
        };
        match self.reason() {
            Reason::NoLink
            | Reason::NoLinkToYieldOn
            | Reason::WhichLink(_)
            | Reason::NotManaged { .. }
            | Reason::NoRate { .. } => self.explain_link(f, &subject),
            Reason::SliceTooSmall {
                link,
                usable,
                slice,
            } => write!(
                f,
                "refused: {subject}: {}/{} of {link} ({usable}) is less than the smallest rate, {}",
                slice.slice(),
                slice.period(),
                Rate::MIN
            ),
            Reason::DoesNotFit(shortfall) => shortfall.explain(f, &subject),
            Reason::LinkTooSlow(slow) => slow.explain(f, &subject),
            Reason::StillHeld { holders } => {
                write!(
                    f,
                    "refused: {subject} still carries guarantees; clear them first:"
                )?;
                table(f, "held", holders)
            }
            Reason::TooDeep { chain, depth } => {
                let chain: Vec<String> = chain.iter().map(Target::to_string).collect();
                write!(
                    f,
                    "refused: {subject}: a chain of {depth} nested targets is longer than {}: {}",
                    super::MAX_DEPTH,
                    chain.join(" > ")
                )
            }
            Reason::Mixed { both, one_way } => write!(
                f,
                "refused: {subject}: {both} has a limit on both directions together and {one_way} \
                 on one direction; one contains the other, so both need the same kind of limit"
            ),
            Reason::UnknownParent(parent) => {
                write!(
                    f,
                    "refused: {subject}: its parent (target {parent}) does not exist"
                )
            }
            Reason::Cycle => write!(f, "refused: {subject} would contain itself"),
        }
    }
}

impl Refusal {
    /// Explains the refusals that concern the choice of a link.
    fn explain_link(&self, f: &mut fmt::Formatter<'_>, subject: &str) -> fmt::Result {
        match self.reason() {
            Reason::NoLink => write!(
                f,
                "refused: {subject}: a guarantee needs a managed link, and no link is \
                 managed: run netnice link IFACE --rate R"
            ),
            Reason::NoLinkToYieldOn => write!(
                f,
                "refused: {subject}: yield needs a managed link, because what others leave of a \
                 link is known only by its rate: run netnice link IFACE --rate R"
            ),
            Reason::WhichLink(managed) => write!(
                f,
                "refused: {subject}: several links are managed ({}): name one with --on",
                list(managed)
            ),
            Reason::NotManaged { link, managed } => {
                write!(f, "refused: {subject}: {link} is not a managed link")?;
                match managed.is_empty() {
                    true => write!(f, ": run netnice link {link} --rate R"),
                    false => write!(f, "; managed: {}", list(managed)),
                }
            }
            Reason::NoRate { link, direction } => {
                let (option, verb) = match direction {
                    Direction::Up => ("--rate", "sending"),
                    Direction::Down => ("--down-rate", "receiving"),
                };
                write!(
                    f,
                    "refused: {subject}: {link} has no {verb} rate: \
                     run netnice link {link} {option} R"
                )
            }
            _ => Ok(()),
        }
    }
}

impl CapacityShortfall {
    fn explain(&self, f: &mut fmt::Formatter<'_>, subject: &str) -> fmt::Result {
        let word = self.direction.word();
        write!(f, "refused: {subject}: its {word} guarantees would not fit")?;
        row(
            f,
            "can promise",
            &bound_text(&self.bound, self.most, subject, word),
        )?;
        table(f, "held", &self.holders)?;
        row(
            f,
            "but",
            &alloc::format!("{:#} > {:#}", self.held, self.most),
        )?;
        match self.nearest {
            Some(most) if self.too_large => row(f, "would fit", &alloc::format!("at most {most}")),
            Some(least) => at_least(f, least.into()),
            None => row(f, "would fit", "no rate; lower a guarantee first"),
        }
    }
}

impl Shortfall {
    fn explain(&self, f: &mut fmt::Formatter<'_>, subject: &str) -> fmt::Result {
        let (link, word) = (&self.link, self.direction.word());
        let Some(requested) = self.requested else {
            write!(
                f,
                "refused: {subject}: its {word} rate on {link} is below the guarantees of \
                 its members"
            )?;
            row(
                f,
                "requested",
                &bound_text(&self.bound, self.most, link.as_str(), word),
            )?;
            table(f, "held", &self.holders)?;
            row(
                f,
                "but",
                &alloc::format!("{:#} > {:#}", self.held, self.most),
            )?;
            return at_least(f, self.held);
        };
        write!(
            f,
            "refused: {subject}: a guarantee of {requested} {word} on {link} does not fit"
        )?;
        if let (Some(capacity), Some(usable)) = (self.capacity, self.usable) {
            let mut text = alloc::format!("{link} {word} {}, {}", capacity.rate, capacity.source);
            if usable != capacity.rate {
                text.push_str(&alloc::format!("; {usable:#} of it can be promised"));
            }
            row(f, "link", &text)?;
        }
        if self.bound != Bound::Link {
            row(
                f,
                "inside",
                &bound_text(&self.bound, self.most, link.as_str(), word),
            )?;
        }
        table(f, "held", &self.holders)?;
        let sum = alloc::format!("{:#} + {:#}", Amount::from(requested), self.held);
        let total = self.held.plus(requested.into());
        row(
            f,
            "but",
            &alloc::format!("{sum} = {total:#} > {:#}", self.most),
        )?;
        match (self.largest(), self.largest_slice()) {
            (None, _) => row(f, "would fit", "nothing"),
            (Some(largest), None) => row(f, "would fit", &alloc::format!("at most {largest}")),
            (Some(largest), Some(slice)) => {
                let period = self.slice.map(|s| s.period()).unwrap_or_default();
                row(
                    f,
                    "would fit",
                    &alloc::format!("at most {largest}, a slice of {slice}/{period}"),
                )
            }
        }
    }
}

/// Sets [`CapacityShortfall::nearest`] of a reason, by a binary search over the capacity in the
/// direction of the shortfall; returns any other reason unchanged. A capacity can be too small for
/// the guarantees, and too large: a slice grows with it, and may exceed a limit or a minimum around
/// it. All guarantees fit if the capacity is neither.
pub(super) fn with_nearest(
    reason: Reason,
    new: &Link,
    carries: impl Fn(&Link) -> Result<(), Reason>,
) -> Reason {
    let Reason::LinkTooSlow(mut slow) = reason else {
        return reason;
    };
    let direction = slow.direction;
    let at = |rate: Rate| {
        let mut link = new.clone();
        let capacity = match direction {
            Direction::Up => link.up.as_mut(),
            Direction::Down => link.down.as_mut(),
        };
        if let Some(capacity) = capacity {
            *capacity = capacity.with_certain(rate);
        }
        match carries(&link) {
            Err(Reason::LinkTooSlow(slow)) if slow.direction == direction => match slow.too_large {
                true => Fit::TooLarge,
                false => Fit::TooSmall,
            },
            Err(Reason::SliceTooSmall { .. }) => Fit::TooSmall,
            _ => Fit::Fits,
        }
    };
    let rate = new.capacity(direction).map(|capacity| capacity.certain());
    let start = rate.map_or(0, Rate::bits_per_second);
    // Both ends are outside the range that is searched.
    let (mut low, mut high) = match slow.too_large {
        true => (Rate::MIN.bits_per_second() - 1, start),
        false => (start, Rate::MAX.bits_per_second() + 1),
    };
    while low + 1 < high {
        let middle = low + (high - low) / 2;
        let Some(rate) = Rate::new(middle) else {
            low = middle;
            continue;
        };
        let fit = at(rate);
        if fit == Fit::Fits {
            slow.nearest = Some(rate);
        }
        match (fit, slow.too_large) {
            (Fit::TooSmall, _) | (Fit::Fits, true) => low = middle,
            (Fit::TooLarge, _) | (Fit::Fits, false) => high = middle,
        }
    }
    Reason::LinkTooSlow(slow)
}

/// How a capacity fits the guarantees on a link.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fit {
    TooSmall,
    Fits,
    TooLarge,
}

/// The bound of a sum and its amount, as text.
fn bound_text(bound: &Bound, most: Rate, link: &str, word: &str) -> String {
    match bound {
        Bound::Link => alloc::format!("{link} {word} {most}"),
        Bound::Min(target) => alloc::format!("{target} is guaranteed {most}"),
        Bound::Limit(target, limit) => alloc::format!("{target} is limited to {limit} {most}"),
    }
}

/// Writes one indented line: a label and a text.
pub(super) fn row(f: &mut fmt::Formatter<'_>, label: &str, text: &str) -> fmt::Result {
    write!(f, "\n  {label:<12}{text}")
}

/// Writes the line with the smallest sufficient amount.
fn at_least(f: &mut fmt::Formatter<'_>, amount: Amount) -> fmt::Result {
    row(
        f,
        "would fit",
        &alloc::format!("at least {}", amount.rounded_up_for_display()),
    )
}

/// Writes the holders, one per line.
fn table(f: &mut fmt::Formatter<'_>, label: &str, holders: &[Holder]) -> fmt::Result {
    if holders.is_empty() {
        return row(f, label, "none");
    }
    let names: Vec<String> = holders.iter().map(|h| h.target.to_string()).collect();
    let width = names
        .iter()
        .map(|name| name.chars().count())
        .max()
        .unwrap_or(0);
    for (n, (holder, name)) in holders.iter().zip(&names).enumerate() {
        let label = if n == 0 { label } else { "" };
        let text = alloc::format!(
            "{name:<width$}  {} {} on {}",
            holder.amount,
            holder.direction.word(),
            holder.link
        );
        row(f, label, &text)?;
    }
    Ok(())
}

fn list(links: &[IfName]) -> String {
    let names: Vec<&str> = links.iter().map(IfName::as_str).collect();
    names.join(", ")
}

//! [`TrafficQuota`], the value of the clause `quota`: how many bytes may pass in a period of the
//! calendar, and what holds for the rest of the period.
//!
//! ```text
//! quota  = amount "/" period { "," part }
//! amount = a number with a byte unit          20GB, 64MiB; 1B to 1000TB
//! period = "hour" | "day" | "week" | "month"  a week begins on Monday
//! part   = "then=" rate                       the limit for the rest of the period; without: 0
//!        | "count=" ( "up" | "down" | "both" ) what counts, and what is cut off; without: both
//!        | "zone=" name                       of the IANA database; without: the host's own
//! ```
//!
//! Periods begin by the calendar of the zone: hours at minute 0, days at 00:00. `daemon::schedule`
//! computes the instants. Parsing fails with [`ContractError`] if the text has another form, the
//! amount is zero, has no unit or is too large, or a part is unknown or named twice. Whether a zone
//! exists is not known here.

use alloc::boxed::Box;
use alloc::string::ToString;
use core::cmp::Ordering;
use core::fmt;

use super::grammar::KeyValues;
use super::schedule::zone_name;
use super::{Clause, Contract, ContractError, Direction};
use crate::units::{Bytes, Rate};

/// How many bytes may pass in a period of the calendar.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TrafficQuota {
    /// The amount; above zero, at most [`Bytes::MAX_AMOUNT`].
    pub amount: Bytes,
    /// The period.
    pub period: QuotaPeriod,
    /// The limit of each counted direction after the amount has passed; `None`: nothing passes.
    pub then: Option<Rate>,
    /// What counts.
    pub counted: Counted,
    /// The name of the time zone of the calendar; `None`: the host's own.
    pub zone: Option<Box<str>>,
}

/// A period of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QuotaPeriod {
    /// From minute 0 to the next minute 0.
    Hour,
    /// From 00:00 to 00:00.
    Day,
    /// From Monday 00:00 to Monday 00:00.
    Week,
    /// From the first day of a month 00:00 to the first day of the next.
    Month,
}

impl QuotaPeriod {
    /// All periods, shortest first.
    pub const ALL: [QuotaPeriod; 4] = [
        QuotaPeriod::Hour,
        QuotaPeriod::Day,
        QuotaPeriod::Week,
        QuotaPeriod::Month,
    ];

    /// The word in contract text: `hour`, `day`, `week` or `month`.
    pub fn word(self) -> &'static str {
        match self {
            QuotaPeriod::Hour => "hour",
            QuotaPeriod::Day => "day",
            QuotaPeriod::Week => "week",
            QuotaPeriod::Month => "month",
        }
    }

    /// The period with this word; `None` if there is none.
    pub fn from_word(word: &str) -> Option<QuotaPeriod> {
        let mut all = QuotaPeriod::ALL.into_iter();
        all.find(|period| period.word() == word)
    }

    /// Its length in hours, of a month with 30 days: only to compare quotas.
    fn hours(self) -> u64 {
        match self {
            QuotaPeriod::Hour => 1,
            QuotaPeriod::Day => 24,
            QuotaPeriod::Week => 7 * 24,
            QuotaPeriod::Month => 30 * 24,
        }
    }
}

/// The directions that a quota counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Counted {
    /// What is sent and what is received, together.
    #[default]
    Both,
    /// One direction only.
    Only(Direction),
}

impl Counted {
    /// The word in contract text: `both`, `up` or `down`.
    pub fn word(self) -> &'static str {
        match self {
            Counted::Both => "both",
            Counted::Only(direction) => direction.word(),
        }
    }

    /// The value with this word; `None` if there is none.
    pub fn from_word(word: &str) -> Option<Counted> {
        let only = Direction::ALL.into_iter().map(Counted::Only);
        let mut all = [Counted::Both].into_iter().chain(only);
        all.find(|counted| counted.word() == word)
    }

    /// Whether a direction counts.
    pub fn includes(self, direction: Direction) -> bool {
        matches!(self, Counted::Both) || self == Counted::Only(direction)
    }
}

impl TrafficQuota {
    /// Orders quotas for display: those with `then` first, then by the amount in a time, smallest
    /// first. (All quotas of a target hold; the first is the one that a contract shows.)
    pub(crate) fn display_order(&self, other: &TrafficQuota) -> Ordering {
        let of = |quota: &TrafficQuota| {
            let hours = u128::from(quota.period.hours());
            (quota.then.is_none(), u128::from(quota.amount.0), hours)
        };
        let ((a_hard, a, a_hours), (b_hard, b, b_hours)) = (of(self), of(other));
        a_hard.cmp(&b_hard).then((a * b_hours).cmp(&(b * a_hours)))
    }
}

impl fmt::Display for TrafficQuota {
    /// In the form of contract text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.amount.amount_text(), self.period.word())?;
        if let Some(rate) = self.then {
            write!(f, ",then={}", rate.compact())?;
        }
        if self.counted != Counted::Both {
            write!(f, ",count={}", self.counted.word())?;
        }
        match &self.zone {
            Some(zone) => write!(f, ",zone={zone}"),
            None => Ok(()),
        }
    }
}

/// Parses the value of the clause.
pub(super) fn read(value: &str) -> Result<TrafficQuota, ContractError> {
    let form = || ContractError::QuotaForm(value.to_string());
    let (size, parts) = match value.split_once(',') {
        Some((size, parts)) => (size, Some(parts)),
        None => (value, None),
    };
    let (amount, period) = size.split_once('/').ok_or_else(form)?;
    let unit = |error| ContractError::Unit {
        clause: Clause::Quota,
        error,
    };
    let amount = Bytes::parse_amount(amount).map_err(unit)?;
    let period = QuotaPeriod::from_word(period).ok_or_else(form)?;
    let mut quota = TrafficQuota {
        amount,
        period,
        then: None,
        counted: Counted::Both,
        zone: None,
    };
    let Some(parts) = parts else {
        return Ok(quota);
    };
    let mut parts = KeyValues::read(Clause::Quota, FORM, parts)?;
    quota.then = match parts.take("then") {
        Some(rate) => Some(rate.parse().map_err(unit)?),
        None => None,
    };
    if let Some(word) = parts.take("count") {
        let counted = Counted::from_word(word);
        quota.counted = counted.ok_or_else(|| parts.fault(word, "no such direction:"))?;
    }
    if let Some(name) = parts.take("zone") {
        let zone = zone_name(name);
        quota.zone = Some(zone.ok_or_else(|| parts.fault(name, "not the name of a time zone:"))?);
    }
    parts.end()?;
    Ok(quota)
}

impl Contract {
    /// The quota; `None` if there is none. Of the effective contract of several claims with quotas,
    /// one of them: [`crate::claims::Claims::iter`] has all.
    pub fn quota(&self) -> Option<&TrafficQuota> {
        self.quota.as_ref()
    }

    /// Whether the contract has, or after its quota can have, a limit for one direction.
    pub fn may_limit_one_way(&self) -> bool {
        let after = self
            .quota
            .as_ref()
            .is_some_and(|quota| quota.then.is_some());
        self.up.is_some() || self.down.is_some() || (after && self.both.is_none())
    }

    /// The contract in force after the quota `spent` has passed: each limit of a counted direction
    /// is at most its `then`, and there is one. A limit is not lowered below a minimum of the same
    /// direction. Without a `then` the contract stays as it is: the kernel lets nothing pass.
    pub fn after_quota(&self, spent: &TrafficQuota) -> Contract {
        let Some(then) = spent.then else {
            return self.clone();
        };
        let mut contract = self.clone();
        if let Some(both) = self.both {
            let reserved = [self.min, self.min_down].into_iter().flatten();
            let reserved: u64 = reserved.map(Rate::bits_per_second).sum();
            let least = Rate::new(reserved).unwrap_or(then).max(then);
            contract.both = Some(both.min(least));
            return contract;
        }
        for direction in Direction::ALL {
            if !spent.counted.includes(direction) {
                continue;
            }
            let least = self.min(direction).unwrap_or(then).max(then);
            let lowered = self.limit(direction).unwrap_or(least).min(least);
            match direction {
                Direction::Up => contract.up = Some(lowered),
                Direction::Down => contract.down = Some(lowered),
            }
        }
        contract
    }

    /// Fails if the contract has a quota with `then` and a clause that reserves a part of a link.
    pub(super) fn check_quota(&self) -> Result<(), ContractError> {
        let Some(then) = self.quota.as_ref().and_then(|quota| quota.then) else {
            return Ok(());
        };
        let clause = match self {
            Contract { min: Some(_), .. } => Clause::Min,
            Contract {
                min_down: Some(_), ..
            } => Clause::MinDown,
            Contract { slice: Some(_), .. } => Clause::Slice,
            Contract { cell: Some(_), .. } => Clause::Cell,
            Contract {
                channel: Some(_), ..
            } => Clause::Channel,
            _ => return Ok(()),
        };
        Err(ContractError::QuotaThenAndGuarantee(clause, then))
    }
}

const FORM: &str = "20GB/month[,then=1mbit][,count=up|down|both][,zone=Europe/Berlin]";

#[cfg(test)]
mod tests;

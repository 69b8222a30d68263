//! Contracts and changes to them: types, text form and consistency.
//!
//! A [`Contract`] is the full set of clauses that a target asks for. A [`Change`] is a partial
//! contract: it sets or clears each clause that it names and leaves the others as they are. The
//! command line, the policy file, the state file and the socket use one grammar for both (R is a
//! rate, S, P, B and T are times, N is a number):
//!
//! ```text
//! up R         limit what is sent              slice S/P [extra]   S of the link in every P
//! down R       limit what is received          cpu S/P [cpu-extra] S of a processor in every P
//! both R       limit the sum of both           cpu auto [cpu-extra]  what its flows need of it
//!                                              cell pcr=R,cdvt=T[,scr=R,mbs=SIZE[,bucket=KIND]]
//!                                              [,class=N]  (no blank before the comma)
//! min R        guarantee, sending              channel mmax=SIZE,rmax=N/s,bmax=N,deadline=T
//! min-down R   guarantee, receiving            weight 1..1000 (100)
//! on IFACE     the link of the guarantees      priority 0..7 (4), 0 is first
//! burst T      burst of the limits (5ms)       dscp D   code point of what it sends (RFC 2474)
//! yield on     take what others leave          when HOURS         the hours of the claim (all)
//! receive P%   a part of the driver's time for received packets
//! delegate U   user U divides the minimums among own programs inside the target (a budget)
//! quota SIZE/PERIOD[,then=R][,count=DIRECTION][,zone=ZONE]        bytes in a calendar period
//! none         clears a clause; 0 also clears a rate
//! ```
//!
//! The burst is what may pass at once after a silence, as time at the limit's rate. KIND is
//! `single` or `dual` ([`Bucket`]). In parentheses is what holds if the clause is not named. The
//! text of a whole contract cannot clear a clause; `none` alone is the empty contract.
//!
//! Clauses come in any order, each at most once. `Display` writes them in the order of [`Clause`].
//! For a contract or a change that was parsed, its text parses back to the same value.
//!
//! Each value is checked by its type (the burst by the parser), then the clauses are checked
//! against each other by [`Contract::apply`]. So the clauses of a contract never contradict each
//! other. Both checks fail with [`ContractError`]. [`crate::admission`] checks what depends on
//! links and other targets, and [`crate::claims`] what depends on the user.

mod clauses;
mod delegate;
mod dscp;
mod error;
mod grammar;
mod receive_share;
mod schedule;
mod traffic_quota;
mod yielding;

use alloc::vec::Vec;

pub use clauses::{
    Bucket, CLASSES, Cell, Channel, IfName, MessageRate, Overload, Priority, ProcessorTime, Slice,
    Sustained, Weight,
};
pub use delegate::Delegate;
pub use dscp::{Dscp, NotADscp};
pub use error::{ContractError, Unsupported};
pub use receive_share::{NotAReceiveShare, ReceiveShare};
pub use schedule::Schedule;
pub use traffic_quota::{Counted, QuotaPeriod, TrafficQuota};
pub use yielding::Yield;

use crate::units::{Amount, Nanos, Rate};

/// The direction of packets, seen from the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// Packets that the target sends.
    Up,
    /// Packets that the target receives.
    Down,
}

impl Direction {
    /// Both directions, in the order of display.
    pub const ALL: [Direction; 2] = [Direction::Up, Direction::Down];

    /// The word of the direction in contracts: `up` or `down`.
    pub fn word(self) -> &'static str {
        match self {
            Direction::Up => "up",
            Direction::Down => "down",
        }
    }
}

/// The clauses that a target asks for. [`Contract::apply`] and parsing make a contract, starting
/// from the empty one, which asks for nothing. Its clauses never contradict each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Contract {
    up: Option<Rate>,
    down: Option<Rate>,
    both: Option<Rate>,
    min: Option<Rate>,
    min_down: Option<Rate>,
    on: Option<IfName>,
    weight: Option<Weight>,
    priority: Option<Priority>,
    burst: Option<Nanos>,
    dscp: Option<Dscp>,
    yields: Option<Yield>,
    delegate: Option<Delegate>,
    slice: Option<Slice>,
    cpu: Option<ProcessorTime>,
    cell: Option<Cell>,
    channel: Option<Channel>,
    receive: Option<ReceiveShare>,
    quota: Option<TrafficQuota>,
    when: Option<Schedule>,
}

impl Contract {
    /// The burst of a limit if the contract names none.
    pub const DEFAULT_BURST: Nanos = Nanos::from_millis(5);

    /// The limit on what is sent; `None` if there is none.
    pub fn up(&self) -> Option<Rate> {
        self.up
    }

    /// The limit on what is received; `None` if there is none.
    pub fn down(&self) -> Option<Rate> {
        self.down
    }

    /// The limit on the sum of both directions; `None` if there is none. A contract with it has
    /// neither `up` nor `down`.
    pub fn both(&self) -> Option<Rate> {
        self.both
    }

    /// The limit of one direction, without [`Contract::both`]; `None` if there is none.
    pub fn limit(&self, direction: Direction) -> Option<Rate> {
        match direction {
            Direction::Up => self.up,
            Direction::Down => self.down,
        }
    }

    /// The minimum named for one direction, without a slice; `None` if there is none.
    /// [`Contract::link_min`] includes the slice.
    pub fn min(&self, direction: Direction) -> Option<Rate> {
        match direction {
            Direction::Up => self.min,
            Direction::Down => self.min_down,
        }
    }

    /// The link of the guarantees; `None` if the contract names no link.
    pub fn on(&self) -> Option<&IfName> {
        self.on.as_ref()
    }

    /// The weight; `None` if the contract names none.
    pub fn weight(&self) -> Option<Weight> {
        self.weight
    }

    /// The priority; `None` if the contract names none.
    pub fn priority(&self) -> Option<Priority> {
        self.priority
    }

    /// The burst of the limits; `None` if the contract names none.
    pub fn burst(&self) -> Option<Nanos> {
        self.burst
    }

    /// The code point of the packets that the target sends; `None` if they keep theirs.
    pub fn dscp(&self) -> Option<Dscp> {
        self.dscp
    }

    /// The part of the driver's time for received packets that a flow has for certain; `None` if it
    /// has the same part as others.
    pub fn receive(&self) -> Option<ReceiveShare> {
        self.receive
    }

    /// The slice of a link's transmit time; `None` if the contract has none.
    pub fn slice(&self) -> Option<Slice> {
        self.slice
    }

    /// The processor time; `None` if the contract has none.
    pub fn cpu(&self) -> Option<ProcessorTime> {
        self.cpu
    }

    /// Whether the processor time is what the target's flows need ([`ProcessorTime::Auto`]).
    pub fn has_auto_time(&self) -> bool {
        matches!(self.cpu, Some(ProcessorTime::Auto { .. }))
    }

    /// The cell contract; `None` if the contract has none.
    pub fn cell(&self) -> Option<Cell> {
        self.cell
    }

    /// The real-time channel; `None` if the contract has none.
    pub fn channel(&self) -> Option<Channel> {
        self.channel
    }

    /// Whether the contract names no clause.
    pub fn is_empty(&self) -> bool {
        *self == Contract::default()
    }

    /// Whether the contract limits a direction or the sum of both.
    pub fn is_limited(&self) -> bool {
        self.up.is_some() || self.down.is_some() || self.both.is_some()
    }

    /// Whether the contract needs a reservation on a link: a minimum, a slice or a cell contract.
    pub fn is_guaranteed(&self) -> bool {
        Direction::ALL.iter().any(|one| self.reserves(*one))
    }

    /// Whether the contract needs a reservation on a link in one direction.
    pub fn reserves(&self, direction: Direction) -> bool {
        let sends = direction == Direction::Up && (self.slice.is_some() || self.cell.is_some());
        sends || self.min(direction).is_some()
    }

    /// The rate that a link of rate `link` reserves for the target in one direction: the minimum,
    /// or for sending the slice's share of the link, or the rate of the cell contract
    /// ([`Cell::rate`]). `None` if nothing is reserved. `Some(None)` if the slice's share is below
    /// [`Rate::MIN`].
    pub fn link_min(&self, direction: Direction, link: Rate) -> Option<Option<Rate>> {
        match (direction, self.slice, self.cell) {
            (Direction::Up, Some(slice), _) => Some(slice.of(link)),
            (Direction::Up, None, Some(cell)) => Some(Some(cell.rate())),
            _ => self.min(direction).map(Some),
        }
    }

    /// The highest rate that a link of rate `link` gives the target in one direction, apart from
    /// the limits over all links: a slice without `extra` limits sending to its share, and a cell
    /// contract to its peak rate. `None` if there is neither, or if the slice's share is below
    /// [`Rate::MIN`].
    pub fn link_max(&self, direction: Direction, link: Rate) -> Option<Rate> {
        match (direction, self.slice, self.cell) {
            (Direction::Up, Some(slice), _) if !slice.extra() => slice.of(link),
            (Direction::Up, None, Some(cell)) => Some(cell.pcr()),
            _ => None,
        }
    }

    /// The burst on a link, as time: the length of the slice if the contract has a slice and
    /// `direction` is up, else [`Contract::burst`] or [`Contract::DEFAULT_BURST`].
    pub fn link_burst(&self, direction: Direction) -> Nanos {
        match (direction, self.slice) {
            (Direction::Up, Some(slice)) => slice.slice(),
            _ => self.burst.unwrap_or(Contract::DEFAULT_BURST),
        }
    }

    /// The contract after a change.
    ///
    /// # Errors
    /// [`ContractError::Empty`] if the change names no clause. Another [`ContractError`] if clauses
    /// of the result would contradict each other.
    pub fn apply(&self, change: &Change) -> Result<Contract, ContractError> {
        if change.is_empty() {
            return Err(ContractError::Empty);
        }
        let changed = Contract {
            up: after(&self.up, &change.up),
            down: after(&self.down, &change.down),
            both: after(&self.both, &change.both),
            min: after(&self.min, &change.min),
            min_down: after(&self.min_down, &change.min_down),
            on: after(&self.on, &change.on),
            weight: after(&self.weight, &change.weight),
            priority: after(&self.priority, &change.priority),
            burst: after(&self.burst, &change.burst),
            dscp: after(&self.dscp, &change.dscp),
            yields: after(&self.yields, &change.yields),
            delegate: after(&self.delegate, &change.delegate),
            slice: after(&self.slice, &change.slice),
            cpu: after(&self.cpu, &change.cpu),
            cell: after(&self.cell, &change.cell),
            channel: after(&self.channel, &change.channel),
            receive: after(&self.receive, &change.receive),
            quota: after(&self.quota, &change.quota),
            when: after(&self.when, &change.when),
        };
        changed.consistent()?;
        Ok(changed)
    }

    /// The change that turns the empty contract into this one.
    pub fn as_change(&self) -> Change {
        fn set<T: Clone>(clause: &Option<T>) -> Option<Setting<T>> {
            clause.clone().map(Setting::Set)
        }
        Change {
            up: set(&self.up),
            down: set(&self.down),
            both: set(&self.both),
            min: set(&self.min),
            min_down: set(&self.min_down),
            on: set(&self.on),
            weight: set(&self.weight),
            priority: set(&self.priority),
            burst: set(&self.burst),
            dscp: set(&self.dscp),
            yields: set(&self.yields),
            delegate: set(&self.delegate),
            slice: set(&self.slice),
            cpu: set(&self.cpu),
            cell: set(&self.cell),
            channel: set(&self.channel),
            receive: set(&self.receive),
            quota: set(&self.quota),
            when: set(&self.when),
        }
    }

    /// The same contract without what needs a link: its minimums and their delegation, its slice or
    /// cell contract, and `yield`. This is the part of a degraded contract that stays in force.
    pub fn without_guarantees(&self) -> Contract {
        Contract {
            min: None,
            min_down: None,
            slice: None,
            cell: None,
            yields: None,
            delegate: None,
            ..self.clone()
        }
    }

    /// The same contract without a slice of a processor's time.
    pub fn without_processor_time(&self) -> Contract {
        Contract {
            cpu: None,
            ..self.clone()
        }
    }

    /// The same contract with `link` as the link of its guarantees.
    pub fn with_link(&self, link: IfName) -> Contract {
        Contract {
            on: Some(link),
            ..self.clone()
        }
    }

    /// Checks the clauses against each other.
    fn consistent(&self) -> Result<(), ContractError> {
        self.check_yield()?;
        self.check_scheduled()?;
        self.check_quota()?;
        if let Some(both) = self.both {
            for direction in Direction::ALL {
                if let Some(limit) = self.limit(direction) {
                    return Err(ContractError::BothAndOneWay {
                        both,
                        direction,
                        limit,
                    });
                }
            }
            let asked = [self.min, self.min_down];
            let asked: Amount = asked.iter().flatten().map(|rate| Amount::from(*rate)).sum();
            if asked > both.into() {
                return Err(ContractError::MinAboveMax {
                    clause: match (self.min, self.min_down) {
                        (Some(_), Some(_)) => "min plus min-down",
                        (Some(_), None) => "min",
                        (None, _) => "min-down",
                    },
                    min: asked,
                    limit: "both",
                    max: both,
                });
            }
        }
        let cell = self.cell.map(|cell| Amount::from(cell.rate()));
        let channel = self.channel.as_ref().map(Channel::rate);
        for (clause, rate) in [("the rate of cell", cell), ("the rate of channel", channel)] {
            for (limit, max) in [("up", self.up), ("both", self.both)] {
                if let (Some(min), Some(max)) = (rate, max)
                    && min > max.into()
                {
                    return Err(ContractError::MinAboveMax {
                        clause,
                        min,
                        limit,
                        max,
                    });
                }
            }
        }
        for (direction, clause) in [(Direction::Up, "min"), (Direction::Down, "min-down")] {
            if let (Some(min), Some(max)) = (self.min(direction), self.limit(direction))
                && min > max
            {
                return Err(ContractError::MinAboveMax {
                    clause,
                    min: min.into(),
                    limit: direction.word(),
                    max,
                });
            }
        }
        if self.slice.is_some() && self.min.is_some() {
            return Err(ContractError::SliceAndMin);
        }
        if self.cell.is_some() {
            let slice = self.slice.map(|_| Clause::Slice);
            if let Some(other) = slice.or(self.min.map(|_| Clause::Min)) {
                return Err(ContractError::CellAndShare(other));
            }
        }
        Ok(())
    }
}

/// The effect of a change on one clause.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Setting<T> {
    /// The clause has this value after the change.
    Set(T),
    /// The clause is removed: no limit, no guarantee, or the default value.
    Clear,
}

/// A partial contract. Clauses that are `None` stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Change {
    /// Limit on what is sent.
    pub up: Option<Setting<Rate>>,
    /// Limit on what is received.
    pub down: Option<Setting<Rate>>,
    /// Limit on the sum of both directions.
    pub both: Option<Setting<Rate>>,
    /// Guarantee for sending.
    pub min: Option<Setting<Rate>>,
    /// Guarantee for receiving.
    pub min_down: Option<Setting<Rate>>,
    /// The link of the guarantees.
    pub on: Option<Setting<IfName>>,
    /// Share of the left-over.
    pub weight: Option<Setting<Weight>>,
    /// Order in the left-over.
    pub priority: Option<Setting<Priority>>,
    /// The amount that may pass at once after a silence, as time at the limit's rate.
    pub burst: Option<Setting<Nanos>>,
    /// The code point of the packets that the target sends.
    pub dscp: Option<Setting<Dscp>>,
    /// Whether the target uses only bandwidth of links that no other traffic uses.
    pub yields: Option<Setting<Yield>>,
    /// The delegate: this user divides the minimums of the target among own programs inside it.
    pub delegate: Option<Setting<Delegate>>,
    /// A slice of a link's transmit time.
    pub slice: Option<Setting<Slice>>,
    /// A processor's time.
    pub cpu: Option<Setting<ProcessorTime>>,
    /// A cell contract.
    pub cell: Option<Setting<Cell>>,
    /// A real-time channel.
    pub channel: Option<Setting<Channel>>,
    /// A part of the driver's time for received packets.
    pub receive: Option<Setting<ReceiveShare>>,
    /// Bytes that may pass in a calendar period.
    pub quota: Option<Setting<TrafficQuota>>,
    /// The hours in which the claim counts.
    pub when: Option<Setting<Schedule>>,
}

impl Change {
    /// Whether the change names no clause.
    pub fn is_empty(&self) -> bool {
        *self == Change::default()
    }

    /// The clauses that the change names, in the order of [`Clause`].
    pub fn clauses(&self) -> Vec<Clause> {
        self.states().map(|(clause, _)| clause).collect()
    }

    /// The clauses that the change clears.
    pub fn cleared(&self) -> Vec<Clause> {
        self.states()
            .filter(|(_, cleared)| *cleared)
            .map(|(clause, _)| clause)
            .collect()
    }

    /// The part of the change that clears clauses.
    pub fn only_clears(&self) -> Change {
        fn keep<T>(setting: &Option<Setting<T>>) -> Option<Setting<T>> {
            matches!(setting, Some(Setting::Clear)).then_some(Setting::Clear)
        }
        Change {
            up: keep(&self.up),
            down: keep(&self.down),
            both: keep(&self.both),
            min: keep(&self.min),
            min_down: keep(&self.min_down),
            on: keep(&self.on),
            weight: keep(&self.weight),
            priority: keep(&self.priority),
            burst: keep(&self.burst),
            dscp: keep(&self.dscp),
            yields: keep(&self.yields),
            delegate: keep(&self.delegate),
            slice: keep(&self.slice),
            cpu: keep(&self.cpu),
            cell: keep(&self.cell),
            channel: keep(&self.channel),
            receive: keep(&self.receive),
            quota: keep(&self.quota),
            when: keep(&self.when),
        }
    }

    /// The first named clause, in the order of [`Clause`], that only root and the group `netnice`
    /// may use; `None` if there is none. A user without privilege may set and clear limits (`up`,
    /// `down`, `both`, `burst`), their hours (`when`), a quota, `yield`, and a code point if the
    /// policy allows that code point; and may reserve nothing.
    pub fn needs_privilege(&self) -> Option<Clause> {
        let mut clauses = self.clauses().into_iter();
        clauses.find(|clause| clause.needs_privilege())
    }

    /// Each named clause, with `true` if the change clears it.
    fn states(&self) -> impl Iterator<Item = (Clause, bool)> {
        fn state<T>(setting: &Option<Setting<T>>) -> Option<bool> {
            setting.as_ref().map(|s| matches!(s, Setting::Clear))
        }
        [
            (Clause::Up, state(&self.up)),
            (Clause::Down, state(&self.down)),
            (Clause::Both, state(&self.both)),
            (Clause::Min, state(&self.min)),
            (Clause::MinDown, state(&self.min_down)),
            (Clause::On, state(&self.on)),
            (Clause::Weight, state(&self.weight)),
            (Clause::Priority, state(&self.priority)),
            (Clause::Burst, state(&self.burst)),
            (Clause::Dscp, state(&self.dscp)),
            (Clause::Yield, state(&self.yields)),
            (Clause::Delegate, state(&self.delegate)),
            (Clause::Slice, state(&self.slice)),
            (Clause::Cpu, state(&self.cpu)),
            (Clause::Cell, state(&self.cell)),
            (Clause::Channel, state(&self.channel)),
            (Clause::Receive, state(&self.receive)),
            (Clause::Quota, state(&self.quota)),
            (Clause::When, state(&self.when)),
        ]
        .into_iter()
        .filter_map(|(clause, state)| Some((clause, state?)))
    }
}

/// The name of a clause. The order is that of `Display` of a contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Clause {
    /// `up`
    Up,
    /// `down`
    Down,
    /// `both`
    Both,
    /// `min`
    Min,
    /// `min-down`
    MinDown,
    /// `on`
    On,
    /// `weight`
    Weight,
    /// `priority`
    Priority,
    /// `burst`
    Burst,
    /// `dscp`
    Dscp,
    /// `yield`
    Yield,
    /// `delegate`
    Delegate,
    /// `slice`, with `extra`
    Slice,
    /// `cpu`, with `cpu-extra`
    Cpu,
    /// `cell`
    Cell,
    /// `channel`
    Channel,
    /// `receive`
    Receive,
    /// `quota`
    Quota,
    /// `when`
    When,
}

impl Clause {
    /// Whether only root and the group `netnice` may use the clause, outside budgets.
    fn needs_privilege(self) -> bool {
        use Clause::{Both, Burst, Down, Dscp, Quota, Up, When, Yield};
        !matches!(self, Up | Down | Both | Burst | Dscp | Yield | Quota | When)
    }
}

/// Checks that a target can have a contract. It can have everything but `channel`, `receive` and a
/// cell contract in a class.
///
/// # Errors
/// [`Unsupported`] names a clause that only flows of the direct path can have, or the part of `cpu`
/// that is beyond the kernel's limits ([`Slice::LEAST_CPU`], [`Slice::SHORTEST_CPU_PERIOD`],
/// [`Slice::LONGEST_CPU_PERIOD`]).
pub fn target_support(contract: &Contract) -> Result<(), Unsupported> {
    let clause = match contract {
        Contract {
            cell: Some(cell), ..
        } if cell.class().is_some() => return Err(Unsupported::Class),
        Contract {
            channel: Some(_), ..
        } => Clause::Channel,
        Contract {
            receive: Some(_), ..
        } => Clause::Receive,
        Contract {
            cpu: Some(ProcessorTime::Slice(cpu)),
            ..
        } => return check_processor_time(cpu),
        _ => return Ok(()),
    };
    Err(Unsupported::Clause(clause))
}

/// Checks that a slice of a processor's time is within the kernel's limits.
fn check_processor_time(cpu: &Slice) -> Result<(), Unsupported> {
    let (slice, period) = (cpu.slice(), cpu.period());
    match () {
        () if period < Slice::SHORTEST_CPU_PERIOD => Err(Unsupported::ShortPeriod(period)),
        () if period > Slice::LONGEST_CPU_PERIOD => Err(Unsupported::LongPeriod(period)),
        () if slice < Slice::LEAST_CPU => Err(Unsupported::ShortTime(slice)),
        () => Ok(()),
    }
}

/// The value of a clause after a change.
fn after<T: Clone>(now: &Option<T>, change: &Option<Setting<T>>) -> Option<T> {
    match change {
        None => now.clone(),
        Some(Setting::Clear) => None,
        Some(Setting::Set(value)) => Some(value.clone()),
    }
}

#[cfg(test)]
mod tests;

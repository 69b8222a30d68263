//! What is asked: the contract of a target, and changes to it.
//!
//! A [`Contract`] is what a target asks for at last, a [`Change`] what somebody typed: each
//! clause that it names is set or taken away, the others stay. Both have one grammar, which the
//! command line, the policy file, the state file and the socket speak alike:
//!
//! ```text
//! up R         limit what is sent              slice S/P [extra]   S of the link in every P
//! down R       limit what is received          cpu B/P [cpu-extra] B of a CPU in every P
//! both R       limit the sum of both           cell pcr=R,cdvt=T[,scr=R,mbs=SIZE[,bucket=B]]
//! min R        guarantee, sending              channel mmax=SIZE,rmax=N/s,bmax=N,deadline=T
//! min-down R   guarantee, receiving            weight 1..1000 (100)
//! on IFACE     the link of the guarantees      priority 0..7 (4), 0 is first
//! burst T      at the limit's rate (5ms)       none clears a clause, for a rate 0 too
//! ```
//!
//! Clauses come in any order, each at most once. `Display` writes them in the order above and
//! parses back to the same value. Sense is checked in two steps: a value by its type, clauses
//! against each other by [`Contract::apply`], so that no contract exists that contradicts
//! itself. What depends on a link, on other targets or on who asks is for [`crate::admission`]
//! and [`crate::claims`].

mod clauses;
mod grammar;

use alloc::string::String;
use alloc::vec::Vec;

pub use clauses::{Bucket, Cell, Channel, IfName, MessageRate, Priority, Slice, Sustained, Weight};

use crate::Quoted;
use crate::units::{Amount, Nanos, Rate, UnitError};

/// Which way packets go, seen from the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// What the target sends.
    Up,
    /// What the target receives.
    Down,
}

impl Direction {
    /// Both, in the order in which they are shown.
    pub const ALL: [Direction; 2] = [Direction::Up, Direction::Down];

    /// `up` or `down`.
    pub fn word(self) -> &'static str {
        match self {
            Direction::Up => "up",
            Direction::Down => "down",
        }
    }
}

/// What a target asks for. It never contradicts itself; it is made by [`Contract::apply`] or by
/// parsing, starting from the empty contract, which asks for nothing.
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
    slice: Option<Slice>,
    cpu: Option<Slice>,
    cell: Option<Cell>,
    channel: Option<Channel>,
}

impl Contract {
    /// The burst of a limit unless the contract names one.
    pub const DEFAULT_BURST: Nanos = Nanos::from_millis(5);

    /// The limit on what is sent.
    pub fn up(&self) -> Option<Rate> {
        self.up
    }

    /// The limit on what is received.
    pub fn down(&self) -> Option<Rate> {
        self.down
    }

    /// The limit on the sum of both directions; never together with `up` or `down`.
    pub fn both(&self) -> Option<Rate> {
        self.both
    }

    /// The limit named for one direction alone.
    pub fn limit(&self, direction: Direction) -> Option<Rate> {
        match direction {
            Direction::Up => self.up,
            Direction::Down => self.down,
        }
    }

    /// The guarantee named for one direction; a slice is not in it, see [`Contract::link_min`].
    pub fn min(&self, direction: Direction) -> Option<Rate> {
        match direction {
            Direction::Up => self.min,
            Direction::Down => self.min_down,
        }
    }

    /// The link of the guarantees, if it is named.
    pub fn on(&self) -> Option<&IfName> {
        self.on.as_ref()
    }

    /// The weight, if it is named.
    pub fn weight(&self) -> Option<Weight> {
        self.weight
    }

    /// The priority, if it is named.
    pub fn priority(&self) -> Option<Priority> {
        self.priority
    }

    /// The burst, if it is named.
    pub fn burst(&self) -> Option<Nanos> {
        self.burst
    }

    /// The slice of a link.
    pub fn slice(&self) -> Option<Slice> {
        self.slice
    }

    /// The slice of a CPU.
    pub fn cpu(&self) -> Option<Slice> {
        self.cpu
    }

    /// The cell contract.
    pub fn cell(&self) -> Option<Cell> {
        self.cell
    }

    /// The real-time channel.
    pub fn channel(&self) -> Option<Channel> {
        self.channel
    }

    /// Whether nothing is asked at all.
    pub fn is_empty(&self) -> bool {
        *self == Contract::default()
    }

    /// Whether any direction is limited.
    pub fn is_limited(&self) -> bool {
        self.up.is_some() || self.down.is_some() || self.both.is_some()
    }

    /// Whether a link must keep something for this target.
    pub fn is_guaranteed(&self) -> bool {
        self.min.is_some() || self.min_down.is_some() || self.slice.is_some()
    }

    /// What a link of this rate keeps for the target in one direction: the minimum, or for
    /// sending the slice's share of the link. `Some(None)` means a slice so small that its share
    /// is below the smallest rate.
    pub fn link_min(&self, direction: Direction, link: Rate) -> Option<Option<Rate>> {
        match (direction, self.slice) {
            (Direction::Up, Some(slice)) => Some(slice.of(link)),
            _ => self.min(direction).map(Some),
        }
    }

    /// The most that a link of this rate gives the target in one direction, beside its limits
    /// over all links: a slice without extra ends at its share.
    pub fn link_max(&self, direction: Direction, link: Rate) -> Option<Rate> {
        match (direction, self.slice) {
            (Direction::Up, Some(slice)) if !slice.extra() => slice.of(link),
            _ => None,
        }
    }

    /// The burst on a link: of a slice one slice, else as [`Contract::burst`] or the default.
    pub fn link_burst(&self, direction: Direction) -> Nanos {
        match (direction, self.slice) {
            (Direction::Up, Some(slice)) => slice.slice(),
            _ => self.burst.unwrap_or(Contract::DEFAULT_BURST),
        }
    }

    /// The contract after a change, if it makes sense.
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
            slice: after(&self.slice, &change.slice),
            cpu: after(&self.cpu, &change.cpu),
            cell: after(&self.cell, &change.cell),
            channel: after(&self.channel, &change.channel),
        };
        changed.consistent()?;
        Ok(changed)
    }

    /// The change that makes this contract out of the empty one.
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
            slice: set(&self.slice),
            cpu: set(&self.cpu),
            cell: set(&self.cell),
            channel: set(&self.channel),
        }
    }

    /// The same limits without anything that a link must keep: what is installed of a contract
    /// that is degraded.
    pub fn without_guarantees(&self) -> Contract {
        Contract {
            min: None,
            min_down: None,
            slice: None,
            ..self.clone()
        }
    }

    /// The same contract with its link named.
    pub fn with_link(&self, link: IfName) -> Contract {
        Contract {
            on: Some(link),
            ..self.clone()
        }
    }

    /// Whether the clauses agree with each other.
    fn consistent(&self) -> Result<(), ContractError> {
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
        let sustained = |cell: Cell| cell.sustained().map_or(cell.pcr(), |s| s.scr);
        let cell = self.cell.map(|cell| Amount::from(sustained(cell)));
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
        Ok(())
    }
}

/// What one clause of a change does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Setting<T> {
    /// The clause has this value from now on.
    Set(T),
    /// The clause is taken away: unlimited, not guaranteed, the default.
    Clear,
}

/// A partial contract: what somebody wants changed. Clauses that are `None` stay as they are.
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
    /// Share of what is left over.
    pub weight: Option<Setting<Weight>>,
    /// Order in what is left over.
    pub priority: Option<Setting<Priority>>,
    /// How much may pass at once after silence, as time at the limit's rate.
    pub burst: Option<Setting<Nanos>>,
    /// A slice of a link's transmit time.
    pub slice: Option<Setting<Slice>>,
    /// A slice of a CPU.
    pub cpu: Option<Setting<Slice>>,
    /// A cell contract.
    pub cell: Option<Setting<Cell>>,
    /// A real-time channel.
    pub channel: Option<Setting<Channel>>,
}

impl Change {
    /// Whether no clause is named.
    pub fn is_empty(&self) -> bool {
        *self == Change::default()
    }

    /// The clauses that the change names, in the order in which they are written.
    pub fn clauses(&self) -> Vec<Clause> {
        self.states().map(|(clause, _)| clause).collect()
    }

    /// The clauses that the change takes away.
    pub fn cleared(&self) -> Vec<Clause> {
        self.states()
            .filter(|(_, cleared)| *cleared)
            .map(|(clause, _)| clause)
            .collect()
    }

    /// The part of the change that takes clauses away.
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
            slice: keep(&self.slice),
            cpu: keep(&self.cpu),
            cell: keep(&self.cell),
            channel: keep(&self.channel),
        }
    }

    /// The first clause that only root and the group `netnice` may name, if there is one: a
    /// plain user limits, but does not reserve.
    pub fn needs_privilege(&self) -> Option<Clause> {
        self.clauses().into_iter().find(|clause| {
            !matches!(
                clause,
                Clause::Up | Clause::Down | Clause::Both | Clause::Burst
            )
        })
    }

    /// Each named clause, and whether it is taken away.
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
            (Clause::Slice, state(&self.slice)),
            (Clause::Cpu, state(&self.cpu)),
            (Clause::Cell, state(&self.cell)),
            (Clause::Channel, state(&self.channel)),
        ]
        .into_iter()
        .filter_map(|(clause, state)| Some((clause, state?)))
    }
}

/// The clauses of a contract, by name.
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
    /// `slice`, with `extra`
    Slice,
    /// `cpu`, with `cpu-extra`
    Cpu,
    /// `cell`
    Cell,
    /// `channel`
    Channel,
}

/// What the kernel path serves of a contract: everything but `cpu`, `cell` and `channel`.
pub fn kernel_path_support(contract: &Contract) -> Result<(), Unsupported> {
    let clause = match contract {
        Contract { cell: Some(_), .. } => Clause::Cell,
        Contract {
            channel: Some(_), ..
        } => Clause::Channel,
        Contract { cpu: Some(_), .. } => Clause::Cpu,
        _ => return Ok(()),
    };
    Err(Unsupported { clause })
}

/// A clause that parses but that nothing here can keep yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{clause} is not supported yet: needs the direct path")]
pub struct Unsupported {
    /// The clause.
    pub clause: Clause,
}

/// Why a text is no contract, or a change makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContractError {
    /// No clause at all.
    #[error("nothing is asked: name at least one of up, down, both, min, min-down, weight, …")]
    Empty,
    /// The text is too long to be a contract.
    #[error("the contract is {0} bytes long, more than {most}", most = grammar::LONGEST)]
    TooLong(usize),
    /// A word that begins no clause.
    #[error("{} is no clause: write up, down, both, min, min-down, on, weight, priority, burst, \
             slice, cpu, cell or channel", Quoted(.0))]
    UnknownWord(String),
    /// A clause that is named twice.
    #[error("{0} is named twice")]
    Duplicate(Clause),
    /// A clause at the end of the text, without its value.
    #[error("{0} needs a value")]
    NoValue(Clause),
    /// A quantity that cannot be read.
    #[error("{clause}: {error}")]
    Unit {
        /// The clause that it belongs to.
        clause: Clause,
        /// What is wrong with it.
        error: UnitError,
    },
    /// A whole number outside its range, or no number.
    #[error("{clause}: {} is not allowed: write {range}", Quoted(.input))]
    Number {
        /// The clause that it belongs to.
        clause: Clause,
        /// The text.
        input: String,
        /// What is allowed.
        range: &'static str,
    },
    /// Not of the form `S/P`.
    #[error("{clause}: {} is not a slice: write time/period, for example 2.4ms/50ms",
            Quoted(.input))]
    SliceForm {
        /// `slice` or `cpu`.
        clause: Clause,
        /// The text.
        input: String,
    },
    /// A part of `cell` or `channel` that is unknown, missing or named twice.
    #[error("{clause}: {fault} {}: write {form}", Quoted(.part))]
    Part {
        /// `cell` or `channel`.
        clause: Clause,
        /// The part.
        part: String,
        /// What is wrong with it.
        fault: &'static str,
        /// How the clause is written.
        form: &'static str,
    },
    /// `extra` without `slice`, or `cpu-extra` without `cpu`.
    #[error("{word} belongs to {clause}, which is not named: write {clause} 2ms/10ms {word}")]
    Extra {
        /// The word.
        word: &'static str,
        /// The clause that it belongs to.
        clause: Clause,
    },
    /// Not the name of an interface.
    #[error("{} is not the name of an interface: 1 to 15 bytes without / : or white space",
            Quoted(.0))]
    IfName(String),
    /// A whole contract in which a clause is cleared.
    #[error("{0} none: a whole contract names only what it asks for")]
    ClearInContract(Clause),
    /// A guarantee above a limit.
    #[error("{clause} {min} is above {limit} {max}: a guarantee cannot exceed its limit")]
    MinAboveMax {
        /// The guarantee's clause.
        clause: &'static str,
        /// The guarantee.
        min: Amount,
        /// The limit's clause.
        limit: &'static str,
        /// The limit.
        max: Rate,
    },
    /// One limit on the sum, and one on a direction.
    #[error("both {both} and {word} {limit} cannot hold together: clear one of them with \
             `both none` or `{word} none`", word = direction.word())]
    BothAndOneWay {
        /// The limit on the sum.
        both: Rate,
        /// The direction that has a limit of its own.
        direction: Direction,
        /// That limit.
        limit: Rate,
    },
    /// A slice and a minimum, both for sending.
    #[error(
        "slice and min both reserve the sending direction: clear one of them with \
             `slice none` or `min none`"
    )]
    SliceAndMin,
    /// A period of nothing.
    #[error("the period is zero: write time/period, for example 2.4ms/50ms")]
    ZeroPeriod,
    /// A period beyond the longest.
    #[error("the period {0} is longer than 10s")]
    LongPeriod(Nanos),
    /// A slice of nothing.
    #[error("the slice is zero: write none to take it away")]
    ZeroSlice,
    /// More than there is.
    #[error("the slice {slice} is longer than its period {period}")]
    SliceAbovePeriod {
        /// The slice.
        slice: Nanos,
        /// The period.
        period: Nanos,
    },
    /// A burst outside its range.
    #[error("the burst {0} is not allowed: write 1us to 10s, or none for the default of 5ms")]
    Burst(Nanos),
    /// A sustained rate above the peak.
    #[error("cell: pcr {pcr} is below scr {scr}: the peak rate is the higher one")]
    PeakBelowSustained {
        /// The peak rate.
        pcr: Rate,
        /// The sustained rate.
        scr: Rate,
    },
    /// A part that must be above zero.
    #[error("{0}: {1} is zero")]
    ZeroPart(&'static str, &'static str),
}

/// A clause after a change.
fn after<T: Clone>(now: &Option<T>, change: &Option<Setting<T>>) -> Option<T> {
    match change {
        None => now.clone(),
        Some(Setting::Clear) => None,
        Some(Setting::Set(value)) => Some(value.clone()),
    }
}

#[cfg(test)]
mod tests;

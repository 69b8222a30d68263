//! The errors of contracts: for a text that does not parse, for clauses that contradict each other,
//! and for a contract that a target cannot have. Each names the clause, the limit and the
//! value. No function fails.

use alloc::string::String;

use super::{Clause, Direction, Slice};
use crate::Escaped;
use crate::units::{Amount, Nanos, Rate, UnitError};

/// A clause, or a value of a clause, that parses and that a target cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    /// The clause is for flows of the direct path, or is not supported at all.
    #[error("{0} is not supported yet: needs the direct path")]
    Clause(Clause),
    /// The class of a cell contract is for flows of the direct path.
    #[error(
        "cell: class= is for flows of the direct path, which share the link's server; leave it out"
    )]
    Class,
    /// The period of `cpu` is shorter than the kernel's schedulers allow.
    #[error("cpu: the period {0} is shorter than {least}, the kernel's shortest",
            least = Slice::SHORTEST_CPU_PERIOD)]
    ShortPeriod(Nanos),
    /// The period of `cpu` is longer than the kernel's schedulers allow.
    #[error("cpu: the period {0} is longer than {most}, the kernel's longest",
            most = Slice::LONGEST_CPU_PERIOD)]
    LongPeriod(Nanos),
    /// The time of `cpu` is shorter than the kernel's schedulers can keep.
    #[error("cpu: {0} is less than {least}, the shortest time in a period that can be kept",
            least = Slice::LEAST_CPU)]
    ShortTime(Nanos),
}

/// The error of a text that is not a contract, or of a change that cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContractError {
    /// The text or the change names no clause.
    #[error("no clause is given: name at least one of up, down, both, min, min-down, weight, …")]
    Empty,
    /// The text is longer than a contract may be. Holds its length in bytes.
    #[error("the contract is {0} bytes long, more than {most}", most = super::grammar::MAX_LENGTH)]
    TooLong(usize),
    /// The word begins no clause.
    #[error("{} is not a clause: write up, down, both, min, min-down, on, weight, priority, burst, \
             dscp, yield, delegate, slice, cpu, cell, channel, receive, quota or \
             when", Escaped(.0))]
    UnknownWord(String),
    /// The clause is named twice.
    #[error("{0} is named twice")]
    Duplicate(Clause),
    /// The text ends after the clause's word, without a value.
    #[error("{0} needs a value")]
    NoValue(Clause),
    /// The quantity does not parse.
    #[error("{clause}: {error}")]
    Unit {
        /// The clause of the quantity.
        clause: Clause,
        /// The fault in the quantity.
        error: UnitError,
    },
    /// The text is not a whole number in the allowed range (for `rmax`: such a number and `/s`).
    #[error("{clause}: {} is not allowed: write {range}", Escaped(.input))]
    Number {
        /// The clause of the number.
        clause: Clause,
        /// The text in place of the number.
        input: String,
        /// The allowed values.
        range: &'static str,
    },
    /// The text is not of the form `S/P`.
    #[error("{clause}: {} is not a slice: write time/period, for example 2.4ms/50ms{}",
            Escaped(.input), if *.clause == Clause::Cpu { ", or auto" } else { "" })]
    SliceForm {
        /// `slice` or `cpu`.
        clause: Clause,
        /// The text in place of the slice.
        input: String,
    },
    /// A part of `cell`, `channel` or `quota` is unknown, missing, named twice or without a value,
    /// or its value is not one of the allowed words.
    #[error("{clause}: {fault} {}: write {form}", Escaped(.part))]
    Part {
        /// `cell`, `channel` or `quota`.
        clause: Clause,
        /// The name of the part, or the text in place of it.
        part: String,
        /// The fault in the part.
        fault: &'static str,
        /// The correct form of the clause.
        form: &'static str,
    },
    /// The text is not a schedule: the faulty part of it, and the fault.
    #[error("when: {} {fault}: write days, times and a time zone as far as needed, for example \
             mon-fri 08:00-18:00 Europe/Berlin", Escaped(.input))]
    Schedule {
        /// The faulty part.
        input: String,
        /// The fault in that part.
        fault: &'static str,
    },
    /// The contract has a schedule and a clause that cannot have one.
    #[error(
        "{0} cannot have a schedule: when is for up, down, both, burst, weight, priority and quota"
    )]
    Unschedulable(Clause),
    /// The schedule is all that is asked. Holds the schedule.
    #[error("when {0}: there is nothing to schedule; name a limit, a weight or a priority too")]
    NothingScheduled(String),
    /// The text is not of the form `SIZE/PERIOD`.
    #[error("quota: {} is not a quota: write an amount of data and a period, for example \
             20GB/month (or /hour, /day, /week)", Escaped(.0))]
    QuotaForm(String),
    /// The contract has a quota with `then` and this clause, which reserves what `then` would cut.
    #[error(
        "{0} cannot hold together with a quota that has then={1}: what is reserved would be cut to \
         that rate; leave out then, or clear {0}"
    )]
    QuotaThenAndGuarantee(Clause, Rate),
    /// The text has `extra` without `slice`, or `cpu-extra` without `cpu`.
    #[error("{word} belongs to {clause}, which is not named: write {clause} 2ms/10ms {word}")]
    Extra {
        /// `extra` or `cpu-extra`.
        word: &'static str,
        /// The clause that the word needs.
        clause: Clause,
    },
    /// The part of a channel's deadline for processing is not below the deadline, or too long.
    #[error(
        "channel: processing={processing} is not allowed with deadline={deadline}: it must be \
         below the deadline and at most {most}",
        most = super::Channel::MAX_PROCESSING
    )]
    Processing {
        /// The part for processing.
        processing: Nanos,
        /// The deadline.
        deadline: Nanos,
    },
    /// The text is not the name of an interface.
    #[error("{} is not the name of an interface: 1 to 15 bytes without / : or white space",
            Escaped(.0))]
    IfName(String),
    /// The text of a whole contract clears a clause.
    #[error("{0} none: a whole contract cannot clear a clause")]
    ClearInContract(Clause),
    /// A guarantee, or the long-term rate of a cell contract or a channel, is above a limit.
    #[error("{clause} {min} is above {limit} {max}: a guarantee cannot exceed its limit")]
    MinAboveMax {
        /// The clause of the guarantee.
        clause: &'static str,
        /// The guarantee.
        min: Amount,
        /// The clause of the limit.
        limit: &'static str,
        /// The limit.
        max: Rate,
    },
    /// The contract has a limit on the sum and a limit on one direction.
    #[error("both {both} and {word} {limit} cannot hold together: name only one of them, and set \
             the other to none if it is in force", word = direction.word())]
    BothAndOneWay {
        /// The limit on the sum.
        both: Rate,
        /// The direction that has its own limit.
        direction: Direction,
        /// The limit of that direction.
        limit: Rate,
    },
    /// The contract has a slice and a minimum, both for sending.
    #[error(
        "slice and min both reserve the sending direction: name only one of them, and set the other \
             to none if it is in force"
    )]
    SliceAndMin,
    /// The contract has a cell contract and this clause, both for sending.
    #[error(
        "cell and {0} both reserve the sending direction: name only one of them, and set the other \
             to none if it is in force"
    )]
    CellAndShare(Clause),
    /// The contract has `yield` and this clause, which asks for a part of a link.
    #[error(
        "yield and {0} cannot hold together: what yields has no part of a link of its own; clear \
             one of them with `yield none` or `{0} none`"
    )]
    YieldAndShare(Clause),
    /// The contract delegates its minimums and has none.
    #[error(
        "delegate needs a minimum to divide: name min or min-down too, or clear it with \
         `delegate none`"
    )]
    NothingDelegated,
    /// The period is zero.
    #[error("the period is zero: write time/period, for example 2.4ms/50ms")]
    ZeroPeriod,
    /// The period is longer than 10 s.
    #[error("the period {0} is longer than 10s")]
    LongPeriod(Nanos),
    /// The slice is zero.
    #[error("the slice is zero: write none to clear it")]
    ZeroSlice,
    /// The slice is longer than its period.
    #[error("the slice {slice} is longer than its period {period}")]
    SliceAbovePeriod {
        /// The slice.
        slice: Nanos,
        /// The period.
        period: Nanos,
    },
    /// The burst is outside 1 µs to 10 s.
    #[error("the burst {0} is not allowed: write 1us to 10s, or none for the default of 5ms")]
    Burst(Nanos),
    /// The sustained rate is above the peak rate.
    #[error("cell: pcr {pcr} is below scr {scr}: the peak rate is the higher one")]
    PeakBelowSustained {
        /// The peak rate.
        pcr: Rate,
        /// The sustained rate.
        scr: Rate,
    },
    /// A part that must be above zero is zero. Holds the clause and the part.
    #[error("{0}: {1} is zero")]
    ZeroPart(&'static str, &'static str),
}

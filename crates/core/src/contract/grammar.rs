//! Parses and prints contracts and changes. [`super`] shows the grammar.
//!
//! Text comes in, and a [`Change`] or a [`Contract`] goes out. Parsing fails with the
//! [`ContractError`] of one fault in the text, or because the text has more than 4096 bytes.
//! `Display` of a parsed value prints text that parses back to the same value.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use super::{
    Bucket, Cell, Change, Channel, Clause, Contract, ContractError, Delegate, Dscp, IfName,
    MessageRate, Overload, Priority, ProcessorTime, ReceiveShare, Schedule, Setting, Slice,
    Sustained, TrafficQuota, Weight, Yield, traffic_quota,
};
use crate::units::{Bytes, Nanos, Rate, UnitError};

impl FromStr for Change {
    type Err = ContractError;

    fn from_str(text: &str) -> Result<Change, ContractError> {
        if text.len() > MAX_LENGTH {
            return Err(ContractError::TooLong(text.len()));
        }
        let mut clauses = Vec::new();
        let mut extra = false;
        let mut cpu_extra = false;
        let mut words = text.split_ascii_whitespace();
        while let Some(word) = words.next() {
            match word {
                "extra" if !core::mem::replace(&mut extra, true) => continue,
                "extra" => return Err(ContractError::Duplicate(Clause::Slice)),
                "cpu-extra" if !core::mem::replace(&mut cpu_extra, true) => continue,
                "cpu-extra" => return Err(ContractError::Duplicate(Clause::Cpu)),
                _ => {}
            }
            let clause = Clause::from_word(word)
                .ok_or_else(|| ContractError::UnknownWord(word.to_string()))?;
            let value = words.next().ok_or(ContractError::NoValue(clause))?;
            clauses.push((clause, value));
        }
        Change::from_clauses(clauses, extra, cpu_extra)
    }
}

impl Change {
    /// The change that names `clauses`, each with the text of its value. `extra` and `cpu_extra`
    /// modify `slice` and `cpu`. The command line uses it for its options, so that a value cannot
    /// contain another clause.
    ///
    /// # Errors
    /// [`ContractError`] if a clause is named twice, if a value does not parse, if `extra` or
    /// `cpu_extra` is set without its slice, if no clause is named, or if the values contradict
    /// each other.
    pub fn from_clauses<'t>(
        clauses: impl IntoIterator<Item = (Clause, &'t str)>,
        extra: bool,
        cpu_extra: bool,
    ) -> Result<Change, ContractError> {
        let mut change = Change::default();
        let mut seen: Vec<Clause> = Vec::new();
        for (clause, value) in clauses {
            if seen.contains(&clause) {
                return Err(ContractError::Duplicate(clause));
            }
            seen.push(clause);
            change.read(clause, value)?;
        }
        if extra {
            change.slice = Some(match change.slice {
                Some(Setting::Set(slice)) => Setting::Set(with_extra(slice)?),
                _ => return Err(without("extra", Clause::Slice)),
            });
        }
        if cpu_extra {
            change.cpu = Some(match change.cpu {
                Some(Setting::Set(ProcessorTime::Slice(slice))) => {
                    Setting::Set(ProcessorTime::Slice(with_extra(slice)?))
                }
                Some(Setting::Set(ProcessorTime::Auto { .. })) => {
                    Setting::Set(ProcessorTime::Auto { extra: true })
                }
                _ => return Err(without("cpu-extra", Clause::Cpu)),
            });
        }
        // The clauses that a change sets must be consistent by themselves.
        Contract::default().apply(&change)?;
        Ok(change)
    }
}

impl FromStr for Contract {
    type Err = ContractError;

    /// Parses a whole contract; `none` is the empty contract. A clause that is cleared (`none`, or
    /// `0` for a rate) is an error.
    fn from_str(text: &str) -> Result<Contract, ContractError> {
        if text.trim() == "none" {
            return Ok(Contract::default());
        }
        let change: Change = text.parse()?;
        match change.cleared().first() {
            Some(clause) => Err(ContractError::ClearInContract(*clause)),
            None => Contract::default().apply(&change),
        }
    }
}

impl Change {
    /// Parses the value of one clause and stores it.
    fn read(&mut self, clause: Clause, value: &str) -> Result<(), ContractError> {
        match clause {
            Clause::Up => self.up = Some(rate(clause, value)?),
            Clause::Down => self.down = Some(rate(clause, value)?),
            Clause::Both => self.both = Some(rate(clause, value)?),
            Clause::Min => self.min = Some(rate(clause, value)?),
            Clause::MinDown => self.min_down = Some(rate(clause, value)?),
            Clause::On => self.on = Some(setting(value, IfName::from_str)?),
            Clause::Weight => {
                let range = "a whole number from 1 to 1000, or none";
                let read = |v: &str| v.parse().ok().and_then(Weight::new);
                self.weight = Some(setting(value, |v| {
                    read(v).ok_or_else(|| number(clause, v, range))
                })?);
            }
            Clause::Priority => {
                let range = "a whole number from 0 (first) to 7, or none";
                let read = |v: &str| v.parse().ok().and_then(Priority::new);
                self.priority = Some(setting(value, |v| {
                    read(v).ok_or_else(|| number(clause, v, range))
                })?);
            }
            Clause::Burst => self.burst = Some(setting(value, burst)?),
            Clause::Dscp => {
                let range = "a name such as EF, AF21, CS1 or LE, a number from 0 to 63, or none";
                self.dscp = Some(setting(value, |v| {
                    v.parse().map_err(|_| number(clause, v, range))
                })?);
            }
            Clause::Yield => {
                self.yields = Some(setting(value, |v| match v {
                    Yield::TEXT => Ok(Yield),
                    _ => Err(number(clause, v, "on or none")),
                })?);
            }
            Clause::Delegate => {
                let range = "the name or number of a user, or none";
                self.delegate = Some(setting(value, |v| {
                    v.parse().map_err(|()| number(clause, v, range))
                })?);
            }
            Clause::Slice => self.slice = Some(setting(value, |v| slice(clause, v))?),
            Clause::Cpu => self.cpu = Some(setting(value, processor_time)?),
            Clause::Cell => self.cell = Some(setting(value, cell)?),
            Clause::Channel => self.channel = Some(setting(value, channel)?),
            Clause::Receive => {
                let range = "a percentage from 0.01% to 100%, or none";
                self.receive = Some(setting(value, |v| {
                    v.parse().map_err(|_| number(clause, v, range))
                })?);
            }
            Clause::Quota => self.quota = Some(setting(value, traffic_quota::read)?),
            Clause::When => self.when = Some(setting(value, Schedule::from_str)?),
        }
        Ok(())
    }
}

impl Clause {
    /// The keyword of the clause in contract text, for example `min-down`.
    pub fn word(self) -> &'static str {
        let found = WORDS.iter().find(|(clause, _)| *clause == self);
        found.map_or("", |(_, word)| word)
    }

    /// The clause with this keyword; `None` if there is none.
    pub fn from_word(word: &str) -> Option<Clause> {
        let found = WORDS.iter().find(|(_, known)| *known == word);
        found.map(|(clause, _)| *clause)
    }
}

impl fmt::Display for Clause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl fmt::Display for Contract {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_empty() {
            true => f.write_str("none"),
            false => self.as_change().fmt(f),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut clauses: Vec<String> = Vec::new();
        let mut push = |clause: Clause, value: Option<String>| {
            clauses.extend(value.map(|value| alloc::format!("{clause} {value}")));
        };
        push(Clause::Up, text(&self.up, |r| r.compact()));
        push(Clause::Down, text(&self.down, |r| r.compact()));
        push(Clause::Both, text(&self.both, |r| r.compact()));
        push(Clause::Min, text(&self.min, |r| r.compact()));
        push(Clause::MinDown, text(&self.min_down, |r| r.compact()));
        push(Clause::On, text(&self.on, IfName::to_string));
        push(Clause::Weight, text(&self.weight, |w| w.get().to_string()));
        push(
            Clause::Priority,
            text(&self.priority, |p| p.get().to_string()),
        );
        push(Clause::Burst, text(&self.burst, Nanos::to_string));
        push(Clause::Dscp, text(&self.dscp, Dscp::to_string));
        push(
            Clause::Yield,
            text(&self.yields, |_| Yield::TEXT.to_string()),
        );
        push(Clause::Delegate, text(&self.delegate, Delegate::to_string));
        push(Clause::Slice, text(&self.slice, |s| slice_text(s, "extra")));
        push(Clause::Cpu, text(&self.cpu, processor_time_text));
        push(Clause::Cell, text(&self.cell, Cell::to_string));
        push(Clause::Channel, text(&self.channel, Channel::to_string));
        push(
            Clause::Receive,
            text(&self.receive, ReceiveShare::to_string),
        );
        push(Clause::Quota, text(&self.quota, TrafficQuota::to_string));
        push(Clause::When, text(&self.when, Schedule::to_string));
        f.write_str(&clauses.join(" "))
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pcr={},cdvt={}", self.pcr().compact(), self.cdvt())?;
        if let Some(Sustained { scr, mbs, bucket }) = self.sustained() {
            let bucket = match bucket {
                Bucket::Single => "single",
                Bucket::Dual => "dual",
            };
            write!(f, ",scr={},mbs={mbs},bucket={bucket}", scr.compact())?;
        }
        match self.class() {
            Some(class) => write!(f, ",class={class}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "mmax={},rmax={},bmax={},deadline={}",
            self.mmax(),
            self.rmax(),
            self.bmax(),
            self.deadline()
        )?;
        if self.processing() > Nanos(0) {
            write!(f, ",processing={}", self.processing())?;
        }
        if self.overload() != Overload::default() {
            write!(f, ",overload={}", self.overload().word())?;
        }
        Ok(())
    }
}

/// The parts of a clause of the form `key=value,key=value`. `take` and `need` remove a part from
/// the list.
pub(super) struct KeyValues<'a> {
    clause: Clause,
    form: &'static str,
    rest: Vec<(&'a str, &'a str)>,
}

impl<'a> KeyValues<'a> {
    /// Splits the value `text` of `clause` into its parts. `form` is the form of a valid value, for
    /// messages. Fails if a part has no value or occurs twice.
    pub(super) fn read(
        clause: Clause,
        form: &'static str,
        text: &'a str,
    ) -> Result<Self, ContractError> {
        let mut parts = KeyValues {
            clause,
            form,
            rest: Vec::new(),
        };
        for part in text.split(',') {
            let Some((key, value)) = part.split_once('=') else {
                return Err(parts.fault(part, "no value in"));
            };
            if parts.rest.iter().any(|(known, _)| *known == key) {
                return Err(parts.fault(key, "twice"));
            }
            parts.rest.push((key, value));
        }
        Ok(parts)
    }

    /// Removes the part `key` and returns its value; `None` if there is no such part.
    pub(super) fn take(&mut self, key: &str) -> Option<&'a str> {
        let at = self.rest.iter().position(|(known, _)| *known == key)?;
        Some(self.rest.swap_remove(at).1)
    }

    fn need(&mut self, key: &str) -> Result<&'a str, ContractError> {
        self.take(key).ok_or_else(|| self.fault(key, "missing"))
    }

    fn quantity<T: FromStr<Err = UnitError>>(&mut self, key: &str) -> Result<T, ContractError> {
        let value = self.need(key)?;
        let clause = self.clause;
        value
            .parse()
            .map_err(|error| ContractError::Unit { clause, error })
    }

    /// Fails if a part is left, because the clause has no such part.
    pub(super) fn end(self) -> Result<(), ContractError> {
        match self.rest.first() {
            Some((key, _)) => Err(self.fault(key, "unknown part")),
            None => Ok(()),
        }
    }

    /// The error that names `part` and its fault.
    pub(super) fn fault(&self, part: &str, fault: &'static str) -> ContractError {
        ContractError::Part {
            clause: self.clause,
            part: part.to_string(),
            fault,
            form: self.form,
        }
    }
}

fn cell(value: &str) -> Result<Cell, ContractError> {
    let mut parts = KeyValues::read(Clause::Cell, CELL_FORM, value)?;
    let pcr = parts.quantity("pcr")?;
    let cdvt = parts.quantity("cdvt")?;
    let sustained = match parts.take("scr") {
        None => None,
        Some(scr) => Some(Sustained {
            scr: scr.parse().map_err(|error| ContractError::Unit {
                clause: Clause::Cell,
                error,
            })?,
            mbs: parts.quantity("mbs")?,
            bucket: match parts.take("bucket") {
                None | Some("single") => Bucket::Single,
                Some("dual") => Bucket::Dual,
                Some(other) => return Err(parts.fault(other, "unknown bucket")),
            },
        }),
    };
    let class = parts.take("class");
    parts.end()?;
    let cell = Cell::new(pcr, cdvt, sustained)?;
    let Some(class) = class else { return Ok(cell) };
    let number_of = class.parse().ok().and_then(|class| cell.in_class(class));
    number_of.ok_or_else(|| number(Clause::Cell, class, "class as a number from 0 (first) to 7"))
}

fn channel(value: &str) -> Result<Channel, ContractError> {
    let mut parts = KeyValues::read(Clause::Channel, CHANNEL_FORM, value)?;
    let mmax: Bytes = parts.quantity("mmax")?;
    let rmax = parts.need("rmax")?;
    let rmax = rmax
        .strip_suffix("/s")
        .and_then(|n| n.parse().ok())
        .and_then(MessageRate::new)
        .ok_or_else(|| number(Clause::Channel, rmax, "rmax as 1/s to 1000000/s"))?;
    let bmax = parts.need("bmax")?;
    let bmax = bmax
        .parse()
        .map_err(|_| number(Clause::Channel, bmax, "bmax as a whole number above 0"))?;
    let deadline = parts.quantity("deadline")?;
    let processing = match parts.take("processing") {
        None => Nanos(0),
        Some(processing) => processing.parse().map_err(|error| ContractError::Unit {
            clause: Clause::Channel,
            error,
        })?,
    };
    let overload = match parts.take("overload") {
        None => Overload::default(),
        Some(word) => {
            Overload::from_word(word).ok_or_else(|| parts.fault(word, "unknown overload policy"))?
        }
    };
    parts.end()?;
    let channel = Channel::new(mmax, rmax, bmax, deadline)?.with_processing(processing)?;
    Ok(channel.with_overload(overload))
}

/// Parses a value, or `none`.
fn setting<T>(
    value: &str,
    read: impl FnOnce(&str) -> Result<T, ContractError>,
) -> Result<Setting<T>, ContractError> {
    match value {
        "none" => Ok(Setting::Clear),
        _ => read(value).map(Setting::Set),
    }
}

/// Parses a rate, or `none`, or `0` with the same meaning.
fn rate(clause: Clause, value: &str) -> Result<Setting<Rate>, ContractError> {
    match value {
        "none" | "0" => Ok(Setting::Clear),
        _ => quantity(clause, value).map(Setting::Set),
    }
}

fn burst(value: &str) -> Result<Nanos, ContractError> {
    let burst = quantity(Clause::Burst, value)?;
    match (SHORTEST_BURST..=LONGEST_BURST).contains(&burst) {
        true => Ok(burst),
        false => Err(ContractError::Burst(burst)),
    }
}

fn slice(clause: Clause, value: &str) -> Result<Slice, ContractError> {
    let Some((slice, period)) = value.split_once('/') else {
        return Err(ContractError::SliceForm {
            clause,
            input: value.to_string(),
        });
    };
    Slice::new(quantity(clause, slice)?, quantity(clause, period)?, false)
}

/// The slice with extra.
fn with_extra(slice: Slice) -> Result<Slice, ContractError> {
    Slice::new(slice.slice(), slice.period(), true)
}

/// `word` is named without its clause.
fn without(word: &'static str, clause: Clause) -> ContractError {
    ContractError::Extra { word, clause }
}

fn processor_time(value: &str) -> Result<ProcessorTime, ContractError> {
    match value {
        ProcessorTime::AUTO => Ok(ProcessorTime::Auto { extra: false }),
        _ => slice(Clause::Cpu, value).map(ProcessorTime::Slice),
    }
}

fn quantity<T: FromStr<Err = UnitError>>(clause: Clause, value: &str) -> Result<T, ContractError> {
    value
        .parse()
        .map_err(|error| ContractError::Unit { clause, error })
}

fn number(clause: Clause, input: &str, range: &'static str) -> ContractError {
    ContractError::Number {
        clause,
        input: input.to_string(),
        range,
    }
}

fn text<T>(setting: &Option<Setting<T>>, write: impl Fn(&T) -> String) -> Option<String> {
    match setting.as_ref()? {
        Setting::Clear => Some(String::from("none")),
        Setting::Set(value) => Some(write(value)),
    }
}

fn slice_text(slice: &Slice, extra: &str) -> String {
    let text = alloc::format!("{}/{}", slice.slice(), slice.period());
    match slice.extra() {
        true => alloc::format!("{text} {extra}"),
        false => text,
    }
}

fn processor_time_text(time: &ProcessorTime) -> String {
    match time {
        ProcessorTime::Slice(slice) => slice_text(slice, "cpu-extra"),
        ProcessorTime::Auto { extra: false } => ProcessorTime::AUTO.to_string(),
        ProcessorTime::Auto { extra: true } => alloc::format!("{} cpu-extra", ProcessorTime::AUTO),
    }
}

/// The longest text that is parsed, in bytes. Valid contracts are far shorter. The limit bounds the
/// work on text from a socket.
pub(super) const MAX_LENGTH: usize = 4096;

/// At rates up to 10 Gbit/s a shorter burst is less than one packet of 1,250 bytes.
const SHORTEST_BURST: Nanos = Nanos::from_micros(1);

/// The kernel's token buckets count time in 32 bits of 64 ns (274 s), and HTB's own buffer
/// saturates at 60 s. The longest allowed burst is far shorter: a limit does not slow down a
/// transfer that is smaller than its burst.
const LONGEST_BURST: Nanos = Nanos::from_secs(10);

const CELL_FORM: &str = "pcr=10mbit,cdvt=100us[,scr=2mbit,mbs=64KiB,bucket=single|dual][,class=0]";
const CHANNEL_FORM: &str = "mmax=60KiB,rmax=30/s,bmax=4,deadline=20ms\
                            [,processing=2ms][,overload=block|decay|space|drop|best-effort]";

const WORDS: [(Clause, &str); 19] = [
    (Clause::Up, "up"),
    (Clause::Down, "down"),
    (Clause::Both, "both"),
    (Clause::Min, "min"),
    (Clause::MinDown, "min-down"),
    (Clause::On, "on"),
    (Clause::Weight, "weight"),
    (Clause::Priority, "priority"),
    (Clause::Burst, "burst"),
    (Clause::Dscp, "dscp"),
    (Clause::Yield, "yield"),
    (Clause::Delegate, "delegate"),
    (Clause::Slice, "slice"),
    (Clause::Cpu, "cpu"),
    (Clause::Cell, "cell"),
    (Clause::Channel, "channel"),
    (Clause::Receive, "receive"),
    (Clause::Quota, "quota"),
    (Clause::When, "when"),
];

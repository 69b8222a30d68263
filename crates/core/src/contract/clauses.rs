//! The types of the values of a contract's clauses. Their constructors check the range of a value,
//! or its parts against each other. A number outside its range gives `None`. An invalid interface
//! name, and parts that do not fit together, fail with [`ContractError`]. The fields are private,
//! so each value is valid. Only [`Sustained`] has public fields, which [`Cell::new`] checks.

use alloc::string::{String, ToString};
use core::fmt;
use core::str::FromStr;

use super::ContractError;
use crate::units::{Amount, Bytes, Nanos, Rate};

/// The name of a network interface, by the kernel's rules (`dev_valid_name` in net/core/dev.c): 1
/// to 15 bytes, not `.` or `..`, no `/`, no `:`, no white space. Two more things are refused:
/// control characters, and the name `none`, because `on none` in contract text clears the clause.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IfName(String);

impl IfName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for IfName {
    type Err = ContractError;

    fn from_str(text: &str) -> Result<IfName, ContractError> {
        let bad = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
        let good = (1..=LONGEST_IFNAME).contains(&text.len())
            && !matches!(text, "." | ".." | "none")
            && !text.contains(bad);
        match good {
            true => Ok(IfName(text.to_string())),
            false => Err(ContractError::IfName(text.to_string())),
        }
    }
}

impl fmt::Display for IfName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Share of a link's left-over, relative to the weights of other targets: 1 to 1000, default 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight(u16);

impl Weight {
    /// The weight, or `None` outside 1 to 1000.
    pub fn new(weight: u16) -> Option<Weight> {
        (1..=1000).contains(&weight).then_some(Weight(weight))
    }

    /// The weight as a number, 1 to 1000.
    pub fn get(self) -> u16 {
        self.0
    }
}

impl Default for Weight {
    fn default() -> Weight {
        Weight(100)
    }
}

/// Order in the left-over: 0 (first) to 7, default 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(u8);

impl Priority {
    /// The priority, or `None` above 7.
    pub fn new(priority: u8) -> Option<Priority> {
        (0..=7).contains(&priority).then_some(Priority(priority))
    }

    /// The priority as a number, 0 (first) to 7.
    pub fn get(self) -> u8 {
        self.0
    }
}

impl Default for Priority {
    fn default() -> Priority {
        Priority(4)
    }
}

/// A length of time in every period, of a link's transmit time or of a CPU (papers NTCP, VERT). A
/// period has at most 10 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slice {
    slice: Nanos,
    period: Nanos,
    extra: bool,
}

impl Slice {
    /// The shortest time of a processor that a target can have in a period: 10 µs. The kernel's
    /// shortest budget is about 1 µs (sched(7)), and a switch to a program takes several.
    pub const LEAST_CPU: Nanos = Nanos::from_micros(10);

    /// The shortest period of a processor's time: 100 µs, the kernel's default for SCHED_DEADLINE
    /// (`sched_deadline_period_min_us`).
    pub const SHORTEST_CPU_PERIOD: Nanos = Nanos::from_micros(100);

    /// The longest period of a processor's time: 1 s, the kernel's longest for control groups
    /// (`cpu.max`).
    pub const LONGEST_CPU_PERIOD: Nanos = Nanos::from_secs(1);

    /// A slice of `slice` in every `period`. With `extra` it includes a share of the left-over.
    ///
    /// # Errors
    /// [`ContractError`] if `slice` is zero or longer than `period`, or if `period` is zero or
    /// longer than 10 s.
    pub fn new(slice: Nanos, period: Nanos, extra: bool) -> Result<Slice, ContractError> {
        match () {
            () if period.0 == 0 => Err(ContractError::ZeroPeriod),
            () if period > LONGEST_PERIOD => Err(ContractError::LongPeriod(period)),
            () if slice.0 == 0 => Err(ContractError::ZeroSlice),
            () if slice > period => Err(ContractError::SliceAbovePeriod { slice, period }),
            () => Ok(Slice {
                slice,
                period,
                extra,
            }),
        }
    }

    /// The reserved time in each period.
    pub fn slice(&self) -> Nanos {
        self.slice
    }

    /// The period, in which the target has the slice once.
    pub fn period(&self) -> Nanos {
        self.period
    }

    /// Whether the target also gets a share of the left-over.
    pub fn extra(&self) -> bool {
        self.extra
    }

    /// Whether the share, `slice / period`, is larger than that of another slice.
    pub fn is_larger_than(&self, other: &Slice) -> bool {
        let cross = |a: &Slice, b: &Slice| u128::from(a.slice.0) * u128::from(b.period.0);
        cross(self, other) > cross(other, self)
    }

    /// The slice's share of a link's rate, `link * slice / period`, rounded down. `None` if the
    /// share is below [`Rate::MIN`].
    pub fn of(&self, link: Rate) -> Option<Rate> {
        link.portion(self.slice.0, self.period.0)
    }
}

/// Processor time that a contract asks for: the clause `cpu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProcessorTime {
    /// A time in every period.
    Slice(Slice),
    /// What the target's direct flows need to send what is promised to them.
    Auto {
        /// Whether the target also gets a share of the left-over.
        extra: bool,
    },
}

impl ProcessorTime {
    /// The value of the clause that stands for [`ProcessorTime::Auto`].
    pub const AUTO: &str = "auto";

    /// The time in every period, if the contract names it.
    pub fn slice(&self) -> Option<Slice> {
        match self {
            ProcessorTime::Slice(slice) => Some(*slice),
            ProcessorTime::Auto { .. } => None,
        }
    }

    /// Whether the target also gets a share of the left-over.
    pub fn extra(&self) -> bool {
        match self {
            ProcessorTime::Slice(slice) => slice.extra(),
            ProcessorTime::Auto { extra } => *extra,
        }
    }
}

/// The rule by which a cell contract with a sustained rate spends the tokens of its bucket (paper
/// CELL). A full bucket permits a burst of [`Sustained::mbs`] at the peak rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Bucket {
    /// Packets leave at the peak rate while tokens last, and then at the sustained rate.
    #[default]
    Single,
    /// Packets leave at the peak rate until the bucket has too few tokens for the next packet. Then
    /// no packet leaves until the bucket is full again.
    Dual,
}

/// The sustained rate of a cell contract, with its burst. [`Cell::new`] checks the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sustained {
    /// SCR, the long-term rate: at most the peak rate.
    pub scr: Rate,
    /// MBS, the largest burst at the peak rate: above zero.
    pub mbs: Bytes,
    /// The spending rule of the bucket.
    pub bucket: Bucket,
}

/// A traffic contract that a policer can check (paper CELL): a peak rate with a tolerance, and
/// optionally a sustained rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cell {
    pcr: Rate,
    cdvt: Nanos,
    sustained: Option<Sustained>,
    class: Option<u8>,
}

impl Cell {
    /// A cell contract with a peak rate `pcr`, a tolerance `cdvt`, and optionally a sustained rate.
    ///
    /// # Errors
    /// [`ContractError::PeakBelowSustained`] if the sustained rate is above the peak rate.
    /// [`ContractError::ZeroPart`] if the burst is zero.
    pub fn new(
        pcr: Rate,
        cdvt: Nanos,
        sustained: Option<Sustained>,
    ) -> Result<Cell, ContractError> {
        match sustained {
            Some(s) if s.scr > pcr => Err(ContractError::PeakBelowSustained { pcr, scr: s.scr }),
            Some(s) if s.mbs.0 == 0 => Err(ContractError::ZeroPart("cell", "mbs")),
            _ => Ok(Cell {
                pcr,
                cdvt,
                sustained,
                class: None,
            }),
        }
    }

    /// The same contract in a class of the link's server (paper CELL, section 4.5), 0 to 7. `None`
    /// above 7.
    pub fn in_class(self, class: u8) -> Option<Cell> {
        (usize::from(class) < CLASSES).then_some(Cell {
            class: Some(class),
            ..self
        })
    }

    /// The class of the link's server whose members share its part of the link; `None` if the
    /// contract is promised by itself.
    pub fn class(&self) -> Option<u8> {
        self.class
    }

    /// The long-term rate: the sustained rate, else the peak rate.
    pub fn rate(&self) -> Rate {
        self.sustained.map_or(self.pcr, |sustained| sustained.scr)
    }

    /// PCR, the peak rate.
    pub fn pcr(&self) -> Rate {
        self.pcr
    }

    /// CDVT, the tolerance: the longest time by which a packet may come before its theoretical
    /// arrival time.
    pub fn cdvt(&self) -> Nanos {
        self.cdvt
    }

    /// SCR, MBS and the bucket's rule; `None` if the contract has a peak rate only.
    pub fn sustained(&self) -> Option<Sustained> {
        self.sustained
    }
}

/// Messages per second, 1 to 1,000,000.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageRate(u32);

impl MessageRate {
    /// The rate, or `None` outside 1 to 1,000,000 messages per second.
    pub fn new(per_second: u32) -> Option<MessageRate> {
        (1..=1_000_000)
            .contains(&per_second)
            .then_some(MessageRate(per_second))
    }

    /// Messages per second.
    pub fn get(self) -> u32 {
        self.0
    }

    /// The rate at which hosts serve a channel over several hosts, so that it catches up after a
    /// stop of one of them (docs/reference/contracts.md, *After a stop*): an eighth above this one,
    /// rounded up, and at most the highest rate.
    ///
    /// ```
    /// use netnice_core::contract::MessageRate;
    ///
    /// let with_spare = |rmax| MessageRate::new(rmax).map(|rmax| rmax.with_spare().get());
    /// assert_eq!([1, 8, 9].map(with_spare), [Some(2), Some(9), Some(11)]);
    /// assert_eq!(with_spare(1_000_000), Some(1_000_000));
    /// ```
    pub fn with_spare(self) -> MessageRate {
        let spare = self.0.div_ceil(8);
        MessageRate::new(self.0.saturating_add(spare)).unwrap_or(self)
    }
}

impl fmt::Display for MessageRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/s", self.0)
    }
}

/// A real-time channel (paper RTC): messages of bounded length, of a bounded rate and burst, each
/// with a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Channel {
    mmax: Bytes,
    rmax: MessageRate,
    bmax: u32,
    deadline: Nanos,
    processing: Nanos,
    overload: Overload,
}

/// What happens to messages beyond the contract of a channel (paper RTC, section 3.1 and table 2).
/// [`MessageGate`](crate::sched::MessageGate) defines each policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Overload {
    /// The sender waits while Bmax messages are queued (the paper's "block handler").
    #[default]
    Block,
    /// Every message is queued. Messages that exceed the contract have later deadlines ("decay
    /// handler deadline").
    Decay,
    /// A message before its logical arrival, or while Bmax messages are queued, is not accepted
    /// yet. So messages are queued at least 1/Rmax apart ("enforce Imin").
    Space,
    /// A message that finds Bmax messages queued is dropped ("drop overflow messages").
    Drop,
    /// Every message is queued. A message before its logical arrival is also served as best effort.
    /// If all of it leaves as best effort, it does not count against the contract.
    BestEffort,
}

impl Overload {
    /// All policies.
    pub const ALL: [Overload; 5] = [
        Overload::Block,
        Overload::Decay,
        Overload::Space,
        Overload::Drop,
        Overload::BestEffort,
    ];

    /// The policy's word in contract text.
    pub fn word(self) -> &'static str {
        match self {
            Overload::Block => "block",
            Overload::Decay => "decay",
            Overload::Space => "space",
            Overload::Drop => "drop",
            Overload::BestEffort => "best-effort",
        }
    }

    /// The policy of a word; `None` if no policy has it.
    pub fn from_word(word: &str) -> Option<Overload> {
        Overload::ALL
            .into_iter()
            .find(|policy| policy.word() == word)
    }
}

impl Channel {
    /// The largest [`Channel::processing`].
    pub const MAX_PROCESSING: Nanos = Nanos::from_secs(4);

    /// A real-time channel of at most `rmax` messages per second in the long run and `bmax` at
    /// once, each with at most `mmax` bytes and due within `deadline`.
    ///
    /// # Errors
    /// [`ContractError::ZeroPart`] if the message size, the burst or the deadline is zero.
    pub fn new(
        mmax: Bytes,
        rmax: MessageRate,
        bmax: u32,
        deadline: Nanos,
    ) -> Result<Channel, ContractError> {
        match () {
            () if mmax.0 == 0 => Err(ContractError::ZeroPart("channel", "mmax")),
            () if bmax == 0 => Err(ContractError::ZeroPart("channel", "bmax")),
            () if deadline.0 == 0 => Err(ContractError::ZeroPart("channel", "deadline")),
            () => Ok(Channel {
                mmax,
                rmax,
                bmax,
                deadline,
                processing: Nanos(0),
                overload: Overload::default(),
            }),
        }
    }

    /// The same channel with this part of the deadline for the program's processing.
    ///
    /// # Errors
    /// [`ContractError::Processing`] if the part is not shorter than the deadline, or longer than
    /// [`Channel::MAX_PROCESSING`].
    pub fn with_processing(self, processing: Nanos) -> Result<Channel, ContractError> {
        match processing < self.deadline && processing <= Channel::MAX_PROCESSING {
            true => Ok(Channel { processing, ..self }),
            false => Err(ContractError::Processing {
                processing,
                deadline: self.deadline,
            }),
        }
    }

    /// The same channel with another overload policy.
    pub fn with_overload(self, overload: Overload) -> Channel {
        Channel { overload, ..self }
    }

    /// The same channel with another Mmax, Rmax and deadline.
    ///
    /// # Errors
    /// As [`Channel::new`] and [`Channel::with_processing`].
    pub fn resized(
        self,
        mmax: Bytes,
        rmax: MessageRate,
        deadline: Nanos,
    ) -> Result<Channel, ContractError> {
        let channel = Channel::new(mmax, rmax, self.bmax, deadline)?;
        Ok(channel
            .with_processing(self.processing)?
            .with_overload(self.overload))
    }

    /// Mmax, the length of the largest message (paper RTC, as Rmax and Bmax below); above zero.
    pub fn mmax(&self) -> Bytes {
        self.mmax
    }

    /// Rmax, the highest long-term rate of messages.
    pub fn rmax(&self) -> MessageRate {
        self.rmax
    }

    /// Bmax, the largest number of messages in a burst; above zero.
    pub fn bmax(&self) -> u32 {
        self.bmax
    }

    /// The largest delay of a message, from its logical arrival to its departure; above zero. The
    /// logical arrival is the arrival, or 1/Rmax after the logical arrival before it, whichever is
    /// later.
    pub fn deadline(&self) -> Nanos {
        self.deadline
    }

    /// The part of the deadline for the program's processing: a message keeps the deadline of its
    /// logical arrival if the program submits all of it within this time. Below the deadline, and
    /// at most [`Channel::MAX_PROCESSING`].
    pub fn processing(&self) -> Nanos {
        self.processing
    }

    /// The part of the deadline that is left for the link: the deadline less the processing; above
    /// zero.
    pub fn link_deadline(&self) -> Nanos {
        Nanos(self.deadline.0 - self.processing.0)
    }

    /// What happens to messages beyond the contract.
    pub fn overload(&self) -> Overload {
        self.overload
    }

    /// The highest long-term rate of the channel: Mmax · Rmax. Saturates at `u64::MAX` bit/s.
    pub fn rate(&self) -> Amount {
        let bits = self.mmax.0.saturating_mul(8);
        Amount(bits.saturating_mul(u64::from(self.rmax.get())))
    }
}

/// Number of classes that the server of a link can have.
pub const CLASSES: usize = 8;

/// Bytes of the longest interface name: IFNAMSIZ - 1, see netdevice(7).
const LONGEST_IFNAME: usize = 15;

/// The longest allowed period. It is a hundred times the longest period in the papers. A slice in a
/// longer period would not serve an interactive program.
const LONGEST_PERIOD: Nanos = Nanos::from_secs(10);

//! Establishes, keeps and ends channels over several hosts: [`Signalling`], a state machine without
//! I/O, clock or threads. [`Signalling::handle`] takes an [`Event`], [`Signalling::poll_action`]
//! returns what the caller must do. Only [`Signalling::open`] fails ([`OpenError`]); what else goes
//! wrong becomes an action that tells the program or the neighbour.
//!
//! # Establishment (paper RTC, section 2.1: signalling; docs/reference/peer.md)
//! ```text
//!  source          relay           sink
//!  Hold, Held
//!    └─ establish ──▶ Hold, Held
//!                       └─ establish ──▶ Hold, Held, the slack is shared
//!                                        Relax, Relaxed: established
//!                     Relax, Relaxed ◀── established ─┘
//!  Relax, Relaxed ◀─ established ─┘
//! ```
//! Each host holds the shortest bound that it can keep. The sink compares the sum with the deadline
//! and divides the slack; on the way back each host relaxes its hold to its final bound. Both ways
//! a refusal goes back to the source, and every host on the way releases its hold.
//!
//! # The state of a channel at a host
//! ```text
//!            Held, no connection        Connected
//!  Holding ────────────────▶ Connecting ─────▶ Forwarded ──established──▶ Relaxing ──▶ Established
//!     │└───────Held, connection is ready───────────▲                         ▲   Relaxed
//!     └────────Held at the sink: the sum is within the deadline──────────────┘
//! ```
//! Every state before Established ends 5 s after the hold was asked for ([`HELD`]). Every state
//! ends with a refusal or an end that a neighbour, the host or a program reports, with the
//! connection to a neighbour, and with a neighbour's violation of the protocol. An established
//! channel ends when a neighbour has not named it for 15 s ([`UNREFRESHED`]). Each end releases the
//! hold.
//!
//! # Ownership of channels
//! A channel belongs to the host before and to the host after this one. A message of any other
//! neighbour about it is treated as one about an unknown channel: nothing is reserved or changed.
//! [`HoldId`]s are this host's own, so that no identifier that a neighbour chooses reaches the
//! ledger. A neighbour that breaks the protocol is disconnected, and loses its channels.

mod clock;
mod ending;
mod establishing;
mod events;
mod explain;
mod neighbour;
mod quota;
mod state;
mod status;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use netnice_channel::ChannelId;
use netnice_core::units::{Instant, Nanos};

use crate::message::{HostName, KernelClock, check_address, contract_fault};

pub use clock::{ClockOffset, ClockSource};
pub use events::{Action, Arrival, Event, HoldId, HoldRequest, NextHop, Open, Part, QuestionId};
pub use explain::{ExplainError, MOST_OF_NEIGHBOUR, MOST_OF_PROGRAMS, STEP};
pub use quota::{Policy, Quota};
pub use status::{ChannelStatus, Progress};

use explain::Question;
use neighbour::{Connection, Neighbour};
use quota::Usage;
use state::{ChannelState, Stage, Upstream};

/// The signalling of one host.
#[derive(Debug)]
pub struct Signalling {
    host: HostName,
    policy: Policy,
    /// What the kernel of this host states about its clock, if that is synchronised.
    kernel_clock: Option<KernelClock>,
    channels: BTreeMap<ChannelId, ChannelState>,
    holds: BTreeMap<HoldId, ChannelId>,
    neighbours: BTreeMap<HostName, Neighbour>,
    /// What the programs of this host have of their quota.
    programs: Usage,
    /// The questions about channels that are not answered.
    questions: BTreeMap<QuestionId, Question>,
    timers: BTreeSet<(Instant, Timer)>,
    actions: VecDeque<Action>,
    next_hold: u64,
    next_question: u64,
    ignored: u64,
}

/// What a timer is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// To end or examine the channel with this hold.
    Channel(HoldId),
    /// To name the channels to this neighbour.
    Refresh(HostName),
    /// To answer a question without the hosts that have not answered.
    Question(QuestionId),
}

/// Why a program's channel is not even tried.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The identifier is in use. Identifiers are random, so this is a fault of the caller.
    #[error("channel {0} exists already: a new channel needs a new random identifier")]
    Exists(ChannelId),
    /// The contract, the packet length or the address is beyond the limits of version 1.
    #[error("the channel cannot be asked for: {0}")]
    Contract(String),
    /// The quota of the programs of this host is used up.
    #[error("the channels of the programs of this host: {0}")]
    Quota(String),
}

impl Signalling {
    /// The signalling of the host with this name, without neighbours and channels.
    pub fn new(host: HostName, policy: Policy) -> Signalling {
        Signalling {
            host,
            policy,
            kernel_clock: None,
            channels: BTreeMap::new(),
            holds: BTreeMap::new(),
            neighbours: BTreeMap::new(),
            programs: Usage::default(),
            questions: BTreeMap::new(),
            timers: BTreeSet::new(),
            actions: VecDeque::new(),
            next_hold: 0,
            next_question: 0,
            ignored: 0,
        }
    }

    /// Begins to establish a channel for a program of this host. [`Action::Opened`] or
    /// [`Action::OpenRefused`] follows within 5 s.
    ///
    /// # Errors
    /// [`OpenError`] if the identifier is in use, the contract is beyond the limits, or the quota
    /// is used up. Then nothing has changed.
    pub fn open(&mut self, open: Open, now: Instant) -> Result<(), OpenError> {
        self.expire(now);
        if self.channels.contains_key(&open.channel) {
            return Err(OpenError::Exists(open.channel));
        }
        if let Some(fault) = contract_fault(&open.contract, open.packet) {
            return Err(OpenError::Contract(fault));
        }
        // The packets of a channel within this host pass no link.
        if open.sink != self.host
            && let Err(fault) = check_address("the sink's address", open.sink_address)
        {
            return Err(OpenError::Contract(fault.to_string()));
        }
        let quota = &self.policy.programs;
        let admitted = self.programs.admit(quota, &open.contract, now);
        admitted.map_err(OpenError::Quota)?;
        self.begin(open, Upstream::Program, None, Vec::new(), now);
        self.check_invariants();
        Ok(())
    }

    /// Takes an event. Call [`Signalling::poll_action`] until it returns `None` afterwards.
    ///
    /// What is due by `now` is done first, so that an event that waited for a stopped process does
    /// not revive what has expired.
    pub fn handle(&mut self, event: Event, now: Instant) {
        self.expire(now);
        match event {
            Event::Close { channel, reason } => {
                if self.channels.contains_key(&channel) {
                    self.end(channel, None, self.own_refusal(reason.as_str(), None));
                }
            }
            Event::Held {
                hold,
                bound,
                next,
                unguarded,
            } => self.handle_held(hold, (bound, unguarded), next, now),
            Event::NotHeld { hold, reason, best } => {
                if let Some(channel) = self.channel_in(hold, |stage| *stage == Stage::Holding) {
                    self.end(channel, None, self.own_refusal(reason.as_str(), best));
                }
            }
            Event::Relaxed { hold, port } => self.handle_relaxed(hold, port, now),
            Event::NotRelaxed { hold, reason } => {
                let relaxing = |stage: &Stage| matches!(stage, Stage::Relaxing(_));
                if let Some(channel) = self.channel_in(hold, relaxing) {
                    let text = format!("the longer bound cannot be kept: {reason}");
                    self.end(channel, None, self.own_refusal(&text, None));
                }
            }
            Event::Lost { hold, reason } => {
                if let Some(channel) = self.channel_in(hold, |_| true) {
                    self.end(channel, None, self.own_refusal(reason.as_str(), None));
                }
            }
            Event::Counted { question, counted } => self.handle_counted(question, counted),
            Event::Connected { neighbour } => self.handle_connected(&neighbour, now),
            Event::Disconnected { neighbour, reason } => {
                let text = format!("the connection to {neighbour} has ended: {reason}");
                self.drop_neighbour(&neighbour, &text);
            }
            Event::Received { neighbour, message } => self.handle_message(&neighbour, message, now),
        }
        self.check_invariants();
    }

    /// The next thing that the caller must do, in order; `None` if there is nothing.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// True if [`Signalling::poll_action`] would return an action.
    pub fn has_actions(&self) -> bool {
        !self.actions.is_empty()
    }

    /// When [`Signalling::handle_timeout`] must be called; `None` if no time matters. Any other
    /// call with `&mut self` invalidates it.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Does what is due. Poll the actions afterwards. Does nothing before
    /// [`Signalling::poll_timeout`].
    pub fn handle_timeout(&mut self, now: Instant) {
        self.expire(now);
        self.check_invariants();
    }

    /// Handles all timers that are due.
    fn expire(&mut self, now: Instant) {
        // Each pass removes the timer, or sets it later than `now`. The end of time never comes.
        while let Some((at, timer)) = self.timers.first().cloned() {
            if at > now || at == Instant(u64::MAX) {
                break;
            }
            self.timers.remove(&(at, timer.clone()));
            match timer {
                Timer::Channel(hold) => self.examine(hold, now),
                Timer::Refresh(neighbour) => self.refresh(&neighbour, now),
                Timer::Question(question) => self.finish_question(question),
            }
        }
    }

    /// The name of this host.
    pub fn host(&self) -> &HostName {
        &self.host
    }

    /// Replaces the limits. Channels that exist stay, and count.
    pub fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// Tells what the kernel states about the clock of this host; `None` if that is not
    /// synchronised. Call it before each event for which [`Event::is_about_clocks`] holds: the
    /// error grows with time.
    pub fn set_kernel_clock(&mut self, clock: Option<KernelClock>) {
        self.kernel_clock = clock;
    }

    /// All channels at this host, in the order of their identifiers.
    pub fn channels(&self) -> impl Iterator<Item = ChannelStatus> + '_ {
        let all = self.channels.values();
        all.map(|entry| ChannelStatus::of(entry, &self.host))
    }

    /// The neighbours that have a connection to this host and have sent their `hello`.
    pub fn neighbours(&self) -> impl Iterator<Item = &HostName> {
        let ready = |one: &Neighbour| one.connection == Connection::Ready;
        let all = self.neighbours.iter();
        all.filter_map(move |(host, one)| ready(one).then_some(host))
    }

    /// The offset of a neighbour's clock; `None` if it is no neighbour, or before the first round
    /// trip.
    pub fn clock_offset(&self, neighbour: &HostName) -> Option<ClockOffset> {
        self.neighbours.get(neighbour)?.clock.offset()
    }

    /// The host of the sink of a held channel, and its address.
    pub fn sink_of(&self, hold: HoldId) -> Option<(HostName, IpAddr)> {
        let entry = self.channels.get(self.holds.get(&hold)?)?;
        Some((entry.sink.clone(), entry.sink_address))
    }

    /// The deadline of a held channel, from source to sink.
    pub fn deadline_of(&self, hold: HoldId) -> Option<Nanos> {
        let entry = self.channels.get(self.holds.get(&hold)?)?;
        Some(entry.contract.deadline())
    }

    /// How many messages were ignored because they were about a channel that the neighbour does not
    /// have with this host.
    pub fn ignored(&self) -> u64 {
        self.ignored
    }

    /// The channel of a hold, if it is in a stage that `accepts` accepts. Without one, the host's
    /// report is late: the channel has ended since it was asked, and the hold was released.
    fn channel_in(&self, hold: HoldId, accepts: impl Fn(&Stage) -> bool) -> Option<ChannelId> {
        let channel = *self.holds.get(&hold)?;
        let entry = self.channels.get(&channel)?;
        accepts(&entry.stage).then_some(channel)
    }

    /// Replaces the timer of a channel.
    fn set_timer(timers: &mut BTreeSet<(Instant, Timer)>, entry: &mut ChannelState, at: Instant) {
        timers.remove(&(entry.timer, Timer::Channel(entry.hold)));
        entry.timer = at;
        timers.insert((at, Timer::Channel(entry.hold)));
    }

    /// Checks the invariants in builds with debug assertions.
    fn check_invariants(&self) {
        if cfg!(debug_assertions) && self.channels.len() < MOST_CHECKED {
            self.invariants();
        }
    }

    /// Checks that all tables agree.
    ///
    /// # Panics
    /// If they do not.
    pub fn invariants(&self) {
        assert_eq!(self.holds.len(), self.channels.len());
        let (mut opened, mut in_progress) = (BTreeMap::new(), BTreeMap::new());
        for (channel, entry) in &self.channels {
            assert_eq!(entry.channel, *channel);
            assert_eq!(self.holds.get(&entry.hold), Some(channel));
            let timer = (entry.timer, Timer::Channel(entry.hold));
            assert!(self.timers.contains(&timer), "{entry:?}");
            for neighbour in entry.previous().into_iter().chain(entry.next_host()) {
                let known = &self.neighbours[neighbour];
                assert!(known.channels.contains(channel), "{entry:?}");
            }
            *opened.entry(entry.previous()).or_insert(0) += 1;
            let progress = in_progress.entry(entry.previous()).or_insert(0);
            *progress += usize::from(!entry.is_established());
        }
        let count = |of: &BTreeMap<Option<&HostName>, usize>, who| of.get(&who).copied();
        let counts = |who| [&opened, &in_progress].map(|of| count(of, who).unwrap_or(0));
        let used = |usage: &Usage| [usage.channels, usage.in_progress];
        assert_eq!(used(&self.programs), counts(None));
        assert!(self.neighbours.len() <= self.policy.neighbours);
        for (host, neighbour) in &self.neighbours {
            assert_eq!(used(&neighbour.usage), counts(Some(host)));
            for channel in &neighbour.channels {
                let entry = &self.channels[channel];
                let ends = [entry.previous(), entry.next_host()];
                assert!(ends.contains(&Some(host)), "{entry:?}");
            }
            let connected = neighbour.connection != Connection::Connecting;
            assert_eq!(neighbour.refresh_at.is_some(), connected);
        }
        for (id, question) in &self.questions {
            let timer = (question.until, Timer::Question(*id));
            assert!(self.timers.contains(&timer), "{question:?}");
            let entry = &self.channels[&question.channel];
            assert!(entry.is_established() && entry.hold == question.hold);
        }
        let refreshes = self.neighbours.values().filter_map(|one| one.refresh_at);
        let timers = self.channels.len() + refreshes.count() + self.questions.len();
        assert_eq!(self.timers.len(), timers);
    }
}

/// How long a hold lasts without being confirmed.
pub const HELD: Nanos = Nanos::from_secs(5);

/// How often a host names its channels to a neighbour.
pub const REFRESH: Nanos = Nanos::from_secs(5);

/// How long a channel lasts without a refresh of a neighbour.
pub const UNREFRESHED: Nanos = Nanos::from_secs(15);

/// Channels above which debug builds do not compare the tables after every event, because that
/// takes too long.
const MOST_CHECKED: usize = 64;

#[cfg(test)]
mod tests;

//! A script: what [`crate::Script::parse`] makes of the text.

use std::time::Duration;

use crate::peer::{Action, Error, Icmp, State};
use crate::segment::Flags;

/// A script.
#[derive(Clone, Debug)]
pub struct Script {
    /// The name of its file, without the ending.
    pub name: String,
    /// The first line: RFC, section and subject.
    pub title: String,
    /// The parameters of the TCP under test.
    pub options: Options,
    pub(crate) steps: Vec<Step>,
}

/// The parameters of the TCP under test. Without a `connection:` line: no option but the MSS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Largest payload of a segment without options, in bytes: the MTU less 40.
    pub mss: u16,
    /// Bytes of receive buffer.
    pub window: u32,
    /// Offer SACK.
    pub sack: bool,
    /// Offer timestamps.
    pub timestamps: bool,
    /// Offer this window scale.
    pub scale: Option<u8>,
    /// Offer ECN.
    pub ecn: bool,
    /// Nagle's algorithm is off.
    pub no_delay: bool,
    /// Acknowledge each segment at once.
    pub quick: bool,
    /// CUBIC is off.
    pub reno: bool,
    /// Probes of an idle connection.
    pub keepalive: Option<Keepalive>,
    /// The user timeout.
    pub user_timeout: Option<Duration>,
    /// How long SYNs are sent again.
    pub connect_timeout: Option<Duration>,
    /// How long a closed connection stays in FIN_WAIT_2.
    pub fin_wait_2: Option<Duration>,
}

/// Probes of an idle connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Time before the first probe.
    pub idle: Duration,
    /// Time between probes.
    pub interval: Duration,
    /// Number of probes.
    pub probes: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            mss: 1000,
            window: 60_000,
            sack: false,
            timestamps: false,
            scale: None,
            ecn: false,
            no_delay: false,
            quick: false,
            reno: false,
            keepalive: None,
            user_timeout: None,
            connect_timeout: None,
            fin_wait_2: None,
        }
    }
}

impl Script {
    /// The shortest time that the script takes, without handshakes.
    pub fn shortest_time(&self) -> Duration {
        let times = self.steps.iter().map(|step| match step.what {
            What::Nothing(time) => step.wait.0 + time,
            _ => step.wait.0,
        });
        times.sum()
    }
}

/// One step of a script.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// Number of the line, from 1.
    pub(crate) line: usize,
    /// The line.
    pub(crate) text: String,
    /// The earliest and the latest time after the step before.
    pub(crate) wait: (Duration, Duration),
    pub(crate) what: What,
}

#[derive(Clone, Debug)]
pub(crate) enum What {
    Arrives(Arriving),
    Leaves(Leaving),
    Act(Action),
    Open { passive: bool },
    State(State),
    Error(Error),
    Nothing(Duration),
    Report(Icmp, i64),
}

/// A segment that arrives.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arriving {
    pub(crate) flags: Flags,
    pub(crate) seq: i64,
    pub(crate) ack: i64,
    pub(crate) length: u32,
    pub(crate) window: Option<u16>,
    pub(crate) urgent: u16,
    pub(crate) mss: Option<u16>,
    pub(crate) scale: Option<u8>,
    pub(crate) sack_permitted: bool,
    /// On a SYN: offers timestamps.
    pub(crate) timestamps: bool,
    pub(crate) value: Option<i64>,
    pub(crate) echo: Option<Echo>,
    pub(crate) no_timestamps: bool,
    pub(crate) sack: Vec<(i64, i64)>,
    pub(crate) marked: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Echo {
    Number(i64),
    Of(String),
}

/// A segment that must leave.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leaving {
    pub(crate) flags: Flags,
    pub(crate) no_push: bool,
    pub(crate) seq: i64,
    pub(crate) ack: Option<i64>,
    pub(crate) length: u32,
    /// The least and the largest value of the field.
    pub(crate) window: Option<(u16, u16)>,
    pub(crate) mss: Option<Any<u16>>,
    pub(crate) scale: Option<Any<u8>>,
    pub(crate) sack_permitted: bool,
    pub(crate) timestamps: bool,
    pub(crate) echo: Option<i64>,
    pub(crate) sack: Vec<(i64, i64)>,
    pub(crate) ecn_capable: Option<bool>,
    pub(crate) name: Option<String>,
}

/// A value, or any value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Any<T> {
    Value(T),
    Any,
}

impl<T: PartialEq + Copy> Any<T> {
    pub(crate) fn admits(self, value: T) -> bool {
        match self {
            Any::Value(expected) => expected == value,
            Any::Any => true,
        }
    }
}

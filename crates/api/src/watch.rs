//! What moves, in its smallest form: for `netnice top`, which asks for it again and again.
//!
//! [`crate::ShowDoc`] tells everything of every target. This tells what a table that is drawn each second shows: of
//! 500 targets it is a tenth as long. Rates are in bit/s, times in nanoseconds; what is nothing is left out.

use netnice_core::contract::Direction;
use serde::{Deserialize, Serialize};

/// The answer to [`crate::Request::Watch`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WatchDoc {
    /// When the counts were read, on the machine's monotonic clock.
    pub at_ns: u64,
    /// The managed links, by name.
    pub links: Vec<WatchedLink>,
    /// The targets, by text.
    pub targets: Vec<Watched>,
}

/// A managed link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WatchedLink {
    /// The interface.
    pub link: String,
    /// What it can send.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up: Option<u64>,
    /// What it can receive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down: Option<u64>,
    /// What is promised of the two.
    #[serde(skip_serializing_if = "is_zero")]
    pub up_held: u64,
    /// See `up_held`.
    #[serde(skip_serializing_if = "is_zero")]
    pub down_held: u64,
    /// Why it does not serve as it should, if it does not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub degraded: Vec<String>,
}

/// A target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Watched {
    /// Who it is.
    pub target: String,
    /// The place in this list of the nearest target around it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inside: Option<usize>,
    /// The limit on what it sends that holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up: Option<u64>,
    /// The limit on what it receives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down: Option<u64>,
    /// The limit on the sum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub both: Option<u64>,
    /// Its guarantee for sending.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<u64>,
    /// Its guarantee for receiving.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_down: Option<u64>,
    /// What it sends; of a target limited by `both`, all of it.
    #[serde(skip_serializing_if = "Moving::is_still")]
    pub sends: Moving,
    /// What it receives; of a target limited by `both`, nothing: it is in `sends`.
    #[serde(skip_serializing_if = "Moving::is_still")]
    pub receives: Moving,
    /// Why it is not served as it should, if it is not.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub degraded: Vec<String>,
}

/// What one target does in one direction, between the last two readings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Moving {
    /// Bit/s that went on.
    #[serde(skip_serializing_if = "is_zero")]
    pub rate: u64,
    /// How long a packet that comes now will wait.
    #[serde(skip_serializing_if = "is_zero")]
    pub wait_ns: u64,
    /// Packets dropped per second, rounded up: none is only none.
    #[serde(skip_serializing_if = "is_zero")]
    pub drops: u64,
    /// Times per second that a packet waited because the limit was reached, rounded up.
    #[serde(skip_serializing_if = "is_zero")]
    pub held: u64,
}

impl Moving {
    /// Whether nothing moves.
    pub fn is_still(&self) -> bool {
        *self == Moving::default()
    }
}

impl Watched {
    /// What it does in one direction.
    pub fn moving(&self, direction: Direction) -> Moving {
        match direction {
            Direction::Up => self.sends,
            Direction::Down => self.receives,
        }
    }

    /// Its limit in one direction, if it has one there; `both` counts for both.
    pub fn limit(&self, direction: Direction) -> Option<u64> {
        match direction {
            Direction::Up => self.up.or(self.both),
            Direction::Down => self.down.or(self.both),
        }
    }
}

/// The answer to [`crate::Request::Connections`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionsDoc {
    /// The target.
    pub target: String,
    /// When they were looked at, on the machine's monotonic clock.
    pub at_ns: u64,
    /// The connections, those that moved most first.
    pub connections: Vec<Connection>,
    /// How many more there are.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more: u64,
    /// How many of them belong to other users, so that they are not told.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub of_others: u64,
}

/// One connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// The socket's number in the kernel.
    pub inode: u64,
    /// `tcp` or `udp`.
    pub protocol: String,
    /// Address and port here.
    pub local: String,
    /// Address and port there; none while there is no peer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Of TCP, its state in the kernel's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Bytes that the peer has confirmed, if the kernel counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent: Option<u64>,
    /// Bytes received, if the kernel counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received: Option<u64>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

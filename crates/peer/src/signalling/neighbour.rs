//! The state of one neighbour: its connection, the channels that this host has with it, and what it
//! uses of its quota. No function fails.

use std::collections::BTreeSet;

use netnice_channel::ChannelId;
use netnice_core::units::Instant;

use super::clock::OffsetMeasurement;
use super::quota::Usage;

/// The connection to a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Connection {
    /// It was asked for, and neither made nor refused yet.
    Connecting,
    /// It exists, and the neighbour has not sent its `hello` yet.
    Connected,
    /// The neighbour has sent its `hello`.
    Ready,
}

/// One neighbour.
#[derive(Debug)]
pub(super) struct Neighbour {
    pub(super) connection: Connection,
    /// The channels with the neighbour, in either direction, and those that wait for the
    /// connection.
    pub(super) channels: BTreeSet<ChannelId>,
    /// The part of its quota that the neighbour uses: the channels that it opened.
    pub(super) usage: Usage,
    pub(super) clock: OffsetMeasurement,
    /// When the next refresh is due; `None` before the connection exists.
    pub(super) refresh_at: Option<Instant>,
}

impl Neighbour {
    /// A neighbour without channels.
    pub(super) fn new(connection: Connection) -> Neighbour {
        Neighbour {
            connection,
            channels: BTreeSet::new(),
            usage: Usage::default(),
            clock: OffsetMeasurement::default(),
            refresh_at: None,
        }
    }
}

//! The parameters of a connection.

use std::time::Duration;

use crate::congestion::Algorithm;
use crate::rtt::RtoLimits;

/// The parameters of a connection. [`Config::default`] has the values of RFC 9293 where it gives
/// one, else those of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Largest payload of a segment, in bytes, that fits the path without options: the MTU less the
    /// headers of IP and TCP. The options that every segment carries are subtracted from it.
    pub mss: u32,
    /// Bytes for which the caller has empty buffers at the start: the first window.
    pub room: u32,
    /// Largest window that the connection ever advertises, in bytes. It determines the window
    /// scale. At most 1 GiB.
    pub largest_window: u32,
    /// Congestion control.
    pub algorithm: Algorithm,
    /// Limits of the retransmission timeout.
    pub timeout_limits: RtoLimits,
    /// Send short segments at once: Nagle's algorithm is off.
    pub no_delay: bool,
    /// Acknowledge each segment at once.
    pub quick: bool,
    /// Longest delay of an acknowledgement. RFC 9293, section 3.8.6.3: less than 500 ms.
    pub ack_delay: Duration,
    /// Probes of an idle connection.
    pub keepalive: Option<Keepalive>,
    /// The connection ends if nothing is acknowledged for so long, although the peer owes an
    /// acknowledgement or keeps its window closed (RFC 9293, section 3.8.3; RFC 5482).
    pub user_timeout: Duration,
    /// The same for the handshake: how long SYNs are sent again.
    pub connect_timeout: Duration,
    /// How long a closed connection waits for the peer's FIN (FIN_WAIT_2).
    pub fin_wait_2: Duration,
    /// How long the end that closed first remembers the connection (TIME_WAIT): 2 MSL.
    pub time_wait: Duration,
    /// Offer selective acknowledgements (RFC 2018).
    pub sack: bool,
    /// Offer timestamps (RFC 7323).
    pub timestamps: bool,
    /// Padding of segments with payload if timestamps are not in use, in bytes: a multiple of 4. So
    /// a caller whose payload is aligned to 8 bytes behind headers with timestamps, of 32 bytes,
    /// can write shorter headers before it.
    pub padding: u8,
    /// Offer a window scale (RFC 7323).
    pub window_scaling: bool,
    /// Offer explicit congestion notification (RFC 3168).
    pub ecn: bool,
}

/// Probes of an idle connection (RFC 9293, section 3.8.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Time without a received segment before the first probe.
    pub idle: Duration,
    /// Time between probes.
    pub interval: Duration,
    /// Number of probes without a response after which the connection ends.
    pub probes: u32,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            mss: 1460,
            room: 65_535,
            largest_window: 6 << 20,
            algorithm: Algorithm::default(),
            timeout_limits: RtoLimits::default(),
            no_delay: false,
            quick: false,
            ack_delay: Duration::from_millis(40),
            keepalive: None,
            user_timeout: Duration::from_secs(300),
            connect_timeout: Duration::from_secs(127),
            fin_wait_2: Duration::from_secs(60),
            time_wait: Duration::from_secs(60),
            sack: true,
            timestamps: true,
            padding: 0,
            window_scaling: true,
            ecn: false,
        }
    }
}

impl Config {
    /// The window scale to offer: the smallest with which the largest window fits into the field.
    pub(crate) fn window_scale(&self) -> u8 {
        (0..LARGEST_SCALE)
            .find(|scale| self.largest_window >> scale <= u32::from(u16::MAX))
            .unwrap_or(LARGEST_SCALE)
    }
}

/// RFC 7323, section 2.3.
const LARGEST_SCALE: u8 = 14;

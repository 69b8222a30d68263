//! What the interpreter needs of a TCP under test, its program and its wire.

use std::fmt;
use std::time::Duration;

use crate::segment::Segment;

/// A TCP under test. All times count from the start of the script.
pub trait Peer {
    /// The present time.
    fn now(&self) -> Duration;

    /// A segment arrives at the TCP. `marked`: its IP header has a congestion mark.
    fn deliver(&mut self, segment: &Segment, marked: bool);

    /// A message of the network arrives, which quotes a segment of the TCP.
    fn report(&mut self, icmp: Icmp, quoted: &Segment);

    /// The next segment that the TCP sends, if it does so until the time `until`; otherwise `None`
    /// at that time. A segment that left before is returned also if `until` is over.
    fn next_sent(&mut self, until: Duration) -> Option<Sent>;

    /// The program does something.
    ///
    /// # Errors
    /// If it does not succeed, or has not the result that the action expects.
    fn act(&mut self, action: &Action) -> Result<(), String>;

    /// The state of the connection. [`State::Closed`] if there is none.
    fn state(&mut self) -> State;

    /// Why the connection ended.
    fn error(&mut self) -> Error;

    /// How much a segment that is expected after `wait` may be early and late.
    fn tolerance(&self, wait: Duration) -> Tolerance;

    /// The ports of the segments that arrive: source and destination. For a TCP that connects they
    /// are valid once its SYN has left.
    fn ports(&self) -> (u16, u16);
}

/// How much a time may differ from the expected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tolerance {
    /// How much earlier.
    pub early: Duration,
    /// How much later.
    pub late: Duration,
}

/// A segment that the TCP under test has sent.
#[derive(Clone, Debug)]
pub struct Sent {
    /// When it left.
    pub at: Duration,
    /// The segment.
    pub segment: Segment,
    /// The IP header says that the transport understands congestion marks.
    pub ecn_capable: bool,
}

/// What the program does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Opens a connection.
    Connect,
    /// Listens.
    Listen,
    /// Takes the connection that the listener has.
    Accept,
    /// Writes this number of bytes, which the TCP takes at once.
    Write(u32),
    /// Writes one byte, which the TCP refuses.
    WriteFails,
    /// Reads this number of bytes, and there are so many.
    Read(u32),
    /// Checks that so many bytes can be read.
    Readable(u32),
    /// Checks that the peer has shut down and nothing more can be read.
    ReadEnd,
    /// Shuts down the sending end.
    Shutdown,
    /// Closes the connection.
    Close,
    /// Ends the connection with a reset.
    Abort,
    /// Switches Nagle's algorithm off (true) or on.
    NoDelay(bool),
}

/// A message of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Icmp {
    /// The host cannot be reached.
    Unreachable,
    /// The packet was too big for a link with this MTU.
    TooBig(u16),
}

macro_rules! names {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$of])* $variant,)+
        }

        impl $name {
            /// The one with this name in scripts.
            pub(crate) fn named(name: &str) -> Option<$name> {
                match name {
                    $($text => Some($name::$variant),)+
                    _ => None,
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $($name::$variant => $text,)+
                })
            }
        }
    };
}

names! {
    /// The state of a connection (RFC 9293, section 3.3.2).
    State {
        /// LISTEN, of a connection that does not exist yet.
        Listen = "listen",
        /// SYN-SENT.
        SynSent = "syn-sent",
        /// SYN-RECEIVED.
        SynReceived = "syn-received",
        /// ESTABLISHED.
        Established = "established",
        /// FIN-WAIT-1.
        FinWait1 = "fin-wait-1",
        /// FIN-WAIT-2.
        FinWait2 = "fin-wait-2",
        /// CLOSE-WAIT.
        CloseWait = "close-wait",
        /// CLOSING.
        Closing = "closing",
        /// LAST-ACK.
        LastAck = "last-ack",
        /// TIME-WAIT.
        TimeWait = "time-wait",
        /// CLOSED.
        Closed = "closed",
    }
}

names! {
    /// Why a connection ended.
    Error {
        /// It did not, or both ends have shut down.
        None = "none",
        /// The peer refused it.
        Refused = "refused",
        /// The peer reset it.
        Reset = "reset",
        /// The peer did not respond.
        TimedOut = "timed-out",
        /// The network reported that the peer cannot be reached.
        Unreachable = "unreachable",
        /// The program aborted it.
        Aborted = "aborted",
    }
}

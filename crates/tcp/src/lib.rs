//! Answers: what a TCP connection sends, and what a received segment means.
//! May touch: nothing but its own memory.
//! Must never: do input or output, read a clock, or see payload.
//!
//! The crate is the protocol of RFC 9293 with the extensions that a host of today uses: window
//! scale and timestamps (RFC 7323), selective acknowledgements (RFC 2018, 2883), loss detection by
//! time with tail loss probes (RFC 8985), proportional rate reduction (RFC 6937), CUBIC (RFC 9438)
//! or Reno (RFC 5681), congestion marks (RFC 3168), protection against blind attacks (RFC 5961).
//!
//! It differs from other stacks in what it couples to. Payload stays in the caller's buffers, and
//! the crate knows their names only: a buffer is sent, kept, sent again, and released after its
//! acknowledgement. The window that it advertises is what the caller has empty buffers for. A
//! packet counts as sent when the driver reports its departure, so a packet that waits for its
//! contract is neither late nor lost (paper NTCP).
//!
//! | module | contents |
//! |---|---|
//! | [`header`] | segments' headers, parsed and written |
//! | [`connection`] | one connection: the state machine |
//! | [`endpoint`] | the connections of one port: a client's, or a listener's |
//! | [`config`] | parameters of a connection |
//! | `sender`, `send_queue` | what leaves when; what was sent |
//! | `receive_queue` | what was received |
//! | `rack`, [`congestion`], `prr`, [`rtt`] | loss detection, congestion control, measured times |
//! | [`time`], [`buffer`] | points in time; names of buffers |

pub mod buffer;
pub mod config;
pub mod congestion;
pub mod connection;
pub mod endpoint;
pub mod header;
mod prr;
mod rack;
mod receive_queue;
pub mod rtt;
mod send_queue;
mod sender;
pub mod time;

pub use sender::HeldBack;

#[cfg(test)]
mod differential;
#[cfg(any(test, fuzzing))]
pub mod hostile;
#[cfg(test)]
mod pair;
#[cfg(test)]
mod scripts;
#[cfg(test)]
mod tests;

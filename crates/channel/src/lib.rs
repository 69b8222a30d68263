//! Answers: which packet a program processes next, and which message that completes.
//! May touch: its arguments only. The caller passes the time and moves the packets.
//! Must never: do I/O, read a clock, start a thread, or contain a scheduler of its own.
//!
//! # A channel's handlers
//! A real-time channel (paper RTC) carries messages from a program to another by a deadline. At
//! each end a *handler* does the processing, on the processor time that its program has reserved:
//! ```text
//!  source:  send ─▶ message queue ─▶ handler: parts, stages, header ─▶ packet buffers ─▶ link
//!  sink:    link ─▶ packet queue ─▶ handler: stages, reassembly ─▶ message queue ─▶ receive
//! ```
//! An [`Executor`] runs all handlers of a program, one packet at a time ([`Executor::step`]). Its
//! scheduler is [`netnice_core::sched::Scheduler`], with blocks of P packets in place of packets: a
//! byte is a nanosecond of processing. So real-time handlers run by their deadlines, best-effort
//! ones share the rest by weight, and early messages come last. After a block the scheduler decides
//! anew: a handler yields there to one with an earlier deadline, and nowhere else.
//!
//! A handler waits for a message, is suspended while the message is early, and waits for a packet
//! buffer for each packet ([`HandlerState`]). The queues are bounded. A real-time message beyond
//! its contract meets the overload policy of the channel (`netnice_core::sched::MessageGate`).
//!
//! [`ChannelOptions::work`] and [`ExecutorSettings::handlers`] give what
//! [`netnice_core::admission::timing`] needs to decide whether all handlers are in time on a
//! reservation. docs/reference/channels.md specifies the packets.
#![forbid(unsafe_code)]

mod executor;
mod header;
#[cfg(any(test, fuzzing))]
pub mod hostile;
mod options;
mod parts;
mod reassembly;
mod stage;

pub use executor::{
    Accepted, Counts, Executor, HandlerId, HandlerState, NoHandler, OutgoingPacket, PacketRefusal,
    Ran, ReceivedMessage, SendError, SendRefusal, Step, Transmit,
};
pub use header::{ChannelId, HeaderError, PacketHeader};
pub use options::{
    ChannelClass, ChannelOptions, End, ExecutorSettings, LONGEST_BLOCK, LONGEST_MESSAGE, OpenError,
    WhenFull,
};
pub use stage::{Checksum, Encryption, Stage, StageError};

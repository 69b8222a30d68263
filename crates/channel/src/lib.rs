//! Answers: which packet of a message a program processes next, and which message that completes.
//! May touch: flows of `netnice-stack`, in one thread; its executor only its arguments.
//! Must never: open a socket, or have a scheduler of its own or a lock before the handlers' thread.
//!
//! # A channel's handlers
//! A real-time channel (paper RTC) carries messages from a program to another by a deadline. At
//! each end a *handler* does the processing, on the processor time of its program:
//! ```text
//!  source:  send ─▶ message queue ─▶ handler: parts, stages, header ─▶ packet buffers ─▶ link
//!  sink:    link ─▶ packet queue ─▶ handler: stages, reassembly ─▶ message queue ─▶ receive
//! ```
//! A program starts a [`HandlerThread`], which runs all of its handlers, and opens a [`Sender`] or
//! a [`Listener`] with [`Receiver`]s there:
//!
//! ```no_run
//! use std::num::NonZeroU32;
//!
//! use netnice_channel::{
//!     ChannelClass, ChannelError, ChannelId, ChannelOptions, ExecutorSettings, HandlerThread,
//!     HandlerThreadOptions, ListenerOptions, SenderOptions, costs,
//! };
//! use netnice_core::contract::Contract;
//! use netnice_core::units::{Bytes, Nanos};
//! use netnice_stack::RuntimeDir;
//!
//! /// Both ends of the channel agree on this.
//! fn camera(id: [u8; 16]) -> ChannelOptions {
//!     let contract = "channel mmax=64KiB,rmax=50/s,bmax=2,deadline=20ms,processing=5ms";
//!     let contract: Contract = contract.parse().expect("it is valid");
//!     let channel = contract.channel().expect("it has one");
//!     ChannelOptions::new(ChannelId(id), ChannelClass::RealTime(channel))
//! }
//!
//! fn send(dir: &RuntimeDir, id: [u8; 16]) -> Result<(), ChannelError> {
//!     let handlers = HandlerThread::attach(dir, &options()?)?;
//!     let recorder = "192.0.2.7:4000".parse().expect("an address");
//!     let mut sender = handlers.open(SenderOptions::to(recorder, camera(id)))?;
//!     sender.send(vec![0; 50_000], None)?;
//!     sender.drain(None)
//! }
//!
//! fn receive(dir: &RuntimeDir, id: [u8; 16]) -> Result<(), ChannelError> {
//!     let handlers = HandlerThread::attach(dir, &options()?)?;
//!     let here = "192.0.2.7:4000".parse().expect("an address");
//!     let listener = handlers.listen(&ListenerOptions::at(here))?;
//!     let mut receiver = listener.open(camera(id))?;
//!     let message = receiver.receive(None)?;
//!     println!("image {}: {} bytes", message.message, message.body.len());
//!     Ok(())
//! }
//!
//! /// Packets of 1,400 bytes, and a preemption point after each 4 of them.
//! fn options() -> Result<HandlerThreadOptions, ChannelError> {
//!     let block = NonZeroU32::new(4).expect("above zero");
//!     Ok(HandlerThreadOptions::new(costs::measure(Bytes(1_400), block)?))
//! }
//! ```
//!
//! An [`Executor`] decides for the thread, one packet at a time ([`Executor::step`]), without I/O.
//! Its scheduler is [`netnice_core::sched::Scheduler`], with blocks of P packets in place of
//! packets: a byte is a nanosecond of processing. So real-time handlers run by their deadlines,
//! best-effort ones share the rest by weight, and early messages come last. After a block the
//! scheduler decides anew: a handler yields there to one with an earlier deadline, and nowhere
//! else.
//!
//! A handler waits for a message, is suspended while the message is early, and waits for a packet
//! buffer for each packet ([`HandlerState`]). The queues are bounded. A real-time message beyond
//! its contract meets the overload policy of the channel (`netnice_core::sched::MessageGate`).
//!
//! [`ChannelOptions::work`] and [`ExecutorSettings::handlers`] give what
//! [`netnice_core::admission::timing`] needs to decide whether all handlers are in time on a
//! reservation. docs/reference/channels.md specifies the packets.
#![forbid(unsafe_code)]

mod catch_up;
mod commands;
pub mod costs;
mod error;
mod executor;
mod handler_thread;
mod header;
#[cfg(any(test, fuzzing))]
pub mod hostile;
mod laxity;
pub mod network;
mod options;
mod parts;
mod reassembly;
mod receiver;
mod sender;
mod stage;
mod stops;
mod waker;

pub use catch_up::{explain_spare, messages_within, most_behind};
pub use error::ChannelError;
pub use executor::{
    Accepted, AcceptedMessage, Counts, Executor, Gate, HandlerId, HandlerState, NoHandler,
    OutgoingPacket, PacketRefusal, Ran, ReceivedMessage, SendError, SendRefusal, Step, Transmit,
};
pub use handler_thread::{Departure, HandlerThread, HandlerThreadOptions, LINGER};
pub use header::{BadChannelId, ChannelId, HeaderError, PacketHeader};
pub use laxity::{HopMeter, LogicalArrivals};
pub use options::{
    ChannelClass, ChannelOptions, End, ExecutorSettings, LONGEST_BLOCK, LONGEST_MESSAGE,
    LONGEST_QUEUE, OpenError, WhenFull,
};
pub use reassembly::{PartRefusal, Reassembly};
pub use receiver::{Listener, ListenerCounts, ListenerOptions, Receiver};
pub use sender::{Sender, SenderCounts, SenderOptions};
pub use stage::{Checksum, Encryption, Stage, StageError};
pub use stops::{RecentStops, ThreadStops};

//! The error type of channels ([`ChannelError`]): why a call failed. No function of this module
//! fails.

use std::io;
use std::path::PathBuf;

use netnice_core::admission::timing::TimingRefusal;
use netnice_core::contract::Slice;
use netnice_core::units::Bytes;
use netnice_stack::StackError;

use crate::executor::SendRefusal;
use crate::options::OpenError;

/// Why a call on a channel failed.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The channel has no room for the message or its time has not come, or no message has arrived;
    /// or the timeout expired.
    #[error("the call would block: the channel has no room, or no message has arrived")]
    WouldBlock,
    /// The channel does not accept the message: it is too long, or the overload policy drops it.
    #[error(transparent)]
    Refused(SendRefusal),
    /// The options of the channel are invalid, or the channel is open already.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The flow was not opened, or a call on it failed.
    #[error(transparent)]
    Flow(#[from] StackError),
    /// The file of costs cannot be used.
    #[error("{}, the file of costs: {problem}", .file.display())]
    Costs {
        /// The file.
        file: PathBuf,
        /// What the matter is.
        problem: String,
    },
    /// The path to the remote host cannot carry the packets of the channel.
    #[error(
        "the path carries {most} in one packet, and the channel's packets have up to {largest}"
    )]
    PathTooNarrow {
        /// The longest packet of a channel, with the channel's header.
        largest: Bytes,
        /// What a datagram on this path can carry.
        most: Bytes,
    },
    /// A flow cannot have as many packet buffers as the channel needs.
    #[error(
        "the channel needs {needed} packet buffers, and a flow has at most {most}: shorten its \
         deadline, or its messages"
    )]
    TooManyBuffers {
        /// The number of packet buffers that the channel needs.
        needed: u64,
        /// The largest number of buffers of a flow.
        most: u64,
    },
    /// The handlers would not be in time on the reserved processor time.
    #[error("the channel's handler does not fit into cpu {}/{}: {refusal}", .whole.slice(), .whole.period())]
    NotAdmitted {
        /// What is reserved for the program.
        whole: Slice,
        /// The inequality that fails, and what would fit: a deadline is one of
        /// [`Channel::processing`](netnice_core::contract::Channel::processing).
        refusal: TimingRefusal,
    },
    /// The processor time is picked for the channels over another interface.
    #[error(
        "the processor time is picked for the channels over {0} only: name a time for channels over \
         several interfaces"
    )]
    PickedForOther(String),
    /// The thread has no room for a further handler.
    #[error("the thread has {most} handlers, as many as it was started for")]
    TooManyHandlers {
        /// The largest number of handlers.
        most: usize,
    },
    /// Only real-time channels pass several hosts.
    #[error("a channel to another host needs a deadline: best effort has none")]
    BestEffortBetweenHosts,
    /// The source of a channel has packets of another length.
    #[error(
        "the packets of the channel have up to {packet}, and those of this program up to {largest}: \
         both ends need the same"
    )]
    OtherPackets {
        /// The longest packet of the source.
        packet: Bytes,
        /// The longest packet of this program.
        largest: Bytes,
    },
    /// The messages of a channel are longer than a service accepts.
    #[error("mmax of the service is at most {most}, and the channel has {mmax}")]
    LongMessages {
        /// Mmax of the channel.
        mmax: Bytes,
        /// What the service accepts.
        most: Bytes,
    },
    /// The source of a channel asks for a rate that no contract has.
    #[error("rmax is 1 to 1000000 messages per second, not {0}")]
    MessageRate(u32),
    /// The channel, or the thread of the handlers, has ended.
    #[error("the channel has ended: {0}")]
    Ended(String),
    /// A system call failed.
    #[error("a thread cannot be started, woken or put to sleep: {0}")]
    System(#[from] io::Error),
}

impl From<rustix::io::Errno> for ChannelError {
    fn from(error: rustix::io::Errno) -> ChannelError {
        ChannelError::System(error.into())
    }
}

//! Why a call fails ([`CallError`]), and the errno that C gets. Where setpriority(2) or the socket
//! calls have an errno for the same reason, the errno here is the same. No function fails.

use netnice_api::{ClientError, Failed, FailureCause, Refused, RefusedBy, Response};
use netnice_channel::network::NetworkError;
use netnice_channel::{ChannelError, SendRefusal};
use netnice_core::contract::ContractError;
use netnice_ring::layout::SetupError;
use netnice_stack::tcp::{CloseReason, PromoteError, WriteError};
use netnice_stack::{DeliveryFailure, StackError};

/// Why a call of the library fails.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    /// An argument is invalid.
    #[error("an argument has an invalid value")]
    Invalid,
    /// There is no such process, group or user.
    #[error("there is no such process, process group or user")]
    NoSuchProcess,
    /// The caller lacks the permission.
    #[error("the caller lacks the permission")]
    NotPermitted,
    /// The request does not fit beside the contracts of others, or exceeds a quota.
    #[error("the limit does not fit beside the contracts of others")]
    NotAdmitted,
    /// Communication with the daemon failed.
    #[error(transparent)]
    Daemon(ClientError),
    /// The daemon could not carry out the request, or sent an unexpected response.
    #[error("the daemon could not carry out the request")]
    Failed,
    /// A system call failed with this errno.
    #[error("{}", std::io::Error::from_raw_os_error(*.0))]
    System(i32),
    /// The handle is not that of an open object of the kind that the call takes.
    #[error(
        "the number is not that of an open program, flow, stream, listener, network, service or \
         channel, whichever the call takes"
    )]
    BadHandle,
    /// Another thread is in a call of the same flow, service or channel.
    #[error("another thread is in a call of this flow, service or channel")]
    Busy,
    /// The caller does not hold a buffer with this id.
    #[error("the caller does not hold this buffer: it was given back, or belongs to another flow")]
    NotHeld,
    /// A pointer that must not be NULL is NULL; the text names the argument.
    #[error("{0} must not be NULL")]
    Null(&'static str),
    /// A text is not UTF-8.
    #[error("the text is not UTF-8")]
    NotUtf8,
    /// Elements of an array of memory overlap.
    #[error("two elements of the array of memory overlap")]
    Overlap,
    /// An option of a stream has another range.
    #[error("{option} is {value}: {least} to {most} are possible")]
    OutOfRange {
        /// The option, or the argument.
        option: &'static str,
        /// The value.
        value: i64,
        /// The smallest possible value.
        least: i64,
        /// The largest possible value.
        most: i64,
    },
    /// There is no option with this number.
    #[error("there is no option {0}")]
    NoOption(i32),
    /// An address is neither IPv4 nor IPv6 nor Ethernet, or too short.
    #[error(
        "the address is neither a sockaddr_in nor a sockaddr_in6 of full length, nor a \
         sockaddr_ll of an Ethernet address"
    )]
    BadAddress,
    /// An error of the stack.
    #[error(transparent)]
    Stack(StackError),
    /// An error about channels between hosts.
    #[error(transparent)]
    Network(NetworkError),
    /// A contract is invalid.
    #[error(transparent)]
    Contract(ContractError),
    /// The contract of a channel has another clause than `channel`, or none.
    #[error(
        "the contract of a channel has the clause `channel` and no other, for example: channel \
         mmax=64KiB,rmax=50/s,bmax=2,deadline=60ms"
    )]
    NotAChannel,
    /// A text names no service on a host.
    #[error("{0:?} names no service on a host: write NAME@HOST, for example camera@recorder")]
    Destination(String),
    /// The channel has the other direction.
    #[error("this end of the channel {0}")]
    Direction(&'static str),
    /// A message is longer than the memory for it.
    #[error("the next message has {whole} bytes, and there is room for {room}")]
    MessageRoom {
        /// Bytes of the message.
        whole: usize,
        /// Bytes of the memory.
        room: usize,
    },
    /// A call panicked, or an earlier call of this flow did.
    #[error("the call panicked: this is a bug of libnetnice")]
    Panicked,
}

impl CallError {
    /// The errno that C gets for this error.
    pub(crate) fn errno(&self) -> i32 {
        match self {
            CallError::Invalid
            | CallError::NotUtf8
            | CallError::NotHeld
            | CallError::Overlap
            | CallError::OutOfRange { .. }
            | CallError::Contract(_)
            | CallError::NotAChannel
            | CallError::Destination(_) => libc::EINVAL,
            CallError::NoOption(_) => libc::ENOPROTOOPT,
            CallError::NoSuchProcess => libc::ESRCH,
            CallError::NotPermitted => libc::EPERM,
            CallError::NotAdmitted => libc::ENOSPC,
            CallError::Daemon(error) => client_errno(error),
            CallError::Failed | CallError::Panicked => libc::EIO,
            CallError::System(number) => *number,
            CallError::BadHandle | CallError::Direction(_) => libc::EBADF,
            CallError::MessageRoom { .. } => libc::EMSGSIZE,
            CallError::Busy => libc::EBUSY,
            CallError::Null(_) => libc::EFAULT,
            CallError::BadAddress => libc::EAFNOSUPPORT,
            CallError::Stack(error) => stack_errno(error),
            CallError::Network(error) => network_errno(error),
        }
    }
}

fn client_errno(error: &ClientError) -> i32 {
    match error {
        ClientError::NoDaemon { .. } => libc::ECONNREFUSED,
        ClientError::Connect { source, .. } | ClientError::Io(source) => io_errno(source),
        ClientError::Timeout => libc::ETIMEDOUT,
        ClientError::HungUp => libc::ECONNRESET,
        ClientError::Wire(_)
        | ClientError::UnexpectedResponse
        | ClientError::SurplusDescriptors => libc::EPROTO,
        ClientError::ProcessEnded => libc::ESRCH,
        ClientError::ProcessUnreadable(error) => error.raw_os_error().unwrap_or(libc::EIO),
    }
}

fn stack_errno(error: &StackError) -> i32 {
    match error {
        StackError::WouldBlock => libc::EAGAIN,
        StackError::TooLong { .. }
        | StackError::MessageTooLong { .. }
        | StackError::TooManyPackets { .. }
        | StackError::SmallBuffers { .. } => libc::EMSGSIZE,
        StackError::MessageDropped { .. } => libc::ENOBUFS,
        StackError::Undelivered(report) => report_errno(report.why),
        StackError::NoRemote => libc::EDESTADDRREQ,
        StackError::FixedRemote(_) => libc::EISCONN,
        StackError::UnknownNextHop(_) => libc::EHOSTUNREACH,
        StackError::Closed(_) => libc::ECONNABORTED,
        StackError::Ended(_) | StackError::Disconnected(_) => libc::ECONNRESET,
        StackError::Driver(_) | StackError::UnexpectedResponse(_) => libc::EPROTO,
        StackError::Buffer(_) | StackError::Address(_) | StackError::Pattern(_) => libc::EINVAL,
        StackError::Connection(error) => connection_errno(error),
        StackError::Backlog | StackError::FewBuffers { .. } => libc::EINVAL,
        StackError::Promote(error) => match error {
            PromoteError::Opened => libc::EOPNOTSUPP,
            PromoteError::Promoted => libc::EALREADY,
            PromoteError::Ended => libc::ENOTCONN,
        },
        StackError::OtherAddress(_) => libc::EAFNOSUPPORT,
        StackError::Setup(error) => setup_errno(error),
        StackError::Wait(error) => io_errno(error),
        StackError::Daemon(error) => client_errno(error),
        StackError::NoDaemon => libc::ENOTCONN,
        StackError::Refused {
            by: RefusedBy::Permission,
            ..
        } => libc::EPERM,
        StackError::Refused {
            by: RefusedBy::Admission,
            ..
        } => libc::ENOSPC,
        StackError::Failed {
            bad_usage: true, ..
        } => libc::EINVAL,
        StackError::Failed { cause, .. } => match cause {
            Some(FailureCause::PortInUse) => libc::EADDRINUSE,
            Some(FailureCause::NoRoute) => libc::ENETUNREACH,
            Some(FailureCause::NoAnswer) => libc::EHOSTUNREACH,
            Some(FailureCause::ForeignAddress) => libc::EADDRNOTAVAIL,
            Some(FailureCause::NoInterface) => libc::ENODEV,
            None => libc::EIO,
        },
    }
}

fn network_errno(error: &NetworkError) -> i32 {
    match error {
        NetworkError::NoPeer { .. } | NetworkError::Refused { best: None, .. } => {
            libc::ECONNREFUSED
        }
        NetworkError::Refused { best: Some(_), .. } => libc::ENOSPC,
        NetworkError::NotListening { .. } => libc::EADDRINUSE,
        NetworkError::NotExplained { .. } => libc::ENOENT,
        NetworkError::Channel(error) => channel_errno(error),
        NetworkError::Ended(_) => libc::ECONNRESET,
        NetworkError::Name { .. } => libc::EINVAL,
        NetworkError::Timeout => libc::EAGAIN,
    }
}

fn channel_errno(error: &ChannelError) -> i32 {
    match error {
        ChannelError::WouldBlock => libc::EAGAIN,
        ChannelError::Refused(refusal) => match refusal {
            SendRefusal::WaitForRoom { .. } | SendRefusal::WaitUntil(_) => libc::EAGAIN,
            SendRefusal::Dropped { .. } => libc::ENOBUFS,
            SendRefusal::TooLong { .. } => libc::EMSGSIZE,
            SendRefusal::NoSender => libc::EPIPE,
        },
        ChannelError::Flow(error) => stack_errno(error),
        ChannelError::PathTooNarrow { .. } | ChannelError::OtherPackets { .. } => libc::EMSGSIZE,
        ChannelError::NotAdmitted { .. } | ChannelError::PickedForOther(_) => libc::ENOSPC,
        ChannelError::TooManyBuffers { .. } | ChannelError::TooManyHandlers { .. } => libc::ENOBUFS,
        ChannelError::Open(_)
        | ChannelError::Costs { .. }
        | ChannelError::BestEffortBetweenHosts
        | ChannelError::LongMessages { .. }
        | ChannelError::MessageRate(_) => libc::EINVAL,
        ChannelError::Ended(_) => libc::EPIPE,
        ChannelError::System(error) => io_errno(error),
    }
}

/// The errno of a TCP connection, as of a socket.
pub(crate) fn connection_errno(error: &WriteError) -> i32 {
    match error {
        WriteError::ShutDown => libc::EPIPE,
        WriteError::Length { .. } => libc::EINVAL,
        WriteError::Closed(reason) => match reason {
            CloseReason::Refused => libc::ECONNREFUSED,
            CloseReason::Reset => libc::ECONNRESET,
            CloseReason::TimedOut(_) | CloseReason::KeepaliveFailed(_) => libc::ETIMEDOUT,
            CloseReason::Unreachable => libc::EHOSTUNREACH,
            CloseReason::Aborted => libc::ECONNABORTED,
        },
    }
}

/// The errno of a report, as of a connected socket.
pub(crate) fn report_errno(why: DeliveryFailure) -> i32 {
    match why {
        DeliveryFailure::NoNetwork => libc::ENETUNREACH,
        DeliveryFailure::NoPort => libc::ECONNREFUSED,
        DeliveryFailure::TooLong => libc::EMSGSIZE,
        DeliveryFailure::NoHost | DeliveryFailure::Forbidden | DeliveryFailure::Expired => {
            libc::EHOSTUNREACH
        }
    }
}

fn setup_errno(error: &SetupError) -> i32 {
    match error {
        SetupError::Shape(_) => libc::EINVAL,
        SetupError::NoSlot(_) | SetupError::NoRoom { .. } => libc::ENOBUFS,
        SetupError::System { error, .. } => io_errno(error),
        SetupError::NotMemoryFile { .. }
        | SetupError::OtherSeals { .. }
        | SetupError::InUse { .. }
        | SetupError::Outside { .. } => libc::EPROTO,
    }
}

fn io_errno(error: &std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

impl From<ClientError> for CallError {
    fn from(error: ClientError) -> CallError {
        CallError::Daemon(error)
    }
}

impl From<StackError> for CallError {
    fn from(error: StackError) -> CallError {
        CallError::Stack(error)
    }
}

impl From<NetworkError> for CallError {
    fn from(error: NetworkError) -> CallError {
        CallError::Network(error)
    }
}

impl From<ChannelError> for CallError {
    fn from(error: ChannelError) -> CallError {
        CallError::Network(error.into())
    }
}

impl From<ContractError> for CallError {
    fn from(error: ContractError) -> CallError {
        CallError::Contract(error)
    }
}

impl From<rustix::io::Errno> for CallError {
    fn from(errno: rustix::io::Errno) -> CallError {
        match errno {
            rustix::io::Errno::SRCH => CallError::NoSuchProcess,
            other => CallError::System(other.raw_os_error()),
        }
    }
}

impl From<Response> for CallError {
    /// The failure for a response that the request did not expect.
    fn from(response: Response) -> CallError {
        match response {
            Response::Refused(Refused {
                by: RefusedBy::Permission,
                ..
            }) => CallError::NotPermitted,
            Response::Refused(Refused {
                by: RefusedBy::Admission,
                ..
            }) => CallError::NotAdmitted,
            Response::Failed(Failed {
                bad_usage: true, ..
            }) => CallError::Invalid,
            _ => CallError::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use netnice_core::units::Bytes;

    use super::*;

    #[test]
    fn a_failure_has_the_errno_of_its_cause() {
        for (cause, errno) in [
            (Some(FailureCause::PortInUse), libc::EADDRINUSE),
            (Some(FailureCause::NoRoute), libc::ENETUNREACH),
            (Some(FailureCause::NoAnswer), libc::EHOSTUNREACH),
            (Some(FailureCause::ForeignAddress), libc::EADDRNOTAVAIL),
            (Some(FailureCause::NoInterface), libc::ENODEV),
            (None, libc::EIO),
        ] {
            let error = StackError::Failed {
                text: String::new(),
                bad_usage: false,
                cause,
            };
            assert_eq!(CallError::Stack(error).errno(), errno, "{cause:?}");
        }
    }

    #[test]
    fn a_failure_of_a_channel_has_the_errno_of_its_cause() {
        let (most, length) = (Bytes(10), Bytes(11));
        for (error, errno) in [
            (ChannelError::WouldBlock, libc::EAGAIN),
            (
                ChannelError::Refused(SendRefusal::TooLong { length, most }),
                libc::EMSGSIZE,
            ),
            (
                ChannelError::Refused(SendRefusal::Dropped { most: 1 }),
                libc::ENOBUFS,
            ),
            (ChannelError::MessageRate(0), libc::EINVAL),
            (ChannelError::Flow(StackError::NoDaemon), libc::ENOTCONN),
            (ChannelError::TooManyHandlers { most: 1 }, libc::ENOBUFS),
            (ChannelError::Ended("closed".to_owned()), libc::EPIPE),
            (
                ChannelError::System(std::io::Error::from_raw_os_error(libc::EMFILE)),
                libc::EMFILE,
            ),
        ] {
            let error = CallError::from(error);
            assert_eq!(error.errno(), errno, "{error}");
        }
        let error = CallError::from(NetworkError::Timeout);
        assert_eq!(error.errno(), libc::EAGAIN);
    }
}

//! Why a call fails, and its errno. If setpriority(2) or the socket calls have a code for the
//! reason, it is that code.

use netnice_api::{ClientError, Failed, Refused, RefusedBy, Response};
use netnice_ring::layout::SetupError;
use netnice_stack::StackError;

/// Why a call fails.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    /// An argument is invalid.
    #[error("an argument is none of its possible values")]
    Invalid,
    /// There is no such process, group or user.
    #[error("there is no such process, or none of the group or user")]
    Nobody,
    /// The caller lacks the permission.
    #[error("not permitted")]
    NotPermitted,
    /// The request does not fit beside the contracts of others.
    #[error("it does not fit beside what others hold")]
    NotAdmitted,
    /// Communication with the daemon failed.
    #[error(transparent)]
    Daemon(ClientError),
    /// The daemon could not carry out the request, or sent an unexpected response.
    #[error("the daemon could not do it")]
    Failed,
    /// A system call failed with this errno.
    #[error("{}", std::io::Error::from_raw_os_error(*.0))]
    System(i32),
    /// The number is not that of an open program or flow.
    #[error("the number is not one of an open program or flow, as the call wants it")]
    Handle,
    /// Another thread is in a call of the same flow.
    #[error("another thread is in a call of this flow")]
    Busy,
    /// C does not hold a buffer with this id.
    #[error("the buffer is not the caller's: given back before, or of another flow")]
    Buffer,
    /// A pointer is NULL that must not be.
    #[error("{0} must not be NULL")]
    Null(&'static str),
    /// A text is not UTF-8.
    #[error("the text is not UTF-8")]
    Text,
    /// An address is neither IPv4 nor IPv6, or too short.
    #[error("the address is neither a sockaddr_in nor a sockaddr_in6 of full length")]
    Address,
    /// An error of the stack.
    #[error(transparent)]
    Stack(StackError),
    /// A call panicked, or an earlier call of this flow did.
    #[error("the library failed: this is a mistake of its own")]
    Panicked,
}

impl Fault {
    /// The errno.
    pub(crate) fn errno(&self) -> i32 {
        match self {
            Fault::Invalid | Fault::Text | Fault::Buffer => libc::EINVAL,
            Fault::Nobody => libc::ESRCH,
            Fault::NotPermitted => libc::EPERM,
            Fault::NotAdmitted => libc::ENOSPC,
            Fault::Daemon(error) => of_client(error),
            Fault::Failed | Fault::Panicked => libc::EIO,
            Fault::System(number) => *number,
            Fault::Handle => libc::EBADF,
            Fault::Busy => libc::EBUSY,
            Fault::Null(_) => libc::EFAULT,
            Fault::Address => libc::EAFNOSUPPORT,
            Fault::Stack(error) => of_stack(error),
        }
    }
}

fn of_client(error: &ClientError) -> i32 {
    match error {
        ClientError::NoDaemon { .. } => libc::ECONNREFUSED,
        ClientError::Connect { source, .. } | ClientError::Io(source) => of_io(source),
        ClientError::Timeout => libc::ETIMEDOUT,
        ClientError::HungUp => libc::ECONNRESET,
        ClientError::Wire(_)
        | ClientError::UnexpectedResponse
        | ClientError::SurplusDescriptors => libc::EPROTO,
        ClientError::ProcessEnded => libc::ESRCH,
        ClientError::ProcessUnreadable(error) => error.raw_os_error().unwrap_or(libc::EIO),
    }
}

fn of_stack(error: &StackError) -> i32 {
    match error {
        StackError::NotNow => libc::EAGAIN,
        StackError::TooLong { .. } | StackError::TooMany { .. } | StackError::Chunk { .. } => {
            libc::EMSGSIZE
        }
        StackError::NoRemote => libc::EDESTADDRREQ,
        StackError::OneRemote(_) => libc::EISCONN,
        StackError::NoHop(_) => libc::EHOSTUNREACH,
        StackError::Closed(_) => libc::ECONNABORTED,
        StackError::Ended(_) | StackError::Expelled(_) => libc::ECONNRESET,
        StackError::Driver(_) | StackError::Answer(_) => libc::EPROTO,
        StackError::Buffer(_) | StackError::Address(_) => libc::EINVAL,
        StackError::Setup(error) => of_setup(error),
        StackError::Wait(error) => of_io(error),
        StackError::Daemon(error) => of_client(error),
        StackError::Alone => libc::ENOTCONN,
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
        StackError::Failed { .. } => libc::EIO,
    }
}

fn of_setup(error: &SetupError) -> i32 {
    match error {
        SetupError::Shape(_) => libc::EINVAL,
        SetupError::NoSlot(_) | SetupError::NoRoom { .. } => libc::ENOBUFS,
        SetupError::System { error, .. } => of_io(error),
        SetupError::NotOurs { .. }
        | SetupError::OtherSeals { .. }
        | SetupError::InUse { .. }
        | SetupError::Outside { .. } => libc::EPROTO,
    }
}

fn of_io(error: &std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

impl From<ClientError> for Fault {
    fn from(error: ClientError) -> Fault {
        Fault::Daemon(error)
    }
}

impl From<StackError> for Fault {
    fn from(error: StackError) -> Fault {
        Fault::Stack(error)
    }
}

impl From<rustix::io::Errno> for Fault {
    fn from(errno: rustix::io::Errno) -> Fault {
        match errno {
            rustix::io::Errno::SRCH => Fault::Nobody,
            other => Fault::System(other.raw_os_error()),
        }
    }
}

impl From<Response> for Fault {
    /// The failure for a response that the request did not expect.
    fn from(response: Response) -> Fault {
        match response {
            Response::Refused(Refused {
                by: RefusedBy::Permission,
                ..
            }) => Fault::NotPermitted,
            Response::Refused(Refused {
                by: RefusedBy::Admission,
                ..
            }) => Fault::NotAdmitted,
            Response::Failed(Failed {
                bad_usage: true, ..
            }) => Fault::Invalid,
            _ => Fault::Failed,
        }
    }
}

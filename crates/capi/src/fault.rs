//! Why a call fails, and which errno says so. Where setpriority(2) has a code for it, that one.

use netnice_api::{ClientError, Failed, Gate, Refused, Response};

/// Why a call fails.
#[derive(Debug)]
pub(crate) enum Fault {
    /// An argument makes no sense.
    Invalid,
    /// There is no such process, group or user.
    Nobody,
    /// The caller may not.
    NotPermitted,
    /// It does not fit, beside what others hold.
    NotAdmitted,
    /// The daemon cannot be asked.
    Daemon(ClientError),
    /// The daemon answers that it could not be done, or something that is no answer.
    Failed,
    /// What the kernel says on the way.
    System(i32),
}

impl Fault {
    /// The number for C.
    pub(crate) fn errno(&self) -> i32 {
        match self {
            Fault::Invalid => libc::EINVAL,
            Fault::Nobody => libc::ESRCH,
            Fault::NotPermitted => libc::EPERM,
            Fault::NotAdmitted => libc::ENOSPC,
            Fault::Daemon(ClientError::NoDaemon { .. }) => libc::ECONNREFUSED,
            Fault::Daemon(ClientError::Connect { source, .. } | ClientError::Io(source)) => {
                source.raw_os_error().unwrap_or(libc::EIO)
            }
            Fault::Daemon(ClientError::Timeout) => libc::ETIMEDOUT,
            Fault::Daemon(ClientError::HungUp) => libc::ECONNRESET,
            Fault::Daemon(ClientError::Wire(_) | ClientError::Unasked | ClientError::Surplus) => {
                libc::EPROTO
            }
            Fault::Failed => libc::EIO,
            Fault::System(number) => *number,
        }
    }
}

impl From<ClientError> for Fault {
    fn from(error: ClientError) -> Fault {
        Fault::Daemon(error)
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
    /// An answer that is not the one that was hoped for.
    fn from(response: Response) -> Fault {
        match response {
            Response::Refused(Refused {
                by: Gate::Permission,
                ..
            }) => Fault::NotPermitted,
            Response::Refused(Refused {
                by: Gate::Admission,
                ..
            }) => Fault::NotAdmitted,
            Response::Failed(Failed {
                bad_usage: true, ..
            }) => Fault::Invalid,
            _ => Fault::Failed,
        }
    }
}

//! [`RequestError`], the reason why a request is not carried out, with a text for the person who
//! made the request. It converts to the [`Response`] of the same kind. Errors of `netnice-core` and
//! `netnice-kernel` convert to it. No conversion fails.

use netnice_api::{FailureCause, Response};
use netnice_core::admission::Refusal;
use netnice_core::claims::ClaimError;
use netnice_core::contract::{ContractError, Unsupported};
use netnice_core::target::TargetError;
use netnice_core::units::UnitError;
use netnice_kernel::KernelError;

/// Why a request is not carried out. The text is for the person who made the request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The request is invalid.
    #[error("{0}")]
    BadUsage(String),
    /// The request is valid but cannot be carried out now: for example, its process does not exist,
    /// or a system call fails.
    #[error("{0}")]
    Failed(String),
    /// The request is valid but cannot be carried out now, for a cause that programs distinguish.
    #[error("{1}")]
    FailedFor(FailureCause, String),
    /// The request does not fit beside what is promised, or exceeds a quota.
    #[error("{0}")]
    NotAdmitted(String),
    /// The peer has no permission.
    #[error("{0}")]
    NotPermitted(String),
}

impl RequestError {
    /// The same error with a further clause at the end of its text.
    #[must_use]
    pub(crate) fn and(self, more: &str) -> RequestError {
        let with = |text: String| format!("{text}; {more}");
        match self {
            RequestError::BadUsage(text) => RequestError::BadUsage(with(text)),
            RequestError::Failed(text) => RequestError::Failed(with(text)),
            RequestError::FailedFor(cause, text) => RequestError::FailedFor(cause, with(text)),
            RequestError::NotAdmitted(text) => RequestError::NotAdmitted(with(text)),
            RequestError::NotPermitted(text) => RequestError::NotPermitted(with(text)),
        }
    }
}

impl From<RequestError> for Response {
    fn from(error: RequestError) -> Response {
        match error {
            RequestError::BadUsage(text) => Response::bad_usage(text),
            RequestError::Failed(text) => Response::failed(text),
            RequestError::FailedFor(cause, text) => Response::failed_for(cause, text),
            RequestError::NotAdmitted(text) => Response::not_admitted(text),
            RequestError::NotPermitted(text) => Response::not_permitted(text),
        }
    }
}

/// Converts each of these errors of `netnice-core` to the named variant, with its text.
macro_rules! from_errors {
    ($($error:ty => $variant:ident),* $(,)?) => {
        $(impl From<$error> for RequestError {
            fn from(error: $error) -> RequestError {
                RequestError::$variant(error.to_string())
            }
        })*
    };
}

from_errors! {
    TargetError => BadUsage,
    ContractError => BadUsage,
    UnitError => BadUsage,
    Refusal => NotAdmitted,
}

impl From<Unsupported> for RequestError {
    fn from(error: Unsupported) -> RequestError {
        let text = error.to_string();
        match error {
            Unsupported::Clause(_) | Unsupported::Class => RequestError::Failed(text),
            Unsupported::ShortPeriod(_)
            | Unsupported::LongPeriod(_)
            | Unsupported::ShortTime(_) => RequestError::BadUsage(text),
        }
    }
}

impl From<ClaimError> for RequestError {
    fn from(error: ClaimError) -> RequestError {
        let text = error.to_string().replace(
            &format!("user {}", crate::peer::POLICY.uid),
            "the policy file",
        );
        match error {
            ClaimError::Contract(_) => RequestError::BadUsage(text),
            ClaimError::Conflict { .. } => RequestError::NotAdmitted(text),
            ClaimError::NeedsPrivilege(_)
            | ClaimError::NotYours { .. }
            | ClaimError::NothingYours(_) => RequestError::NotPermitted(text),
            ClaimError::TwoOfOneUser(_) => RequestError::Failed(text),
        }
    }
}

impl From<KernelError> for RequestError {
    fn from(error: KernelError) -> RequestError {
        match error {
            KernelError::ForeignQdisc { .. } => {
                RequestError::NotAdmitted(format!("refused: {error}"))
            }
            KernelError::NoInterface(_) => {
                RequestError::FailedFor(FailureCause::NoInterface, error.to_string())
            }
            _ => RequestError::Failed(error.to_string()),
        }
    }
}

//! Why a request is not carried out: the daemon's only error type for clients. Converts to the
//! response of the same kind.

use netnice_api::Response;
use netnice_core::admission::Refusal;
use netnice_core::claims::ClaimError;
use netnice_core::contract::{ContractError, Unsupported};
use netnice_core::target::TargetError;
use netnice_core::units::UnitError;

/// A request that is not carried out; nothing has changed. The text is for the person who asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The request is invalid.
    #[error("{0}")]
    BadUsage(String),
    /// The request is valid but cannot be carried out.
    #[error("{0}")]
    Failed(String),
    /// The request does not fit.
    #[error("{0}")]
    NotAdmitted(String),
    /// The peer has no permission.
    #[error("{0}")]
    NotPermitted(String),
}

impl From<RequestError> for Response {
    fn from(error: RequestError) -> Response {
        match error {
            RequestError::BadUsage(text) => Response::bad_usage(text),
            RequestError::Failed(text) => Response::failed(text),
            RequestError::NotAdmitted(text) => Response::not_admitted(text),
            RequestError::NotPermitted(text) => Response::not_permitted(text),
        }
    }
}

/// Converts errors of `core` to the variant of the same kind.
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
    Unsupported => Failed,
    Refusal => NotAdmitted,
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

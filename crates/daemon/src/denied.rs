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
pub enum Denied {
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

impl From<Denied> for Response {
    fn from(denied: Denied) -> Response {
        match denied {
            Denied::BadUsage(text) => Response::bad_usage(text),
            Denied::Failed(text) => Response::failed(text),
            Denied::NotAdmitted(text) => Response::not_admitted(text),
            Denied::NotPermitted(text) => Response::not_permitted(text),
        }
    }
}

impl From<TargetError> for Denied {
    fn from(error: TargetError) -> Denied {
        Denied::BadUsage(error.to_string())
    }
}

impl From<ContractError> for Denied {
    fn from(error: ContractError) -> Denied {
        Denied::BadUsage(error.to_string())
    }
}

impl From<UnitError> for Denied {
    fn from(error: UnitError) -> Denied {
        Denied::BadUsage(error.to_string())
    }
}

impl From<Unsupported> for Denied {
    fn from(error: Unsupported) -> Denied {
        Denied::Failed(error.to_string())
    }
}

impl From<Refusal> for Denied {
    fn from(refusal: Refusal) -> Denied {
        Denied::NotAdmitted(refusal.to_string())
    }
}

impl From<ClaimError> for Denied {
    fn from(error: ClaimError) -> Denied {
        let text = error.to_string().replace(
            &format!("user {}", crate::peer::POLICY.uid),
            "the policy file",
        );
        match error {
            ClaimError::Contract(_) => Denied::BadUsage(text),
            ClaimError::Conflict { .. } => Denied::NotAdmitted(text),
            ClaimError::NeedsPrivilege(_)
            | ClaimError::NotYours { .. }
            | ClaimError::NothingYours(_) => Denied::NotPermitted(text),
            ClaimError::TwoOfOneUser(_) => Denied::Failed(text),
        }
    }
}

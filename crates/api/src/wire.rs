//! Encodes messages as frames, and decodes the bodies of frames ([`frame`]). A body is JSON with
//! the protocol version ([`VERSION`]). Encoding fails for a message that is too long for its kind.
//! Decoding fails for an invalid message and for a message of another version.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::driver::{DriverCall, DriverMessage};
use crate::frame::{
    self, FrameError, LONGEST_DRIVER_CALL, LONGEST_DRIVER_MESSAGE, LONGEST_REQUEST,
    LONGEST_RESPONSE,
};
use crate::{Process, Request, Response};

/// The version of the protocol. It changes when an old daemon would misread a new client, or a new
/// daemon an old client.
pub const VERSION: u32 = 1;

/// Why a message cannot be encoded or decoded.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The message is too long or empty.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The bytes are not the JSON of a message.
    #[error("the message is not understood: {0}")]
    Json(#[from] serde_json::Error),
    /// The message has another protocol version.
    #[error(
        "the message has protocol version {theirs}, and this program has version {VERSION}: the \
         daemon and the command line are of different releases; restart netniced of the release \
         that is installed"
    )]
    Version {
        /// The version in the message.
        theirs: u32,
    },
}

/// A message of a client: a request, and the process that it is about, if any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCall {
    /// The process that the request is about, if any.
    pub process: Option<Process>,
    /// The request.
    pub request: Request,
}

/// The frame of a request that is about no process.
///
/// # Errors
/// If the message is longer than [`LONGEST_REQUEST`].
pub fn encode_request(request: &Request) -> Result<Vec<u8>, WireError> {
    encode_client_call(request, None)
}

/// The frame of a request and the process that it is about.
///
/// # Errors
/// If the message is longer than [`LONGEST_REQUEST`].
pub fn encode_client_call(
    request: &Request,
    process: Option<Process>,
) -> Result<Vec<u8>, WireError> {
    let body = serde_json::to_vec(&ClientEnvelope {
        version: VERSION,
        process,
        request,
    })?;
    Ok(frame::encode(&body, LONGEST_REQUEST)?)
}

/// Decodes a client's message from the body of a frame, and returns its request without the
/// process.
///
/// # Errors
/// As [`decode_client_call`].
pub fn decode_request(body: &[u8]) -> Result<Request, WireError> {
    Ok(decode_client_call(body)?.request)
}

/// Decodes a client's message from the body of a frame. The version is checked first, so that a
/// message of another version is distinguished from an invalid one.
///
/// # Errors
/// [`WireError::Version`] for another version, [`WireError::Json`] for an invalid message.
pub fn decode_client_call(body: &[u8]) -> Result<ClientCall, WireError> {
    let envelope: ClientEnvelope<Request> = decode_versioned(body)?;
    Ok(ClientCall {
        process: envelope.process,
        request: envelope.request,
    })
}

/// The frame of a response.
///
/// # Errors
/// If the message is longer than [`LONGEST_RESPONSE`].
pub fn encode_response(response: &Response) -> Result<Vec<u8>, WireError> {
    encode_in_response(response, LONGEST_RESPONSE)
}

/// Decodes a response from the body of a frame.
///
/// # Errors
/// If the version differs or the message is invalid.
pub fn decode_response(body: &[u8]) -> Result<Response, WireError> {
    decode_from_response(body)
}

/// The frame of a request of the daemon to a driver.
///
/// # Errors
/// If the message is longer than [`LONGEST_DRIVER_CALL`].
pub fn encode_driver_call(call: &DriverCall) -> Result<Vec<u8>, WireError> {
    let body = serde_json::to_vec(&CallEnvelope {
        version: VERSION,
        request: call,
    })?;
    Ok(frame::encode(&body, LONGEST_DRIVER_CALL)?)
}

/// Decodes a request of the daemon to a driver from the body of a frame.
///
/// # Errors
/// If the version differs or the message is invalid.
pub fn decode_driver_call(body: &[u8]) -> Result<DriverCall, WireError> {
    let envelope: CallEnvelope<DriverCall> = decode_versioned(body)?;
    Ok(envelope.request)
}

/// The frame of a message of a driver.
///
/// # Errors
/// If the message is longer than [`LONGEST_DRIVER_MESSAGE`].
pub fn encode_driver_message(message: &DriverMessage) -> Result<Vec<u8>, WireError> {
    encode_in_response(message, LONGEST_DRIVER_MESSAGE)
}

/// Decodes a message of a driver from the body of a frame.
///
/// # Errors
/// If the version differs or the message is invalid.
pub fn decode_driver_message(body: &[u8]) -> Result<DriverMessage, WireError> {
    decode_from_response(body)
}

/// The frame of a message in the envelope of responses.
fn encode_in_response<T: Serialize>(message: &T, limit: usize) -> Result<Vec<u8>, WireError> {
    let body = serde_json::to_vec(&ResponseEnvelope {
        version: VERSION,
        response: message,
    })?;
    Ok(frame::encode(&body, limit)?)
}

/// Decodes a message from the envelope of responses.
fn decode_from_response<T: DeserializeOwned>(body: &[u8]) -> Result<T, WireError> {
    let envelope: ResponseEnvelope<T> = decode_versioned(body)?;
    Ok(envelope.response)
}

/// Checks the version of a message, then decodes the message.
fn decode_versioned<T: DeserializeOwned>(body: &[u8]) -> Result<T, WireError> {
    let version: Versioned = serde_json::from_slice(body)?;
    version.check()?;
    Ok(serde_json::from_slice(body)?)
}

/// A request to a driver with its version.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CallEnvelope<T> {
    version: u32,
    request: T,
}

/// A client's request with its version.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientEnvelope<T> {
    version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    process: Option<Process>,
    request: T,
}

/// A response, or a message of a driver, with its version. Fields that a newer release adds are
/// ignored.
#[derive(Serialize, Deserialize)]
struct ResponseEnvelope<T> {
    version: u32,
    response: T,
}

/// The version of any message.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

impl Versioned {
    fn check(&self) -> Result<(), WireError> {
        match self.version {
            VERSION => Ok(()),
            theirs => Err(WireError::Version { theirs }),
        }
    }
}

#[cfg(any(test, fuzzing))]
pub mod hostile;
#[cfg(test)]
mod tests;

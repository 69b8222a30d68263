//! Encoding and decoding of messages: JSON with the protocol version. Decoding fails for an invalid
//! message and for a message of another version.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::driver::{DriverCall, DriverWord};
use crate::frame::{
    self, FrameError, LONGEST_CALL, LONGEST_REQUEST, LONGEST_RESPONSE, LONGEST_WORD,
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
        "protocol version {theirs} here meets version {VERSION} there: the daemon and the command \
         line are of different releases; restart netniced of the same release"
    )]
    Version {
        /// The version in the message.
        theirs: u32,
    },
}

/// A message of a client: a request, and the process that it is about, if any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCall {
    /// The process.
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

/// Decodes a request without its process from the body of a frame.
///
/// # Errors
/// As [`decode_client_call`].
pub fn decode_request(body: &[u8]) -> Result<Request, WireError> {
    Ok(decode_client_call(body)?.request)
}

/// Decodes a client's message from the body of a frame. It checks the version first, so that it can
/// distinguish a message of another version from an invalid one.
///
/// # Errors
/// [`WireError::Version`] for another version, [`WireError::Json`] for an invalid message.
pub fn decode_client_call(body: &[u8]) -> Result<ClientCall, WireError> {
    let version: Versioned = serde_json::from_slice(body)?;
    version.check()?;
    let envelope: ClientEnvelope<Request> = serde_json::from_slice(body)?;
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
    answer(response, LONGEST_RESPONSE)
}

/// Decodes a response from the body of a frame.
///
/// # Errors
/// If the version differs or the message is invalid.
pub fn decode_response(body: &[u8]) -> Result<Response, WireError> {
    open_answer(body)
}

/// The frame of a request of the daemon to a driver.
///
/// # Errors
/// If the message is longer than [`LONGEST_CALL`].
pub fn encode_call(call: &DriverCall) -> Result<Vec<u8>, WireError> {
    let body = serde_json::to_vec(&Envelope {
        version: VERSION,
        request: call,
    })?;
    Ok(frame::encode(&body, LONGEST_CALL)?)
}

/// Decodes a request of the daemon to a driver from the body of a frame.
///
/// # Errors
/// If the version differs or the message is invalid.
pub fn decode_call(body: &[u8]) -> Result<DriverCall, WireError> {
    open(body)
}

/// The frame of a message of a driver.
///
/// # Errors
/// If the message is longer than [`LONGEST_WORD`].
pub fn encode_word(word: &DriverWord) -> Result<Vec<u8>, WireError> {
    answer(word, LONGEST_WORD)
}

/// Decodes a message of a driver from the body of a frame.
///
/// # Errors
/// If the version differs or the message is invalid.
pub fn decode_word(body: &[u8]) -> Result<DriverWord, WireError> {
    open_answer(body)
}

fn answer<T: Serialize>(response: &T, limit: usize) -> Result<Vec<u8>, WireError> {
    let body = serde_json::to_vec(&Answer {
        version: VERSION,
        response,
    })?;
    Ok(frame::encode(&body, limit)?)
}

fn open_answer<T: DeserializeOwned>(body: &[u8]) -> Result<T, WireError> {
    let version: Versioned = serde_json::from_slice(body)?;
    version.check()?;
    let answer: Answer<T> = serde_json::from_slice(body)?;
    Ok(answer.response)
}

fn open<T: DeserializeOwned>(body: &[u8]) -> Result<T, WireError> {
    let version: Versioned = serde_json::from_slice(body)?;
    version.check()?;
    let envelope: Envelope<T> = serde_json::from_slice(body)?;
    Ok(envelope.request)
}

/// A request with its version.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope<T> {
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

/// A response with its version. Fields that a newer daemon adds are ignored.
#[derive(Serialize, Deserialize)]
struct Answer<T> {
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

//! Messages as JSON, with the protocol's version.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::driver::{DriverCall, DriverWord};
use crate::frame::{
    self, FrameError, LONGEST_CALL, LONGEST_REQUEST, LONGEST_RESPONSE, LONGEST_WORD,
};
use crate::{Process, Request, Response};

/// The version of the protocol. It changes when an old daemon would misread a new client or the
/// other way round.
pub const VERSION: u32 = 1;

/// Why bytes are no message, or a message no bytes.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// Too long, or empty.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// Not the JSON of a message.
    #[error("the message is not understood: {0}")]
    Json(#[from] serde_json::Error),
    /// Another version of the protocol.
    #[error(
        "protocol version {theirs} here meets version {VERSION} there: the daemon and the command \
         line are of different releases; restart netniced of the same release"
    )]
    Version {
        /// The version in the message.
        theirs: u32,
    },
}

/// What a client sends: a request, and the process that it is about if it is about one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCall {
    /// The process.
    pub process: Option<Process>,
    /// The request.
    pub request: Request,
}

/// The frame of a request that is about no process.
pub fn encode_request(request: &Request) -> Result<Vec<u8>, WireError> {
    encode_client_call(request, None)
}

/// The frame of a request, and of the process that it is about.
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

/// A request out of the bytes of its frame, without the process that it is about.
pub fn decode_request(body: &[u8]) -> Result<Request, WireError> {
    Ok(decode_client_call(body)?.request)
}

/// What a client sent, out of the bytes of its frame. The version is looked at first, so that a message of another
/// version is told apart from a broken one.
pub fn decode_client_call(body: &[u8]) -> Result<ClientCall, WireError> {
    let version: Versioned = serde_json::from_slice(body)?;
    version.check()?;
    let envelope: ClientEnvelope<Request> = serde_json::from_slice(body)?;
    Ok(ClientCall {
        process: envelope.process,
        request: envelope.request,
    })
}

/// A response's frame.
pub fn encode_response(response: &Response) -> Result<Vec<u8>, WireError> {
    answer(response, LONGEST_RESPONSE)
}

/// A response out of the bytes of its frame.
pub fn decode_response(body: &[u8]) -> Result<Response, WireError> {
    open_answer(body)
}

/// The frame of what the daemon asks of a driver.
pub fn encode_call(call: &DriverCall) -> Result<Vec<u8>, WireError> {
    let body = serde_json::to_vec(&Envelope {
        version: VERSION,
        request: call,
    })?;
    Ok(frame::encode(&body, LONGEST_CALL)?)
}

/// What the daemon asks of a driver, out of the bytes of its frame.
pub fn decode_call(body: &[u8]) -> Result<DriverCall, WireError> {
    open(body)
}

/// The frame of what a driver says.
pub fn encode_word(word: &DriverWord) -> Result<Vec<u8>, WireError> {
    answer(word, LONGEST_WORD)
}

/// What a driver says, out of the bytes of its frame.
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

/// A message with its version.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Envelope<T> {
    version: u32,
    request: T,
}

/// A client's message with its version.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientEnvelope<T> {
    version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    process: Option<Process>,
    request: T,
}

/// An answer with its version; what a newer daemon adds is passed over.
#[derive(Serialize, Deserialize)]
struct Answer<T> {
    version: u32,
    response: T,
}

/// Any message, as far as its version.
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

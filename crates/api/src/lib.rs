//! Answers: which words pass between netnice's processes, and how they are framed on a socket.
//! May touch: bytes, the file descriptors that travel beside them, and what /proc says of a process that a pidfd means.
//! Must never: decide anything; a message is only well formed or refused.
//!
//! # The protocol
//! One unix stream socket, `netnice.sock` in the [`RuntimeDir`]. A client sends a [`Request`], the
//! daemon answers with one [`Response`]; a connection may carry several such pairs, one after
//! the other. Each message is one [`frame`]: a length in four bytes, big-endian, and JSON.
//! A request names the protocol's version ([`VERSION`]); fields that the version does not know
//! are refused, so that a misspelt option is never taken for none. Rates, targets and contracts
//! travel as the text of `netnice-core`, which the daemon parses again: clients are not trusted.
//! A request that is about a process names it by number and start ([`Process`]); no file descriptor travels with a
//! request. Three travel with one answer, to [`direct::DirectRequest::Attach`] ([`fds`]).
#![forbid(unsafe_code)]

mod client;
pub mod direct;
pub mod driver;
mod exit;
pub mod fds;
pub mod frame;
mod history;
mod process;
mod request;
mod response;
mod runtime_dir;
mod show;
mod users;
mod watch;
mod wire;

pub use client::{Client, ClientError};
pub use exit::Exit;
pub use history::{HistoryDoc, TargetHistory};
pub use process::Process;
pub use request::{
    Clear, ClearWhat, Confirm, Connections, Doctor, Explain, Find, History, LinkChange, Log, Own,
    Ping, Reload, Request, Set, Show, Until, Users, Watch,
};
pub use response::{
    DoctorItem, DoctorReport, Done, Explained, Failed, Found, Gate, LogLine, LogLines, Pong,
    Refused, Response, Status,
};
pub use runtime_dir::RuntimeDir;
pub use show::{
    CapacityDoc, CellDoc, ChannelDoc, ContractDoc, CountersDoc, FlowCountersDoc, FlowDoc,
    InstalledDoc, LinkDoc, ShowDoc, SliceDoc, TargetDoc,
};
pub use users::{QuotaDoc, UserDoc, UsersDoc};
pub use watch::{Connection, ConnectionsDoc, Moving, WatchDoc, Watched, WatchedLink};
pub use wire::{
    ClientCall, VERSION, WireError, decode_call, decode_client_call, decode_request,
    decode_response, decode_word, encode_call, encode_client_call, encode_request, encode_response,
    encode_word,
};

/// What the target `frames` of `fuzz/` calls.
#[cfg(fuzzing)]
pub use wire::hostile;

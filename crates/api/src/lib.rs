//! Answers: which messages netnice's processes exchange, and how they are framed on a socket.
//! May touch: the daemon's socket, descriptors sent over it, the runtime folder, and /proc.
//! Must never: decide anything; a message is only well formed or refused.
//!
//! # The protocol
//! The daemon listens on one Unix stream socket, `netnice.sock` in the [`RuntimeDir`]. A client
//! sends a [`Request`], and the daemon replies with one [`Response`]. A connection can carry
//! several such pairs in succession. Each message is one [`frame`]: a length in four bytes,
//! big-endian, and JSON. The daemon and its drivers exchange other messages in the same frames
//! ([`driver`]), as do programs and netnice-peer ([`channels`]). Encoding fails for a message that
//! is too long, decoding for an invalid one or one of another version ([`WireError`]), and a
//! request of a [`Client`] also if the connection fails ([`ClientError`]).
//!
//! A request carries the protocol version ([`VERSION`]). The daemon refuses fields that the version
//! does not define, so that it never ignores a misspelt option. In requests, rates, targets and
//! contracts are in the text form of `netnice-core`. The daemon parses them again, because it does
//! not trust clients.
//!
//! A request about a process identifies the process by its number and its start time ([`Process`]).
//! Clients send no file descriptors. The daemon sends three with one response, the one to
//! [`direct::DirectRequest::Attach`] ([`fds`]).
#![forbid(unsafe_code)]

mod budgets;
pub mod channels;
mod classes;
mod client;
pub mod direct;
pub mod driver;
mod exit;
pub mod fds;
pub mod frame;
mod history;
mod process;
mod programs;
mod request;
mod response;
mod runtime_dir;
mod show;
mod users;
mod watch;
mod wire;

pub use budgets::{BudgetDoc, BudgetPartDoc};
pub use classes::{LinkClassChange, LinkClassDoc, LinkServerDoc};
pub use client::{Client, ClientError};
pub use exit::Exit;
pub use history::{HistoryDoc, TargetHistory};
pub use process::Process;
pub use programs::{ProgramDoc, ProgramsDoc, TrafficSum};
pub use request::{
    Clear, ClearWhat, Confirm, Connections, Doctor, Explain, Find, History, LinkChange, Log, Own,
    PacketCostDoc, PacketCostsDoc, Ping, Programs, Reload, Request, Reserve, Set, Show, Until,
    Users, Watch,
};
pub use response::{
    DoctorItem, DoctorReport, Done, Explained, Failed, FailureCause, Found, LogLine, LogLines,
    Pong, Refused, RefusedBy, Response, Status,
};
pub use runtime_dir::RuntimeDir;
pub use show::{
    CapacityDoc, CellDoc, ChannelDoc, ContractDoc, CountersDoc, FlowCountersDoc, FlowDoc,
    InstalledDoc, LinkDoc, ProcessorStatusDoc, ProcessorTimeDoc, ScheduleDoc, ShowDoc, SliceDoc,
    TargetDoc, ThreadPartDoc, TrafficQuotaDoc, UnconfirmedDoc,
};
pub use users::{QuotaDoc, UserDoc, UsersDoc};
pub use watch::{Connection, ConnectionsDoc, Traffic, WatchDoc, Watched, WatchedLink};
pub use wire::{
    ClientCall, VERSION, WireError, decode_client_call, decode_driver_call, decode_driver_message,
    decode_request, decode_response, encode_client_call, encode_driver_call, encode_driver_message,
    encode_request, encode_response,
};

/// The fuzz target `frames` of `fuzz/` calls this module.
#[cfg(fuzzing)]
pub use wire::hostile;

/// The examples of README.md, which are tested.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadMe;

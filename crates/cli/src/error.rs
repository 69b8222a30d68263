//! The error of a command, and the exit status that it gives. No function fails.

use std::io;

use netnice_api::{ClientError, Exit, RuntimeDir};
use netnice_channel::ChannelError;
use netnice_channel::network::NetworkError;
use netnice_peer::issue::IssueError;
use netnice_stack::StackError;

use crate::start::StartError;

/// Why a command fails.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    /// No daemon runs, and the user is not root, so this program may not start one.
    #[error(
        "no daemon answers at {socket}\nstart one as root: {program} --runtime-dir {dir}",
        socket = dir.socket().display(), dir = dir.path().display()
    )]
    NoDaemon {
        /// The runtime folder that the daemon should serve.
        dir: RuntimeDir,
        program: String,
    },
    /// The runtime folder that `--runtime-dir` names does not exist.
    #[error("--runtime-dir: there is no {}, so no netniced serves it and nothing is set", .0.path().display())]
    NoFolder(RuntimeDir),
    /// No daemon runs, and one has left its state in the runtime folder.
    #[error(
        "no netniced serves {}, and what an earlier one has set may be in force: `netnice show` by \
         root starts one and lists it", .0.path().display()
    )]
    Stopped(RuntimeDir),
    /// No daemon runs, and the start of one failed.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The connection to the daemon failed, or the daemon's response is invalid.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A call on a flow of the direct path failed.
    #[error(transparent)]
    Flow(#[from] StackError),
    /// A channel to another host cannot be had, or has ended.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The secret of a channel is not one.
    #[error("--key: {0}")]
    Key(String),
    /// Certificates cannot be issued.
    #[error(transparent)]
    Issue(#[from] IssueError),
    /// No process has this pid.
    #[error("no process has the number {0}")]
    NoProcess(u32),
    /// The number (the first field) is the id of a thread. The second field is the pid of its
    /// process, if known.
    #[error("{0} is a thread, not a process{of}", of = of_process(*.1))]
    Thread(u32, Option<u32>),
    /// The kernel refused to open the process.
    #[error("process {pid} cannot be opened: {source}")]
    Process {
        pid: u32,
        /// The kernel's error.
        source: io::Error,
    },
    /// The capture cannot be checked. Holds the error text.
    #[error("{0}")]
    Capture(String),
    /// The cost of a packet cannot be measured. Holds the error text.
    #[error("{0}")]
    Measurement(String),
    /// An operation on a file or on standard output failed.
    #[error("{what}: {source}")]
    Io {
        /// The file or the operation.
        what: String,
        /// The error of the operation.
        source: io::Error,
    },
    /// The reader of standard output has closed it (`EPIPE`).
    #[error("standard output is closed")]
    OutputClosed,
}

impl CommandError {
    /// An [`CommandError::Io`] for this file or operation.
    pub(crate) fn io(what: impl Into<String>, source: io::Error) -> CommandError {
        let what = what.into();
        CommandError::Io { what, source }
    }

    /// The exit status for this error.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            CommandError::NoDaemon { .. }
            | CommandError::NoFolder(_)
            | CommandError::Stopped(_)
            | CommandError::Start(_) => Exit::NoDaemon,
            CommandError::Client(error) => Exit::from(error),
            CommandError::Flow(error) => of_flow(error),
            CommandError::Network(error) => of_network(error),
            CommandError::Key(_) => Exit::BadUsage,
            CommandError::OutputClosed => Exit::Done,
            _ => Exit::Error,
        }
    }
}

fn of_flow(error: &StackError) -> Exit {
    match error {
        StackError::Refused { .. } => Exit::Refused,
        StackError::Failed {
            bad_usage: true, ..
        } => Exit::BadUsage,
        StackError::Daemon(error) => Exit::from(error),
        _ => Exit::Error,
    }
}

fn of_network(error: &NetworkError) -> Exit {
    match error {
        NetworkError::NoPeer { .. } => Exit::NoDaemon,
        NetworkError::Refused { .. } | NetworkError::NotListening { .. } => Exit::Refused,
        NetworkError::NotExplained {
            is_forbidden: true, ..
        } => Exit::Refused,
        NetworkError::Channel(ChannelError::Open(_)) | NetworkError::Name { .. } => Exit::BadUsage,
        NetworkError::Channel(ChannelError::NotAdmitted { .. }) => Exit::Refused,
        NetworkError::Channel(ChannelError::Flow(error)) => of_flow(error),
        _ => Exit::Error,
    }
}

fn of_process(pid: Option<u32>) -> String {
    match pid {
        Some(pid) => format!("; its process is {pid}"),
        None => String::new(),
    }
}

//! [`BadUsage`], the reason why a command line gives no command, and its output. Printing it
//! returns an exit status and no error.

use netnice_api::{Exit, Response};
use netnice_core::contract::ContractError;
use netnice_core::policer::NotCheckable;
use netnice_core::target::TargetError;
use netnice_core::units::UnitError;
use netnice_peer::message::BadName;

use crate::check::flow::FlowError;
use crate::output::print_text;
use crate::render;

/// Why a command line gives no [`super::Command`]: it is invalid, or asks for `--help` or
/// `--version`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadUsage {
    /// The parser's error, or its text for `--help` or `--version`.
    #[error(transparent)]
    Parser(#[from] clap::Error),
    /// An option's value does not parse.
    #[error("{option}: {error}")]
    Value {
        option: &'static str,
        error: UnitError,
    },
    /// An option's value is too large or too small.
    #[error("{option}: {actual} is out of range: write {limits}")]
    OutOfRange {
        option: &'static str,
        actual: String,
        /// The valid range.
        limits: String,
    },
    /// A target does not parse.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The first word is neither a target nor a command.
    #[error("{0}\nand it is not a command; `netnice --help` lists the commands")]
    UnknownCommand(TargetError),
    /// A contract does not parse, or contradicts itself.
    #[error(transparent)]
    Contract(#[from] ContractError),
    /// The contract has no clause that a capture can violate.
    #[error(transparent)]
    NotCheckable(#[from] NotCheckable),
    /// The value of `--flow` does not parse.
    #[error(transparent)]
    Flow(#[from] FlowError),
    /// The value of `--until-exit` is not the pid of a running process. Holds the value.
    #[error(
        "--until-exit: no process `{0}` is running: write the number of a running process, or \
         no number for the process that runs netnice"
    )]
    Until(String),
    /// A text is not the name of a service on a host. Holds the text.
    #[error("write the service as NAME@HOST, for example camera@recorder, not {0:?}")]
    Service(String),
    /// The words of `at-rate` have no rate, or no command.
    #[error("at-rate: {0}")]
    AtRate(String),
    /// A word is not the name of a host.
    #[error("`{word}` is not the name of a host: {error}")]
    HostName { word: String, error: BadName },
    /// A text is not an address with a port. Holds the text.
    #[error(
        "`{0}` is not an address with a port: write, for example, 192.0.2.1:5000 or \
         [2001:db8::1]:5000"
    )]
    Address(String),
    /// An option has no meaning with this verb.
    #[error("{option} has no meaning with {verb}")]
    Meaningless {
        option: &'static str,
        verb: &'static str,
    },
    /// A value is invalid, or options exclude each other. Holds the error text.
    #[error("{0}")]
    Invalid(&'static str),
}

impl BadUsage {
    /// Prints the error to standard error, or the text for `--help` to standard output. With
    /// `json`, standard output gets the error as JSON. Returns the exit status.
    pub fn print(self, json: bool) -> Exit {
        match &self {
            BadUsage::Parser(error) => {
                // An error has no reader if standard error is closed.
                let _ = error.print();
                if !error.use_stderr() {
                    return Exit::Done;
                }
            }
            other => eprintln!("netnice: {other}"),
        }
        if json {
            let response = Response::bad_usage(self.to_string().trim_end());
            let _ = print_text(&render::json(&response));
        }
        Exit::BadUsage
    }
}

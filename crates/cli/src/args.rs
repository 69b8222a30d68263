//! Parses the command line. Input is the process's arguments. Output is a [`Command`], or
//! [`BadUsage`] if the arguments are invalid or ask for the help or the version.
//!
//! Each contract option is a clause of the contract grammar of `netnice-core`, and core parses its
//! value. So the command line defines no units. The short forms of paper NICE (`netnice PID RATE`,
//! `netnice PID`, `netnice`) have no verb.

mod channel;
mod check;
mod contract;
mod doctor;
mod error;
mod flow;
mod help;
mod link;
mod peer;
mod share;
mod short;
mod top;
mod until;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use netnice_api::{
    Clear, ClearWhat, Confirm, Explain, History, Log, Reload, Request, RuntimeDir, Set, Show,
    Until, Users,
};
use netnice_core::contract::ContractError;
use netnice_core::link::Link;
use netnice_core::target::Target;
use netnice_core::units::{Bytes, Nanos, Rate, UnitError};

use crate::channel::ChannelCommand;
use crate::check::Check;
use crate::flow::FlowCommand;
use crate::incomplete::Incomplete;
use crate::inetd::{InetdCommand, SessionArgs};
use crate::packet_costs::Part;
use crate::peer::PeerCommand;
use crate::run::Run;
use crate::share::Share;
use crate::shell::{self, ShellCommand};
pub(crate) use contract::ContractArgs;
pub(crate) use error::BadUsage;
pub(crate) use top::Top;

use channel::ChannelArgs;
use check::CheckArgs;
use doctor::{CostsPart, DoctorArgs};
use flow::FlowArgs;
use help::{AFTER_HELP, CHECK_HELP, INETD_HELP};
use link::LinkArgs;
use peer::PeerArgs;
use share::ShareArgs;
use top::TopArgs;

/// A parsed command line: a verb, and the options that all verbs have.
#[derive(Debug)]
pub(crate) struct Command {
    pub verb: Verb,
    /// The runtime folder of the daemon.
    pub runtime_dir: RuntimeDir,
    /// True if `--runtime-dir` names that folder.
    pub names_folder: bool,
    /// True: print the response as JSON.
    pub json: bool,
}

/// A verb with valid options.
#[derive(Debug)]
pub(crate) enum Verb {
    /// Send the request to the daemon and print the response.
    Request(Request),
    /// Send the request about the process with this pid, with a pidfd of it, and print the
    /// response.
    ProcessRequest(u32, Request),
    /// Show the target that this process belongs to.
    Own,
    /// Show the managed links without the targets.
    Links,
    /// Show links, targets and every program that sends or receives.
    ShowAll,
    /// Refuse an incomplete command, and list what it could be completed with.
    Incomplete(Incomplete),
    /// Register this process, then become a command.
    Run(Run),
    /// Show targets repeatedly.
    Top(Top),
    /// List, open or close flows of the direct path.
    Flow(FlowCommand),
    /// Offer, open or list channels between hosts.
    Channel(ChannelCommand),
    /// Print which features the kernel has, with or without a daemon.
    Doctor,
    /// Measure for this time what the machine takes from a real-time thread.
    MeasureStops(Nanos),
    /// Measure what a packet costs.
    MeasureCosts,
    /// Run a process of that measurement.
    CostsPart(Part),
    /// Check a capture against a contract.
    Check(Box<Check>),
    /// Run the super-server, or the gate of a session.
    Inetd(InetdCommand),
    /// Issue certificates for a laboratory.
    Peer(PeerCommand),
    /// Run the manager of existing processes.
    Share(Box<Share>),
    /// Print the shell functions for `cmd @rate`, or do what these functions call.
    Shell(ShellCommand),
    /// Print the completions for a shell.
    Completions(clap_complete::Shell),
    /// Write man pages into a folder.
    Man(PathBuf),
    /// Start the daemon, detached from this terminal.
    StartDaemon,
}

/// True if a command line asks for JSON: one of its words, up to `--`, is `--json`. For a command
/// line that does not parse.
pub(crate) fn wants_json(args: &[OsString]) -> bool {
    let mut own = args.iter().take_while(|word| *word != "--");
    own.any(|word| word == "--json")
}

/// Parses a command line whose first word is the program's name. Fails with [`BadUsage`] if an
/// argument is invalid, and for `--help` and `--version`.
pub(crate) fn parse(args: Vec<OsString>) -> Result<Command, BadUsage> {
    let matches = command().try_get_matches_from(&args);
    let matches = matches.map_err(|error| short::better_error(&args).unwrap_or(error.into()))?;
    let line = CommandLine::from_arg_matches(&matches)?;
    let common = line.common;
    let runtime_dir = common.runtime_dir.clone();
    let verb = match line.verb {
        Some(_) if line.target.is_some() => {
            let why = "the target must follow the command: netnice set TARGET …";
            return Err(BadUsage::Invalid(why));
        }
        Some(verb) => verb.into_verb(&common)?,
        None => short::verb(line.target, line.rate, &common)?,
    };
    Ok(Command {
        verb,
        names_folder: runtime_dir.is_some(),
        runtime_dir: RuntimeDir::choose(runtime_dir, std::env::var_os(RuntimeDir::VARIABLE)),
        json: common.json,
    })
}

/// The description of the command line, for the parser, man pages and completions.
pub fn command() -> clap::Command {
    contract::hide_refused(CommandLine::command())
}

/// Promise network service to programs, and keep the promise.
#[derive(Debug, Parser)]
#[command(
    name = "netnice",
    version,
    about = "Limit what a program sends and receives, or reserve a part of a link for it",
    override_usage = "netnice COMMAND …\n       netnice [PID|TARGET [RATE]]",
    after_help = AFTER_HELP,
    subcommand_help_heading = "Commands",
    disable_help_subcommand = true,
    max_term_width = 100
)]
struct CommandLine {
    #[command(subcommand)]
    verb: Option<VerbArgs>,
    /// Short form: show this target; with RATE, limit the sum of both directions
    #[arg(value_name = "PID|TARGET")]
    target: Option<String>,
    /// Short form: the limit of the sum of both directions, or none
    #[arg(value_name = "RATE", allow_hyphen_values = true)]
    rate: Option<String>,
    #[command(flatten)]
    common: Common,
}

/// Options of every verb.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Global options")]
struct Common {
    /// Print the answer as JSON
    #[arg(long, global = true)]
    json: bool,
    /// Show what the command would change, and change nothing
    #[arg(long, global = true)]
    dry_run: bool,
    /// Undo the change unless it is confirmed within this time
    #[arg(long, global = true, value_name = "TIME", allow_hyphen_values = true)]
    confirm: Option<String>,
    /// Undo the change after this time
    #[arg(
        long = "for",
        global = true,
        value_name = "TIME",
        allow_hyphen_values = true
    )]
    for_: Option<String>,
    /// Undo the change when process PID exits [without PID: the shell or script that runs netnice]
    #[arg(
        long,
        global = true,
        value_name = "PID",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = until::PARENT
    )]
    until_exit: Option<String>,
    /// The daemon's runtime folder [default: $NETNICE_RUNTIME_DIR or /run/netnice]
    #[arg(long, global = true, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
}

impl Common {
    fn confirm_ns(&self) -> Result<Option<u64>, BadUsage> {
        nanos("--confirm", self.confirm.as_deref())
    }

    fn for_ns(&self) -> Result<Option<u64>, BadUsage> {
        nanos("--for", self.for_.as_deref())
    }

    fn until(&self) -> Result<Option<Until>, BadUsage> {
        self.until_exit.as_deref().map(until::parse).transpose()
    }

    /// Refuses options of changes with a verb that changes nothing.
    fn refuse_change_options(&self, verb: &'static str) -> Result<(), BadUsage> {
        let options = [
            (self.dry_run, "--dry-run"),
            (self.confirm.is_some(), "--confirm"),
            (self.for_.is_some(), "--for"),
            (self.until_exit.is_some(), "--until-exit"),
        ];
        match options.into_iter().find(|(is_given, _)| *is_given) {
            Some((_, option)) => Err(BadUsage::Meaningless { option, verb }),
            None => Ok(()),
        }
    }
}

#[derive(Debug, Subcommand)]
enum VerbArgs {
    /// Run a command under a contract, which its children share
    Run(RunArgs),
    /// Change the contract of a target, with its running processes and open connections
    Set(SetArgs),
    /// Show links and targets, or one target
    Show {
        /// The target [default: all]
        target: Option<String>,
        /// Show rates of the last TIME: up to 2 min by seconds, up to 6 h by minutes
        #[arg(
            long,
            value_name = "TIME",
            num_args = 0..=1,
            require_equals = true,
            default_missing_value = "2min"
        )]
        history: Option<String>,
        /// Show quotas and usage per user; other users' only as root or group netnice
        #[arg(long, conflicts_with_all = ["target", "history"])]
        users: bool,
        /// Also list every program that sends or receives; programs of others only as root or
        /// group netnice
        #[arg(long, conflicts_with_all = ["target", "history", "users"])]
        all: bool,
    },
    /// Remove your contract of a target; as root, those of all users
    Clear {
        /// The target
        target: Option<String>,
        /// Clear all targets; as root, also stop managing the links
        #[arg(long, conflicts_with = "target")]
        all: bool,
    },
    /// Show current rates of targets and of all programs, and change limits
    #[command(after_help = top::HELP)]
    Top(TopArgs),
    /// Show how a target is served, which users asked for it, and what its contract does not cover
    Explain {
        /// The target, or flow:N or direct:IFACE of the direct path, or channel:N between hosts
        target: String,
    },
    /// List flows of the direct path, try one from the shell, or close one
    #[command(subcommand)]
    Flow(FlowArgs),
    /// Send messages to programs on other hosts, each by its deadline
    #[command(subcommand)]
    Channel(ChannelArgs),
    /// Make the certificates with which the hosts of a laboratory agree on channels
    #[command(subcommand)]
    Peer(PeerArgs),
    /// Show which features this kernel has, and what replaces the missing ones
    Doctor(DoctorArgs),
    /// Show what was granted, refused and repaired
    Log {
        /// Only events of the last TIME
        #[arg(long, value_name = "TIME")]
        since: Option<String>,
        /// Only the last N lines
        #[arg(
            long,
            short = 'n',
            value_name = "N",
            value_parser = clap::value_parser!(u32).range(1..)
        )]
        lines: Option<u32>,
    },
    /// Manage a link, so that parts of it can be guaranteed; without IFACE, show the managed links
    Link(LinkArgs),
    /// Check whether the traffic in a capture conforms to a contract
    #[command(after_help = CHECK_HELP)]
    Check(CheckArgs),
    /// Keep a change that was made with --confirm
    Confirm {
        /// The number that netnice printed for the change [without it: list the changes that wait]
        id: Option<u64>,
    },
    /// Read the policy file again
    Reload,
    /// Serve network services, and divide a total among their sessions
    #[command(after_help = INETD_HELP)]
    Inetd {
        /// The configuration: TOML, or lines of inetd.conf with @RATE
        config: PathBuf,
        /// The total rate to divide [default: the total in CONFIG]
        #[arg(value_name = "@RATE")]
        total: Option<String>,
        /// Only check the configuration
        #[arg(long)]
        check: bool,
    },
    /// Divide a total among the sessions of running programs, and adapt the shares to changes
    Share(ShareArgs),
    /// Wait until the limit of a session is in force, then become its program
    #[command(hide = true)]
    InetdSession(SessionArgs),
    /// Print the shell functions for `cmd @rate`: eval "$(netnice shell-init bash)"
    ShellInit {
        /// The shell
        shell: shell::Shell,
    },
    /// Run a command under the limit @RATE, which stands before the command or at its end
    #[command(after_help = shell::AT_RATE_HELP)]
    AtRate {
        /// The command, its arguments and @RATE
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
    /// Run a command under the limit of its last word, if that is @RATE
    #[command(hide = true)]
    At {
        /// The command, its arguments and @RATE
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
    /// Print the names of the commands in a text that end in @RATE
    #[command(hide = true)]
    ShellWords {
        /// The text
        text: String,
        /// Include commands in substitutions
        #[arg(long)]
        inside: bool,
    },
    /// Limit the shell that runs this
    #[command(hide = true)]
    ShellLimit {
        /// @RATE
        word: String,
    },
    /// Print the limit of the shell that runs this
    #[command(hide = true)]
    ShellPrompt,
    /// Print completions for a shell
    #[command(hide = true)]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the man pages into a folder
    #[command(hide = true)]
    Man {
        /// The folder; created if it does not exist
        dir: PathBuf,
    },
    /// Start the daemon and wait until it serves
    #[command(hide = true)]
    StartDaemon,
    /// Run a process of a measurement of costs
    #[command(hide = true)]
    MeasureCosts {
        #[command(subcommand)]
        part: CostsPart,
    },
}

#[derive(Debug, Args)]
struct RunArgs {
    #[command(flatten)]
    contract: ContractArgs,
    /// Join the programs that run under this name, and share their contract
    #[arg(long)]
    name: Option<String>,
    /// Print nothing after success
    #[arg(long, short)]
    quiet: bool,
    /// The command and its arguments
    #[arg(
        value_name = "CMD",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    command: Vec<OsString>,
}

#[derive(Debug, Args)]
struct SetArgs {
    /// pid:1234 (or 1234), name:N, app:/path, cgroup:/path, unit:nginx.service,
    /// container:web, user:ann
    target: String,
    #[command(flatten)]
    contract: ContractArgs,
    /// Only the process and its future children, not its present descendants
    #[arg(long)]
    only: bool,
}

impl VerbArgs {
    /// Converts the arguments to the verb.
    fn into_verb(self, common: &Common) -> Result<Verb, BadUsage> {
        if let Some(verb) = self.read_only() {
            common.refuse_change_options(verb)?;
        }
        match self {
            VerbArgs::Run(run) => run.into_verb(common),
            VerbArgs::Set(set) => set.into_verb(common),
            VerbArgs::Show { users: true, .. } => Ok(Verb::Request(Request::Users(Users {}))),
            VerbArgs::Show { all: true, .. } => Ok(Verb::ShowAll),
            VerbArgs::Show {
                target, history, ..
            } => {
                let target = target.as_deref().map(full_target).transpose()?;
                let last_ns = nanos("--history", history.as_deref())?;
                Ok(Verb::Request(match last_ns {
                    None => Request::Show(Show { target }),
                    Some(last_ns) => Request::History(History { target, last_ns }),
                }))
            }
            VerbArgs::Clear {
                target: None,
                all: false,
            } => Ok(Verb::Incomplete(Incomplete::Clear)),
            VerbArgs::Clear { target, .. } => clear(target.as_deref(), common),
            VerbArgs::Top(top) => top.into_verb(),
            VerbArgs::Explain { target } => match target.strip_prefix("channel:") {
                Some(digits) => channel::explain(digits),
                None => full_target(&target)
                    .map(|target| Verb::Request(Request::Explain(Explain { target }))),
            },
            VerbArgs::Flow(flow) => flow.into_verb(common),
            VerbArgs::Channel(channel) => channel.into_verb(common),
            VerbArgs::Peer(peer) => peer.into_verb(common),
            VerbArgs::Doctor(doctor) => doctor.into_verb(),
            VerbArgs::Log { since, lines } => {
                let since_ns = nanos("--since", since.as_deref())?;
                Ok(Verb::Request(Request::Log(Log { since_ns, lines })))
            }
            VerbArgs::Link(link) => link.into_verb(common),
            VerbArgs::Check(check) => check.into_verb(),
            VerbArgs::Confirm { id: None } => Ok(Verb::Incomplete(Incomplete::Confirm)),
            VerbArgs::Confirm { id: Some(id) } => {
                Ok(Verb::Request(Request::Confirm(Confirm { id })))
            }
            VerbArgs::Reload => Ok(Verb::Request(Request::Reload(Reload {}))),
            VerbArgs::Inetd {
                config,
                total,
                check,
            } => Ok(Verb::Inetd(InetdCommand::Serve {
                config,
                total: total.as_deref().map(total_rate).transpose()?,
                check,
            })),
            VerbArgs::Share(share) => share.into_verb(common),
            VerbArgs::InetdSession(session) => Ok(Verb::Inetd(InetdCommand::Session(session))),
            VerbArgs::ShellInit { shell } => Ok(Verb::Shell(ShellCommand::Init(shell))),
            VerbArgs::AtRate { words } => {
                let run = shell::parse_at_rate(words);
                run.map(Verb::Run).map_err(BadUsage::AtRate)
            }
            VerbArgs::At { words } => Ok(match shell::parse_at(words) {
                Ok(run) => Verb::Run(run),
                Err(other) => Verb::Shell(other),
            }),
            VerbArgs::ShellWords { text, inside } => {
                Ok(Verb::Shell(ShellCommand::Words { text, inside }))
            }
            VerbArgs::ShellLimit { word } => match shell::parse_rate_word(&word) {
                Some(rate) => Ok(Verb::Shell(ShellCommand::Limit(rate))),
                None => Err(BadUsage::Invalid(
                    "the word is not @RATE: write, for example, @4mbit",
                )),
            },
            VerbArgs::ShellPrompt => Ok(Verb::Shell(ShellCommand::Prompt)),
            VerbArgs::Completions { shell } => Ok(Verb::Completions(shell)),
            VerbArgs::Man { dir } => Ok(Verb::Man(dir)),
            VerbArgs::StartDaemon => Ok(Verb::StartDaemon),
            VerbArgs::MeasureCosts { part } => Ok(Verb::CostsPart(part.into())),
        }
    }

    /// The name of the verb if the options of changes (`--dry-run`, `--for`, …) have no meaning
    /// with it, else `None`.
    fn read_only(&self) -> Option<&'static str> {
        match self {
            VerbArgs::Run(_) | VerbArgs::Set(_) | VerbArgs::Clear { .. } => None,
            VerbArgs::Share(_) => None,
            VerbArgs::Link(link) if link.iface.is_some() => None,
            VerbArgs::Link(_) => Some("link without an interface"),
            VerbArgs::Show { .. } => Some("show"),
            VerbArgs::Top(_) => Some("top"),
            VerbArgs::Explain { .. } => Some("explain"),
            VerbArgs::Flow(_) => Some("flow"),
            VerbArgs::Channel(_) => Some("channel"),
            VerbArgs::Peer(_) => Some("peer"),
            VerbArgs::Doctor(_) => Some("doctor"),
            VerbArgs::Log { .. } => Some("log"),
            VerbArgs::Check(_) => Some("check"),
            VerbArgs::Confirm { .. } => Some("confirm"),
            VerbArgs::Reload => Some("reload"),
            VerbArgs::Inetd { .. } => Some("inetd"),
            VerbArgs::InetdSession(_) => Some("inetd-session"),
            VerbArgs::ShellInit { .. } => Some("shell-init"),
            VerbArgs::AtRate { .. } => Some("at-rate"),
            VerbArgs::At { .. } => Some("at"),
            VerbArgs::ShellWords { .. } => Some("shell-words"),
            VerbArgs::ShellLimit { .. } => Some("shell-limit"),
            VerbArgs::ShellPrompt => Some("shell-prompt"),
            VerbArgs::Completions { .. } => Some("completions"),
            VerbArgs::Man { .. } => Some("man"),
            VerbArgs::StartDaemon => Some("start-daemon"),
            VerbArgs::MeasureCosts { .. } => Some("measure-costs"),
        }
    }
}

impl RunArgs {
    fn into_verb(self, common: &Common) -> Result<Verb, BadUsage> {
        let name = self.name.as_deref().map(Target::name).transpose()?;
        let change = self.contract.change()?;
        if change.is_none() && name.is_none() {
            return Err(BadUsage::Contract(ContractError::Empty));
        }
        Ok(Verb::Run(Run {
            set: Set {
                change: change.map(|change| change.to_string()),
                ..set_options(common)?
            },
            name,
            command: self.command,
            quiet: self.quiet,
        }))
    }
}

impl SetArgs {
    fn into_verb(self, common: &Common) -> Result<Verb, BadUsage> {
        let target: Target = self.target.parse()?;
        let change = self.contract.change()?.ok_or(ContractError::Empty)?;
        if self.only && !matches!(target, Target::Pid(_)) {
            return Err(BadUsage::Invalid(
                "--only needs a process as the target: pid:1234",
            ));
        }
        let set = Set {
            change: Some(change.to_string()),
            only: self.only,
            ..set_options(common)?
        };
        Ok(set_verb(&target, set))
    }
}

fn clear(target: Option<&str>, common: &Common) -> Result<Verb, BadUsage> {
    let what = match target {
        Some(target) => ClearWhat::Target(full_target(target)?),
        None => ClearWhat::All,
    };
    Ok(Verb::Request(Request::Clear(Clear {
        what,
        dry_run: common.dry_run,
        confirm_ns: common.confirm_ns()?,
        for_ns: common.for_ns()?,
        until: common.until()?,
    })))
}

/// A [`Set`] with the options that all contract changes share.
fn set_options(common: &Common) -> Result<Set, BadUsage> {
    Ok(Set {
        dry_run: common.dry_run,
        confirm_ns: common.confirm_ns()?,
        for_ns: common.for_ns()?,
        until: common.until()?,
        ..Set::default()
    })
}

/// The request about a target. For a process the request goes with its pidfd.
fn set_verb(target: &Target, set: Set) -> Verb {
    let request = Request::Set(Set {
        target: target.to_string(),
        ..set
    });
    match target {
        Target::Pid(pid) => Verb::ProcessRequest(pid.get(), request),
        _ => Verb::Request(request),
    }
}

/// Parses a target, and prints it in its full form (`pid:7` for `7`).
fn full_target(text: &str) -> Result<String, BadUsage> {
    Ok(text.parse::<Target>()?.to_string())
}

/// Parses a rate, and prints it in its exact form; `none` for `none` and `0`.
fn rate(option: &'static str, text: Option<&str>) -> Result<Option<String>, BadUsage> {
    match text {
        None => Ok(None),
        Some("none" | "0") => Ok(Some("none".to_string())),
        Some(text) => Ok(Some(quantity::<Rate>(option, text)?.compact())),
    }
}

/// Parses a total such as `@512Kbyte/sec`, the form in paper NICE; the `@` is optional.
fn total_rate(text: &str) -> Result<Rate, BadUsage> {
    quantity("@RATE", text.strip_prefix('@').unwrap_or(text))
}

fn overhead(text: &str) -> Result<u64, BadUsage> {
    match quantity("--overhead", text)? {
        Bytes(bytes @ 0..=MAX_OVERHEAD) => Ok(bytes),
        Bytes(actual) => Err(BadUsage::OutOfRange {
            option: "--overhead",
            actual: format!("{actual} bytes"),
            limits: format!("0 to {MAX_OVERHEAD} bytes"),
        }),
    }
}

fn nanos(option: &'static str, text: Option<&str>) -> Result<Option<u64>, BadUsage> {
    let nanos = text
        .map(|text| quantity::<Nanos>(option, text))
        .transpose()?;
    match nanos {
        Some(Nanos(0)) => Err(BadUsage::Invalid(
            "a time of zero is not allowed: write, for example, 30s or 1h",
        )),
        other => Ok(other.map(|nanos| nanos.0)),
    }
}

fn quantity<T: std::str::FromStr<Err = UnitError>>(
    option: &'static str,
    text: &str,
) -> Result<T, BadUsage> {
    text.parse()
        .map_err(|error| BadUsage::Value { option, error })
}

const MAX_OVERHEAD: u64 = Link::MAX_OVERHEAD.0;

#[cfg(test)]
mod doc_commands;
#[cfg(test)]
mod tests;

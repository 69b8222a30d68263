//! The command line: its options, and the request that it means.
//!
//! Input is the process's arguments. Output is a [`Command`], or [`BadUsage`] if the arguments are
//! invalid.
//!
//! Each contract option is a clause of the contract grammar of `netnice-core`, and core parses its
//! value. So the command line defines no units. The paper's short forms (`netnice PID RATE`,
//! `netnice PID`, `netnice`) have no verb.

mod check;
mod contract;
mod link;
mod share;
mod short;
mod top;
pub(crate) mod until;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use netnice_api::{
    Clear, ClearWhat, Confirm, Exit, Explain, History, Log, Reload, Request, RuntimeDir, Set, Show,
    Until, Users,
};
use netnice_core::contract::ContractError;
use netnice_core::link::Link;
use netnice_core::policer::NotCheckable;
use netnice_core::target::{Target, TargetError};
use netnice_core::units::{Bytes, Nanos, Rate, UnitError};

use crate::check::Check;
use crate::check::flow::FlowError;
use crate::share::Share;
use crate::{inetd, shell};
pub(crate) use contract::ContractArgs;
pub(crate) use top::Top;

use check::TypedCheck;
use link::TypedLink;

/// A parsed command line: a verb, and the options that all verbs have.
#[derive(Debug)]
pub(crate) struct Command {
    pub verb: Verb,
    /// The runtime folder of the daemon.
    pub runtime_dir: RuntimeDir,
    /// Print the answer as JSON.
    pub json: bool,
}

/// A verb with valid options.
#[derive(Debug)]
pub(crate) enum Verb {
    /// Send the request to the daemon and print its answer.
    Ask(Request),
    /// The same for a process, with its pidfd. Holds its pid.
    AskAbout(u32, Request),
    /// Show the contract in force for this process.
    Own,
    /// Show the managed links without the targets.
    Links,
    /// Register this process, then become a command.
    Run(Run),
    /// Show targets repeatedly.
    Top(Top),
    /// Print what the kernel offers, with or without a daemon.
    Doctor,
    /// Check a capture against a contract.
    Check(Box<Check>),
    /// Run the super-server, or the gate of a session.
    Inetd(inetd::Asked),
    /// Run the manager of existing processes.
    Share(Box<Share>),
    /// A part of `@rate` in a shell.
    Shell(shell::Asked),
    /// Print the completions for a shell.
    Completions(clap_complete::Shell),
    /// Write man pages into a folder.
    Man(PathBuf),
    /// Start the daemon, detached from this terminal.
    StartDaemon,
}

/// [`Verb::Run`].
#[derive(Debug)]
pub(crate) struct Run {
    /// The request; the process fills in its target.
    pub set: Set,
    /// The name that the process joins.
    pub name: Option<Target>,
    /// The command and its arguments; not empty.
    pub command: Vec<OsString>,
    /// Print nothing after success.
    pub quiet: bool,
}

/// Why a command line is invalid, or that the parser answers it itself (`--help`).
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadUsage {
    /// The parser's error, or its answer to `--help` or `--version`.
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
    Beyond {
        option: &'static str,
        actual: String,
        /// The valid range.
        limits: String,
    },
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The first word is neither a target nor a command.
    #[error("{0}\n(nor is it a command; `netnice --help` lists them)")]
    Word(TargetError),
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
        "--until-exit: `{0}` is not a process that runs: write its number, or nothing for the one that runs netnice"
    )]
    Until(String),
    /// An option has no meaning with this verb.
    #[error("{option} has no meaning with {verb}")]
    Meaningless {
        option: &'static str,
        verb: &'static str,
    },
    /// A combination of options has no meaning. Holds the error text.
    #[error("{0}")]
    Nonsense(&'static str),
}

impl BadUsage {
    /// Prints the error, and returns the exit status.
    pub fn print(self) -> Exit {
        match self {
            BadUsage::Parser(error) => {
                // A failure to print has no reader.
                let _ = error.print();
                match error.use_stderr() {
                    true => Exit::BadUsage,
                    false => Exit::Done,
                }
            }
            other => {
                eprintln!("netnice: {other}");
                Exit::BadUsage
            }
        }
    }
}

/// Parses a command line whose first word is the program's name.
pub(crate) fn parse(args: Vec<OsString>) -> Result<Command, BadUsage> {
    let matches = command().try_get_matches_from(&args);
    let matches = matches.map_err(|error| short::with_options(&args).unwrap_or(error.into()))?;
    let typed = Typed::from_arg_matches(&matches)?;
    let common = typed.common;
    let runtime_dir = common.runtime_dir.clone();
    let verb = match typed.verb {
        Some(_) if typed.target.is_some() => {
            let why = "a target comes behind the command: netnice set TARGET …";
            return Err(BadUsage::Nonsense(why));
        }
        Some(verb) => verb.means(&common)?,
        None => short::means(typed.target, typed.rate, &common)?,
    };
    Ok(Command {
        verb,
        runtime_dir: RuntimeDir::choose(runtime_dir, std::env::var_os(RuntimeDir::VARIABLE)),
        json: common.json,
    })
}

/// The description of the command line, for the parser, man pages and completions.
pub fn command() -> clap::Command {
    Typed::command()
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
struct Typed {
    #[command(subcommand)]
    verb: Option<TypedVerb>,
    /// Short form: show this target, or with RATE limit both of its directions together
    #[arg(value_name = "PID|TARGET")]
    target: Option<String>,
    /// Short form: the limit of both directions together, or none
    #[arg(value_name = "RATE", allow_hyphen_values = true)]
    rate: Option<String>,
    #[command(flatten)]
    common: Common,
}

/// Options of every verb.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Everywhere")]
struct Common {
    /// Print the answer as JSON
    #[arg(long, global = true)]
    json: bool,
    /// Only say what would be done
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
    /// Undo the change when this process ends [without PID: the one that runs netnice, a shell or a
    /// script]
    #[arg(
        long,
        global = true,
        value_name = "PID",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = until::PARENT
    )]
    until_exit: Option<String>,
    /// The daemon's folder [default: $NETNICE_RUNTIME_DIR or /run/netnice]
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
        self.until_exit.as_deref().map(until::of).transpose()
    }

    /// Refuses options of changes with a verb that changes nothing.
    fn only_reads(&self, verb: &'static str) -> Result<(), BadUsage> {
        let named = [
            (self.dry_run, "--dry-run"),
            (self.confirm.is_some(), "--confirm"),
            (self.for_.is_some(), "--for"),
            (self.until_exit.is_some(), "--until-exit"),
        ];
        match named.into_iter().find(|(named, _)| *named) {
            Some((_, option)) => Err(BadUsage::Meaningless { option, verb }),
            None => Ok(()),
        }
    }
}

#[derive(Debug, Subcommand)]
enum TypedVerb {
    /// Run a command under a contract, which its children share
    Run(TypedRun),
    /// Change the contract of a target, also of what runs and is connected already
    Set(TypedSet),
    /// Show links and targets, or one target
    Show {
        /// The target [default: all]
        target: Option<String>,
        /// What it did in the last TIME: two minutes second by second, up to six hours by minutes
        #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "2min")]
        history: Option<String>,
        /// What each user has, and of how much: the quotas; of others than yourself only as root or
        /// the group netnice
        #[arg(long, conflicts_with_all = ["target", "history"])]
        users: bool,
    },
    /// Take back what you asked for a target; as root what anybody asked
    Clear {
        /// The target
        #[arg(required_unless_present = "all")]
        target: Option<String>,
        /// All targets; as root managed links too
        #[arg(long, conflicts_with = "target")]
        all: bool,
    },
    /// Show who does what now; limits can be changed in it
    #[command(after_help = top::HELP)]
    Top(top::TypedTop),
    /// Say how a target is served, who asked for it, and what is not covered
    Explain {
        /// The target; flow:N and direct:IFACE tell of the direct path
        target: String,
    },
    /// Say what this kernel offers, and what is used instead of what is missing
    Doctor,
    /// Show what was granted, refused and repaired
    Log {
        /// Only what happened within this time before now
        #[arg(long, value_name = "TIME")]
        since: Option<String>,
        /// Only the latest so many lines
        #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        lines: Option<u32>,
    },
    /// Manage a link, so that parts of it can be promised; without IFACE show those managed
    Link(TypedLink),
    /// Say whether the traffic in a capture keeps to a contract
    #[command(after_help = CHECK_HELP)]
    Check(TypedCheck),
    /// Keep a change that was made with --confirm
    Confirm {
        /// The number that the change was answered with
        id: u64,
    },
    /// Read the policy file again
    Reload,
    /// Serve network services, and divide a total among their sessions
    #[command(after_help = INETD_HELP)]
    Inetd {
        /// TOML, or lines of inetd.conf with @RATE
        config: PathBuf,
        /// The total that is divided [default: the one that CONFIG names]
        #[arg(value_name = "@RATE")]
        total: Option<String>,
        /// Only say whether it could be served
        #[arg(long)]
        check: bool,
    },
    /// Divide a total among the sessions of what runs already, and keep it divided
    Share(share::TypedShare),
    /// Wait at the gate of a session, then become a program
    #[command(hide = true)]
    InetdSession(inetd::TypedSession),
    /// Print what teaches a shell `cmd @rate`: eval "$(netnice shell-init bash)"
    ShellInit {
        /// The shell
        shell: shell::Shell,
    },
    /// Run a command under the limit of its last word, if that is @RATE
    #[command(hide = true)]
    At {
        /// The command, its arguments and @RATE
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
    /// Name the commands of a text that end in @RATE
    #[command(hide = true)]
    ShellWords {
        /// The text
        text: String,
        /// Those in substitutions too
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
        /// The folder; it is made if it is not there
        dir: PathBuf,
    },
    /// Start the daemon and wait until it serves
    #[command(hide = true)]
    StartDaemon,
}

#[derive(Debug, Args)]
struct TypedRun {
    #[command(flatten)]
    contract: ContractArgs,
    /// Join the programs that run under this name, and share their contract
    #[arg(long)]
    name: Option<String>,
    /// Say nothing if all is well
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
struct TypedSet {
    /// pid:1234 (or 1234), name:N, app:/path, cgroup:/path, unit:nginx.service,
    /// container:web, user:ann
    target: String,
    #[command(flatten)]
    contract: ContractArgs,
    /// Only the process itself and what it forks from now on, not its living descendants
    #[arg(long)]
    only: bool,
}

impl TypedVerb {
    /// The verb that the typed form means.
    fn means(self, common: &Common) -> Result<Verb, BadUsage> {
        if let Some(verb) = self.reading() {
            common.only_reads(verb)?;
        }
        match self {
            TypedVerb::Run(run) => run.means(common),
            TypedVerb::Set(set) => set.means(common),
            TypedVerb::Show { users: true, .. } => Ok(Verb::Ask(Request::Users(Users {}))),
            TypedVerb::Show {
                target, history, ..
            } => {
                let target = target.as_deref().map(full_target).transpose()?;
                let last_ns = nanos("--history", history.as_deref())?;
                Ok(Verb::Ask(match last_ns {
                    None => Request::Show(Show { target }),
                    Some(last_ns) => Request::History(History { target, last_ns }),
                }))
            }
            TypedVerb::Clear { target, .. } => clear(target.as_deref(), common),
            TypedVerb::Top(top) => top.means(),
            TypedVerb::Explain { target } => {
                let target = full_target(&target)?;
                Ok(Verb::Ask(Request::Explain(Explain { target })))
            }
            TypedVerb::Doctor => Ok(Verb::Doctor),
            TypedVerb::Log { since, lines } => {
                let since_ns = nanos("--since", since.as_deref())?;
                Ok(Verb::Ask(Request::Log(Log { since_ns, lines })))
            }
            TypedVerb::Link(link) => link.means(common),
            TypedVerb::Check(check) => check.means(),
            TypedVerb::Confirm { id } => Ok(Verb::Ask(Request::Confirm(Confirm { id }))),
            TypedVerb::Reload => Ok(Verb::Ask(Request::Reload(Reload {}))),
            TypedVerb::Inetd {
                config,
                total,
                check,
            } => Ok(Verb::Inetd(inetd::Asked::Serve {
                config,
                total: total.as_deref().map(total_rate).transpose()?,
                check,
            })),
            TypedVerb::Share(share) => share.means(common),
            TypedVerb::InetdSession(session) => Ok(Verb::Inetd(inetd::Asked::Session(session))),
            TypedVerb::ShellInit { shell } => Ok(Verb::Shell(shell::Asked::Init(shell))),
            TypedVerb::At { words } => Ok(match shell::at(words) {
                Ok(run) => Verb::Run(run),
                Err(other) => Verb::Shell(other),
            }),
            TypedVerb::ShellWords { text, inside } => {
                Ok(Verb::Shell(shell::Asked::Words { text, inside }))
            }
            TypedVerb::ShellLimit { word } => match shell::rate_word(&word) {
                Some(rate) => Ok(Verb::Shell(shell::Asked::Limit(rate))),
                None => Err(BadUsage::Nonsense(
                    "the word behind a function is no @rate: write @4mbit",
                )),
            },
            TypedVerb::ShellPrompt => Ok(Verb::Shell(shell::Asked::Prompt)),
            TypedVerb::Completions { shell } => Ok(Verb::Completions(shell)),
            TypedVerb::Man { dir } => Ok(Verb::Man(dir)),
            TypedVerb::StartDaemon => Ok(Verb::StartDaemon),
        }
    }

    /// The name of the verb if it changes no contract and no link.
    fn reading(&self) -> Option<&'static str> {
        match self {
            TypedVerb::Run(_) | TypedVerb::Set(_) | TypedVerb::Clear { .. } => None,
            TypedVerb::Share(_) => None,
            TypedVerb::Link(link) if link.iface.is_some() => None,
            TypedVerb::Link(_) => Some("link without an interface"),
            TypedVerb::Show { .. } => Some("show"),
            TypedVerb::Top(_) => Some("top"),
            TypedVerb::Explain { .. } => Some("explain"),
            TypedVerb::Doctor => Some("doctor"),
            TypedVerb::Log { .. } => Some("log"),
            TypedVerb::Check(_) => Some("check"),
            TypedVerb::Confirm { .. } => Some("confirm"),
            TypedVerb::Reload => Some("reload"),
            TypedVerb::Inetd { .. } => Some("inetd"),
            TypedVerb::InetdSession(_) => Some("inetd-session"),
            TypedVerb::ShellInit { .. } => Some("shell-init"),
            TypedVerb::At { .. } => Some("at"),
            TypedVerb::ShellWords { .. } => Some("shell-words"),
            TypedVerb::ShellLimit { .. } => Some("shell-limit"),
            TypedVerb::ShellPrompt => Some("shell-prompt"),
            TypedVerb::Completions { .. } => Some("completions"),
            TypedVerb::Man { .. } => Some("man"),
            TypedVerb::StartDaemon => Some("start-daemon"),
        }
    }
}

impl TypedRun {
    fn means(self, common: &Common) -> Result<Verb, BadUsage> {
        let name = self.name.as_deref().map(Target::name).transpose()?;
        let change = self.contract.change()?;
        if change.is_none() && name.is_none() {
            return Err(BadUsage::Contract(ContractError::Empty));
        }
        Ok(Verb::Run(Run {
            set: Set {
                change: change.map(|change| change.to_string()),
                ..changing(common)?
            },
            name,
            command: self.command,
            quiet: self.quiet,
        }))
    }
}

impl TypedSet {
    fn means(self, common: &Common) -> Result<Verb, BadUsage> {
        let target: Target = self.target.parse()?;
        let change = self.contract.change()?.ok_or(ContractError::Empty)?;
        if self.only && !matches!(target, Target::Pid(_)) {
            return Err(BadUsage::Nonsense("--only goes with a process: pid:1234"));
        }
        let set = Set {
            change: Some(change.to_string()),
            only: self.only,
            ..changing(common)?
        };
        Ok(set_target(&target, set))
    }
}

fn clear(target: Option<&str>, common: &Common) -> Result<Verb, BadUsage> {
    let what = match target {
        Some(target) => ClearWhat::Target(full_target(target)?),
        None => ClearWhat::All,
    };
    Ok(Verb::Ask(Request::Clear(Clear {
        what,
        dry_run: common.dry_run,
        confirm_ns: common.confirm_ns()?,
        for_ns: common.for_ns()?,
        until: common.until()?,
    })))
}

/// A [`Set`] with the options that all contract changes share.
fn changing(common: &Common) -> Result<Set, BadUsage> {
    Ok(Set {
        dry_run: common.dry_run,
        confirm_ns: common.confirm_ns()?,
        for_ns: common.for_ns()?,
        until: common.until()?,
        ..Set::default()
    })
}

/// The request about a target. For a process the request goes with its pidfd.
fn set_target(target: &Target, set: Set) -> Verb {
    let request = Request::Set(Set {
        target: target.to_string(),
        ..set
    });
    match target {
        Target::Pid(pid) => Verb::AskAbout(pid.get(), request),
        _ => Verb::Ask(request),
    }
}

/// A target's full form.
fn full_target(text: &str) -> Result<String, BadUsage> {
    Ok(text.parse::<Target>()?.to_string())
}

/// A rate in its exact form, or `none`.
fn rate(option: &'static str, text: Option<&str>) -> Result<Option<String>, BadUsage> {
    match text {
        None => Ok(None),
        Some("none" | "0") => Ok(Some("none".to_string())),
        Some(text) => Ok(Some(quantity::<Rate>(option, text)?.compact())),
    }
}

/// Parses a total such as `@512Kbyte/sec`, the paper's form; the `@` is optional.
fn total_rate(text: &str) -> Result<Rate, BadUsage> {
    quantity("@RATE", text.strip_prefix('@').unwrap_or(text))
}

fn overhead(text: &str) -> Result<u64, BadUsage> {
    match quantity("--overhead", text)? {
        Bytes(bytes @ 0..=MAX_OVERHEAD) => Ok(bytes),
        Bytes(actual) => Err(BadUsage::Beyond {
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
        Some(Nanos(0)) => Err(BadUsage::Nonsense(
            "a time of zero is no time: write 30s or 1h",
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

const AFTER_HELP: &str = "\
Short forms:
  netnice PID RATE   limit both directions of a process together
  netnice PID        show what holds for it
  netnice            show what holds for this very process

Rates: 4mbit, 4Mbit/s, 500kbit, 1.5gbit, 200kB/s, 2MiB/s, 128Kbyte/sec (1024); none or 0 = no limit.
Exit status: 0 done, 1 error, 2 bad usage, 3 refused, 4 no daemon; 126, 127 as env(1).";

const CHECK_HELP: &str = "\
One of --cell, --channel, --up, --down and --both (with --burst) says what is allowed; every packet
of the capture, or of the flow, counts with its length on the wire. Of a channel messages count: the
fragments of one IP datagram are one, and with --gap also packets that come that close together. A
message comes with its first packet, and is as long as if it had come in one.

Exit status: 0 every packet conforms; 3 at least one does not, the first is named;
1 the capture cannot be read or has no packet to check; 2 bad usage.";

const INETD_HELP: &str = "\
A session of a service with @RATE has that rate; the others share what is left of the total. Lines:
  service stream|dgram protocol wait|nowait user program arguments... [@RATE]
  service program [arguments...] [@RATE]

Exit status: 2 the configuration makes no sense (file, line and reason are told); 1 a port is taken.";

const MAX_OVERHEAD: u64 = Link::MAX_OVERHEAD.0;

#[cfg(test)]
mod documented;
#[cfg(test)]
mod tests;

//! `cmd @rate` in a shell (paper NICE, 4.3.2): the text that `shell-init` prints, and the verbs
//! that the text calls.
//!
//! The paper changed the Bourne shell. This module changes no shell. With the text, bash or zsh
//! still parses, expands, redirects and forks as before. The text only replaces a command that has
//! an `@rate` as its last word.
//!
//! ```text
//!  ftp host @128Kbyte/sec
//!    │ before it runs (bash: DEBUG trap; zsh: preexec, in scripts TRAPDEBUG)
//!    ▼
//!  shell-words TEXT ─▶ "job ftp"         a function `ftp` is made, for this one command
//!    │ the shell runs the function with the words, redirections and process of ftp
//!    ▼
//!  at ftp host @128Kbyte/sec ─▶ limits itself, then becomes `ftp host`
//! ```
//!
//! The shell runs what it parsed itself, so quotes, pipes and here-documents keep their meaning,
//! and the history shows the typed text. A user's function with an `@rate` runs in a subshell that
//! first limits itself ([`ShellCommand::Limit`]). A builtin runs in the shell itself and gets no
//! limit, except `command` and `exec`, which run a program.
//!
//! The other verbs (`at`, `shell-words`, `shell-limit`, `shell-prompt`) are for that text only and
//! hidden in the help. A limit fails if the daemon refuses it or cannot be reached.

mod scanner;

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use netnice_api::{Client, ContractDoc, Exit, Own, Request, Response, RuntimeDir, Set, ShowDoc};
use netnice_core::target::Target;
use netnice_core::units::Rate;

use crate::error::CommandError;
use crate::render::printable;
use crate::run::{self, Run};
use crate::{daemon, output, process};
use scanner::Name;

/// A shell for which there is an initialization text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Shell {
    /// bash 4.4 or newer
    Bash,
    /// zsh 5.1 or newer
    Zsh,
}

/// The commands of this module, with their options.
#[derive(Debug)]
pub(crate) enum ShellCommand {
    /// Print the text that the shell is to evaluate.
    Init(Shell),
    /// Print the names of the commands in a text that have an `@rate`.
    Words {
        text: String,
        /// True: also print those in substitutions.
        inside: bool,
    },
    /// Become a command whose last word is no rate.
    Exec(Vec<OsString>),
    /// Limit the shell that runs this command.
    Limit(Rate),
    /// Print the limit of the shell, for a prompt.
    Prompt,
}

/// Parses `at WORDS…`: a limited command if the last word is `@rate`, else the command as it is.
pub(crate) fn parse_at(mut words: Vec<OsString>) -> Result<Run, ShellCommand> {
    let rate = words
        .last()
        .and_then(|word| parse_rate_word(word.to_str()?));
    // `at-rate CMD @RATE` takes the rate itself.
    let takes_rate = is_at_rate(&words);
    let Some(rate) = rate.filter(|_| words.len() > 1 && !takes_rate) else {
        return Err(ShellCommand::Exec(words));
    };
    words.pop();
    Ok(Run {
        set: limit_change(rate),
        name: None,
        command: words,
        quiet: true,
    })
}

/// Parses `at-rate WORDS…`: a command with `@rate` before it or at its end. The error is the text
/// for the user, if there is no rate or no command.
pub(crate) fn parse_at_rate(mut words: Vec<OsString>) -> Result<Run, String> {
    let is_rate = |word: Option<&OsString>| {
        word.and_then(|word| word.to_str())
            .is_some_and(|word| word.starts_with('@'))
    };
    let word = match (is_rate(words.first()), is_rate(words.last())) {
        (true, _) => words.remove(0),
        (false, true) => words.pop().unwrap_or_default(),
        (false, false) => {
            return Err(
                "no word is a rate: write at-rate @4mbit CMD …, or at-rate CMD … @4mbit"
                    .to_string(),
            );
        }
    };
    let text = word.to_string_lossy();
    let rate = text.trim_start_matches('@').parse::<Rate>();
    let rate = rate.map_err(|error| format!("{text}: {error}"))?;
    if words.is_empty() {
        return Err(format!("no command follows {text}"));
    }
    Ok(Run {
        set: limit_change(rate),
        name: None,
        command: words,
        quiet: true,
    })
}

/// True if a command is `at-rate …` or `netnice at-rate …`.
fn is_at_rate(words: &[OsString]) -> bool {
    let is_called = |word: Option<&OsString>, name: &str| {
        let called = word.map(Path::new).and_then(Path::file_name);
        called.is_some_and(|called| called == name)
    };
    let first = words.first();
    is_called(first, "at-rate")
        || (is_called(first, "netnice") && words.get(1).is_some_and(|word| word == "at-rate"))
}

/// The command line, if the program was called by the name `at-rate`: that of `netnice at-rate`.
pub(crate) fn as_at_rate(args: Vec<OsString>) -> Vec<OsString> {
    let called = args.first().map(Path::new).and_then(Path::file_name);
    match called.is_some_and(|name| name == "at-rate") {
        false => args,
        true => ["netnice", "at-rate"]
            .map(OsString::from)
            .into_iter()
            .chain(args.into_iter().skip(1))
            .collect(),
    }
}

/// Parses a word `@rate`; `None` for any other word.
pub(crate) fn parse_rate_word(word: &str) -> Option<Rate> {
    word.strip_prefix('@')?.parse().ok()
}

/// Executes the command.
pub(crate) fn execute(dir: &RuntimeDir, command: ShellCommand) -> Result<Exit, CommandError> {
    match command {
        ShellCommand::Init(shell) => output::print_text(&init(shell)?).map(|()| Exit::Done),
        ShellCommand::Words { text, inside } => print_limited(&text, inside),
        ShellCommand::Exec(words) => Ok(match words.split_first() {
            Some((program, args)) => run::exec(program, args),
            None => Exit::BadUsage,
        }),
        ShellCommand::Limit(rate) => limit_parent(dir, rate),
        ShellCommand::Prompt => Ok(prompt(dir)),
    }
}

/// The change that `@rate` means: that of the short form `netnice PID RATE`.
fn limit_change(rate: Rate) -> Set {
    Set {
        change: Some(format!("both {}", rate.compact())),
        short: true,
        ..Set::default()
    }
}

/// The text that the shell is to evaluate.
fn init(shell: Shell) -> Result<String, CommandError> {
    let here = std::env::current_exe()
        .map_err(|source| CommandError::io("this program's own path", source))?;
    let here = format!("'{}'", here.display().to_string().replace('\'', r"'\''"));
    let text = match shell {
        Shell::Bash => include_str!("shell/init.bash"),
        Shell::Zsh => include_str!("shell/init.zsh"),
    };
    Ok(text.replace("@NETNICE@", &here))
}

/// Prints one line for each command to limit: `literal NAME`, `job NAME` or `expand TEXT`.
fn print_limited(text: &str, inside: bool) -> Result<Exit, CommandError> {
    let found = scanner::limited(text, inside);
    for remark in &found.remarks {
        eprintln!("netnice: {}", printable(remark));
    }
    let lines: Vec<String> = found
        .names
        .into_iter()
        .map(|name| match name {
            Name::Literal(name) => format!("literal {name}"),
            Name::Job(name) => format!("job {name}"),
            Name::Expand(text) => format!("expand {text}"),
        })
        .collect();
    if !lines.is_empty() {
        output::print_text(&lines.join("\n"))?;
    }
    Ok(Exit::Done)
}

/// Limits the parent of this process.
fn limit_parent(dir: &RuntimeDir, rate: Rate) -> Result<Exit, CommandError> {
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    let pid = u32::try_from(parent).unwrap_or(0);
    let process = process::open(pid)?;
    let set = Set {
        target: Target::pid(pid)
            .ok_or(CommandError::NoProcess(pid))?
            .to_string(),
        ..limit_change(rate)
    };
    let response = daemon::connect(dir)?.call(&Request::Set(set), Some(process.as_fd()))?;
    if !matches!(response, Response::Done(_)) {
        output::print_response(&response, false)?;
    }
    Ok(Exit::from(&response))
}

/// Prints the limit of this process, which is that of the shell that started it; nothing if there
/// is no limit. A prompt must appear at once and must not start a daemon, so any failure counts as
/// no limit.
fn prompt(dir: &RuntimeDir) -> Exit {
    let state = || -> Option<ShowDoc> {
        let pidfd = process::open(std::process::id()).ok()?;
        let mut client = Client::connect(dir).ok()?;
        let request = Request::Own(Own {});
        match client
            .call_within(PROMPT_TIMEOUT, &request, Some(pidfd.as_fd()))
            .ok()?
        {
            Response::Shown(doc) => Some(doc),
            _ => None,
        }
    };
    if let Some(target) = state().and_then(|doc| doc.targets.into_iter().next()) {
        let text = format_limits(&target.effective);
        if !text.is_empty() {
            // An error has no reader if standard output is closed.
            let _ = output::print_text(&text);
        }
    }
    Exit::Done
}

/// Formats limits in their shortest form: ` @4mbit`, ` @up:4mbit @down:8mbit`.
fn format_limits(contract: &ContractDoc) -> String {
    let limits = [
        ("@", contract.both),
        ("@up:", contract.up),
        ("@down:", contract.down),
    ];
    let texts = limits.into_iter().filter_map(|(sign, bits)| {
        let rate = Rate::new(bits?)?;
        Some(format!(" {sign}{}", format_rate(rate)))
    });
    texts.collect()
}

/// Formats a rate as a user would type it.
fn format_rate(rate: Rate) -> String {
    let bytes = rate.bytes_per_second();
    let whole = rate.bits_per_second().is_multiple_of(8 * 1024);
    match bytes / 1024 {
        kib if whole && kib.is_multiple_of(1024) => format!("{}MiB/s", kib / 1024),
        kib if whole => format!("{kib}KiB/s"),
        _ => rate.compact(),
    }
}

/// What `netnice at-rate --help` prints below the options.
pub(crate) const AT_RATE_HELP: &str = "\
The command, its children and all their connections together have this rate, in both directions.
It works in every shell and needs no initialization:
  at-rate curl -O https://example.org/file @4mbit
  at-rate @4mbit rsync -a /data/ far:/data/

Exit status: that of the command; 126 and 127 as env(1); 2 bad usage, 3 refused, 4 no daemon.";

/// Longest time that a prompt waits for the daemon.
const PROMPT_TIMEOUT: Duration = Duration::from_millis(300);

#[cfg(test)]
mod tests;

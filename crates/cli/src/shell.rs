//! `cmd @rate` in a shell (NICE 4.3.2): the text that `shell-init` prints, and the verbs that the
//! text calls.
//!
//! The paper changed the Bourne shell. This module changes no shell. With the text, bash or zsh
//! still parses, expands, redirects and forks as before. The text only replaces the command with an
//! `@rate` behind it.
//!
//! ```text
//!  ftp host @128Kbyte/sec
//!    │ before it runs (bash: DEBUG trap; zsh: preexec, in scripts TRAPDEBUG)
//!    ▼
//!  shell-words TEXT ─▶ "literal ftp"     a function `ftp` is made, for this one command
//!    │ the shell runs the function with the words, redirections and process of ftp
//!    ▼
//!  at ftp host @128Kbyte/sec ─▶ limits itself, then becomes `ftp host`
//! ```
//!
//! Nothing is parsed twice, so quotes, pipes and here-documents keep their meaning, and the history
//! shows the typed text. A user's function with an `@rate` runs in a subshell that first limits
//! itself ([`Asked::Limit`]). A builtin runs in the shell itself and gets no limit.
//!
//! The verbs except `shell-init` are for that text only and hidden in the help. A limit
//! fails if the daemon refuses it or cannot be reached.

mod words;

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process;
use std::time::Duration;

use netnice_api::{Client, ContractDoc, Exit, Own, Request, Response, RuntimeDir, Set, ShowDoc};
use netnice_core::target::Target;
use netnice_core::units::Rate;

use crate::args::Run;
use crate::desk::{self, Trouble};
use words::Name;

/// A shell that can be taught.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Shell {
    /// bash 4.4 or newer
    Bash,
    /// zsh 5.1 or newer
    Zsh,
}

/// The form of the command that was typed.
#[derive(Debug)]
pub(crate) enum Asked {
    /// Print the text that the shell is to evaluate.
    Init(Shell),
    /// Print the commands of a text that have an `@rate`.
    Words {
        text: String,
        /// Also print those in substitutions.
        inside: bool,
    },
    /// Become a command whose last word is no rate.
    Become(Vec<OsString>),
    /// Limit the shell that runs this command.
    Limit(Rate),
    /// Print the limit of the shell, for a prompt.
    Prompt,
}

/// The meaning of `at WORDS…`: a limited command if the last word is `@rate`.
pub(crate) fn at(mut words: Vec<OsString>) -> Result<Run, Asked> {
    let rate = words.last().and_then(|word| rate_word(word.to_str()?));
    let Some(rate) = rate.filter(|_| words.len() > 1) else {
        return Err(Asked::Become(words));
    };
    words.pop();
    Ok(Run {
        set: limit(rate),
        name: None,
        command: words,
        quiet: true,
    })
}

/// Parses a word `@rate`; `None` if it is none.
pub(crate) fn rate_word(word: &str) -> Option<Rate> {
    word.strip_prefix('@')?.parse().ok()
}

/// Executes the verb.
pub(crate) fn serve(dir: &RuntimeDir, asked: Asked) -> Result<Exit, Trouble> {
    match asked {
        Asked::Init(shell) => desk::say(&init(shell)?).map(|()| Exit::Done),
        Asked::Words { text, inside } => tell_words(&text, inside),
        Asked::Become(words) => Ok(become_command(&words)),
        Asked::Limit(rate) => limit_parent(dir, rate),
        Asked::Prompt => Ok(prompt(dir)),
    }
}

/// The change that `@rate` means: the paper's value, as in the short form.
fn limit(rate: Rate) -> Set {
    Set {
        change: Some(format!("both {}", rate.compact())),
        short: true,
        ..Set::default()
    }
}

/// The text that the shell is to evaluate.
fn init(shell: Shell) -> Result<String, Trouble> {
    let here = std::env::current_exe().map_err(|source| Trouble::Io {
        what: "this program's own path".to_string(),
        source,
    })?;
    let here = format!("'{}'", here.display().to_string().replace('\'', r"'\''"));
    let text = match shell {
        Shell::Bash => include_str!("shell/init.bash"),
        Shell::Zsh => include_str!("shell/init.zsh"),
    };
    Ok(text.replace("@NETNICE@", &here))
}

/// Prints one line for each command to limit: `literal NAME`, `job NAME` or `expand TEXT`.
fn tell_words(text: &str, inside: bool) -> Result<Exit, Trouble> {
    let found = words::limited(text, inside);
    for remark in &found.remarks {
        eprintln!("netnice: {}", desk::plain(remark));
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
        desk::say(&lines.join("\n"))?;
    }
    Ok(Exit::Done)
}

/// Becomes the command unchanged; returns only if execve(2) fails.
fn become_command(words: &[OsString]) -> Exit {
    let Some((program, args)) = words.split_first() else {
        return Exit::BadUsage;
    };
    let error = process::Command::new(program).args(args).exec();
    eprintln!("netnice: {}: {error}", program.to_string_lossy());
    match error.kind() {
        std::io::ErrorKind::NotFound => Exit::NotFound,
        _ => Exit::CannotRun,
    }
}

/// Limits the parent of this process.
fn limit_parent(dir: &RuntimeDir, rate: Rate) -> Result<Exit, Trouble> {
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    let pid = u32::try_from(parent).unwrap_or(0);
    let process = desk::process(pid)?;
    let set = Set {
        target: Target::pid(pid).ok_or(Trouble::NoProcess(pid))?.to_string(),
        ..limit(rate)
    };
    let response = desk::connect(dir)?.call(&Request::Set(set), Some(process.as_fd()))?;
    if !matches!(response, Response::Done(_)) {
        desk::print(&response, false)?;
    }
    Ok(Exit::from(&response))
}

/// Prints the limit of this process, and so of the shell, if there is one. A prompt must appear at
/// once and must not start a daemon, so any failure counts as no limit.
fn prompt(dir: &RuntimeDir) -> Exit {
    let shown = || -> Option<ShowDoc> {
        let own = desk::process(process::id()).ok()?;
        let mut client = Client::connect(dir).ok()?;
        let request = Request::Own(Own {});
        match client
            .call_within(PATIENCE, &request, Some(own.as_fd()))
            .ok()?
        {
            Response::Shown(doc) => Some(doc),
            _ => None,
        }
    };
    if let Some(target) = shown().and_then(|doc| doc.targets.into_iter().next()) {
        let text = short(&target.effective);
        if !text.is_empty() {
            // A failure to print has no reader.
            let _ = desk::say(&text);
        }
    }
    Exit::Done
}

/// Formats limits in their shortest form: ` @4mbit`, ` @up:4mbit @down:8mbit`.
fn short(contract: &ContractDoc) -> String {
    let limits = [
        ("@", contract.both),
        ("@up:", contract.up),
        ("@down:", contract.down),
    ];
    let written = limits.into_iter().filter_map(|(sign, bits)| {
        let rate = Rate::new(bits?)?;
        Some(format!(" {sign}{}", typed(rate)))
    });
    written.collect()
}

/// Formats a rate as a user would type it.
fn typed(rate: Rate) -> String {
    let bytes = rate.bytes_per_second();
    let whole = rate.bits_per_second().is_multiple_of(8 * 1024);
    match bytes / 1024 {
        kib if whole && kib.is_multiple_of(1024) => format!("{}MiB/s", kib / 1024),
        kib if whole => format!("{kib}KiB/s"),
        _ => rate.compact(),
    }
}

/// Longest time that a prompt waits for the daemon.
const PATIENCE: Duration = Duration::from_millis(300);

#[cfg(test)]
mod tests;

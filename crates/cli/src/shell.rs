//! `cmd @rate` in a shell (NICE 4.3.2): what `shell-init` prints, and what that text calls.
//!
//! The paper changed the Bourne shell. We change none: the text for bash or zsh lets the shell parse, expand,
//! redirect and fork as ever, and stands in for the one command that has an `@rate` behind it.
//!
//! ```text
//!  ftp host @128Kbyte/sec
//!    │ before it runs (bash: DEBUG trap; zsh: preexec, in scripts TRAPDEBUG)
//!    ▼
//!  shell-words TEXT ─▶ "literal ftp"     a function `ftp` is made, for this one command
//!    │ the shell runs the function with the words, redirections and process that ftp would have had
//!    ▼
//!  at ftp host @128Kbyte/sec ─▶ limits itself, then becomes `ftp host`
//! ```
//!
//! Nothing is parsed twice, so quotes, pipes and here-documents mean what they always mean, and the
//! history shows what was typed. A function of the user with an `@rate` runs in a subshell that
//! limits itself first ([`Asked::Limit`]). A builtin runs in the shell itself and is left alone.
//!
//! The verbs but `shell-init` are for that text, not for people, and are not listed.

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

/// What is asked.
#[derive(Debug)]
pub(crate) enum Asked {
    /// Print what the shell is to read.
    Init(Shell),
    /// Name the commands of a text that have an `@rate`.
    Words {
        /// The text.
        text: String,
        /// Those in substitutions too.
        inside: bool,
    },
    /// Become a command whose last word was no rate after all.
    Become(Vec<OsString>),
    /// Limit the shell that asks.
    Limit(Rate),
    /// Print the limit that holds here, for a prompt.
    Prompt,
}

/// What `at WORDS…` means: a limited command if the last word is `@rate`.
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

/// The rate of a word `@rate`.
pub(crate) fn rate_word(word: &str) -> Option<Rate> {
    word.strip_prefix('@')?.parse().ok()
}

/// Serves it.
pub(crate) fn serve(dir: &RuntimeDir, asked: Asked) -> Result<Exit, Trouble> {
    match asked {
        Asked::Init(shell) => desk::say(&init(shell)?).map(|()| Exit::Done),
        Asked::Words { text, inside } => tell_words(&text, inside),
        Asked::Become(words) => Ok(become_command(&words)),
        Asked::Limit(rate) => limit_parent(dir, rate),
        Asked::Prompt => Ok(prompt(dir)),
    }
}

/// The change that `@rate` asks for: the paper's value, as the short form sets it.
fn limit(rate: Rate) -> Set {
    Set {
        change: Some(format!("both {}", rate.compact())),
        short: true,
        ..Set::default()
    }
}

/// What the shell is to read.
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

/// One line for each command to limit: `literal NAME`, `job NAME` or `expand TEXT`.
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

/// Becomes the command as it is; comes back only if that fails.
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

/// Limits the process that started this one.
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

/// Prints the limit that holds for us and so for the shell, if there is one. A prompt must come at once and
/// must not start a daemon, so whatever goes wrong is no limit.
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
            // If nobody reads, nobody needs to know.
            let _ = desk::say(&text);
        }
    }
    Exit::Done
}

/// Limits as short as they can be written: ` @4mbit`, ` @up:4mbit @down:8mbit`.
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

/// A rate as a person would have typed it.
fn typed(rate: Rate) -> String {
    let bytes = rate.bytes_per_second();
    let whole = rate.bits_per_second().is_multiple_of(8 * 1024);
    match bytes / 1024 {
        kib if whole && kib.is_multiple_of(1024) => format!("{}MiB/s", kib / 1024),
        kib if whole => format!("{kib}KiB/s"),
        _ => rate.compact(),
    }
}

/// How long a prompt may wait.
const PATIENCE: Duration = Duration::from_millis(300);

#[cfg(test)]
mod tests;

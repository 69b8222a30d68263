//! Answers: which command lines the documents show to the reader.
//! May touch: the documents of this tree, which it reads.
//! Must never: be part of a shipped program (only tests use it), or decide which lines are valid.
//!
//! Tests of a program parse these lines with the program's real parser ([`check`]).
//!
//! Documents are `README.md`, `CONTRIBUTING.md`, `crates/core/README.md`, every Markdown file below
//! `docs` and the manual pages (`.8`) below `packaging`. A command line is a shell command that
//! starts one of `PROGRAMS`. It is looked for in
//!
//! - the lines of fenced code blocks whose language is none, `sh`, `bash`, `zsh` or `console`.
//!   Prompts, comments, `\` at the end of a line, pipes, `$(…)`, `sudo` and settings such as
//!   `FOR=60` are allowed;
//! - inline code spans that begin with the name of a program, or with `eval`, and have another
//!   word;
//! - the synopsis, the examples and the bold lines of a manual page.
//!
//! A *usage form* (`netnice top [-d TIME] [--once | -n N]`) becomes several command lines
//! (`usage_form`). A *placeholder* (`PID`, `RATE`) gets an example value (`EXAMPLES`). A *mention*
//! is a program and one word (`netnice inetd`), in a code span or in a line that ends with ` …`.
//! The parser must accept a mention, or its word must be a verb of the program. The parser must
//! refuse a line whose comment begins with `# refused`, and accept all others.
//!
//! ```text
//!  document ───────────▶ Snippet ─────────▶ lines ─────▶ commands ───────▶ CommandLine
//!      markdown or manual       usage_form        shell           example
//! ```
//! Below each arrow is the module or the function that converts. [`check`] passes each
//! [`CommandLine`] to the program's parser. It panics with a list of all errors, and if a document
//! cannot be read or a line cannot be parsed as a shell command.

#![forbid(unsafe_code)]

mod manual;
mod markdown;
mod shell;
mod usage_form;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The programs whose command lines are extracted.
const PROGRAMS: [&str; 7] = [
    "netnice",
    "netniced",
    "netnice-driver",
    "netnice-lab",
    "netnice-peer",
    "cargo",
    "make",
];

/// One command line of a document, ready to be parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandLine {
    /// File and line: `docs/manual/share.md:13`.
    pub location: String,
    /// The text in the document, with its comment.
    pub text: String,
    /// The program and its arguments, with example values for placeholders.
    pub words: Vec<String>,
    /// Environment settings before the program, for example `FOR=60`.
    pub settings: Vec<String>,
    /// True if the comment requires that the program refuses this line.
    pub refused: bool,
    /// True for a program and one word, which may be a verb that needs more words.
    pub mention: bool,
}

/// Parses every command line of `program` that the documents show. `parses` is the program's own
/// parser, with all checks before the program acts; `verbs` are the words that a mention may have
/// even if the parser refuses it. `minimum` gives the least number of places with a command line
/// for groups of documents; a group is the beginning of a path, as in `("docs/", 40)`.
///
/// # Panics
/// With a list of all errors: a line that the parser refuses, a line that it should refuse and does
/// not, a group with too few places. Also if a document cannot be read, or if a line that begins
/// with a program is no shell command.
pub fn check(
    program: &str,
    minimum: &[(&str, usize)],
    verbs: &[String],
    parses: impl Fn(&CommandLine) -> Result<(), String>,
) {
    let lines: Vec<CommandLine> = command_lines()
        .into_iter()
        .filter(|one| one.words[0] == program)
        .collect();
    let errors = errors(&lines, minimum, verbs, parses);
    assert!(
        errors.is_empty(),
        "{} errors in the command lines of {program} in the documents:\n{}",
        errors.len(),
        errors.join("\n")
    );
}

/// Every command line that the documents show. Panics if a document cannot be read, or if a line
/// that begins with a program is no shell command (a quote or a `$(` is not closed).
fn command_lines() -> Vec<CommandLine> {
    let root = root();
    let mut found = Vec::new();
    for file in files(&root) {
        let name = file.strip_prefix(&root).unwrap_or(&file).display();
        let text = std::fs::read_to_string(&file)
            .unwrap_or_else(|error| panic!("{name} cannot be read: {error}"));
        found.extend(of_text(&name.to_string(), &text));
    }
    found
}

/// A piece of a document that may contain a command line.
#[derive(Debug, PartialEq, Eq)]
struct Snippet {
    /// Counted from 1.
    line: usize,
    text: String,
    /// True for an inline code span, false for a line of a block.
    inline: bool,
}

fn errors(
    lines: &[CommandLine],
    minimum: &[(&str, usize)],
    verbs: &[String],
    parses: impl Fn(&CommandLine) -> Result<(), String>,
) -> Vec<String> {
    let mut found = Vec::new();
    for one in lines {
        let error = match (parses(one), one.refused) {
            (Ok(()), false) | (Err(_), true) => continue,
            (Ok(()), true) => {
                "the comment says that the program refuses it, but the parser accepts it".to_owned()
            }
            (Err(_), false) if one.mention && verbs.contains(&one.words[1]) => continue,
            (Err(error), false) => error,
        };
        let read = one.words.join(" ");
        let error = error.trim_end().replace('\n', "\n    ");
        found.push(format!(
            "{}: `{}`\n  read as: {read}\n  {}: {error}",
            one.location, one.text, one.words[0]
        ));
    }
    for (group, minimum) in minimum {
        let places = lines.iter().map(|one| &one.location);
        let places: BTreeSet<_> = places.filter(|place| place.starts_with(group)).collect();
        if places.len() < *minimum {
            found.push(format!(
                "{group}: {} places have a command line; at least {minimum} are expected",
                places.len()
            ));
        }
    }
    found
}

/// The command lines of one document.
fn of_text(name: &str, text: &str) -> Vec<CommandLine> {
    let snippets = match name.ends_with(".md") {
        true => markdown::snippets(text),
        false => manual::snippets(text),
    };
    let found = snippets
        .iter()
        .flat_map(|snippet| of_snippet(name, snippet));
    found.collect()
}

fn of_snippet(name: &str, snippet: &Snippet) -> Vec<CommandLine> {
    let location = format!("{name}:{}", snippet.line);
    let (line, comment) = shell::without_comment(without_prompt(&snippet.text));
    let mut found: Vec<CommandLine> = Vec::new();
    for typed in usage_form::lines(line) {
        let commands = match shell::commands(&typed) {
            Ok(commands) => commands,
            // Blocks without a language may contain other text than shell commands.
            Err(_) if !begins_with_a_program(line) => continue,
            Err(error) => panic!("{location}: `{line}`: {error}"),
        };
        for command in commands {
            let Some((settings, words)) = program_of(command) else {
                continue;
            };
            let one = CommandLine {
                location: location.clone(),
                text: snippet.text.trim().to_owned(),
                mention: words.len() == 2 && (snippet.inline || usage_form::has_more_words(line)),
                words: words.iter().map(|word| example(word)).collect(),
                settings,
                refused: comment.starts_with(REFUSED),
            };
            if !found.contains(&one) {
                found.push(one);
            }
        }
    }
    found
}

/// Removes a shell prompt: `$ `, or `# ` before one of the programs.
fn without_prompt(line: &str) -> &str {
    let line = line.trim();
    match (line.strip_prefix("$ "), line.strip_prefix("# ")) {
        (Some(rest), _) => rest.trim_start(),
        (None, Some(rest)) if begins_with_a_program(rest) => rest.trim_start(),
        _ => line,
    }
}

fn begins_with_a_program(line: &str) -> bool {
    line.split_whitespace()
        .next()
        .is_some_and(|word| PROGRAMS.contains(&word))
}

/// Settings before the program, and the program with its arguments; `None` if the command starts no
/// program of [`PROGRAMS`].
fn program_of(command: Vec<String>) -> Option<(Vec<String>, Vec<String>)> {
    let mut settings = Vec::new();
    let mut words = command.into_iter().peekable();
    loop {
        let word = words.next()?;
        if PROGRAMS.contains(&word.as_str()) {
            return Some((settings, std::iter::once(word).chain(words).collect()));
        }
        if is_setting(&word) {
            settings.push(word);
        } else if STARTERS.contains(&word.as_str()) {
            while words.next_if(|word| word.starts_with('-')).is_some() {}
        } else {
            return None;
        }
    }
}

fn is_setting(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c == '_')
    })
}

/// The word with an example value for each placeholder in it: `--weight=N`, `@RATE`.
fn example(word: &str) -> String {
    let word = word.replace("$$", "PID");
    let inside = |c: char| c.is_alphanumeric() || c == '_';
    let mut whole = String::new();
    let mut rest = word.as_str();
    while !rest.is_empty() {
        let end = rest.find(|c| !inside(c)).unwrap_or(rest.len());
        let (part, behind) = rest.split_at(end);
        let known = EXAMPLES.iter().find(|(name, _)| *name == part);
        whole.push_str(known.map_or(part, |(_, value)| value));
        let next = behind.find(inside).unwrap_or(behind.len());
        whole.push_str(&behind[..next]);
        rest = &behind[next..];
    }
    whole
}

/// The root folder of the repository.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

/// The documents, sorted by path.
fn files(root: &Path) -> Vec<PathBuf> {
    let single = ["README.md", "CONTRIBUTING.md", "crates/core/README.md"];
    let mut files = single.map(|file| root.join(file)).to_vec();
    add_below(&root.join("docs"), "md", &mut files);
    add_below(&root.join("packaging"), "8", &mut files);
    files.sort();
    files
}

/// Adds every file below this folder, at any depth, whose name has this extension.
fn add_below(folder: &Path, extension: &str, files: &mut Vec<PathBuf>) {
    let entries = folder
        .read_dir()
        .unwrap_or_else(|error| panic!("{} cannot be listed: {error}", folder.display()));
    for entry in entries {
        let path = entry.expect("a folder can be read").path();
        if path.is_dir() {
            add_below(&path, extension, files);
        } else if path.extension().is_some_and(|is| is == extension) {
            files.push(path);
        }
    }
}

/// The example value of each placeholder. Process 1 runs everywhere.
const EXAMPLES: &[(&str, &str)] = &[
    ("ADDR", "127.0.0.1:9469"),
    ("ADDRESS", "192.0.2.1"),
    ("BYTES", "24"),
    ("CONFIG", "services.toml"),
    ("DIR", "folder"),
    ("FILE", "file"),
    ("FILTER", "name"),
    ("ID", "accuracy"),
    ("IFACE", "eth0"),
    ("MODE", "native"),
    ("N", "7"),
    ("NAME", "nginx.service"),
    ("PID", "1"),
    ("RATE", "4mbit"),
    ("T", "1ms"),
    ("TARGET", "pid:1"),
    ("TIME", "30s"),
];

/// Words before a program that start it.
const STARTERS: [&str; 8] = ["sudo", "env", "exec", "time", "eval", "do", "then", "!"];

/// The comment of a line that the program must refuse begins with this.
const REFUSED: &str = "refused";

#[cfg(test)]
mod tests;

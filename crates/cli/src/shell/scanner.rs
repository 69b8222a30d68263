//! Finds, in a piece of shell text, the commands whose last word is an `@rate`.
//!
//! The shell parses, expands and runs its commands itself. This module only finds the *name* of
//! each simple command that ends in `@rate`, so that the command can be replaced. It recognizes
//! quotes, substitutions, redirections, here-documents, operators and reserved words, and expands
//! nothing. It accepts any text; [`Found::remarks`] reports what cannot be limited.
//!
//! ```text
//! text ─Scanner─▶ words and separators ─SimpleCommand─▶ the name and last word of each command
//! ```
//!
//! **Rule.** Redirections do not count. The last word must begin with an unquoted `@`, and the rest
//! must be a rate of `netnice-core` or contain a variable (`@$R`, parsed after expansion). A quoted
//! word (`'@4mbit'`, `\@4mbit`) is an ordinary word.

use netnice_core::units::{Rate, UnitFault};

/// How the name of a command to limit is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    /// This word is the name.
    Literal(String),
    /// This word is the name, and each command of this name with an `@rate` is the last of a
    /// background job or the only command of the text. So a process that the shell forks for the
    /// command or the job runs nothing after it.
    Job(String),
    /// The expansion of this text is the name. The text contains variables and quotes, and runs
    /// nothing.
    Expand(String),
}

/// The result for a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// The commands to limit, each once, in text order.
    pub names: Vec<Name>,
    /// Messages for the user: words that look like a rate but are none, and commands that cannot be
    /// limited.
    pub remarks: Vec<String>,
}

impl Found {
    fn add(&mut self, name: Name, job: bool) {
        let name = match name {
            Name::Literal(word) if job => Name::Job(word),
            other => other,
        };
        let same = |other: &&mut Name| match (&**other, &name) {
            (Name::Literal(a) | Name::Job(a), Name::Literal(b) | Name::Job(b)) => a == b,
            (a, b) => *a == *b,
        };
        match self.names.iter_mut().find(same) {
            Some(known @ Name::Job(_)) => *known = name,
            Some(_) => {}
            None => self.names.push(name),
        }
    }
}

/// Finds the commands to limit in a text; with `inside`, also those in substitutions.
pub(crate) fn limited(text: &str, inside: bool) -> Found {
    let mut found = Found::default();
    scan(text, inside, MAX_DEPTH, &mut found);
    found
}

fn scan(text: &str, inside: bool, depth: u32, found: &mut Found) {
    let mut scanner = Scanner::new(text);
    let mut commands = vec![(SimpleCommand::default(), false)];
    while let Some(token) = scanner.next() {
        match (token, commands.last_mut()) {
            (Token::Word(word), Some((command, _))) => command.push(word),
            (Token::Separator { job }, Some((command, is_job))) if !command.is_empty() => {
                *is_job = job;
                commands.push((SimpleCommand::default(), false));
            }
            _ => {}
        }
    }
    commands.retain(|(command, _)| !command.is_empty());
    let sole = commands.len() == 1;
    for (command, job) in commands {
        command.finish(job || sole, found);
    }
    if inside && depth > 0 {
        for text in scanner.substitutions {
            scan(&text, inside, depth - 1, found);
        }
    }
}

/// The words of a simple command so far.
#[derive(Default)]
struct SimpleCommand {
    words: Vec<String>,
    /// True at the head of a compound command, which is no simple command.
    head: bool,
}

impl SimpleCommand {
    fn is_empty(&self) -> bool {
        self.words.is_empty() && !self.head
    }

    fn push(&mut self, word: String) {
        if !self.words.is_empty() {
            self.words.push(word);
        } else if COMPOUND_HEADS.contains(&word.as_str()) {
            self.head = true;
        } else if !self.head && !RESERVED_BEFORE.contains(&word.as_str()) && !is_assignment(&word) {
            self.words.push(word);
        }
    }

    fn finish(self, job: bool, found: &mut Found) {
        let [name, .., last] = self.words.as_slice() else {
            return;
        };
        let Some(rate) = last.strip_prefix('@') else {
            return;
        };
        match may_be_rate(rate) {
            Ok(true) => {}
            Ok(false) => return,
            Err(hint) => return found.remarks.push(format!("{last} is no rate: {hint}")),
        }
        // In `command -v x` and `exec -a name x` options come before the command.
        let options = self.words.get(1).is_some_and(|word| word.starts_with('-'));
        if options && PREFIX_BUILTINS.contains(&name.as_str()) {
            return;
        }
        match command_name(name) {
            Some(name) => found.add(name, job),
            None => found.remarks.push(format!(
                "{last} limits nothing, because {name} is no fixed name: write the command's name"
            )),
        }
    }
}

/// True if the text behind an `@` is a rate or may expand to one. Fails with a hint for the user if
/// the text looks like a rate but is none.
fn may_be_rate(text: &str) -> Result<bool, String> {
    if text.contains(['\'', '"', '\\', '`', '(']) {
        return Ok(false);
    }
    if text.contains('$') {
        return Ok(true);
    }
    match text.parse::<Rate>() {
        Ok(_) => Ok(true),
        Err(error) => match error.fault {
            UnitFault::Hint(hint) => Err(hint),
            _ => Ok(false),
        },
    }
}

/// How a word names a command; `None` if only running a command would give the name.
fn command_name(word: &str) -> Option<Name> {
    let mut plain = String::new();
    let mut expand = word.starts_with('~');
    let mut chars = word.chars().peekable();
    let mut quote = None;
    while let Some(c) = chars.next() {
        match (c, quote) {
            ('\'' | '"', None) => quote = Some(c),
            (_, Some(open)) if c == open => quote = None,
            ('$', None | Some('"')) => {
                let plain_name = chars
                    .peek()
                    .is_some_and(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '{'));
                if !plain_name {
                    return None;
                }
                expand = true;
            }
            ('`', None | Some('"')) => return None,
            ('\\', None) => plain.extend(chars.next()),
            _ => plain.push(c),
        }
    }
    if !expand {
        let is_valid = !plain.is_empty() && plain.chars().all(is_name_char);
        return is_valid.then_some(Name::Literal(plain));
    }
    let harmless = word
        .chars()
        .all(|c| is_name_char(c) || matches!(c, '$' | '{' | '}' | '"'));
    harmless.then(|| Name::Expand(word.to_string()))
}

/// True for characters that both shells accept in a function name.
fn is_name_char(c: char) -> bool {
    c.is_alphanumeric() || "_-./+:@%,~^".contains(c)
}

fn is_assignment(word: &str) -> bool {
    let Some((name, _)) = word.split_once('=') else {
        return false;
    };
    let name = name.strip_suffix('+').unwrap_or(name);
    let name = name.split_once('[').map_or(name, |(name, _)| name);
    let first = name.chars().next();
    first.is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

enum Token {
    /// A word as written.
    Word(String),
    /// The end of a simple command.
    Separator {
        /// True if a single `&` ends the command.
        job: bool,
    },
}

/// Splits text into words and separators; skips redirections and here-documents.
struct Scanner {
    chars: Vec<char>,
    at: usize,
    /// End marks of the here-documents that begin on the next line.
    here_documents: Vec<String>,
    /// The texts inside substitutions.
    substitutions: Vec<String>,
}

impl Scanner {
    fn new(text: &str) -> Scanner {
        Scanner {
            chars: text.chars().collect(),
            at: 0,
            here_documents: Vec::new(),
            substitutions: Vec::new(),
        }
    }

    fn next(&mut self) -> Option<Token> {
        loop {
            match self.peek(0)? {
                ' ' | '\t' => self.at += 1,
                '\n' => {
                    self.at += 1;
                    self.skip_here_documents();
                    return Some(Token::Separator { job: false });
                }
                '&' if self.peek(1) == Some('>') => self.skip_redirection(),
                '<' | '>' if self.peek(1) != Some('(') => self.skip_redirection(),
                '&' => {
                    let job = self.peek(1) != Some('&');
                    self.at += if job { 1 } else { 2 };
                    return Some(Token::Separator { job });
                }
                // `|&` is a pipe as well.
                '|' if self.peek(1) == Some('&') => {
                    self.at += 2;
                    return Some(Token::Separator { job: false });
                }
                ';' | '|' | '(' | ')' => {
                    self.at += 1;
                    return Some(Token::Separator { job: false });
                }
                _ => {
                    let word = self.word();
                    let of_redirection = word.chars().all(|c| c.is_ascii_digit())
                        || (word.starts_with('{') && word.ends_with('}') && word.len() > 2);
                    if of_redirection && matches!(self.peek(0), Some('<' | '>')) {
                        continue;
                    }
                    return Some(Token::Word(word));
                }
            }
        }
    }

    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    /// Skips an operator and its word.
    fn skip_redirection(&mut self) {
        let start = self.at;
        while matches!(self.peek(0), Some('<' | '>' | '&' | '|')) {
            self.at += 1;
        }
        let operator: String = self.chars[start..self.at].iter().collect();
        if operator == "<<" && self.peek(0) == Some('-') {
            self.at += 1;
        }
        while matches!(self.peek(0), Some(' ' | '\t')) {
            self.at += 1;
        }
        let word = self.word();
        if operator == "<<" {
            self.here_documents
                .push(word.replace(['\'', '"', '\\'], ""));
        }
    }

    /// Skips the texts of here-documents.
    fn skip_here_documents(&mut self) {
        for end in std::mem::take(&mut self.here_documents) {
            while self.at < self.chars.len() {
                let rest = &self.chars[self.at..];
                let length = rest.iter().position(|c| *c == '\n').unwrap_or(rest.len());
                let line: String = rest[..length].iter().collect();
                self.at += (length + 1).min(rest.len());
                if line.trim_start_matches('\t') == end {
                    break;
                }
            }
        }
    }

    /// Reads a word to its end.
    fn word(&mut self) -> String {
        let start = self.at;
        while let Some(c) = self.peek(0) {
            match c {
                ' ' | '\t' | '\n' | ';' | '&' | '|' | ')' => break,
                // `name()` ends the word; a glob qualifier (`*(.)`) belongs to the word.
                '(' if self.at == start || self.peek(1) == Some(')') => break,
                '<' | '>' if self.peek(1) != Some('(') => break,
                '<' | '>' | '$' if self.peek(1) == Some('(') => {
                    self.at += 1;
                    self.skip_parenthesis(true);
                }
                '(' => self.skip_parenthesis(false),
                _ => self.skip_piece(c),
            }
        }
        self.chars[start..self.at].iter().collect()
    }

    /// Skips one quoted piece, or one character.
    fn skip_piece(&mut self, c: char) {
        match c {
            '\\' => self.at = (self.at + 2).min(self.chars.len()),
            '\'' => {
                let dollar = self.at > 0 && self.chars[self.at - 1] == '$';
                self.at += 1;
                while let Some(c) = self.peek(0) {
                    self.at += if c == '\\' && dollar { 2 } else { 1 };
                    if c == '\'' {
                        break;
                    }
                }
                self.at = self.at.min(self.chars.len());
            }
            '"' => {
                self.at += 1;
                while let Some(c) = self.peek(0) {
                    match c {
                        '"' => {
                            self.at += 1;
                            break;
                        }
                        '$' if self.peek(1) == Some('(') => {
                            self.at += 1;
                            self.skip_parenthesis(true);
                        }
                        '\'' => self.at += 1,
                        c => self.skip_piece(c),
                    }
                }
            }
            '`' => {
                let start = self.at + 1;
                self.at = start;
                while let Some(c) = self.peek(0)
                    && c != '`'
                {
                    self.at += if c == '\\' { 2 } else { 1 };
                }
                let end = self.at.min(self.chars.len());
                self.substitutions
                    .push(self.chars[start..end].iter().collect());
                self.at = (end + 1).min(self.chars.len());
            }
            '$' if self.peek(1) == Some('{') => {
                self.at += 2;
                while let Some(c) = self.peek(0) {
                    if c == '}' {
                        self.at += 1;
                        break;
                    }
                    self.skip_piece(c);
                }
            }
            _ => self.at += 1,
        }
    }

    /// Skips a balanced parenthesis that begins here. `runs` is true if it contains commands.
    fn skip_parenthesis(&mut self, runs: bool) {
        let start = self.at + 1;
        let mut depth = 0;
        while let Some(c) = self.peek(0) {
            match c {
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => {
                    self.skip_nested_piece(c);
                    continue;
                }
            }
            self.at += 1;
            if depth == 0 {
                break;
            }
        }
        let end = self.at.saturating_sub(1).max(start).min(self.chars.len());
        if runs && start <= end {
            self.substitutions
                .push(self.chars[start..end].iter().collect());
        }
    }

    /// As [`Scanner::skip_piece`], but records no substitutions: the caller records the text around
    /// them, which is scanned again.
    fn skip_nested_piece(&mut self, c: char) {
        let recorded = self.substitutions.len();
        self.skip_piece(c);
        self.substitutions.truncate(recorded);
    }
}

/// Reserved words and similar words before a command.
const RESERVED_BEFORE: &[&str] = &[
    "!",
    "{",
    "}",
    "if",
    "then",
    "elif",
    "else",
    "fi",
    "while",
    "until",
    "do",
    "done",
    "esac",
    "time",
    "coproc",
    "noglob",
    "nocorrect",
    "always",
];

/// Reserved words whose following words are no command.
const COMPOUND_HEADS: &[&str] = &[
    "for", "foreach", "select", "case", "[[", "function", "repeat",
];

/// Builtins that run another command.
pub(crate) const PREFIX_BUILTINS: &[&str] = &["command", "exec"];

/// Largest depth of nested substitutions; typed text nests less.
const MAX_DEPTH: u32 = 16;

#[cfg(test)]
mod tests;

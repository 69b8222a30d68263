//! Which commands in a piece of shell text have an `@rate` as their last word.
//!
//! The shell parses, expands and runs its commands itself; all that is needed beforehand is the
//! *name* of each simple command that ends in `@rate`, so that something can stand in for it. So
//! this is a reader of words, not a shell: it knows quotes, substitutions, redirections,
//! here-documents, operators and reserved words, and expands nothing.
//!
//! ```text
//! text ──Reader──▶ words and breaks ──Part──▶ the name and the last word of each simple command
//! ```
//!
//! **What counts.** The last word before redirections are set aside must begin with an unquoted `@`, and what follows
//! must be a rate of `netnice-core`, or hold a variable (`@$R`, judged when it has been expanded). A quoted word
//! (`'@4mbit'`, `\@4mbit`) is a word like any other.

use netnice_core::units::{Fault, Rate};

/// How a command that is to be limited is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    /// By this word.
    Literal(String),
    /// By this word, and wherever it has an `@rate` it is a background job all by itself, or the one command of the
    /// text: a process that is forked for it runs nothing else.
    Job(String),
    /// By what the shell makes of this text; it holds variables and quotes, and runs nothing.
    Expand(String),
}

/// What was found in a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// The commands to limit, each once, in the order of the text.
    pub names: Vec<Name>,
    /// What a person should know: words that look like a rate but are none, and commands that cannot be limited.
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

/// Finds the limited commands of a text. With `inside`, those in substitutions too.
pub(crate) fn limited(text: &str, inside: bool) -> Found {
    let mut found = Found::default();
    scan(text, inside, DEEPEST, &mut found);
    found
}

fn scan(text: &str, inside: bool, depth: u32, found: &mut Found) {
    let mut reader = Reader::new(text);
    let mut parts = vec![(Part::default(), false)];
    while let Some(token) = reader.next() {
        match (token, parts.last_mut()) {
            (Token::Word(word), Some((part, _))) => part.word(word),
            (Token::Break { job }, Some((part, is_job))) if !part.is_empty() => {
                *is_job = job;
                parts.push((Part::default(), false));
            }
            _ => {}
        }
    }
    parts.retain(|(part, _)| !part.is_empty());
    let sole = parts.len() == 1;
    for (part, job) in parts {
        part.end(job || sole, found);
    }
    if inside && depth > 0 {
        for text in reader.inner {
            scan(&text, inside, depth - 1, found);
        }
    }
}

/// The words of one simple command so far.
#[derive(Default)]
struct Part {
    words: Vec<String>,
    /// It is the head of a compound command, not a simple one.
    head: bool,
}

impl Part {
    fn is_empty(&self) -> bool {
        self.words.is_empty() && !self.head
    }

    fn word(&mut self, word: String) {
        if !self.words.is_empty() {
            self.words.push(word);
        } else if HEADS.contains(&word.as_str()) {
            self.head = true;
        } else if !self.head && !BEFORE.contains(&word.as_str()) && !is_assignment(&word) {
            self.words.push(word);
        }
    }

    fn end(self, job: bool, found: &mut Found) {
        let [name, .., last] = self.words.as_slice() else {
            return;
        };
        let Some(rate) = last.strip_prefix('@') else {
            return;
        };
        match candidate(rate) {
            Ok(true) => {}
            Ok(false) => return,
            Err(hint) => return found.remarks.push(format!("{last} is no rate: {hint}")),
        }
        // `command -v x`, `exec -a name x`: their own options come first.
        let options = self.words.get(1).is_some_and(|word| word.starts_with('-'));
        if options && PREFIXES.contains(&name.as_str()) {
            return;
        }
        match named(name) {
            Some(name) => found.add(name, job),
            None => found.remarks.push(format!(
                "{last} limits nothing: write the name of the command without {name}"
            )),
        }
    }
}

/// Whether the text behind an `@` is a rate, or may become one; an error where a person meant one.
fn candidate(text: &str) -> Result<bool, String> {
    if text.contains(['\'', '"', '\\', '`', '(']) {
        return Ok(false);
    }
    if text.contains('$') {
        return Ok(true);
    }
    match text.parse::<Rate>() {
        Ok(_) => Ok(true),
        Err(error) => match error.fault {
            Fault::Hint(hint) => Err(hint),
            _ => Ok(false),
        },
    }
}

/// How a word names a command; nothing if only running something would tell.
fn named(word: &str) -> Option<Name> {
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
        let good = !plain.is_empty() && plain.chars().all(of_names);
        return good.then_some(Name::Literal(plain));
    }
    let harmless = word
        .chars()
        .all(|c| of_names(c) || matches!(c, '$' | '{' | '}' | '"'));
    harmless.then(|| Name::Expand(word.to_string()))
}

/// Characters of command names that both shells take as names of functions.
fn of_names(c: char) -> bool {
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
    /// A word, as it is written.
    Word(String),
    /// The end of a simple command; `job` if it goes to the background.
    Break {
        /// By an `&` of its own.
        job: bool,
    },
}

/// Cuts text into words and breaks; redirections and here-documents are passed over.
struct Reader {
    chars: Vec<char>,
    at: usize,
    /// Here-documents whose text begins at the next line.
    documents: Vec<String>,
    /// The texts inside of substitutions.
    inner: Vec<String>,
}

impl Reader {
    fn new(text: &str) -> Reader {
        Reader {
            chars: text.chars().collect(),
            at: 0,
            documents: Vec::new(),
            inner: Vec::new(),
        }
    }

    fn next(&mut self) -> Option<Token> {
        loop {
            match self.peek(0)? {
                ' ' | '\t' => self.at += 1,
                '\n' => {
                    self.at += 1;
                    self.pass_documents();
                    return Some(Token::Break { job: false });
                }
                '&' if self.peek(1) == Some('>') => self.redirection(),
                '<' | '>' if self.peek(1) != Some('(') => self.redirection(),
                '&' => {
                    let job = self.peek(1) != Some('&');
                    self.at += if job { 1 } else { 2 };
                    return Some(Token::Break { job });
                }
                // `|&` is a pipe, too.
                '|' if self.peek(1) == Some('&') => {
                    self.at += 2;
                    return Some(Token::Break { job: false });
                }
                ';' | '|' | '(' | ')' => {
                    self.at += 1;
                    return Some(Token::Break { job: false });
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

    /// Passes over an operator and its word.
    fn redirection(&mut self) {
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
            self.documents.push(word.replace(['\'', '"', '\\'], ""));
        }
    }

    /// Passes over the texts of here-documents.
    fn pass_documents(&mut self) {
        for end in std::mem::take(&mut self.documents) {
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
                // `name()` ends the word, a glob's qualifier (`*(.)`) belongs to it.
                '(' if self.at == start || self.peek(1) == Some(')') => break,
                '<' | '>' if self.peek(1) != Some('(') => break,
                '<' | '>' | '$' if self.peek(1) == Some('(') => {
                    self.at += 1;
                    self.parenthesis(true);
                }
                '(' => self.parenthesis(false),
                _ => self.piece(c),
            }
        }
        self.chars[start..self.at].iter().collect()
    }

    /// Passes over one quoted piece, or one character.
    fn piece(&mut self, c: char) {
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
                            self.parenthesis(true);
                        }
                        '\'' => self.at += 1,
                        c => self.piece(c),
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
                self.inner.push(self.chars[start..end].iter().collect());
                self.at = (end + 1).min(self.chars.len());
            }
            '$' if self.peek(1) == Some('{') => {
                self.at += 2;
                while let Some(c) = self.peek(0) {
                    if c == '}' {
                        self.at += 1;
                        break;
                    }
                    self.piece(c);
                }
            }
            _ => self.at += 1,
        }
    }

    /// Passes over a balanced parenthesis, which begins here; `runs` if its inside is commands.
    fn parenthesis(&mut self, runs: bool) {
        let start = self.at + 1;
        let mut depth = 0;
        while let Some(c) = self.peek(0) {
            match c {
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => {
                    self.piece_outside(c);
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
            self.inner.push(self.chars[start..end].iter().collect());
        }
    }

    /// [`Reader::piece`], without noting what is inside: whoever reads the outer text reads it again.
    fn piece_outside(&mut self, c: char) {
        let noted = self.inner.len();
        self.piece(c);
        self.inner.truncate(noted);
    }
}

/// Reserved words, and words of that kind, behind which a command begins.
const BEFORE: &[&str] = &[
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

/// Reserved words whose own words are not a command.
const HEADS: &[&str] = &[
    "for", "foreach", "select", "case", "[[", "function", "repeat",
];

/// Builtin commands that run another one.
pub(crate) const PREFIXES: &[&str] = &["command", "exec"];

/// Substitutions inside of substitutions, at most; nobody types more.
const DEEPEST: u32 = 16;

#[cfg(test)]
mod tests;

//! Splits a shell line into its simple commands, each as a list of words, and separates a line from
//! its comment.
//!
//! Quotes, backslashes, redirections and operators between commands are read as by a POSIX shell,
//! but inside double quotes a backslash escapes every character. Redirections are left out. The
//! commands inside `$(…)` are returned too, before the command that contains it; in that command
//! `$()` is in their place. Nothing else is expanded. An unclosed quote or `$(` is an error.

use std::iter::Peekable;
use std::str::Chars;

/// The simple commands of a line.
///
/// # Errors
/// If a quote or a `$(` is not closed.
pub(super) fn commands(line: &str) -> Result<Vec<Vec<String>>, &'static str> {
    let mut reader = Reader {
        chars: line.chars().peekable(),
        found: Vec::new(),
    };
    reader.read_until(None)?;
    Ok(reader.found)
}

/// The line without its comment, and the comment's text; an empty text if there is no comment.
pub(super) fn without_comment(line: &str) -> (&str, &str) {
    let mut quote = None;
    let mut before = ' ';
    for (at, c) in line.char_indices() {
        match (quote, c) {
            (Some(open), _) if c == open => quote = None,
            (None, '\'' | '"') => quote = Some(c),
            (None, '#') if before.is_whitespace() => {
                return (line[..at].trim_end(), line[at + 1..].trim());
            }
            _ => {}
        }
        before = c;
    }
    (line, "")
}

struct Reader<'a> {
    chars: Peekable<Chars<'a>>,
    found: Vec<Vec<String>>,
}

/// The command that is being read.
#[derive(Default)]
struct PartialCommand {
    words: Vec<String>,
    word: Option<String>,
    /// The next word is the file of a redirection.
    is_file: bool,
}

impl Reader<'_> {
    /// Reads commands up to the end of the line, or up to this character.
    fn read_until(&mut self, end: Option<char>) -> Result<(), &'static str> {
        let mut command = PartialCommand::default();
        while let Some(c) = self.chars.next() {
            if Some(c) == end {
                self.finish(&mut command);
                return Ok(());
            }
            match c {
                '\'' => command.word().push_str(&self.single_quoted()?),
                '"' => self.double_quoted(command.word())?,
                '\\' => command.word().extend(self.chars.next()),
                '$' if self.chars.next_if_eq(&'(').is_some() => {
                    command.word().push_str("$()");
                    self.read_until(Some(')'))?;
                }
                '|' | ';' | '&' | '(' | ')' | '\n' => self.finish(&mut command),
                '<' | '>' => {
                    command.redirect();
                    while self.chars.next_if(|c| matches!(c, '>' | '&')).is_some() {}
                }
                c if c.is_whitespace() => command.end_word(),
                c => command.word().push(c),
            }
        }
        self.finish(&mut command);
        match end {
            None => Ok(()),
            Some(_) => Err("a $( is not closed"),
        }
    }

    fn single_quoted(&mut self) -> Result<String, &'static str> {
        let mut text = String::new();
        for c in self.chars.by_ref() {
            if c == '\'' {
                return Ok(text);
            }
            text.push(c);
        }
        Err("a ' is not closed")
    }

    fn double_quoted(&mut self, word: &mut String) -> Result<(), &'static str> {
        while let Some(c) = self.chars.next() {
            match c {
                '"' => return Ok(()),
                '\\' => word.extend(self.chars.next()),
                '$' if self.chars.next_if_eq(&'(').is_some() => {
                    word.push_str("$()");
                    self.read_until(Some(')'))?;
                }
                c => word.push(c),
            }
        }
        Err("a \" is not closed")
    }

    fn finish(&mut self, command: &mut PartialCommand) {
        command.end_word();
        let words = std::mem::take(command).words;
        if !words.is_empty() {
            self.found.push(words);
        }
    }
}

impl PartialCommand {
    fn word(&mut self) -> &mut String {
        self.word.get_or_insert_default()
    }

    fn end_word(&mut self) {
        if let Some(word) = self.word.take() {
            match std::mem::take(&mut self.is_file) {
                true => {}
                false => self.words.push(word),
            }
        }
    }

    /// Begins a redirection. A number directly before its `<` or `>` is a descriptor.
    fn redirect(&mut self) {
        let descriptor = |word: &String| word.chars().all(|c| c.is_ascii_digit());
        if self.word.as_ref().is_some_and(descriptor) {
            self.word = None;
        }
        self.end_word();
        self.is_file = true;
    }
}

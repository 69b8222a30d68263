//! Splits Rust text into code and comments; neither contains the contents of literals.
//!
//! Both parts keep every line break, so line numbers stay valid. The lexer only recognizes comments
//! (also nested), strings (also raw, byte and C strings) and the difference between a character and
//! a lifetime. It accepts any text, so no call fails.

/// The two parts of a source text.
pub struct Parts {
    /// The text without comments and without the contents of literals.
    pub code: String,
    /// Only the comments.
    pub comments: String,
}

/// Splits a Rust text into its code and its comments. Both keep all line breaks of `text`.
pub fn split(text: &str) -> Parts {
    let mut rest = text;
    let mut parts = Parts {
        code: String::with_capacity(text.len()),
        comments: String::new(),
    };
    while !rest.is_empty() {
        let (kind, len) = next(rest, parts.code.chars().next_back());
        let (piece, tail) = rest.split_at(len);
        let blank: String = piece
            .chars()
            .map(|c| if c == '\n' { '\n' } else { ' ' })
            .collect();
        let (code, comment) = match kind {
            Kind::Code => (piece, blank.as_str()),
            Kind::Comment => (blank.as_str(), piece),
            Kind::Literal => (blank.as_str(), blank.as_str()),
        };
        parts.code.push_str(code);
        parts.comments.push_str(comment);
        rest = tail;
    }
    parts
}

/// The numbers (from 1) of the lines that contain `word` as a whole word.
pub fn lines_with_word(text: &str, word: &str) -> Vec<usize> {
    text.lines()
        .enumerate()
        .filter(|(_, line)| {
            line.match_indices(word).any(|(at, _)| {
                !line[..at].ends_with(in_word) && !line[at + word.len()..].starts_with(in_word)
            })
        })
        .map(|(number, _)| number + 1)
        .collect()
}

enum Kind {
    Code,
    Comment,
    Literal,
}

/// The kind and length in bytes of the piece at the beginning of `rest`. `before` is the last
/// character of code before it.
fn next(rest: &str, before: Option<char>) -> (Kind, usize) {
    if rest.starts_with("//") {
        return (Kind::Comment, rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return (Kind::Comment, block_comment(rest));
    }
    if let Some(len) = literal(rest, before) {
        return (Kind::Literal, len);
    }
    (Kind::Code, rest.chars().next().map_or(0, char::len_utf8))
}

fn block_comment(rest: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < rest.len() {
        if rest[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += rest[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

fn literal(rest: &str, before: Option<char>) -> Option<usize> {
    if rest.starts_with('"') {
        return Some(quoted(rest, '"'));
    }
    if rest.starts_with('\'') {
        return character(rest);
    }
    // A prefix (b, c, r, br, cr) only counts if it does not continue a word.
    if before.is_some_and(in_word) {
        return None;
    }
    let prefix = rest
        .find(|c| !matches!(c, 'b' | 'c' | 'r'))
        .filter(|at| (1..=2).contains(at))?;
    let body = &rest[prefix..];
    if rest[..prefix].ends_with('r') {
        let hashes = body.len() - body.trim_start_matches('#').len();
        let end = format!("\"{}", "#".repeat(hashes));
        let inner = body[hashes..].strip_prefix('"')?;
        return Some(
            inner
                .find(&end)
                .map_or(rest.len(), |at| prefix + hashes + 1 + at + end.len()),
        );
    }
    match body.chars().next()? {
        '"' => Some(prefix + quoted(body, '"')),
        '\'' => character(body).map(|len| prefix + len),
        _ => None,
    }
}

/// The length of a quoted literal with backslash escapes, with both quotes.
fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// The length of a character literal; `None` for a lifetime (`'a` without a closing quote).
fn character(rest: &str) -> Option<usize> {
    let mut chars = rest.char_indices().skip(1);
    let (_, first) = chars.next()?;
    if first == '\\' {
        return Some(quoted(rest, '\''));
    }
    match chars.next() {
        Some((at, '\'')) => Some(at + 1),
        _ => None,
    }
}

fn in_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

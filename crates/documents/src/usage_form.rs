//! Expands a usage form to the command lines that it describes.
//!
//! `[…]` is an optional part, ` | ` in it separates alternatives, `a|b` is a word with a choice,
//! `WORD…` may be repeated. A form becomes one line without optional parts, and one line for each
//! alternative of each optional part, with the parts that contain it and no others. Each of these
//! lines then becomes one line for each value of its first word with a choice. `…` is left out. So
//! the program's parser gets every part at least once, and parts that exclude each other are never
//! in one line. A text without `[` and `…`, or whose brackets do not match, stays as it is. No call
//! fails.
//!
//! ```text
//!  top [-d TIME] [--once | -n N]  ─▶  top,  top -d TIME,  top --once,  top -n N
//!  --metrics [ADDR [--open]]      ─▶  --metrics,  --metrics ADDR,  --metrics ADDR --open
//! ```

/// The lines of a form. A text that is no form is returned as it is.
pub(super) fn lines(text: &str) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    let form = match is_form(text) {
        true => parse(&chars, &mut 0, false),
        false => None,
    };
    match form.as_deref() {
        Some([parts]) => {
            let lines = variants(parts);
            lines.iter().flat_map(|line| choices(line)).collect()
        }
        _ => vec![text.to_owned()],
    }
}

/// True if the line ends with ` …`: more words may follow.
pub(super) fn has_more_words(text: &str) -> bool {
    text.trim_end().ends_with(" …")
}

enum Part {
    Text(String),
    /// At most one of these alternatives.
    Optional(Vec<Vec<Part>>),
}

fn is_form(text: &str) -> bool {
    text.contains(['[', '…'])
}

/// Parses parts up to the end or, in a group, up to its `]`, divided into alternatives; `None` if
/// brackets do not match.
fn parse(chars: &[char], at: &mut usize, in_group: bool) -> Option<Vec<Vec<Part>>> {
    let mut alternatives = vec![Vec::new()];
    let mut text = String::new();
    let mut quote = None;
    while *at < chars.len() {
        let c = chars[*at];
        *at += 1;
        let parts = alternatives.last_mut()?;
        match (quote, c) {
            (Some(open), _) => {
                quote = (c != open).then_some(open);
                text.push(c);
            }
            (None, '\'' | '"') => {
                quote = Some(c);
                text.push(c);
            }
            (None, '[') => {
                parts.push(Part::Text(std::mem::take(&mut text)));
                parts.push(Part::Optional(parse(chars, at, true)?));
            }
            (None, ']') => {
                parts.push(Part::Text(text));
                return in_group.then_some(alternatives);
            }
            (None, '|') if in_group && chars.get(*at) == Some(&' ') => {
                parts.push(Part::Text(std::mem::take(&mut text)));
                alternatives.push(Vec::new());
            }
            (None, '…') => {}
            _ => text.push(c),
        }
    }
    alternatives.last_mut()?.push(Part::Text(text));
    (!in_group).then_some(alternatives)
}

/// The line without optional parts, then those with one of them.
fn variants(parts: &[Part]) -> Vec<String> {
    let mut found = vec![without_optional(parts)];
    for (at, part) in parts.iter().enumerate() {
        let Part::Optional(alternatives) = part else {
            continue;
        };
        let before = without_optional(&parts[..at]);
        let behind = without_optional(&parts[at + 1..]);
        let inner = alternatives.iter().flat_map(|parts| variants(parts));
        found.extend(inner.map(|inner| format!("{before}{inner}{behind}")));
    }
    found
}

fn without_optional(parts: &[Part]) -> String {
    let texts = parts.iter().filter_map(|part| match part {
        Part::Text(text) => Some(text.as_str()),
        Part::Optional(_) => None,
    });
    texts.collect()
}

/// One line for each value of the first word with a choice.
fn choices(line: &str) -> Vec<String> {
    let is_choice = |word: &&str| {
        let mut values = word.split('|');
        word.contains('|')
            && values.all(|value| {
                !value.is_empty() && value.chars().all(|c| c.is_alphanumeric() || c == '-')
            })
    };
    match line.split_whitespace().find(is_choice) {
        Some(word) => word.split('|').map(|one| line.replace(word, one)).collect(),
        None => vec![line.to_owned()],
    }
}

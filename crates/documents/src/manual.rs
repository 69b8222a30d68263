//! Extracts the texts that may contain command lines ([`Snippet`]) from a manual page in man(7):
//! its synopsis, its examples, and its lines in bold that begin with a program. No call fails.

use super::{Snippet, begins_with_a_program, markdown};

/// The forms of the synopsis (`.br` ends one), the lines between `.EX` and `.EE` or `.nf` and
/// `.fi`, and each line in bold that begins with a program and has another word.
pub(super) fn snippets(page: &str) -> Vec<Snippet> {
    let mut found = Vec::new();
    let mut section = "";
    let mut synopsis: Option<Snippet> = None;
    let mut example: Option<Vec<(usize, String)>> = None;
    for (at, line) in page.lines().enumerate() {
        let number = at + 1;
        let (request, rest) = match line.strip_prefix('.') {
            Some(line) => line.split_once(' ').unwrap_or((line, "")),
            None => ("", line),
        };
        match request {
            "SH" | "br" | "PP" | "TP" => found.extend(synopsis.take()),
            "EX" | "nf" => example = Some(Vec::new()),
            "EE" | "fi" => found.extend(markdown::joined(example.take().unwrap_or_default())),
            _ => {}
        }
        if request == "SH" {
            section = rest;
        }
        let Some(text) = printed(request, rest) else {
            continue;
        };
        if let Some(lines) = &mut example {
            lines.push((number, text));
        } else if section == "SYNOPSIS" {
            match &mut synopsis {
                Some(form) => {
                    form.text.push(' ');
                    form.text.push_str(&text);
                }
                None => synopsis = Some(snippet(number, text, false)),
            }
        } else if request.starts_with('B') && text.contains(' ') && begins_with_a_program(&text) {
            found.push(snippet(number, text, true));
        }
    }
    found.extend(synopsis);
    found
}

fn snippet(line: usize, text: String, inline: bool) -> Snippet {
    // The page has spaces inside brackets, which are not part of the form.
    let text = text.replace("[ ", "[").replace(" ]", "]");
    Snippet { line, text, inline }
}

/// The text that a line prints; `None` for a request that prints none.
fn printed(request: &str, rest: &str) -> Option<String> {
    let between = match request {
        "" | "B" | "I" => " ",
        "BR" | "RB" | "IR" | "RI" | "BI" | "IB" => "",
        _ => return None,
    };
    let text = match request {
        "" => rest.to_owned(),
        _ => arguments(rest).join(between),
    };
    let plain = ESCAPES
        .iter()
        .fold(text, |text, (escape, plain)| text.replace(escape, plain));
    Some(plain)
}

/// The arguments of a request: words, or text in double quotes.
fn arguments(rest: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, part) in rest.split('"').enumerate() {
        match at % 2 {
            0 => found.extend(part.split_whitespace().map(str::to_owned)),
            _ => found.push(part.to_owned()),
        }
    }
    found
}

const ESCAPES: [(&str, &str); 6] = [
    ("\\-", "-"),
    ("\\fB", ""),
    ("\\fI", ""),
    ("\\fR", ""),
    ("\\fP", ""),
    ("\\&", ""),
];

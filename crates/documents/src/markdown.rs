//! Extracts the texts that may contain command lines ([`Snippet`]) from a Markdown document: the
//! lines of fenced code blocks without a language or with that of a shell, and inline code spans
//! that begin with a program or `eval` and have another word. No call fails.

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

use super::{Snippet, begins_with_a_program};

/// Every line of a shell block, and every inline code span that begins with a program or `eval` and
/// has another word.
pub(super) fn snippets(text: &str) -> Vec<Snippet> {
    let line_of = |at: usize| 1 + text[..at].matches('\n').count();
    let mut found = Vec::new();
    let mut block: Option<Vec<(usize, String)>> = None;
    let events = Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter();
    for (event, range) in events {
        match event {
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(language)))
                if SHELLS.contains(&&*language) =>
            {
                block = Some(Vec::new());
            }
            Event::Text(code) => {
                if let Some(lines) = &mut block {
                    let first = line_of(range.start);
                    let numbered = code.lines().enumerate();
                    lines.extend(numbered.map(|(at, line)| (first + at, line.to_owned())));
                }
            }
            Event::End(TagEnd::CodeBlock) => {
                found.extend(joined(block.take().unwrap_or_default()));
            }
            Event::Code(code) => {
                let is_line = begins_with_a_program(&code) || code.starts_with("eval ");
                if is_line && code.contains(' ') {
                    found.push(Snippet {
                        line: line_of(range.start),
                        text: code.to_string(),
                        inline: true,
                    });
                }
            }
            _ => {}
        }
    }
    found
}

/// Joins lines that are one command: after a `\`, and the indented lines behind a usage form.
pub(super) fn joined(lines: Vec<(usize, String)>) -> Vec<Snippet> {
    let mut found: Vec<Snippet> = Vec::new();
    for (line, text) in lines {
        let text = text.trim_end();
        if let Some(last) = found.last_mut() {
            let first = last.text.strip_suffix('\\').map(str::to_owned);
            let is_form = begins_with_a_program(&last.text) && last.text.contains('[');
            let behind_form = is_form && text.starts_with(' ');
            if first.is_some() || behind_form {
                let first = first.unwrap_or_else(|| last.text.clone());
                last.text = format!("{} {}", first.trim_end(), text.trim_start());
                continue;
            }
        }
        found.push(Snippet {
            line,
            text: text.to_owned(),
            inline: false,
        });
    }
    found
}

/// Languages of blocks that may contain command lines.
const SHELLS: [&str; 5] = ["", "sh", "bash", "zsh", "console"];

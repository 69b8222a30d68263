//! Reads the assignments in the `[X-Netnice]` sections of one unit file ([`read`]). Other sections
//! and comments are skipped. A line of an `[X-Netnice]` section without `=`, and a boolean value
//! that is neither true nor false ([`flag`]), are errors with file and line.

use std::fmt::Display;
use std::path::{Path, PathBuf};

/// `Key=value` with its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Assignment {
    /// The key.
    pub key: String,
    /// The value, without surrounding blanks.
    pub value: String,
    /// The file.
    pub file: PathBuf,
    /// The line, counted from 1.
    pub line: usize,
    /// The index of the file among the unit's files, in merge order; 0 until the files are merged.
    pub order: usize,
}

impl Assignment {
    /// The text of an error: file, line, key and reason.
    pub(super) fn fault(&self, reason: impl Display) -> String {
        format!(
            "{}:{}: {}: {reason}",
            self.file.display(),
            self.line,
            self.key
        )
    }
}

/// The assignments of one file with this text, in order. A backslash at the end of a line continues
/// the assignment in the next line. Keys and values are not checked.
///
/// # Errors
/// If a line of the section has no `=`.
pub(super) fn read(file: &Path, text: &str) -> Result<Vec<Assignment>, String> {
    let mut found = Vec::new();
    let mut inside = false;
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if line.starts_with('[') {
            inside = line == HEAD;
            continue;
        }
        let mut whole = line.to_owned();
        // A line that ends with a backslash continues in the next; comments in between are skipped.
        while let Some(begun) = whole.strip_suffix('\\') {
            let next = lines.find(|(_, next)| !next.trim_start().starts_with(['#', ';']));
            whole = format!("{begun} {}", next.map_or("", |(_, next)| next.trim()));
            if next.is_none() {
                break;
            }
        }
        if !inside {
            continue;
        }
        let Some((key, value)) = whole.split_once('=') else {
            return Err(format!(
                "{}:{}: a line of [X-Netnice] must have the form Key=value",
                file.display(),
                number + 1
            ));
        };
        found.push(Assignment {
            key: key.trim().to_owned(),
            value: value.trim().to_owned(),
            file: file.to_owned(),
            line: number + 1,
            order: 0,
        });
    }
    Ok(found)
}

/// Parses a boolean value as the service manager does.
///
/// # Errors
/// If it is none of the service manager's words for true and false.
pub(super) fn flag(given: &Assignment) -> Result<bool, String> {
    match given.value.to_ascii_lowercase().as_str() {
        "1" | "yes" | "y" | "true" | "t" | "on" => Ok(true),
        "0" | "no" | "n" | "false" | "f" | "off" => Ok(false),
        _ => Err(given.fault(format!("`{}` is neither yes nor no", given.value))),
    }
}

/// True if a file with this text may have a section. A quick filter: also true if the head of the
/// section is only in a comment.
pub(super) fn may_have_section(text: &str) -> bool {
    text.contains(HEAD)
}

const HEAD: &str = "[X-Netnice]";

//! Parses the arguments of two kinds of verbs: those that take none, and those that take at most
//! one filter (a part of the names of tests). A function fails for other arguments.

use anyhow::{Result, bail};

/// Fails if there are arguments, for a verb that takes none.
pub fn none(verb: &str, words: &[&str]) -> Result<()> {
    match words.first() {
        None => Ok(()),
        Some(word) => bail!("{verb} takes no arguments, but got '{word}'"),
    }
}

/// Parses the arguments of a verb that takes at most one filter; `None` without a filter. Fails for
/// more words, and for a word that begins with `-`.
pub fn filter<'a>(verb: &str, words: &[&'a str]) -> Result<Option<&'a str>> {
    match words {
        [] => Ok(None),
        [filter] if !filter.starts_with('-') => Ok(Some(filter)),
        _ => bail!("{verb} takes one filter; got '{}'", words.join(" ")),
    }
}

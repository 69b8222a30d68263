//! The texts in messages: [`HostName`], [`ServiceName`] and [`Reason`]. Each has a bounded length
//! and bounded characters. The constructors of names fail with [`BadName`]; a [`Reason`] is
//! shortened where this host makes it, and a received one that is too long is refused.

use std::fmt;
use std::sync::Arc;

use netnice_channel::network::{LONGEST_HOST, LONGEST_SERVICE};
use serde::{Deserialize, Serialize};

/// Why a text is no name, or no reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    /// The text has no bytes, or too many.
    #[error("{what} has 1 to {most} bytes, not {length}")]
    Length {
        /// What the text names.
        what: &'static str,
        /// The longest allowed length, in bytes.
        most: usize,
        /// The length of the text, in bytes.
        length: usize,
    },
    /// A character is not allowed at its place.
    #[error("{what} contains {character:?} at byte {at}, where it is not allowed")]
    Character {
        /// What the text names.
        what: &'static str,
        /// The character.
        character: char,
        /// Its place, in bytes.
        at: usize,
    },
}

/// The name of a host, as in its certificate: labels of lower-case letters, digits and hyphens,
/// divided by dots (RFC 1123, section 2.1). A clone is cheap.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostName(Arc<str>);

impl HostName {
    /// The longest name, in bytes.
    pub const LONGEST: usize = LONGEST_HOST;

    /// The name in `text`. Capital letters become lower-case ones.
    ///
    /// # Errors
    /// [`BadName`] for an empty text, one that is longer than [`HostName::LONGEST`], one with a
    /// character that no host name has, and one with a label that is empty, or begins or ends with
    /// a hyphen.
    pub fn new(text: &str) -> Result<HostName, BadName> {
        check_length("a host name", text, HostName::LONGEST)?;
        let is_edge = |at: usize| {
            let neighbour = |at: Option<usize>| at.and_then(|at| text.as_bytes().get(at));
            [at.checked_sub(1), Some(at + 1)].map(|at| matches!(neighbour(at), None | Some(b'.')))
        };
        check_characters("a host name", text, |at, one| match one {
            'a'..='z' | 'A'..='Z' | '0'..='9' => true,
            '-' | '.' => is_edge(at) == [false; 2],
            _ => false,
        })?;
        Ok(HostName(text.to_ascii_lowercase().into()))
    }

    /// The text of the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl TryFrom<String> for HostName {
    type Error = BadName;

    fn try_from(text: String) -> Result<HostName, BadName> {
        HostName::new(&text)
    }
}

impl From<HostName> for String {
    fn from(name: HostName) -> String {
        name.0.as_ref().to_owned()
    }
}

/// The name of a service at the sink: lower-case letters, digits, `.`, `_` and `-`. A clone is
/// cheap.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ServiceName(Arc<str>);

impl ServiceName {
    /// The longest name, in bytes.
    pub const LONGEST: usize = LONGEST_SERVICE;

    /// The name in `text`.
    ///
    /// # Errors
    /// [`BadName`] for an empty text, one that is longer than [`ServiceName::LONGEST`], and one
    /// with another character.
    pub fn new(text: &str) -> Result<ServiceName, BadName> {
        check_length("the name of a service", text, ServiceName::LONGEST)?;
        check_characters(
            "the name of a service",
            text,
            |_, one| matches!(one, 'a'..='z' | '0'..='9' | '.' | '_' | '-'),
        )?;
        Ok(ServiceName(text.into()))
    }

    /// The text of the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl TryFrom<String> for ServiceName {
    type Error = BadName;

    fn try_from(text: String) -> Result<ServiceName, BadName> {
        ServiceName::new(&text)
    }
}

impl From<ServiceName> for String {
    fn from(name: ServiceName) -> String {
        name.0.as_ref().to_owned()
    }
}

/// Why a channel is refused or ends, for people: one line without control characters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Reason(Arc<str>);

impl Reason {
    /// The longest reason, in bytes.
    pub const LONGEST: usize = 500;

    /// The reason in `text`: control characters become blanks, and what is longer than
    /// [`Reason::LONGEST`] is cut off. An empty text becomes `no reason is given`.
    pub fn new(text: &str) -> Reason {
        let text: String = text
            .chars()
            .map(|one| if one.is_control() { ' ' } else { one })
            .collect();
        let end = text.floor_char_boundary(Reason::LONGEST);
        match &text[..end] {
            "" => Reason("no reason is given".into()),
            text => Reason(text.into()),
        }
    }

    /// The text of the reason.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl TryFrom<String> for Reason {
    type Error = BadName;

    fn try_from(text: String) -> Result<Reason, BadName> {
        check_length("a reason", &text, Reason::LONGEST)?;
        check_characters("a reason", &text, |_, one| !one.is_control())?;
        Ok(Reason(text.into()))
    }
}

impl From<Reason> for String {
    fn from(reason: Reason) -> String {
        reason.0.as_ref().to_owned()
    }
}

fn check_length(what: &'static str, text: &str, most: usize) -> Result<(), BadName> {
    match text.len() {
        length if (1..=most).contains(&length) => Ok(()),
        length => Err(BadName::Length { what, most, length }),
    }
}

fn check_characters(
    what: &'static str,
    text: &str,
    is_allowed: impl Fn(usize, char) -> bool,
) -> Result<(), BadName> {
    let found = text.char_indices().find(|(at, one)| !is_allowed(*at, *one));
    match found {
        None => Ok(()),
        Some((at, character)) => Err(BadName::Character {
            what,
            character,
            at,
        }),
    }
}

//! The classes of a link's overbooked server: a change of one class ([`LinkClassChange`]), and the
//! server in the output of `netnice show --json` ([`LinkServerDoc`]). The types are plain data.

use serde::{Deserialize, Serialize};

/// A change of one class of a link. What the change omits stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkClassChange {
    /// Number of the class, 0 (the highest priority) to 7. A class that does not exist is added.
    pub number: u64,
    /// The minimum as text; `0`: the class has none; `none`: the class is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<String>,
    /// Whether the contracts of the members may sum to more than the class has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overbook: Option<bool>,
}

/// The overbooked server of a link, in the output of `netnice show --json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkServerDoc {
    /// The slice of the link, as text: `20ms/50ms`. Empty if the classes do not fit the link.
    pub slice: String,
    /// True if the slice is named; false if it follows from the minimums of the classes.
    pub named: bool,
    /// The reason why the server is suspended: its members share what is left over. Absent if it is
    /// not suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended: Option<String>,
    /// The classes, the highest priority first.
    pub classes: Vec<LinkClassDoc>,
}

/// A class of a link's server, in the output of `netnice show --json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkClassDoc {
    /// Number of the class, 0 (the highest priority) to 7.
    pub class: u8,
    /// The minimum, in bit/s. Absent if the class has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<u64>,
    /// Whether the contracts of the members may sum to more than the class has.
    pub overbook: bool,
    /// Number of flows in the class.
    pub members: u32,
    /// The sum of their contracts (the sustained rate, else the peak rate), in bit/s.
    pub contracted: u64,
}

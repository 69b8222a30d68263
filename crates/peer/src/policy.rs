//! Reads the policy file of netnice-peer: what is before the interfaces of this host, and what each
//! neighbour and the programs of this host may have. The result is a [`PeerPolicy`].
//!
//! ```toml
//! [[port]]
//! interface = "eth0"
//! before = "cable"            # only the neighbour sends into it
//!
//! [[port]]
//! interface = "eth1"
//! before = "priority=1ms"     # a switch: its FIFO of channels delays them by at most 1 ms
//! rate = "1gbit"              # of the switch's port towards this host
//! mtu = 1500                  # of the longest other packet; 1500 by default
//!
//! [quotas]                    # of each neighbour without a table of its own
//! channels = 2000
//!
//! [[neighbour]]
//! name = "ann.example.org"
//! channels = 10               # what is left out: as in [quotas]
//! set-ups = 5                 # in a second
//!
//! [programs]                  # of all programs of this host together
//! channels = 8000
//! ```
//! A file with an error has no effect at all: [`PolicyError`] has the file, the line, the key, the
//! limit and the value.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use netnice_core::admission::timing::SwitchPort;
use netnice_core::contract::IfName;
use netnice_core::units::{Amount, Bytes, Nanos, Rate};
use serde::Deserialize;
use toml::Spanned;

use crate::message::{HostName, Refresh};
use crate::signalling::{Policy, Quota};

/// The content of a policy file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerPolicy {
    /// The quotas.
    pub quotas: Policy,
    /// What is before the interfaces that are declared.
    pub ports: BTreeMap<IfName, PortBefore>,
}

/// What is before an interface of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortBefore {
    /// A cable from the only neighbour that sends into the interface.
    Cable,
    /// The port of a switch that sends packets of channels first.
    Priority {
        /// The longest time for which the port may delay packets of channels.
        most: Nanos,
        /// The port.
        port: SwitchPort,
    },
}

impl fmt::Display for PortBefore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortBefore::Cable => f.write_str("cable"),
            PortBefore::Priority { most, .. } => write!(f, "priority={most}"),
        }
    }
}

/// Why a policy file has no effect.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The file cannot be read.
    #[error("cannot read the policy file {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The error of the system call.
        source: io::Error,
    },
    /// A line is invalid.
    #[error("{}:{line}: {reason}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// The key, the limit and the value.
        reason: String,
    },
}

/// Where the policy is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyPath {
    /// The file.
    pub path: PathBuf,
    /// Whether a file that does not exist is an error. Otherwise the defaults hold.
    pub must_exist: bool,
}

impl PolicyPath {
    /// The file that a command line names, else the one of the package, which need not exist.
    pub fn new(named: Option<PathBuf>) -> PolicyPath {
        PolicyPath {
            must_exist: named.is_some(),
            path: named.unwrap_or_else(|| PathBuf::from(DEFAULT)),
        }
    }

    /// Reads the file.
    ///
    /// # Errors
    /// If the file cannot be read, is not UTF-8, or is invalid.
    pub fn load(&self) -> Result<PeerPolicy, PolicyError> {
        match std::fs::read_to_string(&self.path) {
            Ok(text) => PeerPolicy::parse(&self.path, &text),
            Err(error) if error.kind() == io::ErrorKind::NotFound && !self.must_exist => {
                Ok(PeerPolicy::default())
            }
            Err(source) => Err(PolicyError::Unreadable {
                path: self.path.clone(),
                source,
            }),
        }
    }
}

impl PeerPolicy {
    /// Parses the text of a file; `path` is for errors.
    ///
    /// # Errors
    /// [`PolicyError::Line`] if a line is invalid.
    pub fn parse(path: &Path, text: &str) -> Result<PeerPolicy, PolicyError> {
        let reader = Reader { path, text };
        let file: FileDoc = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            reader.fault(at, error.message())
        })?;
        let defaults = Policy::default();
        for unnamed in [&file.quotas, &file.programs] {
            if let Some(name) = &unnamed.name {
                let reason = "name belongs to [[neighbour]], not to [quotas] or [programs]";
                return Err(reader.fault(name.span().start, reason));
            }
        }
        let neighbour = reader.quota(&file.quotas, defaults.neighbour)?;
        let programs = reader.quota(&file.programs, defaults.programs)?;
        let mut named = BTreeMap::new();
        for one in &file.neighbour {
            let (at, doc) = (one.span().start, one.get_ref());
            let name = doc.name.as_ref().map_or("", |name| name.get_ref());
            let host = HostName::new(name);
            let host = host.map_err(|error| reader.fault(at, format!("name: {error}")))?;
            let quota = reader.quota(doc, neighbour)?;
            if named.insert(host, quota).is_some() {
                let reason = format!("name: neighbour {name} is named twice");
                return Err(reader.fault(at, reason));
            }
        }
        let mut ports = BTreeMap::new();
        for one in &file.port {
            let iface = reader.value::<IfName>("interface", &one.interface)?;
            let before = reader.port(one)?;
            if ports.insert(iface.clone(), before).is_some() {
                let reason = format!("interface: {iface} is named twice");
                return Err(reader.fault(one.interface.span().start, reason));
            }
        }
        let quotas = Policy {
            neighbour,
            named,
            programs,
            ..defaults
        };
        Ok(PeerPolicy { quotas, ports })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileDoc {
    #[serde(default)]
    port: Vec<PortDoc>,
    #[serde(default)]
    quotas: QuotaDoc,
    #[serde(default)]
    neighbour: Vec<Spanned<QuotaDoc>>,
    #[serde(default)]
    programs: QuotaDoc,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PortDoc {
    interface: Spanned<String>,
    before: Spanned<String>,
    rate: Option<Spanned<String>>,
    mtu: Option<Spanned<u64>>,
}

/// The values of a quota with their positions; what the file does not set is `None`. Only the quota
/// of a neighbour has a name.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct QuotaDoc {
    name: Option<Spanned<String>>,
    channels: Option<Spanned<u64>>,
    in_progress: Option<Spanned<u64>>,
    set_ups: Option<Spanned<u64>>,
    mmax: Option<Spanned<String>>,
    rate: Option<Spanned<String>>,
    burst: Option<Spanned<String>>,
}

/// Converts positions in the text to lines.
struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Reader<'_> {
    fn fault(&self, at: usize, reason: impl Display) -> PolicyError {
        let before = self.text.get(..at.min(self.text.len())).unwrap_or_default();
        let reason = reason.to_string();
        PolicyError::Line {
            path: self.path.to_owned(),
            line: before.bytes().filter(|byte| *byte == b'\n').count() + 1,
            reason: reason.split_whitespace().collect::<Vec<_>>().join(" "),
        }
    }

    /// The value of a text.
    fn value<T: FromStr<Err: Display>>(
        &self,
        key: &str,
        text: &Spanned<String>,
    ) -> Result<T, PolicyError> {
        let parsed = text.get_ref().parse();
        parsed.map_err(|error: T::Err| self.fault(text.span().start, format!("{key}: {error}")))
    }

    /// A number between limits.
    fn count(
        &self,
        key: &str,
        number: &Spanned<u64>,
        limits: std::ops::RangeInclusive<u64>,
    ) -> Result<u64, PolicyError> {
        let value = *number.get_ref();
        let (least, most) = (limits.start(), limits.end());
        match limits.contains(&value) {
            true => Ok(value),
            false => {
                let reason = format!("{key} is {least} to {most}, not {value}");
                Err(self.fault(number.span().start, reason))
            }
        }
    }

    /// A quota: what the table does not set is as in `base`.
    fn quota(&self, doc: &QuotaDoc, base: Quota) -> Result<Quota, PolicyError> {
        let mut quota = base;
        let most = Refresh::MOST as u64;
        for (key, value, field) in [
            ("channels", &doc.channels, &mut quota.channels),
            ("in-progress", &doc.in_progress, &mut quota.in_progress),
        ] {
            if let Some(value) = value {
                // At most 8,000.
                *field = self.count(key, value, 0..=most)? as usize;
            }
        }
        if let Some(value) = &doc.set_ups {
            let count = self.count("set-ups", value, 1..=MOST_SET_UPS)?;
            quota.opens_per_second = u32::try_from(count).unwrap_or(u32::MAX);
        }
        for (key, value, most, field) in [
            ("mmax", &doc.mmax, LONGEST_MESSAGE, &mut quota.mmax),
            ("burst", &doc.burst, LARGEST_BURST, &mut quota.burst),
        ] {
            let Some(value) = value else { continue };
            let bytes: Bytes = self.value(key, value)?;
            if bytes > most {
                let reason = format!("{key} is at most {most}, not {bytes}");
                return Err(self.fault(value.span().start, reason));
            }
            *field = bytes;
        }
        if let Some(value) = &doc.rate {
            let rate: Rate = self.value("rate", value)?;
            quota.rate = Amount(rate.bits_per_second());
        }
        Ok(quota)
    }

    fn port(&self, doc: &PortDoc) -> Result<PortBefore, PolicyError> {
        let text = doc.before.get_ref();
        let at = doc.before.span().start;
        let Some(most) = text.strip_prefix("priority=") else {
            let further = [
                doc.rate.as_ref().map(|rate| ("rate", rate.span())),
                doc.mtu.as_ref().map(|mtu| ("mtu", mtu.span())),
            ];
            return match (text.as_str(), further.into_iter().flatten().next()) {
                ("cable", None) => Ok(PortBefore::Cable),
                ("cable", Some((key, span))) => {
                    let reason =
                        format!("{key} belongs to before = \"priority=T\", not to a cable");
                    Err(self.fault(span.start, reason))
                }
                _ => {
                    let reason = format!("before is `cable` or `priority=T`, not `{text}`");
                    Err(self.fault(at, reason))
                }
            };
        };
        let most: Nanos = most
            .parse()
            .map_err(|error| self.fault(at, format!("before: priority: {error}")))?;
        if !(SHORTEST_DELAY..=LONGEST_DELAY).contains(&most) {
            let reason = format!(
                "before: the delay of priority is {SHORTEST_DELAY} to {LONGEST_DELAY}, not {most}"
            );
            return Err(self.fault(at, reason));
        }
        let Some(rate) = &doc.rate else {
            let reason = "before = \"priority=T\" needs `rate`, the rate of the switch's port";
            return Err(self.fault(at, reason));
        };
        let mtu = match &doc.mtu {
            None => DEFAULT_MTU,
            Some(mtu) => self.count("mtu", mtu, MTUS)?,
        };
        let port = SwitchPort {
            rate: self.value("rate", rate)?,
            longest: Bytes(mtu + ETHERNET_TAGGED + ON_THE_WIRE),
        };
        // Otherwise no channel would ever be granted.
        let alone = port.delay([]).unwrap_or(Nanos(u64::MAX));
        if alone > most {
            let reason = format!(
                "before: the delay of priority is at least {alone}, the time of one other packet \
                 of mtu {mtu}, not {most}"
            );
            return Err(self.fault(at, reason));
        }
        Ok(PortBefore::Priority { most, port })
    }
}

/// The file of the package.
pub const DEFAULT: &str = "/etc/netnice/peer.toml";
/// Bytes that Ethernet sends beyond the frame: preamble, start, check sequence and gap.
pub(crate) const ON_THE_WIRE: u64 = 24;
/// The header of an Ethernet frame with a VLAN tag.
pub(crate) const ETHERNET_TAGGED: u64 = 18;
const DEFAULT_MTU: u64 = 1_500;
/// From IPv4's least MTU to the longest IP packet.
const MTUS: std::ops::RangeInclusive<u64> = 68..=65_535;
const SHORTEST_DELAY: Nanos = Nanos::from_micros(1);
const LONGEST_DELAY: Nanos = Nanos::from_secs(1);
/// No neighbour can have more than 8,000 channels.
const MOST_SET_UPS: u64 = 1_000_000;
const LONGEST_MESSAGE: Bytes = netnice_channel::LONGEST_MESSAGE;
const LARGEST_BURST: Bytes = Bytes(1 << 36);

#[cfg(test)]
mod tests;

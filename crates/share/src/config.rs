//! What is to be served: TOML with `inetd.conf` lines in it, or such lines alone.
//!
//! ```toml
//! total = "512Kbyte/s"          # divided among sessions without a rate
//! lines = """
//! ftp     stream tcp nowait root /usr/sbin/vsftpd vsftpd
//! telnet  telnetd @32Kbyte/sec
//! """
//!
//! [[service]]
//! name = "backup"
//! port = 8730
//! program = "/usr/bin/rsync"
//! args = ["--server", "--daemon", "."]
//! weight = 300
//! ```
//!
//! Whatever is wrong ends as one [`ConfigError`]: the file, the line, and the reason.

mod line;
mod names;

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};

use netnice_core::units::{Rate, UnitError};
use serde::Deserialize;
use toml::Spanned;

pub use names::User;
pub(crate) use names::user;

/// What is to be served, all of it possible as far as can be seen beforehand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// What all sessions without a rate of their own have together with those that have one.
    pub total: Option<Rate>,
    /// The least share.
    pub floor: Rate,
    /// Whether idle sessions lend.
    pub lend: bool,
    /// The most that all sessions of one client address use together.
    pub per_client: Option<Rate>,
    /// Sessions at once, of all services.
    pub sessions: usize,
    /// Sessions at once of one client: an IPv4 address, or the 64 bits that all addresses of one IPv6 network begin with.
    pub sessions_per_client: usize,
    /// The services.
    pub services: Vec<Service>,
}

/// One service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Its name, for people.
    pub name: String,
    /// Where it was written.
    pub place: Place,
    /// The address it listens at; none: all.
    pub address: Option<IpAddr>,
    /// The port it listens at.
    pub port: u16,
    /// How it is spoken to.
    pub protocol: Protocol,
    /// The program serves the listening socket itself, and nobody else does until it ends.
    pub wait: bool,
    /// Whose rights the program has.
    pub user: User,
    /// The program.
    pub program: PathBuf,
    /// Its name for itself.
    pub argv0: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// The rate of each session; none: a share.
    pub rate: Option<Rate>,
    /// Weight of each session's share.
    pub weight: u16,
    /// Sessions of this service at once.
    pub sessions: usize,
}

/// How a service is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Protocol {
    /// Datagrams (UDP), not a stream (TCP).
    pub datagram: bool,
    /// Which internet.
    pub family: Family,
}

/// Which internet a service is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4 and, where there is one, IPv6.
    Any,
    /// IPv4 alone.
    V4,
    /// IPv6 alone.
    V6,
}

impl Protocol {
    /// Reads `tcp`, `tcp4`, `tcp6`, `udp`, `udp4`, `udp6`.
    fn read(text: &str) -> Option<Protocol> {
        let (kind, family) = match text.strip_suffix('4') {
            Some(kind) => (kind, Family::V4),
            None => text
                .strip_suffix('6')
                .map_or((text, Family::Any), |kind| (kind, Family::V6)),
        };
        let datagram = match kind {
            "tcp" => false,
            "udp" => true,
            _ => return None,
        };
        Some(Protocol { datagram, family })
    }

    /// `tcp` or `udp`.
    pub fn name(self) -> &'static str {
        if self.datagram { "udp" } else { "tcp" }
    }
}

/// Where something was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub file: PathBuf,
    /// The line, the first is 1; none where it is about the file as a whole.
    pub line: Option<usize>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}", self.file.display()),
            None => write!(f, "{}", self.file.display()),
        }
    }
}

/// A configuration that is refused.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {fault}")]
pub struct ConfigError {
    /// Where.
    pub place: Place,
    /// Why.
    pub fault: Fault,
}

/// What is wrong.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Unreadable(std::io::Error),
    /// Not TOML, or a key that nobody knows.
    #[error("{0}")]
    Toml(String),
    /// Not a rate.
    #[error(transparent)]
    Rate(#[from] UnitError),
    /// Too few words.
    #[error(
        "a line needs: service stream|dgram protocol wait|nowait user program arguments … [@rate], \
         or in short: service program [arguments …] [@rate]"
    )]
    Short,
    /// A word that means nothing in its place.
    #[error("{what} {word:?} is unknown; write {instead}")]
    Word {
        /// What the word should be.
        what: &'static str,
        /// The word.
        word: String,
        /// What is known.
        instead: &'static str,
    },
    /// No such service.
    #[error(
        "service {0:?} is not in /etc/services; write its port number, or give `port` in [[service]]"
    )]
    NoService(String),
    /// No such user or group.
    #[error("there is no {0} on this machine")]
    Nobody(String),
    /// No such program.
    #[error("program {0:?} does not exist or cannot be executed")]
    NoProgram(String),
    /// A service that netnice does not have.
    #[error("built-in services are not offered; name a program")]
    BuiltIn,
    /// Datagrams without wait.
    #[error("a datagram service must be `wait`: its program reads the socket itself")]
    Datagram,
    /// The same port twice.
    #[error("{protocol} port {port} is served already, by {other}")]
    Twice {
        /// tcp or udp.
        protocol: &'static str,
        /// The port.
        port: u16,
        /// Where the other is written.
        other: Place,
    },
    /// Nothing to do.
    #[error("no service is named")]
    Nothing,
    /// A number out of its range.
    #[error("{what} is {value}; write {range}")]
    Range {
        /// What.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What is allowed.
        range: &'static str,
    },
    /// More than there is.
    #[error("{what} of {asked} is more than the total of {total}")]
    TooMuch {
        /// What.
        what: &'static str,
        /// The rate.
        asked: Rate,
        /// The total.
        total: Rate,
    },
    /// The port cannot be had.
    #[error("{protocol} port {port} cannot be served: {error}")]
    Port {
        /// tcp or udp.
        protocol: &'static str,
        /// The port.
        port: u16,
        /// What the kernel says.
        error: std::io::Error,
    },
}

impl Config {
    /// Reads a file. `total` is one that was given beside it and wins.
    pub fn read(file: &Path, total: Option<Rate>) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(file).map_err(|error| ConfigError {
            place: Place {
                file: file.to_owned(),
                line: None,
            },
            fault: Fault::Unreadable(error),
        })?;
        Config::parse(file, &text, total)
    }

    /// Reads the text of a file.
    pub fn parse(file: &Path, text: &str, total: Option<Rate>) -> Result<Config, ConfigError> {
        let source = Source { file, text };
        let mut config = match is_toml(file, text) {
            true => source.toml()?,
            false => Config {
                services: source.lines(text, 1)?,
                ..Config::default()
            },
        };
        config.total = total.or(config.total);
        config.check(&source)?;
        Ok(config)
    }

    /// What can be seen to be impossible.
    fn check(&self, source: &Source<'_>) -> Result<(), ConfigError> {
        if self.services.is_empty() {
            return Err(source.whole(Fault::Nothing));
        }
        let mut ports: HashMap<(bool, Family, Option<IpAddr>, u16), &Place> = HashMap::new();
        for service in &self.services {
            let Protocol { datagram, family } = service.protocol;
            let key = (datagram, family, service.address, service.port);
            if let Some(other) = ports.insert(key, &service.place) {
                return Err(service.refuse(Fault::Twice {
                    protocol: service.protocol.name(),
                    port: service.port,
                    other: other.clone(),
                }));
            }
            if let (Some(total), Some(asked)) = (self.total, service.rate)
                && asked > total
            {
                let what = "a rate";
                return Err(service.refuse(Fault::TooMuch { what, asked, total }));
            }
        }
        match self.total {
            Some(total) if self.floor > total => Err(source.whole(Fault::TooMuch {
                what: "the floor",
                asked: self.floor,
                total,
            })),
            _ => Ok(()),
        }
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            total: None,
            floor: Rate::new(FLOOR).unwrap_or(Rate::MIN),
            lend: true,
            per_client: None,
            sessions: SESSIONS,
            sessions_per_client: of_one_client(SESSIONS),
            services: Vec::new(),
        }
    }
}

impl Service {
    /// An error at the place where the service was written.
    pub fn refuse(&self, fault: Fault) -> ConfigError {
        ConfigError {
            place: self.place.clone(),
            fault,
        }
    }
}

/// A file and its text.
struct Source<'a> {
    file: &'a Path,
    text: &'a str,
}

impl Source<'_> {
    fn whole(&self, fault: Fault) -> ConfigError {
        self.at_line(None, fault)
    }

    fn at_line(&self, line: Option<usize>, fault: Fault) -> ConfigError {
        ConfigError {
            place: Place {
                file: self.file.to_owned(),
                line,
            },
            fault,
        }
    }

    fn line_of(&self, span: &Range<usize>) -> usize {
        let before = self.text.get(..span.start).unwrap_or(self.text);
        before.matches('\n').count() + 1
    }

    fn rate(&self, text: &Option<Spanned<String>>) -> Result<Option<Rate>, ConfigError> {
        let Some(text) = text else { return Ok(None) };
        let rate = text.get_ref().parse();
        rate.map(Some).map_err(|error: UnitError| {
            self.at_line(Some(self.line_of(&text.span())), error.into())
        })
    }

    fn count(
        &self,
        what: &'static str,
        number: &Option<Spanned<u64>>,
        most: usize,
    ) -> Result<Option<usize>, ConfigError> {
        let Some(number) = number else {
            return Ok(None);
        };
        match usize::try_from(*number.get_ref()) {
            Ok(count) if (1..=most).contains(&count) => Ok(Some(count)),
            _ => Err(self.at_line(
                Some(self.line_of(&number.span())),
                Fault::Range {
                    what,
                    value: *number.get_ref(),
                    range: if most == MOST_WEIGHT {
                        "1 to 1000"
                    } else {
                        "1 to 4096"
                    },
                },
            )),
        }
    }

    /// All lines of a text that begins at a line of the file.
    fn lines(&self, text: &str, first: usize) -> Result<Vec<Service>, ConfigError> {
        let mut services = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let place = Place {
                file: self.file.to_owned(),
                line: Some(first + number),
            };
            match line::read(line, &place) {
                Ok(service) => services.extend(service),
                Err(fault) => return Err(ConfigError { place, fault }),
            }
        }
        Ok(services)
    }

    fn toml(&self) -> Result<Config, ConfigError> {
        let file: File = toml::from_str(self.text).map_err(|error| {
            let line = error.span().map(|span| self.line_of(&span));
            self.at_line(line, Fault::Toml(error.message().to_string()))
        })?;
        let mut services = Vec::new();
        if let Some(lines) = &file.lines {
            // The text of a string that begins with a line end begins on the next line.
            let span = lines.span();
            let opens = self.text.get(span.clone()).unwrap_or_default();
            let skips = usize::from(opens.starts_with("\"\"\"\n") || opens.starts_with("'''\n"));
            services = self.lines(lines.get_ref(), self.line_of(&span) + skips)?;
        }
        for service in &file.service {
            let place = Place {
                file: self.file.to_owned(),
                line: Some(self.line_of(&service.name.span())),
            };
            services.push(self.service(service, place)?);
        }
        let plain = Config::default();
        let sessions = self.count("sessions", &file.sessions, SESSIONS)?;
        let sessions = sessions.unwrap_or(plain.sessions);
        Ok(Config {
            total: self.rate(&file.total)?,
            floor: self.rate(&file.floor)?.unwrap_or(plain.floor),
            lend: file.lend.unwrap_or(plain.lend),
            per_client: self.rate(&file.per_client)?,
            sessions,
            sessions_per_client: self
                .count("sessions_per_client", &file.sessions_per_client, SESSIONS)?
                .unwrap_or_else(|| of_one_client(sessions)),
            services,
        })
    }

    fn service(&self, raw: &RawService, place: Place) -> Result<Service, ConfigError> {
        let refuse = |fault| ConfigError {
            place: place.clone(),
            fault,
        };
        let text = raw.protocol.as_deref().unwrap_or("tcp");
        let protocol = Protocol::read(text).ok_or_else(|| refuse(line::unknown_protocol(text)))?;
        let wait = raw.wait.unwrap_or(protocol.datagram);
        if protocol.datagram && !wait {
            return Err(refuse(Fault::Datagram));
        }
        let name = raw.name.get_ref();
        let port = match raw.port {
            Some(port) => port,
            None => names::port(name, protocol.name()).map_err(refuse)?,
        };
        let program = names::program(raw.program.get_ref())
            .map_err(|fault| self.at_line(Some(self.line_of(&raw.program.span())), fault))?;
        let weight = self.count("weight", &raw.weight, MOST_WEIGHT)?;
        Ok(Service {
            name: name.clone(),
            address: raw.address,
            port,
            protocol,
            wait,
            user: names::user(raw.user.as_deref().unwrap_or("root")).map_err(refuse)?,
            argv0: line::base_name(&program),
            program,
            args: raw.args.clone(),
            rate: self.rate(&raw.rate)?,
            weight: weight.map_or(WEIGHT, |weight| weight as u16),
            sessions: self
                .count("sessions", &raw.sessions, SESSIONS)?
                .unwrap_or(SESSIONS),
            place,
        })
    }
}

/// How many of all sessions one client may have where nothing is said of it: one client cannot keep all others out.
fn of_one_client(sessions: usize) -> usize {
    (sessions / 4).max(sessions.min(FEW))
}

/// A file of `inetd.conf` lines has neither a table nor a key with a value; one called `.toml` has.
fn is_toml(file: &Path, text: &str) -> bool {
    let first = text
        .lines()
        .map(str::trim)
        .find(|line| !line.is_empty() && !line.starts_with('#'));
    let by_name = file.extension().is_some_and(|end| end == "toml");
    by_name
        || first.is_some_and(|line| {
            let key = line.split(['=', ' ', '\t']).next().unwrap_or_default();
            let rest = line[key.len()..].trim_start();
            // `[::1]:ftp …` is a service.
            let plain = line.split('#').next().unwrap_or_default().trim_end();
            (plain.starts_with('[') && plain.ends_with(']')) || rest.starts_with('=')
        })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    total: Option<Spanned<String>>,
    floor: Option<Spanned<String>>,
    lend: Option<bool>,
    per_client: Option<Spanned<String>>,
    sessions: Option<Spanned<u64>>,
    sessions_per_client: Option<Spanned<u64>>,
    lines: Option<Spanned<String>>,
    #[serde(default)]
    service: Vec<RawService>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawService {
    name: Spanned<String>,
    port: Option<u16>,
    address: Option<IpAddr>,
    protocol: Option<String>,
    wait: Option<bool>,
    user: Option<String>,
    program: Spanned<String>,
    #[serde(default)]
    args: Vec<String>,
    rate: Option<Spanned<String>>,
    weight: Option<Spanned<u64>>,
    sessions: Option<Spanned<u64>>,
}

/// The least share unless another is named, in bit/s: enough for a key stroke and its echo each 150 ms.
pub const FLOOR: u64 = 8_000;

/// Sessions at once unless another number is named, and the most that may be: well below the daemon's number of
/// targets.
const SESSIONS: usize = 4096;

/// So few sessions one client may have in any case: a browser opens no more at once.
const FEW: usize = 16;

/// The weight that has no need to be named, and the largest, as on a link.
pub(crate) const WEIGHT: u16 = 100;
pub(crate) const MOST_WEIGHT: usize = 1000;

#[cfg(test)]
mod tests;

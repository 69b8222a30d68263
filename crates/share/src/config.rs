//! The configuration of the super-server `netnice inetd` ([`Config`]): TOML that can contain
//! `inetd.conf` lines, or such lines alone.
//!
//! ```toml
//! total = "512Kbyte/s"          # of all sessions together
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
//! [`Config::read`] takes a file and gives a [`Config`]. If the file cannot be read or is invalid,
//! it fails with the first [`ConfigError`]: the file, the reason, and the line if the fault is in
//! one.

mod line;
mod lookup;

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};

use netnice_core::units::{Rate, UnitError};
use serde::Deserialize;
use toml::Spanned;

pub(crate) use lookup::{User, user};

/// A validated configuration: each program, user and port is known, and each number is in its
/// range. Whether the ports can be bound has not been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The total of all sessions, including those with a rate of their own. `None`: no total.
    pub(crate) total: Option<Rate>,
    /// The smallest share of a session.
    pub(crate) floor: Rate,
    /// True if idle sessions lend the unused part of their shares to busy ones.
    pub(crate) lend: bool,
    /// The bound on the shares of one client's sessions together. `None`: no bound.
    pub(crate) per_client: Option<Rate>,
    /// Largest number of concurrent sessions of all services.
    pub(crate) sessions: usize,
    /// Largest number of concurrent sessions of one client: an IPv4 address, or an IPv6 network of
    /// 64 bits.
    pub(crate) sessions_per_client: usize,
    /// The services.
    pub(crate) services: Vec<Service>,
}

/// One service: where the super-server listens, and which program it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Service {
    /// The service's name, for display.
    pub(crate) name: String,
    /// The service's location in the configuration.
    pub(crate) location: Location,
    /// The address to listen at; `None`: all addresses.
    pub(crate) address: Option<IpAddr>,
    /// The port to listen at.
    pub(crate) port: u16,
    /// Protocol and address family.
    pub(crate) protocol: Protocol,
    /// True if the program serves the listening socket itself. The super-server then does not
    /// accept connections until the program ends.
    pub(crate) wait: bool,
    /// The user whose rights the program gets.
    pub(crate) user: User,
    /// The program's file.
    pub(crate) program: PathBuf,
    /// The service's `argv[0]`.
    pub(crate) argv0: String,
    /// The service's further arguments.
    pub(crate) args: Vec<String>,
    /// The rate of each session; `None`: a share.
    pub(crate) rate: Option<Rate>,
    /// The weight of each session's share.
    pub(crate) weight: u16,
    /// Largest number of concurrent sessions of this service.
    pub(crate) sessions: usize,
}

/// Protocol and address family of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Protocol {
    /// True for datagrams (UDP), false for a stream (TCP).
    pub(crate) datagram: bool,
    /// The address family.
    pub(crate) family: Family,
}

/// The address family of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Family {
    /// IPv4 and, if the kernel has it, IPv6.
    Any,
    /// IPv4 only.
    V4,
    /// IPv6 only.
    V6,
}

impl Protocol {
    /// Parses `tcp`, `tcp4`, `tcp6`, `udp`, `udp4`, `udp6`; `None` for any other text.
    fn parse(text: &str) -> Option<Protocol> {
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
    pub(crate) fn name(self) -> &'static str {
        if self.datagram { "udp" } else { "tcp" }
    }
}

/// A location in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The file.
    pub file: PathBuf,
    /// The line, counted from 1; `None` for the file as a whole.
    pub line: Option<usize>,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}", self.file.display()),
            None => write!(f, "{}", self.file.display()),
        }
    }
}

/// The first error in a configuration, with its location.
#[derive(Debug, thiserror::Error)]
#[error("{location}: {kind}")]
pub struct ConfigError {
    /// The location of the error.
    pub location: Location,
    /// The reason.
    pub kind: ConfigErrorKind,
}

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigErrorKind {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Unreadable(std::io::Error),
    /// Not valid TOML, an unknown key, or a value of the wrong type.
    #[error("{0}")]
    Toml(String),
    /// Not a rate.
    #[error(transparent)]
    Rate(#[from] UnitError),
    /// Too few words in a line.
    #[error(
        "a line needs: service stream|dgram protocol wait|nowait user program arguments … [@rate], \
         or in short: service program [arguments …] [@rate]"
    )]
    MissingFields,
    /// A word that is invalid in its position.
    #[error("{what} {word:?} is unknown; write {valid}")]
    UnknownWord {
        /// The kind of word.
        what: &'static str,
        /// The word.
        word: String,
        /// The valid words.
        valid: &'static str,
    },
    /// The service has no known port.
    #[error(
        "service {0:?} is not in /etc/services; write its port number, or give `port` in \
         [[service]]"
    )]
    NoSuchService(String),
    /// The user or group does not exist.
    #[error("there is no {0} on this machine")]
    NoSuchUser(String),
    /// The program does not exist, is not executable, or is a relative path with a `/`.
    #[error("program {0:?} does not exist or cannot be executed")]
    NoSuchProgram(String),
    /// A built-in service of inetd, which netnice does not have.
    #[error("built-in services are not offered; name a program")]
    BuiltIn,
    /// A datagram service without `wait`.
    #[error("a datagram service must be `wait`: its program reads the socket itself")]
    DatagramWithoutWait,
    /// Two services have the same protocol, address and port.
    #[error("{protocol} port {port} is served already, by {other}")]
    PortTwice {
        /// `tcp` or `udp`.
        protocol: &'static str,
        /// The port.
        port: u16,
        /// The location of the other service.
        other: Location,
    },
    /// There is no service.
    #[error("the file names no service; write a line or a table [[service]]")]
    NoServices,
    /// A number is out of its range.
    #[error("{what} is {value}; write {range}")]
    OutOfRange {
        /// Which number.
        what: &'static str,
        /// The value.
        value: u64,
        /// The allowed range.
        range: &'static str,
    },
    /// The rate of a service or the floor exceeds the total.
    #[error("{what} of {asked} is more than the total of {total}")]
    AboveTotal {
        /// Which rate.
        what: &'static str,
        /// The rate.
        asked: Rate,
        /// The total.
        total: Rate,
    },
    /// The port cannot be bound.
    #[error("cannot listen at {protocol} port {port}: {error}")]
    CannotBind {
        /// `tcp` or `udp`.
        protocol: &'static str,
        /// The port.
        port: u16,
        /// The error of the system call.
        error: std::io::Error,
    },
}

impl Config {
    /// Reads a file. `total` overrides the total in the file.
    ///
    /// # Errors
    /// If the file cannot be read or the configuration is invalid.
    pub fn read(file: &Path, total: Option<Rate>) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(file).map_err(|error| ConfigError {
            location: Location {
                file: file.to_owned(),
                line: None,
            },
            kind: ConfigErrorKind::Unreadable(error),
        })?;
        Config::parse(file, &text, total)
    }

    /// Parses the text of a file. `total` overrides the total in the text.
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub(crate) fn parse(
        file: &Path,
        text: &str,
        total: Option<Rate>,
    ) -> Result<Config, ConfigError> {
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

    /// Number of services.
    pub fn service_count(&self) -> usize {
        self.services.len()
    }

    /// Checks the configuration as a whole.
    fn check(&self, source: &Source<'_>) -> Result<(), ConfigError> {
        if self.services.is_empty() {
            return Err(source.at_file(ConfigErrorKind::NoServices));
        }
        let mut ports: HashMap<(bool, Family, Option<IpAddr>, u16), &Location> = HashMap::new();
        for service in &self.services {
            let Protocol { datagram, family } = service.protocol;
            let key = (datagram, family, service.address, service.port);
            if let Some(other) = ports.insert(key, &service.location) {
                return Err(service.error(ConfigErrorKind::PortTwice {
                    protocol: service.protocol.name(),
                    port: service.port,
                    other: other.clone(),
                }));
            }
            if let (Some(total), Some(asked)) = (self.total, service.rate)
                && asked > total
            {
                let what = "a rate";
                return Err(service.error(ConfigErrorKind::AboveTotal { what, asked, total }));
            }
        }
        match self.total {
            Some(total) if self.floor > total => Err(source.at_file(ConfigErrorKind::AboveTotal {
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
            floor: Rate::new(DEFAULT_FLOOR).unwrap_or(Rate::MIN),
            lend: true,
            per_client: None,
            sessions: MAX_SESSIONS,
            sessions_per_client: default_per_client(MAX_SESSIONS),
            services: Vec::new(),
        }
    }
}

impl Service {
    /// An error at the location of the service.
    pub(crate) fn error(&self, kind: ConfigErrorKind) -> ConfigError {
        ConfigError {
            location: self.location.clone(),
            kind,
        }
    }
}

/// A file and its text.
struct Source<'a> {
    file: &'a Path,
    text: &'a str,
}

impl Source<'_> {
    fn at_file(&self, kind: ConfigErrorKind) -> ConfigError {
        self.at_line(None, kind)
    }

    fn at_line(&self, line: Option<usize>, kind: ConfigErrorKind) -> ConfigError {
        ConfigError {
            location: Location {
                file: self.file.to_owned(),
                line,
            },
            kind,
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

    fn number(
        &self,
        what: &'static str,
        value: &Option<Spanned<u64>>,
        max: usize,
    ) -> Result<Option<usize>, ConfigError> {
        let Some(value) = value else {
            return Ok(None);
        };
        match usize::try_from(*value.get_ref()) {
            Ok(count) if (1..=max).contains(&count) => Ok(Some(count)),
            _ => Err(self.at_line(
                Some(self.line_of(&value.span())),
                ConfigErrorKind::OutOfRange {
                    what,
                    value: *value.get_ref(),
                    range: match max {
                        MAX_WEIGHT => "1 to 1000",
                        MAX_PORT => "1 to 65535",
                        _ => "1 to 4096",
                    },
                },
            )),
        }
    }

    /// Parses all `inetd.conf` lines of a text that begins at line `first` of the file.
    fn lines(&self, text: &str, first: usize) -> Result<Vec<Service>, ConfigError> {
        let mut services = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let location = Location {
                file: self.file.to_owned(),
                line: Some(first + number),
            };
            match line::parse(line, &location) {
                Ok(service) => services.extend(service),
                Err(kind) => return Err(ConfigError { location, kind }),
            }
        }
        Ok(services)
    }

    fn toml(&self) -> Result<Config, ConfigError> {
        let file: ConfigFile = toml::from_str(self.text).map_err(|error| {
            let line = error.span().map(|span| self.line_of(&span));
            self.at_line(line, ConfigErrorKind::Toml(error.message().to_string()))
        })?;
        let mut services = Vec::new();
        if let Some(lines) = &file.lines {
            // A multi-line string that starts with a newline has its first line on the next line of
            // the file.
            let span = lines.span();
            let opens = self.text.get(span.clone()).unwrap_or_default();
            let skips = usize::from(opens.starts_with("\"\"\"\n") || opens.starts_with("'''\n"));
            services = self.lines(lines.get_ref(), self.line_of(&span) + skips)?;
        }
        for service in &file.service {
            let location = Location {
                file: self.file.to_owned(),
                line: Some(self.line_of(&service.name.span())),
            };
            services.push(self.service(service, location)?);
        }
        let defaults = Config::default();
        let sessions = self.number("sessions", &file.sessions, MAX_SESSIONS)?;
        let sessions = sessions.unwrap_or(defaults.sessions);
        Ok(Config {
            total: self.rate(&file.total)?,
            floor: self.rate(&file.floor)?.unwrap_or(defaults.floor),
            lend: file.lend.unwrap_or(defaults.lend),
            per_client: self.rate(&file.per_client)?,
            sessions,
            sessions_per_client: self
                .number(
                    "sessions_per_client",
                    &file.sessions_per_client,
                    MAX_SESSIONS,
                )?
                .unwrap_or_else(|| default_per_client(sessions)),
            services,
        })
    }

    fn service(&self, table: &ServiceTable, location: Location) -> Result<Service, ConfigError> {
        let error = |kind| ConfigError {
            location: location.clone(),
            kind,
        };
        let text = table.protocol.as_deref().unwrap_or("tcp");
        let protocol = Protocol::parse(text).ok_or_else(|| error(line::unknown_protocol(text)))?;
        let wait = table.wait.unwrap_or(protocol.datagram);
        if protocol.datagram && !wait {
            return Err(error(ConfigErrorKind::DatagramWithoutWait));
        }
        let name = table.name.get_ref();
        let port = match self.number("port", &table.port, MAX_PORT)? {
            Some(port) => port as u16,
            None => lookup::port(name, protocol.name()).map_err(error)?,
        };
        let program = lookup::program(table.program.get_ref())
            .map_err(|kind| self.at_line(Some(self.line_of(&table.program.span())), kind))?;
        let weight = self.number("weight", &table.weight, MAX_WEIGHT)?;
        Ok(Service {
            name: name.clone(),
            address: table.address,
            port,
            protocol,
            wait,
            user: lookup::user(table.user.as_deref().unwrap_or("root")).map_err(error)?,
            argv0: line::base_name(&program),
            program,
            args: table.args.clone(),
            rate: self.rate(&table.rate)?,
            weight: weight.map_or(DEFAULT_WEIGHT, |weight| weight as u16),
            sessions: self
                .number("sessions", &table.sessions, MAX_SESSIONS)?
                .unwrap_or(MAX_SESSIONS),
            location,
        })
    }
}

/// Default of the largest number of concurrent sessions of one client: a quarter of `sessions`, at
/// least [`MIN_PER_CLIENT`], at most `sessions`. If `sessions` is above [`MIN_PER_CLIENT`], one
/// client cannot take all sessions.
fn default_per_client(sessions: usize) -> usize {
    (sessions / 4).max(sessions.min(MIN_PER_CLIENT))
}

/// True if a file is TOML: its name ends in `.toml`, or its first line that is neither empty nor a
/// comment is a table or a key with a value. A file of `inetd.conf` lines has neither.
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
            // `[::1]:ftp …` is a service, not a table.
            let plain = line.split('#').next().unwrap_or_default().trim_end();
            (plain.starts_with('[') && plain.ends_with(']')) || rest.starts_with('=')
        })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigFile {
    total: Option<Spanned<String>>,
    floor: Option<Spanned<String>>,
    lend: Option<bool>,
    per_client: Option<Spanned<String>>,
    sessions: Option<Spanned<u64>>,
    sessions_per_client: Option<Spanned<u64>>,
    lines: Option<Spanned<String>>,
    #[serde(default)]
    service: Vec<ServiceTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ServiceTable {
    name: Spanned<String>,
    port: Option<Spanned<u64>>,
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

/// Default of the floor, in bit/s: enough for a key stroke and its echo every 150 ms.
pub const DEFAULT_FLOOR: u64 = 8_000;

/// Default and largest value of `sessions`. The daemon can hold more targets than that.
const MAX_SESSIONS: usize = 4096;

/// The default of `sessions_per_client` is at least this number (unless `sessions` is smaller). A
/// browser opens fewer connections to one server at a time.
const MIN_PER_CLIENT: usize = 16;

/// The largest port.
const MAX_PORT: usize = u16::MAX as usize;

/// The default weight, as on a link.
pub(crate) const DEFAULT_WEIGHT: u16 = 100;
/// The largest weight, as on a link.
pub(crate) const MAX_WEIGHT: usize = 1000;

#[cfg(test)]
mod tests;

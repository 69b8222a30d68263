//! The configuration of the super-server: TOML that contains `inetd.conf` lines, or such lines
//! alone.
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
//! An invalid configuration results in one [`ConfigError`] with the file, the line and the reason.

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

/// A validated configuration. What can be checked without binding ports has been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The total of all sessions, including those with a rate of their own.
    pub total: Option<Rate>,
    /// The smallest share.
    pub floor: Rate,
    /// True if idle sessions lend.
    pub lend: bool,
    /// The limit on all sessions of one client together.
    pub per_client: Option<Rate>,
    /// Largest number of concurrent sessions of all services.
    pub sessions: usize,
    /// Largest number of concurrent sessions of one client: an IPv4 address, or an IPv6 network of
    /// 64 bits.
    pub sessions_per_client: usize,
    /// The services.
    pub services: Vec<Service>,
}

/// One service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Its name, for display.
    pub name: String,
    /// Its place in the configuration.
    pub place: Place,
    /// The address to listen at; `None`: all addresses.
    pub address: Option<IpAddr>,
    /// The port to listen at.
    pub port: u16,
    /// Protocol and address family.
    pub protocol: Protocol,
    /// The program serves the listening socket itself, and the super-server does not accept until
    /// the program ends.
    pub wait: bool,
    /// The user whose rights the program gets.
    pub user: User,
    /// The program's file.
    pub program: PathBuf,
    /// Its argv[0].
    pub argv0: String,
    /// Its further arguments.
    pub args: Vec<String>,
    /// The rate of each session; `None`: a share.
    pub rate: Option<Rate>,
    /// The weight of each session's share.
    pub weight: u16,
    /// Largest number of concurrent sessions of this service.
    pub sessions: usize,
}

/// Protocol and address family of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Protocol {
    /// True for datagrams (UDP), false for a stream (TCP).
    pub datagram: bool,
    /// The address family.
    pub family: Family,
}

/// The address family of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4 and, if the kernel has it, IPv6.
    Any,
    /// IPv4 only.
    V4,
    /// IPv6 only.
    V6,
}

impl Protocol {
    /// Parses `tcp`, `tcp4`, `tcp6`, `udp`, `udp4`, `udp6`.
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

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub file: PathBuf,
    /// The line, counted from 1; `None` for the file as a whole.
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

/// An invalid configuration.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {fault}")]
pub struct ConfigError {
    /// The place of the error.
    pub place: Place,
    /// The reason.
    pub fault: Fault,
}

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Unreadable(std::io::Error),
    /// Not valid TOML, or an unknown key.
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
    Short,
    /// A word that is invalid in its position.
    #[error("{what} {word:?} is unknown; write {instead}")]
    Word {
        /// The kind of word.
        what: &'static str,
        /// The word.
        word: String,
        /// The valid words.
        instead: &'static str,
    },
    /// The service has no known port.
    #[error(
        "service {0:?} is not in /etc/services; write its port number, or give `port` in [[service]]"
    )]
    NoService(String),
    /// The user or group does not exist.
    #[error("there is no {0} on this machine")]
    Nobody(String),
    /// The program does not exist or is not executable.
    #[error("program {0:?} does not exist or cannot be executed")]
    NoProgram(String),
    /// A built-in service of inetd, which netnice does not have.
    #[error("built-in services are not offered; name a program")]
    BuiltIn,
    /// A datagram service without `wait`.
    #[error("a datagram service must be `wait`: its program reads the socket itself")]
    Datagram,
    /// Two services have the same port.
    #[error("{protocol} port {port} is served already, by {other}")]
    Twice {
        /// `tcp` or `udp`.
        protocol: &'static str,
        /// The port.
        port: u16,
        /// The place of the other service.
        other: Place,
    },
    /// There is no service.
    #[error("no service is named")]
    Nothing,
    /// A number is out of its range.
    #[error("{what} is {value}; write {range}")]
    Range {
        /// Which number.
        what: &'static str,
        /// The value.
        value: u64,
        /// The allowed range.
        range: &'static str,
    },
    /// A rate exceeds the total.
    #[error("{what} of {asked} is more than the total of {total}")]
    TooMuch {
        /// Which rate.
        what: &'static str,
        /// The rate.
        asked: Rate,
        /// The total.
        total: Rate,
    },
    /// The port cannot be bound.
    #[error("{protocol} port {port} cannot be served: {error}")]
    Port {
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
            place: Place {
                file: file.to_owned(),
                line: None,
            },
            fault: Fault::Unreadable(error),
        })?;
        Config::parse(file, &text, total)
    }

    /// Parses the text of a file. `total` overrides the total in the text.
    ///
    /// # Errors
    /// If the configuration is invalid.
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

    /// Checks the configuration as a whole.
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
    /// An error at the place of the service.
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

    /// Parses all lines of a text that begins at line `first` of the file.
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
            // A multi-line string that starts with a newline has its first line on the next line of
            // the file.
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

/// Default number of concurrent sessions of one client, so that one client cannot exclude all
/// others.
fn of_one_client(sessions: usize) -> usize {
    (sessions / 4).max(sessions.min(FEW))
}

/// True if a file is TOML: its name ends in `.toml`, or its first line is a table or a key with a
/// value. A file of `inetd.conf` lines has neither.
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

/// Default of the floor, in bit/s: enough for a key stroke and its echo every 150 ms.
pub const FLOOR: u64 = 8_000;

/// Default and largest number of concurrent sessions: well below the daemon's number of targets.
const SESSIONS: usize = 4096;

/// Sessions that one client may have in any case: the number of connections that a browser opens at
/// most.
const FEW: usize = 16;

/// The default weight and the largest one, as on a link.
pub(crate) const WEIGHT: u16 = 100;
pub(crate) const MOST_WEIGHT: usize = 1000;

#[cfg(test)]
mod tests;

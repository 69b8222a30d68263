//! Parses one line of `inetd.conf`, in the full form or in the short form of paper NICE (4.3.3), to
//! a [`Service`]. An empty line or a comment (`#`) gives none. Fails with a [`ConfigErrorKind`].
//!
//! ```text
//! full:   ftp stream tcp nowait root /usr/sbin/vsftpd vsftpd -l  @128Kbyte/sec
//! short:  ftp                        vsftpd -l                   @128Kbyte/sec
//! ```
//! The short form means stream, tcp, nowait and root. In the full form the word after the program
//! is its `argv[0]`. The rate at the end is optional. The service can be a number, and an address
//! can precede it: `127.0.0.1:ftp`, `[::1]:8021`. `nowait/10` permits ten concurrent sessions. A
//! word that contains blanks must be in double quotes.

use std::net::IpAddr;
use std::path::Path;

use super::{ConfigErrorKind, DEFAULT_WEIGHT, Location, MAX_SESSIONS, Protocol, Service, lookup};

/// Parses a line. `None` if the line is empty or a comment. `location` is its file and line number,
/// for messages.
///
/// # Errors
/// [`ConfigErrorKind`] names the word that is invalid or missing.
pub(super) fn parse(line: &str, location: &Location) -> Result<Option<Service>, ConfigErrorKind> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let mut words = words(line);
    let rate = match words.last().and_then(|word| word.strip_prefix('@')) {
        Some(rate) => Some(rate.parse()?),
        None => None,
    };
    if rate.is_some() {
        words.pop();
    }
    let (service, rest) = words.split_first().ok_or(ConfigErrorKind::MissingFields)?;
    let fields = match rest {
        [socket_type, protocol, wait, user, program @ ..]
            if SOCKET_TYPES.contains(&socket_type.as_str()) =>
        {
            LineFields::parse(socket_type, protocol, wait, user, program)?
        }
        [socket_type, ..] if SOCKET_TYPES.contains(&socket_type.as_str()) => {
            return Err(ConfigErrorKind::MissingFields);
        }
        [program, args @ ..] => LineFields {
            program,
            argv0: None,
            args,
            protocol: Protocol::parse("tcp").ok_or(ConfigErrorKind::MissingFields)?,
            wait: false,
            sessions: MAX_SESSIONS,
            user: "root",
        },
        [] => return Err(ConfigErrorKind::MissingFields),
    };
    let (address, name) = address(service)?;
    let program = lookup::program(fields.program)?;
    Ok(Some(Service {
        name: name.to_string(),
        location: location.clone(),
        address,
        port: lookup::port(name, fields.protocol.name())?,
        protocol: fields.protocol,
        wait: fields.wait,
        user: lookup::user(fields.user)?,
        argv0: fields
            .argv0
            .map_or_else(|| base_name(&program), str::to_string),
        program,
        args: fields.args.to_vec(),
        rate,
        weight: DEFAULT_WEIGHT,
        sessions: fields.sessions,
    }))
}

/// The fields of a line after the service.
struct LineFields<'a> {
    program: &'a str,
    argv0: Option<&'a str>,
    args: &'a [String],
    protocol: Protocol,
    wait: bool,
    sessions: usize,
    user: &'a str,
}

impl<'a> LineFields<'a> {
    fn parse(
        socket_type: &str,
        protocol: &str,
        wait: &str,
        user: &'a str,
        program: &'a [String],
    ) -> Result<LineFields<'a>, ConfigErrorKind> {
        let (program, argv) = program
            .split_first()
            .ok_or(ConfigErrorKind::MissingFields)?;
        if program == "internal" {
            return Err(ConfigErrorKind::BuiltIn);
        }
        let parsed = Protocol::parse(protocol).ok_or_else(|| unknown_protocol(protocol))?;
        let datagram = match socket_type {
            "stream" => false,
            "dgram" => true,
            _ => !parsed.datagram,
        };
        if datagram != parsed.datagram {
            return Err(ConfigErrorKind::UnknownWord {
                what: "socket type",
                word: socket_type.to_string(),
                valid: "stream with tcp, dgram with udp",
            });
        }
        let unknown = || ConfigErrorKind::UnknownWord {
            what: "wait setting",
            word: wait.to_string(),
            valid: "wait, nowait or nowait/N",
        };
        let (wait, limit) = match wait.split_once('/') {
            Some((word, limit)) => (word, Some(limit)),
            None => (wait, None),
        };
        let wait = match wait {
            "wait" => true,
            "nowait" => false,
            _ => return Err(unknown()),
        };
        if parsed.datagram && !wait {
            return Err(ConfigErrorKind::DatagramWithoutWait);
        }
        let limit = limit.map(|limit| {
            limit
                .parse()
                .ok()
                .filter(|n| (1..=MAX_SESSIONS).contains(n))
        });
        Ok(LineFields {
            program,
            argv0: argv.first().map(String::as_str),
            args: argv.get(1..).unwrap_or_default(),
            protocol: parsed,
            wait,
            sessions: limit.unwrap_or(Some(MAX_SESSIONS)).ok_or_else(unknown)?,
            user,
        })
    }
}

/// Splits a service into its optional address and its name. `*` as the address means none.
fn address(service: &str) -> Result<(Option<IpAddr>, &str), ConfigErrorKind> {
    let (address, name) = match service.strip_prefix('[') {
        Some(rest) => rest.split_once("]:"),
        None => service.rsplit_once(':'),
    }
    .map_or(("*", service), |pair| pair);
    if address == "*" {
        return Ok((None, name));
    }
    let parsed = address.parse().map_err(|_| ConfigErrorKind::UnknownWord {
        what: "address",
        word: address.to_string(),
        valid: "an address such as 127.0.0.1:ftp or [::1]:ftp",
    })?;
    Ok((Some(parsed), name))
}

/// Splits a line at blanks outside double quotes.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut in_quotes = false;
    for c in line.chars() {
        match c {
            '"' => {
                in_quotes = !in_quotes;
                word.get_or_insert_default();
            }
            c if c.is_whitespace() && !in_quotes => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// The error for a text that is no protocol.
pub(super) fn unknown_protocol(text: &str) -> ConfigErrorKind {
    ConfigErrorKind::UnknownWord {
        what: "protocol",
        word: text.to_string(),
        valid: "tcp, tcp4, tcp6, udp, udp4 or udp6",
    }
}

/// The file name of a program, as the default for its `argv[0]`.
pub(super) fn base_name(program: &Path) -> String {
    let name = program.file_name().unwrap_or(program.as_os_str());
    name.to_string_lossy().into_owned()
}

/// Socket types of inetd.conf(5). The second word of a line in the full form is one of them.
const SOCKET_TYPES: [&str; 5] = ["stream", "dgram", "raw", "rdm", "seqpacket"];

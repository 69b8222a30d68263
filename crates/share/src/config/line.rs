//! Parses one line of `inetd.conf`, in the full form or in the paper's short form.
//!
//! ```text
//! ftp stream tcp nowait root /usr/sbin/vsftpd vsftpd -l  @128Kbyte/sec  full
//! ftp                        vsftpd -l                   @128Kbyte/sec  short
//! ```
//! The short form means stream, tcp, nowait and root. The service can be a number, and an address
//! can precede it: `127.0.0.1:ftp`, `[::1]:8021`. `nowait/10` permits ten concurrent sessions. A
//! word that contains blanks must be in double quotes.

use std::net::IpAddr;
use std::path::Path;

use super::{Fault, Place, Protocol, SESSIONS, Service, WEIGHT, names};

/// Parses a line. `None` if it is empty or a comment.
pub(super) fn read(line: &str, place: &Place) -> Result<Option<Service>, Fault> {
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
    let (service, rest) = words.split_first().ok_or(Fault::Short)?;
    let full = match rest {
        [kind, protocol, wait, user, program @ ..] if KINDS.contains(&kind.as_str()) => {
            Full::read(kind, protocol, wait, user, program)?
        }
        [kind, ..] if KINDS.contains(&kind.as_str()) => return Err(Fault::Short),
        [program, args @ ..] => Full {
            program,
            argv0: None,
            args,
            protocol: Protocol::read("tcp").ok_or(Fault::Short)?,
            wait: false,
            sessions: SESSIONS,
            user: "root",
        },
        [] => return Err(Fault::Short),
    };
    let (address, name) = address(service)?;
    let program = names::program(full.program)?;
    Ok(Some(Service {
        name: name.to_string(),
        place: place.clone(),
        address,
        port: names::port(name, full.protocol.name())?,
        protocol: full.protocol,
        wait: full.wait,
        user: names::user(full.user)?,
        argv0: full
            .argv0
            .map_or_else(|| base_name(&program), str::to_string),
        program,
        args: full.args.to_vec(),
        rate,
        weight: WEIGHT,
        sessions: full.sessions,
    }))
}

/// The content of a line after the service.
struct Full<'a> {
    program: &'a str,
    argv0: Option<&'a str>,
    args: &'a [String],
    protocol: Protocol,
    wait: bool,
    sessions: usize,
    user: &'a str,
}

impl<'a> Full<'a> {
    fn read(
        kind: &str,
        protocol: &str,
        wait: &str,
        user: &'a str,
        program: &'a [String],
    ) -> Result<Full<'a>, Fault> {
        let (program, argv) = program.split_first().ok_or(Fault::Short)?;
        if program == "internal" {
            return Err(Fault::BuiltIn);
        }
        let read = Protocol::read(protocol).ok_or_else(|| unknown_protocol(protocol))?;
        let datagram = match kind {
            "stream" => false,
            "dgram" => true,
            _ => !read.datagram,
        };
        if datagram != read.datagram {
            return Err(Fault::Word {
                what: "socket type",
                word: kind.to_string(),
                instead: "stream with tcp, dgram with udp",
            });
        }
        let unknown = || Fault::Word {
            what: "waiting",
            word: wait.to_string(),
            instead: "wait, nowait or nowait/N",
        };
        let (wait, most) = match wait.split_once('/') {
            Some((word, most)) => (word, Some(most)),
            None => (wait, None),
        };
        let wait = match wait {
            "wait" => true,
            "nowait" => false,
            _ => return Err(unknown()),
        };
        if read.datagram && !wait {
            return Err(Fault::Datagram);
        }
        let most = most.map(|most| most.parse().ok().filter(|n| (1..=SESSIONS).contains(n)));
        Ok(Full {
            program,
            argv0: argv.first().map(String::as_str),
            args: argv.get(1..).unwrap_or_default(),
            protocol: read,
            wait,
            sessions: most.unwrap_or(Some(SESSIONS)).ok_or_else(unknown)?,
            user,
        })
    }
}

/// Splits an optional address from a service.
fn address(service: &str) -> Result<(Option<IpAddr>, &str), Fault> {
    let (address, name) = match service.strip_prefix('[') {
        Some(rest) => rest.split_once("]:"),
        None => service.rsplit_once(':'),
    }
    .map_or(("*", service), |pair| pair);
    if address == "*" {
        return Ok((None, name));
    }
    let read = address.parse().map_err(|_| Fault::Word {
        what: "address",
        word: address.to_string(),
        instead: "an address such as 127.0.0.1:ftp or [::1]:ftp",
    })?;
    Ok((Some(read), name))
}

/// Splits a line at blanks outside double quotes.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quoted = false;
    for c in line.chars() {
        match c {
            '"' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            c if c.is_whitespace() && !quoted => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

pub(super) fn unknown_protocol(text: &str) -> Fault {
    Fault::Word {
        what: "protocol",
        word: text.to_string(),
        instead: "tcp, tcp4, tcp6, udp, udp4 or udp6",
    }
}

/// The file name of a program, as the default for its argv[0].
pub(super) fn base_name(program: &Path) -> String {
    let name = program.file_name().unwrap_or(program.as_os_str());
    name.to_string_lossy().into_owned()
}

/// Socket types of inetd.conf(5). The second word of a line in the full form is one of them.
const KINDS: [&str; 5] = ["stream", "dgram", "raw", "rdm", "seqpacket"];

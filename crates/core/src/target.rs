//! Targets: the owners of packets that contracts are for. Text comes in, and a [`Target`] goes out,
//! or a [`TargetError`] if the text has no known form or a part of it is invalid. `Display` prints
//! the full form, which parses back to the same target.
//!
//! # Text
//! ```text
//! pid:1234 | 1234          a process and its living descendants
//! name:N                   every program that `netnice run --name N` started
//! app:/usr/bin/rsync       every process whose executable is this file
//! cgroup:/path             everything in this control group and below
//! unit:nginx.service       a unit of the service manager (`.service` may be left out)
//! container:web            a container, by name or id
//! user:ann | user:1000     every process of this user
//! flow:7                   a flow of the direct path, by its number (from 1)
//! direct:eth0              all flows of the direct path on a link
//! ```
//! [`Pid`], [`Name`], [`AbsPath`] and [`IfName`] state the limits on each form. A path is kept as
//! typed, so it must be in normal form.
//!
//! # Precedence
//! A packet can belong to several targets. If one of two targets contains the other (a unit
//! contains a process), both contracts hold for the packet. The two targets *cross* if neither
//! contains the other (a user and a unit). Then only the contract of the more specific target holds
//! ([`Target::specificity`]).

use alloc::string::{String, ToString};
use core::fmt;
use core::str::FromStr;

use crate::Escaped;
use crate::contract::IfName;

/// The owner of packets that a contract is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// A process and its descendants.
    Pid(Pid),
    /// The programs that `netnice run --name` started under this name.
    Name(Name),
    /// Every process that runs this executable.
    App(AbsPath),
    /// A control group, by its path below the root of the cgroup2 tree.
    Cgroup(AbsPath),
    /// A unit of the service manager, with its suffix.
    Unit(Name),
    /// A container, by name or id.
    Container(Name),
    /// A user, by name or number.
    User(Name),
    /// A flow of the direct path, by its number, which is at least 1.
    Flow(u32),
    /// All flows of the direct path on a link.
    Direct(IfName),
}

impl Target {
    /// The target of one process, or `None` outside 1 to 4,194,304.
    pub fn pid(pid: u32) -> Option<Target> {
        Pid::new(pid).map(Target::Pid)
    }

    /// The target of the programs that `netnice run --name` started under `name`.
    ///
    /// # Errors
    /// [`TargetError::BadName`] if `name` is empty, has more than 64 bytes, has a forbidden
    /// character, or begins with a sign other than `_` ([`Name`]).
    pub fn name(name: &str) -> Result<Target, TargetError> {
        Name::checked(Scheme::Name, name).map(Target::Name)
    }

    /// Order among targets that cross: the contract of the target with the smaller number holds.
    /// The numbers are 0 for pid, 1 for name, 2 for app, 3 for cgroup, unit and container (all of
    /// these are control groups, which nest), 4 for user, and 5 for flow and direct. The last two
    /// cross no target: a packet of the direct path belongs to `flow:` and `direct:` targets only.
    pub fn specificity(&self) -> u8 {
        match self {
            Target::Pid(_) => 0,
            Target::Name(_) => 1,
            Target::App(_) => 2,
            Target::Cgroup(_) | Target::Unit(_) | Target::Container(_) => 3,
            Target::User(_) => 4,
            Target::Flow(_) | Target::Direct(_) => 5,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Target::Pid(pid) => alloc::format!("pid:{}", pid.get()),
            Target::Name(name) => alloc::format!("name:{name}"),
            Target::App(path) => alloc::format!("app:{path}"),
            Target::Cgroup(path) => alloc::format!("cgroup:{path}"),
            Target::Unit(name) => alloc::format!("unit:{name}"),
            Target::Container(name) => alloc::format!("container:{name}"),
            Target::User(name) => alloc::format!("user:{name}"),
            Target::Flow(number) => alloc::format!("flow:{number}"),
            Target::Direct(link) => alloc::format!("direct:{link}"),
        };
        f.pad(&text)
    }
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Target, TargetError> {
        if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
            return Pid::checked(text).map(Target::Pid);
        }
        let Some((scheme, rest)) = text.split_once(':') else {
            return Err(TargetError::NoScheme(text.to_string()));
        };
        match scheme {
            "pid" => Pid::checked(rest).map(Target::Pid),
            "name" => Name::checked(Scheme::Name, rest).map(Target::Name),
            "app" => AbsPath::checked(Scheme::App, rest).map(Target::App),
            "cgroup" => AbsPath::checked(Scheme::Cgroup, rest).map(Target::Cgroup),
            "unit" => Name::unit(rest).map(Target::Unit),
            "container" => Name::checked(Scheme::Container, rest).map(Target::Container),
            "user" => Name::checked(Scheme::User, rest).map(Target::User),
            "flow" => flow(rest).map(Target::Flow),
            "direct" => rest
                .parse()
                .map(Target::Direct)
                .map_err(|_| TargetError::BadLink(rest.to_string())),
            _ => Err(TargetError::UnknownScheme(text.to_string())),
        }
    }
}

/// A process id: 1 to 4,194,304, the kernel's own upper limit on 64-bit machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pid(u32);

impl Pid {
    /// The process id, or `None` outside 1 to 4,194,304.
    pub fn new(pid: u32) -> Option<Pid> {
        (1..=MAX_PID).contains(&pid).then_some(Pid(pid))
    }

    /// The process id as a number.
    pub fn get(self) -> u32 {
        self.0
    }

    fn checked(text: &str) -> Result<Pid, TargetError> {
        let refuse = || TargetError::BadPid(text.to_string());
        if !text.bytes().all(|b| b.is_ascii_digit()) {
            return Err(refuse());
        }
        text.parse().ok().and_then(Pid::new).ok_or_else(refuse)
    }
}

/// A name of ASCII letters, digits and some signs, which begins with a letter, a digit or `_` (only
/// the unit `-.slice` begins with a dash). The scheme of the target decides which signs are
/// allowed, and the longest name: 64 bytes, 128 for a container, 255 for a unit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

impl Name {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn checked(scheme: Scheme, text: &str) -> Result<Name, TargetError> {
        let (most, signs) = match scheme {
            // systemd.unit(5) gives the rules for unit names.
            Scheme::Unit => (255, ":-_.\\@"),
            // LOGIN_NAME_MAX is 256 and useradd(8) stops at 32. A domain adds a part.
            Scheme::User => (64, "-_.@$"),
            // A container's id has 64 digits. Names are longer in pods.
            Scheme::Container => (128, "-_."),
            _ => (64, "-_."),
        };
        let first = text.chars().next();
        let good = text.len() <= most
            && first.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_')
            && text
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || signs.contains(c));
        match good {
            true => Ok(Name(text.to_string())),
            false => Err(TargetError::BadName {
                scheme,
                name: text.to_string(),
                most,
                signs,
            }),
        }
    }

    /// Parses a unit's name. A name without a suffix is a service, as in systemctl(1).
    fn unit(text: &str) -> Result<Name, TargetError> {
        let name = match UNIT_SUFFIXES.iter().any(|suffix| text.ends_with(suffix)) {
            true => text.to_string(),
            false => alloc::format!("{text}.service"),
        };
        if text.is_empty() || UNIT_SUFFIXES.contains(&text) {
            return Err(TargetError::BadName {
                scheme: Scheme::Unit,
                name: text.to_string(),
                most: 255,
                signs: ":-_.\\@",
            });
        }
        // The root slice is called `-.slice`, the one name that begins with a dash.
        if name == "-.slice" {
            return Ok(Name(name));
        }
        Name::checked(Scheme::Unit, &name)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// An absolute path in normal form: no component `.` or `..`, no `//`, no trailing `/` and no
/// control character, at most 1024 bytes. `/` alone is allowed for a control group: the root of the
/// tree.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AbsPath(String);

impl AbsPath {
    /// The path as text, beginning with `/`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn checked(scheme: Scheme, text: &str) -> Result<AbsPath, TargetError> {
        let refuse = |fault| {
            Err(TargetError::BadPath {
                scheme,
                path: text.to_string(),
                fault,
            })
        };
        let Some(rest) = text.strip_prefix('/') else {
            return refuse("it must begin with /");
        };
        if text.len() > MAX_PATH {
            return refuse("it is longer than 1024 bytes");
        }
        if text.chars().any(char::is_control) {
            return refuse("it contains a control character");
        }
        if rest.is_empty() {
            return match scheme {
                Scheme::Cgroup => Ok(AbsPath(text.to_string())),
                _ => refuse("it is a folder, not a program"),
            };
        }
        if rest.split('/').any(|part| part == "." || part == "..") {
            return refuse("it must not contain . or ..");
        }
        if rest.split('/').any(str::is_empty) {
            return refuse("it must not contain // or end with /");
        }
        Ok(AbsPath(text.to_string()))
    }
}

impl fmt::Display for AbsPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The word before the colon, for targets with a name or a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// `name:`
    Name,
    /// `app:`
    App,
    /// `cgroup:`
    Cgroup,
    /// `unit:`
    Unit,
    /// `container:`
    Container,
    /// `user:`
    User,
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scheme::Name => "name",
            Scheme::App => "app",
            Scheme::Cgroup => "cgroup",
            Scheme::Unit => "unit",
            Scheme::Container => "container",
            Scheme::User => "user",
        })
    }
}

/// The error of a text that is not a target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// The text has no colon and is not a number.
    #[error("{} is not a target: write {FORMS}", Escaped(.0))]
    NoScheme(String),
    /// The word before the colon is unknown.
    #[error("{} is not a kind of target: write {FORMS}", Escaped(.0))]
    UnknownScheme(String),
    /// The text is not a process id.
    #[error("{} is not a process id: write a number from 1 to {MAX_PID}", Escaped(.0))]
    BadPid(String),
    /// The name is empty, too long, has a forbidden character, begins with a sign other than `_`,
    /// or is only the suffix of a unit.
    #[error(
        "{} is not a name for {scheme}: write 1 to {most} letters, digits or {signs}, \
         beginning with a letter, a digit or _",
        Escaped(.name)
    )]
    BadName {
        /// The scheme of the target.
        scheme: Scheme,
        /// The name as typed.
        name: String,
        /// The longest allowed name, in bytes.
        most: usize,
        /// The signs allowed beside letters and digits.
        signs: &'static str,
    },
    /// The path is not absolute, not in normal form, or too long.
    #[error("{} is not a path for {scheme}: {fault}", Escaped(.path))]
    BadPath {
        /// The scheme of the target.
        scheme: Scheme,
        /// The path as typed.
        path: String,
        /// The fault in the path.
        fault: &'static str,
    },
    /// The text is not the number of a flow.
    #[error("{} is not the number of a flow: netnice show lists them", Escaped(.0))]
    BadFlow(String),
    /// The text is not the name of an interface.
    #[error("{} is not the name of an interface", Escaped(.0))]
    BadLink(String),
}

/// Parses a flow's number, from 1.
fn flow(text: &str) -> Result<u32, TargetError> {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    let number = text.parse().ok().filter(|number| digits && *number > 0);
    number.ok_or_else(|| TargetError::BadFlow(text.to_string()))
}

const FORMS: &str = "pid:1234 (or just 1234), name:N, app:/path, cgroup:/path, \
                     unit:nginx.service, container:web or user:ann";

/// The largest process id: PID_MAX_LIMIT on 64-bit machines, in the kernel's threads.h.
const MAX_PID: u32 = 4 * 1024 * 1024;

/// Bytes of the longest path of a target: a quarter of PATH_MAX. A message can hold several such
/// paths, and the paths of the control groups that a service manager makes are shorter.
const MAX_PATH: usize = 1024;

/// The types of systemd units that own a control group.
const UNIT_SUFFIXES: [&str; 6] = [".service", ".slice", ".scope", ".socket", ".mount", ".swap"];

#[cfg(test)]
mod tests;

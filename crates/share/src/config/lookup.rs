//! Looks up the names of services, users, groups and programs on this machine: in /etc/services
//! (and a table of ten services), /etc/passwd and /etc/group, and in the folders of programs. Fails
//! with a [`ConfigErrorKind`] if a name does not exist there. Users that only a network directory
//! (LDAP, NIS) has are not found by name.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::ConfigErrorKind;

/// A user and its groups, whose rights a program gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    /// The user's name.
    pub(crate) name: String,
    /// User number.
    pub(crate) uid: u32,
    /// Group number.
    pub(crate) gid: u32,
    /// Numbers of the supplementary groups.
    pub(crate) groups: Vec<u32>,
}

/// The port of a service, given by name or number. A name is looked up in /etc/services, then in
/// [`KNOWN`].
///
/// # Errors
/// [`ConfigErrorKind::NoSuchService`].
pub(super) fn port(service: &str, protocol: &str) -> Result<u16, ConfigErrorKind> {
    if let Ok(port @ 1..) = service.parse() {
        return Ok(port);
    }
    let file = std::fs::read_to_string("/etc/services").unwrap_or_default();
    let listed = file.lines().find_map(|line| {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let (name, at) = (words.next()?, words.next()?);
        let (port, over) = at.split_once('/')?;
        let named = name == service || words.any(|alias| alias == service);
        (named && over == protocol).then(|| port.parse().ok())?
    });
    let known = || KNOWN.iter().find(|(name, _)| *name == service);
    listed
        .or_else(|| known().map(|(_, port)| *port))
        .ok_or_else(|| ConfigErrorKind::NoSuchService(service.to_string()))
}

/// Finds the user of a text `user`, `user.group` or `user:group`; each part can be a number. A user
/// number that is not in /etc/passwd has the group of the same number.
///
/// # Errors
/// [`ConfigErrorKind::NoSuchUser`] if the user or the group does not exist.
pub(crate) fn user(text: &str) -> Result<User, ConfigErrorKind> {
    let (name, group) = match text.split_once([':', '.']) {
        Some((name, group)) => (name, Some(group)),
        None => (text, None),
    };
    let no_such_user = || ConfigErrorKind::NoSuchUser(format!("user {name:?}"));
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    // passwd(5): name, password, user, group, …
    let entry = passwd.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let (uid, gid) = (fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?);
        (fields[0] == name || fields[2] == name).then(|| (fields[0].to_string(), uid, gid))
    });
    let number = || name.parse().ok().map(|uid| (name.to_string(), uid, uid));
    let (name, uid, own) = entry.or_else(number).ok_or_else(no_such_user)?;
    let file = std::fs::read_to_string("/etc/group").unwrap_or_default();
    // group(5): name, password, group, members.
    let rows: Vec<(&str, u32, &str)> = file
        .lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            Some((
                *fields.first()?,
                fields.get(2)?.parse().ok()?,
                *fields.get(3)?,
            ))
        })
        .collect();
    let gid = match group {
        None => own,
        Some(group) => rows
            .iter()
            .find(|(name, _, _)| *name == group)
            .map(|(_, gid, _)| *gid)
            .or(group.parse().ok())
            .ok_or_else(|| ConfigErrorKind::NoSuchUser(format!("group {group:?}")))?,
    };
    let member = |members: &str| members.split(',').any(|member| member == name);
    let groups = rows
        .iter()
        .filter(|(_, _, members)| member(members))
        .map(|(_, gid, _)| *gid)
        .collect();
    Ok(User {
        name,
        uid,
        gid,
        groups,
    })
}

/// The executable file of a program: the given path, which must be absolute, or the first match in
/// [`FOLDERS`] and in PATH.
///
/// # Errors
/// [`ConfigErrorKind::NoSuchProgram`].
pub(super) fn program(name: &str) -> Result<PathBuf, ConfigErrorKind> {
    let missing = || ConfigErrorKind::NoSuchProgram(name.to_string());
    if name.contains('/') {
        let path = PathBuf::from(name);
        return match path.is_absolute() && is_executable(&path) {
            true => Ok(path),
            false => Err(missing()),
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = FOLDERS.iter().map(PathBuf::from);
    folders
        .chain(std::env::split_paths(&path))
        .map(|folder| folder.join(name))
        .find(|path| is_executable(path))
        .ok_or_else(missing)
}

fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path)
        .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// Folders of daemons, searched before PATH.
const FOLDERS: [&str; 4] = [
    "/usr/local/sbin",
    "/usr/sbin",
    "/usr/local/libexec",
    "/usr/libexec",
];

/// Ports of the services in paper NICE and of similar ones, for machines without /etc/services.
const KNOWN: [(&str, u16); 10] = [
    ("ftp", 21),
    ("ssh", 22),
    ("telnet", 23),
    ("smtp", 25),
    ("tftp", 69),
    ("finger", 79),
    ("http", 80),
    ("pop3", 110),
    ("login", 513),
    ("rsync", 873),
];

//! Names and numbers of users and groups, from `/etc/passwd` and `/etc/group`. They do not come
//! from the name service (nsswitch.conf(5)), whose answer may take minutes; see
//! [`crate::name_service`]. Only names of letters, digits, `.`, `_` and `-` are found. A function
//! returns `None` if its file has no such entry or cannot be read.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// The name of the user with this uid.
pub(crate) fn name_of_user(uid: u32) -> Option<String> {
    USERS.find(|names| names.by_number.get(&uid).cloned())
}

/// The uid of the user of this name, or the uid that the text states.
pub(crate) fn number_of_user(name: &str) -> Option<u32> {
    let known = USERS.find(|names| names.by_name.get(name).copied());
    known.or_else(|| name.parse().ok().filter(|uid| *uid != u32::MAX))
}

/// The uid and the gid of the user of this name.
pub(crate) fn ids_of_user(name: &str) -> Option<(u32, u32)> {
    USERS.find(|names| Some((*names.by_name.get(name)?, *names.groups.get(name)?)))
}

/// The gid of the group of this name.
pub(crate) fn gid_of(name: &str) -> Option<u32> {
    GROUPS.find(|names| names.by_name.get(name).copied())
}

/// A file in the form of passwd(5) or group(5).
struct NameFile<'a> {
    path: &'a str,
    /// What was read last, and the version of the file.
    known: Mutex<(Option<Version>, Names)>,
}

/// The names in a file, by number and the other way round; of several with one number or one name,
/// the first.
#[derive(Default)]
struct Names {
    by_number: BTreeMap<u32, String>,
    by_name: BTreeMap<String, u32>,
    /// The group of each user; empty for group(5).
    groups: BTreeMap<String, u32>,
}

impl<'a> NameFile<'a> {
    const fn new(path: &'a str) -> NameFile<'a> {
        let names = Names {
            by_number: BTreeMap::new(),
            by_name: BTreeMap::new(),
            groups: BTreeMap::new(),
        };
        NameFile {
            path,
            known: Mutex::new((None, names)),
        }
    }

    /// What `find` finds in the names, which are read again if the file has changed; `None` if the
    /// file does not exist.
    fn find<T>(&self, find: impl FnOnce(&Names) -> Option<T>) -> Option<T> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let version = Version::of(&fs::metadata(self.path).ok()?);
        if known.0 != Some(version) {
            let names = read(Path::new(self.path)).unwrap_or_default();
            *known = (Some(version), names);
        }
        find(&known.1)
    }
}

/// The names in a file in the form of passwd(5) or group(5).
fn read(path: &Path) -> io::Result<Names> {
    let mut bytes = Vec::new();
    File::open(path)?
        .take(LONGEST_FILE)
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 == LONGEST_FILE {
        // The last line may be incomplete.
        let complete = bytes.iter().rposition(|byte| *byte == b'\n');
        bytes.truncate(complete.unwrap_or(0));
    }
    let text = String::from_utf8_lossy(&bytes);
    let mut names = Names::default();
    for line in text.lines() {
        let mut fields = line.split(':');
        let (Some(name), Some(number)) = (fields.next(), fields.nth(1)) else {
            continue;
        };
        let group = fields.next().and_then(|group| group.parse().ok());
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if let Ok(number) = number.parse()
            && !name.is_empty()
            && name.chars().all(is_plain)
        {
            let by_number = names.by_number.entry(number);
            by_number.or_insert_with(|| name.to_owned());
            names.by_name.entry(name.to_owned()).or_insert(number);
            if let Some(group) = group {
                names.groups.entry(name.to_owned()).or_insert(group);
            }
        }
    }
    Ok(names)
}

/// What distinguishes one content of a file from the next: device, inode, size in bytes, and time
/// of the last change in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version(u64, u64, u64, i128);

impl Version {
    fn of(file: &Metadata) -> Version {
        let changed = i128::from(file.mtime()) * 1_000_000_000 + i128::from(file.mtime_nsec());
        Version(file.dev(), file.ino(), file.size(), changed)
    }
}

/// The users. Unit tests show them by number, whatever names this machine has.
static USERS: NameFile<'_> = NameFile::new(if cfg!(test) { "" } else { "/etc/passwd" });
/// The groups; none in unit tests.
static GROUPS: NameFile<'_> = NameFile::new(if cfg!(test) { "" } else { "/etc/group" });

/// Names are taken from the first 4 MiB of the file.
const LONGEST_FILE: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_the_file_as_it_is_now() {
        let path = std::env::temp_dir().join(format!("netnice-names-{}", std::process::id()));
        let write = |text: &str| fs::write(&path, text).expect("written");
        let file = NameFile::new(path.to_str().expect("UTF-8"));
        let name_of = |uid: u32| file.find(|names| names.by_number.get(&uid).cloned());
        let number_of = |name: &str| file.find(|names| names.by_name.get(name).copied());
        write("root:x:0:0::/root:/bin/sh\nann:x:1000:1000:Ann:/home/ann:/bin/sh\nshort:x\n");
        assert_eq!(name_of(1000).as_deref(), Some("ann"));
        assert_eq!(number_of("ann"), Some(1000));
        assert_eq!(
            file.find(|names| names.groups.get("ann").copied()),
            Some(1000)
        );
        assert_eq!(name_of(1001), None);
        write("first:x:1001:1::/:\nlater:x:1001:1::/:\nb\u{1b}[2J:x:1002:1::/:\nx:y:no:1::/:\n");
        assert_eq!(name_of(1000), None);
        assert_eq!(number_of("ann"), None);
        assert_eq!(name_of(1001).as_deref(), Some("first"));
        assert_eq!(number_of("later"), Some(1001));
        assert_eq!(name_of(1002), None, "a name with control characters");
        fs::write(&path, b"j:x:7:8:J\xf6rg:/:\nann:x:1000:1000::/:\n").expect("written");
        assert_eq!(number_of("ann"), Some(1000), "behind a name in Latin-1");
        // The form of group(5).
        write("netnice:x:998:ann,bob\nnetnice:x:999:\n");
        assert_eq!(number_of("netnice"), Some(998));
        fs::remove_file(&path).expect("removed");
        assert_eq!(name_of(1001), None, "no file");
    }
}

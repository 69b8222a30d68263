//! Names of users for messages ([`user_name`]). They come from `/etc/passwd` and not from the
//! name service (nsswitch.conf(5)), whose answer may take seconds. A user who is not in that file,
//! or whose name has other characters than letters, digits, `.`, `_` and `-`, is shown by number.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// A user in a message: `root`, `the policy file` for the uid of [`crate::peer::POLICY`], else
/// `user` and the name, or the uid if the name is not known.
pub(crate) fn user_name(uid: u32) -> String {
    match uid {
        0 => "root".to_owned(),
        uid if uid == crate::peer::POLICY.uid => "the policy file".to_owned(),
        uid => match FILE.and_then(|path| name_of(Path::new(path), uid)) {
            Some(name) => format!("user {name}"),
            None => format!("user {uid}"),
        },
    }
}

/// The name of a user in a file in the form of passwd(5), which is read again if it has changed.
fn name_of(path: &Path, uid: u32) -> Option<String> {
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let version = Version::of(&fs::metadata(path).ok()?);
    if names.0 != Some(version) {
        *names = (Some(version), read(path).unwrap_or_default());
    }
    names.1.get(&uid).cloned()
}

/// The names in a file in the form of passwd(5), by uid; of several with one uid, the first.
fn read(path: &Path) -> io::Result<BTreeMap<u32, String>> {
    let mut text = String::new();
    File::open(path)?
        .take(LONGEST_FILE)
        .read_to_string(&mut text)?;
    let mut names = BTreeMap::new();
    for line in text.lines() {
        let mut fields = line.split(':');
        let (Some(name), Some(uid)) = (fields.next(), fields.nth(1)) else {
            continue;
        };
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if let Ok(uid) = uid.parse()
            && !name.is_empty()
            && name.chars().all(is_plain)
        {
            names.entry(uid).or_insert_with(|| name.to_owned());
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

/// The names that were read last, with the version of the file.
static NAMES: Mutex<(Option<Version>, BTreeMap<u32, String>)> = Mutex::new((None, BTreeMap::new()));

/// The file with the names. Unit tests show users by number, whatever names this machine has.
const FILE: Option<&str> = match cfg!(test) {
    true => None,
    false => Some("/etc/passwd"),
};

/// Names are taken from the first 4 MiB of the file.
const LONGEST_FILE: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_the_file_as_it_is_now() {
        let path = std::env::temp_dir().join(format!("netnice-names-{}", std::process::id()));
        let write = |text: &str| fs::write(&path, text).expect("written");
        write("root:x:0:0::/root:/bin/sh\nann:x:1000:1000:Ann:/home/ann:/bin/sh\nshort:x\n");
        assert_eq!(name_of(&path, 1000).as_deref(), Some("ann"));
        assert_eq!(name_of(&path, 1001), None);
        write("first:x:1001:1::/:\nlater:x:1001:1::/:\nb\u{1b}[2J:x:1002:1::/:\nx:y:no:1::/:\n");
        assert_eq!(name_of(&path, 1000), None);
        assert_eq!(name_of(&path, 1001).as_deref(), Some("first"));
        assert_eq!(name_of(&path, 1002), None, "a name with control characters");
        fs::remove_file(&path).expect("removed");
        assert_eq!(name_of(&path, 1001), None, "no file");
    }
}

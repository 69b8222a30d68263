//! Checks that only root, or the user of this process, can write or replace a folder or a file
//! ([`check`]).
//!
//! A file that root executes or trusts must meet this condition with all folders above it, as
//! sshd(8) requires of the files of a user. The condition also holds for the folders that contain a
//! symbolic link on the way: a user who can replace the link selects the file. A folder on the way
//! may be one like /tmp: every user may make entries in it, and its sticky bit prevents them from
//! replacing entries of others. The path itself may not be such a folder.
//!
//! The check fails with the first reason that it finds ([`Distrust`]): a wrong owner, a mode that
//! lets others write, or a path that cannot be read or has more than 40 symbolic links.

use std::{
    ffi::OsString,
    fs::{self, Metadata},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// A reason not to trust a path.
#[derive(Debug, thiserror::Error)]
pub enum Distrust {
    /// The path cannot be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file belongs to a user other than root and the user of this process.
    #[error("{} belongs to user {owner}, not to root", path.display())]
    Owner {
        /// The path, or a folder or symbolic link on the way to it.
        path: PathBuf,
        /// The user id of the file's owner.
        owner: u32,
    },
    /// The file's group or all users may write the file, and it is not a folder with the sticky bit
    /// on the way to the path.
    #[error("{} can be written by others (mode {mode:04o})", path.display())]
    Mode {
        /// The path, or a folder on the way to it.
        path: PathBuf,
        /// The file's permission bits.
        mode: u32,
    },
}

/// Checks that only root, or the effective user of this process, can write or replace a path.
/// Symbolic links are followed; the check applies to the destination, and to all links and folders
/// on the way.
///
/// # Errors
/// The first reason for distrust, from the root folder on.
pub fn check(path: &Path) -> Result<(), Distrust> {
    let unreadable = |source| Distrust::Unreadable {
        path: path.to_owned(),
        source,
    };
    let absolute = std::path::absolute(path).map_err(unreadable)?;
    // The steps that are left, the next one last.
    let mut left = steps(&absolute);
    let mut links = 0;
    let mut at = PathBuf::new();
    while let Some(step) = left.pop() {
        if step == ".." {
            at.pop();
            continue;
        }
        at.push(step);
        let metadata = fs::symlink_metadata(&at).map_err(unreadable)?;
        check_owner(&at, &metadata)?;
        if metadata.is_symlink() {
            links += 1;
            if links > MOST_LINKS {
                return Err(unreadable(rustix::io::Errno::LOOP.into()));
            }
            left.extend(steps(&fs::read_link(&at).map_err(unreadable)?));
            at.pop();
        } else if metadata.mode() & STICKY == 0 {
            check_mode(&at, &metadata)?;
        }
    }
    let metadata = fs::symlink_metadata(&at).map_err(unreadable)?;
    check_mode(&at, &metadata)
}

/// The components of a path, the first one last. The component `/` makes the path absolute.
fn steps(path: &Path) -> Vec<OsString> {
    let components = path.components().rev();
    components.map(|part| part.as_os_str().to_owned()).collect()
}

fn check_owner(path: &Path, metadata: &Metadata) -> Result<(), Distrust> {
    let own = rustix::process::geteuid().as_raw();
    match [0, own].contains(&metadata.uid()) {
        true => Ok(()),
        false => Err(Distrust::Owner {
            path: path.to_owned(),
            owner: metadata.uid(),
        }),
    }
}

fn check_mode(path: &Path, metadata: &Metadata) -> Result<(), Distrust> {
    match metadata.mode() & 0o022 {
        0 => Ok(()),
        _ => Err(Distrust::Mode {
            path: path.to_owned(),
            mode: metadata.mode() & 0o7777,
        }),
    }
}

/// Symbolic links in one path; the kernel follows as many.
const MOST_LINKS: u32 = 40;
/// The mode bit of a folder in which users can replace their own entries only.
const STICKY: u32 = 0o1000;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, lchown, symlink};

    use super::*;

    /// Makes a folder for a test in the folder for temporary files, which all users may write.
    fn folder(name: &str) -> PathBuf {
        let name = format!("netnice-trust-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).expect("a folder");
        set_mode(&folder, 0o755);
        folder
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
    }

    #[test]
    fn a_link_that_others_can_replace_is_not_trusted() {
        let folder = folder("links");
        let [open, inner] = ["open", "inner"].map(|name| folder.join(name));
        for path in [&open, &inner] {
            fs::create_dir(path).expect("a folder");
            set_mode(path, 0o755);
        }
        let [link, outer] = ["open/link", "outer"].map(|name| folder.join(name));
        symlink("../inner", &link).expect("a link");
        symlink(&link, &outer).expect("a link to the link");
        let paths = [&link, &outer, &outer.join("../inner")];
        for path in paths {
            check(path).expect("no other user can replace a link");
            set_mode(&open, 0o777);
            let error = check(path).expect_err("others can").to_string();
            assert!(error.contains("open can be written by others"), "{error}");
            set_mode(&open, 0o1777);
            check(path).expect("no other user can replace this link");
            set_mode(&open, 0o755);
        }
        set_mode(&open, 0o1777);
        if lchown(&link, Some(61_234), None).is_ok() {
            let error = check(&outer).expect_err("it is another's").to_string();
            assert!(error.contains("link belongs to user 61234"), "{error}");
        } // else this process is not root
        let end = folder.join("loop");
        symlink("loop", &end).expect("a link to itself");
        assert!(matches!(check(&end), Err(Distrust::Unreadable { .. })));
        fs::remove_dir_all(&folder).expect("it was ours");
    }

    #[test]
    fn a_path_that_others_can_write_or_replace_is_not_trusted() {
        let folder = folder("modes");
        let inner = folder.join("inner");
        fs::create_dir(&inner).expect("a folder");
        set_mode(&inner, 0o755);
        check(&inner).expect("no other user can write it");
        for (path, bits) in [(&inner, 0o777), (&inner, 0o1777), (&folder, 0o775)] {
            set_mode(path, bits);
            let error = check(&inner).expect_err("others can").to_string();
            assert!(error.contains("can be written by others"), "{error}");
            set_mode(path, 0o755);
        }
        set_mode(&folder, 0o1777);
        check(&inner).expect("no user can replace it");
        set_mode(&folder, 0o755);
        if std::os::unix::fs::chown(&inner, Some(61_234), None).is_ok() {
            let error = check(&inner).expect_err("it is another's").to_string();
            assert!(error.contains("belongs to user 61234"), "{error}");
        } // else this process is not root
        fs::remove_dir_all(&folder).expect("it was ours");
        assert!(matches!(check(&inner), Err(Distrust::Unreadable { .. })));
    }
}

//! Checks that only root, or the user of this process, can write or replace a folder or a file
//! ([`check`]).
//!
//! A file that root executes or trusts must meet this condition with all folders above it, as
//! sshd(8) requires of the files of a user. A folder above may be one like /tmp: every user may
//! make entries in it, and its sticky bit prevents them from replacing entries of others. The path
//! itself may not be such a folder.

use std::{
    fs, io,
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
    /// It belongs to a user other than root and the user of this process.
    #[error("{} belongs to user {owner}, not to root", path.display())]
    Owner {
        /// The path, or a folder above it.
        path: PathBuf,
        /// Its owner's user id.
        owner: u32,
    },
    /// Its group or all users may write it, and it is not a folder with the sticky bit above the
    /// path.
    #[error("{} can be written by others (mode {mode:04o})", path.display())]
    Mode {
        /// The path, or a folder above it.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
}

/// Checks that only root, or the effective user of this process, can write or replace a path.
/// Symbolic links are followed: the check applies to their destination, not to the links.
///
/// # Errors
/// The first reason for distrust, from the path upwards.
pub fn check(path: &Path) -> Result<(), Distrust> {
    let unreadable = |source| Distrust::Unreadable {
        path: path.to_owned(),
        source,
    };
    let real = fs::canonicalize(path).map_err(unreadable)?;
    for path_above in real.ancestors() {
        let metadata = fs::symlink_metadata(path_above).map_err(unreadable)?;
        let own = rustix::process::geteuid().as_raw();
        if ![0, own].contains(&metadata.uid()) {
            return Err(Distrust::Owner {
                path: path_above.to_owned(),
                owner: metadata.uid(),
            });
        }
        let mode = metadata.mode() & 0o7777;
        let is_around = path_above != real;
        if mode & 0o022 != 0 && !(is_around && mode & 0o1000 != 0) {
            return Err(Distrust::Mode {
                path: path_above.to_owned(),
                mode,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_path_that_others_can_write_or_replace_is_not_trusted() {
        let folder = std::env::temp_dir().join(format!("netnice-trust-{}", std::process::id()));
        let inner = folder.join("inner");
        fs::create_dir_all(&inner).expect("a folder");
        let mode = |path: &Path, mode: u32| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
        };
        mode(&folder, 0o755);
        mode(&inner, 0o755);
        check(&inner).expect("nobody else can write it");
        for (path, bits) in [(&inner, 0o777), (&inner, 0o1777), (&folder, 0o775)] {
            mode(path, bits);
            let error = check(&inner).expect_err("others can").to_string();
            assert!(error.contains("can be written by others"), "{error}");
            mode(path, 0o755);
        }
        mode(&folder, 0o1777);
        check(&inner).expect("nobody can replace it");
        mode(&folder, 0o755);
        if std::os::unix::fs::chown(&inner, Some(61_234), None).is_ok() {
            let error = check(&inner).expect_err("it is another's").to_string();
            assert!(error.contains("belongs to user 61234"), "{error}");
        } // else this process is not root
        fs::remove_dir_all(&folder).expect("it was ours");
        assert!(matches!(check(&inner), Err(Distrust::Unreadable { .. })));
    }
}

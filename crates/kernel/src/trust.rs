//! Whether a folder or a file is root's alone: nobody else can write it, or put another one in its place.
//!
//! What root runs, or trusts what it reads, has to be so with all that is around it, as sshd(8) asks of the files of a user.
//! A folder such as /tmp, in which everybody may make entries and nobody may replace those of others (its sticky bit is set),
//! may be around it, not be it.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Why a path is not to be trusted.
#[derive(Debug, thiserror::Error)]
pub enum Distrust {
    /// It cannot be looked at.
    #[error("{}: {source}", path.display())]
    Unseen {
        /// What.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It belongs to somebody else.
    #[error("{} belongs to user {owner}, not to root", path.display())]
    Owner {
        /// What: the path, or what is around it.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
    },
    /// Others may write it.
    #[error("{} can be written by others (mode {mode:04o})", path.display())]
    Mode {
        /// What: the path, or what is around it.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
}

/// Says why a path could be somebody else's than root's, or this process' own user's; links on the way are followed, and what
/// they lead to is looked at.
pub fn check(path: &Path) -> Result<(), Distrust> {
    let unseen = |source| Distrust::Unseen {
        path: path.to_owned(),
        source,
    };
    let real = fs::canonicalize(path).map_err(unseen)?;
    for place in real.ancestors() {
        let about = fs::symlink_metadata(place).map_err(unseen)?;
        // SAFETY: it takes nothing and cannot fail.
        let own = unsafe { libc::geteuid() };
        if ![0, own].contains(&about.uid()) {
            return Err(Distrust::Owner {
                path: place.to_owned(),
                owner: about.uid(),
            });
        }
        let mode = about.mode() & 0o7777;
        let is_around = place != real;
        if mode & 0o022 != 0 && !(is_around && mode & 0o1000 != 0) {
            return Err(Distrust::Mode {
                path: place.to_owned(),
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
    fn what_others_can_write_or_replace_is_not_trusted() {
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
        } // else not root
        fs::remove_dir_all(&folder).expect("it was ours");
        assert!(matches!(check(&inner), Err(Distrust::Unseen { .. })));
    }
}

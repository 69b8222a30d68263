//! The folder that holds a daemon's socket, state and pins; several daemons can live on one
//! machine, each in its own.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The runtime folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeDir(PathBuf);

impl RuntimeDir {
    /// The environment variable that names it.
    pub const VARIABLE: &str = "NETNICE_RUNTIME_DIR";

    /// Where it is unless somebody says otherwise.
    pub const DEFAULT: &str = "/run/netnice";

    /// The folder that an option names, else the one that the environment variable names (an
    /// empty one names none), else [`RuntimeDir::DEFAULT`].
    pub fn choose(option: Option<PathBuf>, variable: Option<OsString>) -> RuntimeDir {
        let variable = variable.filter(|value| !value.is_empty());
        let named = option.or(variable.map(PathBuf::from));
        RuntimeDir(named.unwrap_or_else(|| PathBuf::from(RuntimeDir::DEFAULT)))
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The daemon's socket in it.
    pub fn socket(&self) -> PathBuf {
        self.0.join("netnice.sock")
    }

    /// The folder in it that is the drivers' own, with the locks and sockets of all interfaces.
    pub fn drivers(&self) -> PathBuf {
        self.0.join("drivers")
    }

    /// The socket of an interface's driver.
    pub fn driver_socket(&self, iface: &str) -> PathBuf {
        self.drivers().join(format!("{iface}.sock"))
    }

    /// The interfaces for which there may be a driver.
    pub fn driver_ifaces(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.drivers());
        let names = entries.into_iter().flatten().flatten();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        let iface = |name: String| Some(name.strip_suffix(".sock")?.to_owned());
        names.filter_map(iface).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::RuntimeDir;

    #[test]
    fn the_option_wins_over_the_variable_and_an_empty_variable_counts_for_none() {
        let choose = |option: Option<&str>, variable: Option<&str>| {
            RuntimeDir::choose(option.map(Into::into), variable.map(Into::into)).socket()
        };
        assert_eq!(
            choose(Some("/a"), Some("/b")),
            "/a/netnice.sock".as_ref() as &std::path::Path
        );
        assert_eq!(
            choose(None, Some("/b")),
            "/b/netnice.sock".as_ref() as &std::path::Path
        );
        assert_eq!(
            choose(None, Some("")),
            "/run/netnice/netnice.sock".as_ref() as &std::path::Path
        );
        assert_eq!(
            choose(None, None),
            "/run/netnice/netnice.sock".as_ref() as &std::path::Path
        );
    }
}

//! [`RuntimeDir`], the folder of a daemon's socket, state and pinned eBPF maps: how it is chosen,
//! and the paths of the sockets in it. Several daemons can run on one machine, each with its own
//! folder. No function fails; a list of drivers' sockets that cannot be read is empty.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The runtime folder: the folder of a daemon's socket, state and pinned eBPF maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeDir(PathBuf);

impl RuntimeDir {
    /// The environment variable that names the folder.
    pub const VARIABLE: &str = "NETNICE_RUNTIME_DIR";

    /// The folder if neither an option nor the variable names another.
    pub const DEFAULT: &str = "/run/netnice";

    /// Chooses the folder: the one of the command-line option, else the one of the environment
    /// variable unless it is empty, else [`RuntimeDir::DEFAULT`].
    pub fn choose(option: Option<PathBuf>, variable: Option<OsString>) -> RuntimeDir {
        let variable = variable.filter(|value| !value.is_empty());
        let named = option.or(variable.map(PathBuf::from));
        RuntimeDir(named.unwrap_or_else(|| PathBuf::from(RuntimeDir::DEFAULT)))
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of the daemon's socket.
    pub fn socket(&self) -> PathBuf {
        self.0.join("netnice.sock")
    }

    /// The path of netnice-peer's socket for programs. It is in a folder beside this one, because
    /// netnice-peer is a user of its own: `/run/netnice-peer` beside `/run/netnice`.
    pub fn peer_socket(&self) -> PathBuf {
        self.peer_folder().join("peer.sock")
    }

    /// The path of the file with the stops of the relay's thread (`netnice-peer --relay-stops`).
    pub fn relay_stops(&self) -> PathBuf {
        self.peer_folder().join("relay.stops")
    }

    /// The path of netnice-peer's own folder.
    pub fn peer_folder(&self) -> PathBuf {
        let mut folder = self.0.clone().into_os_string();
        folder.push("-peer");
        PathBuf::from(folder)
    }

    /// The path of the daemon's state file. Without the file, no daemon has set anything since the
    /// boot.
    pub fn state(&self) -> PathBuf {
        self.0.join("state.json")
    }

    /// The path of the file with the secret from which the keys of TCP flows are derived. Without
    /// the file, no TCP flow was opened since the boot.
    pub fn tcp_secret(&self) -> PathBuf {
        self.0.join("tcp-secret")
    }

    /// The path of the drivers' own folder, with the locks and sockets of all interfaces.
    pub fn drivers(&self) -> PathBuf {
        self.0.join("drivers")
    }

    /// The path of the socket of an interface's driver.
    pub fn driver_socket(&self, iface: &str) -> PathBuf {
        self.drivers().join(format!("{iface}.sock"))
    }

    /// The path of the file with the stops of an interface's driver (`netnice-driver --stops`).
    pub fn driver_stops(&self, iface: &str) -> PathBuf {
        self.0.join(format!("driver-{iface}.stops"))
    }

    /// The interfaces whose drivers have a socket, in no order. A socket can remain without a
    /// driver. Empty if the drivers' folder cannot be read.
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
    fn the_option_wins_over_the_variable_and_an_empty_variable_is_ignored() {
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

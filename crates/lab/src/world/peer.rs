//! Runs the `netnice-peer` of a host ([`World::peer`]), with certificates of an authority of the
//! world. A start fails if the binary is missing, if a file or folder cannot be made, if the
//! program ends, or if it does not listen within [`EVENT_TIMEOUT`]. Signals fail if the program
//! does not run.

use std::ffi::OsString;
use std::os::unix::fs::chown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use netnice_peer::issue::{self, Validity};
use netnice_peer::message::HostName;

use super::daemon::memory_of;
use super::{Family, NetnsHandle, World};
use crate::process::{self, EVENT_TIMEOUT, Proc};
use crate::sys;

/// How a [`Peer`] is started.
#[derive(Clone, Debug)]
pub struct PeerOptions<'a> {
    /// The user that the program runs as, with a group of the same number; `None`: root.
    pub user: Option<u32>,
    /// A program such as `unshare` with its arguments, which runs the program; empty for none. It
    /// must execute the program and not fork.
    pub through: &'a [&'a str],
    /// The family of the addresses by which the program reaches other hosts.
    pub family: Family,
    /// Further options of the program.
    pub further: &'a [&'a str],
}

impl Default for PeerOptions<'_> {
    fn default() -> Self {
        PeerOptions {
            user: None,
            through: &[],
            family: Family::V4,
            further: &[],
        }
    }
}

/// A `netnice-peer` inside a namespace. Dropping this value kills it.
pub struct Peer {
    handle: NetnsHandle,
    /// The program with its options, and before it the command that changes the user, if one does.
    words: Vec<OsString>,
    socket: PathBuf,
    process: Option<Proc>,
}

impl World {
    /// Starts the netnice-peer of `host`, and waits until it listens for programs. It knows the
    /// addresses of all other hosts of the world, and uses the runtime folder of
    /// [`World::netnice`]. The first call issues certificates for all hosts. Fails as the module
    /// says; panics if no host has this name.
    pub fn peer(&self, host: &str, options: &PeerOptions<'_>) -> Result<Peer> {
        let certificates = self.certificates()?;
        let runtime = self.folder().join(host);
        let folder = runtime.with_file_name(format!("{host}-peer"));
        let key = certificates.join(format!("{host}.key"));
        std::fs::create_dir_all(&folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
        let mut words: Vec<OsString> = options.through.iter().map(OsString::from).collect();
        if let Some(user) = options.user {
            for owned in [&folder, &key] {
                chown(owned, Some(user), Some(user))
                    .with_context(|| format!("cannot give away {}", owned.display()))?;
            }
            let [reuid, regid] = ["reuid", "regid"].map(|option| format!("--{option}={user}"));
            words.extend(["setpriv", &reuid, &regid, "--clear-groups", "--"].map(OsString::from));
        }
        words.push(process::binary("netnice-peer")?.into());
        for (option, path) in [
            ("--runtime-dir", &runtime),
            ("--certificate", &certificates.join(format!("{host}.pem"))),
            ("--key", &key),
            ("--authority", &certificates.join("authority.pem")),
        ] {
            words.extend([option.into(), path.into()]);
        }
        for other in self.hosts.iter().filter(|other| other.name != host) {
            let address = self.address_of(&other.name, host, options.family);
            words.extend(["--host".into(), format!("{}={address}", other.name).into()]);
        }
        words.extend(options.further.iter().map(OsString::from));
        let mut peer = Peer {
            handle: self.host(host).ns.handle(),
            words,
            socket: folder.join("peer.sock"),
            process: None,
        };
        peer.start()?;
        Ok(peer)
    }

    /// The folder with the certificates of all hosts, which are issued if the folder does not
    /// exist. Fails if a file cannot be written, or if a host has a name that no certificate can
    /// have.
    fn certificates(&self) -> Result<PathBuf> {
        let folder = self.folder().join("certificates");
        if !folder.exists() {
            // Users other than root must be able to read their files.
            std::fs::create_dir(&folder)
                .with_context(|| format!("cannot make {}", folder.display()))?;
            let hosts = self.hosts.iter().map(|host| HostName::new(&host.name));
            let hosts: Vec<HostName> = hosts.collect::<Result<_, _>>()?;
            issue::into_folder(&folder, &hosts, Validity::days(1))?;
        }
        Ok(folder)
    }
}

impl Peer {
    /// The socket for programs.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The program's process id; `None` if it was ended.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Proc::pid)
    }

    /// The program's resident memory in bytes. Fails if it does not run.
    pub fn memory(&self) -> Result<u64> {
        memory_of(self.pid().context("netnice-peer does not run")?, "VmRSS:")
    }

    /// Whether the program runs.
    pub fn is_running(&mut self) -> bool {
        self.process.as_mut().is_some_and(Proc::is_running)
    }

    /// The text that the program wrote to standard error since the last call.
    pub fn take_stderr(&mut self) -> String {
        self.process
            .as_mut()
            .map_or_else(String::new, Proc::take_stderr)
    }

    /// Kills the program (SIGKILL), and waits for it.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill();
        }
    }

    /// Ends the program (SIGTERM), and waits for it; kills it after [`EVENT_TIMEOUT`].
    pub fn terminate(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.terminate(EVENT_TIMEOUT);
        }
    }

    /// Stops the program (SIGSTOP), and waits until it has stopped. Its connections stay open.
    /// Fails if the program does not run, or has not stopped within [`EVENT_TIMEOUT`].
    pub fn stop(&self) -> Result<()> {
        let pid = self.signal(libc::SIGSTOP)?;
        let until = Instant::now() + EVENT_TIMEOUT;
        while sys::state(pid) != Some('T') {
            if Instant::now() > until {
                bail!("netnice-peer {pid} has not stopped within {EVENT_TIMEOUT:?}");
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Continues the program after [`Peer::stop`] (SIGCONT). Fails if the program does not run.
    pub fn cont(&self) -> Result<()> {
        self.signal(libc::SIGCONT).map(drop)
    }

    /// Has the program read its policy file again (SIGHUP). Fails if it does not run.
    pub fn reload(&self) -> Result<()> {
        self.signal(libc::SIGHUP).map(drop)
    }

    /// Kills the program if it runs, starts it again with the same options, and waits until it
    /// listens. Fails as [`World::peer`] does.
    pub fn restart(&mut self) -> Result<()> {
        self.kill();
        self.start()
    }

    fn signal(&self, signal: i32) -> Result<u32> {
        let pid = self.pid().context("netnice-peer does not run")?;
        sys::kill(pid as i32, signal).with_context(|| format!("cannot signal {pid}"))?;
        Ok(pid)
    }

    fn start(&mut self) -> Result<()> {
        let (program, options) = self.words.split_first().context("a program")?;
        let mut command = self.handle.command(program);
        command.args(options);
        let process = self.process.insert(Proc::start(command)?);
        let until = Instant::now() + EVENT_TIMEOUT;
        // A killed program leaves its socket, at which nothing listens.
        while UnixStream::connect(&self.socket).is_err() {
            if !process.is_running() {
                bail!(
                    "netnice-peer ended at once: {}",
                    process.take_stderr().trim()
                );
            }
            if Instant::now() > until {
                bail!(
                    "netnice-peer does not listen at {} within {EVENT_TIMEOUT:?}: {}",
                    self.socket.display(),
                    process.take_stderr().trim()
                );
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }
}

const POLL_INTERVAL: Duration = Duration::from_millis(5);

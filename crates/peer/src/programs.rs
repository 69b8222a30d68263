//! The connections of this host's programs ([`Programs`]), over the Unix socket of
//! `netnice_api::channels`. [`Programs::listen`] fails if the socket cannot be made; later failures
//! become events.
//!
//! # Bounds
//! Every user of the host can connect. A user other than root has at most [`MOST_OF_USER`]
//! connections; all together have [`MOST_CONNECTIONS`]. A connection whose program does not read
//! what is sent, or sends an invalid message, ends. So does one whose program does not reply to a
//! `ping` for [`SILENT`]: a stopped program keeps no channel.

mod connection;

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use netnice_api::channels::{FromProgram, Ping, ToProgram};
use netnice_core::units::{Instant, Nanos};
use tokio::net::UnixListener;
use tokio::sync::mpsc;

use connection::{Link, Report};

/// The number of a connection. It is never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProgramId(pub u64);

/// What has happened at the socket.
#[derive(Debug)]
pub enum ProgramEvent {
    /// A program has sent a message.
    Message {
        /// The program.
        program: ProgramId,
        /// Its user.
        uid: u32,
        /// The message.
        message: FromProgram,
    },
    /// The connection of a program has ended.
    Ended {
        /// The program.
        program: ProgramId,
        /// Why.
        reason: String,
    },
}

/// The connections of programs.
pub struct Programs {
    listener: UnixListener,
    socket: PathBuf,
    links: BTreeMap<ProgramId, Connected>,
    reports: mpsc::Sender<Report>,
    incoming: mpsc::Receiver<Report>,
    next: u64,
}

struct Connected {
    link: Link,
    uid: u32,
    /// When the program sent something last.
    heard: Instant,
}

impl Programs {
    /// Listens at a socket, in a folder that is made if it is missing. A socket that exists is
    /// replaced, if nothing listens at it.
    ///
    /// # Errors
    /// If another process listens there, or the folder or the socket cannot be made.
    pub fn listen(socket: &Path) -> io::Result<Programs> {
        if let Some(folder) = socket.parent() {
            std::fs::create_dir_all(folder)?;
        }
        match std::os::unix::net::UnixStream::connect(socket) {
            Ok(_) => {
                let text = format!("another netnice-peer listens at {}", socket.display());
                return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(_) => std::fs::remove_file(socket)?,
        }
        let listener = UnixListener::bind(socket)?;
        // Every user may ask; netniced decides what each may have of its links.
        std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o666))?;
        let (reports, incoming) = mpsc::channel(MOST_REPORTS);
        Ok(Programs {
            listener,
            socket: socket.to_owned(),
            links: BTreeMap::new(),
            reports,
            incoming,
            next: 0,
        })
    }

    /// Waits for the next event. Dropping the future loses nothing.
    pub async fn next(&mut self) -> ProgramEvent {
        loop {
            tokio::select! {
                // This has a sender itself, so the channel never ends.
                Some(report) = self.incoming.recv() => {
                    if let Some(event) = self.handle(report) {
                        return event;
                    }
                }
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, _)) => self.accept(stream),
                    // For example too many open files; others may be closed meanwhile.
                    Err(_) => tokio::time::sleep(ACCEPT_AGAIN).await,
                },
            }
        }
    }

    /// Sends a message to a program. A program that does not read is disconnected, and
    /// [`ProgramEvent::Ended`] follows.
    pub fn send(&mut self, program: ProgramId, message: &ToProgram) {
        if let Some(connected) = self.links.get_mut(&program) {
            connected.link.send(message);
        }
    }

    /// The user of a program; `None` if it is not connected.
    pub fn user(&self, program: ProgramId) -> Option<u32> {
        self.links.get(&program).map(|connected| connected.uid)
    }

    /// Asks all programs whether they run, and disconnects those that have not replied. Call it
    /// every [`PING`]. Returns those that are disconnected.
    pub fn ping(&mut self, now: Instant) -> Vec<ProgramId> {
        let is_silent = |connected: &Connected| now.since(connected.heard) > SILENT;
        let silent = self.links.iter().filter(|(_, one)| is_silent(one));
        let silent: Vec<ProgramId> = silent.map(|(program, _)| *program).collect();
        for program in &silent {
            self.links.remove(program);
        }
        for connected in self.links.values_mut() {
            connected.link.send(&ToProgram::Ping(Ping {}));
        }
        silent
    }

    fn accept(&mut self, stream: tokio::net::UnixStream) {
        let Ok(peer) = stream.peer_cred() else {
            return;
        };
        let uid = peer.uid();
        let of_user = self.links.values().filter(|one| one.uid == uid).count();
        if self.links.len() >= MOST_CONNECTIONS || uid != 0 && of_user >= MOST_OF_USER {
            return;
        }
        let program = ProgramId(self.next);
        self.next += 1;
        let link = Link::start(program, stream, self.reports.clone());
        let heard = now();
        self.links.insert(program, Connected { link, uid, heard });
    }

    fn handle(&mut self, report: Report) -> Option<ProgramEvent> {
        match report {
            Report::Message { program, message } => {
                let connected = self.links.get_mut(&program)?;
                connected.heard = now();
                match message {
                    FromProgram::Pong(_) => None,
                    message => Some(ProgramEvent::Message {
                        program,
                        uid: connected.uid,
                        message,
                    }),
                }
            }
            Report::Ended { program, reason } => {
                self.links.remove(&program)?;
                Some(ProgramEvent::Ended { program, reason })
            }
        }
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        // The next process removes it too.
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// The time of `CLOCK_MONOTONIC`.
pub(crate) fn now() -> Instant {
    Instant(netnice_stack::monotonic_ns())
}

/// The largest number of programs at the same time.
pub const MOST_CONNECTIONS: usize = 1_024;
/// The largest number of connections of a user other than root.
pub const MOST_OF_USER: usize = 64;
/// How often programs are asked whether they run.
pub const PING: Duration = Duration::from_secs(3);
/// A program that has sent nothing for so long is disconnected.
pub const SILENT: Nanos = Nanos::from_secs(10);
/// Messages of all programs that wait.
const MOST_REPORTS: usize = 16;
/// How long no connection is accepted after an error.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests;

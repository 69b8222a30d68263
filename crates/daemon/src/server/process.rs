//! The process of the front: its start ([`FrontStart`]), its end, the number of its connections
//! that have sent a request, and its confinement as the kernel shows it, for `netnice doctor`
//! ([`FrontProcess`]). Only the start can fail, with the reason as text.

use std::collections::BTreeMap;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream as StdStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use netnice_api::{DoctorItem, Status, fds};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::front::messages::Ready;
use crate::{name_files, name_service};

/// The channels to a started front.
pub(super) struct FrontChannels {
    /// The socket to the front. The daemon cannot read from it.
    pub to_front: UnixStream,
    /// The pipe from the front, which carries bytes and no descriptors.
    pub from_front: pipe::Receiver,
}

/// The present front's process.
#[derive(Default)]
pub(super) struct FrontProcess {
    /// `None` in tests, where the front is a thread, and while there is no front.
    child: Option<Child>,
    /// How it is confined; `None` until it is.
    ready: Option<Ready>,
    /// Number of connections that have sent a request, by uid.
    connections: BTreeMap<u32, u64>,
}

/// How a front is started.
pub(super) enum FrontStart {
    /// As a process.
    Process {
        /// The front's working folder.
        folder: PathBuf,
        /// True if the front accepts descriptors that clients send.
        takes_descriptors: bool,
    },
    /// As a thread of this process.
    #[cfg(test)]
    Thread,
}

impl FrontStart {
    /// A front in a process of its own, for the daemon of this runtime folder, that refuses
    /// descriptors of clients.
    pub(super) fn process(folder: &Path) -> FrontStart {
        FrontStart::Process {
            folder: folder.to_owned(),
            takes_descriptors: false,
        }
    }

    /// Makes later fronts accept descriptors of clients and close them.
    pub(super) fn take_descriptors(&mut self) {
        match self {
            FrontStart::Process {
                takes_descriptors, ..
            } => *takes_descriptors = true,
            #[cfg(test)]
            FrontStart::Thread => {}
        }
    }

    /// Starts a front for a listening socket. Returns the channels to it, and its process (`None`
    /// for a thread); fails with the reason as text.
    pub(super) fn start(
        &self,
        listener: &UnixListener,
    ) -> Result<(FrontChannels, Option<Child>), String> {
        let done = || -> io::Result<(FrontChannels, Option<Child>)> {
            let (to_front, theirs) = StdStream::pair()?;
            to_front.set_nonblocking(true)?;
            theirs.set_nonblocking(true)?;
            // Descriptors that the front sent to this end would be closed by the daemon, so nothing
            // can be sent.
            to_front.shutdown(Shutdown::Read)?;
            let (from_front, pipe) = io::pipe()?;
            fds::send(to_front.as_fd(), b"l", &[listener.as_fd()])?;
            let from_front = pipe::Receiver::from_owned_fd(from_front.into())?;
            let child = self.spawn(theirs.into(), pipe.into())?;
            let to_front = UnixStream::from_std(to_front)?;
            Ok((
                FrontChannels {
                    to_front,
                    from_front,
                },
                child,
            ))
        };
        done().map_err(|error| format!("it cannot be started: {error}"))
    }

    fn spawn(&self, to_front: OwnedFd, pipe: OwnedFd) -> io::Result<Option<Child>> {
        let (folder, takes_descriptors) = match self {
            FrontStart::Process {
                folder,
                takes_descriptors,
            } => (folder, *takes_descriptors),
            #[cfg(test)]
            FrontStart::Thread => {
                use crate::front;
                std::thread::spawn(move || {
                    let got = fds::receive(to_front.as_fd(), &mut [0], 1).expect("the first");
                    let listener = got.fds.into_iter().next().expect("the listener");
                    let _ = front::serve(to_front, pipe, listener, Ready::default());
                });
                return Ok(None);
            }
        };
        let (uid, gid) = user();
        // The executable of this process, even if its path has another file now.
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("netniced")
            .args(["--front", &format!("{uid}:{gid}")]);
        if takes_descriptors {
            command.arg("--take-descriptors");
        }
        command.env_clear();
        if let Some(levels) = std::env::var_os("NETNICE_LOG") {
            command.env("NETNICE_LOG", levels);
        }
        command
            .stdin(Stdio::from(to_front))
            .stdout(Stdio::from(pipe));
        command.current_dir(folder).spawn().map(Some)
    }
}

/// The user and group of the front: `netnice-front` if `/etc/passwd` has it or the name service
/// finds it within a second, else `nobody`.
fn user() -> (u32, u32) {
    if let Some(own) = name_files::ids_of_user(USER) {
        return own;
    }
    let own = name_service::user(USER).unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot look up the user {USER}");
        None
    });
    own.map_or((NOBODY, NOBODY), |own| (own.uid.as_raw(), own.gid.as_raw()))
}

impl FrontProcess {
    /// Records a started front.
    pub(super) fn begin(&mut self, child: Option<Child>) {
        *self = FrontProcess {
            child,
            ..FrontProcess::default()
        };
    }

    /// Records that the front is confined and serves.
    pub(super) fn ready(&mut self, how: Ready) {
        self.ready = Some(how);
    }

    /// Counts a connection that sends its first request.
    pub(super) fn opened(&mut self, uid: u32) {
        *self.connections.entry(uid).or_default() += 1;
    }

    /// Counts the end of a connection.
    pub(super) fn closed(&mut self, uid: u32) {
        if let Some(count) = self.connections.get_mut(&uid) {
            *count -= 1;
            if *count == 0 {
                self.connections.remove(&uid);
            }
        }
    }

    /// Number of connections that have sent a request, by uid.
    pub(super) fn connections(&self) -> &BTreeMap<u32, u64> {
        &self.connections
    }

    /// Waits for the end of the front, whose socket is closed; kills it after `kill_after`. Returns
    /// its exit status as text; if it has not ended after twice this time, a text that says so.
    pub(super) async fn end(self, kill_after: Duration) -> String {
        let Some(mut child) = self.child else {
            return String::new();
        };
        let mut ended = timeout(kill_after, child.wait()).await;
        if ended.is_err() {
            let _ = child.start_kill();
            ended = timeout(kill_after, child.wait()).await;
        }
        match ended {
            Ok(Ok(status)) => format!(" ({status})"),
            // It is reaped when it ends.
            _ => " (its process is still there)".to_owned(),
        }
    }

    /// Reports how the front is confined, for `netnice doctor`.
    pub(super) fn doctor(&self) -> DoctorItem {
        let pid = self.child.as_ref().and_then(Child::id);
        doctor(pid.zip(self.ready))
    }
}

/// Reports how the front is confined: its own report, checked against the kernel's data on its
/// process.
fn doctor(front: Option<(u32, Ready)>) -> DoctorItem {
    let item = |status, detail: String, hint: Option<&str>| DoctorItem {
        name: "front".to_owned(),
        status,
        detail,
        hint: hint.map(str::to_owned),
    };
    let Some((pid, ready)) = front else {
        let detail = "the process that reads the socket is just being started".to_owned();
        return item(Status::Missing, detail, None);
    };
    let proc_status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |name: &str| {
        let line = proc_status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_whitespace().next())
            .unwrap_or("?")
            .to_owned()
    };
    let uid = field("Uid:");
    let is_filtered = field("Seccomp:") == "2" && field("NoNewPrivs:") == "1";
    let is_powerless = field("CapPrm:").chars().all(|digit| digit == '0');
    let descriptors = match ready.refuses_descriptors {
        true => "the kernel refuses descriptors that clients send",
        false => "descriptors that clients send are closed on a thread of the sender's",
    };
    let or = |is: bool, good: &'static str, bad: &'static str| if is { good } else { bad };
    let detail = format!(
        "process {pid} reads the socket: user {uid}, {}, {}, {}; {descriptors}",
        or(is_powerless, "no capabilities", "WITH CAPABILITIES"),
        or(
            is_filtered,
            "system calls filtered",
            "SYSTEM CALLS NOT FILTERED"
        ),
        or(
            ready.empty_root,
            "an empty root folder",
            "the root folder of all"
        ),
    );
    if !is_filtered || !is_powerless {
        return item(
            Status::Missing,
            detail,
            Some("a kernel with seccomp filters"),
        );
    }
    if !ready.other_user || !ready.empty_root {
        let hint = "give netniced CAP_SETUID, CAP_SETGID and CAP_SYS_CHROOT";
        return item(Status::Fallback, detail, Some(hint));
    }
    if uid == NOBODY.to_string() {
        let hint = "make a user of its own for it: useradd --system --no-create-home netnice-front";
        return item(Status::Fallback, detail, Some(hint));
    }
    item(Status::Good, detail, None)
}

/// The user account for the front.
const USER: &str = "netnice-front";
/// The uid and gid of `nobody`.
const NOBODY: u32 = 65_534;

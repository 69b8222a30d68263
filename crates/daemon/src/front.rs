//! The front: the confined process that reads the daemon's socket.
//!
//! `netniced` starts itself again as the front and passes it the listening socket. The front
//! accepts connections, gets the peer's credentials from the kernel, receives frames, closes
//! descriptors that clients send, enforces the limits on connections, and parses requests. The
//! daemon gets parsed requests over a pipe; no byte and no file descriptor of a client reaches it
//! in any other way.
//!
//! ```text
//!             first thread           thread of the client's user                 the daemon
//!   connect ─> accept, read uid ───> read, parse, wait for a turn ─── pipe ────> request queue
//!   answer <──────────────────────── send <── first thread <──────── socket ──── event loop
//! ```
//! The front is a separate process because the daemon must not close descriptors that clients send:
//! the close of the last copy can block forever. In the front such a close blocks one thread, which
//! serves only one user. The front is confined before it reads the first byte of a client
//! ([`netnice_kernel::confine`]): a user other than root, no capability, an empty root folder, and
//! a list of system calls, none of which opens a file, starts a program, or signals or traces a
//! process. If the machine does not permit the other user or the empty root folder, the front runs
//! without that, and `netnice doctor` reports it. The daemon relies on the front for the identity
//! of the peer (process number, uid and groups).
//!
//! If the front ends, its connections end, and the daemon starts another one. If the daemon ends,
//! the front reads the end of its socket, sends what can be sent at once, and ends too. The front
//! fails if it cannot be confined, if it gets no listening socket, or if the socket, the pipe or
//! epoll fails. It ends too if too many connections wait for a close that blocks (see `accept`).

mod accept;
mod connection;
mod inbox;
pub(crate) mod messages;
mod user;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use netnice_api::fds;
use netnice_api::frame::{self, Decoder};
use netnice_kernel::confine::{self, Confinement};
use netnice_kernel::peer;
use netnice_kernel::processor::policy;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::process::setsid;

use crate::quotas::MAX_CONNECTIONS;
use accept::Users;
use messages::{FromFront, Kind, LONGEST_FROM_FRONT, LONGEST_TO_FRONT, Ready, ToFront};

/// Runs the front in a process that the daemon has started for it. Standard input is the socket
/// from the daemon, with the listening socket as its first message; standard output is the pipe to
/// the daemon.
///
/// `user` is the uid and gid of the front. With `takes_descriptors`, clients may send descriptors,
/// as on kernels that cannot refuse them. Returns when the daemon has ended.
///
/// # Errors
/// If the daemon sent no listening socket, if the process cannot be confined, or if the socket or
/// the pipe of the daemon fails.
pub fn run(user: (u32, u32), takes_descriptors: bool) -> io::Result<()> {
    confine::close_from(3)?;
    // A terminal's signals to the daemon must not reach the front: it ends when the daemon does.
    // A client that floods the front with requests must not have the daemon's priority; a process
    // without the right to change its nice value has none.
    setsid()?;
    let _ = policy::set_own_nice(0);
    let daemon_socket = io::stdin().as_fd().try_clone_to_owned()?;
    let pipe = io::stdout().as_fd().try_clone_to_owned()?;
    let got = fds::receive(daemon_socket.as_fd(), &mut [0], 1)?;
    let listener = got.fds.into_iter().next();
    let listener =
        listener.ok_or_else(|| io::Error::other("the daemon sent no listening socket"))?;
    let refuses = !takes_descriptors && peer::refuse_descriptors(listener.as_fd()).is_ok();
    let confined = confine::confine(&confinement(user))?;
    // If one thread fails, the whole front ends, and the daemon starts another one.
    let default_hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        default_hook(panic);
        std::process::exit(101);
    }));
    let ready = Ready {
        empty_root: confined.empty_root,
        other_user: confined.other_user,
        refuses_descriptors: refuses,
    };
    serve(daemon_socket, pipe, listener, ready)
}

/// Confines this process as the front is confined and tries what must be impossible. Prints a line
/// about the confinement, and a line for each attempt: its name, and its error or `POSSIBLE`. For
/// tests and demonstrations.
///
/// # Errors
/// If the process cannot be confined, or standard output cannot be written.
pub fn try_confinement(user: (u32, u32)) -> io::Result<()> {
    use io::Write;
    let parent = std::os::unix::process::parent_id();
    let confined = confine::confine(&confinement(user))?;
    let mut out = io::stdout().lock();
    writeln!(out, "{confined:?}")?;
    for trial in confine::attempts(parent) {
        match trial.errno {
            Some(errno) => writeln!(
                out,
                "{}: {}",
                trial.what,
                io::Error::from_raw_os_error(errno)
            )?,
            None => writeln!(out, "{}: POSSIBLE", trial.what)?,
        }
    }
    out.flush()
}

fn confinement(user: (u32, u32)) -> Confinement {
    Confinement {
        name: "netnice-front",
        user,
        descriptors: MAX_DESCRIPTORS,
        memory: MAX_MEMORY,
    }
}

/// The loop of the first thread: passes connections and the daemon's messages to the users'
/// threads. It receives nothing from a client, and closes no socket in which a client's descriptor
/// may be queued. Returns when the daemon has ended.
///
/// # Errors
/// If the socket or the pipe of the daemon fails, or epoll does.
pub(crate) fn serve(
    daemon_socket: OwnedFd,
    pipe: OwnedFd,
    listener: OwnedFd,
    ready: Ready,
) -> io::Result<()> {
    let daemon = DaemonPipe {
        pipe: Mutex::new(pipe),
    };
    daemon.send(&FromFront::Ready(ready))?;
    let mut users = Users::new(daemon, ready.refuses_descriptors);
    let mut daemon_socket = DaemonSocket {
        socket: daemon_socket,
        decoder: Decoder::new(LONGEST_TO_FRONT),
        fds: VecDeque::new(),
    };
    let waiting = epoll::create(CreateFlags::CLOEXEC)?;
    let readable = EventFlags::IN;
    epoll::add(
        &waiting,
        &daemon_socket.socket,
        EventData::new_u64(DAEMON),
        readable,
    )?;
    epoll::add(&waiting, &listener, EventData::new_u64(LISTENER), readable)?;
    let mut events = Vec::with_capacity(2);
    loop {
        events.clear();
        match epoll::wait(&waiting, spare_capacity(&mut events), None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        for event in events.drain(..) {
            match event.data.u64() {
                DAEMON => {
                    if !daemon_socket.receive(&mut users)? {
                        // From here on the front accepts no client that it would have to disconnect
                        // at once.
                        drop(listener);
                        users.end(ANSWER_TIME);
                        return Ok(());
                    }
                }
                _ => users.accept(&listener),
            }
        }
    }
}

/// The pipe to the daemon.
pub(crate) struct DaemonPipe {
    pipe: Mutex<OwnedFd>,
}

impl DaemonPipe {
    /// Sends a message. While the pipe is full, this blocks, and so do the threads of other users
    /// that send; the daemon reads the pipe as fast as it handles requests.
    fn send(&self, what: &FromFront) -> io::Result<()> {
        let body = serde_json::to_vec(what)?;
        let frame = frame::encode(&body, LONGEST_FROM_FRONT).map_err(io::Error::other)?;
        let pipe = self.pipe.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rest = frame.as_slice();
        while !rest.is_empty() {
            match rustix::io::write(&*pipe, rest) {
                Ok(written) => rest = &rest[written..],
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// The socket from the daemon.
struct DaemonSocket {
    socket: OwnedFd,
    decoder: Decoder,
    /// Received descriptors that belong to no message yet, in order.
    fds: VecDeque<OwnedFd>,
}

impl DaemonSocket {
    /// Passes on received messages; false at the end of the stream.
    fn receive(&mut self, users: &mut Users) -> io::Result<bool> {
        let mut bytes = [0; 64 * 1024];
        let got = match fds::receive(self.socket.as_fd(), &mut bytes, fds::MAX_FDS) {
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(false),
            Err(error) => return Err(error),
        };
        if got.bytes == 0 {
            return Ok(false);
        }
        self.decoder.push(&bytes[..got.bytes]);
        self.fds.extend(got.fds);
        while let Some(body) = self.decoder.poll().map_err(io::Error::other)? {
            let decoded = ToFront::decode(&body);
            let (mut message, fds) =
                decoded.ok_or_else(|| io::Error::other("the daemon sent an invalid message"))?;
            let fds = fds.min(self.fds.len());
            message.fds = self.fds.drain(..fds).collect();
            match message.kind {
                Kind::Quota => users.set_limit(message.connection),
                _ => users.deliver(message),
            }
        }
        Ok(true)
    }
}

const LISTENER: u64 = 0;
const DAEMON: u64 = 1;
/// Largest number of root's connections.
const MAX_OF_ROOT: usize = 256;
/// Largest number of connections of all other users together.
const MAX_OF_OTHERS: usize = MAX_CONNECTIONS as usize;
/// Largest number of open descriptors of the front. Connections that are attached to the direct
/// path do not count against the limits above. A link has at most 4,096 flows, so this is enough
/// for fifteen links with one flow for each connection.
const MAX_DESCRIPTORS: u64 = 65_536;
/// Largest size of the front's data memory, in bytes. Answers that clients do not read take memory;
/// beyond this bound the front ends.
const MAX_MEMORY: u64 = 2 << 30;
/// How long answers may be sent after the daemon has ended.
const ANSWER_TIME: Duration = Duration::from_millis(100);

//! The front: the process that reads the socket, and can do nothing else.
//!
//! `netniced` starts itself once more as the front and gives it the listening socket. The front accepts connections, asks
//! the kernel who connected, receives frames, closes what was sent beside them, keeps the limits on connections, and
//! parses requests. The daemon gets requests that were understood, over a pipe; no byte and no file descriptor of a
//! client reaches it in any other way.
//!
//! ```text
//!              first thread            thread of a user                              daemon
//!   connect ──> accept, who? ──────────> read, parse, wait for a turn ── pipe ──────> Turns ──> requests, one by one
//!   answer  <──────────────────────────── send <── first thread: by user <── socket ──┘
//! ```
//! It is a process of its own since what strangers send must not be closed by the daemon: the close of the last copy of
//! a descriptor can block for ever. The front's threads block instead, each for one user ([`user`]). And since it
//! reads what strangers wrote, it is confined before the first byte ([`netnice_kernel::confine`]): a user of its own,
//! no capability, an empty root folder, and a list of system calls that opens, makes, signals and traces nothing.
//! What it is trusted with is to say who asks.
//!
//! If the front ends, its connections end, and the daemon starts another one. If the daemon ends, the front sees the end
//! of its socket and ends as well.

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
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::quotas::MOST_CONNECTIONS;
use accept::Users;
use messages::{FromFront, Kind, LONGEST_FROM_FRONT, LONGEST_TO_FRONT, Ready, ToFront};

/// Runs the front in a process that the daemon has started for it: standard input is the socket from the daemon, with the
/// listening socket as its first message, and standard output the pipe to it.
///
/// With `takes_descriptors` clients may send descriptors, as on kernels that cannot refuse them.
///
/// # Errors
/// Where it cannot be confined, or a descriptor is not what it should be.
pub fn run(user: (u32, u32), takes_descriptors: bool) -> io::Result<()> {
    confine::close_from(3)?;
    let orders = io::stdin().as_fd().try_clone_to_owned()?;
    let pipe = io::stdout().as_fd().try_clone_to_owned()?;
    let got = fds::receive(orders.as_fd(), &mut [0], 1)?;
    let listener = got.fds.into_iter().next();
    let listener = listener.ok_or_else(|| io::Error::other("no socket to listen on was sent"))?;
    let refuses = !takes_descriptors && peer::refuse_descriptors(listener.as_fd()).is_ok();
    let confined = confine::confine(&confinement(user))?;
    // A front of which one thread has failed is no front: the daemon starts another.
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        told(panic);
        std::process::exit(101);
    }));
    let ready = Ready {
        empty_root: confined.empty_root,
        other_user: confined.other_user,
        refuses_descriptors: refuses,
    };
    serve(orders, pipe, listener, ready)
}

/// Is confined as the front is, and tries what it must not be able to do. For tests and for who wants to see it: each line is
/// what was tried, and the error that it ended with.
///
/// # Errors
/// Where it cannot be confined.
pub fn try_out(user: (u32, u32)) -> io::Result<()> {
    use io::Write;
    let parent = std::os::unix::process::parent_id();
    let confined = confine::confine(&confinement(user))?;
    let mut out = io::stdout().lock();
    writeln!(out, "{confined:?}")?;
    for trial in confine::trials(parent) {
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
        descriptors: MOST_DESCRIPTORS,
        memory: MOST_MEMORY,
    }
}

/// The loop of the first thread: connections are handed to their users' threads, and so is what the daemon has for
/// them. It receives nothing from a client and closes nothing that a client could have sent something to.
pub(crate) fn serve(
    orders: OwnedFd,
    pipe: OwnedFd,
    listener: OwnedFd,
    ready: Ready,
) -> io::Result<()> {
    let daemon = Daemon {
        pipe: Mutex::new(pipe),
    };
    daemon.tell(&FromFront::Ready(ready))?;
    let mut users = Users::new(daemon, ready.refuses_descriptors);
    let mut orders = Orders {
        socket: orders,
        decoder: Decoder::new(LONGEST_TO_FRONT),
        fds: VecDeque::new(),
    };
    let waiting = epoll::create(CreateFlags::CLOEXEC)?;
    let readable = EventFlags::IN;
    epoll::add(
        &waiting,
        &orders.socket,
        EventData::new_u64(ORDERS),
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
                ORDERS => {
                    if !orders.take(&mut users)? {
                        // A client that comes now finds nobody, and not somebody who hangs up.
                        drop(listener);
                        users.end(LAST_ANSWERS);
                        return Ok(());
                    }
                }
                _ => users.accept(&listener),
            }
        }
    }
}

/// The way to the daemon.
pub(crate) struct Daemon {
    pipe: Mutex<OwnedFd>,
}

impl Daemon {
    /// Tells it something. Where the pipe is full this waits, and so do the users after this one: the daemon
    /// reads it as fast as it serves them.
    fn tell(&self, what: &FromFront) -> io::Result<()> {
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

/// The way from the daemon.
struct Orders {
    socket: OwnedFd,
    decoder: Decoder,
    /// Descriptors that came, in their order, and that no message has taken yet.
    fds: VecDeque<OwnedFd>,
}

impl Orders {
    /// Hands on what has come; false at the end.
    fn take(&mut self, users: &mut Users) -> io::Result<bool> {
        let mut bytes = [0; 64 * 1024];
        let got = match fds::receive(self.socket.as_fd(), &mut bytes, fds::MOST) {
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
                decoded.ok_or_else(|| io::Error::other("the daemon is not understood"))?;
            let fds = fds.min(self.fds.len());
            message.fds = self.fds.drain(..fds).collect();
            match message.kind {
                Kind::Quota => users.permit(message.connection),
                _ => users.deliver(message),
            }
        }
        Ok(true)
    }
}

const LISTENER: u64 = 0;
const ORDERS: u64 = 1;
/// How many root may.
const MOST_OF_ROOT: usize = 256;
/// How many all users but root may.
const MOST_OF_ALL: usize = MOST_CONNECTIONS as usize;
/// Connections with direct flows have no seat, and a link has 4,096 of them at most; sixteen links.
const MOST_DESCRIPTORS: u64 = 65_536;
/// Answers of many megabytes that are not taken; the front ends where they are more than this.
const MOST_MEMORY: u64 = 2 << 30;
/// How long answers may still be sent when the daemon has ended.
const LAST_ANSWERS: Duration = Duration::from_millis(100);

//! The connection to the daemon: requests with their responses, and notifications from the daemon
//! ([`FlowNotification`]). A request fails if the daemon refuses it or cannot carry it out, if the
//! daemon does not respond in time or responds with something else, or if the connection is lost.
//! Attaching also fails if there is no daemon, if the memory file is invalid, or if a system call
//! fails.
//!
//! A program has one connection, which one thread uses at a time. Notifications arrive between
//! responses. The thread that reads a notification applies it at once ([`Flows::apply`]) and stores
//! it for [`crate::Program::next_notification`]. The thread that waits for the doorbell also waits
//! for the connection, so the message that the driver has ended wakes a program that waits for a
//! packet.
//!
//! If the daemon ends, the connection is lost and the flows continue: the driver serves them
//! without the daemon. The module `resume` connects to the next daemon.

mod flows;
mod resume;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use netnice_api::direct::{
    Attach, Attached, DirectReply, DirectRequest, FindNextHop, FlowNotification, ResolvedNextHop,
};
use netnice_api::{Client, ClientError, Request, Response, RuntimeDir};
use netnice_ring::program::Attachment;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll};

use crate::error::StackError;
pub(crate) use flows::{FlowStatus, Flows};
use resume::{Resumption, State, Steps};

/// The connection to the daemon and the state that came from it.
pub(crate) struct Control {
    connection: Mutex<Connection>,
    /// Readable when the daemon sent a message, or another thread read a message.
    messages_fd: OwnedFd,
    /// Readable when `messages_fd` is, when the driver sent a doorbell notification, or when one of
    /// the two holds for another attachment of the program.
    poll_fd: OwnedFd,
    /// A thread that read notifications wakes the thread that sleeps by this eventfd.
    waker: OwnedFd,
    resumption: Resumption,
    /// Next hops that the daemon found.
    next_hops: Mutex<HashMap<IpAddr, KnownHop>>,
    /// The daemon's response to the attachment.
    pub(crate) attached: Attached,
}

/// The part of the connection that one thread uses at a time.
struct Connection {
    client: Client,
    state: State,
    notifications: VecDeque<FlowNotification>,
}

/// The next hop to a host, and the end of its validity.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KnownHop {
    pub(crate) hop: ResolvedNextHop,
    pub(crate) until: Instant,
}

impl Control {
    /// Connects to the daemon and attaches the program. Fails if there is no daemon, the connection
    /// fails, the daemon refuses, its response or memory file is invalid, or a system call fails.
    pub(crate) fn attach(
        dir: &RuntimeDir,
        attach: Attach,
    ) -> Result<(Control, Attachment), StackError> {
        let mut client = Client::connect(dir)?;
        let pidfd = rustix::process::pidfd_open(
            rustix::process::getpid(),
            rustix::process::PidfdFlags::empty(),
        )
        .map_err(io::Error::from)?;
        let request = Request::Direct(DirectRequest::Attach(attach));
        let (response, fds) = client.call_for_fds(&request, Some(pidfd.as_fd()))?;
        let attached = match response {
            Response::Direct(DirectReply::Attached(attached)) => attached,
            other => return Err(unexpected_response(other, "attach")),
        };
        let Ok([memory, to_driver, to_program]) = <[OwnedFd; 3]>::try_from(fds) else {
            return Err(StackError::UnexpectedResponse("attach"));
        };
        let attachment = Attachment::new(memory, to_driver, to_program)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let waker = rustix::event::eventfd(0, flags).map_err(io::Error::from)?;
        let resumption = Resumption::new(dir, &attached)?;
        let timer = resumption.timer();
        let messages_fd = watch(&[client.as_fd(), waker.as_fd(), timer])?;
        let poll_fd = watch(&[attachment.doorbell(), messages_fd.as_fd()])?;
        let connection = Mutex::new(Connection {
            client,
            state: State::Attached,
            notifications: VecDeque::new(),
        });
        let control = Control {
            connection,
            messages_fd,
            poll_fd,
            waker,
            resumption,
            next_hops: Mutex::default(),
            attached,
        };
        Ok((control, attachment))
    }

    /// Readable when the driver sent a doorbell notification, or when there are notifications from
    /// the daemon, for this attachment or one of [`Control::watch_too`].
    pub(crate) fn poll_fd(&self) -> BorrowedFd<'_> {
        self.poll_fd.as_fd()
    }

    /// Readable when there are notifications from the daemon.
    pub(crate) fn messages_fd(&self) -> BorrowedFd<'_> {
        self.messages_fd.as_fd()
    }

    /// Makes [`Control::poll_fd`] readable also for another attachment of the program. Fails if a
    /// system call fails.
    pub(crate) fn watch_too(&self, doorbell: BorrowedFd<'_>, other: &Control) -> io::Result<()> {
        add(&self.poll_fd, doorbell)?;
        add(&self.poll_fd, other.messages_fd())
    }

    /// The runtime folder of the daemon.
    pub(crate) fn dir(&self) -> &RuntimeDir {
        self.resumption.dir()
    }

    /// Sends a request, and returns the result of `on_response`, which gets the response.
    /// Notifications that arrived with the response are applied after that. If the daemon has
    /// ended, connects to the next one first. Fails with [`StackError::NoDaemon`] if there is none,
    /// and with [`StackError::Daemon`] if the connection fails now or `timeout` expires.
    pub(crate) fn request<T>(
        &self,
        flows: &Flows,
        request: DirectRequest,
        timeout: Duration,
        on_response: impl FnOnce(Response) -> Result<T, StackError>,
    ) -> Result<T, StackError> {
        let mut connection = self.lock();
        self.read_for_sleeper(&mut connection, flows, Client::poll_notification);
        self.wait_for_daemon(&mut connection, flows, timeout)?;
        let response = connection
            .client
            .call_within(timeout, &Request::Direct(request), None);
        let done = match response {
            Ok(response) => on_response(response),
            Err(error) => {
                self.mark_lost(&mut connection, State::after(&error));
                return Err(error.into());
            }
        };
        // The socket does not become readable again for them.
        self.read_for_sleeper(&mut connection, flows, Client::buffered_notification);
        done
    }

    /// Reads the notifications from the daemon, unless another thread uses the connection.
    pub(crate) fn read_notifications(&self, flows: &Flows) {
        // The read fails only if the counter is 0, which is no error.
        let _ = rustix::io::read(&self.waker, &mut [0; 8]);
        self.resumption.clear_timer();
        let mut connection = match self.connection.try_lock() {
            Ok(connection) => connection,
            Err(TryLockError::Poisoned(connection)) => connection.into_inner(),
            // The thread that has the lock reads the notifications too.
            Err(TryLockError::WouldBlock) => return,
        };
        self.advance(&mut connection, flows);
        if let Err(state) = connection.read_notifications(flows, Client::poll_notification) {
            self.mark_lost(&mut connection, state);
            self.advance(&mut connection, flows);
        }
    }

    /// Takes the steps to resume the attachment that are possible without waiting.
    fn advance(&self, connection: &mut Connection, flows: &Flows) {
        if matches!(connection.state, State::Attached) {
            return;
        }
        let mut notifications = Vec::new();
        Steps {
            client: &mut connection.client,
            state: &mut connection.state,
            resumption: &self.resumption,
            poll_fd: &self.messages_fd,
            flows,
            notifications: &mut notifications,
        }
        .advance(Instant::now());
        if !notifications.is_empty() {
            self.wake_sleeper();
        }
        for notification in notifications {
            connection.store(notification);
        }
    }

    /// Waits until the daemon serves the attachment, for a call that needs it. Fails if the
    /// attachment has ended, no daemon listens, or the daemon does not resume the attachment within
    /// `timeout`.
    fn wait_for_daemon(
        &self,
        connection: &mut Connection,
        flows: &Flows,
        timeout: Duration,
    ) -> Result<(), StackError> {
        let deadline = Instant::now() + timeout;
        // The call needs the daemon now: it does not wait for the end of a long pause.
        if let State::Lost {
            retry, earliest, ..
        } = &mut connection.state
        {
            *retry = (*retry).min(*earliest);
            std::thread::sleep(retry.saturating_duration_since(Instant::now()));
        }
        loop {
            self.advance(connection, flows);
            let left = deadline.saturating_duration_since(Instant::now());
            match connection.state {
                State::Attached => return Ok(()),
                State::Resuming { .. } if !left.is_zero() => {}
                _ => {
                    return Err(match flows.end_reason() {
                        Some(why) => StackError::Ended(why.to_string()),
                        None => StackError::NoDaemon,
                    });
                }
            }
            let left = Timespec::try_from(left).ok();
            let mut readable = [PollFd::new(&connection.client, PollFlags::IN)];
            // After an interruption the loop waits again.
            let _ = rustix::event::poll(&mut readable, left.as_ref());
        }
    }

    /// Reads the notifications from the daemon for a thread that does not sleep, unless another
    /// thread uses the connection. False if the connection is lost: no notification follows.
    pub(crate) fn refresh(&self, flows: &Flows) -> bool {
        let mut connection = match self.connection.try_lock() {
            Ok(connection) => connection,
            Err(TryLockError::Poisoned(connection)) => connection.into_inner(),
            // The thread that has the lock reads the notifications too.
            Err(TryLockError::WouldBlock) => return true,
        };
        self.read_for_sleeper(&mut connection, flows, Client::poll_notification);
        connection.state.is_connected()
    }

    /// Reads the notifications from the daemon, and removes and returns the oldest stored one;
    /// `None` if none is stored.
    pub(crate) fn next_notification(&self, flows: &Flows) -> Option<FlowNotification> {
        let mut connection = self.lock();
        self.read_for_sleeper(&mut connection, flows, Client::poll_notification);
        connection.notifications.pop_front()
    }

    /// Reads the notifications from the daemon for a thread that does not sleep. If there were any,
    /// wakes the thread that sleeps.
    fn read_for_sleeper(
        &self,
        connection: &mut Connection,
        flows: &Flows,
        next: impl FnMut(&mut Client) -> Result<Option<FlowNotification>, ClientError>,
    ) {
        self.advance(connection, flows);
        match connection.read_notifications(flows, next) {
            Ok(true) => self.wake_sleeper(),
            Ok(false) => {}
            Err(state) => {
                self.mark_lost(connection, state);
                self.advance(connection, flows);
            }
        }
    }

    /// The stored next hop to a host; `None` if none is stored, or if it has expired.
    pub(crate) fn known_hop(&self, to: IpAddr, now: Instant) -> Option<KnownHop> {
        let hops = self
            .next_hops
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        hops.get(&to).copied().filter(|known| known.until > now)
    }

    /// Requests the next hop to a host from the daemon, and stores it for [`HOP_LIFETIME`]. Fails
    /// as [`Control::request`], or if the daemon does not find it.
    pub(crate) fn request_hop(&self, flows: &Flows, to: IpAddr) -> Result<KnownHop, StackError> {
        let request = DirectRequest::NextHop(FindNextHop { to });
        let hop = self.request(flows, request, Client::TIMEOUT, |response| match response {
            Response::Direct(DirectReply::NextHop(hop)) => Ok(hop),
            other => Err(unexpected_response(other, "next-hop")),
        })?;
        let now = Instant::now();
        let known = KnownHop {
            hop,
            until: now + HOP_LIFETIME,
        };
        let mut hops = self
            .next_hops
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if hops.len() >= MAX_NEXT_HOPS {
            hops.retain(|_, known| known.until > now);
        }
        if hops.len() >= MAX_NEXT_HOPS {
            hops.clear();
        }
        hops.insert(to, known);
        Ok(known)
    }

    /// Wakes the thread that sleeps, so that it looks at the notifications.
    pub(crate) fn wake_sleeper(&self) {
        // The write fails only if the counter is full, and then the thread is already woken.
        let _ = rustix::io::write(&self.waker, &1u64.to_ne_bytes());
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the connection has failed. Its descriptor must not wake a thread any more.
    fn mark_lost(&self, connection: &mut Connection, state: State) {
        if connection.state.is_connected() {
            // The descriptor was added, so deleting it cannot fail.
            let _ = epoll::delete(&self.messages_fd, connection.client.as_fd());
            connection.state = state;
        }
    }
}

impl Connection {
    /// Reads, applies and stores notifications, while the daemon serves the attachment. True if
    /// there were any. Fails with the state that follows if the connection fails.
    fn read_notifications(
        &mut self,
        flows: &Flows,
        mut next: impl FnMut(&mut Client) -> Result<Option<FlowNotification>, ClientError>,
    ) -> Result<bool, State> {
        let mut some = false;
        while matches!(self.state, State::Attached) {
            let next = next(&mut self.client).map_err(|error| State::after(&error))?;
            let Some(notification) = next else {
                break;
            };
            some = true;
            flows.apply(&notification);
            self.store(notification);
        }
        Ok(some)
    }

    /// Stores a notification for [`Control::next_notification`].
    fn store(&mut self, notification: FlowNotification) {
        if self.notifications.len() == MAX_NOTIFICATIONS {
            self.notifications.pop_front();
        }
        self.notifications.push_back(notification);
    }
}

/// An epoll descriptor that is readable when one of `all` is.
fn watch(all: &[BorrowedFd<'_>]) -> Result<OwnedFd, io::Error> {
    let poll_fd = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    all.iter().try_for_each(|fd| add(&poll_fd, *fd))?;
    Ok(poll_fd)
}

fn add(poll_fd: &OwnedFd, fd: BorrowedFd<'_>) -> io::Result<()> {
    let data = epoll::EventData::new_u64(0);
    Ok(epoll::add(poll_fd, fd, data, epoll::EventFlags::IN)?)
}

/// The error for a response that the request did not expect.
pub(crate) fn unexpected_response(response: Response, request: &'static str) -> StackError {
    match response {
        Response::Refused(refused) => StackError::Refused {
            by: refused.by,
            text: refused.text,
        },
        Response::Failed(failed) => StackError::Failed {
            text: failed.text,
            bad_usage: failed.bad_usage,
            cause: failed.cause,
        },
        _ => StackError::UnexpectedResponse(request),
    }
}

/// Time for which a next hop is valid. It is about as long as a kernel trusts a neighbour entry.
const HOP_LIFETIME: Duration = Duration::from_secs(30);
/// Largest number of hosts whose next hops are kept.
const MAX_NEXT_HOPS: usize = 4096;
/// Largest number of notifications that are kept for later calls of `next_notification`.
const MAX_NOTIFICATIONS: usize = 1024;

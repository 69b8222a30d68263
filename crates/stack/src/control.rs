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
//! without the daemon.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use netnice_api::direct::{
    Attach, Attached, DirectReply, DirectRequest, FindNextHop, FlowNotification, ResolvedNextHop,
};
use netnice_api::{Client, ClientError, Request, Response, RuntimeDir};
use netnice_ring::program::Attachment;
use rustix::event::{EventfdFlags, epoll};

use crate::error::StackError;
use crate::reports::Reports;

/// The connection to the daemon and the state that came from it.
pub(crate) struct Control {
    connection: Mutex<Connection>,
    /// Readable when the driver sent a doorbell notification, the daemon sent a message, or another
    /// thread read a message.
    poll_fd: OwnedFd,
    /// A thread that read notifications wakes the thread that sleeps by this eventfd.
    waker: OwnedFd,
    /// Next hops that the daemon found.
    next_hops: Mutex<HashMap<IpAddr, KnownHop>>,
    /// The daemon's response to the attachment.
    pub(crate) attached: Attached,
}

/// The part of the connection that one thread uses at a time.
struct Connection {
    client: Client,
    /// True after an error of the connection. The connection stays open, because closing it would
    /// end the flows.
    lost: bool,
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
        .map_err(std::io::Error::from)?;
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
        let waker = rustix::event::eventfd(0, flags).map_err(std::io::Error::from)?;
        let poll_fd = watch(&[attachment.doorbell(), client.as_fd(), waker.as_fd()])?;
        let connection = Mutex::new(Connection {
            client,
            lost: false,
            notifications: VecDeque::new(),
        });
        let control = Control {
            connection,
            poll_fd,
            waker,
            next_hops: Mutex::default(),
            attached,
        };
        Ok((control, attachment))
    }

    /// Readable when the driver sent a doorbell notification, or when there are notifications from
    /// the daemon.
    pub(crate) fn poll_fd(&self) -> BorrowedFd<'_> {
        self.poll_fd.as_fd()
    }

    /// Sends a request, and returns the result of `on_response`, which gets the response.
    /// Notifications that arrived with the response are applied after that. Fails with
    /// [`StackError::NoDaemon`] if the connection was lost before, and with [`StackError::Daemon`]
    /// if it fails now or `timeout` expires; then it counts as lost.
    pub(crate) fn request<T>(
        &self,
        flows: &Flows,
        request: DirectRequest,
        timeout: Duration,
        on_response: impl FnOnce(Response) -> Result<T, StackError>,
    ) -> Result<T, StackError> {
        let mut connection = self.lock();
        if connection.lost {
            return Err(StackError::NoDaemon);
        }
        let response = connection
            .client
            .call_within(timeout, &Request::Direct(request), None);
        let done = match response {
            Ok(response) => on_response(response),
            Err(error) => {
                self.mark_lost(&mut connection);
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
        let mut connection = match self.connection.try_lock() {
            Ok(connection) => connection,
            Err(TryLockError::Poisoned(connection)) => connection.into_inner(),
            // The thread that has the lock reads the notifications too.
            Err(TryLockError::WouldBlock) => return,
        };
        if connection
            .read_notifications(flows, Client::poll_notification)
            .is_none()
        {
            self.mark_lost(&mut connection);
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
        !connection.lost
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
        match connection.read_notifications(flows, next) {
            Some(true) => self.wake_sleeper(),
            Some(false) => {}
            None => self.mark_lost(connection),
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
    fn wake_sleeper(&self) {
        // The write fails only if the counter is full, and then the thread is already woken.
        let _ = rustix::io::write(&self.waker, &1u64.to_ne_bytes());
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the connection as lost. Its descriptor must not wake a thread any more.
    fn mark_lost(&self, connection: &mut Connection) {
        if !std::mem::replace(&mut connection.lost, true) {
            // The descriptor was added, so deleting it cannot fail.
            let _ = epoll::delete(&self.poll_fd, connection.client.as_fd());
        }
    }
}

impl Connection {
    /// Reads, applies and stores notifications. True if there were any; `None` if the connection is
    /// lost.
    fn read_notifications(
        &mut self,
        flows: &Flows,
        mut next: impl FnMut(&mut Client) -> Result<Option<FlowNotification>, ClientError>,
    ) -> Option<bool> {
        let mut some = false;
        while !self.lost {
            let Some(notification) = next(&mut self.client).ok()? else {
                break;
            };
            some = true;
            flows.apply(&notification);
            if self.notifications.len() == MAX_NOTIFICATIONS {
                self.notifications.pop_front();
            }
            self.notifications.push_back(notification);
        }
        Some(some)
    }
}

/// The flows of a program, with the state that notifications change.
#[derive(Default)]
pub(crate) struct Flows {
    open: Mutex<HashMap<u32, (u32, Arc<FlowStatus>)>>,
    /// Why all flows ended.
    end: OnceLock<String>,
    /// Slots of the flows that notifications named.
    notified: Mutex<Vec<u32>>,
}

/// The state of a flow that the daemon can change.
#[derive(Default)]
pub(crate) struct FlowStatus {
    /// The path MTU to the remote endpoint, or the link's MTU on a flow to any host or a group, in
    /// bytes; 0 after the daemon has reported the end of the flow.
    mtu: AtomicU32,
    end: OnceLock<String>,
    /// What routers and hosts reported (ICMP).
    pub(crate) reports: Reports,
}

impl Flows {
    /// Adds a flow.
    pub(crate) fn insert(&self, flow: u32, slot: u32, status: Arc<FlowStatus>) {
        self.lock().insert(flow, (slot, status));
    }

    pub(crate) fn remove(&self, flow: u32) {
        self.lock().remove(&flow);
    }

    /// Why all flows ended; `None` while they have not.
    pub(crate) fn end_reason(&self) -> Option<&str> {
        self.end.get().map(String::as_str)
    }

    /// The slots of the flows that notifications named since the last call.
    pub(crate) fn take_notified(&self) -> Vec<u32> {
        let mut notified = self.notified.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut notified)
    }

    fn apply(&self, notification: &FlowNotification) {
        let open = self.lock();
        let mut slots = Vec::new();
        match notification {
            FlowNotification::Mtu { flow, mtu } => {
                if let Some((slot, status)) = open.get(flow) {
                    status.set_mtu(*mtu);
                    slots.push(*slot);
                }
            }
            FlowNotification::Undelivered { flow, report } => {
                if let Some((slot, status)) = open.get(flow) {
                    status.reports.add(*report, Instant::now());
                    slots.push(*slot);
                }
            }
            FlowNotification::Closed { flow, why } => {
                if let Some((slot, status)) = open.get(flow) {
                    status.set_ended(why);
                    slots.push(*slot);
                }
            }
            FlowNotification::Ended { why } => {
                // The first reason stays.
                let _ = self.end.set(why.clone());
                for (slot, status) in open.values() {
                    status.set_ended(why);
                    slots.push(*slot);
                }
            }
            FlowNotification::Link { .. }
            | FlowNotification::NextHop { .. }
            | FlowNotification::Degraded { .. } => {}
        }
        let mut notified = self.notified.lock().unwrap_or_else(PoisonError::into_inner);
        notified.append(&mut slots);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, (u32, Arc<FlowStatus>)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FlowStatus {
    pub(crate) fn new(mtu: u32) -> Arc<FlowStatus> {
        let status = FlowStatus::default();
        status.set_mtu(mtu);
        Arc::new(status)
    }

    /// The path MTU to the remote endpoint, or the link's MTU on a flow to any host or a group, in
    /// bytes; 0 after the daemon has reported the end of the flow.
    #[inline]
    pub(crate) fn mtu(&self) -> u32 {
        self.mtu.load(Ordering::Relaxed)
    }

    /// Why the flow ended, with the daemon's words; `None` while no reason has arrived.
    pub(crate) fn end_reason(&self) -> Option<&str> {
        self.end.get().map(String::as_str)
    }

    fn set_mtu(&self, mtu: u32) {
        if self.end.get().is_none() {
            self.mtu.store(mtu, Ordering::Relaxed);
        }
    }

    fn set_ended(&self, why: &str) {
        let _ = self.end.set(why.to_string());
        self.mtu.store(0, Ordering::Relaxed);
    }
}

/// An epoll descriptor that is readable when one of `all` is.
fn watch(all: &[BorrowedFd<'_>]) -> Result<OwnedFd, std::io::Error> {
    let poll_fd = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for fd in all {
        let data = epoll::EventData::new_u64(0);
        epoll::add(&poll_fd, fd, data, epoll::EventFlags::IN)?;
    }
    Ok(poll_fd)
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

//! A program on the direct path ([`Program`]): its memory file, its connection to the daemon, and
//! its threads that wait for the driver or the daemon. `udp::open_flow` opens its flows. A call
//! fails with a [`StackError`] if its arguments are invalid, if there is no daemon, if the daemon
//! refuses or cannot carry out the request, if the connection to the daemon fails, or if a system
//! call fails.
//!
//! There is one doorbell for all flows, and only one thread can wait for it. So the first of
//! several waiting threads *leads*: it sleeps until the doorbell or the connection becomes
//! readable, sets a bit for each flow that a notice or notification names, and wakes the other
//! threads. A thread whose flow's bit is set clears the bit and returns. One of the threads that
//! still wait leads next.

use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use netnice_api::direct::{
    Attach, CloseFlow, DirectReply, DirectRequest, FlowNotification, FlowOpened, OpenFlow,
    ResolvedNextHop,
};
use netnice_api::{Client, Response, RuntimeDir};
use netnice_ring::layout::MAX_FLOWS;
use netnice_ring::program::{Attachment, ProgramRings};
use netnice_ring::{FlowLocation, Shape};

use crate::control::{Control, FlowStatus, Flows, unexpected_response};
use crate::error::StackError;
use crate::moving::MovedFlows;
use crate::readable::wait_readable;
use crate::service::Service;

/// A program's attachment to the direct path. It is cheap to clone. The attachment ends with the
/// last clone and the last socket.
#[derive(Clone)]
pub struct Program {
    pub(crate) shared: Arc<Shared>,
}

/// The state that all flows of a program share.
pub(crate) struct Shared {
    pub(crate) attachment: Attachment,
    control: Option<Control>,
    pub(crate) flows: Flows,
    /// One bit for each slot: 1 after a notice or notification for its flow was taken, until a
    /// thread that waits for the flow clears the bit.
    pending: Vec<AtomicU64>,
    has_leader: Mutex<bool>,
    changed: Condvar,
    /// When a thread that does not sleep reads the notifications next, in ms of a clock.
    next_refresh: AtomicU64,
    /// The numbers of flows and of bytes of the attachment.
    size: (u32, u64),
    /// The program's attachments to links to which flows have moved, and where its flows are.
    pub(crate) moved: MovedFlows<Shared>,
    /// The thread that serves the program's TCP.
    pub(crate) service: Service,
}

impl Program {
    /// Attaches the program to a link through the daemon of a runtime folder. `flows` is the
    /// largest number of flows that are open at the same time, and `bytes` is the size of the
    /// memory for all their rings and buffers (the sum of
    /// [`Buffers::region_bytes`](crate::udp::Buffers::region_bytes)). `iface` may be `None` if
    /// exactly one interface is managed.
    ///
    /// # Errors
    /// If there is no daemon, the daemon refuses, a system call fails, or the descriptors are not
    /// those of a driver's memory file.
    pub fn attach(
        dir: &RuntimeDir,
        iface: Option<&str>,
        flows: u32,
        bytes: u64,
    ) -> Result<Program, StackError> {
        let attach = Attach {
            iface: iface.map(str::to_string),
            flows,
            bytes,
            moves: true,
        };
        let (control, attachment) = Control::attach(dir, attach)?;
        let shared = Shared::new(attachment, Some(control), (flows, bytes));
        Ok(Program {
            shared: Arc::new(shared),
        })
    }

    /// Uses an attachment that did not come from a daemon.
    pub fn new(attachment: Attachment) -> Program {
        Program {
            shared: Arc::new(Shared::new(attachment, None, (0, 0))),
        }
    }

    /// Requests a flow from the daemon, and returns its rings, its addresses and its status. The
    /// caller closes the flow by [`Shared::close`]. Fails if there is no connection to the daemon,
    /// the daemon does not grant the flow, or the location in its response is invalid.
    pub(crate) fn open_rings(
        &self,
        open: OpenFlow,
        shape: Shape,
    ) -> Result<(ProgramRings, FlowOpened, Arc<FlowStatus>), StackError> {
        let control = self.shared.control()?;
        let request = DirectRequest::Open(open);
        let flows = &self.shared.flows;
        let (opened, status) = control.request(flows, request, Client::TIMEOUT, |response| {
            let opened = match response {
                Response::Direct(DirectReply::Opened(opened)) => opened,
                other => return Err(unexpected_response(other, "open")),
            };
            let status = FlowStatus::new(opened.mtu);
            flows.insert(opened.flow, opened.slot, status.clone());
            Ok((opened, status))
        })?;
        let location = FlowLocation {
            slot: opened.slot,
            offset: opened.offset,
            shape,
        };
        match self.shared.attachment.flow(location) {
            Ok(rings) => Ok((rings, opened, status)),
            Err(error) => {
                self.shared.close(opened.flow);
                Err(error.into())
            }
        }
    }

    /// The name of the interface; `None` without a daemon.
    pub fn iface(&self) -> Option<&str> {
        self.shared.iface()
    }

    /// The driver's access to the interface: `native`, `generic` or `fallback`; `None` without a
    /// daemon.
    pub fn mode(&self) -> Option<&str> {
        let control = self.shared.control.as_ref()?;
        Some(&control.attached.mode)
    }

    /// Returns the next hop to a host: the stored result, else the daemon's, which is then stored
    /// for 30 seconds. All flows of the program with [`Remote::Any`](crate::udp::Remote::Any) use
    /// the stored result for this host.
    ///
    /// # Errors
    /// If there is no connection to the daemon or it fails, the host is not reached through this
    /// link, or the next hop does not answer.
    pub fn next_hop(&self, host: IpAddr) -> Result<ResolvedNextHop, StackError> {
        let control = self.shared.control()?;
        match control.known_hop(host, Instant::now()) {
            Some(known) => Ok(known.hop),
            None => Ok(control.request_hop(&self.shared.flows, host)?.hop),
        }
    }

    /// Removes and returns the oldest notification from the daemon; `None` if there is none. The
    /// program keeps the last 1,024 of them. Their effect on the sockets has already been applied.
    /// A program that neither sleeps in a blocking call nor calls [`Program::poll`] must call this
    /// function from time to time, because only a notification reports that the driver ended.
    pub fn next_notification(&self) -> Option<FlowNotification> {
        let own = self.shared.next_notification();
        own.or_else(|| {
            let mut others = self.shared.moved.others().into_iter();
            others.find_map(|other| other.next_notification())
        })
    }

    /// Prepares for sleeping in the program's own event loop. True: [`Program::as_fd`] becomes
    /// readable when the driver moves an index of a flow or closes a flow, or the daemon sends a
    /// message. False: the driver has already done so, and the program must not sleep. No other
    /// thread may wait in a blocking call at the same time.
    pub fn arm(&self) -> bool {
        let others = self.shared.moved.others();
        let mut all = others.iter().map(|other| &other.attachment);
        self.shared.attachment.prepare_sleep() && all.all(Attachment::prepare_sleep)
    }

    /// Call this after sleeping in the program's own event loop, and after [`Program::arm`]
    /// returned false. It calls `each` with the slot ([`crate::Socket::slot`]) of every flow in
    /// which the driver moved an index, which the driver closed, or which a notification from the
    /// daemon names. [`Program::next_notification`] returns the notifications.
    pub fn poll(&self, mut each: impl FnMut(u32)) {
        let moved = &self.shared.moved;
        self.shared
            .poll(|slot| each(moved.shown(0, slot).unwrap_or(slot)));
        for (index, other) in moved.others().iter().enumerate() {
            other.poll(|slot| moved.shown(index + 1, slot).map_or((), &mut each));
        }
    }

    /// As [`Program::poll`], for a program that sleeps and wakes often, with fewer system calls:
    /// `is_readable` is what [`Sleeper::sleep`](crate::Sleeper::sleep) returned, or whether
    /// [`Program::as_fd`] was readable. What the daemon sent is read only if the driver did
    /// nothing. The program must call [`Program::poll`] from time to time too, because a busy
    /// driver would hide the daemon's messages.
    pub fn poll_woken(&self, is_readable: bool, mut each: impl FnMut(u32)) {
        let moved = &self.shared.moved;
        self.shared.poll_woken(is_readable, |slot| {
            each(moved.shown(0, slot).unwrap_or(slot));
        });
        for (index, other) in moved.others().iter().enumerate() {
            other.poll_woken(is_readable, |slot| {
                if let Some(slot) = moved.shown(index + 1, slot) {
                    each(slot);
                }
            });
        }
    }

    /// As [`Program::poll`] for what the driver did alone, without a system call: for a program
    /// that looks at its flows often while it does not sleep. It must call [`Program::poll`] from
    /// time to time too, because only the daemon reports that the driver ended.
    pub fn poll_driver(&self, mut each: impl FnMut(u32)) {
        let moved = &self.shared.moved;
        self.shared
            .take_notices(|slot| each(moved.shown(0, slot).unwrap_or(slot)));
        for (index, other) in moved.others().iter().enumerate() {
            other.take_notices(|slot| moved.shown(index + 1, slot).map_or((), &mut each));
        }
    }
}

impl Program {
    /// The doorbell of the first attachment.
    pub(crate) fn doorbell(&self) -> BorrowedFd<'_> {
        self.shared.attachment.doorbell()
    }

    /// Readable when there are notifications from the daemon; `None` without a daemon.
    pub(crate) fn messages_fd(&self) -> Option<BorrowedFd<'_>> {
        self.shared.control.as_ref().map(Control::messages_fd)
    }

    /// True if flows have moved to other links.
    pub(crate) fn has_other_attachments(&self) -> bool {
        !self.shared.moved.others().is_empty()
    }
}

impl AsFd for Program {
    /// Becomes readable when the driver sends a doorbell notification or the daemon sends a
    /// message.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.shared.control {
            Some(control) => control.poll_fd(),
            None => self.shared.attachment.doorbell(),
        }
    }
}

impl AsRawFd for Program {
    /// The number of the descriptor.
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Shared {
    fn new(attachment: Attachment, control: Option<Control>, size: (u32, u64)) -> Shared {
        let words = MAX_FLOWS as usize / 64;
        Shared {
            attachment,
            control,
            flows: Flows::default(),
            pending: (0..words).map(|_| AtomicU64::new(0)).collect(),
            has_leader: Mutex::new(false),
            changed: Condvar::new(),
            next_refresh: AtomicU64::new(0),
            size,
            moved: MovedFlows::default(),
            service: Service::default(),
        }
    }

    /// The program's attachment to the interface `iface`. `self` is the program's first attachment.
    /// Attaches with the size of the first one, unless there is an attachment that has not ended.
    /// Also returns its index ([`MovedFlows`]). Fails as [`Program::attach`].
    pub(crate) fn attachment_to(
        self: &Arc<Shared>,
        iface: &str,
    ) -> Result<(usize, Arc<Shared>), StackError> {
        let control = self.control()?;
        if control.attached.iface == iface && self.flows.end_reason().is_none() {
            return Ok((0, self.clone()));
        }
        let has_ended = |other: &Shared| other.flows.end_reason().is_some();
        let attachment = self.moved.attachment_to(iface, has_ended, || {
            let (flows, bytes) = self.size;
            let attach = Attach {
                iface: Some(iface.to_string()),
                flows,
                bytes,
                moves: true,
            };
            let (other, attachment) = Control::attach(control.dir(), attach)?;
            control.watch_too(attachment.doorbell(), &other)?;
            Ok(Shared::new(attachment, Some(other), self.size))
        });
        // A `Sleeper` may not wait for the doorbell of a further attachment yet.
        control.wake_sleeper();
        attachment
    }

    /// The name of the interface of the attachment; `None` without a daemon.
    pub(crate) fn iface(&self) -> Option<&str> {
        Some(&self.control.as_ref()?.attached.iface)
    }

    fn next_notification(&self) -> Option<FlowNotification> {
        let control = self.control.as_ref()?;
        let notification = control.next_notification(&self.flows);
        self.pass_notifications();
        notification
    }

    /// [`Program::poll`] for this attachment.
    fn poll(&self, mut each: impl FnMut(u32)) {
        self.attachment.end_sleep();
        self.take_notices(&mut each);
        self.read_messages(each);
    }

    /// [`Program::poll_woken`] for this attachment.
    fn poll_woken(&self, is_readable: bool, mut each: impl FnMut(u32)) {
        if !is_readable {
            self.attachment.cancel_sleep();
            self.take_notices(each);
            return;
        }
        self.attachment.end_sleep();
        let mut some = false;
        self.take_notices(|slot| {
            some = true;
            each(slot);
        });
        if !some {
            self.read_messages(each);
        }
    }

    /// Reads what the daemon sent, and calls `each` for the flows that it names.
    fn read_messages(&self, mut each: impl FnMut(u32)) {
        if let Some(control) = &self.control {
            control.read_notifications(&self.flows);
            self.flows.take_notified().into_iter().for_each(|slot| {
                self.set_pending(slot);
                each(slot);
            });
        }
    }

    /// Calls `each` for the flows in which the driver moved an index.
    fn take_notices(&self, mut each: impl FnMut(u32)) {
        self.attachment.take_notices(|slot| {
            self.set_pending(slot);
            each(slot);
        });
    }

    /// Notifies the driver if it sleeps.
    pub(crate) fn notify(&self) {
        self.attachment.notify();
    }

    /// The number of the rule of docs/reference/ring.md for which the driver disconnected this
    /// program; `None` if it did not.
    pub(crate) fn broken_rule(&self) -> Option<u32> {
        self.attachment.ended()
    }

    /// The connection to the daemon; [`StackError::NoDaemon`] without one.
    pub(crate) fn control(&self) -> Result<&Control, StackError> {
        self.control.as_ref().ok_or(StackError::NoDaemon)
    }

    /// Reads the notifications from the daemon without sleeping. False if none can follow.
    pub(crate) fn refresh(&self) -> bool {
        let Some(control) = &self.control else {
            return false;
        };
        let more = control.refresh(&self.flows);
        self.pass_notifications();
        more
    }

    /// [`Shared::refresh`], if it was not called for `every` until `now` (both in ms).
    #[inline]
    pub(crate) fn refresh_sometimes(&self, now: u64, every: u64) {
        let due = self.next_refresh.load(Ordering::Relaxed);
        let next = &self.next_refresh;
        if now >= due
            && next
                .compare_exchange(due, now + every, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            self.refresh();
        }
    }

    /// Has a flow looked at, by the thread that waits for it or by [`Program::poll`].
    pub(crate) fn report(&self, slot: u32) {
        self.flows.notify(slot);
        if let Some(control) = &self.control {
            control.wake_sleeper();
        }
    }

    /// Closes a flow, and waits up to [`CLOSE_TIMEOUT`] for the daemon's response. The result is
    /// ignored, because the caller no longer uses the flow.
    pub(crate) fn close(&self, flow: u32) {
        self.flows.remove(flow);
        if let Some(control) = &self.control {
            let request = DirectRequest::Close(CloseFlow { flow });
            let _ = control.request(&self.flows, request, CLOSE_TIMEOUT, |_| Ok(()));
        }
    }

    /// Waits until there is a notice or notification for the flow in `slot` (true) or the deadline
    /// has passed (false). The caller may already have seen the change that the notice reports: it
    /// checks the flow, and waits again. Fails if the system call for waiting fails.
    pub(crate) fn wait(&self, slot: u32, deadline: Option<Instant>) -> std::io::Result<bool> {
        self.wait_until(deadline, || self.take_pending(slot))
    }

    /// Waits until `is_ready` says so (true), or the deadline has passed (false). It is called at
    /// the beginning and after each notice or notification. Fails as [`Shared::wait`].
    pub(crate) fn wait_until(
        &self,
        deadline: Option<Instant>,
        mut is_ready: impl FnMut() -> bool,
    ) -> std::io::Result<bool> {
        loop {
            if is_ready() {
                return Ok(true);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(false);
            }
            let mut has_leader = self.lock();
            // The leader may have set the bit between the first check and the lock.
            if is_ready() {
                return Ok(true);
            }
            if *has_leader {
                self.follow(has_leader, left);
                continue;
            }
            *has_leader = true;
            drop(has_leader);
            let waited = self.lead(left);
            self.attachment.take_notices(|slot| self.set_pending(slot));
            *self.lock() = false;
            self.changed.notify_all();
            waited?;
        }
    }

    /// Sleeps until the driver sends a doorbell notification or the daemon sends a message, and
    /// reads the message.
    fn lead(&self, left: Option<Duration>) -> std::io::Result<()> {
        let Some(control) = &self.control else {
            return self.attachment.wait(left).map(drop);
        };
        if self.attachment.spin() || !self.attachment.prepare_sleep() {
            return Ok(());
        }
        // Not the descriptor of all attachments: another thread may lead for another one.
        let fds = [self.attachment.doorbell(), control.messages_fd()];
        let woken = wait_readable(fds, left);
        self.attachment.end_sleep();
        woken?;
        control.read_notifications(&self.flows);
        self.pass_notifications();
        Ok(())
    }

    /// Sets the bits of the flows that notifications named.
    fn pass_notifications(&self) {
        for slot in self.flows.take_notified() {
            self.set_pending(slot);
        }
    }

    fn follow(&self, has_leader: MutexGuard<'_, bool>, left: Option<Duration>) {
        let longest = left.unwrap_or(Duration::from_secs(3600));
        drop(self.changed.wait_timeout(has_leader, longest));
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.has_leader
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn set_pending(&self, slot: u32) {
        if let Some(word) = self.pending.get(slot as usize / 64) {
            word.fetch_or(1 << (slot % 64), Ordering::Release);
        }
    }

    /// Clears the bit of a flow. True if a notice or notification had set it.
    pub(crate) fn take_pending(&self, slot: u32) -> bool {
        let (word, bit) = (&self.pending[slot as usize / 64], 1 << (slot % 64));
        word.load(Ordering::Relaxed) & bit != 0
            && word.fetch_and(!bit, Ordering::Acquire) & bit != 0
    }
}

/// Time that closing a flow waits for the daemon's response.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;

//! A program on the direct path: its memory file, its connection to the daemon, and the threads
//! that wait for both.
//!
//! There is one doorbell for all flows, and only one thread can wait for it. So the first of
//! several waiting threads *leads*: it sleeps until the doorbell or the connection becomes
//! readable, and passes the notices and notifications on to the flows that they name. The other
//! threads sleep until the leader wakes them or stops leading.

use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use netnice_api::direct::{
    Attach, CloseFlow, DirectAnswer, DirectRequest, FlowNews, FlowOpened, Hop,
};
use netnice_api::{Client, Response, RuntimeDir};
use netnice_ring::layout::MAX_FLOWS;
use netnice_ring::program::Attachment;
use netnice_ring::{Place, Shape};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::control::{Control, Flows, Terms, unhoped};
use crate::datagram::Checks;
use crate::error::StackError;
use crate::headers::FlowAddress;
use crate::udp::{Opening, Socket, UdpOptions};

/// A program's attachment to the direct path. It is cheap to clone. The attachment ends with the
/// last clone and the last socket.
#[derive(Clone)]
pub struct Program {
    shared: Arc<Shared>,
}

/// The state that all flows of a program share.
pub(crate) struct Shared {
    pub(crate) attachment: Attachment,
    control: Option<Control>,
    pub(crate) flows: Flows,
    /// One bit for each flow whose notice was taken and not yet passed on to the flow's thread.
    news: Vec<AtomicU64>,
    led: Mutex<bool>,
    changed: Condvar,
}

impl Program {
    /// Attaches the program to a link through the daemon of a runtime folder. `flows` is the
    /// largest number of open flows, and `bytes` is the memory for all their buffers (the sum of
    /// [`Buffers::region_bytes`](crate::udp::Buffers::region_bytes)). `iface` may be `None` if
    /// exactly one interface is managed.
    ///
    /// # Errors
    /// If there is no daemon, the daemon refuses, or the descriptors are not those of a driver's
    /// memory file.
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
        };
        let (control, attachment) = Control::attach(dir, attach)?;
        Ok(Program::over(attachment, Some(control)))
    }

    /// Uses an attachment that did not come from a daemon.
    pub fn new(attachment: Attachment) -> Program {
        Program::over(attachment, None)
    }

    fn over(attachment: Attachment, control: Option<Control>) -> Program {
        let words = MAX_FLOWS as usize / 64;
        Program {
            shared: Arc::new(Shared {
                attachment,
                control,
                flows: Flows::default(),
                news: (0..words).map(|_| AtomicU64::new(0)).collect(),
                led: Mutex::new(false),
                changed: Condvar::new(),
            }),
        }
    }

    /// The name of the interface; `None` without a daemon.
    pub fn iface(&self) -> Option<&str> {
        let control = self.shared.control.as_ref()?;
        Some(&control.attached.iface)
    }

    /// The driver's access to the interface: `native`, `generic` or `fallback`; `None` without a
    /// daemon.
    pub fn mode(&self) -> Option<&str> {
        let control = self.shared.control.as_ref()?;
        Some(&control.attached.mode)
    }

    /// Requests a UDP flow from the daemon.
    ///
    /// # Errors
    /// If the daemon does not grant it, or a buffer is smaller than a packet of the path to the
    /// remote endpoint.
    pub fn open_udp(&self, options: &UdpOptions) -> Result<Socket, StackError> {
        let (open, shape) = options.request()?;
        let control = self.shared.control()?;
        let ask = DirectRequest::Open(open);
        let mut news = None;
        let opened = control.ask(&self.shared.flows, ask, Client::TIMEOUT, |answer| {
            let opened = match answer {
                Response::Direct(DirectAnswer::Opened(opened)) => opened,
                other => return Err(unhoped(other, "open")),
            };
            let terms = Terms::new(opened.mtu);
            self.shared
                .flows
                .insert(opened.flow, opened.slot, terms.clone());
            news = Some(terms);
            Ok(opened)
        })?;
        let number = opened.flow;
        let terms = news.unwrap_or_default();
        self.take_up(options, shape, opened, terms)
            .inspect_err(|_| self.shared.close(number))
    }

    fn take_up(
        &self,
        options: &UdpOptions,
        shape: Shape,
        opened: FlowOpened,
        terms: Arc<Terms>,
    ) -> Result<Socket, StackError> {
        let place = Place {
            slot: opened.slot,
            offset: opened.offset,
            shape,
        };
        let flow = self.shared.attachment.flow(place)?;
        let opening = Opening::granted(options, opened, terms)?;
        Socket::new(self.shared.clone(), flow, opening)
    }

    /// Takes up a UDP flow with one remote endpoint that the driver opened without a daemon. Half
    /// of its buffers receive.
    ///
    /// # Errors
    /// If the addresses, the place or the buffers are invalid.
    pub fn udp(
        &self,
        place: Place,
        address: &FlowAddress,
        checks: Checks,
    ) -> Result<Socket, StackError> {
        let flow = self.shared.attachment.flow(place)?;
        let opening = Opening::by_hand(address, &place.shape, checks);
        Socket::new(self.shared.clone(), flow, opening)
    }

    /// Asks the daemon for the next hop to a host. The result is valid for 30 seconds for all flows
    /// to any host.
    ///
    /// # Errors
    /// If the host is not reached through this link, or the next hop does not answer.
    pub fn next_hop(&self, host: IpAddr) -> Result<Hop, StackError> {
        let control = self.shared.control()?;
        match control.known(host, Instant::now()) {
            Some(known) => Ok(known.hop),
            None => Ok(control.find(&self.shared.flows, host)?.hop),
        }
    }

    /// The next notification from the daemon. The program keeps the last 1,024 of them. Their
    /// effect on the sockets has already been applied. A program that never sleeps in a blocking
    /// call or by [`Program::hear`] must call this function from time to time, because only a
    /// notification reports that the driver ended.
    pub fn news(&self) -> Option<FlowNews> {
        let control = self.shared.control.as_ref()?;
        let news = control.news(&self.shared.flows);
        self.shared.pass_on();
        news
    }

    /// Prepares for sleeping in the program's own event loop. True: [`Program::as_fd`] becomes
    /// readable when there is something new. False: there already is. No other thread may wait in a
    /// blocking call at the same time.
    pub fn arm(&self) -> bool {
        self.shared.attachment.doze()
    }

    /// Call this after sleeping in the program's own event loop. It calls `each` with the slot
    /// ([`Socket::slot`]) of every flow that has something new. [`Program::news`] returns the
    /// notifications from the daemon.
    pub fn hear(&self, mut each: impl FnMut(u32)) {
        self.shared.attachment.wake();
        self.shared.attachment.take_notices(|slot| {
            self.shared.tell(slot);
            each(slot);
        });
        if let Some(control) = &self.shared.control {
            control.listen(&self.shared.flows);
            for slot in self.shared.flows.touched() {
                self.shared.tell(slot);
                each(slot);
            }
        }
    }
}

impl AsFd for Program {
    /// Becomes readable when the driver sends a doorbell notification or the daemon sends a
    /// message.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.shared.control {
            Some(control) => control.either(),
            None => self.shared.attachment.bell(),
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
    pub(crate) fn ring(&self) {
        self.attachment.ring();
    }

    /// The number of the rule for which the driver disconnected this program, if it did.
    pub(crate) fn ended(&self) -> Option<u32> {
        self.attachment.ended()
    }

    /// The connection to the daemon.
    pub(crate) fn control(&self) -> Result<&Control, StackError> {
        self.control.as_ref().ok_or(StackError::Alone)
    }

    /// Reads the notifications from the daemon without sleeping. False if none can follow.
    pub(crate) fn refresh(&self) -> bool {
        let Some(control) = &self.control else {
            return false;
        };
        let more = control.refresh(&self.flows);
        self.pass_on();
        more
    }

    /// Closes a flow. The result is ignored, because the caller no longer uses the flow.
    pub(crate) fn close(&self, flow: u32) {
        self.flows.remove(flow);
        if let Some(control) = &self.control {
            let ask = DirectRequest::Close(CloseFlow { flow });
            let _ = control.ask(&self.flows, ask, CLOSING, |_| Ok(()));
        }
    }

    /// Waits until the flow has something new (true) or the deadline has passed (false). The caller
    /// may already have seen what is new: it checks, and waits again.
    pub(crate) fn wait(&self, slot: u32, deadline: Option<Instant>) -> std::io::Result<bool> {
        loop {
            if self.told(slot) {
                return Ok(true);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(false);
            }
            let mut led = self.lock();
            // The leader may have set the bit between the first check and the lock.
            if self.told(slot) {
                return Ok(true);
            }
            if *led {
                self.follow(led, left);
                continue;
            }
            *led = true;
            drop(led);
            let waited = self.lead(left);
            self.attachment.take_notices(|slot| self.tell(slot));
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
        if self.attachment.look() || !self.attachment.doze() {
            return Ok(());
        }
        let left = left.map(|left| Timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        let either = PollFd::from_borrowed_fd(control.either(), PollFlags::IN);
        let woken = rustix::event::poll(&mut [either], left.as_ref());
        self.attachment.wake();
        match woken {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        control.listen(&self.flows);
        self.pass_on();
        Ok(())
    }

    /// Sets the bits of the flows that notifications named.
    fn pass_on(&self) {
        for slot in self.flows.touched() {
            self.tell(slot);
        }
    }

    fn follow(&self, led: MutexGuard<'_, bool>, left: Option<Duration>) {
        let longest = left.unwrap_or(Duration::from_secs(3600));
        drop(self.changed.wait_timeout(led, longest));
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.led.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, slot: u32) {
        if let Some(word) = self.news.get(slot as usize / 64) {
            word.fetch_or(1 << (slot % 64), Ordering::Release);
        }
    }

    fn told(&self, slot: u32) -> bool {
        let (word, bit) = (&self.news[slot as usize / 64], 1 << (slot % 64));
        word.load(Ordering::Relaxed) & bit != 0
            && word.fetch_and(!bit, Ordering::Acquire) & bit != 0
    }
}

/// Time that closing a flow waits for the daemon's response.
const CLOSING: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;

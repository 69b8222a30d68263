//! The connection to the daemon: requests with their responses, and notifications from the daemon
//! ([`FlowNews`]). A request fails if the connection is lost.
//!
//! A program has one connection, which one thread uses at a time. Notifications arrive between
//! responses. The thread that reads a notification applies it at once ([`Flows::apply`]) and stores
//! it for [`crate::Program::news`]. The thread that waits for the doorbell also waits for the
//! connection, so a program that sleeps until a packet arrives learns that its driver has ended.
//!
//! If the daemon ends, the connection is lost and the flows continue: the driver serves them
//! without the daemon.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use netnice_api::direct::{Attach, Attached, DirectAnswer, DirectRequest, FlowNews, Hop, NextHop};
use netnice_api::{Client, ClientError, Request, Response, RuntimeDir};
use netnice_ring::program::Attachment;
use rustix::event::{EventfdFlags, epoll};

use crate::error::StackError;

/// The connection to the daemon and the state that came from it.
pub(crate) struct Control {
    line: Mutex<Line>,
    /// Readable when the driver sent a doorbell notification, the daemon sent a message, or another
    /// thread read a message.
    either: OwnedFd,
    /// A thread that read notifications wakes the others by this eventfd.
    nudge: OwnedFd,
    /// Next hops that the daemon found.
    hops: Mutex<HashMap<IpAddr, Known>>,
    /// The daemon's response to the attachment.
    pub(crate) attached: Attached,
}

/// The part of the connection that one thread uses at a time.
struct Line {
    client: Client,
    /// The daemon does not respond any more. The connection stays open, because closing it would
    /// end the flows.
    lost: bool,
    news: VecDeque<FlowNews>,
}

/// The next hop to a host, and the end of its validity.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) hop: Hop,
    pub(crate) until: Instant,
}

impl Control {
    /// Connects to the daemon and attaches the program.
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
        let (answer, fds) = client.call_for_fds(&request, Some(pidfd.as_fd()))?;
        let attached = match answer {
            Response::Direct(DirectAnswer::Attached(attached)) => attached,
            other => return Err(unhoped(other, "attach")),
        };
        let Ok([memory, to_driver, to_program]) = <[OwnedFd; 3]>::try_from(fds) else {
            return Err(StackError::Answer("attach"));
        };
        let attachment = Attachment::new(memory, to_driver, to_program)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let nudge = rustix::event::eventfd(0, flags).map_err(std::io::Error::from)?;
        let either = watch(&[attachment.bell(), client.as_fd(), nudge.as_fd()])?;
        let line = Mutex::new(Line {
            client,
            lost: false,
            news: VecDeque::new(),
        });
        let control = Control {
            line,
            either,
            nudge,
            hops: Mutex::default(),
            attached,
        };
        Ok((control, attachment))
    }

    /// Readable when the driver sent a doorbell notification, or when there are notifications from
    /// the daemon.
    pub(crate) fn either(&self) -> BorrowedFd<'_> {
        self.either.as_fd()
    }

    /// Sends a request. `answered` gets the response before later notifications are applied.
    pub(crate) fn ask<T>(
        &self,
        flows: &Flows,
        ask: DirectRequest,
        patience: Duration,
        answered: impl FnOnce(Response) -> Result<T, StackError>,
    ) -> Result<T, StackError> {
        let mut line = self.lock();
        if line.lost {
            return Err(StackError::Alone);
        }
        let answer = line
            .client
            .call_within(patience, &Request::Direct(ask), None);
        let done = match answer {
            Ok(answer) => answered(answer),
            Err(error) => {
                self.lose(&mut line);
                return Err(error.into());
            }
        };
        if line.listen(flows, |client| Ok(client.heard())) == Some(true) {
            self.nudge();
        }
        done
    }

    /// Reads the notifications from the daemon, unless another thread uses the connection.
    pub(crate) fn listen(&self, flows: &Flows) {
        // The read fails only if the counter is 0, which is no error.
        let _ = rustix::io::read(&self.nudge, &mut [0; 8]);
        let mut line = match self.line.try_lock() {
            Ok(line) => line,
            Err(TryLockError::Poisoned(line)) => line.into_inner(),
            // The thread that has the lock reads the notifications too.
            Err(TryLockError::WouldBlock) => return,
        };
        if line.listen(flows, Client::news).is_none() {
            self.lose(&mut line);
        }
    }

    /// Reads the notifications from the daemon for a thread that does not sleep, unless another
    /// thread uses the connection. False if the connection is lost: no notification follows.
    pub(crate) fn refresh(&self, flows: &Flows) -> bool {
        let mut line = match self.line.try_lock() {
            Ok(line) => line,
            Err(TryLockError::Poisoned(line)) => line.into_inner(),
            // The thread that has the lock reads the notifications too.
            Err(TryLockError::WouldBlock) => return true,
        };
        match line.listen(flows, Client::news) {
            Some(true) => self.nudge(),
            Some(false) => {}
            None => self.lose(&mut line),
        }
        !line.lost
    }

    /// Reads the notifications from the daemon and returns the oldest stored one.
    pub(crate) fn news(&self, flows: &Flows) -> Option<FlowNews> {
        let mut line = self.lock();
        match line.listen(flows, Client::news) {
            Some(true) => self.nudge(),
            Some(false) => {}
            None => self.lose(&mut line),
        }
        line.news.pop_front()
    }

    /// The next hop to a host, if its entry is still valid.
    pub(crate) fn known(&self, to: IpAddr, now: Instant) -> Option<Known> {
        let hops = self.hops.lock().unwrap_or_else(PoisonError::into_inner);
        hops.get(&to).copied().filter(|known| known.until > now)
    }

    /// Asks the daemon for the next hop to a host.
    pub(crate) fn find(&self, flows: &Flows, to: IpAddr) -> Result<Known, StackError> {
        let ask = DirectRequest::NextHop(NextHop { to });
        let hop = self.ask(flows, ask, Client::TIMEOUT, |answer| match answer {
            Response::Direct(DirectAnswer::Hop(hop)) => Ok(hop),
            other => Err(unhoped(other, "next-hop")),
        })?;
        let now = Instant::now();
        let known = Known {
            hop,
            until: now + HOP_LIFETIME,
        };
        let mut hops = self.hops.lock().unwrap_or_else(PoisonError::into_inner);
        if hops.len() >= HOPS {
            hops.retain(|_, known| known.until > now);
        }
        if hops.len() >= HOPS {
            hops.clear();
        }
        hops.insert(to, known);
        Ok(known)
    }

    /// Wakes the thread that sleeps, so that it looks at the notifications.
    fn nudge(&self) {
        // The write fails only if the counter is full, and then the thread is already woken.
        let _ = rustix::io::write(&self.nudge, &1u64.to_ne_bytes());
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the connection as lost. Its descriptor must not wake a thread any more.
    fn lose(&self, line: &mut Line) {
        if !std::mem::replace(&mut line.lost, true) {
            // The descriptor was added, so deleting it cannot fail.
            let _ = epoll::delete(&self.either, line.client.as_fd());
        }
    }
}

impl Line {
    /// Reads, applies and stores notifications. True if there were any; `None` if the connection is
    /// lost.
    fn listen(
        &mut self,
        flows: &Flows,
        mut next: impl FnMut(&mut Client) -> Result<Option<FlowNews>, ClientError>,
    ) -> Option<bool> {
        let mut some = false;
        while !self.lost {
            let Some(news) = next(&mut self.client).ok()? else {
                break;
            };
            some = true;
            flows.apply(&news);
            if self.news.len() == NEWS {
                self.news.pop_front();
            }
            self.news.push_back(news);
        }
        Some(some)
    }
}

/// The flows of a program, with the state that notifications change.
#[derive(Default)]
pub(crate) struct Flows {
    open: Mutex<HashMap<u32, (u32, Arc<Terms>)>>,
    /// Why all flows ended.
    end: OnceLock<String>,
    /// Slots of the flows that notifications named.
    touched: Mutex<Vec<u32>>,
}

/// The state of a flow that the daemon can change.
#[derive(Default)]
pub(crate) struct Terms {
    /// The path MTU to the remote endpoint; 0 after the flow has ended.
    mtu: AtomicU32,
    end: OnceLock<String>,
}

impl Flows {
    /// Adds a flow.
    pub(crate) fn insert(&self, flow: u32, slot: u32, terms: Arc<Terms>) {
        self.lock().insert(flow, (slot, terms));
    }

    pub(crate) fn remove(&self, flow: u32) {
        self.lock().remove(&flow);
    }

    /// Why all flows ended, if they did.
    pub(crate) fn end(&self) -> Option<&str> {
        self.end.get().map(String::as_str)
    }

    /// The slots of the flows that notifications named since the last call.
    pub(crate) fn touched(&self) -> Vec<u32> {
        let mut touched = self.touched.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut touched)
    }

    fn apply(&self, news: &FlowNews) {
        let open = self.lock();
        let mut slots = Vec::new();
        match news {
            FlowNews::Mtu { flow, mtu } => {
                if let Some((slot, terms)) = open.get(flow) {
                    terms.set_mtu(*mtu);
                    slots.push(*slot);
                }
            }
            FlowNews::Closed { flow, why } => {
                if let Some((slot, terms)) = open.get(flow) {
                    terms.over(why);
                    slots.push(*slot);
                }
            }
            FlowNews::Ended { why } => {
                // The first reason stays.
                let _ = self.end.set(why.clone());
                for (slot, terms) in open.values() {
                    terms.over(why);
                    slots.push(*slot);
                }
            }
            FlowNews::Link { .. } | FlowNews::NextHop { .. } | FlowNews::Degraded { .. } => {}
        }
        let mut touched = self.touched.lock().unwrap_or_else(PoisonError::into_inner);
        touched.append(&mut slots);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, (u32, Arc<Terms>)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Terms {
    pub(crate) fn new(mtu: u32) -> Arc<Terms> {
        let terms = Terms::default();
        terms.set_mtu(mtu);
        Arc::new(terms)
    }

    /// The path MTU to the remote endpoint; 0 after the flow has ended.
    #[inline]
    pub(crate) fn mtu(&self) -> u32 {
        self.mtu.load(Ordering::Relaxed)
    }

    pub(crate) fn end(&self) -> Option<&str> {
        self.end.get().map(String::as_str)
    }

    fn set_mtu(&self, mtu: u32) {
        if self.end.get().is_none() {
            self.mtu.store(mtu, Ordering::Relaxed);
        }
    }

    fn over(&self, why: &str) {
        let _ = self.end.set(why.to_string());
        self.mtu.store(0, Ordering::Relaxed);
    }
}

/// An epoll descriptor that is readable when one of `all` is.
fn watch(all: &[BorrowedFd<'_>]) -> Result<OwnedFd, std::io::Error> {
    let either = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for fd in all {
        let data = epoll::EventData::new_u64(0);
        epoll::add(&either, fd, data, epoll::EventFlags::IN)?;
    }
    Ok(either)
}

/// The error for a response that the request did not expect.
pub(crate) fn unhoped(answer: Response, ask: &'static str) -> StackError {
    match answer {
        Response::Refused(refused) => StackError::Refused {
            by: refused.by,
            text: refused.text,
        },
        Response::Failed(failed) => StackError::Failed {
            text: failed.text,
            bad_usage: failed.bad_usage,
        },
        _ => StackError::Answer(ask),
    }
}

/// Time for which a next hop is valid. It is about as long as a kernel trusts a neighbour entry.
const HOP_LIFETIME: Duration = Duration::from_secs(30);
/// Number of hosts whose next hops are kept.
const HOPS: usize = 4096;
/// Number of notifications that are kept for later calls of `news`.
const NEWS: usize = 1024;

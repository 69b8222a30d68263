//! The connection to the daemon: what is asked, and what happened without having been asked for.
//!
//! One connection for a program, used by one thread at a time. News come between answers; whoever reads the connection
//! applies them at once ([`Flows::apply`]), and keeps them for who asks ([`crate::Program::news`]). The thread that waits for
//! the doorbell waits for the connection too, so a program that sleeps for a packet learns that its driver has ended.
//!
//! When the daemon ends the connection is lost, and flows go on as they are: the driver serves them without it.

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

/// The connection, and what of it is known.
pub(crate) struct Control {
    line: Mutex<Line>,
    /// Readable when the driver rang, the daemon said something, or another thread heard it.
    either: OwnedFd,
    /// What a thread that heard news wakes the others by.
    nudge: OwnedFd,
    /// Where hosts were found.
    hops: Mutex<HashMap<IpAddr, Known>>,
    /// What the program takes part in.
    pub(crate) attached: Attached,
}

/// What one thread at a time has.
struct Line {
    client: Client,
    /// Nobody answers any more. It stays open all the same: flows end with it.
    lost: bool,
    news: VecDeque<FlowNews>,
}

/// The station through which a host is reached, and since when that is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) hop: Hop,
    pub(crate) until: Instant,
}

impl Control {
    /// Asks the daemon to take part.
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

    /// Readable when the driver rang, or there are news.
    pub(crate) fn either(&self) -> BorrowedFd<'_> {
        self.either.as_fd()
    }

    /// Asks, and lets the caller look at the answer before anything that came behind it is applied.
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

    /// Hears what the daemon said, if nobody else is about to.
    pub(crate) fn listen(&self, flows: &Flows) {
        // Nothing there is no failure, and there is no other.
        let _ = rustix::io::read(&self.nudge, &mut [0; 8]);
        let mut line = match self.line.try_lock() {
            Ok(line) => line,
            Err(TryLockError::Poisoned(line)) => line.into_inner(),
            // Whoever asks something hears the news too.
            Err(TryLockError::WouldBlock) => return,
        };
        if line.listen(flows, Client::news).is_none() {
            self.lose(&mut line);
        }
    }

    /// The next of the news.
    pub(crate) fn news(&self, flows: &Flows) -> Option<FlowNews> {
        let mut line = self.lock();
        match line.listen(flows, Client::news) {
            Some(true) => self.nudge(),
            Some(false) => {}
            None => self.lose(&mut line),
        }
        line.news.pop_front()
    }

    /// Where a host was found, if that was not too long ago.
    pub(crate) fn known(&self, to: IpAddr, now: Instant) -> Option<Known> {
        let hops = self.hops.lock().unwrap_or_else(PoisonError::into_inner);
        hops.get(&to).copied().filter(|known| known.until > now)
    }

    /// Asks where a host is.
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

    /// Who sleeps is to look at what was heard.
    fn nudge(&self) {
        // A full counter has nudged already.
        let _ = rustix::io::write(&self.nudge, &1u64.to_ne_bytes());
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody answers any more. The connection must not wake anybody either.
    fn lose(&self, line: &mut Line) {
        if !std::mem::replace(&mut line.lost, true) {
            // It is in there, and there is no other failure.
            let _ = epoll::delete(&self.either, line.client.as_fd());
        }
    }
}

impl Line {
    /// Takes and applies what came, and says whether something did; nothing if nobody says anything any more.
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

/// The flows of a program, as far as news can change them.
#[derive(Default)]
pub(crate) struct Flows {
    open: Mutex<HashMap<u32, (u32, Arc<Terms>)>>,
    /// Why there are none any more.
    end: OnceLock<String>,
    /// Slots of flows of whom there are news.
    touched: Mutex<Vec<u32>>,
}

/// What may change of a flow without its asking.
#[derive(Default)]
pub(crate) struct Terms {
    /// The MTU on the way to the other end; 0 once the flow is over.
    mtu: AtomicU32,
    end: OnceLock<String>,
}

impl Flows {
    /// Another flow.
    pub(crate) fn insert(&self, flow: u32, slot: u32, terms: Arc<Terms>) {
        self.lock().insert(flow, (slot, terms));
    }

    pub(crate) fn remove(&self, flow: u32) {
        self.lock().remove(&flow);
    }

    /// Why there are none any more.
    pub(crate) fn end(&self) -> Option<&str> {
        self.end.get().map(String::as_str)
    }

    /// The slots of the flows of whom there are news since the last time.
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
                // The first reason stands.
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

    /// The MTU on the way to the other end; 0 once the flow is over.
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

/// One descriptor for all of them.
fn watch(all: &[BorrowedFd<'_>]) -> Result<OwnedFd, std::io::Error> {
    let either = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for fd in all {
        let data = epoll::EventData::new_u64(0);
        epoll::add(&either, fd, data, epoll::EventFlags::IN)?;
    }
    Ok(either)
}

/// What another answer says.
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

/// How long the way to a host is believed; about as long as a kernel believes a neighbour.
const HOP_LIFETIME: Duration = Duration::from_secs(30);
/// So many hosts are remembered.
const HOPS: usize = 4096;
/// So many news are kept for who asks late.
const NEWS: usize = 1024;

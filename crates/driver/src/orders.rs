//! What the control thread has the packet thread do: orders one way, reports the other.
//!
//! The packet thread must never wait for the other one: it has a priority under which the other does not run. So the queues
//! between them have a fixed length and one user at each end, and nobody holds a lock. Each order is answered by one report, in their
//! order; the packet thread takes an order only if there is room for its report. Expelled programs are reported
//! between the answers.
//!
//! ```text
//!   control ──▶ Order  ──▶ [LENGTH] ──▶ Inbox::work, once a round     eventfd: the loop does not sleep on
//!           ◀── Report ◀── [LENGTH] ◀──                               eventfd: control waits for it
//! ```
//! What takes long the control thread has done before (making memory), or does afterwards (dropping it).

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use netnice_core::sched::{Service, Wire};
use netnice_ring::driver::{Cleared, Client, Prepared, Reserved, Unprepared};
use netnice_ring::layout::Shape;
use netnice_ring::ledger::Balance;
use rtrb::{Consumer, Producer, RingBuffer};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use crate::demux::{self, FlowNo};
use crate::frame::Mac;
use crate::frames::Tally;
use crate::link;
use crate::pattern::Patterns;
use crate::serve::{Server, Spent, monotonic};
use crate::turn::{Closed, Counters, Expelled, Open, Opened, ProgramNo, Totals};

/// What the packet thread is to do.
pub enum Order {
    /// Another rate of the link.
    Wire(Wire),
    /// A number for a program that may be attached later.
    Expect,
    /// The program with this number, whose memory this is, and of which user.
    Attach(ProgramNo, Box<Client>, u32),
    /// A program ends, and its flows.
    Detach(ProgramNo),
    /// A place for another flow.
    Reserve(ProgramNo, Shape),
    /// Another flow, in that place.
    Open(ProgramNo, Box<Open>, Box<Result<Prepared, Unprepared>>),
    /// Another contract.
    Change(FlowNo, Service),
    /// Frames go to another station (none: to nobody), come from another one, or may be of another length.
    Readdress(FlowNo, Mac, Option<Mac>, usize),
    /// A flow ends.
    Close(FlowNo),
    /// Flows of a program end that ends with them.
    Shed(Vec<FlowNo>),
    /// The place of a closed flow may be another's.
    Reuse(ProgramNo, Cleared),
    /// What fits these is discarded, and nothing else.
    Discard(Patterns<()>),
    /// The link is up, or is not.
    Link(bool),
    /// The link has another address.
    Mac(Mac),
    /// Counters of these flows, and who has their chunks.
    Counts(Vec<FlowNo>),
    /// What was counted of everything.
    Sums,
    /// The packet thread ends.
    Stop,
}

/// What became of an order.
pub enum Report {
    /// It is done.
    Done,
    /// A program has this number, or will have it.
    Expected(ProgramNo),
    /// What is left of a program; nothing if it was gone already.
    Detached(Option<Box<Client>>),
    /// A place for a flow; its pages are not there.
    Reserved(Box<Reserved>),
    /// A flow is open.
    Opened(Opened),
    /// A flow is closed; nothing if it was already.
    Closed(Option<Box<Closed>>),
    /// Of each flow that was named, in their order, if it is there.
    Counts(Vec<Option<(Counters, Balance)>>),
    /// Of everything.
    Sums(Box<Sums>),
    /// It cannot be done, and nothing has changed.
    Failed(String),
    /// A program was expelled; no answer to anything.
    Expelled(Expelled),
}

/// What was counted of everything.
#[derive(Clone, Copy, Debug)]
pub struct Sums {
    /// Of all flows, also of those that are closed.
    pub totals: Totals,
    /// Of received frames.
    pub received: demux::Counters,
    /// Of the link.
    pub link: link::Counters,
    /// Of the loop.
    pub spent: Spent,
    /// Processors are kept awake.
    pub awake: bool,
    /// Frames, where they are shared with the kernel.
    pub frames: Option<Tally>,
}

/// The packet thread has ended.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the driver's packet thread has ended")]
pub struct Ended;

/// The control thread's end.
pub struct Orders {
    orders: Producer<Order>,
    reports: Consumer<Report>,
    wake: OwnedFd,
    told: OwnedFd,
    expelled: VecDeque<Expelled>,
}

/// The packet thread's end.
pub struct Inbox {
    orders: Consumer<Order>,
    reports: Producer<Report>,
    wake: OwnedFd,
    told: OwnedFd,
}

/// Both ends.
pub fn pair() -> io::Result<(Orders, Inbox)> {
    let eventfd = || rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let (wake, told) = (eventfd()?, eventfd()?);
    let (to, orders) = RingBuffer::new(LENGTH);
    let (reports, from) = RingBuffer::new(LENGTH);
    let inbox = Inbox {
        orders,
        reports,
        wake: wake.try_clone()?,
        told: told.try_clone()?,
    };
    let orders = Orders {
        orders: to,
        reports: from,
        wake,
        told,
        expelled: VecDeque::new(),
    };
    Ok((orders, inbox))
}

impl Orders {
    /// Has something done, and waits until it is: some microseconds.
    pub fn give(&mut self, order: Order) -> Result<Report, Ended> {
        // One order at a time, so there is room.
        self.orders.push(order).map_err(|_| Ended)?;
        ring(&self.wake);
        loop {
            match self.next()? {
                Some(Report::Expelled(expelled)) => self.expelled.push_back(expelled),
                Some(report) => return Ok(report),
                None => self.wait(),
            }
        }
    }

    /// Has a program's memory attached, as one of root's: its number.
    ///
    /// # Errors
    /// If the packet thread has ended. Inside of it: why the program is not attached.
    pub fn attach(&mut self, client: Client) -> Result<Result<ProgramNo, String>, Ended> {
        let Report::Expected(program) = self.give(Order::Expect)? else {
            return Ok(Err(OTHERWISE.to_owned()));
        };
        Ok(self.attach_as(program, client, 0)?.map(|()| program))
    }

    /// The same, of a program of this user that is expected by this number. It is expected no more where this fails.
    ///
    /// # Errors
    /// As [`Orders::attach`].
    pub fn attach_as(
        &mut self,
        program: ProgramNo,
        client: Client,
        uid: u32,
    ) -> Result<Result<(), String>, Ended> {
        match self.give(Order::Attach(program, Box::new(client), uid))? {
            Report::Done => Ok(Ok(())),
            Report::Failed(why) => {
                self.detach(program)?;
                Ok(Err(why))
            }
            _ => Ok(Err(OTHERWISE.to_owned())),
        }
    }

    /// Has a flow of an attached program opened, in pages that are there.
    ///
    /// # Errors
    /// As [`Orders::attach`].
    pub fn open(
        &mut self,
        program: ProgramNo,
        open: Open,
    ) -> Result<Result<Opened, String>, Ended> {
        let prepared = match self.give(Order::Reserve(program, open.shape))? {
            Report::Reserved(reserved) => reserved.prepare(),
            Report::Failed(why) => return Ok(Err(why)),
            _ => return Ok(Err(OTHERWISE.to_owned())),
        };
        let order = Order::Open(program, Box::new(open), Box::new(prepared));
        match self.give(order)? {
            Report::Opened(opened) => Ok(Ok(opened)),
            Report::Failed(why) => Ok(Err(why)),
            _ => Ok(Err(OTHERWISE.to_owned())),
        }
    }

    /// Has a program detached, and forgets that it was expelled.
    pub fn detach(&mut self, program: ProgramNo) -> Result<Option<Box<Client>>, Ended> {
        let report = self.give(Order::Detach(program))?;
        self.expelled.retain(|expelled| expelled.program != program);
        match report {
            Report::Detached(client) => Ok(client),
            _ => Ok(None),
        }
    }

    /// A program that was expelled meanwhile; it is to be detached.
    pub fn poll_expelled(&mut self) -> Result<Option<Expelled>, Ended> {
        if let Some(expelled) = self.expelled.pop_front() {
            return Ok(Some(expelled));
        }
        self.hush();
        Ok(self.next()?.and_then(|report| match report {
            Report::Expelled(expelled) => Some(expelled),
            // Nothing was asked.
            _ => None,
        }))
    }

    /// Readable when there may be something to poll, or the packet thread has ended.
    pub fn told(&self) -> BorrowedFd<'_> {
        self.told.as_fd()
    }

    fn next(&mut self) -> Result<Option<Report>, Ended> {
        // In this order: what was said before the end is heard.
        let ended = self.reports.is_abandoned();
        match self.reports.pop() {
            Ok(report) => Ok(Some(report)),
            Err(_) if ended => Err(Ended),
            Err(_) => Ok(None),
        }
    }

    fn wait(&mut self) {
        let mut fds = [PollFd::new(&self.told, PollFlags::IN)];
        // It is not waited for forever: a thread that panics rings no bell.
        let moment = Timespec {
            tv_sec: 0,
            tv_nsec: 100_000_000,
        };
        let _ = rustix::event::poll(&mut fds, Some(&moment));
        self.hush();
    }

    fn hush(&self) {
        let _ = rustix::io::read(&self.told, &mut [0; 8]);
    }
}

impl Drop for Orders {
    /// Nobody else could end the other thread.
    fn drop(&mut self) {
        let _ = self.orders.push(Order::Stop);
        ring(&self.wake);
    }
}

impl Inbox {
    /// Readable when there is an order, see [`Server::also`].
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Does what was ordered, a little of it at a time. False: the thread is to end.
    pub fn work(&mut self, server: &mut Server) -> bool {
        let mut said = false;
        let mut goes_on = true;
        // First, so that nothing is said of a program after it is detached.
        while !self.reports.is_full()
            && let Some(expelled) = server.poll_expelled()
        {
            let _ = self.reports.push(Report::Expelled(expelled));
            said = true;
        }
        for _ in 0..AT_ONCE {
            if self.reports.is_full() {
                break;
            }
            let Ok(order) = self.orders.pop() else { break };
            goes_on = !matches!(order, Order::Stop);
            let _ = self.reports.push(carry_out(order, server));
            said = true;
        }
        if said {
            ring(&self.told);
        }
        goes_on
    }
}

fn carry_out(order: Order, server: &mut Server) -> Report {
    let now = monotonic();
    let done = |done: Result<(), String>| match done {
        Ok(()) => Report::Done,
        Err(why) => Report::Failed(why),
    };
    match order {
        Order::Expect => Report::Expected(server.turn().expect()),
        Order::Attach(program, client, uid) => match server.attach_as(program, *client, uid) {
            Ok(()) => Report::Done,
            Err(why) => Report::Failed(format!("cannot watch the program's doorbell: {why}")),
        },
        Order::Detach(program) => Report::Detached(server.detach(program).map(Box::new)),
        Order::Sums => Report::Sums(Box::new(Sums {
            totals: server.turn().totals(),
            received: server.turn().demux().counters(),
            link: server.link().counters(),
            spent: server.spent(),
            awake: server.is_awake(),
            frames: server.link().tally(),
        })),
        Order::Wire(wire) => done(server.turn().rewire(wire).map_err(|why| why.to_string())),
        Order::Reserve(program, shape) => match server.turn().reserve(program, shape) {
            Ok(reserved) => Report::Reserved(Box::new(reserved)),
            Err(why) => Report::Failed(why.to_string()),
        },
        Order::Open(program, open, room) => {
            match server.turn().open_in(program, &open, *room, now) {
                Ok(opened) => {
                    server.begin(opened.flow);
                    Report::Opened(opened)
                }
                Err(why) => Report::Failed(why.to_string()),
            }
        }
        Order::Change(flow, service) => {
            let changed = server.turn().change(flow, service, now);
            done(changed.map_err(|why| why.to_string()))
        }
        Order::Readdress(flow, mac, next_hop, longest) => {
            server.turn().readdress(flow, mac, next_hop, longest);
            Report::Done
        }
        Order::Close(flow) => {
            server.counters(flow);
            Report::Closed(server.turn().close(flow, now).map(Box::new))
        }
        Order::Shed(flows) => {
            for flow in flows {
                server.turn().close(flow, now);
            }
            Report::Done
        }
        Order::Reuse(program, cleared) => {
            server.turn().reuse(program, cleared);
            Report::Done
        }
        Order::Discard(patterns) => {
            server.turn().demux().discard(patterns);
            Report::Done
        }
        Order::Link(is_up) => {
            server.turn().set_link(is_up);
            Report::Done
        }
        Order::Mac(mac) => {
            server.turn().set_mac(mac);
            Report::Done
        }
        Order::Counts(flows) => {
            let of_one = |flow| Some((server.counters(flow)?, server.turn().balance(flow)?));
            Report::Counts(flows.into_iter().map(of_one).collect())
        }
        Order::Stop => Report::Done,
    }
}

fn ring(eventfd: &OwnedFd) {
    let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
}

const OTHERWISE: &str = "the packet thread answered something else";
/// Orders, and reports, that can wait.
const LENGTH: usize = 64;
/// Orders of one round of the loop.
const AT_ONCE: usize = 4;

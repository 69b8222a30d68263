//! Commands from the control thread to the packet thread, and reports back.
//!
//! The packet thread must not wait for the control thread, since the control thread cannot run
//! under its priority. So two queues of fixed length connect them, each with one producer and one
//! consumer and no lock. The packet thread answers each command by one report, in order. It takes a
//! command only if there is room for the report. Reports on disconnected programs come between the
//! answers. A call fails with [`Ended`] when the packet thread has ended.
//!
//! ```text
//!   control ──▶ Order  ──▶ [LENGTH] ──▶ Inbox::work, once an iteration   eventfd: wakes the loop
//!           ◀── Report ◀── [LENGTH] ◀──                                  eventfd: wakes control
//! ```
//! The control thread does slow work before a command (making memory) or after it (dropping
//! memory).

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

/// A command to the packet thread.
pub enum Order {
    /// Sets the link's parameters.
    Wire(Wire),
    /// Reserves a number for a program that is attached later.
    Expect,
    /// Attaches a program: the reserved number, its memory, its user.
    Attach(ProgramNo, Box<Client>, u32),
    /// Detaches a program and closes its flows.
    Detach(ProgramNo),
    /// Reserves a place for a new flow in the program's memory.
    Reserve(ProgramNo, Shape),
    /// Opens a flow in the reserved place.
    Open(ProgramNo, Box<Open>, Box<Result<Prepared, Unprepared>>),
    /// Changes a flow's contract.
    Change(FlowNo, Service),
    /// Sets a flow's source address, next hop and longest frame; see
    /// [`Turn::readdress`](crate::turn::Turn::readdress).
    Readdress(FlowNo, Mac, Option<Mac>, usize),
    /// Closes a flow.
    Close(FlowNo),
    /// Closes flows of a program that is about to be detached.
    Shed(Vec<FlowNo>),
    /// Releases the place of a closed flow for reuse.
    Reuse(ProgramNo, Cleared),
    /// Replaces all discard patterns.
    Discard(Patterns<()>),
    /// Sets whether the link is up.
    Link(bool),
    /// Sets the link's Ethernet address.
    Mac(Mac),
    /// Reads the counters of these flows and the balance of their chunks.
    Counts(Vec<FlowNo>),
    /// Reads the sums.
    Sums,
    /// Ends the packet thread.
    Stop,
}

/// The result of a command.
pub enum Report {
    /// Done.
    Done,
    /// The number that was reserved for a program.
    Expected(ProgramNo),
    /// The memory of a detached program; `None` if the program was detached before.
    Detached(Option<Box<Client>>),
    /// A place for a flow, without pages.
    Reserved(Box<Reserved>),
    /// The flow is open.
    Opened(Opened),
    /// The flow is closed; `None` if it was closed before.
    Closed(Option<Box<Closed>>),
    /// One entry per requested flow, in order; `None` for a flow that is closed.
    Counts(Vec<Option<(Counters, Balance)>>),
    /// The sums.
    Sums(Box<Sums>),
    /// The command failed and changed nothing.
    Failed(String),
    /// A program was disconnected; this answers no command.
    Expelled(Expelled),
}

/// Sums and counters over the whole packet thread.
#[derive(Clone, Copy, Debug)]
pub struct Sums {
    /// Over all flows, also closed ones.
    pub totals: Totals,
    /// Received frames.
    pub received: demux::Counters,
    /// The link's counters.
    pub link: link::Counters,
    /// The event loop's time accounting.
    pub spent: Spent,
    /// Whether processors are kept awake.
    pub awake: bool,
    /// Number of frames per holder, if the frames are shared with the kernel.
    pub frames: Option<Tally>,
}

/// The packet thread has ended.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the driver's packet thread has ended")]
pub struct Ended;

/// The control thread's side.
pub struct Orders {
    orders: Producer<Order>,
    reports: Consumer<Report>,
    wake: OwnedFd,
    told: OwnedFd,
    expelled: VecDeque<Expelled>,
}

/// The packet thread's side.
pub struct Inbox {
    orders: Consumer<Order>,
    reports: Producer<Report>,
    wake: OwnedFd,
    told: OwnedFd,
}

/// Makes both sides.
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
    /// Sends a command and waits for its report: some microseconds.
    pub fn give(&mut self, order: Order) -> Result<Report, Ended> {
        // One command at a time, so there is room.
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

    /// Attaches a program's memory as user 0 and returns the program's number.
    ///
    /// # Errors
    /// If the packet thread has ended. The inner error is the reason why the program is not
    /// attached.
    pub fn attach(&mut self, client: Client) -> Result<Result<ProgramNo, String>, Ended> {
        let Report::Expected(program) = self.give(Order::Expect)? else {
            return Ok(Err(OTHERWISE.to_owned()));
        };
        Ok(self.attach_as(program, client, 0)?.map(|()| program))
    }

    /// Attaches the memory of a program with a reserved number, for the user `uid`. A failure
    /// releases the number.
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

    /// Opens a flow of an attached program; its pages are made before.
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

    /// Detaches a program and drops pending reports that it was disconnected.
    pub fn detach(&mut self, program: ProgramNo) -> Result<Option<Box<Client>>, Ended> {
        let report = self.give(Order::Detach(program))?;
        self.expelled.retain(|expelled| expelled.program != program);
        match report {
            Report::Detached(client) => Ok(client),
            _ => Ok(None),
        }
    }

    /// The next program that was disconnected; the caller detaches it.
    pub fn poll_expelled(&mut self) -> Result<Option<Expelled>, Ended> {
        if let Some(expelled) = self.expelled.pop_front() {
            return Ok(Some(expelled));
        }
        self.hush();
        Ok(self.next()?.and_then(|report| match report {
            Report::Expelled(expelled) => Some(expelled),
            // No command is pending.
            _ => None,
        }))
    }

    /// Readable when [`Orders::poll_expelled`] may return a program, or when the packet thread has
    /// ended.
    pub fn told(&self) -> BorrowedFd<'_> {
        self.told.as_fd()
    }

    fn next(&mut self) -> Result<Option<Report>, Ended> {
        // The order matters: reports from before the end are read.
        let ended = self.reports.is_abandoned();
        match self.reports.pop() {
            Ok(report) => Ok(Some(report)),
            Err(_) if ended => Err(Ended),
            Err(_) => Ok(None),
        }
    }

    fn wait(&mut self) {
        let mut fds = [PollFd::new(&self.told, PollFlags::IN)];
        // With a timeout: a thread that panics sends no notification.
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
    /// Only this side can end the packet thread.
    fn drop(&mut self) {
        let _ = self.orders.push(Order::Stop);
        ring(&self.wake);
    }
}

impl Inbox {
    /// Readable when a command is pending; see [`Server::also`].
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Executes some of the pending commands. False: the thread is to end.
    pub fn work(&mut self, server: &mut Server) -> bool {
        self.work_unless(server, |_| None)
    }

    /// Does the same, but a report by `instead` answers its command in place of the execution; for
    /// tests.
    pub(crate) fn work_unless(
        &mut self,
        server: &mut Server,
        mut instead: impl FnMut(&Order) -> Option<Report>,
    ) -> bool {
        let mut said = false;
        let mut goes_on = true;
        // First, so that no report on a program follows its detachment.
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
            let report = instead(&order).unwrap_or_else(|| carry_out(order, server));
            let _ = self.reports.push(report);
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
/// Capacity of each queue.
const LENGTH: usize = 64;
/// Commands per iteration of the loop.
const AT_ONCE: usize = 4;

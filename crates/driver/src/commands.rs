//! Commands from the control thread to the packet thread, and reports back.
//!
//! The control thread has a lower priority and may be kept from running, so the packet thread must
//! not wait for it. Two queues without a lock connect the two threads, each with one producer, one
//! consumer and room for `QUEUE_LENGTH` (64) entries:
//! ```text
//!  control thread                                       packet thread
//!  CommandSender ───▶ commands ───▶ CommandReceiver::execute, before each iteration
//!                ◀─── reports  ◀───
//! ```
//! The thread that has put something into a queue writes an eventfd, which wakes the other thread.
//! The packet thread sends one report for each command, in order, and takes a command only if there
//! is room for the report. Between these reports come reports on disconnected programs. The control
//! thread makes memory before it sends a command and drops memory after it has the report, since
//! both take long. The calls of a [`CommandSender`] fail with [`PacketThreadEnded`] when the packet
//! thread has ended. Attaching a program and opening a flow return the packet thread's reason, as
//! text, if it refuses.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use netnice_core::contract::ReceiveShare;
use netnice_core::sched::{Service, Wire};
use netnice_core::stops::StopCounts;
use netnice_core::units::{Instant, Nanos, Rate};
use netnice_ring::driver::{Cleared, Prepared, ProgramMemory, Reserved, Unprepared};
use netnice_ring::layout::Shape;
use netnice_ring::ledger::Balance;
use rtrb::{Consumer, Producer, RingBuffer};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use crate::clock::processor_time;
use crate::code_points::CodePoints;
use crate::datapath::{
    Closed, Datapath, Disconnected, FlowCounters, FlowParameters, ListedResets, OpenedFlow,
    ProgramNo, RedirectedCounters, ServerParameters, Totals,
};
use crate::demux::{self, FlowNo};
use crate::event_loop::{EventLoop, TimeAccounting, monotonic};
use crate::frame::Mac;
use crate::frames::Tally;
use crate::link;
use crate::path_counter::PathCounter;
use crate::pattern::Patterns;
use crate::redirect_map::RedirectMap;

/// A command to the packet thread.
pub(crate) enum Command {
    /// Sets the link's parameters, and the rate of the kernel's classes.
    Wire(Wire, Option<Rate>),
    /// Sets the counter of what the kernel's classes are given to send.
    PathCounter(Box<PathCounter>),
    /// Sets the link's server, or removes it.
    Classes(Option<Box<ServerParameters>>),
    /// Reserves a number for a program that is attached later.
    ReserveProgram,
    /// Attaches a program: the reserved number, its memory, its user.
    Attach(ProgramNo, Box<ProgramMemory>, u32),
    /// Detaches a program and closes its flows.
    Detach(ProgramNo),
    /// Reserves a place for a new flow in the program's memory.
    ReserveFlow(ProgramNo, Shape),
    /// Opens a flow in the reserved place.
    Open(
        ProgramNo,
        Box<FlowParameters>,
        Box<Result<Prepared, Unprepared>>,
    ),
    /// Changes a flow's contract.
    Change(FlowNo, Service, Option<ReceiveShare>),
    /// Sets a flow's source address, next hop and longest frame; see
    /// [`Datapath::readdress`](crate::datapath::Datapath::readdress).
    Readdress(FlowNo, Mac, Option<Mac>, usize),
    /// Stops sending for a flow; see [`Datapath::withdraw`](crate::datapath::Datapath::withdraw).
    Withdraw(FlowNo),
    /// Closes a flow. If the second field is true, resets its connection first.
    Close(FlowNo, bool),
    /// Resets connections of a closed flow, as its program has listed them.
    ResetListed(Box<ListedResets>),
    /// Closes flows of a program that is about to be detached.
    CloseMany(Vec<FlowNo>),
    /// Releases the place of a closed flow for reuse.
    Reuse(ProgramNo, Cleared),
    /// Replaces all discard patterns.
    Discard(Patterns<()>),
    /// Sets the code points of sent packets.
    CodePoints(CodePoints),
    /// Limits the thread's time awake; see [`EventLoop::set_awake_limit`].
    AwakeLimit(u32),
    /// Sets whether the link is up.
    Link(bool),
    /// Sets whether the interface cuts long packets of TCP.
    Segmentation(bool),
    /// Sets the link's Ethernet address.
    Mac(Mac),
    /// Receives from one more queue of the interface.
    AddQueue(Box<link::Queue>),
    /// Receives from the far end of a redirect pair, and shares the map of redirects.
    Redirects(Box<(link::Queue, RedirectMap)>),
    /// Changes or reads places of the map of redirects.
    Redirected(RedirectCommand),
    /// Reads the counters of these flows and the balance of their chunks.
    Counts(Vec<FlowNo>),
    /// Reads the sums over all flows, and the counters of the packet thread.
    Sums,
    /// Ends the packet thread.
    Stop,
}

/// A command about places of the map of redirects.
pub(crate) enum RedirectCommand {
    /// Opens a place, or changes its service. The first frames are held for this time.
    Open(u32, Service, Nanos),
    /// Closes a place.
    Close(u32),
    /// Reads the counters of these places.
    Count(Vec<u32>),
}

/// The result of a command, or a program that was disconnected.
pub(crate) enum Report {
    /// Done.
    Done,
    /// A program was not attached: the reason, and the program's memory.
    NotAttached(String, Box<ProgramMemory>),
    /// The number that was reserved for a program.
    ProgramReserved(ProgramNo),
    /// The memory of a detached program; `None` if the number had no attached program.
    Detached(Option<Box<ProgramMemory>>),
    /// The reserved place of a flow, whose pages are not allocated yet.
    FlowReserved(Box<Reserved>),
    /// The flow is open.
    Opened(OpenedFlow),
    /// The flow is closed; `None` if it was closed before.
    Closed(Option<Box<Closed>>),
    /// One entry per requested flow, in order; `None` for a flow that is closed.
    Counts(Vec<Option<(FlowCounters, Balance)>>),
    /// One entry per requested place, in order; `None` for a place that is closed.
    RedirectCounts(Vec<Option<RedirectedCounters>>),
    /// The sums.
    Sums(Box<Sums>),
    /// The command failed and changed nothing. (A failed [`Command::Open`] releases the reserved
    /// place.)
    Failed(String),
    /// A program was disconnected; this answers no command.
    Disconnected(Disconnected),
}

/// Why [`CommandSender::attach_reserved`] attached no program.
pub(crate) struct NotAttached {
    /// The reason, as text.
    pub(crate) why: String,
    /// The memory of the program; `None` if the report did not contain it.
    pub(crate) memory: Option<Box<ProgramMemory>>,
}

/// Sums and counters over the whole packet thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sums {
    /// Counters of sent and delivered packets, summed over all flows, including closed ones.
    pub(crate) totals: Totals,
    /// Counters of received frames.
    pub(crate) received: demux::DemuxCounters,
    /// The link's counters.
    pub(crate) link: link::LinkCounters,
    /// The event loop's time accounting.
    pub(crate) time: TimeAccounting,
    /// The packet thread's stops.
    pub(crate) stops: StopCounts,
    /// When these were read.
    pub(crate) at: Instant,
    /// The packet thread's processor time.
    pub(crate) processor: Nanos,
    /// Whether the driver keeps the processors out of idle states.
    pub(crate) awake: bool,
    /// Number of frames per holder, if the frames are shared with the kernel.
    pub(crate) frames: Option<Tally>,
}

/// The error of a call after the packet thread has ended.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the driver's packet thread has ended")]
pub struct PacketThreadEnded;

/// The control thread's end of the two queues: it sends commands and receives reports. Dropping it
/// ends the packet thread.
pub struct CommandSender {
    commands: Producer<Command>,
    reports: Consumer<Report>,
    to_packets: OwnedFd,
    to_control: OwnedFd,
    disconnected: VecDeque<Disconnected>,
}

/// The packet thread's end of the two queues: it receives commands, executes them, and sends
/// reports.
pub struct CommandReceiver {
    commands: Consumer<Command>,
    reports: Producer<Report>,
    to_packets: OwnedFd,
    to_control: OwnedFd,
}

/// Makes the two queues and returns their ends.
///
/// # Errors
/// If an eventfd cannot be made.
pub fn pair() -> io::Result<(CommandSender, CommandReceiver)> {
    let eventfd = || rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let (to_packets, to_control) = (eventfd()?, eventfd()?);
    let (to, commands) = RingBuffer::new(QUEUE_LENGTH);
    let (reports, from) = RingBuffer::new(QUEUE_LENGTH);
    let receiver = CommandReceiver {
        commands,
        reports,
        to_packets: to_packets.try_clone()?,
        to_control: to_control.try_clone()?,
    };
    let sender = CommandSender {
        commands: to,
        reports: from,
        to_packets,
        to_control,
        disconnected: VecDeque::new(),
    };
    Ok((sender, receiver))
}

impl CommandSender {
    /// Sends a command and waits for its report, usually some microseconds. Fails if the packet
    /// thread has ended.
    pub(crate) fn send(&mut self, command: Command) -> Result<Report, PacketThreadEnded> {
        // One command at a time, so there is room.
        self.commands.push(command).map_err(|_| PacketThreadEnded)?;
        signal(&self.to_packets);
        loop {
            match self.next()? {
                Some(Report::Disconnected(disconnected)) => {
                    self.disconnected.push_back(disconnected)
                }
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
    pub fn attach(
        &mut self,
        memory: ProgramMemory,
    ) -> Result<Result<ProgramNo, String>, PacketThreadEnded> {
        let Report::ProgramReserved(program) = self.send(Command::ReserveProgram)? else {
            return Ok(Err(UNEXPECTED_REPORT.to_owned()));
        };
        match self.attach_reserved(program, Box::new(memory), 0)? {
            Ok(()) => Ok(Ok(program)),
            Err(NotAttached { why, .. }) => {
                self.detach(program)?;
                Ok(Err(why))
            }
        }
    }

    /// Attaches the memory of a program with a reserved number, for the user `uid`. After a
    /// failure the number is still reserved.
    ///
    /// # Errors
    /// As [`CommandSender::attach`].
    pub(crate) fn attach_reserved(
        &mut self,
        program: ProgramNo,
        memory: Box<ProgramMemory>,
        uid: u32,
    ) -> Result<Result<(), NotAttached>, PacketThreadEnded> {
        let failed = |why: String, memory| Ok(Err(NotAttached { why, memory }));
        match self.send(Command::Attach(program, memory, uid))? {
            Report::Done => Ok(Ok(())),
            Report::NotAttached(why, memory) => failed(why, Some(memory)),
            Report::Failed(why) => failed(why, None),
            _ => failed(UNEXPECTED_REPORT.to_owned(), None),
        }
    }

    /// Opens a flow of an attached program. The calling thread allocates the flow's pages first, so
    /// that the packet thread does not wait for them.
    ///
    /// # Errors
    /// If the packet thread has ended. The inner error is the reason why the flow is not open.
    pub fn open(
        &mut self,
        program: ProgramNo,
        open: FlowParameters,
    ) -> Result<Result<OpenedFlow, String>, PacketThreadEnded> {
        let prepared = match self.send(Command::ReserveFlow(program, open.shape))? {
            Report::FlowReserved(reserved) => reserved.prepare(),
            Report::Failed(why) => return Ok(Err(why)),
            _ => return Ok(Err(UNEXPECTED_REPORT.to_owned())),
        };
        let command = Command::Open(program, Box::new(open), Box::new(prepared));
        match self.send(command)? {
            Report::Opened(opened) => Ok(Ok(opened)),
            Report::Failed(why) => Ok(Err(why)),
            _ => Ok(Err(UNEXPECTED_REPORT.to_owned())),
        }
    }

    /// Detaches a program, closes its flows, and discards pending reports that it was disconnected.
    /// Returns its memory; `None` if the number had no attached program. A reserved number is
    /// released.
    ///
    /// # Errors
    /// If the packet thread has ended.
    pub fn detach(
        &mut self,
        program: ProgramNo,
    ) -> Result<Option<Box<ProgramMemory>>, PacketThreadEnded> {
        let report = self.send(Command::Detach(program))?;
        self.disconnected
            .retain(|disconnected| disconnected.program != program);
        match report {
            Report::Detached(memory) => Ok(memory),
            _ => Ok(None),
        }
    }

    /// The next program that the packet thread disconnected, with its violation; `None` if there is
    /// none. The caller must detach it.
    ///
    /// # Errors
    /// If the packet thread has ended and all its reports were read.
    pub fn poll_disconnected(&mut self) -> Result<Option<Disconnected>, PacketThreadEnded> {
        if let Some(disconnected) = self.disconnected.pop_front() {
            return Ok(Some(disconnected));
        }
        self.clear_wakeup();
        Ok(self.next()?.and_then(|report| match report {
            Report::Disconnected(disconnected) => Some(disconnected),
            // No command is pending.
            _ => None,
        }))
    }

    /// A descriptor that is readable when [`CommandSender::poll_disconnected`] may return a
    /// program. The end of the packet thread by a panic does not make it readable.
    pub fn wakeup_fd(&self) -> BorrowedFd<'_> {
        self.to_control.as_fd()
    }

    fn next(&mut self) -> Result<Option<Report>, PacketThreadEnded> {
        // The order matters: reports from before the end are read.
        let ended = self.reports.is_abandoned();
        match self.reports.pop() {
            Ok(report) => Ok(Some(report)),
            Err(_) if ended => Err(PacketThreadEnded),
            Err(_) => Ok(None),
        }
    }

    fn wait(&mut self) {
        let mut fds = [PollFd::new(&self.to_control, PollFlags::IN)];
        // With a timeout: a thread that panics sends no notification.
        let moment = Timespec {
            tv_sec: 0,
            tv_nsec: 100_000_000,
        };
        let _ = rustix::event::poll(&mut fds, Some(&moment));
        self.clear_wakeup();
    }

    fn clear_wakeup(&self) {
        let _ = rustix::io::read(&self.to_control, &mut [0; 8]);
    }
}

impl Drop for CommandSender {
    /// Ends the packet thread, because no other thread can.
    fn drop(&mut self) {
        let _ = self.commands.push(Command::Stop);
        signal(&self.to_packets);
    }
}

impl CommandReceiver {
    /// An eventfd that is written for each command and never read, so it has an edge for each
    /// ([`EventLoop::watch_wakeup`]).
    pub fn wakeup_fd(&self) -> BorrowedFd<'_> {
        self.to_packets.as_fd()
    }

    /// Executes pending commands, at most four, and reports disconnected programs. Returns `false`
    /// if the packet thread must end: the last of these commands was to stop.
    pub fn execute(&mut self, event_loop: &mut EventLoop) -> bool {
        self.execute_unless(event_loop, Err)
    }

    /// As [`CommandReceiver::execute`], for tests: `instead` returns a report, or the command,
    /// which is then executed.
    pub(crate) fn execute_unless(
        &mut self,
        event_loop: &mut EventLoop,
        mut instead: impl FnMut(Command) -> Result<Report, Command>,
    ) -> bool {
        let mut reported = false;
        let mut continues = true;
        // First, so that no report on a program follows its detachment.
        while !self.reports.is_full()
            && let Some(disconnected) = event_loop.poll_disconnected()
        {
            let _ = self.reports.push(Report::Disconnected(disconnected));
            reported = true;
        }
        for _ in 0..COMMANDS_PER_ITERATION {
            if self.reports.is_full() {
                break;
            }
            let Ok(command) = self.commands.pop() else {
                break;
            };
            continues = !matches!(command, Command::Stop);
            if !continues {
                event_loop.send_resets();
            }
            let report = instead(command).unwrap_or_else(|command| execute(command, event_loop));
            let _ = self.reports.push(report);
            reported = true;
        }
        if reported {
            signal(&self.to_control);
        }
        continues
    }
}

fn execute(command: Command, event_loop: &mut EventLoop) -> Report {
    let now = monotonic();
    let datapath = event_loop.datapath();
    match command {
        Command::ReserveProgram => Report::ProgramReserved(datapath.reserve_program()),
        Command::Attach(program, memory, uid) => {
            match event_loop.attach_reserved(program, memory, uid) {
                Ok(()) => Report::Done,
                Err((why, memory)) => {
                    let why = format!("cannot watch the program's doorbell: {why}");
                    Report::NotAttached(why, memory)
                }
            }
        }
        Command::Detach(program) => Report::Detached(event_loop.detach(program).map(Box::new)),
        Command::Sums => Report::Sums(Box::new(sums(event_loop))),
        Command::Wire(wire, classes) => report(datapath.rewire(wire, classes), |()| Report::Done),
        Command::PathCounter(counter) => done(|| event_loop.set_path_counter(*counter)),
        Command::Classes(server) => report(datapath.set_server(server.as_deref(), now), |()| {
            Report::Done
        }),
        Command::ReserveFlow(program, shape) => {
            let reserved = datapath.reserve_flow(program, shape);
            report(reserved, |reserved| {
                Report::FlowReserved(Box::new(reserved))
            })
        }
        Command::Open(program, parameters, prepared) => {
            let opened = datapath.open_reserved(program, &parameters, *prepared, now);
            if let Ok(opened) = &opened {
                event_loop.reset_gate(opened.flow);
            }
            report(opened, Report::Opened)
        }
        Command::Change(flow, service, receive) => {
            let changed = datapath.change(flow, (service, receive), now);
            report(changed, |()| Report::Done)
        }
        Command::Readdress(flow, mac, next_hop, longest) => {
            datapath.readdress(flow, mac, next_hop, longest);
            Report::Done
        }
        Command::Withdraw(flow) => {
            datapath.withdraw(flow, now);
            Report::Done
        }
        Command::Close(flow, reset) => close(event_loop, flow, reset, now),
        Command::ResetListed(listed) => done(|| datapath.reset_listed(*listed)),
        Command::CloseMany(flows) => {
            for flow in flows {
                datapath.end(flow, now);
            }
            Report::Done
        }
        Command::Reuse(program, cleared) => {
            datapath.reuse(program, cleared);
            Report::Done
        }
        Command::CodePoints(code_points) => done(|| datapath.set_code_points(code_points)),
        Command::AwakeLimit(most_ppm) => done(|| event_loop.set_awake_limit(most_ppm)),
        Command::Discard(patterns) => done(|| datapath.demux().discard(patterns)),
        Command::Link(is_up) => done(|| datapath.set_link(is_up)),
        Command::Segmentation(cuts) => done(|| event_loop.link().set_joins(cuts)),
        Command::Mac(mac) => done(|| datapath.set_mac(mac)),
        Command::AddQueue(queue) => report(event_loop.link().add_queue(*queue), |()| Report::Done),
        Command::Redirects(pair) => {
            let (queue, map) = *pair;
            report(event_loop.set_redirected(queue, map), |()| Report::Done)
        }
        Command::Redirected(command) => execute_redirect(command, datapath, now),
        Command::Counts(flows) => {
            let read = |flow| {
                let counters = event_loop.counters(flow)?;
                Some((counters, event_loop.datapath().balance(flow)?))
            };
            Report::Counts(flows.into_iter().map(read).collect())
        }
        Command::Stop => Report::Done,
    }
}

fn close(event_loop: &mut EventLoop, flow: FlowNo, reset: bool, now: Instant) -> Report {
    // The counters get what XDP dropped.
    event_loop.counters(flow);
    let datapath = event_loop.datapath();
    if reset {
        datapath.reset_connection(flow);
    }
    Report::Closed(datapath.close(flow, now).map(Box::new))
}

fn execute_redirect(command: RedirectCommand, datapath: &mut Datapath, now: Instant) -> Report {
    match command {
        RedirectCommand::Open(place, service, hold) => {
            let opened = datapath.open_redirect(place, service, hold, now);
            report(opened, |()| Report::Done)
        }
        RedirectCommand::Close(place) => {
            report(datapath.close_redirect(place, now), |_| Report::Done)
        }
        RedirectCommand::Count(places) => {
            let read = |place| datapath.redirected_counters(place);
            Report::RedirectCounts(places.into_iter().map(read).collect())
        }
    }
}

fn done(set: impl FnOnce()) -> Report {
    set();
    Report::Done
}

fn report<T, E: ToString>(done: Result<T, E>, success: impl FnOnce(T) -> Report) -> Report {
    match done {
        Ok(value) => success(value),
        Err(why) => Report::Failed(why.to_string()),
    }
}

fn sums(event_loop: &mut EventLoop) -> Sums {
    Sums {
        totals: event_loop.datapath().totals(),
        received: event_loop.datapath().demux().counters(),
        link: event_loop.link().counters(),
        time: event_loop.time_accounting(),
        stops: event_loop.stop_counts(),
        at: monotonic(),
        processor: Nanos(processor_time()),
        awake: event_loop.is_awake(),
        frames: event_loop.link().tally(),
    }
}

fn signal(eventfd: &OwnedFd) {
    let _ = rustix::io::write(eventfd, &1u64.to_ne_bytes());
}

/// The reason of a failure after a report that does not belong to the command.
pub(crate) const UNEXPECTED_REPORT: &str = "the packet thread sent an unexpected report";
/// Capacity of each queue.
const QUEUE_LENGTH: usize = 64;
/// Commands per iteration of the loop.
const COMMANDS_PER_ITERATION: usize = 4;

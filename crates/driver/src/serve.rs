//! The event loop around the datapath: it waits for frames, doorbells, commands and the next
//! departure, and spins for the last microseconds.
//!
//! ```text
//!      ┌──▶ orders ──▶ received frames ──▶ turn ──▶ flush ──┬─▶ more to do ─────────────┐
//!      │                                                    └─▶ doze ─▶ wait ─▶ spin ──┤
//!      └───────────────────────────────────────────────────────────────────────────────┘
//! ```
//! If another thread needs the processor, the kernel stops a thread that only spins, for 50 ms of
//! each second. A thread that only sleeps is 3 µs late or more. So the loop sleeps until a [`lead`]
//! before the departure, which it learns from the lateness of its sleeps. It runs one iteration
//! then, and spins during the last [`NEAR`], as long as it sleeps a twelfth of its time ([`duty`]).
//! It does not sleep while a program has news, and a program that sees it awake writes no doorbell.
//!
//! While packets with a departure time leave, no processor sleeps at all ([`awake`]).
//!
//! Due packets are flushed before any program is notified, since writing a doorbell takes longer
//! than sending a packet. After the flush the loop reads the clock again, since the thread may have
//! been stopped meanwhile ([`Turn::left`]).

mod awake;
mod duty;
mod lead;
mod muted;
mod spent;

use std::fs::File;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::{io, mem, thread};

use netnice_core::units::{Instant, Nanos};
use netnice_ring::driver::ProgramMemory;
use rustix::event::epoll;

use crate::demux::FlowNo;
use crate::link::{Flushed, Link};
use crate::serve::awake::Awake;
pub use crate::serve::awake::wish;
use crate::serve::duty::Duty;
use crate::serve::lead::Lead;
use crate::serve::muted::Muted;
pub use crate::serve::spent::Spent;
use crate::serve::spent::{Round, Waking, Woken};
use crate::turn::{Counters, Expelled, Next, ProgramNo, Turn};

/// A datapath, its link, and the accounting of its time.
pub struct Server {
    turn: Turn,
    link: Link,
    /// The interface, the doorbells, and further descriptors.
    watched: OwnedFd,
    /// Until when received frames gather; no frame ends a sleep before.
    gather: Instant,
    /// A received frame ends a sleep.
    hears: bool,
    /// The programs whose doorbells end no sleep.
    muted: Muted,
    /// What ended the sleep before this iteration, if there was one.
    woken: Woken,
    /// Time is accounted for until this moment.
    since: Instant,
    duty: Duty,
    lead: Lead,
    awake: Awake,
    waking: Waking,
    spent: Spent,
}

/// How precisely a thread is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// By SCHED_FIFO: within some microseconds, also beside other programs.
    Fifo,
    /// As ordinary programs, with the finest timers that they can have.
    Ordinary,
}

impl Server {
    /// Makes the loop of a datapath and its link.
    pub fn new(turn: Turn, link: Link) -> io::Result<Server> {
        let watched = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let server = Server {
            turn,
            link,
            watched,
            gather: Instant(0),
            hears: true,
            muted: Muted::default(),
            woken: Woken::Not,
            since: monotonic(),
            duty: Duty::new(monotonic()),
            lead: Lead::new(),
            awake: Awake::new(),
            waking: Waking::new(),
            spent: Spent::default(),
        };
        server.watch(server.link.fd(), LINK)?;
        let programs: Vec<_> = server.turn.programs().collect();
        for program in programs {
            server.watch_bell(program)?;
        }
        Ok(server)
    }

    /// Attaches a program under its reserved number. A failure releases the number.
    pub fn attach_as(
        &mut self,
        program: ProgramNo,
        client: ProgramMemory,
        uid: u32,
    ) -> io::Result<()> {
        if !self.turn.attach_as(program, client, uid) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let done = self.watch_bell(program);
        if done.is_err() {
            self.turn.detach(program, monotonic());
        }
        done
    }

    /// Detaches a program and closes its flows. Returns the program's memory, which takes long to
    /// drop.
    pub fn detach(&mut self, program: ProgramNo) -> Option<ProgramMemory> {
        let client = self.turn.detach(program, monotonic())?;
        // The program has a copy of its doorbell, which it could go on writing.
        let _ = epoll::delete(&self.watched, client.doorbell());
        Some(client)
    }

    /// The next program that was disconnected for a protocol violation; the caller detaches it.
    pub fn poll_expelled(&mut self) -> Option<Expelled> {
        let expelled = self.turn.poll_expelled()?;
        if let Some(bell) = self.turn.bell(expelled.program) {
            let _ = epoll::delete(&self.watched, bell);
        }
        Some(expelled)
    }

    /// Adds a descriptor that wakes the loop when it becomes readable; the caller handles it. The
    /// wake-up is edge-triggered, so the descriptor need not be read.
    pub fn also(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let what = epoll::EventFlags::IN | epoll::EventFlags::ET;
        Ok(epoll::add(
            &self.watched,
            fd,
            epoll::EventData::new_u64(OTHERS),
            what,
        )?)
    }

    fn watch(&self, fd: BorrowedFd<'_>, number: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(number);
        Ok(epoll::add(&self.watched, fd, data, epoll::EventFlags::IN)?)
    }

    fn watch_bell(&self, program: ProgramNo) -> io::Result<()> {
        match self.turn.bell(program) {
            Some(bell) => {
                let data = epoll::EventData::new_u64(program.0.into());
                Ok(epoll::add(&self.watched, bell, data, RINGS)?)
            }
            None => Ok(()),
        }
    }

    /// Keeps processors awake while packets with a departure time leave. Needs root.
    pub fn keep_awake(&mut self) -> io::Result<()> {
        self.keep_awake_by(wish()?)
    }

    /// The same, by a file that [`wish`] opened while the thread was root's.
    pub fn keep_awake_by(&mut self, wish: File) -> io::Result<()> {
        self.awake.allow(wish)
    }

    /// The datapath, to open and close flows between two iterations.
    pub fn turn(&mut self) -> &mut Turn {
        &mut self.turn
    }

    /// Resets the XDP gate and drop counter of a newly opened flow, which may reuse the number of a
    /// closed one.
    pub fn begin(&mut self, flow: FlowNo) {
        self.link.shut(flow, Instant(0));
        self.link.dropped(flow);
    }

    /// A flow's counters, including frames that XDP dropped.
    pub fn counters(&mut self, flow: FlowNo) -> Option<Counters> {
        let dropped = self.link.dropped(flow);
        self.turn.shut_out(flow, dropped);
        self.turn.counters(flow)
    }

    /// The link.
    pub fn link(&mut self) -> &mut Link {
        &mut self.link
    }

    /// Whether processors are kept awake now.
    pub fn is_awake(&self) -> bool {
        self.awake.is_asked()
    }

    /// The loop's time accounting so far.
    pub fn spent(&self) -> Spent {
        self.spent
    }

    /// Runs one iteration, and then sleeps until there is work, at most `longest`.
    pub fn round(&mut self, longest: Nanos) {
        let next = self.work();
        let now = self.since;
        if let Some(pause) = self.duty.awake(now) {
            self.spent.pauses += 1;
            thread::sleep(pause);
            self.since = monotonic();
            self.duty.slept(self.since);
        }
        let departure = match next {
            Next::Again => return,
            Next::Wait(at) => Some(at),
            Next::Full | Next::Idle => None,
        };
        let mut limit = now.0.saturating_add(longest.0);
        if next == Next::Full {
            limit = limit.min(now.0.saturating_add(SOON));
        }
        if let Some(until) = self.awake.rests(now, departure) {
            limit = limit.min(until.0);
        }
        match departure.filter(|at| at.0 <= limit) {
            Some(at) => self.rest(at, true),
            None => self.rest(Instant(limit), false),
        }
    }

    /// Receives, sends, flushes.
    fn work(&mut self) -> Next {
        self.spent.rounds += 1;
        let (turn, began) = (&mut self.turn, monotonic());
        turn.begin(match self.woken == Woken::Frames {
            true => self.waking.cost(),
            false => Nanos(0),
        });
        let received = self
            .link
            .receive(RECEIVE, |frame| turn.receive(frame, began));
        while let Some((flow, until)) = turn.poll_shut() {
            self.link.shut(flow, until);
            turn.shut_out(flow, self.link.dropped(flow));
        }
        let handed = monotonic();
        let before = self.link.sent();
        let next = turn.transmit(&mut self.link, handed);
        let flushed = self.link.flush();
        if matches!(flushed, Ok(Flushed::All)) && turn.left(monotonic) {
            self.awake.left(handed);
        }
        let round = Round {
            began,
            handed,
            sent: (received > 0).then(monotonic),
            sends: self.link.sent() != before,
        };
        turn.publish();
        self.account(&round, received);
        match flushed {
            Ok(_) if received == RECEIVE || self.turn.has_expelled() => Next::Again,
            Ok(_) if next == Next::Full && self.link.room() > 0 => Next::Again,
            Ok(Flushed::All) => next,
            Ok(Flushed::Partly) => next.or_full(Instant(monotonic().0 + SOON)),
            Err(why) => {
                self.spent.refusals += 1;
                if why.raw_os_error() == Some(libc::ENETDOWN) {
                    // The control thread follows the interface and reports when it is up.
                    self.turn.set_link(false);
                }
                Next::Wait(Instant(monotonic().0 + RETRY))
            }
        }
    }

    /// Accounts for the time of an iteration.
    fn account(&mut self, round: &Round, received: usize) {
        let now = monotonic();
        let awake = Nanos(now.0.saturating_sub(self.since.0));
        self.since = now;
        let woken = mem::take(&mut self.woken);
        let took = self.spent.round(round, awake, now, woken);
        if woken == Woken::Frames {
            self.spent.receiving.0 += self.waking.cost().0;
        }
        if received > 0 && self.turn.charge(received as u32, took) {
            self.gather = Instant(round.handed.0 + GATHER);
        }
    }

    /// Sleeps until `until`, or until an event. With `exactly`, `until` is a departure: the sleep
    /// ends a lead earlier, for one more iteration; close to the departure the thread spins until
    /// the time has come.
    fn rest(&mut self, until: Instant, exactly: bool) {
        let spins = exactly && self.duty.may_spin();
        let early = if spins { self.lead.nanos() } else { 0 };
        let wake = until.0.saturating_sub(early);
        let now = monotonic();
        if now.0 < wake {
            self.hear_muted(now);
            self.waking.falls_asleep(processor_time);
            if !self.turn.doze(now) {
                self.mute();
                return;
            }
            self.spent.sleeps += 1;
            if self.sleep(wake) || !exactly {
                return;
            }
            self.lead.saw(monotonic().0.saturating_sub(wake));
        }
        let mut now = monotonic();
        if !spins || now.0.saturating_add(NEAR) < until.0 {
            return;
        }
        while now.0 < until.0 {
            std::hint::spin_loop();
            now = monotonic();
        }
        self.spent.waiting.0 += now.0.saturating_sub(self.since.0);
        self.since = now;
    }

    /// Sleeps. True if an event and not the time ended the sleep.
    fn sleep(&mut self, until: u64) -> bool {
        let now = monotonic().0;
        let gathers = now < self.gather.0;
        self.hear_frames(!gathers);
        let mut wake = until;
        if gathers {
            wake = wake.min(self.gather.0);
        }
        if let Some(until) = self.muted.until() {
            wake = wake.min(until.0);
        }
        let rest = wake.saturating_sub(now);
        let rest = rustix::event::Timespec {
            tv_sec: (rest / SECOND) as i64,
            tv_nsec: (rest % SECOND) as i64,
        };
        let mut events = [const { mem::MaybeUninit::uninit() }; EVENTS];
        let woken = epoll::wait(&self.watched, &mut events, Some(&rest));
        self.turn.wake();
        self.waking.wakes(processor_time);
        self.since = monotonic();
        self.duty.slept(self.since);
        self.woken = match wake {
            _ if wake == until => Woken::Due,
            _ if gathers && wake == self.gather.0 => Woken::Frames,
            _ => Woken::Called,
        };
        let Ok((events, _)) = woken else { return true };
        let woken = !events.is_empty() || wake < until;
        for event in events {
            let number = event.data.u64();
            self.woken = match number == LINK {
                true => Woken::Frames,
                false => Woken::Called,
            };
            if number < OTHERS {
                self.hear(ProgramNo(number as u32));
            }
        }
        woken
    }

    /// A program wrote its doorbell.
    fn hear(&mut self, program: ProgramNo) {
        let unasked = self.turn.hear(program, self.since);
        self.spent.rung(unasked);
        self.mute();
    }

    /// Stops polling the doorbells of programs that wrote them without need.
    fn mute(&mut self) {
        while let Some((program, until)) = self.turn.poll_muted() {
            self.listen(program, epoll::EventFlags::empty());
            self.muted.push(program, until);
        }
    }

    /// Polls doorbells again whose pause is over. The datapath uses the same moment, so a program
    /// that it polls has a doorbell that is polled.
    fn hear_muted(&mut self, now: Instant) {
        while let Some(program) = self.muted.poll(now) {
            // Enabling the events again reports earlier writes once more.
            self.turn.unmute(program);
            self.listen(program, RINGS);
        }
    }

    /// Sets whether a program's doorbell ends a sleep.
    fn listen(&self, program: ProgramNo, what: epoll::EventFlags) {
        let data = epoll::EventData::new_u64(program.0.into());
        if let Some(bell) = self.turn.bell(program) {
            // Fails for a disconnected program, whose doorbell is no longer polled.
            let _ = epoll::modify(&self.watched, bell, data, what);
        }
    }

    /// Sets whether a received frame ends a sleep.
    fn hear_frames(&mut self, hears: bool) {
        if self.hears == hears {
            return;
        }
        let what = match hears {
            true => epoll::EventFlags::IN,
            false => epoll::EventFlags::empty(),
        };
        let data = epoll::EventData::new_u64(LINK);
        // If this fails, frames go on ending sleeps.
        if epoll::modify(&self.watched, self.link.fd(), data, what).is_ok() {
            self.hears = hears;
        }
    }
}

/// The time of CLOCK_MONOTONIC.
#[inline]
pub fn monotonic() -> Instant {
    // SAFETY: all bits zero are a value of this plain structure.
    let mut now: libc::timespec = unsafe { mem::zeroed() };
    // SAFETY: the call writes the structure and cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    Instant(now.tv_sec as u64 * SECOND + now.tv_nsec as u64)
}

/// The processor time of the calling thread, in ns.
pub(crate) fn processor_time() -> u64 {
    // SAFETY: all bits zero are a value of this plain structure.
    let mut now: libc::timespec = unsafe { mem::zeroed() };
    // SAFETY: the call writes the structure and cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut now) };
    now.tv_sec as u64 * SECOND + now.tv_nsec as u64
}

/// Gives the calling thread precise wake-ups, on the given processor if there is one.
pub fn pace(processor: Option<usize>) -> io::Result<Pace> {
    if let Some(processor) = processor {
        // SAFETY: all bits zero are the empty set.
        let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
        if processor >= libc::CPU_SETSIZE as usize {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the number is below the size of the set.
        unsafe { libc::CPU_SET(processor, &mut set) };
        // SAFETY: the set outlives the call.
        let done = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    let priority = libc::sched_param {
        sched_priority: PRIORITY,
    };
    // SAFETY: the parameters outlive the call.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &priority) } == 0 {
        return Ok(Pace::Fifo);
    }
    // SAFETY: the call passes no memory.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64) };
    Ok(Pace::Ordinary)
}

/// Reading a program's news and notifying the program take less than this, in ns.
const NEAR: u64 = 15_000;
/// Pause after the interface refused frames, in ns.
const RETRY: u64 = 1_000_000;
/// When the loop retries frames that the kernel had no room for, in ns: at 1 Gbit/s some packets of
/// 1500 bytes have left by then.
const SOON: u64 = 50_000;
/// Most received frames per iteration, before waiting packets are sent.
const RECEIVE: usize = 64;
/// How long received frames gather, in ns, while a flow's receive load is near or above its share
/// of the driver's time. So a flood wakes the driver 10,000 times a second and not for each frame.
/// Other flows' received frames are delayed by as much.
const GATHER: u64 = 100_000;
/// Each write of a doorbell is reported once. The doorbell is never read, see
/// [`netnice_ring::doorbell`].
const RINGS: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ET);
/// Event numbers other than those of programs.
const LINK: u64 = u64::MAX;
const OTHERS: u64 = u64::MAX - 1;
/// Events per sleep; further ones end the next sleep.
const EVENTS: usize = 64;
const PRIORITY: i32 = 50;
const SECOND: u64 = 1_000_000_000;

#[cfg(test)]
mod tests;

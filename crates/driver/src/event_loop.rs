//! The event loop around the datapath: it waits for frames, doorbells, commands and the next
//! departure, and spins for the last microseconds before a departure.
//!
//! ```text
//!  ┌──▶ commands ─▶ receive ─▶ datapath ─▶ flush ─▶ notify programs ─┬─▶ more to do ────┐
//!  │                                                                 └─▶ sleep or spin ─┤
//!  └────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//! The kernel can stop a thread that only spins, for 50 ms of each second. A thread that only
//! sleeps is late by 3 µs or more. So the loop sleeps until some time before the departure, the
//! lead, which `wake_lead` learns from the lateness of the sleeps. After the sleep, the loop spins
//! if the departure is at most 15 µs away; else one more iteration follows. Without enough credit
//! in `cpu_budget`, the loop does not spin and sleeps until the departure itself. If the link then
//! still has packets for a quarter of a millisecond or more, no exact time is needed: the loop
//! sleeps for a fifth of that time longer, so that several packets leave together ([`longer`]). The
//! loop does not begin to sleep while a program that is not throttled has set a notice. A program
//! that keeps the rules of the ring writes no doorbell while the driver is awake.
//!
//! The daemon may give the thread a reservation of processor time instead of SCHED_FIFO, and take
//! it back (`reservation`). It also limits how long the thread waits awake while programs have such
//! reservations. In both cases the lead is no longer than the credit permits.
//!
//! While packets of cell contracts leave, the loop keeps all processors awake (`pm_qos`), if
//! [`EventLoop::keep_awake`] was called.
//!
//! Due packets are flushed before any program is notified, since writing a doorbell takes longer
//! than sending a packet. After the flush of packets of cell contracts the loop reads the clock
//! again, since the thread may have been stopped meanwhile ([`Datapath::all_sent`]).
//!
//! The loop tells the datapath since when it could not look at the rings (`unread_since`): since
//! the datapath read them last, or since the loop had to wake from its last sleep, whichever is
//! later. A sleep had to end when an event ended it, or at its planned end if that was earlier.
//! Before that time a doorbell would have ended the sleep. From then on the loop worked, or the
//! machine did not let it run. So a record that the loop finds can have been submitted at any time
//! since then, and a message of a channel loses nothing of its deadline by a stop of the loop.
//!
//! An iteration does not fail. If the interface refuses frames, the loop counts a refusal and tries
//! again after 1 ms. Set-up fails with the kernel's error: making the loop, watching a descriptor,
//! keeping processors awake, and setting the scheduling.

mod cpu_budget;
mod pm_qos;
mod reservation;
mod stop_log;
mod throttled;
mod time_accounting;
mod wake_lead;

use std::fs::File;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::{io, mem, thread};

use netnice_core::stops::{self, Stop, StopCounts};
use netnice_core::units::{Instant, Nanos};
use netnice_ring::driver::ProgramMemory;
use rtrb::Consumer;
use rustix::event::epoll;
use rustix::thread::{CpuSet, sched_setaffinity, set_current_timer_slack};

pub use crate::clock::monotonic;
use crate::clock::{SECOND, processor_time};
use crate::datapath::{Datapath, Disconnected, FlowCounters, Next, ProgramNo};
use crate::demux::FlowNo;
use crate::event_loop::cpu_budget::CpuBudget;
use crate::event_loop::pm_qos::LatencyRequest;
pub(crate) use crate::event_loop::pm_qos::open_device;
use crate::event_loop::stop_log::{StopLog, explained};
use crate::event_loop::throttled::Throttled;
pub use crate::event_loop::time_accounting::TimeAccounting;
use crate::event_loop::time_accounting::{IterationTimes, WakeReason, WakeupCost};
use crate::event_loop::wake_lead::WakeLead;
use crate::link::{Flushed, Link, Queue};
use crate::path_counter::PathCounter;
use crate::redirect_map::RedirectMap;

/// The packet thread's loop: a datapath, its link, and the accounting of their time.
pub struct EventLoop {
    datapath: Datapath,
    link: Link,
    /// What the kernel's classes were given to send; `None`: unknown, and not charged.
    path_counter: Option<PathCounter>,
    /// The interface, the doorbells, and further descriptors.
    epoll: OwnedFd,
    /// Received frames gather until this time. Before it, no received frame ends a sleep.
    gather_until: Instant,
    /// A received frame ends a sleep.
    polls_frames: bool,
    /// The programs whose doorbells end no sleep.
    throttled: Throttled,
    /// What ended the sleep before this iteration, if there was one.
    wake_reason: WakeReason,
    /// The loop could not look at the rings after this time; see the module.
    unread_since: Instant,
    /// Time is accounted for until this moment.
    accounted_until: Instant,
    cpu_budget: CpuBudget,
    /// When the thread's reservation of processor time is read again.
    reservation_due: Instant,
    wake_lead: WakeLead,
    latency_request: LatencyRequest,
    wakeup_cost: WakeupCost,
    time: TimeAccounting,
    stops: StopLog,
}

/// The scheduling class of a thread, which decides how precisely it is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedulingClass {
    /// SCHED_FIFO: the thread wakes within some microseconds, also beside other programs.
    Fifo,
    /// The class of ordinary programs, with a timer slack of 1 ns.
    Ordinary,
}

impl EventLoop {
    /// Makes the loop of a datapath and its link.
    ///
    /// # Errors
    /// If an epoll cannot be made, or refuses a descriptor.
    pub fn new(datapath: Datapath, link: Link) -> io::Result<EventLoop> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let event_loop = EventLoop {
            datapath,
            link,
            path_counter: None,
            epoll,
            gather_until: Instant(0),
            polls_frames: true,
            throttled: Throttled::default(),
            wake_reason: WakeReason::None,
            unread_since: monotonic(),
            accounted_until: monotonic(),
            cpu_budget: CpuBudget::new(monotonic()),
            reservation_due: Instant(0),
            wake_lead: WakeLead::new(),
            latency_request: LatencyRequest::new(),
            wakeup_cost: WakeupCost::new(),
            time: TimeAccounting::default(),
            stops: StopLog::default(),
        };
        event_loop.watch(event_loop.link.fd(), LINK)?;
        let programs: Vec<_> = event_loop.datapath.programs().collect();
        for program in programs {
            if let Some(doorbell) = event_loop.datapath.doorbell(program) {
                event_loop.watch_doorbell(program, doorbell)?;
            }
        }
        Ok(event_loop)
    }

    /// Attaches a program under its reserved number. A failure changes nothing and returns the
    /// memory. Fails if the doorbell cannot be polled, or the number is not reserved or in use.
    pub(crate) fn attach_reserved(
        &mut self,
        program: ProgramNo,
        memory: Box<ProgramMemory>,
        uid: u32,
    ) -> Result<(), (io::Error, Box<ProgramMemory>)> {
        if let Err(why) = self.watch_doorbell(program, memory.doorbell()) {
            return Err((why, memory));
        }
        let attached = self.datapath.attach_reserved(program, memory, uid);
        attached.map_err(|memory| {
            let _ = epoll::delete(&self.epoll, memory.doorbell());
            (io::ErrorKind::NotFound.into(), memory)
        })
    }

    /// Detaches a program and closes its flows. Returns the program's memory, which takes long to
    /// drop; `None` if no attached program has this number.
    pub(crate) fn detach(&mut self, program: ProgramNo) -> Option<ProgramMemory> {
        let memory = self.datapath.detach(program, monotonic())?;
        // The program has a copy of its doorbell, and can still write it.
        let _ = epoll::delete(&self.epoll, memory.doorbell());
        Some(memory)
    }

    /// The next program that was disconnected for a protocol violation; the caller detaches it.
    /// `None` if there is none.
    pub(crate) fn poll_disconnected(&mut self) -> Option<Disconnected> {
        let disconnected = self.datapath.poll_disconnected()?;
        if let Some(doorbell) = self.datapath.doorbell(disconnected.program) {
            let _ = epoll::delete(&self.epoll, doorbell);
        }
        Some(disconnected)
    }

    /// Adds a descriptor that wakes the loop when it becomes readable; the caller handles it. The
    /// wake-up is edge-triggered, so the descriptor need not be read.
    ///
    /// # Errors
    /// If the epoll refuses the descriptor.
    pub fn watch_wakeup(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let what = epoll::EventFlags::IN | epoll::EventFlags::ET;
        Ok(epoll::add(
            &self.epoll,
            fd,
            epoll::EventData::new_u64(WAKEUPS),
            what,
        )?)
    }

    fn watch(&self, fd: BorrowedFd<'_>, number: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(number);
        Ok(epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN)?)
    }

    fn watch_doorbell(&self, program: ProgramNo, doorbell: BorrowedFd<'_>) -> io::Result<()> {
        let data = epoll::EventData::new_u64(program.0.into());
        Ok(epoll::add(&self.epoll, doorbell, data, DOORBELL_EVENTS)?)
    }

    /// Keeps processors awake while packets of cell contracts leave. Needs root.
    ///
    /// # Errors
    /// If `/dev/cpu_dma_latency` cannot be opened or written.
    pub fn keep_awake(&mut self) -> io::Result<()> {
        self.keep_awake_with(open_device()?)
    }

    /// As [`EventLoop::keep_awake`], with a file that [`open_device`] opened while the process was
    /// root's. Fails if the file cannot be written.
    pub(crate) fn keep_awake_with(&mut self, device: File) -> io::Result<()> {
        self.latency_request.set_device(device)
    }

    /// The datapath, to open and close flows between two iterations.
    pub fn datapath(&mut self) -> &mut Datapath {
        &mut self.datapath
    }

    /// Charges the link from now on for what the kernel's classes send, by this counter.
    pub fn set_path_counter(&mut self, counter: PathCounter) {
        self.path_counter = Some(counter);
    }

    /// Sets the share of a processor, in parts of a million, beyond which the thread does not wait
    /// awake. A million or more: no limit.
    pub(crate) fn set_awake_limit(&mut self, most_ppm: u32) {
        self.cpu_budget.set_awake_limit(most_ppm, monotonic());
    }

    /// Resets the XDP gate and drop counter of a newly opened flow, which may reuse the number of a
    /// closed one.
    pub(crate) fn reset_gate(&mut self, flow: FlowNo) {
        self.link.suspend(flow, Instant(0));
        self.link.dropped(flow);
    }

    /// Receives the frames of redirected targets from the far end of a redirect pair, and shares
    /// this map with the eBPF program. Fails if the descriptor cannot be polled, or there is no
    /// memory for the frames.
    pub(crate) fn set_redirected(&mut self, queue: Queue, map: RedirectMap) -> io::Result<()> {
        self.watch(queue.fd().as_fd(), REDIRECTED)?;
        self.link.set_redirected(queue)?;
        self.datapath.set_redirect_map(map, monotonic());
        Ok(())
    }

    /// Sends the RSTs of ended connections, as far as the link has room for them. The packet thread
    /// calls it before it ends.
    pub(crate) fn send_resets(&mut self) {
        while self.datapath.has_resets() && self.link.room() > 0 {
            self.datapath.send_resets(&mut self.link, monotonic());
            if !matches!(self.link.flush(), Ok(Flushed::All)) {
                return;
            }
        }
    }

    /// A flow's counters, including frames that XDP dropped; `None` if the flow is closed.
    pub fn counters(&mut self, flow: FlowNo) -> Option<FlowCounters> {
        let dropped = self.link.dropped(flow);
        self.datapath.count_dropped(flow, dropped);
        self.datapath.counters(flow)
    }

    /// The link that the loop sends and receives on, for its counters and its frames.
    pub fn link(&mut self) -> &mut Link {
        &mut self.link
    }

    /// Whether processors are kept awake now.
    pub(crate) fn is_awake(&self) -> bool {
        self.latency_request.is_held()
    }

    /// The loop's time accounting so far.
    pub fn time_accounting(&self) -> TimeAccounting {
        self.time
    }

    /// The thread's stops so far.
    pub fn stop_counts(&self) -> StopCounts {
        self.stops.counts()
    }

    /// Passes each later stop of the thread to the returned queue. While the queue is full, stops
    /// are only counted.
    pub fn pass_on_stops(&mut self) -> Consumer<Stop> {
        self.stops.pass_on()
    }

    /// Runs one iteration, and then sleeps until there is work, at most `longest`.
    pub fn iterate(&mut self, longest: Nanos) {
        let next = self.process();
        let now = self.accounted_until;
        if now >= self.reservation_due {
            self.cpu_budget.set_reservation(reservation::read());
            self.reservation_due = Instant(now.0.saturating_add(RESERVATION_PAUSE));
        }
        if let Some(pause) = self.cpu_budget.charge(now) {
            self.time.pauses += 1;
            thread::sleep(pause);
            self.accounted_until = monotonic();
            let asked = Instant(now.0.saturating_add(pause.as_nanos() as u64));
            self.stops.record(stops::woken(asked, self.accounted_until));
            let cost = self.wakeup_cost.mean();
            self.cpu_budget.credit(self.accounted_until, cost);
        }
        // Also while there is always more to do: else redirected packets would go to the classes.
        let renewal = self.datapath.renew_redirects(self.accounted_until);
        let departure = match next {
            Next::Again => return,
            Next::Wait(at) => Some(at),
            Next::Full | Next::Idle => None,
        };
        let mut limit = now.0.saturating_add(longest.0);
        if next == Next::Full {
            limit = limit.min(now.0.saturating_add(RETRY_FULL));
        }
        if let Some(until) = renewal {
            limit = limit.min(until.0);
        }
        if let Some(until) = self.latency_request.before_sleep(now, departure) {
            limit = limit.min(until.0);
        }
        match departure.filter(|at| at.0 <= limit) {
            Some(at) => match longer(self.datapath.link_busy_after(at)) {
                Some(longer) => self.sleep_until(Instant(limit.min(at.0 + longer)), false),
                None => self.sleep_until(at, true),
            },
            None => self.sleep_until(Instant(limit), false),
        }
    }

    /// Receives, sends, flushes.
    fn process(&mut self) -> Next {
        self.time.iterations += 1;
        let (datapath, began) = (&mut self.datapath, monotonic());
        datapath.begin(match self.wake_reason == WakeReason::Frames {
            true => self.wakeup_cost.mean(),
            false => Nanos(0),
        });
        let received = self.link.receive(FRAMES_PER_ITERATION, |frame, offload| {
            datapath.receive_offloaded(frame, offload, began)
        });
        while let Some((flow, until)) = datapath.poll_suspended() {
            self.link.suspend(flow, until);
            datapath.count_dropped(flow, self.link.dropped(flow));
        }
        let delivered = monotonic();
        self.stops
            .record(stops::slow(began, delivered, explained(received as u64)));
        let before = self.link.sent();
        if let Some(counter) = &self.path_counter {
            datapath.handle_path_count(counter.count(), delivered);
        }
        let redirected = self.link.receive_redirected(FRAMES_PER_ITERATION, |frame| {
            datapath.receive_redirected(frame, delivered)
        });
        datapath.set_unread_since(self.unread_since);
        let next = datapath.transmit(&mut self.link, delivered);
        self.unread_since = delivered;
        let flushed = self.link.flush();
        if matches!(flushed, Ok(Flushed::All)) && datapath.all_sent(monotonic) {
            self.latency_request.packets_left(delivered);
        }
        let times = IterationTimes {
            began,
            delivered,
            sent: (received > 0).then(monotonic),
            sends: self.link.sent() != before,
        };
        datapath.publish();
        let frames = (received + redirected) as u64 + self.link.sent().saturating_sub(before);
        self.account(&times, received);
        let (from, to) = (times.delivered, self.accounted_until);
        self.stops.record(stops::slow(from, to, explained(frames)));
        match flushed {
            Ok(_)
                if received.max(redirected) >= FRAMES_PER_ITERATION
                    || self.datapath.has_disconnected() =>
            {
                Next::Again
            }
            Ok(_) if next == Next::Full && self.link.room() > 0 => Next::Again,
            Ok(Flushed::All) => next,
            Ok(Flushed::Partly) => next.or_full(Instant(monotonic().0 + RETRY_FULL)),
            Err(why) => {
                self.time.refusals += 1;
                if why.raw_os_error() == Some(libc::ENETDOWN) {
                    // The control thread follows the interface and reports when it is up.
                    self.datapath.set_link(false);
                }
                Next::Wait(Instant(monotonic().0 + RETRY_REFUSED))
            }
        }
    }

    /// Accounts for the time of an iteration.
    fn account(&mut self, times: &IterationTimes, received: usize) {
        let now = monotonic();
        let awake = Nanos(now.0.saturating_sub(self.accounted_until.0));
        self.accounted_until = now;
        let woken = mem::take(&mut self.wake_reason);
        let took = self.time.iteration(times, awake, now, woken);
        if woken == WakeReason::Frames {
            self.time.receiving.0 += self.wakeup_cost.mean().0;
        }
        if received > 0 && self.datapath.charge(received as u32, took) {
            self.gather_until = Instant(times.delivered.0 + GATHER);
        }
    }

    /// Sleeps until `until`, or until an event. With `exactly`, `until` is a departure: the sleep
    /// ends a lead earlier, for one more iteration; close to the departure the thread spins until
    /// the time has come.
    fn sleep_until(&mut self, until: Instant, exactly: bool) {
        let early = match exactly {
            true => self.wake_lead.nanos().min(self.cpu_budget.spin_credit()),
            false => 0,
        };
        let spins = early > 0;
        let wake = until.0.saturating_sub(early);
        let now = monotonic();
        if now.0 < wake {
            self.resume_throttled(now);
            self.wakeup_cost.sleep_begins(processor_time);
            if !self.datapath.prepare_sleep(now) {
                self.throttle();
                return;
            }
            self.time.sleeps += 1;
            if self.sleep(wake) || !exactly {
                return;
            }
            self.wake_lead.learn(monotonic().0.saturating_sub(wake));
        }
        let mut now = monotonic();
        if !spins || now.0.saturating_add(SPIN_TIME) < until.0 {
            return;
        }
        while now.0 < until.0 {
            std::hint::spin_loop();
            let before = now;
            now = monotonic();
            self.stops.record(stops::still(before, now));
        }
        self.time.waiting.0 += now.0.saturating_sub(self.accounted_until.0);
        self.accounted_until = now;
    }

    /// Sleeps until `until`, an event, or an earlier time at which frames no longer gather or a
    /// program's pause is over. False if the sleep lasted until `until`.
    fn sleep(&mut self, until: u64) -> bool {
        let now = monotonic().0;
        let gathers = now < self.gather_until.0;
        self.poll_frames(!gathers);
        let mut wake = until;
        if gathers {
            wake = wake.min(self.gather_until.0);
        }
        if let Some(until) = self.throttled.next_end() {
            wake = wake.min(until.0);
        }
        let rest = wake.saturating_sub(now);
        let rest = rustix::event::Timespec {
            tv_sec: (rest / SECOND) as i64,
            tv_nsec: (rest % SECOND) as i64,
        };
        let mut events = [const { mem::MaybeUninit::uninit() }; EVENTS];
        let woken = epoll::wait(&self.epoll, &mut events, Some(&rest));
        self.datapath.end_sleep();
        self.wakeup_cost.sleep_ended(processor_time);
        self.accounted_until = monotonic();
        let asked = Instant(wake.max(now));
        self.unread_since = asked.min(self.accounted_until);
        self.stops.record(stops::woken(asked, self.accounted_until));
        let cost = self.wakeup_cost.mean();
        self.cpu_budget.credit(self.accounted_until, cost);
        self.wake_reason = match wake {
            _ if wake == until => WakeReason::Due,
            _ if gathers && wake == self.gather_until.0 => WakeReason::Frames,
            _ => WakeReason::Request,
        };
        let Ok((events, _)) = woken else { return true };
        let woken = !events.is_empty() || wake < until;
        for event in events {
            let number = event.data.u64();
            self.wake_reason = match number == LINK {
                true => WakeReason::Frames,
                false => WakeReason::Request,
            };
            if number < WAKEUPS {
                self.on_doorbell(ProgramNo(number as u32));
            }
        }
        woken
    }

    /// A program wrote its doorbell.
    fn on_doorbell(&mut self, program: ProgramNo) {
        let unasked = self.datapath.on_doorbell(program, self.accounted_until);
        self.time.count_doorbell(unasked);
        self.throttle();
    }

    /// Stops polling the doorbells of programs that wrote them without need.
    fn throttle(&mut self) {
        while let Some((program, until)) = self.datapath.poll_throttled() {
            self.poll_doorbell(program, epoll::EventFlags::empty());
            self.throttled.push(program, until);
        }
    }

    /// Polls doorbells again whose pause is over. The datapath uses the same moment, so a program
    /// that it polls has a doorbell that is polled.
    fn resume_throttled(&mut self, now: Instant) {
        while let Some(program) = self.throttled.poll(now) {
            // Enabling the events again reports earlier writes once more.
            self.datapath.resume(program);
            self.poll_doorbell(program, DOORBELL_EVENTS);
        }
    }

    /// Sets whether a program's doorbell ends a sleep.
    fn poll_doorbell(&self, program: ProgramNo, what: epoll::EventFlags) {
        let data = epoll::EventData::new_u64(program.0.into());
        if let Some(doorbell) = self.datapath.doorbell(program) {
            // Fails for a disconnected program, whose doorbell is no longer polled.
            let _ = epoll::modify(&self.epoll, doorbell, data, what);
        }
    }

    /// Sets whether a received frame ends a sleep.
    fn poll_frames(&mut self, polls: bool) {
        if self.polls_frames == polls {
            return;
        }
        let what = match polls {
            true => epoll::EventFlags::IN,
            false => epoll::EventFlags::empty(),
        };
        let data = epoll::EventData::new_u64(LINK);
        // If this fails, frames end sleeps as before.
        if epoll::modify(&self.epoll, self.link.fd(), data, what).is_ok() {
            self.polls_frames = polls;
        }
    }
}

/// How much longer the loop may sleep than until the next departure, in ns, if the link is still
/// `busy` then: a fifth of that. `None` if the rest is shorter than the latest usual end of a sleep
/// ([`wake_lead::MOST`]), so that the link could become idle.
fn longer(busy: Nanos) -> Option<u64> {
    let longer = busy.0 / 5;
    (busy.0 - longer >= wake_lead::MOST).then_some(longer)
}

/// Gives the calling thread precise wake-ups, and binds it to `processor` unless that is `None`.
/// Returns the scheduling class that the kernel allows.
///
/// # Errors
/// If the thread cannot run on the processor.
pub fn set_scheduling(processor: Option<usize>) -> io::Result<SchedulingClass> {
    if let Some(processor) = processor {
        if processor >= CpuSet::MAX_CPU {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut set = CpuSet::new();
        set.set(processor);
        sched_setaffinity(None, &set)?;
    }
    // rustix has no sched_setscheduler(2).
    let priority = libc::sched_param {
        sched_priority: PRIORITY,
    };
    // SAFETY: the parameters outlive the call.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &priority) } == 0 {
        return Ok(SchedulingClass::Fifo);
    }
    let _ = set_current_timer_slack(Some(NonZeroU64::MIN));
    Ok(SchedulingClass::Ordinary)
}

/// Length of the spin before a departure, in ns. Reading a program's records and notifying the
/// program take less.
const SPIN_TIME: u64 = 15_000;
/// How long a reading of the thread's reservation of processor time is used, in ns. The reading is
/// one system call, of less than 1 us.
const RESERVATION_PAUSE: u64 = 10_000_000;
/// Pause after the interface refused frames, in ns.
const RETRY_REFUSED: u64 = 1_000_000;
/// When the loop retries frames that the kernel had no room for, in ns: at 1 Gbit/s some packets of
/// 1500 bytes have left by then.
const RETRY_FULL: u64 = 50_000;
/// After so many received frames waiting packets are sent. A long packet counts as its segments;
/// the last one may exceed the number.
const FRAMES_PER_ITERATION: usize = 64;
/// How long received frames gather, in ns, while a flow's receive load is near or above its share
/// of the driver's time. So a flood wakes the driver 10,000 times a second at most, and not for
/// each frame. Other flows' received frames are delayed by as much.
const GATHER: u64 = 100_000;
/// Each write of a doorbell is reported once. The doorbell is never read, see
/// [`netnice_ring::doorbell`].
const DOORBELL_EVENTS: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ET);
/// Event numbers other than those of programs.
const LINK: u64 = u64::MAX;
const REDIRECTED: u64 = u64::MAX - 1;
const WAKEUPS: u64 = u64::MAX - 2;
/// Most events that one sleep returns; further events end the next sleep.
const EVENTS: usize = 64;
const PRIORITY: i32 = 50;

#[cfg(test)]
mod tests;

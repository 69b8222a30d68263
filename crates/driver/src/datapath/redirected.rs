//! Redirected targets: programs that use the kernel's own stack, and whose packets the eBPF program
//! on egress redirects to the driver. The driver queues them for each target and each flow inside
//! it, and schedules a target as any other flow.
//!
//! ```text
//!  redirect pair ─▶ queue of the flow ─▶ head of the target ─▶ scheduler ─▶ NIC's frame ─▶ sent
//! ```
//! - The source address of a frame carries the target's place in the map of redirects and the
//!   bucket of its flow (`crates/kernel/bpf/redirect.h`). The driver writes its own there.
//! - What waits is bounded by the eBPF program, which tells TCP at once. The driver counts in the
//!   map what has left, and for how long it takes packets. While it is not alive, the packets go to
//!   the kernel's classes.
//! - A frame that is lost on the way stays counted. When nothing of a target has waited for
//!   [`IDLE`], its counts are settled.
//! - Frames whose place is not open (it was closed a moment ago) leave with best effort, behind
//!   what was waiting when the place was closed. So the end of a contract loses nothing.
//! - The first frames of a new target wait until the kernel's classes have sent what they had.
//!
//! A call fails with [`RedirectError`] if the map has no such place or is not known, or if the
//! scheduler refuses the contract.

mod flow_queues;
#[cfg(test)]
mod tests;

use netnice_api::driver::MIN_PACKET_BYTES;
use netnice_core::contract::Weight;
use netnice_core::sched::{Departure, FlowId, Packet, Scheduler, SchedulerError, Service};
use netnice_core::units::{Bytes, Instant, Nanos, Rate};
use netnice_kernel::enforce::REDIRECT_BUCKETS;

use self::flow_queues::FlowQueues;
pub(super) use self::flow_queues::QueuedFrame;
use super::flow::{FlowCounters, latest_departure};
use super::results::Next;
use super::{Datapath, FrameSink};
use crate::frame::Mac;
use crate::redirect_map::RedirectMap;
use crate::template::Checked;

/// The redirected targets of a driver.
pub(super) struct RedirectedTargets {
    map: Option<RedirectMap>,
    targets: Vec<Option<Target>>,
    /// The entry of `targets`, by the scheduler's number of the flow.
    by_flow: Vec<u16>,
    /// The entry of `targets`, by place.
    by_place: Vec<u16>,
    /// The entry for frames without an open place.
    rest: Option<u16>,
    /// Number of open places.
    open: usize,
    /// The earliest end of a hold; that of a target that was closed since may be earlier.
    first_hold: Option<Instant>,
    /// When the counts in the map were renewed.
    renewed: Instant,
    /// The link's Ethernet address.
    mac: Mac,
    /// The link's rate.
    rate: Rate,
}

/// One target.
struct Target {
    id: FlowId,
    /// Its place in the map; `None` for frames without an open place.
    place: Option<usize>,
    queues: FlowQueues,
    /// The frame that the scheduler has.
    head: Option<QueuedFrame>,
    head_since: Instant,
    /// The frame that the scheduler has chosen, and since when it was the head.
    departing: Option<(QueuedFrame, Instant)>,
    /// Until then the scheduler gets no frame.
    held_until: Option<Instant>,
    service: Service,
    tolerance: Nanos,
    /// The longest frame that its contract can let go, in bytes.
    longest: usize,
    /// The most bytes that wait here.
    most: usize,
    last_arrival: Instant,
    counters: RedirectedCounters,
}

/// The counters of a redirected target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RedirectedCounters {
    /// What was sent, with the lateness.
    pub sent: FlowCounters,
    /// Frames that were dropped: the link was down, the frame was too long for the contract, or too
    /// much waited.
    pub dropped: u64,
    /// Frames that wait.
    pub waiting: u64,
    /// Bytes of these frames.
    pub waiting_bytes: u64,
    /// Packets that the eBPF program refused, because too much waited.
    pub refused: u64,
}

/// Why a place cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RedirectError {
    /// The driver has no map of redirects.
    #[error("the driver receives from no redirect pair")]
    NoMap,
    /// The map has no such place. Holds its number.
    #[error("the map of redirects has no place {0}")]
    NoPlace(u32),
    /// The place is not open. Holds its number.
    #[error("place {0} of the map of redirects is not open")]
    NotOpen(u32),
    /// The scheduler refuses the contract.
    #[error(transparent)]
    Contract(#[from] SchedulerError),
}

impl Datapath {
    /// Sets the map that the driver shares with the eBPF program. The places of an earlier map are
    /// closed.
    pub fn set_redirect_map(&mut self, map: RedirectMap, now: Instant) {
        let places: Vec<u32> = self.redirected.open_places().collect();
        for place in places {
            // The place is open.
            let _ = self.close_redirect(place, now);
        }
        self.redirected.map = Some(map);
    }

    /// Opens a place of the map with this service, or changes the service of an open one. The
    /// frames of a new place wait for `hold`.
    ///
    /// # Errors
    /// [`RedirectError`]; then nothing has changed.
    pub fn open_redirect(
        &mut self,
        place: u32,
        service: Service,
        hold: Nanos,
        now: Instant,
    ) -> Result<(), RedirectError> {
        let Datapath {
            redirected,
            scheduler,
            ..
        } = self;
        let map = redirected.map.as_ref().ok_or(RedirectError::NoMap)?;
        let shared = map.place(place as usize);
        let shared = shared.ok_or(RedirectError::NoPlace(place))?;
        let bound = bound(&service, redirected.rate);
        if let Some(entry) = redirected.entry_at(place as usize)
            && let Some(target) = redirected.targets[entry].as_mut()
        {
            scheduler.change(target.id, service, now)?;
            target.set_service(service, scheduler.longest(target.id), bound);
            shared.set_bound(bound);
            return Ok(());
        }
        let id = scheduler.insert(service, now)?;
        shared.begin(bound, now.after(ALIVE));
        let mut target = Target::new(id, Some(place as usize), service, now);
        target.set_service(service, scheduler.longest(id), bound);
        target.held_until = (hold.0 > 0).then(|| now.after(hold));
        redirected.insert(target);
        Ok(())
    }

    /// Closes a place: what waits there leaves with best effort, before later frames of the place.
    ///
    /// # Errors
    /// If the place is not open.
    pub fn close_redirect(
        &mut self,
        place: u32,
        now: Instant,
    ) -> Result<RedirectedCounters, RedirectError> {
        let (redirected, scheduler) = (&mut self.redirected, &mut self.scheduler);
        let mut target = redirected
            .remove(place as usize)
            .ok_or(RedirectError::NotOpen(place))?;
        let counters = target.counters(None);
        // The target exists, so the scheduler has it.
        let _ = scheduler.remove(target.id, now);
        let waiting = target.head.take().into_iter();
        let waiting = waiting.chain(std::iter::from_fn(|| target.queues.pop()));
        for frame in waiting {
            redirected.push_rest(frame, scheduler, now);
        }
        Ok(counters)
    }

    /// Takes a frame from the redirect pair.
    pub fn receive_redirected(&mut self, frame: &[u8], now: Instant) {
        self.shared_budget
            .count_active(&mut self.redirected_active, now);
        self.redirected.receive(frame, &mut self.scheduler, now);
    }

    /// The counters of a place; `None` if it is not open.
    pub fn redirected_counters(&mut self, place: u32) -> Option<RedirectedCounters> {
        let redirected = &self.redirected;
        let shared = redirected.map.as_ref()?.place(place as usize)?;
        let target = redirected.targets[redirected.entry_at(place as usize)?].as_ref()?;
        Some(target.counters(Some(shared.refused())))
    }

    /// Renews the time for which the driver takes packets, and settles the counts of idle places.
    /// To be called in each iteration. Returns the time of the next call; `None` without places.
    pub(crate) fn renew_redirects(&mut self, now: Instant) -> Option<Instant> {
        let redirected = &mut self.redirected;
        if redirected.open == 0 {
            return None;
        }
        let due = redirected.renewed.after(RENEW);
        if now < due {
            return Some(due);
        }
        redirected.renewed = now;
        let Some(map) = &redirected.map else {
            return None;
        };
        for target in redirected.targets.iter().flatten() {
            let Some(shared) = target.place.and_then(|place| map.place(place)) else {
                continue;
            };
            shared.keep_alive(now.after(ALIVE));
            if target.is_idle(now) && !shared.is_settled() {
                shared.settle();
            }
        }
        Some(now.after(RENEW))
    }
}

impl RedirectedTargets {
    /// Without places, on a link of this rate and Ethernet address.
    pub(super) fn new(rate: Rate, mac: Mac) -> RedirectedTargets {
        RedirectedTargets {
            map: None,
            targets: Vec::new(),
            by_flow: Vec::new(),
            by_place: Vec::new(),
            rest: None,
            open: 0,
            first_hold: None,
            renewed: Instant(0),
            mac,
            rate,
        }
    }

    /// Sets the link's Ethernet address.
    pub(super) fn set_mac(&mut self, mac: Mac) {
        self.mac = mac;
    }

    /// Sets the link's rate, on which depends how much may wait.
    pub(super) fn set_rate(&mut self, rate: Rate) {
        self.rate = rate;
        for target in self.targets.iter_mut().flatten() {
            let shared = target
                .place
                .and_then(|place| self.map.as_ref()?.place(place));
            if let Some(shared) = shared {
                let bound = bound(&target.service, rate);
                target.set_bound(bound);
                shared.set_bound(bound);
            }
        }
    }

    /// Puts the head of a target on its way, and makes the next frame its head. Returns the new
    /// head for the scheduler; `None` if there is none.
    #[inline]
    pub(super) fn advance(&mut self, flow: FlowId, now: Instant) -> Option<Packet> {
        let target = self.of_flow(flow)?;
        let since = std::mem::replace(&mut target.head_since, now);
        target.departing = target.head.take().map(|head| (head, since));
        target.head = target.queues.pop();
        target.head.as_ref().map(packet)
    }

    /// The frame that [`RedirectedTargets::advance`] put on its way, and since when it was the
    /// head.
    #[inline]
    pub(super) fn take_departing(&mut self, flow: FlowId) -> Option<(QueuedFrame, Instant)> {
        self.of_flow(flow)?.departing.take()
    }

    /// Copies a chosen frame to `sink`; without a sink, drops it. Returns `None` if it was not
    /// sent; else the latest time for it to leave without a correction of the schedule, if its
    /// contract has one.
    pub(super) fn send(
        &mut self,
        frame: &QueuedFrame,
        since: Instant,
        sink: Option<&mut impl FrameSink>,
        departure: &Departure,
        now: Instant,
    ) -> Option<Option<Instant>> {
        let mac = self.mac;
        let entry = self.entry_of(departure.flow)?;
        let target = self.targets[entry].as_mut()?;
        let sent = sink.and_then(|sink| {
            sink.send(|free| {
                let own = &mut free[..frame.bytes.len()];
                own.copy_from_slice(&frame.bytes);
                Ok(Checked::redirected(own, mac))
            })
        });
        match sent {
            Some(Ok(())) => {
                let bytes = frame.bytes.len();
                target.counters.sent.count_sent(bytes, since, departure);
            }
            _ => target.counters.dropped += 1,
        }
        let latest = latest_departure(target.tolerance, departure.eligible, now);
        let was_sent = matches!(sent, Some(Ok(())));
        self.count_left(entry, frame);
        was_sent.then_some(latest)
    }

    /// Ends the holds that are over: the scheduler gets the heads of these targets.
    #[inline]
    pub(super) fn end_holds(&mut self, scheduler: &mut Scheduler, now: Instant) {
        if self.first_hold.is_none_or(|end| end > now) {
            return;
        }
        let mut first = None;
        for target in self.targets.iter_mut().flatten() {
            match target.held_until {
                Some(end) if end <= now => {
                    target.held_until = None;
                    target.give_head(scheduler, now);
                }
                end => first = first.into_iter().chain(end).min(),
            }
        }
        self.first_hold = first;
    }

    /// Adjusts the time of the next iteration for the end of the first hold.
    #[inline]
    pub(super) fn limit(&self, next: Next) -> Next {
        match (self.first_hold, next) {
            (Some(end), Next::Idle) => Next::Wait(end),
            (Some(end), Next::Wait(at)) => Next::Wait(at.min(end)),
            (_, next) => next,
        }
    }

    fn receive(&mut self, frame: &[u8], scheduler: &mut Scheduler, now: Instant) {
        // Every frame has a whole Ethernet header.
        let Some(&[_, high, low, upper, lower, _]) = frame.get(6..12) else {
            return;
        };
        let place = usize::from(u16::from_be_bytes([high, low]));
        let bucket = u16::from_be_bytes([upper, lower]) % REDIRECT_BUCKETS as u16;
        let frame = QueuedFrame {
            bytes: frame.into(),
            bucket,
        };
        match self.entry_at(place) {
            Some(entry) => self.push(entry, frame, scheduler, now),
            None => self.push_rest(frame, scheduler, now),
        }
    }

    fn push(&mut self, entry: usize, frame: QueuedFrame, scheduler: &mut Scheduler, now: Instant) {
        let Some(target) = self.targets[entry].as_mut() else {
            return;
        };
        target.last_arrival = now;
        let length = frame.bytes.len();
        if length > target.longest || target.queues.bytes() + length > target.most {
            target.counters.dropped += 1;
            return self.count_left(entry, &frame);
        }
        target.queues.push(frame);
        if target.head.is_none() && target.held_until.is_none() {
            target.give_head(scheduler, now);
        }
        self.count_active(entry);
    }

    /// Adds a frame without an open place to those that leave with best effort.
    fn push_rest(&mut self, frame: QueuedFrame, scheduler: &mut Scheduler, now: Instant) {
        if self.rest.is_none() {
            let service = Service::best_effort(Weight::default());
            let Ok(id) = scheduler.insert(service, now) else {
                return;
            };
            let mut target = Target::new(id, None, service, now);
            target.set_service(service, scheduler.longest(id), REST_BYTES);
            self.rest = Some(self.insert(target));
        }
        if let Some(entry) = self.rest {
            self.push(usize::from(entry), frame, scheduler, now);
        }
    }

    fn insert(&mut self, target: Target) -> u16 {
        let flow = target.id.index();
        self.first_hold = self.first_hold.into_iter().chain(target.held_until).min();
        let vacant = self.targets.iter().position(Option::is_none);
        let entry = vacant.unwrap_or_else(|| {
            self.targets.push(None);
            self.targets.len() - 1
        });
        let number = entry as u16;
        set(&mut self.by_flow, flow, number);
        if let Some(place) = target.place {
            set(&mut self.by_place, place, number);
            self.open += 1;
        }
        self.targets[entry] = Some(target);
        number
    }

    fn remove(&mut self, place: usize) -> Option<Target> {
        let entry = self.entry_at(place)?;
        let target = self.targets[entry].take()?;
        set(&mut self.by_place, place, NONE);
        set(&mut self.by_flow, target.id.index(), NONE);
        self.open -= 1;
        if let Some(shared) = self.map.as_ref().and_then(|map| map.place(place)) {
            shared.keep_alive(Instant(0));
        }
        Some(target)
    }

    #[inline]
    fn entry_of(&self, flow: FlowId) -> Option<usize> {
        let entry = self.by_flow.get(flow.index()).copied();
        entry.filter(|entry| *entry != NONE).map(usize::from)
    }

    #[inline]
    fn of_flow(&mut self, flow: FlowId) -> Option<&mut Target> {
        let entry = self.entry_of(flow)?;
        self.targets[entry].as_mut()
    }

    #[inline]
    fn entry_at(&self, place: usize) -> Option<usize> {
        let entry = self.by_place.get(place).copied();
        entry.filter(|entry| *entry != NONE).map(usize::from)
    }

    fn open_places(&self) -> impl Iterator<Item = u32> {
        let targets = self.targets.iter().flatten();
        targets.filter_map(|target| target.place.map(|place| place as u32))
    }

    /// Counts in the map that a frame has left.
    #[inline]
    fn count_left(&self, entry: usize, frame: &QueuedFrame) {
        let place = self.targets[entry].as_ref().and_then(|target| target.place);
        let shared = place.and_then(|place| self.map.as_ref()?.place(place));
        if let Some(shared) = shared {
            shared.leave(usize::from(frame.bucket), frame.bytes.len());
        }
        self.count_active(entry);
    }

    /// Writes to the map how many flows of a target have frames that wait.
    #[inline]
    fn count_active(&self, entry: usize) {
        let Some(target) = &self.targets[entry] else {
            return;
        };
        let shared = target
            .place
            .and_then(|place| self.map.as_ref()?.place(place));
        if let Some(shared) = shared {
            shared.set_active(target.queues.active());
        }
    }
}

impl Target {
    fn new(id: FlowId, place: Option<usize>, service: Service, now: Instant) -> Target {
        Target {
            id,
            place,
            queues: FlowQueues::default(),
            head: None,
            head_since: Instant(0),
            departing: None,
            held_until: None,
            service,
            tolerance: Nanos(0),
            longest: 0,
            most: 0,
            last_arrival: now,
            counters: RedirectedCounters::default(),
        }
    }

    /// Takes over a contract. `bound` is what the eBPF program lets wait.
    fn set_service(&mut self, service: Service, longest: Bytes, bound: u32) {
        self.service = service;
        self.tolerance = service.tolerance();
        self.longest = usize::try_from(longest.0).unwrap_or(usize::MAX);
        self.set_bound(bound);
    }

    /// Takes over what the eBPF program lets wait.
    fn set_bound(&mut self, bound: u32) {
        // The bound is exceeded by a packet of segmentation offload, and by new flows.
        self.most = 4 * bound as usize + LONGEST_BURST;
    }

    /// Gives the next frame to the scheduler, which has none of this target.
    fn give_head(&mut self, scheduler: &mut Scheduler, now: Instant) {
        let Some(frame) = self.queues.pop() else {
            return;
        };
        match scheduler.handle_head(self.id, packet(&frame), now) {
            Ok(()) => {
                self.head_since = now;
                self.head = Some(frame);
            }
            // The length is within the scheduler's limit, so this does not happen.
            Err(_) => self.counters.dropped += 1,
        }
    }

    /// Whether nothing has waited for some time.
    fn is_idle(&self, now: Instant) -> bool {
        self.head.is_none()
            && self.queues.frames() == 0
            && now.0.saturating_sub(self.last_arrival.0) >= IDLE.0
    }

    fn counters(&self, refused: Option<u64>) -> RedirectedCounters {
        let head = self.head.as_ref().map_or(0, |head| head.bytes.len());
        RedirectedCounters {
            waiting: self.queues.frames() as u64 + u64::from(self.head.is_some()),
            waiting_bytes: (self.queues.bytes() + head) as u64,
            refused: refused.unwrap_or(self.counters.refused),
            ..self.counters
        }
    }
}

/// The scheduler's view of a frame.
#[inline]
fn packet(frame: &QueuedFrame) -> Packet {
    Packet::new(Bytes(frame.bytes.len() as u64).max(Bytes(MIN_PACKET_BYTES)))
}

/// How many bytes of a target may wait: what it sends in [`QUEUE_TIME`], or two slices if that is
/// more, within bounds.
fn bound(service: &Service, link: Rate) -> u32 {
    let in_time = |rate: Rate| rate.bytes_in(QUEUE_TIME).0;
    let bytes = match service {
        Service::Cell(cell) => in_time(cell.pcr()),
        Service::Slice { slice, .. } if !slice.extra() => {
            let (time, period) = (slice.slice().0, slice.period().0.max(1));
            let part = u128::from(in_time(link)) * u128::from(time) / u128::from(period);
            (part as u64).max(2 * link.bytes_in(slice.slice()).0)
        }
        _ => in_time(link),
    };
    bytes.clamp(SHORTEST_QUEUE, LONGEST_QUEUE) as u32
}

fn set(entries: &mut Vec<u16>, at: usize, value: u16) {
    if entries.len() <= at {
        entries.resize(at + 1, NONE);
    }
    entries[at] = value;
}

/// No entry.
const NONE: u16 = u16::MAX;
/// How long the queue of a target is: with a round trip of 20 ms, cubic needs two thirds of it.
const QUEUE_TIME: Nanos = Nanos(30_000_000);
/// The least that may wait, in bytes: two packets of each of ten flows.
const SHORTEST_QUEUE: u64 = 32_768;
const LONGEST_QUEUE: u64 = 1 << 20;
/// The most of a packet of segmentation offload.
const LONGEST_BURST: usize = 65_536;
/// What may wait of frames without an open place, in bytes.
const REST_BYTES: u32 = 1 << 20;
/// For how long the driver takes packets after a renewal. If it stops for longer, packets go to the
/// kernel's classes.
const ALIVE: Nanos = Nanos(700_000_000);
/// The interval of renewals.
const RENEW: Nanos = Nanos(100_000_000);
/// A place where nothing has waited for so long has lost what still counts there.
const IDLE: Nanos = Nanos(50_000_000);

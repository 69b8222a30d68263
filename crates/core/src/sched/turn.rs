//! The choice of the next packet: moving entries that fall due, choosing a flow, and placing the
//! flow again after its departure.

use super::calendar::{Run, Spot, Whole};
use super::flow::{Flag, Flow, Kind};
use super::pace::Moment;
use super::service::{Departure, FlowId, Next, Packet, Turn};
use super::{
    DROPPED_PER_CALL, DUE_PER_CALL, END_OF_TIME, Entry, Line, Scheduler, deadline, finest,
};
use crate::prefetch;
use crate::units::{Bytes, Instant};

impl Scheduler {
    /// Chooses the head that leaves now and accounts for it. For each departure the scheduler calls
    /// `behind` exactly once, with the flow. `behind` returns the packet behind the departing head,
    /// or `None` if the queue becomes empty. A packet longer than [`Scheduler::longest`] counts as
    /// one of that length.
    ///
    /// Returns `None` if no packet may leave now. [`Scheduler::poll_timeout`] gives the next time
    /// at which one may.
    #[inline(always)]
    pub fn poll(
        &mut self,
        now: Instant,
        behind: impl FnOnce(FlowId) -> Option<Packet>,
    ) -> Option<Departure> {
        self.advance(now);
        match self.wire.opens > self.now {
            true => None,
            false => self.poll_free(behind),
        }
    }

    /// [`Scheduler::poll`] for a link that can accept a packet.
    #[inline(never)]
    fn poll_free(&mut self, behind: impl FnOnce(FlowId) -> Option<Packet>) -> Option<Departure> {
        let alone = match self.is_anything_due() {
            true => self.fall_due(),
            false => None,
        };
        let first = alone.or_else(|| self.take_due());
        match first {
            Some(id) if self.flows[id as usize].is_ready_cell() => self.depart_cell(id, behind),
            _ => self.poll_any(first, behind),
        }
    }

    /// [`Scheduler::poll`] after the earliest entry `first` of the due has been taken.
    #[inline(never)]
    fn poll_any(
        &mut self,
        first: Option<u32>,
        behind: impl FnOnce(FlowId) -> Option<Packet>,
    ) -> Option<Departure> {
        let mut dropped = DROPPED_PER_CALL;
        if let Some((id, deadline)) = self.next_due(first, &mut dropped) {
            if let Kind::Server { server, .. } = self.flows[id as usize].kind {
                let member = self.next_member(server, &mut dropped)?;
                let turn = Turn::Shared { deadline };
                return Some(self.depart(member, turn, behind));
            }
            return Some(self.depart(id, Turn::Guaranteed { deadline }, behind));
        }
        if let Some(id) = self.next_fair(&mut dropped) {
            return Some(self.depart(id, Turn::LeftOver, behind));
        }
        let id = self.next_early(&mut dropped)?;
        Some(self.depart(id, Turn::Early, behind))
    }

    /// The next time at which [`Scheduler::poll`] may have a departure. `None` if a packet has to
    /// arrive first, or if time ends before. Every later call except `poll_timeout` may change the
    /// answer.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let ready = !(self.due.is_empty() && self.fair.is_empty() && self.early.is_empty());
        let waits = match ready {
            true => self.now,
            false => self.sleepers.soonest()?,
        };
        let at = waits.max(self.wire.opens).max(self.now);
        (at <= END_OF_TIME.0).then_some(Instant(at))
    }

    /// [`Scheduler::poll`] and [`Scheduler::poll_timeout`] in one call: the packet to send now, or
    /// the time of the next call. An event loop needs no other call to get its packets.
    pub fn turn(&mut self, now: Instant, behind: impl FnOnce(FlowId) -> Option<Packet>) -> Next {
        match (self.poll(now, behind), self.poll_timeout()) {
            (Some(departure), _) => Next::Send(departure),
            (None, Some(at)) => Next::Wait(at),
            (None, None) => Next::Idle,
        }
    }

    /// Whether an entry of the sleepers or of the early has fallen due.
    #[inline(always)]
    fn is_anything_due(&self) -> bool {
        let due = |spot: Option<Spot>| spot.is_some_and(|spot| spot.key <= self.now);
        due(self.sleepers.peek()) || due(self.early.peek())
    }

    /// Moves entries that have fallen due to the due calendar. If only one flow has fallen due and
    /// the due calendar is empty, it returns that flow instead.
    #[inline(never)]
    fn fall_due(&mut self) -> Option<u32> {
        let mut budget = DUE_PER_CALL;
        while budget > 0
            && let Some(spot) = self.sleepers.peek()
            && spot.key <= self.now
        {
            if let Some(whole) = self.sleepers.take_whole(&mut self.pool, deadline::JOIN) {
                self.wake_up_whole(whole, spot);
                budget = budget.saturating_sub(DUE_PER_CHUNK.min(whole.len()));
                continue;
            }
            let run = self.take_run();
            let others = self.sleepers.peek();
            if run.len() == 1
                && budget == DUE_PER_CALL
                && self.due.is_empty()
                && self.early.is_empty()
                && others.is_none_or(|other| other.key > self.now)
                && run.first().word() < deadline::JOIN
            {
                return Some(run.first().id());
            }
            budget = budget.saturating_sub(run.len());
            for entry in run {
                self.wake_up(entry, spot);
            }
        }
        while budget > 0
            && let Some(spot) = self.early.peek()
            && spot.key <= self.now
        {
            let entry = self.early.take(&mut self.pool)?;
            self.wake_up(entry, spot);
            budget -= 1;
        }
        None
    }

    /// Takes the next chunk of the sleepers.
    #[inline(always)]
    fn take_run(&mut self) -> Run {
        let (flows, due) = (&self.flows, &self.due);
        let ahead = |entry: Entry, key: u64| {
            // The other flows are prefetched shortly before their turn.
            let bound = deadline::decode(entry.word());
            if entry.word() >= deadline::JOIN || due.is_soon(key.saturating_add(bound)) {
                prefetch(flows, entry.id());
            }
        };
        match self.hurried || self.sleepers.is_vast() {
            true => self.sleepers.take_run_ahead(&mut self.pool, ahead),
            false => self.sleepers.take_run(&mut self.pool),
        }
    }

    /// An entry has fallen due.
    #[inline(always)]
    fn wake_up(&mut self, entry: Entry, spot: Spot) {
        let id = entry.id();
        if entry.word() == deadline::JOIN {
            return self.member_eligible(id);
        }
        if entry.word() == deadline::ASK {
            return self.look_again(id);
        }
        let deadline = spot.key.saturating_add(deadline::decode(entry.word()));
        let to = self.due.in_order(deadline.max(self.now), self.now);
        self.hurried = self.due.push_ahead(&mut self.pool, to, Entry::new(id, 0));
        if self.hurried {
            prefetch(&self.flows, id);
        }
    }

    /// Many entries with one deadline have fallen due.
    #[inline(never)]
    fn wake_up_whole(&mut self, whole: Whole, spot: Spot) {
        let deadline = spot.key.saturating_add(deadline::decode(whole.word()));
        let to = self.due.in_order(deadline.max(self.now), self.now);
        let flows = &self.flows;
        let tell = |entry: Entry| prefetch(flows, entry.id());
        self.hurried = self.due.push_whole(&mut self.pool, to, whole, tell);
    }

    /// A flow's entry was taken without a departure. Places the flow again if it has a head.
    #[cold]
    fn look_again(&mut self, id: u32) {
        let flow = &mut self.flows[id as usize];
        flow.clear(Flag::Clock);
        flow.clear(Flag::ClockOld);
        match flow.is(Flag::Waiting) {
            true => self.place(id),
            false => self.vacate(id),
        }
    }

    /// Takes the entry with the earliest deadline.
    #[inline(always)]
    fn take_due(&mut self) -> Option<u32> {
        let flows = &self.flows;
        let ahead = |entry: Entry, _| prefetch(flows, entry.id());
        let entry = self.due.take_ahead(&mut self.pool, ahead)?;
        Some(entry.id())
    }

    /// The flow with the earliest deadline that can send now, with that deadline. `first` is the
    /// first entry if it has been taken already.
    fn next_due(&mut self, first: Option<u32>, dropped: &mut u32) -> Option<(u32, Instant)> {
        let mut first = first;
        while *dropped > 0 {
            let id = first.take().or_else(|| self.take_due())?;
            let now = self.now;
            let flow = &mut self.flows[id as usize];
            if flow.is(Flag::Waiting)
                && !flow.is(Flag::ClockOld)
                && let Some(deadline) = flow.deadline(now)
            {
                flow.clear(Flag::Clock);
                return Some((id, Instant(deadline)));
            }
            // It has no head, or its head is not eligible now.
            self.look_again(id);
            *dropped -= 1;
        }
        None
    }

    /// The flow with the least start tag that can send from the left-over.
    #[inline(always)]
    fn next_fair(&mut self, dropped: &mut u32) -> Option<u32> {
        while *dropped > 0 && self.due.is_empty() {
            let flows = &self.flows;
            let ahead = |id: u32| prefetch(flows, id);
            let id = self.fair.take(&mut self.pool, ahead)?;
            let now = self.now;
            let is_limited = self.flows[id as usize].is(Flag::Limited);
            let may_go = !is_limited || self.gate(id) <= now;
            let flow = &mut self.flows[id as usize];
            flow.clear(Flag::Fair);
            let wanted = flow.is(Flag::Waiting)
                && may_go
                && match &mut flow.kind {
                    Kind::Share(share) => share.gate() <= now,
                    Kind::Slice { slice, extra, .. } => *extra && slice.is_spent(now),
                    _ => false,
                };
            let old = flow.is(Flag::FairOld);
            match (wanted, old) {
                (true, false) => return Some(id),
                (true, true) => self.join_fair(id),
                (false, _) => {
                    flow.clear(Flag::FairOld);
                    self.vacate(id);
                }
            }
            *dropped -= 1;
        }
        None
    }

    /// The flow with the earliest logical arrival among the early.
    #[inline(always)]
    fn next_early(&mut self, dropped: &mut u32) -> Option<u32> {
        while !self.early.is_empty() {
            if *dropped == 0 || !self.due.is_empty() || !self.fair.is_empty() {
                return None;
            }
            let entry = self.early.take(&mut self.pool)?;
            let id = entry.id();
            let flow = &mut self.flows[id as usize];
            flow.clear(Flag::Clock);
            let old = flow.is(Flag::ClockOld);
            flow.clear(Flag::ClockOld);
            match (flow.is(Flag::Waiting), old) {
                (true, false) => return Some(id),
                (true, true) => self.place(id),
                (false, _) => self.vacate(id),
            }
            *dropped -= 1;
        }
        None
    }

    /// Departure of a due cell's head. It is a shorter path for the most frequent case.
    #[inline(always)]
    fn depart_cell(
        &mut self,
        id: u32,
        behind: impl FnOnce(FlowId) -> Option<Packet>,
    ) -> Option<Departure> {
        let now = self.now;
        let flow = &mut self.flows[id as usize];
        let length = flow.length();
        let Kind::Cell(cell) = &mut flow.kind else {
            return None;
        };
        let deadline = Instant(cell.deadline());
        let (start, _) = self.wire.charge(now, length);
        let departure = Departure {
            flow: FlowId(id),
            length: Bytes(u64::from(length)),
            start: Instant(start),
            end: Instant(self.wire.busy.nanos),
            eligible: Instant(cell.eligible()),
            turn: Turn::Guaranteed { deadline },
        };
        cell.sent(start, length);
        let Some(packet) = behind(FlowId(id)) else {
            flow.clear(Flag::Waiting);
            flow.clear(Flag::Clock);
            return Some(departure);
        };
        let longest = self.wire.longest.min(cell.longest());
        let bytes = packet.length.0.min(u64::from(longest)) as u32;
        let (eligible, deadline) = cell.plan(bytes);
        let finest = cell.finest();
        // A cell that is late may wait for less than the time between two packets. Its wait is
        // rounded as that time is, so that many cells wake together.
        let spacing = cell.spacing(length);
        flow.set_length(bytes);
        if eligible > now
            && let Some(spot) = self.sleepers.not_before_as(spacing, eligible, now, finest)
        {
            let entry = Entry::new(id, deadline::encode(deadline.saturating_sub(spot.key)));
            self.sleep(spot, entry);
        } else {
            flow.clear(Flag::Clock);
            self.clock_within(id, eligible, deadline, finest);
        }
        Some(departure)
    }

    /// Departure of a flow's head.
    #[inline(always)]
    fn depart(
        &mut self,
        id: u32,
        turn: Turn,
        behind: impl FnOnce(FlowId) -> Option<Packet>,
    ) -> Departure {
        let now = self.now;
        let flow = &mut self.flows[id as usize];
        let length = flow.length();
        let (start, cost) = self.wire.charge(now, length);
        let mut departure = Departure {
            flow: FlowId(id),
            length: Bytes(u64::from(length)),
            start: Instant(start),
            end: Instant(self.wire.busy.nanos),
            eligible: Instant(0),
            turn,
        };
        let longest = self.wire.longest;
        let is_limited = flow.is(Flag::Limited);
        departure.eligible = Instant(flow.eligible(now, length, turn));
        if is_limited {
            departure.eligible.0 = departure.eligible.0.max(self.gate(id));
        }
        let flow = &mut self.flows[id as usize];
        match turn {
            Turn::Guaranteed { .. } => flow.sent(now, start, cost, length, true),
            Turn::LeftOver => {
                flow.sent(now, start, cost, length, false);
                if let Some(tag) = flow.pay(length) {
                    self.fair.served(tag);
                }
            }
            Turn::Early => {}
            Turn::Shared { .. } => self.member_sent(id, start, cost, length),
        }
        if is_limited {
            self.charge_limit(id, start, length);
        }
        let flow = &mut self.flows[id as usize];
        match behind(FlowId(id)) {
            Some(packet) => {
                let bytes = packet.length.0.min(u64::from(longest)) as u32;
                flow.set_length(bytes.min(flow.kind.longest()));
                if is_limited {
                    self.let_come(id, packet, false);
                } else if let Kind::Channel(channel) = &mut flow.kind {
                    channel.go_on(packet.message.map(|arrived| arrived.0), bytes.into());
                }
                self.place(id);
            }
            None => {
                flow.clear(Flag::Waiting);
                if matches!(turn, Turn::Shared { .. }) {
                    self.set_active(id, false);
                }
            }
        }
        match turn {
            Turn::Shared { .. } => self.settle_server(id),
            _ => self.fair.settle(),
        }
        departure
    }

    /// Inserts a flow into the calendar that its contract calls for.
    #[inline(always)]
    pub(super) fn place(&mut self, id: u32) {
        let now = self.now;
        if self.flows[id as usize].is(Flag::Limited) && self.is_held(id) {
            return;
        }
        let flow = &mut self.flows[id as usize];
        let length = flow.length();
        match &mut flow.kind {
            Kind::Vacant { .. } => {}
            Kind::Cell(cell) => {
                let (eligible, deadline) = cell.plan(length);
                self.clock(id, eligible, deadline);
            }
            Kind::Slice { slice, extra, .. } => {
                let (eligible, deadline) = slice.plan(now);
                if *extra && eligible > now {
                    self.join_fair(id);
                }
                self.clock(id, eligible, deadline);
            }
            Kind::Channel(channel) => {
                let (logical, deadline) = channel.plan();
                self.clock_channel(id, logical, deadline);
            }
            Kind::Server { slice, .. } => {
                let (eligible, deadline) = slice.plan(now);
                self.clock(id, eligible, deadline);
            }
            Kind::Member(_) => self.place_member(id),
            Kind::Share(share) => {
                let gate = share.gate();
                if gate > now {
                    self.recall(id);
                    return self.sleep_and_ask(id, gate);
                }
                match share.plan(length) {
                    Some((eligible, deadline)) => {
                        if eligible > now {
                            self.join_fair(id);
                        }
                        self.clock(id, eligible, deadline);
                    }
                    None => self.join_fair(id),
                }
            }
        }
    }

    /// Inserts a flow into the sleepers until it is eligible, or into the due if it is.
    #[inline(always)]
    fn clock(&mut self, id: u32, eligible: u64, deadline: u64) {
        let finest = finest(deadline.saturating_sub(eligible));
        self.clock_within(id, eligible, deadline, finest);
    }

    /// As `clock`, with `finest` as the largest width of the bucket (binary logarithm).
    #[inline(always)]
    fn clock_within(&mut self, id: u32, eligible: u64, deadline: u64, finest: u32) {
        let flow = &mut self.flows[id as usize];
        if flow.is(Flag::Clock) {
            return;
        }
        let now = self.now;
        if eligible <= now {
            flow.set(Flag::Clock);
            let to = self.due.in_order(deadline.max(now), now);
            self.due.push_ahead(&mut self.pool, to, Entry::new(id, 0));
            return;
        }
        let Some(spot) = self.sleepers.not_before(eligible, now, finest) else {
            return self.sleep_before(id, eligible);
        };
        flow.set(Flag::Clock);
        let word = deadline::encode(deadline.saturating_sub(spot.key));
        self.sleep(spot, Entry::new(id, word));
    }

    /// Inserts an entry into the sleepers.
    #[inline(always)]
    pub(super) fn sleep(&mut self, spot: Spot, entry: Entry) {
        let landed = self.sleepers.push_later(&mut self.pool, spot, entry);
        if let Some((id, place)) = landed {
            self.flows[id as usize].place = place;
        }
    }

    /// As `clock` for a channel, which may be among the early first.
    fn clock_channel(&mut self, id: u32, logical: u64, deadline: u64) {
        let now = self.now;
        let horizon = self.wire.horizon;
        let flow = &mut self.flows[id as usize];
        if horizon == 0 || logical <= now || flow.is(Flag::Clock) {
            return self.clock(id, logical, deadline);
        }
        if logical - now > horizon {
            return self.sleep_and_ask(id, logical - horizon);
        }
        let finest = finest(deadline.saturating_sub(logical));
        let Some(spot) = self.early.not_before(logical, now, finest) else {
            return self.clock(id, logical, deadline);
        };
        flow.set(Flag::Clock);
        let word = deadline::encode(deadline.saturating_sub(spot.key));
        self.early.push(&mut self.pool, spot, Entry::new(id, word));
    }

    /// Inserts a flow into the sleepers until a time. Then the flow is placed anew.
    pub(super) fn sleep_and_ask(&mut self, id: u32, until: u64) {
        match self.sleepers.not_before(until, self.now, u32::MAX) {
            Some(spot) => self.sleep_at(id, spot),
            None => self.sleep_before(id, until),
        }
    }

    /// As `sleep_and_ask`, but until shortly before the time, because no bucket is near enough.
    #[cold]
    pub(super) fn sleep_before(&mut self, id: u32, until: u64) {
        let spot = self.sleepers.before(until, self.now);
        self.sleep_at(id, spot);
    }

    fn sleep_at(&mut self, id: u32, spot: Spot) {
        let flow = &mut self.flows[id as usize];
        if !flow.is(Flag::Clock) {
            flow.set(Flag::Clock);
            self.sleep(spot, Entry::new(id, deadline::ASK));
        }
    }

    /// Inserts a flow into the left-over, at its start tag or at the virtual time.
    #[inline(always)]
    fn join_fair(&mut self, id: u32) {
        let flow = &mut self.flows[id as usize];
        let Some(tag) = flow.tag() else { return };
        let (old, start) = (*tag, self.fair.start(*tag));
        *tag = start;
        if !flow.is(Flag::Fair) {
            flow.clear(Flag::FairOld);
            flow.set(Flag::Fair);
            self.fair.join(&mut self.pool, id, start);
        } else if start != old {
            flow.set(Flag::FairOld);
        }
    }
}

impl Flow {
    /// Whether the flow is a cell with a head and without a limit, its entry is not old, and it
    /// takes the shorter path.
    #[inline(always)]
    fn is_ready_cell(&self) -> bool {
        self.is_just(
            Flag::Waiting,
            [Flag::ClockOld, Flag::Limited, Flag::LongWay],
        ) && matches!(self.kind, Kind::Cell(_))
    }

    /// The deadline of the head, if the head is eligible.
    #[inline(always)]
    fn deadline(&mut self, now: u64) -> Option<u64> {
        let length = self.length();
        match &mut self.kind {
            Kind::Vacant { .. } | Kind::Member(_) => None,
            Kind::Cell(cell) => Some(cell.deadline()),
            Kind::Channel(channel) => Some(channel.plan().1),
            Kind::Slice { slice, .. } | Kind::Server { slice, .. } => {
                let (eligible, deadline) = slice.plan(now);
                (eligible <= now).then_some(deadline)
            }
            Kind::Share(share) => {
                let (eligible, deadline) = share.plan(length)?;
                (eligible <= now && share.gate() <= now).then_some(deadline)
            }
        }
    }

    /// The time at which the contract lets the head go that leaves now.
    #[inline(always)]
    fn eligible(&mut self, now: u64, length: u32, turn: Turn) -> u64 {
        let guaranteed = matches!(turn, Turn::Guaranteed { .. });
        match &mut self.kind {
            Kind::Cell(cell) => cell.eligible(),
            Kind::Slice { slice, .. } if guaranteed => slice.began(now),
            Kind::Channel(channel) => channel.plan().0.min(now),
            Kind::Share(share) => {
                let min = share.plan(length).filter(|_| guaranteed);
                min.map_or(0, |(eligible, _)| eligible).max(share.gate())
            }
            _ => 0,
        }
    }

    /// Accounts for a packet that left.
    #[inline(always)]
    fn sent(&mut self, now: u64, start: u64, cost: u64, length: u32, guaranteed: bool) {
        match &mut self.kind {
            Kind::Cell(cell) => cell.sent(start, length),
            Kind::Slice { slice, .. } if guaranteed => slice.sent(now, cost),
            Kind::Share(share) => share.sent(start, length, guaranteed),
            _ => {}
        }
    }

    /// Advances the start tag by a packet and returns it.
    #[inline(always)]
    fn pay(&mut self, length: u32) -> Option<u64> {
        let weight = u64::from(self.weight());
        let tag = self.tag()?;
        *tag = tag.wrapping_add((u64::from(length) << TAG_DIGITS) / weight);
        Some(*tag)
    }

    #[inline(always)]
    fn tag(&mut self) -> Option<&mut u64> {
        match &mut self.kind {
            Kind::Share(share) => Some(&mut share.tag),
            Kind::Slice { tag, .. } => Some(tag),
            _ => None,
        }
    }

    #[inline(always)]
    fn weight(&self) -> u16 {
        match &self.kind {
            Kind::Share(share) => share.weight.max(1),
            Kind::Slice { weight, .. } => (*weight).max(1),
            _ => 1,
        }
    }
}

impl Line {
    /// Charges a packet that is chosen at `now`. Returns the start of its transmission and its
    /// duration, rounded up.
    #[inline(always)]
    fn charge(&mut self, now: u64, length: u32) -> (u64, u64) {
        let span = self.pace.span(length + self.overhead);
        let free = match self.busy.nanos > now {
            true => self.busy,
            false => Moment::at(now),
        };
        self.set_busy(free.later(span));
        (free.nanos, span.ceil())
    }

    #[inline(always)]
    pub(super) fn set_busy(&mut self, until: Moment) {
        self.busy = until;
        self.opens = until.nanos.saturating_sub(self.ahead);
    }
}

#[inline(always)]
pub(super) fn prefetch(flows: &[Flow], id: u32) {
    if let Some(flow) = flows.get(id as usize) {
        prefetch::first_line(flow);
    }
}

/// The most of [`DUE_PER_CALL`] that a move of a whole chunk uses up, because its flows are
/// prefetched. It uses no more than the chunk's number of entries, so that a call moves
/// [`DUE_PER_CALL`] entries if there are so many.
const DUE_PER_CHUNK: u32 = 8;

/// Binary digits of a start tag for each byte at weight 1.
const TAG_DIGITS: u32 = 26;

//! Chooses the next packet of a [`Scheduler`]. [`Scheduler::next`] moves entries of the calendars
//! whose time has come, chooses a flow, charges its head to the contract and the link, and inserts
//! the flow again if it has another packet. The result is a [`Departure`], the time of the next
//! call, or that a packet has to arrive first. No function of this module fails.

use super::calendar::{BucketRef, DetachedNode, Run};
use super::flow::{Flag, FlowState, ServiceState};
use super::service::{Departure, EarlyOrder, FlowId, Next, Packet, ServedAs};
use super::{
    DROPPED_PER_CALL, DUE_PER_CALL, END_OF_TIME, QueueEntry, Scheduler, deadline, max_width,
};
use crate::prefetch;
use crate::units::{Bytes, Instant};

impl Scheduler {
    /// Chooses the head that leaves now and accounts for it. For each departure the scheduler calls
    /// `next_packet` exactly once, with the flow. `next_packet` returns the packet behind the
    /// departing head, or `None` if the queue becomes empty. A packet longer than
    /// [`Scheduler::longest`] counts as one of that length.
    ///
    /// Returns `None` if no packet may leave now, or if this call has reached its bound of work.
    /// [`Scheduler::poll_timeout`] gives the time of the next call.
    #[inline(always)]
    pub fn poll(
        &mut self,
        now: Instant,
        next_packet: impl FnOnce(FlowId) -> Option<Packet>,
    ) -> Option<Departure> {
        self.advance(now);
        match self.wire.next_decision > self.now {
            true => None,
            false => self.poll_free(next_packet),
        }
    }

    /// [`Scheduler::poll`] for a link that can accept a packet.
    #[inline(never)]
    fn poll_free(
        &mut self,
        next_packet: impl FnOnce(FlowId) -> Option<Packet>,
    ) -> Option<Departure> {
        let only = match self.is_anything_due() {
            true => self.move_due(),
            false => None,
        };
        let first = only.or_else(|| self.take_due());
        match first {
            Some(id) if self.flows[id as usize].is_ready_cell() => {
                self.depart_cell(id, next_packet)
            }
            _ => self.poll_any(first, next_packet),
        }
    }

    /// [`Scheduler::poll`] after the earliest entry `first` of the due has been taken.
    #[inline(never)]
    fn poll_any(
        &mut self,
        first: Option<u32>,
        next_packet: impl FnOnce(FlowId) -> Option<Packet>,
    ) -> Option<Departure> {
        let mut dropped = DROPPED_PER_CALL;
        if let Some((id, deadline)) = self.next_due(first, &mut dropped) {
            if let ServiceState::Server { server, .. } = self.flows[id as usize].service {
                let member = self.next_member(server, &mut dropped)?;
                let served_as = ServedAs::Shared { deadline };
                return Some(self.depart(member, served_as, next_packet));
            }
            return Some(self.depart(id, ServedAs::Guaranteed { deadline }, next_packet));
        }
        if self.wire.early == EarlyOrder::BeforeLeftOver
            && let Some(id) = self.next_early(&mut dropped)
        {
            return Some(self.depart(id, ServedAs::Early, next_packet));
        }
        if let Some(id) = self.next_fair(&mut dropped) {
            if let ServiceState::Server { server, .. } = self.flows[id as usize].service {
                return self.depart_in_left_over(id, server, &mut dropped, next_packet);
            }
            return Some(self.depart(id, ServedAs::LeftOver, next_packet));
        }
        let id = self.next_early(&mut dropped)?;
        Some(self.depart(id, ServedAs::Early, next_packet))
    }

    /// The next time at which [`Scheduler::poll`] may have a departure. `None` if a packet has to
    /// arrive first, or if time ends before. Every later call that takes `&mut self` may change the
    /// result.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let ready = !(self.due.is_empty() && self.fair.is_empty() && self.early.is_empty());
        let waits = match ready {
            true => self.now,
            false => self.sleepers.first_key()?,
        };
        let at = waits.max(self.wire.next_decision).max(self.now);
        (at <= END_OF_TIME.0).then_some(Instant(at))
    }

    /// [`Scheduler::poll`] and [`Scheduler::poll_timeout`] in one call: the packet to send now, or
    /// the time of the next call. An event loop needs no other call to get its packets.
    pub fn next(
        &mut self,
        now: Instant,
        next_packet: impl FnOnce(FlowId) -> Option<Packet>,
    ) -> Next {
        match (self.poll(now, next_packet), self.poll_timeout()) {
            (Some(departure), _) => Next::Send(departure),
            (None, Some(at)) => Next::Wait(at),
            (None, None) => Next::Idle,
        }
    }

    /// Whether an entry of the sleepers or of the early has fallen due.
    #[inline(always)]
    fn is_anything_due(&self) -> bool {
        let due = |bucket: Option<BucketRef>| bucket.is_some_and(|bucket| bucket.key <= self.now);
        due(self.sleepers.peek()) || due(self.early.peek())
    }

    /// Moves entries that have fallen due to the due calendar. If only one flow has fallen due and
    /// the due calendar is empty, it returns that flow instead.
    #[inline(never)]
    fn move_due(&mut self) -> Option<u32> {
        let mut budget = DUE_PER_CALL;
        while budget > 0
            && let Some(bucket) = self.sleepers.peek()
            && bucket.key <= self.now
        {
            if let Some(node) = self.sleepers.detach_node(&mut self.pool, deadline::MEMBER) {
                self.handle_due_node(node, bucket);
                budget = budget.saturating_sub(DUE_PER_NODE.min(node.len()));
                continue;
            }
            let run = self.take_run();
            let others = self.sleepers.peek();
            if run.len() == 1
                && budget == DUE_PER_CALL
                && self.due.is_empty()
                && self.early.is_empty()
                && others.is_none_or(|other| other.key > self.now)
                && run.first().code() < deadline::MEMBER
            {
                return Some(run.first().id());
            }
            budget = budget.saturating_sub(run.len());
            for entry in run {
                self.handle_due_entry(entry, bucket);
            }
        }
        while budget > 0
            && let Some(bucket) = self.early.peek()
            && bucket.key <= self.now
        {
            let entry = self.early.take(&mut self.pool)?;
            self.handle_due_entry(entry, bucket);
            budget -= 1;
        }
        None
    }

    /// Takes the next node of the sleepers.
    #[inline(always)]
    fn take_run(&mut self) -> Run {
        let (flows, due) = (&self.flows, &self.due);
        let prefetch_entry = |entry: QueueEntry, key: u64| {
            // The other flows are prefetched shortly before they are served.
            let bound = deadline::decode(entry.code());
            if entry.code() >= deadline::MEMBER || due.is_passed(key.saturating_add(bound)) {
                prefetch(flows, entry.id());
            }
        };
        match self.prefetch_sleepers || self.sleepers.exceeds_cache() {
            true => self
                .sleepers
                .take_run_with_lookahead(&mut self.pool, prefetch_entry),
            false => self.sleepers.take_run(&mut self.pool),
        }
    }

    /// Moves an entry that has fallen due to the due, makes a member ready, or queues a flow again.
    #[inline(always)]
    fn handle_due_entry(&mut self, entry: QueueEntry, bucket: BucketRef) {
        let id = entry.id();
        if entry.code() == deadline::MEMBER {
            return self.member_eligible(id);
        }
        if entry.code() == deadline::REQUEUE {
            return self.requeue_stale(id);
        }
        let deadline = bucket.key.saturating_add(deadline::decode(entry.code()));
        let to = self.due.bucket_in_order(deadline.max(self.now), self.now);
        self.prefetch_sleepers =
            self.due
                .push_with_lookahead(&mut self.pool, to, QueueEntry::new(id, 0));
        if self.prefetch_sleepers {
            prefetch(&self.flows, id);
            self.upcoming.name(id);
        }
    }

    /// Many entries with one deadline have fallen due.
    #[inline(never)]
    fn handle_due_node(&mut self, node: DetachedNode, bucket: BucketRef) {
        let deadline = bucket.key.saturating_add(deadline::decode(node.code()));
        let to = self.due.bucket_in_order(deadline.max(self.now), self.now);
        let (flows, upcoming) = (&self.flows, &mut self.upcoming);
        let prefetch_entry = |entry: QueueEntry| {
            prefetch(flows, entry.id());
            upcoming.name(entry.id());
        };
        self.prefetch_sleepers = self
            .due
            .attach_node(&mut self.pool, to, node, prefetch_entry);
    }

    /// A flow's entry was taken without a departure. Queues the flow again if it has a head.
    #[cold]
    fn requeue_stale(&mut self, id: u32) {
        let flow = &mut self.flows[id as usize];
        flow.clear(Flag::Timed);
        flow.clear(Flag::TimedStale);
        match flow.is(Flag::HasHead) {
            true => self.enqueue(id),
            false => self.free_if_unused(id),
        }
    }

    /// Takes the entry with the earliest deadline.
    #[inline(always)]
    fn take_due(&mut self) -> Option<u32> {
        let (flows, upcoming) = (&self.flows, &mut self.upcoming);
        let prefetch_entry = |entry: QueueEntry, _| {
            prefetch(flows, entry.id());
            upcoming.name(entry.id());
        };
        let entry = self
            .due
            .take_with_lookahead(&mut self.pool, prefetch_entry)?;
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
            if flow.is(Flag::HasHead)
                && !flow.is(Flag::TimedStale)
                && let Some(deadline) = flow.deadline(now)
            {
                flow.clear(Flag::Timed);
                return Some((id, Instant(deadline)));
            }
            // It has no head, or its head is not eligible now.
            self.requeue_stale(id);
            *dropped -= 1;
        }
        None
    }

    /// The flow with the least start tag that can send from the left-over.
    #[inline(always)]
    fn next_fair(&mut self, dropped: &mut u32) -> Option<u32> {
        while *dropped > 0 && self.due.is_empty() {
            let (flows, upcoming) = (&self.flows, &mut self.upcoming);
            let prefetch_flow = |id: u32| {
                prefetch(flows, id);
                upcoming.name(id);
            };
            let id = self.fair.take(&mut self.pool, prefetch_flow)?;
            let now = self.now;
            let is_limited = self.flows[id as usize].is(Flag::Limited);
            let may_go = !is_limited || self.allowed_from(id) <= now;
            let flow = &mut self.flows[id as usize];
            flow.clear(Flag::InFair);
            let wanted = flow.is(Flag::HasHead)
                && may_go
                && match &mut flow.service {
                    ServiceState::Share(share) => share.allowed_from() <= now,
                    ServiceState::Slice { slice, extra, .. } => *extra && slice.is_spent(now),
                    ServiceState::Channel(channel) => channel.is_best_effort(now),
                    ServiceState::Server { best_effort, .. } => *best_effort,
                    _ => false,
                };
            let stale = flow.is(Flag::FairStale);
            match (wanted, stale) {
                (true, false) => return Some(id),
                (true, true) => self.enqueue_fair(id),
                (false, _) => {
                    flow.clear(Flag::FairStale);
                    self.free_if_unused(id);
                }
            }
            *dropped -= 1;
        }
        None
    }

    /// The flow with the earliest logical arrival among the early. `None` while a flow that comes
    /// before the early ones can send.
    #[inline(always)]
    fn next_early(&mut self, dropped: &mut u32) -> Option<u32> {
        while !self.early.is_empty() {
            let yields_to_left_over = self.wire.early == EarlyOrder::AfterLeftOver;
            let is_behind = !self.due.is_empty() || yields_to_left_over && !self.fair.is_empty();
            if *dropped == 0 || is_behind {
                return None;
            }
            let entry = self.early.take(&mut self.pool)?;
            let id = entry.id();
            let flow = &mut self.flows[id as usize];
            flow.clear(Flag::Timed);
            let stale = flow.is(Flag::TimedStale);
            flow.clear(Flag::TimedStale);
            match (flow.is(Flag::HasHead), stale) {
                (true, false) => return Some(id),
                (true, true) => self.enqueue(id),
                (false, _) => self.free_if_unused(id),
            }
            *dropped -= 1;
        }
        None
    }

    /// Departure of a due cell's head, as `depart` on a shorter path for the most frequent case.
    #[inline(always)]
    fn depart_cell(
        &mut self,
        id: u32,
        next_packet: impl FnOnce(FlowId) -> Option<Packet>,
    ) -> Option<Departure> {
        let now = self.now;
        let flow = &mut self.flows[id as usize];
        let length = flow.length();
        let ServiceState::Cell(cell) = &mut flow.service else {
            return None;
        };
        let deadline = Instant(cell.deadline());
        let (start, _) = self.wire.charge(now, length);
        let departure = Departure {
            flow: FlowId(id),
            length: Bytes(u64::from(length)),
            start: Instant(start),
            end: Instant(self.wire.busy_until.nanos),
            eligible: Instant(cell.eligible()),
            served_as: ServedAs::Guaranteed { deadline },
        };
        cell.sent(start, length);
        let Some(packet) = next_packet(FlowId(id)) else {
            flow.clear(Flag::HasHead);
            flow.clear(Flag::Timed);
            return Some(departure);
        };
        let longest = self.wire.longest.min(cell.longest());
        let bytes = packet.length.0.min(u64::from(longest)) as u32;
        let (eligible, deadline) = cell.plan(bytes);
        let max_width = cell.max_width();
        // A cell that is late may wait for less than the time between two packets. Its wait is
        // rounded as that time is, so that many cells wake together.
        let spacing = cell.spacing(length);
        flow.set_length(bytes);
        if eligible > now
            && let Some(bucket) = self
                .sleepers
                .bucket_not_before_as(spacing, eligible, now, max_width)
        {
            let entry = QueueEntry::new(id, deadline::encode(deadline.saturating_sub(bucket.key)));
            self.sleep(bucket, entry);
        } else {
            flow.clear(Flag::Timed);
            self.enqueue_timed_within(id, eligible, deadline, max_width);
        }
        Some(departure)
    }

    /// Departure of a flow's head.
    #[inline(always)]
    pub(super) fn depart(
        &mut self,
        id: u32,
        served_as: ServedAs,
        next_packet: impl FnOnce(FlowId) -> Option<Packet>,
    ) -> Departure {
        let now = self.now;
        let flow = &mut self.flows[id as usize];
        let length = flow.length();
        let (start, cost) = self.wire.charge(now, length);
        let mut departure = Departure {
            flow: FlowId(id),
            length: Bytes(u64::from(length)),
            start: Instant(start),
            end: Instant(self.wire.busy_until.nanos),
            eligible: Instant(0),
            served_as,
        };
        let longest = self.wire.longest;
        let is_limited = flow.is(Flag::Limited);
        departure.eligible = Instant(flow.eligible(now, length, served_as));
        if is_limited {
            departure.eligible.0 = departure.eligible.0.max(self.allowed_from(id));
        }
        let flow = &mut self.flows[id as usize];
        match served_as {
            ServedAs::Guaranteed { .. } => flow.sent(now, start, cost, length, true),
            ServedAs::LeftOver => {
                flow.sent(now, start, cost, length, false);
                if let Some(tag) = flow.advance_tag(length) {
                    self.fair.served(tag);
                }
                let flow = &mut self.flows[id as usize];
                if let ServiceState::Channel(channel) = &mut flow.service {
                    channel.sent_as_left_over(length);
                    if flow.is(Flag::Timed) {
                        // The next packet may have another logical arrival.
                        self.cancel(id);
                    }
                }
            }
            ServedAs::Early => {}
            ServedAs::Shared { .. } => self.member_sent(id, start, cost, length),
        }
        if is_limited {
            self.charge_limit(id, start, length);
        }
        let flow = &mut self.flows[id as usize];
        match next_packet(FlowId(id)) {
            Some(packet) => {
                let bytes = packet.length.0.min(u64::from(longest)) as u32;
                flow.set_length(bytes.min(flow.service.longest()));
                if is_limited {
                    let length = Bytes(bytes.into());
                    self.arrive_at_limit(id, Packet { length, ..packet }, false);
                } else if let ServiceState::Channel(channel) = &mut flow.service {
                    channel
                        .continue_or_begin(packet.message.map(|arrived| arrived.0), bytes.into());
                }
                self.enqueue(id);
            }
            None => {
                flow.clear(Flag::HasHead);
                if matches!(served_as, ServedAs::Shared { .. }) {
                    self.set_active(id, false);
                }
            }
        }
        match served_as {
            ServedAs::Shared { .. } => self.settle_server(id),
            _ => self.fair.settle(),
        }
        departure
    }

    /// Inserts a flow with a head into the calendars that its contract calls for.
    #[inline(always)]
    pub(super) fn enqueue(&mut self, id: u32) {
        let now = self.now;
        if self.flows[id as usize].is(Flag::Limited) && self.hold_at_limit(id) {
            return;
        }
        let flow = &mut self.flows[id as usize];
        let length = flow.length();
        match &mut flow.service {
            ServiceState::Vacant { .. } => {}
            ServiceState::Cell(cell) => {
                let (eligible, deadline) = cell.plan(length);
                self.enqueue_timed(id, eligible, deadline);
            }
            ServiceState::Slice { slice, extra, .. } => {
                let (eligible, deadline) = slice.plan(now);
                if *extra && eligible > now {
                    self.enqueue_fair(id);
                }
                self.enqueue_timed(id, eligible, deadline);
            }
            ServiceState::Channel(channel) => {
                let (logical, deadline) = channel.plan();
                if channel.is_best_effort(now) {
                    self.enqueue_fair(id);
                }
                self.enqueue_channel(id, logical, deadline);
            }
            ServiceState::Server {
                best_effort: true, ..
            } => self.enqueue_fair(id),
            ServiceState::Server { slice, .. } => {
                let (eligible, deadline) = slice.plan(now);
                self.enqueue_timed(id, eligible, deadline);
            }
            ServiceState::Member(_) => self.enqueue_member(id),
            ServiceState::Share(share) => {
                let allowed_from = share.allowed_from();
                if allowed_from > now {
                    self.cancel(id);
                    return self.sleep_then_requeue(id, allowed_from);
                }
                match share.plan(length) {
                    Some((eligible, deadline)) => {
                        if eligible > now {
                            self.enqueue_fair(id);
                        }
                        self.enqueue_timed(id, eligible, deadline);
                    }
                    None => self.enqueue_fair(id),
                }
            }
        }
    }

    /// Inserts a flow into the sleepers until it is eligible, or into the due if it is.
    #[inline(always)]
    fn enqueue_timed(&mut self, id: u32, eligible: u64, deadline: u64) {
        let max_width = max_width(deadline.saturating_sub(eligible));
        self.enqueue_timed_within(id, eligible, deadline, max_width);
    }

    /// As `enqueue_timed`, with `max_width` as the largest width of the bucket (binary logarithm).
    #[inline(always)]
    fn enqueue_timed_within(&mut self, id: u32, eligible: u64, deadline: u64, max_width: u32) {
        let flow = &mut self.flows[id as usize];
        if flow.is(Flag::Timed) {
            return;
        }
        let now = self.now;
        if eligible <= now {
            flow.set(Flag::Timed);
            let to = self.due.bucket_in_order(deadline.max(now), now);
            self.due
                .push_with_lookahead(&mut self.pool, to, QueueEntry::new(id, 0));
            return;
        }
        let Some(bucket) = self.sleepers.bucket_not_before(eligible, now, max_width) else {
            return self.sleep_before(id, eligible);
        };
        flow.set(Flag::Timed);
        let code = deadline::encode(deadline.saturating_sub(bucket.key));
        self.sleep(bucket, QueueEntry::new(id, code));
    }

    /// Inserts an entry into the sleepers.
    #[inline(always)]
    pub(super) fn sleep(&mut self, bucket: BucketRef, entry: QueueEntry) {
        let inserted = self.sleepers.push_deferred(&mut self.pool, bucket, entry);
        if let Some((id, position)) = inserted {
            self.flows[id as usize].position = position;
        }
    }

    /// As `enqueue_timed` for a channel, which may be among the early first.
    fn enqueue_channel(&mut self, id: u32, logical: u64, deadline: u64) {
        let now = self.now;
        let horizon = self.wire.horizon;
        let flow = &mut self.flows[id as usize];
        if horizon == 0 || logical <= now || flow.is(Flag::Timed) {
            return self.enqueue_timed(id, logical, deadline);
        }
        if logical - now > horizon {
            return self.sleep_then_requeue(id, logical - horizon);
        }
        let max_width = max_width(deadline.saturating_sub(logical));
        let Some(bucket) = self.early.bucket_not_before(logical, now, max_width) else {
            return self.enqueue_timed(id, logical, deadline);
        };
        flow.set(Flag::Timed);
        let code = deadline::encode(deadline.saturating_sub(bucket.key));
        self.early
            .push(&mut self.pool, bucket, QueueEntry::new(id, code));
    }

    /// Inserts a flow into the sleepers until a time. Then the flow is queued again.
    pub(super) fn sleep_then_requeue(&mut self, id: u32, until: u64) {
        match self.sleepers.bucket_not_before(until, self.now, u32::MAX) {
            Some(bucket) => self.sleep_at(id, bucket),
            None => self.sleep_before(id, until),
        }
    }

    /// As `sleep_then_requeue`, but until shortly before the time, because no bucket is near
    /// enough.
    #[cold]
    pub(super) fn sleep_before(&mut self, id: u32, until: u64) {
        let bucket = self.sleepers.bucket_before(until, self.now);
        self.sleep_at(id, bucket);
    }

    fn sleep_at(&mut self, id: u32, bucket: BucketRef) {
        let flow = &mut self.flows[id as usize];
        if !flow.is(Flag::Timed) {
            flow.set(Flag::Timed);
            self.sleep(bucket, QueueEntry::new(id, deadline::REQUEUE));
        }
    }

    /// Inserts a flow into the left-over, at its start tag or at the virtual time.
    #[inline(always)]
    fn enqueue_fair(&mut self, id: u32) {
        let flow = &mut self.flows[id as usize];
        let Some(tag) = flow.tag() else { return };
        let (old, start) = (*tag, self.fair.start(*tag));
        *tag = start;
        if !flow.is(Flag::InFair) {
            flow.clear(Flag::FairStale);
            flow.set(Flag::InFair);
            self.fair.join(&mut self.pool, id, start);
        } else if start != old {
            flow.set(Flag::FairStale);
        }
    }
}

impl FlowState {
    /// Whether the flow is a cell with a head and without a limit, its entry is not stale, and it
    /// takes the shorter path.
    #[inline(always)]
    fn is_ready_cell(&self) -> bool {
        self.is_just(
            Flag::HasHead,
            [Flag::TimedStale, Flag::Limited, Flag::GeneralPath],
        ) && matches!(self.service, ServiceState::Cell(_))
    }

    /// The deadline of the head, if the head is eligible.
    #[inline(always)]
    fn deadline(&mut self, now: u64) -> Option<u64> {
        let length = self.length();
        match &mut self.service {
            ServiceState::Vacant { .. } | ServiceState::Member(_) => None,
            ServiceState::Server {
                best_effort: true, ..
            } => None,
            ServiceState::Cell(cell) => Some(cell.deadline()),
            ServiceState::Channel(channel) => {
                let (logical, deadline) = channel.plan();
                (logical <= now).then_some(deadline)
            }
            ServiceState::Slice { slice, .. } | ServiceState::Server { slice, .. } => {
                let (eligible, deadline) = slice.plan(now);
                (eligible <= now).then_some(deadline)
            }
            ServiceState::Share(share) => {
                let (eligible, deadline) = share.plan(length)?;
                (eligible <= now && share.allowed_from() <= now).then_some(deadline)
            }
        }
    }

    /// The eligible time of the head, which leaves now; 0 if the contract sets none.
    #[inline(always)]
    fn eligible(&mut self, now: u64, length: u32, served_as: ServedAs) -> u64 {
        let guaranteed = matches!(served_as, ServedAs::Guaranteed { .. });
        match &mut self.service {
            ServiceState::Cell(cell) => cell.eligible(),
            ServiceState::Slice { slice, .. } if guaranteed => slice.began(now),
            ServiceState::Channel(channel) => channel.plan().0.min(now),
            ServiceState::Share(share) => {
                let min = share.plan(length).filter(|_| guaranteed);
                min.map_or(0, |(eligible, _)| eligible)
                    .max(share.allowed_from())
            }
            _ => 0,
        }
    }

    /// Accounts for a packet that left.
    #[inline(always)]
    fn sent(&mut self, now: u64, start: u64, cost: u64, length: u32, guaranteed: bool) {
        match &mut self.service {
            ServiceState::Cell(cell) => cell.sent(start, length),
            ServiceState::Slice { slice, .. } if guaranteed => slice.sent(now, cost),
            ServiceState::Share(share) => share.sent(start, length, guaranteed),
            _ => {}
        }
    }
}

#[inline(always)]
pub(super) fn prefetch(flows: &[FlowState], id: u32) {
    if let Some(flow) = flows.get(id as usize) {
        prefetch::first_line(flow);
    }
}

/// The most of [`DUE_PER_CALL`] that a move of a whole node uses up, because its flows are
/// prefetched. It uses no more than the node's number of entries, so that a call moves
/// [`DUE_PER_CALL`] entries if there are so many.
const DUE_PER_NODE: u32 = 8;

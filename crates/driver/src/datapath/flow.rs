//! One flow of the datapath: takes records from its rings, sends them, delivers received packets,
//! and counts. A violation of the ring protocol is returned as a [`ProtocolViolation`]; nothing
//! else fails.

use std::mem::offset_of;

use netnice_api::driver::MIN_PACKET_BYTES;
use netnice_core::prefetch;

use super::departures::ChosenPacket;
use super::tcp_reset::SentSegments;
use super::*;
use crate::code_points::{CodePoints, ContractKind};
use crate::receive_budget::shared::FlowBudget;

/// The parameters of a new flow.
#[derive(Clone, Debug)]
pub struct FlowParameters {
    /// The sizes of the flow's memory.
    pub shape: Shape,
    /// The scheduler's service for the flow's contract.
    pub service: Service,
    /// The packets that the flow may send.
    pub sender: crate::template::Sender,
    /// The packets that the flow receives.
    pub matches: Vec<Match>,
    /// Which fragments the flow receives.
    pub reassembly: Reassembly,
    /// The flow's receive budget; `None`: unlimited.
    pub receive_budget: Option<ReceiveBudget>,
}

/// A flow that was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenedFlow {
    /// The flow's number.
    pub flow: FlowNo,
    /// The flow's place in its program's memory.
    pub location: FlowLocation,
}

/// How a chosen packet leaves.
#[derive(Clone, Copy)]
pub(super) struct Leaving<'a> {
    /// The time at which the packet was reported to the scheduler.
    pub(super) since: Instant,
    pub(super) departure: &'a Departure,
    pub(super) code_points: &'a CodePoints,
    /// Length in bytes of the longest packet of joined segments.
    pub(super) most_joined: usize,
}

/// The outcome of a chosen packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendResult {
    /// Handed to the NIC.
    Sent,
    /// Refused: the flow may not send it, it is too long, or the flow has no next hop.
    Refused,
    /// Not sent for a reason of the link: it is down, or the NIC has no room.
    NotSent,
}

/// The outcome of a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    /// Delivered to the program.
    Delivered,
    /// Lost: the flow had no empty record, no room in its deliver ring, or a record that is too
    /// short.
    Lost,
    /// Dropped: the flow cannot pay for received packets until this time.
    OverBudget(Instant),
    /// Neither delivered nor counted: the flow is a connection, and its program has not primed a
    /// record yet.
    Passed,
}

/// The counters of a flow. Each taken record except the head, and each segment of a record of
/// segments, is counted in one of `sent`, `forbidden`, `too_long` and `no_link`, and each received
/// packet in one of `delivered`, `no_buffer`, `too_short` and `over_budget`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct FlowCounters {
    /// Packets handed to the NIC.
    pub sent: u64,
    /// Bytes of these packets.
    pub sent_bytes: u64,
    /// Sum of the times from when a sent packet became the head until it was sent, in ns.
    pub waited_sum: u64,
    /// The longest of these times, in ns.
    pub waited_most: u64,
    /// Sent packets by lateness. Lateness counts from the time at which the packet was the head and
    /// its contract permitted it to leave. `[0]` counts those of less than 1 µs, `[k]` those of
    /// 2^(k-1) µs or more and less than 2^k µs, and the last entry also all later ones.
    pub lateness: [u64; LATENESS],
    /// Packets that the template forbade.
    pub forbidden: u64,
    /// Packets longer than the flow may send.
    pub too_long: u64,
    /// Packets that were not sent because there was no link, no next hop, or no room in the NIC.
    pub no_link: u64,
    /// Packets received for the flow, including those that XDP dropped.
    pub received: u64,
    /// Packets delivered to the program.
    pub delivered: u64,
    /// Bytes of these packets.
    pub delivered_bytes: u64,
    /// Received packets that were lost because the flow had no empty record, or no room in its
    /// deliver ring.
    pub no_buffer: u64,
    /// Received packets that were lost because the empty record was too short.
    pub too_short: u64,
    /// Received packets that were dropped because the flow could not pay for them.
    pub over_budget: u64,
    /// Fragments that the flow did not get because one before them was missing. `received` does not
    /// contain them.
    pub out_of_order: u64,
    /// The charge for received packets, in ns of the driver's time.
    pub receiving: u64,
    /// The end of the time for which the flow cannot pay for received packets, as computed at the
    /// last one that was dropped for that reason.
    pub suspended_until: Instant,
}

/// Number of entries of [`FlowCounters::lateness`]; the last but one ends at 2^19 µs (0.5 s).
pub(crate) const LATENESS: usize = 21;

impl FlowCounters {
    /// Adds the classifier's counters of the flow.
    pub(super) fn with_classifier(
        mut self,
        received: Option<crate::demux::DemuxFlowCounters>,
    ) -> FlowCounters {
        self.out_of_order = received.map_or(0, |received| received.out_of_order);
        self
    }

    pub(super) fn count_sent(&mut self, bytes: usize, since: Instant, departure: &Departure) {
        self.sent += 1;
        self.sent_bytes += bytes as u64;
        let start = departure.start.0;
        let waited = start.saturating_sub(since.0);
        self.waited_sum += waited;
        self.waited_most = self.waited_most.max(waited);
        let late = start.saturating_sub(since.0.max(departure.eligible.0));
        // Division by 1000 is a multiplication.
        let entry = (u64::BITS - (late / 1000).leading_zeros()) as usize;
        self.lateness[entry.min(LATENESS - 1)] += 1;
    }
}

/// A flow; see the module.
///
/// With many flows, the time of a packet is that of the cache lines of its flow which come from
/// memory. So the fields are in the order in which a sent packet needs them: those to choose it,
/// then those to check and count it, then the others.
#[repr(C, align(64))]
pub(super) struct FlowState {
    pub(super) id: FlowId,
    pub(super) program: ProgramNo,
    is_ignored: bool,
    /// The driver takes no further record to send.
    is_withdrawn: bool,
    /// The flow's rings moved in this iteration.
    touched: bool,
    pub(super) has_head: bool,
    /// A record became its head since [`FlowState::take_new_head`] was last called.
    has_new_head: bool,
    /// Frames have a next hop.
    pub(super) has_next_hop: bool,
    /// `connection` is `Some`.
    is_connection: bool,
    /// Its segments may leave joined in one packet.
    pub(super) may_join: bool,
    /// The kind of its contract, for its code point.
    pub(super) kind: ContractKind,
    /// The class of the link's server that its contract names.
    pub(super) class: Option<u8>,
    /// Length in bytes of the longest packet that the flow can send.
    pub(super) longest: usize,
    /// When the scheduler got the head.
    pub(super) head_since: Instant,
    /// The record that the scheduler holds, if `has_head`.
    head: Record,
    /// Of a head of segments: the part that the scheduler holds.
    head_part: usize,
    /// A part of the record of segments that leaves was not sent, and why.
    pub(super) unsent: Option<Status>,
    /// After a refused packet no record is taken until then ([`super::refused`]).
    pub(super) paused_until: Option<Instant>,
    pub(super) ring: netnice_ring::driver::DriverRings,
    pub(super) template: Template,
    /// How late a packet may leave without a correction of the schedule. The largest value: at any
    /// time, since the flow has no cell contract.
    pub(super) tolerance: Nanos,
    pub(super) counters: FlowCounters,
    /// Length in bytes of the longest packet that the contract can let go.
    contract_limit: usize,
    pub(super) budget: Option<FlowBudget>,
    /// The offset of the header of TCP in the frames of a flow that is a connection, and what was
    /// sent of it.
    pub(super) connection: Option<(usize, SentSegments)>,
}

/// Prefetches what it takes to choose a packet of a flow, and to take one from its ring.
#[inline(always)]
pub(super) fn prefetch_choice(flow: &Option<FlowState>) {
    const END: usize = offset_of!(FlowState, ring) + netnice_ring::driver::DriverRings::TRANSMIT;
    prefetch::bytes(flow, 0..END);
}

/// Prefetches what it takes to check and to count a packet of a flow.
#[inline(always)]
pub(super) fn prefetch_sending(flow: &Option<FlowState>) {
    const END: usize = offset_of!(FlowState, counters) + offset_of!(FlowCounters, lateness);
    prefetch::bytes(flow, offset_of!(FlowState, template)..END);
}

impl FlowState {
    /// A flow without a head record. `tolerance` is how late a packet may leave without a
    /// correction of the schedule. With a `budget` of `None` the receive time is not limited.
    pub(super) fn new(
        id: FlowId,
        program: ProgramNo,
        ring: netnice_ring::driver::DriverRings,
        template: Template,
        service: &Service,
        budget: Option<FlowBudget>,
    ) -> FlowState {
        let connection = template.connection();
        FlowState {
            may_join: template.is_tcp() && may_join(service.into()),
            is_connection: connection.is_some(),
            connection: connection.map(|at| (at, SentSegments::default())),
            id,
            program,
            ring,
            contract_limit: usize::MAX,
            longest: template.longest(),
            template,
            head: Record::default(),
            head_part: 0,
            unsent: None,
            has_head: false,
            head_since: Instant(0),
            paused_until: None,
            has_next_hop: true,
            is_ignored: false,
            is_withdrawn: false,
            tolerance: service.tolerance(),
            kind: service.into(),
            budget,
            class: None,
            touched: false,
            has_new_head: false,
            counters: FlowCounters::default(),
        }
    }

    /// The flow's program was disconnected: the flow is ignored from now on.
    pub(super) fn ignore(&mut self) {
        self.is_ignored = true;
    }

    /// True after [`FlowState::ignore`].
    #[inline]
    pub(super) fn is_ignored(&self) -> bool {
        self.is_ignored
    }

    /// True after [`FlowState::withdraw`].
    pub(super) fn is_withdrawn(&self) -> bool {
        self.is_withdrawn
    }

    /// What was sent of the flow's connection, and the flow's template; `None` if it is no
    /// connection.
    pub(super) fn sent_segments(&self) -> Option<(&SentSegments, &Template)> {
        let (_, sent) = self.connection.as_ref()?;
        Some((sent, &self.template))
    }

    /// Returns the head to the program unsent, and takes no further record to send.
    pub(super) fn withdraw(&mut self) {
        self.is_withdrawn = true;
        // The entry in the list of paused flows is obsolete.
        self.paused_until = None;
        if std::mem::take(&mut self.has_head) {
            self.counters.no_link += match self.head.has_segments() {
                true => (self.head.pairs().len() - self.head_part) as u64,
                false => 1,
            };
            self.unsent = None;
            self.ring.give_back(&self.head, Status::NO_LINK, 0);
        }
    }

    /// True if the flow takes a record to send as soon as there is one.
    #[inline]
    pub(super) fn wants_head(&self) -> bool {
        let is_blocked = self.is_ignored || self.is_withdrawn;
        !is_blocked && !self.has_head && self.paused_until.is_none()
    }

    /// True the first time in an iteration.
    pub(super) fn touch(&mut self) -> bool {
        !std::mem::replace(&mut self.touched, true)
    }

    /// Publishes the moved indices of the flow's rings. Returns true if its notice is to be raised
    /// and the program notified.
    pub(super) fn publish_indices(&mut self) -> bool {
        self.touched = false;
        self.ring.publish_indices()
    }

    /// Whether a record became the head of the flow since the last call.
    pub(super) fn take_new_head(&mut self) -> bool {
        std::mem::take(&mut self.has_new_head)
    }

    /// Copies the head to `departing`, which has no pairs if there is none, and takes the next
    /// record as the new head; of a head of segments the next part. Returns that as the scheduler's
    /// packet, or `None` if there is none. Fails if the program broke a rule; the flow has no head
    /// then.
    #[inline]
    pub(super) fn replace_head(
        &mut self,
        (before, departing): (Option<&ChosenPacket>, &mut ChosenPacket),
        now: Instant,
    ) -> Result<Option<Packet>, ProtocolViolation> {
        departing.parts = Parts::default();
        if self.has_head && self.head.has_segments() {
            let (begin, end) = (self.head_part, self.head_part + 1);
            departing.parts = Parts { begin, end };
            // A part that joins the one before it needs no copy of the record.
            if !before.is_some_and(|before| before.precedes(self.id, begin)) || !self.may_join {
                departing.record.copy_from(&self.head);
            }
            if end < self.head.pairs().len() {
                self.head_part = end;
                return Ok(Some(self.packet(now, Instant(0))));
            }
        } else {
            departing.record.copy_from(match self.has_head {
                true => &self.head,
                false => &Record::NONE,
            });
        }
        self.take_head()?;
        self.has_new_head |= self.has_head;
        // The record arrived while the one before it waited. If the program does not state the
        // time, its message must not count as later than that.
        Ok(self.has_head.then(|| self.packet(now, Instant(0))))
    }

    /// Takes the next record as the head. The flow has none if the ring is empty or records cannot
    /// be returned. A record that cannot be sent at all is taken too: it waits for its time on the
    /// link as any other. Otherwise a flow could make the driver read any number of them. Fails if
    /// the program broke a rule.
    #[inline]
    fn take_head(&mut self) -> Result<(), ProtocolViolation> {
        self.has_head = false;
        self.has_head = self.ring.take_into(&mut self.head)? == Found::Record;
        self.head_part = 0;
        Ok(())
    }

    /// The flow's program was disconnected: its head is dropped.
    pub(super) fn drop_head(&mut self) {
        self.has_head = false;
    }

    /// The scheduler's view of the head, which is found at `now`: a packet of its length, but at
    /// least [`MIN_PACKET_BYTES`] and no longer than the flow can send. A message arrived when the
    /// program says, but not later than now. Without a word of the program it arrived at
    /// `unstated`. (The scheduler bounds how early a message can have arrived.)
    fn packet(&self, now: Instant, unstated: Instant) -> Packet {
        let record = &self.head;
        let stated = record.arrival().map(|arrival| Instant(arrival).min(now));
        let arrived = stated.unwrap_or(unstated);
        let bytes = match record.has_segments() {
            true => record.pairs()[self.head_part].length as usize,
            false => record.bytes(),
        };
        let length = Bytes(bytes as u64).max(Bytes(MIN_PACKET_BYTES));
        let length = length.min(Bytes(self.longest as u64));
        match record.begins_message() {
            true => Packet::first(length, arrived),
            false => Packet::new(length),
        }
    }

    /// Takes over what depends on a changed contract, except its longest packet.
    pub(super) fn set_service(&mut self, service: &Service) {
        (self.tolerance, self.kind) = (service.tolerance(), service.into());
        self.may_join = self.template.is_tcp() && may_join(self.kind);
    }

    /// Tells the program whether its segments can leave joined, if the link can join any.
    pub(super) fn tell_joins(&self, link_joins: bool) {
        self.ring.set_joins(link_joins && self.may_join);
    }

    /// Sets the longest packet that the contract can let go.
    pub(super) fn set_contract_limit(&mut self, longest: Bytes) {
        self.contract_limit = usize::try_from(longest.0).unwrap_or(usize::MAX);
        self.longest = self.contract_limit.min(self.template.longest());
    }

    /// Takes a new head from the ring, if there is a record. Fails if the program broke a rule.
    pub(super) fn find_head(
        &mut self,
        scheduler: &mut Scheduler,
        now: Instant,
    ) -> Result<(), ProtocolViolation> {
        self.take_head()?;
        if self.has_head {
            self.has_new_head = true;
            let packet = self.packet(now, scheduler.unread_since(now));
            self.give_head(scheduler, packet, now);
        }
        Ok(())
    }

    /// The end of its pause: gives its head to the scheduler again, or takes one from the ring.
    /// Fails if the program broke a rule.
    pub(super) fn resume(
        &mut self,
        scheduler: &mut Scheduler,
        now: Instant,
    ) -> Result<(), ProtocolViolation> {
        if !self.has_head {
            return self.find_head(scheduler, now);
        }
        let packet = self.packet(now, now);
        self.give_head(scheduler, packet, now);
        Ok(())
    }

    /// Gives the head to the scheduler, which has none of this flow.
    fn give_head(&mut self, scheduler: &mut Scheduler, packet: Packet, now: Instant) {
        match scheduler.handle_head(self.id, packet, now) {
            Ok(()) => self.head_since = now,
            // The length is within the scheduler's limit, so this does not happen; a lost packet is
            // better than a stuck flow.
            Err(_) => {
                self.has_head = false;
                self.counters.too_long += 1;
                self.ring.give_back(&self.head, Status::TOO_LONG, 0);
            }
        }
    }

    /// Sends a record that was the head: copies it, checks the copy, and returns the record to the
    /// program. Without a `sink` there is no link.
    pub(super) fn send(
        &mut self,
        head: &Record,
        sink: Option<&mut impl FrameSink>,
        leaving: Leaving<'_>,
    ) -> SendResult {
        let Leaving {
            since, departure, ..
        } = leaving;
        if head.bytes() > self.longest {
            self.counters.too_long += 1;
            self.ring.give_back(head, Status::TOO_LONG, 0);
            return SendResult::Refused;
        }
        let no_next_hop = sink.is_some() && !self.has_next_hop;
        let (ring, template) = (&self.ring, &self.template);
        let most_joined = self.most_joined(leaving);
        // The notes of a connection are far from what other flows' packets need.
        let mut connection = match self.is_connection {
            true => self.connection.as_mut(),
            false => None,
        };
        let code_point = leaving.code_points.of(self.kind);
        let sink = sink.filter(|_| self.has_next_hop);
        let done = sink.and_then(|sink| {
            sink.send_segment(most_joined, |frame| {
                let length = ring.read(head, frame);
                let checked = template.check_and_mark(&mut frame[..length], code_point);
                if let (Some((at, sent)), Ok(checked)) = (&mut connection, &checked) {
                    sent.note(checked.bytes(), *at);
                }
                checked
            })
        });
        let (status, stamp, result) = match done {
            Some(Ok(())) => {
                self.counters.count_sent(head.bytes(), since, departure);
                (Status::DONE, departure.start.0, SendResult::Sent)
            }
            Some(Err(_)) => {
                self.counters.forbidden += 1;
                (Status::FORBIDDEN, 0, SendResult::Refused)
            }
            // No link, no next hop, or no room in the NIC.
            None => {
                self.counters.no_link += 1;
                let result = match no_next_hop {
                    true => SendResult::Refused,
                    false => SendResult::NotSent,
                };
                (Status::NO_LINK, 0, result)
            }
        };
        self.ring.give_back(head, status, stamp);
        result
    }

    /// Length in bytes of the longest packet in which the flow's segments may leave; 0: each alone.
    pub(super) fn most_joined(&self, leaving: Leaving<'_>) -> usize {
        match self.may_join {
            true => leaving.most_joined,
            false => 0,
        }
    }

    /// Latest departure time that needs no correction of the schedule, for a packet that is chosen
    /// now; `None` if the flow has no cell contract. A packet that is already later than its
    /// contract tolerates counts from now.
    #[inline]
    pub(super) fn latest_departure(&self, eligible: Instant, now: Instant) -> Option<Instant> {
        latest_departure(self.tolerance, eligible, now)
    }

    /// Sets the addresses and the longest frame; see [`Datapath::readdress`].
    pub(super) fn readdress(&mut self, mac: Mac, next_hop: Option<Mac>, longest: usize) {
        self.template.readdress(mac, next_hop, longest);
        self.longest = self.contract_limit.min(self.template.longest());
        self.has_next_hop = next_hop.is_some() || self.template.program_sets_next_hop();
    }

    /// The longest frame on the flow's route, with the Ethernet header.
    pub(super) fn longest_frame(&self) -> usize {
        self.template.longest()
    }

    /// Delivers a received packet, or counts why it was not delivered. With `may_pass`, a
    /// connection whose program has never primed a record passes the packet instead. Fails if the
    /// program broke a rule.
    pub(super) fn deliver(
        &mut self,
        packet: &[u8],
        cost: &mut Cost,
        among: (&mut SharedBudget, &mut ActiveSet),
        may_pass: bool,
        now: Instant,
    ) -> Result<Delivery, ProtocolViolation> {
        self.counters.received += 1;
        let (lookup, delivery) = (cost.lookup(), cost.delivery(packet.len()));
        self.counters.receiving += lookup.0;
        if let Some(budget) = &mut self.budget
            && let Err(until) = budget.admit(among, (lookup, delivery), (self.counters.sent, now))
        {
            self.counters.over_budget += 1;
            self.ring.count_lost(Loss::OverBudget);
            return Ok(Delivery::OverBudget(until));
        }
        self.counters.receiving += delivery.0;
        let Taken::Record(record) = self.ring.take_empty()? else {
            let was_primed = self.counters.delivered + self.counters.too_short > 0;
            if may_pass && self.is_connection && !was_primed {
                self.counters.received -= 1;
                return Ok(Delivery::Passed);
            }
            self.counters.no_buffer += 1;
            self.ring.count_lost(Loss::NoBuffer);
            return Ok(Delivery::Lost);
        };
        if record.bytes() < packet.len() {
            self.counters.too_short += 1;
            self.ring.count_lost(Loss::TooLong);
            self.ring.deliver(record, 0, Status::UNUSED, 0);
            return Ok(Delivery::Lost);
        }
        self.ring.write(&record, 0, packet);
        self.ring.deliver(record, packet.len(), Status::DONE, now.0);
        self.counters.delivered += 1;
        self.counters.delivered_bytes += packet.len() as u64;
        Ok(Delivery::Delivered)
    }

    /// The flow has a receive budget, and less than half of it or of the shared budget is left.
    #[inline]
    pub(super) fn is_nearly_exhausted(&self, shared: &SharedBudget) -> bool {
        let budget = self.budget.as_ref();
        budget.is_some_and(|budget| budget.is_nearly_exhausted() || shared.is_nearly_exhausted())
    }

    /// Counts received packets that XDP dropped.
    pub(super) fn count_dropped(&mut self, packets: u64) {
        self.counters.received += packets;
        self.counters.over_budget += packets;
        self.ring.count_lost_many(Loss::OverBudget, packets);
    }

    /// Panics if the state of the flow contradicts itself. For tests.
    pub(super) fn invariants(&self) {
        self.ring.invariants();
        let counters = self.counters;
        let lost = counters.no_buffer + counters.too_short + counters.over_budget;
        assert_eq!(counters.received, counters.delivered + lost, "{counters:?}");
    }
}

/// Whether segments under a contract of this kind may leave together: not where each packet has a
/// time of its own.
fn may_join(kind: ContractKind) -> bool {
    !matches!(kind, ContractKind::Cell | ContractKind::Channel)
}

/// As [`FlowState::latest_departure`], for a contract with this tolerance.
#[inline]
pub(super) fn latest_departure(
    tolerance: Nanos,
    eligible: Instant,
    now: Instant,
) -> Option<Instant> {
    let decided = now.0.checked_add(tolerance.0)?;
    let planned = eligible.0.saturating_add(tolerance.0);
    Some(Instant(if now.0 < planned { planned } else { decided }))
}

/// Number of flows that can be opened without moving others in memory. Untouched pages take no
/// memory.
pub(super) const RESERVED_FLOWS: usize = 65_536;

//! One flow, between its rings and the rest of the turn.

use netnice_api::driver::SHORTEST;

use super::*;
use crate::share::pool::Member;

/// What a flow is opened with.
#[derive(Clone, Debug)]
pub struct Open {
    /// Its memory.
    pub shape: Shape,
    /// How it is served.
    pub service: Service,
    /// What it may send.
    pub sender: crate::template::Sender,
    /// What it receives.
    pub matches: Vec<Match>,
    /// What it wants of datagrams in parts.
    pub reassembly: Reassembly,
    /// What it may use of the driver's time for receiving. Nothing: all that there is.
    pub share: Option<Share>,
}

/// A flow that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Its number.
    pub flow: FlowNo,
    /// Where it lies in its program's memory.
    pub place: Place,
}

/// What became of a packet that came for a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handed {
    /// The program has it.
    Over,
    /// The flow had no buffer for it.
    Lost,
    /// The flow had no share of the driver's time for it, and will not have until then.
    Cut(Instant),
}

/// What was counted of a flow. Every record that was taken is sent, forbidden, too long, without a link, or
/// its head; every packet that was received is delivered or lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets that were handed to the card.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Packets that its template forbade.
    pub forbidden: u64,
    /// Packets longer than it may send.
    pub too_long: u64,
    /// Packets while there was no link or no next hop.
    pub no_link: u64,
    /// Packets that came for it.
    pub received: u64,
    /// Those that it got.
    pub delivered: u64,
    /// Their bytes.
    pub delivered_bytes: u64,
    /// Those for which it had no buffer.
    pub no_buffer: u64,
    /// Those that its buffer was too short for.
    pub too_short: u64,
    /// Those that it had no share of the driver's time for.
    pub over_share: u64,
    /// Parts of datagrams that it did not get, since one before them was missing. They are not among those that came for it.
    pub out_of_order: u64,
    /// What the packets that came took of the driver's time, in ns: what it was charged.
    pub receiving: u64,
    /// How long heads waited until they were sent, in ns.
    pub waited_sum: u64,
    /// The longest of them.
    pub waited_most: u64,
    /// How late packets left after their contract let them go and they were there: `[k]` counts those of less than
    /// 2^k µs and no less than the half of that, the last one all that were later.
    pub lateness: [u64; LATENESS],
}

/// The last but one ends at half a second.
pub const LATENESS: usize = 21;

impl Counters {
    /// With what was counted of the flow where frames are told apart.
    pub(super) fn beside(mut self, received: Option<crate::demux::FlowCounters>) -> Counters {
        self.out_of_order = received.map_or(0, |received| received.out_of_order);
        self
    }

    fn count_sent(&mut self, bytes: usize, since: Instant, departure: &Departure) {
        self.sent += 1;
        self.sent_bytes += bytes as u64;
        let start = departure.start.0;
        let waited = start.saturating_sub(since.0);
        self.waited_sum += waited;
        self.waited_most = self.waited_most.max(waited);
        let late = start.saturating_sub(since.0.max(departure.eligible.0));
        // Division by 1000 is a multiplication.
        let place = (u64::BITS - (late / 1000).leading_zeros()) as usize;
        self.lateness[place.min(LATENESS - 1)] += 1;
    }
}

/// See the module.
pub(super) struct Flow {
    pub(super) id: FlowId,
    pub(super) program: ProgramNo,
    pub(super) ring: netnice_ring::driver::Flow,
    template: Template,
    /// Bytes of the longest packet that its contract can let go, and of the longest that it can send at all.
    contract: usize,
    longest: usize,
    /// What the scheduler knows of it.
    pub(super) head: Option<Record>,
    /// When the scheduler was told of it.
    pub(super) since: Instant,
    /// There is a station that its frames go to.
    reaches: bool,
    silent: bool,
    /// How late a packet may leave without a word to the scheduler. The most there can be: it does not matter.
    pub(super) tolerance: Nanos,
    share: Option<Member>,
    /// Its rings moved in this turn.
    touched: bool,
    /// A record of it became its head, and nobody asked whether.
    brought: bool,
    pub(super) counters: Counters,
}

impl Flow {
    pub(super) fn new(
        id: FlowId,
        program: ProgramNo,
        ring: netnice_ring::driver::Flow,
        template: Template,
        tolerance: Nanos,
        share: Option<Member>,
    ) -> Flow {
        Flow {
            id,
            program,
            ring,
            contract: usize::MAX,
            longest: template.longest(),
            template,
            head: None,
            since: Instant(0),
            reaches: true,
            silent: false,
            tolerance,
            share,
            touched: false,
            brought: false,
            counters: Counters::default(),
        }
    }

    /// Its program was expelled: nothing of it is looked at any more.
    pub(super) fn silence(&mut self) {
        self.silent = true;
    }

    #[inline]
    pub(super) fn is_silent(&self) -> bool {
        self.silent
    }

    /// True the first time in a turn.
    pub(super) fn touch(&mut self) -> bool {
        !std::mem::replace(&mut self.touched, true)
    }

    pub(super) fn publish(&mut self) -> bool {
        self.touched = false;
        self.ring.publish()
    }

    /// Whether a record of it became its head since this was asked last.
    pub(super) fn brought(&mut self) -> bool {
        std::mem::take(&mut self.brought)
    }

    /// The record behind its head takes the head's place.
    #[inline]
    pub(super) fn follow(&mut self, behind: Option<Record>) -> Option<Record> {
        self.brought |= behind.is_some();
        std::mem::replace(&mut self.head, behind)
    }

    /// The next record. What cannot be sent at all is one too: it waits for its time on the link like any other, and comes back
    /// then. Else a flow of any contract could have the driver look at as many of them as it likes.
    #[inline]
    pub(super) fn next_record(&mut self) -> Result<Option<Record>, Breach> {
        match self.ring.take()? {
            Taken::Record(record) => Ok(Some(record)),
            Taken::Empty | Taken::NoRoom => Ok(None),
        }
    }

    /// What the scheduler is told of a record that came then: a packet of its length, and no longer than the flow can send.
    pub(super) fn packet(&self, record: &Record, came: Instant) -> Packet {
        let length = Bytes(record.bytes() as u64).max(Bytes(SHORTEST));
        let length = length.min(Bytes(self.longest as u64));
        match record.begins_message() {
            true => Packet::first(length, came),
            false => Packet::new(length),
        }
    }

    /// The contract lets no longer packet go.
    pub(super) fn fits(&mut self, longest: Bytes) {
        self.contract = usize::try_from(longest.0).unwrap_or(usize::MAX);
        self.longest = self.contract.min(self.template.longest());
    }

    /// Something came to an empty queue.
    pub(super) fn find_head(
        &mut self,
        scheduler: &mut Scheduler,
        now: Instant,
    ) -> Result<(), Breach> {
        let Some(record) = self.next_record()? else {
            return Ok(());
        };
        match scheduler.handle_head(self.id, self.packet(&record, now), now) {
            Ok(()) => {
                self.follow(Some(record));
                self.since = now;
            }
            // It is no longer than the scheduler said; but then it is better lost than the flow stuck.
            Err(_) => self.refuse(record),
        }
        Ok(())
    }

    fn refuse(&mut self, record: Record) {
        self.counters.too_long += 1;
        self.ring.give_back(record, Status::TOO_LONG, 0);
    }

    /// The head leaves: copied, judged in the copy, and given back. Whether it was sent.
    pub(super) fn send(
        &mut self,
        head: Record,
        since: Instant,
        card: Option<&mut impl Card>,
        leaves: &Departure,
    ) -> bool {
        if head.bytes() > self.longest {
            self.refuse(head);
            return false;
        }
        let (ring, template) = (&self.ring, &self.template);
        let card = card.filter(|_| self.reaches);
        let done = card.and_then(|card| {
            card.send(|frame| {
                let length = ring.read(&head, frame);
                template.check(&mut frame[..length])
            })
        });
        let (status, stamp) = match done {
            Some(Ok(())) => {
                self.counters.count_sent(head.bytes(), since, leaves);
                (Status::DONE, leaves.start.0)
            }
            Some(Err(_)) => {
                self.counters.forbidden += 1;
                (Status::FORBIDDEN, 0)
            }
            // No link, or no station; or a card that had room before and changed its mind.
            None => {
                self.counters.no_link += 1;
                (Status::NO_LINK, 0)
            }
        };
        self.ring.give_back(head, status, stamp);
        status == Status::DONE
    }

    /// Until when a packet may leave of which the scheduler has decided now, without a word to it. For ever: nothing. One that was later
    /// than its contract tolerates already counts from now.
    #[inline]
    pub(super) fn leaves_by(&self, eligible: Instant, now: Instant) -> Option<Instant> {
        let decided = now.0.checked_add(self.tolerance.0)?;
        let planned = eligible.0.saturating_add(self.tolerance.0);
        Some(Instant(if now.0 < planned { planned } else { decided }))
    }

    /// Frames go to another station (none: to nobody), from another one, or may be of another length.
    pub(super) fn readdress(&mut self, mac: Mac, next_hop: Option<Mac>, longest: usize) {
        self.template.readdress(mac, next_hop, longest);
        self.longest = self.contract.min(self.template.longest());
        self.reaches = next_hop.is_some() || self.template.names_station();
    }

    /// A packet came for it.
    pub(super) fn hand_over(
        &mut self,
        packet: &[u8],
        cost: &mut Cost,
        among: (&mut Pool, &mut Crowd),
        now: Instant,
    ) -> Result<Handed, Breach> {
        self.counters.received += 1;
        let (look, rest) = (cost.look(), cost.of(packet.len()));
        self.counters.receiving += look.0;
        if let Some(share) = &mut self.share
            && let Err(until) = share.admit(among, (look, rest), now)
        {
            self.counters.over_share += 1;
            self.ring.lost(Loss::OverShare);
            return Ok(Handed::Cut(until));
        }
        self.counters.receiving += rest.0;
        let Taken::Record(record) = self.ring.take_empty()? else {
            self.counters.no_buffer += 1;
            self.ring.lost(Loss::NoBuffer);
            return Ok(Handed::Lost);
        };
        if record.bytes() < packet.len() {
            self.counters.too_short += 1;
            self.ring.lost(Loss::TooLong);
            self.ring.deliver(record, 0, Status::UNUSED, 0);
            return Ok(Handed::Lost);
        }
        self.ring.write(&record, 0, packet);
        self.ring.deliver(record, packet.len(), Status::DONE, now.0);
        self.counters.delivered += 1;
        self.counters.delivered_bytes += packet.len() as u64;
        Ok(Handed::Over)
    }

    /// It has little left of its share of the driver's time, or all have together.
    #[inline]
    pub(super) fn runs_short(&self, pool: &Pool) -> bool {
        let share = self.share.as_ref();
        share.is_some_and(|share| share.is_low() || pool.is_low())
    }

    /// So many packets came for it, and were dropped before they came here.
    pub(super) fn shut_out(&mut self, packets: u64) {
        self.counters.received += packets;
        self.counters.over_share += packets;
        self.ring.lost_many(Loss::OverShare, packets);
    }

    pub(super) fn invariants(&self) {
        self.ring.invariants();
        let counters = self.counters;
        let lost = counters.no_buffer + counters.too_short + counters.over_share;
        assert_eq!(counters.received, counters.delivered + lost, "{counters:?}");
    }
}

/// Opening one moves no other in memory as long as there are no more. Pages that nothing was written to are not there.
pub(super) const UNMOVED: usize = 65_536;

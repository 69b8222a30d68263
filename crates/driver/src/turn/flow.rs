//! One flow, between its rings and the rest of the turn.

use super::*;

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

/// What was counted of a flow. Every record that was taken is sent, forbidden, too long, or its
/// head; every packet that was received is delivered or lost.
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
    /// Packets that came for it.
    pub received: u64,
    /// Those that it got.
    pub delivered: u64,
    /// Those for which it had no buffer.
    pub no_buffer: u64,
    /// Those that its buffer was too short for.
    pub too_short: u64,
    /// Those that it had no share of the driver's time for.
    pub over_share: u64,
}

/// See the module.
pub(super) struct Flow {
    pub(super) id: FlowId,
    pub(super) program: ProgramNo,
    pub(super) ring: netnice_ring::driver::Flow,
    template: Template,
    /// What the scheduler knows of it.
    pub(super) head: Option<Record>,
    share: Option<Share>,
    /// Its rings moved in this turn.
    touched: bool,
    /// Its last look ended before the ring did.
    cut_short: bool,
    pub(super) counters: Counters,
}

impl Flow {
    pub(super) fn new(
        id: FlowId,
        program: ProgramNo,
        ring: netnice_ring::driver::Flow,
        template: Template,
        share: Option<Share>,
    ) -> Flow {
        Flow {
            id,
            program,
            ring,
            template,
            head: None,
            share,
            touched: false,
            cut_short: false,
            counters: Counters::default(),
        }
    }

    /// True the first time in a turn.
    pub(super) fn touch(&mut self) -> bool {
        !std::mem::replace(&mut self.touched, true)
    }

    pub(super) fn publish(&mut self) -> bool {
        self.touched = false;
        self.ring.publish()
    }

    pub(super) fn looks_again(&self) -> bool {
        self.cut_short
    }

    /// The next record that can be sent at all; those that cannot go back.
    pub(super) fn next_record(&mut self) -> Result<Option<Record>, Breach> {
        self.cut_short = false;
        for _ in 0..LOOKS {
            let Taken::Record(record) = self.ring.take()? else {
                return Ok(None);
            };
            if record.bytes() <= self.template.longest() {
                return Ok(Some(record));
            }
            self.refuse(record, Instant(0));
        }
        self.cut_short = true;
        Ok(None)
    }

    fn refuse(&mut self, record: Record, at: Instant) {
        self.counters.too_long += 1;
        self.ring.give_back(record, Status::TOO_LONG, at.0);
    }

    /// What the scheduler is told of a record.
    pub(super) fn packet(&self, record: &Record, now: Instant) -> Packet {
        let length = Bytes(record.bytes() as u64);
        match record.begins_message() {
            true => Packet::first(length, now),
            false => Packet::new(length),
        }
    }

    /// Something came to an empty queue.
    pub(super) fn find_head(
        &mut self,
        scheduler: &mut Scheduler,
        now: Instant,
    ) -> Result<(), Breach> {
        for _ in 0..LOOKS {
            let Some(record) = self.next_record()? else {
                return Ok(());
            };
            match scheduler.handle_head(self.id, self.packet(&record, now), now) {
                Ok(()) => {
                    self.head = Some(record);
                    return Ok(());
                }
                // Longer than its contract can ever send.
                Err(_) => self.refuse(record, now),
            }
        }
        self.cut_short = true;
        Ok(())
    }

    /// The head leaves: copied, judged in the copy, and given back.
    pub(super) fn send(&mut self, head: Record, card: &mut impl Card, start: Instant) {
        let (ring, template) = (&self.ring, &self.template);
        let done = card.send(|frame| {
            let length = ring.read(&head, frame);
            template.check(&frame[..length])
        });
        let status = match done {
            Some(Ok(())) => {
                self.counters.sent += 1;
                self.counters.sent_bytes += head.bytes() as u64;
                Status::DONE
            }
            Some(Err(_)) => {
                self.counters.forbidden += 1;
                Status::FORBIDDEN
            }
            // The caller asked for room before; a card that changes its mind has no link.
            None => Status::NO_LINK,
        };
        self.ring.give_back(head, status, start.0);
    }

    /// A packet came for it.
    pub(super) fn hand_over(
        &mut self,
        packet: &[u8],
        cost: &Cost,
        now: Instant,
    ) -> Result<(), Breach> {
        self.counters.received += 1;
        if let Some(share) = &mut self.share
            && !share.admit(cost.look, cost.of(packet.len()), now)
        {
            self.counters.over_share += 1;
            self.ring.lost(Loss::OverShare);
            return Ok(());
        }
        let Taken::Record(record) = self.ring.take_empty()? else {
            self.counters.no_buffer += 1;
            self.ring.lost(Loss::NoBuffer);
            return Ok(());
        };
        if record.bytes() < packet.len() {
            self.counters.too_short += 1;
            self.ring.lost(Loss::TooLong);
            self.ring.deliver(record, 0, Status::UNUSED, now.0);
            return Ok(());
        }
        self.ring.write(&record, 0, packet);
        self.ring.deliver(record, packet.len(), Status::DONE, now.0);
        self.counters.delivered += 1;
        Ok(())
    }

    pub(super) fn invariants(&self) {
        self.ring.invariants();
        let counters = self.counters;
        let lost = counters.no_buffer + counters.too_short + counters.over_share;
        assert_eq!(counters.received, counters.delivered + lost, "{counters:?}");
    }
}

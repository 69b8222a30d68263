//! Takes a flow to the link that its route leads over now, when the daemon offers it
//! ([`FlowNotification::Moving`](netnice_api::direct::FlowNotification)).
//!
//! The calls that take a buffer, a datagram or a result look whether there is an offer. Then the
//! socket attaches to the other link, unless the program has an attachment there, and has the
//! daemon open the flow on it. When the daemon replies, the old driver has stopped: each packet has
//! a result or was not sent. The socket goes over to the rings of the new driver with
//!
//! - the results, and the datagrams that were received before;
//! - the packets that were not sent, in the order in which they were queued.
//!
//! So no packet is sent twice, none overtakes another of its flow on the way to the NIC, and none
//! is lost on the way out. Then the socket has the daemon close what is left on the old link.
//!
//! A buffer that the program holds is in the old memory, and C has a pointer into it. So the flow
//! moves when the program holds none. No function here fails: a flow that cannot move is closed by
//! the daemon, with the reason.

use netnice_api::direct::{DirectReply, DirectRequest, FlowOpened, FlowTaken, TakeFlow};
use netnice_ring::FlowLocation;
use netnice_ring::record::Record;
use rustix::time::{ClockId, clock_gettime};

use super::*;
use crate::moving::Place;

impl Socket {
    /// The place of the flow.
    pub(super) fn place(&self) -> Place {
        (self.attachment, self.flow.location().slot)
    }

    /// Takes the flow to another link, if the daemon has offered that. Reads the daemon's
    /// notifications every [`REFRESH`], because a program that never waits reads none.
    #[inline]
    pub(super) fn follow_route(&mut self) {
        if self.id.is_none() {
            return;
        }
        self.shared.refresh_sometimes(coarse_millis(), REFRESH);
        if self.status.moves() {
            self.try_move();
        }
    }

    #[cold]
    fn try_move(&mut self) {
        let held = self.flow.balance().in_use - self.flow.given();
        if held > 0 {
            return;
        }
        let Some(to) = self.status.take_move() else {
            return;
        };
        if let Err(error) = self.move_to(&to) {
            self.status.set_obstacle(error.to_string());
        }
    }

    /// Fails if the program cannot attach to the interface, the daemon does not open the flow
    /// there, or the flow has ended.
    fn move_to(&mut self, iface: &str) -> Result<(), StackError> {
        let secret = self.shared.control()?.attached.secret.clone();
        let (attachment, there) = self.first.attachment_to(iface)?;
        let number = self.status.number();
        let request = DirectRequest::Take(TakeFlow {
            flow: number,
            secret,
        });
        let status = self.status.clone();
        let taken =
            there
                .control()?
                .request(
                    &there.flows,
                    request,
                    Client::TIMEOUT,
                    |response| match response {
                        Response::Direct(DirectReply::Taken(taken)) => {
                            let FlowOpened { flow, slot, .. } = taken.opened;
                            there.flows.insert(flow, slot, status);
                            Ok(*taken)
                        }
                        other => Err(unexpected_response(other, "take")),
                    },
                )?;
        let FlowTaken { opened, former } = taken;
        let before = std::mem::replace(&mut self.shared, there);
        before.flows.remove(number);
        let done = self.adopt(attachment, opened);
        before.close(former);
        done.inspect_err(|error| self.status.set_ended(&error.to_string()))
    }

    /// Goes over to the rings of the new link. Fails if the daemon's reply is invalid or the new
    /// driver has closed the flow: then the flow has ended.
    pub(super) fn adopt(
        &mut self,
        attachment: usize,
        opened: FlowOpened,
    ) -> Result<(), StackError> {
        let shape = self.flow.location().shape;
        let location = FlowLocation {
            slot: opened.slot,
            offset: opened.offset,
            shape,
        };
        let rings = self.shared.attachment.flow(location)?;
        self.take_last_results();
        self.take_over_received();
        let from = self.place();
        for why in [Loss::NoBuffer, Loss::OverBudget, Loss::TooLong] {
            self.lost_before[why as usize] += self.flow.lost(why);
        }
        let old = std::mem::replace(&mut self.flow, rings);
        self.attachment = attachment;
        self.first.moved.moved(self.shown_slot, from, self.place());
        self.local_mac = opened.mac;
        self.accepts_arrivals = self.shared.attachment.accepts_arrivals();
        self.checks = self.wanted_checks.on(&self.shared.attachment);
        self.status.set_mtu(opened.mtu);
        if opened.contract != self.contract {
            self.set_contract(&opened.contract);
        }
        self.send_again(old)?;
        self.prime_all()?;
        self.flush();
        // The program may wait for what it has not looked at yet: received datagrams, results, and
        // what the new driver did before the flow was known here.
        self.shared.report(opened.slot);
        Ok(())
    }

    /// Takes the results that the old driver returned. The last packets that it returned for lack
    /// of a link, without a sent one behind them, stay queued: the new link can carry them. Among
    /// them is the packet that the driver held when it withdrew the flow.
    fn take_last_results(&mut self) {
        let mut unsent: Vec<Record> = Vec::new();
        // An error says that the old flow has been closed: what it had is lost.
        while let Ok(Some(record)) = self.flow.reclaim() {
            if record.status() == Status::NO_LINK {
                unsent.push(record);
                continue;
            }
            for earlier in unsent.drain(..) {
                self.take_result(&earlier);
            }
            self.take_result(&record);
        }
    }

    fn take_result(&mut self, record: &Record) {
        let chunk = self.flow.piece(&record.pairs()[0]).chunk;
        let queued = &mut self.queued[chunk.0 as usize];
        let number = std::mem::replace(queued, QueuedPacket::NONE).number;
        self.add_outcome(number, record.status(), record.stamp());
    }

    /// Keeps the datagrams that the old driver delivered.
    fn take_over_received(&mut self) {
        while let Ok(mut datagram) = self.next_datagram() {
            if let Storage::Chunk(chunk) = datagram.storage {
                let Ok(bytes) = self.flow.bytes(chunk) else {
                    return;
                };
                datagram.storage = Storage::Heap(bytes[..datagram.parsed.payload.end].to_vec());
                // The chunk stays with the old memory.
            }
            self.taken_over.push_back(datagram);
        }
    }

    /// Queues the packets that the old driver did not send, in order. Fails if the new driver has
    /// closed the flow.
    fn send_again(&mut self, mut old: ProgramRings) -> Result<(), StackError> {
        let mut unsent: Vec<(QueuedPacket, Chunk)> = self
            .queued
            .iter_mut()
            .zip(0..)
            .filter(|(queued, _)| queued.length > 0)
            .map(|(queued, chunk)| (std::mem::replace(queued, QueuedPacket::NONE), Chunk(chunk)))
            .collect();
        unsent.sort_unstable_by_key(|(packet, _)| packet.number);
        let mut copied = Vec::with_capacity(unsent.len());
        for (packet, chunk) in unsent {
            copied.push((packet, self.copy_packet(&mut old, packet, chunk)));
        }
        // A closed flow's memory is overwritten, so the copies may be of zeros.
        let is_valid = old.is_open();
        for (packet, chunk) in copied {
            let chunk = match (chunk, is_valid) {
                (Some(chunk), true) => chunk,
                (chunk, _) => {
                    // This fails only for a chunk that is not held.
                    chunk.map(|chunk| self.flow.free(chunk));
                    self.add_outcome(packet.number, Status::NO_LINK, 0);
                    continue;
                }
            };
            let piece = Piece {
                chunk,
                start: 0,
                length: packet.length,
            };
            let part = match self.accepts_arrivals {
                true => packet.part,
                false => packet.part.without_arrival(),
            };
            match self.flow.submit_part(&[piece], part) {
                Ok(()) => self.queued[chunk.0 as usize] = QueuedPacket { part, ..packet },
                Err(RecordError::Flow(error)) => return Err(self.flow_error(error)),
                Err(error) => return Err(buffer_error(error)),
            }
        }
        Ok(())
    }

    /// Copies a packet into a free chunk; `None` if the old rings do not have it.
    fn copy_packet(
        &mut self,
        old: &mut ProgramRings,
        packet: QueuedPacket,
        chunk: Chunk,
    ) -> Option<Chunk> {
        // A chunk that was returned is held already.
        let _ = old.take_unsent(chunk);
        let bytes = old.bytes(chunk).ok()?.get(..packet.length as usize)?;
        let copy = self.flow.chunk()?;
        let to = self.flow.bytes_mut(copy).ok()?;
        to.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(copy)
    }
}

/// The present time, in ms since the start of the machine. A coarse clock is enough, and is read
/// for each packet.
#[inline]
fn coarse_millis() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    // Neither is negative.
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// How often the sockets of an attachment read the daemon's notifications, in ms.
const REFRESH: u64 = 100;

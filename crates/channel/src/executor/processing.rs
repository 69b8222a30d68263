//! A handler of an executor ([`Handler`]): it plans blocks of packets for the scheduler, and
//! processes them one by one. No function fails.

use netnice_core::sched::Packet;
use netnice_core::units::{Bytes, Instant};

use super::receiving::Receiving;
use super::sending::Sending;
use super::{Counts, HandlerId, OutgoingPacket, Ran, Transmit};
use crate::header::{ChannelId, PacketHeader};
use crate::options::{ExecutorSettings, LONGEST_BLOCK, Sizes};
use crate::stage::Stage;

/// A block of packets to plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub packets: u64,
    /// The first packet of a message is in the block.
    pub begins: bool,
    /// The arrival that the scheduler gets for the message that begins with the block.
    pub arrival: Option<Instant>,
}

/// A handler.
pub(super) struct Handler<M, P> {
    pub id: HandlerId,
    pub channel: ChannelId,
    pub sizes: Sizes,
    pub stages: Vec<Box<dyn Stage>>,
    pub side: Side<M, P>,
    /// The packets of the block that the scheduler has as the head of the handler's flow.
    pub head: Option<u64>,
    pub counts: Counts,
}

/// What a handler does.
pub(super) enum Side<M, P> {
    Sending(Sending<M>),
    Receiving(Receiving<P>),
}

impl<M: AsRef<[u8]>, P: AsRef<[u8]> + AsMut<[u8]>> Handler<M, P> {
    /// Plans the next block. The result is the block as a packet of the scheduler. `woken`: the
    /// handler had nothing planned.
    pub(super) fn plan(&mut self, settings: &ExecutorSettings, woken: bool) -> Option<Packet> {
        let most = u64::from(settings.processor.block.get());
        let plan = match &mut self.side {
            Side::Sending(sending) => sending.plan(most),
            Side::Receiving(receiving) => receiving.plan(most),
        }?;
        self.head = Some(plan.packets);
        let takes = self
            .sizes
            .charge(settings, plan.packets, plan.begins, woken);
        let length = Bytes(takes.0.clamp(1, LONGEST_BLOCK.0));
        Some(Packet {
            length,
            message: plan.arrival,
        })
    }

    /// Processes the next packet of the block. `None` if the handler has to wait.
    pub(super) fn run(&mut self, now: Instant, transmit: &mut impl Transmit) -> Option<Ran> {
        let (id, channel, taken) = (self.id, self.channel, self.sizes.taken);
        let (begins, ends) = match &mut self.side {
            Side::Sending(sending) => {
                let next = sending.front()?;
                let (accepted, part) = (next.accepted, next.part);
                let header = PacketHeader {
                    channel,
                    message: accepted.message,
                    part,
                    count: next.parts.count(),
                };
                let payload = &next.body.as_ref()[next.parts.range(part)];
                let length = payload.len() + taken;
                let buffer = transmit.buffer(id, length)?.get_mut(..length)?;
                seal(&header, payload, buffer, &mut self.stages);
                transmit.submit(OutgoingPacket {
                    handler: id,
                    length,
                    message: header.message,
                    part,
                    count: header.count,
                    logical: accepted.logical,
                    deadline: accepted.deadline,
                });
                (part == 0, sending.handle_submitted())
            }
            Side::Receiving(receiving) => {
                if receiving.is_full() {
                    return None;
                }
                let (mut packet, header, stamp) = receiving.pop()?;
                let ends = match open(&header, packet.as_mut(), &mut self.stages) {
                    Some(payload) => {
                        let times = (stamp, now);
                        receiving.accept(&header, payload, times, &mut self.counts)
                    }
                    None => {
                        self.counts.corrupted += 1;
                        false
                    }
                };
                (header.part == 0, ends)
            }
        };
        self.counts.packets += 1;
        self.counts.messages += u64::from(ends);
        Some(Ran {
            handler: id,
            begins,
            ends,
            ends_block: ends,
        })
    }
}

/// Writes a packet: header, payload and what the stages add. The buffer has the length of the
/// packet.
fn seal(header: &PacketHeader, payload: &[u8], buffer: &mut [u8], stages: &mut [Box<dyn Stage>]) {
    let (head, rest) = buffer.split_at_mut(PacketHeader::LENGTH);
    head.copy_from_slice(&header.encode());
    let mut length = payload.len();
    rest[..length].copy_from_slice(payload);
    for stage in stages {
        let with_overhead = length + stage.overhead();
        stage.seal(header, &mut rest[..with_overhead], length);
        length = with_overhead;
    }
}

/// The payload of a packet that arrived; `None` if a stage does not accept it.
fn open<'a>(
    header: &PacketHeader,
    packet: &'a mut [u8],
    stages: &mut [Box<dyn Stage>],
) -> Option<&'a [u8]> {
    let payload = packet.get_mut(PacketHeader::LENGTH..)?;
    let mut length = payload.len();
    for stage in stages.iter_mut().rev() {
        let opened = stage.open(header, payload.get_mut(..length)?).ok()?;
        length = opened.min(length);
    }
    payload.get(..length)
}

//! A scheduler with the queues of its flows, for the link and for the processor.
//! [`SchedulerQueues::push`] queues an item (a packet for the link, or a block of packets for the
//! processor) and fails if the scheduler refuses the item. The other calls fail if the scheduler
//! refuses a link, a slice or a flow. [`SchedulerQueues::next`] returns an item that leaves now, or
//! when to call again.

use std::collections::VecDeque;

use netnice_core::admission::timing::Processor;
use netnice_core::contract::{Cell, Slice};
use netnice_core::sched::{
    Class, Departure, FlowId, Next, Packet, Scheduler, SchedulerError, Service, Wire,
};
use netnice_core::units::{Bytes, Instant};

/// A slice that flows share by classes of static priority, and inside a class in proportion to
/// their contracted rates (paper CELL, section 4.5).
#[derive(Clone, Debug)]
pub struct OverbookedSlice {
    /// The shared slice.
    pub slice: Slice,
    /// The classes, highest priority first: at least 1 class and at most 8.
    pub classes: Vec<Class>,
}

/// An item of a queue: a packet on a link, a block on a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    /// Bytes of a packet, nanoseconds of a block.
    pub length: Bytes,
    /// The time, in ns, that the scheduler gets as the arrival of the message that begins with this
    /// item; `None` for the other items of a message, and without a channel.
    pub begins: Option<u64>,
    /// The logical arrival of the item's message, for a channel.
    pub logical: Option<u64>,
    /// The deadline of the message that ends with this item.
    pub ends: Option<u64>,
    /// Bytes of the message in this item.
    pub bytes: u64,
    /// True if the message begins with this item.
    pub first: bool,
    /// True if the message ends with this item.
    pub last: bool,
}

impl Item {
    /// The blocks in which a processor with these costs handles the message, or the block itself if
    /// it is one. Their lengths are processor times.
    pub(crate) fn blocks(self, costs: &Processor) -> impl Iterator<Item = Item> {
        let costs = *costs;
        let most = u64::from(costs.block.get()).saturating_mul(costs.largest.0);
        self.parts(most).map(move |part| {
            let takes = costs.processing(costs.packets(Bytes(part.bytes)), part.starts);
            part.of(&self, Bytes(takes.0))
        })
    }

    /// The packets of the message, or of a block of one; all but the last have `largest` bytes.
    pub(crate) fn packets(self, largest: Bytes) -> impl Iterator<Item = Item> {
        let parts = self.parts(largest.0);
        parts.map(move |part| part.of(&self, Bytes(part.bytes)))
    }

    /// The item in parts of `most` bytes, or 1 if that is 0.
    fn parts(self, most: u64) -> impl Iterator<Item = ItemPart> {
        let mut rest = Some(self.bytes);
        let mut starts = true;
        core::iter::from_fn(move || {
            let before = rest?;
            let bytes = before.min(most.max(1));
            rest = Some(before - bytes).filter(|rest| *rest > 0);
            let part = ItemPart {
                bytes,
                starts,
                finishes: rest.is_none(),
            };
            starts = false;
            Some(part)
        })
    }
}

/// A part of an item.
#[derive(Clone, Copy, Debug)]
struct ItemPart {
    bytes: u64,
    /// Whether the item begins with the part.
    starts: bool,
    /// Whether the item ends with the part.
    finishes: bool,
}

impl ItemPart {
    /// The part as an item of this length.
    fn of(self, whole: &Item, length: Bytes) -> Item {
        Item {
            length,
            begins: whole.begins.filter(|_| self.starts),
            logical: whole.logical,
            ends: whole.ends.filter(|_| self.finishes),
            bytes: self.bytes,
            first: whole.first && self.starts,
            last: whole.last && self.finishes,
        }
    }
}

/// An item that left its queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeftItem {
    pub flow: usize,
    pub item: Item,
    pub departure: Departure,
}

/// The time of the next call; `Never` if an item has to be queued first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextCall {
    At(u64),
    Never,
}

/// A scheduler and the queues of its flows.
#[derive(Debug)]
pub(crate) struct SchedulerQueues {
    scheduler: Scheduler,
    ids: Vec<FlowId>,
    /// In the order in which flows were added.
    queues: Vec<VecDeque<Item>>,
    /// The server of the flows with a class. The server was added before all flows, so the
    /// scheduler's numbers of the flows are one higher than their indices here.
    server: Option<FlowId>,
}

impl SchedulerQueues {
    /// Queues over a scheduler for this link, without flows. Fails if the scheduler refuses the
    /// link.
    pub(crate) fn new(wire: Wire) -> Result<SchedulerQueues, SchedulerError> {
        Ok(SchedulerQueues {
            scheduler: Scheduler::new(wire)?,
            ids: Vec::new(),
            queues: Vec::new(),
            server: None,
        })
    }

    /// Adds the overbooked slice. The caller does this before it adds a flow. Fails if the
    /// scheduler refuses the slice.
    pub(crate) fn overbook(&mut self, overbooked: &OverbookedSlice) -> Result<(), SchedulerError> {
        let (slice, classes) = (overbooked.slice, &overbooked.classes);
        let server = self.scheduler.insert_server(slice, classes, Instant(0))?;
        self.server = Some(server);
        Ok(())
    }

    /// Adds a flow as a member of the server. `None` if there is no server; then no flow is added.
    /// Fails if the scheduler refuses the flow.
    pub(crate) fn add_member(
        &mut self,
        class: usize,
        cell: Cell,
    ) -> Result<Option<()>, SchedulerError> {
        let Some(server) = self.server else {
            return Ok(None);
        };
        let now = Instant(0);
        let id = self.scheduler.insert_member(server, class, cell, now)?;
        self.register(id);
        Ok(Some(()))
    }

    fn register(&mut self, id: FlowId) {
        self.ids.push(id);
        self.queues.push(VecDeque::new());
    }

    /// Adds a flow; flows are numbered in the order of addition. Fails if the scheduler refuses the
    /// flow.
    pub(crate) fn add(&mut self, service: Service) -> Result<(), SchedulerError> {
        let id = self.scheduler.insert(service, Instant(0))?;
        self.register(id);
        Ok(())
    }

    /// Sets since when the owner could not look at its queues, in ns, for the items that it queues
    /// from now on ([`Scheduler::set_unread_since`]).
    pub(crate) fn set_unread_since(&mut self, since: u64) {
        self.scheduler.set_unread_since(Instant(since));
    }

    /// Number of items in the queue of a flow, by the flow's index.
    pub(crate) fn waiting(&self, flow: usize) -> usize {
        self.queues[flow].len()
    }

    /// Queues an item at the time `now`, in ns. Fails if the item is the first of its queue and the
    /// scheduler refuses it.
    pub(crate) fn push(&mut self, flow: usize, item: Item, now: u64) -> Result<(), SchedulerError> {
        let is_head = self.queues[flow].is_empty();
        if is_head {
            let id = self.ids[flow];
            self.scheduler
                .handle_head(id, packet(&item), Instant(now))?;
        }
        self.queues[flow].push_back(item);
        Ok(())
    }

    /// Drops the queued items of a flow and returns their number. Fails if the scheduler refuses to
    /// remove them.
    pub(crate) fn flush(&mut self, flow: usize, now: u64) -> Result<usize, SchedulerError> {
        self.scheduler.withdraw(self.ids[flow], Instant(now))?;
        let gone = self.queues[flow].len();
        self.queues[flow].clear();
        Ok(gone)
    }

    /// Removes and returns the next item that leaves now. The error is the time of the next call.
    pub(crate) fn next(&mut self, now: u64) -> Result<LeftItem, NextCall> {
        loop {
            let queues = &self.queues;
            let before = usize::from(self.server.is_some());
            let next_packet = |id: FlowId| queues[id.index() - before].get(1).map(packet);
            match self.scheduler.next(Instant(now), next_packet) {
                Next::Send(departure) => {
                    let flow = departure.flow.index() - before;
                    // The scheduler never returns a departure without a head.
                    let item = self.queues[flow].pop_front().expect("a head");
                    return Ok(LeftItem {
                        flow,
                        item,
                        departure,
                    });
                }
                // The work of one call is bounded; there is more work.
                Next::Wait(at) if at.0 <= now => {}
                Next::Wait(at) => return Err(NextCall::At(at.0)),
                Next::Idle => return Err(NextCall::Never),
            }
        }
    }
}

fn packet(item: &Item) -> Packet {
    Packet {
        length: item.length,
        message: item.begins.map(Instant),
    }
}

//! A scheduler with its queues.

use std::collections::VecDeque;

use netnice_core::contract::Cell;
use netnice_core::sched::{Departure, FlowId, Misuse, Next, Packet, Scheduler, Service, Wire};
use netnice_core::units::{Bytes, Instant};

use crate::world::Overbooked;

/// What waits in a queue: a packet on a link, a block on a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    /// Of a packet its bytes, of a block its nanoseconds.
    pub length: Bytes,
    /// When the message arrived that begins with it.
    pub begins: Option<u64>,
    /// Of a channel, the logical arrival of the message that it is of.
    pub logical: Option<u64>,
    /// By when the message that ends with it must have left.
    pub ends: Option<u64>,
    /// Of a block, how much of the message it makes into packets.
    pub bytes: u64,
}

/// What left a station.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Left {
    pub flow: usize,
    pub item: Item,
    pub departure: Departure,
}

/// When to look again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    At(u64),
    Never,
}

#[derive(Debug)]
pub(crate) struct Station {
    scheduler: Scheduler,
    ids: Vec<FlowId>,
    /// In the order in which flows were added.
    queues: Vec<VecDeque<Item>>,
    /// The server of those that have a class. It was added before all flows, so their numbers
    /// are one higher than their places.
    server: Option<FlowId>,
}

impl Station {
    pub(crate) fn new(wire: Wire) -> Result<Station, Misuse> {
        Ok(Station {
            scheduler: Scheduler::new(wire)?,
            ids: Vec::new(),
            queues: Vec::new(),
            server: None,
        })
    }

    /// A slice for members; before any flow.
    pub(crate) fn overbook(&mut self, inside: &Overbooked) -> Result<(), Misuse> {
        let (slice, classes) = (inside.slice, &inside.classes);
        let server = self.scheduler.insert_server(slice, classes, Instant(0))?;
        self.server = Some(server);
        Ok(())
    }

    /// One more flow, which is a member of the server; nothing if there is none.
    pub(crate) fn add_member(&mut self, class: usize, cell: Cell) -> Result<Option<()>, Misuse> {
        let Some(server) = self.server else {
            return Ok(None);
        };
        let now = Instant(0);
        let id = self.scheduler.insert_member(server, class, cell, now)?;
        self.note(id);
        Ok(Some(()))
    }

    fn note(&mut self, id: FlowId) {
        self.ids.push(id);
        self.queues.push(VecDeque::new());
    }

    /// One more flow; they are numbered in the order in which they are added.
    pub(crate) fn add(&mut self, service: Service) -> Result<(), Misuse> {
        let id = self.scheduler.insert(service, Instant(0))?;
        self.note(id);
        Ok(())
    }

    pub(crate) fn waiting(&self, flow: usize) -> usize {
        self.queues[flow].len()
    }

    pub(crate) fn push(&mut self, flow: usize, item: Item, now: u64) -> Result<(), Misuse> {
        let is_head = self.queues[flow].is_empty();
        if is_head {
            let id = self.ids[flow];
            self.scheduler
                .handle_head(id, packet(&item), Instant(now))?;
        }
        self.queues[flow].push_back(item);
        Ok(())
    }

    /// Takes back what waits.
    pub(crate) fn flush(&mut self, flow: usize, now: u64) -> Result<usize, Misuse> {
        self.scheduler.withdraw(self.ids[flow], Instant(now))?;
        let gone = self.queues[flow].len();
        self.queues[flow].clear();
        Ok(gone)
    }

    /// What leaves now, or when to look again.
    pub(crate) fn turn(&mut self, now: u64) -> Result<Left, Look> {
        loop {
            let queues = &self.queues;
            let before = usize::from(self.server.is_some());
            let behind = |id: FlowId| queues[id.index() - before].get(1).map(packet);
            match self.scheduler.turn(Instant(now), behind) {
                Next::Send(departure) => {
                    let flow = departure.flow.index() - before;
                    // A departure without a head would be the scheduler's mistake.
                    let item = self.queues[flow].pop_front().expect("a head");
                    return Ok(Left {
                        flow,
                        item,
                        departure,
                    });
                }
                // The work of one call is bounded; there is more of it.
                Next::Wait(at) if at.0 <= now => {}
                Next::Wait(at) => return Err(Look::At(at.0)),
                Next::Idle => return Err(Look::Never),
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

//! Simulates an adapter that fetches the cells that it sends from the host's memory, just in time
//! (paper CELL, section 4.4).
//!
//! ```text
//!  host memory          bus                    adapter
//!  PDUs of each  ──── one transfer ────▶  buffer, at most `window`  ──── scheduler ──▶ link
//!  connection         at a time           cells for each connection
//! ```
//! The input is an [`Adapter`] with its connections; the result is an [`AdapterReport`].
//! [`Adapter::run`] fails if a transfer would carry no cell, or if the scheduler refuses the link,
//! a connection or a cell. A *cell* is a packet of the link's greatest length. A *PDU* (protocol
//! data unit) is a message of several cells.
//!
//! Shaping determines when a connection's next cell may leave. So the earliest time at which a
//! connection's buffer runs empty is known: the time at which its last cell left, plus the peak
//! rate's spacing for each cell in the buffer or on the bus, less CDVT. The bus serves the
//! connection with the earliest such time. A transfer has `unit` cells, or those that are left of
//! the PDU if they are fewer. It takes a random access time and the time of its bytes on the bus.
//!
//! From the first fetched cell of a connection on, the scheduler sends its cells whether they have
//! been fetched or not. If a cell leaves that has not been fetched, that is an *underrun*: the bus
//! was too slow, or the window too small for the delay of the bus.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use netnice_core::contract::Cell;
use netnice_core::policer::{Observation, Policer};
use netnice_core::sched::{FlowId, Next, Packet, Scheduler, SchedulerError, Service, Wire};
use netnice_core::units::{Bytes, Instant, Nanos, Rate};

use crate::{Random, SimulationError};

/// An adapter between a host and a link.
#[derive(Clone, Debug)]
pub struct Adapter {
    /// The link; its longest packet is a cell.
    pub wire: Wire,
    /// The rate of the bus during a transfer.
    pub bus: Rate,
    /// The least and the greatest access time: the time from the decision on a transfer until it
    /// begins.
    pub access: (Nanos, Nanos),
    /// Cells per transfer, at least 1; fewer at the end of a PDU.
    pub unit: u32,
    /// The largest number of cells of each connection on the adapter or on the way to it. If it is
    /// less than `unit`, no whole unit is ever fetched.
    pub window: u32,
    /// The connections that send on the link.
    pub connections: Vec<Connection>,
    /// The seed of the random access times.
    pub seed: u64,
}

/// A connection: PDUs in host memory, and the contract by which their cells are sent.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    /// The contract.
    pub contract: Cell,
    /// Number of PDUs.
    pub pdus: u32,
    /// Cells per PDU.
    pub cells: u32,
    /// Time at which the host submits all PDUs.
    pub start: Nanos,
}

/// The result of a simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdapterReport {
    /// Cells that left.
    pub sent: u64,
    /// Of these, the cells that had not been fetched in time.
    pub underruns: u64,
    /// Cells that violated the contract, as a policer finds.
    pub violations: u64,
    /// The most cells of one connection that were on the adapter or on the way to it.
    pub most_buffered: u32,
    /// Connections with all PDUs sent and reported to the host.
    pub reported: u64,
    /// Transfers on the bus.
    pub transfers: u64,
    /// Time for which the bus was busy, access times included.
    pub bus_busy: Nanos,
    /// Time at which the last cell left; zero if none left.
    pub end: Instant,
}

impl Adapter {
    /// Simulates until no event is left (normally when all cells are sent) or `until` is reached.
    ///
    /// # Errors
    /// [`SimulationError`] if `unit` is 0, or if the scheduler refuses the link, a connection, or a
    /// cell that is longer than the contract's MBS.
    pub fn run(&self, until: Nanos) -> Result<AdapterReport, SimulationError> {
        if self.unit == 0 {
            return Err(SimulationError::EmptyTransfers);
        }
        let mut run = Run::new(self)?;
        while let Some(Reverse((at, _, event))) = run.events.pop() {
            if at > until.0 {
                break;
            }
            run.handle(at, event)?;
            run.drive(at)?;
        }
        Ok(run.report)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Start(usize),
    /// A transfer of so many cells for this connection has ended.
    Arrived(usize, u32),
    Poll,
}

/// The state of a connection.
struct ConnectionState {
    id: FlowId,
    policer: Policer,
    /// The time of a cell at peak rate, in ns.
    spacing: u64,
    cdvt: u64,
    cells_of_pdu: u32,
    /// Cells in host memory: all, and those of the PDU that is being fetched.
    left: u64,
    left_of_pdu: u32,
    /// Cells on the way.
    in_transfer: u32,
    /// Cells on the adapter; below zero after an underrun.
    buffered: i64,
    /// Cells to be sent.
    unsent: u64,
    is_reported: bool,
    has_begun: bool,
    /// When the last cell left, or the first one could leave.
    last: u64,
    /// The deadline of the next transfer, if one is wanted.
    transfer_deadline: Option<u64>,
}

struct Run<'a> {
    adapter: &'a Adapter,
    link: Scheduler,
    active: Vec<ConnectionState>,
    /// (deadline, connection) of wanted transfers, by when the buffer runs empty.
    wanted_transfers: BTreeSet<(u64, usize)>,
    bus_is_busy: bool,
    random: Random,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    count: u64,
    /// The time of the next planned `Poll`.
    next_poll: u64,
    report: AdapterReport,
}

impl<'a> Run<'a> {
    fn new(adapter: &'a Adapter) -> Result<Run<'a>, SchedulerError> {
        let mut run = Run {
            adapter,
            link: Scheduler::new(adapter.wire)?,
            active: Vec::new(),
            wanted_transfers: BTreeSet::new(),
            bus_is_busy: false,
            random: Random::new(adapter.seed),
            events: BinaryHeap::new(),
            count: 0,
            next_poll: u64::MAX,
            report: AdapterReport::default(),
        };
        for (at, one) in adapter.connections.iter().enumerate() {
            let service = Service::Cell(one.contract);
            let all = u64::from(one.pdus) * u64::from(one.cells);
            run.active.push(ConnectionState {
                id: run.link.insert(service, Instant(0))?,
                policer: Policer::cell(one.contract),
                spacing: one.contract.pcr().time_for(adapter.wire.longest).0,
                cdvt: one.contract.cdvt().0,
                cells_of_pdu: one.cells,
                left: all,
                left_of_pdu: one.cells,
                in_transfer: 0,
                buffered: 0,
                unsent: all,
                is_reported: all == 0,
                has_begun: false,
                last: one.start.0,
                transfer_deadline: None,
            });
            run.plan(one.start.0, Event::Start(at));
        }
        Ok(run)
    }

    fn plan(&mut self, at: u64, event: Event) {
        self.count += 1;
        self.events.push(Reverse((at, self.count, event)));
    }

    fn handle(&mut self, now: u64, event: Event) -> Result<(), SchedulerError> {
        match event {
            Event::Start(at) => self.update_wanted_transfer(at),
            Event::Arrived(at, cells) => {
                self.bus_is_busy = false;
                let cell = Packet::new(self.adapter.wire.longest);
                let one = &mut self.active[at];
                one.in_transfer -= cells;
                one.buffered += i64::from(cells);
                if !core::mem::replace(&mut one.has_begun, true) {
                    one.last = now;
                    let id = one.id;
                    self.link.handle_head(id, cell, Instant(now))?;
                }
                self.update_wanted_transfer(at);
            }
            Event::Poll => self.next_poll = u64::MAX,
        }
        Ok(())
    }

    /// Updates whether a connection needs a transfer, and the deadline of that transfer.
    fn update_wanted_transfer(&mut self, at: usize) {
        let (unit, window) = (self.adapter.unit, self.adapter.window);
        let one = &mut self.active[at];
        if let Some(before) = one.transfer_deadline.take() {
            self.wanted_transfers.remove(&(before, at));
        }
        let held = one.buffered.max(0) + i64::from(one.in_transfer);
        let has_room = held + i64::from(unit.min(one.left_of_pdu)) <= i64::from(window);
        if one.left > 0 && has_room {
            let lasts = u64::try_from(held).unwrap_or(0).saturating_mul(one.spacing);
            let empty = one.last.saturating_add(lasts).saturating_sub(one.cdvt);
            one.transfer_deadline = Some(empty);
            self.wanted_transfers.insert((empty, at));
        }
    }

    fn drive(&mut self, now: u64) -> Result<(), SchedulerError> {
        loop {
            let active = &self.active;
            let cell = Packet::new(self.adapter.wire.longest);
            let behind = |id: FlowId| (active[id.index()].unsent > 1).then_some(cell);
            match self.link.next(Instant(now), behind) {
                Next::Send(departure) => self.cell_left(departure.flow.index(), departure.start),
                Next::Wait(at) if at.0 <= now => {}
                Next::Wait(at) => {
                    if at.0 < self.next_poll {
                        self.next_poll = at.0;
                        self.plan(at.0, Event::Poll);
                    }
                    break;
                }
                Next::Idle => break,
            }
        }
        if !self.bus_is_busy
            && let Some((_, at)) = self.wanted_transfers.pop_first()
        {
            self.fetch(at, now);
        }
        Ok(())
    }

    /// A cell leaves.
    fn cell_left(&mut self, at: usize, start: Instant) {
        let one = &mut self.active[at];
        self.report.sent += 1;
        self.report.end = start;
        self.report.underruns += u64::from(one.buffered <= 0);
        one.buffered -= 1;
        one.unsent -= 1;
        one.last = start.0;
        let observation = Observation {
            at: start,
            length: self.adapter.wire.longest,
        };
        self.report.violations += u64::from(one.policer.handle(observation).is_err());
        if one.unsent == 0 && !one.is_reported {
            one.is_reported = true;
            self.report.reported += 1;
        }
        self.update_wanted_transfer(at);
    }

    /// Begins a transfer.
    fn fetch(&mut self, at: usize, now: u64) {
        let (least, most) = self.adapter.access;
        let access = self.random.within(least.0..=most.0);
        let one = &mut self.active[at];
        one.transfer_deadline = None;
        let cells = self.adapter.unit.min(one.left_of_pdu);
        one.left -= u64::from(cells);
        one.left_of_pdu -= cells;
        if one.left_of_pdu == 0 {
            one.left_of_pdu = one.cells_of_pdu;
        }
        one.in_transfer += cells;
        let held = one.buffered.max(0) + i64::from(one.in_transfer);
        let held = u32::try_from(held).unwrap_or(u32::MAX);
        self.report.most_buffered = self.report.most_buffered.max(held);
        let bytes = Bytes(self.adapter.wire.longest.0 * u64::from(cells));
        let takes = access + self.adapter.bus.time_for(bytes).0;
        self.report.transfers += 1;
        self.report.bus_busy.0 += takes;
        self.bus_is_busy = true;
        self.plan(now + takes, Event::Arrived(at, cells));
        self.update_wanted_transfer(at);
    }
}

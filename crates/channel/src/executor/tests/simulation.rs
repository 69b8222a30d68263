//! A program's executor and the link behind it in virtual time. The processor's costs occur when
//! they occur (a switch, a cold cache, each packet), and the program runs only while its
//! reservation gives it time. Admission knows the costs by its own formula. So the simulation tests
//! admission, the executor and the sizes of queues together.

use std::collections::VecDeque;

use netnice_core::admission::timing::{Promise, Transmitter, Work};
use netnice_core::contract::{MessageRate, Slice};
use netnice_core::sched::{Scheduler, Service};

use super::*;

mod figures;
mod long;
mod proofs;
mod sinks;

/// A channel and its traffic.
struct Source {
    options: ChannelOptions,
    /// Messages: time in ns, and bytes; sorted.
    messages: Vec<(u64, usize)>,
}

/// What became of the messages of a channel.
#[derive(Clone, Debug, Default, PartialEq)]
struct Fate {
    /// Messages that left.
    left: u64,
    /// Bytes of packets that left.
    bytes: u64,
    /// Messages that were not accepted.
    refused: u64,
    /// Messages that were processed after the handler's part of the deadline.
    processed_late: u64,
    /// Messages that left after their deadline.
    late: u64,
    /// Steps after which the handler waited for a packet buffer.
    without_buffer: u64,
    /// The shortest time from a departure to the deadline, in ns.
    least_laxity: Option<u64>,
    laxities: u64,
}

/// A reservation of the processor: time in every period. In the first one it is at the beginning
/// and ends at time 0, later as late as possible.
#[derive(Clone, Copy, Debug)]
struct Server {
    slice: Slice,
    /// What is lost of each time, at its beginning.
    lost: u64,
}

impl Server {
    /// The time at which work that begins at `now`, and takes `takes` on the whole processor, has
    /// ended.
    fn after(&self, now: u64, mut takes: u64) -> u64 {
        let (time, period) = (self.slice.slice().0, self.slice.period().0);
        let mut at = now + time;
        loop {
            let number = at / period;
            let place = if number == 0 { 0 } else { period - time };
            let begin = number * period + place;
            let begins = at.max(begin + self.lost);
            if begins + takes <= begin + time {
                return begins + takes - time;
            }
            takes -= (begin + time).saturating_sub(begins);
            at = (number + 1) * period;
        }
    }
}

struct Simulation {
    settings: ExecutorSettings,
    server: Server,
    wire: Wire,
    /// Always has messages to send, of this length; it is the last source.
    greedy: Option<usize>,
}

struct Run<'a> {
    simulation: &'a Simulation,
    executor: TestExecutor,
    link: Scheduler,
    sources: Vec<SourceState>,
    /// All messages: time, source, bytes; the next one last.
    messages: Vec<(u64, usize, usize)>,
    /// Time of the next decision of the link; `u64::MAX` for none.
    link_wakes: u64,
    /// The packet on the wire: its end, its source, and itself.
    on_wire: Option<(u64, usize, OutgoingPacket)>,
}

struct SourceState {
    handler: HandlerId,
    flow: FlowId,
    processing: Option<Nanos>,
    stages: Nanos,
    queue: VecDeque<OutgoingPacket>,
    fate: Fate,
}

impl Simulation {
    /// Simulates until a time, in ns. The result has the fates in the order of the sources.
    fn run(&self, sources: Vec<Source>, until: u64) -> Vec<Fate> {
        let mut run = Run::new(self, sources);
        let (mut now, mut had) = (0, None);
        while now < until {
            run.advance(now);
            run.refill(now);
            now = self.server.after(now, 0).max(now);
            run.advance(now);
            let mut kept = Kept::default();
            match run.executor.step(Instant(now), &mut kept) {
                Step::Ran(ran) => {
                    now = self.server.after(now, run.cost(&ran, had));
                    had = Some(ran.handler);
                    run.advance(now);
                    run.processed(ran, kept.packets.pop().expect("a packet").0, now);
                }
                Step::Wait(at) => (now, had) = (run.next_event(now).min(at.0), None),
                Step::Idle => (now, had) = (run.next_event(now), None),
            }
        }
        run.sources.into_iter().map(|source| source.fate).collect()
    }
}

impl<'a> Run<'a> {
    fn new(simulation: &'a Simulation, sources: Vec<Source>) -> Run<'a> {
        let mut executor = Executor::new(simulation.settings).expect("an executor");
        let mut link = Scheduler::new(simulation.wire).expect("a link");
        let (mut states, mut messages) = (Vec::new(), Vec::new());
        for (at, source) in sources.into_iter().enumerate() {
            let service = match source
                .options
                .on_link(&simulation.settings)
                .expect("options")
            {
                Some(channel) => Service::Channel(channel),
                None => Service::best_effort(Weight::default()),
            };
            let sizes =
                Sizes::of(&source.options, &simulation.settings, End::Source).expect("options");
            let processing = match source.options.class {
                ChannelClass::RealTime(channel) => Some(channel.processing()),
                ChannelClass::BestEffort { .. } => None,
            };
            messages.extend(
                source
                    .messages
                    .iter()
                    .map(|(time, length)| (*time, at, *length)),
            );
            states.push(SourceState {
                handler: executor.open_sender(source.options, us(0)).expect("opens"),
                flow: link.insert(service, us(0)).expect("a flow"),
                processing,
                stages: sizes.stages,
                queue: VecDeque::new(),
                fate: Fate::default(),
            });
        }
        messages.sort_unstable_by(|a, b| b.cmp(a));
        Run {
            simulation,
            executor,
            link,
            sources: states,
            messages,
            link_wakes: u64::MAX,
            on_wire: None,
        }
    }

    /// The time of the next message, departure or decision of the link, after `now`.
    fn next_event(&self, now: u64) -> u64 {
        let message = self.messages.last().map_or(u64::MAX, |(at, ..)| *at);
        let departure = self.on_wire.map_or(u64::MAX, |(at, ..)| at);
        message.min(departure).min(self.link_wakes).max(now)
    }

    /// Handles what happens until `now`, in the order of time.
    fn advance(&mut self, now: u64) {
        loop {
            let at = self.next_event(0);
            if at > now {
                return;
            }
            if self.on_wire.is_some_and(|(end, ..)| end == at) {
                let (_, source, packet) = self.on_wire.take().expect("a packet");
                self.left(source, &packet, at);
            } else if self.messages.last().is_some_and(|(time, ..)| *time == at) {
                let (_, source, length) = self.messages.pop().expect("a message");
                let state = &mut self.sources[source];
                let sent = self
                    .executor
                    .send(state.handler, vec![0; length], Instant(at));
                state.fate.refused += u64::from(sent.is_err());
            } else {
                self.decide(at);
            }
        }
    }

    /// The link chooses its next packet.
    fn decide(&mut self, now: u64) {
        let sources = &self.sources;
        let next = self.link.next(Instant(now), |flow| {
            sources[flow.index()].queue.get(1).map(on_link)
        });
        self.link_wakes = match next {
            Next::Send(departure) => {
                let source = departure.flow.index();
                let packet = self.sources[source].queue.pop_front().expect("a head");
                assert!(self.on_wire.is_none());
                self.on_wire = Some((departure.end.0, source, packet));
                departure.end.0
            }
            Next::Wait(at) => at.0.max(now),
            Next::Idle => u64::MAX,
        };
    }

    /// A packet has left.
    fn left(&mut self, source: usize, packet: &OutgoingPacket, now: u64) {
        let state = &mut self.sources[source];
        state.fate.bytes += packet.length as u64;
        let sent = self.executor.handle_sent(state.handler, 1, Instant(now));
        sent.expect("open");
        if packet.part + 1 == packet.count {
            state.fate.left += 1;
            if let Some(deadline) = packet.deadline {
                let laxity = deadline.0.checked_sub(now);
                state.fate.late += u64::from(laxity.is_none());
                let laxity = laxity.unwrap_or(0);
                state.fate.laxities += laxity;
                let least = state.fate.least_laxity.unwrap_or(u64::MAX);
                state.fate.least_laxity = Some(least.min(laxity));
            }
        }
    }

    /// The processor time of a packet. `had` had the processor before.
    fn cost(&self, ran: &Ran, had: Option<HandlerId>) -> u64 {
        let costs = &self.simulation.settings.processor;
        let handler = |source: &&SourceState| source.handler == ran.handler;
        let source = self.sources.iter().find(handler).expect("a source");
        let switch = match had == Some(ran.handler) {
            true => 0,
            false => costs.switch.0 + costs.cache_miss.0,
        };
        let packet = if ran.begins { costs.first } else { costs.later };
        switch + packet.0 + costs.link_scheduling.0 + source.stages.0
    }

    /// A packet has been processed and comes to the link.
    fn processed(&mut self, ran: Ran, packet: OutgoingPacket, now: u64) {
        let handler = |source: &SourceState| source.handler == ran.handler;
        let at = self.sources.iter().position(handler).expect("a source");
        let state = &mut self.sources[at];
        if ran.ends
            && let Some(processing) = state.processing
        {
            let until = packet.logical.0 + processing.0;
            state.fate.processed_late += u64::from(now > until);
        }
        state.queue.push_back(packet);
        if state.queue.len() == 1 {
            let head = self
                .link
                .handle_head(state.flow, on_link(&packet), Instant(now));
            head.expect("no head");
            self.link_wakes = self.link_wakes.min(now);
        }
        for state in &mut self.sources {
            let now = self.executor.state(state.handler, Instant(now));
            state.fate.without_buffer += u64::from(now == Ok(HandlerState::NoBuffer));
        }
    }

    /// Fills the queue of the greedy source.
    fn refill(&mut self, now: u64) {
        if let (Some(length), Some(last)) = (self.simulation.greedy, self.sources.last()) {
            let mut send = || {
                self.executor
                    .send(last.handler, vec![0; length], Instant(now))
            };
            while send().is_ok() {}
        }
    }
}

/// A packet for the scheduler of the link.
fn on_link(packet: &OutgoingPacket) -> Packet {
    let length = Bytes(packet.length as u64);
    match packet.part {
        0 => Packet::first(length, packet.logical),
        _ => Packet::new(length),
    }
}

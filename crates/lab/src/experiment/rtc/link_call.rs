//! Paper RTC, section 4.2: where the scheduler of the link runs. In option 1 a handler calls it. In
//! option 2 another thread has it; netnice is so, with the driver in a process of its own.
//!
//! [`compare`] measures both in one process. Four handlers of best effort encrypt packets; the link
//! is a [`Scheduler`] that copies each packet into a frame and never waits. In option 2 packets and
//! their buffers pass between two threads in queues of the standard library, not in the shared
//! memory of netnice, and no card sends the frames in either option. So the figures compare the two
//! places, and are not those of netnice. As a base, the third row has no link at all.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use anyhow::{Context as _, Result};
use netnice_channel::network::PACKET;
use netnice_channel::{
    ChannelClass, ChannelId, ChannelOptions, Encryption, Executor, ExecutorSettings, HandlerId,
    OutgoingPacket, Step, Transmit, WhenFull, costs,
};
use netnice_core::admission::timing::Processor;
use netnice_core::contract::{Slice, Weight};
use netnice_core::sched::{FlowId, Next, Packet, Scheduler, Service, Wire};
use netnice_core::units::{Bytes, Instant, Nanos};
use netnice_stack::monotonic_ns;
use serde_json::json;

use super::packet_blocks::channels_of;
use crate::experiment::{Context, Outcome};
use crate::sys;

/// Where the scheduler of the link runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Packets are counted only.
    Nowhere,
    /// In the thread of the handlers (option 1).
    Handlers,
    /// In a thread of its own (option 2).
    Thread,
}

/// What a packet costs, in ns of processor time.
#[derive(Clone, Copy, Debug)]
struct Cost {
    handlers: f64,
    /// That of the handlers and of the link's thread.
    all: f64,
}

/// Adds for three values of P and each place: the processor time of a packet, the payload that a
/// tenth of a processor brings, and the channels that admission grants with these means as costs.
/// Fails if a thread ends, or if the costs of a switch cannot be measured.
pub(super) fn compare(context: &Context, outcome: &mut Outcome) -> Result<()> {
    let lasts = Duration::from_millis(if context.quick { 200 } else { 1_000 });
    let mut rows = Vec::new();
    for block in [1, 4, 16] {
        let block = NonZeroU32::new(block).context("a block of no packet")?;
        let base = costs::measure(PACKET, block)?.processor;
        for place in [Place::Handlers, Place::Thread, Place::Nowhere] {
            let cost = measure(base, place, lasts)?;
            let mean = Nanos(cost.handlers.round() as u64);
            let settings = ExecutorSettings::new(Processor {
                first: mean,
                later: mean,
                ..base
            });
            let tenth = Slice::new(Nanos::from_millis(1), Nanos::from_millis(10), false)?;
            let name = match place {
                Place::Handlers => "in the handler (option 1)",
                Place::Thread => "in a thread of its own (option 2)",
                Place::Nowhere => "no link",
            };
            rows.push(json!({
                "P, packets": block, "link's scheduler": name,
                "handlers: processor time of a packet, ns": cost.handlers.round(),
                "both threads: processor time of a packet, ns": cost.all.round(),
                "payload on a tenth of a processor, kB/s": (PACKET.0 as f64 * 1e5 / cost.handlers).round(),
                // The encryption is part of the mean.
                "channels admitted": channels_of(&settings, Nanos(0), &tenth)?,
            }));
        }
    }
    outcome.ours("the place of the link's scheduler, in one process", rows);
    Ok(())
}

/// Processes messages for some processor time.
fn measure(base: Processor, place: Place, lasts: Duration) -> Result<Cost> {
    let mut executor: Executor<Arc<[u8]>, Vec<u8>> = Executor::new(ExecutorSettings::new(base))?;
    let mut handlers = Vec::new();
    for number in 0..CHANNELS {
        let class = ChannelClass::BestEffort {
            weight: Weight::default(),
            mmax: MESSAGE,
            queue: 2,
            when_full: WhenFull::Wait,
        };
        let mut options = ChannelOptions::new(ChannelId([number; 16]), class);
        let stage = Encryption::new(&[number; 32], Nanos(0));
        options.stages.push(Box::new(stage));
        handlers.push(executor.open_sender(options, now())?);
    }
    let mut link = Outlet::new(handlers.clone(), place)?;
    let body: Arc<[u8]> = vec![7; MESSAGE.0 as usize].into();
    let (begin, mut packets) = (sys::thread_time(), 0_u64);
    while sys::thread_time() - begin < lasts {
        for handler in &handlers {
            while executor.messages_waiting(*handler)? < 2 {
                if executor.send(*handler, body.clone(), now()).is_err() {
                    break;
                }
            }
        }
        let step = executor.step(now(), &mut link);
        packets += u64::from(matches!(step, Step::Ran(_)));
        for handler in link.returned(matches!(step, Step::Ran(_)))? {
            executor.handle_sent(handler, 1, now())?;
        }
    }
    let own = (sys::thread_time() - begin).as_nanos() as f64;
    let other = link.end()?.as_nanos() as f64;
    let packets = packets.max(1) as f64;
    Ok(Cost {
        handlers: own / packets,
        all: (own + other) / packets,
    })
}

/// A packet of a handler: the handler's number, and the bytes.
type Sent = (usize, Vec<u8>);

/// What the handlers do with packets.
struct Outlet {
    handlers: Vec<HandlerId>,
    free: Vec<Vec<u8>>,
    filling: Option<Vec<u8>>,
    place: OutletPlace,
    /// Numbers of the handlers whose packets have left.
    left: Vec<usize>,
}

/// The place with what it needs.
enum OutletPlace {
    Nowhere,
    Handlers(Box<Link>),
    Thread {
        packets: SyncSender<Sent>,
        buffers: Receiver<Sent>,
        thread: std::thread::JoinHandle<Result<Duration>>,
    },
}

impl Outlet {
    fn new(handlers: Vec<HandlerId>, place: Place) -> Result<Outlet> {
        let place = match place {
            Place::Nowhere => OutletPlace::Nowhere,
            Place::Handlers => OutletPlace::Handlers(Box::new(Link::new()?)),
            Place::Thread => {
                let (packets, of_handlers) = sync_channel(BUFFERS);
                let (to_handlers, buffers) = sync_channel(BUFFERS);
                let thread = std::thread::spawn(move || serve(&of_handlers, &to_handlers));
                OutletPlace::Thread {
                    packets,
                    buffers,
                    thread,
                }
            }
        };
        Ok(Outlet {
            handlers,
            free: vec![vec![0; PACKET.0 as usize]; BUFFERS],
            filling: None,
            place,
            left: Vec::new(),
        })
    }

    /// The handlers whose packets have left since the last call. If no handler has `ran`, it waits
    /// for a buffer of the link's thread. Fails if that thread has ended.
    fn returned(&mut self, ran: bool) -> Result<Vec<HandlerId>> {
        if let OutletPlace::Thread { buffers, .. } = &self.place {
            let first = match ran {
                true => None,
                false => Some(buffers.recv().context("the link's thread has ended")?),
            };
            for (number, buffer) in first.into_iter().chain(buffers.try_iter()) {
                self.left.push(number);
                self.free.push(buffer);
            }
        }
        let left = std::mem::take(&mut self.left);
        Ok(left
            .into_iter()
            .map(|number| self.handlers[number])
            .collect())
    }

    /// Ends the link. Returns the processor time of its thread. Fails if the thread did.
    fn end(self) -> Result<Duration> {
        match self.place {
            OutletPlace::Thread {
                packets,
                buffers,
                thread,
            } => {
                drop(packets);
                // The thread must not wait for room.
                while buffers.recv().is_ok() {}
                thread.join().expect("no panic")
            }
            _ => Ok(Duration::ZERO),
        }
    }
}

impl Transmit for Outlet {
    fn buffer(&mut self, _: HandlerId, _: usize) -> Option<&mut [u8]> {
        if self.filling.is_none() {
            self.filling = self.free.pop();
        }
        self.filling.as_deref_mut()
    }

    fn submit(&mut self, packet: OutgoingPacket) {
        let own = |handler: &HandlerId| *handler == packet.handler;
        let (Some(buffer), Some(number)) =
            (self.filling.take(), self.handlers.iter().position(own))
        else {
            return;
        };
        match &mut self.place {
            OutletPlace::Nowhere => {
                self.left.push(number);
                self.free.push(buffer);
            }
            OutletPlace::Handlers(link) => {
                link.push((number, buffer), now());
                while let Some((number, buffer)) = link.send(now()) {
                    self.left.push(number);
                    self.free.push(buffer);
                }
            }
            OutletPlace::Thread { packets, .. } => {
                // It fails only if the thread has ended, which `returned` reports.
                let _ = packets.send((number, buffer));
            }
        }
    }
}

/// Sends what arrives until the handlers are gone. Returns the processor time of the thread.
fn serve(packets: &Receiver<Sent>, buffers: &SyncSender<Sent>) -> Result<Duration> {
    let mut link = Link::new()?;
    while let Ok(first) = packets.recv() {
        link.push(first, now());
        for packet in packets.try_iter() {
            link.push(packet, now());
        }
        while let Some(sent) = link.send(now()) {
            let _ = buffers.send(sent);
        }
    }
    Ok(sys::thread_time())
}

/// A link that is always free.
struct Link {
    scheduler: Scheduler,
    flows: Vec<FlowId>,
    queues: Vec<VecDeque<Vec<u8>>>,
    frame: Vec<u8>,
}

impl Link {
    fn new() -> Result<Link> {
        let wire = Wire {
            ahead: Nanos::from_secs(1),
            longest: PACKET,
            ..Wire::new("100gbit".parse()?)
        };
        let mut scheduler = Scheduler::new(wire)?;
        let mut flows = Vec::new();
        for _ in 0..CHANNELS {
            flows.push(scheduler.insert(Service::best_effort(Weight::default()), now())?);
        }
        Ok(Link {
            scheduler,
            queues: flows.iter().map(|_| VecDeque::new()).collect(),
            flows,
            frame: vec![0; PACKET.0 as usize],
        })
    }

    fn push(&mut self, (number, packet): Sent, now: Instant) {
        let head = Packet::new(Bytes(packet.len() as u64));
        self.queues[number].push_back(packet);
        if self.queues[number].len() == 1 {
            // The flow exists and has no head.
            let reported = self.scheduler.handle_head(self.flows[number], head, now);
            debug_assert_eq!(reported, Ok(()));
        }
    }

    /// Copies the next packet into the frame and returns it; `None` if there is none.
    fn send(&mut self, now: Instant) -> Option<Sent> {
        let (queues, flows) = (&self.queues, &self.flows);
        let number = |flow: FlowId| flows.iter().position(|one| *one == flow);
        loop {
            let behind = |flow| {
                let behind = queues[number(flow)?].get(1)?;
                Some(Packet::new(Bytes(behind.len() as u64)))
            };
            match self.scheduler.next(now, behind) {
                Next::Send(departure) => {
                    let number = number(departure.flow)?;
                    let packet = self.queues[number].pop_front()?;
                    self.frame[..packet.len()].copy_from_slice(&packet);
                    return Some((number, packet));
                }
                // The work of one call is bounded; there is more work.
                Next::Wait(at) if at <= now => {}
                Next::Wait(_) | Next::Idle => return None,
            }
        }
    }
}

fn now() -> Instant {
    Instant(monotonic_ns())
}

/// Channels of best effort.
const CHANNELS: u8 = 4;
/// A message: 49 packets.
const MESSAGE: Bytes = Bytes(65_536);
/// Packet buffers of all channels: for two messages of each, as many as its handler uses.
const BUFFERS: usize = 400;

#[cfg(test)]
mod tests {
    use super::*;

    /// Every packet leaves once, in the order of its handler, at each place of the link.
    #[test]
    fn every_packet_returns_at_each_place() {
        let block = NonZeroU32::new(4).expect("above zero");
        let base = costs::measure(PACKET, block).expect("measured").processor;
        for place in [Place::Nowhere, Place::Handlers, Place::Thread] {
            let cost = measure(base, place, Duration::from_millis(20)).expect("measured");
            assert!(cost.handlers > 0.0, "{place:?}");
            assert_eq!(
                cost.all > cost.handlers,
                place == Place::Thread,
                "{place:?}"
            );
        }
        let mut link = Link::new().expect("a link");
        for packet in 0..6_u8 {
            link.push((usize::from(packet % 2), vec![packet; 100]), now());
        }
        let sent: Vec<Sent> = std::iter::from_fn(|| link.send(now())).collect();
        for number in 0..2 {
            let own = sent.iter().filter(|(from, _)| *from == number);
            let bytes: Vec<u8> = own.map(|(_, packet)| packet[0]).collect();
            let first = number as u8;
            assert_eq!(bytes, [first, first + 2, first + 4]);
        }
    }
}

//! What a channel's handler is made of: [`ChannelOptions`], with the [`ExecutorSettings`] of the
//! executor that runs it. Both say what admission tests ([`ExecutorSettings::handlers`],
//! [`ChannelOptions::work`]). A channel that cannot be opened is an [`OpenError`].

use netnice_core::admission::timing::{HandlerWork, Handlers, Processor, Resolution, Work};
use netnice_core::contract::{Channel, ContractError, MessageRate, Overload, Weight};
use netnice_core::sched::{EarlyOrder, SchedulerError, Service};
use netnice_core::units::{Bytes, Nanos};

use super::catch_up::messages_within;
use super::header::{ChannelId, PacketHeader};
use super::parts::Parts;
use super::stage::Stage;

/// The settings of an executor, which runs all handlers of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecutorSettings {
    /// The costs of processing. [`Processor::block`] packets lie between two preemption points.
    /// [`Processor::largest`] is the longest packet that a handler submits, with the channel's
    /// header. [`Processor::leftover`] has no effect on the executor.
    pub processor: Processor,
    /// Switching to a handler that waits for a later packet of a message it has begun. Many packets
    /// of a message can find it waiting, so it is less than [`Processor::switch`] where a long
    /// switch is rare.
    pub waking: Nanos,
    /// How long before its logical arrival a message may be processed if no other handler has work,
    /// or none but of best effort, by `early` (paper RTC: work-conserving processing). With zero no
    /// message is processed early.
    pub horizon: Nanos,
    /// Whether such early messages come after best effort or before it.
    pub early: EarlyOrder,
}

/// An end of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The program that sends.
    Source,
    /// The program that receives.
    Sink,
}

/// The contract of a channel, as its handler keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelClass {
    /// A real-time channel. Its handler has the part [`Channel::processing`] of the deadline for
    /// each message.
    RealTime(Channel),
    /// A channel without deadlines. Best-effort handlers share by weight the time that real-time
    /// handlers leave.
    BestEffort {
        /// Weight among best-effort handlers.
        weight: Weight,
        /// The longest message.
        mmax: Bytes,
        /// The largest number of queued messages.
        queue: u32,
        /// What happens to a message that finds the queue full.
        when_full: WhenFull,
    },
}

impl ChannelClass {
    /// The contract; `None` for best effort.
    pub(crate) fn channel(&self) -> Option<Channel> {
        match self {
            ChannelClass::RealTime(channel) => Some(*channel),
            ChannelClass::BestEffort { .. } => None,
        }
    }

    /// The handler's part of the deadline; 0 for best effort.
    pub(crate) fn processing(&self) -> Nanos {
        let channel = self.channel();
        channel.map_or(Nanos(0), |channel| channel.processing())
    }
}

/// What happens to a message that finds its queue full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// It waits: a sender offers it again later; a receiver's handler is suspended, and packets
    /// beyond its packet queue are dropped.
    #[default]
    Wait,
    /// It is dropped.
    Drop,
}

/// A channel to open at one of its ends.
pub struct ChannelOptions {
    /// The identifier in all packets of the channel.
    pub id: ChannelId,
    /// The contract. At the sink, the deadline's part for processing is the one of the sink's
    /// handler.
    pub class: ChannelClass,
    /// The longest message that is accepted, if it is longer than Mmax; `None` for Mmax. A
    /// real-time message above Mmax gets later deadlines in proportion to its additional packets.
    pub longest: Option<Bytes>,
    /// The largest number of queued messages of a real-time channel; `None` for as many as a
    /// sender that keeps to the contract needs ([`ChannelOptions::work`] is kept with any number).
    /// For [`Overload::Decay`] and [`Overload::BestEffort`], which queue messages beyond the
    /// contract, the default is four times as many.
    pub queue: Option<u32>,
    /// What a receiver does with a complete message that finds the queue of messages full.
    pub when_full: WhenFull,
    /// How far a real-time channel may be behind after a stop of the machine, without a loss: at
    /// the sink there is room for the messages of this time, too, at most 1,024. If it is not 0,
    /// the handlers and the link serve [`MessageRate::with_spare`] in place of Rmax, so that a
    /// source that sends exactly Rmax catches up, and not all later messages are late.
    pub catches_up: Nanos,
    /// The stages, in the order in which the sender applies them.
    pub stages: Vec<Box<dyn Stage>>,
}

/// The reason why a channel cannot be opened.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The channel is open already in this direction.
    #[error("channel {0} is open already in this direction")]
    Exists(ChannelId),
    /// The longest message is 0 or too long.
    #[error("mmax of a channel's messages is 1B to {most}, not {mmax}", most = LONGEST_MESSAGE)]
    MessageLength {
        /// The longest message.
        mmax: Bytes,
    },
    /// The longest message that is accepted is shorter than Mmax, or too long.
    #[error("the longest accepted message is {mmax} (mmax) to {LONGEST_MESSAGE}, not {longest}")]
    Longest {
        /// The length in [`ChannelOptions::longest`].
        longest: Bytes,
        /// Mmax.
        mmax: Bytes,
    },
    /// No message can be queued.
    #[error("a channel's queue has room for at least one message")]
    NoQueue,
    /// The queue is shorter than what a sender that keeps to the contract needs.
    #[error("a queue of {queue} messages is too short: this contract needs {needed}")]
    ShortQueue {
        /// The number of messages in [`ChannelOptions::queue`].
        queue: u32,
        /// The number that the contract needs.
        needed: u64,
    },
    /// The queue is longer than a queue may be.
    #[error("a queue of {queue} messages is too long: at most {LONGEST_QUEUE}")]
    LongQueue {
        /// The number of messages that the contract needs, or in [`ChannelOptions::queue`].
        queue: u64,
    },
    /// The contract leaves no time for the handler.
    #[error("the channel has no part of its deadline for processing: add processing=T below {0}")]
    NoProcessing(Nanos),
    /// A packet has no room for payload beside the header and what the stages add.
    #[error("a packet of {largest} has no room for a payload behind {taken} of header and stages")]
    NoPayload {
        /// The longest packet.
        largest: Bytes,
        /// Bytes of the header and of what the stages add.
        taken: Bytes,
    },
    /// The longest message has more than 65,535 parts.
    #[error("a message of {longest} in parts of {part} has more than 65535 parts")]
    TooManyParts {
        /// The longest accepted message.
        longest: Bytes,
        /// Bytes of a part.
        part: Bytes,
    },
    /// A block of packets takes too long without a preemption point, or no time at all.
    #[error("a block of {packets} packets takes {takes}: above 0, at most {LONGEST_BLOCK}")]
    Block {
        /// Packets of the block.
        packets: u64,
        /// Its processor time.
        takes: Nanos,
    },
    /// The contract of the handler is invalid.
    #[error(transparent)]
    Contract(#[from] ContractError),
    /// The executor has no room for the handler.
    #[error(transparent)]
    Scheduler(#[from] SchedulerError),
}

/// What follows from the options and settings of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Bytes of the header and of what the stages add.
    pub taken: usize,
    /// Bytes of each part but the last of its message.
    pub part: usize,
    /// Bytes of the longest accepted message.
    pub longest: usize,
    /// Messages that can be queued.
    pub room: u64,
    /// Packet buffers: those that are queued behind the handler, or before a receiver's.
    pub buffers: u64,
    /// Packets of a message of Mmax.
    pub packets: u64,
    /// Processor time of each packet in the stages.
    pub stages: Nanos,
    /// Processor time that each packet of a message can take besides the costs of a message. At the
    /// sink this includes waking the thread, because every packet can find the handler waiting.
    pub each: Nanos,
}

impl ExecutorSettings {
    /// Settings with these costs, with which no message is processed early.
    pub fn new(processor: Processor) -> ExecutorSettings {
        ExecutorSettings {
            processor,
            waking: processor.switch,
            horizon: Nanos(0),
            early: EarlyOrder::default(),
        }
    }

    /// What a packet costs that finds its handler waiting. If the thread sleeps, the processor
    /// switches to it, which `waking` includes both ways. If another handler runs, the kernel does
    /// not switch, but that one's caches are cold afterwards too.
    fn woken(&self) -> Nanos {
        let misses = self.processor.cache_miss.0.saturating_mul(2);
        Nanos(self.waking.0.saturating_add(misses))
    }

    /// The admission test for the executor's handlers on a reservation of processor time.
    /// `leftover` is the longest block of the best-effort channels
    /// ([`ChannelOptions::longest_block`]); 0 if there are none.
    pub fn handlers(&self, leftover: Nanos) -> Handlers {
        Handlers {
            processor: Processor {
                leftover,
                ..self.processor
            },
            resolution: Resolution::SCHEDULER,
            horizon: self.horizon,
            late_end: Nanos(0),
        }
    }
}

impl ChannelOptions {
    /// Options with the defaults: no stages, messages up to Mmax, queues as the contract needs
    /// them.
    pub fn new(id: ChannelId, class: ChannelClass) -> ChannelOptions {
        ChannelOptions {
            id,
            class,
            longest: None,
            queue: None,
            when_full: WhenFull::default(),
            catches_up: Nanos(0),
            stages: Vec::new(),
        }
    }

    /// The work of the channel's handler at an end, for the admission test of
    /// [`ExecutorSettings::handlers`]. `None` for best effort.
    ///
    /// # Errors
    /// [`OpenError`] if the channel cannot be opened with these settings.
    pub fn work(&self, settings: &ExecutorSettings, end: End) -> Result<Option<Work>, OpenError> {
        let sizes = Sizes::of(self, settings, end)?;
        let ChannelClass::RealTime(channel) = self.class else {
            return Ok(None);
        };
        let (rmax, bmax) = (self.rate_served(&channel), channel.bmax());
        let mmax = sizes.mmax_on_link(channel.mmax());
        let own = Channel::new(mmax, rmax, bmax, channel.processing())?;
        Ok(Some(Work::Handler(HandlerWork {
            channel: own,
            packets: sizes.packets,
            each: sizes.each,
        })))
    }

    /// The channel as the link has it: Mmax counts the headers of all packets, and what the stages
    /// add, and Rmax is [`MessageRate::with_spare`] if the channel catches up. `None` for best
    /// effort.
    ///
    /// # Errors
    /// [`OpenError`] if the channel cannot be opened with these settings.
    pub fn on_link(&self, settings: &ExecutorSettings) -> Result<Option<Channel>, OpenError> {
        let sizes = Sizes::of(self, settings, End::Source)?;
        let ChannelClass::RealTime(channel) = self.class else {
            return Ok(None);
        };
        let mmax = sizes.mmax_on_link(channel.mmax());
        let rmax = self.rate_served(&channel);
        Ok(Some(channel.resized(mmax, rmax, channel.deadline())?))
    }

    /// The longest time for which the handler is not interrupted.
    ///
    /// # Errors
    /// [`OpenError`] if the channel cannot be opened with these settings.
    pub fn longest_block(&self, settings: &ExecutorSettings, end: End) -> Result<Nanos, OpenError> {
        let sizes = Sizes::of(self, settings, end)?;
        Ok(sizes.most(&settings.processor, sizes.block(settings)))
    }

    /// The longest time that the handler works on one message of Mmax.
    pub(crate) fn longest_message(
        &self,
        settings: &ExecutorSettings,
        end: End,
    ) -> Result<Nanos, OpenError> {
        let sizes = Sizes::of(self, settings, end)?;
        Ok(sizes.most(&settings.processor, sizes.packets))
    }

    /// The number of messages that can be queued, of packet buffers, and of packets of a message of
    /// Mmax.
    pub(crate) fn lengths(
        &self,
        settings: &ExecutorSettings,
        end: End,
    ) -> Result<(u64, u64, u64), OpenError> {
        let sizes = Sizes::of(self, settings, end)?;
        match sizes.room {
            0..=LONGEST_QUEUE => Ok((sizes.room, sizes.buffers, sizes.packets)),
            queue => Err(OpenError::LongQueue { queue }),
        }
    }

    /// The service of the handler's flow in the executor's scheduler, in which a byte is a
    /// nanosecond of processing.
    pub(crate) fn service(
        &self,
        sizes: &Sizes,
        settings: &ExecutorSettings,
    ) -> Result<Service, OpenError> {
        match self.class {
            ChannelClass::BestEffort { weight, .. } => Ok(Service::best_effort(weight)),
            ChannelClass::RealTime(channel) => {
                let takes = sizes.most(&settings.processor, sizes.packets);
                let (rmax, bmax) = (self.rate_served(&channel), channel.bmax());
                let own = Channel::new(Bytes(takes.0), rmax, bmax, channel.processing())?;
                Ok(Service::Channel(own.with_overload(channel.overload())))
            }
        }
    }

    /// The rate at which the handler and the link serve the channel, behind the gate that keeps it
    /// to Rmax.
    pub(crate) fn rate_served(&self, channel: &Channel) -> MessageRate {
        match self.catches_up {
            Nanos(0) => channel.rmax(),
            _ => channel.rmax().with_spare(),
        }
    }

    /// Mmax.
    pub(crate) fn mmax(&self) -> Bytes {
        match self.class {
            ChannelClass::RealTime(channel) => channel.mmax(),
            ChannelClass::BestEffort { mmax, .. } => mmax,
        }
    }
}

impl Sizes {
    pub(crate) fn of(
        options: &ChannelOptions,
        settings: &ExecutorSettings,
        end: End,
    ) -> Result<Sizes, OpenError> {
        let mmax = options.mmax();
        if !(1..=LONGEST_MESSAGE.0).contains(&mmax.0) {
            return Err(OpenError::MessageLength { mmax });
        }
        let longest = options.longest.unwrap_or(mmax);
        if !(mmax..=LONGEST_MESSAGE).contains(&longest) {
            return Err(OpenError::Longest { longest, mmax });
        }
        let overheads = options.stages.iter().map(|stage| stage.overhead() as u64);
        let taken = overheads.fold(PacketHeader::LENGTH as u64, u64::saturating_add);
        let largest = settings.processor.largest.min(LONGEST_MESSAGE);
        let taken = Bytes(taken);
        let Some(part @ 1..) = largest.0.checked_sub(taken.0) else {
            return Err(OpenError::NoPayload { largest, taken });
        };
        let parts = |length: Bytes| Parts::of(length.0 as usize, part as usize);
        let (Some(of_mmax), Some(_)) = (parts(mmax), parts(longest)) else {
            let part = Bytes(part);
            return Err(OpenError::TooManyParts { longest, part });
        };
        let packets = u64::from(of_mmax.count());
        let costs = options.stages.iter().map(|stage| stage.cost().0);
        let stages = costs.fold(0, u64::saturating_add);
        let each = match end {
            End::Source => stages,
            End::Sink => stages.saturating_add(settings.woken().0),
        };
        let (room, buffers) = queues(options, settings, (packets, end))?;
        let sizes = Sizes {
            taken: taken.0 as usize,
            part: part as usize,
            longest: longest.0 as usize,
            room,
            buffers,
            packets,
            stages: Nanos(stages),
            each: Nanos(each),
        };
        let block = sizes.block(settings);
        let takes = sizes.most(&settings.processor, block);
        match (1..=LONGEST_BLOCK.0).contains(&takes.0) {
            true => Ok(sizes),
            false => Err(OpenError::Block {
                packets: block,
                takes,
            }),
        }
    }

    /// Bytes of all packets of a message of Mmax.
    fn mmax_on_link(&self, mmax: Bytes) -> Bytes {
        Bytes(mmax.0 + self.packets * self.taken as u64)
    }

    /// The processor time that is charged for `packets` packets of a message. `begins`: the first
    /// packet of the message is among them. `woken`: the handler had to wait before them, so the
    /// thread may have slept.
    pub(crate) fn charge(
        &self,
        settings: &ExecutorSettings,
        packets: u64,
        begins: bool,
        woken: bool,
    ) -> Nanos {
        let stages = packets.saturating_mul(self.stages.0);
        let waking = if woken && !begins {
            settings.woken().0
        } else {
            0
        };
        let packets = settings.processor.processing(packets, begins).0;
        Nanos(packets.saturating_add(stages).saturating_add(waking))
    }

    /// The most that can be charged for the first `packets` packets of a message while there are
    /// packet buffers.
    fn most(&self, costs: &Processor, packets: u64) -> Nanos {
        let more = packets.saturating_mul(self.each.0);
        Nanos(costs.processing(packets, true).0.saturating_add(more))
    }

    /// Packets of the longest block.
    fn block(&self, settings: &ExecutorSettings) -> u64 {
        let longest = Parts::of(self.longest, self.part).map_or(1, |parts| parts.count());
        u64::from(longest).min(settings.processor.block.get().into())
    }
}

/// The number of messages that can be queued, and of packet buffers (docs/reference/channels.md,
/// *Queues*).
fn queues(
    options: &ChannelOptions,
    settings: &ExecutorSettings,
    (packets, end): (u64, End),
) -> Result<(u64, u64), OpenError> {
    let channel = match options.class {
        ChannelClass::BestEffort { queue: 0, .. } => return Err(OpenError::NoQueue),
        ChannelClass::BestEffort { queue, .. } => {
            return Ok((queue.into(), u64::from(queue).saturating_mul(packets)));
        }
        ChannelClass::RealTime(channel) => channel,
    };
    if channel.processing() == Nanos(0) {
        return Err(OpenError::NoProcessing(channel.deadline()));
    }
    let within = |time: Nanos| messages_within(time, channel.rmax());
    let bmax = u64::from(channel.bmax());
    let behind = match end {
        End::Source => 0,
        End::Sink => within(options.catches_up).min(MOST_MESSAGES_BEHIND),
    };
    let needed = bmax.saturating_add(within(channel.processing()));
    let is_endless = matches!(channel.overload(), Overload::Decay | Overload::BestEffort);
    let room = match options.queue {
        Some(queue) if u64::from(queue) < needed => {
            return Err(OpenError::ShortQueue { queue, needed });
        }
        Some(queue) => queue.into(),
        None if is_endless => needed.saturating_mul(4),
        None => needed.saturating_add(behind.min(LONGEST_QUEUE.saturating_sub(needed))),
    };
    let whole = channel.deadline().0.saturating_add(settings.horizon.0);
    let begun = within(Nanos(whole)).saturating_add(1 + behind);
    Ok((room, begun.max(bmax).saturating_mul(packets)))
}

/// The longest message of a channel: 16 MiB.
pub const LONGEST_MESSAGE: Bytes = Bytes(1 << 24);

/// The longest queue of messages of a channel whose handler a [`HandlerThread`] runs.
///
/// [`HandlerThread`]: crate::HandlerThread
pub const LONGEST_QUEUE: u64 = 65_536;

/// The largest number of messages for which a sink has more room after a stop.
const MOST_MESSAGES_BEHIND: u64 = 1_024;

/// The longest block of packets, without a preemption point: 10 ms.
pub const LONGEST_BLOCK: Nanos = Nanos::from_millis(10);

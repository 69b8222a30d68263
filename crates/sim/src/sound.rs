//! Whether a world makes sense. What does not would be played wrongly, or for ever, so it is
//! refused before anything moves, with whose it is, what it is, and what it may be.

use netnice_core::admission::timing::Processor;
use netnice_core::sched::{Misuse, Service};
use netnice_core::units::{Bytes, Nanos};

use crate::world::{Flow, World};
use crate::{Source, world};

/// Why a world is not played.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorldError {
    /// A class that the overbooked slice has not.
    #[error("`{flow}` has class {class} of the server, which has {classes}, counted from 0")]
    NoClass {
        /// Whose.
        flow: String,
        /// Which.
        class: usize,
        /// How many there are.
        classes: usize,
    },
    /// A class of a flow that cannot be a member.
    #[error("`{0}` has a class: its contract must be a cell contract, and nothing else")]
    NoMember(String),
    /// A class behind a processor.
    #[error("`{0}` has a class: a server is on the link, with no [processor] before it")]
    ClassBehindProcessor(String),
    /// An overload policy of a flow that has no messages with deadlines.
    #[error("`{0}` has an overload policy: that needs a channel contract")]
    PolicyWithoutChannel(String),
    /// An overload policy of a flow that never has more than it may.
    #[error("`{0}` has an overload policy: its source is greedy, and never has too much")]
    PolicyOfGreedy(String),
    /// An overload policy beside another rule for the same.
    #[error("`{0}` has an overload policy, which says how much may wait, and a `queue` of {1} too")]
    PolicyAndQueue(String, usize),
    /// Messages of nothing, or larger ones than are played.
    #[error("`{flow}` has messages of {size}: 1B to {LONGEST_MESSAGE}")]
    Size {
        /// Whose.
        flow: String,
        /// How large.
        size: Bytes,
    },
    /// Messages without end at once.
    #[error("`{flow}` has 0s from one message to the next (`{key}`): 1ns at least")]
    NoTime {
        /// Whose.
        flow: String,
        /// Which of the source's times.
        key: &'static str,
    },
    /// A burst of nothing, or of more messages than are played.
    #[error("`{flow}` has {count} messages in a burst: 1 to {MOST_AT_ONCE}")]
    Burst {
        /// Whose.
        flow: String,
        /// How many.
        count: u32,
    },
    /// A block that takes longer than one may.
    #[error(
        "`{flow}`: the processor takes {takes} for a block of {packets} packets of it, and is not \
         interrupted meanwhile: {LONGEST_BLOCK} at most"
    )]
    LongBlock {
        /// Whose.
        flow: String,
        /// Packets in it.
        packets: u64,
        /// How long it takes.
        takes: Nanos,
    },
    /// A processor that makes packets of nothing.
    #[error("the processor makes packets of 0B (`largest`): 1B at least")]
    EmptyPackets,
    /// A processor that takes no time, and never comes to an end.
    #[error("the processor takes no time for anything: leave it out")]
    IdleProcessor,
    /// What the scheduler does not do.
    #[error(transparent)]
    Misuse(#[from] Misuse),
}

impl World {
    /// Says what makes no sense, if anything does not.
    pub fn sound(&self) -> Result<(), WorldError> {
        if self.processor.is_some_and(|costs| costs.largest.0 == 0) {
            return Err(WorldError::EmptyPackets);
        }
        for flow in &self.flows {
            self.sound_class(flow)?;
            sound_policy(flow)?;
            sound_source(flow)?;
            if let Some(processor) = &self.processor {
                sound_blocks(flow, processor)?;
            }
        }
        Ok(())
    }

    fn sound_class(&self, flow: &Flow) -> Result<(), WorldError> {
        let (Some(class), Some(server)) = (flow.class, &self.overbooked) else {
            return Ok(());
        };
        let name = || flow.name.clone();
        match () {
            () if self.processor.is_some() => Err(WorldError::ClassBehindProcessor(name())),
            () if !matches!(flow.service, Service::Cell(_)) => Err(WorldError::NoMember(name())),
            () if class >= server.classes.len() => Err(WorldError::NoClass {
                flow: name(),
                class,
                classes: server.classes.len(),
            }),
            () => Ok(()),
        }
    }
}

fn sound_policy(flow: &Flow) -> Result<(), WorldError> {
    let name = || flow.name.clone();
    match () {
        () if flow.overload.is_none() => Ok(()),
        () if flow.channel().is_none() => Err(WorldError::PolicyWithoutChannel(name())),
        () if matches!(flow.source, Source::Greedy { .. }) => {
            Err(WorldError::PolicyOfGreedy(name()))
        }
        () if flow.queue != usize::MAX => Err(WorldError::PolicyAndQueue(name(), flow.queue)),
        () => Ok(()),
    }
}

fn sound_source(flow: &Flow) -> Result<(), WorldError> {
    let name = || flow.name.clone();
    let (key, time) = match &flow.source {
        Source::Greedy { .. } | Source::Trace(_) => ("", Nanos(1)),
        Source::Constant { every, .. }
        | Source::OnOff { every, .. }
        | Source::Bursts { every, .. } => ("every", *every),
        Source::Poisson { mean, .. } => ("mean", *mean),
    };
    if time.0 == 0 {
        let flow = name();
        return Err(WorldError::NoTime { flow, key });
    }
    if let Source::Bursts { count, .. } = flow.source
        && !(1..=MOST_AT_ONCE).contains(&count)
    {
        let flow = name();
        return Err(WorldError::Burst { flow, count });
    }
    let odd = |size: &Bytes| !(1..=LONGEST_MESSAGE.0).contains(&size.0);
    match flow.source.sizes().find(odd) {
        Some(size) => Err(WorldError::Size { flow: name(), size }),
        None => Ok(()),
    }
}

/// What the flow's longest block takes, and that something takes time at all.
fn sound_blocks(flow: &Flow, processor: &Processor) -> Result<(), WorldError> {
    let largest = flow.source.sizes().max().unwrap_or(Bytes(1));
    let all = world::packets(largest.0, processor);
    let packets = all.min(processor.block.get().into());
    let takes = world::processing(packets, true, processor);
    if takes > LONGEST_BLOCK {
        let flow = flow.name.clone();
        return Err(WorldError::LongBlock {
            flow,
            packets,
            takes,
        });
    }
    match takes {
        Nanos(0) => Err(WorldError::IdleProcessor),
        _ => Ok(()),
    }
}

/// 10 ms of processing, which is long for something that is not interrupted.
pub(crate) const LONGEST_BLOCK: Nanos = Nanos::from_millis(10);
/// The longest message that is played: it is cut into packets when it comes, all of which wait.
const LONGEST_MESSAGE: Bytes = Bytes(1 << 30);
/// The most messages of one burst, which all wait at once.
const MOST_AT_ONCE: u32 = 1_000_000;

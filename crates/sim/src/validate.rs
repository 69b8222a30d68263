//! Validates a simulation before it runs. An invalid simulation would give wrong results or never
//! end. So it is refused with a [`SimulationError`], which names what is invalid: the flow, the
//! processor or the adapter, and the value and its limit if there is one. The scheduler checks the
//! link, the overbooked slice and the contracts when the simulation starts.

use netnice_core::admission::timing::Processor;
use netnice_core::sched::{SchedulerError, Service};
use netnice_core::units::{Bytes, Nanos};

use crate::simulation::{SimFlow, Simulation};
use crate::{Source, simulation};

/// The reason why a simulation is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimulationError {
    /// The overbooked slice does not have this class.
    #[error("`{flow}` has class {class} of the server, which has {classes}, counted from 0")]
    NoClass {
        /// The flow.
        flow: String,
        /// The class.
        class: usize,
        /// Number of classes of the overbooked slice.
        classes: usize,
    },
    /// A flow with a class has a contract that is no cell contract.
    #[error("`{0}` has a class: its contract must be a cell contract, and nothing else")]
    ClassWithoutCell(String),
    /// A flow behind a processor has a class.
    #[error("`{0}` has a class: a server is on the link, with no [processor] before it")]
    ClassBehindProcessor(String),
    /// A flow without a channel contract has an overload policy.
    #[error("`{0}` has an overload policy: that needs a channel contract")]
    PolicyWithoutChannel(String),
    /// A greedy flow has an overload policy, which would have no effect: the flow never exceeds its
    /// contract.
    #[error("`{0}` has an overload policy: its source is greedy, which never exceeds the contract")]
    PolicyOfGreedy(String),
    /// A flow has an overload policy and a queue limit, which contradict each other.
    #[error("`{0}` has an overload policy and a `queue` of {1}: name only one of them")]
    PolicyAndQueue(String, usize),
    /// The source has messages of 0 bytes, or of more than 1 GiB.
    #[error("`{flow}` has messages of {size}: 1B to {LONGEST_MESSAGE}")]
    Size {
        /// The flow.
        flow: String,
        /// The size.
        size: Bytes,
    },
    /// The source has no time between messages, so their number is unlimited.
    #[error("`{flow}` has 0s from one message to the next (`{key}`): 1ns at least")]
    NoTime {
        /// The flow.
        flow: String,
        /// The source's key for the time.
        key: &'static str,
    },
    /// The source has bursts of no messages, or of more than 1,000,000.
    #[error("`{flow}` has {count} messages in a burst: 1 to {MAX_BURST}")]
    Burst {
        /// The flow.
        flow: String,
        /// Messages per burst.
        count: u32,
    },
    /// The processing of a block of the flow takes more than 10 ms.
    #[error(
        "`{flow}`: the processor takes {takes} for a block of {packets} packets of it, and is not \
         interrupted meanwhile: {LONGEST_BLOCK} at most"
    )]
    LongBlock {
        /// The flow.
        flow: String,
        /// Packets per block.
        packets: u64,
        /// The processing time of a block.
        takes: Nanos,
    },
    /// The processor makes packets of 0 bytes.
    #[error("the processor makes packets of 0B (`largest`): 1B at least")]
    EmptyPackets,
    /// The processor takes no time, so the simulation would not end.
    #[error("the processor takes no time: leave it out")]
    IdleProcessor,
    /// The transfers of an adapter carry no cells, so the simulation might not end.
    #[error("the adapter fetches 0 cells per transfer (`unit`): 1 at least")]
    EmptyTransfers,
    /// The scheduler refuses the link, the overbooked slice, a flow or a packet.
    #[error(transparent)]
    SchedulerError(#[from] SchedulerError),
}

impl Simulation {
    /// Checks the processor and the flows.
    ///
    /// # Errors
    /// The first error that is found.
    pub(crate) fn validate(&self) -> Result<(), SimulationError> {
        if self.processor.is_some_and(|costs| costs.largest.0 == 0) {
            return Err(SimulationError::EmptyPackets);
        }
        for flow in &self.flows {
            self.validate_class(flow)?;
            validate_policy(flow)?;
            validate_source(flow)?;
            if let Some(processor) = &self.processor {
                validate_blocks(flow, processor)?;
            }
        }
        Ok(())
    }

    fn validate_class(&self, flow: &SimFlow) -> Result<(), SimulationError> {
        let (Some(class), Some(server)) = (flow.class, &self.overbooked) else {
            return Ok(());
        };
        let name = || flow.name.clone();
        match () {
            () if self.processor.is_some() => Err(SimulationError::ClassBehindProcessor(name())),
            () if !matches!(flow.service, Service::Cell(_)) => {
                Err(SimulationError::ClassWithoutCell(name()))
            }
            () if class >= server.classes.len() => Err(SimulationError::NoClass {
                flow: name(),
                class,
                classes: server.classes.len(),
            }),
            () => Ok(()),
        }
    }
}

fn validate_policy(flow: &SimFlow) -> Result<(), SimulationError> {
    let name = || flow.name.clone();
    match () {
        () if flow.overload.is_none() => Ok(()),
        () if flow.channel().is_none() => Err(SimulationError::PolicyWithoutChannel(name())),
        () if matches!(flow.source, Source::Greedy { .. }) => {
            Err(SimulationError::PolicyOfGreedy(name()))
        }
        () if flow.queue != usize::MAX => Err(SimulationError::PolicyAndQueue(name(), flow.queue)),
        () => Ok(()),
    }
}

fn validate_source(flow: &SimFlow) -> Result<(), SimulationError> {
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
        return Err(SimulationError::NoTime { flow, key });
    }
    if let Source::Bursts { count, .. } = flow.source
        && !(1..=MAX_BURST).contains(&count)
    {
        let flow = name();
        return Err(SimulationError::Burst { flow, count });
    }
    let odd = |size: &Bytes| !(1..=LONGEST_MESSAGE.0).contains(&size.0);
    match flow.source.sizes().find(odd) {
        Some(size) => Err(SimulationError::Size { flow: name(), size }),
        None => Ok(()),
    }
}

/// Checks the processing time of the flow's longest block: not too long, and not 0.
fn validate_blocks(flow: &SimFlow, processor: &Processor) -> Result<(), SimulationError> {
    let largest = flow.source.sizes().max().unwrap_or(Bytes(1));
    let all = simulation::packets(largest.0, processor);
    let packets = all.min(processor.block.get().into());
    let takes = simulation::processing(packets, true, processor);
    if takes > LONGEST_BLOCK {
        let flow = flow.name.clone();
        return Err(SimulationError::LongBlock {
            flow,
            packets,
            takes,
        });
    }
    match takes {
        Nanos(0) => Err(SimulationError::IdleProcessor),
        _ => Ok(()),
    }
}

/// 10 ms of processing, which is long for a block that is not interrupted.
pub(crate) const LONGEST_BLOCK: Nanos = Nanos::from_millis(10);
/// The longest simulated message: it is cut into packets when it arrives, and all of them wait.
const LONGEST_MESSAGE: Bytes = Bytes(1 << 30);
/// Most messages of one burst, which all wait at once.
const MAX_BURST: u32 = 1_000_000;

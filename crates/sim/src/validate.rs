//! Validates a simulation before it runs. An invalid simulation would give wrong results or never
//! end. So it is refused with a [`SimulationError`], which names what is invalid: the flow, the
//! processor or the adapter, and the value and its limit if there is one. The scheduler checks the
//! link, the overbooked slice and the contracts when the simulation starts.

use netnice_core::admission::timing::Processor;
use netnice_core::sched::Service;
use netnice_core::units::{Bytes, Nanos};

use crate::Source;
use crate::error::{LONGEST_BLOCK, LONGEST_MESSAGE, MAX_BURST, SimulationError};
use crate::simulation::{SimFlow, Simulation};

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
    let all = processor.packets(largest);
    let packets = all.min(processor.block.get().into());
    let takes = processor.processing(packets, true);
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

//! The errors of simulations ([`SimulationError`]) and of scenarios as text ([`ScenarioError`]),
//! and the limits that they name. No function fails.

use netnice_core::contract::{Clause, ContractError};
use netnice_core::sched::{NotServed, SchedulerError};
use netnice_core::units::{Bytes, Nanos, UnitError};

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

/// The reason why a text is no scenario.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The TOML is malformed, or a key is unknown.
    #[error("not a scenario: {0}")]
    Form(#[from] toml::de::Error),
    /// A quantity does not parse.
    #[error("{key}: {error}")]
    Unit {
        /// The key.
        key: &'static str,
        /// The cause.
        error: UnitError,
    },
    /// A contract does not parse, or contradicts itself.
    #[error(transparent)]
    Contract(#[from] ContractError),
    /// A contract combines services that one flow cannot have.
    #[error(transparent)]
    NotServed(#[from] NotServed),
    /// A contract has a clause without effect in a simulation.
    #[error("`{flow}`: `{clause}` has no effect: only sending on one link is simulated")]
    NoEffect {
        /// The flow.
        flow: String,
        /// The clause.
        clause: Clause,
    },
    /// The slice of the `[server]` does not parse, or is not just a time and a period.
    #[error("server.slice, which is a time and its period: {0}")]
    Server(ContractError),
    /// A flow has a class, and the scenario has no `[server]`. Holds the flow.
    #[error("`{0}` has a class: that needs a [server]")]
    NoServer(String),
    /// The simulation is invalid.
    #[error(transparent)]
    Simulation(#[from] SimulationError),
    /// Two flows have the same name. Holds the name.
    #[error("two flows are named `{0}`: give each flow its own name")]
    SameName(String),
}

/// 10 ms of processing, which is long for a block that is not interrupted.
pub(crate) const LONGEST_BLOCK: Nanos = Nanos::from_millis(10);
/// The longest simulated message: it is cut into packets when it arrives, and all of them wait.
pub(crate) const LONGEST_MESSAGE: Bytes = Bytes(1 << 30);
/// Most messages of one burst, which all wait at once.
pub(crate) const MAX_BURST: u32 = 1_000_000;

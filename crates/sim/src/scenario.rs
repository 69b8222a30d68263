//! Simulations as text, in TOML. The text of a scenario (a simulation and its duration) comes in,
//! and a [`Scenario`] or a [`ScenarioError`] goes out. Quantities are text with a unit and
//! contracts are contract text, both parsed by `netnice-core`. An unknown key is an error. The
//! structs of this file list all keys. `crates/sim/scenarios` has more examples.
//!
//! ```
//! let text = r#"
//!     duration = "2s"
//!     seed = 7
//!
//!     [link]
//!     rate = "10mbit"
//!     longest = "1500B"
//!
//!     [[flow]]
//!     name = "video"
//!     contract = "slice 2.4ms/50ms"
//!     source = { kind = "greedy", size = "1500B" }
//!
//!     [[flow]]
//!     name = "phone"
//!     contract = "cell pcr=1mbit,cdvt=5ms"
//!     source = { kind = "constant", size = "200B", every = "2ms" }
//!     start = "1s"
//! "#;
//! let scenario: netnice_sim::scenario::Scenario = text.parse()?;
//! let report = scenario.simulation.run(scenario.duration, |_| ())?;
//! assert_eq!(report.flow("video").map(|flow| flow.packets), Some(80));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::num::NonZeroU32;
use std::str::FromStr;

use netnice_core::admission::timing::Processor;
use netnice_core::contract::{Change, Clause, Contract, ContractError};
use netnice_core::sched::{Class, Overload, Wire};
use netnice_core::units::{Bytes, Nanos, UnitError};
use serde::Deserialize;

use crate::Source;
use crate::queueing::OverbookedSlice;
use crate::simulation::{SimFlow, Simulation};

pub use crate::error::ScenarioError;

/// A simulation and its duration.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The simulation.
    pub simulation: Simulation,
    /// The time to simulate.
    pub duration: Nanos,
}

impl FromStr for Scenario {
    type Err = ScenarioError;

    fn from_str(text: &str) -> Result<Scenario, ScenarioError> {
        let typed: ScenarioToml = toml::from_str(text)?;
        let link = typed.link;
        let given = Wire::new(read("link.rate", &link.rate)?);
        let wire = Wire {
            overhead: read_or("link.overhead", link.overhead, given.overhead)?,
            ahead: read_or("link.ahead", link.ahead, given.ahead)?,
            horizon: read_or("link.horizon", link.horizon, given.horizon)?,
            longest: read_or("link.longest", link.longest, given.longest)?,
            ..given
        };
        let mut simulation = Simulation {
            seed: typed.seed.unwrap_or(1),
            processor: typed.processor.map(ProcessorToml::read).transpose()?,
            ..Simulation::new(wire)
        };
        simulation.overbooked = typed.server.map(ServerToml::read).transpose()?;
        for flow in typed.flow {
            if simulation.flows.iter().any(|other| other.name == flow.name) {
                return Err(ScenarioError::SameName(flow.name));
            }
            let flow = flow.read()?;
            if flow.class.is_some() && simulation.overbooked.is_none() {
                return Err(ScenarioError::NoServer(flow.name));
            }
            simulation.flows.push(flow);
        }
        simulation.validate()?;
        Ok(Scenario {
            simulation,
            duration: read("duration", &typed.duration)?,
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScenarioToml {
    duration: String,
    seed: Option<u64>,
    link: LinkToml,
    processor: Option<ProcessorToml>,
    server: Option<ServerToml>,
    #[serde(default)]
    flow: Vec<FlowToml>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkToml {
    rate: String,
    overhead: Option<String>,
    ahead: Option<String>,
    horizon: Option<String>,
    longest: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct ProcessorToml {
    switch: String,
    cache_miss: String,
    first: String,
    later: String,
    link_scheduling: String,
    block: NonZeroU32,
    largest: String,
}

/// A slice, and for each class its minimum or `none`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ServerToml {
    slice: String,
    classes: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FlowToml {
    name: String,
    #[serde(default)]
    contract: String,
    source: SourceToml,
    class: Option<usize>,
    start: Option<String>,
    stop: Option<String>,
    queue: Option<usize>,
    overload: Option<OverloadToml>,
}

/// The names of the overload policies in a scenario.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum OverloadToml {
    Block,
    Decay,
    Space,
    Drop,
    BestEffort,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", tag = "kind")]
enum SourceToml {
    Greedy {
        size: String,
    },
    Constant {
        size: String,
        every: String,
    },
    OnOff {
        size: String,
        every: String,
        on: String,
        off: String,
    },
    Poisson {
        size: String,
        mean: String,
    },
    Bursts {
        size: String,
        count: u32,
        every: String,
    },
    Trace {
        packets: Vec<(String, String)>,
    },
}

impl ProcessorToml {
    fn read(self) -> Result<Processor, ScenarioError> {
        Ok(Processor {
            switch: read("processor.switch", &self.switch)?,
            cache_miss: read("processor.cache-miss", &self.cache_miss)?,
            first: read("processor.first", &self.first)?,
            later: read("processor.later", &self.later)?,
            link_scheduling: read("processor.link-scheduling", &self.link_scheduling)?,
            block: self.block,
            largest: read("processor.largest", &self.largest)?,
            leftover: Nanos(0),
        })
    }
}

impl ServerToml {
    fn read(self) -> Result<OverbookedSlice, ScenarioError> {
        // Accepts the times only.
        let change = Change::from_clauses([(Clause::Slice, &self.slice[..])], false, false);
        let contract = change.and_then(|change| Contract::default().apply(&change));
        let slice = contract.and_then(|one| one.slice().ok_or(ContractError::Empty));
        let class = |text: &String| match text.as_str() {
            "none" => Ok(Class { min: None }),
            text => read("server.classes", text).map(|min| Class { min: Some(min) }),
        };
        let classes: Result<Vec<Class>, ScenarioError> = self.classes.iter().map(class).collect();
        Ok(OverbookedSlice {
            slice: slice.map_err(ScenarioError::Server)?,
            classes: classes?,
        })
    }
}

impl FlowToml {
    fn read(self) -> Result<SimFlow, ScenarioError> {
        let flow = SimFlow::new(&self.name, &self.contract, self.source.read()?)?;
        Ok(SimFlow {
            class: self.class,
            start: read_or("start", self.start, Nanos(0))?,
            stop: self.stop.map(|text| read("stop", &text)).transpose()?,
            queue: self.queue.unwrap_or(usize::MAX),
            overload: self.overload.map(OverloadToml::read),
            ..flow
        })
    }
}

impl OverloadToml {
    fn read(self) -> Overload {
        match self {
            OverloadToml::Block => Overload::Block,
            OverloadToml::Decay => Overload::Decay,
            OverloadToml::Space => Overload::Space,
            OverloadToml::Drop => Overload::Drop,
            OverloadToml::BestEffort => Overload::BestEffort,
        }
    }
}

impl SourceToml {
    fn read(self) -> Result<Source, ScenarioError> {
        let bytes = |text: &str| read::<Bytes>("source.size", text);
        Ok(match self {
            SourceToml::Greedy { size } => Source::Greedy {
                size: bytes(&size)?,
            },
            SourceToml::Constant { size, every } => Source::Constant {
                size: bytes(&size)?,
                every: read("source.every", &every)?,
            },
            SourceToml::OnOff {
                size,
                every,
                on,
                off,
            } => Source::OnOff {
                size: bytes(&size)?,
                every: read("source.every", &every)?,
                on: read("source.on", &on)?,
                off: read("source.off", &off)?,
            },
            SourceToml::Poisson { size, mean } => Source::Poisson {
                size: bytes(&size)?,
                mean: read("source.mean", &mean)?,
            },
            SourceToml::Bursts { size, count, every } => Source::Bursts {
                size: bytes(&size)?,
                count,
                every: read("source.every", &every)?,
            },
            SourceToml::Trace { packets } => {
                let one =
                    |(at, size): &(String, String)| Ok((read("source.packets", at)?, bytes(size)?));
                let all: Result<Vec<_>, ScenarioError> = packets.iter().map(one).collect();
                Source::Trace(all?)
            }
        })
    }
}

fn read<T: FromStr<Err = UnitError>>(key: &'static str, text: &str) -> Result<T, ScenarioError> {
    let value = text.parse();
    value.map_err(|error| ScenarioError::Unit { key, error })
}

fn read_or<T: FromStr<Err = UnitError>>(
    key: &'static str,
    text: Option<String>,
    default: T,
) -> Result<T, ScenarioError> {
    text.map_or(Ok(default), |text| read(key, &text))
}

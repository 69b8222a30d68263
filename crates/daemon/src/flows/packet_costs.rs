//! What a packet costs: the processor time of the program that sends or receives it, and of the
//! driver, and with these the processor time that a flow's contract takes.
//!
//! A program's cost is the processor time of its process since it attached, divided by the packets
//! that its flows have sent and received since then. So it contains all the other work of the
//! process. The packets of closed flows count; those of another driver do not. The driver's cost is
//! that of the last seconds ([`super::driver_threads`]). Nothing here fails; what is unknown is not
//! shown.

use std::collections::BTreeMap;

use netnice_api::direct::Endpoint;
use netnice_api::driver::FlowCounts;
use netnice_core::admission::packet_costs::{SendingFlow, SendingProtocol};
use netnice_core::contract::{Contract, Direction, Slice};
use netnice_core::units::{Nanos, Rate};

use super::network::Network;
use super::{FlowRecord, Flows, Program};
use crate::page::Page;

/// Packets and their bytes, in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Packets {
    packets: u64,
    bytes: u64,
}

impl Packets {
    /// The packets that a flow has sent and delivered to its program.
    pub(super) fn of(counts: &FlowCounts) -> Packets {
        Packets {
            packets: counts.sent.saturating_add(counts.delivered),
            bytes: counts.sent_bytes.saturating_add(counts.delivered_bytes),
        }
    }

    /// Adds packets of another flow.
    pub(super) fn add(&mut self, other: Packets) {
        self.packets = self.packets.saturating_add(other.packets);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }

    fn less(self, other: Packets) -> Packets {
        Packets {
            packets: self.packets.saturating_sub(other.packets),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }

    /// The mean size in bytes; `None` without packets.
    fn size(self) -> Option<u64> {
        self.bytes.checked_div(self.packets)
    }
}

/// What a program's cost is computed from, beside the counts of its open flows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CostBase {
    /// The processor time of its process when it attached, or when this daemon found it; `None` if
    /// unknown.
    pub(super) processor: Option<Nanos>,
    /// The packets of its flows at that time.
    pub(super) before: Packets,
    /// The packets of flows that it has closed since.
    pub(super) closed: Packets,
}

impl CostBase {
    /// The base of a program that has no flows yet.
    pub(super) fn new(processor: Option<Nanos>) -> CostBase {
        CostBase {
            processor,
            ..CostBase::default()
        }
    }

    /// The processor time for each packet, if the process has used `processor` so far and its open
    /// flows have these packets. `None` with fewer packets than [`LEAST_PACKETS`].
    fn cost(&self, processor: Nanos, open: Packets) -> Option<Nanos> {
        let mut packets = open;
        packets.add(self.closed);
        let packets = packets.less(self.before).packets;
        let used = processor.0.saturating_sub(self.processor?.0);
        (packets >= LEAST_PACKETS).then(|| Nanos(used / packets))
    }
}

/// The costs of a packet; `None`: unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PacketCost {
    pub(super) program: Option<Nanos>,
    pub(super) driver: Option<Nanos>,
}

impl<N: Network> Flows<N> {
    /// The cost of a packet of a flow. `counts_of` has the counts of the flows of its program.
    pub(super) fn packet_cost<'a>(
        &self,
        flow: &FlowRecord,
        counts_of: impl Fn(&FlowRecord) -> Option<&'a FlowCounts>,
    ) -> PacketCost {
        let Some(state) = self.link_states.get(&flow.link) else {
            return PacketCost::default();
        };
        let program = state.programs.get(&flow.program);
        PacketCost {
            program: program.and_then(|program| self.cost_of_program(program, counts_of)),
            driver: state.thread.packet_cost(),
        }
    }

    fn cost_of_program<'a>(
        &self,
        program: &Program,
        counts_of: impl Fn(&FlowRecord) -> Option<&'a FlowCounts>,
    ) -> Option<Nanos> {
        let mut open = Packets::default();
        for number in &program.open {
            let flow = self.flows.get(number)?;
            if flow.at_driver.is_some() {
                open.add(Packets::of(counts_of(flow)?));
            }
        }
        let processor = self.network.processor_time(program.pid)?;
        program.cost_base.cost(processor, open)
    }

    /// The numbers of the other flows of the programs of these flows, whose counts the costs of a
    /// packet need. None of a program with more than [`MOST_FLOWS`].
    pub(super) fn flows_beside(&self, flows: &[u32]) -> Vec<u32> {
        let programs = flows.iter().filter_map(|number| {
            let flow = self.flows.get(number)?;
            let state = self.link_states.get(&flow.link)?;
            state.programs.get(&flow.program)
        });
        let programs = programs.filter(|program| program.open.len() <= MOST_FLOWS);
        let all = programs.flat_map(|program| program.open.iter().copied());
        all.collect()
    }

    /// The flows that are promised a rate, by the process of their program.
    pub(crate) fn sending_flows(&self) -> BTreeMap<u32, Vec<SendingFlow>> {
        let mut sending: BTreeMap<u32, Vec<SendingFlow>> = BTreeMap::new();
        for flow in self.flows.values() {
            let is_served = flow.at_driver.is_some() && flow.closing.is_none();
            let Some(state) = self.link_states.get(&flow.link).filter(|_| is_served) else {
                continue;
            };
            let link = state.capacity.map(|capacity| capacity.link_rate);
            let promised = carried(&flow.contract, link).filter(|_| flow.degraded.is_none());
            let Some((_, rate)) = promised else {
                continue;
            };
            if let Some(program) = state.programs.get(&flow.program) {
                let flows = sending.entry(program.pid).or_default();
                flows.push(SendingFlow {
                    protocol: match flow.endpoint {
                        Endpoint::Tcp { .. } => SendingProtocol::Tcp,
                        _ => SendingProtocol::Udp,
                    },
                    rate,
                    packet: flow.mtu,
                    period: flow.contract.slice().map(|slice| slice.period()),
                });
            }
        }
        sending
    }

    /// Counts the packets of a flow that has been closed.
    pub(super) fn count_closed(&mut self, number: u32, counts: &FlowCounts) {
        let Some(flow) = self.flows.get(&number) else {
            return;
        };
        let state = self.link_states.get_mut(&flow.link);
        let program = state.and_then(|state| state.programs.get_mut(&flow.program));
        if let Some(program) = program {
            program.cost_base.closed.add(Packets::of(counts));
        }
    }
}

/// Adds the costs of a packet of a flow with these counts, and what its contract takes at its mean
/// size of packets. `link` is the rate of its link, and `reserved` the processor time that its
/// program has for certain.
pub(super) fn rows(
    cost: PacketCost,
    (contract, counts): (&Contract, &FlowCounts),
    link: Option<Rate>,
    reserved: Option<Slice>,
    page: &mut Page,
) {
    let by_whom = [
        (cost.program, "in the program, with all else that it does"),
        (cost.driver, "in the driver"),
    ];
    let known = by_whom
        .iter()
        .filter_map(|(cost, word)| Some(((*cost)?, word)));
    let texts: Vec<String> = known
        .map(|(cost, word)| format!("{} {word}", rounded(cost)))
        .collect();
    if texts.is_empty() {
        return;
    }
    page.row(
        "costs",
        &format!("a packet takes processor time: {}", texts.join("; ")),
    );
    let carried = carried(contract, link);
    let (Some((word, rate)), Some(size)) = (carried, Packets::of(counts).size()) else {
        return;
    };
    let period = match (reserved, contract.slice()) {
        (Some(slice), _) | (None, Some(slice)) => slice.period(),
        (None, None) => SHOWN_PERIOD,
    };
    let takes: Vec<String> = [(cost.program, "the program"), (cost.driver, "the driver")]
        .into_iter()
        .filter_map(|(cost, word)| {
            let time = rounded(needed(cost?, rate, size, period));
            Some(format!("{time} of each {period} in {word}"))
        })
        .collect();
    let reserved = match reserved {
        Some(slice) => format!("reserved for the program are {}", slice.slice()),
        None => "no processor time is reserved for the program".to_owned(),
    };
    page.row(
        "takes",
        &format!(
            "{word} carries {rate} in packets of {size} bytes, which takes {}; {reserved}",
            takes.join(" and ")
        ),
    );
}

/// The clause of a contract that promises a rate, and that rate on a link of the rate `link`.
fn carried(contract: &Contract, link: Option<Rate>) -> Option<(&'static str, Rate)> {
    let slice = || Some(("the slice", contract.slice()?.of(link?)?));
    let cell = || Some(("the cell contract", contract.cell()?.rate()));
    let channel = || Some(("the channel", Rate::new(contract.channel()?.rate().0)?));
    let min = || Some(("the minimum", contract.min(Direction::Up)?));
    slice().or_else(cell).or_else(channel).or_else(min)
}

/// The processor time in each `period` for packets of `size` bytes at this rate.
fn needed(cost: Nanos, rate: Rate, size: u64, period: Nanos) -> Nanos {
    let bits = u128::from(size.max(1)) * 8 * 1_000_000_000;
    let time = u128::from(cost.0)
        .saturating_mul(rate.bits_per_second().into())
        .saturating_mul(period.0.into());
    Nanos(u64::try_from(time.div_ceil(bits)).unwrap_or(u64::MAX))
}

/// A time with at most three digits.
fn rounded(time: Nanos) -> Nanos {
    let mut unit = 1;
    while time.0 / unit >= 1_000 {
        unit *= 10;
    }
    Nanos(time.0 / unit * unit)
}

/// Fewer packets say little about the cost of one.
pub(super) const LEAST_PACKETS: u64 = 100;
/// Programs with more flows than this have no known cost: their counts would take long.
const MOST_FLOWS: usize = 64;
/// The period for which processor time is shown if the contract has none.
const SHOWN_PERIOD: Nanos = Nanos::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn packets(packets: u64, bytes: u64) -> Packets {
        Packets { packets, bytes }
    }

    #[test]
    fn a_cost_counts_all_packets_since_the_program_attached() {
        let mut base = CostBase::new(Some(Nanos(1_000_000)));
        let now = Nanos(3_000_000);
        assert_eq!(base.cost(now, packets(LEAST_PACKETS - 1, 0)), None);
        assert_eq!(base.cost(now, packets(1_000, 0)), Some(Nanos(2_000)));
        base.closed.add(packets(1_000, 7));
        assert_eq!(base.cost(now, packets(1_000, 0)), Some(Nanos(1_000)));
        base.before = packets(1_600, 0);
        assert_eq!(base.cost(now, packets(1_000, 0)), Some(Nanos(5_000)));
        assert_eq!(base.cost(Nanos(5), packets(1_000, 0)), Some(Nanos(0)));
        let unknown = CostBase::new(None);
        assert_eq!(unknown.cost(now, packets(1_000, 0)), None);
    }

    #[test]
    fn a_contract_takes_its_packets_times_their_cost() {
        let rate = Rate::new(10_000_000).expect("a rate");
        let period = Nanos::from_millis(10);
        // 1000 packets of 1250 bytes a second, ten in each period.
        let takes = needed(Nanos(110_000), rate, 1_250, period);
        assert_eq!(takes, Nanos(1_100_000));
        let most = Rate::new(1_000_000_000_000).unwrap_or(rate);
        needed(Nanos(u64::MAX), most, 0, Nanos(u64::MAX));
    }

    #[test]
    fn times_are_shown_with_three_digits() {
        assert_eq!(rounded(Nanos(999)), Nanos(999));
        assert_eq!(rounded(Nanos(1_234_567)), Nanos(1_230_000));
        assert_eq!(rounded(Nanos(0)), Nanos(0));
    }

    #[test]
    fn the_rate_of_a_contract_is_that_of_its_promise() {
        let link = Rate::new(100_000_000);
        let carried = |text: &str| {
            let contract: Contract = text.parse().expect("a contract");
            carried(&contract, link).map(|(_, rate)| rate.bits_per_second())
        };
        assert_eq!(carried("slice 1ms/10ms"), Some(10_000_000));
        assert_eq!(carried("min 3mbit"), Some(3_000_000));
        assert_eq!(carried("cell pcr=2mbit,cdvt=1ms"), Some(2_000_000));
        assert_eq!(carried("weight 3"), None);
    }
}

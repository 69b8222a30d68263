//! The processor time that a program needs to send what is promised to its flows ([`needed`]).
//!
//! The time for a rate follows a line that was measured on the machine (paper NTCP, figure 7):
//!
//! ```text
//! part of a processor = idle + packets a second × packet
//! ```
//!
//! The line is that of a program that does nothing but send packets of [`MEASURED_BYTES`]; larger
//! ones count as several. Other work of a program is not in it. All arithmetic rounds up, and
//! saturates.

use crate::contract::Slice;
use crate::units::{Nanos, Rate};

/// What a program's packets cost on a machine, by protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketCosts {
    /// The line of programs that send by UDP.
    pub udp: PacketCost,
    /// The line of programs that send by TCP.
    pub tcp: PacketCost,
}

/// The line of a protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketCost {
    /// The part of a processor of a program that sends little, in parts of 10^9.
    pub idle_ppb: u64,
    /// Processor time for each packet, in picoseconds.
    pub packet_ps: u64,
}

/// The protocol of a flow that sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SendingProtocol {
    /// UDP, and all protocols but TCP.
    Udp,
    /// TCP.
    Tcp,
}

/// A flow that is promised a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendingFlow {
    /// Its protocol.
    pub protocol: SendingProtocol,
    /// The rate that it is promised.
    pub rate: Rate,
    /// Bytes of a full packet.
    pub packet: u32,
    /// The period of its slice; `None` if it has none.
    pub period: Option<Nanos>,
}

/// The flows of a program need more than a whole processor: this part of it, in parts of 10^9.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "its flows need {} % of a processor, more than the 100 % that can be reserved",
    .0.div_ceil(10_000_000)
)]
pub struct MoreThanOne(pub u64);

impl PacketCost {
    /// The part of a processor for a rate, without [`PacketCost::idle_ppb`], in parts of 10^9.
    fn part(&self, rate: Rate, packet: u32) -> u128 {
        let size = u128::from(packet.clamp(1, MEASURED_BYTES));
        // bits a second / bits a packet × ps a packet = parts of 10^12
        let parts = u128::from(rate.bits_per_second()).saturating_mul(self.packet_ps.into());
        parts.div_ceil(size * 8 * 1_000)
    }
}

/// The time that a program needs to send what its flows are promised, plus [`RESERVE_PERCENT`];
/// `None` without flows. The period is that of the shortest slice, but at least [`SHORTEST`].
///
/// # Errors
/// [`MoreThanOne`].
pub fn needed(costs: &PacketCosts, flows: &[SendingFlow]) -> Result<Option<Slice>, MoreThanOne> {
    if flows.is_empty() {
        return Ok(None);
    }
    let cost = |protocol| match protocol {
        SendingProtocol::Udp => &costs.udp,
        SendingProtocol::Tcp => &costs.tcp,
    };
    let mut parts = 0_u128;
    let mut idle = 0;
    for flow in flows {
        let cost = cost(flow.protocol);
        idle = idle.max(cost.idle_ppb);
        parts = parts.saturating_add(cost.part(flow.rate, flow.packet));
    }
    let parts = parts.saturating_add(u128::from(idle));
    let parts = parts.saturating_mul(100 + RESERVE_PERCENT);
    let ppb = u64::try_from(parts.div_ceil(100)).unwrap_or(u64::MAX);
    if ppb > ONE {
        return Err(MoreThanOne(ppb));
    }
    let period = flows.iter().filter_map(|flow| flow.period).min();
    let period = period
        .unwrap_or(SHORTEST)
        .clamp(SHORTEST, Slice::LONGEST_CPU_PERIOD);
    let time = u128::from(ppb) * u128::from(period.0);
    let micros = time.div_ceil(u128::from(ONE) * 1_000);
    let micros = u64::try_from(micros).unwrap_or(u64::MAX);
    let least = Slice::LEAST_CPU.0.max(period.0.div_ceil(LEAST_DIVISOR));
    let time = Nanos(micros.saturating_mul(1_000).max(least).min(period.0));
    // The time is within the period, and both are within the bounds of a slice.
    Ok(Slice::new(time, period, false).ok())
}

/// Bytes of the packets whose cost was measured.
pub const MEASURED_BYTES: u32 = 1_500;
/// What is reserved beyond the line, in percent (a tenth).
pub const RESERVE_PERCENT: u128 = 10;
/// The shortest period: a few ticks of the kernel.
pub const SHORTEST: Nanos = Nanos::from_millis(10);
/// A whole processor, in parts of 10^9.
const ONE: u64 = 1_000_000_000;
/// The smallest share of a control group is one thousandth.
const LEAST_DIVISOR: u64 = 1_000;

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use proptest::prelude::*;

    use super::*;

    fn costs() -> PacketCosts {
        let line = |packet_ps| PacketCost {
            idle_ppb: 1_000_000,
            packet_ps,
        };
        PacketCosts {
            udp: line(1_000_000),
            tcp: line(2_000_000),
        }
    }

    fn flow(protocol: SendingProtocol, rate: u64) -> SendingFlow {
        SendingFlow {
            protocol,
            rate: Rate::new(rate).expect("a rate"),
            packet: 1_500,
            period: Some(Nanos::from_millis(1)),
        }
    }

    #[test]
    fn a_need_is_the_sum_of_the_packets_and_a_tenth() {
        assert_eq!(needed(&costs(), &[]), Ok(None));
        // 120 Mbit/s are 10,000 packets a second of 1 us, so 1 % of a processor, and 0.1 % idle.
        let udp = flow(SendingProtocol::Udp, 120_000_000);
        let slice = needed(&costs(), &[udp])
            .expect("less than one")
            .expect("a flow");
        assert_eq!(slice.period(), SHORTEST);
        assert_eq!(slice.slice(), Nanos::from_micros(121));
        // A TCP packet is 2 us here; the idle part counts once.
        let tcp = flow(SendingProtocol::Tcp, 120_000_000);
        let slice = needed(&costs(), &[udp, tcp]).expect("less").expect("flows");
        assert_eq!(slice.slice(), Nanos::from_micros(341));
        assert!(!slice.extra());
    }

    #[test]
    fn the_period_is_that_of_the_shortest_slice() {
        let long = SendingFlow {
            period: Some(Nanos::from_millis(50)),
            ..flow(SendingProtocol::Udp, 120_000_000)
        };
        let period = |flows: &[SendingFlow]| {
            let slice = needed(&costs(), flows).expect("less").expect("flows");
            slice.period()
        };
        assert_eq!(period(&[long]), Nanos::from_millis(50));
        let longer = SendingFlow {
            period: Some(Nanos::from_secs(9)),
            ..long
        };
        assert_eq!(period(&[longer]), Nanos::from_secs(1));
        assert_eq!(period(&[longer, long]), Nanos::from_millis(50));
    }

    #[test]
    fn a_large_packet_counts_as_several() {
        let of = |packet| {
            let flow = SendingFlow {
                packet,
                ..flow(SendingProtocol::Udp, 120_000_000)
            };
            needed(&costs(), &[flow])
        };
        assert_eq!(of(9_000), of(1_500));
        assert!(of(750).expect("less").map(|slice| slice.slice().0) > Some(200_000));
    }

    #[test]
    fn little_is_reserved_as_what_the_kernel_can_keep() {
        let slow = flow(SendingProtocol::Udp, 8_000);
        let free = PacketCosts {
            udp: PacketCost::default(),
            tcp: PacketCost::default(),
        };
        let slice = needed(&free, &[slow]).expect("less").expect("a flow");
        assert_eq!(slice.slice(), Slice::LEAST_CPU);
    }

    #[test]
    fn more_than_a_processor_is_an_error_with_the_part() {
        let fast = flow(SendingProtocol::Tcp, 12_000_000_000);
        let error = needed(&costs(), &[fast]).expect_err("2 us for each of 10^6 packets");
        assert!(
            error.to_string().contains("221 % of a processor"),
            "{error}"
        );
    }

    proptest! {
        #[test]
        fn a_need_is_a_slice_that_grows_with_the_rate(
            rate in 1_000..1_000_000_000_000_u64,
            more in 1..1_000_000_u64,
            packet in any::<u32>(),
            cost in any::<(u64, u64)>(),
        ) {
            let line = PacketCost { idle_ppb: cost.0, packet_ps: cost.1 };
            let costs = PacketCosts { udp: line, tcp: line };
            let of = |rate| {
                let flow = SendingFlow { packet, ..flow(SendingProtocol::Udp, rate) };
                needed(&costs, &[flow]).map(|slice| slice.map_or(0, |slice| slice.slice().0))
            };
            match (of(rate), of(rate + more)) {
                (Ok(one), Ok(two)) => prop_assert!(0 < one && one <= two),
                (Err(one), two) => prop_assert!(one.0 <= two.map_or_else(|e| e.0, |_| 0)),
                (Ok(_), Err(_)) => {}
            }
        }
    }
}

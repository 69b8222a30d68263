//! What a relay needs of a link for a channel ([`Plan`]): the contract with the headers of all
//! packets, the buffers, and the room for messages that wait. It fails with [`PlanFault`] if the
//! channel is beyond what one flow can have.
//!
//! Let B be the relay's final bound and D the deadline of the channel. As in
//! docs/reference/channels.md (section 5), at most ⌊B Rmax′⌋ + 1 messages have a logical arrival at
//! this relay and have not left, so the flow has buffers for as many, and for Bmax at least. A
//! message that arrives before its logical arrival here waits. The hosts before this one keep a
//! message for at most D − B, so at most Bmax + ⌊(D − B) Rmax⌋ messages wait at once if the source
//! keeps to its contract. There is room for the messages of [`most_behind`] more, which come at
//! once after a stop of a host; what exceeds that is dropped. The flow has Rmax′
//! ([`netnice_core::contract::MessageRate::with_spare`]), so that what waits after a stop becomes
//! less.

use netnice_channel::{PacketHeader, messages_within, most_behind};
use netnice_core::contract::{Channel, ContractError, Overload};
use netnice_core::units::{Bytes, Nanos};
use netnice_stack::udp::Buffers;

use crate::message::{HopBound, ip_headers, parts_of};
use crate::signalling::HoldRequest;

/// What a channel needs of a link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    contract: Channel,
    /// Packets of a message of Mmax.
    parts: u64,
    /// Bytes of the longest packet of the channel, as an IP packet.
    ip_packet: u32,
    /// As the link counts a message of Mmax.
    mmax: Bytes,
    /// The relay's part of the bound.
    time: Nanos,
}

/// Why a channel cannot have a flow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PlanFault {
    #[error(
        "the relay needs {needed} packet buffers for the messages that can be on their way at \
         once, and a flow has at most {most}: ask for shorter messages, a lower rmax or bmax, or a \
         shorter deadline"
    )]
    Buffers { needed: u64, most: u32 },
    #[error(
        "the packets of the channel have {packet} bytes with their IP headers, and the path to the \
         next host carries {mtu}"
    )]
    PathMtu { packet: u32, mtu: u32 },
    #[error(transparent)]
    Contract(#[from] ContractError),
}

impl Plan {
    /// The plan of a channel, with this part of each bound for the relay itself.
    ///
    /// # Errors
    /// If the channel needs more buffers than a flow can have with a bound of its whole deadline.
    pub(super) fn new(request: &HoldRequest, time: Nanos) -> Result<Plan, PlanFault> {
        let contract = request.contract;
        let parts = parts_of(contract.mmax(), request.packet);
        let ip_headers = ip_headers(request.sink_address);
        let headers = PacketHeader::LENGTH as u64 + ip_headers + ETHERNET;
        let plan = Plan {
            contract,
            parts,
            ip_packet: u32::from(request.packet) + ip_headers as u32,
            // At most 16 MiB, and 65,535 parts.
            mmax: Bytes(contract.mmax().0 + parts * headers),
            time,
        };
        // No host gets a longer bound than the whole deadline.
        plan.sending(contract.deadline())?;
        Ok(plan)
    }

    /// The contract to hold: with the longest deadline that is of use.
    ///
    /// # Errors
    /// If the relay's part is longer than a contract allows.
    pub(super) fn longest_contract(&self) -> Result<String, PlanFault> {
        self.contract_with(LONGEST)
    }

    /// The contract of the flow with this final bound, of which the relay's part is for its
    /// processing.
    ///
    /// # Errors
    /// If the bound is not longer than the relay's part.
    pub(super) fn contract_with(&self, bound: Nanos) -> Result<String, PlanFault> {
        let own = &self.contract;
        // Otherwise a stop of the relay would make all later messages of a source late that sends
        // exactly Rmax.
        let rmax = own.rmax().with_spare();
        let channel = Channel::new(self.mmax, rmax, own.bmax(), bound)?;
        // What waits, waits in the relay: behind it no message is held back again.
        let channel = channel.with_processing(self.time)?;
        Ok(format!(
            "channel {}",
            channel.with_overload(Overload::Decay)
        ))
    }

    /// The buffers of the flow with this bound, on a path with this MTU.
    ///
    /// # Errors
    /// If there are too many, or if the path does not carry the channel's packets.
    pub(super) fn buffers(&self, bound: Nanos, mtu: u32) -> Result<Buffers, PlanFault> {
        let packet = self.ip_packet;
        if packet > mtu {
            return Err(PlanFault::PathMtu { packet, mtu });
        }
        Ok(Buffers {
            bytes: buffer_bytes(mtu),
            sending: self.sending(bound)?,
            receiving: 0,
        })
    }

    /// How many messages may wait for buffers, with this bound: those that the hosts before can
    /// hold back, and those by which a channel may be behind after a stop.
    pub(super) fn room(&self, bound: Nanos) -> usize {
        let before = self.contract.deadline().0.saturating_sub(bound.0);
        let before = Nanos(before.saturating_add(most_behind(&self.contract).0));
        let room = u64::from(self.contract.bmax())
            .saturating_add(messages_within(before, self.contract.rmax()));
        usize::try_from(room).unwrap_or(usize::MAX)
    }

    fn sending(&self, bound: Nanos) -> Result<u32, PlanFault> {
        let messages = messages_within(bound, self.contract.rmax().with_spare()) + 1;
        let messages = messages.max(self.contract.bmax().into());
        let needed = self.parts.saturating_mul(messages);
        match u32::try_from(needed) {
            Ok(sending) if sending <= Buffers::MOST => Ok(sending),
            _ => {
                let most = Buffers::MOST;
                Err(PlanFault::Buffers { needed, most })
            }
        }
    }
}

/// The size of a buffer for packets of a link with this MTU: a power of two.
pub(super) fn buffer_bytes(mtu: u32) -> u32 {
    let frame = mtu.min(u16::MAX.into()) + ETHERNET as u32;
    frame.next_power_of_two().clamp(64, 65_536)
}

/// The longest deadline that is held: half of the longest time that admission decides on, because
/// it adds the horizon of the link. 1.2 hours.
const LONGEST: Nanos = Nanos(HopBound::LONGEST.0 / 2);
/// Bytes of an Ethernet header.
const ETHERNET: u64 = 14;

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use netnice_channel::ChannelId;
    use netnice_core::contract::MessageRate;

    use super::*;
    use crate::message::{HostName, ServiceName};
    use crate::signalling::Part;

    fn request(mmax: u64, rmax: u32, bmax: u32, deadline: Nanos) -> HoldRequest {
        let rate = MessageRate::new(rmax).expect("a rate");
        let host = |name| HostName::new(name).expect("a host");
        HoldRequest {
            channel: ChannelId([1; 16]),
            part: Part::Relay,
            service: ServiceName::new("camera").expect("a service"),
            sink: host("b"),
            sink_address: IpAddr::from([10, 0, 0, 2]),
            contract: Channel::new(Bytes(mmax), rate, bmax, deadline).expect("a contract"),
            packet: 1_472,
            previous: Some(host("a")),
            arrival: None,
        }
    }

    fn plan(request: &HoldRequest) -> Result<Plan, PlanFault> {
        Plan::new(request, Nanos::from_millis(2))
    }

    #[test]
    fn the_link_counts_the_headers_of_all_packets_and_the_bound_of_the_relay() {
        let request = request(2_881, 50, 2, Nanos::from_millis(30));
        let plan = plan(&request).expect("it fits");
        // 3 parts with 32 + 42 bytes each.
        let contract = plan.contract_with(Nanos::from_millis(10)).expect("valid");
        assert_eq!(
            contract,
            "channel mmax=3103B,rmax=57/s,bmax=2,deadline=10ms,processing=2ms,overload=decay"
        );
        let error = plan
            .contract_with(Nanos::from_millis(2))
            .expect_err("no time is left");
        assert!(error.to_string().contains("processing=2ms"), "{error}");
        let sixth = HoldRequest {
            sink_address: "fd00::2".parse().expect("an address"),
            ..request
        };
        let contract = Plan::new(&sixth, Nanos(0))
            .expect("it fits")
            .longest_contract();
        let contract = contract.expect("valid");
        assert!(contract.starts_with("channel mmax=3163B,"), "{contract}");
    }

    #[test]
    fn the_buffers_are_for_all_messages_in_a_bound_and_at_least_for_a_burst() {
        let of = |bmax, bound| {
            let request = request(2_881, 100, bmax, Nanos::from_millis(100));
            let plan = plan(&request).expect("it fits");
            let bound = Nanos::from_millis(bound);
            let buffers = plan.buffers(bound, 1_500).expect("it fits");
            assert_eq!((buffers.bytes, buffers.receiving), (2_048, 0));
            (buffers.sending, plan.room(bound))
        };
        assert_eq!(of(1, 8), (3, 30));
        assert_eq!(of(1, 9), (6, 30));
        assert_eq!(of(1, 49), (18, 26));
        assert_eq!(of(7, 49), (21, 32));
        assert_eq!(of(7, 100), (36, 27));
    }

    #[test]
    fn what_no_flow_can_have_is_refused_with_the_limit() {
        // 11,651 parts, of which two messages can be on their way.
        let large = request(16 << 20, 10, 1, Nanos::from_millis(100));
        let error = plan(&large).expect_err("too many");
        assert!(
            error.to_string().contains("needs 23302 packet buffers")
                && error.to_string().contains("at most 16384"),
            "{error}"
        );
        let one = request(16 << 20, 10, 1, Nanos::from_millis(83));
        let one = plan(&one).expect("one message at a time");
        let error = one
            .buffers(Nanos::from_millis(9), 1_499)
            .expect_err("too short");
        assert_eq!(
            error.to_string(),
            "the packets of the channel have 1500 bytes with their IP headers, and the path to the \
             next host carries 1499"
        );
        assert!(one.buffers(Nanos::from_millis(9), 1_500).is_ok());
    }
}

//! The ports before the interfaces of this host, and the channels that enter by each ([`Ports`]).
//! A channel that a declared port cannot carry fails with a sentence for people; then nothing has
//! changed.
//!
//! A packet of a channel arrives over a cable from the host before this one, or through a switch,
//! where the packets of other senders can be before it. The policy file declares which it is:
//!
//! | declared | what this host adds to its bound | what is admitted |
//! |---|---|---|
//! | `cable` | nothing | every channel |
//! | `priority=T` | T | channels while the delay of the switch's queue is at most T |
//! | nothing | nothing | every channel, marked as *unguarded* |
//!
//! # What enters
//! Let D be the deadline of a channel and B the final bound of this host, with T. The hosts before
//! this one have D − B together, so they are S of the curve in [`EnteringChannel`]. Until B is
//! known, S counts as D − T, which is longer. A reload changes what is declared for channels that
//! come later; those that exist keep what was added for them, and count.

use std::collections::{BTreeMap, HashMap};

use netnice_api::channels::ListedPort;
use netnice_channel::PacketHeader;
use netnice_core::admission::timing::EnteringChannel;
use netnice_core::contract::IfName;
use netnice_core::units::{Bytes, Nanos};

use crate::message::{ip_headers, parts_of};
use crate::policy::{ETHERNET_TAGGED, ON_THE_WIRE, PortBefore};
use crate::signalling::{HoldId, HoldRequest};

/// What is declared, and what enters.
#[derive(Debug, Default)]
pub(super) struct Ports {
    declared: BTreeMap<IfName, PortBefore>,
    entering: HashMap<HoldId, Entering>,
}

/// A channel that enters this host.
#[derive(Clone, Debug)]
struct Entering {
    iface: IfName,
    channel: EnteringChannel,
    /// What this host has added to its bound.
    added: Nanos,
    is_guarded: bool,
}

impl Ports {
    /// The ports that a policy declares, without channels.
    pub(super) fn new(declared: BTreeMap<IfName, PortBefore>) -> Ports {
        Ports {
            declared,
            entering: HashMap::new(),
        }
    }

    /// Declares other ports from now on.
    pub(super) fn declare(&mut self, declared: BTreeMap<IfName, PortBefore>) {
        self.declared = declared;
    }

    /// Admits a channel that enters by an interface.
    ///
    /// # Errors
    /// If the queue of the switch would be too long, with the bound and T.
    pub(super) fn admit(
        &mut self,
        hold: HoldId,
        iface: IfName,
        request: &HoldRequest,
    ) -> Result<(), String> {
        let before = self.declared.get(&iface);
        let added = match before {
            Some(PortBefore::Priority { most, .. }) => *most,
            Some(PortBefore::Cable) | None => Nanos(0),
        };
        let deadline = request.contract.deadline();
        let channel = EnteringChannel {
            message: on_the_wire(request),
            rmax: request.contract.rmax(),
            bmax: request.contract.bmax(),
            before: Nanos(deadline.0.saturating_sub(added.0)),
        };
        if let Some(PortBefore::Priority { most, port }) = before {
            let all = self.entering_by(&iface).map(|one| one.channel);
            let delay = port.delay(all.chain([channel]));
            let fault = match delay {
                Ok(delay) if delay <= *most => None,
                Ok(delay) => Some(format!(
                    "the switch before {iface} could delay packets of channels by {delay}, more \
                     than the {most} that are declared (priority={most})"
                )),
                Err(overloaded) => Some(format!(
                    "the switch before {iface} (priority={most}) does not carry it: {overloaded}"
                )),
            };
            if let Some(fault) = fault {
                return Err(fault);
            }
        }
        let entering = Entering {
            is_guarded: before.is_some(),
            iface,
            channel,
            added,
        };
        self.entering.insert(hold, entering);
        Ok(())
    }

    /// What this host adds to the bound of a hold: 0 at the source.
    pub(super) fn added(&self, hold: HoldId) -> Nanos {
        self.entering.get(&hold).map_or(Nanos(0), |one| one.added)
    }

    /// The interface of a hold, if nothing is declared about the port before it.
    pub(super) fn unguarded(&self, hold: HoldId) -> Option<IfName> {
        let entering = self.entering.get(&hold)?;
        (!entering.is_guarded).then(|| entering.iface.clone())
    }

    /// Notes the final bound of this host, of a channel with this deadline.
    pub(super) fn relax(&mut self, hold: HoldId, bound: Nanos, deadline: Nanos) {
        if let Some(entering) = self.entering.get_mut(&hold) {
            let before = deadline.0.saturating_sub(bound.0);
            entering.channel.before = entering.channel.before.min(Nanos(before));
        }
    }

    /// Forgets a hold.
    pub(super) fn release(&mut self, hold: HoldId) {
        self.entering.remove(&hold);
    }

    /// The ports for people: those that are declared, and those by which channels enter.
    pub(super) fn list(&self) -> Vec<ListedPort> {
        let used = self.entering.values().map(|one| &one.iface);
        let mut names: Vec<&IfName> = self.declared.keys().chain(used).collect();
        names.sort();
        names.dedup();
        let listed = names.into_iter().map(|iface| {
            let all = || self.entering_by(iface);
            let declared = self.declared.get(iface);
            let delay = match declared {
                Some(PortBefore::Priority { port, .. }) => {
                    port.delay(all().map(|one| one.channel)).ok()
                }
                Some(PortBefore::Cable) | None => None,
            };
            ListedPort {
                interface: iface.to_string(),
                before: declared.map(ToString::to_string),
                channels: all().count() as u64,
                unguarded: all().filter(|one| !one.is_guarded).count() as u64,
                delay_ns: delay.map(|delay| delay.0),
            }
        });
        listed.collect()
    }

    fn entering_by(&self, iface: &IfName) -> impl Iterator<Item = &Entering> {
        let all = self.entering.values();
        all.filter(move |one| one.iface == *iface)
    }
}

/// The longest message of a channel with all that the wire carries beside it.
fn on_the_wire(request: &HoldRequest) -> Bytes {
    let of_ip = ip_headers(request.sink_address);
    let headers = PacketHeader::LENGTH as u64 + of_ip + ETHERNET_TAGGED + ON_THE_WIRE;
    let mmax = request.contract.mmax();
    // At most 16 MiB, and 65,535 parts.
    Bytes(mmax.0 + parts_of(mmax, request.packet) * headers)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use netnice_channel::ChannelId;
    use netnice_core::admission::timing::SwitchPort;
    use netnice_core::contract::{Channel, MessageRate};
    use netnice_core::units::Rate;

    use super::*;
    use crate::message::{HostName, ServiceName};
    use crate::signalling::Part;

    const ETH0: &str = "eth0";

    fn iface(name: &str) -> IfName {
        name.parse().expect("a name")
    }

    /// 10 messages a second of one packet of 1,000 bytes on the wire.
    fn request(deadline_ms: u64, bmax: u32) -> HoldRequest {
        let rate = MessageRate::new(10).expect("a rate");
        let deadline = Nanos::from_millis(deadline_ms);
        let contract = Channel::new(Bytes(1_000 - 102), rate, bmax, deadline);
        let host = |name| HostName::new(name).expect("a host");
        HoldRequest {
            channel: ChannelId([1; 16]),
            part: Part::Sink,
            service: ServiceName::new("camera").expect("a service"),
            sink: host("b"),
            sink_address: IpAddr::from([10, 0, 0, 2]),
            contract: contract.expect("a contract"),
            packet: 1_400,
            previous: Some(host("a")),
            arrival: None,
        }
    }

    /// A port of 8 Mbit/s, at which a byte takes 1 us, with an empty longest packet.
    fn ports(most_ms: u64) -> Ports {
        let priority = PortBefore::Priority {
            most: Nanos::from_millis(most_ms),
            port: SwitchPort {
                rate: Rate::new(8_000_000).expect("a rate"),
                longest: Bytes(0),
            },
        };
        Ports::new([(iface(ETH0), priority), (iface("eth1"), PortBefore::Cable)].into())
    }

    #[test]
    fn the_wire_carries_all_headers_of_all_packets() {
        assert_eq!(on_the_wire(&request(10, 1)), Bytes(1_000));
        let sixth = HoldRequest {
            sink_address: "fd00::2".parse().expect("an address"),
            packet: 132,
            ..request(10, 1)
        };
        // 9 parts of 100 bytes.
        assert_eq!(on_the_wire(&sixth), Bytes(898 + 9 * 122));
    }

    #[test]
    fn channels_enter_while_the_queue_is_short_and_a_final_bound_makes_room() {
        let mut ports = ports(10);
        // Each has a burst of 1,000 (2 + 10 (0.11 − 0.01)) bytes, which take 3 ms.
        for hold in 0..3 {
            let admitted = ports.admit(HoldId(hold), iface(ETH0), &request(110, 2));
            assert_eq!(admitted, Ok(()));
            assert_eq!(ports.added(HoldId(hold)), Nanos::from_millis(10));
            assert_eq!(ports.unguarded(HoldId(hold)), None);
        }
        let refused = "the switch before eth0 could delay packets of channels by 12ms, more than \
                       the 10ms that are declared (priority=10ms)";
        let more = |ports: &mut Ports| ports.admit(HoldId(9), iface(ETH0), &request(110, 2));
        assert_eq!(more(&mut ports), Err(refused.to_owned()));
        assert_eq!(ports.added(HoldId(9)), Nanos(0));
        let listed = |ports: &Ports| {
            let eth0 = ports.list().swap_remove(0);
            (eth0.channels, eth0.delay_ns)
        };
        assert_eq!(listed(&ports), (3, Some(9_000_000)));
        // The final bound of this host leaves 10 ms for those before it: 1,000 (2 + 0.1) bytes.
        for hold in 0..3 {
            ports.relax(
                HoldId(hold),
                Nanos::from_millis(100),
                Nanos::from_millis(110),
            );
        }
        assert_eq!(listed(&ports), (3, Some(6_300_000)));
        assert_eq!(more(&mut ports), Ok(()));
        ports.release(HoldId(0));
        assert_eq!(listed(&ports), (3, Some(7_200_000)));
    }

    #[test]
    fn more_than_the_rate_of_the_port_is_refused_whatever_the_delay() {
        let mut ports = ports(1_000_000);
        let mut admitted = 0;
        let error = loop {
            match ports.admit(HoldId(admitted), iface(ETH0), &request(1_000_010, 1)) {
                Ok(()) => admitted += 1,
                Err(error) => break error,
            }
        };
        // Each needs 80 kbit/s of 8 Mbit/s.
        assert_eq!(admitted, 100);
        assert!(
            error.contains("(priority=1000s) does not carry it"),
            "{error}"
        );
    }

    #[test]
    fn a_cable_takes_all_and_a_port_without_a_declaration_is_marked() {
        let mut ports = ports(1);
        let large = request(100_000, 500);
        for name in ["eth1", "eth2"] {
            for hold in 0..20 {
                let hold = HoldId(hold + if name == "eth1" { 0 } else { 100 });
                assert_eq!(ports.admit(hold, iface(name), &large), Ok(()));
                assert_eq!(ports.added(hold), Nanos(0));
                let mark = (name == "eth2").then(|| iface(name));
                assert_eq!(ports.unguarded(hold), mark);
            }
        }
        let listed = ports.list();
        let of = |at: usize| {
            let one = &listed[at];
            let before = one.before.as_deref();
            (one.interface.as_str(), before, one.channels, one.unguarded)
        };
        assert_eq!(of(0), (ETH0, Some("priority=1ms"), 0, 0));
        assert_eq!(of(1), ("eth1", Some("cable"), 20, 0));
        assert_eq!(of(2), ("eth2", None, 20, 20));
    }

    #[test]
    fn after_a_reload_channels_keep_what_was_added_and_count() {
        let mut ports = ports(10);
        let admitted = ports.admit(HoldId(0), iface("eth2"), &request(100, 9));
        assert_eq!(admitted, Ok(()));
        let declared = ports.declared[&iface(ETH0)];
        ports.declare([(iface("eth2"), declared)].into());
        // 1,000 (9 + 1) bytes take the whole 10 ms.
        let error = ports.admit(HoldId(1), iface("eth2"), &request(20, 1));
        assert!(error.expect_err("full").contains("by 11.1ms"));
        assert_eq!(ports.added(HoldId(0)), Nanos(0));
        assert_eq!(ports.unguarded(HoldId(0)), Some(iface("eth2")));
    }
}

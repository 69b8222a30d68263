//! A world with a router ([`World::routed`]): three hosts that reach each other only through a
//! fourth one, over cables that take time. Making the world fails as [`World::pair`] does, or if a
//! packet socket cannot be opened.
//!
//! ```text
//!   client eth0 ── cable 0 ── eth0 ┐
//!     10.77.0.1     10.77.0.2      ├ router eth1 ── cable 1 ── eth0 server
//!   other eth0 ─── cable 2 ── eth2 ┘      10.77.1.2           10.77.1.1
//!     10.77.2.1     10.77.2.2
//! ```
//! The IPv6 addresses are `fd77:CABLE::1` and `fd77:CABLE::2`. The kernel of the router forwards
//! both address families, and the other hosts have a static route to the networks of all cables.
//! A cable that takes no time is a veth pair; another one is a wire of the module
//! [`bad_wire`], which only delays. A cable has no rate.
//!
//! `/etc/hosts` belongs to the whole machine and not to a namespace, so the hosts do not know each
//! other's names. [`World::address_of`] returns the address by which one host reaches another.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::Result;

use super::bad_wire::{self, Forwarder, Impairments};
use super::topology::{add_veth, await_carrier, configure, v6};
use super::{Family, Folder, Host, Netns, Offloads, Port, World, next_number};

/// How long a frame is on its way over each cable, in each direction. The default: no time.
#[derive(Debug, Clone, Copy, Default)]
pub struct Routed {
    /// Between `client` and `router`.
    pub client: Duration,
    /// Between `server` and `router`.
    pub server: Duration,
    /// Between `other` and `router`.
    pub other: Duration,
}

impl World {
    /// Makes the hosts `client`, `router`, `server` and `other`, as the module shows. The ports of
    /// `router` are those of the cables to `client`, `server` and `other`, in this order. Fails as
    /// the module says.
    pub fn routed(delays: Routed) -> Result<World> {
        let number = next_number();
        let folder = Folder::create(number)?;
        let wires = bad_wire::create(number)?;
        let router = Netns::create(&format!("{ROUTER}{number}"))?;
        let mut hosts = Vec::new();
        let mut ports = Vec::new();
        let mut forwarders = Vec::new();
        let cables = [
            ("client", delays.client),
            ("server", delays.server),
            ("other", delays.other),
        ];
        for (cable, (name, delay)) in cables.into_iter().enumerate() {
            let ns = Netns::create(&format!("{name}{number}"))?;
            let ends = [
                end("eth0".into(), cable, 1),
                end(format!("eth{cable}"), cable, 2),
            ];
            if delay.is_zero() {
                add_veth(&ns, &ends[0].device, &router, &ends[1].device)?;
                configure(&ns, &ends[0], 1500, Offloads::Off)?;
                configure(&router, &ends[1], 1500, Offloads::Off)?;
            } else {
                let inside = [format!("wire{cable}"), format!("far{cable}")];
                bad_wire::connect(&ns, &ends[0], &wires, &inside[0])?;
                bad_wire::connect(&router, &ends[1], &wires, &inside[1])?;
                let only_delay = Impairments {
                    delay,
                    ..Impairments::default()
                };
                let inside = inside.each_ref().map(String::as_str);
                let impairments = [only_delay.clone(), only_delay];
                forwarders.push(Forwarder::start(&wires, inside, impairments)?);
            }
            let [port, end_at_router] = ends;
            ports.push(end_at_router);
            hosts.push(Host {
                name: name.into(),
                ns,
                ports: vec![port],
            });
        }
        for (key, value) in FORWARDING {
            router.sysctl(key, value)?;
        }
        for (host, gateway) in hosts.iter().zip(&ports) {
            host.ns
                .ip(&format!("route add {NETWORKS_V4} via {}", gateway.v4))?;
            host.ns
                .ip(&format!("-6 route add {NETWORKS_V6} via {}", gateway.v6))?;
        }
        hosts.insert(
            1,
            Host {
                name: ROUTER.into(),
                ns: router,
                ports,
            },
        );
        let ends: Vec<&Netns> = hosts.iter().map(|host| &host.ns).collect();
        await_carrier(&ends)?;
        Ok(World {
            hosts,
            switch: Some(wires),
            folder,
            forwarders,
        })
    }

    /// The address by which the host `from` reaches the host `to`: that on a cable between the two
    /// if there is one, else that of the first port of `to`.
    ///
    /// # Panics
    /// If one of the hosts does not exist, or if `to` has no port.
    pub fn address_of(&self, to: &str, from: &str, family: Family) -> IpAddr {
        let own = &self.host(from).ports;
        let to = self.host(to);
        let is_shared = |port: &&Port| own.iter().any(|own| network(own) == network(port));
        let port = to.ports.iter().find(is_shared).unwrap_or_else(|| to.port());
        port.address(family)
    }
}

/// An end of a cable.
fn end(device: String, cable: usize, last: u8) -> Port {
    let cable = cable as u8;
    Port {
        device,
        v4: Ipv4Addr::new(10, 77, cable, last),
        v6: v6(cable, last),
    }
}

/// The network of a port's cable: the first three bytes of its IPv4 addresses.
fn network(port: &Port) -> [u8; 3] {
    let [a, b, c, _] = port.v4.octets();
    [a, b, c]
}

const ROUTER: &str = "router";
/// The settings with which the kernel forwards both address families.
const FORWARDING: [(&str, &str); 2] = [
    ("net/ipv4/ip_forward", "1"),
    ("net/ipv6/conf/all/forwarding", "1"),
];
/// The networks of all cables.
const NETWORKS_V4: &str = "10.77.0.0/16";
const NETWORKS_V6: &str = "fd77::/16";

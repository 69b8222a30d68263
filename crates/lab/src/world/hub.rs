//! Makes a world with a hub ([`World::lan`]): one segment of 10 Mbit/s that all stations share, in
//! both directions. A station is a host on the segment, or the uplink of a switch. Making the world
//! fails without root, iproute2 or ethtool, or if the kernel refuses a step.
//!
//! ```text
//!   S1 ── p0 ─┐ what a station sends                        ┌─▶ p0 ── S1
//!   S2 ── p1 ─┼─▶ its queue ─┐                              ├─▶ p1 ── S2
//!   C1 ── p2 ─┤   …          ├─▶ the segment, 10 Mbit/s ────┼─▶ p2 ── C1     a bridge that never
//!   C3 ── p3 ─┘              ┘    one packet at a time      └─▶ p3 ── C3     learns: it floods
//! ```
//! The segment is HTB with a burst of 200 bytes. A packet of any size that comes while another one
//! is on the wire waits until the other one has left. Each station has a queue of its own, like the
//! queue of an interface, and the queues are served in turn. A station with much to send keeps the
//! wire for [`CAPTURE`] full packets: on Ethernet (CSMA/CD) the winner of a collision tends to win
//! the next ones too, because the loser backs off for longer (the capture effect). The queue of an
//! uplink is the buffer of the switch's port.

use std::net::Ipv4Addr;

use anyhow::Result;

use super::topology::{self, add_bridge, add_veth, configure, v6};
use super::{Cable, Folder, Host, Netns, Offloads, Port, World, next_number};

/// Stations on one segment, and hosts on a switch behind it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lan {
    /// Hosts on the segment.
    pub hub: &'static [&'static str],
    /// Hosts on ports of 100 Mbit/s of a switch, whose uplink is on the segment. If empty, there is
    /// no switch.
    pub switch: &'static [&'static str],
    /// Queue length of a station's interface in bytes.
    pub queue: u32,
    /// Queue length of the switch's port to the segment in bytes.
    pub buffer: u32,
}

impl World {
    /// Makes hosts on a segment, and on a switch behind it. Their addresses are 10.77.0.1, .2, … in
    /// the order given, those of the hub first. Fails without root, iproute2 or ethtool, or if the
    /// kernel refuses a step.
    pub(crate) fn lan(lan: Lan) -> Result<World> {
        let number = next_number();
        let folder = Folder::create(number)?;
        let hub = Netns::create(&format!("switch{number}"))?;
        hub.sysctl("net/ipv6/conf/all/disable_ipv6", "1")?;
        hub.sysctl("net/ipv6/conf/default/disable_ipv6", "1")?;
        segment(&hub)?;
        let mut world = World {
            hosts: Vec::new(),
            switch: Some(hub),
            folder,
            forwarders: Vec::new(),
        };
        for name in lan.hub {
            let station = world.add_host(name, number)?;
            world.add_station_for(station, lan.queue, &[station])?;
        }
        if !lan.switch.is_empty() {
            world.add_switch(lan, number)?;
        }
        Ok(world)
    }

    /// Makes a host whose cable ends as `p<i>` in the namespace of the hub; returns its index `i`.
    fn add_host(&mut self, name: &str, number: u32) -> Result<usize> {
        let (i, hub) = (self.hosts.len(), self.the_switch()?);
        let ns = Netns::create(&format!("{name}{number}"))?;
        let inside = format!("p{i}");
        add_veth(&ns, "eth0", hub, &inside)?;
        ns.ip(&format!("link set eth0 address {}", mac(i)))?;
        disable_offloads(hub, &inside)?;
        let last = i as u8 + 1;
        let port = Port {
            device: "eth0".into(),
            v4: Ipv4Addr::new(10, 77, 0, last),
            v6: v6(0, last),
        };
        configure(&ns, &port, 1500, Offloads::Off)?;
        self.hosts.push(Host {
            name: name.into(),
            ns,
            ports: vec![port],
        });
        Ok(i)
    }

    fn add_station_for(&self, station: usize, queue: u32, behind: &[usize]) -> Result<()> {
        add_station(
            self.the_switch()?,
            &format!("p{station}"),
            station,
            queue,
            behind,
        )
    }

    /// Adds a switch with its hosts; its uplink is one more station. The hub repeats the uplink's
    /// own packets to it, so address learning would be wrong: the forwarding table is static.
    fn add_switch(&mut self, lan: Lan, number: u32) -> Result<()> {
        let mut hosts = Vec::new();
        for name in lan.switch {
            let i = self.add_host(name, number)?;
            let hub = self.the_switch()?;
            if hosts.is_empty() {
                add_bridge(hub, "sw")?;
            }
            topology::connect_port(hub, i, &Cable::rated(name, 100_000_000, 10))?;
            for device in [format!("x{i}"), format!("y{i}")] {
                hub.ip(&format!(
                    "link set dev {device} type bridge_slave learning off"
                ))?;
            }
            hub.run(
                "bridge",
                &format!("fdb replace {} dev y{i} master static", mac(i)),
            )?;
            hosts.push(i);
        }
        let hub = self.the_switch()?;
        hub.ip("link add name up0 type veth peer name up1")?;
        for device in ["up0", "up1"] {
            disable_offloads(hub, device)?;
        }
        hub.ip("link set up0 master sw up")?;
        hub.ip("link set dev up0 type bridge_slave learning off")?;
        for station in 0..lan.hub.len() {
            hub.run(
                "bridge",
                &format!("fdb replace {} dev up0 master static", mac(station)),
            )?;
        }
        add_station(hub, "up1", lan.hub.len(), lan.buffer, &hosts)
    }

    fn the_switch(&self) -> Result<&Netns> {
        self.switch()
            .ok_or_else(|| anyhow::anyhow!("this world has no switch"))
    }
}

/// Makes the segment: packets sent into `x` leave from `y`, and the bridge floods them to all
/// stations.
fn segment(hub: &Netns) -> Result<()> {
    add_bridge(hub, "out")?;
    hub.ip("link add name x type veth peer name y")?;
    for device in ["x", "y"] {
        disable_offloads(hub, device)?;
        hub.ip(&format!("link set {device} up"))?;
    }
    join_segment(hub, "y")?;
    hub.tc("qdisc add dev x root handle 1: htb default 99")?;
    hub.tc(&format!(
        "class add dev x parent 1: classid 1:1 htb rate {RATE}bit burst {BURST} cburst {BURST}"
    ))?;
    Ok(())
}

/// Makes a device a station with a queue; its traffic is that of the hosts in `behind`.
fn add_station(
    hub: &Netns,
    device: &str,
    station: usize,
    queue: u32,
    behind: &[usize],
) -> Result<()> {
    let class = format!("1:{}", 10 + station);
    // The guaranteed rate is almost zero, so each packet competes for the wire; the ceiling is the
    // full rate.
    hub.tc(&format!(
        "class add dev x parent 1:1 classid {class} htb rate 8bit ceil {RATE}bit burst 1 cburst 1600 quantum {}",
        CAPTURE * FRAME
    ))?;
    hub.tc(&format!(
        "qdisc add dev x parent {class} bfifo limit {queue}"
    ))?;
    for host in behind {
        hub.tc(&format!(
            "filter add dev x parent 1: protocol all u32 match ether src {} flowid {class}",
            mac(*host)
        ))?;
    }
    join_segment(hub, device)?;
    hub.tc(&format!("qdisc add dev {device} clsact"))?;
    hub.tc(&format!(
        "filter add dev {device} ingress protocol all u32 match u32 0 0 action mirred egress redirect dev x"
    ))?;
    hub.ip(&format!("link set {device} up")).map(drop)
}

/// Adds a device to the bridge that floods the segment's packets.
fn join_segment(hub: &Netns, device: &str) -> Result<()> {
    hub.ip(&format!("link set {device} master out"))?;
    hub.ip(&format!(
        "link set dev {device} type bridge_slave learning off"
    ))?;
    Ok(())
}

fn disable_offloads(ns: &Netns, device: &str) -> Result<()> {
    ns.run("ethtool", &format!("-K {device} tso off gso off gro off"))
        .map(drop)
}

fn mac(host: usize) -> String {
    format!("02:00:00:00:00:{:02x}", host + 1)
}

/// The segment's rate in bit/s.
pub(crate) const RATE: u64 = 10_000_000;
/// The largest packet on the segment in bytes (layer 2 without preamble and gap).
pub(crate) const FRAME: u64 = 1514;

/// Full packets that a busy station sends before the next station's turn.
pub(crate) const CAPTURE: u64 = 8;

/// Burst in bytes: the segment's rate times 160 µs of timer latency. A larger burst would let
/// packets pass side by side.
const BURST: u64 = 200;

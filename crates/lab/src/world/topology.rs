//! Makes two shapes of a [`World`]: direct cables between a client and a server ([`World::pair`]),
//! and a switch whose ports may have rates ([`World::switched`]). Both fail without root, iproute2
//! or ethtool, if the kernel refuses a step, or if a cable has no carrier in time.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::{Folder, Host, Netns, Port, World, next_number};
use crate::process;

/// Whether a device may pass on packets larger than its MTU, to be segmented later.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Offloads {
    /// The device's default: segmentation offload on.
    On,
    /// tso, gso and gro off: every packet on the wire is one packet in the kernel.
    Off,
}

/// The direct cables between `client` and `server`.
#[derive(Debug, Clone, Copy)]
pub struct Pair {
    /// Number of cables. Cable `i` is the device `eth<i>` at both ends, with 10.77.i.1 and
    /// fd77:i::1 for the client, 10.77.i.2 and fd77:i::2 for the server.
    pub cables: u8,
    /// The MTU of every device.
    pub mtu: u32,
    /// Offloads at both ends.
    pub offloads: Offloads,
}

impl Default for Pair {
    fn default() -> Self {
        Pair {
            cables: 1,
            mtu: 1500,
            offloads: Offloads::Off,
        }
    }
}

/// A host on a switch, and the rates of its cable, which the switch enforces.
#[derive(Debug, Clone)]
pub struct Cable {
    /// The host's name.
    pub host: &'static str,
    /// Bits per second from the host to the switch; `None`: unlimited.
    pub up: Option<u64>,
    /// Bits per second from the switch to the host; `None`: unlimited.
    pub down: Option<u64>,
    /// Length in bytes of the queue in which packets wait for the rate, in each direction; at least
    /// the burst and two packets.
    pub queue: u32,
    /// Burst in microseconds at the rate, at least two packets. It compensates late timers; a
    /// smaller burst loses rate, a larger one lets bursts through a slow cable.
    pub burst_us: u64,
    /// Offloads of the host's device.
    pub offloads: Offloads,
}

/// The [`Cable::burst_us`] of [`Cable::free`] and [`Cable::rated`].
const BURST_US: u64 = 1200;

impl Cable {
    /// A cable without rates.
    pub fn free(host: &'static str) -> Cable {
        Cable {
            host,
            up: None,
            down: None,
            queue: 0,
            burst_us: BURST_US,
            offloads: Offloads::Off,
        }
    }

    /// A cable with the same rate both ways, and a queue of `ms` milliseconds at that rate.
    pub fn rated(host: &'static str, bits: u64, ms: u64) -> Cable {
        Cable {
            host,
            up: Some(bits),
            down: Some(bits),
            queue: (bits * ms / 8000) as u32,
            burst_us: BURST_US,
            offloads: Offloads::Off,
        }
    }
}

impl World {
    /// Makes two hosts, `client` and `server`, with direct cables. Fails without root, iproute2 or
    /// ethtool, or if a cable has no carrier within [`process::EVENT_TIMEOUT`].
    pub fn pair(spec: Pair) -> Result<World> {
        let number = next_number();
        let folder = Folder::create(number)?;
        let client = Netns::create(&format!("client{number}"))?;
        let server = Netns::create(&format!("server{number}"))?;
        let mut ports = (Vec::new(), Vec::new());
        for cable in 0..spec.cables {
            let device = format!("eth{cable}");
            add_veth(&client, &device, &server, &device)?;
            for (ns, last, list) in [(&client, 1, &mut ports.0), (&server, 2, &mut ports.1)] {
                let port = Port {
                    device: device.clone(),
                    v4: Ipv4Addr::new(10, 77, cable, last),
                    v6: v6(cable, last),
                };
                configure(ns, &port, spec.mtu, spec.offloads)?;
                list.push(port);
            }
        }
        await_carrier(&[&client, &server])?;
        Ok(World {
            hosts: vec![
                Host {
                    name: "client".into(),
                    ns: client,
                    ports: ports.0,
                },
                Host {
                    name: "server".into(),
                    ns: server,
                    ports: ports.1,
                },
            ],
            switch: None,
            folder,
            forwarders: Vec::new(),
        })
    }

    /// Makes hosts on one switch: 10.77.0.1, .2, … and fd77::1, … in the order given. Fails as
    /// [`World::pair`] does.
    pub fn switched(cables: &[Cable]) -> Result<World> {
        let number = next_number();
        let folder = Folder::create(number)?;
        let switch = Netns::create(&format!("switch{number}"))?;
        switch.sysctl("net/ipv6/conf/all/disable_ipv6", "1")?;
        switch.sysctl("net/ipv6/conf/default/disable_ipv6", "1")?;
        add_bridge(&switch, "sw")?;
        let mut hosts = Vec::new();
        for (i, cable) in cables.iter().enumerate() {
            let ns = Netns::create(&format!("{}{number}", cable.host))?;
            let inside = format!("p{i}");
            add_veth(&ns, "eth0", &switch, &inside)?;
            connect_port(&switch, i, cable)?;
            let last = i as u8 + 1;
            let port = Port {
                device: "eth0".into(),
                v4: Ipv4Addr::new(10, 77, 0, last),
                v6: v6(0, last),
            };
            configure(&ns, &port, 1500, cable.offloads)?;
            hosts.push(Host {
                name: cable.host.into(),
                ns,
                ports: vec![port],
            });
        }
        let ends: Vec<&Netns> = hosts.iter().map(|host| &host.ns).collect();
        await_carrier(&ends)?;
        Ok(World {
            hosts,
            switch: Some(switch),
            folder,
            forwarders: Vec::new(),
        })
    }
}

impl World {
    /// Changes the rates of the cable of the host that was given as number `i`, and the lengths of
    /// its queues. A direction without a rate keeps none, and one with a rate must have had one.
    /// Fails if tc(8) fails.
    pub fn change_cable(&self, i: usize, cable: &Cable) -> Result<()> {
        let switch = self.switch.as_ref().context("the world has no switch")?;
        let ends = [(cable.up, format!("x{i}")), (cable.down, format!("p{i}"))];
        for (rate, device) in ends {
            if let Some(rate) = rate {
                set_rate(switch, "change", &device, rate, cable)?;
            }
        }
        Ok(())
    }
}

/// The address `fd77:NET::LAST`.
pub(super) fn v6(net: u8, last: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd77, net.into(), 0, 0, 0, 0, 0, last.into())
}

/// Makes a veth pair between two namespaces. Fails if `ip` fails.
pub(super) fn add_veth(a: &Netns, a_name: &str, b: &Netns, b_name: &str) -> Result<()> {
    process::run(Command::new("ip").args([
        "link",
        "add",
        "name",
        a_name,
        "netns",
        a.name(),
        "type",
        "veth",
        "peer",
        "name",
        b_name,
        "netns",
        b.name(),
    ]))?;
    Ok(())
}

/// Sets a device's MTU, offloads and addresses and brings it up. Fails if `ip` or ethtool fails.
pub(super) fn configure(ns: &Netns, port: &Port, mtu: u32, offloads: Offloads) -> Result<()> {
    let (device, v4, v6) = (&port.device, port.v4, port.v6);
    if offloads == Offloads::Off {
        ns.run("ethtool", &format!("-K {device} tso off gso off gro off"))?;
    }
    let mut batch = String::new();
    let _ = writeln!(batch, "link set {device} mtu {mtu} up");
    let _ = writeln!(batch, "addr add {v4}/24 dev {device}");
    let _ = writeln!(batch, "addr add {v6}/64 dev {device} nodad");
    process::run_with_input(ns.command("ip").args(["-batch", "-"]), &batch)?;
    Ok(())
}

/// Waits until the kernel shows the carrier of every link that is up. A work queue sets the
/// carrier, up to a second after the other end came up. A snapshot taken before would differ from a
/// later one.
pub(super) fn await_carrier(ends: &[&Netns]) -> Result<()> {
    let until = Instant::now() + process::EVENT_TIMEOUT;
    for ns in ends {
        while ns.ip("link")?.contains("NO-CARRIER") {
            ensure!(
                Instant::now() < until,
                "{}: a link has no carrier",
                ns.name()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    Ok(())
}

/// Makes a bridge of this name and brings it up. Fails if `ip` fails.
pub(super) fn add_bridge(ns: &Netns, name: &str) -> Result<()> {
    ns.ip(&format!(
        "link add name {name} type bridge stp_state 0 forward_delay 0 mcast_snooping 0"
    ))?;
    ns.ip(&format!("link set {name} up"))?;
    Ok(())
}

/// Connects port `p<i>` to the bridge. Towards the host, the port's own queue limits the rate. From
/// the host, packets cross a small bridge and a veth pair, because a rate is limited where packets
/// leave a device, and the host's device is reserved for netnice. Fails if `ip`, `tc` or ethtool
/// fails.
pub(super) fn connect_port(switch: &Netns, i: usize, cable: &Cable) -> Result<()> {
    let port = format!("p{i}");
    if cable.offloads == Offloads::Off {
        switch.run("ethtool", &format!("-K {port} tso off gso off gro off"))?;
    }
    switch.ip(&format!("link set {port} up"))?;
    if let Some(rate) = cable.up {
        let (own, here, there) = (format!("b{i}"), format!("x{i}"), format!("y{i}"));
        add_bridge(switch, &own)?;
        switch.ip(&format!("link add name {here} type veth peer name {there}"))?;
        for (device, master) in [(&port, &own), (&here, &own), (&there, &"sw".to_owned())] {
            switch.ip(&format!("link set {device} master {master} up"))?;
        }
        limit_rate(switch, &here, rate, cable)?;
    } else {
        switch.ip(&format!("link set {port} master sw"))?;
    }
    if let Some(rate) = cable.down {
        limit_rate(switch, &port, rate, cable)?;
    }
    Ok(())
}

/// Limits the rate at which packets leave `device`: TBF with a byte FIFO.
fn limit_rate(ns: &Netns, device: &str, bits: u64, cable: &Cable) -> Result<()> {
    set_rate(ns, "add", device, bits, cable)
}

fn set_rate(ns: &Netns, verb: &str, device: &str, bits: u64, cable: &Cable) -> Result<()> {
    let burst = (bits * cable.burst_us / 8_000_000).max(3028);
    let limit = u64::from(cable.queue).max(burst + 3028);
    ns.tc(&format!(
        "qdisc {verb} dev {device} root tbf rate {bits}bit burst {burst} limit {limit}"
    ))?;
    Ok(())
}

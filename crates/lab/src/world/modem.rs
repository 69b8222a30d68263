//! A host behind a slow cable whose rate changes, as behind a modem: a world for estimates of links
//! ([`Modem`]).
//!
//! The cable limits both directions where netnice of the client cannot see it, and has a deep
//! queue, as modems have. The server has several addresses, each of which replies to echo and
//! timestamp requests. A call fails if a command fails.

use anyhow::Result;

use super::{Cable, Netnice, World};

/// A client behind a slow cable, and a server.
pub struct Modem {
    /// The client's daemon and command line. Dropped before the world.
    pub netnice: Netnice,
    /// The hosts `client` and `server`.
    pub world: World,
}

impl Modem {
    /// A client whose cable carries `mbit` Mbit/s in each direction.
    pub fn new(mbit: u64) -> Result<Modem> {
        super::begin()?;
        let world = World::switched(&[cable(mbit), Cable::free("server")])?;
        for reflector in &REFLECTORS[1..] {
            let add = format!("addr add {reflector}/24 dev eth0");
            world.server().ns.ip(&add)?;
        }
        let netnice = world.netnice("client")?;
        Ok(Modem { netnice, world })
    }

    /// Changes what the cable carries.
    pub fn set(&self, mbit: u64) -> Result<()> {
        self.world.change_cable(0, &cable(mbit))
    }

    /// The number of echo and timestamp requests that the server has received.
    pub fn probes(&self) -> Result<u64> {
        let table = self.world.server().ns.run("cat", "/proc/net/snmp")?;
        let mut rows = table.lines().filter(|line| line.starts_with("Icmp:"));
        let (names, values) = (rows.next().unwrap_or(""), rows.next().unwrap_or(""));
        let counts = names.split_whitespace().zip(values.split_whitespace());
        let counts = counts.filter(|(name, _)| ["InEchos", "InTimestamps"].contains(name));
        Ok(counts
            .filter_map(|(_, count)| count.parse::<u64>().ok())
            .sum())
    }
}

/// The addresses of the server.
pub const REFLECTORS: [&str; 3] = ["10.77.0.2", "10.77.0.12", "10.77.0.13"];

fn cable(mbit: u64) -> Cable {
    let bits = mbit * 1_000_000;
    Cable {
        queue: QUEUE,
        ..Cable::rated("client", bits, 0)
    }
}

/// Bytes of the cable's queue: 200 full packets, 480 ms at 5 Mbit/s.
const QUEUE: u32 = 300_000;

//! Makes private worlds: namespaces and the links between them, for one experiment or test, and
//! removes them afterwards. This needs root, iproute2 and ethtool.
//!
//! A world is a few network namespaces (hosts, and one for a switch or a hub if there is one), with
//! a folder for the runtime state of the netnice under test. The names of all namespaces, folders
//! and cgroups that the lab makes begin with `nn-<pid>-`, where pid is the process that made them.
//! Three mechanisms remove them:
//!
//! 1. dropping the guards, which also happens on panic;
//! 2. a thread that [`begin`] starts: on SIGINT, SIGTERM or SIGHUP it removes all objects with this
//!    process's id and ends the process;
//! 3. [`begin`] itself, which removes the objects of dead processes (after SIGKILL, for example).
//!
//! There are five shapes of worlds:
//!
//! ```text
//! World::pair       client ===== server          one or more direct veth pairs
//!
//! World::switched   client --[rate]--+
//!                   server --[rate]--+-- switch   each host's cable may have a rate up and down,
//!                   other  --[rate]--+            kept by TBF with a byte FIFO inside the switch
//!
//! World::lan        c1 --+-- c2 --+-- s1          hosts on one shared segment, and hosts on a
//!                                                 switch behind it (see the module `hub`)
//!
//! World::bad_wire   client ==( wire )== server    a cable that delays, loses, reorders, duplicates
//!                                                 and damages packets (module `bad_wire`)
//!
//! World::routed     client --+
//!                            +-- router -- server  cables that take time, and a router
//!                   other  --+                     (module `routed`)
//! ```
//!
//! The hosts' own devices keep their default queue, because netnice may manage them. The default
//! congestion control is cubic, duplicate address detection is off, and TCP keeps no metrics of
//! earlier connections, so that runs do not influence each other.
//!
//! Making a world fails without root or one of these programs, or if the kernel refuses a step.
//! What cannot be removed stays, without an error.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

pub(crate) mod arrivals;
pub mod bad_wire;
pub mod cgroup;
pub mod cleanup;
pub mod daemon;
pub mod daemon_objects;
pub mod htb;
pub(crate) mod hub;
pub mod modem;
pub mod netns;
pub mod peer;
pub mod routed;
pub(crate) mod snapshot;
pub(crate) mod topology;
pub mod tunnel;

pub(crate) use arrivals::Arrivals;
pub use cgroup::Cgroup;
pub use cleanup::begin;
pub use daemon::{CommandOutput, Netnice};
pub use modem::Modem;
pub use netns::{Netns, NetnsHandle};
pub use peer::{Peer, PeerOptions};
pub use routed::Routed;
pub use snapshot::Snapshot;
pub use topology::{Cable, Offloads, Pair};
pub use tunnel::Tunnel;

/// One end of a cable, inside a host.
#[derive(Debug, Clone)]
pub struct Port {
    /// The name of the device inside the host's namespace.
    pub device: String,
    /// The device's IPv4 address.
    pub v4: Ipv4Addr,
    /// The device's IPv6 address.
    pub v6: Ipv6Addr,
}

impl Port {
    /// The address in `family`.
    pub(crate) fn address(&self, family: Family) -> IpAddr {
        match family {
            Family::V4 => self.v4.into(),
            Family::V6 => self.v6.into(),
        }
    }
}

/// An address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// A host of a world: a namespace and its ports.
pub struct Host {
    /// The host's name, by which [`World::host`] finds it.
    pub name: String,
    /// The host's network namespace.
    pub ns: Netns,
    /// The host's ports, in the order in which the cables were made.
    pub ports: Vec<Port>,
}

impl Host {
    /// The first port.
    ///
    /// # Panics
    /// If the host has no port.
    pub fn port(&self) -> &Port {
        &self.ports[0]
    }

    /// The address of the first port in `family`.
    pub fn address(&self, family: Family) -> IpAddr {
        self.port().address(family)
    }
}

/// A private world. Dropping it removes its folder and its namespaces.
pub struct World {
    /// What carries the frames of wires: one for each wire. Dropped before the namespaces.
    forwarders: Vec<bad_wire::Forwarder>,
    hosts: Vec<Host>,
    switch: Option<Netns>,
    folder: Folder,
}

impl World {
    /// The host with this name; the names depend on the shape.
    ///
    /// # Panics
    /// If no host has this name.
    pub fn host(&self, name: &str) -> &Host {
        self.hosts
            .iter()
            .find(|h| h.name == name)
            .unwrap_or_else(|| panic!("this world has no host `{name}`"))
    }

    /// The host `client`.
    ///
    /// # Panics
    /// If there is none.
    pub fn client(&self) -> &Host {
        self.host("client")
    }

    /// The host `server`.
    ///
    /// # Panics
    /// If there is none.
    pub fn server(&self) -> &Host {
        self.host("server")
    }

    /// The namespace of the switch or of the wires; `None` in worlds without one.
    pub(crate) fn switch(&self) -> Option<&Netns> {
        self.switch.as_ref()
    }

    /// All namespaces of this world.
    pub fn namespaces(&self) -> impl Iterator<Item = &Netns> {
        self.hosts.iter().map(|h| &h.ns).chain(&self.switch)
    }

    /// The folder of this world, for runtime folders and other files.
    pub fn folder(&self) -> &Path {
        &self.folder.path
    }

    /// Starts a netnice daemon on `host`, with a runtime folder of its own in this world, and waits
    /// until it answers. Fails as [`Netnice::start`] does; panics if no host has this name.
    pub fn netnice(&self, host: &str) -> Result<Netnice> {
        Netnice::start(&self.host(host).ns, &self.folder.path.join(host))
    }
}

/// A folder that is removed when the guard is dropped.
struct Folder {
    path: PathBuf,
}

impl Folder {
    fn create(number: u32) -> Result<Folder> {
        let path = std::env::temp_dir().join(format!("nn-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path)
            .with_context(|| format!("cannot make the folder {}", path.display()))?;
        Ok(Folder { path })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        cleanup::remove_folder(&self.path);
    }
}

/// A number for the next world of this process, so that several worlds can exist at once.
fn next_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

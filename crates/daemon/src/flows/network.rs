//! The network as the flow manager asks it: interfaces, ways, stations and ports. There is one of the kernel; tests
//! put one of their own in its place.

use std::io;
use std::net::{IpAddr, SocketAddr};

use netnice_kernel::card::{self, Card};
use netnice_kernel::netlink::Route;
use netnice_kernel::port::{self, Port};
use netnice_kernel::routes::{self, Neighbour, Way};
use netnice_kernel::{KernelError, device, process};

use crate::denied::Denied;

/// An interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nic {
    /// Its index.
    pub index: u32,
    /// Its address, if it is one of Ethernet.
    pub mac: Option<[u8; 6]>,
    /// Its MTU.
    pub mtu: u32,
    /// Whether packets can leave by it.
    pub up: bool,
}

/// What the flow manager asks of the machine.
pub(crate) trait Network {
    /// A port that is held until it is dropped.
    type Port;

    /// An interface by its name.
    fn interface(&mut self, name: &str) -> Result<Option<Nic>, Denied>;
    /// An interface's name.
    fn name(&mut self, index: u32) -> Result<Option<String>, Denied>;
    /// The way to a host.
    fn way(
        &mut self,
        to: IpAddr,
        from: Option<IpAddr>,
        over: Option<u32>,
    ) -> Result<Option<Way>, Denied>;
    /// What is known of a station.
    fn neighbour(&mut self, index: u32, station: IpAddr) -> Result<Neighbour, Denied>;
    /// Has a station asked for.
    fn solicit(&mut self, index: u32, station: IpAddr) -> Result<(), Denied>;
    /// Holds a port of UDP; tells what is held.
    fn hold(&mut self, at: SocketAddr) -> io::Result<(Self::Port, SocketAddr)>;
    /// Lets an interface receive what is for a group.
    fn join(&mut self, port: &Self::Port, group: IpAddr, index: u32) -> io::Result<()>;
    /// The lowest port that anybody may have.
    fn first_port_for_all(&mut self) -> u16;
    /// Whether a process is in the network namespace that is served here.
    fn is_here(&mut self, pid: u32) -> bool;
    /// Whether sockets of AF_XDP can be made, or why not.
    fn af_xdp(&mut self) -> Result<(), String>;
    /// What an interface offers the direct path.
    fn card(&mut self, name: &str) -> Option<Card>;
}

/// That of the kernel, in this namespace.
pub(crate) struct KernelNetwork(Route);

impl KernelNetwork {
    /// Opens it.
    pub(crate) fn open() -> Result<KernelNetwork, KernelError> {
        Ok(KernelNetwork(Route::open()?))
    }
}

impl Network for KernelNetwork {
    type Port = Port;

    fn interface(&mut self, name: &str) -> Result<Option<Nic>, Denied> {
        let found = device::find_by_name(&mut self.0, name).map_err(KernelError::from)?;
        Ok(found.map(|device| Nic {
            index: device.index,
            mac: device.mac,
            mtu: device.mtu,
            up: device.up && device.carrier,
        }))
    }

    fn name(&mut self, index: u32) -> Result<Option<String>, Denied> {
        let all = device::list(&mut self.0).map_err(KernelError::from)?;
        let found = all.into_iter().find(|device| device.index == index);
        Ok(found.map(|device| device.name))
    }

    fn way(
        &mut self,
        to: IpAddr,
        from: Option<IpAddr>,
        over: Option<u32>,
    ) -> Result<Option<Way>, Denied> {
        Ok(routes::way(&mut self.0, to, from, over).map_err(KernelError::from)?)
    }

    fn neighbour(&mut self, index: u32, station: IpAddr) -> Result<Neighbour, Denied> {
        Ok(routes::neighbour(&mut self.0, index, station).map_err(KernelError::from)?)
    }

    fn solicit(&mut self, index: u32, station: IpAddr) -> Result<(), Denied> {
        Ok(routes::use_neighbour(&mut self.0, index, station).map_err(KernelError::from)?)
    }

    fn hold(&mut self, at: SocketAddr) -> io::Result<(Port, SocketAddr)> {
        let port = Port::hold(at)?;
        let at = port.at();
        Ok((port, at))
    }

    fn join(&mut self, port: &Port, group: IpAddr, index: u32) -> io::Result<()> {
        port.join(group, index)
    }

    fn first_port_for_all(&mut self) -> u16 {
        port::first_for_all()
    }

    fn af_xdp(&mut self) -> Result<(), String> {
        card::has_af_xdp().map_err(|error| error.to_string())
    }

    fn card(&mut self, name: &str) -> Option<Card> {
        card::look(&mut self.0, name).ok().flatten()
    }

    fn is_here(&mut self, pid: u32) -> bool {
        process::namespace(pid).is_some_and(|its| Some(its) == process::own_namespace())
    }
}

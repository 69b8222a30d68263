//! The machine's network as the flow manager uses it ([`Network`]): interfaces, routes, neighbours,
//! UDP ports, multicast groups and random numbers. [`KernelNetwork`] asks the kernel; tests have a
//! fake. A method that returns a `Result` fails with the kernel's error.

use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};

use netnice_kernel::netlink::NetlinkClient;
use netnice_kernel::nic::{self, NicFeatures};
use netnice_kernel::port::{self, Port};
use netnice_kernel::routes::{self, Neighbour, RouteEntry};
use netnice_kernel::{KernelError, device};

use crate::error::RequestError;

/// An interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nic {
    /// The interface's index.
    pub index: u32,
    /// The interface's Ethernet address; `None` if it is not an Ethernet interface.
    pub mac: Option<[u8; 6]>,
    /// The interface's MTU, in bytes.
    pub mtu: u32,
    /// True if the interface is up and has a carrier.
    pub up: bool,
}

/// The operations that the flow manager needs from the machine.
pub(crate) trait Network {
    /// A port, held until this is dropped.
    type Port;

    /// The interface of this name; `None` if there is none. Fails with the kernel's error.
    fn interface(&mut self, name: &str) -> Result<Option<Nic>, RequestError>;
    /// The name of the interface with this index; `None` if there is none. Fails with the kernel's
    /// error.
    fn name(&mut self, index: u32) -> Result<Option<String>, RequestError>;
    /// The route to a host; with `from`, from this local address, and with `over`, over the
    /// interface with this index. `None` if there is none. Fails with the kernel's error.
    fn route(
        &mut self,
        to: IpAddr,
        from: Option<IpAddr>,
        over: Option<u32>,
    ) -> Result<Option<RouteEntry>, RequestError>;
    /// The state of a next hop on the interface with this index. Fails with the kernel's error.
    fn neighbour(&mut self, index: u32, next_hop: IpAddr) -> Result<Neighbour, RequestError>;
    /// Starts neighbour resolution, or confirms that a known neighbour is in use. Fails with the
    /// kernel's error.
    fn solicit(&mut self, index: u32, next_hop: IpAddr) -> Result<(), RequestError>;
    /// Holds a UDP port. Fails if another socket has it, or the address is not of this host.
    /// Returns it with its address. Port 0 in `at` selects a free port, and the returned address
    /// has the selected one.
    fn hold_port(&mut self, at: SocketAddr) -> io::Result<(Self::Port, SocketAddr)>;
    /// Makes the interface with this index receive frames for a multicast group, until it leaves
    /// the group or `port` is dropped. Fails if `port` has joined the group on it.
    fn join_group(&mut self, port: &Self::Port, group: IpAddr, index: u32) -> io::Result<()>;
    /// Undoes [`Network::join_group`]. Fails if `port` has not joined the group.
    fn leave_group(&mut self, port: &Self::Port, group: IpAddr, index: u32) -> io::Result<()>;
    /// The lowest port that unprivileged users may have; 1024 if it cannot be read.
    fn first_unprivileged_port(&mut self) -> u16;
    /// Random bytes that no other process can predict. Fails if the kernel's source of them cannot
    /// be read.
    fn random(&mut self) -> io::Result<[u8; 16]>;
    /// Checks that AF_XDP sockets can be created. Fails with the reason if they cannot.
    fn af_xdp(&mut self) -> Result<(), String>;
    /// The capabilities of an interface's NIC and driver; `None` if they cannot be read.
    fn nic_features(&mut self, name: &str) -> Option<NicFeatures>;
}

/// The kernel's network, in the daemon's network namespace.
pub(crate) struct KernelNetwork(NetlinkClient);

impl KernelNetwork {
    /// Opens the netlink socket.
    ///
    /// # Errors
    /// If the kernel refuses the socket.
    pub(crate) fn open() -> Result<KernelNetwork, KernelError> {
        Ok(KernelNetwork(NetlinkClient::open()?))
    }
}

impl Network for KernelNetwork {
    type Port = Port;

    fn interface(&mut self, name: &str) -> Result<Option<Nic>, RequestError> {
        let found = device::find_by_name(&mut self.0, name).map_err(KernelError::from)?;
        Ok(found.map(|device| Nic {
            index: device.index,
            mac: device.mac,
            mtu: device.mtu,
            up: device.up && device.carrier,
        }))
    }

    fn name(&mut self, index: u32) -> Result<Option<String>, RequestError> {
        let all = device::list(&mut self.0).map_err(KernelError::from)?;
        let found = all.into_iter().find(|device| device.index == index);
        Ok(found.map(|device| device.name))
    }

    fn route(
        &mut self,
        to: IpAddr,
        from: Option<IpAddr>,
        over: Option<u32>,
    ) -> Result<Option<RouteEntry>, RequestError> {
        Ok(routes::lookup(&mut self.0, to, from, over).map_err(KernelError::from)?)
    }

    fn neighbour(&mut self, index: u32, next_hop: IpAddr) -> Result<Neighbour, RequestError> {
        Ok(routes::neighbour(&mut self.0, index, next_hop).map_err(KernelError::from)?)
    }

    fn solicit(&mut self, index: u32, next_hop: IpAddr) -> Result<(), RequestError> {
        Ok(routes::resolve_neighbour(&mut self.0, index, next_hop).map_err(KernelError::from)?)
    }

    fn hold_port(&mut self, at: SocketAddr) -> io::Result<(Port, SocketAddr)> {
        let port = Port::reserve(at)?;
        let at = port.address();
        Ok((port, at))
    }

    fn join_group(&mut self, port: &Port, group: IpAddr, index: u32) -> io::Result<()> {
        port.join(group, index)
    }

    fn leave_group(&mut self, port: &Port, group: IpAddr, index: u32) -> io::Result<()> {
        port.leave(group, index)
    }

    fn first_unprivileged_port(&mut self) -> u16 {
        port::first_unprivileged()
    }

    fn random(&mut self) -> io::Result<[u8; 16]> {
        let mut bytes = [0; 16];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn af_xdp(&mut self) -> Result<(), String> {
        nic::has_af_xdp().map_err(|error| error.to_string())
    }

    fn nic_features(&mut self, name: &str) -> Option<NicFeatures> {
        nic::features(&mut self.0, name).ok().flatten()
    }
}

//! The machine's network as the flow manager uses it ([`Network`]): interfaces, routes, neighbours,
//! ports, multicast groups, random numbers and the secret of the keys of TCP flows.
//! [`KernelNetwork`] asks the kernel; tests have a fake. A method that returns a `Result` fails
//! with the kernel's error.

use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use netnice_core::units::Nanos;
use netnice_kernel::netlink::NetlinkClient;
use netnice_kernel::nic::{self, NicFeatures};
use netnice_kernel::port::{self, Port};
use netnice_kernel::routes::{self, Neighbour, RouteEntry};
use netnice_kernel::{KernelError, device, process};

use super::tcp_keys;
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

/// A protocol with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PortProtocol {
    Udp,
    Tcp,
}

impl PortProtocol {
    /// The name, for messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            PortProtocol::Udp => "UDP",
            PortProtocol::Tcp => "TCP",
        }
    }
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
    /// The indices of the interfaces that have this address. Fails with the kernel's error.
    fn interfaces_with(&mut self, address: IpAddr) -> Result<Vec<u32>, RequestError>;
    /// Holds a port. The kernel answers no packet to it. Fails if another socket has it, or the
    /// address is not of this host. Returns it with its address. Port 0 in `at` selects a free
    /// port, and the returned address has the selected one.
    fn hold_port(
        &mut self,
        protocol: PortProtocol,
        at: SocketAddr,
    ) -> io::Result<(Self::Port, SocketAddr)>;
    /// Has the kernel answer RST to each segment to a held TCP port. Fails with the kernel's error.
    fn let_kernel_reset(&mut self, port: &Self::Port) -> io::Result<()>;
    /// Undoes [`Network::let_kernel_reset`]. Fails with the kernel's error.
    fn silence_port(&mut self, port: &Self::Port) -> io::Result<()>;
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
    /// The secret from which the keys of TCP flows are derived. It outlives the daemon. Fails if it
    /// cannot be read, or cannot be made.
    fn tcp_secret(&mut self) -> io::Result<[u8; 16]>;
    /// Checks that AF_XDP sockets can be created. Fails with the reason if they cannot.
    fn af_xdp(&mut self) -> Result<(), String>;
    /// The capabilities of an interface's NIC and driver; `None` if they cannot be read.
    fn nic_features(&mut self, name: &str) -> Option<NicFeatures>;
    /// The id of the thread of a process that has the id `own_id` in the PID namespace of that
    /// process; `None` if the process has no such thread.
    fn thread(&mut self, process: u32, own_id: u32) -> Option<u32>;
    /// The processor time that a process has used since its start; `None` if it has ended.
    fn processor_time(&self, process: u32) -> Option<Nanos>;
}

/// The kernel's network, in the daemon's network namespace.
pub(crate) struct KernelNetwork {
    netlink: NetlinkClient,
    /// The file with the secret of the keys of TCP flows, and the secret once it was needed.
    secret_file: PathBuf,
    secret: Option<[u8; 16]>,
}

impl KernelNetwork {
    /// Opens the netlink socket. `secret_file` is the file with the secret of the keys of TCP
    /// flows.
    ///
    /// # Errors
    /// If the kernel refuses the socket.
    pub(crate) fn open(secret_file: PathBuf) -> Result<KernelNetwork, KernelError> {
        Ok(KernelNetwork {
            netlink: NetlinkClient::open()?,
            secret_file,
            secret: None,
        })
    }
}

impl Network for KernelNetwork {
    type Port = Port;

    fn interface(&mut self, name: &str) -> Result<Option<Nic>, RequestError> {
        let found = device::find_by_name(&mut self.netlink, name).map_err(KernelError::from)?;
        Ok(found.map(|device| Nic {
            index: device.index,
            mac: device.mac,
            mtu: device.mtu,
            up: device.up && device.carrier,
        }))
    }

    fn name(&mut self, index: u32) -> Result<Option<String>, RequestError> {
        let all = device::list(&mut self.netlink).map_err(KernelError::from)?;
        let found = all.into_iter().find(|device| device.index == index);
        Ok(found.map(|device| device.name))
    }

    fn route(
        &mut self,
        to: IpAddr,
        from: Option<IpAddr>,
        over: Option<u32>,
    ) -> Result<Option<RouteEntry>, RequestError> {
        Ok(routes::lookup(&mut self.netlink, to, from, over).map_err(KernelError::from)?)
    }

    fn neighbour(&mut self, index: u32, next_hop: IpAddr) -> Result<Neighbour, RequestError> {
        Ok(routes::neighbour(&mut self.netlink, index, next_hop).map_err(KernelError::from)?)
    }

    fn solicit(&mut self, index: u32, next_hop: IpAddr) -> Result<(), RequestError> {
        Ok(
            routes::resolve_neighbour(&mut self.netlink, index, next_hop)
                .map_err(KernelError::from)?,
        )
    }

    fn interfaces_with(&mut self, address: IpAddr) -> Result<Vec<u32>, RequestError> {
        Ok(routes::interfaces_with(&mut self.netlink, address).map_err(KernelError::from)?)
    }

    fn hold_port(
        &mut self,
        protocol: PortProtocol,
        at: SocketAddr,
    ) -> io::Result<(Port, SocketAddr)> {
        let port = match protocol {
            PortProtocol::Udp => Port::reserve(at)?,
            PortProtocol::Tcp => Port::reserve_tcp(at)?,
        };
        let at = port.address();
        Ok((port, at))
    }

    fn let_kernel_reset(&mut self, port: &Port) -> io::Result<()> {
        port.let_kernel_reset()
    }

    fn silence_port(&mut self, port: &Port) -> io::Result<()> {
        port.silence()
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

    fn tcp_secret(&mut self) -> io::Result<[u8; 16]> {
        if let Some(secret) = self.secret {
            return Ok(secret);
        }
        let file = self.secret_file.clone();
        let secret = tcp_keys::read_or_make(&file, || self.random())?;
        self.secret = Some(secret);
        Ok(secret)
    }

    fn af_xdp(&mut self) -> Result<(), String> {
        nic::has_af_xdp().map_err(|error| error.to_string())
    }

    fn nic_features(&mut self, name: &str) -> Option<NicFeatures> {
        nic::features(&mut self.netlink, name).ok().flatten()
    }

    fn thread(&mut self, process: u32, own_id: u32) -> Option<u32> {
        process::thread(process, own_id)
    }

    fn processor_time(&self, process: u32) -> Option<Nanos> {
        process::processor_time(process)
    }
}

//! Reserves the UDP ports of direct flows.
//!
//! For each port the daemon also binds a socket of the kernel ([`Network::hold_port`]), so that a
//! flow and a socket of another program conflict as two sockets would. A reservation fails if a
//! socket has the port, if a flow has the port and the new flow cannot share it, if the address is
//! not of this host, if an unprivileged user asks for a privileged port, if the interface cannot
//! join the group, or if the kernel refuses the socket for another reason.
//!
//! Flows of one user may share a port if no two have the same remote end on one interface: then a
//! packet goes to the flow of its remote end, else to the flow to any host. A flow to any host
//! cannot join a port that is held already. All members of a multicast group share the group's
//! port, and each interface with a member has joined the group.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};

use netnice_api::FailureCause;

use super::Flows;
use crate::error::RequestError;
use crate::flows::network::Network;
use crate::peer::Peer;

/// A port that direct flows hold.
pub(super) struct HeldPort<P> {
    /// The uid of the user of the port; `None` for a group's port, which all users share.
    uid: Option<u32>,
    /// The flows that share the port.
    sharers: Vec<Sharer>,
    /// Keeps the port held in the kernel.
    port: P,
}

/// A flow that shares a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sharer {
    /// The flow's remote end; `None` for a flow to any host, and for each flow at a group's port.
    remote: Option<SocketAddr>,
    /// The index of the interface of the flow, which has joined the group if the port is a group's.
    index: u32,
}

/// A flow's part in a held port.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlowPort {
    /// The local address, or that of the group.
    pub at: SocketAddr,
    sharer: Sharer,
}

/// A port to be held.
#[derive(Clone, Copy, Debug)]
pub(super) struct PortRequest {
    /// The local address, or that of the group. Port 0: any free port.
    pub at: SocketAddr,
    /// The remote end of the flow; `None` for a flow to any host.
    pub remote: Option<SocketAddr>,
    /// True if `at` is a multicast group, to receive from.
    pub group: bool,
}

impl<N: Network> Flows<N> {
    /// Holds a port for a flow of `peer` on the interface `index`, which joins the group if the
    /// port is a group's. The returned address has the chosen port.
    ///
    /// # Errors
    /// For the reasons in the module's documentation, and if the interface cannot join the group.
    pub(super) fn hold_port(
        &mut self,
        peer: &Peer,
        want: PortRequest,
        index: u32,
    ) -> Result<FlowPort, RequestError> {
        let PortRequest { at, remote, group } = want;
        let sharer = Sharer { remote, index };
        if at.port() != 0 && !peer.privileged {
            let lowest = self.network.first_unprivileged_port();
            if at.port() < lowest {
                return Err(RequestError::NotPermitted(format!(
                    "port {} is for root and the group netnice: others have ports from {lowest} on",
                    at.port()
                )));
            }
        }
        if let Some(hold) = self.ports.get_mut(&at) {
            let mut sharers = hold.sharers.iter();
            let is_shareable = match hold.uid {
                None => group,
                Some(uid) => {
                    // A flow that moves holds its port on both interfaces.
                    let is_taken = sharers.any(|other| *other == sharer);
                    !group && uid == peer.uid && !is_taken && remote.is_some()
                }
            };
            if !is_shareable {
                return Err(in_use(at, "a direct flow has it"));
            }
            if group && !has_member(&hold.sharers, index) {
                join(&mut self.network, &hold.port, at.ip(), index)?;
            }
            hold.sharers.push(sharer);
            return Ok(FlowPort { at, sharer });
        }
        let (port, held) = self
            .network
            .hold_port(at)
            .map_err(|error| match error.kind() {
                ErrorKind::AddrInUse => in_use(at, "a socket of this host has it"),
                ErrorKind::AddrNotAvailable => foreign(at.ip()),
                _ => RequestError::Failed(format!("cannot hold port {at}: {error}")),
            })?;
        if group {
            join(&mut self.network, &port, at.ip(), index)?;
        }
        let hold = HeldPort {
            uid: (!group).then_some(peer.uid),
            sharers: vec![sharer],
            port,
        };
        self.ports.insert(held, hold);
        Ok(FlowPort { at: held, sharer })
    }

    /// Releases these ports for one flow. An interface without a member leaves the group. The
    /// kernel's socket of a port is closed when no flow shares the port any more.
    pub(super) fn release_ports(&mut self, ports: &[FlowPort]) {
        for FlowPort { at, sharer } in ports {
            let Some(hold) = self.ports.get_mut(at) else {
                continue;
            };
            if let Some(n) = hold.sharers.iter().position(|one| one == sharer) {
                hold.sharers.swap_remove(n);
            }
            if hold.uid.is_none() && !has_member(&hold.sharers, sharer.index) {
                let left = self.network.leave_group(&hold.port, at.ip(), sharer.index);
                if let Err(error) = left {
                    tracing::debug!(%error, group = %at.ip(), "the group cannot be left");
                }
            }
            if hold.sharers.is_empty() {
                self.ports.remove(at);
            }
        }
    }

    /// The held ports.
    #[cfg(test)]
    pub(super) fn held_ports(&self) -> Vec<SocketAddr> {
        self.ports.keys().copied().collect()
    }
}

/// True if one of these flows is on the interface with this index.
fn has_member(sharers: &[Sharer], index: u32) -> bool {
    sharers.iter().any(|sharer| sharer.index == index)
}

fn join<N: Network>(
    network: &mut N,
    port: &N::Port,
    group: IpAddr,
    index: u32,
) -> Result<(), RequestError> {
    let joined = network.join_group(port, group, index);
    joined.map_err(|error| RequestError::Failed(format!("cannot join the group {group}: {error}")))
}

fn in_use(at: SocketAddr, holder: &str) -> RequestError {
    let text = format!("port {at} of UDP is in use: {holder}");
    RequestError::FailedFor(FailureCause::PortInUse, text)
}

/// The error for a local address that this host does not have.
pub(super) fn foreign(address: IpAddr) -> RequestError {
    let text = format!("{address} is not an address of this host");
    RequestError::FailedFor(FailureCause::ForeignAddress, text)
}

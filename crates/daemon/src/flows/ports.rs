//! Reserves the UDP ports of direct flows.
//!
//! For each port the daemon also binds a socket of the kernel ([`Network::hold_port`]), so that a
//! flow and a socket of another program conflict as two sockets would. A reservation fails if a
//! socket has the port, if a flow has the port and the new flow cannot share it, if the address is
//! not of this host, or if an unprivileged user asks for a privileged port.
//!
//! Flows of one user may share a port if no two have the same remote end: then a packet goes to the
//! flow of its remote end, else to the flow to any host. A flow to any host cannot join a port that
//! is held already. All members of a multicast group share the group's port.

use std::io::ErrorKind;
use std::net::SocketAddr;

use super::Flows;
use crate::error::RequestError;
use crate::flows::network::Network;
use crate::peer::Peer;

/// A port that direct flows hold.
pub(super) struct HeldPort<P> {
    /// The uid of its user; `None` for a group's port, which all users share.
    uid: Option<u32>,
    /// The remote end of each flow that shares it; `None` for a flow to any host.
    remotes: Vec<Option<SocketAddr>>,
    /// Keeps the port held in the kernel.
    _port: P,
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
    /// Holds a port for a flow of `peer` on the interface `index`; returns the address with the
    /// chosen port.
    ///
    /// # Errors
    /// For the reasons in the module's documentation, and if the interface cannot join the group.
    pub(super) fn hold_port(
        &mut self,
        peer: &Peer,
        want: PortRequest,
        index: u32,
    ) -> Result<SocketAddr, RequestError> {
        let PortRequest { at, remote, group } = want;
        let lowest = self.network.first_unprivileged_port();
        if at.port() != 0 && at.port() < lowest && !peer.privileged {
            return Err(RequestError::NotPermitted(format!(
                "port {} is for root and the group netnice: others have ports from {lowest} on",
                at.port()
            )));
        }
        if let Some(hold) = self.ports.get_mut(&at) {
            let theirs = match hold.uid {
                None => group,
                Some(uid) => {
                    !group && uid == peer.uid && !hold.remotes.contains(&remote) && remote.is_some()
                }
            };
            if !theirs {
                return Err(in_use(at, "a direct flow has it"));
            }
            hold.remotes.push(remote);
            return Ok(at);
        }
        let (port, held) = self
            .network
            .hold_port(at)
            .map_err(|error| match error.kind() {
                ErrorKind::AddrInUse => in_use(at, "a socket of this host has it"),
                ErrorKind::AddrNotAvailable => {
                    RequestError::Failed(format!("{} is not an address of this host", at.ip()))
                }
                _ => RequestError::Failed(format!("cannot hold port {at}: {error}")),
            })?;
        if group {
            let joined = self.network.join_group(&port, at.ip(), index);
            joined.map_err(|error| {
                RequestError::Failed(format!("cannot join the group {}: {error}", at.ip()))
            })?;
        }
        let hold = HeldPort {
            uid: (!group).then_some(peer.uid),
            remotes: vec![remote],
            _port: port,
        };
        self.ports.insert(held, hold);
        Ok(held)
    }

    /// Releases these ports for one flow with this remote end. The kernel's socket of a port is
    /// closed when no flow shares the port any more.
    pub(super) fn release_ports(&mut self, ports: &[SocketAddr], remote: Option<SocketAddr>) {
        for at in ports {
            let Some(hold) = self.ports.get_mut(at) else {
                continue;
            };
            let is_remote = |one: &Option<SocketAddr>| *one == remote || hold.uid.is_none();
            if let Some(n) = hold.remotes.iter().position(is_remote) {
                hold.remotes.swap_remove(n);
            }
            if hold.remotes.is_empty() {
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

fn in_use(at: SocketAddr, holder: &str) -> RequestError {
    RequestError::Failed(format!("port {at} of UDP is in use: {holder}"))
}

//! Ports of direct flows: each is held in the kernel too, so that flows and sockets clash as two sockets would.
//!
//! Flows of one user may have one port together if each has another end of its own, since then each packet is of one of
//! them at most; and the members of a group have the group's port together, whoever they are.

use std::io::ErrorKind;
use std::net::SocketAddr;

use super::Flows;
use crate::denied::Denied;
use crate::flows::network::Network;
use crate::peer::Peer;

/// A port that is held.
pub(super) struct Hold<P> {
    /// Whose it is; a group's is everybody's.
    uid: Option<u32>,
    /// The other ends of the flows that have it.
    ends: Vec<Option<SocketAddr>>,
    /// Held as long as this is.
    _port: P,
}

/// What is to be held.
#[derive(Clone, Copy, Debug)]
pub(super) struct Want {
    /// The own end; port 0: any that is free.
    pub at: SocketAddr,
    /// The other end.
    pub end: Option<SocketAddr>,
    /// It is the port of a group that is received from.
    pub group: bool,
}

impl<N: Network> Flows<N> {
    /// Holds a port for a flow; tells which.
    pub(super) fn hold(
        &mut self,
        peer: &Peer,
        want: Want,
        index: u32,
    ) -> Result<SocketAddr, Denied> {
        let Want { at, end, group } = want;
        let lowest = self.network.first_port_for_all();
        if at.port() != 0 && at.port() < lowest && !peer.privileged {
            return Err(Denied::NotPermitted(format!(
                "port {} is for root and the group netnice: others have ports from {lowest} on",
                at.port()
            )));
        }
        if let Some(hold) = self.ports.get_mut(&at) {
            let theirs = match hold.uid {
                None => group,
                Some(uid) => {
                    !group && uid == peer.uid && !hold.ends.contains(&end) && end.is_some()
                }
            };
            if !theirs {
                return Err(in_use(at, "a direct flow has it"));
            }
            hold.ends.push(end);
            return Ok(at);
        }
        let (port, held) = self.network.hold(at).map_err(|error| match error.kind() {
            ErrorKind::AddrInUse => in_use(at, "a socket of this host has it"),
            ErrorKind::AddrNotAvailable => {
                Denied::Failed(format!("{} is not an address of this host", at.ip()))
            }
            _ => Denied::Failed(format!("cannot hold port {at}: {error}")),
        })?;
        if group {
            let joined = self.network.join(&port, at.ip(), index);
            joined.map_err(|error| {
                Denied::Failed(format!("cannot join the group {}: {error}", at.ip()))
            })?;
        }
        let hold = Hold {
            uid: (!group).then_some(peer.uid),
            ends: vec![end],
            _port: port,
        };
        self.ports.insert(held, hold);
        Ok(held)
    }

    /// Gives ports back that a flow with this other end had.
    pub(super) fn give_back(&mut self, ports: &[SocketAddr], end: Option<SocketAddr>) {
        for at in ports {
            let Some(hold) = self.ports.get_mut(at) else {
                continue;
            };
            let is_end = |one: &Option<SocketAddr>| *one == end || hold.uid.is_none();
            if let Some(n) = hold.ends.iter().position(is_end) {
                hold.ends.swap_remove(n);
            }
            if hold.ends.is_empty() {
                self.ports.remove(at);
            }
        }
    }

    /// Which ports are held.
    #[cfg(test)]
    pub(super) fn held_ports(&self) -> Vec<SocketAddr> {
        self.ports.keys().copied().collect()
    }
}

fn in_use(at: SocketAddr, who: &str) -> Denied {
    Denied::Failed(format!("port {at} of UDP is in use: {who}"))
}

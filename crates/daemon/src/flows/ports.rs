//! Reserves the UDP and TCP ports of direct flows.
//!
//! For each port the daemon also binds a socket of the kernel ([`Network::hold_port`]), so that a
//! flow and a socket of another program conflict as two sockets would. A reservation fails if a
//! socket has the port, if a flow has the port and the new flow cannot share it, if the address is
//! not of this host, if an unprivileged user asks for a privileged port, if the interface cannot
//! join the group, or if the kernel refuses the socket for another reason.
//!
//! # Sharing
//! - **UDP**: flows of one user may share a port if no two have the same remote end on one
//!   interface: then a packet goes to the flow of its remote end, else to the flow to any host. A
//!   flow to any host cannot join a port that is held already.
//! - **TCP**: connections share a port as UDP flows with a remote end do. A port has at most one
//!   flow of connection requests and one listener. Both belong to one attachment. While there is
//!   one of the two, all flows of the port belong to one process, so no program gets connections of
//!   another one.
//! - All members of a **multicast group** share the group's port, and each interface with a member
//!   has joined the group.
//!
//! # After the end of a server
//! When the last flow of a TCP port ends, and a listener was among them that its program had not
//! closed, peers may still have connections to it. The port is then *kept* for [`KEPT`] (60 s):
//! other users cannot have it, and the kernel answers RST to each segment. A flow of the same user
//! has the port again at once. At most [`MAX_KEPT`] (64) ports of a user are kept.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};

use netnice_api::FailureCause;
use netnice_core::units::{Instant, Nanos};

use super::Flows;
use crate::clock::Now;
use crate::error::RequestError;
use crate::flows::network::{Network, PortProtocol};
use crate::peer::Peer;

/// A port that direct flows hold.
pub(super) struct HeldPort<P> {
    /// The uid of the user of the port; `None` for a group's port, which all users share.
    uid: Option<u32>,
    /// The flows that share the port.
    sharers: Vec<Sharer>,
    /// Until when the port is kept after the end of its flows; `None` if it is not.
    kept_until: Option<Instant>,
    /// Keeps the port held in the kernel.
    port: P,
}

/// A port of TCP that is kept after the end of its flows.
pub(super) struct KeptPort<P> {
    uid: u32,
    until: Instant,
    /// Keeps the port held in the kernel.
    port: P,
}

/// The owner of a flow that needs a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PortOwner {
    pub uid: u32,
    /// True if the user may have every port.
    pub privileged: bool,
    pub pid: u32,
    /// The driver's id of the program.
    pub program: u32,
    /// The index of the interface of the flow.
    pub index: u32,
}

/// The packets of a port that a flow gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PortUse {
    /// Of UDP, those of one remote end; `None`: of any host.
    Udp(Option<SocketAddr>),
    /// Of UDP, those to a multicast group.
    Group,
    /// Of TCP, those of one remote end.
    Connection(SocketAddr),
    /// The connection requests of TCP.
    ConnectionRequests,
    /// Of TCP, those of any host that no other flow gets.
    Listener,
}

/// A flow that shares a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sharer {
    usage: PortUse,
    /// The owner. Its interface has joined the group if the port is a group's.
    owner: PortOwner,
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
    pub usage: PortUse,
}

impl PortOwner {
    /// The program `program` of the process `pid`, on the interface `index`.
    pub(super) fn of(peer: &Peer, pid: u32, program: u32, index: u32) -> PortOwner {
        PortOwner {
            uid: peer.uid,
            privileged: peer.privileged,
            pid,
            program,
            index,
        }
    }
}

impl PortUse {
    fn protocol(self) -> PortProtocol {
        match self {
            PortUse::Udp(_) | PortUse::Group => PortProtocol::Udp,
            PortUse::Connection(_) | PortUse::ConnectionRequests | PortUse::Listener => {
                PortProtocol::Tcp
            }
        }
    }

    /// True for the two flows of a server.
    fn is_server(self) -> bool {
        matches!(self, PortUse::ConnectionRequests | PortUse::Listener)
    }
}

impl<P> HeldPort<P> {
    /// True if a new flow may share the port with those that have it.
    fn is_shareable(&self, new: &Sharer) -> bool {
        let is_taken = |usage: PortUse| self.sharers.iter().any(|other| other.usage == usage);
        let (usage, owner) = (new.usage, new.owner);
        if usage == PortUse::Group {
            return self.uid.is_none();
        }
        if self.uid != Some(owner.uid) {
            return false;
        }
        let mut others = self.sharers.iter();
        // A flow that moves holds its port on both interfaces.
        let same_remote_end =
            |other: &Sharer| other.usage == usage && other.owner.index == owner.index;
        match usage {
            PortUse::Group => false,
            PortUse::Udp(remote) => remote.is_some() && !others.any(same_remote_end),
            PortUse::Connection(_) => others.all(|other| {
                let may_share = !other.usage.is_server() || other.owner.pid == owner.pid;
                !same_remote_end(other) && may_share
            }),
            PortUse::ConnectionRequests | PortUse::Listener => {
                !is_taken(usage)
                    && others.all(|other| {
                        let same_attachment = (other.owner.index, other.owner.program)
                            == (owner.index, owner.program);
                        other.owner.pid == owner.pid
                            && (same_attachment || !other.usage.is_server())
                    })
            }
        }
    }

    /// The holder, in the words of an error for this peer. Only root, the group netnice and the
    /// user of the port learn the process.
    fn holder(&self, asking: &PortOwner) -> String {
        let is_visible = asking.privileged || self.uid == Some(asking.uid);
        match self.sharers.first().filter(|_| is_visible) {
            Some(other) => format!("a direct flow of process {} has it", other.owner.pid),
            None => "a direct flow has it".to_owned(),
        }
    }
}

impl<N: Network> Flows<N> {
    /// Holds a port for a flow of `owner` on its interface, which joins the group if the port is a
    /// group's. The returned address has the chosen port.
    ///
    /// # Errors
    /// For the reasons in the module's documentation, and if the interface cannot join the group.
    pub(super) fn hold_port(
        &mut self,
        owner: PortOwner,
        want: PortRequest,
    ) -> Result<FlowPort, RequestError> {
        let PortRequest { at, usage } = want;
        let (protocol, is_group) = (usage.protocol(), usage == PortUse::Group);
        let sharer = Sharer { usage, owner };
        if at.port() != 0 && !owner.privileged {
            let lowest = self.network.first_unprivileged_port();
            if at.port() < lowest {
                return Err(RequestError::NotPermitted(format!(
                    "port {} is for root and the group netnice: others have ports from {lowest} on",
                    at.port()
                )));
            }
        }
        if let Some(hold) = self.ports.get_mut(&(protocol, at)) {
            if !hold.is_shareable(&sharer) {
                return Err(in_use(protocol, at, &hold.holder(&owner)));
            }
            if is_group && !has_member(&hold.sharers, owner.index) {
                join(&mut self.network, &hold.port, at.ip(), owner.index)?;
            }
            hold.sharers.push(sharer);
            return Ok(FlowPort { at, sharer });
        }
        if protocol == PortProtocol::Tcp && self.kept_ports.contains_key(&at) {
            return self.take_kept_port(at, sharer);
        }
        let (port, held) =
            self.network
                .hold_port(protocol, at)
                .map_err(|error| match error.kind() {
                    ErrorKind::AddrInUse => in_use(protocol, at, "a socket of this host has it"),
                    ErrorKind::AddrNotAvailable => foreign(at.ip()),
                    _ => not_held(at, &error),
                })?;
        if is_group {
            join(&mut self.network, &port, at.ip(), owner.index)?;
        }
        let hold = HeldPort {
            uid: (!is_group).then_some(owner.uid),
            sharers: vec![sharer],
            kept_until: None,
            port,
        };
        self.ports.insert((protocol, held), hold);
        Ok(FlowPort { at: held, sharer })
    }

    /// Holds a kept port again.
    fn take_kept_port(&mut self, at: SocketAddr, sharer: Sharer) -> Result<FlowPort, RequestError> {
        let kept = self.kept_ports.remove(&at);
        let (kept, error) = match kept {
            Some(kept) if kept.uid != sharer.owner.uid => {
                (kept, in_use(PortProtocol::Tcp, at, JUST_ENDED))
            }
            Some(kept) => match self.network.silence_port(&kept.port) {
                Ok(()) => {
                    let hold = HeldPort {
                        uid: Some(kept.uid),
                        sharers: vec![sharer],
                        kept_until: None,
                        port: kept.port,
                    };
                    self.ports.insert((PortProtocol::Tcp, at), hold);
                    return Ok(FlowPort { at, sharer });
                }
                Err(error) => (kept, not_held(at, &error)),
            },
            None => return Err(in_use(PortProtocol::Tcp, at, JUST_ENDED)),
        };
        self.kept_ports.insert(at, kept);
        Err(error)
    }

    /// Releases these ports for one flow. An interface without a member leaves the group. The
    /// kernel's socket of a port is closed when no flow shares the port any more, unless the flow
    /// is one of a server and `abandoned` has the time at which its program left it open: then the
    /// port is kept.
    pub(super) fn release_ports(&mut self, ports: &[FlowPort], abandoned: Option<Now>) {
        for FlowPort { at, sharer } in ports {
            let key = (sharer.usage.protocol(), *at);
            let Some(hold) = self.ports.get_mut(&key) else {
                continue;
            };
            if let Some(n) = hold.sharers.iter().position(|one| one == sharer) {
                hold.sharers.swap_remove(n);
            }
            let index = sharer.owner.index;
            if hold.uid.is_none() && !has_member(&hold.sharers, index) {
                let left = self.network.leave_group(&hold.port, at.ip(), index);
                if let Err(error) = left {
                    tracing::debug!(%error, group = %at.ip(), "the group cannot be left");
                }
            }
            if sharer.usage.is_server()
                && let Some(now) = abandoned
            {
                // In force when the last flow of the port ends.
                hold.kept_until = Some(now.monotonic.after(KEPT));
            }
            if hold.sharers.is_empty()
                && let Some(hold) = self.ports.remove(&key)
            {
                self.keep_port(*at, hold);
            }
        }
    }

    /// Keeps a port whose flows have ended, if it is to be kept.
    fn keep_port(&mut self, at: SocketAddr, hold: HeldPort<N::Port>) {
        let (Some(uid), Some(until)) = (hold.uid, hold.kept_until) else {
            return;
        };
        // Each takes a descriptor of the daemon.
        let its = self.kept_ports.values().filter(|kept| kept.uid == uid);
        if its.count() >= MAX_KEPT || self.network.let_kernel_reset(&hold.port).is_err() {
            return;
        }
        let port = hold.port;
        self.kept_ports.insert(at, KeptPort { uid, until, port });
    }

    /// The time of the end of the first port that is kept; `None` if none is.
    pub(super) fn next_kept_port_due(&self) -> Option<Instant> {
        self.kept_ports.values().map(|kept| kept.until).min()
    }

    /// Gives up the ports whose time is over.
    pub(super) fn expire_kept_ports(&mut self, now: Now) {
        self.kept_ports.retain(|_, kept| kept.until > now.monotonic);
    }

    /// Gives up all ports that are kept.
    pub(super) fn give_up_kept_ports(&mut self) {
        self.kept_ports.clear();
    }

    /// The held and the kept ports.
    #[cfg(test)]
    pub(super) fn held_ports(&self) -> Vec<SocketAddr> {
        let held = self.ports.keys().map(|(_, at)| *at);
        held.chain(self.kept_ports.keys().copied()).collect()
    }
}

/// True if one of these flows is on the interface with this index.
fn has_member(sharers: &[Sharer], index: u32) -> bool {
    sharers.iter().any(|sharer| sharer.owner.index == index)
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

fn not_held(at: SocketAddr, error: &std::io::Error) -> RequestError {
    RequestError::Failed(format!("cannot hold port {at}: {error}"))
}

fn in_use(protocol: PortProtocol, at: SocketAddr, holder: &str) -> RequestError {
    let text = format!("port {at} of {} is in use: {holder}", protocol.name());
    RequestError::FailedFor(FailureCause::PortInUse, text)
}

/// The error for a local address that this host does not have.
pub(super) fn foreign(address: IpAddr) -> RequestError {
    let text = format!("{address} is not an address of this host");
    RequestError::FailedFor(FailureCause::ForeignAddress, text)
}

/// The holder of a kept port, in the words of an error.
const JUST_ENDED: &str = "the program that had it has just ended, and its user can have it again \
                          before others";
/// Most ports that are kept for one user at a time.
const MAX_KEPT: usize = 64;
/// For how long a server's port is kept for its user after the server's program has ended.
const KEPT: Nanos = Nanos::from_secs(60);

//! Passes ICMP errors to the flows whose packets they quote, and follows the path MTU.
//!
//! The kernel receives ICMP, and the event loop reads a copy of each error
//! ([`netnice_kernel::icmp_errors`]), so drivers need no further rights and ICMP stays with the
//! kernel. An error reaches a flow if the quoted packet has the flow's protocol, local address and
//! port, and its remote address and port, or any of those on a flow to any host. Its program gets
//! the notification [`FlowNotification::Undelivered`].
//!
//! Except for TCP, an error "too long" also lowers the path MTU (RFC 1191, RFC 8201). On a flow
//! with one remote host the driver then refuses longer packets; the program of a flow to any host
//! does that for each host itself. After [`PATH_MTU_LIFETIME`] (10 minutes) the flow has the MTU of
//! its route again.
//!
//! TCP has a proof of a sent packet: its sequence number, which an error quotes. Only the program
//! has the state to check it (RFC 5927, section 4.1). So an error that quotes a segment changes
//! nothing here: the notification has the quoted sequence number and the reported MTU, and the
//! program lowers its segment size if the number is in flight. The flow's own MTU, which the driver
//! checks, stays that of the route.
//!
//! Every host can forge an error, and UDP has no stronger proof of a sent packet than its addresses
//! and ports. So what an error can do is bounded: it changes only the flow that it quotes, and no
//! path MTU below [`MIN_PATH_MTU_V4`] or [`MIN_PATH_MTU_V6`]; an MTU that would have let the quoted
//! packet pass is ignored; a program gets at most [`ERRORS_PER_SECOND`]; and the event loop bounds
//! how many messages it reads.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use netnice_api::direct::{DeliveryFailure, Endpoint, FlowNotification, Undelivered};
use netnice_core::units::{Instant, Nanos};
use netnice_kernel::icmp_errors::{ErrorCause, IcmpError};

use super::network::Network;
use super::{FlowRecord, Flows, NextHop};
use crate::clock::Now;

/// Flows by their local ends, path MTUs, and what programs have got in the present second.
#[derive(Default)]
pub(super) struct IcmpState {
    /// Flows by protocol, local address and local port (0 for a protocol without ports).
    by_local: BTreeMap<LocalEnd, BTreeSet<u32>>,
    /// Path MTUs that are below those of the routes, of flows with one remote host.
    path_mtus: BTreeMap<u32, PathMtu>,
    /// The start of the present second, and the number of errors of each session in it.
    since: Instant,
    reported: BTreeMap<u64, u32>,
}

/// The protocol, the local address and the local port of a flow.
type LocalEnd = (u8, IpAddr, u16);

/// A path MTU in bytes, and the time of its end.
#[derive(Clone, Copy, Debug)]
struct PathMtu {
    mtu: u32,
    until: Instant,
}

impl IcmpState {
    /// Adds a flow.
    pub(super) fn insert(&mut self, flow: &FlowRecord) {
        if let Some((local, _)) = ends(&flow.endpoint) {
            self.by_local.entry(local).or_default().insert(flow.number);
        }
    }

    /// Removes a flow.
    pub(super) fn remove(&mut self, flow: &FlowRecord) {
        self.path_mtus.remove(&flow.number);
        let Some((local, _)) = ends(&flow.endpoint) else {
            return;
        };
        if let Some(flows) = self.by_local.get_mut(&local) {
            flows.remove(&flow.number);
            if flows.is_empty() {
                self.by_local.remove(&local);
            }
        }
    }

    /// The MTU of a flow whose route has this MTU, both in bytes.
    pub(super) fn mtu_of(&self, flow: u32, route: u32) -> u32 {
        self.path_mtus
            .get(&flow)
            .map_or(route, |path| path.mtu.min(route))
    }

    /// The time of the next end of a path MTU; `None` if there is none.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.path_mtus.values().map(|path| path.until).min()
    }

    /// Forgets path MTUs that have ended; true if there were any.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        let before = self.path_mtus.len();
        self.path_mtus.retain(|_, path| path.until > now);
        self.path_mtus.len() < before
    }

    /// True if a session may get another error in the present second.
    fn may_report(&mut self, session: u64, now: Instant) -> bool {
        if now.since(self.since) >= Nanos::from_secs(1) {
            self.since = now;
            self.reported.clear();
        }
        let reported = self.reported.entry(session).or_default();
        *reported += 1;
        *reported <= ERRORS_PER_SECOND
    }
}

impl<N: Network> Flows<N> {
    /// Handles ICMP errors that have arrived at this host.
    pub(crate) fn icmp_errors(&mut self, errors: &[IcmpError], now: Now) {
        for error in errors {
            for flow in self.quoted_flows(error) {
                self.undelivered(flow, error, now);
            }
        }
    }

    /// The flows that the quoted packet may be of. A flow with the remote end of the packet comes
    /// before a flow to any host, as for received packets.
    fn quoted_flows(&self, error: &IcmpError) -> Vec<u32> {
        // The ports are quoted always, and the sequence number of TCP (RFC 792, RFC 4443).
        let (from, to) = match (error.protocol, error.ports) {
            (TCP, _) if error.sequence.is_none() => return Vec::new(),
            (UDP | TCP, Some(ports)) => ports,
            (UDP | TCP, None) => return Vec::new(),
            _ => (0, 0),
        };
        let remote = SocketAddr::new(error.remote, to);
        let local = (error.protocol, error.local, from);
        let Some(candidates) = self.icmp.by_local.get(&local) else {
            return Vec::new();
        };
        let with = |wanted: Option<SocketAddr>| -> Vec<u32> {
            let open = candidates.iter().filter_map(|number| {
                let flow = self.flows.get(number)?;
                let (_, remote) = ends(&flow.endpoint)?;
                let fits = remote == wanted && flow.at_driver.is_some() && flow.closing.is_none();
                fits.then_some(*number)
            });
            open.take(MAX_QUOTED).collect()
        };
        match with(Some(remote)) {
            exact if !exact.is_empty() => exact,
            _ => with(None),
        }
    }

    /// Reports an error to the program of a flow, and lowers the flow's MTU.
    fn undelivered(&mut self, number: u32, error: &IcmpError, now: Now) {
        let Some(flow) = self.flows.get(&number) else {
            return;
        };
        let (flow_mtu, has_one_host) = (flow.mtu, matches!(flow.next_hop, NextHop::Toward { .. }));
        let session = self.link_states.get(&flow.link);
        let session = session.and_then(|state| state.programs.get(&flow.program)?.session);
        let mut mtu = None;
        if let ErrorCause::TooLong {
            mtu: reported,
            length,
        } = error.cause
        {
            let least = match error.remote {
                IpAddr::V4(_) => MIN_PATH_MTU_V4,
                IpAddr::V6(_) => MIN_PATH_MTU_V6,
            };
            let bounded = reported.max(least);
            if reported >= length || bounded >= flow_mtu {
                // The packet would have passed, or the flow has this MTU already.
                return;
            }
            mtu = Some(bounded);
            // Of TCP, only the program can tell whether the quoted segment is in flight.
            if has_one_host && error.protocol != TCP {
                let until = now.monotonic.after(PATH_MTU_LIFETIME);
                let path = PathMtu {
                    mtu: bounded,
                    until,
                };
                self.icmp.path_mtus.insert(number, path);
                self.set_next_hop(number, |next_hop| *next_hop, Some(bounded), now);
            }
        }
        let Some(session) = session else {
            return;
        };
        if !self.icmp.may_report(session, now.monotonic) {
            return;
        }
        let port = match error.ports {
            Some((_, to)) if [UDP, TCP].contains(&error.protocol) => to,
            _ => 0,
        };
        let report = Undelivered {
            to: SocketAddr::new(error.remote, port),
            by: error.reporter,
            why: failure(error.cause),
            mtu,
            sequence: error.sequence.filter(|_| error.protocol == TCP),
        };
        let notification = FlowNotification::Undelivered {
            flow: number,
            report,
        };
        self.notify_session(session, notification);
    }
}

fn failure(cause: ErrorCause) -> DeliveryFailure {
    match cause {
        ErrorCause::NoNetwork => DeliveryFailure::NoNetwork,
        ErrorCause::NoHost => DeliveryFailure::NoHost,
        ErrorCause::NoPort => DeliveryFailure::NoPort,
        ErrorCause::Forbidden => DeliveryFailure::Forbidden,
        ErrorCause::Expired => DeliveryFailure::Expired,
        ErrorCause::TooLong { .. } => DeliveryFailure::TooLong,
    }
}

/// The local and the remote end of a flow's packets; `None` for a flow that gets no reports: of a
/// group, of an EtherType, or of the connection requests of a TCP port.
fn ends(endpoint: &Endpoint) -> Option<(LocalEnd, Option<SocketAddr>)> {
    // A link-local socket address contains a scope id, which a packet does not.
    let without_scope = |address: SocketAddr| SocketAddr::new(address.ip(), address.port());
    match endpoint {
        Endpoint::Udp { local, remote } => {
            Some(((UDP, local.ip(), local.port()), remote.map(without_scope)))
        }
        Endpoint::Protocol {
            number,
            local,
            remote,
            ..
        } => {
            let remote = remote.map(|remote| SocketAddr::new(remote, 0));
            Some(((*number, *local, 0), remote))
        }
        Endpoint::Tcp { local, remote } => Some((
            (TCP, local.ip(), local.port()),
            Some(without_scope(*remote)),
        )),
        // Also for what the flow of connection requests has sent.
        Endpoint::TcpListener { local } => Some(((TCP, local.ip(), local.port()), None)),
        Endpoint::Group { .. } | Endpoint::TcpSyn { .. } | Endpoint::EtherType { .. } => None,
    }
}

/// Protocol numbers of UDP and TCP.
const UDP: u8 = 17;
const TCP: u8 = 6;
/// The time for which a path MTU holds (RFC 1191, section 6.3; RFC 8201, section 4).
const PATH_MTU_LIFETIME: Nanos = Nanos::from_secs(600);
/// The smallest path MTU that an error can set: what every host can reassemble (RFC 1122, section
/// 3.3.2), and the smallest MTU of IPv6 (RFC 8200, section 5).
const MIN_PATH_MTU_V4: u32 = 576;
const MIN_PATH_MTU_V6: u32 = 1280;
/// Largest number of errors in a second of which a program is notified. The queue of its
/// notifications has room for those of some seconds.
const ERRORS_PER_SECOND: u32 = 50;
/// Largest number of flows that one error reaches: those of one protocol and address that differ in
/// their patterns.
const MAX_QUOTED: usize = 16;

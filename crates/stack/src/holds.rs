//! Promises that the daemon holds for a flow that is opened later ([`Program::hold`]), and the link
//! over which a host is reached ([`route_to`]). A call fails with a [`StackError`] if there is no
//! daemon, the connection to it fails, or the daemon refuses the request.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netnice_api::direct::{
    DirectReply, DirectRequest, FindRoute, HoldPromise, PromiseHeld, ReleaseHold, RouteToHost,
};
use netnice_api::{Client, Request, Response, RuntimeDir};

use crate::control::unexpected_response;
use crate::error::StackError;
use crate::program::{CLOSE_TIMEOUT, Program, Shared};

/// A promise of the link that the daemon holds for a flow of the program: for 5 s, or until a flow
/// is opened with it ([`UdpOptions::hold`](crate::udp::UdpOptions::hold)), or until this is
/// dropped. It counts as one of the flows that the program attached for.
pub struct HeldPromise {
    shared: Arc<Shared>,
    held: PromiseHeld,
    until: Instant,
}

impl Program {
    /// Has the daemon hold the shortest deadline with which the link keeps a channel to a host
    /// beside all its promises. `contract` has a clause `channel`, whose deadline is the longest
    /// that is held; for example `channel mmax=3KiB,rmax=100/s,bmax=2,deadline=50ms`.
    ///
    /// # Errors
    /// If there is no connection to the daemon or it fails, or if the daemon refuses: the contract
    /// has no channel or is not permitted, the route to the host does not lead over the link, the
    /// program has as many flows and held promises as it attached for, or the channel does not fit
    /// even with its longest deadline; the error then has what would fit.
    pub fn hold(&self, to: IpAddr, contract: &str) -> Result<HeldPromise, StackError> {
        let control = self.shared.control()?;
        let request = DirectRequest::Hold(HoldPromise {
            to,
            contract: contract.to_string(),
        });
        // The time at the daemon begins later.
        let until = Instant::now() + Duration::from_nanos(HoldPromise::LASTS_NS);
        let flows = &self.shared.flows;
        let held = control.request(flows, request, Client::TIMEOUT, |response| match response {
            Response::Direct(DirectReply::Held(held)) => Ok(held),
            other => Err(unexpected_response(other, "hold")),
        })?;
        Ok(HeldPromise {
            shared: self.shared.clone(),
            held,
            until,
        })
    }
}

impl HeldPromise {
    /// The number, for [`UdpOptions::hold`](crate::udp::UdpOptions::hold).
    pub fn number(&self) -> u32 {
        self.held.hold
    }

    /// The contract with the shortest deadline, as text.
    pub fn contract(&self) -> &str {
        &self.held.contract
    }

    /// The address of the next hop: the host itself, if it is on the link.
    pub fn via(&self) -> IpAddr {
        self.held.via
    }

    /// The local address that packets to the host are sent from.
    pub fn from(&self) -> IpAddr {
        self.held.from
    }

    /// The path MTU to the host, in bytes.
    pub fn mtu(&self) -> u32 {
        self.held.mtu
    }
}

impl Drop for HeldPromise {
    /// Releases the promise, unless its time is over. Waits up to 5 s for the daemon's response,
    /// and ignores it.
    fn drop(&mut self) {
        let Some(left) = self.until.checked_duration_since(Instant::now()) else {
            return;
        };
        if let Ok(control) = self.shared.control() {
            let hold = self.held.hold;
            let request = DirectRequest::Release(ReleaseHold { hold });
            let timeout = left.min(CLOSE_TIMEOUT);
            let _ = control.request(&self.shared.flows, request, timeout, |_| Ok(()));
        }
    }
}

/// Requests the managed link over which a host is reached from the daemon of a runtime folder. The
/// caller need not have attached.
///
/// # Errors
/// If there is no daemon or the connection to it fails, or if the daemon refuses: there is no route
/// to the host, the route does not lead over a managed link, or the address is not that of one
/// other host.
pub fn route_to(dir: &RuntimeDir, to: IpAddr) -> Result<RouteToHost, StackError> {
    let request = Request::Direct(DirectRequest::Route(FindRoute { to }));
    match Client::connect(dir)?.call(&request, None)? {
        Response::Direct(DirectReply::Route(route)) => Ok(route),
        other => Err(unexpected_response(other, "route")),
    }
}

#[cfg(test)]
mod tests;

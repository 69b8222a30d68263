//! The arrival of a channel at this host: finds the interface at which its packets arrive, and
//! admits the channel at the port before that interface before the bound is asked for. A channel
//! that cannot be admitted is refused with the reason.

use netnice_core::units::Nanos;

use super::{Found, Host, text};
use crate::message::Reason;
use crate::signalling::{Event, HoldId, HoldRequest, NextHop};

impl Host {
    /// Finds the interface at which the packets of a channel arrive; at the source none do.
    pub(super) fn find_arrival(&mut self, hold: HoldId, request: HoldRequest) {
        let Some(arrival) = request.arrival else {
            return self.hold(hold, request);
        };
        let (routes, found) = (self.routes.clone(), self.found.clone());
        tokio::task::spawn_blocking(move || {
            let iface = routes(arrival.from);
            let request = Box::new(request);
            // It fails only if the host has ended.
            let _ = found.send(Found::Arrival {
                hold,
                request,
                iface,
            });
        });
    }

    /// Admits a channel at the port before the interface at which its packets arrive, and asks for
    /// the bound.
    pub(super) fn admit_arrival(
        &mut self,
        hold: HoldId,
        request: HoldRequest,
        iface: Result<String, String>,
    ) {
        // The channel may have ended meanwhile.
        if self.signalling.sink_of(hold).is_none() {
            return;
        }
        let name = iface.and_then(|iface| iface.parse().map_err(text));
        let admitted = name.and_then(|iface| self.ports.admit(hold, iface, &request));
        match admitted {
            Ok(()) => self.hold(hold, request),
            Err(reason) => self.handle(Event::NotHeld {
                hold,
                reason: Reason::new(&reason),
                best: None,
            }),
        }
    }

    /// Notes the final bound of this host, and returns what of it is behind the port before this
    /// host.
    pub(super) fn relax_port(&mut self, hold: HoldId, bound: Nanos) -> Nanos {
        if let Some(deadline) = self.signalling.deadline_of(hold) {
            self.ports.relax(hold, bound, deadline);
        }
        Nanos(bound.0.saturating_sub(self.ports.added(hold).0))
    }

    /// Tells the signalling what this host holds, with the port before it.
    pub(super) fn handle_bound(&mut self, hold: HoldId, bound: Nanos, next: Option<NextHop>) {
        let added = self.ports.added(hold);
        self.handle(Event::Held {
            hold,
            bound: Nanos(bound.0.saturating_add(added.0)),
            next,
            unguarded: self.ports.unguarded(hold),
        });
    }
}

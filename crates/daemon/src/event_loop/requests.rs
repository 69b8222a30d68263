//! Handles one request and sends the response, which has the error if the request fails. Requests
//! about direct flows go to [`Flows`], all others to the [`Service`]; the event loop itself handles
//! the request for the quotas of users. [`Flows`] adds its part to the responses of the service to
//! `show`, `explain` and `doctor`. The reply to a `set` waits until the target is redirected to its
//! driver, if it can be. Before root clears everything, the direct flows are closed and the drivers
//! are stopped.

use netnice_api::{Clear, ClearWhat, DoctorItem, Request, Response};
use netnice_core::admission::TargetId;
use netnice_core::target::Target;
use netnice_kernel::process::PidFd;

use crate::clock::Now;
use crate::flows::flow_replies::PartialReply;
use crate::flows::network::Network;
use crate::flows::promises::TargetDraft;
use crate::flows::{Caller, Flows, ProgramRequest};
use crate::host::{Host, LookupRights};
use crate::peer::Peer;
use crate::server::PendingRequest;
use crate::service::{NamedProcess, Service};

/// Answers a request: at once, or after a reply of a driver. `rights` are those for look-ups of
/// executables. `front` reports the state of the front for `netnice doctor`.
pub(super) fn answer<H: Host, N: Network>(
    service: &mut Service<H>,
    flows: &mut Flows<N>,
    front: impl FnOnce() -> DoctorItem,
    pending: PendingRequest,
    rights: LookupRights,
    now: Now,
) {
    let PendingRequest {
        peer,
        request,
        fd,
        connection,
        reply,
    } = pending;
    let named = fd.and_then(PidFd::from_received);
    if let Request::Direct(request) = request {
        let caller = named.and_then(|(handle, pid)| {
            Some(Caller {
                pid,
                handle: handle.duplicate().ok()?,
                lives: Box::new(move || handle.is_alive()),
            })
        });
        let program_request = ProgramRequest {
            peer,
            connection,
            request,
            caller,
            reply,
        };
        return flows.handle(service, program_request, now);
    }
    let named = named.map(|(handle, pid)| NamedProcess {
        pid,
        lives: Box::new(move || handle.is_alive()),
    });
    if let Request::Link(change) = &request
        && change.names_classes()
        && !change.unmanage
    {
        // The flow manager knows what the flows of the link need.
        let wanted = service.wanted_classes(&peer, change);
        let checked =
            wanted.and_then(|(link, classes)| flows.check_classes(service, &link, &classes));
        if let Err(error) = checked {
            return drop(reply.send(Response::from(error).into()));
        }
    }
    let clears_flows =
        matches!(&request, Request::Clear(clear) if clears_flows(service, &peer, clear));
    let closes_flows = clears_flows && flows.has_flows();
    if clears_flows {
        flows.clear(service, now);
    }
    service.host().set_lookup_rights(rights);
    let mut check = |draft: &TargetDraft<'_>| flows.check_target(draft);
    let mut response = service.handle_checked(&peer, &request, (named, &mut check), now);
    service.host().set_lookup_rights(LookupRights::AsRoot);
    if let Response::Done(done) = &mut response
        && closes_flows
    {
        done.messages
            .push("direct flows are closed; their programs must open them again".to_owned());
    }
    if let Response::Shown(doc) = &mut response {
        flows.describe_classes(doc);
        flows.describe_redirects(service.ledger(), doc);
    }
    if let (Request::Explain(explain), Response::Explained(page)) = (&request, &mut response)
        && let Ok(target) = explain.target.parse()
    {
        flows.describe_redirect(service.ledger(), &target, page);
    }
    if let Response::Doctor(report) = &mut response {
        report.items.push(front());
        report.items.extend(flows.doctor(service));
    }
    if let Some(target) = set_target(service, &request, &response) {
        return flows.reply_when_redirected(service, target, (response, reply), now);
    }
    match part_for_flows(service, flows, &request, &response) {
        Some(what) if !flows.is_idle() => flows.reply_with_flows(service, peer, what, reply, now),
        // The send fails if the peer has closed its connection. The effect of the request stays.
        _ => drop(reply.send(response.into())),
    }
}

/// True if root clears everything by a valid request: then the flows are closed too.
fn clears_flows<H: Host>(service: &mut Service<H>, peer: &Peer, clear: &Clear) -> bool {
    peer.uid == 0
        && matches!(clear.what, ClearWhat::All)
        && !clear.dry_run
        && service.check_clear(clear).is_ok()
}

/// The id of the target that a request has set; `None` if it has set none.
fn set_target<H: Host>(
    service: &Service<H>,
    request: &Request,
    response: &Response,
) -> Option<u32> {
    let (Request::Set(set), Response::Done(done)) = (request, response) else {
        return None;
    };
    let slot = done.id.filter(|_| !set.dry_run).and_then(TargetId::new);
    let held = service.ledger().get(slot?)?;
    Some(held.id)
}

/// The response as the part of a reply that [`Flows`] completes; `None` if the response is
/// complete.
fn part_for_flows<H: Host, N: Network>(
    service: &Service<H>,
    flows: &Flows<N>,
    request: &Request,
    response: &Response,
) -> Option<PartialReply> {
    let named = |text: &str| text.parse::<Target>().ok();
    match (request, response) {
        (Request::Show(show), Response::Shown(doc)) => {
            let target = show.target.as_deref().and_then(named);
            Some(PartialReply::Show(doc.clone(), target))
        }
        (Request::Explain(explain), answer) => {
            let target = named(&explain.target)?;
            let known = match answer {
                Response::Explained(known) => Some(known.clone()),
                _ => None,
            };
            let redirected = flows.redirected_target(service.ledger(), &target);
            let of_flows = matches!(target, Target::Flow(_) | Target::Direct(_));
            let has_counts = redirected.is_some() || matches!(target, Target::Pid(_));
            (of_flows || (known.is_some() && has_counts))
                .then_some(PartialReply::Explain(target, known, redirected))
        }
        _ => None,
    }
}

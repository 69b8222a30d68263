//! Dispatches one request, and its reply: requests about direct flows go to [`Flows`], all others
//! to the [`Service`]. [`Flows`] completes the replies that show flows too.

use netnice_api::{Clear, ClearWhat, DoctorItem, Request, Response};
use netnice_core::target::Target;
use netnice_kernel::process::PidFd;

use crate::clock::Now;
use crate::flows::network::Network;
use crate::flows::reports::What;
use crate::flows::{Asked, Caller, Flows};
use crate::host::{Host, Sight};
use crate::peer::Peer;
use crate::server::Ask;
use crate::service::{Named, Service};

/// Answers a request, now or later.
pub(super) fn answer<H: Host, N: Network>(
    service: &mut Service<H>,
    flows: &mut Flows<N>,
    front: impl FnOnce() -> DoctorItem,
    ask: Ask,
    sight: Sight,
    now: Now,
) {
    let Ask {
        peer,
        request,
        fd,
        guest,
        reply,
    } = ask;
    let named = fd.and_then(PidFd::received);
    if let Request::Direct(request) = request {
        let caller = named.and_then(|(handle, pid)| {
            Some(Caller {
                pid,
                handle: handle.duplicate().ok()?,
                lives: Box::new(move || handle.is_alive()),
            })
        });
        let asked = Asked {
            peer,
            guest,
            request,
            caller,
            reply,
        };
        return flows.handle(service, asked, now);
    }
    let named = named.map(|(handle, pid)| Named {
        pid,
        lives: Box::new(move || handle.is_alive()),
    });
    if matches!(&request, Request::Clear(clear) if clears_flows(&peer, clear)) {
        flows.clear(service, now);
    }
    service.host().behold(sight);
    let mut response = service.handle(&peer, &request, named, now);
    service.host().behold(Sight::Roots);
    if let Response::Doctor(report) = &mut response {
        report.items.push(front());
        report.items.extend(flows.doctor(service));
    }
    match told_with_flows(&request, &response) {
        Some(what) if !flows.is_idle() => flows.tell(service, peer, what, reply, now),
        // The send fails if the peer has closed its connection. The effect of the request stays.
        _ => drop(reply.send(response.into())),
    }
}

/// True if root clears everything: then the flows are closed too.
fn clears_flows(peer: &Peer, clear: &Clear) -> bool {
    peer.uid == 0 && matches!(clear.what, ClearWhat::All) && !clear.dry_run
}

/// The response as the part of a reply that [`Flows`] completes; `None` if the response is
/// complete.
fn told_with_flows(request: &Request, response: &Response) -> Option<What> {
    let named = |text: &str| text.parse::<Target>().ok();
    match (request, response) {
        (Request::Show(show), Response::Shown(doc)) => {
            let target = show.target.as_deref().and_then(named);
            Some(What::Show(doc.clone(), target))
        }
        (Request::Explain(explain), answer) => {
            let target = named(&explain.target)?;
            let known = match answer {
                Response::Explained(known) => Some(known.clone()),
                _ => None,
            };
            let of_flows = matches!(target, Target::Flow(_) | Target::Direct(_));
            (of_flows || (known.is_some() && matches!(target, Target::Pid(_))))
                .then_some(What::Explain(target, known))
        }
        _ => None,
    }
}

//! Replies to requests that set a target: a reply waits until the target is redirected or stays
//! with the kernel's classes, at most [`LONGEST_WAIT`], so that a command that `netnice run` starts
//! is served by the driver from its first packet. Nothing here fails.

use netnice_api::Response;
use netnice_core::units::Instant;

use super::Phase;
use crate::clock::Now;
use crate::flows::network::Network;
use crate::flows::promises::{LONGEST_WAIT, Promises};
use crate::flows::{Flows, ReplySender};
use crate::server::Reply;

/// A reply that waits for a target.
pub(super) struct PendingReply {
    /// The target's id.
    target: u32,
    response: Response,
    reply: ReplySender,
    /// When it is sent in any case.
    pub(super) until: Instant,
}

impl<N: Network> Flows<N> {
    /// Sends the response to a request that set the target with this id, once the target is
    /// redirected or stays with the classes, at the latest after [`LONGEST_WAIT`].
    pub(crate) fn reply_when_redirected(
        &mut self,
        promises: &mut impl Promises,
        target: u32,
        (response, reply): (Response, ReplySender),
        now: Now,
    ) {
        self.redirects.replies.push(PendingReply {
            target,
            response,
            reply,
            until: now.monotonic.after(LONGEST_WAIT),
        });
        self.settle_redirects(promises, now);
    }

    /// Sends the replies whose targets are settled, and those that have waited for long.
    pub(super) fn send_settled_replies(&mut self, now: Now) {
        if self.redirects.replies.is_empty() {
            return;
        }
        let all = std::mem::take(&mut self.redirects.replies);
        let (waiting, settled): (Vec<PendingReply>, Vec<PendingReply>) = all
            .into_iter()
            .partition(|one| one.until > now.monotonic && self.is_beginning(one.target));
        self.redirects.replies = waiting;
        for one in settled {
            let mut response = one.response;
            if let (Response::Done(done), Some(why)) = (&mut response, self.cell_fault(one.target))
            {
                let text = format!("the kernel's classes serve the cell contract as a rate: {why}");
                done.messages.push(text);
            }
            // The send fails if the peer has closed its connection.
            let _ = one.reply.send(Reply::from(response));
        }
    }

    /// True if a target is about to be redirected.
    pub(super) fn is_beginning(&self, target: u32) -> bool {
        let Some(link) = self.redirects.wanted.get(&target) else {
            return false;
        };
        let place = self.redirects.place_of(target, link);
        let is_active = place.is_some_and(|(_, place)| place.phase == Phase::Active);
        !is_active && self.redirect_why(target, link).is_none()
    }
}

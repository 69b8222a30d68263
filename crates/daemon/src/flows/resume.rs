//! Resumes the attachments of programs that an earlier daemon attached.
//!
//! A driver continues without a daemon, with its programs and flows. When the next daemon runs, the
//! library of each program connects to it and resumes ([`Flows::resume`]): the program has a
//! session again, and opens, changes and closes flows as before. It requests the state of its flows
//! ([`Flows::list_flows`]), because routes and promises may have changed while no daemon ran.
//!
//! # Proof of identity
//! An attachment is resumed only if all of the following holds:
//!
//! - The secret is that of the attachment: 16 random bytes, which the first daemon made. Only the
//!   program, root, the driver and the daemons have it. The driver stores it over the restart.
//! - The kernel recorded the program's process as the one that made the connection. So a child
//!   process, which has a copy of the secret, cannot resume.
//! - The message names that process by a number and a start time, and the daemon opened a pidfd of
//!   it. The driver has a pidfd too, and detaches a program whose process has ended. So another
//!   process with the same number cannot resume.
//! - The user of the connection is the user who attached the program.
//! - No other connection has the attachment.
//!
//! A request that comes before the driver has sent its census waits for it. If the attachment does
//! not exist, the response says that all its flows have ended. Until the program has requested the
//! list of its flows, the end of the connection does not detach it: the response may be lost.

use netnice_api::Response;
use netnice_api::direct::{
    Attached, Detached, DirectReply, FlowList, FlowState, LIST_FLOWS, Resume,
};
use netnice_core::contract::IfName;

use super::network::Network;
use super::open_flow::not_attached;
use super::promises::Promises;
use super::sessions::{max_memory_bytes, no_pidfd};
use super::{CallPurpose, Caller, Command, ConnectionUser, Flows, ReplySender, Session, refuse};
use crate::error::RequestError;
use crate::peer::Peer;
use crate::server::{ConnectionHandle, Reply};

/// A request to resume an attachment.
pub(super) struct PendingResume {
    pub peer: Peer,
    pub connection: ConnectionHandle,
    pub caller: Option<Caller>,
    pub resume: Resume,
    pub reply: ReplySender,
}

impl<N: Network> Flows<N> {
    /// Resumes an attachment, or refuses it for the reasons in the module's documentation. The
    /// reply comes when the driver has sent its census.
    pub(super) fn resume(&mut self, promises: &mut impl Promises, pending: PendingResume) {
        let is_expected = self.calls.values().any(|call| {
            matches!(call.purpose, CallPurpose::Adopt) && call.link.as_str() == pending.resume.iface
        });
        if is_expected {
            return self.resuming.push(pending);
        }
        self.resume_now(promises, pending);
    }

    /// Handles the requests that wait for the census of a link's driver: it has come, or `ended`
    /// says why it does not come.
    pub(super) fn continue_resuming(
        &mut self,
        promises: &mut impl Promises,
        link: &IfName,
        ended: Option<&str>,
    ) {
        let all = std::mem::take(&mut self.resuming);
        let (theirs, others): (Vec<_>, Vec<_>) = all
            .into_iter()
            .partition(|pending| pending.resume.iface == link.as_str());
        self.resuming = others;
        for pending in theirs {
            match ended {
                None => self.resume_now(promises, pending),
                Some(why) => reply_detached(pending.reply, why.to_owned()),
            }
        }
    }

    fn resume_now(&mut self, promises: &mut impl Promises, pending: PendingResume) {
        let PendingResume {
            peer,
            connection,
            caller,
            resume,
            reply,
        } = pending;
        let gone = || {
            format!(
                "the attachment to {} has ended while the program had no connection to the daemon",
                resume.iface
            )
        };
        let Ok(link) = resume.iface.parse::<IfName>() else {
            return reply_detached(reply, gone());
        };
        let known = self.link_states.get(&link).and_then(|state| {
            let mut programs = state.programs.iter();
            programs.find(|(_, program)| has_secret(program.secret.as_deref(), &resume.secret))
        });
        let Some((&number, program)) = known else {
            return reply_detached(reply, gone());
        };
        let open = program.open.len() as u32;
        let program = program.clone();
        let permitted = self.may_resume(promises, &peer, &connection, caller.as_ref(), &program);
        if let Err(error) = permitted {
            return refuse(reply, error);
        }
        let most = max_memory_bytes(&peer, promises.quotas());
        self.connections.insert(
            connection.number,
            ConnectionUser {
                uid: peer.uid,
                user: peer.user(),
                attached: true,
            },
        );
        self.commands
            .push(Command::WatchConnection(connection.clone()));
        let session = Session {
            link: link.clone(),
            program: Some(number),
            pid: program.pid,
            name: program.name,
            flows: program.flows.max(open),
            bytes: program.bytes,
            most,
            secret: program.secret.clone(),
            moves: resume.moves,
            is_unconfirmed: true,
            peer,
            connection: connection.clone(),
        };
        self.sessions.insert(connection.number, session);
        let Some(state) = self.link_states.get_mut(&link) else {
            return;
        };
        if let Some(program) = state.programs.get_mut(&number) {
            program.session = Some(connection.number);
        }
        let attached = Attached {
            iface: resume.iface,
            mode: state.mode.clone(),
            secret: resume.secret,
        };
        // The send fails if the program has closed its connection, whose end is reported too.
        let _ = reply.send(Reply::from(Response::Direct(DirectReply::Attached(
            attached,
        ))));
    }

    /// Checks that this connection may have this program.
    fn may_resume(
        &self,
        promises: &mut impl Promises,
        peer: &Peer,
        connection: &ConnectionHandle,
        caller: Option<&Caller>,
        program: &super::Program,
    ) -> Result<(), RequestError> {
        promises.may_use(peer)?;
        let caller = caller.ok_or_else(no_pidfd)?;
        if self.sessions.contains_key(&connection.number) {
            return Err(RequestError::BadUsage(
                "this connection has attached already: use one connection for each link".to_owned(),
            ));
        }
        let pids = [caller.pid, connection.pid];
        if pids != [program.pid; 2] || peer.uid != program.uid || !(caller.lives)() {
            return Err(RequestError::NotPermitted(
                "only the process that attached to the link can resume its attachment".to_owned(),
            ));
        }
        if program.session.is_some() {
            return Err(RequestError::Failed(
                "another connection has this attachment".to_owned(),
            ));
        }
        Ok(())
    }

    /// Replies with the open flows of a session whose numbers are above `after`.
    pub(super) fn list_flows(&mut self, session: u64, after: u32, reply: ReplySender) {
        let Some(session) = self.sessions.get_mut(&session) else {
            return refuse(reply, not_attached());
        };
        session.is_unconfirmed = false;
        let state = self.link_states.get(&session.link);
        let program = state.and_then(|state| state.programs.get(&session.program?));
        let from = (std::ops::Bound::Excluded(after), std::ops::Bound::Unbounded);
        let theirs = program.into_iter().flat_map(|own| own.open.range(from));
        let theirs = theirs.filter_map(|number| self.flows.get(number));
        let mut theirs = theirs.filter(|flow| flow.at_driver.is_some() && flow.closing.is_none());
        let flows: Vec<FlowState> = theirs
            .by_ref()
            .take(LIST_FLOWS)
            .map(|flow| FlowState {
                flow: flow.number,
                slot: flow.slot,
                next_hop: flow.next_hop.mac(),
                mtu: flow.mtu,
                contract: flow.contract.to_string(),
                degraded: flow.degraded.clone().unwrap_or_default(),
            })
            .collect();
        let more = theirs.next().is_some();
        let list = FlowList { flows, more };
        let _ = reply.send(Reply::from(Response::Direct(DirectReply::Flows(list))));
    }
}

/// A secret as text.
pub(super) fn text_of(secret: [u8; 16]) -> String {
    secret.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Compares secrets in a time that does not depend on how many bytes are equal.
pub(super) fn has_secret(secret: Option<&str>, other: &str) -> bool {
    secret.is_some_and(|secret| {
        let differences = secret.bytes().zip(other.bytes());
        let differs = differences.fold(0, |sum, (one, other)| sum | (one ^ other));
        !secret.is_empty() && secret.len() == other.len() && differs == 0
    })
}

fn reply_detached(reply: ReplySender, why: String) {
    let detached = DirectReply::Detached(Detached { why });
    let _ = reply.send(Reply::from(Response::Direct(detached)));
}

//! The connections of one target, of one process or of the whole host, from the kernel's socket
//! lists, for `netnice top`. A privileged peer sees all of them, any other peer those of its own
//! sockets. The response has at most [`MAX_LISTED`] (200), those with the most traffic first. It
//! also has the number of further connections that the peer may see, and the number of those of
//! other users. Fails if the text is no target, if the target is not held, for a process if it does
//! not exist or no target contains it, or if the machine cannot be read.

use netnice_api::{Connection, Connections, ConnectionsDoc, Found};
use netnice_core::target::Target;
use netnice_kernel::connections;

use super::view::View;
use crate::clock::Now;
use crate::error::RequestError;
use crate::host::Inventory;
use crate::ledger::{Body, HeldTarget};
use crate::peer::Peer;
use crate::programs::Snapshot;
use crate::reconcile::consists_of;

impl<H: Inventory> View<'_, H> {
    /// The connections of a target, of a process itself or of the host that the peer may see, and
    /// the number of the others. UDP sockets have the bytes of `counted`.
    ///
    /// # Errors
    /// If the request names no target, if the target is not held, for a process if it does not
    /// exist or no target contains it, or if the machine cannot be read.
    pub(super) fn connections(
        &mut self,
        peer: &Peer,
        request: &Connections,
        counted: Option<&Snapshot>,
        now: Now,
    ) -> Result<ConnectionsDoc, RequestError> {
        let (name, mut all) = self.sockets(request)?;
        for socket in &mut all {
            let moved = counted.and_then(|counted| counted.datagrams.get(&socket.cookie));
            if let Some([sent, received]) = moved {
                (socket.sent, socket.received) = (Some(*sent), Some(*received));
            }
        }
        Ok(document(peer, name, all, now))
    }

    /// The name of what was asked for, and its sockets. Fails as [`View::connections`].
    fn sockets(
        &mut self,
        request: &Connections,
    ) -> Result<(String, Vec<connections::Connection>), RequestError> {
        if request.own && request.target == Connections::HOST {
            return Ok((request.target.clone(), self.machine.connections(None)?));
        }
        let target: Target = request.target.parse()?;
        if let (Target::Pid(pid), true) = (&target, request.own) {
            if self.machine.process(pid.get()).is_none() {
                let pid = pid.get();
                return Err(RequestError::Failed(format!(
                    "process {pid} does not exist"
                )));
            }
            let own = Found::Processes(vec![pid.get()]);
            return Ok((target.to_string(), self.machine.connections(Some(&own))?));
        }
        let held = match target {
            Target::Pid(pid) => self.of_process(&target, pid.get())?.into_iter().next(),
            _ => Some(self.finder().lookup(&target)?.clone()),
        };
        let held = held.ok_or_else(|| {
            RequestError::Failed(format!(
                "nothing is set for {target}; `netnice show` lists what is"
            ))
        })?;
        let of = match consists_of(&held.body, &held.entry.target) {
            Some(Found::Processes(_) | Found::App(_)) => {
                Some(Found::Processes(self.members_of(&held)?))
            }
            other => other,
        };
        let all = match &of {
            Some(of) => self.machine.connections(Some(of))?,
            None => Vec::new(),
        };
        Ok((held.entry.target.to_string(), all))
    }

    /// The pids of the members of a target of processes or of an executable.
    fn members_of(&mut self, held: &HeldTarget) -> Result<Vec<u32>, RequestError> {
        let by_descent = matches!(held.body, Body::Processes { .. });
        let members = self.machine.members()?.into_iter();
        let of = |(own, app): (u32, u32)| if by_descent { own } else { app };
        let theirs = members.filter(|(_, membership)| of(*membership) == held.id);
        Ok(theirs.map(|(pid, _)| pid).collect())
    }
}

/// The document for these connections.
fn document(
    peer: &Peer,
    target: String,
    all: Vec<connections::Connection>,
    now: Now,
) -> ConnectionsDoc {
    let (mut visible, hidden): (Vec<_>, Vec<_>) = all
        .into_iter()
        .partition(|connection| peer.privileged || connection.uid == peer.uid);
    let passed =
        |c: &connections::Connection| c.sent.unwrap_or(0).saturating_add(c.received.unwrap_or(0));
    visible.sort_by_key(|c| (std::cmp::Reverse(passed(c)), c.inode));
    let more = visible.len().saturating_sub(MAX_LISTED);
    visible.truncate(MAX_LISTED);
    ConnectionsDoc {
        target,
        at_ns: now.monotonic.0,
        connections: visible.into_iter().map(connection_doc).collect(),
        more: more as u64,
        of_others: hidden.len() as u64,
    }
}

fn connection_doc(connection: connections::Connection) -> Connection {
    Connection {
        inode: connection.inode,
        protocol: connection.protocol.to_owned(),
        local: connection.local.to_string(),
        peer: connection.peer.map(|peer| peer.to_string()),
        state: connection.state.map(ToOwned::to_owned),
        sent: connection.sent,
        received: connection.received,
    }
}

/// Largest number of connections in a response; those with the least traffic are left out.
const MAX_LISTED: usize = 200;

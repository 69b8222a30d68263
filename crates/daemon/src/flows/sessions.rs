//! Takes the requests of programs ([`Flows::handle`]), attaches programs to a link, detaches them
//! when their connections end, and counts the programs and flows of each user.
//!
//! An attachment is refused if the policy or the peer's rights do not permit it, if the request
//! names no living process of the daemon's network namespace, if it asks for no flow or no memory,
//! if the connection has attached already, if it would exceed a quota, if the named link (without a
//! name: the only managed one) is not managed, is no Ethernet interface or has no rate left for
//! direct flows, or if the driver of that link fails.

use std::collections::BTreeSet;
use std::collections::btree_map::Entry;

use netnice_api::direct::{Attach, DirectRequest, FlowNotification};
use netnice_api::driver::DriverRequest;
use netnice_api::{Done, Response};
use netnice_core::contract::IfName;

use super::driver::Start;
use super::promises::Promises;
use super::{
    CallPurpose, Caller, Command, ConnectionUser, Flows, LinkState, ProgramRequest, ReplySender,
    Session, refuse,
};
use crate::authority;
use crate::clock::Now;
use crate::error::RequestError;
use crate::flows::network::{Network, Nic};
use crate::peer::Peer;
use crate::quotas::{Quota, Quotas};
use crate::server::Reply;
use crate::user_names::user_name;

impl<N: Network> Flows<N> {
    /// Handles a request of a program; replies now, or after answers of a driver or the kernel.
    pub(crate) fn handle(
        &mut self,
        promises: &mut impl Promises,
        program_request: ProgramRequest,
        now: Now,
    ) {
        let ProgramRequest {
            peer,
            connection,
            request,
            caller,
            reply,
        } = program_request;
        let number = connection.number;
        match request {
            DirectRequest::Attach(attach) => {
                let session =
                    self.may_attach(promises, &peer, &connection, caller.as_ref(), &attach);
                match (session, caller) {
                    (Ok((session, start)), Some(caller)) => {
                        self.attach(session, start, caller, &attach, reply, now);
                    }
                    (Ok(_), None) => refuse(reply, no_pidfd()),
                    (Err(error), _) => refuse(reply, error),
                }
            }
            DirectRequest::Resume(resume) => {
                let pending = super::resume::PendingResume {
                    peer,
                    connection,
                    caller,
                    resume,
                    reply,
                };
                self.resume(promises, pending);
            }
            DirectRequest::List(list) => self.list_flows(number, list.after, reply),
            DirectRequest::Open(open) => self.open(promises, number, open, reply, now),
            DirectRequest::Change(change) => {
                self.change(promises, number, &change, reply, now);
            }
            DirectRequest::Close(close) => self.close(number, close.flow, reply, now),
            DirectRequest::Take(take) => self.take(promises, number, &take, reply, now),
            DirectRequest::End(end) => self.end_flow(promises, &peer, end.flow, reply, now),
            DirectRequest::NextHop(next_hop) => self.next_hop(number, next_hop.to, reply, now),
            DirectRequest::Route(route) => self.route_to(promises, route.to, reply),
            DirectRequest::Hold(hold) => self.hold_promise(promises, number, &hold, reply, now),
            DirectRequest::Release(hold) => self.release(promises, number, hold, reply, now),
        }
    }

    /// Handles the end of a connection: detaches its program, closes the program's flows and ends
    /// its holds.
    pub(crate) fn connection_ended(&mut self, session: u64, now: Now) {
        self.connections.remove(&session);
        // The link is divided again when its driver has detached the program.
        self.end_holds_of(session);
        let Some(session) = self.sessions.remove(&session) else {
            return;
        };
        // An attachment in progress is undone when its answer arrives.
        let Some(program) = session.program else {
            return;
        };
        if session.is_unconfirmed {
            let state = self.link_states.get_mut(&session.link);
            if let Some(program) = state.and_then(|state| state.programs.get_mut(&program)) {
                program.session = None;
            }
        } else {
            self.detach(&session.link, program, now);
        }
    }

    /// Asks a driver to detach a program, which closes the program's flows.
    pub(super) fn detach(&mut self, link: &IfName, program: u32, now: Now) {
        for flow in self.flows_of_program(link, program) {
            if let Some(flow) = self.flows.get_mut(&flow) {
                flow.closing = Some("the program has ended".to_owned());
            }
        }
        let ask = DriverRequest::Detach { program };
        self.call(link, ask, None, CallPurpose::Detach { program }, now);
    }

    /// The numbers of a program's flows.
    fn flows_of_program(&self, link: &IfName, program: u32) -> Vec<u32> {
        let state = self.link_states.get(link);
        let program = state.and_then(|state| state.programs.get(&program));
        let numbers = program.into_iter().flat_map(|program| &program.open);
        numbers.copied().collect()
    }

    /// Checks a request to attach. Returns the session, the arguments to start the link's driver
    /// with, and the interface.
    fn may_attach(
        &mut self,
        promises: &mut impl Promises,
        peer: &Peer,
        connection: &crate::server::ConnectionHandle,
        caller: Option<&Caller>,
        attach: &Attach,
    ) -> Result<(Session, (Start, Nic)), RequestError> {
        promises.may_use(peer)?;
        let caller = caller.ok_or_else(no_pidfd)?;
        if self.sessions.contains_key(&connection.number) {
            return Err(RequestError::BadUsage(
                "this connection has attached already: use one connection for each link".to_owned(),
            ));
        }
        let gone =
            || RequestError::Failed(format!("process {} does not exist (any more)", caller.pid));
        let process = promises.process(caller.pid).ok_or_else(gone)?;
        promises.check_unmetered(caller.pid)?;
        authority::may_limit_process(peer, &process)?;
        if !(caller.lives)() {
            return Err(gone());
        }
        process.check_network()?;
        if process.in_own_network.is_none() {
            return Err(RequestError::Failed(format!(
                "the network namespace of process {} cannot be read",
                caller.pid
            )));
        }
        let link = match select_link(promises, attach.iface.as_deref()) {
            Ok(link) => link,
            Err(why) => return Err(self.missing(attach.iface.as_deref())?.unwrap_or(why)),
        };
        self.within_limits(peer, connection.number, attach, promises.quotas())?;
        let nic = self.nic(&link)?;
        let capacity = self.link_capacity(promises, &link, nic.mtu)?;
        let secret = self.network.random().map_err(|error| {
            RequestError::Failed(format!("cannot read random numbers: {error}"))
        })?;
        let start = Start {
            rate: capacity.least().bits_per_second(),
            overhead: capacity.overhead(),
            keep_awake: promises.keeps_awake(),
            // `Drivers` sets it.
            write_stops: false,
        };
        let most = max_memory_bytes(peer, promises.quotas());
        let session = Session {
            connection: connection.clone(),
            peer: peer.clone(),
            link,
            program: None,
            pid: caller.pid,
            name: process.name,
            flows: attach.flows,
            bytes: attach.bytes,
            most,
            secret: Some(super::resume::text_of(secret)),
            moves: attach.moves,
            is_unconfirmed: false,
        };
        Ok((session, (start, nic)))
    }

    fn attach(
        &mut self,
        session: Session,
        (start, nic): (Start, Nic),
        caller: Caller,
        attach: &Attach,
        reply: ReplySender,
        now: Now,
    ) {
        let (link, peer) = (session.link.clone(), session.peer.clone());
        let number = session.connection.number;
        let (most, secret) = (session.most, session.secret.clone());
        if let Entry::Vacant(vacant) = self.connections.entry(number) {
            vacant.insert(ConnectionUser {
                uid: peer.uid,
                user: peer.user(),
                attached: false,
            });
            self.commands
                .push(Command::WatchConnection(session.connection.clone()));
        }
        self.sessions.insert(number, session);
        if !self.link_states.contains_key(&link) {
            let state = LinkState {
                nic: Some(nic),
                ..LinkState::default()
            };
            self.connect_driver(&link, state, Some(start.clone()), now);
        }
        let ask = DriverRequest::Attach {
            pid: caller.pid,
            uid: peer.uid,
            flows: attach.flows,
            bytes: attach.bytes,
            memory_limit: Some(most),
            secret,
        };
        let again = caller.handle.try_clone().ok();
        let again = again.map(|handle| Box::new((start, ask.clone(), handle)));
        let what = CallPurpose::Attach {
            session: number,
            reply,
            again,
        };
        self.call(&link, ask, Some(caller.handle), what, now);
    }

    /// A user's use of the direct path: programs, flows and bytes of memory files. A connection
    /// whose program has ended counts as a program until the connection ends.
    fn used_by(&self, uid: u32) -> [(Quota, u64); 3] {
        let (mut flows, mut bytes) = (0, 0_u64);
        let mut programs = self
            .connections
            .iter()
            .filter(|(number, connection)| {
                connection.uid == uid && connection.attached && !self.sessions.contains_key(number)
            })
            .count() as u64;
        for session in self.sessions.values().filter(|s| s.peer.uid == uid) {
            programs += 1;
            flows += u64::from(session.flows);
            bytes = bytes.saturating_add(session.bytes);
        }
        // Programs that an earlier daemon attached.
        let programs_before = self
            .link_states
            .values()
            .flat_map(|state| state.programs.values());
        for program in programs_before.filter(|p| p.uid == uid && p.session.is_none()) {
            programs += 1;
            flows += program.open.len() as u64;
            bytes = bytes.saturating_add(program.bytes);
        }
        [
            (Quota::Programs, programs),
            (Quota::Flows, flows),
            (Quota::RingBytes, bytes),
        ]
    }

    /// Use of the direct path by each unprivileged user: the uid, and the amount of each quota.
    pub(crate) fn used(&self) -> impl Iterator<Item = (u32, [(Quota, u64); 3])> {
        let uids = self.uids().into_iter();
        uids.map(|uid| (uid, self.used_by(uid)))
    }

    /// The unprivileged users with a program, session or connection on the direct path.
    fn uids(&self) -> BTreeSet<u32> {
        let programs = self
            .link_states
            .values()
            .flat_map(|state| state.programs.values());
        let programs = programs.filter_map(|program| self.user_of(program));
        let sessions = self.sessions.values();
        let connections = self
            .connections
            .values()
            .filter(|connection| connection.attached);
        sessions
            .filter_map(|session| session.peer.user())
            .chain(programs)
            .chain(connections.filter_map(|connection| connection.user))
            .collect()
    }

    /// Checks that a user may attach another program with these flows and bytes.
    fn within_limits(
        &self,
        peer: &Peer,
        number: u64,
        attach: &Attach,
        quotas: &Quotas,
    ) -> Result<(), RequestError> {
        if attach.flows == 0 || attach.bytes == 0 {
            return Err(RequestError::BadUsage(
                "an attachment needs at least one flow and one byte of memory".to_owned(),
            ));
        }
        // A connection that attaches again is counted already.
        let again = self
            .connections
            .get(&number)
            .is_some_and(|connection| connection.attached);
        let more = [u64::from(!again), u64::from(attach.flows), attach.bytes];
        for ((quota, has), more) in self.used_by(peer.uid).into_iter().zip(more) {
            let would = has.saturating_add(more);
            quotas.check(peer, quota, would)?;
            let most = max_for_privileged(quota);
            if would > most {
                let what = quota.describe().what;
                let who = user_name(peer.uid);
                return Err(RequestError::NotAdmitted(format!(
                    "refused: with this one {who} would have {} {what}, more than the {} that \
                     there can be",
                    quota.amount(would),
                    quota.amount(most)
                )));
            }
        }
        Ok(())
    }

    /// The error for an interface that does not exist; `None` if it exists.
    fn missing(&mut self, named: Option<&str>) -> Result<Option<RequestError>, RequestError> {
        let Some(name) = named.filter(|name| name.parse::<IfName>().is_ok()) else {
            return Ok(None);
        };
        let found = self.network.interface(name)?;
        let missing = || netnice_kernel::KernelError::NoInterface(name.to_owned()).into();
        Ok(found.is_none().then(missing))
    }

    /// Notifies the program of a flow.
    pub(super) fn notify_flow(&mut self, flow: u32, notification: FlowNotification) {
        let Some(flow) = self.flows.get(&flow) else {
            return;
        };
        let program = self.link_states.get(&flow.link);
        let program = program.and_then(|state| state.programs.get(&flow.program));
        if let Some(session) = program.and_then(|program| program.session) {
            self.notify_session(session, notification);
        }
    }

    pub(super) fn notify_session(&self, session: u64, notification: FlowNotification) {
        if let Some(session) = self.sessions.get(&session)
            && session
                .connection
                .notifications
                .try_send(notification)
                .is_err()
        {
            // The notification is dropped: the program does not read and its queue is full, or its
            // connection has ended.
            tracing::debug!(
                pid = session.pid,
                "the program does not read its notifications"
            );
        }
    }

    /// Looks an interface up.
    ///
    /// # Errors
    /// If the look-up fails, there is no such interface, or it is no Ethernet interface.
    pub(super) fn nic(&mut self, link: &IfName) -> Result<Nic, RequestError> {
        let found = self.network.interface(link.as_str())?;
        let nic = found.ok_or_else(|| {
            RequestError::from(netnice_kernel::KernelError::NoInterface(link.to_string()))
        })?;
        if nic.mac.is_none() {
            return Err(RequestError::Failed(format!(
                "{link} has no Ethernet address: the direct path needs an Ethernet interface"
            )));
        }
        Ok(nic)
    }

    /// Removes an ended program with its session, flows and holds. With `why`, its connection is
    /// notified of the end first.
    pub(super) fn remove_program(
        &mut self,
        promises: &mut impl Promises,
        link: &IfName,
        program: u32,
        why: Option<&str>,
        now: Now,
    ) {
        for flow in self.flows_of_program(link, program) {
            self.remove_flow(flow, now);
        }
        let gone = self
            .link_states
            .get_mut(link)
            .and_then(|state| state.programs.remove(&program));
        if let Some(session) = gone.and_then(|gone| gone.session) {
            if let Some(why) = why {
                self.notify_session(
                    session,
                    FlowNotification::Ended {
                        why: why.to_owned(),
                    },
                );
            }
            self.end_holds_of(session);
            self.sessions.remove(&session);
        }
        self.settle(promises, link, now);
    }
}

/// The link to attach to: the named one, else the only managed one.
fn select_link(promises: &impl Promises, named: Option<&str>) -> Result<IfName, RequestError> {
    let managed = promises.links();
    let refused = |text: String| Err(RequestError::NotAdmitted(format!("refused: {text}")));
    match (named, managed.as_slice()) {
        (Some(name), all) => {
            let name: IfName = name.parse()?;
            if all.contains(&name) {
                return Ok(name);
            }
            refused(format!(
                "{name} is not a managed link, and direct flows need one: netnice link {name} \
                 --rate R makes it one"
            ))
        }
        (None, [only]) => Ok(only.clone()),
        (None, []) => refused(
            "direct flows need a managed link, and none is: netnice link IFACE --rate R makes one"
                .to_owned(),
        ),
        (None, all) => {
            let names: Vec<String> = all.iter().map(IfName::to_string).collect();
            Err(RequestError::BadUsage(format!(
                "several links are managed ({}): say which one",
                names.join(", ")
            )))
        }
    }
}

pub(super) fn no_pidfd() -> RequestError {
    RequestError::BadUsage(
        "the request needs a pidfd of its process, and none came with it".to_owned(),
    )
}

/// Replies with success.
pub(super) fn reply_done(reply: ReplySender) {
    let _ = reply.send(Reply::from(Response::Done(Done::default())));
}

/// Largest total of bytes of a peer's memory files: the quota of ring bytes, and a page of 4,096
/// bytes for each program, with which its memory file begins.
pub(super) fn max_memory_bytes(peer: &Peer, quotas: &Quotas) -> u64 {
    let most = |quota| match peer.privileged {
        true => max_for_privileged(quota),
        false => quotas.limit(quota),
    };
    most(Quota::RingBytes).saturating_add(most(Quota::Programs) * 4096)
}

/// The limit for root and each member of the group netnice: the largest that the policy can set.
fn max_for_privileged(quota: Quota) -> u64 {
    quota.describe().range.1
}

//! Serves one front ([`serve_front`]): passes its requests to the event loop, and answers and
//! notifications to it.
//!
//! The daemon relies on the front for the identity of a peer (uid and groups) and for nothing else:
//! its messages are parsed again and bounded, and a front that violates the protocol is ended, with
//! all its connections. Nothing here waits for a client: answers go to the front, which always
//! reads. A front that takes no answer for [`SEND_TIMEOUT`] (10 s) is ended too. [`serve_front`]
//! returns no error, but the reason why the front ended.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use netnice_api::direct::DirectReply;
use netnice_api::frame::Decoder;
use netnice_api::{Process, Request, Response, encode_response, fds};
use netnice_kernel::process::PidFd;
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::process::{FrontChannels, FrontProcess};
use super::{ConnectionHandle, PendingRequest, Reply};
use crate::front::messages::{FromFront, Kind, LONGEST_FROM_FRONT, ToFront};
use crate::peer::Peer;

/// Serves a front until it ends or violates the protocol; returns the reason. Records in
/// `front_process` that it is ready.
pub(super) async fn serve_front(
    front: FrontChannels,
    to_event_loop: mpsc::Sender<PendingRequest>,
    front_process: &RefCell<FrontProcess>,
    most_of_user: watch::Receiver<u64>,
) -> String {
    let FrontChannels {
        to_front,
        from_front,
    } = front;
    let (out, answers) = mpsc::channel(MAX_ANSWERS);
    tokio::select! {
        why = receive_requests(from_front, to_event_loop, out, front_process) => why,
        why = send_answers(&to_front, answers, most_of_user) => why,
    }
}

/// Handles the front's messages until they end; returns the reason.
async fn receive_requests(
    mut from_front: pipe::Receiver,
    to_event_loop: mpsc::Sender<PendingRequest>,
    out: mpsc::Sender<ToFront>,
    front_process: &RefCell<FrontProcess>,
) -> String {
    let mut decoder = Decoder::new(LONGEST_FROM_FRONT);
    let mut bytes = vec![0; 64 * 1024];
    let mut connections = HashMap::new();
    // Dropping this ends all tasks.
    let mut tasks = JoinSet::new();
    loop {
        match from_front.read(&mut bytes).await {
            Ok(0) => return "it has closed its pipe".to_owned(),
            Ok(read) => decoder.push(&bytes[..read]),
            Err(error) => return format!("its pipe cannot be read: {error}"),
        }
        while tasks.try_join_next().is_some() {}
        loop {
            let body = match decoder.poll() {
                Ok(Some(body)) => body,
                Ok(None) => break,
                Err(error) => return format!("it sent an invalid message: {error}"),
            };
            match serde_json::from_slice(&body) {
                Ok(FromFront::Ready(how)) => front_process.borrow_mut().ready(how),
                Ok(FromFront::Opened {
                    connection,
                    pid,
                    uid,
                    groups,
                }) => {
                    if connections.len() >= MAX_CONNECTIONS {
                        return "it opened too many connections".to_owned();
                    }
                    let peer = netnice_kernel::peer::Peer { pid, uid, groups };
                    let peer = Peer::from_credentials(&peer);
                    let (to, requests) = mpsc::channel(1);
                    front_process.borrow_mut().opened(uid);
                    connections.insert(connection, (uid, to));
                    let task = ConnectionTask {
                        number: connection,
                        pid,
                        peer,
                        out: out.clone(),
                        to_event_loop: to_event_loop.clone(),
                    };
                    tasks.spawn_local(task.serve(requests));
                }
                Ok(FromFront::Asked {
                    connection,
                    process,
                    request,
                }) => {
                    let to = connections.get(&connection);
                    // One request at a time: the connection's task has taken the one before.
                    if to.is_none_or(|(_, to)| to.try_send((*request, process)).is_err()) {
                        return "it sent a request of a connection that is unknown or waits for an \
                            answer"
                            .to_owned();
                    }
                }
                Ok(FromFront::Closed { connection }) => {
                    if let Some((uid, _)) = connections.remove(&connection) {
                        front_process.borrow_mut().closed(uid);
                    }
                }
                Err(error) => return format!("it sent an invalid message: {error}"),
            }
        }
    }
}

/// One connection of a client.
struct ConnectionTask {
    number: u64,
    pid: u32,
    peer: Peer,
    out: mpsc::Sender<ToFront>,
    to_event_loop: mpsc::Sender<PendingRequest>,
}

impl ConnectionTask {
    /// Serves the connection until it has ended and its last request is answered.
    async fn serve(self, mut requests: mpsc::Receiver<(Request, Option<Process>)>) {
        let (handle, mut notifications) = ConnectionHandle::new(self.pid);
        loop {
            let (request, process) = tokio::select! {
                received = requests.recv() => match received {
                    Some(received) => received,
                    None => return,
                },
                Some(notifications) = notifications.recv() => {
                    let reply = Response::Direct(DirectReply::Notification(notifications));
                    self.send(Kind::Notification, reply.into()).await;
                    continue;
                }
            };
            let reply = match process.map(|process| open(&process)).transpose() {
                Ok(fd) => self.request(request, fd, &handle).await,
                Err(why) => Some(Response::failed(why).into()),
            };
            let Some(reply) = reply else {
                let close = Reply::from(Response::failed(String::new()));
                return self.send(Kind::Close, close).await;
            };
            let kind = match reply.response {
                Response::Direct(DirectReply::Attached(_)) => Kind::Attached,
                _ => Kind::Answer,
            };
            self.send(kind, reply).await;
        }
    }

    /// The answer to a request; `None` if there will be none.
    async fn request(
        &self,
        request: Request,
        fd: Option<OwnedFd>,
        handle: &ConnectionHandle,
    ) -> Option<Reply> {
        let (reply, answer) = oneshot::channel();
        let ask = PendingRequest {
            peer: self.peer.clone(),
            request,
            fd,
            connection: handle.clone(),
            reply,
        };
        self.to_event_loop.send(ask).await.ok()?;
        answer.await.ok()
    }

    async fn send(&self, kind: Kind, reply: Reply) {
        let frame = encode_response(&reply.response).or_else(|error| {
            let text = format!("the answer cannot be sent: {error}");
            encode_response(&Response::failed(text))
        });
        let message = ToFront {
            connection: self.number,
            kind,
            frame: frame.unwrap_or_default(),
            fds: reply.fds,
        };
        // The send fails if the front has ended.
        let _ = self.out.send(message).await;
    }
}

/// Opens a pidfd of the process that a client names.
fn open(process: &Process) -> Result<OwnedFd, String> {
    let Process {
        pid,
        started,
        namespace,
    } = *process;
    let own = Process::namespace().map_err(|error| format!("/proc cannot be read: {error}"))?;
    if namespace != own {
        return Err(format!(
            "process {pid} is named by its number in another PID namespace ({namespace}; netniced \
             is in {own}), where \
             numbers mean other processes: ask from the namespace of netniced"
        ));
    }
    match PidFd::of(pid, started) {
        Ok(Some(handle)) => Ok(handle.into_fd()),
        Ok(None) => Err(format!("process {pid} does not exist (any more)")),
        Err(error) => Err(format!("process {pid} cannot be opened: {error}")),
    }
}

/// Sends answers to the front, and the quota of connections at each change, until the front takes
/// none; returns the reason.
async fn send_answers(
    to_front: &UnixStream,
    mut answers: mpsc::Receiver<ToFront>,
    mut most_of_user: watch::Receiver<u64>,
) -> String {
    most_of_user.mark_changed();
    loop {
        let message = tokio::select! {
            biased;
            Ok(()) = most_of_user.changed() => ToFront {
                connection: *most_of_user.borrow_and_update(),
                kind: Kind::Quota,
                frame: Vec::new(),
                fds: Vec::new(),
            },
            Some(message) = answers.recv() => message,
            else => return std::future::pending().await,
        };
        let bytes = match message.encode() {
            Ok(bytes) => bytes,
            Err(error) => return format!("an answer cannot be encoded: {error}"),
        };
        match timeout(SEND_TIMEOUT, send(to_front, &bytes, &message.fds)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return format!("answers cannot be sent to it: {error}"),
            Err(_) => return format!("it has taken no answer for {SEND_TIMEOUT:?}"),
        }
    }
}

async fn send(to_front: &UnixStream, bytes: &[u8], with: &[OwnedFd]) -> io::Result<()> {
    let mut with: Vec<BorrowedFd<'_>> = with.iter().map(AsFd::as_fd).collect();
    let mut rest = bytes;
    while !rest.is_empty() {
        let sent = to_front
            .async_io(Interest::WRITABLE, || {
                fds::send(to_front.as_fd(), rest, &with)
            })
            .await?;
        with.clear();
        rest = &rest[sent..];
    }
    Ok(())
}

/// Length of the queue of answers; further answers wait in the connections' tasks.
const MAX_ANSWERS: usize = 64;
/// Largest number of connections that have sent a request: as many as a front may hold.
const MAX_CONNECTIONS: usize = 65_536;
/// Time limit for the front to take an answer.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

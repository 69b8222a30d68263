//! The daemon's side of one front: its connections, their requests, and its answers.
//!
//! The daemon relies on the front for the identity of a peer (uid and groups) and for nothing else:
//! its messages are parsed again and bounded, and a front that violates the protocol is ended, with
//! all its connections. Nothing here waits for a client: answers go to the front, which always
//! reads.

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

use super::process::{Front, Running};
use super::{Ask, Guest, Told};
use crate::front::messages::{FromFront, Kind, LONGEST_FROM_FRONT, ToFront};
use crate::peer::Peer;

/// Serves a front until it ends or violates the protocol; returns the reason. Records in `running`
/// that it is ready.
pub(super) async fn attend(
    front: Front,
    asks: mpsc::Sender<Ask>,
    running: &RefCell<Running>,
    most_of_user: watch::Receiver<u64>,
) -> String {
    let Front { orders, told } = front;
    let (out, answers) = mpsc::channel(MOST_ANSWERS);
    tokio::select! {
        why = hear(told, asks, out, running) => why,
        why = answer(&orders, answers, most_of_user) => why,
    }
}

/// Handles the front's messages until they end; returns the reason.
async fn hear(
    mut told: pipe::Receiver,
    asks: mpsc::Sender<Ask>,
    out: mpsc::Sender<ToFront>,
    running: &RefCell<Running>,
) -> String {
    let mut decoder = Decoder::new(LONGEST_FROM_FRONT);
    let mut bytes = vec![0; 64 * 1024];
    let mut connections = HashMap::new();
    // Dropping this ends all tasks.
    let mut tasks = JoinSet::new();
    loop {
        match told.read(&mut bytes).await {
            Ok(0) => return "it has closed its pipe".to_owned(),
            Ok(read) => decoder.push(&bytes[..read]),
            Err(error) => return format!("its pipe cannot be read: {error}"),
        }
        while tasks.try_join_next().is_some() {}
        loop {
            let body = match decoder.poll() {
                Ok(Some(body)) => body,
                Ok(None) => break,
                Err(error) => return format!("it is not understood: {error}"),
            };
            match serde_json::from_slice(&body) {
                Ok(FromFront::Ready(how)) => running.borrow_mut().ready(how),
                Ok(FromFront::Opened {
                    connection,
                    uid,
                    groups,
                }) => {
                    if connections.len() >= MOST_CONNECTIONS {
                        return "it opens more connections than a front does".to_owned();
                    }
                    let peer = Peer::known(&netnice_kernel::peer::Peer { uid, groups });
                    let (to, requests) = mpsc::channel(1);
                    running.borrow_mut().opened(uid);
                    connections.insert(connection, (uid, to));
                    let client = Client {
                        number: connection,
                        peer,
                        out: out.clone(),
                        asks: asks.clone(),
                    };
                    tasks.spawn_local(client.serve(requests));
                }
                Ok(FromFront::Asked {
                    connection,
                    process,
                    request,
                }) => {
                    let to = connections.get(&connection);
                    // One request at a time: the connection's task has taken the one before.
                    if to.is_none_or(|(_, to)| to.try_send((request, process)).is_err()) {
                        return "it asks for a connection that waits, or that is not there"
                            .to_owned();
                    }
                }
                Ok(FromFront::Closed { connection }) => {
                    if let Some((uid, _)) = connections.remove(&connection) {
                        running.borrow_mut().closed(uid);
                    }
                }
                Err(error) => return format!("it is not understood: {error}"),
            }
        }
    }
}

/// One connection of a client.
struct Client {
    number: u64,
    peer: Peer,
    out: mpsc::Sender<ToFront>,
    asks: mpsc::Sender<Ask>,
}

impl Client {
    /// Serves the connection until it has ended and its last request is answered.
    async fn serve(self, mut requests: mpsc::Receiver<(Request, Option<Process>)>) {
        let (guest, mut news) = Guest::new();
        loop {
            let (request, process) = tokio::select! {
                asked = requests.recv() => match asked {
                    Some(asked) => asked,
                    None => return,
                },
                Some(news) = news.recv() => {
                    let told = Response::Direct(DirectReply::Notification(news));
                    self.send(Kind::News, told.into()).await;
                    continue;
                }
            };
            let told = match process.map(|process| open(&process)).transpose() {
                Ok(fd) => self.ask(request, fd, &guest).await,
                Err(why) => Some(Response::failed(why).into()),
            };
            let Some(told) = told else {
                let close = Told::from(Response::failed(String::new()));
                return self.send(Kind::Close, close).await;
            };
            let kind = match told.response {
                Response::Direct(DirectReply::Attached(_)) => Kind::Attached,
                _ => Kind::Answer,
            };
            self.send(kind, told).await;
        }
    }

    /// The answer to a request; `None` if there will be none.
    async fn ask(&self, request: Request, fd: Option<OwnedFd>, guest: &Guest) -> Option<Told> {
        let (reply, answer) = oneshot::channel();
        let ask = Ask {
            peer: self.peer.clone(),
            request,
            fd,
            guest: guest.clone(),
            reply,
        };
        self.asks.send(ask).await.ok()?;
        answer.await.ok()
    }

    async fn send(&self, kind: Kind, told: Told) {
        let frame = encode_response(&told.response).or_else(|error| {
            let text = format!("the answer cannot be sent: {error}");
            encode_response(&Response::failed(text))
        });
        let message = ToFront {
            connection: self.number,
            kind,
            frame: frame.unwrap_or_default(),
            fds: told.fds,
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
            "process {pid} is named by its number in another PID namespace ({namespace}; netniced is in {own}), where \
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
async fn answer(
    orders: &UnixStream,
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
            Err(error) => return format!("it cannot be told an answer: {error}"),
        };
        match timeout(PATIENCE, send(orders, &bytes, &message.fds)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return format!("it takes no answers: {error}"),
            Err(_) => return format!("it has taken no answer for {PATIENCE:?}"),
        }
    }
}

async fn send(orders: &UnixStream, bytes: &[u8], with: &[OwnedFd]) -> io::Result<()> {
    let mut with: Vec<BorrowedFd<'_>> = with.iter().map(AsFd::as_fd).collect();
    let mut rest = bytes;
    while !rest.is_empty() {
        let sent = orders
            .async_io(Interest::WRITABLE, || {
                fds::send(orders.as_fd(), rest, &with)
            })
            .await?;
        with.clear();
        rest = &rest[sent..];
    }
    Ok(())
}

/// Length of the queue of answers; further answers wait in the connections' tasks.
const MOST_ANSWERS: usize = 64;
/// Largest number of connections that have sent a request: as many as a front may hold.
const MOST_CONNECTIONS: usize = 65_536;
/// Time limit for the front to take an answer.
const PATIENCE: Duration = Duration::from_secs(10);

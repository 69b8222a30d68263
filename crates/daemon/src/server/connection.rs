//! One connection: requests in, answers out, one after the other, and to programs with direct flows news in between.
//!
//! ```text
//!            first byte              whole frame              answer sent
//!   idle ──────────────> reading ──────────────────> asking ──────────────> idle
//!    │ sent away            │ 1 s is over, garbage, too long,
//!    │ end of stream        │ a second descriptor
//!    v                      v
//!   closed <─────── told why, once
//! ```
//! A connection that has attached to a link (`netnice_api::direct`) gives up its seat: while its program has flows it is
//! never idle, and the flow manager counts it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use netnice_api::direct::DirectAnswer;
use netnice_api::frame::{Decoder, LONGEST_REQUEST};
use netnice_api::{Response, decode_request, encode_response, fds};
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

use super::crowd::Seat;
use super::{Ask, Guest, Told};
use crate::peer::Peer;

/// Why a connection ends.
enum End {
    /// The peer hung up, or was sent away.
    Quiet,
    /// The peer is told why.
    Told(String),
}

/// Serves a connection until it ends.
pub(super) async fn serve(
    mut stream: UnixStream,
    peer: Peer,
    seat: Seat,
    clerk: mpsc::Sender<Ask>,
) {
    let mut seat = Some(seat);
    let (guest, mut news) = Guest::new();
    let mut inbox = Inbox {
        decoder: Decoder::new(LONGEST_REQUEST),
        fd: None,
    };
    loop {
        let asked = tokio::select! {
            asked = inbox.next(&stream, seat.as_ref()) => asked,
            Some(news) = news.recv() => {
                let told = Told::from(Response::Direct(DirectAnswer::News(news)));
                match send(&mut stream, &told).await {
                    Ok(()) => continue,
                    Err(_) => return,
                }
            }
        };
        let asked = match asked {
            Ok(asked) => asked,
            Err(End::Quiet) => return,
            Err(End::Told(why)) => return tell(&mut stream, Response::bad_usage(why)).await,
        };
        let request = match decode_request(&asked.body) {
            Ok(request) => request,
            Err(error) => {
                return tell(&mut stream, Response::bad_usage(error.to_string())).await;
            }
        };
        let (reply, answer) = oneshot::channel();
        let ask = Ask {
            peer: peer.clone(),
            request,
            fd: asked.fd,
            guest: guest.clone(),
            reply,
        };
        if clerk.send(ask).await.is_err() {
            return;
        }
        let Ok(answer) = answer.await else { return };
        let attached = matches!(answer.response, Response::Direct(DirectAnswer::Attached(_)));
        if send(&mut stream, &answer).await.is_err() {
            return;
        }
        if attached {
            seat = None;
        }
        if let Some(seat) = &seat {
            seat.idle();
        }
    }
}

/// Tells a peer that there is no room, and hangs up.
pub(super) async fn turn_away(mut stream: UnixStream, uid: u32) {
    let text = format!(
        "too many connections of user {uid} are busy with requests; try again when one of them has its answer"
    );
    tell(&mut stream, Response::failed(text)).await;
}

/// What has come so far.
struct Inbox {
    decoder: Decoder,
    /// The descriptor that came with the request that is being read.
    fd: Option<OwnedFd>,
}

/// A whole request, not yet understood.
struct Asked {
    body: Vec<u8>,
    fd: Option<OwnedFd>,
}

impl Inbox {
    /// The next request. It may be long in coming; once it has begun it has a second.
    async fn next(&mut self, stream: &UnixStream, seat: Option<&Seat>) -> Result<Asked, End> {
        let mut deadline = None;
        loop {
            let polled = self.decoder.poll();
            if let Some(body) = polled.map_err(|error| End::Told(error.to_string()))? {
                if let Some(seat) = seat {
                    seat.busy();
                }
                let fd = self.fd.take();
                return Ok(Asked { body, fd });
            }
            if self.decoder.is_inside() && deadline.is_none() {
                deadline = Some(Instant::now() + PATIENCE);
            }
            let ready = async {
                match deadline {
                    Some(deadline) => timeout_at(deadline, stream.readable()).await.map_err(|_| {
                        End::Told(format!("the request did not end within {PATIENCE:?}"))
                    }),
                    None => Ok(stream.readable().await),
                }
            };
            let sent_away = async {
                match seat {
                    Some(seat) => seat.sent_away().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                ready = ready => ready?.map_err(|_| End::Quiet)?,
                () = sent_away => return Err(End::Quiet),
            }
            self.take(stream)?;
        }
    }

    /// Takes in what is there.
    fn take(&mut self, stream: &UnixStream) -> Result<(), End> {
        let mut bytes = [0; 16 * 1024];
        let received = stream.try_io(Interest::READABLE, || {
            fds::receive(stream.as_fd(), &mut bytes, 1)
        });
        let received = match received {
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(_) => return Err(End::Quiet),
        };
        if received.surplus || (!received.fds.is_empty() && self.fd.is_some()) {
            return Err(End::Told(
                "more than one file descriptor came with a request; one pidfd is all it may have"
                    .to_owned(),
            ));
        }
        self.fd = self.fd.take().or(received.fds.into_iter().next());
        if received.bytes == 0 {
            return Err(End::Quiet);
        }
        self.decoder.push(&bytes[..received.bytes]);
        Ok(())
    }
}

/// Tells a peer why the connection ends.
async fn tell(stream: &mut UnixStream, response: Response) {
    if send(stream, &response.into()).await.is_err() {
        return;
    }
    // What the peer has sent and we have not read would turn the end into a reset that overtakes the answer.
    let mut rest = [0; 16 * 1024];
    let drained = async {
        let mut left = MOST_DRAINED;
        while left > 0 && stream.readable().await.is_ok() {
            match stream.try_read(&mut rest) {
                Ok(0) => break,
                Ok(read) => left = left.saturating_sub(read),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => break,
            }
        }
    };
    let _ = timeout(LAST_WORDS, drained).await;
}

async fn send(stream: &mut UnixStream, told: &Told) -> io::Result<()> {
    let frame = match encode_response(&told.response) {
        Ok(frame) => frame,
        Err(error) => encode_response(&Response::failed(format!(
            "the answer cannot be sent: {error}"
        )))
        .map_err(io::Error::other)?,
    };
    let whole = async {
        let sent = send_with(stream, &frame, &told.fds).await?;
        stream.write_all(&frame[sent..]).await
    };
    timeout(SLOWEST_READER, whole).await?
}

/// Sends descriptors with the first bytes, if there are any; tells how many bytes went.
async fn send_with(stream: &UnixStream, frame: &[u8], fds: &[OwnedFd]) -> io::Result<usize> {
    if fds.is_empty() {
        return Ok(0);
    }
    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    stream
        .async_io(Interest::WRITABLE, || {
            fds::send(stream.as_fd(), frame, &fds)
        })
        .await
}

/// How long a request may take to come in.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a peer may take to read an answer.
const SLOWEST_READER: Duration = Duration::from_secs(5);
/// How long the rest of a refused message is taken in.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// How much of it.
const MOST_DRAINED: usize = 2 << 20;

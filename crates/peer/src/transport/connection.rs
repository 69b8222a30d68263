//! One connection to a neighbour: the handshake with its time-out, then a task that reads messages
//! and one that writes frames. What happens is reported to the owner ([`Report`]); nothing fails.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, split};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsStream;

use super::identity::{Identity, explain, name_of, server_name};
use crate::message::{Decoder, HostName, Message};

/// What the tasks of a connection report.
pub(super) enum Report {
    /// A handshake has succeeded.
    Ready {
        number: u64,
        neighbour: HostName,
        is_own: bool,
        stream: Box<TlsStream<TcpStream>>,
    },
    /// A connection that this host wanted could not be made.
    Failed {
        number: u64,
        neighbour: HostName,
        reason: String,
    },
    /// A connection that another host began did not become one.
    Refused { reason: String },
    /// A message has arrived.
    Message { number: u64, message: Message },
    /// The connection has ended.
    Ended { number: u64, reason: String },
}

/// A connection that a test reads and writes itself.
#[cfg(test)]
pub(super) type RawStream = TlsStream<TcpStream>;

/// The sending side of a connection. Dropping it sends what waits, and closes the connection.
pub(super) struct Link {
    pub(super) number: u64,
    /// True if this host began the connection.
    pub(super) is_own: bool,
    frames: mpsc::UnboundedSender<Vec<u8>>,
    /// Bytes that wait to be sent.
    waiting: Arc<AtomicUsize>,
    reader: AbortHandle,
    /// Dropped with the link: then the writer has [`CLOSING`] left.
    _closing: oneshot::Sender<()>,
}

impl Link {
    /// Starts the tasks of a connection.
    pub(super) fn start(
        number: u64,
        neighbour: &HostName,
        is_own: bool,
        stream: TlsStream<TcpStream>,
        reports: mpsc::Sender<Report>,
    ) -> Link {
        let (reading, writing) = split(stream);
        let (frames, queue) = mpsc::unbounded_channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let who = neighbour.as_str().to_owned();
        let reader = tokio::spawn(async move {
            let reason = read(number, &who, reading, &reports).await;
            // If the owner has ended, the report is not needed.
            let _ = reports.send(Report::Ended { number, reason }).await;
        });
        let (closing, closed) = oneshot::channel();
        let writer = write(queue, waiting.clone(), writing);
        tokio::spawn(async move {
            let out_of_time = async {
                // The sender is never used: this is the end of the link.
                let _ = closed.await;
                sleep(CLOSING).await;
            };
            // A neighbour that does not read is not waited for.
            tokio::select! {
                () = writer => {}
                () = out_of_time => {}
            }
        });
        Link {
            number,
            is_own,
            frames,
            waiting,
            reader: reader.abort_handle(),
            _closing: closing,
        }
    }

    /// Queues a frame. False if the neighbour does not read, so that too much waits.
    pub(super) fn send(&self, frame: Vec<u8>) -> bool {
        let waiting = self.waiting.fetch_add(frame.len(), Ordering::Relaxed);
        if waiting + frame.len() > MOST_WAITING {
            return false;
        }
        // If the writer has ended, the connection is broken, and the reader reports it.
        let _ = self.frames.send(frame);
        true
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Connects to a neighbour.
pub(super) async fn connect(
    identity: Identity,
    neighbour: HostName,
    addresses: Vec<SocketAddr>,
) -> Result<TlsStream<TcpStream>, String> {
    let who = neighbour.as_str();
    let name = server_name(&neighbour)?;
    let made = async {
        let stream = TcpStream::connect(addresses.as_slice()).await;
        let stream =
            stream.map_err(|error| format!("no netnice-peer answers there: {}", error.kind()))?;
        set_options(&stream);
        let connected = identity.connector().connect(name, stream).await;
        connected.map_err(|error| explain(&error, who))
    };
    let within = timeout(HANDSHAKE, made).await;
    let stream = within.unwrap_or_else(|_| Err(no_answer(who)))?;
    let named = name_of(stream.get_ref().1.peer_certificates())?;
    match named == neighbour {
        true => Ok(stream.into()),
        false => Err(format!(
            "the first name in its certificate is {named}, not {neighbour}"
        )),
    }
}

/// Accepts a connection; returns the neighbour that the certificate names.
pub(super) async fn accept(
    identity: Identity,
    stream: TcpStream,
    from: SocketAddr,
) -> Result<(HostName, TlsStream<TcpStream>), String> {
    let who = from.ip().to_string();
    set_options(&stream);
    let accepting = identity.acceptor().accept(stream).into_fallible();
    let within = timeout(HANDSHAKE, accepting).await;
    let stream = match within.map_err(|_| no_answer(&who))? {
        Ok(stream) => stream,
        Err((error, stream)) => {
            // Unread bytes would reset the connection, and the alert could get lost.
            let _ = timeout(CLOSING, read_the_rest(stream)).await;
            return Err(explain(&error, &who));
        }
    };
    let named = name_of(stream.get_ref().1.peer_certificates());
    let named = named.map_err(|error| format!("{who}: {error}"))?;
    Ok((named, stream.into()))
}

/// Ends the sending direction, and reads what the other host still sends, within bounds.
async fn read_the_rest(mut stream: TcpStream) -> io::Result<()> {
    stream.shutdown().await?;
    let mut rest = stream.take(READ_AT_ONCE as u64);
    tokio::io::copy(&mut rest, &mut tokio::io::sink()).await?;
    Ok(())
}

fn no_answer(who: &str) -> String {
    let seconds = HANDSHAKE.as_secs();
    format!("{who} did not complete the handshake within {seconds} s")
}

/// Sends messages at once, and notices within about 10 s that the other host is gone, also if
/// nothing is sent: otherwise that host could not connect again. A failure changes only how fast
/// that is.
fn set_options(stream: &TcpStream) {
    use rustix::net::sockopt;
    let _ = stream.set_nodelay(true);
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, KEEPALIVE);
    let _ = sockopt::set_tcp_keepintvl(stream, KEEPALIVE);
    let _ = sockopt::set_tcp_user_timeout(stream, UNACKNOWLEDGED_MILLIS);
}

/// Reads messages until the connection ends; returns why. Only one message of a connection waits
/// for the owner, and the owner takes those of all connections in turn. So a neighbour
/// that sends much delays only its own messages.
async fn read(
    number: u64,
    who: &str,
    mut stream: impl AsyncRead + Unpin,
    reports: &mpsc::Sender<Report>,
) -> String {
    let mut decoder = Decoder::default();
    let mut buffer = vec![0; READ_AT_ONCE];
    loop {
        let length = match stream.read(&mut buffer).await {
            Ok(0) => return format!("{who} closed the connection"),
            Ok(length) => length,
            Err(error) => return explain(&error, who),
        };
        decoder.push(&buffer[..length]);
        loop {
            match decoder.poll() {
                Ok(None) => break,
                Ok(Some(message)) => {
                    let report = Report::Message { number, message };
                    if reports.send(report).await.is_err() {
                        return "this host has stopped".to_owned();
                    }
                }
                Err(error) => return error.to_string(),
            }
        }
    }
}

/// Writes frames until the owner drops its end of the queue, then closes the connection.
async fn write(
    mut frames: mpsc::UnboundedReceiver<Vec<u8>>,
    waiting: Arc<AtomicUsize>,
    mut stream: impl AsyncWrite + Unpin,
) {
    while let Some(frame) = frames.recv().await {
        let written: io::Result<()> = async {
            stream.write_all(&frame).await?;
            stream.flush().await
        }
        .await;
        waiting.fetch_sub(frame.len(), Ordering::Relaxed);
        if written.is_err() {
            return;
        }
    }
    // Nothing is left to do if closing fails.
    let _ = stream.shutdown().await;
}

/// The longest time for connecting and the handshake. Shorter than a hold lasts, so that the reason
/// arrives before the hold ends.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(3);

/// How long the last frames and the end of TLS may take.
const CLOSING: Duration = Duration::from_secs(1);

/// The most bytes that wait for one neighbour: the ends of all 8,000 channels with it, twice.
pub(super) const MOST_WAITING: usize = 4 << 20;

/// After this time without an acknowledgement, of data or of a probe, the kernel ends a connection
/// (TCP_USER_TIMEOUT).
const UNACKNOWLEDGED_MILLIS: u32 = 10_000;

/// How long a connection is silent before the kernel probes it, and the time between probes.
const KEEPALIVE: Duration = Duration::from_secs(3);

/// Bytes that are read at once: one TLS record.
const READ_AT_ONCE: usize = 16 << 10;

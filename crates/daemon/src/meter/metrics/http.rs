//! Serves the metrics page over HTTP/1.1 to every peer that can reach the address: reads a request,
//! writes a page or an error status, and ends the connection.
//!
//! Peers are not trusted. A request has at most [`LONGEST_REQUEST`] bytes (8 KiB) and must arrive
//! within [`REQUEST_TIMEOUT`] (2 s), and an answer must be read within [`ANSWER_TIMEOUT`] (5 s).
//! Beyond [`MAX_CONNECTIONS`] (64) connections the oldest is closed. So a thousand silent
//! connections lock no reader out: a new connection that sends its request at once is answered
//! before it is the oldest. The event loop makes a page at most twice a second, however often it is
//! requested, and all readers share it. [`listen`] fails if the address cannot be bound, and
//! [`Address::check`] if other machines can reach it. A failure of one connection ends only that
//! connection.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{sleep, timeout};

/// A page.
pub(crate) type Page = Rc<str>;

/// A request for a page: the channel over which the page is returned.
pub(crate) type Scrape = oneshot::Sender<Page>;

/// The address to serve metrics at. A text that is a port alone means 127.0.0.1 and this port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(pub SocketAddr);

/// Why an address for metrics is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Not an address.
    #[error(
        "{0:?} is not an address with a port: write 127.0.0.1:9469, [::1]:9469, or 9469 for \
         loopback"
    )]
    NoAddress(String),
    /// Other machines could reach it, and that is not allowed.
    #[error(
        "other machines can reach {0} and read how much each program sends: allow that with \
         --metrics-open, or use a \
         loopback address"
    )]
    Open(SocketAddr),
}

impl std::str::FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Address, AddressError> {
        let port = text.strip_prefix(':').unwrap_or(text);
        if let Ok(port) = port.parse() {
            return Ok(Address(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port)));
        }
        match text.parse() {
            Ok(address) => Ok(Address(address)),
            Err(_) => Err(AddressError::NoAddress(text.to_owned())),
        }
    }
}

impl Address {
    /// Checks that other machines cannot reach the address, unless `open`.
    ///
    /// # Errors
    /// [`AddressError::Open`] if the address is no loopback address and `open` is false.
    pub fn check(self, open: bool) -> Result<Address, AddressError> {
        let loopback = match self.0.ip() {
            IpAddr::V4(address) => address.is_loopback(),
            IpAddr::V6(address) => address.to_canonical().is_loopback(),
        };
        match loopback || open {
            true => Ok(self),
            false => Err(AddressError::Open(self.0)),
        }
    }
}

/// Listens at the address.
///
/// # Errors
/// The error of bind(2) or listen(2), for example if the address is in use.
pub(crate) async fn listen(address: Address) -> io::Result<TcpListener> {
    TcpListener::bind(address.0).await
}

/// Serves until the first accept(2) after the receiver of `service` is dropped. Must run in a local
/// set.
pub(crate) async fn serve(listener: TcpListener, service: mpsc::Sender<Scrape>) {
    let mut open: VecDeque<JoinHandle<()>> = VecDeque::new();
    while !service.is_closed() {
        match listener.accept().await {
            Ok((stream, _)) => {
                open.retain(|connection| !connection.is_finished());
                if open.len() >= MAX_CONNECTIONS
                    && let Some(oldest) = open.pop_front()
                {
                    oldest.abort();
                }
                open.push_back(spawn_local(answer(stream, service.clone())));
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection for metrics");
                if let Some(oldest) = open.pop_front() {
                    oldest.abort();
                }
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves one connection.
async fn answer(mut stream: TcpStream, service: mpsc::Sender<Scrape>) {
    let request = match timeout(REQUEST_TIMEOUT, read_request(&mut stream)).await {
        Ok(Ok(request)) => request,
        Ok(Err(_)) => return,
        Err(_) => HttpRequest::Refused("408 Request Timeout"),
    };
    let (status, page, head) = match request {
        HttpRequest::Page { head } => {
            let (reply, page) = oneshot::channel();
            if service.send(reply).await.is_err() {
                return;
            }
            let Ok(page) = page.await else { return };
            ("200 OK", page, head)
        }
        HttpRequest::Refused(status) => (status, format!("{status}\n").into(), false),
    };
    let allow = if status.starts_with("405") {
        "Allow: GET, HEAD\r\n"
    } else {
        ""
    };
    let start = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: \
         {}\r\n{allow}Connection: close\r\n\r\n",
        page.len()
    );
    let written = async {
        stream.write_all(start.as_bytes()).await?;
        if !head {
            stream.write_all(page.as_bytes()).await?;
        }
        stream.shutdown().await?;
        // Unread bytes of the peer would turn the close into a reset that overtakes the page.
        let mut rest = [0; 1024];
        let mut left = MAX_DRAINED;
        while left > 0 {
            match stream.read(&mut rest).await? {
                0 => break,
                read => left = left.saturating_sub(read),
            }
        }
        io::Result::Ok(())
    };
    let _ = timeout(ANSWER_TIMEOUT, written).await;
}

/// A parsed request.
enum HttpRequest {
    Page {
        /// True for HEAD: only the header is sent.
        head: bool,
    },
    Refused(&'static str),
}

/// Reads a request to its end, and parses its first line.
async fn read_request(stream: &mut TcpStream) -> io::Result<HttpRequest> {
    let mut bytes = Vec::with_capacity(1024);
    loop {
        if bytes.windows(4).any(|end| end == b"\r\n\r\n")
            || bytes.windows(2).any(|end| end == b"\n\n")
        {
            return Ok(parse_request(&bytes));
        }
        if bytes.len() >= LONGEST_REQUEST {
            return Ok(HttpRequest::Refused("431 Request Header Fields Too Large"));
        }
        let mut piece = [0; 1024];
        match stream.read(&mut piece).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => bytes.extend_from_slice(&piece[..read]),
        }
    }
}

fn parse_request(request: &[u8]) -> HttpRequest {
    let first = request.split(|byte| matches!(byte, b'\r' | b'\n')).next();
    let words: Vec<&[u8]> = first
        .unwrap_or_default()
        .split(|byte| *byte == b' ')
        .collect();
    let [method, path, version] = words.as_slice() else {
        return HttpRequest::Refused("400 Bad Request");
    };
    if !version.starts_with(b"HTTP/1.") {
        return HttpRequest::Refused("400 Bad Request");
    }
    let path = path.split(|byte| *byte == b'?').next().unwrap_or_default();
    match (*method, path) {
        (b"GET" | b"HEAD", b"/metrics") => HttpRequest::Page {
            head: *method == b"HEAD",
        },
        (b"GET" | b"HEAD", _) => HttpRequest::Refused("404 Not Found"),
        _ => HttpRequest::Refused("405 Method Not Allowed"),
    }
}

/// The content type of the page.
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Largest size of a request, in bytes. A scraper's request is a tenth as long.
const LONGEST_REQUEST: usize = 8 * 1024;
/// Time limit for a request to arrive.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit for a peer to read the page and close the connection.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Number of bytes that are read and dropped after a request.
const MAX_DRAINED: usize = 64 * 1024;
/// Largest number of connections: as many readers as a site has.
const MAX_CONNECTIONS: usize = 64;
/// The pause after a failed accept, so that a full descriptor table does not make the loop spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

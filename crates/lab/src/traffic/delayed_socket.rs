//! A socket of the kernel for quinn whose datagrams leave after a fixed delay, in order, as on a
//! long path ([`DelayedSocket`]). Not every kernel has a queueing discipline that delays packets.
//!
//! A thread sends the datagrams; it sleeps until the next one is due, so their spacing stays. A
//! send fails if that thread has ended. Making the socket fails if the socket cannot be registered
//! or the thread cannot start.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, Runtime, TokioRuntime, UdpPoller};

/// A socket whose datagrams leave late.
pub(super) struct DelayedSocket {
    inner: Arc<dyn AsyncUdpSocket>,
    delay: Duration,
    queue: Sender<Delayed>,
}

/// A datagram, its destination, and when it leaves.
struct Delayed {
    due: Instant,
    to: SocketAddr,
    bytes: Vec<u8>,
}

impl DelayedSocket {
    /// Makes a socket with this delay. Fails as the module says.
    pub(super) fn new(socket: UdpSocket, delay: Duration) -> io::Result<DelayedSocket> {
        let (queue, waiting) = channel();
        let sending = socket.try_clone()?;
        std::thread::Builder::new()
            .name("delay".into())
            .spawn(move || send(&sending, &waiting))?;
        let inner = TokioRuntime.wrap_udp_socket(socket)?;
        Ok(DelayedSocket {
            inner,
            delay,
            queue,
        })
    }
}

/// Sends each datagram when it is due, until the socket is dropped.
fn send(socket: &UdpSocket, waiting: &Receiver<Delayed>) {
    while let Ok(one) = waiting.recv() {
        std::thread::sleep(one.due.saturating_duration_since(Instant::now()));
        // A datagram that the kernel refuses is lost, as on a path.
        let _ = socket.send_to(&one.bytes, one.to);
    }
}

impl AsyncUdpSocket for DelayedSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(AlwaysWritable)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let one = Delayed {
            due: Instant::now() + self.delay,
            to: transmit.destination,
            bytes: transmit.contents.to_vec(),
        };
        let ended = |_| io::Error::other("the thread that delays datagrams has ended");
        self.queue.send(one).map_err(ended)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.inner.poll_recv(cx, buffers, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn max_receive_segments(&self) -> usize {
        self.inner.max_receive_segments()
    }
}

impl fmt::Debug for DelayedSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DelayedSocket")
            .field("delay", &self.delay)
            .finish_non_exhaustive()
    }
}

/// The queue of datagrams has no bound.
#[derive(Debug)]
struct AlwaysWritable;

impl UdpPoller for AlwaysWritable {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

//! The socket of a quinn endpoint that is a flow of the direct path ([`FlowSocket`]), and the task
//! that wakes all flows of a program ([`Flows`]).
//!
//! ```text
//!  Flows ── one program: memory file, doorbell, and a tokio task that waits for the doorbell
//!    └── FlowSocket ── one flow with its contract = the socket of one quinn::Endpoint
//!          try_send:       payload copied to a buffer ─▶ submit ring, or WouldBlock
//!          poll_writable:  a buffer is free, or the waker is stored until the driver returns one
//!          poll_recv:      deliver ring ─▶ quinn's buffers, or the waker is stored
//! ```
//! A flow has one remote host, so an endpoint over it has one connection at a time, and every
//! connection has a contract of its own. A program that needs more connections opens more flows.
//!
//! **Back-pressure.** A datagram that quinn passes to `try_send` is sent by the driver in order, or
//! `try_send` returns `WouldBlock` and quinn keeps it. Nothing is dropped for want of a buffer. The
//! flow's sending buffers are a queue below quinn's congestion control: [`sending_buffers`]
//! computes how many a contract needs.
//!
//! **Wake-ups.** The driver rings the doorbell when it returns a buffer or delivers a datagram, and
//! only if the task sleeps. The task then wakes the wakers of the flows that the driver's notices
//! name. A waker is stored before the last look at the ring, so no notice is missed.
//!
//! **What a flow does not do.** It sends one datagram for each call (no segmentation offload),
//! never fragments, and carries no ECN marks: quinn learns this in its validation of ECN and goes
//! on without. A datagram that is longer than the path MTU (a probe of quinn's MTU discovery)
//! counts as lost on the way, as on a kernel socket; [`FlowSocket::limit_mtu`] makes quinn send
//! none.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use netnice_stack::udp::{Remote, UdpOptions};
use netnice_stack::{Program, Socket, StackError};
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, MtuDiscoveryConfig, TransportConfig, UdpPoller};
use tokio::io::unix::AsyncFd;
use tokio::task::JoinHandle;

/// The flows of a program, with the task that wakes them. Dropping the value ends the task, so the
/// sockets receive nothing more: keep it as long as they are used.
pub struct Flows {
    program: Program,
    sleepers: Arc<Sleepers>,
    task: JoinHandle<()>,
}

/// What waits for each flow of a program, by the flow's slot.
#[derive(Default)]
struct Sleepers {
    by_slot: Mutex<HashMap<u32, Arc<FlowWakers>>>,
}

/// The tasks that wait for one flow.
#[derive(Default)]
struct FlowWakers {
    reader: Mutex<Option<Waker>>,
    /// By the number of the [`UdpPoller`], each of which can store one waker.
    writers: Mutex<HashMap<u64, Waker>>,
}

impl Flows {
    /// Starts the task for a program, which must have no other that waits for its doorbell.
    ///
    /// # Errors
    /// If the descriptor of the doorbell cannot be registered with tokio.
    ///
    /// # Panics
    /// Outside a tokio runtime with its I/O driver.
    pub fn new(program: Program) -> io::Result<Flows> {
        let sleepers = Arc::new(Sleepers::default());
        #[expect(
            deprecated,
            reason = "its successor is unsafe; the handle owns the descriptor and does not change it"
        )]
        let descriptor = AsyncFd::new(program.clone())?;
        let task = tokio::spawn(wake_flows(descriptor, sleepers.clone()));
        Ok(Flows {
            program,
            sleepers,
            task,
        })
    }

    /// Opens a flow to one host, as the socket of a quinn endpoint.
    ///
    /// # Errors
    /// If the options name no single remote host, or with the daemon's reason if it does not grant
    /// the flow.
    pub async fn open(&self, options: UdpOptions) -> io::Result<Arc<FlowSocket>> {
        let Remote::One(remote) = options.remote else {
            let why = "a flow for QUIC needs one remote host, not any host or a group";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        };
        let program = self.program.clone();
        // The request waits for the daemon's response.
        let opening = tokio::task::spawn_blocking(move || program.open_udp(&options));
        let socket = opening.await?.map_err(io_error)?;
        let wakers = Arc::new(FlowWakers::default());
        let slot = socket.slot();
        self.sleepers.lock().insert(slot, wakers.clone());
        // The flow can have datagrams already; the first call of poll_recv looks.
        Ok(Arc::new(FlowSocket {
            local: socket.local(),
            remote,
            slot,
            socket: Mutex::new(Some(socket)),
            wakers,
            sleepers: self.sleepers.clone(),
            next_poller: AtomicU64::new(0),
            too_long: AtomicU64::new(0),
        }))
    }
}

impl Drop for Flows {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Waits for the doorbell of a program, and wakes the flows that notices name. Ends if the
/// descriptor fails, which wakes all flows.
async fn wake_flows(descriptor: AsyncFd<Program>, sleepers: Arc<Sleepers>) {
    loop {
        let program = descriptor.get_ref();
        if program.arm() {
            match descriptor.readable().await {
                Ok(mut ready) => ready.clear_ready(),
                Err(_) => break,
            }
        } else {
            // The driver was quicker. Other tasks run before the next look.
            tokio::task::yield_now().await;
        }
        let mut noticed = Vec::new();
        program.poll(|slot| noticed.push(slot));
        {
            let by_slot = sleepers.lock();
            for slot in noticed {
                by_slot.get(&slot).inspect(|wakers| wakers.wake());
            }
        }
        // Their effects are applied already: a flow that has ended fails at its next call.
        let mut any = false;
        while program.next_notification().is_some() {
            any = true;
        }
        if any {
            sleepers.wake_all();
        }
    }
    sleepers.wake_all();
}

impl Sleepers {
    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Arc<FlowWakers>>> {
        lock(&self.by_slot)
    }

    fn wake_all(&self) {
        self.lock().values().for_each(|wakers| wakers.wake());
    }
}

impl FlowWakers {
    fn wake(&self) {
        let reader = lock(&self.reader).take();
        let writers = std::mem::take(&mut *lock(&self.writers));
        reader
            .into_iter()
            .chain(writers.into_values())
            .for_each(Waker::wake);
    }
}

/// A flow to one host, as a socket for quinn. It is closed when the last handle is dropped; what
/// waits in its buffers is then not sent, so call [`FlowSocket::drain`] before.
pub struct FlowSocket {
    /// `None` only while the value is dropped.
    socket: Mutex<Option<Socket>>,
    local: SocketAddr,
    remote: SocketAddr,
    slot: u32,
    wakers: Arc<FlowWakers>,
    sleepers: Arc<Sleepers>,
    next_poller: AtomicU64,
    too_long: AtomicU64,
}

impl FlowSocket {
    /// The remote host.
    pub fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// Length of the longest datagram that the path carries at present, in bytes.
    pub fn longest(&self) -> usize {
        self.with(|socket| socket.longest())
    }

    /// Number of datagrams that were longer than the path MTU, and therefore not sent.
    pub fn too_long(&self) -> u64 {
        self.too_long.load(Ordering::Relaxed)
    }

    /// Limits the MTU discovery of connections over this flow to the flow's path MTU.
    pub fn limit_mtu(&self, transport: &mut TransportConfig) {
        let mut discovery = MtuDiscoveryConfig::default();
        discovery.upper_bound(u16::try_from(self.longest()).unwrap_or(u16::MAX));
        transport.mtu_discovery_config(Some(discovery));
    }

    /// Waits until the driver has sent everything that quinn passed on.
    ///
    /// # Errors
    /// If the flow has ended.
    pub async fn drain(&self) -> io::Result<()> {
        let number = self.next_poller.fetch_add(1, Ordering::Relaxed);
        std::future::poll_fn(|cx| self.poll_returned(number, cx)).await
    }

    fn poll_returned(&self, number: u64, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.wakers.store_writer(number, cx);
        self.with(|socket| {
            // Asking for a result takes back what the driver has returned.
            while socket.outcome().map_err(io_error)?.is_some() {}
            match socket.under_way() {
                0 => Poll::Ready(Ok(())),
                _ => Poll::Pending,
            }
        })
    }

    /// Ready if the flow has a free buffer for sending. Stores the waker under `number` otherwise.
    fn poll_writable(&self, number: u64, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(ready) = self.has_buffer() {
            return Poll::Ready(ready);
        }
        self.wakers.store_writer(number, cx);
        // The driver may have returned a buffer, and its notice may have been taken, since then.
        match self.has_buffer() {
            Some(ready) => Poll::Ready(ready),
            None => Poll::Pending,
        }
    }

    /// Whether a buffer is free; `None` if the next look must wait for the driver.
    fn has_buffer(&self) -> Option<io::Result<()>> {
        self.with(|socket| match socket.packet() {
            Ok(packet) => {
                socket.discard(packet);
                Some(Ok(()))
            }
            Err(StackError::WouldBlock) => None,
            Err(error) => Some(Err(io_error(error))),
        })
    }

    /// Copies datagrams that have arrived; `Pending` if there is none.
    fn receive(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.with(|socket| {
            let mut count = 0;
            for (buffer, meta) in buffers.iter_mut().zip(meta) {
                let received = loop {
                    match socket.try_recv(buffer) {
                        // Longer than the peer may send by this endpoint's parameters.
                        Ok(received) if received.whole > received.bytes => {}
                        other => break other,
                    }
                };
                let received = match received {
                    Ok(received) => received,
                    Err(StackError::WouldBlock) => break,
                    // What came before the end is delivered; the next call fails.
                    Err(_) if count > 0 => break,
                    Err(error) => return Poll::Ready(Err(io_error(error))),
                };
                *meta = RecvMeta {
                    addr: received.from,
                    len: received.bytes,
                    stride: received.bytes,
                    ecn: None,
                    dst_ip: Some(self.local.ip()),
                };
                count += 1;
            }
            match count {
                0 => Poll::Pending,
                count => Poll::Ready(Ok(count)),
            }
        })
    }

    fn with<T>(&self, call: impl FnOnce(&mut Socket) -> T) -> T {
        let mut socket = lock(&self.socket);
        call(socket.as_mut().expect("only drop takes the socket"))
    }
}

impl AsyncUdpSocket for FlowSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        let number = self.next_poller.fetch_add(1, Ordering::Relaxed);
        Box::pin(FlowPoller {
            socket: self,
            number,
        })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        if (transmit.destination.ip(), transmit.destination.port())
            != (self.remote.ip(), self.remote.port())
        {
            let (remote, to) = (self.remote, transmit.destination);
            let why = format!("the flow sends only to {remote}, not to {to}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        match self.with(|socket| socket.try_send(transmit.contents)) {
            Ok(_) => Ok(()),
            Err(StackError::TooLong { .. }) => {
                self.too_long.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(error) => Err(io_error(error)),
        }
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let received = self.receive(buffers, meta);
        if received.is_ready() {
            return received;
        }
        self.wakers.store_reader(cx);
        // A datagram may have come, and its notice may have been taken, since then.
        self.receive(buffers, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }

    fn max_transmit_segments(&self) -> usize {
        1
    }

    fn max_receive_segments(&self) -> usize {
        1
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

impl Drop for FlowSocket {
    fn drop(&mut self) {
        self.sleepers.lock().remove(&self.slot);
        let socket = lock(&self.socket).take();
        // Closing the flow waits for the daemon's response, which a runtime's thread must not do.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || drop(socket))),
            Err(_) => drop(socket),
        }
    }
}

impl fmt::Debug for FlowSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlowSocket")
            .field("local", &self.local)
            .field("remote", &self.remote)
            .finish_non_exhaustive()
    }
}

/// Waits until the flow has a free buffer for sending.
#[derive(Debug)]
struct FlowPoller {
    socket: Arc<FlowSocket>,
    number: u64,
}

impl UdpPoller for FlowPoller {
    fn poll_writable(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_writable(self.number, cx)
    }
}

impl Drop for FlowPoller {
    fn drop(&mut self) {
        lock(&self.socket.wakers.writers).remove(&self.number);
    }
}

impl FlowWakers {
    fn store_reader(&self, cx: &Context<'_>) {
        store(&mut lock(&self.reader), cx);
    }

    fn store_writer(&self, number: u64, cx: &Context<'_>) {
        lock(&self.writers).insert(number, cx.waker().clone());
    }
}

/// Replaces the stored waker, unless it wakes the same task.
fn store(stored: &mut Option<Waker>, cx: &Context<'_>) {
    match stored {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *stored = Some(cx.waker().clone()),
    }
}

/// Number of sending buffers that bridge `milliseconds` at a rate in bit/s, with packets of 1500
/// bytes: at least 4, because quinn's task must run before the last one is sent.
///
/// The buffers are a queue: with more of them, quinn measures a longer round trip; with fewer, the
/// flow sends less than its contract whenever the program gets no processor for that long.
pub fn sending_buffers(rate: u64, milliseconds: u64) -> u32 {
    let packets = (rate * milliseconds).div_ceil(1000 * 8 * 1500);
    packets.clamp(4, 1024) as u32
}

/// The error of a call in the form that quinn needs.
fn io_error(error: StackError) -> io::Error {
    let kind = match &error {
        StackError::WouldBlock => io::ErrorKind::WouldBlock,
        StackError::Closed(_) | StackError::Ended(_) | StackError::Disconnected(_) => {
            io::ErrorKind::ConnectionAborted
        }
        StackError::Refused { .. } => io::ErrorKind::PermissionDenied,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

//! The socket of a quinn endpoint on a socket of the kernel, whose datagrams leave when the
//! [`Pacer`] of netnice-core says ([`PacedSocket`]). It needs no daemon.
//!
//! ```text
//!  Pacing ── one pacer, one timerfd, and a tokio task that waits for the timer
//!    └── PacedSocket ── one flow of the pacer = the socket of one quinn::Endpoint
//!          try_send:       sendmsg if the flow may send; else quinn keeps the datagram
//!          poll_writable:  ready when the timer's task has released the flow
//!          poll_recv:      recvmsg beside each departure, or when the socket becomes readable
//! ```
//! **quinn's own pacer** is inside quinn-proto. It lets 1.25 windows leave in a round trip, in
//! bursts of 2 ms and of at least 10 datagrams, because tokio's timers count in milliseconds. It
//! does not delay a datagram while the congestion window is more than 0.8 of what the rate carries
//! in a round trip, so this socket needs a controller whose window is larger than that:
//! [`FixedWindow`], or any other that grows until packets are lost. Then the flow's contract alone
//! decides.
//!
//! **What it costs.** An exact departure needs a wake-up of its own, by a timer of nanoseconds
//! (timerfd), and a wake-up costs more processor time than the datagram. Two measures pay for that.
//! Up to `burst` datagrams leave in one system call (segmentation offload), as one unit of the
//! contract; [`burst`] computes a number that costs no more than quinn's own pacer, at less than
//! half of its bursts. With 1, the gaps between packets are as even as the timer, for three to six
//! times the processor time. And the socket reads acknowledgements when it sends, instead of being
//! woken for each: it leaves tokio's poll set while departures follow one another within
//! `GATHER`.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use netnice_core::contract;
use netnice_core::sched::{FlowId, Pacer, SchedulerError};
use netnice_core::units::{Bytes, Instant, Nanos, Rate};
use quinn::congestion::{Controller, ControllerFactory};
use quinn::udp::{RecvMeta, Transmit, UdpSocketState};
use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime, UdpPoller};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;
use tokio::task::JoinHandle;

/// A pacer for all paced sockets of a program. Dropping it ends the task of its timer: keep it as
/// long as the sockets are used.
pub struct Pacing {
    state: Arc<Mutex<State>>,
    task: JoinHandle<()>,
}

/// The flows and the timer.
struct State {
    pacer: Pacer,
    /// By index of the flow's number.
    flows: Vec<Flow>,
    timer: Arc<OwnedFd>,
    /// When the timer expires, or has expired.
    expiry: Instant,
    /// quinn's timers: when each is due, its number, and the task that waits.
    timers: BTreeMap<(Instant, u64), Waker>,
    next_timer: u64,
}

/// What the tasks of one socket wait for.
#[derive(Default)]
struct Flow {
    departure: Departure,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

/// The state of the datagram that quinn wants to send.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Departure {
    /// There is none.
    #[default]
    Idle,
    /// The pacer has it as the flow's head.
    Waiting,
    /// The pacer has released it.
    Released,
    /// The pacer has released it, and the kernel's buffer was full.
    Blocked,
}

impl Pacing {
    /// Makes a pacer and its timer.
    ///
    /// # Errors
    /// If the timer cannot be made or registered with tokio.
    ///
    /// # Panics
    /// Outside a tokio runtime with its I/O driver.
    pub fn new() -> io::Result<Pacing> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = Arc::new(timerfd_create(TimerfdClockId::Monotonic, flags)?);
        let state = Arc::new(Mutex::new(State {
            pacer: Pacer::new(),
            flows: Vec::new(),
            timer: timer.clone(),
            expiry: Instant(0),
            timers: BTreeMap::new(),
            next_timer: 0,
        }));
        let task = tokio::spawn(release_flows(register(timer)?, state.clone()));
        Ok(Pacing { state, task })
    }

    /// Makes a socket whose datagrams leave by this contract. The contract counts IP packets (28
    /// bytes more than a datagram in IPv4). Up to so many datagrams leave together, at most 10.
    ///
    /// # Errors
    /// If an option of the socket cannot be set, or the pacer has too many flows.
    pub fn socket(
        &self,
        socket: UdpSocket,
        contract: contract::Cell,
        burst: usize,
    ) -> io::Result<Arc<PacedSocket>> {
        let inner = UdpSocketState::new((&socket).into())?;
        // quinn passes at most 10 in a call.
        let segments = burst.clamp(1, inner.max_gso_segments().min(10));
        // With a sustained rate, a datagram may wait for the whole bucket.
        let longest_wait = contract
            .pcr()
            .time_for(Bytes(segments as u64 * FULL_PACKET));
        let gathers = contract.sustained().is_none() && longest_wait <= GATHER;
        let local = socket.local_addr()?;
        let mut state = lock(&self.state);
        let flow = state.pacer.insert(contract).map_err(pacer_error)?;
        if state.flows.len() <= flow.index() {
            state.flows.resize_with(flow.index() + 1, Flow::default);
        }
        state.flows[flow.index()] = Flow::default();
        Ok(Arc::new(PacedSocket {
            segments,
            gathers,
            drained: AtomicBool::new(false),
            headers: if local.is_ipv4() { 28 } else { 48 },
            inner,
            local,
            socket: Arc::new(socket),
            readable: Mutex::new(None),
            writable: Mutex::new(None),
            flow,
            state: self.state.clone(),
        }))
    }

    /// The runtime for quinn endpoints on these sockets: tokio, with timers that share the pacer's.
    /// tokio's own timers count in milliseconds, and each wakes the process for itself.
    pub fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::new(PacedRuntime {
            state: self.state.clone(),
        })
    }
}

impl Drop for Pacing {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Releases the flows whose time has come, each time the timer expires. Ends if the timer fails.
async fn release_flows(timer: AsyncFd<Arc<OwnedFd>>, state: Arc<Mutex<State>>) {
    // The timer is not read: setting it again makes it unreadable, and tokio waits for edges.
    while let Ok(mut ready) = timer.readable().await {
        ready.clear_ready();
        let mut state = lock(&state);
        let now = now();
        state.release(None, now);
        state.arm(now);
    }
}

impl State {
    /// Releases every flow whose head may leave now, and wakes all of them but `own`. Wakes the
    /// tasks whose timers are due.
    fn release(&mut self, own: Option<FlowId>, now: Instant) {
        while let Some(first) = self.timers.first_entry().filter(|one| one.key().0 <= now) {
            first.remove().wake();
        }
        while let Some((flow, _)) = self.pacer.poll(now, |_| None) {
            let released = &mut self.flows[flow.index()];
            released.departure = Departure::Released;
            if own != Some(flow) {
                released.wake();
            }
        }
    }

    /// Sets the timer for the next departure, or for quinn's next timer.
    fn arm(&mut self, now: Instant) {
        let timer = self.timers.first_key_value().map(|(key, _)| key.0);
        let departure = self.pacer.poll_timeout();
        let Some(due) = departure.into_iter().chain(timer).min() else {
            return;
        };
        // An earlier expiry looks again.
        if self.expiry > now && self.expiry <= due {
            return;
        }
        let due = due.max(Instant(now.0 + 1));
        let spec = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec {
                tv_sec: (due.0 / 1_000_000_000) as i64,
                tv_nsec: (due.0 % 1_000_000_000) as i64,
            },
        };
        // It fails only for a descriptor that is no timer, or for an invalid time.
        if timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &spec).is_ok() {
            self.expiry = due;
        }
    }
}

impl Flow {
    /// Wakes the sender before the receiver: the next datagram then waits already when the receiver
    /// looks whether departures follow one another.
    fn wake(&mut self) {
        let wakers = [self.writer.take(), self.reader.take()];
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

/// A socket of the kernel with a contract.
pub struct PacedSocket {
    inner: UdpSocketState,
    socket: Arc<UdpSocket>,
    /// The socket in tokio's poll set; `None` while departures follow one another.
    readable: Mutex<Option<AsyncFd<Arc<UdpSocket>>>>,
    /// A second descriptor of the socket in the poll set, while the kernel's buffer is full.
    writable: Mutex<Option<AsyncFd<Arc<UdpSocket>>>>,
    local: SocketAddr,
    /// Datagrams of a transmit, at most.
    segments: usize,
    /// True if a datagram that waits leaves within [`GATHER`].
    gathers: bool,
    /// True after a call of `poll_recv` that returned all that had arrived.
    drained: AtomicBool,
    /// Bytes of the headers of a datagram that count for the contract.
    headers: u64,
    flow: FlowId,
    state: Arc<Mutex<State>>,
}

impl PacedSocket {
    /// Bytes of a transmit that count for the contract.
    fn counted(&self, transmit: &Transmit<'_>) -> Bytes {
        let length = transmit.contents.len();
        let datagrams = length.div_ceil(transmit.segment_size.unwrap_or(length).max(1));
        Bytes(length as u64 + datagrams.max(1) as u64 * self.headers)
    }

    /// Asks the pacer whether a transmit may leave now. If it must wait, the timer is set.
    fn may_leave(&self, transmit: &Transmit<'_>) -> io::Result<bool> {
        let mut state = lock(&self.state);
        let index = self.flow.index();
        if state.flows[index].departure == Departure::Idle {
            let (length, now) = (self.counted(transmit), now());
            let handled = state.pacer.handle_head(self.flow, length, now);
            handled.map_err(pacer_error)?;
            state.flows[index].departure = Departure::Waiting;
            state.release(Some(self.flow), now);
            state.arm(now);
        }
        Ok(state.flows[index].departure == Departure::Released)
    }

    /// Whether the socket is read at the next departure, which is near.
    fn departs_soon(&self, state: &State) -> bool {
        self.gathers && state.flows[self.flow.index()].departure == Departure::Waiting
    }

    /// Waits until the kernel's buffer has room.
    fn poll_kernel(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut writable = lock(&self.writable);
        let waiting = match writable.take() {
            Some(waiting) => waiting,
            None => register(Arc::new(self.socket.try_clone()?))?,
        };
        if waiting.poll_write_ready(cx)?.is_pending() {
            *writable = Some(waiting);
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    fn receive(&self, buffers: &mut [IoSliceMut<'_>], meta: &mut [RecvMeta]) -> io::Result<usize> {
        self.inner.recv((&*self.socket).into(), buffers, meta)
    }
}

impl AsyncUdpSocket for PacedSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(PacedPoller { socket: self })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        if !self.may_leave(transmit)? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let sent = self.inner.try_send((&*self.socket).into(), transmit);
        let departure = match &sent {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Departure::Blocked,
            _ => Departure::Idle,
        };
        lock(&self.state).flows[self.flow.index()].departure = departure;
        sent
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut readable = lock(&self.readable);
        let soon = {
            let mut state = lock(&self.state);
            state.flows[self.flow.index()].reader = Some(cx.waker().clone());
            self.departs_soon(&state)
        };
        if soon {
            *readable = None;
            // quinn calls again until nothing is left. A call that filled only a part of the
            // buffers has left nothing.
            if self.drained.swap(false, Ordering::Relaxed) {
                return Poll::Pending;
            }
            return match self.receive(buffers, meta) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
                received => {
                    let all = matches!(received, Ok(number) if number < buffers.len());
                    self.drained.store(all, Ordering::Relaxed);
                    Poll::Ready(received)
                }
            };
        }
        self.drained.store(false, Ordering::Relaxed);
        if readable.is_none() {
            *readable = Some(register(self.socket.clone())?);
        }
        let Some(readable) = readable.as_ref() else {
            return Poll::Pending;
        };
        loop {
            let mut ready = ready!(readable.poll_read_ready(cx))?;
            if let Ok(received) = ready.try_io(|_| self.receive(buffers, meta)) {
                return Poll::Ready(received);
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }

    fn max_transmit_segments(&self) -> usize {
        self.segments
    }

    fn max_receive_segments(&self) -> usize {
        self.inner.gro_segments()
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}

impl Drop for PacedSocket {
    fn drop(&mut self) {
        // The flow exists, because only this value removes it.
        let _ = lock(&self.state).pacer.remove(self.flow);
    }
}

impl fmt::Debug for PacedSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacedSocket")
            .field("local", &self.local)
            .finish_non_exhaustive()
    }
}

/// Waits until the pacer has released the socket's datagram. A socket has one connection, so one
/// waker is enough.
#[derive(Debug)]
struct PacedPoller {
    socket: Arc<PacedSocket>,
}

impl UdpPoller for PacedPoller {
    fn poll_writable(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let socket = &self.socket;
        let mut state = lock(&socket.state);
        let flow = &mut state.flows[socket.flow.index()];
        match flow.departure {
            Departure::Idle | Departure::Released => Poll::Ready(Ok(())),
            Departure::Blocked => {
                ready!(socket.poll_kernel(cx))?;
                flow.departure = Departure::Released;
                Poll::Ready(Ok(()))
            }
            Departure::Waiting => {
                flow.writer = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// See [`Pacing::runtime`].
struct PacedRuntime {
    state: Arc<Mutex<State>>,
}

impl Runtime for PacedRuntime {
    fn new_timer(&self, due: std::time::Instant) -> Pin<Box<dyn AsyncTimer>> {
        let mut state = lock(&self.state);
        state.next_timer += 1;
        Box::pin(PacedTimer {
            number: state.next_timer,
            due: monotonic(due),
            state: self.state.clone(),
        })
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        TokioRuntime.spawn(future);
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        TokioRuntime.wrap_udp_socket(socket)
    }
}

impl fmt::Debug for PacedRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacedRuntime").finish_non_exhaustive()
    }
}

/// A timer of quinn.
struct PacedTimer {
    number: u64,
    due: Instant,
    state: Arc<Mutex<State>>,
}

impl AsyncTimer for PacedTimer {
    fn reset(mut self: Pin<&mut Self>, due: std::time::Instant) {
        let due = monotonic(due);
        let mut state = lock(&self.state);
        if let Some(waker) = state.timers.remove(&(self.due, self.number)) {
            state.timers.insert((due, self.number), waker);
            state.arm(now());
        }
        drop(state);
        self.due = due;
    }

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let (mut state, now) = (lock(&self.state), now());
        if self.due <= now {
            state.timers.remove(&(self.due, self.number));
            return Poll::Ready(());
        }
        let key = (self.due, self.number);
        state.timers.insert(key, cx.waker().clone());
        state.arm(now);
        Poll::Pending
    }
}

impl Drop for PacedTimer {
    fn drop(&mut self) {
        lock(&self.state).timers.remove(&(self.due, self.number));
    }
}

impl fmt::Debug for PacedTimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacedTimer")
            .field("due", &self.due)
            .finish_non_exhaustive()
    }
}

/// A congestion window that does not change: for a path on which the contract's rate is reserved.
#[derive(Clone, Copy, Debug)]
pub struct FixedWindow(pub u64);

impl ControllerFactory for FixedWindow {
    fn build(self: Arc<Self>, _: std::time::Instant, _: u16) -> Box<dyn Controller> {
        Box::new(*self)
    }
}

impl Controller for FixedWindow {
    fn on_congestion_event(
        &mut self,
        _: std::time::Instant,
        _: std::time::Instant,
        _: bool,
        _: u64,
    ) {
    }

    fn on_mtu_update(&mut self, _: u16) {}

    fn window(&self) -> u64 {
        self.0
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(*self)
    }

    fn initial_window(&self) -> u64 {
        self.0
    }

    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any> {
        self
    }
}

/// How many datagrams leave together at a rate: 5 at low rates and one more for each 50 Mbit/s, or
/// as many as take [`TOGETHER`], at most 10. quinn's own pacer lets as many leave as take 2 ms, at
/// least 10; quinn passes at most 10 in a call.
pub fn burst(rate: Rate) -> usize {
    let least = 5 + rate.bits_per_second() / 50_000_000;
    let burst = least.max(rate.bytes_in(TOGETHER).0 / FULL_PACKET);
    burst.min(10) as usize
}

/// Registers a descriptor with tokio.
#[expect(
    deprecated,
    reason = "its successor is unsafe; an Arc of a descriptor owns it and does not change it"
)]
fn register<T: std::os::fd::AsRawFd>(descriptor: Arc<T>) -> io::Result<AsyncFd<Arc<T>>> {
    AsyncFd::new(descriptor)
}

/// A time of the standard library in ns of `CLOCK_MONOTONIC`, rounded up to a microsecond.
fn monotonic(time: std::time::Instant) -> Instant {
    let wait = time.saturating_duration_since(std::time::Instant::now());
    let wait = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
    Instant(now().0.saturating_add(wait).saturating_add(1000))
}

/// The time of `CLOCK_MONOTONIC`, the clock of the timer.
fn now() -> Instant {
    let now = clock_gettime(ClockId::Monotonic);
    Instant(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

fn pacer_error(error: SchedulerError) -> io::Error {
    io::Error::other(error.to_string())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Time of the datagrams that leave together at a high rate.
const TOGETHER: Nanos = Nanos::from_micros(950);
/// Acknowledgements wait at most so long for the next departure. The peer may delay them by 25 ms
/// itself (RFC 9000, section 18.2).
const GATHER: Nanos = Nanos::from_millis(20);
/// Bytes of a full packet.
const FULL_PACKET: u64 = 1500;

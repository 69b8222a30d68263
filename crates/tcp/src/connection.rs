//! One connection: the state machine of RFC 9293.
//!
//! ```text
//!   connect ──▶ SynSent ──SYN,ACK──▶ Established ◀──ACK── SynReceived ◀── a listener's SYN
//!                  └───────SYN──────────────────────────────▲
//!   shutdown:  Established ──▶ FinWait1 ──ACK──▶ FinWait2 ──FIN──▶ TimeWait ──2 MSL──▶ Closed
//!                                 └──FIN──▶ Closing ──ACK────────────▲
//!   peer's FIN: Established ──▶ CloseWait ──shutdown──▶ LastAck ──ACK──▶ Closed
//! ```
//!
//! The caller passes in what happens, with the time: received segments
//! ([`Connection::handle_segment`]), packets that the driver has sent
//! ([`Connection::handle_departure`]), times that have come ([`Connection::handle_timeout`]),
//! errors of the network. It takes out what is to be done: segments
//! ([`Connection::poll_transmit`]), the next time ([`Connection::poll_timeout`]), buffers that are
//! free ([`Connection::poll_released`]). Each call invalidates the results of earlier polls.
//!
//! The program writes by handing over a buffer that holds at most [`Connection::mss`] bytes, and
//! reads the parts of received buffers. A buffer belongs to the connection from the call that
//! passes it in until it is released.

mod acknowledging;
mod arrival;
#[cfg(any(test, fuzzing))]
mod edges;
mod moving;
mod output;
mod path_mtu;
pub(crate) mod time_wait;
mod timeouts;

use std::sync::Arc;
use std::time::Duration;

use acknowledging::Acks;
#[cfg(any(test, fuzzing))]
pub(crate) use edges::Edges;
pub use output::{Token, Transmit};

use crate::buffer::{Handle, Slice};
use crate::config::{Config, Keepalive};
use crate::header::{Options, Seq};
use crate::receive_queue::ReceiveQueue;
use crate::sender::{HeldBack, Sender, SenderConfig};
use crate::time::Instant;

/// The state of a connection (RFC 9293, section 3.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A SYN was sent, or is to be sent.
    SynSent,
    /// A SYN was received and answered.
    SynReceived,
    /// Both ends may send.
    Established,
    /// This end has shut down; the FIN is not acknowledged.
    FinWait1,
    /// This end has shut down; the peer may still send.
    FinWait2,
    /// The peer has shut down; this end may still send.
    CloseWait,
    /// Both ends have shut down at the same time; the FIN is not acknowledged.
    Closing,
    /// The peer shut down, then this end; the FIN is not acknowledged.
    LastAck,
    /// Both ends have shut down; late segments of the connection may arrive.
    TimeWait,
    /// The connection does not exist any more.
    Closed,
}

/// Why a connection ended before both ends had shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The peer refused the connection.
    #[error("the peer refused the connection")]
    Refused,
    /// The peer reset the connection.
    #[error("the peer reset the connection")]
    Reset,
    /// The peer acknowledged nothing for the user timeout, or did not answer the handshake.
    #[error("the peer did not respond for {} s", .0.as_secs())]
    TimedOut(Duration),
    /// The peer did not answer keepalive probes.
    #[error("the peer did not answer {0} keepalive probes")]
    KeepaliveFailed(u32),
    /// The network reported that the peer cannot be reached, during the handshake.
    #[error("the network cannot reach the peer")]
    Unreachable,
    /// The program aborted the connection.
    #[error("the program aborted the connection")]
    Aborted,
}

/// Why a connection did not accept a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The program has shut down this end.
    #[error("the connection's sending end is shut down")]
    ShutDown,
    /// The connection has ended.
    #[error(transparent)]
    Closed(#[from] CloseReason),
    /// The buffer is empty, or holds more than one segment.
    #[error("a buffer of {length} bytes: 1 to {most} are possible")]
    Length {
        /// Bytes in the buffer.
        length: u32,
        /// The largest payload of a segment.
        most: u32,
    },
}

/// The ports and the first sequence number of a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The local port.
    pub local_port: u16,
    /// The peer's port.
    pub remote_port: u16,
    /// The initial sequence number. Make it by RFC 6528, so that no third host can guess it.
    pub initial_seq: Seq,
    /// Added to the clock of timestamps. Make it from a secret too (RFC 7323, section 5.4).
    pub timestamp_offset: u32,
}

/// A connection. See the module.
#[derive(Debug)]
pub struct Connection {
    /// Shared with the other connections of a listener, until it is changed.
    config: Arc<Config>,
    identity: Identity,
    state: State,
    reason: Option<CloseReason>,
    /// The peer's initial sequence number.
    peer_seq: Seq,
    /// The connection was opened by this end.
    is_active: bool,
    sender: Sender,
    receiver: ReceiveQueue,
    acks: Acks,
    /// Bytes of payload for which the caller has empty buffers.
    room: u64,
    /// Number of parts that may wait behind a gap.
    longest_early: usize,
    /// The peer's timestamp to be echoed; `None`: timestamps are not in use.
    peer_timestamp: Option<PeerTimestamp>,
    /// Largest payload of a segment that the peer accepts, in bytes.
    peer_mss: u32,
    /// Largest payload received.
    largest_received: u32,
    /// The peer acknowledges selectively, and so does this end.
    sack: bool,
    /// Both ends scale their windows: by these numbers of bits, the peer and this end.
    scales: bool,
    peer_scale: u8,
    own_scale: u8,
    /// The position that the last acknowledgement named.
    last_ack: u64,
    ecn: bool,
    /// Marks are echoed until the peer says that it has reduced its window.
    echo_marks: bool,
    /// The program has shut down its sending end.
    shut_down: bool,
    /// The program has closed the connection: what arrives cannot be delivered.
    closed: bool,
    /// A reset is to be sent.
    reset_due: bool,
    /// A reset with this sequence number answers a segment that cannot belong to the connection.
    stray_reset: Option<Seq>,
    timers: timeouts::Timers,
    path: path_mtu::Path,
    released: Vec<Handle>,
    held_back: HeldBack,
    counters: Counters,
}

#[derive(Clone, Copy, Debug)]
struct PeerTimestamp {
    /// TS.Recent of RFC 7323.
    value: u32,
    /// When it was received.
    at: Instant,
}

impl PeerTimestamp {
    /// True if a segment with this timestamp is an old duplicate (RFC 7323, section 5). After 24
    /// days without a segment the recent value says nothing (section 5.5).
    fn makes_old(&self, value: u32, now: Instant) -> bool {
        let is_earlier = (value.wrapping_sub(self.value) as i32) < 0;
        is_earlier && now.since(self.at) <= LONGEST_PAWS_IDLE
    }
}

/// What a connection has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Segments given out by [`Connection::poll_transmit`].
    pub segments_sent: u64,
    /// Segments received for this connection.
    pub segments_received: u64,
    /// Payload bytes that the peer has acknowledged.
    pub bytes_acknowledged: u64,
    /// Payload bytes received in order.
    pub bytes_received: u64,
    /// Segments given out again.
    pub retransmitted: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Segments outside of the window, or with an impossible acknowledgement.
    pub unacceptable: u64,
    /// Segments that timestamps showed to be old (PAWS).
    pub old_timestamps: u64,
    /// Payloads for which there was no room.
    pub without_room: u64,
}

/// The present state of a connection, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// The state.
    pub state: State,
    /// Why the connection ended; `None` while it exists, or if both ends shut down.
    pub reason: Option<CloseReason>,
    /// The congestion window in bytes.
    pub congestion_window: u32,
    /// The slow start threshold in bytes.
    pub threshold: u32,
    /// Bytes in flight.
    pub in_flight: u32,
    /// The peer's window in bytes.
    pub peer_window: u32,
    /// The smoothed round trip; `None` before the first measurement.
    pub rtt: Option<Duration>,
    /// The retransmission timeout.
    pub timeout: Duration,
    /// Largest payload of a segment in bytes.
    pub mss: u32,
    /// What held the sender back when it was last asked for a segment.
    pub held_back: HeldBack,
    /// The counters.
    pub counters: Counters,
}

impl Connection {
    /// A connection that this end opens. Its first segment is a SYN.
    pub fn connect(now: Instant, identity: Identity, config: impl Into<Arc<Config>>) -> Connection {
        Connection::new(now, identity, config.into(), State::SynSent)
    }

    fn new(now: Instant, identity: Identity, config: Arc<Config>, state: State) -> Connection {
        // What is written before the handshake leaves room for the options that may be agreed on.
        let options = match config.timestamps {
            true => Options::TIMESTAMPS_LENGTH as u32,
            false => u32::from(config.padding),
        };
        let mut sender = Sender::new(SenderConfig {
            algorithm: config.algorithm,
            limits: config.timeout_limits,
            mss: config.mss.saturating_sub(options).max(1),
            no_delay: config.no_delay,
        });
        sender.queue.push_syn();
        let window = config
            .room
            .min(config.largest_window)
            .min(u32::from(u16::MAX));
        let room = u64::from(config.room);
        let acks = Acks::new(config.quick, config.ack_delay);
        Connection {
            peer_mss: config.mss,
            config,
            identity,
            state,
            reason: None,
            peer_seq: Seq::default(),
            is_active: state == State::SynSent,
            sender,
            receiver: ReceiveQueue::new(window),
            acks,
            room,
            longest_early: DEFAULT_EARLY,
            peer_timestamp: None,
            largest_received: 0,
            sack: false,
            scales: false,
            peer_scale: 0,
            own_scale: 0,
            last_ack: 0,
            ecn: false,
            echo_marks: false,
            shut_down: false,
            closed: false,
            reset_due: false,
            stray_reset: None,
            timers: timeouts::Timers::new(now),
            path: path_mtu::Path::default(),
            released: Vec::new(),
            held_back: HeldBack::Program,
            counters: Counters::default(),
        }
    }

    /// The state.
    pub fn state(&self) -> State {
        self.state
    }

    /// Why the connection ended; `None` while it exists, or if both ends shut down.
    pub fn reason(&self) -> Option<CloseReason> {
        self.reason
    }

    /// True once the handshake is complete, also after the end.
    pub fn is_synchronized(&self) -> bool {
        !matches!(self.state, State::SynSent | State::SynReceived)
    }

    /// True if neither end will send or receive anything any more, and all is acknowledged or
    /// given up. The connection can be dropped, once its buffers were taken back.
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed && !self.reset_due && self.stray_reset.is_none()
    }

    /// True if the peer needs no reset if this end disappears now: both ends have shut down and
    /// have acknowledged that, or the peer has reset the connection.
    pub fn is_over(&self) -> bool {
        let peer_ended = matches!(
            self.reason,
            None | Some(CloseReason::Reset | CloseReason::Refused)
        );
        match self.state {
            State::TimeWait => true,
            State::Closed => peer_ended && !self.reset_due,
            _ => false,
        }
    }

    /// True if the peer has acknowledged nothing for two timeouts or more.
    pub fn is_silent(&self) -> bool {
        self.sender.rtt.backoffs() >= 2 && self.state != State::Closed
    }

    /// Largest payload of a segment, in bytes. It changes with the path's MTU.
    pub fn mss(&self) -> u32 {
        self.sender.mss()
    }

    /// The ports and the first sequence number.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// The parameters.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The parameters, to be changed for this connection alone.
    fn own_config(&mut self) -> &mut Config {
        Arc::make_mut(&mut self.config)
    }

    /// Sets how many bytes of payload the caller has empty buffers for. What was promised to the
    /// peer before stays promised.
    pub fn set_room(&mut self, room: u64) {
        self.room = room;
        self.window_may_open();
    }

    /// Sets how many parts may wait behind a gap. Each takes one buffer.
    pub fn set_longest_early(&mut self, parts: usize) {
        self.longest_early = parts;
    }

    /// Switches Nagle's algorithm off or on.
    pub fn set_no_delay(&mut self, no_delay: bool) {
        self.own_config().no_delay = no_delay;
        self.sender.set_no_delay(no_delay);
    }

    /// Acknowledges each segment at once, or not.
    pub fn set_quick(&mut self, quick: bool) {
        self.own_config().quick = quick;
        self.acks.set_quick(quick);
    }

    /// Sets the probes of an idle connection.
    pub fn set_keepalive(&mut self, now: Instant, keepalive: Option<Keepalive>) {
        self.own_config().keepalive = keepalive;
        self.rearm_keepalive(now);
    }

    /// Sets the user timeout.
    pub fn set_user_timeout(&mut self, timeout: Duration) {
        self.own_config().user_timeout = timeout;
    }

    /// Hands over a buffer with `length` bytes of payload, to be sent. Before the handshake is
    /// complete the data waits.
    ///
    /// # Errors
    /// If the connection has ended or was shut down, or the buffer is empty or holds more than
    /// [`Connection::mss`] bytes. The buffer is the caller's then.
    pub fn write(&mut self, handle: Handle, length: u32) -> Result<(), WriteError> {
        self.check_writable()?;
        let most = self.mss();
        if length == 0 || length > most {
            return Err(WriteError::Length { length, most });
        }
        self.sender.queue.push_payload(Slice {
            handle,
            offset: 0,
            length,
        });
        Ok(())
    }

    /// True if payload that was never sent could leave now: neither the congestion window nor the
    /// peer's holds it back.
    pub fn could_send_new(&self) -> bool {
        self.is_synchronized() && self.sender.could_send_new()
    }

    /// The last buffer that was handed over, if nothing of it was sent and it holds less than
    /// [`Connection::mss`] bytes. The caller may add bytes behind its end ([`Connection::extend`]).
    pub fn last_unsent(&self) -> Option<Slice> {
        let last = self.sender.queue.last_unsent()?;
        (last.length < self.mss()).then_some(last)
    }

    /// Tells that the caller has added `more` bytes to the buffer of [`Connection::last_unsent`].
    ///
    /// # Errors
    /// As [`Connection::write`], or if no buffer can take the bytes.
    pub fn extend(&mut self, more: u32) -> Result<(), WriteError> {
        self.check_writable()?;
        let held = self.last_unsent().map_or(self.mss(), |last| last.length);
        let most = self.mss() - held;
        if more == 0 || more > most {
            return Err(WriteError::Length { length: more, most });
        }
        self.sender.queue.extend_last(more);
        Ok(())
    }

    /// Why [`Connection::write`] accepts no buffer.
    ///
    /// # Errors
    /// If the connection has ended or was shut down.
    pub fn check_writable(&self) -> Result<(), WriteError> {
        if let Some(reason) = self.reason {
            return Err(reason.into());
        }
        match self.shut_down || self.state == State::Closed {
            true => Err(WriteError::ShutDown),
            false => Ok(()),
        }
    }

    /// True if [`Connection::write`] accepts a buffer: the connection has not ended and was not
    /// shut down.
    pub fn accepts_data(&self) -> bool {
        self.check_writable().is_ok()
    }

    /// Bytes and control bits that were written and that the peer has not acknowledged.
    pub fn unacknowledged(&self) -> u64 {
        self.sender.queue.end() - self.sender.queue.una()
    }

    /// Number of buffers with written data.
    pub fn send_buffers(&self) -> usize {
        self.sender.queue.count()
    }

    /// Bytes that can be read.
    pub fn readable(&self) -> u64 {
        self.receiver.readable()
    }

    /// True if the peer has shut down, and everything that it sent has been read.
    pub fn is_finished(&self) -> bool {
        self.receiver.is_finished() && self.receiver.readable() == 0
    }

    /// The first part that can be read.
    pub fn front(&self) -> Option<Slice> {
        self.receiver.front()
    }

    /// The parts that can be read, in order.
    pub fn parts(&self) -> impl Iterator<Item = Slice> {
        self.receiver.parts()
    }

    /// Consumes `length` bytes of the first part. Its buffer is released when nothing is left of
    /// it.
    ///
    /// # Panics
    /// If the first part has fewer bytes.
    pub fn consume(&mut self, length: u32) {
        if let Some(handle) = self.receiver.consume(length) {
            self.released.push(handle);
        }
        self.window_may_open();
    }

    /// The last two parts that can be read, `(to, from)`, if the second fits behind the first in a
    /// buffer of `capacity` bytes of payload. The caller must copy `from` behind the end of `to`
    /// before its next call; they count as one part, and the buffer of `from` is released. So
    /// short segments do not use up the buffers.
    pub fn merge_last(&mut self, capacity: u32) -> Option<(Slice, Slice)> {
        let (to, from) = self.receiver.merge_last(capacity)?;
        self.released.push(from.handle);
        Some((to, from))
    }

    /// Moves received payload together, so that buffers become free: what was promised to the peer
    /// counts on full ones. Passes parts that follow each other to `copy`, which must copy the
    /// second behind the end of the first. A buffer has room for `capacity` bytes.
    pub fn compact(&mut self, capacity: u32, copy: impl FnMut(Slice, Slice)) {
        let released = &mut self.released;
        self.receiver
            .compact(capacity, copy, |handle| released.push(handle));
    }

    /// A buffer that is free: its data is acknowledged or given up, or has been read. The driver
    /// may still have it, if it was handed over and has not departed.
    pub fn poll_released(&mut self) -> Option<Handle> {
        self.released.pop()
    }

    /// Shuts down the sending end: a FIN follows what was written.
    pub fn shut_down(&mut self) {
        if self.shut_down || self.state == State::Closed {
            return;
        }
        self.shut_down = true;
        match self.state {
            // The FIN follows the handshake.
            State::SynSent | State::SynReceived => self.sender.queue.push_fin(),
            State::Established => {
                self.sender.queue.push_fin();
                self.state = State::FinWait1;
            }
            State::CloseWait => {
                self.sender.queue.push_fin();
                self.state = State::LastAck;
            }
            _ => {}
        }
    }

    /// Closes the connection: shuts down the sending end, and gives up what arrives. If received
    /// data was not read, or arrives later, the connection is reset (RFC 9293, section 3.6.1).
    pub fn close(&mut self, now: Instant) {
        if self.closed {
            return;
        }
        self.closed = true;
        // RFC 9293, section 3.10.4: the peer may know nothing of the connection.
        if self.state == State::SynSent {
            self.end(None);
            return;
        }
        if self.receiver.readable() > 0 && self.state != State::Closed {
            self.abort();
            return;
        }
        self.shut_down();
        if self.state == State::FinWait2 {
            self.timers.set_ending(Some(now + self.config.fin_wait_2));
        }
    }

    /// Ends the connection at once, with a reset to the peer if it knows the connection.
    pub fn abort(&mut self) {
        if self.state == State::Closed {
            return;
        }
        let peer_knows = !matches!(self.state, State::SynSent | State::TimeWait);
        self.end(Some(CloseReason::Aborted));
        self.reset_due = peer_knows;
    }

    /// The driver, or the kernel, ended the flow of the connection: nothing can be sent any more.
    pub fn cut_off(&mut self) {
        self.abort();
        self.reset_due = false;
    }

    /// Ends TIME_WAIT early: a new connection of the peer replaces this one. What was received can
    /// still be read.
    pub(crate) fn expire(&mut self) {
        if self.state == State::TimeWait {
            self.end(None);
        }
    }

    /// Ends the connection, and releases all buffers except those with data to be read.
    fn end(&mut self, reason: Option<CloseReason>) {
        self.state = State::Closed;
        self.reason = self.reason.or(reason);
        let released = &mut self.released;
        self.sender.stop(|handle| released.push(handle));
        // What came in order before the peer's reset can still be read; after an abort nobody
        // reads.
        if self.closed || reason == Some(CloseReason::Aborted) {
            self.receiver.clear(|handle| released.push(handle));
        } else {
            self.receiver.clear_early(|handle| released.push(handle));
        }
        self.timers.stop();
        self.acks.stop();
    }

    /// Releases all buffers: the connection will be dropped.
    pub(crate) fn give_up_buffers(&mut self) {
        let released = &mut self.released;
        self.sender.stop(|handle| released.push(handle));
        self.receiver.clear(|handle| released.push(handle));
    }

    /// The present state, for people.
    pub fn info(&self) -> Info {
        Info {
            state: self.state,
            reason: self.reason,
            congestion_window: self.sender.congestion.window(),
            threshold: self.sender.congestion.threshold(),
            in_flight: self.sender.queue.in_flight(),
            peer_window: self.sender.window(),
            rtt: self.sender.rtt.smoothed(),
            timeout: self.sender.rtt.rto(),
            mss: self.mss(),
            held_back: self.held_back,
            counters: self.counters(),
        }
    }

    /// What the connection has counted.
    pub fn counters(&self) -> Counters {
        Counters {
            retransmitted: self.sender.retransmitted,
            timeouts: self.sender.timeouts,
            ..self.counters
        }
    }

    /// The position of an own sequence number, near the acknowledged ones. Negative: before the
    /// SYN.
    fn own_position(&self, seq: Seq) -> i64 {
        let una = self.sender.queue.una();
        // Positions stay far below 2^63.
        una as i64 + i64::from(seq.distance_from(self.own_seq(una)))
    }

    /// The position of a sequence number of the peer, near the next expected one.
    fn peer_position(&self, seq: Seq) -> i64 {
        let next = self.receiver.next();
        next as i64 + i64::from(seq.distance_from(self.peer_seq_at(next)))
    }

    /// The own sequence number at a position.
    fn own_seq(&self, position: u64) -> Seq {
        self.identity.initial_seq.add(position as u32)
    }

    /// The peer's sequence number at a position.
    fn peer_seq_at(&self, position: u64) -> Seq {
        self.peer_seq.add(position as u32)
    }

    /// The next expected sequence number of the peer; `None` before the peer's SYN has arrived.
    pub fn expected_seq(&self) -> Option<Seq> {
        let next = self.receiver.next();
        (self.state != State::SynSent).then(|| self.peer_seq_at(next))
    }
}

/// RFC 7323, section 5.5.
const LONGEST_PAWS_IDLE: Duration = Duration::from_secs(24 * 24 * 60 * 60);
/// Parts that may wait behind a gap, unless the caller sets another number.
const DEFAULT_EARLY: usize = 256;

//! A connection and everything that can happen to it: segments of any kind near the edges of its
//! windows, calls of the program, departures, and time.
//!
//! An input is a sequence of operations of [`OPERATION`] bytes each. The first byte says what
//! happens, the others are its numbers. The first operation decides how the connection begins.

use std::collections::HashSet;
use std::time::Duration;

use crate::buffer::{Handle, Slice};
use crate::config::{Config, Keepalive};
use crate::connection::{Connection, Identity, State, Token};
use crate::header::{Flags, Header, SackBlock, Seq, Timestamps};
use crate::time::Instant;

/// Runs an input. Returns the last state, or the reason for the end: `synsent`, `synreceived`,
/// `established`, `finwait1`, `finwait2`, `closewait`, `closing`, `lastack`, `timewait`, `closed`,
/// `refused`, `reset`, `timedout`, `keepalivefailed`, `unreachable`, `aborted`, and `nothing` for
/// an input without an operation.
///
/// # Panics
/// If a buffer is released twice or never, a queue's counters are wrong, a window is promised
/// beyond the room, or a call gives out segments without end.
pub fn outcome_of(bytes: &[u8]) -> String {
    let mut operations = bytes.chunks_exact(OPERATION);
    let Some(first) = operations.next() else {
        return "nothing".to_owned();
    };
    let mut trial = Trial::new(first);
    for operation in operations.take(LONGEST) {
        trial.operate(operation);
        trial.check();
    }
    let name = match trial.connection.reason() {
        Some(reason) => format!("{reason:?}"),
        None => format!("{:?}", trial.connection.state()),
    };
    let name = name.to_lowercase();
    trial.end();
    name.split('(').next().unwrap_or_default().to_owned()
}

struct Trial {
    now: Instant,
    connection: Connection,
    next_handle: u32,
    /// The buffers that the connection has.
    held: HashSet<Handle>,
    tokens: Vec<Token>,
}

impl Trial {
    fn new(first: &[u8]) -> Trial {
        let now = Instant::from_nanos(1_000_000_000);
        let bit = |at: u8| first[1] >> at & 1 == 1;
        let config = Config {
            sack: bit(0),
            timestamps: bit(1),
            window_scaling: bit(2),
            ecn: bit(3),
            no_delay: bit(4),
            quick: bit(5),
            keepalive: bit(6).then_some(Keepalive {
                idle: Duration::from_secs(1),
                interval: Duration::from_secs(1),
                probes: 2,
            }),
            mss: u32::from(first[2]) * 8 + 40,
            room: u32::from(first[3]) * 64,
            user_timeout: Duration::from_secs(20),
            connect_timeout: Duration::from_secs(10),
            ..Config::default()
        };
        let identity = Identity {
            local_port: 1,
            remote_port: 2,
            initial_seq: Seq(u32::MAX - 300),
            timestamp_offset: u32::MAX - 100,
        };
        let connection = match bit(7) {
            true => Connection::connect(now, identity, config),
            false => {
                let mut syn = Header {
                    flags: Flags(Flags::SYN.0 | first[4] & (Flags::ECE | Flags::CWR).0),
                    seq: Seq(u32::MAX - 200),
                    window: u16::from_be_bytes([first[5], first[6]]),
                    ..Header::default()
                };
                syn.options.mss = (first[4] & 1 == 1).then_some(u16::from(first[7]) * 8);
                syn.options.window_scale = (first[4] & 2 == 2).then_some(first[8] & 15);
                syn.options.sack_permitted = first[4] & 4 == 4;
                syn.options.timestamps = (first[4] & 8 == 8).then_some(Timestamps::default());
                Connection::accept(now, identity, config, &syn)
            }
        };
        Trial {
            now,
            connection,
            next_handle: 0,
            held: HashSet::new(),
            tokens: Vec::new(),
        }
    }

    fn operate(&mut self, operation: &[u8]) {
        let number = u16::from_be_bytes([operation[2], operation[3]]);
        let word = u32::from(number);
        match operation[0] % 16 {
            0..=5 => self.receive(operation),
            6 => self.write(word),
            7 => self.read(word),
            8 => self.now = self.now + Duration::from_micros(u64::from(word) * 100),
            9 => self.connection.set_room(u64::from(word)),
            10 => self.transmit(usize::from(operation[1] % 8)),
            11 => {
                if let Some(token) = self.tokens.pop() {
                    let again = operation[1] & 1 == 1;
                    self.connection.handle_unsent(token, self.now, again);
                }
            }
            12 => {
                self.now = self
                    .connection
                    .poll_timeout()
                    .unwrap_or(self.now)
                    .max(self.now)
            }
            13 => self.connection.set_path_mss(word.max(1)),
            14 => {
                let near = self.near(operation[4], word, true);
                self.connection.handle_unreachable(near);
            }
            _ => self.program(operation[1]),
        }
        self.connection.handle_timeout(self.now);
    }

    fn program(&mut self, what: u8) {
        match what % 8 {
            0 => self.connection.shut_down(),
            1 => self.connection.close(self.now),
            2 => self.connection.abort(),
            3 => self.connection.cut_off(),
            4 => self.connection.set_no_delay(what & 8 == 8),
            5 => self.connection.set_quick(what & 8 == 8),
            6 => self.connection.set_longest_early(usize::from(what >> 3)),
            _ if what & 8 == 8 => self.connection.compact(4096, |_, _| ()),
            _ => drop(self.connection.merge_last(4096)),
        }
    }

    /// A sequence number near one of the edges, or far away: the peer's next one, or the first of
    /// ours that is not acknowledged (`own`).
    fn near(&self, how: u8, number: u32, own: bool) -> Seq {
        let (next, una) = self.connection.edges();
        let base = if own { una } else { next };
        match how % 4 {
            0 => base.add(number & 3),
            1 => base.add(number),
            2 => base.add(number.wrapping_neg()),
            _ => Seq(number << 16),
        }
    }

    fn receive(&mut self, operation: &[u8]) {
        let be16 = |at: usize| u32::from(u16::from_be_bytes([operation[at], operation[at + 1]]));
        let mut header = Header {
            source: 2,
            destination: 1,
            flags: Flags(operation[1]),
            seq: self.near(operation[4] & 3, be16(2), false),
            ack: self.near(operation[4] >> 2 & 3, be16(5), true),
            window: u16::from_be_bytes([operation[7], operation[8]]),
            ..Header::default()
        };
        let options = operation[4] >> 4;
        if options & 1 == 1 {
            let clock = self.connection.peer_clock();
            header.options.timestamps = Some(Timestamps {
                value: clock.wrapping_add(i32::from(operation[9] as i8) as u32),
                echo: be16(9),
            });
        }
        for block in 0..usize::from(options >> 1 & 3) {
            let left = self.near(1, be16(5 + block), true);
            header.options.sack.push(SackBlock {
                left,
                right: left.add(u32::from(operation[10]) * 16),
            });
        }
        if header.flags.has(Flags::SYN) {
            header.options.mss = Some(u16::from(operation[9]) * 8);
            header.options.window_scale = (options & 8 == 8).then_some(operation[10] & 15);
            header.options.sack_permitted = options & 4 == 4;
        }
        let length = u32::from(operation[11]) * 8;
        let handle = self.handle();
        let payload = (length > 0).then_some(Slice {
            handle,
            offset: 0,
            length,
        });
        let marked = operation[0] & 128 == 128;
        if self
            .connection
            .handle_segment(self.now, &header, payload, marked)
        {
            assert!(payload.is_some(), "a segment without payload is kept");
            self.held.insert(handle);
        }
    }

    fn write(&mut self, number: u32) {
        let most = self.connection.mss();
        let length = number % most + 1;
        if let Some(last) = self.connection.last_unsent() {
            let more = length.min(most - last.length);
            if self.connection.extend(more).is_ok() {
                return;
            }
        }
        let handle = self.handle();
        if self.connection.write(handle, length).is_ok() {
            self.held.insert(handle);
        }
    }

    fn read(&mut self, number: u32) {
        if let Some(part) = self.connection.front() {
            self.connection.consume(number % part.length + 1);
        }
    }

    /// The driver takes segments; of the last one it does not report the departure yet.
    fn transmit(&mut self, keeps: usize) {
        for count in 0.. {
            assert!(count < MOST_SEGMENTS, "segments without end");
            let Some(transmit) = self.connection.poll_transmit(self.now) else {
                break;
            };
            let mut bytes = [0; 64];
            transmit.header.write(&mut bytes);
            if let Some(part) = transmit.payload {
                assert!(
                    self.held.contains(&part.handle),
                    "a released buffer is sent"
                );
            }
            self.tokens.extend(transmit.token);
        }
        while self.tokens.len() > keeps {
            let token = self.tokens.remove(0);
            self.connection.handle_departure(token, self.now);
        }
    }

    fn handle(&mut self) -> Handle {
        self.next_handle += 1;
        Handle(self.next_handle)
    }

    fn check(&mut self) {
        while let Some(handle) = self.connection.poll_released() {
            assert!(self.held.remove(&handle), "{handle:?} is released twice");
        }
        self.connection.invariants();
        if self.connection.state() == State::Closed {
            assert_eq!(
                self.connection.poll_timeout(),
                None,
                "a timer of a closed connection"
            );
        }
    }

    /// After an abort nothing is left.
    fn end(&mut self) {
        self.connection.abort();
        while let Some(part) = self.connection.front() {
            self.connection.consume(part.length);
        }
        self.transmit(0);
        self.check();
        assert!(self.held.is_empty(), "buffers are left: {:?}", self.held);
    }
}

/// Bytes of an operation.
const OPERATION: usize = 12;
/// Operations of an input; later ones are ignored.
const LONGEST: usize = 2000;
/// More segments than any window of an input has.
const MOST_SEGMENTS: usize = 100_000;

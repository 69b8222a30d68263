//! Two connections and a wire between them in virtual time, for tests.
//!
//! Each end has a program that writes a known pattern and checks what it reads, a driver that
//! sends at a rate and reports departures, and a limited number of buffers. The wire delays,
//! loses, duplicates, reorders and damages segments at random, from a seed; or a rule of the test
//! decides about each segment.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use crate::buffer::{Handle, Slice};
use crate::config::Config;
use crate::connection::{Connection, Identity, State, Token, Transmit};
use crate::header::{Flags, Header, SackBlock, Seq, Timestamps};
use crate::time::Instant;

/// The byte of the pattern at a position of the stream.
pub(crate) fn pattern(position: u64) -> u8 {
    (position.wrapping_mul(2_654_435_761) >> 13) as u8
}

/// A generator of random numbers (xorshift64*).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound.max(1)
    }

    /// True in `per_mille` of 1,000 cases.
    pub(crate) fn happens(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }
}

/// What the wire does to segments, in both directions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wire {
    pub(crate) delay: Duration,
    /// Added to the delay, at random: segments overtake each other.
    pub(crate) jitter: Duration,
    /// Of 1,000 segments.
    pub(crate) loss: u64,
    pub(crate) duplicates: u64,
    /// Bytes per second of a bottleneck; 0: none.
    pub(crate) rate: u64,
    /// Bytes that the bottleneck's queue takes.
    pub(crate) queue: u64,
}

/// One end.
pub(crate) struct End {
    pub(crate) connection: Connection,
    written: HashMap<Handle, Vec<u8>>,
    received: HashMap<Handle, Vec<u8>>,
    next_handle: u32,
    /// Number of buffers for received payload.
    pub(crate) buffers: usize,
    /// Number of buffers for written data.
    pub(crate) send_buffers: usize,
    /// Bytes that the program wants to write; then it shuts down, if `shuts_down`.
    pub(crate) wants: u64,
    pub(crate) shuts_down: bool,
    /// Bytes in one write.
    pub(crate) chunk: u32,
    pub(crate) wrote: u64,
    pub(crate) read: u64,
    /// The program reads.
    pub(crate) reads: bool,
    /// Bytes per second that the driver sends; 0: at once.
    pub(crate) contract: u64,
    ring: VecDeque<(Vec<u8>, Option<Token>)>,
    free_at: Instant,
    /// Where the bottleneck is free again.
    wire_free_at: Instant,
    /// The segments that the driver sent.
    pub(crate) sent: u64,
}

/// A segment on the wire.
struct Flying {
    to: usize,
    bytes: Vec<u8>,
}

/// Decides about a segment: from which end, its header, its payload; false: lost.
type Rule = Box<dyn FnMut(Instant, usize, &Header, usize) -> bool>;

/// A segment that no end sent. Its numbers count from those that its receiver expects.
#[derive(Clone, Debug)]
pub(crate) struct Hostile {
    pub(crate) seq: i32,
    pub(crate) ack: i32,
    pub(crate) timestamp: Option<i32>,
    pub(crate) window: u16,
    pub(crate) flags: u8,
    pub(crate) blocks: Vec<(i32, i32)>,
    pub(crate) payload: usize,
}

/// Two ends and the wire between them.
pub(crate) struct Pair {
    pub(crate) now: Instant,
    pub(crate) ends: [Option<End>; 2],
    pub(crate) configs: [Config; 2],
    pub(crate) wire: Wire,
    pub(crate) rule: Option<Rule>,
    random: Random,
    flying: BTreeMap<(Instant, u64), Flying>,
    count: u64,
    /// Headers of all departures, if a test wants them.
    pub(crate) log: Option<Vec<(Instant, usize, Header, usize)>>,
}

pub(crate) fn identity(end: usize) -> Identity {
    Identity {
        local_port: 1000 + end as u16,
        remote_port: 1001 - end as u16,
        // The sequence numbers wrap early in the stream.
        initial_seq: Seq(u32::MAX - 2000 * end as u32 - 1000),
        timestamp_offset: u32::MAX - 50,
    }
}

impl End {
    pub(crate) fn new(connection: Connection) -> End {
        End {
            connection,
            written: HashMap::new(),
            received: HashMap::new(),
            next_handle: 0,
            buffers: 256,
            send_buffers: 256,
            wants: 0,
            shuts_down: false,
            chunk: 4000,
            wrote: 0,
            read: 0,
            reads: true,
            contract: 0,
            ring: VecDeque::new(),
            free_at: Instant::ZERO,
            wire_free_at: Instant::ZERO,
            sent: 0,
        }
    }

    fn handle(&mut self) -> Handle {
        self.next_handle += 1;
        Handle(self.next_handle)
    }

    /// The program writes, reads, and gives buffers back.
    pub(crate) fn program(&mut self) {
        while self.wrote < self.wants && self.written.len() < self.send_buffers {
            let left = (self.wants - self.wrote).min(u64::from(self.chunk)) as u32;
            if let Some(last) = self.connection.last_unsent() {
                let more = left.min(self.connection.mss() - last.length);
                let bytes: Vec<u8> = (0..more)
                    .map(|at| pattern(self.wrote + u64::from(at)))
                    .collect();
                if self.connection.extend(more).is_ok() {
                    self.written.get_mut(&last.handle).unwrap().extend(bytes);
                    self.wrote += u64::from(more);
                    continue;
                }
            }
            let length = left.min(self.connection.mss());
            let handle = self.handle();
            if self.connection.write(handle, length).is_err() {
                break;
            }
            let bytes = (0..length)
                .map(|at| pattern(self.wrote + u64::from(at)))
                .collect();
            self.written.insert(handle, bytes);
            self.wrote += u64::from(length);
        }
        if self.wrote == self.wants && self.shuts_down {
            self.connection.shut_down();
        }
        while self.reads {
            let Some(part) = self.connection.front() else {
                break;
            };
            let bytes = &self.received[&part.handle][part.offset as usize..part.end() as usize];
            for (at, byte) in bytes.iter().enumerate() {
                let position = self.read + at as u64;
                assert_eq!(*byte, pattern(position), "a wrong byte at {position}");
            }
            self.read += u64::from(part.length);
            self.connection.consume(part.length);
        }
        self.take_released();
    }

    /// The segment on the wire, without an IP header.
    pub(crate) fn bytes_of(&self, transmit: &Transmit) -> Vec<u8> {
        let mut bytes = vec![0; transmit.header.length()];
        transmit.header.write(&mut bytes);
        if let Some(payload) = transmit.payload {
            let written = &self.written[&payload.handle];
            bytes.extend(&written[payload.offset as usize..payload.end() as usize]);
            assert!(bytes.len() <= 1480, "a segment of {} bytes", bytes.len());
        }
        bytes
    }

    fn take_released(&mut self) {
        while let Some(handle) = self.connection.poll_released() {
            let known =
                self.written.remove(&handle).is_some() || self.received.remove(&handle).is_some();
            assert!(known, "{handle:?} was released twice");
        }
        // A buffer stays free for the segment that fills the first gap.
        self.connection
            .set_longest_early(self.buffers.saturating_sub(2));
        let free = self.buffers.saturating_sub(self.received.len());
        self.connection.set_room(free as u64 * 1460);
        self.connection.invariants();
    }

    pub(crate) fn receive(&mut self, now: Instant, bytes: &[u8]) {
        let (header, offset) = Header::parse(bytes).unwrap();
        let payload = &bytes[offset..];
        let handle = self.handle();
        let slice = Slice {
            handle,
            offset: 0,
            length: payload.len() as u32,
        };
        let slice = (!payload.is_empty()).then_some(slice);
        let stored = match self.received.len() < self.buffers {
            true => slice,
            false => None,
        };
        // Without a buffer the segment is lost, as in the driver.
        if stored.is_none() && slice.is_some() {
            return;
        }
        if self.connection.handle_segment(now, &header, stored, false) {
            self.received.insert(handle, payload.to_vec());
        }
        let received = &mut self.received;
        while let Some((to, from)) = self.connection.merge_last(CAPACITY) {
            append(received, to, from);
        }
        if received.len() >= self.buffers {
            let copy = |to, from| append(received, to, from);
            self.connection.compact(CAPACITY, copy);
        }
        self.take_released();
    }

    /// Buffers that are in use.
    pub(crate) fn in_use(&self) -> (usize, usize) {
        (self.written.len(), self.received.len())
    }
}

/// Copies received bytes behind the end of a part.
fn append(received: &mut HashMap<Handle, Vec<u8>>, to: Slice, from: Slice) {
    let tail = received[&from.handle][from.offset as usize..from.end() as usize].to_vec();
    let whole = received.get_mut(&to.handle).unwrap();
    // What lies behind, of a part that moves inside its buffer, is copied again.
    whole.truncate(to.end() as usize);
    whole.extend(tail);
    assert!(
        whole.len() <= CAPACITY as usize,
        "{} bytes in a buffer",
        whole.len()
    );
}

impl Pair {
    /// End 0 will open a connection to end 1.
    pub(crate) fn new(seed: u64, wire: Wire, configs: [Config; 2]) -> Pair {
        let now = Instant::from_nanos(1_000_000_000);
        let first = End::new(Connection::connect(now, identity(0), configs[0]));
        Pair {
            now,
            ends: [Some(first), None],
            configs,
            wire,
            rule: None,
            random: Random::new(seed),
            flying: BTreeMap::new(),
            count: 0,
            log: None,
        }
    }

    /// Both ends, once the second one exists.
    pub(crate) fn end(&mut self, which: usize) -> &mut End {
        self.ends[which]
            .as_mut()
            .expect("the second end accepts the first SYN")
    }

    /// Runs until `until` says so, nothing happens any more, or the time is over. Returns true if
    /// `until` said so.
    pub(crate) fn run(&mut self, time: Duration, mut until: impl FnMut(&mut Pair) -> bool) -> bool {
        let limit = self.now + time;
        for _ in 0..20_000_000_u64 {
            self.work();
            if until(self) {
                return true;
            }
            let Some(next) = self.next_time() else {
                return false;
            };
            if next > limit {
                self.now = limit;
                return false;
            }
            self.now = self.now.max(next);
        }
        panic!("the connections do not come to rest");
    }

    fn next_time(&self) -> Option<Instant> {
        let arrival = self.flying.keys().next().map(|key| key.0);
        let ends = self.ends.iter().flatten().flat_map(|end| {
            let departs = (!end.ring.is_empty()).then_some(end.free_at);
            [end.connection.poll_timeout(), departs]
        });
        ends.chain([arrival]).flatten().min()
    }

    fn work(&mut self) {
        while let Some(entry) = self.flying.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let flying = entry.remove();
            self.arrive(flying);
        }
        for which in 0..2 {
            let Some(mut end) = self.ends[which].take() else {
                continue;
            };
            end.connection.handle_timeout(self.now);
            end.program();
            self.drive(which, &mut end);
            self.ends[which] = Some(end);
        }
    }

    /// The driver sends what it may, and takes further segments.
    fn drive(&mut self, which: usize, end: &mut End) {
        loop {
            while end.ring.len() < 4 {
                let Some(transmit) = end.connection.poll_transmit(self.now) else {
                    break;
                };
                let bytes = end.bytes_of(&transmit);
                if end.ring.is_empty() {
                    end.free_at = end.free_at.max(self.now);
                }
                end.ring.push_back((bytes, transmit.token));
            }
            if end.ring.is_empty() || end.free_at > self.now {
                break;
            }
            let (bytes, token) = end.ring.pop_front().unwrap();
            let bits = (bytes.len() as u64 + 34) * 1_000_000_000;
            if let Some(nanos) = bits.checked_div(end.contract) {
                end.free_at = self.now + Duration::from_nanos(nanos);
            }
            if let Some(token) = token {
                end.connection.handle_departure(token, self.now);
            }
            end.sent += 1;
            self.send(which, end, bytes);
        }
        end.take_released();
    }

    fn send(&mut self, from: usize, end: &mut End, bytes: Vec<u8>) {
        let (header, offset) = Header::parse(&bytes).unwrap();
        if let Some(log) = &mut self.log {
            log.push((self.now, from, header, bytes.len() - offset));
        }
        if let Some(rule) = &mut self.rule
            && !rule(self.now, from, &header, bytes.len() - offset)
        {
            return;
        }
        if self.random.happens(self.wire.loss) {
            return;
        }
        let mut at = self.now;
        if self.wire.rate > 0 {
            let time = |bytes: u64| Duration::from_nanos(bytes * 1_000_000_000 / self.wire.rate);
            let waiting = end.wire_free_at.since(self.now);
            if waiting > time(self.wire.queue) {
                return;
            }
            end.wire_free_at = end.wire_free_at.max(self.now) + time(bytes.len() as u64 + 34);
            at = end.wire_free_at;
        }
        let copies = 1 + u64::from(self.random.happens(self.wire.duplicates));
        for _ in 0..copies {
            let jitter = self.random.below(self.wire.jitter.as_nanos() as u64 + 1);
            let at = at + self.wire.delay + Duration::from_nanos(jitter);
            self.count += 1;
            let flying = Flying {
                to: 1 - from,
                bytes: bytes.clone(),
            };
            self.flying.insert((at, self.count), flying);
        }
    }

    fn arrive(&mut self, flying: Flying) {
        if self.ends[flying.to].is_none() {
            let (header, _) = Header::parse(&flying.bytes).unwrap();
            let config = self.configs[flying.to];
            let connection = Connection::accept(self.now, identity(flying.to), config, &header);
            self.ends[flying.to] = Some(End::new(connection));
            return;
        }
        let now = self.now;
        self.end(flying.to).receive(now, &flying.bytes);
    }

    /// Gives an end a segment that the other did not send. Its payload is what the other would have
    /// sent at that position, so that reading can go on.
    pub(crate) fn inject(&mut self, to: usize, hostile: Hostile) {
        let now = self.now;
        let Some(end) = self.ends[to].as_mut() else {
            return;
        };
        let (next, una) = end.connection.edges();
        let shift = |seq: Seq, by: i32| Seq(seq.0.wrapping_add(by as u32));
        let mut header = Header {
            source: end.connection.identity().remote_port,
            destination: end.connection.identity().local_port,
            seq: shift(next, hostile.seq),
            ack: shift(una, hostile.ack),
            flags: Flags(hostile.flags),
            window: hostile.window,
            ..Header::default()
        };
        let clock = end.connection.peer_clock();
        header.options.timestamps = hostile.timestamp.map(|by| Timestamps {
            value: clock.wrapping_add(by as u32),
            echo: by as u32,
        });
        for (left, right) in hostile.blocks {
            header.options.sack.push(SackBlock {
                left: shift(una, left),
                right: shift(una, right),
            });
        }
        let first = identity(1 - to).initial_seq.add(1);
        let position = header.seq.0.wrapping_sub(first.0);
        let payload = (0..hostile.payload).map(|at| pattern(u64::from(position) + at as u64));
        let mut bytes = vec![0; header.length()];
        header.write(&mut bytes);
        bytes.extend(payload);
        end.receive(now, &bytes);
    }

    /// Transfers `bytes` from each end to the other, and shuts both down. Panics if a byte is wrong
    /// or missing, or a buffer is left.
    pub(crate) fn transfer(&mut self, bytes: [u64; 2], time: Duration) {
        assert!(
            self.run(time, |pair| pair.ends[1].is_some()),
            "no SYN arrived"
        );
        for (which, wants) in bytes.into_iter().enumerate() {
            let end = self.end(which);
            end.wants = wants;
            end.shuts_down = true;
        }
        let done = self.run(time, |pair| {
            let over = |state| matches!(state, State::Closed | State::TimeWait);
            pair.ends
                .iter()
                .flatten()
                .all(|end| over(end.connection.state()))
        });
        for which in 0..2 {
            let other = bytes[1 - which];
            let end = self.end(which);
            let what = (
                end.read,
                end.wrote,
                end.connection.state(),
                end.connection.reason(),
            );
            assert_eq!(
                end.read,
                other,
                "end {which}: {what:?} {:?}",
                end.connection.info()
            );
            assert_eq!(end.in_use(), (0, 0), "end {which} has buffers: {what:?}");
            assert_eq!(end.connection.reason(), None);
        }
        assert!(done, "the ends did not close");
    }
}

/// Bytes of a buffer.
const CAPACITY: u32 = 2048;

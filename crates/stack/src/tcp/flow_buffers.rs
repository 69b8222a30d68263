//! One flow of an engine, with what each of its buffers is used for.
//!
//! A part of the buffers is for receiving: each is primed, or holds payload that was received and
//! not consumed. The others are for sending: each is free, holds written payload, or holds a
//! segment without payload until it has left.
//!
//! The module `queue_limit` decides how many packets may wait in the submit ring.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use netnice_ring::layout::MAX_PAIRS;
use netnice_ring::program::{Chunk, Piece, RecordError};
use netnice_ring::{Record, Status};
use netnice_tcp::connection::Token;
use netnice_tcp::endpoint::ConnectionId;
use netnice_tcp::time::Instant;

use super::inbox::{Inbox, Late};
use super::queue_limit::QueueLimit;
use crate::error::StackError;
use crate::segments::SegmentFlow;
use crate::udp::Buffers;

/// What a buffer holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Content {
    /// Nothing, or an empty buffer that is primed.
    #[default]
    Nothing,
    /// Payload that was written and is not acknowledged.
    Written,
    /// A segment that is needed only until it has left.
    Passing,
    /// Payload that was received.
    Received,
    /// The same, and the program uses it in place.
    Lent,
}

/// The use of a buffer.
#[derive(Clone, Copy, Debug, Default)]
struct Use {
    content: Content,
    /// The driver has the buffer, to send it.
    with_driver: bool,
    /// The connection and the segment whose departure is to be reported.
    token: Option<(ConnectionId, Token)>,
}

/// A record of segments of one connection that the driver has returned.
pub(super) struct Departure {
    pub(super) id: ConnectionId,
    tokens: [Token; MAX_PAIRS],
    count: usize,
    pub(super) at: Instant,
    pub(super) status: Status,
}

impl Departure {
    /// The segments.
    pub(super) fn tokens(&self) -> &[Token] {
        &self.tokens[..self.count]
    }
}

/// Segments of a connection that follow each other, in a buffer each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pieces: [Piece; MAX_PAIRS],
    tokens: [Option<Token>; MAX_PAIRS],
    count: usize,
}

impl Run {
    /// A run of one segment: the range of its frame in a buffer.
    pub(super) fn new(chunk: Chunk, frame: &std::ops::Range<usize>, token: Option<Token>) -> Run {
        let piece = Piece {
            chunk,
            // Offsets in a buffer fit into 32 bits.
            start: frame.start as u32,
            length: (frame.end - frame.start) as u32,
        };
        let mut tokens = [None; MAX_PAIRS];
        tokens[0] = token;
        Run {
            pieces: [piece; MAX_PAIRS],
            tokens,
            count: 1,
        }
    }

    /// Adds a segment whose payload has this length, if there is room. All begin at the same place
    /// of their buffers, and have headers of the same length.
    pub(super) fn push(&mut self, chunk: Chunk, headers: u32, payload: u32, token: Token) {
        if self.count < MAX_PAIRS {
            self.pieces[self.count] = Piece {
                chunk,
                start: self.pieces[0].start,
                length: headers + payload,
            };
            self.tokens[self.count] = Some(token);
            self.count += 1;
        }
    }

    /// Number of segments.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Bytes of payload of all segments, whose headers have this length.
    pub(super) fn bytes(&self, headers: usize) -> u32 {
        let lengths = self.pieces[..self.count].iter().map(|piece| piece.length);
        lengths.sum::<u32>() - (headers * self.count) as u32
    }
}

/// A flow with its buffers. See the module.
pub(super) struct FlowBuffers {
    pub(super) flow: SegmentFlow,
    uses: Box<[Use]>,
    /// Buffers that hold the list of connections.
    listing: u32,
    /// Buffers for sending, and those of them that are in use.
    sending: u32,
    used: u32,
    /// Buffers that are primed.
    pub(super) primed: u32,
    /// Number of buffers that stay primed: received payload is not kept in them, because each
    /// acknowledgement needs one. Without them, programs that wait for acknowledgements before they
    /// read could hold all buffers with unread payload.
    reserved: u32,
    /// Packets in the submit ring.
    queued: u32,
    limit: QueueLimit,
    /// Segments in the submit ring whose connections have moved to another engine, by the number of
    /// the buffer.
    moved: HashMap<u32, (Weak<Inbox>, Token)>,
}

impl FlowBuffers {
    /// A flow that was just opened: `receiving` of its buffers are primed, or will be before
    /// anything else is done, and some hold the list of connections.
    pub(super) fn new(flow: SegmentFlow, receiving: u32) -> FlowBuffers {
        let chunks = flow.rings.location().shape.chunks;
        let listing = flow.rings.balance().in_use.saturating_sub(receiving);
        FlowBuffers {
            uses: vec![Use::default(); chunks as usize].into(),
            listing,
            sending: chunks - receiving - listing,
            used: 0,
            primed: receiving,
            reserved: (receiving / 8).clamp(1, MOST_RESERVED),
            queued: 0,
            limit: QueueLimit::new(chunks - receiving - listing),
            moved: HashMap::new(),
            flow,
        }
    }

    /// The same for a flow of connection requests: all its packets may be in the submit ring.
    pub(super) fn of_requests(flow: SegmentFlow, receiving: u32) -> FlowBuffers {
        let mut buffers = FlowBuffers::new(flow, receiving);
        buffers.limit = QueueLimit::all(buffers.sending);
        buffers
    }

    /// Bytes of a buffer.
    pub(super) fn chunk_bytes(&self) -> u32 {
        self.flow.rings.location().shape.chunk_bytes
    }

    /// Number of buffers for sending.
    pub(super) fn sending(&self) -> u32 {
        self.sending
    }

    /// Number of buffers that are neither free nor primed.
    pub(super) fn in_use(&self) -> u32 {
        self.uses.len() as u32 - self.listing - self.free() - self.primed
    }

    /// Number of buffers for sending that are free.
    pub(super) fn free(&self) -> u32 {
        self.sending - self.used
    }

    /// True if a segment can be queued now: the ring may take one, and a buffer is free for a
    /// segment without payload.
    pub(super) fn has_room(&self) -> bool {
        self.queued < self.limit.most() && self.used < self.sending
    }

    /// Number of buffers for sending that a connection may use whatever the others have.
    pub(super) fn least_share(&self) -> u32 {
        MOST_LEAST_SHARE.min(self.sending / 4).max(1)
    }

    /// Number of primed buffers that received payload may take.
    pub(super) fn room(&self) -> u32 {
        self.primed.saturating_sub(self.reserved)
    }

    /// True if a packet waits in the submit ring.
    pub(super) fn has_queued(&self) -> bool {
        self.queued > 0
    }

    /// Takes a free buffer for sending.
    pub(super) fn take(&mut self, content: Content) -> Option<Chunk> {
        if self.used >= self.sending {
            return None;
        }
        let chunk = self.flow.rings.chunk()?;
        self.used += 1;
        self.uses[chunk.0 as usize].content = content;
        Some(chunk)
    }

    /// What a buffer holds.
    pub(super) fn content(&self, chunk: Chunk) -> Content {
        self.uses[chunk.0 as usize].content
    }

    /// True if the driver has the buffer, to send it.
    pub(super) fn is_with_driver(&self, chunk: Chunk) -> bool {
        self.uses[chunk.0 as usize].with_driver
    }

    /// The bytes of a buffer that the driver does not have.
    pub(super) fn bytes(&self, chunk: Chunk) -> &[u8] {
        self.flow.rings.bytes(chunk).unwrap_or_default()
    }

    /// The same, for writing.
    pub(super) fn bytes_mut(&mut self, chunk: Chunk) -> &mut [u8] {
        self.flow.rings.bytes_mut(chunk).unwrap_or_default()
    }

    /// A copy of bytes of a buffer, which the driver may have to send it.
    pub(super) fn copy(&self, chunk: Chunk, place: std::ops::Range<u32>) -> Vec<u8> {
        let mut bytes = vec![0; place.len()];
        match self.flow.rings.copy_out(chunk, place.start, &mut bytes) {
            Ok(()) => bytes,
            Err(_) => Vec::new(),
        }
    }

    /// Number of segments that may be queued now, and that segments of one connection can leave
    /// joined.
    pub(super) fn room_for_run(&self) -> usize {
        match self.flow.rings.joins() {
            true => (self.limit.most().saturating_sub(self.queued) as usize).min(MAX_PAIRS),
            false => 1,
        }
    }

    /// Queues segments of the connection `id`, which is told when they have left. Fails if the flow
    /// has ended.
    pub(super) fn submit(&mut self, run: &Run, id: Option<ConnectionId>) -> Result<(), StackError> {
        let pieces = &run.pieces[..run.count];
        let submitted = match pieces {
            [one] => self.flow.rings.submit(&[*one], false),
            several => self.flow.rings.submit_segments(several),
        };
        if let Err(error) = submitted {
            return Err(self.flow.record_error(error));
        }
        for (piece, token) in pieces.iter().zip(&run.tokens) {
            let used = &mut self.uses[piece.chunk.0 as usize];
            used.with_driver = true;
            used.token = id.zip(*token);
        }
        self.limit.queues(self.queued);
        self.queued += run.count as u32;
        Ok(())
    }

    /// No further segment may be queued now, and there are some.
    pub(super) fn note_full(&mut self) {
        if self.queued >= self.limit.most() {
            self.limit.note_full();
        }
    }

    /// The next record that the driver has returned and whose departure matters; `None` if there
    /// is no further one. Fails if the flow has ended.
    pub(super) fn reclaim(&mut self) -> Result<Option<Departure>, StackError> {
        loop {
            let record = match self.flow.rings.reclaim() {
                Ok(Some(record)) => record,
                Ok(None) => return Ok(None),
                Err(error) => return Err(self.flow.flow_error(error)),
            };
            let segments = record.pairs().len() as u32;
            self.queued -= segments;
            let at = Instant::from_nanos(record.stamp());
            if record.status() == Status::DONE {
                self.limit.count_service(segments, at);
            }
            let mut departure: Option<Departure> = None;
            for pair in record.pairs() {
                let chunk = self.flow.rings.piece(pair).chunk;
                let used = &mut self.uses[chunk.0 as usize];
                used.with_driver = false;
                let token = used.token.take();
                if !self.moved.is_empty() {
                    self.report_moved(chunk, at, record.status());
                }
                let used = &self.uses[chunk.0 as usize];
                // A buffer whose payload was acknowledged meanwhile holds nothing.
                if matches!(used.content, Content::Passing | Content::Nothing) {
                    self.free_for_sending(chunk)?;
                }
                if let Some((id, token)) = token {
                    let departure = departure.get_or_insert(Departure {
                        id,
                        tokens: [token; MAX_PAIRS],
                        count: 0,
                        at,
                        status: record.status(),
                    });
                    departure.tokens[departure.count] = token;
                    departure.count += 1;
                }
            }
            if departure.is_some() {
                return Ok(departure);
            }
        }
    }

    /// The connection `id` moves to another engine: the departures of its segments in the submit
    /// ring go to `inbox`.
    pub(super) fn redirect(&mut self, id: ConnectionId, inbox: &Arc<Inbox>) {
        for (number, used) in (0..).zip(&mut self.uses) {
            if let Some((_, token)) = used.token.take_if(|(of, _)| *of == id) {
                self.moved.insert(number, (Arc::downgrade(inbox), token));
            }
        }
    }

    /// Reports the departure of a segment whose connection has moved.
    fn report_moved(&mut self, chunk: Chunk, at: Instant, status: Status) {
        if let Some((inbox, token)) = self.moved.remove(&chunk.0)
            && let Some(inbox) = inbox.upgrade()
        {
            inbox.post(Late::Departure { token, at, status });
        }
    }

    /// The flow has ended: what connections that have moved still had in the submit ring does not
    /// leave.
    pub(super) fn give_up_moved(&mut self, now: Instant) {
        let chunks: Vec<u32> = self.moved.keys().copied().collect();
        for chunk in chunks {
            self.report_moved(Chunk(chunk), now, Status::NO_LINK);
        }
    }

    /// The next record with a received frame; `None` if there is no further one. Fails if the flow
    /// has ended.
    pub(super) fn receive(&mut self) -> Result<Option<(Chunk, Record)>, StackError> {
        match self.flow.rings.receive() {
            Ok(Some(record)) => {
                self.primed -= 1;
                Ok(Some((
                    self.flow.rings.piece(&record.pairs()[0]).chunk,
                    record,
                )))
            }
            Ok(None) => Ok(None),
            Err(error) => Err(self.flow.flow_error(error)),
        }
    }

    /// The buffer holds received payload that a connection keeps.
    pub(super) fn keep(&mut self, chunk: Chunk) {
        self.uses[chunk.0 as usize].content = Content::Received;
    }

    /// The program uses the received payload in place, until the buffer is primed.
    pub(super) fn lend(&mut self, chunk: Chunk) {
        self.uses[chunk.0 as usize].content = Content::Lent;
    }

    /// Primes a buffer for receiving. Fails if the flow has ended.
    pub(super) fn prime(&mut self, chunk: Chunk) -> Result<(), StackError> {
        self.uses[chunk.0 as usize].content = Content::Nothing;
        self.flow.prime(chunk)?;
        self.primed += 1;
        Ok(())
    }

    /// A connection does not need the buffer any more. Fails if the flow has ended.
    pub(super) fn release(&mut self, chunk: Chunk) -> Result<(), StackError> {
        match self.content(chunk) {
            Content::Received => self.prime(chunk),
            Content::Written if self.is_with_driver(chunk) => {
                self.uses[chunk.0 as usize].content = Content::Nothing;
                Ok(())
            }
            Content::Written | Content::Passing => self.free_for_sending(chunk),
            Content::Nothing | Content::Lent => Ok(()),
        }
    }

    fn free_for_sending(&mut self, chunk: Chunk) -> Result<(), StackError> {
        self.uses[chunk.0 as usize] = Use::default();
        self.used -= 1;
        let freed: Result<(), RecordError> = self.flow.rings.free(chunk);
        freed.map_err(StackError::Buffer)
    }
}

/// Fails if a flow of TCP with these buffers could not hold two segments in each direction, besides
/// those that are kept for segments without payload.
pub(super) fn check_numbers(buffers: Buffers) -> Result<(), StackError> {
    let Buffers {
        sending, receiving, ..
    } = buffers;
    match sending < LEAST_SENDING || receiving < LEAST_RECEIVING {
        true => Err(StackError::FewBuffers {
            sending,
            receiving,
            least: (LEAST_SENDING, LEAST_RECEIVING),
        }),
        false => Ok(()),
    }
}

/// Buffers for sending that payload does not take: acknowledgements and resets leave by them.
pub(super) const FOR_CONTROL: u32 = 4;
/// Two segments, besides [`FOR_CONTROL`].
const LEAST_SENDING: u32 = FOR_CONTROL + 2;
/// Two segments, besides the one buffer that is kept.
const LEAST_RECEIVING: u32 = 3;
/// Buffers that are kept for segments without payload.
const MOST_RESERVED: u32 = 32;
/// A connection that has so many buffers makes progress. Where there are few buffers in all, it has
/// a quarter of them.
const MOST_LEAST_SHARE: u32 = 8;

//! Which packets of a capture are one message of a channel.
//!
//! What is too long for one packet travels in several. The fragments of one IP datagram are
//! found; where programs cut their messages themselves nothing in the packets says so, and the
//! user does: with `--gap T` a packet that comes less than T behind the one before it is of the
//! same message.
//!
//! A message comes when its first packet does, and is as long as if it had come in one packet:
//! the first one whole, and of the others what stands behind their IP headers. Messages are told
//! in the order in which they began, once they are whole. A datagram of which something is
//! missing is whole after [`REASSEMBLY`].

use std::collections::VecDeque;

use netnice_core::units::Nanos;

use super::flow::Piece;

/// A message that is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    /// When its first packet came, in ns.
    pub at: u64,
    /// In bytes.
    pub length: u64,
    /// The number of its first packet in the file.
    pub number: u64,
}

impl Message {
    /// A packet that counts for itself.
    pub(super) fn packet(number: u64, at: u64, length: u32) -> Message {
        let length = u64::from(length);
        Message { at, length, number }
    }
}

/// Messages that are not told yet.
#[derive(Debug, Default)]
pub(super) struct Messages {
    gap: Option<Nanos>,
    open: VecDeque<Open>,
}

#[derive(Debug)]
struct Open {
    message: Message,
    /// When its last packet came.
    last: u64,
    datagrams: Vec<Datagram>,
}

/// A datagram in fragments.
#[derive(Debug)]
struct Datagram {
    key: super::flow::Key,
    /// Bytes that came, and that there are, once it is known.
    came: u32,
    all: Option<u32>,
}

impl Messages {
    pub(super) fn new(gap: Option<Nanos>) -> Messages {
        Messages {
            gap,
            open: VecDeque::new(),
        }
    }

    /// The next packet.
    pub(super) fn handle(&mut self, number: u64, at: u64, length: u32, piece: Option<Piece>) {
        let key = piece.as_ref().and_then(Piece::fragment_of);
        let known = |open: &Open| open.datagrams.iter().any(|one| Some(one.key) == key);
        let same = self.open.iter().rposition(known);
        let same = same.or_else(|| {
            let last = self.open.back()?;
            let gap = self.gap?;
            (at < last.last.saturating_add(gap.0)).then_some(self.open.len() - 1)
        });
        let behind = piece.as_ref().map_or(length, |piece| piece.bytes);
        match same.and_then(|place| self.open.get_mut(place)) {
            Some(open) => {
                open.message.length += u64::from(behind);
                open.last = open.last.max(at);
                open.note(piece.as_ref());
            }
            None => {
                let mut open = Open {
                    message: Message::packet(number, at, length),
                    last: at,
                    datagrams: Vec::new(),
                };
                open.note(piece.as_ref());
                self.open.push_back(open);
            }
        }
    }

    /// The next message that is whole by now.
    pub(super) fn poll(&mut self, now: u64) -> Option<Message> {
        let gap = self.gap.unwrap_or_default().0;
        let first = self.open.front()?;
        let has_all = first.datagrams.iter().all(Datagram::is_whole)
            || now >= first.last.saturating_add(REASSEMBLY.0);
        let is_over = now >= first.last.saturating_add(gap);
        if (has_all && is_over) || self.open.len() > MOST_OPEN {
            return self.rest();
        }
        None
    }

    /// The next message when nothing more comes.
    pub(super) fn rest(&mut self) -> Option<Message> {
        self.open.pop_front().map(|open| open.message)
    }
}

impl Open {
    fn note(&mut self, piece: Option<&Piece>) {
        let Some((piece, key)) = piece.and_then(|piece| Some((piece, piece.fragment_of()?))) else {
            return;
        };
        let place = self.datagrams.iter().position(|one| one.key == key);
        let place = place.unwrap_or_else(|| {
            self.datagrams.push(Datagram {
                key,
                came: 0,
                all: None,
            });
            self.datagrams.len() - 1
        });
        let datagram = &mut self.datagrams[place];
        datagram.came += piece.bytes;
        if piece.is_last {
            datagram.all = Some(piece.offset + piece.bytes);
        }
    }
}

impl Datagram {
    fn is_whole(&self) -> bool {
        self.all.is_some_and(|all| self.came >= all)
    }
}

/// How long fragments are waited for: Linux's `ipfrag_time`.
const REASSEMBLY: Nanos = Nanos::from_secs(30);

/// Messages that wait at most; beyond that the first one is told as it is.
const MOST_OPEN: usize = 4096;

//! What the engine of a listener has for a connection that has moved to an engine of its own
//! ([`Inbox`]): segments that came by the listener's flow, and the departures of those that were
//! still to leave by it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use netnice_ring::Status;
use netnice_tcp::connection::Token;
use netnice_tcp::time::Instant;

use crate::program::Shared;

/// A message to the engine of the connection.
#[derive(Debug)]
pub(super) enum Late {
    /// A received frame of the connection's peer.
    Frame(Vec<u8>),
    /// The driver has returned a segment.
    Departure {
        token: Token,
        at: Instant,
        status: Status,
    },
}

/// The messages that the engine of the connection has not taken.
pub(super) struct Inbox {
    shared: Arc<Shared>,
    /// The slot of the connection's flow.
    slot: u32,
    has_messages: AtomicBool,
    messages: Mutex<VecDeque<Late>>,
}

impl Inbox {
    /// The inbox of the engine whose flow has this slot.
    pub(super) fn new(shared: &Arc<Shared>, slot: u32) -> Arc<Inbox> {
        Arc::new(Inbox {
            shared: shared.clone(),
            slot,
            has_messages: AtomicBool::new(false),
            messages: Mutex::default(),
        })
    }

    /// Adds a message, and has the engine looked at. A frame is dropped if too many messages wait:
    /// its sender sends it again.
    pub(super) fn post(&self, message: Late) {
        let mut messages = self.lock();
        if matches!(message, Late::Frame(_)) && messages.len() >= MOST_FRAMES {
            return;
        }
        messages.push_back(message);
        let had_messages = self.has_messages.swap(true, Ordering::Release);
        drop(messages);
        if !had_messages {
            self.shared.report(self.slot);
        }
    }

    /// Takes all messages.
    pub(super) fn take(&self) -> VecDeque<Late> {
        if !self.has_messages.load(Ordering::Acquire) {
            return VecDeque::new();
        }
        let mut messages = self.lock();
        self.has_messages.store(false, Ordering::Relaxed);
        std::mem::take(&mut *messages)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Late>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// More than a window of full segments of the default buffers.
const MOST_FRAMES: usize = 4096;

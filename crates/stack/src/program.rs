//! One program on the direct path: its memory file, and who of its threads waits for the doorbell.
//!
//! There is one doorbell for all flows, and one thread can wait for it. So of several that wait, the first *leads*: it
//! sleeps at the doorbell, and passes on what the notices name. The others sleep until the leader tells them, or stops
//! leading.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use netnice_ring::Place;
use netnice_ring::layout::{MAX_FLOWS, SetupError};
use netnice_ring::program::{Attachment, Fault, Refused};

use crate::headers::{AddressError, FlowAddress};
use crate::udp::{Checks, Socket};

/// A program's hold on the direct path. Cheap to clone.
#[derive(Clone)]
pub struct Program {
    shared: Arc<Shared>,
}

/// What all flows of a program share.
pub(crate) struct Shared {
    attachment: Attachment,
    /// A bit for each flow of which a notice was taken and not yet passed on.
    news: Vec<AtomicU64>,
    led: Mutex<bool>,
    changed: Condvar,
}

/// Why a call did nothing.
#[derive(Debug, thiserror::Error)]
pub enum StackError {
    /// Nothing can be done now: no buffer is free, or nothing has come.
    #[error("not now")]
    NotNow,
    /// The payload is longer than the link carries in one packet.
    #[error("a payload of {length} bytes; the link carries {longest} in one packet")]
    TooLong {
        /// Its length.
        length: usize,
        /// The most that there can be.
        longest: usize,
    },
    /// The driver closed the flow.
    #[error("the flow is closed")]
    Closed,
    /// The driver expelled the program.
    #[error("the driver expelled this program for breaking rule R{0} of docs/ring.md")]
    Expelled(u32),
    /// The driver broke a rule.
    #[error(transparent)]
    Driver(Fault),
    /// A buffer that is not this socket's.
    #[error("{0}")]
    Buffer(Refused),
    /// The addresses make no flow.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A buffer is too small.
    #[error("buffers of {chunk} bytes do not hold a packet of {packet} bytes")]
    Chunk {
        /// Bytes of a buffer.
        chunk: u32,
        /// Bytes of the longest frame.
        packet: usize,
    },
    /// The memory file does not have it.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The doorbell cannot be waited for.
    #[error("waiting for the driver: {0}")]
    Wait(#[from] io::Error),
}

impl Program {
    /// Takes the attachment over.
    pub fn new(attachment: Attachment) -> Program {
        let words = MAX_FLOWS as usize / 64;
        Program {
            shared: Arc::new(Shared {
                attachment,
                news: (0..words).map(|_| AtomicU64::new(0)).collect(),
                led: Mutex::new(false),
                changed: Condvar::new(),
            }),
        }
    }

    /// Takes up a flow of UDP that the driver opened.
    ///
    /// # Errors
    /// If the addresses, the place or the buffers make no sense.
    pub fn udp(
        &self,
        place: Place,
        address: &FlowAddress,
        checks: Checks,
    ) -> Result<Socket, StackError> {
        let flow = self.shared.attachment.flow(place)?;
        Socket::new(self.shared.clone(), flow, address, checks)
    }

    /// For a loop of one's own: says that the caller sleeps from now on. True: [`Program::as_fd`] becomes readable when
    /// something happens. False: something has happened already. Nobody may wait in a blocking call meanwhile.
    pub fn arm(&self) -> bool {
        self.shared.attachment.doze()
    }

    /// After sleeping in a loop of one's own: names the slots of the flows in which there is something new.
    pub fn news(&self, mut each: impl FnMut(u32)) {
        self.shared.attachment.wake();
        self.shared.attachment.take_notices(|slot| {
            self.shared.tell(slot);
            each(slot);
        });
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.attachment.bell()
    }
}

impl Shared {
    pub(crate) fn ring(&self) {
        self.attachment.ring();
    }

    /// What the driver says of the end of this program.
    pub(crate) fn ended(&self) -> Option<u32> {
        self.attachment.ended()
    }

    /// Waits until something is new in the flow: true; or until the time is over: false. That there is something may
    /// turn out to be seen already; look, and wait again.
    pub(crate) fn wait(&self, slot: u32, deadline: Option<Instant>) -> io::Result<bool> {
        loop {
            if self.told(slot) {
                return Ok(true);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(false);
            }
            let mut led = self.lock();
            // Between the look above and the lock the leader may have told.
            if self.told(slot) {
                return Ok(true);
            }
            if *led {
                self.follow(led, left);
                continue;
            }
            *led = true;
            drop(led);
            let waited = self.attachment.wait(left);
            self.attachment.take_notices(|slot| self.tell(slot));
            *self.lock() = false;
            self.changed.notify_all();
            waited?;
        }
    }

    fn follow(&self, led: MutexGuard<'_, bool>, left: Option<Duration>) {
        let longest = left.unwrap_or(Duration::from_secs(3600));
        drop(self.changed.wait_timeout(led, longest));
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.led.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, slot: u32) {
        self.news[slot as usize / 64].fetch_or(1 << (slot % 64), Ordering::Release);
    }

    fn told(&self, slot: u32) -> bool {
        let (word, bit) = (&self.news[slot as usize / 64], 1 << (slot % 64));
        word.load(Ordering::Relaxed) & bit != 0
            && word.fetch_and(!bit, Ordering::Acquire) & bit != 0
    }
}

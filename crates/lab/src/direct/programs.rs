//! Two programs for experiments on the direct path, each with one flow: [`SenderProgram`] sends as
//! fast as possible, and [`ReceiverProgram`] counts received packets. Each runs in a thread of its
//! own and keeps its counts. A program fails if the driver closes its flow or breaks a rule of the
//! ring, and a sender also if the driver refuses to send a record. `end` returns this failure.
//!
//! In the papers' experiments programs have guaranteed processor time. Here a sender runs with the
//! scheduling policy SCHED_RR at priority 1, below the driver's priority, so that other load of the
//! machine does not change the packets on the wire. Without the right to real-time priority a
//! sender has ordinary priority. A receiver always has ordinary priority.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use netnice_ring::driver::Loss;
use netnice_ring::program::{Attachment, Piece, ProgramRings};

use crate::sys;
use crate::worker::Worker;

/// A program that sends the same frame repeatedly.
pub struct SenderProgram {
    attachment: Attachment,
    flow: ProgramRings,
    frame: Vec<u8>,
    /// Number of records that the driver returned as sent.
    sent: u64,
}

/// A sender that runs in a thread of its own. Dropping this value ends the thread.
pub struct RunningSender(Worker<SenderProgram>);

impl SenderProgram {
    /// A sender that has sent nothing yet. `frame` is the whole frame, with its headers.
    pub(super) fn new(attachment: Attachment, flow: ProgramRings, frame: Vec<u8>) -> SenderProgram {
        SenderProgram {
            attachment,
            flow,
            frame,
            sent: 0,
        }
    }

    /// Number of records that the driver returned as sent.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Reclaims returned records, and submits as many new ones as the free buffers and the ring
    /// allow. Fails if a returned record was not sent, or if the flow has ended.
    pub fn fill_ring(&mut self) -> Result<()> {
        // The notices are ignored: there is only one flow.
        self.attachment.take_notices(|_| ());
        while let Some(record) = self.flow.reclaim()? {
            ensure!(record.status().0 == 0, "{:?}", record.status());
            self.sent += 1;
            self.flow.free_all(&record)?;
        }
        let length = self.frame.len();
        while let Some(chunk) = self.flow.chunk() {
            self.flow.bytes_mut(chunk)?[..length].copy_from_slice(&self.frame);
            let piece = Piece {
                chunk,
                start: 0,
                length: length as u32,
            };
            if self.flow.submit(&[piece], false).is_err() {
                self.flow.free(chunk)?;
                break;
            }
        }
        if self.flow.publish() {
            self.attachment.notify();
        }
        Ok(())
    }

    /// Starts a thread that sends until [`RunningSender::end`]. Fails if the thread cannot start.
    pub fn start(self) -> Result<RunningSender> {
        let mut sender = self;
        let worker = Worker::start("sender", move |stopped| {
            // Without the right to real-time priority it runs with normal priority.
            let _ = sys::set_real_time_priority(PRIORITY);
            while !stopped.load(Ordering::Relaxed) {
                sender.fill_ring()?;
                sender.attachment.wait(Some(LONGEST_SLEEP))?;
            }
            Ok(sender)
        })?;
        Ok(RunningSender(worker))
    }
}

impl RunningSender {
    /// Ends the thread; fails if the sender failed or panicked.
    pub fn end(self) -> Result<SenderProgram> {
        self.0.stop()
    }
}

/// A program that receives packets and counts them.
pub struct ReceiverProgram {
    attachment: Attachment,
    flow: ProgramRings,
}

/// A receiver that runs in a thread of its own. Dropping this value ends the thread.
pub struct RunningReceiver {
    counted: Arc<(AtomicU64, AtomicU64)>,
    worker: Worker<ReceiverProgram>,
}

impl ReceiverProgram {
    /// A receiver without primed buffers.
    pub(super) fn new(attachment: Attachment, flow: ProgramRings) -> ReceiverProgram {
        ReceiverProgram { attachment, flow }
    }

    /// Primes the receive ring with all free buffers, or with as many as fit into it. Fails if the
    /// ring library refuses to free a chunk that the ring had no room for, which is a fault of this
    /// program.
    pub fn prime(&mut self) -> Result<()> {
        self.attachment.take_notices(|_| ());
        while let Some(chunk) = self.flow.chunk() {
            let whole = Piece {
                chunk,
                start: 0,
                length: self.flow.location().shape.chunk_bytes,
            };
            if self.flow.prime(&[whole]).is_err() {
                self.flow.free(chunk)?;
                break;
            }
        }
        if self.flow.publish() {
            self.attachment.notify();
        }
        Ok(())
    }

    /// Primes the receive ring and starts a thread that receives until [`RunningReceiver::end`].
    /// For every packet, `each` gets the number of the packet (from 1) and returns how long the
    /// program is to work on it; the thread sleeps for that time. Fails if the thread cannot start.
    pub fn start(
        mut self,
        each: impl Fn(u64) -> Duration + Send + 'static,
    ) -> Result<RunningReceiver> {
        let counted = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
        let counts = counted.clone();
        self.prime()?;
        let worker = Worker::start("receiver", move |stopped| {
            let mut number = 0;
            // Work is measured against the clock, so that a sleep that lasts too long is
            // compensated.
            let mut busy = Instant::now();
            while !stopped.load(Ordering::Relaxed) {
                let lost = [Loss::NoBuffer, Loss::OverBudget, Loss::TooLong];
                let lost = lost.map(|why| self.flow.lost(why)).iter().sum();
                counts.1.store(lost, Ordering::Relaxed);
                let Some(record) = self.flow.receive()? else {
                    self.prime()?;
                    self.attachment.wait(Some(LONGEST_SLEEP))?;
                    continue;
                };
                if record.status().0 == 0 {
                    number += 1;
                    counts.0.store(number, Ordering::Relaxed);
                    busy = busy.max(Instant::now() - SHORTEST_SLEEP) + each(number);
                }
                self.flow.free_all(&record)?;
                let rest = busy.saturating_duration_since(Instant::now());
                if rest > Duration::ZERO {
                    self.prime()?;
                    std::thread::sleep(rest.max(SHORTEST_SLEEP));
                }
            }
            Ok(self)
        })?;
        Ok(RunningReceiver { counted, worker })
    }
}

impl RunningReceiver {
    /// Number of packets received so far.
    pub fn received(&self) -> u64 {
        self.counted.0.load(Ordering::Relaxed)
    }

    /// Number of packets lost so far, by the counters that the driver keeps in the flow's memory:
    /// for lack of a primed record, beyond the receive budget, or longer than the record.
    pub fn lost(&self) -> u64 {
        self.counted.1.load(Ordering::Relaxed)
    }

    /// Ends the thread; fails if the receiver failed or panicked.
    pub fn end(self) -> Result<ReceiverProgram> {
        self.worker.stop()
    }
}

/// Real-time priority of senders; the driver has 50.
const PRIORITY: i32 = 1;
/// Time after which an idle program checks whether it must stop.
const LONGEST_SLEEP: Duration = Duration::from_millis(20);
/// The shortest sleep of a receiver that works on a packet.
const SHORTEST_SLEEP: Duration = Duration::from_millis(1);

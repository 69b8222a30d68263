//! Queues the frames of one redirected target: one queue for each of its flows, in order, and turns
//! among the flows by deficit round robin (M. Shreedhar, G. Varghese, *Efficient fair queuing using
//! deficit round robin*, 1996). A flow that begins to send comes before the others with its first
//! quantum, as in fq_codel (RFC 8290, section 4.2), so a ping does not wait behind a transfer.
//! Nothing fails.

use std::collections::VecDeque;

/// A frame that waits.
#[derive(Debug)]
pub(in crate::datapath) struct QueuedFrame {
    /// The frame, from its Ethernet header on.
    pub(in crate::datapath) bytes: Box<[u8]>,
    /// The bucket of its flow.
    pub(in crate::datapath) bucket: u16,
}

/// The queues of one target.
#[derive(Debug, Default)]
pub(super) struct FlowQueues {
    /// By bucket; made when first used.
    flows: Vec<Option<Box<FlowQueue>>>,
    /// Flows that have begun to send and have their first turn.
    new: VecDeque<u16>,
    /// The other flows with frames, in the order of their turns. A flow without frames leaves the
    /// list at its turn.
    old: VecDeque<u16>,
    frames: usize,
    bytes: usize,
    active: u32,
}

#[derive(Debug, Default)]
struct FlowQueue {
    frames: VecDeque<Box<[u8]>>,
    /// Bytes that the flow may still send in its turn; negative: what it has sent too much.
    deficit: i64,
    /// Whether it is in one of the lists of turns.
    has_turn: bool,
}

impl FlowQueues {
    /// Adds a frame behind those of its flow.
    pub(super) fn push(&mut self, frame: QueuedFrame) {
        let bucket = usize::from(frame.bucket);
        if self.flows.len() <= bucket {
            self.flows.resize_with(bucket + 1, || None);
        }
        let flow = self.flows[bucket].get_or_insert_default();
        self.frames += 1;
        self.bytes += frame.bytes.len();
        self.active += u32::from(flow.frames.is_empty());
        flow.frames.push_back(frame.bytes);
        if !flow.has_turn {
            flow.has_turn = true;
            flow.deficit = QUANTUM;
            self.new.push_back(frame.bucket);
        }
    }

    /// Takes the next frame; `None` if there is none.
    pub(super) fn pop(&mut self) -> Option<QueuedFrame> {
        loop {
            let from_new = !self.new.is_empty();
            let list = if from_new {
                &mut self.new
            } else {
                &mut self.old
            };
            let bucket = list.pop_front()?;
            let Some(flow) = &mut self.flows[usize::from(bucket)] else {
                continue;
            };
            if flow.deficit <= 0 {
                flow.deficit += QUANTUM;
                self.old.push_back(bucket);
                continue;
            }
            let Some(bytes) = flow.frames.pop_front() else {
                // A new flow waits for a turn of all others before it can be new again.
                match from_new && !self.old.is_empty() {
                    true => self.old.push_back(bucket),
                    false => flow.has_turn = false,
                }
                continue;
            };
            flow.deficit -= bytes.len() as i64;
            self.frames -= 1;
            self.bytes -= bytes.len();
            self.active -= u32::from(flow.frames.is_empty());
            let list = if from_new {
                &mut self.new
            } else {
                &mut self.old
            };
            list.push_front(bucket);
            return Some(QueuedFrame { bytes, bucket });
        }
    }

    /// Number of frames.
    pub(super) fn frames(&self) -> usize {
        self.frames
    }

    /// Bytes of the frames.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Number of flows with frames.
    pub(super) fn active(&self) -> u32 {
        self.active
    }
}

/// Bytes of one turn: the longest frame of common Ethernet.
const QUANTUM: i64 = 1514;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(bucket: u16, length: usize, number: u8) -> QueuedFrame {
        let bytes = vec![number; length].into_boxed_slice();
        QueuedFrame { bytes, bucket }
    }

    #[test]
    fn long_and_short_frames_get_equal_parts() {
        let mut queues = FlowQueues::default();
        for _ in 0..1000 {
            queues.push(frame(1, 1514, 0));
            for _ in 0..10 {
                queues.push(frame(2, 151, 0));
            }
        }
        let mut bytes = [0; 3];
        for _ in 0..2000 {
            let one = queues.pop().expect("a frame");
            bytes[usize::from(one.bucket)] += one.bytes.len();
        }
        assert!(bytes[1].abs_diff(bytes[2]) < 5_000, "{bytes:?}");
    }

    #[test]
    fn a_flow_that_begins_comes_first_and_cannot_stay_first() {
        let mut queues = FlowQueues::default();
        for _ in 0..100 {
            queues.push(frame(1, 1514, 0));
        }
        let _ = (queues.pop(), queues.pop());
        let mut pings = 0;
        for _ in 0..100 {
            // It sends again as soon as its frame has left.
            queues.push(frame(2, 100, 0));
            let first = queues.pop().expect("a frame");
            if pings == 0 {
                assert_eq!(first.bucket, 2, "the first ping");
            }
            pings += usize::from(first.bucket == 2);
        }
        assert!(pings < 100, "the transfer gets turns too");
    }

    proptest! {
        /// Every frame comes out once, in the order of its flow, and the sums agree.
        #[test]
        fn flows_keep_their_order_and_nothing_is_lost(
            steps in proptest::collection::vec((any::<bool>(), 0u16..6, 60usize..1514), 1..300),
        ) {
            let mut queues = FlowQueues::default();
            let mut naive: Vec<VecDeque<(usize, u8)>> = vec![VecDeque::new(); 6];
            let mut number = 0u8;
            let check = |queues: &mut FlowQueues, naive: &mut Vec<VecDeque<(usize, u8)>>| {
                let waits = naive.iter().any(|flow| !flow.is_empty());
                let popped = queues.pop();
                prop_assert_eq!(popped.is_some(), waits);
                if let Some(one) = popped {
                    let first = naive[usize::from(one.bucket)].pop_front();
                    prop_assert_eq!(first, Some((one.bytes.len(), one.bytes[0])));
                }
                Ok(())
            };
            for (pushes, bucket, length) in steps {
                if pushes {
                    number = number.wrapping_add(1);
                    queues.push(frame(bucket, length, number));
                    naive[usize::from(bucket)].push_back((length, number));
                } else {
                    check(&mut queues, &mut naive)?;
                }
                let all: usize = naive.iter().map(VecDeque::len).sum();
                let bytes: usize = naive.iter().flatten().map(|(length, _)| length).sum();
                let active = naive.iter().filter(|flow| !flow.is_empty()).count();
                prop_assert_eq!((queues.frames(), queues.bytes()), (all, bytes));
                prop_assert_eq!(queues.active() as usize, active);
            }
            while queues.frames() > 0 {
                check(&mut queues, &mut naive)?;
            }
        }
    }
}

//! Tests of the cursors and of the sleeping protocol with loom, which tries every order in which
//! two threads may run, and every value that each thread may see under the memory model. `cargo
//! xtask loom` runs the tests. A test fails if a record arrives altered or out of order, if a valid
//! side finds a protocol violation, or if a notification is lost.
//!
//! The rings have only 4 entries (two records of one pair), so that full and empty rings both
//! occur. In the tests of the cursors, the indices start just before they wrap.

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Arc, Notify};
use loom::thread;

use crate::cursor::{Consumer, Popped, Producer};
use crate::doorbell::{Notices, SleepFlag};
use crate::layout::{Ring, Shape};
use crate::record::{Pair, Record, Validator, Writer};
use crate::words::{SharedRing, Word, Words};

const SHAPE: Shape = Shape {
    chunk_bytes: 64,
    chunks: 16,
    transmit_entries: 16,
    receive_entries: 16,
};

fn ring(at: u32) -> (Producer, Consumer) {
    let shared = SharedRing::model(Ring::Submit, 4, at);
    let validator = Validator::new(&SHAPE, Writer::Driver);
    (
        Producer::new(shared.clone(), at),
        Consumer::new(shared, validator, at),
    )
}

fn pair(number: u32) -> Pair {
    Pair {
        base: 64 * number,
        length: number + 1,
    }
}

/// Takes a record, if there is one, and checks that it is whole and the next in order.
fn check(consumer: &mut Consumer, next: u32) -> bool {
    let mut record = Record::default();
    match consumer
        .pop(&mut record, |_| Ok(true))
        .expect("no violation")
    {
        Popped::Record => {
            assert_eq!(record.pairs(), [pair(next)]);
            assert_eq!((record.note, record.stamp), (next, u64::from(next)));
            true
        }
        Popped::Empty => false,
        Popped::Rejected => unreachable!(),
    }
}

#[test]
fn records_arrive_whole_and_in_order() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring(u32::MAX - 1);
        let records = 3;
        let sender = thread::spawn(move || {
            for number in 0..records {
                while !producer.has_room(2).expect("no violation") {
                    thread::yield_now();
                }
                producer.push(number, number.into(), &[pair(number)]);
                producer.publish();
            }
        });
        let mut next = 0;
        while next < records {
            match check(&mut consumer, next) {
                true => next += 1,
                false => thread::yield_now(),
            }
            consumer.publish();
        }
        sender.join().expect("the sender does not panic");
    });
}

#[test]
fn two_records_published_at_once_arrive_whole_and_in_order() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring(u32::MAX - 2);
        let sender = thread::spawn(move || {
            producer.push(0, 0, &[pair(0)]);
            producer.push(1, 1, &[pair(1)]);
            producer.publish();
            while !producer.has_room(4).expect("no violation") {
                thread::yield_now();
            }
            producer.push(2, 2, &[pair(2)]);
            producer.publish();
        });
        let mut next = 0;
        while next < 3 {
            match check(&mut consumer, next) {
                true => next += 1,
                false => {
                    consumer.publish();
                    thread::yield_now();
                }
            }
        }
        sender.join().expect("the sender does not panic");
    });
}

/// What the two sides share besides a ring.
struct SleepState {
    sleep_flag: SleepFlag,
    notices: Notices,
    doorbell: Notify,
}

fn sleep_state() -> Arc<SleepState> {
    Arc::new(SleepState {
        sleep_flag: SleepFlag {
            flag: Word::model(0),
        },
        notices: Notices {
            words: Words::model(1),
        },
        doorbell: Notify::new(),
    })
}

impl SleepState {
    fn notify(&self, slot: u32) {
        self.notices.raise(slot);
        if self.sleep_flag.take() {
            self.doorbell.notify();
        }
    }

    /// Sleeps until there are notices, and takes them. A lost wake-up would be a deadlock, which
    /// loom reports.
    fn sleep(&self) -> u64 {
        let mut slots = 0;
        while slots == 0 {
            self.sleep_flag.set();
            if !self.notices.any() {
                self.doorbell.wait();
            }
            self.sleep_flag.clear();
            self.notices.take(|slot| slots |= 1 << slot);
        }
        slots
    }
}

#[test]
fn no_wake_up_is_lost() {
    loom::model(|| {
        let state = sleep_state();
        let (mut producer, mut consumer) = ring(0);
        let sender_state = state.clone();
        let sender = thread::spawn(move || {
            for number in 0..2 {
                producer.push(number, number.into(), &[pair(number)]);
                producer.publish();
                sender_state.notify(5);
            }
        });
        let mut next = 0;
        while next < 2 {
            assert_eq!(state.sleep(), 1 << 5);
            while check(&mut consumer, next) {
                next += 1;
            }
        }
        sender.join().expect("the sender does not panic");
    });
}

/// Two threads of a program, each with a flow of its own, and one driver that sleeps. Three threads
/// have too many interleavings to try all of them, so loom tries those with at most two
/// preemptions.
#[test]
fn no_wake_up_is_lost_between_two_notifying_threads() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(|| {
        let state = sleep_state();
        let done = [
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicBool::new(false)),
        ];
        let threads = [0, 1].map(|slot| {
            let (state, done) = (state.clone(), done[slot as usize].clone());
            thread::spawn(move || {
                done.store(true, Ordering::Relaxed);
                state.notify(slot);
            })
        });
        let mut seen = 0;
        while seen != 3 {
            let slots = state.sleep();
            for slot in [0, 1] {
                if slots & 1 << slot != 0 {
                    // A thread whose flow is noticed has stored its data before.
                    assert!(done[slot].load(Ordering::Relaxed));
                }
            }
            seen |= slots;
        }
        for thread in threads {
            thread.join().expect("no thread panics");
        }
    });
}

//! Tests with loom for the cursors and for going to sleep. loom tries every order in which two
//! threads may run, and every value that each thread may see under the memory model. `cargo xtask
//! loom` runs them.
//!
//! The rings have the smallest possible size (4 entries, which are two records of one pair), so
//! that full and empty rings both occur. The indices start just before they wrap.

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Arc, Notify};
use loom::thread;

use crate::bell::{Nap, Notices};
use crate::cursor::{Consumer, Ends, Popped, Producer};
use crate::layout::{Ring, Shape};
use crate::record::{From, Judge, Pair};
use crate::words::{Slots, Word, Words};

const SHAPE: Shape = Shape {
    chunk_bytes: 64,
    chunks: 16,
    transmit_entries: 16,
    receive_entries: 16,
};

fn ring(at: u32) -> (Producer, Consumer) {
    let (producer, consumer, slots) = (Word::model(at), Word::model(at), Slots::model(4));
    let ends = || Ends {
        ring: Ring::Submit,
        producer: producer.clone(),
        consumer: consumer.clone(),
        slots: slots.clone(),
    };
    let judge = Judge::new(&SHAPE, From::Driver);
    (Producer::new(ends(), at), Consumer::new(ends(), judge, at))
}

fn pair(number: u32) -> Pair {
    Pair {
        base: 64 * number,
        length: number + 1,
    }
}

/// Takes a record, if there is one, and checks that it is whole and the next in order.
fn check(consumer: &mut Consumer, next: u32) -> bool {
    match consumer.pop(|_| Ok(true)).expect("nobody breaks a rule") {
        Popped::Record(record) => {
            assert_eq!(record.pairs(), [pair(next)]);
            assert_eq!((record.note, record.stamp), (next, u64::from(next)));
            true
        }
        Popped::Empty => false,
        Popped::Left => unreachable!(),
    }
}

#[test]
fn records_come_whole_and_in_order() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring(u32::MAX - 1);
        let records = 3;
        let sender = thread::spawn(move || {
            for number in 0..records {
                while !producer.has_room(2).expect("nobody breaks a rule") {
                    thread::yield_now();
                }
                producer.push(number, number.into(), &[pair(number)]);
                producer.show();
            }
        });
        let mut next = 0;
        while next < records {
            match check(&mut consumer, next) {
                true => next += 1,
                false => thread::yield_now(),
            }
            consumer.show();
        }
        sender.join().expect("the sender");
    });
}

#[test]
fn two_at_once_and_one_view() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring(u32::MAX - 2);
        let sender = thread::spawn(move || {
            producer.push(0, 0, &[pair(0)]);
            producer.push(1, 1, &[pair(1)]);
            producer.show();
            while !producer.has_room(4).expect("nobody breaks a rule") {
                thread::yield_now();
            }
            producer.push(2, 2, &[pair(2)]);
            producer.show();
        });
        let mut next = 0;
        while next < 3 {
            match check(&mut consumer, next) {
                true => next += 1,
                false => {
                    consumer.show();
                    thread::yield_now();
                }
            }
        }
        sender.join().expect("the sender");
    });
}

/// What the two sides share besides a ring.
struct Bells {
    nap: Nap,
    notices: Notices,
    doorbell: Notify,
}

fn bells() -> Arc<Bells> {
    Arc::new(Bells {
        nap: Nap {
            flag: Word::model(0),
        },
        notices: Notices {
            words: Words::model(1),
        },
        doorbell: Notify::new(),
    })
}

impl Bells {
    fn published(&self, slot: u32) {
        self.notices.raise(slot);
        if self.nap.must_ring() {
            self.doorbell.notify();
        }
    }

    /// Sleeps until there are notices, and takes them. A lost wake-up would be a deadlock, which
    /// loom reports.
    fn slept(&self) -> u64 {
        let mut slots = 0;
        while slots == 0 {
            self.nap.begin();
            if !self.notices.any() {
                self.doorbell.wait();
            }
            self.nap.end();
            self.notices.take(|slot| slots |= 1 << slot);
        }
        slots
    }
}

#[test]
fn no_wake_up_is_lost() {
    loom::model(|| {
        let bells = bells();
        let (mut producer, mut consumer) = ring(0);
        let theirs = bells.clone();
        let sender = thread::spawn(move || {
            for number in 0..2 {
                producer.push(number, number.into(), &[pair(number)]);
                producer.show();
                theirs.published(5);
            }
        });
        let mut next = 0;
        while next < 2 {
            assert_eq!(bells.slept(), 1 << 5);
            while check(&mut consumer, next) {
                next += 1;
            }
        }
        sender.join().expect("the sender");
    });
}

/// Two threads of a program, each with a flow of its own, and one driver that sleeps. Three threads
/// have too many interleavings to try all of them, so loom tries those with at most two
/// preemptions.
#[test]
fn nor_with_two_who_ring() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(|| {
        let bells = bells();
        let done = [
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicBool::new(false)),
        ];
        let threads = [0, 1].map(|slot| {
            let (bells, done) = (bells.clone(), done[slot as usize].clone());
            thread::spawn(move || {
                done.store(true, Ordering::Relaxed);
                bells.published(slot);
            })
        });
        let mut seen = 0;
        while seen != 3 {
            let slots = bells.slept();
            for slot in [0, 1] {
                if slots & 1 << slot != 0 {
                    // A thread whose flow is noticed has stored its data before.
                    assert!(done[slot].load(Ordering::Relaxed));
                }
            }
            seen |= slots;
        }
        for thread in threads {
            thread.join().expect("who rings");
        }
    });
}

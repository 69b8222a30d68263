//! Other structures that could order the flows, to compare the calendar with: the standard
//! library's heap and tree, and a wheel of vectors. Their shaper is as small as possible: 64 bytes,
//! whole nanoseconds, no catching up. Each function returns a closure that takes the number of
//! packets to shape.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::hint::black_box;

use netnice_core::contract;
use netnice_core::units::Bytes;

use crate::load::{LENGTH, Random, TOTAL, dual};

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Shaper {
    tat: u64,
    bucket: u64,
    step: u64,
    bucket_step: u64,
    tolerance: u64,
}

impl Shaper {
    fn new(contract: &contract::Cell) -> Shaper {
        let sustained = contract.sustained().unwrap();
        let step = contract.pcr().time_for(Bytes(LENGTH)).0;
        let bucket_step = sustained.scr.time_for(Bytes(LENGTH)).0;
        let packets = sustained.mbs.0 / LENGTH;
        Shaper {
            tat: 0,
            bucket: 0,
            step,
            bucket_step,
            tolerance: (packets - 1) * (bucket_step - step),
        }
    }

    /// The eligible time of the next packet, after one that left at `now`.
    fn shape(&mut self, now: u64) -> u64 {
        self.tat = self.tat.max(now) + self.step;
        self.bucket = self.bucket.max(now) + self.bucket_step;
        match self.bucket.saturating_sub(self.tolerance) <= self.tat {
            true => self.tat,
            false => self.bucket,
        }
    }
}

fn shapers(flows: usize, same: bool) -> Vec<Shaper> {
    let mut random = Random(7);
    (0..flows)
        .map(|_| Shaper::new(&dual(TOTAL / flows as u64, (!same).then_some(&mut random))))
        .collect()
}

pub fn heap(flows: usize, same: bool) -> impl FnMut(u32) {
    let mut shapers = shapers(flows, same);
    let mut heap: BinaryHeap<_> = (0..flows as u32).map(|id| Reverse((0_u64, id))).collect();
    move |packets| {
        for _ in 0..packets {
            let Reverse((now, id)) = heap.pop().unwrap();
            let next = shapers[id as usize].shape(now);
            heap.push(Reverse((next, id)));
            black_box(id);
        }
    }
}

pub fn tree(flows: usize, same: bool) -> impl FnMut(u32) {
    let mut shapers = shapers(flows, same);
    let mut tree: BTreeMap<_, _> = (0..flows as u32).map(|id| ((0_u64, id), ())).collect();
    move |packets| {
        for _ in 0..packets {
            let ((now, id), ()) = tree.pop_first().unwrap();
            let next = shapers[id as usize].shape(now);
            tree.insert((next, id), ());
            black_box(id);
        }
    }
}

/// One ring of slots of 4 us that is searched slot by slot. An entry farther away than the ring's
/// length waits in the last slot and is inserted again.
pub fn wheel(flows: usize, same: bool) -> impl FnMut(u32) {
    const SLOTS: u64 = 1 << 16;
    const WIDTH: u64 = 1 << 12;
    let mut shapers = shapers(flows, same);
    let mut slots: Vec<Vec<(u64, u32)>> = vec![Vec::new(); SLOTS as usize];
    slots[0] = (0..flows as u32).map(|id| (0, id)).collect();
    let mut at = 0_u64;
    move |packets| {
        let mut left = packets;
        while left > 0 {
            let Some((due, id)) = slots[(at % SLOTS) as usize].pop() else {
                at += 1;
                continue;
            };
            let now = at * WIDTH;
            let next = match due > now {
                true => due,
                false => shapers[id as usize].shape(now),
            };
            let slot = next.div_ceil(WIDTH).clamp(at + 1, at + SLOTS - 1);
            slots[(slot % SLOTS) as usize].push((next, id));
            if due <= now {
                black_box(id);
                left -= 1;
            }
        }
    }
}

//! Compares the order of a calendar's entries with that of an ordered map, and the rounding of keys
//! with its promised bounds.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::cell::Cell;

use netnice_cases::cases;
use proptest::prelude::*;

use super::lookahead::LOOKAHEAD_MIN;
use super::*;

/// Operations on a calendar of times.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Time advances.
    Pass(u64),
    /// A key at this distance from now is inserted.
    Push(u64),
    /// All due entries are taken.
    Drain,
    /// The entry with this index is removed.
    Remove(usize),
}

fn distances() -> impl Strategy<Value = u64> {
    (0_u32..48).prop_flat_map(|bits| 0_u64..1 << bits)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => distances().prop_map(Step::Pass),
        6 => distances().prop_map(Step::Push),
        2 => Just(Step::Drain),
        2 => any::<usize>().prop_map(Step::Remove),
    ];
    prop::collection::vec(step, 1..200)
}

/// A calendar of wake-up times, with an ordered map of its expected content.
struct Sleepers {
    calendar: Calendar<9>,
    pool: Pool,
    now: u64,
    next: u32,
    /// For each entry: the key that was asked for, the key of its bucket, its position, and whether
    /// the bucket is before the key.
    expected: BTreeMap<u32, (u64, u64, EntryPosition, bool)>,
}

impl Sleepers {
    fn new(now: u64) -> Sleepers {
        let mut pool = Pool::with_capacity(0);
        pool.reserve(1000);
        Sleepers {
            calendar: Calendar::new(3),
            pool,
            now,
            next: 0,
            expected: BTreeMap::new(),
        }
    }

    fn push(&mut self, distance: u64) {
        self.flush_if_due();
        let key = self.now.saturating_add(distance);
        let exact = self.calendar.bucket_not_before(key, self.now, u32::MAX);
        let bucket = exact.unwrap_or_else(|| self.calendar.bucket_before(key, self.now));
        let id = self.next;
        self.next += 1;
        let position = EntryPosition::default();
        self.expected
            .insert(id, (key, bucket.key, position, exact.is_none()));
        let entry = QueueEntry::new(id, id & 0xfff);
        let inserted = self.calendar.push_deferred(&mut self.pool, bucket, entry);
        if let Some((id, position)) = inserted {
            self.expected.get_mut(&id).unwrap().2 = position;
        }
        let first_key = self.expected.values().map(|(_, at, ..)| *at).min();
        assert_eq!(self.calendar.first_key(), first_key);
    }

    fn flush_if_due(&mut self) {
        if self.calendar.is_flush_due(self.now) {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let expected = &mut self.expected;
        self.calendar.flush(&mut self.pool, |id, position| {
            expected.get_mut(&id).unwrap().2 = position;
        });
    }

    /// Takes all due entries. Checks their order, and that no other entry was due.
    fn drain(&mut self) {
        self.flush_if_due();
        let mut last = 0;
        while let Some(bucket) = self.calendar.peek().filter(|bucket| bucket.key <= self.now) {
            assert!(bucket.key >= last, "out of order");
            last = bucket.key;
            let entry = self.calendar.take(&mut self.pool).unwrap();
            assert_eq!(entry.code(), entry.id() & 0xfff);
            let (_, at, ..) = self.expected.remove(&entry.id()).unwrap();
            assert_eq!(at, bucket.key);
            self.calendar.invariants(&self.pool);
        }
        assert!(self.expected.values().all(|(_, at, ..)| *at > self.now));
    }

    fn remove(&mut self, which: usize) {
        if self.expected.is_empty() {
            return;
        }
        self.flush();
        let index = which % self.expected.len();
        let (&id, &(_, _, position, _)) = self.expected.iter().nth(index).unwrap();
        assert!(self.calendar.holds(&self.pool, position, id));
        self.expected.remove(&id);
        if let Some(moved) = self.calendar.remove(&mut self.pool, position) {
            self.expected.get_mut(&moved.id()).unwrap().2 = position;
        }
    }
}

proptest! {
    #![proptest_config(cases(40))]

    /// No entry is early, lost, out of order, or later than 1/1024 of its wait or 512 ns.
    #[test]
    fn entries_leave_in_order_and_in_time(
        start in prop_oneof![Just(0), 0_u64..1 << 50],
        steps in steps(),
    ) {
        let mut sleepers = Sleepers::new(start);
        for step in steps {
            match step {
                Step::Pass(time) => sleepers.now = sleepers.now.saturating_add(time),
                Step::Push(distance) => {
                    sleepers.push(distance);
                    let (key, at, _, early) = *sleepers.expected.values().next_back().unwrap();
                    if early {
                        prop_assert!(at <= key);
                    } else {
                        prop_assert!(at >= key);
                        prop_assert!(
                            at - key <= (distance >> 10).max(511),
                            "{distance}: {}",
                            at - key,
                        );
                    }
                }
                Step::Drain => sleepers.drain(),
                Step::Remove(which) => sleepers.remove(which),
            }
            let entries = sleepers.calendar.invariants(&sleepers.pool);
            prop_assert_eq!(entries, sleepers.expected.len());
        }
        sleepers.now = u64::MAX;
        sleepers.drain();
        prop_assert!(sleepers.calendar.is_empty());
    }

    /// If the base follows the keys, they may wrap around.
    #[test]
    fn tags_wrap_around(
        start in prop_oneof![Just(u64::MAX - (1 << 30)), any::<u64>()],
        steps in prop::collection::vec(0_u64..1 << 40, 1..200),
    ) {
        let mut pool = Pool::with_capacity(0);
        pool.reserve(1000);
        let mut calendar = Calendar::<12>::new(1);
        let (mut now, mut taken) = (start, 0);
        for (id, step) in steps.iter().enumerate() {
            calendar.base = now.wrapping_sub(1 << 62);
            let key = now.wrapping_add(*step);
            let bucket = calendar.bucket_before(key, now);
            prop_assert!(key.wrapping_sub(bucket.key) <= (step >> 10).max(4095));
            calendar.push(&mut pool, bucket, QueueEntry::new(id as u32, 0));
            if id % 3 == 2 {
                let bucket = calendar.peek().unwrap();
                calendar.take(&mut pool).unwrap();
                taken += 1;
                if bucket.key.wrapping_sub(now) < 1 << 62 {
                    now = bucket.key;
                }
            }
            calendar.invariants(&pool);
        }
        let mut last = now.wrapping_sub(1 << 13);
        while let Some(bucket) = calendar.peek() {
            prop_assert!(bucket.key.wrapping_sub(last) < 1 << 62);
            last = bucket.key;
            calendar.take(&mut pool).unwrap();
            taken += 1;
        }
        prop_assert_eq!(taken, steps.len());
    }
}

#[test]
fn the_entries_of_a_bucket_leave_first_in_first_out() {
    let mut pool = Pool::with_capacity(0);
    pool.reserve(100);
    let mut calendar = Calendar::<9>::new(0);
    let bucket = calendar.bucket_not_before(1000, 0, 99).unwrap();
    for id in 0..100 {
        calendar.push(&mut pool, bucket, QueueEntry::new(id, 7));
    }
    for id in 0..100 {
        let next = calendar.peek().unwrap();
        let entry = calendar.take(&mut pool).unwrap();
        assert_eq!((entry.id(), next.key), (id, 1024));
    }
    assert_eq!(calendar.peek(), None);
    assert_eq!(pool.memory(), 9 * 64, "eight nodes and the none");
}

#[test]
fn long_overdue_entries_stay_in_order() {
    let mut pool = Pool::with_capacity(0);
    pool.reserve(10);
    let mut calendar = Calendar::<9>::new(0);
    let first = calendar.bucket_before(0, 0);
    calendar.push(&mut pool, first, QueueEntry::new(1, 0));
    // The first level is 8.4 ms long. An hour later its first bucket is still in use.
    let now = 3_600_000_000_000;
    let second = calendar.bucket_before(now + 5000, now);
    calendar.push(&mut pool, second, QueueEntry::new(2, 0));
    calendar.invariants(&pool);
    let order: Vec<u32> = core::iter::from_fn(|| Some(calendar.take(&mut pool)?.id())).collect();
    assert_eq!(order, [1, 2]);
}

#[test]
fn a_bucket_is_at_most_as_wide_as_requested() {
    let calendar = Calendar::<9>::new(0);
    let second = 1_000_000_000;
    let coarse = calendar.bucket_not_before(second + 1, 0, 99).unwrap().key;
    assert_eq!(coarse % (1 << 19), 0);
    assert_eq!(
        calendar.bucket_not_before(second + 1, 0, 12),
        None,
        "no level is that fine and that long"
    );
    let early = calendar.bucket_before(second + 1, 0).key;
    assert!(early <= second + 1 && second - early < 1 << 20);
}

/// Nearly all of many entries with waits of many lengths are read ahead some time before they are
/// taken, but not too early.
#[test]
fn entries_are_read_ahead_before_they_are_taken() {
    const ENTRIES: u32 = 8192;
    const ROUNDS: u32 = if cfg!(miri) { 1024 } else { 5 * ENTRIES };
    let mut pool = Pool::with_capacity(0);
    pool.reserve(ENTRIES as usize);
    let mut calendar = Calendar::<9>::new(0);
    let prefetched: Vec<Cell<u32>> = (0..ENTRIES).map(|_| Cell::new(0)).collect();
    let wait = |id: u32, round: u32| {
        let random = (u64::from(id) << 20 | u64::from(round)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (1 << 20 << (id % 6)) + (random >> 44)
    };
    for id in 0..ENTRIES {
        let bucket = calendar.bucket_not_before(wait(id, 0), 0, 63).unwrap();
        assert!(
            calendar.push_with_lookahead(&mut pool, bucket, QueueEntry::new(id, 0))
                || id > LOOKAHEAD_MIN
        );
    }
    let mut in_time = 0;
    for round in 1..=ROUNDS {
        let now = calendar.peek().unwrap().key;
        let prefetch_entry = |entry: QueueEntry, key: u64| {
            assert!(key >= now);
            prefetched[entry.id() as usize].set(round);
        };
        let id = calendar
            .take_with_lookahead(&mut pool, prefetch_entry)
            .unwrap()
            .id();
        let before = round - prefetched[id as usize].get();
        in_time += u32::from((1..128).contains(&before));
        let bucket = calendar
            .bucket_not_before(now + wait(id, round), now, 63)
            .unwrap();
        if calendar.push_with_lookahead(&mut pool, bucket, QueueEntry::new(id, 0)) {
            prefetched[id as usize].set(round);
        }
        if round % 1024 == 0 {
            assert_eq!(calendar.invariants(&pool), ENTRIES as usize);
        }
    }
    assert!(in_time > ROUNDS / 100 * 97, "{in_time}");
}

/// Nodes of one code move as a whole, other nodes do not, and the order stays.
#[test]
fn nodes_of_one_code_move_as_a_whole() {
    let mut pool = Pool::with_capacity(0);
    pool.reserve(200);
    let (mut from, mut to) = (Calendar::<9>::new(0), Calendar::<9>::new(1));
    let bucket = from.bucket_not_before(1000, 0, 99).unwrap();
    // Three nodes of 14, the second with another code in its middle, and a short one.
    for id in 0..47 {
        let code = if id == 20 { 8 } else { 7 };
        from.push(&mut pool, bucket, QueueEntry::new(id, code));
    }
    assert!(from.detach_node(&mut pool, 7).is_none(), "only codes below");
    let target = to.bucket_before(5000, 0);
    to.push(&mut pool, target, QueueEntry::new(99, 0));
    let mut singles = Vec::new();
    while !from.is_empty() {
        match from.detach_node(&mut pool, 9) {
            Some(node) => {
                assert_eq!(node.code(), 7);
                to.attach_node(&mut pool, target, node, |_| ());
            }
            None => singles.push(from.take(&mut pool).unwrap().id()),
        }
        assert_eq!(
            from.invariants(&pool) + to.invariants(&pool) + singles.len(),
            48
        );
    }
    assert_eq!(singles, (14..28).collect::<Vec<_>>());
    // Behind the nodes there is room in the last one.
    to.push(&mut pool, target, QueueEntry::new(100, 0));
    let order: Vec<u32> = core::iter::from_fn(|| Some(to.take(&mut pool)?.id())).collect();
    let wholes = (0..14).chain(28..47);
    let wanted: Vec<u32> = [99].into_iter().chain(wholes).chain([100]).collect();
    assert_eq!(order, wanted);
    assert!(from.is_empty() && to.is_empty());
}

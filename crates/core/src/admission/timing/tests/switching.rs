//! Checks theorem 3 (docs/reference/contracts.md) with handlers that switch. The simulation does
//! not use admission's cost of a job: the processor follows the rule of the paper RTC (section
//! 3.1), and a switch takes time when it happens.
//!
//! There is a handler for each channel. The one with the earliest deadline has the processor. It
//! yields at its preemption points, which lie P packets apart. A handler that gets the processor
//! from another one pays for the switch, and for a cold cache, before its first packet. Best effort
//! gets the rest, a block at a time.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::num::NonZeroU32;

use proptest::prelude::*;

use super::model::at;
use crate::admission::timing::{Processor, Work};
use crate::contract::{Channel, MessageRate};
use crate::units::{Bytes, Nanos};

/// A message that is not processed yet.
struct Job {
    due: u64,
    packets: u64,
    is_begun: bool,
}

/// Simulates channels whose first messages arrive at the times `first`, and which send as often as
/// allowed. `after` gives the time at which work that begins at a time, and takes a time on the
/// whole processor, has ended. Returns the number of late messages.
pub(super) fn late(
    costs: &Processor,
    channels: &[Channel],
    first: &[u64],
    best_effort: bool,
    after: impl Fn(u64, u64) -> u64,
) -> u64 {
    let mut waiting: Vec<VecDeque<Job>> = channels.iter().map(|_| VecDeque::new()).collect();
    let mut next = first.to_vec();
    let (mut now, mut had, mut late) = (0, None, 0);
    while now < UNTIL {
        for (at, channel) in channels.iter().enumerate() {
            while next[at] <= now {
                waiting[at].push_back(Job {
                    due: next[at] + channel.deadline().0,
                    packets: channel.mmax().0.div_ceil(costs.largest.0),
                    is_begun: false,
                });
                next[at] += 1_000_000_000_u64.div_ceil(u64::from(channel.rmax().get()));
            }
        }
        let due = |at: &usize| waiting[*at].front().map(|job| job.due);
        let who = (0..channels.len())
            .filter(|at| due(at).is_some())
            .min_by_key(due);
        if who.is_none() && !best_effort {
            // The cache is cold for the next handler.
            (now, had) = (next.iter().copied().min().unwrap_or(UNTIL), None);
            continue;
        }
        if had != Some(who) {
            now = after(now, costs.switch.0 + costs.cache_miss.0);
            had = Some(who);
        }
        let block = u64::from(costs.block.get());
        let Some(job) = who.and_then(|who| waiting[who].front_mut()) else {
            let longest =
                costs.first.0 + (block - 1) * costs.later.0 + block * costs.link_scheduling.0;
            now = after(now, longest);
            continue;
        };
        for _ in 0..block.min(job.packets) {
            let is_first = !core::mem::replace(&mut job.is_begun, true);
            let processing = if is_first { costs.first } else { costs.later };
            now = after(now, processing.0 + costs.link_scheduling.0);
            job.packets -= 1;
        }
        if job.packets == 0 {
            late += u64::from(now > job.due);
            who.map(|who| waiting[who].pop_front());
        }
    }
    late
}

/// The times of the first messages of `count` channels: all channels at once, and each one a moment
/// before all others.
pub(super) fn first_messages(count: usize) -> impl Iterator<Item = Vec<u64>> {
    let all = core::iter::once(alloc::vec![1; count]);
    let early = (0..count).map(move |early| (0..count).map(|n| u64::from(n != early)).collect());
    all.chain(early)
}

fn is_late_somewhere(costs: &Processor, channels: &[Channel], best_effort: bool) -> bool {
    let whole = |now, takes| now + takes;
    first_messages(channels.len())
        .any(|first| late(costs, channels, &first, best_effort, whole) > 0)
}

/// A processor, whether best effort uses its left-over, and channels to request.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub costs: Processor,
    pub best_effort: bool,
    pub requested: Vec<Channel>,
}

pub(super) fn cases() -> impl Strategy<Value = Case> {
    let times = (
        0_u64..200,
        0_u64..200,
        200_u64..500,
        50_u64..200,
        50_u64..200,
    );
    let channel = (64_u64..12_000, 1_u32..60, 1_u64..100).prop_map(|(mmax, rmax, deadline)| {
        let rmax = MessageRate::new(rmax).expect("a rate");
        Channel::new(Bytes(mmax), rmax, 1, Nanos::from_millis(deadline)).expect("a channel")
    });
    let requested = prop::collection::vec(channel, 2..9);
    (times, 1_u32..7, any::<bool>(), requested).prop_map(
        |(times, block, best_effort, requested)| {
            let us = Nanos::from_micros;
            let (switch, cache_miss, first, later, link_scheduling) = times;
            let longest = switch
                + cache_miss
                + first
                + u64::from(block - 1) * later
                + u64::from(block) * link_scheduling;
            let costs = Processor {
                switch: us(switch),
                cache_miss: us(cache_miss),
                first: us(first),
                later: us(later),
                link_scheduling: us(link_scheduling),
                block: NonZeroU32::new(block).expect("above zero"),
                largest: Bytes(1500),
                leftover: if best_effort { us(longest) } else { Nanos(0) },
            };
            Case {
                costs,
                best_effort,
                requested,
            }
        },
    )
}

/// The channels that fit, the last of them with the shortest deadline that is granted.
pub(super) fn granted(costs: &Processor, requested: &[Channel]) -> Vec<Channel> {
    let fits = |all: &[Channel]| {
        let all: Vec<Work> = all.iter().copied().map(Work::Channel).collect();
        costs.carries(&all).is_ok()
    };
    let mut held: Vec<Channel> = Vec::new();
    for channel in requested {
        held.push(*channel);
        if !fits(&held) {
            held.pop();
        }
    }
    if let Some(last) = held.pop() {
        let (mut short, mut long) = (0, last.deadline().0);
        while long - short > 1 {
            let middle = short + (long - short) / 2;
            held.push(at(&last, middle));
            match fits(&held) {
                true => long = middle,
                false => short = middle,
            }
            held.pop();
        }
        held.push(at(&last, long));
    }
    held
}

proptest! {
    #![proptest_config(netnice_cases::cases(128))]

    #[test]
    #[cfg_attr(miri, ignore = "minutes")]
    fn granted_channels_are_processed_in_time_with_any_switching(case in cases()) {
        let channels = granted(&case.costs, &case.requested);
        prop_assert!(!is_late_somewhere(&case.costs, &channels, case.best_effort), "{channels:?}");
    }
}

/// Without the cost of switching, or with half of it (once for each job instead of twice), promises
/// are broken. So this model detects the error.
#[test]
#[cfg_attr(miri, ignore = "minutes")]
fn a_test_that_counted_less_would_break_promises() {
    use proptest::strategy::ValueTree as _;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut none, mut half) = (0, 0);
    for _ in 0..SETS {
        let case = cases().new_tree(&mut runner).expect("a case").current();
        let with = |part: u64| {
            let costs = Processor {
                switch: Nanos(case.costs.switch.0 * part / 2),
                cache_miss: Nanos(case.costs.cache_miss.0 * part / 2),
                ..case.costs
            };
            let channels = granted(&costs, &case.requested);
            is_late_somewhere(&case.costs, &channels, case.best_effort)
        };
        none += u32::from(with(0));
        half += u32::from(with(1));
    }
    assert!(
        none * 3 > SETS && half * 10 > SETS,
        "{none} and {half} of {SETS}"
    );
}

const UNTIL: u64 = 400_000_000;
const SETS: u32 = 100;

//! Finds the heads of flows, and chooses those that leave. No function fails: a program that breaks
//! a rule of the ring is noted for `Datapath::publish`, which disconnects it.

use super::*;

impl Datapath {
    /// Takes the next record of each noticed flow without a head, and reports it to the scheduler.
    pub(super) fn find_heads(&mut self, now: Instant) {
        if self.handled == self.noticed.len() {
            self.handled = 0;
            self.collect_notices(now);
        }
        let noticed = std::mem::take(&mut self.noticed);
        let until = noticed.len().min(self.handled + FLOWS_PER_ITERATION);
        for at in self.handled..until {
            if let Some(Some(flow)) =
                ahead(&noticed, at, PREFETCH_RINGS).and_then(|number| self.flows.get(number))
            {
                flow.ring.prefetch_take();
                self.scheduler.prefetch(flow.id);
            }
            if let Some(flow) =
                ahead(&noticed, at, PREFETCH_FLOW).and_then(|number| self.flows.get(number))
            {
                prefetch_choice(flow);
            }
            let number = noticed[at];
            let Some(Some(flow)) = self.flows.get_mut(number as usize) else {
                continue;
            };
            if !flow.wants_head() {
                continue;
            }
            if flow.touch() {
                self.touched.push(number);
            }
            if let Err(violation) = flow.find_head(&mut self.scheduler, now) {
                self.violations.push((flow.program, violation));
            }
        }
        (self.noticed, self.handled) = (noticed, until);
    }

    /// Collects the flows that notices name.
    fn collect_notices(&mut self, now: Instant) {
        let Datapath {
            noticed, programs, ..
        } = self;
        noticed.clear();
        for program in programs.iter().filter(|program| program.is_polled(now)) {
            program.memory.take_notices(|slot| {
                noticed.extend(program.slots.get(slot as usize).copied().flatten());
            });
        }
    }

    /// Chooses the next departing head, and makes the record behind it the new head. False if no
    /// head is due.
    pub(super) fn choose_next(&mut self, now: Instant) -> bool {
        self.prefetch_upcoming();
        let Datapath {
            scheduler,
            flows,
            touched,
            violations,
            departures,
            redirected,
            ..
        } = self;
        let (before, chosen) = departures.newest();
        let departure = scheduler.poll(now, |id: FlowId| {
            let Some(slot) = flows.get_mut(id.index()) else {
                return redirected.advance(id, now);
            };
            prefetch_choice(slot);
            prefetch_sending(slot);
            let Some(flow) = slot.as_mut() else {
                return redirected.advance(id, now);
            };
            if flow.is_ignored() {
                flow.drop_head();
                return None;
            }
            let behind = flow.replace_head((before, chosen), now);
            behind.unwrap_or_else(|violation| {
                violations.push((flow.program, violation));
                None
            })
        });
        let Some(departure) = departure else {
            return false;
        };
        let number = departure.flow.index();
        let Some(Some(flow)) = flows.get_mut(number) else {
            if let Some((frame, since)) = redirected.take_departing(departure.flow) {
                chosen.frame = Some(frame);
                (chosen.departure, chosen.since) = (Some(departure), since);
                departures.count += 1;
            }
            return true;
        };
        if flow.is_ignored() || (chosen.parts.count() == 0 && chosen.record.pairs().is_empty()) {
            return true;
        }
        if flow.touch() {
            touched.push(number as u32);
        }
        chosen.since = std::mem::replace(&mut flow.head_since, now);
        chosen.departure = Some(departure);
        if !(flow.may_join && departures.join_last()) {
            flow.ring.prefetch();
            flow.ring
                .prefetch_read(&departures.packets[departures.count].record);
            departures.count += 1;
        }
        true
    }
}

impl Datapath {
    /// Prefetches the flows that the scheduler will probably choose next: first their state, and
    /// some packets later what it refers to.
    #[inline(always)]
    fn prefetch_upcoming(&mut self) {
        while let Some(id) = self.scheduler.poll_upcoming() {
            let number = id.index();
            if let Some(flow) = self.flows.get(number) {
                prefetch_choice(flow);
            }
            let earlier = self.upcoming.replace(number as u32);
            if let Some(Some(flow)) = self.flows.get(earlier as usize) {
                flow.ring.prefetch();
            }
        }
    }
}

/// The last flows that the scheduler named as upcoming.
#[derive(Default)]
pub(super) struct UpcomingFlows {
    flows: [u32; PREFETCH_FLOW],
    oldest: usize,
}

impl UpcomingFlows {
    /// Adds a flow and removes the oldest, which it returns: at the beginning, 0.
    #[inline(always)]
    fn replace(&mut self, flow: u32) -> u32 {
        self.oldest = (self.oldest + 1) % PREFETCH_FLOW;
        std::mem::replace(&mut self.flows[self.oldest], flow)
    }
}

/// The number of the flow that comes `entries` positions after `at`.
fn ahead(flows: &[u32], at: usize, entries: usize) -> Option<usize> {
    flows.get(at + entries).map(|number| *number as usize)
}

/// How far ahead a flow's rings are prefetched, and how far the flow, which has their addresses.
const PREFETCH_RINGS: usize = 4;
const PREFETCH_FLOW: usize = 8;

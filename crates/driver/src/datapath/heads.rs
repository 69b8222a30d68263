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
                flow.ring.prefetch();
            }
            if let Some(flow) =
                ahead(&noticed, at, PREFETCH_FLOW).and_then(|number| self.flows.get(number))
            {
                prefetch::whole(flow);
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
        let Datapath {
            scheduler,
            flows,
            touched,
            violations,
            departures,
            redirected,
            ..
        } = self;
        let mut behind = None;
        let departure = scheduler.poll(now, |id: FlowId| {
            let Some(slot) = flows.get_mut(id.index()) else {
                return redirected.advance(id, now);
            };
            prefetch::whole(slot);
            let Some(flow) = slot.as_mut() else {
                return redirected.advance(id, now);
            };
            if flow.is_ignored() {
                return None;
            }
            match flow.next_record() {
                Ok(record) => behind = record,
                Err(violation) => violations.push((flow.program, violation)),
            }
            // The record arrived while the one before it waited. If the program does not state the
            // time, its message must not count as later than that.
            behind
                .as_ref()
                .map(|record| flow.packet(record, now, Instant(0)))
        });
        let Some(departure) = departure else {
            return false;
        };
        let number = departure.flow.index();
        let Some(Some(flow)) = flows.get_mut(number) else {
            if let Some((frame, since)) = redirected.take_departing(departure.flow) {
                let head = Head::Frame(frame);
                departures.push(ChosenPacket {
                    departure,
                    head,
                    since,
                });
            }
            return true;
        };
        if flow.is_ignored() {
            flow.head = None;
            return true;
        }
        flow.ring.prefetch();
        if flow.touch() {
            touched.push(number as u32);
        }
        if let Some(head) = flow.replace_head(behind) {
            flow.ring.prefetch_read(&head);
            let since = std::mem::replace(&mut flow.head_since, now);
            departures.push(ChosenPacket {
                departure,
                head: Head::Record(head),
                since,
            });
        }
        true
    }
}

/// The number of the flow that comes `entries` positions after `at`.
fn ahead(flows: &[u32], at: usize, entries: usize) -> Option<usize> {
    flows.get(at + entries).map(|number| *number as usize)
}

/// How far ahead a flow's rings are prefetched, and how far the flow, which has their addresses.
const PREFETCH_RINGS: usize = 4;
const PREFETCH_FLOW: usize = 8;

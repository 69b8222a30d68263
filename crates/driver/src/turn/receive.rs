//! Delivers received frames to flows, and charges the flows' receive budgets.

use super::*;

impl Turn {
    /// Begins an iteration. `woke` is the cost of waking up for received frames, or 0; the first
    /// frame pays for it.
    pub fn begin(&mut self, woke: Nanos) {
        self.cost.begin(woke);
        self.pool.begin(self.cost.alone());
    }

    /// Handles a received frame.
    pub fn receive(&mut self, frame: &[u8], now: Instant) {
        let Turn {
            demux,
            flows,
            touched,
            broken,
            cost,
            pool,
            programs,
            short,
            shut,
            totals,
            ..
        } = self;
        let mut hand = |verdict: Verdict<'_>, bytes: &[u8]| {
            let (flows_of_it, end) = match &verdict {
                Verdict::One { flow, end } => (std::slice::from_ref(flow), *end),
                Verdict::Several { flows, end } => (*flows, *end),
                _ => return,
            };
            for number in flows_of_it {
                let Some(Some(flow)) = flows.get_mut(number.0 as usize) else {
                    continue;
                };
                if flow.is_silent() {
                    continue;
                }
                if flow.touch() {
                    touched.push(number.0);
                }
                let Some(program) = programs.get_mut(flow.program) else {
                    continue;
                };
                let receivers = &mut program.receivers;
                match flow.hand_over(&bytes[..end], cost, (pool, receivers), now) {
                    Ok(Handed::Over) => {
                        totals.delivered += 1;
                        totals.delivered_bytes += end as u64;
                    }
                    Ok(Handed::Lost) => {}
                    Ok(Handed::Cut(until)) => match shut.last_mut() {
                        Some(last) if last.0 == *number => last.1 = until,
                        _ => shut.push((*number, until)),
                    },
                    Err(breach) => broken.push((flow.program, breach)),
                }
                *short |= flow.runs_short(pool);
            }
        };
        hand(demux.handle(frame, now), frame);
        while let Some((bytes, verdict)) = demux.poll_released() {
            hand(verdict, &bytes);
        }
    }

    /// The next flow that cannot pay for received packets, with the end of that time. The caller
    /// can make XDP drop its frames until then.
    pub fn poll_shut(&mut self) -> Option<(FlowNo, Instant)> {
        self.shut.pop()
    }

    /// Counts frames of a flow that XDP dropped.
    pub fn shut_out(&mut self, flow: FlowNo, frames: u64) {
        if let Some(Some(flow)) = self.flows.get_mut(flow.0 as usize) {
            flow.shut_out(frames);
        }
    }

    /// Ends the reception of `frames` frames, which took `took` since [`Turn::begin`], including
    /// publication. True if a flow that received some has little or nothing left of its budget.
    pub fn charge(&mut self, frames: u32, took: Nanos) -> bool {
        self.cost.saw(frames, took);
        std::mem::take(&mut self.short)
    }
}

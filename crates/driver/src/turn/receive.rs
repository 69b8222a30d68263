//! Received frames: to their flows, and what they took to the flows' shares.

use super::*;

impl Turn {
    /// A round begins, for which the caller woke up at this cost, if frames have woken it: the first of them pays for it.
    pub fn begin(&mut self, woke: Nanos) {
        self.cost.begin(woke);
        self.pool.begin(self.cost.alone());
    }

    /// A frame came in.
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

    /// A flow that has used up its share of the driver's time, and until when it has: the caller can have its frames dropped
    /// before they come here.
    pub fn poll_shut(&mut self) -> Option<(FlowNo, Instant)> {
        self.shut.pop()
    }

    /// So many frames of a flow were dropped for that.
    pub fn shut_out(&mut self, flow: FlowNo, frames: u64) {
        if let Some(Some(flow)) = self.flows.get_mut(flow.0 as usize) {
            flow.shut_out(frames);
        }
    }

    /// So many frames were received and published, and it took so long since [`Turn::begin`]; `true` if flows that
    /// got some have little left of their share of the driver's time, or nothing.
    pub fn charge(&mut self, frames: u32, took: Nanos) -> bool {
        self.cost.saw(frames, took);
        std::mem::take(&mut self.short)
    }
}

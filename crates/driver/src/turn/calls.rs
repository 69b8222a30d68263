//! Programs that call the driver (docs/reference/ring.md, section 6), and those that call for nothing.
//!
//! A call is a ring, or a notice that keeps the driver from sleeping; who calls has it go round once more, on a processor that is
//! everybody's. A program that keeps to the rules calls for nothing now and then: it stored an index, the driver saw it on a round of its own,
//! and the notice came behind. One that takes the flag and rings, or sets notices, and moves nothing keeps every rule that can be seen.
//! So calls for nothing are counted, as by a policer ([`Calls`]): [`SPARE`] at once, one more each [`PAUSE`], and each turn
//! in which a flow has a new head gives one back. Who has none left is not listened to for a [`PAUSE`]: its doorbell is not heard, its notices are not
//! taken, it is not told that the driver sleeps. Its records that are known leave as ever.
//!
//! A call is for nothing if no index of the program moved since it was looked at, in the first [`NAMED`] flows that its notices name.
//! What moves is judged as ever, so there is an end to moving indices without sending anything.

use std::os::fd::BorrowedFd;

use super::*;

/// A program's calls for nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Calls {
    /// When none of them would count any more.
    counted: u64,
    /// It is not listened to before.
    mute: Instant,
}

impl Calls {
    /// One for nothing; until when the program is not listened to, if that was one too many.
    fn idle(&mut self, now: Instant) -> Option<Instant> {
        self.counted = self.counted.max(now.0).saturating_add(PAUSE.0);
        if self.counted < now.0.saturating_add(SPARE * PAUSE.0) {
            return None;
        }
        self.mute = Instant(now.0.saturating_add(PAUSE.0));
        Some(self.mute)
    }

    /// It brought something.
    #[inline]
    pub fn brought(&mut self) {
        self.counted = self.counted.saturating_sub(PAUSE.0);
    }
}

impl Program {
    /// Its notices are taken: it was not expelled, and did not call for nothing too often.
    #[inline]
    pub(super) fn is_heard(&self, now: Instant) -> bool {
        !self.expelled && self.calls.mute <= now
    }
}

impl Turn {
    /// The doorbell of a program: readable when it rang.
    pub fn bell(&self, program: ProgramNo) -> Option<BorrowedFd<'_>> {
        let known = self.programs.get(program)?;
        Some(known.client.bell())
    }

    /// Before sleeping. False: some program has news, look at them instead; and see who is [`Turn::poll_muted`].
    pub fn doze(&mut self, now: Instant) -> bool {
        let calls = |(number, program): (ProgramNo, &mut Program)| {
            (program.is_heard(now) && !program.client.doze()).then_some(number)
        };
        let caller = self.programs.iter_mut().find_map(calls);
        if let Some(number) = caller {
            self.wake();
            self.called(number, now);
        }
        caller.is_none()
    }

    /// After sleeping.
    pub fn wake(&mut self) {
        let programs = self.programs.iter_mut();
        let served = programs.filter(|(_, program)| !program.expelled);
        served.for_each(|(_, program)| program.client.wake());
    }

    /// A program rang; whether that was not asked for. See who is [`Turn::poll_muted`] then.
    pub fn hear(&mut self, program: ProgramNo, now: Instant) -> bool {
        let Some(known) = self.programs.get_mut(program) else {
            return false;
        };
        known.rang = true;
        if std::mem::take(&mut known.echoes) {
            known.client.wake();
            return false;
        }
        let unasked = known.client.rang();
        match unasked {
            false => self.called(program, now),
            true => self.muted.push((program, Instant(now.0 + PAUSE.0))),
        }
        unasked
    }

    /// Rings of a program are heard again, and the first may be one from before: its doorbell is never emptied, so who begins to
    /// listen hears that it rang once.
    pub fn unmute(&mut self, program: ProgramNo) {
        if let Some(known) = self.programs.get_mut(program) {
            known.echoes = known.rang;
        }
    }

    /// A program that rang unasked, or called for nothing too often, and until when its doorbell is not to be heard. The caller
    /// wakes up then: what such a program has to say may be looked at only then.
    pub fn poll_muted(&mut self) -> Option<(ProgramNo, Instant)> {
        self.muted.pop()
    }

    fn called(&mut self, number: ProgramNo, now: Instant) {
        if self.brings(number) {
            return;
        }
        let program = self.programs.get_mut(number);
        if let Some(until) = program.and_then(|program| program.calls.idle(now)) {
            self.muted.push((number, until));
        }
    }

    /// Whether an index of a program moved that its notices name.
    fn brings(&mut self, number: ProgramNo) -> bool {
        let Some(program) = self.programs.get(number) else {
            return false;
        };
        for slot in program.client.noticed().take(NAMED) {
            let flow = program.slots.get(slot as usize).copied().flatten();
            let flow = flow.and_then(|flow| self.flows.get_mut(flow as usize)?.as_mut());
            match flow.map(|flow| flow.ring.moved()) {
                Some(Ok(true)) => return true,
                Some(Ok(false)) | None => {}
                Some(Err(breach)) => {
                    self.broken.push((number, breach));
                    return true;
                }
            }
        }
        false
    }
}

/// For how long a program is not listened to. A hundred wake-ups a second are a thousandth of a processor.
const PAUSE: Nanos = Nanos::from_millis(10);
/// Calls for nothing before it is not.
const SPARE: u64 = 16;
/// How many flows are looked at to judge a call.
const NAMED: usize = 8;

#[cfg(test)]
mod tests;

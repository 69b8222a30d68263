//! Programs that wake the driver (docs/reference/ring.md, section 6), and those that do so
//! needlessly.
//!
//! A wakeup is a doorbell write, or a notice that keeps the driver from sleeping. It causes one
//! more iteration, on a processor that all flows share. A program that keeps the rules causes a
//! needless wakeup now and then: it stores an index, the driver sees the index in an iteration of
//! its own, and the notice arrives later. A program that takes the flag and writes the doorbell, or
//! sets notices, and moves nothing keeps every rule that the driver can check. So needless wakeups
//! are policed ([`Calls`]): [`SPARE`] at once and one more each [`PAUSE`], and each iteration in
//! which a flow has a new head gives one back. A program without credit is throttled for a
//! [`PAUSE`]: its doorbell is not polled, its notices are not read, and it is not told that the
//! driver sleeps. Its known records leave as usual.
//!
//! A wakeup is needless if no index of the program has moved, in the first [`NAMED`] flows that its
//! notices name. A moved index is validated as usual, so a program cannot move indices endlessly
//! without sending.

use std::os::fd::BorrowedFd;

use super::*;

/// The needless wakeups of a program.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Calls {
    /// When the credit will be full again.
    counted: u64,
    /// The program is throttled until then.
    mute: Instant,
}

impl Calls {
    /// Counts a needless wakeup. If the credit is used up, returns the end of the program's pause.
    fn idle(&mut self, now: Instant) -> Option<Instant> {
        self.counted = self.counted.max(now.0).saturating_add(PAUSE.0);
        if self.counted < now.0.saturating_add(SPARE * PAUSE.0) {
            return None;
        }
        self.mute = Instant(now.0.saturating_add(PAUSE.0));
        Some(self.mute)
    }

    /// Gives one needless wakeup back.
    #[inline]
    pub fn brought(&mut self) {
        self.counted = self.counted.saturating_sub(PAUSE.0);
    }
}

impl Program {
    /// Whether the program's notices are read: it is neither disconnected nor throttled.
    #[inline]
    pub(super) fn is_heard(&self, now: Instant) -> bool {
        !self.expelled && self.calls.mute <= now
    }
}

impl Turn {
    /// The doorbell of a program; readable when the program wrote it.
    pub fn bell(&self, program: ProgramNo) -> Option<BorrowedFd<'_>> {
        let known = self.programs.get(program)?;
        Some(known.client.doorbell())
    }

    /// Call before sleeping. False: a program has news; run another iteration, and check
    /// [`Turn::poll_muted`].
    pub fn doze(&mut self, now: Instant) -> bool {
        let calls = |(number, program): (ProgramNo, &mut Program)| {
            (program.is_heard(now) && !program.client.prepare_sleep()).then_some(number)
        };
        let caller = self.programs.iter_mut().find_map(calls);
        if let Some(number) = caller {
            self.wake();
            self.called(number, now);
        }
        caller.is_none()
    }

    /// Call after sleeping.
    pub fn wake(&mut self) {
        let programs = self.programs.iter_mut();
        let served = programs.filter(|(_, program)| !program.expelled);
        served.for_each(|(_, program)| program.client.end_sleep());
    }

    /// A program wrote its doorbell. Returns whether the driver had not asked for it; then check
    /// [`Turn::poll_muted`].
    pub fn hear(&mut self, program: ProgramNo, now: Instant) -> bool {
        let Some(known) = self.programs.get_mut(program) else {
            return false;
        };
        known.rang = true;
        if std::mem::take(&mut known.echoes) {
            known.client.end_sleep();
            return false;
        }
        let unasked = known.client.on_doorbell_edge();
        match unasked {
            false => self.called(program, now),
            true => self.muted.push((program, Instant(now.0 + PAUSE.0))),
        }
        unasked
    }

    /// The program's doorbell is polled again. The first event may report an old write: the
    /// doorbell is never read, so adding it to an epoll reports that it was written before.
    pub fn unmute(&mut self, program: ProgramNo) {
        if let Some(known) = self.programs.get_mut(program) {
            known.echoes = known.rang;
        }
    }

    /// The next program to throttle, with the end of the pause: it wrote its doorbell unasked, or
    /// woke the driver needlessly too often. The caller runs an iteration at that time, since news
    /// of the program may be read only then.
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

    /// Whether an index moved in the flows that the program's notices name.
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

/// How long a program is throttled. A hundred wakeups a second take a thousandth of a processor.
const PAUSE: Nanos = Nanos::from_millis(10);
/// Needless wakeups before a program is throttled.
const SPARE: u64 = 16;
/// How many flows are checked to judge a wakeup.
const NAMED: usize = 8;

#[cfg(test)]
mod tests;

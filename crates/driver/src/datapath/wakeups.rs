//! Handles wake-ups of the driver by programs (docs/reference/ring.md, section 6), and throttles
//! programs that cause too many spurious ones.
//!
//! A wake-up is a doorbell write, or a notice that keeps the driver from sleeping. It causes one
//! more iteration, on a processor that all flows share. It is spurious if no index has moved in the
//! first [`CHECKED_FLOWS`] (8) flows that the program's notices name. A moved index is validated as
//! usual, so a program cannot move indices endlessly without sending.
//!
//! A program that keeps the rules causes a spurious wake-up sometimes: it stores an index, the
//! driver sees the index in an iteration that runs for another reason, and the notice arrives
//! later. A program can also take the driver's sleeping flag (set it to 0) and write the doorbell,
//! or set notices, without moving an index; it breaks no rule that the driver can check. So each
//! program has an allowance of spurious wake-ups ([`WakeupCredit`]): [`SPARE_WAKEUPS`] (16) at once
//! and one more each [`PAUSE`] (10 ms), and each flow that gets a new head in an iteration gives
//! one back. A program that has used up its allowance is throttled for a [`PAUSE`]: its doorbell is
//! not polled, its notices are not read, and its file does not show that the driver sleeps. Records
//! that were taken before leave as usual.
//!
//! If a program writes its doorbell without having taken the sleeping flag (rule R52), the doorbell
//! alone is not polled for a [`PAUSE`]. No function fails.

use std::os::fd::BorrowedFd;

use super::*;

/// The allowance of spurious wake-ups of a program.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WakeupCredit {
    /// When the allowance will be full again, in ns.
    full_at: u64,
    /// The program is throttled until then.
    throttled_until: Instant,
}

impl WakeupCredit {
    /// Counts a spurious wake-up. If it uses up the allowance, returns the end of the program's
    /// pause; else `None`.
    fn charge(&mut self, now: Instant) -> Option<Instant> {
        self.full_at = self.full_at.max(now.0).saturating_add(PAUSE.0);
        if self.full_at < now.0.saturating_add(SPARE_WAKEUPS * PAUSE.0) {
            return None;
        }
        self.throttled_until = Instant(now.0.saturating_add(PAUSE.0));
        Some(self.throttled_until)
    }

    /// Gives one spurious wake-up back.
    #[inline]
    pub(crate) fn refund(&mut self) {
        self.full_at = self.full_at.saturating_sub(PAUSE.0);
    }
}

impl Program {
    /// Whether the program's notices are read: it is neither disconnected nor throttled.
    #[inline]
    pub(super) fn is_polled(&self, now: Instant) -> bool {
        !self.disconnected && self.wakeup_credit.throttled_until <= now
    }
}

impl Datapath {
    /// The doorbell of a program; readable when the program wrote it. `None` if the program is not
    /// attached.
    pub(crate) fn doorbell(&self, program: ProgramNo) -> Option<BorrowedFd<'_>> {
        let known = self.programs.get(program)?;
        Some(known.memory.doorbell())
    }

    /// Call before sleeping: sets the driver's sleeping flag in the memory of each program that is
    /// not throttled. False: a program has set a notice, and the flags are cleared again; run
    /// another iteration, and check [`Datapath::poll_throttled`].
    pub(crate) fn prepare_sleep(&mut self, now: Instant) -> bool {
        let has_news = |(number, program): (ProgramNo, &mut Program)| {
            (program.is_polled(now) && !program.memory.prepare_sleep()).then_some(number)
        };
        let awake_for = self.programs.iter_mut().find_map(has_news);
        if let Some(number) = awake_for {
            self.end_sleep();
            self.on_wakeup(number, now);
        }
        awake_for.is_none()
    }

    /// Call after sleeping: clears the driver's sleeping flags.
    pub(crate) fn end_sleep(&mut self) {
        let programs = self.programs.iter_mut();
        let served = programs.filter(|(_, program)| !program.disconnected);
        served.for_each(|(_, program)| program.memory.end_sleep());
    }

    /// Handles a doorbell write of a program. True if the program had not taken the sleeping flag.
    /// Check [`Datapath::poll_throttled`] afterwards.
    pub(crate) fn on_doorbell(&mut self, program: ProgramNo, now: Instant) -> bool {
        let Some(known) = self.programs.get_mut(program) else {
            return false;
        };
        known.doorbell_written = true;
        if std::mem::take(&mut known.may_repeat_event) {
            known.memory.end_sleep();
            return false;
        }
        let unasked = known.memory.on_doorbell_edge();
        match unasked {
            false => self.on_wakeup(program, now),
            true => self.throttled.push((program, Instant(now.0 + PAUSE.0))),
        }
        unasked
    }

    /// Call when a program's doorbell is polled again. The first event may report an old write: the
    /// doorbell is never read, so enabling its events reports that it was written before.
    pub(crate) fn resume(&mut self, program: ProgramNo) {
        if let Some(known) = self.programs.get_mut(program) {
            known.may_repeat_event = known.doorbell_written;
        }
    }

    /// The next program to throttle, with the end of the pause; `None` if there is none. The
    /// program wrote its doorbell without the flag, or used up its allowance. The caller runs an
    /// iteration at that time, since the program's records may be read only then.
    pub(crate) fn poll_throttled(&mut self) -> Option<(ProgramNo, Instant)> {
        self.throttled.pop()
    }

    fn on_wakeup(&mut self, number: ProgramNo, now: Instant) {
        if self.has_news(number) {
            return;
        }
        let program = self.programs.get_mut(number);
        if let Some(until) = program.and_then(|program| program.wakeup_credit.charge(now)) {
            self.throttled.push((number, until));
        }
    }

    /// Whether an index moved in the flows that the program's notices name.
    fn has_news(&mut self, number: ProgramNo) -> bool {
        let Some(program) = self.programs.get(number) else {
            return false;
        };
        for slot in program.memory.noticed().take(CHECKED_FLOWS) {
            let flow = program.slots.get(slot as usize).copied().flatten();
            let flow = flow.and_then(|flow| self.flows.get_mut(flow as usize)?.as_mut());
            match flow.map(|flow| flow.ring.moved()) {
                Some(Ok(true)) => return true,
                Some(Ok(false)) | None => {}
                Some(Err(violation)) => {
                    self.violations.push((number, violation));
                    return true;
                }
            }
        }
        false
    }
}

/// How long a program is throttled. A hundred wake-ups a second take a thousandth of a processor.
const PAUSE: Nanos = Nanos::from_millis(10);
/// Number of spurious wake-ups in a row, the last of which throttles a program.
const SPARE_WAKEUPS: u64 = 16;
/// How many flows are checked for a moved index after a wake-up.
const CHECKED_FLOWS: usize = 8;

#[cfg(test)]
mod tests;

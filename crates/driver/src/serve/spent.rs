//! What the packet thread's time went to, from the clock readings that it takes anyhow.
//!
//! ```text
//!  asleep ─▶│ round: receives ─▶ sends ─▶ tells │ spins ─▶│ round │ falls asleep ─▶
//!           └──────── receiving, sending ───────┴ waiting ┘       └── waking, learnt ──
//! ```
//! Each stretch of time awake is for one of three: frames that came in, what programs submitted, or nothing at all, before a
//! departure that it wants to be in time for. To fall asleep and to be woken takes longer than most rounds and is seen by no clock, since
//! it is over before the thread knows. So of one sleep in [`SAMPLE`] the thread's own processor time is looked at ([`Waking`]), and a
//! round for which frames have woken it is charged with the mean.

use netnice_core::units::{Instant, Nanos};

/// What the loop did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Rounds of the loop.
    pub rounds: u64,
    /// How often it slept.
    pub sleeps: u64,
    /// Rounds in which the interface took nothing: it is down, say.
    pub refusals: u64,
    /// How often a doorbell was heard that was rung though nobody had asked for it.
    pub unasked: u64,
    /// Pauses though there was work, so that the kernel takes no longer ones.
    pub pauses: u64,
    /// For frames that came in, with what it took to wake up for them.
    pub receiving: Nanos,
    /// For what programs submitted, and for orders.
    pub sending: Nanos,
    /// For nothing but to be in time: looks that found nothing, and spinning.
    pub waiting: Nanos,
}

/// What ended the last sleep, as far as no round was charged with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Woken {
    /// There was none.
    #[default]
    Not,
    /// Received frames.
    Frames,
    /// A program, or an order.
    Called,
    /// A departure.
    Due,
}

/// The clock's readings in one round, and what was done between them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    /// Frames are looked for.
    pub began: Instant,
    /// They were handed over, and packets are looked for.
    pub handed: Instant,
    /// They were sent; programs are told. Nothing where no frame came.
    pub sent: Option<Instant>,
    /// Some packet has left.
    pub sends: bool,
}

impl Spent {
    /// A doorbell ended a sleep, unasked or not.
    pub(super) fn rung(&mut self, unasked: bool) {
        self.unasked += u64::from(unasked);
    }

    /// A round ended, and was awake since then. What received frames took of it.
    pub(super) fn round(
        &mut self,
        round: &Round,
        awake: Nanos,
        now: Instant,
        woken: Woken,
    ) -> Nanos {
        let span = |from: Instant, to: Instant| to.0.saturating_sub(from.0);
        let receiving = match round.sent {
            None => 0,
            Some(sent) if round.sends => span(round.began, round.handed) + span(sent, now),
            Some(_) => awake.0,
        };
        let rest = awake.0.saturating_sub(receiving);
        match round.sends || woken == Woken::Called {
            true => self.sending.0 += rest,
            false => self.waiting.0 += rest,
        }
        self.receiving.0 += receiving;
        Nanos(receiving)
    }
}

/// What it takes to fall asleep and to be woken.
#[derive(Debug)]
pub(super) struct Waking {
    /// In ns.
    cost: u64,
    sleeps: u32,
    /// The thread's processor time at the beginning of a sleep that is looked at.
    began: Option<u64>,
}

impl Waking {
    pub fn new() -> Waking {
        Waking {
            cost: FIRST,
            sleeps: 0,
            began: None,
        }
    }

    pub fn cost(&self) -> Nanos {
        Nanos(self.cost)
    }

    /// A sleep begins. `processor` is the thread's processor time, which is asked for seldom.
    pub fn falls_asleep(&mut self, processor: impl FnOnce() -> u64) {
        self.sleeps = self.sleeps.wrapping_add(1);
        self.began = self.sleeps.is_multiple_of(SAMPLE).then(processor);
    }

    /// It ended.
    pub fn wakes(&mut self, processor: impl FnOnce() -> u64) {
        if let Some(began) = self.began.take() {
            let took = processor().saturating_sub(began).min(MOST);
            self.cost = (self.cost * 15 + took) / 16;
        }
    }
}

/// Before anything is known.
const FIRST: u64 = 3_000;
/// To ask for the processor time is a call of the kernel's.
const SAMPLE: u32 = 16;
/// Who takes more was stopped by an interrupt.
const MOST: u64 = 50_000;

#[cfg(test)]
mod tests;

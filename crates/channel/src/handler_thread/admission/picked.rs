//! A reservation of processor time that is picked for the handlers of a program: as long as can be
//! had while a channel is being set up, so that the shortest bound can be held, and the least that
//! carries all handlers once their bounds are final. So a refused channel that is asked for again
//! with the best deadline finds the same bounds.
//!
//! The handlers have three quarters of it. The rest is for the other threads of the program, as
//! with [`NetworkOptions::use_reservation`](crate::network::NetworkOptions::use_reservation).
//!
//! [`Admission::provide`] fails with [`ChannelError::Flow`] if the daemon refuses all, and with
//! [`ChannelError::NotAdmitted`] if the handler is in time on nothing that it asks for.

use netnice_core::admission::processors::share_ppm;
use netnice_core::admission::timing::{Alternative, Work};
use netnice_core::contract::Slice;
use netnice_core::units::Nanos;
use netnice_stack::{StackError, own};

use super::{Admission, Demand, Held};
use crate::error::ChannelError;

impl Admission {
    /// Reserves as much as can be had for a new channel, and with the period with which its handler
    /// is in time first. The period of a reservation that carries others stays.
    /// Does nothing if none is picked.
    pub(super) fn provide(&self, held: &mut Held, new: Demand) -> Result<(), ChannelError> {
        let Some(work) = new.work.filter(|_| self.picks) else {
            return Ok(());
        };
        let mut refused: Result<(), ChannelError> = Ok(());
        for parts in PARTS {
            let longest = self.offers(held, parts);
            let has = held.whole.is_some_and(|whole| {
                let is_longer = |offer: &Slice| offer.slice() > whole.slice();
                !longest.iter().any(is_longer)
            });
            if has {
                return Ok(());
            }
            let Some(best) = self.soonest(held, (new, work), &longest) else {
                continue;
            };
            match self.reserve_for_program(best) {
                Ok(()) => {
                    held.whole = Some(best);
                    return self.ask_least(held);
                }
                Err(error @ StackError::Refused { .. }) => refused = Err(error.into()),
                Err(error) => return Err(error.into()),
            }
        }
        if held.whole.is_some() {
            // The channel is decided on what there is.
            return Ok(());
        }
        refused?;
        // The handler is in time on no offer, whatever its part of the deadline.
        let longest = self.offers(held, PARTS[0]);
        let (handlers, works) = self.handlers(held, new);
        let least = handlers.reserve(&works, &work, &longest);
        let least = least.map_err(|refusal| ChannelError::NotAdmitted {
            whole: longest[0],
            refusal,
        })?;
        self.reserve_for_program(least)?;
        held.whole = Some(least);
        self.ask_least(held)
    }

    /// Makes a picked reservation the least that carries the handlers, and ends it with the last
    /// channel. If the daemon does not change it, it stays as it is. Fails if the thread does not
    /// get its part of the changed one.
    pub(super) fn fit(&self, held: &mut Held) -> Result<(), ChannelError> {
        let Some(whole) = held.whole.filter(|_| self.picks) else {
            return Ok(());
        };
        if held.channels.is_empty() {
            if own::change(&self.dir, "cpu none").is_ok() {
                (held.whole, held.part) = (None, Nanos(0));
            }
            return Ok(());
        }
        let offers = match held.channels.len() {
            1 => self.offers(&Held::default(), PARTS[0]),
            _ => vec![whole],
        };
        let (handlers, works) = self.handlers(held, Demand::NONE);
        let Some(least) = handlers.least_reservation(&works, &offers) else {
            return Ok(());
        };
        let is_less = share_ppm(&least) < share_ppm(&whole) / 8 * 7;
        if !is_less || self.reserve_for_program(least).is_err() {
            return Ok(());
        }
        // With another period the part has ended.
        (held.whole, held.part) = (Some(least), Nanos(0));
        self.ask(least.slice(), least.slice(), held)
    }

    /// What the handlers can have at most with so many sixteenths of a processor, for each period;
    /// never empty.
    pub(super) fn offers(&self, held: &Held, parts: u64) -> Vec<Slice> {
        let of_period = |period: Nanos| {
            let time = period.0 / 16 * parts / 4 * 3;
            Slice::new(Nanos(time), period, false).ok()
        };
        match held.whole {
            Some(whole) => of_period(whole.period()).into_iter().collect(),
            None => PERIODS.into_iter().filter_map(of_period).collect(),
        }
    }

    /// The offer with which a new handler is in time first.
    pub(super) fn soonest(
        &self,
        held: &Held,
        (new, work): (Demand, Work),
        offers: &[Slice],
    ) -> Option<Slice> {
        let (handlers, works) = self.handlers(held, new);
        let after = |offer: &Slice| match handlers.admit(offer, &works, &work) {
            Ok(()) => Some(Nanos(0)),
            Err(refusal) => match refusal.alternative {
                Some(Alternative::Deadline(after)) => Some(after),
                _ => None,
            },
        };
        let all = offers
            .iter()
            .filter_map(|offer| Some((after(offer)?, *offer)));
        all.min_by_key(|(after, _)| *after).map(|(_, offer)| offer)
    }

    /// Reserves for the program what leaves this for its handlers.
    fn reserve_for_program(&self, part: Slice) -> Result<(), StackError> {
        let time = Nanos((part.slice().0.div_ceil(3) * 4).min(part.period().0));
        own::change(&self.dir, &format!("cpu {time}/{}", part.period())).map(drop)
    }
}

/// Sixteenths of a processor that are asked for.
const PARTS: [u64; 4] = [8, 4, 2, 1];
/// Periods of reservations.
const PERIODS: [Nanos; 5] = [
    Nanos::from_millis(1),
    Nanos::from_millis(2),
    Nanos::from_millis(4),
    Nanos::from_millis(10),
    Nanos::from_millis(20),
];

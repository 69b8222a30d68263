//! Decides which channels the thread of the handlers can serve in time ([`Admission`]), on a part
//! of the processor time that is reserved for the program, and asks the daemon for that part. A
//! channel that does not fit is refused with [`ChannelError::NotAdmitted`]; the daemon's refusal is
//! [`ChannelError::Flow`].
//!
//! The part has the period of the reservation. It is the least that carries all handlers, and a
//! quarter more if it has to grow, because the kernel fills a budget anew whenever it is changed,
//! so the daemon permits few changes. The reservation itself is the program's, or `picked`.

mod picked;

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use netnice_core::admission::timing::{Alternative, Handlers, TimingRefusal, Work};
use netnice_core::contract::Slice;
use netnice_core::units::Nanos;
use netnice_stack::{RuntimeDir, own};
use rustix::time::{ClockId, clock_getres};

use super::HandlerThreadOptions;
use crate::error::ChannelError;
use crate::options::{ChannelClass, ChannelOptions, End, ExecutorSettings, OpenError};

/// The channels of a thread, as its processor time has to carry them.
pub(crate) struct Admission {
    settings: ExecutorSettings,
    dir: RuntimeDir,
    /// The thread of the handlers.
    thread: u32,
    /// The kernel ends a budget up to this much later than it should, and takes that back later.
    tick: Nanos,
    /// What the thread has of a reservation at least.
    least: Nanos,
    /// The reservation is picked here.
    picks: bool,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    next: u64,
    channels: HashMap<u64, Demand>,
    /// What is reserved for the handlers of the program; `None` without a reservation.
    whole: Option<Slice>,
    /// What the thread has of it in each period.
    part: Nanos,
}

/// What a channel needs of the thread.
#[derive(Clone, Copy)]
struct Demand {
    /// The promise to a real-time channel.
    work: Option<Work>,
    /// The longest block of a best-effort channel, for which others wait.
    block: Nanos,
}

impl Demand {
    const NONE: Demand = Demand {
        work: None,
        block: Nanos(0),
    };
}

/// A channel that was admitted, until [`Admission::release`].
#[derive(Debug)]
pub(crate) struct Admitted(u64);

impl Admission {
    /// The admission of a thread with this number, which has its least part from now on. Without a
    /// reservation every channel is admitted. Fails if the daemon does not give the least part.
    pub(crate) fn new(
        dir: &RuntimeDir,
        options: &HandlerThreadOptions,
        thread: u32,
    ) -> Result<Admission, ChannelError> {
        let admission = Admission {
            settings: options.settings,
            dir: dir.clone(),
            thread,
            tick: tick(),
            least: options.least_part,
            picks: options.picks_reservation && options.reservation.is_none(),
            held: Mutex::default(),
        };
        let mut held = admission.lock();
        held.whole = options.reservation;
        admission.ask_least(&mut held)?;
        drop(held);
        Ok(admission)
    }

    /// Admits a channel if all handlers are in time with it, and reserves what they need.
    pub(crate) fn admit(
        &self,
        channel: &ChannelOptions,
        end: End,
    ) -> Result<Admitted, ChannelError> {
        let demand = self.demand(channel, end)?;
        let mut held = self.lock();
        let admitted = self
            .provide(&mut held, demand)
            .and_then(|()| self.admit_into(&mut held, demand));
        let fitted = self.fit(&mut held);
        let admitted = admitted?;
        match fitted {
            Ok(()) => Ok(admitted),
            Err(error) => {
                held.channels.remove(&admitted.0);
                Err(error)
            }
        }
    }

    /// What a handler without a reservation has of the deadline: this time, and
    /// [`Admission::UNRESERVED_PACKET`] for each packet of a message and its stages. No measured
    /// cost counts, because nothing is promised, and because measurements differ from start to
    /// start: a program that is refused and started again with the best deadline must ask for the
    /// same.
    pub(crate) const UNRESERVED: Nanos = Nanos::from_millis(2);
    const UNRESERVED_PACKET: Nanos = Nanos::from_micros(25);

    /// As [`Admission::admit`], with the shortest `processing` with which the channel is admitted,
    /// and [`Admission::room`]. `channel` has it then. Best effort has none. A picked reservation
    /// is as long as can be had for that, until [`Admission::settle`].
    pub(crate) fn admit_shortest(
        &self,
        channel: &mut ChannelOptions,
        end: End,
    ) -> Result<Admitted, ChannelError> {
        let ChannelClass::RealTime(contract) = channel.class else {
            return self.admit(channel, end);
        };
        let with = |processing: Nanos| {
            // The whole deadline is decided later: here it is only longer than its part.
            let deadline = contract
                .deadline()
                .max(Nanos(processing.0.saturating_add(1)));
            let contract = contract.resized(contract.mmax(), contract.rmax(), deadline);
            let contract = contract.and_then(|contract| contract.with_processing(processing));
            contract.map(ChannelClass::RealTime)
        };
        channel.class = with(Nanos(1)).map_err(OpenError::from)?;
        let mut held = self.lock();
        let is_reserved = self.picks || held.whole.is_some();
        let shortest = match is_reserved {
            false => {
                let (_, _, packets) = channel.lengths(&self.settings, end)?;
                let packets = packets.saturating_mul(Admission::UNRESERVED_PACKET.0);
                Nanos(packets.saturating_add(Admission::UNRESERVED.0))
            }
            true => channel.longest_message(&self.settings, end)?,
        };
        channel.class = with(shortest).map_err(OpenError::from)?;
        let demand = self.demand(channel, end)?;
        let mut admitted = self
            .provide(&mut held, demand)
            .and_then(|()| self.admit_into(&mut held, demand));
        if let Err(ChannelError::NotAdmitted { whole, refusal }) = &admitted
            && let Some(Alternative::Deadline(longer)) = refusal.alternative
        {
            let room = self.room(whole, channel, end)?;
            let longer = Nanos(longer.0.saturating_add(room.0));
            channel.class = with(longer).map_err(OpenError::from)?;
            admitted = self.admit_into(&mut held, self.demand(channel, end)?);
        }
        if admitted.is_err() {
            // The refusal counts, and the time that was picked for the channel stays if this fails.
            let _ = self.fit(&mut held);
        }
        admitted
    }

    /// How much longer than its shortest part of the deadline a channel has that is being set up:
    /// for a block of another handler, as long as its own, on a reservation for the handlers. With
    /// the shortest part no further channel would fit until the final one is known.
    fn room(
        &self,
        whole: &Slice,
        channel: &ChannelOptions,
        end: End,
    ) -> Result<Nanos, ChannelError> {
        let block = u128::from(channel.longest_block(&self.settings, end)?.0);
        let takes = (block * u128::from(whole.period().0)).div_ceil(whole.slice().0.into());
        // The test subtracts up to a twenty-fourth from deadlines (`Resolution::SCHEDULER`).
        let takes = takes + takes.div_ceil(16);
        Ok(Nanos(u64::try_from(takes).unwrap_or(u64::MAX)))
    }

    /// An admitted channel has its final `processing`. A picked reservation gets as short as the
    /// handlers permit.
    pub(crate) fn settle(
        &self,
        admitted: &Admitted,
        channel: &ChannelOptions,
        end: End,
    ) -> Result<(), ChannelError> {
        let demand = self.demand(channel, end)?;
        let mut held = self.lock();
        held.channels.insert(admitted.0, demand);
        self.fit(&mut held)
    }

    /// Ends what a channel was admitted for. The part gets smaller if the other handlers need less
    /// than half of it.
    pub(crate) fn release(&self, admitted: &Admitted) {
        let mut held = self.lock();
        held.channels.remove(&admitted.0);
        // Without the change the program keeps more than it needs.
        let _ = self.fit(&mut held);
        if let Some(whole) = held.whole
            && let Ok(least) = self.least(&whole, &held, Demand::NONE)
            && least.max(self.least).0 < held.part.0 / 2
        {
            let least = least.max(self.least);
            // Without the change the thread keeps more than it needs.
            let _ = self.ask(least, least, &mut held);
        }
    }

    /// What a channel needs.
    fn demand(&self, channel: &ChannelOptions, end: End) -> Result<Demand, ChannelError> {
        let work = channel.work(&self.settings, end)?;
        let block = match work {
            Some(_) => Nanos(0),
            None => channel.longest_block(&self.settings, end)?,
        };
        Ok(Demand { work, block })
    }

    /// Admits a channel on what is reserved.
    fn admit_into(&self, held: &mut Held, demand: Demand) -> Result<Admitted, ChannelError> {
        if let Some(whole) = held.whole {
            let least = self.least(&whole, held, demand)?;
            if least > held.part {
                let more = Nanos(least.0.saturating_add(least.0 / 4));
                self.ask(more.min(whole.slice()), least, held)?;
            }
        }
        let number = held.next;
        held.next += 1;
        held.channels.insert(number, demand);
        Ok(Admitted(number))
    }

    /// The test of the handlers, and the work that is held.
    fn handlers(&self, held: &Held, new: Demand) -> (Handlers, Vec<Work>) {
        let blocks = held.channels.values().map(|demand| demand.block);
        let block = blocks.fold(new.block, Nanos::max);
        let works = held.channels.values().filter_map(|demand| demand.work);
        let handlers = Handlers {
            late_end: self.tick,
            ..self.settings.handlers(block)
        };
        (handlers, works.collect())
    }

    /// What the thread needs in each period for what it holds and one more channel.
    fn least(&self, whole: &Slice, held: &Held, new: Demand) -> Result<Nanos, ChannelError> {
        let (handlers, works) = self.handlers(held, new);
        let whole = *whole;
        let refused = |refusal| ChannelError::NotAdmitted { whole, refusal };
        let offers = [whole];
        match new.work {
            Some(work) => {
                let least = handlers.reserve(&works, &work, &offers);
                least.map(|slice| slice.slice()).map_err(refused)
            }
            None if works.is_empty() => Ok(Nanos(0)),
            None => match handlers.least_reservation(&works, &offers) {
                Some(slice) => Ok(slice.slice()),
                None => match handlers.carries(&whole, &works) {
                    Ok(()) => Ok(whole.slice()),
                    Err(fault) => Err(refused(TimingRefusal {
                        fault,
                        alternative: None,
                    })),
                },
            },
        }
    }

    /// Asks for the least part, if there is one.
    fn ask_least(&self, held: &mut Held) -> Result<(), ChannelError> {
        match held.whole.map(|whole| self.least.min(whole.slice())) {
            None | Some(Nanos(0)) => Ok(()),
            Some(least) => self.ask(least, least, held),
        }
    }

    /// Asks the daemon for a part of `wanted` for the thread, or at least `least`.
    fn ask(&self, wanted: Nanos, least: Nanos, held: &mut Held) -> Result<(), ChannelError> {
        let ask = |time: Nanos| {
            let time = (time > Nanos(0)).then(|| Duration::from_nanos(time.0));
            own::reserve(&self.dir, Some(self.thread), time)
        };
        held.part = match ask(wanted) {
            Ok(()) => wanted,
            Err(_) if wanted > least => {
                ask(least)?;
                least
            }
            Err(error) => return Err(error.into()),
        };
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The kernel's tick, at which it ends budgets of SCHED_DEADLINE.
fn tick() -> Nanos {
    let tick = clock_getres(ClockId::MonotonicCoarse);
    Nanos((tick.tv_sec as u64).saturating_mul(1_000_000_000) + tick.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use netnice_core::admission::timing::Processor;
    use netnice_core::contract::Contract;
    use netnice_core::sched::EarlyOrder;
    use netnice_core::units::Bytes;

    use super::*;
    use crate::ChannelId;

    /// Each packet takes 100 us; messages have 10 packets.
    fn admission(reservation: Option<&str>) -> Admission {
        let settings = ExecutorSettings {
            processor: Processor {
                switch: Nanos(0),
                cache_miss: Nanos(0),
                first: Nanos::from_micros(100),
                later: Nanos::from_micros(100),
                link_scheduling: Nanos(0),
                block: NonZeroU32::new(1).expect("above zero"),
                largest: Bytes(1_032),
                leftover: Nanos(0),
            },
            waking: Nanos(0),
            horizon: Nanos(0),
            early: EarlyOrder::default(),
        };
        let slice = |text: &str| {
            let contract: Contract = format!("slice {text}").parse().expect("valid");
            contract.slice().expect("a slice")
        };
        let nowhere = RuntimeDir::choose(Some("/nonexistent".into()), None);
        let options = HandlerThreadOptions {
            reservation: reservation.map(slice),
            ..HandlerThreadOptions::new(settings)
        };
        Admission::new(&nowhere, &options, 1).expect("it asks for nothing")
    }

    fn channel(rmax: u32, processing: &str) -> ChannelOptions {
        let text =
            format!("channel mmax=10000B,rmax={rmax}/s,bmax=1,deadline=1s,processing={processing}");
        let contract: Contract = text.parse().expect("valid");
        let class = ChannelClass::RealTime(contract.channel().expect("a channel"));
        ChannelOptions::new(ChannelId([0; 16]), class)
    }

    #[test]
    fn without_a_reservation_everything_is_admitted() {
        let admission = admission(None);
        for _ in 0..10 {
            let admitted = admission.admit(&channel(1_000, "10ms"), End::Source);
            admitted.expect("no promise");
        }
    }

    #[test]
    fn the_shortest_part_is_the_same_at_each_start_or_the_one_that_a_refusal_names() {
        // A channel of 10 packets whose handler has no part yet.
        let unasked = || {
            let channel = channel(100, "1ms");
            let ChannelClass::RealTime(contract) = channel.class else {
                panic!("no channel");
            };
            let contract = contract.with_processing(Nanos(0)).expect("valid");
            ChannelOptions::new(channel.id, ChannelClass::RealTime(contract))
        };
        let part = |channel: &ChannelOptions| match channel.class {
            ChannelClass::RealTime(contract) => contract.processing(),
            ChannelClass::BestEffort { .. } => Nanos(0),
        };
        let mut channel = unasked();
        let admitted = admission(None).admit_shortest(&mut channel, End::Source);
        admitted.expect("no promise");
        assert_eq!(part(&channel), Nanos::from_micros(2_250));
        // With a reservation it is what would fit; there is no daemon to give it.
        let mut channel = unasked();
        let error = admission(Some("5ms/10ms")).admit_shortest(&mut channel, End::Source);
        let error = error.expect_err("no daemon");
        assert!(matches!(error, ChannelError::Flow(_)), "{error}");
        assert!(
            part(&channel) > Nanos::from_millis(10),
            "{}",
            part(&channel)
        );
    }

    #[test]
    fn a_handler_that_does_not_fit_is_refused_with_what_would() {
        let admission = admission(Some("5ms/10ms"));
        // A message takes 1 ms of the processor, so 2 ms of the reservation behind up to 10 ms, and
        // what the kernel's tick takes back.
        let error = admission.admit(&channel(100, "11ms"), End::Source);
        let error = error.expect_err("too short");
        let ChannelError::NotAdmitted { refusal, .. } = &error else {
            panic!("{error}");
        };
        assert!(refusal.alternative.is_some(), "{error}");
        let text = error.to_string();
        assert!(text.contains("5ms/10ms") && text.contains('>'), "{text}");
        // One that fits is asked of the daemon, which is not there.
        let error = admission.admit(&channel(100, "60ms"), End::Source);
        let error = error.expect_err("no daemon");
        assert!(matches!(error, ChannelError::Flow(_)), "{error}");
        assert!(admission.lock().channels.is_empty());
    }

    #[test]
    fn a_picked_reservation_is_asked_of_the_daemon_with_the_shortest_period() {
        let mut admission = admission(None);
        admission.picks = true;
        let demand = admission.demand(&channel(100, "60ms"), End::Source);
        let demand = demand.expect("valid");
        let work = demand.work.expect("real time");
        let held = Held::default();
        // A shorter period leaves less of it without time.
        let offers = admission.offers(&held, 8);
        let best = admission.soonest(&held, (demand, work), &offers);
        let best = best.expect("one carries it");
        assert!(offers.iter().all(|offer| best.period() <= offer.period()));
        // No daemon is there to give it, and then nothing is held.
        let error = admission.admit(&channel(100, "60ms"), End::Source);
        assert!(matches!(error, Err(ChannelError::Flow(_))), "{error:?}");
        assert!(admission.lock().channels.is_empty());
    }

    #[test]
    fn channels_that_are_being_set_up_leave_room_for_each_other() {
        let admission = admission(Some("9ms/10ms"));
        let whole = admission.lock().whole.expect("one");
        for number in 0..5 {
            let mut next = channel(50, "1ms");
            // No daemon is there to give the part, which is found before.
            let error = admission.admit_shortest(&mut next, End::Source);
            assert!(
                matches!(error, Err(ChannelError::Flow(_))),
                "{number}: {error:?}"
            );
            let demand = admission.demand(&next, End::Source).expect("valid");
            let least = admission.least(&whole, &admission.lock(), demand);
            assert!(least.is_ok(), "{number}: {least:?}");
            admission.lock().channels.insert(number, demand);
        }
    }

    #[test]
    fn the_part_is_the_least_that_carries_all_handlers() {
        let admission = admission(Some("9ms/10ms"));
        let mut held = Held::default();
        let whole = admission.lock().whole.expect("one");
        let demand = |channel| admission.demand(channel, End::Source).expect("valid");
        let one = demand(&channel(50, "100ms"));
        let mut before = Nanos(0);
        for number in 0..10 {
            let least = admission.least(&whole, &held, one).expect("it fits");
            // 50 messages of 1 ms a second each: 5 % of a processor each.
            let share = Nanos((number + 1) * 500_000);
            assert!(least >= share && least > before, "{number}: {least}");
            before = least;
            held.channels.insert(number, one);
        }
    }
}

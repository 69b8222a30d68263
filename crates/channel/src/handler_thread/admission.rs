//! Decides which channels the thread of the handlers can serve in time ([`Admission`]), on a part
//! of the processor time that is reserved for the program, and asks the daemon for that part. A
//! channel that does not fit is refused with [`ChannelError::NotAdmitted`]; the daemon's refusal is
//! [`ChannelError::Flow`].
//!
//! The part has the period of the reservation. It is the least that carries all handlers, and a
//! quarter more if it has to grow, because the kernel fills a budget anew whenever it is changed,
//! so the daemon permits few changes.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use netnice_core::admission::timing::{Alternative, Work};
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
    /// The reservation of which the thread has a part; `None` without one.
    reservation: Option<Reservation>,
    held: Mutex<Held>,
}

struct Reservation {
    dir: RuntimeDir,
    /// What is reserved for the program.
    whole: Slice,
    /// What the thread has of it at least.
    least: Nanos,
    /// The kernel ends a budget up to this much later than it should, and takes that back later.
    tick: Nanos,
    /// The thread of the handlers.
    thread: u32,
}

#[derive(Default)]
struct Held {
    next: u64,
    channels: HashMap<u64, Demand>,
    /// What the thread has in each period.
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
        let of_slice = |whole: Slice| Reservation {
            dir: dir.clone(),
            whole,
            least: options.least_part.min(whole.slice()),
            tick: tick(),
            thread,
        };
        let reservation = options.reservation.map(of_slice);
        let mut held = Held::default();
        if let Some(reservation) = &reservation
            && reservation.least > Nanos(0)
        {
            reservation.ask(reservation.least, reservation.least, &mut held)?;
        }
        Ok(Admission {
            settings: options.settings,
            reservation,
            held: Mutex::new(held),
        })
    }

    /// Admits a channel if all handlers are in time with it, and reserves what they need.
    pub(crate) fn admit(
        &self,
        channel: &ChannelOptions,
        end: End,
    ) -> Result<Admitted, ChannelError> {
        let work = channel.work(&self.settings, end)?;
        let block = match work {
            Some(_) => Nanos(0),
            None => channel.longest_block(&self.settings, end)?,
        };
        let mut held = self.lock();
        if let Some(reservation) = &self.reservation {
            let least = self.least(reservation, &held, Demand { work, block })?;
            if least > held.part {
                let more = Nanos(least.0.saturating_add(least.0 / 4));
                reservation.ask(more.min(reservation.whole.slice()), least, &mut held)?;
            }
        }
        let number = held.next;
        held.next += 1;
        held.channels.insert(number, Demand { work, block });
        Ok(Admitted(number))
    }

    /// What a handler without a reservation has of the deadline: this time, and
    /// [`Admission::UNRESERVED_PACKET`] for each packet of a message and its stages. No measured
    /// cost counts, because nothing is promised, and because measurements differ from start to
    /// start: a program that is refused and started again with the best deadline must ask for the
    /// same.
    pub(crate) const UNRESERVED: Nanos = Nanos::from_millis(2);
    const UNRESERVED_PACKET: Nanos = Nanos::from_micros(25);

    /// As [`Admission::admit`], with the shortest `processing` with which the channel is admitted.
    /// `channel` has it then. Best effort has none.
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
        let shortest = match self.reservation {
            None => {
                let (_, _, packets) = channel.lengths(&self.settings, end)?;
                let packets = packets.saturating_mul(Admission::UNRESERVED_PACKET.0);
                Nanos(packets.saturating_add(Admission::UNRESERVED.0))
            }
            Some(_) => channel.longest_message(&self.settings, end)?,
        };
        channel.class = with(shortest).map_err(OpenError::from)?;
        match self.admit(channel, end) {
            Err(ChannelError::NotAdmitted { whole, refusal }) => {
                let Some(Alternative::Deadline(longer)) = refusal.alternative else {
                    return Err(ChannelError::NotAdmitted { whole, refusal });
                };
                channel.class = with(longer).map_err(OpenError::from)?;
                self.admit(channel, end)
            }
            other => other,
        }
    }

    /// Ends what a channel was admitted for. The part gets smaller if the other handlers need less
    /// than half of it.
    pub(crate) fn release(&self, admitted: &Admitted) {
        let mut held = self.lock();
        held.channels.remove(&admitted.0);
        let Some(reservation) = &self.reservation else {
            return;
        };
        let nothing = Demand {
            work: None,
            block: Nanos(0),
        };
        if let Ok(least) = self.least(reservation, &held, nothing)
            && least.max(reservation.least).0 < held.part.0 / 2
        {
            let least = least.max(reservation.least);
            // Without the change the thread keeps more than it needs.
            let _ = reservation.ask(least, least, &mut held);
        }
    }

    /// What the thread needs in each period for what it holds and one more channel.
    fn least(
        &self,
        reservation: &Reservation,
        held: &Held,
        new: Demand,
    ) -> Result<Nanos, ChannelError> {
        let blocks = held.channels.values().map(|demand| demand.block);
        let block = blocks.fold(new.block, Nanos::max);
        // What the kernel takes back is in the way of the handlers, as a block of best effort is.
        let leftover = Nanos(block.0.saturating_add(reservation.tick.0));
        let handlers = self.settings.handlers(leftover);
        let works: Vec<Work> = held
            .channels
            .values()
            .filter_map(|demand| demand.work)
            .collect();
        let whole = reservation.whole;
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
                    Err(fault) => Err(refused(netnice_core::admission::timing::TimingRefusal {
                        fault,
                        alternative: None,
                    })),
                },
            },
        }
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reservation {
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
    fn the_part_is_the_least_that_carries_all_handlers() {
        let admission = admission(Some("9ms/10ms"));
        let reservation = admission.reservation.as_ref().expect("one");
        let demand = |channel: &ChannelOptions| Demand {
            work: channel
                .work(&admission.settings, End::Source)
                .expect("valid"),
            block: Nanos(0),
        };
        let mut held = Held::default();
        let one = demand(&channel(50, "100ms"));
        let mut before = Nanos(0);
        for number in 0..10 {
            let least = admission.least(reservation, &held, one).expect("it fits");
            // 50 messages of 1 ms a second each: 5 % of a processor each.
            let share = Nanos((number + 1) * 500_000);
            assert!(least >= share && least > before, "{number}: {least}");
            before = least;
            held.channels.insert(number, one);
        }
    }
}

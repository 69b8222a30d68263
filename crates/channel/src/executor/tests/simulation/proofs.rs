//! Sets of channels that admission grants, on the least reservation for them.

use netnice_cases::cases;
use proptest::prelude::*;

use super::*;

/// Channels that ask for admission, and the machine.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub settings: ExecutorSettings,
    /// Processor time of each packet in the stages of a channel, or 0.
    stages: Nanos,
    pub greedy: bool,
    pub requested: Vec<Channel>,
    /// Times between messages, in thousandths of 1/Rmax, and lengths in thousandths of Mmax.
    pub gaps: Vec<(u64, u64)>,
    /// Bursts of Bmax messages at first, all channels at once, as often as allowed.
    full: bool,
}

pub(super) fn cases_of_channels() -> impl Strategy<Value = Case> {
    let costs = (0_u64..20, 0_u64..20, 5_u64..60, 5_u64..40, 0_u64..10);
    let channel = (64_u64..40_000, 5_u32..400, 1_u32..5, 2_u64..60, 20_u64..80).prop_map(
        |(mmax, rmax, bmax, deadline, part)| {
            let rmax = MessageRate::new(rmax).expect("a rate");
            let deadline = Nanos::from_millis(deadline);
            let channel = Channel::new(Bytes(mmax), rmax, bmax, deadline).expect("a channel");
            let processing = Nanos(deadline.0 * part / 100);
            channel.with_processing(processing).expect("a part")
        },
    );
    let order = prop_oneof![
        Just(EarlyOrder::AfterLeftOver),
        Just(EarlyOrder::BeforeLeftOver),
    ];
    let machine = (costs, 1_u32..9, (0_u64..4, order), 0_u64..30, any::<bool>());
    let traffic = (
        prop::collection::vec(channel, 2..12),
        prop::collection::vec((0_u64..2_500, 1_u64..1_001), 1..20),
        any::<bool>(),
    );
    (machine, traffic).prop_map(
        |((costs, block, (horizon, early), stages, greedy), (requested, gaps, full))| {
            let us = Nanos::from_micros;
            let (switch, cache_miss, first, later, link_scheduling) = costs;
            Case {
                settings: ExecutorSettings {
                    processor: Processor {
                        switch: us(switch),
                        cache_miss: us(cache_miss),
                        first: us(first),
                        later: us(later),
                        link_scheduling: us(link_scheduling),
                        block: NonZeroU32::new(block).expect("above zero"),
                        largest: Bytes(1_472),
                        leftover: Nanos(0),
                    },
                    waking: us(switch / 2),
                    horizon: Nanos::from_millis(horizon),
                    early,
                },
                stages: us(stages),
                greedy,
                requested,
                gaps,
                full,
            }
        },
    )
}

/// Nine tenths of the processor, in three periods.
pub(super) fn offers() -> [Slice; 3] {
    [1_000, 3_000, 10_000].map(|us| {
        let period = Nanos::from_micros(us);
        Slice::new(Nanos(period.0 * 9 / 10), period, false).expect("a slice")
    })
}

/// A stage that takes time and changes nothing.
struct Busy(Nanos);

impl Stage for Busy {
    fn overhead(&self) -> usize {
        0
    }

    fn cost(&self) -> Nanos {
        self.0
    }

    fn seal(&mut self, _: &PacketHeader, _: &mut [u8], _: usize) {}

    fn open(&mut self, _: &PacketHeader, payload: &mut [u8]) -> Result<usize, crate::StageError> {
        Ok(payload.len())
    }
}

impl Case {
    pub(super) fn options(&self, number: u8, channel: Channel) -> ChannelOptions {
        let mut options = ChannelOptions::new(id(number), ChannelClass::RealTime(channel));
        if number.is_multiple_of(2) {
            options.stages.push(Box::new(Busy(self.stages)));
        }
        options
    }

    pub(super) fn bulk(&self) -> ChannelOptions {
        best_effort(200, WhenFull::Wait)
    }

    fn wire(&self) -> Wire {
        Wire {
            overhead: Bytes(24),
            longest: self.settings.processor.largest,
            ..Wire::new(Rate::new(200_000_000).expect("a rate"))
        }
    }

    /// The simulation of the granted channels on the least reservation for them. `None` if none is
    /// granted.
    fn granted(&self) -> Option<(Simulation, Vec<Channel>)> {
        let leftover = match self.greedy {
            true => self
                .bulk()
                .longest_block(&self.settings, End::Source)
                .expect("options"),
            false => Nanos(0),
        };
        let handlers = self.settings.handlers(leftover);
        let wire = self.wire();
        let packet = if self.greedy { wire.longest } else { Bytes(0) };
        let link = Transmitter::of(&wire, packet, 16);
        let offers = offers();
        let mut least = None;
        let mut simulation = Simulation {
            settings: self.settings,
            server: Server {
                slice: offers[0],
                lost: self.settings.processor.switch.0 + self.settings.processor.cache_miss.0,
            },
            wire,
            greedy: self.greedy.then_some(10_000),
        };
        let (mut work, mut sent): (Vec<Work>, Vec<Promise>) = Default::default();
        let mut channels = Vec::new();
        for channel in &self.requested {
            let options = self.options(channels.len() as u8, *channel);
            let asked = options.work(&self.settings, End::Source).expect("options");
            let asked = asked.expect("a real-time channel");
            let promise = options.on_link(&self.settings).expect("options");
            let promise = Promise::Channel(promise.expect("a real-time channel"));
            if let Ok(reservation) = handlers.reserve(&work, &asked, &offers)
                && link.admit(&sent, &promise).is_ok()
            {
                least = Some(reservation);
                work.push(asked);
                sent.push(promise);
                channels.push(*channel);
            }
        }
        simulation.server.slice = least?;
        Some((simulation, channels))
    }

    /// Messages that keep to the contract: no more than Bmax at once, and Rmax in the long run.
    pub(super) fn messages(
        &self,
        channel: &Channel,
        number: usize,
        until: u64,
    ) -> Vec<(u64, usize)> {
        let spacing = 1_000_000_000_u64.div_ceil(channel.rmax().get().into());
        let ahead = u64::from(channel.bmax() - 1) * spacing;
        let mmax = channel.mmax().0;
        let mut gaps = self.gaps.iter().cycle().skip(number);
        let (mut now, mut logical) = (0_u64, 0_u64);
        let mut messages = Vec::new();
        while now < until {
            let (gap, length) = match self.full {
                true => (0, 1_000),
                false => *gaps.next().expect("endless"),
            };
            now = (now + gap * spacing / 1_000).max(logical.saturating_sub(ahead));
            logical = logical.max(now) + spacing;
            messages.push((now, (mmax * length / 1_000).max(1) as usize));
        }
        messages
    }

    fn sources(&self, channels: &[Channel], until: u64) -> Vec<Source> {
        let source = |(number, channel): (usize, &Channel)| Source {
            options: self.options(number as u8, *channel),
            messages: self.messages(channel, number, until),
        };
        let greedy = self.greedy.then(|| Source {
            options: self.bulk(),
            messages: Vec::new(),
        });
        channels
            .iter()
            .enumerate()
            .map(source)
            .chain(greedy)
            .collect()
    }

    /// The fates of the channels, without that of best effort.
    fn run(&self, simulation: &Simulation, channels: &[Channel], until: u64) -> Vec<Fate> {
        let mut fates = simulation.run(self.sources(channels, until), until);
        fates.truncate(channels.len());
        fates
    }
}

proptest! {
    #![proptest_config(cases(24))]

    /// Granted channels that keep to their contracts: no message is refused, none is processed or
    /// leaves late, and no handler is ever without a packet buffer.
    #[test]
    fn granted_channels_miss_nothing_and_have_their_buffers(case in cases_of_channels()) {
        prop_assert_eq!(case.fault(), None);
    }
}

impl Case {
    /// What went wrong at the source, if something did.
    pub(super) fn fault(&self) -> Option<String> {
        let (simulation, channels) = self.granted()?;
        let fates = self.run(&simulation, &channels, UNTIL);
        let is_good = |(number, fate): &(usize, &Fate)| {
            let faults = fate.refused + fate.processed_late + fate.late + fate.without_buffer;
            faults == 0 && fate.left >= self.due(&channels[*number], *number)
        };
        let wrong = fates.iter().enumerate().find(|one| !is_good(one));
        wrong.map(|one| format!("{one:?} of {channels:?} on {:?}", simulation.server))
    }

    /// Number of messages of a channel whose deadlines are before the end.
    fn due(&self, channel: &Channel, number: usize) -> u64 {
        let messages = self.messages(channel, number, UNTIL);
        let logical = logical_arrivals(channel, messages.iter().map(|(arrival, _)| *arrival));
        let deadlines = logical.map(|logical| logical + channel.deadline().0);
        deadlines.filter(|deadline| *deadline < UNTIL).count() as u64
    }
}

/// The logical arrivals of a channel's messages.
pub(super) fn logical_arrivals(
    channel: &Channel,
    arrivals: impl Iterator<Item = u64>,
) -> impl Iterator<Item = u64> {
    let spacing = 1_000_000_000_u64.div_ceil(channel.rmax().get().into());
    let mut next = 0;
    arrivals.map(move |arrival| {
        let logical = arrival.max(next);
        next = logical + spacing;
        logical
    })
}

/// On half of the reservation the same sets miss deadlines. So the simulation detects an error of
/// admission.
#[test]
fn with_less_time_than_admission_asked_for_sets_miss_deadlines() {
    use proptest::strategy::ValueTree as _;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut missed, mut sets) = (0, 0);
    for _ in 0..40 {
        let mut case = cases_of_channels()
            .new_tree(&mut runner)
            .expect("a case")
            .current();
        case.full = true;
        let Some((mut simulation, channels)) = case.granted() else {
            continue;
        };
        let slice = simulation.server.slice;
        let half = Slice::new(Nanos(slice.slice().0 / 2), slice.period(), false);
        simulation.server.slice = half.expect("a slice");
        if simulation.server.lost >= slice.slice().0 / 2 {
            continue;
        }
        sets += 1;
        let fates = case.run(&simulation, &channels, UNTIL);
        missed += u32::from(fates.iter().any(|fate| fate.processed_late > 0));
    }
    assert!(sets > 20 && missed * 10 > sets * 6, "{missed} of {sets}");
}

pub(super) const UNTIL: u64 = 300_000_000;

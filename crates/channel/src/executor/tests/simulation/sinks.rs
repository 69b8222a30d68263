//! Receivers of granted channels. Their packets arrive one by one, and up to the rest of the
//! deadline late, so each packet can find its handler waiting.

use std::collections::BTreeMap;

use netnice_cases::cases;
use proptest::prelude::*;

use super::proofs::{Case, UNTIL, cases_of_channels, logical_arrivals, offers};
use super::*;

/// A packet on its way: time of arrival, channel, and bytes.
type Arrival = (u64, usize, Vec<u8>);

/// A message on its way.
#[derive(Clone, Copy, Debug)]
struct Sent {
    /// The logical arrival at the source.
    logical: u64,
    /// The arrival of its last packet at the sink.
    arrived: u64,
}

struct Sinks {
    settings: ExecutorSettings,
    server: Server,
    channels: Vec<Channel>,
}

impl Sinks {
    /// The granted channels on the least reservation for their receivers.
    fn granted(case: &Case) -> Option<Sinks> {
        let leftover = match case.greedy {
            true => case.bulk().longest_block(&case.settings, End::Source),
            false => Ok(Nanos(0)),
        };
        let handlers = case.settings.handlers(leftover.expect("options"));
        let (mut work, mut channels, mut least) = (Vec::new(), Vec::new(), None);
        for channel in &case.requested {
            let options = case.options(channels.len() as u8, *channel);
            let asked = options.work(&case.settings, End::Sink).expect("options");
            let asked = asked.expect("a real-time channel");
            if let Ok(reservation) = handlers.reserve(&work, &asked, &offers()) {
                least = Some(reservation);
                work.push(asked);
                channels.push(*channel);
            }
        }
        let costs = &case.settings.processor;
        Some(Sinks {
            settings: case.settings,
            server: Server {
                slice: least?,
                lost: costs.switch.0 + costs.cache_miss.0,
            },
            channels,
        })
    }

    /// The packets of all channels, the last one first, and the messages.
    fn traffic(&self, case: &Case) -> (Vec<Arrival>, BTreeMap<(usize, u64), Sent>) {
        let (mut arrivals, mut messages) = (Vec::new(), BTreeMap::new());
        for (number, channel) in self.channels.iter().enumerate() {
            let options = case.options(number as u8, *channel);
            let sizes = Sizes::of(&options, &self.settings, End::Sink).expect("options");
            let sent = case.messages(channel, number, UNTIL);
            let logical = logical_arrivals(channel, sent.iter().map(|(at, _)| *at));
            let late = channel.deadline().0 - channel.processing().0;
            let mut delays = case.gaps.iter().cycle().skip(2 * number);
            let mut last = 0;
            for (message, (logical, (_, length))) in logical.zip(&sent).enumerate() {
                let parts = crate::parts::Parts::of(*length, sizes.part).expect("few");
                for part in 0..parts.count() {
                    // A packet does not overtake the one before.
                    let (delay, _) = delays.next().expect("endless");
                    last = last.max(logical + late * (delay % 1_001) / 1_000);
                    let header = PacketHeader {
                        channel: options.id,
                        message: message as u64,
                        part,
                        count: parts.count(),
                    };
                    let mut packet = header.encode().to_vec();
                    packet.extend(vec![0; parts.range(part).len()]);
                    arrivals.push((last, number, packet));
                }
                let arrived = last;
                messages.insert((number, message as u64), Sent { logical, arrived });
            }
        }
        arrivals.sort_by_key(|(at, ..)| *at);
        arrivals.reverse();
        (arrivals, messages)
    }

    /// Simulates the receivers, and best effort that never ends if the case is greedy. Returns what
    /// went wrong, if something did.
    fn fault(&self, case: &Case) -> Option<String> {
        let mut executor: TestExecutor = Executor::new(self.settings).expect("an executor");
        let open = |(number, channel): (usize, &Channel)| {
            let options = case.options(number as u8, *channel);
            executor.open_receiver(options, us(0)).expect("opens")
        };
        let receivers: Vec<HandlerId> = self.channels.iter().enumerate().map(open).collect();
        let bulk = executor.open_sender(case.bulk(), us(0)).expect("opens");
        let (mut arrivals, messages) = self.traffic(case);
        let mut spaced: Vec<u64> = vec![0; receivers.len()];
        let mut kept = Kept::default();
        let (mut now, mut had, mut completed) = (0, None, 0);
        while now < UNTIL {
            // A packet is found when the program gets the processor.
            let woken = now;
            now = self.server.after(now, 0).max(now);
            if had.is_none() {
                executor.set_unread_since(Instant(woken));
            }
            while case.greedy && executor.send(bulk, vec![0; 5_000], Instant(now)).is_ok() {}
            while arrivals.last().is_some_and(|(at, ..)| *at <= now) {
                let (_, number, packet) = arrivals.pop().expect("a packet");
                if executor.handle_packet(packet, Instant(now)) != Ok(receivers[number]) {
                    return Some(format!("a packet of channel {number} is dropped at {now}"));
                }
            }
            let next = arrivals.last().map_or(UNTIL, |(at, ..)| *at);
            let ran = match executor.step(Instant(now), &mut kept) {
                Step::Ran(ran) => ran,
                Step::Wait(at) => {
                    (now, had) = (next.min(at.0), None);
                    continue;
                }
                Step::Idle => {
                    (now, had) = (next, None);
                    continue;
                }
            };
            let number = receivers.iter().position(|one| *one == ran.handler);
            now = self.server.after(now, self.cost(case, &ran, number, had));
            had = Some(ran.handler);
            let Some(number) = number else {
                kept.packets.clear();
                executor.handle_sent(bulk, 1, Instant(now)).expect("open");
                continue;
            };
            let channel = &self.channels[number];
            while let Some(message) = executor.receive(ran.handler, Instant(now)) {
                completed += 1;
                let sent = messages[&(number, message.message)];
                let spacing = 1_000_000_000_u64.div_ceil(channel.rmax().get().into());
                let begin = sent.arrived.max(spaced[number]);
                spaced[number] = begin + spacing;
                let late = now > begin + channel.processing().0;
                if late || now > sent.logical + channel.deadline().0 {
                    let text = format!("{number}: {message:?} of {sent:?} at {now}, {begin}");
                    return Some(format!("{text}: {:?} on {:?}", self.channels, self.server));
                }
            }
        }
        let is_due = |((number, _), sent): &(&(usize, u64), &Sent)| {
            sent.logical + self.channels[*number].deadline().0 < UNTIL
        };
        let due = messages.iter().filter(is_due).count();
        (completed < due).then(|| format!("{completed} messages of {due}"))
    }

    /// The processor time of a packet. `number` is the channel; `None` for best effort.
    fn cost(&self, case: &Case, ran: &Ran, number: Option<usize>, had: Option<HandlerId>) -> u64 {
        let costs = &self.settings.processor;
        // The thread changes between its handlers without the kernel.
        let switch = match had {
            Some(had) if had == ran.handler => 0,
            Some(_) => costs.cache_miss.0,
            None if ran.begins => costs.switch.0 + costs.cache_miss.0,
            None => self.settings.waking.0 + costs.cache_miss.0,
        };
        let stages = number.map_or(Nanos(0), |number| {
            let options = case.options(number as u8, self.channels[number]);
            let sizes = Sizes::of(&options, &self.settings, End::Sink);
            sizes.expect("options").stages
        });
        let packet = if ran.begins { costs.first } else { costs.later };
        switch + packet.0 + costs.link_scheduling.0 + stages.0
    }
}

impl Case {
    /// What went wrong at the sink, if something did.
    pub(super) fn fault_at_the_sink(&self) -> Option<String> {
        Sinks::granted(self)?.fault(self)
    }
}

proptest! {
    #![proptest_config(cases(24))]

    /// Granted receivers complete every message within the processing after its last packet, and
    /// within its deadline after its logical arrival at the source; no packet is dropped.
    #[test]
    fn granted_receivers_complete_every_message_in_time(case in cases_of_channels()) {
        prop_assert_eq!(case.fault_at_the_sink(), None);
    }
}

//! Which program of this host has which service, channel and hold ([`Register`]). Pure. A request
//! beyond a limit fails with a sentence for people, and changes nothing.

use std::collections::{BTreeMap, BTreeSet};

use netnice_channel::ChannelId;

use crate::message::ServiceName;
use crate::programs::ProgramId;
use crate::signalling::HoldId;

/// The programs' services, channels and holds.
#[derive(Debug, Default)]
pub(super) struct Register {
    services: BTreeMap<ServiceName, ProgramId>,
    /// The channels that programs have asked for, and the user of each.
    sources: BTreeMap<ChannelId, (ProgramId, u32)>,
    /// The channels that programs receive, or are asked to receive.
    sinks: BTreeMap<ChannelId, Sink>,
    holds: BTreeMap<HoldId, (ProgramId, ChannelId)>,
}

/// The sink of a channel.
#[derive(Clone, Copy, Debug)]
struct Sink {
    program: ProgramId,
    hold: HoldId,
    is_established: bool,
}

/// What a program had when it ended.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Leftover {
    pub(super) channels: BTreeSet<ChannelId>,
    pub(super) holds: BTreeSet<HoldId>,
}

impl Register {
    /// Offers a service of a program.
    pub(super) fn offer(&mut self, program: ProgramId, service: ServiceName) -> Result<(), String> {
        let of_program = self.services.values().filter(|one| **one == program);
        if of_program.count() >= MOST_SERVICES {
            return Err(format!("a program offers at most {MOST_SERVICES} services"));
        }
        match self.services.get(&service) {
            Some(other) if *other != program => {
                Err(format!("another program of this host offers {service}"))
            }
            _ => {
                self.services.insert(service, program);
                Ok(())
            }
        }
    }

    /// Ends the offer of a service, if it is this program's.
    pub(super) fn withdraw(&mut self, program: ProgramId, service: &ServiceName) {
        if self.services.get(service) == Some(&program) {
            self.services.remove(service);
        }
    }

    pub(super) fn service(&self, service: &ServiceName) -> Option<ProgramId> {
        self.services.get(service).copied()
    }

    pub(super) fn services(&self) -> impl Iterator<Item = &ServiceName> {
        self.services.keys()
    }

    /// Counts a channel that a program of a user asks for.
    pub(super) fn ask(
        &mut self,
        program: ProgramId,
        uid: u32,
        channel: ChannelId,
    ) -> Result<(), String> {
        if self.sources.contains_key(&channel) {
            return Err("the identifier of the channel is in use: draw another one".to_owned());
        }
        let of_user = self.sources.values().filter(|(_, user)| *user == uid);
        if uid != 0 && of_user.count() >= MOST_CHANNELS_OF_USER {
            return Err(format!(
                "a user other than root opens at most {MOST_CHANNELS_OF_USER} channels"
            ));
        }
        self.sources.insert(channel, (program, uid));
        Ok(())
    }

    pub(super) fn source(&self, channel: ChannelId) -> Option<ProgramId> {
        self.sources.get(&channel).map(|(program, _)| *program)
    }

    /// Forgets a channel that a program asked for; returns the program.
    pub(super) fn end_source(&mut self, channel: ChannelId) -> Option<ProgramId> {
        self.sources.remove(&channel).map(|(program, _)| program)
    }

    /// Notes that a channel is established; returns the program of its sink.
    pub(super) fn accept(&mut self, channel: ChannelId) -> Option<ProgramId> {
        let sink = self.sinks.get_mut(&channel)?;
        sink.is_established = true;
        Some(sink.program)
    }

    /// Notes that a program is asked for a hold, at the source or at the sink.
    pub(super) fn begin_hold(
        &mut self,
        hold: HoldId,
        (program, channel): (ProgramId, ChannelId),
        is_sink: bool,
    ) {
        self.holds.insert(hold, (program, channel));
        if is_sink {
            let sink = Sink {
                program,
                hold,
                is_established: false,
            };
            self.sinks.insert(channel, sink);
        }
    }

    /// The program of a hold.
    pub(super) fn holder(&self, hold: HoldId) -> Option<ProgramId> {
        self.holds.get(&hold).map(|(program, _)| *program)
    }

    /// Forgets a hold; returns its program. The sink of an established channel stays known until
    /// [`Register::end_sink`].
    pub(super) fn end_hold(&mut self, hold: HoldId) -> Option<ProgramId> {
        let (program, channel) = self.holds.remove(&hold)?;
        let sink = self.sinks.get(&channel);
        if sink.is_some_and(|sink| sink.hold == hold && !sink.is_established) {
            self.sinks.remove(&channel);
        }
        Some(program)
    }

    /// Forgets the sink of an established channel whose hold has ended; returns its program.
    pub(super) fn end_sink(&mut self, channel: ChannelId) -> Option<ProgramId> {
        let sink = *self.sinks.get(&channel)?;
        if !self.holds.contains_key(&sink.hold) {
            self.sinks.remove(&channel);
        }
        Some(sink.program)
    }

    /// The program that has the end of a channel at this host; `None` if none has.
    pub(super) fn program_of(&self, channel: ChannelId) -> Option<ProgramId> {
        let sink = self.sinks.get(&channel).map(|sink| sink.program);
        self.source(channel).or(sink)
    }

    /// True if the program may end the channel.
    pub(super) fn has(&self, program: ProgramId, channel: ChannelId) -> bool {
        let sink = self.sinks.get(&channel).map(|sink| sink.program);
        [self.source(channel), sink].contains(&Some(program))
    }

    /// Forgets a program; returns what it had.
    pub(super) fn remove(&mut self, program: ProgramId) -> Leftover {
        self.services.retain(|_, one| *one != program);
        let mut leftover = Leftover::default();
        for (hold, (one, channel)) in &self.holds {
            if *one == program {
                leftover.holds.insert(*hold);
                leftover.channels.insert(*channel);
            }
        }
        let of_program = self.sources.iter().filter(|(_, (one, _))| *one == program);
        leftover
            .channels
            .extend(of_program.map(|(channel, _)| *channel));
        self.holds.retain(|_, (one, _)| *one != program);
        self.sources.retain(|_, (one, _)| *one != program);
        self.sinks.retain(|_, one| one.program != program);
        leftover
    }
}

/// The largest number of services of a program.
const MOST_SERVICES: usize = 256;
/// The largest number of channels that the programs of a user other than root open together.
const MOST_CHANNELS_OF_USER: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::*;

    fn service(name: &str) -> ServiceName {
        ServiceName::new(name).expect("valid")
    }

    const ONE: ProgramId = ProgramId(1);
    const OTHER: ProgramId = ProgramId(2);
    const CHANNEL: ChannelId = ChannelId([7; 16]);

    #[test]
    fn a_service_is_of_the_first_program_until_that_ends() {
        let mut register = Register::default();
        register.offer(ONE, service("camera")).expect("free");
        register.offer(ONE, service("camera")).expect("its own");
        let error = register.offer(OTHER, service("camera"));
        assert!(error.expect_err("taken").contains("camera"));
        register.withdraw(OTHER, &service("camera"));
        assert_eq!(register.service(&service("camera")), Some(ONE));
        register.remove(ONE);
        register
            .offer(OTHER, service("camera"))
            .expect("free again");
    }

    #[test]
    fn the_channels_of_a_user_are_limited_and_those_of_root_are_not() {
        let mut register = Register::default();
        let channel = |number: usize| ChannelId((number as u128).to_be_bytes());
        for number in 0..MOST_CHANNELS_OF_USER {
            register.ask(ONE, 1_000, channel(number)).expect("within");
        }
        let error = register.ask(OTHER, 1_000, channel(MOST_CHANNELS_OF_USER));
        assert!(error.expect_err("too many").contains("1024"));
        register
            .ask(OTHER, 1_001, channel(5_000))
            .expect("another user");
        register.ask(OTHER, 0, channel(6_000)).expect("root");
        let error = register.ask(OTHER, 0, channel(6_000));
        assert!(error.expect_err("in use").contains("in use"));
    }

    #[test]
    fn an_ended_program_leaves_its_holds_and_channels_to_be_released() {
        let mut register = Register::default();
        register.ask(ONE, 0, CHANNEL).expect("free");
        register.begin_hold(HoldId(3), (ONE, CHANNEL), false);
        let sunk = ChannelId([8; 16]);
        register.begin_hold(HoldId(4), (ONE, sunk), true);
        register.begin_hold(HoldId(5), (OTHER, ChannelId([9; 16])), true);
        assert!(register.has(ONE, CHANNEL) && register.has(ONE, sunk));
        assert!(!register.has(OTHER, CHANNEL));
        let leftover = register.remove(ONE);
        assert_eq!(leftover.holds, [HoldId(3), HoldId(4)].into());
        assert_eq!(leftover.channels, [CHANNEL, sunk].into());
        assert_eq!(register.holder(HoldId(5)), Some(OTHER));
        assert_eq!(register.holder(HoldId(3)), None);
    }

    #[test]
    fn a_sink_is_known_from_its_hold_to_the_end_of_the_channel() {
        let mut register = Register::default();
        // A hold that is released before the channel is established leaves nothing.
        register.begin_hold(HoldId(1), (ONE, CHANNEL), true);
        assert_eq!(register.end_hold(HoldId(1)), Some(ONE));
        assert!(!register.has(ONE, CHANNEL));
        assert_eq!(register.accept(CHANNEL), None);
        // An established one is told its end after its hold was released.
        register.begin_hold(HoldId(2), (OTHER, CHANNEL), true);
        assert_eq!(register.accept(CHANNEL), Some(OTHER));
        assert_eq!(register.end_hold(HoldId(2)), Some(OTHER));
        assert_eq!(register.end_sink(CHANNEL), Some(OTHER));
        assert_eq!(register.end_sink(CHANNEL), None);
    }
}

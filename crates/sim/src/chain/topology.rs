//! The parts of a chain: stations, cables, and channels with their hops. [`Chain::validate`] fails
//! with [`ChainError`], which names what is invalid.

use netnice_core::admission::timing::{Processor, Resolution, Transmitter};
use netnice_core::contract::{Channel, ContractError, MessageRate, Slice};
use netnice_core::sched::Wire;
use netnice_core::units::{Bytes, Nanos};

use super::error::ChainError;
use super::supply::Standstills;
use crate::error::LONGEST_BLOCK;

/// Stations, and channels over some of them.
#[derive(Clone, Debug)]
pub struct Chain {
    /// The stations; hops name them by their place here.
    pub stations: Vec<Station>,
    /// The channels, in the order of the report.
    pub channels: Vec<RoutedChannel>,
    /// The seed of jitter and losses.
    pub seed: u64,
}

/// A host on the way: optionally handlers, then a link, then a cable to the next host.
#[derive(Clone, Debug)]
pub struct Station {
    /// The processor that cuts messages into packets; `None` if that takes no time.
    pub processor: Option<StationProcessor>,
    /// The link.
    pub wire: Wire,
    /// The times for which the machine stops the sender of the link; `None` for none.
    pub standstills: Option<Standstills>,
    /// The cable behind the link.
    pub cable: Cable,
    /// Length of the packets of best effort, which the link always has; `None` for no best effort.
    pub flood: Option<Bytes>,
    /// Whether messages are spaced by 1/Rmax here. A station that does not space them shows what
    /// the spacing is for: nothing is promised behind it.
    pub spaces: bool,
}

/// The processor of a station.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StationProcessor {
    /// The costs of protocol processing. Handlers give way after each [`Processor::block`] packets
    /// of at most [`Processor::largest`] bytes. If [`Processor::leftover`] is above zero, there is
    /// always work without a deadline, in blocks of that time.
    pub costs: Processor,
    /// When the processor works.
    pub time: HandlerTime,
}

/// The processor time of handlers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandlerTime {
    /// A whole processor.
    Whole,
    /// A reservation, which loses a switch and the cache misses after it in every period.
    Reserved {
        /// The time in every period.
        slice: Slice,
        /// The time in the first period at which the simulation begins.
        phase: Nanos,
    },
}

/// The cable behind a link. Packets keep their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cable {
    /// The least time from the end of a packet on the link to its arrival.
    pub delay: Nanos,
    /// The largest time by which a packet arrives later than that, drawn for each packet.
    pub jitter: Nanos,
    /// Packets in a million that are lost, drawn for each packet.
    pub loss: u32,
}

/// A channel on its way, and its traffic.
#[derive(Clone, Debug)]
pub struct RoutedChannel {
    /// The contract that the stations serve; its Rmax can be above that of the messages. Its
    /// deadline covers the hops, and not the cables.
    pub contract: Channel,
    /// The stations from the source on.
    pub hops: Vec<Hop>,
    /// Times and lengths of the messages that the source gets, by time.
    pub messages: Vec<(Nanos, Bytes)>,
}

/// What a channel has at a station.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The station.
    pub station: usize,
    /// The part of the bound for the handlers of the station; zero without a processor.
    pub processing: Nanos,
    /// The local delay bound: from the logical arrival of a message at the station until its last
    /// packet has left the link.
    pub bound: Nanos,
    /// The number of messages that the station can hold, from their first packet there until their
    /// last packet has left. A message beyond them is dropped, and counted.
    pub room: usize,
}

impl Cable {
    /// The longest time from the end of a packet on the link to its arrival.
    pub(super) fn most(&self) -> Nanos {
        Nanos(self.delay.0.saturating_add(self.jitter.0))
    }
}

impl Station {
    /// A station without a processor, standstills and best effort, before a cable that takes no
    /// time.
    pub fn new(wire: Wire) -> Station {
        Station {
            processor: None,
            wire,
            standstills: None,
            cable: Cable::default(),
            flood: None,
            spaces: true,
        }
    }

    /// The link's parameters for admission, for at most `flows` channels.
    pub(super) fn transmitter(&self, flows: u32) -> Transmitter {
        // The flow of best effort, too.
        let flows = flows.saturating_add(1);
        Transmitter {
            resolution: Resolution::SCHEDULER,
            stops: self.standstills.as_ref().map(Standstills::allowance),
            ..Transmitter::of(&self.wire, self.flood.unwrap_or(Bytes(0)), flows)
        }
    }

    /// The longest packet of a message.
    pub(super) fn largest(&self) -> Bytes {
        let handlers = self
            .processor
            .map_or(Bytes(u64::MAX), |one| one.costs.largest);
        handlers.min(self.wire.longest)
    }
}

impl StationProcessor {
    /// What is lost in each period of a reservation.
    pub(super) fn lost(&self) -> Nanos {
        let costs = &self.costs;
        Nanos(costs.switch.0.saturating_add(costs.cache_miss.0))
    }
}

impl RoutedChannel {
    /// 1 / Rmax in ns, rounded up.
    pub(crate) fn spacing(&self) -> u64 {
        spacing(self.contract.rmax())
    }
}

impl Hop {
    /// The contract as the link of the station has it.
    ///
    /// # Errors
    /// [`ContractError`] if the bound is zero, or not longer than the part for processing.
    pub(super) fn on_link(
        &self,
        contract: &Channel,
        spaces: bool,
    ) -> Result<Channel, ContractError> {
        let rmax = match spaces {
            true => contract.rmax(),
            // The highest rate of messages: 1 us from one to the next.
            false => MessageRate::new(1_000_000).unwrap_or(contract.rmax()),
        };
        Channel::new(contract.mmax(), rmax, contract.bmax(), self.bound)?
            .with_processing(self.processing)
    }
}

impl Chain {
    /// The number of messages that each hop of a channel has to hold at most, if all hops keep
    /// their bounds (docs/reference/contracts.md, theorem 7).
    pub fn rooms(stations: &[Station], contract: &Channel, hops: &[Hop]) -> Vec<usize> {
        let spacing = spacing(contract.rmax());
        let within = |time: u64| usize::try_from(time / spacing).unwrap_or(usize::MAX);
        let mut rooms = Vec::with_capacity(hops.len());
        for (at, hop) in hops.iter().enumerate() {
            let room = match at.checked_sub(1).map(|before| &hops[before]) {
                None => within(hop.bound.0).saturating_add(contract.bmax() as usize),
                Some(before) => {
                    let station = &stations[before.station];
                    let Cable { jitter, loss, .. } = station.cable;
                    let times = [before.bound, station.wire.horizon, jitter, hop.bound];
                    let window = times
                        .iter()
                        .fold(0, |sum: u64, time| sum.saturating_add(time.0));
                    let incomplete = usize::from(loss > 0);
                    within(window).saturating_add(1 + incomplete)
                }
            };
            rooms.push(room);
        }
        rooms
    }

    /// Checks the stations and the channels.
    ///
    /// # Errors
    /// The first error that is found.
    pub(super) fn validate(&self) -> Result<(), ChainError> {
        for (number, station) in self.stations.iter().enumerate() {
            let loss = station.cable.loss;
            if loss >= MILLION {
                return Err(ChainError::Loss {
                    station: number,
                    loss,
                });
            }
            if let Some(processor) = &station.processor {
                processor.validate(number)?;
            }
        }
        let mut channels = self.channels.iter().enumerate();
        channels.try_for_each(|(number, channel)| channel.validate(number, &self.stations))
    }
}

impl StationProcessor {
    fn validate(&self, station: usize) -> Result<(), ChainError> {
        let packets = self.costs.block.get().into();
        let takes = self
            .costs
            .processing(packets, true)
            .max(self.costs.leftover);
        if takes == Nanos(0) || takes > LONGEST_BLOCK {
            return Err(ChainError::Block {
                station,
                packets,
                takes,
            });
        }
        match self.time {
            HandlerTime::Reserved { slice, .. } if slice.slice() <= self.lost() => {
                let (slice, lost) = (slice.slice(), self.lost());
                Err(ChainError::Reservation {
                    station,
                    slice,
                    lost,
                })
            }
            _ => Ok(()),
        }
    }
}

impl RoutedChannel {
    fn validate(&self, channel: usize, stations: &[Station]) -> Result<(), ChainError> {
        if self.hops.is_empty() {
            return Err(ChainError::NoHops { channel });
        }
        for (number, hop) in self.hops.iter().enumerate() {
            let station = hop.station;
            let Some(at) = stations.get(station) else {
                return Err(ChainError::NoStation {
                    channel,
                    hop: number,
                    station,
                    stations: stations.len(),
                });
            };
            if self.hops[..number].iter().any(|one| one.station == station) {
                return Err(ChainError::Twice { channel, station });
            }
            let processing = hop.processing;
            if at.processor.is_some() != (processing > Nanos(0)) {
                return Err(ChainError::Processing {
                    channel,
                    hop: number,
                    processing,
                });
            }
            hop.on_link(&self.contract, true)?;
            let (mmax, largest) = (self.contract.mmax(), at.largest());
            if largest.0 == 0 || mmax.0.div_ceil(largest.0) > u64::from(u16::MAX) {
                return Err(ChainError::Packets {
                    station,
                    mmax,
                    largest,
                });
            }
        }
        let bounds = self.hops.iter().map(|hop| hop.bound.0);
        let sum = Nanos(bounds.fold(0, u64::saturating_add));
        let deadline = self.contract.deadline();
        if sum > deadline {
            return Err(ChainError::Bounds {
                channel,
                sum,
                deadline,
            });
        }
        self.validate_messages(channel)
    }

    fn validate_messages(&self, channel: usize) -> Result<(), ChainError> {
        let mmax = self.contract.mmax();
        let mut before = Nanos(0);
        for (time, size) in &self.messages {
            let (time, size) = (*time, *size);
            if time < before {
                return Err(ChainError::Unsorted {
                    channel,
                    time,
                    before,
                });
            }
            if size.0 == 0 || size > mmax {
                return Err(ChainError::Size {
                    channel,
                    size,
                    mmax,
                });
            }
            before = time;
        }
        Ok(())
    }
}

/// 1 / Rmax in ns, rounded up.
pub(super) fn spacing(rmax: MessageRate) -> u64 {
    1_000_000_000_u64.div_ceil(u64::from(rmax.get()))
}

/// A probability of 1, as packets in a million.
pub(super) const MILLION: u32 = 1_000_000;

//! Reserves channels over the stations of a chain, as the hosts on the way would do it
//! ([`PathLedger::reserve`]). A channel that does not fit is refused with a [`PathRefusal`].
//!
//! 1. Forward, each hop holds the least bound that its processor and its link can keep beside what
//!    they hold already.
//! 2. The slack, what the deadline has beyond the sum of these bounds, is handed out in equal parts
//!    ([`share_slack`]).
//! 3. Backward, each hop relaxes its bound by its part. A part of a hop with a processor goes to
//!    the processor and to the link in equal parts. With a horizon of zero no hop can refuse
//!    (docs/reference/contracts.md, theorem 5); with a horizon a hop may, and keeps its least
//!    bound.

use netnice_core::admission::timing::{
    Alternative, Handlers, PathTooLong, Promise, Resolution, TimingFault, TimingRefusal,
    Transmitter, Work, share_slack,
};
use netnice_core::contract::{Channel, ContractError, Slice};
use netnice_core::units::Nanos;

use super::topology::{Chain, HandlerTime, Hop, Station, StationProcessor};

/// What the stations of a chain hold for channels.
#[derive(Clone, Debug)]
pub struct PathLedger {
    stations: Vec<Station>,
    held: Vec<Held>,
    /// The most channels of a station.
    flows: u32,
}

/// What a station holds.
#[derive(Clone, Debug)]
struct Held {
    link: Transmitter,
    processor: Option<Handling>,
    sent: Vec<Promise>,
    work: Vec<Work>,
}

/// The admission test of a processor.
#[derive(Clone, Copy, Debug)]
struct Handling {
    handlers: Handlers,
    /// `None` for a whole processor.
    reservation: Option<Slice>,
}

/// A reserved channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// The hops, with the room that each of them needs. Their bounds sum to the deadline, unless a
    /// hop refused to be relaxed.
    pub hops: Vec<Hop>,
    /// The reasons of the hops that refused to be relaxed.
    pub refused: Vec<TimingFault>,
}

/// The reason why a channel is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathRefusal {
    /// The path has no station.
    #[error("the path passes no station: 1 at least")]
    NoHops,
    /// There is no such station.
    #[error("the path passes station {station}: there are {stations}, counted from 0")]
    NoStation {
        /// The station.
        station: usize,
        /// Number of stations.
        stations: usize,
    },
    /// The path passes a station twice.
    #[error("the path passes station {0} twice: once at most")]
    Twice(usize),
    /// A station has as many channels as it may have.
    #[error("station {station} has {flows} channels: no more are allowed")]
    Full {
        /// The station.
        station: usize,
        /// The most channels of a station.
        flows: u32,
    },
    /// A hop has no deadline for the channel.
    #[error("hop {hop} refuses: {refusal}")]
    Hop {
        /// The hop, from 0.
        hop: usize,
        /// Its reason.
        refusal: TimingRefusal,
    },
    /// The least bounds of the hops are longer than the deadline.
    #[error("{0}")]
    TooLong(PathTooLong),
    /// A hop cannot have the channel, because a part of the contract is invalid there.
    #[error(transparent)]
    Contract(#[from] ContractError),
}

/// The two parts of a bound.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    processing: Nanos,
    link: Nanos,
}

impl PathLedger {
    /// Stations with at most `flows` channels each, which hold nothing.
    pub fn new(stations: &[Station], flows: u32) -> PathLedger {
        let held = |station: &Station| Held {
            link: station.transmitter(flows),
            processor: station.processor.as_ref().map(Handling::of),
            sent: Vec::new(),
            work: Vec::new(),
        };
        PathLedger {
            held: stations.iter().map(held).collect(),
            stations: stations.to_vec(),
            flows,
        }
    }

    /// Reserves a channel over these stations, from the source on. The deadline of the channel
    /// covers the hops, and not the cables.
    ///
    /// # Errors
    /// [`PathRefusal`] if it does not fit, or if the path is invalid; then the stations hold what
    /// they held before.
    pub fn reserve(&mut self, channel: &Channel, path: &[usize]) -> Result<Reserved, PathRefusal> {
        self.validate(path)?;
        let before = self.held.clone();
        let reserved = self.try_reserve(channel, path);
        if reserved.is_err() {
            self.held = before;
        }
        reserved
    }

    fn validate(&self, path: &[usize]) -> Result<(), PathRefusal> {
        if path.is_empty() {
            return Err(PathRefusal::NoHops);
        }
        let (stations, flows) = (self.held.len(), self.flows);
        for (hop, station) in path.iter().copied().enumerate() {
            match self.held.get(station) {
                None => return Err(PathRefusal::NoStation { station, stations }),
                Some(_) if path[..hop].contains(&station) => {
                    return Err(PathRefusal::Twice(station));
                }
                Some(held) if held.sent.len() >= flows as usize => {
                    return Err(PathRefusal::Full { station, flows });
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    fn try_reserve(&mut self, channel: &Channel, path: &[usize]) -> Result<Reserved, PathRefusal> {
        let mut least: Vec<Bounds> = Vec::new();
        for (hop, station) in path.iter().enumerate() {
            let held = &mut self.held[*station];
            let bounds = held.least(channel);
            let bounds = bounds.map_err(|refusal| PathRefusal::Hop { hop, refusal })?;
            held.hold(channel, bounds)?;
            least.push(bounds);
        }
        let sums: Vec<Nanos> = least.iter().map(Bounds::sum).collect();
        let bounds = share_slack(&sums, channel.deadline()).map_err(PathRefusal::TooLong)?;
        let (mut hops, mut refused) = (Vec::new(), Vec::new());
        for (hop, station) in path.iter().enumerate().rev() {
            let relaxed = least[hop].relaxed(bounds[hop]);
            let held = &mut self.held[*station];
            let kept = match held.relax(channel, relaxed)? {
                Ok(()) => relaxed,
                Err(fault) => {
                    refused.push(fault);
                    least[hop]
                }
            };
            hops.push(Hop {
                station: *station,
                processing: kept.processing,
                bound: kept.sum(),
                room: 0,
            });
        }
        hops.reverse();
        let rooms = Chain::rooms(&self.stations, channel, &hops);
        for (hop, room) in hops.iter_mut().zip(rooms) {
            hop.room = room;
        }
        Ok(Reserved { hops, refused })
    }
}

impl Held {
    /// The least bounds that the station can keep beside what it holds.
    fn least(&self, channel: &Channel) -> Result<Bounds, TimingRefusal> {
        let tightest = with_deadline(channel, Nanos(1)).unwrap_or(*channel);
        let processing = match &self.processor {
            None => Nanos(0),
            Some(handling) => granted(handling.admit(&self.work, &Work::Channel(tightest)))?,
        };
        let link = self.link.admit(&self.sent, &Promise::Channel(tightest));
        Ok(Bounds {
            processing,
            link: granted(link)?,
        })
    }

    /// Holds a channel.
    fn hold(&mut self, channel: &Channel, bounds: Bounds) -> Result<(), ContractError> {
        self.sent.push(Promise::Channel(bounds.on_link(channel)?));
        if self.processor.is_some() {
            let handler = with_deadline(channel, bounds.processing)?;
            self.work.push(Work::Channel(handler));
        }
        Ok(())
    }

    /// Holds longer bounds for the channel that the station holds last, if they fit.
    fn relax(
        &mut self,
        channel: &Channel,
        bounds: Bounds,
    ) -> Result<Result<(), TimingFault>, ContractError> {
        let mut relaxed = self.clone();
        relaxed.sent.pop();
        relaxed.work.pop();
        relaxed.hold(channel, bounds)?;
        let fits = relaxed.link.carries(&relaxed.sent).and_then(|()| {
            let handling = relaxed.processor.as_ref();
            handling.map_or(Ok(()), |handling| handling.carries(&relaxed.work))
        });
        if fits.is_ok() {
            *self = relaxed;
        }
        Ok(fits)
    }
}

impl Handling {
    fn of(processor: &StationProcessor) -> Handling {
        Handling {
            handlers: Handlers {
                resolution: Resolution::SCHEDULER,
                ..Handlers::new(processor.costs)
            },
            reservation: match processor.time {
                HandlerTime::Whole => None,
                HandlerTime::Reserved { slice, .. } => Some(slice),
            },
        }
    }

    fn admit(&self, held: &[Work], requested: &Work) -> Result<(), TimingRefusal> {
        match &self.reservation {
            None => self.handlers.admit_on_whole(held, requested),
            Some(slice) => self.handlers.admit(slice, held, requested),
        }
    }

    fn carries(&self, work: &[Work]) -> Result<(), TimingFault> {
        match &self.reservation {
            None => self.handlers.carries_on_whole(work),
            Some(slice) => self.handlers.carries(slice, work),
        }
    }
}

impl Bounds {
    fn sum(&self) -> Nanos {
        Nanos(self.processing.0.saturating_add(self.link.0))
    }

    /// The bounds with their parts of a longer sum. A processor's part becomes longer by 2 ns at
    /// least, which theorem 5 demands, or stays.
    fn relaxed(&self, sum: Nanos) -> Bounds {
        let shared = share_slack(&[self.processing, self.link], sum);
        let processing = match shared.as_deref() {
            Ok([longer, _]) if longer.0 >= self.processing.0.saturating_add(2) => {
                (*longer).min(Channel::MAX_PROCESSING)
            }
            _ => self.processing,
        };
        let processing = match self.processing {
            Nanos(0) => Nanos(0),
            _ => processing,
        };
        let link = Nanos(sum.0 - processing.0);
        Bounds { processing, link }
    }

    fn on_link(&self, channel: &Channel) -> Result<Channel, ContractError> {
        with_deadline(channel, self.sum())?.with_processing(self.processing)
    }
}

/// The deadline 1 ns of a request that was granted, or the deadline that would be granted instead.
fn granted(answer: Result<(), TimingRefusal>) -> Result<Nanos, TimingRefusal> {
    match answer {
        Ok(()) => Ok(Nanos(1)),
        Err(TimingRefusal {
            alternative: Some(Alternative::Deadline(least)),
            ..
        }) => Ok(least),
        Err(refusal) => Err(refusal),
    }
}

/// The channel with another deadline, and without a part for processing.
fn with_deadline(channel: &Channel, deadline: Nanos) -> Result<Channel, ContractError> {
    let (mmax, rmax, bmax) = (channel.mmax(), channel.rmax(), channel.bmax());
    Channel::new(mmax, rmax, bmax, deadline)
}

//! Converts the daemon's requests to the driver's types, and the driver's counters to messages. The
//! functions do no input or output. An invalid request fails as a whole with [`SetupError`].

use std::net::SocketAddr;

use netnice_api::direct::{Endpoint, ShapeDoc};
use netnice_api::driver::{DriverFlow, FlowCounts, FramesDoc, ServerDoc, StopsDoc};
use netnice_core::contract::{CLASSES, Contract, ContractError, ReceiveShare};
use netnice_core::sched::{Class, NotServed, Service};
use netnice_core::stops::StopCounts;
use netnice_core::units::{Nanos, Rate};
use netnice_kernel::direct::FrameMatch;
use netnice_ring::layout::Shape;

use crate::code_points::BadCodePoint;
use crate::datapath::{FlowCounters, FlowParameters, ServerParameters};
use crate::demux::{Match, Reassembly};
use crate::frame::{ETHERNET, Mac};
use crate::frames::Tally;
use crate::pattern::{BadPattern, Pattern, Patterns, Term};
use crate::protocol::{EtherType, IpProtocol, NotForFlows, Transport};
use crate::receive_budget::ReceiveBudget;
use crate::template::{Sender, Sends};

/// Why a request is invalid.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The contract does not parse.
    #[error("contract \"{text}\": {why}")]
    Contract {
        /// The text of the contract.
        text: String,
        /// The cause.
        #[source]
        why: ContractError,
    },
    /// The scheduler has no service for the contract: it has a priority, or more than one of slice,
    /// cell, channel and min.
    #[error(transparent)]
    NotServed(#[from] NotServed),
    /// The protocol is refused for flows.
    #[error(transparent)]
    Protocol(#[from] NotForFlows),
    /// A pattern is invalid, or the discard patterns compare too many sets of bits.
    #[error("pattern: {0}")]
    Pattern(#[from] BadPattern),
    /// A message about the link's server has not eight classes.
    #[error("a server has {CLASSES} classes, not {0}")]
    Classes(usize),
    /// The minimum of a class is out of range.
    #[error("a class cannot have a minimum of {0} bit/s")]
    Minimum(u64),
    /// A code point is above 63.
    #[error(transparent)]
    CodePoint(#[from] BadCodePoint),
    /// The receive budget is above one.
    #[error("a receive budget of {0} millionths is above 1,000,000")]
    ReceiveBudget(u32),
}

/// A flow's parameters for the datapath, and the frames that XDP passes to the driver for it. `mac`
/// and `mtu` are those of the interface. Fails if the contract is invalid or has no service, if the
/// protocol is refused for flows, if the pattern is invalid, or if the receive budget is above one.
pub(crate) fn flow(
    request: &DriverFlow,
    mac: Mac,
    mtu: u32,
) -> Result<(FlowParameters, FrameMatch), SetupError> {
    let (sends, what, frame_match) = endpoint(&request.endpoint)?;
    let (service, receive) = service(&request.contract)?;
    let share = receive.map_or(0, ReceiveShare::millionths);
    let receive_budget = match request.receive_budget {
        Some(part) if part > MILLION => return Err(SetupError::ReceiveBudget(part)),
        part => part.map(|part| ReceiveBudget::new(part, BUDGET_BURST).with_share(share)),
    };
    let parameters = FlowParameters {
        shape: shape(&request.shape),
        service,
        sender: Sender {
            mac,
            next_hop: request.next_hop.map(Mac),
            longest: longest(request.mtu, mtu),
            sends,
        },
        matches: vec![what],
        reassembly: match request.in_order {
            true => Reassembly::InOrder,
            false => Reassembly::Complete,
        },
        receive_budget,
    };
    Ok((parameters, frame_match))
}

/// The scheduler's service for a contract in text form, and the contract's part of the time for
/// received packets. Fails if the text is no contract, or if the scheduler has no service for the
/// contract.
pub(crate) fn service(text: &str) -> Result<(Service, Option<ReceiveShare>), SetupError> {
    let contract = text
        .parse::<Contract>()
        .map_err(|why| SetupError::Contract {
            text: text.to_owned(),
            why,
        })?;
    Ok((Service::of(&contract)?, contract.receive()))
}

/// The link's server from its message. Fails if the slice is none, a minimum is out of range, or
/// there are not eight classes.
pub(crate) fn server(request: &ServerDoc) -> Result<ServerParameters, SetupError> {
    let text = request.slice.as_deref();
    let contract = text.map(|text| {
        let text = format!("slice {text}");
        let contract = text.parse::<Contract>();
        contract.map_err(|why| SetupError::Contract { text, why })
    });
    let slice = contract.transpose()?.and_then(|contract| contract.slice());
    let count = request.minimums.len();
    let mut classes = [Class::default(); CLASSES];
    if count != CLASSES {
        return Err(SetupError::Classes(count));
    }
    for (class, bits) in classes.iter_mut().zip(&request.minimums) {
        let min = bits.map(|bits| Rate::new(bits).ok_or(SetupError::Minimum(bits)));
        class.min = min.transpose()?;
    }
    Ok(ServerParameters { slice, classes })
}

/// Compiles the discard patterns. A repeated pattern counts once. Fails if one is invalid, or if
/// they compare too many sets of bits.
pub(crate) fn discards(
    requested: &[Vec<netnice_api::direct::Term>],
) -> Result<Patterns<()>, SetupError> {
    let mut patterns = Patterns::default();
    for terms in requested {
        match patterns.insert(&compiled(terms)?, ()) {
            Ok(()) | Err(BadPattern::Taken) => {}
            Err(why) => return Err(why.into()),
        }
    }
    Ok(patterns)
}

/// The longest frame of a flow in bytes, from the MTUs of its path and of the interface.
pub(crate) fn longest(flow: u32, interface: u32) -> usize {
    ETHERNET + flow.min(interface) as usize
}

/// A flow's counters as a message.
pub(crate) fn counts(counters: &FlowCounters) -> FlowCounts {
    let used = counters.lateness.iter().rposition(|count| *count > 0);
    FlowCounts {
        // The caller knows the time.
        suspended: false,
        sent: counters.sent,
        sent_bytes: counters.sent_bytes,
        forbidden: counters.forbidden,
        too_long: counters.too_long,
        no_link: counters.no_link,
        received: counters.received,
        delivered: counters.delivered,
        delivered_bytes: counters.delivered_bytes,
        no_buffer: counters.no_buffer,
        buffer_too_short: counters.too_short,
        over_share: counters.over_budget,
        out_of_order: counters.out_of_order,
        receiving_ns: counters.receiving,
        lateness: counters.lateness[..used.map_or(0, |last| last + 1)].to_vec(),
        queue_delay_sum: counters.waited_sum,
        queue_delay_max: counters.waited_most,
    }
}

/// The counts of stops as a message.
pub(crate) fn stops(counts: &StopCounts) -> StopsDoc {
    let [late, still, slow] = counts.by_kind;
    StopsDoc {
        late,
        still,
        slow,
        total_ns: counts.total.0,
        longest_ns: counts.longest.0,
    }
}

/// The numbers of frames as a message.
pub(crate) fn frames(tally: Tally) -> FramesDoc {
    let Tally {
        total,
        free,
        driver,
        filling,
        sending,
    } = tally;
    FramesDoc {
        total,
        free,
        driver,
        filling,
        sending,
    }
}

fn shape(document: &ShapeDoc) -> Shape {
    Shape {
        chunk_bytes: document.chunk_bytes,
        chunks: document.chunks,
        transmit_entries: document.transmit_entries,
        receive_entries: document.receive_entries,
    }
}

fn endpoint(requested: &Endpoint) -> Result<(Sends, Match, FrameMatch), SetupError> {
    let udp = Transport::Udp;
    Ok(match requested {
        Endpoint::Udp { local, remote } => of_ports(udp, *local, *remote),
        Endpoint::Tcp { local, remote } => of_ports(Transport::Tcp, *local, Some(*remote)),
        Endpoint::TcpListener { local } => of_ports(Transport::Tcp, *local, None),
        Endpoint::TcpSyn { local } => {
            let (sends, ..) = of_ports(Transport::Tcp, *local, None);
            let frames = FrameMatch::Syn {
                local: (local.ip(), local.port()),
            };
            (sends, Match::Syn { local: *local }, frames)
        }
        Endpoint::Group { local, group } => {
            let what = Match::Group {
                transport: udp,
                group: *group,
            };
            let (sends, ..) = of_ports(udp, *local, Some(*group));
            let (.., frames) = of_ports(udp, *group, None);
            (sends, what, frames)
        }
        Endpoint::Protocol {
            number,
            local,
            remote,
            pattern,
        } => {
            let protocol = IpProtocol::new(*number)?;
            let (local, remote) = (*local, *remote);
            let sends = Sends::Protocol {
                protocol,
                local,
                remote,
            };
            let what = Match::Protocol {
                protocol,
                local,
                pattern: compiled(pattern)?,
            };
            let protocol = *number;
            (sends, what, FrameMatch::Protocol { protocol, local })
        }
        Endpoint::EtherType { number, pattern } => {
            let kind = EtherType::new(*number)?;
            let what = Match::EtherType {
                kind,
                pattern: compiled(pattern)?,
            };
            (Sends::EtherType(kind), what, FrameMatch::EtherType(*number))
        }
    })
}

/// Packets between a local endpoint and a remote one, or any host without `remote`.
fn of_ports(
    transport: Transport,
    local: SocketAddr,
    remote: Option<SocketAddr>,
) -> (Sends, Match, FrameMatch) {
    let sends = Sends::Ports {
        transport,
        local,
        remote,
    };
    let what = match remote {
        Some(remote) => Match::Connected {
            transport,
            local,
            remote,
        },
        None => Match::Port { transport, local },
    };
    let frames = FrameMatch::Endpoints {
        protocol: transport.number(),
        local: (local.ip(), local.port()),
        remote: remote.map(|remote| (remote.ip(), remote.port())),
    };
    (sends, what, frames)
}

fn compiled(terms: &[netnice_api::direct::Term]) -> Result<Pattern, BadPattern> {
    let terms: Vec<Term> = terms
        .iter()
        .map(|term| Term {
            offset: term.offset,
            width: 1,
            mask: term.mask.into(),
            value: term.value.into(),
        })
        .collect();
    Pattern::new(&terms)
}

const MILLION: u32 = 1_000_000;
/// How much a flow can save of its receive budget, 1 ms: enough for a burst that fills its rings.
const BUDGET_BURST: Nanos = Nanos(1_000_000);

#[cfg(test)]
mod tests;

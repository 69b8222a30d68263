//! The code points (DSCP, RFC 2474) that the driver writes into the packets of flows: which flow
//! gets which ([`CodePoints`]), and the change of a frame ([`write_code_point`]). A number above 63
//! fails with [`BadCodePoint`].

use netnice_api::driver::CodePointsDoc;
use netnice_core::contract::Dscp;
use netnice_core::sched::{Guarantee, Service};

use crate::frame::{ETHERNET, Family, be16};

/// The code points by the kind of a flow's contract. `None`: packets keep what the program wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CodePoints {
    doc: CodePointsDoc,
}

/// A number is no code point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is no code point: they are 0 to 63")]
pub struct BadCodePoint(pub u8);

impl CodePoints {
    /// Fails with the first number above 63.
    pub(crate) fn new(doc: &CodePointsDoc) -> Result<CodePoints, BadCodePoint> {
        let all = [doc.cell, doc.channel, doc.slice, doc.min, doc.best_effort];
        let bad = |number: &u8| Dscp::new(*number).is_none();
        match all.into_iter().flatten().find(bad) {
            Some(number) => Err(BadCodePoint(number)),
            None => Ok(CodePoints { doc: *doc }),
        }
    }

    /// The code points as a message.
    pub(crate) fn doc(&self) -> CodePointsDoc {
        self.doc
    }

    /// The code point of the flows with this kind of contract.
    #[inline]
    pub(crate) fn of(&self, kind: ContractKind) -> Option<Dscp> {
        let number = match kind {
            ContractKind::Cell => self.doc.cell,
            ContractKind::Channel => self.doc.channel,
            ContractKind::Slice => self.doc.slice,
            ContractKind::Min => self.doc.min,
            ContractKind::BestEffort => self.doc.best_effort,
        };
        Dscp::new(number?)
    }
}

/// The kind of a contract, for its code point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContractKind {
    Cell,
    Channel,
    Slice,
    Min,
    BestEffort,
}

impl From<&Service> for ContractKind {
    fn from(service: &Service) -> ContractKind {
        match service {
            Service::Share { min: Some(_), .. } => ContractKind::Min,
            Service::Share { min: None, .. } => ContractKind::BestEffort,
            Service::Slice { .. } => ContractKind::Slice,
            Service::Cell(_) => ContractKind::Cell,
            Service::Channel(_) => ContractKind::Channel,
            Service::Limited { guarantee, .. } => match guarantee {
                Guarantee::Slice { .. } => ContractKind::Slice,
                Guarantee::Cell(_) => ContractKind::Cell,
                Guarantee::Channel(_) => ContractKind::Channel,
            },
        }
    }
}

/// Writes a code point into an IP frame whose header a template has checked. The bits of ECN stay,
/// and so does a right checksum of an IPv4 header.
#[inline]
pub(crate) fn write_code_point(frame: &mut [u8], family: Family, dscp: Dscp) {
    let Some(first) = frame
        .get_mut(ETHERNET..)
        .and_then(|ip| ip.first_chunk_mut::<2>())
    else {
        return;
    };
    let before = u16::from_be_bytes(*first);
    // IPv4: version, length, code point, ECN. IPv6: version, code point, ECN, flow label.
    let shift = match family {
        Family::V4 => 2,
        Family::V6 => 6,
    };
    let after = before & !(0x3f << shift) | u16::from(dscp.get()) << shift;
    *first = after.to_be_bytes();
    if family == Family::V4
        && let Some(sum) = frame.get_mut(V4_CHECKSUM..V4_CHECKSUM + 2)
    {
        // RFC 1624, equation 3: HC' = ~(~HC + ~m + m').
        let old = be16(sum, 0);
        let wide = u32::from(!old) + u32::from(!before) + u32::from(after);
        let folded = (wide & 0xffff) + (wide >> 16);
        let folded = (folded & 0xffff) + (folded >> 16);
        sum.copy_from_slice(&(!(folded as u16)).to_be_bytes());
    }
}

/// Offset of the checksum of an IPv4 header, from the begin of the frame.
const V4_CHECKSUM: usize = ETHERNET + 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::checksum;

    const IPV4_HEADER: usize = 20;

    #[test]
    fn each_kind_of_contract_has_its_code_point() {
        let doc = CodePointsDoc {
            cell: Some(46),
            channel: Some(34),
            slice: Some(26),
            min: Some(18),
            best_effort: Some(0),
        };
        let points = CodePoints::new(&doc).expect("code points");
        for (contract, number) in [
            ("cell pcr=1mbit,cdvt=1ms", 46),
            ("channel mmax=1kB,rmax=10/s,bmax=1,deadline=10ms", 34),
            (
                "channel mmax=1kB,rmax=10/s,bmax=1,deadline=10ms up 1mbit",
                34,
            ),
            ("slice 1ms/10ms", 26),
            ("slice 1ms/10ms extra", 26),
            ("min 1mbit", 18),
            ("up 1mbit", 0),
            ("weight 7", 0),
        ] {
            let (service, _) = crate::setup::service(contract).expect("a service");
            let kind = ContractKind::from(&service);
            assert_eq!(points.of(kind).map(Dscp::get), Some(number), "{contract}");
            assert_eq!(CodePoints::default().of(kind), None, "{contract}");
        }
        let bad = CodePointsDoc {
            min: Some(64),
            ..doc
        };
        assert_eq!(CodePoints::new(&bad), Err(BadCodePoint(64)));
    }

    /// Every code point in place of every type of service: the checksum stays right, and nothing
    /// but the code point and the checksum changes.
    #[test]
    fn ecn_and_the_rest_stay_and_the_checksum_is_right() {
        for tos in 0..=255_u8 {
            for number in [0, 1, 8, 46, 63] {
                let dscp = Dscp::new(number).expect("a code point");
                let mut frame = [0_u8; ETHERNET + IPV4_HEADER];
                for (at, byte) in frame.iter_mut().enumerate() {
                    *byte = (at * 37) as u8 ^ tos;
                }
                (frame[ETHERNET], frame[ETHERNET + 1]) = (0x45, tos);
                frame[V4_CHECKSUM..V4_CHECKSUM + 2].fill(0);
                let sum = checksum(&frame[ETHERNET..]).to_be_bytes();
                frame[V4_CHECKSUM..V4_CHECKSUM + 2].copy_from_slice(&sum);
                let before = frame;
                write_code_point(&mut frame, Family::V4, dscp);
                assert_eq!(checksum(&frame[ETHERNET..]), 0, "{tos} {number}");
                assert_eq!(frame[ETHERNET + 1], number << 2 | tos & 3);
                let same = |at: &usize| ![ETHERNET + 1, V4_CHECKSUM, V4_CHECKSUM + 1].contains(at);
                let kept = (0..frame.len()).filter(same);
                assert!(kept.into_iter().all(|at| frame[at] == before[at]));

                let mut frame = before;
                (frame[ETHERNET], frame[ETHERNET + 1]) = (0x60 | tos >> 4, tos << 4 | 5);
                let before = frame;
                write_code_point(&mut frame, Family::V6, dscp);
                let class = frame[ETHERNET] << 4 | frame[ETHERNET + 1] >> 4;
                assert_eq!(class, number << 2 | tos & 3);
                assert_eq!((frame[ETHERNET] >> 4, frame[ETHERNET + 1] & 15), (6, 5));
                assert_eq!(frame[ETHERNET + 2..], before[ETHERNET + 2..]);
            }
        }
    }
}

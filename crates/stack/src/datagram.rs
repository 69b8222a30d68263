//! Reading a received frame: where in it the payload lies, and from whom it is; or which part of a datagram it holds. What is
//! neither is named, so that it can be counted.
//!
//! The driver has looked at the headers already, to find the flow; what it handed over is judged again, because only
//! this side knows what it expects, and a datagram's checksum costs the time of whom it is for.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;

use crate::checksum::Sum;
use crate::headers::{ETHERNET, UDP, pseudo};

/// A datagram in a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Where its payload lies in the frame.
    pub payload: Range<usize>,
    /// Who sent it.
    pub from: SocketAddr,
    /// To whom.
    pub to: SocketAddr,
}

/// Why there is no datagram in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// Shorter than its headers say, or than they are.
    #[error("shorter than its headers say")]
    Short,
    /// Neither IPv4 nor IPv6, or not UDP.
    #[error("not UDP")]
    Protocol,
    /// A fragment of a datagram.
    #[error("a fragment")]
    Fragment,
    /// A checksum is wrong.
    #[error("a wrong checksum")]
    Checksum,
}

/// Which received checksums of UDP are wrong. That of an IPv4 header is always looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checks {
    /// All but the right one (and none at all, in IPv4).
    Verify,
    /// The same, but half a checksum is taken too: the sum of the pseudo header alone, which the kernel of a sender
    /// inside this machine leaves to a card that is not there. A packet that was damaged on a wire looks so once in
    /// 65,536 times.
    Partial,
    /// None: they are not looked at.
    Trust,
}

/// A part of a datagram that was cut on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// What all parts of a datagram have alike.
    pub of: Name,
    /// Where it begins in the datagram.
    pub offset: u32,
    /// Others follow.
    pub more: bool,
    /// Where in the frame its bytes lie.
    pub bytes: Range<usize>,
}

/// What all parts of a datagram have alike (RFC 791; RFC 8200, section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// The host that sent it.
    pub from: IpAddr,
    /// To whom.
    pub to: IpAddr,
    /// The number that the sender gave it.
    pub id: u32,
}

/// Finds the datagram.
///
/// # Errors
/// If there is none.
pub fn read(frame: &[u8], checks: Checks) -> Result<Found, Unreadable> {
    let ip = network(frame)?;
    match ip.part {
        Some(_) => Err(Unreadable::Fragment),
        None => datagram(frame, ip.payload, (ip.from, ip.to), checks),
    }
}

/// Finds the datagram in what its parts were put together to.
///
/// # Errors
/// If there is none.
pub fn read_whole(bytes: &[u8], of: &Name, checks: Checks) -> Result<Found, Unreadable> {
    datagram(bytes, 0..bytes.len(), (of.from, of.to), checks)
}

/// The part of a datagram in a frame for which [`read`] says [`Unreadable::Fragment`].
///
/// # Errors
/// If there is none.
pub fn part(frame: &[u8]) -> Result<Part, Unreadable> {
    let ip = network(frame)?;
    let (id, offset, more) = ip.part.ok_or(Unreadable::Protocol)?;
    Ok(Part {
        of: Name {
            from: ip.from,
            to: ip.to,
            id,
        },
        offset,
        more,
        bytes: ip.payload,
    })
}

/// A frame's network header, read.
struct Network {
    payload: Range<usize>,
    from: IpAddr,
    to: IpAddr,
    /// Of a part: the datagram's number, where the part begins, and whether others follow.
    part: Option<(u32, u32, bool)>,
}

fn network(frame: &[u8]) -> Result<Network, Unreadable> {
    let kind = frame.get(12..14).ok_or(Unreadable::Short)?;
    let packet = &frame[ETHERNET..];
    let mut ip = match kind {
        [0x08, 0x00] => ipv4(packet)?,
        [0x86, 0xdd] => ipv6(packet)?,
        _ => return Err(Unreadable::Protocol),
    };
    // Behind the packet there may be padding of the link.
    packet.get(ip.payload.clone()).ok_or(Unreadable::Short)?;
    ip.payload.start += ETHERNET;
    ip.payload.end += ETHERNET;
    Ok(ip)
}

/// The datagram in some of these bytes.
fn datagram(
    bytes: &[u8],
    at: Range<usize>,
    (from, to): (IpAddr, IpAddr),
    checks: Checks,
) -> Result<Found, Unreadable> {
    let begin = at.start + 8;
    let datagram = bytes.get(at).ok_or(Unreadable::Short)?;
    let &[f0, f1, t0, t1, l0, l1, c0, c1, ..] = datagram else {
        return Err(Unreadable::Short);
    };
    let long = usize::from(u16::from_be_bytes([l0, l1]));
    let datagram = datagram.get(..long).filter(|_| long >= 8);
    let datagram = datagram.ok_or(Unreadable::Short)?;
    let summed = [c0, c1] != [0, 0];
    if !summed && from.is_ipv6() {
        return Err(Unreadable::Checksum);
    }
    if checks != Checks::Trust && summed {
        let sum = match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => pseudo(&from.octets(), &to.octets()),
            (IpAddr::V6(from), IpAddr::V6(to)) => pseudo(&from.octets(), &to.octets()),
            _ => return Err(Unreadable::Protocol),
        };
        let sum = sum.word(long as u16);
        let half = || checks == Checks::Partial && u16::from_be_bytes([c0, c1]) == sum.folded();
        if !sum.add(datagram).is_right() && !half() {
            return Err(Unreadable::Checksum);
        }
    }
    Ok(Found {
        payload: begin..begin + long - 8,
        from: SocketAddr::new(from, u16::from_be_bytes([f0, f1])),
        to: SocketAddr::new(to, u16::from_be_bytes([t0, t1])),
    })
}

fn ipv4(packet: &[u8]) -> Result<Network, Unreadable> {
    let fixed: &[u8; 20] = packet.first_chunk().ok_or(Unreadable::Short)?;
    if fixed[0] >> 4 != 4 {
        return Err(Unreadable::Protocol);
    }
    let header = 4 * usize::from(fixed[0] & 0xf);
    let options = packet.get(..header).filter(|_| header >= 20);
    let sum = Sum::default().add(options.ok_or(Unreadable::Short)?);
    if !sum.is_right() {
        return Err(Unreadable::Checksum);
    }
    let word = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
    // More parts follow, and where this one begins in units of eight bytes.
    let cut = word(6) & 0x3fff;
    let part = (cut != 0).then(|| (word(4).into(), u32::from(cut & 0x1fff) * 8, cut >> 13 == 1));
    if fixed[9] != UDP {
        return Err(Unreadable::Protocol);
    }
    let address = |at: usize| Ipv4Addr::new(fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]);
    Ok(Network {
        payload: header..usize::from(word(2)),
        from: address(12).into(),
        to: address(16).into(),
        part,
    })
}

fn ipv6(packet: &[u8]) -> Result<Network, Unreadable> {
    let header: &[u8; 40] = packet.first_chunk().ok_or(Unreadable::Short)?;
    if header[0] >> 4 != 6 {
        return Err(Unreadable::Protocol);
    }
    let length = 40 + usize::from(u16::from_be_bytes([header[4], header[5]]));
    let address = |at: usize| {
        let bytes: [u8; 16] = header[at..at + 16].try_into().expect("16 of 40 bytes");
        Ipv6Addr::from(bytes)
    };
    let (payload, part) = match header[6] {
        UDP => (40..length, None),
        // The extension header of fragments.
        44 => {
            let rest = packet.get(40..).and_then(|rest| rest.first_chunk::<8>());
            let &[next, _, o0, o1, a, b, c, d] = rest.ok_or(Unreadable::Short)?;
            if next != UDP {
                return Err(Unreadable::Protocol);
            }
            let cut = u16::from_be_bytes([o0, o1]);
            let id = u32::from_be_bytes([a, b, c, d]);
            (
                48..length,
                Some((id, u32::from(cut & 0xfff8), cut & 1 == 1)),
            )
        }
        _ => return Err(Unreadable::Protocol),
    };
    Ok(Network {
        payload,
        from: address(8).into(),
        to: address(24).into(),
        part,
    })
}

#[cfg(test)]
mod tests;

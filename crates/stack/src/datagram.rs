//! Reading a received frame: where in it the payload lies, and from whom it is. What is not a datagram for this flow is
//! named, so that it can be counted.
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

/// Finds the datagram.
///
/// # Errors
/// If there is none.
pub fn read(frame: &[u8], checks: Checks) -> Result<Found, Unreadable> {
    let kind = frame.get(12..14).ok_or(Unreadable::Short)?;
    let network = &frame[ETHERNET..];
    let (header, length, from, to): (usize, usize, IpAddr, IpAddr) = match kind {
        [0x08, 0x00] => ipv4(network)?,
        [0x86, 0xdd] => ipv6(network)?,
        _ => return Err(Unreadable::Protocol),
    };
    // Behind the packet there may be padding of the link.
    let datagram = network.get(header..length).ok_or(Unreadable::Short)?;
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
    let begin = ETHERNET + header + 8;
    Ok(Found {
        payload: begin..begin + long - 8,
        from: SocketAddr::new(from, u16::from_be_bytes([f0, f1])),
        to: SocketAddr::new(to, u16::from_be_bytes([t0, t1])),
    })
}

type Network = (usize, usize, IpAddr, IpAddr);

fn ipv4(packet: &[u8]) -> Result<Network, Unreadable> {
    let &[
        first,
        _,
        l0,
        l1,
        _,
        _,
        f0,
        f1,
        _,
        protocol,
        _,
        _,
        a,
        b,
        c,
        d,
        e,
        f,
        g,
        h,
        ..,
    ] = packet
    else {
        return Err(Unreadable::Short);
    };
    let header = 4 * usize::from(first & 0xf);
    if first >> 4 != 4 {
        return Err(Unreadable::Protocol);
    }
    let options = packet.get(..header).filter(|_| header >= 20);
    let sum = Sum::default().add(options.ok_or(Unreadable::Short)?);
    if !sum.is_right() {
        return Err(Unreadable::Checksum);
    }
    if u16::from_be_bytes([f0, f1]) & 0x3fff != 0 {
        return Err(Unreadable::Fragment);
    }
    if protocol != UDP {
        return Err(Unreadable::Protocol);
    }
    let length = usize::from(u16::from_be_bytes([l0, l1]));
    let (from, to) = (Ipv4Addr::new(a, b, c, d), Ipv4Addr::new(e, f, g, h));
    Ok((header, length, from.into(), to.into()))
}

fn ipv6(packet: &[u8]) -> Result<Network, Unreadable> {
    let header: &[u8; 40] = packet.first_chunk().ok_or(Unreadable::Short)?;
    if header[0] >> 4 != 6 {
        return Err(Unreadable::Protocol);
    }
    match header[6] {
        UDP => {}
        // The extension header of fragments.
        44 => return Err(Unreadable::Fragment),
        _ => return Err(Unreadable::Protocol),
    }
    let length = 40 + usize::from(u16::from_be_bytes([header[4], header[5]]));
    let address = |at: usize| {
        let bytes: [u8; 16] = header[at..at + 16].try_into().expect("16 of 40 bytes");
        Ipv6Addr::from(bytes)
    };
    Ok((40, length, address(8).into(), address(24).into()))
}

#[cfg(test)]
mod tests;

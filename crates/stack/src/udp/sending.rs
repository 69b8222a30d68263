//! Sending: payload into a buffer, headers before it, the record to the driver; and what became of it.
//!
//! **Messages of a real-time channel.** The deadline of a `channel` contract is that of a message, which may be several
//! packets long. A packet begins a message unless it is queued by [`Socket::queue_on`]; `send_message` does both, and hands a
//! message over whole or not at all, so that its packets stand one behind the other. With other contracts it makes no difference.

use super::*;

impl Socket {
    /// A free buffer.
    ///
    /// # Errors
    /// [`StackError::NotNow`] if all are under way.
    #[inline]
    pub fn packet(&mut self) -> Result<Packet, StackError> {
        let chunk = match self.flow.chunk() {
            Some(chunk) => chunk,
            None => {
                self.reclaim()?;
                self.flow.chunk().ok_or_else(|| self.nothing())?
            }
        };
        Ok(Packet { chunk })
    }

    /// Where the payload is to be written: as much as the buffer holds, of which a packet can carry [`Socket::longest`].
    ///
    /// # Errors
    /// If the packet is of another socket.
    #[inline]
    pub fn payload_mut(&mut self, packet: &Packet) -> Result<&mut [u8], StackError> {
        let (room, holds) = (self.room, self.payload_of(self.holds));
        let bytes = self.flow.bytes_mut(packet.chunk).map_err(fault)?;
        Ok(&mut bytes[room..room + holds])
    }

    /// Puts the headers before the first `length` bytes of the payload, and hands the packet over; it goes with the next
    /// [`flush`](Socket::flush). Says its number.
    ///
    /// # Errors
    /// The packet comes back with them.
    #[inline]
    pub fn queue(&mut self, packet: Packet, length: usize) -> Result<u64, (Packet, StackError)> {
        self.give(packet, length, None, false)
    }

    /// [`queue`](Socket::queue), to a host: on a flow to any.
    ///
    /// # Errors
    /// The packet comes back with them; [`StackError::NoHop`] if the way to the host is not known
    /// ([`Program::next_hop`] finds it).
    #[inline]
    pub fn queue_to(
        &mut self,
        packet: Packet,
        length: usize,
        to: SocketAddr,
    ) -> Result<u64, (Packet, StackError)> {
        self.give(packet, length, Some(to), false)
    }

    /// [`queue`](Socket::queue), going on with the message that the packet queued before it began, or went on with.
    ///
    /// # Errors
    /// The packet comes back with them.
    #[inline]
    pub fn queue_on(&mut self, packet: Packet, length: usize) -> Result<u64, (Packet, StackError)> {
        self.give(packet, length, None, true)
    }

    /// Gives a buffer back unsent.
    pub fn discard(&mut self, packet: Packet) {
        // It was held since it was taken; if it is of another socket there is nothing to give back here.
        let _ = self.flow.free(packet.chunk);
    }

    /// Sends one datagram, if there is a buffer. Says its number.
    ///
    /// # Errors
    /// [`StackError::NotNow`] if there is none.
    pub fn try_send(&mut self, payload: &[u8]) -> Result<u64, StackError> {
        let number = self.queue_copy(payload, None, false)?;
        self.flush();
        Ok(number)
    }

    /// [`try_send`](Socket::try_send), to a host: on a flow to any. It never asks the daemon.
    ///
    /// # Errors
    /// [`StackError::NoHop`] if the way to the host is not known ([`Program::next_hop`] finds it).
    pub fn try_send_to(&mut self, payload: &[u8], to: SocketAddr) -> Result<u64, StackError> {
        let number = self.queue_copy(payload, Some(to), false)?;
        self.flush();
        Ok(number)
    }

    /// Sends as many of these datagrams as there are buffers for, all with one look of the driver; says how many.
    ///
    /// # Errors
    /// If the first cannot be sent.
    pub fn try_send_batch(&mut self, payloads: &[&[u8]]) -> Result<usize, StackError> {
        let mut sent = 0;
        for payload in payloads {
            match self.queue_copy(payload, None, false) {
                Ok(_) => sent += 1,
                Err(error) if sent == 0 => return Err(error),
                Err(_) => break,
            }
        }
        self.flush();
        Ok(sent)
    }

    /// Sends a message of a real-time channel: each part is one datagram. All of them go, or none. Says the number of the first;
    /// the others follow.
    ///
    /// # Errors
    /// [`StackError::NotNow`] if there are too few buffers now, [`StackError::TooMany`] if there always will be.
    pub fn try_send_message(&mut self, parts: &[&[u8]]) -> Result<u64, StackError> {
        let most = self.sending as usize;
        if parts.is_empty() || parts.len() > most {
            let parts = parts.len();
            return Err(StackError::TooMany { parts, most });
        }
        for part in parts {
            self.fits(part.len(), self.longest())?;
        }
        if self.free() < parts.len() {
            self.reclaim()?;
            if self.free() < parts.len() {
                return Err(self.nothing());
            }
        }
        let first = self.next;
        for (index, part) in parts.iter().enumerate() {
            self.queue_copy(part, None, index > 0)?;
        }
        self.flush();
        Ok(first)
    }

    /// Sends one datagram; waits for a buffer so long, or for ever.
    ///
    /// # Errors
    /// [`StackError::NotNow`] if the time is over.
    pub fn send(&mut self, payload: &[u8], timeout: Option<Duration>) -> Result<u64, StackError> {
        self.blocked(timeout, |socket| socket.try_send(payload))
    }

    /// [`send`](Socket::send), to a host: on a flow to any. Asks the daemon for the way there if that is not known.
    ///
    /// # Errors
    /// [`StackError::NotNow`] if the time is over.
    pub fn send_to(
        &mut self,
        payload: &[u8],
        to: SocketAddr,
        timeout: Option<Duration>,
    ) -> Result<u64, StackError> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        match self.try_send_to(payload, to) {
            Err(StackError::NotNow) => {}
            Err(StackError::NoHop(host)) => {
                self.shared.control()?.find(&self.shared.flows, host)?;
            }
            other => return other,
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        self.blocked(left, |socket| socket.try_send_to(payload, to))
    }

    /// [`try_send_message`](Socket::try_send_message); waits for buffers so long, or for ever.
    ///
    /// # Errors
    /// [`StackError::NotNow`] if the time is over.
    pub fn send_message(
        &mut self,
        parts: &[&[u8]],
        timeout: Option<Duration>,
    ) -> Result<u64, StackError> {
        self.blocked(timeout, |socket| socket.try_send_message(parts))
    }

    /// What became of a packet that was sent; each is told once, in the order in which the driver gave them back. The
    /// last [`OUTCOMES`] are kept.
    ///
    /// # Errors
    /// If the flow is over.
    pub fn outcome(&mut self) -> Result<Option<Outcome>, StackError> {
        if self.outcomes.is_empty() {
            self.reclaim()?;
            self.flush();
        }
        Ok(self.outcomes.pop_front())
    }

    /// Packets that were handed over and have not come back.
    pub fn under_way(&self) -> u64 {
        self.next - self.back
    }

    /// Waits until all that was sent has come back, so long or for ever.
    ///
    /// # Errors
    /// [`StackError::NotNow`] if the time is over.
    pub fn drain(&mut self, timeout: Option<Duration>) -> Result<(), StackError> {
        self.flush();
        self.blocked(timeout, |socket| {
            socket.reclaim()?;
            match socket.under_way() {
                0 => Ok(()),
                _ => Err(socket.nothing()),
            }
        })
    }

    fn queue_copy(
        &mut self,
        payload: &[u8],
        to: Option<SocketAddr>,
        goes_on: bool,
    ) -> Result<u64, StackError> {
        self.fits(payload.len(), self.longest())?;
        let packet = self.packet()?;
        self.payload_mut(&packet)?[..payload.len()].copy_from_slice(payload);
        self.give(packet, payload.len(), to, goes_on)
            .map_err(|(packet, error)| {
                self.discard(packet);
                error
            })
    }

    #[inline]
    fn give(
        &mut self,
        packet: Packet,
        length: usize,
        to: Option<SocketAddr>,
        goes_on: bool,
    ) -> Result<u64, (Packet, StackError)> {
        match self.hand_over(packet.chunk, length, to, goes_on) {
            Ok(number) => Ok(number),
            Err(error) => Err((packet, error)),
        }
    }

    #[inline]
    fn hand_over(
        &mut self,
        chunk: Chunk,
        length: usize,
        to: Option<SocketAddr>,
        goes_on: bool,
    ) -> Result<u64, StackError> {
        self.fits(length, self.longest())?;
        let frame = self.room + length;
        if let (Peer::Any { .. }, Some(to)) = (&self.peer, to) {
            let mtu = self.find_way(to)?;
            self.fits(length, self.payload_of(mtu))?;
        }
        let headers = match (&self.peer, to) {
            (Peer::One { headers, .. } | Peer::Group { headers, .. }, None) => headers,
            (Peer::One { remote, .. }, Some(_)) => return Err(StackError::OneRemote(*remote)),
            (Peer::Group { group, .. }, Some(_)) => return Err(StackError::OneRemote(*group)),
            (Peer::Any { .. }, None) => return Err(StackError::NoRemote),
            (Peer::Any { ways }, Some(to)) => match ways.get(&to) {
                Some(way) => &way.headers,
                None => return Err(StackError::NoHop(to.ip())),
            },
        };
        let bytes = self.flow.bytes_mut(chunk).map_err(fault)?;
        headers.write(&mut bytes[..frame]);
        let piece = Piece {
            chunk,
            start: 0,
            // It lies inside a chunk.
            length: frame as u32,
        };
        match self.flow.submit(&[piece], goes_on) {
            Ok(()) => {}
            Err(Refused::Full) => {
                self.reclaim()?;
                return Err(self.nothing());
            }
            Err(Refused::Fault(error)) => return Err(self.over(error)),
            Err(refused) => return Err(fault(refused)),
        }
        let number = self.next;
        self.carried[chunk.0 as usize] = number;
        self.next += 1;
        Ok(number)
    }

    /// Sees to it that the headers to a host are there, and says the MTU on the way.
    fn find_way(&mut self, to: SocketAddr) -> Result<u32, StackError> {
        let Peer::Any { ways } = &mut self.peer else {
            return Err(StackError::NoHop(to.ip()));
        };
        let now = Instant::now();
        if let Some(way) = ways.get(&to).filter(|way| way.until > now) {
            return Ok(way.mtu);
        }
        let known = self.shared.control()?.known(to.ip(), now);
        let known = known.ok_or(StackError::NoHop(to.ip()))?;
        let headers = Headers::udp(&FlowAddress {
            local: self.local,
            remote: to,
            local_mac: self.local_mac,
            next_hop: known.hop.mac,
            mtu: u16::try_from(known.hop.mtu).unwrap_or(u16::MAX),
            hops: self.hops,
        })?;
        if ways.len() >= WAYS {
            ways.retain(|_, way| way.until > now);
        }
        if ways.len() >= WAYS {
            ways.clear();
        }
        let mtu = known.hop.mtu;
        let way = Way {
            headers,
            mtu,
            until: known.until,
        };
        ways.insert(to, way);
        Ok(mtu)
    }

    #[inline]
    fn fits(&self, length: usize, longest: usize) -> Result<(), StackError> {
        match length <= longest {
            true => Ok(()),
            // Nothing fits a flow that is over.
            false => Err(self
                .end()
                .unwrap_or(StackError::TooLong { length, longest })),
        }
    }

    fn free(&self) -> usize {
        self.flow.balance().free as usize
    }

    /// Collects what was sent.
    fn reclaim(&mut self) -> Result<(), StackError> {
        loop {
            let record = match self.flow.reclaim() {
                Ok(Some(record)) => record,
                Ok(None) => return Ok(()),
                Err(error) => return Err(self.over(error)),
            };
            self.back += 1;
            let chunk = self.flow.piece(&record.pairs()[0]).chunk;
            if self.outcomes.len() == OUTCOMES {
                self.outcomes.pop_front();
            }
            self.outcomes.push_back(Outcome {
                number: self.carried[chunk.0 as usize],
                status: record.status(),
                stamp: record.stamp(),
            });
            self.flow.free_all(&record).map_err(fault)?;
        }
    }
}

/// So many outcomes are kept for who asks late.
pub const OUTCOMES: usize = 1024;
/// So many hosts a flow keeps headers for.
const WAYS: usize = 4096;

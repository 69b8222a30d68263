//! Sends datagrams on a [`Socket`]: copies the payload into a buffer unless the program wrote it
//! there, writes the headers in front of the payload, hands the record to the driver, and collects
//! the result ([`Outcome`]). Calls fail with [`StackError::WouldBlock`] if no buffer is free, the
//! ring is full or the timeout expires; with the reason if the payload, the destination or the
//! buffer is invalid or the next hop is unknown; and with another error if the flow has ended or
//! waiting fails.
//!
//! **Messages of a real-time channel.** The deadline of a `channel` contract applies to a message,
//! which may have several packets. A packet begins a message unless [`Socket::queue_continuation`]
//! queued it. [`Socket::send_message`] queues a message only if buffers for all of its packets are
//! free and the ring has room for them, so the packets of the message are consecutive. A message
//! whose frames (headers included) are longer than the contract's `mmax` is refused with
//! [`StackError::MessageTooLong`]: the driver would send its end as another message, which is due
//! later. Other contracts do not distinguish messages.
//!
//! The contract's `overload` says what happens to a message beyond the contract: the calls that
//! wait wait, the others fail with [`StackError::WouldBlock`] (`block`, `space`); all calls fail
//! with [`StackError::MessageDropped`] (`drop`); or the message is queued (`decay`, `best-effort`).
//! Each record that begins a message states when the message arrived: when it was queued, or the
//! time of [`Socket::set_arrival`].

use super::messages::AdmittedPacket;
use super::*;

impl Socket {
    /// Takes a free buffer for sending.
    ///
    /// # Errors
    /// [`StackError::WouldBlock`] if all buffers are in use. Another error if all buffers are in
    /// use and the flow has ended.
    #[inline]
    pub fn packet(&mut self) -> Result<Packet, StackError> {
        self.follow_route();
        let chunk = match self.flow.chunk() {
            Some(chunk) => chunk,
            None => {
                self.reclaim()?;
                self.flow.chunk().ok_or_else(|| self.would_block())?
            }
        };
        Ok(Packet { chunk })
    }

    /// The memory for the payload of a packet. It has the size of the buffer without headers; a
    /// packet can carry at most [`Socket::longest`] bytes of it.
    ///
    /// # Errors
    /// If the program does not hold the buffer, for example because the packet is another socket's.
    #[inline]
    pub fn payload_mut(&mut self, packet: &Packet) -> Result<&mut [u8], StackError> {
        let (headroom, length) = (self.headroom, self.payload_of(self.max_packet));
        let bytes = self.flow.bytes_mut(packet.chunk).map_err(buffer_error)?;
        Ok(&mut bytes[headroom..headroom + length])
    }

    /// Writes the headers in front of the first `length` bytes of the payload and queues the
    /// packet. The driver sees it after the next [`flush`](Socket::flush). Returns the number of
    /// the packet.
    ///
    /// # Errors
    /// If the payload is too long for a packet or for a message of the contract, the overload
    /// policy of the contract refuses the message, the flow needs a destination, the ring is full,
    /// the program does not hold the buffer, or the flow has ended. The error returns the packet.
    #[inline]
    pub fn queue(&mut self, packet: Packet, length: usize) -> Result<u64, (Packet, StackError)> {
        self.queue_packet(packet, length, None, false)
    }

    /// [`queue`](Socket::queue) with a destination, on a flow to any host or of an EtherType.
    ///
    /// # Errors
    /// As [`queue`](Socket::queue), [`StackError::UnknownNextHop`] if the next hop to the host is
    /// unknown ([`Program::next_hop`] requests it), and [`StackError::FixedRemote`] on a flow to
    /// one host or group. The error returns the packet.
    #[inline]
    pub fn queue_to(
        &mut self,
        packet: Packet,
        length: usize,
        to: impl Into<Address>,
    ) -> Result<u64, (Packet, StackError)> {
        self.queue_packet(packet, length, Some(to.into()), false)
    }

    /// [`queue`](Socket::queue) for a packet that continues the message of the packet queued
    /// before.
    ///
    /// # Errors
    /// As [`queue`](Socket::queue), and [`StackError::MessageTooLong`] if the message would become
    /// longer than `mmax`. The error returns the packet.
    #[inline]
    pub fn queue_continuation(
        &mut self,
        packet: Packet,
        length: usize,
    ) -> Result<u64, (Packet, StackError)> {
        self.queue_packet(packet, length, None, true)
    }

    /// Frees a buffer without sending it.
    pub fn discard(&mut self, packet: Packet) {
        // This fails only for a packet of another socket, whose buffer this socket does not hold.
        let _ = self.flow.free(packet.chunk);
    }

    /// Sends one datagram if a buffer is free. Returns the number of the packet.
    ///
    /// # Errors
    /// [`StackError::WouldBlock`] if no buffer is free. Otherwise as [`queue`](Socket::queue).
    pub fn try_send(&mut self, payload: &[u8]) -> Result<u64, StackError> {
        let number = self.queue_copy(payload, None, false)?;
        self.flush();
        Ok(number)
    }

    /// [`try_send`](Socket::try_send) with a destination, on a flow to any host. Sends no request
    /// to the daemon.
    ///
    /// # Errors
    /// As [`try_send`](Socket::try_send), [`StackError::UnknownNextHop`] if the next hop to the
    /// host is unknown ([`Program::next_hop`] requests it), and [`StackError::FixedRemote`] on a
    /// flow to one host or group.
    pub fn try_send_to(
        &mut self,
        payload: &[u8],
        to: impl Into<Address>,
    ) -> Result<u64, StackError> {
        let number = self.queue_copy(payload, Some(to.into()), false)?;
        self.flush();
        Ok(number)
    }

    /// Sends the datagrams up to the first that cannot be sent, for example because no buffer is
    /// free, with one notification of the driver. Returns the number of sent datagrams.
    ///
    /// # Errors
    /// If the first datagram cannot be sent: as [`try_send`](Socket::try_send).
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

    /// Sends a message of a real-time channel, one datagram for each part. It sends none of them if
    /// too few buffers are free or the ring has too little room. Returns the number of the first
    /// packet; the numbers of the others follow it.
    ///
    /// # Errors
    /// [`StackError::WouldBlock`] if too few buffers are free, the ring has too little room, or the
    /// overload policy makes the message wait, [`StackError::MessageDropped`] if it drops the
    /// message, [`StackError::TooManyPackets`] if the flow never has enough or there is no part,
    /// [`StackError::TooLong`] if a part is too long, [`StackError::MessageTooLong`] if all parts
    /// with their headers are longer than `mmax` ([`Socket::longest_message`]),
    /// [`StackError::NoRemote`] on a flow to any host. Another error if the flow has ended.
    pub fn try_send_message(&mut self, parts: &[&[u8]]) -> Result<u64, StackError> {
        // A record of one pair takes two entries.
        let records = self.flow.location().shape.transmit_entries / 2;
        let most = self.sending.min(records) as usize;
        if parts.is_empty() || parts.len() > most {
            let parts = parts.len();
            return Err(StackError::TooManyPackets { parts, most });
        }
        let mut frames = 0;
        for part in parts {
            self.fits(part.len(), self.longest())?;
            frames += (self.headroom + part.len()) as u64;
        }
        self.messages.fits(frames)?;
        // Before a buffer is taken: the policy may drop the message.
        self.admit_packet(frames, false)?;
        // `most` fits in 32 bits.
        let packets = parts.len() as u32;
        if !self.has_room(packets)? {
            self.reclaim()?;
            if !self.has_room(packets)? {
                return Err(self.would_block());
            }
        }
        let first = self.next_number;
        for (index, part) in parts.iter().enumerate() {
            self.queue_copy(part, None, index > 0)?;
        }
        self.flush();
        Ok(first)
    }

    /// Sends one datagram, and waits for a buffer up to `timeout` (`None`: without a limit).
    ///
    /// # Errors
    /// [`StackError::WouldBlock`] if the timeout expires. [`StackError::Wait`] if waiting fails.
    /// Otherwise as [`try_send`](Socket::try_send).
    pub fn send(&mut self, payload: &[u8], timeout: Option<Duration>) -> Result<u64, StackError> {
        self.block_on(timeout, |socket| socket.try_send(payload))
    }

    /// [`send`](Socket::send) with a destination, on a flow to any host. Requests the next hop from
    /// the daemon if it is unknown; `timeout` does not limit that request.
    ///
    /// # Errors
    /// As [`send`](Socket::send), [`StackError::FixedRemote`] on a flow to one host or group, and
    /// other errors if the daemon does not find the next hop.
    pub fn send_to(
        &mut self,
        payload: &[u8],
        to: impl Into<Address>,
        timeout: Option<Duration>,
    ) -> Result<u64, StackError> {
        let to = to.into();
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        match self.try_send_to(payload, to) {
            Err(StackError::WouldBlock) => {}
            Err(StackError::UnknownNextHop(host)) => {
                self.shared
                    .control()?
                    .request_hop(&self.shared.flows, host)?;
            }
            other => return other,
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        self.block_on(left, |socket| socket.try_send_to(payload, to))
    }

    /// [`try_send_message`](Socket::try_send_message), which waits for buffers up to `timeout`
    /// (`None`: without a limit).
    ///
    /// # Errors
    /// [`StackError::WouldBlock`] if the timeout expires. [`StackError::Wait`] if waiting fails.
    /// Otherwise as [`try_send_message`](Socket::try_send_message).
    pub fn send_message(
        &mut self,
        parts: &[&[u8]],
        timeout: Option<Duration>,
    ) -> Result<u64, StackError> {
        self.block_on(timeout, |socket| socket.try_send_message(parts))
    }

    /// The result of a queued packet; `None` if the driver has returned no further packet. Returns
    /// each result once, in the order in which the driver returned the packets. The socket keeps
    /// the last [`OUTCOMES`] results, or as many as it has buffers for sending if those are more.
    /// So a program that uses a buffer again only after it has read its last result loses none.
    ///
    /// # Errors
    /// If the flow has ended.
    pub fn outcome(&mut self) -> Result<Option<Outcome>, StackError> {
        if self.outcomes.is_empty() {
            self.follow_route();
            self.reclaim()?;
            self.flush();
        }
        Ok(self.outcomes.pop_front())
    }

    /// Number of packets that were queued and that the driver has not returned.
    pub fn under_way(&self) -> u64 {
        self.next_number - self.returned
    }

    /// Publishes the queued packets and waits until the driver has returned all of them, up to
    /// `timeout` (`None`: without a limit).
    ///
    /// # Errors
    /// [`StackError::WouldBlock`] if the timeout expires. Another error if the flow has ended or
    /// waiting fails.
    pub fn drain(&mut self, timeout: Option<Duration>) -> Result<(), StackError> {
        self.flush();
        self.block_on(timeout, |socket| {
            socket.follow_route();
            socket.reclaim()?;
            match socket.under_way() {
                0 => Ok(()),
                _ => Err(socket.would_block()),
            }
        })
    }

    fn queue_copy(
        &mut self,
        payload: &[u8],
        to: Option<Address>,
        continues: bool,
    ) -> Result<u64, StackError> {
        self.fits(payload.len(), self.longest())?;
        let packet = self.packet()?;
        self.payload_mut(&packet)?[..payload.len()].copy_from_slice(payload);
        self.queue_packet(packet, payload.len(), to, continues)
            .map_err(|(packet, error)| {
                self.discard(packet);
                error
            })
    }

    #[inline]
    fn queue_packet(
        &mut self,
        packet: Packet,
        length: usize,
        to: Option<Address>,
        continues: bool,
    ) -> Result<u64, (Packet, StackError)> {
        match self.hand_over(packet.chunk, length, to, continues) {
            Ok(number) => Ok(number),
            Err(error) => Err((packet, error)),
        }
    }

    #[inline]
    fn hand_over(
        &mut self,
        chunk: Chunk,
        length: usize,
        to: Option<Address>,
        continues: bool,
    ) -> Result<u64, StackError> {
        if let Some(report) = self.reported() {
            return Err(report);
        }
        self.fits(length, self.longest())?;
        let frame = self.headroom + length;
        let mut admitted = self.admit_packet(frame as u64, continues)?;
        if let (RemoteHeaders::Any { .. }, Some(Address::Ip(to))) = (&self.remote, to) {
            let route = self.find_route(to)?;
            let mtu = self.status.reports.mtu_to(to.ip(), route);
            self.fits(length, self.payload_of(mtu))?;
        }
        let mut station = None;
        let headers = match (&self.remote, to) {
            (RemoteHeaders::One { headers, .. } | RemoteHeaders::Group { headers, .. }, None) => {
                headers
            }
            (RemoteHeaders::One { remote, .. }, Some(_)) => {
                return Err(StackError::FixedRemote(*remote));
            }
            (RemoteHeaders::Group { group, .. }, Some(_)) => {
                return Err(StackError::FixedRemote(*group));
            }
            (RemoteHeaders::Any { .. } | RemoteHeaders::Stations { .. }, None) => {
                return Err(StackError::NoRemote);
            }
            (RemoteHeaders::Any { routes }, Some(Address::Ip(to))) => match routes.get(&to) {
                Some(route) => &route.headers,
                None => return Err(StackError::UnknownNextHop(to.ip())),
            },
            (RemoteHeaders::Stations { headers }, Some(Address::Ethernet(to))) => {
                station = Some(to);
                headers
            }
            (RemoteHeaders::Any { .. } | RemoteHeaders::Stations { .. }, Some(to)) => {
                return Err(StackError::OtherAddress(to));
            }
        };
        let bytes = self.flow.bytes_mut(chunk).map_err(buffer_error)?;
        headers.write(&mut bytes[..frame]);
        if let Some(station) = station {
            bytes[..station.len()].copy_from_slice(&station);
        }
        let piece = Piece {
            chunk,
            start: 0,
            // The frame lies inside a chunk, so its length fits in 32 bits.
            length: frame as u32,
        };
        if !self.accepts_arrivals {
            admitted.part = admitted.part.without_arrival();
        }
        let part = admitted.part;
        match self.flow.submit_part(&[piece], part) {
            Ok(()) => {}
            Err(RecordError::Full) => {
                self.reclaim()?;
                return Err(self.would_block());
            }
            Err(RecordError::Flow(error)) => return Err(self.flow_error(error)),
            Err(error) => return Err(buffer_error(error)),
        }
        let number = self.next_number;
        self.messages.queued(admitted, number);
        self.queued[chunk.0 as usize] = QueuedPacket {
            number,
            length: piece.length,
            part,
        };
        self.next_number += 1;
        Ok(number)
    }

    /// Ensures that the headers to a remote endpoint exist. Returns the path MTU in bytes. Fails if
    /// the next hop is unknown, or if there is no connection to the daemon.
    fn find_route(&mut self, to: SocketAddr) -> Result<u32, StackError> {
        let RemoteHeaders::Any { routes } = &mut self.remote else {
            return Err(StackError::UnknownNextHop(to.ip()));
        };
        let now = Instant::now();
        if let Some(route) = routes.get(&to).filter(|route| route.until > now) {
            return Ok(route.mtu);
        }
        let known = self.shared.control()?.known_hop(to.ip(), now);
        let known = known.ok_or(StackError::UnknownNextHop(to.ip()))?;
        let headers = self.carried.headers(&FlowAddress {
            local: self.local,
            remote: to,
            local_mac: self.local_mac,
            next_hop: known.hop.mac,
            mtu: u16::try_from(known.hop.mtu).unwrap_or(u16::MAX),
            hops: self.hops,
        })?;
        if routes.len() >= MAX_ROUTES {
            routes.retain(|_, route| route.until > now);
        }
        if routes.len() >= MAX_ROUTES {
            routes.clear();
        }
        let mtu = known.hop.mtu;
        let route = Route {
            headers,
            mtu,
            until: known.until,
        };
        routes.insert(to, route);
        Ok(mtu)
    }

    #[inline]
    fn fits(&self, length: usize, longest: usize) -> Result<(), StackError> {
        match length <= longest {
            true => Ok(()),
            // After the daemon has reported the end of the flow the MTU is 0, so no byte fits.
            false => Err(self
                .end_reason()
                .unwrap_or(StackError::TooLong { length, longest })),
        }
    }

    /// Fails if the message is too long, or the overload policy refuses it.
    #[inline]
    fn admit_packet(&mut self, frame: u64, continues: bool) -> Result<AdmittedPacket, StackError> {
        if !continues && self.messages.needs_returns() {
            self.reclaim()?;
        }
        self.messages
            .admit(frame, continues)
            .map_err(|error| match error {
                StackError::WouldBlock => self.would_block(),
                error => error,
            })
    }

    /// True if buffers for `packets` packets are free and the ring has room for the packets.
    fn has_room(&mut self, packets: u32) -> Result<bool, StackError> {
        let room = self.flow.has_room(packets);
        let has_buffers = self.flow.balance().free >= packets;
        Ok(room.map_err(|error| self.flow_error(error))? && has_buffers)
    }

    /// Takes back the packets that the driver returned.
    fn reclaim(&mut self) -> Result<(), StackError> {
        loop {
            let record = match self.flow.reclaim() {
                Ok(Some(record)) => record,
                Ok(None) => return Ok(()),
                Err(error) => return Err(self.flow_error(error)),
            };
            let chunk = self.flow.piece(&record.pairs()[0]).chunk;
            let queued = &mut self.queued[chunk.0 as usize];
            let number = std::mem::replace(queued, QueuedPacket::NONE).number;
            self.add_outcome(number, record.status(), record.stamp());
            self.flow.free_all(&record).map_err(buffer_error)?;
        }
    }

    /// Stores the result of a packet.
    pub(super) fn add_outcome(&mut self, number: u64, status: Status, stamp: u64) {
        self.returned += 1;
        self.messages.returned(self.returned);
        if self.outcomes.len() == OUTCOMES.max(self.sending as usize) {
            self.outcomes.pop_front();
        }
        self.outcomes.push_back(Outcome {
            number,
            status,
            stamp,
        });
    }
}

/// Number of results that a socket keeps for later calls of [`Socket::outcome`], at least.
pub const OUTCOMES: usize = 1024;
/// Largest number of remote endpoints for which a flow keeps headers.
const MAX_ROUTES: usize = 4096;

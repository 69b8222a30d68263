//! Controls which frames the driver receives: by the XDP program and its attachment, or in the
//! fallback mode by binding the packet socket.
//!
//! An [`Ingress`] is separate from [`super::Link`], because its steps are slow: the kernel waits
//! for an RCU grace period when XDP is attached or detached. The control thread executes them while
//! the packet thread continues. A call fails with [`LinkError`] if the kernel refuses a step, or if
//! the name of the interface belongs to no interface or to another one than was opened.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use netnice_kernel::direct::{AttachMode, FrameMatch, XdpProgram};

use super::packet::bind_to;
use super::socket;
use super::{Interface, LinkError, Mode, Queue, SpareQueues};
use crate::demux::FlowNo;
use crate::frame::Mac;

/// The receive control of an interface.
#[derive(Debug)]
pub struct Ingress {
    interface: Interface,
    mode: Mode,
    /// Why the mode is not native.
    native_refusal: Option<LinkError>,
    kind: Kind,
    is_receiving: bool,
}

#[derive(Debug)]
enum Kind {
    Xdp(Box<XdpProgram>, SpareQueues),
    Packet(OwnedFd),
}

impl Ingress {
    /// The receive control of an interface whose frames `program` passes to AF_XDP sockets. `spare`
    /// are the sockets of queues that the interface does not have yet.
    pub(super) fn of_xdp(
        interface: &Interface,
        program: XdpProgram,
        spare: SpareQueues,
        mode: Mode,
    ) -> Ingress {
        Ingress::of(interface, mode, Kind::Xdp(Box::new(program), spare), None)
    }

    /// The receive control of an interface in the fallback mode. `socket` is the AF_PACKET socket.
    /// `native_refusal` is the reason why AF_XDP was refused; `None` if the fallback mode was
    /// requested.
    pub(super) fn of_packets(
        interface: &Interface,
        socket: OwnedFd,
        native_refusal: Option<LinkError>,
    ) -> Ingress {
        Ingress::of(
            interface,
            Mode::Fallback,
            Kind::Packet(socket),
            native_refusal,
        )
    }

    fn of(
        interface: &Interface,
        mode: Mode,
        kind: Kind,
        native_refusal: Option<LinkError>,
    ) -> Ingress {
        Ingress {
            interface: interface.clone(),
            mode,
            native_refusal,
            kind,
            is_receiving: false,
        }
    }

    /// A fake that counts as receiving already.
    #[cfg(test)]
    pub(super) fn fake(interface: &Interface, socket: OwnedFd) -> Ingress {
        let mut ingress = Ingress::of_packets(interface, socket, None);
        ingress.is_receiving = true;
        ingress
    }

    /// How the driver gets frames. [`Ingress::start`] may change the mode from native to generic.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Why the mode is not [`Mode::Native`]; `None` if it is, or if native was not tried.
    pub fn why_not_native(&self) -> Option<&LinkError> {
        self.native_refusal.as_ref()
    }

    /// The interface.
    pub(crate) fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Whether frames are received.
    pub(crate) fn is_receiving(&self) -> bool {
        self.is_receiving
    }

    /// Starts receiving; no effect if it has started. XDP is attached by the interface's index. If
    /// native mode is refused, generic mode is used, and [`Ingress::why_not_native`] has the
    /// reason.
    ///
    /// # Errors
    /// [`LinkError::Another`] if the interface's name now belongs to another index or Ethernet
    /// address; [`LinkError::NoInterface`] if there is no such interface; else the error of the
    /// kernel.
    pub fn start(&mut self) -> Result<(), LinkError> {
        if self.is_receiving {
            return Ok(());
        }
        let present = socket::interface(&self.interface.name)?;
        if (present.index, present.mac) != (self.interface.index, self.interface.mac) {
            return Err(LinkError::Another(present.name));
        }
        let index = self.interface.index;
        match &mut self.kind {
            Kind::Xdp(program, _) if self.mode == Mode::Native => {
                if let Err(why) = program.attach(index, AttachMode::Native) {
                    program.attach(index, AttachMode::Generic)?;
                    self.mode = Mode::Generic;
                    self.native_refusal = Some(why.into());
                }
            }
            Kind::Xdp(program, _) => program.attach(index, AttachMode::Generic)?,
            Kind::Packet(socket) => {
                bind_to(socket.as_fd(), &self.interface, libc::ETH_P_ALL as u16)?;
            }
        }
        self.is_receiving = true;
        Ok(())
    }

    /// Stops receiving: detaches XDP, or unbinds the packet socket.
    ///
    /// # Errors
    /// The error of the kernel. `Ingress::is_receiving` is false afterwards in any case.
    pub fn stop(&mut self) -> Result<(), LinkError> {
        self.is_receiving = false;
        match &mut self.kind {
            Kind::Xdp(program, _) => Ok(program.detach()?),
            Kind::Packet(socket) => bind_to(socket.as_fd(), &self.interface, 0),
        }
    }

    /// Directs frames of this match to the driver and away from the kernel. (In the fallback mode
    /// both get them.) If all these frames belong to one flow, `flow` names it, so that
    /// [`super::Link::suspend`] can drop them.
    ///
    /// # Errors
    /// If the XDP program's table is full, or the kernel refuses the entry.
    pub fn add_match(
        &mut self,
        frame_match: &FrameMatch,
        flow: Option<FlowNo>,
    ) -> Result<(), LinkError> {
        match &mut self.kind {
            Kind::Xdp(program, _) => Ok(program.add_match(frame_match, flow.map(|flow| flow.0))?),
            Kind::Packet(_) => Ok(()),
        }
    }

    /// Undoes [`Ingress::add_match`]: frames of this match go to the kernel again.
    ///
    /// # Errors
    /// If the match is not in the XDP program's table, or the kernel refuses the change.
    pub fn remove_match(&mut self, frame_match: &FrameMatch) -> Result<(), LinkError> {
        match &mut self.kind {
            Kind::Xdp(program, _) => Ok(program.remove_match(frame_match)?),
            Kind::Packet(_) => Ok(()),
        }
    }

    /// Whether the interface can get further receive queues.
    pub(crate) fn has_spare_queues(&self) -> bool {
        matches!(&self.kind, Kind::Xdp(_, spare) if spare.count() > 0)
    }

    /// The next receive queue that the interface has got since it was opened, with its number;
    /// `None` if it has got none. Its frames pass to the kernel until [`Ingress::open_queue`].
    /// Fails if the kernel refuses the queue.
    pub(crate) fn next_queue(&mut self) -> Result<Option<(u32, Queue)>, LinkError> {
        match &mut self.kind {
            Kind::Xdp(_, spare) => spare.take(&self.interface),
            Kind::Packet(_) => Ok(None),
        }
    }

    /// Directs the frames of a receive queue to its socket. Fails if the kernel refuses.
    pub(crate) fn open_queue(
        &mut self,
        number: u32,
        socket: BorrowedFd<'_>,
    ) -> Result<(), LinkError> {
        match &mut self.kind {
            Kind::Xdp(program, _) => Ok(program.set_socket(number, socket)?),
            Kind::Packet(_) => Ok(()),
        }
    }

    /// Binds a socket to the far end of a redirect pair, the interface of this name. Its frames
    /// arrive from [`Ingress::open_redirected`] on. Fails if there is no such interface, or the
    /// kernel refuses the socket.
    pub(crate) fn redirect_queue(&mut self, far: &str) -> Result<(u32, Queue), LinkError> {
        let Kind::Xdp(_, spare) = &mut self.kind else {
            return Err(LinkError::NoXdp(self.interface.name.clone()));
        };
        let far = socket::interface(far)?;
        Ok((far.index, spare.take_for_redirects(&far)?))
    }

    /// Directs all frames that arrive at the far end of the redirect pair to its socket. Fails if
    /// the kernel refuses.
    pub(crate) fn open_redirected(
        &mut self,
        index: u32,
        socket: BorrowedFd<'_>,
    ) -> Result<(), LinkError> {
        match &mut self.kind {
            Kind::Xdp(program, _) => Ok(program.attach_redirected(index, socket)?),
            Kind::Packet(_) => Err(LinkError::NoXdp(self.interface.name.clone())),
        }
    }

    /// Takes over a new Ethernet address of the interface. Fails if the XDP program's map refuses
    /// the address, and then changes nothing.
    pub(crate) fn set_mac(&mut self, mac: Mac) -> Result<(), LinkError> {
        if let Kind::Xdp(program, _) = &mut self.kind {
            program.set_mac(mac.0)?;
        }
        self.interface.mac = mac;
        Ok(())
    }

    /// Takes over a new MTU of the interface.
    pub(crate) fn set_mtu(&mut self, mtu: u32) {
        self.interface.mtu = mtu;
    }
}

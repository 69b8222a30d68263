//! Controls which frames the driver receives: the XDP program and its attachment, or whether the
//! packet socket is bound.
//!
//! This is separate from [`super::Link`] because its steps are slow (the kernel waits for an RCU
//! grace period when XDP is attached or detached), while the packet thread continues.

use std::os::fd::{AsFd, OwnedFd};

use netnice_kernel::direct::{Claim, Direct, Place};

use super::packet::bind_to;
use super::socket;
use super::{Interface, LinkError, Mode};
use crate::demux::FlowNo;
use crate::frame::Mac;

/// The receive control of an interface. See the module.
#[derive(Debug)]
pub struct Ear {
    interface: Interface,
    mode: Mode,
    /// Why the mode is not native.
    refusal: Option<LinkError>,
    kind: Kind,
    listens: bool,
}

#[derive(Debug)]
enum Kind {
    Xdp(Box<Direct>),
    Packet(OwnedFd),
}

impl Ear {
    pub(super) fn of_xdp(interface: &Interface, program: Direct, mode: Mode) -> Ear {
        Ear::of(interface, mode, Kind::Xdp(Box::new(program)), None)
    }

    pub(super) fn of_packets(
        interface: &Interface,
        socket: OwnedFd,
        refusal: Option<LinkError>,
    ) -> Ear {
        Ear::of(interface, Mode::Fallback, Kind::Packet(socket), refusal)
    }

    fn of(interface: &Interface, mode: Mode, kind: Kind, refusal: Option<LinkError>) -> Ear {
        Ear {
            interface: interface.clone(),
            mode,
            refusal,
            kind,
            listens: false,
        }
    }

    /// A fake that receives already.
    #[cfg(test)]
    pub(super) fn on_paper(interface: &Interface, socket: OwnedFd) -> Ear {
        let mut ear = Ear::of_packets(interface, socket, None);
        ear.listens = true;
        ear
    }

    /// The mode. [`Ear::listen`] may change it from native to generic.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Why the mode is not [`Mode::Native`], if native was tried and refused.
    pub fn why_not_native(&self) -> Option<&LinkError> {
        self.refusal.as_ref()
    }

    /// The interface.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Whether frames are received.
    pub fn listens(&self) -> bool {
        self.listens
    }

    /// Starts receiving. XDP is attached by the interface's index, which may belong to another
    /// interface meanwhile, so the interface is looked up again first.
    pub fn listen(&mut self) -> Result<(), LinkError> {
        if self.listens {
            return Ok(());
        }
        let there = socket::interface(&self.interface.name)?;
        if (there.index, there.mac) != (self.interface.index, self.interface.mac) {
            return Err(LinkError::Another(there.name));
        }
        let index = self.interface.index;
        match &mut self.kind {
            Kind::Xdp(program) if self.mode == Mode::Native => {
                if let Err(why) = program.attach(index, Place::Native) {
                    program.attach(index, Place::Generic)?;
                    self.mode = Mode::Generic;
                    self.refusal = Some(why.into());
                }
            }
            Kind::Xdp(program) => program.attach(index, Place::Generic)?,
            Kind::Packet(socket) => {
                bind_to(socket.as_fd(), &self.interface, libc::ETH_P_ALL as u16)?;
            }
        }
        self.listens = true;
        Ok(())
    }

    /// Stops receiving; XDP is detached.
    pub fn deafen(&mut self) -> Result<(), LinkError> {
        self.listens = false;
        match &mut self.kind {
            Kind::Xdp(program) => Ok(program.detach()?),
            Kind::Packet(socket) => bind_to(socket.as_fd(), &self.interface, 0),
        }
    }

    /// Directs frames of this claim to the driver and away from the kernel. (In the fallback mode
    /// both get them.) If all these frames belong to one flow, `flow` names it, so that
    /// [`super::Link::shut`] can drop them.
    pub fn claim(&mut self, claim: &Claim, flow: Option<FlowNo>) -> Result<(), LinkError> {
        match &mut self.kind {
            Kind::Xdp(program) => Ok(program.claim(claim, flow.map(|flow| flow.0))?),
            Kind::Packet(_) => Ok(()),
        }
    }

    /// Undoes [`Ear::claim`].
    pub fn release(&mut self, claim: &Claim) -> Result<(), LinkError> {
        match &mut self.kind {
            Kind::Xdp(program) => Ok(program.release(claim)?),
            Kind::Packet(_) => Ok(()),
        }
    }

    /// Takes over a new Ethernet address of the interface. A failure changes nothing.
    pub fn moved(&mut self, mac: Mac) -> Result<(), LinkError> {
        if let Kind::Xdp(program) = &mut self.kind {
            program.set_station(mac.0)?;
        }
        self.interface.mac = mac;
        Ok(())
    }

    /// Takes over a new MTU of the interface.
    pub fn resized(&mut self, mtu: u32) {
        self.interface.mtu = mtu;
    }
}

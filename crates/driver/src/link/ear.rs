//! What comes to the driver from an interface: the XDP program and where it is attached, or whether the packet socket listens.
//!
//! It is apart from the [`super::Link`] because its steps take long (the kernel waits for a grace period of RCU when XDP comes
//! and goes), while packets go on.

use std::os::fd::{AsFd, OwnedFd};

use netnice_kernel::direct::{Claim, Direct, Place};

use super::packet::bind_to;
use super::socket;
use super::{Interface, LinkError, Mode};
use crate::demux::FlowNo;
use crate::frame::Mac;

/// What comes to the driver. See the module.
#[derive(Debug)]
pub struct Ear {
    interface: Interface,
    mode: Mode,
    /// Why it is not native.
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

    /// One that listens already, where there is no interface.
    #[cfg(test)]
    pub(super) fn on_paper(interface: &Interface, socket: OwnedFd) -> Ear {
        let mut ear = Ear::of_packets(interface, socket, None);
        ear.listens = true;
        ear
    }

    /// How frames pass. [`Ear::listen`] may find that native is not to be had.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Why it is not [`Mode::Native`], where that was wanted and refused.
    pub fn why_not_native(&self) -> Option<&LinkError> {
        self.refusal.as_ref()
    }

    /// Which interface it is.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Whether received frames come.
    pub fn listens(&self) -> bool {
        self.listens
    }

    /// Received frames come from now on. XDP is attached by the interface's number, which another
    /// may have meanwhile; so it is looked at once more.
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

    /// They do not any more: XDP is off the interface.
    pub fn deafen(&mut self) -> Result<(), LinkError> {
        self.listens = false;
        match &mut self.kind {
            Kind::Xdp(program) => Ok(program.detach()?),
            Kind::Packet(socket) => bind_to(socket.as_fd(), &self.interface, 0),
        }
    }

    /// Such frames come to the driver and not to the kernel. (In the fallback they come to both.) Where they are all of one
    /// flow, [`super::Link::shut`] can shut it.
    pub fn claim(&mut self, claim: &Claim, flow: Option<FlowNo>) -> Result<(), LinkError> {
        match &mut self.kind {
            Kind::Xdp(program) => Ok(program.claim(claim, flow.map(|flow| flow.0))?),
            Kind::Packet(_) => Ok(()),
        }
    }

    /// They do not any more.
    pub fn release(&mut self, claim: &Claim) -> Result<(), LinkError> {
        match &mut self.kind {
            Kind::Xdp(program) => Ok(program.release(claim)?),
            Kind::Packet(_) => Ok(()),
        }
    }

    /// The interface has another address.
    pub fn moved(&mut self, mac: Mac) -> Result<(), LinkError> {
        self.interface.mac = mac;
        match &mut self.kind {
            Kind::Xdp(program) => Ok(program.set_station(mac.0)?),
            Kind::Packet(_) => Ok(()),
        }
    }

    /// Its packets may be of another length.
    pub fn resized(&mut self, mtu: u32) {
        self.interface.mtu = mtu;
    }
}

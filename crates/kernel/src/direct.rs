//! Loads, attaches and configures the XDP program of the direct path ([`XdpProgram`]), which
//! selects the frames that go to the driver's sockets, and the one for the link's redirect pair,
//! all of whose frames go to the driver. It drops the frames of a flow that is
//! suspended by its gate, and passes all other frames to the kernel. Calls fail with
//! [`KernelError`] if the kernel refuses the program, its attachment or a map entry: for example,
//! if another XDP program stays attached, a map is full, or an entry to remove does not exist.
//!
//! The program belongs to the process that loads it. Nothing is pinned, and the kernel detaches the
//! program when that process ends for any reason. It is attached from [`XdpProgram::attach`] to
//! [`XdpProgram::detach`] only, since XDP can disable offloads of an interface (on a veth pair a
//! kernel connection fell from 44 to 11 Gbit/s).

use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use aya::maps::{Array, HashMap, Map, MapData, XskMap};
use aya::programs::Xdp;
use aya::programs::xdp::{XdpLinkId, XdpMode};
use aya::{Ebpf, EbpfLoader};

use crate::error::{KernelError, errno};

/// The loaded XDP program of one driver: the program, its maps, and its attachment.
#[derive(Debug)]
pub struct XdpProgram {
    ebpf: Ebpf,
    /// The attached program and its attachment.
    link: Option<(&'static str, XdpLinkId)>,
    /// The program for generic mode.
    generic: &'static str,
    /// The attachment at the far end of the redirect pair.
    redirect_link: Option<XdpLinkId>,
}

/// The XDP mode: the place in the kernel where the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachMode {
    /// In the interface's driver, before the kernel makes a packet of the frame.
    Native,
    /// Behind the driver. Every interface supports this. Merged segments arrive as one packet of up
    /// to 64 KiB, which only a socket with `XDP_USE_SG` gets.
    Generic,
}

/// A class of frames that go to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrameMatch {
    /// UDP or TCP between two endpoints. Without `remote`: from any endpoint. With an unspecified
    /// local address and without `remote`: to any unicast address. With an unspecified local
    /// address and a `remote`, no frame matches.
    Endpoints {
        /// The IP protocol number: 17 (UDP) or 6 (TCP).
        protocol: u8,
        /// The local endpoint, or a multicast group and its port.
        local: (IpAddr, u16),
        /// The remote endpoint; `None` for any.
        remote: Option<(IpAddr, u16)>,
    },
    /// TCP's connection requests to a local endpoint, from any endpoint: segments with SYN and
    /// without ACK that no match with a `remote` covers.
    Syn {
        /// The local endpoint.
        local: (IpAddr, u16),
    },
    /// Another IP protocol at a local address.
    Protocol {
        /// The IP protocol number.
        protocol: u8,
        /// The local address.
        local: IpAddr,
    },
    /// Frames of this EtherType, which is not that of IPv4 or IPv6. These frames have no gate, so
    /// they cannot be suspended.
    EtherType(u16),
}

impl XdpProgram {
    /// Loads the program for an interface with this MAC address, without attaching it.
    ///
    /// # Errors
    /// If the kernel refuses the program or one of its maps.
    pub fn load(mac: [u8; 6]) -> Result<XdpProgram, KernelError> {
        let mut ebpf = EbpfLoader::new()
            .load(OBJECT)
            .map_err(|e| KernelError::bpf("load the direct path's program", e))?;
        for name in [DIRECT, REDIRECTED] {
            program(&mut ebpf, name)?
                .load()
                .map_err(|e| KernelError::bpf("load the direct path's program", e))?;
        }
        // Kernels before 5.18 have no programs for frames in several pieces.
        let generic = match program(&mut ebpf, DIRECT_LONG)?.load() {
            Ok(()) => DIRECT_LONG,
            Err(_) => DIRECT,
        };
        let mut program = XdpProgram {
            ebpf,
            link: None,
            generic,
            redirect_link: None,
        };
        program.set_mac(mac)?;
        Ok(program)
    }

    /// Sets the MAC address by which the program recognises unicast frames to the interface.
    ///
    /// # Errors
    /// If the kernel refuses the map entry.
    pub fn set_mac(&mut self, mac: [u8; 6]) -> Result<(), KernelError> {
        let mut own_mac: Array<_, DirectMac> = Array::try_from(self.map("own_mac")?)
            .map_err(|e| KernelError::bpf("open map own_mac", e))?;
        let value = DirectMac { mac, zero: 0 };
        own_mac
            .set(0, value, 0)
            .map_err(|e| KernelError::bpf("write the MAC address", e))
    }

    /// Attaches the program to the interface with this index, and detaches it from the earlier one.
    /// If another XDP program is attached there, the call retries for half a second, since the
    /// kernel removes the program of a killed process with a delay.
    ///
    /// # Errors
    /// If another XDP program stays attached, the interface's driver does not support the mode, or
    /// the kernel refuses for another reason.
    pub fn attach(&mut self, index: u32, mode: AttachMode) -> Result<(), KernelError> {
        let (name, mode) = match mode {
            AttachMode::Native => (DIRECT, XdpMode::Driver),
            AttachMode::Generic => (self.generic, XdpMode::Skb),
        };
        self.detach()?;
        self.link = Some((name, self.attach_program(name, index, mode)?));
        Ok(())
    }

    /// Gives all frames that arrive at the far end of the redirect pair, the interface with this
    /// index, to an AF_XDP socket of its queue 0. Ends the delivery from an earlier pair.
    ///
    /// # Errors
    /// If the socket is no AF_XDP socket, or the kernel refuses to attach XDP in native mode.
    pub fn attach_redirected(
        &mut self,
        index: u32,
        socket: BorrowedFd<'_>,
    ) -> Result<(), KernelError> {
        if let Some(link) = self.redirect_link.take() {
            // It fails if the pair is gone, and the attachment with it.
            let _ = program(&mut self.ebpf, REDIRECTED)?.detach(link);
        }
        let mut sockets = XskMap::try_from(self.map("redirected_socket")?)
            .map_err(|e| KernelError::bpf("open map redirected_socket", e))?;
        sockets
            .set(0, socket.as_raw_fd(), 0)
            .map_err(|e| KernelError::bpf("register the socket of the redirect pair", e))?;
        self.redirect_link = Some(self.attach_program(REDIRECTED, index, XdpMode::Driver)?);
        Ok(())
    }

    fn attach_program(
        &mut self,
        name: &'static str,
        index: u32,
        mode: XdpMode,
    ) -> Result<XdpLinkId, KernelError> {
        let program = program(&mut self.ebpf, name)?;
        let mut tries = 0;
        let attached = loop {
            tries += 1;
            match program.attach_to_if_index(index, mode) {
                Err(e) if tries < BUSY_TRIES && is_busy(&e) => std::thread::sleep(BUSY_PAUSE),
                other => break other,
            }
        };
        attached.map_err(|e| KernelError::bpf(format!("attach XDP to interface {index}"), e))
    }

    /// Detaches the program; no effect if it is not attached.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn detach(&mut self) -> Result<(), KernelError> {
        match self.link.take() {
            None => Ok(()),
            Some((name, link)) => program(&mut self.ebpf, name)?
                .detach(link)
                .map_err(|e| KernelError::bpf("detach XDP", e)),
        }
    }

    /// Registers the AF_XDP socket that gets the frames of the receive queue number `queue`.
    ///
    /// # Errors
    /// If the map has no entry for this queue (64 or above), the socket is no AF_XDP socket, or the
    /// kernel refuses for another reason.
    pub fn set_socket(&mut self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), KernelError> {
        let mut sockets = XskMap::try_from(self.map("sockets")?)
            .map_err(|e| KernelError::bpf("open map sockets", e))?;
        sockets
            .set(queue, socket.as_raw_fd(), 0)
            .map_err(|e| KernelError::bpf(format!("register the socket of queue {queue}"), e))
    }

    /// The map of the flows' gates, for mmap(2): an array of [`MAX_GATES`] entries of type
    /// [`DirectGate`], by the driver's flow number.
    ///
    /// # Errors
    /// If the eBPF object has no such map.
    pub fn gates(&self) -> Result<BorrowedFd<'_>, KernelError> {
        match self.ebpf.map("gates") {
            Some(Map::Array(gates)) => Ok(gates.fd().as_fd()),
            _ => Err(ABSENT),
        }
    }

    /// Directs these frames to the driver, while the gate of `flow` does not suspend them. Without
    /// a flow number, with one from [`MAX_GATES`] on, or for an EtherType, the frames cannot be
    /// suspended. Other registrations stay in force.
    ///
    /// # Errors
    /// If the map of registrations is full, or the kernel refuses the entry.
    pub fn add_match(&mut self, frames: &FrameMatch, flow: Option<u32>) -> Result<(), KernelError> {
        let gate = flow.filter(|flow| *flow < MAX_GATES);
        self.change(frames, Some(gate.map_or(0, |flow| flow + 1)))
    }

    /// Ends a registration. Those of its frames that no other registration covers pass to the
    /// kernel again.
    ///
    /// # Errors
    /// If these frames are not registered, or the kernel refuses the change.
    pub fn remove_match(&mut self, frames: &FrameMatch) -> Result<(), KernelError> {
        self.change(frames, None)
    }

    fn change(&mut self, frames: &FrameMatch, insert: Option<u32>) -> Result<(), KernelError> {
        match *frames {
            FrameMatch::Endpoints {
                protocol,
                local,
                remote,
            } => {
                let (family, address) = address_words(local.0);
                let mut key = DirectEndpoints {
                    local: address,
                    local_port: local.1.to_be(),
                    protocol,
                    family,
                    ..DirectEndpoints::default()
                };
                if let Some((address, port)) = remote {
                    key.remote = address_words(address).1;
                    key.remote_port = port.to_be();
                }
                put(self.map("endpoints")?, key, insert)
            }
            FrameMatch::Syn { local } => {
                let (family, address) = address_words(local.0);
                let key = DirectEndpoints {
                    local: address,
                    local_port: local.1.to_be(),
                    protocol: libc::IPPROTO_TCP as u8,
                    family,
                    syn: 1,
                    ..DirectEndpoints::default()
                };
                put(self.map("endpoints")?, key, insert)
            }
            FrameMatch::Protocol { protocol, local } => {
                let (family, local) = address_words(local);
                let key = DirectProtocol {
                    local,
                    protocol,
                    family,
                    zero: 0,
                };
                put(self.map("protocols")?, key, insert)
            }
            FrameMatch::EtherType(number) => put(self.map("ethertypes")?, number.to_be(), insert),
        }
    }

    fn map(&mut self, name: &'static str) -> Result<&mut Map, KernelError> {
        self.ebpf.map_mut(name).ok_or(ABSENT)
    }
}

fn program<'e>(ebpf: &'e mut Ebpf, name: &str) -> Result<&'e mut Xdp, KernelError> {
    let program = ebpf.program_mut(name).ok_or(ABSENT)?;
    program
        .try_into()
        .map_err(|e| KernelError::bpf("find the direct path's program", e))
}

fn put<K: aya::Pod>(map: &mut Map, key: K, insert: Option<u32>) -> Result<(), KernelError> {
    let mut map: HashMap<&mut MapData, K, u32> =
        HashMap::try_from(map).map_err(|e| KernelError::bpf("open a map of direct flows", e))?;
    let done = match insert {
        Some(gate) => map.insert(key, gate, 0),
        None => map.remove(&key),
    };
    done.map_err(|e| KernelError::bpf("change the frames that go to the driver", e))
}

/// The IP version (4 or 6) and the address, in the form of the eBPF program.
fn address_words(address: IpAddr) -> (u8, [u32; 4]) {
    match address {
        IpAddr::V4(v4) => (4, [v4.to_bits().to_be(), 0, 0, 0]),
        IpAddr::V6(v6) => {
            let bytes = v6.octets();
            let word = |k: usize| [0, 1, 2, 3].map(|byte| bytes[4 * k + byte]);
            (6, [0, 1, 2, 3].map(|k| u32::from_ne_bytes(word(k))))
        }
    }
}

/// Whether the error is EBUSY: another program is attached.
fn is_busy(error: &aya::programs::ProgramError) -> bool {
    errno(error) == Some(libc::EBUSY)
}

/// The program that selects the frames of direct flows.
const DIRECT: &str = "direct";
/// The same for generic mode, where a frame can be in several pieces of memory.
const DIRECT_LONG: &str = "direct_long";
/// The program of the redirect pair.
const REDIRECTED: &str = "redirected";
/// Number of attempts to attach; with the pauses, half a second in total.
const BUSY_TRIES: u32 = 50;
const BUSY_PAUSE: Duration = Duration::from_millis(10);
const ABSENT: KernelError = KernelError::Missing {
    what: "part of the direct path's eBPF object",
    hint: "build it again",
};
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/direct.bpf.o"));

include!(concat!(env!("OUT_DIR"), "/direct.rs"));

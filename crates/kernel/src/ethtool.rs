//! Reads properties that the driver of an interface reports by the ethtool ioctl (speed, number of
//! receive queues, flow steering, segmentation of TCP), and switches off the offloads of netnice's
//! own interfaces. A property that the driver does not report is `None` or false; the functions
//! fail if there is no such interface, or if the kernel refuses the socket or the ioctl for another
//! reason.
//!
//! `/sys/class/net` shows the interfaces of the namespace in which it was mounted, so this module
//! does not use it. Virtual interfaces report no speed, or a meaningless one (veth: 10 Gbit/s), so
//! messages that use a reported speed name its source.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
};

use netnice_core::units::Rate;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// The speed of an interface; `None` if its driver reports none, for example without a carrier.
///
/// # Errors
/// If there is no such interface, or the kernel refuses the socket or the ioctl.
pub fn speed(name: &str) -> io::Result<Option<Rate>> {
    let socket = socket()?;
    let mut settings = LinkSettings {
        command: ETHTOOL_GLINKSETTINGS,
        ..LinkSettings::default()
    };
    // The first call returns the number of link mode words as a negative number; the second call
    // must pass that number.
    if !ioctl(&socket, name, &mut settings)? {
        return Ok(None);
    }
    if settings.words >= 0 {
        return Ok(None);
    }
    settings = LinkSettings {
        command: ETHTOOL_GLINKSETTINGS,
        words: -settings.words,
        ..LinkSettings::default()
    };
    if !ioctl(&socket, name, &mut settings)? || settings.speed == SPEED_UNKNOWN {
        return Ok(None);
    }
    Ok(Rate::new(u64::from(settings.speed) * 1_000_000))
}

/// Whether the NIC of an interface can steer flows to chosen queues, and this is enabled (`ethtool
/// -K IFACE ntuple on`). Fails as [`speed`].
pub(crate) fn has_flow_steering(name: &str) -> io::Result<bool> {
    let mut flags = Flags {
        command: ETHTOOL_GFLAGS,
        bits: 0,
    };
    Ok(ioctl(&socket()?, name, &mut flags)? && flags.bits & ETH_FLAG_NTUPLE != 0)
}

/// Whether an interface cuts long packets of TCP into segments (`ethtool -K IFACE tso on`).
///
/// # Errors
/// As [`speed`].
pub fn has_tcp_segmentation(name: &str) -> io::Result<bool> {
    let mut value = Flags {
        command: ETHTOOL_GTSO,
        bits: 0,
    };
    Ok(ioctl(&socket()?, name, &mut value)? && value.bits != 0)
}

/// True if kernels of the same machine can be the peers on an interface, and no wire lies between:
/// by its driver, which is that of a virtual interface. Then packets arrive whose checksums the
/// sender has left to an interface that does not compute them.
///
/// # Errors
/// As [`speed`].
pub fn is_virtual(name: &str) -> io::Result<bool> {
    let mut info = DriverInfo {
        command: ETHTOOL_GDRVINFO,
        driver: [0; 32],
        rest: [0; 160],
    };
    if !ioctl(&socket()?, name, &mut info)? {
        return Ok(false);
    }
    let driver = info.driver.split(|byte| *byte == 0).next();
    Ok(driver.is_some_and(|driver| VIRTUAL_DRIVERS.iter().any(|one| one.as_bytes() == driver)))
}

/// The number of receive queues of an interface; `None` if its driver does not report it. Fails as
/// [`speed`].
pub(crate) fn receive_queues(name: &str) -> io::Result<Option<u32>> {
    let mut channels = Channels {
        command: ETHTOOL_GCHANNELS,
        ..Channels::default()
    };
    let supported = ioctl(&socket()?, name, &mut channels)?;
    let count = channels.receive + channels.combined;
    Ok(Some(count).filter(|count| supported && *count > 0))
}

/// Switches off all offloads of what an interface sends: checksums, segmentation, VLAN tags. So the
/// kernel itself does these before a packet enters the interface. Fails as [`speed`].
pub(crate) fn disable_send_offloads(name: &str) -> io::Result<()> {
    let socket = socket()?;
    for command in [ETHTOOL_STXCSUM, ETHTOOL_SSG, ETHTOOL_STSO, ETHTOOL_SGSO] {
        let mut off = Flags { command, bits: 0 };
        // Where the driver has no such offload, there is nothing to switch off.
        ioctl(&socket, name, &mut off)?;
    }
    let mut flags = Flags {
        command: ETHTOOL_GFLAGS,
        bits: 0,
    };
    if ioctl(&socket, name, &mut flags)? {
        flags.command = ETHTOOL_SFLAGS;
        flags.bits &= !ETH_FLAG_TXVLAN;
        ioctl(&socket, name, &mut flags)?;
    }
    Ok(())
}

fn socket() -> io::Result<OwnedFd> {
    let (kind, flags) = (SocketType::DGRAM, SocketFlags::CLOEXEC);
    Ok(rustix::net::socket_with(
        AddressFamily::INET,
        kind,
        flags,
        None,
    )?)
}

/// Makes one ioctl call (rustix has no `ifreq`). Returns false if the driver does not support the
/// command.
fn ioctl<T>(socket: &OwnedFd, name: &str, settings: &mut T) -> io::Result<bool> {
    // SAFETY: an ifreq of zeros is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request
        .ifr_name
        .iter_mut()
        .zip(name.bytes().take(libc::IFNAMSIZ - 1))
    {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut *settings).cast();
    // SAFETY: the request points to the structure of its command (`struct ethtool_value`, `struct
    // ethtool_channels`, `struct ethtool_drvinfo`, or settings with space for the largest number of
    // link mode words that their one byte can hold), and the structure outlives the call.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    if done == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::EINVAL) => Ok(false),
        _ => Err(error),
    }
}

/// `struct ethtool_value`.
#[repr(C)]
struct Flags {
    command: u32,
    bits: u32,
}

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    /// Versions, bus, and five numbers.
    rest: [u8; 160],
}

const _: () = assert!(size_of::<DriverInfo>() == 196);

/// `struct ethtool_channels`.
#[repr(C)]
#[derive(Default)]
struct Channels {
    command: u32,
    most: [u32; 4],
    receive: u32,
    transmit: u32,
    other: u32,
    combined: u32,
}

/// `struct ethtool_link_settings`, followed by space for the link modes.
#[repr(C)]
struct LinkSettings {
    command: u32,
    speed: u32,
    fixed: [u8; 7],
    words: i8,
    rest: [u32; 8],
    modes: [u32; 3 * 128],
}

impl Default for LinkSettings {
    fn default() -> Self {
        Self {
            command: 0,
            speed: SPEED_UNKNOWN,
            fixed: [0; 7],
            words: 0,
            rest: [0; 8],
            modes: [0; 3 * 128],
        }
    }
}

/// Drivers of interfaces between kernels and programs of one machine. (A virtio interface of a
/// virtual machine gets such packets from the host and from other machines on it.)
const VIRTUAL_DRIVERS: [&str; 8] = [
    "veth",
    "tun",
    "tap",
    "dummy",
    "virtio_net",
    "bridge",
    "macvlan",
    "ipvlan",
];
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETHTOOL_STXCSUM: u32 = 0x17;
const ETHTOOL_SSG: u32 = 0x19;
const ETHTOOL_GTSO: u32 = 0x1e;
const ETHTOOL_STSO: u32 = 0x1f;
const ETHTOOL_SGSO: u32 = 0x24;
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_SFLAGS: u32 = 0x26;
const ETH_FLAG_TXVLAN: u32 = 1 << 7;
const ETH_FLAG_NTUPLE: u32 = 1 << 27;
const ETHTOOL_GLINKSETTINGS: u32 = 0x4c;
const SPEED_UNKNOWN: u32 = u32::MAX;

//! System calls for both kinds of link (AF_XDP and AF_PACKET) that rustix does not have: they read
//! the state of an interface (`ifreq`), bind packet sockets, and get and set socket options by
//! number. A function for a socket fails with the kernel's error, which [`system`] converts to a
//! [`LinkError`]. [`interface`] also fails if the interface does not exist or is no Ethernet.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use netnice_kernel::ethtool;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::{Interface, LinkError};
use crate::frame::Mac;

/// Reads the state of an interface. Fails if no interface has this name, if it is no Ethernet
/// interface, or if a system call fails.
pub(super) fn interface(name: &str) -> Result<Interface, LinkError> {
    let (kind, flags) = (SocketType::DGRAM, SocketFlags::CLOEXEC);
    let socket = rustix::net::socket_with(AddressFamily::INET, kind, flags, None)
        .map_err(system("cannot open a socket to ask for", name))?;
    // Fails if the name is too long, too.
    let index = rustix::net::netdevice::name_to_index(&socket, name)
        .map_err(|_| LinkError::NoInterface(name.to_owned()))?;
    let ask = |what, request| {
        // SAFETY: all bits zero are a value of this plain structure.
        let mut answer: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in answer.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        // SAFETY: these requests write no more than the structure holds.
        let done = check(unsafe { libc::ioctl(socket.as_raw_fd(), request, &mut answer) });
        done.map(|_| answer).map_err(system(what, name))
    };
    let address = ask("cannot ask for the address of", libc::SIOCGIFHWADDR)?;
    // SAFETY: the kernel has written this member of the union.
    let address = unsafe { address.ifr_ifru.ifru_hwaddr };
    if address.sa_family != libc::ARPHRD_ETHER {
        return Err(LinkError::NotEthernet(name.to_owned()));
    }
    let mtu = ask("cannot ask for the MTU of", libc::SIOCGIFMTU)?;
    // SAFETY: as above.
    let mtu = unsafe { mtu.ifr_ifru.ifru_mtu };
    let flags = ask("cannot ask for the state of", libc::SIOCGIFFLAGS)?;
    // SAFETY: as above.
    let flags = i32::from(unsafe { flags.ifr_ifru.ifru_flags });
    let both = libc::IFF_UP | libc::IFF_RUNNING;
    Ok(Interface {
        name: name.to_owned(),
        index,
        mac: Mac([0, 1, 2, 3, 4, 5].map(|k| address.sa_data[k] as u8)),
        mtu: mtu as u32,
        is_up: flags & both == both,
        cuts_segments: ethtool::has_tcp_segmentation(name).unwrap_or(false),
        is_virtual: ethtool::is_virtual(name).unwrap_or(false),
    })
}

/// Sets an option to a plain value. Fails with the error of setsockopt(2).
pub(super) fn set<T: Copy>(
    socket: BorrowedFd<'_>,
    level: i32,
    name: i32,
    value: &T,
) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    let pointer: *const T = value;
    // SAFETY: the value has this length and outlives the call.
    let done = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, pointer.cast(), length) };
    check(done).map(drop)
}

/// Reads an option that is a plain structure of integers. Fails with the error of getsockopt(2).
pub(super) fn get<T: Copy>(socket: BorrowedFd<'_>, level: i32, name: i32) -> io::Result<T> {
    // SAFETY: used only for structures of integers, for which all bits zero are a value.
    let mut value: T = unsafe { std::mem::zeroed() };
    let mut length = size_of::<T>() as libc::socklen_t;
    let pointer: *mut T = &mut value;
    // SAFETY: the kernel writes at most `length` bytes, which the value has.
    let done =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, pointer.cast(), &mut length) };
    check(done).map(|_| value)
}

/// Binds to an address. Fails with the error of bind(2).
pub(super) fn bind<T: Copy>(socket: BorrowedFd<'_>, address: &T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    let pointer: *const T = address;
    // SAFETY: the address has this length and outlives the call.
    check(unsafe { libc::bind(socket.as_raw_fd(), pointer.cast(), length) }).map(drop)
}

/// The result of a system call. Fails with the last error (errno) if the result is -1.
pub(super) fn check(done: impl Into<i64>) -> io::Result<i64> {
    match done.into() {
        -1 => Err(io::Error::last_os_error()),
        done => Ok(done),
    }
}

/// Adds the step and the interface to an error.
pub(super) fn system<E: Into<io::Error>>(
    what: &'static str,
    interface: &str,
) -> impl FnOnce(E) -> LinkError {
    let interface = interface.to_owned();
    move |source| LinkError::System {
        what,
        interface,
        source: source.into(),
    }
}

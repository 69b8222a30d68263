//! Reads the process and the user at the other end of a Unix socket ([`of`]), and makes the kernel
//! refuse descriptors from clients ([`refuse_descriptors`]).
//!
//! Process, user and groups are those of the peer at the time of its connection, as the kernel
//! recorded them. Both functions fail with the error of the socket call.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

/// The credentials of the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The number of the process that connected; 0 if it is in a PID namespace that this process
    /// does not see. The process may have ended, and the number may be reused: so the number alone
    /// proves nothing.
    pub pid: u32,
    /// Effective user id.
    pub uid: u32,
    /// Effective group id, then the supplementary groups.
    pub groups: Vec<u32>,
}

/// Reads the credentials of the peer of a connected Unix socket.
///
/// # Errors
/// The error of getsockopt(2).
// rustix's `UCred` cannot hold process id 0, which the kernel reports for a peer of another PID
// namespace. rustix has neither `SO_PEERGROUPS` nor `SO_PASSRIGHTS`.
pub fn of(socket: BorrowedFd<'_>) -> io::Result<Peer> {
    let mut credentials = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the buffer is a ucred, and `size` is its size.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &mut size,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut groups = vec![credentials.gid];
    groups.extend(supplementary(socket)?);
    Ok(Peer {
        pid: u32::try_from(credentials.pid).unwrap_or(0),
        uid: credentials.uid,
        groups,
    })
}

/// Makes the kernel refuse file descriptors from clients of a listening socket: their sendmsg(2)
/// fails with EPERM. Connections accepted afterwards inherit this.
///
/// # Errors
/// `ENOPROTOOPT` on kernels before 6.16. There a client can send descriptors, and the receiver or
/// the close of the connection closes them.
pub fn refuse_descriptors(listener: BorrowedFd<'_>) -> io::Result<()> {
    let off: libc::c_int = 0;
    // SAFETY: the buffer is an int, and its size is passed.
    let done = unsafe {
        libc::setsockopt(
            listener.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const off).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Since Linux 6.16 (include/uapi/asm-generic/socket.h).
const SO_PASSRIGHTS: libc::c_int = 83;

fn supplementary(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups: Vec<u32> = Vec::new();
    // If the buffer is too small, the kernel reports the list's size, which was fixed when the peer
    // connected.
    for _ in 0..2 {
        let mut size = (groups.len() * size_of::<u32>()) as libc::socklen_t;
        // SAFETY: the buffer holds `size` bytes; an empty one is not written.
        let done = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &mut size,
            )
        };
        let count = size as usize / size_of::<u32>();
        if done == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ERANGE) {
            return Err(error);
        }
        groups = vec![0; count];
    }
    Err(io::Error::from_raw_os_error(libc::ERANGE))
}

#[cfg(test)]
mod tests {
    use std::os::{fd::AsFd, unix::net::UnixStream};

    #[test]
    fn the_peer_of_a_socket_pair_is_this_process() {
        let (one, _other) = UnixStream::pair().expect("a socket pair");
        let peer = super::of(one.as_fd()).expect("its credentials");
        let status = std::fs::read_to_string("/proc/self/status").expect("our status");
        let ids = |name: &str| -> Vec<u32> {
            let line = status.lines().find_map(|l| l.strip_prefix(name));
            line.expect("the line")
                .split_whitespace()
                .filter_map(|n| n.parse().ok())
                .collect()
        };
        assert_eq!(peer.uid, ids("Uid:")[1]);
        assert_eq!(peer.groups[0], ids("Gid:")[1]);
        let mut groups = peer.groups[1..].to_vec();
        groups.sort_unstable();
        let mut expected = ids("Groups:");
        expected.sort_unstable();
        assert_eq!(groups, expected);
    }
}

//! Who is at the other end of a unix socket.
//!
//! The user and groups are those that the peer had when it connected; the kernel vouches for them. Its process id is
//! left out on purpose: by the time it is read the number may be somebody else's.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

/// The user at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Effective user id.
    pub uid: u32,
    /// Effective group id, then the supplementary ones.
    pub groups: Vec<u32>,
}

/// Asks the kernel who connected.
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
        uid: credentials.uid,
        groups,
    })
}

/// Makes the kernel refuse file descriptors that clients of a listening socket send: their sendmsg(2) fails with
/// EPERM. Connections that are made from then on have it from the listener.
///
/// # Errors
/// `ENOPROTOOPT` of kernels before 6.16. There a client can send descriptors, and whoever receives from the connection
/// or closes it closes them.
pub fn refuse_descriptors(listener: BorrowedFd<'_>) -> io::Result<()> {
    let none: libc::c_int = 0;
    // SAFETY: the buffer is an int, and its size is given.
    let done = unsafe {
        libc::setsockopt(
            listener.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const none).cast(),
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
    // The kernel says how large the list is when the buffer is too small; it was fixed when the peer connected.
    for _ in 0..2 {
        let mut size = (groups.len() * size_of::<u32>()) as libc::socklen_t;
        // SAFETY: the buffer holds `size` bytes; a null-sized one is not written to.
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
    fn the_other_end_of_a_pair_of_ours_is_us() {
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

//! File descriptors beside the bytes (SCM_RIGHTS, unix(7)).
//!
//! At most one descriptor travels with a message. A sender who adds more must not be able to
//! fill our table: the kernel is given room for one, whatever still comes through is closed
//! here, and the caller hears of it ([`Received::surplus`]). Descriptors arrive close-on-exec.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// What one call received.
#[derive(Debug)]
pub struct Received {
    /// How many bytes; zero at the end of the stream.
    pub bytes: usize,
    /// The descriptor that came with them.
    pub fd: Option<OwnedFd>,
    /// Whether more than one descriptor was sent; all but the first are closed.
    pub surplus: bool,
}

/// Sends bytes, and with the first of them a descriptor if there is one. Returns how many bytes
/// went; the descriptor went if any did.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    let fds = fd.map(|fd| [fd]);
    if let Some(fds) = &fds
        && !beside.push(SendAncillaryMessage::ScmRights(fds))
    {
        return Err(io::Error::other("no room for a descriptor"));
    }
    let sent = rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(
            socket,
            &[IoSlice::new(bytes)],
            &mut beside,
            SendFlags::NOSIGNAL,
        )
    })?;
    Ok(sent)
}

/// Receives bytes, and a descriptor if one comes with them.
pub fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let message = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(
            socket,
            &mut [IoSliceMut::new(bytes)],
            &mut beside,
            RecvFlags::CMSG_CLOEXEC,
        )
    })?;
    let fds = beside.drain().filter_map(|sent| match sent {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let mut fds = fds.flatten();
    let fd = fds.next();
    // Counting takes them out of the iterator, and dropping closes them.
    let more = fds.count();
    Ok(Received {
        bytes: message.bytes,
        fd,
        surplus: more > 0 || message.flags.contains(ReturnFlags::CTRUNC),
    })
}

#[cfg(test)]
mod tests;

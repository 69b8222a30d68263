//! Sends and receives file descriptors with bytes on a Unix socket (SCM_RIGHTS, unix(7)).
//!
//! A message carries at most [`MAX_FDS`] (3) descriptors, and the receiver states how many it
//! takes. A sender with more descriptors must not be able to fill the receiver's descriptor table.
//! So [`receive`] gives the kernel space for few descriptors, closes those beyond the stated
//! number, and reports that there were some ([`Received::surplus`]). Descriptors arrive with
//! close-on-exec set.
//!
//! Descriptors arrive with the first byte of the data that they were sent with. Bytes sent earlier
//! may arrive in the same call. So a caller keeps received descriptors in order, and gives the
//! first ones to the next message that announces descriptors.
//!
//! A call fails with the error of the system call. [`send`] also fails for more than [`MAX_FDS`]
//! descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// The result of one [`receive`] call.
#[derive(Debug)]
pub struct Received {
    /// Number of bytes; 0 at the end of the stream.
    pub bytes: usize,
    /// The descriptors that arrived with the bytes, in the order in which they were sent; at most
    /// the number that the caller takes.
    pub fds: Vec<OwnedFd>,
    /// True if more descriptors were sent than the caller takes. The further ones are closed.
    pub surplus: bool,
}

/// Sends bytes, and descriptors with the first byte if there are any. Returns the number of bytes
/// sent. If it is not 0, all descriptors were sent.
///
/// # Errors
/// If there are more than [`MAX_FDS`] descriptors, or sendmsg(2) fails.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty()
        && (fds.len() > MAX_FDS || !ancillary.push(SendAncillaryMessage::ScmRights(fds)))
    {
        let count = fds.len();
        return Err(io::Error::other(format!(
            "cannot send {count} file descriptors with one message: at most {MAX_FDS} are allowed"
        )));
    }
    let sent = rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(
            socket,
            &[IoSlice::new(bytes)],
            &mut ancillary,
            SendFlags::NOSIGNAL,
        )
    })?;
    Ok(sent)
}

/// Receives bytes and at most `limit` descriptors, never more than [`MAX_FDS`].
///
/// # Errors
/// If recvmsg(2) fails.
pub fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8], limit: usize) -> io::Result<Received> {
    let limit = limit.min(MAX_FDS);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    // Space for at least one: without any space the kernel does not report truncation.
    let room = rustix::cmsg_space!(ScmRights(limit.max(1)));
    let mut ancillary = RecvAncillaryBuffer::new(&mut space[..room]);
    let message = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(
            socket,
            &mut [IoSliceMut::new(bytes)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        )
    })?;
    let fds = ancillary.drain().filter_map(|sent| match sent {
        RecvAncillaryMessage::ScmRights(fds) => Some(fds),
        _ => None,
    });
    let mut all = fds.flatten();
    let fds: Vec<OwnedFd> = all.by_ref().take(limit).collect();
    // `count` takes the surplus descriptors out of the iterator, and dropping them closes them.
    let more = all.count();
    Ok(Received {
        bytes: message.bytes,
        fds,
        surplus: more > 0 || message.flags.contains(ReturnFlags::CTRUNC),
    })
}

/// Largest number of descriptors with one message: a memory file and two doorbells.
pub const MAX_FDS: usize = 3;

#[cfg(test)]
mod tests;

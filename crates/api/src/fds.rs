//! File descriptors beside the bytes (SCM_RIGHTS, unix(7)).
//!
//! A few descriptors travel with a message, at most [`MOST`]; the receiver says how many it takes. A sender who adds more must
//! not be able to fill our table: the kernel is given room for so many, whatever still comes through is closed here, and
//! the caller hears of it ([`Received::surplus`]). Descriptors arrive close-on-exec.
//!
//! They come with the first byte of what they were sent with, but bytes that were sent before may come in the same
//! call. Who receives several messages without waiting keeps descriptors in their order, and a message that says that
//! some came with it takes the first ones.

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
    /// The descriptors that came with them, in the order in which they were sent.
    pub fds: Vec<OwnedFd>,
    /// Whether more descriptors were sent than the caller takes; those are closed.
    pub surplus: bool,
}

/// Sends bytes, and with the first of them descriptors if there are any. Returns how many bytes
/// went; the descriptors went if any did.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && (fds.len() > MOST || !beside.push(SendAncillaryMessage::ScmRights(fds))) {
        let many = fds.len();
        return Err(io::Error::other(format!(
            "{many} descriptors with one message, at most {MOST} can travel"
        )));
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

/// Receives bytes, and at most `most` descriptors if some come with them. More than [`MOST`] are
/// never taken.
pub fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8], most: usize) -> io::Result<Received> {
    let most = most.min(MOST);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    // Room for one at least: without any the kernel would not say that something was cut off.
    let room = rustix::cmsg_space!(ScmRights(most.max(1)));
    let mut beside = RecvAncillaryBuffer::new(&mut space[..room]);
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
    let mut all = fds.flatten();
    let fds: Vec<OwnedFd> = all.by_ref().take(most).collect();
    // Counting takes them out of the iterator, and dropping closes them.
    let more = all.count();
    Ok(Received {
        bytes: message.bytes,
        fds,
        surplus: more > 0 || message.flags.contains(ReturnFlags::CTRUNC),
    })
}

/// How many descriptors travel with one message: a memory file and two doorbells.
pub const MOST: usize = 3;

#[cfg(test)]
mod tests;

//! Reads the events of the eBPF programs ([`Exits`]): each reports that a process that was a member
//! of a target has ended ([`Exit`]). The kernel writes them into a ring buffer, and loses an event
//! while that buffer is full. [`Kernel::take_exits`] fails if the programs are not loaded or the
//! events were taken already; reading the events does not fail. [`Kernel::netlink_port`], the
//! number by which a listener recognizes the daemon's own changes, fails if the kernel does not
//! report the number.

use std::os::fd::{AsRawFd, RawFd};

use aya::maps::{MapData, RingBuf};

use super::{Kernel, loaded};
use crate::{abi, error::KernelError};

/// A member that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Process id.
    pub pid: u32,
    /// The process target of the process; 0: none.
    pub process: u32,
    /// The executable target of the process; 0: none.
    pub app: u32,
}

/// A queue of the ends of members, valid while the programs are loaded. A full ring buffer loses
/// events, so the caller must also check the processes from time to time.
pub struct Exits(RingBuf<MapData>);

impl Exits {
    /// The members that ended since the last call. Does not block; empty if none ended.
    pub fn read(&mut self) -> Vec<Exit> {
        let mut exits = Vec::new();
        while let Some(item) = self.0.next() {
            let word = |at: usize| {
                item.get(4 * at..)
                    .and_then(|b| b.first_chunk())
                    .map_or(0, |b| u32::from_ne_bytes(*b))
            };
            // struct event: kind, tgid, process, app
            if word(0) == abi::EVENT_EXIT {
                exits.push(Exit {
                    pid: word(1),
                    process: word(2),
                    app: word(3),
                });
            }
        }
        exits
    }
}

impl AsRawFd for Exits {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Kernel {
    /// The port number of this handle's netlink socket, by which a listener recognizes the changes
    /// that this handle made.
    ///
    /// # Errors
    /// If the port number cannot be read.
    pub fn netlink_port(&self) -> Result<u32, KernelError> {
        Ok(self.netlink.port_number()?)
    }

    /// The events of members' ends.
    ///
    /// # Errors
    /// If the programs are not loaded, or the events were taken since they were loaded.
    pub fn take_exits(&mut self) -> Result<Exits, KernelError> {
        loaded(&mut self.programs)?.take_events().map(Exits)
    }
}

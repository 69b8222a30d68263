//! Records the owners of open sockets, also of those that have no room for a tag. Fails with
//! [`KernelError`] if the programs are not loaded, if a map cannot be read or changed, or if the
//! sockets cannot be listed.
//!
//! A tag (see the crate's documentation) takes some of the socket's option memory, which the kernel
//! limits for each socket (`net.core.optmem_max`). A program can use up all of that memory with
//! group joins or a filter. Such a socket cannot be tagged any more, but its limit holds: the map
//! `cookie_owners` has its owner under the socket's cookie, a number that the kernel gives to no
//! other socket. The eBPF programs read this map only while it may have entries. An entry overrides
//! a tag, which may be an old one that could not be replaced. The eBPF programs find the cgroup
//! target of such a socket by themselves and record it in the map `cookie_cgroups`. Each map has
//! room for [`abi::MAX_COOKIES`] sockets (65,536). The limit of a process or executable target does
//! not hold for a socket that does not fit ([`super::Adoption::untracked`]).
//!
//! The kernel never reuses a cookie. So the entry of a closed socket costs only its memory and the
//! time of the lookups. [`Kernel::remove_closed_cookies`] removes it within about a minute.

use std::{collections::BTreeSet, os::fd::BorrowedFd};

use super::{Kernel, loaded};
use crate::{
    abi::{self, SockCgroup, SockOwner},
    connections,
    error::{self, KernelError},
    netlink::NetlinkClient,
    process,
    programs::SocketRef,
    retry::{RemoveEntry, look_up},
};

/// The place where the owner of a socket is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tagged {
    /// In the socket's tag.
    Itself,
    /// Under its cookie, because the socket has no room for a tag.
    ByCookie,
    /// Nowhere: the table is full.
    Not,
}

impl Kernel {
    /// The owner of a socket, as the eBPF programs find it; `None` if none is recorded. Fails if
    /// the programs are not loaded, or a map cannot be read.
    pub(super) fn owner_of(
        &mut self,
        socket: BorrowedFd<'_>,
    ) -> Result<Option<SockOwner>, KernelError> {
        let programs = loaded(&mut self.programs)?;
        if programs.settings()?.cookie_owners != 0
            && let Some(cookie) = process::cookie(socket)
        {
            let by_cookie = programs.hash::<u64, SockOwner>("cookie_owners")?;
            if let Some(own) = look_up(|| by_cookie.get(&cookie, 0))? {
                return Ok(Some(own));
            }
        }
        let owners = programs.socket_owners()?;
        look_up(|| owners.get(&SocketRef(socket), 0))
    }

    /// Records the owner of a socket, and returns where. `inode` is the socket's inode number, by
    /// which a closed socket is recognised. Fails if the programs are not loaded, or a map cannot
    /// be read or refuses the change; a full map `cookie_owners` is [`Tagged::Not`].
    pub(super) fn write_owner(
        &mut self,
        socket: BorrowedFd<'_>,
        inode: u64,
        own: SockOwner,
    ) -> Result<Tagged, KernelError> {
        let programs = loaded(&mut self.programs)?;
        let inside = SockOwner { inode: 0, ..own };
        let written = programs
            .socket_owners()?
            .insert(&SocketRef(socket), inside, 0);
        let mut settings = programs.settings()?;
        let cookie = process::cookie(socket);
        match (written, cookie) {
            (Ok(()), cookie) => {
                if let Some(cookie) = cookie.filter(|_| settings.cookie_owners != 0) {
                    // The socket may have had no room before.
                    programs
                        .hash::<u64, SockOwner>("cookie_owners")?
                        .remove_entry(&cookie)?;
                }
                Ok(Tagged::Itself)
            }
            (Err(error), Some(cookie)) if error::errno(&error) == Some(libc::ENOMEM) => {
                let own = SockOwner {
                    inode: inode as u32,
                    ..own
                };
                let mut by_cookie = programs.hash::<u64, SockOwner>("cookie_owners")?;
                match by_cookie.insert(cookie, own, 0) {
                    Ok(()) => {}
                    Err(error) if error::errno(&error) == Some(libc::E2BIG) => {
                        return Ok(Tagged::Not);
                    }
                    Err(error) => {
                        return Err(KernelError::bpf(
                            "record the owner of an open socket",
                            error,
                        ));
                    }
                }
                if settings.cookie_owners == 0 {
                    settings.cookie_owners = 1;
                    programs.set_settings(settings)?;
                }
                Ok(Tagged::ByCookie)
            }
            (Err(error), _) => Err(KernelError::bpf("tag an open socket", error)),
        }
    }

    /// Removes the entries of closed sockets that had no room for a tag, and those of sockets whose
    /// targets no longer exist. To be called once a second; every 64th call searches.
    ///
    /// # Errors
    /// If the sockets cannot be listed, or a map cannot be read or changed.
    pub fn remove_closed_cookies(&mut self) -> Result<(), KernelError> {
        self.cookie_checks = self.cookie_checks.wrapping_add(1);
        let Some(programs) = self
            .programs
            .as_mut()
            .filter(|_| self.cookie_checks.is_multiple_of(CALLS_PER_CHECK))
        else {
            return Ok(());
        };
        let settings = programs.settings()?;
        let counted = programs.count(abi::COUNT_COOKIE_CGROUPS)?;
        if settings.cookie_owners == 0 && counted == 0 {
            return Ok(());
        }
        let listed =
            NetlinkClient::open_diagnosis().and_then(|mut diag| connections::list(&mut diag))?;
        let listed: BTreeSet<u64> = listed.iter().map(|socket| socket.cookie).collect();

        // A socket that is not listed has no port, and is recorded again when it sends.
        let mut cgroups = programs.hash::<u64, SockCgroup>("cookie_cgroups")?;
        let entries: Vec<u64> = cgroups.keys().flatten().collect();
        let (kept, closed): (Vec<u64>, Vec<u64>) = entries
            .into_iter()
            .partition(|cookie| listed.contains(cookie));
        for cookie in closed {
            cgroups.remove_entry(&cookie)?;
        }
        if kept.is_empty() {
            programs.set_count(abi::COUNT_COOKIE_CGROUPS, 0)?;
        }

        let mut owners = programs.hash::<u64, SockOwner>("cookie_owners")?;
        let entries: Vec<(u64, SockOwner)> = owners.iter().flatten().collect();
        let some_unlisted = entries.iter().any(|(cookie, _)| !listed.contains(cookie));
        let open: BTreeSet<u32> = match some_unlisted {
            true => process::all()
                .into_iter()
                .flat_map(process::sockets)
                .map(|(_, inode)| inode as u32)
                .collect(),
            false => BTreeSet::new(),
        };
        let known = |id: u32| self.written.contains_key(&id);
        let is_kept = |cookie: &u64, own: &SockOwner| {
            let without_target =
                (own.process, own.app) != (0, 0) && !known(own.process) && !known(own.app);
            !without_target && (listed.contains(cookie) || open.contains(&own.inode))
        };
        let mut left = 0;
        for (cookie, own) in &entries {
            match is_kept(cookie, own) {
                true => left += 1,
                false => owners.remove_entry(cookie)?,
            }
        }
        if left == 0 && settings.cookie_owners != 0 {
            programs.set_settings(abi::Settings {
                cookie_owners: 0,
                ..settings
            })?;
        }
        Ok(())
    }
}

/// Calls of [`Kernel::remove_closed_cookies`] for each search: a search takes time in proportion to
/// the number of sockets on the machine.
const CALLS_PER_CHECK: u32 = 64;

//! Sockets that have no room for a tag.
//!
//! A tag is part of a socket's option memory, which the kernel limits for each socket
//! (`net.core.optmem_max`). A program can use up all of it with group joins or a filter. Such a
//! socket cannot be tagged any more, and its limit holds nevertheless: a table of the eBPF programs
//! (`stray_owns`) has its owner under the socket's cookie, a number that the kernel gives to no
//! other socket. The eBPF programs read this table only while it may have entries. An entry
//! overrides a tag, which may be an old one that could not be replaced. The eBPF programs find the
//! socket's cgroup by themselves and record it in the same way (`stray_groups`).
//!
//! The kernel never reuses a cookie. So the entry of a closed socket costs only its memory and the
//! time of the lookups. [`Kernel::sweep_strays`] removes it some time later.

use std::{collections::BTreeSet, os::fd::BorrowedFd};

use super::{Kernel, loaded};
use crate::{
    abi::{self, SockCgroup, SockOwn},
    again::{Forget, look_up},
    connections,
    error::{self, KernelError},
    netlink::Route,
    process,
    programs::SocketRef,
};

/// The place where the owner of a socket is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tagged {
    /// In the socket's tag.
    Itself,
    /// Under its cookie, because the socket has no room for a tag.
    ByNumber,
    /// Nowhere: the table is full.
    Not,
}

impl Kernel {
    /// The owner of a socket, as the eBPF programs find it.
    pub(super) fn owner_of(
        &mut self,
        socket: BorrowedFd<'_>,
    ) -> Result<Option<SockOwn>, KernelError> {
        let programs = loaded(&mut self.programs)?;
        if programs.settings()?.strays != 0
            && let Some(cookie) = process::cookie(socket)
        {
            let strays = programs.hash::<u64, SockOwn>("stray_owns")?;
            if let Some(own) = look_up(|| strays.get(&cookie, 0))? {
                return Ok(Some(own));
            }
        }
        let owners = programs.socket_owners()?;
        look_up(|| owners.get(&SocketRef(socket), 0))
    }

    /// Records the owner of a socket.
    pub(super) fn write_owner(
        &mut self,
        socket: BorrowedFd<'_>,
        inode: u64,
        own: SockOwn,
    ) -> Result<Tagged, KernelError> {
        let programs = loaded(&mut self.programs)?;
        let inside = SockOwn { inode: 0, ..own };
        let written = programs
            .socket_owners()?
            .insert(&SocketRef(socket), inside, 0);
        let mut settings = programs.settings()?;
        let cookie = process::cookie(socket);
        match (written, cookie) {
            (Ok(()), cookie) => {
                if let Some(cookie) = cookie.filter(|_| settings.strays != 0) {
                    // The socket may have had no room before.
                    programs
                        .hash::<u64, SockOwn>("stray_owns")?
                        .forget(&cookie)?;
                }
                Ok(Tagged::Itself)
            }
            (Err(error), Some(cookie)) if error::number(&error) == Some(libc::ENOMEM) => {
                let own = SockOwn {
                    inode: inode as u32,
                    ..own
                };
                let mut strays = programs.hash::<u64, SockOwn>("stray_owns")?;
                match strays.insert(cookie, own, 0) {
                    Ok(()) => {}
                    Err(error) if error::number(&error) == Some(libc::E2BIG) => {
                        return Ok(Tagged::Not);
                    }
                    Err(error) => return Err(KernelError::bpf("note an open socket", error)),
                }
                if settings.strays == 0 {
                    settings.strays = 1;
                    programs.set_settings(settings)?;
                }
                Ok(Tagged::ByNumber)
            }
            (Err(error), _) => Err(KernelError::bpf("tag an open socket", error)),
        }
    }

    /// Removes the entries of closed sockets that had no room for a tag. To be called once a
    /// second; every [`LOOKS`]th call searches.
    pub fn sweep_strays(&mut self) -> Result<(), KernelError> {
        self.looks = self.looks.wrapping_add(1);
        let Some(programs) = self
            .programs
            .as_mut()
            .filter(|_| self.looks.is_multiple_of(LOOKS))
        else {
            return Ok(());
        };
        let settings = programs.settings()?;
        let counted = programs.count(abi::COUNT_STRAY_GROUPS)?;
        if settings.strays == 0 && counted == 0 {
            return Ok(());
        }
        let listed = Route::open_diagnosis().and_then(|mut diag| connections::list(&mut diag))?;
        let listed: BTreeSet<u64> = listed.iter().map(|socket| socket.cookie).collect();

        // A socket that is not listed has no port, and is recorded again when it sends.
        let mut groups = programs.hash::<u64, SockCgroup>("stray_groups")?;
        let there: Vec<u64> = groups.keys().flatten().collect();
        let (stay, gone): (Vec<u64>, Vec<u64>) = there
            .into_iter()
            .partition(|cookie| listed.contains(cookie));
        for cookie in gone {
            groups.forget(&cookie)?;
        }
        if stay.is_empty() {
            programs.set_count(abi::COUNT_STRAY_GROUPS, 0)?;
        }

        let mut owns = programs.hash::<u64, SockOwn>("stray_owns")?;
        let there: Vec<(u64, SockOwn)> = owns.iter().flatten().collect();
        let some_unlisted = there.iter().any(|(cookie, _)| !listed.contains(cookie));
        let open: BTreeSet<u32> = match some_unlisted {
            true => process::all()
                .into_iter()
                .flat_map(process::sockets)
                .map(|(_, inode)| inode as u32)
                .collect(),
            false => BTreeSet::new(),
        };
        let known = |id: u32| self.written.contains_key(&id);
        let stays = |cookie: &u64, own: &SockOwn| {
            let of_none = (own.own, own.app) != (0, 0) && !known(own.own) && !known(own.app);
            !of_none && (listed.contains(cookie) || open.contains(&own.inode))
        };
        let mut left = 0;
        for (cookie, own) in &there {
            match stays(cookie, own) {
                true => left += 1,
                false => owns.forget(cookie)?,
            }
        }
        if left == 0 && settings.strays != 0 {
            programs.set_settings(abi::Settings {
                strays: 0,
                ..settings
            })?;
        }
        Ok(())
    }
}

/// The search takes time in proportion to the number of sockets on the machine.
const LOOKS: u32 = 64;

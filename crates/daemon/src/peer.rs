//! The peer of a connection ([`Peer`]): its uid, groups and privilege, from the kernel's
//! credentials. While the group `netnice` is not known ([`privileged_group`]), only root is
//! privileged. No function fails.

use std::time::Duration;

use netnice_core::claims::Claimant;
use nix::unistd::Group;

use crate::name_files;
use crate::name_service::LastAnswer;

/// The user at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// The uid.
    pub uid: u32,
    /// True for root, and for a user who was a member of the group [`GROUP`] when the connection
    /// was made. A privileged peer may use all clauses of a contract, and manage links.
    pub privileged: bool,
    /// The groups of the user's process, the effective one first; empty for the daemon itself.
    pub groups: Vec<u32>,
}

impl Peer {
    /// The super user.
    #[cfg(test)]
    pub(crate) const ROOT: Peer = Peer {
        uid: 0,
        privileged: true,
        groups: Vec::new(),
    };

    /// The peer that stands for readers of the metrics page: privileged, because it may see all
    /// users.
    pub(crate) const METRICS: Peer = Peer {
        uid: 0,
        privileged: true,
        groups: Vec::new(),
    };

    /// Converts the kernel's credentials of a connection.
    pub(crate) fn from_credentials(peer: &netnice_kernel::peer::Peer) -> Peer {
        let in_group = || privileged_group().is_some_and(|gid| peer.groups.contains(&gid));
        Peer {
            uid: peer.uid,
            privileged: peer.uid == 0 || in_group(),
            groups: peer.groups.clone(),
        }
    }

    /// The uid of an unprivileged user, which has quotas; `None` for a privileged peer.
    pub(crate) fn user(&self) -> Option<u32> {
        (!self.privileged).then_some(self.uid)
    }

    /// The peer's uid and privilege, for a claim.
    pub(crate) fn claimant(&self) -> Claimant {
        Claimant {
            uid: self.uid,
            privileged: self.privileged,
        }
    }
}

/// The gid of the group [`GROUP`]: from `/etc/group`, else as the name service answered last. Never
/// waits: without an answer so far the result is `None`, and a thread asks.
pub(crate) fn privileged_group() -> Option<u32> {
    static OF_SERVICE: LastAnswer<u32> = LastAnswer::new();
    name_files::gid_of(GROUP).or_else(|| {
        OF_SERVICE.get(LIFETIME, || {
            let group = Group::from_name(GROUP)?;
            Ok(group.map(|group| group.gid.as_raw()))
        })
    })
}

/// How long an answer of the name service counts, at least.
const LIFETIME: Duration = Duration::from_secs(60);

/// The administrator's policy (the policy file and unit files) as a claimant. Its uid is one that
/// no user has.
pub(crate) const POLICY: Claimant = Claimant {
    uid: u32::MAX,
    privileged: true,
};

/// The name of the group whose members are privileged, like root.
pub(crate) const GROUP: &str = "netnice";

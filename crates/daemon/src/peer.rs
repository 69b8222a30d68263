//! Who asks, and whether they belong to those who may reserve.

use netnice_core::claims::Claimant;

/// Who is at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The user.
    pub uid: u32,
    /// Root, or a member of the group [`GROUP`] when the connection was made.
    pub privileged: bool,
    /// The user's groups, the first one first; none of the daemon itself.
    pub groups: Vec<u32>,
}

impl Peer {
    /// The super user.
    #[cfg(test)]
    pub const ROOT: Peer = Peer {
        uid: 0,
        privileged: true,
        groups: Vec::new(),
    };

    /// Whoever reads the metrics: the page tells all users.
    pub const METRICS: Peer = Peer {
        uid: 0,
        privileged: true,
        groups: Vec::new(),
    };

    /// From what the kernel says of a connection.
    pub fn known(peer: &netnice_kernel::peer::Peer) -> Peer {
        let in_group = || {
            let group = nix::unistd::Group::from_name(GROUP).ok().flatten();
            group.is_some_and(|group| peer.groups.contains(&group.gid.as_raw()))
        };
        Peer {
            uid: peer.uid,
            privileged: peer.uid == 0 || in_group(),
            groups: peer.groups.clone(),
        }
    }

    /// The user whose quotas count; none of root and the group.
    pub fn user(&self) -> Option<u32> {
        (!self.privileged).then_some(self.uid)
    }

    /// As the one who claims.
    pub fn claimant(&self) -> Claimant {
        Claimant {
            uid: self.uid,
            privileged: self.privileged,
        }
    }
}

/// The policy file as one who claims: a user number that no user has.
pub const POLICY: Claimant = Claimant {
    uid: u32::MAX,
    privileged: true,
};

/// Its members may do what root may.
pub const GROUP: &str = "netnice";

//! What can go wrong between a grant and the kernel.

use std::{io, path::PathBuf};

use crate::netlink::NetlinkError;

/// An error of this room. Each names the thing and what to try; a bare number never reaches a person.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// A netlink request failed.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// A file of the system could not be used.
    #[error("{what} ({}): {source}", path.display())]
    File {
        /// What it was needed for.
        what: &'static str,
        /// Which file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// An eBPF program or map was refused.
    #[error("{what}: {reason}; `netnice doctor` says what this kernel offers")]
    Bpf {
        /// What was tried.
        what: String,
        /// The kernel's reason.
        reason: String,
    },
    /// The kernel lacks something without which nothing works.
    #[error("this kernel has no {what}; {hint}")]
    Missing {
        /// What is missing.
        what: &'static str,
        /// What to try.
        hint: &'static str,
    },
    /// The root qdisc of a link belongs to somebody else.
    #[error(
        "{interface} has a root qdisc that is not netnice's ({kind}, handle {handle}); remove it first \
         (`tc qdisc del dev {interface} root`) or leave the link unmanaged"
    )]
    ForeignQdisc {
        /// The link.
        interface: String,
        /// Kind of the qdisc that is there.
        kind: String,
        /// Its handle.
        handle: String,
    },
    /// There is no interface of this name.
    #[error("there is no interface {0} in this network namespace; `ip link` lists them")]
    NoInterface(String),
    /// More interfaces than there is room for.
    #[error(
        "there are {there} interfaces in this network namespace and netnice has room for {most}: limits would not hold \
         on the others; remove some, or move them to another namespace (`ip link` lists them)"
    )]
    TooManyInterfaces {
        /// How many there are.
        there: usize,
        /// For how many there is room.
        most: usize,
    },
    /// A process is gone.
    #[error("process {0} does not exist (any more)")]
    NoProcess(u32),
    /// There is no such cgroup.
    #[error("there is no cgroup {0}; cgroup2 is mounted at {1}")]
    NoCgroup(String, String),
    /// A cgroup lies too deep to be found on the packet path.
    #[error("cgroup {path} lies {depth} levels deep; the limit is {most}")]
    CgroupTooDeep {
        /// The cgroup.
        path: String,
        /// Its depth.
        depth: usize,
        /// The deepest that works.
        most: u32,
    },
    /// There is no such unit.
    #[error(
        "there is no cgroup of unit {0}: is it running? (A unit of a user's own manager is named by its path, as \
         cgroup:/user.slice/…)"
    )]
    NoUnit(String),
    /// There is no such user.
    #[error("there is no user {0}")]
    NoUser(String),
}

impl KernelError {
    /// For aya's errors, whose causes are nested.
    pub(crate) fn bpf(what: impl Into<String>, error: impl std::error::Error) -> Self {
        let mut reason = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let text = cause.to_string();
            if !reason.contains(&text) {
                reason = format!("{reason}: {text}");
            }
            source = cause.source();
        }
        Self::Bpf {
            what: what.into(),
            reason: ends_of(&reason),
        }
    }

    pub(crate) fn file(
        what: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { what, path, source }
    }
}

/// The first line and the last ones: the kernel's verifier tells at the end what it does not like.
fn ends_of(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let (first, rest) = lines.split_at(lines.len().min(1));
    let last = &rest[rest.len().saturating_sub(12)..];
    [first, last].concat().join(" | ")
}

/// The number of the system's error behind one of aya's.
pub(crate) fn number(error: &(dyn std::error::Error + 'static)) -> Option<i32> {
    let mut at = Some(error);
    while let Some(error) = at {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return error.raw_os_error();
        }
        at = error.source();
    }
    None
}

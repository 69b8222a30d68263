//! [`KernelError`], the error of most functions of this crate, and the search for the system error
//! number in a chain of causes.

use std::{io, path::PathBuf};

use crate::netlink::NetlinkError;

/// An operation on the kernel that failed. The text names the attempted operation, or the missing
/// or foreign object, and what the user can do if there is something.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// A netlink request failed.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// A system file could not be used.
    #[error("cannot {what} ({}): {source}", path.display())]
    File {
        /// The attempted operation, as a verb and its object.
        what: &'static str,
        /// The file's path.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The kernel refused an eBPF program or map.
    #[error("cannot {what}: {reason}; `netnice doctor` shows what this kernel offers")]
    Bpf {
        /// The attempted operation, as a verb and its object.
        what: String,
        /// The kernel's reason.
        reason: String,
    },
    /// The kernel lacks a required feature.
    #[error("this kernel has no {what}; {hint}")]
    Missing {
        /// The missing feature.
        what: &'static str,
        /// A suggestion for the user.
        hint: &'static str,
    },
    /// The root qdisc of a link was not made by netnice.
    #[error(
        "{interface} has a root qdisc that is not netnice's ({kind}, handle {handle}); remove it \
         first (`tc qdisc del dev {interface} root`) or leave the link unmanaged"
    )]
    ForeignQdisc {
        /// The link's interface name.
        interface: String,
        /// Kind of the present qdisc.
        kind: String,
        /// Handle of the present qdisc.
        handle: String,
    },
    /// The network namespace has no interface of this name.
    #[error("there is no interface {0} in this network namespace; `ip link` lists them")]
    NoInterface(String),
    /// The namespace has more interfaces than the maps can hold.
    #[error(
        "this network namespace has {count} interfaces, and netnice supports at most {max}: limits \
         would not hold on the others; remove some, or move them to another namespace (`ip link` \
         lists them)"
    )]
    TooManyInterfaces {
        /// Number of interfaces.
        count: usize,
        /// The largest supported number.
        max: usize,
    },
    /// The cgroup does not exist. Fields: the path, and where cgroup2 is mounted.
    #[error("there is no cgroup {0}; cgroup2 is mounted at {1}")]
    NoCgroup(String, String),
    /// The cgroup lies too deep for the lookup on the packet path.
    #[error("cgroup {path} is {depth} levels deep; the limit is {max}")]
    CgroupTooDeep {
        /// The cgroup's path.
        path: String,
        /// The cgroup's depth in levels below the root.
        depth: usize,
        /// The largest supported depth.
        max: u32,
    },
    /// No cgroup of this unit was found. The unit may not be running.
    #[error(
        "there is no cgroup of unit {0}: is it running? (A unit of a user's own manager is named \
         by its path, as cgroup:/user.slice/…)"
    )]
    NoUnit(String),
    /// The system has no user of this name.
    #[error("there is no user {0}")]
    NoUser(String),
}

impl KernelError {
    /// Converts an error of aya, including its nested causes.
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
            reason: shortened_log(&reason),
        }
    }

    /// Makes the conversion of an I/O error on this file to [`KernelError::File`].
    pub(crate) fn file(
        what: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { what, path, source }
    }
}

/// The first line and the last 12 lines. The verifier reports the reason of a refusal at the end of
/// its log.
fn shortened_log(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let (first, rest) = lines.split_at(lines.len().min(1));
    let last = &rest[rest.len().saturating_sub(12)..];
    [first, last].concat().join(" | ")
}

/// The system error number (errno) in the causes of an error; `None` if no cause has one.
pub(crate) fn errno(error: &(dyn std::error::Error + 'static)) -> Option<i32> {
    let mut at = Some(error);
    while let Some(error) = at {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return error.raw_os_error();
        }
        at = error.source();
    }
    None
}

//! The crates of the design: the crates that each may use, the foreign crates that belong to one
//! crate, and the files that may contain `unsafe`.
//!
//! The table is that of the design in `docs/internals/architecture.md`, with crates that are not
//! built yet; the two must be kept equal.

use crate::tidy::Complaint;
use crate::tree::Crate;

/// One crate of this project.
struct Room {
    name: &'static str,
    /// The layer. Crates of layer 0 use no other crate of this project; no crate uses those of the
    /// highest layer.
    rank: u8,
    may_use: MayUse,
    /// True if the crate is for tests: the tests of every crate may use it, and no built code.
    for_tests: bool,
}

enum MayUse {
    /// Only these crates.
    Only(&'static [&'static str]),
    /// All crates of lower layers.
    AnythingBelow,
}

/// Complains about every dependency that does not go to a lower layer.
pub fn edges(crates: &[Crate]) -> Vec<Complaint> {
    let mut found = Vec::new();
    for one in crates {
        let Some(room) = room(&one.name) else {
            let what =
                "is not in the table of rooms (xtask/src/tidy/rooms.rs); give it a rank first";
            found.push(Complaint::new(&one.name, what));
            continue;
        };
        for used in &one.uses {
            let in_tests = !one.built_of.contains(used);
            if let Some(what) = room.refuses(used, in_tests) {
                found.push(Complaint::new(&one.name, what));
            }
        }
    }
    found
}

/// True if the file may contain `unsafe`.
pub fn may_be_unsafe(place: &str) -> bool {
    UNSAFE
        .iter()
        .any(|allowed| match allowed.strip_suffix('/') {
            Some(_) => place.starts_with(allowed),
            None => place == *allowed,
        })
}

/// True for the crates that test and build, where errors need no type because they are only
/// printed.
pub fn is_proof(place: &str) -> bool {
    ["crates/lab/", "xtask/", "fuzz/"]
        .iter()
        .any(|folder| place.starts_with(folder))
}

impl Room {
    fn refuses(&self, used: &str, in_tests: bool) -> Option<String> {
        if let Some(other) = room(used) {
            if other.for_tests {
                return (!in_tests).then(|| format!("may use {used} in its tests alone"));
            }
            let listed = match self.may_use {
                MayUse::Only(names) => names.contains(&used),
                MayUse::AnythingBelow => other.rank < self.rank,
            };
            return (!listed).then(|| {
                let (own, others) = (self.rank, other.rank);
                format!(
                    "(rank {own}) may not use {used} (rank {others}): not in its \"may use\" column"
                )
            });
        }
        let (_, owners) = BELONGS.iter().find(|(outside, _)| *outside == used)?;
        let free = matches!(self.may_use, MayUse::AnythingBelow) || owners.contains(&self.name);
        (!free).then(|| format!("may not use {used}: it belongs to {}", owners.join(", ")))
    }
}

fn room(name: &str) -> Option<&'static Room> {
    ROOMS.iter().find(|room| room.name == name)
}

const fn only(name: &'static str, rank: u8, uses: &'static [&'static str]) -> Room {
    Room {
        name,
        rank,
        may_use: MayUse::Only(uses),
        for_tests: false,
    }
}

const fn for_tests(name: &'static str) -> Room {
    Room {
        for_tests: true,
        ..only(name, 0, &[])
    }
}

const fn top(name: &'static str) -> Room {
    Room {
        name,
        rank: 4,
        may_use: MayUse::AnythingBelow,
        for_tests: false,
    }
}

const CORE: &str = "netnice-core";
const RING: &str = "netnice-ring";
const API: &str = "netnice-api";
const KERNEL: &str = "netnice-kernel";
const STACK: &str = "netnice-stack";
const SHARE: &str = "netnice-share";

const ROOMS: &[Room] = &[
    only(CORE, 0, &[]),
    only(RING, 0, &[]),
    for_tests("netnice-cases"),
    for_tests("netnice-documents"),
    only(API, 1, &[CORE]),
    only("netnice-sim", 1, &[CORE]),
    only(KERNEL, 1, &[CORE]),
    only("netnice-driver", 2, &[CORE, RING, API, KERNEL]),
    only(STACK, 2, &[CORE, RING, API]),
    only("netnice-daemon", 2, &[CORE, API, KERNEL]),
    only("netnice-channel", 3, &[CORE, RING, API, STACK]),
    only("netnice-capi", 3, &[CORE, RING, API, STACK]),
    only(SHARE, 3, &[CORE, API]),
    only("netnice-cli", 3, &[CORE, API, SHARE]),
    top("netnice-lab"),
    top("netnice-fuzz"),
    top("xtask"),
];

/// Foreign crates, each with the crates whose purpose is their use. Crates of the highest layer may
/// use all of them.
const BELONGS: &[(&str, &[&str])] = &[
    ("aya", &[KERNEL]),
    ("netlink-packet-core", &[KERNEL]),
    ("netlink-packet-route", &[KERNEL]),
    ("netlink-sys", &[KERNEL]),
    ("smoltcp", &[STACK]),
    ("ratatui", &["netnice-cli"]),
    // The stack uses it only in an example, which shows that tokio can wait for the stack's
    // descriptor.
    ("tokio", &["netnice-daemon", SHARE, "netnice-cli", STACK]),
];

/// Folders (ending in `/`) and files that may contain `unsafe`: the crates of system calls and
/// shared memory, and some single files.
const UNSAFE: &[&str] = &[
    "crates/core/src/prefetch.rs",
    "crates/core/benches/scheduler/clock.rs",
    "crates/ring/",
    "crates/kernel/",
    "crates/driver/",
    "crates/capi/",
    "crates/lab/src/sys.rs",
    "crates/lab/src/wire/ring.rs",
];

#[cfg(test)]
mod tests;

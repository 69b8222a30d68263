//! The rooms of the design: who may use whom, which outside crates belong to one room, and where `unsafe`
//! may stand.
//!
//! The table is the design's, with the rooms that are still to be built; it is read by
//! `docs/internals/architecture.md`'s readers too, so keep the two alike.

use crate::tidy::Complaint;
use crate::tree::Crate;

/// One crate of ours.
struct Room {
    name: &'static str,
    /// Rooms of rank 0 use nothing of ours; nobody uses those of the highest rank.
    rank: u8,
    may_use: MayUse,
    /// What it has is for tests: those of every room may use it, and nothing that is built for others.
    for_tests: bool,
}

enum MayUse {
    /// These and no others.
    Only(&'static [&'static str]),
    /// Whatever has a lower rank.
    AnythingBelow,
}

/// Complains about every dependency that does not go down.
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

/// True if `unsafe` may stand in this file.
pub fn may_be_unsafe(place: &str) -> bool {
    UNSAFE
        .iter()
        .any(|allowed| match allowed.strip_suffix('/') {
            Some(_) => place.starts_with(allowed),
            None => place == *allowed,
        })
}

/// True for the rooms that prove and build, where an error only has to be read.
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

/// Outside crates whose use is what a room is for. Rooms of the highest rank are free.
const BELONGS: &[(&str, &[&str])] = &[
    ("aya", &[KERNEL]),
    ("netlink-packet-core", &[KERNEL]),
    ("netlink-packet-route", &[KERNEL]),
    ("netlink-sys", &[KERNEL]),
    ("smoltcp", &[STACK]),
    ("ratatui", &["netnice-cli"]),
    // The stack has it in an example only, which shows that its descriptor is one that tokio waits for.
    ("tokio", &["netnice-daemon", SHARE, "netnice-cli", STACK]),
];

/// Folders (ending in `/`) and files in which `unsafe` may stand: the rooms that are made of system calls
/// and shared memory, and a few files by name elsewhere.
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

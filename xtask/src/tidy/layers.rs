//! Checks the layers of the crates: which crates each crate may use, and which foreign crates are
//! reserved for some crates. It also lists the files that may contain `unsafe`, and the folders
//! that may use `anyhow`. No call fails; a violation is a complaint.
//!
//! [`RULES`] is the table of crates in `docs/internals/architecture.md`; both must change together.

use crate::tidy::Complaint;
use crate::tree::Crate;

/// What one crate of this project may use.
struct CrateRule {
    name: &'static str,
    /// The layer. Crates of layer 0 use no other crate of this project; no crate uses those of the
    /// highest layer.
    layer: u8,
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

/// Complains about each crate that is not in the table, and about each dependency that the rules do
/// not allow: a crate of this project that is not in the "may use" column, a test crate outside
/// tests, or a foreign crate that is reserved for other crates.
pub fn edges(crates: &[Crate]) -> Vec<Complaint> {
    let mut found = Vec::new();
    for one in crates {
        let Some(rule) = rule_of(&one.name) else {
            let what = "has no layer: add it to the table in xtask/src/tidy/layers.rs";
            found.push(Complaint::new(&one.name, what));
            continue;
        };
        for used in &one.dependencies {
            let in_tests = !one.build_dependencies.contains(used);
            if let Some(what) = rule.refusal(used, in_tests) {
                found.push(Complaint::new(&one.name, what));
            }
        }
    }
    found
}

/// True if the file with this path from the root of the tree may contain `unsafe`.
pub fn may_be_unsafe(place: &str) -> bool {
    UNSAFE
        .iter()
        .any(|allowed| match allowed.strip_suffix('/') {
            Some(_) => place.starts_with(allowed),
            None => place == *allowed,
        })
}

/// True for the files of lab, xtask and fuzz: there errors need no type because they are only
/// printed. `place` is the path from the root of the tree.
pub fn may_use_anyhow(place: &str) -> bool {
    ["crates/lab/", "xtask/", "fuzz/"]
        .iter()
        .any(|folder| place.starts_with(folder))
}

impl CrateRule {
    /// Why this crate may not use another one; `None` if it may.
    fn refusal(&self, used: &str, in_tests: bool) -> Option<String> {
        if let Some(other) = rule_of(used) {
            if other.for_tests {
                return (!in_tests).then(|| format!("may use {used} only in its tests"));
            }
            let listed = match self.may_use {
                MayUse::Only(names) => names.contains(&used),
                MayUse::AnythingBelow => other.layer < self.layer,
            };
            return (!listed).then(|| {
                let (own, others) = (self.layer, other.layer);
                format!(
                    "(layer {own}) may not use {used} (layer {others}): it is not in the \
                     \"may use\" column"
                )
            });
        }
        let (_, owners) = RESERVED.iter().find(|(foreign, _)| *foreign == used)?;
        let may_use = matches!(self.may_use, MayUse::AnythingBelow) || owners.contains(&self.name);
        (!may_use).then(|| {
            let owners = owners.join(", ");
            format!("may not use {used}: it is reserved for {owners}")
        })
    }
}

fn rule_of(name: &str) -> Option<&'static CrateRule> {
    RULES.iter().find(|rule| rule.name == name)
}

const fn only(name: &'static str, layer: u8, uses: &'static [&'static str]) -> CrateRule {
    CrateRule {
        name,
        layer,
        may_use: MayUse::Only(uses),
        for_tests: false,
    }
}

const fn for_tests(name: &'static str) -> CrateRule {
    CrateRule {
        for_tests: true,
        ..only(name, 0, &[])
    }
}

const fn highest(name: &'static str) -> CrateRule {
    CrateRule {
        name,
        layer: 5,
        may_use: MayUse::AnythingBelow,
        for_tests: false,
    }
}

const CORE: &str = "netnice-core";
const RING: &str = "netnice-ring";
const API: &str = "netnice-api";
const KERNEL: &str = "netnice-kernel";
const TCP: &str = "netnice-tcp";
const STACK: &str = "netnice-stack";
const SHARE: &str = "netnice-share";
const CHANNEL: &str = "netnice-channel";
const PEER: &str = "netnice-peer";

const RULES: &[CrateRule] = &[
    only(CORE, 0, &[]),
    only(RING, 0, &[]),
    only(TCP, 0, &[]),
    for_tests("netnice-cases"),
    for_tests("netnice-documents"),
    for_tests("netnice-scripts"),
    only(API, 1, &[CORE]),
    only("netnice-sim", 1, &[CORE]),
    only(KERNEL, 1, &[CORE]),
    only("netnice-driver", 2, &[CORE, RING, API, KERNEL]),
    only(STACK, 2, &[CORE, RING, TCP, API]),
    only("netnice-daemon", 2, &[CORE, API, KERNEL]),
    only(CHANNEL, 3, &[CORE, RING, API, STACK]),
    only(PEER, 4, &[CORE, RING, API, STACK, CHANNEL]),
    only("netnice-capi", 4, &[CORE, RING, TCP, API, STACK, CHANNEL]),
    only(SHARE, 2, &[CORE, API]),
    only("netnice-cli", 5, &[CORE, API, STACK, SHARE, CHANNEL, PEER]),
    highest("netnice-lab"),
    highest("netnice-fuzz"),
    highest("xtask"),
];

/// Reserved foreign crates, each with the crates that may use it. Crates of the highest layer may
/// use all of them.
const RESERVED: &[(&str, &[&str])] = &[
    ("aya", &[KERNEL]),
    ("netlink-packet-core", &[KERNEL]),
    ("netlink-packet-route", &[KERNEL]),
    ("netlink-sys", &[KERNEL]),
    // Tests of the TCP connect it with this one.
    ("smoltcp", &[TCP]),
    ("ratatui", &["netnice-cli"]),
    // The stack uses it only in an example, which shows that tokio can wait for the stack's
    // descriptor.
    (
        "tokio",
        &["netnice-daemon", SHARE, "netnice-cli", STACK, PEER],
    ),
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
    "crates/peer/src/kernel_clock.rs",
    "crates/lab/src/sys.rs",
    "crates/lab/src/wire/ring.rs",
];

#[cfg(test)]
mod tests;

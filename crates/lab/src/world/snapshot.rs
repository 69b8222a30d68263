//! Takes a snapshot of the kernel state that netnice could change, to compare before with after.
//! [`Snapshot::take`] fails if a command that lists objects fails.
//!
//! Every object is one line of text under a heading. Of each namespace the interfaces, filters,
//! classes, queueing disciplines, routes, rules and sysctls are recorded. Counters and times are
//! left out, so two snapshots differ only if a recorded object was added, removed or changed. Of
//! files, mounts and cgroups only the path is recorded, and of eBPF objects only number, type and
//! name. Objects without a namespace (eBPF, cgroups, mounts except those of named network
//! namespaces) are recorded for the whole machine: if another program makes such objects meanwhile,
//! they are in the difference. eBPF objects are recorded only if bpftool is installed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Netns, World, cleanup};
use crate::process;

/// A snapshot of kernel state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot(BTreeMap<String, BTreeSet<String>>);

impl Snapshot {
    /// Records every namespace of `world`, its folder, and the objects of the whole machine. Fails
    /// if a listing command fails.
    pub fn take(world: &World) -> Result<Snapshot> {
        let mut snapshot = Snapshot(BTreeMap::new());
        for ns in world.namespaces() {
            snapshot.add_namespace(ns)?;
        }
        snapshot.add_machine()?;
        snapshot.add_files(world.folder(), world.folder());
        Ok(snapshot)
    }

    /// The lines in which the snapshots differ: `+` is only in `later`, `-` only in this one.
    pub fn difference(&self, later: &Snapshot) -> Vec<String> {
        let none = BTreeSet::new();
        let headings: BTreeSet<&String> = self.0.keys().chain(later.0.keys()).collect();
        let mut lines = Vec::new();
        for heading in headings {
            let before = self.0.get(heading).unwrap_or(&none);
            let after = later.0.get(heading).unwrap_or(&none);
            lines.extend(
                before
                    .difference(after)
                    .map(|l| format!("- {heading}: {l}")),
            );
            lines.extend(
                after
                    .difference(before)
                    .map(|l| format!("+ {heading}: {l}")),
            );
        }
        lines
    }

    fn insert(&mut self, heading: &str, line: String) {
        self.0.entry(heading.to_owned()).or_default().insert(line);
    }

    fn add_namespace(&mut self, ns: &Netns) -> Result<()> {
        let name = ns.name();
        let links = json(ns.command("ip").args(["-j", "-d", "link"]))?;
        for link in items(&links) {
            let of = |key: &str| link.get(key).cloned().unwrap_or(Value::Null);
            let device = of("ifname").as_str().unwrap_or_default().to_owned();
            self.insert(
                &format!("{name} links"),
                format!(
                    "{device} kind {} mtu {} flags {} qdisc {} address {}",
                    link.pointer("/linkinfo/info_kind").unwrap_or(&Value::Null),
                    of("mtu"),
                    of("flags"),
                    of("qdisc"),
                    of("address")
                ),
            );
            for hook in ["root", "ingress", "egress"] {
                let filters = json(
                    ns.command("tc")
                        .args(["-j", "filter", "show", "dev", &device, hook]),
                )?;
                for filter in items(&filters) {
                    self.insert(
                        &format!("{name} filters"),
                        format!("{device} {hook} {filter}"),
                    );
                }
            }
            // tc prints classes as JSON only since iproute2 6.2; as text they are one per line.
            for class in ns.tc(&format!("class show dev {device}"))?.lines() {
                self.insert(
                    &format!("{name} classes"),
                    format!("{device} {}", class.trim()),
                );
            }
        }
        for (heading, program, args) in NAMESPACE_LISTINGS {
            let listed = json(ns.command(program).args(args.split(' ')))?;
            for item in items(&listed) {
                self.insert(&format!("{name} {heading}"), item.to_string());
            }
        }
        let sysctls = ns.enter(|| Ok(sysctls(Path::new("/proc/sys/net"))))?;
        self.0.insert(format!("{name} sysctls"), sysctls);
        Ok(())
    }

    fn add_machine(&mut self) -> Result<()> {
        if process::installed("bpftool") {
            for kind in ["prog", "map", "link"] {
                let listed = bpf_objects(kind)?;
                for item in items(&listed) {
                    let of = |key: &str| item.get(key).cloned().unwrap_or(Value::Null);
                    self.insert(
                        &format!("bpf {kind}s"),
                        format!("id {} type {} name {}", of("id"), of("type"), of("name")),
                    );
                }
            }
        }
        if let Some(root) = cleanup::cgroup_root() {
            self.add_folders("cgroups", &root, &root);
        }
        for mount in cleanup::mounts_below(Path::new("/")) {
            // Other runs of the lab start and end at any time; their namespaces are mounts too.
            let theirs = mount.starts_with("/run/netns") || mount.starts_with("/var/run/netns");
            if !theirs {
                self.insert("mounts", mount.display().to_string());
            }
        }
        Ok(())
    }

    fn add_files(&mut self, root: &Path, folder: &Path) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let shown = path
                .strip_prefix(root)
                .unwrap_or(&path)
                .display()
                .to_string();
            self.insert("files", shown);
            if path.is_dir() && !path.is_symlink() {
                self.add_files(root, &path);
            }
        }
    }

    fn add_folders(&mut self, heading: &str, root: &Path, folder: &Path) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() && !path.is_symlink() {
                let shown = path
                    .strip_prefix(root)
                    .unwrap_or(&path)
                    .display()
                    .to_string();
                self.insert(heading, shown);
                self.add_folders(heading, root, &path);
            }
        }
    }
}

/// All eBPF objects of a kind. If an object is removed during the listing, bpftool fails; the
/// listing is then repeated.
fn bpf_objects(kind: &str) -> Result<Value> {
    let list = || json(Command::new("bpftool").args(["-j", kind, "show"]));
    for _ in 0..20 {
        if let Ok(listed) = list() {
            return Ok(listed);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    list()
}

/// Listings inside a namespace, one object per item: heading, program, arguments.
const NAMESPACE_LISTINGS: [(&str, &str, &str); 4] = [
    ("qdiscs", "tc", "-j qdisc show"),
    ("routes", "ip", "-j route show table all"),
    ("routes v6", "ip", "-j -6 route show table all"),
    ("rules", "ip", "-j rule show"),
];

/// The readable settings below a folder of /proc/sys, one `key = value` each.
fn sysctls(folder: &Path) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            all.append(&mut sysctls(&path));
        } else if let Ok(value) = std::fs::read_to_string(&path) {
            all.insert(format!("{} = {}", path.display(), value.trim()));
        }
    }
    all
}

fn json(command: &mut Command) -> Result<Value> {
    let text = process::run(command)?;
    if text.trim().is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_str(text.trim()).with_context(|| format!("no JSON: {text}"))
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

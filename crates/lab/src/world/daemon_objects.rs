//! Lists all objects of the kinds that a daemon makes in its network namespace and runtime folder,
//! as lines of text ([`list`]), and the entries of the daemon's eBPF maps ([`map_entries`], which
//! never fails). [`list`] fails if `ip` or `tc` fails, or if a setting cannot be read.
//!
//! Unlike a [`super::Snapshot`], the list has no objects of the whole machine, and no numbers that
//! the kernel assigns (handles of queues, indexes of interfaces). The objects of two daemons can
//! therefore be compared line by line.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use serde_json::Value;

use super::Netns;
use crate::process;

/// The objects of a daemon, one per line: all interfaces, qdiscs and classes of its namespace `ns`,
/// the settings of lo that a limit changes, and the files of its runtime folder `runtime`. Fails if
/// `ip` or `tc` fails, or if a setting cannot be read.
pub fn list(ns: &Netns, runtime: &Path) -> Result<BTreeSet<String>> {
    let links = ns.ip("-o link")?;
    let mut names = Vec::new();
    for line in links.lines() {
        let mut words = line.split(": ");
        let (index, name, rest) = (words.next(), words.next(), words.next());
        let name = name.and_then(|name| name.split('@').next());
        // `<BROADCAST,NOARP,UP,LOWER_UP> mtu 1500 …`
        let flags = rest.and_then(|rest| rest.split(" qdisc").next());
        names.extend(index.zip(name).zip(flags));
    }
    let mut found = BTreeSet::new();
    for ((_, name), flags) in &names {
        let shown = without_index(name);
        found.insert(format!("interface {shown} {flags}"));
        let classes = ns.tc(&format!("class show dev {name}"))?;
        // fq_codel lists the flows with waiting packets as its classes.
        for class in classes.lines().filter(|line| !line.contains("fq_codel")) {
            let mut words: Vec<&str> = class.split_whitespace().collect();
            if let Some(leaf) = words.iter().position(|word| *word == "leaf") {
                words.drain(leaf..(leaf + 2).min(words.len()));
            }
            found.insert(format!("class of {shown}: {}", words.join(" ")));
        }
        for queue in ns.tc(&format!("qdisc show dev {name}"))?.lines() {
            let mut words: Vec<&str> = queue.split_whitespace().collect();
            // netnice's own handles begin with `4e`.
            if words.len() > 2 && !words[2].starts_with("4e") {
                words.remove(2);
            }
            if let Some(count) = words.iter().position(|w| *w == "direct_packets_stat") {
                words.drain(count..(count + 2).min(words.len()));
            }
            found.insert(format!("queue of {shown}: {}", words.join(" ")));
        }
    }
    for setting in SETTINGS_OF_LO {
        let path = format!("/proc/sys/net/ipv4/conf/lo/{setting}");
        let value = ns.enter(|| Ok(std::fs::read_to_string(&path)?))?;
        found.insert(format!("lo {setting} {}", value.trim()));
    }
    let mut files = Vec::new();
    list_files(runtime, runtime, &mut files);
    // The drivers' folder stays until the daemon ends, but without files.
    files.retain(|file| file != "drivers");
    for file in files {
        // Names of pins of interfaces contain the interface's index.
        let named = names.iter().find_map(|((index, name), _)| {
            let name = without_index(name);
            if *file == format!("clsact-{index}") {
                return Some(format!("clsact {name}"));
            }
            let rest = file.strip_prefix(&format!("bpf/link_if{index}_"))?;
            Some(format!("bpf/link_if {name} {rest}"))
        });
        found.insert(format!("file {}", named.unwrap_or(file)));
    }
    Ok(found)
}

/// The entries of one of the daemon's pinned maps, one text for each: the map's name, the key and
/// the value as bpftool prints them. Empty if there is no bpftool or no map, or if bpftool fails.
pub fn map_entries(runtime: &Path, map: &str) -> BTreeSet<String> {
    let pin = runtime.join("bpf").join(map);
    if !process::installed("bpftool") || !pin.exists() {
        return BTreeSet::new();
    }
    let mut bpftool = Command::new("bpftool");
    bpftool.args(["-j", "map", "dump", "pinned"]).arg(&pin);
    let dumped = process::run(&mut bpftool).unwrap_or_default();
    let dumped: Value = serde_json::from_str(dumped.trim()).unwrap_or_default();
    let entries = dumped.as_array().into_iter().flatten();
    entries
        .map(|entry| format!("{map} \"key\":{} {}", entry["key"], entry["value"]))
        .collect()
}

/// A 32-bit map key as bpftool prints it in JSON: a list of its bytes in the machine's byte order.
pub fn map_key(number: u32) -> String {
    let bytes = number.to_ne_bytes().map(|byte| format!("\"0x{byte:02x}\""));
    format!("[{}]", bytes.join(","))
}

/// Settings of lo that a limit changes while it is in force.
const SETTINGS_OF_LO: [&str; 2] = ["accept_local", "route_localnet"];

/// All files below a folder.
fn list_files(root: &Path, folder: &Path, into: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let shown = path.strip_prefix(root).unwrap_or(&path);
        into.push(shown.display().to_string());
        if path.is_dir() {
            list_files(root, &path, into);
        }
    }
}

/// Strips the index from the name of an interface's receive stage, as in `nnd12`.
fn without_index(name: &str) -> &str {
    match name.starts_with("nnd") || name.starts_with("nne") {
        true => name.trim_end_matches(char::is_numeric),
        false => name,
    }
}

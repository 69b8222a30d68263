//! Tests that contracts in unit files are found and merged as systemd merges unit files.

use std::os::unix::fs::symlink;

use netnice_core::contract::{Contract, Direction};

use super::*;

/// The folders of unit files of one test, in order of precedence.
struct Folders {
    root: PathBuf,
    path: Vec<PathBuf>,
}

impl Folders {
    fn new(name: &str) -> Folders {
        let name = format!("netnice-units-{}-{name}", std::process::id());
        let root = std::env::temp_dir().join(name);
        let path = vec![root.join("etc"), root.join("run"), root.join("lib")];
        let folders = Folders { root, path };
        for folder in &folders.path {
            fs::create_dir_all(folder).expect("a folder");
        }
        folders
    }

    /// Writes a file; a text without a section's head becomes the body of `[X-Netnice]`.
    fn with(&self, file: &str, text: &str) -> &Folders {
        let file = self.root.join(file);
        fs::create_dir_all(file.parent().expect("a folder")).expect("folders");
        let text = match text.contains('[') {
            true => text.to_owned(),
            false => format!("[Unit]\nDescription=a unit\n[X-Netnice]\n{text}\n"),
        };
        fs::write(file, text).expect("a file");
        self
    }

    fn linked(&self, file: &str, to: &str) -> &Folders {
        let file = self.root.join(file);
        fs::create_dir_all(file.parent().expect("a folder")).expect("folders");
        symlink(to, file).expect("a link");
        self
    }

    fn read(&self, running: &[&str]) -> Units {
        read(
            &self.path,
            &running.iter().map(ToString::to_string).collect(),
        )
    }
}

impl Drop for Folders {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// The target and contract of each rule.
fn contracts(units: &Units) -> Vec<(String, String)> {
    let pair = |rule: &Rule| (rule.target.to_string(), rule.contract.to_string());
    units.rules.iter().map(pair).collect()
}

fn pairs(of: &[(&str, &str)]) -> Vec<(String, String)> {
    let own = |(unit, contract): &(&str, &str)| (format!("unit:{unit}"), contract.to_string());
    of.iter().map(own).collect()
}

#[test]
fn drop_ins_override_the_units_own_file_in_the_order_of_their_names() {
    let folders = Folders::new("order");
    folders
        .with(
            "lib/web.service",
            "NetworkUpMax=1mbit\nNetworkDownMax=9mbit",
        )
        .with("lib/web.service.d/20-a.conf", "NetworkUpMax=2mbit")
        .with(
            "etc/web.service.d/10-b.conf",
            "NetworkUpMax=3mbit\nNetworkBurst=7ms",
        )
        .with("lib/web.service.d/30-c.conf", "NetworkDownMax=");
    let units = folders.read(&[]);
    assert_eq!(
        contracts(&units),
        pairs(&[("web.service", "up 2mbit burst 7ms")])
    );
    let from = &units.rules[0].name;
    assert!(
        from.starts_with(SECTION) && from.ends_with("web.service.d/20-a.conf"),
        "{from}"
    );
    assert!(units.faults.is_empty() && !units.shared);
}

#[test]
fn the_first_folder_wins_for_files_of_one_name_and_a_mask_has_no_effect() {
    let folders = Folders::new("masks");
    folders
        .with("lib/web.service", "NetworkUpMax=1mbit")
        .with("etc/web.service", "NetworkUpMax=2mbit")
        .with("lib/web.service.d/50.conf", "NetworkDownMax=1mbit")
        .with("run/web.service.d/50.conf", "NetworkDownMax=2mbit")
        .with("lib/a.service", "NetworkUpMax=1mbit")
        .linked("etc/a.service", "/dev/null")
        .with("lib/b.service", "NetworkUpMax=1mbit")
        .with("lib/b.service.d/50.conf", "NetworkUpMax=5mbit")
        .linked("etc/b.service.d/50.conf", "/dev/null");
    let units = folders.read(&[]);
    let wants = [
        ("b.service", "up 1mbit"),
        ("web.service", "up 2mbit down 2mbit"),
    ];
    assert_eq!(contracts(&units), pairs(&wants));
}

#[test]
fn a_unit_inherits_from_its_template_its_prefixes_and_its_type() {
    let folders = Folders::new("inherit");
    folders
        .with("lib/vpn@.service", "NetworkUpMax=1mbit")
        .with("etc/vpn@b.service.d/x.conf", "NetworkUpMax=2mbit")
        .linked("etc/multi.wants/vpn@c.service", "../../lib/vpn@.service")
        .with("lib/job-night-backup.service", "[Service]\nExecStart=true")
        .with("etc/job-night-.service.d/x.conf", "NetworkDownMax=1mbit")
        .with("etc/job-.service.d/x.conf", "NetworkDownMax=7mbit")
        .with("etc/job-.service.d/y.conf", "NetworkUpMax=7mbit")
        .with("lib/a.slice", "[Slice]")
        .with("etc/slice.d/x.conf", "NetworkMax=3mbit");
    let units = folders.read(&["vpn@d.service", "other.service"]);
    let wants = [
        ("a.slice", "both 3mbit"),
        ("job-night-backup.service", "up 7mbit down 1mbit"),
        ("vpn@b.service", "up 2mbit"),
        ("vpn@c.service", "up 1mbit"),
        ("vpn@d.service", "up 1mbit"),
    ];
    assert_eq!(contracts(&units), pairs(&wants));
    assert!(units.shared);
}

#[test]
fn drop_ins_of_an_alias_apply_to_its_unit() {
    let folders = Folders::new("alias");
    folders
        .with("lib/real.service", "NetworkUpMax=1mbit")
        .linked("etc/other.service", "../lib/real.service")
        .with("etc/other.service.d/x.conf", "NetworkDownMax=2mbit");
    let units = folders.read(&[]);
    assert_eq!(
        contracts(&units),
        pairs(&[("real.service", "up 1mbit down 2mbit")])
    );
}

#[test]
fn drop_ins_of_one_name_count_in_the_order_of_the_service_manager() {
    let folders = Folders::new("precedence");
    folders
        .with("lib/job-a.service", "[Service]\nExecStart=true")
        // The search path comes before the more specific name, and that before the type.
        .with("lib/job-a.service.d/x.conf", "NetworkUpMax=1mbit")
        .with("etc/job-.service.d/x.conf", "NetworkUpMax=2mbit")
        .with("etc/service.d/x.conf", "NetworkUpMax=3mbit")
        .with("etc/job-a.service.d/y.conf", "NetworkDownMax=1mbit")
        .with("etc/job-.service.d/y.conf", "NetworkDownMax=2mbit")
        // The unit's own folders come before those of an alias.
        .linked("etc/alias.service", "../lib/real.service")
        .with("lib/real.service", "[Service]\nExecStart=true")
        .with("lib/real.service.d/x.conf", "NetworkUpMax=4mbit")
        .with("etc/alias.service.d/x.conf", "NetworkUpMax=5mbit");
    let wants = [
        ("job-a.service", "up 2mbit down 1mbit"),
        ("real.service", "up 4mbit"),
    ];
    assert_eq!(contracts(&folders.read(&[])), pairs(&wants));
}

#[test]
fn an_instance_inherits_from_prefixes_and_aliases_of_its_template() {
    let folders = Folders::new("instance");
    folders
        .with("lib/a-b@.service", "[Service]\nExecStart=true")
        .with("etc/a-@.service.d/x.conf", "NetworkUpMax=1mbit")
        .linked("lib/other@.service", "a-b@.service")
        .with("etc/other@.service.d/y.conf", "NetworkDownMax=2mbit");
    let units = folders.read(&["a-b@1.service"]);
    assert_eq!(
        contracts(&units),
        pairs(&[("a-b@1.service", "up 1mbit down 2mbit")])
    );
}

#[test]
fn sections_of_prefixes_and_types_apply_to_the_units_that_run() {
    for folder in ["user-.slice.d", "slice.d"] {
        let folders = Folders::new("shared");
        folders.with(&format!("etc/{folder}/x.conf"), "NetworkUpMax=1mbit");
        let units = folders.read(&["user-1000.slice"]);
        assert_eq!(contracts(&units), pairs(&[("user-1000.slice", "up 1mbit")]));
        assert!(units.shared, "{folder}: the rules follow the running units");
    }
    let folders = Folders::new("dot");
    folders.with("etc/home-.snapshots.mount", "NetworkUpMax=1mbit");
    let units = folders.read(&[]);
    assert_eq!(
        contracts(&units),
        pairs(&[("home-.snapshots.mount", "up 1mbit")])
    );
    assert!(!units.shared);
}

#[test]
fn folders_with_links_to_enabled_units_are_watched() {
    let folders = Folders::new("wants");
    folders.with("lib/vpn@.service", "NetworkUpMax=1mbit");
    for end in ["wants", "requires", "upholds"] {
        let link = format!("etc/multi.target.{end}/vpn@{end}.service");
        folders.linked(&link, "../../lib/vpn@.service");
    }
    let units = folders.read(&[]);
    assert_eq!(units.rules.len(), 3);
    for end in ["wants", "requires", "upholds"] {
        let folder = folders.root.join(format!("etc/multi.target.{end}"));
        assert!(units.folders.contains(&folder), "{end}");
    }
}

#[test]
fn every_key_sets_its_clause() {
    let folders = Folders::new("keys");
    let text = "NetworkUpMax=40mbit\nNetworkDownMax=30mbit\nNetworkUpMin=4mbit\n\
                NetworkDownMin=3mbit\nNetworkLink=eth0\nNetworkWeight=300\n\
                NetworkPriority=2\nNetworkBurst=9ms\n\
                NetworkDSCP=AF21";
    folders
        .with("etc/a.service", text)
        .with("etc/b.service", "NetworkMax=1mbit")
        .with(
            "etc/c.service",
            "NetworkSlice=2ms/50ms\nNetworkSliceExtra=yes\nNetworkLink=eth0",
        )
        .with(
            "etc/d.service",
            "[X-Netnice]\nNetworkUpMax=4mbit \\\n# between\n\n[X-Other]\nNetworkUpMax=1mbit\n",
        )
        .with("etc/e.service", "NetworkUpMax=4mbit\nNetworkUpMax=infinity")
        .with("etc/f.service", "NetworkYield=yes\nNetworkDSCP=46")
        .with("etc/g.service", "NetworkUpMax=4mbit\nNetworkYield=no");
    let units = folders.read(&[]);
    assert!(units.faults.is_empty(), "{:?}", units.faults);
    let names: Vec<String> = contracts(&units)
        .into_iter()
        .map(|(unit, _)| unit)
        .collect();
    assert_eq!(
        names,
        [
            "unit:a.service",
            "unit:b.service",
            "unit:c.service",
            "unit:d.service",
            "unit:f.service",
            "unit:g.service"
        ]
    );
    let of = |n: usize| -> &Contract { &units.rules[n].contract };
    let mbit =
        |rate: Option<netnice_core::units::Rate>| rate.map(|r| r.bits_per_second() / 1_000_000);
    assert_eq!(mbit(of(0).up()), Some(40));
    assert_eq!(mbit(of(0).down()), Some(30));
    assert_eq!(mbit(of(0).min(Direction::Up)), Some(4));
    assert_eq!(mbit(of(0).min(Direction::Down)), Some(3));
    assert_eq!(of(0).on().map(ToString::to_string).as_deref(), Some("eth0"));
    assert_eq!(of(0).weight().map(|w| w.get()), Some(300));
    assert_eq!(of(0).priority().map(|p| p.get()), Some(2));
    assert!(of(0).to_string().contains("burst 9ms"));
    assert_eq!(mbit(of(1).both()), Some(1));
    assert!(of(2).slice().is_some_and(|slice| slice.extra()));
    assert_eq!(mbit(of(3).up()), Some(4), "a line that goes on");
}

#[test]
fn an_invalid_section_is_reported_with_file_and_line_and_affects_only_its_unit() {
    let faults = [
        ("NetworkUpMax=4mbps", 4, "mbps"),
        ("NetworkUpMax=400", 4, "unit"),
        ("NetworkUpMax=4mbit\nNetworkUpMaximum=1mbit", 5, "not a key"),
        ("NetworkUpMax", 4, "Key=value"),
        (
            "NetworkUpMax=1mbit\nNetworkUpMin=4mbit\nNetworkLink=eth0",
            6,
            "min",
        ),
        ("NetworkMax=1mbit\nNetworkUpMax=4mbit", 5, "both"),
        (
            "NetworkSlice=2ms/50ms\nNetworkSliceExtra=maybe",
            5,
            "neither yes nor no",
        ),
        ("NetworkUpMax=0", 4, "leave it out"),
    ];
    for (text, line, word) in faults {
        let folders = Folders::new("faults");
        folders
            .with("etc/bad.service", text)
            .with("etc/good.service", "NetworkUpMax=1mbit");
        let units = folders.read(&[]);
        assert_eq!(contracts(&units), pairs(&[("good.service", "up 1mbit")]));
        let fault = &units.faults["bad.service"];
        assert!(
            fault.contains(&format!("etc/bad.service:{line}: ")),
            "{text:?}: {fault}"
        );
        assert!(fault.contains(word), "{text:?}: {fault}");
    }
}

#[test]
fn a_search_path_can_end_with_the_default_folders() {
    assert_eq!(path_of("/a:/b"), [PathBuf::from("/a"), PathBuf::from("/b")]);
    let all = path_of("/a:");
    assert_eq!(all[0], PathBuf::from("/a"));
    assert_eq!(all.len(), 1 + DEFAULT_PATH.len());
}

#[test]
fn a_section_reserves_processor_time() {
    let folders = Folders::new("processors");
    let time = "ProcessorTime=2ms/10ms";
    folders
        .with("lib/a.service", time)
        .with("lib/b.service", &format!("{time}\nProcessorTimeExtra=yes"))
        .with("lib/c.service", "ProcessorTimeExtra=yes")
        .with("lib/d.service", "ProcessorTime=2ms/2s");
    let units = folders.read(&[]);
    assert_eq!(
        contracts(&units),
        pairs(&[
            ("a.service", "cpu 2ms/10ms"),
            ("b.service", "cpu 2ms/10ms cpu-extra")
        ])
    );
    let fault = |unit: &str| units.faults.get(unit).cloned().unwrap_or_default();
    assert!(fault("c.service").contains("cpu-extra belongs to cpu"));
    assert!(fault("d.service").contains("longer than 1s"));
}

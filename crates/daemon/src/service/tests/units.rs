//! Contracts in unit files, beside the policy file; containers; and the display of a process in two
//! targets.

use std::fs;
use std::path::PathBuf;

use netnice_api::Reload;

use super::*;

/// The folder of unit files of a test, with a policy file in it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str, desk: &mut Desk) -> Folder {
        let name = format!("netnice-service-{}-{name}", std::process::id());
        let folder = Folder(std::env::temp_dir().join(name));
        fs::create_dir_all(&folder.0).expect("a folder");
        desk.service.look_for_units(vec![folder.0.clone()]);
        folder
    }

    fn unit(&self, name: &str, text: &str) {
        let text = format!("[X-Netnice]\n{text}\n");
        fs::write(self.0.join(name), text).expect("a unit file");
    }

    fn policy(&self, text: &str) -> PathBuf {
        let file = self.0.join("policy.toml");
        fs::write(&file, text).expect("a policy");
        file
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn up(desk: &Desk, target: &str) -> Option<u64> {
    let up = desk.held(target)?.entry.contract.up();
    up.map(|rate| rate.bits_per_second())
}

#[test]
fn sections_hold_change_and_go_with_their_files_and_the_policy_file_wins() {
    let mut desk = Desk::new();
    let folder = Folder::new("change", &mut desk);
    folder.unit("a.service", "NetworkUpMax=4mbit");
    folder.unit("b.service", "NetworkUpMax=5mbit");
    let rule = "[[rule]]\nname = \"b\"\nmatch = \"unit:b\"\nup = \"1mbit\"\n";
    let policy = folder.policy(rule);
    desk.service.obey(&policy, desk.now);
    assert_eq!(up(&desk, "unit:a.service"), Some(4_000_000));
    assert_eq!(up(&desk, "unit:b.service"), Some(1_000_000));
    let awaited = desk.machine().awaited.clone();
    assert!(awaited.contains_key("a.service") && awaited.contains_key("b.service"));
    // Without a request, only changes of unit files take effect.
    folder.policy("");
    folder.unit("a.service", "NetworkUpMax=2mbit");
    desk.service.look_at_units(desk.now);
    assert_eq!(up(&desk, "unit:a.service"), Some(2_000_000));
    assert_eq!(up(&desk, "unit:b.service"), Some(1_000_000));
    let done = ok(desk.ask(&Peer::ROOT, Request::Reload(Reload {}), None));
    assert_eq!(up(&desk, "unit:b.service"), Some(5_000_000), "{done:?}");
    // A unit that root has cleared stays cleared while its section does not change.
    ok(desk.clear("unit:a"));
    folder.unit("b.service", "NetworkUpMax=6mbit");
    desk.service.look_at_units(desk.now);
    assert_eq!(up(&desk, "unit:a.service"), None);
    assert_eq!(up(&desk, "unit:b.service"), Some(6_000_000));
    folder.unit("a.service", "NetworkUpMax=3mbit");
    desk.service.look_at_units(desk.now);
    assert_eq!(up(&desk, "unit:a.service"), Some(3_000_000));
    for file in ["a.service", "b.service"] {
        fs::remove_file(folder.0.join(file)).expect("it goes");
    }
    desk.service.look_at_units(desk.now);
    assert!(desk.service.ledger().is_empty());
    desk.check();
}

#[test]
fn a_section_that_is_wrong_or_does_not_fit_is_its_units_alone() {
    let mut desk = Desk::new();
    let folder = Folder::new("wrong", &mut desk);
    ok(desk.link("eth0", "100mbit", ""));
    folder.unit("a.service", "NetworkUpMax=4mbit");
    folder.unit("b.service", "NetworkUpMin=90mbit\nNetworkLink=eth0");
    desk.service.look_at_units(desk.now);
    folder.unit("a.service", "NetworkUpMax=fast");
    folder.unit("c.service", "NetworkUpMin=20mbit\nNetworkLink=eth0");
    folder.unit("d.service", "NetworkUpMax=7mbit");
    desk.service.look_at_units(desk.now);
    assert_eq!(
        up(&desk, "unit:a.service"),
        Some(4_000_000),
        "it keeps what it had"
    );
    assert_eq!(up(&desk, "unit:d.service"), Some(7_000_000));
    assert!(desk.held("unit:b.service").is_some() && desk.held("unit:c.service").is_none());
    let faults: Vec<&String> = desk.service.rules.unit_faults.values().collect();
    assert!(
        faults[0].contains("a.service:2") && faults[1].contains("does not fit"),
        "{faults:?}"
    );
    // Now there is room for it.
    fs::remove_file(folder.0.join("b.service")).expect("it goes");
    desk.service.look_at_units(desk.now);
    assert!(desk.held("unit:c.service").is_some());
    desk.check();
}

#[test]
fn a_container_is_found_held_and_let_go() {
    let mut desk = Desk::new();
    assert!(failed(desk.set("container:web", "up 4mbit")).contains("web"));
    desk.machine().groups.insert("/s/web.scope".to_owned(), 7);
    ok(desk.set("container:web", "up 4mbit"));
    let id = desk.held("container:web").expect("held").id;
    assert_eq!(
        desk.machine().housed.iter().copied().collect::<Vec<_>>(),
        [id]
    );
    assert!(desk.machine().awaited.contains_key("/s/web.scope"));
    let Response::Failed(wrong) = desk.set("container:web", "min 1mbit on eth0") else {
        panic!("a guarantee for a container");
    };
    assert!(
        wrong.text.contains("min is not supported for a container"),
        "{wrong:?}"
    );
    // Another container of the same name, after the first was removed.
    desk.machine().groups.clear();
    desk.machine().groups.insert("/t/web.scope".to_owned(), 8);
    desk.pass(1);
    assert_eq!(desk.machine().force.groups.values().next(), Some(&8));
    ok(desk.clear("container:web"));
    assert!(desk.machine().housed.is_empty() && desk.machine().force.groups.is_empty());
    desk.check();
}

#[test]
fn a_process_that_joined_a_name_inside_its_own_target_is_shown_in_both() {
    let mut desk = Desk::new();
    desk.machine().spawn(10, 1000);
    ok(desk.set("pid:10", "up 8mbit"));
    ok(desk.run_named(&Peer::ROOT, "n", 10, "up 4mbit"));
    let show = Show {
        target: Some("pid:10".to_owned()),
    };
    let Response::Shown(shown) = desk.ask(&Peer::ROOT, Request::Show(show), None) else {
        panic!("no answer");
    };
    let names: Vec<&str> = shown.targets.iter().map(|t| t.target.as_str()).collect();
    assert_eq!(names, ["name:n", "pid:10"]);
}

//! Tests of contracts in unit files beside the policy file, of containers, and of the display of a
//! process in two targets.

use std::fs;
use std::path::PathBuf;

use netnice_api::Reload;

use super::*;

/// The folder of unit files of a test, with a policy file in it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str, fixture: &mut Fixture) -> Folder {
        let name = format!("netnice-service-{}-{name}", std::process::id());
        let folder = Folder(std::env::temp_dir().join(name));
        fs::create_dir_all(&folder.0).expect("a folder");
        fixture.service.set_unit_path(vec![folder.0.clone()]);
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

fn up(fixture: &Fixture, target: &str) -> Option<u64> {
    let up = fixture.held(target)?.entry.contract.up();
    up.map(|rate| rate.bits_per_second())
}

#[test]
fn sections_follow_their_files_and_the_policy_file_wins() {
    let mut fixture = Fixture::new();
    let folder = Folder::new("change", &mut fixture);
    folder.unit("a.service", "NetworkUpMax=4mbit");
    folder.unit("b.service", "NetworkUpMax=5mbit");
    let rule = "[[rule]]\nname = \"b\"\nmatch = \"unit:b\"\nup = \"1mbit\"\n";
    let policy = folder.policy(rule);
    fixture.service.load_policy(&policy, fixture.now);
    assert_eq!(up(&fixture, "unit:a.service"), Some(4_000_000));
    assert_eq!(up(&fixture, "unit:b.service"), Some(1_000_000));
    let expected = fixture.machine().expected.clone();
    assert!(expected.contains_key("a.service") && expected.contains_key("b.service"));
    // Without a request, only changes of unit files take effect.
    folder.policy("");
    folder.unit("a.service", "NetworkUpMax=2mbit");
    fixture.service.reload_units(fixture.now);
    assert_eq!(up(&fixture, "unit:a.service"), Some(2_000_000));
    assert_eq!(up(&fixture, "unit:b.service"), Some(1_000_000));
    let done = ok(fixture.ask(&Peer::ROOT, Request::Reload(Reload {}), None));
    assert_eq!(up(&fixture, "unit:b.service"), Some(5_000_000), "{done:?}");
    // A unit that root has cleared stays cleared while its section does not change.
    ok(fixture.clear("unit:a"));
    folder.unit("b.service", "NetworkUpMax=6mbit");
    fixture.service.reload_units(fixture.now);
    assert_eq!(up(&fixture, "unit:a.service"), None);
    assert_eq!(up(&fixture, "unit:b.service"), Some(6_000_000));
    folder.unit("a.service", "NetworkUpMax=3mbit");
    fixture.service.reload_units(fixture.now);
    assert_eq!(up(&fixture, "unit:a.service"), Some(3_000_000));
    for file in ["a.service", "b.service"] {
        fs::remove_file(folder.0.join(file)).expect("removed");
    }
    fixture.service.reload_units(fixture.now);
    assert!(fixture.service.ledger().is_empty());
    fixture.check();
}

#[test]
fn a_section_that_is_invalid_or_does_not_fit_affects_only_its_unit() {
    let mut fixture = Fixture::new();
    let folder = Folder::new("wrong", &mut fixture);
    ok(fixture.link("eth0", "100mbit", ""));
    folder.unit("a.service", "NetworkUpMax=4mbit");
    folder.unit("b.service", "NetworkUpMin=90mbit\nNetworkLink=eth0");
    fixture.service.reload_units(fixture.now);
    folder.unit("a.service", "NetworkUpMax=fast");
    folder.unit("c.service", "NetworkUpMin=20mbit\nNetworkLink=eth0");
    folder.unit("d.service", "NetworkUpMax=7mbit");
    fixture.service.reload_units(fixture.now);
    assert_eq!(
        up(&fixture, "unit:a.service"),
        Some(4_000_000),
        "it keeps what it had"
    );
    assert_eq!(up(&fixture, "unit:d.service"), Some(7_000_000));
    assert!(fixture.held("unit:b.service").is_some() && fixture.held("unit:c.service").is_none());
    let faults: Vec<&String> = fixture.service.rules.unit_faults.values().collect();
    assert!(
        faults[0].contains("a.service:2") && faults[1].contains("does not fit"),
        "{faults:?}"
    );
    // A section that no longer fits keeps nothing of what it had promised, and its end is noticed.
    folder.unit(
        "a.service",
        "NetworkUpMax=3mbit\nNetworkUpMin=50mbit\nNetworkLink=eth0",
    );
    fixture.service.reload_units(fixture.now);
    assert_eq!(up(&fixture, "unit:a.service"), Some(4_000_000));
    fs::remove_file(folder.0.join("a.service")).expect("removed");
    fixture.service.reload_units(fixture.now);
    assert!(fixture.held("unit:a.service").is_none());
    // Now there is room for it.
    fs::remove_file(folder.0.join("b.service")).expect("removed");
    fixture.service.reload_units(fixture.now);
    assert!(fixture.held("unit:c.service").is_some());
    fixture.check();
}

#[test]
fn a_container_is_found_limited_and_cleared() {
    let mut fixture = Fixture::new();
    assert!(failed(fixture.set("container:web", "up 4mbit")).contains("web"));
    fixture
        .machine()
        .groups
        .insert("/s/web.scope".to_owned(), 7);
    ok(fixture.set("container:web", "up 4mbit"));
    let id = fixture.held("container:web").expect("held").id;
    assert_eq!(
        fixture
            .machine()
            .containers
            .iter()
            .copied()
            .collect::<Vec<_>>(),
        [id]
    );
    assert!(fixture.machine().expected.contains_key("/s/web.scope"));
    // Another container of the same name, after the first was removed.
    fixture.machine().groups.clear();
    fixture
        .machine()
        .groups
        .insert("/t/web.scope".to_owned(), 8);
    fixture.advance(1);
    assert_eq!(fixture.machine().in_force.groups.values().next(), Some(&8));
    ok(fixture.clear("container:web"));
    assert!(
        fixture.machine().containers.is_empty() && fixture.machine().in_force.groups.is_empty()
    );
    fixture.check();
}

#[test]
fn a_process_that_joined_a_name_inside_its_own_target_is_shown_in_both() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 1000);
    ok(fixture.set("pid:10", "up 8mbit"));
    ok(fixture.run_named(&Peer::ROOT, "n", 10, "up 4mbit"));
    let show = Show {
        target: Some("pid:10".to_owned()),
    };
    let Response::Shown(shown) = fixture.ask(&Peer::ROOT, Request::Show(show), None) else {
        panic!("no answer");
    };
    let names: Vec<&str> = shown.targets.iter().map(|t| t.target.as_str()).collect();
    assert_eq!(names, ["name:n", "pid:10"]);
}

#[test]
fn a_container_has_a_minimum_and_a_weight_by_the_same_admission() {
    let mut fixture = Fixture::new();
    for (path, id) in [("/s/web.scope", 7), ("/s/db.scope", 8)] {
        fixture.machine().groups.insert(path.to_owned(), id);
    }
    let unmanaged = refused(fixture.set("container:web", "min 1mbit"));
    assert!(unmanaged.contains("managed"), "{unmanaged}");
    ok(fixture.link("eth0", "10mbit", "10mbit"));
    ok(fixture.set("container:web", "min 6mbit min-down 2mbit weight 300"));
    let short = refused(fixture.set("container:db", "min 5mbit"));
    assert!(
        short.contains("container:web") && short.contains("at most 4 Mbit/s"),
        "{short}"
    );
    ok(fixture.set("container:db", "min 4mbit up 5mbit"));
    let held = fixture.held("container:web").expect("held");
    let wanted = &fixture.service.reconciler.host.in_force.desired;
    let web = wanted.targets.iter().find(|target| target.id == held.id);
    let web = web.expect("desired");
    let share = web.share.as_ref().expect("a part in the link");
    assert_eq!((share.min, web.weight), ("6mbit".parse().ok(), 300));
    assert_eq!(share.min_down, "2mbit".parse().ok());
    fixture.check();
}

//! Tests of putting the policy file into force.

use std::fs;
use std::path::PathBuf;

use netnice_api::Reload;

use super::*;

/// The policy file of a test.
pub(super) struct PolicyFile(pub(super) PathBuf);

impl PolicyFile {
    pub(super) fn new(name: &str, text: &str) -> PolicyFile {
        let name = format!("netnice-policy-{}-{name}.toml", std::process::id());
        let file = PolicyFile(std::env::temp_dir().join(name));
        file.write(text);
        file
    }

    fn write(&self, text: &str) {
        fs::write(&self.0, text).expect("a file");
    }
}

impl Drop for PolicyFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn reload(fixture: &mut Fixture) -> Response {
    fixture.ask(&Peer::ROOT, Request::Reload(Reload {}), None)
}

const WEB: &str = "[[rule]]\nname = \"web\"\nmatch = \"unit:web\"\nup = \"4mbit\"\n";

#[test]
fn rules_follow_the_policy_file() {
    let mut fixture = Fixture::new();
    fixture
        .machine()
        .groups
        .insert("/s/web.service".to_owned(), 7);
    let file = PolicyFile::new("hold", WEB);
    fixture.service.load_policy(&file.0, fixture.now);
    let held = fixture.held("unit:web").expect("in force");
    assert_eq!(held.rule.as_deref(), Some("web"));
    assert_eq!(fixture.show().targets[0].contract.set_by["up"], 0);
    // Root tightens the limit, the rule stays beneath; a rule that has not changed keeps its
    // target's id.
    ok(fixture.set("unit:web", "up 1mbit"));
    ok(reload(&mut fixture));
    assert_eq!(fixture.held("unit:web").expect("held").id, held.id);
    let up = |fixture: &mut Fixture| fixture.show().targets[0].effective.up;
    assert_eq!(up(&mut fixture), Some(1_000_000));
    file.write(&WEB.replace("4mbit", "500kbit"));
    ok(reload(&mut fixture));
    assert_eq!(up(&mut fixture), Some(500_000));
    file.write("");
    ok(reload(&mut fixture));
    assert_eq!(up(&mut fixture), Some(1_000_000));
    ok(fixture.clear("unit:web"));
    assert!(fixture.service.ledger().is_empty());
    fixture.check();
}

#[test]
fn a_reload_is_all_or_nothing() {
    let mut fixture = Fixture::new();
    fixture
        .machine()
        .groups
        .insert("/s/web.service".to_owned(), 7);
    let link = "[[link]]\nname = \"eth0\"\nrate = \"100mbit\"\n";
    let min = |unit: &str, rate: &str| {
        format!("[[rule]]\nname = \"{unit}\"\nmatch = \"unit:{unit}\"\nmin = \"{rate}\"\n")
    };
    let text = format!("{link}{}{}", min("web", "60mbit"), min("b", "40mbit"));
    let file = PolicyFile::new("all", &text);
    fixture.service.load_policy(&file.0, fixture.now);
    let shown = fixture.show();
    let held = |shown: &ShowDoc| shown.links[0].up.as_ref().expect("up").held;
    assert_eq!(held(&shown), 100_000_000);
    assert!(shown.targets[0].degraded[0].contains("not there"));
    let before = (
        fixture.machine().in_force.clone(),
        fixture.service.ledger().entries(),
    );
    let user = "[[rule]]\nname = \"u\"\nmatch = \"user:who\"\nup = \"1mbit\"\n";
    for (text, word) in [
        (
            format!("{link}{}{}", min("web", "60mbit"), min("b", "50mbit")),
            ":9:",
        ),
        (format!("{link}{}", min("web", "60mbps")), ":7:"),
        (min("web", "60mbit"), "eth0 still carries guarantees"),
        (format!("{link}{user}"), "who"),
    ] {
        file.write(&text);
        let refusal = match reload(&mut fixture) {
            Response::Failed(failed) => failed.text,
            Response::Refused(refused) => refused.text,
            other => panic!("{other:?}"),
        };
        assert!(refusal.contains(word), "{word}: {refusal}");
        let after = (
            fixture.machine().in_force.clone(),
            fixture.service.ledger().entries(),
        );
        assert_eq!(before, after, "{refusal}");
    }
    // A conflict that exists only in between causes no refusal: the two swap, and the link shrinks
    // with them.
    let link = link.replace("100", "90");
    let text = format!("{link}{}{}", min("web", "30mbit"), min("b", "60mbit"));
    file.write(&text);
    ok(reload(&mut fixture));
    assert_eq!(held(&fixture.show()), 90_000_000);
    file.write("");
    ok(reload(&mut fixture));
    assert!(fixture.service.ledger().is_empty());
    fixture.check();
}

#[test]
fn the_first_rule_of_a_target_wins_under_any_name() {
    let mut fixture = Fixture::new();
    fixture
        .machine()
        .groups
        .insert("/s/web.service".to_owned(), 7);
    let second = WEB
        .replace("\"web\"", "\"other\"")
        .replace("unit:web", "cgroup:/s/web.service")
        .replace("4mbit", "1mbit");
    let file = PolicyFile::new("first", &format!("{WEB}{second}"));
    fixture.service.load_policy(&file.0, fixture.now);
    assert_eq!(fixture.show().targets.len(), 1);
    assert_eq!(fixture.show().targets[0].effective.up, Some(4_000_000));
    let done = ok(reload(&mut fixture));
    assert!(done.messages[1].contains("never matches"), "{done:?}");
}

#[test]
fn a_rule_of_a_name_stays_without_processes() {
    let mut fixture = Fixture::new();
    let rule = "[[rule]]\nname = \"b\"\nmatch = \"name:build\"\nup = \"4mbit\"\n";
    let file = PolicyFile::new("name", rule);
    fixture.service.load_policy(&file.0, fixture.now);
    fixture.advance(1);
    fixture.machine().spawn(10, 1000);
    ok(fixture.run_named(&ANN, "build", 10, ""));
    assert_eq!(fixture.own(10).as_deref(), Some("name:build"));
    ok(fixture.set_as(&ANN, "name:build", "up 1mbit"));
    fixture.machine().exit(10);
    fixture.advance(1);
    let up = fixture.show().targets[0].effective.up;
    assert_eq!(up, Some(4_000_000), "ann's claim went with her process");
    // Only root and the group may join a name to which the policy promises something.
    let link = "[[link]]\nname = \"eth0\"\nrate = \"10mbit\"\n";
    file.write(&format!("{link}{}", rule.replace("up =", "min =")));
    ok(reload(&mut fixture));
    fixture.machine().spawn(11, 1000);
    assert!(refused(fixture.run_named(&ANN, "build", 11, "")).contains("policy file"));
    fixture.check();
}

#[test]
fn a_rule_that_does_not_fit_without_processes_does_not_stop_the_sweep() {
    let mut fixture = Fixture::new();
    let text = |min: &str| {
        format!(
            "[[link]]\nname = \"eth0\"\nrate = \"100mbit\"\n\
             [[rule]]\nname = \"b\"\nmatch = \"name:build\"\nmin = \"{min}\"\n"
        )
    };
    let file = PolicyFile::new("sweep", &text("30mbit"));
    fixture.service.load_policy(&file.0, fixture.now);
    for pid in [10, 20, 30] {
        fixture.machine().spawn(pid, 0);
    }
    fixture.machine().fork(10, 11);
    ok(fixture.set("pid:10", "min 60mbit"));
    ok(fixture.run_named(&Peer::ROOT, "build", 11, ""));
    assert_eq!(fixture.parent("name:build").as_deref(), Some("pid:10"));
    // Inside pid:10 it counts as part of that guarantee.
    file.write(&text("50mbit"));
    ok(reload(&mut fixture));
    ok(fixture.set("pid:20", "min 40mbit"));
    ok(fixture.set("pid:30", "up 1mbit"));
    fixture.machine().exit(11);
    fixture.machine().exit(30);
    fixture.advance(1);
    assert!(fixture.held("pid:30").is_none(), "it has ended");
    let held = fixture.held("name:build").expect("the rule stays");
    let why = held.refused.expect("degraded");
    assert!(why.contains("does not fit"), "{why}");
    assert!(!held.entry.contract.is_guaranteed());
    fixture.check();
    ok(fixture.clear("pid:10"));
    let held = fixture.held("name:build").expect("held");
    assert!(held.refused.is_none() && held.entry.contract.is_guaranteed());
    fixture.check();
}

#[test]
fn users_cannot_limit_a_name_of_the_policy_before_a_process_of_theirs_joins() {
    let mut fixture = Fixture::new();
    let rule = "[[rule]]\nname = \"b\"\nmatch = \"name:build\"\nup = \"4mbit\"\n";
    let file = PolicyFile::new("wait", rule);
    fixture.service.load_policy(&file.0, fixture.now);
    let before = fixture.service.ledger().clone();
    let why = refused(fixture.set_as(&ANN, "name:build", "up 1kbit"));
    assert!(why.contains("no process runs as name:build yet"), "{why}");
    assert_eq!(*fixture.service.ledger(), before);
    // Root may, and the limit of a user holds once the process of that user has joined.
    ok(fixture.set("name:build", "up 3mbit"));
    fixture.machine().spawn(10, 1000);
    ok(fixture.run_named(&ANN, "build", 10, "up 1mbit"));
    ok(fixture.set_as(&ANN, "name:build", "up 2mbit"));
    assert_eq!(fixture.show().targets[0].effective.up, Some(2_000_000));
    fixture.check();
}

#[test]
fn an_invalid_file_leaves_the_former_policy_in_force() {
    let mut fixture = Fixture::new();
    fixture
        .machine()
        .groups
        .insert("/s/web.service".to_owned(), 7);
    fixture.machine().spawn(10, 0);
    let file = PolicyFile::new("sense", WEB);
    fixture.service.load_policy(&file.0, fixture.now);
    file.write("[[rule]\n");
    fixture.service.load_policy(&file.0, fixture.now);
    assert!(fixture.held("unit:web").is_some());
    assert!(fixture.service.rules.fault.is_some());
    ok(fixture.set("pid:10", "up 1mbit"));
    let by_ann = fixture.ask(&ANN, Request::Reload(Reload {}), None);
    assert!(refused(by_ann).contains("root"));
}

#[test]
fn the_short_form_follows_the_policy() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 0);
    let short = |fixture: &mut Fixture, change: &str| {
        let short = |set: &mut Set| set.short = true;
        let done = ok(fixture.set_with(&Peer::ROOT, "pid:10", change, Some(10), short));
        done.effective.unwrap_or_default()
    };
    assert_eq!(short(&mut fixture, "both 4mbit"), "both 4mbit");
    ok(fixture.clear("all"));
    let file = PolicyFile::new("short", "input_meter = false\n");
    fixture.service.load_policy(&file.0, fixture.now);
    assert_eq!(short(&mut fixture, "both 4mbit"), "up 4mbit");
    assert_eq!(short(&mut fixture, "both none"), "none");
}

#[test]
fn a_user_does_not_run_as_a_name_that_the_policy_promised_a_code_point() {
    let mut fixture = Fixture::new();
    fixture.machine().spawn(10, 1000);
    let rule = |dscp: &str| {
        format!("[[rule]]\nname = \"voice\"\nmatch = \"name:voice\"\ndscp = \"{dscp}\"\n")
    };
    let file = PolicyFile::new("voice", &rule("EF"));
    fixture.service.load_policy(&file.0, fixture.now);
    let text = refused(fixture.run_named(&ANN, "voice", 10, ""));
    assert!(text.contains("name:voice is promised dscp"), "{text}");
    // A code point that every user may set is no promise, and the policy says which those are.
    file.write(&rule("CS1"));
    ok(reload(&mut fixture));
    ok(fixture.run_named(&ANN, "voice", 10, ""));
    fixture.check();
    file.write("dscp_users = [\"AF21\"]");
    ok(reload(&mut fixture));
    ok(fixture.set_as(&ANN, "pid:10", "dscp AF21"));
    assert!(refused(fixture.set_as(&ANN, "pid:10", "dscp CS1")).contains("may set AF21"));
    fixture.check();
}

use std::collections::BTreeSet;

use netnice_core::claims::Claimant;
use netnice_core::contract::{Contract, Setting};
use netnice_core::link::classes::{ClassChange, ClassesChange, LinkClasses};
use netnice_core::link::{Capacity, CapacitySource, Link};
use netnice_core::units::{Bytes, Instant, Nanos};

use super::*;
use crate::ledger::rollbacks::{Cleared, Undo};
use crate::ledger::{Body, CgroupRef, ManagedLink, NewTarget, ProcessId, TargetPlace};

const ANN: Claimant = Claimant {
    uid: 1000,
    privileged: false,
};

/// A managed link with a rate from each source.
fn managed() -> ManagedLink {
    let capacity = |text: &str, source| {
        Some(Capacity {
            rate: text.parse().expect(text),
            source,
        })
    };
    ManagedLink {
        link: Link {
            name: "eth0".parse().expect("a name"),
            up: capacity("100mbit", CapacitySource::Operator),
            down: capacity("50mbit", CapacitySource::Driver),
            overhead: Bytes(24),
            horizon: Nanos(0),
        },
        by: 0,
        reflectors: Vec::new(),
        classes: classes(),
    }
}

/// A named server with a class of each kind.
fn classes() -> LinkClasses {
    let set = |number, min: Option<&str>, overbook| ClassesChange {
        server: None,
        class: Some((
            number,
            ClassChange::Set {
                min: min.map(|min| Setting::Set(min.parse().expect("a rate"))),
                overbook: Some(overbook),
            },
        )),
    };
    let slice: Contract = "slice 20ms/50ms".parse().expect("a slice");
    let server = ClassesChange {
        server: slice.slice().map(Setting::Set),
        class: None,
    };
    let changes = [set(0, None, false), set(5, Some("3mbit"), true), server];
    let apply = |classes: LinkClasses, change: &ClassesChange| classes.apply(change);
    let none = LinkClasses::default();
    changes.iter().try_fold(none, apply).expect("classes")
}

fn processes() -> Body {
    Body::Processes {
        roots: vec![ProcessId {
            pid: 10,
            started: 77,
        }],
        only: false,
    }
}

fn place() -> TargetPlace {
    TargetPlace {
        own: None,
        app: None,
        cgroup: Some("/s/web.service".to_owned()),
        uid: Some(1000),
    }
}

/// A ledger with a link, targets of several kinds, and a draining target.
fn ledger() -> Ledger {
    let mut ledger = Ledger::default();
    ledger.restore_link(managed());
    let group = Body::Cgroup(Some(CgroupRef {
        path: "/s/web.service".to_owned(),
        id: 9,
    }));
    let nowhere = TargetPlace::default();
    let requests = [
        ("unit:web", group, place(), "up 4mbit min 1mbit on eth0"),
        ("pid:10", processes(), place(), "both 2mbit burst 9ms"),
        ("user:1000", Body::User(1000), nowhere.clone(), "weight 7"),
        ("app:/bin/x", Body::App(None), nowhere, "down 1mbit"),
    ];
    let mut slots = Vec::new();
    for (target, body, place, change) in requests {
        let new = NewTarget {
            target: target.parse().expect(target),
            body,
            place,
            inside: BTreeSet::new(),
        };
        let slot = ledger.open(new).expect("room");
        slots.push(slot);
        // Kinds of limits that cannot be nested are set separately.
        let change = change.parse().expect(change);
        let changed = ledger.change_claim(slot, Claimant::ROOT, &change, 5);
        if changed.is_err() {
            ledger.close(slot);
        }
    }
    let change = "up 2mbit".parse().expect("a change");
    let changed = ledger.change_claim(slots[0], ANN, &change, 6);
    changed.expect("it fits");
    ledger.set_rule(slots[0], Some("web".to_owned()));
    let closed = ledger.close(slots[3]).expect("it was held");
    ledger.keep_draining(&closed, Instant(0));
    ledger
}

/// A rollback of each kind.
fn rollbacks(ledger: &Ledger) -> Rollbacks {
    let held = ledger.held().next().expect("held");
    let claim = Undo::Claim {
        id: held.id,
        change: Box::new("up 3mbit down none".parse().expect("a change")),
    };
    let cleared = Undo::Cleared {
        targets: vec![Cleared {
            target: "pid:10".parse().expect("a target"),
            body: processes(),
            place: place(),
            rule: Some("web".to_owned()),
            claims: held.claims.iter().cloned().collect(),
        }],
        links: vec![managed()],
    };
    let link = Undo::Link {
        name: managed().link.name,
        before: None,
    };
    let mut rollbacks = Rollbacks::default();
    rollbacks.push(Instant(9), true, ANN, claim);
    rollbacks.push(Instant(10), false, Claimant::ROOT, cleared);
    rollbacks.push(Instant(11), false, Claimant::ROOT, link);
    rollbacks
}

/// A state with at least one of everything.
fn state() -> State {
    let ledger = ledger();
    let rollbacks = rollbacks(&ledger);
    State { ledger, rollbacks }
}

fn store() -> Store {
    Store::new(Path::new("/nowhere"), "this boot", 7)
}

#[test]
fn a_written_state_is_read_back() {
    let state = state();
    let bytes = store()
        .bytes(&state.ledger, &state.rollbacks)
        .expect("bytes");
    let mut read = store().parse(&bytes).expect("whole").expect("of this boot");
    assert!(read.ledger.held().count() >= 2);
    // The contracts in force are those that are admitted again.
    read.ledger.readmit();
    assert_eq!(read.ledger, state.ledger);
    assert_eq!(read.rollbacks, state.rollbacks);
}

#[test]
fn a_state_of_another_boot_is_ignored_and_of_another_namespace_refused() {
    let state = state();
    let bytes = store()
        .bytes(&state.ledger, &state.rollbacks)
        .expect("bytes");
    let other = Store::new(Path::new("/nowhere"), "another boot", 7);
    assert_eq!(other.parse(&bytes).expect("whole"), None);
    let elsewhere = Store::new(Path::new("/nowhere"), "this boot", 8);
    let error = elsewhere.parse(&bytes).expect_err("another namespace");
    assert!(
        matches!(error, StateError::OtherNamespace { .. }),
        "{error}"
    );
}

#[test]
fn a_later_version_is_not_reported_as_damage() {
    let text = "{}".to_owned();
    let envelope = Envelope {
        version: VERSION + 1,
        checksum: checksum(VERSION + 1, &text),
        state: RawValue::from_string(text).expect("JSON"),
    };
    let bytes = serde_json::to_vec(&envelope).expect("bytes");
    let error = store().parse(&bytes).expect_err("newer");
    assert!(matches!(error, StateError::Newer { theirs, .. } if theirs == VERSION + 1));
}

#[test]
fn a_truncated_file_is_damaged() {
    let state = state();
    let bytes = store()
        .bytes(&state.ledger, &state.rollbacks)
        .expect("bytes");
    for length in 0..bytes.len() {
        let error = store().parse(&bytes[..length]).expect_err("cut");
        assert!(
            matches!(error, StateError::Damaged { .. }),
            "{length}: {error}"
        );
    }
}

#[test]
fn every_flipped_bit_is_detected() {
    let state = state();
    let bytes = store()
        .bytes(&state.ledger, &state.rollbacks)
        .expect("bytes");
    for at in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[at / 8] ^= 1 << (at % 8);
        let error = store().parse(&flipped).expect_err("flipped");
        assert!(matches!(error, StateError::Damaged { .. }), "{at}: {error}");
    }
}

#[test]
fn a_contradictory_state_is_damaged() {
    let whole = store();
    let parse = |state: &str| {
        let envelope = Envelope {
            version: VERSION,
            checksum: checksum(VERSION, state),
            state: RawValue::from_string(state.to_owned()).expect("JSON"),
        };
        whole.parse(&serde_json::to_vec(&envelope).expect("bytes"))
    };
    let empty = r#"{"boot":"this boot","namespace":7,"next_id":5,"next_undo":1,
        "links":[],"targets":[],"remnants":[],"undos":[]}"#;
    assert!(parse(empty).expect("whole").is_some());
    let target = r#"{"slot":1,"id":2,"target":"pid:10","parent":null,"body":{"user":1},
        "place":{"own":null,"app":null,"cgroup":null,"uid":null},
        "claims":[],"rule":null,"changed_ns":0}"#;
    let with = |target: &str| empty.replace("\"targets\":[]", &format!("\"targets\":[{target}]"));
    assert!(parse(&with(target)).expect("whole").is_some());
    for broken in [
        with(&target.replace("\"slot\":1", "\"slot\":0")),
        with(&target.replace("\"slot\":1", "\"slot\":9999")),
        with(&target.replace("\"parent\":null", "\"parent\":1")),
        with(&target.replace("\"parent\":null", "\"parent\":7")),
        with(&target.replace("pid:10", "pid:x")),
        with(&target.replace("\"id\":2", "\"id\":0")),
        with(&format!("{target},{target}")),
        with(&target.replace("\"rule\":null", "\"rule\":null,\"more\":1")),
    ] {
        let error = parse(&broken).expect_err(&broken);
        assert!(matches!(error, StateError::Damaged { .. }), "{error}");
    }
}

#[test]
fn a_file_is_written_read_renamed_and_removed() {
    let folder = std::env::temp_dir().join(format!("netnice-state-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let store = Store::new(&folder, "this boot", 7);
    assert_eq!(store.load().expect("no file"), None);
    let state = state();
    store.save(&state.ledger, &state.rollbacks).expect("saved");
    store
        .save(&state.ledger, &state.rollbacks)
        .expect("saved again");
    assert!(store.load().expect("whole").is_some());
    let aside = store.rename_damaged().expect("aside");
    assert!(aside.to_string_lossy().ends_with("state.json.damaged-1"));
    store.save(&state.ledger, &state.rollbacks).expect("saved");
    assert!(
        store
            .rename_damaged()
            .expect("aside")
            .to_string_lossy()
            .ends_with("-2")
    );
    store.remove().expect("nothing to remove is no error");
    fs::remove_dir_all(&folder).expect("clean up");
    let error = store
        .save(&state.ledger, &state.rollbacks)
        .expect_err("no folder");
    assert!(error.to_string().contains("write the state file"));
}

#[test]
fn an_error_names_what_failed() {
    let folder = std::env::temp_dir().join(format!("netnice-state-io-{}", std::process::id()));
    let store = Store::new(&folder, "this boot", 7);
    // A folder at the path of the file can be neither read, replaced nor removed as a file.
    fs::create_dir_all(folder.join("state.json")).expect("a folder");
    let saved = store.save(&Ledger::default(), &Rollbacks::default());
    for (error, what) in [
        (store.load().expect_err("a folder"), "read"),
        (saved.expect_err("a folder"), "write"),
        (store.remove().expect_err("a folder"), "remove"),
    ] {
        let text = error.to_string();
        assert!(
            text.starts_with(&format!("cannot {what} the state file")),
            "{text}"
        );
    }
    fs::remove_dir_all(&folder).expect("removed");
}

#[test]
fn the_places_of_redirected_targets_survive_and_are_no_required_field() {
    use crate::ledger::redirects::{RedirectPhase, RedirectPlace};
    use netnice_core::units::Amount;
    let mut ledger = ledger();
    let phases = [
        RedirectPhase::Prepared,
        RedirectPhase::Active,
        RedirectPhase::Ending,
    ];
    let places = phases.into_iter().map(|phase| RedirectPlace {
        link: "eth0".parse().expect("a name"),
        target: 1,
        rate: Amount(0),
        phase,
        begins: false,
    });
    ledger.set_redirects((3..).zip(places).collect());
    let bytes = store()
        .bytes(&ledger, &Rollbacks::default())
        .expect("bytes");
    let read = store().parse(&bytes).expect("whole").expect("of this boot");
    assert_eq!(read.ledger.redirects(), ledger.redirects());

    ledger.set_redirects(Default::default());
    let bytes = store()
        .bytes(&ledger, &Rollbacks::default())
        .expect("bytes");
    assert!(!String::from_utf8_lossy(&bytes).contains("redirects"));
}

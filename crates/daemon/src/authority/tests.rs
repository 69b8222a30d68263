use super::*;
use crate::ledger::ProcessId;

const ANN: Peer = Peer {
    uid: 1000,
    privileged: false,
    groups: Vec::new(),
};
const OPERATOR: Peer = Peer {
    uid: 1001,
    privileged: true,
    groups: Vec::new(),
};

fn process(uid: u32, dumpable: bool) -> Process {
    Process {
        root: ProcessId { pid: 7, started: 1 },
        uid,
        dumpable,
        name: "rsync".to_owned(),
        in_own_network: Some(true),
    }
}

#[test]
fn users_may_name_only_limits() {
    let table = [
        ("up 1mbit", true),
        ("down 1mbit", true),
        ("both 1mbit", true),
        ("up 1mbit burst 10ms", true),
        ("up none", true),
        ("dscp CS1", true),
        ("yield on", true),
        ("min 1mbit", false),
        ("min-down 1mbit", false),
        ("on eth0", false),
        ("weight 200", false),
        ("priority 0", false),
        ("slice 1ms/10ms", false),
        ("cpu 1ms/10ms", false),
        ("up 1mbit min none", false),
    ];
    for (text, plain) in table {
        let change: Change = text.parse().expect(text);
        assert_eq!(
            may_request(&ANN, &change).is_ok(),
            plain,
            "{text} by a user"
        );
        assert!(
            may_request(&OPERATOR, &change).is_ok(),
            "{text} by the group"
        );
        assert!(may_request(&Peer::ROOT, &change).is_ok(), "{text} by root");
    }
}

#[test]
fn channel_users_may_name_channels_of_flows_and_nothing_else_that_needs_privilege() {
    let channel = "channel mmax=1KiB,rmax=9/s,bmax=1,deadline=9ms";
    let table = [
        (channel.to_owned(), true),
        (format!("{channel},processing=1ms"), true),
        (format!("{channel} up 1mbit burst 10ms"), true),
        ("channel none".to_owned(), true),
        ("up 1mbit".to_owned(), true),
        (format!("{channel} on eth0"), false),
        (format!("{channel} weight 200"), false),
        (format!("{channel} receive 5%"), false),
        ("cell pcr=1mbit,cdvt=9ms".to_owned(), false),
        ("slice 1ms/10ms".to_owned(), false),
        ("min 1mbit".to_owned(), false),
    ];
    for (text, of_channel_user) in table {
        let change: Change = text.parse().expect(&text);
        let may = |peer: &Peer, channels| may_request_for_flow(peer, &change, channels).is_ok();
        assert_eq!(may(&ANN, true), of_channel_user, "{text}");
        assert_eq!(
            may(&ANN, false),
            may_request(&ANN, &change).is_ok(),
            "{text}"
        );
        assert!(may(&OPERATOR, false) && may(&Peer::ROOT, false), "{text}");
    }
}

#[test]
fn users_may_set_the_code_points_of_the_policy() {
    let policy = crate::policy::Policy::default();
    let table = [
        ("dscp CS0", true),
        ("dscp LE", true),
        ("up 1mbit dscp CS1", true),
        ("dscp none", true),
        ("up 1mbit", true),
        ("dscp EF", false),
        ("dscp AF21", false),
        ("dscp CS7", false),
        ("dscp 2", false),
    ];
    for (text, plain) in table {
        let change: Change = text.parse().expect(text);
        let may = |peer: &Peer| may_mark(peer, &change, &policy.dscp_users).is_ok();
        assert_eq!(may(&ANN), plain, "{text} by a user");
        assert!(may(&OPERATOR) && may(&Peer::ROOT), "{text}");
    }
    let change: Change = "dscp EF".parse().expect("a change");
    let none = may_mark(&ANN, &change, &BTreeSet::new()).expect_err("refused");
    assert!(none.to_string().contains("may set none"), "{none}");
    let ef = BTreeSet::from(["EF".parse().expect("a code point")]);
    assert!(may_mark(&ANN, &change, &ef).is_ok(), "the policy allows it");
}

#[test]
fn users_may_limit_their_own_dumpable_processes() {
    let table = [
        (ANN, 1000, true, true),
        (ANN, 1000, false, false),
        (ANN, 0, true, false),
        (ANN, 1002, true, false),
        (OPERATOR, 1002, true, true),
        (OPERATOR, 0, false, true),
        (Peer::ROOT, 1000, false, true),
    ];
    for (peer, uid, dumpable, may) in table {
        let answer = may_limit_process(&peer, &process(uid, dumpable));
        assert_eq!(answer.is_ok(), may, "{peer:?} on {uid} {dumpable}");
        if let Err(error) = answer {
            assert!(matches!(error, RequestError::NotPermitted(_)));
        }
    }
}

#[test]
fn users_may_limit_names_of_their_own_processes() {
    let table = [
        ("name:build", Some(1000), true),
        ("name:build", Some(1002), false),
        ("name:build", None, false),
        ("user:1000", None, false),
        ("app:/usr/bin/rsync", None, false),
        ("cgroup:/a", None, false),
        ("unit:a.service", None, false),
    ];
    for (text, owner, may) in table {
        let target: Target = text.parse().expect(text);
        assert_eq!(
            may_limit_target(&ANN, &target, owner).is_ok(),
            may,
            "{text}"
        );
        assert!(
            may_limit_target(&OPERATOR, &target, owner).is_ok(),
            "{text}"
        );
    }
    assert!(may_manage(&ANN, "managing a link").is_err());
    assert!(may_manage(&OPERATOR, "managing a link").is_ok());
}

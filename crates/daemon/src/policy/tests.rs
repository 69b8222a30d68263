//! Tests that policy files are read, and that invalid ones are refused with line and reason.

use super::*;
use crate::quotas::Quota;
use crate::quotas::Quotas;

fn parse(text: &str) -> Result<Policy, PolicyError> {
    Policy::parse(Path::new("policy.toml"), text)
}

/// The policy of an empty file.
fn nothing() -> Policy {
    Policy {
        quotas: Quotas::of_file(Path::new("policy.toml")),
        ..Policy::default()
    }
}

#[test]
fn a_whole_file_is_read() {
    let policy = parse(
        r#"
input_meter = false
direct_users = false
direct_awake = false
dscp_users = ["CS1", "AF21", "46"]
channel_users = ["1000", "0"]

[[link]]
name = "eth0"
rate = "100mbit"
down-rate = "50mbit"
overhead = 24
discard = ["12=0800 23=11 36=0035", "12=88cc"]

[[link]]
name = "wlan0"

[[rule]]
name = "backup"
match = "unit:backup"
up = "4mbit"
burst = "10ms"
dscp = "cs1"
yield = true

[[rule]]
name = "video"
match = "name:video"
min = "5mbit"
min-down = "2mbit"
on = "eth0"
weight = 300
priority = 0
"#,
    )
    .expect("a policy");
    assert!(!policy.input_meter && !policy.direct_users && !policy.direct_awake);
    assert!(Policy::default().direct_users && Policy::default().direct_awake);
    let marks: Vec<String> = policy.dscp_users.iter().map(ToString::to_string).collect();
    assert_eq!(marks, ["CS1", "AF21", "EF"]);
    assert_eq!(Policy::default().dscp_users.len(), 3);
    let channels = &policy.direct.channel_users;
    assert_eq!(
        [0, 1000, 1001].map(|uid| channels.contains(uid)),
        [true, true, false]
    );
    // A user of the default need not exist.
    let default = Policy::default().direct.channel_users;
    assert!((0..2_000).all(|uid| !default.contains(uid)));
    let named = parse("channel_users = [\"netnice-peer\"]").expect("a policy");
    assert_eq!(default, named.direct.channel_users);
    assert_ne!(
        default,
        parse("channel_users = []")
            .expect("a policy")
            .direct
            .channel_users
    );
    assert_eq!(policy.links.len(), 2);
    assert_eq!(policy.links[0].overhead, 24);
    assert_eq!(policy.links[0].down_rate, "50mbit".parse().ok());
    let looks_at = |pattern: &Vec<Term>| pattern.len();
    let discard: Vec<usize> = policy.links[0].discard.iter().map(looks_at).collect();
    assert_eq!(discard, [5, 2]);
    assert_eq!(policy.links[1].rate, None);
    assert!(policy.links[1].discard.is_empty());
    let rules: Vec<String> = policy
        .rules
        .iter()
        .map(|rule| format!("{} {} {}", rule.name, rule.target, rule.contract))
        .collect();
    assert_eq!(
        rules,
        [
            "backup unit:backup.service up 4mbit burst 10ms dscp CS1 yield on",
            "video name:video min 5mbit min-down 2mbit on eth0 weight 300 priority 0",
        ]
    );
    assert_eq!(policy.rules[1].line, 27);
    assert_eq!(parse("").expect("empty"), nothing());
}

/// Checks that each file is refused, with an error that names the line and contains the word.
fn refused(table: &[(String, usize, &str)]) {
    for (text, line, word) in table {
        let error = parse(text).expect_err(text).to_string();
        let place = format!("policy.toml:{line}: ");
        assert!(error.starts_with(&place), "{text}\n{error}");
        assert!(error.contains(word), "{text}\n{error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn an_invalid_setting_is_refused_with_line_and_reason() {
    refused(&[
        ("input_meter = 3".to_owned(), 1, "boolean"),
        ("meter = true".to_owned(), 1, "unknown field"),
        ("[[rule]\n".to_owned(), 1, ""),
        ("dscp_users = \"EF\"".to_owned(), 1, "sequence"),
        (
            "dscp_users = [\"EF\",\n\"gold\"]".to_owned(),
            2,
            "`gold` is not a code point",
        ),
        ("dscp_users = [\"64\"]".to_owned(), 1, "0 to 63"),
        ("channel_users = \"ann\"".to_owned(), 1, "sequence"),
        ("channel_users = [1000]".to_owned(), 1, "string"),
        (
            "channel_users = [\"1000\",\n\"ann\"]".to_owned(),
            2,
            "there is no user \"ann\" in /etc/passwd",
        ),
        ("channel_users = [\"4294967295\"]".to_owned(), 1, "no user"),
        ("channel_users = [\"-1\"]".to_owned(), 1, "no user"),
    ]);
}

#[test]
fn an_invalid_link_is_refused_with_line_and_reason() {
    let link = |lines: &str| format!("\n[[link]]\nname = \"eth0\"\n{lines}\n");
    refused(&[
        (
            link("discard = [\"12=0800\",\n\"port 53\"]"),
            5,
            "`port` is not a term",
        ),
        (link("discard = \"12=0800\""), 4, "sequence"),
        ("[[link]]\nname = \"eth0/1\"".to_owned(), 2, "interface"),
        (
            "[[link]]\nname = \"eth0\"\nrate = \"fast\"".to_owned(),
            3,
            "rate",
        ),
        (
            "[[link]]\nname = \"eth0\"\noverhead = 9000".to_owned(),
            3,
            "512",
        ),
        (
            "[[link]]\nname = \"eth0\"\nspeed = \"1mbit\"".to_owned(),
            3,
            "unknown field",
        ),
        (
            "[[link]]\nname = \"eth0\"\n[[link]]\nname = \"eth0\"".to_owned(),
            4,
            "named twice",
        ),
    ]);
}

#[test]
fn an_invalid_contract_of_a_rule_is_refused_with_line_and_reason() {
    let rule = |lines: &str| format!("\n[[rule]]\nname = \"a\"\nmatch = \"unit:a\"\n{lines}\n");
    refused(&[
        (rule("upp = \"4mbit\""), 5, "unknown field `upp`"),
        (rule("up = \"4mbps\""), 5, "4mbit"),
        (rule("up = \"10\""), 5, "no unit"),
        (rule("up = 10"), 5, "string"),
        (rule("down = \"1mbit\"\nup = \"-5mbit\""), 6, "negative"),
        (rule("up = \"none\""), 5, "leave it out"),
        (rule("weight = 1001"), 5, "1 to 1000"),
        (rule("priority = 8"), 5, "0 (first) to 7"),
        (rule("up = \"1mbit down 2mbit\""), 5, "up"),
        (
            rule("up = \"1mbit\"\nboth = \"2mbit\""),
            3,
            "cannot hold together",
        ),
        (rule("min = \"5mbit\"\nup = \"2mbit\""), 3, "above"),
        (rule(""), 3, "no clause is given"),
        (rule("extra = true"), 3, "slice"),
        (rule("cpu = \"1ms/2s\""), 3, "longer than 1s"),
        (rule("cpu-extra = true"), 3, "cpu-extra belongs to cpu"),
        (rule("up = \"1mbit\"\nup = \"2mbit\""), 6, "duplicate"),
    ]);
}

#[test]
fn an_invalid_head_of_a_rule_is_refused_with_line_and_reason() {
    let rule = |lines: &str| format!("\n[[rule]]\nname = \"a\"\nmatch = \"unit:a\"\n{lines}\n");
    refused(&[
        (
            "[[rule]]\nmatch = \"unit:a\"\nup = \"1mbit\"".to_owned(),
            1,
            "name",
        ),
        (
            "[[rule]]\nname = \"a\"\nup = \"1mbit\"".to_owned(),
            1,
            "match",
        ),
        (
            "[[rule]]\nname = \"a\"\nmatch = \"pid:7\"\nup = \"1mbit\"".to_owned(),
            3,
            "a rule lasts longer than a process",
        ),
        (
            "[[rule]]\nname = \"a\"\nmatch = \"direct:eth0\"\nup = \"1mbit\"".to_owned(),
            3,
            "a rule cannot match direct:eth0",
        ),
        (
            "[[rule]]\nname = \"a\"\nmatch = \"what:ever\"\nup = \"1mbit\"".to_owned(),
            3,
            "not a kind of target",
        ),
        (format!("{0}{0}", rule("up = \"1mbit\"")), 8, "named twice"),
    ]);
}

#[test]
fn a_missing_file_gives_no_policy() {
    let none = Policy::load(Path::new("/nowhere/policy.toml")).expect("no error");
    assert_eq!(none, None);
    let folder = Policy::load(Path::new("/")).expect_err("a folder");
    assert!(folder.to_string().contains("cannot read the policy file /"));
}

#[test]
fn the_example_file_is_valid_with_and_without_its_commented_settings() {
    let example = include_str!("../../../../docs/manual/policy.toml");
    assert_eq!(parse(example).expect("all is commented"), nothing());
    // A commented setting begins with `#` and no space.
    let lines = example.lines().map(|line| match line.strip_prefix('#') {
        Some(rest) if !rest.starts_with(' ') => rest,
        _ => line,
    });
    let whole = lines.collect::<Vec<_>>().join("\n");
    let policy = parse(&whole).expect("the examples are right");
    assert_eq!((policy.links.len(), policy.rules.len()), (1, 3));
}

#[test]
fn quotas_are_read_with_their_units_and_the_rest_keep_their_defaults() {
    let policy = parse(
        "[quotas]\ntargets = 7\nundo-time = \"1d\"\nring-bytes = \"64MiB\"\nservice-time \
         = \"100ms\"\n",
    );
    let quotas = policy.expect("a policy").quotas;
    assert_eq!(quotas.limit(Quota::Targets), 7);
    assert_eq!(
        quotas.limit(Quota::RollbackTime),
        24 * 3_600 * 1_000_000_000
    );
    assert_eq!(quotas.limit(Quota::RingBytes), 64 << 20);
    assert_eq!(quotas.limit(Quota::ServiceTime), 100_000_000);
    assert_eq!(
        quotas.limit(Quota::Rollbacks),
        Quota::Rollbacks.describe().default
    );
    for (text, says) in [
        (
            "[quotas]\ntargets = 9000\n",
            "policy.toml:2: targets is 9000",
        ),
        ("[quotas]\n\nundo-time = \"1s 5\"\n", "policy.toml:3: "),
        ("[quotas]\nservice-time = \"2s\"\n", "from 10ms to 1s"),
        ("[quotas]\ntarget = 9\n", "policy.toml:2: "),
    ] {
        let refusal = parse(text).expect_err(text).to_string();
        assert!(refusal.contains(says), "{text}: {refusal}");
    }
}

#[test]
fn the_classes_of_a_link_are_read() {
    let file = r#"
[[link]]
name = "eth0"
rate = "100mbit"
server = "20ms/50ms"

[[link.class]]
number = 0
min = "10mbit"

[[link.class]]
number = 3
overbook = true

[[link]]
name = "eth1"
"#;
    let policy = parse(file).expect("a policy");
    let text = "server 20ms/50ms, class 0 min 10 Mbit/s, class 3 overbooked";
    assert_eq!(policy.links[0].classes.to_string(), text);
    assert!(policy.links[1].classes.is_empty());
    for (from, to, line, why) in [
        ("number = 3", "number = 0", 12, "class 0 is named twice"),
        (
            "number = 3",
            "number = 8",
            12,
            "the classes 0 (first) to 7, not 8",
        ),
        ("\"20ms/50ms\"", "\"50ms\"", 5, "time/period"),
        ("\"20ms/50ms\"", "\"2ms/5ms extra\"", 5, "one slice"),
        ("\"10mbit\"", "\"10M\"", 9, "10M"),
        (
            "name = \"eth1\"",
            "name = \"eth1\"\nserver = \"1ms/9ms\"",
            17,
            "needs a class",
        ),
    ] {
        let error = parse(&file.replace(from, to)).expect_err(to).to_string();
        assert!(
            error.starts_with(&format!("policy.toml:{line}: ")),
            "{error}"
        );
        assert!(error.contains(why), "{error}");
    }
}

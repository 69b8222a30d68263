use super::*;

fn parse(text: &str) -> Result<PeerPolicy, String> {
    let parsed = PeerPolicy::parse(Path::new("peer.toml"), text);
    parsed.map_err(|error| error.to_string())
}

fn host(name: &str) -> HostName {
    HostName::new(name).expect("a host name")
}

#[test]
fn an_empty_file_has_the_defaults() {
    assert_eq!(parse(""), Ok(PeerPolicy::default()));
}

#[test]
fn each_key_of_a_quota_is_read_and_a_neighbour_has_what_it_does_not_set_from_the_others() {
    let policy = parse(
        r#"
        [quotas]
        channels = 20
        in-progress = 5
        set-ups = 7
        mmax = "1KiB"
        rate = "3mbit"
        burst = "2MiB"
        [[neighbour]]
        name = "Ann.example.org"
        channels = 2
        [programs]
        set-ups = 9
        "#,
    );
    let quotas = policy.expect("valid").quotas;
    let all = Quota {
        channels: 20,
        in_progress: 5,
        opens_per_second: 7,
        mmax: Bytes(1_024),
        rate: Amount(3_000_000),
        burst: Bytes(2 << 20),
    };
    assert_eq!(*quotas.quota_of(&host("bob")), all);
    let anns = Quota { channels: 2, ..all };
    assert_eq!(*quotas.quota_of(&host("ann.example.org")), anns);
    let programs = Quota {
        opens_per_second: 9,
        ..Policy::default().programs
    };
    assert_eq!(quotas.programs, programs);
    assert_eq!(quotas.neighbours, Policy::default().neighbours);
}

#[test]
fn ports_are_cables_or_have_a_delay_a_rate_and_a_longest_packet() {
    let policy = parse(
        r#"
        [[port]]
        interface = "eth0"
        before = "cable"
        [[port]]
        interface = "eth1"
        before = "priority=1ms"
        rate = "100mbit"
        [[port]]
        interface = "eth2"
        before = "priority=20us"
        rate = "10gbit"
        mtu = 9000
        "#,
    );
    let ports = policy.expect("valid").ports;
    let of = |iface: &str| ports[&iface.parse::<IfName>().expect("a name")];
    assert_eq!(of("eth0"), PortBefore::Cable);
    let priority = |most, rate, longest| PortBefore::Priority {
        most: Nanos::from_micros(most),
        port: SwitchPort {
            rate: Rate::new(rate).expect("a rate"),
            longest: Bytes(longest),
        },
    };
    assert_eq!(of("eth1"), priority(1_000, 100_000_000, 1_542));
    assert_eq!(of("eth2"), priority(20, 10_000_000_000, 9_042));
}

/// Each text is refused with an error that begins as stated.
fn expect_errors(wrong: &[(&str, &str)]) {
    for (text, expected) in wrong {
        let error = parse(text).expect_err(text);
        let expected = format!("peer.toml:{expected}");
        assert!(error.starts_with(&expected), "{text}\n{error}\n{expected}");
    }
}

#[test]
fn a_wrong_quota_is_refused_with_the_line_the_key_the_limit_and_the_value() {
    expect_errors(&[
        (
            "[quotas]\nchannels = 8001",
            "2: channels is 0 to 8000, not 8001",
        ),
        (
            "\n[programs]\nin-progress = 9000",
            "3: in-progress is 0 to 8000, not 9000",
        ),
        (
            "[[neighbour]]\nname = \"a\"\nset-ups = 0",
            "3: set-ups is 1 to 1000000, not 0",
        ),
        (
            "[quotas]\nmmax = \"17MiB\"",
            "2: mmax is at most 16MiB, not 17MiB",
        ),
        (
            "[quotas]\nburst = \"65GiB\"",
            "2: burst is at most 64GiB, not 65GiB",
        ),
        ("[quotas]\nrate = \"fast\"", "2: rate: "),
        ("[quotas]\nchannels = -1", "2: "),
        ("[quotas]\nchannel = 1", "2: unknown field `channel`"),
        ("[quota]\n", "1: unknown field `quota`"),
        ("[quotas]\nname = \"a\"", "2: name belongs to [[neighbour]]"),
        (
            "[[neighbour]]\nchannels = 1",
            "1: name: a host name has 1 to 253 bytes, not 0",
        ),
        (
            "[[neighbour]]\nname = \"a_b\"",
            "1: name: a host name contains '_'",
        ),
        (
            "[[neighbour]]\nname = \"a\"\n[[neighbour]]\nname = \"A\"",
            "3: name: neighbour A is named twice",
        ),
        ("nonsense", "1: "),
    ]);
}

#[test]
fn a_wrong_port_is_refused_with_the_line_the_key_the_limit_and_the_value() {
    let port = "[[port]]\ninterface = \"eth0\"\nbefore = \"priority=1ms\"\n";
    expect_errors(&[
        (
            "[[port]]\ninterface = \"eth0\"",
            "1: missing field `before`",
        ),
        (
            "[[port]]\ninterface = \"eth0\"\nbefore = \"switch\"",
            "3: before is `cable` or `priority=T`, not `switch`",
        ),
        (
            "[[port]]\ninterface = \"a/b\"\nbefore = \"cable\"",
            "2: interface: ",
        ),
        (
            "[[port]]\ninterface = \"eth0\"\nbefore = \"cable\"\nrate = \"1gbit\"",
            "4: rate belongs to before = \"priority=T\", not to a cable",
        ),
        (port, "3: before = \"priority=T\" needs `rate`"),
        (
            &format!("{port}rate = \"10mbit\""),
            "3: before: the delay of priority is at least 1.2336ms, the time of one other packet of \
             mtu 1500, not 1ms",
        ),
        (
            &format!("{port}rate = \"1gbit\"\nmtu = 67"),
            "5: mtu is 68 to 65535, not 67",
        ),
        (
            "[[port]]\ninterface = \"eth0\"\nbefore = \"priority=2s\"",
            "3: before: the delay of priority is 1us to 1s, not 2s",
        ),
        (
            "[[port]]\ninterface = \"e\"\nbefore = \"cable\"\n[[port]]\ninterface = \"e\"\nbefore = \
             \"cable\"",
            "5: interface: e is named twice",
        ),
    ]);
}

#[test]
fn only_the_file_of_the_package_may_be_missing() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = folder.path().join("peer.toml");
    let named = PolicyPath::new(Some(missing.clone()));
    let error = named.load().expect_err("it does not exist").to_string();
    assert!(error.contains("peer.toml"), "{error}");
    let unnamed = PolicyPath {
        must_exist: false,
        path: missing,
    };
    assert_eq!(unnamed.load().expect("the defaults"), PeerPolicy::default());
    assert_eq!(PolicyPath::new(None).path, Path::new(DEFAULT));
}

/// The example is all comments. Without the marks in front of its keys it is a valid file, which
/// has each key.
#[test]
fn the_example_of_the_package_is_valid_with_and_without_its_comments() {
    let example = include_str!("../../../../docs/manual/peer.toml");
    assert_eq!(parse(example), Ok(PeerPolicy::default()));
    let is_key = |line: &&str| line.starts_with('#') && !line.starts_with("# ");
    let keys: Vec<&str> = example
        .lines()
        .filter(is_key)
        .map(|line| &line[1..])
        .collect();
    let text = keys.join("\n");
    let policy = parse(&text).expect("valid");
    assert_eq!((policy.ports.len(), policy.quotas.named.len()), (2, 1));
    for key in [
        "interface",
        "before",
        "rate",
        "mtu",
        "channels",
        "in-progress",
        "set-ups",
        "mmax",
        "burst",
    ] {
        assert!(text.contains(&format!("{key} = ")), "{key}");
    }
}

use std::path::Path;

use super::{Config, Family};

fn parse(text: &str) -> Result<Config, String> {
    let name = if text.contains("=") {
        "inetd.toml"
    } else {
        "inetd.conf"
    };
    Config::parse(Path::new(name), text, None).map_err(|error| error.to_string())
}

fn kbytes(config: &Config) -> Vec<Option<u64>> {
    let rates = config.services.iter().map(|s| s.rate);
    rates
        .map(|rate| rate.map(|rate| rate.bytes_per_second() / 1024))
        .collect()
}

#[test]
fn lines_of_the_paper_are_parsed() {
    // Other programs than in the paper, because those of the paper may not exist here.
    let a = "ftp      cat      @128Kbyte/sec\n\
             login    sleep    @32Kbyte/sec\n\
             telnet   true     @32Kbyte/sec\n";
    let config = parse(a).expect("good");
    assert_eq!(kbytes(&config), [Some(128), Some(32), Some(32)]);
    let ports: Vec<u16> = config.services.iter().map(|s| s.port).collect();
    assert_eq!(ports, [21, 513, 23]);
    let ftp = &config.services[0];
    assert_eq!((ftp.argv0.as_str(), ftp.args.len()), ("cat", 0));
    assert_eq!(
        (ftp.user.uid, ftp.wait, ftp.protocol.datagram),
        (0, false, false)
    );
    let c = "ftp cat -l\nlogin sleep @32Kbyte/sec\n";
    let config = parse(c).expect("good");
    assert_eq!(kbytes(&config), [None, Some(32)]);
    assert_eq!(config.services[0].args, ["-l"]);
}

#[test]
fn a_full_line_sets_every_field() {
    let text = "# a comment\n\n\
        [::1]:8021 stream tcp6 nowait/3 nobody /bin/cat cat \"a b\" c @4mbit\n\
        127.0.0.1:tftp dgram udp4 wait root.0 /bin/cat in.tftpd\n";
    let config = parse(text).expect("good");
    let [one, two] = config.services.as_slice() else {
        panic!("{config:?}")
    };
    assert_eq!(one.address, Some("::1".parse().expect("an address")));
    assert_eq!((one.port, one.sessions), (8021, 3));
    assert_eq!(
        (one.argv0.as_str(), &one.args[..]),
        ("cat", &["a b".into(), "c".into()][..])
    );
    assert_eq!(one.protocol.family, Family::V6);
    assert_eq!(one.user.name, "nobody");
    assert!(two.wait && two.protocol.datagram);
    assert_eq!((two.port, two.argv0.as_str()), (69, "in.tftpd"));
    assert_eq!(two.location.to_string(), "inetd.conf:4");
}

#[test]
fn one_client_never_has_all_sessions() {
    let config = |text: &str| {
        let config = parse(&format!("{text}\nlines = \"ftp cat\"\n")).expect("good");
        (config.sessions, config.sessions_per_client)
    };
    assert_eq!(config("lend = true"), (4096, 1024));
    assert_eq!(config("sessions = 200"), (200, 50));
    assert_eq!(config("sessions = 20"), (20, 16));
    assert_eq!(config("sessions = 3"), (3, 3));
    assert_eq!(config("sessions_per_client = 4096"), (4096, 4096));
}

#[test]
fn toml_contains_lines_and_service_tables() {
    let text = r#"
total = "512Kbyte/s"
floor = "16kbit"
per_client = "1mbit"
sessions = 10
sessions_per_client = 4
lend = false
lines = """
ftp cat
telnet cat @32Kbyte/sec
"""

[[service]]
name = "backup"
port = 8730
address = "127.0.0.1"
program = "/bin/cat"
args = ["-u"]
weight = 300
rate = "64Kbyte/s"
user = "nobody"
sessions = 2
"#;
    let config = parse(text).expect("good");
    assert_eq!(config.total.map(|t| t.bytes_per_second()), Some(512 * 1024));
    assert_eq!(
        (config.sessions, config.sessions_per_client, config.lend),
        (10, 4, false)
    );
    assert_eq!(kbytes(&config), [None, Some(32), Some(64)]);
    let lines: Vec<_> = config.services.iter().map(|s| s.location.line).collect();
    assert_eq!(lines, [Some(9), Some(10), Some(14)]);
    assert_eq!(
        (config.services[2].weight, config.services[2].sessions),
        (300, 2)
    );
}

/// Parses each text; the error must be one line that starts with the location and contains the
/// part.
fn assert_errors(cases: &[(&str, &str, &str)]) {
    for (text, location, part) in cases {
        let error = parse(text).expect_err(text);
        assert!(error.starts_with(location), "{text}: {error}");
        assert!(error.contains(part), "{text}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn an_error_in_toml_has_its_file_line_and_reason() {
    assert_errors(&[
        ("ftp cat\nspeed = 3\n", "inetd.toml:", "="),
        (
            "total = \"512Kbyte/s\"\nspead = 1\nlines = \"ftp cat\"\n",
            "inetd.toml:2",
            "unknown field `spead`",
        ),
        (
            "total = \"512Kbyte/s\"\ntotal = \"1mbit\"\n",
            "inetd.toml:2",
            "duplicate key",
        ),
        (
            "floor = \"16\"\ntotal = \"512Kbyte/s\"\n",
            "inetd.toml:1",
            "it has no unit",
        ),
        (
            "total = \"512Kbyte/s\"\nlines = \"ftp cat @600Kbyte/s\"\n",
            "inetd.toml:2",
            "more than the total",
        ),
        (
            "total = \"512Kbyte/s\"\nsessions = 0\nlines = \"ftp cat\"\n",
            "inetd.toml:2",
            "1 to 4096",
        ),
        ("total = \"512Kbyte/s\"\n", "inetd.toml", "no service"),
        (
            "total = \"1mbit\"\n[[service]]\nname = \"ftp\"\nprogram = \"/no/such\"\n",
            "inetd.toml:4",
            "\"/no/such\" does not exist",
        ),
        (
            "[[service]]\nname = \"ftp\"\nport = 0\nprogram = \"cat\"\n",
            "inetd.toml:3",
            "port is 0; write 1 to 65535",
        ),
        (
            "[[service]]\nname = \"ftp\"\nport = 65536\nprogram = \"cat\"\n",
            "inetd.toml:3",
            "port is 65536; write 1 to 65535",
        ),
    ]);
}

#[test]
fn an_error_in_a_line_has_its_file_line_and_reason() {
    assert_errors(&[
        ("ftp cat @128\n", "inetd.conf:1", "it has no unit"),
        ("ftp cat @10mbps\n", "inetd.conf:1", "10mbit"),
        (
            "ftp cat\nftp true\n",
            "inetd.conf:2",
            "served already, by inetd.conf:1",
        ),
        ("\n# x\nnosuch cat\n", "inetd.conf:3", "/etc/services"),
        (
            "ftp nosuchprogram\n",
            "inetd.conf:1",
            "\"nosuchprogram\" does not exist",
        ),
        ("ftp stream tcp nowait root\n", "inetd.conf:1", "needs"),
        (
            "ftp stream udp wait root cat cat\n",
            "inetd.conf:1",
            "stream with tcp",
        ),
        (
            "ftp dgram udp nowait root cat cat\n",
            "inetd.conf:1",
            "must be `wait`",
        ),
        (
            "ftp stream tcp maybe root cat cat\n",
            "inetd.conf:1",
            "nowait/N",
        ),
        (
            "ftp stream tcp nowait nosuchuser cat cat\n",
            "inetd.conf:1",
            "no user",
        ),
        (
            "echo stream tcp nowait root internal\n",
            "inetd.conf:1",
            "built-in",
        ),
        (
            "ftp stream sctp nowait root cat cat\n",
            "inetd.conf:1",
            "tcp, tcp4",
        ),
        ("here:ftp cat\n", "inetd.conf:1", "127.0.0.1:ftp"),
        ("ftp\n", "inetd.conf:1", "needs"),
    ]);
}

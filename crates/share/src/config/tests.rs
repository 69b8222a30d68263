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
fn the_papers_lines_are_read_as_they_are() {
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
fn full_lines_name_everything() {
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
    assert_eq!(two.place.to_string(), "inetd.conf:4");
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
fn toml_holds_lines_and_tables() {
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
    let lines: Vec<_> = config.services.iter().map(|s| s.place.line).collect();
    assert_eq!(lines, [Some(9), Some(10), Some(14)]);
    assert_eq!(
        (config.services[2].weight, config.services[2].sessions),
        (300, 2)
    );
}

#[test]
fn whatever_is_wrong_is_told_with_file_line_and_reason() {
    let head = "total = \"512Kbyte/s\"\n";
    for (text, starts, part) in [
        ("ftp cat\nspeed = 3\n".to_string(), "inetd.toml:", "="),
        (
            format!("{head}spead = 1\nlines = \"ftp cat\"\n"),
            "inetd.toml:2",
            "unknown field `spead`",
        ),
        (
            format!("{head}total = \"1mbit\"\n"),
            "inetd.toml:2",
            "duplicate key",
        ),
        (
            format!("floor = \"16\"\n{head}"),
            "inetd.toml:1",
            "it has no unit",
        ),
        (
            format!("{head}lines = \"ftp cat @600Kbyte/s\"\n"),
            "inetd.toml:2",
            "more than the total",
        ),
        (
            format!("{head}sessions = 0\nlines = \"ftp cat\"\n"),
            "inetd.toml:2",
            "1 to 4096",
        ),
        (head.to_string(), "inetd.toml", "no service"),
        (
            format!("{head}[[service]]\nname = \"ftp\"\nprogram = \"/no/such\"\n"),
            "inetd.toml:4",
            "\"/no/such\" does not exist",
        ),
        (
            "ftp cat @128\n".to_string(),
            "inetd.conf:1",
            "it has no unit",
        ),
        ("ftp cat @10mbps\n".to_string(), "inetd.conf:1", "10mbit"),
        (
            "ftp cat\nftp true\n".to_string(),
            "inetd.conf:2",
            "served already, by inetd.conf:1",
        ),
        (
            "\n# x\nnosuch cat\n".to_string(),
            "inetd.conf:3",
            "/etc/services",
        ),
        (
            "ftp nosuchprogram\n".to_string(),
            "inetd.conf:1",
            "\"nosuchprogram\" does not exist",
        ),
        (
            "ftp stream tcp nowait root\n".to_string(),
            "inetd.conf:1",
            "needs",
        ),
        (
            "ftp stream udp wait root cat cat\n".to_string(),
            "inetd.conf:1",
            "stream with tcp",
        ),
        (
            "ftp dgram udp nowait root cat cat\n".to_string(),
            "inetd.conf:1",
            "must be `wait`",
        ),
        (
            "ftp stream tcp maybe root cat cat\n".to_string(),
            "inetd.conf:1",
            "nowait/N",
        ),
        (
            "ftp stream tcp nowait nosuchuser cat cat\n".to_string(),
            "inetd.conf:1",
            "no user",
        ),
        (
            "echo stream tcp nowait root internal\n".to_string(),
            "inetd.conf:1",
            "built-in",
        ),
        (
            "ftp stream sctp nowait root cat cat\n".to_string(),
            "inetd.conf:1",
            "tcp, tcp4",
        ),
        (
            "here:ftp cat\n".to_string(),
            "inetd.conf:1",
            "127.0.0.1:ftp",
        ),
        ("ftp\n".to_string(), "inetd.conf:1", "needs"),
    ] {
        let error = parse(&text).expect_err(&text);
        assert!(error.starts_with(starts), "{text}: {error}");
        assert!(error.contains(part), "{text}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

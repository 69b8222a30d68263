use std::ffi::OsString;

use super::*;
use crate::args::parse;

/// Parses `netnice peer LINE`.
fn peer(line: &str) -> Result<PeerCommand, String> {
    let words = ["netnice", "peer"].into_iter().chain(line.split(' '));
    match parse(words.map(OsString::from).collect()) {
        Ok(command) => match command.verb {
            Verb::Peer(command) => Ok(command),
            other => panic!("{line}: {other:?}"),
        },
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn hosts_and_days_are_read() {
    for (line, expected) in [
        ("issue --folder lab Ann bob.example.org", 365),
        ("issue Ann --days 1 --folder lab bob.example.org", 1),
        (
            "issue --folder lab --days 36500 ann bob.example.org",
            36_500,
        ),
    ] {
        let PeerCommand::Issue {
            folder,
            days,
            hosts,
        } = peer(line).expect(line)
        else {
            panic!("{line}");
        };
        assert_eq!((folder, days), (PathBuf::from("lab"), expected), "{line}");
        let hosts: Vec<&str> = hosts.iter().map(HostName::as_str).collect();
        assert_eq!(hosts, ["ann", "bob.example.org"], "{line}");
    }
}

#[test]
fn the_neighbours_can_be_listed_as_json() {
    for line in ["ls", "ls --json"] {
        assert!(matches!(peer(line), Ok(PeerCommand::List)), "{line}");
    }
}

#[test]
fn invalid_lines_are_refused_with_the_word() {
    for (line, part) in [
        ("issue --folder lab", "<HOST>"),
        ("issue ann", "--folder"),
        (
            "issue --folder lab ann b_b",
            "`b_b` is not the name of a host",
        ),
        (
            "issue --folder lab ../ann",
            "`../ann` is not the name of a host",
        ),
        ("issue --folder lab a/b", "contains '/' at byte 1"),
        ("issue --folder lab --days 0 ann", "0 is not in 1..=36500"),
        (
            "issue --folder lab --days 36501 ann",
            "36501 is not in 1..=36500",
        ),
        (
            "issue --folder lab --json ann",
            "--json has no meaning with peer issue",
        ),
        (
            "issue --folder lab --dry-run ann",
            "--dry-run has no meaning with peer",
        ),
    ] {
        let error = peer(line).expect_err(line);
        assert!(error.contains(part), "{line}: {error}");
    }
    let long = "a".repeat(HostName::LONGEST + 1);
    let error = peer(&format!("issue --folder lab {long}")).expect_err("too long");
    assert!(error.contains("1 to 253 bytes, not 254"), "{error}");
}

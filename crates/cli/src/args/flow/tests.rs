use std::ffi::OsString;
use std::time::Duration;

use super::*;
use crate::args::{Command, command, parse};

/// Parses `netnice flow LINE`.
fn flow(line: &str) -> Result<FlowCommand, BadUsage> {
    let words = ["netnice", "flow"].into_iter().chain(line.split(' '));
    match parse(words.map(OsString::from).collect())? {
        Command {
            verb: Verb::Flow(command),
            ..
        } => Ok(command),
        other => panic!("{line}: {other:?}"),
    }
}

fn open(line: &str) -> Open {
    match flow(line) {
        Ok(FlowCommand::Open(open)) => *open,
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn the_contract_is_given_in_words_or_by_options() {
    for line in [
        "open --udp 192.0.2.1:9 slice 2ms/20ms extra",
        "open --udp 192.0.2.1:9 --slice 2ms/20ms --extra",
    ] {
        let open = open(line);
        assert_eq!(open.contract.as_deref(), Some("slice 2ms/20ms extra"));
        assert!(matches!(open.remote, Remote::To(to) if to == "192.0.2.1:9"));
        assert_eq!((open.iface, open.wait), (None, Duration::from_secs(1)));
    }
    // The link is that of the attachment.
    let linked = open("open --udp 192.0.2.1:9 --on eth0 --min 5mbit");
    assert_eq!(linked.iface.as_deref(), Some("eth0"));
    assert_eq!(linked.contract.as_deref(), Some("min 5mbit"));
    let best = open("open --udp 192.0.2.1:9 --on eth0");
    assert_eq!((best.iface.as_deref(), best.contract), (Some("eth0"), None));
}

#[test]
fn addresses_have_a_port_and_may_leave_the_host_open() {
    let with_port = open("open --udp host:9 --local :5000 -w 0s -q");
    assert_eq!(with_port.local, Some("0.0.0.0:5000".parse().unwrap()));
    assert_eq!((with_port.wait, with_port.quiet), (Duration::ZERO, true));
    let listening = open("open --listen [2001:db8::1]:5000");
    let at = "[2001:db8::1]:5000".parse().unwrap();
    assert!(matches!(listening.remote, Remote::Listen(to) if to == at));
}

#[test]
fn a_flow_is_closed_by_its_number() {
    for line in ["close 7", "close flow:7"] {
        assert!(matches!(flow(line), Ok(FlowCommand::Close(7))), "{line}");
    }
    assert!(matches!(flow("ls"), Ok(FlowCommand::List)));
}

#[test]
fn invalid_command_lines_are_refused() {
    for (line, part) in [
        ("open", "--udp"),
        ("open --udp a:1 --listen 192.0.2.1:9", "cannot be used with"),
        (
            "open --udp a:1 --local nowhere",
            "not an address with a port",
        ),
        ("open --udp a:1 --up 1mbit up 2mbit", "given twice"),
        ("open --udp a:1 --json", "no meaning"),
        ("open --udp a:1 --dry-run", "no meaning"),
        ("open --udp a:1 slice", "slice"),
        ("close eth0", "flow"),
        ("close direct:eth0", "flow"),
    ] {
        let error = flow(line).expect_err(line).to_string();
        assert!(error.contains(part), "{line}: {error}");
    }
}

#[test]
fn the_help_of_open_names_only_clauses_of_flows() {
    let mut command = command();
    let flow = command.find_subcommand_mut("flow").expect("a verb");
    let open = flow.find_subcommand_mut("open").expect("a verb");
    let help = open.render_help().to_string();
    for option in ["--slice", "--cell", "--channel", "--up"] {
        assert!(help.contains(option), "{option}: {help}");
    }
    for option in ["--down ", "--both", "--quota", "--cpu", "--priority"] {
        assert!(!help.contains(option), "{option}: {help}");
    }
}

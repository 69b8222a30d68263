//! Tests flows of other IP protocols and EtherTypes through the C library, with raw sockets of the
//! kernel as peers. The library opens them by the calls of `netnice_stack`, so both are tested.

use std::path::PathBuf;

use netnice_lab::experiment::bench::at;
use netnice_lab::process::{EVENT_TIMEOUT, Proc, run};
use netnice_lab::testbed::TestBed;
use netnice_lab::world::Family;

use crate::c_compiler::{Link, compile, install};
use crate::users::{ANN, as_user};

/// A test bed with a managed link, and the two programs.
struct ProtocolBed {
    bed: TestBed,
    echo: PathBuf,
    peer: PathBuf,
}

impl ProtocolBed {
    fn new() -> ProtocolBed {
        let bed = TestBed::new().expect("a test bed");
        bed.run_ok("link eth0 --rate 100mbit");
        let root = bed.world.folder().join("prefix");
        install(&root);
        let program = |name: &str| {
            let source = format!("../lab/tests/system/direct_protocols/{name}.c");
            let out = bed.world.folder().join(name);
            compile(&root, &source, &out, Link::Static);
            out
        };
        let (echo, peer) = (program("echo"), program("peer"));
        ProtocolBed { bed, echo, peer }
    }

    /// Starts a flow that returns what it receives, and waits until it is open.
    fn echo(&self, words: &[&str]) -> Proc {
        let mut command = self.bed.world.client().ns.command(&self.echo);
        command.args(words);
        command.env("NETNICE_RUNTIME_DIR", self.bed.netnice.runtime());
        let mut echo = Proc::start(command).expect("it starts");
        let line = echo.next_line(EVENT_TIMEOUT).expect("the flow opens");
        assert_eq!(line, "open");
        echo
    }

    /// Sends payloads from the server, and returns the length of the one that came back.
    fn peer(&self, words: &[&str]) -> String {
        let mut command = self.bed.world.server().ns.command(&self.peer);
        run(command.args(words)).expect("a payload comes back")
    }
}

#[test]
fn payloads_of_an_ip_protocol_pass_between_a_flow_and_a_raw_socket() {
    let bed = ProtocolBed::new();
    for family in [Family::V4, Family::V6] {
        let [own, peer] = [bed.bed.world.client(), bed.bed.world.server()]
            .map(|host| at(host, family, 0).ip().to_string());
        for length in ["40", "1400"] {
            // Between two hosts, and with any host.
            for words in [vec!["ip", "253", &own, &peer], vec!["ip", "253", &own]] {
                let _echo = bed.echo(&words);
                assert_eq!(bed.peer(&["ip", "253", &own, length]).trim(), length);
            }
        }
    }
    let shown = bed.bed.netnice.show().expect("it is shown");
    assert_eq!(shown["direct"].as_array().map(Vec::len), Some(0));
}

#[test]
fn payloads_of_an_ethertype_pass_between_a_flow_and_a_packet_socket() {
    let bed = ProtocolBed::new();
    let _echo = bed.echo(&["ether", "0x88b5"]);
    let client = bed.bed.world.client();
    let mac = client.ns.ip("-o link show dev eth0").expect("the device");
    let mac = mac.split("link/ether ").nth(1).expect("an address");
    let mac = mac.split(' ').next().expect("a word");
    let device = bed.bed.world.server().port().device.clone();
    for length in ["60", "1500"] {
        let got = bed.peer(&["ether", "0x88b5", &device, mac, length]);
        assert_eq!(got.trim(), length);
    }
    let listed = bed.bed.run_ok("flow ls").stdout;
    assert!(listed.contains("EtherType 0x88b5"), "{listed}");
}

#[test]
fn protocols_of_the_kernel_and_plain_users_are_refused() {
    let bed = ProtocolBed::new();
    let own = at(bed.bed.world.client(), Family::V4, 0).ip().to_string();
    let fails = |mut command: std::process::Command, words: &[&str], part: &str| {
        command.env("NETNICE_RUNTIME_DIR", bed.bed.netnice.runtime());
        let output = command.args(words).output().expect("it starts");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{words:?}: {text}");
        assert!(text.contains(part), "{words:?}: {text}");
    };
    let root = || bed.bed.world.client().ns.command(&bed.echo);
    fails(root(), &["ip", "6", &own], "TCP");
    fails(root(), &["ip", "58", &own], "ICMPv6");
    fails(root(), &["ether", "0x0806"], "not for direct flows");
    let user = || {
        let mut command = as_user(&bed.bed, ANN);
        let copy = bed.bed.world.folder().join("echo-for-all");
        if !copy.exists() {
            let mut install = std::process::Command::new("install");
            let done = install
                .args(["-m", "755"])
                .arg(&bed.echo)
                .arg(&copy)
                .status();
            assert!(done.expect("install runs").success());
        }
        command.arg(copy);
        command
    };
    fails(user(), &["ip", "253", &own], "root and the group netnice");
    fails(user(), &["ether", "0x88b5"], "root and the group netnice");
}

//! Tests code points (DSCP): what arrives from a target carries the target's code point, with right
//! checksums and the sender's ECN bits; packets of other programs, and of the target after `clear`,
//! carry their own. A plain user may set only the code points that the policy allows.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;

use netnice_lab::experiment::bench::pause;
use netnice_lab::process::Proc;
use netnice_lab::testbed::{TestBed, becomes_true};
use netnice_lab::traffic::{self, Running, Tcp, Udp};
use netnice_lab::wire::{Tap, WireFlow};
use netnice_lab::world::Family;

use crate::users::{ANN, process_of, run_as};

/// The second octet of an IP header, as two numbers, and whether the header's checksum is right
/// (IPv6 has none).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mark {
    pub dscp: u8,
    pub ecn: u8,
    pub valid_checksum: bool,
}

/// The different marks of the packets that the server receives in 0.3 s from flows that `of`
/// accepts.
pub(crate) fn marks(
    bed: &TestBed,
    of: impl Fn(&WireFlow) -> bool + Send + 'static,
) -> BTreeSet<Mark> {
    let file = bed.world.folder().join("marks.pcap");
    let server = &bed.world.server().ns;
    let only = move |flow: &WireFlow| flow.inbound && of(flow);
    let tap = Tap::start_capturing(server, "eth0", &file, only).expect("a meter");
    pause(0.3);
    tap.stop(server)
        .expect("a record")
        .validate()
        .expect("a valid record");
    let bytes = fs::read(&file).expect("a capture");
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let mut marks = BTreeSet::new();
    let mut at = FILE_HEADER;
    while at + PACKET_HEADER <= bytes.len() {
        let kept = word(at + 8) as usize;
        let packet = &bytes[at + PACKET_HEADER..][..kept];
        marks.insert(mark(&packet[ETHERNET..]));
        at += PACKET_HEADER + kept;
    }
    marks
}

fn mark(ip: &[u8]) -> Mark {
    let octet = match ip[0] >> 4 {
        4 => ip[1],
        _ => ip[0] << 4 | ip[1] >> 4,
    };
    // The sum of all words of a valid IPv4 header, in ones' complement, is all ones (RFC 791 3.1).
    let words = ip[..usize::from(ip[0] & 0x0f) * 4].chunks_exact(2);
    let sum: u32 = words
        .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]))
        .sum();
    Mark {
        dscp: octet >> 2,
        ecn: octet & 3,
        valid_checksum: ip[0] >> 4 == 6 || (sum & 0xffff) + (sum >> 16) == 0xffff,
    }
}

/// The code points of packets to a port of the server.
fn code_points(bed: &TestBed, port: u16) -> Vec<u8> {
    let marks = marks(bed, move |flow| flow.target.1 == port);
    assert!(marks.iter().all(|mark| mark.valid_checksum), "{marks:?}");
    let codes: BTreeSet<u8> = marks.iter().map(|mark| mark.dscp).collect();
    codes.into_iter().collect()
}

/// Fails unless all packets to this port get this code point, and no other.
fn assert_marked(bed: &TestBed, port: u16, dscp: u8) {
    // Packets that were sent before the change may still be in a queue.
    let reached = becomes_true(|| code_points(bed, port) == [dscp]);
    assert!(
        reached,
        "port {port}: {:?}, not {dscp}",
        code_points(bed, port)
    );
}

/// Starts a TCP program on the client that sends to this port of the server.
fn sender(bed: &TestBed, family: Family, port: u16) -> (Running, Running) {
    let (client, server) = (bed.world.client(), bed.world.server());
    let to = SocketAddr::new(server.address(family), port);
    let sink = traffic::start_now(server, &Tcp::listen(to).sink()).expect("a sink");
    let flow = Tcp::connect(to, 1).source().rate(20_000_000);
    (traffic::start_now(client, &flow).expect("a program"), sink)
}

fn check_marks(bed: &TestBed, family: Family) {
    for host in [bed.world.client(), bed.world.server()] {
        host.ns.sysctl("net/ipv4/tcp_ecn", "1").expect("ECN");
    }
    let (own, _sink) = sender(bed, family, 5001);
    let (_other, _other_sink) = sender(bed, family, 5002);
    let target = format!("pid:{}", own.pid());
    // A packet that TCP sends again is not ECN-capable (RFC 3168 6.1.5).
    let assert_ecn = || {
        let marks = marks(bed, |flow| flow.target.1 == 5001);
        let ecn: BTreeSet<u8> = marks.iter().map(|mark| mark.ecn).collect();
        let known = ecn.iter().all(|ecn| matches!(*ecn, 0 | ECT_0));
        assert!(known && ecn.contains(&ECT_0), "the bits of ECN: {ecn:?}");
    };
    assert_marked(bed, 5001, 0);
    assert_ecn();
    bed.run_ok(&format!("set {target} --dscp AF21"));
    assert_marked(bed, 5001, 18);
    assert_ecn();
    assert_eq!(bed.target(&target)["effective"]["dscp"], 18);
    // Also what passes the stage of a limit, and by number.
    bed.run_ok(&format!("set {target} --up 4mbit --dscp 63"));
    assert_marked(bed, 5001, 63);
    let said = bed.run_ok(&format!("explain {target}")).stdout;
    assert!(said.contains("code point 63"), "{said}");
    let rate = bed.sent_rate_of(0.5, 1.0, |flow| flow.target.1 == 5001);
    let rate = rate.expect("a rate");
    assert!(
        (2e6..4.2e6).contains(&rate),
        "{rate:.0} bit/s arrive under 4 Mbit/s"
    );
    assert_marked(bed, 5002, 0);
    bed.run_ok(&format!("set {target} --dscp none"));
    assert_marked(bed, 5001, 0);
    bed.run_ok(&format!("set {target} --dscp EF --up none"));
    assert_marked(bed, 5001, 46);
    bed.run_ok(&format!("clear {target}"));
    assert_marked(bed, 5001, 0);
    assert_ecn();
    assert_marked(bed, 5002, 0);
}

#[test]
fn a_target_s_packets_carry_its_code_point_over_ipv4() {
    check_marks(&TestBed::new().expect("a test bed"), Family::V4);
}

#[test]
fn a_target_s_packets_carry_its_code_point_over_ipv6() {
    check_marks(&TestBed::new().expect("a test bed"), Family::V6);
}

#[test]
fn packets_of_segmentation_offload_carry_the_code_point() {
    check_marks(&TestBed::with_offloads().expect("a test bed"), Family::V4);
}

#[test]
fn datagrams_and_children_are_marked_and_the_program_s_own_code_point_is_replaced() {
    let bed = TestBed::new().expect("a test bed");
    let to = bed.sink(5001).expect("a sink");
    let flow = Udp::source(bed.client(6001), to).rate(2_000_000);
    let flood = traffic::start_now(bed.world.client(), &flow).expect("a program");
    bed.run_ok(&format!("set pid:{} --dscp LE", flood.pid()));
    assert_marked(&bed, 5001, 1);
    drop(flood);
    // A shell, its child's ping, and the code point that ping itself asks for (CS5).
    let mut shell = bed.world.client().ns.command("sh");
    let server = bed.server(0).ip();
    shell.args([
        "-c",
        &format!("sleep 1; ping -q -i 0.05 -Q 0xa0 {server}; true"),
    ]);
    let shell = Proc::start(shell).expect("a shell");
    bed.run_ok(&format!("set pid:{} --dscp CS1", shell.pid()));
    let icmp = |flow: &WireFlow| flow.transport == netnice_lab::wire::Transport::Icmp;
    let seen = || -> Vec<u8> { marks(&bed, icmp).iter().map(|mark| mark.dscp).collect() };
    assert!(becomes_true(|| seen() == [8]), "{:?}", seen());
    bed.run_ok(&format!("clear pid:{}", shell.pid()));
    assert!(
        becomes_true(|| seen() == [40]),
        "its own again: {:?}",
        seen()
    );
}

#[test]
fn a_user_sets_what_the_policy_allows_and_overrides_nothing_of_root() {
    let bed = TestBed::new().expect("a test bed");
    let own = process_of(&bed, ANN);
    let target = format!("pid:{}", own.pid());
    let code = || bed.target(&target)["effective"]["dscp"].clone();
    for name in ["EF", "AF21", "46"] {
        let answer = run_as(&bed, ANN, &format!("set {target} --up 4mbit --dscp {name}"));
        assert_eq!(answer.status, 3, "{answer:?}");
        assert!(answer.stderr.contains("CS0, LE, CS1"), "{answer:?}");
    }
    assert_eq!(
        bed.effective_up(&target),
        serde_json::Value::Null,
        "nothing is half done"
    );
    let answer = run_as(&bed, ANN, &format!("set {target} --dscp LE"));
    assert_eq!((answer.status, code()), (0, 1.into()), "{answer:?}");
    // Root's code point of the user comes first.
    bed.run_ok(&format!("set user:{ANN} --dscp CS1"));
    assert_eq!(code(), 8);
    let answer = run_as(&bed, ANN, &format!("set {target} --dscp CS0"));
    assert_eq!((answer.status, code()), (0, 8.into()), "{answer:?}");
    let answer = run_as(&bed, ANN, &format!("clear user:{ANN}"));
    assert_ne!(answer.status, 0, "{answer:?}");
    assert_eq!(code(), 8);
    bed.run_ok(&format!("clear user:{ANN}"));
    assert_eq!(code(), 0);
    fs::write(bed.netnice.policy(), "dscp_users = [\"AF21\"]\n").expect("a policy");
    bed.run_ok("reload");
    let answer = run_as(&bed, ANN, &format!("set {target} --dscp CS1"));
    assert_eq!(answer.status, 3, "{answer:?}");
    let answer = run_as(&bed, ANN, &format!("set {target} --dscp AF21"));
    assert_eq!((answer.status, code()), (0, 18.into()), "{answer:?}");
}

/// ECN-capable transport (0), RFC 3168 5.
const ECT_0: u8 = 2;
const FILE_HEADER: usize = 24;
const PACKET_HEADER: usize = 16;
const ETHERNET: usize = 14;

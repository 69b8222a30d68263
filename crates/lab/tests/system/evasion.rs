//! Tests that a limit holds for any use of sockets, names, cgroups and packets by the limited
//! program. The programs here belong to a plain user; root limits them.
//!
//! A tag is the mark that the daemon stores at a socket which is open when its owner gets a limit
//! (docs/internals/architecture.md). The tag takes some of the socket's option memory, which a
//! program can use up before.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use netnice_lab::experiment::bench::{self, R4M};
use netnice_lab::process::{EVENT_TIMEOUT, Proc};
use netnice_lab::testbed::{TestBed, becomes_true};
use netnice_lab::traffic::{self, Tcp, Udp};
use netnice_lab::world::{Cgroup, Family, Host, Netns};

use crate::users::{ANN, as_user, command_as, setpriv};

/// Starts a Python program of ANN on the client, in a cgroup if given, and waits for its first
/// line.
fn start_evading(bed: &TestBed, group: Option<&Cgroup>, program: &str, args: &[&str]) -> Proc {
    let mut command = bed.world.client().ns.command("sh");
    let enter = "test -z \"$0\" || echo 0 > \"$0\"; exec \"$@\"";
    let procs = group.map(|group| group.procs().display().to_string());
    command.args(["-c", enter, &procs.unwrap_or_default()]);
    command.args(setpriv(ANN));
    command.args([
        "/usr/bin/python3",
        "-c",
        &format!("{SCRIPT_PRELUDE}{program}"),
    ]);
    command.args(args);
    let mut process = Proc::start(command).expect("a program");
    let said = process.next_line(EVENT_TIMEOUT);
    said.unwrap_or_else(|error| panic!("{error:#}: {}", process.take_stderr()));
    process
}

/// `fill` uses up a socket's option memory: a datagram socket joins multicast groups, a TCP socket
/// adds keys for peers that do not exist.
const SCRIPT_PRELUDE: &str = r"
import ctypes, os, signal, socket, struct, sys, time
def join(s, number):
    group = socket.inet_pton(socket.AF_INET6, 'ff02::db8:%x' % number)
    index = socket.if_nametoindex('eth0')
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group + struct.pack('@I', index))
def add_key(s, number):
    peer = struct.pack('@H2x4s120x', socket.AF_INET, struct.pack('!I', 0x0ac80000 + number))
    s.setsockopt(socket.IPPROTO_TCP, 14, peer + struct.pack('@BBHi80s', 0, 0, 16, 0, b'k' * 16))
def fill(s, add):
    number = 0
    try:
        while number < 60000:
            add(s, number)
            number += 1
    except OSError as error:
        if number == 0: raise
    if number == 60000: raise Exception('it never fills')
";

/// Sends datagrams, at most eight in a row each millisecond, from a socket without memory for a
/// tag.
const SENDER_SCRIPT: &str = r"
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.bind(('::', int(sys.argv[3])))
fill(s, join)
print('full', flush=True)
while True:
    try:
        for _ in range(8): s.sendto(b'x' * 1200, (sys.argv[1], int(sys.argv[2])))
    except OSError: pass
    time.sleep(0.001)
";

/// Sends from the last of thousands of sockets.
const MANY_SOCKETS_SCRIPT: &str = r"
import resource
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
all = [socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) for _ in range(3000)]
print('full', flush=True)
while True:
    try:
        for _ in range(8): all[-1].sendto(b'x' * 1200, (sys.argv[1], int(sys.argv[2])))
    except OSError: pass
    time.sleep(0.001)
";

/// Receives on such a socket without sending; for each input line prints the bits so far and the
/// time.
const RECEIVER_SCRIPT: &str = r"
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.bind(('::', int(sys.argv[1])))
fill(s, join)
print('full', flush=True)
import select
got = 0
while True:
    ready = select.select([s, sys.stdin], [], [])[0]
    if s in ready: got += len(s.recv(2000)) + 62
    if sys.stdin in ready:
        sys.stdin.readline()
        print(got * 8, time.monotonic_ns(), flush=True)
";

/// Serves connections of a listener that has no option memory left for a tag.
const LISTENER_SCRIPT: &str = r"
s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
s.bind(('', int(sys.argv[1])))
fill(s, add_key)
s.listen(8)
print('full', flush=True)
while True:
    c, _ = s.accept()
    if os.fork() == 0:
        while True: c.sendall(b'x' * 65536)
";

/// A sink of datagrams at the server's IPv6 address.
fn sink(bed: &TestBed, port: u16) -> (traffic::Running, String) {
    let to = bench::at(bed.world.server(), Family::V6, port);
    let sink = traffic::start_now(bed.world.server(), &Udp::sink(to)).expect("a sink");
    (sink, to.ip().to_string())
}

fn sent_rate(bed: &TestBed) -> f64 {
    // By then the packets that the flood queued before the limit have left.
    bed.sent_rate(1.0, 1.5).expect("a rate")
}

#[test]
fn a_socket_without_room_for_a_tag_is_limited() {
    let mut bed = TestBed::new().expect("a test bed");
    let (_sink, to) = sink(&bed, 5001);
    let program = start_evading(&bed, None, SENDER_SCRIPT, &[&to, "5001", "6001"]);
    let pid = program.pid();
    let answer = bed.run_ok(&format!("set pid:{pid} --up 4mbit"));
    assert!(
        answer.stdout.contains("have no room for a tag"),
        "{answer:?}"
    );
    bed.await_limited(|| sent_rate(&bed), R4M, "a process");
    bed.netnice.kill_daemon();
    bed.netnice.start_daemon().expect("it starts again");
    bed.await_limited(|| sent_rate(&bed), R4M, "after the daemon was killed");
    bed.run_ok(&format!("clear pid:{pid}"));
    bed.await_unlimited((0.3, 0.5), R4M, "it has no limit");
    // A rule of the policy has the same effect.
    let rule = format!("[[rule]]\nname = \"ann\"\nmatch = \"user:{ANN}\"\nup = \"4mbit\"\n");
    fs::write(bed.netnice.policy(), rule).expect("a policy");
    bed.run_ok("reload");
    bed.await_limited(|| sent_rate(&bed), R4M, "a user of the policy");
}

#[test]
fn each_of_thousands_of_sockets_is_limited() {
    let mut bed = TestBed::new().expect("a test bed");
    let (_sink, to) = sink(&bed, 5001);
    let program = start_evading(&bed, None, MANY_SOCKETS_SCRIPT, &[&to, "5001"]);
    let pid = program.pid();
    let answer = bed.run_ok(&format!("set pid:{pid} --up 4mbit"));
    assert!(answer.stdout.contains("held a moment later"), "{answer:?}");
    await_limited(&bed, "a process");
    bed.run_ok(&format!("clear pid:{pid}"));
    bed.await_unlimited((0.3, 0.5), R4M, "it has no limit");
    // A daemon that is killed before it has tagged all sockets leaves the rest to the next one.
    bed.run_ok(&format!("set pid:{pid} --up 4mbit"));
    bed.netnice.kill_daemon();
    bed.netnice.start_daemon().expect("it starts again");
    await_limited(&bed, "after the daemon was killed");
}

/// Fails unless the limit holds within [`EVENT_TIMEOUT`], and then once more. The daemon tags
/// thousands of sockets in steps; on an emulated machine that takes seconds.
fn await_limited(bed: &TestBed, what: &str) {
    let is_held = becomes_true(|| sent_rate(bed) <= 1.03 * R4M.bits as f64);
    assert!(is_held, "{what}: it sends more than its limit");
    bed.await_limited(|| sent_rate(bed), R4M, what);
}

#[test]
fn an_open_socket_without_room_for_a_tag_is_limited_by_its_cgroup() {
    let bed = TestBed::new().expect("a test bed");
    let (_sink, to) = sink(&bed, 5001);
    let group = Cgroup::create("full.slice").expect("a group");
    let _sends = start_evading(&bed, Some(&group), SENDER_SCRIPT, &[&to, "5001", "6001"]);
    let mut receives = start_evading(&bed, Some(&group), RECEIVER_SCRIPT, &["6002"]);
    let at = bench::at(bed.world.client(), Family::V6, 6002);
    let from = bench::at(bed.world.server(), Family::V6, 6003);
    let flood = Udp::source(from, at).rate(16_000_000);
    let _flood = traffic::start_now(bed.world.server(), &flood).expect("a flood");
    bed.run_ok(&format!(
        "set cgroup:{} --up 4mbit --down 4mbit",
        group.path()
    ));
    bed.await_limited(|| sent_rate(&bed), R4M, "what the group sends");
    let mut received = || {
        receives.write_line("?").expect("it hears");
        let line = receives.next_line(EVENT_TIMEOUT).expect("it counts");
        let (bits, at) = line.split_once(' ').expect("two numbers");
        let number = |text: &str| text.parse::<f64>().expect("a number");
        (number(bits), number(at))
    };
    let before = received();
    bench::pause(1.5);
    let after = received();
    let rate = (after.0 - before.0) / (after.1 - before.1) * 1e9;
    bed.assert_limited(rate, R4M, "what the group receives");
}

#[test]
fn connections_of_a_listener_without_room_for_a_tag_are_limited() {
    let bed = TestBed::new().expect("a test bed");
    let program = start_evading(&bed, None, LISTENER_SCRIPT, &["6001"]);
    let answer = bed.run_ok(&format!("set pid:{} --up 4mbit", program.pid()));
    assert!(
        answer.stdout.contains("have no room for a tag"),
        "{answer:?}"
    );
    let asks = Tcp::connect(bed.client(6001), 2).sink();
    let _asks = traffic::start_now(bed.world.server(), &asks).expect("a server");
    bed.await_limited(|| sent_rate(&bed), R4M, "accepted connections");
}

/// Sends datagrams under a process name that is not valid text, from the start or from a signal on.
const INVALID_NAME_SCRIPT: &str = r"
libc = ctypes.CDLL(None)
def call(name): libc.prctl(15, name, 0, 0, 0)
if sys.argv[3] == 'now': call(b'\xff\xfe) \x1b[31m')
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
print('ready', flush=True)
signal.signal(signal.SIGUSR1, lambda *_: call(b'\x80\x81'))
while True:
    try: s.sendto(b'x' * 1200, (sys.argv[1], int(sys.argv[2])))
    except OSError: pass
    time.sleep(0.001)
";

#[test]
fn a_process_whose_name_is_not_utf8_is_limited() {
    let bed = TestBed::new().expect("a test bed");
    let (_sink, to) = sink(&bed, 5001);
    let program = start_evading(&bed, None, INVALID_NAME_SCRIPT, &[&to, "5001", "now"]);
    let pid = program.pid();
    bed.run_ok(&format!("set pid:{pid} --up 4mbit"));
    bed.await_limited(|| sent_rate(&bed), R4M, "a process without a name");
    let said = bed.run_ok(&format!("explain pid:{pid}")).stdout;
    assert!(!said.contains('\x1b'), "{said:?}");
}

#[test]
fn a_process_that_takes_a_name_that_is_not_utf8_stays_limited_over_a_restart() {
    let mut bed = TestBed::new().expect("a test bed");
    let (_sink, to) = sink(&bed, 5001);
    let program = start_evading(&bed, None, INVALID_NAME_SCRIPT, &[&to, "5001", "later"]);
    let pid = program.pid();
    bed.run_ok(&format!("set pid:{pid} --up 4mbit"));
    let comm = || fs::read(format!("/proc/{pid}/comm")).expect("its name");
    let before = comm();
    netnice_lab::sys::kill(pid as i32, 10).expect("it is told");
    assert!(becomes_true(|| comm() != before), "it keeps its name");
    for _ in 0..2 {
        bed.netnice.kill_daemon();
        bed.netnice.start_daemon().expect("it starts again");
    }
    assert_ne!(bed.target(&format!("pid:{pid}")), serde_json::Value::Null);
    bed.await_limited(|| sent_rate(&bed), R4M, "after a restart");
}

/// A slice and a cgroup in it that ANN owns, like `user@UID.service`.
fn delegated_slice() -> (Cgroup, Cgroup) {
    let slice = Cgroup::create("user.slice").expect("a slice");
    let part = slice
        .below(&format!("user@{ANN}.service"))
        .expect("a group");
    let folder = part.procs();
    let folder = folder.parent().expect("a folder");
    std::os::unix::fs::chown(folder, Some(ANN), Some(ANN)).expect("it is given away");
    (slice, part)
}

/// Makes a cgroup that ANN owns.
fn make_group_as_ann(part: &Cgroup, name: &str) -> Cgroup {
    let group = part.below(name).expect("a group");
    let folder = group.procs();
    let folder = folder.parent().expect("a folder");
    std::os::unix::fs::chown(folder, Some(ANN), Some(ANN)).expect("it is hers");
    group
}

#[test]
fn a_users_own_cgroup_does_not_get_the_contract_of_a_unit() {
    let bed = TestBed::new().expect("a test bed");
    let (slice, part) = delegated_slice();
    let name = format!("nn{}-name.service", std::process::id());
    let hers = make_group_as_ann(&part, &name);
    // Only the cgroup that ANN made has this name.
    let answer = bed.run_with_status(&format!("set unit:{name} --up 4mbit"), 1);
    assert!(answer.stderr.contains("is it running?"), "{answer:?}");
    let rule = format!("[[rule]]\nname = \"web\"\nmatch = \"unit:{name}\"\nup = \"4mbit\"\n");
    fs::write(bed.netnice.policy(), rule).expect("a policy");
    bed.run_ok("reload");
    let explained = || bed.run_ok(&format!("explain unit:{name}")).stdout;
    assert!(!explained().contains(hers.path()), "{}", explained());
    // The unit starts and gets its contract.
    let unit = slice.below(&name).expect("the unit");
    assert!(
        becomes_true(|| explained().contains(unit.path())),
        "{}",
        explained()
    );
    let to = bed.sink(5001).expect("a sink");
    let words = ["sh", "-c", "echo 0 > \"$0\" && exec \"$@\""];
    let procs = unit.procs();
    let words = [&words[..], &[procs.to_str().expect("plain")]].concat();
    let sends = Tcp::connect(to, 2).source();
    let _sends = traffic::start_through(bed.world.client(), &words, None, &sends).expect("it runs");
    bed.await_limited(|| sent_rate(&bed), R4M, "the unit");
}

#[test]
fn a_users_own_cgroup_is_not_treated_as_a_container() {
    let bed = TestBed::new().expect("a test bed");
    let id = format!("{:08x}", std::process::id()).repeat(8);
    let record = bed.netnice.docker().join("containers").join(&id);
    fs::create_dir_all(&record).expect("a folder");
    let text = format!(r#"{{"ID":"{id}","Name":"/web","State":{{"Running":true}}}}"#);
    fs::write(record.join("config.v2.json"), text).expect("a record");
    let (slice, part) = delegated_slice();
    let _hers = make_group_as_ann(&part, &format!("docker-{id}.scope"));
    let other = slice
        .below(&format!("docker-{}.scope", id.replace('0', "1")))
        .expect("a group");
    let _inside = other
        .below(&format!("docker-{id}.scope"))
        .expect("a group in a container");
    let answer = bed.run_with_status("set container:web --up 4mbit", 1);
    assert!(answer.stderr.contains("does not run"), "{answer:?}");
    let container = slice
        .below(&format!("docker-{id}.scope"))
        .expect("the container");
    bed.run_ok("set container:web --up 4mbit");
    let explained = bed.run_ok("explain container:web").stdout;
    assert!(explained.contains(container.path()), "{explained}");
}

/// The slot numbers in the eBPF programs' map with which packets return to an interface of the
/// client.
fn slots(bed: &TestBed, device: &str) -> Vec<String> {
    let about = bed.world.client().ns.ip(&format!("-j link show {device}"));
    let about = about.expect("the interface");
    let about: serde_json::Value = serde_json::from_str(&about).expect("JSON");
    let index = about[0]["ifindex"].as_u64().expect("a number") as u32;
    let map = bed.netnice.runtime().join("bpf/slots");
    let mut dump = Command::new("bpftool");
    dump.args(["-j", "map", "dump", "pinned"]).arg(map);
    let text = netnice_lab::process::run(&mut dump).expect("bpftool reads the map");
    let entries: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let byte = |byte: &serde_json::Value| {
        let hex = byte.as_str().expect("hex").trim_start_matches("0x");
        u8::from_str_radix(hex, 16).expect("hex")
    };
    let bytes = |entry: &serde_json::Value, part: &str| -> Vec<u8> {
        let bytes = entry[part].as_array().expect("bytes");
        bytes.iter().map(byte).collect()
    };
    let entries = entries.as_array().expect("a list").iter();
    entries
        .filter(|entry| bytes(entry, "value")[..4] == index.to_ne_bytes())
        .map(|entry| {
            let key = bytes(entry, "key");
            format!("{:04x}", u16::from_ne_bytes([key[0], key[1]]))
        })
        .collect()
}

/// A container with a network of its own, behind a veth pair.
fn make_network(bed: &TestBed) -> Host {
    let client = &bed.world.client().ns;
    let ns = Netns::create("tcindex").expect("a namespace");
    let name = ns.name();
    for line in [
        format!("link add vbox type veth peer name eth0 netns {name}"),
        "addr add 10.88.0.1/24 dev vbox".to_owned(),
        "link set vbox up".to_owned(),
    ] {
        client.ip(&line).expect("it is joined");
    }
    for line in [
        "addr add 10.88.0.2/24 dev eth0",
        "link set eth0 up",
        "route add default via 10.88.0.1",
    ] {
        ns.ip(line).expect("its network");
    }
    client
        .sysctl("net/ipv4/ip_forward", "1")
        .expect("forwarding");
    let server = &bed.world.server().ns;
    server
        .ip("route add 10.88.0.0/24 via 10.77.0.1")
        .expect("a route");
    Host {
        name: "box".to_owned(),
        ns,
        ports: Vec::new(),
    }
}

#[test]
fn a_container_that_marks_packets_as_already_shaped_is_limited() {
    let bed = TestBed::new().expect("a test bed");
    let slice = Cgroup::create("box.slice").expect("a slice");
    let id = format!("{:08x}", std::process::id()).repeat(8);
    let group = slice.below(&format!("docker-{id}.scope")).expect("a group");
    let inside = make_network(&bed);
    let to = bed.sink(5001).expect("a sink");
    let words = ["sh", "-c", "echo 0 > \"$0\" && exec \"$@\""];
    let procs = group.procs();
    let words = [&words[..], &[procs.to_str().expect("plain")]].concat();
    let sends = Tcp::connect(to, 2).source();
    let _sends = traffic::start_through(&inside, &words, None, &sends).expect("it runs");
    bed.run_ok(&format!("set container:{id} --up 4mbit"));
    bed.await_limited(|| sent_rate(&bed), R4M, "as it is");
    // The container's own classifier may give packets any tc_index, also the ones that netnice
    // uses.
    inside
        .ns
        .tc("qdisc add dev eth0 clsact")
        .expect("its queue is its own");
    let all = slots(&bed, "vbox");
    assert!(all.len() >= 6, "{all:?}");
    for slot in all {
        let rule = format!(
            "filter replace dev eth0 egress pref 1 handle 800::800 protocol ip u32 match u32 0 0 flowid :{slot}"
        );
        inside.ns.tc(&rule).expect("a classifier");
        let rate = bed.sent_rate(0.2, 0.7).expect("a rate");
        let most = R4M.bits as f64 * 1.03 + 8.0 * 65_536.0;
        assert!(
            rate <= most,
            "with tc_index {slot}: {:.3} Mbit/s",
            rate / 1e6
        );
    }
    bed.await_limited(|| sent_rate(&bed), R4M, "in the end");
}

/// A set-user-id program that ANN runs belongs to root, not to ANN.
#[test]
fn a_set_user_id_program_does_not_belong_to_its_caller() {
    let bed = TestBed::new().expect("a test bed");
    let program = bed.world.folder().join("sleep");
    fs::copy("/bin/sleep", &program).expect("a copy");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).expect("its mode");
    let started = |program: &str| {
        let mut command = command_as(bed.world.client(), ANN);
        command.args(["sh", "-c", "echo here; exec \"$0\" 600", program]);
        let mut process = Proc::start(command).expect("a process");
        process.next_line(EVENT_TIMEOUT).expect("it runs");
        let of = process.pid();
        let runs =
            || fs::read_to_string(format!("/proc/{of}/comm")).is_ok_and(|name| name == "sleep\n");
        assert!(becomes_true(runs), "it does not begin");
        process
    };
    let raised = started(program.to_str().expect("plain"));
    let own = started("/bin/sleep");
    let netnice = bed.copy_for_all("netnice").expect("a copy");
    let limit = |pid: u32| {
        let mut command = as_user(&bed, ANN);
        command
            .arg(&netnice)
            .args(["set", &format!("pid:{pid}"), "--up", "1kbit"]);
        let output = command.output().expect("netnice can be started");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), said)
    };
    assert_eq!(limit(own.pid()).0, Some(0));
    let (status, said) = limit(raised.pid());
    assert_eq!(status, Some(3), "{said}");
    assert!(said.contains("is not dumpable"), "{said}");
}

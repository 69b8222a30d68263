//! Channels over a router, through what is shipped: netniced, its drivers and netnice-peer on three
//! hosts, and `netnice channel` or a program in C at both ends.

mod explain;
mod random_faults;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use netnice_lab::process::{EVENT_TIMEOUT, Proc};
use netnice_lab::traffic::{self, Udp};
use netnice_lab::world::{Netnice, Peer, PeerOptions, Routed, World};
use serde_json::{Value, json};

use crate::c_compiler::{Link, compile, install};

/// A client, a router and a server, with netnice on all of them and links of 100 Mbit/s.
pub(super) struct Hosts {
    peers: Vec<Peer>,
    /// In the order of [`NAMES`].
    netnices: Vec<Netnice>,
    world: World,
}

const NAMES: [&str; 3] = ["client", "router", "server"];
const CAMERA: &str = "--mmax 60KiB --rate 50/s --burst 2";

impl Hosts {
    fn new() -> Hosts {
        Hosts::with([None; 3])
    }

    /// Hosts whose netnice-peer has these policy files, in the order of [`NAMES`].
    pub(super) fn with(policies: [Option<&str>; 3]) -> Hosts {
        let world = World::routed(Routed::default()).expect("a world");
        let links = [
            ("client", "eth0"),
            ("router", "eth0"),
            ("router", "eth1"),
            ("server", "eth0"),
        ];
        let netnices = NAMES.map(|name| world.netnice(name).expect("a daemon"));
        for (host, link) in links {
            let at = NAMES.iter().position(|name| *name == host).expect("a host");
            let line = format!("link {link} --rate 100mbit");
            netnices[at]
                .run_line(&line)
                .expect("it runs")
                .ok()
                .expect("a link");
        }
        let peers = NAMES.into_iter().zip(policies).map(|(name, policy)| {
            let path = world.folder().join(format!("{name}.toml"));
            let path = path.to_str().expect("UTF-8");
            let further = match policy {
                None => &[][..],
                Some(text) => {
                    std::fs::write(path, text).expect("written");
                    &["--policy", path]
                }
            };
            let options = PeerOptions {
                further,
                ..PeerOptions::default()
            };
            world.peer(name, &options).expect("a peer")
        });
        let peers = peers.collect();
        std::fs::write(world.folder().join("costs"), COSTS).expect("written");
        Hosts {
            peers,
            netnices: netnices.into(),
            world,
        }
    }

    pub(super) fn netnice(&self, host: &str) -> &Netnice {
        let at = NAMES.iter().position(|name| *name == host);
        &self.netnices[at.expect("a host")]
    }

    pub(super) fn peer(&mut self, host: &str) -> &mut Peer {
        let at = NAMES.iter().position(|name| *name == host);
        &mut self.peers[at.expect("a host")]
    }

    /// Starts a command of `netnice channel` at a host.
    pub(super) fn start(&self, host: &str, line: &str) -> Proc {
        let words: Vec<&str> = ["channel"]
            .into_iter()
            .chain(line.split_whitespace())
            .collect();
        let mut command = self.netnice(host).command(&words);
        command.env("NETNICE_COSTS", self.costs());
        Proc::start(command).expect("it starts")
    }

    /// Starts a program in C at a host.
    fn start_program(&self, host: &str, program: &Path, line: &str) -> Proc {
        let mut command = self.world.host(host).ns.command(program);
        command.env("NETNICE_RUNTIME_DIR", self.netnice(host).runtime());
        command.env("NETNICE_COSTS", self.costs());
        command.args(line.split_whitespace());
        Proc::start(command).expect("it starts")
    }

    /// The file of costs of all programs.
    fn costs(&self) -> PathBuf {
        self.world.folder().join("costs")
    }

    /// Starts a service at the server, and waits until it is offered.
    pub(super) fn listen(&self, line: &str) -> Proc {
        let mut listen = self.start("server", &format!("listen {line}"));
        wait_for(&mut listen, "listens as");
        listen
    }

    /// Starts a source at the client, and waits until its channel is established.
    pub(super) fn open(&self, line: &str) -> Proc {
        let mut open = self.start("client", line);
        wait_for(&mut open, "netnice: channel");
        open
    }

    /// Has the netnice-peer of a host read another policy, and waits until it has written this.
    pub(super) fn reload(&mut self, host: &str, policy: &str, expected: &str) {
        let path = self.world.folder().join(format!("{host}.toml"));
        std::fs::write(path, policy).expect("written");
        let peer = self.peer(host);
        peer.take_stderr();
        peer.reload().expect("a signal");
        let until = Instant::now() + EVENT_TIMEOUT;
        let mut all = String::new();
        while !all.contains(expected) {
            assert!(peer.is_running() && Instant::now() < until, "{all}");
            all.push_str(&peer.take_stderr());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// What a source that is refused says.
    pub(super) fn refused(&self, line: &str) -> String {
        let mut open = self.start("client", line);
        let status = open.wait(EVENT_TIMEOUT).expect("it ends");
        assert_eq!(status.code(), Some(3), "{line}: {}", open.take_stderr());
        open.take_stderr()
    }

    /// The channels of a host.
    pub(super) fn channels(&self, host: &str) -> Value {
        let output = self.netnice(host).run_line("channel ls --json");
        let output = output.expect("it runs").ok().expect("a list");
        serde_json::from_str(&output.stdout).expect("JSON")
    }

    /// Waits until no ledger has a flow with a contract.
    fn wait_until_free(&self, within: Duration) {
        let until = Instant::now() + within;
        loop {
            let left: Vec<(&str, usize)> = NAMES
                .into_iter()
                .map(|name| (name, self.promised(name)))
                .filter(|(_, flows)| *flows > 0)
                .collect();
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < until, "{left:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The number of flows of a host that have a promise.
    fn promised(&self, host: &str) -> usize {
        let shown = self.netnice(host).show().expect("it shows");
        let flows = shown["flows"].as_array().cloned().unwrap_or_default();
        let promised = |flow: &&Value| !flow["contract"]["channel"].is_null();
        flows.iter().filter(promised).count()
    }
}

/// Waits until a process has written this to standard error. Returns all that it has written.
pub(super) fn wait_for(process: &mut Proc, text: &str) -> String {
    let written = process.await_error_text(text, EVENT_TIMEOUT);
    written.expect("it writes that")
}

#[test]
fn messages_pass_a_router_whole_beside_a_flood_on_every_cable() {
    let hosts = Hosts::new();
    let mut sink = hosts.listen("camera --lines --count 1");
    let mut source = hosts.open(&format!(
        "open camera@server --lines {CAMERA} --deadline 300ms"
    ));
    // The kernel's own traffic takes what it can get.
    let (client, server) = (hosts.world.host("client"), hosts.world.host("server"));
    let floods = [(client, server), (server, client)].map(|(from, to)| {
        let ends = [(from.port().v4, 7_000).into(), (to.port().v4, 7_000).into()];
        let flood = Udp::source(ends[0], ends[1]).rate(200_000_000).size(1_400);
        traffic::start_now(from, &flood).expect("a flood")
    });
    let message = |number: usize| format!("{number} {}", "x".repeat(number * 997 % 60_000));
    for number in 0..200 {
        source.write_line(&message(number)).expect("written");
    }
    for number in 0..200 {
        let line = sink.next_line(EVENT_TIMEOUT).expect("a message");
        assert!(
            line == message(number),
            "message {number}: {} bytes",
            line.len()
        );
    }
    let listed = hosts.channels("router");
    let relayed = &listed["channels"][0]["relayed"];
    assert_eq!(relayed["messages"], 200, "{listed}");
    assert_eq!(
        (&relayed["incomplete"], &relayed["dropped"]),
        (&0.into(), &0.into()),
        "{listed}"
    );
    let parts = NAMES.map(|name| hosts.channels(name)["channels"][0]["part"].clone());
    assert_eq!(parts, ["source", "relay", "sink"]);
    let hops = listed["channels"][0]["hops"]
        .as_array()
        .expect("hops")
        .clone();
    let sum: u64 = hops.iter().filter_map(|hop| hop["bound_ns"].as_u64()).sum();
    assert_eq!(sum, 300_000_000, "{hops:?}");
    for flood in floods {
        flood.stop().expect("stopped");
    }
    // The end of the input ends the channel everywhere.
    source.close_input();
    let status = source.wait(EVENT_TIMEOUT).expect("it ends");
    assert!(status.success(), "{}", source.take_stderr());
    let status = sink.wait(EVENT_TIMEOUT).expect("it ends");
    assert!(status.success(), "{}", sink.take_stderr());
    hosts.wait_until_free(Duration::from_secs(5));
}

#[test]
fn the_best_deadline_of_a_refusal_is_granted_and_a_shorter_one_is_not() {
    let hosts = Hosts::new();
    let _sink = hosts.listen("camera --discard");
    let line = |deadline_us: u64| format!("open camera@server {CAMERA} --deadline {deadline_us}us");
    let text = hosts.refused(&line(4_000));
    assert!(text.contains("server refuses"), "{text}");
    let (_, best) = text.rsplit_once("a deadline of ").expect("a best deadline");
    let best: netnice_core::units::Nanos = best.trim().parse().expect("a time");
    let text = hosts.refused(&line(best.0 * 99 / 100 / 1_000));
    assert!(text.contains("would be granted"), "{text}");
    let mut source = hosts.open(&line(best.0.div_ceil(1_000)));
    source.close_input();
    let status = source.wait(EVENT_TIMEOUT).expect("it ends");
    assert!(status.success(), "{}", source.take_stderr());
}

/// What processing costs, as the programs count it: some times what it takes on an idle machine,
/// so that what is admitted does not depend on the moment. (On an emulated machine, a single packet
/// can take longer than a program would admit.)
const COSTS: &str = "\
packets of 1452 bytes in blocks of 4: switch=10us waking=10us cache-miss=5us first=15us later=8us
checksum of 1452 bytes: packet=1us
encryption of 1452 bytes: packet=5us
";

/// Messages that take little of a processor.
const AUDIO: &str = "--mmax 1KiB --rate 50/s";

/// What is reserved for the processor time of a program, and its period, in ns.
fn reserved(netnice: &Netnice, pid: u32) -> Option<(u64, u64)> {
    let shown = netnice.show().expect("it shows");
    let targets = shown["targets"].as_array().cloned().unwrap_or_default();
    let own = |target: &&Value| target["target"] == json!(format!("pid:{pid}"));
    let cpu = &targets.iter().find(own)?["contract"]["cpu"];
    Some((cpu["slice_ns"].as_u64()?, cpu["period_ns"].as_u64()?))
}

#[test]
fn picked_processor_time_is_the_least_that_keeps_the_bounds_and_ends_with_the_channel() {
    let hosts = Hosts::new();
    let sink = hosts.listen("camera --discard --cpu auto");
    let share = |host: &str, pid: u32| {
        let of_whole = |(slice, period): (u64, u64)| slice as f64 / period as f64;
        reserved(hosts.netnice(host), pid).map(of_whole)
    };
    assert_eq!(share("server", sink.pid()), None, "it has no channel");
    let mut shares = Vec::new();
    for deadline in ["400ms", "150ms"] {
        let line = format!("open camera@server {AUDIO} --deadline {deadline} --cpu auto");
        let mut source = hosts.open(&line);
        let both = [share("client", source.pid()), share("server", sink.pid())];
        shares.push(both.map(|share| share.expect("reserved")));
        source.close_input();
        let status = source.wait(EVENT_TIMEOUT).expect("it ends");
        assert!(status.success(), "{}", source.take_stderr());
        let until = Instant::now() + EVENT_TIMEOUT;
        while share("server", sink.pid()).is_some() {
            assert!(Instant::now() < until, "it is given back");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    // None needs the half that is had during the set-up.
    let is_less = |share: &f64| 0.0 < *share && *share < 0.5;
    assert!(shares.iter().flatten().all(is_less), "{shares:?}");
    // A shorter deadline needs no less.
    let [long, short] = [shares[0], shares[1]];
    assert!(long[0] <= short[0] && long[1] <= short[1], "{shares:?}");
    // The best deadline of a refusal is granted here too.
    let line =
        |deadline: &str| format!("open camera@server {AUDIO} --deadline {deadline} --cpu auto");
    let text = hosts.refused(&line("4ms"));
    let (_, best) = text.rsplit_once("a deadline of ").expect("a best deadline");
    let best: netnice_core::units::Nanos = best.trim().parse().expect("a time");
    let mut source = hosts.open(&line(&format!("{}us", best.0.div_ceil(1_000))));
    let near_best = [share("client", source.pid()), share("server", sink.pid())];
    let near_best = near_best.map(|share| share.expect("reserved"));
    for end in 0..2 {
        assert!(shares[0][end] < near_best[end], "{shares:?}, {near_best:?}");
    }
    source.close_input();
    assert!(source.wait(EVENT_TIMEOUT).expect("it ends").success());
}

#[test]
fn what_cannot_be_had_is_refused_by_name_and_nothing_stays_held() {
    let mut hosts = Hosts::new();
    let _sink = hosts.listen("camera --discard --mmax 100KiB");
    let open =
        |to: &str, mmax: &str| format!("open {to} --mmax {mmax} --rate 50/s --deadline 300ms");
    let refusals = [
        (
            open("microphone@server", "1KiB"),
            "no program of server offers microphone",
        ),
        (open("camera@nowhere.invalid", "1KiB"), "nowhere.invalid"),
        (open("camera@client", "1KiB"), "between hosts"),
        (open("camera@server", "150KiB"), "100KiB"),
        (
            open("camera@server", "1MiB"),
            "a link serves a channel of rmax=50/s as 57/s",
        ),
        (open("camera@server", "1MiB"), "would fit"),
        (open("camera@server", "1KiB --packet 1200B"), "1200B"),
    ];
    for (line, reason) in refusals {
        let text = hosts.refused(&line);
        assert!(text.contains(reason), "{line}: {text}");
    }
    hosts.wait_until_free(Duration::from_secs(1));
    // A host on the way without netnice-peer is named.
    hosts.peer("router").kill();
    let text = hosts.refused(&open("camera@server", "1KiB"));
    assert!(
        text.contains("router") && text.contains("netnice-peer"),
        "{text}"
    );
    hosts.wait_until_free(Duration::from_secs(1));
    // Without one on this host no channel is tried.
    hosts.peer("client").kill();
    let mut open = hosts.start("client", &open("camera@server", "1KiB"));
    let status = open.wait(EVENT_TIMEOUT).expect("it ends");
    assert_eq!(status.code(), Some(4), "{}", open.take_stderr());
}

#[test]
fn the_death_of_a_host_or_program_frees_everything_and_both_ends_are_told() {
    let mut hosts = Hosts::new();
    let line = format!("open camera@server --lines {CAMERA} --deadline 300ms");
    // What is killed, and whether the sink ends by itself then.
    for dies in ["router", "source", "sink", "client", "server"] {
        let mut sink = hosts.listen("camera --lines --count 1");
        let mut source = hosts.open(&line);
        for number in 0..20 {
            source.write_line(&format!("{number}")).expect("written");
        }
        for number in 0..20 {
            let line = sink.next_line(EVENT_TIMEOUT).expect("a message");
            assert_eq!(line, number.to_string());
        }
        match dies {
            "source" => source.kill(),
            "sink" => sink.kill(),
            host => hosts.peer(host).kill(),
        }
        hosts.wait_until_free(Duration::from_secs(2));
        if dies != "source" {
            // It ends although its input does not.
            let status = source.wait(EVENT_TIMEOUT).expect("it ends");
            let text = source.take_stderr();
            assert_eq!(status.code(), Some(1), "{dies}: {text}");
            assert!(text.contains("has ended"), "{dies}: {text}");
        }
        if dies != "sink" {
            sink.wait(EVENT_TIMEOUT).expect("it ends");
            let text = sink.take_stderr();
            assert!(text.contains("has ended"), "{dies}: {text}");
        }
        if !["source", "sink"].contains(&dies) {
            hosts.peer(dies).restart().expect("a peer");
        }
    }
}

#[test]
fn datagrams_of_an_unmodified_program_and_the_answers_are_carried() {
    let hosts = Hosts::new();
    let (client, server) = (hosts.world.host("client"), hosts.world.host("server"));
    // Programs of the hosts, on the loopback addresses there.
    let taken = server
        .ns
        .enter(|| Ok(std::net::UdpSocket::bind("127.0.0.1:0")?))
        .expect("a socket");
    taken.set_read_timeout(Some(EVENT_TIMEOUT)).expect("set");
    let to = taken.local_addr().expect("an address");
    let _sink = hosts.listen(&format!("audio --udp {to} --replies"));
    let from = "127.0.0.1:5004";
    let line = format!(
        "carry audio@server --udp {from} --replies --mmax 1200B --rate 200/s --burst 4 --deadline 100ms"
    );
    let mut carry = hosts.open(&line);
    let given = client
        .ns
        .enter(|| Ok(std::net::UdpSocket::bind("127.0.0.1:0")?));
    let given = given.expect("a socket");
    given.set_read_timeout(Some(EVENT_TIMEOUT)).expect("set");
    let mut buffer = [0; 2_000];
    let mut sender = None;
    for number in 0..100_u32 {
        let datagram = vec![number as u8; 100 + 10 * number as usize];
        given.send_to(&datagram, from).expect("sent");
        let (length, port) = taken.recv_from(&mut buffer).expect("a datagram");
        assert_eq!(&buffer[..length], datagram, "{number}");
        assert_eq!(*sender.get_or_insert(port), port, "{number}");
    }
    for number in 0..100_u32 {
        let answer = vec![number as u8; 1_100 - 10 * number as usize];
        let to = sender.expect("a sender");
        taken.send_to(&answer, to).expect("sent");
        let (length, port) = given.recv_from(&mut buffer).expect("an answer");
        assert_eq!(&buffer[..length], answer, "{number}");
        assert_eq!(port.to_string(), from);
    }
    carry.terminate(EVENT_TIMEOUT);
}

/// Reads lines of a program up to the line `open`, and returns those before.
fn lines_before_open(process: &mut Proc) -> Vec<String> {
    let mut lines = Vec::new();
    loop {
        match process.next_line(EVENT_TIMEOUT).expect("a line") {
            line if line == "open" => return lines,
            line => lines.push(line),
        }
    }
}

#[test]
fn programs_in_c_send_and_receive_messages_and_learn_of_refusals_and_ends() {
    let hosts = Hosts::new();
    let root = hosts.world.folder().join("usr");
    install(&root);
    let (camera, recorder) = (root.join("camera"), root.join("recorder"));
    compile(&root, "examples/channel.c", &camera, Link::Static);
    compile(&root, "examples/channel.c", &recorder, Link::Shared);
    let listen = || {
        let mut sink = hosts.start_program("server", &recorder, "-l -n 100 camera");
        let line = sink.next_line(EVENT_TIMEOUT).expect("it is offered");
        assert_eq!(line, "camera@server");
        sink
    };
    let open = |words: &str| {
        let line = format!("-s 60000 {words} camera@server");
        hosts.start_program("client", &camera, &line)
    };
    let mut sink = listen();
    let mut refused = open("-d 4ms");
    let status = refused.wait(EVENT_TIMEOUT).expect("it ends");
    let text = refused.take_stderr();
    assert_eq!(status.code(), Some(1), "{text}");
    assert!(
        text.contains("server: a deadline of ") && text.contains("refuses the channel"),
        "{text}"
    );
    let mut source = open("-n 100 -d 300ms");
    for end in [&mut source, &mut sink] {
        let lines = lines_before_open(end);
        let hops: Vec<&str> = lines
            .iter()
            .filter_map(|line| line.split_once(" keeps a message"))
            .map(|(host, _)| host)
            .collect();
        assert_eq!(hops, NAMES, "{lines:?}");
    }
    let sent = source.next_line(EVENT_TIMEOUT).expect("a report");
    assert!(sent.starts_with("100 sent, "), "{sent}");
    let status = source.wait(EVENT_TIMEOUT).expect("it ends");
    assert!(status.success(), "{}", source.take_stderr());
    let received = sink.next_line(EVENT_TIMEOUT).expect("a report");
    assert!(
        received.starts_with("100 received, 0 wrong, "),
        "{received}"
    );
    let status = sink.wait(EVENT_TIMEOUT).expect("it ends");
    assert!(status.success(), "{}", sink.take_stderr());
    hosts.wait_until_free(Duration::from_secs(5));
    // The death of the sink ends the source's call.
    let mut sink = listen();
    let mut source = open("-n 1000000 -d 300ms");
    lines_before_open(&mut source);
    lines_before_open(&mut sink);
    sink.kill();
    let status = source.wait(EVENT_TIMEOUT).expect("it ends");
    let text = source.take_stderr();
    assert_eq!(status.code(), Some(1), "{text}");
    assert!(
        text.contains("netnice_channel_send: the channel has ended"),
        "{text}"
    );
    hosts.wait_until_free(Duration::from_secs(5));
}

#[test]
fn netnice_peer_needs_no_privileges_and_other_users_have_no_channels() {
    let world = World::routed(Routed::default()).expect("a world");
    let user = 64_123;
    let mut netnices = Vec::new();
    for (name, links) in [
        ("client", &["eth0"][..]),
        ("router", &["eth0", "eth1"]),
        ("server", &["eth0"]),
    ] {
        let netnice = world.netnice(name).expect("a daemon");
        let policy = format!("channel_users = [\"{user}\"]\n");
        std::fs::write(netnice.policy(), policy).expect("written");
        netnice
            .run_line("reload")
            .expect("it runs")
            .ok()
            .expect("read");
        for link in links {
            let line = format!("link {link} --rate 100mbit");
            netnice
                .run_line(&line)
                .expect("it runs")
                .ok()
                .expect("a link");
        }
        netnices.push(netnice);
    }
    let options = PeerOptions {
        user: Some(user),
        ..PeerOptions::default()
    };
    let peers = NAMES.map(|name| world.peer(name, &options).expect("a peer"));
    let hosts = Hosts {
        peers: peers.into(),
        netnices,
        world,
    };
    // Another user reaches netnice-peer, and netniced gives that user no channel.
    let mut open = hosts.world.host("client").ns.command("setpriv");
    open.args(["--reuid=64124", "--regid=64124", "--clear-groups", "--"]);
    open.arg(netnice_lab::process::binary("netnice").expect("built"));
    open.env("NETNICE_RUNTIME_DIR", hosts.netnice("client").runtime());
    let line = format!("channel open camera@server {CAMERA} --deadline 300ms");
    open.args(line.split(' '));
    let mut open = Proc::start(open).expect("it starts");
    let status = open.wait(EVENT_TIMEOUT).expect("it ends");
    let text = open.take_stderr();
    assert_eq!(status.code(), Some(3), "{text}");
    assert!(text.contains("channel"), "{text}");
    assert!(text.contains("root and the group netnice"), "{text}");
    hosts.wait_until_free(Duration::from_secs(1));
    let mut sink = hosts.listen("camera --lines");
    let mut source = hosts.open(&format!(
        "open camera@server --lines {CAMERA} --deadline 300ms"
    ));
    source.write_line("one").expect("written");
    assert_eq!(sink.next_line(EVENT_TIMEOUT).expect("a message"), "one");
    let status = std::fs::read_to_string(format!(
        "/proc/{}/status",
        hosts.peers[1].pid().expect("it runs")
    ));
    let status = status.expect("it lives");
    let capabilities = status.lines().find(|line| line.starts_with("CapEff"));
    assert_eq!(capabilities, Some("CapEff:\t0000000000000000"));
    source.close_input();
    source.wait(EVENT_TIMEOUT).expect("it ends");
}

/// The lines of the code blocks behind a heading of the manual.
fn blocks(text: &str, heading: &str) -> Vec<Vec<String>> {
    let (_, section) = text.split_once(heading).expect("the heading");
    let blocks = section.split("```\n").skip(1).step_by(2);
    let lines = |block: &str| block.lines().map(str::to_owned).collect();
    blocks.map(lines).collect()
}

#[test]
fn the_recipes_of_the_manual_work_as_printed() {
    let hosts = Hosts::new();
    let manual = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/manual/between-hosts.md"
    );
    let manual = std::fs::read_to_string(manual).expect("the manual");
    let folder = hosts.world.folder().to_owned();
    let lines: Vec<String> = (0..100)
        .map(|number| format!("{number} {}", "x".repeat(500)))
        .collect();
    for file in ["images", "commands"] {
        std::fs::write(folder.join(file), lines.join("\n") + "\n").expect("written");
    }
    std::fs::write(folder.join("secret"), [7; 32]).expect("written");
    let shell = |host: &str, line: &str| {
        // The sink of each recipe has another name.
        let line = ["recorder", "plant", "studio"]
            .iter()
            .fold(line.to_owned(), |line, name| {
                line.replace(&format!("@{name}"), "@server")
            });
        let mut command = hosts.world.host(host).ns.command("sh");
        let binaries = netnice_lab::process::binary("netnice").expect("built");
        let path = binaries.parent().expect("a folder").display().to_string();
        let path = format!("{path}:{}", std::env::var("PATH").unwrap_or_default());
        command.current_dir(&folder).env("PATH", path);
        command.env("NETNICE_RUNTIME_DIR", hosts.netnice(host).runtime());
        command.env("NETNICE_COSTS", hosts.costs());
        command.args(["-c", &format!("exec {line}")]);
        Proc::start(command).expect("it starts")
    };
    let recipes = blocks(&manual, "## Recipes");
    assert_eq!(recipes.len(), 3, "{recipes:?}");
    for (number, recipe) in recipes.iter().enumerate() {
        let [listen, open] = recipe.as_slice() else {
            panic!("{recipe:?}");
        };
        let mut sink = shell("server", listen);
        wait_for(&mut sink, "listens as");
        let mut source = shell("client", open);
        if number == 2 {
            wait_for(&mut source, "netnice: channel");
            let (client, server) = (hosts.world.host("client"), hosts.world.host("server"));
            let bind = |at: &'static str| move || Ok(std::net::UdpSocket::bind(at)?);
            let taken = server.ns.enter(bind("127.0.0.1:5004")).expect("a socket");
            taken.set_read_timeout(Some(EVENT_TIMEOUT)).expect("set");
            let given = client.ns.enter(bind("127.0.0.1:0")).expect("a socket");
            given.send_to(&[9; 1_280], "127.0.0.1:5004").expect("sent");
            assert_eq!(taken.recv(&mut [0; 2_000]).expect("a datagram"), 1_280);
            source.terminate(EVENT_TIMEOUT);
        } else {
            let status = source.wait(EVENT_TIMEOUT).expect("it ends");
            assert!(status.success(), "{open}: {}", source.take_stderr());
            let output = folder.join(["recording", "valve.log"][number]);
            let received = std::fs::read_to_string(output).expect("the output");
            assert!(received.lines().eq(&lines), "{open}: {}", received.len());
        }
        sink.terminate(EVENT_TIMEOUT);
    }
}

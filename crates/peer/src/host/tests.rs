//! Two hosts on the loopback interface, with programs that are sockets of the test. No netniced
//! runs: the programs grant every hold, as theirs would.

use std::io::{Read as _, Write as _};
use std::num::NonZeroU16;
use std::os::unix::net::UnixStream;
use std::path::Path;

use netnice_api::channels::{
    CountedHop, EndOfHold, ExplainChannel, ExplainedChannel, HopCounts, LONGEST_TO_PROGRAM,
    ListChannels, NotExplained, NotHeld, Relaxed, decode, encode_from_program,
};
use netnice_api::frame::Decoder;
use tempfile::TempDir;

use super::*;
use crate::issue::{Laboratory, Validity};

/// A program of a host, which the test plays. It replies to nothing by itself.
struct Program {
    stream: UnixStream,
    decoder: Decoder,
}

impl Program {
    fn connect(dir: &RuntimeDir) -> Program {
        let stream = UnixStream::connect(dir.peer_socket()).expect("connected");
        let patience = Some(Duration::from_secs(10));
        stream.set_read_timeout(patience).expect("set");
        Program {
            stream,
            decoder: Decoder::new(LONGEST_TO_PROGRAM),
        }
    }

    fn send(&mut self, message: &FromProgram) {
        let frame = encode_from_program(message).expect("short");
        self.stream.write_all(&frame).expect("written");
    }

    /// The next message that is no question whether the program runs.
    fn next(&mut self) -> ToProgram {
        loop {
            while let Some(body) = self.decoder.poll().expect("a frame") {
                match decode(&body).expect("valid") {
                    ToProgram::Ping(_) => {}
                    other => return other,
                }
            }
            let mut bytes = [0; 4096];
            let length = self.stream.read(&mut bytes).expect("a message");
            assert!(length > 0, "it was closed");
            self.decoder.push(&bytes[..length]);
        }
    }

    fn listen(&mut self, service: &str) -> ToProgram {
        let service = service.to_owned();
        self.send(&FromProgram::Listen(Listen { service }));
        self.next()
    }

    fn open(&mut self, channel: u8, to: (&str, &str), deadline_ms: u64) {
        let channel = channel_of(channel);
        let (service, sink) = (to.0.to_owned(), to.1.to_owned());
        let contract = RemoteContract {
            mmax: 1_000,
            rmax: 50,
            bmax: 1,
            deadline_ns: deadline_ms * 1_000_000,
            packet: 1_400,
        };
        self.send(&FromProgram::Open(OpenChannel {
            channel,
            service,
            sink,
            contract,
        }));
    }

    /// Holds `bound_ms` when it is asked to; returns the question.
    fn hold(&mut self, bound_ms: u64, way: Option<Way>) -> HoldBound {
        let ToProgram::Hold(ask) = self.next() else {
            panic!("no hold");
        };
        self.send(&FromProgram::Held(HeldBound {
            hold: ask.hold,
            bound_ns: bound_ms * 1_000_000,
            way,
        }));
        *ask
    }

    /// Relaxes its hold when it is asked to; returns the question.
    fn relax(&mut self, port: Option<NonZeroU16>) -> RelaxBound {
        let ToProgram::Relax(relax) = self.next() else {
            panic!("no bound");
        };
        let hold = relax.hold;
        self.send(&FromProgram::Relaxed(Relaxed { hold, port }));
        relax
    }

    /// Replies with these counts when it is asked for them.
    fn count(&mut self, counts: Option<HopCounts>) {
        let ToProgram::Count(ask) = self.next() else {
            panic!("no question");
        };
        assert_eq!(ask.channel, channel_of(7));
        let number = ask.number;
        self.send(&FromProgram::Counted(CountedHop { number, counts }));
    }

    fn refused(&mut self) -> OpenRefused {
        loop {
            match self.next() {
                ToProgram::OpenRefused(refused) => return refused,
                ToProgram::Release(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn ended(&mut self) -> Ended {
        loop {
            match self.next() {
                ToProgram::Ended(ended) => return ended,
                ToProgram::Release(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

fn channel_of(number: u8) -> String {
    ChannelId([number; 16]).to_string()
}

/// Two hosts, `a` and `b`, each in a thread of its own. They serve until the process ends.
struct Hosts {
    _folder: TempDir,
    dirs: [RuntimeDir; 2],
}

const A: [u8; 4] = [198, 51, 100, 1];
const B: [u8; 4] = [198, 51, 100, 2];
const PORT: Option<NonZeroU16> = NonZeroU16::new(4_000);
const WAY: Way = Way {
    from: IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 1)),
    to: IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 2)),
};

impl Hosts {
    fn new() -> Hosts {
        Hosts::with("")
    }

    /// Two hosts. The host `b` has this policy.
    fn with(policy: &str) -> Hosts {
        let folder = tempfile::tempdir().expect("a folder");
        let laboratory = Laboratory::new().expect("an authority");
        let validity = Validity::days(1);
        let authority = laboratory.authority(validity).expect("a certificate");
        authority
            .write(folder.path(), "authority")
            .expect("written");
        std::fs::write(folder.path().join("b.toml"), policy).expect("written");
        // A port that is free on both addresses.
        let free = std::net::TcpListener::bind("127.0.0.2:0").expect("a port");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        let hosts = [(A, "a"), (B, "b")].map(|(at, name)| HostAddress {
            host: HostName::new(name).expect("valid"),
            address: at.into(),
        });
        let dirs = ["a", "b"].map(|name| {
            let host = HostName::new(name).expect("valid");
            let issued = laboratory.host(&host, validity).expect("a certificate");
            issued.write(folder.path(), name).expect("written");
            let dir = RuntimeDir::choose(Some(folder.path().join(format!("run-{name}"))), None);
            let last = if name == "a" { 2 } else { 3 };
            let options = HostOptions {
                dir: dir.clone(),
                identity: files(folder.path(), name),
                listen: SocketAddr::from(([127, 0, 0, last], port)),
                hosts: hosts.to_vec(),
                relay_time: Nanos::from_millis(2),
                relay_cpu: None,
                relay_flows: 64,
                relay_stops: false,
                policy: PolicyPath {
                    path: folder.path().join(format!("{name}.toml")),
                    must_exist: false,
                },
            };
            start(options);
            dir
        });
        Hosts {
            _folder: folder,
            dirs,
        }
    }

    /// A program of `a` and one of `b`, which listens as `camera`.
    fn programs(&self) -> (Program, Program) {
        let source = Program::connect(&self.dirs[0]);
        let mut sink = Program::connect(&self.dirs[1]);
        let ToProgram::Listening(listening) = sink.listen("camera") else {
            panic!("not listening");
        };
        assert_eq!(
            (listening.service.as_str(), listening.host.as_str()),
            ("camera", "b")
        );
        (source, sink)
    }

    /// Establishes channel 7 with a deadline of 20 ms.
    fn establish(&self) -> (Program, Program) {
        let (mut source, mut sink) = self.programs();
        source.open(7, ("camera", "b"), 20);
        let asked = source.hold(5, Some(WAY));
        assert_eq!(asked.sink_address, IpAddr::from(B));
        assert_eq!(asked.arrival, None);
        let asked = sink.hold(3, None);
        assert_eq!(
            (asked.channel, asked.service.as_str()),
            (channel_of(7), "camera")
        );
        assert_eq!(asked.arrival, Some(WAY));
        let relax = sink.relax(PORT);
        assert_eq!((relax.bound_ns, relax.next), (9_000_000, None));
        let ToProgram::Accepted(accepted) = sink.next() else {
            panic!("not accepted");
        };
        let relax = source.relax(None);
        assert_eq!(relax.bound_ns, 11_000_000);
        assert_eq!(relax.next, Some(SocketAddr::from((B, 4_000))));
        let ToProgram::Opened(opened) = source.next() else {
            panic!("not opened");
        };
        assert_eq!(opened, accepted);
        let bounds: Vec<(&str, u64)> = opened
            .hops
            .iter()
            .map(|hop| (hop.host.as_str(), hop.bound_ns))
            .collect();
        assert_eq!(bounds, [("a", 11_000_000), ("b", 9_000_000)]);
        (source, sink)
    }

    /// A program of a host that asks about a channel.
    fn asker(&self, host: usize, digits: &str) -> Program {
        let mut program = Program::connect(&self.dirs[host]);
        let channel = digits.to_owned();
        program.send(&FromProgram::Explain(ExplainChannel { channel }));
        program
    }

    /// The channels of a host.
    fn list(&self, host: usize) -> netnice_api::channels::ChannelList {
        let mut program = Program::connect(&self.dirs[host]);
        program.send(&FromProgram::List(ListChannels {}));
        match program.next() {
            ToProgram::Channels(list) => *list,
            other => panic!("{other:?}"),
        }
    }
}

fn files(folder: &Path, name: &str) -> IdentityFiles {
    IdentityFiles {
        certificate: folder.join(format!("{name}.pem")),
        key: folder.join(format!("{name}.key")),
        authority: folder.join("authority.pem"),
    }
}

/// Runs a host in a thread; returns when it listens.
fn start(options: HostOptions) {
    let (says, said) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("a runtime").block_on(async {
            let mut host = Host::start(&options).await.expect("it starts");
            host.routes = Arc::new(|from| match from == IpAddr::from(A) {
                true => Ok("eth0".to_owned()),
                false => Err(format!("no route leads to {from}")),
            });
            // The addresses of packets are not those of the test's connections.
            for (name, last) in [("a", 2), ("b", 3)] {
                let name = HostName::new(name).expect("valid");
                let at = SocketAddr::from(([127, 0, 0, last], options.listen.port()));
                host.transport.set_address(name, at);
            }
            says.send(()).expect("the test waits");
            host.run().await;
        });
    });
    said.recv().expect("it listens");
}

#[test]
fn a_channel_is_established_with_the_slack_in_equal_parts_and_listed() {
    let hosts = Hosts::new();
    let (_source, _sink) = hosts.establish();
    for (host, part, next) in [(0, "source", Some("b")), (1, "sink", None)] {
        let list = hosts.list(host);
        let [channel] = list.channels.as_slice() else {
            panic!("{list:?}");
        };
        assert_eq!(channel.part, part);
        assert_eq!(channel.next.as_deref(), next);
        assert_eq!(channel.channel, channel_of(7)[..8]);
        assert_eq!(channel.hops.len(), 2);
        assert_eq!(list.neighbours.len(), 1);
    }
    assert_eq!(hosts.list(1).services, ["camera"]);
}

const PRIORITY: &str = "\
[[port]]
interface = \"eth0\"
before = \"priority=2ms\"
rate = \"10mbit\"
";

#[test]
fn a_switch_before_the_sink_is_part_of_its_bound_and_refuses_what_would_wait_longer() {
    let hosts = Hosts::with(PRIORITY);
    let (mut source, mut sink) = hosts.programs();
    // A message takes 0.882 ms, and so does each that can come in 18 ms: 0.9 more.
    source.open(7, ("camera", "b"), 20);
    source.hold(5, Some(WAY));
    let refused = source.refused();
    assert_eq!(
        (refused.host.as_str(), refused.reason.as_str()),
        (
            "b",
            "the switch before eth0 could delay packets of channels by 2.90864ms, more than the 2ms \
             that are declared (priority=2ms)"
        )
    );
    // With 1 ms there is room. The bound of 3 ms and the 2 ms of the switch exceed it by 9 ms.
    let hosts = Hosts::with(&PRIORITY.replace("10mbit", "100mbit"));
    let (mut source, mut sink_2) = hosts.programs();
    std::mem::swap(&mut sink, &mut sink_2);
    source.open(1, ("camera", "b"), 9);
    source.hold(5, Some(WAY));
    sink.hold(3, None);
    let refused = source.refused();
    assert_eq!(refused.best_deadline_ns, Some(10_000_000), "{refused:?}");
    assert!(matches!(sink.next(), ToProgram::Release(_)));
    source.open(2, ("camera", "b"), 20);
    source.hold(5, Some(WAY));
    sink.hold(3, None);
    // 10 ms at each host; 2 ms of those of `b` are the switch's.
    assert_eq!(sink.relax(PORT).bound_ns, 8_000_000);
    assert_eq!(source.relax(None).bound_ns, 10_000_000);
    let ToProgram::Opened(opened) = source.next() else {
        panic!("not opened");
    };
    assert!(opened.hops.iter().all(|hop| hop.unguarded.is_none()));
    let listed = hosts.list(1).ports;
    let [port] = listed.as_slice() else {
        panic!("{listed:?}");
    };
    assert_eq!(port.before.as_deref(), Some("priority=2ms"));
    assert_eq!((port.channels, port.unguarded), (1, 0));
    assert!(
        port.delay_ns.is_some_and(|delay| delay < 2_000_000),
        "{port:?}"
    );
    assert!(hosts.list(0).ports.is_empty());
}

#[test]
fn a_port_without_a_declaration_is_named_to_the_source_and_a_cable_is_not() {
    let hosts = Hosts::new();
    let (source, _sink) = hosts.establish();
    let channel = hosts.list(0).channels.swap_remove(0);
    let mark = channel.hops[1].unguarded.as_deref();
    assert_eq!(
        (channel.hops[0].unguarded.as_deref(), mark),
        (None, Some("eth0"))
    );
    let port = hosts.list(1).ports.swap_remove(0);
    assert_eq!((port.before, port.unguarded), (None, 1));
    drop(source);
    let cable = "[[port]]\ninterface = \"eth0\"\nbefore = \"cable\"\n";
    let hosts = Hosts::with(cable);
    let (_source, _sink) = hosts.establish();
    let channel = hosts.list(0).channels.swap_remove(0);
    assert_eq!(channel.hops[1].unguarded, None);
    let port = hosts.list(1).ports.swap_remove(0);
    assert_eq!((port.before.as_deref(), port.unguarded), (Some("cable"), 0));
}

#[test]
fn a_quota_of_the_file_is_named_in_a_refusal() {
    let hosts = Hosts::with("[[neighbour]]\nname = \"a\"\nchannels = 0\n");
    let (mut source, _sink) = hosts.programs();
    source.open(7, ("camera", "b"), 20);
    source.hold(5, Some(WAY));
    let refused = source.refused();
    assert_eq!(
        (refused.host.as_str(), refused.reason.as_str()),
        (
            "b",
            "the channels that a opens: at most 0 channels are allowed (quota channels)"
        )
    );
}

#[test]
fn a_sum_beyond_the_deadline_is_refused_with_the_best_one_which_is_granted() {
    let hosts = Hosts::new();
    let (mut source, mut sink) = hosts.programs();
    source.open(1, ("camera", "b"), 7);
    source.hold(5, Some(WAY));
    sink.hold(3, None);
    let refused = source.refused();
    assert_eq!(refused.best_deadline_ns, Some(8_000_000), "{refused:?}");
    assert_eq!(refused.host, "b");
    assert!(matches!(sink.next(), ToProgram::Release(_)));
    source.open(2, ("camera", "b"), 8);
    source.hold(5, Some(WAY));
    sink.hold(3, None);
    sink.relax(PORT);
    source.relax(None);
    assert!(matches!(source.next(), ToProgram::Opened(_)));
}

#[test]
fn the_end_of_a_program_and_a_lost_hold_are_told_to_the_other_end() {
    let hosts = Hosts::new();
    let (source, mut sink) = hosts.establish();
    drop(source);
    let ended = sink.ended();
    assert_eq!(ended.channel, channel_of(7));
    assert_eq!(ended.host, "a");
    assert!(ended.reason.contains("the program has ended"), "{ended:?}");
    drop(sink);
    let (mut source, mut sink) = hosts.establish();
    let hold = hosts.list(1).channels.len() as u64;
    assert_eq!(hold, 1);
    let reason = "its link is down".to_owned();
    // The second hold of `b`.
    sink.send(&FromProgram::Lost(EndOfHold { hold: 1, reason }));
    let ended = source.ended();
    assert_eq!(
        (ended.host.as_str(), ended.reason.as_str()),
        ("b", "its link is down")
    );
    sink.ended();
    for host in [0, 1] {
        assert!(hosts.list(host).channels.is_empty());
    }
}

#[test]
fn what_cannot_be_had_is_refused_by_the_host_that_knows() {
    let hosts = Hosts::new();
    let (mut source, mut sink) = hosts.programs();
    let mut refused = |channel: u8, to: (&str, &str)| {
        source.open(channel, to, 20);
        let mut next = source.next();
        if let ToProgram::Hold(ask) = next {
            source.send(&FromProgram::Held(HeldBound {
                hold: ask.hold,
                bound_ns: 5_000_000,
                way: Some(WAY),
            }));
            next = source.next();
        }
        if let ToProgram::Release(_) = next {
            next = source.next();
        }
        match next {
            ToProgram::OpenRefused(refused) => (refused.host, refused.reason),
            other => panic!("{other:?}"),
        }
    };
    let (host, reason) = refused(1, ("microphone", "b"));
    assert_eq!(host, "b");
    assert!(reason.contains("microphone"), "{reason}");
    let (host, reason) = refused(2, ("camera", "nowhere.invalid"));
    assert_eq!(host, "a");
    assert!(reason.contains("nowhere.invalid"), "{reason}");
    let (_, reason) = refused(3, ("camera", "a"));
    assert!(reason.contains("between hosts"), "{reason}");
    let (_, reason) = refused(4, ("Camera", "b"));
    assert!(reason.contains("service"), "{reason}");
    let (_, reason) = refused(5, ("camera", "-"));
    assert!(reason.contains("host name"), "{reason}");
    // A sink that cannot hold says why.
    source.open(6, ("camera", "b"), 20);
    source.hold(5, Some(WAY));
    let ToProgram::Hold(ask) = sink.next() else {
        panic!("no hold");
    };
    let reason = "the handler does not fit".to_owned();
    let hold = ask.hold;
    sink.send(&FromProgram::NotHeld(NotHeld { hold, reason }));
    let refused = source.refused();
    assert_eq!(
        (refused.host.as_str(), refused.reason.as_str()),
        ("b", "the handler does not fit")
    );
}

#[test]
fn a_program_cannot_touch_the_channels_and_services_of_another() {
    let hosts = Hosts::new();
    let (mut source, sink) = hosts.establish();
    let mut hostile = Program::connect(&hosts.dirs[0]);
    // It knows everything but is not the program of the channel.
    for message in [
        FromProgram::Close(CloseChannel {
            channel: channel_of(7),
            reason: "mine".to_owned(),
        }),
        FromProgram::Lost(EndOfHold {
            hold: 0,
            reason: "mine".to_owned(),
        }),
        FromProgram::NotRelaxed(EndOfHold {
            hold: 0,
            reason: "mine".to_owned(),
        }),
        FromProgram::Held(HeldBound {
            hold: 0,
            bound_ns: 1,
            way: Some(WAY),
        }),
        FromProgram::Relaxed(Relaxed {
            hold: 0,
            port: None,
        }),
    ] {
        hostile.send(&message);
    }
    hostile.open(7, ("camera", "b"), 20);
    let refused = hostile.refused();
    assert!(refused.reason.contains("in use"), "{refused:?}");
    let mut other = Program::connect(&hosts.dirs[1]);
    let ToProgram::NotListening(not) = other.listen("camera") else {
        panic!("it listens");
    };
    assert!(not.reason.contains("camera"), "{not:?}");
    other.send(&FromProgram::EndService(Listen {
        service: "camera".to_owned(),
    }));
    assert_eq!(hosts.list(0).channels.len(), 1);
    assert_eq!(hosts.list(1).channels.len(), 1);
    assert_eq!(hosts.list(1).services, ["camera"]);
    drop(hostile);
    // The owner can.
    source.send(&FromProgram::Close(CloseChannel {
        channel: channel_of(7),
        reason: "done".to_owned(),
    }));
    let ended = source.ended();
    assert_eq!(ended.reason, "done");
    let mut sink = sink;
    assert_eq!(sink.ended().reason, "done");
}

/// Counts of so many messages on time.
fn counts(messages: u64) -> HopCounts {
    HopCounts {
        messages,
        least_laxity_ns: Some(5),
        laxities: [0, 0, messages, 0, 0, 0, 0, 0, 0, 0],
        ..HopCounts::default()
    }
}

impl Program {
    fn explained(&mut self) -> ExplainedChannel {
        match self.next() {
            ToProgram::Explained(explained) => *explained,
            other => panic!("{other:?}"),
        }
    }

    fn not_explained(&mut self) -> NotExplained {
        match self.next() {
            ToProgram::NotExplained(not) => not,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_channel_is_explained_at_both_ends_with_the_counts_of_both_programs() {
    let hosts = Hosts::new();
    let (mut source, mut sink) = hosts.establish();
    for (host, digits) in [(0, &channel_of(7)[..8]), (1, channel_of(7).as_str())] {
        let mut asker = hosts.asker(host, digits);
        source.count(Some(counts(9)));
        sink.count(Some(counts(8)));
        let explained = asker.explained();
        assert_eq!(explained.host, ["a", "b"][host]);
        assert_eq!(explained.channel, channel_of(7)[..8]);
        assert_eq!(
            (explained.service.as_str(), explained.sink.as_str()),
            ("camera", "b")
        );
        let hops: Vec<_> = explained
            .hops
            .iter()
            .map(|hop| (hop.bound_ns, hop.counts))
            .collect();
        let expected = [(11_000_000, Some(counts(9))), (9_000_000, Some(counts(8)))];
        assert_eq!(hops, expected);
    }
}

#[test]
fn counts_that_are_missing_wrong_or_of_another_program_are_not_shown() {
    let hosts = Hosts::new();
    let (mut source, mut sink) = hosts.establish();
    let mut asker = hosts.asker(0, &channel_of(7));
    // It has the number of the question and not the channel.
    let mut hostile = Program::connect(&hosts.dirs[0]);
    for number in 0..2 {
        let counts = Some(counts(1_000));
        hostile.send(&FromProgram::Counted(CountedHop { number, counts }));
    }
    // The next message of this connection is handled after those.
    hostile.send(&FromProgram::List(ListChannels {}));
    assert!(matches!(hostile.next(), ToProgram::Channels(_)));
    source.count(Some(HopCounts {
        late: 1,
        ..counts(9)
    }));
    sink.count(None);
    let faults = asker
        .explained()
        .hops
        .into_iter()
        .map(|hop| hop.fault.expect("a fault"));
    let faults: Vec<String> = faults.collect();
    assert!(faults[0].contains("contradict themselves"), "{faults:?}");
    assert!(faults[1].contains("has closed the channel"), "{faults:?}");
    // A program that does not answer is named in time.
    let mut asker = hosts.asker(0, &channel_of(7));
    source.count(Some(counts(9)));
    let explained = asker.explained();
    assert_eq!(explained.hops[0].counts, Some(counts(9)));
    let fault = explained.hops[1].fault.as_deref().expect("a fault");
    assert_eq!(fault, "its program did not answer within 150ms");
}

#[test]
fn a_channel_that_is_not_there_or_ends_is_not_explained() {
    let hosts = Hosts::new();
    let (mut source, _sink) = hosts.establish();
    for (digits, text) in [
        ("00", "no such channel"),
        ("0707070700", "no such channel"),
        ("x", "lower-case hexadecimal digits"),
        ("", "lower-case hexadecimal digits"),
    ] {
        let not = hosts.asker(0, digits).not_explained();
        assert_eq!((not.channel.as_str(), not.is_forbidden), (digits, false));
        assert!(not.reason.contains(text), "{digits}: {not:?}");
    }
    let mut asker = hosts.asker(0, "07");
    assert!(matches!(source.next(), ToProgram::Count(_)));
    let channel = channel_of(7);
    asker.send(&FromProgram::Explain(ExplainChannel { channel }));
    let not = asker.not_explained();
    assert!(not.reason.contains("its question before"), "{not:?}");
    source.send(&FromProgram::Close(CloseChannel {
        channel: channel_of(7),
        reason: "done".to_owned(),
    }));
    let not = asker.not_explained();
    assert!(not.reason.contains("has just ended: a: done"), "{not:?}");
}

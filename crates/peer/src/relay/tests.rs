//! The relay between two links, each with a fake daemon and driver.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use netnice_api::direct::FlowNotification;
use netnice_channel::PacketHeader;
use netnice_core::contract::{Channel, Contract, MessageRate};
use netnice_stack::udp::{Buffers, Remote, UdpOptions};
use netnice_stack::{Program, Socket, StackError};

use super::interfaces::HeldPromise;
use super::*;
use crate::message::{HostName, ServiceName};
use crate::signalling::{Arrival, Part};
use rustix::process::Pid;

#[path = "../../../stack/src/fake_daemon.rs"]
pub(super) mod fake_daemon;

use fake_daemon::{DaemonCommand, FakeDaemon};

/// The source sends to the relay over `in0`, and the relay to the sink over `out0`.
const SOURCE: [u8; 4] = [10, 78, 0, 9];
const ARRIVES_AT: [u8; 4] = [10, 78, 0, 1];
const LEAVES_FROM: [u8; 4] = [10, 79, 0, 1];
const SINK: [u8; 4] = [10, 79, 0, 2];
const SINK_PORT: u16 = 7_000;

/// Packets of 100 bytes of payload.
const PACKET: u16 = 132;

/// What the test and the control thread share.
#[derive(Default)]
struct Links {
    /// The daemons of each interface, for one attachment each; the next one last.
    daemons: BTreeMap<String, Vec<RuntimeDir>>,
    programs: BTreeMap<String, Program>,
    /// The numbers of held promises.
    held: Vec<u32>,
    last: u32,
    /// The contracts of the flows that were opened.
    contracts: Vec<String>,
    /// Fail the next request for a flow to one host.
    refuses: bool,
    /// Processor time is reserved for the process, and what threads have got of it.
    reserves: bool,
    reserved: Vec<(Pid, Nanos)>,
}

#[derive(Clone, Default)]
struct FakeInterfaces(Arc<Mutex<Links>>);

/// Releases a held promise.
struct FakeGuard(u32, Arc<Mutex<Links>>);

impl Drop for FakeGuard {
    fn drop(&mut self) {
        lock(&self.1).held.retain(|held| *held != self.0);
    }
}

fn refused(text: &str) -> StackError {
    StackError::Failed {
        text: text.to_owned(),
        bad_usage: false,
        cause: None,
    }
}

impl Interfaces for FakeInterfaces {
    fn reserve(&mut self, thread: Pid, time: Nanos) -> Result<(), StackError> {
        let mut links = lock(&self.0);
        match links.reserves {
            true => {
                links.reserved.push((thread, time));
                Ok(())
            }
            false => Err(refused("no processor time is reserved for this process")),
        }
    }

    fn route(&mut self, to: IpAddr) -> Result<String, StackError> {
        match to {
            IpAddr::V4(to) if to.octets()[..3] == SOURCE[..3] => Ok("in0".to_owned()),
            IpAddr::V4(to) if to.octets()[..3] == SINK[..3] => Ok("out0".to_owned()),
            _ => Err(refused(&format!("no managed link leads to {to}"))),
        }
    }

    fn attach(&mut self, iface: &str, flows: u32, bytes: u64) -> Result<Program, StackError> {
        let mut links = lock(&self.0);
        let dir = links.daemons.get_mut(iface).and_then(Vec::pop);
        let dir = dir.ok_or_else(|| refused("there is no daemon"))?;
        let program = Program::attach(&dir, Some(iface), flows, bytes)?;
        links.programs.insert(iface.to_owned(), program.clone());
        Ok(program)
    }

    /// Every link keeps 3 ms behind the processing.
    fn hold(
        &mut self,
        program: &Program,
        to: IpAddr,
        contract: &str,
    ) -> Result<HeldPromise, StackError> {
        assert_eq!(program.iface(), Some("out0"));
        let longest = contract.parse::<Contract>().expect("a contract");
        let longest = longest.channel().expect("a channel");
        let deadline = Nanos(longest.processing().0 + 3_000_000);
        let held = longest.resized(longest.mmax(), longest.rmax(), deadline);
        let mut links = lock(&self.0);
        links.last += 1;
        let hold = links.last;
        links.held.push(hold);
        Ok(HeldPromise {
            hold,
            contract: format!("channel {}", held.expect("valid")),
            via: to,
            from: LEAVES_FROM.into(),
            mtu: 1_500,
            _guard: Box::new(FakeGuard(hold, self.0.clone())),
        })
    }

    fn open(&mut self, program: &Program, options: &UdpOptions) -> Result<Socket, StackError> {
        let mut links = lock(&self.0);
        let hold = options.hold;
        assert_eq!(hold.is_some(), matches!(options.remote, Remote::One(_)));
        if hold.is_some() && std::mem::take(&mut links.refuses) {
            return Err(refused("the link carries less now"));
        }
        // The fake daemon does not know of the hold.
        let socket = program.open_udp(&UdpOptions {
            hold: None,
            ..options.clone()
        })?;
        if let Some(hold) = hold {
            assert!(links.held.contains(&hold), "{hold} is not held");
            links.held.retain(|held| *held != hold);
        }
        links.contracts.extend(options.contract.clone());
        Ok(socket)
    }
}

/// A relay between two links.
struct World {
    links: FakeInterfaces,
    relays: Relays,
    /// They end last.
    daemons: BTreeMap<&'static str, Vec<FakeDaemon>>,
    runtime: tokio::runtime::Runtime,
}

impl World {
    fn new(name: &str) -> World {
        World::with(name, RelayOptions::default())
    }

    fn with(name: &str, options: RelayOptions) -> World {
        let links = FakeInterfaces::default();
        let mut daemons: BTreeMap<&'static str, Vec<FakeDaemon>> = BTreeMap::new();
        for iface in ["in0", "out0"] {
            let of = |number| FakeDaemon::new(&format!("relay-{name}-{iface}-{number}"));
            let both: Vec<FakeDaemon> = [2, 1].map(of).into();
            let dirs = both.iter().map(FakeDaemon::dir).collect();
            lock(&links.0).daemons.insert(iface.to_owned(), dirs);
            daemons.insert(iface, both);
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        World {
            relays: Relays::start_over(links.clone(), options, None).expect("threads"),
            links,
            daemons,
            runtime: runtime.expect("a runtime"),
        }
    }

    fn next(&mut self) -> RelayResult {
        let relays = &mut self.relays;
        self.runtime.block_on(async {
            let next = tokio::time::timeout(PATIENCE, relays.next()).await;
            next.expect("a result in time")
        })
    }

    /// Holds a channel; returns its hold.
    fn hold(&mut self, number: u8) -> HoldId {
        let hold = HoldId(number.into());
        self.relays.hold(hold, request(number));
        let expected = RelayResult::Held {
            hold,
            // 2 ms of the relay, 3 ms of the link.
            bound: Nanos::from_millis(5),
            via: SINK.into(),
            from: LEAVES_FROM.into(),
        };
        assert_eq!(self.next(), expected);
        hold
    }

    /// Relaxes a hold to 10 ms; returns the port at which packets arrive.
    fn relax(&mut self, hold: HoldId) -> NonZeroU16 {
        let next = SocketAddr::from((SINK, SINK_PORT));
        self.relays.relax(hold, Nanos::from_millis(10), next);
        match self.next() {
            RelayResult::Relaxed { hold: own, port } if own == hold => port,
            other => panic!("{other:?}"),
        }
    }

    fn program(&self, iface: &str) -> Program {
        lock(&self.links.0).programs[iface].clone()
    }

    /// The socket of the sink.
    fn sink(&self) -> Socket {
        let options = UdpOptions {
            buffers: Buffers {
                receiving: 4_096,
                ..Buffers::default()
            },
            ..UdpOptions::at((SINK, SINK_PORT).into())
        };
        self.program("out0").open_udp(&options).expect("a socket")
    }

    /// A socket that sends to the relay, from this address.
    fn source(&self, from: [u8; 4], port: NonZeroU16) -> Socket {
        let options = UdpOptions {
            local: (from, 4_000).into(),
            ..UdpOptions::to((ARRIVES_AT, port.get()).into())
        };
        self.program("in0").open_udp(&options).expect("a socket")
    }

    /// Waits until the counts are these.
    fn expect_counts(&self, channel: u8, expected: impl Fn(&RelayCounts) -> bool) -> RelayCounts {
        let begin = Instant::now();
        loop {
            let counts = self.relays.counts(id(channel)).expect("the channel");
            if expected(&counts) {
                return counts;
            }
            assert!(begin.elapsed() < PATIENCE, "{counts:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn notify(&self, iface: &str, notification: FlowNotification) {
        // The one that is used first is the last one.
        let daemon = self.daemons[iface].last().expect("a daemon");
        daemon.send(DaemonCommand::Notify(notification));
    }
}

fn id(number: u8) -> ChannelId {
    ChannelId([number; 16])
}

/// Up to 1,000 bytes, 100 messages a second, 8 at once.
fn request(number: u8) -> HoldRequest {
    let rate = MessageRate::new(100).expect("a rate");
    let contract = Channel::new(Bytes(1_000), rate, 8, Nanos::from_millis(60));
    let host = |name| HostName::new(name).expect("a host");
    HoldRequest {
        channel: id(number),
        part: Part::Relay,
        service: ServiceName::new("camera").expect("a service"),
        sink: host("b"),
        sink_address: SINK.into(),
        contract: contract.expect("a contract"),
        packet: PACKET,
        previous: Some(host("a")),
        arrival: Some(Arrival {
            from: SOURCE.into(),
            to: ARRIVES_AT.into(),
        }),
    }
}

/// The packets of a message of so many parts, the last of 7 bytes.
fn message(channel: u8, number: u64, parts: u16) -> Vec<Vec<u8>> {
    let packet = |part| {
        let header = PacketHeader {
            channel: id(channel),
            message: number,
            part,
            count: parts,
        };
        let length = if part + 1 == parts { 7 } else { 100 };
        let mut packet = header.encode().to_vec();
        packet.extend((0..length).map(|at| (number as u8) ^ (part as u8) ^ at));
        packet
    };
    (0..parts).map(packet).collect()
}

/// Repeats a call of a socket while it would block. The relay's thread waits for the doorbell of
/// the program, so the test must not.
fn patiently<T>(mut call: impl FnMut() -> Result<T, StackError>) -> T {
    let begin = Instant::now();
    loop {
        match call() {
            Err(StackError::WouldBlock) => assert!(begin.elapsed() < PATIENCE, "nothing comes"),
            done => return done.expect("the flow is open"),
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn send(socket: &mut Socket, packets: &[Vec<u8>]) {
    for packet in packets {
        patiently(|| socket.try_send(packet));
    }
}

/// The next packet.
fn receive(socket: &mut Socket) -> Vec<u8> {
    let mut bytes = [0; 2_048];
    let received = patiently(|| socket.try_recv(&mut bytes));
    bytes[..received.bytes].to_vec()
}

const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn messages_pass_whole_and_unchanged_and_other_packets_do_not() {
    let mut world = World::new("whole");
    let hold = world.hold(1);
    let mut sink = world.sink();
    let port = world.relax(hold);
    assert_eq!(
        lock(&world.links.0).contracts,
        // 10 parts with 32 + 42 bytes.
        ["channel mmax=1740B,rmax=113/s,bmax=8,deadline=10ms,processing=2ms,overload=decay"]
    );
    let mut source = world.source(SOURCE, port);
    let mut other = world.source([10, 78, 0, 8], port);
    // From another address, of an unknown channel, and no packet of a channel.
    send(&mut other, &message(1, 0, 1));
    send(&mut source, &message(2, 0, 1));
    send(&mut source, &[b"hello".to_vec()]);
    // A message of which a packet is missing, one in the wrong order and twice, and one more.
    let (broken, mixed, last) = (message(1, 3, 4), message(1, 4, 10), message(1, 7, 1));
    send(&mut source, &broken[1..]);
    let reversed: Vec<Vec<u8>> = mixed.iter().rev().cloned().collect();
    send(&mut source, &reversed[..9]);
    send(&mut source, &reversed);
    send(&mut source, &broken[..1]);
    send(&mut source, &last);
    for packet in mixed.iter().chain(&last) {
        assert_eq!(receive(&mut sink), *packet);
    }
    let counts = world.expect_counts(1, |counts| counts.sent == 2);
    let expected = RelayCounts {
        packets: 3 + 9 + 10 + 1 + 1,
        messages: 2,
        sent: 2,
        duplicates: 9,
        too_late: 1,
        incomplete: 1,
        ..RelayCounts::default()
    };
    assert_eq!(counts, expected);
    let listener = world.relays.listener_counts();
    assert_eq!((listener.foreign, listener.invalid), (2, 1));
    assert!(matches!(
        sink.try_recv(&mut [0; 99]),
        Err(StackError::WouldBlock)
    ));
}

#[test]
fn channels_share_a_port_and_each_message_comes_out_whole() {
    let mut world = World::new("many");
    let holds: Vec<HoldId> = (1..=5).map(|number| world.hold(number)).collect();
    let mut sink = world.sink();
    let ports: Vec<NonZeroU16> = holds.iter().map(|hold| world.relax(*hold)).collect();
    assert!(ports.iter().all(|port| *port == ports[0]));
    let mut source = world.source(SOURCE, ports[0]);
    // The packets of five channels alternate.
    for number in 0..20 {
        let all: Vec<Vec<Vec<u8>>> = (1..=5).map(|one| message(one, number, 6)).collect();
        for part in 0..6 {
            for packets in &all {
                send(&mut source, &packets[part..=part]);
            }
        }
    }
    let mut came: BTreeMap<ChannelId, Vec<Vec<u8>>> = BTreeMap::new();
    for number in 1..=5 {
        let counts = world.expect_counts(number, |counts| counts.packets == 20 * 6);
        assert_eq!((counts.messages, counts.overflowed), (20, 0));
    }
    for _ in 0..5 * 20 * 6 {
        let packet = receive(&mut sink);
        let header = PacketHeader::decode(&packet).expect("a header");
        came.entry(header.channel).or_default().push(packet);
    }
    for number in 1..=5 {
        let sent: Vec<Vec<u8>> = (0..20).flat_map(|at| message(number, at, 6)).collect();
        assert_eq!(came[&id(number)], sent);
    }
}

#[test]
fn a_released_channel_passes_nothing_and_its_port_closes_with_the_last_one() {
    let mut world = World::new("release");
    let (one, two) = (world.hold(1), world.hold(2));
    let mut sink = world.sink();
    let port = world.relax(one);
    assert_eq!(lock(&world.links.0).held, [2]);
    world.relays.release(two);
    world.relays.release(HoldId(99));
    let mut source = world.source(SOURCE, port);
    send(&mut source, &message(1, 0, 2));
    assert_eq!(receive(&mut sink), message(1, 0, 2)[0]);
    assert_eq!(receive(&mut sink), message(1, 0, 2)[1]);
    world.relays.release(one);
    // The same channel again gets another port, because the first one was closed.
    let again = HoldId(3);
    world.relays.hold(again, request(1));
    assert!(matches!(world.next(), RelayResult::Held { .. }));
    assert_eq!(world.relays.counts(id(1)), None);
    let next = world.relax(again);
    assert_ne!(next, port);
    assert!(lock(&world.links.0).held.is_empty());
    send(&mut source, &message(1, 1, 1));
    let mut source = UdpOptions {
        local: (SOURCE, 4_001).into(),
        ..UdpOptions::to((ARRIVES_AT, next.get()).into())
    };
    source.buffers = Buffers::default();
    let mut source = world.program("in0").open_udp(&source).expect("a socket");
    // The numbers begin anew with the channel.
    send(&mut source, &message(1, 0, 1));
    assert_eq!(receive(&mut sink), message(1, 0, 1)[0]);
}

#[test]
fn what_cannot_be_held_or_relaxed_is_answered_with_the_reason() {
    let mut world = World::with(
        "refused",
        RelayOptions {
            flows: 3,
            bytes: Bytes(8 << 20),
            ..RelayOptions::default()
        },
    );
    let reason = |result: RelayResult| match result {
        RelayResult::NotHeld { reason, .. } | RelayResult::NotRelaxed { reason, .. } => {
            reason.to_string()
        }
        other => panic!("{other:?}"),
    };
    let refused_with = |world: &mut World, request: HoldRequest, text: &str| {
        world.relays.hold(HoldId(50), request);
        let reason = reason(world.next());
        assert!(reason.contains(text), "{reason}");
        assert!(lock(&world.links.0).held.is_empty());
    };
    let elsewhere = HoldRequest {
        sink_address: [10, 80, 0, 1].into(),
        ..request(1)
    };
    refused_with(&mut world, elsewhere, "no managed link leads to 10.80.0.1");
    let source = HoldRequest {
        arrival: None,
        ..request(1)
    };
    refused_with(&mut world, source, "this host is the source of the channel");
    let rate = MessageRate::new(10).expect("a rate");
    let large = |bmax| HoldRequest {
        contract: Channel::new(Bytes(1 << 20), rate, bmax, Nanos::from_millis(60)).expect("valid"),
        ..request(1)
    };
    refused_with(&mut world, large(2), "needs 20972 packet buffers");
    refused_with(
        &mut world,
        large(1),
        "the relay has 8MiB of 8MiB free on out0",
    );
    let long = HoldRequest {
        packet: 1_473,
        ..request(1)
    };
    refused_with(&mut world, long, "have 1501 bytes with their IP headers");
    // A bound that is shorter than the held one, a hold that is not there, and a refusal.
    let hold = world.hold(1);
    let next = SocketAddr::from((SINK, SINK_PORT));
    world.relays.relax(hold, Nanos::from_millis(4), next);
    let text = "the bound 4ms is shorter than the 5ms that is held";
    assert_eq!(reason(world.next()), text);
    world.relays.relax(HoldId(77), Nanos::from_millis(10), next);
    let text = "the relay does not hold a promise for the channel";
    assert_eq!(reason(world.next()), text);
    lock(&world.links.0).refuses = true;
    world.relays.relax(hold, Nanos::from_millis(10), next);
    assert_eq!(reason(world.next()), "the link carries less now");
    world.relax(hold);
    world.relays.relax(hold, Nanos::from_millis(10), next);
    assert_eq!(reason(world.next()), "the channel is relaxed already");
    // Three flows are the most.
    let two = world.hold(2);
    let three = world.hold(3);
    world.relays.hold(HoldId(50), request(4));
    let text = "the relay has 3 flows on out0 already, which is the most";
    assert_eq!(reason(world.next()), text);
    world.relays.release(three);
    world.hold(5);
    world.relays.release(two);
    world.relays.release(HoldId(5));
    world.relays.release(hold);
}

#[test]
fn a_degraded_flow_a_link_that_is_down_and_a_closed_port_lose_their_channels() {
    let mut world = World::new("lost");
    let holds: Vec<HoldId> = (1..=4).map(|number| world.hold(number)).collect();
    let ports: Vec<NonZeroU16> = holds.iter().map(|hold| world.relax(*hold)).collect();
    let lost = |hold: HoldId, why: &str| RelayResult::Lost {
        hold,
        reason: Reason::new(why),
    };
    // The flows on out0 are those of the channels, in their order; the port is the only one on in0.
    let degraded = |why: &str| FlowNotification::Degraded {
        flow: 2,
        why: why.to_owned(),
    };
    world.notify("out0", degraded("the link is too slow"));
    assert_eq!(world.next(), lost(holds[1], "the link is too slow"));
    world.notify("out0", degraded(""));
    world.daemons["out0"]
        .last()
        .expect("a daemon")
        .send(DaemonCommand::CloseSilently(3));
    assert_eq!(world.next(), lost(holds[2], "the flow is closed"));
    world.daemons["in0"]
        .last()
        .expect("a daemon")
        .send(DaemonCommand::CloseSilently(1));
    let text = "the port at which its packets arrive is closed: the flow is closed";
    let mut both = [world.next(), world.next()];
    both.sort_by_key(|one| format!("{one:?}"));
    assert_eq!(both, [lost(holds[0], text), lost(holds[3], text)]);
    holds.iter().for_each(|hold| world.relays.release(*hold));
    // Another port is opened, and the link goes down.
    let hold = world.hold(5);
    assert_ne!(world.relax(hold), ports[0]);
    world.notify("out0", FlowNotification::Link { up: false });
    assert_eq!(world.next(), lost(hold, "link out0 is down"));
}

#[test]
fn after_the_end_of_a_driver_the_relay_attaches_anew() {
    let mut world = World::new("ended");
    let hold = world.hold(1);
    world.relax(hold);
    let why = "the driver has ended".to_owned();
    world.notify("out0", FlowNotification::Ended { why });
    // The flow itself says so, or the notification.
    match world.next() {
        RelayResult::Lost { hold: own, reason } if own == hold => {
            let reason = reason.as_str();
            assert!(reason.ends_with("the driver has ended"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    world.relays.release(hold);
    // Until the control thread has read the notification, it uses the attachment that has ended.
    let begin = Instant::now();
    while !lock(&world.links.0).daemons["out0"].is_empty() {
        assert!(begin.elapsed() < PATIENCE);
        let hold = world.hold(2);
        world.relays.release(hold);
    }
    let hold = world.hold(3);
    let mut sink = world.sink();
    let port = world.relax(hold);
    let mut source = world.source(SOURCE, port);
    send(&mut source, &message(3, 0, 3));
    for packet in message(3, 0, 3) {
        assert_eq!(receive(&mut sink), packet);
    }
}

#[test]
fn nothing_is_held_before_the_thread_has_its_processor_time() {
    let time = Nanos::from_micros(500);
    let options = RelayOptions {
        cpu: Some(time),
        ..RelayOptions::default()
    };
    let mut world = World::with("reserved", options);
    world.relays.hold(HoldId(1), request(1));
    match world.next() {
        RelayResult::NotHeld { reason, .. } => {
            let reason = reason.to_string();
            assert!(reason.contains("no processor time is reserved"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    // The operator has reserved it meanwhile.
    lock(&world.links.0).reserves = true;
    for number in 2..4 {
        world.relays.hold(HoldId(number), request(number as u8));
        let held = world.next();
        assert!(matches!(held, RelayResult::Held { .. }), "{held:?}");
    }
    let reserved = lock(&world.links.0).reserved.clone();
    let [(thread, granted)] = reserved.as_slice() else {
        panic!("{reserved:?}");
    };
    assert_eq!(*granted, time);
    let name = format!("/proc/self/task/{}/comm", thread.as_raw_nonzero());
    let name = std::fs::read_to_string(name).expect("the thread lives");
    assert_eq!(name.trim_end(), "relay");
}

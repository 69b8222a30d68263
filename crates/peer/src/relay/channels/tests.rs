//! A channel whose driver is the test: it takes and returns packets when the test says so.

use netnice_cases::cases;
use netnice_core::contract::MessageRate;
use netnice_core::stops::{Stop, StopKind};
use netnice_core::units::{Bytes, Nanos};
use netnice_ring::driver::{DriverRings, ProgramMemory, Taken};
use netnice_ring::{Budget, Shape};
use netnice_stack::datagram::Checks;
use netnice_stack::{FlowAddress, Program};
use proptest::prelude::*;

use super::*;

/// 16 of the buffers are for sending.
const SHAPE: Shape = Shape {
    chunk_bytes: 2_048,
    chunks: 32,
    transmit_entries: 32,
    receive_entries: 32,
};

/// Messages of up to 5 packets with 8 bytes of payload each.
const PARTS: u16 = 5;
const ROOM: usize = 3;
/// The relay's bound.
const BOUND: Nanos = Nanos::from_millis(10);
/// Headers of Ethernet, IPv4 and UDP.
const HEADERS: usize = 42;

struct World {
    memory: ProgramMemory,
    driver: DriverRings,
    channel: RelayedChannel<()>,
    /// The stops of the thread.
    stops: RecentStops,
    now: u64,
}

impl World {
    fn new() -> World {
        let bytes = SHAPE.plan().expect("a valid shape").bytes();
        let mut memory = ProgramMemory::create(Budget { flows: 1, bytes }).expect("memory");
        let driver = memory.open(SHAPE).expect("a flow");
        let program = Program::new(memory.handles().attach().expect("attached"));
        let address = FlowAddress {
            local: "10.79.0.1:4000".parse().expect("an address"),
            remote: "10.79.0.2:7000".parse().expect("an address"),
            local_mac: [2, 0, 0, 0, 0, 1],
            next_hop: [2, 0, 0, 0, 0, 2],
            mtu: 1_500,
            hops: 64,
        };
        let socket = program.udp(driver.location(), &address, Checks::Verify);
        let channel = RelayedChannel {
            hold: HoldId(0),
            channel: ChannelId([1; 16]),
            listener: 0,
            from: "10.78.0.9".parse().expect("an address"),
            attachment: 0,
            socket: socket.expect("a socket"),
            lease: (),
            reassembly: Reassembly::new(40, Bytes(8 * u64::from(PARTS))).expect("valid"),
            waiting: VecDeque::new(),
            arrivals: LogicalArrivals::new(MessageRate::new(1_000_000).expect("in range")),
            under_way: VecDeque::new(),
            meter: Arc::new(HopMeter::new(BOUND)),
            room: ROOM,
            counts: RelayCounts::default(),
            shared: Arc::default(),
            is_noted: false,
        };
        World {
            memory,
            driver,
            channel,
            stops: RecentStops::default(),
            now: 0,
        }
    }

    /// All packets of a message arrive.
    fn arrive(&mut self, number: u64) {
        self.arrive_at(number, Instant(number));
    }

    fn arrive_at(&mut self, number: u64, at: Instant) {
        for packet in message(number) {
            let header = PacketHeader::decode(&packet).expect("a header");
            self.channel.accept(&header, &packet, at);
        }
    }

    fn send(&mut self) -> Result<(), StackError> {
        self.channel.send(&self.stops)
    }

    /// The driver takes up to so many packets, and returns them with this status. The packets.
    fn take(&mut self, most: usize, status: Status) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        while packets.len() < most
            && let Ok(Taken::Record(record)) = self.driver.take()
        {
            let mut frame = [0; 2_048];
            let bytes = self.driver.read(&record, &mut frame);
            self.now += 1;
            self.driver.give_back(&record, status, self.now);
            packets.push(frame[HEADERS..bytes].to_vec());
        }
        if self.driver.publish() {
            self.memory.notify();
        }
        packets
    }

    fn check(&self) {
        let counts = self.channel.counts;
        let waiting = self.channel.waiting.len() as u64;
        assert!(self.channel.waiting.len() <= ROOM);
        let gone = counts.sent + counts.overflowed + counts.refused;
        assert_eq!(self.channel.reassembly.counts().messages, gone + waiting);
        let metered = self.channel.meter.load();
        let under_way = self.channel.under_way.len() as u64;
        assert_eq!(metered.messages + metered.lost + under_way, counts.sent);
        assert_eq!(metered.fault(), None);
    }
}

fn message(number: u64) -> Vec<Vec<u8>> {
    let packet = |part| {
        let header = PacketHeader {
            channel: ChannelId([1; 16]),
            message: number,
            part,
            count: PARTS,
        };
        let mut packet = header.encode().to_vec();
        packet.extend([number as u8 ^ part as u8; 8]);
        packet
    };
    (0..PARTS).map(packet).collect()
}

#[test]
fn messages_wait_for_buffers_and_those_beyond_the_room_are_dropped_whole() {
    let mut world = World::new();
    // Three messages have buffers, three wait, and one is too many.
    for number in 0..7 {
        world.arrive(number);
        world.send().expect("open");
        world.check();
    }
    let counts = world.channel.counts;
    assert_eq!((counts.sent, counts.overflowed), (3, 1));
    let sent: Vec<Vec<u8>> = (0..3).flat_map(message).collect();
    assert_eq!(world.take(100, Status::DONE), sent);
    world.send().expect("open");
    let sent: Vec<Vec<u8>> = (3..6).flat_map(message).collect();
    assert_eq!(world.take(100, Status::NO_LINK), sent);
    world.send().expect("open");
    let expected = RelayCounts {
        packets: 35,
        messages: 7,
        sent: 6,
        overflowed: 1,
        unsent: 15,
        ..RelayCounts::default()
    };
    assert_eq!(world.channel.shared.load(), expected);
    let metered = world.channel.meter.load();
    assert_eq!((metered.messages, metered.lost, metered.late), (3, 3, 0));
    // Nothing is in the way of the next one.
    world.arrive(7);
    world.send().expect("open");
    assert_eq!(world.take(100, Status::DONE), message(7));
}

/// Message 0 is in time. Message 1 comes too early for the contract, and counts from 1 us behind
/// the one before. The others are 5 ms late, and a stop of the thread took some time of each.
#[test]
fn the_laxity_counts_from_the_logical_arrival_and_stops_excuse_what_they_explain() {
    let mut world = World::new();
    let ms = |ms: u64| Instant(ms * 1_000_000);
    let late = |world: &World| {
        let counts = world.channel.meter.load();
        (counts.late, counts.excused)
    };
    world.arrive_at(0, ms(100));
    world.arrive_at(1, ms(100));
    world.send().expect("open");
    world.now = ms(105).0;
    assert_eq!(world.take(5, Status::DONE).len(), 5);
    // The last packet of message 1 leaves 10 ms and 1 us after the arrival, within the bound.
    world.now = ms(110).0 + 1_000 - 5;
    assert_eq!(world.take(5, Status::DONE).len(), 5);
    world.send().expect("open");
    assert_eq!(late(&world), (0, 0));
    assert_eq!(world.channel.meter.load().least_laxity_ns, Some(0));
    let stop = |at, length| Stop {
        start: ms(at),
        length: Nanos::from_millis(length),
        kind: StopKind::Late,
    };
    for (number, stopped, expected) in [(2, 4, (1, 0)), (3, 5, (2, 1)), (4, 50, (3, 2))] {
        let begin = 1_000 * number;
        world.arrive_at(number, ms(begin));
        world.send().expect("open");
        world.stops.add(stop(begin, stopped));
        // 5 ms behind the bound.
        world.now = ms(begin + 15).0 - 5;
        world.take(5, Status::DONE);
        world.send().expect("open");
        assert_eq!(late(&world), expected);
    }
    let counts = world.channel.meter.load();
    assert_eq!(counts.least_laxity_ns, Some(-5_000_000));
    world.check();
}

#[test]
fn a_flow_that_is_closed_is_reported_by_the_next_call() {
    let mut world = World::new();
    world.arrive(0);
    world.send().expect("open");
    world.arrive(1);
    world.memory.close(world.driver);
    assert!(world.channel.is_ending());
    let error = world.channel.send(&world.stops).expect_err("it is closed");
    assert!(matches!(error, StackError::Closed(None)), "{error}");
}

/// What happens to a channel.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A message arrives, without this packet if there is one.
    Arrive(Option<u16>),
    /// The driver takes packets.
    Take(usize),
    Send,
}

proptest! {
    #![proptest_config(cases(128))]

    /// Whatever arrives and whenever the driver takes packets: the driver gets the packets of whole
    /// messages, one message after the other, and every message is sent, dropped for one reason, or
    /// waits.
    #[test]
    fn the_driver_gets_whole_messages_in_order(
        steps in prop::collection::vec(
            prop_oneof![
                3 => prop::option::weighted(0.2, 0..PARTS).prop_map(Step::Arrive),
                2 => (0_usize..12).prop_map(Step::Take),
                2 => Just(Step::Send),
            ],
            1..200,
        ),
    ) {
        let mut world = World::new();
        let mut taken = Vec::new();
        for (number, step) in steps.iter().enumerate() {
            match *step {
                Step::Arrive(missing) => {
                    let packets = message(number as u64);
                    let arrive = |part: &usize| missing.is_none_or(|m| usize::from(m) != *part);
                    for part in (0..packets.len()).filter(arrive) {
                        let header = PacketHeader::decode(&packets[part]).expect("a header");
                        world.channel.accept(&header, &packets[part], Instant(number as u64));
                    }
                }
                Step::Take(most) => taken.extend(world.take(most, Status::DONE)),
                Step::Send => world.send().expect("open"),
            }
            world.check();
        }
        for _ in 0..9 {
            world.send().expect("open");
            taken.extend(world.take(100, Status::DONE));
        }
        world.check();
        prop_assert_eq!(world.channel.waiting.len(), 0);
        prop_assert_eq!(taken.len() as u64, world.channel.counts.sent * u64::from(PARTS));
        let mut last = None;
        for packets in taken.chunks(usize::from(PARTS)) {
            let number = PacketHeader::decode(&packets[0]).expect("a header").message;
            prop_assert_eq!(packets, message(number));
            prop_assert!(last.is_none_or(|last| last < number));
            last = Some(number);
        }
    }
}

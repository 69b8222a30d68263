//! Tests of the socket with the driver's side of the ring in the same process. A fake wire delivers
//! each frame of one flow to the other flow.

mod moving;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use netnice_ring::driver::{DriverRings, ProgramMemory, Taken};
use netnice_ring::{Budget, FlowLocation, ProtocolViolation, Ring, Rule, Shape};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::program::Program;

const SHAPE: Shape = Shape {
    chunk_bytes: 2048,
    chunks: 32,
    transmit_entries: 32,
    receive_entries: 32,
};

/// A wire with two ends: the driver's sides of flow 0 and flow 1.
struct Wire {
    memory: ProgramMemory,
    flows: Vec<DriverRings>,
    program: Program,
    now: u64,
}

fn address(six: bool, me: u8) -> FlowAddress {
    let at = |host: u8| match six {
        false => format!("10.78.0.{host}:{}", 4000 + u16::from(host)),
        true => format!("[fd00::{host}]:{}", 4000 + u16::from(host)),
    };
    FlowAddress {
        local: at(me).parse().unwrap(),
        remote: at(3 - me).parse().unwrap(),
        local_mac: [2, 0, 0, 0, 0, me],
        next_hop: [2, 0, 0, 0, 0, 3 - me],
        mtu: 1500,
        hops: 64,
    }
}

impl Wire {
    fn new() -> Wire {
        Wire::with_shape(SHAPE)
    }

    fn with_shape(shape: Shape) -> Wire {
        let budget = Budget {
            flows: 2,
            bytes: 2 * shape.plan().unwrap().bytes(),
        };
        let mut memory = ProgramMemory::create(budget).unwrap();
        let flows = (0..2).map(|_| memory.open(shape).unwrap()).collect();
        let program = Program::new(memory.handles().attach().unwrap());
        Wire {
            memory,
            flows,
            program,
            now: 0,
        }
    }

    fn location(&self, flow: usize) -> FlowLocation {
        self.flows[flow].location()
    }

    fn sockets(&self, six: bool) -> (Socket, Socket) {
        let socket = |flow: usize, me| {
            let address = address(six, me);
            self.program
                .udp(self.location(flow), &address, Checks::Verify)
                .unwrap()
        };
        (socket(0, 1), socket(1, 2))
    }

    /// Delivers all sent frames to the other flow.
    fn deliver_all(&mut self) -> usize {
        let mut carried = 0;
        for from in 0..2 {
            while let Ok(Taken::Record(record)) = self.flows[from].take() {
                let mut frame = [0; 2048];
                let bytes = self.flows[from].read(&record, &mut frame);
                self.now += 1;
                self.flows[from].give_back(&record, Status::DONE, self.now);
                self.deliver(1 - from, &frame[..bytes]);
                carried += 1;
            }
        }
        self.publish();
        carried
    }

    /// Delivers a frame to a flow if the flow has an empty record.
    fn deliver(&mut self, to: usize, frame: &[u8]) {
        let flow = &mut self.flows[to];
        match flow.take_empty().unwrap() {
            Taken::Record(empty) => {
                assert_eq!(flow.write(&empty, 0, frame), frame.len());
                flow.deliver(empty, frame.len(), Status::DONE, self.now);
            }
            _ => flow.count_lost(Loss::NoBuffer),
        }
    }

    /// Returns a buffer empty, as for a frame that did not fit.
    fn return_empty(&mut self, to: usize) {
        let flow = &mut self.flows[to];
        match flow.take_empty().unwrap() {
            Taken::Record(empty) => {
                flow.count_lost(Loss::TooLong);
                flow.deliver(empty, 0, Status::UNUSED, 0);
            }
            _ => flow.count_lost(Loss::NoBuffer),
        }
    }

    fn publish(&mut self) {
        let moved = self.flows[0].publish() | self.flows[1].publish();
        if moved {
            self.memory.notify();
        }
    }

    /// Delivers frames in its own thread until `end` is set, and sleeps in between.
    fn run(mut self) -> Running {
        let end = Arc::new(AtomicBool::new(false));
        let over = end.clone();
        let thread = std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                self.memory.take_notices(|_| {});
                if self.deliver_all() == 0 && self.memory.prepare_sleep() {
                    wait(self.memory.doorbell(), 50);
                }
                assert_eq!(self.memory.drain_doorbell().without_flag, 0);
            }
            self
        });
        Running { end, thread }
    }
}

struct Running {
    end: Arc<AtomicBool>,
    thread: JoinHandle<Wire>,
}

impl Running {
    fn end(self) -> Wire {
        self.end.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

fn wait(fd: BorrowedFd, milliseconds: i64) -> bool {
    let longest = Timespec {
        tv_sec: milliseconds / 1000,
        tv_nsec: milliseconds % 1000 * 1_000_000,
    };
    poll(
        &mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)],
        Some(&longest),
    )
    .unwrap()
        > 0
}

const SOON: Option<Duration> = Some(Duration::from_secs(20));

#[test]
fn datagrams_arrive_over_ipv4_and_ipv6() {
    for six in [false, true] {
        let mut wire = Wire::new();
        let (mut here, mut there) = wire.sockets(six);
        let number = here.try_send(b"hello").unwrap();
        assert!(matches!(
            there.try_recv(&mut [0; 10]),
            Err(StackError::WouldBlock)
        ));
        assert_eq!(wire.deliver_all(), 1);
        let mut bytes = [0; 10];
        let received = there.try_recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..received.bytes], b"hello");
        assert_eq!(received.from, here.local());
        assert_eq!(received.stamp, 1);
        let outcome = Outcome {
            number,
            status: Status::DONE,
            stamp: 1,
        };
        assert_eq!(here.outcome().unwrap(), Some(outcome));
        assert_eq!(here.outcome().unwrap(), None);
        // A reply of the largest length, and an empty one.
        let longest = vec![7; there.longest()];
        there.try_send(&longest).unwrap();
        there.try_send(&[]).unwrap();
        wire.deliver_all();
        let mut bytes = [0; 2000];
        let received = here.try_recv(&mut bytes).unwrap();
        assert_eq!(bytes[..received.bytes], longest);
        assert_eq!(here.try_recv(&mut bytes).unwrap().whole, 0);
        assert_eq!(here.dropped(), Dropped::default());
    }
}

/// The handler of a channel counts its free buffers by the results.
#[test]
fn a_socket_keeps_the_results_of_as_many_packets_as_it_has_buffers() {
    let buffers = 2 * OUTCOMES as u32;
    let mut wire = Wire::with_shape(Shape {
        chunks: buffers + SHAPE.receive_entries / 2,
        transmit_entries: 2 * buffers,
        ..SHAPE
    });
    let (mut socket, _other) = wire.sockets(false);
    // The results of the first round wait in the socket then, those of the second in the ring.
    for _ in 0..2 {
        for _ in 0..buffers {
            socket.try_send(b"part").unwrap();
        }
        assert_eq!(wire.deliver_all(), buffers as usize);
    }
    let results = std::iter::from_fn(|| socket.outcome().unwrap());
    assert_eq!(results.count(), 2 * buffers as usize);
    assert_eq!(socket.under_way(), 0);
}

#[test]
fn a_payload_is_written_and_read_in_place() {
    let mut wire = Wire::new();
    let (mut here, mut there) = wire.sockets(false);
    let packet = here.packet().unwrap();
    let payload = here.payload_mut(&packet).unwrap();
    assert_eq!(payload.len(), 2048 - 42);
    payload[..7].copy_from_slice(b"written");
    assert_eq!(here.queue(packet, 7).unwrap(), 0);
    assert_eq!(wire.deliver_all(), 0, "not published yet");
    here.flush();
    assert_eq!(wire.deliver_all(), 1);
    let datagram = there.receive().unwrap();
    assert_eq!(there.payload(&datagram).unwrap(), b"written");
    there.release(datagram).unwrap();
    there.flush();
    let unsent = here.packet().unwrap();
    here.discard(unsent);
}

#[test]
fn a_payload_that_is_too_long_is_refused_with_both_lengths() {
    let wire = Wire::new();
    let (mut here, _there) = wire.sockets(true);
    let refused = here.try_send(&[0; 1453]).unwrap_err().to_string();
    assert_eq!(
        refused,
        "a payload of 1453 bytes; the link carries 1452 in one packet"
    );
    let packet = here.packet().unwrap();
    let (packet, error) = here.queue(packet, 2000).unwrap_err();
    assert!(matches!(error, StackError::TooLong { length: 2000, .. }));
    here.discard(packet);
}

#[test]
fn buffers_smaller_than_a_packet_are_refused() {
    let wire = Wire::new();
    let large = FlowAddress {
        mtu: 9000,
        ..address(false, 1)
    };
    let refused = wire.program.udp(wire.location(0), &large, Checks::Verify);
    let refused = refused.map(drop).unwrap_err().to_string();
    assert_eq!(
        refused,
        "buffers of 2048 bytes do not hold a packet of 9014 bytes"
    );
}

#[test]
fn sending_stops_without_a_free_buffer_and_continues_when_buffers_return() {
    let mut wire = Wire::new();
    let (mut here, mut there) = wire.sockets(false);
    let payloads = vec![&b"one of many"[..]; 100];
    // 16 of 32 buffers are primed, and 32 entries are 16 records.
    assert_eq!(here.try_send_batch(&payloads).unwrap(), 16);
    assert!(matches!(
        here.try_send(b"more"),
        Err(StackError::WouldBlock)
    ));
    assert_eq!(wire.deliver_all(), 16);
    assert_eq!(here.try_send_batch(&payloads).unwrap(), 16);
    // The program has not released a buffer of the first 16. The flow loses the second 16, and the
    // driver counts them.
    assert_eq!(wire.deliver_all(), 16);
    assert_eq!(there.lost(Loss::NoBuffer), 16);
    let mut space = [[0u8; 64]; 20];
    let mut buffers: Vec<&mut [u8]> = space.iter_mut().map(|buffer| &mut buffer[..]).collect();
    let mut received = Vec::new();
    let count = there.try_recv_batch(&mut buffers, &mut received).unwrap();
    assert_eq!((count, received.len()), (16, 16));
    assert!(received.iter().all(|one| one.bytes == 11));
    assert_eq!(&space[15][..11], b"one of many");
    assert!(matches!(
        there.try_recv(&mut [0; 1]),
        Err(StackError::WouldBlock)
    ));
}

#[test]
fn frames_without_a_datagram_for_the_socket_are_counted() {
    let mut wire = Wire::new();
    let (mut here, mut there) = wire.sockets(false);
    let whole = {
        let headers = Headers::udp(&address(false, 1)).unwrap();
        let mut frame = vec![0; headers.headroom()];
        frame.extend(b"payload");
        headers.write(&mut frame);
        frame
    };
    let stranger = FlowAddress {
        local: "10.78.0.9:4001".parse().unwrap(),
        ..address(false, 1)
    };
    let mut strange = vec![0; 50];
    Headers::udp(&stranger).unwrap().write(&mut strange);
    let mut wrong = whole.clone();
    wrong[45] ^= 4;
    for frame in [&whole[..30], &strange, &wrong, &whole] {
        wire.deliver(1, frame);
    }
    wire.publish();
    let mut bytes = [0; 20];
    assert_eq!(there.try_recv(&mut bytes).unwrap().bytes, 7);
    let dropped = Dropped {
        short: 1,
        foreign: 1,
        fragment: 0,
        checksum: 1,
    };
    assert_eq!(there.dropped(), dropped);
    // All 16 buffers of the dropped frames are primed again.
    here.try_send_batch(&[&b"x"[..]; 16]).unwrap();
    wire.deliver_all();
    assert_eq!(there.lost(Loss::NoBuffer), 0);
}

#[test]
fn a_frame_longer_than_a_buffer_is_counted_by_the_driver_only() {
    let mut wire = Wire::new();
    let (mut here, mut there) = wire.sockets(false);
    // More often than there are buffers.
    for _ in 0..100 {
        wire.return_empty(1);
        wire.publish();
        assert!(matches!(
            there.try_recv(&mut [0; 1]),
            Err(StackError::WouldBlock)
        ));
    }
    assert_eq!(there.dropped(), Dropped::default());
    assert_eq!(there.lost(Loss::TooLong), 100);
    here.try_send(b"hello").unwrap();
    wire.deliver_all();
    assert_eq!(there.try_recv(&mut [0; 10]).unwrap().bytes, 5);
}

#[test]
fn buffers_of_dropped_frames_are_primed_again() {
    let mut wire = Wire::new();
    let (mut here, mut there) = wire.sockets(false);
    // More often than the 16 primed buffers.
    for _ in 0..100 {
        wire.deliver(1, &[0; 60]);
        wire.publish();
        assert!(matches!(
            there.try_recv(&mut [0; 1]),
            Err(StackError::WouldBlock)
        ));
    }
    assert_eq!(there.dropped().foreign, 100);
    assert_eq!(there.lost(Loss::NoBuffer), 0);
    here.try_send(b"hello").unwrap();
    wire.deliver_all();
    assert_eq!(there.try_recv(&mut [0; 10]).unwrap().bytes, 5);
}

#[test]
fn blocking_calls_wait_until_a_packet_arrives_or_the_timeout_expires() {
    let wire = Wire::new();
    let (mut here, mut there) = wire.sockets(false);
    let mut bytes = [0; 1500];
    let begin = Instant::now();
    let waited = there.recv(&mut bytes, Some(Duration::from_millis(30)));
    assert!(matches!(waited, Err(StackError::WouldBlock)));
    assert!(begin.elapsed() >= Duration::from_millis(30));
    let running = wire.run();
    let echo = std::thread::spawn(move || {
        let mut bytes = [0; 1500];
        loop {
            let received = there.recv(&mut bytes, SOON).unwrap();
            if received.bytes == 0 {
                return there;
            }
            there.send(&bytes[..received.bytes], SOON).unwrap();
        }
    });
    for round in 0..2000u32 {
        here.send(&round.to_ne_bytes(), SOON).unwrap();
        let received = here.recv(&mut bytes, SOON).unwrap();
        assert_eq!(bytes[..received.bytes], round.to_ne_bytes());
    }
    // More datagrams than buffers: sending waits for returned buffers.
    here.send(&[], SOON).unwrap();
    let there = echo.join().unwrap();
    for _ in 0..500 {
        here.send(b"not read", SOON).unwrap();
    }
    let wire = running.end();
    assert!(there.lost(Loss::NoBuffer) >= 400);
    for flow in &wire.flows {
        flow.invariants();
    }
}

#[test]
fn an_event_loop_polls_one_descriptor_for_all_flows() {
    let mut wire = Wire::new();
    let (mut here, mut there) = wire.sockets(false);
    let program = wire.program.clone();
    assert!(program.arm());
    assert!(!wait(program.as_fd(), 10));
    here.try_send(b"hello").unwrap();
    wire.deliver_all();
    assert!(wait(program.as_fd(), 1000));
    let mut slots = Vec::new();
    program.poll(|slot| slots.push(slot));
    assert_eq!(slots, [0, 1]);
    assert!(!wait(program.as_fd(), 10), "the notification was consumed");
    let mut bytes = [0; 10];
    assert_eq!(there.try_recv(&mut bytes).unwrap().bytes, 5);
    // A packet that arrives before the program sleeps prevents it from sleeping.
    here.try_send(b"again").unwrap();
    wire.deliver_all();
    assert!(!program.arm());
    program.poll(|_| {});
    assert_eq!(there.try_recv(&mut bytes).unwrap().bytes, 5);
}

#[test]
fn a_waiting_call_returns_the_reason_when_the_flow_ends() {
    let mut wire = Wire::new();
    let (mut here, mut there) = wire.sockets(false);
    let first = wire.flows.remove(0);
    let waiter = std::thread::spawn(move || {
        let error = here.recv(&mut [0; 10], SOON).unwrap_err();
        error.to_string()
    });
    wire.memory.close(first);
    wire.memory.notify();
    assert_eq!(waiter.join().unwrap(), "the flow is closed");
    let waiter = std::thread::spawn(move || {
        let error = there.recv(&mut [0; 10], SOON).unwrap_err();
        error.to_string()
    });
    wire.memory.disconnect(&ProtocolViolation {
        ring: Ring::Submit,
        rule: Rule::Count { count: 9 },
    });
    assert_eq!(
        waiter.join().unwrap(),
        "the driver disconnected this program: it broke rule R30 of docs/reference/ring.md"
    );
}

#[test]
fn only_the_first_packet_of_a_message_begins_it() {
    let mut wire = Wire::new();
    let (mut here, _there) = wire.sockets(false);
    here.try_send_message(&[b"one", b"two", b"three"]).unwrap();
    here.try_send(b"another").unwrap();
    let packet = here.packet().unwrap();
    here.queue_continuation(packet, 4).unwrap();
    here.flush();
    let begins: Vec<bool> = std::iter::from_fn(|| match wire.flows[0].take().unwrap() {
        Taken::Record(record) => Some(record.begins_message()),
        _ => None,
    })
    .collect();
    assert_eq!(begins, [true, false, false, true, false]);
}

/// The longest message counts the headers of all packets. One byte more is refused, by every call,
/// and nothing of it is queued.
#[test]
fn a_message_above_mmax_is_refused_whole() {
    let mut wire = Wire::new();
    let (mut here, _there) = wire.sockets(false);
    // Two packets with 42 bytes of headers each.
    here.set_contract("channel mmax=184B,rmax=10/s,bmax=9,deadline=10ms");
    assert_eq!(here.longest_message(), Some(184));
    here.try_send_message(&[&[0; 50], &[0; 50]]).unwrap();
    let error = here.try_send_message(&[&[0; 50], &[0; 51]]).unwrap_err();
    let said = "a message of 185 bytes with the headers of its packets; the contract's mmax, which \
                counts the headers, is 184 bytes";
    assert_eq!(error.to_string(), said);
    here.try_send(&[0; 142]).unwrap();
    let too_long = |error| {
        matches!(
            error,
            StackError::MessageTooLong {
                bytes: 185,
                mmax: 184
            }
        )
    };
    assert!(too_long(here.try_send(&[0; 143]).unwrap_err()));
    let packet = here.packet().unwrap();
    here.queue(packet, 50).unwrap();
    let packet = here.packet().unwrap();
    let (packet, error) = here.queue_continuation(packet, 51).unwrap_err();
    assert!(too_long(error));
    here.queue_continuation(packet, 50).unwrap();
    here.flush();
    assert_eq!((here.under_way(), wire.deliver_all()), (5, 5));
    here.set_contract("slice 1ms/20ms");
    here.try_send_message(&[&[0; 1000], &[0; 1000]]).unwrap();
}

/// What each overload policy does with messages beyond the contract, and what the counts say.
#[test]
fn messages_beyond_the_contract_follow_the_overload_policy() {
    let counts = |queued, waiting, held_back, dropped| MessageCounts {
        queued,
        waiting,
        held_back,
        dropped,
    };
    // Rmax is so small that no second logical arrival comes during the test.
    let with =
        |policy| format!("channel mmax=184B,rmax=1/s,bmax=2,deadline=10ms,overload={policy}");
    for (policy, sent, after) in [
        ("block", 2, counts(2, 2, 1, 0)),
        ("decay", 5, counts(5, 5, 0, 0)),
        ("best-effort", 5, counts(5, 5, 0, 0)),
        ("space", 1, counts(1, 1, 1, 0)),
        ("drop", 2, counts(2, 2, 0, 3)),
    ] {
        let mut wire = Wire::new();
        let (mut here, _there) = wire.sockets(false);
        here.set_contract(&with(policy));
        let message = [&[0; 50][..], &[0; 50]];
        let mut done = 0;
        for _ in 0..5 {
            match (policy, here.try_send_message(&message)) {
                (_, Ok(_)) => done += 1,
                ("drop", Err(StackError::MessageDropped { bmax: 2 })) => {}
                ("block" | "space", Err(StackError::WouldBlock)) => {}
                (_, Err(error)) => panic!("{policy}: {error}"),
            }
        }
        assert_eq!((done, here.messages()), (sent, after), "{policy}");
        assert_eq!(here.under_way(), 2 * sent);
        assert_eq!(here.retry_at().is_some(), policy == "space");
        wire.deliver_all();
        here.drain(Some(Duration::ZERO)).unwrap();
        assert_eq!(here.messages().waiting, 0, "{policy}");
        // There is room again, but with `space` not before the next logical arrival.
        match here.try_send(&[0; 50]) {
            Ok(_) => assert_ne!(policy, "space"),
            Err(StackError::WouldBlock) => assert_eq!(policy, "space"),
            Err(error) => panic!("{policy}: {error}"),
        }
        // A continuation is no message of its own.
        if policy == "block" {
            let queued = here.messages().queued;
            let packet = here.packet().unwrap();
            here.queue_continuation(packet, 50).unwrap();
            assert_eq!(here.messages().queued, queued);
        }
    }
}

/// A call that waits sends a spaced message at its logical arrival.
#[test]
fn a_spaced_message_is_sent_when_its_time_comes() {
    let wire = Wire::new();
    let (mut here, _there) = wire.sockets(false);
    here.set_contract("channel mmax=184B,rmax=20/s,bmax=9,deadline=10ms,overload=space");
    let begin = Instant::now();
    for _ in 0..3 {
        here.send(&[0; 50], Some(Duration::from_secs(60))).unwrap();
    }
    assert!(begin.elapsed() >= Duration::from_millis(100));
    let error = here
        .send(&[0; 50], Some(Duration::from_millis(1)))
        .unwrap_err();
    assert!(matches!(error, StackError::WouldBlock), "{error}");
    assert_eq!(here.messages().queued, 3);
}

/// Records that begin a message state when it was queued, or the time that the program sets, once.
#[test]
fn a_message_states_its_arrival() {
    let mut wire = Wire::new();
    let (mut here, _there) = wire.sockets(false);
    here.try_send(&[0; 50]).unwrap();
    here.set_contract("channel mmax=184B,rmax=10/s,bmax=9,deadline=10ms");
    here.set_arrival(Some(77));
    here.try_send_message(&[&[0; 50], &[0; 50]]).unwrap();
    here.try_send(&[0; 50]).unwrap();
    let arrivals: Vec<Option<u64>> = std::iter::from_fn(|| match wire.flows[0].take().unwrap() {
        Taken::Record(record) => Some(record.arrival()),
        _ => None,
    })
    .collect();
    assert_eq!(arrivals[..3], [None, Some(77), None]);
    assert!(arrivals[3].is_some_and(|at| at > 77), "{arrivals:?}");
}

#[test]
fn a_message_that_does_not_fit_in_the_ring_is_not_queued_in_part() {
    // A ring for 8 records, and 16 buffers for sending.
    let mut wire = Wire::with_shape(Shape {
        transmit_entries: 16,
        ..SHAPE
    });
    let (mut here, _there) = wire.sockets(false);
    let parts = [&b"part"[..]; 10];
    let error = here.try_send_message(&parts).unwrap_err();
    let said = "a message of 10 packets; the flow has room for 8 at a time";
    assert_eq!(error.to_string(), said);
    here.try_send_message(&parts[..5]).unwrap();
    let error = here.try_send_message(&parts[..4]).unwrap_err();
    assert!(matches!(error, StackError::WouldBlock), "{error}");
    assert_eq!(here.under_way(), 5, "no part was queued");
    assert_eq!(wire.deliver_all(), 5);
    here.try_send_message(&parts[..8]).unwrap();
}

#[test]
fn a_fragmented_datagram_is_reassembled() {
    let mut wire = Wire::new();
    let (_here, mut there) = wire.sockets(false);
    let payload: Vec<u8> = (0..4000).map(|at| (at / 7) as u8).collect();
    // As a sender's kernel fragments it.
    let ethernet = etherparse::PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let (from, to) = (address_and_port(1), address_and_port(2));
    let mut whole = Vec::new();
    let builder = ethernet.ipv4(from.0, to.0, 64).udp(from.1, to.1);
    builder.write(&mut whole, &payload).unwrap();
    let fragments: Vec<Vec<u8>> = whole[34..]
        .chunks(1480)
        .enumerate()
        .map(|(index, bytes)| {
            let mut header = etherparse::Ipv4Header::from_slice(&whole[14..34])
                .unwrap()
                .0;
            header.total_len = 20 + bytes.len() as u16;
            header.dont_fragment = false;
            header.more_fragments = index < 2;
            header.fragment_offset = (index as u16 * 185).try_into().unwrap();
            header.header_checksum = header.calc_header_checksum();
            let mut frame = whole[..14].to_vec();
            frame.extend(header.to_bytes());
            frame.extend(bytes);
            frame
        })
        .collect();
    assert_eq!(fragments.len(), 3);
    let mut bytes = [0; 5000];
    for order in [[0, 1, 2], [2, 0, 1]] {
        for which in order {
            assert!(there.try_recv(&mut bytes).is_err());
            wire.deliver(1, &fragments[which]);
            wire.publish();
        }
        let received = there.try_recv(&mut bytes).unwrap();
        assert_eq!(received.from, "10.78.0.1:4001".parse().unwrap());
        assert_eq!(bytes[..received.bytes], payload);
    }
    // A fragment is missing: there is no datagram, and the buffers are primed again.
    for _ in 0..40 {
        wire.deliver(1, &fragments[1]);
        wire.publish();
        assert!(there.try_recv(&mut bytes).is_err());
    }
    assert_eq!(there.lost(Loss::NoBuffer), 0);
}

fn address_and_port(host: u8) -> ([u8; 4], u16) {
    ([10, 78, 0, host], 4000 + u16::from(host))
}

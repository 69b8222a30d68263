use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use netnice_core::contract::Contract;
use netnice_core::sched::{Service, Wire};
use netnice_core::units::Rate;
use netnice_ring::layout::{Budget, Shape};
use netnice_ring::program::{Attachment, Piece, ProgramRings};
use netnice_ring::record::MessagePart;

use super::*;
use crate::datapath::FlowParameters;
use crate::demux::Reassembly;
use crate::link::Interface;
use crate::protocol::Transport;
use crate::template::{Sender, Sends};
use crate::test_frames::{OWN, PEER, endpoint, udp};

const SHAPE: Shape = Shape {
    chunk_bytes: 256,
    chunks: 64,
    transmit_entries: 128,
    receive_entries: 16,
};

/// An event loop on a fake link, and a program that sends as much as it can.
struct Rig {
    event_loop: EventLoop,
    flow: ProgramRings,
    _attachment: Attachment,
    wire: UnixDatagram,
}

fn rig() -> Rig {
    rig_with(["cell pcr=500mbit,cdvt=500us"]).0
}

/// As [`rig`], with a flow for each contract: the first is that of the rig. Their source ports
/// follow 5000.
fn rig_with<const N: usize>(contracts: [&str; N]) -> (Rig, Vec<ProgramRings>) {
    let interface = Interface {
        name: "fake".to_owned(),
        index: 1,
        mac: OWN,
        mtu: 1500,
        is_up: true,
        cuts_segments: false,
        is_virtual: true,
    };
    let (socket, wire) = UnixDatagram::pair().unwrap();
    socket.set_nonblocking(true).unwrap();
    wire.set_nonblocking(true).unwrap();
    let (link, _) = Link::fake(&interface, socket.into());
    let mut datapath = Datapath::new(Wire::new(Rate::new(1_000_000_000).unwrap()), OWN).unwrap();
    let client = ProgramMemory::create(Budget {
        flows: N as u32,
        bytes: SHAPE.plan().unwrap().bytes() * N as u64,
    });
    let program = datapath.attach(client.unwrap());
    let mut opened = 0;
    let places = contracts.map(|contract| {
        let contract: Contract = contract.parse().unwrap();
        let port = 5000 + opened;
        opened += 1;
        let open = FlowParameters {
            shape: SHAPE,
            service: Service::of(&contract).unwrap(),
            sender: Sender {
                mac: OWN,
                next_hop: Some(PEER),
                longest: 1514,
                sends: Sends::Ports {
                    transport: Transport::Udp,
                    local: endpoint(&format!("10.0.0.1:{port}")),
                    remote: None,
                },
            },
            matches: Vec::new(),
            reassembly: Reassembly::Complete,
            receive_budget: None,
        };
        datapath.open(program, &open, monotonic()).unwrap().location
    });
    let handles = datapath.memory(program).unwrap().handles();
    let attachment = handles.attach().unwrap();
    let mut flows = places
        .map(|place| attachment.flow(place).unwrap())
        .into_iter();
    let rig = Rig {
        flow: flows.next().unwrap(),
        _attachment: attachment,
        event_loop: EventLoop::new(datapath, link).unwrap(),
        wire,
    };
    (rig, flows.collect())
}

/// Submits one frame from this port, with a stated arrival.
fn submit_arrived(flow: &mut ProgramRings, port: u16, arrival: u64) {
    let frame = udp(&format!("10.0.0.1:{port}"), "10.0.0.2:9").frame();
    let chunk = flow.chunk().unwrap();
    flow.bytes_mut(chunk).unwrap()[..frame.len()].copy_from_slice(&frame);
    let piece = Piece {
        chunk,
        start: 0,
        length: frame.len() as u32,
    };
    let part = MessagePart::Arrived(arrival);
    flow.submit_part(&[piece], part).unwrap();
    flow.publish();
}

impl Rig {
    /// The program submits as much as it can, and the loop runs one iteration. Returns how many
    /// records came back before.
    fn iterate(&mut self) -> usize {
        let mut back = 0;
        while let Some(record) = self.flow.reclaim().unwrap() {
            self.flow.free_all(&record).unwrap();
            back += 1;
        }
        let frame = udp("10.0.0.1:5000", "10.0.0.2:9").frame();
        while let Some(chunk) = self.flow.chunk() {
            self.flow.bytes_mut(chunk).unwrap()[..frame.len()].copy_from_slice(&frame);
            let piece = Piece {
                chunk,
                start: 0,
                length: frame.len() as u32,
            };
            self.flow.submit(&[piece], false).unwrap();
        }
        self.flow.publish();
        self.event_loop.iterate(Nanos::from_millis(1));
        back
    }
}

#[test]
fn the_loop_sleeps_while_the_nic_is_full() {
    let mut rig = rig();
    // The peer does not read.
    let mut iterations = 0;
    while iterations < 100 {
        iterations = match rig.iterate() {
            0 => iterations + 1,
            _ => 0,
        };
    }
    let before = rig.event_loop.time_accounting();
    for _ in 0..100 {
        assert_eq!(rig.iterate(), 0);
        assert!(rig.event_loop.datapath.in_flight() > 0, "they are here");
    }
    let sleeps = rig.event_loop.time_accounting().sleeps - before.sleeps;
    // Not in each iteration, if the machine is slow.
    assert!(sleeps > 10, "{sleeps} sleeps in 100 iterations");
    // Sending continues when there is room.
    let sent = rig.event_loop.link.sent();
    while rig.wire.recv(&mut [0; 2048]).is_ok() {}
    let mut iterations = 0;
    while rig.event_loop.link.sent() < sent + 100 {
        rig.iterate();
        while rig.wire.recv(&mut [0; 2048]).is_ok() {}
        iterations += 1;
        assert!(iterations < 100_000, "nothing leaves");
    }
    assert_eq!(rig.event_loop.datapath.in_flight(), 0);
}

/// While packets may be given to the link in advance, the loop waits for no exact time: it learns
/// nothing of the lateness of sleeps before departures, and does not spin.
#[test]
fn packets_in_advance_need_no_exact_time() {
    let (mut rig, _) = rig_with(["slice 1ms/10ms extra"]);
    let mut wire = Wire::new(Rate::new(10_000_000).unwrap());
    wire.ahead = Nanos::from_millis(1);
    rig.event_loop.datapath().rewire(wire, None).unwrap();
    let sent = |rig: &mut Rig| {
        while rig.wire.recv(&mut [0; 2048]).is_ok() {}
        rig.event_loop.link.sent()
    };
    // What fills the time in advance leaves at once.
    while sent(&mut rig) < 50 {
        rig.iterate();
    }
    let lead = rig.event_loop.wake_lead.nanos();
    let (began, before) = (sent(&mut rig), rig.event_loop.time_accounting());
    while sent(&mut rig) < began + 500 {
        rig.iterate();
    }
    assert_eq!(rig.event_loop.wake_lead.nanos(), lead);
    let now = rig.event_loop.time_accounting();
    assert!(now.sleeps > before.sleeps);
    assert!(now.iterations - before.iterations < 500, "each alone");
}

#[test]
fn the_loop_sleeps_longer_only_if_the_link_has_enough_packets_for_a_late_wakeup() {
    // With the steps of the work-ahead: exactly, with 60 us, 250 us and 1 ms.
    let cases = [
        (20, None),
        (60, None),
        (249, None),
        (250, Some(50_000)),
        (1_000, Some(200_000)),
    ];
    for (busy, expected) in cases {
        assert_eq!(longer(Nanos(busy * 1_000)), expected, "{busy} us");
    }
}

#[test]
fn a_doorbell_that_cannot_be_watched_leaves_number_and_memory_as_they_were() {
    let mut rig = rig();
    let program = rig.event_loop.datapath().reserve_program();
    let budget = Budget {
        flows: 1,
        bytes: SHAPE.plan().unwrap().bytes(),
    };
    let memory = Box::new(ProgramMemory::create(budget).unwrap());
    // A descriptor is in an epoll at most once.
    rig.event_loop.watch_wakeup(memory.doorbell()).unwrap();
    let refused = rig.event_loop.attach_reserved(program, memory, 0);
    let (error, memory) = refused.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    epoll::delete(&rig.event_loop.epoll, memory.doorbell()).unwrap();
    let attached = rig.event_loop.attach_reserved(program, memory, 0);
    attached.map_err(|(error, _)| error).unwrap();
    // The number is in use now: the next memory comes back and is not watched.
    let second = Box::new(ProgramMemory::create(budget).unwrap());
    let (error, second) = rig
        .event_loop
        .attach_reserved(program, second, 0)
        .unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    rig.event_loop.watch_wakeup(second.doorbell()).unwrap();
    assert!(rig.event_loop.detach(program).is_some());
}

/// The loop stands still after its sleep, and a program submits a message meanwhile. The message
/// counts as arrived when the sleep ended, so it leaves before one that states the time of the
/// reading and has a shorter deadline.
#[test]
fn a_message_during_a_stop_arrived_at_its_beginning() {
    let stop = Duration::from_millis(300);
    let early = "channel mmax=1500B,rmax=1/s,bmax=1,deadline=200ms";
    let late = "channel mmax=1500B,rmax=1/s,bmax=1,deadline=100ms";
    let (mut rig, mut others) = rig_with([early, late]);
    rig.event_loop.iterate(Nanos::from_millis(1));
    let unread_since = rig.event_loop.unread_since;
    assert!(unread_since <= monotonic());
    thread::sleep(stop);
    submit_arrived(&mut rig.flow, 5000, 0);
    submit_arrived(&mut others[0], 5001, u64::MAX);
    let (mut frame, mut ports) = ([0; 2048], Vec::new());
    for _ in 0..100 {
        rig.event_loop.iterate(Nanos::from_millis(1));
        while rig.wire.recv(&mut frame).is_ok() {
            ports.push(u16::from_be_bytes([frame[34], frame[35]]));
        }
    }
    // Due 200 ms after the sleep, and 100 ms after the reading, which was 300 ms later.
    assert_eq!(ports, [5000, 5001]);
    // The loop has read the rings since then.
    assert!(rig.event_loop.unread_since.0 >= unread_since.0 + stop.as_nanos() as u64);
}

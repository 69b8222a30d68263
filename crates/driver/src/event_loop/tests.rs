use std::os::unix::net::UnixDatagram;

use netnice_core::contract::Contract;
use netnice_core::sched::{Service, Wire};
use netnice_core::units::Rate;
use netnice_ring::layout::{Budget, Shape};
use netnice_ring::program::{Attachment, Piece, ProgramRings};

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
    let interface = Interface {
        name: "fake".to_owned(),
        index: 1,
        mac: OWN,
        mtu: 1500,
        is_up: true,
    };
    let (socket, wire) = UnixDatagram::pair().unwrap();
    socket.set_nonblocking(true).unwrap();
    wire.set_nonblocking(true).unwrap();
    let (link, _) = Link::fake(&interface, socket.into());
    let mut datapath = Datapath::new(Wire::new(Rate::new(1_000_000_000).unwrap()), OWN).unwrap();
    let client = ProgramMemory::create(Budget {
        flows: 1,
        bytes: SHAPE.plan().unwrap().bytes(),
    });
    let program = datapath.attach(client.unwrap());
    let contract: Contract = "cell pcr=500mbit,cdvt=500us".parse().unwrap();
    let open = FlowParameters {
        shape: SHAPE,
        service: Service::of(&contract).unwrap(),
        sender: Sender {
            mac: OWN,
            next_hop: Some(PEER),
            longest: 1514,
            sends: Sends::Ports {
                transport: Transport::Udp,
                local: endpoint("10.0.0.1:5000"),
                remote: None,
            },
        },
        matches: Vec::new(),
        reassembly: Reassembly::Complete,
        receive_budget: None,
    };
    let place = datapath.open(program, &open, monotonic()).unwrap().location;
    let handles = datapath.memory(program).unwrap().handles();
    let attachment = handles.attach().unwrap();
    Rig {
        flow: attachment.flow(place).unwrap(),
        _attachment: attachment,
        event_loop: EventLoop::new(datapath, link).unwrap(),
        wire,
    }
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

use std::os::unix::net::UnixDatagram;

use netnice_core::contract::Contract;
use netnice_core::sched::{Service, Wire};
use netnice_core::units::Rate;
use netnice_ring::layout::{Budget, Shape};
use netnice_ring::program::{Attachment, Piece, ProgramRings};

use super::*;
use crate::demux::Reassembly;
use crate::link::Interface;
use crate::protocol::Transport;
use crate::story::{OWN, PEER, end, udp};
use crate::template::{Sender, Sends};
use crate::turn::Open;

const SHAPE: Shape = Shape {
    chunk_bytes: 256,
    chunks: 64,
    transmit_entries: 128,
    receive_entries: 16,
};

/// An event loop on a fake link, and a program that sends as much as it can.
struct Rig {
    server: Server,
    flow: ProgramRings,
    _attachment: Attachment,
    wire: UnixDatagram,
}

fn rig() -> Rig {
    let interface = Interface {
        name: "paper".to_owned(),
        index: 1,
        mac: OWN,
        mtu: 1500,
        is_up: true,
    };
    let (socket, wire) = UnixDatagram::pair().unwrap();
    socket.set_nonblocking(true).unwrap();
    wire.set_nonblocking(true).unwrap();
    let (link, _) = Link::on_paper(&interface, socket.into());
    let mut turn = Turn::new(Wire::new(Rate::new(1_000_000_000).unwrap()), OWN).unwrap();
    let client = ProgramMemory::create(Budget {
        flows: 1,
        bytes: SHAPE.plan().unwrap().bytes(),
    });
    let program = turn.attach(client.unwrap());
    let contract: Contract = "cell pcr=500mbit,cdvt=500us".parse().unwrap();
    let open = Open {
        shape: SHAPE,
        service: Service::of(&contract).unwrap(),
        sender: Sender {
            mac: OWN,
            next_hop: Some(PEER),
            longest: 1514,
            sends: Sends::Ports {
                transport: Transport::Udp,
                local: end("10.0.0.1:5000"),
                remote: None,
            },
        },
        matches: Vec::new(),
        reassembly: Reassembly::Complete,
        share: None,
    };
    let place = turn.open(program, &open, monotonic()).unwrap().place;
    let handles = turn.client(program).unwrap().handles();
    let attachment = handles.attach().unwrap();
    Rig {
        flow: attachment.flow(place).unwrap(),
        _attachment: attachment,
        server: Server::new(turn, link).unwrap(),
        wire,
    }
}

impl Rig {
    /// The program submits as much as it can, and the loop runs one iteration. Returns how many
    /// records came back before.
    fn round(&mut self) -> usize {
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
        self.server.round(Nanos::from_millis(1));
        back
    }
}

#[test]
fn a_full_card_is_waited_for_asleep() {
    let mut rig = rig();
    // The peer does not read.
    let mut rounds = 0;
    while rounds < 100 {
        rounds = match rig.round() {
            0 => rounds + 1,
            _ => 0,
        };
    }
    let before = rig.server.spent();
    for _ in 0..100 {
        assert_eq!(rig.round(), 0);
        assert!(rig.server.turn.under_way() > 0, "they are here");
    }
    let sleeps = rig.server.spent().sleeps - before.sleeps;
    // Not in each iteration, if the machine is slow.
    assert!(sleeps > 10, "{sleeps} sleeps in 100 rounds");
    // Sending continues when there is room.
    let sent = rig.server.link.sent();
    while rig.wire.recv(&mut [0; 2048]).is_ok() {}
    let mut rounds = 0;
    while rig.server.link.sent() < sent + 100 {
        rig.round();
        while rig.wire.recv(&mut [0; 2048]).is_ok() {}
        rounds += 1;
        assert!(rounds < 100_000, "nothing leaves");
    }
    assert_eq!(rig.server.turn.under_way(), 0);
}

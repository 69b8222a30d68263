//! Common parts of the tests of the datapath: a fake NIC, programs with flows, and packets.

use std::fs::File;

use netnice_core::contract::{Contract, Slice, Weight};
use netnice_core::units::{Nanos, Rate};
use netnice_ring::MessagePart;
use netnice_ring::layout::Budget;
use netnice_ring::program::{self, Attachment, Piece};

use super::super::*;
use crate::protocol::Transport;
use crate::template::{Checked, Forbidden, SegmentRun};
use crate::template::{Sender, Sends};
use crate::test_frames::{OWN, PEER, endpoint, udp};

/// A fake NIC that keeps the sent frames.
#[derive(Default)]
pub(super) struct FakeNic {
    pub(super) frame: Vec<u8>,
    pub(super) sent: Vec<Vec<u8>>,
    /// For each of them, the longest packet that it may leave in with others.
    pub(super) most_joined: Vec<usize>,
    pub(super) room: usize,
    /// Segments can leave joined.
    pub(super) joins: bool,
    /// The number of segments of each run.
    pub(super) runs: Vec<usize>,
}

impl FrameSink for FakeNic {
    fn room(&mut self) -> usize {
        self.room
    }

    fn send<F>(&mut self, write: F) -> Option<Result<(), Forbidden>>
    where
        F: for<'a> FnOnce(&'a mut [u8]) -> Result<Checked<'a>, Forbidden>,
    {
        if self.room == 0 {
            return None;
        }
        self.frame.resize(2048, 0);
        let checked = write(&mut self.frame).map(|checked| checked.bytes().to_vec());
        Some(checked.map(|bytes| {
            self.room -= 1;
            self.sent.push(bytes);
        }))
    }

    fn joins(&self) -> bool {
        self.joins
    }

    fn send_run(&mut self, _most: usize, run: &SegmentRun<'_>) -> bool {
        self.runs.push(run.payloads().len());
        send_cut(self, run)
    }

    fn send_segment<F>(&mut self, most: usize, write: F) -> Option<Result<(), Forbidden>>
    where
        F: for<'a> FnOnce(&'a mut [u8]) -> Result<Checked<'a>, Forbidden>,
    {
        self.most_joined.push(most);
        self.send(write)
    }
}

/// One program with one flow, and the status of its records.
pub(super) struct TestProgram {
    pub(super) program: ProgramNo,
    pub(super) attachment: Attachment,
    pub(super) memory: File,
    pub(super) flow: program::ProgramRings,
    pub(super) opened: OpenedFlow,
    pub(super) port: u16,
    pub(super) submitted: u64,
    pub(super) returned: Vec<Status>,
    pub(super) stamps: Vec<u64>,
}

pub(super) struct Rig {
    pub(super) datapath: Datapath,
    pub(super) sink: FakeNic,
    pub(super) now: Instant,
}

pub(super) const SHAPE: Shape = Shape {
    chunk_bytes: 2048,
    chunks: 64,
    transmit_entries: 64,
    receive_entries: 64,
};
pub(super) const ROOM: usize = 1 << 20;

pub(super) fn rig(rate: u64) -> Rig {
    rig_with(Wire::new(Rate::new(rate).unwrap()))
}

pub(super) fn rig_with(wire: Wire) -> Rig {
    Rig {
        datapath: Datapath::new(wire, OWN).unwrap(),
        sink: FakeNic {
            room: ROOM,
            ..FakeNic::default()
        },
        now: Instant(0),
    }
}

pub(super) fn slice(ms: u64) -> Service {
    let (slice, period) = (Nanos::from_millis(ms), Nanos::from_millis(100));
    Service::Slice {
        slice: Slice::new(slice, period, false).unwrap(),
        weight: Weight::default(),
    }
}

pub(super) fn contract(typed: &str) -> Contract {
    typed.parse().unwrap()
}

/// The parameters of a program: its own port, and a group that all programs join.
pub(super) fn parameters(
    port: u16,
    service: Service,
    receive_budget: Option<ReceiveBudget>,
) -> FlowParameters {
    let local = endpoint(&format!("10.0.0.1:{port}"));
    let transport = Transport::Udp;
    FlowParameters {
        shape: SHAPE,
        service,
        sender: Sender {
            mac: OWN,
            next_hop: Some(PEER),
            longest: 1514,
            sends: Sends::Ports {
                transport,
                local,
                remote: Some(endpoint("10.0.0.2:9")),
            },
        },
        matches: vec![
            Match::Port { transport, local },
            Match::Group {
                transport,
                group: endpoint("224.1.1.1:77"),
            },
        ],
        reassembly: Reassembly::Complete,
        receive_budget,
    }
}

impl Rig {
    pub(super) fn program(
        &mut self,
        port: u16,
        service: Service,
        receive_budget: Option<ReceiveBudget>,
    ) -> TestProgram {
        self.program_with(port, &parameters(port, service, receive_budget))
    }

    pub(super) fn program_with(&mut self, port: u16, open: &FlowParameters) -> TestProgram {
        let budget = Budget {
            flows: 4,
            bytes: 4 << 20,
        };
        let program = self.datapath.attach(ProgramMemory::create(budget).unwrap());
        let opened = self.datapath.open(program, open, self.now).unwrap();
        let handles = self.datapath.memory(program).unwrap().handles();
        let attachment = handles.attach().unwrap();
        let memory = File::from(handles.memory.try_clone_to_owned().unwrap());
        let flow = attachment.flow(opened.location).unwrap();
        TestProgram {
            program,
            attachment,
            memory,
            flow,
            opened,
            port,
            submitted: 0,
            returned: Vec::new(),
            stamps: Vec::new(),
        }
    }

    pub(super) fn transmit(&mut self) -> Next {
        let next = self.datapath.transmit(&mut self.sink, self.now);
        self.datapath.all_sent(|| self.now);
        self.datapath.publish();
        self.datapath.invariants();
        next
    }

    /// Runs until this time; programs submit whenever they can.
    pub(super) fn run(&mut self, until: u64, programs: &mut [TestProgram]) {
        while self.now.0 < until {
            for program in programs.iter_mut() {
                while program.submit_datagram(1500 - 28 - 14) {}
            }
            let next = self.datapath.transmit(&mut self.sink, self.now);
            self.datapath.publish();
            self.now = match next {
                Next::Again => self.now,
                Next::Wait(at) => Instant(at.0.min(until)),
                Next::Full | Next::Idle => Instant(until),
            };
        }
        self.datapath.invariants();
    }
}

impl TestProgram {
    /// Submits a datagram of its own, if there is room.
    pub(super) fn submit_datagram(&mut self, length: usize) -> bool {
        let from = format!("10.0.0.1:{}", self.port);
        let data = vec![self.submitted as u8; length];
        let frame = udp(&from, "10.0.0.2:9").data(&data).frame();
        self.submit(&frame)
    }

    /// Submits a datagram of its own that begins a message, with this arrival.
    pub(super) fn submit_arrived(&mut self, length: usize, arrival: u64) -> bool {
        let from = format!("10.0.0.1:{}", self.port);
        let frame = udp(&from, "10.0.0.2:9").data(&vec![0; length]).frame();
        self.submit_part(&frame, MessagePart::Arrived(arrival))
    }

    pub(super) fn submit(&mut self, frame: &[u8]) -> bool {
        self.submit_part(frame, MessagePart::Begins)
    }

    fn submit_part(&mut self, frame: &[u8], part: MessagePart) -> bool {
        self.collect();
        let Some(chunk) = self.flow.chunk() else {
            return false;
        };
        self.flow.bytes_mut(chunk).unwrap()[..frame.len()].copy_from_slice(frame);
        let piece = Piece {
            chunk,
            start: 0,
            length: frame.len() as u32,
        };
        if self.flow.submit_part(&[piece], part).is_err() {
            self.flow.free(chunk).unwrap();
            return false;
        }
        self.submitted += 1;
        self.flow.publish();
        true
    }

    pub(super) fn collect(&mut self) {
        while let Ok(Some(record)) = self.flow.reclaim() {
            self.returned.push(record.status());
            self.stamps.push(record.stamp());
            self.flow.free_all(&record).unwrap();
        }
        // There may be room for more returned records.
        self.flow.publish();
    }

    pub(super) fn prime(&mut self, length: u32) -> bool {
        let Some(chunk) = self.flow.chunk() else {
            return false;
        };
        let piece = Piece {
            chunk,
            start: 0,
            length,
        };
        if self.flow.prime(&[piece]).is_err() {
            self.flow.free(chunk).unwrap();
            return false;
        }
        self.flow.publish();
        true
    }

    /// The packets received since the last call.
    pub(super) fn received(&mut self) -> Vec<Vec<u8>> {
        let mut received = Vec::new();
        while let Ok(Some(record)) = self.flow.receive() {
            let pair = record.pairs()[0];
            if record.status() == Status::DONE {
                let chunk = self.flow.piece(&pair).chunk;
                let bytes = self.flow.bytes(chunk).unwrap();
                received.push(bytes[..pair.length as usize].to_vec());
            }
            self.flow.free_all(&record).unwrap();
        }
        self.flow.publish();
        received
    }
}

pub(super) fn to(port: u16, length: usize) -> Vec<u8> {
    let to = format!("10.0.0.1:{port}");
    udp("10.0.0.2:9", &to)
        .received()
        .data(&vec![7; length])
        .frame()
}

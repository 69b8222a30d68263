use netnice_core::contract::Weight;

use super::rig::{rig, to};
use super::*;
use crate::segments::{Checksum, Merged, Offload};

fn datagrams(of: u16) -> Offload {
    Offload {
        merged: Merged::Udp(of),
        checksum: Checksum::Valid,
    }
}

#[test]
fn a_long_packet_is_cut_only_for_a_flow() {
    let mut rig = rig(100_000_000);
    let best = Service::best_effort(Weight::default());
    let mut program = rig.program(5000, best, None);
    (0..4).for_each(|_| assert!(program.prime(2048)));
    let now = rig.now;
    let mut receive = |port, offload| {
        let mut frame = to(port, 350);
        rig.datapath.receive_offloaded(&mut frame, &offload, now)
    };
    assert_eq!(receive(5000, datagrams(100)), 4);
    assert_eq!(receive(5001, datagrams(100)), 1, "the kernel's");
    // A packet that cannot be cut is lost.
    assert_eq!(receive(5000, datagrams(0)), 0);
    rig.datapath.publish();
    let lengths: Vec<usize> = program.received().iter().map(Vec::len).collect();
    assert_eq!(lengths, [142, 142, 142, 92]);
    let counters = rig.datapath.demux().counters();
    assert_eq!((counters.delivered, counters.unclaimed), (4, 1));
    rig.datapath.invariants();
}

#[test]
fn a_partial_checksum_is_completed_only_for_a_flow() {
    let mut rig = rig(100_000_000);
    let best = Service::best_effort(Weight::default());
    let mut program = rig.program(5000, best, None);
    assert!(program.prime(2048));
    let partial = Offload {
        merged: Merged::No,
        checksum: Checksum::Partial { start: 34 },
    };
    let frames = [5000, 5001].map(|port| {
        let mut frame = to(port, 100);
        let received = rig
            .datapath
            .receive_offloaded(&mut frame, &partial, rig.now);
        assert_eq!(received, 1);
        frame
    });
    rig.datapath.publish();
    assert_eq!(program.received(), [frames[0].clone()]);
    assert_ne!(frames[0][40..42], [0, 0], "a checksum");
    assert_eq!(frames[1], to(5001, 100));
}

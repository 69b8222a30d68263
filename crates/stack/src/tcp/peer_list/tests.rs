use netnice_ring::connections::ListedConnection;
use netnice_ring::driver::{DriverRings, ProgramMemory};
use netnice_ring::layout::{Budget, Shape};

use super::*;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const ACK: Flags = Flags::ACK;

struct Fixture {
    memory: ProgramMemory,
    here: DriverRings,
    peers: PeerList,
}

impl Fixture {
    /// A list with two entries.
    fn new() -> Fixture {
        let budget = Budget {
            flows: 1,
            bytes: 1 << 16,
        };
        let shape = Shape {
            chunk_bytes: 64,
            chunks: 4,
            transmit_entries: 16,
            receive_entries: 16,
        };
        let mut memory = ProgramMemory::create(budget).unwrap();
        let attachment = memory.handles().attach().unwrap();
        let here = memory.open(shape).unwrap();
        let mut there = attachment.flow(here.location()).unwrap();
        let list = there.list_connections(2);
        assert!(list.is_some());
        Fixture {
            memory,
            here,
            peers: PeerList::new(list),
        }
    }

    fn queue(&mut self, id: u32, remote: &str, (seq, flags, payload): (u32, Flags, u32)) {
        let header = Header {
            seq: Seq(seq),
            flags,
            ..Header::default()
        };
        let remote = remote.parse().unwrap();
        self.peers
            .note_queued(ConnectionId(id), remote, (&header, payload), || MAC);
    }

    /// What the driver reads when the program dies: port, Ethernet address, sequence number.
    fn read(mut self) -> Vec<(u16, [u8; 6], u32)> {
        let listed = self.memory.retire(self.here).connections();
        let entry = |one: ListedConnection| (one.port, one.next_hop, one.sequence);
        listed.into_iter().map(entry).collect()
    }
}

#[test]
fn the_sequence_number_is_behind_all_that_was_queued() {
    let mut fixture = Fixture::new();
    fixture.queue(0, "192.0.2.1:1001", (u32::MAX - 1, Flags::SYN | ACK, 0));
    fixture.queue(0, "192.0.2.1:1001", (u32::MAX, ACK, 100));
    // A retransmission.
    fixture.queue(0, "192.0.2.1:1001", (u32::MAX, ACK, 50));
    fixture.queue(1, "192.0.2.2:1002", (7, Flags::SYN | ACK, 0));
    fixture.queue(1, "192.0.2.2:1002", (8, Flags::FIN | ACK, 1));
    let second = (ConnectionId(1), "192.0.2.2:1002".parse().unwrap());
    fixture.peers.set_next_hop(second, [6; 6]);
    // The list has no such entry.
    fixture.queue(2, "192.0.2.3:1003", (7, ACK, 0));
    assert_eq!(fixture.read(), [(1001, MAC, 99), (1002, [6; 6], 10)]);
}

#[test]
fn a_connection_that_is_over_is_removed_unless_this_end_has_reset_it() {
    let mut fixture = Fixture::new();
    fixture.queue(0, "192.0.2.1:1001", (7, ACK, 0));
    fixture.queue(1, "192.0.2.2:1002", (7, ACK, 0));
    fixture.queue(1, "192.0.2.2:1002", (8, Flags::RST | ACK, 0));
    for id in [0, 1, 2] {
        fixture.peers.remove(ConnectionId(id));
    }
    assert_eq!(fixture.read(), [(1002, MAC, 8)]);
    // Another connection gets the number, even one with the same peer.
    for peer in ["192.0.2.2:1002", "192.0.2.3:1003"] {
        let mut fixture = Fixture::new();
        fixture.queue(1, "192.0.2.2:1002", (70, Flags::RST | ACK, 0));
        fixture.queue(1, peer, (5, Flags::SYN | ACK, 0));
        let port = peer.parse::<SocketAddr>().unwrap().port();
        fixture.peers.remove(ConnectionId(0));
        assert_eq!(fixture.read(), [(port, MAC, 6)]);
    }
}

/// A number goes to another connection before the end of the former one was seen. A SYN cookie
/// opens it, so its first segment has no SYN.
#[test]
fn another_connection_with_the_same_number_replaces_the_entry() {
    let mut fixture = Fixture::new();
    fixture.queue(0, "192.0.2.1:1001", (7000, ACK, 0));
    fixture.peers.replace(ConnectionId(0));
    fixture.peers.replace(ConnectionId(1));
    fixture.queue(0, "192.0.2.2:1002", (5, ACK, 0));
    assert_eq!(fixture.read(), [(1002, MAC, 5)]);
}

#[test]
fn without_a_list_nothing_is_listed() {
    let mut peers = PeerList::default();
    let header = Header::default();
    let remote = "192.0.2.1:1".parse().unwrap();
    peers.note_queued(ConnectionId(0), remote, (&header, 0), || MAC);
    peers.remove(ConnectionId(0));
    peers.set_next_hop((ConnectionId(0), remote), MAC);
}

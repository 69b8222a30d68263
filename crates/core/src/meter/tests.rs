use alloc::collections::BTreeSet;

use proptest::prelude::*;

use super::{COUNTERS, DirectionCounters, Role, Unit};

fn counters(packets: [u64; 3], bytes: [u64; 3]) -> DirectionCounters {
    DirectionCounters {
        offered_packets: packets.iter().sum(),
        offered_bytes: bytes.iter().sum(),
        sent_packets: packets[0],
        sent_bytes: bytes[0],
        dropped_packets: packets[1],
        dropped_bytes: bytes[1],
        queued_packets: packets[2],
        queued_bytes: bytes[2],
        ..DirectionCounters::default()
    }
}

#[test]
fn every_counter_is_declared_once_and_reads_its_own_field() {
    let names: BTreeSet<_> = COUNTERS.iter().map(|counter| counter.name).collect();
    assert_eq!(names.len(), COUNTERS.len());
    let distinct = DirectionCounters {
        offered_packets: 1,
        offered_bytes: 2,
        sent_packets: 3,
        sent_bytes: 4,
        dropped_packets: 5,
        dropped_bytes: 6,
        queued_packets: 7,
        queued_bytes: 8,
        queue_delay_ns: 9,
        held_back: 10,
    };
    let values: BTreeSet<_> = COUNTERS.iter().map(|c| (c.read)(&distinct)).collect();
    assert_eq!(
        values.len(),
        core::mem::size_of::<DirectionCounters>() / core::mem::size_of::<u64>()
    );
}

proptest! {
    #[test]
    fn the_roles_in_the_table_match_the_conservation_law(
        packets in proptest::array::uniform3(0..1_u64 << 60),
        bytes in proptest::array::uniform3(0..1_u64 << 60),
        lost in 0..2_u64,
    ) {
        let mut counters = counters(packets, bytes);
        counters.sent_bytes += lost;
        let sum = |unit: Unit, role: Role| -> u64 {
            let chosen = COUNTERS.iter().filter(|c| c.unit == unit && c.role == role);
            chosen.map(|c| (c.read)(&counters)).sum()
        };
        let by_table = [Unit::Packets, Unit::Bytes]
            .into_iter()
            .all(|unit| sum(unit, Role::Total) == sum(unit, Role::Part));
        prop_assert_eq!(counters.balanced(), by_table);
        prop_assert_eq!(counters.balanced(), lost == 0);
    }
}

use super::*;
use crate::scenario::SMALL;

#[test]
fn the_parts_of_a_region_follow_each_other() {
    let shape = Shape {
        chunk_bytes: 2048,
        chunks: 100,
        transmit_entries: 64,
        receive_entries: 32,
    };
    let plan = shape.plan().unwrap();
    assert_eq!(plan.ring(Ring::Submit), 0x280);
    assert_eq!(plan.ring(Ring::Reclaim), 0x280 + 64 * 16);
    assert_eq!(plan.ring(Ring::Prime), 0x280 + 2 * 64 * 16);
    assert_eq!(plan.ring(Ring::Deliver), 0x280 + 2 * 64 * 16 + 32 * 16);
    assert_eq!(plan.area(), 4096);
    assert_eq!(plan.bytes(), 4096 + 204_800);
}

#[test]
fn every_base_of_the_largest_shape_fits_in_32_bits() {
    let largest = Shape {
        chunk_bytes: 65_536,
        chunks: 65_536,
        transmit_entries: 32_768,
        receive_entries: 32_768,
    };
    assert!(largest.plan().is_ok());
    assert_eq!(largest.area_bytes(), 1 << 32);
}

#[test]
fn an_invalid_shape_is_refused_with_the_name_of_the_number() {
    let refused = |shape: Shape| shape.plan().unwrap_err().to_string();
    assert_eq!(
        refused(Shape {
            chunk_bytes: 1500,
            ..SMALL
        }),
        "bytes of a chunk: 1500 is not a power of two"
    );
    assert_eq!(
        refused(Shape { chunks: 0, ..SMALL }),
        "chunks: 0, and 1 to 65536 are allowed"
    );
    assert_eq!(
        refused(Shape {
            receive_entries: 65_536,
            ..SMALL
        }),
        "receive entries: 65536, and 16 to 32768 are allowed"
    );
    for shape in [
        Shape {
            chunk_bytes: 32,
            ..SMALL
        },
        Shape {
            chunk_bytes: 1 << 17,
            ..SMALL
        },
        Shape {
            chunks: 65_537,
            ..SMALL
        },
        Shape {
            transmit_entries: 8,
            ..SMALL
        },
        Shape {
            transmit_entries: 0,
            ..SMALL
        },
        Shape {
            transmit_entries: u32::MAX,
            ..SMALL
        },
    ] {
        assert!(shape.plan().is_err(), "{shape:?}");
    }
}

#[test]
fn a_budget_outside_its_range_is_refused() {
    let bytes = |flows, bytes| Budget { flows, bytes }.file_bytes();
    assert_eq!(bytes(1, 4096), Ok(8192));
    assert_eq!(bytes(4096, 4097), Ok(3 * 4096));
    for (flows, size) in [(0, 4096), (4097, 4096), (1, 0), (1, MAX_BYTES + 1)] {
        assert!(bytes(flows, size).is_err());
    }
}

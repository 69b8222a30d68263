use super::*;

const MS: u64 = 1_000_000;

fn frame(number: u64) -> Vec<u8> {
    let mut frame = vec![0; 1000];
    frame[14..22].copy_from_slice(&number.to_be_bytes());
    frame
}

fn number(frame: &[u8]) -> u64 {
    u64::from_be_bytes(frame[14..22].try_into().unwrap())
}

/// Offers a frame each ms, and collects what arrives with its time.
fn carry(impairments: Impairments, frames: u64) -> (Vec<(u64, Vec<u8>)>, WireCounts) {
    let mut way = OneWay::new(impairments);
    let mut arrived = Vec::new();
    let mut collect = |way: &mut OneWay, now: u64| {
        while let Some(at) = way.next_departure().filter(|at| *at <= now) {
            arrived.push((at, way.poll(at).expect("a frame")));
        }
    };
    for sent in 0..frames {
        collect(&mut way, sent * MS);
        way.offer(&frame(sent), sent * MS);
    }
    collect(&mut way, u64::MAX);
    let counts = way.counts();
    assert_eq!(
        counts.offered + counts.duplicated,
        counts.delivered + counts.lost + counts.dropped,
        "{counts:?}"
    );
    assert_eq!(arrived.len() as u64, counts.delivered);
    (arrived, counts)
}

#[test]
fn a_good_wire_only_delays() {
    let delay = Duration::from_millis(20);
    let good = Impairments {
        delay,
        ..Impairments::default()
    };
    let (arrived, _) = carry(good, 100);
    for (sent, (at, bytes)) in arrived.iter().enumerate() {
        assert_eq!((*at, bytes), ((sent as u64 + 20) * MS, &frame(sent as u64)));
    }
}

#[test]
fn a_rate_spaces_frames_and_its_queue_has_an_end() {
    // A frame of 1,000 bytes takes 2 ms, and one comes each ms.
    let slow = Impairments {
        rate: Some(4_000_000),
        queue: 5_000,
        ..Impairments::default()
    };
    let (arrived, counts) = carry(slow, 1000);
    assert!(
        arrived
            .windows(2)
            .all(|pair| pair[1].0 - pair[0].0 == 2 * MS)
    );
    assert!(counts.dropped.abs_diff(497) <= 2, "{counts:?}");
    let waited = arrived.iter().map(|(at, bytes)| at - number(bytes) * MS);
    assert_eq!(
        waited.max(),
        Some(12 * MS),
        "five frames before it, and its own time"
    );
}

#[test]
fn each_impairment_has_its_share() {
    let bad = Impairments {
        loss: 0.1,
        duplicate: 0.2,
        damage: 0.05,
        seed: 7,
        ..Impairments::default()
    };
    let (arrived, counts) = carry(bad, 20_000);
    let near = |count: u64, share: f64| {
        let off = (count as f64 - share * 20_000.0).abs();
        assert!(off < 300.0, "{count}, not {share} of 20,000");
    };
    near(counts.lost, 0.1);
    near(counts.duplicated, 0.9 * 0.2);
    near(counts.damaged, 0.9 * 0.05);
    let changed = |(_, bytes): &&(u64, Vec<u8>)| {
        let ones: u32 = bytes[22..].iter().map(|byte| byte.count_ones()).sum();
        assert!(ones <= 1 && bytes[..14] == [0; 14]);
        ones == 1
    };
    assert!(arrived.iter().filter(changed).count() > 500);
}

#[test]
fn losses_come_in_bursts() {
    let bursts = LossBursts {
        begin: 0.01,
        end: 0.25,
    };
    let bad = Impairments {
        bursts: Some(bursts),
        seed: 1,
        ..Impairments::default()
    };
    let (arrived, counts) = carry(bad, 50_000);
    let numbers: Vec<u64> = arrived.iter().map(|(_, bytes)| number(bytes)).collect();
    let gaps = numbers.windows(2).map(|pair| pair[1] - pair[0] - 1);
    let gaps: Vec<u64> = gaps.filter(|gap| *gap > 0).collect();
    let mean = counts.lost as f64 / gaps.len() as f64;
    assert!(
        (3.5..4.5).contains(&mean),
        "{mean} frames a burst, 4 expected"
    );
}

#[test]
fn a_reordered_frame_is_passed_by_later_ones() {
    let bad = Impairments {
        reorder: 0.1,
        reorder_by: Duration::from_micros(3_500),
        seed: 3,
        ..Impairments::default()
    };
    let (arrived, _) = carry(bad, 1000);
    let late = arrived
        .iter()
        .filter(|(at, bytes)| at - number(bytes) * MS == 3_500_000);
    let late = late.count();
    assert!((60..140).contains(&late), "{late} of 1,000");
    let numbers: Vec<u64> = arrived.iter().map(|(_, bytes)| number(bytes)).collect();
    assert!(!numbers.is_sorted());
}

#[test]
fn a_seed_decides_everything() {
    let bad = |seed| Impairments {
        loss: 0.3,
        duplicate: 0.3,
        reorder: 0.3,
        reorder_by: Duration::from_millis(9),
        damage: 0.3,
        seed,
        ..Impairments::default()
    };
    assert_eq!(carry(bad(5), 500), carry(bad(5), 500));
    assert_ne!(carry(bad(5), 500), carry(bad(6), 500));
}

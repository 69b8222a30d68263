//! The receive demultiplexer from bytes: frames, each behind its length in two bytes, to flows that are always the same.

use netnice_cases::Corpus;

use super::*;

/// Each kind of match, in both families, for both transports; some ends have two owners, and some none.
fn flows() -> Vec<Match> {
    let tcp = |local: &str| Match::Port {
        transport: Transport::Tcp,
        local: end(local),
    };
    vec![
        port("10.0.0.1:53"),
        port("0.0.0.0:53"),
        port("[fd00::1]:53"),
        tcp("10.0.0.1:54"),
        tcp("[::]:53"),
        connected("10.0.0.1:53", "10.0.0.9:2"),
        connected("[fd00::1]:53", "[fd00::9]:2"),
        group("224.1.1.1:53"),
        group("224.1.1.1:53"),
        group("[ff02::5]:53"),
    ]
}

/// What comes of the last frame; each goes to whom the naive rules name, and is counted once.
fn judged(bytes: &[u8]) -> String {
    let flows = flows();
    let mut demux = table(&flows);
    let (mut rest, mut now, mut last) = (bytes, 0, "nothing".to_owned());
    while let Some((length, behind)) = rest.split_first_chunk::<2>() {
        let length = usize::from(u16::from_be_bytes(*length)).min(behind.len());
        let (frame, behind) = behind.split_at(length);
        rest = behind;
        let expected = naive(&flows, frame);
        let verdict = demux.handle(frame, Instant(now));
        let found = match &verdict {
            Verdict::One { flow, .. } => Some(vec![flow.0]),
            Verdict::Several { flows, .. } => Some(flows.iter().map(|flow| flow.0).collect()),
            _ => None,
        };
        last = match verdict {
            Verdict::One { .. } => "one".to_owned(),
            Verdict::Several { .. } => "several".to_owned(),
            Verdict::Held => "held".to_owned(),
            Verdict::Unclaimed => "unclaimed".to_owned(),
            Verdict::Discarded(why) => format!("{why:?}").to_lowercase(),
        };
        // Whom a later part goes to, its first part says, and the naive rules know no parts of IPv6; what an independent parser
        // finds odd behind the headers that we read is the flow's own matter.
        let is_judged = expected.is_some() || SlicedPacket::from_ethernet(frame).is_ok();
        let is_part = is_later_part(frame)
            || frame.get(12..14) == Some(&[0x86, 0xdd]) && frame.get(20) == Some(&44);
        if found.is_some() && is_judged && !is_part {
            assert_eq!(found, expected, "{frame:02x?}");
        }
        while demux.poll_released().is_some() {}
        demux.invariants();
        now += 1_000_000;
    }
    last
}

fn corpus() -> Corpus {
    Corpus::of(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/receive"))
}

#[test]
fn frames_that_are_kept_go_where_they_went() {
    corpus().replay(judged, &OUTCOMES);
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn frames_near_those_that_are_kept(bytes in corpus().near()) {
        judged(&bytes);
    }
}

/// Every way to go that frames have here.
const OUTCOMES: [&str; 11] = [
    "one",
    "several",
    "held",
    "unclaimed",
    "short",
    "version",
    "length",
    "checksum",
    "source",
    "fragment",
    "transport",
];

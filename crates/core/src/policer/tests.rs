use alloc::string::ToString;
use alloc::vec::Vec;
use core::num::NonZeroU64;

use netnice_cases::cases;
use proptest::prelude::*;

use super::gcra::{LeakyBucket, Tolerance, VirtualScheduling};
use super::{NotCheckable, Observation, Policer, ViolatedRule};
use crate::contract::Contract;
use crate::units::{Bytes, Instant, Nanos};

/// A check for a contract in text form.
fn policer_of(text: &str) -> Policer {
    let contract: Contract = text.parse().expect("a contract");
    Policer::contract(&contract).expect("something to check")
}

/// The rule of each packet, given as (nanoseconds, bytes); `None` if it conforms.
fn violated_rules(mut policer: Policer, packets: &[(u64, u64)]) -> Vec<Option<ViolatedRule>> {
    let check = |(at, length): &(u64, u64)| {
        let seen = Observation {
            at: Instant(*at),
            length: Bytes(*length),
        };
        policer.handle(seen).err().map(|violation| violation.rule)
    };
    packets.iter().map(check).collect()
}

/// The time by which each packet is too early; 0 for a packet that conforms.
fn early(text: &str, packets: &[(u64, u64)]) -> Vec<u64> {
    let by = |rule: &Option<ViolatedRule>| rule.and_then(|rule| rule.by()).map_or(0, |by| by.0);
    violated_rules(policer_of(text), packets)
        .iter()
        .map(by)
        .collect()
}

/// 1000 bytes take 1 ms at 8 Mbit/s.
#[test]
fn a_constant_rate_conforms_and_one_nanosecond_less_does_not() {
    let steady: Vec<_> = (0..100).map(|n| (n * 1_000_000, 1000)).collect();
    assert_eq!(early("cell pcr=8mbit,cdvt=0s", &steady), [0; 100]);
    let mut hasty = steady.clone();
    hasty[50].0 -= 1;
    let found = early("cell pcr=8mbit,cdvt=0s", &hasty);
    assert_eq!((found[50], found[51]), (1, 0));
    assert_eq!(found.iter().sum::<u64>(), 1);
    assert_eq!(early("cell pcr=8mbit,cdvt=1ns", &hasty), [0; 100]);
}

#[test]
fn a_late_packet_gives_no_credit_beyond_the_tolerance() {
    let late_then_two = [(0, 1000), (9_000_000, 1000), (9_400_000, 1000)];
    assert_eq!(
        early("cell pcr=8mbit,cdvt=0s", &late_then_two),
        [0, 0, 600_000]
    );
    assert_eq!(
        early("cell pcr=8mbit,cdvt=600us", &late_then_two),
        [0, 0, 0]
    );
    assert_eq!(
        early("cell pcr=8mbit,cdvt=599us", &late_then_two),
        [0, 0, 1_000]
    );
}

#[test]
fn a_nonconforming_packet_changes_no_state() {
    let crowd: Vec<_> = [(0, 1000)]
        .into_iter()
        .chain((1..=9).map(|n| (n * 100_000, 1000)))
        .chain([(1_000_000, 1000)])
        .collect();
    let found = early("cell pcr=8mbit,cdvt=0s", &crowd);
    assert_eq!((found[1], found[9], found[10]), (900_000, 100_000, 0));
}

/// TM 4.0, section 4.4.2: MBS cells at the peak rate conform to the burst tolerance that MBS gives,
/// one more does not.
#[test]
fn a_burst_holds_mbs_at_peak_rate_and_not_one_packet_more() {
    let text = "cell pcr=8mbit,cdvt=0s,scr=2mbit,mbs=10000B";
    let burst: Vec<_> = (0..11).map(|n| (n * 1_000_000, 1000)).collect();
    let found = violated_rules(policer_of(text), &burst);
    assert_eq!(found[..10], [const { None }; 10]);
    // The bucket lacks one packet's worth of (1/SCR - 1/PCR): 4 ms - 1 ms.
    assert_eq!(found[10].and_then(|rule| rule.by()), Some(Nanos(3_000_000)));
    assert!(matches!(
        found[10],
        Some(ViolatedRule::AboveSustained { .. })
    ));
    // In steady state one packet each 4 ms always conforms.
    let after: Vec<_> = (0..10)
        .map(|n| (n * 1_000_000, 1000))
        .chain((1..500).map(|n| (9_000_000 + n * 4_000_000, 1000)))
        .collect();
    assert_eq!(early(text, &after), [0; 509]);
}

#[test]
fn a_burst_holds_mbs_of_packets_of_any_size_the_last_included() {
    let text = "cell pcr=8mbit,cdvt=0s,scr=2mbit,mbs=3000B";
    let fits = [(0, 100), (100_000, 1400), (1_500_000, 1500)];
    assert_eq!(early(text, &fits), [0, 0, 0]);
    // One byte more in the last packet makes it 3 us too early: the byte's (1/SCR - 1/PCR).
    let beyond = [(0, 100), (100_000, 1400), (1_500_000, 1501)];
    assert_eq!(early(text, &beyond), [0, 0, 3_000]);
}

#[test]
fn a_packet_longer_than_the_burst_never_conforms() {
    let text = "cell pcr=8mbit,cdvt=1ms,scr=2mbit,mbs=1000B";
    let mbs = Bytes(1000);
    assert_eq!(
        violated_rules(policer_of(text), &[(0, 1001), (0, 1000)]),
        [Some(ViolatedRule::LongerThanBurst { mbs }), None]
    );
}

#[test]
fn a_channel_may_send_bmax_at_once_and_then_one_each_spacing() {
    let text = "channel mmax=1000B,rmax=100/s,bmax=3,deadline=20ms";
    let messages = [
        (0, 1000),
        (0, 1),
        (0, 1000),
        (9_999_999, 5),
        (10_000_000, 5),
    ];
    assert_eq!(early(text, &messages), [0, 0, 0, 1, 0]);
    let mmax = Bytes(1000);
    assert_eq!(
        violated_rules(policer_of(text), &[(0, 1001)]),
        [Some(ViolatedRule::LongerThanMessage { mmax })]
    );
    // A third of a second is no whole number of nanoseconds: 333,333,333 are too few.
    let thirds = "channel mmax=1B,rmax=3/s,bmax=1,deadline=1s";
    assert_eq!(early(thirds, &[(0, 1), (333_333_333, 1)]), [0, 1]);
    assert_eq!(early(thirds, &[(0, 1), (333_333_334, 1)]), [0, 0]);
}

#[test]
fn a_limit_is_checked_with_its_burst() {
    // 5 ms unless the contract names a burst.
    let packets: Vec<_> = (0..7).map(|_| (0, 1000)).collect();
    let late = [0, 0, 0, 0, 0, 0, 1_000_000];
    assert_eq!(early("up 8mbit", &packets), late);
    assert_eq!(early("both 8mbit burst 6ms", &packets), [0; 7]);
}

#[test]
fn a_contract_is_checked_by_its_only_clause_about_times() {
    let check = |text: &str| Policer::contract(&text.parse().expect("a contract")).err();
    assert_eq!(check("min 4mbit weight 7"), Some(NotCheckable::Nothing));
    assert_eq!(check("up 4mbit down 4mbit"), Some(NotCheckable::Several));
    assert_eq!(check("min 4mbit down 4mbit"), None);
}

#[test]
fn a_violation_names_the_packet_and_its_excess() {
    let mut policer = policer_of("cell pcr=8mbit,cdvt=100us");
    let seen = |at| Observation {
        at: Instant(at),
        length: Bytes(1000),
    };
    assert_eq!(policer.handle(seen(5_000_000)), Ok(()));
    let violation = policer.handle(seen(5_500_000)).expect_err("too early");
    assert_eq!(
        violation.to_string(),
        "packet 2, 1000B long, is 400us too early for pcr 8 Mbit/s (1 MB/s) with cdvt 100us"
    );
    assert_eq!(policer.count(), 2);
}

#[test]
fn tolerance_is_added_to_what_the_contract_allows() {
    let tolerant = policer_of("cell pcr=8mbit,cdvt=100us,scr=2mbit,mbs=1000B")
        .with_tolerance(Nanos::from_micros(50));
    // The sustained rate spaces them by 4 ms; the tolerance covers 150 us of that once.
    let found = violated_rules(tolerant, &[(0, 1000), (3_850_000, 1000), (7_849_999, 1000)]);
    assert_eq!(found[..2], [None, None]);
    assert_eq!(found[2].and_then(|rule| rule.by()), Some(Nanos(1)));
}

#[test]
fn extremes_have_defined_results() {
    let end = u64::MAX;
    for text in [
        "cell pcr=1tbit,cdvt=8784h",
        "cell pcr=1tbit,cdvt=8784h,scr=1kbit,mbs=1024GiB",
        "cell pcr=1kbit,cdvt=0s,scr=1kbit,mbs=1024GiB",
        "channel mmax=1024GiB,rmax=1000000/s,bmax=4294967295,deadline=1s",
        "channel mmax=1024GiB,rmax=1/s,bmax=4294967295,deadline=1s",
        "up 1tbit burst 10s",
    ] {
        let contract: Contract = text.parse().expect("a contract");
        let policer = Policer::contract(&contract).expect("something to check");
        let tolerant = policer.with_tolerance(Nanos(end));
        let packets = [(end, end), (0, 1 << 40), (end, 0), (end, end), (1, 1)];
        let found = violated_rules(tolerant, &packets);
        assert_eq!(found.len(), 5, "{text}");
    }
    // Near the end of time the arithmetic is still exact.
    let close = [(end - 1_000_000, 1000), (end - 1, 1000), (end, 1000)];
    assert_eq!(early("cell pcr=8mbit,cdvt=0s", &close), [0, 1, 0]);
}

/// The first packet that is too early by the definition over intervals, as long as all packets
/// before it conform: between any earlier packet and this one there may be no more than the rate
/// gives in that time, plus the tolerance.
fn first_too_early(packets: &[(u64, u64)], rate: i128, tolerance: i128) -> Option<usize> {
    (0..packets.len()).find(|&last| {
        (0..last).any(|first| {
            let between: i128 = packets[first..last]
                .iter()
                .map(|(_, length)| i128::from(*length) * 8_000_000_000)
                .sum();
            let elapsed = i128::from(packets[last].0) - i128::from(packets[first].0);
            between > (elapsed + tolerance) * rate
        })
    })
}

/// Packets in order of time, close enough together to be near the border.
fn packets() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let one = (0_u64..2_500_000, prop_oneof![Just(1000_u64), 1_u64..1501]);
    prop::collection::vec(one, 1..60).prop_map(|steps| {
        let mut at = 0;
        let forward = |(step, length): (u64, u64)| {
            at += step;
            (at, length)
        };
        steps.into_iter().map(forward).collect()
    })
}

proptest! {
    #![proptest_config(cases(512))]

    /// I.371 states that its two forms are equal. They are, for all arrivals, including times that
    /// go back.
    #[test]
    fn both_forms_of_the_definition_agree(
        rate in 1_u64..=1_000_000_000_000,
        tolerance in prop_oneof![0_u64..10_000_000, any::<u64>()],
        arrivals in prop::collection::vec(
            (prop_oneof![0_u64..100_000_000, any::<u64>()], any::<u32>()),
            1..80,
        ),
    ) {
        let rate = NonZeroU64::new(rate).expect("above zero");
        let tolerance = Tolerance::of(Nanos(tolerance), rate);
        let mut virtual_scheduling = VirtualScheduling::new(rate);
        let mut leaky_bucket = LeakyBucket::new(rate);
        for (at, units) in arrivals {
            let at = Instant(at);
            let early = virtual_scheduling.earliness(at, tolerance);
            prop_assert_eq!(early, leaky_bucket.earliness(at, tolerance));
            if early.is_none() {
                virtual_scheduling.accept(at, u128::from(units));
                leaky_bucket.accept(at, u128::from(units));
            }
        }
    }

    /// The first reported packet is the first that breaks the definition over intervals.
    #[test]
    fn the_peak_rate_is_checked_over_every_interval(
        packets in packets(),
        rate in 4_000_000_u64..12_000_000,
        cdvt in prop_oneof![Just(0_u64), 0_u64..5_000_000],
    ) {
        let text = alloc::format!("cell pcr={rate}bit,cdvt={cdvt}ns");
        let found = violated_rules(policer_of(&text), &packets);
        let expected = first_too_early(&packets, i128::from(rate), i128::from(cdvt));
        prop_assert_eq!(found.iter().position(Option::is_some), expected);
    }

    /// A packet that was too early would have conformed later by exactly the reported time, and not
    /// a nanosecond before.
    #[test]
    fn the_reported_earliness_is_exact(packets in packets(), scr in 1_000_000_u64..4_000_000) {
        let text = alloc::format!("cell pcr=6mbit,cdvt=1ms,scr={scr}bit,mbs=4000B");
        let found = violated_rules(policer_of(&text), &packets);
        if let Some(first) = found.iter().position(Option::is_some) {
            let by = found[first].and_then(|rule| rule.by()).expect("too early").0;
            let moved = |by: u64| {
                let mut moved = packets[..=first].to_vec();
                moved[first].0 += by;
                violated_rules(policer_of(&text), &moved)[first]
            };
            prop_assert!(moved(by - 1).is_some());
            // The peak is checked before the sustained rate. The later packet may violate the
            // sustained rate, and is then reported for that.
            if let Some(rule) = moved(by) {
                let was_peak = matches!(found[first], Some(ViolatedRule::AbovePeak { .. }));
                prop_assert!(was_peak);
                let is_sustained = matches!(rule, ViolatedRule::AboveSustained { .. });
                prop_assert!(is_sustained);
            }
        }
    }

    /// Linear bounded arrivals by their definition: at most Bmax + Rmax t messages in every
    /// interval of length t.
    #[test]
    fn a_channel_is_checked_by_counting_messages(
        packets in packets(), rmax in 500_u32..2_000, bmax in 1_u32..5,
    ) {
        let text = alloc::format!("channel mmax=2000B,rmax={rmax}/s,bmax={bmax},deadline=1s");
        let found = violated_rules(policer_of(&text), &packets);
        let too_many = |last: usize| (0..=last).any(|first| {
            let messages = (last - first + 1) as i128 - i128::from(bmax);
            let elapsed = i128::from(packets[last].0 - packets[first].0);
            messages * 1_000_000_000 > elapsed * i128::from(rmax)
        });
        let expected = (0..packets.len()).find(|&last| too_many(last));
        prop_assert_eq!(found.iter().position(Option::is_some), expected);
    }

    /// The sustained rate over intervals: between any earlier packet and this one there may be what
    /// the rate gives, the tolerance, and the burst tolerance for this packet's length.
    #[test]
    fn the_sustained_rate_is_checked_over_every_interval(
        packets in packets(), scr in 1_000_000_u64..4_000_000, mbs in 1_500_u64..8_000,
    ) {
        let pcr = 1_000_000_000_i128;
        let text = alloc::format!("cell pcr=1gbit,cdvt=1ms,scr={scr}bit,mbs={mbs}B");
        let found = violated_rules(policer_of(&text), &packets);
        let scr = i128::from(scr);
        let breaks = |last: usize| (0..last).any(|first| {
            let lengths = packets[first..last].iter().map(|(_, length)| i128::from(*length));
            let between: i128 = lengths.sum();
            let elapsed = i128::from(packets[last].0 - packets[first].0) + 1_000_000;
            let room = i128::from(mbs - packets[last].1) * 8_000_000_000 * (pcr - scr);
            // between / SCR <= elapsed + room (1/SCR - 1/PCR), times SCR · PCR.
            between * 8_000_000_000 * pcr > elapsed * scr * pcr + room
        });
        let expected = (0..packets.len()).find(|&last| breaks(last));
        prop_assert_eq!(found.iter().position(Option::is_some), expected);
    }
}

use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use netnice_cases::cases;
use proptest::prelude::*;

use super::{
    Grant, Reason, Refusal, TargetEntry, TargetId, admit, admit_link, admit_unmanage, readmit,
};
use crate::contract::Direction;
use crate::link::{Capacity, CapacitySource, Link};
use crate::units::{Bytes, Nanos, Rate};

mod links;
mod naive;

/// A managed link: `eth0 100mbit 50mbit` (up, down; `-` for none).
fn link(text: &str) -> Link {
    let words: Vec<&str> = text.split(' ').collect();
    let capacity = |word: &str| {
        (word != "-").then(|| Capacity {
            rate: word.parse().expect("a rate"),
            source: CapacitySource::Operator,
        })
    };
    Link {
        name: words[0].parse().expect("a name"),
        up: capacity(words[1]),
        down: capacity(words[2]),
        overhead: Bytes(0),
        horizon: Nanos(0),
    }
}

/// An entry: `2<1 pid:7 min 5mbit` is target 2 inside target 1.
fn entry(text: &str) -> TargetEntry {
    let mut words = text.splitn(3, ' ');
    let place = words.next().expect("a place");
    let target = words.next().expect("a target");
    let (id, parent) = place.split_once('<').unwrap_or((place, ""));
    let number = |text: &str| text.parse().ok().and_then(TargetId::new);
    TargetEntry {
        id: number(id).expect("an id"),
        target: target.parse().expect("a target"),
        parent: number(parent),
        contract: words.next().unwrap_or("none").parse().expect("a contract"),
    }
}

fn ask(links: &[&str], held: &[&str], request: &str) -> Result<Grant, Refusal> {
    let links: Vec<Link> = links.iter().map(|text| link(text)).collect();
    let held: Vec<TargetEntry> = held.iter().map(|text| entry(text)).collect();
    admit(&links, &held, entry(request))
}

fn refusal(links: &[&str], held: &[&str], request: &str) -> String {
    match ask(links, held, request) {
        Ok(grant) => panic!("{request} was granted: {grant:?}"),
        Err(refusal) => refusal.to_string(),
    }
}

fn mbit(n: u64) -> Rate {
    Rate::new(n * 1_000_000).expect("a rate")
}

#[test]
fn a_request_that_fits_is_granted_with_its_link() {
    let grant = ask(
        &["eth0 100mbit 100mbit"],
        &["1 unit:a min 60mbit"],
        "2 unit:b min 40mbit min-down 97mbit up 50mbit",
    )
    .expect("exactly what is left");
    assert_eq!(grant.link().map(ToString::to_string), Some("eth0".into()));
    assert_eq!(grant.min(Direction::Up), Some(mbit(40)));
    assert_eq!(grant.min(Direction::Down), Some(mbit(97)));
    assert_eq!(grant.max(Direction::Up), None);
    let named = "up 50mbit min 40mbit min-down 97mbit on eth0";
    assert_eq!(grant.entry().contract.to_string(), named);
}

#[test]
fn a_limit_needs_no_link() {
    let grant = ask(&[], &[], "1 pid:7 both 4mbit").expect("a limit");
    assert_eq!(grant.link(), None);
    assert_eq!(grant.min(Direction::Up), None);
    let sharing = ask(&["eth0 9mbit -", "eth1 9mbit -"], &[], "1 pid:7 weight 7");
    assert_eq!(sharing.expect("on every link").link(), None);
}

#[test]
fn a_slice_is_a_minimum_of_its_share_and_without_extra_a_maximum_too() {
    let links = ["eth0 100mbit -"];
    let alone = ask(&links, &[], "1 pid:7 slice 30ms/50ms").expect("60 of 100");
    assert_eq!(alone.min(Direction::Up), Some(mbit(60)));
    assert_eq!(alone.max(Direction::Up), Some(mbit(60)));
    let extra = ask(&links, &[], "1 pid:7 slice 30ms/50ms extra").expect("60 of 100");
    assert_eq!(extra.max(Direction::Up), None);
    let both = refusal(
        &links,
        &["1 pid:7 slice 30ms/50ms"],
        "2 pid:8 slice 25ms/50ms",
    );
    assert!(
        both.contains("at most 40 Mbit/s (5 MB/s), a slice of 20ms/50ms"),
        "{both}"
    );
    let tiny = refusal(&links, &[], "1 pid:7 slice 1ns/10s");
    assert!(
        tiny.contains("1ns/10s of eth0 (100 Mbit/s (12.5 MB/s)) is less than"),
        "{tiny}"
    );
}

#[test]
fn a_refusal_names_link_capacity_holders_and_what_would_fit() {
    let text = refusal(
        &["eth0 100mbit -"],
        &[
            "1 unit:video.service min 50mbit",
            "2<1 pid:7 min 40mbit",
            "3 unit:web.slice up 90mbit",
            "4<3 name:backup min 20mbit",
            "5 pid:9 up 1mbit",
        ],
        "6 pid:4242 min 60mbit",
    );
    assert_eq!(
        text,
        "refused: pid:4242: a guarantee of 60 Mbit/s (7.5 MB/s) up on eth0 does not fit
  link        eth0 up 100 Mbit/s (12.5 MB/s), given by the operator
  held        unit:video.service  50 Mbit/s (6.25 MB/s) up on eth0
              name:backup         20 Mbit/s (2.5 MB/s) up on eth0
  but         60 Mbit/s + 70 Mbit/s = 130 Mbit/s > 100 Mbit/s
  would fit   at most 30 Mbit/s (3.75 MB/s)"
    );
}

#[test]
fn receiving_is_promised_up_to_97_percent() {
    let links = ["eth0 100mbit 100mbit"];
    ask(&links, &[], "1 pid:7 min-down 97mbit").expect("97 %");
    assert_eq!(
        refusal(&links, &["1 pid:7 min-down 90mbit"], "2 pid:8 min-down 8mbit"),
        "refused: pid:8: a guarantee of 8 Mbit/s (1 MB/s) down on eth0 does not fit
  link        eth0 down 100 Mbit/s (12.5 MB/s), given by the operator; 97 Mbit/s of it can be promised
  held        pid:7  90 Mbit/s (11.25 MB/s) down on eth0
  but         8 Mbit/s + 90 Mbit/s = 98 Mbit/s > 97 Mbit/s
  would fit   at most 7 Mbit/s (875 kB/s)"
    );
}

/// Reason, links, held entries, request, and text of the refusal.
type RefusalCase<'a> = (&'a str, &'a [&'a str], &'a [&'a str], &'a str, &'a str);

fn check_refusals(cases: &[RefusalCase<'_>]) {
    for (why, links, held, request, expected) in cases {
        let text = refusal(links, held, request);
        assert!(text.contains(expected), "{why}: {text}");
    }
}

#[test]
fn a_refusal_for_want_of_a_link_names_the_command() {
    check_refusals(&[
        (
            "no link",
            &[],
            &[],
            "1 pid:7 min 5mbit",
            "a guarantee needs a managed link, and no link is managed: run netnice link IFACE \
             --rate R",
        ),
        (
            "which link",
            &["eth0 9mbit -", "eth1 9mbit -"],
            &[],
            "1 pid:7 min 5mbit",
            "(eth0, eth1): name one with --on",
        ),
        (
            "unmanaged",
            &["eth0 9mbit -"],
            &[],
            "1 pid:7 min 5mbit on eth1",
            "eth1 is not a managed link; managed: eth0",
        ),
        (
            "unmanaged, none is",
            &[],
            &[],
            "1 pid:7 weight 5 on eth1",
            "eth1 is not a managed link: run netnice link eth1 --rate R",
        ),
        (
            "no receive rate",
            &["eth0 9mbit -"],
            &[],
            "1 pid:7 min-down 5mbit",
            "eth0 has no receiving rate: run netnice link eth0 --down-rate R",
        ),
        (
            "no send rate",
            &["eth0 - 9mbit"],
            &[],
            "1 pid:7 slice 1ms/2ms",
            "eth0 has no sending rate: run netnice link eth0 --rate R",
        ),
    ]);
}

#[test]
fn a_refusal_of_an_amount_names_the_bound_or_what_would_fit() {
    check_refusals(&[
        (
            "nothing left",
            &["eth0 9mbit -"],
            &["1 pid:7 min 9mbit"],
            "2 pid:8 min 1mbit",
            "would fit   nothing",
        ),
        (
            "above the parent's limit",
            &["eth0 9mbit -"],
            &["1 unit:u up 4mbit"],
            "2<1 pid:8 min 5mbit",
            "inside      unit:u.service is limited to up 4 Mbit/s",
        ),
        (
            "above the grandparent's limit",
            &["eth0 9mbit -"],
            &["1 unit:u both 4mbit", "2<1 unit:v"],
            "3<2 pid:8 min 5mbit",
            "at most 4 Mbit/s",
        ),
        (
            "beside a sibling in a limit",
            &["eth0 9mbit -"],
            &["1 unit:u up 4mbit", "2<1 pid:7 min 3mbit"],
            "3<1 pid:8 min 2mbit",
            "at most 1 Mbit/s",
        ),
        (
            "inside a minimum",
            &["eth0 9mbit -"],
            &["1 unit:u min 4mbit", "2<1 pid:7 min 3mbit"],
            "3<1 pid:8 min 2mbit",
            "unit:u.service is guaranteed 4 Mbit/s (500 kB/s)",
        ),
        (
            "a minimum below its members'",
            &["eth0 9mbit -"],
            &["1 unit:u", "2<1 pid:7 min 3mbit"],
            "1 unit:u min 2mbit",
            "would fit   at least 3 Mbit/s",
        ),
        (
            "a limit below its members'",
            &["eth0 9mbit -"],
            &["1 unit:u", "2<1 pid:7 min 3mbit"],
            "1 unit:u up 2mbit",
            "would fit   at least 3 Mbit/s",
        ),
    ]);
}

#[test]
fn a_refusal_of_a_position_names_the_targets() {
    let deep = [
        "1 cgroup:/a up 9mbit",
        "2<1 cgroup:/a/b up 9mbit",
        "3<2 cgroup:/a/b/c up 9mbit",
        "4<3 cgroup:/a/b/c/d up 9mbit",
        "5<4 cgroup:/a/b/c/d/e up 9mbit",
    ];
    check_refusals(&[
        (
            "a sixth level",
            &[],
            &deep,
            "6<5 pid:7 up 1mbit",
            "a chain of 6 nested targets is longer than 5: cgroup:/a > ",
        ),
        (
            "a sixth level from above",
            &[],
            &[
                "1 unit:u up 1mbit",
                "2<1 unit:v up 1mbit",
                "3<2 unit:w up 1mbit",
                "4<3 unit:x up 1mbit",
                "5<4 unit:y up 1mbit",
                "6 pid:7 up 1mbit",
            ],
            "1<6 unit:u up 1mbit",
            "a chain of 6 nested targets",
        ),
        (
            "both over one-way",
            &[],
            &["1 unit:u both 4mbit"],
            "2<1 pid:7 up 1mbit",
            "unit:u.service has a limit on both directions together and pid:7 on one direction",
        ),
        (
            "one-way over both",
            &[],
            &["1 unit:u", "2<1 pid:7 both 4mbit"],
            "1 unit:u down 4mbit",
            "pid:7 has a limit on both directions together and unit:u.service",
        ),
        (
            "unknown parent",
            &[],
            &[],
            "2<1 pid:7 up 1mbit",
            "its parent (target 1) does not exist",
        ),
        (
            "inside itself",
            &[],
            &[],
            "1<1 pid:7 up 1mbit",
            "would contain itself",
        ),
        (
            "inside its child",
            &[],
            &["1 unit:u", "2<1 unit:v"],
            "1<2 unit:u up 1mbit",
            "would contain itself",
        ),
    ]);
}

#[test]
fn five_levels_and_nested_minimums_are_granted() {
    let links = ["eth0 9mbit -"];
    let held = [
        "1 cgroup:/a min 9mbit on eth0",
        "2<1 cgroup:/a/b up 9mbit",
        "3<2 cgroup:/a/b/c min 5mbit on eth0",
        "4<3 cgroup:/a/b/c/d min 5mbit on eth0",
    ];
    ask(&links, &held, "5<4 pid:7 min 5mbit").expect("each inside the one around it");
    ask(&links, &held, "6<2 pid:8 min 4mbit").expect("beside the five");
    refusal(&links, &held, "6<2 pid:8 min 5mbit");
}

#[test]
fn a_changed_target_does_not_count_twice() {
    let links = ["eth0 100mbit -"];
    let held = ["1 unit:a min 60mbit on eth0", "2 unit:b min 30mbit on eth0"];
    ask(&links, &held, "1 unit:a min 70mbit").expect("70 + 30");
    let more = refusal(&links, &held, "1 unit:a min 71mbit");
    assert!(
        more.contains("71 Mbit/s + 30 Mbit/s = 101 Mbit/s > 100 Mbit/s"),
        "{more}"
    );
    ask(&links, &held, "1 unit:a up 1mbit").expect("no minimum at all");
}

#[test]
fn an_overcommitted_link_does_not_block_other_requests() {
    let links = ["eth0 50mbit -", "eth1 50mbit -"];
    let held = ["1 unit:a min 60mbit on eth0", "2<1 pid:7 up 1mbit"];
    ask(&links, &held, "3 unit:b up 1mbit").expect("a limit");
    ask(&links, &held, "3 unit:b min 50mbit on eth1").expect("on the other link");
    ask(&links, &held, "2<1 pid:7 min 1mbit on eth0").expect("inside a minimum");
    refusal(&links, &held, "3 unit:b min 1mbit on eth0");
}

#[test]
fn after_a_restart_earlier_entries_keep_their_grants_and_later_ones_are_degraded() {
    let held = [
        "3<2 pid:9 min 10mbit on eth0",
        "1 unit:a min 60mbit on eth0",
        "2 unit:b min 50mbit up 90mbit on eth0",
        "4 unit:c min 30mbit on eth0",
        "6<5 pid:7 up 1mbit",
    ];
    let held = held.iter().map(|text| entry(text)).collect();
    let results = readmit(&[link("eth0 100mbit -")], held);
    let results: Vec<(u16, bool)> = results
        .iter()
        .map(|(e, r)| (e.id.get(), r.is_ok()))
        .collect();
    // 1 has 60. 2 would have 110, and keeps its limit. 3 inside it fits by itself. 4 has the rest.
    assert_eq!(
        results,
        [(1, true), (2, false), (3, true), (4, true), (6, false)]
    );
}

#[test]
fn entries_in_a_cycle_are_refused_and_do_not_count() {
    let held = [
        "1<2 unit:a min 1mbit",
        "2<1 unit:b min 1mbit",
        "3<2 pid:7 up 1mbit",
        "4 pid:8 min 9mbit",
    ];
    let held = held.iter().map(|text| entry(text)).collect();
    let results = readmit(&[link("eth0 9mbit -")], held);
    let results: Vec<(u16, bool)> = results
        .iter()
        .map(|(e, r)| (e.id.get(), r.is_ok()))
        .collect();
    assert_eq!(results, [(4, true), (1, false), (2, false), (3, false)]);
}

/// Arbitrary requests: positions in a small forest, and every kind of clause that counts.
fn requests() -> impl Strategy<Value = TargetEntry> {
    let rate = prop_oneof![1..12_u64, Just(10), Just(5)];
    let clause = |words: &'static [&'static str]| {
        let rate = rate.clone();
        proptest::option::weighted(0.35, (proptest::sample::select(words), rate))
    };
    let parts = (
        clause(&["up", "both"]),
        clause(&["down"]),
        clause(&["min"]),
        clause(&["min-down"]),
        proptest::option::weighted(0.1, (1..5_u64, any::<bool>())),
        proptest::sample::select(&["", "on eth0", "on eth1"][..]),
    );
    (1..9_u16, 0..9_u16, parts).prop_map(|(id, parent, parts)| {
        let (up, down, min, min_down, slice, on) = parts;
        let mut text = Vec::new();
        for (word, n) in [up, down, min, min_down].into_iter().flatten() {
            text.push(alloc::format!("{word} {n}mbit"));
        }
        if let Some((n, extra)) = slice {
            let extra = if extra { " extra" } else { "" };
            text.push(alloc::format!("slice {n}ms/10ms{extra}"));
        }
        text.push(on.into());
        TargetEntry {
            id: TargetId::new(id).expect("above zero"),
            target: alloc::format!("pid:{id}").parse().expect("a target"),
            parent: TargetId::new(parent),
            // A contract that contradicts itself becomes an empty one.
            contract: text.join(" ").parse().unwrap_or_default(),
        }
    })
}

fn two_links() -> Vec<Link> {
    vec![link("eth0 20mbit 10mbit"), link("eth1 10mbit -")]
}

/// The set with `entry` in place of the entry with the same id.
fn with(held: &[TargetEntry], entry: &TargetEntry) -> Vec<TargetEntry> {
    let others = held.iter().filter(|h| h.id != entry.id);
    others.chain([entry]).cloned().collect()
}

/// The same request with another minimum.
fn with_min(entry: &TargetEntry, direction: Direction, min: Rate) -> Option<TargetEntry> {
    let word = match direction {
        Direction::Up => "min",
        Direction::Down => "min-down",
    };
    let change = alloc::format!("{word} {}", min.compact()).parse().ok()?;
    Some(TargetEntry {
        contract: entry.contract.apply(&change).ok()?,
        ..entry.clone()
    })
}

proptest! {
    #![proptest_config(cases(512))]

    /// Theorem 1 of docs/reference/contracts.md, first half: after requests of any kind in any
    /// order, the held set is admissible, and no admissible request is refused. The check is a
    /// recomputation that shares no code with admission.
    #[test]
    fn admission_grants_exactly_what_is_admissible(
        requests in proptest::collection::vec(requests(), 1..28),
    ) {
        let links = two_links();
        let mut held: Vec<TargetEntry> = Vec::new();
        for request in requests {
            let answer = admit(&links, &held, request.clone());
            let fits = naive::link_of(&links, &request)
                .is_ok_and(|_| naive::admissible(&links, &with(&held, &request)));
            prop_assert_eq!(answer.is_ok(), fits, "{:?} beside {:?}", answer, held);
            if let Ok(grant) = answer {
                held = with(&held, grant.entry());
                prop_assert!(naive::admissible(&links, &held));
            }
        }
    }

    /// The largest amount that a refusal names fits, and one bit/s more does not.
    #[test]
    fn the_largest_amount_that_would_fit_fits_and_is_the_largest(
        requests in proptest::collection::vec(requests(), 1..28),
    ) {
        let links = two_links();
        let mut held: Vec<TargetEntry> = Vec::new();
        for request in requests {
            match admit(&links, &held, request.clone()) {
                Ok(grant) => held = with(&held, grant.entry()),
                Err(refusal) => {
                    let Reason::DoesNotFit(short) = refusal.reason() else { continue };
                    let (Some(_), None) = (short.requested, short.slice) else { continue };
                    prop_assert!(short.to_string_is_whole(&refusal), "{refusal} {short:?}");
                    let Some(largest) = short.largest() else { continue };
                    // Another direction of the same request may have a fault of its own.
                    let only = |amount| -> Option<TargetEntry> {
                        let mut alone = request.clone();
                        alone.contract = alone.contract.without_guarantees();
                        with_min(&alone, short.direction, amount)
                    };
                    let both_asked = request.contract.min(Direction::Up).is_some()
                        && request.contract.min(Direction::Down).is_some();
                    if both_asked || request.contract.slice().is_some() { continue }
                    if let Some(best) = only(largest) {
                        prop_assert!(admit(&links, &held, best).is_ok(), "{}", refusal);
                    }
                    let above = Rate::new(largest.bits_per_second() + 1).and_then(only);
                    if let Some(above) = above {
                        prop_assert!(admit(&links, &held, above).is_err(), "{}", refusal);
                    }
                }
            }
        }
    }

    /// Theorem 1 of docs/reference/contracts.md, second half: for an admissible set there is a
    /// division of every link that gives every target its minimum and exceeds no limit.
    #[test]
    fn an_admissible_set_can_be_served(requests in proptest::collection::vec(requests(), 1..28)) {
        let links = two_links();
        let mut held: Vec<TargetEntry> = Vec::new();
        for request in requests {
            if let Ok(grant) = admit(&links, &held, request) {
                held = with(&held, grant.entry());
            }
        }
        prop_assert_eq!(naive::serve(&links, &held), Ok(()));
    }

    /// A restart with the same links keeps every grant, in any order of reading.
    #[test]
    fn a_restart_changes_nothing(
        requests in proptest::collection::vec(requests(), 1..28),
        shuffle in any::<prop::sample::Index>(),
    ) {
        let links = two_links();
        let mut held: Vec<TargetEntry> = Vec::new();
        for request in requests {
            if let Ok(grant) = admit(&links, &held, request) {
                held = with(&held, grant.entry());
            }
        }
        if !held.is_empty() {
            let by = shuffle.index(held.len());
            held.rotate_left(by);
        }
        let results = readmit(&links, held.clone());
        prop_assert_eq!(results.len(), held.len());
        for (entry, answer) in results {
            prop_assert_eq!(answer.map(Grant::into_entry), Ok(entry));
        }
    }

    /// After a restart with slower links the granted set is admissible.
    #[test]
    fn the_granted_set_is_admissible_after_links_became_slower(
        requests in proptest::collection::vec(requests(), 1..28),
    ) {
        let links = two_links();
        let mut held: Vec<TargetEntry> = Vec::new();
        for request in requests {
            if let Ok(grant) = admit(&links, &held, request) {
                held = with(&held, grant.entry());
            }
        }
        let slower = [link("eth0 9mbit -"), link("eth1 5mbit -")];
        let standing: Vec<TargetEntry> = readmit(&slower, held)
            .into_iter()
            .filter_map(|(entry, answer)| match answer {
                Ok(grant) => Some(grant.into_entry()),
                Err(refusal) if refusal.has_no_position() => None,
                Err(_) => Some(TargetEntry {
                    contract: entry.contract.without_guarantees(),
                    ..entry
                }),
            })
            .collect();
        prop_assert!(naive::admissible(&slower, &standing), "{:?}", standing);
    }

    /// A link is granted a capacity exactly if all promises still fit on it, and the capacity that
    /// a refusal names is the nearest.
    #[test]
    fn the_capacity_in_a_refusal_is_the_nearest_that_fits(
        requests in proptest::collection::vec(requests(), 1..28),
        up in 1..60_u64,
    ) {
        let links = two_links();
        let mut held: Vec<TargetEntry> = Vec::new();
        for request in requests {
            if let Ok(grant) = admit(&links, &held, request) {
                held = with(&held, grant.entry());
            }
        }
        let at = |rate: Rate| {
            let mut new = links[0].clone();
            new.up = Some(Capacity { rate, source: CapacitySource::Driver });
            new
        };
        let fits = |rate| naive::admissible(&[at(rate), links[1].clone()], &held);
        match admit_link(&links, &held, at(mbit(up))) {
            Ok(grant) => {
                prop_assert!(fits(mbit(up)));
                prop_assert_eq!(grant.into_link(), at(mbit(up)));
            }
            Err(refusal) => {
                prop_assert!(!fits(mbit(up)));
                let Reason::LinkTooSlow(slow) = refusal.reason() else { return Ok(()) };
                // All fits the present capacity.
                let nearest = slow.nearest.expect("a capacity that is enough");
                prop_assert!(fits(nearest), "{}", refusal);
                prop_assert_eq!(slow.too_large, nearest < mbit(up), "{}", refusal);
                let beyond = match slow.too_large {
                    true => nearest.bits_per_second() + 1,
                    false => nearest.bits_per_second() - 1,
                };
                if let Some(beyond) = Rate::new(beyond) {
                    prop_assert!(!fits(beyond), "{}", refusal);
                }
            }
        }
    }
}

impl super::Shortfall {
    /// Whether a refusal contains all numbers: link, capacity, every holder, the sum.
    fn to_string_is_whole(&self, refusal: &Refusal) -> bool {
        let text = refusal.to_string();
        let holders = self.holders.iter().map(|h| h.target.to_string());
        let sum: u64 = self.holders.iter().map(|h| h.amount.0).sum();
        text.contains(self.link.as_str())
            && holders.into_iter().all(|holder| text.contains(&holder))
            && text.contains("would fit")
            && sum == self.held.0
    }
}

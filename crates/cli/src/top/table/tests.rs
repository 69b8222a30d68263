use netnice_api::{HistoryDoc, TargetHistory, Traffic, WatchDoc, Watched};
use netnice_core::contract::Direction;

use super::{KEPT, Row, Sort, Table, View};

fn target(name: &str, inside: Option<usize>, up: u64, down: u64) -> Watched {
    let rate = |rate| Traffic {
        rate,
        ..Traffic::default()
    };
    Watched {
        target: name.into(),
        inside,
        sends: rate(up),
        receives: rate(down),
        ..Watched::default()
    }
}

fn table(targets: Vec<Watched>) -> Table {
    let mut table = Table::default();
    table.take(WatchDoc {
        at_ns: 1,
        links: Vec::new(),
        targets,
    });
    table
}

/// The rows as text: dots for the depth, the name, sent and received rate.
fn told(table: &Table, view: &View) -> Vec<String> {
    let row = |row: &Row| {
        let dots = ".".repeat(row.depth);
        let [up, down] = row.moving.map(|moving| moving.rate);
        format!("{dots}{} {up} {down}", table.target(row).target)
    };
    table.rows(view).iter().map(row).collect()
}

/// A unit with two processes; one process has a child with a limit of its own. One target beside
/// it.
fn family() -> Table {
    table(vec![
        target("pid:1", Some(3), 5, 1),
        target("pid:2", Some(3), 7, 0),
        target("pid:3", Some(1), 2, 0),
        target("unit:web", None, 1, 1),
        target("user:ann", None, 10, 9),
    ])
}

#[test]
fn a_target_does_what_those_inside_it_do_and_each_packet_counts_once() {
    let table = family();
    assert_eq!(
        told(&table, &View::default()),
        [
            "user:ann 10 9",
            "unit:web 15 2",
            ".pid:2 9 0",
            "..pid:3 2 0",
            ".pid:1 5 1"
        ]
    );
    assert_eq!(table.total(Direction::Up), 25);
    assert_eq!(table.total(Direction::Down), 11);
    assert_eq!(table.busy(), 5);
}

#[test]
fn rows_are_ordered_as_wanted() {
    let table = family();
    let cases: [(&str, View, &[&str]); 4] = [
        (
            "by name",
            View {
                sort: Sort::Name,
                ..View::default()
            },
            &[
                "unit:web 15 2",
                ".pid:1 5 1",
                ".pid:2 9 0",
                "..pid:3 2 0",
                "user:ann 10 9",
            ],
        ),
        (
            "the least sent first",
            View {
                sort: Sort::Up,
                reversed: true,
                ..View::default()
            },
            &[
                "user:ann 10 9",
                "unit:web 15 2",
                ".pid:1 5 1",
                ".pid:2 9 0",
                "..pid:3 2 0",
            ],
        ),
        (
            "flat: each by itself",
            View {
                flat: true,
                sort: Sort::Up,
                ..View::default()
            },
            &[
                "user:ann 10 9",
                "pid:2 7 0",
                "pid:1 5 1",
                "pid:3 2 0",
                "unit:web 1 1",
            ],
        ),
        (
            "flat, by what is received",
            View {
                flat: true,
                sort: Sort::Down,
                filter: "pid".into(),
                ..View::default()
            },
            &["pid:1 5 1", "pid:2 7 0", "pid:3 2 0"],
        ),
    ];
    for (why, view, expected) in cases {
        assert_eq!(told(&table, &view), expected, "{why}");
    }
    let mut sort = Sort::default();
    for _ in Sort::ALL {
        sort = sort.next();
    }
    assert_eq!(sort, Sort::default(), "all of them are gone through");
}

#[test]
fn a_filter_keeps_what_is_around_a_match() {
    let table = family();
    let filtered = |filter: &str| {
        told(
            &table,
            &View {
                filter: filter.into(),
                ..View::default()
            },
        )
    };
    assert_eq!(
        filtered("PID:3"),
        ["unit:web 15 2", ".pid:2 9 0", "..pid:3 2 0"]
    );
    assert_eq!(filtered("user"), ["user:ann 10 9"]);
    assert!(filtered("nobody").is_empty());
}

#[test]
fn one_limit_for_both_directions_counts_all_inside_it_in_one() {
    let mut targets = vec![target("name:a", None, 3, 0), target("pid:9", Some(0), 4, 5)];
    targets[0].both = Some(100);
    let table = table(targets);
    assert_eq!(
        told(&table, &View::default()),
        ["name:a 12 0", ".pid:9 4 5"]
    );
}

#[test]
fn an_answer_that_makes_no_sense_is_shown_as_far_as_it_does() {
    // A circle and an index that does not exist cause neither an endless loop nor a panic.
    let table = table(vec![
        target("a", Some(1), 1, 0),
        target("b", Some(0), 1, 0),
        target("c", Some(77), 1, 0),
    ]);
    assert_eq!(told(&table, &View::default()), ["c 1 0"]);
    let all = View {
        flat: true,
        ..View::default()
    };
    assert_eq!(table.rows(&all).len(), 3);
}

#[test]
fn the_past_is_of_readings_not_of_looks_and_goes_with_its_target() {
    let mut table = Table::default();
    let look = |table: &mut Table, at_ns: u64, rate: u64| {
        table.take(WatchDoc {
            at_ns,
            links: Vec::new(),
            targets: vec![target("pid:1", None, rate, 0)],
        });
    };
    for (at, rate) in [(1, 10), (2, 20), (2, 20), (3, 30)] {
        look(&mut table, at, rate);
    }
    let past = |table: &Table| table.past("pid:1", Direction::Up).collect::<Vec<_>>();
    assert_eq!(past(&table), [10, 20, 30], "the same reading twice is one");
    for at in 4..200 {
        look(&mut table, at, at);
    }
    assert_eq!(past(&table).len(), KEPT);
    table.take(WatchDoc {
        at_ns: 500,
        ..WatchDoc::default()
    });
    assert!(past(&table).is_empty());
}

#[test]
fn what_was_before_the_first_look_goes_before_it() {
    let mut table = family();
    let told = |name: &str, up_rate: Vec<u64>| TargetHistory {
        target: name.into(),
        time_ns: vec![1; up_rate.len()],
        down_rate: vec![1; up_rate.len()],
        up_rate,
        ..TargetHistory::default()
    };
    table.remember(&HistoryDoc {
        targets: vec![
            told("pid:1", vec![4, 5]),
            told("pid:2", vec![5, 6, 7]),
            told("pid:3", (0..200).collect()),
            told("unit:web", vec![1, 1]),
        ],
        ..HistoryDoc::default()
    });
    let past = |name: &str, d| table.past(name, d).collect::<Vec<_>>();
    assert_eq!(
        past("pid:1", Direction::Up),
        [4, 5],
        "the newest was seen already"
    );
    assert_eq!(past("pid:1", Direction::Down), [1, 1]);
    assert_eq!(past("user:ann", Direction::Up), [10]);
    let child = past("pid:3", Direction::Up);
    assert_eq!(
        (child.len(), child[KEPT - 2], child[KEPT - 1]),
        (KEPT, 198, 2)
    );
    // 198 of the child, 6 and 4 of the two processes, 1 of the unit itself.
    assert_eq!(past("unit:web", Direction::Up)[KEPT - 2], 198 + 6 + 4 + 1);
}

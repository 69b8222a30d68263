use netnice_api::{HistoryDoc, ProgramDoc, ProgramsDoc, TargetHistory, Traffic, WatchDoc, Watched};
use netnice_core::contract::Direction;

use super::{HISTORY_POINTS, Row, Sort, Table, View, moves};

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
    table.update(WatchDoc {
        at_ns: 1,
        targets,
        ..WatchDoc::default()
    });
    table
}

/// The rows as text: dots for the depth, the name, sent and received rate.
fn row_texts(table: &Table, view: &View) -> Vec<String> {
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
fn the_rate_of_a_target_includes_the_targets_inside_and_counts_each_packet_once() {
    let table = family();
    assert_eq!(
        row_texts(&table, &View::default()),
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
    assert_eq!(table.moving_targets(), 5);
}

#[test]
fn rows_are_ordered_as_the_view_says() {
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
        assert_eq!(row_texts(&table, &view), expected, "{why}");
    }
    let mut sort = Sort::default();
    for _ in Sort::ALL {
        sort = sort.next();
    }
    assert_eq!(sort, Sort::default(), "every order was used");
}

#[test]
fn a_filter_keeps_the_targets_that_contain_a_match() {
    let table = family();
    let filtered = |filter: &str| {
        row_texts(
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
fn a_limit_of_both_directions_counts_all_traffic_inside_in_one_sum() {
    let mut targets = vec![target("name:a", None, 3, 0), target("pid:9", Some(0), 4, 5)];
    targets[0].both = Some(100);
    let table = table(targets);
    assert_eq!(
        row_texts(&table, &View::default()),
        ["name:a 12 0", ".pid:9 4 5"]
    );
}

#[test]
fn an_inconsistent_answer_is_shown_as_far_as_possible() {
    // A circle and an index that does not exist cause neither an endless loop nor a panic.
    let table = table(vec![
        target("a", Some(1), 1, 0),
        target("b", Some(0), 1, 0),
        target("c", Some(77), 1, 0),
    ]);
    assert_eq!(row_texts(&table, &View::default()), ["c 1 0"]);
    let all = View {
        flat: true,
        ..View::default()
    };
    assert_eq!(table.rows(&all).len(), 3);
}

#[test]
fn the_history_has_one_point_per_reading_and_ends_with_its_target() {
    let mut table = Table::default();
    let answer = |table: &mut Table, at_ns: u64, rate: u64| {
        table.update(WatchDoc {
            at_ns,
            targets: vec![target("pid:1", None, rate, 0)],
            ..WatchDoc::default()
        });
    };
    for (at, rate) in [(1, 10), (2, 20), (2, 20), (3, 30)] {
        answer(&mut table, at, rate);
    }
    let rates = |table: &Table| table.history("pid:1", Direction::Up).collect::<Vec<_>>();
    assert_eq!(rates(&table), [10, 20, 30], "the same reading twice is one");
    for at in 4..200 {
        answer(&mut table, at, at);
    }
    assert_eq!(rates(&table).len(), HISTORY_POINTS);
    table.update(WatchDoc {
        at_ns: 500,
        ..WatchDoc::default()
    });
    assert!(rates(&table).is_empty());
}

#[test]
fn the_daemons_history_precedes_the_first_answer() {
    let mut table = family();
    let history = |name: &str, up_rate: Vec<u64>| TargetHistory {
        target: name.into(),
        time_ns: vec![1; up_rate.len()],
        down_rate: vec![1; up_rate.len()],
        up_rate,
        ..TargetHistory::default()
    };
    table.prepend_history(&HistoryDoc {
        targets: vec![
            history("pid:1", vec![4, 5]),
            history("pid:2", vec![5, 6, 7]),
            history("pid:3", (0..200).collect()),
            history("unit:web", vec![1, 1]),
        ],
        ..HistoryDoc::default()
    });
    let rates = |name: &str, d| table.history(name, d).collect::<Vec<_>>();
    assert_eq!(
        rates("pid:1", Direction::Up),
        [4, 5],
        "the newest was seen already"
    );
    assert_eq!(rates("pid:1", Direction::Down), [1, 1]);
    assert_eq!(rates("user:ann", Direction::Up), [10]);
    let child = rates("pid:3", Direction::Up);
    assert_eq!(
        (
            child.len(),
            child[HISTORY_POINTS - 2],
            child[HISTORY_POINTS - 1]
        ),
        (HISTORY_POINTS, 198, 2)
    );
    // 198 of the child, 6 and 4 of the two processes, 1 of the unit itself.
    assert_eq!(
        rates("unit:web", Direction::Up)[HISTORY_POINTS - 2],
        198 + 6 + 4 + 1
    );
}

fn program(pid: u32, target: Option<&str>, up_rate: u64) -> ProgramDoc {
    ProgramDoc {
        pid,
        command: format!("program{pid}"),
        user: "user ann".into(),
        unit: Some("web.service".into()),
        target: target.map(Into::into),
        up_rate,
        ..ProgramDoc::default()
    }
}

#[test]
fn programs_stand_below_their_targets_and_add_nothing_to_them() {
    let target = |name: &str, rate| Watched {
        target: name.into(),
        sends: moves(rate),
        ..Watched::default()
    };
    let doc = |at_ns| WatchDoc {
        at_ns,
        targets: vec![target("pid:7", 50), target("unit:web.service", 100)],
        ..WatchDoc::default()
    };
    let programs = |at_ns| ProgramsDoc {
        at_ns,
        list: vec![
            program(7, Some("pid:7"), 49),
            program(8, Some("unit:web.service"), 30),
            program(9, None, 70),
            program(9, None, 1),
        ],
        total: netnice_api::TrafficSum {
            up_rate: 150,
            ..Default::default()
        },
        ..ProgramsDoc::default()
    };
    let mut table = Table::default();
    table.update(doc(1));
    table.update_programs(programs(2));
    table.update(doc(3));
    table.update_programs(programs(4));
    let rows = table.rows(&View::default());
    let shown: Vec<(&str, usize, u64)> = rows
        .iter()
        .map(|row| {
            (
                table.target(row).target.as_str(),
                row.depth,
                row.moving[0].rate,
            )
        })
        .collect();
    let expected = [
        ("unit:web.service", 0, 100),
        ("pid:8", 1, 30),
        ("pid:9", 0, 70),
        ("pid:7", 0, 50),
    ];
    assert_eq!(shown, expected);
    assert_eq!((table.targets(), table.moving_targets()), (2, 2));
    assert_eq!(table.total(Direction::Up), 150);
    assert!(table.is_program("pid:9") && !table.is_program("pid:7"));
    assert_eq!(table.program("pid:7").map(|it| it.up_rate), Some(49));
    let history: Vec<u64> = table.history("pid:9", Direction::Up).collect();
    assert_eq!(history, [70, 70]);
    let of_ann = View {
        filter: "ANN".into(),
        flat: true,
        ..View::default()
    };
    assert_eq!(table.rows(&of_ann).len(), 3, "the user is searched too");
    table.clear_programs();
    assert_eq!(table.rows(&View::default()).len(), 2);
}

#[test]
fn programs_are_ordered_by_bytes_connections_and_users() {
    let of = |pid, user: &str, connections, bytes| ProgramDoc {
        user: format!("user {user}"),
        connections,
        up_bytes: bytes,
        down_bytes: 1,
        ..program(pid, None, 5)
    };
    let mut table = table(vec![target("user:ann", None, 10, 9)]);
    table.update_programs(ProgramsDoc {
        at_ns: 1,
        list: vec![
            of(7, "bob", 3, 100),
            of(8, "ann", 1, 200),
            of(9, "cid", 2, 50),
        ],
        ..ProgramsDoc::default()
    });
    for (sort, expected) in [
        (Sort::Moved, ["pid:8", "pid:7", "pid:9", "user:ann"]),
        (Sort::Connections, ["pid:7", "pid:9", "pid:8", "user:ann"]),
        (Sort::User, ["pid:8", "pid:7", "pid:9", "user:ann"]),
    ] {
        let view = View {
            sort,
            ..View::default()
        };
        let rows = row_texts(&table, &view);
        let names: Vec<&str> = rows
            .iter()
            .filter_map(|row| row.split(' ').next())
            .collect();
        assert_eq!(names, expected, "{}", sort.word());
    }
}

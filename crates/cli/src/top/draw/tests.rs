use std::fs;
use std::path::Path;

use netnice_api::{
    Connection, ConnectionsDoc, ProcessorStatusDoc, ProcessorTimeDoc, ProgramDoc, ProgramsDoc,
    SliceDoc, Traffic, TrafficSum, WatchDoc, Watched, WatchedLink,
};
use netnice_core::units::Nanos;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::format::{cut, rate, round, share_of, wait, wrapped};
use super::{TerminalStyle, draw, frame_lines};
use crate::render::sparkline::Sparkline;
use crate::top::connections::ConnectionList;
use crate::top::prompt::Prompt;
use crate::top::screen::{Mode, Screen, Subject};

const ASCII: TerminalStyle = TerminalStyle {
    colour: false,
    unicode: false,
};
const UNICODE: TerminalStyle = TerminalStyle {
    colour: false,
    unicode: true,
};

/// The screen in a terminal of this size, without blanks at the ends of lines.
fn drawn(screen: &mut Screen, style: TerminalStyle, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
    terminal
        .draw(|frame| draw(screen, style, frame))
        .expect("drawn");
    let buffer = terminal.backend().buffer();
    let line = |y: u16| -> String {
        let line: String = (0..width).map(|x| buffer[(x, y)].symbol()).collect();
        line.trim_end().to_string()
    };
    (0..height).map(line).collect::<Vec<_>>().join("\n")
}

fn moving(rate: u64, wait_ns: u64, drops: u64, held: u64) -> Traffic {
    Traffic {
        rate,
        wait_ns,
        drops,
        held,
    }
}

/// A unit with a process in it, a target with one limit for both directions, and a target that is
/// not served.
fn targets() -> Vec<Watched> {
    vec![
        Watched {
            target: "name:backup".into(),
            both: Some(4_194_304),
            sends: moving(4_193_000, 21_500_000, 3, 190),
            ..Watched::default()
        },
        Watched {
            target: "pid:4711".into(),
            inside: Some(2),
            up: Some(8_000_000),
            sends: moving(7_998_000, 400_000, 0, 70),
            receives: moving(120_000, 0, 0, 0),
            ..Watched::default()
        },
        Watched {
            target: "unit:nginx.service".into(),
            up: Some(20_000_000),
            down: Some(50_000_000),
            sends: moving(1_200_000, 0, 0, 0),
            receives: moving(3_000_000, 0, 0, 0),
            ..Watched::default()
        },
        Watched {
            target: "user:ann".into(),
            up: Some(1_000_000),
            degraded: vec![
                "what was promised does not fit eth0 any more: 40 Mbit/s of 100 are free".into(),
            ],
            ..Watched::default()
        },
    ]
}

fn screen(targets: Vec<Watched>) -> Screen {
    let mut screen = Screen::new(Nanos::from_secs(1));
    for at_ns in 1..=3 {
        let mut targets = targets.clone();
        for target in &mut targets {
            target.sends.rate = target.sends.rate * at_ns / 3;
        }
        screen.table.update(WatchDoc {
            at_ns,
            links: vec![WatchedLink {
                link: "eth0".into(),
                up: Some(100_000_000),
                up_held: 60_000_000,
                ..WatchedLink::default()
            }],
            targets,
            ..WatchDoc::default()
        });
    }
    screen.selected = Some("name:backup".into());
    screen
}

#[test]
fn a_screen_of_80_by_24_shows_the_whole_table() {
    let text = drawn(&mut screen(targets()), ASCII, 80, 24);
    let expected = "\
netnice top  4 targets  3 moving  up 13.4Mbit/s  down 3.12Mbit/s  every 1s
eth0  up 100Mbit/s, 60M promised
TARGET                   UP        LIMIT   DOWN        LIMIT   WAIT DROP/s HELD
  unit:nginx.service  9.20M   ,:-    20M  3.12M   ...    50M  0.4ms      - up
  - pid:4711          8.00M   :+#     8M   120k   ###      -  0.4ms      - up
> name:backup         4.19M   :+#  4.19M   both                21ms      3 both
! user:ann                0           1M      0            -      -      -";
    assert_eq!(
        text.lines().take(7).collect::<Vec<_>>().join("\n"),
        expected,
        "\n{text}"
    );
    let foot: Vec<&str> = text.lines().skip(21).collect();
    assert_eq!(
        foot,
        [
            "",
            "name:backup both 4.194 Mbit/s (524.288 kB/s)",
            "u d b limit  m reserve  x remove  Enter peers  s sort  / filter  ? help  q quit"
        ],
        "\n{text}"
    );
}

/// Reservations of 20 % of a processor, of which the first target uses 7.5 %, and of 160 %.
fn with_times(mut targets: Vec<Watched>, at_s: u64) -> WatchDoc {
    for (target, (slice_ms, used_ms, way)) in targets
        .iter_mut()
        .zip([(20, 75, "exact"), (160, 1_500, "group")])
    {
        target.processor_time = Some(ProcessorTimeDoc {
            reserved: SliceDoc {
                slice_ns: slice_ms * 1_000_000,
                period_ns: 100_000_000,
                extra: way == "group",
            },
            status: Some(ProcessorStatusDoc {
                way: way.into(),
                used_ns: at_s * used_ms * 1_000_000,
                ..ProcessorStatusDoc::default()
            }),
            ..ProcessorTimeDoc::default()
        });
    }
    WatchDoc {
        at_ns: 3 + at_s,
        processors_at_ns: at_s * 1_000_000_000,
        targets,
        ..WatchDoc::default()
    }
}

#[test]
fn used_and_reserved_processor_time_have_columns_if_a_target_has_a_reservation() {
    let mut screen = screen(targets());
    for at_s in [1, 3] {
        screen.table.update(with_times(targets(), at_s));
    }
    let text = drawn(&mut screen, ASCII, 80, 24);
    let expected = "\
TARGET                  UP       LIMIT   DOWN       LIMIT   WAIT DROP/s HELD   CPU    OF";
    let heading = text.lines().find(|line| line.starts_with("TARGET"));
    let heading = heading.expect("a heading");
    assert_eq!(
        expected.split_whitespace().collect::<Vec<_>>(),
        heading.split_whitespace().collect::<Vec<_>>()
    );
    assert_eq!(heading.len(), 80, "{text}");
    for (name, end) in [
        ("name:bac", "both  7.5%   20%"),
        ("pid:47", " up    150%  160%"),
        ("unit:", " up"),
    ] {
        let line = text.lines().find(|line| line.contains(name));
        let line = line.unwrap_or_else(|| panic!("no row of {name}\n{text}"));
        assert!(line.ends_with(end), "`{line}`\n{text}");
    }
    let selected = "cpu 20ms/100ms by a deadline";
    assert!(text.contains(selected), "{text}");
    // The same reading again changes nothing.
    screen.table.update(with_times(targets(), 3));
    assert_eq!(drawn(&mut screen, ASCII, 80, 24), text);
}

#[test]
fn the_limit_column_shows_minimums_if_a_target_has_one() {
    let mut targets = targets();
    targets[2].min = Some(5_000_000);
    targets[3].min_down = Some(1_000_000);
    let text = drawn(&mut screen(targets), ASCII, 80, 24);
    for word in ["MIN-LIMIT", "5M-20M", " 1M-  "] {
        assert!(text.contains(word), "{word}\n{text}");
    }
}

#[test]
fn a_wide_unicode_terminal_shows_longer_histories_and_block_characters() {
    let text = drawn(&mut screen(targets()), UNICODE, 200, 50);
    assert!(text.contains("▃▆█"), "{text}");
    assert!(text.contains("  └ pid:4711"), "{text}");
    assert_eq!(text.lines().count(), 50);
    let heading = text
        .lines()
        .find(|line| line.starts_with("TARGET"))
        .expect("a heading");
    assert!(
        heading.ends_with("HELD") && heading.len() > 150,
        "{heading}"
    );
}

#[test]
fn the_footer_shows_why_the_selected_target_is_degraded() {
    let mut screen = screen(targets());
    screen.selected = Some("user:ann".into());
    let text = drawn(&mut screen, ASCII, 80, 24);
    assert!(text.contains(">!user:ann"), "{text}");
    assert!(
        text.contains("degraded: what was promised does not fit eth0 any more"),
        "{text}"
    );
}

#[test]
fn the_page_scrolls_with_the_selection() {
    let target = |n: usize| Watched {
        target: format!("pid:{n:03}"),
        ..Watched::default()
    };
    let mut screen = screen((0..500).map(target).collect());
    for (selected, first, last) in [
        (0, 0, 18),
        (18, 0, 18),
        (19, 1, 19),
        (499, 481, 499),
        (490, 481, 499),
        (3, 3, 21),
    ] {
        screen.selected = Some(format!("pid:{selected:03}"));
        let text = drawn(&mut screen, ASCII, 80, 24);
        let pids: Vec<&str> = text
            .lines()
            .filter_map(|l| l.get(2..9))
            .filter(|l| l.starts_with("pid:"))
            .collect();
        assert_eq!(
            pids.first().copied(),
            Some(format!("pid:{first:03}").as_str()),
            "{text}"
        );
        assert_eq!(
            pids.last().copied(),
            Some(format!("pid:{last:03}").as_str()),
            "{text}"
        );
        assert!(text.contains(&format!("> pid:{selected:03}")), "{text}");
    }
}

/// Two connections of pid:4711, one of which moves, and others that are not listed.
fn connections() -> ConnectionList {
    let connection = |inode, peer: Option<&str>, sent| Connection {
        inode,
        protocol: "tcp".into(),
        local: "10.0.0.2:40000".into(),
        peer: peer.map(Into::into),
        state: Some(
            if peer.is_some() {
                "established"
            } else {
                "listen"
            }
            .into(),
        ),
        sent: Some(sent),
        received: Some(0),
    };
    let doc = |at_ns, sent| ConnectionsDoc {
        target: "pid:4711".into(),
        at_ns,
        connections: vec![
            connection(1, None, 0),
            connection(2, Some("203.0.113.9:443"), sent),
        ],
        more: 7,
        of_others: 2,
    };
    let before = ConnectionList::new(doc(1_000_000_000, 0), None);
    ConnectionList::new(doc(3_000_000_000, 1_000_000), Some(&before))
}

#[test]
fn connections_are_shown_below_their_target() {
    let mut screen = screen(targets());
    screen.open = Some(("pid:4711".into(), Some(connections())));
    let text = drawn(&mut screen, ASCII, 80, 24);
    let below: Vec<&str> = text
        .lines()
        .skip_while(|l| !l.contains("pid:4711"))
        .skip(1)
        .take(4)
        .collect();
    assert_eq!(
        below,
        [
            "      tcp  up  4.00M  down      0  10.0.0.2:40000 > 203.0.113.9:443",
            "      tcp  up      0  down      0  10.0.0.2:40000 > -  listen",
            "      and 7 more",
            "      and 2 of other users"
        ],
        "\n{text}"
    );
    screen.open = Some(("pid:4711".into(), Some(ConnectionList::default())));
    assert!(drawn(&mut screen, ASCII, 80, 24).contains("no connection"));
}

#[test]
fn the_last_line_shows_the_input_and_the_limit_in_force() {
    let mut screen = screen(targets());
    let subject = Subject::Clause(Some("both"), "name:backup".into());
    screen.mode = Mode::Prompt(subject, Prompt::with_text("8mb"));
    screen.status.text = "both: mb is no unit of a rate".into();
    screen.status.is_error = true;
    let text = drawn(&mut screen, ASCII, 80, 24);
    let last: Vec<&str> = text.lines().skip(22).collect();
    assert_eq!(
        last,
        [
            "both: mb is no unit of a rate",
            "limit both of name:backup (4.194 Mbit/s): 8mb"
        ],
        "\n{text}"
    );
    screen.mode = Mode::ConfirmClear("name:backup".into());
    assert!(
        drawn(&mut screen, ASCII, 80, 24).contains("remove your contract of name:backup? y or n")
    );
    screen.mode = Mode::Help;
    let help = drawn(&mut screen, ASCII, 80, 24);
    assert!(help.is_ascii() && help.contains("WAIT"), "{help}");
    assert!(
        super::HELP.lines().count() <= 24 && super::HELP.lines().all(|l| l.chars().count() <= 80)
    );
    assert!(super::KEYS.len() <= 80);
}

#[test]
fn the_documents_show_the_screens_that_are_drawn() {
    let mut screen = screen(targets());
    let table = drawn(&mut screen, UNICODE, 80, 24);
    screen.selected = Some("pid:4711".into());
    screen.open = Some(("pid:4711".into(), Some(connections())));
    let subject = Subject::Clause(Some("up"), "pid:4711".into());
    screen.mode = Mode::Prompt(subject, Prompt::with_text("16m"));
    let change = drawn(&mut screen, UNICODE, 80, 24);
    check_screens("README.md", &[&table]);
    check_screens("docs/manual/top.md", &[&table, &change]);
}

/// Checks that the screens in a document are these, without their empty lines, and that the
/// document has no other one. With `NETNICE_WRITE_SCREENS` in the environment it writes them into
/// the document instead.
fn check_screens(name: &str, screens: &[&str]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(name);
    let document = fs::read_to_string(&path).expect("a document");
    let mut parts = document.split(SCREEN);
    let mut drawn = parts.next().unwrap_or_default().to_owned();
    let parts: Vec<&str> = parts.collect();
    assert_eq!(parts.len(), screens.len(), "number of screens in {name}");
    for (part, screen) in parts.iter().zip(screens) {
        let (_, rest) = part.split_once("\n```\n").expect("an end of the block");
        let lines: Vec<&str> = screen.lines().filter(|line| !line.is_empty()).collect();
        drawn += &format!("```text\n{}\n```\n{rest}", lines.join("\n"));
    }
    if std::env::var_os("NETNICE_WRITE_SCREENS").is_some() {
        return fs::write(&path, drawn).expect("written");
    }
    let differs = document.lines().zip(drawn.lines()).find(|(a, b)| a != b);
    assert!(
        document == drawn,
        "{name} shows other screens than are drawn, first in (shown, drawn) {differs:#?}; \
         `NETNICE_WRITE_SCREENS=1 cargo test -p netnice-cli -- the_documents_show` writes them"
    );
}

/// How a screen in a document begins.
const SCREEN: &str = "```text\nnetnice top  ";

#[test]
fn without_colours_no_cell_is_coloured() {
    let colours = |colour| {
        let mut screen = screen(targets());
        screen.status.text = "something".into();
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).expect("a terminal");
        let style = TerminalStyle {
            colour,
            unicode: true,
        };
        terminal
            .draw(|frame| draw(&mut screen, style, frame))
            .expect("drawn");
        let cells = terminal.backend().buffer().content.iter();
        cells
            .filter(|c| {
                c.fg != ratatui::style::Color::Reset || c.bg != ratatui::style::Color::Reset
            })
            .count()
    };
    assert_eq!(colours(false), 0);
    assert!(colours(true) > 10);
}

#[test]
fn a_frame_as_text_has_every_target() {
    let target = |n: usize| Watched {
        target: format!("pid:{n}"),
        ..Watched::default()
    };
    let lines = frame_lines(&mut screen((0..500).map(target).collect()), ASCII, 80);
    assert_eq!(lines.len(), 3 + 500);
    assert!(
        lines
            .iter()
            .all(|line| line.chars().count() <= 80 && !line.contains('>'))
    );
    let lines = frame_lines(&mut screen(Vec::new()), ASCII, 80);
    assert!(
        lines.iter().any(|line| line.contains("no target")),
        "{lines:?}"
    );
}

#[test]
fn a_terminal_that_is_too_small_shows_the_smallest_size() {
    for (width, height) in [(1, 1), (20, 24), (59, 24), (80, 5)] {
        let text = drawn(&mut screen(targets()), ASCII, width, height);
        assert!(
            "at least 60 x 6".starts_with(text.lines().next().unwrap_or("?")),
            "{text}"
        );
    }
    assert!(drawn(&mut screen(targets()), ASCII, 60, 6).contains("TARGET"));
}

#[test]
fn numbers_are_formatted_in_few_characters() {
    for (bits, short, trimmed) in [
        (0, "0", "0"),
        (999, "999", "999"),
        (1000, "1.00k", "1k"),
        (4_194_304, "4.19M", "4.19M"),
        (9_994, "9.99k", "9.99k"),
        (9_996, "10.0k", "10k"),
        (99_960, "100k", "100k"),
        (999_499, "999k", "999k"),
        (999_500, "1.00M", "1M"),
        (400_000_000_000, "400G", "400G"),
        (u64::MAX, "18.4E", "18.4E"),
    ] {
        assert_eq!(
            (rate(bits).as_str(), round(bits).as_str()),
            (short, trimmed),
            "{bits}"
        );
    }
    for (ns, text) in [
        (0, "-"),
        (1, "0.1ms"),
        (9_900_000, "9.9ms"),
        (9_900_001, "10ms"),
        (999_900_000, "999ms"),
        (1_000_000_000, "1.0s"),
        (83_250_000_000, "83.2s"),
    ] {
        assert_eq!(wait(Nanos(ns)), text, "{ns}");
    }
    for (processors, text) in [
        (0.0, "0%"),
        (0.002, "0.2%"),
        (0.0994, "9.9%"),
        (0.0996, "10%"),
        (16.0, "1600%"),
        (128.0, "12800"),
    ] {
        assert_eq!(share_of(processors), text, "{processors}");
    }
    let sparkline = Sparkline::new(false);
    assert_eq!(sparkline.row(&[0, 1, 4, 8, 9], Some(8), 6), "  .-##");
    assert_eq!(sparkline.row(&[1, 2, 3], None, 2), "+#");
    assert_eq!(cut("abcdef", 4), "abc~");
    assert_eq!(wrapped("one two three four", 9, 2), ["one two", "three ~"]);
}

/// The screen with targets, two programs and the sums of others.
fn screen_with_programs() -> Screen {
    let mut screen = screen(targets());
    let program = |pid, command: &str, unit: Option<&str>, up_rate| ProgramDoc {
        pid,
        command: command.into(),
        user: "user ann".into(),
        unit: unit.map(Into::into),
        target: unit.map(|unit| format!("unit:{unit}")),
        up_rate,
        up_bytes: 12_300_000,
        connections: 12,
        ..ProgramDoc::default()
    };
    screen.table.update_programs(ProgramsDoc {
        at_ns: 3,
        list: vec![
            program(25340, "iperf3", None, 41_000_000),
            program(4712, "nginx", Some("nginx.service"), 900_000),
        ],
        ended: TrafficSum {
            programs: 3,
            up_rate: 1_000_000,
            ..TrafficSum::default()
        },
        total: TrafficSum {
            up_rate: 55_000_000,
            ..TrafficSum::default()
        },
        ..ProgramsDoc::default()
    });
    screen.selected = Some("pid:25340".into());
    screen
}

#[test]
fn programs_have_users_and_connections_instead_of_histories_on_80_columns() {
    let text = drawn(&mut screen_with_programs(), ASCII, 80, 24);
    let expected = "\
netnice top  4 targets  2 programs  up 55.0Mbit/s  down 0bit/s  every 1s
eth0  up 100Mbit/s, 60M promised
besides  3 ended up 1.00M down 0
TARGET              USER     CONN     UP  LIMIT   DOWN  LIMIT   WAIT DROP/s HELD
> pid:25340 iperf3  ann        12  41.0M      -      0      -      -      -
  unit:nginx.servi~                9.20M    20M  3.12M    50M  0.4ms      - up
  - pid:4711                       8.00M     8M   120k      -  0.4ms      - up
  - pid:4712 nginx  ann        12   900k      -      0      -      -      -
  name:backup                      4.19M  4.19M   both                21ms      3 both
! user:ann                             0     1M      0      -      -      -";
    let shown: Vec<&str> = text.lines().take(10).collect();
    let line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let words: Vec<String> = shown.iter().map(|text| line(text)).collect();
    let wanted: Vec<String> = expected.lines().map(line).collect();
    assert_eq!(words, wanted, "\n{text}");
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    assert!(
        text.contains("pid:25340 iperf3 of user ann sent 12.3MB received 0B"),
        "{text}"
    );
}

#[test]
fn a_wide_screen_has_units_and_histories_beside_programs() {
    let text = drawn(&mut screen_with_programs(), UNICODE, 200, 50);
    let heading = text.lines().find(|line| line.starts_with("TARGET"));
    let heading = heading.expect("a heading");
    assert!(
        heading.contains("UNIT") && heading.ends_with("HELD"),
        "{text}"
    );
    assert!(heading.contains("  SENT  RECVD"), "{text}");
    assert!(heading.chars().count() > 190, "{text}");
    let nginx = text.lines().find(|line| line.contains("pid:4712 nginx"));
    assert!(
        nginx.is_some_and(|line| line.contains("nginx.service")),
        "{text}"
    );
    assert!(text.contains('█'), "{text}");
}

#[test]
fn remote_hosts_are_shown_below_their_target() {
    let mut screen = screen(targets());
    screen.open = Some(("pid:4711".into(), Some(connections())));
    screen.shows_hosts = true;
    let text = drawn(&mut screen, ASCII, 80, 24);
    let lines = text.lines().skip_while(|l| !l.contains("pid:4711"));
    let below: Vec<&str> = lines.skip(1).take(3).collect();
    assert_eq!(
        below,
        [
            "      up  4.00M  down      0  203.0.113.9  1 connection",
            "      and 7 more connections",
            "      and 2 of other users"
        ],
        "\n{text}"
    );
}

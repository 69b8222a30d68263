use netnice_api::{
    Clear, ClearWhat, Connections, ConnectionsDoc, Done, Failed, Refused, RefusedBy, Request,
    Response, Set, Traffic, Until, WatchDoc, Watched,
};
use netnice_core::units::{Instant, Nanos};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::{Action, Mode, Screen};

fn at(ms: u64) -> Instant {
    Instant(ms * 1_000_000)
}

fn key(code: KeyCode) -> KeyEvent {
    KeyEvent::new(code, KeyModifiers::NONE)
}

fn control(letter: char) -> KeyEvent {
    KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL)
}

/// Types letters; `\n` is Enter.
fn types(screen: &mut Screen, text: &str) {
    for letter in text.chars() {
        screen.handle_key(key(match letter {
            '\n' => KeyCode::Enter,
            letter => KeyCode::Char(letter),
        }));
    }
}

/// Pids 1 and 2 and a name, with rates that give this order.
fn doc() -> WatchDoc {
    let target = |name: &str, rate| Watched {
        target: name.into(),
        up: Some(4_000_000),
        sends: Traffic {
            rate,
            ..Traffic::default()
        },
        ..Watched::default()
    };
    WatchDoc {
        at_ns: 1,
        targets: vec![target("name:b", 1), target("pid:1", 3), target("pid:2", 2)],
        ..WatchDoc::default()
    }
}

fn actions(screen: &mut Screen) -> Vec<Action> {
    std::iter::from_fn(|| screen.poll_action()).collect()
}

fn answer(screen: &mut Screen, request: &Request, response: Response) {
    screen.handle_response(request, Ok(response));
}

/// A screen after its first answer.
fn loaded() -> Screen {
    let mut screen = Screen::new(Nanos::from_secs(1));
    screen.handle_time(at(0));
    let sent = actions(&mut screen);
    let [
        Action::Send(request @ Request::Watch(_), None),
        Action::Send(Request::History(_), None),
    ] = sent.as_slice()
    else {
        panic!("no request for the table: {sent:?}");
    };
    answer(&mut screen, request, Response::Watched(doc()));
    screen
}

fn selected(screen: &Screen) -> &str {
    screen.selected.as_deref().unwrap_or_default()
}

#[test]
fn the_table_is_requested_once_per_interval_and_not_before_the_answer() {
    let mut screen = loaded();
    assert_eq!(screen.poll_timeout(), Some(at(1000)));
    screen.handle_time(at(999));
    assert!(actions(&mut screen).is_empty());
    screen.handle_time(at(1000));
    assert_eq!(actions(&mut screen).len(), 1);
    // The daemon is slow: the screen sends no second request.
    screen.handle_time(at(9000));
    assert!(actions(&mut screen).is_empty());
    answer(
        &mut screen,
        &super::table_request(Nanos::from_secs(1)),
        Response::Watched(doc()),
    );
    screen.handle_time(at(9000));
    assert_eq!(actions(&mut screen).len(), 1);
    answer(
        &mut screen,
        &super::table_request(Nanos::from_secs(1)),
        Response::Watched(doc()),
    );
    assert_eq!(
        screen.poll_timeout(),
        Some(at(10_000)),
        "a missed request is not sent later"
    );
}

#[test]
fn during_a_pause_the_table_is_not_requested() {
    let mut screen = loaded();
    types(&mut screen, "p");
    assert_eq!(screen.poll_timeout(), None);
    screen.handle_time(at(60_000));
    assert!(actions(&mut screen).is_empty());
    types(&mut screen, "p");
    screen.handle_time(at(60_000));
    assert_eq!(actions(&mut screen).len(), 1);
}

#[test]
fn the_selection_moves_and_stays_with_its_target() {
    let mut screen = loaded();
    assert_eq!(selected(&screen), "pid:1", "the first row");
    for (keys, expected) in [
        ("j", "pid:2"),
        ("j", "name:b"),
        ("j", "name:b"),
        ("k", "pid:2"),
    ] {
        types(&mut screen, keys);
        assert_eq!(selected(&screen), expected);
    }
    types(&mut screen, "s");
    types(&mut screen, "g");
    assert_eq!(selected(&screen), "pid:1");
    types(&mut screen, "G");
    assert_eq!(selected(&screen), "name:b");
    // The target ends: the first row is selected.
    let mut less = doc();
    less.targets.remove(0);
    answer(
        &mut screen,
        &super::table_request(Nanos::from_secs(1)),
        Response::Watched(less),
    );
    assert_eq!(selected(&screen), "pid:1");
}

#[test]
fn changing_a_limit_sends_the_request_of_netnice_set() {
    let cases: [(&str, &str, Option<u32>, &str); 5] = [
        ("u8mbit\n", "up 8mbit", Some(1), "pid:1"),
        ("d500kB/s\n", "down 4mbit", Some(1), "pid:1"),
        ("bnone\n", "both none", Some(1), "pid:1"),
        (
            "c--up 1mbit --min 1mbit --on eth0\n",
            "up 1mbit min 1mbit on eth0",
            Some(1),
            "pid:1",
        ),
        ("Gu0\n", "up none", None, "name:b"),
    ];
    for (keys, change, pid, target) in cases {
        let mut screen = loaded();
        types(&mut screen, keys);
        let set = Set {
            target: target.into(),
            change: Some(change.into()),
            ..Set::default()
        };
        assert_eq!(
            actions(&mut screen),
            [Action::Send(Request::Set(set), pid)],
            "{keys}"
        );
        assert_eq!(screen.mode, Mode::Table);
    }
}

#[test]
fn an_invalid_limit_gives_an_error_and_can_be_corrected() {
    let mut screen = loaded();
    types(&mut screen, "u8mbps\n");
    assert!(actions(&mut screen).is_empty());
    assert!(
        screen.status.is_error && screen.status.text.contains("mbps"),
        "{:?}",
        screen.status
    );
    assert!(
        matches!(screen.mode, Mode::Prompt(..)),
        "the user can correct it"
    );
    for _ in 0..3 {
        screen.handle_key(key(KeyCode::Backspace));
    }
    types(&mut screen, "bit\n");
    assert_eq!(actions(&mut screen).len(), 1);
    types(&mut screen, "u\n");
    assert!(screen.status.is_error, "an empty text is no rate");
    screen.handle_key(key(KeyCode::Esc));
    assert_eq!(screen.mode, Mode::Table);
    assert!(actions(&mut screen).is_empty());
}

#[test]
fn the_answer_to_a_change_is_shown() {
    let mut screen = loaded();
    types(&mut screen, "u8mbit\n");
    let sent = actions(&mut screen);
    let [Action::Send(request, _)] = sent.as_slice() else {
        panic!("{sent:?}");
    };
    let refused = Refused {
        by: RefusedBy::Permission,
        text: "process 1 belongs to root,\n  not to you".into(),
    };
    answer(&mut screen, request, Response::Refused(refused));
    assert!(screen.status.is_error);
    assert_eq!(screen.status.text, "process 1 belongs to root,; not to you");
    let done = Done {
        target: Some("pid:1".into()),
        contract: Some("up 8mbit".into()),
        effective: Some("up 4mbit".into()),
        ..Done::default()
    };
    answer(&mut screen, request, Response::Done(done));
    assert!(!screen.status.is_error);
    assert!(
        screen.status.text.contains("8 Mbit/s"),
        "{}",
        screen.status.text
    );
    assert!(
        screen.status.text.contains("holds: up 4 Mbit/s"),
        "{}",
        screen.status.text
    );
    assert_eq!(
        screen.poll_timeout(),
        Some(at(0)),
        "the table is requested at once"
    );
}

#[test]
fn a_contract_is_removed_only_after_a_yes() {
    let cleared = Action::Send(
        Request::Clear(Clear {
            what: ClearWhat::Target("pid:1".into()),
            dry_run: false,
            confirm_ns: None,
            for_ns: None,
            until: None,
        }),
        None,
    );
    for (keys, expected) in [("xy", vec![cleared]), ("xn", vec![]), ("xq", vec![])] {
        let mut screen = loaded();
        types(&mut screen, keys);
        assert_eq!(actions(&mut screen), expected, "{keys}");
    }
}

#[test]
fn connections_are_requested_while_they_are_shown() {
    let mut screen = loaded();
    let request = Request::Connections(Connections {
        target: "pid:1".into(),
        own: false,
    });
    types(&mut screen, "\n");
    assert_eq!(actions(&mut screen), [Action::Send(request.clone(), None)]);
    let doc = ConnectionsDoc {
        target: "pid:1".into(),
        ..ConnectionsDoc::default()
    };
    answer(&mut screen, &request, Response::Connections(doc.clone()));
    assert!(
        screen
            .open
            .as_ref()
            .is_some_and(|(_, connections)| connections.is_some())
    );
    screen.handle_time(at(1000));
    assert_eq!(actions(&mut screen).len(), 2, "with each table");
    // A late answer about another target is ignored.
    types(&mut screen, "j\n");
    answer(&mut screen, &request, Response::Connections(doc));
    assert_eq!(
        screen
            .open
            .as_ref()
            .map(|(name, connections)| (name.as_str(), connections.is_some())),
        Some(("pid:2", false))
    );
    types(&mut screen, "\n");
    assert_eq!(screen.open, None);
}

#[test]
fn a_missing_daemon_is_reported_until_a_daemon_answers() {
    let mut screen = loaded();
    screen.handle_time(at(1000));
    let request = super::table_request(Nanos::from_secs(1));
    screen.handle_response(
        &request,
        Err(format!("{}nobody; trying again", super::NO_RESPONSE)),
    );
    assert!(screen.status.is_error);
    assert_eq!(screen.poll_timeout(), Some(at(2000)));
    answer(&mut screen, &request, Response::Watched(doc()));
    assert_eq!(screen.status.text, "");
    let failed = Failed {
        text: "it cannot be read".into(),
        bad_usage: false,
        cause: None,
    };
    answer(&mut screen, &request, Response::Failed(failed));
    assert_eq!(screen.status.text, "it cannot be read");
}

#[test]
fn a_filter_applies_while_the_user_types_it_and_escape_removes_it() {
    let mut screen = loaded();
    types(&mut screen, "/nam");
    assert_eq!(screen.table.rows(&screen.view).len(), 1);
    types(&mut screen, "\n");
    assert_eq!(
        (screen.view.filter.as_str(), &screen.mode),
        ("nam", &Mode::Table)
    );
    screen.handle_key(key(KeyCode::Esc));
    assert_eq!(screen.table.rows(&screen.view).len(), 3);
    types(&mut screen, "/x y");
    screen.handle_key(control('w'));
    screen.handle_key(key(KeyCode::Left));
    screen.handle_key(key(KeyCode::Delete));
    assert_eq!(screen.view.filter, "x");
    screen.handle_key(control('u'));
    screen.handle_key(key(KeyCode::Esc));
    assert_eq!(screen.view.filter, "");
}

#[test]
fn quitting_suspending_and_redrawing_are_actions() {
    for (event, action) in [
        (key(KeyCode::Char('q')), Action::Quit),
        (control('c'), Action::Quit),
        (control('z'), Action::Suspend),
        (control('l'), Action::Redraw),
    ] {
        let mut screen = loaded();
        screen.handle_key(event);
        assert_eq!(actions(&mut screen), [action]);
    }
    let mut screen = loaded();
    types(&mut screen, "?q");
    assert!(actions(&mut screen).is_empty(), "any key ends the help");
}

/// After any keys in any order a target can be selected and the screen can be drawn.
mod any_keys {
    use proptest::prelude::*;
    use ratatui::buffer::Buffer;
    use ratatui::layout::Rect;

    use super::*;
    use crate::top::draw::{TerminalStyle, paint};

    fn any_key() -> impl Strategy<Value = KeyEvent> {
        let code = prop_oneof![
            "[ -~]".prop_map(|text| KeyCode::Char(text.chars().next().unwrap_or(' '))),
            Just(KeyCode::Char('é')),
            prop::sample::select(vec![
                KeyCode::Enter,
                KeyCode::Esc,
                KeyCode::Up,
                KeyCode::Down,
                KeyCode::Left,
                KeyCode::Right,
                KeyCode::Home,
                KeyCode::End,
                KeyCode::PageUp,
                KeyCode::PageDown,
                KeyCode::Backspace,
                KeyCode::Delete,
                KeyCode::Tab,
                KeyCode::F(1),
            ]),
        ];
        let modifiers = prop::sample::select(vec![KeyModifiers::NONE, KeyModifiers::CONTROL]);
        (code, modifiers).prop_map(|(code, modifiers)| KeyEvent::new(code, modifiers))
    }

    proptest! {
        #[test]
        fn keep_a_target_selected_and_the_cursor_on_the_screen(
            keys in prop::collection::vec(any_key(), 0..60),
            width in 1..120_u16,
            height in 1..40_u16,
        ) {
            let mut screen = loaded();
            for key in keys {
                screen.handle_key(key);
                while let Some(action) = screen.poll_action() {
                    if let Action::Send(request, _) = action {
                        let change = request.clone();
                        screen.handle_response(&change, Err("no".to_string()));
                    }
                }
                let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
                let cursor = paint(&mut screen, TerminalStyle::default(), &mut buffer);
                prop_assert!(cursor.is_none_or(|at| at.x < width && at.y < height));
                let rows = screen.table.rows(&screen.view);
                prop_assert_eq!(screen.at(&rows).is_some(), !rows.is_empty());
            }
        }
    }
}

/// A screen with a program without a contract.
fn with_program(started: u64) -> Screen {
    let mut screen = loaded();
    screen.lists_programs = true;
    let program = netnice_api::ProgramDoc {
        pid: 900,
        started,
        up_rate: u64::MAX / 4,
        ..Default::default()
    };
    screen.table.update_programs(netnice_api::ProgramsDoc {
        at_ns: 1,
        list: vec![program],
        ..Default::default()
    });
    screen.selected = Some("pid:900".into());
    screen
}

#[test]
fn programs_are_requested_with_each_table_while_they_are_listed() {
    let mut screen = loaded();
    screen.lists_programs = true;
    screen.handle_time(at(1000));
    let sent = actions(&mut screen);
    assert!(
        matches!(sent[0], Action::Send(Request::Programs(_), None)),
        "{sent:?}"
    );
    let Action::Send(request, _) = &sent[0] else {
        unreachable!();
    };
    // If the daemon cannot count, the reason is shown once and only targets are listed.
    // So it is if the user's time is used up.
    for refusal in [
        Response::failed("no BTF".to_string()),
        Response::not_admitted("quota".to_string()),
    ] {
        answer(&mut screen, request, refusal);
        assert!(screen.status.is_error && !screen.lists_programs);
        types(&mut screen, "a");
        assert!(screen.lists_programs);
    }
}

#[test]
fn a_key_shows_remote_hosts_in_place_of_connections() {
    let mut screen = with_program(77);
    types(&mut screen, "n");
    let open = |screen: &Screen| screen.open.as_ref().map(|(name, _)| name.clone());
    assert_eq!(open(&screen).as_deref(), Some("pid:900"));
    assert!(screen.shows_hosts);
    types(&mut screen, "n");
    assert!(!screen.shows_hosts && open(&screen).is_some());
    types(&mut screen, "n\n");
    assert!(open(&screen).is_none(), "Enter closes the list");
}

#[test]
fn a_slow_table_does_not_let_the_counting_end() {
    let mut screen = Screen::new(Nanos::from_secs(60));
    screen.lists_programs = true;
    screen.handle_time(at(0));
    for action in actions(&mut screen) {
        if let Action::Send(request @ Request::Programs(_), None) = action {
            answer(
                &mut screen,
                &request,
                Response::Programs(Default::default()),
            );
        }
    }
    assert_eq!(screen.poll_timeout(), Some(at(10_000)));
}

#[test]
fn a_key_limits_or_reserves_for_the_process_that_was_in_the_list() {
    for (keys, change) in [
        ("u4mbit\n", "up 4mbit"),
        ("m1mbit on eth0\n", "min 1mbit on eth0"),
    ] {
        let mut screen = with_program(77);
        types(&mut screen, keys);
        let set = Set {
            target: "pid:900".into(),
            change: Some(change.into()),
            ..Set::default()
        };
        let process = Until {
            pid: 900,
            started: 77,
        };
        let expected = [Action::SendTo(Request::Set(set), process)];
        assert_eq!(actions(&mut screen), expected, "{keys}");
    }
    let mut screen = with_program(77);
    types(&mut screen, "\n");
    let connections = Connections {
        target: "pid:900".into(),
        own: true,
    };
    let expected = [Action::Send(Request::Connections(connections), None)];
    assert_eq!(actions(&mut screen), expected);
}

use netnice_api::{
    Clear, ClearWhat, Connections, ConnectionsDoc, Done, Failed, Refused, RefusedBy, Request,
    Response, Set, Traffic, WatchDoc, Watched,
};
use netnice_core::units::{Instant, Nanos};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::{Mode, Order, Screen};

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
        links: Vec::new(),
        targets: vec![target("name:b", 1), target("pid:1", 3), target("pid:2", 2)],
    }
}

fn orders(screen: &mut Screen) -> Vec<Order> {
    std::iter::from_fn(|| screen.poll_order()).collect()
}

fn answer(screen: &mut Screen, request: &Request, response: Response) {
    screen.handle_answer(request, Ok(response));
}

/// A screen after its first answer.
fn looked() -> Screen {
    let mut screen = Screen::new(Nanos::from_secs(1));
    screen.handle_time(at(0));
    let asked = orders(&mut screen);
    let [
        Order::Ask(request @ Request::Watch(_), None),
        Order::Ask(Request::History(_), None),
    ] = asked.as_slice()
    else {
        panic!("it does not look: {asked:?}");
    };
    answer(&mut screen, request, Response::Watched(doc()));
    screen
}

fn selected(screen: &Screen) -> &str {
    screen.selected.as_deref().unwrap_or_default()
}

#[test]
fn it_looks_again_when_it_is_time_and_never_twice_at_once() {
    let mut screen = looked();
    assert_eq!(screen.poll_timeout(), Some(at(1000)));
    screen.handle_time(at(999));
    assert!(orders(&mut screen).is_empty());
    screen.handle_time(at(1000));
    assert_eq!(orders(&mut screen).len(), 1);
    // The daemon is slow: the screen sends no second request.
    screen.handle_time(at(9000));
    assert!(orders(&mut screen).is_empty());
    answer(
        &mut screen,
        &super::look(Nanos::from_secs(1)),
        Response::Watched(doc()),
    );
    screen.handle_time(at(9000));
    assert_eq!(orders(&mut screen).len(), 1);
    answer(
        &mut screen,
        &super::look(Nanos::from_secs(1)),
        Response::Watched(doc()),
    );
    assert_eq!(
        screen.poll_timeout(),
        Some(at(10_000)),
        "what was missed is not made up for"
    );
}

#[test]
fn a_pause_ends_looking_until_it_ends() {
    let mut screen = looked();
    types(&mut screen, "p");
    assert_eq!(screen.poll_timeout(), None);
    screen.handle_time(at(60_000));
    assert!(orders(&mut screen).is_empty());
    types(&mut screen, "p");
    screen.handle_time(at(60_000));
    assert_eq!(orders(&mut screen).len(), 1);
}

#[test]
fn the_selection_moves_and_stays_with_its_target() {
    let mut screen = looked();
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
        &super::look(Nanos::from_secs(1)),
        Response::Watched(less),
    );
    assert_eq!(selected(&screen), "pid:1");
}

#[test]
fn a_limit_is_changed_by_the_request_that_set_makes() {
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
        let mut screen = looked();
        types(&mut screen, keys);
        let set = Set {
            target: target.into(),
            change: Some(change.into()),
            ..Set::default()
        };
        assert_eq!(
            orders(&mut screen),
            [Order::Ask(Request::Set(set), pid)],
            "{keys}"
        );
        assert_eq!(screen.mode, Mode::Table);
    }
}

#[test]
fn what_is_no_limit_is_told_and_can_be_mended() {
    let mut screen = looked();
    types(&mut screen, "u8mbps\n");
    assert!(orders(&mut screen).is_empty());
    assert!(
        screen.news.bad && screen.news.text.contains("mbps"),
        "{:?}",
        screen.news
    );
    assert!(matches!(screen.mode, Mode::Prompt(..)), "it can be mended");
    for _ in 0..3 {
        screen.handle_key(key(KeyCode::Backspace));
    }
    types(&mut screen, "bit\n");
    assert_eq!(orders(&mut screen).len(), 1);
    types(&mut screen, "u\n");
    assert!(screen.news.bad, "nothing is no rate");
    screen.handle_key(key(KeyCode::Esc));
    assert_eq!(screen.mode, Mode::Table);
    assert!(orders(&mut screen).is_empty());
}

#[test]
fn what_the_daemon_says_to_a_change_is_shown() {
    let mut screen = looked();
    types(&mut screen, "u8mbit\n");
    let asked = orders(&mut screen);
    let [Order::Ask(request, _)] = asked.as_slice() else {
        panic!("{asked:?}");
    };
    let refused = Refused {
        by: RefusedBy::Permission,
        text: "process 1 belongs to root,\n  not to you".into(),
    };
    answer(&mut screen, request, Response::Refused(refused));
    assert!(screen.news.bad);
    assert_eq!(screen.news.text, "process 1 belongs to root,; not to you");
    let done = Done {
        target: Some("pid:1".into()),
        contract: Some("up 8mbit".into()),
        effective: Some("up 4mbit".into()),
        ..Done::default()
    };
    answer(&mut screen, request, Response::Done(done));
    assert!(!screen.news.bad);
    assert!(
        screen.news.text.contains("8 Mbit/s"),
        "{}",
        screen.news.text
    );
    assert!(
        screen.news.text.contains("holds: up 4 Mbit/s"),
        "{}",
        screen.news.text
    );
    assert_eq!(
        screen.poll_timeout(),
        Some(at(0)),
        "the table is looked at at once"
    );
}

#[test]
fn a_contract_is_taken_back_only_after_a_yes() {
    let cleared = Order::Ask(
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
        let mut screen = looked();
        types(&mut screen, keys);
        assert_eq!(orders(&mut screen), expected, "{keys}");
    }
}

#[test]
fn connections_are_asked_for_while_they_are_open() {
    let mut screen = looked();
    let request = Request::Connections(Connections {
        target: "pid:1".into(),
    });
    types(&mut screen, "\n");
    assert_eq!(orders(&mut screen), [Order::Ask(request.clone(), None)]);
    let doc = ConnectionsDoc {
        target: "pid:1".into(),
        ..ConnectionsDoc::default()
    };
    answer(&mut screen, &request, Response::Connections(doc.clone()));
    assert!(
        screen
            .open
            .as_ref()
            .is_some_and(|(_, peers)| peers.is_some())
    );
    screen.handle_time(at(1000));
    assert_eq!(orders(&mut screen).len(), 2, "with each look");
    // A late answer about another target is ignored.
    types(&mut screen, "j\n");
    answer(&mut screen, &request, Response::Connections(doc));
    assert_eq!(
        screen
            .open
            .as_ref()
            .map(|(name, peers)| (name.as_str(), peers.is_some())),
        Some(("pid:2", false))
    );
    types(&mut screen, "\n");
    assert_eq!(screen.open, None);
}

#[test]
fn no_daemon_is_told_until_there_is_one_again() {
    let mut screen = looked();
    screen.handle_time(at(1000));
    let request = super::look(Nanos::from_secs(1));
    screen.handle_answer(
        &request,
        Err(format!("{}nobody; trying again", super::LOST)),
    );
    assert!(screen.news.bad);
    assert_eq!(screen.poll_timeout(), Some(at(2000)));
    answer(&mut screen, &request, Response::Watched(doc()));
    assert_eq!(screen.news.text, "");
    let failed = Failed {
        text: "it cannot be read".into(),
        bad_usage: false,
    };
    answer(&mut screen, &request, Response::Failed(failed));
    assert_eq!(screen.news.text, "it cannot be read");
}

#[test]
fn a_filter_is_applied_while_it_is_typed_and_given_up_by_escape() {
    let mut screen = looked();
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
fn leaving_and_suspending_are_orders() {
    for (event, order) in [
        (key(KeyCode::Char('q')), Order::Quit),
        (control('c'), Order::Quit),
        (control('z'), Order::Suspend),
        (control('l'), Order::Redraw),
    ] {
        let mut screen = looked();
        screen.handle_key(event);
        assert_eq!(orders(&mut screen), [order]);
    }
    let mut screen = looked();
    types(&mut screen, "?q");
    assert!(orders(&mut screen).is_empty(), "any key ends the help");
}

/// After any keys in any order a target can be selected and the screen can be drawn.
mod any_keys {
    use proptest::prelude::*;
    use ratatui::buffer::Buffer;
    use ratatui::layout::Rect;

    use super::*;
    use crate::top::draw::{Looks, paint};

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
        fn keep_the_screen_whole(
            keys in prop::collection::vec(any_key(), 0..60),
            width in 1..120_u16,
            height in 1..40_u16,
        ) {
            let mut screen = looked();
            for key in keys {
                screen.handle_key(key);
                while let Some(order) = screen.poll_order() {
                    if let Order::Ask(request, _) = order {
                        let change = request.clone();
                        screen.handle_answer(&change, Err("no".to_string()));
                    }
                }
                let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
                let cursor = paint(&mut screen, Looks::default(), &mut buffer);
                prop_assert!(cursor.is_none_or(|at| at.x < width && at.y < height));
                let rows = screen.table.rows(&screen.view);
                prop_assert_eq!(screen.at(&rows).is_some(), !rows.is_empty());
            }
        }
    }
}

use std::time::Duration;

use netnice_cases::cases;
use proptest::prelude::*;

use super::waiting::MOST_WAITING;
use super::*;
use crate::header::{Options, Timestamps};

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn start() -> Instant {
    Instant::from_nanos(7_000_000_000)
}

fn server() -> SocketAddr {
    "10.0.0.1:80".parse().unwrap()
}

fn client(port: u16) -> SocketAddr {
    SocketAddr::new("10.0.0.2".parse().unwrap(), port)
}

fn listener(backlog: usize) -> Endpoint {
    let mut endpoint = Endpoint::new(server(), [7; 16]);
    endpoint.listen(backlog, Config::default());
    endpoint
}

/// An endpoint with one connection to the server.
fn opening(now: Instant, port: u16) -> (Endpoint, ConnectionId) {
    let mut endpoint = Endpoint::new(client(port), [9; 16]);
    let id = endpoint.connect(now, server(), Config::default()).unwrap();
    (endpoint, id)
}

/// All segments that an endpoint sends now. The driver sends them at once.
fn outputs(now: Instant, endpoint: &mut Endpoint) -> Vec<(SocketAddr, Header, u32)> {
    let mut outputs = Vec::new();
    while let Some((id, to, transmit)) = endpoint.poll_transmit(now) {
        if let (Some(id), Some(token)) = (id, transmit.token) {
            endpoint.handle_departures(id, &[token], now);
        }
        let length = transmit.payload.map_or(0, |payload| payload.length);
        outputs.push((to, transmit.header, length));
    }
    outputs
}

/// A client and the server with an accepted connection between them.
fn connected(now: Instant, server: &mut Endpoint, port: u16) -> (Endpoint, [ConnectionId; 2]) {
    let (mut client, id) = opening(now, port);
    exchange(now, &mut client, server);
    let (accepted, remote) = server.accept().unwrap();
    assert_eq!(remote, client.local());
    (client, [id, accepted])
}

/// Passes segments between a client and the server until neither sends any.
fn exchange(now: Instant, client: &mut Endpoint, server: &mut Endpoint) {
    for _ in 0..20 {
        let mut quiet = true;
        let mut pass = |from: &mut Endpoint, to: &mut Endpoint| {
            for (_, header, length) in outputs(now, from) {
                quiet = false;
                let payload = (length > 0).then_some(Slice {
                    handle: Handle(999),
                    offset: 0,
                    length,
                });
                to.handle_segment(now, from.local(), &header, payload, false);
            }
        };
        pass(client, server);
        pass(server, client);
        if quiet {
            return;
        }
    }
    panic!("the endpoints do not come to rest");
}

#[test]
fn a_listener_accepts_and_forgets() {
    let now = start();
    let mut server = listener(8);
    let (mut client, [id, accepted]) = connected(now, &mut server, 1000);
    assert_eq!(client.connection(id).unwrap().state(), State::Established);
    client.abandon(now, id);
    exchange(now, &mut client, &mut server);
    assert_eq!(
        server.connection(accepted).unwrap().state(),
        State::CloseWait
    );
    server.abandon(now, accepted);
    exchange(now, &mut client, &mut server);
    assert!(
        server.is_empty(),
        "the end that closed second forgets at once"
    );
    assert_eq!((client.len(), client.waiting()), (0, 1));
    let later = now + Duration::from_secs(61);
    client.handle_timeout(later);
    assert!(outputs(later, &mut client).is_empty());
    assert!(client.is_empty());
    assert_eq!((client.poll_timeout(), server.poll_timeout()), (None, None));
}

/// What the program did not read before the peer's reset must not keep its buffers for ever.
#[test]
fn buffers_of_a_reset_connection_are_released_although_nothing_was_read() {
    for accepts in [true, false] {
        let now = start();
        let mut server = listener(8);
        let (mut client, id) = opening(now, 1000);
        exchange(now, &mut client, &mut server);
        let accepted = accepts.then(|| server.accept().unwrap().0);
        let length = 100;
        client.update(id, |one| one.write(Handle(1), length).unwrap());
        let sent = outputs(now, &mut client);
        let payload = |length| Slice {
            handle: Handle(77),
            offset: 0,
            length,
        };
        let [(_, data, length)] = &sent[..] else {
            panic!("{sent:?}");
        };
        let stored = payload(*length);
        assert!(server.handle_segment(now, client.local(), data, Some(stored), false));
        client.update(id, Connection::abort);
        for (_, reset, _) in outputs(now, &mut client) {
            server.handle_segment(now, client.local(), &reset, None, false);
        }
        match accepted {
            Some(id) => server.abandon(now, id),
            None => server.stop_listening(),
        }
        outputs(now, &mut server);
        let released: Vec<_> = std::iter::from_fn(|| server.poll_released()).collect();
        assert_eq!(released, [Handle(77)], "accepted: {accepts}");
        assert!(server.is_empty());
    }
}

#[test]
fn segments_of_no_connection_are_reset() {
    let now = start();
    let mut endpoint = Endpoint::new(server(), [7; 16]);
    let mut header = Header {
        source: 1000,
        destination: 80,
        seq: Seq(100),
        ack: Seq(5000),
        flags: Flags::ACK,
        ..Header::default()
    };
    endpoint.handle_segment(now, client(1000), &header, None, false);
    header.flags = Flags::SYN;
    endpoint.handle_segment(now, client(1000), &header, None, false);
    header.flags = Flags::RST;
    endpoint.handle_segment(now, client(1000), &header, None, false);
    let sent = outputs(now, &mut endpoint);
    let resets: Vec<_> = sent
        .iter()
        .map(|(_, reset, _)| (reset.flags, reset.seq, reset.ack))
        .collect();
    let with_ack = Flags::RST | Flags::ACK;
    assert_eq!(
        resets,
        [
            (Flags::RST, Seq(5000), Seq(0)),
            (with_ack, Seq(0), Seq(101))
        ]
    );
}

#[test]
fn resets_are_limited_in_rate() {
    let now = start();
    let mut endpoint = listener(4);
    let header = Header {
        flags: Flags::ACK,
        ..Header::default()
    };
    let mut sent = 0;
    for _ in 0..3000 {
        endpoint.handle_segment(now, client(1000), &header, None, false);
        sent += outputs(now, &mut endpoint).len();
    }
    assert_eq!(sent, RESETS_PER_SECOND as usize);
    assert_eq!(endpoint.counters().resets_saved, 2000);
}

#[test]
fn a_flood_of_syns_takes_no_memory_and_honest_peers_get_in() {
    let now = start();
    let mut server = listener(16);
    for port in 0..5000 {
        let (mut forged, _) = opening(now, 10_000 + port);
        for (_, syn, _) in outputs(now, &mut forged) {
            server.handle_segment(now, forged.local(), &syn, None, false);
        }
        outputs(now, &mut server);
    }
    assert_eq!(server.len(), 8, "half of the backlog is incomplete");
    assert_eq!(server.counters().cookies_sent, 4992);
    let (mut honest, id) = opening(now, 1000);
    exchange(now, &mut honest, &mut server);
    assert_eq!(server.counters().cookies_accepted, 1);
    let (accepted, _) = server.accept().unwrap();
    let (ours, theirs) = (
        honest.connection(id).unwrap(),
        server.connection(accepted).unwrap(),
    );
    assert_eq!(
        (ours.state(), theirs.state()),
        (State::Established, State::Established)
    );
    // The cookie kept what the SYN offered: the window is scaled, and SACK is in use.
    assert_eq!(theirs.mss(), ours.mss());
    honest.update(id, |connection| connection.write(Handle(1), 100).unwrap());
    exchange(now, &mut honest, &mut server);
    assert_eq!(server.connection(accepted).unwrap().readable(), 100);
}

#[test]
fn a_guessed_or_old_cookie_opens_nothing() {
    let now = start();
    let mut server = listener(1);
    // One incomplete connection fills half of the backlog.
    let (mut other, _) = opening(now, 999);
    let (_, syn, _) = outputs(now, &mut other)[0];
    server.handle_segment(now, other.local(), &syn, None, false);
    outputs(now, &mut server);
    let (mut peer, _) = opening(now, 1000);
    let (_, syn, _) = outputs(now, &mut peer)[0];
    server.handle_segment(now, peer.local(), &syn, None, false);
    let (_, answer, _) = outputs(now, &mut server)[0];
    let last = Header {
        source: 1000,
        destination: 80,
        seq: syn.seq.add(1),
        ack: answer.seq.add(1),
        flags: Flags::ACK,
        options: Options {
            timestamps: answer.options.timestamps.map(|answer| Timestamps {
                value: 1,
                echo: answer.value,
            }),
            ..Options::default()
        },
        ..Header::default()
    };
    for (why, ack, at) in [
        ("guessed", last.ack.add(1), now),
        (
            "after two minutes",
            last.ack,
            now + Duration::from_secs(121),
        ),
    ] {
        let guessed = Header { ack, ..last };
        server.handle_segment(at, peer.local(), &guessed, None, false);
        let sent = outputs(now, &mut server);
        assert!(
            sent.iter()
                .any(|(_, header, _)| header.flags.has(Flags::RST)),
            "{why}"
        );
    }
    assert_eq!(server.counters().cookies_accepted, 0);
    server.handle_segment(now, peer.local(), &last, None, false);
    assert_eq!(server.counters().cookies_accepted, 1);
}

#[test]
fn a_full_backlog_does_not_answer() {
    let now = start();
    let mut server = listener(2);
    let mut peers: Vec<_> = (0..3).map(|port| opening(now, 1000 + port)).collect();
    for (peer, _) in &mut peers {
        exchange(now, peer, &mut server);
    }
    let states: Vec<_> = peers
        .iter()
        .map(|(peer, id)| peer.connection(*id).unwrap().state())
        .collect();
    assert_eq!(
        states,
        [State::Established, State::Established, State::SynSent]
    );
    assert_eq!(server.counters().backlog_full, 1);
    server.accept().unwrap();
    // The peer's SYN is sent again after a second.
    let later = now + ms(1000);
    let (peer, id) = &mut peers[2];
    peer.handle_timeout(later);
    exchange(later, peer, &mut server);
    assert_eq!(peer.connection(*id).unwrap().state(), State::Established);
}

#[test]
fn connections_in_time_wait_take_bounded_memory() {
    let now = start();
    let mut server = listener(4);
    for port in 0..MOST_WAITING as u16 + 100 {
        let (mut peer, [id, accepted]) = connected(now, &mut server, 1000 + port);
        server.abandon(now, accepted);
        exchange(now, &mut peer, &mut server);
        peer.abandon(now, id);
        exchange(now, &mut peer, &mut server);
    }
    assert_eq!((server.len(), server.waiting()), (0, MOST_WAITING));
    assert_eq!(server.counters().forgotten, 100);
    // All are forgotten in the end.
    server.handle_timeout(now + Duration::from_secs(61));
    outputs(now, &mut server);
    assert!(server.is_empty());
}

#[test]
fn a_new_connection_replaces_one_in_time_wait() {
    let now = start();
    let mut server = listener(4);
    let (mut peer, [id, accepted]) = connected(now, &mut server, 1000);
    server.abandon(now, accepted);
    exchange(now, &mut peer, &mut server);
    peer.abandon(now, id);
    exchange(now, &mut peer, &mut server);
    assert_eq!((server.len(), server.waiting()), (0, 1));
    // The same port again: the clock of sequence numbers has gone on.
    let later = now + ms(100);
    let (mut again, id) = opening(later, 1000);
    exchange(later, &mut again, &mut server);
    assert_eq!(again.connection(id).unwrap().state(), State::Established);
    assert_eq!((server.len(), server.waiting()), (1, 0));
}

#[test]
fn a_retransmitted_fin_is_acknowledged_in_time_wait_and_restarts_it() {
    let now = start();
    let mut server = listener(4);
    let (mut peer, [id, accepted]) = connected(now, &mut server, 1000);
    server.abandon(now, accepted);
    exchange(now, &mut peer, &mut server);
    peer.update(id, Connection::shut_down);
    let (_, fin, _) = outputs(now, &mut peer)[0];
    server.handle_segment(now, peer.local(), &fin, None, false);
    let first = outputs(now, &mut server);
    assert_eq!(server.waiting(), 1);
    let later = now + Duration::from_secs(30);
    server.handle_segment(later, peer.local(), &fin, None, false);
    let again = outputs(later, &mut server);
    let said = |sent: &[(SocketAddr, Header, u32)]| {
        let one = &sent[0].1;
        (sent.len(), one.flags, one.seq, one.ack, one.window)
    };
    assert_eq!(said(&again), said(&first));
    assert_eq!(
        server.poll_timeout(),
        Some(later + Config::default().time_wait)
    );
    // What is older than the connection opens nothing.
    let old = Header {
        flags: Flags::SYN,
        seq: fin.seq.add(u32::MAX - 1000),
        ..Header::default()
    };
    server.handle_segment(later, peer.local(), &old, None, false);
    assert_eq!((server.len(), server.waiting()), (0, 1));
}

#[test]
fn an_entry_in_time_wait_takes_little_memory() {
    let bytes = std::mem::size_of::<crate::connection::time_wait::TimeWait>();
    assert!(bytes <= 112, "{bytes} bytes");
}

/// A segment near a connection: sequence and acknowledgement numbers and the timestamp relative to
/// the next expected ones, flags, length of the payload, and the time since the last segment.
type NearSegment = (i32, i32, Option<i32>, u8, u32, u64);

fn near_segment() -> impl Strategy<Value = NearSegment> {
    let number = || prop_oneof![4 => -3..3_i32, 2 => -70_000..70_000_i32, 1 => any::<i32>()];
    let timestamp = prop_oneof![1 => Just(None), 5 => number().prop_map(Some)];
    let flags = prop_oneof![
        3 => Just(Flags::ACK.0),
        2 => Just(Flags::ACK.0 | Flags::FIN.0),
        1 => any::<u8>()
    ];
    let length = prop_oneof![Just(0), 1..100_u32];
    (number(), number(), timestamp, flags, length, 0..1000_u64)
}

proptest! {
    #![proptest_config(cases(256))]

    /// Random segments get the same answers from a connection in TIME_WAIT and from its small
    /// entry, which end at the same time too.
    #[test]
    fn an_entry_in_time_wait_answers_as_the_connection_does(
        timestamps in any::<bool>(),
        window_scaling in any::<bool>(),
        segments in proptest::collection::vec(near_segment(), 1..40),
    ) {
        let mut now = start();
        let mut server = listener(4);
        let config = Config { timestamps, window_scaling, ..Config::default() };
        let mut peer = Endpoint::new(client(1000), [9; 16]);
        let id = peer.connect(now, super::tests::server(), config).unwrap();
        exchange(now, &mut peer, &mut server);
        let (accepted, _) = server.accept().unwrap();
        // The program keeps the connection, so it stays whole.
        server.update(accepted, Connection::shut_down);
        exchange(now, &mut peer, &mut server);
        peer.abandon(now, id);
        exchange(now, &mut peer, &mut server);
        let whole = server.connection(accepted).unwrap();
        let mut entry = whole.time_wait().unwrap();
        let (expected, own) = whole.edges();
        let clock = whole.peer_clock();
        for (seq, ack, timestamp, flags, length, millis) in segments {
            now = now + ms(millis);
            let header = Header {
                source: 1000,
                destination: 80,
                seq: expected.add(seq as u32),
                ack: own.add(ack as u32),
                flags: Flags(flags),
                options: Options {
                    timestamps: timestamp.map(|value| Timestamps {
                        value: clock.wrapping_add(value as u32),
                        echo: 0,
                    }),
                    ..Options::default()
                },
                ..Header::default()
            };
            let payload = (length > 0).then_some(Slice { handle: Handle(9), offset: 0, length });
            let kept = server.update(accepted, |connection| {
                connection.handle_segment(now, &header, payload, false)
            });
            prop_assert_eq!(kept, Some(false));
            let whole: Vec<_> = outputs(now, &mut server)
                .into_iter()
                .map(|(_, mut header, _)| {
                    header.options.sack = Default::default();
                    header
                })
                .collect();
            let answers = entry.handle_segment(now, &header, length);
            let small: Vec<_> = answers
                .then(|| entry.acknowledgement(now, 80, 1000))
                .into_iter()
                .collect();
            prop_assert_eq!(small, whole, "{:?}", header);
            let connection = server.connection(accepted).unwrap();
            let until = connection.time_wait().map(|entry| entry.until());
            prop_assert_eq!(until, Some(entry.until()));
        }
    }
}

#[test]
fn a_replaced_connection_stays_while_the_program_has_it() {
    let now = start();
    let mut server = listener(4);
    let (mut peer, [id, accepted]) = connected(now, &mut server, 1000);
    server.update(accepted, Connection::shut_down);
    exchange(now, &mut peer, &mut server);
    peer.abandon(now, id);
    exchange(now, &mut peer, &mut server);
    let later = now + ms(100);
    let (mut again, id) = opening(later, 1000);
    exchange(later, &mut again, &mut server);
    assert_eq!(again.connection(id).unwrap().state(), State::Established);
    let (new, _) = server.accept().unwrap();
    assert_ne!(new, accepted, "the program would use the new connection");
    assert_eq!(server.connection(accepted).unwrap().state(), State::Closed);
    // Closing the old one does not end the new one.
    server.abandon(later, accepted);
    exchange(later, &mut again, &mut server);
    assert_eq!(server.len(), 1);
    assert_eq!(server.connection(new).unwrap().state(), State::Established);
}

#[test]
fn an_old_connection_challenges_a_new_one_after_a_restart() {
    // RFC 9293, section 3.5.1: the peer has forgotten the connection, and opens it again.
    let now = start();
    let mut server = listener(4);
    let (mut peer, _) = opening(now, 1000);
    exchange(now, &mut peer, &mut server);
    let later = now + ms(100);
    let (mut again, id) = opening(later, 1000);
    exchange(later, &mut again, &mut server);
    // The challenge's acknowledgement is impossible for the new one, so it resets the old one.
    assert_eq!(server.counters().accepted, 1);
    let later = later + ms(1000);
    again.handle_timeout(later);
    exchange(later, &mut again, &mut server);
    assert_eq!(again.connection(id).unwrap().state(), State::Established);
}

#[test]
fn sequence_numbers_go_on_behind_earlier_ones_of_the_same_key() {
    let number = |key: u8, millis: u64, port: u16| {
        let mut endpoint = Endpoint::new(client(port), [key; 16]);
        let now = start() + ms(millis);
        endpoint.connect(now, server(), Config::default()).unwrap();
        outputs(now, &mut endpoint)[0].1.seq
    };
    let first = number(1, 0, 1000);
    assert_eq!(number(1, 1000, 1000).distance_from(first), 250_000);
    assert_ne!(number(1, 0, 1001).distance_from(first).unsigned_abs(), 0);
    assert_ne!(number(2, 0, 1000), first);
}

#[test]
fn a_connection_takes_little_memory() {
    let bytes = std::mem::size_of::<Entry>();
    assert!(bytes <= 1536, "{bytes} bytes");
}

#[test]
fn a_buffer_of_which_a_part_was_sent_takes_no_more() {
    let now = start();
    let mut server = Endpoint::new(server(), [7; 16]);
    let small = Config {
        room: 700,
        largest_window: 700,
        ..Config::default()
    };
    server.listen(4, small);
    let (mut client, [id, _]) = connected(now, &mut server, 1000);
    let written = client.update(id, |connection| connection.write(Handle(1), 1400));
    assert_eq!(written, Some(Ok(())));
    // The window takes half of the buffer.
    let sent: Vec<u32> = outputs(now, &mut client)
        .iter()
        .map(|sent| sent.2)
        .collect();
    assert_eq!(sent, [700]);
    let connection = client.connection(id).unwrap();
    assert_eq!(connection.unacknowledged(), 1400);
    assert_eq!(connection.last_unsent(), None);
}

//! The lab's bad wire, with real packets. Needs root.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use netnice_lab::process::EVENT_TIMEOUT;
use netnice_lab::traffic::real_programs::{self, Pings};
use netnice_lab::world::bad_wire::{Impairments, WireCounts};
use netnice_lab::world::{self, Family, World};

/// Pings the server so many times.
fn ping(world: &World, count: u32) -> Pings {
    let (client, to) = (world.client(), world.server().address(Family::V4));
    let every = Duration::from_millis(10);
    let mut pings = real_programs::ping(client, to, every, count).expect("ping");
    let lines = pings.remaining_lines(EVENT_TIMEOUT);
    Pings::parse(lines.iter().map(String::as_str))
}

#[test]
fn a_bad_wire_delays_loses_and_duplicates() {
    world::begin().expect("a clean machine");
    let there = Impairments {
        delay: Duration::from_millis(15),
        loss: 0.3,
        seed: 11,
        ..Impairments::default()
    };
    let back = Impairments {
        delay: Duration::from_millis(5),
        duplicate: 1.0,
        seed: 12,
        ..Impairments::default()
    };
    let mut world = World::bad_wire([there, back]).expect("a world");
    let times = ping(&world, 60).times();
    let [there, back] = world.end_bad_wire().expect("a wire that ran");
    let least = times.iter().copied().fold(f64::INFINITY, f64::min);
    assert!((20.0..40.0).contains(&least), "{least} ms, {times:?}");
    assert!((5..40).contains(&there.lost), "{there:?}");
    for counts in [there, back] {
        let WireCounts {
            offered,
            duplicated,
            lost,
            dropped,
            delivered,
            ..
        } = counts;
        assert!(offered > 0 && offered + duplicated >= delivered + lost + dropped);
    }
    assert_eq!(back.duplicated, back.offered);
    assert!(ping(&world, 2).times().is_empty(), "a wire that has ended");
}

#[test]
fn tcp_carries_every_byte_over_a_bad_wire() {
    world::begin().expect("a clean machine");
    let bad = |seed| Impairments {
        loss: 0.01,
        damage: 0.02,
        duplicate: 0.01,
        reorder: 0.02,
        reorder_by: Duration::from_millis(2),
        seed,
        ..Impairments::default()
    };
    let mut world = World::bad_wire([bad(1), bad(2)]).expect("a world");
    let sent: Vec<u8> = (0..3_000_000_u32).map(|at| (at ^ at >> 9) as u8).collect();
    let (from, to) = (world.client().ns.handle(), world.server().ns.handle());
    let received = thread::scope(|scope| {
        let listener = scope.spawn(move || {
            to.enter_thread().expect("the server's namespace");
            TcpListener::bind("10.77.0.2:7000").expect("a listener")
        });
        let listener = listener.join().expect("a listener");
        let received = scope.spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            stream.set_read_timeout(Some(EVENT_TIMEOUT)).expect("set");
            let mut received = Vec::new();
            let _ = stream.read_to_end(&mut received);
            received
        });
        let bytes = &sent;
        scope.spawn(move || {
            from.enter_thread().expect("the client's namespace");
            let mut stream = TcpStream::connect("10.77.0.2:7000").expect("a connection");
            stream.write_all(bytes).expect("written");
            stream.shutdown(Shutdown::Write).expect("ended");
            let _ = stream.read(&mut [0]);
        });
        received.join().expect("received")
    });
    let [there, _] = world.end_bad_wire().expect("a wire that ran");
    assert!(received == sent, "{} bytes, {there:?}", received.len());
    let all = [there.lost, there.damaged, there.duplicated];
    assert!(all.iter().all(|count| *count > 0), "{there:?}");
}

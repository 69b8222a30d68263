//! Tests of connections that move to another endpoint.

use std::time::Duration;

use super::super::*;

fn start() -> Instant {
    Instant::from_nanos(7_000_000_000)
}

fn server() -> SocketAddr {
    "10.0.0.1:80".parse().unwrap()
}

/// The segments that an endpoint sends now, which leave at once.
fn outputs(now: Instant, endpoint: &mut Endpoint) -> Vec<Transmit> {
    let mut outputs = Vec::new();
    while let Some((id, _, transmit)) = endpoint.poll_transmit(now) {
        if let (Some(id), Some(token)) = (id, transmit.token) {
            endpoint.handle_departures(id, &[token], now);
        }
        outputs.push(transmit);
    }
    outputs
}

/// Passes everything from one endpoint to the other. A payload arrives in the buffer 9.
fn pass(now: Instant, from: &mut Endpoint, to: &mut Endpoint) {
    for transmit in outputs(now, from) {
        let payload = transmit.payload.map(|payload| Slice {
            handle: Handle(9),
            offset: 54,
            ..payload
        });
        to.handle_segment(now, from.local(), &transmit.header, payload, false);
    }
}

fn released(endpoint: &mut Endpoint) -> Vec<Handle> {
    let mut released: Vec<Handle> = std::iter::from_fn(|| endpoint.poll_released()).collect();
    released.sort_unstable();
    released
}

#[test]
fn a_connection_moves_with_its_timers_and_gets_other_buffers() {
    let now = start();
    let mut listener = Endpoint::new(server(), [7; 16]);
    listener.listen(4, Config::default());
    let mut client = Endpoint::new("10.0.0.2:1000".parse().unwrap(), [9; 16]);
    let own = client.connect(now, server(), Config::default()).unwrap();
    for _ in 0..2 {
        pass(now, &mut client, &mut listener);
        pass(now, &mut listener, &mut client);
    }
    let id = listener.find(client.local()).unwrap();
    assert!(
        listener.take_out(id).is_none(),
        "the program has it not yet"
    );
    assert_eq!(listener.accept(), Some((id, client.local())));
    // Two segments that are lost on the way, and one that was received.
    listener.update(id, |connection| {
        connection.set_no_delay(true);
        connection.write(Handle(3), 1000).unwrap();
        connection.write(Handle(4), 100).unwrap();
    });
    let lost = outputs(now, &mut listener);
    assert_eq!(lost.len(), 2);
    client.update(own, |connection| connection.write(Handle(1), 50).unwrap());
    pass(now, &mut client, &mut listener);
    released(&mut listener);
    let due = listener.poll_timeout();
    let mut connection = listener.take_out(id).unwrap();
    assert!(listener.take_out(id).is_none());
    assert_eq!((listener.find(client.local()), listener.len()), (None, 0));
    assert_ne!(listener.poll_timeout(), due);
    let handles =
        |parts: Vec<Slice>| -> Vec<u32> { parts.iter().map(|part| part.handle.0).collect() };
    assert_eq!(handles(connection.written_parts().collect()), [3, 4]);
    assert_eq!(handles(connection.received_parts().collect()), [9]);
    connection.rename_buffers(|old| Handle(old.0 + 100));
    // As large as the scale of the handshake permits, and no smaller than what was promised.
    connection.set_largest_window(u32::MAX);
    let largest = connection.config().largest_window;
    assert!((6 << 20..12 << 20).contains(&largest), "{largest}");
    connection.set_time_wait(Duration::from_secs(1));
    let mut own_flow = Endpoint::new(server(), [7; 16]);
    let id = own_flow.adopt(connection, client.local());
    assert_eq!(own_flow.poll_timeout(), due, "its timers go on");
    let later = due.unwrap();
    own_flow.handle_timeout(later);
    let again = outputs(later, &mut own_flow);
    let seqs = |segments: &[Transmit]| -> Vec<Seq> {
        let with_payload = segments.iter().filter(|one| one.payload.is_some());
        with_payload.map(|one| one.header.seq).collect()
    };
    assert!(!seqs(&again).is_empty() && seqs(&again).iter().all(|seq| seqs(&lost).contains(seq)));
    let buffers = again.iter().filter_map(|one| one.payload);
    assert!(buffers.into_iter().all(|payload| payload.handle.0 > 100));
    // Everything arrives in the end, and all buffers come back.
    let mut now = later;
    while own_flow.connection(id).unwrap().unacknowledged() > 0 {
        now = now + Duration::from_millis(300);
        own_flow.handle_timeout(now);
        pass(now, &mut own_flow, &mut client);
        pass(now, &mut client, &mut own_flow);
        assert!(now < later + Duration::from_secs(60));
    }
    own_flow.update(id, |connection| connection.consume(50));
    assert_eq!(
        released(&mut own_flow),
        [103, 104, 109].map(Handle).to_vec()
    );
    assert_eq!(client.connection(own).unwrap().readable(), 1100);
}

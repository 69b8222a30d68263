//! The sink of a channel, and both ends together.

use netnice_core::admission::timing::Work;

use super::*;
use crate::{End, LONGEST_QUEUE};

const TEXT: &str = "mmax=300B,rmax=100/s,bmax=2,deadline=20ms,processing=5ms";

fn packet(message: u64, (part, count): (u16, u16), payload: usize) -> Vec<u8> {
    let header = PacketHeader {
        channel: id(1),
        message,
        part,
        count,
    };
    let mut packet = header.encode().to_vec();
    packet.resize(PacketHeader::LENGTH + payload, message as u8);
    packet
}

fn receiver(when_full: WhenFull) -> (TestExecutor, HandlerId) {
    let mut all = executor(Nanos(0));
    let options = ChannelOptions {
        when_full,
        ..real_time(1, TEXT)
    };
    let receiver = all.open_receiver(options, us(0)).expect("opens");
    (all, receiver)
}

#[test]
fn messages_pass_from_source_to_sink_with_all_stages() {
    let stages = || -> Vec<Box<dyn Stage>> {
        let cost = Nanos::from_micros(1);
        vec![
            Box::new(Checksum::new(cost)),
            Box::new(Encryption::new(&[7; 32], cost)),
        ]
    };
    let options = || ChannelOptions {
        stages: stages(),
        ..real_time(1, TEXT)
    };
    let mut all = executor(Nanos(0));
    let source = all.open_sender(options(), us(0)).expect("opens");
    let sink = all.open_receiver(options(), us(0)).expect("opens");
    let mut kept = Kept::default();
    for (number, length) in [0, 1, 79, 80, 81, 299, 300].into_iter().enumerate() {
        let now = us(number as u64 * 30_000);
        let body: Vec<u8> = (0..length).map(|at| (at + number) as u8).collect();
        all.send(source, body.clone(), now).expect("accepted");
        let now = finish(&mut all, now, &mut kept);
        // 80 bytes beside header, checksum and tag.
        assert_eq!(kept.packets.len(), length.div_ceil(80).max(1));
        let mut packets: Vec<Vec<u8>> = kept.packets.drain(..).map(|(_, bytes)| bytes).collect();
        packets.reverse();
        all.handle_sent(source, packets.len() as u64, now)
            .expect("open");
        let mut forged = packets[0].clone();
        *forged.last_mut().expect("bytes") ^= 1;
        packets.insert(1, forged);
        for packet in packets {
            assert_eq!(all.handle_packet(packet, now), Ok(sink));
        }
        // A forged packet takes time of its own channel.
        let now = finish(&mut all, now, &mut kept);
        let message = all.receive(sink, now).expect("complete");
        assert_eq!((message.message, message.body), (number as u64, body));
        assert_eq!(all.receive(sink, now), None);
    }
    let counts = all.counts(sink).expect("open");
    assert_eq!((counts.messages, counts.corrupted), (7, 7));
}

#[test]
fn packets_that_belong_to_no_receiver_are_refused_and_counted() {
    let (mut all, receiver) = receiver(WhenFull::Wait);
    let mut foreign = packet(0, (0, 1), 3);
    foreign[16] = 9;
    let mut unknown = [1; 16];
    unknown[0] = 9;
    let refused = all.handle_packet(foreign, us(0));
    assert_eq!(refused, Err(PacketRefusal::Foreign(ChannelId(unknown))));
    assert!(matches!(
        all.handle_packet(vec![1; 31], us(0)),
        Err(PacketRefusal::Header(HeaderError::Short { length: 31 }))
    ));
    // A sender with the same channel is another handler.
    let sender = all.open_sender(real_time(1, TEXT), us(0)).expect("opens");
    assert_eq!(all.handle_packet(packet(0, (0, 1), 3), us(0)), Ok(receiver));
    assert_eq!(all.receive(sender, us(0)), None);
    assert_eq!(all.foreign_and_invalid(), (1, 1));
    all.close(receiver, us(0)).expect("open");
    assert!(all.handle_packet(packet(0, (0, 1), 3), us(0)).is_err());
}

#[test]
fn a_full_message_queue_stops_the_handler_and_then_the_packet_queue_overflows() {
    let (mut all, receiver) = receiver(WhenFull::Wait);
    let mut kept = Kept::default();
    let (mut accepted, mut now) = (0, 0);
    for number in 0..20 {
        now = 10_000 * number;
        let packet = all.handle_packet(packet(number, (0, 1), 3), us(now));
        accepted += u64::from(packet.is_ok());
        run(&mut all, us(now), &mut kept);
    }
    // Room for two messages, and for the packets of three.
    assert_eq!(accepted, 2 + 9);
    let state = all.state(receiver, us(now));
    assert_eq!(state, Ok(HandlerState::MessageQueueFull));
    let counts = all.counts(receiver).expect("open");
    assert_eq!((counts.messages, counts.overflowed), (2, 20 - accepted));
    let mut got = Vec::new();
    while let Some(message) = all.receive(receiver, us(now)) {
        got.push(message.message);
        now += 10_000;
        now = finish(&mut all, us(now), &mut kept).0.div_ceil(1_000);
    }
    assert_eq!(got, (0..accepted).collect::<Vec<u64>>());
}

#[test]
fn with_drop_a_full_message_queue_loses_the_newest() {
    let (mut all, receiver) = receiver(WhenFull::Drop);
    let mut kept = Kept::default();
    for number in 0..5 {
        let now = us(10_000 * number);
        all.handle_packet(packet(number, (0, 1), 3), now)
            .expect("queued");
        run(&mut all, now, &mut kept);
    }
    let counts = all.counts(receiver).expect("open");
    assert_eq!((counts.messages, counts.dropped), (2, 3));
    let numbers = std::iter::from_fn(|| all.receive(receiver, us(99_000)));
    assert_eq!(numbers.map(|one| one.message).collect::<Vec<u64>>(), [0, 1]);
}

/// A peer sends as many packets as it can, each as the beginning of a new message, on its channel.
/// Another channel of the program keeps its deadlines, and the memory is bounded.
#[test]
fn a_flood_on_one_channel_delays_no_other() {
    let mut all = executor(Nanos(0));
    let flooded = all.open_receiver(real_time(1, TEXT), us(0)).expect("opens");
    let good = real_time(
        2,
        "mmax=400B,rmax=1000/s,bmax=1,deadline=900us,processing=110us",
    );
    let good = all.open_sender(good, us(0)).expect("opens");
    let mut kept = Kept::default();
    let (mut now, mut sent, mut next) = (0, 0, 0);
    let mut number = 0;
    while now < 100_000 {
        for _ in 0..20 {
            let _ = all.handle_packet(packet(number, (0, 3), 100), us(now));
            number += 1;
        }
        if now >= next {
            all.send(good, vec![0; 400], us(next)).expect("accepted");
            sent += 1;
            next += 1_000;
        }
        let before = kept.packets.len();
        match all.step(us(now), &mut kept) {
            Step::Ran(_) => now += 10,
            Step::Wait(at) => now = next.min(at.0.div_ceil(1_000)).max(now + 1),
            Step::Idle => now = next,
        }
        if kept.packets.len() > before {
            let (packet, _) = kept.packets.last().expect("a packet");
            // One block of the other handler, and four packets of its own; the sends are noticed
            // between two packets.
            assert!(
                us(now) <= Instant(packet.logical.0 + 100_000),
                "{packet:?} at {now} us"
            );
            all.handle_sent(good, 1, us(now)).expect("open");
        }
    }
    let counts = all.counts(flooded).expect("open");
    assert_eq!((kept.packets.len(), counts.messages), (4 * sent, 0));
    // No more than Rmax: one message in 10 ms. Each has one packet, which begins it.
    assert!((9..=12).contains(&counts.packets), "{counts:?}");
    let incomplete = all.messages_waiting(flooded).expect("open");
    assert!(counts.overflowed > 5_000 && incomplete <= 4, "{counts:?}");
}

/// A packet is found 5 ms after the step before, in which it may have arrived. It is due before a
/// message that arrived 2 ms after that step, with the same time for processing.
#[test]
fn a_packet_counts_as_arrived_at_the_step_before() {
    for idle in [false, true] {
        let (mut all, receiver) = receiver(WhenFull::Wait);
        let sender = all.open_sender(real_time(2, TEXT), us(0)).expect("opens");
        let bulk = all
            .open_sender(best_effort(3, WhenFull::Wait), us(0))
            .expect("opens");
        let mut kept = Kept::default();
        if idle {
            assert_eq!(all.step(us(0), &mut kept), Step::Idle);
            // The caller had to wake at once.
            all.set_unread_since(us(0));
        } else {
            all.send(bulk, vec![0], us(0)).expect("accepted");
            all.step(us(0), &mut kept);
        }
        all.send(sender, vec![0], us(2_000)).expect("accepted");
        all.handle_packet(packet(0, (0, 1), 3), us(5_000))
            .expect("queued");
        let first = all.step(us(5_000), &mut kept);
        assert!(
            matches!(first, Step::Ran(ran) if ran.handler == receiver),
            "{idle} {first:?}"
        );
        run(&mut all, us(5_000), &mut kept);
        // After a step that only waited, a packet arrives when it is found.
        all.send(sender, vec![0], us(17_000)).expect("accepted");
        all.handle_packet(packet(1, (0, 1), 3), us(18_000))
            .expect("queued");
        let first = all.step(us(18_000), &mut kept);
        assert!(
            matches!(first, Step::Ran(ran) if ran.handler == sender),
            "{idle} {first:?}"
        );
    }
}

/// Regression: after a stop of a host before it, a sink kept all later messages back of a source
/// that sends exactly Rmax, and lost those that came at once.
#[test]
fn a_sink_that_catches_up_is_soon_in_time_again_and_loses_nothing() {
    let behind = |catches_up: Nanos| {
        let mut all = executor(Nanos(0));
        let options = ChannelOptions {
            catches_up,
            ..real_time(1, TEXT)
        };
        let receiver = all.open_receiver(options, us(0)).expect("opens");
        let mut kept = Kept::default();
        let mut last = None;
        for ms in 0..=2_000 {
            // Messages 10 ms apart; those of the first 120 ms come at once.
            let now = us(ms * 1_000);
            let come = match ms {
                120 => 1..13,
                0 | 130.. if ms % 10 == 0 => ms / 10..ms / 10 + 1,
                _ => 0..0,
            };
            for number in come {
                // A full queue is counted.
                let _ = all.handle_packet(packet(number, (0, 1), 3), now);
            }
            run(&mut all, now, &mut kept);
            while let Some(message) = all.receive(receiver, now) {
                last = Some((message.message, ms - 10 * message.message));
            }
        }
        let lost = all.counts(receiver).expect("open").overflowed;
        (last.expect("messages"), lost)
    };
    let ((_, late), lost) = behind(Nanos(0));
    assert!(late >= 20 && lost >= 1, "{late} ms, {lost} lost");
    let (last, lost) = behind(Nanos::from_millis(120));
    assert!(
        matches!(last, (200, 0..=1)) && lost == 0,
        "{last:?}, {lost}"
    );
}

#[test]
fn a_channel_that_catches_up_is_served_an_eighth_faster() {
    let mut options = real_time(1, TEXT);
    let rates = |options: &ChannelOptions| {
        let on_link = options.on_link(&settings()).expect("valid");
        let Ok(Some(Work::Handler(handler))) = options.work(&settings(), End::Source) else {
            panic!("a handler");
        };
        let on_link = on_link.expect("real-time").rmax().get();
        (on_link, handler.channel.rmax().get())
    };
    assert_eq!(rates(&options), (100, 100));
    options.catches_up = Nanos(1);
    assert_eq!(rates(&options), (113, 113));
}

#[test]
fn room_after_a_stop_makes_no_queue_too_long() {
    let lengths = |rmax, catches_up| {
        let text = format!("mmax=100B,rmax={rmax}/s,bmax=2,deadline=700ms,processing=600ms");
        let options = ChannelOptions {
            catches_up,
            ..real_time(1, &text)
        };
        options.lengths(&settings(), End::Sink).expect("it fits").0
    };
    let second = Nanos::from_secs(1);
    assert_eq!([lengths(100, Nanos(0)), lengths(100, second)], [62, 162]);
    assert_eq!(lengths(10_000, second), 6_002 + 1_024);
    assert_eq!(lengths(109_000, Nanos(0)), 65_402);
    assert_eq!(lengths(109_000, second), LONGEST_QUEUE);
}

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use netnice_core::admission::timing::Processor;
use netnice_core::contract::{Channel, MessageRate, Overload, Weight};
use netnice_core::sched::EarlyOrder;
use netnice_core::units::{Bytes, Nanos};
use netnice_stack::StackError;
use netnice_stack::udp::{Buffers, UdpOptions};

use super::*;
use crate::{
    ChannelClass, ChannelId, Checksum, Encryption, ListenerOptions, OpenError, Receiver,
    SendRefusal, Sender, SenderOptions, WhenFull,
};

#[path = "../../../stack/src/fake_daemon.rs"]
mod fake_daemon;

use fake_daemon::{DaemonCommand, FakeDaemon};

const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));
const LARGEST: u64 = 1_400;

fn settings() -> ExecutorSettings {
    ExecutorSettings {
        processor: Processor {
            switch: Nanos(0),
            cache_miss: Nanos(0),
            first: Nanos::from_micros(2),
            later: Nanos::from_micros(1),
            link_scheduling: Nanos(0),
            block: NonZeroU32::new(4).expect("above zero"),
            largest: Bytes(LARGEST),
            leftover: Nanos(0),
        },
        waking: Nanos(0),
        horizon: Nanos(0),
        early: EarlyOrder::default(),
    }
}

struct World {
    daemon: FakeDaemon,
    thread: HandlerThread,
}

impl World {
    fn new(name: &str) -> World {
        let daemon = FakeDaemon::new(name);
        let options = HandlerThreadOptions::new(settings());
        let thread = HandlerThread::attach(&daemon.dir(), &options).expect("attached");
        World { daemon, thread }
    }

    fn listener(&self) -> crate::Listener {
        let at = "10.78.0.1:7000".parse().expect("an address");
        self.thread
            .listen(&ListenerOptions::at(at))
            .expect("a port")
    }

    fn sender(&self, to: SocketAddr, channel: ChannelOptions) -> Sender {
        let options = SenderOptions::to(to, channel);
        self.thread.open(options).expect("a sender")
    }
}

fn id(number: u8) -> ChannelId {
    ChannelId([number; 16])
}

/// Messages of up to 20 KiB, 100 a second, 2 at once.
fn real_time(number: u8, overload: Overload) -> ChannelOptions {
    let rate = MessageRate::new(100).expect("in range");
    let channel = Channel::new(Bytes(20 << 10), rate, 2, Nanos::from_millis(50));
    let channel = channel.and_then(|channel| channel.with_processing(Nanos::from_millis(20)));
    let channel = channel.expect("valid").with_overload(overload);
    ChannelOptions::new(id(number), ChannelClass::RealTime(channel))
}

fn best_effort(number: u8, queue: u32, when_full: WhenFull) -> ChannelOptions {
    let class = ChannelClass::BestEffort {
        weight: Weight::new(100).expect("in range"),
        mmax: Bytes(20 << 10),
        queue,
        when_full,
    };
    ChannelOptions::new(id(number), class)
}

/// A message whose content depends on its number.
fn message(number: u64) -> Vec<u8> {
    let length = number * 7919 % (20 << 10);
    (0..length).map(|at| (at ^ (number * 31)) as u8).collect()
}

fn expect_messages(receiver: &mut Receiver, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let received = receiver.receive(PATIENCE).expect("a message");
        assert_eq!(received.message, number, "{:?}", receiver.counts());
        assert_eq!(received.body, message(number), "message {number}");
    }
}

#[test]
fn messages_arrive_whole_and_in_order_on_all_kinds_of_channels() {
    let world = World::new("whole");
    let listener = world.listener();
    let stages = |options: ChannelOptions| {
        let key = [options.id.0[0]; 32];
        let checksum = Box::new(Checksum::new(Nanos(500)));
        ChannelOptions {
            stages: vec![checksum, Box::new(Encryption::new(&key, Nanos(2_000)))],
            ..options
        }
    };
    let kinds = || {
        [
            real_time(1, Overload::Block),
            real_time(2, Overload::Space),
            stages(real_time(3, Overload::Decay)),
            best_effort(4, 4, WhenFull::Wait),
            stages(best_effort(5, 4, WhenFull::Wait)),
        ]
    };
    // Nothing is lost if the receiving threads, or that of the handlers, wait for a processor.
    let patient = |mut options: ChannelOptions| {
        options.queue = Some(200);
        match &mut options.class {
            ChannelClass::BestEffort { queue, .. } => *queue = 200,
            // The packet queue has room for what comes within the deadline.
            ChannelClass::RealTime(own) => {
                let long = own.resized(own.mmax(), own.rmax(), Nanos::from_secs(10));
                *own = long.expect("valid");
            }
        }
        options
    };
    let receivers = kinds().map(|options| listener.open(patient(options)).expect("a receiver"));
    let senders = kinds().map(|options| world.sender(listener.local(), options));
    let threads = std::iter::zip(senders, receivers).map(|(mut sender, mut receiver)| {
        let sends = std::thread::spawn(move || {
            for number in 0..100 {
                let accepted = sender.send(message(number), PATIENCE).expect("accepted");
                assert_eq!(accepted.message, number);
            }
            sender.drain(PATIENCE).expect("all has left");
            let counts = sender.counts();
            assert_eq!((counts.accepted, counts.left), (100, 100));
            assert_eq!((counts.dropped, counts.unsent), (0, 0));
            counts.packets
        });
        let receives = std::thread::spawn(move || {
            expect_messages(&mut receiver, 0..100);
            receiver.counts()
        });
        (sends, receives)
    });
    let mut packets = 0;
    for (sends, receives) in threads.collect::<Vec<_>>() {
        let sent = sends.join().expect("sent");
        let counts = receives
            .join()
            .unwrap_or_else(|_| panic!("{:?}", listener.counts()));
        assert_eq!((counts.messages, counts.packets), (100, sent));
        packets += sent;
    }
    let counts = listener.counts();
    assert_eq!(
        (counts.packets, counts.foreign, counts.invalid),
        (packets, 0, 0)
    );
}

#[test]
fn the_flow_has_the_contract_of_the_channel_with_all_headers() {
    let world = World::new("contract");
    let sender = world.sender(
        "10.78.0.1:7000".parse().expect("an address"),
        real_time(1, Overload::Block),
    );
    // 20,480 bytes in 15 parts of up to 1,368, with 32 + 42 bytes of headers each.
    let mmax = 20_480 + 15 * 74;
    let contract = format!(
        "channel mmax={mmax}B,rmax=100/s,bmax=2,deadline=50ms,processing=20ms,overload=decay"
    );
    assert_eq!(sender.contract(), contract);
}

#[test]
fn a_full_channel_makes_the_program_wait_or_drops_as_its_policy_says() {
    let world = World::new("policies");
    let to = "10.78.0.1:7000".parse().expect("an address");
    // One message a second: the second one is early for a long time.
    let slow = |number, overload| {
        let rate = MessageRate::new(1).expect("in range");
        let channel = Channel::new(Bytes(100), rate, 1, Nanos::from_millis(10));
        let channel = channel.and_then(|channel| channel.with_processing(Nanos::from_millis(4)));
        let channel = channel.expect("valid").with_overload(overload);
        ChannelOptions::new(id(number), ChannelClass::RealTime(channel))
    };
    let mut blocks = world.sender(to, slow(1, Overload::Block));
    let mut drops = world.sender(to, slow(2, Overload::Drop));
    let mut spaces = world.sender(to, slow(3, Overload::Space));
    for sender in [&mut blocks, &mut drops, &mut spaces] {
        sender.try_send(*b"first").expect("room");
        sender.drain(PATIENCE).expect("it leaves");
    }
    // These two queue the early message, and have no room for another one.
    blocks.try_send(*b"second").expect("room");
    drops.try_send(*b"second").expect("room");
    let (body, error) = blocks.try_send(*b"third").expect_err("no room");
    assert!(matches!(error, ChannelError::WouldBlock), "{error}");
    assert_eq!((&*body, blocks.retry_at()), (&b"third"[..], None));
    let (_, error) = drops.try_send(*b"third").expect_err("no room");
    let refused = matches!(
        error,
        ChannelError::Refused(SendRefusal::Dropped { most: 1 })
    );
    assert!(refused, "{error}");
    assert_eq!(drops.counts().dropped, 1);
    // This one says when the message's time comes.
    let before = now();
    let (_, error) = spaces.try_send(*b"second").expect_err("early");
    assert!(matches!(error, ChannelError::WouldBlock), "{error}");
    let retry = spaces.retry_at().expect("time alone has to pass");
    assert!(
        retry > before.0 && retry < before.0 + 1_000_000_000,
        "{retry}"
    );
    let short = Some(Duration::from_millis(1));
    let error = spaces.send(*b"second", short).expect_err("early");
    assert!(matches!(error, ChannelError::WouldBlock), "{error}");
    spaces.send(*b"second", PATIENCE).expect("its time comes");
    assert!(now().0 >= retry);
    blocks
        .send(*b"third", PATIENCE)
        .expect("the second one leaves");
    let (_, error) = blocks.try_send([0; 101]).expect_err("too long");
    let text = "a message of 101B is longer than the 100B that the channel accepts";
    assert_eq!(error.to_string(), text);
}

#[test]
fn a_receiver_that_does_not_read_loses_messages_of_its_own_channel_only() {
    let world = World::new("slow");
    let listener = world.listener();
    let dropping = ChannelOptions {
        when_full: WhenFull::Drop,
        ..best_effort(1, 2, WhenFull::Wait)
    };
    let mut slow = listener
        .open(best_effort(2, 2, WhenFull::Wait))
        .expect("a receiver");
    let mut drops = listener.open(dropping).expect("a receiver");
    let mut reads = listener
        .open(best_effort(3, 2, WhenFull::Wait))
        .expect("a receiver");
    let mut senders = [1, 2, 3]
        .map(|number| world.sender(listener.local(), best_effort(number, 2, WhenFull::Wait)));
    for number in 0..50 {
        for sender in &mut senders {
            sender.send(message(number), PATIENCE).expect("accepted");
        }
        expect_messages(&mut reads, number..number + 1);
    }
    for sender in &mut senders {
        sender.drain(PATIENCE).expect("all has left");
    }
    // The first two are kept. The slow one's packets wait, and those beyond its queue are dropped.
    expect_messages(&mut slow, 0..2);
    expect_messages(&mut drops, 0..2);
    senders[0].send(message(50), PATIENCE).expect("accepted");
    let last = drops.receive(PATIENCE).expect("there is room again");
    assert_eq!(last.message, 50);
    assert_eq!(drops.counts().dropped, 48);
    assert!(
        slow.receive(PATIENCE).is_ok(),
        "its handler goes on when there is room"
    );
    let counts = slow.counts();
    assert!(counts.overflowed > 0 && counts.dropped == 0, "{counts:?}");
    assert_eq!(reads.counts().overflowed, 0);
}

#[test]
fn a_dropped_sender_sends_what_was_queued() {
    let world = World::new("dropped");
    let listener = world.listener();
    let options = || real_time(1, Overload::Decay);
    let mut receiver = listener.open(options()).expect("a receiver");
    let mut sender = world.sender(listener.local(), options());
    for number in 0..20 {
        sender.send(message(number), PATIENCE).expect("accepted");
    }
    drop(sender);
    expect_messages(&mut receiver, 0..20);
    // The identifier is free when all has left.
    let again = std::iter::repeat_with(|| {
        std::thread::sleep(Duration::from_millis(5));
        world
            .thread
            .open(SenderOptions::to(listener.local(), options()))
    });
    let again = again.take(2_000).find_map(Result::ok);
    assert!(again.is_some(), "the channel can be opened again");
}

#[test]
fn the_last_handle_waits_until_all_has_left() {
    let world = World::new("last");
    let to = "10.78.0.1:7000".parse().expect("an address");
    let mut sender = world.sender(to, real_time(1, Overload::Decay));
    for number in 0..20 {
        sender.send(message(number), PATIENCE).expect("accepted");
    }
    let shared = sender.shared();
    drop(world.thread);
    drop(sender);
    assert_eq!(shared.left.load(Ordering::Acquire), 20);
    let submitted = shared.submitted.load(Ordering::Acquire);
    assert_eq!(shared.returned.load(Ordering::Acquire), submitted);
}

#[test]
fn packets_of_no_channel_are_counted_and_dropped() {
    let world = World::new("foreign");
    let listener = world.listener();
    let mut receiver = listener
        .open(real_time(1, Overload::Block))
        .expect("a receiver");
    let mut good = world.sender(listener.local(), real_time(1, Overload::Block));
    let mut other = world.sender(listener.local(), real_time(2, Overload::Decay));
    let program = &world.thread.owner.program;
    let options = UdpOptions {
        buffers: Buffers {
            receiving: 0,
            ..Buffers::default()
        },
        ..UdpOptions::to(listener.local())
    };
    let mut raw = program.open_udp(&options).expect("a flow");
    for number in 0..10 {
        other.send(vec![1; 100], PATIENCE).expect("accepted");
        raw.try_send(b"no packet of a channel").expect("sent");
        good.send(message(number), PATIENCE).expect("accepted");
    }
    expect_messages(&mut receiver, 0..10);
    other.drain(PATIENCE).expect("all has left");
    let counts = std::iter::repeat_with(|| {
        std::thread::sleep(Duration::from_millis(5));
        listener.counts()
    });
    let counted = |counts: &crate::ListenerCounts| (counts.foreign, counts.invalid) == (10, 10);
    assert!(
        counts.take(2_000).any(|counts| counted(&counts)),
        "{:?}",
        listener.counts()
    );
}

#[test]
fn a_flow_that_ends_ends_its_channel_and_no_other() {
    let world = World::new("ends");
    let to: SocketAddr = "10.78.0.1:7000".parse().expect("an address");
    let mut first = world.sender(to, real_time(1, Overload::Block));
    let mut second = world.sender(to, real_time(2, Overload::Block));
    first.send(message(1), PATIENCE).expect("accepted");
    second.send(message(1), PATIENCE).expect("accepted");
    // The first flow of the program.
    world.daemon.send(DaemonCommand::CloseSilently(1));
    let error = std::iter::repeat_with(|| first.send(message(1), PATIENCE)).find_map(Result::err);
    let error = error.expect("an error");
    assert!(matches!(error, ChannelError::Ended(_)), "{error}");
    let error = first.drain(PATIENCE).err();
    assert!(
        matches!(error, None | Some(ChannelError::Ended(_))),
        "{error:?}"
    );
    second.send(message(2), PATIENCE).expect("accepted");
    second.drain(PATIENCE).expect("it leaves");
}

#[test]
fn a_departure_says_when_a_message_left_or_that_a_part_of_it_did_not() {
    let world = World::new("departures");
    let to: SocketAddr = "10.78.0.1:7000".parse().expect("an address");
    let mut sender = world.sender(to, real_time(1, Overload::Decay));
    let before = now();
    let accepted = sender.send(message(1), PATIENCE).expect("accepted");
    sender.drain(PATIENCE).expect("it leaves");
    let departure = sender.departure().expect("one");
    let left = departure.left.expect("it has left");
    assert!(before < left && left < now(), "{departure:?}");
    assert_eq!(departure.deadline, accepted.deadline);
    let laxity = departure.deadline.expect("real time").0 as i64 - left.0 as i64;
    assert_eq!(departure.laxity(), Some(laxity));
    assert_eq!(sender.departure(), None);
    // The path becomes narrower than the packets of the channel, except for short last ones.
    let narrow = netnice_api::direct::FlowNotification::Mtu { flow: 1, mtu: 900 };
    world.daemon.send(DaemonCommand::Notify(narrow));
    let mut broken = None;
    for number in 2..200 {
        sender.send(vec![0; 1_500], PATIENCE).expect("accepted");
        sender.drain(PATIENCE).expect("what can leave leaves");
        let departure = sender.departure().expect("one for each message");
        assert_eq!(departure.message, number - 1);
        if departure.left.is_none() {
            broken = Some(departure);
            break;
        }
    }
    let broken = broken.expect("a message of which a packet did not leave");
    assert_eq!(broken.laxity(), None);
    let counts = sender.counts();
    assert_eq!((counts.unsent, counts.late), (1, 0), "{counts:?}");
    // A message without any packet that fits.
    sender.send(vec![0; 1_300], PATIENCE).expect("accepted");
    sender.drain(PATIENCE).expect("nothing is under way");
    let departure = sender.departure().expect("one");
    assert_eq!((departure.left, sender.counts().unsent), (None, 2));
}

#[test]
fn what_cannot_be_opened_leaves_nothing_open() {
    let world = World::new("refused");
    let to: SocketAddr = "10.78.0.1:7000".parse().expect("an address");
    let refused = |options: SenderOptions| {
        let error = world.thread.open(options).err().expect("refused");
        error.to_string()
    };
    let flow = SenderOptions {
        link: Some("slice 100ms/100ms".into()),
        ..SenderOptions::to(to, best_effort(1, 4, WhenFull::Wait))
    };
    assert_eq!(refused(flow), "the link carries 10 ms of each 20 ms");
    let none = SenderOptions::to(to, best_effort(1, 0, WhenFull::Wait));
    assert_eq!(refused(none), OpenError::NoQueue.to_string());
    let many = SenderOptions::to(to, best_effort(1, 1_200, WhenFull::Wait));
    assert_eq!(
        refused(many),
        "the channel needs 18000 packet buffers, and a flow has at most 16384: shorten its \
         deadline, or its messages"
    );
    let sender = world.sender(to, best_effort(1, 4, WhenFull::Wait));
    let twice = SenderOptions::to(to, best_effort(1, 4, WhenFull::Wait));
    assert_eq!(refused(twice), OpenError::Exists(id(1)).to_string());
    drop(sender);
    let long = ChannelOptions {
        queue: Some(70_000),
        ..real_time(2, Overload::Block)
    };
    let listener = world.listener();
    let error = listener.open(long).err().expect("refused");
    assert_eq!(
        error.to_string(),
        OpenError::LongQueue { queue: 70_000 }.to_string()
    );
}

#[test]
fn a_thread_refuses_more_handlers_and_longer_packets_than_fit() {
    let daemon = FakeDaemon::new("limits");
    let mut options = HandlerThreadOptions::new(settings());
    options.handlers = 2;
    let thread = HandlerThread::attach(&daemon.dir(), &options).expect("attached");
    let at = "10.78.0.1:7000".parse().expect("an address");
    let listener = thread.listen(&ListenerOptions::at(at)).expect("a port");
    let two = [1, 2].map(|number| listener.open(real_time(number, Overload::Block)));
    let error = listener
        .open(real_time(3, Overload::Block))
        .err()
        .expect("refused");
    let text = "the thread has 2 handlers, as many as it was started for";
    assert_eq!(error.to_string(), text);
    drop(two);
    drop((listener, thread));
    let daemon = FakeDaemon::new("narrow");
    let mut options = HandlerThreadOptions::new(settings());
    options.settings.processor.largest = Bytes(1_473);
    let thread = HandlerThread::attach(&daemon.dir(), &options).expect("attached");
    let options = SenderOptions::to(at, real_time(1, Overload::Block));
    let error = thread.open(options).err().expect("refused");
    let text = "the path carries 1472B in one packet, and the channel's packets have up to 1473B";
    assert_eq!(error.to_string(), text);
}

#[test]
fn a_program_with_its_own_event_loop_is_woken() {
    let world = World::new("loop");
    let listener = world.listener();
    let mut receiver = listener
        .open(real_time(1, Overload::Block))
        .expect("a receiver");
    let mut sender = world.sender(listener.local(), real_time(1, Overload::Block));
    assert!(matches!(
        receiver.try_receive(),
        Err(ChannelError::WouldBlock)
    ));
    for number in 0..200 {
        assert!(receiver.arm(), "nothing has come");
        sender.send(message(number), PATIENCE).expect("accepted");
        crate::waker::sleep([std::os::fd::AsFd::as_fd(&receiver)], PATIENCE).expect("woken");
        receiver.disarm();
        let received = receiver.try_receive().expect("a message");
        assert_eq!(received.message, number);
    }
    // A program that has nothing to send sleeps, too: what has left is known after the first look.
    sender.drain(PATIENCE).expect("all have left");
    assert!(!sender.arm(), "messages have left");
    sender.disarm();
    assert!(sender.arm(), "nothing has happened since");
    sender.disarm();
    let no_daemon = RuntimeDir::choose(Some("/nonexistent".into()), None);
    let options = HandlerThreadOptions::new(settings());
    let error = HandlerThread::attach(&no_daemon, &options).err();
    assert!(
        matches!(error, Some(ChannelError::Flow(StackError::Daemon(_)))),
        "{error:?}"
    );
}

//! Random calls of an executor, beside a plain account of what was accepted.

use std::collections::VecDeque;

use netnice_cases::cases;
use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Call {
    Send(usize, usize),
    /// Packets that left.
    Sent(usize, u64),
    Step(u8),
    /// Buffers that the program has; `None` for as many as are wanted.
    Room(Option<usize>),
    Wait(u64),
    Reopen(usize),
    Receive,
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let call = prop_oneof![
        4 => (0_usize..4, 0_usize..700).prop_map(|(at, length)| Call::Send(at, length)),
        3 => (0_usize..4, 0_u64..9).prop_map(|(at, packets)| Call::Sent(at, packets)),
        6 => (1_u8..9).prop_map(Call::Step),
        1 => prop::option::of(0_usize..6).prop_map(Call::Room),
        3 => (1_u64..20_000).prop_map(Call::Wait),
        1 => (0_usize..4).prop_map(Call::Reopen),
        1 => Just(Call::Receive),
    ];
    prop::collection::vec(call, 1..200)
}

/// A sender, and what it accepted and has not submitted yet.
struct Account {
    handler: HandlerId,
    accepted: VecDeque<(u64, Vec<u8>)>,
    /// The next part of the first message.
    part: u16,
    on_link: u64,
}

struct World {
    executor: TestExecutor,
    senders: Vec<Account>,
    sink: HandlerId,
    kept: Kept,
    now: u64,
    /// The number of the last message of the sink.
    received: Option<u64>,
}

fn options(at: usize) -> ChannelOptions {
    let text = [
        "mmax=300B,rmax=100/s,bmax=2,deadline=40ms,processing=25ms",
        "mmax=500B,rmax=300/s,bmax=1,deadline=9ms,processing=2ms,overload=decay",
        "mmax=90B,rmax=50/s,bmax=3,deadline=90ms,processing=50ms,overload=best-effort",
    ];
    match text.get(at) {
        Some(text) => ChannelOptions {
            longest: Some(Bytes(600)),
            ..real_time(at as u8, text)
        },
        None => best_effort(at as u8, WhenFull::Drop),
    }
}

impl World {
    fn new(horizon: Nanos) -> World {
        let mut executor = executor(horizon);
        let open = |at| Account {
            handler: executor.open_sender(options(at), us(0)).expect("opens"),
            accepted: VecDeque::new(),
            part: 0,
            on_link: 0,
        };
        let senders = (0..4).map(open).collect();
        let sink = executor.open_receiver(options(0), us(0)).expect("opens");
        World {
            executor,
            senders,
            sink,
            kept: Kept::default(),
            now: 0,
            received: None,
        }
    }

    fn call(&mut self, call: &Call) {
        let now = us(self.now);
        match call {
            Call::Send(at, length) => {
                let body: Vec<u8> = (0..*length)
                    .map(|byte| (byte + self.now as usize) as u8)
                    .collect();
                let sender = &mut self.senders[*at];
                match self.executor.send(sender.handler, body.clone(), now) {
                    Ok(accepted) => sender.accepted.push_back((accepted.message, body)),
                    Err(error) => assert_eq!(error.body, body),
                }
            }
            Call::Sent(at, packets) => {
                let sender = &mut self.senders[*at];
                let packets = (*packets).min(sender.on_link);
                sender.on_link -= packets;
                let sent = self.executor.handle_sent(sender.handler, packets, now);
                sent.expect("open");
            }
            Call::Step(count) => {
                for _ in 0..*count {
                    self.step();
                }
            }
            Call::Room(room) => self.kept.room = *room,
            Call::Wait(time) => self.now += time,
            Call::Reopen(at) => {
                let sender = &mut self.senders[*at];
                self.executor.close(sender.handler, now).expect("open");
                let again = self.executor.open_sender(options(*at), now);
                *sender = Account {
                    handler: again.expect("opens"),
                    accepted: VecDeque::new(),
                    part: 0,
                    on_link: 0,
                };
            }
            Call::Receive => self.receive(),
        }
        for sender in &self.senders {
            let waiting = self.executor.messages_waiting(sender.handler);
            assert_eq!(waiting, Ok(sender.accepted.len()));
            assert!(sender.on_link <= self.executor.buffers(sender.handler).expect("open"));
        }
    }

    fn receive(&mut self) {
        while let Some(message) = self.executor.receive(self.sink, us(self.now)) {
            assert!(self.received.is_none_or(|last| message.message > last));
            self.received = Some(message.message);
        }
    }

    /// A step. A packet is the next one of its sender, with its bytes; the first sender's packets
    /// come back to the sink.
    fn step(&mut self) -> Step {
        let step = self.executor.step(us(self.now), &mut self.kept);
        let Some((packet, bytes)) = self.kept.packets.pop() else {
            return step;
        };
        self.now += 10;
        let owner = |sender: &Account| sender.handler == packet.handler;
        let at = self
            .senders
            .iter()
            .position(owner)
            .expect("a sender that is open");
        let sender = &mut self.senders[at];
        let (message, body) = sender.accepted.front().expect("a message");
        assert_eq!((packet.message, packet.part), (*message, sender.part));
        let begin = usize::from(sender.part) * 100;
        let part = &body[begin..body.len().min(begin + 100)];
        assert_eq!(&bytes[PacketHeader::LENGTH..], part);
        sender.part += 1;
        sender.on_link += 1;
        if sender.part == packet.count {
            assert!(begin + 100 >= body.len());
            sender.accepted.pop_front();
            sender.part = 0;
        }
        if at == 0 {
            let _ = self.executor.handle_packet(bytes, us(self.now));
        }
        step
    }

    /// Lets all handlers finish: buffers are free, and time goes on.
    fn finish(&mut self) {
        self.kept.room = None;
        loop {
            for at in 0..self.senders.len() {
                self.call(&Call::Sent(at, u64::MAX));
            }
            self.receive();
            match self.step() {
                Step::Ran(_) => {}
                Step::Wait(at) => self.now = self.now.max(at.0.div_ceil(1_000)),
                Step::Idle => return,
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(256))]

    /// Whatever is called, and whenever: every accepted message leaves once, in order, part by part
    /// with its bytes; no more packets than buffers are on the link; nothing is left behind.
    #[test]
    fn every_accepted_message_leaves_once_and_in_order(
        calls in calls(), horizon in prop_oneof![Just(0_u64), Just(30)],
    ) {
        let mut world = World::new(Nanos::from_millis(horizon));
        for call in &calls {
            world.call(call);
        }
        world.finish();
        for sender in &world.senders {
            prop_assert!(sender.accepted.is_empty());
            let state = world.executor.state(sender.handler, us(world.now));
            prop_assert_eq!(state, Ok(HandlerState::NoMessage));
        }
    }
}

use std::net::IpAddr;
use std::num::NonZeroU16;

use netnice_api::channels::HopCounts;
use netnice_channel::{ChannelId, End};
use netnice_core::contract::{Channel, MessageRate};
use netnice_core::units::{Amount, Bytes, Instant, Nanos};

use super::*;
use crate::message::{
    Attempt, ClockAnswer, ClockAsk, Close, Counted, Establish, Established, Hello, HopBound,
    HopReport, Hops, KernelClock, Message, Reason, Refresh, Refusal, Refused, ReportAnswer,
    ReportAsk, ServiceName,
};

mod clock;
mod explain;
mod network;
mod properties;
mod timeouts;
mod transcripts;
mod violation;

fn host(name: &str) -> HostName {
    HostName::new(name).expect("a host name")
}

fn id(number: u8) -> ChannelId {
    ChannelId([number; 16])
}

/// 1,000 bytes at most, 100 messages a second, 2 at once.
fn contract(deadline: Nanos) -> Channel {
    let rate = MessageRate::new(100).expect("a rate");
    Channel::new(Bytes(1_000), rate, 2, deadline).expect("a contract")
}

/// The address of a host: one for each name.
fn address(name: &str) -> IpAddr {
    let number = name.bytes().fold(0_u16, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(u16::from(byte))
    });
    let [high, low] = number.to_be_bytes();
    IpAddr::from([10, 0, high, low])
}

/// The address to which this host sends packets of channels.
fn peer_of(name: &str) -> IpAddr {
    address(&format!("{name}+"))
}

/// The port at which this host receives packets of channels.
fn port(name: &str) -> NonZeroU16 {
    let number = name.bytes().fold(7_000, |sum, byte| sum + u16::from(byte));
    NonZeroU16::new(number).expect("above zero")
}

/// The packets of the channels.
const PACKET: u16 = 532;

fn millis(millis: u64) -> Nanos {
    Nanos::from_millis(millis)
}

/// A channel from this host to the service `camera` at `sink`.
fn request(number: u8, sink: &str, deadline: Nanos) -> Open {
    Open {
        channel: id(number),
        service: ServiceName::new("camera").expect("a service"),
        sink: host(sink),
        sink_address: address(sink),
        contract: contract(deadline),
        packet: PACKET,
    }
}

fn hops(bounds: &[(&str, u64)]) -> Hops {
    let hops = bounds.iter().map(|(name, bound)| HopBound {
        host: host(name),
        bound: millis(*bound),
        unguarded: None,
    });
    Hops::new(hops.collect()).expect("hops")
}

fn establish(number: u8, sink: &str, deadline: u64, bounds: &[(&str, u64)]) -> Message {
    let Open {
        channel,
        service,
        sink,
        sink_address,
        contract,
        packet,
    } = request(number, sink, millis(deadline));
    let hops = hops(bounds);
    let sender = hops.last().expect("a host").host.clone();
    Message::Establish(Establish {
        channel,
        attempt: 0,
        service,
        sink,
        sink_address,
        contract,
        packet,
        from: address(sender.as_str()),
        to: peer_of(sender.as_str()),
        hops,
    })
}

/// `established` as the host `by` sends it.
fn established(number: u8, by: &str, bounds: &[(&str, u64)]) -> Message {
    let (channel, hops) = (id(number), hops(bounds));
    Message::Established(Established {
        channel,
        attempt: 0,
        port: port(by),
        hops,
    })
}

fn refresh(numbers: &[u8]) -> Message {
    let channels = numbers.iter().copied().map(id).collect();
    Message::Refresh(Refresh { channels })
}

/// `close` of attempt 0 of the host that sends it.
fn close(number: u8, by: &str, text: &str) -> Message {
    let (channel, host, reason) = (id(number), host(by), Reason::new(text));
    Message::Close(Close {
        channel,
        attempt: Some(Attempt::Sender(0)),
        host,
        reason,
    })
}

/// `close` of attempt 0 of the host that receives it.
fn close_back(number: u8, by: &str, text: &str) -> Message {
    let mut message = close(number, by, text);
    if let Message::Close(close) = &mut message {
        close.attempt = Some(Attempt::Receiver(0));
    }
    message
}

/// The same message about another attempt than 0.
fn attempt(number: u64, mut message: Message) -> Message {
    match &mut message {
        Message::Establish(one) => one.attempt = number,
        Message::Refused(one) => one.attempt = number,
        Message::Established(one) => one.attempt = number,
        Message::Close(one) => {
            one.attempt = one.attempt.map(|attempt| match attempt {
                Attempt::Sender(_) => Attempt::Sender(number),
                Attempt::Receiver(_) => Attempt::Receiver(number),
            });
        }
        other => panic!("{other:?}"),
    }
    message
}

/// The reply to a refresh with an unknown channel.
fn unknown(number: u8, by: &str) -> Message {
    let (channel, host) = (id(number), host(by));
    let reason = Reason::new("the channel does not exist here, or has ended");
    Message::Close(Close {
        channel,
        attempt: None,
        host,
        reason,
    })
}

fn refusal(by: &str, text: &str, best: Option<u64>) -> Refusal {
    Refusal {
        host: host(by),
        reason: Reason::new(text),
        best_deadline_ns: best.map(|best| millis(best).0),
    }
}

/// One machine, with the time and a record of what it does.
struct Machine {
    machine: Signalling,
    now: Instant,
}

impl Machine {
    fn new(name: &str) -> Machine {
        Machine::with(name, Policy::default())
    }

    fn with(name: &str, policy: Policy) -> Machine {
        let machine = Signalling::new(host(name), policy);
        Machine {
            machine,
            now: Instant(1_000),
        }
    }

    /// A machine with neighbours that have said hello.
    fn beside(name: &str, neighbours: &[&str]) -> Machine {
        let mut machine = Machine::new(name);
        neighbours.iter().for_each(|other| machine.connect(other));
        machine
    }

    fn connect(&mut self, neighbour: &str) {
        let own = self.machine.host().clone();
        let actions = self.take(Event::Connected {
            neighbour: host(neighbour),
        });
        assert_eq!(
            actions,
            [sent(neighbour, Message::Hello(Hello { host: own }))]
        );
        let hello = Message::Hello(Hello {
            host: host(neighbour),
        });
        self.receive(neighbour, hello);
    }

    fn open(&mut self, number: u8, sink: &str, deadline: u64) -> Vec<Action> {
        let opened = self
            .machine
            .open(request(number, sink, millis(deadline)), self.now);
        opened.expect("is tried");
        self.drain()
    }

    fn take(&mut self, event: Event) -> Vec<Action> {
        self.machine.handle(event, self.now);
        self.drain()
    }

    fn receive(&mut self, neighbour: &str, message: Message) -> Vec<Action> {
        let neighbour = host(neighbour);
        self.take(Event::Received { neighbour, message })
    }

    fn held(&mut self, hold: u64, bound: u64, next: Option<&str>) -> Vec<Action> {
        let (hold, bound) = (HoldId(hold), millis(bound));
        let own = self.machine.host().as_str();
        let next = next.map(|next| NextHop {
            host: host(next),
            from: address(own),
            to: peer_of(own),
        });
        self.take(Event::Held {
            hold,
            bound,
            next,
            unguarded: None,
        })
    }

    fn relaxed(&mut self, hold: u64) -> Vec<Action> {
        let hold = HoldId(hold);
        let channel = self.machine.holds.get(&hold);
        let entry = channel.map(|channel| &self.machine.channels[channel]);
        let is_source = entry.is_some_and(|entry| entry.previous().is_none());
        let port = (!is_source).then(|| port(self.machine.host().as_str()));
        self.take(Event::Relaxed { hold, port })
    }

    /// Lets time pass, and calls the machine whenever it asks for it.
    fn wait(&mut self, time: Nanos) -> Vec<Action> {
        let until = self.now.after(time);
        let mut actions = Vec::new();
        while let Some(at) = self.machine.poll_timeout().filter(|at| *at <= until) {
            self.now = at;
            self.machine.handle_timeout(at);
            actions.extend(self.drain());
        }
        self.now = until;
        actions
    }

    fn drain(&mut self) -> Vec<Action> {
        std::iter::from_fn(|| self.machine.poll_action()).collect()
    }

    fn count(&self) -> usize {
        self.machine.channels().count()
    }
}

fn sent(neighbour: &str, message: Message) -> Action {
    let neighbour = host(neighbour);
    Action::Send { neighbour, message }
}

fn release(hold: u64) -> Action {
    Action::Release { hold: HoldId(hold) }
}

fn relax(hold: u64, bound: u64, next: Option<&str>) -> Action {
    let bound = millis(bound);
    Action::Relax {
        hold: HoldId(hold),
        bound,
        port: next.map(port),
    }
}

fn refused(neighbour: &str, number: u8, refusal: Refusal) -> Action {
    let channel = id(number);
    sent(
        neighbour,
        Message::Refused(Refused {
            channel,
            attempt: 0,
            refusal,
        }),
    )
}

/// A relay `r` between `a` and `b`, with channel 1 established by hold 0: 30 ms in three parts.
fn relay() -> Machine {
    let mut relay = Machine::beside("r", &["a", "b"]);
    relay.receive("a", establish(1, "b", 30, &[("a", 4)]));
    relay.held(0, 5, Some("b"));
    relay.receive("b", established(1, "b", &[("a", 9), ("r", 10), ("b", 11)]));
    let actions = relay.relaxed(0);
    let done = established(1, "r", &[("a", 9), ("r", 10), ("b", 11)]);
    assert_eq!(actions, [sent("a", done)]);
    relay
}

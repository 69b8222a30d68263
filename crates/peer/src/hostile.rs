//! Untrusted messages of neighbours, for the tests and for the fuzz target `signalling`.
//! [`outcome_of`] gives messages of two neighbours to a host that carries a channel of two others,
//! and returns what became of the last one.

use std::net::IpAddr;
use std::num::NonZeroU16;

use netnice_api::channels::HopCounts;
use netnice_channel::ChannelId;
use netnice_core::contract::{Channel, MessageRate};
use netnice_core::units::{Bytes, Instant, Nanos};

use crate::message::{
    Counted, Establish, Established, Hello, HopBound, Hops, HostName, LONGEST, Message,
    MessageError, Reason, Refresh, ServiceName, decode,
};
use crate::signalling::{
    Action, ChannelStatus, Event, HELD, HoldId, MOST_OF_NEIGHBOUR, NextHop, Policy, Quota,
    Signalling,
};

/// Takes a sequence of records: a kind in one byte, a length in two bytes (network byte order), and
/// that many bytes. The kind `e` or `f` is the body of a message of that neighbour, `h` the reply
/// of the host that it holds the bound that was asked for last, `u` the same at an unguarded
/// interface, `r` that it has relaxed it, and `t`
/// a second that passes. Every other kind is skipped.
///
/// Returns what became of the last record. A message was invalid: `json`, `version`; it was a
/// `violation`, after which its neighbour connects anew; it was `refused`, about an `unknown`
/// channel, `ignored` or `taken`; the host was asked for a `hold`, to `relax` one or to `count`, a
/// channel was `ended`, the `clock` was told, a question was `answered`. A `reply` of the host, or
/// `time` that passed; `nothing` without a record.
///
/// # Panics
/// If the channel of the other neighbours is touched, or if more is reserved than the quota allows.
pub fn outcome_of(input: &[u8]) -> String {
    let mut world = HostileWorld::new();
    let mut last = "nothing";
    for (kind, body) in records(input) {
        last = world.handle(kind, body).unwrap_or(last);
    }
    last.to_owned()
}

/// The records of a sequence. The last one can be shorter than its length says.
fn records(mut rest: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let ([kind, high, low], behind) = rest.split_first_chunk()?;
        let length = usize::from(u16::from_be_bytes([*high, *low])).min(behind.len());
        let (body, behind) = behind.split_at(length);
        rest = behind;
        Some((*kind, body))
    })
}

/// A host `r` with a channel from `a` to `b`, and two hostile neighbours.
pub(crate) struct HostileWorld {
    machine: Signalling,
    now: Instant,
    /// The good channel, as it was established.
    good: ChannelStatus,
    /// The holds that the host has.
    held: Vec<HoldId>,
    /// The latest hold.
    latest: HoldId,
    /// What a hostile neighbour was asked for last, with its name.
    asked: Option<(HostName, Establish)>,
}

impl HostileWorld {
    pub(crate) fn new() -> HostileWorld {
        let policy = Policy {
            neighbour: QUOTA,
            ..Policy::default()
        };
        let mut machine = Signalling::new(host("r"), policy);
        let now = Instant(1_000_000_000);
        for neighbour in ["a", "b", "e", "f"] {
            connect(&mut machine, neighbour, now);
        }
        let rate = MessageRate::new(50).expect("a rate");
        let contract = Channel::new(Bytes(1_000), rate, 2, Nanos::from_millis(30));
        let establish = Message::Establish(Establish {
            channel: GOOD,
            attempt: 0,
            service: ServiceName::new("camera").expect("a service"),
            sink: host("b"),
            sink_address: address("b"),
            contract: contract.expect("a contract"),
            packet: 532,
            from: address("a"),
            to: address("r"),
            hops: hops(&[("a", 4)]),
        });
        receive(&mut machine, "a", establish, now);
        let (hold, bound) = (HoldId(0), Nanos::from_millis(5));
        let next = Some(next_hop(host("b")));
        let unguarded = None;
        let held = Event::Held {
            hold,
            bound,
            next,
            unguarded,
        };
        machine.handle(held, now);
        let established = Message::Established(Established {
            channel: GOOD,
            attempt: 0,
            port: PORT,
            hops: hops(&[("a", 9), ("r", 10), ("b", 11)]),
        });
        receive(&mut machine, "b", established, now);
        let port = Some(PORT);
        machine.handle(Event::Relaxed { hold, port }, now);
        while machine.poll_action().is_some() {}
        let good = machine.channels().next().expect("the good channel");
        assert!(good.hops.is_some());
        HostileWorld {
            machine,
            now,
            good,
            held: vec![hold],
            latest: hold,
            asked: None,
        }
    }

    /// The neighbour that was asked for a channel last, and the answer by which it establishes it;
    /// `None` if none was asked, or if the bounds are longer than the deadline.
    #[cfg(test)]
    fn answer(&mut self) -> Option<(u8, Message)> {
        let (neighbour, asked) = self.asked.take()?;
        let rest = asked
            .contract
            .deadline()
            .0
            .checked_sub(asked.hops.sum().0)?;
        let mut hops = asked.hops.as_slice().to_vec();
        hops.push(HopBound {
            host: neighbour.clone(),
            bound: Nanos(rest),
            unguarded: None,
        });
        let (channel, hops) = (asked.channel, Hops::new(hops).ok()?);
        let established = Message::Established(Established {
            channel,
            attempt: asked.attempt,
            port: PORT,
            hops,
        });
        Some((neighbour.as_str().as_bytes()[0], established))
    }

    /// Takes one record; `None` for an unknown kind.
    pub(crate) fn handle(&mut self, kind: u8, body: &[u8]) -> Option<&'static str> {
        let outcome = match kind {
            b'e' => self.message("e", body),
            b'f' => self.message("f", body),
            b'h' | b'u' => {
                let hold = self.latest;
                // The host has one route to each neighbour, and none to other hosts.
                let all = self.machine.channels();
                let sink = all
                    .filter(|one| one.hold == hold)
                    .map(|one| one.sink)
                    .next();
                let is_neighbour = |sink: &HostName| matches!(sink.as_str(), "a" | "b" | "e" | "f");
                let next = sink.filter(is_neighbour).map(next_hop);
                let bound = Nanos::from_millis(5);
                let held = Event::Held {
                    hold,
                    bound,
                    next,
                    unguarded: (kind == b'u').then(|| "eth0".parse().expect("a name")),
                };
                self.machine.handle(held, self.now);
                "reply"
            }
            b'r' => {
                let hold = self.latest;
                let port = Some(PORT);
                self.machine.handle(Event::Relaxed { hold, port }, self.now);
                "reply"
            }
            b't' => {
                self.wait();
                "time"
            }
            _ => return None,
        };
        let acted = self.act(kind);
        self.check();
        Some(match outcome {
            "taken" => acted.unwrap_or(outcome),
            _ => outcome,
        })
    }

    fn message(&mut self, from: &str, body: &[u8]) -> &'static str {
        if body.len() > LONGEST {
            return "json";
        }
        let message = match decode(body) {
            Ok(message) => message,
            // The transport closes the connection then.
            Err(error) => {
                let (neighbour, reason) = (host(from), Reason::new(&error.to_string()));
                let ended = Event::Disconnected { neighbour, reason };
                self.machine.handle(ended, self.now);
                connect(&mut self.machine, from, self.now);
                return match error {
                    MessageError::Version { .. } => "version",
                    _ => "json",
                };
            }
        };
        let ignored = self.machine.ignored();
        receive(&mut self.machine, from, message, self.now);
        match self.machine.ignored() == ignored {
            true => "taken",
            false => self.unknown_or_ignored(),
        }
    }

    /// `taken` if there are actions, whose kinds are the outcome; else `ignored`.
    fn unknown_or_ignored(&self) -> &'static str {
        match self.machine.has_actions() {
            true => "taken",
            false => "ignored",
        }
    }

    /// A second passes. The good neighbours name their channel.
    fn wait(&mut self) {
        self.now = self.now.after(Nanos::from_secs(1));
        self.machine.handle_timeout(self.now);
        for neighbour in ["a", "b"] {
            let channels = vec![GOOD];
            let refresh = Message::Refresh(Refresh { channels });
            receive(&mut self.machine, neighbour, refresh, self.now);
        }
    }

    /// Performs the actions of the machine; returns what became of a message.
    fn act(&mut self, kind: u8) -> Option<&'static str> {
        let mut outcome = None;
        let mut count = 0;
        while let Some(action) = self.machine.poll_action() {
            count += 1;
            let became = match action {
                Action::Hold { hold, .. } => {
                    assert!(!self.held.contains(&hold));
                    self.held.push(hold);
                    self.latest = hold;
                    "hold"
                }
                Action::Relax { hold, .. } => {
                    assert!(self.held.contains(&hold));
                    "relax"
                }
                Action::Release { hold } => {
                    assert_ne!(hold, self.good.hold, "the good channel's hold is released");
                    let at = self.held.iter().position(|held| *held == hold);
                    self.held.swap_remove(at.expect("it is held"));
                    "ended"
                }
                Action::Disconnect { neighbour, .. } => {
                    let name = neighbour.as_str().to_owned();
                    assert!(matches!(name.as_str(), "e" | "f"), "{name} is disconnected");
                    connect(&mut self.machine, &name, self.now);
                    "violation"
                }
                Action::Send { neighbour, message } => {
                    let became = sent(&neighbour, &message, kind);
                    if let Message::Establish(establish) = message
                        && matches!(neighbour.as_str(), "e" | "f")
                    {
                        self.asked = Some((neighbour, establish));
                    }
                    became
                }
                Action::Count { question, hold } => {
                    assert_ne!(hold, self.good.hold, "the good channel is counted");
                    let counted = Counted::Counts(HopCounts::default());
                    let event = Event::Counted { question, counted };
                    self.machine.handle(event, self.now);
                    "count"
                }
                Action::Accepted { channel, .. } | Action::Ended { channel, .. } => {
                    assert_ne!(channel, GOOD);
                    continue;
                }
                other => panic!("{other:?}"),
            };
            outcome = outcome.or(Some(became));
        }
        assert!(count <= MOST_ACTIONS, "{count} actions for one message");
        outcome
    }

    /// Checks that the good channel is as it was, and that nothing is held beyond the quota.
    fn check(&self) {
        let mut counts = [0; 2];
        let mut holds = Vec::new();
        for one in self.machine.channels() {
            holds.push(one.hold);
            match one.previous.as_ref().map(HostName::as_str) {
                Some("a") => assert_eq!(one, self.good),
                Some("e") => counts[0] += 1,
                Some("f") => counts[1] += 1,
                _ => panic!("{one:?}"),
            }
        }
        assert!(holds.contains(&self.good.hold), "the good channel ended");
        assert!(
            counts.iter().all(|count| *count <= QUOTA.channels),
            "{counts:?}"
        );
        let mut held = self.held.clone();
        held.sort();
        holds.sort();
        assert_eq!(held, holds);
        assert!(self.machine.questions() <= 2 * MOST_OF_NEIGHBOUR);
        let latest = self.machine.poll_timeout();
        assert!(latest.is_some_and(|at| at <= self.now.after(HELD)));
    }
}

/// The kind of a message that the host sends because of a record.
fn sent(to: &HostName, message: &Message, kind: u8) -> &'static str {
    let is_sender = to.as_str().as_bytes() == [kind];
    match message {
        Message::Establish(_) => "forwarded",
        Message::Refused(_) if is_sender => "refused",
        Message::Close(close) => {
            assert_ne!(
                (close.channel, is_sender),
                (GOOD, false),
                "{to} is told {close:?}"
            );
            "unknown"
        }
        Message::ClockAnswer(_) => "clock",
        Message::ReportAsk(ask) => {
            assert_ne!(ask.channel, GOOD);
            "other"
        }
        Message::ReportAnswer(answer) => {
            assert_ne!(answer.channel, GOOD);
            "answered"
        }
        _ => "other",
    }
}

fn connect(machine: &mut Signalling, neighbour: &str, now: Instant) {
    let (name, hello) = (host(neighbour), host(neighbour));
    machine.handle(Event::Connected { neighbour: name }, now);
    receive(
        machine,
        neighbour,
        Message::Hello(Hello { host: hello }),
        now,
    );
}

fn receive(machine: &mut Signalling, from: &str, message: Message, now: Instant) {
    let neighbour = host(from);
    machine.handle(Event::Received { neighbour, message }, now);
}

fn host(name: &str) -> HostName {
    HostName::new(name).expect("a host name")
}

/// The address of a host whose name is one letter.
fn address(name: &str) -> IpAddr {
    IpAddr::from([10, 0, 0, name.as_bytes()[0]])
}

fn next_hop(host: HostName) -> NextHop {
    let (from, to) = (address("r"), address(host.as_str()));
    NextHop { host, from, to }
}

fn hops(bounds: &[(&str, u64)]) -> Hops {
    let hops = bounds.iter().map(|(name, bound)| HopBound {
        host: host(name),
        bound: Nanos::from_millis(*bound),
        unguarded: None,
    });
    Hops::new(hops.collect()).expect("hops")
}

/// The channel of the good neighbours.
pub(crate) const GOOD: ChannelId = ChannelId([1; 16]);

/// The port of every host.
const PORT: NonZeroU16 = NonZeroU16::new(7_000).expect("above zero");

/// What each hostile neighbour may have.
pub(crate) const QUOTA: Quota = Quota {
    channels: 8,
    in_progress: 8,
    opens_per_second: 1_000,
    mmax: Bytes(1 << 20),
    rate: netnice_core::units::Amount(1_000_000_000),
    burst: Bytes(1 << 24),
};

/// The most actions for one record: a disconnection ends all channels of a neighbour, each with its
/// hold and its other side, and a refresh has at most 64 replies.
const MOST_ACTIONS: usize = 100;

#[cfg(test)]
mod tests;
